"""Members of a grammar, counted exactly and drawn uniformly."""

from structgen.engine.members.uniform import Alphabet, UniformMembers

__all__ = ["Alphabet", "UniformMembers"]

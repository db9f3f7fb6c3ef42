"""The reference implementation of grammars, which defines them, and the laws that every matcher obeys.

For users too: run :func:`check_laws` on your own grammar and vocabulary.
"""

from structgen.testing.matcher_laws import LAWS, Effort, LawViolation, check_laws
from structgen.testing.potential_laws import check_potential
from structgen.testing.reference import ReferenceMatcher
from structgen.testing.small_scope import byte_vocabulary, language, recursive, small_terms

__all__ = [
    "LAWS",
    "Effort",
    "LawViolation",
    "ReferenceMatcher",
    "byte_vocabulary",
    "check_laws",
    "check_potential",
    "language",
    "recursive",
    "small_terms",
]

"""Potentials: what outputs are worth beside what the model and the grammar say."""

from structgen.decode.potentials.gate import Gate
from structgen.decode.potentials.hypothesis import Hypothesis
from structgen.decode.potentials.lifted import Lifted, NoValue, as_potential, potential
from structgen.decode.potentials.potential import ConstraintPotential, Potential, Product
from structgen.decode.potentials.questions import Questions

__all__ = [
    "ConstraintPotential",
    "Gate",
    "Hypothesis",
    "Lifted",
    "NoValue",
    "Potential",
    "Product",
    "Questions",
    "as_potential",
    "potential",
]

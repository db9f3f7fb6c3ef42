"""Potentials: what outputs are worth beside what the model and the grammar say."""

from structgen.decode.potentials.evaluation import Gate, Questions
from structgen.decode.potentials.lifted import Lifted, NoValue, as_potential, potential
from structgen.decode.potentials.potential import ConstraintPotential, Hypothesis, Potential, Product

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

"""Potentials: scores of outputs, which multiply the probability of the model within the grammar."""

from structgen.decode.potentials.evaluation import Gate, PotentialEvaluator, with_canonical
from structgen.decode.potentials.potential import (
    ConstraintPotential,
    Hypothesis,
    Lifted,
    NoValue,
    Potential,
    Product,
    as_potential,
    as_potentials,
    potential,
)

__all__ = [
    "ConstraintPotential",
    "Gate",
    "Hypothesis",
    "Lifted",
    "NoValue",
    "Potential",
    "PotentialEvaluator",
    "Product",
    "as_potential",
    "as_potentials",
    "potential",
    "with_canonical",
]

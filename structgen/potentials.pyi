"""Potentials weigh outputs beside the model and the grammar; monitors are potentials that read the output so far."""

from structgen.decode.potentials import Hypothesis, Potential, potential
from structgen.methods.monitors import monitor, ordered, refers, unique

__all__ = [
    "Hypothesis",
    "Potential",
    "monitor",
    "ordered",
    "potential",
    "refers",
    "unique",
]

"""Potentials weigh outputs beside the model and the grammar; monitors are potentials that read the output so far."""

from structgen.decode.potentials import (
    Hypothesis as Hypothesis,
    Potential as Potential,
    potential as potential,
)
from structgen.methods.monitors import (
    monitor as monitor,
    ordered as ordered,
    refers as refers,
    unique as unique,
)

__all__ = [
    "Hypothesis",
    "Potential",
    "monitor",
    "ordered",
    "potential",
    "refers",
    "unique",
]

"""Commit policies decide which slots of a canvas are committed after a forward pass."""

from structgen.decode.diffusion.commit_policy import Factor, Static, Threshold
from structgen.methods.policies.memoryless import EntropyBound, Explore, LocalLeap
from structgen.methods.policies.stateful import CreditDecoding, Learned, Prophet

__all__ = [
    "CreditDecoding",
    "EntropyBound",
    "Explore",
    "Factor",
    "Learned",
    "LocalLeap",
    "Prophet",
    "Static",
    "Threshold",
]

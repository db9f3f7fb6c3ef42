"""Commit policies decide which slots of a canvas are committed after a forward pass."""

from structgen.decode.diffusion.commit_policy import (
    Factor as Factor,
    Static as Static,
    Threshold as Threshold,
)
from structgen.methods.policies.memoryless import (
    EntropyBound as EntropyBound,
    Explore as Explore,
    LocalLeap as LocalLeap,
)
from structgen.methods.policies.stateful import (
    CreditDecoding as CreditDecoding,
    Learned as Learned,
    Prophet as Prophet,
)

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

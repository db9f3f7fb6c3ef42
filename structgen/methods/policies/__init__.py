"""Commit policies with one forward pass in each step."""

from __future__ import annotations

from structgen.decode.diffusion.commit_policy import Factor, Static, Threshold
from structgen.methods.policies.memoryless import EntropyBound, Explore, LocalLeap
from structgen.methods.policies.stateful import CanvasView, CreditDecoding, Learned, Prophet, SettledFilter

__all__ = [
    "CanvasView",
    "CreditDecoding",
    "EntropyBound",
    "Explore",
    "Factor",
    "Learned",
    "LocalLeap",
    "Prophet",
    "SettledFilter",
    "Static",
    "Threshold",
]

"""Commit policies that spend one forward pass a step."""

from __future__ import annotations

from structgen.decode.diffusion.policies.credit_decoding import CreditDecoding
from structgen.decode.diffusion.policies.entropy_bound import EntropyBound
from structgen.decode.diffusion.policies.explore import Explore
from structgen.decode.diffusion.policies.factor import Factor
from structgen.decode.diffusion.policies.learned import CanvasView, Learned, SettledFilter
from structgen.decode.diffusion.policies.local_leap import LocalLeap
from structgen.decode.diffusion.policies.prophet import Prophet
from structgen.decode.diffusion.policies.static import Static
from structgen.decode.diffusion.policies.threshold import Threshold

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

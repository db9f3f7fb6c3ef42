"""Decoding with diffusion models: canvases are restricted to a language, completed, and committed slot by slot.

Needs numpy and nothing heavier.  Names are imported when they are first used: autoregressive decoding does not pay for
canvases.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from structgen.decode.diffusion.canvas_run import CanvasRun, Denoised, Snapshot
    from structgen.decode.diffusion.canvas_sampler import CanvasSampler, Dingo, Posterior
    from structgen.decode.diffusion.commit_policy import (
        Chooser,
        CommitPolicy,
        Committer,
        SlotChoice,
        SlotRanking,
        advance_by,
        rank_slots,
    )
    from structgen.decode.diffusion.fill import fill_canvas, shown_canvas
    from structgen.decode.diffusion.filling import Filling
    from structgen.decode.diffusion.language import canvas_language
    from structgen.decode.diffusion.mean_field import FREE, MeanField
    from structgen.decode.diffusion.policies import (
        CanvasView,
        CreditDecoding,
        EntropyBound,
        Explore,
        Factor,
        Learned,
        LocalLeap,
        Prophet,
        SettledFilter,
        Static,
        Threshold,
    )
    from structgen.decode.diffusion.posterior import Canvas, CanvasLanguage, CanvasPosterior, Completion
    from structgen.decode.diffusion.reuse import DelayedReuse, DualReuse, PrefixReuse, Reuse

__all__ = [
    "FREE",
    "Canvas",
    "CanvasLanguage",
    "CanvasPosterior",
    "CanvasRun",
    "CanvasSampler",
    "CanvasView",
    "Chooser",
    "CommitPolicy",
    "Committer",
    "Completion",
    "CreditDecoding",
    "DelayedReuse",
    "Denoised",
    "Dingo",
    "DualReuse",
    "EntropyBound",
    "Explore",
    "Factor",
    "Filling",
    "Learned",
    "LocalLeap",
    "MeanField",
    "Posterior",
    "PrefixReuse",
    "Prophet",
    "Reuse",
    "SettledFilter",
    "SlotChoice",
    "SlotRanking",
    "Snapshot",
    "Static",
    "Threshold",
    "advance_by",
    "canvas_language",
    "fill_canvas",
    "rank_slots",
    "shown_canvas",
]

_NAMES = {
    "structgen.decode.diffusion.canvas_run": (
        "CanvasRun",
        "Denoised",
        "Snapshot",
    ),
    "structgen.decode.diffusion.canvas_sampler": (
        "CanvasSampler",
        "Dingo",
        "Posterior",
    ),
    "structgen.decode.diffusion.commit_policy": (
        "Chooser",
        "CommitPolicy",
        "Committer",
        "SlotChoice",
        "SlotRanking",
        "advance_by",
        "rank_slots",
    ),
    "structgen.decode.diffusion.fill": (
        "fill_canvas",
        "shown_canvas",
    ),
    "structgen.decode.diffusion.filling": ("Filling",),
    "structgen.decode.diffusion.language": ("canvas_language",),
    "structgen.decode.diffusion.mean_field": (
        "FREE",
        "MeanField",
    ),
    "structgen.decode.diffusion.policies": (
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
    ),
    "structgen.decode.diffusion.posterior": (
        "Canvas",
        "CanvasLanguage",
        "CanvasPosterior",
        "Completion",
    ),
    "structgen.decode.diffusion.reuse": (
        "DelayedReuse",
        "DualReuse",
        "PrefixReuse",
        "Reuse",
    ),
}
_HOMES = {name: module for module, names in _NAMES.items() for name in names}

if not TYPE_CHECKING:  # a type checker would take every name for defined

    def __getattr__(name: str) -> Any:
        """Import a public name from its home and keep it."""
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(_HOMES[name]), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])

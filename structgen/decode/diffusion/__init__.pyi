"""Decoding with diffusion models: restrict a canvas to a language, take a completion, commit some of its slots.

Needs only numpy. Names are imported on first use, so autoregressive decoding does not pay for canvases.
"""

from structgen.decode.diffusion.canvas import canvas_language
from structgen.decode.diffusion.canvas_run import CanvasRun, Denoised, Snapshot
from structgen.decode.diffusion.commit_policy import (
    Chooser,
    CommitPolicy,
    Committer,
    Factor,
    Filling,
    SlotChoice,
    SlotRanking,
    Static,
    Threshold,
    advance_by,
    rank_slots,
)
from structgen.decode.diffusion.fill import fill_canvas, shown_canvas
from structgen.decode.diffusion.forward_pass import DelayedReuse, DualReuse, PrefixReuse, Reuse
from structgen.decode.diffusion.mean_field import FREE, MeanField
from structgen.decode.diffusion.posterior import (
    Canvas,
    CanvasLanguage,
    CanvasPosterior,
    CanvasSampler,
    Completion,
    Dingo,
    Posterior,
)

__all__ = [
    "FREE",
    "Canvas",
    "CanvasLanguage",
    "CanvasPosterior",
    "CanvasRun",
    "CanvasSampler",
    "Chooser",
    "CommitPolicy",
    "Committer",
    "Completion",
    "DelayedReuse",
    "Denoised",
    "Dingo",
    "DualReuse",
    "Factor",
    "Filling",
    "MeanField",
    "Posterior",
    "PrefixReuse",
    "Reuse",
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

"""Decoding with diffusion models: canvases are restricted to a language, completed, and committed slot by slot.

Needs numpy and nothing heavier. Names are imported when they are first used: autoregressive decoding does not pay for
canvases.
"""

from structgen.decode.diffusion.canvas_run import (
    CanvasRun as CanvasRun,
    Denoised as Denoised,
    Snapshot as Snapshot,
)
from structgen.decode.diffusion.commit_policy import (
    Chooser as Chooser,
    CommitPolicy as CommitPolicy,
    Committer as Committer,
    Factor as Factor,
    SlotChoice as SlotChoice,
    SlotRanking as SlotRanking,
    Static as Static,
    Threshold as Threshold,
    advance_by as advance_by,
    rank_slots as rank_slots,
)
from structgen.decode.diffusion.fill import (
    fill_canvas as fill_canvas,
    shown_canvas as shown_canvas,
)
from structgen.decode.diffusion.forward_pass import (
    DelayedReuse as DelayedReuse,
    DualReuse as DualReuse,
    PrefixReuse as PrefixReuse,
    Reuse as Reuse,
)
from structgen.decode.diffusion.language import canvas_language as canvas_language
from structgen.decode.diffusion.mean_field import (
    FREE as FREE,
    MeanField as MeanField,
)
from structgen.decode.diffusion.posterior import (
    Canvas as Canvas,
    CanvasLanguage as CanvasLanguage,
    CanvasPosterior as CanvasPosterior,
    CanvasSampler as CanvasSampler,
    Completion as Completion,
    Dingo as Dingo,
    Posterior as Posterior,
)
from structgen.decode.diffusion.unmasking import Filling as Filling

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

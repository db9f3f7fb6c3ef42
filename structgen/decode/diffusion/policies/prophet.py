"""Everything at once, as soon as the answer is clear."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, final

import numpy as np

from structgen.decode.diffusion.commit_policy import rank_slots

if TYPE_CHECKING:
    from structgen.decode.diffusion.canvas_run import CanvasRun, Denoised

__all__ = ["Prophet"]


@final
@dataclass(frozen=True, slots=True)
class Prophet:
    """Commits the surest slots until the gap is large, then the whole completion.

    The gap, in nats, is one of two:

    - ``"slots"``: of the best token of a slot over the second, in the marginals given the language, on average over the
      slots of the completion up to its end.  A token without any rival counts as 80.
    - ``"completion"``: of the mass of the completion over that of all others together, so at most what it is ahead of
      the second best.  It asks for more, the more slots there are.

    Attributes:
        gaps: needed in the first, second and last third of the canvas that was free at first; not negative.
        over: which gap.
        per_step: slots that are committed in each step before.

    Source: P. Li et al., "Diffusion Language Models Know the Answer Before Decoding" (2025, arXiv 2508.19982), with
    gaps of logits, on average over the slots of an answer, and thirds of the steps; the numbers are theirs.
    """

    gaps: tuple[float, float, float] = (7.5, 5.0, 2.5)
    over: Literal["slots", "completion"] = "slots"
    per_step: int = 1

    lossless: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if len(self.gaps) != 3 or not all(math.isfinite(gap) and gap >= 0 for gap in self.gaps):
            raise ValueError(f"Prophet: gaps must be three numbers of at least 0, in nats; found {self.gaps!r}")
        if self.over not in ("slots", "completion"):
            raise ValueError(f"Prophet: over must be 'slots' or 'completion'; found {self.over!r}")
        if self.per_step < 1:
            raise ValueError(f"Prophet: per_step must be at least 1; found {self.per_step}")

    def start(self) -> _ProphetCommitter:
        """See ``CommitPolicy.start``."""
        return _ProphetCommitter(self)


_CERTAIN = 80.0
"""Nats that a token without a rival is ahead."""


@final
class _ProphetCommitter:
    def __init__(self, policy: Prophet) -> None:
        self._policy = policy
        self._slots = 0

    def advance(self, run: CanvasRun, /) -> None:
        """See ``Committer.advance``."""
        free = run.free
        self._slots = max(self._slots, len(free))
        denoised = run.denoise()
        third = min(2, 3 * (self._slots - len(free)) // self._slots)
        gap = _slot_gap(run, denoised) if self._policy.over == "slots" else _completion_gap(denoised)
        if gap >= self._policy.gaps[third]:
            run.commit(free, denoised.completion)
        else:
            run.commit(rank_slots(run, denoised).front(self._policy.per_step), denoised.completion)


def _slot_gap(run: CanvasRun, denoised: Denoised) -> float:
    slots = rank_slots(run, denoised, among=run.free).slots
    _, firsts, seconds = denoised.posterior.leaders()
    with np.errstate(divide="ignore"):
        return float(np.minimum(np.log(firsts[slots] / seconds[slots]), _CERTAIN).mean())


def _completion_gap(denoised: Denoised) -> float:
    log_share = min(0.0, denoised.completion.log_prob - denoised.posterior.log_z)
    others = -math.expm1(log_share)
    return _CERTAIN if others <= 0 else min(_CERTAIN, log_share - math.log(others))

"""Slots whose token has been the best for some steps."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, final

import numpy as np

from structgen.decode.diffusion.commit_policy import rank_slots
from structgen.decode.diffusion.mean_field import MeanField

if TYPE_CHECKING:
    from structgen.decode.diffusion.canvas_run import CanvasRun, Denoised
    from structgen.models.diffusion.protocol import SlotLogits

__all__ = ["CreditDecoding"]


@final
@dataclass(frozen=True, slots=True)
class CreditDecoding:
    """Adds what tokens were worth in earlier steps to their logits, then commits all slots that are sure enough.

    In each step the token that the most probable completion holds in a free slot earns its marginal probability given
    the language, to the power of ``power``, and all earlier credit decays.  ``weight * log(1 + credit)`` is added to
    the logits, and the sum is restricted to the language as any law is.  A completion is a member, so no token earns
    anything in a slot where the language does not allow it, and the tokens that earn together can stand together.

    It changes the law of every slot, so ``Result.logprob`` and ``log_z`` are those of the changed laws.

    Attributes:
        confidence: above 0, at most 1; that of the changed law, given the language.
        decay: what is left of a credit after a step, from 0 to 1 without 1.
        weight: of the credit, at least 0; with 0 this is ``Threshold(confidence)``.
        power: above 0, at most 1; small ones favour unsure tokens.

    Source: K. Wang et al., "CreditDecoding" (2025, arXiv 2510.06133), for decayed credit of the best token of each slot
    and logarithmic fusion; credit for completions is ours, and so are the defaults.
    """

    confidence: float = 0.9
    decay: float = 0.7
    weight: float = 0.65
    power: float = 0.65

    lossless: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not 0 < self.confidence <= 1:
            raise ValueError(f"CreditDecoding: confidence must be above 0 and at most 1; found {self.confidence!r}")
        if not 0 <= self.decay < 1:
            raise ValueError(f"CreditDecoding: decay must be at least 0 and below 1; found {self.decay!r}")
        if not (math.isfinite(self.weight) and self.weight >= 0):
            raise ValueError(f"CreditDecoding: weight must be at least 0 and finite; found {self.weight!r}")
        if not 0 < self.power <= 1:
            raise ValueError(f"CreditDecoding: power must be above 0 and at most 1; found {self.power!r}")

    def start(self) -> _CreditCommitter:
        """See ``CommitPolicy.start``."""
        return _CreditCommitter(self)


@final
class _CreditCommitter:
    def __init__(self, policy: CreditDecoding) -> None:
        self._policy = policy
        self._credits: dict[int, dict[int, float]] = {}

    def advance(self, run: CanvasRun, /) -> None:
        """See ``Committer.advance``."""
        law = run.law()
        self._earn(run, run.restrict(law))
        denoised = run.restrict(MeanField(run.canvas, self._fused(law), temperature=run.temperature))
        ranking = rank_slots(run, denoised)
        passes = denoised.confidence[ranking.slots] >= self._policy.confidence
        run.commit(ranking.passing(passes), denoised.completion)

    def _fused(self, law: MeanField) -> SlotLogits:
        """The logits, with what was earned."""
        earned = [(slot, token, credit) for slot, each in self._credits.items() for token, credit in each.items()]
        slots, tokens, credits = (np.array(column) for column in zip(*earned, strict=True))
        by = self._policy.weight * np.log1p(credits)
        return law.slot_logits.raised(law.row_of[slots], tokens.astype(np.int32), by.astype(np.float32))

    def _earn(self, run: CanvasRun, denoised: Denoised) -> None:
        best = denoised.completion if run.sampler.deterministic else denoised.posterior.best()
        shares = denoised.posterior.shares(best.tokens)
        decayed = {
            slot: {token: credit * self._policy.decay for token, credit in self._credits.get(slot, {}).items()}
            for slot in run.free.tolist()
        }
        for slot, of_slot in decayed.items():
            token = int(best.tokens[slot])
            of_slot[token] = of_slot.get(token, 0.0) + float(shares[slot]) ** self._policy.power
        self._credits = decayed

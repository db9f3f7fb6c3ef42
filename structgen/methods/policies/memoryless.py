"""Commit policies that use one forward pass only: an entropy bound, exploration, and anchors of high confidence."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, final

import numpy as np

from structgen.decode.diffusion.commit_policy import Chooser, rank_slots

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from structgen.decode.diffusion.canvas_run import CanvasRun, Denoised

__all__ = ["EntropyBound", "Explore", "LocalLeap"]


@final
@dataclass(frozen=True, slots=True)
class EntropyBound:
    """Commits the largest set of slots, by rising entropy, with ``sum of entropies - largest entropy <= bound``.

    The bounded term is an upper bound on the mutual information among the slots, so with a small bound they are almost
    independent. Entropies are those of the marginals given the language; a grammar reduces them.

    Attributes:
        bound: nats, at least 0; with 0, one slot and all certain slots are committed.

    Source: H. Ben-Hamu et al., "Accelerated Sampling from Masked Diffusion Models via Entropy Bounded Unmasking" (2025,
    arXiv 2505.24857), whose sampler samples the slots of the set independently; here they come from one completion.
    """

    bound: float = 0.1

    lossless: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not (math.isfinite(self.bound) and self.bound >= 0):
            raise ValueError(f"EntropyBound: bound must be at least 0 nats and finite; found {self.bound!r}")

    def start(self) -> Chooser:
        """See ``CommitPolicy.start``."""
        return Chooser(self._choose)

    def _choose(self, run: CanvasRun, denoised: Denoised, /) -> NDArray[np.intp]:
        entropies = denoised.posterior.entropies()
        ranking = rank_slots(run, denoised, -entropies)
        rising = entropies[ranking.slots]
        spent = np.cumsum(rising) - np.maximum.accumulate(rising)
        return ranking.front(int(np.searchsorted(spent, self.bound, side="right")))


@final
@dataclass(frozen=True, slots=True)
class Explore:
    """Commits confident slots anywhere on the canvas, and one uncertain slot if they carry too little information.

    The information of a text, its surprisal in bits, must arrive over the passes. Confident slots carry almost none, so
    a rule that waits for them needs many passes. If the confident slots of a step carry fewer than ``bits``, the slot
    of the block with the largest entropy given the language is committed too, provided that its token has at least the
    probability ``least``: other slots depend on it.

    Attributes:
        confidence: of a confident slot, above 0 and at most 1.
        bits: the information of a step, at least 0; with 0 no uncertain slot is added.
        least: confidence of an uncertain slot, from 0 to 1.

    Source: "From Bits to Rounds: Parallel Decoding with Exploration for Diffusion Language Models" (2025), from its
    abstract only: decoding across blocks, commitment of uncertain slots to set off cascades, and a bound on rounds by
    bits. The rule for when and which slot is ours.
    """

    confidence: float = 0.9
    bits: float = 1.0
    least: float = 0.2

    lossless: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not 0 < self.confidence <= 1:
            raise ValueError(f"Explore: confidence must be above 0 and at most 1; found {self.confidence!r}")
        if not (math.isfinite(self.bits) and self.bits >= 0):
            raise ValueError(f"Explore: bits must be at least 0 and finite; found {self.bits!r}")
        if not 0 <= self.least <= 1:
            raise ValueError(f"Explore: least must be between 0 and 1; found {self.least!r}")

    def start(self) -> Chooser:
        """See ``CommitPolicy.start``."""
        return Chooser(self._choose)

    def _choose(self, run: CanvasRun, denoised: Denoised, /) -> NDArray[np.intp]:
        confidence = denoised.confidence
        everywhere = rank_slots(run, denoised, among=run.free)
        confident = confidence[everywhere.slots] >= self.confidence
        chosen = everywhere.passing(confident) if confident.any() else everywhere.slots[:0]
        carried = -float(np.log2(np.maximum(confidence[chosen], np.finfo(np.float64).tiny)).sum())
        here = rank_slots(run, denoised, denoised.posterior.entropies())
        rest = here.slots[: len(here.slots) - here.ends]
        rest = rest[~np.isin(rest, chosen) & (confidence[rest] >= self.least)]
        if carried < self.bits and len(rest):
            chosen = np.append(chosen, rest[0])
        return chosen if len(chosen) else rank_slots(run, denoised).front(1)


@final
@dataclass(frozen=True, slots=True)
class LocalLeap:
    """Commits every slot above a threshold that is lower near anchors, and always the slot of highest confidence.

    Anchors are the slots that the language has forced, and free slots with a confidence of at least ``anchor``. At
    distance 1 of the nearest anchor a slot needs ``relaxed``; the threshold rises linearly up to ``window``, and beyond
    it is ``anchor``.

    Attributes:
        anchor: confidence of an anchor, above 0 and at most 1.
        relaxed: confidence next to an anchor, above 0 and at most ``anchor``.
        window: slots to either side, at least 0; with 0 this is ``Threshold(anchor)``.

    Source: F. Kong et al., "Accelerating Diffusion LLM Inference via Local Determinism Propagation" (2025, arXiv
    2510.07081), for anchors and bounded neighbourhoods in which reliability falls with distance. Forced slots as
    anchors and the linear form are ours.
    """

    anchor: float = 0.9
    relaxed: float = 0.7
    window: int = 4

    lossless: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not 0 < self.anchor <= 1:
            raise ValueError(f"LocalLeap: anchor must be above 0 and at most 1; found {self.anchor!r}")
        if not 0 < self.relaxed <= self.anchor:
            raise ValueError(
                f"LocalLeap: relaxed must be above 0 and at most anchor={self.anchor}; found {self.relaxed!r}"
            )
        if self.window < 0:
            raise ValueError(f"LocalLeap: window must be at least 0; found {self.window}")

    def start(self) -> Chooser:
        """See ``CommitPolicy.start``."""
        return Chooser(self._choose)

    def _choose(self, run: CanvasRun, denoised: Denoised, /) -> NDArray[np.intp]:
        ranking = rank_slots(run, denoised)
        confident = ranking.slots[denoised.confidence[ranking.slots] >= self.anchor]
        anchors = np.union1d(np.flatnonzero(run.was_forced), confident)
        return ranking.passing(denoised.confidence[ranking.slots] >= self._needed(ranking.slots, anchors))

    def _needed(self, slots: NDArray[np.intp], anchors: NDArray[np.intp]) -> NDArray[np.float64]:
        """The confidence that each slot needs."""
        if not len(anchors) or not self.window:
            return np.full(len(slots), self.anchor)
        distance = np.abs(slots[:, None] - anchors[None, :]).min(axis=1)
        near = self.relaxed + (self.anchor - self.relaxed) * (np.maximum(distance, 1) - 1) / self.window
        needed: NDArray[np.float64] = np.where((distance > 0) & (distance <= self.window), near, self.anchor)
        return needed

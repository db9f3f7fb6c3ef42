"""Commit policies with state: token credit, early exit, and a trained filter of slots.

The package contains a filter for the embedded diffusion model.

Source: Learning to Parallel (2025, arXiv 2509.25188), whose filter reads the confidences of a block; this one reads
each slot separately with its history, so it fits canvases of any length.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, NamedTuple, Protocol, final, runtime_checkable

import numpy as np

from structgen.decode.diffusion.commit_policy import rank_slots
from structgen.decode.diffusion.mean_field import FREE, MeanField
from structgen.errors import ModelError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from structgen.decode.diffusion.canvas_run import CanvasRun, Denoised
    from structgen.models.protocol.diffusion import SlotLogits

__all__ = [
    "FEATURES",
    "HISTORY",
    "CanvasView",
    "CreditDecoding",
    "Learned",
    "Prophet",
    "SettledFilter",
    "SlotFilter",
    "SlotView",
    "load_slot_filter",
    "slot_features",
]

HISTORY: Final = 3
"""The number of steps, including the current one, whose confidences a filter reads."""

FEATURES: Final = (
    *(f"log odds of the confidence {age} steps ago" for age in range(HISTORY)),
    *(f"whether the top token was the same {age} steps ago" for age in range(1, HISTORY)),
    "confidence less that of the second token",
    "confidence of the left neighbour, 1 where it is fixed",
    "confidence of the right neighbour, likewise",
    "share of slots that are free",
    "place on the canvas, from 0 to 1",
)

_FILE = Path(__file__).parent / "slot_filter.json"
_SHARPEST: Final = 1e-4


@final
@dataclass(frozen=True, eq=False)
class SlotView:
    """The state of a canvas in one step.

    Attributes:
        tokens: the most probable token of each slot, ``[slots]``.
        confidences: its probability, ``[slots]``; 1 for fixed slots.
        seconds: the probability of the second token, ``[slots]``; 0 for fixed slots.
        free: which slots are free, bool ``[slots]``.
    """

    tokens: NDArray[np.integer]
    confidences: NDArray[np.floating]
    seconds: NDArray[np.floating]
    free: NDArray[np.bool_]


@final
@dataclass(frozen=True, eq=False)
class SlotFilter:
    """A network of one hidden layer over the features of one slot.

    Attributes:
        centre: subtracted from the features, ``[features]``.
        scale: divides the result, ``[features]``.
        hidden: ``[width, features + 1]``; the last column is the bias.
        out: ``[width + 1]``; the last is the bias.
    """

    centre: NDArray[np.float64]
    scale: NDArray[np.float64]
    hidden: NDArray[np.float64]
    out: NDArray[np.float64]

    def settled(self, views: Sequence[SlotView], /) -> NDArray[np.float64]:
        """Return for each slot the probability that its top token is final, ``[slots]``; 1 for fixed slots.

        Args:
            views: one for each step so far, the current one last.

        Raises:
            ValueError: there is no view, or the views are of different canvases.
        """
        inputs = (slot_features(views) - self.centre) / self.scale
        hidden = np.maximum(inputs @ self.hidden[:, :-1].T + self.hidden[:, -1], 0)
        probabilities: NDArray[np.float64] = 1 / (1 + np.exp(-(hidden @ self.out[:-1] + self.out[-1])))
        return np.where(views[-1].free, probabilities, 1.0)

    def save(self, path: Path) -> None:
        """Write the filter as JSON."""
        numbers = {name: np.round(getattr(self, name), 5).tolist() for name in ("centre", "scale", "hidden", "out")}
        path.write_text(json.dumps(numbers) + "\n", encoding="utf-8")


def slot_features(views: Sequence[SlotView]) -> NDArray[np.float64]:
    """Return a filter's features of each slot, ``[slots, features]``; missing earlier steps repeat the first.

    Raises:
        ValueError: there is no view, or the views are of different canvases.
    """
    if not views or any(len(view.tokens) != len(views[-1].tokens) for view in views):
        raise ValueError(
            f"slot_features: expected one or more views of one canvas; found {[len(v.tokens) for v in views]} slots"
        )
    recent = [views[max(0, len(views) - 1 - age)] for age in range(HISTORY)]
    now, slots = recent[0], len(views[-1].tokens)
    edged = np.pad(np.where(now.free, now.confidences, 1.0), 1, constant_values=1.0)
    columns = [
        *(_log_odds(view.confidences) for view in recent),
        *(view.tokens == now.tokens for view in recent[1:]),
        now.confidences - now.seconds,
        edged[:-2],
        edged[2:],
        np.full(slots, now.free.mean()),
        np.arange(slots) / slots,
    ]
    return np.stack(columns, axis=1).astype(np.float64)


def load_slot_filter(path: Path | None = None) -> SlotFilter:
    """Read a filter written by ``SlotFilter.save``; None for that of the embedded model.

    Raises:
        ModelError: the file is missing or malformed.
    """
    path = path or _FILE
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        slot_filter = SlotFilter(**{name: np.array(numbers, dtype=np.float64) for name, numbers in content.items()})
        width, features = len(slot_filter.hidden), (len(FEATURES),)
        right = slot_filter.hidden.shape == (width, len(FEATURES) + 1) and slot_filter.out.shape == (width + 1,)
        if not right or slot_filter.centre.shape != features or slot_filter.scale.shape != features:
            raise ValueError(f"its arrays do not fit {len(FEATURES)} features")
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise ModelError(f"slot filter {path.name}", "it cannot be read", evidence=str(error)) from error
    return slot_filter


def _log_odds(confidences: NDArray[np.floating]) -> NDArray[np.floating]:
    bounded = np.clip(confidences, _SHARPEST, 1 - _SHARPEST)
    odds: NDArray[np.floating] = np.log(bounded / (1 - bounded))
    return odds


@final
@dataclass(frozen=True, slots=True)
class CreditDecoding:
    """Adds decayed credit of tokens from earlier steps to their logits, then commits all slots of high confidence.

    In each step, the token of the most probable completion in each free slot earns its marginal probability given the
    language, to the power of ``power``; earlier credit decays. ``weight * log(1 + credit)`` is added to the logits, and
    the sum is restricted to the language like any distribution. A completion is a valid string, so only allowed tokens
    earn credit, and tokens that earn together are compatible.

    The policy changes the distribution of every slot, so ``Result.logprob`` and ``log_z`` are those of the changed
    distributions.

    Attributes:
        confidence: above 0, at most 1; that of the changed distribution, given the language.
        decay: the factor of credit after each step, from 0 to 1 without 1.
        weight: of the credit, at least 0; with 0 this is ``Threshold(confidence)``.
        power: above 0, at most 1; small values favour tokens of low confidence.

    Source: K. Wang et al., "CreditDecoding" (2025, arXiv 2510.06133), for decayed credit of the best token of each slot
    and logarithmic fusion; credit for completions and the defaults are ours.
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
        distribution = run.distribution()
        self._earn(run, run.restrict(distribution))
        denoised = run.restrict(MeanField(run.canvas, self._fused(distribution), temperature=run.temperature))
        ranking = rank_slots(run, denoised)
        passes = denoised.confidence[ranking.slots] >= self._policy.confidence
        run.commit(ranking.passing(passes), denoised.completion)

    def _fused(self, distribution: MeanField) -> SlotLogits:
        """The logits with the credit added."""
        earned = [(slot, token, credit) for slot, each in self._credits.items() for token, credit in each.items()]
        slots, tokens, credits = (np.array(column) for column in zip(*earned, strict=True))
        by = self._policy.weight * np.log1p(credits)
        return distribution.slot_logits.raised(
            distribution.row_of[slots], tokens.astype(np.int32), by.astype(np.float32)
        )

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


class CanvasView(NamedTuple):
    """The input of a filter in one step; the attributes are those of ``SlotView``.

    Attributes:
        tokens: the most probable token of each slot given the language, ``[slots]``.
        confidences: its marginal probability, ``[slots]``; 1 for fixed slots.
        seconds: the probability of the second token, ``[slots]``; 0 for fixed slots.
        free: which slots are free, bool ``[slots]``.
    """

    tokens: NDArray[np.int32]
    confidences: NDArray[np.float64]
    seconds: NDArray[np.float64]
    free: NDArray[np.bool_]


@runtime_checkable
class SettledFilter(Protocol):
    """Decides which slots are settled; for instance ``load_slot_filter()`` of the embedded diffusion model."""

    def settled(self, views: Sequence[Any], /) -> NDArray[np.float64]:
        """Return for each slot the probability that its top token is final, ``[slots]``, given the views so far."""


@final
@dataclass(frozen=True, slots=True)
class Learned:
    """Commits the slots whose top token is final by a trained filter, and always the slot of highest confidence.

    A slot stays free if the completion holds another token than the top token of its marginal, which the filter has not
    rated. Once EOS is committed, the rest of the canvas is EOS at no cost.

    Attributes:
        filter: trained for the model; it reads top tokens and probabilities given the language.
        threshold: probability that a token is final, above 0 and at most 1.
        history: the number of steps whose views the filter receives, at least 1.

    Source: W. Bao et al., "Learning to Parallel" (2025, arXiv 2509.25188): the filter and End-of-Text Prediction.
    """

    filter: SettledFilter = field(repr=False)
    threshold: float = 0.9
    history: int = 8

    lossless: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not isinstance(self.filter, SettledFilter):
            raise ValueError(
                f"Learned: filter must have a method settled(views); found {type(self.filter).__name__}; for instance "
                "load_slot_filter() of the embedded diffusion model"
            )
        if not 0 < self.threshold <= 1:
            raise ValueError(f"Learned: threshold must be above 0 and at most 1; found {self.threshold!r}")
        if self.history < 1:
            raise ValueError(f"Learned: history must be at least 1; found {self.history}")

    def start(self) -> _LearnedCommitter:
        """See ``CommitPolicy.start``."""
        return _LearnedCommitter(self)


@final
class _LearnedCommitter:
    def __init__(self, policy: Learned) -> None:
        self._policy = policy
        self._views: list[CanvasView] = []

    def advance(self, run: CanvasRun, /) -> None:
        """See ``Committer.advance``."""
        denoised = run.denoise()
        view = CanvasView(*denoised.posterior.leaders(), run.canvas == FREE)
        self._views = [*self._views, view][-self._policy.history :]
        settled = np.asarray(self._policy.filter.settled(self._views), dtype=np.float64)
        if settled.shape != run.canvas.shape:
            raise ValueError(f"Learned: settled(views) must have shape [{len(run.canvas)}]; found {settled.shape}")
        ranking = rank_slots(run, denoised)
        slots = ranking.slots
        passes = (settled[slots] >= self._policy.threshold) & (view.tokens[slots] == denoised.completion.tokens[slots])
        run.commit(ranking.passing(passes), denoised.completion)


@final
@dataclass(frozen=True, slots=True)
class Prophet:
    """Commits the slots of highest confidence until the gap is large, then the whole completion.

    The gap, in nats, is one of two:

    - ``"slots"``: of the best token of a slot over the second, in the marginals given the language, averaged over the
      slots of the completion up to EOS. A token without a rival counts as 80.
    - ``"completion"``: of the mass of the completion over that of all others together, which bounds its lead over the
      second best from below. With more slots it is harder to reach.

    Attributes:
        gaps: required in the first, second and last third of the initially free slots; not negative.
        over: which gap.
        per_step: slots that each earlier step commits.

    Source: P. Li et al., "Diffusion Language Models Know the Answer Before Decoding" (2025, arXiv 2508.19982), with
    gaps of logits, averaged over the slots of an answer, and thirds of the steps; the numbers are theirs.
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
"""The gap, in nats, of a token without a rival."""


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

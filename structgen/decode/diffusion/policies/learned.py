"""Slots that a small network takes to be settled."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol, final, runtime_checkable

import numpy as np

from structgen.decode.diffusion.commit_policy import rank_slots
from structgen.decode.diffusion.mean_field import FREE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from structgen.decode.diffusion.canvas_run import CanvasRun, Denoised

__all__ = ["CanvasView", "Learned", "SettledFilter"]


class CanvasView(NamedTuple):
    """What one step shows to a filter; the attributes are those of ``SlotView`` of the embedded model.

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
    """Says which slots are settled; for instance ``load_slot_filter()`` of the embedded diffusion model."""

    def settled(self, views: Sequence[Any], /) -> NDArray[np.float64]:
        """Return for each slot the probability that its top token is final, ``[slots]``, given the views so far."""


@final
@dataclass(frozen=True, slots=True)
class Learned:
    """Commits the slots of which a trained filter says that their top token is final, and always the surest one.

    A slot is left free where the completion holds another token than the top one of its marginal: of that token the
    filter has said nothing.  Once the end of the member is committed the rest of the canvas is EOS at no cost.

    Attributes:
        filter: trained for the model; it reads top tokens and probabilities given the language.
        threshold: probability that a token is final, above 0 and at most 1.
        history: of how many steps the filter is shown the views, at least 1.

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
        view = _view(run, denoised)
        self._views = [*self._views, view][-self._policy.history :]
        settled = np.asarray(self._policy.filter.settled(self._views), dtype=np.float64)
        if settled.shape != run.canvas.shape:
            raise ValueError(f"Learned: settled(views) must be [{len(run.canvas)}]; found shape {settled.shape}")
        ranking = rank_slots(run, denoised)
        slots = ranking.slots
        passes = (settled[slots] >= self._policy.threshold) & (view.tokens[slots] == denoised.completion.tokens[slots])
        run.commit(ranking.passing(passes), denoised.completion)


def _view(run: CanvasRun, denoised: Denoised) -> CanvasView:
    return CanvasView(*denoised.posterior.leaders(), run.canvas == FREE)

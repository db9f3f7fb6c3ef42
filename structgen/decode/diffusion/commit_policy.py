"""Which slots of a completion are committed: the contract of commit policies.

Every policy takes what it commits from ONE completion of the canvas, so that whatever it picks can be completed: a
policy decides about quality and about forward passes, never about validity.

The slot in which the member ends is committed after all slots of the member itself, and the slots behind it never: once
the end is there they are forced.  Confidence alone would fix the end first, since a model is surest of padding, and
with it the length of a text of which nothing is written yet.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol, final, runtime_checkable

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from structgen.decode.diffusion.canvas_run import CanvasRun, Denoised

__all__ = ["Chooser", "CommitPolicy", "Committer", "SlotChoice", "SlotRanking", "advance_by", "rank_slots"]


class Committer(Protocol):
    """What a policy keeps of one canvas while it is being filled."""

    def advance(self, run: CanvasRun, /) -> None:
        """Commit at least one slot, with as few forward passes as the policy needs.

        Raises:
            GenerationError: the model fails.
        """


@runtime_checkable
class CommitPolicy(Protocol):
    """A rule for what is committed when; a value that any number of canvases can use.

    Attributes:
        lossless: whether what comes out is what committing one slot at a time would have given (with a deterministic
            sampler), up to rounding of float32 sums.
    """

    @property
    def lossless(self) -> bool: ...

    def start(self) -> Committer:
        """Return what it keeps of one canvas."""


class SlotChoice(Protocol):
    """A policy that spends one forward pass a step and chooses among the slots of its completion."""

    def __call__(self, run: CanvasRun, denoised: Denoised, /) -> NDArray[np.intp]:
        """Return free slots, at least one."""


@final
class Chooser:
    """The committer of a policy that keeps nothing between steps but what ``choose`` itself holds."""

    def __init__(self, choose: SlotChoice) -> None:
        self._choose = choose

    def advance(self, run: CanvasRun, /) -> None:
        """See ``Committer.advance``."""
        advance_by(self._choose, run)


def advance_by(choose: SlotChoice, run: CanvasRun) -> None:
    """Take one forward pass, choose, and commit."""
    denoised = run.denoise()
    run.commit(choose(run, denoised), denoised.completion)


@final
class SlotRanking(NamedTuple):
    """The slots that a step may commit, in the order in which a policy takes them.

    Attributes:
        slots: slots of the member, by falling score, then the slot in which it ends, where that is among them.
        ends: whether the last one is the slot in which the member ends.
    """

    slots: NDArray[np.intp]
    ends: bool

    def front(self, count: int) -> NDArray[np.intp]:
        """Return the first ``count`` slots, at least one."""
        return self.slots[: max(1, count)]

    def passing(self, passes: NDArray[np.bool_]) -> NDArray[np.intp]:
        """Return the slots that pass, the first one whether it does or not; the end only together with all others.

        Args:
            passes: bool ``[len(slots)]``.
        """
        passes = passes.copy()
        passes[0] = True
        if self.ends and not passes[:-1].all():
            passes[-1] = False
        return self.slots[passes]


def rank_slots(
    run: CanvasRun,
    denoised: Denoised,
    scores: NDArray[np.float64] | None = None,
    *,
    among: NDArray[np.intp] | None = None,
) -> SlotRanking:
    """Return the slots that a step may commit, those of the highest score first, of equal ones the left one.

    Args:
        run: the canvas.
        denoised: its completion says where the member ends.
        scores: float64 ``[slots]``; None for the confidence.
        among: free slots; None for ``run.candidates``.
    """
    among = run.candidates if among is None else among
    scores = denoised.confidence if scores is None else scores
    is_end = np.isin(denoised.completion.tokens[among], run.language.vocabulary.eos)
    content, ending = among[~is_end], among[is_end][:1]
    order = np.argsort(-scores[content], kind="stable")
    return SlotRanking(np.concatenate([content[order], ending]), bool(len(ending)))

"""Drafts of a canvas, and verification against stepwise decoding.

Stepwise decoding commits the most confident slots of the canvas, runs the model again, and repeats. With a
deterministic sampler it is a function: each canvas has one *target*. So several canvases are drafted from the current
pass, ONE forward pass over all of them gives the target of each, and the walk from target to target is accepted as long
as its canvases are among the drafts. The output equals that of stepwise decoding, canvas by canvas; only forward passes
are saved.

This holds under a grammar because drafts and targets go through the same steps: a completion of the posterior, the
constrained confidence, the slots of the block, and the slots that the grammar forces after each commit. A pass over
drafts runs all slots of each, whatever the reuse rule.

``FreeDave`` drafts from one pass and verifies all drafts in the next; ``SelfSpeculative`` verifies the tokens of one
completion one after the other in one pass.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, ClassVar, NamedTuple, Protocol, final

import numpy as np

from structgen.decode.diffusion.commit_policy import rank_slots
from structgen.decode.diffusion.mean_field import FREE, MeanField

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from structgen.decode.diffusion.canvas_run import CanvasRun, Denoised
    from structgen.decode.diffusion.posterior import Canvas

__all__ = [
    "CanvasDraft",
    "DraftCommitter",
    "DraftProposal",
    "FreeDave",
    "SelfSpeculative",
    "draft_again",
    "draft_at_once",
    "given_canvas",
    "next_step",
]


class CanvasDraft(NamedTuple):
    """The canvas after one step of stepwise decoding.

    Attributes:
        canvas: with the committed and the forced slots filled.
        slots: the slots that the step commits.
        denoised: the source of their tokens.
    """

    canvas: Canvas
    slots: NDArray[np.intp]
    denoised: Denoised


class DraftProposal(Protocol):
    """How drafts are made: the first is the target of the canvas, each other one a draft of the next step."""

    def __call__(self, run: CanvasRun, denoised: Denoised, /) -> list[CanvasDraft]:
        """Return drafts for the canvas of ``run``, which has free slots, each with more filled slots than the last."""


def given_canvas(distribution: MeanField, canvas: Canvas) -> MeanField:
    """Return a pass's distribution for a canvas with more fixed slots than the canvas of the pass."""
    rows = distribution.row_of[np.flatnonzero(canvas == FREE)]
    return MeanField(canvas, distribution.slot_logits.take(rows), temperature=distribution.temperature)


def next_step(run: CanvasRun, canvas: Canvas, denoised: Denoised, per_step: int) -> CanvasDraft:
    """Return the next canvas of stepwise decoding: what ``Static(per_step=per_step)`` commits.

    Args:
        run: provides blocks and language; its own canvas is ignored.
        canvas: contains a part of ``denoised.completion`` and has free slots.
        denoised: the source of tokens and confidences.
        per_step: the number of slots.
    """
    free = np.flatnonzero(canvas == FREE)
    if run.block_size is not None:
        free = free[free < (int(free[0]) // run.block_size + 1) * run.block_size]
    slots = rank_slots(run, denoised, among=free).front(per_step)
    filled = canvas.copy()
    filled[slots] = denoised.completion.tokens[slots]
    return CanvasDraft(run.language.forced(filled), slots, denoised)


def draft_at_once(run: CanvasRun, denoised: Denoised, *, depth: int | None, per_step: int = 1) -> list[CanvasDraft]:
    """Draft steps from one completion and its confidences."""
    return _steps(run, denoised, depth, per_step, lambda canvas: denoised)


def draft_again(run: CanvasRun, denoised: Denoised, *, depth: int | None, per_step: int = 1) -> list[CanvasDraft]:
    """Draft steps under the assumption that the model's logits do not change.

    After each step the distribution is restricted to the language again, which needs no model.

    Complexity: a posterior for each draft but the first.
    """
    return _steps(
        run, denoised, depth, per_step, lambda canvas: run.restrict(given_canvas(denoised.distribution, canvas))
    )


@final
class DraftCommitter:
    """A committer that drafts and verifies; see the module.

    Args:
        drafting: how drafts are made.
        per_step: how many slots each step of the reproduced stepwise decoding commits.
        name: the policy's name in messages.

    Attributes:
        forwards: forward passes; the canvases of one pass count once.
        canvases: canvases of these passes.
    """

    def __init__(self, drafting: DraftProposal, per_step: int, name: str) -> None:
        self._drafting = drafting
        self._per_step = per_step
        self._name = name
        self._cached: tuple[Canvas, Denoised] | None = None
        self.forwards = 0
        self.canvases = 0

    def advance(self, run: CanvasRun, /) -> None:
        """See ``Committer.advance``.

        Raises:
            ValueError: the sampler is not deterministic.
            GenerationError: the model fails.
        """
        if not run.sampler.deterministic:
            raise ValueError(
                f"{self._name}: stepwise decoding must be deterministic; found the sampler {run.sampler!r}; use "
                "Dingo(), or a policy without drafts"
            )
        drafts = self._drafting(run, self._denoised(run))
        walk, denoised = self._walk(run, drafts)
        for step in walk:
            _commit(run, step)
        run.drafted += sum(len(draft.slots) for draft in drafts[1:])
        run.accepted += sum(len(step.slots) for step in walk[1:])
        self._cached = None if denoised is None else (run.canvas, denoised)

    def _denoised(self, run: CanvasRun) -> Denoised:
        """The denoised current canvas; usually cached from the pass that verified it."""
        if self._cached is not None and np.array_equal(self._cached[0], run.canvas):
            return self._cached[1]
        self.forwards += 1
        self.canvases += 1
        return run.denoise()

    def _walk(self, run: CanvasRun, drafts: list[CanvasDraft]) -> tuple[list[CanvasDraft], Denoised | None]:
        """Run the model on all drafts at once, and walk from target to target while they are among the drafts.

        Returns:
            The steps, and the denoised canvas after the last one; None if it is complete.
        """
        canvases = [draft.canvas for draft in drafts if (draft.canvas == FREE).any()]
        if canvases:
            self.forwards += 1
            self.canvases += len(canvases)
        answers = run.distributions(canvases) if canvases else []
        distributions = {distribution.canvas.tobytes(): distribution for distribution in answers}
        drafted = {draft.canvas.tobytes() for draft in drafts}
        walk = [drafts[0]]
        while (distribution := distributions.get(walk[-1].canvas.tobytes())) is not None:
            denoised = run.restrict(distribution)
            target = next_step(run, walk[-1].canvas, denoised, self._per_step)
            if target.canvas.tobytes() not in drafted:
                return walk, denoised
            walk.append(target)
        return walk, None


def _steps(
    run: CanvasRun, denoised: Denoised, depth: int | None, per_step: int, again: Callable[[Canvas], Denoised]
) -> list[CanvasDraft]:
    drafts = [next_step(run, run.canvas, denoised, per_step)]
    while (depth is None or len(drafts) < depth) and (drafts[-1].canvas == FREE).any():
        canvas = drafts[-1].canvas
        drafts.append(next_step(run, canvas, again(canvas), per_step))
    return drafts


def _commit(run: CanvasRun, step: CanvasDraft) -> None:
    slots, denoised = step.slots, step.denoised
    run.commit(slots, denoised.completion)
    # The run keeps only passes since its last commit; these commits share one pass.
    run.log_confidence[slots] = np.log(np.maximum(denoised.confidence[slots], np.finfo(np.float64).tiny))
    run.log_prob[slots] = denoised.distribution.log_prob_of(denoised.completion.tokens)[slots]


@final
@dataclass(frozen=True, slots=True)
class FreeDave:
    """Stepwise decoding in fewer forward passes: the next ``depth`` steps are drafted and verified in one pass.

    Draft ``k`` is the canvas after ``k`` steps if the model's logits do not change. Without a grammar these are the
    ``k`` most confident slots of one pass, as published. With a grammar, the distribution is restricted again after
    each drafted step, since a commit changes the allowed tokens of other slots. The walk goes from target to target
    while these are drafts, and the result of the pass for the last one serves the next step, so each pass but the first
    commits at least one step.

    Attributes:
        depth: drafts that are verified together, at least 1; with 1 this is stepwise decoding.
        per_step: slots that a step of stepwise decoding commits.

    Raises:
        ValueError: a number is below 1; in ``advance``, the sampler is not deterministic.

    Source: "Free Draft-and-Verification: Toward Lossless Parallel Decoding for Diffusion Large Language Models" (2025,
    arXiv 2510.00294). Its variant for confidence thresholds, which accepts a draft whose commits are a subset of the
    target's, is left out: it is not lossless. Restricting the distribution again for each draft is ours.
    """

    depth: int = 4
    per_step: int = 1

    def __post_init__(self) -> None:
        for name, value in (("depth", self.depth), ("per_step", self.per_step)):
            if not isinstance(value, int) or value < 1:
                raise ValueError(f"FreeDave: {name} must be an integer of at least 1; found {value!r}")

    @property
    def lossless(self) -> bool:
        """Whether it reproduces decoding slot by slot; otherwise it reproduces ``Static(per_step=...)``."""
        return self.per_step == 1

    def start(self) -> DraftCommitter:
        """See ``CommitPolicy.start``."""
        return DraftCommitter(partial(draft_again, depth=self.depth, per_step=self.per_step), self.per_step, "FreeDave")


@final
@dataclass(frozen=True, slots=True)
class SelfSpeculative:
    """One-by-one decoding in fewer forward passes: the model verifies a chain of its own drafts.

    The tokens of one completion are drafted in the order of their confidence. The chain has a node for the canvas with
    none of them, with the first, with the first two, and so on. One pass over all nodes gives the commit of one-by-one
    decoding at each, and the longest prefix of the chain that agrees is accepted.

    In terms of ``FreeDave`` the root of the chain is the first draft, which is always accepted. The two share the
    verification; this policy drafts everything from one completion, without further work on the grammar, and as many
    slots as there are.

    Attributes:
        drafts: drafted tokens, so there are ``drafts + 1`` nodes; None for all free slots.

    Raises:
        ValueError: ``drafts`` is negative; in ``advance``, the sampler is not deterministic.

    Source: Gao et al. 2025, "Self Speculative Decoding for Diffusion Large Language Models" (arXiv 2510.04147), with
    its greedy tree, which is a chain.
    """

    drafts: int | None = None

    lossless: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.drafts is not None and (not isinstance(self.drafts, int) or self.drafts < 0):
            raise ValueError(
                f"SelfSpeculative: drafts must be an integer of at least 0, or None; found {self.drafts!r}"
            )

    def start(self) -> DraftCommitter:
        """See ``CommitPolicy.start``."""
        depth = None if self.drafts is None else self.drafts + 1
        return DraftCommitter(partial(draft_at_once, depth=depth), 1, "SelfSpeculative")

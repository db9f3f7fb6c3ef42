"""Commit policies: which slots of a completion a step commits; and how a canvas is filled, as values.

Contains the contract, the three policies of the core, and ``Unmasking``, which bundles the caller's choices.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple, Protocol, final, runtime_checkable

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from structgen.decode.diffusion.canvas_run import CanvasRun, Denoised, Snapshot
    from structgen.decode.diffusion.forward_pass import Reuse
    from structgen.decode.diffusion.posterior import Canvas, CanvasSampler

__all__ = [
    "Chooser",
    "CommitPolicy",
    "Committer",
    "Factor",
    "Filling",
    "SlotChoice",
    "SlotRanking",
    "Static",
    "Threshold",
    "Unmasking",
    "advance_by",
    "rank_slots",
]


class Committer(Protocol):
    """The state of a policy for one canvas."""

    def advance(self, run: CanvasRun, /) -> None:
        """Commit at least one slot, with as few forward passes as the policy needs.

        Raises:
            GenerationError: the model fails.
        """


@runtime_checkable
class CommitPolicy(Protocol):
    """A rule for which slots are committed when; a value that any number of canvases can use."""

    @property
    def lossless(self) -> bool:
        """Whether the output is that of committing one slot at a time, with a deterministic sampler.

        Equal up to rounding of float32 sums.
        """

    def start(self) -> Committer:
        """Return the state for one canvas."""


class SlotChoice(Protocol):
    """A policy that takes one forward pass in each step and chooses among the slots of its completion."""

    def __call__(self, run: CanvasRun, denoised: Denoised, /) -> NDArray[np.intp]:
        """Return free slots, at least one."""


@final
class Chooser:
    """The committer of a policy without state besides that of ``choose``."""

    def __init__(self, choose: SlotChoice) -> None:
        self._choose = choose

    def advance(self, run: CanvasRun, /) -> None:
        """See ``Committer.advance``."""
        advance_by(self._choose, run)


def advance_by(choose: SlotChoice, run: CanvasRun) -> None:
    """Run one forward pass, choose slots, and commit them."""
    denoised = run.denoise()
    run.commit(choose(run, denoised), denoised.completion)


@final
class SlotRanking(NamedTuple):
    """The slots that a step may commit, in the order of a policy.

    Attributes:
        slots: slots of the string by falling score, then the slot of its EOS if that is a candidate.
        ends: whether the last slot is that of EOS.
    """

    slots: NDArray[np.intp]
    ends: bool

    def front(self, count: int) -> NDArray[np.intp]:
        """Return the first ``count`` slots, at least one."""
        return self.slots[: max(1, count)]

    def passing(self, passes: NDArray[np.bool_]) -> NDArray[np.intp]:
        """Return the slots that pass, and always the first one; EOS only if all other slots pass.

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
    """Return the slots that a step may commit, by falling score; of equal scores the left one is first.

    Args:
        run: the canvas.
        denoised: its completion contains the EOS slot.
        scores: float64 ``[slots]``; None for the confidence.
        among: free slots; None for ``run.candidates``.
    """
    among = run.candidates if among is None else among
    scores = denoised.confidence if scores is None else scores
    is_end = np.isin(denoised.completion.tokens[among], run.language.vocabulary.eos)
    content, ending = among[~is_end], among[is_end][:1]
    order = np.argsort(-scores[content], kind="stable")
    return SlotRanking(np.concatenate([content[order], ending]), bool(len(ending)))


@final
@dataclass(frozen=True, slots=True)
class Static:
    """Commits a fixed number of slots in each step.

    With ``steps``, the ``m`` slots that the first completion of a block has to fill are spread over ``steps`` steps:
    ``m // steps`` in each, and one more in the first ``m % steps``. The tail after EOS is not counted, and slots that
    the grammar forces meanwhile cost no step, so a block may take fewer steps.

    Attributes:
        steps: number of steps for each block; without blocks, for the whole canvas; None to use ``per_step``.
        per_step: slots in every step.
        remasking: ``"low_confidence"`` commits the slots with the highest confidence given the language, ``"random"``
            random ones.

    Source: S. Nie et al., "Large Language Diffusion Models" (2025, arXiv 2502.09992), where the confidence is that of
    the model alone, and EOS is a slot like all others.
    """

    steps: int | None = None
    per_step: int = 1
    remasking: Literal["low_confidence", "random"] = "low_confidence"

    def __post_init__(self) -> None:
        if self.steps is not None and self.steps < 1:
            raise ValueError(f"Static: steps must be at least 1, or None to commit per_step slots; found {self.steps}")
        if self.per_step < 1:
            raise ValueError(f"Static: per_step must be at least 1; found {self.per_step}")
        if self.steps is not None and self.per_step != 1:
            raise ValueError(
                f"Static: steps and per_step exclude each other; found steps={self.steps}, per_step={self.per_step}"
            )
        if self.remasking not in ("low_confidence", "random"):
            raise ValueError(f"Static: remasking must be 'low_confidence' or 'random'; found {self.remasking!r}")

    @property
    def lossless(self) -> bool:
        """Whether each step commits one slot."""
        return self.steps is None and self.per_step == 1

    def start(self) -> _StaticCommitter:
        """See ``CommitPolicy.start``."""
        return _StaticCommitter(self)


@final
class _StaticCommitter:
    def __init__(self, policy: Static) -> None:
        self._policy = policy
        self._block: tuple[int, int] | None = None
        self._slots = 0
        self._step = 0

    def advance(self, run: CanvasRun, /) -> None:
        """See ``Committer.advance``."""
        denoised = run.denoise()
        is_random = self._policy.remasking == "random"
        ranking = rank_slots(run, denoised, run.generator.random(len(run.canvas)) if is_random else None)
        if run.block != self._block:
            self._block, self._slots, self._step = run.block, len(ranking.slots), 0
        run.commit(ranking.front(self._count()), denoised.completion)
        self._step += 1

    def _count(self) -> int:
        if self._policy.steps is None:
            return self._policy.per_step
        each, more = divmod(self._slots, self._policy.steps)
        return each + (self._step < more)


@final
@dataclass(frozen=True, slots=True)
class Threshold:
    """Commits every slot with at least the given confidence, and always the slot with the highest confidence.

    The confidence of a slot is the probability of its most probable token given the language.

    Theorem 1 of the source: if each of ``n`` tokens has a marginal probability above ``1 - e`` and ``(n + 1) e <= 1``,
    then together they are the most probable joint choice for their slots, under any joint distribution with these
    marginals. Here the marginals, and so the joint distribution, are those given the language. The theorem does not say
    how close the distribution of one pass is to the model's own.

    Attributes:
        confidence: above 0, at most 1.

    Source: C. Wu et al., "Fast-dLLM" (2025, arXiv 2505.22618).
    """

    confidence: float = 0.9

    lossless: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not 0 < self.confidence <= 1:
            raise ValueError(f"Threshold: confidence must be above 0 and at most 1; found {self.confidence!r}")

    def start(self) -> Chooser:
        """See ``CommitPolicy.start``."""
        return Chooser(self._choose)

    def _choose(self, run: CanvasRun, denoised: Denoised, /) -> NDArray[np.intp]:
        ranking = rank_slots(run, denoised)
        return ranking.passing(denoised.confidence[ranking.slots] >= self.confidence)


@final
@dataclass(frozen=True, slots=True)
class Factor:
    """Commits the ``n`` slots of the highest confidence, for the largest ``n`` with ``(n + 1) (1 - c) < factor``.

    ``c`` is the lowest confidence among the ``n``, given the language. With a factor of 1 this applies the condition of
    the theorem (see ``Threshold``): the more slots, the higher the confidence that each of them needs.

    Attributes:
        factor: above 0; a larger factor commits more slots.

    Source: C. Wu et al., "Fast-dLLM" (2025, arXiv 2505.22618).
    """

    factor: float = 1.0

    lossless: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not (math.isfinite(self.factor) and self.factor > 0):
            raise ValueError(f"Factor: factor must be above 0 and finite; found {self.factor!r}")

    def start(self) -> Chooser:
        """See ``CommitPolicy.start``."""
        return Chooser(self._choose)

    def _choose(self, run: CanvasRun, denoised: Denoised, /) -> NDArray[np.intp]:
        ranking = rank_slots(run, denoised)
        lowest = np.minimum.accumulate(denoised.confidence[ranking.slots])
        fitting = (np.arange(len(lowest)) + 2) * (1 - lowest) < self.factor
        return ranking.front(int(np.argmin(fitting)) if not fitting.all() else len(fitting))


@final
@dataclass(frozen=True, slots=True)
class Unmasking:
    """How the canvas of each answer is filled; see ``structgen.generate``, which has the same arguments.

    Attributes:
        canvas: slots of every canvas, or (for ``generate``) the canvas itself with some fixed slots; None for a length
            that suits the grammar.
        policy: decides which slots are committed when; None for the default.
        temperature: of the mean-field distribution.
        block: slots that are filled before those to their right; None for the whole canvas.
        reuse: decides which slots each pass runs; None for all.
        stream: called with a ``Snapshot`` of every canvas after each commit, and once at its start.

    Raises:
        ValueError: a number is out of range.
    """

    canvas: int | Canvas | None = None
    policy: CommitPolicy | None = None
    temperature: float = 1.0
    block: int | None = None
    reuse: Reuse | None = None
    stream: Callable[[Snapshot], object] | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name, count in (("canvas", self.canvas), ("block", self.block)):
            if isinstance(count, (int, float, str)) and (not isinstance(count, int) or count < 1):
                raise ValueError(f"Unmasking: {name} must be a number of slots, at least 1; found {count!r}")
        if not 0 < self.temperature < float("inf"):
            raise ValueError(
                f"Unmasking: temperature must be positive and finite; found {self.temperature!r}; "
                "Dingo() takes the most probable canvas at any temperature"
            )


@final
@dataclass(frozen=True, slots=True)
class Filling:
    """How a diffusion model filled the canvas of a ``Result``.

    Attributes:
        tokens: the token of every slot, EOS tail included.
        commits: the slots of each commit; those forced from the start are first.
        forced: the slots, tail included, for which the language left one token, so that they cost no pass.
        policy: decided which slots were committed.
        sampler: took the completions.
        block: slots that were filled before those to their right; None for the whole canvas.
    """

    tokens: tuple[int, ...]
    commits: tuple[tuple[int, ...], ...]
    forced: tuple[int, ...]
    policy: CommitPolicy
    sampler: CanvasSampler
    block: int | None

    @property
    def slots(self) -> int:
        """How many slots the canvas has."""
        return len(self.tokens)

    @property
    def summary(self) -> str:
        """The main counts, in words."""
        commits = "1 commit" if len(self.commits) == 1 else f"{len(self.commits)} commits"
        return f"{self.slots} slots ({len(self.forced)} forced) in {commits}"

"""Commit policies: which slots of a completion are committed in a step; and how canvases are filled, as values.

Here are the contract, the three policies of the core, and ``Unmasking``, which bundles what a caller chooses.
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


@final
@dataclass(frozen=True, slots=True)
class Static:
    """Commits a number of slots that is known in advance.

    With ``steps``, the ``m`` slots that the first completion of a block has to fill are spread over so many steps,
    ``m // steps`` in each and one more in the first ``m % steps``.  What lies after the end of the member is not
    counted, and what a grammar forces in the meantime costs no step, so that a block may take fewer.

    Attributes:
        steps: for each block, or for the whole canvas where there are no blocks; None to count slots instead.
        per_step: slots in every step.
        remasking: ``"low_confidence"`` commits the slots whose tokens are surest given the language, ``"random"`` any.

    Source: S. Nie et al., "Large Language Diffusion Models" (2025, arXiv 2502.09992); there confidence is that of the
    model alone, and the end of the text is a slot like all others.
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
        """Whether slots are committed one by one."""
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
    """Commits every slot whose token is at least so probable given the language, and always the surest one.

    Theorem 1 of the source: where each of ``n`` tokens has a marginal probability above ``1 - e`` and
    ``(n + 1) e <= 1``, together they are the most probable joint choice of their slots, whatever joint distribution has
    these marginals.  Here the marginals are those of the distribution restricted to the language, so the joint
    distribution is that, too; how near the distribution of one pass is to the model's own the theorem does not say.

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
    """Commits the ``n`` surest slots, for the largest ``n`` with ``(n + 1) (1 - c) < factor``.

    ``c`` is the least confidence among the ``n``, given the language.  With a factor of 1 this is the condition of the
    theorem (see ``Threshold``) read as a rule: the more slots, the surer each has to be.

    Attributes:
        factor: above 0; larger ones commit more.

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
        least = np.minimum.accumulate(denoised.confidence[ranking.slots])
        fitting = (np.arange(len(least)) + 2) * (1 - least) < self.factor
        return ranking.front(int(np.argmin(fitting)) if not fitting.all() else len(fitting))


@final
@dataclass(frozen=True, slots=True)
class Unmasking:
    """How the canvas of each answer is filled; see ``structgen.generate``, whose arguments these are.

    Attributes:
        canvas: slots of every canvas, or (for ``generate``) the canvas itself with some of them fixed; None lets the
            grammar say.
        policy: what is committed when; None for the default.
        temperature: of the mean-field distribution.
        block: slots that are filled before those right of them; None is the whole canvas.
        reuse: which slots each pass runs; None runs all.
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
                "Dingo() takes the most probable canvas at any"
            )


@final
@dataclass(frozen=True, slots=True)
class Filling:
    """How a canvas was filled: what a ``Result`` knows beside text and costs, where a diffusion model wrote it.

    Attributes:
        tokens: the token of every slot, EOS tail included.
        commits: the slots that were filled together, by commit; what was forced from the start is first.
        forced: the slots, tail included, for which the language left one token, so that no pass was spent on them.
        policy: what decided which slots were committed.
        sampler: what took completions.
        block: slots that were filled before those right of them; None for the whole canvas.
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

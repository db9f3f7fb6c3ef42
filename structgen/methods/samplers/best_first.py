"""Best-first search over outputs, and the most probable output of all, with proof."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import islice
from typing import TYPE_CHECKING, ClassVar, Final, TypeAlias, final

from structgen.decode.sampling.protocol import Sample, Samples, check_score
from structgen.errors import GenerationError, LimitExceeded

if TYPE_CHECKING:
    import numpy as np

    from structgen.decode.sampling.branch import Branch
    from structgen.decode.sampling.branch_set import Branches
    from structgen.decode.step.distribution import Distribution
    from structgen.models.protocol import Logits

__all__ = ["BestFirst", "ExactBest", "Heuristic", "Ranked"]

Heuristic: TypeAlias = "Callable[[Branch], float]"
"""What is expected of the rest of a prefix: of its log-probability and of the potentials' score together."""

_MAX_PACKED: Final = 4
"""Prefixes that are followed in one forward pass: more would be followed in vain."""
_MAX_CHOICES: Final = 1024
"""Choices of one prefix that are kept; for those that come after, its distribution is asked for again."""


@final
@dataclass(frozen=True, slots=True)
class Ranked:
    """A complete output.

    Attributes:
        branch: the output.
        total: its log-probability under the model, and the potentials' score.
    """

    branch: Branch
    total: float


@final
@dataclass(eq=False, slots=True)
class _OpenPrefix:
    """A prefix that is to be run through the model; its first ``skipped`` choices were taken already."""

    branch: Branch
    skipped: int = 0


@final
@dataclass(eq=False, slots=True)
class _NextChoice:
    """The choice at ``rank`` of a prefix, and all that come after it.

    Attributes:
        opened: the prefix.
        promise: its own.
        choices: the most probable of what may follow it, the most probable first.
        rank: into the choices.
        is_all: whether they go to the end.
    """

    opened: _OpenPrefix
    promise: float
    choices: Distribution
    rank: int
    is_all: bool


@final
class BestFirst:
    """A search; iterate over it for complete outputs, the best first.

    Of equally good ones, those come first whose tokens have the lower ids, compared in order.

    Attributes:
        expanded: prefixes that were run through the model.

    Args:
        branches: what is searched.
        limit: the most prefixes that are run through the model.
        heuristic: asked about every prefix that is looked at; None for ``score_bound``.
        score_bound: the most that the potentials give to any output.
        branching: so many of the most probable choices after each prefix are looked at; None for all, as a proof
            that the best was found needs.

    Raises:
        GenerationError: the potentials forbid every output from the start.
    """

    def __init__(
        self,
        branches: Branches,
        *,
        limit: int,
        heuristic: Heuristic | None = None,
        score_bound: float = 0.0,
        branching: int | None = None,
    ) -> None:
        self._branches = branches
        self._limit = limit
        self._heuristic = heuristic
        self._bound = score_bound
        self._branching = branching
        # By falling promise; of equal ones complete outputs last, so that all ties are found, then by their tokens.
        self._heap: list[tuple[float, bool, tuple[int, ...], int, _OpenPrefix | _NextChoice | Branch]] = []
        self._pushed = 0
        self._least = -math.inf  # of the complete outputs that were found, what the best comes to
        self._width = _MAX_PACKED if branches.is_packed else 1
        self.expanded = 0
        root = branches.root()
        branches.drop(root)
        self._open(root)

    def __iter__(self) -> Iterator[Ranked]:
        return self

    def __next__(self) -> Ranked:
        """Search until the most promising of all is a complete output.

        Raises:
            LimitExceeded: ``limit`` prefixes are more promising than it.
            GenerationError: the model or a potential is not usable, or a score is above ``score_bound``.
        """
        while True:
            opened = self._most_promising()
            if not opened:
                break
            self.expanded += len(opened)
            if self.expanded > self._limit:
                raise self._too_far()
            rows = self._branches.logits_at([each.branch for _, each in opened])
            for (promise, each), logits in zip(opened, rows, strict=True):
                self._expand(promise, each, logits)
        if not self._heap:
            raise StopIteration
        negative, _, _, _, found = heappop(self._heap)
        if isinstance(found, (_OpenPrefix, _NextChoice)):
            raise RuntimeError("the search ended before its end")
        return Ranked(found, -negative)

    def _most_promising(self) -> list[tuple[float, _OpenPrefix]]:
        """Take out prefixes that are to be run, up to the best complete output."""
        found: list[tuple[float, _OpenPrefix]] = []
        room = min(self._width, max(self._limit - self.expanded, 1))
        while self._heap and len(found) < room:
            negative, is_complete, _, _, item = self._heap[0]
            if is_complete:
                break
            heappop(self._heap)
            if isinstance(item, _NextChoice):
                self._look_at(item)
            elif isinstance(item, _OpenPrefix):
                found.append((-negative, item))
        return found

    def _expand(self, promise: float, opened: _OpenPrefix, logits: Logits) -> None:
        """Rank what may follow a prefix."""
        choices = self._branches.distribution(opened.branch, logits, tilted=False)
        most = len(choices) if self._branching is None else min(self._branching, len(choices))
        kept = min(most, max(_MAX_CHOICES, 4 * opened.skipped))
        self._push_next(_NextChoice(opened, promise, choices.ranked(kept), opened.skipped, kept == most))

    def _push_next(self, following: _NextChoice) -> None:
        """Note what a prefix promises by the choices that were not looked at yet."""
        opened, choices, rank = following.opened, following.choices, following.rank
        tokens = opened.branch.hypothesis.tokens
        if rank < len(choices):
            log_p = float(choices.log_p[rank])
            if log_p > -math.inf:
                self._push(self._promise_of(following, log_p), (*tokens, int(choices.ids[rank])), following)
        elif not following.is_all:  # what is left is no more probable than the last that was kept
            log_p = float(choices.log_p[-1])
            self._push(self._promise_of(following, log_p), tokens, _OpenPrefix(opened.branch, rank))

    def _promise_of(self, following: _NextChoice, log_p: float) -> float:
        """At most what the prefix itself promises, before anybody is asked about the longer one."""
        return min(following.opened.branch.log_p + log_p + self._bound, following.promise)

    def _look_at(self, following: _NextChoice) -> None:
        """Take the next choice after a prefix, and leave the rest for later."""
        branches, opened = self._branches, following.opened
        choices, rank = following.choices, following.rank
        child = branches.grown(opened.branch, choices, int(choices.ids[rank]), float(choices.log_p[rank]))
        following.rank += 1
        self._push_next(following)
        if child.score == -math.inf:
            return
        if child.finish_reason is None:
            self._open(child)
            return
        check_score(branches, child, self._bound)
        total = child.log_p + child.score
        self._least = max(self._least, total)
        self._push(total, child.hypothesis.tokens, child)

    def _open(self, branch: Branch) -> None:
        rest = self._bound if self._heuristic is None else self._heuristic(branch)
        if math.isnan(rest) or rest == math.inf:
            raise GenerationError(
                "heuristic",
                f"it gives {rest}",
                evidence=f"for {branch.hypothesis!r}",
                remedy="return a finite logarithm, or -inf for what cannot be completed",
            )
        if rest > -math.inf:
            self._push(branch.log_p + rest, branch.hypothesis.tokens, _OpenPrefix(branch))

    def _push(self, promise: float, tokens: tuple[int, ...], item: _OpenPrefix | _NextChoice | Branch) -> None:
        self._pushed += 1  # so that items are never compared
        is_complete = not isinstance(item, (_OpenPrefix, _NextChoice))
        heappush(self._heap, (-promise, is_complete, tokens, self._pushed, item))

    def _too_far(self) -> LimitExceeded:
        best = "none is complete"
        if self._least > -math.inf:
            best = f"the best complete one comes to a log-probability of {self._least:.3f}"
        return LimitExceeded(
            "best-first search",
            limit="limit",
            maximum=self._limit,
            evidence=f"{len(self._heap)} prefixes are left, {best}",
            remedy="raise limit, narrow the grammar, lower max_tokens, or take Beam(...), which proves nothing",
        )


@final
@dataclass(frozen=True, slots=True)
class ExactBest:
    """The most probable outputs of all, by best-first search.

    A prefix is never less probable than what it leads to, so an output that comes up before every prefix that is
    left is the most probable of those that are left.  What cannot be completed within the budget is never looked at.
    Only small languages, or languages with few probable strings, are searched through: the work grows with the number
    of prefixes that are as probable as the output.

    ``Sample.score`` is the log-probability of an output under the model, with the potentials' score; so is its weight.

    Attributes:
        limit: the most prefixes that are run through the model.
        n: how many outputs, the best first; fewer where there are no more.
        score_bound: the most that the potentials give to any output.

    Raises:
        ValueError: a number is out of range.

    Complexity: a forward pass for each prefix that is as probable as the last output, and for few others; where the
        model runs several sequences in one pass, up to four of them share it.

    Source: as ``structgen.decode.sampling.best_first``; for spans of a passage O. Castel et al. (2021).
    """

    limit: int = 4096
    n: int = 1
    score_bound: float = 0.0

    lossless: ClassVar[bool] = False
    takes_best: ClassVar[bool] = True
    target: ClassVar[str] = "the most probable of all outputs, weighted by the potentials"

    def __post_init__(self) -> None:
        for name, value in (("limit", self.limit), ("n", self.n)):
            if not isinstance(value, int) or value < 1:
                raise ValueError(f"ExactBest: {name} must be an integer of at least 1; found {value!r}")
        if not math.isfinite(self.score_bound):
            raise ValueError(f"ExactBest: score_bound must be finite; found {self.score_bound!r}")

    def run(self, branches: Branches, generator: np.random.Generator) -> Samples:
        """See ``SequenceSampler``; draws no random number.

        Raises:
            LimitExceeded: more than ``limit`` prefixes are more probable than what was found.
        """
        search = BestFirst(branches, limit=self.limit, score_bound=self.score_bound)
        found = tuple(
            Sample(branches.result(each.branch), each.total, 1, each.total) for each in islice(search, self.n)
        )
        return branches.samples(found, particles=len(found))

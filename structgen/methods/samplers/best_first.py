"""Best-first search over outputs; ``ExactBest`` returns the most probable outputs, with proof."""

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
"""An estimate for the rest of a prefix: of its log-probability plus the potentials' score."""

_MAX_PACKED: Final = 4
"""Prefixes that are run in one forward pass: more would mostly be useless."""
_MAX_CHOICES: Final = 1024
"""Next tokens of one prefix that are stored; for further ones the prefix is run again."""


@final
@dataclass(frozen=True, slots=True)
class Ranked:
    """A complete output.

    Attributes:
        branch: the output.
        total: its log-probability under the model plus the potentials' score.
    """

    branch: Branch
    total: float


@final
@dataclass(eq=False, slots=True)
class _OpenPrefix:
    """A prefix to be run through the model; its ``skipped`` most probable next tokens were expanded before."""

    branch: Branch
    skipped: int = 0


@final
@dataclass(eq=False, slots=True)
class _NextChoice:
    """The next tokens of a prefix from ``rank`` on.

    Attributes:
        opened: the prefix.
        bound: upper bound (or heuristic estimate) of the totals of outputs that begin with the prefix.
        choices: its most probable next tokens, by falling probability.
        rank: index into ``choices``.
        is_all: whether there are no further next tokens.
    """

    opened: _OpenPrefix
    bound: float
    choices: Distribution
    rank: int
    is_all: bool


@final
class BestFirst:
    """A search; iterate over it for complete outputs, the best first.  Ties go to the lower token ids.

    Attributes:
        expanded: number of prefixes that were run through the model.

    Args:
        branches: the branches of the problem.
        limit: maximum number of prefixes that are run through the model.
        heuristic: estimates the rest of each prefix; None for ``score_bound``.
        score_bound: upper bound of the potentials' score of an output.
        branching: number of most probable next tokens that are expanded after each prefix; None for all, which a proof
            of optimality needs.

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
        # By falling bound, complete outputs last among equals so that all ties come up, then by tokens.
        self._heap: list[tuple[float, bool, tuple[int, ...], int, _OpenPrefix | _NextChoice | Branch]] = []
        self._pushed = 0
        self._best_total = -math.inf  # of the complete outputs so far
        self._width = _MAX_PACKED if branches.is_packed else 1
        self.expanded = 0
        root = branches.root()
        branches.drop(root)
        self._open(root)

    def __iter__(self) -> Iterator[Ranked]:
        return self

    def __next__(self) -> Ranked:
        """Search until the best entry is a complete output.

        Raises:
            LimitExceeded: more than ``limit`` prefixes have a larger bound than its total.
            GenerationError: the model or a potential fails, or a score is above ``score_bound``.
        """
        while True:
            opened = self._best_prefixes()
            if not opened:
                break
            self.expanded += len(opened)
            if self.expanded > self._limit:
                raise self._too_far()
            rows = self._branches.logits_at([each.branch for _, each in opened])
            for (bound, each), logits in zip(opened, rows, strict=True):
                self._expand(bound, each, logits)
        if not self._heap:
            raise StopIteration
        negative, _, _, _, best = heappop(self._heap)
        if isinstance(best, (_OpenPrefix, _NextChoice)):
            raise RuntimeError("the search ended before its end")
        return Ranked(best, -negative)

    def _best_prefixes(self) -> list[tuple[float, _OpenPrefix]]:
        """Pop prefixes to be run, with their bounds, up to the best complete output."""
        opened: list[tuple[float, _OpenPrefix]] = []
        max_count = min(self._width, max(self._limit - self.expanded, 1))
        while self._heap and len(opened) < max_count:
            negative, is_complete, _, _, item = self._heap[0]
            if is_complete:
                break
            heappop(self._heap)
            if isinstance(item, _NextChoice):
                self._take(item)
            elif isinstance(item, _OpenPrefix):
                opened.append((-negative, item))
        return opened

    def _expand(self, bound: float, opened: _OpenPrefix, logits: Logits) -> None:
        """Rank the next tokens of a prefix."""
        choices = self._branches.distribution(opened.branch, logits, tilted=False)
        total = len(choices) if self._branching is None else min(self._branching, len(choices))
        count = min(total, max(_MAX_CHOICES, 4 * opened.skipped))
        self._push_next(_NextChoice(opened, bound, choices.ranked(count), opened.skipped, count == total))

    def _push_next(self, following: _NextChoice) -> None:
        """Push the next token of a prefix that was not expanded yet."""
        opened, choices, rank = following.opened, following.choices, following.rank
        tokens = opened.branch.hypothesis.tokens
        if rank < len(choices):
            log_p = float(choices.log_p[rank])
            if log_p > -math.inf:
                self._push(self._bound_of(following, log_p), (*tokens, int(choices.ids[rank])), following)
        elif not following.is_all:  # the rest is no more probable than the last stored token
            log_p = float(choices.log_p[-1])
            self._push(self._bound_of(following, log_p), tokens, _OpenPrefix(opened.branch, rank))

    def _bound_of(self, following: _NextChoice, log_p: float) -> float:
        """The bound after a next token, before its potentials or heuristic are evaluated."""
        return min(following.opened.branch.log_p + log_p + self._bound, following.bound)

    def _take(self, following: _NextChoice) -> None:
        """Take the next token of a prefix, and push the rest."""
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
        check_score(child, self._bound)
        total = child.log_p + child.score
        self._best_total = max(self._best_total, total)
        self._push(total, child.hypothesis.tokens, child)

    def _open(self, branch: Branch) -> None:
        rest = self._bound if self._heuristic is None else self._heuristic(branch)
        if math.isnan(rest) or rest == math.inf:
            raise GenerationError(
                "heuristic",
                f"it gives {rest}",
                evidence=f"for {branch.hypothesis!r}",
                remedy="return a finite logarithm, or -inf for a prefix that cannot be completed",
            )
        if rest > -math.inf:
            self._push(branch.log_p + rest, branch.hypothesis.tokens, _OpenPrefix(branch))

    def _push(self, bound: float, tokens: tuple[int, ...], item: _OpenPrefix | _NextChoice | Branch) -> None:
        self._pushed += 1  # so that items are never compared
        is_complete = not isinstance(item, (_OpenPrefix, _NextChoice))
        heappush(self._heap, (-bound, is_complete, tokens, self._pushed, item))

    def _too_far(self) -> LimitExceeded:
        best = "none is complete"
        if self._best_total > -math.inf:
            best = f"the best complete one has log-probability {self._best_total:.3f}"
        return LimitExceeded(
            "best-first search",
            limit="limit",
            maximum=self._limit,
            evidence=f"{len(self._heap)} prefixes are open, {best}",
            remedy="raise limit, narrow the grammar, lower max_tokens, or take Beam(...), which proves nothing",
        )


@final
@dataclass(frozen=True, slots=True)
class ExactBest:
    """The most probable outputs, by best-first search.

    A prefix is at least as probable as its continuations, so an output that comes up before all open prefixes is the
    most probable one left.  The work grows with the number of prefixes that are as probable as the output, so this is
    for small languages, or languages with few probable strings.

    ``Sample.score`` and the weight are the log-probability of an output under the model plus the potentials' score.

    Attributes:
        limit: maximum number of prefixes that are run through the model.
        n: number of outputs, the best first; fewer if there are no more.
        score_bound: upper bound of the potentials' score of an output.

    Raises:
        ValueError: a number is out of range.

    Complexity: one run for each prefix that is as probable as the last output, and for few others; for a
        ``PackedModel`` up to four share a forward pass.

    Source: for spans of a passage O. Castel et al. (2021); see ``structgen.decode.autoregressive.search``.
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
        """See ``SequenceSampler``; uses no random numbers.

        Raises:
            LimitExceeded: more than ``limit`` prefixes are more probable than the outputs so far.
        """
        search = BestFirst(branches, limit=self.limit, score_bound=self.score_bound)
        samples = tuple(
            Sample(branches.result(each.branch), each.total, 1, each.total) for each in islice(search, self.n)
        )
        return branches.samples(samples, particles=len(samples))

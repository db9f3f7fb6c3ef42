"""The marginal probability of each of a few texts at one position of an output.

The distribution is that of the loop (``structgen.decode.autoregressive.loop``) with a lossless sampler.  A text may be
spelled by many token sequences, each with its own next-token distributions, so the sequences are searched: each up to
the token after which only one value is possible.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, final

import numpy as np

from structgen.decode.step.distribution import project
from structgen.engine.mask import allowed_ids, empty_masks
from structgen.models.protocol import PackedModel

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from structgen.decode.step.context import Context
    from structgen.engine import Matcher
    from structgen.models.protocol import Logits

__all__ = ["MarginalQuery", "marginals"]

_MAX_TOGETHER: Final = 16


@final
@dataclass(frozen=True, slots=True)
class MarginalQuery:
    """A query for the probabilities of some values at a position of the output.

    Attributes:
        context: the prompt and the output up to a position where the loop runs the model; it stays as it is.
        matcher: the matcher after the same tokens; it stays as it is.
        budget: how many tokens may follow.
        written: the end of the output, from the start of some token on.
        before: the text from that start up to the position of the value.
        values: the values by their texts; no other text is possible at the position.
    """

    context: Context
    matcher: Matcher
    budget: int
    written: bytes
    before: bytes
    values: Mapping[bytes, Hashable]

    def possible_values(self, written: bytes) -> list[Hashable]:
        """The values that are still possible after ``written``; none if it contradicts ``before``."""
        size = len(self.before)
        if len(written) <= size:
            return list(set(self.values.values())) if self.before.startswith(written) else []
        if not written.startswith(self.before):
            return []
        text = written[size:]
        possible = {value for each, value in self.values.items() if each.startswith(text)}
        if possible:
            return list(possible)
        ended = max((each for each in self.values if text.startswith(each)), key=len)  # and other text follows
        return [self.values[ended]]


@dataclass(slots=True)
class _MarginalBranch:
    """A token sequence after which several values are possible."""

    query: MarginalQuery
    matcher: Matcher
    written: bytes
    probability: float
    tokens: list[int] = field(default_factory=list)

    @property
    def budget(self) -> int:
        return self.query.budget - len(self.tokens)


@final
class _MarginalSearch:
    """All branches of one query, and the probability of each value so far."""

    def __init__(self, query: MarginalQuery) -> None:
        vocabulary = query.context.model.vocabulary
        self._texts, self._eos = vocabulary.tokens, vocabulary.eos
        self._row: NDArray[np.int32] = empty_masks(vocabulary)
        self._parts: dict[Hashable, list[float]] = defaultdict(list)  # of the probability of each value
        self._values = query.values
        self._passes = 0
        self.branches = [_MarginalBranch(query, query.matcher.fork(), query.written, 1.0)]

    @property
    def cost(self) -> int:
        """The number of forward passes so far, and of those that are certain to follow."""
        return self._passes + len(self.branches)

    def masses(self) -> dict[Any, float]:
        """The probabilities of all values, which sum to 1."""
        sums = {value: math.fsum(self._parts[value]) for value in self._values.values()}
        total = math.fsum(sums.values())
        return {value: mass / total for value, mass in sums.items()}

    def waiting(self) -> Iterator[tuple[_MarginalBranch, NDArray[np.intp]]]:
        """Yield the branches that need the model, with their allowed tokens; the others are settled here."""
        branches, self.branches = self.branches, []
        for branch in branches:
            ids = self._choices(branch)
            if ids is not None:
                yield branch, ids

    def take(self, branch: _MarginalBranch, ids: NDArray[np.intp], logits: Logits) -> None:
        """Follow each allowed token of a branch."""
        self._passes += 1
        for token, log_p in zip(ids.tolist(), project(logits, ids).log_p.tolist(), strict=True):
            probability = branch.probability * math.exp(log_p)
            if token in self._eos:
                self._end(branch, probability)
            elif probability:
                self._follow(branch, token, probability)

    def _follow(self, branch: _MarginalBranch, token: int, probability: float) -> None:
        written = branch.written + self._texts[token]
        possible = branch.query.possible_values(written)
        if len(possible) == 1:
            self._parts[possible[0]].append(probability)
        elif possible:
            matcher = branch.matcher.fork()
            matcher.accept(token)
            self.branches.append(_MarginalBranch(branch.query, matcher, written, probability, [*branch.tokens, token]))

    def _end(self, branch: _MarginalBranch, probability: float) -> None:
        self._parts[self._values[branch.written[len(branch.query.before) :]]].append(probability)

    def _choices(self, branch: _MarginalBranch) -> NDArray[np.intp] | None:
        """Take the forced tokens and return the allowed ones; None if only one value stays possible."""
        while True:
            possible = branch.query.possible_values(branch.written)
            if len(possible) <= 1:
                if possible:
                    self._parts[possible[0]].append(branch.probability)
                return None
            run = branch.matcher.advance_forced(branch.budget)
            if not run:
                branch.matcher.fill_mask(self._row, budget=branch.budget)
                ids = allowed_ids(self._row[0], len(self._texts))
                ordinary = ids[~np.isin(ids, self._eos)]
                if not len(ordinary):
                    self._end(branch, branch.probability)
                    return None
                if len(ids) > 1 or not branch.matcher.accept(int(ids[0])):
                    return ids
                run = [int(ids[0])]
            branch.tokens += run
            branch.written += b"".join(self._texts[token] for token in run)


def marginals(queries: Sequence[MarginalQuery], *, max_passes: int) -> list[dict[Any, float] | None]:
    """Return the probabilities of the values of each query; None if its search takes more than ``max_passes``.

    The sequences share forward passes if the model is a ``PackedModel``.

    Raises:
        GenerationError: the model fails.

    Complexity: one forward pass of few tokens for each spelling of a prefix that several values share.
    """
    searches = [_MarginalSearch(query) for query in queries]
    while True:
        waiting = [(search, *each) for search in searches if search.cost <= max_passes for each in search.waiting()]
        if not waiting:
            break
        for at in range(0, len(waiting), _MAX_TOGETHER):
            part = waiting[at : at + _MAX_TOGETHER]
            for (search, branch, ids), logits in zip(part, _logits([each[1] for each in part]), strict=True):
                search.take(branch, ids, logits)
    return [search.masses() if search.cost <= max_passes else None for search in searches]


def _logits(branches: Sequence[_MarginalBranch]) -> list[Logits]:
    """The logits after each branch."""
    contexts = [branch.query.context.fork() for branch in branches]
    try:
        for context, branch in zip(contexts, branches, strict=True):
            context.append(branch.tokens)
            context.prepare()
        model = contexts[0].model
        if isinstance(model, PackedModel) and len(contexts) > 1:
            return model.extend_many([context.extension() for context in contexts])
        return [context.session.extend(context.unseen) for context in contexts]
    finally:
        for context in contexts:
            context.close()

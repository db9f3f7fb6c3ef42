"""How probable each of a few texts is at one place of an output.

What is meant is the distribution of the loop (``structgen.decode.autoregressive.loop``) with a lossless sampler: forced
tokens come without being drawn, and all others from the projection. A text may be spelled by many token sequences, and
the model has a distribution of its own after each of them. So the sequences are searched: up to the token with which
only one of the values is left, whatever else that token holds.
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
from structgen.models.protocol import Extension, PackedModel

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
    """Which of some values is written at a place.

    Attributes:
        context: ends with a token after which the loop looks at the model; it is left as it is.
        matcher: after the same token; likewise.
        budget: tokens that may follow.
        written: the end of the output, from the start of a token on, from which the place counts.
        before: the text from there up to the place.
        values: the values by the texts that may stand at the place; no other may.
    """

    context: Context
    matcher: Matcher
    budget: int
    written: bytes
    before: bytes
    values: Mapping[bytes, Hashable]

    def settled(self, written: bytes) -> list[Hashable]:
        """The values that are left: one of them, several, or none where another text stands before the place."""
        size = len(self.before)
        if len(written) <= size:
            return list(set(self.values.values())) if self.before.startswith(written) else []
        if not written.startswith(self.before):
            return []
        text = written[size:]
        left = {value for each, value in self.values.items() if each.startswith(text)}
        if left:
            return list(left)
        ended = max((each for each in self.values if text.startswith(each)), key=len)  # something else follows it
        return [self.values[ended]]


@dataclass(slots=True)
class _MarginalBranch:
    """A token sequence after which several values are left."""

    question: MarginalQuery
    matcher: Matcher
    written: bytes
    probability: float
    tokens: list[int] = field(default_factory=list)

    @property
    def budget(self) -> int:
        return self.question.budget - len(self.tokens)


@final
class _MarginalSearch:
    """All branches of one question, and the mass of each value so far."""

    def __init__(self, question: MarginalQuery) -> None:
        vocabulary = question.context.model.vocabulary
        self._texts, self._eos = vocabulary.tokens, vocabulary.eos
        self._row: NDArray[np.int32] = empty_masks(vocabulary)
        self._found: dict[Hashable, list[float]] = defaultdict(list)
        self._values = question.values
        self._passes = 0
        self.branches = [_MarginalBranch(question, question.matcher.fork(), question.written, 1.0)]

    @property
    def cost(self) -> int:
        """The forward passes so far, and those that are known to follow."""
        return self._passes + len(self.branches)

    def masses(self) -> dict[Any, float]:
        """The probabilities of all values, which sum to 1."""
        sums = {value: math.fsum(self._found[value]) for value in self._values.values()}
        total = math.fsum(sums.values())
        return {value: mass / total for value, mass in sums.items()}

    def waiting(self) -> Iterator[tuple[_MarginalBranch, NDArray[np.intp]]]:
        """The branches that need the model, with the tokens that it may choose from; the others are settled here."""
        branches, self.branches = self.branches, []
        for branch in branches:
            ids = self._choices(branch)
            if ids is not None:
                yield branch, ids

    def take(self, branch: _MarginalBranch, ids: NDArray[np.intp], logits: Logits) -> None:
        """Follow each of the tokens that the model may choose."""
        self._passes += 1
        for token, log_p in zip(ids.tolist(), project(logits, ids).log_p.tolist(), strict=True):
            probability = branch.probability * math.exp(log_p)
            if token in self._eos:
                self._end(branch, probability)
            elif probability:
                self._follow(branch, token, probability)

    def _follow(self, branch: _MarginalBranch, token: int, probability: float) -> None:
        written = branch.written + self._texts[token]
        left = branch.question.settled(written)
        if len(left) == 1:
            self._found[left[0]].append(probability)
        elif left:
            matcher = branch.matcher.fork()
            matcher.accept(token)
            self.branches.append(
                _MarginalBranch(branch.question, matcher, written, probability, [*branch.tokens, token])
            )

    def _end(self, branch: _MarginalBranch, probability: float) -> None:
        self._found[self._values[branch.written[len(branch.question.before) :]]].append(probability)

    def _choices(self, branch: _MarginalBranch) -> NDArray[np.intp] | None:
        """Take what is forced; the tokens that may follow, or None where the value is settled on the way."""
        while True:
            left = branch.question.settled(branch.written)
            if len(left) <= 1:
                if left:
                    self._found[left[0]].append(branch.probability)
                return None
            budget = max(branch.budget, 0)
            run = branch.matcher.advance_forced(budget)
            if not run:
                branch.matcher.fill_mask(self._row, budget=budget)
                ids = allowed_ids(self._row[0], len(self._texts))
                ordinary = ids[~np.isin(ids, self._eos)]
                if branch.budget <= 0 or not len(ordinary):
                    self._end(branch, branch.probability)
                    return None
                if len(ids) > 1 or not branch.matcher.accept(int(ids[0])):
                    return ids
                run = [int(ids[0])]
            branch.tokens += run
            branch.written += b"".join(self._texts[token] for token in run)


def marginals(questions: Sequence[MarginalQuery], *, most: int) -> list[dict[Any, float] | None]:
    """Return for each question the probabilities of its values; None where the search takes more than ``most`` passes.

    The questions' sequences share forward passes where the model can run several at once.

    Raises:
        GenerationError: the model fails.

    Complexity: one forward pass, of few tokens, for each spelling of a prefix that several values have in common.
    """
    searches = [_MarginalSearch(question) for question in questions]
    while True:
        waiting = [(search, *each) for search in searches if search.cost <= most for each in search.waiting()]
        if not waiting:
            break
        for at in range(0, len(waiting), _MAX_TOGETHER):
            part = waiting[at : at + _MAX_TOGETHER]
            for (search, branch, ids), logits in zip(part, _logits([each[1] for each in part]), strict=True):
                search.take(branch, ids, logits)
    return [search.masses() if search.cost <= most else None for search in searches]


def _logits(branches: Sequence[_MarginalBranch]) -> list[Logits]:
    """What the model says after each branch."""
    contexts = [branch.question.context.fork() for branch in branches]
    try:
        for context, branch in zip(contexts, branches, strict=True):
            context.append(branch.tokens)
            context.prepare()
        model = contexts[0].model
        if isinstance(model, PackedModel) and len(contexts) > 1:
            return model.extend_many([Extension(context.session, context.unseen, False) for context in contexts])
        return [context.session.extend(context.unseen) for context in contexts]
    finally:
        for context in contexts:
            context.close()

"""String-level rejection: drafts are sampled from the draft model's text as a distribution over target tokens.

The first target token of a text is the longest target token that the text begins with, so it is certain once the text
cannot begin with a longer one.  Its probability is the sum over all sequences of draft tokens that lead to it, however
they tokenize the text:

    p(t) = sum over draft sequences d_1 ... d_n of q(d_1) q(d_2 | d_1) ... q(d_n | d_1 ... d_(n-1))

over the sequences after which ``t`` is certain, and not before ``d_n``.  They are the leaves of a tree, so the
probabilities sum to 1 except for texts that no target token begins.  Equivalently, with ``psi(b)`` the probability that
the text begins with ``b`` (a sum over tokenizations), ``p(t) = psi(t) - sum of psi(u)`` over the shortest longer tokens
``u`` on each branch that begin with ``t``.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple, final

import numpy as np

from structgen.decode.speculative.draft_tree import ROOT, DraftTree
from structgen.decode.speculative.drafter import GrammarPosition, tree_masks
from structgen.decode.step.distribution import project
from structgen.engine.mask import allowed_ids
from structgen.errors import LimitExceeded
from structgen.methods.drafters.draft_session import Bridge, BridgeTask, DraftSession, vocabulary_of
from structgen.methods.drafters.model_growth import DraftRow, DraftRows, RowsDrafting
from structgen.methods.drafters.token_bridge import GrammarReference, TokenBridge

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from structgen.engine import Matcher, Vocabulary
    from structgen.methods.drafters.model_growth import ShapedDrafting

__all__ = [
    "NextDistributions",
    "NextTokenDistribution",
    "StringRejection",
    "TokenPrefixes",
    "string_distribution",
    "token_prefixes",
]

NO_TOKEN = -1


class NextTokenDistribution(NamedTuple):
    """The next-token distribution of a draft model.

    Attributes:
        ids: the allowed tokens of the draft model, ascending, ``[n]``.
        p: their probabilities, float64 ``[n]``.
    """

    ids: NDArray[np.intp]
    p: NDArray[np.float64]


NextDistributions = Callable[[Sequence[tuple[int, ...]]], Sequence[NextTokenDistribution | None]]
"""Returns the distributions after sequences of draft tokens; None if there is none."""


@final
class TokenPrefixes:
    """How the tokens of a draft model begin tokens of a target.

    Attributes:
        longest: for each draft token the longest target token that is a prefix of it, or -1,
            ``[size of the draft vocabulary]``.
        open: whether a text that begins with the draft token may begin with a longer target token.

    Args:
        target: the vocabulary of the target.
        draft: the vocabulary of the draft model.

    Complexity: O(V log V), once.
    """

    def __init__(self, target: Vocabulary, draft: Vocabulary) -> None:
        self._ids: dict[bytes, int] = {}
        for token in range(target.size - 1, -1, -1):
            if target.tokens[token]:
                self._ids[target.tokens[token]] = token
        self._sorted = sorted(self._ids)
        self._longest = max(map(len, self._sorted))
        self.longest: NDArray[np.intp] = np.array([self.token_of(piece) for piece in draft.tokens], dtype=np.intp)
        self.open: NDArray[np.bool_] = np.array([bool(p) and self.is_open(p) for p in draft.tokens], dtype=np.bool_)

    def token_of(self, text: bytes) -> int:
        """Return the longest target token that ``text`` begins with, or -1."""
        for length in range(min(len(text), self._longest), 0, -1):
            token = self._ids.get(text[:length])
            if token is not None:
                return token
        return NO_TOKEN

    def is_open(self, text: bytes) -> bool:
        """Return whether a longer target token begins with ``text``."""
        at = bisect_right(self._sorted, text)
        return at < len(self._sorted) and self._sorted[at].startswith(text)


token_prefixes = lru_cache(maxsize=8)(TokenPrefixes)
"""``TokenPrefixes`` of two vocabularies, with a cache of the last pairs."""


def string_distribution(  # noqa: PLR0913  the tables of both vocabularies, and four bounds by name
    distributions: NextDistributions,
    table: TokenPrefixes,
    target: Vocabulary,
    draft: Vocabulary,
    *,
    contexts: int | None,
    tokens: int | None,
    depth: int | None,
    least: float,
) -> NDArray[np.float64] | None:
    """Return the distribution of the first target token of the draft model's text, float64 ``[target.size]``.

    At a bound, the text is assumed to end there: the probability of a prefix goes to the longest token in it.  Without
    bounds the distribution is exact.

    Args:
        distributions: the draft model's distributions; called once for each depth.
        table: the table of the two vocabularies.
        target: the vocabulary of the target.
        draft: the vocabulary of the draft model.
        contexts: the largest number of prefixes of each depth that are continued, the most probable ones; None is all.
        tokens: the largest number of continuations of each, the most probable ones; None is all.
        depth: the largest number of tokens of a prefix; None is any number.
        least: the smallest probability of a prefix that is continued.

    Returns:
        The distribution, which may sum to less than 1 (see the module); None if the draft model has none.
    """
    first = distributions([()])[0]
    if first is None:
        return None
    distribution = np.zeros(target.size)
    ends = target.eos[0] if target.eos else NO_TOKEN
    stops = np.isin(first.ids, draft.eos)
    first_tokens = np.where(stops, ends, table.longest[first.ids])
    np.add.at(distribution, first_tokens[first_tokens >= 0], first.p[first_tokens >= 0])
    at = np.flatnonzero(table.open[first.ids] & (first.p > max(least, 0.0)))
    pending: dict[tuple[int, ...], float] = {(int(first.ids[index]),): float(first.p[index]) for index in at}
    while pending and (depth is None or len(next(iter(pending))) <= depth):
        ranked = sorted(pending.items(), key=lambda item: (-item[1], item[0]))[:contexts]
        following_distributions = distributions([context for context, _ in ranked])
        pending = {}
        for (context, mass), following in zip(ranked, following_distributions, strict=True):
            if following is None:
                continue
            text = draft.decode(context)
            so_far = table.token_of(text)
            for token, p in _most_probable(following, tokens):
                longer = text + draft.tokens[token]
                first_token = so_far if token in draft.eos else table.token_of(longer)
                if first_token != so_far:
                    _move_mass(distribution, so_far, first_token, mass * p)
                if token not in draft.eos and mass * p > least and table.is_open(longer):
                    pending[(*context, token)] = mass * p
    return np.maximum(distribution, 0.0)


def _move_mass(distribution: NDArray[np.float64], source: int, target: int, mass: float) -> None:
    """Move probability from one token to another; ``NO_TOKEN`` has none."""
    if source != NO_TOKEN:
        distribution[source] -= mass
    if target != NO_TOKEN:
        distribution[target] += mass


def _most_probable(distribution: NextTokenDistribution, count: int | None) -> list[tuple[int, float]]:
    order = np.flatnonzero(distribution.p)
    if count is not None and count < len(order):
        order = order[np.argsort(-distribution.p[order], kind="stable")[:count]]
    return [(int(distribution.ids[index]), float(distribution.p[index])) for index in order]


@final
@dataclass(frozen=True, slots=True)
class StringRejection(Bridge):
    """The draft model's text as a distribution over target tokens, summed over all its tokenizations.

    Drafts that are sampled from it can be verified by rejection, and every target token can be drafted, also those that
    the draft model lacks.  The bounds make the distribution less like the draft model's, but the tree records it, so
    the output keeps the target's distribution.

    Source: see ``Bridge``; there "SLRS", whose sum over all tokenizations grows exponentially with the bytes of a
    token. Here the sum is over a bounded tree of prefixes, for the longest target token that the text begins with.

    Attributes:
        contexts: the largest number of prefixes that are continued at each depth, in one pass; None is all.
        tokens: the largest number of continuations of each; None is all.
        depth: the largest number of draft model tokens of a prefix; None is any number.
        least: prefixes with at most this probability are not continued.

    Raises:
        ValueError: a number is out of range.
    """

    contexts: int | None = 4
    tokens: int | None = 64
    depth: int | None = 2
    least: float = 0.02

    def __post_init__(self) -> None:
        for name, value in (("contexts", self.contexts), ("tokens", self.tokens), ("depth", self.depth)):
            if value is not None and (not isinstance(value, int) or value < 1):
                raise ValueError(f"StringRejection: {name} must be an integer of at least 1, or None; found {value!r}")
        if not 0 <= self.least < 1:
            raise ValueError(f"StringRejection: least must be in [0, 1); found {self.least!r}")

    def start(self, crossing: BridgeTask) -> ShapedDrafting:
        """See ``Bridge.start``."""
        return RowsDrafting(crossing.task, crossing.shape, _StringRows(crossing, self), draws=crossing.draws)


@final
class _StringRows(DraftRows):
    def __init__(self, crossing: BridgeTask, bounds: StringRejection) -> None:
        constraint = crossing.task.constraint
        self._target = constraint.vocabulary
        self._draft = vocabulary_of(crossing.model)
        self._prompt_tokens = crossing.task.prompt_tokens
        self._bridge = TokenBridge(self._target, crossing.model, self._prompt_tokens)
        self._bridge.check_capacity(crossing.tokens)
        self._reference = GrammarReference(constraint, self._draft)
        self._session = DraftSession(crossing.model)
        self._table = token_prefixes(self._target, self._draft)
        self._bounds = bounds
        self._tokens: list[int] = []

    def follow(self, tokens: Sequence[int]) -> None:
        """See ``DraftRows.follow``."""
        self._tokens = list(tokens)

    def rows(
        self, paths: Sequence[tuple[int, ...]], positions: Sequence[GrammarPosition], most: int
    ) -> Sequence[DraftRow | None]:
        """See ``DraftRows.rows``; one path after the other, each with a pass for each depth."""
        return [self._row_within_limits(path) for path in paths]

    def close(self) -> None:
        """See ``DraftRows.close``."""
        self._session.close()

    def _row_within_limits(self, path: tuple[int, ...]) -> NDArray[np.float64] | None:
        """None if the draft model's grammar reaches a limit: limits are for outputs, not for draft tokens."""
        try:
            return self._row(path)
        except LimitExceeded:
            return None

    def _row(self, path: tuple[int, ...]) -> NDArray[np.float64] | None:
        tokens = [*self._tokens, *path]
        matcher = self._reference.at(tokens[self._prompt_tokens :])
        if matcher is None:
            return None
        self._session.follow(self._bridge.read(tokens))
        bounds = self._bounds
        distribution = string_distribution(
            lambda contexts: self._distributions(matcher, contexts),
            self._table,
            self._target,
            self._draft,
            contexts=bounds.contexts,
            tokens=bounds.tokens,
            depth=bounds.depth,
            least=bounds.least,
        )
        if distribution is None:
            return None
        row = np.full(len(distribution), -np.inf)
        np.log(distribution, out=row, where=distribution > 0)
        return row

    def _distributions(
        self, matcher: Matcher, contexts: Sequence[tuple[int, ...]]
    ) -> list[NextTokenDistribution | None]:
        """The draft model's distributions after its own tokens; forced tokens need no row."""
        tree = DraftTree()
        nodes = [tree.extend(ROOT, context) for context in contexts]
        masks = tree_masks(tree, matcher)
        allowed = [
            allowed_ids(masks[node], self._draft.size) if node in masks else np.empty(0, np.intp) for node in nodes
        ]
        queried = [context for context, ids in zip(contexts, allowed, strict=True) if len(ids) > 1]
        rows = dict(zip(queried, self._session.rows(queried) if queried else [], strict=True))
        result: list[NextTokenDistribution | None] = []
        for context, ids in zip(contexts, allowed, strict=True):
            row = rows.get(context)
            if len(ids) == 1:
                result.append(NextTokenDistribution(ids, np.ones(1)))
            elif row is None or row[ids].max() == -np.inf:
                result.append(None)
            else:
                result.append(NextTokenDistribution(ids, np.exp(project(row, ids, 0.0).log_p)))
        return result

"""String-level rejection: drafts are sampled from the draft model's text as a distribution over target tokens.

A draft model writes a text token by token.  Its first target token is the longest token of the target that the text
begins with, so it is known once what is written cannot become a longer one.  Its distribution is what the draft model
gives to all sequences of its tokens that lead to it, whichever way they cut the text:

    p(t) = sum over draft sequences d_1 ... d_n of q(d_1) q(d_2 | d_1) ... q(d_n | d_1 ... d_(n-1))

over those where ``t`` is certain after ``d_n`` and not before.  These are all ends of a tree, so it sums to 1 but for
texts that no target token begins.  Equivalently, with ``psi(b)`` the probability that the text begins with ``b`` (the
sum over all its tokenizations), ``p(t) = psi(t) - sum of psi(u)`` over the shortest longer tokens ``u`` that begin with
``t`` on each branch.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple, final

import numpy as np

from structgen.decode.speculative.draft_tree import ROOT, DraftTree
from structgen.decode.speculative.grammar_position import tree_masks
from structgen.decode.step.distribution import project
from structgen.engine.mask import allowed_ids
from structgen.errors import LimitExceeded
from structgen.methods.drafters.draft_session import Bridge, BridgeTask, DraftSession, vocabulary_of
from structgen.methods.drafters.model_growth import DraftRow, DraftRows, RowsDrafting
from structgen.methods.drafters.token_bridge import GrammarReference, TokenBridge

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from structgen.decode.speculative.grammar_position import GrammarPosition
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
    """What a draft model writes next.

    Attributes:
        ids: of its tokens, those that may come, ascending, ``[n]``.
        p: their probabilities, float64 ``[n]``.
    """

    ids: NDArray[np.intp]
    p: NDArray[np.float64]


NextDistributions = Callable[[Sequence[tuple[int, ...]]], Sequence[NextTokenDistribution | None]]
"""Tells the distributions after sequences of draft tokens; None where nothing can be said."""


@final
class TokenPrefixes:
    """How the tokens of a draft model begin tokens of a target.

    Attributes:
        longest: for each draft token the longest target token that it begins with or is; -1 where there is none,
            ``[size of the draft vocabulary]``.
        open: whether a longer text that begins with the draft token may begin with a longer target token.

    Args:
        target: the vocabulary of what is written.
        draft: that of the model that writes.

    Complexity: O(V log V), once.
    """

    def __init__(self, target: Vocabulary, draft: Vocabulary) -> None:
        self._ids: dict[bytes, int] = {}
        for token in range(target.size - 1, -1, -1):
            if target.tokens[token]:
                self._ids[target.tokens[token]] = token
        self._sorted = sorted(self._ids)
        self._most = max(map(len, self._sorted))
        self.longest: NDArray[np.intp] = np.array([self.token_of(piece) for piece in draft.tokens], dtype=np.intp)
        self.open: NDArray[np.bool_] = np.array([bool(p) and self.is_open(p) for p in draft.tokens], dtype=np.bool_)

    def token_of(self, text: bytes) -> int:
        """The longest target token that ``text`` begins with; -1 for none."""
        for length in range(min(len(text), self._most), 0, -1):
            token = self._ids.get(text[:length])
            if token is not None:
                return token
        return NO_TOKEN

    def is_open(self, text: bytes) -> bool:
        """Whether a longer target token begins with ``text``."""
        at = bisect_right(self._sorted, text)
        return at < len(self._sorted) and self._sorted[at].startswith(text)


token_prefixes = lru_cache(maxsize=8)(TokenPrefixes)
"""``Prefixes`` of two vocabularies, kept for the pairs that were used last."""


def string_distribution(
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
    """The distribution of the first target token of what a draft model writes, float64 ``[target.size]``.

    Where a bound is reached, the text is taken to end there: the mass of a prefix goes to the longest token in it.
    Without bounds the distribution is exact, as the module says.

    Args:
        distributions: what the draft model writes; asked once for each depth.
        table: of the two vocabularies.
        target: the vocabulary of what is written.
        draft: that of the model that writes.
        contexts: the most prefixes of each depth whose continuation is asked about, the most probable ones; None is
            all.
        tokens: the most tokens that are looked at after each of them, the most probable ones; None is all.
        depth: how many tokens a prefix has at most; None is any number.
        least: the least probability of a prefix that is asked about.

    Returns:
        None where nothing can be said.  It may sum to less than 1: see the module.
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
        told = distributions([context for context, _ in ranked])
        pending = {}
        for (context, mass), following in zip(ranked, told, strict=True):
            if following is None:
                continue
            text = draft.decode(context)
            so_far = table.token_of(text)
            for token, p in _most_probable(following, tokens):
                longer = text + draft.tokens[token]
                found = so_far if token in draft.eos else table.token_of(longer)
                if found != so_far:
                    _move_mass(distribution, so_far, found, mass * p)
                if token not in draft.eos and mass * p > least and table.is_open(longer):
                    pending[(*context, token)] = mass * p
    return np.maximum(distribution, 0.0)


def _move_mass(distribution: NDArray[np.float64], source: int, target: int, mass: float) -> None:
    """Give mass from one token to another; it comes from nowhere, or goes there, where there is no token."""
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
    """The distribution of the draft model's text, summed over all ways to cut it into its tokens.

    As one over target tokens.

    Drafts that are drawn from it can be verified by rejection, and all tokens of the target can be drafted, also those
    that the draft model lacks.  What the bounds leave out makes the distribution less like the draft model's; whatever
    it is, the tree records it, and the verifier is exact.

    Source: see ``Bridge``; there "SLRS", whose sum over all tokenizations has a number of terms that grows
        exponentially with the bytes of a token.  Here the terms are those of a tree of prefixes, which is bounded,
        and the distribution is that of the longest target token that the text begins with.

    Attributes:
        contexts: the most prefixes of a token that are continued at each depth, in one pass; None is all.
        tokens: the most continuations of each that are looked at; None is all.
        depth: how many tokens of the draft model a prefix has at most; None is any number.
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
        self._bridge.check_room(crossing.tokens)
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
        """None where the draft model's grammar reaches a limit: limits are for outputs, not for draft tokens."""
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
        """What the draft model writes after its own tokens; where there is no choice it is not asked."""
        tree = DraftTree()
        nodes = [tree.extend(ROOT, context) for context in contexts]
        masks = tree_masks(tree, matcher)
        allowed = [
            allowed_ids(masks[node], self._draft.size) if node in masks else np.empty(0, np.intp) for node in nodes
        ]
        asked = [context for context, ids in zip(contexts, allowed, strict=True) if len(ids) > 1]
        rows = dict(zip(asked, self._session.rows(asked) if asked else [], strict=True))
        found: list[NextTokenDistribution | None] = []
        for context, ids in zip(contexts, allowed, strict=True):
            row = rows.get(context)
            if len(ids) == 1:
                found.append(NextTokenDistribution(ids, np.ones(1)))
            elif row is None or row[ids].max() == -np.inf:
                found.append(None)
            else:
                found.append(NextTokenDistribution(ids, np.exp(project(row, ids, 0.0).log_p)))
        return found

"""The law of the first token of a text that a model with other tokens writes.

A draft model writes a text token by token.  Its first target token is the longest token of the target that the text
begins with, so it is known once what is written cannot become a longer one.  Its law is what the draft model gives to
all sequences of its tokens that lead to it, whichever way they cut the text:

    law(t) = sum over draft sequences d_1 ... d_n of q(d_1) q(d_2 | d_1) ... q(d_n | d_1 ... d_(n-1))

over those where ``t`` is certain after ``d_n`` and not before.  These are all ends of a tree, so the law sums to 1 but
for texts that no target token begins.  Equivalently, with ``psi(b)`` the probability that the text begins with ``b``
(the sum over all its tokenizations), ``law(t) = psi(t) - sum of psi(u)`` over the shortest longer tokens ``u`` that
begin with ``t`` on each branch.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple, final

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from structgen.engine import Vocabulary

__all__ = ["NextLaws", "Prefixes", "TextLaw", "prefixes", "string_law"]

NONE = -1


class TextLaw(NamedTuple):
    """What a draft model writes next.

    Attributes:
        ids: of its tokens, those that may come, ascending, ``[n]``.
        p: their probabilities, float64 ``[n]``.
    """

    ids: NDArray[np.intp]
    p: NDArray[np.float64]


NextLaws = Callable[[Sequence[tuple[int, ...]]], Sequence[TextLaw | None]]
"""Tells the laws behind sequences of draft tokens; None where nothing can be said."""


@final
class Prefixes:
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
        return NONE

    def is_open(self, text: bytes) -> bool:
        """Whether a longer target token begins with ``text``."""
        at = bisect_right(self._sorted, text)
        return at < len(self._sorted) and self._sorted[at].startswith(text)


prefixes = lru_cache(maxsize=8)(Prefixes)
"""``Prefixes`` of two vocabularies, kept for the pairs that were used last."""


def string_law(
    laws: NextLaws,
    table: Prefixes,
    target: Vocabulary,
    draft: Vocabulary,
    *,
    contexts: int | None,
    tokens: int | None,
    depth: int | None,
    least: float,
) -> NDArray[np.float64] | None:
    """The law of the first target token of what a draft model writes, float64 ``[target.size]``.

    Where a bound is reached, the text is taken to end there: the mass of a beginning goes to the longest token in it.
    Without bounds the law is exact, as the module says.

    Args:
        laws: what the draft model writes; asked once for each depth.
        table: of the two vocabularies.
        target: the vocabulary of what is written.
        draft: that of the model that writes.
        contexts: the most beginnings of each depth whose continuation is asked about, the most probable ones; None is
            all.
        tokens: the most tokens that are looked at behind each of them, the most probable ones; None is all.
        depth: how many tokens a beginning has at most; None is any number.
        least: the least probability of a beginning that is asked about.

    Returns:
        None where nothing can be said.  It may sum to less than 1: see the module.
    """
    first = laws([()])[0]
    if first is None:
        return None
    law = np.zeros(target.size)
    ends = target.eos[0] if target.eos else NONE
    stops = np.isin(first.ids, draft.eos)
    first_tokens = np.where(stops, ends, table.longest[first.ids])
    np.add.at(law, first_tokens[first_tokens >= 0], first.p[first_tokens >= 0])
    at = np.flatnonzero(table.open[first.ids] & (first.p > max(least, 0.0)))
    pending: dict[tuple[int, ...], float] = {(int(first.ids[index]),): float(first.p[index]) for index in at}
    while pending and (depth is None or len(next(iter(pending))) <= depth):
        ranked = sorted(pending.items(), key=lambda item: (-item[1], item[0]))[:contexts]
        told = laws([context for context, _ in ranked])
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
                    _move(law, so_far, found, mass * p)
                if token not in draft.eos and mass * p > least and table.is_open(longer):
                    pending[(*context, token)] = mass * p
    return np.maximum(law, 0.0)


def _move(law: NDArray[np.float64], source: int, target: int, mass: float) -> None:
    """Give mass from one token to another; it comes from nowhere, or goes there, where there is no token."""
    if source != NONE:
        law[source] -= mass
    if target != NONE:
        law[target] += mass


def _most_probable(law: TextLaw, count: int | None) -> list[tuple[int, float]]:
    order = np.flatnonzero(law.p)
    if count is not None and count < len(order):
        order = order[np.argsort(-law.p[order], kind="stable")[:count]]
    return [(int(law.ids[index]), float(law.p[index])) for index in order]

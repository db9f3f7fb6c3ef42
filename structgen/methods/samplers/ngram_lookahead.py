"""A twist for SMC: the probability under a byte n-gram model that text after a prefix stays in the language.

Source: the function is the ``h`` of Doob's transform; as a twist of particle filters, N. Whiteley and A. Lee, "Twisted
particle filters" (2014).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple, final

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from structgen.decode.sampling.branch import Branch
    from structgen.engine import Matcher, Vocabulary

__all__ = ["END", "Expectation", "Lookahead", "NGram"]

END: Final = 256
"""The symbol after the last byte."""


@final
class NGram:
    """Distributions of the next byte, or the end, given the ``order - 1`` bytes before; immutable.

    Counts of longer contexts are smoothed by those of shorter ones, and those of the empty context by the uniform
    distribution over 257 symbols, so that no symbol has probability zero.  Without texts it is uniform.

    Source: I. Witten and T. Bell, "The zero-frequency problem" (1991), for the smoothing.

    Args:
        texts: pairs of a text and its weight.
        order: length of the n-grams, the predicted byte included; at least 1.

    Raises:
        ValueError: ``order`` is below 1, or a weight is negative.

    Complexity: O(bytes * order) to make; distributions are cached.
    """

    def __init__(self, texts: Iterable[tuple[bytes, float]] = (), *, order: int = 3) -> None:
        if order < 1:
            raise ValueError(f"NGram: order must be at least 1; found {order!r}")
        self.order = order
        self._counts: dict[bytes, dict[int, float]] = {}
        for text, weight in texts:
            if weight < 0:
                raise ValueError(f"NGram: weights must not be negative; found {weight!r} for {text[:40]!r}")
            for position, symbol in enumerate((*text, END)):
                for length in range(min(order - 1, position) + 1):
                    row = self._counts.setdefault(text[position - length : position], {})
                    row[symbol] = row.get(symbol, 0.0) + weight
        self._distributions: dict[bytes, NDArray[np.float64]] = {}

    @classmethod
    def of_texts(cls, texts: Iterable[str | bytes], *, order: int = 3) -> NGram:
        """Fit to complete outputs, for instance to outputs of the model without a constraint."""
        return cls(((text.encode() if isinstance(text, str) else text, 1.0) for text in texts), order=order)

    @classmethod
    def of_vocabulary(cls, vocabulary: Vocabulary, *, order: int = 2) -> NGram:
        """Fit to the tokens of a vocabulary.

        The token with id ``i`` has weight ``1 / (i + 1)``: tokenizers number tokens in the order of merges, frequent
        ones first, and word frequencies fall about like this (Zipf's distribution).
        """
        return cls(((token, 1 / (index + 1)) for index, token in enumerate(vocabulary.tokens) if token), order=order)

    def __repr__(self) -> str:
        return f"<NGram of order {self.order}, {len(self._counts)} contexts>"

    def context(self, data: bytes) -> bytes:
        """The end of ``data`` that the next byte depends on."""
        return data[len(data) - min(len(data), self.order - 1) :]

    def distribution(self, context: bytes) -> NDArray[np.float64]:
        """Probabilities of the bytes and of ``END`` after ``context``, ``[257]``; read only."""
        cached = self._distributions.get(context)
        if cached is None:
            cached = self._distributions[context] = self._smoothed(context)
            cached.flags.writeable = False
        return cached

    def law(self, context: bytes) -> NDArray[np.float64]:
        """The old name of ``distribution``, for one release."""
        return self.distribution(context)

    def _smoothed(self, context: bytes) -> NDArray[np.float64]:
        distribution = np.full(257, 1 / 257)
        for start in range(len(context), -1, -1):
            row = self._counts.get(context[start:])
            if row is None:
                break
            total = sum(row.values())
            if not total:
                continue
            unseen = len(row) / (len(row) + total)  # the more different symbols followed, the likelier a new one is
            distribution = unseen * distribution
            for symbol, count in row.items():
                distribution[symbol] += (1 - unseen) * count / total
        return distribution


_UNKNOWN: Final = 0.0
"""Log of the expectation if the n-gram model gives zero, which must not block a prefix: log of 1."""


@final
@dataclass(frozen=True)
class Lookahead:
    """The settings of the look-ahead, and its model of text.

    Attributes:
        ngram: the model of text; ``NGram()`` is uniform, and so counts continuations.  It helps more the closer it is
            to the language model: fit it to outputs of the model without a constraint, or to earlier outputs.
        horizon: number of bytes to look ahead; a prefix that is still in the language then counts as 1.
        strength: power of the expectations: 1 trusts them, for a fitted model; 0 ignores them.  Too much trust makes
            weights unequal.
        width: number of most probable tokens that are evaluated one by one; the others get their mean.
        limit: maximum number of automaton states that are visited in a run; further states count as 1.

    Raises:
        ValueError: a number is out of range.
    """

    ngram: NGram = field(default_factory=NGram)
    horizon: int = 16
    strength: float = 0.5
    width: int = 32
    limit: int = 4096

    def __post_init__(self) -> None:
        if self.horizon < 1 or self.width < 1 or self.limit < 1:
            raise ValueError(f"Lookahead: horizon, width and limit must be at least 1; found {self!r}")
        if not 0 <= self.strength <= 1:
            raise ValueError(f"Lookahead: strength must be in [0, 1]; found {self.strength!r}")

    def start(self) -> Expectation:
        """See ``Twist``."""
        return Expectation(self)


@final
class Expectation:
    """The expectations of one run, a ``PrefixExpectation``; visited states and contexts are cached."""

    def __init__(self, lookahead: Lookahead) -> None:
        self._lookahead = lookahead
        self._ngram = lookahead.ngram
        self._edges: dict[int, _Edges | None] = {}  # by state; None beyond the limit
        self._matchers: dict[int, Matcher] = {}
        self._values: dict[tuple[int, bytes, int], float] = {}

    def log_h(self, branch: Branch) -> float:
        """See ``PrefixExpectation``: log of the expectation of an open branch, times ``strength``."""
        return self._log(branch.matcher, branch.hypothesis.data)

    def tilts(self, branch: Branch, ids: NDArray[np.intp], log_p: NDArray[np.float64]) -> NDArray[np.float64]:
        """See ``PrefixExpectation``: log of the expectation after each next token, ``[n]``."""
        tokens = branch.hypothesis.vocabulary.tokens
        width = min(self._lookahead.width, len(ids))
        head = np.argpartition(-log_p, width - 1)[:width] if width else np.arange(0)
        tilts = np.full(len(ids), np.nan)
        for index in head.tolist():
            data = tokens[int(ids[index])]
            if not data:  # EOS, or a special token
                tilts[index] = 0.0
                continue
            matcher = branch.matcher.fork()
            if matcher.accept_bytes(data) == len(data):
                tilts[index] = self._log(matcher, branch.hypothesis.data + data)
        evaluated = ~np.isnan(tilts)
        if not evaluated.any():
            return np.zeros(len(ids))
        mass = np.exp(log_p[evaluated] - log_p[evaluated].max())
        mean = float((mass * tilts[evaluated]).sum() / mass.sum()) if mass.sum() else 0.0
        return np.where(evaluated, tilts, mean)

    def _log(self, matcher: Matcher, data: bytes) -> float:
        if not self._lookahead.strength:
            return 0.0
        value = self._expect(matcher, self._ngram.context(data), self._lookahead.horizon)
        return self._lookahead.strength * math.log(value) if value > 0 else _UNKNOWN

    def _expect(self, matcher: Matcher, context: bytes, horizon: int) -> float:
        """The probability that text after ``context`` ends in the language, or is in it ``horizon`` bytes later."""
        state = matcher.state_id
        cached = self._values.get((state, context, horizon))
        if cached is not None:
            return cached
        self._matchers.setdefault(state, matcher.fork())
        layers = self._layers(state, context, horizon)
        for depth in range(len(layers) - 1, -1, -1):
            left = horizon - depth
            for at, before in layers[depth]:
                self._values[at, before, left] = self._value(at, before, left)
        return self._values[state, context, horizon]

    def _layers(self, state: int, context: bytes, horizon: int) -> list[list[tuple[int, bytes]]]:
        """States with contexts, by distance, whose values are not cached."""
        layers = [[(state, context)]]
        while len(layers) <= horizon:
            reached: dict[tuple[int, bytes], None] = {}
            left = horizon - len(layers)
            for at, before in layers[-1]:
                edges = self._edges_of(at)
                for byte, after in edges.after.items() if edges is not None else ():
                    following = after, self._ngram.context(before + bytes([byte]))
                    if left and (*following, left) not in self._values:
                        reached[following] = None
            if not reached:
                break
            layers.append(list(reached))
        return layers

    def _value(self, state: int, context: bytes, left: int) -> float:
        if not left:
            return 1.0
        edges = self._edges_of(state)
        if edges is None:
            return 1.0
        distribution = self._ngram.distribution(context)
        total = float(distribution[END]) if edges.may_end else 0.0
        for byte, after in edges.after.items():
            following = self._ngram.context(context + bytes([byte]))
            rest = 1.0 if left == 1 else self._values[after, following, left - 1]
            total += float(distribution[byte]) * rest
        return total

    def _edges_of(self, state: int) -> _Edges | None:
        if state in self._edges:
            return self._edges[state]
        edges: _Edges | None = None
        if len(self._edges) < self._lookahead.limit:
            matcher = self._matchers[state]
            edges = _Edges(matcher.is_accepting, {})
            for byte in matcher.live_bytes():
                follower = matcher.fork()
                if follower.accept_bytes(bytes([byte])):
                    edges.after[byte] = follower.state_id
                    self._matchers.setdefault(follower.state_id, follower)
        self._edges[state] = edges
        return edges


class _Edges(NamedTuple):
    """The transitions of a state.

    Attributes:
        may_end: whether the output may end in it.
        after: the state after each live byte.
    """

    may_end: bool
    after: dict[int, int]

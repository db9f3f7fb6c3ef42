"""Whether one language has every member of another, with a shortest one that it has not."""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Final, TypeAlias, final

from structgen.engine.byte_graph import byte_graphs
from structgen.engine.simulation import is_simulated

if TYPE_CHECKING:
    from structgen.engine.byte_graph import ByteGraph, ByteNode
    from structgen.grammar.limits import Limits
    from structgen.grammar.nodes import Grammar

__all__ = ["MOST_PAIRS", "Inclusion", "Witness", "compare"]

_Pair: TypeAlias = "tuple[int, int]"
_Step: TypeAlias = "tuple[_Pair, int]"

MOST_PAIRS: Final = 50_000
"""Pairs of states that a search looks at by default."""
_FIRST_PAIRS: Final = 2_000
"""Pairs after which a proof is tried that does not need all of them."""
_MOST_BYTES: Final = 128 << 20
"""What the engine may hold before a search is given up: in ambiguous languages, states grow with what was read."""
_LOOK_EVERY: Final = 64


@dataclass(frozen=True, slots=True)
class Witness:
    """A shortest member of one language that the other has not.

    Attributes:
        text: the member; special tokens are written by their names.
        offset: how many of its bytes some member of the other language begins with; its length where it only ends too
            soon for the other.
    """

    text: bytes
    offset: int

    @property
    def is_incomplete(self) -> bool:
        """Whether the other language has longer members that begin with it."""
        return self.offset == len(self.text)


@dataclass(frozen=True, slots=True)
class Inclusion:
    """What is known of whether a language has all members of another.

    Attributes:
        witness: a shortest member that it has not; None: none was found.
        checked_bytes: it has all members of at most so many bytes; None: it has all.
        pairs: how many pairs of states were looked at.
    """

    witness: Witness | None
    checked_bytes: int | None
    pairs: int

    @property
    def holds(self) -> bool | None:
        """Whether it has them all; None: not known."""
        if self.witness is not None:
            return False
        return True if self.checked_bytes is None else None


def compare(
    old: Grammar,
    new: Grammar,
    *,
    max_bytes: int | None = None,
    max_pairs: int = MOST_PAIRS,
    limits: Limits | None = None,
) -> tuple[Inclusion, Inclusion]:
    """Say whether ``new`` has all members of ``old``, and whether ``old`` has all of ``new``.

    The pairs of states that a text leads to are searched, those first that are on the way to the shortest members, each
    pair once.  Where there are finitely many, the answer is certain; so it is for all regular languages, and for
    others where what differs is regular, for a pair of equal states is not looked into.  It is certain, too, where the
    rules of the one can be followed step by step in those of the other (``is_simulated``).  Otherwise the search ends
    at ``max_pairs`` or ``max_bytes``, and says up to which length it is certain.  It cannot do better: whether one
    context-free language has all members of another is undecidable.

    Args:
        old: a closed term.
        new: a closed term.
        max_bytes: the length of the longest members that are compared; None: no bound.
        max_pairs: bounds each of the two searches, which also end where their states take too much memory.
        limits: for the compilation.

    Raises:
        UnsatisfiableGrammar, LimitExceeded, GrammarError: as ``byte_graphs``.

    Complexity: O(p * b) for p pairs and b blocks of bytes that some state tells apart.

    Source: J. E. Hopcroft, R. M. Karp, "A linear algorithm for testing equivalence of finite automata" (1971), for the
    search over pairs; P. E. Hart, N. J. Nilsson, B. Raphael (1968) for its order.
    """
    one, other = byte_graphs(old, new, limits=limits)
    return _compared(one, other, max_bytes, max_pairs), _compared(other, one, max_bytes, max_pairs)


def _compared(one: ByteGraph, other: ByteGraph, max_bytes: int | None, max_pairs: int) -> Inclusion:
    search = _Search(one, other)
    found = search.run(max_bytes, min(max_pairs, _FIRST_PAIRS))
    if found.holds is None and is_simulated(one.constraint, other.constraint):
        return Inclusion(None, None, found.pairs)
    return search.run(max_bytes, max_pairs) if found.holds is None else found


@final
class _Search:
    """Looks for a shortest member of ``these`` that is none of ``those``."""

    def __init__(self, these: ByteGraph, those: ByteGraph) -> None:
        self.these, self.those = these, those
        # A pair is known by the numbers of its nodes, -1 for none.  With it, how much was read on the shortest way that
        # was found to it, and the last step of that way.
        self.found: dict[_Pair, tuple[int, _Step | None]] = {}
        self.done: set[_Pair] = set()
        self.waiting: list[tuple[int, int, ByteNode, ByteNode | None]] = []
        self.order = 0

        self._meet(these.start, those.start, 0, None)

    def run(self, max_bytes: int | None, max_pairs: int) -> Inclusion:
        """Search until the answer is certain or a bound is reached; it may be called again with wider ones."""
        while self.waiting:
            least, _, mine, theirs = self.waiting[0]  # shorter members are known to be shared
            pair = _pair(mine, theirs)
            if pair not in self.done:
                if max_bytes is not None and least > max_bytes:
                    return Inclusion(None, max_bytes, len(self.done))
                is_look = len(self.done) % _LOOK_EVERY == 0
                if len(self.done) >= max_pairs or (is_look and self.these.constraint.engine_bytes > _MOST_BYTES):
                    return Inclusion(None, least - 1, len(self.done))
            heappop(self.waiting)
            if pair in self.done:
                continue
            self.done.add(pair)
            if theirs is None or (mine.is_accepting and not theirs.is_accepting):
                return Inclusion(self._witness(mine, theirs), None, len(self.done))
            those = self.those.successors(theirs)
            read = self.found[pair][0] + 1
            for label, after in self.these.successors(mine).items():
                self._meet(after, those.get(label), read, (pair, label))
        return Inclusion(None, None, len(self.done))

    def _meet(self, mine: ByteNode, theirs: ByteNode | None, read: int, step: _Step | None) -> None:
        pair = _pair(mine, theirs)
        if pair[0] == pair[1] or (pair in self.found and self.found[pair][0] <= read):
            return
        self.found[pair] = read, step
        self.order += 1
        heappush(self.waiting, (read + mine.distance, self.order, mine, theirs))

    def _witness(self, mine: ByteNode, theirs: ByteNode | None) -> Witness:
        pair = _pair(mine, theirs)
        symbols: list[int] = []
        while (step := self.found[pair][1]) is not None:
            pair, label = step
            symbols.append(self.these.likely(label)[0] if label >= 0 else label)
        symbols.reverse()
        shared = len(symbols) - (theirs is None)
        if theirs is None:
            symbols += mine.shortest_completion()
        written = [bytes([symbol]) if symbol >= 0 else self.these.special[-1 - symbol].encode() for symbol in symbols]
        return Witness(b"".join(written), len(b"".join(written[:shared])))


def _pair(mine: ByteNode, theirs: ByteNode | None) -> _Pair:
    return mine.number, -1 if theirs is None else theirs.number

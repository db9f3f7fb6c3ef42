"""The basis of monitors: potentials that read each byte once, and an index from byte strings to tokens."""

from __future__ import annotations

import math
import weakref
from abc import abstractmethod
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Final, Generic, TypeVar, final

import numpy as np
from numpy.typing import NDArray

from structgen.decode.potentials.potential import Potential
from structgen.engine.mask import pack

if TYPE_CHECKING:
    from structgen.decode.potentials.potential import Hypothesis
    from structgen.engine import Vocabulary

__all__ = ["BytewisePotential", "Options", "TokenIndex", "successor", "token_index"]

StateT = TypeVar("StateT")

_MAX_STATES: Final = 4096
_MAX_LOOKBACK: Final = 64


class BytewisePotential(Potential, Generic[StateT]):
    """A potential with a state for each output: None forbids, and every other state allows.

    A subclass defines the first state and the state after more bytes. States must be immutable: sequences with a common
    prefix share them.

    Complexity: O(new bytes) for each token while the states of its prefixes are cached; the last 4096 are.
    """

    sees = "bytes"

    def __init__(self) -> None:
        self._states: OrderedDict[bytes, StateT | None] = OrderedDict()

    @abstractmethod
    def _begin(self) -> StateT | None:
        """The state of an empty output."""

    @abstractmethod
    def _read(self, state: StateT, data: bytes, start: int) -> StateT | None:
        """The state after ``data``, from that after ``data[:start]``; the split of the bytes must not matter."""

    @abstractmethod
    def _may_end(self, state: StateT, data: bytes) -> bool:
        """Whether the output may end."""

    def prefix(self, hypothesis: Hypothesis, /) -> float:
        """See ``Potential``."""
        return -math.inf if self._at(hypothesis) is None else 0.0

    def complete(self, hypothesis: Hypothesis, /) -> float:
        """See ``Potential``."""
        state = self._at(hypothesis)
        return 0.0 if state is not None and self._may_end(state, hypothesis.data) else -math.inf

    def _at(self, hypothesis: Hypothesis) -> StateT | None:
        """The state after the bytes of ``hypothesis``."""
        data, states = hypothesis.data, self._states
        if data in states:
            states.move_to_end(data)
            return states[data]
        start = self._longest_cached(hypothesis)
        state = self._begin() if start is None else states[data[:start]]
        if state is not None and (start or 0) < len(data):
            state = self._read(state, data, start or 0)
        states[data] = state
        if len(states) > _MAX_STATES:
            states.popitem(last=False)
        return state

    def _longest_cached(self, hypothesis: Hypothesis) -> int | None:
        """The length of the longest prefix of whole tokens whose state is cached; None if there is none."""
        data, tokens, end = hypothesis.data, hypothesis.vocabulary.tokens, len(hypothesis.data)
        for token in hypothesis.tokens[: -_MAX_LOOKBACK - 1 : -1]:
            end -= len(tokens[token])
            if data[:end] in self._states:
                return end
        return None


@final
class Options:
    """A sorted set of byte strings.

    Args:
        members: the strings, in any order, with or without duplicates.
    """

    __slots__ = ("_members", "members")

    def __init__(self, members: Iterable[bytes]) -> None:
        self._members = frozenset(members)
        self.members = tuple(sorted(self._members))

    def __len__(self) -> int:
        return len(self.members)

    def __contains__(self, option: object) -> bool:
        return option in self._members

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Options) and self._members == other._members

    def __hash__(self) -> int:
        return hash(self._members)  # a frozenset caches its hash

    def begins(self, prefix: bytes) -> bool:
        """Whether some option has this prefix; O(log n)."""
        index = bisect_left(self.members, prefix)
        return index < len(self.members) and self.members[index].startswith(prefix)

    def after(self, prefix: bytes) -> Iterator[bytes]:
        """The remainder of each option with this prefix."""
        for index in range(bisect_left(self.members, prefix), len(self.members)):
            if not self.members[index].startswith(prefix):
                return
            yield self.members[index][len(prefix) :]


def successor(prefix: bytes) -> bytes | None:
    """The smallest byte string greater than all strings with this prefix; None if there is none."""
    stripped = prefix.rstrip(b"\xff")
    return stripped[:-1] + bytes([stripped[-1] + 1]) if stripped else None


_FEW: Final = 64


@final
class TokenIndex:
    """Tokens indexed by their bytes.

    Mask rows are int32 words as a matcher writes them. Special tokens without bytes are always allowed; EOS ids are
    allowed as each method says.

    Args:
        vocabulary: the tokens.
        fold: whether ASCII letters are folded to lower case.
    """

    def __init__(self, vocabulary: Vocabulary, *, fold: bool = False) -> None:
        tokens = [token.lower() for token in vocabulary.tokens] if fold else list(vocabulary.tokens)
        order = sorted(range(len(tokens)), key=tokens.__getitem__)
        self._size = len(tokens)
        self._eos = list(vocabulary.eos)
        self._ids = np.array(order, dtype=np.intp)
        self._keys = [tokens[token] for token in order]
        self._longest = max(map(len, self._keys), default=0)
        self._silent = bisect_left(self._keys, b"\0")

    def choices(
        self, rests: Iterable[bytes], boundary: Callable[[bytes], NDArray[np.bool_]], *, ends: bool, escape: bytes = b""
    ) -> NDArray[np.int32]:
        """Return the mask of tokens that continue one of ``rests``, or complete it and continue with a boundary byte.

        Args:
            rests: the possible remainders of the text.
            boundary: the bytes that may follow a rest, bool ``[256]``.
            ends: whether the output may end here.
            escape: a byte that may replace any other; the bytes after it are not checked.

        Complexity: O(bytes of the rests up to the longest token, times log V).
        """
        bits = np.zeros(self._size, dtype=np.bool_)
        seen: set[bytes] = set()
        for rest in rests:
            for length in range(min(len(rest), self._longest) + 1):
                prefix = rest[:length]
                if prefix in seen:
                    continue
                seen.add(prefix)
                low, high = self._range(prefix)
                if low == high:
                    break  # no token has this prefix or a longer one
                if length:
                    bits[self._ids[low : self._end_of(prefix, low)]] = True
                if escape and length < len(rest):
                    bits[self._ids[slice(*self._range(prefix + escape))]] = True
            if len(rest) < self._longest:
                bits[self._followed(rest, boundary(rest))] = True
        return self._row(bits, ends=ends)

    def without(self, prefixes: Iterable[bytes]) -> NDArray[np.int32]:
        """Return the mask of tokens that begin with none of these; EOS is allowed."""
        bits = np.ones(self._size, dtype=np.bool_)
        for prefix in prefixes:
            bits[self._ids[slice(*self._range(prefix))]] = False
        return self._row(bits, ends=True)

    def _followed(self, rest: bytes, boundary: NDArray[np.bool_]) -> NDArray[np.intp]:
        """The tokens that begin with ``rest`` and a byte of ``boundary``."""
        low, high = self._range(rest)
        if high - low <= _FEW:
            end = len(rest)
            followed = [at for at in range(low, high) if len(self._keys[at]) > end and boundary[self._keys[at][end]]]
            return self._ids[followed]
        parts = [self._range(rest + bytes([byte])) for byte in np.flatnonzero(boundary)]
        return self._ids[np.concatenate([np.arange(*part) for part in parts])] if parts else self._ids[:0]

    def _end_of(self, token: bytes, low: int) -> int:
        """The end of the ids of one token, which come first among tokens with its prefix; several ids may have it."""
        end = low
        while end < len(self._keys) and self._keys[end] == token:
            end += 1
        return end

    def _range(self, prefix: bytes) -> tuple[int, int]:
        after = successor(prefix)
        low = bisect_left(self._keys, prefix)
        return low, len(self._keys) if after is None else bisect_left(self._keys, after, low)

    def _row(self, bits: NDArray[np.bool_], *, ends: bool) -> NDArray[np.int32]:
        bits[self._ids[: self._silent]] = True
        bits[self._eos] = ends
        return pack(bits[: self._size])


_INDEXES: Final[weakref.WeakKeyDictionary[Vocabulary, dict[bool, TokenIndex]]] = weakref.WeakKeyDictionary()


def token_index(vocabulary: Vocabulary, *, fold: bool = False) -> TokenIndex:
    """Return the index of a vocabulary's tokens; built once."""
    indexes = _INDEXES.setdefault(vocabulary, {})
    if fold not in indexes:
        indexes[fold] = TokenIndex(vocabulary, fold=fold)
    return indexes[fold]

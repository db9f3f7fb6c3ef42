"""A regular expression as an automaton over single bytes, whose states are made when they are reached."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final, final

import numpy as np
from numpy.typing import NDArray

from structgen.engine import Vocabulary, compile
from structgen.frontends.regex import regex

if TYPE_CHECKING:
    from structgen.engine import Matcher

__all__ = ["LazyAutomaton", "LazyState", "rest_of_character"]

_CONTINUATION: Final = (0x80, 0xBF)
_MAX_STATES: Final = 1 << 16


@final
class LazyState:
    """A state: what has been read so far can still become a member.

    Attributes:
        is_accepting: what has been read is a member.
    """

    __slots__ = ("_automaton", "_boundary", "_matcher", "_next", "is_accepting")

    def __init__(self, automaton: LazyAutomaton, matcher: Matcher) -> None:
        self._automaton = automaton
        self._matcher = matcher
        self._next: dict[int, LazyState | None] = {}
        self._boundary: NDArray[np.bool_] | None = None
        self.is_accepting = matcher.is_accepting

    def after(self, data: bytes) -> LazyState | None:
        """Return the state after more bytes; None where nothing that begins so is a member."""
        node: LazyState | None = self
        for byte in data:
            if node is None:
                return None
            node = node._next[byte] if byte in node._next else node._step(byte)
        return node

    def may_refuse(self, beginning: bytes) -> bool:
        """Whether some character that begins with these bytes leads to no state; False if no character does.

        Complexity: O(states that the character's bytes lead to), 64 bytes each.
        """
        rest = rest_of_character(beginning)
        if rest is None:
            return False
        node = self.after(beginning)
        level = {node}
        for low, high in rest:
            if None in level:
                return True
            level = {each.after(bytes([byte])) for each in level if each for byte in range(low, high + 1)}
        return None in level

    @property
    def boundary(self) -> NDArray[np.bool_]:
        """With which bytes a character may begin that leads to no state, ``[256]``."""
        if self._boundary is None:
            self._boundary = np.array([self.may_refuse(bytes([byte])) for byte in range(256)])
        return self._boundary

    def _step(self, byte: int) -> LazyState | None:
        matcher = self._matcher.fork()
        found = self._automaton.node(matcher) if matcher.accept(byte) else None
        self._next[byte] = found
        return found


@final
class LazyAutomaton:
    """Makes the states of a regular expression.

    Args:
        pattern: in Python's dialect.

    Attributes:
        start: the state of which nothing has been read.

    Raises:
        GrammarError: the pattern is wrong, or not a regular one.
    """

    def __init__(self, pattern: str) -> None:
        self._nodes: dict[int | None, LazyState] = {}
        self.start = self.node(compile(regex(pattern), _bytes()).matcher())

    def node(self, matcher: Matcher) -> LazyState:
        """Return the state that ``matcher`` is in; it must not move any more."""
        # Unlike the number of a state it is not given again when the engine has forgotten its states.
        number = matcher.mask_id
        known = self._nodes.get(number)
        if known is None:
            if len(self._nodes) >= _MAX_STATES:
                self._nodes.clear()  # those that are in use stay where they are
            known = self._nodes[number] = LazyState(self, matcher)
        return known


def rest_of_character(beginning: bytes) -> tuple[tuple[int, int], ...] | None:
    """The ranges of the bytes that are missing to a character of UTF-8; None if no character begins so.

    ``beginning`` has at least one byte, and all but its last are the beginning of a character.
    """
    first, count = beginning[0], len(beginning)
    if first < 0x80:
        return () if count == 1 else None
    if not 0xC2 <= first <= 0xF4:
        return None
    second = {0xE0: (0xA0, 0xBF), 0xED: (0x80, 0x9F), 0xF0: (0x90, 0xBF), 0xF4: (0x80, 0x8F)}.get(first, _CONTINUATION)
    length = 2 if first < 0xE0 else 3 if first < 0xF0 else 4
    ranges = (second, *[_CONTINUATION] * (length - 2))
    if count > length or not all(low <= byte <= high for byte, (low, high) in zip(beginning[1:], ranges, strict=False)):
        return None
    return ranges[count - 1 :]


@lru_cache(maxsize=1)
def _bytes() -> Vocabulary:
    return Vocabulary([bytes([byte]) for byte in range(256)])

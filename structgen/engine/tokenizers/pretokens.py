"""Where a tokenizer may split a text, decided byte by byte: an automaton over texts with their splits.

A *reading* is one choice of all splits so far.  It holds, for each stage of the pre-tokenizer, the threads of the open
piece in the order of priority, and the *debts*: threads of earlier pieces with a higher priority than the match that
was chosen, which must never match.  A reading is right iff its piece ends with a match and no debt was called.  Since a
token never reaches beyond a piece, splits are chosen only before tokens.

Sets of readings are numbered; 0 is the empty set, which nothing can follow.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from structgen.engine.tokenizers.split_pattern import CHARACTER, LOOK, SPLIT, Program, unsupported

__all__ = ["NOTHING", "START", "Place", "Pretokens", "Stage", "TokenShapes"]

NOTHING: Final = 0
_START: Final = 1

_END: Final = -1
_GAP: Final = (-1,)
_MAX_SETS: Final = 20_000

_Threads: TypeAlias = tuple[int, ...]


class _StageState(NamedTuple):
    piece: _Threads | None  # None before the first character; _GAP in text that no match covers
    debts: frozenset[int]


_Reading: TypeAlias = tuple[_StageState, ...]


class Place(NamedTuple):
    """The state after tokens, as far as splits decide what may follow.

    Attributes:
        readings: the number of the set of readings; within a character, of those in which a piece begins with it.
        joined: within a character, the number of the readings in which it continues the open piece.
        partial: the bytes so far of a character that is not complete.
    """

    readings: int
    joined: int = 0
    partial: bytes = b""


START: Final = Place(_START)
_FRESH: Final = _StageState(None, frozenset())


@final
class Stage:
    """One pattern, over classes of characters.

    Args:
        program: the pattern.
        holds: whether a set holds a class, ``[sets, classes]``.
    """

    def __init__(self, program: Program, holds: NDArray[np.bool_]) -> None:
        self._program = program
        self._holds = holds.tolist()
        self._classes = holds.shape[1]
        self._closures: dict[tuple[_Threads, int], tuple[_Threads, bool]] = {}
        self._is_due: dict[int, bool] = {}

    def ends(self, state: _StageState) -> bool:
        """Whether the text may end in a state."""
        if state.debts and self._closure(tuple(sorted(state.debts)), _END, cut=False)[1]:
            return False
        return state.piece is None or state.piece == _GAP or self._closure(state.piece, _END)[1]

    def read(self, state: _StageState, character: int, *, splits: bool) -> list[_StageState]:
        """Return the states after a character of a class; ``splits`` if a piece begins with it."""
        debts: set[int] = set()
        if state.debts:
            threads, is_called = self._closure(tuple(sorted(state.debts)), character, cut=False)
            if is_called:
                return []
            debts.update(self._step(threads, character))
        piece = state.piece
        begins = self._closure((self._program.start,), character)[0]
        if not splits:
            if piece is None:
                return []
            if piece == _GAP:
                debts.update(self._step(begins, character))
                return self._checked([(_GAP, debts)])
            return self._checked([(self._step(self._closure(piece, character)[0], character), debts)])
        if piece is not None and piece != _GAP:
            threads, has_match = self._closure(piece, character)
            if not has_match:
                return []
            debts.update(self._step(threads, character))
        opened = self._step(begins, character)
        found: list[tuple[_Threads, set[int]]] = [(opened, debts)]
        if piece != _GAP and self._program.keeps_gaps:
            found.append((_GAP, debts | set(opened)))
        return self._checked(found)

    def _checked(self, found: list[tuple[_Threads, set[int]]]) -> list[_StageState]:
        return [
            _StageState(piece, frozenset(debts))
            for piece, debts in found
            if piece and not any(self._matches_anyway(thread) for thread in debts)
        ]

    def _matches_anyway(self, thread: int) -> bool:
        known = self._is_due.get(thread)
        if known is None:
            ahead = range(_END, self._classes)
            known = self._is_due[thread] = all(self._closure((thread,), each, cut=False)[1] for each in ahead)
        return known

    def _step(self, threads: _Threads, character: int) -> _Threads:
        code, holds = self._program.code, self._holds
        passed = (code[at][2] for at in threads if holds[code[at][1]][character])
        return tuple(dict.fromkeys(passed))

    def _closure(self, threads: _Threads, ahead: int, *, cut: bool = True) -> tuple[_Threads, bool]:
        """Return the threads that wait for a character, and whether one matches before ``ahead``.

        With ``cut`` those after the first match are left out, since they have a lower priority.
        """
        key = threads, ahead if cut else ahead - self._classes - 1
        known = self._closures.get(key)
        if known is not None:
            return known
        code, holds = self._program.code, self._holds
        waiting: list[int] = []
        has_match = False
        seen: set[int] = set()
        stack = list(reversed(threads))
        while stack:
            at = stack.pop()
            if at in seen:
                continue
            seen.add(at)
            kind, *rest = code[at]
            if kind == SPLIT:
                stack += (rest[1], rest[0])
            elif kind == LOOK:
                is_there = ahead != _END and holds[rest[0]][ahead]
                if is_there != bool(rest[2]):
                    stack.append(rest[1])
            elif kind == CHARACTER:
                waiting.append(at)
            else:  # MATCH
                has_match = True
                if cut:
                    break
        known = self._closures[key] = tuple(waiting), has_match
        return known


@final
class TokenShapes:
    """Each token as the automaton reads it: the classes of its characters, and the bytes of incomplete ones.

    Attributes:
        of_token: the shape of each token, ``[V]``; 0 for tokens that are no text.
        shapes: the classes of the characters of each shape from 1 on, and the bytes of an incomplete character.
    """

    def __init__(self, tokens: Sequence[bytes], class_of: NDArray[np.uint8]) -> None:
        self._class_of = class_of
        self._of_ascii = bytes(class_of[:0x80].tolist()) + bytes(0x80)
        self.shapes: dict[tuple[bytes, bytes], int] = {}
        self.tails: dict[int, bytes] = {}  # tokens that begin within a character
        self.rests: dict[int, tuple[bytes, bool]] = {}  # incomplete characters; whether there is no other
        self.of_token = np.zeros(len(tokens), dtype=np.int32)
        for token, data in enumerate(tokens):
            if not data:
                continue
            if 0x80 <= data[0] < 0xC0:
                self.tails[token] = data
            shape = self.read(data)
            if shape is not None:
                self.of_token[token] = self.shapes.setdefault(shape, len(self.shapes) + 1)
                if shape[1]:
                    self.rests[token] = shape[1], not shape[0]

    def read(self, data: bytes) -> tuple[bytes, bytes] | None:
        """Return the classes of the characters, and the bytes of an incomplete one; None if it is no UTF-8."""
        if data.isascii():
            return data.translate(self._of_ascii), b""
        try:
            text, rest = data.decode(), b""
        except UnicodeDecodeError as error:
            if error.end != len(data) or "unexpected end" not in error.reason:
                return None
            text, rest = data[: error.start].decode(), data[error.start :]
        return self._class_of[list(map(ord, text))].tobytes(), rest


@final
class Pretokens:
    """The automaton.

    Args:
        stages: the patterns, each applied to the pieces of the one before.
        class_of: the class of each code point.
        tokens: the bytes of each token.

    Attributes:
        shapes: what it reads of each token.
        class_count: how many classes of characters there are.
    """

    def __init__(self, stages: Sequence[Stage], class_of: NDArray[np.uint8], tokens: Sequence[bytes]) -> None:
        self._stages = tuple(stages)
        self._tokens = tokens
        self.shapes: Final = TokenShapes(tokens, class_of)
        self.class_count: Final = int(class_of.max()) + 1
        self._lock = threading.Lock()
        self._numbers: dict[_Reading, int] = {}
        self._readings: list[_Reading] = []
        self._set_numbers: dict[frozenset[int], int] = {}
        self._sets: list[frozenset[int]] = []
        self._moves: dict[tuple[int, int, bool], tuple[int, ...]] = {}
        self._set_moves: dict[tuple[int, int, bool], int] = {}
        self._unions: dict[tuple[int, int], int] = {}
        self._free: dict[int, bytes] = {}
        self._set([])
        self._set([self._number(tuple(_FRESH for _ in stages))])
        self._led = _classes_by_lead(class_of)

    def ends(self, place: Place) -> bool:
        """Whether the text may end."""
        return not place.partial and any(self._ends(self._readings[each]) for each in self._sets[place.readings])

    def after(self, place: Place, token: int, *, joins: bool) -> Place | None:
        """Return the place after a token; None for none.

        ``joins`` is whether it may be in one piece with the token before it.
        """
        if place.partial:
            return self._after_tail(place, token) if joins else None
        split = self._after(place.readings, token, splits=True)
        joined = self._after(place.readings, token, splits=False) if joins else NOTHING
        rest = self.shapes.rests.get(token)
        if split == joined == NOTHING:
            return None
        if rest is None:
            return Place(self.union(split, joined))
        data, is_all = rest
        return Place(split, joined, data) if is_all else Place(NOTHING, self.union(split, joined), data)

    def _after(self, readings: int, token: int, *, splits: bool) -> int:
        shape = self.shapes.read(self._tokens[token])
        if shape is None or not self._tokens[token]:
            return NOTHING
        if not shape[0] and not splits:
            return self._set(each for each in self._sets[readings] if self._is_open(each))
        for index, each in enumerate(shape[0]):
            readings = self.read(readings, each, splits=splits and index == 0)
        return readings

    def going_on(self, place: Place) -> list[int]:
        """Return the tokens that continue an incomplete character."""
        return [token for token in self.shapes.tails if self._after_tail(place, token) is not None]

    def union(self, one: int, other: int) -> int:
        """Return the number of the readings of two sets."""
        if NOTHING in (one, other) or one == other:
            return one or other
        key = one, other
        if key not in self._unions:
            self._unions[key] = self._set(self._sets[one] | self._sets[other])
        return self._unions[key]

    def free_bytes(self, place: Place) -> bytes:
        """Return bytes before which the text can be split so that anything may follow: every text that begins with one.

        There a reading is among those of a new text, so the canonical tokens of what follows are allowed.
        """
        readings = place.readings
        known = b"" if place.partial else self._free.get(readings)
        if known is None:
            free = {each for each in range(self.class_count) if self._is_free(readings, each)}
            known = bytes(byte for byte, classes in enumerate(self._led) if classes and classes <= free)
            self._free[readings] = known
        return known

    def _is_free(self, readings: int, character: int) -> bool:
        anew = self._sets[self.read(_START, character, splits=True)]
        return anew <= self._sets[self.read(readings, character, splits=True)]

    def is_open(self, place: Place) -> bool:
        """Whether a piece is open, which the next character may belong to."""
        return any(map(self._is_open, self._sets[place.readings]))

    def _is_open(self, reading: int) -> bool:
        return self._readings[reading][0].piece is not None

    def _after_tail(self, place: Place, token: int) -> Place | None:
        """The place after a token that continues an incomplete character."""
        data = self.shapes.tails.get(token)
        shape = None if data is None else self.shapes.read(place.partial + data)
        if shape is None:
            return None
        classes, rest = shape
        if not classes:
            return place._replace(partial=rest)
        split, joined = place.readings, place.joined
        for index, each in enumerate(classes):
            split = self.read(split, each, splits=index == 0)
            joined = self.read(joined, each, splits=False)
        readings = self.union(split, joined)
        if readings == NOTHING:
            return None
        return Place(NOTHING, readings, rest) if rest else Place(readings)

    def read(self, readings: int, character: int, *, splits: bool) -> int:
        """Return the readings after a character of a class; ``splits`` if a piece begins with it."""
        key = readings, character, splits
        known = self._set_moves.get(key)
        if known is None:
            found = (after for each in self._sets[readings] for after in self._move(each, character, splits=splits))
            known = self._set_moves[key] = self._set(found)
        return known

    def _move(self, reading: int, character: int, *, splits: bool) -> tuple[int, ...]:
        key = reading, character, splits
        known = self._moves.get(key)
        if known is None:
            found: dict[int, None] = {}
            for first in range(len(self._stages)) if splits else (len(self._stages),):
                for stages in self._choices(self._readings[reading], character, first):
                    found[self._number(stages)] = None
            known = self._moves[key] = tuple(found)
        return known

    def _choices(self, before: Sequence[_StageState], character: int, first: int) -> list[tuple[_StageState, ...]]:
        """The states after a character, with a split in stage ``first``: the stages after it start again."""
        choices: list[tuple[_StageState, ...]] = [()]
        for index, (stage, state) in enumerate(zip(self._stages, before, strict=True)):
            if index > first:
                if not stage.ends(state):
                    return []
                state = _FRESH  # noqa: PLW2901
            after = stage.read(state, character, splits=index >= first)
            choices = [(*each, new) for each in choices for new in after]
        return choices

    def _ends(self, reading: _Reading) -> bool:
        states = zip(self._stages, reading, strict=True)
        return all(stage.ends(state) for stage, state in states)

    def _number(self, reading: _Reading) -> int:
        with self._lock:
            number = self._numbers.setdefault(reading, len(self._readings))
            if number == len(self._readings):
                self._readings.append(reading)
            return number

    def _set(self, readings: Iterable[int]) -> int:
        key = frozenset(readings)
        with self._lock:
            number = self._set_numbers.setdefault(key, len(self._sets))
            if number == len(self._sets):
                if number >= _MAX_SETS:
                    raise unsupported("its split pattern has too many states", evidence=f"more than {_MAX_SETS}")
                self._sets.append(key)
            return number


def _classes_by_lead(class_of: NDArray[np.uint8]) -> list[frozenset[int]]:
    """For each byte, the classes of the characters whose UTF-8 begins with it."""
    led = [frozenset({int(each)}) for each in class_of[:0x80]] + [frozenset[int]()] * 0x80
    for lead in range(0xC2, 0xF5):
        if lead < 0xE0:
            low, high = (lead & 0x1F) << 6, ((lead & 0x1F) << 6) + 0x40
        elif lead < 0xF0:
            low, high = (lead & 0xF) << 12, ((lead & 0xF) << 12) + 0x1000
        else:
            low, high = (lead & 7) << 18, min(((lead & 7) << 18) + 0x40000, 0x110000)
        inside = np.unique(class_of[max(low, _FIRST_OF.get(lead, 0)) : high])
        led[lead] = frozenset(int(each) for each in inside)
    return led


_FIRST_OF: Final = {0xE0: 0x800, 0xF0: 0x10000}

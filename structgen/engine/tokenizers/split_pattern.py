r"""The regular expressions that split a text before byte pairs are merged, as programs with priorities.

A pattern is matched as the tokenizer's library matches it: from left to right, the first alternative that succeeds,
each repetition as often as possible.  Read are literals, classes, groups, ``(?i:...)``, alternatives, greedy
repetitions, and look-aheads at one class.  The library itself says which characters a class holds, so Unicode versions
agree.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final, NoReturn, TypeAlias, final

from structgen.errors import ArgumentError

__all__ = ["CHARACTER", "LOOK", "MATCH", "SPLIT", "Program", "read_pattern", "unsupported"]

CHARACTER, SPLIT, LOOK, MATCH = range(4)
_Node: TypeAlias = tuple[str, tuple[object, ...]]
_SIMPLE: Final = re.compile(r"\\(?:[pP]\{\^?\w+\}|[sSdDwWrntfv]|[^\w])")
_COUNTS: Final = re.compile(r"\{(\d+)(,?)(\d*)\}")
_MAX_COUNT: Final = 64
_PLAIN_GROUPS: Final = {"(?:": "", "(?i:": "i"}


def unsupported(problem: str, evidence: str = "") -> ArgumentError:
    """Make the error for a tokenizer whose canonical tokens are not decided exactly."""
    return ArgumentError(
        "canonical",
        f"the tokenizer's canonical tokens cannot be decided exactly: {problem}",
        evidence=evidence,
        remedy="leave out canonical=True for this model",
    )


@final
@dataclass
class Program:
    """A pattern as instructions.

    Attributes:
        code: instructions, by their place: ``(CHARACTER, set, next)``, ``(SPLIT, first, second)`` in the order of
            priority, ``(LOOK, set, next, negated)`` at the next character, and ``(MATCH,)``.
        sets: the classes of characters, as patterns of one character.
        start: the first instruction.
        keeps_gaps: whether text between matches is kept, as a piece of its own; otherwise it is lost.
    """

    code: list[tuple[int, ...]] = field(default_factory=list)
    sets: list[str] = field(default_factory=list)
    start: int = 0
    keeps_gaps: bool = True

    def add(self, *instruction: int) -> int:
        """Add an instruction and return its place."""
        self.code.append(instruction)
        return len(self.code) - 1


def read_pattern(pattern: str, *, keeps_gaps: bool) -> Program:
    """Compile a pattern.

    Raises:
        ArgumentError: it has a construct that is not read, or it matches the empty text.
    """
    reader = _Reader(pattern)
    node = reader.alternatives("")
    if reader.at < len(pattern):
        reader.refuse("an unmatched parenthesis")
    program = Program(sets=reader.sets, keeps_gaps=keeps_gaps)
    if _is_nullable(node):
        raise unsupported("its pattern matches the empty text", evidence=f"the pattern is {pattern!r:.120}")
    program.start = _emit(program, node, program.add(MATCH))
    return program


def _is_nullable(node: _Node) -> bool:
    kind, parts = node
    if kind == "or":
        return any(_is_nullable(part) for part in parts)  # type: ignore[arg-type]
    if kind == "and":
        return all(_is_nullable(part) for part in parts)  # type: ignore[arg-type]
    if kind == "repeat":
        return parts[1] == 0 or _is_nullable(parts[0])  # type: ignore[arg-type]
    return kind == "look"


def _emit(program: Program, node: _Node, after: int) -> int:
    """Add the instructions of a node before the instruction ``after``; return the first."""
    kind, parts = node
    if kind == "set":
        return program.add(CHARACTER, int(parts[0]), after)  # type: ignore[call-overload]
    if kind == "look":
        return program.add(LOOK, int(parts[0]), after, int(parts[1]))  # type: ignore[call-overload]
    if kind == "and":
        for part in reversed(parts):
            after = _emit(program, part, after)  # type: ignore[arg-type]
        return after
    if kind == "or":
        places = [_emit(program, part, after) for part in parts]  # type: ignore[arg-type]
        first = places[-1]
        for place in reversed(places[:-1]):
            first = program.add(SPLIT, place, first)
        return first
    body, least, most = parts
    if most is None:
        loop = program.add(SPLIT, 0, after)
        program.code[loop] = (SPLIT, _emit(program, body, loop), after)  # type: ignore[arg-type]
        after = loop
    else:
        end = after
        for _ in range(int(most) - int(least)):  # type: ignore[call-overload]
            after = program.add(SPLIT, _emit(program, body, after), end)  # type: ignore[arg-type]
    for _ in range(int(least)):  # type: ignore[call-overload]
        after = _emit(program, body, after)  # type: ignore[arg-type]
    return after


class _Reader:
    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self.at = 0
        self.sets: list[str] = []

    def refuse(self, what: str) -> NoReturn:
        shown = self.pattern[max(0, self.at - 20) : self.at + 20]
        raise unsupported(f"its split pattern has {what}", evidence=f"at character {self.at}: {shown!r}")

    def alternatives(self, flag: str) -> _Node:
        branches = [self._sequence(flag)]
        while self.pattern[self.at : self.at + 1] == "|":
            self.at += 1
            branches.append(self._sequence(flag))
        return branches[0] if len(branches) == 1 else ("or", tuple(branches))

    def _sequence(self, flag: str) -> _Node:
        items: list[_Node] = []
        while self.at < len(self.pattern) and self.pattern[self.at] not in "|)":
            items.append(self._repeated(self._atom(flag)))
        return "and", tuple(items)

    def _repeated(self, node: _Node) -> _Node:
        next_ = self.pattern[self.at : self.at + 1]
        if not next_ or next_ not in "?*+{":
            return node
        least, most = {"?": (0, 1), "*": (0, None), "+": (1, None)}.get(next_, (0, 0))
        if next_ == "{":
            counts = _COUNTS.match(self.pattern, self.at)
            if counts is None:
                self.refuse("a brace that is no count")
            least = int(counts[1])
            most = None if counts[2] and not counts[3] else int(counts[3] or least)
            if max(least, most or 0) > _MAX_COUNT or (most is not None and most < least):
                self.refuse(f"a count beyond {_MAX_COUNT}")
            self.at = counts.end()
        else:
            self.at += 1
        if self.pattern[self.at : self.at + 1] in {"?", "+", "*", "{"}:
            self.refuse("a lazy, possessive or double repetition")
        if node[0] == "look" or (most is None and _is_nullable(node)):
            self.refuse("a repetition of what may be empty")
        return "repeat", (node, least, most)

    def _atom(self, flag: str) -> _Node:
        pattern, at = self.pattern, self.at
        if pattern[at] == "(":
            return self._group(flag)
        return self._set(flag)

    def _group(self, flag: str) -> _Node:
        pattern = self.pattern
        for opening, negated in (("(?!", 1), ("(?=", 0)):
            if pattern.startswith(opening, self.at):
                self.at += len(opening)
                inner = self._set(flag)
                if pattern[self.at : self.at + 1] != ")":
                    self.refuse("a look-ahead at more than one class")
                self.at += 1
                return "look", (inner[1][0], negated)
        for opening, added in _PLAIN_GROUPS.items():
            if pattern.startswith(opening, self.at):
                self.at += len(opening)
                flag += added
                break
        else:
            if pattern.startswith("(?", self.at):
                self.refuse("a group of another kind")
            self.at += 1
        node = self.alternatives(flag)
        if pattern[self.at : self.at + 1] != ")":
            self.refuse("an open group")
        self.at += 1
        return node

    def _set(self, flag: str) -> _Node:
        pattern, at = self.pattern, self.at
        character = pattern[at : at + 1]
        if character == "[":
            end = self._class_end(at + 1)
        elif character == "\\":
            escape = _SIMPLE.match(pattern, at)
            if escape is None:
                self.refuse("an escape that is not read")
            end = escape.end()
        elif not character or character in ".^$*+?{})":
            self.refuse("an anchor, a dot, or a sign out of place")
        else:
            end = at + 1
        source = pattern[at:end]
        self.at = end
        if flag:
            source = f"(?i:{source})"
        if source not in self.sets:
            self.sets.append(source)
        return "set", (self.sets.index(source),)

    def _class_end(self, at: int) -> int:
        pattern = self.pattern
        at += pattern[at : at + 1] == "^"
        if pattern[at : at + 1] == "]":
            self.refuse("a bracket at the start of a class")
        while at < len(pattern) and pattern[at] != "]":
            if pattern[at] == "[" or pattern.startswith("&&", at):
                self.refuse("a class within a class")
            escape = _SIMPLE.match(pattern, at) if pattern[at] == "\\" else None
            if pattern[at] == "\\" and escape is None:
                self.refuse("an escape that is not read")
            at = at + 1 if escape is None else escape.end()
        return at + 1

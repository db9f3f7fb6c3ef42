"""Grammars in GBNF, the notation of llama.cpp that xgrammar reads too.

Source: the GBNF guide of llama.cpp, ``grammars/README.md``.
"""

from __future__ import annotations

import itertools
import string
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, final

from structgen.errors import GrammarError, UnsupportedFeature
from structgen.grammar.nodes import (
    ByteClass,
    Capture,
    CharClass,
    Choice,
    Grammar,
    Literal,
    Reference,
    Repeat,
    Rules,
    Sequence,
    Shared,
)
from structgen.grammar.report import Described

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["gbnf_of"]

_SUBJECT: Final = "grammar in GBNF"
_ESCAPES: Final = {"\\": r"\\", "\n": r"\n", "\r": r"\r", "\t": r"\t"}
_IN_STRING: Final = {'"': r"\""}
_IN_CLASS: Final = {"]": r"\]", "[": r"\["}


@final
@dataclass(frozen=True, eq=False, slots=True)
class _Scope:
    """The rules that references see."""

    rules: dict[str, Grammar]
    outer: _Scope | None


def gbnf_of(grammar: Grammar) -> str:
    r"""Write a grammar in GBNF; the language is the same.

    Raises:
        UnsupportedFeature: a part of it has no GBNF: members in any order, intersections, complements, distinct items,
            labels, special tokens, JSON strings by their value, bytes that are no text, and U+0000 alone.
        GrammarError: a reference leads nowhere.

    Left recursion is written as it is; llama.cpp refuses it.

    Complexity: linear, where each part is reached within one scope of rules.

    >>> print(gbnf_of(Sequence([Literal(b"a"), Repeat(CharClass([(48, 57)]), 1, 3)])), end="")
    root ::= r0
    r0 ::= "a" r1
    r1 ::= [0-9]{1,3}
    """
    return _Writer().write(grammar)


@final
class _Writer:
    """Gives every part that is no leaf a rule of its own, breadth first, so that no depth is too deep."""

    def __init__(self) -> None:
        self._names: dict[tuple[int, int], str] = {}
        self._open: deque[tuple[str, Grammar, _Scope | None]] = deque()
        self._scopes: dict[tuple[int, int], _Scope] = {}

    def write(self, grammar: Grammar) -> str:
        lines = [f"root ::= {self._part(grammar, None)}"]
        while self._open:
            name, node, scope = self._open.popleft()
            lines.append(f"{name} ::= {self._rule(node, scope)}")
        return "\n".join(lines) + "\n"

    def _part(self, node: Grammar, scope: _Scope | None) -> str:
        """A leaf as it is, all else by the name of its rule."""
        while isinstance(node, (Capture, Shared, Described)):
            node = node.item
        if isinstance(node, Reference):
            return self._referred(node, scope)
        leaf = _leaf(node)
        if leaf is not None:
            return leaf
        return self._named(node, scope)

    def _referred(self, node: Reference, scope: _Scope | None) -> str:
        while scope is not None:
            if node.name in scope.rules:
                return self._named(scope.rules[node.name], scope)  # not followed: it may lead back here
            scope = scope.outer
        raise GrammarError(_SUBJECT, f"no rule is called {node.name!r}")

    def _named(self, node: Grammar, scope: _Scope | None) -> str:
        key = id(node), id(scope)
        name = self._names.get(key)
        if name is None:
            name = self._names[key] = f"r{len(self._names)}"
            self._open.append((name, node, scope))
        return name

    def _rule(self, node: Grammar, scope: _Scope | None) -> str:
        leaf = _leaf(node)
        if leaf is not None:
            return leaf
        match node:
            case Sequence():
                return " ".join(self._part(item, scope) for item in node.items) or '""'
            case Choice() if node.items:
                return " | ".join(self._part(item, scope) for item in node.items)
            case Repeat():
                return '""' if node.max == 0 else self._part(node.item, scope) + _count(node.min, node.max)
            case Rules():
                key = id(node), id(scope)
                inner = self._scopes.setdefault(key, _Scope(dict(node.rules), scope))
                return self._part(node.body, inner)
            case Capture() | Shared() | Described() | Reference():
                return self._part(node, scope)
        raise _refused(type(node).__name__, "GBNF has no notation for it")


def _leaf(node: Grammar) -> str | None:
    if isinstance(node, Literal):
        try:
            return _string(node.data.decode())
        except UnicodeDecodeError:
            raise _refused("Literal", f"its bytes {node.data[:20]!r} are no text") from None
    if isinstance(node, ByteClass) and all(last < 0x80 for _, last in node.ranges) and node.ranges:
        return _class(node.ranges)
    if isinstance(node, CharClass) and node.ranges:
        return _class(node.ranges)
    return None


def _string(text: str) -> str:
    """Text in quotes; in several pieces where xgrammar would read a digit as part of the escape before it.

    It writes all but printable ASCII as escapes itself, so raw characters count as well.
    """
    if "\0" in text:
        raise _refused("Literal", "xgrammar can't read U+0000 alone")
    made = ""
    for before, character in itertools.pairwise("x" + text):
        is_split = not " " <= before <= "~" and character in string.hexdigits
        made += '" "' * is_split + (_IN_STRING.get(character) or _character(character))
    return f'("{made}")' if '" "' in made else f'"{made}"'


def _class(ranges: Iterable[tuple[int, int]]) -> str:
    """A set of characters.

    It is written so that llama.cpp and xgrammar agree: the hyphen raw and first, the caret raw and not first, and what
    needs an escape of several digits in brackets of its own, for one reads four of them and the other all.
    """
    parts: list[str] = []
    escaped: list[str] = []
    hyphen = caret = ""
    for first, last in _without_ends(ranges, "-^"):
        if last == "\0":
            raise _refused("CharClass", "xgrammar can't read U+0000 alone")
        if first == last == "-":
            hyphen = "-"
        elif first == last == "^":
            caret = "^"
        else:
            text = _in_class(first) if first == last else f"{_in_class(first)}-{_in_class(last)}"
            (escaped if _is_control(first) or _is_control(last) else parts).append(text)
    if caret and not hyphen and not parts:
        escaped.append(caret)
    else:
        parts.append(caret)
    brackets = [f"[{text}]" if text != "^" else '"^"' for text in (hyphen + "".join(parts), *escaped) if text]
    return brackets[0] if len(brackets) == 1 else f"({' | '.join(brackets)})"


def _without_ends(ranges: Iterable[tuple[int, int]], special: str) -> Iterator[tuple[str, str]]:
    """The ranges, so divided that none of more than one character begins or ends with a special one."""
    for first, last in ranges:
        low, high = first, last
        if chr(low) in special:
            yield chr(low), chr(low)
            low += 1
        if low <= high and chr(high) in special:
            yield chr(high), chr(high)
            high -= 1
        if low <= high:
            yield chr(low), chr(high)


def _is_control(character: str) -> bool:
    """Whether it is written by an escape with digits."""
    return character < " " and character not in "\n\r\t"


def _character(character: str) -> str:
    return f"\\u{ord(character):04x}" if _is_control(character) else _ESCAPES.get(character, character)


def _in_class(character: str) -> str:
    return _IN_CLASS.get(character) or _character(character)


def _count(least: int, most: int | None) -> str:
    short = {(0, None): "*", (1, None): "+", (0, 1): "?", (1, 1): ""}.get((least, most))
    if short is not None:
        return short
    return f"{{{least},}}" if most is None else f"{{{least},{most}}}"


def _refused(feature: str, problem: str) -> UnsupportedFeature:
    return UnsupportedFeature(
        _SUBJECT,
        feature,
        where="",
        problem=f"{feature}: {problem}",
        remedy="ask for a type, a Literal or a plainer grammar, or run the model here",
    )

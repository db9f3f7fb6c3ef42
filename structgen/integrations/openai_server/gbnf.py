"""Grammars in GBNF, the notation of llama.cpp that xgrammar reads too.

Source: the GBNF guide of llama.cpp, ``grammars/README.md``.
"""

from __future__ import annotations

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
    from collections.abc import Iterable

__all__ = ["gbnf_of"]

_SUBJECT: Final = "grammar in GBNF"
_PLAIN: Final = frozenset(range(0x20, 0x7F)) - set(b'"\\[]^-')


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
            labels, special tokens, JSON strings by their value, and bytes that are no text.
        GrammarError: a reference leads nowhere.

    Complexity: linear, where each part is reached within one scope of rules.

    >>> print(gbnf_of(Sequence([Literal(b"a"), Repeat(CharClass([(48, 57)]), 1, 3)])))
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
            case Literal() | CharClass() | ByteClass() | Capture() | Shared() | Described() | Reference():
                return self._part(node, scope)
        raise _refused(type(node).__name__, "GBNF has no notation for it")


def _leaf(node: Grammar) -> str | None:
    if isinstance(node, Literal):
        try:
            text = node.data.decode()
        except UnicodeDecodeError:
            raise _refused("Literal", f"its bytes {node.data[:20]!r} are no text") from None
        return '"' + "".join(_character(ord(character)) for character in text) + '"'
    if isinstance(node, ByteClass) and all(last < 0x80 for _, last in node.ranges) and node.ranges:
        return _class(node.ranges)
    if isinstance(node, CharClass) and node.ranges:
        return _class(node.ranges)
    return None


def _class(ranges: Iterable[tuple[int, int]]) -> str:
    parts = [
        _character(first) if first == last else f"{_character(first)}-{_character(last)}" for first, last in ranges
    ]
    return f"[{''.join(parts)}]"


def _character(value: int) -> str:
    r"""A code point; ``\x`` is not used, for its readers disagree about how many digits follow."""
    if value in _PLAIN:
        return chr(value)
    return f"\\u{value:04x}" if value <= 0xFFFF else f"\\U{value:08x}"


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

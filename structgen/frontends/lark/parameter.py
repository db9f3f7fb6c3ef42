"""Arguments of templates, and rules with a parameter.

A parameter is a number of 64 bits: ``list::_ : "a" list::set_bit(0) %if bit_clear(0) | ""``.
The functions and conditions are those of llguidance (``docs/parametric.md`` of that project).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

from structgen.frontends.grammar_source import GrammarSource
from structgen.frontends.lark.definition import Definition
from structgen.frontends.lark.syntax import Token, span_of
from structgen.grammar.nodes import Grammar

__all__ = ["Parameter", "ParameterReader", "condition_of", "expression_of"]

Parameter: TypeAlias = int
_Condition: TypeAlias = Callable[[Parameter], bool]
_Expression: TypeAlias = Callable[[Parameter | None], Parameter]

_BITS: Final = 64
_ALL: Final = (1 << _BITS) - 1
_MAX_NESTING: Final = 64
_PIECE: Final = re.compile(
    r"\s*(?:(?P<number>0[xX][0-9a-fA-F]+|\d+)|(?P<name>[a-z_]+)|(?P<range>\[\s*(\d+)\s*:\s*(\d+)\s*\])|(?P<mark>[(),]))\s*"
)
_COMPARISONS: Final[dict[str, Callable[[int, int], bool]]] = {
    "eq": lambda one, other: one == other,
    "ne": lambda one, other: one != other,
    "lt": lambda one, other: one < other,
    "le": lambda one, other: one <= other,
    "gt": lambda one, other: one > other,
    "ge": lambda one, other: one >= other,
}


@dataclass(slots=True)
class _ExpressionReader:
    """Reads the pieces of one expression or condition."""

    _source: GrammarSource
    _token: Token
    _text: str
    _at: int = 0

    def error(self, problem: str, remedy: str = "") -> Exception:
        return self._source.syntax_error(span_of(self._token), problem, remedy)

    def take(self) -> re.Match[str]:
        piece = _PIECE.match(self._text, self._at)
        if piece is None:
            raise self.error("the expression of a parameter is malformed", "write for instance set_bit(0)")
        self._at = piece.end()
        return piece

    def peek(self) -> str:
        return self._text[self._at : self._at + 1]

    def expect(self, mark: str) -> None:
        if self.take()["mark"] != mark:
            raise self.error(f"the expression of a parameter lacks {mark!r}")

    def finish(self) -> None:
        if self._text[self._at :].strip():
            raise self.error("something follows the expression of a parameter")

    def number(self, maximum: int) -> int:
        piece = self.take()["number"]
        if piece is None or len(piece) > 24:
            raise self.error("a number is expected in the expression of a parameter")
        value = int(piece, 0 if piece[:2].lower() == "0x" else 10)
        if value > maximum:
            raise self.error(f"{value} is out of range", f"numbers here are at most {maximum}")
        return value

    def bits(self) -> tuple[int, int]:
        """Return the first bit of a range and the number of bits; ``_`` is all bits."""
        piece = self.take()
        if piece["name"] == "_":
            return 0, _BITS
        if piece["range"] is None or len(piece["range"]) > 16:
            raise self.error("a range of bits is expected", "write [first:end] or _")
        first, end = int(piece[4]), int(piece[5])
        if not first < end <= _BITS:
            raise self.error(f"the bits {first}:{end} are no range", f"give 0 <= first < end <= {_BITS}")
        return first, end - first


def expression_of(source: GrammarSource, token: Token) -> _Expression:
    """Read the expression after ``::``: it computes the parameter of the referred rule from that of the present one.

    Raises:
        GrammarSyntaxError: the expression is malformed.
    """
    reader = _ExpressionReader(source, token, token[2:])
    text = token[2:].strip()
    if text[:1].isdigit():
        value = reader.number(_ALL)
        reader.finish()
        return lambda _: value
    name = reader.take()["name"] or ""
    if name == "_":
        reader.finish()
        change: Callable[[int], int] = lambda own: own  # noqa: E731
    else:
        reader.expect("(")
        change = _change(reader, name)
        reader.expect(")")
        reader.finish()

    def evaluated(own: Parameter | None) -> Parameter:
        if own is None:
            raise reader.error("the enclosing rule has no parameter", "write ::_ after its name")
        return change(own)

    return evaluated


def _change(reader: _ExpressionReader, name: str) -> Callable[[int], int]:
    match name:
        case "set_bit":
            bit = 1 << reader.number(_BITS - 1)
            return lambda own: own | bit
        case "clear_bit":
            bit = 1 << reader.number(_BITS - 1)
            return lambda own: own & ~bit
        case "bit_and":
            value = reader.number(_ALL)
            return lambda own: own & value
        case "bit_or":
            value = reader.number(_ALL)
            return lambda own: own | value
        case "incr" | "decr":
            first, count = reader.bits()
            full = ((1 << count) - 1) << first
            end, step = (full, 1 << first) if name == "incr" else (0, -(1 << first))
            return lambda own: own if own & full == end else own + step
    raise reader.error(
        f"there is no function {name!r} of a parameter", "there are set_bit, clear_bit, bit_and, bit_or, incr and decr"
    )


def condition_of(source: GrammarSource, token: Token) -> _Condition:
    """Read the condition of ``%if``.

    Raises:
        GrammarSyntaxError: it is malformed, or nested too deeply.
    """
    reader = _ExpressionReader(source, token, str(token))
    condition = _condition(reader, 0)
    reader.finish()
    return condition


def _condition(reader: _ExpressionReader, depth: int) -> _Condition:
    if depth > _MAX_NESTING:
        raise reader.error(f"the condition is nested more than {_MAX_NESTING} deep", "write it with fewer parentheses")
    name = reader.take()["name"] or ""
    if name == "true":
        if reader.peek() == "(":
            reader.expect("(")
            reader.expect(")")
        return lambda _: True
    reader.expect("(")
    condition = _call(reader, name, depth)
    reader.expect(")")
    return condition


def _call(reader: _ExpressionReader, name: str, depth: int) -> _Condition:
    if name in {"and", "or"}:
        first = _condition(reader, depth + 1)
        reader.expect(",")
        second = _condition(reader, depth + 1)
        if name == "and":
            return lambda own: first(own) and second(own)
        return lambda own: first(own) or second(own)
    if name == "not":
        inner = _condition(reader, depth + 1)
        return lambda own: not inner(own)
    if name in {"bit_clear", "bit_set"}:
        bit, is_set = reader.number(_BITS - 1), name == "bit_set"
        return lambda own: bool(own >> bit & 1) == is_set
    kind = name.removeprefix("bit_count_")
    if name not in {"is_ones", "is_zeros"} and kind not in _COMPARISONS:
        raise reader.error(f"there is no condition {name!r}", "there are for instance bit_set, lt, is_ones, and, not")
    start, count = reader.bits()
    full = (1 << count) - 1
    if name in {"is_ones", "is_zeros"}:
        end = full if name == "is_ones" else 0
        return lambda own: own >> start & full == end
    reader.expect(",")
    value, compare = reader.number(_ALL), _COMPARISONS[kind]
    if kind != name:
        return lambda own: compare((own >> start & full).bit_count(), value)
    return lambda own: compare(own >> start & full, value)


class ParameterReader:
    """Reads the expressions and conditions of a grammar, each once; both raise as the functions above do."""

    def __init__(self) -> None:
        # By the id of the token, to which it refers too so that the id is not reused.
        self._expressions: dict[int, tuple[Token, _Expression]] = {}
        self._conditions: dict[int, tuple[Token, _Condition]] = {}

    def expression(self, source: GrammarSource, token: Token) -> _Expression:
        """Return the function after ``::``."""
        if id(token) not in self._expressions:
            self._expressions[id(token)] = token, expression_of(source, token)
        return self._expressions[id(token)][1]

    def condition(self, source: GrammarSource, token: Token) -> _Condition:
        """Return the condition of ``%if``."""
        if id(token) not in self._conditions:
            self._conditions[id(token)] = token, condition_of(source, token)
        return self._conditions[id(token)][1]


class RuleArgument(NamedTuple):
    """A term, and its name as the argument of a template (``""`` if it cannot be one).

    A template without arguments has no term and can only be the argument of another template.
    """

    term: Grammar
    name: str = ""
    template: Definition | None = None
    token: Token | None = None


class RuleInstance(NamedTuple):
    """A rule, or a template with its arguments."""

    definition: Definition
    arguments: Mapping[str, RuleArgument]
    depth: int
    parameter: int | None = None

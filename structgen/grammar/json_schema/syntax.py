"""The terms that all JSON grammars of one policy share: punctuation, free strings, numbers, values.

They are module-wide constants, wrapped in ``Shared``, so that an engine computes their masks once in a process.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final, NamedTuple

from structgen.grammar.json_schema.integral import integral_magnitudes
from structgen.grammar.json_schema.policy import JsonPolicy
from structgen.grammar.json_schema.scientific import scientific_magnitudes
from structgen.grammar.json_schema.terms import DIGIT, NONZERO_DIGIT
from structgen.grammar.nodes import (
    ANY_CHAR,
    EMPTY,
    EPSILON,
    ByteClass,
    Choice,
    Grammar,
    Intersection,
    JsonString,
    Literal,
    Reference,
    Repeat,
    Rules,
    Sequence,
    Shared,
)

__all__ = ["ANY_STRING", "BOOLEAN", "NULL", "Level", "Syntax", "syntax_of"]

ANY_STRING: Final = Shared(JsonString(Repeat(ANY_CHAR)))
NULL: Final = Literal(b"null")
BOOLEAN: Final = Choice((Literal(b"true"), Literal(b"false")))

_OPEN_BRACE: Final = Literal(b"{")
_CLOSE_BRACE: Final = Literal(b"}")
_OPEN_BRACKET: Final = Literal(b"[")
_CLOSE_BRACKET: Final = Literal(b"]")


class Level(NamedTuple):
    """Every JSON value, array and object, as deep as may stand there; ``EMPTY`` where no container may."""

    value: Grammar
    array: Grammar
    object: Grammar


@dataclass(frozen=True, slots=True)
class Syntax:
    """The shared terms of one policy.

    Attributes:
        open_object: ``{`` and the whitespace after it.
        end_object: ``}`` where no whitespace can precede it any more.
        close_object: whitespace and ``}``; likewise the attributes of arrays.
        comma: ``,`` between members, with the whitespace around it.
        colon: ``:`` after a name, with the whitespace around it.
        any_integral: every number whose value is an integer, in all its forms.
        any_number: every number; likewise ``any_integer``.
        any_string: every string.
        levels: what is open inside no container, inside one and so on; the last holds for all that is deeper.
    """

    policy: JsonPolicy
    open_object: Grammar
    close_object: Grammar
    end_object: Grammar
    open_array: Grammar
    close_array: Grammar
    end_array: Grammar
    comma: Grammar
    colon: Grammar
    any_integer: Grammar
    any_integral: Grammar
    any_number: Grammar
    any_string: Grammar
    levels: tuple[Level, ...]

    def at(self, depth: int) -> Level:
        """What is open inside ``depth`` arrays and objects."""
        return self.levels[min(depth, len(self.levels) - 1)]


@lru_cache(maxsize=64)
def syntax_of(policy: JsonPolicy) -> Syntax:
    """Make the shared terms of ``policy``; the same policy gives the same objects."""
    if policy.order != "declared":  # of which the shared terms know nothing
        return replace(syntax_of(replace(policy, order="declared")), policy=policy)
    space = _space(policy)
    comma, colon = _around(space, b","), _around(space, b":")
    if policy.whitespace == "single":
        comma, colon = Literal(b", "), Literal(b": ")
    open_object, open_array = (_joined(bracket, space) for bracket in (_OPEN_BRACE, _OPEN_BRACKET))
    close_object, close_array = (_joined(space, bracket) for bracket in (_CLOSE_BRACE, _CLOSE_BRACKET))
    more = Repeat(DIGIT, 0, policy.digits - 1)
    natural = Choice((Literal(b"0"), Sequence((NONZERO_DIGIT, more))))
    sign = Repeat(Literal(b"-"), 0, 1)
    integer = Shared(Sequence((sign, natural)))
    number = Shared(Sequence((sign, _magnitude(policy))))

    length = policy.max_length
    string = ANY_STRING if length is None else Shared(JsonString(Repeat(ANY_CHAR, 0, length)))

    def members(member: Grammar, most: int | None, begin: Grammar, close: Grammar, end: Grammar) -> Grammar:
        if most == 0:
            return Sequence((begin, end))
        some = Sequence((member, Repeat(Sequence((comma, member)), 0, None if most is None else most - 1), close))
        return Sequence((begin, Choice((end, some))))

    def array(item: Grammar) -> Grammar:
        return members(item, policy.max_items, open_array, close_array, _CLOSE_BRACKET)

    def obj(item: Grammar) -> Grammar:
        member = Sequence((string, colon, item))
        return members(member, policy.max_members, open_object, close_object, _CLOSE_BRACE)

    scalars = (string, number, BOOLEAN, NULL)
    levels: list[Level] = []
    if policy.max_depth is None:
        inner = Reference("value")
        rules = {
            "value": Choice((*scalars, Reference("array"), Reference("object"))),
            "array": array(inner),
            "object": obj(inner),
        }
        any_value = Shared(Rules(rules, inner))
        levels.append(Level(any_value, Shared(array(any_value)), Shared(obj(any_value))))
    else:
        levels.append(Level(Shared(Choice(scalars)), EMPTY, EMPTY))
        for _ in range(policy.max_depth):
            containers = Shared(array(levels[-1].value)), Shared(obj(levels[-1].value))
            levels.append(Level(Shared(Choice((*scalars, *containers))), *containers))
    return Syntax(
        policy=policy,
        open_object=open_object,
        close_object=close_object,
        end_object=_CLOSE_BRACE,
        open_array=open_array,
        close_array=close_array,
        end_array=_CLOSE_BRACKET,
        comma=comma,
        colon=colon,
        any_integer=integer,
        any_integral=_any_integral(policy, number.item) if policy.numbers == "all" else integer,
        any_number=number,
        any_string=string,
        levels=tuple(reversed(levels)),
    )


def _any_integral(policy: JsonPolicy, number: Grammar) -> Grammar:
    integral = Sequence((Repeat(Literal(b"-"), 0, 1), integral_magnitudes(policy.digits)))
    return Shared(Intersection((number, integral)))


def _space(policy: JsonPolicy) -> Grammar:
    if policy.whitespace != "flexible":
        return EPSILON
    indentation = Repeat(ByteClass([(0x09, 0x09), (0x20, 0x20)]), 0, policy.indent)
    line = Sequence((Literal(b"\n"), indentation))
    return Sequence((Repeat(Literal(b" "), 0, 1), Repeat(line, 0, 1)))


def _magnitude(policy: JsonPolicy) -> Grammar:
    """A number without sign, within double precision.

    After one digit that is not zero, an exponent of any size that double precision has; after ``0`` or several
    digits, one below 100, so that the value is within it too.
    """
    more = Repeat(DIGIT, 1, policy.digits - 1) if policy.digits > 1 else EMPTY
    fraction = Repeat(Sequence((Literal(b"."), Repeat(DIGIT, 1, policy.digits))), 0, 1)
    below_100 = Sequence((Repeat(Literal(b"0"), 0, 1), Repeat(DIGIT, 1, 2)))
    exponent = Sequence((ByteClass([(0x45, 0x45), (0x65, 0x65)]), _optional_sign(), below_100))
    others = Sequence((Choice((Literal(b"0"), Sequence((NONZERO_DIGIT, more)))), fraction, Repeat(exponent, 0, 1)))
    single = Sequence((NONZERO_DIGIT, fraction))
    return Choice((others, single, scientific_magnitudes((0, False), (None, False), policy.digits)))


def _around(space: Grammar, mark: bytes) -> Grammar:
    return Literal(mark) if space is EPSILON else Shared(Sequence((space, Literal(mark), space)))


def _joined(*parts: Grammar) -> Grammar:
    kept = tuple(part for part in parts if part is not EPSILON)
    return kept[0] if len(kept) == 1 else Shared(Sequence(kept))


def _optional_sign() -> Grammar:
    return Repeat(ByteClass([(0x2B, 0x2B), (0x2D, 0x2D)]), 0, 1)

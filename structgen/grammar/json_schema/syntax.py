"""The terms that all JSON grammars of one policy share: punctuation, free strings, numbers, values.

They are module-wide constants, wrapped in ``Shared``, so that an engine computes their masks once in a process.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final

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

__all__ = ["ANY_STRING", "BOOLEAN", "NULL", "Syntax", "syntax_of"]

ANY_STRING: Final = Shared(JsonString(Repeat(ANY_CHAR)))
NULL: Final = Literal(b"null")
BOOLEAN: Final = Choice((Literal(b"true"), Literal(b"false")))

_OPEN_BRACE: Final = Literal(b"{")
_CLOSE_BRACE: Final = Literal(b"}")
_OPEN_BRACKET: Final = Literal(b"[")
_CLOSE_BRACKET: Final = Literal(b"]")


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
        any_value: every JSON value; likewise ``any_array``, ``any_object``, ``any_number``, ``any_integer``.
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
    any_value: Grammar
    any_array: Grammar
    any_object: Grammar


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

    def members(member: Grammar, begin: Grammar, close: Grammar, end: Grammar) -> Grammar:
        some = Sequence((member, Repeat(Sequence((comma, member))), close))
        return Sequence((begin, Choice((end, some))))

    def array(item: Grammar) -> Grammar:
        return members(item, open_array, close_array, _CLOSE_BRACKET)

    def obj(item: Grammar) -> Grammar:
        return members(Sequence((ANY_STRING, colon, item)), open_object, close_object, _CLOSE_BRACE)

    inner = Reference("value")
    scalars = (ANY_STRING, number, BOOLEAN, NULL)
    rules = {
        "value": Choice((*scalars, Reference("array"), Reference("object"))),
        "array": array(inner),
        "object": obj(inner),
    }
    any_value = Shared(Rules(rules, inner))
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
        any_value=any_value,
        any_array=Shared(array(any_value)),
        any_object=Shared(obj(any_value)),
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

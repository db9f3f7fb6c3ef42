"""How the JSON of one policy is written: punctuation, free strings, numbers and values, and constants."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Final, NamedTuple

from structgen.errors import GrammarError, LimitExceeded
from structgen.frontends.json_schema.emit.decimal_interval import integral_magnitudes, scientific_magnitudes
from structgen.frontends.json_schema.emit.number import equal_numbers
from structgen.frontends.json_schema.normal.scalar_assertion import exact
from structgen.frontends.json_schema.policy import JsonPolicy
from structgen.frontends.json_schema.term import ANY_STRING, DIGIT, NONZERO_DIGIT, chain, distinct, quoted
from structgen.grammar.limits import spend
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
    Permutation,
    Reference,
    Repeat,
    Rules,
    Sequence,
    Shared,
)

if TYPE_CHECKING:
    from structgen.frontends.json_schema.source.json_value import Json
    from structgen.frontends.json_schema.source.location import Location

__all__ = [
    "BOOLEAN_TERM",
    "NULL_TERM",
    "NestingLevel",
    "Syntax",
    "string_literal",
    "syntax_of",
    "value_term",
    "values_term",
]

NULL_TERM: Final = Literal(b"null")
BOOLEAN_TERM: Final = Choice((Literal(b"true"), Literal(b"false")))

_OPEN_BRACE: Final = Literal(b"{")
_CLOSE_BRACE: Final = Literal(b"}")
_OPEN_BRACKET: Final = Literal(b"[")
_CLOSE_BRACKET: Final = Literal(b"]")


class NestingLevel(NamedTuple):
    """Every JSON value, array and object that the policy allows at a level; ``EMPTY`` where no container is allowed."""

    value: Grammar
    array: Grammar
    object: Grammar


@dataclass(frozen=True, slots=True)
class Syntax:
    """The shared terms of one policy.

    Attributes:
        open_object: ``{`` and the whitespace after it.
        end_object: ``}`` where whitespace was already read.
        close_object: whitespace and ``}``; likewise the attributes of arrays.
        comma: ``,`` between members, with the whitespace around it.
        colon: ``:`` after a name, with the whitespace around it.
        any_integral: every number whose value is an integer, in all its forms.
        any_number: every number; likewise ``any_integer``.
        any_string: every string.
        levels: any value inside no container, inside one and so on; the last one applies to all deeper levels.
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
    levels: tuple[NestingLevel, ...]

    def at(self, depth: int) -> NestingLevel:
        """Any value inside ``depth`` arrays and objects."""
        return self.levels[min(depth, len(self.levels) - 1)]


@lru_cache(maxsize=64)
def syntax_of(policy: JsonPolicy) -> Syntax:
    """Make the shared terms of ``policy``; the same policy gives the same objects."""
    if policy.order != "declared":  # the shared terms do not depend on this
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
    syntax = Syntax(
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
        levels=(),
    )
    return replace(syntax, levels=_levels(syntax))


def _levels(syntax: Syntax) -> tuple[NestingLevel, ...]:
    """Any value inside each number of arrays and objects that the policy distinguishes, the outermost first."""
    policy = syntax.policy

    def members(member: Grammar, max_count: int | None, begin: Grammar, close: Grammar, end: Grammar) -> Grammar:
        if max_count == 0:
            return Sequence((begin, end))
        some = Sequence(
            (member, Repeat(Sequence((syntax.comma, member)), 0, None if max_count is None else max_count - 1), close)
        )
        return Sequence((begin, Choice((end, some))))

    def array(item: Grammar) -> Grammar:
        return members(item, policy.max_items, syntax.open_array, syntax.close_array, _CLOSE_BRACKET)

    def obj(item: Grammar) -> Grammar:
        member = Sequence((syntax.any_string, syntax.colon, item))
        return members(member, policy.max_members, syntax.open_object, syntax.close_object, _CLOSE_BRACE)

    scalars = (syntax.any_string, syntax.any_number, BOOLEAN_TERM, NULL_TERM)
    compares = policy.repeated == "forbidden" and (policy.max_members is None or policy.max_members > 1)

    def marked(objects: Grammar) -> Grammar:
        return distinct(objects, is_spare=True) if compares else objects

    if policy.max_depth is None:
        inner = Reference("value")
        rules = {
            "value": Choice((*scalars, Reference("array"), Reference("object"))),
            "array": array(inner),
            "object": obj(inner),
        }
        inside: Grammar = Shared(Rules(rules, inner))  # a marked object, where nothing is marked again
        objects = marked(obj(inside))
        any_value = Shared(Rules({**rules, "object": objects}, inner)) if compares else inside
        return (NestingLevel(any_value, Shared(array(any_value)), Shared(objects)),)
    levels = [NestingLevel(Shared(Choice(scalars)), EMPTY, EMPTY)]
    inside = levels[0].value
    for _ in range(policy.max_depth):
        containers = Shared(array(levels[-1].value)), Shared(marked(obj(inside)))
        levels.append(NestingLevel(Shared(Choice((*scalars, *containers))), *containers))
        plain = Choice((*scalars, Shared(array(inside)), Shared(obj(inside))))
        inside = Shared(plain) if compares else levels[-1].value
    return tuple(reversed(levels))


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

    After one nonzero digit any exponent of double precision; after ``0`` or several digits an exponent below 100, so
    that the value is within double precision too.
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
    retained = tuple(part for part in parts if part is not EPSILON)
    return retained[0] if len(retained) == 1 else Shared(Sequence(retained))


def _optional_sign() -> Grammar:
    return Repeat(ByteClass([(0x2B, 0x2B), (0x2D, 0x2D)]), 0, 1)


_NAMED: Final = {None: b"null", True: b"true", False: b"false"}


def string_literal(text: str, policy: JsonPolicy, location: Location, *steps: str | int) -> Grammar:
    """The JSON spellings of one string: the canonical one, or all.

    Raises:
        GrammarError: ``text`` has a lone surrogate.
    """
    canonical = quoted(text, location, *steps)
    return Literal(canonical) if policy.escapes == "canonical" else JsonString(Literal(text.encode()))


def _has_forms(value: Json, location: Location, *, fractions: bool) -> bool:
    """Whether a value is a number with several spellings."""
    if isinstance(value, bool) or not isinstance(value, (int, float, Decimal)) or not Decimal(value).is_finite():
        return False
    return fractions or location.resource.dialect.draft > 4


def values_term(
    values: Iterable[Json], syntax: Syntax, location: Location, keyword: str, *, fractions: bool
) -> Grammar:
    """The canonical texts of constants; with ``fractions``, an integral float keeps its own spelling too.

    Raises:
        GrammarError: a value is not JSON.
        LimitExceeded: a value is nested too deeply.
    """
    texts: dict[bytes, None] = {}
    others: list[Grammar] = []
    policy = syntax.policy
    for value in values:
        if isinstance(value, (dict, list, tuple)):
            others.append(value_term(value, syntax, location, keyword))
        elif isinstance(value, str) and policy.escapes == "canonical":
            texts[quoted(value, location, keyword)] = None
        elif isinstance(value, str):
            others.append(string_literal(value, policy, location, keyword))
        elif policy.numbers == "all" and _has_forms(value, location, fractions=fractions):
            others.append(equal_numbers(exact(value), policy.digits))
        else:
            texts.update(dict.fromkeys(_spellings(value, location, keyword, fractions=fractions)))
    terms = [*map(Literal, texts), *others]
    spend(3 * len(terms), partial(location.subject, keyword))
    return terms[0] if len(terms) == 1 else Choice(terms) if terms else EMPTY


def _spellings(value: Json, location: Location, keyword: str, *, fractions: bool = True) -> Iterator[bytes]:
    if value is None or isinstance(value, bool):
        yield _NAMED[value]
    elif isinstance(value, int):
        yield str(value).encode()
    elif isinstance(value, (float, Decimal)):
        number = Decimal(repr(value)) if isinstance(value, float) else value
        if not number.is_finite():
            raise GrammarError(location.subject(keyword), f"{value!r} is not a JSON number")
        is_integral = number.adjusted() < _MAX_INTEGER_DIGITS and number == number.to_integral_value()
        if is_integral:
            yield str(int(number)).encode()
        if fractions or not is_integral:
            yield (repr(value) if isinstance(value, float) else str(value)).encode()
    else:
        raise GrammarError(
            location.subject(keyword), f"{type(value).__name__} is not a JSON value", evidence=f"found {value!r:.60}"
        )


_MAX_INTEGER_DIGITS: Final = 64
_MAX_NESTING: Final = 2_000


def value_term(value: Json, syntax: Syntax, location: Location, keyword: str) -> Grammar:
    """The JSON texts of one value; order of members and whitespace follow the policy, the rest is canonical.

    Raises:
        GrammarError: a part of the value is not JSON.
        LimitExceeded: it is nested deeper than 2,000.
    """
    done: list[Grammar] = []  # finished terms, waiting for their container
    stack: list[tuple[Json, bool]] = [(value, False)]
    depth = 0
    while stack:
        item, is_ready = stack.pop()
        if not isinstance(item, (dict, list, tuple)):
            done.append(values_term((item,), syntax, location, keyword, fractions=True))
        elif not is_ready:
            depth += 1
            if depth > _MAX_NESTING:
                raise LimitExceeded(location.subject(keyword), limit="nesting", maximum=_MAX_NESTING)
            stack.append((item, True))
            members_of_item = item.values() if isinstance(item, dict) else item
            stack.extend((member, False) for member in reversed(list(members_of_item)))
        else:
            depth -= 1
            count = len(item)
            spend(8 + 8 * count, partial(location.subject, keyword))
            members = done[len(done) - count :]
            del done[len(done) - count :]
            done.append(_container(item, members, syntax, location, keyword))
    return done[0]


def _container(value: Json, members: list[Grammar], syntax: Syntax, location: Location, keyword: str) -> Grammar:
    if isinstance(value, dict):
        for name in value:
            if not isinstance(name, str):
                raise GrammarError(location.subject(keyword), f"{name!r} is not a name of a JSON object")
        members = [
            chain(string_literal(name, syntax.policy, location, keyword), syntax.colon, member)
            for name, member in zip(value, members, strict=True)
        ]
        begin, close, end = syntax.open_object, syntax.close_object, syntax.end_object
        if syntax.policy.order == "any" and len(members) > 1:
            return chain(begin, Permutation(members, separator=syntax.comma), close)
    else:
        begin, close, end = syntax.open_array, syntax.close_array, syntax.end_array
    if not members:
        return chain(begin, end)
    parts = [begin, members[0]]
    for member in members[1:]:
        parts += (syntax.comma, member)
    return chain(*parts, close)

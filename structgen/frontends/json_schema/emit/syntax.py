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
from structgen.frontends.json_schema.policy import JsonPolicy, spacing
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
_WHITESPACE: Final = ByteClass([(0x09, 0x0A), (0x0D, 0x0D), (0x20, 0x20)])


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
        lead: whitespace before the first item or member only, not in an empty container.
        close_object: whitespace and ``}``; likewise the attributes of arrays.
        comma: ``,`` between members, with the whitespace around it.
        colon: ``:`` after a name, with the whitespace around it.
        any_integral: every number whose value is an integer, in all its forms.
        any_number: every number; likewise ``any_integer``.
        any_string: every string.
        outside: the whitespace before and after the document.
        levels: any value inside no container, inside one and so on; the last one applies to all deeper levels.
        depth: how many containers are around the text, where the whitespace depends on that.
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
    outside: Grammar
    levels: tuple[NestingLevel, ...]
    lead: Grammar = EPSILON
    depth: int = 0

    def inside(self, count: int) -> Syntax:
        """The terms inside ``count`` more containers."""
        if count == 0 or self.policy.whitespace != "indented":
            return self
        depth = self.depth + count
        return replace(self, **_punctuation(self.policy, depth)._asdict(), depth=depth)

    def object(self, some: Grammar, *, may_be_empty: bool) -> Grammar:
        """The objects with the members of ``some``, whose end closes them; also the one without members."""
        return self._container(self.open_object, some, self.end_object if may_be_empty else EMPTY)

    def array(self, some: Grammar, *, may_be_empty: bool) -> Grammar:
        """The same for arrays."""
        return self._container(self.open_array, some, self.end_array if may_be_empty else EMPTY)

    def _container(self, begin: Grammar, some: Grammar, end: Grammar) -> Grammar:
        if self.lead is not EPSILON:
            some = chain(self.lead, some)
        return Sequence((begin, some if end is EMPTY else Choice((end, some))))

    def at(self, depth: int) -> NestingLevel:
        """Any value inside ``depth`` arrays and objects."""
        return self.levels[min(depth, len(self.levels) - 1)]


class _Punctuation(NamedTuple):
    """The punctuation around values and between them; the names are those of ``Syntax``."""

    open_object: Grammar
    close_object: Grammar
    open_array: Grammar
    close_array: Grammar
    comma: Grammar
    colon: Grammar
    outside: Grammar
    lead: Grammar = EPSILON


@lru_cache(maxsize=512)
def _punctuation(policy: JsonPolicy, depth: int) -> _Punctuation:
    """The white space between the parts of a container inside ``depth`` others."""
    run = Shared(Repeat(_WHITESPACE, 0, policy.width))
    comma, colon = _marks(policy)
    if policy.whitespace == "indented":
        unit = policy.indent if isinstance(policy.indent, str) else " " * policy.width
        here, lead = (Literal(f"\n{unit * count}".encode()) for count in (depth, depth + 1))
        close_object, close_array = (_joined(here, bracket) for bracket in (_CLOSE_BRACE, _CLOSE_BRACKET))
        comma = _joined(comma, lead)
        outside = run if policy.around else EPSILON
        return _Punctuation(_OPEN_BRACE, close_object, _OPEN_BRACKET, close_array, comma, colon, outside, lead)
    space = _space(policy)
    outside = (run if space is EPSILON else space) if policy.around else EPSILON
    if space is not EPSILON:
        comma, colon = _around(space, comma), _around(space, colon)
    return _Punctuation(
        _joined(_OPEN_BRACE, space),
        _joined(space, _CLOSE_BRACE),
        _joined(_OPEN_BRACKET, space),
        _joined(space, _CLOSE_BRACKET),
        comma,
        colon,
        outside,
    )


def _marks(policy: JsonPolicy) -> tuple[Grammar, Grammar]:
    """The comma and the colon, with the whitespace that belongs to them whatever the policy leaves open."""
    if policy.separators is not None:
        comma, colon = policy.separators
        return spacing(comma, ",", "JsonPolicy: separators"), spacing(colon, ":", "JsonPolicy: separators")
    if policy.space is not None or policy.whitespace not in ("single", "indented"):
        return Literal(b","), Literal(b":")
    return Literal(b", " if policy.whitespace == "single" else b","), Literal(b": ")


@lru_cache(maxsize=64)
def syntax_of(policy: JsonPolicy) -> Syntax:
    """Make the shared terms of ``policy``; the same policy gives the same objects."""
    if policy.order != "declared":  # the shared terms do not depend on this
        return replace(syntax_of(replace(policy, order="declared")), policy=policy)
    more = Repeat(DIGIT, 0, policy.digits - 1)
    natural = Choice((Literal(b"0"), Sequence((NONZERO_DIGIT, more))))
    sign = Repeat(Literal(b"-"), 0, 1)
    integer = Shared(Sequence((sign, natural)))
    number = Shared(Sequence((sign, _magnitude(policy))))

    length = policy.max_length
    string = ANY_STRING if length is None else Shared(JsonString(Repeat(ANY_CHAR, 0, length)))
    syntax = Syntax(
        policy=policy,
        **_punctuation(policy, 0)._asdict(),
        end_object=_CLOSE_BRACE,
        end_array=_CLOSE_BRACKET,
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

    def members(at: Syntax, member: Grammar, max_count: int | None, close: Grammar) -> Grammar:
        more = Repeat(Sequence((at.comma, member)), 0, None if max_count is None else max_count - 1)
        return Sequence((member, more, close))

    def array(item: Grammar, at: Syntax = syntax) -> Grammar:
        if policy.max_items == 0:
            return Sequence((at.open_array, _CLOSE_BRACKET))
        return at.array(members(at, item, policy.max_items, at.close_array), may_be_empty=True)

    def obj(item: Grammar, at: Syntax = syntax) -> Grammar:
        if policy.max_members == 0:
            return Sequence((at.open_object, _CLOSE_BRACE))
        member = Sequence((syntax.any_string, at.colon, item))
        return at.object(members(at, member, policy.max_members, at.close_object), may_be_empty=True)

    scalars = (syntax.any_string, syntax.any_number, BOOLEAN_TERM, NULL_TERM)
    compares = policy.repeated == "forbidden" and (policy.max_members is None or policy.max_members > 1)

    def marked(objects: Grammar) -> Grammar:
        return distinct(objects, is_spare=True) if compares else objects

    if policy.depth is None:
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
    for depth in range(policy.depth - 1, -1, -1):
        at = syntax.inside(depth)
        containers = Shared(array(levels[-1].value, at)), Shared(marked(obj(inside, at)))
        levels.append(NestingLevel(Shared(Choice((*scalars, *containers))), *containers))
        plain = Choice((*scalars, Shared(array(inside, at)), Shared(obj(inside, at))))
        inside = Shared(plain) if compares else levels[-1].value
    return tuple(reversed(levels))


def _any_integral(policy: JsonPolicy, number: Grammar) -> Grammar:
    integral = Sequence((Repeat(Literal(b"-"), 0, 1), integral_magnitudes(policy.digits)))
    return Shared(Intersection((number, integral)))


def _space(policy: JsonPolicy) -> Grammar:
    if policy.space is not None:
        return Shared(Repeat(spacing(policy.space, "", "JsonPolicy: space"), 0, 1))
    if policy.whitespace in ("any", "runs"):
        return Shared(Repeat(_WHITESPACE, 0, None if policy.whitespace == "any" else policy.width))
    if policy.whitespace != "flexible":
        return EPSILON
    indentation = Repeat(ByteClass([(0x09, 0x09), (0x20, 0x20)]), 0, policy.width)
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


def _around(space: Grammar, mark: Grammar) -> Grammar:
    return Shared(Sequence((space, mark, space)))


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
            done.append(_container(item, members, syntax.inside(depth), location, keyword))
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
        if syntax.policy.order == "any" and len(members) > 1:
            listed = Permutation(members, separator=syntax.comma)
            return chain(syntax.open_object, syntax.lead, listed, syntax.close_object)
    is_object = isinstance(value, dict)
    if not members:
        return chain(*((syntax.open_object, syntax.end_object) if is_object else (syntax.open_array, syntax.end_array)))
    begin, close = (syntax.open_object, syntax.close_object) if is_object else (syntax.open_array, syntax.close_array)
    parts = [begin, syntax.lead, members[0]]
    for member in members[1:]:
        parts += (syntax.comma, member)
    return chain(*parts, close)

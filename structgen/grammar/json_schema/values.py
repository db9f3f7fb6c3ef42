"""The canonical texts of constants, ``enum`` and ``const``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from decimal import Decimal
from json.encoder import encode_basestring
from typing import TYPE_CHECKING, Final

from structgen.errors import GrammarError, LimitExceeded
from structgen.grammar.json_schema.numbers import equal_numbers, exact
from structgen.grammar.json_schema.terms import chain
from structgen.grammar.nodes import EMPTY, Choice, Grammar, JsonString, Literal, Permutation

if TYPE_CHECKING:
    from structgen.grammar.json_schema.places import Place
    from structgen.grammar.json_schema.policy import JsonPolicy
    from structgen.grammar.json_schema.strict_json import Json
    from structgen.grammar.json_schema.syntax import Syntax

__all__ = ["quoted", "string_literal", "value_term", "values_term"]

_NAMED: Final = {None: b"null", True: b"true", False: b"false"}


def quoted(text: str, place: Place, *steps: str | int) -> bytes:
    """A JSON string literal as ``json.dumps(text, ensure_ascii=False)`` writes it, in UTF-8.

    Raises:
        GrammarError: ``text`` has a lone surrogate, which no UTF-8 text can hold.
    """
    try:
        return encode_basestring(text).encode()
    except UnicodeEncodeError as error:
        raise GrammarError(
            place.subject(*steps),
            f"lone surrogate {error.object[error.start]!r} cannot be written in UTF-8",
            remedy="write the character itself, or a surrogate pair",
        ) from None


def string_literal(text: str, policy: JsonPolicy, place: Place, *steps: str | int) -> Grammar:
    """The JSON strings of one text: the canonical one, or all.

    Raises:
        GrammarError: ``text`` has a lone surrogate.
    """
    canonical = quoted(text, place, *steps)
    return Literal(canonical) if policy.escapes == "canonical" else JsonString(Literal(text.encode()))


def _has_forms(value: Json, place: Place, *, fractions: bool) -> bool:
    """Whether a value is a number that may be written in several forms."""
    if isinstance(value, bool) or not isinstance(value, (int, float, Decimal)) or not Decimal(value).is_finite():
        return False
    return fractions or place.resource.dialect.draft > 4


def values_term(values: Iterable[Json], syntax: Syntax, place: Place, keyword: str, *, fractions: bool) -> Grammar:
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
            others.append(value_term(value, syntax, place, keyword))
        elif isinstance(value, str) and policy.escapes == "canonical":
            texts[quoted(value, place, keyword)] = None
        elif isinstance(value, str):
            others.append(string_literal(value, policy, place, keyword))
        elif policy.numbers == "all" and _has_forms(value, place, fractions=fractions):
            others.append(equal_numbers(exact(value), policy.digits))
        else:
            texts.update(dict.fromkeys(_spellings(value, place, keyword, fractions=fractions)))
    terms = [*map(Literal, texts), *others]
    return terms[0] if len(terms) == 1 else Choice(terms) if terms else EMPTY


def _spellings(value: Json, place: Place, keyword: str, *, fractions: bool = True) -> Iterator[bytes]:
    if value is None or isinstance(value, bool):
        yield _NAMED[value]
    elif isinstance(value, int):
        yield str(value).encode()
    elif isinstance(value, (float, Decimal)):
        number = Decimal(repr(value)) if isinstance(value, float) else value
        if not number.is_finite():
            raise GrammarError(place.subject(keyword), f"{value!r} is not a JSON number")
        is_integral = number.adjusted() < _LONGEST_INTEGER and number == number.to_integral_value()
        if is_integral:
            yield str(int(number)).encode()
        if fractions or not is_integral:
            yield (repr(value) if isinstance(value, float) else str(value)).encode()
    else:
        raise GrammarError(
            place.subject(keyword),
            f"{type(value).__name__} is not a JSON value",
            evidence=f"found {value!r:.60}",
        )


_LONGEST_INTEGER: Final = 64
_DEEPEST: Final = 2_000


def value_term(value: Json, syntax: Syntax, place: Place, keyword: str) -> Grammar:
    """The texts of one value: members in their order, or in any; whitespace after the policy, the rest canonical.

    Raises:
        GrammarError: a part of it is not JSON.
        LimitExceeded: it is nested deeper than 2,000.
    """
    done: list[Grammar] = []  # finished terms that wait for their container
    stack: list[tuple[Json, bool]] = [(value, False)]
    depth = 0
    while stack:
        item, is_ready = stack.pop()
        if not isinstance(item, (dict, list, tuple)):
            done.append(values_term((item,), syntax, place, keyword, fractions=True))
        elif not is_ready:
            depth += 1
            if depth > _DEEPEST:
                raise LimitExceeded(place.subject(keyword), limit="nesting", maximum=_DEEPEST)
            stack.append((item, True))
            members_of_item = item.values() if isinstance(item, dict) else item
            stack.extend((member, False) for member in reversed(list(members_of_item)))
        else:
            depth -= 1
            count = len(item)
            members = done[len(done) - count :]
            del done[len(done) - count :]
            done.append(_container(item, members, syntax, place, keyword))
    return done[0]


def _container(value: Json, members: list[Grammar], syntax: Syntax, place: Place, keyword: str) -> Grammar:
    if isinstance(value, dict):
        for name in value:
            if not isinstance(name, str):
                raise GrammarError(place.subject(keyword), f"{name!r} is not a name of a JSON object")
        members = [
            chain(string_literal(name, syntax.policy, place, keyword), syntax.colon, member)
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

"""Readers of the keywords of numbers, strings, arrays and objects: each checks a value and adds an assertion."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction
from typing import TYPE_CHECKING, Final

from structgen.errors import GrammarError, GrammarSyntaxError, LimitExceeded, UnsupportedFeature
from structgen.frontends.json_schema.normal.container_assertion import ArrayAssertion, ObjectAssertion
from structgen.frontends.json_schema.normal.scalar_assertion import (
    MAX_BOUND_DIGITS,
    NumberAssertion,
    StringAssertion,
    exact,
)
from structgen.frontends.json_schema.source.location import Location, malformed, refused
from structgen.grammar.nodes import Grammar

if TYPE_CHECKING:
    from structgen.frontends.json_schema.normal.disjunct import Disjunct
    from structgen.frontends.json_schema.source.json_value import Json

__all__ = [
    "ARRAY_READERS",
    "GUIDANCE",
    "NUMBER_READERS",
    "OBJECT_READERS",
    "STRING_READERS",
    "check_schema",
    "max_count",
    "min_count",
    "pattern_language",
    "read_guidance",
]

_MAX_COUNT: Final = 2**31 - 1
"""Counts above this exceed every text that fits into memory."""


def min_count(location: Location, keyword: str, value: Json) -> int:
    """A lower bound on a count: a non-negative integer, also as a number with a zero fraction.

    Raises:
        GrammarError: ``value`` is not a count.
        UnsupportedFeature: no text can contain so many.
    """
    count = _natural(location, keyword, value)
    if count > _MAX_COUNT:
        refused(location, keyword, f"no text can hold {value} of them", remedy=f"give at most {_MAX_COUNT}")
    return count


def max_count(location: Location, keyword: str, value: Json) -> int | None:
    """An upper bound on a count; ``None`` if no text can reach it.

    Raises:
        GrammarError: ``value`` is not a count.
    """
    count = _natural(location, keyword, value)
    return count if count <= _MAX_COUNT else None


def _natural(location: Location, keyword: str, value: Json) -> int:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        malformed(location, keyword, "a non-negative integer")
    return value


def check_schema(location: Location, keyword: str, value: Json, *steps: str | int) -> None:
    """Check that the value of a keyword, or the part that ``steps`` lead to, is a schema.

    Raises:
        GrammarError: it is not.
    """
    if not isinstance(value, (dict, bool)):
        malformed(location, keyword, "a schema", *steps)


def _check_schemas(location: Location, keyword: str, value: Json) -> None:
    if not isinstance(value, dict):
        malformed(location, keyword, "an object of schemas")
    for name, schema in value.items():
        check_schema(location, keyword, schema, name)


def _number(location: Location, keyword: str, value: Json) -> int | Decimal:
    if isinstance(value, bool) or not isinstance(value, (int, float, Decimal)):
        malformed(location, keyword, "a number")
    number = exact(value)
    if isinstance(number, Decimal) and not number.is_finite():
        malformed(location, keyword, "a finite number")
    return number


def _number_assertion(disjunct: Disjunct) -> NumberAssertion:
    assertion = disjunct.number
    if assertion is None:
        assertion = disjunct.number = NumberAssertion()
    return assertion


def _minimum(disjunct: Disjunct, location: Location, value: Json) -> None:
    _number_assertion(disjunct).raise_lower(_number(location, "minimum", value), is_open=False)


def _maximum(disjunct: Disjunct, location: Location, value: Json) -> None:
    _number_assertion(disjunct).drop_upper(_number(location, "maximum", value), is_open=False)


def _exclusive_bound(location: Location, keyword: str, inclusive: str, value: Json) -> int | Decimal | None:
    if not isinstance(value, bool):
        return _number(location, keyword, value)
    # Draft 4: a modifier of the inclusive keyword.
    return _number(location, inclusive, location.schema[inclusive]) if value and inclusive in location.schema else None


def _exclusive_minimum(disjunct: Disjunct, location: Location, value: Json) -> None:
    bound = _exclusive_bound(location, "exclusiveMinimum", "minimum", value)
    if bound is not None:
        _number_assertion(disjunct).raise_lower(bound, is_open=True)


def _exclusive_maximum(disjunct: Disjunct, location: Location, value: Json) -> None:
    bound = _exclusive_bound(location, "exclusiveMaximum", "maximum", value)
    if bound is not None:
        _number_assertion(disjunct).drop_upper(bound, is_open=True)


def _multiple_of(disjunct: Disjunct, location: Location, value: Json) -> None:
    step = _number(location, "multipleOf", value)
    if step <= 0:
        malformed(location, "multipleOf", "greater than 0")
    if isinstance(step, Decimal) and abs(step.adjusted()) > MAX_BOUND_DIGITS:
        refused(location, "multipleOf", f"a step with more than {MAX_BOUND_DIGITS} digits is not enforced")
    _number_assertion(disjunct).divide(Fraction(step))


NUMBER_READERS: Final = {
    "minimum": _minimum,
    "maximum": _maximum,
    "exclusiveMinimum": _exclusive_minimum,
    "exclusiveMaximum": _exclusive_maximum,
    "multipleOf": _multiple_of,
}


def _string_assertion(disjunct: Disjunct) -> StringAssertion:
    assertion = disjunct.string
    if assertion is None:
        assertion = disjunct.string = StringAssertion()
    return assertion


def _min_length(disjunct: Disjunct, location: Location, value: Json) -> None:
    _string_assertion(disjunct).shortest = min_count(location, "minLength", value)


def _max_length(disjunct: Disjunct, location: Location, value: Json) -> None:
    _string_assertion(disjunct).longest = max_count(location, "maxLength", value)


def _pattern(disjunct: Disjunct, location: Location, value: Json) -> None:
    if not isinstance(value, str):
        malformed(location, "pattern", "a regular expression in a string")
    _string_assertion(disjunct).languages += (pattern_language(value, location, "pattern"),)


def _format(disjunct: Disjunct, location: Location, value: Json) -> None:
    if not isinstance(value, str):
        malformed(location, "format", "a string")
    from structgen.frontends.json_schema.formats import ASSERTED, PLAIN_HOSTNAME, STANDARD  # large, and often unused

    document = location.resource.document
    if value in document.formats:
        _string_assertion(disjunct).formats[document.formats[value]] = location
    elif value in ASSERTED and document.asserts_formats:
        is_old = value == "hostname" and location.resource.dialect.draft <= 6
        _string_assertion(disjunct).formats[STANDARD[PLAIN_HOSTNAME if is_old else value]] = location


STRING_READERS: Final = {"minLength": _min_length, "maxLength": _max_length, "pattern": _pattern, "format": _format}


def pattern_language(pattern: str, location: Location, *steps: str | int) -> Grammar:
    """The texts that contain a match of ``pattern``, an ECMA-262 regular expression.

    Raises:
        GrammarError: an error of the regex front end, with the JSON Pointer made of ``location`` and ``steps``.
    """
    from structgen.frontends.regex import search_language  # large, and often unused

    try:
        return search_language(pattern, dialect="ecma", limits=location.resource.limits)
    except (GrammarError, LimitExceeded) as error:
        raise _located_error(error, location, steps) from None


def _located_error(
    error: GrammarError | LimitExceeded, location: Location, steps: tuple[str | int, ...]
) -> GrammarError | LimitExceeded:
    """The same error with a location in the schema."""
    subject, pointer = location.subject(*steps), location.at(*steps)
    match error:
        case GrammarSyntaxError():
            return GrammarSyntaxError(subject, error.problem, text=error.text, span=error.span, remedy=error.remedy)
        case UnsupportedFeature():
            return UnsupportedFeature(subject, error.feature, where=pointer, problem=error.problem, remedy=error.remedy)
        case LimitExceeded():
            return LimitExceeded(
                subject, limit=error.limit, maximum=error.maximum, evidence=error.evidence, remedy=error.remedy
            )
    return type(error)(subject, error.problem, evidence=error.evidence, remedy=error.remedy)


def _array_assertion(disjunct: Disjunct, location: Location) -> ArrayAssertion:
    if not disjunct.arrays:
        disjunct.arrays = (ArrayAssertion(location),)
    return disjunct.arrays[0]


def _judge_rest(assertion: ArrayAssertion | ObjectAssertion, value: Json) -> None:
    if value is True or value == {}:
        assertion.covers_rest = True
    else:
        assertion.unevaluated = value


def _items(disjunct: Disjunct, location: Location, value: Json) -> None:
    assertion = _array_assertion(disjunct, location)
    if isinstance(value, list):  # up to draft 2019-09; further items are under additionalItems
        if "prefixItems" in location.schema:
            malformed(location, "items", "a schema where 'prefixItems' is given too")
        assertion.prefix, assertion.prefix_keyword = value, "items"
        assertion.rest, assertion.rest_keyword = location.schema.get("additionalItems", True), "additionalItems"
        assertion.covers_rest = "additionalItems" in location.schema
    elif isinstance(value, (dict, bool)):
        assertion.rest = value
        assertion.covers_rest = True
    else:
        malformed(location, "items", "a schema or an array of schemas")


def _prefix_items(disjunct: Disjunct, location: Location, value: Json) -> None:
    if not isinstance(value, list):
        malformed(location, "prefixItems", "an array of schemas")
    _array_assertion(disjunct, location).prefix = value


def _additional_items(_: Disjunct, location: Location, value: Json) -> None:
    check_schema(location, "additionalItems", value)


def _min_items(disjunct: Disjunct, location: Location, value: Json) -> None:
    _array_assertion(disjunct, location).min_count = min_count(location, "minItems", value)


def _max_items(disjunct: Disjunct, location: Location, value: Json) -> None:
    _array_assertion(disjunct, location).max_count = max_count(location, "maxItems", value)


def _unique_items(disjunct: Disjunct, location: Location, value: Json) -> None:
    if not isinstance(value, bool):
        malformed(location, "uniqueItems", "true or false")
    if value:
        _array_assertion(disjunct, location).refusals += ("uniqueItems",)


def _contains(disjunct: Disjunct, location: Location, value: Json) -> None:
    check_schema(location, "contains", value)
    _array_assertion(disjunct, location).contained = location.inner(value, "contains")


def _min_contains(disjunct: Disjunct, location: Location, value: Json) -> None:
    _array_assertion(disjunct, location).min_contained = min_count(location, "minContains", value)


def _max_contains(disjunct: Disjunct, location: Location, value: Json) -> None:
    _array_assertion(disjunct, location).max_contained = max_count(location, "maxContains", value)


def _unevaluated_items(disjunct: Disjunct, location: Location, value: Json) -> None:
    check_schema(location, "unevaluatedItems", value)
    _judge_rest(_array_assertion(disjunct, location), value)


ARRAY_READERS: Final = {
    "items": _items,
    "prefixItems": _prefix_items,
    "additionalItems": _additional_items,
    "minItems": _min_items,
    "maxItems": _max_items,
    "uniqueItems": _unique_items,
    "contains": _contains,
    "minContains": _min_contains,
    "maxContains": _max_contains,
    "unevaluatedItems": _unevaluated_items,
}


def _object_assertion(disjunct: Disjunct, location: Location) -> ObjectAssertion:
    if not disjunct.objects:
        disjunct.objects = (ObjectAssertion(location),)
    return disjunct.objects[0]


def _properties(disjunct: Disjunct, location: Location, value: Json) -> None:
    if not isinstance(value, dict):
        malformed(location, "properties", "an object of schemas")
    for name, schema in value.items():
        check_schema(location, "properties", schema, name)
        if not isinstance(name, str):
            malformed(location, "properties", "an object whose names are strings")
    _object_assertion(disjunct, location).properties = value


def _required(disjunct: Disjunct, location: Location, value: Json) -> None:
    if not isinstance(value, (list, tuple)):
        malformed(location, "required", "an array of names")
    for index, name in enumerate(value):
        if not isinstance(name, str):
            malformed(location, "required", "a name", index)
    _object_assertion(disjunct, location).required = list(value)


def _additional_properties(disjunct: Disjunct, location: Location, value: Json) -> None:
    check_schema(location, "additionalProperties", value)
    assertion = _object_assertion(disjunct, location)
    assertion.additional = value
    assertion.covers_rest = True


def _pattern_properties(disjunct: Disjunct, location: Location, value: Json) -> None:
    _check_schemas(location, "patternProperties", value)
    assertion = _object_assertion(disjunct, location)
    assertion.pattern_schemas = value
    assertion.patterns = tuple(
        (pattern, pattern_language(pattern, location, "patternProperties", pattern)) for pattern in value
    )


def _property_names(disjunct: Disjunct, location: Location, value: Json) -> None:
    check_schema(location, "propertyNames", value)
    _object_assertion(disjunct, location).names = value


def _min_properties(disjunct: Disjunct, location: Location, value: Json) -> None:
    _object_assertion(disjunct, location).min_count = min_count(location, "minProperties", value)


def _max_properties(disjunct: Disjunct, location: Location, value: Json) -> None:
    _object_assertion(disjunct, location).max_count = max_count(location, "maxProperties", value)


def _names(location: Location, keyword: str, name: str, value: Json) -> tuple[str, ...]:
    if not isinstance(value, (list, tuple)):
        malformed(location, keyword, "an array of names", name)
    for index, other in enumerate(value):
        if not isinstance(other, str):
            malformed(location, keyword, "a name", name, index)
    return tuple(value)


def _depend(disjunct: Disjunct, location: Location, name: str, others: tuple[str, ...]) -> None:
    if any(other != name for other in others):
        assertion = _object_assertion(disjunct, location)
        assertion.dependents = {**assertion.dependents, name: (*assertion.dependents.get(name, ()), *others)}


def _dependent_required(disjunct: Disjunct, location: Location, value: Json) -> None:
    if not isinstance(value, dict):
        malformed(location, "dependentRequired", "an object")
    for name, others in value.items():
        _depend(disjunct, location, name, _names(location, "dependentRequired", name, others))


def _dependent_schemas(_: Disjunct, location: Location, value: Json) -> None:
    _check_schemas(location, "dependentSchemas", value)


def _dependencies(disjunct: Disjunct, location: Location, value: Json) -> None:
    if not isinstance(value, dict):
        malformed(location, "dependencies", "an object")
    for name, what in value.items():
        if isinstance(what, str):  # draft 3, but still in use
            malformed(location, "dependencies", "a schema or an array of names", name)
        if not isinstance(what, (dict, bool)):
            _depend(disjunct, location, name, _names(location, "dependencies", name, what))


def _unevaluated_properties(disjunct: Disjunct, location: Location, value: Json) -> None:
    check_schema(location, "unevaluatedProperties", value)
    _judge_rest(_object_assertion(disjunct, location), value)


GUIDANCE: Final = "x-guidance"


def read_guidance(_: Disjunct, location: Location, __: Json) -> None:
    """Refuse ``x-guidance`` below the root of the document; there it was read before (``guidance``)."""
    if location.resource.document.name or location.steps:
        refused(
            location,
            GUIDANCE,
            f"{GUIDANCE!r} has a meaning at the root of the schema only",
            remedy="write its options into the root schema, or remove it",
        )


OBJECT_READERS: Final = {
    "properties": _properties,
    "required": _required,
    "additionalProperties": _additional_properties,
    "patternProperties": _pattern_properties,
    "propertyNames": _property_names,
    "minProperties": _min_properties,
    "maxProperties": _max_properties,
    "dependentRequired": _dependent_required,
    "dependentSchemas": _dependent_schemas,
    "dependencies": _dependencies,
    "unevaluatedProperties": _unevaluated_properties,
}

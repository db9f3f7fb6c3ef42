"""The keywords of numbers, strings, arrays and objects: checks each value and adds the assertion to a disjunct."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction
from typing import TYPE_CHECKING, Final

from structgen.errors import GrammarError, GrammarSyntaxError, LimitExceeded, UnsupportedFeature
from structgen.frontends.json_schema.formats import ASSERTED, PLAIN_HOSTNAME, STANDARD
from structgen.frontends.json_schema.normal.container_assertion import ArrayAssertion, ObjectAssertion
from structgen.frontends.json_schema.normal.scalar_assertion import (
    MAX_BOUND_DIGITS,
    NumberAssertion,
    StringAssertion,
    exact,
)
from structgen.frontends.json_schema.source.location import Location, malformed, refused
from structgen.frontends.regex import search_language
from structgen.grammar.nodes import Grammar

if TYPE_CHECKING:
    from structgen.frontends.json_schema.normal.disjunct import Disjunct
    from structgen.frontends.json_schema.source.json_value import Json

__all__ = [
    "ARRAY_READERS",
    "NUMBER_READERS",
    "OBJECT_READERS",
    "STRING_READERS",
    "max_count",
    "min_count",
    "pattern_language",
]

_MAX_COUNT: Final = 2**31 - 1
"""No text that fits into memory has more characters or items."""


def min_count(place: Location, keyword: str, value: Json) -> int:
    """A lower bound on a count: an integer, or a number with a zero fraction, that is not negative.

    Raises:
        GrammarError: ``value`` is none.
        UnsupportedFeature: it is beyond what any text can hold.
    """
    count = _natural(place, keyword, value)
    if count > _MAX_COUNT:
        refused(place, keyword, f"no text can hold {value} of them", remedy=f"give at most {_MAX_COUNT}")
    return count


def max_count(place: Location, keyword: str, value: Json) -> int | None:
    """An upper bound on a count, or ``None`` if no text can reach it.

    Raises:
        GrammarError: ``value`` is no count.
    """
    count = _natural(place, keyword, value)
    return count if count <= _MAX_COUNT else None


def _natural(place: Location, keyword: str, value: Json) -> int:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        malformed(place, keyword, "a non-negative integer")
    return value


def _number(place: Location, keyword: str, value: Json) -> int | Decimal:
    if isinstance(value, bool) or not isinstance(value, (int, float, Decimal)):
        malformed(place, keyword, "a number")
    number = exact(value)
    if isinstance(number, Decimal) and not number.is_finite():
        malformed(place, keyword, "a finite number")
    return number


def _number_assertion(shape: Disjunct) -> NumberAssertion:
    assertion = shape.number
    if assertion is None:
        assertion = shape.number = NumberAssertion()
    return assertion


def _minimum(shape: Disjunct, place: Location, value: Json) -> None:
    _number_assertion(shape).raise_lower(_number(place, "minimum", value), is_open=False)


def _maximum(shape: Disjunct, place: Location, value: Json) -> None:
    _number_assertion(shape).drop_upper(_number(place, "maximum", value), is_open=False)


def _exclusive_minimum(shape: Disjunct, place: Location, value: Json) -> None:
    if isinstance(value, bool):  # draft 4: a modifier of minimum
        if value and "minimum" in place.schema:
            bound = _number(place, "minimum", place.schema["minimum"])
            _number_assertion(shape).raise_lower(bound, is_open=True)
        return
    _number_assertion(shape).raise_lower(_number(place, "exclusiveMinimum", value), is_open=True)


def _exclusive_maximum(shape: Disjunct, place: Location, value: Json) -> None:
    if isinstance(value, bool):
        if value and "maximum" in place.schema:
            bound = _number(place, "maximum", place.schema["maximum"])
            _number_assertion(shape).drop_upper(bound, is_open=True)
        return
    _number_assertion(shape).drop_upper(_number(place, "exclusiveMaximum", value), is_open=True)


def _multiple_of(shape: Disjunct, place: Location, value: Json) -> None:
    step = _number(place, "multipleOf", value)
    if step <= 0:
        malformed(place, "multipleOf", "greater than 0")
    if isinstance(step, Decimal) and abs(step.adjusted()) > MAX_BOUND_DIGITS:
        refused(place, "multipleOf", f"a step with more than {MAX_BOUND_DIGITS} digits is not enforced")
    _number_assertion(shape).divide(Fraction(step))


NUMBER_READERS: Final = {
    "minimum": _minimum,
    "maximum": _maximum,
    "exclusiveMinimum": _exclusive_minimum,
    "exclusiveMaximum": _exclusive_maximum,
    "multipleOf": _multiple_of,
}


def _string_assertion(shape: Disjunct) -> StringAssertion:
    assertion = shape.string
    if assertion is None:
        assertion = shape.string = StringAssertion()
    return assertion


def _min_length(shape: Disjunct, place: Location, value: Json) -> None:
    _string_assertion(shape).shortest = min_count(place, "minLength", value)


def _max_length(shape: Disjunct, place: Location, value: Json) -> None:
    _string_assertion(shape).longest = max_count(place, "maxLength", value)


def _pattern(shape: Disjunct, place: Location, value: Json) -> None:
    if not isinstance(value, str):
        malformed(place, "pattern", "a regular expression in a string")
    _string_assertion(shape).languages += (pattern_language(value, place, "pattern"),)


def _format(shape: Disjunct, place: Location, value: Json) -> None:
    if not isinstance(value, str):
        malformed(place, "format", "a string")
    document = place.resource.document
    if value in document.formats:
        _string_assertion(shape).formats[document.formats[value]] = place
    elif value in ASSERTED and document.asserts_formats:
        is_old = value == "hostname" and place.resource.dialect.draft <= 6
        _string_assertion(shape).formats[STANDARD[PLAIN_HOSTNAME if is_old else value]] = place


STRING_READERS: Final = {
    "minLength": _min_length,
    "maxLength": _max_length,
    "pattern": _pattern,
    "format": _format,
}


def pattern_language(pattern: str, place: Location, *steps: str | int) -> Grammar:
    """The texts in which ``pattern``, an ECMA-262 regular expression, occurs.

    Raises:
        GrammarError: as the regex front end raises, with the JSON Pointer made of ``place`` and ``steps``.
    """
    try:
        return search_language(pattern, dialect="ecma", limits=place.resource.limits)
    except (GrammarError, LimitExceeded) as error:
        raise _located_error(error, place, steps) from None


def _located_error(
    error: GrammarError | LimitExceeded, place: Location, steps: tuple[str | int, ...]
) -> GrammarError | LimitExceeded:
    """The same error, about a place in a schema."""
    subject, pointer = place.subject(*steps), place.at(*steps)
    match error:
        case GrammarSyntaxError():
            return GrammarSyntaxError(subject, error.problem, text=error.text, span=error.span, remedy=error.remedy)
        case UnsupportedFeature():
            return UnsupportedFeature(subject, error.feature, where=pointer, problem=error.problem, remedy=error.remedy)
        case LimitExceeded():
            return LimitExceeded(
                subject,
                limit=error.limit,
                maximum=error.maximum,
                evidence=error.evidence,
                remedy=error.remedy,
            )
    return type(error)(subject, error.problem, evidence=error.evidence, remedy=error.remedy)


def _array_assertion(shape: Disjunct, place: Location) -> ArrayAssertion:
    if not shape.arrays:
        shape.arrays = (ArrayAssertion(place),)
    return shape.arrays[0]


def _items(shape: Disjunct, place: Location, value: Json) -> None:
    assertion = _array_assertion(shape, place)
    if isinstance(value, list):  # up to draft 2019-09; additionalItems holds what follows
        if "prefixItems" in place.schema:
            malformed(place, "items", "a schema where 'prefixItems' is given too")
        assertion.prefix, assertion.prefix_keyword = value, "items"
        assertion.rest, assertion.rest_keyword = place.schema.get("additionalItems", True), "additionalItems"
        assertion.covers_rest = "additionalItems" in place.schema
    elif isinstance(value, (dict, bool)):
        assertion.rest = value
        assertion.covers_rest = True
    else:
        malformed(place, "items", "a schema or an array of schemas")


def _prefix_items(shape: Disjunct, place: Location, value: Json) -> None:
    if not isinstance(value, list):
        malformed(place, "prefixItems", "an array of schemas")
    _array_assertion(shape, place).prefix = value


def _additional_items(_: Disjunct, place: Location, value: Json) -> None:
    if not isinstance(value, (dict, bool)):
        malformed(place, "additionalItems", "a schema")


def _min_items(shape: Disjunct, place: Location, value: Json) -> None:
    _array_assertion(shape, place).fewest = min_count(place, "minItems", value)


def _max_items(shape: Disjunct, place: Location, value: Json) -> None:
    _array_assertion(shape, place).most = max_count(place, "maxItems", value)


def _unique_items(shape: Disjunct, place: Location, value: Json) -> None:
    if not isinstance(value, bool):
        malformed(place, "uniqueItems", "true or false")
    if value:
        _array_assertion(shape, place).refusals += ("uniqueItems",)


def _contains(shape: Disjunct, place: Location, value: Json) -> None:
    if not isinstance(value, (dict, bool)):
        malformed(place, "contains", "a schema")
    _array_assertion(shape, place).contained = Location(value, place.resource, place, ("contains",))


def _min_contains(shape: Disjunct, place: Location, value: Json) -> None:
    _array_assertion(shape, place).min_contained = min_count(place, "minContains", value)


def _max_contains(shape: Disjunct, place: Location, value: Json) -> None:
    _array_assertion(shape, place).max_contained = max_count(place, "maxContains", value)


def _unevaluated_items(shape: Disjunct, place: Location, value: Json) -> None:
    if not isinstance(value, (dict, bool)):
        malformed(place, "unevaluatedItems", "a schema")
    assertion = _array_assertion(shape, place)
    if value is True or value == {}:
        assertion.covers_rest = True
    else:
        assertion.unevaluated = value


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


def _object_assertion(shape: Disjunct, place: Location) -> ObjectAssertion:
    if not shape.objects:
        shape.objects = (ObjectAssertion(place),)
    return shape.objects[0]


def _properties(shape: Disjunct, place: Location, value: Json) -> None:
    if not isinstance(value, dict):
        malformed(place, "properties", "an object of schemas")
    for name, schema in value.items():
        if not isinstance(schema, (dict, bool)):
            malformed(place, "properties", "a schema", name)
        if not isinstance(name, str):
            malformed(place, "properties", "an object whose names are strings")
    _object_assertion(shape, place).properties = value


def _required(shape: Disjunct, place: Location, value: Json) -> None:
    if not isinstance(value, (list, tuple)):
        malformed(place, "required", "an array of names")
    for index, name in enumerate(value):
        if not isinstance(name, str):
            malformed(place, "required", "a name", index)
    _object_assertion(shape, place).required = list(value)


def _additional_properties(shape: Disjunct, place: Location, value: Json) -> None:
    if not isinstance(value, (dict, bool)):
        malformed(place, "additionalProperties", "a schema")
    assertion = _object_assertion(shape, place)
    assertion.additional = value
    assertion.covers_rest = True


def _pattern_properties(shape: Disjunct, place: Location, value: Json) -> None:
    if not isinstance(value, dict):
        malformed(place, "patternProperties", "an object of schemas")
    for pattern, schema in value.items():
        if not isinstance(schema, (dict, bool)):
            malformed(place, "patternProperties", "a schema", pattern)
    assertion = _object_assertion(shape, place)
    assertion.pattern_schemas = value
    assertion.patterns = tuple(
        (pattern, pattern_language(pattern, place, "patternProperties", pattern)) for pattern in value
    )


def _property_names(shape: Disjunct, place: Location, value: Json) -> None:
    if not isinstance(value, (dict, bool)):
        malformed(place, "propertyNames", "a schema")
    _object_assertion(shape, place).names = value


def _min_properties(shape: Disjunct, place: Location, value: Json) -> None:
    _object_assertion(shape, place).fewest = min_count(place, "minProperties", value)


def _max_properties(shape: Disjunct, place: Location, value: Json) -> None:
    _object_assertion(shape, place).most = max_count(place, "maxProperties", value)


def _names(place: Location, keyword: str, name: str, value: Json) -> tuple[str, ...]:
    if not isinstance(value, (list, tuple)):
        malformed(place, keyword, "an array of names", name)
    for index, other in enumerate(value):
        if not isinstance(other, str):
            malformed(place, keyword, "a name", name, index)
    return tuple(value)


def _depend(shape: Disjunct, place: Location, name: str, others: tuple[str, ...]) -> None:
    if any(other != name for other in others):
        assertion = _object_assertion(shape, place)
        assertion.dependents = {**assertion.dependents, name: (*assertion.dependents.get(name, ()), *others)}


def _dependent_required(shape: Disjunct, place: Location, value: Json) -> None:
    if not isinstance(value, dict):
        malformed(place, "dependentRequired", "an object")
    for name, others in value.items():
        _depend(shape, place, name, _names(place, "dependentRequired", name, others))


def _dependent_schemas(_: Disjunct, place: Location, value: Json) -> None:
    if not isinstance(value, dict):
        malformed(place, "dependentSchemas", "an object of schemas")
    for name, schema in value.items():
        if not isinstance(schema, (dict, bool)):
            malformed(place, "dependentSchemas", "a schema", name)


def _dependencies(shape: Disjunct, place: Location, value: Json) -> None:
    if not isinstance(value, dict):
        malformed(place, "dependencies", "an object")
    for name, what in value.items():
        if isinstance(what, str):  # draft 3, and still seen
            malformed(place, "dependencies", "a schema or an array of names", name)
        if not isinstance(what, (dict, bool)):
            _depend(shape, place, name, _names(place, "dependencies", name, what))


def _unevaluated_properties(shape: Disjunct, place: Location, value: Json) -> None:
    if not isinstance(value, (dict, bool)):
        malformed(place, "unevaluatedProperties", "a schema")
    assertion = _object_assertion(shape, place)
    if value is True or value == {}:
        assertion.covers_rest = True
    else:
        assertion.unevaluated = value


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

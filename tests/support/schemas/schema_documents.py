"""Documents that ``hypothesis-jsonschema`` draws for a schema."""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import Any

from hypothesis import strategies as st
from hypothesis.internal.conjecture import utils
from hypothesis_jsonschema import _canonicalise, _from_schema

__all__ = ["SCHEMAS", "documents"]

documents = _from_schema.from_schema

# The library changes schemas in place, among them the shared one for ``false``; so it gets copies.
for _name in ("canonicalish", "merged"):
    _made = getattr(_canonicalise, _name)
    for _module in (_canonicalise, _from_schema):
        setattr(_module, _name, lambda schema, made=_made: _unshared(made(schema)))


def _unshared(schema: Any) -> Any:
    return copy.deepcopy(schema) if schema in ({}, {"not": {}}) else schema


class _Counting(utils.many):
    """The loop that the library uses, ``while elements.more()``, for versions of Hypothesis that lack it."""

    def more(self) -> bool:
        if self._depth is None:
            self._rounds = iter(self.__enter__())
        if next(self._rounds, self) is not self:
            return True
        self.__exit__(None, None, None)
        return False


if not hasattr(utils.many, "more"):
    _from_schema.cu = SimpleNamespace(many=_Counting)


# The library joins any text that ``re`` compiles. Validators disagree about what only the looser annex of ECMA-262
# allows, such as ``a{``; and not every other expression is supported (docs/reference/json-schema.md).
_PIECES = ["a", "é", "[0-9]", "[^x]", r"\d", "(b|c)", "(?:ab)*", "x+", "y{2,3}", "z*?", "^", "$", ".", r"\n", r"\u0041"]
_BROKEN = ["(", "a)", "[a", "*b", "x{2,1}", "(?"]
_from_schema.STRING_FORMATS["regex"] = st.one_of(
    st.lists(st.sampled_from(_PIECES), max_size=4).map("".join), st.sampled_from(_BROKEN)
)


def _schemas(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Nested schemas, with keywords that the library can draw for."""
    names = st.sampled_from(["a", "b", "xa", "x1", "é"])
    some = st.lists(inner, min_size=1, max_size=3)
    array = st.fixed_dictionaries(
        {"type": st.just("array"), "items": inner},
        optional={
            "minItems": st.integers(0, 2),
            "maxItems": st.integers(2, 4),
            "contains": inner,
            "uniqueItems": st.booleans(),
        },
    )
    tuples = st.fixed_dictionaries(
        {"type": st.just("array"), "items": some}, optional={"additionalItems": inner, "minItems": st.integers(0, 4)}
    )
    objects = st.fixed_dictionaries(
        {"type": st.just("object"), "properties": st.dictionaries(names, inner, max_size=3)},
        optional={
            "required": st.lists(names, unique=True, max_size=2),
            "additionalProperties": inner,
            "patternProperties": st.dictionaries(st.sampled_from(["^x", "[ab]$"]), inner, max_size=2),
            "propertyNames": st.sampled_from([{"maxLength": 2}, {"pattern": "^[a-z]"}]),
            "minProperties": st.integers(0, 1),
            "maxProperties": st.integers(3, 5),
            "dependencies": st.dictionaries(names, st.lists(names, unique=True, max_size=2), max_size=1),
        },
    )
    logic = st.one_of(
        st.fixed_dictionaries({"anyOf": some}),
        st.fixed_dictionaries({"oneOf": some}),
        st.fixed_dictionaries({"allOf": some}),
        st.fixed_dictionaries({"not": inner}),
        st.fixed_dictionaries({"if": inner, "then": inner}, optional={"else": inner}),
    )
    return st.one_of(array, tuples, objects, logic)


_NUMBERS = st.fixed_dictionaries(
    {"type": st.sampled_from(["integer", "number"])},
    optional={
        "minimum": st.integers(-100, 0),
        "maximum": st.sampled_from([1, 2.5, 1_000]),
        "multipleOf": st.sampled_from([1, 2, 5, 0.5]),
    },
)
_STRINGS = st.fixed_dictionaries(
    {"type": st.just("string")},
    optional={
        "minLength": st.integers(0, 3),
        "maxLength": st.integers(3, 9),
        "pattern": st.sampled_from(["^[a-c]+$", "b", "^(ab|é)*$", "[0-9]{2}$", "^.?$"]),
    },
)
_FORMATS = st.sampled_from(["date", "time", "date-time", "email", "ipv4", "ipv6", "json-pointer", "regex", "uri"])
_LEAVES = st.one_of(
    st.sampled_from([True, {}, {"type": "null"}, {"type": "boolean"}, {"const": "a"}, {"const": {"a": [1]}}]),
    st.sampled_from([{"enum": [1, 2.5, "a", None]}, {"type": ["string", "integer"]}, {"enum": [[], {}, True]}]),
    _FORMATS.map(lambda name: {"type": "string", "format": name}),
    _NUMBERS,
    _STRINGS,
)

SCHEMAS = st.recursive(_LEAVES, _schemas, max_leaves=6)
"""Schemas of draft 7."""

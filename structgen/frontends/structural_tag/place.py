"""The formats of structural tags and their fields: what each may hold, checked with a JSON Pointer."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, final

from structgen.errors import GrammarError, LimitExceeded, UnsupportedFeature, found, meant
from structgen.frontends.json_schema import JsonPolicy
from structgen.frontends.json_schema.source.json_value import SchemaText
from structgen.grammar import nodes as ir
from structgen.grammar.limits import Limits
from structgen.grammar.nodes import Grammar
from structgen.grammar.nodes.description import Described, Description

__all__ = ["FIELDS", "LEGACY", "NOTHING", "SCHEMAS", "SUBJECT", "End", "Place", "is_text", "placed", "with_whitespace"]

SUBJECT: Final = "structural tag"
LEGACY: Final = "structures"
"""The field of the older form that has its tags."""
SCHEMAS: Final = ("json_schema", "schema")
"""The fields that hold schemas."""
_MAX_COUNT: Final = (1 << 31) - 1


@final
@dataclass(frozen=True, slots=True)
class End:
    """The end of the innermost tag around a format, which free text inside it must not contain.

    Attributes:
        texts: the strings, the empty one left out.
        tokens: the tokens, by text or id.
    """

    texts: tuple[str, ...] = ()
    tokens: tuple[str | int, ...] = ()


NOTHING: Final = End()


_LONE: Final = re.compile("[\ud800-\udfff]")


def is_text(value: object) -> bool:
    """Whether a value is a text that UTF-8 can write."""
    return isinstance(value, str) and (value.isascii() or _LONE.search(value) is None)


def _is_stop(value: object) -> bool:
    return is_text(value) and value != ""


def _is_count(value: object) -> bool:
    is_whole = value.is_integer() if isinstance(value, float) else isinstance(value, int)
    return is_whole and not isinstance(value, bool) and -_MAX_COUNT <= value <= _MAX_COUNT  # type: ignore[operator]


def _is_budget(value: object) -> bool:
    return value is None or (_is_count(value) and value >= 0)  # type: ignore[operator]


def _is_token(value: object) -> bool:
    return _is_stop(value) or (_is_count(value) and 0 <= value <= ir.MAX_TOKEN_ID)  # type: ignore[operator]


def _all(test: Callable[[object], bool], least: int = 0) -> Callable[[object], bool]:
    return lambda value: isinstance(value, (list, tuple)) and len(value) >= least and all(map(test, value))


def _is_edge(value: object) -> bool:
    return is_text(value) or isinstance(value, dict)


def _is_rule(test: Callable[[object], bool]) -> Callable[[object], bool]:
    return lambda value: isinstance(value, (list, tuple)) and len(value) == 2 and test(value[0])


def _is_object(value: object) -> bool:
    return isinstance(value, dict)


def _is_boolean(value: object) -> bool:
    return isinstance(value, bool)


_TEXT: Final = (is_text, "a text")
_STOPS: Final = (_all(_is_stop), "a list of texts that are not empty")
_TRIGGERS: Final = (_all(_is_stop, 1), "a list of one or more texts that are not empty")
_BUDGET: Final = (_is_budget, "a whole number from 0 on, or null")
_FLAG: Final = (_is_boolean, "true or false")
_COUNT: Final = (_is_count, "a whole number of up to 31 bits")
_FORMAT: Final = (_is_object, "a format, which is an object")
_FORMATS: Final = (_all(_is_object, 1), "a list of one or more formats, which are objects")
_TAGS: Final = (_all(_is_object, 1), "a list of one or more tags, which are objects")
_TOKEN: Final = (_is_token, "the id of a token or its text")
_TOKENS: Final = (_all(_is_token), "a list of tokens by id or text")
_TRIGGER_TOKENS: Final = (_all(_is_token, 1), "a list of one or more tokens by id or text")
_SCHEMA: Final = (
    lambda value: isinstance(value, (bool, dict, SchemaText)),
    "a JSON Schema, which is an object or a boolean",
)
_ANY_SCHEMA: Final = (lambda value: value is not None, "a JSON Schema")

_Kind = tuple[Callable[[Any], bool], str]

_SEVERAL_TAGS: Final[Mapping[str, _Kind]] = {"tags": _TAGS, "at_least_one": _FLAG, "stop_after_first": _FLAG}

FIELDS: Final[Mapping[str, Mapping[str, _Kind]]] = {
    "const_string": {"value": _TEXT},
    "json_schema": {
        "json_schema": _SCHEMA,
        "style": _TEXT,
        "any_order": _FLAG,
        "max_whitespace_cnt": _BUDGET,
        "excludes": _STOPS,
    },
    "qwen_xml_parameter": {"json_schema": _SCHEMA},
    "any_text": {"excludes": _STOPS, "max_tokens": _BUDGET, "max_chars": _BUDGET},
    "token": {"token": _TOKEN},
    "exclude_token": {"exclude_tokens": _TOKENS},
    "any_tokens": {"exclude_tokens": _TOKENS, "max_tokens": _BUDGET},
    "grammar": {"grammar": _TEXT},
    "regex": {"pattern": _TEXT},
    "sequence": {"elements": _FORMATS},
    "or": {"elements": _FORMATS},
    "optional": {"content": _FORMAT},
    "star": {"content": _FORMAT},
    "plus": {"content": _FORMAT},
    "repeat": {"min": _COUNT, "max": _COUNT, "content": _FORMAT},
    "tag": {
        "begin": (_is_edge, "a text or a token"),
        "content": _FORMAT,
        "end": (
            lambda value: _is_edge(value) or _all(is_text, 1)(value),
            "a text, a list of one or more texts, or a token",
        ),
    },
    "triggered_tags": {"triggers": _TRIGGERS, "excludes": _STOPS, **_SEVERAL_TAGS},
    "token_triggered_tags": {"trigger_tokens": _TRIGGER_TOKENS, "exclude_tokens": _TOKENS, **_SEVERAL_TAGS},
    "tags_with_separator": {"separator": _TEXT, **_SEVERAL_TAGS},
    "dispatch": {
        "rules": (_all(_is_rule(_is_stop), 1), "a list of one or more pairs [text that is not empty, format]"),
        "loop": _FLAG,
        "excludes": _STOPS,
    },
    "token_dispatch": {
        "rules": (_all(_is_rule(_is_token), 1), "a list of one or more pairs [token, format]"),
        "loop": _FLAG,
        "exclude_tokens": _TOKENS,
    },
}
"""The fields of each format."""

_OPTIONAL: Final = frozenset(
    {"style", "any_order", "max_whitespace_cnt", "excludes", "max_tokens", "max_chars"}
    | {"exclude_tokens", "at_least_one", "stop_after_first", "loop"}
)
"""The fields that may be left out, in whichever format."""

_OUTER: Final[Mapping[str, Mapping[str, _Kind]]] = {
    SUBJECT: {"format": _FORMAT},
    "legacy structural tag": {LEGACY: (_all(_is_object, 1), "a list of one or more objects"),
                              "triggers": _TRIGGERS},
    "structure": {"begin": _TEXT, "schema": _ANY_SCHEMA, "end": _TEXT},
}  # fmt: skip
"""The objects that are no formats."""

_TYPE: Final[Mapping[str, _Kind]] = {"type": (lambda _: True, "the type")}
"""Checked before the other fields."""
_CHECKS: Final = {
    kind: (fields if kind == "structure" else {**fields, **_TYPE}, frozenset(fields) - _OPTIONAL)
    for table in (FIELDS, _OUTER)
    for kind, fields in table.items()
}
"""The fields of each object: their values, and which are required."""


@final
@dataclass(slots=True)  # not frozen: a tag has thousands
class Place:
    """An object of a structural tag whose fields are those of its type.

    Attributes:
        type: of the format.
        value: its fields.
        pointer: where it is, as a URI fragment (``#/format/content``).
        end: what ends the nearest tag around it.
        depth: how many objects are around it.
    """

    type: str
    value: Mapping[str, Any]
    pointer: str
    end: End = NOTHING
    depth: int = 0

    @classmethod
    def of(
        cls, value: Any, pointer: str, limits: Limits, end: End = NOTHING, depth: int = 0, default: str | None = None
    ) -> Place:
        """Check an object: its type, its fields, and the kinds of their values.

        Args:
            value: the object.
            pointer: where it is.
            limits: ``nesting`` bounds how deep it may be.
            end: what ends the nearest tag around it.
            depth: how many objects are around it.
            default: the type of an object that may leave it out; an object of another type is refused then. None: the
                object is a format and says its type.

        Raises:
            GrammarError: it is no object of a known type, or a field is missing, unknown or of the wrong type.
            LimitExceeded: it is nested too deeply.
        """
        if depth > limits.nesting:
            raise LimitExceeded(f"{SUBJECT} {pointer[:80]}...", limit="nesting", maximum=limits.nesting)
        if not isinstance(value, dict):
            raise GrammarError(f"{SUBJECT} {pointer}", "a format is an object", evidence=found(value))
        kind = value.get("type", default)
        if default is not None and default in _OUTER:
            kind = default
        elif not isinstance(kind, str) or kind not in FIELDS:
            raise _unknown_type(kind, pointer, value)
        elif default is not None and kind != default:
            raise GrammarError(f"{SUBJECT} {pointer}/type", f"only a {default} may stand here", evidence=found(kind))
        place = cls(kind, value, pointer, end, depth)
        fields, required = _CHECKS[kind]
        for name, given in value.items():
            field = fields.get(name)
            if field is None:
                names = [name for name in fields if name not in _TYPE]
                remedy = meant(name, names) or f"its fields are {', '.join(names)}"
                raise place.wrong(f"{kind} has no field {name!r:.60}", remedy=remedy)
            if not field[0](given):
                raise place.wrong(f"expected {field[1]}", name, evidence=_listed(given))
        if not required <= value.keys():
            name = next(name for name in fields if name in required and name not in value)
            raise place.wrong(
                f"{kind} needs the field {name!r}",
                evidence=f"there are {', '.join(map(repr, value))}",
                remedy=f"give {fields[name][1]}",
            )
        return place

    def wrong(self, problem: str, *steps: str | int, evidence: str = "", remedy: str = "") -> GrammarError:
        """The error about this object, or about what is ``steps`` below it."""
        where = "/".join([self.pointer, *map(str, steps)])
        return GrammarError(f"{SUBJECT} {where}", problem, evidence=evidence, remedy=remedy)

    def refused(self, error: GrammarError | LimitExceeded, name: str, what: str) -> GrammarError | LimitExceeded:
        """The error about a schema, grammar or regular expression in a field, from its own error."""
        if isinstance(error, LimitExceeded):
            where, evidence = f"{SUBJECT} {self.pointer}/{name}", f"{what} is too large: {error.subject}"
            evidence = f"{evidence}, {error.evidence}" if error.evidence else evidence
            return LimitExceeded(where, limit=error.limit, maximum=error.maximum, evidence=evidence)
        if isinstance(error, UnsupportedFeature):
            where = f"{self.pointer}/{'excludes' if error.feature == 'excludes' else name}"
            problem = f"{what} is refused: {error}"
            return UnsupportedFeature(f"{SUBJECT} {where}", error.feature, where=where, problem=problem)
        return self.wrong(f"{what} is refused", name, evidence=str(error))

    def inner(self, limits: Limits, *steps: str | int, end: End | None = None, default: str | None = None) -> Place:
        """The object that is ``steps`` below; free text in it holds none of ``end``, by default as here."""
        value: Any = self.value
        pointer = self.pointer
        for step in steps:
            value = value[step]
            pointer = f"{pointer}/{step}"  # the names of fields need no escapes
        return Place.of(value, pointer, limits, self.end if end is None else end, self.depth + 1, default)

    def listed(self, limits: Limits, name: str, default: str | None = None) -> Iterator[Place]:
        """The objects of a list."""
        return (self.inner(limits, name, at, default=default) for at in range(len(self.value[name])))

    def flag(self, name: str, *, default: bool = False) -> bool:
        """A field that is true or false."""
        return bool(self.value.get(name, default))

    def count(self, name: str) -> int | None:
        """A whole number, or None."""
        given = self.value.get(name)
        return None if given is None else int(given)

    def texts(self, name: str) -> tuple[str, ...]:
        """A list of texts, each once; empty if it was left out."""
        return tuple(dict.fromkeys(self.value.get(name, ())))

    def tokens(self, name: str) -> tuple[str | int, ...]:
        """A list of tokens."""
        return tuple(token if isinstance(token, str) else int(token) for token in self.value.get(name, ()))


def _unknown_type(kind: object, pointer: str, value: Mapping[str, Any]) -> GrammarError:
    if kind is None and "type" not in value:
        return GrammarError(
            f"{SUBJECT} {pointer}",
            "the format has no type",
            evidence=f"its fields are {', '.join(map(repr, value))}" if value else "it is empty",
            remedy=f"name one of {', '.join(FIELDS)}",
        )
    return GrammarError(
        f"{SUBJECT} {pointer}/type",
        "no format has this type",
        evidence=found(kind),
        remedy=meant(kind, FIELDS) or f"there are {', '.join(FIELDS)}",
    )


def _listed(value: object) -> str:
    """Name a value of the wrong kind; a short list as it is."""
    return f"found {value!r:.80}" if isinstance(value, (list, tuple)) else found(value)


def placed(term: Grammar, pointer: str) -> Grammar:
    """The term of a schema, reported at its place in the tag; still without work that only the report needs."""
    return Described.deferred(term.plain, _Placed(term, pointer)) if isinstance(term, Described) else term


class _Placed:
    """A schema inside a tag, whose report names the places of the tag."""

    def __init__(self, term: Described, pointer: str) -> None:
        self._term = term
        self._pointer = pointer

    def item(self) -> Grammar:
        return self._term.item

    def description(self) -> Description:
        inner = self._term.description
        entries = (
            replace(entry, where=self._pointer + entry.where[1:]) if entry.where.startswith("#") else entry
            for entry in inner.entries
        )
        return Description(inner.source, tuple(entries), inner.policies, inner.value, inner.python_type)


def with_whitespace(policy: JsonPolicy, most: int) -> JsonPolicy:
    """The policy, with at most ``most`` characters of white space in a row."""
    if most == 0 or policy.whitespace == "compact":
        return replace(policy, whitespace="compact")
    return policy if policy.whitespace == "single" else replace(policy, whitespace="runs", indent=most)

"""The arguments of calls in notations other than JSON: their grammar, and the types of what was written."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, Final, final

from structgen.frontends.json_schema.policy import JsonPolicy
from structgen.frontends.json_schema.source.json_value import ANY, content_of
from structgen.grammar.flattening import memory_of
from structgen.grammar.limits import Limits, counted
from structgen.memory_cache import GRAMMARS, ContentCache

if TYPE_CHECKING:
    from structgen.frontends.json_schema.emit.arguments import Notation
    from structgen.frontends.json_schema.normal.normal_form import NormalForm
    from structgen.frontends.json_schema.source.location import Location
    from structgen.grammar.nodes import Grammar

__all__ = ["ValueTypes", "arguments_term", "value_types"]

_DEFAULT_LIMITS: Final = Limits()
_ENTRY_BYTES: Final = 4_096
_known: Final[ContentCache[Any]] = ContentCache(GRAMMARS)


def arguments_term(
    schema: object, notation: Notation, *, policy: JsonPolicy | None = None, limits: Limits | None = None
) -> Grammar:
    """The objects that a schema allows, written in a notation.

    Raises:
        GrammarError: as ``json_schema``; also where the notation cannot write what the schema allows.
    """
    from structgen.frontends.json_schema import document_of
    from structgen.frontends.json_schema.emit.arguments import ArgumentPlanner
    from structgen.frontends.json_schema.translation import planned_grammar

    document, python_type, setting = document_of(schema, policy or JsonPolicy(), limits or _DEFAULT_LIMITS)
    content = content_of(document, setting.limits) if python_type is None else None
    key = (notation, setting, content)
    known: Grammar | None = None if content is None else _known.get(key)
    if known is not None:
        return known
    planner = partial(ArgumentPlanner, notation=notation)
    with counted(setting.limits):
        grammar = planned_grammar(document, setting, None, None, python_type, planner=planner)
    if content is not None:
        _known.put(key, grammar, _ENTRY_BYTES + len(content) + memory_of(grammar))
    return grammar


@final
class ValueTypes:
    """What a schema allows for one value, to read it where the text does not tell its type.

    Attributes:
        types: the types, as bits.
    """

    __slots__ = ("_conjunctions", "_forms", "types")

    def __init__(self, forms: NormalForm | None, conjunctions: Iterable[tuple[Location, ...]]) -> None:
        self._forms = forms
        self._conjunctions = tuple(conjunctions)
        self.types = ANY
        if forms is not None and all(self._conjunctions):
            self.types = 0
            for locations in self._conjunctions:
                for disjunct in forms.disjuncts(locations):
                    self.types |= disjunct.types

    def admits(self, value: Any) -> bool:
        """Whether a value is valid."""
        from structgen.frontends.json_schema.normal.validity import Validity

        if self._forms is None or not all(self._conjunctions):
            return True
        validity = Validity(self._forms)
        return any(validity.satisfies(value, locations) for locations in self._conjunctions)

    def member(self, name: str) -> ValueTypes:
        """What is allowed for the value of a name."""
        if self._forms is None:
            return self
        found = [
            tuple(place for assertion in disjunct.objects if not assertion.is_negated
                  for place in assertion.locations_of(name))
            for locations in self._conjunctions
            for disjunct in (self._forms.disjuncts(locations) if locations else ())
        ]  # fmt: skip
        return ValueTypes(self._forms, found or [()])

    def item(self, index: int) -> ValueTypes:
        """What is allowed for an item of an array."""
        if self._forms is None:
            return self
        found = []
        for locations in self._conjunctions:
            for disjunct in self._forms.disjuncts(locations) if locations else ():
                places = [assertion.item(index) for assertion in disjunct.arrays if not assertion.is_negated]
                found.append(tuple(place for place in places if place is not None))
        return ValueTypes(self._forms, found or [()])


_ANYTHING: Final = ValueTypes(None, ())


def value_types(schema: object | None, limits: Limits | None = None) -> ValueTypes:
    """What a schema allows; anything for ``None``.

    Raises:
        GrammarError: the schema is malformed.
    """
    if schema is None:
        return _ANYTHING
    from structgen.frontends.json_schema import document_of
    from structgen.frontends.json_schema.translation import normal_form

    document, _, setting = document_of(schema, JsonPolicy(), limits or _DEFAULT_LIMITS)
    with counted(setting.limits):
        forms, start = normal_form(document, setting)
    return ValueTypes(forms, [(start,)])

"""The arguments of calls in notations other than JSON: their grammar, and the types of what was written."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar, final

from structgen.frontends.json_schema.policy import JsonPolicy
from structgen.frontends.json_schema.source.json_value import ANY, ARRAY, OBJECT, content_of, type_of
from structgen.grammar.flattening import memory_of
from structgen.grammar.limits import Limits, counted

if TYPE_CHECKING:
    from structgen.frontends.json_schema.emit.arguments import Notation
    from structgen.frontends.json_schema.normal.container_assertion import ObjectAssertion
    from structgen.frontends.json_schema.normal.disjunct import AllowedValues, Disjunct
    from structgen.frontends.json_schema.normal.normal_form import NormalForm
    from structgen.frontends.json_schema.source.location import Location
    from structgen.grammar.nodes import Grammar

__all__ = ["ObjectKind", "ValueTypes", "arguments_term", "known_arguments", "value_types"]

Container = TypeVar("Container")
ObjectKind: TypeAlias = "tuple[ObjectAssertion, ...]"

_DEFAULT_LIMITS: Final = Limits()


def arguments_term(
    schema: object, notation: Notation, *, policy: JsonPolicy | None = None, limits: Limits | None = None
) -> Grammar:
    """The objects that a schema allows, written in a notation.

    Raises:
        GrammarError: as ``json_schema``; also where the notation cannot write what the schema allows.
        ValueError: the policy indents JSON by its depth, and the arguments are several documents.
    """
    from structgen.frontends.json_schema import document_of
    from structgen.frontends.json_schema.native import KNOWN, known_size, simple_grammar

    policy = policy or JsonPolicy()
    if policy.whitespace == "indented":
        raise ValueError(
            "arguments that are not JSON: whitespace='indented' depends on the depth in one JSON document; "
            "take 'flexible', which admits indented values"
        )
    document, python_type, setting = document_of(schema, policy, limits or _DEFAULT_LIMITS)
    content = content_of(document, setting.limits) if python_type is None else None
    key = (setting, notation, content)
    known = None if content is None else KNOWN.get(key)
    if known is not None:
        return known
    grammar, size = simple_grammar(document, content, setting, python_type, notation), 0
    if grammar is None:
        from structgen.frontends.json_schema.translation import argument_planner, planned_grammar

        planner = argument_planner(notation)
        with counted(setting.limits):
            source = document if content is None else content
            grammar = planned_grammar(source, setting, None, None, python_type, planner=planner)
        size = 0 if content is None else memory_of(grammar)
    if content is not None:
        KNOWN.put(key, grammar, known_size(content) + size)
    return grammar


def known_arguments(
    schemas: list[dict[str, Any] | str], notation: Notation, policy: JsonPolicy, limits: Limits
) -> list[Grammar | None]:
    """What ``arguments_term`` returns for each of many schemas; ``None`` for those that are not simple.

    Schemas are ``dict`` or JSON text, and no text is longer than ``limits`` allow.
    """
    from structgen.frontends.json_schema.native import known_grammars, setting_of

    if policy.whitespace == "indented":
        return [None] * len(schemas)
    return known_grammars(schemas, setting_of(policy, limits), notation)


@final
class ValueTypes:
    """The types that a schema allows for one value, to read it where the text does not show its type.

    Attributes:
        types: the types, as bits.
    """

    __slots__ = ("_conjunctions", "_forms", "_kinds", "types")

    def __init__(self, forms: NormalForm | None, conjunctions: Iterable[tuple[Location, ...]]) -> None:
        self._conjunctions = tuple(conjunctions)
        self._forms = forms if all(self._conjunctions) else None  # with no schema everything is allowed
        self._kinds: list[ObjectKind] | None = None
        self.types = ANY
        if self._forms is not None:
            self.types = 0
            for disjunct in self._disjuncts():
                self.types |= disjunct.types

    def admits(self, value: Any) -> bool:
        """Whether a value is valid."""
        from structgen.frontends.json_schema.normal.validity import Validity

        if self._forms is None:
            return True
        validity = Validity(self._forms)
        return any(validity.satisfies(value, locations) for locations in self._conjunctions)

    def kinds(self) -> list[ObjectKind]:
        """The kinds of objects that are allowed: for each the assertions that hold together."""
        from structgen.frontends.json_schema.normal.disjunct import exactly_object

        if self._kinds is None:
            self._kinds = self._containers(OBJECT, lambda disjunct: disjunct.objects, exactly_object)
        return self._kinds

    def member(self, name: str, kind: ObjectKind | None = None) -> ValueTypes:
        """What is allowed for the value of a name, in objects of one of ``kinds()`` or of any."""
        kinds = self.kinds() if kind is None else [kind]
        found = [
            tuple(place for one in assertions if not one.is_negated for place in one.locations_of(name))
            for assertions in kinds
        ]
        return ValueTypes(self._forms, found or [()])

    def item(self, index: int) -> ValueTypes:
        """What is allowed for an item of an array."""
        from structgen.frontends.json_schema.normal.disjunct import exactly_array

        found = []
        for assertions in self._containers(ARRAY, lambda disjunct: disjunct.arrays, exactly_array):
            places = [one.item(index) for one in assertions if not one.is_negated]
            found.append(tuple(place for place in places if place is not None))
        return ValueTypes(self._forms, found or [()])

    def _disjuncts(self) -> Iterator[Disjunct]:
        if self._forms is not None:
            for locations in self._conjunctions:
                yield from self._forms.disjuncts(locations)

    def _containers(
        self,
        types: int,
        assertions: Callable[[Disjunct], tuple[Container, ...]],
        exactly: Callable[[Any, AllowedValues], Container],
    ) -> list[tuple[Container, ...]]:
        from structgen.frontends.json_schema.normal.validity import Validity

        found: list[tuple[Container, ...]] = []
        for disjunct in self._disjuncts():
            if disjunct.values and self._forms is not None:
                constants = Validity(self._forms).constants(disjunct)
                found += [(exactly(one, disjunct.values[0]),) for one in constants if type_of(one) == types]
            elif disjunct.types & types:
                found.append(assertions(disjunct))
        return found


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

"""Parts of simple schemas that the native planner gets from Python: terms of simple types, constants and names."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

from structgen.errors import StructgenError, UnsatisfiableGrammar
from structgen.frontends.json_schema.emit.plan import is_small
from structgen.frontends.json_schema.emit.scalar_term import Reasons, ScalarTerms
from structgen.frontends.json_schema.normal.disjunct import AllowedValues
from structgen.frontends.json_schema.normal.schema_reader import reader_of
from structgen.frontends.json_schema.source.document import Documents, SchemaRegistry
from structgen.frontends.json_schema.source.json_value import SUBJECT, parse_json
from structgen.frontends.json_schema.source.location import Location
from structgen.grammar.flattening import memory_of, untrack
from structgen.grammar.limits import PYTHON_STEP, counted, spend, steps_left, steps_since
from structgen.grammar.nodes import EMPTY, Choice, Grammar
from structgen.memory_cache import CONSTRAINTS, GRAMMARS, Followed, Share

if TYPE_CHECKING:
    from structgen.frontends.json_schema.emit.arguments import Notation
    from structgen.frontends.json_schema.normal.normal_form import NormalForm
    from structgen.frontends.json_schema.normal.object_layout import NameLanguage
    from structgen.frontends.json_schema.setting import Setting
    from structgen.frontends.json_schema.source.dialect import Dialect
    from structgen.frontends.json_schema.source.json_value import Json
    from structgen.grammar.limits import Limits

__all__ = ["MADE", "LeafMaker", "PlannedTerm", "SubschemaPlanner"]

PlannedTerm: TypeAlias = tuple[Grammar | None, bool, bool]
"""A term, whether it is small enough to be repeated instead of called, and whether it is a choice; the term of no text
is ``None``."""


def _planned(term: Grammar) -> PlannedTerm:
    untrack(term)
    return (None, False, False) if term is EMPTY else (term, is_small(term), isinstance(term, Choice))


class LeafMaker:
    """Makes the terms of schemas without subschemas; the native planner caches them."""

    def __init__(self, setting: Setting, dialect: Dialect) -> None:
        self._setting = setting
        self._documents = _documents({}, setting, dialect)
        self._resource = self._documents.root.resource
        self._reader = reader_of(dialect)
        self._leaves = setting.leaves(dialect)
        self._reasons: Reasons = []
        self._scalars = ScalarTerms(setting.syntax, self._reasons)

    def __call__(self, text: str) -> PlannedTerm | None:
        """The term of a schema; ``None`` if it is refused: ``Planner`` then raises the error."""
        try:
            with _part(len(text), self._setting.limits):
                location = self._location(text)
                key = self._leaves.key(location.schema)
                plan, before = None if key is None else self._leaves.get(key), steps_left()
                if plan is not None and plan.term is not None:
                    spend(plan.steps, SUBJECT)
                    return _planned(plan.term)
                term = self._scalars.term(self._reader.read(location).disjunct, 0, is_proof=False)
                steps = steps_since(before)
        except StructgenError:
            return None
        self._reasons.clear()
        if term is not EMPTY:
            MADE.count(memory_of(term) if key is None else self._leaves.keep(key, term, steps))
        return _planned(term)

    def values(self, text: str) -> Json:
        """Read constants."""
        return parse_json(text, SUBJECT, self._setting.limits)

    def excluded(self, text: str, values: list[Json]) -> list[int] | None:
        """The indices of the constants that a schema of simple keywords excludes; ``None`` if it is refused."""
        from structgen.frontends.json_schema.normal.validity import Validity

        size = len(text) + sum(len(value) for value in values if isinstance(value, str))
        try:
            with _part(size, self._setting.limits):
                location = self._location(text)
                forms, _ = _normal_form(self._documents, self._setting)
                listed = (AllowedValues(values, location, "enum"),)
                disjuncts = [replace(disjunct, values=listed) for disjunct in forms.disjuncts((location,))]
                valid = {id(value) for disjunct in disjuncts for value in Validity(forms).constants(disjunct)}
        except StructgenError:
            return None
        return [index for index, value in enumerate(values) if id(value) not in valid]

    def _location(self, text: str) -> Location:
        spend(_LEAF_STEPS, SUBJECT)
        return Location(parse_json(text, SUBJECT, self._setting.limits), self._resource, None, ())


@dataclass(frozen=True, slots=True, eq=False)
class SubschemaPlanner:
    """Plans for the native planner what it does not plan itself; the native planner caches the results."""

    _setting: Setting
    _dialect: Dialect
    _notation: Notation | None

    def argument(self, text: str) -> PlannedTerm | None:
        """The term of an argument in the notation; ``None`` as for leaves."""
        from structgen.frontends.json_schema.emit.arguments import ArgumentPlanner

        if self._notation is None:
            raise RuntimeError("JSON has no arguments")
        try:
            with _part(len(text), self._setting.limits):
                forms, location = self._read(text)
                term = ArgumentPlanner(forms, self._setting, self._notation).argument(location)
        except StructgenError:
            return None
        forms.schemas.layouts.clear()  # they refer to the planner
        MADE.count(memory_of(term))
        return None if term is EMPTY else _planned(term)

    def whole(self, text: str) -> PlannedTerm | None:
        """The term of constants, or of a conjunction of simple types; ``None`` as for leaves."""
        from structgen.frontends.json_schema.emit.planner import Planner

        try:
            with _part(len(text), self._setting.limits):
                forms, location = self._read(text)
                term = Planner(forms, self._setting).grammar(location)
        except UnsatisfiableGrammar:
            return _planned(EMPTY)
        except StructgenError:
            return None
        forms.schemas.layouts.clear()  # they refer to the planner
        MADE.count(memory_of(term))
        return _planned(term)

    def empty(self, text: str) -> bool | None:
        """Whether a conjunction of strings and numbers is proved to have no values; ``None`` if it is refused."""
        try:
            with _part(len(text), self._setting.limits):
                forms, location = self._read(text)
                scalars = ScalarTerms(self._setting.syntax, [])
                return all(scalars.term(one, 0, is_proof=True) is EMPTY for one in forms.disjuncts((location,)))
        except StructgenError:
            return None

    def names(self, text: str) -> tuple[list[list[int]], list[tuple[list[int], Grammar]]] | None:
        """Which patterns the names of a schema of objects match; ``None`` if these are refused.

        The schema has ``properties`` and ``patternProperties`` with unrestricted values.

        Returns:
            for each name the indices of the patterns that it matches, and for each region of other names the indices
            of the patterns that these match, with the texts of the names.
        """
        from structgen.frontends.json_schema.normal.object_layout import ObjectLayout

        try:
            with _part(len(text), self._setting.limits):
                forms, location = self._read(text)
                (assertion,) = forms.read(location).disjunct.objects
                layout = ObjectLayout((assertion,), partial(_names, forms), self._setting.policy)
                matched = list(map(assertion.matching, assertion.properties))
        except StructgenError:
            return None
        for region in layout.others:
            untrack(region.key)
        MADE.count(sum(memory_of(region.key) for region in layout.others) + _NAME_BYTES * len(matched))
        index = {pattern: number for number, (pattern, _) in enumerate(assertion.patterns)}
        return matched, [([index[pattern] for pattern in region.matched], region.key) for region in layout.others]

    def _read(self, text: str) -> tuple[NormalForm, Location]:
        """The normal form of a document, and its root schema."""
        documents = _documents(parse_json(text, SUBJECT, self._setting.limits), self._setting, self._dialect)
        return _normal_form(documents, self._setting)


_NAME_BYTES: Final = 256
_LEAF_STEPS: Final = 30
_STEPS_A_CHARACTER: Final = 100


def _part(characters: int, limits: Limits) -> counted:
    """The count of the work on a part of a schema.

    A part that needs more is left to ``Planner``, which counts the steps of the whole schema.
    """
    return counted(limits, _LEAF_STEPS * PYTHON_STEP + _STEPS_A_CHARACTER * PYTHON_STEP * characters)


def _documents(schema: Json, setting: Setting, dialect: Dialect) -> Documents:
    return Documents(schema, dialect, SchemaRegistry(None, setting.limits), setting, finds_copies=False)


def _normal_form(documents: Documents, setting: Setting) -> tuple[NormalForm, Location]:
    """The normal form of documents, and the location of the root schema."""
    from structgen.frontends.json_schema.normal.normal_form import DocumentSchemas, NormalForm
    from structgen.frontends.json_schema.source.reference import References

    references = References(documents, tracks_scopes=False)
    return NormalForm(DocumentSchemas(references), setting), references.start()


def _names(forms: NormalForm, locations: tuple[Location, ...]) -> NameLanguage:
    from structgen.frontends.json_schema.normal.object_layout import NameLanguage
    from structgen.frontends.json_schema.normal.validity import Validity

    return NameLanguage(locations, forms, Validity(forms))


class Keeper(Protocol):
    """The cache of terms that can be rebuilt."""

    def forget(self) -> None:
        """Drop them."""


class _MadeTerms(Share):
    """The terms that native planners requested: the planners keep them, and so do the grammars that have them.

    No planner tells which of its terms a grammar has. So all of them are counted as they are made, and when there are
    too many, the planners go with all cached grammars and constraints.
    """

    def __init__(self) -> None:
        super().__init__("schema terms")
        self.keepers: Followed[Keeper] = Followed()
        self._counted = 0

    def count(self, size: int) -> None:
        """Count the bytes of a term that was made."""
        self.bytes += size
        self._counted += 1
        self.fit()

    def held(self) -> tuple[int, int]:
        return self._counted, self.bytes

    def fit(self) -> int:
        return self.clear() if self.bytes > self.max_bytes else 0

    def clear(self) -> int:
        size, self.bytes, self._counted = self.bytes, 0, 0
        for keeper in self.keepers:
            keeper.forget()
        return size + GRAMMARS.clear() + CONSTRAINTS.clear()


MADE: Final = _MadeTerms()

"""The report of a schema: each occurrence of a keyword with its place and its treatment.

It is made when somebody asks for it, so that compiling does not pay for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Final

from structgen.grammar.json_schema.formats import ASSERTED
from structgen.grammar.json_schema.places import escape
from structgen.grammar.json_schema.reading import CONSTRAINTS
from structgen.grammar.json_schema.subschemas import HOLDERS, inner_schemas
from structgen.grammar.report import Description, ReportEntry, Status

if TYPE_CHECKING:
    from collections.abc import Container, Iterable

    from structgen.grammar.json_schema.documents import Document
    from structgen.grammar.json_schema.drafts import Dialect
    from structgen.grammar.json_schema.places import Resource
    from structgen.grammar.json_schema.policy import JsonPolicy
    from structgen.grammar.json_schema.strict_json import Json

__all__ = ["LazyDescription", "describe", "with_twins"]

_NEEDS: Final = {
    "if": ("then", "else"),
    "then": ("if",),
    "else": ("if",),
    "minContains": ("contains",),
    "maxContains": ("contains",),
    "nullable": ("type",),
}
"""Keywords that mean nothing without one of others."""


_assign = object.__setattr__  # of an immutable object, while it is made


class LazyDescription(Description):
    """A description of a JSON Schema whose entries and policies are made at first use.

    Attributes:
        dialect: the dialect of the schema.
        schema: the schema, as text or value; ``None`` if it means nothing without what else was given.
    """

    __slots__ = ("_made", "_make", "_policy", "dialect", "schema")
    _made: tuple[ReportEntry, ...] | None
    _make: Callable[[], tuple[ReportEntry, ...]]
    _policy: JsonPolicy
    dialect: Dialect
    schema: object

    def __init__(
        self,
        make: Callable[[], tuple[ReportEntry, ...]],
        policy: JsonPolicy,
        dialect: Dialect,
        python_type: object | None,
        schema: object = None,
    ) -> None:
        _assign(self, "source", "json schema")
        _assign(self, "schema", schema)
        _assign(self, "value", "json")
        _assign(self, "python_type", python_type)
        _assign(self, "_made", None)
        _assign(self, "_make", make)
        _assign(self, "_policy", policy)
        _assign(self, "dialect", dialect)

    @property
    def policies(self) -> tuple[tuple[str, str], ...]:
        """The draft, and what the policy says."""
        return ("draft", self.dialect.name), *self._policy.lines()

    @property
    def entries(self) -> tuple[ReportEntry, ...]:
        """One for each occurrence of a keyword, in the order of the schema."""
        made = self._made
        if made is None:
            made = self._make()
            _assign(self, "_made", made)
        return made

    def __reduce__(self) -> tuple[object, ...]:
        return Description, (self.source, self.entries, self.policies, self.value, self.python_type)


def with_twins(schemas: Iterable[int], twins: Iterable[tuple[Json, Json]]) -> set[int]:
    """The identities in ``schemas``, and of what stands in the place of one of them in another copy.

    Args:
        schemas: identities of schemas.
        twins: pairs of schemas that are written alike; only parts of the second are among ``schemas``.
    """
    found = set(schemas)
    pairs = list(twins)
    grows = bool(pairs)
    while grows:
        before = len(found)
        waiting = list(pairs)
        while waiting:
            copy, original = waiting.pop()
            if id(original) in found:
                found.add(id(copy))
            if isinstance(original, dict):
                waiting += zip(copy.values(), original.values(), strict=True)
            elif isinstance(original, (list, tuple)):
                waiting += zip(copy, original, strict=True)
        grows = len(found) > before
    return found


def describe(
    documents: Iterable[Document],
    reached: Container[int],
    checked: Mapping[str, Container[int]],
    nameless: Container[int] = frozenset(),
) -> tuple[ReportEntry, ...]:
    """List every keyword of the documents.

    Args:
        documents: the documents, in order.
        reached: the identities of the schema objects that the grammar was made from.
        checked: by keyword those of them where it is checked as the text is written.
        nameless: those whose objects stay open although the policy forbids undeclared members, for they name none.

    Complexity: linear in the documents; a schema that occurs twice as one object is listed once.
    """
    return tuple(entry for document in documents for entry in _walk(document, reached, checked, nameless))


def _walk(
    document: Document, reached: Container[int], checked: Mapping[str, Container[int]], nameless: Container[int]
) -> Iterator[ReportEntry]:
    seen: set[int] = set()
    start = document.resource
    stack: list[Iterator[tuple[Json, str, Resource] | ReportEntry]] = [iter([(start.root, "", start)])]
    while stack:
        item = next(stack[-1], None)
        if item is None:
            stack.pop()
        elif isinstance(item, ReportEntry):
            yield item
        else:
            schema, pointer, resource = item
            if isinstance(schema, dict) and id(schema) not in seen:
                seen.add(id(schema))
                if id(schema) in nameless:
                    where = f"{document.name}#{pointer}"
                    yield ReportEntry("additional", where, Status.ANNOTATION, _NAMELESS)
                if schema is not resource.root and (found := document.inner(schema, resource, pointer)):
                    resource = resource.inner(schema, *found, ())
                known = frozenset(keyword for keyword, schemas in checked.items() if id(schema) in schemas)
                stack.append(_schema(schema, pointer, resource, known, is_reached=id(schema) in reached))


_NAMELESS: Final = "the policy forbids undeclared members, but no member is named here: all are allowed"
_CHECKS: Final = {"uniqueItems": "at the end of each item", "minProperties": "names are compared as they are written"}


def _schema(
    schema: dict[str, Json], pointer: str, resource: Resource, checked: frozenset[str], *, is_reached: bool
) -> Iterator[tuple[Json, str, Resource] | ReportEntry]:
    dialect, prefix = resource.dialect, f"{resource.document.name}#"
    is_hidden = "$ref" in schema and dialect.reference_stands_alone
    for keyword, value in schema.items():
        where = f"{prefix}{pointer}/{escape(keyword)}"
        if is_hidden and keyword != "$ref":
            hidden = f"ignored beside $ref in {dialect.name}" if keyword in CONSTRAINTS else ""
            yield ReportEntry(keyword, where, Status.ANNOTATION, hidden)
        else:
            entry = _entry(keyword, value, where, schema, resource, is_reached=is_reached)
            if keyword in checked and entry.status is Status.ENFORCED:
                entry = ReportEntry(keyword, where, Status.CHECKED, _CHECKS[keyword])
            yield entry
        for inner, steps in inner_schemas(keyword, value):
            yield inner, pointer + "".join(f"/{escape(step)}" for step in steps), resource


def _entry(  # one keyword with all that its treatment depends on
    keyword: str, value: Json, where: str, schema: dict[str, Json], resource: Resource, *, is_reached: bool
) -> ReportEntry:
    status, detail, dialect = Status.ANNOTATION, "", resource.dialect
    if keyword in HOLDERS:
        detail = "holds schemas for $ref"
    elif keyword in _NEEDS and schema.keys().isdisjoint(_NEEDS[keyword]):
        detail = f"has no effect without {' or '.join(map(repr, _NEEDS[keyword]))}"
    elif keyword == "additionalItems" and not isinstance(schema.get("items"), (list, tuple)):
        detail = "has no effect without an array under 'items'"
    elif keyword not in CONSTRAINTS and keyword != "additionalItems":
        pass
    elif not dialect.has(keyword):
        detail = f"not a keyword of {dialect.name}"
    elif not is_reached:
        detail = "no value that can be written is judged by it"
    elif keyword == "format" and value in resource.document.formats:
        status, detail = Status.ENFORCED, "as the caller defines it"
    elif keyword == "format" and value not in ASSERTED:
        detail = f"{value!r} is not a format of the specification; not asserted"
    elif keyword == "format" and not resource.document.asserts_formats:
        detail = "not asserted"
    else:
        status = Status.ENFORCED
        if keyword == "format" and not (value == "hostname" and dialect.draft <= 6):
            detail = ASSERTED[value].left_out
    return ReportEntry(keyword, where, status, detail)

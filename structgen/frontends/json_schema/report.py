"""The treatment of keywords: the table of all keywords, and the report of one schema.

The documentation and the linter read the table.  The report lists each occurrence of a keyword with its location and
its treatment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from structgen.frontends.json_schema.formats import ASSERTED
from structgen.frontends.json_schema.normal.keyword_reader import GUIDANCE
from structgen.frontends.json_schema.normal.schema_reader import CONSTRAINTS
from structgen.frontends.json_schema.source.dialect import DRAFTS, dialect_named
from structgen.frontends.json_schema.source.document import HOLDERS, inner_schemas
from structgen.frontends.json_schema.source.location import pointer_of
from structgen.grammar.nodes.description import Description, ReportEntry, Status

if TYPE_CHECKING:
    from collections.abc import Container, Iterable

    from structgen.frontends.json_schema.policy import JsonPolicy
    from structgen.frontends.json_schema.source.dialect import Dialect
    from structgen.frontends.json_schema.source.document import Document
    from structgen.frontends.json_schema.source.json_value import Json
    from structgen.frontends.json_schema.source.location import Resource

__all__ = ["KEYWORDS", "Keyword", "LazyDescription", "describe", "meant_keyword", "with_copies"]


@dataclass(frozen=True, slots=True)
class Keyword:
    """The treatment of a keyword.

    Attributes:
        topic: ``"any value"``, ``"strings"``, ``"references"`` ...
        treatment: one or two clauses, with the limits of what is enforced.
        is_constraint: whether it can exclude a value, alone or together with others; else it is an annotation, or
            names or contains schemas.
    """

    topic: str
    treatment: str
    is_constraint: bool = True

    @staticmethod
    def drafts(name: str) -> str:
        """The drafts in which the keyword ``name`` has a meaning, ``"6 on"`` for instance."""
        having = [draft for draft in DRAFTS if dialect_named(draft).has(name)]
        (oldest, *_, newest), first, last = DRAFTS, having[0], having[-1]
        if first == last:
            return first
        if last == newest:
            return "all" if first == oldest else f"{first} on"
        return f"up to {last}" if first == oldest else f"{first} to {last}"


def _annotations(topic: str, treatment: str, *names: str) -> dict[str, Keyword]:
    return {name: Keyword(topic, treatment, is_constraint=False) for name in names}


_ENFORCED: Final = "enforced"

KEYWORDS: Final[dict[str, Keyword]] = {
    "type": Keyword("any value", _ENFORCED),
    "enum": Keyword("any value", "enforced; the values that all other keywords admit"),
    "const": Keyword("any value", "enforced; the value, if all other keywords admit it"),
    "nullable": Keyword("any value", "adds null to `type`, as in OpenAPI 3.0; no effect without `type`"),
    "allOf": Keyword("any value", "enforced, by merging; recursive schemas too"),
    "anyOf": Keyword("any value", "enforced; alternatives without any value vanish"),
    "oneOf": Keyword(
        "any value", "enforced; of alternatives that overlap, each is met with the complement of the others"
    ),
    "not": Keyword("any value", "enforced; refused over a `format` without a known superset"),
    "if": Keyword("any value", "enforced with `then` and `else`; no effect without them"),
    "then": Keyword("any value", "enforced; no effect without `if`"),
    "else": Keyword("any value", "enforced; no effect without `if`"),
    "$ref": Keyword("references", "enforced, in the document and those of `registry`; refused beyond"),
    "$dynamicRef": Keyword("references", "enforced, as `$ref`"),
    "$recursiveRef": Keyword("references", "enforced, as `$ref`"),
    "minLength": Keyword("strings", "enforced; lengths count code points, an escape counts as one"),
    "maxLength": Keyword("strings", "enforced, as `minLength`"),
    "pattern": Keyword("strings", "enforced, as ECMA-262 reads it, not anchored; back-references are refused"),
    "format": Keyword("strings", "enforced for the formats below, unless the policy says not to; other names are not"),
    "minimum": Keyword("numbers", "enforced in exact decimal arithmetic"),
    "maximum": Keyword("numbers", "enforced in exact decimal arithmetic"),
    "exclusiveMinimum": Keyword("numbers", "enforced; a boolean in draft 4"),
    "exclusiveMaximum": Keyword("numbers", "enforced; a boolean in draft 4"),
    "multipleOf": Keyword(
        "numbers",
        "enforced, also on decimals, while digits times remainders stay below 50,000; powers of ten, and intervals "
        "with at most 256 multiples, always; else refused",
    ),
    "items": Keyword("arrays", "enforced; an array of schemas up to draft 2019-09"),
    "prefixItems": Keyword("arrays", _ENFORCED),
    "additionalItems": Keyword("arrays", "enforced beside an array under `items`; else no effect"),
    "minItems": Keyword("arrays", _ENFORCED),
    "maxItems": Keyword("arrays", _ENFORCED),
    "uniqueItems": Keyword(
        "arrays",
        "enforced where the values are few, each at most once by value: `enum`, `const`, booleans, null, intervals of "
        "integers, unions of these; after a prefix too, where its items are such or provably different from all "
        "others; and where at most one item is possible; else checked at the end of each item",
    ),
    "contains": Keyword("arrays", _ENFORCED),
    "minContains": Keyword("arrays", "enforced; no effect without `contains`"),
    "maxContains": Keyword("arrays", "enforced; no effect without `contains`"),
    "unevaluatedItems": Keyword("arrays", _ENFORCED),
    "properties": Keyword("objects", _ENFORCED),
    "required": Keyword("objects", _ENFORCED),
    "additionalProperties": Keyword("objects", _ENFORCED),
    "patternProperties": Keyword(
        "objects",
        "enforced; a name may match several patterns and be declared too; refused where patterns divide the names into "
        "more than 200 regions",
    ),
    "propertyNames": Keyword("objects", _ENFORCED),
    "minProperties": Keyword(
        "objects",
        "enforced where no name can repeat, or at most one name beyond `required` is needed; else checked, by "
        "comparing names as they are written; refused where patterns or `propertyNames` restrict all undeclared names",
    ),
    "maxProperties": Keyword("objects", "enforced; a repeated undeclared name counts each time"),
    "dependentRequired": Keyword("objects", _ENFORCED),
    "dependentSchemas": Keyword("objects", _ENFORCED),
    "dependencies": Keyword("objects", "enforced, in both forms; a keyword up to draft 7, and without `$schema`"),
    "unevaluatedProperties": Keyword("objects", _ENFORCED),
    "x-guidance": Keyword(
        "how values are written", "llguidance's options, honoured at the root of the schema; refused elsewhere"
    ),
    **_annotations("references", "names a schema", "$id", "id", "$anchor", "$dynamicAnchor", "$recursiveAnchor"),
    **_annotations("references", "holds schemas", "$defs", "definitions"),
    "$schema": Keyword("references", "chooses the draft", is_constraint=False),
    "$vocabulary": Keyword("references", "no effect in a schema", is_constraint=False),
    **_annotations("annotations", "annotation", "title", "description", "$comment", "default", "examples"),
    **_annotations("annotations", "annotation", "deprecated", "readOnly", "writeOnly"),
    **_annotations("annotations", "annotation", "contentEncoding", "contentMediaType", "contentSchema"),
    **_annotations("annotations", "annotation of OpenAPI", "example", "discriminator", "externalDocs", "xml"),
}
"""Every keyword that a specification knows, constraints first."""


_NEAR: Final = 0.82
"""From which likeness on a name is taken for a misspelt keyword, as ``difflib`` counts it."""


@lru_cache(maxsize=256)
def meant_keyword(name: str) -> str | None:
    """The constraint that a name is likely to be misspelt for; None where it is a keyword, or resembles none.

    Whoever writes ``x-...`` or ``_...`` means no keyword: an extension, or one that is taken out.

    >>> meant_keyword("requried"), meant_keyword("descripton"), meant_keyword("unit"), meant_keyword("x-type")
    ('required', None, None, None)
    """
    if name in KEYWORDS or name.startswith(("x-", "_")):
        return None
    from difflib import get_close_matches  # few schemas have such a name

    near = get_close_matches(name.lower(), _BY_LOWER, 1, _NEAR)
    keyword = _BY_LOWER[near[0]] if near else ""
    return keyword if keyword and KEYWORDS[keyword].is_constraint else None


_BY_LOWER: Final = {name.lower(): name for name in KEYWORDS}


_NEEDS: Final = {
    "if": ("then", "else"),
    "then": ("if",),
    "else": ("if",),
    "minContains": ("contains",),
    "maxContains": ("contains",),
    "nullable": ("type",),
}
"""Keywords that have no effect without one of the others."""


_assign = object.__setattr__  # sets attributes of an immutable object during construction


class LazyDescription(Description):
    """A description of a JSON Schema whose entries and policies are made at first use.

    Attributes:
        dialect: the dialect of the schema.
        schema: the schema, as text or value; ``None`` if it depends on other arguments.
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

    def misspelt(self) -> Iterator[tuple[str, str, str]]:
        """Yield where a name is likely to be a misspelt keyword, the name, and the keyword; nothing of it is kept."""
        for entry in self._make() if self._made is None else self._made:
            if entry.detail != _NAMELESS and (near := meant_keyword(entry.keyword)):
                yield entry.where, entry.keyword, near

    @property
    def policies(self) -> tuple[tuple[str, str], ...]:
        """The draft, and the choices of the policy."""
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


def with_copies(schemas: Iterable[int], copies: Iterable[tuple[Json, Json]]) -> set[int]:
    """The identities in ``schemas``, and the corresponding ones in copies.

    ``copies`` are pairs of equal schemas; only parts of the second are in ``schemas``.
    """
    result = set(schemas)
    pairs = list(copies)
    grows = bool(pairs)
    while grows:
        before = len(result)
        waiting = list(pairs)
        while waiting:
            copy, original = waiting.pop()
            if id(original) in result:
                result.add(id(copy))
            if isinstance(original, dict):
                waiting += zip(copy.values(), original.values(), strict=True)
            elif isinstance(original, (list, tuple)):
                waiting += zip(copy, original, strict=True)
        grows = len(result) > before
    return result


def describe(
    documents: Iterable[Document],
    reached: Container[int],
    checked: Mapping[str, Container[int]],
    nameless: Container[int] = frozenset(),
) -> tuple[ReportEntry, ...]:
    """List every keyword of the documents.

    Args:
        documents: the documents, in order.
        reached: the identities of the schemas that the grammar was made from.
        checked: by keyword, the schemas where it is checked while the text is written.
        nameless: the schemas that stay open although the policy forbids undeclared members, because they name none.

    Complexity: linear in the documents; an object that occurs twice is listed once.
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
                keywords = frozenset(keyword for keyword, schemas in checked.items() if id(schema) in schemas)
                stack.append(_schema(schema, pointer, resource, keywords, is_reached=id(schema) in reached))


_NAMELESS: Final = "the policy forbids undeclared members, but no member is named here: all are allowed"
_CHECKS: Final = {"uniqueItems": "at the end of each item", "minProperties": "names are compared as they are written"}


def _schema(
    schema: dict[str, Json], pointer: str, resource: Resource, checked: frozenset[str], *, is_reached: bool
) -> Iterator[tuple[Json, str, Resource] | ReportEntry]:
    dialect, prefix = resource.dialect, f"{resource.document.name}#"
    is_hidden = "$ref" in schema and dialect.reference_stands_alone
    for keyword, value in schema.items():
        where = prefix + pointer + pointer_of([keyword])
        if is_hidden and keyword not in ("$ref", GUIDANCE):
            hidden = f"ignored beside $ref in {dialect.name}" if keyword in CONSTRAINTS else ""
            yield ReportEntry(keyword, where, Status.ANNOTATION, hidden)
        else:
            entry = _entry(keyword, value, where, schema, resource, is_reached=is_reached)
            if keyword in checked and entry.status is Status.ENFORCED:
                entry = ReportEntry(keyword, where, Status.CHECKED, _CHECKS[keyword])
            yield entry
        for inner, steps in inner_schemas(keyword, value):
            yield inner, pointer + pointer_of(steps), resource


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
        if near := meant_keyword(keyword):
            detail = f"no keyword of any specification; is {near!r} meant?"
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
        if keyword == GUIDANCE:
            detail = _guided(value)
        if keyword == "oneOf" and resource.document.coerces_one_of:
            detail = f"read as 'anyOf', as {GUIDANCE!r} says"
        if keyword == "format" and not (value == "hostname" and dialect.draft <= 6):
            detail = ASSERTED[value].left_out
    return ReportEntry(keyword, where, status, detail)


def _guided(options: Json) -> str:
    """What is made of the options of ``x-guidance``."""
    parts = [
        "white space as the policy names it" if any("separator" in name or "white" in name for name in options) else ""
    ]
    parts.append("'oneOf' is read as 'anyOf'" if options.get("coerce_one_of") else "")
    parts.append("'lenient' leaves no keyword out" if options.get("lenient") else "")
    return "; ".join(filter(None, parts))

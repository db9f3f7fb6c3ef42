"""Where a schema stands in its document: the value together with its JSON Pointer."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NoReturn
from urllib.parse import quote

from structgen.errors import GrammarError, UnsupportedFeature

if TYPE_CHECKING:
    from structgen.grammar.json_schema.documents import Document
    from structgen.grammar.json_schema.drafts import Dialect
    from structgen.grammar.json_schema.scopes import Scope
    from structgen.grammar.json_schema.strict_json import Json
    from structgen.grammar.limits import Limits

__all__ = ["Place", "Resource", "escape", "malformed", "refused", "shown"]

_PLAIN: Final = re.compile(r"[A-Za-z0-9_$.:@-]*")
_LONGEST_SHOWN: Final = 240
_SAFE: Final = "!$&'()*+,;=:@/?-._~"  # what RFC 3986 lets stand in a fragment


class Resource:
    """A schema with a URI of its own: a whole document, or a part of it that has an identifier.

    Attributes:
        root: the schema that ``#`` refers to within it.
        uri: its absolute URI without fragment, or ``""``.
        document: the document that it is part of.
        dialect: which keywords have a meaning in it.
        limits: the bounds on its patterns.
        path: where it stands in the document.
        scope: the dynamic scope that it is entered with, where dynamic references are tracked.
    """

    __slots__ = ("dialect", "document", "limits", "path", "root", "scope", "uri")

    def __init__(
        self,
        root: Json,
        uri: str,
        document: Document,
        dialect: Dialect,
        limits: Limits,
        path: tuple[str | int, ...] = (),
    ) -> None:
        self.root = root
        self.uri = uri
        self.document = document
        self.dialect = dialect
        self.limits = limits
        self.path = path
        self.scope: Scope | None = None

    @property
    def pointer(self) -> str:
        """Where it stands in the document, as a JSON Pointer without ``#``."""
        return "".join(f"/{escape(step)}" for step in self.path)

    def inner(self, schema: Json, uri: str, dialect: Dialect, path: tuple[str | int, ...]) -> Resource:
        """A resource within this one."""
        return Resource(schema, uri, self.document, dialect, self.limits, path)

    def copied(self, root: Json, scope: Scope) -> Resource:
        """The same with another object for its root, in a dynamic scope."""
        copy = Resource(root, self.uri, self.document, self.dialect, self.limits, self.path)
        copy.scope = scope
        return copy


class Place:
    """A schema and where it stands; the pointer is spelled out only when it is asked for.

    Attributes:
        schema: the schema, as parsed.
        resource: the resource that its references are relative to.
        parent: the schema that it is part of, or ``None`` where ``path`` begins at the document.
        path: the steps from the parent: keyword, then name or index where there is one.
        is_negated: the values that are *not* valid against the schema are meant.
    """

    __slots__ = ("is_negated", "parent", "path", "resource", "schema")

    def __init__(self, schema: Json, resource: Resource, parent: Place | None, path: tuple[str | int, ...]) -> None:
        self.schema = schema
        self.resource = resource
        self.parent = parent
        self.path = path
        self.is_negated = False

    @property
    def key(self) -> int:
        """What tells this set of values from that of other schemas: equal for one schema met in several ways."""
        return -id(self.schema) if self.is_negated else id(self.schema)

    def complement(self) -> Place:
        """The values that are not valid here; of a boolean schema the other boolean."""
        schema = self.schema
        if isinstance(schema, bool):
            return Place(not schema, self.resource, self.parent, self.path)
        other = Place(schema, self.resource, self.parent, self.path)
        other.is_negated = not self.is_negated
        return other

    @property
    def steps(self) -> tuple[str | int, ...]:
        """The steps that lead to it from the root of its document."""
        paths: list[tuple[str | int, ...]] = []
        place: Place | None = self
        while place is not None:
            paths.append(place.path)
            place = place.parent
        return tuple(step for path in reversed(paths) for step in path)

    @property
    def pointer(self) -> str:
        """The JSON Pointer as a URI fragment, for instance ``#/properties/a``, after the URI of another document."""
        return f"{self.resource.document.name}#" + "".join(f"/{escape(step)}" for step in self.steps)

    @property
    def label(self) -> str:
        """The pointer, and the dynamic scope if there are several; schemas with the same label mean the same."""
        scope = self.resource.scope
        return self.pointer if scope is None or scope.number == 0 else f"{self.pointer} in scope {scope.number}"

    def at(self, *steps: str | int) -> str:
        """The pointer of something inside this schema."""
        return self.pointer + "".join(f"/{escape(step)}" for step in steps)

    def subject(self, *steps: str | int) -> str:
        """How a message names this schema or something inside it; the middle of a very long pointer is left out."""
        pointer = self.at(*steps)
        if len(pointer) > _LONGEST_SHOWN:
            half = _LONGEST_SHOWN // 2
            pointer = f"{pointer[:half]}...{pointer[-half:]}"
        return f"json schema {pointer}"


def escape(step: str | int) -> str:
    """Write one reference token of a JSON Pointer as it stands in a URI fragment."""
    text = str(step)
    if _PLAIN.fullmatch(text):
        return text
    return quote(text.replace("~", "~0").replace("/", "~1"), safe=_SAFE, errors="surrogatepass")


def shown(value: Json, width: int = 60) -> str:
    """Write a value of the schema for a message, cut to ``width`` characters."""
    if isinstance(value, (dict, list)) and len(value) > 8:
        return f"{'an object' if isinstance(value, dict) else 'an array'} with {len(value)} members"
    try:
        text = repr(value)
    except RecursionError:
        return "an object" if isinstance(value, dict) else "an array"
    return text if len(text) <= width else text[: width - 3] + "..."


def malformed(place: Place, keyword: str, expected: str, *steps: str | int) -> NoReturn:
    """Report a keyword whose value has the wrong shape; ``steps`` lead from the keyword to the part at fault.

    Raises:
        GrammarError: always.
    """
    value = place.schema[keyword]
    for step in steps:
        value = value[step]
    raise GrammarError(
        place.subject(keyword, *steps),
        f"{keyword!r} must be {expected}" if not steps else f"must be {expected}",
        evidence=f"found {shown(value)}",
    )


def refused(
    place: Place, keyword: str, problem: str = "", *, remedy: str = "", steps: tuple[str | int, ...] = ()
) -> NoReturn:
    """Refuse a keyword by name.

    Raises:
        UnsupportedFeature: always.
    """
    raise UnsupportedFeature(
        place.subject(keyword, *steps),
        keyword,
        where=place.at(keyword, *steps),
        problem=problem or f"{keyword!r} cannot be enforced by the automaton",
        remedy=remedy or f"remove {keyword!r}, or check it after generation",
    )

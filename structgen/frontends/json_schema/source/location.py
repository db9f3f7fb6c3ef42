"""The location of a schema: the URI of its resource and its JSON Pointer; errors that name it.

URI references are resolved against a base as in RFC 3986, section 5.2, for every scheme.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final, NoReturn
from urllib.parse import quote

from structgen.errors import GrammarError, UnsupportedFeature
from structgen.grammar.limits import spend

if TYPE_CHECKING:
    from structgen.frontends.json_schema.source.dialect import Dialect
    from structgen.frontends.json_schema.source.document import Document
    from structgen.frontends.json_schema.source.json_value import Json
    from structgen.frontends.json_schema.source.reference import DynamicScope
    from structgen.grammar.limits import Limits

__all__ = [
    "Location",
    "Resource",
    "absolute_uri",
    "escaped",
    "malformed",
    "pointer_of",
    "refused",
    "shown",
    "without_fragment",
]

_UNESCAPED: Final = re.compile(r"[A-Za-z0-9_$.:@-]*")
_MAX_SHOWN: Final = 240
_MAX_VALUE: Final = 60
_SAFE: Final = "!$&'()*+,;=:@/?-._~"  # allowed in a fragment by RFC 3986


@dataclass(slots=True, eq=False)
class Resource:
    """A schema with a URI of its own: a whole document, or a part of it that has an identifier.

    Attributes:
        root: the schema that ``#`` refers to within it.
        uri: its absolute URI without fragment, or ``""``.
        document: the document that it is part of.
        dialect: which keywords have a meaning in it.
        limits: the bounds on its patterns.
        path: its location in the document.
        scope: its dynamic scope, where dynamic references are tracked.
    """

    root: Json
    uri: str
    document: Document
    dialect: Dialect
    limits: Limits
    path: tuple[str | int, ...] = ()
    scope: DynamicScope | None = None

    @property
    def pointer(self) -> str:
        """Its location in the document, as a JSON Pointer without ``#``."""
        return pointer_of(self.path)

    def inner(self, schema: Json, uri: str, dialect: Dialect, path: tuple[str | int, ...]) -> Resource:
        """A resource within this one."""
        return Resource(schema, uri, self.document, dialect, self.limits, path)

    def copied(self, root: Json, scope: DynamicScope) -> Resource:
        """The same with another object for its root, in a dynamic scope."""
        return replace(self, root=root, scope=scope)


@dataclass(slots=True, eq=False)
class Location:
    """A schema and its location; the pointer is made on demand.

    Attributes:
        schema: the schema, as parsed.
        resource: the base of its references.
        parent: the schema that contains it, or ``None`` where ``path`` starts at the document.
        path: the steps from the parent: keyword, then name or index where there is one.
        is_negated: it stands for the values that are *not* valid against the schema.
    """

    schema: Json
    resource: Resource
    parent: Location | None
    path: tuple[str | int, ...]
    is_negated: bool = False

    @property
    def key(self) -> int:
        """The identity of the schema and its negation, whatever path led to it."""
        return -id(self.schema) if self.is_negated else id(self.schema)

    def complement(self) -> Location:
        """The negated schema; for a boolean schema the other boolean."""
        schema = self.schema
        if isinstance(schema, bool):
            return Location(not schema, self.resource, self.parent, self.path)
        return Location(schema, self.resource, self.parent, self.path, is_negated=not self.is_negated)

    def inner(self, schema: Json, *path: str | int) -> Location:
        """A schema directly inside this one."""
        return Location(schema, self.resource, self, path)

    def counter(self, *steps: str | int) -> Callable[[int], None]:
        """A function that counts steps of Python code for this schema or something inside it.

        Raises:
            LimitExceeded: by the function; the schema needs more than ``Limits.steps``.
        """
        return partial(spend, subject=partial(self.subject, *steps))

    @property
    def steps(self) -> tuple[str | int, ...]:
        """The steps from the root of its document."""
        paths: list[tuple[str | int, ...]] = []
        location: Location | None = self
        while location is not None:
            paths.append(location.path)
            location = location.parent
        return tuple(step for path in reversed(paths) for step in path)

    @property
    def pointer(self) -> str:
        """The JSON Pointer as a URI fragment, for instance ``#/properties/a``, after the URI of another document."""
        return f"{self.resource.document.name}#{pointer_of(self.steps)}"

    @property
    def label(self) -> str:
        """The pointer, and the dynamic scope if there are several; schemas with the same label mean the same."""
        scope = self.resource.scope
        return self.pointer if scope is None or scope.number == 0 else f"{self.pointer} in scope {scope.number}"

    def at(self, *steps: str | int) -> str:
        """The pointer of something inside this schema."""
        return self.pointer + pointer_of(steps)

    def subject(self, *steps: str | int) -> str:
        """The subject of messages about this schema or something inside it; very long pointers are shortened."""
        pointer = self.at(*steps)
        if len(pointer) > _MAX_SHOWN:
            half = _MAX_SHOWN // 2
            pointer = f"{pointer[:half]}...{pointer[-half:]}"
        return f"json schema {pointer}"


def pointer_of(steps: Iterable[str | int]) -> str:
    """The JSON Pointer of some steps, as it stands in a URI fragment."""
    return "".join(f"/{_in_fragment(step)}" for step in steps)


def plain_pointer(steps: Iterable[str | int]) -> str:
    """The JSON Pointer of some steps, as it stands in plain text."""
    return "".join(f"/{escaped(step)}" for step in steps)


def pointer_steps(pointer: str) -> list[str]:
    """The steps of a JSON Pointer in plain text (RFC 6901), which is empty or begins with ``/``."""
    return [step.replace("~1", "/").replace("~0", "~") for step in pointer.split("/")[1:]]


def escaped(step: str | int) -> str:
    """Write one reference token of a JSON Pointer as it stands in plain text."""
    return str(step).replace("~", "~0").replace("/", "~1")


def _in_fragment(step: str | int) -> str:
    text = str(step)
    return text if _UNESCAPED.fullmatch(text) else quote(escaped(text), safe=_SAFE, errors="surrogatepass")


def shown(value: Json) -> str:
    """Write a value of the schema for a message, cut to 60 characters."""
    if isinstance(value, (dict, list)) and len(value) > 8:
        return f"{'an object' if isinstance(value, dict) else 'an array'} with {len(value)} members"
    try:
        text = repr(value)
    except RecursionError:
        return "an object" if isinstance(value, dict) else "an array"
    return text if len(text) <= _MAX_VALUE else text[: _MAX_VALUE - 3] + "..."


def malformed(location: Location, keyword: str, expected: str, *steps: str | int, remedy: str = "") -> NoReturn:
    """Report a keyword with an invalid value; ``steps`` lead from the keyword to the invalid part.

    Raises:
        GrammarError: always.
    """
    value = location.schema[keyword]
    for step in steps:
        value = value[step]
    raise GrammarError(
        location.subject(keyword, *steps),
        f"{keyword!r} must be {expected}" if not steps else f"must be {expected}",
        evidence=f"found {shown(value)}",
        remedy=remedy,
    )


def refused(
    location: Location, keyword: str, problem: str = "", *, remedy: str = "", steps: tuple[str | int, ...] = ()
) -> NoReturn:
    """Refuse a keyword by name.

    Raises:
        UnsupportedFeature: always.
    """
    raise UnsupportedFeature(
        location.subject(keyword, *steps),
        keyword,
        where=location.at(keyword, *steps),
        problem=problem or f"{keyword!r} cannot be enforced by the automaton",
        remedy=remedy or f"remove {keyword!r}, or check it after generation",
    )


_PARTS: Final = re.compile(
    r"(?:([A-Za-z][A-Za-z0-9+.-]*):)?(?://([^/?#]*))?([^?#]*)(?:\?([^#]*))?(?:#(.*))?", re.DOTALL
)


def without_fragment(uri: str) -> str:
    """The part of a URI before ``#``."""
    return uri.partition("#")[0]


def absolute_uri(base: str, reference: str) -> str:
    """The URI, without fragment, that ``reference`` means where the base URI is ``base``.

    >>> absolute_uri("urn:example:a", ""), absolute_uri("tag:x/a/b", "../c")
    ('urn:example:a', 'tag:x/c')
    """
    if not base or not reference:
        return without_fragment(reference or base)
    scheme, authority, path, query = _split(reference)
    if scheme is not None:
        return _joined(scheme, authority, _without_dots(path), query)
    base_scheme, base_authority, base_path, base_query = _split(base)
    if authority is None:
        authority = base_authority
        if not path:
            path, query = base_path, base_query if query is None else query
        elif path.startswith("/"):
            path = _without_dots(path)
        else:
            path = _without_dots(_merged(base_authority, base_path, path))
    else:
        path = _without_dots(path)
    return _joined(base_scheme, authority, path, query)


def _split(uri: str) -> tuple[str | None, str | None, str, str | None]:
    match = _PARTS.fullmatch(uri)
    if match is None:  # every text matches
        raise RuntimeError(f"{uri!r} cannot be split")
    return match[1], match[2], match[3], match[4]


def _joined(scheme: str | None, authority: str | None, path: str, query: str | None) -> str:
    start = "" if scheme is None else f"{scheme}:"
    return f"{start}{'' if authority is None else f'//{authority}'}{path}{'' if query is None else f'?{query}'}"


def _merged(authority: str | None, base: str, path: str) -> str:
    if authority is not None and not base:
        return f"/{path}"
    return base[: base.rfind("/") + 1] + path


def _without_dots(path: str) -> str:
    """The path without ``.`` and ``..`` (section 5.2.4)."""
    output: list[str] = []
    steps = path.split("/")
    for index, step in enumerate(steps):
        is_last = index == len(steps) - 1
        if step == "..":
            if len(output) > 1 or (output and output[0]):
                output.pop()
            if is_last:
                output.append("")
        elif step != ".":
            output.append(step)
        elif is_last:
            output.append("")
    return "/".join(output)

"""The schemas that references to other documents find: a registry of the caller, and the metaschemas.

Nothing is fetched, unless the caller's own ``referencing.Registry`` does so.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from structgen.errors import GrammarError
from structgen.grammar.json_schema.places import shown
from structgen.grammar.json_schema.strict_json import parse_json

if TYPE_CHECKING:
    from structgen.grammar.json_schema.strict_json import Json
    from structgen.grammar.limits import Limits

__all__ = ["Library"]

_SPECIFICATIONS: Final = {
    "DRAFT4": "4",
    "DRAFT6": "6",
    "DRAFT7": "7",
    "DRAFT201909": "2019-09",
    "DRAFT202012": "2020-12",
}


class Library:
    """Finds documents by URI.

    Args:
        registry: a ``referencing.Registry``, or a mapping from URIs to schemas as ``dict``, ``bool`` or JSON text.
        limits: the bounds on JSON text.
    """

    def __init__(self, registry: Mapping[str, Any] | None, limits: Limits) -> None:
        self._registry = {} if registry is None else registry
        self._limits = limits

    def find(self, uri: str) -> tuple[Json, str | None] | None:
        """The schema of ``uri``, and the draft that the registry says it is of, or ``None``.

        Raises:
            GrammarError: the registry has no schema there, but something else.
        """
        registry = self._registry
        for key in (uri, f"{uri}#"):
            if key in registry:
                return self._opened(registry[key], uri)
        if hasattr(registry, "get_or_retrieve"):
            try:
                return self._opened(registry.get_or_retrieve(uri).value, uri)
            except LookupError:  # what ``referencing`` raises for an unknown or unretrievable URI
                pass
        return None

    def metaschema(self, uri: str) -> Json:
        """The metaschema of the specification that has this URI, or ``None``."""
        return _metaschemas().get(uri)

    def uris(self) -> Iterator[str]:
        """The URIs of the caller's documents."""
        yield from self._registry

    def _opened(self, value: Any, uri: str) -> tuple[Json, str | None]:
        draft = None
        if not isinstance(value, (dict, bool, str, bytes)) and hasattr(value, "contents"):
            value, draft = value.contents, _draft_of(value)
        if isinstance(value, (str, bytes)):
            value = parse_json(value if isinstance(value, str) else value.decode(), f"json schema {uri}", self._limits)
        if not isinstance(value, (dict, bool)):
            raise GrammarError(
                f"json schema {uri}#", "a schema must be an object or a boolean", evidence=f"found {shown(value)}"
            )
        return value, draft


def _draft_of(resource: Any) -> str | None:
    """The draft of a ``referencing.Resource``."""
    from referencing import jsonschema

    for name, draft in _SPECIFICATIONS.items():
        if getattr(jsonschema, name).create_resource(resource.contents) == resource:
            return draft
    return None


@cache
def _metaschemas() -> dict[str, Json]:
    """The metaschemas by URI without fragment; none where the package that holds them is not installed."""
    try:
        from jsonschema_specifications import REGISTRY
    except ImportError:
        return {}
    return {uri: REGISTRY.contents(uri) for uri in REGISTRY}

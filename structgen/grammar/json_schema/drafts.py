"""The drafts of JSON Schema, and which keywords and formats each of them has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from structgen.errors import UnsupportedFeature

if TYPE_CHECKING:
    from structgen.grammar.json_schema.strict_json import Json

__all__ = ["Dialect", "dialect_of"]

_YEARS: Final = {
    "draft-04/schema": 4,
    "draft-06/schema": 6,
    "draft-07/schema": 7,
    "draft/2019-09/schema": 2019,
    "draft/2020-12/schema": 2020,
    "schema": 2020,
}
_OLD: Final = ("draft-00/schema", "draft-01/schema", "draft-02/schema", "draft-03/schema")

_SINCE: Final = {
    "$id": 6,
    "const": 6,
    "contains": 6,
    "propertyNames": 6,
    "if": 7,
    "then": 7,
    "else": 7,
    "$anchor": 2019,
    "$recursiveRef": 2019,
    "dependentRequired": 2019,
    "dependentSchemas": 2019,
    "maxContains": 2019,
    "minContains": 2019,
    "unevaluatedItems": 2019,
    "unevaluatedProperties": 2019,
    "$dynamicAnchor": 2020,
    "$dynamicRef": 2020,
    "prefixItems": 2020,
}
_UNTIL: Final = {"id": 4, "additionalItems": 2019, "$recursiveRef": 2019}


@dataclass(frozen=True, slots=True)
class Dialect:
    """Which keywords have a meaning.

    Attributes:
        draft: 4, 6, 7, 2019 or 2020.
        declared: whether ``$schema`` says so.  If not, keywords and forms that only older drafts know
            (``dependencies``, an array under ``items``, a boolean ``exclusiveMinimum``) keep their meaning.
    """

    draft: int
    declared: bool

    def has(self, keyword: str) -> bool:
        """Whether ``keyword`` is one of this draft; a keyword of no draft counts as one."""
        if not self.declared:
            return keyword != "id"
        return _SINCE.get(keyword, 0) <= self.draft <= _UNTIL.get(keyword, self.draft)

    @property
    def reference_stands_alone(self) -> bool:
        """Whether ``$ref`` hides its siblings, as it does up to draft 7."""
        return self.draft <= 7

    @property
    def id_keyword(self) -> str:
        """The keyword that gives a schema a URI."""
        return "id" if self.draft == 4 else "$id"

    @property
    def name(self) -> str:
        """The draft as people write it."""
        written = {2019: "2019-09", 2020: "2020-12"}.get(self.draft, str(self.draft))
        return f"draft {written}" + ("" if self.declared else " with the forms of older drafts")


def dialect_of(schema: Json) -> Dialect:
    """Read ``$schema``; without it, or where it names no known draft, draft 2020-12 holds.

    Raises:
        UnsupportedFeature: draft 3 or older is declared.
    """
    declared = schema.get("$schema") if isinstance(schema, dict) else None
    if not isinstance(declared, str):
        return Dialect(2020, declared=False)
    _, _, path = declared.rstrip("#").partition("://json-schema.org/")
    if path in _OLD:
        raise UnsupportedFeature(
            "json schema #/$schema",
            "$schema",
            where="#/$schema",
            problem=f"{declared!r} is older than draft 4",
            remedy="rewrite the schema for draft 2020-12",
        )
    draft = _YEARS.get(path)
    return Dialect(2020, declared=False) if draft is None else Dialect(draft, declared=True)

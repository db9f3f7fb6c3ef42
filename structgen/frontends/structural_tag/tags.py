"""The tags of one format.

Most are a text, a schema and a text, in a list of hundreds.  Such plain tags are looked at once, and their schemas are
planned together; all others are read field by field.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final, final

from structgen.frontends.json_schema import known_schemas
from structgen.frontends.json_schema.source.json_value import SchemaText
from structgen.frontends.structural_tag.place import Place, is_text

if TYPE_CHECKING:
    from structgen.frontends.json_schema import JsonPolicy
    from structgen.grammar.limits import Limits
    from structgen.grammar.nodes import Grammar

__all__ = ["Tags"]

_LEVELS: Final = 2
"""How deep the content of a tag is below the format that lists it."""
_JSON: Final = "json"


@final
class Tags:
    """The tags that a format lists; ``len()`` is their number.

    Args:
        outer: the format, whose field ``tags`` is a list of objects.
        limits: bounds on their nesting.

    Raises:
        GrammarError: one is no tag; the first that is wrong.
    """

    def __init__(self, outer: Place, limits: Limits) -> None:
        self._outer = outer
        self._limits = limits
        self._values: list[Any] = outer.value["tags"]
        may_be_plain = outer.depth + _LEVELS <= limits.nesting
        self._places = [
            None if may_be_plain and _is_plain(value) else self._read(at) for at, value in enumerate(self._values)
        ]
        self._pointer = f"{outer.pointer}/tags/"

    def __len__(self) -> int:
        return len(self._values)

    def _read(self, at: int) -> Place:
        return self._outer.inner(self._limits, "tags", at, default="tag")

    def place(self, at: int) -> Place:
        """A tag, checked."""
        return self._places[at] or self._read(at)

    def pointer(self, at: int) -> str:
        """Where a tag is."""
        return f"{self._pointer}{at}"

    def field(self, at: int, name: str) -> Any:
        """What stands in a field of a tag."""
        return self._values[at][name]

    def plain_contents(self, policy: JsonPolicy) -> list[Grammar | None]:
        """The terms of plain tags whose schemas are simple; ``None`` for all others.

        Complexity: linear in the schemas.
        """
        found: list[Grammar | None] = [None] * len(self._values)
        by_style: defaultdict[str, list[int]] = defaultdict(list)
        for at, place in enumerate(self._places):
            if place is None:
                by_style[self._values[at]["content"].get("style", _JSON)].append(at)
        for style, indices in by_style.items():
            schemas = [self._values[at]["content"]["json_schema"] for at in indices]
            if style == _JSON:
                terms = known_schemas(schemas, policy, self._limits)
            else:
                from structgen.frontends.xml_arguments import known_xml_arguments

                terms = known_xml_arguments(schemas, style, policy, self._limits)
            for at, term in zip(indices, terms, strict=True):
                found[at] = term
        return found


def _is_plain(tag: dict[str, Any]) -> bool:
    """Whether a tag is a text, a schema and a text; ``Place.of`` finds no fault with such a tag and its content."""
    if len(tag) != 4 or tag.get("type") != "tag":
        return False
    content = tag.get("content")
    if content.__class__ is not dict or not (is_text(tag.get("begin")) and is_text(tag.get("end"))):
        return False
    if content.get("type") != "json_schema" or content.get("json_schema").__class__ not in _SCHEMAS:
        return False
    return len(content) == 2 or (len(content) == 3 and is_text(content.get("style")))


_SCHEMAS: Final = (SchemaText, dict)

"""The styles of arguments between tags: how members are spelled, for each family of models."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from structgen.errors import GrammarError
from structgen.frontends.json_schema.source.json_value import ARRAY, BOOLEAN, NULL, NUMBER, OBJECT, STRING

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["STYLES", "TYPE_NAMES", "Style", "style_named"]


@dataclass(frozen=True, slots=True)
class Style:
    """How the members of an object are spelled: ``open``, a name, ``name_end``, a mark of the type, a value, ``close``.

    Attributes:
        open: before a name.
        name_end: what ends a name, and is not in it.
        close: after a value; ``{}``: the name.
        marks: the mark before the values of some types, as bits; ``""``: none.
        stop: what raw text cannot contain.
        item: what stands before the mark of an item, and after the item, where arrays are written with tags.
        strips: whether one line break at each end of raw text does not belong to the value.
        has_entities: whether names have XML's entities for ``& < > "``.
    """

    open: str
    name_end: str
    close: str
    marks: tuple[tuple[int, str], ...]
    stop: str
    item: tuple[str, str] | None = None
    strips: bool = False
    has_entities: bool = False

    @property
    def nests(self) -> bool:
        """Whether arrays and objects are written with tags."""
        return self.item is not None

    @property
    def has_types(self) -> bool:
        """Whether the marks tell strings from other values."""
        return len({mark for _, mark in self.marks}) > 1

    @property
    def repeats_names(self) -> bool:
        """Whether the name stands after the value too."""
        return "{}" in self.close


TYPE_NAMES: Final = {NUMBER: "number", BOOLEAN: "boolean", NULL: "null", OBJECT: "object", ARRAY: "array"}
_SCALAR: Final = NUMBER | BOOLEAN | NULL
_REST: Final = _SCALAR | ARRAY | OBJECT
_NAMESPACE: Final = "]<]minimax[>["
_ARGUMENT: Final = "<|close|>argument<|sep|>"


def _untyped(opening: str, name_end: str, mark: str, close: str, *, strips: bool = False) -> Style:
    return Style(opening, name_end, close, ((STRING, mark), (_REST, mark)), close, strips=strips)


def _deepseek(tag: str) -> Style:
    marks = (STRING, ' string="true">'), (_REST, ' string="false">')
    return Style(f'<{tag} name="', '"', f"</{tag}>", marks, f"</{tag}>")


_STYLES: Final[Mapping[str, Style]] = {
    "qwen_xml": _untyped("<parameter=", ">", "", "</parameter>", strips=True),
    "minimax_xml": _untyped('<parameter name="', '"', ">", "</parameter>"),
    "deepseek_xml": _deepseek("｜DSML｜parameter"),
    "deepseek_v4_1_xml": _deepseek("｜DSML｜ parameter"),
    "glm_xml": _untyped("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
    "kimi_k3_xml": Style(
        '<|open|>argument key="',
        '"',
        _ARGUMENT,
        tuple((bits, f' type="{name}"<|sep|>') for bits, name in ((STRING, "string"), *TYPE_NAMES.items())),
        _ARGUMENT,
    ),
    "cohere_xml": Style(
        '<cofl:value name="',
        '"',
        "</cofl:value>",
        ((STRING, ' type="raw">'), (_SCALAR, ' type="json">'), (OBJECT, ' type="dict">'), (ARRAY, ' type="list">')),
        "</cofl:value>",
        item=("<cofl:value", "</cofl:value>"),
        has_entities=True,
    ),
    "minimax_m3_xml": Style(
        f"{_NAMESPACE}<",
        ">",
        _NAMESPACE + "</{}>",
        ((STRING, ""), (_SCALAR, ""), (OBJECT, ""), (ARRAY, "")),
        _NAMESPACE,
        item=(f"{_NAMESPACE}<item>", f"{_NAMESPACE}</item>"),
    ),
}
STYLES: Final = frozenset(_STYLES)
"""The names of the styles."""


def style_named(name: str) -> Style:
    """A style by its name.

    Raises:
        GrammarError: there is none.
    """
    found = _STYLES.get(name)
    if found is None:
        raise GrammarError(
            f"style {name!r:.60}",
            "there is no such style of arguments",
            remedy=f"name one of {', '.join(sorted(STYLES))}",
        )
    return found

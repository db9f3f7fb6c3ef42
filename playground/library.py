"""Writes what the playground's module takes from Python: programs of syntax, types and formats, classes, Lark's files.

The module (``native/library.h``) has no front end for these.  A program that equals an earlier one is ``"=NAME"``.
"""

from __future__ import annotations

import base64
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from structgen.frontends.json_schema import json_schema
from structgen.frontends.json_schema.emit.syntax import syntax_of
from structgen.frontends.json_schema.formats import STANDARD
from structgen.frontends.json_schema.native import keyword_numbers
from structgen.frontends.json_schema.policy import JsonPolicy
from structgen.frontends.json_schema.source.dialect import UNDECLARED, standard_dialect
from structgen.frontends.json_schema.term import ANY_STRING
from structgen.frontends.lark.library import builtin_texts
from structgen.frontends.regex.dialect import DIALECTS, Flag
from structgen.grammar.flattening import flatten

if TYPE_CHECKING:
    from structgen.frontends.json_schema.source.dialect import Dialect
    from structgen.grammar.nodes import Grammar

_DRAFTS: Final = (
    "draft-04/schema",
    "draft-06/schema",
    "draft-07/schema",
    "schema",
    "draft/2019-09/schema",
    "draft/2020-12/schema",
)
"""What ``$schema`` has after ``https://json-schema.org/``."""
_SITE: Final = "https://json-schema.org/"
_TYPES: Final = ("null", "boolean", "integer", "number", "string", "array", "object")
_LARK_FILES: Final = ("common", "unicode", "python", "lark")
_MAX_NODES: Final = 1_000_000


def _packed(grammar: Grammar) -> str:
    return base64.b64encode(flatten(grammar, {}, None, _MAX_NODES).to_bytes()).decode()


class _Programs:
    """Packed programs by name."""

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}
        self._names: dict[str, str] = {}
        self._values = {_packed(one.string): one.language for one in STANDARD.values() if one.is_regular}

    def add(self, name: str, grammar: Grammar) -> None:
        """Add the program of a grammar without special tokens."""
        packed = _packed(grammar)
        first = self._names.setdefault(packed, name)
        self.texts[name] = packed if first == name else f"={first}"

    def add_format(self, draft: str, name: str, strings: Grammar) -> None:
        """Add what a format is in a draft: its strings, and the language of their values where it is asserted."""
        self.add(f"format {draft} {name}", strings)
        value = self._values.get(_packed(strings))
        if value is not None:
            self.add(f"value {draft} {name}", value)


def _programs() -> dict[str, str]:
    made = _Programs()
    syntax = syntax_of(JsonPolicy())
    for name in (
        "open_object",
        "end_object",
        "close_object",
        "open_array",
        "end_array",
        "close_array",
        "comma",
        "colon",
    ):
        made.add(name, getattr(syntax, name))
    made.add("any value", syntax.levels[0].value)
    made.add("any string", ANY_STRING)
    for kind in _TYPES:
        made.add(f"type {kind}", json_schema({"type": kind}))
    for uri in ("", *_DRAFTS):
        declared = {"$schema": _SITE + uri} if uri else {}
        for name in STANDARD:
            made.add_format(uri, name, json_schema({"type": "string", "format": name, **declared}))
    return made.texts


def _dialect(dialect: Dialect) -> dict[str, object]:
    numbers = dict(sorted(keyword_numbers(dialect).items()))
    return {"alone": dialect.reference_stands_alone, "keywords": numbers}


def library() -> str:
    """The library as JSON."""
    dialects: dict[str, object] = {"": _dialect(UNDECLARED)}
    for uri in _DRAFTS:
        dialect = standard_dialect(_SITE + uri)
        if dialect is not None:
            dialects[uri] = _dialect(dialect)
    classes = {
        name: {
            letter: [point for pair in DIALECTS[name].class_ranges(letter, Flag.NONE) for point in pair]
            for letter in "dws"
        }
        for name in ("python", "ecma")
    }
    lark = {name: texts for name in _LARK_FILES if (texts := builtin_texts(name)) is not None}
    return json.dumps({"programs": _programs(), "lark": lark, "classes": classes, "dialects": dialects})


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(library(), "utf-8")

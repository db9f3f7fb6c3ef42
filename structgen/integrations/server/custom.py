"""OpenAI's custom tools: the input of a call is a text, which a grammar may describe.

No family has a form of its own for such calls.  The text is the one argument, ``input``, of a function: a string in the
notation of the family, so what the client gets is exactly a text of the grammar.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final, final

from structgen.frontends.json_schema import json_schema
from structgen.grammar.analysis import is_regular
from structgen.grammar.pydantic_string import validated
from structgen.integrations.server.description import located, only, text_grammar
from structgen.integrations.server.protocol import wrong

if TYPE_CHECKING:
    from pydantic import GetCoreSchemaHandler
    from pydantic_core import CoreSchema

    from structgen.frontends.chat import Family
    from structgen.grammar.limits import Limits
    from structgen.grammar.nodes import Grammar

__all__ = ["InputReader", "TextInput", "parameters_of", "text_input"]

_FORM: Final = "expected {'type': 'text'}, or {'type': 'grammar'} with 'syntax' ('lark' or 'regex') and 'definition'"


@final
@dataclass(frozen=True, slots=True)
class TextInput:
    """What the input of a custom tool may be.

    Attributes:
        place: of the definition in the request.
        grammar: all inputs; None: any text.
        said: the definition, for the model.
    """

    place: str
    grammar: Grammar | None = None
    said: str = ""

    def arguments(self, family: Family, limits: Limits) -> Any:
        """The arguments of a call, as ``tool_calls`` takes them: a schema, or a type.

        Raises:
            APIError: the family cannot write what the grammar allows, or the grammar is not one of texts.
        """
        if self.grammar is None:
            return parameters_of(self)
        if family.arguments.style != "json" and not is_regular(self.grammar):
            wrong(
                self.place,
                f"the model (family {family.name}) writes inputs as they are, between marks that no input may hold, "
                "and that can be enforced for regular languages only; the grammar is recursive",
            )
        made = _type_of(self.grammar)
        with located(self.place):
            json_schema(made, limits=limits)
        return made


def text_input(place: str, given: object, limits: Limits) -> TextInput:
    """Read the format of a custom tool: as chats have it, or as responses do.

    Raises:
        APIError: it is malformed, or its grammar cannot be enforced.
    """
    if given is None or given == {"type": "text"}:
        return TextInput(place)
    if not isinstance(given, dict) or given.get("type") != "grammar":
        wrong(place, _FORM)
    held: Any = {name: value for name, value in given.items() if name != "type"}
    if "grammar" in given:
        only(place, given, {"type", "grammar"})
        held, place = given["grammar"], f"{place}.grammar"
    if not isinstance(held, dict):
        wrong(place, _FORM)
    only(place, held, {"syntax", "definition"})
    syntax, definition = held.get("syntax"), held.get("definition")
    if syntax not in ("lark", "regex"):
        wrong(f"{place}.syntax", f"expected 'lark' or 'regex'; found {syntax!r:.60}")
    grammar = text_grammar(syntax, f"{place}.definition", definition, limits)
    said = f"a text that matches this {'Lark grammar' if syntax == 'lark' else 'regular expression'}:\n{definition}"
    return TextInput(f"{place}.definition", grammar, said)


def parameters_of(text: TextInput) -> dict[str, Any]:
    """The schema that describes the input to the model."""
    described = {"description": text.said} if text.said else {}
    return {
        "type": "object",
        "properties": {"input": {"type": "string", **described}},
        "required": ["input"],
        "additionalProperties": False,
    }


@dataclass(frozen=True, slots=True)
class _Text:
    """Metadata of ``str``: a string of a grammar."""

    grammar: Grammar

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return validated(self.grammar, "input", source, handler)


def _type_of(grammar: Grammar) -> Any:
    from pydantic import ConfigDict, create_model

    return create_model(
        "Input", __config__=ConfigDict(extra="forbid"), input=(Annotated[str, _Text(grammar)], ...)
    )  # a type for each request, for grammars are no part of a schema


_START: Final = re.compile(r'\s*\{\s*"input"\s*:\s*"')
_CHARACTERS: Final = re.compile(
    r'(?:[^"\\]|\\[^u]|\\u(?![dD][89aAbB])[0-9a-fA-F]{4}|\\u[dD][89aAbB][0-9a-fA-F]{2}\\u[0-9a-fA-F]{4})*'
)


@final
class InputReader:
    r"""Reads the input of a call from its arguments, which come in pieces of JSON.

    >>> reader = InputReader()
    >>> [reader.read(part) for part in ('{"inp', 'ut": "a\\', 'n\\u00', 'e9', '"}')]
    ['', 'a', '\n', 'é', '']
    """

    def __init__(self) -> None:
        self._rest = ""
        self._has_begun = False

    def read(self, text: str) -> str:
        """The characters that are complete now."""
        self._rest += text
        if not self._has_begun:
            start = _START.match(self._rest)
            if start is None:
                return ""
            self._has_begun, self._rest = True, self._rest[start.end() :]
        match = _CHARACTERS.match(self._rest)
        taken = "" if match is None else match[0]
        self._rest = self._rest[len(taken) :]
        return str(json.loads(f'"{taken}"', strict=False))

"""The arguments of calls in the notation of a family: JSON, tags or Python."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, final

from structgen.errors import GrammarError
from structgen.frontends.chat.python_calls import PYTHON, is_python_name, scan_python_arguments
from structgen.frontends.json_schema import JsonPolicy, json_schema
from structgen.frontends.json_schema.arguments import arguments_term
from structgen.frontends.xml_arguments import STYLES, Spacing, scan_xml_arguments, xml_term
from structgen.frontends.xml_arguments.style import style_named
from structgen.grammar.nodes import Grammar, literal

if TYPE_CHECKING:
    from collections.abc import Callable

    from structgen.frontends.json_schema.arguments import ValueTypes
    from structgen.grammar.limits import Limits

__all__ = ["ARGUMENT_STYLES", "ArgumentStyle"]

ARGUMENT_STYLES: Final = frozenset(("json", "python", *STYLES))
"""The notations of arguments."""
_DECODER: Final = json.JSONDecoder()


@lru_cache(maxsize=64)
def _fixed(spacing: tuple[tuple[str, str], ...]) -> Spacing:
    return Spacing(**{name: literal(text) for name, text in spacing if text})


@final
@dataclass(frozen=True, slots=True)
class ArgumentStyle:
    """How the arguments of a call are written.

    Attributes:
        style: ``"json"``, ``"python"`` (``a=1, b="x"``), or a style of ``xml_arguments``.
        spacing: for tags, the fixed white space by the names of ``Spacing``.
    """

    style: str = "json"
    spacing: tuple[tuple[str, str], ...] = ()

    @property
    def begins(self) -> str:
        """The text before each argument, where it is always the same."""
        return style_named(self.style).open if self.style in STYLES else ""

    def term(
        self,
        parameters: Any,
        policy: JsonPolicy,
        limits: Limits,
        spell: Callable[[str], Grammar],
    ) -> Grammar:
        """The arguments that a schema allows; ``spell`` makes the terms of marks.

        Raises:
            GrammarError: as ``json_schema``, or the notation cannot write what the schema allows.
        """
        if self.style == "json":
            return json_schema(parameters, policy=policy, limits=limits)
        if self.style == "python":
            return arguments_term(parameters, PYTHON, policy=policy, limits=limits)
        return xml_term(parameters, self.style, _fixed(self.spacing), policy=policy, limits=limits, spell=spell)

    def check_name(self, name: str) -> None:
        """Refuse the name of a tool that a call cannot have.

        Raises:
            GrammarError: it is no name in Python, and the calls are.
        """
        if self.style == "python" and not is_python_name(name):
            raise GrammarError(
                f"tool {name}",
                "its name cannot be called in Python",
                remedy="use letters, digits, _ and dots between words",
            )

    def scan(self, text: str, at: int, types: ValueTypes) -> tuple[Any, int] | None:
        """Read arguments that begin at a position, and where they end; None if there are none."""
        try:
            if self.style == "json":
                return _DECODER.raw_decode(text, at)
            if self.style == "python":
                return scan_python_arguments(text, at)
            return scan_xml_arguments(text, at, self.style, types)
        except (ValueError, RecursionError):  # a reply may nest as deep as it is long; errors of structgen are of these
            return None

"""Prompts with places for arguments: what the docstring of a program is."""

from __future__ import annotations

import inspect
import string
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

from structgen.errors import ProgramError

__all__ = ["Template"]


@final
@dataclass(frozen=True, slots=True)
class Template:
    """A text with places in braces: ``{name}``, ``{name.part}``, ``{name[0]}``, ``{name:.2f}``, ``{name!r}``.

    Doubled braces stand for themselves.

    Attributes:
        text: the source.
        names: the names that it refers to, in the order of their first places.
    """

    text: str
    names: tuple[str, ...]

    @staticmethod
    def parse(docstring: str, known: Mapping[str, object], *, subject: str) -> Template:
        """Read a docstring, without its indentation.

        Args:
            docstring: the source.
            known: the names that may stand in it.
            subject: what messages call it.

        Raises:
            ProgramError: braces are unbalanced, or a name is not known.
        """
        text = inspect.cleandoc(docstring)
        try:
            fields = [name for _, name, _, _ in string.Formatter().parse(text) if name is not None]
        except ValueError as error:
            raise ProgramError(
                subject,
                "its template cannot be read",
                evidence=str(error),
                remedy="write a brace that stands for itself twice",
            ) from error
        names = list(dict.fromkeys(_head(field) for field in fields))
        unknown = [name for name in names if name not in known]
        if unknown:
            line = next(i for i, line in enumerate(text.split("\n"), 1) if "{" + unknown[0] in line)
            raise ProgramError(
                subject,
                f"its template names {unknown[0]!r}, which is no argument",
                evidence=f"line {line} of the docstring; the arguments are {', '.join(known) or 'none'}",
                remedy="name an argument, or write a brace that stands for itself twice",
            )
        return Template(text, tuple(names))

    def fill(self, arguments: Mapping[str, Any], *, subject: str) -> str:
        """Return the text with the arguments in their places.

        Raises:
            ProgramError: an argument lacks the part that a place asks for, or refuses its format.
        """
        try:
            return _Formatter().vformat(self.text, (), arguments)
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            raise ProgramError(
                subject,
                "an argument does not fit its place in the template",
                evidence=f"{type(error).__name__}: {error}",
                remedy="change the place, or the argument",
            ) from error


def _head(field: str) -> str:
    """The name at the beginning of ``name.part[0]``."""
    for at, character in enumerate(field):
        if character in ".[":
            return field[:at]
    return field


class _Formatter(string.Formatter):
    """Shows models of pydantic as JSON, all other values as they format themselves."""

    def format_field(self, value: Any, format_spec: str) -> str:
        dump = getattr(type(value), "model_dump_json", None)
        return str(dump(value) if dump is not None and not format_spec else super().format_field(value, format_spec))

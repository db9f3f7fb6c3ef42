"""The text of a grammar file, with locations and errors."""

from __future__ import annotations

import json
from bisect import bisect_right
from dataclasses import dataclass, field
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import Final

from structgen.errors import ArgumentError, GrammarError, GrammarSyntaxError, LimitExceeded, UnsupportedFeature, found
from structgen.grammar.limits import Limits

__all__ = ["GrammarSource", "check_text", "holds_structural_tag", "read_source"]

_SUFFIXES: Final = (".lark", ".gbnf", ".ebnf")


def check_text(text: object, limits: Limits, subject: str) -> None:
    """Check that ``text`` can be the text of a grammar.

    Raises:
        ArgumentError: it is no text, or the path of a file.
        LimitExceeded: it is too long.
    """
    if not isinstance(text, str) or (text.endswith(_SUFFIXES) and "\n" not in text and ":" not in text[2:]):
        remedy = "to read a file, call sg.load(path)" if isinstance(text, (str, PathLike)) else "pass a str"
        raise ArgumentError(subject, "expected the text of a grammar", evidence=found(text), remedy=remedy)
    if len(text) > limits.source_bytes or len(text.encode("utf-8", "surrogatepass")) > limits.source_bytes:
        raise LimitExceeded(subject, limit="source_bytes", maximum=limits.source_bytes)


@dataclass(frozen=True, eq=False)
class GrammarSource:
    """A grammar file or text.

    Attributes:
        text: its content.
        name: its path, or ``""`` without a file.
        folder: the folder of its relative imports; ``None`` without a file.
        is_imported: whether another file imports it.
        is_builtin: whether it comes with Lark.
        kind: its kind, for errors.
    """

    text: str
    name: str = ""
    folder: Path | None = None
    is_imported: bool = field(default=False, kw_only=True)
    is_builtin: bool = field(default=False, kw_only=True)
    kind: str = field(default="lark grammar", kw_only=True)

    @property
    def subject(self) -> str:
        """The subject of errors about the whole text."""
        return f"{self.kind} {self.name}".rstrip()

    @cached_property
    def _line_starts(self) -> list[int]:
        starts = [0]
        position = self.text.find("\n")
        while position >= 0:
            starts.append(position + 1)
            position = self.text.find("\n", position + 1)
        return starts

    def where(self, position: int) -> str:
        """Return ``line:column`` of a character offset, both from 1, after the name of an imported file."""
        return self._location(position, with_name=self.is_imported)

    def subject_at(self, position: int) -> str:
        """The subject of errors at a position."""
        return f"{self.kind} {self._location(position, with_name=bool(self.name))}"

    def _location(self, position: int, *, with_name: bool) -> str:
        line = bisect_right(self._line_starts, position)
        location = f"{line}:{position - self._line_starts[line - 1] + 1}"
        return f"{self.name}:{location}" if with_name else location

    def syntax_error(self, span: tuple[int, int], problem: str, remedy: str = "") -> GrammarSyntaxError:
        """Make the error for a span of the text."""
        return GrammarSyntaxError(self.subject_at(span[0]), problem, text=self.text, span=span, remedy=remedy)

    def refused(self, position: int, feature: str, problem: str, remedy: str) -> UnsupportedFeature:
        """Make the error for a refused construct."""
        subject, where = self.subject_at(position), self.where(position)
        return UnsupportedFeature(subject, feature, where=where, problem=problem, remedy=remedy)

    def no_start(self, name: str, rules: list[str], option: str, define: str) -> GrammarError:
        """Make the error for a start rule that is not one of ``rules``; ``option`` names it, ``define`` follows it."""
        from difflib import get_close_matches  # for errors only

        near = get_close_matches(name, rules, 1) or rules
        return GrammarError(
            self.subject,
            f"there is no rule called {name!r} to start from",
            evidence=f"it defines {', '.join(rules[:8]) or 'no rules'}{' ...' if len(rules) > 8 else ''}",
            remedy=f"name one of its rules: {option}={near[0]!r} (--start {near[0]})"
            if near
            else f"write {name}{define} ...",
        )


def read_source(path: Path, limits: Limits, *, is_imported: bool, kind: str = "lark grammar") -> GrammarSource:
    """Read a grammar file.

    Raises:
        GrammarError: it cannot be read or is not UTF-8.
        LimitExceeded: it is too large.
    """
    subject = f"{kind} {path}"
    try:
        with path.open("rb") as file:
            data = file.read(limits.source_bytes + 1)
    except (OSError, ValueError) as error:  # ValueError: a zero byte in the path
        evidence = getattr(error, "strerror", None) or str(error)
        raise GrammarError(
            subject.replace("\0", "\\0"), "cannot be read", evidence=evidence, remedy="check the path"
        ) from None
    if len(data) > limits.source_bytes:
        raise LimitExceeded(subject, limit="source_bytes", maximum=limits.source_bytes)
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise GrammarError(
            subject,
            "is not UTF-8",
            evidence=f"byte {data[error.start : error.start + 1]!r} at offset {error.start}",
            remedy="save it as UTF-8",
        ) from None
    return GrammarSource(text.replace("\r\n", "\n"), str(path), path.parent, is_imported=is_imported, kind=kind)


def holds_structural_tag(text: str) -> bool:
    """Whether JSON text is a structural tag, not a schema."""
    if '"structural_tag"' not in text and '"structures"' not in text:
        return False
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):  # the front end says where
        return False
    if not isinstance(value, dict):
        return False
    return value.get("type") == "structural_tag" or ("structures" in value and "triggers" in value)

"""What a lint has found."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

__all__ = ["Finding", "Severity"]


class Severity(Enum):
    """How much a finding matters."""

    WARNING = "warning"
    """Very likely not what the author means."""
    INFORMATION = "information"
    """True of many good grammars, and good to know."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Something about a description that its author may not know.

    Attributes:
        lint: which lint found it, for instance ``"unreachable rule"``.
        severity: how much it matters.
        where: the place: ``line:column``, a JSON Pointer, or ``""`` where the description has none.
        problem: a sentence that says what is found, with names.
        remedy: what to do about it, or ``""``.
    """

    lint: str
    severity: Severity
    where: str
    problem: str
    remedy: str = ""

    @property
    def is_warning(self) -> bool:
        """Whether it is very likely not meant."""
        return self.severity is Severity.WARNING

    def to_json(self) -> dict[str, str]:
        """Return the finding as JSON values."""
        return {
            "lint": self.lint,
            "severity": self.severity.value,
            "where": self.where,
            "problem": self.problem,
            "remedy": self.remedy,
        }

    def __str__(self) -> str:
        place = f"{self.where}: " if self.where else ""
        return place + self.problem + (f"; {self.remedy}" if self.remedy else "")

"""What a written grammar lacks of the one that it was written from."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from structgen.errors import UnsupportedFeature

__all__ = ["Loss", "LossLog", "Treatment", "Written"]


class Treatment(Enum):
    """How something that a dialect cannot say was treated."""

    DROPPED = "dropped"
    """An annotation is left out; the language is the same."""
    RENAMED = "renamed"
    """A rule has another name; the language is the same."""
    SUPERSET = "superset"
    """A restriction is left out: the written language is larger.  Only where that was asked for."""


@dataclass(frozen=True, slots=True)
class Loss:
    """One thing that the written grammar does not say.

    Attributes:
        what: the construct: ``"Capture 'year'"``.
        where: the rule that it stands in, ``""`` outside all rules.
        treatment: how it was treated.
        detail: one clause more, or ``""``.
    """

    what: str
    where: str
    treatment: Treatment
    detail: str = ""

    def __str__(self) -> str:
        """One line for people."""
        place = f" in rule {self.where}" if self.where else ""
        detail = f": {self.detail}" if self.detail else ""
        return f"{self.what}{place}: {self.treatment.value}{detail}"


@dataclass(frozen=True, slots=True)
class Written:
    """A grammar as a text of a dialect.

    Attributes:
        text: what was written.
        losses: what it does not say, each once.
    """

    text: str
    losses: tuple[Loss, ...]

    @property
    def is_same_language(self) -> bool:
        """Whether the written language is that of the grammar."""
        return all(loss.treatment is not Treatment.SUPERSET for loss in self.losses)


class LossLog:
    """Collects losses while a grammar is written, and refuses those that nobody allowed."""

    def __init__(self, dialect: str, *, superset: bool) -> None:
        self.dialect = dialect
        self.superset = superset
        self._found: dict[Loss, None] = {}

    @property
    def losses(self) -> tuple[Loss, ...]:
        """What was lost, in the order in which it was met."""
        return tuple(self._found)

    @property
    def is_widened(self) -> bool:
        """Whether a restriction was left out."""
        return any(loss.treatment is Treatment.SUPERSET for loss in self._found)

    def note(self, what: str, where: str, treatment: Treatment, detail: str = "") -> None:
        """Record the loss of an annotation or a name."""
        self._found[Loss(what, where, treatment, detail)] = None

    def widen(self, feature: str, where: str, problem: str) -> None:
        """Record that a restriction is left out.

        Raises:
            UnsupportedFeature: that was not asked for.
        """
        if not self.superset:
            raise self.refused(feature, where, problem, "write a superset (superset=True, --superset), or leave it out")
        self.note(feature, where, Treatment.SUPERSET, problem)

    def refused(self, feature: str, where: str, problem: str, remedy: str = "") -> UnsupportedFeature:
        """Make the error for what cannot be said at all."""
        return UnsupportedFeature(
            f"grammar in {self.dialect}",
            feature,
            where=where,
            problem=f"{feature}{f' in rule {where}' if where else ''}: {problem}",
            remedy=remedy or "write a plainer grammar, or choose another dialect",
        )

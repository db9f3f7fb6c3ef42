"""What the constraints of one schema on arrays and on objects have in common: complements, and what they evaluate."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from structgen.grammar.json_schema.places import Place
    from structgen.grammar.json_schema.strict_json import Json

__all__ = ["Facet"]

F = TypeVar("F", bound="Facet")


class Facet(ABC):
    """What one schema says about the values of one type.

    Attributes:
        place: the schema.
        fewest, most: the bounds on the number of items or members; ``most`` is ``None`` without a bound.
        covers_rest: whether a schema for all further items or members is given, so that none is left unevaluated.
        unevaluated: the schema of ``unevaluatedItems`` or ``unevaluatedProperties``; ``None`` if it excludes nothing.
        annotates: whether what it looks at counts as evaluated.
        is_negated: the values that violate any of it are meant, ``_set_aside`` left out.
    """

    __slots__ = (
        "_complement",
        "_silent",
        "annotates",
        "covers_rest",
        "fewest",
        "is_negated",
        "most",
        "place",
        "unevaluated",
    )

    def __init__(self, place: Place) -> None:
        self.place = place
        self.fewest = 0
        self.most: int | None = None
        self.covers_rest = False
        self.unevaluated: Json | None = None
        self.annotates = True
        self.is_negated = False
        self._complement: Any = None
        self._silent: Any = None

    def complement(self: F) -> F:
        """The values that violate the facet, what is set aside left out; always the same one."""
        if self._complement is None:
            other = self._complement = self._copy()
            other._set_aside()
            other.is_negated = not self.is_negated
            other.annotates = False
            other._complement = self.silent()
        made: F = self._complement
        return made

    def is_complement_of(self, other: Facet) -> bool:
        """Whether it was made as the complement of another facet."""
        return other._complement is self

    def silent(self: F) -> F:
        """The same values, of which nothing counts as evaluated; always the same one."""
        if not self.annotates:
            return self
        if self._silent is None:
            self._silent = self._copy()
            self._silent.annotates = False
        made: F = self._silent
        return made

    @abstractmethod
    def _set_aside(self) -> None:
        """Drop what a negated facet does not watch; its complement is made elsewhere."""

    def _copy(self: F) -> F:
        other = type(self)(self.place)
        for kind in (Facet, type(self)):
            for name in kind.__slots__:
                setattr(other, name, getattr(self, name))
        return other

"""The report of a front end on its input: each keyword or construct with its location and status."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Final, Protocol, final

from structgen.grammar.nodes.base import Grammar, assign_field, checked_term, hooks, set_fields

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Deferred", "Described", "Description", "ReportEntry", "Status", "entry_table"]

_MAX_ROWS: Final = 200
_FEW_CHARACTERS: Final = 400
_MAX_CHARACTERS: Final = 4000


class Status(Enum):
    """How a keyword or construct of the input is treated."""

    ENFORCED = "enforced"
    """By the automaton: no output can violate it."""
    CHECKED = "checked"
    """At the end of a value; tokens that would complete a violating value are blocked."""
    REFUSED = "refused"
    """Not compiled: a ``GrammarError`` names it."""
    ANNOTATION = "annotation"
    """Has no effect on which outputs are valid."""


@dataclass(frozen=True, slots=True)
class ReportEntry:
    """One keyword or construct of the input.

    Attributes:
        keyword: its name, for instance ``"maxLength"``.
        where: JSON Pointer (``#/properties/a``), ``line:column`` or character offset.
        status: how it is treated.
        detail: one clause more where the status alone would mislead, else ``""``.
    """

    keyword: str
    where: str
    status: Status
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Description:
    """Where a grammar came from and what its front end made of the input.

    Attributes:
        source: the front end: ``"json schema"``, ``"regex"``, ``"lark"`` ...
        entries: one per keyword or construct of the input, in source order.
        policies: choices that the input leaves open, as (name, value), for instance ``("whitespace", "compact")``.
        value: how an output is converted to a Python value: ``"json"`` (``json.loads``) or ``"text"``.
        python_type: the type that a parsed JSON value is validated into, if the grammar was made from one.
    """

    source: str
    entries: tuple[ReportEntry, ...] = ()
    policies: tuple[tuple[str, str], ...] = ()
    value: str = "text"
    python_type: object | None = field(default=None, compare=False)


def entry_table(entries: Sequence[ReportEntry]) -> str:
    """HTML of entries for notebooks, by status; at most 200 of them."""
    from structgen.markup import table

    rows = [
        (each.status.value, each.where, each.keyword, each.detail)
        for status in Status
        for each in entries
        if each.status is status
    ]
    more = [("...", f"{len(rows) - _MAX_ROWS:,} more", "", "")] if len(rows) > _MAX_ROWS else []
    return table([*rows[:_MAX_ROWS], *more])


class Deferred(Protocol):
    """A term and its description, made on first use."""

    def item(self) -> Grammar:
        """The term."""

    def description(self) -> Description:
        """Its description."""


_first: Final = threading.Lock()
"""Of threads that make the term of one node at the same time, the first one's stays: the engine does not hold the parts
of a node that it reads (``flattening.h``)."""


@final
class Described(Grammar):
    """``item`` with a :class:`Description`; the language is that of ``item``.

    Attributes:
        plain: an equal native term that the engine reads instead of ``item`` and that is faster to make, or ``None``.
        least_bytes: what its program takes at least, where that is known to be much; else 0.
    """

    __slots__ = ("_description", "_item", "_source", "least_bytes", "plain")
    _fields = ("item", "description")
    _item: Grammar | None
    _description: Description | None
    _source: Deferred  # where these two were deferred
    plain: object | None
    least_bytes: int

    def __init__(self, item: Grammar, description: Description, least_bytes: int = 0) -> None:
        item = checked_term(item, "Described")
        set_fields(self, _item=item, _description=description, plain=None, least_bytes=least_bytes)

    @classmethod
    def deferred(cls, plain: object, source: Deferred) -> Described:
        """Describe a term that is made on first use; ``plain`` is its native form."""
        node = cls.__new__(cls)
        assign_field(node, "_item", None)
        assign_field(node, "_description", None)
        assign_field(node, "_source", source)
        assign_field(node, "plain", plain)
        assign_field(node, "least_bytes", 0)
        return node

    @property
    def item(self) -> Grammar:
        """The term."""
        item = self._item
        if item is None:
            made = checked_term(self._source.item(), "Described")
            with _first:
                item = self._item
                if item is None:
                    item = made
                    assign_field(self, "_item", item)
        return item

    @property
    def description(self) -> Description:
        """The description of the term."""
        description = self._description
        if description is None:
            description = self._source.description()
            assign_field(self, "_description", description)
        return description

    @property
    def children(self) -> tuple[Grammar, ...]:
        """The term."""
        return (self.item,)

    def _repr_html_(self) -> str:
        from structgen.markup import card, folded, table, text_block

        held, term = self.description, hooks.text(self, max_length=_MAX_CHARACTERS)
        block = text_block(term)
        parts = [block if len(term) <= _FEW_CHARACTERS else folded("the term", block)]
        if held.policies:
            parts.append(folded("how it was read, and how values are written", table(held.policies)))
        return card(f"Grammar ({held.source})", entry_table(held.entries), *parts)

    def _own(self) -> object:
        # Not the entries, which may be made lazily; equal input gives equal entries.
        return self.description.source, self.description.policies, self.description.value

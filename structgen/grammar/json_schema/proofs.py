"""Proofs that no value satisfies a plan, without making terms.

A proof is a generator for the ``trampoline``: it asks for those parts alone that can decide, such as the required
members of an object, and most plans prove not to be empty after a few questions.  What refers back to itself counts
as not empty, so a proof of emptiness is certain, and a missing one says nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from collections.abc import Sequence as Items
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from structgen.grammar.nodes import EMPTY

if TYPE_CHECKING:
    from structgen.grammar.json_schema.arrays import ArrayLayout
    from structgen.grammar.json_schema.object_layout import ObjectLayout

__all__ = ["Answer", "Ask", "array_is_empty", "object_is_empty", "union_is_empty"]

Part = TypeVar("Part")
Answer: TypeAlias = Generator[object, Any, bool]
Ask: TypeAlias = Callable[[Part], Answer]
"""Finds out whether one part is empty."""


def union_is_empty(parts: Items[Part], ask: Ask[Part]) -> Answer:
    """Whether all parts are empty."""
    for part in parts:
        if not (yield ask(part)):
            return False
    return True


def object_is_empty(layout: ObjectLayout, values: Items[Part], others: Items[Part], ask: Ask[Part]) -> Answer:
    """Whether ``object_term`` makes nothing of a layout, given the values of its names and of its other regions.

    Where names that may be repeated would have to be counted, the answer is no.
    """
    required = 0
    for entry, value in zip(layout.entries, values, strict=True):
        if entry.is_required:
            required += 1
            if entry.is_forbidden or (yield ask(value)):
                return True
    if layout.most is not None and layout.most < max(layout.fewest, required):
        return True
    need = layout.fewest - required
    if need <= 0:
        return False
    for region, value in zip(layout.others, others, strict=True):
        if region.key is not EMPTY and not (yield ask(value)):
            return False
    for entry, value in zip(layout.entries, values, strict=True):
        if not (entry.is_required or entry.is_forbidden or (yield ask(value))):
            need -= 1
            if need == 0:
                return False
    return True


def array_is_empty(layout: ArrayLayout, items: Items[Part], rest: Part, ask: Ask[Part]) -> Answer:
    """Whether ``array_term`` makes nothing of a layout, given its items and the rest."""
    if layout.most is not None and layout.most < layout.fewest:
        return True
    for item in items[: layout.fewest]:
        if (yield ask(item)):
            return True
    if layout.fewest <= len(items):
        return False
    is_empty: bool = yield ask(rest)
    return is_empty

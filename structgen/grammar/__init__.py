"""The grammar IR: immutable values, their algebra, their analysis and their text form; no tokens, no numpy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from structgen.grammar.nodes.base import Grammar, hooks
from structgen.grammar.printer import to_text

if TYPE_CHECKING:
    from structgen.grammar.limits import Limits


def _validated(grammar: Grammar, shown: str, source: Any, handler: Any) -> Any:
    from structgen.grammar.pydantic_string import validated  # where a grammar annotates a type of pydantic

    return validated(grammar, shown, source, handler)


def _packed(grammar: Grammar) -> bytes:
    from structgen.grammar.packing import pack  # where a grammar is saved

    return pack(grammar)


def _unpacked(data: bytes, limits: Limits | None) -> Grammar:
    from structgen.grammar.packing import unpack

    return unpack(data, limits)


hooks.text = to_text
hooks.pydantic = _validated
hooks.pack = _packed
hooks.unpack = _unpacked

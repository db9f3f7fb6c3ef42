"""Where a value that is copied from a text may end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from structgen.decode.speculative.drafters.copying.source_text import SourceText

__all__ = ["boundary_kind", "end_prior", "letter_kind"]

_END_PRIORS: Final = {
    "line": 0.75,
    "stop": 0.6,
    "comma": 0.45,
    "colon": 0.5,
    "bracket": 0.5,
    "quote": 0.6,
    "end": 0.85,
    "space": 0.15,
    "space Aa": 0.35,
}


def boundary_kind(source: SourceText, offset: int) -> str | None:
    """What kind of boundary lies at ``offset``: None within a word or behind a space.

    ``line``, ``stop`` (a sentence may end), ``comma``, ``colon``, ``bracket``, ``quote``, ``end`` of the text, or a
    ``space`` together with what the words on its sides begin with (``letter_kind``).
    """
    text = source.text
    if offset <= 0 or text[offset - 1] == 32:
        return None
    if offset >= len(text):
        return "end"
    if offset in source.breaks:
        return "line"
    following = text[offset : offset + 2]
    first, is_last = following[:1], len(following) == 1 or following[1:] == b" "
    if first == b" ":
        word = text.rfind(b" ", 0, offset) + 1
        return f"space {letter_kind(text[word : word + 1])}{letter_kind(following[1:])}"
    if first in b".!?":
        return "stop" if is_last else None
    if first in b",;:":
        return ("comma" if first == b"," else "colon") if is_last else None
    if first in b")]}>":
        return "bracket"
    return "quote" if first in b"\"'*`" and (is_last or first == b'"') else None


def letter_kind(byte: bytes) -> str:
    """A for an upper-case letter, a for a lower-case one, 1 for a digit, a full stop for anything else."""
    return "A" if byte.isupper() else "1" if byte.isdigit() else "a" if byte.isalpha() else "."


def end_prior(kind: str) -> float:
    """How likely a value ends at a boundary of this kind, before anything was learned of it."""
    return _END_PRIORS.get(kind) or _END_PRIORS[kind.split(maxsplit=1)[0]]

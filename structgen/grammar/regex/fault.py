"""Errors with a caret under the place in the pattern."""

from __future__ import annotations

from typing import Final

from structgen.errors import GrammarSyntaxError, UnsupportedFeature, caret

__all__ = ["NO_REFERENCE", "malformed", "refused"]

NO_REFERENCE: Final = "list the texts that may repeat, or write the group again if any of its texts will do"
"""The way out for every kind of back-reference."""


def malformed(text: str, span: tuple[int, int], problem: str, remedy: str = "") -> GrammarSyntaxError:
    """The error for a pattern that its dialect does not allow."""
    return GrammarSyntaxError("regex", f"{problem} at character {span[0]}", text=text, span=span, remedy=remedy)


def refused(
    text: str, span: tuple[int, int], feature: str, remedy: str, *, reason: str = "is not regular"
) -> UnsupportedFeature:
    """The error for a construct that is refused by name; the caret closes the message."""
    return UnsupportedFeature(
        "regex",
        feature,
        where=f"character {span[0]}",
        problem=f"{feature} at character {span[0]} {reason}",
        remedy=f"{remedy}\n{caret(text, span)}",
    )

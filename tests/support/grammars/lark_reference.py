"""Lark itself, as the reference for grammars and texts."""

from __future__ import annotations

from typing import Final

import lark

__all__ = ["LEFT_RECURSIVE", "lark_accepts"]

LEFT_RECURSIVE: Final = [
    'start: start "x" | "y"',
    'start: start start | "x" | "yx"',
    'start: a "x" | "y"\na: start "y" | "x"',
    'start: b start "x" | "y"\nb: "x"?',
    'start: a | "x"\na: b\nb: start | "y"',
    'start: [start] "x" | "y"',
    'start: (start "x")+ | "y"',
    'start: (start | "x")~2 "y" | "x"',
    'start: a? start "y" | "x"\na: start "x"',
    'start: start start | "x" |',
    'start: a b\na: start?\nb: "x" | a',
]
"""Grammars with left recursion: direct, indirect, hidden, cyclic, and in every operator."""


def lark_accepts(parser: lark.Lark, text: str) -> bool:
    """Whether one of Lark's parsers accepts a text."""
    try:
        parser.parse(text)
    except lark.exceptions.LarkError:
        return False
    except RuntimeError as error:  # a fault of Lark that needs two derivations of the whole text
        if "multiple start symbol items" not in str(error):
            raise
    return True

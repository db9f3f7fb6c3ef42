"""The texts that occur in a given text: what can be quoted from it.

Each suffix of the text is a term that holds the next shorter one, so all of them together are linear in size, and the
language is the beginnings of suffixes.  The engine follows all suffixes that are still possible at once; the sets of
them that it meets are the states of the text's suffix automaton, of which only those are made that an output leads to.
No state leads back to itself, so no rules are needed, and the term may stand where a language must be regular.

Source: A. Blumer, J. Blumer, D. Haussler, A. Ehrenfeucht, M. T. Chen and J. Seiferas, "The smallest automaton
recognizing the subwords of a text" (1985).
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Literal, TypeAlias

from structgen.grammar.nodes import EMPTY, EPSILON, Grammar, choice_of, literal, sequence_of

__all__ = ["Unit", "occurrences", "substring_of", "substrings"]

Unit: TypeAlias = Literal["word", "character", "line"]
"""What a quotation is made of."""


def substring_of(document: str, unit: Unit = "word") -> Grammar:
    r"""The texts, but for the empty one, that stand in ``document``: what may be quoted from it.

    Args:
        document: any text.
        unit: quotations are runs of whole words, characters or lines.  A word is a run of letters, digits, marks and
            underscores, and a quotation of words neither begins nor ends with white space; one of lines holds the line
            breaks between them, not the last one.

    Raises:
        TypeError: ``document`` is no text.
        ValueError: there is nothing in it to quote, it holds a lone surrogate, or there is no such unit.

    Complexity:
        O(n) terms for n characters; the engine makes O(n) states at most.

    >>> print(substring_of("to be\nor not", "line"))
    "to be" ("" | "\n" "or not") | "or not"
    """
    if not isinstance(document, str):
        raise TypeError(f"substring_of: expected text, found {type(document).__name__}")
    if unit == "line":
        made = _quotations(document, *_line_bounds(document), str)
    elif unit in ("word", "character"):
        made = substrings(document, whole_words=unit == "word")
    else:
        raise ValueError(f"substring_of: there is no unit {unit!r}; give 'word', 'character' or 'line'")
    if made == EMPTY:
        raise ValueError(f"substring_of: the document of {len(document)} characters has no {unit} to quote")
    return made


def substrings(text: str, *, whole_words: bool = True, spell: Callable[[str], str] = str) -> Grammar:
    """The texts, but for the empty one, that occur in ``text``.

    Args:
        text: any text.
        whole_words: only those that neither begin nor end with white space or within a word.  A word is a run of
            letters, digits, marks and underscores.
        spell: how parts of the text are written; that of two parts joined must be that of both, joined.

    Raises:
        ValueError: it holds a lone surrogate, which cannot be written.

    Complexity:
        O(n) terms for n characters; the engine makes O(n) states at most.

    >>> print(substrings("to be"))
    "to" ("" | " " "be") | "be"
    """
    starts = [at for at in range(len(text)) if _may_start(text, at, whole_words=whole_words)]
    ends = [at for at in range(1, len(text) + 1) if _may_end(text, at, whole_words=whole_words)]
    return _quotations(text, starts, ends, spell)


def _line_bounds(text: str) -> tuple[list[int], list[int]]:
    """Where lines start and end; an empty line is quoted only with others."""
    breaks = [at for at, character in enumerate(text) if character == "\n"]
    starts = [0, *(at + 1 for at in breaks)]
    return [at for at in starts if at < len(text)], [at for at in [*breaks, len(text)] if at > 0]


def _quotations(text: str, starts: list[int], ends: list[int], spell: Callable[[str], str]) -> Grammar:
    """The texts, but for the empty one, from one of ``starts`` to one of ``ends``."""
    is_start, is_end = set(starts), set(ends)
    suffixes: list[Grammar] = []
    pieces: dict[str, Grammar] = {}  # each once
    rest: Grammar | None = None  # what follows in the text, up to some end
    for start, end in reversed(list(pairwise(sorted(is_start | is_end)))):
        part = text[start:end]
        piece = pieces.get(part)
        if piece is None:
            piece = pieces[part] = literal(spell(part))
        if rest is not None and end in is_end:
            rest = choice_of((EPSILON, rest))
        rest = piece if rest is None else sequence_of((piece, rest))  # the last place is an end
        if start in is_start:
            suffixes.append(rest)
    return choice_of(tuple(reversed(suffixes))) if suffixes else EMPTY


def occurrences(text: str, part: str, *, whole_words: bool = True) -> Iterator[tuple[int, int]]:
    """Where ``part`` occurs in ``text`` as a member of ``substrings``: start and end in characters, in order.

    Occurrences may overlap; the empty text has none.
    """
    start = text.find(part) if part else -1
    while start >= 0:
        end = start + len(part)
        if _may_start(text, start, whole_words=whole_words) and _may_end(text, end, whole_words=whole_words):
            yield start, end
        start = text.find(part, start + 1)


def _may_start(text: str, at: int, *, whole_words: bool) -> bool:
    return not whole_words or (not text[at].isspace() and _is_boundary(text, at))


def _may_end(text: str, at: int, *, whole_words: bool) -> bool:
    return not whole_words or (not text[at - 1].isspace() and _is_boundary(text, at))


def _is_boundary(text: str, at: int) -> bool:
    return not (0 < at < len(text) and _is_of_word(text[at - 1]) and _is_of_word(text[at]))


def _is_of_word(character: str) -> bool:
    return character.isalnum() or character == "_" or unicodedata.category(character).startswith("M")

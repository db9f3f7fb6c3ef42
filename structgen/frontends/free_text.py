"""Free text: any text up to a stop string, and quotations from a document.

The first occurrence of a stop is the one that ends first. Strings without a stop are ``~(any* stop any*)``, and strings
that end with the first one are ``any* stop & ~(any* stop any+)``: boolean terms, whose states the engine makes on
demand. (The Knuth-Morris-Pratt automaton as rules has the same language, but its first mask takes a hundred times as
long with 128,000 tokens.)

For quotations, each suffix of the document is a term that contains the next shorter one, so their size is linear in
all. The engine follows all possible suffixes in parallel: their sets are the states of the suffix automaton, made on
demand.

Source: A. Blumer, J. Blumer, D. Haussler, A. Ehrenfeucht, M. T. Chen and J. Seiferas, "The smallest automaton
recognizing the subwords of a text" (1985).
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Final, Literal, TypeAlias

from structgen.errors import GrammarError
from structgen.grammar import nodes as ir
from structgen.grammar.algebra import joined
from structgen.grammar.analysis import Nullability, is_regular, resolve
from structgen.grammar.nodes import Grammar

__all__ = [
    "Unit",
    "any_text",
    "consecutive",
    "dispatched",
    "hidden_by",
    "occurrences",
    "shortest",
    "substring_of",
    "substrings",
    "text_of",
]

Unit: TypeAlias = Literal["word", "character", "line"]
"""The unit of a quotation."""
_ANYTHING: Final = ir.Repeat(ir.ANY_CHAR, 0, None)


def substring_of(document: str, unit: Unit = "word") -> Grammar:
    r"""The non-empty quotations from ``document``.

    Args:
        document: any text.
        unit: quotations are runs of whole words, characters or lines.  A word is a run of letters, digits, marks and
            underscores, and a quotation of words neither begins nor ends with white space. A quotation of lines has the
            line breaks between them, but not the last one.

    Raises:
        TypeError: ``document`` is not a ``str``.
        ValueError: it has nothing to quote or has a lone surrogate, or the unit is unknown.

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
    if made == ir.EMPTY:
        raise ValueError(f"substring_of: the document of {len(document)} characters has no {unit} to quote")
    return made


def substrings(text: str, *, whole_words: bool = True, spell: Callable[[str], str] = str) -> Grammar:
    """The non-empty substrings of ``text``.

    Args:
        text: any text.
        whole_words: only substrings that neither begin nor end with white space or within a word.  A word is a run of
            letters, digits, marks and underscores.
        spell: how parts of the text are written; it must distribute over concatenation.

    Raises:
        ValueError: it has a lone surrogate.

    Complexity:
        O(n) terms for n characters; the engine makes O(n) states at most.

    >>> print(substrings("to be"))
    "to" ("" | " " "be") | "be"
    """
    starts = [at for at in range(len(text)) if _may_start(text, at, whole_words=whole_words)]
    ends = [at for at in range(1, len(text) + 1) if _may_end(text, at, whole_words=whole_words)]
    return _quotations(text, starts, ends, spell)


def consecutive(pieces: Iterable[str]) -> Grammar:
    """Runs of consecutive ``pieces``, the empty one included.

    Raises:
        ValueError: a piece has a lone surrogate.

    >>> print(consecutive(["to ", "be"]))
    "to " ("" | "be") | "be" | ""
    """
    suffixes: list[Grammar] = [ir.EPSILON]
    rest: Grammar = ir.EPSILON
    for piece in reversed([ir.literal(piece) for piece in pieces if piece]):
        rest = piece if rest is ir.EPSILON else ir.sequence_of((piece, rest))
        suffixes.append(rest)
        rest = ir.choice_of((ir.EPSILON, rest))
    return ir.choice_of(tuple(reversed(suffixes))) if suffixes[1:] else ir.EPSILON


def _line_bounds(text: str) -> tuple[list[int], list[int]]:
    """The starts and ends of lines; an empty line is quoted only with others."""
    breaks = [at for at, character in enumerate(text) if character == "\n"]
    starts = [0, *(at + 1 for at in breaks)]
    return [at for at in starts if at < len(text)], [at for at in [*breaks, len(text)] if at > 0]


def _quotations(text: str, starts: list[int], ends: list[int], spell: Callable[[str], str]) -> Grammar:
    """The non-empty strings from one of ``starts`` to one of ``ends``."""
    is_start, is_end = set(starts), set(ends)
    suffixes: list[Grammar] = []
    pieces: dict[str, Grammar] = {}  # each once
    rest: Grammar | None = None  # what follows in the text, up to some end
    for start, end in reversed(list(pairwise(sorted(is_start | is_end)))):
        part = text[start:end]
        piece = pieces.get(part)
        if piece is None:
            piece = pieces[part] = ir.literal(spell(part))
        if rest is not None and end in is_end:
            rest = ir.choice_of((ir.EPSILON, rest))
        rest = piece if rest is None else ir.sequence_of((piece, rest))  # the last position is an end
        if start in is_start:
            suffixes.append(rest)
    return ir.choice_of(tuple(reversed(suffixes))) if suffixes else ir.EMPTY


def occurrences(text: str, part: str, *, whole_words: bool = True) -> Iterator[tuple[int, int]]:
    """The occurrences of ``part`` in ``text`` that ``substrings`` allows: start and end in characters, in order.

    Occurrences may overlap; the empty string has none.
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


def any_text(
    until: Grammar | str | None = None, *, min: int = 0, max: int | None = None, with_stop: bool = False
) -> Grammar:
    r"""Any text, up to the first occurrence of a stop.

    ``any_text(until=s) + s``, for a string ``s``, matches the strings that end with the first ``s``, unambiguously. If
    the stop is a grammar, the strings are those in which it does not occur; their end may still form an occurrence with
    the text after it, so use ``with_stop``.

    Args:
        until: the stop, a string or a regular grammar without the empty string; ``None``: no stop.
        min: the minimum number of characters, without the stop.
        max: the maximum; ``None``: no bound.
        with_stop: include the stop at the end.

    Raises:
        TypeError: the stop is neither text nor a grammar.
        ValueError: the bounds contain no count, the stop may be empty, or ``with_stop`` has no stop.
        GrammarError: the stop is not regular.

    >>> print(any_text(until="</b>"))
    ~(.* "</b>" .*)
    >>> print(any_text(until="\n", max=80, with_stop=True))
    .{0,80} "\n" & ~(.* "\n" .+)
    """
    if min < 0 or (max is not None and max < min):
        raise ValueError(f"any_text: the bounds {min}..{max} contain no number of characters; give 0 <= min <= max")
    if until is None:
        if with_stop:
            raise ValueError("any_text: with_stop needs a stop; give until=")
        return ir.Repeat(ir.ANY_CHAR, min, max)
    stop = _checked(until)
    if with_stop:
        ends_with = ir.Sequence((ir.Repeat(ir.ANY_CHAR, min, max), stop))
        earlier = ir.Sequence((_ANYTHING, stop, ir.Repeat(ir.ANY_CHAR, 1, None)))
        return ir.Intersection((ends_with, ir.Complement(earlier)))
    holding = [ir.Sequence((_ANYTHING, stop, _ANYTHING))]
    if isinstance(stop, ir.Literal):
        holding += [ir.Sequence((_ANYTHING, ir.Literal(start))) for start in _overlaps(stop.data)]
    without = ir.Complement(holding[0] if len(holding) == 1 else ir.Choice(holding))
    return without if min == 0 and max is None else ir.Intersection((ir.Repeat(ir.ANY_CHAR, min, max), without))


def text_of(excludes: Sequence[str]) -> Grammar:
    """Any text in which none of ``excludes`` occurs; its end may form one with the text after it.

    >>> print(text_of(["<", ">"]))
    ~(.* ("<" | ">") .*)
    """
    return ir.Complement(ir.Sequence((_ANYTHING, ir.choice(*excludes), _ANYTHING))) if excludes else _ANYTHING


def hidden_by(pattern: str, patterns: Iterable[str], excludes: Iterable[str]) -> str | None:
    """What keeps free text from ever ending with ``pattern``: a pattern that ends earlier, or an excluded text in it.

    >>> hidden_by("abc", ["abc", "b"], [])
    'b'
    """
    before_end = pattern[:-1]
    earlier = (other for other in patterns if other in before_end)
    return next(earlier, None) or next((other for other in excludes if other in pattern), None)


def dispatched(rules: Sequence[tuple[str, Grammar]], excludes: Sequence[str] = (), *, loop: bool = True) -> Grammar:
    """Free text without ``excludes``, in which the first occurrence of a pattern is followed by the term of its rule.

    Where one pattern is the end of another, the longer one counts.

    Args:
        rules: patterns and terms; ``hidden_by`` is None for each. Terms of equal patterns are alternatives.
        excludes: strings that the text does not hold, alone or with the pattern after it.
        loop: whether text and further patterns may follow a term.

    Complexity: O(n) terms for n patterns, and for each text a look-up for each length of a pattern.

    >>> print(dispatched([("<", ir.literal("a>"))], loop=False))
    (.* "<" & ~(.* "<" .+)) "a>" | ~(.* "<" .*)
    """
    stops = list(dict.fromkeys([*(pattern for pattern, _ in rules), *excludes]))
    free = text_of(stops)
    if not rules:
        return free
    at_first = ir.Complement(ir.Sequence((_ANYTHING, ir.choice(*stops), ir.Repeat(ir.ANY_CHAR, 1, None))))
    longer: dict[str, list[str]] = {pattern: [] for pattern, _ in rules}  # the stops that end with a pattern
    lengths = {len(pattern) for pattern in longer}
    for stop in stops:
        for length in lengths:
            if length < len(stop) and stop[-length:] in longer:
                longer[stop[-length:]].append(stop)
    parts: list[Grammar] = []
    for pattern, term in rules:
        text: list[Grammar] = [ir.Sequence((_ANYTHING, ir.literal(pattern))), at_first]
        if longer[pattern]:
            text.append(ir.Complement(ir.Sequence((_ANYTHING, ir.choice(*longer[pattern])))))
        parts.append(ir.sequence(ir.Intersection(text), term))
    return ir.sequence(ir.Repeat(ir.choice(*parts), 0, None), free) if loop else ir.choice(*parts, free)


def shortest(term: Grammar) -> Grammar:
    """The strings of a regular term without those that have a proper prefix in it."""
    return ir.Intersection((term, ir.Complement(joined([term, ir.Repeat(ir.ANY_CHAR, 1, None)]))))


def _checked(until: Grammar | str) -> Grammar:
    if not isinstance(until, (str, Grammar)):
        raise TypeError(f"any_text: expected a text or a grammar as the stop, found {type(until).__name__}")
    stop = ir.literal(until) if isinstance(until, str) else until
    if not is_regular(stop):
        raise GrammarError(
            "any_text", "the stop is not regular", evidence=f"the term is {stop!r}", remedy="stop at a text or a regex"
        )
    flat = resolve(stop, through_shared=True)
    if Nullability(dict(flat.rules))(flat.body):
        raise ValueError("any_text: the stop matches the empty string; give one that does not")
    return stop


def _overlaps(stop: bytes) -> list[bytes]:
    """The forbidden ends of the text, which would let the stop begin within the text: the stop without a border."""
    return [stop[: len(stop) - size] for size in range(1, len(stop)) if stop[:size] == stop[len(stop) - size :]]

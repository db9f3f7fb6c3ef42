"""Regular expressions as grammars: three dialects, exact anchors and look-aheads, no backtracking.

``docs/reference/regex.md`` defines the dialects. Reading order: ``parser`` (with ``character_class``, ``group``,
``escape``), ``syntax``, then ``translate`` (with ``context_table``, ``repetition``).
"""

from __future__ import annotations

import re
from typing import Literal, TypeAlias

from structgen.errors import GrammarError
from structgen.frontends.regex.dialect import DIALECTS, Dialect
from structgen.frontends.regex.group import flags_of
from structgen.frontends.regex.parser import parse
from structgen.frontends.regex.translate import full_language, search_language_of
from structgen.grammar.flattening import memory_of, untrack
from structgen.grammar.limits import Limits, counted, spend, steps_left, steps_since
from structgen.grammar.nodes import Grammar
from structgen.grammar.nodes.description import Described, Description, ReportEntry, Status
from structgen.memory_cache import TERMS, cached

__all__ = ["DialectName", "regex", "search_language"]

DialectName: TypeAlias = Literal["python", "ecma", "rust"]

_MAX_CACHED_LENGTH = 4096
_DEFAULT_LIMITS = Limits()


def regex(
    pattern: str,
    *,
    dialect: DialectName = "python",
    flags: str = "",
    limits: Limits = _DEFAULT_LIMITS,
) -> Grammar:
    r"""The strings that ``pattern`` matches from end to end (``re.fullmatch``).

    Named groups are captured.

    Args:
        pattern: the regular expression.
        dialect: ``"python"`` (``re``), ``"ecma"`` (JavaScript, JSON Schema) or ``"rust"`` (the crate ``regex``).
        flags: letters of inline flags for the whole pattern, for instance ``"is"``.
        limits: bounds on the size of the pattern (``source_bytes``, ``nesting``, ``grammar_nodes``).

    Raises:
        GrammarSyntaxError: the pattern is malformed; the error shows the position.
        UnsupportedFeature: it is not regular, or uses a construct refused by name.
        LimitExceeded: it is too large.
        TypeError: the pattern is no ``str``.

    Complexity: linear in the pattern, except for assertions inside repeats.

    >>> from structgen.grammar.nodes import Literal
    >>> regex("a(?:b)c").children[0] == Literal(b"abc")
    True
    """
    _check(pattern)
    chosen = _dialect(dialect)
    with counted(limits):
        node, alphabet = parse(pattern, chosen, flags_of(flags, chosen), limits)
        term = full_language(node, pattern, alphabet, limits.grammar_nodes)
    return Described(term, _DESCRIPTIONS[dialect])


def search_language(
    pattern: str,
    *,
    dialect: DialectName = "ecma",
    flags: str = "",
    limits: Limits = _DEFAULT_LIMITS,
) -> Grammar:
    """The strings in which ``pattern`` matches somewhere (``re.search``; ``pattern`` of JSON Schema).

    Arguments and errors are those of :func:`regex`.  Results of short patterns are cached.
    """
    _check(pattern)
    if len(pattern) > _MAX_CACHED_LENGTH:
        return _search(pattern, dialect, flags, limits)[0]
    before = steps_left()
    term, steps = _cached(pattern, dialect, flags, limits)
    spend(steps - steps_since(before), "regex")  # what is cached counts as much
    return term


def _search(pattern: str, dialect: str, flags: str, limits: Limits) -> tuple[Grammar, int]:
    """The language, and the steps to read it."""
    chosen = _dialect(dialect)
    with counted(limits):
        before = steps_left()
        node, alphabet = parse(pattern, chosen, flags_of(flags, chosen), limits)
        term = search_language_of(node, pattern, alphabet, limits.grammar_nodes)
        return term, steps_since(before)


def _bytes_of(found: tuple[Grammar, int]) -> int:
    return memory_of(found[0])


@cached(TERMS, _bytes_of)
def _cached(pattern: str, dialect: str, flags: str, limits: Limits) -> tuple[Grammar, int]:
    found = _search(pattern, dialect, flags, limits)
    untrack(found[0])
    return found


def _check(pattern: object) -> None:
    if not isinstance(pattern, str):
        remedy = "write it as text"
        if isinstance(pattern, (bytes, bytearray)):
            remedy = "decode it"
        elif isinstance(pattern, re.Pattern):
            remedy = "pass its .pattern, and its flags as flags="
        raise TypeError(f"regex: the pattern must be a str, not {type(pattern).__name__}; {remedy}")


def _dialect(name: str) -> Dialect:
    dialect = DIALECTS.get(name)
    if dialect is None:
        raise GrammarError("regex", f"there is no dialect {name!r}", remedy=f"use one of {', '.join(DIALECTS)}")
    return dialect


_DESCRIPTIONS = {
    name: Description(
        source="regex",
        entries=(ReportEntry("pattern", "character 0", Status.ENFORCED, "matched from end to end"),),
        policies=(("dialect", name),),
    )
    for name in DIALECTS
}

"""What llguidance writes into a grammar as JSON or in angle brackets: parts of a text, schemas, tokens."""

from __future__ import annotations

import json
import re
from typing import Final

from structgen.errors import GrammarError, GrammarSyntaxError, LimitExceeded, StructgenError, UnsupportedFeature
from structgen.frontends.grammar_source import GrammarSource
from structgen.frontends.json_schema import json_schema
from structgen.frontends.lark.syntax import Token
from structgen.grammar.limits import Limits
from structgen.grammar.nodes import EPSILON, Grammar, SpecialToken, TokenSet, choice_of, literal, sequence_of

__all__ = ["json_of", "part_of_text", "schema_of", "special_of"]

_RANGES: Final = re.compile(r"<\[(\^?)([0-9,\s-]*|\*)\]>")
_KEYS: Final = ("substring_chunks", "substring_words", "substring_chars")
# In Unicode the separators of records and units are no white space.
_WORDS: Final = re.compile(r"[^\S\x1c-\x1f]+|\w+|(?:[^\w\s]|[\x1c-\x1f])+")
_MAX_ID_DIGITS: Final = 9


def special_of(source: GrammarSource, token: Token) -> Grammar:
    """Return the token or tokens that ``<name>``, ``<[1,3-5]>``, ``<[^7]>`` or ``<[*]>`` stand for.

    Raises:
        GrammarSyntaxError: the ids are malformed.
    """
    if not token.startswith("<["):
        return SpecialToken(str(token))
    span = (token.start_pos or 0, (token.start_pos or 0) + len(token))
    found = _RANGES.fullmatch(token)
    if found is None or (found[1] and found[2] == "*"):
        raise source.syntax_error(span, "malformed ids of tokens", "write <[7]>, <[1,3-5]>, <[^7]> or <[*]>")
    if found[2] == "*":
        return TokenSet((), is_excluded=True)
    ranges: list[tuple[int, int]] = []
    for part in filter(None, map(str.strip, found[2].split(","))):
        ends = [end.strip() for end in part.split("-")]
        if len(ends) > 2 or not all(end.isdecimal() and len(end) <= _MAX_ID_DIGITS for end in ends):
            raise source.syntax_error(span, f"{part:.40} is no id of a token and no range of them")
        low, high = int(ends[0]), int(ends[-1])
        if low > high:
            raise source.syntax_error(span, f"the range {low}-{high} is in the wrong order", "swap its ends")
        ranges.append((low, high))
    if not ranges:
        raise source.syntax_error(span, "there are no ids of tokens", "write <[7]>, or <[*]> for any token")
    return TokenSet(ranges, is_excluded=bool(found[1]))


def json_of(source: GrammarSource, token: Token, keyword: str) -> object:
    """Return the value of the JSON text behind a keyword.

    Raises:
        GrammarSyntaxError: it is no JSON.
    """
    start = token.start_pos or 0
    try:
        return json.loads(token)
    except json.JSONDecodeError as error:
        at = start + error.pos
        raise source.syntax_error((at, at + 1), f"the JSON of {keyword} is malformed: {error.msg}") from None
    except RecursionError:
        raise source.syntax_error((start, start + 1), f"the JSON of {keyword} is nested too deeply") from None


def part_of_text(source: GrammarSource, token: Token) -> Grammar:
    """Return the texts of ``%regex {"substring_words": "..."}``: pieces that follow each other there, or none.

    Raises:
        GrammarSyntaxError: it is malformed.
        UnsupportedFeature: it has other keys.
    """
    value = json_of(source, token, "%regex")
    start = token.start_pos or 0
    span = (start, start + len(token))
    if not isinstance(value, dict) or len(value) != 1:
        raise source.syntax_error(span, "%regex takes an object with one key", f"one of {', '.join(_KEYS)}")
    [(key, given)] = value.items()
    if key not in _KEYS:
        raise source.refused(
            start, f"%regex {key}", f"%regex has no key {key!r}", f"write one of {', '.join(_KEYS)}, or a regexp"
        )
    if key == "substring_chunks":
        if not isinstance(given, list) or not all(isinstance(piece, str) for piece in given):
            raise source.syntax_error(span, f"{key} takes a list of strings")
        pieces = given
    elif not isinstance(given, str):
        raise source.syntax_error(span, f"{key} takes a string")
    else:
        pieces = list(given) if key == "substring_chars" else _WORDS.findall(given)
    try:
        spelled = [literal(piece) for piece in pieces if piece]
    except ValueError as error:
        raise source.syntax_error(span, str(error)) from None
    suffixes: list[Grammar] = [EPSILON]
    rest: Grammar = EPSILON
    for piece in reversed(spelled):
        rest = sequence_of((piece, rest))
        suffixes.append(rest)
        rest = choice_of((EPSILON, rest))
    return choice_of(tuple(reversed(suffixes))) if len(suffixes) > 1 else EPSILON


def schema_of(source: GrammarSource, token: Token, limits: Limits) -> Grammar:
    """Return the JSON texts that are valid against the schema of ``%json { ... }``.

    Raises:
        GrammarSyntaxError: the schema is no JSON.
        UnsupportedFeature: a keyword of it is refused by name.
        GrammarError: it is malformed, or nothing is valid against it.
        LimitExceeded: it is too large.
    """
    start = token.start_pos or 0
    try:
        return json_schema(str(token), limits=limits)
    except GrammarSyntaxError as error:
        raise source.syntax_error(
            (start + error.span[0], start + error.span[1]), f"%json: {error.problem}", error.remedy
        ) from None
    except UnsupportedFeature as error:
        problem = f"%json at {error.where}: {error.problem}"
        raise source.refused(start, error.feature, problem, error.remedy) from None
    except LimitExceeded:
        raise
    except StructgenError as error:
        place = error.subject.removeprefix("json schema").strip()
        problem = f"%json{' at ' * bool(place)}{place}: {error.problem}"
        raise GrammarError(source.subject_at(start), problem, evidence=error.evidence, remedy=error.remedy) from None

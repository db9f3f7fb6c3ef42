r"""Strings and regexps of a Lark grammar, as patterns of characters.

A regexp may forbid the next character: ``/if\b/``, ``/0|[1-9][0-9]*(?![\w.])/``, and names that are no keyword,
``/(?!(?:if|else)\b)[a-z]\w*\b/``.  If all strings of the regexp end with a word character, a boundary at its end
forbids a word character next.  A negative look-ahead at its end forbids any class of characters.  A negative look-ahead
at its start, for words that end at a boundary too, sees nothing beyond that boundary.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

import lark
from lark.load_grammar import eval_escaping

from structgen.errors import GrammarSyntaxError, UnsupportedFeature
from structgen.frontends.disjointness import are_disjoint
from structgen.frontends.grammar_source import GrammarSource
from structgen.frontends.indentation.facts import nonempty, word_characters
from structgen.frontends.indentation.marks import NotBefore
from structgen.frontends.lark.lazy import Pattern, split_at_lazy
from structgen.frontends.lark.syntax import Token
from structgen.frontends.regex.code_point import complement
from structgen.frontends.regex.dialect import DIALECTS, LARK, Dialect
from structgen.frontends.regex.group import flags_of
from structgen.frontends.regex.parser import parse
from structgen.grammar import nodes as ir
from structgen.grammar.algebra import joined, with_children
from structgen.grammar.limits import Limits
from structgen.grammar.nodes import Grammar, postorder

__all__ = ["Guarded", "guarded", "guarded_text", "pattern_of", "range_of"]

Span: TypeAlias = tuple[int, int]

_BOUNDARY: Final = r"\b"
# An unclosed class, an error elsewhere, is one piece too: searching for its end repeatedly would be quadratic.
_PIECE: Final = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*+(?:\]|\Z)|.", re.DOTALL)
_ANY: Final = ir.Repeat(ir.ANY_CHAR)


class Guarded(NamedTuple):
    r"""The spans of a regexp ``(?!A\b)P(?!C)``, or with ``\b`` in place of ``(?!C)``.

    Attributes:
        excluded: the span of ``A``; None if there is no look-ahead at the start.
        body: the span of ``P``.
        guard: the span of ``C``; None if there is a boundary.
    """

    excluded: Span | None
    body: Span
    guard: Span | None


def guarded(text: str) -> Guarded | None:
    """Split a regexp; return None if it has another form."""
    if text.endswith(_BOUNDARY):
        guard, end = None, len(text) - len(_BOUNDARY)
    else:
        end = _last_group(text)
        if not text.startswith("(?!", end):
            return None
        guard = (end + 3, len(text) - 1)
    start, excluded = 0, None
    if text.startswith("(?!") and end:
        start = _first_group(text)
        if guard is not None or not text[:start].endswith(_BOUNDARY + ")") or not _is_one(text, 3, start - 3):
            return None
        excluded = (3, start - 3)
    return Guarded(excluded, (start, end), guard) if start < end and _is_one(text, start, end) else None


def guarded_text(term: Grammar, excluded: Grammar | None, guard: Grammar | None) -> tuple[Grammar, NotBefore] | None:
    r"""Return the term of a regexp, and what may not come next; None if that is not certain.

    ``term``, ``excluded`` and ``guard`` are the terms of ``P``, ``A`` and ``C``; ``guard`` is None for a boundary.
    """
    if nonempty(term) is not term:
        return None  # an empty match would restrict what follows the terminal before, too
    if guard is not None:
        if isinstance(guard, ir.Literal) and len(guard.data.decode()) == 1:
            guard = ir.CharClass([(ord(guard.data.decode()),) * 2])
        return (term, NotBefore(guard)) if isinstance(guard, ir.CharClass) else None
    others = ir.CharClass(complement(word_characters().ranges))
    if not are_disjoint(term, joined([_ANY, others])):
        return None
    if excluded is not None:
        if not are_disjoint(excluded, joined([_ANY, others, _ANY])):
            return None
        words = excluded
        if not are_disjoint(term, joined([_ANY, others, _ANY])):
            words = joined([excluded, ir.choice(ir.EPSILON, joined([others, _ANY]))])
        term = ir.Intersection((term, ir.Complement(words)))
    return term, NotBefore(word_characters())


def _first_group(text: str) -> int:
    """Return where the group at the start of a regexp ends."""
    depth = 0
    for position, piece in _pieces(text, 0):
        depth += (piece == "(") - (piece == ")")
        if depth == 0:
            return position + 1
    return len(text)


def _last_group(text: str) -> int:
    """Return where the group at the end of a regexp begins; the end of the regexp if there is none."""
    if not text.endswith(")"):
        return len(text)
    depth, start, end = 0, len(text), 0
    for position, piece in _pieces(text, 0):
        if piece == "(" and depth == 0:
            start = position
        depth += (piece == "(") - (piece == ")")
        if piece == ")" and depth == 0:
            end = position + 1
    return start if end == len(text) else len(text)


def _is_one(text: str, start: int, end: int) -> bool:
    """Return whether a boundary at ``end`` applies to the whole span: no bar outside of groups, no split escape."""
    depth, last = 0, start
    for position, piece in _pieces(text, start):
        if position >= end:
            break
        depth += (piece == "(") - (piece == ")")
        if piece == "|" and depth == 0:
            return False
        last = position + len(piece)
    return last == end


def _pieces(text: str, start: int) -> Iterator[tuple[int, str]]:
    for match in _PIECE.finditer(text, start):
        yield match.start(), match[0]


_unescaped: Callable[[str], str] = eval_escaping  # Lark's own function, because its escapes have special rules
_RUST: Final = DIALECTS["rust"]
_META: Final = re.compile(r"[\\.+*?()|\[\]{}^$#&~-]")
_JSON_ESCAPE: Final = re.compile(r"\\(?:u([0-9a-fA-F]{4})|x([0-9a-fA-F]{2})|([\"\\/bfnrt])|(.)|$)", re.DOTALL)
_SLASH: Final = re.compile(r"\\(.)", re.DOTALL)
_SHORT: Final = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}


@dataclass(frozen=True, slots=True)
class _Spelling:
    """A string or regexp token in its file, for errors."""

    source: GrammarSource
    token: Token

    @property
    def start(self) -> int:
        """Offset of the token."""
        return self.token.start_pos or 0

    def error(self, problem: str, remedy: str = "") -> GrammarSyntaxError:
        """Make the error for the whole token."""
        return self.source.syntax_error((self.start, self.start + len(self.token)), problem, remedy)

    def json_text(self, body: str, *, is_string: bool) -> str:
        """Return ``body`` as llguidance reads it: a string with the escapes of JSON, a regexp unchanged."""
        if not is_string:
            return _SLASH.sub(lambda match: "/" if match[1] == "/" else match[0], body)

        def read(match: re.Match[str]) -> str:
            if match[1] or match[2]:
                return chr(int(match[1] or match[2], 16))
            if match[3]:
                return _SHORT.get(match[3], match[3])
            raise self.error(f"a malformed escape {match[0]!r} in a string", "write a backslash as \\\\")

        return _JSON_ESCAPE.sub(read, body).encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")

    def text(self, body: str) -> str:
        """Return ``body`` with Lark's escapes read."""
        try:
            return _unescaped(body)
        except (lark.exceptions.GrammarError, SyntaxError, ValueError, NameError):
            # NameError: Lark's function uses an unset variable when it reports an error.
            raise self.error(
                "a malformed escape, a NUL or a lone surrogate in a string or regexp",
                "write a backslash as \\\\, and other characters as \\x00 or \\u0000",
            ) from None


def pattern_of(source: GrammarSource, token: Token, limits: Limits, *, is_rust: bool = False) -> Pattern:
    """Return the pattern of a string or regexp.

    With ``is_rust`` it is read as llguidance does: a string with the escapes of JSON, a regexp in the syntax of Rust's
    crate.

    Raises:
        GrammarSyntaxError: its escapes or the regexp are malformed.
        UnsupportedFeature: the regexp needs more than a finite automaton, or looks beyond its own text.
        LimitExceeded: it is too large.
    """
    spelling = _Spelling(source, token)
    end = token.rindex('"' if token.type == "STRING" else "/")
    body, flags = token[1:end], token[end + 1 :]
    dialect = _RUST if is_rust else LARK
    text = spelling.json_text(body, is_string=token.type == "STRING") if is_rust else spelling.text(body)
    if token.type == "STRING":
        text = text if is_rust else text.replace("\\\\", "\\")
        if flags:
            escaped = _META.sub(r"\\\g<0>", text)
            return (_plain(_Regexp(spelling, escaped, flags, limits, is_raw=False, dialect=dialect), 0, None),)
        try:
            return (ir.literal(text),)
        except ValueError as error:
            raise spelling.error(str(error)) from None
    if "\n" in body and "x" not in flags:
        raise spelling.error("a regexp spans several lines", "use the flag x, or write \\n")
    if "l" in flags:
        raise source.refused(spelling.start, "flag l", "flag l of a regexp depends on the locale", "use the flag i")
    leading = re.match(r"\(\?([imsux]+)\)", text)
    if leading is not None:
        text, flags = text[leading.end() :], flags + leading[1]
    is_raw = leading is None and text == body
    regexp = _Regexp(spelling, text, "".join(sorted(set(flags))), limits, is_raw=is_raw, dialect=dialect)
    form = None if is_rust else guarded(text)
    if form is not None:
        excluded, guard = (span and _plain(regexp, *span) for span in (form.excluded, form.guard))
        pattern = guarded_text(_plain(regexp, *form.body), excluded, guard)
        if pattern is not None:
            return pattern
    if re.search(r"[*+?}]\?", text):
        return split_at_lazy(
            text,
            verbose="x" in regexp.flags,
            plain=lambda start, end: _plain(regexp, start, end),
            refuse=lambda position, reason: source.refused(
                regexp.span(position, position)[0],
                "lazy repetition",
                f"a lazy repetition cannot be compiled here: {reason}",
                'repeat a class of characters instead, as in [^"]*',
            ),
        )
    return (_plain(regexp, 0, None),)


def range_of(source: GrammarSource, first: Token, last: Token) -> Grammar:
    """Return the characters of a range ``"a".."z"``.

    Raises:
        GrammarSyntaxError: an end is not a single character, or they are in the wrong order.
    """
    codes = []
    for token in (first, last):
        spelling = _Spelling(source, token)
        text = spelling.text(token[1:-1]).replace("\\\\", "\\") if token.endswith('"') else ""
        if len(text) != 1:
            raise spelling.error("the end of a range is not a single character")
        codes.append(ord(text))
    if codes[0] > codes[1]:
        raise _Spelling(source, last).error("the range is in the wrong order", "swap its ends")
    return ir.CharClass([(codes[0], codes[1])])


@dataclass(frozen=True, slots=True)
class _Regexp:
    """A regexp with its escapes resolved; ``is_raw`` if its characters are those of the file."""

    spelling: _Spelling
    text: str
    flags: str
    limits: Limits
    is_raw: bool
    dialect: Dialect

    def span(self, start: int, end: int) -> tuple[int, int]:
        """Return the span in the file of characters of the regexp; the whole token if it is not ``is_raw``."""
        first = self.spelling.start
        if self.is_raw:
            return first + 1 + start, first + 1 + end
        return first, first + len(self.spelling.token)


def _plain(regexp: _Regexp, start: int, end: int | None) -> Grammar:
    """Return the language of a part of the regexp."""
    source = regexp.spelling.source
    try:
        node, _ = parse(regexp.text[start:end], regexp.dialect, flags_of(regexp.flags, regexp.dialect), regexp.limits)
    except GrammarSyntaxError as error:
        span = regexp.span(start + error.span[0], start + error.span[1])
        raise source.syntax_error(span, f"regexp: {error.problem}", error.remedy) from None
    except UnsupportedFeature as error:
        offset = re.search(r"\d+", error.where)  # "character 7", of the part that was read
        position = regexp.span(start + int(offset[0] if offset else 0), 0)[0]
        problem = f"{error.feature} in a regexp is not supported"
        raise source.refused(position, error.feature, problem, error.remedy.partition("\n")[0]) from None
    if isinstance(node, Grammar):
        return _without_captures(node)
    raise source.refused(
        regexp.spelling.start,
        "assertion",
        "an assertion in a regexp (look-ahead, boundary or anchor) looks at the text beside its terminal",
        "express in the rules what may come next, or remove the assertion",
    )


def _without_captures(term: Grammar) -> Grammar:
    """Return ``term`` without captures: Lark treats named groups as plain groups."""
    made: dict[int, Grammar] = {}
    for node in postorder(term):
        if isinstance(node, ir.Capture):
            made[id(node)] = made[id(node.item)]
        else:
            made[id(node)] = with_children(node, [made[id(child)] for child in node.children])
    return made[id(term)]

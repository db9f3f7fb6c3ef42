r"""llguidance's extensions of Lark: attributes of rules, substrings of a text, JSON Schemas and special tokens.

For instance ``name[capture, stop="\\n", max_tokens=10]: ...``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from lark import Tree

from structgen.errors import GrammarError, GrammarSyntaxError, LimitExceeded, StructgenError, UnsupportedFeature
from structgen.frontends.free_text import consecutive
from structgen.frontends.grammar_source import GrammarSource
from structgen.frontends.json_schema import json_schema
from structgen.frontends.lark.syntax import Node, Token, span_of
from structgen.grammar import nodes as ir
from structgen.grammar.algebra import either, joined
from structgen.grammar.limits import Limits
from structgen.grammar.nodes import Grammar, postorder

__all__ = [
    "Attributes",
    "before_stop",
    "json_of",
    "part_of_text",
    "read_attributes",
    "schema_of",
    "special_of",
    "with_suffix",
]

_VALUES: Final[dict[str, tuple[frozenset[str], str]]] = {
    "capture": (frozenset({"", "STRING"}), "a name in quotes, or nothing"),
    "lazy": (frozenset({""}), "nothing"),
    "stop": (frozenset({"STRING", "REGEXP", "TERMINAL", "STRUCTURED", "range"}), "a string, a regexp or a terminal"),
    "suffix": (frozenset({"STRING", "REGEXP", "TERMINAL", "STRUCTURED", "range"}), "a string, a regexp or a terminal"),
    "stop_capture": (frozenset({"STRING"}), "a name in quotes"),
    "max_tokens": (frozenset({"NUMBER"}), "a number from 0 on"),
    "max_chars": (frozenset({"NUMBER"}), "a number from 0 on"),
    "temperature": (frozenset({"NUMBER", "FLOAT"}), "a number from 0 on"),
}
_MAX_TOKENS: Final = 1 << 31


@dataclass(frozen=True, slots=True)
class Attributes:
    """The attributes of one rule.

    Attributes:
        capture: the name under which its text is reported.
        is_lazy: whether it ends at the first possible position.
        stop: what ends it and is not part of its text.
        suffix: what ends it and is part of its text, but not of the capture.
        stop_capture: the name under which the text of the suffix is reported.
        max_tokens: its token budget.
        max_chars: the bound on its characters.
        temperature: the sampling temperature of its tokens.
        places: the token of each attribute, by name.
    """

    capture: str | None = None
    is_lazy: bool = False
    stop: Node | Token | None = None
    suffix: Node | Token | None = None
    stop_capture: str | None = None
    max_tokens: int | None = None
    max_chars: int | None = None
    temperature: float | None = None
    places: dict[str, Token] = field(default_factory=dict)

    @property
    def needs_terminal(self) -> bool:
        """Whether the body must be regular, because its end is determined by its text."""
        return self.is_lazy or self.stop is not None or self.suffix is not None

    @property
    def prefers_terminal(self) -> bool:
        """Whether a regular body is one terminal, inside which nothing is ignored."""
        return self.needs_terminal or (self.max_tokens, self.max_chars) != (None, None) or self.temperature is not None

    def matching(self, match: Grammar) -> Grammar:
        """Return the texts that end a lazy rule, within its bound on characters."""
        return match if self.max_chars is None else ir.Intersection((match, ir.Repeat(ir.ANY_CHAR, 0, self.max_chars)))

    def around(self, term: Grammar) -> Grammar:
        """Return the term of the rule with its capture, budget and temperature."""
        if self.capture is not None:
            term = ir.Capture(self.capture, term)
        return self.bounded(term)

    def bounded(self, term: Grammar) -> Grammar:
        """Return a term with the budgets and the temperature; the capture is inside."""
        if self.max_chars is not None:
            term = ir.Budget(term, characters=self.max_chars)
        if self.max_tokens is not None:
            term = ir.EPSILON if self.max_tokens == 0 else ir.Budget(term, tokens=self.max_tokens)
        if self.temperature is not None:
            term = ir.Tempered(term, self.temperature)
        return term


def read_attributes(source: GrammarSource, tree: Node, rule: str, note: Callable[[str, int, str], None]) -> Attributes:
    """Read the attributes of a rule; ``note`` reports each with its position and a detail.

    Raises:
        GrammarSyntaxError: there is no such attribute, it is given twice, or its value is of the wrong kind.
        UnsupportedFeature: the text of a stop is captured, which is not part of the output.
    """
    values: dict[str, Node | Token | None] = {}
    places: dict[str, Token] = {}
    for name, value in _pairs(tree):
        key, span = str(name), span_of(name)
        if key not in _VALUES:
            raise source.syntax_error(
                span, f"there is no attribute {key!r}", f"the attributes are {', '.join(_VALUES)}"
            )
        if key in values:
            raise source.syntax_error(span, f"attribute {key!r} is given twice", "remove one")
        kind = "" if value is None else value.type if isinstance(value, Token) else str(value.data)
        kinds, expected = _VALUES[key]
        if kind not in kinds:
            raise source.syntax_error(span, f"the value of attribute {key!r} must be {expected}")
        values[key], places[key] = value, name
        note(f"attribute {key}", span[0], _DETAILS[key])
    ends = [key for key in ("stop", "suffix") if key in values]  # with either, lazy says nothing more
    if len(ends) > 1:
        raise source.syntax_error(span_of(places[ends[1]]), f"{ends[0]!r} and {ends[1]!r} cannot be combined")
    if "stop_capture" in values and "suffix" not in values:
        position = span_of(places["stop_capture"])[0]
        if "stop" in values:
            raise source.refused(
                position, "stop_capture", "the text of a stop is not part of the output and cannot be captured",
                "write suffix= in place of stop=",
            )  # fmt: skip
        raise source.syntax_error(span_of(places["stop_capture"]), "'stop_capture' needs a suffix", "write suffix=")
    stop = values.get("stop")
    return Attributes(
        capture=None if "capture" not in values else _name(source, values["capture"], rule),
        is_lazy="lazy" in values,
        stop=None if isinstance(stop, Token) and stop == '""' else stop,
        suffix=values.get("suffix"),
        stop_capture=None if "stop_capture" not in values else _name(source, values["stop_capture"], ""),
        max_tokens=_count(source, values.get("max_tokens"), "tokens"),
        max_chars=_count(source, values.get("max_chars"), "characters"),
        temperature=_temperature(source, values.get("temperature")),
        places=places,
    )


_DETAILS: Final = {
    "capture": "",
    "lazy": "the text ends at the first possible position",
    "stop": "the text ends before the first possible stop",
    "suffix": "the text ends with the first possible suffix",
    "stop_capture": "",
    "max_tokens": "",
    "max_chars": "",
    "temperature": "by the decoder; it has no effect on which outputs are valid",
}


def _pairs(tree: Node) -> Iterator[tuple[Token, Node | Token | None]]:
    for attribute in tree.children:
        if isinstance(attribute, Tree):
            name, value = attribute.children
            if isinstance(name, Token):
                yield name, value


def _name(source: GrammarSource, value: Node | Token | None, default: str) -> str:
    if not isinstance(value, Token):
        return default
    try:
        name = json.loads(value)
    except ValueError:
        raise source.syntax_error(span_of(value), "a name that is no JSON string", 'write it as "name"') from None
    if not name:
        raise source.syntax_error(span_of(value), "an empty name", "leave it out, or give a name")
    return str(name)


def _count(source: GrammarSource, value: Node | Token | None, what: str) -> int | None:
    if not isinstance(value, Token):
        return None
    if value.startswith("-") or len(value) > 11 or int(value) >= _MAX_TOKENS:
        raise source.syntax_error(span_of(value), f"the number of {what} is out of range", "give a number from 0 on")
    return int(value)


def _temperature(source: GrammarSource, value: Node | Token | None) -> float | None:
    if not isinstance(value, Token):
        return None
    number = float(value) if len(value) < 64 else float("inf")
    if not 0 <= number < float("inf"):
        raise source.syntax_error(span_of(value), "the temperature is out of range", "give a number from 0 on")
    return number


_MORE: Final = ir.Repeat(ir.ANY_CHAR, 1, None)
_ANY: Final = ir.Repeat(ir.ANY_CHAR, 0, None)
_MAX_STOPS: Final = 256


def with_suffix(body: Grammar, suffix: Grammar, capture: str | None, suffix_capture: str | None) -> Grammar:
    """Return strings of ``body`` followed by ``suffix``, ending at the first position where a suffix can end.

    The captures name the part before the suffix, and the suffix.
    """
    whole = joined([body, suffix])
    head = body if capture is None else ir.Capture(capture, body)
    tail = suffix if suffix_capture is None else ir.Capture(suffix_capture, suffix)
    return ir.Intersection((joined([head, tail]), ir.Complement(joined([whole, _MORE]))))


def before_stop(body: Grammar, stop: Grammar) -> Grammar | None:
    """Return the strings of ``body`` that can precede the first possible ``stop``; None if it has too many strings."""
    single = _single_characters(stop)
    within = joined([body, stop, _ANY])
    if single:  # a stop of one character cannot begin inside the body and end beyond it
        return ir.Intersection((body, ir.Complement(within)))
    words = _words(stop)
    if words is None:
        return None
    ways: dict[tuple[str, ...], Grammar] = {}
    for word in words:
        begun = sorted({
            other[:-length]
            for other in words
            for length in range(1, len(word))
            if length < len(other) and other.endswith(word[:length])
        })  # fmt: skip
        if tuple(begun) not in ways:
            refused = [within, *(joined([body, ir.literal(part)]) for part in begun)]
            ways[tuple(begun)] = ir.Intersection((body, ir.Complement(either(refused))))
    return either(ways.values())


def _single_characters(term: Grammar) -> bool:
    match term:
        case ir.CharClass():
            return True
        case ir.Literal():
            return len(term.data.decode("utf-8", "replace")) == 1
        case ir.Choice():
            return (
                bool(term.items)
                and all(isinstance(item, (ir.CharClass, ir.Literal)) for item in term.items)
                and all(map(_single_characters, term.items))
            )
    return False


def _words(term: Grammar) -> list[str] | None:
    """Return the strings of a term if they are few and none is empty, else None."""
    words_of: dict[int, frozenset[str] | None] = {}
    for node in postorder(term):
        parts = [words for child in node.children if (words := words_of[id(child)]) is not None]
        words_of[id(node)] = _spelled(node, parts, is_complete=len(parts) == len(node.children))
    words = words_of[id(term)]
    return sorted(words) if words and "" not in words else None


def _spelled(node: Grammar, parts: list[frozenset[str]], *, is_complete: bool) -> frozenset[str] | None:
    words: frozenset[str] | None = None
    match node:
        case ir.Literal():
            words = frozenset([node.data.decode("utf-8", "replace")])
        case ir.CharClass() if sum(high - low + 1 for low, high in node.ranges) <= _MAX_STOPS:
            words = frozenset(chr(code) for low, high in node.ranges for code in range(low, high + 1))
        case ir.Choice() if is_complete:
            words = frozenset().union(*parts)
        case ir.Sequence() if is_complete:
            words = frozenset([""])
            for part in parts:
                if len(words) * len(part) > _MAX_STOPS:
                    return None
                words = frozenset(head + tail for head in words for tail in part)
        case ir.Repeat(min=0, max=1) if is_complete:
            words = parts[0] | {""}
    return words if words is not None and len(words) <= _MAX_STOPS else None


_RANGES: Final = re.compile(r"<\[(\^?)([0-9,\s-]*|\*)\]>")
_KEYS: Final = ("substring_chunks", "substring_words", "substring_chars")
# In Unicode the separators of records and units are not white space.
_WORDS: Final = re.compile(r"[^\S\x1c-\x1f]+|\w+|(?:[^\w\s]|[\x1c-\x1f])+")
_MAX_ID_DIGITS: Final = 9


def special_of(source: GrammarSource, token: Token) -> Grammar:
    """Return the special token ``<name>``, or the token set ``<[1,3-5]>``, ``<[^7]>`` or ``<[*]>``.

    Raises:
        GrammarSyntaxError: the ids are malformed.
    """
    if not token.startswith("<["):
        return ir.SpecialToken(str(token))
    span = span_of(token)
    match = _RANGES.fullmatch(token)
    if match is None or (match[1] and match[2] == "*"):
        raise source.syntax_error(span, "malformed token ids", "write <[7]>, <[1,3-5]>, <[^7]> or <[*]>")
    if match[2] == "*":
        return ir.TokenSet((), is_excluded=True)
    ranges: list[tuple[int, int]] = []
    for part in filter(None, map(str.strip, match[2].split(","))):
        ends = [end.strip() for end in part.split("-")]
        if len(ends) > 2 or not all(end.isdecimal() and len(end) <= _MAX_ID_DIGITS for end in ends):
            raise source.syntax_error(span, f"{part:.40} is neither a token id nor a range of ids")
        low, high = int(ends[0]), int(ends[-1])
        if low > high:
            raise source.syntax_error(span, f"the range {low}-{high} is in the wrong order", "swap its ends")
        ranges.append((low, high))
    if not ranges:
        raise source.syntax_error(span, "there are no token ids", "write <[7]>, or <[*]> for any token")
    return ir.TokenSet(ranges, is_excluded=bool(match[1]))


def json_of(source: GrammarSource, token: Token, keyword: str) -> object:
    """Return the value of the JSON text after a keyword.

    Raises:
        GrammarSyntaxError: it is not valid JSON.
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
    """Return the strings of ``%regex {"substring_words": "..."}``: consecutive pieces of the text, or none.

    Raises:
        GrammarSyntaxError: the JSON is malformed.
        UnsupportedFeature: it has other keys.
    """
    value = json_of(source, token, "%regex")
    span = span_of(token)
    if not isinstance(value, dict) or len(value) != 1:
        raise source.syntax_error(span, "%regex takes an object with one key", f"one of {', '.join(_KEYS)}")
    [(key, given)] = value.items()
    if key not in _KEYS:
        raise source.refused(
            span[0], f"%regex {key}", f"%regex has no key {key!r}", f"write one of {', '.join(_KEYS)}, or a regexp"
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
        return consecutive(pieces)
    except ValueError as error:
        raise source.syntax_error(span, str(error)) from None


def schema_of(source: GrammarSource, token: Token, limits: Limits) -> Grammar:
    """Return the grammar of the schema of ``%json { ... }``.

    Raises:
        GrammarSyntaxError: the schema is not valid JSON.
        UnsupportedFeature: the schema has an unsupported keyword; the error names it.
        GrammarError: the schema is malformed, or nothing is valid against it.
        LimitExceeded: the schema is too large.
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
        location = error.subject.removeprefix("json schema").strip()
        problem = f"%json{' at ' * bool(location)}{location}: {error.problem}"
        raise GrammarError(source.subject_at(start), problem, evidence=error.evidence, remedy=error.remedy) from None

"""Spelling of rules in GBNF (llama.cpp), EBNF (xgrammar), Lark and the dialect of llguidance.

GBNF and EBNF share one spelling, except for tokens.

Sources: llama.cpp, ``grammars/README.md`` and ``src/llama-grammar.cpp``; xgrammar,
``docs/defining_structures/ebnf_grammar.md``.

Sources: https://lark-parser.readthedocs.io/en/stable/grammar.html; llguidance, ``docs/syntax.md``.
"""

from __future__ import annotations

import itertools
import re
import string
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from typing import Final, final

from structgen.frontends.convert.layout import SHORT_COUNTS, LossLog, Style
from structgen.grammar import nodes as ir
from structgen.grammar.algebra import inverse_of, with_children
from structgen.grammar.nodes import Grammar, Rules

__all__ = [
    "BnfSpelling",
    "LarkSpelling",
    "bracketed",
    "is_ebnf_token",
    "is_gbnf_token",
    "is_llguidance_token",
    "with_prefix_free_terminals",
]

_ESCAPES: Final = {"\\": r"\\", "\n": r"\n", "\r": r"\r", "\t": r"\t"}
_IN_STRING: Final = {'"': r"\""}
_BNF_CLASS_ESCAPES: Final = {"]": r"\]", "[": r"\["}
_BNF_TOKEN_TEXT: Final = re.compile(r"<[^\[>\r\n][^>\r\n]*>")
_MACROS: Final = ("TagDispatch", "TokenTagDispatch", "Token", "ExcludeToken", "Regex", "Substring", "true", "false")


def is_gbnf_token(node: Grammar) -> bool:
    """Whether GBNF can write a token: one id, or a text like ``<think>``, or any token but one."""
    if isinstance(node, ir.TokenSet):
        return len(node.tokens) == 1 and _is_named(node.tokens[0])
    return isinstance(node, ir.SpecialToken) and not node.or_text and _is_named(node.token)


def _is_named(token: object) -> bool:
    return isinstance(token, int) or (isinstance(token, str) and _BNF_TOKEN_TEXT.fullmatch(token) is not None)


def is_ebnf_token(node: Grammar) -> bool:
    """Whether EBNF can write a token: ids, or any token but those."""
    if isinstance(node, ir.TokenSet):
        return all(isinstance(token, int) for token in node.tokens) and bool(node.tokens)
    return isinstance(node, ir.SpecialToken) and isinstance(node.token, int)


@final
class BnfSpelling:
    """The spelling of leaves."""

    style = Style("root", " ::= ", r"[^A-Za-z0-9-]", "-", "r-", "[A-Za-z]", _MACROS)

    def __init__(self, log: LossLog, *, is_ebnf: bool) -> None:
        self._log = log
        self._is_ebnf = is_ebnf

    def leaf(self, node: Grammar) -> str:
        """A literal, class or token.

        Raises:
            UnsupportedFeature: it is or contains a lone U+0000.
        """
        match node:
            case ir.Literal(data=data):
                return self._string(data.decode())
            case ir.CharClass(ranges=ranges):
                return self._class(ranges)
            case ir.SpecialToken(token=token):
                return self._token([token], is_excluded=False)
            case ir.TokenSet(tokens=tokens):
                return self._token(tokens, is_excluded=node.is_excluded)
        raise TypeError(f"{type(node).__name__} is no leaf")

    def repetition(self, atom: str, min_count: int, max_count: int | None) -> str:
        """A repeated atom."""
        short = SHORT_COUNTS.get((min_count, max_count))
        if short is None:
            short = f"{{{min_count},}}" if max_count is None else f"{{{min_count},{max_count}}}"
        return atom + short

    def empty(self) -> str:
        """The empty string."""
        return '""'

    def _token(self, tokens: Iterable[str | int | tuple[int, int]], *, is_excluded: bool) -> str:
        if self._is_ebnf:
            return f"{'Exclude' * is_excluded}Token({', '.join(map(str, tokens))})"
        (token,) = tokens
        return "!" * is_excluded + (f"<[{token}]>" if isinstance(token, int) else str(token))

    def _string(self, text: str) -> str:
        """Text in quotes; split where xgrammar would read a digit as part of the escape before it.

        xgrammar itself escapes all but printable ASCII, so this also happens after raw characters.
        """
        if "\0" in text:
            raise self._log.refused("Literal", "", "xgrammar cannot read a lone U+0000")
        made = ""
        for before, character in itertools.pairwise("x" + text):
            is_split = not " " <= before <= "~" and character in string.hexdigits
            made += '" "' * is_split + (_IN_STRING.get(character) or _bnf_character(character))
        return f'("{made}")' if '" "' in made else f'"{made}"'

    def _class(self, ranges: tuple[tuple[int, int], ...]) -> str:
        """A set of characters.

        llama.cpp and xgrammar must agree: the hyphen is raw and first, the caret raw and not first, and an escape of
          several digits is in brackets of its own, since one reads four digits and the other all.
        """
        inverse = inverse_of(ranges)
        if 0 < len(inverse) < len(ranges) and not any(_is_control(chr(code)) for pair in inverse for code in pair):
            hyphen, caret, parts, _ = self._pieces(inverse)
            return f"[^{hyphen}{''.join(parts)}{caret}]"
        hyphen, caret, parts, escaped = self._pieces(ranges)
        if caret and not hyphen and not parts:
            escaped.append(caret)
        else:
            parts.append(caret)
        brackets = [f"[{text}]" if text != "^" else '"^"' for text in (hyphen + "".join(parts), *escaped) if text]
        return brackets[0] if len(brackets) == 1 else f"({' | '.join(brackets)})"

    def _pieces(self, ranges: Iterable[tuple[int, int]]) -> tuple[str, str, list[str], list[str]]:
        """The lone hyphen and caret, the other ranges, and the ranges with escapes of digits."""
        parts: list[str] = []
        escaped: list[str] = []
        hyphen = caret = ""
        for first, last in _without_ends(ranges, "-^"):
            if last == "\0":
                raise self._log.refused("CharClass", "", "xgrammar cannot read a lone U+0000")
            if first == last == "-":
                hyphen = "-"
            elif first == last == "^":
                caret = "^"
            else:
                text = _in_class(first) if first == last else f"{_in_class(first)}-{_in_class(last)}"
                (escaped if _is_control(first) or _is_control(last) else parts).append(text)
        return hyphen, caret, parts, escaped


def _without_ends(ranges: Iterable[tuple[int, int]], special: str) -> Iterator[tuple[str, str]]:
    """The ranges, split so that no range of several characters begins or ends with a special character."""
    for first, last in ranges:
        low, high = first, last
        if chr(low) in special:
            yield chr(low), chr(low)
            low += 1
        if low <= high and chr(high) in special:
            yield chr(high), chr(high)
            high -= 1
        if low <= high:
            yield chr(low), chr(high)


def _is_control(character: str) -> bool:
    """Whether a character needs an escape with digits."""
    return character < " " and character not in "\n\r\t"


def _bnf_character(character: str) -> str:
    return f"\\u{ord(character):04x}" if _is_control(character) else _ESCAPES.get(character, character)


def _in_class(character: str) -> str:
    return _BNF_CLASS_ESCAPES.get(character) or _bnf_character(character)


_SHORT: Final = {"\n": r"\n", "\r": r"\r", "\t": r"\t"}
_LARK_CLASS_SPECIAL: Final = r"\]^-[&~/"
_LARK_TOKEN_TEXT: Final = re.compile(r"<[^\[>\s][^>\s]*>")


def is_llguidance_token(node: Grammar) -> bool:
    """Whether llguidance can write a token: ids, or one text like ``<|end|>``."""
    if isinstance(node, ir.TokenSet):
        texts = [token for token in node.tokens if isinstance(token, str)]
        if texts:
            return len(node.tokens) == 1 and not node.is_excluded and _LARK_TOKEN_TEXT.fullmatch(texts[0]) is not None
        return bool(node.tokens)
    if not isinstance(node, ir.SpecialToken) or node.or_text:
        return False
    return isinstance(node.token, int) or _LARK_TOKEN_TEXT.fullmatch(node.token) is not None


@final
class LarkSpelling:
    """The spelling of leaves."""

    style = Style("start", ": ", r"[^a-z0-9_]", "_", "r_", "[a-z]", is_lower=True)

    def leaf(self, node: Grammar) -> str:
        """A literal, class or token."""
        match node:
            case ir.Literal(data=data):
                return '"' + "".join(_lark_character(character, '"\\') for character in data.decode()) + '"'
            case ir.CharClass(ranges=ranges):
                return _class(ranges)
            case ir.SpecialToken(token=str(token)):
                return token
            case ir.SpecialToken(token=token):
                return f"<[{token}]>"
            case ir.TokenSet(tokens=tokens):
                if isinstance(tokens[0], str):
                    return tokens[0]
                ids = ",".join(f"{each[0]}-{each[1]}" if isinstance(each, tuple) else str(each) for each in tokens)
                return f"<[{'^' * node.is_excluded}{ids}]>"
        raise TypeError(f"{type(node).__name__} is no leaf")

    def repetition(self, atom: str, min_count: int, max_count: int | None) -> str:
        """A repeated atom."""
        short = SHORT_COUNTS.get((min_count, max_count))
        if short is not None:
            return atom + short
        if max_count is None:
            return f"({atom}~{min_count} {atom}*)"
        return f"{atom}~{min_count}" if min_count == max_count else f"{atom}~{min_count}..{max_count}"

    def empty(self) -> str:
        """The empty string."""
        return ""


def _class(ranges: tuple[tuple[int, int], ...]) -> str:
    if not inverse_of(ranges):
        return r"/[\s\S]/"
    return f"/{bracketed(ranges, lambda character: _lark_character(character, _LARK_CLASS_SPECIAL))}/"


def bracketed(ranges: tuple[tuple[int, int], ...], spell: Callable[[str], str]) -> str:
    """A class of characters in brackets, as regular expressions have it; negated where that is shorter."""
    inverse = inverse_of(ranges)
    is_negated = len(inverse) < len(ranges)
    made = "^" if is_negated else ""
    for low, high in inverse if is_negated else ranges:
        made += spell(chr(low))
        if high > low:
            made += ("-" if high > low + 1 else "") + spell(chr(high))
    return f"[{made}]"


def _lark_character(character: str, special: str) -> str:
    if character in special:
        return "\\" + character
    if character.isprintable() or character in _SHORT:
        return _SHORT.get(character, character)
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x80 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def with_prefix_free_terminals(flat: Rules) -> Rules:
    """Split literals into characters where one terminal would be the prefix of another."""
    terms = [*(term for _, term in flat.rules), flat.body]
    seen: dict[int, Grammar] = {}
    for term in terms:
        for node in ir.postorder(term, known=lambda node: id(node) in seen):
            seen[id(node)] = node
    classes = [node.ranges for node in seen.values() if isinstance(node, ir.CharClass)]
    texts = {node.data.decode() for node in seen.values() if isinstance(node, ir.Literal)}
    divided = _divided({text for text in texts if len(text) > 1}, {text for text in texts if len(text) == 1}, classes)
    made: dict[int, Grammar] = {}
    for node in seen.values():  # children first
        made[id(node)] = with_children(node, [made[id(child)] for child in node.children])
        if isinstance(node, ir.Literal) and node.data.decode() in divided:
            made[id(node)] = ir.Sequence(ir.literal(character) for character in node.data.decode())
    return Rules([(name, made[id(term)]) for name, term in flat.rules], made[id(flat.body)])


def _divided(texts: set[str], single: set[str], classes: list[tuple[tuple[int, int], ...]]) -> set[str]:
    """The strings to split; their characters become terminals, which may require further splits."""
    ordered = sorted(texts)
    divided = {one for one, other in pairwise(ordered) if other.startswith(one)}
    # Strings with a common prefix are adjacent when sorted; prefixes of split strings are handled below.
    single = set(single)
    while True:
        single.update(character for text in divided for character in text)
        more = {
            text
            for text in texts - divided
            if text[0] in single or any(low <= ord(text[0]) <= high for ranges in classes for low, high in ranges)
        }
        if not more:
            return divided
        divided |= more

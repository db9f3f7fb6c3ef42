"""Lark, as ``structgen.frontends.lark`` reads it, and llguidance's dialect of it.

Lark's meaning here is any division of a text into terminals, so strings and classes of one character are written as
they are.  llguidance divides a text by longest match among the terminals that are possible at a place; so that every
division stays possible, no terminal is the beginning of another: where one would be, strings are written character by
character.

Sources: https://lark-parser.readthedocs.io/en/stable/grammar.html; llguidance, ``docs/syntax.md``.
"""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Final, final

from structgen.frontends.convert.layout import Style
from structgen.grammar import nodes as ir
from structgen.grammar.algebra import inverse_of, with_children
from structgen.grammar.nodes import Grammar, Rules

__all__ = ["LarkSpelling", "is_llguidance_token", "with_prefix_free_terminals"]

_SHORT: Final = {"\n": r"\n", "\r": r"\r", "\t": r"\t"}
_IN_CLASS: Final = r"\]^-[&~/"
_TOKEN_TEXT: Final = re.compile(r"<[^\[>\s][^>\s]*>")


def is_llguidance_token(node: Grammar) -> bool:
    """Whether llguidance has notation for a token: ids, or one text like ``<|end|>``."""
    if isinstance(node, ir.TokenSet):
        texts = [token for token in node.tokens if isinstance(token, str)]
        if texts:
            return len(node.tokens) == 1 and not node.is_excluded and _TOKEN_TEXT.fullmatch(texts[0]) is not None
        return bool(node.tokens)
    if not isinstance(node, ir.SpecialToken) or node.or_text:
        return False
    return isinstance(node.token, int) or _TOKEN_TEXT.fullmatch(node.token) is not None


@final
class LarkSpelling:
    """How leaves are spelled."""

    style = Style("start", ": ", r"[^a-z0-9_]", "_", "r_", "[a-z]", is_lower=True)

    def leaf(self, node: Grammar) -> str:
        """A literal, class or token."""
        match node:
            case ir.Literal(data=data):
                return '"' + "".join(_character(character, '"\\') for character in data.decode()) + '"'
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

    def repetition(self, atom: str, least: int, most: int | None) -> str:
        """An atom that is repeated."""
        short = {(0, None): "*", (1, None): "+", (0, 1): "?"}.get((least, most))
        if short is not None:
            return atom + short
        if most is None:
            return f"({atom}~{least} {atom}*)"
        return f"{atom}~{least}" if least == most else f"{atom}~{least}..{most}"

    def empty(self) -> str:
        """The empty text."""
        return ""


def _class(ranges: tuple[tuple[int, int], ...]) -> str:
    inverse = inverse_of(ranges)
    if not inverse:
        return r"/[\s\S]/"
    is_negated = len(inverse) < len(ranges)
    made = "^" if is_negated else ""
    for low, high in inverse if is_negated else ranges:
        made += _character(chr(low), _IN_CLASS)
        if high > low:
            made += ("-" if high > low + 1 else "") + _character(chr(high), _IN_CLASS)
    return f"/[{made}]/"


def _character(character: str, special: str) -> str:
    if character in special:
        return "\\" + character
    if character.isprintable() or character in _SHORT:
        return _SHORT.get(character, character)
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x80 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def with_prefix_free_terminals(flat: Rules) -> Rules:
    """Divide literals into characters where one terminal would be the beginning of another."""
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
    """The texts that must be divided; their characters are terminals then, which may divide others."""
    ordered = sorted(texts)
    divided = {one for one, other in pairwise(ordered) if other.startswith(one)}
    # Texts with one beginning are neighbours; those that begin like a divided one are found below.
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

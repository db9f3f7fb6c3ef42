"""Mutations of grammars and patterns, piece by piece, so that most of the results can be read and compiled.

A text is cut into pieces by the expression of its notation. Edits replace, repeat, wrap and leave out items (texts,
classes, names, balanced groups), and names that no rule defines are replaced by names that one does. One edit in twelve
is of bytes, for the paths that refuse.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Final

__all__ = ["NOTATIONS", "Notation", "mutated_bytes", "mutated_text"]

LONGEST: Final = 1_500
"""Bytes of a mutated input; longer ones are not kept."""


@dataclass(frozen=True)
class Notation:
    """How texts of one front end are cut and put together.

    Attributes:
        pattern: one named group for each kind of piece: ``blank``, ``head`` (the name of a rule and its sign),
            ``line`` (a directive, kept as it is), ``item``, ``name``, ``open``, ``close``, ``after`` (a repetition),
            ``bar``; whatever it doesn't match is a piece of its own.
        items: items to put in.
        repeats: what may follow an item.
        group: what opens and closes a group.
        rule: a format of a new rule with ``name`` and ``body``; empty if there are no rules.
        terminal: whether the rule of a name may only use names for which this is true as well.
    """

    pattern: re.Pattern[str]
    items: Sequence[str]
    repeats: Sequence[str]
    group: tuple[str, str] = ("(", ")")
    rule: str = ""
    separator: str = " "
    terminal: Callable[[str], bool] = field(default=lambda name: False)


_STRING: Final = r'"(?:\\.|[^"\\\n])*"i?'
_COUNTS: Final = ("", "?", "*", "+", "", "?")

NOTATIONS: Final[Mapping[str, Notation]] = {
    "lark": Notation(
        re.compile(
            rf"""(?P<blank>[ \t]+|//[^\n]*|\#[^\n]*)|(?P<line>^%[^\n]*|->[ \t]*\w+)
            |(?P<head>^[?!]?[A-Za-z_][\w.]*(?:\{{[^}}\n]*\}})?(?:\[[^\]\n]*\])?(?:::_)?[ \t]*:)
            |(?P<item>{_STRING}(?:[ ]*\.\.[ ]*{_STRING})?|/(?!/)(?:\\.|[^/\\\n])+/[a-z]*|<[^>\n]+>
              |%json[ ]*\{{.*\}}|[a-z]\w*\{{[^}}\n]*\}})
            |(?P<name>[A-Za-z_]\w*)|(?P<open>[(\[])|(?P<close>[)\]])
            |(?P<after>[?*+]|~[ ]*\d+(?:\.\.\d+)?)|(?P<bar>\n?[ \t]*\|)""",
            re.VERBOSE | re.MULTILINE,
        ),
        items=(
            *('"a"', '"b"', '"ab"', '""', '"é"', '"x"i', '"a".."c"', r'"\n"', r'"\\"', r'"\u20ac"', '"<|im_end|>"'),
            *(
                "/[ab]+/",
                "/a|b|/",
                "/[^x]/",
                r"/\w+/",
                r"/\d{2,3}/",
                "/a*?b/",
                "/(?:ab)?c/i",
                r"/[^\"\\]*/",
                "/./s",
                "/a(?!b)/",
            ),
        ),
        repeats=(*_COUNTS, "~2", "~1..3", "~0..2"),
        rule="\n{name}: {body}\n",
        terminal=str.isupper,
    ),
    "gbnf": Notation(
        re.compile(
            rf"""(?P<blank>[ \t]+|\#[^\n]*)|(?P<head>[\w-]+(?:\[[^\]\n]*\])?[ \t]*::=)
            |(?P<item>{_STRING}|\[(?:\\.|[^\]\\\n])*\]|<\[?[^>\n]*\]?>
              |\.(?![\w.])|(?:Tag|Token|Regex|Sub)\w*\((?:{_STRING}|[^()\n]|\([^()\n]*\))*\))
            |(?P<name>[A-Za-z_][\w-]*)|(?P<open>\()|(?P<close>\))
            |(?P<after>[?*+]|\{{[\d,\s]*\}})|(?P<bar>\n?[ \t]*\|)""",
            re.VERBOSE,
        ),
        items=(
            *('"a"', '"b"', '"ab"', '""', '"é"', r'"\n"', r'"\""', r'"\x41"', r'"\u00e9"', '"<think>"'),
            *("[ab]", "[^x]", "[a-z0-9]", r"[^\"\\]", "[é-ü]", r"[\n\t ]", "."),
        ),
        repeats=(*_COUNTS, "{2}", "{1,3}", "{,2}", "{2,}"),
        rule="\n{name} ::= {body}\n",
    ),
    "regex": Notation(
        re.compile(
            r"""(?P<item>\\(?:x[0-9A-Fa-f]{2}|u[0-9A-Fa-f]{4}|[pP]\{[^}]*\}|[pP].|k<\w+>|.)|\[\^?\]?(?:\\.|\[:\w+:\]|[^\]\\])*\])
            |(?P<open>\((?:\?(?:P?<\w+>|[:=!>]|<[=!]|[a-zA-Z-]+:))?)|(?P<close>\))
            |(?P<after>(?:[*+?]|\{\d*,?\d*\})[?+]?)|(?P<bar>\|)|(?P<line>\(\?[a-zA-Z]+\))|(?P<name>(?!))|(?P<head>(?!))|(?P<blank>(?!))""",
            re.VERBOSE | re.DOTALL,
        ),
        items=(
            *("a", "b", "ab", "é", "€", "😀", ".", r"\d", r"\w", r"\s", r"\W", r"\b", r"\.", r"\n", r"\x41", "^", "$"),
            *(
                "[ab]",
                "[^a]",
                "[a-z]",
                r"[\w-]",
                r"[^\s\d]",
                "[é-ü]",
                r"\B",
                "(?=a)",
                "(?!ab)",
                "(?:a|b)",
                "(?P<n>a)",
                "(?i:k)",
                r"\p{L}",
            ),
        ),
        repeats=(*_COUNTS, "*?", "+?", "{2}", "{0,3}", "{1,}", "{2,5}?"),
        group=("(?:", ")"),
        separator="",
    ),
}
"""By name; GBNF's also serves the EBNF with macros."""

_NAMES: Final = ("x", "y", "zz", "part", "A", "B", "WORD")


def mutated_bytes(data: bytes, rng: random.Random) -> bytes:
    """Change, insert, leave out or repeat some bytes."""
    made = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(made) + 1)
        match rng.randrange(5):
            case 0:
                made[at:at] = bytes([rng.choice(b"\"'\\/()[]{}|:,<>%\n\x00\xff\xc3\xed\xa0\x80az09-")])
            case 1:
                made[at : at + 1] = bytes([rng.randrange(256)])
            case 2:
                del made[at : at + rng.randint(1, 8)]
            case 3:
                made[at:at] = made[at : at + rng.randint(1, 16)] * rng.randint(1, 3)
            case _:
                other = rng.randrange(len(made) + 1)
                made[at:at] = made[other : other + rng.randint(1, 24)]
    return bytes(made[:LONGEST])


@dataclass(slots=True)
class _Pieces:
    """A text in pieces with their kinds."""

    texts: list[str]
    kinds: list[str]

    def text(self) -> str:
        return "".join(self.texts)

    def items(self) -> list[tuple[int, int]]:
        """The spans of all items: one piece, or a balanced group."""
        spans: list[tuple[int, int]] = []
        opened: list[int] = []
        for at, kind in enumerate(self.kinds):
            if kind in ("item", "name", "other") and self.texts[at].strip():
                spans.append((at, at + 1))
            elif kind == "open":
                opened.append(at)
            elif kind == "close" and opened:
                spans.append((opened.pop(), at + 1))
        return spans


def _cut(text: str, notation: Notation) -> _Pieces:
    texts: list[str] = []
    kinds: list[str] = []
    at = 0
    for found in notation.pattern.finditer(text):
        for character in text[at : found.start()]:
            texts.append(character)
            kinds.append("other" if notation.separator == "" else "mark")
        if found.group():
            texts.append(found.group())
            kinds.append(str(found.lastgroup))
        at = found.end()
    texts.extend(text[at:])
    kinds.extend(["other" if notation.separator == "" else "mark"] * (len(text) - at))
    return _Pieces(texts, kinds)


def mutated_text(text: str, others: Sequence[str], notation: Notation, rng: random.Random) -> str:
    """Change a text in a few places; ``others`` are texts whose items it may take."""
    for _ in range(rng.choice((1, 1, 1, 2, 2, 3, 5))):
        pieces = _cut(text, notation)
        edited = _edited(pieces, others, notation, rng)
        if len(edited.encode("utf-8", "surrogateescape")) <= LONGEST:
            text = edited
    return _repaired(text, notation, rng) if notation.rule else text


def _fresh(notation: Notation, rng: random.Random) -> str:
    return rng.choice(notation.items) + rng.choice(notation.repeats)


def _taken(pieces: _Pieces, others: Sequence[str], notation: Notation, rng: random.Random) -> str:
    """An item of the text itself, of another one, or a new one."""
    source = pieces
    choice = rng.randrange(4)
    if choice == 0 and others:
        source = _cut(rng.choice(others), notation)
    if choice < 2 and (spans := source.items()):
        begin, end = rng.choice(spans)
        return "".join(source.texts[begin:end])
    return _fresh(notation, rng)


def _edited(pieces: _Pieces, others: Sequence[str], notation: Notation, rng: random.Random) -> str:
    spans = pieces.items()
    texts = pieces.texts
    if not spans:
        return pieces.text() + _fresh(notation, rng)
    begin, end = rng.choice(spans)
    item = "".join(texts[begin:end])
    is_repeated = end < len(texts) and pieces.kinds[end] == "after"
    gap = notation.separator
    opened, closed = notation.group
    match rng.randrange(8 if notation.rule else 6):
        case 0:
            item = _taken(pieces, others, notation, rng)
        case 1:
            item = (
                opened
                + item
                + (texts[end] if is_repeated else "")
                + closed
                + gap
                + _taken(pieces, others, notation, rng)
            )
            end += is_repeated
        case 2:  # an empty group stays where something must stand
            item = (
                opened + rng.choice(notation.items) + closed
                if rng.random() < 0.3
                else (rng.choice(notation.items) if gap else "")
            )
            end += is_repeated
        case 3:
            item += rng.choice(notation.repeats)
            end += is_repeated
        case 4:
            item = opened + item + gap + "|" + gap + _taken(pieces, others, notation, rng) + closed
        case 5:
            other = rng.choice(spans)
            item = "".join(texts[other[0] : other[1]])
        case 6:
            name = rng.choice(_NAMES)
            body = gap.join(_fresh(notation, rng) for _ in range(rng.randint(1, 3)))
            return pieces.text() + notation.rule.format(name=name, body=body)
        case _:
            heads = [
                re.split(r"[^\w-]", text.lstrip("?!"))[0]
                for text, kind in zip(texts, pieces.kinds, strict=True)
                if kind == "head"
            ]
            item = gap.join((item, rng.choice(heads))) if heads else item
    return "".join(chain(texts[:begin], [item], texts[end:]))


def _repaired(text: str, notation: Notation, rng: random.Random) -> str:
    """Let no name be undefined or defined twice, and no terminal refer to a rule."""
    pieces = _cut(text, notation)
    is_terminal = notation.terminal
    defined: list[str] = []
    of_rule: list[str] = []  # for each piece the rule that it belongs to
    lines = " ".join(one for one, kind in zip(pieces.texts, pieces.kinds, strict=True) if kind == "line")
    imported = set(re.findall(r"\w+", lines))
    for at, kind in enumerate(pieces.kinds):
        if kind == "head":
            mark, name, rest = re.match(r"([?!]?)([\w-]+)(.*)", pieces.texts[at], re.DOTALL).groups()  # type: ignore[union-attr]
            while name in defined:
                name += rng.choice("QR" if is_terminal(name) else "qr")
            pieces.texts[at] = mark + name + rest
            defined.append(name)
        of_rule.append(defined[-1] if defined else "")
    for at, kind in enumerate(pieces.kinds):
        name = pieces.texts[at]
        if kind != "name" or name in imported:
            continue
        owner = of_rule[at]
        if is_terminal(owner):
            # Terminals use those that are defined before them alone, so that none is recursive.
            usable = [one for one in defined[: defined.index(owner)] if is_terminal(one)]
            if name not in usable:
                pieces.texts[at] = rng.choice([*usable, notation.items[0]]) if usable else rng.choice(notation.items)
        elif name not in defined and defined:
            pieces.texts[at] = rng.choice(
                [one for one in defined if one == owner or is_terminal(one)] or [notation.items[0]]
            )
    return pieces.text()

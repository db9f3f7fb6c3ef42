"""HTML for notebooks: what ``_repr_html_`` of grammars, results, runs and reports is made of; and short texts.

The HTML is complete in itself: no script, no style sheet, no address.  Colours are translucent, so that it is readable
on light and dark pages, and each of them comes with a style of its own, so that it is readable without colours.  Text
from models, prompts and grammars is escaped; control and format characters, which could reorder or hide it, are
spelled out.
"""

from __future__ import annotations

import base64
import hashlib
import html
import re
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias, final

__all__ = [
    "Kind",
    "Piece",
    "Row",
    "bars",
    "card",
    "folded",
    "grid",
    "page_policy",
    "pieces",
    "shortened",
    "table",
    "text_block",
]

Kind: TypeAlias = Literal["forced", "drafted", "chosen", "given"]
"""The origin of a piece; ``given`` is text of the program, or of unknown origin."""

_STYLES: Final[dict[Kind, str]] = {
    "forced": "font-style:italic;background:rgba(128,128,128,.22)",
    "drafted": "border-bottom:2px dotted rgba(40,110,230,.9);background:rgba(60,130,255,.2)",
    "chosen": "border-bottom:2px solid rgba(30,150,80,.9);background:rgba(60,190,110,.2)",
    "given": "opacity:.8",
}
_CUT: Final = "outline:1px dashed rgba(210,60,40,.9);text-decoration:underline wavy rgba(210,60,40,.9)"
_NOTES: Final[dict[Kind, str]] = {
    "forced": "forced: the grammar left no choice",
    "drafted": "drafted: an accepted draft token",
    "chosen": "chosen by the sampler",
    "given": "given: not by the model, or not known",
}
_CARD: Final = (
    "border:1px solid rgba(128,128,128,.5);border-radius:4px;padding:.5em .7em;margin:.2em 0;max-width:60em;"
    "font-size:90%;color:inherit;background:transparent"
)
_TEXT: Final = (
    "font-family:monospace;white-space:pre-wrap;overflow-wrap:anywhere;margin:.4em 0;line-height:1.7;direction:ltr"
)
_CELL: Final = "text-align:left;vertical-align:top;padding:.1em .8em .1em 0;border:0;background:transparent"
_TR: Final = '<tr style="background:transparent">'
_HIDDEN: Final = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
_MAX_PIECES: Final = 4000
_MAX_TEXT: Final = 20_000
_MAX_BARS: Final = 50
_SHORT: Final = 16
_MAX_ROWS: Final = 1000


@final
@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a text.

    Attributes:
        text: what is shown.
        kind: its origin.
        note: what is shown when the pointer rests on it.
        is_cut: whether the budget excluded other tokens here, or before.
    """

    text: str
    kind: Kind = "given"
    note: str = ""
    is_cut: bool = False


def card(title: str, *parts: str) -> str:
    """A box with a title; ``parts`` are HTML of this module."""
    return f'<div style="{_CARD}"><div><b>{_escaped(title)}</b></div>{"".join(parts)}</div>'


def text_block(text: str) -> str:
    """A text as it is, at most 20,000 characters of it."""
    more = f"... {len(text) - _MAX_TEXT:,} more characters" if len(text) > _MAX_TEXT else ""
    return f'<div style="{_TEXT}">{_escaped(text[:_MAX_TEXT] + more)}</div>'


def folded(title: str, part: str) -> str:
    """A part that is shown once its title is clicked."""
    return f'<details style="margin-top:.4em"><summary style="opacity:.9">{_escaped(title)}</summary>{part}</details>'


def table(rows: Iterable[tuple[str, ...]]) -> str:
    """Rows of texts; the first of each is its head."""
    made = [
        f'{_TR}<th scope="row" style="{_CELL}">{_escaped(head)}</th>' + "".join(map(_cell, rest)) + "</tr>"
        for head, *rest in rows
    ]
    return _table(made)


def bars(title: str, rows: Iterable[tuple[str, float, str]]) -> str:
    """Shares of 1 as bars: what each belongs to, the share, and a text after it; at most 50 rows."""
    held = list(rows)
    made = [
        f'{_TR}<th scope="row" style="{_CELL}">{_escaped(head)}</th><td style="{_CELL}">'
        f'<div style="width:8em;margin-top:.25em;border:1px solid rgba(128,128,128,.5)">'
        f'<div style="width:{100 * min(max(share, 0.0), 1.0):.1f}%;height:.7em;background:rgba(60,130,255,.6)"></div>'
        f"</div></td>{_cell(text)}</tr>"
        for head, share, text in held[:_MAX_BARS]
    ]
    if len(held) > _MAX_BARS:
        made.append(f'{_TR}<td style="{_CELL}">... {len(held) - _MAX_BARS:,} more</td></tr>')
    return f'<div style="margin-top:.4em;opacity:.9">{_escaped(title)}</div>{_table(made)}'


@final
@dataclass(frozen=True, slots=True)
class Row:
    """A row of a ``grid``: its first text is styled as pieces of this kind are."""

    texts: tuple[str, ...]
    kind: Kind


def grid(heads: tuple[str, ...], rows: Iterable[Row], *, title: str) -> str:
    """Rows under heads, in a box that scrolls; at most 1,000 of them."""
    held = list(rows)
    top = "".join(f'<th scope="col" style="{_CELL}">{_escaped(head)}</th>' for head in heads)
    made = [f"{_TR}{top}</tr>"]
    for row in held[:_MAX_ROWS]:
        first = _span(row.texts[0], row.kind, "", is_cut=False)
        rest = "".join(map(_cell, row.texts[1:]))
        made.append(f'{_TR}<td style="{_CELL};white-space:pre;font-family:monospace">{first}</td>{rest}</tr>')
    if len(held) > _MAX_ROWS:
        made.append(f'{_TR}<td style="{_CELL}">... {len(held) - _MAX_ROWS:,} more</td></tr>')
    return (
        f'<div style="margin-top:.4em;opacity:.9">{_escaped(title)}</div>'
        f'<div style="max-height:30em;overflow:auto">{_table(made)}</div>'
    )


def _table(rows: Iterable[str]) -> str:
    style = "border-collapse:collapse;color:inherit;font-size:inherit;margin:.3em 0"
    return f'<table style="{style}">{"".join(rows)}</table>'


def _cell(text: str) -> str:
    """A cell of a table; what is short is not broken into lines, or a narrow column breaks every word."""
    wrapping = "white-space:nowrap" if len(text) <= _SHORT else "overflow-wrap:anywhere"
    return f'<td style="{_CELL};{wrapping}">{_escaped(text)}</td>'


def pieces(parts: Iterable[Piece]) -> str:
    """A text whose pieces are distinguished, with a legend; at most 4,000 pieces of it."""
    shown = [part for part in parts if part.text]
    rest = len(shown) - _MAX_PIECES
    kinds = dict.fromkeys(part.kind for part in shown[:_MAX_PIECES])
    spans, was_cut = [], False
    for part in shown[:_MAX_PIECES]:
        if part.is_cut and not was_cut:
            spans.append('<span title="from here on the budget excluded tokens">\u2702</span>')
        was_cut = part.is_cut
        spans.append(_span(part.text, part.kind, part.note, is_cut=part.is_cut))
    if rest > 0:
        spans.append(f"... {rest:,} more pieces")
    legend = [_span(kind, kind, _NOTES[kind], is_cut=False) for kind in kinds]
    if any(part.is_cut for part in shown):
        legend.append(_span("\u2702 cut by the budget", "given", "with more tokens it may be other text", is_cut=True))
    return (
        f'<div style="{_TEXT}">{"".join(spans)}</div>'
        f'<div style="font-size:85%;opacity:.9">{" &middot; ".join(legend)}</div>'
    )


def shortened(text: str, length: int = 80) -> str:
    """A text on one line, of at most ``length`` characters: the start and the end of a longer one."""
    line = " ".join(text.split())
    if len(line) <= length:
        return line
    tail = length // 4
    return f"{line[: length - tail - 3]}...{line[-tail:]}"


def _span(text: str, kind: Kind, note: str, *, is_cut: bool) -> str:
    style = f"{_STYLES[kind]};{_CUT}" if is_cut else _STYLES[kind]
    title = f' title="{_escaped(note)}"' if note else ""
    return f'<span style="{style}"{title}>{_escaped(text)}</span>'


def _escaped(text: str) -> str:
    """Text in HTML, in an element or an attribute; invisible characters are spelled out, except line ends."""
    if not text.isprintable():
        text = "".join(
            character if character == "\n" or unicodedata.category(character) not in _HIDDEN else _spelled(character)
            for character in text
        )
    return html.escape(text, quote=True)


def _spelled(character: str) -> str:
    return "\\t" if character == "\t" else character.encode("unicode_escape", "surrogatepass").decode("ascii")


def page_policy(template: str) -> str:
    """Return the Content-Security-Policy of a page: its own style and script run, nothing else, and nothing is fetched.

    ``template`` holds them as ``<style>`` and ``<script>`` without attributes; no text may be filled into these.
    """
    rules = ["default-src 'none'", "base-uri 'none'", "form-action 'none'"]
    for kind in ("style", "script"):
        blocks = re.findall(f"<{kind}>(.*?)</{kind}>", template, re.DOTALL)
        hashes = (base64.b64encode(hashlib.sha256(block.encode()).digest()).decode() for block in blocks)
        rules.append(" ".join([f"{kind}-src", *(f"'sha256-{each}'" for each in hashes)]))
    return "; ".join(rules)

"""``structgen show``: the automaton of a grammar as a list, or as one HTML page that steps through strings."""

from __future__ import annotations

import json
import re
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from structgen.cli.grammar_source import SourceOptions, compile_source, read_source, source_options
from structgen.cli.terminal import DONE, Failure

if TYPE_CHECKING:
    from structgen.cli.automaton_drawing import Drawing

__all__ = ["page_of", "show"]


@click.command()
@click.argument("paths", nargs=-1, metavar="FILE")
@source_options("compact")
@click.option("--html", is_flag=True, help="Write a page of HTML; without it, a list of rules and states.")
@click.option("-o", "--output", type=click.Path(dir_okay=False), metavar="OUT", help="Write to OUT.")
@click.option("--text", default="", metavar="T", help="The text that the page steps through at first.")
def show(paths: tuple[str, ...], source: SourceOptions, *, html: bool, output: str | None, text: str) -> int:
    """Draw the automaton of FILE.

    Each rule that is called is an automaton of its own, over bytes. The page needs no network: it draws them, and
    steps through a text, showing which states are live, what may come next, and where the text becomes invalid.
    """
    from structgen.cli.automaton_drawing import drawing_of

    (path,) = source.take_path(paths, "FILE")
    read = read_source(path, source)
    drawing = drawing_of(compile_source(read))
    written = page_of(drawing, title=read.label, text=text) if html else str(drawing)
    if output is None:
        click.echo(written)
        return DONE
    try:
        Path(output).write_text(written + "\n", "utf-8")
    except OSError as error:
        raise Failure(f"{output}: cannot be written: {error.strerror or error}") from error
    click.echo(f"wrote {output}: {len(drawing.rules)} rules, {drawing.states} states", err=True)
    return DONE


_PLACEHOLDER: Final = re.compile(r"\{\{(title|data)\}\}")


def page_of(drawing: Drawing, *, title: str, text: str = "") -> str:
    """Return the page that draws ``drawing`` and steps through texts, ``text`` first."""
    template = files(__package__).joinpath("automaton_page.html").read_text("utf-8")
    # No text of the grammar can end the script, and none is read as HTML.
    data = json.dumps(_page_data(drawing, text), ensure_ascii=True, separators=(",", ":")).replace("<", "\\u003c")
    values = {"title": escape(title), "data": data}
    return _PLACEHOLDER.sub(lambda match: values[match[1]], template)


def _page_data(drawing: Drawing, text: str) -> dict[str, Any]:
    return {
        "text": text,
        "final": sorted(drawing.final),
        "rules": [
            {
                "name": rule.name,
                "start": rule.start,
                "leftOut": rule.left_out,
                "states": [[state, *place] for state, place in sorted(rule.places.items())],
                "strokes": [
                    {
                        "from": each.source,
                        "to": each.target,
                        "label": each.label,
                        "inner": each.inner,
                        "call": each.rule,
                    }
                    for each in rule.strokes
                ],
                "edges": [
                    {
                        "from": edge.source,
                        "to": edge.target,
                        "bytes": edge.ranges,
                        "call": edge.rule,
                        "token": edge.token,
                    }
                    for edge in rule.edges
                ],
            }
            for rule in drawing.rules
        ],
    }

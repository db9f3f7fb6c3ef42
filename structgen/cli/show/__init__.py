"""``structgen show``: the automaton of a language as a page that steps through texts."""

from __future__ import annotations

from pathlib import Path

import click

from structgen.cli.failure import DONE, Failure
from structgen.cli.source import SourceOptions, compile_source, read_source, source_options

__all__ = ["show"]


@click.command()
@click.argument("paths", nargs=-1, metavar="FILE")
@source_options("compact")
@click.option("--html", is_flag=True, help="Write a page of HTML; without it, a list of rules and states.")
@click.option("-o", "--output", type=click.Path(dir_okay=False), metavar="OUT", help="Write to OUT.")
@click.option("--text", default="", metavar="T", help="The text that the page steps through at first.")
def show(paths: tuple[str, ...], source: SourceOptions, html: bool, output: str | None, text: str) -> int:
    """Draw the automaton of FILE.

    Each rule that is called is an automaton of its own, over bytes. The page needs no network: it draws them, and
    steps through a text, showing which states are live, what may come next, and where the text leaves the language.
    """
    from structgen.cli.show.drawing import drawing_of
    from structgen.cli.show.page import page_of

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

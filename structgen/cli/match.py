"""``structgen match``: whether a document belongs to the language, and where it leaves it."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Final

import click

from structgen.cli.document import find_departure
from structgen.cli.failure import DONE, FAILED
from structgen.cli.source import (
    STANDARD_INPUT,
    SourceOptions,
    compile_source,
    read_source,
    source_options,
    unreadable,
)

__all__ = ["match"]

_CHUNK_BYTES: Final = 1 << 20


@click.command()
@click.argument("paths", nargs=-1, metavar="FILE DOCUMENT")
@source_options("flexible")
@click.option("--exact", is_flag=True, help="A line break at the end of DOCUMENT belongs to it.")
@click.option("--json", "as_json", is_flag=True, help="Write the answer as JSON.")
def match(paths: tuple[str, ...], source: SourceOptions, exact: bool, as_json: bool) -> int:
    """Say whether DOCUMENT belongs to the language of FILE.

    FILE is a JSON Schema or a grammar; one of FILE and DOCUMENT may be - for standard input. If DOCUMENT does
    not belong to the language, the place where it leaves it is shown with what was expected there, and the exit
    status is 1. One line break at the end of DOCUMENT, as editors write it, may be left over.
    """
    path, document = source.take_path(paths, "FILE", "DOCUMENT")
    if path == document == STANDARD_INPUT:
        raise click.UsageError("FILE and DOCUMENT cannot both be standard input")
    read = read_source(path, source)
    matcher = compile_source(read).matcher()
    label = "standard input" if document == STANDARD_INPUT else str(document)
    departure = find_departure(matcher, _chunks(str(document), label), exact=exact, is_json=read.is_json)
    if as_json:
        answer = {"match": departure is None} | ({} if departure is None else departure.to_json())
        click.echo(json.dumps(answer, ensure_ascii=False))
    elif departure is None:
        click.echo(f"{label}: belongs to the language")
    else:
        click.echo(f"{label}:{departure.line}:{departure.column}: leaves the language at byte {departure.offset}")
        click.echo(f"{departure.picture}\n{departure}")
    return DONE if departure is None else FAILED


def _chunks(path: str, label: str) -> Iterator[bytes]:
    try:
        if path == STANDARD_INPUT:
            yield from iter(lambda: sys.stdin.buffer.read(_CHUNK_BYTES), b"")
        else:
            with open(path, "rb") as file:
                yield from iter(lambda: file.read(_CHUNK_BYTES), b"")
    except (OSError, ValueError) as error:  # ValueError: a NUL byte in the path
        raise unreadable(label, error) from error

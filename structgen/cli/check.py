"""``structgen check``: what of a description is enforced, and how."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from structgen.cli.failure import DONE, FAILED
from structgen.cli.source import SourceOptions, SourceRefused, compile_source, read_source, source_options
from structgen.cli.vocabulary import vocabulary_of

if TYPE_CHECKING:
    from structgen.engine import Report
    from structgen.engine.lint import Finding
    from structgen.grammar.nodes import Grammar

__all__ = ["check"]


@click.command()
@click.argument("paths", nargs=-1, metavar="FILE")
@source_options("flexible")
@click.option("--model", metavar="M", help="Tell of the tokens of a model too; 'embedded' is that of run.")
@click.option("--strict", is_flag=True, help="Fail if something is noted that is hardly meant.")
@click.option("--json", "as_json", is_flag=True, help="Write the report as JSON.")
def check(paths: tuple[str, ...], source: SourceOptions, model: str | None, strict: bool, as_json: bool) -> int:
    """Report what of FILE is enforced, keyword by keyword.

    FILE is a JSON Schema or a grammar, or - for a JSON Schema on standard input. Nothing is ignored: what
    cannot be enforced is refused with its name and its place, and the exit status is 2. Keywords that no
    specification knows, those that have no effect where they stand and those that the automaton leaves to a check
    at the end of a value are noted, and so are rules that are never used or cannot match, terminals that share
    texts, and texts that are read in two ways; --strict makes exit status 1 of all that is hardly meant.
    """
    (path,) = source.take_path(paths, "FILE")
    try:
        read = read_source(path, source)
        report = compile_source(read, None if model is None else vocabulary_of(model)).report
    except SourceRefused as refused:
        if as_json:
            click.echo(json.dumps({"accepted": False, "error": _fault(refused)}, ensure_ascii=False))
        raise
    findings = _lint(read.grammar)
    notes = [str(finding) for finding in findings]
    if as_json:
        values = _values(report, tokens=model is not None) | {"notes": notes}
        values["findings"] = [finding.to_json() for finding in findings]
        click.echo(json.dumps({"accepted": True, **values}, ensure_ascii=False))
    else:
        click.echo("\n".join(report.lines(tokens=model is not None)))
        for note in notes:
            click.echo(f"note: {note}", err=True)
    return FAILED if strict and any(finding.is_warning for finding in findings) else DONE


def _lint(grammar: Grammar) -> list[Finding]:
    from structgen.engine.lint import lint

    return lint(grammar)


def _values(report: Report, *, tokens: bool) -> dict[str, Any]:
    """The report, without what it says of tokens where single bytes stand in for them."""
    hidden = () if tokens else ("shortest_tokens", "longest_tokens", "vocabulary_size", "unspellable_bytes")
    return {name: value for name, value in report.to_json().items() if name not in hidden}


def _fault(refused: SourceRefused) -> dict[str, Any]:
    error = refused.error
    named = {
        name: getattr(error, name) for name in ("feature", "where", "span", "limit", "maximum") if hasattr(error, name)
    }
    return {"kind": type(error).__name__, "message": str(error), **named}

"""The commands that work on a grammar without a model.

``structgen check``, ``convert``, ``diff``, ``show``, ``playground``, ``match`` and ``sample``.
"""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, get_args
from urllib.parse import urlencode

import click

from structgen.cli.command import Command, complete_descriptions, complete_files, complete_models, output_options
from structgen.cli.grammar_source import (
    STANDARD_INPUT,
    GrammarSource,
    SourceOptions,
    SourceRefused,
    compile_source,
    read_source,
    refusals,
    source_options,
    unreadable,
)
from structgen.cli.terminal import DONE, FAILED, say
from structgen.errors import GrammarError, StructgenError, error_values

if TYPE_CHECKING:
    from structgen.engine import Vocabulary
    from structgen.engine.analysis.inclusion import Inclusion

__all__ = ["Target", "check", "convert", "diff", "match", "playground", "sample", "show"]


@click.command(
    cls=Command,
    examples=(
        "structgen check person.schema.json",
        "structgen check query.lark --strict --model embedded",
        "structgen check --regex '[0-9]{4}-[0-9]{2}'",
    ),
)
@click.argument("paths", nargs=-1, metavar="FILE", shell_complete=complete_descriptions)
@source_options()
@click.option(
    "--model",
    metavar="M",
    shell_complete=complete_models,
    help="Tell of the tokens of a model too; 'embedded' is that of run.",
)
@click.option("--strict", is_flag=True, help="Fail if something is noted that is hardly meant.")
@output_options
@click.option("--json", "as_json", is_flag=True, help="Write the report as JSON.")
def check(paths: tuple[str, ...], source: SourceOptions, model: str | None, *, strict: bool, as_json: bool) -> int:
    """Report what of FILE is enforced, keyword by keyword.

    FILE is a JSON Schema or a grammar, or - for a JSON Schema on standard input. Nothing is ignored: what
    cannot be enforced is refused with its name and its place, and the exit status is 2. Keywords that no
    specification knows, those that have no effect where they stand and those that the automaton leaves to a check
    at the end of a value are noted, and so are rules that are never used or cannot match, terminals that share
    texts, parts that constrain nothing beside free text, and texts that are read in two ways; --strict makes exit
    status 1 of all that is hardly meant.
    """
    from structgen.engine.lint import lint

    (path,) = source.take_path(paths, "FILE")
    try:
        read = read_source(path, source, is_linted=True)
        report = compile_source(read, _vocabulary(model)).report
    except SourceRefused as refused:
        if as_json:
            click.echo(json.dumps({"accepted": False, "error": error_values(refused.error)}, ensure_ascii=False))
        raise
    findings = lint(read.grammar)
    notes = [str(finding) for finding in findings]
    if as_json:
        values = report.to_json(tokens=model is not None) | {"notes": notes}
        values["findings"] = [finding.to_json() for finding in findings]
        click.echo(json.dumps({"accepted": True, **values}, ensure_ascii=False))
    else:
        click.echo("\n".join(report.lines(tokens=model is not None)))
        for note in notes:
            say("note", note)
    return FAILED if strict and any(finding.is_warning for finding in findings) else DONE


def _vocabulary(model: str | None) -> Vocabulary | None:
    if model is None:
        return None
    from structgen.cli.model_option import vocabulary_of

    return vocabulary_of(model)


Target: TypeAlias = Literal["gbnf", "ebnf", "lark", "llguidance", "json-schema", "structural_tag"]
"""The notations of ``structgen.frontends.convert``, which is imported only where it is needed."""


@click.command(
    cls=Command,
    examples=("structgen convert query.lark --to gbnf -o query.gbnf",),
)
@click.argument("paths", nargs=-1, metavar="FILE", shell_complete=complete_descriptions)
@click.option("--to", "target", type=click.Choice(get_args(Target)), required=True, help="The notation to write.")
@click.option("--strict", is_flag=True, help="Exit with 1 if anything is lost, be it an annotation or a name.")
@click.option("--superset", is_flag=True, help="Leave out what cannot be said; the written language is larger then.")
@source_options()
@output_options
def convert(paths: tuple[str, ...], source: SourceOptions, target: Target, *, strict: bool, superset: bool) -> int:
    """Write FILE in another notation.

    FILE is a JSON Schema or a grammar. The written language is the same: what cannot be said is refused with its
    name, and the exit status is 2, unless --superset leaves it out. Annotations and names that are lost are listed
    on standard error; --strict makes that exit status 1.
    """
    from structgen.frontends.convert import write

    (path,) = source.take_path(paths, "FILE")
    read = read_source(path, source)
    with refusals(read.label):
        written = write(read.grammar, target, superset=superset)
    click.echo(written.text, nl=False)
    for loss in written.losses:
        click.echo(f"lost: {loss}", err=True)
    return FAILED if strict and written.losses else DONE


@click.command(
    cls=Command,
    examples=("structgen diff v1.schema.json v2.schema.json",),
)
@click.argument("paths", nargs=-1, metavar="OLD NEW", shell_complete=complete_descriptions)
@source_options(reads=True, several=True)
@click.option("--max-bytes", metavar="N", type=click.IntRange(0), help="Compare strings of up to N bytes only.")
@click.option("--max-pairs", metavar="N", type=click.IntRange(1), help="Pairs of states to look at; else 50,000.")
@output_options
@click.option("--json", "as_json", is_flag=True, help="Write the answer as JSON.")
def diff(
    paths: tuple[str, ...], source: SourceOptions, max_bytes: int | None, max_pairs: int | None, *, as_json: bool
) -> int:
    """Say whether NEW accepts everything that OLD did, and the other way round.

    OLD and NEW are grammars or JSON Schemas, of the same or of different kinds. For each direction in which they differ
    a shortest text is shown that only one of them accepts, with the place where it leaves the other. The answer is
    certain for regular languages, as JSON Schemas without recursion are; for others it may hold only up to a length,
    which the answer names.

    Exit status: 0 NEW accepts all that OLD did, as far as was looked; 1 it does not; 2 a file cannot be used.
    """
    from structgen.engine.analysis.inclusion import MAX_PAIRS, compare

    if source.regex is not None:
        raise click.UsageError("--regex names one description; write the expression into a Lark grammar to compare it")
    if len(paths) != 2:
        raise click.UsageError(f"expected OLD NEW, found {' '.join(paths) or 'nothing'}")
    old, new = (read_source(path, source) for path in paths)
    with refusals(""):
        kept, added = compare(old.grammar, new.grammar, max_bytes=max_bytes, max_pairs=max_pairs or MAX_PAIRS)
    if as_json:
        values = {"new_accepts_old": _inclusion_values(kept), "old_accepts_new": _inclusion_values(added)}
        click.echo(json.dumps(values, ensure_ascii=False))
    else:
        click.echo(f"{_sentence('NEW', 'OLD', kept)}\n{_sentence('OLD', 'NEW', added)}")
    return FAILED if kept.witness is not None else DONE


def _inclusion_values(found: Inclusion) -> dict[str, Any]:
    values: dict[str, Any] = {"holds": found.holds, "checked_bytes": found.checked_bytes, "pairs": found.pairs}
    if found.witness is not None:
        text = found.witness.text
        values["witness"] = text.decode("utf-8", "backslashreplace")
        values["offset"] = found.witness.offset
        values["is_incomplete"] = found.witness.is_incomplete
    return values


def _sentence(one: str, other: str, found: Inclusion) -> str:
    """Whether ``one`` accepts everything that ``other`` accepts, as far as that is known."""
    if found.witness is not None:
        text = found.witness.text.decode("utf-8", "backslashreplace")
        shown = json.dumps(text, ensure_ascii=False)
        where = (
            f"is not complete for {one}"
            if found.witness.is_incomplete
            else f"is invalid for {one} at byte {found.witness.offset}"
        )
        return f"{one} does not accept all that {other} accepts: {shown} {where}"
    if found.checked_bytes is None:
        return f"{one} accepts all that {other} accepts"
    return (
        f"{one} accepts all that {other} accepts of up to {found.checked_bytes:,} bytes; "
        f"longer texts were not compared ({found.pairs:,} pairs of states)"
    )


@click.command(
    cls=Command,
    examples=('structgen show query.lark --html -o query.html --text "SELECT "',),
)
@click.argument("paths", nargs=-1, metavar="FILE", shell_complete=complete_descriptions)
@source_options()
@click.option("--html", is_flag=True, help="Write a page of HTML; without it, a list of rules and states.")
@click.option("--text", default="", metavar="T", help="The text that the page steps through at first.")
@output_options
def show(paths: tuple[str, ...], source: SourceOptions, *, html: bool, text: str) -> int:
    """Draw the automaton of FILE.

    Each rule that is called is an automaton of its own, over bytes. The page needs no network: it draws them, and
    steps through a text, showing which states are live, what may come next, and where the text becomes invalid.
    """
    from structgen.cli.automaton_drawing import drawing_of, page_of

    (path,) = source.take_path(paths, "FILE")
    read = read_source(path, source)
    drawing = drawing_of(compile_source(read))
    written = page_of(drawing, title=read.label, text=text) if html else str(drawing)
    click.echo(written)
    output = click.get_current_context().params["output"]
    if output is not None:
        click.echo(f"wrote {output}: {len(drawing.rules)} rules, {drawing.states} states", err=True)
    return DONE


@click.command(
    cls=Command,
    examples=("structgen playground schema.json --page build/playground/index.html",),
)
@click.argument("paths", nargs=-1, metavar="FILE", shell_complete=complete_files)
@source_options()
@click.option("--page", default="", metavar="P", help="The address of the playground; without it, only what follows #.")
@click.option("--text", default="", metavar="T", help="The text that the page shows at first.")
@output_options
def playground(paths: tuple[str, ...], source: SourceOptions, *, page: str, text: str) -> int:
    """Write a link to the playground with FILE in it, compiled.

    The playground is a page that shows which tokens may come next, and why others may not. It reads common schemas
    and grammars itself; this link has any grammar without special tokens, whatever it was written in. Nothing is
    sent: the grammar stands after the # of the address, which browsers keep to themselves.
    """
    from structgen.engine.analysis.byte_graph import byte_vocabulary
    from structgen.engine.lowering import program_of
    from structgen.grammar.limits import Limits

    (path,) = source.take_path(paths, "FILE")
    read = read_source(path, source)
    with refusals(read.label):
        program, _ = program_of(read.grammar, byte_vocabulary(read.grammar), Limits())
        try:
            data = program.to_bytes()
        except ValueError:
            raise GrammarError("grammar", "it names tokens, and the page has those of another model") from None
        if len(data) > _LINK_BYTES:
            evidence = f"its program takes {len(data):,} bytes, and a link holds {_LINK_BYTES:,}"
            raise GrammarError(
                "grammar", "it is too large for a link", evidence=evidence, remedy="link to a part of it"
            )
    packed = base64.urlsafe_b64encode(data).decode().rstrip("=")
    name = PurePath(read.label).name  # folders are nobody's business
    click.echo(f"{page}#{urlencode({'program': packed, 'name': name, 'text': text})}")
    return DONE


_LINK_BYTES: Final = 1_000_000
"""Of a program in a link; browsers take addresses of two million characters."""
_CHUNK_BYTES: Final = 1 << 20


@click.command(
    cls=Command,
    examples=(
        "structgen match person.schema.json answer.json",
        "cat answer.json | structgen match person.schema.json -",
    ),
)
@click.argument("paths", nargs=-1, metavar="FILE DOCUMENT", shell_complete=complete_files)
@source_options(reads=True)
@click.option("--exact", is_flag=True, help="A line break at the end of DOCUMENT belongs to it.")
@output_options
@click.option("--json", "as_json", is_flag=True, help="Write the answer as JSON.")
def match(paths: tuple[str, ...], source: SourceOptions, *, exact: bool, as_json: bool) -> int:
    """Say whether DOCUMENT is valid by FILE, and where it becomes invalid.

    FILE is a JSON Schema or a grammar; one of FILE and DOCUMENT may be - for standard input. If DOCUMENT is not valid,
    the place where it becomes invalid is shown with what was expected there, and the exit status is 1. One line break
    at the end of DOCUMENT, as editors write it, may be left over.
    """
    from structgen.engine.analysis.departure import find_departure

    path, document = source.take_path(paths, "FILE", "DOCUMENT")
    if path == document == STANDARD_INPUT:
        raise click.UsageError("FILE and DOCUMENT cannot both be standard input")
    read = read_source(path, source)
    matcher = compile_source(read).matcher()
    label = "standard input" if document == STANDARD_INPUT else str(document)
    chunks = _chunks(str(document), label)
    first = next(chunks, b"")
    departure = find_departure(matcher, chain((first,), chunks), exact=exact, is_json=read.is_json)
    if as_json:
        answer = {"match": departure is None} | ({} if departure is None else departure.to_json())
        click.echo(json.dumps(answer, ensure_ascii=False))
    elif departure is None:
        click.echo(f"{label}: valid")
    else:
        click.echo(f"{label}:{departure.line}:{departure.column}: invalid at byte {departure.offset}")
        click.echo(f"{departure.picture}\n{departure}")
    if departure is not None and len(first) < _CHUNK_BYTES and _matches_in_any_order(read, first, exact=exact):
        say(
            "note", "it is valid but for the order of its members, which the schema declares otherwise; see --order any"
        )
    return DONE if departure is None else FAILED


def _matches_in_any_order(read: GrammarSource, document: bytes, *, exact: bool) -> bool:
    """Whether a document that is invalid would be valid with its members in the order of the schema."""
    from structgen.engine.analysis.departure import find_departure
    from structgen.frontends.json_schema import json_schema

    if read.policy is None or read.policy.order != "declared":
        return False
    try:
        grammar = json_schema(read.text, policy=replace(read.policy, order="any"))
        matcher = compile_source(replace(read, grammar=grammar)).matcher()
        return find_departure(matcher, (document,), exact=exact) is None
    except (StructgenError, SourceRefused):  # too large in any order: not known
        return False


def _chunks(path: str, label: str) -> Iterator[bytes]:
    try:
        if path == STANDARD_INPUT:
            yield from iter(lambda: sys.stdin.buffer.read(_CHUNK_BYTES), b"")
        else:
            with open(path, "rb") as file:
                yield from iter(lambda: file.read(_CHUNK_BYTES), b"")
    except (OSError, ValueError) as error:  # ValueError: a NUL byte in the path
        raise unreadable(label, error) from error


_MAX_BYTES: Final = 80


@click.command(
    cls=Command,
    examples=(
        "structgen sample person.schema.json -n 5",
        'structgen sample --regex "[a-z]{3}" --uniform --seed 7',
    ),
)
@click.argument("paths", nargs=-1, metavar="FILE", shell_complete=complete_descriptions)
@source_options()
@click.option("-n", "count", metavar="K", type=click.IntRange(0), default=10, show_default=True, help="How many.")
@click.option(
    "--max-bytes",
    metavar="N",
    type=click.IntRange(0, 100_000),
    default=_MAX_BYTES,
    show_default=True,
    help="Length of the longest.",
)
@click.option("--exactly", metavar="N", type=click.IntRange(0, 100_000), help="Only strings of N bytes.")
@click.option("--seed", metavar="S", type=int, default=0, show_default=True, help="Equal seeds give equal strings.")
@click.option("--uniform", is_flag=True, help="Each string up to that length with the same probability.")
@click.option("--any-character", is_flag=True, help="Any character that may stand, not only printable ASCII.")
@output_options
@click.option("--json", "as_json", is_flag=True, help="Write each string as a JSON string on a line.")
def sample(paths: tuple[str, ...], source: SourceOptions, *, as_json: bool, **options: Any) -> int:
    """Write random strings that FILE allows, one a line.

    FILE is a grammar or a JSON Schema, or - for a JSON Schema on standard input. A length is sampled first, uniformly
    from those that have strings, then the shape of a string of that length, then characters where several are alike.
    With --uniform every string is as likely as any other, so that nearly all are of the greatest length.
    """
    from structgen.engine.analysis.departure import text_or_hex
    from structgen.engine.analysis.uniform_sampling import UniformStrings

    (path,) = source.take_path(paths, "FILE")
    read = read_source(path, source)
    exactly: int | None = options["exactly"]
    bound = options["max_bytes"] if exactly is None else exactly
    with refusals(read.label):
        members = UniformStrings(read.grammar, bound, alphabet="any" if options["any_character"] else "printable")
        count, seed = options["count"], options["seed"]
        if options["uniform"]:
            sampled = members.draw(count, seed, exactly=exactly)
        else:
            sampled = members.draw(count, seed, exactly=exactly, lengths="even", among="shapes")
    for string in sampled:
        click.echo(json.dumps(text_or_hex(string), ensure_ascii=False) if as_json else string)
    return DONE

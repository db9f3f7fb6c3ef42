"""``structgen explain``: what may come next after a prefix, and why a token may not."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import click

from structgen.cli.command import Command, complete_descriptions, complete_models, output_options
from structgen.cli.grammar_source import SourceOptions, compile_source, read_source, source_options
from structgen.cli.model_option import vocabulary_of
from structgen.cli.terminal import DONE, FAILED

if TYPE_CHECKING:
    from collections.abc import Iterator

    from structgen.engine.analysis.departure import Departure

__all__ = ["explain"]

_MAX_SHOWN: Final = 120


@click.command(
    cls=Command,
    examples=(
        """structgen explain person.schema.json --text '{"name": ' --token '"Ada"'""",
        'structgen explain query.lark --text "SELECT * FROM " --model embedded',
    ),
)
@click.argument("paths", nargs=-1, metavar="FILE", shell_complete=complete_descriptions)
@source_options()
@click.option("--text", default="", metavar="PREFIX", help="What has been written so far.")
@click.option("--token", metavar="T", help="Say whether the text T may come next.")
@click.option(
    "--model",
    metavar="M",
    shell_complete=complete_models,
    help="Tell of the tokens of a model too; 'embedded' is that of run.",
)
@output_options
@click.option("--json", "as_json", is_flag=True, help="Write the answer as JSON.")
def explain(
    paths: tuple[str, ...], source: SourceOptions, text: str, token: str | None, model: str | None, *, as_json: bool
) -> int:
    """Say what FILE allows after PREFIX.

    FILE is a JSON Schema or a grammar, or - for a JSON Schema on standard input. Rules are shown with the place where
    they are defined. If no string of the grammar begins with PREFIX, the place where it becomes invalid is shown
    and the exit status is 1.
    """
    from structgen.engine.analysis.explanation import explanation

    (path,) = source.take_path(paths, "FILE")
    read = read_source(path, source)
    answer = explanation(
        compile_source(read),
        _bytes(text),
        token=None if token is None else _bytes(token),
        of_tokens=None if model is None else compile_source(read, vocabulary_of(model)),
        is_json=read.is_json,
    )
    if not isinstance(answer, dict):
        _write_departure(answer, as_json=as_json)
        return FAILED
    click.echo(json.dumps(answer, ensure_ascii=False) if as_json else _written(answer))
    return DONE


def _bytes(argument: str) -> bytes:
    """The bytes that the shell passed; a command line need not be UTF-8."""
    return argument.encode("utf-8", "surrogateescape")


def _write_departure(departure: Departure, *, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps({"possible": False, **departure.to_json()}, ensure_ascii=False))
    else:
        place = f"--text:{departure.line}:{departure.column}"
        click.echo(f"{place}: invalid at byte {departure.offset}\n{departure.picture}\n{departure}")


def _written(answer: dict[str, Any]) -> str:
    """The answer as lines for people."""
    parts = [*answer["next"], "the end"] if answer["may_end"] else answer["next"]
    lines = [
        ("after", _quoted(answer["text"])),
        ("next", ", ".join(parts) or "nothing"),
        ("forced", _quoted(answer["forced"]) if answer["forced"] else "nothing"),
        ("value", answer["pointer"]),
        ("rules", " > ".join(answer["rules"])),
        *_written_alternatives(answer["alternatives"], answer["rules"]),
        ("complete by", _quoted(answer["shortest_completion"])),
    ]
    if "min_tokens" in answer:
        lines += [
            ("as tokens", " ".join(f"{index}:{text!r}" for index, text in answer["forced_tokens"])),
            ("tokens", f"{answer['allowed_tokens']} of {answer['vocabulary_size']} may come next"),
            ("at least", f"{answer['min_tokens']} more tokens"),
        ]
    if "token" in answer:
        lines += _written_token_answer(answer["token"])
    return "\n".join(f"{name:<12}{value}" for name, value in lines if value)


def _written_token_answer(answer: dict[str, Any]) -> list[tuple[str, str]]:
    subject = _quoted(answer["text"])
    if answer["allowed"]:
        return [("token", f"{subject} is allowed; then {answer['expected']}")]
    place = f"after {_quoted(answer['accepted'])}" if answer["accepted"] else "here"
    near = " ".join(f"{index}:{text!r}" for index, text in answer.get("nearest", ()))
    return [
        ("token", f"{subject} is not allowed: {place} may come {answer['expected']}"),
        *(
            ("", f"it may come after {_quoted(each['text'])}" + (f", in {each['rule']}" if each["rule"] else ""))
            for each in answer["after"]
        ),
        ("nearest", near),
    ]


def _written_alternatives(alternatives: list[dict[str, Any]], rules: list[str]) -> Iterator[tuple[str, str]]:
    """Which alternatives begin another rule than the innermost one that is open."""
    for each in alternatives:
        if each["rule"] not in (None, *rules[-1:]):
            yield "", f"{each['text']} begins {each['rule']}, as in {_quoted(each['example'] or '')}"


def _quoted(text: str) -> str:
    from structgen.engine.analysis.departure import quoted_bytes

    return quoted_bytes(text.encode(), _MAX_SHOWN)

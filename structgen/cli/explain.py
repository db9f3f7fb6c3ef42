"""``structgen explain``: what may come next after a text, and why a token may not."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import click

from structgen.cli.document import Departure, find_departure
from structgen.cli.expectation import expectation_of, readable, shown
from structgen.cli.failure import DONE, FAILED
from structgen.cli.json_place import pointer_at_end
from structgen.cli.source import SourceOptions, compile_source, read_source, source_options
from structgen.cli.vocabulary import vocabulary_of

if TYPE_CHECKING:
    from structgen.engine import Matcher

__all__ = ["explain"]

_SHOWN_TEXT: Final = 120


@click.command()
@click.argument("paths", nargs=-1, metavar="FILE")
@source_options("flexible")
@click.option("--text", default="", metavar="PREFIX", help="What has been written so far.")
@click.option("--token", metavar="T", help="Say whether the text T may come next.")
@click.option("--model", metavar="M", help="Tell of the tokens of a model too; 'embedded' is that of run.")
@click.option("--json", "as_json", is_flag=True, help="Write the answer as JSON.")
def explain(
    paths: tuple[str, ...], source: SourceOptions, text: str, token: str | None, model: str | None, as_json: bool
) -> int:
    """Say what may come next after PREFIX in the language of FILE.

    FILE is a JSON Schema or a Lark grammar, or - for a JSON Schema on standard input. If no member of the language
    begins with PREFIX, the place where it leaves the language is shown and the exit status is 1.
    """
    (path,) = source.take_path(paths, "FILE")
    read = read_source(path, source)
    matcher = compile_source(read).matcher()
    data = _bytes(text)
    departure = find_departure(matcher, [data], exact=True, prefix=True, is_json=read.is_json)
    if departure is not None:
        _tell_departure(departure, as_json)
        return FAILED
    answer = _state_of(matcher, data, is_json=read.is_json)
    if model is not None:
        matcher = compile_source(read, vocabulary_of(model)).matcher()
        matcher.accept_bytes(data)
        answer |= _tokens_of(matcher)
    if token is not None:
        answer["token"] = _verdict(matcher, _bytes(token), with_nearest=model is not None)
    click.echo(json.dumps(answer, ensure_ascii=False) if as_json else _written(answer))
    return DONE


def _bytes(argument: str) -> bytes:
    """What the shell passed; a command line need not be UTF-8."""
    return argument.encode("utf-8", "surrogateescape")


def _tell_departure(departure: Departure, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps({"possible": False, **departure.to_json()}, ensure_ascii=False))
    else:
        place = f"--text:{departure.line}:{departure.column}"
        click.echo(f"{place}: leaves the language at byte {departure.offset}\n{departure.picture}\n{departure}")


def _state_of(matcher: Matcher, data: bytes, *, is_json: bool) -> dict[str, Any]:
    expected = expectation_of(matcher)
    return {
        "possible": True,
        "text": data.decode("utf-8", "replace"),
        "next": list(expected.parts),
        "may_end": expected.accepting,
        "forced": readable(matcher.forced_bytes()),
        "rules": list(matcher.open_rules()),
        "pointer": pointer_at_end(data) if is_json else None,
        "shortest_completion": _completion(matcher),
    }


def _completion(matcher: Matcher) -> str:
    special = matcher.constraint.vocabulary.special
    written = bytearray()
    for symbol in matcher.shortest_completion():
        written += bytes([symbol]) if symbol >= 0 else special[-1 - symbol].encode()
    return written.decode("utf-8", "backslashreplace")


def _tokens_of(matcher: Matcher) -> dict[str, Any]:
    constraint = matcher.constraint
    tokens = constraint.vocabulary.tokens
    allowed = constraint.nearest_tokens(matcher, b"", constraint.vocabulary.size)
    return {
        "allowed_tokens": len(allowed),
        "vocabulary_size": constraint.vocabulary.size,
        "forced_tokens": [[index, tokens[index].decode("utf-8", "replace")] for index in matcher.forced_tokens()],
        "min_tokens": matcher.min_tokens(),
    }


def _verdict(matcher: Matcher, token: bytes, *, with_nearest: bool) -> dict[str, Any]:
    probe = matcher.fork()
    accepted = probe.accept_bytes(token)
    verdict = {
        "text": token.decode("utf-8", "replace"),
        "allowed": accepted == len(token),
        "accepted": token[:accepted].decode("utf-8", "replace"),
        "expected": str(expectation_of(probe)),
    }
    if with_nearest:
        nearest = matcher.explain(token).nearest
        verdict["nearest"] = [[index, data.decode("utf-8", "replace")] for index, data in nearest]
    return verdict


def _written(answer: dict[str, Any]) -> str:
    """The answer as lines for people."""
    parts = [*answer["next"], "the end"] if answer["may_end"] else answer["next"]
    lines = [
        ("after", _quoted(answer["text"])),
        ("next", ", ".join(parts) or "nothing"),
        ("forced", _quoted(answer["forced"]) if answer["forced"] else "nothing"),
        ("value", answer["pointer"]),
        ("rules", " > ".join(answer["rules"])),
        ("complete by", _quoted(answer["shortest_completion"])),
    ]
    if "min_tokens" in answer:
        lines += [
            ("as tokens", " ".join(f"{index}:{text!r}" for index, text in answer["forced_tokens"])),
            ("tokens", f"{answer['allowed_tokens']} of {answer['vocabulary_size']} may come next"),
            ("at least", f"{answer['min_tokens']} more tokens"),
        ]
    if "token" in answer:
        lines += _written_verdict(answer["token"])
    return "\n".join(f"{name:<12}{value}" for name, value in lines if value)


def _written_verdict(verdict: dict[str, Any]) -> list[tuple[str, str]]:
    subject = _quoted(verdict["text"])
    if verdict["allowed"]:
        return [("token", f"{subject} is allowed; then {verdict['expected']}")]
    place = f"after {_quoted(verdict['accepted'])}" if verdict["accepted"] else "here"
    near = " ".join(f"{index}:{text!r}" for index, text in verdict.get("nearest", ()))
    return [("token", f"{subject} is not allowed: {place} comes {verdict['expected']}"), ("nearest", near)]


def _quoted(text: str) -> str:
    return shown(text.encode(), _SHOWN_TEXT)

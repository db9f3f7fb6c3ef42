"""``structgen explain``: what may come next after a prefix, and why a token may not."""

from __future__ import annotations

import json
from collections import deque
from typing import TYPE_CHECKING, Any, Final

import click

from structgen.cli.command import Command, complete_files, output_options
from structgen.cli.departure import (
    Alternative,
    Departure,
    expectation_of,
    find_departure,
    pointer_at_end,
    quoted_bytes,
    readable,
)
from structgen.cli.grammar_source import SourceOptions, compile_source, read_source, source_options
from structgen.cli.model_option import vocabulary_of
from structgen.cli.terminal import DONE, FAILED

if TYPE_CHECKING:
    from collections.abc import Iterator

    from structgen.engine import Matcher
    from structgen.grammar.nodes import Grammar

__all__ = ["explain", "prefixes_before"]

_MAX_STEPS: Final = 60_000


def prefixes_before(
    matcher: Matcher, requested: bytes, *, most: int = 3, max_steps: int = _MAX_STEPS
) -> Iterator[tuple[bytes, str | None]]:
    """Yield up to ``most`` shortest texts after which ``requested`` may come, each with the rule that reads its end.

    Texts are looked through in the order of their length, one for each state that they lead to.  Of bytes that lead
    to the same state only the first is followed, printable ones before others.  A rule is listed once.

    The matcher is of a constraint in an engine of its own, so that its rules have their names.

    Complexity: at most ``max_steps`` bytes are read.
    """
    rules: set[str | None] = set()
    seen = {matcher.state_id}
    waiting: deque[tuple[bytes, Matcher]] = deque([(b"", matcher.fork())])
    steps = 0
    while waiting:
        text, state = waiting.popleft()
        for value in sorted(state.live_bytes(), key=_byte_order):
            steps += 1
            if steps > max_steps:
                return
            after = state.fork()
            after.accept_bytes(bytes([value]))
            if after.state_id in seen:
                continue
            seen.add(after.state_id)
            longer = text + bytes([value])
            probe = after.fork()
            if probe.accept_bytes(requested) == len(requested):
                rule = next((name for name in reversed(probe.rule_path()) if name), None)
                if rule not in rules:
                    rules.add(rule)
                    yield longer, rule
                    if len(rules) == most:
                        return
            waiting.append((longer, after))


def _byte_order(value: int) -> tuple[bool, bool, int]:
    """Letters and digits before other characters, and those before what is no character."""
    return not 0x20 <= value < 0x7F, not chr(value).isalnum(), value


_MAX_SHOWN: Final = 120


class RuleLocations:
    """Where the rules of a grammar are defined, as its front ends report."""

    def __init__(self, grammar: Grammar) -> None:
        from structgen.engine.report import entries_of

        self._places: dict[str, str] = {}
        for entry in entries_of(grammar)[1]:
            kind, _, name = entry.keyword.partition(" ")
            if kind in ("rule", "terminal") and name:
                self._places.setdefault(name, entry.where)

    def of(self, name: str) -> str:
        """A rule with its place, ``pair (3:1)``; what is made of a rule has that of the rule."""
        place = self._places.get(name) or self._places.get(name.partition(".")[0].partition("{")[0])
        return name if place is None else f"{name} ({place})"


@click.command(
    cls=Command,
    examples=(
        """structgen explain person.schema.json --text '{"name": ' --token '"Ada"'""",
        'structgen explain query.lark --text "SELECT * FROM " --model embedded',
    ),
)
@click.argument("paths", nargs=-1, metavar="FILE", shell_complete=complete_files)
@source_options()
@click.option("--text", default="", metavar="PREFIX", help="What has been written so far.")
@click.option("--token", metavar="T", help="Say whether the text T may come next.")
@click.option("--model", metavar="M", help="Tell of the tokens of a model too; 'embedded' is that of run.")
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
    (path,) = source.take_path(paths, "FILE")
    read = read_source(path, source)
    matcher = compile_source(read).matcher()
    data = _bytes(text)
    departure = find_departure(matcher, [data], exact=True, is_prefix=True, is_json=read.is_json)
    if departure is not None:
        _write_departure(departure, as_json=as_json)
        return FAILED
    # In an engine of its own, where call stacks have the names of this grammar's rules and of no other's.
    alone = matcher.constraint.alone().matcher()
    alone.accept_bytes(data)
    places = RuleLocations(read.grammar)
    answer = _state_of(alone, data, places, is_json=read.is_json)
    if model is not None:
        matcher = compile_source(read, vocabulary_of(model)).matcher()
        matcher.accept_bytes(data)
        answer |= _tokens_of(matcher)
    if token is not None:
        requested = _bytes(token)
        answer["token"] = _token_answer(matcher, requested, with_nearest=model is not None)
        if not answer["token"]["allowed"]:
            answer["token"]["after"] = [
                {"text": before.decode("utf-8", "replace"), "rule": None if rule is None else places.of(rule)}
                for before, rule in prefixes_before(alone, requested)
            ]
    click.echo(json.dumps(answer, ensure_ascii=False) if as_json else _written(answer))
    return DONE


def _bytes(argument: str) -> bytes:
    """What the shell passed; a command line need not be UTF-8."""
    return argument.encode("utf-8", "surrogateescape")


def _write_departure(departure: Departure, *, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps({"possible": False, **departure.to_json()}, ensure_ascii=False))
    else:
        place = f"--text:{departure.line}:{departure.column}"
        click.echo(f"{place}: invalid at byte {departure.offset}\n{departure.picture}\n{departure}")


def _state_of(matcher: Matcher, data: bytes, places: RuleLocations, *, is_json: bool) -> dict[str, Any]:
    expected = expectation_of(matcher)
    return {
        "possible": True,
        "text": data.decode("utf-8", "replace"),
        "next": list(expected.parts),
        "alternatives": [_alternative(matcher, each, places) for each in expected.alternatives],
        "may_end": expected.accepting,
        "forced": readable(matcher.forced_bytes()),
        "rules": [places.of(name) for name in matcher.rule_path() if name],
        "pointer": pointer_at_end(data) if is_json else None,
        "shortest_completion": _completion(matcher),
    }


def _alternative(matcher: Matcher, alternative: Alternative, places: RuleLocations) -> dict[str, Any]:
    """One of the things that may come next: the rule that reads it, and a text that begins so."""
    shown: dict[str, Any] = {"text": alternative.text, "rule": None, "example": None}
    first = alternative.first
    if first is None:
        return shown
    probe = matcher.fork()
    if first >= 0:
        probe.accept_bytes(bytes([first]))
    else:
        probe.accept(-1 - first)
    names = [name for name in probe.rule_path() if name]
    begun = bytes([first]).decode("latin-1") if 0 <= first < 0x80 else ""
    return shown | {
        "rule": places.of(names[-1]) if names else None,
        "example": begun + _completion(probe) if begun else None,
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


def _token_answer(matcher: Matcher, token: bytes, *, with_nearest: bool) -> dict[str, Any]:
    probe = matcher.fork()
    accepted = probe.accept_bytes(token)
    answer = {
        "text": token.decode("utf-8", "replace"),
        "allowed": accepted == len(token),
        "accepted": token[:accepted].decode("utf-8", "replace"),
        "expected": str(expectation_of(probe)),
    }
    if with_nearest:
        nearest = matcher.explain(token).nearest
        answer["nearest"] = [[index, data.decode("utf-8", "replace")] for index, data in nearest]
    return answer


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
    return quoted_bytes(text.encode(), _MAX_SHOWN)

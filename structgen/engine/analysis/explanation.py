"""What may come next after a prefix, and why a token may not."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Final

from structgen.engine.analysis.departure import (
    Alternative,
    Departure,
    expectation_of,
    find_departure,
    pointer_at_end,
    readable,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from structgen.engine.constraint import Constraint
    from structgen.engine.matcher import Matcher
    from structgen.grammar.nodes import Grammar

__all__ = ["completion_of", "explanation", "prefixes_before"]

_MAX_STEPS: Final = 60_000
_MAX_PREFIXES: Final = 3


def prefixes_before(
    matcher: Matcher, requested: bytes, *, max_steps: int = _MAX_STEPS
) -> Iterator[tuple[bytes, str | None]]:
    """Yield up to three shortest texts after which ``requested`` may come, each with the rule that reads its end.

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
                    if len(rules) == _MAX_PREFIXES:
                        return
            waiting.append((longer, after))


def _byte_order(value: int) -> tuple[bool, bool, int]:
    """Letters and digits before other characters, and those before what is no character."""
    return not 0x20 <= value < 0x7F, not chr(value).isalnum(), value


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


def explanation(
    constraint: Constraint,
    prefix: bytes,
    *,
    token: bytes | None = None,
    of_tokens: Constraint | None = None,
    is_json: bool = False,
    max_steps: int = _MAX_STEPS,
) -> dict[str, Any] | Departure:
    """Return what a grammar allows after ``prefix``, as JSON values; where the prefix leaves it if it does.

    Args:
        constraint: compiled for single bytes.
        prefix: what has been written so far.
        token: say also whether this may come next, and if not, where it may.
        of_tokens: the same grammar, compiled for the vocabulary of a model, whose tokens are then explained too.
        is_json: whether the strings are JSON texts.
        max_steps: bytes to read at most to find where ``token`` may come.
    """
    departure = find_departure(constraint.matcher(), [prefix], exact=True, is_prefix=True, is_json=is_json)
    if departure is not None:
        return departure
    # In an engine of its own, where call stacks have the names of this grammar's rules and of no other's.
    alone = constraint.alone().matcher()
    alone.accept_bytes(prefix)
    places = RuleLocations(constraint.grammar)
    answer = _state_of(alone, prefix, places, is_json=is_json)
    matcher = alone
    if of_tokens is not None:
        matcher = of_tokens.matcher()
        matcher.accept_bytes(prefix)
        answer |= _tokens_of(matcher)
    if token is not None:
        answer["token"] = _token_answer(matcher, token, with_nearest=of_tokens is not None)
        if not answer["token"]["allowed"]:
            answer["token"]["after"] = [
                {"text": before.decode("utf-8", "replace"), "rule": None if rule is None else places.of(rule)}
                for before, rule in prefixes_before(alone, token, max_steps=max_steps)
            ]
    return answer


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
        "shortest_completion": completion_of(matcher),
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
        "example": begun + completion_of(probe) if begun else None,
    }


def completion_of(matcher: Matcher) -> str:
    """The shortest text that makes what was written so far complete; special tokens are spelled out."""
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

"""What would have to stand before a text that is refused: the nearest places at which it may come."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

    from structgen.engine import Matcher

__all__ = ["texts_before"]

_MOST_STEPS: Final = 60_000


def texts_before(
    matcher: Matcher, wanted: bytes, *, most: int = 3, most_steps: int = _MOST_STEPS
) -> Iterator[tuple[bytes, str | None]]:
    """Yield shortest texts after which ``wanted`` may come, each with the rule that reads its end.

    Texts are looked through in the order of their length, one for each state that they lead to.  Of bytes that lead
    to the same state only the first is followed, printable ones before others.  A rule is told once.

    Args:
        matcher: of a constraint in an engine of its own, so that its rules have their names.
        wanted: what may not come now.
        most: how many are told.
        most_steps: how many bytes are read before the search is given up.

    Complexity: at most ``most_steps`` bytes are read.
    """
    rules: set[str | None] = set()
    seen = {matcher.state_id}
    waiting: deque[tuple[bytes, Matcher]] = deque([(b"", matcher.fork())])
    steps = 0
    while waiting:
        text, state = waiting.popleft()
        for value in sorted(state.live_bytes(), key=_oddness):
            steps += 1
            if steps > most_steps:
                return
            after = state.fork()
            after.accept_bytes(bytes([value]))
            if after.state_id in seen:
                continue
            seen.add(after.state_id)
            longer = text + bytes([value])
            probe = after.fork()
            if probe.accept_bytes(wanted) == len(wanted):
                rule = next((name for name in reversed(probe.rule_path()) if name), None)
                if rule not in rules:
                    rules.add(rule)
                    yield longer, rule
                    if len(rules) == most:
                        return
            waiting.append((longer, after))


def _oddness(value: int) -> tuple[bool, bool, int]:
    """Letters and digits before other characters, and those before what is no character."""
    return not 0x20 <= value < 0x7F, not chr(value).isalnum(), value

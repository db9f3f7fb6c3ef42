"""Plans of blocksworld: a table of its operators, and a simulator of the state."""

from __future__ import annotations

import random
from collections.abc import Iterator

from checked_language import Language, everything

BLOCKS = "abcdefgh"
OPERATORS = {"pick-up": 1, "put-down": 1, "stack": 2, "unstack": 2}


def problem(text: str) -> str | None:
    if not text.endswith("\n"):
        return "the last line has no end"
    for line in text[:-1].split("\n"):
        if not (line.startswith("(") and line.endswith(")")):
            return f"line {line!r}"
        name, *blocks = line[1:-1].split(" ")
        if OPERATORS.get(name) != len(blocks) or len(set(blocks)) != len(blocks) or not set(blocks) <= set(BLOCKS):
            return f"action {line!r}"
    return None


def documents(rng: random.Random) -> Iterator[str]:
    while True:
        stacks, held, lines = [[block] for block in BLOCKS], None, []
        for _ in range(rng.randint(1, 20)):
            stack = rng.choice(stacks)
            if held is None:
                held = stack.pop()
                lines.append(f"(unstack {held} {stack[-1]})" if stack else f"(pick-up {held})")
                stacks = [stack for stack in stacks if stack]
            elif rng.random() < 0.5 or not stacks:
                lines.append(f"(put-down {held})")
                stacks, held = [*stacks, [held]], None
            else:
                lines.append(f"(stack {held} {stack[-1]})")
                stack.append(held)
                held = None
        yield "\n".join(lines) + "\n"


LANGUAGE = Language(problem, documents, everything)

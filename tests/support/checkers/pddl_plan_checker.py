"""Plans: a reader of S-expressions, line by line."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator

from checked_language import Language, everything


def is_number(text: str) -> bool:
    whole, point, rest = text.partition(".")
    if not (text.isascii() and whole.isdigit() and len(whole) <= 9 and (whole == "0" or whole[0] != "0")):
        return False
    return not point or (rest.isdigit() and len(rest) <= 6)


def problem(text: str) -> str | None:
    *lines, last = text.split("\n")
    steps = 0
    if last:
        return "the last line has no end"
    for line in lines:
        if line.startswith(";"):
            if len(line) > 201:
                return "a long comment"
            continue
        time, colon, rest = line.rpartition(": ")
        action, bracket, duration = rest.partition(" [")
        if colon and not is_number(time):
            return f"time {time!r}"
        if bracket and not (duration.endswith("]") and is_number(duration[:-1])):
            return f"duration {duration!r}"
        if not (action.startswith("(") and action.endswith(")")):
            return f"action {action!r}"
        for name in action[1:-1].split(" "):
            if re.fullmatch("[A-Za-z][A-Za-z0-9_-]*", name) is None or len(name) > 61:
                return f"name {name!r}"
        steps += 1
    return None if steps else "no action"


def documents(rng: random.Random) -> Iterator[str]:
    names = ["truck-1", "package2", "loc_a", "ROBOT", "b", "hand-left"]
    while True:
        timed, lines = rng.random() < 0.5, []
        for step in range(rng.randint(1, 12)):
            action = "(" + " ".join(["drive", *rng.choices(names, k=rng.randint(0, 4))]) + ")"
            lines.append(f"{step}.{step:03}: {action} [{rng.uniform(0, 9):.3f}]" if timed else action)
        if rng.random() < 0.5:
            lines.append(f"; cost = {len(lines)} (unit cost)")
        yield "\n".join(lines) + "\n"


LANGUAGE = Language(problem, documents, everything)

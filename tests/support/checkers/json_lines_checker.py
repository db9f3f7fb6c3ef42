"""JSON Lines: Python's reader of JSON on every line."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator

from checked_language import Language, everything, problem_of
from json_checker import parse as parse_json, value


def parse(text: str) -> None:
    *ended, last = text.split("\n")
    lines = [line.removesuffix("\r") for line in ended] + [last] * (last != "" or not ended)
    for line in lines:
        if "\r" in line:
            raise ValueError("a carriage return inside a line")
        parse_json(line)


def documents(rng: random.Random) -> Iterator[str]:
    while True:
        lines = [json.dumps({"id": i, "value": value(rng)}) for i in range(rng.randint(1, 5))]
        end = rng.choice(("\n", "\r\n"))
        yield end.join(lines) + rng.choice(("", end))


LANGUAGE = Language(problem_of(parse, ValueError), documents, everything)

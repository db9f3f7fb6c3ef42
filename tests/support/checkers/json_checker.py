"""JSON: Python's own module, without the constants such as NaN that JSON does not have."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator

from checked_language import Language, everything, problem_of
from installed_documents import files


def refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")


def parse(text: str) -> object:
    return json.loads(text, parse_constant=refuse)


def value(rng: random.Random, depth: int = 4) -> object:
    """A value as programs write it."""
    kind = rng.randrange(8 if depth else 6)
    if kind == 0:
        return rng.choice((True, False, None))
    if kind == 1:
        return rng.randint(-(10**6), 10**6)
    if kind == 2:
        return rng.uniform(-1, 1) * 10 ** rng.randint(-20, 20)
    if kind < 6:
        return "".join(rng.choices('abc XYZ"\\/\n\té漢😀0', k=rng.randint(0, 12)))
    if kind == 6:
        return [value(rng, depth - 1) for _ in range(rng.randint(0, 4))]
    return {str(value(rng, 0)): value(rng, depth - 1) for _ in range(rng.randint(0, 4))}


def documents(rng: random.Random) -> Iterator[str]:
    for text in files("*.json", max_bytes=4_000, count=40):
        if problem(text) is None:
            yield text
    while True:
        yield json.dumps(value(rng), ensure_ascii=rng.random() < 0.5, indent=rng.choice((None, 2, "\t")))


problem = problem_of(parse, ValueError)
LANGUAGE = Language(problem, documents, everything)

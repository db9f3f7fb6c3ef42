"""YAML: PyYAML's safe loader, and the output of its dumper."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import date, timedelta

import yaml
from checked_language import Language

WORDS = [
    "name",
    "a longer text",
    "x-y",
    "http://example.org:80/a#b",
    "it's",
    'say "hi"',
    "true",
    "1.5",
    "",
    "é漢",
    "two\nlines\n",
    "- dash",
    "a: b",
    "#no",
]


def problem(text: str) -> str | None:
    try:
        yaml.safe_load(text)
    except (yaml.YAMLError, ValueError) as error:
        return str(error)
    return None


def value(rng: random.Random, depth: int) -> object:
    kind = rng.randrange(9 if depth else 6)
    if kind == 0:
        return rng.choice((True, None, False))
    if kind == 1:
        return rng.choice((0, -5, 123456, 2.5, 1e-7))
    if kind == 2:
        return date(2000, 1, 1) + timedelta(days=rng.randrange(20_000))
    if kind < 6:
        return rng.choice(WORDS)
    if kind == 6:
        return [value(rng, depth - 1) for _ in range(rng.randint(0, 4))]
    return mapping(rng, depth - 1)


def mapping(rng: random.Random, depth: int) -> dict[str, object]:
    names = ["name", "on", "my key", "x.y", "1", "version", "a/b", "é"]
    return {name: value(rng, depth) for name in rng.sample(names, rng.randint(0, 4))}


class Dumper(yaml.SafeDumper):
    """Writes multi-line texts as block scalars."""


def as_written(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


Dumper.add_representer(str, as_written)


def documents(rng: random.Random) -> Iterator[str]:
    while True:
        style = rng.choice((False, None))
        yield yaml.dump(
            mapping(rng, 3), Dumper=Dumper, allow_unicode=True, width=10_000, sort_keys=False, default_flow_style=style
        )


LANGUAGE = Language(problem, documents, alphabet="#:-\t|>&*!?[]{}'\"")

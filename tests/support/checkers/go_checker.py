"""Go: the parser of tree-sitter, and programs composed of given declarations."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from pathlib import Path

import tree_sitter
import tree_sitter_go
from checked_language import Language

PARSER = tree_sitter.Parser(tree_sitter.Language(tree_sitter_go.language()))

DECLARATIONS = (Path(__file__).parents[2] / "fixtures/library/declarations.go.txt").read_text("utf-8").split("----\n")


def problem(text: str) -> str | None:
    root = PARSER.parse(text.encode()).root_node
    return "there is an error or something missing" if root.has_error else None


def documents(rng: random.Random) -> Iterator[str]:
    names = {"gcd": "Divisor", "Stack": "pile", "sieve": "marks", "table": "goTo", "out": "result"}
    while True:
        chosen = "\n".join(rng.sample(DECLARATIONS, rng.randint(1, 6)))
        for name, other in names.items():
            chosen = re.sub(rf"\b{name}\b", other, chosen) if rng.random() < 0.5 else chosen
        imports = rng.choice(("", 'import "fmt"\n\n', 'import (\n\t"errors"\n\t"fmt"\n\n\t"net/http"\n)\n\n'))
        comment = rng.choice(("", "// Package p works.\n"))
        yield f"{comment}package p\n\n{imports}{chosen}"


LANGUAGE = Language(problem, documents)

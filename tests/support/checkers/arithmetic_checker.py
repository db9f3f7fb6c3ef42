"""Arithmetic: Python's parser reads it once powers, names and leading zeros are written as in Python."""

from __future__ import annotations

import ast
import random
import re
from collections.abc import Iterator

from checked_language import Language, everything, problem_of

OPERATORS = [ast.Add(), ast.Sub(), ast.Mult(), ast.Div(), ast.Pow()]
NODES = (
    ast.Expression,
    ast.BinOp,
    ast.UnaryOp,
    ast.USub,
    ast.Call,
    ast.Name,
    ast.Load,
    ast.Constant,
    *map(type, OPERATORS),
)
ONLY_IN_PYTHON = re.compile(r"\*\*|//|(?<![0-9])\.|\.(?![0-9])|,\s*\)|[0-9]_|\)\s*\(")


def parse(text: str) -> None:
    if not re.fullmatch(r"[0-9a-z+*/^(),. -]*", text):
        raise ValueError("signs that do not occur")
    named = re.sub(r"[a-z][a-z0-9]*", lambda name: "_" * len(name[0]), text)
    if ONLY_IN_PYTHON.search(named):
        raise ValueError("a form that only Python has")
    plain = re.sub(r"(?<![.0-9])0+(?=[0-9])", "", named)
    for node in ast.walk(ast.parse(plain.replace("^", "**").strip(" "), mode="eval")):
        if not isinstance(node, NODES) or (
            isinstance(node, ast.Call) and not (node.args and isinstance(node.func, ast.Name))
        ):
            raise ValueError(f"a form that only Python has: {ast.unparse(node)}")


def documents(rng: random.Random) -> Iterator[str]:
    def tree(depth: int) -> ast.expr:
        kind = rng.randrange(8) if depth else 0
        if kind < 2:
            number = rng.choice((0, 1, 42, 3.25, 1000))
            return ast.Constant(number) if rng.random() < 0.5 else ast.Name(rng.choice(("x", "rate", "n2")))
        if kind == 2:
            return ast.UnaryOp(ast.USub(), tree(depth - 1))
        if kind == 3:
            return ast.Call(ast.Name("max"), [tree(depth - 1) for _ in range(rng.randint(1, 3))], [])
        return ast.BinOp(tree(depth - 1), rng.choice(OPERATORS), tree(depth - 1))

    while True:
        yield ast.unparse(ast.fix_missing_locations(tree(5))).replace("**", "^")


LANGUAGE = Language(problem_of(parse, ValueError, SyntaxError), documents, everything)

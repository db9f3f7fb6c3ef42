"""GraphQL: the parser and the printer of graphql-core."""

from __future__ import annotations

import random
from collections.abc import Iterator

from checked_language import Language
from graphql import GraphQLSyntaxError, parse, print_ast
from graphql.language import ExecutableDefinitionNode


def problem(text: str) -> str | None:
    try:
        document = parse(text)
    except GraphQLSyntaxError as error:
        return error.message
    is_executable = all(isinstance(node, ExecutableDefinitionNode) for node in document.definitions)
    return None if is_executable else "it defines types"


def documents(rng: random.Random) -> Iterator[str]:
    def value(depth: int, *, constant: bool) -> str:
        kind = rng.randrange(9 if depth else 7)
        if kind == 6 and not constant:
            return "$id"
        if kind == 7:
            return f"[{', '.join(value(depth - 1, constant=constant) for _ in range(rng.randint(0, 3)))}]"
        if kind == 8:
            return f"{{{', '.join(f'k{i}: {value(depth - 1, constant=constant)}' for i in range(rng.randint(0, 3)))}}}"
        return ("1", "-2.5e3", '"a \\"b\\" \\u00e9\\n"', "true", "null", "RED", '"""block\n  of "lines" \\"""\n"""')[
            kind
        ]

    def directives() -> str:
        return rng.choice(("", "", " @include(if: $id)", " @live @cached(ttl: 5)"))

    def selections(depth: int) -> str:
        found = []
        for _ in range(rng.randint(1, 4)):
            kind = rng.randrange(6)
            if kind == 0:
                found.append(f"...Part{directives()}")
            elif kind == 1 and depth:
                found.append(f"...{rng.choice(('', ' on User'))}{directives()} {selections(depth - 1)}")
            else:
                arguments = (
                    f"(a: {value(2, constant=False)} b: {value(2, constant=False)})" if rng.random() < 0.4 else ""
                )
                inner = f" {selections(depth - 1)}" if depth and rng.random() < 0.5 else ""
                found.append(
                    f"{rng.choice(('', 'x: '))}{rng.choice(('name', 'type', 'on'))}{arguments}{directives()}{inner}"
                )
        return "{ " + "\n".join(found) + " }"

    while True:
        definitions = []
        for _ in range(rng.randint(1, 3)):
            kind = rng.choice(("query", "mutation", "subscription"))
            variables = rng.choice(("", f"($id: ID!, $n: [[Int!]]! = {value(2, constant=True)} @d)"))
            definitions.append(f"{kind} {rng.choice(('', 'Name'))}{variables}{directives()} {selections(3)}")
        definitions.append(f"fragment Part on User{directives()} {selections(1)}")
        text = "\n# next\n".join(definitions)
        yield text
        yield print_ast(parse(text))


LANGUAGE = Language(problem, documents, alphabet='"\\#!@$')

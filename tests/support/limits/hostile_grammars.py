"""Grammars that are malformed or ask for too much, by notation and name; run as a program, it tries them out.

``python hostile_grammars.py NAME...`` prints one JSON object for each: the result of each stage, with seconds and peak
memory. Each grammar has its own process with resource limits.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from machine_load import slowness

if TYPE_CHECKING:
    from structgen.engine import Constraint, Vocabulary

ADDRESS_SPACE: Final = 1 << 30
CPU_SECONDS: Final = 60  # per process; the test sets the bound on the work itself
MEGABYTE: Final = 1 << 20
RULES: Final = 50_000
DEEP: Final = 100_000
NOTATIONS: Final = ("lark", "contextual", "gbnf", "ebnf")
TOKENS: Final = (b"", b"a", b"aa", b"b", b"+", b"n", b"-", b"aaaa", b" ", b"(", b")", b"x", b"\n", b'"', b"{", b"}")


def _lark_rules(*rules: str) -> str:
    return "".join(rule.replace("root", "start") + "\n" for rule in rules)


def _bnf_rules(*rules: str) -> str:
    return "".join(rule.replace(":", " ::=", 1) + "\n" for rule in rules)


def _shared(write: Callable[..., str]) -> Iterator[tuple[str, str]]:  # noqa: PLR0915  # a list
    """Grammars that all notations can express; a rule is ``name: expression``, and the first rule is ``root``."""
    rules = range(RULES)
    yield "one huge rule", write("root: " + '"ab" ' * (MEGABYTE // 5))
    yield "one huge string", write('root: "' + "ab" * (MEGABYTE // 2) + '"')
    yield "one huge alternation", write("root: " + " | ".join(f'"{i}"' for i in range(MEGABYTE // 10)))
    yield "one huge alternation of names", write("root: " + " | ".join(["x"] * (MEGABYTE // 4)), 'x: "a"')
    yield "chain of rules", write("root: r0", *(f"r{i}: r{i + 1}" for i in rules), f'r{RULES}: "a"')
    yield "chain of rules with texts", write("root: r0", *(f'r{i}: "a" r{i + 1} "b"' for i in rules), f'r{RULES}: "x"')
    yield "star of rules", write("root: " + " | ".join(f"r{i}" for i in rules), *(f'r{i}: "{i}"' for i in rules))
    yield "ring of left recursion", write("root: r0", *(f'r{i}: r{(i + 1) % RULES} "a" | "b"' for i in rules))
    yield "ring of rules without texts", write("root: r0", *(f"r{i}: r{(i + 1) % RULES}" for i in rules))
    yield (
        "web of left recursion",
        write("root: r0", *(f'r{i}: r{i * 7 % 900} "a" | r{i * 3 % 900} | "b"' for i in range(900))),
    )
    yield "unreachable rules", write('root: "a"', *(f'r{i}: "{i}"' for i in rules))
    yield "unreachable ring", write('root: "a"', *(f'r{i}: r{(i + 1) % RULES} "x" | "y"' for i in rules))
    yield "rules of one text", write("root: " + " | ".join(f"r{i}" for i in rules), *(f'r{i}: "ab"' for i in rules))
    yield "deep parentheses", write("root: " + "(" * DEEP + '"a"' + ")" * DEEP)
    yield "deep open parentheses", write("root: " + "(" * DEEP)
    yield "deep closing parentheses", write("root: " + '"a"' + ")" * DEEP)
    yield "deep optional parentheses", write("root: " + "(" * 1_900 + '"a"' + ")?" * 1_900)
    yield "deep starred parentheses", write("root: " + "(" * 1_900 + '"a"' + ")*" * 1_900)
    yield "deep parentheses with texts", write("root: " + '("b" ' * 1_900 + '"a"' + ")" * 1_900)
    yield "deep alternatives", write("root: " + '("b" | ' * 1_900 + '"a"' + ")" * 1_900)
    yield "rules that double", write("root: r0", *(f"r{i}: r{i + 1} r{i + 1}" for i in range(64)), 'r64: "a"')
    yield (
        "rules that double and end",
        write("root: r0", *(f"r{i}: r{i + 1} r{i + 1}" for i in range(64)), 'r64: "a" | ""'),
    )
    yield (
        "alternatives that double",
        write("root: r0", *(f'r{i}: "a" r{i + 1} | "b" r{i + 1}' for i in range(64)), 'r64: "x"'),
    )
    yield "empty left recursion", write('root: e root e root | e e | "a"', 'e: ("")*')
    yield "stars of stars of the empty text", write('root: (((""*)+)?)* "a"')
    yield "hidden left recursion", write('root: n root "b" | "a"', 'n: "" | "a"')
    yield (
        "palindromes of many letters",
        write("root: " + " | ".join(f'"{c}" root "{c}"' for c in "abcdefghijklmnop") + ' | ""'),
    )
    yield "ambiguous sums", write('root: root root root | root root | "a" | ""')
    yield "no text at all", write("root: root")
    yield "no text at all in two rules", write('root: "a" x', 'x: "b" root | "c" x')
    yield "remembers two hundred characters", write('root: ("a" | "b")* "a" ' + '("a" | "b") ' * 200)
    yield "empty", ""
    yield "only a comment", "# nothing\n" if write is _bnf_rules else "// nothing\n"
    yield "only line ends", "\n" * MEGABYTE
    yield "only blanks", " " * MEGABYTE
    yield "byte order mark", "\ufeff" + write('root: "a"')
    yield "carriage returns", write('root: "a" x', 'x: "b"').replace("\n", "\r\n")
    yield "lone carriage returns", write('root: "a" x', 'x: "b"').replace("\n", "\r")
    yield "null character", write('root: "a\x00b" x', 'x: "\x00"')
    yield "null character outside", write('root: \x00 "a"')
    yield "lone surrogate", write('root: "a\ud800b"')
    yield "lone surrogate outside", write('root: "a" \udfff')
    yield "lone surrogate in a comment", ("# " if write is _bnf_rules else "// ") + "\udc80\n" + write('root: "a"')
    yield "undefined rule", write('root: "a" missing')
    yield "duplicate rule", write('root: "a" x', 'x: "b"', 'x: "c"')
    yield "huge name", write("root: " + "x" * MEGABYTE)
    yield "string that is not closed", write('root: "abc')
    yield "strings that are not closed", write("root: " + '"a" "' * 100_001)
    yield "parenthesis that is not closed", write('root: ("a" x', 'x: "b"')
    yield "parenthesis that is not open", write('root: "a") x', 'x: "b"')
    yield "wrong bracket", write('root: ("a"]')
    yield "nothing but operators", write("root: " + "*+?|" * 10_000)
    yield "many bars", write("root: " + "|" * 200_000)
    yield "operator first", write('root: * "a"')
    yield "nothing after the name", write("root:")
    yield "number first", write("root: 9")
    yield "bad escape", write(r'root: "\q"')
    yield "escape at the end", write('root: "\\')
    yield "short escape", write(r'root: "\x4"')
    yield "escape of a surrogate", write(r'root: "\ud800"')
    yield "escape beyond Unicode", write(r'root: "\Uffffffff"')
    yield "long line", "x" * MEGABYTE
    yield "quotes", '"' * MEGABYTE
    yield "colons", ":" * MEGABYTE
    yield "binary", "".join(chr(i * 7919 % 0x3000) for i in range(20_000))


def _counts(first: str, count: Callable[[str, int], str]) -> Iterator[tuple[str, str]]:
    """Counts of repetitions; ``count`` writes one after an item."""
    letter, letters = '"a"', '("a" | "b")'
    yield "count of a billion", f"{first} {count(letter, 10**9)}\n"
    yield "count of a million", f"{first} {count(letter, 10**6)}\n"
    yield "count of a million of a class", f"{first} {count(letters, 10**6)}\n"
    yield "count beyond all bounds", f"{first} {count(letter, 10**40)}\n"
    nested = '"a"'
    for _ in range(3):
        nested = f"({count(nested, 1000)})"
    yield "nested counts", f"{first} {nested}\n"
    nested = '"a"'
    for _ in range(60):
        nested = f"({count(nested, 2)})"
    yield "deep nested counts", f"{first} {nested}\n"
    nested = '("a" | "")'
    for _ in range(3):
        nested = f"({count(nested, 1000)})"
    yield "nested counts of the empty text", f"{first} {nested}\n"


def _lark() -> Iterator[tuple[str, str]]:  # noqa: PLR0915  # a list
    yield from _shared(_lark_rules)
    yield from _counts("start:", lambda item, n: f"{item}~{n}")
    yield "reversed count", 'start: "a"~5..2\n'
    yield "negative count", 'start: "a"~-1\n'
    yield "undefined terminal", 'start: "a" MISSING\n'
    yield "undefined in an unused rule", 'start: "a"\nx: y\n'
    yield "duplicate terminal", 'start: A\nA: "a"\nA: "b"\n'
    yield "recursive terminal", 'start: A\nA: "a" B?\nB: A\n'
    yield "chain of terminals", "start: A0\n" + "".join(f"A{i}: A{i + 1}\n" for i in range(RULES)) + f'A{RULES}: "a"\n'
    yield (
        "terminals that double",
        "start: A0\n" + "".join(f"A{i}: A{i + 1} A{i + 1}\n" for i in range(64)) + 'A64: "a"\n',
    )
    yield "ring of terminals", "start: A0\n" + "".join(f"A{i}: A{(i + 1) % RULES}\n" for i in range(RULES))
    yield "empty terminal", 'start: A "b" A\nA: ""\n'
    yield "empty regexp", "start: A*\nA: /a*/\n"
    yield "ignored empty text", 'start: "a" "b"\n%ignore /x*/\n'
    yield "many ignored", 'start: "a" "b"\n' + "".join(f'%ignore "i{i}"\n' for i in range(20_000))
    yield "regexp that is not closed", "start: /abc\n"
    yield "slashes", "start: " + "/" * MEGABYTE
    yield "regexp with a bad escape", "start: /\\q/\n"
    yield "regexp with an open group", "start: /(a/\n"
    yield "regexp with a reversed range", "start: /[z-a]/\n"
    yield "reversed range", 'start: "z".."a"\n'
    yield "range of strings", 'start: "ab".."cd"\n'
    yield "range without an end", 'start: "a"..\n'
    yield "empty range", 'start: "".."a"\n'
    yield "unknown directive", '%unknown x\nstart: "a"\n'
    yield "unknown directive at the end", 'start: "a"\n%'
    yield "import of nothing", '%import\nstart: "a"\n'
    yield "import of no file", "%import .nowhere.x\nstart: x\n"
    yield "import of no name", "%import common.NOTHING\nstart: NOTHING\n"
    yield "import of no library", "%import nothing.NOTHING\nstart: NOTHING\n"
    yield "many imports", "".join(f"%import common.INT -> I{i}\n" for i in range(20_000)) + "start: I0\n"
    yield "override of nothing", '%override x: "a"\nstart: x\n'
    yield "extend of itself", 'start: "a"\n%extend start: start start\n'
    yield "many extensions", 'start: "a"\n' + "".join(f'%extend start: "b{i}"\n' for i in range(20_000))
    yield "declared and used", "%declare X\nstart: X\n"
    yield "regexp of 200 KB", "start: /" + "(ab|cd)*x" * 22_000 + "/\n"
    yield "regexp of a huge class", "start: /[" + "".join(chr(0x100 + 2 * i) for i in range(10_000)) + "]/\n"
    yield "regexp with deep groups", "start: /" + "(" * DEEP + "a" + ")" * DEEP + "/\n"
    yield "regexp with nested counts", "start: /((a{1000}){1000}){1000}/\n"
    yield "regexp with nested open counts", "start: /((a{1,1000}b?){1,1000}c?){1,1000}/\n"
    yield "regexp that remembers", 'start: /[ab]*a[ab]{200}/ "x"\n'
    yield "lazy regexp that remembers", "start: /.*?a.{50}b/ \n"
    yield "many regexps", "start: " + " | ".join(f"/a{{{i}}}[b-z]*x{i}/" for i in range(5_000)) + "\n"
    yield "template for ever", 'start: t{"a"}\nt{x}: x t{t{x}}\n'
    yield "template that grows", 'start: t{"a"}\nt{x}: "b" | t{u{x}}\nu{x}: x x\n'
    yield "template into itself", "start: t{t}\nt{x}: x{x}\n"
    doubled = "".join(f"t{i}{{x}}: t{i + 1}{{u{{x}}}} | t{i + 1}{{v{{x}}}}\n" for i in range(40))
    yield "template product", f'start: t0{{"a"}}\n{doubled}t40{{x}}: x\nu{{x}}: "u" x\nv{{x}}: "v" x\n'
    paired = "".join(f"t{i}{{x, y}}: t{i + 1}{{x, y}} t{i + 1}{{y, x}} t{i + 1}{{x, x}}\n" for i in range(60))
    yield "template pairs", f'start: t0{{"a", "b"}}\n{paired}t60{{x, y}}: x y\n'
    yield "template with too few arguments", 'start: t{"a"}\nt{x, y}: x y\n'
    yield "template without arguments", "start: t\nt{x}: x\n"
    yield "template that is none", 'start: t{"a"}\nt: "b"\n'
    yield "template as start", "start{x}: x\n"
    yield (
        "template with a huge argument",
        "start: t{" + "u{" * 1_500 + '"a"' + "}" * 1_500 + '}\nt{x}: x x\nu{x}: x "b"\n',
    )
    letter = '"a"'
    yield (
        "template with many parameters",
        (f"start: t{{{', '.join(20_000 * [letter])}}}\nt{{{', '.join(f'x{i}' for i in range(20_000))}}}: x0 x19999\n"),
    )
    yield "deep brackets", "start: " + "[" * DEEP + '"a"' + "]" * DEEP + "\n"
    yield "deep negations", "start: A\nA: " + "~" * 10_000 + '"a"\n'
    yield "negations of conjunctions", "start: A\nA: " + "~(" * 1_500 + '"a"' + ' & "b")' * 1_500 + "\n"
    yield "deep JSON", "start: %json " + '{"items": ' * DEEP + "{}" + "}" * DEEP + "\n"
    yield "JSON that is not closed", 'start: %json {"a": \n'
    yield "JSON that is none", "start: %json {nothing}\n"
    yield "JSON with an unknown type", 'start: %json {"type": "nothing"}\n'
    yield "nested grammars", "start: " + "%lark { start: " * 1_000 + '"a"' + " }" * 1_000 + "\n"
    yield "nested grammar that is not closed", "start: %lark { start: \n"
    yield "condition that is not closed", 'start: r::0\nr::_: "a" %if and(and(\n'
    yield "condition of great depth", 'start: r::0\nr::_: "a" %if ' + "not(" * DEEP + "true" + ")" * DEEP + "\n"
    yield "parameters that count", 'start: r::0\nr::_: "a" r::incr(_) | "b" %if is_ones(_)\n'
    yield (
        "parameters that count bits",
        "start: r::0\nr::_: " + " | ".join(f'"a" r::set_bit({i})' for i in range(64)) + "\n",
    )
    yield "unknown attribute", 'start[nothing]: "a"\n'
    yield "attributes that are not closed", 'start[lazy: "a"\n'
    yield "attribute with a huge number", 'start[max_tokens=99999999999999999999]: "a"\n'
    yield "lazy without a limit", "start: x\nx[lazy]: /(.|\\n)*/ x\n"
    yield "unknown token name", "start: <|nothing|>\n"
    yield "token id beyond all", "start: <[99999999999]>\n"
    yield "token ids reversed", "start: <[5-1]>\n"
    yield "unknown grammar", "start: @nothing\n"
    yield "unknown option", '%llguidance {"nothing": true}\nstart: "a"\n'
    yield "blocks without a declaration", "start: _INDENT _DEDENT\n"
    yield "blocks", '%declare _INDENT _DEDENT\nstart: ("a" _NL _INDENT start _DEDENT | "b")+\n_NL: /\\n */\n'
    yield "terminals that share texts", "start: " + " ".join(f"T{i}" for i in range(300)) + "\n" + "".join(
        f"T{i}: /[a-z]{{1,{i + 1}}}x/\n" for i in range(300)
    )  # fmt: skip
    yield "terminals that share everything", "start: (" + "|".join(f"T{i}" for i in range(60)) + ")*\n" + "".join(
        f"T{i}: /[ab]*a[ab]{{{i}}}/\n" for i in range(60)
    )  # fmt: skip
    keywords = "|".join(f"K{i}" for i in range(3_000))
    yield "many keywords", f"start: ({keywords} | NAME)*\nNAME: /[a-z]+/\n" + "".join(
        f'K{i}: "k{chr(97 + i % 26)}{i}x"\n' for i in range(3_000)
    )  # fmt: skip


def _gbnf() -> Iterator[tuple[str, str]]:
    yield from _shared(_bnf_rules)
    yield from _counts("root ::=", lambda item, n: f"{item}{{{n}}}")
    yield "reversed count", 'root ::= "a"{5,2}\n'
    yield "empty count", 'root ::= "a"{}\n'
    yield "class that is not closed", "root ::= [abc\n"
    yield "classes that are not closed", "root ::= " + "[a" * 100_000 + "\n"
    yield "reversed range", "root ::= [z-a]\n"
    yield "empty class", "root ::= []\n"
    yield "class of everything but nothing", "root ::= [^]\n"
    yield "huge class", "root ::= [" + "".join(chr(0x100 + 2 * i) for i in range(10_000)) + "]\n"
    yield "bad escape in a class", "root ::= [\\q]\n"
    yield "lone surrogate in a class", "root ::= [\ud800-\udfff]\n"
    yield "name without a rule", "root\n"
    yield "sign without a name", '::= "a"\n'
    yield "signs", "::=" * 100_000
    yield "rule within a line", 'root ::= "a" x ::= "b"\n'
    yield "token that is not closed", "root ::= <abc\n"
    yield "token id beyond all", "root ::= <[99999999999]>\n"
    yield "empty token", "root ::= <>\n"


def _ebnf() -> Iterator[tuple[str, str]]:
    yield from ((name, text) for name, text in _gbnf() if not name.startswith("token"))
    yield "macro that is not closed", "root ::= TagDispatch(\n"
    yield "unknown macro", 'root ::= Nothing("a")\n'
    yield "tags that share texts", 'root ::= TagDispatch(("ab", x), ("b", x))\nx ::= "y"\n'
    yield (
        "many tags",
        ("root ::= TagDispatch(" + ", ".join(f'("<{i:05}>", x)' for i in range(3_000)) + ')\nx ::= "y"\n'),
    )
    yield "regexp of 200 KB", 'root ::= Regex("' + "(ab|cd)*x" * 22_000 + '")\n'
    yield "regexp with nested counts", 'root ::= Regex("((a{1000}){1000}){1000}")\n'
    yield "regexp with deep groups", 'root ::= Regex("' + "(" * DEEP + "a" + ")" * DEEP + '")\n'
    yield "bad regexp", 'root ::= Regex("(")\n'
    yield "substrings", "root ::= Substring(" + ", ".join(f'"{i}"' for i in range(20_000)) + ")\n"
    yield "unknown option", 'root[nothing] ::= "a"\n'
    yield "many options", "root[" + "lazy," * 50 + 'lazy] ::= "a"\n'
    yield "lazy over rules", 'root[lazy] ::= "a" root | "b"\n'
    yield "look-ahead in look-ahead", 'root ::= "a" (= (= "b"))\n'
    yield "deep tuples", "root ::= Token(" + "(" * DEEP + ")\n"


LARGE: Final = 100_000
"""Characters from which on a grammar is left to the nightly run."""
HEAVY: Final = frozenset(
    {
        "regexp that remembers",
        "lazy regexp that remembers",
        "template pairs",
        "many keywords",
        "terminals that share everything",
        "terminals that share texts",
        "many tags",
    }
)
"""Others that are left to it."""


def _library(notation: str) -> Iterator[tuple[str, str]]:
    yield from {"lark": _lark, "contextual": _lark, "gbnf": _gbnf, "ebnf": _ebnf}[notation]()


def texts(notation: str) -> dict[str, str]:
    """The hostile grammars of a notation, by name."""
    return dict(_library(notation))


def read(notation: str, text: str, **options: Any) -> Any:
    """Read a grammar in a notation of ``NOTATIONS``."""
    import structgen as sg

    if notation in ("lark", "contextual"):
        return sg.lark(text, lexer="contextual" if notation == "contextual" else "any", **options)
    return sg.gbnf(text, **options) if notation == "gbnf" else sg.ebnf(text, **options)


class Outcome:
    """The results of the stages so far, each with its CPU seconds and its error."""

    def __init__(self) -> None:
        self.stages: dict[str, dict[str, Any]] = {}

    def of(self, name: str, action: Callable[[], Any]) -> Any:
        """Call ``action``; return its result, or None if it raises an error."""
        from structgen.errors import StructgenError

        found: dict[str, Any] = {}
        begun = time.process_time()
        result = None
        try:
            result = action()
        except StructgenError as error:
            found = {
                "error": type(error).__name__,
                "message": str(error)[:600],
                "limit": getattr(error, "limit", None),
                "where": getattr(error, "where", None),
                "span": getattr(error, "span", None),
                "size": len(getattr(error, "text", None) or ""),
            }
        except Exception as error:  # any exception here is a fault
            found = {"crash": type(error).__name__, "message": traceback.format_exc()[-3_000:]}
        found["seconds"] = round(time.process_time() - begun, 3)
        self.stages[name] = found
        return result


@cache
def _vocabulary() -> Vocabulary:
    """A small vocabulary that has been used once, so that its own time is not counted."""
    import structgen as sg

    vocabulary = sg.Vocabulary([*TOKENS, *(bytes([i]) for i in range(256))], eos=[0], special={0: "<eos>"})
    sg.compile(sg.regex("a"), vocabulary).matcher()
    return vocabulary


def _look_at(outcome: Outcome, constraint: Constraint, tools: frozenset[str]) -> None:
    """Give a compiled grammar to the tools."""
    from structgen.cli.automaton_drawing import drawing_of
    from structgen.engine.analysis.departure import expectation_of

    matcher = constraint.matcher()
    if "report" in tools:
        outcome.of("report", constraint.report.to_json)
    if "explain" in tools:
        outcome.of("explain", lambda: str(expectation_of(matcher)) + str(matcher.rule_path()))
        outcome.of("completion", matcher.shortest_completion)
    if "draw" in tools:
        outcome.of("draw", lambda: str(drawing_of(constraint)))


def try_out(outcome: Outcome, notation: str, text: str, tools: frozenset[str]) -> None:
    """Read a grammar, compile it, fill the first mask, and give it to the tools."""
    import numpy as np

    import structgen as sg
    from structgen.engine.analysis.inclusion import compare
    from structgen.engine.analysis.uniform_sampling import UniformStrings
    from structgen.engine.lint import lint
    from structgen.frontends.convert import DIALECTS, write

    vocabulary = _vocabulary()
    grammar = outcome.of("read", lambda: read(notation, text))
    if grammar is None:
        return
    constraint = outcome.of("compile", lambda: sg.compile(grammar, vocabulary))
    if constraint is not None and not tools:
        matcher = constraint.matcher()
        mask = np.zeros((1, (vocabulary.size + 31) // 32), dtype=np.int32)
        outcome.of("mask", lambda: matcher.fill_mask(mask))
        allowed = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))
        if len(allowed):
            outcome.of("accept", lambda: matcher.accept(int(allowed[0])))
            outcome.of("second mask", lambda: matcher.fill_mask(mask))
    if constraint is not None:
        _look_at(outcome, constraint, tools)
    if "lint" in tools:
        outcome.of("lint", lambda: lint(grammar))
    if "members" in tools:
        outcome.of("members", lambda: UniformStrings(grammar, 6).draw(3, 0))
    if "inclusion" in tools:
        outcome.of("inclusion", lambda: compare(grammar, grammar))
    if "print" in tools:
        outcome.of("print", lambda: str(grammar))
    if "write" in tools:
        for dialect in DIALECTS:
            outcome.of(f"write {dialect}", lambda dialect=dialect: write(grammar, dialect))  # type: ignore[misc]


TOOLS: Final = frozenset({"report", "explain", "draw", "lint", "members", "inclusion", "print", "write"})


def peak_bytes() -> int:
    """The peak memory of this process."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024


def _alone(notation: str, name: str, text: str, tools: frozenset[str]) -> dict[str, Any]:
    """Try a grammar in its own process, and each tool in another."""
    found: dict[str, Any] = {"notation": notation, "name": name, "bytes": len(text), "stages": {}, "peak_bytes": 0}
    for group in (frozenset[str](), *(frozenset([tool]) for tool in sorted(tools))):
        part = _in_child(notation, text, group)
        if "died" in part:
            found["stages"]["/".join(group) or "plain"] = {"crash": f"status {part['died']}", "seconds": 0.0}
            continue
        found["stages"] = part["stages"] | found["stages"]
        found["peak_bytes"] = max(found["peak_bytes"], part["peak_bytes"])
        if "error" in part["stages"]["read"]:
            break
    return found


def _in_child(notation: str, text: str, tools: frozenset[str]) -> dict[str, Any]:
    with tempfile.TemporaryFile() as file:
        child = os.fork()
        if not child:
            outcome = Outcome()
            try:
                resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))
                resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))
                try_out(outcome, notation, text, tools)
                file.write(json.dumps({"stages": outcome.stages, "peak_bytes": peak_bytes()}).encode())
                file.flush()
            finally:
                os._exit(0)
        _, status = os.waitpid(child, 0)
        file.seek(0)
        data = file.read()
    return dict(json.loads(data)) if data and not status else {"died": status}


def main() -> None:
    """Try the grammars of the given names, ``notation/name`` or ``notation``, and print the results."""
    tools = TOOLS if "--tools" in sys.argv else frozenset[str]()
    before = slowness()
    import structgen.cli.automaton_drawing
    import structgen.engine.analysis.uniform_sampling
    import structgen.frontends.convert  # noqa: F401  # once for all

    _vocabulary()
    for notation in NOTATIONS:
        read(notation, 'root ::= "a"' if notation.endswith("bnf") else 'start: "a"?')
    for argument in sys.argv[1:]:
        notation, _, wanted = argument.partition("/")
        if notation not in NOTATIONS:
            continue
        for name, text in _library(notation):
            is_heavy = len(text) > LARGE or name in HEAVY
            if wanted in ("", name, "*heavy" if is_heavy else "*light"):
                found = _alone(notation, name, text, tools)
                found["slowness"] = slowness() if is_heavy else before
                sys.stdout.write(json.dumps(found) + "\n")
                sys.stdout.flush()


if __name__ == "__main__":
    main()

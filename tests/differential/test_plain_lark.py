"""The native reader of plain Lark grammars gives the same terms as the reader in Python."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any, Final

import pytest
from lark_reference import LEFT_RECURSIVE
from structgen_kernels import _native

from structgen.engine import Vocabulary, compile
from structgen.errors import UnsatisfiableGrammar
from structgen.frontends.grammar_source import GrammarSource
from structgen.frontends.lark import _built, lark, read_simple
from structgen.frontends.lark.library import builtin_texts
from structgen.grammar.flattening import flatten
from structgen.grammar.left_recursion import remove_left_recursion
from structgen.grammar.limits import Limits
from structgen.grammar.nodes import Grammar
from structgen.grammar.nodes.description import Described

GRAMMARS: Final = sorted((Path(__file__).resolve().parents[2] / "grammars").glob("*/grammar.lark"))
_LITERAL, _BYTES, _CHARS, _CALL, _SET_RULE = 0, 1, 2, 12, 13  # kinds of instructions, as program.h has them
_LIMITS: Final = Limits()
_VOCABULARY: Final = Vocabulary([bytes([byte]) for byte in range(256)], eos=())


def terms_of(grammar: Grammar) -> tuple[int, dict[str, int]]:
    """The instructions of a flattened grammar and of its rules, by name; equal terms have equal numbers."""
    flat = flatten(grammar, {}, _VOCABULARY, _LIMITS.grammar_nodes)
    numbers: list[int] = []
    bodies: dict[str, int] = {}
    for kind, decoded, operands, low, high, required in flat.instructions:
        key: object
        if kind in (_LITERAL, _BYTES, _CHARS):
            key = (kind, decoded, operands if kind == _LITERAL else tuple(operands))
        elif kind == _CALL:
            key = (kind, flat.rules[low])
        else:
            key = (kind, decoded, tuple(numbers[one] for one in operands), low, high, required)
        if kind == _SET_RULE:
            bodies[flat.rules[low]] = numbers[operands[0]]
        numbers.append(_KNOWN.setdefault(key, len(_KNOWN)))
    return numbers[flat.result], bodies


_KNOWN: Final[dict[object, int]] = {}


# The native reader reads only plain regexps: the reader in Python joins the parts of others with their neighbours.
_ALONE: Final = _native.LarkReader(builtin_texts, lambda _: None)


def term_of(text: str) -> Grammar:
    """The grammar as the reader in Python gives it."""
    made = _built(GrammarSource(text), "start", "any", None, None, _LIMITS)
    assert isinstance(made, Described)
    return made.item


class _Nothing:
    """Fails if anything asks for the term."""

    def item(self) -> Any:
        raise AssertionError

    description = item


def assert_references(text: str) -> bool:
    """Compare the two readers, term by term and rule by rule; return whether the native one read the grammar."""
    if read_simple(text, "start", _LIMITS) is None:
        return False
    rewritten = remove_left_recursion(term_of(text))
    program = _ALONE.read(text, "start", _LIMITS.grammar_nodes, _LIMITS.nesting)
    if program is not None:
        assert terms_of(Described.deferred(program, _Nothing())) == terms_of(rewritten), text
    else:
        assert_same_walks(text, rewritten)
    return True


def assert_same_walks(text: str, reference: Grammar) -> None:
    """Compare the bytes that are allowed on random walks."""
    rng = random.Random(text)
    try:
        matchers = [compile(grammar, _VOCABULARY).matcher() for grammar in (lark(text), reference)]
    except UnsatisfiableGrammar:
        with pytest.raises(UnsatisfiableGrammar):
            compile(reference, _VOCABULARY)
        return
    for _ in range(20):
        allowed = [[byte for byte in range(256) if matcher.validate([byte])] for matcher in matchers]
        assert allowed[0] == allowed[1], text
        assert matchers[0].is_accepting == matchers[1].is_accepting, text
        if not allowed[0]:
            break
        byte = rng.choice(allowed[0])
        assert all(matcher.accept(byte) for matcher in matchers)


@pytest.mark.parametrize("path", GRAMMARS, ids=lambda path: path.parent.name)
def test_grammar_library(path: Path) -> None:
    """Both readers read the grammars of the library alike."""
    assert_references(path.read_text("utf-8"))


def test_most_of_the_library_is_plain() -> None:
    """At least the grammars that the native reader was made for are plain."""
    found = {
        path.parent.name for path in GRAMMARS if read_simple(path.read_text("utf-8"), "start", _LIMITS) is not None
    }
    assert found >= {"arithmetic", "cpp", "csv", "json", "smiles", "sql_select"}


CASES = [
    # rules and operators
    'start: "a" | b*\nb: ("c" "d")+ ["e"] | "f"~3 | "g"~1..2 | "h"?',
    "start: | a\na: ",
    '?start: _a | b -> c\n_a.2: "x"\n!b.-1: A "y"\nA.5: "x"',
    'start: a // one\n  | b # two\n\n// three\na: "x"\n\n\nb: "y"\n// end',
    'start: (a | (b | [c]) "d")*\na: "1"\nb: "2"\nc: "3"',
    "start: " + " ".join(f'"{i}" x' for i in range(40)) + '\nx: "y"',
    "start: " + " | ".join(f'"{i}"' for i in range(40)) + ' | (x | "u")\nx: "y" | x',
    'start: "a" "b" ("c" "d" x) "e" "f"\nx: "' + "long" * 20 + '" "' + "longer" * 20 + '"',
    # left recursion
    *LEFT_RECURSIVE,
    's.after.s: "x"',
    'start: a a a\na: b? c "x" | \nb: a "y" | c\nc: b? "z" | a',
    # terminals and regexps
    'start: A*\nA: B | "y" B\nB: "x"~2 | "z"? | ["w"]',
    r'start: /a\/b/ /[^"\\\x00-\x1f]+/ /\"\\"/ /[\]\-a]/ /[]a-]/ /a{2}b{3,}c{1,4}d{1}e{0}/',
    r"start: /(?:a|b|)c/ /(ab)+(cd)?/ /(a+)+/ /((a?)+)*/ /a||b/ /()/ /()a/",
    r"start: /./ /.+/s /[^\n]/ /\./ /\u00e9[\u00e0-\u00fc]/ /[\ud7ff-\ue000]/ /é\x41\x2a/ /\x2b/",
    r'start: "\n\t\"\\" "\\n" "\x41\u00e9" "\/" "\d" "it' + "'" + r's" "a\'" /it' + "'" + r"s\'/",
    'start: "a".."z" "\\x00".."\\uffff" "é".."ü"',
    r"start: /[a-z]+?/ | /x*+/",
    'start: "ab"i /c+/i /(?i)d/ /(?i:e)f/ /a # b\n c/x /\\d\\w\\s/ /g$/m',
    # what is ignored
    'start: A "b" c\nc: "d" | A\nA: "x"\n%ignore " "\n%ignore /#[^\\n]*/',
    'start: "x"\n%ignore WS\nWS: (" " | /\\n/)+',
    'start: "x"\nWS: " "~1..3\n%ignore WS | "t"',
    # templates
    'start: pair{"x", "y"}\npair{a, b}: a b | b a',
    'start: some{A} some{"y"}\nsome{t}: t | some{t} t\nA: "xy"',
    'start: two{two{"x"}} two{"a".."c"} two{/r/}\ntwo{t}: t t',
    'start: t{A, b}\nt{x, y}: x u{y} | y\nu{x}: x "," x\nb: "b"\nA: "a"\n%ignore " "',
    # names from the library
    "start: INT WORD\n%import common.INT\n%import common.WORD",
    "start: N (ESCAPED_STRING | N)\n%import common.SIGNED_NUMBER -> N\n%import common (ESCAPED_STRING, INT)",
    "start: CNAME\n%import common (CNAME, WS)\n%ignore WS",
]


@pytest.mark.parametrize("text", CASES, ids=range(len(CASES)))
def test_cases(text: str) -> None:
    """Texts that need each part of the reader are read alike."""
    assert_references(text)


def test_leaves() -> None:
    """The Python side reads each regexp that is not plain, once for all grammars."""
    text = 'start: ("ab"i /c+/i)+ D /e*/i start | "f"\nD: "g"? /(?i:h|)/'
    assert _ALONE.read(text, "start", _LIMITS.grammar_nodes, _LIMITS.nesting) is None
    assert assert_references(text)
    matcher = compile(lark(text), _VOCABULARY).matcher()
    assert matcher.accept_bytes(b"aBccABCghEf") == 11
    assert matcher.is_accepting


NOT_PLAIN = [
    "start: a",
    'start: A\nA: A "x"',
    'start: "a',
    'start: "a" )',
    'start: "a"\nstart: "b"',
    'start: t{"x"}',
    't{a, a}: "x"\nstart: "y"',
    "start: /(/",
    "start: /a(?=b)/",
    "start: /a.*?b/",
    'start: ""',
    "start: common__INT\n%import common.NOTHING",
    "%import .file.A\nstart: A",
    "%declare A\nstart: A",
    "start: /a\nb/",
    'start: "a"~2..1',
    'start: "b".."a"',
    'a: "x"',
    "START: /x/",
    'start: "x" -> "y"',
    'start: X\nX: "x" -> y',
    'start: X\nX: y\ny: "x"',
    'start: "\ud800"',
    "start: " + "(" * 100 + '"x"' + ")" * 100,
    "start: f{A}\nf{t}: f{f{t}}\nA: /x/",
]


@pytest.mark.parametrize("text", NOT_PLAIN, ids=range(len(NOT_PLAIN)))
def test_left_to_the_other_reader(text: str) -> None:
    """The native reader leaves wrong and unusual grammars alone, so that the other reader reports the error."""
    assert read_simple(text, "start", _LIMITS) is None


def random_grammar(rng: random.Random) -> str:
    """A grammar with rules, templates, terminals and ignored text, mostly left-recursive."""
    rules = [f"r{i}" for i in range(rng.randint(1, 5))]
    terminals = [f"T{i}" for i in range(rng.randint(1, 3))]
    template = rng.random() < 0.3

    def value(depth: int) -> str:
        kind = rng.randrange(10)
        if kind < 4:
            return rng.choice([*rules, "start"])
        if kind < 6:
            return rng.choice(terminals)
        if kind == 6:
            return rng.choice(['"a".."c"', "/[^x]/", r"/a|b+/", '"x"i'])
        if kind == 7 and template and depth:
            return f"t{{{value(depth - 1)}, {value(depth - 1)}}}"
        return rng.choice(['"x"', '"y"', '"xy"', '"z"'])

    def expression(depth: int) -> str:
        kind = rng.randrange(10 if depth else 4)
        if kind < 4:
            return value(1)
        items = [expression(depth - 1) for _ in range(rng.randint(0 if kind == 4 else 1, 3))]
        if kind < 7:
            return " ".join(items)
        if kind == 7:
            return f"({' | '.join(items)})"
        return rng.choice([f"[{items[0]}]", f"({items[0]}){rng.choice(['?', '*', '+', '~2', '~0..2', '~0', '~1'])}"])

    def terminal(index: int) -> str:
        inner = [f"T{i}" for i in range(index + 1, len(terminals))] + ['"u"', "/[v-w]+/", r"/(b|c){1,2}d?/", '"p".."q"']
        items = [rng.choice(inner) + rng.choice(["", "", "?", "*", "~2"]) for _ in range(rng.randint(1, 3))]
        return f"T{index}: " + rng.choice([" ", " | "]).join(items)

    lines = ["start: " + " | ".join(expression(2) for _ in range(rng.randint(1, 3)))]
    lines += [f"{name}: " + " | ".join(expression(2) for _ in range(rng.randint(1, 3))) for name in rules]
    lines += [terminal(index) for index in range(len(terminals))]
    lines += ["t{m, n}: m n | n | t{n, n} m | start" if rng.random() < 0.5 else "t{m, n}: [m] (n m)*"] * template
    lines += rng.choice([[], [], ['%ignore " "'], ["%ignore T0"], ["%ignore /s+/"]])
    rng.shuffle(lines)
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("seed", range(6))
def test_random_grammars(seed: int) -> None:
    """Several hundred random grammars are read alike, nearly all of them natively."""
    rng = random.Random(seed)
    taken = 0
    for _ in range(100):
        text = random_grammar(rng)
        taken += assert_references(text)
    assert taken > 90


def test_texts_with_errors() -> None:
    """The native reader accepts no text that the other reader refuses, which would hide an error."""
    rng = random.Random(5)
    bases = [path.read_text("utf-8") for path in GRAMMARS]
    bases += [
        '!?a.2{x, y}: [x y]~1..2 "s".."t" | -> b\n  | (A)?\n%import common (A, b)\nstart: a{"x", /y\\/[^]a]/}\n',
        *CASES,
    ]
    taken = 0
    for _ in range(1_500):
        text = rng.choice(bases)
        for _ in range(rng.randint(1, 2)):
            start = rng.randrange(len(text))
            end = min(len(text), start + rng.randint(0, 6))
            piece = rng.choice(["", text[start:end] * 2, rng.choice('|:"()[]{}~/?*+.\n ->%aA1\\^-&i')])
            text = text[:start] + piece + text[end:]
        taken += assert_references(text)
    assert taken > 200


def test_the_term_is_that_of_the_other_reader() -> None:
    """Grammars that are printed, described or combined use the term of the other reader."""
    text = 'start: start "x" | "y"\n'
    grammar = lark(text)
    assert isinstance(grammar, Described)
    assert isinstance(grammar.plain, type(read_simple(text, "start", _LIMITS)))
    assert grammar.item == term_of(text)
    assert [entry.keyword for entry in grammar.description.entries] == ["rule start"]
    both = compile(grammar + "!" + grammar, _VOCABULARY).matcher()
    assert both.accept_bytes(b"yxx!yx") == 6
    assert both.is_accepting


@pytest.mark.parametrize("rule", ['r{0}: "a" r{1} | "b"', 'r{0}: r{1} "a" | "b"', 'r{0}: "a"? r{1}'])
def test_many_rules(rule: str) -> None:
    """Ten thousand rules, in one left-recursive component or in none, are read in linear time."""
    last = "r0" if "?" not in rule else '"z"'
    text = "start: r0\n" + "\n".join(rule.format(i, i + 1) for i in range(10_000)) + f'\nr10000: "n" | {last} "m"'
    program = read_simple(text, "start", _LIMITS)
    assert program is not None
    assert len(program.rules) >= 10_000

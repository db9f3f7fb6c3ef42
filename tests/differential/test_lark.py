"""Lark grammars against Lark itself: the Earley parser with the lexer that tries every division into terminals."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import lark as peer
import pytest
from lark.load_grammar import find_grammar_errors
from lark_reference import LEFT_RECURSIVE, lark_accepts

from structgen.errors import GrammarSyntaxError
from structgen.frontends.grammar_source import GrammarSource
from structgen.frontends.lark import lark
from structgen.frontends.lark.syntax import parse
from structgen.grammar.left_recursion import remove_left_recursion
from structgen.grammar.limits import Limits
from structgen.testing.small_scope import language

GRAMMARS = Path(__file__).resolve().parents[2] / "grammars"
FOLDERS = [GRAMMARS / name for name in ("arithmetic", "cpp", "csv", "json", "smiles", "sql_select")]


def earley(text: str, **options: object) -> peer.Lark:
    """Lark's most general parser; it returns a forest and not a tree, since trees of cyclic grammars are infinite."""
    return peer.Lark(text, parser="earley", lexer="dynamic_complete", ambiguity="forest", **options)


def texts(alphabet: str, max_length: int) -> Iterator[str]:
    for length in range(max_length + 1):
        yield from map("".join, product(alphabet, repeat=length))


def assert_same(text: str, alphabet: str = "xy", max_length: int = 5) -> int:
    """Compare all strings up to a length; return how many are accepted."""
    parser = earley(text)
    expected = {word.encode() for word in texts(alphabet, max_length) if lark_accepts(parser, word)}
    grammar = lark(text)
    assert language(grammar, max_length, alphabet.encode()) == expected, text
    rewritten = remove_left_recursion(grammar)
    assert language(rewritten, max_length, alphabet.encode()) == expected, text
    return len(expected)


SMALL = [
    # left recursion: direct, indirect, hidden, cyclic, and in every operator
    *LEFT_RECURSIVE,
    # ambiguity
    'start: a | b\na: "x"+\nb: "x" b | "x"',
    'start: A+\nA: "x" | "xy" | "yx"',
    'start: A B\nA: "x"+\nB: "x"* "y"',
    'start: "x"* "x"* "y"?',
    # operators and counts
    'start: "x"~3 | "y"~1..3',
    'start: ("x" | "y" "y")~2..3 ["x"]',
    'start: "x"? "y"* "x"+',
    'start: [["x"] "y"] "x"',
    # terminals
    'start: A*\nA: B | "y" B\nB: "x"~2',
    'start: "X"i "y"i',
    'start: "x".."y" "x"',
    "start: /x[^x]/ | /y{2,3}/",
    "start: /X(?#c)y/i",
    'start: /x # one\n y/x "x"',
    "start: A A\nA: /x.*?y/",
    'start: A "y"\nA: /x.*?y(x|yy)?/',
    'start: A\nA: "x" /[xy]+?/ "yx"',
    "start: A\nA: /(x.*?y|y.*?x)/",
    'start: A "y"\nA: /x{1,2}?y/ | /y??xy/',
    # what is ignored
    'start: "x" "x"\n%ignore "y"',
    'start: A B?\nA: "x"+\nB: "x"\n%ignore /y/',
    'start: a*\na: "x" | "xy"\n%ignore "y"',
    'start: \n%ignore "y"',
    'start: "x" | \n%ignore "y"\n%ignore "x" "x"',
    'start: start "x" | "x"\nY: "y"\n%ignore Y',
    # templates
    'start: pair{"x", "y"}\npair{a, b}: a b | b a',
    'start: some{A} some{"y"}\nsome{t}: t | some{t} t\nA: "xy"',
    'start: two{two{"x"}}\ntwo{t}: t t',
    # names, modifiers, aliases, priorities
    '?start: _a | b -> c\n_a.2: "x"\n!b.-1: A "y"\nA.5: "x"',
    'start: a // one\n  | b # two\n\n// three\na: "x"\nb: \\\n "y"',
]


@pytest.mark.parametrize("text", SMALL)
def test_small_grammars(text: str) -> None:
    """Lark accepts the same strings, among all strings of up to five characters."""
    assert_same(text)


@pytest.mark.parametrize("lexer", ["basic", "contextual"])
def test_longest_match_finds_nothing_more(lexer: str) -> None:
    """Every string that the LALR parser accepts belongs to the language; grammars that are not LALR(1) are left out."""
    found = compared = 0
    for text in SMALL:
        try:
            parser = peer.Lark(text, parser="lalr", lexer=lexer)
        except (peer.exceptions.LarkError, AttributeError):  # the latter is a fault of Lark's check of regexps
            continue
        compared += 1
        accepted = {word.encode() for word in texts("xy", 5) if lark_accepts(parser, word)}
        assert accepted <= language(lark(text), 5, b"xy"), text
        found += len(accepted)
    assert compared > 20
    assert found > 100


def random_grammar(rng: random.Random) -> str:
    """A grammar text of three rules over two terminals."""

    def expression(depth: int) -> str:
        kind = rng.randrange(9 if depth else 4)
        if kind < 2:
            return rng.choice(["a", "b", "start"])
        if kind < 4:
            return rng.choice(['"x"', '"y"', '"xy"', "A", "B"])
        items = [expression(depth - 1) for _ in range(rng.randint(1, 3))]
        if kind < 7:
            return " ".join(items)
        if kind == 7:
            return f"({' | '.join(items)})"
        operator = rng.choice(["?", "*", "+", "~2", "~0..2"])
        return rng.choice([f"[{items[0]}]", f"({items[0]}){operator}"])

    def rule() -> str:
        return " | ".join(dict.fromkeys(expression(2) for _ in range(rng.randint(1, 3))))

    terminals = rng.choice(['A: "x"\nB: "y"', 'A: "x"+\nB: "yx"', 'A: /[xy]/\nB: "y" "y"?'])
    ignored = rng.choice(["", "", '\n%ignore " "', "\n%ignore /y/"])
    return f"start: {rule()}\na: {rule()}\nb: {rule()}\n{terminals}{ignored}\n"


@pytest.mark.parametrize("seed", range(8))
def test_random_grammars(seed: int) -> None:
    """Lark accepts the same strings for seeded random grammars, most of them left-recursive and ambiguous."""
    rng = random.Random(seed)
    compared = members = 0
    while compared < 15:
        text = random_grammar(rng)
        try:
            earley(text)
        except peer.exceptions.GrammarError:  # Lark refuses alternatives that become equal
            continue
        members += assert_same(text, "xy " if '" "' in text else "xy", 4)
        compared += 1
    assert members > 50


@pytest.mark.parametrize(
    "name", ["INT", "SIGNED_NUMBER", "ESCAPED_STRING", "CNAME", "NEWLINE", "C_COMMENT", "SH_COMMENT"]
)
def test_common_terminals(name: str) -> None:
    """The terminals of Lark's library agree, each over the characters that matter to it."""
    alphabet = {"INT": "1a", "SIGNED_NUMBER": "1.e-", "ESCAPED_STRING": '"\\a\n', "CNAME": "a_1-", "NEWLINE": "\r\n "}
    grammar = f"start: {name}\n%import common.{name}"
    assert assert_same(grammar, alphabet.get(name, "/*#\n"), 6 if name == "C_COMMENT" else 5) > 0


def test_the_library_of_lark_is_read_whole() -> None:
    """All of `common` can be imported, except what is only part of a terminal with a look-behind."""
    names = [line.split(":")[0].strip() for line in _common().splitlines() if ":" in line and line[:1].isalpha()]
    for name in names:
        assert_same(f"start: {name}\n%import common.{name}", "a1", 2)
    assert len(names) > 20


def _common() -> str:
    return Path(peer.__file__).with_name("grammars").joinpath("common.lark").read_text()


@pytest.mark.parametrize(
    ("text", "member", "options"),
    [
        # The LALR lexers take the longest match first; here any division counts.
        ('start: "select" NAME\nNAME: /[a-z]+/', "selectx", {"parser": "lalr", "lexer": "basic"}),
        ('start: NAME "end"\nNAME: /[a-z]+/', "xend", {"parser": "lalr"}),
        ('start: A "x"\nA: "x"+', "xx", {"parser": "lalr", "lexer": "basic"}),
        # A regexp is the set of texts that it matches, in whatever order Python would try its alternatives.
        ("start: /x|xy/", "xy", {"parser": "earley", "lexer": "dynamic_complete"}),
        # Part of what could be ignored may belong to the next terminal.
        ('start: "x" " y"\n%ignore / +/', "x   y", {"parser": "earley", "lexer": "dynamic_complete"}),
    ],
)
def test_documented_differences(text: str, member: str, options: dict[str, str]) -> None:
    """Strings that `docs/reference/lark.md` names as refused by one of Lark's parsers are accepted here."""
    assert not lark_accepts(peer.Lark(text, **options), member)
    assert member.encode() in language(lark(text), len(member), member.encode())


@pytest.mark.parametrize("count", [90, pytest.param(300, marks=pytest.mark.nightly)])
def test_syntax_is_read_as_lark_reads_it(count: int) -> None:
    """Grammar files with pieces left out, doubled or swapped are syntax errors here iff they are for Lark."""
    rng = random.Random(11)
    bases = [(folder / "grammar.lark").read_text("utf-8") for folder in FOLDERS]
    bases.append('!?a.2{x, y}: [x y]~1..2 "s"i.."t" | -> b\n  | (A)?\n%import .f (A, b)\n%import c.D -> E\n')
    bases.append('%ignore A | /x\\/y/imsx\n%declare A b\n%override a: "x"\n%extend T.3: "\\"" # c\nA: /(?x)[/]/ // d\n')
    outcomes = {True: 0, False: 0}
    for _ in range(count):
        text = rng.choice(bases)
        for _ in range(rng.randint(1, 3)):
            start = rng.randrange(len(text))
            end = min(len(text), start + rng.randint(0, 8))
            text = (
                text[:start]
                + rng.choice(["", text[start:end] * 2, rng.choice('|:"()[]{}~/?*+.\n ->%aA1')])
                + text[end:]
            )
        try:
            is_read = not find_grammar_errors(text)
        except (peer.exceptions.LarkError, IndexError, AttributeError, TypeError, AssertionError):
            is_read = False
        try:
            parse(GrammarSource(text), Limits())
            reads = True
        except GrammarSyntaxError:
            reads = False
        assert reads is is_read, text
        outcomes[is_read] += 1
    assert min(outcomes.values()) > count // 6

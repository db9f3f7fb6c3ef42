"""Blocks of lines: every short text against Lark's parser with its indenter, and against a stack of widths."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Iterator
from functools import cache
from typing import ClassVar

import lark as peer
import pytest
from lark.indenter import Indenter

from structgen.engine import Constraint, Vocabulary, compile
from structgen.errors import GrammarError, GrammarSyntaxError, LimitExceeded, UnsupportedFeature
from structgen.frontends.indentation import NEWLINE, Indentation, block, indented
from structgen.frontends.lark import lark
from structgen.grammar.limits import Limits
from structgen.grammar.nodes import Grammar, Reference, Rules, choice, sequence

BYTES = Vocabulary([*(bytes([byte]) for byte in range(256)), b""], eos=[256])

TREE = r"""
start: (_NL | tree)*
tree: "a" _NL [_INDENT tree+ _DEDENT]
%declare _INDENT _DEDENT
%ignore " "
_NL: /(\r?\n[\t ]*)+/
"""
STATEMENTS = r"""
start: statement*
statement: value _NL | "i" value ":" block
block: _NL _INDENT statement+ _DEDENT
value: "a" | "(" [value ("," value)*] ")"
%declare _INDENT _DEDENT
%ignore " "
_NL: /(\r?\n[\t ]*)+/
"""
INNER = r"""
start: statement*
statement: value _NL "b"? | "i" value ":" block
block: _NL _INDENT statement+ _DEDENT
value: "a" | "(" [statement] ")"
%declare _INDENT _DEDENT
_NL: /(\r?\n[\t ]*)+/
"""
COMMENTS = r"""
start: statement*
statement: "a" _NL | "i" _NL _INDENT statement+ _DEDENT
%declare _INDENT _DEDENT
%ignore / +/
_NL: /(#[^\n]*)?\n([\t ]*(#[^\n]*)?\n)*[\t ]*/
"""


class Blocks(Indenter):
    NL_type = "_NL"
    OPEN_PAREN_types: ClassVar[list[str]] = ["LPAR"]
    CLOSE_PAREN_types: ClassVar[list[str]] = ["RPAR"]
    INDENT_type = "_INDENT"
    DEDENT_type = "_DEDENT"
    tab_len = 8


class Peer:
    """Lark's LALR parser with an indenter."""

    def __init__(self, text: str) -> None:
        self.parser = peer.Lark(text, parser="lalr", lexer="contextual", postlex=Blocks())

    def accepts(self, text: str) -> bool:
        try:
            self.parser.parse(text)
        except (peer.exceptions.LarkError, peer.indenter.DedentError):
            return False
        return True


def accepts(constraint: Constraint, text: str) -> bool:
    matcher = constraint.matcher()
    data = text.encode()
    return matcher.accept_bytes(data) == len(data) and matcher.is_accepting


@cache
def ours(text: str) -> Constraint:
    return compile(lark(text, indentation=Indentation(step=(1, 20), max_width=20)), BYTES)


def texts(alphabet: str, longest: int) -> Iterator[str]:
    for size in range(longest + 1):
        for letters in itertools.product(alphabet, repeat=size):
            yield "".join(letters)


def is_comparable(text: str) -> bool:
    """Lark's indenter skips the first line, and reads blanks after the last newline as a line."""
    return not text.startswith(" ") and not text.rpartition("\n")[2].startswith(" ")


def disagreements(grammar: str, cases: Iterable[str]) -> tuple[list[str], int]:
    judge, constraint = Peer(grammar), ours(grammar)
    wrong, members = [], 0
    for text in cases:
        if is_comparable(text):
            verification = judge.accepts(text)
            members += verification
            if verification != accepts(constraint, text):
                wrong.append(text)
    return wrong, members


@pytest.mark.parametrize(
    ("grammar", "alphabet", "longest", "least"),
    [
        (TREE, "a\n ", 7, 60),
        (STATEMENTS, "ai:()\n ", 4, 4),
        (STATEMENTS.replace('("," value)*', "statement*"), "ai()\n", 4, 4),
        (INNER, "ab()\n ", 5, 10),
        (f'{INNER}%ignore " "\n', "ab()\n ", 5, 10),
        (COMMENTS, "ai#\n ", 5, 25),
    ],
    ids=["tree", "statements", "lines between brackets", "nothing ignored", "text after line ends", "comments"],
)
def test_all_short_texts(grammar: str, alphabet: str, longest: int, least: int) -> None:
    """Every text of up to a given length is in the language iff Lark parses it."""
    wrong, members = disagreements(grammar, texts(alphabet, longest))
    assert not wrong
    assert members >= least


def test_a_line_end_that_may_be_left_out() -> None:
    """Without it no block begins."""
    wrong, members = disagreements(TREE.replace('"a" _NL', '"a" _NL?'), (f"{text}\n" for text in texts("a\n ", 5)))
    assert not wrong
    assert members >= 60


@pytest.mark.parametrize(
    ("grammar", "seed"),
    [
        (TREE, "a\n a\n  a\n\n  a\n a\na\n"),
        (STATEMENTS, "i a:\n i (a, a):\n   a\n   a\n (a\n)\na\n"),
        (STATEMENTS, "i(\n a\n,a):\n  i a:\n     a\n  a\na\n"),
        (COMMENTS, "i #a\n  # a\n  a # i\n#\n\n  i\n   a\n   \na\n"),
    ],
)
def test_mutated_texts(grammar: str, seed: str) -> None:
    """Longer texts, a few characters away from strings of the language, get Lark's verdict."""
    rng = random.Random(7)
    alphabet = "".join(sorted(set(seed)))
    cases = {seed}
    while len(cases) < 700:
        text = list(rng.choice([seed, seed, rng.choice(sorted(cases))]))
        for _ in range(rng.randint(1, 3)):
            place = rng.randrange(len(text) + 1)
            text[place : place + rng.randint(0, 1)] = rng.choice(["", rng.choice(alphabet)])
        cases.add("".join(text))
    wrong, members = disagreements(grammar, sorted(cases))
    assert not wrong
    assert members >= 20


WORDS = r"""
start: value (IF value)*
value: NAME | "(" start ")" | NOT value
IF: /if\b/
NOT: /n\b/
NAME: /(?!(?:if|n)\b)[fin]+\b/
%ignore " "
"""


@pytest.mark.exhaustive
def test_words_do_not_run_together() -> None:
    """Boundaries at the ends of terminals are those that Python's ``re`` finds in the text."""
    parser = peer.Lark(WORDS, parser="lalr", lexer="contextual")
    constraint = compile(lark(WORDS), BYTES)
    members = 0
    for text in texts("fin( )", 6):
        try:
            parser.parse(text)
            verification = True
        except peer.exceptions.LarkError:
            verification = False
        members += verification
        assert accepts(constraint, text) is verification, text
    assert members > 500


def test_guard_of_a_character() -> None:
    """A look-ahead at the end of a regexp holds for the text after the terminal, whichever that is."""
    constraint = compile(lark('start: (A | B | "." | ",")*\nA: /0+(?![.x])/\nB: "x"\n%ignore " "'), BYTES)
    for text in texts("0x. ,", 6):
        bad = any(text[i : i + 2] in ("0.", "0x") for i in range(len(text)))
        assert accepts(constraint, text) is not bad, text


def test_a_guard_beside_json_that_is_recursive() -> None:
    """What ``%json`` stands for has rules of its own."""
    constraint = compile(lark('start: WORD ("b" | "c") %json {"type": "array"} | %json {} WORD\nWORD: /a(?!b)/'), BYTES)
    for value in ("{}", '{"x": 1, "y": [{"z": []}]}', "[[1], {}]", "3", "[[1], {]"):
        is_json = value != "[[1], {]"
        assert accepts(constraint, f"{value}a") == is_json
        assert accepts(constraint, f"ac{value}") == (is_json and value.startswith("["))
        assert not accepts(constraint, f"{value}ab")
        assert not accepts(constraint, f"ab{value}")


def test_an_empty_block_is_no_line() -> None:
    """It was an error of our own."""
    constraint = compile(lark('start: ("a" _NL | _INDENT _DEDENT)*\n_NL: /\\n */\n%declare _INDENT _DEDENT'), BYTES)
    assert accepts(constraint, "a\na\n")
    assert not accepts(constraint, "a\n a\n")


def lines_of(text: str, widths: Iterable[int]) -> bool:
    """Whether each line is ``p``, or ``i`` before a block one step deeper, by a stack of widths."""
    if not text or not text.endswith("\n"):
        return False
    steps = set(widths)
    stack, needs_block = [0], False
    for line in text[:-1].split("\n"):
        width = len(line) - len(line.lstrip(" "))
        if not line.strip(" "):
            continue
        if needs_block:
            if width - stack[-1] not in steps:
                return False
            stack.append(width)
        else:
            while stack and stack[-1] > width:
                stack.pop()
            if not stack or stack[-1] != width:
                return False
        if line[width:] not in ("p", "i"):
            return False
        needs_block = line[width:] == "i"
    return not needs_block


def programs(step: int | tuple[int, int]) -> Grammar:
    line = choice(sequence("p", NEWLINE), sequence("i", block(Reference("line").many(1))))
    return indented(Rules({"line": line}, Reference("line").many(1)), Indentation(step=step, max_width=8))


@pytest.mark.parametrize(("step", "widths"), [(1, [1]), (2, [2]), ((1, 3), [1, 2, 3])])
def test_programs_of_grammars(step: int | tuple[int, int], widths: list[int]) -> None:
    """The combinator gives the texts that a stack of widths accepts; blank lines may stand between."""
    constraint = compile(programs(step), BYTES)
    members = 0
    for text in texts("pi\n ", 7):
        lines = text.split("\n")
        if not lines[0].strip(" "):
            continue  # blank lines follow others
        verification = lines_of(text, widths)
        members += verification
        assert accepts(constraint, text) is verification, text
    assert members > 20


def test_tabs_and_deep_blocks() -> None:
    """Blocks may be as deep as the largest width, and no deeper."""
    line = choice(sequence("p", NEWLINE), sequence("i", block(Reference("line").many(1))))
    rules = Rules({"line": line}, Reference("line").many(1))
    constraint = compile(indented(rules, Indentation(step=1, character="\t", max_width=30)), BYTES)
    for depth, verification in [(1, True), (30, True), (31, False)]:
        text = "".join("\t" * i + "i\n" for i in range(depth)) + "\t" * depth + "p\n"
        assert accepts(constraint, text) is verification


def test_names_and_report() -> None:
    """Variants are numbered after the plain name, and the report says how lines are indented."""
    grammar = lark(TREE, indentation=Indentation(step=2, max_width=4))
    assert "tree.2 = " in str(grammar)
    report = compile(grammar, BYTES).report
    assert ("indentation", "by 2 up to 4 characters") in report.policies
    assert any(entry.keyword == "%declare _INDENT" for entry in report.entries)


def test_declared_blocks_need_no_settings() -> None:
    """A grammar that declares the usual names has the usual indentation."""
    assert lark(STATEMENTS) == lark(STATEMENTS, indentation=Indentation())


@pytest.mark.parametrize(
    ("text", "indentation", "error", "where"),
    [
        (TREE.replace("+ _DEDENT]", "+]"), Indentation(), GrammarSyntaxError, "3:16"),
        (TREE.replace("[_INDENT tree+", "[tree+"), Indentation(), GrammarSyntaxError, "3:22"),
        (STATEMENTS.replace('")"\n', "\n"), Indentation(), GrammarSyntaxError, "5:1"),
        (TREE.replace(r"[\t ]*", ""), Indentation(), GrammarSyntaxError, "6:1"),
        (TREE.replace("_NL", "_END"), Indentation(), GrammarError, "_NL or _NEWLINE"),
        (TREE, Indentation(indent="_IN"), UnsupportedFeature, "3:16"),
        ('start: _IN "a"\n%declare _IN', None, UnsupportedFeature, "1:8"),
        ('start: "x"\n%ignore / (?!b)/', None, UnsupportedFeature, "2:9"),
    ],
)
def test_refused(text: str, indentation: Indentation | None, error: type[Exception], where: str) -> None:
    """A meaningless use is refused with its place."""
    with pytest.raises(error, match=where):
        lark(text, indentation=indentation)


@pytest.mark.parametrize(
    "settings",
    [
        {"step": 0}, {"step": (3, 2)}, {"character": "  "}, {"max_width": -1}, {"max_width": 10_000},
        {"newline": "_NL"}, {"indent": "X", "dedent": "X"}, {"brackets": ("(",)},
    ],
)  # fmt: skip
def test_settings_are_checked(settings: dict[str, object]) -> None:
    """Settings that make no sense are refused."""
    with pytest.raises(ValueError, match=r"^Indentation: "):
        Indentation(**settings)  # type: ignore[arg-type]


def test_limit() -> None:
    """The variants are bounded by the nodes of a grammar."""
    with pytest.raises(LimitExceeded, match="grammar_nodes"):
        lark(STATEMENTS, indentation=Indentation(step=(1, 50), max_width=500), limits=Limits(grammar_nodes=5_000))


def test_no_recursion() -> None:
    """Deep nesting is only data."""
    term = sequence("p", NEWLINE)
    for _ in range(2_000):
        term = choice("q" + NEWLINE, sequence(term, "x" + NEWLINE))
    assert accepts(compile(indented(term), BYTES), "p\nx\nx\n") is False
    assert accepts(compile(indented(term), BYTES), "q\nx\nx\n")

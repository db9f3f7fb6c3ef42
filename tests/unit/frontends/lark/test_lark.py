"""The Lark front end: terms, report, imports, and every error with its place."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path
from typing import Any

import pytest
from machine_load import at_most

from structgen.errors import ArgumentError, GrammarError, GrammarSyntaxError, LimitExceeded, UnsupportedFeature
from structgen.frontends.lark import lark, load
from structgen.grammar.limits import Limits
from structgen.grammar.nodes import Grammar
from structgen.grammar.nodes.description import Described, Status
from structgen.grammar.reader import parse
from structgen.testing.small_scope import language


def described(grammar: Grammar) -> Described:
    assert isinstance(grammar, Described)
    return grammar


def assert_means(grammar: Grammar, text: str) -> None:
    """Compare with a term in the project's own notation."""
    assert described(grammar).item == parse(text)


def test_rules_and_terminals_keep_their_names() -> None:
    """Each becomes a rule; strings are inlined; white space may follow every terminal and start the text."""
    grammar = lark('start: NUMBER ("," NUMBER)*\nNUMBER: /[0-9]/+\n%ignore " "')
    assert_means(
        grammar,
        'rules { start = NUMBER " "* ("," " "* NUMBER " "*)*; NUMBER = ([0-9])+ } in " "* start',
    )


def test_operators() -> None:
    """Every operator of Lark has one of the IR."""
    text = 'rules { start = "a"? "b"* "c"+ "d"{3} "e"{1,2} ("f" | "g")? ("h" | "") } in start'
    assert_means(lark('start: "a"? "b"* "c"+ "d"~3 "e"~1..2 ["f" | "g"] ("h" |)'), text)


def test_terminals_are_inlined_in_terminals() -> None:
    """Nothing is ignored inside a terminal, so its parts are inlined."""
    grammar = lark('start: NAME\nNAME: _LETTER (_LETTER | "0".."9")~2\n_LETTER: "a".."c" | "_"\n%ignore " "')
    letter = '([a-c] | "_")'
    text = f'rules {{ start = NAME " "*; NAME = {letter} ([a-c] | "_" | [0-9]){{2}} }} in " "* start'
    assert_means(grammar, text)


def test_instances_of_templates_are_rules() -> None:
    """Equal arguments give the same rule; names show the arguments."""
    grammar = lark('start: list{A} list{A} list{"b"}\nlist{x}: x ("," x)*\nA: "a"')
    text = (
        'rules { start = <list{A}> <list{A}> <list{"b"}>; <list{A}> = A ("," A)*; A = "a"; '
        '<list{"b"}> = "b" (",b")* } in start'
    )
    assert_means(grammar, text)


def test_left_recursion_stays_in_the_term() -> None:
    """The engine rewrites it; the term is as written."""
    assert_means(lark('start: start "+" "1" | "1"'), 'rules { start = start "+1" | "1" } in start')


def test_case_insensitive_strings_and_flags() -> None:
    """The flags of strings and regexps are Python's."""
    assert language(lark('start: "ab"i'), 2, b"aAbB") == {b"ab", b"aB", b"Ab", b"AB"}
    assert language(lark("start: /a.b/s"), 3, b"ab\n") == {b"aab", b"abb", b"a\nb"}
    assert language(lark("start: /a  b # c/x"), 4, b"ab #c") == {b"ab"}
    assert language(lark("start: /(?i)a/u"), 1, b"aA") == {b"a", b"A"}


def test_groups_only_group() -> None:
    """Lark has no captures, so a named group is a group."""
    assert_means(lark("start: /(?P<n>a|b)c/"), 'rules { start = ("a" | "b") "c" } in start')


def test_escapes_are_those_of_lark() -> None:
    """Backslashes mean what they mean to Lark, in strings and in regexps."""
    assert language(lark(r'start: "\"\\\n\x41\u0042"'), 5, b'"\\\nAB') == {b'"\\\nAB'}
    assert language(lark(r"start: /\/\\\"\x41\./"), 5, b'/\\"A.') == {b'/\\"A.'}
    assert language(lark(r"start: /['\]]/"), 1, b"']\\") == {b"'", b"]"}


def test_the_report_names_every_construct_with_its_place() -> None:
    """Definitions, imports and ignored terminals are enforced; what only shapes the tree is an annotation."""
    grammar = lark('%import common.INT -> N\n?start.2: a -> b\n  | N\n!a: "x"\n%ignore " "\nT.1: "t"\n')
    description = described(grammar).description
    assert description.source == "lark"
    assert [(entry.keyword, entry.where, entry.status) for entry in description.entries] == [
        ("%import common.INT", "1:1", Status.ENFORCED),
        ("rule start", "2:2", Status.ENFORCED),
        ("modifier ?", "2:1", Status.ANNOTATION),
        ("priority 2", "2:8", Status.ANNOTATION),
        ("alias b", "2:16", Status.ANNOTATION),
        ("rule a", "4:2", Status.ENFORCED),
        ("modifier !", "4:1", Status.ANNOTATION),
        ("%ignore", "5:9", Status.ENFORCED),
        ("terminal T", "6:1", Status.ENFORCED),
        ("priority 1", "6:3", Status.ANNOTATION),
    ]


# Imports


def test_imports_from_files(tmp_path: Path) -> None:
    """Relative imports are found beside their file; inner definitions get its name as a prefix."""
    (tmp_path / "inner").mkdir()
    (tmp_path / "main.lark").write_text('%import .inner.pair.pair -> two\nstart: two\n%ignore "-"\n')
    (tmp_path / "inner" / "pair.lark").write_text('pair: item item B\nitem: "a"\n%import .more (B)\n%ignore "never"\n')
    (tmp_path / "inner" / "more.lark").write_text('B: C\nC: "b"\n')
    grammar = load(tmp_path / "main.lark")
    assert_means(
        grammar,
        'rules { start = two; two = pair__item pair__item more__B "-"*; pair__item = "a" "-"*; more__B = "b" } '
        'in "-"* start',
    )
    places = [entry.where for entry in described(grammar).description.entries]
    assert places[:2] == ["1:1", "2:1"]
    assert f"{tmp_path / 'inner' / 'more.lark'}:1:1" in places
    text = (tmp_path / "main.lark").read_text()
    assert lark(text, path=tmp_path / "main.lark") == lark(text, path=tmp_path) == grammar


def test_names_that_meet_stay_apart(tmp_path: Path) -> None:
    """Inner definitions of two files with one name do not collide, nor with the main grammar."""
    for folder, letter in (("x", "a"), ("y", "b")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "f.lark").write_text(f'r: s\ns: "{letter}"\n')
    text = '%import .x.f.r -> p\n%import .y.f.r -> q\nstart: p q f__s\nf__s: "c"\n'
    assert language(lark(text, path=tmp_path), 3, b"abc") == {b"abc"}


@pytest.mark.parametrize(
    ("text", "problem", "remedy"),
    [
        ("start: X\n%import nowhere.X", "Lark has no grammar called 'nowhere'", "common"),
        ("start: X\n%import common.X", "common does not define 'X'", "DIGIT"),
        ("start: X\n%import .file.X", "a relative import in a grammar without a path", "path="),
        ("start: X\n%import common", "nothing is imported from 'common'", "%import common.NAME"),
        ("start: x\n%import common.INT -> x", "cannot be imported as a terminal", ""),
        ("start: INT\nINT: /1/\n%import common.INT", "'INT' is defined more than once", "2:1"),
    ],
)
def test_imports_that_lead_nowhere(text: str, problem: str, remedy: str) -> None:
    """Each error says what was looked for, and what exists."""
    with pytest.raises(GrammarSyntaxError) as caught:
        lark(text)
    assert problem in caught.value.problem
    assert remedy in caught.value.remedy


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    """A missing file, a folder, bytes that are not UTF-8 and a circle of imports are errors of the grammar."""
    with pytest.raises(GrammarError, match="cannot be read; No such file"):
        load(tmp_path / "none.lark")
    # The latter on Windows.
    with pytest.raises(GrammarError, match=r"cannot be read; (Is a directory|Permission denied)"):
        load(tmp_path)
    (tmp_path / "latin.lark").write_bytes(b'start: "\xe9"\n')
    with pytest.raises(GrammarError, match=r"is not UTF-8; byte b'\\xe9' at offset 8"):
        load(tmp_path / "latin.lark")
    with pytest.raises(GrammarError, match="cannot be read"):
        lark("%import .none.X\nstart: X", path=tmp_path)
    (tmp_path / "a.lark").write_text("%import .b.x\nstart: x\n")
    (tmp_path / "b.lark").write_text("%import .a.x\n")
    with pytest.raises(GrammarSyntaxError, match="'x' is imported in a circle"):
        load(tmp_path / "a.lark")
    (tmp_path / "mark.lark").write_bytes(b'\xef\xbb\xbfstart: "a"\r\n     | "b"\r\n')
    assert language(load(tmp_path / "mark.lark"), 1, b"ab") == {b"a", b"b"}


# Errors


@pytest.mark.parametrize(
    ("text", "span", "problem"),
    [
        ("start: (", (8, 8), "unexpected end of the grammar"),
        ("start: )", (7, 8), "unexpected ')'"),
        ("start: x:", (8, 9), "unexpected ':'"),
        ('start "x"\n', (6, 9), "unexpected '\"x\"'"),
        ("start: a~\n", (9, 10), "unexpected end of the line"),
        ('start: "x\n', (7, 8), "a string is not closed on its line"),
        ("start: 'x'\n", (7, 8), 'unexpected character "\'"; write strings in double quotes'),
        ('root ::= "x"\n', (5, 8), "unexpected '::='"),
        ("start: /x\n", (7, 8), "a regexp is not closed"),
        ("start: /x\ny/\n", (7, 12), "a regexp spans several lines"),
        ('start: "\\x4"', (7, 12), "a malformed escape, a NUL or a lone surrogate"),
        ('start: "\\ud800"', (7, 15), "lone surrogate"),
        ("start: /a(b/", (9, 10), "unclosed group"),
        ("start: other", (7, 12), "rule 'other' is not defined"),
        ("start: OTHER", (7, 12), "terminal 'OTHER' is not defined"),
        ("start: A\nA: B", (12, 13), "terminal 'B' is not defined"),
        ('start: A\nA: start "x"', (12, 17), "rule 'start' is used where only terminals are allowed"),
        ('start: A\nA: "x" B\nB: A', (21, 22), "terminal 'A' is recursive"),
        ('start: "x"\nA: A', (14, 15), "terminal 'A' is recursive"),
        ('start: "x"\nstart: "y"', (11, 16), "'start' is defined more than once"),
        ('start: A\nA: "x" -> b', (19, 20), "an alias has no meaning inside a terminal"),
        ('start: "x"~3..2', (14, 15), "the bounds 3..2 contain no count"),
        ('start: "x"~-1', (11, 13), "count -1 is out of range"),
        ('start: "ab".."c"', (7, 11), "the end of a range is not a single character"),
        ('start: "b".."a"', (12, 15), "the range is in the wrong order"),
        ('start: "x"\n%ignore other', (19, 24), "rule 'other' is used where only terminals are allowed"),
        ('start: a{"x"}\na{b, b}: b', (19, 20), "parameter 'b' is given twice"),
        ("start: a\na{b}: b", (7, 8), "template 'a' is used without arguments"),
        ('start: a{"x", "y"}\na{b}: b', (7, 8), "'a' takes 1 arguments, given 2"),
        ('start: b{"x"}', (7, 8), "rule 'b' is not defined"),
        ('start: A\nA: b{"x"}\nb{c}: c', (12, 13), "a template cannot be used inside a terminal"),
    ],
)
def test_errors_have_their_place(text: str, span: tuple[int, int], problem: str) -> None:
    """Each mistake gives one error, at the wrong characters and with line and column."""
    with pytest.raises(GrammarSyntaxError) as caught:
        lark(text)
    assert problem in caught.value.problem
    assert caught.value.span == span
    line = text.count("\n", 0, span[0]) + 1
    column = span[0] - (text.rfind("\n", 0, span[0]) + 1) + 1
    assert f"lark grammar {line}:{column}: " in str(caught.value)


@pytest.mark.parametrize(
    ("text", "feature", "where"),
    [
        ("start: A\n%declare A", "%declare", "1:8"),
        ("start: /a(?=b)/", "assertion", "1:8"),
        ("start: /^a$/", "assertion", "1:8"),
        ("start: /(?<=a)b/", "assertion", "1:8"),
        ("start: /(a)\\1/", "back-reference", "1:12"),
        ("start: /a/l", "flag l", "1:8"),
        ("start: /(ab)*?c/", "lazy repetition", "1:13"),
        ("start: /a*?b*c/", "lazy repetition", "1:10"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(text: str, feature: str, where: str) -> None:
    """Nothing is ignored: each construct is named, with its place and a solution."""
    with pytest.raises(UnsupportedFeature) as caught:
        lark(text)
    assert (caught.value.feature, caught.value.where) == (feature, where)
    assert caught.value.remedy


def test_the_start_rule_must_be_there() -> None:
    """The error for a wrong start names the existing rules; terminals and templates are no rules."""
    with pytest.raises(GrammarError, match="there is no rule called 'start' to start from; it defines other"):
        lark('other: "x"')
    with pytest.raises(GrammarError, match="it defines no rules"):
        lark("")
    for start in ("A", "t"):
        with pytest.raises(GrammarError, match="no rule called"):
            lark('start: "x"\nA: "x"\nt{x}: x', start=start)
    assert language(lark('other: "x"', start="other"), 1, b"x") == {b"x"}


# Limits


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        ("start: " + "(" * 100_000 + '"x"' + ")" * 100_000, "nesting"),
        ("start: " + "[" * 100_000, "nesting"),
        ("start: a{start}\na{x}: x | a{b{x}}\nb{x}: x", "grammar_nodes"),
        (
            'start: a0{"x"}\nb{x}: x\nc{x}: x\na30{x}: x\n'
            + "".join(f"a{i}{{x}}: a{i + 1}{{b{{x}}}} a{i + 1}{{c{{x}}}}\n" for i in range(30)),
            "grammar_nodes",
        ),
        ("x" * (17 << 20), "source_bytes"),
    ],
)
def test_limits(text: str, limit: str) -> None:
    """Grammar bombs of every kind reach a limit quickly."""
    with at_most(10), pytest.raises(LimitExceeded) as caught:
        lark(text)
    assert caught.value.limit == limit


def test_nesting_of_templates_is_bounded() -> None:
    """A template that uses itself with ever new arguments reaches the limit of nesting."""
    with pytest.raises(LimitExceeded) as caught:
        lark("start: a{start}\na{x}: x | a{b{x}}\nb{x}: x", limits=Limits(nesting=20))
    assert caught.value.limit == "nesting"


@pytest.mark.parametrize(
    "text",
    [
        "start: r0\n" + "".join(f'r{i}: r{i + 1} "x" | "y"\n' for i in range(10_000)) + "r10000: start",
        "start: T0\n" + "".join(f"T{i}: T{i + 1} T{i + 1}\n" for i in range(5_000)) + 'T5000: "x"',
        'start: "' + "a" * 1_000_000 + '"',
        "start: /" + "a" * 1_000_000 + "/",
        "start: " + "(" * 1_900 + '"x"' + ")" * 1_900,
        'start: "x"\n' + " \n" * 500_000,
        'start: "x"' + "// c\n" * 200_000,
    ],
)
def test_large_grammars_are_read(text: str) -> None:
    """Long and deep grammars are read without recursion."""
    with at_most(10):
        assert isinstance(lark(text, limits=Limits(steps=10**8)), Described)


@pytest.mark.parametrize(
    "text",
    [
        "%" * 1_000_000,
        '"' * 1_000_001,
        'start: "' + "\\" * 999_999,
        "a" * 1_000_000,
        "start: /" + "[" * 300_000 + "a*?/",
    ],
)
def test_large_nonsense_is_refused_at_once(text: str) -> None:
    """No regular expression of the reader takes more than linear time."""
    with at_most(5), pytest.raises(GrammarError):
        lark(text)


def test_examples_in_docstrings() -> None:
    """The examples are right."""
    result = doctest.testmod(importlib.import_module("structgen.frontends.lark"))
    assert result.attempted > 2
    assert result.failed == 0


@pytest.mark.parametrize("text", [3, None, b'start: "a"', Path("sql.lark"), "sql.lark", "grammars/sql/grammar.lark"])
def test_what_is_no_text_is_refused(text: Any) -> None:
    """Other values, and the path of a file, which ``load`` reads."""
    with pytest.raises(ArgumentError, match="expected the text of a grammar") as caught:
        lark(text)
    assert ("sg.load" in caught.value.remedy) == isinstance(text, (str, Path))

"""The contextual lexer of Lark grammars: terms, names, report, and every error with its place."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import lark as peer
import pytest

from structgen.engine import Vocabulary, compile
from structgen.errors import GrammarError, GrammarSyntaxError, LimitExceeded, UnsatisfiableGrammar, UnsupportedFeature
from structgen.frontends.lark import lark
from structgen.frontends.lark.contextual.graph import equivalence_classes, paths
from structgen.grammar.limits import PYTHON_STEP, Limits, counted, steps_left, steps_since
from structgen.grammar.nodes import literal
from structgen.grammar.nodes.description import Described, Status
from structgen.grammar.reader import parse

BYTES = Vocabulary([bytes([byte]) for byte in range(256)] + [b"<eos>"], eos=[256])


def contextual(text: str, **options: object) -> Described:
    grammar = lark(text, lexer="contextual", **options)  # type: ignore[arg-type]
    assert isinstance(grammar, Described)
    return grammar


def accepts(grammar: Described, text: str) -> bool:
    matcher = compile(grammar, BYTES).matcher()
    return all(matcher.accept(byte) for byte in text.encode()) and matcher.is_accepting


def test_grammars_without_overlap_stay_as_they_are() -> None:
    """Where no terminals conflict there is one rule for each, and operators stay operators."""
    text = 'start: "[" [N ("," N)*] "]"\nN: /[0-9]+/\n%ignore " "'
    expected = (
        'rules { N = [0-9]+; start = "[" " "* ("]" " "* | N " "* ("," " "* N " "* ("," " "* N " "*)* "]" " "* '
        '| "]" " "*)) } in " "* start'
    )
    assert contextual(text).item == parse(expected)


def test_variants_keep_the_name_of_their_rule() -> None:
    """A terminal with different texts in two contexts becomes two rules, the second called ``.2``."""
    grammar = contextual('start: "if" N | N\nN: /[a-z]+/\n%ignore " "')
    assert [name for name, _ in grammar.item.rules] == ["N", "N.2", "start"]  # type: ignore[attr-defined]


def test_open_rules_are_those_of_the_grammar() -> None:
    """The rules that Lark writes for operators are not shown."""
    grammar = contextual('start: item*\nitem: "(" item* N ")"\nN: /[a-z]+/\n%ignore /\\s+/')
    matcher = compile(grammar, BYTES).matcher()
    assert all(matcher.accept(byte) for byte in b"( (a")
    assert set(matcher.open_rules()) <= {"start", "item", "N"}
    assert "item" in matcher.open_rules()


def test_large_strings_stay_counted() -> None:
    """A terminal whose lexemes are all its texts keeps its term, whatever its automaton looks like."""
    text = """start: S ("," S)*\nS: /'([^']|''){0,200}'/"""
    assert "{0,200}" in str(contextual(text))


def test_report() -> None:
    """The division into terminals is a policy; here priorities are enforced."""
    grammar = contextual('start: A+ // c\nA.2: "a"\n%ignore " "')
    assert dict(grammar.description.policies)["division into terminals"] == "longest match, as Lark's contextual lexer"
    found = {entry.keyword: (entry.where, entry.status) for entry in grammar.description.entries}
    assert found["priority 2"] == ("2:3", Status.ENFORCED)
    assert found["%ignore"] == ("3:9", Status.ENFORCED)
    assert dict(lark('start: "a"').description.policies)["division into terminals"] == "any"  # type: ignore[attr-defined]


# The table of docs/reference/lexing.md: grammar, text, whether the grammar has it by any division, and by Lark's.
TABLE = [
    ('start: "if" N | N\nN: /[a-z]+/', "if", True, False),
    ('start: ("if" | N)+\nN: /[a-z]+/\n%ignore " "', "ifx", True, True),
    ('start: N "end"\nN: /[a-z]+/', "xend", True, False),
    ('start: "select" N\nN: /[a-z]+/', "selectx", True, True),
    ('start: ("<" | "<<")+', "<<<", True, True),
    ('start: I "." I | F\nI: /[0-9]+/\nF: /[0-9]+\\.[0-9]+/', "1.2", True, True),
    ('start: (A | B)+ "c"\nA: /a|ab/\nB: "b"', "abc", True, True),
    ('start: (A | B)+\nA.2: "a"\nB: /a+b/', "aab", True, False),
    ("start: W+\nW: /[a-z]+/", "ab", True, True),
]


@pytest.mark.parametrize(("text", "word", "by_any", "by_lark"), TABLE)
def test_table_of_differences(text: str, word: str, by_any: bool, by_lark: bool) -> None:
    """The claims of the page hold, for structgen and for Lark."""
    whole = lark(text)
    assert isinstance(whole, Described)
    assert accepts(whole, word) is by_any
    try:
        assert accepts(contextual(text), word) is by_lark
    except UnsatisfiableGrammar:
        assert not by_lark
    try:
        peer.Lark(text, parser="lalr", lexer="contextual").parse(word)
    except peer.exceptions.LarkError:
        assert not by_lark
    else:
        assert by_lark


REFUSED = [
    ('start: a | b\na: "x"\nb: "x"', "2:1", "Reduce/Reduce"),
    ('start: "y" A\nA: /x*/', "2:1", "empty string"),
    ('start: x\ny: "a"', "1:8", "rule 'x' is not defined"),
    ('start: "a" |', "", ""),
    ("start: A\nA: /(a)\\1/", "2:1", "back-reference"),
    ("start: A\nA: /\\bx/", "2:1", "before its terminal"),
    ("start: A\nA: /x(?=yz)/", "2:1", "one character"),
    ("start: A\nA: /x(?>y)/", "2:1", "atomic"),
    ("start: A\nA: /x$/", "2:1", "anchor"),
    ('%declare Q\nstart: Q "a"', "1:10", "declared"),
    ('start: <|x|> "a"', "1:8", "no construct of Lark"),
    ('start: %json {"type": "null"}', "1:14", "%json is no construct of Lark"),
    ('start: "a"{2,3}', "1:8", "no operator of Lark"),
]


@pytest.mark.parametrize(("text", "where", "problem"), REFUSED)
def test_refusals_name_the_place(text: str, where: str, problem: str) -> None:
    """Each error has line and column and says what to do."""
    if not where:
        contextual(text)
        return
    with pytest.raises(GrammarError) as caught:
        contextual(text)
    error = caught.value
    assert isinstance(error, (GrammarSyntaxError, UnsupportedFeature))
    assert where in error.subject
    assert problem in error.problem
    assert error.remedy


def test_no_text() -> None:
    """A grammar whose lexer consumes what its rules need is empty."""
    with pytest.raises(UnsatisfiableGrammar, match="divides no string"):
        contextual('start: N "end"\nN: /[a-z]+/')


def test_unknown_lexer() -> None:
    """Only the two lexers are known."""
    with pytest.raises(GrammarError, match="no lexer 'basic'"):
        lark('start: "a"', lexer="basic")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "limits", "limit"),
    [
        ("start: " + '"a"? ' * 40, Limits(), "grammar_nodes"),
        ('start: ("a" | "b")~30', Limits(), "grammar_nodes"),
        ('start: ("a" | "b")~80', Limits(), "grammar_nodes"),
        ("start: A\nA: /a{1,5000}/", Limits(regular_states=1000), "regular_states"),
        ("start: " + "[" * 1500 + '"x"' + "]" * 1500, Limits(), "grammar_nodes"),
        ('start: a{"x"}\na{x}: a{b{x}} | x\nb{y}: y', Limits(), "grammar_nodes"),
    ],
)
def test_limits(text: str, limits: Limits, limit: str) -> None:
    """Slow grammars are refused by the name of a limit, before Lark expands them."""
    with pytest.raises(LimitExceeded) as caught:
        contextual(text, limits=limits)
    assert caught.value.limit == limit


@pytest.mark.parametrize(
    ("limits", "longest", "evidence"),
    [
        (Limits(grammar_nodes=20), 40, "its 3 definitions count as 40 each"),
        (Limits(regular_states=80), 40, "the lexer needs more states"),
        (Limits(regular_states=200), 40, "the guards after its terminals need more"),
        (Limits(regular_states=250), 20, "its lexers need more"),
        (Limits(steps=2_000_000), 20, "its lexer has many states that lead to each other"),
    ],
)
def test_limits_of_each_step(limits: Limits, longest: int, evidence: str) -> None:
    """The error says which step of the construction met the limit."""
    with pytest.raises(LimitExceeded, match=evidence):
        contextual(f"start: (A|B)+\nA: /a[a-z]{{0,{longest}}}x/\nB: /[a-z]{{1,{3 * longest // 4}}}/\n", limits=limits)


def test_states_that_all_lead_to_each_other_are_counted() -> None:
    """The terms of a complete graph grow like the cube of its nodes."""
    counts = []
    for size in (6, 12):
        graph = {node: [(literal(f"{node}{other}"), other) for other in range(size)] for node in range(size)}
        with counted(Limits()):
            left = steps_left()
            paths(graph, {node: node for node in range(size)}, "test")
            counts.append(steps_since(left))
    assert 6 < counts[1] / counts[0] < 10
    with counted(Limits(steps=counts[1] * PYTHON_STEP // 2)), pytest.raises(LimitExceeded, match="many states"):
        paths(graph, {node: node for node in graph}, "test")


def test_long_loops_are_counted() -> None:
    """A repetition of 300 characters has as many states in a circle, each compared with the others."""
    with pytest.raises(LimitExceeded, match="a repetition in its terminals has many states") as caught:
        contextual("start: (A|B)+\nA: /([a-z]{300}x)+/\nB: /[0-9]/\n", limits=Limits.strict())
    assert caught.value.limit == "steps"


def test_long_chains_of_rules() -> None:
    """Long chains reach a limit before Lark expands them."""
    text = "start: r0\n" + "".join(f'r{n}: r{n + 1} "a"?\n' for n in range(3000)) + 'r3000: "x"\n'
    with pytest.raises(LimitExceeded):
        contextual(text)


def test_unknown_version_of_lark(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tables are those of known versions."""
    monkeypatch.setattr(peer, "__version__", "2.0.0")
    with pytest.raises(GrammarError, match=r"lark 2\.0\.0 is installed"):
        contextual('start: "a"')


def test_same_result_in_every_process() -> None:
    """Names and order do not depend on hashes."""
    text = 'start: (a | b)*\na: "if" N\nb: N "=" N\nN: /[a-z]+/\n%ignore " "'
    assert contextual(text) == contextual(text)
    assert str(contextual(text)) == str(contextual(text))


def test_equivalence_classes() -> None:
    """Chains that lead to an equivalent loop are merged with it."""
    edges = {0: [(1, 1)], 1: [(1, 2)], 2: [(1, 2)], 3: [(2, 0)]}
    classes = equivalence_classes(range(4), edges, lambda node: node == 3, "test")
    assert classes[0] == classes[1] == classes[2] != classes[3]


@pytest.mark.nightly
def test_terms_do_not_depend_on_the_order_of_sets() -> None:
    """Lark keeps the transitions of its parser in sets, whose order changes with each process."""
    folder = Path(__file__).resolve().parents[4] / "grammars"
    program = (
        "import sys, structgen as sg\n"
        "for name in ('json_lines', 'html', 'graphql'):\n"
        "    print(sg.load(f'{sys.argv[1]}/{name}/grammar.lark', lexer='contextual'))"
    )
    printed = {
        subprocess.run(
            [sys.executable, "-c", program, str(folder)],
            env=os.environ | {"PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("0", "1", "2")
    }
    assert len(printed) == 1
    assert len(printed.pop()) > 1000


def test_terminals_are_read_in_proportion_to_their_number() -> None:
    """What a terminal looks at does not grow with the other terminals of its lexer: 2,000 took 49 seconds."""
    looked: list[int] = []
    for count in (50, 200):
        text = 'start: "a" "b"\n' + "".join(f'%ignore "i{number}"\n' for number in range(count))
        calls = 0

        def count_calls(frame: Any, event: str, argument: object) -> None:
            nonlocal calls
            calls += event == "call" and "contextual" in frame.f_code.co_filename

        sys.setprofile(count_calls)
        try:
            contextual(text)
        finally:
            sys.setprofile(None)
        looked.append(calls)
    assert looked[1] < 5 * looked[0]


@pytest.mark.parametrize("pattern", [r"\w", r"\W", r"[\wa]", r"[^\W0]", r"[^\wι]"])
def test_classes_by_category_regard_case(pattern: str) -> None:
    """Iota and U+0345 are one letter without regard to case, and only iota is a word character."""
    grammar = contextual(f"start: A\nA: /{pattern}/i")
    for text in "ι\u0345":
        assert accepts(grammar, text) == bool(re.fullmatch(pattern, text, re.IGNORECASE))


def test_a_terminal_that_no_lexer_looks_for_may_be_empty() -> None:
    """Lark refuses the empty match only where a state expects the terminal: the rule here is never reached."""
    text = 'start: "x" | "y"\nunused: T "x"\nT: /y?/\n'
    assert peer.Lark(text, parser="lalr", lexer="contextual").parse("y")
    assert accepts(contextual(text), "y")
    with pytest.raises(GrammarSyntaxError, match="terminal T matches the empty string"):
        contextual(text.replace('| "y"', "| unused"))

"""GBNF: its syntax, its meaning, and every error with its place."""

from __future__ import annotations

import pytest
from machine_load import at_most

from structgen.errors import GrammarError, GrammarSyntaxError, LimitExceeded
from structgen.frontends.bnf import gbnf
from structgen.grammar.limits import Limits
from structgen.grammar.nodes import Grammar
from structgen.grammar.nodes.description import Described, Status
from structgen.grammar.reader import parse
from structgen.testing.small_scope import language


def described(grammar: Grammar) -> Described:
    assert isinstance(grammar, Described)
    return grammar


def members(text: str, alphabet: str = "ab", longest: int = 4) -> set[str]:
    return {word.decode() for word in language(gbnf(text), longest, alphabet.encode())}


def test_rules_keep_their_names() -> None:
    grammar = gbnf('root ::= check-mate rule_1 | "x"\ncheck-mate ::= [KQ] "+"?\nrule_1 ::= .\n')
    expected = parse('rules { root = <check-mate> rule_1 | "x"; <check-mate> = [KQ] "+"?; rule_1 = . } in root')
    assert described(grammar).item == expected


def test_another_root() -> None:
    assert described(gbnf('a ::= "a"\nb ::= a a', root="b")).item == parse('rules { a = "a"; b = a a } in b')


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('root ::= "a" | "b"', {"a", "b"}),
        ('root ::= "a" |\n  "b"', {"a", "b"}),
        ('root ::=\n  "a"\n', {"a"}),
        ('root ::= (\n "a" # one\n\n | "b"\n)', {"a", "b"}),
        ('# first\nroot ::= "a" # last', {"a"}),
        ('\r\nroot ::= "a" a\r\na ::= "b"\r\n', {"ab"}),
        ('root ::= "a"', {"a"}),
        ('root::="a"[b]', {"ab"}),
        ("root ::= ", {""}),
        ('root ::= | "a"', {"", "a"}),
        ('root ::= "a" () ("" | )', {"a"}),
        ('root ::= "a"* "b"', {"b", "ab", "aab", "aaab"}),
        ('root ::= "a"+', {"a", "aa", "aaa", "aaaa"}),
        ('root ::= "a"? "b"', {"b", "ab"}),
        ('root ::= "ab"{2}', {"abab"}),
        ('root ::= "a"{3,}', {"aaa", "aaaa"}),
        ('root ::= "a"{ 1 , 2 }', {"a", "aa"}),
        ('root ::= "a"{,2}', {"", "a", "aa"}),
        ('root ::= "a"{0}', {""}),
        ('root ::= "a"?*', {"", "a", "aa", "aaa", "aaaa"}),
        ('root ::= "ab"*', {"", "ab", "abab"}),
        ('root ::= "b" root "b" | "a"', {"a", "bab"}),
        ('root ::= root "a" | "b"', {"b", "ba", "baa", "baaa"}),
        ('root ::= a "a"\na ::= root | "b"', {"ba", "baa", "baaa"}),
    ],
)
def test_expressions(text: str, expected: set[str]) -> None:
    """A newline ends a rule, except in parentheses and after ``|`` and ``::=``; a repetition may be repeated."""
    assert members(text) == expected


@pytest.mark.parametrize(
    ("spelled", "expected"),
    [
        (r'"\x41\u0042\U00000043"', '"ABC"'),
        (r'"\n\r\t\\\"\[\]\-"', r'"\n\r\t\\\"[]-"'),
        ('"é\n"', r'"é\n"'),
        (r"[\x41-\u0043\U0001F600]", "[A-C😀]"),
        (r"[\]\[\\\n^-]", r"[\n\-\[-\^]"),
        ("[^a-z]", "[^a-z]"),
        ("[^^]", r"[^\^]"),
        ("[-a]", r"[\-a]"),
        ("[a-]", r"[\-a]"),
        ("[+--]", r"[+-\-]"),
        ("[a-c-e]", r"[\-a-ce]"),
        (r"[a\-c]", r"[\-ac]"),
        ("[.*+?|(){}#]", r"[#(-+.?{-}]"),
        (".", "."),
        ("<[12]>", "tokens(12)"),
        ("<think>", 'tokens("<think>")'),
        ("!<[12]>", "tokens except (12)"),
        ("!</think>*", 'tokens except ("</think>")*'),
    ],
)
def test_leaves(spelled: str, expected: str) -> None:
    body = dict(described(gbnf(f"root ::= {spelled}")).item.rules)["root"]
    assert body == parse(expected)


FAULTS = [
    ('root ::= "a', "1:10", "not terminated"),
    ("root ::= [a", "1:10", "not terminated"),
    ('root ::= "a" {2', "1:14", "not terminated"),
    ("root ::= <a", "1:10", "not terminated"),
    ("root ::= !", "1:10", "not terminated"),
    ('root ::= "a"\nb ::= c', "2:7", "no rule is called 'c'"),
    ("root ::= foo_bar\nfoo-bar ::= root", "1:10", "no rule is called"),
    ('root ::= "a"\n\nroot ::= "b"', "3:1", "more than once"),
    (r'root ::= "\q"', "1:11", r"escape \\q"),
    (r'root ::= "\x4"', "1:11", "too few hexadecimal"),
    (r'root ::= "\ud800"', "1:11", "surrogate"),
    (r"root ::= [\U00110000]", "1:11", "beyond"),
    ('root ::= "\ud800"', "1:11", "surrogate"),
    ("root ::= [z-a]", "1:11", "reversed"),
    ("root ::= []", "1:10", "empty"),
    ("root ::= [^]", "1:10", "empty"),
    ('root ::= ("a"', "1:10", "not closed"),
    ('root ::= (("a")\nb ::= "c"', "1:10", "not closed"),
    ('root ::= "a")', "1:13", "no parenthesis is open"),
    ('root ::= "a"\n | "b"', "2:2", "begins with |"),
    ("root ::= *", "1:10", "repeats nothing"),
    ('root ::= "a" | *', "1:16", "repeats nothing"),
    ('root ::= "a"{3,1}', "1:13", "from 3 to 1"),
    ('root ::= "a"{,}', "1:13", "malformed"),
    ('root ::= "a"{x}', "1:13", "malformed"),
    ('root ::= "a"{9999999}', "1:13", "above"),
    ("root = a", "1:6", "equals sign"),
    ("root : a", "1:6", "colon"),
    ("root ::= 'a'", "1:10", "single quotes"),
    ("root ::= /a/", "1:10", "slash"),
    ('root ::= "a";', "1:13", "semicolon"),
    ("root ::= %", "1:10", "no meaning"),
    ('root ::= "a" b ::= "c"', "1:14", "within a line"),
    ('root ::= \nb ::= "c"', "2:1", "expression is expected"),
    ('::= "a"', "1:1", "no name"),
    ('"a"', "1:1", "a rule is expected"),
    ("root ::= <[1>", "1:10", "malformed"),
    ("root ::= <>", "1:10", "malformed"),
]


@pytest.mark.parametrize(("text", "place", "problem"), FAULTS)
def test_faults_point_at_their_place(text: str, place: str, problem: str) -> None:
    with pytest.raises(GrammarSyntaxError, match=problem) as caught:
        gbnf(text)
    assert caught.value.subject == f"gbnf grammar {place}"


def test_the_file_is_named() -> None:
    with pytest.raises(GrammarSyntaxError, match=r"chess\.gbnf:1:10"):
        gbnf('root ::= "', path="chess.gbnf")


@pytest.mark.parametrize("text", ["", "# nothing\n", 'top ::= "a"'])
def test_a_missing_root_is_named(text: str) -> None:
    with pytest.raises(GrammarError, match="no rule called 'root'") as caught:
        gbnf(text)
    assert ("root='top'" if text.startswith("top") else "write root ::= ...") in caught.value.remedy


def test_the_report_has_each_rule_with_its_place() -> None:
    grammar = gbnf('root ::= root "a" | <[7]>\n\n  b ::= "b"')
    assert [(entry.keyword, entry.where, entry.status) for entry in described(grammar).description.entries] == [
        ("rule root", "1:1", Status.ENFORCED),
        ("token <[7]>", "1:21", Status.ENFORCED),
        ("rule b", "3:3", Status.ANNOTATION),
    ]
    assert "left-recursive" in described(grammar).description.entries[0].detail
    assert "not reachable" in described(grammar).description.entries[2].detail


@pytest.mark.exhaustive
@pytest.mark.parametrize("text", ["(" * 100_000 + '"a"' + ")" * 100_000, "((" * 100_000, ")" * 100_000, "|" * 300_000])
def test_deep_and_odd_texts_end_in_an_error(text: str) -> None:
    with pytest.raises((GrammarSyntaxError, LimitExceeded)), at_most(10):
        gbnf(f"root ::= ({text}")


def test_limits_are_named() -> None:
    with pytest.raises(LimitExceeded, match="nesting=3"):
        gbnf('root ::= (((("a"))))', limits=Limits(nesting=3))
    with pytest.raises(LimitExceeded, match="source_bytes=8"):
        gbnf('root ::= "a"', limits=Limits(source_bytes=8))
    with pytest.raises(LimitExceeded, match="grammar_nodes=5"):
        gbnf('root ::= "a" "b" "c" "d" "e" "f"', limits=Limits(grammar_nodes=5))


@pytest.mark.exhaustive
def test_large_grammars_are_read() -> None:
    """A megabyte in one string, and twenty thousand rules in a chain, are read in linear time."""
    with at_most(20):
        limits = Limits(steps=10**8)
        gbnf(f'root ::= "{"a" * 1_000_000}"')
        rules = "\n".join(f'r{index} ::= "a" r{index + 1} | "b"' for index in range(20_000))
        grammar = gbnf(f'root ::= r0\n{rules}\nr20000 ::= "c"', limits=limits)
    assert len(described(grammar).item.rules) == 20_002


def test_no_token_has_such_an_id() -> None:
    with pytest.raises(GrammarSyntaxError, match="no token has an id"):
        gbnf("root ::= <[2999999999]>")

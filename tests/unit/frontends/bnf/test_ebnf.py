"""xgrammar's EBNF: its additions to GBNF, and every error with its place."""

from __future__ import annotations

import pytest

from structgen.errors import GrammarSyntaxError, LimitExceeded, UnsupportedFeature
from structgen.frontends.bnf import ebnf
from structgen.grammar.nodes import Grammar
from structgen.grammar.nodes.description import Described, Status
from structgen.grammar.reader import parse
from structgen.testing.small_scope import language


def described(grammar: Grammar) -> Described:
    assert isinstance(grammar, Described)
    return grammar


def members(text: str, alphabet: str = "ab", longest: int = 4) -> set[str]:
    return {word.decode() for word in language(ebnf(text), longest, alphabet.encode())}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('root\n::=\n"a"\n|\n"b"\n', {"a", "b"}),
        ('root ::= "a"\n  | "b" # no end of a rule\n', {"a", "b"}),
        ('root ::= a.b ( )\na.b ::= "a"', {"a"}),
        ('root ::= "a"{2}', {"aa"}),
        ('root ::= "a"{3, -1}', {"aaa", "aaaa"}),
        ("root ::= [^]", {"a", "b"}),
        ('root ::= root "a" | "b"', {"b", "ba", "baa", "baaa"}),
        ('root ::= x "b"\nx[lazy] ::= "a"+', {"ab"}),
        ('root ::= x "b"\nx[max_chars=2] ::= "a"*', {"b", "ab", "aab"}),
        ('root ::= x\nx[ max_chars = 2 , capture="n", lazy ] ::= "b"* "a"', {"a", "ba"}),
        ('root ::= x[ab]\nx ::= "a"', {"aa", "ab"}),
        ('root ::= x "b"\nx ::= "a" (= "b")', {"ab"}),
        ('root ::= Regex("a.|b\\\\x62{2}")', {"aa", "ab", "bbb"}),
        ('root ::= Regex("A", flags="iu")', {"a"}),
        ('root ::= Regex("(?i)A|Bb")', {"a", "bb"}),
        ('root ::= Substring("a", "bb", "a")', {"", "a", "bb", "abb", "bba", "abba"}),
        ("root ::= Substring()", {""}),
        (
            'root ::= TagDispatch(("b", r))\nr ::= "a"',
            {"", "a", "aa", "aaa", "aaaa", "ba", "aba", "baa", "baba", "abaa", "aaba", "baaa"},
        ),
        (
            'root ::= TagDispatch(("b", r), loop_after_dispatch=false)\nr ::= "a"',
            {"", "a", "aa", "aaa", "aaaa", "ba", "aba", "aaba"},
        ),
        ('root ::= TagDispatch(("b", r), excludes=("aa",))\nr ::= "a"', {"", "a", "ba", "aba", "baa", "baba", "abaa"}),
        ('root ::= TagDispatch(excludes=("b", "aaa"))', {"", "a", "aa"}),
    ],
)
def test_expressions(text: str, expected: set[str]) -> None:
    assert members(text) == expected


@pytest.mark.parametrize(
    ("spelled", "expected"),
    [
        (r'"\x41\x1F600\u0042\U00000043"', '"A😀BC"'),
        (r'"\n\r\t\"\\\/\?"', r'"\n\r\t\"\\/?"'),
        (r'"\a\b\f\v\0\e"', r'"\u{7}\u{8}\u{c}\u{b}\u{0}\u{1b}"'),
        (r"[\^\$\\\.\*\+\?\(\)\[\]\{\}\|\/\-]", r"[$(-+\-./?\[-\^{-}]"),
        (r"[\0-\x1f]", r"[\u{0}-\u{1f}]"),
        (r"[\--/]", r"[\--/]"),
        (r"[a\-z]", r"[\-az]"),
        ("Token(7, 3, 7)", "tokens(3, 7)"),
        ("ExcludeToken(7)", "tokens except (7)"),
    ],
)
def test_leaves(spelled: str, expected: str) -> None:
    assert dict(described(ebnf(f"root ::= {spelled}")).item.rules)["root"] == parse(expected)


def test_tokens_dispatch_too() -> None:
    grammar = ebnf('root ::= TokenTagDispatch((5, r), excludes=(9,))\nr ::= "a"')
    free = "tokens except (5, 9)*"
    assert described(grammar).item == parse(f'rules {{ root = ({free} tokens(5) r)* {free}; r = "a" }} in root')


def test_captures_and_temperatures() -> None:
    grammar = ebnf('root[temperature=0.5] ::= x y\nx[capture] ::= "a"\ny[capture="Y"] ::= "b"')
    expected = parse('rules { root = temperature "0.5" (x y); x = @x("a"); y = @Y("b") } in root')
    assert described(grammar).item == expected


def test_the_report_names_constructs() -> None:
    grammar = ebnf('root[max_chars=3] ::= Regex("a") (= "x")')
    found = [(entry.keyword, entry.where, entry.status) for entry in described(grammar).description.entries]
    assert found == [
        ("rule root", "1:1", Status.ENFORCED),
        ("macro Regex", "1:23", Status.ENFORCED),
        ("look-ahead", "1:34", Status.ANNOTATION),
        ("option max_chars", "1:1", Status.ENFORCED),
    ]


FAULTS = [
    ('root ::= "a\nb"', "1:12", "not terminated"),
    ("root ::= [a\nb]", "1:12", "not terminated"),
    ('root ::= "a" |', "1:15", "alternative is empty"),
    ('root ::= | "a"', "1:10", "alternative is empty"),
    ("root ::= ", "1:10", "alternative is empty"),
    ('root ::= "a" a ::= "b"', "1:14", "within a line"),
    (r"root ::= [\d]", "1:11", r"escape \\d is not known in a class"),
    (r'root ::= "\["', "1:11", r"escape \\\[ is not known in a string"),
    ('root ::= "a"++', "1:14", "follows another repetition"),
    ("root ::= []", "1:10", "empty"),
    ("root ::= .", "1:10", "no rule is called '.'"),
    ("root ::= <x>", "1:10", "token is not terminated"),
    ('root ::= (= "a"\nb ::= "a"', "1:10", "not closed"),
    ('root ::= (= "a") "b"', "1:18", "look-ahead"),
    ('root ::= ((= "a"))', "1:18", "look-ahead"),
    ('root ::= (= (= "a"))', "1:13", "look-ahead"),
    ("root[colour=1] ::= x", "1:1", "not known"),
    ("root[lazy, lazy] ::= x", "1:1", "twice"),
    ("root[] ::= x", "1:1", "no options"),
    ('root[lazy=1] ::= "a"', "1:1", "takes no value"),
    ('root[max_chars] ::= "a"', "1:1", "no number"),
    ('root[capture=""] ::= "a"', "1:1", "no name"),
    ('root[temperature=-1] ::= "a"', "1:1", "finite"),
    ('root ::= Regex("(")', "1:16", "refused"),
    ('root ::= Regex("a", colour=true)', "1:21", "no argument"),
    ('root ::= Regex("a", flags="x")', "1:10", "not known"),
    ("root ::= Regex(1)", "1:10", "takes a string"),
    ("root ::= Token()", "1:10", "needs the id"),
    ('root ::= Token("a")', "1:10", "takes a number"),
    ("root ::= Token(99999999999)", "1:16", "no token"),
    ("root ::= Token", "1:15", r"\( is expected"),
    ("root ::= Token(1", "1:17", "a value is expected"),
    ("root ::= Token(1,)", "1:17", "a value is expected"),
    ('root ::= TagDispatch(("a", 1))', "1:10", "pairs"),
    ('root ::= TagDispatch(("", root))', "1:23", "empty"),
    ('root ::= TagDispatch(("a", x))', "1:28", "no rule is called 'x'"),
    ('root ::= TagDispatch(("a", root), excludes=("a",))', "1:10", "excluded"),
    ('root ::= TagDispatch(("a", root), ("a", root))', "1:10", "twice"),
    ('root ::= TagDispatch(loop_after_dispatch="x", ("a", root))', "1:10", "true or false"),
    ("root ::= TokenTagDispatch((1, root), excludes=(1,))", "1:10", "twice"),
    ('root ::= TagDispatch((("a", root), root))', "1:23", "a tuple holds"),
]


@pytest.mark.parametrize(("text", "place", "problem"), FAULTS)
def test_faults_point_at_their_place(text: str, place: str, problem: str) -> None:
    with pytest.raises(GrammarSyntaxError, match=problem) as caught:
        ebnf(text)
    assert caught.value.subject == f"ebnf grammar {place}"


@pytest.mark.parametrize(
    ("text", "feature"),
    [
        ('root ::= TagDispatch(("ab", root), ("abc", root))', "TagDispatch"),
        ('root ::= TagDispatch(("ab", root), excludes=("b",))', "TagDispatch"),
        ('root[stop_capture="x"] ::= "a"', "stop_capture"),
        ('root[capture_hidden_suffix_bytes=3] ::= "a"', "capture_hidden_suffix_bytes"),
    ],
)
def test_what_is_refused_is_named(text: str, feature: str) -> None:
    with pytest.raises(UnsupportedFeature) as caught:
        ebnf(text)
    assert caught.value.feature == feature
    assert caught.value.remedy


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "text", ["(" * 100_000, "(=" * 100_000, "Token(" * 50_000, "TagDispatch((" * 20_000, "a[" * 50_000]
)
def test_deep_texts_end_in_an_error(text: str) -> None:
    with pytest.raises((GrammarSyntaxError, LimitExceeded)):
        ebnf(f"root ::= {text}")

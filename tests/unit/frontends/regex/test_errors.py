"""Malformed and refused patterns, and their error messages."""

from __future__ import annotations

import re

import pytest

from structgen.errors import GrammarError, GrammarSyntaxError, UnsupportedFeature
from structgen.frontends.regex import DialectName, regex, search_language

MALFORMED: list[tuple[str, DialectName, tuple[int, int]]] = [
    ("(a", "python", (0, 1)),
    ("a)", "python", (1, 2)),
    ("a|(b|(c)", "python", (2, 3)),
    ("[a", "python", (0, 1)),
    ("x[]", "python", (1, 2)),
    ("[a[b]", "rust", (0, 1)),
    ("*a", "python", (0, 1)),
    ("a|*", "python", (2, 3)),
    ("(+)", "python", (1, 2)),
    ("^*", "python", (1, 2)),
    ("a**", "python", (2, 3)),
    ("a{2}{3}", "python", (4, 7)),
    ("a{3,1}", "python", (1, 6)),
    ("{2}", "ecma", (0, 3)),
    ("a{,2}", "ecma", (1, 5)),
    ("a{", "rust", (1, 2)),
    ("a{99999999999}", "python", (1, 14)),
    ("[z-a]", "python", (1, 4)),
    (r"[\d-z]", "python", (1, 5)),
    (r"[a-\d]", "rust", (1, 5)),
    ("\\", "python", (0, 1)),
    ("a\\", "ecma", (1, 2)),
    (r"\q", "python", (0, 2)),
    (r"\A", "ecma", (0, 2)),
    (r"\Z", "rust", (0, 2)),
    (r"[\A]", "python", (1, 3)),
    (r"\x4", "python", (0, 3)),
    (r"\x{110000}", "rust", (0, 10)),
    (r"\x{d800}", "rust", (0, 8)),
    (r"\u12", "python", (0, 4)),
    (r"\u{}", "ecma", (0, 3)),
    (r"\U00110000", "python", (0, 10)),
    (r"\N{NO SUCH NAME}", "python", (0, 16)),
    (r"\N", "python", (0, 2)),
    (r"\400", "python", (0, 4)),
    (r"\01", "ecma", (0, 3)),
    (r"\c1", "ecma", (0, 2)),
    (r"\p", "ecma", (0, 2)),
    ("(?", "python", (0, 2)),
    ("(?q)", "python", (0, 4)),
    ("(?<n>a)", "python", (0, 3)),
    ("(?P<n>a)", "ecma", (0, 3)),
    ("(?P<n", "python", (0, 4)),
    ("(?P<1>a)", "python", (0, 6)),
    ("(?P<n>a)(?P<n>b)", "python", (8, 14)),
    ("(?#a", "python", (0, 3)),
    ("a(?i)b", "python", (1, 5)),
    ("(?i)a", "ecma", (0, 4)),
    ("(?i-i:a)", "python", (0, 6)),
    ("(?-a:b)", "python", (0, 5)),
    ("(?au)a", "python", (0, 5)),
    ("(?-i)a", "python", (0, 5)),
    ("(?L)a", "python", (0, 4)),
    ("(?ii)a", "rust", (0, 5)),
    ("(?-)a", "rust", (0, 4)),
    ("(?#c)", "rust", (0, 3)),
    ("a\nb(", "python", (3, 4)),
]

REFUSED: list[tuple[str, DialectName, str, int]] = [
    (r"(a)\1", "python", "back-reference", 3),
    (r"(?P<n>a)(?P=n)", "python", "back-reference", 8),
    (r"(?<n>a)\k<n>", "ecma", "back-reference", 7),
    (r"(a)\1", "rust", "back-reference", 3),
    ("(?(1)a|b)", "python", "conditional group", 0),
    ("(?>a)", "python", "atomic group", 0),
    ("a++", "python", "possessive quantifier", 1),
    ("a{2}+", "ecma", "possessive quantifier", 1),
    ("(?<=ab)c", "python", "look-behind", 0),
    ("(?<!ab)c", "ecma", "negative look-behind", 0),
    ("(?<!a*)c", "ecma", "negative look-behind", 0),
    ("(?<=^|,)a", "python", "look-behind", 0),
    ("(?=a)b", "rust", "look-ahead", 0),
    ("(?!a)b", "rust", "negative look-ahead", 0),
    ("(?<=a)b", "rust", "look-behind", 0),
    ("(?:(?=ab)a|b)*c", "python", "look-ahead inside a repeat", 13),
    ("(?:(?!ab)c*){2}", "python", "look-ahead inside a repeat", 12),
    ("(?P<n>(?!ab)..)c", "python", "look-ahead inside a named group", 0),
    (r"(?:\b.|.\b){1,1000}", "python", "large counted repeat of an assertion", 11),
    ("[[:alpha:]]", "python", "POSIX class [:alpha:]", 1),
    ("[a[:^digit:]]", "ecma", "POSIX class [:^digit:]", 2),
    (r"\h", "python", "horizontal white space \\h", 0),
    (r"\R", "rust", "line break sequence \\R", 0),
    (r"\X", "python", "grapheme cluster \\X", 0),
    (r"a\Kb", "ecma", "match reset \\K", 1),
    (r"\G", "python", "last match anchor \\G", 0),
    (r"\Qa.b\E", "python", "quoted text \\Q...\\E", 0),
    (r"\p{L}", "python", "Unicode property \\p", 0),
    (r"\p{InGreek}", "rust", "Unicode property 'InGreek'", 0),
    (r"\p{Greek}", "ecma", "Unicode property 'Greek'", 0),
    (r"\p{script=Greek}", "ecma", "Unicode property 'script=Greek'", 0),
    (r"\p{gc=Greek}", "rust", "Unicode property 'gc=Greek'", 0),
    (r"[\p{Basic_Emoji}]", "ecma", "Unicode property 'Basic_Emoji'", 1),
    (r"\p{CWKCF}", "rust", "Unicode property 'CWKCF'", 0),
    ("(?<n>a)(?(<n>)b|c)", "ecma", "conditional group", 7),
    ("(?(?=a)a|b)", "rust", "conditional group", 0),
    (r"\cA", "python", "control character \\cX", 0),
    (r"[\cA]", "rust", "control character \\cX", 1),
    ("(?R)", "python", "recursion", 0),
    ("a(?1)", "python", "recursion", 1),
    ("(?&name)", "python", "recursion", 0),
    ("(?P>name)", "python", "recursion", 0),
    ("(?|a|b)", "python", "branch reset group", 0),
    ("(?C1)", "python", "callout", 0),
    ("(?{code})", "python", "embedded code", 0),
    ("(??{code})", "python", "embedded code", 0),
    ("(*FAIL)", "python", "backtracking verb", 0),
    ("a(*SKIP)", "ecma", "backtracking verb", 1),
    (r"\b{start}a", "rust", "word boundary \\b{...}", 0),
    ("(?-u)a", "rust", "flag -u", 0),
]


@pytest.mark.parametrize(("pattern", "dialect", "span"), MALFORMED)
def test_malformed_patterns_are_pointed_at(pattern: str, dialect: DialectName, span: tuple[int, int]) -> None:
    """A malformed pattern raises an error with the text, the span and a caret under it."""
    with pytest.raises(GrammarSyntaxError) as caught:
        regex(pattern, dialect=dialect)
    assert (pattern, span) == (caught.value.text, caught.value.span)
    assert "^" in str(caught.value).splitlines()[-1]
    assert f"at character {span[0]}" in str(caught.value)


@pytest.mark.parametrize(("pattern", "dialect", "feature", "place"), REFUSED)
def test_refused_features_are_named(pattern: str, dialect: DialectName, feature: str, place: int) -> None:
    """Unsupported features are refused by name, with the place, a caret and a solution."""
    with pytest.raises(UnsupportedFeature) as caught:
        regex(pattern, dialect=dialect)
    error = caught.value
    assert (feature, f"character {place}") == (error.feature, error.where)
    first, *_, last = str(error).splitlines()
    assert first.startswith(f"regex: {feature} at character {place} ")
    assert error.remedy.splitlines()[0] in first
    assert last.strip("^ ") == ""
    assert last.index("^") == 4 + place


@pytest.mark.parametrize(
    ("pattern", "dialect", "remedy"),
    [
        ("(?<year>a)", "python", "write (?P<name>...), or use dialect='ecma' or dialect='rust'"),
        ("(?P<year>a)", "ecma", "write (?<name>...)"),
        ("(?'year'a)", "rust", "write (?<name>...)"),
        ("(?'year'a)", "python", "write (?P<name>...)"),
        (r"\u{43}", "python", r"write \u0043 or \U00000043; braces are of dialect='ecma' and dialect='rust'"),
        (r"\x{43}", "ecma", r"write \x43, or \u{43} for a longer number"),
    ],
)
def test_forms_of_other_dialects_are_told(pattern: str, dialect: DialectName, remedy: str) -> None:
    """What another dialect writes is an error that says how this one writes it."""
    with pytest.raises(GrammarSyntaxError) as caught:
        regex(pattern, dialect=dialect)
    assert caught.value.remedy.startswith(remedy)


def test_search_refuses_alike() -> None:
    """The search language of a refused pattern is refused too, each time."""
    for _ in range(2):
        with pytest.raises(UnsupportedFeature):
            search_language(r"(a)\1")


def test_message_of_a_malformed_pattern() -> None:
    """The whole text of an error, as a user sees it."""
    with pytest.raises(GrammarSyntaxError) as caught:
        regex("ab|(cd")
    assert str(caught.value) == ("regex: unclosed group at character 3; add ')' or write \\(\n    ab|(cd\n       ^")


def test_caret_of_a_long_pattern_is_cut_around_the_place() -> None:
    """A pattern that is too long to show is cut, and the caret stays under its place."""
    with pytest.raises(GrammarSyntaxError) as caught:
        regex("a" * 500 + "*" + "*" + "b" * 500)
    shown, marks = str(caught.value).splitlines()[-2:]
    assert len(shown) < 100
    assert shown[marks.index("^") - 1 : marks.index("^") + 2] == "**b"


@pytest.mark.parametrize(("dialect", "flags"), [("python", "q"), ("ecma", "g"), ("ecma", "v"), ("rust", "R")])
def test_unknown_flags(dialect: DialectName, flags: str) -> None:
    """A flag that the dialect lacks is an error, not ignored."""
    with pytest.raises(GrammarError, match="is not a flag"):
        regex("a", dialect=dialect, flags=flags)


def test_patterns_are_text() -> None:
    """A pattern that is no text is an error of the caller, reported at once with what to pass."""
    for build in (regex, search_language):
        with pytest.raises(TypeError, match="must be a str, not bytes; decode it"):
            build(b"a")  # type: ignore[arg-type]
        with pytest.raises(TypeError, match=r"must be a str, not Pattern; pass its \.pattern, and its flags as flags="):
            build(re.compile("a"))  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="must be a str, not NoneType; write it as text"):
            build(None)  # type: ignore[arg-type]


def test_unknown_dialect() -> None:
    """The error for an unknown dialect lists the known ones."""
    with pytest.raises(GrammarError, match="python, ecma, rust"):
        regex("a", dialect="pcre")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "pattern", [r"[[:foo:]]", "[a&&b]", "[a||b]", "[[a]", r"\-\/\_", "a{,2}", "a{,}", "x{}", "]", "}"]
)
def test_oddities_that_python_takes(pattern: str) -> None:
    """Odd-looking patterns that ``re`` accepts are accepted."""
    assert regex(pattern).children

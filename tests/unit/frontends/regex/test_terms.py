"""The terms of patterns: counts stay counts, text stays text, names become captures."""

from __future__ import annotations

import contextlib

import pytest
from regex_reference import Universe, texts_up_to

from structgen.errors import LimitExceeded, StructgenError
from structgen.frontends.regex import DialectName, regex, search_language, translate
from structgen.grammar.limits import Limits
from structgen.grammar.nodes import (
    Capture,
    CharClass,
    Choice,
    Grammar,
    Intersection,
    Literal,
    Repeat,
    Sequence,
    literal,
    postorder,
)
from structgen.grammar.nodes.description import Described, Status

ANY = Repeat(CharClass([(0, 0x10FFFF)]), 0, None)


def term(pattern: str, **options: str) -> Grammar:
    described = regex(pattern, **options)  # type: ignore[arg-type]
    assert isinstance(described, Described)
    return described.item


@pytest.mark.parametrize(
    ("pattern", "wanted"),
    [
        ("", Literal(b"")),
        ("abc", Literal(b"abc")),
        ("a(?:b)(c)", Literal(b"abc")),
        (r"a\.b\x41é", literal("a.bAé")),
        ("[a]b[.]", Literal(b"ab.")),
        ("ab*", Sequence((Literal(b"a"), Repeat(Literal(b"b"), 0, None)))),
        ("(ab)*", Repeat(Literal(b"ab"), 0, None)),
        ("a{1,100000}", Repeat(Literal(b"a"), 1, 100_000)),
        ("(?:ab|c){2,}", Repeat(Choice((Literal(b"ab"), Literal(b"c"))), 2, None)),
        ("a{3}?", Repeat(Literal(b"a"), 3, 3)),
        ("(((a*)*)*)*", Repeat(Literal(b"a"), 0, None)),
        ("(a?)+", Repeat(Literal(b"a"), 0, None)),
        ("(a+)+", Repeat(Literal(b"a"), 1, None)),
        ("a{0}b", Literal(b"b")),
        ("(?:ab){1}", Literal(b"ab")),
        ("^abc$", Literal(b"abc")),
        (r"\Aabc\Z", Literal(b"abc")),
        ("[a-c]", CharClass([(97, 99)])),
        ("a|", Choice((Literal(b"a"), Literal(b"")))),
        ("😀+", Repeat(literal("😀"), 1, None)),
        ("a\0b", Literal(b"a\0b")),
        ("a{x", Literal(b"a{x")),
        ("(?x) a b # c", Literal(b"ab")),
        ("a(?#comment)b", Literal(b"ab")),
    ],
)
def test_terms(pattern: str, wanted: Grammar) -> None:
    """Adjacent text is one literal, and a count is kept, however large."""
    assert term(pattern) == wanted


def test_large_counts_stay_counts_around_assertions() -> None:
    """A loop that holds an anchor keeps its count too."""
    found = term("(?:^a|b){1,100000}")
    assert sum(1 for _ in postorder(found)) < 12
    assert {(1, 100_000), (0, 99_999)} >= {
        (node.min, node.max) for node in postorder(found) if isinstance(node, Repeat)
    }


def test_search_surrounds_by_any_text() -> None:
    """An unanchored pattern may match anywhere; an anchor removes the text around the match."""
    assert search_language("ab") == Sequence((ANY, Literal(b"ab"), ANY))
    assert search_language("^ab") == Sequence((Literal(b"ab"), ANY))
    assert search_language("ab$") == Sequence((ANY, Literal(b"ab")))
    assert search_language("^ab$") == Literal(b"ab")
    assert search_language("a*") == ANY
    assert search_language("ab$", dialect="python") == Sequence(
        (ANY, Literal(b"ab"), Choice((Literal(b"\n"), Literal(b""))))
    )


def test_search_is_remembered() -> None:
    """Asking for the same pattern again gives the same term object."""
    assert search_language("^remembered$") is search_language("^remembered$")


def test_named_groups_are_captures() -> None:
    """Named groups are captured, numbered ones are not."""
    wanted = Sequence(
        (Capture("y", Repeat(CharClass([(48, 57)]), 4, 4)), Literal(b"-"), Capture("rest", Literal(b"x")))
    )
    assert term("(?P<y>[0-9]{4})-(?P<rest>(x))") == wanted
    assert term("(?<y>[0-9]{4})-(?<rest>(x))", dialect="ecma") == wanted
    assert term("(?P<y>[0-9]{4})-(?<rest>(x))", dialect="rust") == wanted


def test_captures_around_assertions() -> None:
    """A named group that holds an assertion still captures its text."""
    found = term("(?P<a>^x|y$)(?P<b>z?)")
    assert {"a", "b"} == {node.name for node in postorder(found) if isinstance(node, Capture)}
    ahead = term(r"(?P<word>(?=.*\d)\w{3,5})")
    assert isinstance(ahead, Capture)
    assert isinstance(ahead.item, Intersection)


def test_password_idiom_is_an_intersection() -> None:
    """Look-aheads at the front become one flat intersection with the rest."""
    found = term("^(?=.*[0-9])(?=.*[a-z])[a-z0-9]{8,}$")
    assert isinstance(found, Intersection)
    assert len(found.items) == 3
    assert Repeat(CharClass([(48, 57), (97, 122)]), 8, None) in found.items


def test_description() -> None:
    """The grammar records its source, and that the pattern is enforced."""
    described = regex("a", dialect="rust")
    assert isinstance(described, Described)
    assert described.description.source == "regex"
    assert described.description.policies == (("dialect", "rust"),)
    [entry] = described.description.entries
    assert (entry.keyword, entry.status) == ("pattern", Status.ENFORCED)


def test_flags_argument() -> None:
    """The argument ``flags`` means the same as inline flags."""
    assert term("k", flags="i") == term("(?i)k")
    assert term("a b", flags="x") == Literal(b"ab")
    assert term(".", flags="s") == CharClass([(0, 0x10FFFF)])
    assert search_language("^a$", flags="m") != search_language("^a$")
    assert term("a", flags="u", dialect="ecma") == Literal(b"a")


@pytest.mark.parametrize(
    ("pattern", "matching", "other"),
    [
        ("(?=ab)c", (), ("abc", "c")),
        ("a^b", (), ("ab",)),
        ("a$b", (), ("ab", "a\nb")),
        ("$^", ("",), ("a",)),
        (r"(?m)a$\n^b", ("a\nb",), ("ab",)),
        (r"\bab\b", ("ab",), ()),
        (r"a\bb", (), ("ab",)),
        ("(?!-)[a-]+(?<!-)", ("a", "a-a"), ("-a", "a-", "-")),
        ("(?:(?!-)[a-]{1,2}(?<!-)/)+", ("a/", "a/aa/"), ("-a/", "a-/", "/")),
    ],
)
def test_small_languages(pattern: str, matching: tuple[str, ...], other: tuple[str, ...]) -> None:
    """A few languages are right, spelled out."""
    found = Universe([*matching, *other]).members(regex(pattern))
    assert set(matching) <= found
    assert not set(other) & found


def test_terms_do_not_depend_on_object_identity() -> None:
    """The same pattern gives the same term in the same shape each time."""
    pattern = r"(?m)(?:^a\b|(?<!b)c$){2,4}(?!d)|(?<=e)\B"
    digests = {search_language(pattern, dialect="python", limits=Limits(nesting=100 + n)).digest for n in range(5)}
    assert len(digests) == 1


NASTY_SIZES = {
    "letters": "a" * 1_000_000,
    "stars": "a*" * 500_000,
    "groups": "(a)" * 333_333,
    "classes": "[a-c]" * 200_000,
    "members": "[" + "abc" * 333_333 + "]",
    "shorthands": r"\d" * 500_000,
    "branches": "a|" * 500_000,
    "dots": "." * 1_000_000,
    "carets": "^" * 1_000_000,
    "optional dollars": "a?$" * 333_333,
    "boundaries": r"\b" * 500_000,
    "boundaries and text": r"\ba?" * 250_000,
    "look-aheads": "(?=ab)" * 160_000,
    "negative look-aheads": "(?!ab)c" * 140_000,
    "look-behinds": "(?<!a)b?" * 120_000,
    "loops around anchors": "(?:a|^b)*" * 110_000,
    "counted loops around boundaries": r"(?:\b.|.\b){1,400}" * 50_000,
    "alternatives of look-aheads": "((?=ab)a|c)" * 90_000,
    "open groups": "(" * 1_000_000,
    "open classes": "[" * 1_000_000,
    "nested": "(" * 100_000 + "a" + ")" * 100_000,
    "nested stars": "(" * 100_000 + "a" + ")*" * 100_000,
    "nested anchors": "(^a" * 100_000 + ")" * 100_000,
    "nested look-aheads": "(?=a" * 100_000 + ")" * 100_000,
    "digits of a count": "a{1," + "9" * 1_000_000 + "}",
    "braces": "{" * 1_000_000,
    "zero bytes": "\0" * 1_000_000,
    "surrogates": "\ud800" * 1_000_000,
    "kinds of look-arounds": "".join(f"(?={chr(0x4E00 + n)})" for n in range(100)),
    "spaces": "(?x)" + " " * 1_000_000,
    "names": "".join(f"(?P<n{n}>a)" for n in range(70_000)),
}


@pytest.mark.exhaustive
@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    "pattern",
    [
        pytest.param(pattern, id=name, marks=pytest.mark.nightly if at % 4 else ())
        for at, (name, pattern) in enumerate(NASTY_SIZES.items())
    ],
)
def test_huge_patterns_answer(pattern: str) -> None:
    """A pattern of a million characters or 100,000 levels gives a term or a structgen error, in bounded time."""
    for build in (regex, search_language):
        with contextlib.suppress(StructgenError):
            assert isinstance(build(pattern, dialect="python"), Grammar)


def test_deep_nesting_within_raised_limits() -> None:
    """With the limit raised, any number of levels is translated without recursion."""
    limits = Limits(nesting=200_000, grammar_nodes=10_000_000, steps=10**9)
    assert regex("(" * 100_000 + "a" + ")" * 100_000, limits=limits) == regex("a")
    assert regex("(?:a|" * 20_000 + "$" + ")" * 20_000, limits=limits).children
    assert search_language("(?=a" * 20_000 + ")" * 20_000, limits=limits).children


@pytest.mark.parametrize(
    ("pattern", "limits", "name"),
    [
        ("aaaa", Limits(source_bytes=3), "source_bytes"),
        ("éé", Limits(source_bytes=3), "source_bytes"),
        ("((a))", Limits(nesting=1), "nesting"),
        ("([[a]])", Limits(nesting=2), "nesting"),
        ("a*b*c*d*", Limits(grammar_nodes=3), "grammar_nodes"),
        (r"(?:\b.|.\b)*" * 40, Limits(grammar_nodes=600), "grammar_nodes"),
    ],
)
def test_limits(pattern: str, limits: Limits, name: str) -> None:
    """Each limit is enforced, and the error names it."""
    with pytest.raises(LimitExceeded) as caught:
        regex(pattern, dialect="rust", limits=limits)
    assert name == caught.value.limit
    assert getattr(limits, name) == caught.value.maximum


def test_bounded_universe_agrees_with_itself() -> None:
    """The oracle of these tests evaluates the operators by their definition."""
    universe = Universe(texts_up_to(3, "ab"))
    assert universe.members(Repeat(Literal(b"ab"), 0, None)) == {"", "ab"}
    assert universe.members(Repeat(Literal(b"a"), 2, 3)) == {"aa", "aaa"}
    assert universe.members(~Literal(b"a")) == set(texts_up_to(3, "ab")) - {"a"}


@pytest.mark.parametrize("dialect", ["ecma", "python", "rust"])
@pytest.mark.parametrize("flags", ["", "i", "m"])
@pytest.mark.parametrize(
    "pattern",
    ["^$", "^a$", "^(?:a|b)+c?$", "^[a-z]{2,3}\\.x$", "^^a$", "^a$$", "^a|b$", "^(?:a|$)", "^a*\\b$", "^(a$)", "a$"],
)
def test_anchored_patterns_are_what_the_fold_gives(
    pattern: str, flags: str, dialect: DialectName, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fast path for text between ``^`` and ``$`` gives the very terms of the general one."""
    limits = Limits(nesting=999)  # a fresh instance, so that no term is cached
    found = search_language(pattern, dialect=dialect, flags=flags, limits=limits)
    monkeypatch.setattr(translate, "_anchored", lambda *_: None)
    assert search_language(pattern, dialect=dialect, flags=flags, limits=Limits(nesting=998)) == found

"""Captures, against the groups of Python's ``re`` and against texts that encode their own structure."""

from __future__ import annotations

import itertools
import random
import re

import pytest
from machine_load import at_most

from structgen.engine.parse.captures import find_captures, has_captures
from structgen.errors import GrammarError
from structgen.grammar.nodes import (
    ANY_CHAR,
    EPSILON,
    ByteClass,
    Capture,
    Choice,
    Complement,
    Grammar,
    Intersection,
    JsonString,
    Permutation,
    Reference,
    Repeat,
    Rules,
    Sequence,
    Shared,
    SpecialToken,
    choice,
    literal,
    sequence,
)

LETTER = ByteClass([(ord("a"), ord("z"))])


def symbols(text: str) -> str:
    """A text as the parser reads it: one character per byte."""
    return text.encode().decode("latin-1")


def random_term(rng: random.Random, depth: int, names: list[str]) -> tuple[Grammar, str]:
    """A random regular term over ``ab`` with captures, and the same as a Python regex with named groups."""
    kind = rng.random()
    if depth == 0 or kind < 0.25:
        if rng.random() < 0.2:
            return ByteClass([(97, 98)]), "[ab]"
        text = rng.choice(["a", "b", "ab"])
        return literal(text), f"(?:{text})"
    if kind < 0.65:
        parts = [random_term(rng, depth - 1, names) for _ in range(rng.randint(1, 3))]
        terms, sources = [term for term, _ in parts], [source for _, source in parts]
        if kind < 0.45:
            return Sequence(terms), f"(?:{''.join(sources)})"
        return Choice(terms), f"(?:{'|'.join(sources)})"
    if kind < 0.85:
        term, source = random_term(rng, depth - 1, names)
        least = rng.choice([0, 0, 1, 2])
        most = rng.choice([None, least + 1, least + 2])
        if re.fullmatch(source, ""):  # Python reports an optional empty repetition, structgen does not
            return term, source
        return Repeat(term, least, most), f"(?:{source}){{{least},{'' if most is None else most}}}"
    name = f"n{len(names)}"
    names.append(name)
    term, source = random_term(rng, depth - 1, names)
    return Capture(name, term), f"(?P<{name}>{source})"


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(3))
def test_regular_captures_are_those_of_re(seed: int) -> None:
    """On all strings up to length 5 a capture is the group that Python's backtracking matcher reports."""
    rng = random.Random(seed)
    texts = ["".join(letters) for size in range(6) for letters in itertools.product("ab", repeat=size)]
    compared = 0
    for _ in range(150):
        names: list[str] = []
        term, source = random_term(rng, 4, names)
        pattern = re.compile(source)
        for text in texts:
            match = pattern.fullmatch(text)
            if match is None:
                with pytest.raises(GrammarError, match="not a string of the grammar"):
                    find_captures(term, text)
                continue
            found = find_captures(term, text)
            for name in names:
                ours = found.get(name)
                last = (ours[-1] if ours else None) if isinstance(ours, list) else ours
                assert last == match.group(name), (source, text, name)
                compared += 1
    assert compared > 200


def test_lists_are_for_names_that_can_occur_more_than_once() -> None:
    """Whether a name has a text or a list depends on the grammar, not on the output."""
    word = Repeat(LETTER, 1, None).named("word")
    assert find_captures(word, "ab") == {"word": "ab"}
    assert find_captures(word.many(1, 3, sep=" "), "ab") == {"word": ["ab"]}
    assert find_captures(word.many(1, 3, sep=" "), "ab c de") == {"word": ["ab", "c", "de"]}
    assert find_captures(word.many(0, 3, sep=" "), "") == {"word": []}
    assert find_captures(Repeat(word, 0, 1), "ab") == {"word": "ab"}
    assert find_captures(word + " " + word, "ab c") == {"word": ["ab", "c"]}
    assert find_captures(choice(word, sequence("1", word)), "1ab") == {"word": "ab"}


def test_what_was_not_taken_is_absent() -> None:
    """A name in an alternative that did not match has no entry."""
    answer = choice(literal("yes").named("yes"), literal("no").named("no"))
    assert find_captures(answer, "no") == {"no": "no"}


def test_nested_names() -> None:
    """Nested captures are reported each under its name."""
    date = sequence(Repeat(LETTER, 2, 2).named("a"), "-", Repeat(LETTER, 1, 3).named("b")).named("whole")
    assert find_captures(date, "xy-z") == {"whole": "xy-z", "a": "xy", "b": "z"}


def test_permutations() -> None:
    """Parts come in any order; extra items and separators may be captured more than once."""
    word = Repeat(LETTER, 1, None)
    term = Permutation(
        [sequence("x=", Capture("x", word))],
        [sequence("y=", Capture("y", word)), Capture("other", word)],
        Capture("rest", ByteClass([(48, 57)])),
        Capture("gap", choice(",", ";")),
        0,
        6,
    )
    assert find_captures(term, "y=b;x=a,1,c,2") == {
        "x": "a",
        "y": "b",
        "other": "c",
        "rest": ["1", "2"],
        "gap": [";", ",", ",", ","],
    }
    assert find_captures(term, "x=q") == {"x": "q", "rest": [], "gap": []}
    for wrong in ("y=b", "x=a,x=b", "x=a,a,b", "x=a,1,2,3,4,5,6", "x=a,"):
        with pytest.raises(GrammarError):
            find_captures(term, wrong)
    many = Permutation([], [sequence(f"k{index}=", Capture(f"v{index}", word), ";") for index in range(40)])
    order = random.Random(1).sample(range(40), 12)
    assert find_captures(many, "".join(f"k{index}=a;" for index in order)) == {f"v{index}": "a" for index in order}


def test_permutations_of_what_may_be_empty() -> None:
    """Extra items and separators that may be empty have infinitely many derivations, and one of them is chosen."""
    maybe = Capture("a", Repeat(ByteClass([(97, 97)]), 0, 1))
    term = Permutation([literal("b")], [maybe], Repeat(literal("c"), 0, 1), EPSILON)
    assert find_captures(term, "cbac")["a"] == "a"
    assert "a" not in find_captures(term, "cb") or find_captures(term, "cb")["a"] == ""


def test_recursive_rules() -> None:
    """Right, left and middle recursion find every occurrence in order; inner rules shadow outer ones."""
    item = LETTER.named("item")
    again = Reference("s")
    for body in (
        choice(sequence(item, ",", again), item),
        choice(sequence(again, ",", item), item),
        choice(sequence(again, ",", again), item),
    ):
        assert find_captures(Rules({"s": body}, again), "a,b,c") == {"item": ["a", "b", "c"]}
    nested = Rules({"s": choice(sequence("(", again, ")"), literal("x").named("core"))}, again)
    assert find_captures(nested, "((x))") == {"core": "x"}
    shadow = Rules({"s": literal("o").named("outer")}, again + Rules({"s": literal("i").named("inner")}, again))
    assert find_captures(shadow, "oi") == {"outer": "o", "inner": "i"}


def test_grammars_with_infinitely_many_derivations() -> None:
    """Unit cycles and empty recursion terminate, and the capture has the text."""
    a, b, s = Reference("a"), Reference("b"), Reference("s")
    assert find_captures(Rules({"a": Choice((b, literal("x").named("n"))), "b": Choice((a,))}, a), "x") == {"n": "x"}
    many = Rules({"s": Choice((Sequence((s, s)), LETTER.named("n"), EPSILON))}, s)
    assert find_captures(many, "abc") == {"n": ["a", "b", "c"]}
    starred = Repeat(Repeat(LETTER.named("n"), 0, None), 0, None)
    assert find_captures(starred, "abc") == {"n": ["a", "b", "c"]}


def test_characters_outside_ascii() -> None:
    """Captures are returned as characters; byte classes that cut a character do not affect character classes."""
    assert find_captures(sequence(ANY_CHAR.named("c"), "!"), symbols("é!")) == {"c": "é"}
    assert find_captures(Repeat(ANY_CHAR, 2, 2).named("c"), symbols("日本")) == {"c": "日本"}
    with pytest.raises(GrammarError):
        find_captures(Repeat(ANY_CHAR, 1, 1).named("c"), symbols("日本"))
    halves = sequence(ByteClass([(0xC3, 0xC3)]), ByteClass([(0x80, 0xBF)]).named("half"))
    assert find_captures(halves, symbols("é")) == {"half": "\N{REPLACEMENT CHARACTER}"}


def test_json_strings() -> None:
    """Names inside a JSON string have the decoded text, names around it the literal."""
    term = JsonString(sequence("a", ANY_CHAR.named("char"))).named("literal")
    assert find_captures(term, '"a\\u00e9"') == {"literal": '"a\\u00e9"', "char": "é"}
    assert find_captures(term, '"a\\ud83d\\ude00"') == {"literal": '"a\\ud83d\\ude00"', "char": "😀"}
    with pytest.raises(GrammarError):
        find_captures(term, '"a\\ud83d"')
    within = sequence(JsonString(JsonString(LETTER.named("deep"))), LETTER.named("after"))
    assert find_captures(within, '"\\"x\\""y') == {"deep": "x", "after": "y"}


def test_intersections_and_complements() -> None:
    """Every part of an intersection reports its names; a complement only restricts the others."""
    texts = Repeat(LETTER, 0, None)
    both = Intersection((sequence(LETTER.named("first"), texts), sequence(texts, LETTER.named("last"))))
    assert find_captures(both, "abc") == {"first": "a", "last": "c"}
    not_b = Intersection((Repeat(LETTER, 1, 1), Complement(literal("b"))))
    split = sequence(Repeat(LETTER, 0, None), not_b.named("no_b"), Repeat(literal("b"), 0, None))
    assert find_captures(split, "abab") == {"no_b": "a"}
    assert find_captures(Complement(Complement(literal("a"))).named("twice"), "a") == {"twice": "a"}
    assert find_captures(Intersection(()).named("any"), symbols("é")) == {"any": "é"}


def test_special_tokens_are_no_text() -> None:
    """A special token matches only its own symbol and adds nothing to a capture."""
    term = sequence(SpecialToken("<tool>"), LETTER.named("name"), SpecialToken(9)).named("call")
    special = {7: "<tool>", 9: "<end>"}
    assert find_captures(term, chr(256 + 7) + "x" + chr(256 + 9), special) == {"call": "x", "name": "x"}
    with pytest.raises(GrammarError):
        find_captures(term, symbols("<tool>x<end>"), special)


def test_shared_terms_are_transparent() -> None:
    """A shared term has the captures of its item."""
    assert find_captures(sequence(Shared(LETTER.named("n")), "!"), "x!") == {"n": "x"}


def test_unbound_references_are_named() -> None:
    """A reference to an unbound rule is an error with its name."""
    with pytest.raises(GrammarError, match="'nowhere'"):
        find_captures(Reference("nowhere").named("x"), "a")


def test_has_captures() -> None:
    """Grammars without names are recognised without a parse."""
    assert has_captures(sequence("a", Repeat(LETTER.named("n"), 0, None)))
    assert not has_captures(sequence("a", Repeat(LETTER, 0, None)))


def test_depth_and_length_cost_no_recursion() -> None:
    """A term nested 20,000 deep, a text of 20,000 bytes and an ambiguous split are parsed in seconds."""
    with at_most(20):
        deep: Grammar = literal("x").named("core")
        for _ in range(20_000):
            deep = Choice((deep,))
        assert find_captures(deep, "x") == {"core": "x"}
        text = Repeat(ANY_CHAR, 0, None)
        split = find_captures(sequence(text.named("before"), "x", text.named("after")), "x" * 5_000)
        assert split == {"before": "x" * 4_999, "after": ""}
        words = Repeat(sequence(Repeat(LETTER, 1, None).named("w"), " "), 0, None)
        assert find_captures(words, "hello world " * 1_000) == {"w": ["hello", "world"] * 1_000}

"""Strings are counted and sampled, against all strings of small grammars."""

from __future__ import annotations

import ast
import json
import math
import warnings
from collections import Counter
from pathlib import Path

import pytest
from schema_as_written import as_written as json_schema

from structgen.engine.analysis import uniform_sampling as uniform
from structgen.engine.analysis.byte_graph import byte_graphs
from structgen.engine.analysis.counting import DerivationCounter, LengthCounts
from structgen.engine.analysis.edge_list import deterministic_transitions, with_shared_rules
from structgen.engine.analysis.uniform_sampling import UniformStrings
from structgen.errors import GrammarError, LimitExceeded, UnsatisfiableGrammar
from structgen.frontends.lark import lark, load
from structgen.frontends.regex import regex
from structgen.grammar.flattening import recognizes
from structgen.grammar.limits import Limits
from structgen.grammar.nodes import (
    ByteClass,
    Complement,
    Grammar,
    JsonString,
    Permutation,
    Reference,
    Repeat,
    Rules,
    SpecialToken,
    choice,
    literal,
    sequence,
)
from structgen.testing import language, recursive, small_terms
from structgen.testing.small_scope import ITSELF

LIBRARY = Path(__file__).parents[4] / "grammars"

SUM = Rules(
    {"e": choice(sequence(Reference("e"), "+", Reference("e")), "a", sequence("(", Reference("e"), ")"))},
    Reference("e"),
)
PAIRS = Rules(
    {"s": choice(sequence("a", Reference("s"), "b", Reference("s")), sequence("a", Reference("s")), "")}, Reference("s")
)
PALINDROMES = Rules(
    {"p": choice("a", "b", "", sequence("a", Reference("p"), "a"), sequence("b", Reference("p"), "b"))}, Reference("p")
)
EMPTIES = Rules({"s": Repeat(choice("", "a", sequence("b", Reference("s"), "b")), 0, None)}, Reference("s"))
ORDERS = Permutation([literal("a"), literal("b")], [literal("c")], literal("d"), literal(","), 0, 4)

RECURSIVE = {"sum": SUM, "pairs": PAIRS, "palindromes": PALINDROMES, "empties": EMPTIES}


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "grammar", [recursive(term) for term in small_terms(4, [literal("a"), literal("b"), ITSELF])][::3], ids=str
)
def test_counts_are_those_of_all_members(grammar: Grammar) -> None:
    """The count of each length is right for every small grammar, ambiguous ones and empty cycles included."""
    by_length = Counter(len(word) for word in language(grammar, 5, b"ab"))
    try:
        members = UniformStrings(grammar, 5)
    except UnsatisfiableGrammar:
        assert not by_length
        return
    assert [members.count(length) for length in range(6)] == [by_length[length] for length in range(6)]


@pytest.mark.parametrize("name", RECURSIVE)
def test_counts_of_recursive_grammars(name: str) -> None:
    """The counts of known ambiguous grammars are those of strings, not of derivations."""
    grammar = RECURSIVE[name]
    letters = b"a+()" if name == "sum" else b"ab"
    by_length = Counter(len(word) for word in language(grammar, 7, letters))
    members = UniformStrings(grammar, 7)
    assert [members.count(length) for length in range(8)] == [by_length[length] for length in range(8)]


def _is_uniform(sampled: list[bytes], expected: set[bytes]) -> bool:
    """Whether Pearson's statistic is below the 1 - 1e-6 quantile of chi-squared (Wilson and Hilferty, 1931)."""
    counts = Counter(sampled)
    assert set(counts) <= expected
    each = len(sampled) / len(expected)
    assert each >= 20
    statistic = sum((counts[member] - each) ** 2 / each for member in expected)
    freedom = len(expected) - 1
    return statistic <= freedom * (1 - 2 / (9 * freedom) + 4.753 * math.sqrt(2 / (9 * freedom))) ** 3


@pytest.mark.parametrize("name", RECURSIVE)
@pytest.mark.parametrize("max_refused", [2_000, 0], ids=["rejection", "deterministic"])
def test_draws_are_uniform_over_members(name: str, max_refused: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """All strings are equally likely, however many derivations they have, by every method."""
    monkeypatch.setattr(uniform, "_MAX_REJECTED", max_refused)
    grammar = RECURSIVE[name]
    expected = language(grammar, 6, b"a+()" if name == "sum" else b"ab")
    sampled = UniformStrings(grammar, 6).draw(60 * len(expected), seed=3)
    assert _is_uniform(sampled, expected)


def test_rejection_is_needed() -> None:
    """The sums are ambiguous, so that a draw over derivations alone would not be uniform."""
    members = UniformStrings(SUM, 7)
    assert members._transitions is not None
    assert DerivationCounter(members._transitions).count(b"a+a+a+a") > 1


def test_a_length_is_sampled_first() -> None:
    """With ``even`` lengths, all nonempty lengths are equally likely, and so are all strings of one length."""
    grammar = regex("(a|b){0,2}|c{5}")
    sampled = UniformStrings(grammar, 5).draw(12_000, seed=1, lengths="even")
    by_length = Counter(map(len, sampled))
    assert set(by_length) == {0, 1, 2, 5}
    assert all(abs(count - 3_000) < 250 for count in by_length.values())
    assert _is_uniform([word for word in sampled if len(word) == 2], {b"aa", b"ab", b"ba", b"bb"})


def test_shapes_count_once() -> None:
    """Equivalent characters count as one shape, and each is equally likely."""
    grammar = regex("[a-d]|xy?")
    sampled = Counter(UniformStrings(grammar, 2).draw(9_000, seed=1, among="shapes", exactly=1))
    assert set(sampled) == {b"a", b"b", b"c", b"d", b"x"}
    assert abs(sampled[b"x"] - 4_500) < 300
    assert all(abs(sampled[letter] - 1_125) < 200 for letter in (b"a", b"b", b"c", b"d"))


def test_equal_seeds_give_equal_members() -> None:
    """The seed decides, and another seed gives other strings."""
    members = UniformStrings(SUM, 15)
    assert members.draw(20, seed=5) == UniformStrings(SUM, 15).draw(20, seed=5)
    assert members.draw(20, seed=5) != members.draw(20, seed=6)


def test_lengths_and_alphabets() -> None:
    """Strings have the given length and the given bytes."""
    members = UniformStrings(regex(".{2,40}"), 30, alphabet="printable")
    assert all(
        len(word) == 30 and word.decode().replace("\t", "").isprintable() for word in members.draw(20, exactly=30)
    )
    assert members.count(2) == 96**2  # a dot does not match a line feed
    assert set(UniformStrings(regex("[a-z]*"), 3, alphabet=b"ab").draw(200)) <= language(regex("[ab]*"), 3, b"ab")
    everything = UniformStrings(regex("."), 4)
    assert sum(map(everything.count, range(5))) == 0x110000 - 0x800 - 1


def test_what_has_no_members() -> None:
    """A length or an alphabet without strings is refused with the shortest length."""
    with pytest.raises(
        UnsatisfiableGrammar, match="the shortest has 5 bytes; allow longer strings, of 5 bytes and more"
    ):
        UniformStrings(regex("aaaaa"), 3)
    with pytest.raises(UnsatisfiableGrammar, match="exactly 2 bytes; the shortest has 1 bytes; allow another length"):
        UniformStrings(regex("a|bbb"), 3).draw(1, exactly=2)
    with pytest.raises(UnsatisfiableGrammar, match="any character"):
        UniformStrings(regex("é"), 3, alphabet="printable")
    with pytest.raises(ValueError, match="max_bytes"):
        UniformStrings(regex("a"), -1)


def test_terms_that_are_no_lists_of_characters() -> None:
    """Permutations, JSON strings and raw bytes are counted by their automata."""
    letters = b"abcd,"
    by_length = Counter(len(word) for word in language(ORDERS, 7, letters))
    members = UniformStrings(ORDERS, 7)
    assert [members.count(length) for length in range(8)] == [by_length[length] for length in range(8)]
    quoted = UniformStrings(JsonString(regex("é|a")), 8)
    assert {json.loads(word) for word in quoted.draw(300, seed=2)} == {"é", "a"}
    assert UniformStrings(ByteClass([(128, 255)]), 1).count(1) == 128


def test_a_special_token_is_one_byte_long() -> None:
    """A special token is written by its name."""
    members = UniformStrings(sequence("a", SpecialToken("<end>")), 2)
    assert members.count(2) == 1
    assert members.draw(1) == [b"a<end>"]


def test_items_that_must_differ() -> None:
    """No automaton recognises them; they are sampled uniformly, too, but not counted."""
    schema = {"type": "array", "items": {"type": "integer"}, "uniqueItems": True, "minItems": 2}
    members = UniformStrings(json_schema(schema), 7)
    expected = {f"[{one},{other}]".encode() for one in range(10) for other in range(10) if one != other}
    assert _is_uniform(members.draw(3_000, seed=4, exactly=5), expected)
    with pytest.raises(GrammarError, match="cannot be counted"):
        members.count(5)


def test_large_ones() -> None:
    """Real grammars are fast: the samples are in the language and have the right length."""
    rules = lark('start: e\n?e: e "+" e | e "*" e | "(" e ")" | /[0-9]{1,3}/ | NAME\nNAME: /[a-z]{1,200}/\n%ignore " "')
    sampled = UniformStrings(rules, 30).draw(5, seed=1)
    assert all(len(word) <= 30 for word in sampled)
    assert len(set(sampled)) == 5
    assert len(UniformStrings(regex("[a-z]+( [a-z]+)*"), 3_000).draw(1, exactly=3_000)[0]) == 3_000


OTHER_SCRIPTS = {
    "classes": regex("[a-zé-ü]{0,2}[^a-z]?"),
    "literals": choice("ü", regex("[ä-ÿ]"), sequence("߿", regex("[^߿]"))),
    "complement": Complement(regex("é|.a")) & regex("[^b-z]{1,2}"),
}


@pytest.mark.parametrize("name", OTHER_SCRIPTS)
def test_characters_of_other_scripts(name: str) -> None:
    """Counts with one character for many equal the engine's over bytes, and so do the strings."""
    grammar = OTHER_SCRIPTS[name]
    members = UniformStrings(grammar, 6)
    assert members._characters.grammar != grammar
    (graph,) = byte_graphs(grammar)
    plain = LengthCounts(deterministic_transitions(graph, 6, dict.fromkeys(range(256), 1), 1_000), 6)
    assert [members.count(length) for length in range(7)] == [plain.total(length) for length in range(7)]
    sampled = members.draw(300, seed=1) + members.draw(100, seed=2, lengths="even", among="shapes")
    assert all(recognizes(grammar, member.decode()) for member in sampled)


def test_each_character_is_as_likely() -> None:
    """Characters that are counted as one are equally likely, for each encoded length."""
    expected = {*"ab", *map(chr, range(0xF0, 0x100)), "ア", "イ", "ウ"}
    grammar = regex("[abð-ÿアイウ]")
    sampled = UniformStrings(grammar, 3).draw(80 * len(expected), seed=6)
    assert _is_uniform(sampled, {char.encode() for char in expected})


def test_terms_that_are_shared_become_rules() -> None:
    """The strings are the same, and the automaton stays small instead of exponential."""
    part: Grammar = regex("(a|b)*a(a|b){3}")
    for _ in range(3):
        part = choice(sequence("(", part, ",", part, ")"), sequence("[", part, part, "]"))
    grammar = sequence(part, ";", part)
    shared = with_shared_rules(grammar, Limits())
    assert isinstance(shared, Rules)
    assert len(shared.rules) >= 3
    for sampled_of, read_by in ((grammar, shared), (shared, grammar)):
        assert all(recognizes(read_by, word.decode()) for word in UniformStrings(sampled_of, 110).draw(10, seed=1))
    small = choice(sequence(SUM, ";", SUM), sequence("[", SUM, "]"))
    counted = [UniformStrings(each, 7) for each in (small, with_shared_rules(small, Limits()))]
    one, other = ([each.count(length) for length in range(8)] for each in counted)
    assert one == other


@pytest.mark.exhaustive
def test_a_grammar_whose_terminals_are_too_large() -> None:
    """The strings in the library's Python grammar have too many states for an automaton; strings are still sampled."""
    grammar = load(LIBRARY / "python" / "grammar.lark")
    members = UniformStrings(grammar, 24, alphabet="printable")
    sampled = members.draw(200, seed=1, lengths="even", among="shapes")
    assert len(set(sampled)) > 100
    for member in sampled:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of literals that are called
            ast.parse(member)


def test_limits_bound_counting_and_the_deterministic_automaton() -> None:
    """A server gives strict ones; without any, both have bounds of their own."""
    letters = regex("[ab]*")
    with pytest.raises(LimitExceeded, match="counting steps=20000"):
        UniformStrings(letters, 20_000, limits=Limits(steps=20_000)).draw(1)
    assert len(UniformStrings(letters, 20, limits=Limits(steps=20_000)).draw(1)) == 1
    with pytest.raises(LimitExceeded, match="max_nodes=5"):
        UniformStrings(PAIRS, 40, limits=Limits(states=200)).count(40)

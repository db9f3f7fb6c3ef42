"""The reference implementation against set algebra, ``re`` and ``json``: the engine's oracle must itself be right."""

from __future__ import annotations

import json
import random
import re
from itertools import product

import pytest
from grammar_strategies import json_terms, regular_terms, rule_terms, text_terms
from hypothesis import given, settings, strategies as st

from structgen.errors import GrammarError
from structgen.grammar.nodes import (
    ANY_CHAR,
    EMPTY,
    EPSILON,
    ByteClass,
    Capture,
    CharClass,
    Choice,
    Complement,
    Grammar,
    Intersection,
    JsonString,
    Literal,
    Reference,
    Repeat,
    Rules,
    Sequence,
    Shared,
    SpecialToken,
    choice,
    literal,
    repeat,
    sequence,
)
from structgen.grammar.nodes.description import Described, Description
from structgen.testing import ReferenceMatcher, language, recursive, small_terms
from structgen.testing.derivatives import Algebra, Regex
from structgen.testing.earley import Recogniser
from structgen.testing.small_scope import BOOLEAN, ITSELF, REGULAR

S = Reference("s")
TEXT = repeat(ANY_CHAR)


def members(grammar: Grammar, max_length: int, alphabet: bytes) -> tuple[set[bytes], set[bytes]]:
    """The strings and the live prefixes that the reference implementation finds, up to a length."""
    found: set[bytes] = set()
    live: set[bytes] = set()
    agenda = [(b"", ReferenceMatcher(grammar))]
    while agenda:
        word, matcher = agenda.pop()
        if matcher.is_live:
            live.add(word)
        if matcher.is_accepting:
            found.add(word)
        if len(word) < max_length and matcher.is_live:
            for byte in alphabet:
                fork = matcher.fork()
                if fork.advance(byte):
                    agenda.append((word + bytes([byte]), fork))
    return found, live


def prefixes(words: set[bytes]) -> set[bytes]:
    return {word[:end] for word in words for end in range(len(word) + 1)}


def agree(grammar: Grammar, max_length: int, alphabet: bytes) -> None:
    """Check that strings are equal; their prefixes are live, and other live prefixes have longer strings."""
    wanted = language(grammar, max_length, alphabet)
    found, live = members(grammar, max_length, alphabet)
    assert found == wanted
    assert prefixes(wanted) <= live


HAND_PICKED = {
    "direct left recursion": Rules({"s": choice(sequence(S, "a"), "b")}, S),
    "hidden left recursion": Rules({"n": choice("", "a"), "s": choice(sequence(Reference("n"), S, "b"), "a")}, S),
    "nullable cycle": Rules({"s": choice(S, sequence(S, S), "a", "")}, S),
    "a rule that is only itself": Rules({"s": S}, S),
    "mutual recursion": Rules({"s": choice(sequence("a", Reference("t")), ""), "t": sequence(S, "b")}, S),
    "repetition of itself": Rules({"s": choice(repeat(S, 2, 3), "a", "")}, S),
    "ambiguous": Rules({"s": choice(sequence(S, S), sequence("a", S, "b"), "")}, S),
    "palindromes": Rules({"s": choice(sequence("a", S, "a"), sequence("b", S, "b"), "a", "b", "")}, S),
    "a rule that never ends": Rules({"s": sequence("a", S)}, choice(S, "b")),
    "inner rules hide outer ones": Rules({"s": literal("a")}, sequence(S, Rules({"s": literal("b")}, S), S)),
    "inner expression sees its own scope": Rules(
        {"t": literal("a"), "s": sequence(Reference("t"), "b")}, Rules({"t": literal("b")}, sequence(S, Reference("t")))
    ),
    "counted": Repeat(choice("a", "bb", ""), 2, 3),
    "no repetition": Repeat(literal("a"), 0, 0),
    "repeated nothing": Repeat(EMPTY, 0, None),
    "repeated empty text": Repeat(EPSILON, 3, None),
    "dead alternative": Choice([sequence("a", EMPTY), sequence("b", ByteClass([])), literal("ab")]),
    "dead sequence": sequence("a", CharClass([])),
    "intersection of nothing": Intersection([]),
    "intersection": Intersection([Repeat(choice("a", "bb")), Repeat(choice("aa", "b", "aba"))]),
    "dead intersection": sequence("a", Intersection([repeat("ab", 1), repeat("ba", 1)])),
    "complement": Complement(choice("ab", repeat("a", 1))),
    "complement of everything": Complement(TEXT),
    "double complement": Complement(Complement(choice("a", "ab"))),
    "rule in a complement": Rules({"s": choice("a", "b")}, Complement(sequence(S, S))),
    "wrappers": Capture("c", Shared(Described(choice("a", "ab"), Description("test")))),
}


@pytest.mark.parametrize("grammar", HAND_PICKED.values(), ids=HAND_PICKED.keys())
def test_hand_picked_terms_mean_what_set_algebra_says(grammar: Grammar) -> None:
    """The strings of up to five bytes are those of the naive definition."""
    agree(grammar, 5, b"ab")


def test_every_small_regular_term_means_what_set_algebra_says() -> None:
    """This holds for all terms of up to four nodes."""
    for term in small_terms(4, [literal("a"), literal("ab"), EPSILON, EMPTY]):
        agree(term, 4, b"ab")


def test_every_small_boolean_term_means_what_set_algebra_says() -> None:
    """This holds for all terms of up to four nodes with intersection and complement."""
    for term in small_terms(4, [literal("a"), repeat("ab")], [*REGULAR, *BOOLEAN]):
        agree(term, 4, b"ab")


def test_every_small_recursive_term_means_what_set_algebra_says() -> None:
    """This holds for all rules of up to five nodes that refer to themselves."""
    for term in small_terms(5, [ITSELF, literal("a"), EPSILON]):
        agree(recursive(term), 4, b"ab")


@given(regular_terms(b"ab"))
def test_any_regular_term_means_what_set_algebra_says(term: Grammar) -> None:
    """This holds for random terms, larger than the exhaustive ones."""
    agree(term, 4, b"ab")


@pytest.mark.exhaustive
@given(rule_terms(b"ab"))
def test_any_rules_mean_what_set_algebra_says(term: Grammar) -> None:
    """This holds for random rules with any recursion."""
    agree(term, 4, b"ab")


@pytest.mark.exhaustive
@given(rule_terms(b"ab", nested=True))
def test_any_rules_inside_rules_mean_what_set_algebra_says(term: Grammar) -> None:
    """This holds for random rules that shadow each other."""
    agree(term, 4, b"ab")


@pytest.mark.exhaustive
@given(text_terms("aé€😀"))
@settings(max_examples=60)
def test_any_text_term_means_what_set_algebra_says(term: Grammar) -> None:
    """This holds for characters of one to four bytes, also cut in the middle."""
    agree(term, 5, b"a\xc3\xa9\xe2\x82")


@given(json_terms('a"'))
@settings(max_examples=60)
def test_any_json_term_means_what_set_algebra_says(term: Grammar) -> None:
    """JSON strings are what ``json.loads`` reads."""
    agree(term, 5, b'"\\a1[')


PATTERNS = ["a*b|ba", "(a|bb){2,3}", "(ab|a)*", "a?b?a?", "((a|b)(a|b))*", "(a*)*b", "[ab]*a[ab]{2}", "a{0}|b{3,}"]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_regular_terms_match_what_re_matches(pattern: str) -> None:
    """``re`` decides membership and, by trying all extensions, which prefixes are live."""
    a, b = literal("a"), literal("b")
    ab = choice(a, b)
    term = {
        "a*b|ba": choice(sequence(repeat(a), b), "ba"),
        "(a|bb){2,3}": repeat(choice(a, "bb"), 2, 3),
        "(ab|a)*": repeat(choice("ab", a)),
        "a?b?a?": sequence(repeat(a, 0, 1), repeat(b, 0, 1), repeat(a, 0, 1)),
        "((a|b)(a|b))*": repeat(sequence(ab, ab)),
        "(a*)*b": sequence(repeat(repeat(a)), b),
        "[ab]*a[ab]{2}": sequence(repeat(ab), a, repeat(ab, 2, 2)),
        "a{0}|b{3,}": choice(repeat(a, 0, 0), repeat(b, 3)),
    }[pattern]
    words = ["".join(word) for n in range(8) for word in product("ab", repeat=n)]
    wanted = {word.encode() for word in words if re.fullmatch(pattern, word)}
    found, live = members(term, 7, b"ab")
    assert found == wanted
    # Every live prefix of these has a string within three more bytes.
    assert {word for word in live if len(word) <= 4} == {word for word in prefixes(wanted) if len(word) <= 4}


@pytest.mark.exhaustive
def test_characters_are_exactly_utf8() -> None:
    """Every byte sequence of up to three bytes from the edges of UTF-8 is a character iff Python decodes it."""
    edges = bytes.fromhex("00 7f 80 8f 90 9f a0 bf c0 c1 c2 df e0 e1 ec ed ee ef f0 f1 f3 f4 f5 ff")
    for length in (1, 2, 3):
        for word in map(bytes, product(edges, repeat=length)):
            try:
                wanted = len(word.decode()) == 1
            except UnicodeDecodeError:
                wanted = False
            matcher = ReferenceMatcher(ANY_CHAR)
            assert (matcher.accept_bytes(word) == length and matcher.is_accepting) == wanted, word


@pytest.mark.parametrize("code", [0, 0x7F, 0x80, 0x7FF, 0x800, 0xD7FF, 0xE000, 0xFFFF, 0x10000, 0x10FFFF])
def test_a_class_of_one_character_has_one_member(code: int) -> None:
    """At each byte of its encoding only that byte is allowed."""
    matcher = ReferenceMatcher(CharClass([(code, code)]))
    for byte in chr(code).encode():
        assert matcher.allowed_bytes() == {byte}
        assert matcher.advance(byte)
    assert matcher.is_accepting
    assert matcher.allowed_bytes() == set()


def test_a_json_string_has_every_spelling_and_no_other() -> None:
    """All strings of up to six characters over those of escapes agree with ``json.loads``."""
    texts = ("\u0010", "\n", "u", "\\", "/", '"', "")
    start = ReferenceMatcher(JsonString(choice(*texts)))
    members: set[bytes] = set()
    for length in range(7):
        for inside in map(bytes, product(b'"\\u0n1', repeat=length)):
            word = b'"' + inside + b'"'
            try:
                wanted = json.loads(word) in texts
            except json.JSONDecodeError:
                wanted = False
            matcher = start.fork()
            assert (matcher.accept_bytes(word) == len(word) and matcher.is_accepting) == wanted, word
            members.update([word] if wanted else [])
    assert members == {b'""', b'"u"', rb'"\n"', rb'"\\"', rb'"\""', rb'"\u0010"'}


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (r'"😀"', True),
        (r'"\ud83d\ude00"', True),
        (r'"\uD83D\uDE00"', True),
        (r'"\uD83d\udE00"', True),
        (r'"\ud83d"', False),
        (r'"\ude00"', False),
        (r'"\ude00\ud83d"', False),
        (r'"\ud83d\ud83d"', False),
        (r'"\ud83d😀"', False),
        (r'"\ud83d\n"', False),
        (r'"\U0001f600"', False),
        (r'"\u1f600"', False),
    ],
)
def test_surrogate_pairs_spell_one_character(text: str, *, wanted: bool) -> None:
    """A lone or swapped surrogate spells nothing."""
    matcher = ReferenceMatcher(JsonString(ANY_CHAR))
    data = text.encode()
    assert (matcher.accept_bytes(data) == len(data) and matcher.is_accepting) == wanted


def test_escapes_are_live_only_while_a_member_remains() -> None:
    r"""After ``"\ud8..`` only spellings of a character of the value may follow."""
    matcher = ReferenceMatcher(JsonString(literal("😀")))  # U+1F600, spelled \ud83d\ude00
    for byte in rb'"\ud83d\ude00"':
        allowed = matcher.allowed_bytes()
        expected = {byte, ord(chr(byte).upper())} if chr(byte) in "de" else {byte}
        assert allowed == (expected | ({0xF0} if matcher.allows_token("😀".encode()) else set()))
        assert matcher.advance(byte)
    assert matcher.is_accepting


def test_ascii_values_leave_no_way_into_other_characters() -> None:
    r"""After ``"\u`` an ASCII text can only go on with 00."""
    matcher = ReferenceMatcher(JsonString(repeat(CharClass([(0, 0x7F)]))))
    assert matcher.accept_bytes(rb'"\u') == 3
    assert matcher.allowed_bytes() == {ord("0")}
    assert matcher.accept_bytes(b"00") == 2
    assert matcher.allowed_bytes() == set(b"01234567")


def test_control_characters_must_be_escaped_and_delete_need_not() -> None:
    """RFC 8259 lets U+007F stand raw and nothing below U+0020."""
    matcher = ReferenceMatcher(JsonString(TEXT))
    assert matcher.advance(ord('"'))
    assert matcher.allowed_bytes() == set(range(0x20, 0x80)) | set(range(0xC2, 0xF5))


def test_special_tokens_are_symbols_by_id_and_by_text() -> None:
    """No text matches a special token, and a special token matches no text."""
    grammar = sequence("a", choice(SpecialToken("<end>"), sequence("<end>", SpecialToken(7))))
    matcher = ReferenceMatcher(grammar, {5: "<end>", 7: "<tool>"})
    assert matcher.advance(ord("a"))
    assert matcher.fork().advance_special(5)
    assert matcher.fork().advance_special("<end>")
    assert not matcher.fork().advance_special(7)
    assert matcher.accept_bytes(b"<end>") == 5
    assert not matcher.is_accepting
    assert matcher.allowed_bytes() == set()
    assert matcher.advance_special("<tool>")
    assert matcher.is_accepting


@pytest.mark.exhaustive
@given(st.one_of(json_terms('a"é'), text_terms("aé€"), rule_terms(b"ab")), st.integers(0, 99))
@settings(max_examples=40)
def test_bytes_of_one_kind_lead_to_equal_positions(term: Grammar, seed: int) -> None:
    """Along a random walk, the derivatives by two bytes without a cut between them are the same."""
    rng, algebra = random.Random(seed), Algebra()
    recogniser = Recogniser(term, {}, algebra)
    position = recogniser.start
    for _ in range(5):
        for state in {state for _, state, _ in position.items if isinstance(state, Regex)}:
            after = [algebra.derivative(state, byte) for byte in range(256)]
            assert all(position.cuts >> byte & 1 or after[byte] is after[byte - 1] for byte in range(1, 256))
        allowed = sorted(recogniser.next_bytes(position))
        if not allowed:
            break
        following = recogniser.step(position, rng.choice(allowed))
        assert following is not None
        position = following


def test_mask_is_what_each_token_alone_says() -> None:
    """EOS follows acceptance, special tokens their symbol, and empty tokens never come."""
    tokens = [b"", b"a", b"aa", b"ab", b"b", b"", b"aa", b"a"]
    matcher = ReferenceMatcher(sequence(repeat("a"), repeat(choice(SpecialToken("<x>"), "b"), 0, 1)), {7: "<x>"})
    assert matcher.mask(tokens, eos=[0]) == {0, 1, 2, 3, 4, 6, 7}
    for index in (1, 2, 3, 4, 5, 6):
        assert matcher.allows_token(tokens[index]) == (index != 5)
    assert matcher.advance(ord("b"))
    assert matcher.mask(tokens, eos=[0]) == {0}


def test_rollback_and_fork_keep_histories_apart() -> None:
    """Rolling one back does not move the other."""
    matcher = ReferenceMatcher(literal("abc"))
    assert matcher.accept_bytes(b"abx") == 2
    fork = matcher.fork()
    matcher.rollback(2)
    assert matcher.allowed_bytes() == {ord("a")}
    assert fork.allowed_bytes() == {ord("c")}
    with pytest.raises(ValueError, match="rollback"):
        matcher.rollback(1)


def test_an_empty_language_is_dead_from_the_start() -> None:
    """It allows nothing and accepts nothing."""
    matcher = ReferenceMatcher(Rules({"s": sequence("a", S)}, S))
    assert not matcher.is_live
    assert not matcher.is_accepting
    assert matcher.allowed_bytes() == set()


@pytest.mark.parametrize(
    "grammar",
    [
        Reference("x"),
        Rules({"s": literal("a")}, Shared(S)),
        Rules({"s": choice("a", sequence("b", S))}, Complement(S)),
        Rules({"s": choice("a", sequence("b", S))}, JsonString(S)),
        Rules({"s": choice("a", Intersection([S]))}, S),
    ],
)
def test_unbound_and_recursive_regular_terms_are_refused(grammar: Grammar) -> None:
    """Both definitions refuse them."""
    with pytest.raises(GrammarError):
        ReferenceMatcher(grammar)
    with pytest.raises(GrammarError):
        language(grammar, 2, b"ab")


def test_deep_terms_need_no_recursion() -> None:
    """Sequences, choices, repetitions and rules, nested far beyond the interpreter's stack, work."""
    depth = 5_000
    nested: Grammar = literal("x")
    for _ in range(depth):
        nested = Rules({"s": Sequence([literal("("), Repeat(Choice([nested]), 1, 1), literal(")")])}, S)
    matcher = ReferenceMatcher(nested)
    assert matcher.accept_bytes(b"((x") == 2
    assert matcher.allowed_bytes() == {ord("(")}


def test_literals_may_hold_any_bytes() -> None:
    """Bytes that are not UTF-8 are allowed in literals, and in no complement."""
    agree(sequence(Literal(b"\xff\xfe"), ByteClass([(0x80, 0xFF)])), 3, b"\xff\xfe\x80a")
    agree(Complement(Literal(b"\xff")), 2, b"\xff\xc3\xa9a")

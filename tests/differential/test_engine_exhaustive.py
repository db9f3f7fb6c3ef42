"""The engine's masks equal the reference's for every small term, every short token and every short prefix."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product

import pytest

from structgen.engine import Matcher, Vocabulary, compile
from structgen.errors import GrammarError, UnsatisfiableGrammar, VocabularyError
from structgen.grammar.nodes import (
    ANY_CHAR,
    EMPTY,
    EPSILON,
    Capture,
    CharClass,
    Complement,
    Grammar,
    Intersection,
    JsonString,
    Permutation,
    Reference,
    Rules,
    Shared,
    SpecialToken,
    choice,
    literal,
    repeat,
    sequence,
)
from structgen.testing import ReferenceMatcher, byte_vocabulary, recursive, small_terms
from structgen.testing.small_scope import BOOLEAN, ITSELF, REGULAR, STAR
from structgen.testing.state_walk import allowed_tokens

PREFIX = 4
"""Length up to which prefixes are tried."""
EVERY_BYTE = [bytes([byte]) for byte in range(256)]
"""With these, whatever bytes can complete, tokens can; without, see the last tests."""


class LiveWords:
    """The reference implementation's verdict on all words over some letters up to a length, each word read once."""

    def __init__(self, grammar: Grammar, letters: bytes, max_length: int) -> None:
        self.letters = set(letters)
        self.live: set[bytes] = set()
        self.members: set[bytes] = set()
        start = ReferenceMatcher(grammar)
        agenda = [(b"", start)] if start.is_live else []
        while agenda:
            word, matcher = agenda.pop()
            self.live.add(word)
            if matcher.is_accepting:
                self.members.add(word)
            for letter in letters if len(word) < max_length else b"":
                fork = matcher.fork()
                if fork.advance(letter):
                    agenda.append((word + bytes([letter]), fork))

    def compare(self, matcher: Matcher, word: bytes, tokens: list[bytes], grammar: Grammar) -> None:
        """Compare one mask and whether the engine accepts; only tokens spelled with the letters are compared."""
        spelled = {index for index, token in enumerate(tokens) if self.letters.issuperset(token)}  # and EOS
        wanted = {index for index in spelled if tokens[index] and word + tokens[index] in self.live}
        wanted |= {0} if word in self.members else set()
        got = allowed_tokens(matcher, len(tokens)) & spelled
        missing, extra = ([tokens[i] for i in sorted(ids)] for ids in (wanted - got, got - wanted))
        assert got == wanted, f"{grammar} after {word!r}: missing {missing}, too many {extra}"
        assert matcher.is_accepting == (word in self.members), f"{grammar} after {word!r}: is_accepting"


def compare(grammar: Grammar, vocabulary: Vocabulary, letters: bytes, prefix: int = PREFIX) -> int:
    """Compare all masks up to prefixes of a length; return the number of states."""
    tokens = list(vocabulary.tokens)
    words = LiveWords(grammar, letters, prefix + max(map(len, tokens)))
    try:
        constraint = compile(grammar, vocabulary)
    except UnsatisfiableGrammar:
        assert not words.live, f"{grammar} has members, and the engine says that it has none"
        return 1
    assert words.live, f"{grammar} has no members, and the engine compiled it"
    agenda = [(b"", constraint.matcher())]
    compared = 0
    while agenda:
        word, matcher = agenda.pop()
        words.compare(matcher, word, tokens, grammar)
        compared += 1
        for letter in letters if len(word) < prefix else b"":
            fork = matcher.fork()
            extended = word + bytes([letter])
            accepted = fork.accept_bytes(bytes([letter]))
            assert accepted == (extended in words.live), f"{grammar}: byte {letter:#x} after {word!r}"
            if accepted:
                agenda.append((extended, fork))
    return compared


def compare_all(grammars: Iterable[Grammar], vocabulary: Vocabulary, letters: bytes, prefix: int = PREFIX) -> int:
    return sum(compare(grammar, vocabulary, letters, prefix) for grammar in grammars)


def test_every_small_regular_term(ab_vocabulary: Vocabulary) -> None:
    """Sequences, choices and repetitions of a, b, ab, the empty string and the empty language, up to five nodes."""
    terms = small_terms(5, [literal("a"), literal("b"), literal("ab"), EPSILON, EMPTY])
    assert compare_all(terms, ab_vocabulary, b"ab") > 3_000


def test_every_small_boolean_term(ab_vocabulary: Vocabulary) -> None:
    """The same with intersection and complement."""
    terms = small_terms(5, [literal("a"), literal("b")], [*REGULAR, *BOOLEAN])
    assert compare_all(terms, ab_vocabulary, b"ab") > 3_000


@pytest.mark.nightly
def test_every_small_recursive_term(ab_vocabulary: Vocabulary) -> None:
    """Rules that refer to themselves: left, hidden left, right and middle recursion, cycles, ambiguity."""
    terms = small_terms(6, [ITSELF, literal("a"), choice("b", "")])
    assert compare_all(map(recursive, terms), ab_vocabulary, b"ab") > 20_000


def test_every_small_pair_of_rules(ab_vocabulary: Vocabulary) -> None:
    """Two rules that refer to each other and to themselves."""
    x, y = Reference("x"), Reference("y")
    operators = [operator for operator in REGULAR if operator is not STAR]
    bodies = list(small_terms(4, [x, y, literal("a")], operators))
    others = list(small_terms(3, [x, y, literal("b"), EPSILON], operators))
    pairs = (Rules({"x": body, "y": other}, x) for body in bodies for other in others)
    assert compare_all(pairs, ab_vocabulary, b"ab", prefix=3) > 5_000


def test_small_permutations(ab_vocabulary: Vocabulary) -> None:
    """Items, extra items and separators that overlap and may be empty, also with text after the permutation."""
    a, b, ab = literal("a"), literal("b"), literal("ab")
    lists = [[], [a], [a, ab], [choice("a", ""), b]]
    compared = 0
    for required, optional in product(lists, lists):
        for rest, separator in product([EMPTY, b], [EPSILON, b, choice("a", "")]):
            for low, high in [(0, None), (2, 3), (1, 1)]:
                if high is None or high >= len(required):
                    term = Permutation(required, optional, rest, separator, low, high)
                    compared += compare(term, ab_vocabulary, b"ab", 3)
                    compared += compare(sequence(term, "a"), ab_vocabulary, b"ab", 3)
    assert compared > 2_000


def test_permutations_of_what_calls_rules(ab_vocabulary: Vocabulary) -> None:
    """Items may call rules, even the rule that holds the permutation."""
    x, y = Reference("x"), Reference("y")
    nested = Permutation([sequence("a", x, "b")], [y], None, EPSILON)
    bodies = [choice(nested, "ab"), choice(Permutation([], [sequence("a", x), y], literal("b"), EPSILON, 1, 3), "b")]
    for body in bodies:
        grammar = Rules({"x": body, "y": choice("bb", sequence("a", y))}, x)
        assert compare(grammar, ab_vocabulary, b"ab", 4) > 1


def test_permutations_are_regular(ab_vocabulary: Vocabulary) -> None:
    """Permutations are regular terms, so they can be intersected, complemented and written as JSON strings."""
    each = Permutation([literal("a"), literal("b")], [literal("ab")])
    terms = [
        Intersection((each, repeat(choice("ab", "ba")))),
        Intersection((Complement(each), repeat(choice("a", "b"), 0, 4))),
        sequence(Intersection((each, Complement(literal("ab")))), "b"),
        Permutation([Intersection((repeat(ANY_CHAR, 1, 2), Complement(literal("a")))), literal("b")]),
    ]
    for term in terms:
        assert compare(term, ab_vocabulary, b"ab", 4) > 1
    strings = Vocabulary([b"", *(bytes([byte]) for byte in range(256))], eos=[0])
    for value in (each, Permutation([literal("\n"), literal("n")], [literal('"')], None, literal("n"), 1, 2)):
        assert compare(JsonString(value), strings, b'"\\nabu', 4) > 1


@pytest.mark.nightly
def test_small_json_strings() -> None:
    """JSON strings over quotes, backslashes, letters and one control character, with token boundaries anywhere."""
    letters = b'"\\u0n1'
    tokens = [*byte_vocabulary(letters, 2), b"\\u0", b"\\u00", b"u001", b'\\"\\', b'0"', b"000", b'n""']
    vocabulary = Vocabulary([*tokens, *EVERY_BYTE], eos=[0])
    values = [
        repeat(ANY_CHAR),
        EPSILON,
        literal("\n"),
        choice("\\", '"', "n"),
        repeat(choice("\x00", "\x10", "\x11"), 1, 2),
        repeat(CharClass([(0, 0x1F), (0x22, 0x22)]), 2, 2),
        Complement(choice("n", "", sequence("u", repeat(ANY_CHAR)))),
        sequence(repeat("\x01"), "1"),
    ]
    grammars = [form for value in values for form in (JsonString(value), sequence('"', JsonString(value), "1"))]
    assert compare_all(grammars, vocabulary, letters, prefix=5) > 1_500


def test_small_texts_that_are_cut_inside_characters() -> None:
    """Characters of two to four bytes, in tokens that begin and end anywhere."""
    letters = b"a\xc3\xa9\xf0\x9f\x98"
    longer = ["é".encode() * 2, "aé".encode(), "😀".encode()[:3]]
    vocabulary = Vocabulary([*byte_vocabulary(letters, 2), *longer, *EVERY_BYTE], eos=[0])
    classes = [ANY_CHAR, CharClass([(0x61, 0xE9)]), CharClass([(0x1F600, 0x1F64F)]), CharClass([(0xC0, 0x10000)])]
    grammars = [
        form
        for chars in classes
        for form in (repeat(chars, 1, 2), Complement(chars), Complement(repeat(chars)), repeat(chars) & ~literal("é"))
    ]
    assert compare_all(grammars, vocabulary, letters, prefix=4) > 1_000


@pytest.mark.parametrize("wrap", [lambda g: Capture("part", g), Shared], ids=["capture", "shared"])
def test_wrappers_change_nothing(wrap: type[Shared], ab_vocabulary: Vocabulary) -> None:
    """A captured or shared term, alone or among others, has the language of its item."""
    for term in small_terms(3, [literal("a"), literal("b")]):
        compare(wrap(term), ab_vocabulary, b"ab")
        compare(sequence(wrap(term), choice(wrap(term), "b")), ab_vocabulary, b"ab", prefix=3)


def test_special_tokens_are_apart_from_text() -> None:
    """Along all sequences of up to three tokens, masks with special tokens equal those of the reference."""
    tokens = [*byte_vocabulary(b"ab", 2), b"", b"<x>"]
    vocabulary = Vocabulary(tokens, eos=[0], special={7: "<x>", 8: "<y>"})
    x, y = SpecialToken("<x>"), SpecialToken(8)
    grammars = [
        sequence("a", x, "b"),
        repeat(choice(x, "a", sequence("b", y))),
        sequence(repeat(choice("a", "b")), x, repeat(y, 1, 2)),
        Rules({"s": choice(sequence(x, Reference("s"), y), "a")}, Reference("s")),
    ]
    for grammar in grammars:
        agenda = [(compile(grammar, vocabulary).matcher(), ReferenceMatcher(grammar, vocabulary.special), 0)]
        while agenda:
            matcher, reference, depth = agenda.pop()
            mask = reference.mask(vocabulary.tokens, eos=vocabulary.eos)
            assert allowed_tokens(matcher, vocabulary.size) == mask, str(grammar)
            for token in sorted(mask - {0}) if depth < 3 else ():
                fork, after = matcher.fork(), reference.fork()
                assert fork.accept(token)
                assert after.advance_special(token) if token >= 7 else after.accept_bytes(tokens[token])
                agenda.append((fork, after, depth + 1))


@pytest.mark.parametrize("tokens", [[b"aa", b"ab", b"b"], [b"a", b"ba", b"bbb"], [b"abb", b"ba", b"aaa", b"b"]])
def test_tokens_that_cannot_spell_all_leave_no_dead_end(tokens: list[bytes]) -> None:
    """Where single bytes are no tokens, a token is allowed iff further tokens complete a string.

    The languages are finite, so this is decided by trying all token sequences.
    """
    vocabulary = Vocabulary([b"", *tokens], eos=[0])
    finite = [operator for operator in REGULAR if operator is not STAR]
    for grammar in small_terms(5, [literal("a"), literal("b"), literal("ab")], finite):
        words = LiveWords(grammar, b"ab", 2**5)
        completable: dict[bytes, bool] = {}
        for word in sorted(words.live, key=len, reverse=True):
            completable[word] = word in words.members or any(completable.get(word + token) for token in tokens)
        try:
            constraint = compile(grammar, vocabulary)
        except VocabularyError:
            assert not completable[b""], f"{grammar} can be spelled, and the engine says that it cannot"
            continue
        assert completable[b""], f"{grammar} cannot be spelled, and the engine compiled it"
        agenda = [(b"", constraint.matcher())]
        while agenda:
            word, matcher = agenda.pop()
            wanted = {i for i, token in enumerate(vocabulary.tokens) if token and completable.get(word + token)}
            got = allowed_tokens(matcher, vocabulary.size)
            assert got == wanted | ({0} if word in words.members else set()), f"{grammar} after {word!r}"
            for token in wanted:
                fork = matcher.fork()
                assert fork.accept(token)
                agenda.append((word + vocabulary.tokens[token], fork))


@pytest.mark.parametrize("grammar", [Reference("x"), recursive(choice("a", Complement(ITSELF)))], ids=str)
def test_terms_without_meaning_are_refused(grammar: Grammar, ab_vocabulary: Vocabulary) -> None:
    """Free references and recursion under a complement are refused."""
    with pytest.raises(GrammarError):
        compile(grammar, ab_vocabulary)

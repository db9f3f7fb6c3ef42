"""Matchers and masks on small languages whose answers are known by hand."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import threading
from collections.abc import Iterator

import numpy as np
import pytest

from structgen.engine import Constraint, Matcher, Vocabulary, compile, fill_masks
from structgen.engine.mask import allowed_ids, empty_masks, mask_width
from structgen.errors import GrammarError, LimitExceeded, UnsatisfiableGrammar, VocabularyError
from structgen.frontends.json_schema import json_schema
from structgen.frontends.regex import regex
from structgen.grammar.limits import Limits
from structgen.grammar.nodes import (
    ANY_CHAR,
    EMPTY,
    CharClass,
    Choice,
    Complement,
    Distinct,
    Grammar,
    Intersection,
    JsonString,
    Literal,
    Reference,
    Rules,
    Sequence,
    Shared,
    SpecialToken,
    choice,
    literal,
    repeat,
    sequence,
)

EOS = 256
BYTES = Vocabulary([*(bytes([value]) for value in range(256)), b""], eos=[EOS])
WORDS = Vocabulary(
    [b"<eos>", *(bytes(text) for size in (1, 2, 3) for text in itertools.product(b"ab", repeat=size))], eos=[0]
)


def allowed(matcher: Matcher) -> set[int]:
    """The mask as a set; also checks the bits beyond the vocabulary."""
    size = matcher.constraint.vocabulary.size
    words = np.full((1, (size + 31) // 32), -1, dtype=np.int32)
    matcher.fill_mask(words)
    bits = np.flatnonzero(np.unpackbits(words.view(np.uint8), bitorder="little"))
    assert all(bit < size for bit in bits), "bits beyond the vocabulary are set"
    return set(bits.tolist())


def accepts(grammar: Grammar, text: bytes) -> bool:
    """Whether the text is in the language."""
    matcher = compile(grammar, BYTES).matcher()
    return matcher.accept_bytes(text) == len(text) and matcher.is_accepting


def test_eos_is_allowed_exactly_where_the_text_may_end():
    """The EOS bit, is_accepting and accept(EOS) agree before, at and after the end."""
    matcher = compile(literal("ab"), BYTES).matcher()
    assert allowed(matcher) == {ord("a")}
    assert not matcher.accept(EOS)
    assert matcher.accept(ord("a"))
    assert matcher.accept(ord("b"))
    assert allowed(matcher) == {EOS}
    assert matcher.is_accepting
    assert matcher.accept(EOS)
    assert matcher.is_terminated
    assert allowed(matcher) == set()
    assert not matcher.accept(EOS)


def test_several_eos_ids_are_set_together():
    """Every EOS id of the vocabulary ends the text."""
    vocabulary = Vocabulary([b"a", b"", b""], eos=[1, 2])
    matcher = compile(literal("a"), vocabulary).matcher()
    matcher.accept(0)
    assert allowed(matcher) == {1, 2}


def test_refused_tokens_leave_the_state_unchanged():
    """A refused, unknown or padding token changes nothing."""
    vocabulary = Vocabulary([b"a", b"b", b""], eos=[2], size=40)
    matcher = compile(literal("ab"), vocabulary).matcher()
    before = matcher.state_id
    for token in (1, 2, 17, 39, 40, 4_000_000):
        assert not matcher.accept(token)
    assert matcher.state_id == before
    assert allowed(matcher) == {0}


def test_rollback_undoes_accept_and_eos():
    """Rolling back n steps restores the mask of n steps ago, also after the end."""
    matcher = compile(literal("a").many(1, 5), WORDS).matcher()
    masks = [allowed(matcher)]
    for token in (1, 3, 1):
        assert matcher.accept(token)
        masks.append(allowed(matcher))
    matcher.accept(0)
    matcher.rollback(1)
    assert allowed(matcher) == masks[3]
    matcher.rollback(2)
    assert allowed(matcher) == masks[1]
    with pytest.raises(ValueError, match="more steps"):
        matcher.rollback(2)
    matcher.reset()
    assert allowed(matcher) == masks[0]


def test_forks_are_independent():
    """A token that one fork accepts does not move the other."""
    first = compile(choice("aa", "bb"), WORDS).matcher()
    second = first.fork()
    first.accept(1)
    second.accept(2)
    assert allowed(first) == {1}
    assert allowed(second) == {2}


def test_validate_counts_and_keeps_the_state():
    """validate says how many tokens would be accepted, EOS included, and keeps the state."""
    matcher = compile(literal("ab"), WORDS).matcher()
    ab = WORDS.tokens.index(b"ab")
    assert matcher.validate([ab, 0]) == 2
    assert matcher.validate([ab, 0, 1]) == 2
    assert matcher.validate([1, 1]) == 1
    assert matcher.validate([0]) == 0
    assert allowed(matcher) == {1, ab}


def test_tokens_may_cross_rule_boundaries():
    """A token that ends one rule and begins the next is allowed iff both agree."""
    pair = Rules({"x": literal("a"), "y": choice("b", "ab")}, sequence(Reference("x"), Reference("y")))
    matcher = compile(pair, WORDS).matcher()
    assert {WORDS.tokens[token] for token in allowed(matcher)} == {b"a", b"ab", b"aa", b"aab"}


def test_special_tokens_never_match_text():
    """A special token is one symbol: its text does not spell it and it does not match text."""
    vocabulary = Vocabulary(
        [*(bytes([value]) for value in range(256)), b"<|tool|>", b"<eos>"], eos=[257], special={256: "<|tool|>"}
    )
    grammar = sequence(SpecialToken("<|tool|>"), "x")
    matcher = compile(grammar, vocabulary).matcher()
    assert allowed(matcher) == {256}
    assert matcher.accept_bytes(b"<") == 0
    assert matcher.accept(256)
    assert allowed(matcher) == {ord("x")}
    free = compile(repeat(ANY_CHAR), vocabulary).matcher()
    assert 256 not in allowed(free)
    with pytest.raises(GrammarError, match="EOS"):
        compile(SpecialToken(257), vocabulary)
    with pytest.raises(GrammarError, match="no special token"):
        compile(SpecialToken(65), vocabulary)


def test_special_tokens_inside_rules():
    """Special tokens work below calls, after them, and at the end of a rule."""
    vocabulary = Vocabulary([b"a", b"b", b"", b""], eos=[3], special={2: "<s>"})
    grammar = Rules({"x": sequence("a", repeat(SpecialToken("<s>"), 0, 1))}, sequence(Reference("x"), "b"))
    matcher = compile(grammar, vocabulary).matcher()
    matcher.accept(0)
    assert allowed(matcher) == {1, 2}
    assert matcher.accept(2)
    assert allowed(matcher) == {1}
    assert matcher.forced_bytes() == b"b"


def test_utf8_may_be_split_between_tokens():
    """Any split of a character is allowed, and nothing that is not UTF-8."""
    grammar = CharClass([(0xE9, 0xE9), (0x1F600, 0x1F64F)])
    assert accepts(grammar, "é".encode())
    assert accepts(grammar, "😀".encode())
    matcher = compile(grammar, BYTES).matcher()
    assert allowed(matcher) == {0xC3, 0xF0}
    assert not accepts(repeat(ANY_CHAR), b"\xed\xa0\x80")
    assert not accepts(repeat(ANY_CHAR), b"\xc0\x80")


def test_json_strings_accept_every_spelling_of_a_value():
    """Escapes, either case of hex digits and surrogate pairs spell the same text; lone surrogates do not."""
    grammar = JsonString(choice("a/é😀"))
    for text in (r'"a/é😀"', r'"\u0061\/\u00E9\ud83d\uDE00"', r'"a\/\u00e9😀"'):
        assert accepts(grammar, text.encode()), text
    for text in (r'"a/é\ud83d"', r'"a/é\ude00\ud83d"', r'"A/é😀"', r'"\a/é😀"', '"a/é😀', r'"a/é😀\n"'):
        assert not accepts(grammar, text.encode()), text
    assert accepts(JsonString(literal('\n"\\')), rb'"\n\"\\"')
    assert not accepts(JsonString(literal("\n")), b'"\n"')


def test_complement_of_names_excludes_every_spelling():
    """An excluded key stays excluded when it is written with escapes."""
    grammar = JsonString(Complement(choice("ab", "cd")))
    assert accepts(grammar, b'"abc"')
    assert accepts(grammar, b'""')
    for text in (rb'"ab"', rb'"\u0061b"', rb'"c\u0064"'):
        assert not accepts(grammar, text)


def test_unsatisfiable_grammars_are_refused():
    """Empty languages of every kind are reported at compile time."""
    for grammar in (
        EMPTY,
        Sequence([literal("a"), EMPTY]),
        Intersection([literal("a"), literal("b")]),
        Complement(repeat(ANY_CHAR)),
        Rules({"x": sequence("a", Reference("x"))}, Reference("x")),
        JsonString(EMPTY),
        repeat(EMPTY, 2, 3),
    ):
        with pytest.raises(UnsatisfiableGrammar):
            compile(grammar, BYTES)


def test_dead_alternatives_are_pruned():
    """A branch that can never end is not offered."""
    grammar = Rules({"loop": sequence("a", Reference("loop"))}, choice(Reference("loop"), "ab"))
    matcher = compile(grammar, WORDS).matcher()
    ab = WORDS.tokens.index(b"ab")
    assert allowed(matcher) == {1, ab}
    assert matcher.accept(1)
    assert allowed(matcher) == {2}


def test_free_references_and_recursion_in_regular_parts_are_refused():
    """Errors name the rule."""
    with pytest.raises(GrammarError, match="'nowhere' is not defined"):
        compile(Reference("nowhere"), BYTES)
    nested = Rules({"p": choice("x", sequence("(", Reference("p"), ")"))}, Reference("p"))
    with pytest.raises(GrammarError, match="recursive where the language must be regular"):
        compile(Complement(nested), BYTES)


def test_rules_without_recursion_may_stand_in_regular_parts():
    """References are spliced into intersections."""
    grammar = Rules(
        {"d": CharClass([(48, 57)])}, Intersection([repeat(Reference("d"), 1, 3), Complement(literal("7"))])
    )
    assert accepts(grammar, b"77")
    assert not accepts(grammar, b"7")
    assert not accepts(grammar, b"1234")


def test_inner_rules_shadow_outer_ones():
    """A reference belongs to the innermost binding; Shared terms see no outer bindings."""
    inner = Rules({"x": literal("b")}, Reference("x"))
    grammar = Rules({"x": literal("a")}, sequence(Reference("x"), inner, Reference("x")))
    assert accepts(grammar, b"aba")
    with pytest.raises(GrammarError, match="not defined"):
        compile(Rules({"x": literal("a")}, Shared(Reference("x"))), BYTES)


def test_left_recursion_of_every_kind():
    """Direct, indirect and hidden left recursion give the language of the equivalent right recursion."""
    direct = Rules({"e": choice(sequence(Reference("e"), "+a"), "a")}, Reference("e"))
    indirect = Rules({"e": choice(Reference("f"), "a"), "f": sequence(Reference("e"), "+a")}, Reference("e"))
    hidden = Rules(
        {"e": choice(sequence(Reference("n"), Reference("e"), "+a"), "a"), "n": choice("", "-")}, Reference("e")
    )
    for grammar in (direct, indirect, hidden):
        assert accepts(grammar, b"a+a+a")
        assert not accepts(grammar, b"a+")
    assert accepts(hidden, b"--a+a+a")
    assert not accepts(hidden, b"---a+a+a")


def test_ambiguous_grammars_stay_polynomial():
    """S -> S S | a with 400 letters has more parses than atoms in the universe, but few configurations."""
    grammar = Rules({"s": choice(sequence(Reference("s"), Reference("s")), "a")}, Reference("s"))
    constraint = compile(grammar, BYTES, limits=Limits(states=20_000))
    matcher = constraint.matcher()
    assert matcher.accept_bytes(b"a" * 400) == 400
    assert matcher.is_accepting


def test_branches_with_equal_prefixes_merge():
    """Fifty branches that differ in their last field share few configurations until there."""
    branches = [sequence('{"name":', Shared(JsonString(repeat(ANY_CHAR))), f',"tag":{index}}}') for index in range(50)]
    constraint = compile(choice(*branches), BYTES)
    matcher = constraint.matcher()
    used = constraint.native.states_used
    text = b'{"name":"Ada Lovelace","tag":4'
    assert matcher.accept_bytes(text) == len(text)
    assert allowed(matcher) == {ord("}"), *range(ord("0"), ord("9") + 1)}
    assert constraint.native.states_used - used < 200


def test_deep_right_recursion_and_deep_nesting():
    """100,000 levels of nesting are ordinary text."""
    grammar = Rules({"p": choice("x", sequence("(", Reference("p"), ")"))}, Reference("p"))
    matcher = compile(grammar, BYTES).matcher()
    depth = 100_000
    assert matcher.accept_bytes(b"(" * depth + b"x" + b")" * (depth - 1)) == 2 * depth
    assert matcher.forced_bytes() == b")"
    listed = Rules({"l": sequence("a", choice("", Reference("l")))}, Reference("l"))
    assert compile(listed, BYTES).matcher().accept_bytes(b"a" * depth) == depth


@pytest.mark.exhaustive
def test_deep_terms_are_only_data():
    """Grammars nested 100,000 deep compile without recursion."""
    term: Grammar = literal("a")
    for index in range(100_000):
        term = Sequence([literal("("), term]) if index % 2 else Choice([term, literal("b")])
    matcher = compile(term, BYTES).matcher()
    assert matcher.accept_bytes(b"((((") == 4


def test_nested_stars_and_large_counts():
    """(((a*)*)*)* and {1,100000} are small; nested counts do not multiply."""
    stars: Grammar = literal("a")
    for _ in range(50):
        stars = repeat(stars)
    assert accepts(stars, b"a" * 100)
    counted = repeat(CharClass([(97, 122)]), 1, 100_000)
    assert accepts(counted, b"q" * 500)
    nullable = repeat(repeat(choice("a", ""), 0, 1000), 3, 1000)
    assert accepts(nullable, b"a" * 100)
    assert accepts(nullable, b"")


def test_large_enums():
    """100,000 literals compile, and a mask needs only the current branch."""
    words = [f"word{index:06d}".encode() for index in range(100_000)]
    grammar = Choice([Literal(word) for word in words])
    matcher = compile(grammar, BYTES).matcher()
    assert matcher.accept_bytes(b"word09999") == 9
    assert allowed(matcher) == set(range(ord("0"), ord("9") + 1))


def test_limits_name_themselves_and_change_nothing():
    """A limit error names its field; the matcher keeps its state and can go on."""
    evil = sequence(repeat(choice("a", "b")), "a", repeat(choice("a", "b"), 18, 18))
    constraint = compile(evil, BYTES, limits=Limits(states=3_000))
    matcher = constraint.matcher()
    rng = random.Random(3)
    steps = 0
    with pytest.raises(LimitExceeded) as caught:  # noqa: PT012  the step that fails is not known beforehand
        while True:
            assert matcher.accept(rng.choice(b"ab"))
            steps += 1
    assert caught.value.limit == "states"
    assert caught.value.maximum == 3_000
    assert matcher.history_length == steps
    with pytest.raises(LimitExceeded, match="regular_states"):
        compile(
            Intersection([evil, Complement(sequence(repeat(ANY_CHAR), "b", repeat(ANY_CHAR, 17, 17)))]),
            BYTES,
            limits=Limits(regular_states=3),
        )


def test_long_use_of_one_constraint_does_not_use_up_its_states():
    """States of earlier texts are dropped when the limit is reached; live matchers and their forks go on."""
    branches = [sequence(f"{index:02d}", repeat(CharClass([(97, 122)]), 0, 400), f"!{index}") for index in range(40)]
    constraint = compile(choice(*branches), BYTES, limits=Limits(states=2_500))
    old = constraint.matcher()
    assert old.accept_bytes(b"07abc") == 5
    old.accept(ord("d"))
    before = allowed(old)
    for index in range(40):
        matcher = constraint.matcher()
        for byte in f"{index:02d}".encode() + b"x" * 200:
            assert matcher.accept(byte)
        assert matcher.accept_bytes(f"!{index}".encode()) == 1 + len(str(index))
        assert matcher.is_accepting
    assert constraint.native.states_used < 2_500
    fork = old.fork()
    assert allowed(fork) == before
    fork.rollback(2)
    assert allowed(fork) == {ord("0"), ord("1"), ord("2"), ord("3")}
    assert old.accept_bytes(b"!7") == 2
    assert old.accept(EOS)
    assert old.is_terminated


def test_a_small_cache_only_costs_time():
    """Masks are the same when rows are dropped all the time."""
    grammar = sequence(JsonString(repeat(ANY_CHAR, 0, 9)), ",", JsonString(repeat(CharClass([(97, 99)]))))
    roomy, tight = compile(grammar, BYTES), compile(grammar, BYTES, limits=Limits(cache_bytes=1))
    one, two = roomy.matcher(), tight.matcher()
    for byte in b'"a\\n\xc3\xa9","abc':
        assert allowed(one) == allowed(two)
        assert one.accept(byte)
        assert two.accept(byte)
    assert allowed(one) == allowed(two)


def test_bad_bitmasks_are_refused():
    """Width, row and dtype are checked before anything is written."""
    matcher = compile(literal("a"), BYTES).matcher()
    with pytest.raises(ValueError, match="ceil"):
        matcher.fill_mask(np.zeros((1, 3), dtype=np.int32))
    with pytest.raises(IndexError):
        matcher.fill_mask(np.zeros((1, 9), dtype=np.int32), 1)
    with pytest.raises(TypeError):
        matcher.fill_mask(np.zeros((1, 9), dtype=np.int64))
    with pytest.raises(IndexError):
        fill_masks([matcher, matcher], np.zeros((1, 9), dtype=np.int32))


def test_batches_equal_single_masks_across_threads():
    """fill_masks on cold caches equals sequential fill_mask, with several threads at the same time."""
    grammars = [
        sequence(JsonString(repeat(ANY_CHAR, index, index + 20)), choice("x", "y")).many(1, 3, sep=",")
        for index in range(40)
    ]
    expected = []
    for grammar in grammars:
        matcher = compile(grammar, Vocabulary(BYTES.tokens, eos=[EOS])).matcher()
        matcher.accept_bytes(b'"abc')
        expected.append(allowed(matcher))
    vocabulary = Vocabulary([*BYTES.tokens, b"extra"], eos=[EOS])
    matchers = [compile(grammar, vocabulary).matcher() for grammar in grammars]
    for matcher in matchers:
        matcher.accept_bytes(b'"abc')
    masks = [np.zeros((40, 9), dtype=np.int32) for _ in range(4)]
    threads = [threading.Thread(target=fill_masks, args=(matchers, mask)) for mask in masks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for mask in masks:
        for row, wanted in zip(mask, expected, strict=True):
            found = set(np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little")).tolist())
            assert found - {257} == wanted


def with_words() -> Vocabulary:
    """A separate engine, with tokens of several bytes."""
    return Vocabulary([*BYTES.tokens, *WORDS.tokens[3:], b"[1", b",2"], eos=[EOS])


def mixed_matchers() -> list[Matcher]:
    """Matchers of two engines: known masks and new ones, ended texts, items that must differ."""
    vocabularies = [with_words(), with_words()]
    unlike = Distinct(sequence("[", choice("1", "2", "11").many(0, None, sep=","), "]"))
    grammars = [repeat(choice("a", "b")), literal("abcab"), repeat("ab", 0, 3), unlike]
    matchers = [
        compile(grammars[3 if index % 5 == 0 else index % 3], vocabularies[index // 3 % 2]).matcher()
        for index in range(40)
    ]
    for index, matcher in enumerate(matchers):
        if index % 2:
            allowed(matcher)
        if index % 4 == 0:
            matcher.accept_bytes(b"[1," if index % 5 == 0 else b"ab")
        if index % 7 == 0:
            matcher.accept(EOS)
    return matchers


@pytest.mark.parametrize("count", [0, 1, 2, 7, 8, 9, 16, 40])
def test_batches_of_any_size_and_kind_equal_single_masks(count: int):
    """Rows beyond the matchers stay unchanged; the old content of the other rows does not matter."""
    matchers = mixed_matchers()[:count]
    width = (with_words().size + 31) // 32
    for _ in range(2):
        masks = np.full((count + 1, width), -1, dtype=np.int32)
        fill_masks(matchers, masks)
        single = np.full((count + 1, width), -1, dtype=np.int32)
        for row, matcher in enumerate(matchers):
            matcher.fill_mask(single, row)
        assert masks.tolist() == single.tolist()


def test_a_mask_that_fails_keeps_no_other_from_being_filled():
    """The limit of one matcher is raised after all other rows are filled, though the engine drops its states."""
    evil = sequence(repeat(choice("a", "b")), "a", repeat(choice("a", "b"), 18, 18))
    vocabulary = with_words()
    stuck = compile(evil, vocabulary, limits=Limits(states=3_000)).matcher()
    rng = random.Random(3)
    with pytest.raises(LimitExceeded):  # noqa: PT012  the step that fails is not known beforehand
        while True:
            allowed(stuck)
            stuck.accept(rng.choice(b"ab"))
    matchers = [compile(repeat("ab", index), vocabulary).matcher() for index in range(20)]
    expected = [allowed(matcher) for matcher in matchers]
    for place in (0, 5, 20):
        masks = np.full((21, (vocabulary.size + 31) // 32), -1, dtype=np.int32)
        with pytest.raises(LimitExceeded, match="states"):
            fill_masks([*matchers[:place], stuck, *matchers[place:]], masks)
        bits = np.unpackbits(np.delete(masks, place, axis=0).view(np.uint8), axis=1, bitorder="little")
        assert [set(np.flatnonzero(row).tolist()) for row in bits] == expected


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="the system does not tell threads where to run")
def test_threads_of_batches_stay_where_the_process_may_run():
    """Threads that move away from the caller stay on the processors of the process, also when these change."""
    usable = os.sched_getaffinity(0)
    matchers = mixed_matchers()
    masks = np.zeros((40, (with_words().size + 31) // 32), dtype=np.int32)
    try:
        for chosen in [*({one} for one in usable), usable]:
            confine(chosen)
            for _ in range(20):
                fill_masks(matchers, masks)
            assert all(processors <= chosen for processors in processors_of_threads())
    finally:
        confine(usable)


def processors_of_threads() -> Iterator[set[int]]:
    """The processors on which each thread of the process may run."""
    for name in os.listdir("/proc/self/task"):
        with contextlib.suppress(ProcessLookupError):  # the thread has ended
            yield os.sched_getaffinity(int(name))


def confine(processors: set[int]) -> None:
    """Let all threads of the process run on these processors only."""
    for name in os.listdir("/proc/self/task"):
        with contextlib.suppress(ProcessLookupError):
            os.sched_setaffinity(int(name), processors)


def test_min_tokens_is_the_fewest():
    """The number is the fewest tokens, also where a longer text takes fewer."""
    vocabulary = Vocabulary([b"", b"a", b"b", b"c", b"ccc", b"ab"], eos=[0])
    assert compile(choice("ab", "ccc"), vocabulary).min_tokens() == 1
    assert compile(choice("aab", "ccca"), vocabulary).min_tokens() == 2
    assert compile(repeat("a", 5, 9), vocabulary).min_tokens() == 5
    assert compile(literal(""), vocabulary).min_tokens() == 0
    assert compile(choice("aabb", "bbbb", sequence("cc", "cccc")), vocabulary).min_tokens() == 2


def test_completes_within_is_about_the_fewest_tokens():
    """Also where the string that is shortest in bytes takes more tokens than a longer one."""
    vocabulary = Vocabulary([b"", b"a", b"b", b"c", b"ccc"], eos=[0])
    matcher = compile(choice("ab", "ccc"), vocabulary).matcher()
    assert [matcher.completes_within(budget) for budget in range(4)] == [False, True, True, True]
    matcher.accept_bytes(b"a")
    assert [matcher.completes_within(budget) for budget in range(3)] == [False, True, True]
    matcher.accept_bytes(b"b")
    assert matcher.completes_within(0)
    with pytest.raises(ValueError, match="budget is -1"):
        matcher.completes_within(-1)


def test_budget_masks_keep_the_end_in_reach():
    """Random walks under fill_mask_within always end within the budget, from the minimum on."""
    value = Rules(
        {"v": choice("a", sequence("(", Reference("v").many(0, None, sep=","), ")"))},
        sequence(Reference("v"), ";", Reference("v")),
    )
    vocabulary = Vocabulary([*BYTES.tokens, b"((", b"))", b");", b"a,a", b";a"], eos=[EOS])
    constraint = compile(value, vocabulary)
    least = constraint.min_tokens()
    assert least == 2  # "a" ";a"
    words = np.zeros((1, (vocabulary.size + 31) // 32), dtype=np.int32)
    for seed in range(60):
        rng = random.Random(seed)
        budget = left = least + seed % 7
        matcher = constraint.matcher()
        while True:
            if matcher.needs_budget_mask(left):
                matcher.fill_mask_within(words, 0, left)
            else:
                matcher.fill_mask(words)
            options = np.flatnonzero(np.unpackbits(words.view(np.uint8), bitorder="little")).tolist()
            assert options, f"dead end with {left} of {budget} tokens left"
            token = rng.choice(options)
            assert matcher.accept(token)
            if token == EOS:
                break
            left -= 1
            assert left >= 0


def _budget_walk(constraint: Constraint, budget: int, seed: int) -> list[bytes]:
    """The masks of a random walk with so many tokens left."""
    rng, matcher, masks = random.Random(seed), constraint.matcher(), []
    words = np.zeros((1, (constraint.vocabulary.size + 31) // 32), dtype=np.int32)
    while True:
        matcher.fill_mask_within(words, 0, budget)
        masks.append(words.tobytes())
        options = np.flatnonzero(np.unpackbits(words.view(np.uint8), bitorder="little")).tolist()
        assert options, f"dead end with {budget} tokens left"
        assert matcher.accept(rng.choice(options))
        if matcher.is_terminated:
            return masks
        budget -= 1


def test_budget_masks_depend_on_text_and_budget_alone():
    """Where a search stops early, results of other calls make no difference."""
    letters = [bytes(text) for size in (2, 3, 4) for text in itertools.product(b"ab-", repeat=size)]
    tokens = [*BYTES.tokens, *letters, *(b"%02d" % number for number in range(100))]
    grammar = regex("([ab]{3,8}-){2,4}[0-9]{2,5}(T[0-9]{2}:[0-9]{2}|-[ab]{7})")
    first, second = (
        compile(grammar, Vocabulary(tokens, eos=[EOS]), limits=Limits(distance_steps=20_000)) for _ in range(2)
    )
    walks = [(first.min_tokens() + more, seed) for more in (0, 1, 2, 4, 8) for seed in range(6)]
    masks = {walk: _budget_walk(first, *walk) for walk in walks}
    assert second.min_tokens() == first.min_tokens()
    for walk in reversed(walks):
        assert _budget_walk(second, *walk) == masks[walk] == _budget_walk(first, *walk)


def test_the_fewest_tokens_do_not_depend_on_what_the_engine_has_met():
    """A date with a time has tens of thousands of states, for leap seconds: strict limits suffice for any number."""
    moment = json_schema({"type": "string", "format": "date-time"})
    for count in (1, 2, 4):
        vocabulary = Vocabulary([*BYTES.tokens, b"-" * (60 + count)], eos=[EOS])  # by one long token, bytes say little
        grammar = sequence(*[moment] * count)
        assert compile(grammar, vocabulary, limits=Limits.strict()).min_tokens() == 22 * count
        if count == 1:
            assert compile(grammar, vocabulary).min_tokens() == 22  # makes all states
            assert compile(grammar, vocabulary, limits=Limits.strict()).min_tokens() == 22


@pytest.mark.parametrize("size", [3, 40])
def test_budget_masks_count_the_rest_of_a_character(size):
    """A token that ends within a character needs the rest of it, also where a whole subtree is allowed."""
    tails = ["ж".encode()[:1], "€".encode()[:2], "😀".encode()[:1]]
    tokens = [("ж" * count).encode() + tail for count in (1, size) for tail in (b"", *tails)]
    vocabulary = Vocabulary([*BYTES.tokens, *tokens], eos=[EOS])
    for grammar in (sequence('"', JsonString(ANY_CHAR.many()), '"'), sequence(ANY_CHAR.many(), CharClass([(10, 10)]))):
        matcher = compile(grammar, vocabulary).matcher()
        matcher.accept_bytes(b'"')
        words = np.zeros((1, (vocabulary.size + 31) // 32), dtype=np.int32)
        for budget in range(8):
            after = {token: matcher.fork() for token in allowed(matcher) - {EOS}}
            fitting = {token for token, fork in after.items() if fork.accept(token) and fork.min_tokens() < budget}
            matcher.fill_mask_within(words, 0, budget)
            found = np.flatnonzero(np.unpackbits(words.view(np.uint8), bitorder="little"))
            assert set(found.tolist()) - {EOS} == fitting
            assert matcher.needs_budget_mask(budget) or fitting == set(after)


def test_vocabularies_that_cannot_spell_a_byte():
    """A token that cannot be completed is masked; a grammar that the tokens cannot spell is refused by byte."""
    vocabulary = Vocabulary([b"", b"a", b"b", b"cd"], eos=[0])
    matcher = compile(choice("ab", "acd", "ad"), vocabulary).matcher()
    assert allowed(matcher) == {1}
    matcher.accept(1)
    assert allowed(matcher) == {2, 3}
    dead = compile(choice("aac", "ab"), vocabulary).matcher()
    dead.accept(1)
    assert allowed(dead) == {2}
    assert not dead.accept(1)
    with pytest.raises(VocabularyError, match=r"b'z', needed after b'a'"):
        compile(literal("az"), vocabulary)
    with pytest.raises(VocabularyError, match="no sequence of tokens"):
        compile(literal("ac"), vocabulary)


def test_bytes_without_a_token_of_their_own():
    """Text contains only the bytes that tokens spell; inside JSON strings the rest can be escaped."""
    missing = {0x04, 0x7F, 0xC0, 0xC1, 0xF1, *range(0xF5, 0x100)}
    vocabulary = Vocabulary([b"" if value in missing else bytes([value]) for value in range(256)] + [b""], eos=[EOS])
    matcher = compile(repeat(ANY_CHAR), vocabulary).matcher()
    assert allowed(matcher) == {EOS, *range(0x80), *range(0xC2, 0xF5)} - missing
    spelled = compile(JsonString(choice("\x04", "\x7f", "\U00050000")), vocabulary)
    for text in (rb'"\u0004"', rb'"\u007f"', rb'"\ud900\udc00"'):
        matcher = spelled.matcher()
        assert all(matcher.accept(byte) for byte in text)
        assert matcher.is_accepting
    assert spelled.shortest_bytes == 8
    assert compile(JsonString(literal("\U00050000")), vocabulary).min_tokens() == 14
    with pytest.raises(VocabularyError, match=r"no token holds byte b'\\x04'"):
        compile(literal("a\x04"), vocabulary)


def test_forced_text_and_tokens():
    """Forced tokens stop where a longer token could reach beyond the forced text."""
    vocabulary = Vocabulary([*BYTES.tokens, b"name", b'":', b'": "', b'": "x', b'{"'], eos=[EOS])
    grammar = sequence('{"name": "', repeat(CharClass([(97, 122)])), '"}')
    matcher = compile(grammar, vocabulary).matcher()
    assert matcher.forced_bytes() == b'{"name": "'
    texts = [vocabulary.tokens[token] for token in matcher.forced_tokens()]
    assert texts == [b'{"', b"name"]
    for token in matcher.forced_tokens():
        assert matcher.accept(token)
    matcher.accept_bytes(b'": "abc"')
    assert matcher.forced_tokens() == [ord("}")]


def _within(matcher: Matcher, budget: int | None) -> set[int]:
    masks = np.full((1, mask_width(matcher.constraint.vocabulary.size)), -1, dtype=np.int32)
    matcher.fill_mask(masks, budget=budget)
    return set(allowed_ids(masks[0]).tolist())


@pytest.mark.parametrize("vocabulary", [BYTES, WORDS])
def test_a_mask_with_a_budget_keeps_the_output_completable(vocabulary: Vocabulary) -> None:
    """``fill_mask(budget=n)`` allows exactly the tokens after which n - 1 more suffice, and EOS where it may come."""
    grammar = choice("ab", "abab", "b", repeat("ba", 2, 2))
    eos = set(vocabulary.eos)
    pending = [compile(grammar, vocabulary).matcher()]
    while pending:
        matcher = pending.pop()
        free = allowed(matcher)
        after = {token: matcher.fork() for token in free - eos}
        for token, fork in after.items():
            assert fork.accept(token)
            pending.append(fork)
        needed = {token: fork.min_tokens() for token, fork in after.items()}
        for budget in range(7):
            fitting = {token for token, count in needed.items() if count is not None and count < budget}
            assert _within(matcher, budget) == fitting | (free & eos)
            assert _within(matcher, budget) == fitting | (free & eos), "the mask left the state as it was"
        assert _within(matcher, None) == free == _within(matcher, 10**12) == _within(matcher, 10**30)


@pytest.mark.parametrize(
    "parts",
    [
        [("-0a", 3, 5), ("ab", 3, 5), ("a", 1, 1)],
        [("-0a", 0, 4), ("b", 1, 3)],
        [("0a", 2, 2), ("0b", 0, 3), ("a", 2, 3)],
        [("0", 0, 6), ("-", 0, 1), ("a", 1, 2), ("b", 1, 1)],
    ],
)
def test_budget_masks_know_that_less_of_a_class_is_left_after_a_longer_token(parts: list[tuple[str, int, int]]) -> None:
    """The fewest tokens may read more of a class: ``aaaaaaaa`` completes a text after ``00a``, and not after ``00a0``.

    They are counted over all members without the digits 1 to 9, since no longer token has one.
    """
    several = [b"00", b"0-0", b"0000", b"00a0", b"aaaaaaaa", b"aaa", b"aab", b"bb", b"ba", b"00aaaa", b"b-"]
    vocabulary = Vocabulary([*BYTES.tokens, *several], eos=[EOS])
    spelled = {token: text for token, text in enumerate(vocabulary.tokens) if text and not set(text) - set(b"-0ab")}
    pieces = [
        ["".join(text) for size in range(low, high + 1) for text in itertools.product(letters, repeat=size)]
        for letters, low, high in parts
    ]
    members = {"".join(chosen).encode() for chosen in itertools.product(*pieces)}
    prefixes = {member[:count] for member in members for count in range(len(member) + 1)}
    fewest: dict[bytes, int] = {}
    for prefix in sorted(prefixes, key=len, reverse=True):
        after = [1 + fewest[prefix + text] for text in spelled.values() if prefix + text in fewest]
        fewest[prefix] = 0 if prefix in members else min(after)
    classes = [(letters.replace("0", "0-9"), low, high) for letters, low, high in parts]  # a group of bytes is whole
    constraint = compile(regex("".join(f"[{letters}]{{{low},{high}}}" for letters, low, high in classes)), vocabulary)
    for prefix in sorted(prefix for prefix in prefixes if len(prefix) <= 4):
        matcher = constraint.matcher()
        assert matcher.accept_bytes(prefix) == len(prefix)
        for budget in range(1, 5):
            fitting = {token for token, text in spelled.items() if fewest.get(prefix + text, budget) < budget}
            assert _within(matcher, budget) & spelled.keys() == fitting, (prefix, budget)


@pytest.mark.parametrize(
    "grammar",
    [
        regex("([A-Z][a-z]+ ){1,3}"),
        regex("([A-Z][a-z]+ ){2}x"),
        regex("[a-z]{3,20}(-[a-z]+){0,2};"),
        regex("[a-z ]{9}(end|[A-Z][a-z]{4,9})"),
        json_schema({"type": "string", "minLength": 4, "maxLength": 30}),
        json_schema({"type": "string", "pattern": "^[a-z]{2,}( [A-Z]|x{3})", "maxLength": 12}),
        json_schema({"additionalProperties": {"type": "string", "pattern": "^[^x]{3,40}$"}, "minProperties": 1}),
    ],
)
def test_masks_that_need_no_budget_are_those_within_it(grammar: Grammar) -> None:
    """Also in states whose rows are made from those of others, which takes a vocabulary of many words."""
    rng = random.Random(7)
    letters = "abcdefghijklmnopqrstuvwxyz"
    words = sorted({"".join(rng.choices(letters, k=rng.randint(2, 9))) for _ in range(3_000)})
    titles = [*(" " + word.title() for word in words[:800]), *(word.title() for word in words[800:1_200])]
    vocabulary = Vocabulary([*BYTES.tokens, *(text.encode() for text in [*words, *titles])], eos=[EOS])
    constraint = compile(grammar, vocabulary)
    free, within = empty_masks(vocabulary), empty_masks(vocabulary)
    for _ in range(10):
        matcher = constraint.matcher()
        for _ in range(12):
            matcher.fill_mask(free)
            for budget in (1, 2, 3, 4, 8, 13):
                matcher.fill_mask_within(within, 0, budget)
                assert matcher.needs_budget_mask(budget) or np.array_equal(free, within)
            matcher.accept(rng.choice(allowed_ids(free[0]).tolist()))
            if matcher.is_terminated:
                break


def test_a_budget_of_nothing_allows_the_end_alone() -> None:
    """With no token left only EOS is allowed, where the grammar allows it; a terminated matcher allows nothing."""
    matcher = compile(repeat("a", 0, 3), BYTES).matcher()
    assert _within(matcher, 0) == {EOS}
    assert _within(compile(literal("a"), BYTES).matcher(), 0) == set()
    assert matcher.accept(EOS)
    assert _within(matcher, 0) == _within(matcher, 5) == set()


def test_a_negative_budget_is_refused() -> None:
    """A negative budget is an error of the caller, and changes neither mask nor state."""
    matcher = compile(literal("ab"), BYTES).matcher()
    masks = empty_masks(BYTES)
    calls = (
        lambda: matcher.fill_mask(masks, budget=-1),
        lambda: fill_masks([matcher], masks, budget=-1),
        lambda: matcher.advance_forced(-1),
    )
    for call in calls:
        with pytest.raises(ValueError, match=r"the budget is -1; .*pass 0"):
            call()
    assert not masks.any()
    assert matcher.history_length == 0


@pytest.mark.parametrize("budget", [None, 0, 1, 2, 3, 40])
def test_fill_masks_with_a_budget(budget: int | None) -> None:
    """Each row is that of ``fill_mask`` with the same budget, which changes some, all or none of the masks."""
    grammars = [repeat("a"), literal("abab"), choice("b", "bbb")]
    matchers = [compile(grammar, BYTES).matcher() for grammar in grammars]
    for count in range(len(matchers) + 1):
        masks = np.full((len(matchers), mask_width(BYTES.size)), -1, dtype=np.int32)
        fill_masks(matchers[:count], masks, budget=budget)
        for row, matcher in enumerate(matchers[:count]):
            assert set(allowed_ids(masks[row]).tolist()) == _within(matcher, budget)
        assert (masks[count:] == -1).all()
    with pytest.raises(IndexError):
        fill_masks(matchers, empty_masks(BYTES, 2), budget=budget)


def test_advance_forced_takes_what_fits() -> None:
    """Forced tokens are accepted up to the budget, and all of them without a budget."""
    constraint = compile(sequence("abc", CharClass([(97, 122)])), BYTES)
    for budget, expected in [(None, b"abc"), (10, b"abc"), (4, b"abc")]:
        matcher = constraint.matcher()
        assert bytes(matcher.advance_forced(budget)) == expected
        assert matcher.history_length == len(expected)
        assert matcher.advance_forced(budget) == []
    for budget in range(4):  # nothing completes the output within it
        assert constraint.matcher().advance_forced(budget) == []


def test_advance_forced_leaves_shorter_spellings_to_the_mask() -> None:
    """Canonical tokens that exceed the budget are not accepted: other tokens may spell the text shorter."""
    tokens = [*BYTES.tokens[:256], b"ab", b"abc", b"bcd"]
    vocabulary = Vocabulary([*tokens, b""], eos=[len(tokens)])
    matcher = compile(literal("abcd"), vocabulary).matcher()
    forced = matcher.forced_tokens()
    assert b"".join(vocabulary.tokens[token] for token in forced) == b"abcd"
    assert len(forced) == 2
    assert matcher.fork().advance_forced(2) == forced
    assert matcher.fork().advance_forced(1) == []


def test_forced_text_stops_at_an_optional_end():
    """Text is not forced beyond a place where the output may end."""
    matcher = compile(sequence("ab", repeat("c", 0, 1)), BYTES).matcher()
    assert matcher.forced_bytes() == b"ab"


def test_explanations_name_place_and_alternatives():
    """explain gives the accepted part, the expected bytes and the nearest tokens."""
    matcher = compile(sequence("ab", choice("c", "d")), BYTES).matcher()
    told = matcher.explain(b"abx")
    assert (told.allowed, told.accepted, told.expected) == (False, 2, "'c' or 'd'")
    assert "not allowed" in str(told)
    assert matcher.explain(ord("a")).allowed
    assert not matcher.explain(EOS).allowed
    with pytest.raises(VocabularyError):
        matcher.explain(10_000)


def test_equal_texts_reach_equal_states():
    """The state depends on the text, not on how tokens split it."""
    constraint = compile(repeat(choice("ab", "ba", "a")), WORDS)
    index = {text: token for token, text in enumerate(WORDS.tokens)}
    one, two = constraint.matcher(), constraint.matcher()
    for text in (b"ab", b"ab"):
        one.accept(index[text])
    for text in (b"a", b"b", b"a", b"b"):
        two.accept(index[text])
    assert one.state_id == two.state_id


def test_constraints_are_values(capsys: pytest.CaptureFixture[str]):
    """The repr is short."""
    constraint = compile(literal("a"), BYTES)
    assert isinstance(constraint, Constraint)
    assert "Constraint(" in repr(constraint)
    assert repr(constraint.matcher()) == "Matcher(0 tokens, open)"
    assert capsys.readouterr().out == ""

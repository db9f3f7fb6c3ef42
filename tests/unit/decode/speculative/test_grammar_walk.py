"""A grammar applied to draft tokens: the tree that is run follows exactly the paths that the loop could take."""

from __future__ import annotations

import random
import time
from collections.abc import Iterable
from fractions import Fraction

import numpy as np
import pytest
from machine_load import slowness
from random_token_trees import random_tree
from verifier_outcomes import EveryChance, distribution_of, exact_distribution

import structgen as sg
from structgen.decode.speculative.draft_tree import FORCED, ROOT, DraftTree, SampledChildren
from structgen.decode.speculative.grammar_walk import grammar_filtered
from structgen.decode.speculative.verifier import IndependentRejection, RecursiveRejection
from structgen.engine import Constraint, Matcher, Vocabulary, compile
from structgen.errors import LimitExceeded, VocabularyError
from structgen.grammar.limits import Limits
from structgen.grammar.nodes import (
    Grammar,
    Reference,
    Rules,
    SpecialToken,
    choice,
    repeat,
    sequence,
)
from structgen.models.toy.hash import HashModel

TOOL, EOS = 256, 257
WORDS = [b'{"', b'":', b'": "', b'",', b'", "', b'"}', b"name", b"ag", b"age", b"Ad", b"da", b"Ada", b'name":', b'e": ']
TEXT = Vocabulary([*(bytes([value]) for value in range(256)), b"", b"", *WORDS], eos=[EOS], special={TOOL: "<tool>"})
LETTERS = Vocabulary([b"", b"a", b"b", b"c", b"ab", b"bc", b"abc", b"cab"], eos=[0])

PERSON = sg.json_schema(
    {
        "type": "object",
        "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
        "required": ["name", "age"],
        "additionalProperties": False,
    }
)
CASES: list[tuple[Vocabulary, Grammar, str]] = [
    (TEXT, PERSON, '{"name": "Ada", "age": 36}'),
    (TEXT, sequence('{"name": "', sg.regex("[A-Za-zé]{1,8}"), '", "age": ', sg.regex("[0-9]+"), "}"), '"Zoé"'),
    (
        TEXT,
        sg.json_schema({"type": "array", "items": {"enum": ["Ada", "age", 1]}, "uniqueItems": True}),
        '["age", "Ada"]',
    ),
    (LETTERS, sequence(choice("abca", "abcb"), "cabc", repeat(choice("abc", "c"))), "abcbcabcabc"),
    (LETTERS, Rules({"x": choice(sequence("a", Reference("x"), "bc"), "c")}, Reference("x")), "aacbcbc"),
]
FAR = 400


def turn(matcher: Matcher) -> list[int] | None:
    """The tokens that the loop takes without a choice; empty where it ends; None where it chooses."""
    vocabulary = matcher.constraint.vocabulary
    forced = matcher.forced_tokens()
    if forced or matcher.is_terminated:
        return forced
    ordinary = mask_of(matcher) - set(vocabulary.eos)
    if len(ordinary) > 1 or (ordinary and matcher.is_accepting and vocabulary.eos):
        return None
    return sorted(ordinary)


def mask_of(matcher: Matcher) -> set[int]:
    """The tokens that may come next."""
    row = np.zeros((1, (matcher.constraint.vocabulary.size + 31) // 32), dtype=np.int32)
    matcher.fill_mask(row)
    return set(np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little")).tolist())


def chain_expected(matcher: Matcher, drafts: list[int]) -> list[int]:
    """The tokens to run for one chain of draft tokens, computed from the bytes that they spell."""
    texts = matcher.constraint.vocabulary.tokens
    matcher = matcher.fork()
    taken: list[int] = []
    until = 0
    data, at = list(drafts), 0  # `at` bytes of these are still to come
    while (run := turn(matcher)) != []:
        if run is None:
            until = len(taken)
            spelled, index = b"", 0
            while index < len(data) and len(spelled) < at:
                spelled += texts[data[index]]
                index += 1
            rest, following = spelled[at:], data[index:]
            if rest:
                ends = [i for i, token in enumerate(following) if not texts[token]]
                following = following[: ends[0]] if ends else following
                try:
                    following = matcher.constraint.vocabulary.tokenize(rest + b"".join(texts[t] for t in following))
                except VocabularyError:
                    following = []
            data, at = following, 0
            if not data or data[0] in matcher.constraint.vocabulary.eos or not matcher.accept(data[0]):
                break
            taken.append(data.pop(0))
            continue
        for token in run:
            assert matcher.accept(token)
            taken.append(token)
            piece = texts[token]
            left = b""
            for draft in data:
                if not texts[draft]:
                    break
                left += texts[draft]
            if not piece:
                data = data[1:] if at == 0 and data[:1] == [token] else []
            elif left[at : at + len(piece)] == piece or (
                left[at:] and piece.startswith(left[at:]) and left == spelled_all(texts, data)
            ):
                at = min(at + len(piece), len(left))
            else:
                data, at = [], 0
    return taken[:until]


def spelled_all(texts: tuple[bytes, ...], tokens: Iterable[int]) -> bytes:
    """The bytes of tokens."""
    return b"".join(texts[token] for token in tokens)


def paths(tree: DraftTree) -> set[tuple[int, ...]]:
    """The paths from the start to each leaf."""
    return {tuple(tree.prefix(leaf)) for leaf in tree.leaves()}


def check_ways(tree: DraftTree, matcher: Matcher) -> None:
    """Check that the loop may take every path, forced tokens are marked, and a choice follows each leaf."""
    for node in range(len(tree)):
        if tree.children(node):
            continue
        probe, pending = matcher.fork(), list[int]()
        for each in tree.path(node):
            token = tree.tokens[each]
            if not pending:
                pending = turn(probe) or []
                is_forced = bool(pending)
            if is_forced:
                assert token == pending.pop(0)
                assert (tree.sources[each], tree.confidences[each]) == (FORCED, 1.0)
            else:
                assert tree.sources[each] != FORCED
                assert token not in matcher.constraint.vocabulary.eos
            assert probe.accept(token)
        assert not pending
        assert turn(probe) is None


def segmented(data: bytes, vocabulary: Vocabulary, rng: random.Random) -> list[int]:
    """Random tokens that spell ``data``."""
    tokens: list[int] = []
    while data:
        fitting = [token for token, text in enumerate(vocabulary.tokens) if text and data.startswith(text)]
        tokens.append(rng.choice(fitting))
        data = data[len(vocabulary.tokens[tokens[-1]]) :]
    return tokens


def written(vocabulary: Vocabulary, grammar: Grammar, text: str, seed: int) -> tuple[Constraint, list[int], list[bool]]:
    """The tokens of an output of the loop without drafts, and whether each was chosen; the stop is the last."""
    result = sg.generate(
        HashModel(vocabulary, writes=text, seed=seed), "a", grammar, max_tokens=FAR, sampler=sg.Greedy(), drafter=None
    )
    chosen = [not step.forced for step in result.steps]
    return compile(grammar, vocabulary), list(result.tokens), chosen


@pytest.mark.parametrize("case", range(len(CASES)))
def test_the_tokens_of_the_loop_are_found_in_any_spelling(case: int) -> None:
    """From every choice on, any spelling of the output's text gives the loop's tokens.

    They reach up to the last choice of the loop.
    """
    vocabulary = CASES[case][0]
    rng = random.Random(case)
    compared = respelled = 0
    for seed in range(3):
        constraint, tokens, chosen = written(*CASES[case], seed)
        last = max((i for i, is_chosen in enumerate(chosen) if is_chosen), default=0)
        matcher = constraint.matcher()
        for start in range(last + 1):
            if chosen[start]:
                draft = DraftTree.chain(tokens[start:], 0.5, source="draft")
                found = grammar_filtered(draft, matcher, remaining=FAR, budget=FAR)
                assert paths(found) == ({tuple(tokens[start:last])} if last > start else set())
                other: list[int] = []
                forced = b""
                for token, is_chosen in zip(tokens[start:], chosen[start:], strict=False):
                    if is_chosen:
                        other += segmented(forced, vocabulary, rng)
                        forced = b""
                        other.append(token)
                    else:
                        forced += vocabulary.tokens[token]
                respelled += other != tokens[start : start + len(other)]
                again = grammar_filtered(
                    DraftTree.chain(other, 0.5, source="draft"), matcher, remaining=FAR, budget=FAR
                )
                assert paths(again) == paths(found)
                assert again.confidences == [0.5 if is_chosen else 1.0 for is_chosen in chosen[start:last]]
                assert again.sources == ["draft" if is_chosen else FORCED for is_chosen in chosen[start:last]]
                compared += 1
            if start < len(tokens):
                assert matcher.accept(tokens[start])
    assert compared > 3
    assert respelled or case in (2, 4)  # these force nothing in between


@pytest.mark.parametrize("case", range(len(CASES)))
def test_chains_and_trees_of_any_spelling(case: int) -> None:
    """Right and wrong texts are cut into tokens anywhere, alone and as one tree: only their bytes matter."""
    vocabulary = CASES[case][0]
    constraint, tokens, _ = written(*CASES[case], 1)
    rng = random.Random(case)
    nodes = 0
    for _ in range(60):
        start = rng.randrange(len(tokens))
        matcher = constraint.matcher()
        for token in tokens[:start]:
            assert matcher.accept(token)
        chains = []
        for _ in range(rng.randrange(1, 4)):
            data = vocabulary.decode(tokens[start : start + rng.randrange(1, 14)])
            if rng.random() < 0.5:  # a mistake somewhere
                at = rng.randrange(len(data))
                data = data[:at] + rng.choice(vocabulary.tokens[1:10]) + data[at + rng.randrange(2) :]
            chains.append(segmented(data, vocabulary, rng))
            if rng.random() < 0.2:
                chains[-1].insert(rng.randrange(len(chains[-1]) + 1), rng.choice([*vocabulary.special]))
        tree = DraftTree()
        for chain in chains:
            tree.extend(ROOT, chain, 0.9)
            found = grammar_filtered(DraftTree.chain(chain, 0.9), matcher, remaining=FAR, budget=FAR)
            expected = chain_expected(matcher, chain)
            assert paths(found) == ({tuple(expected)} if expected else set())
        whole = grammar_filtered(tree, matcher, remaining=FAR, budget=FAR)
        check_ways(whole, matcher)
        ways = [tuple(chain_expected(matcher, tree.prefix(leaf))) for leaf in tree.leaves()]
        found_prefixes = {way[:end] for way in paths(whole) for end in range(len(way) + 1)} | {()}
        assert found_prefixes == {way[:end] for way in ways for end in range(len(way) + 1)}
        nodes += len(whole)
    assert nodes > 10


def segmentations(data: bytes, vocabulary: Vocabulary) -> list[list[int]]:
    """All ways to spell ``data`` in tokens."""
    ways: list[list[list[int]]] = [[[]]]
    for end in range(1, len(data) + 1):
        ways.append(
            [
                [*way, token]
                for token, text in enumerate(vocabulary.tokens)
                if text and data[:end].endswith(text)
                for way in ways[end - len(text)]
            ]
        )
    return ways[len(data)]


def test_all_spellings_of_all_members_of_a_small_language() -> None:
    """The tree of all spellings of a text holds the loop's output; each spelling alone gives what its bytes say."""
    grammar = sequence(choice("abca", "abcb"), "cab", choice("abc", "c", "bca"))
    matcher = compile(grammar, LETTERS).matcher()
    count = found_choices = 0
    for prefix in ("abca", "abcb"):
        for end in ("abc", "c", "bca"):
            text = f"{prefix}cab{end}"
            tree = DraftTree()
            for way in segmentations(text.encode(), LETTERS):
                count += 1
                tree.extend(ROOT, way, 0.5)
                expected = chain_expected(matcher, way)
                found = grammar_filtered(DraftTree.chain(way, 0.5), matcher, remaining=FAR, budget=FAR)
                assert paths(found) == ({tuple(expected)} if expected else set())
            whole = grammar_filtered(tree, matcher, remaining=FAR, budget=FAR)
            check_ways(whole, matcher)
            for seed in range(6):
                _, tokens, chosen = written(LETTERS, grammar, text, seed)
                if LETTERS.decode(tokens) == text.encode():
                    last = max(index for index, is_chosen in enumerate(chosen) if is_chosen)
                    assert any(whole.prefix(node) == tokens[:last] for node in range(len(whole)))
                    found_choices += sum(chosen[:last])
    assert count > 100
    assert found_choices > 10


@pytest.mark.parametrize("case", range(len(CASES)))
def test_random_trees(case: int) -> None:
    """Whatever is drafted, only paths of the loop remain, and the matcher keeps its state."""
    vocabulary, grammar, _ = CASES[case]
    constraint = compile(grammar, vocabulary)
    rng = random.Random(case)
    sizes = 0
    for _ in range(40):
        matcher = constraint.matcher()
        for token in random_tree(matcher, rng, rng.randrange(4))[0]:
            if token not in vocabulary.eos:
                matcher.accept(token)
        tree = DraftTree()
        for token, parent in zip(*random_tree(matcher, rng, 16), strict=True):
            if parent < len(tree):
                tree.add(parent, token, rng.random())
        before = matcher.history_length, matcher.state_id
        full = grammar_filtered(tree, matcher, remaining=FAR, budget=FAR)
        check_ways(full, matcher)
        assert (matcher.history_length, matcher.state_id) == before
        sizes += len(full)
        for budget in (0, 1, 3, 7):
            found = grammar_filtered(tree, matcher, remaining=FAR, budget=budget)
            assert set(map(tuple, map(found.prefix, range(len(found))))) == greedy(full, matcher, budget)
        for remaining in (0, 1, 2, 5):
            found = grammar_filtered(tree, matcher, remaining=remaining, budget=FAR)
            assert found.depth() < max(remaining, 1)
            assert paths(found) - {()} <= {way[:end] for way in paths(full) for end in range(len(way) + 1)}
        plain = grammar_filtered(tree, matcher, remaining=FAR, budget=FAR, forced=False)
        allowed = matcher.validate_tree(tree.tokens, tree.parents)
        kept = [n for n, may in enumerate(allowed) if may and tree.tokens[n] not in vocabulary.eos]
        assert set(map(tuple, map(plain.prefix, range(len(plain))))) == {tuple(tree.prefix(node)) for node in kept}
    assert sizes > 20


def greedy(full: DraftTree, matcher: Matcher, budget: int) -> set[tuple[int, ...]]:
    """The tree within a budget: draft tokens by reach, each with all forced tokens after it or not at all."""
    reach = full.reach()
    blocks: dict[int, list[int]] = {}  # counted by the first node
    first: dict[int, int] = {ROOT: ROOT}
    for node, source in enumerate(full.sources):
        parent = full.parents[node]
        if source == FORCED and parent != ROOT:
            first[node] = first[parent]
        elif source == FORCED:
            first[node] = min(n for n, s in enumerate(full.sources) if s == FORCED)
        else:
            first[node] = node
        blocks.setdefault(first[node], []).append(node)
    kept: set[int] = {ROOT}
    open_blocks = set(blocks)
    while True:
        ready = [b for b in open_blocks if full.parents[b] in kept]
        if not ready:
            break
        best = max(ready, key=lambda b: (reach[b], -b))
        open_blocks.remove(best)
        if len(kept) - 1 + len(blocks[best]) <= budget:
            kept.update(blocks[best])
    return {tuple(full.prefix(node)) for node in kept - {ROOT}}


def test_forced_text_stands_after_drafts() -> None:
    """By hand: forced text replaces a wrong draft token, is added after a leaf, and is not cut in the middle."""
    constraint = compile(sequence(choice("Ad", "na"), '": "age', choice("s", "d"), '"}'), TEXT)
    matcher = constraint.matcher()
    ad, n = TEXT.tokens.index(b"Ad"), ord("n")
    tree = DraftTree()
    tree.add(tree.add(ROOT, ad, 0.5), ord("x"), 0.5)
    tree.add(ROOT, n, 0.25)
    found = grammar_filtered(tree, matcher, remaining=FAR, budget=FAR)
    spelled = sorted(b"".join(TEXT.tokens[token] for token in path) for path in paths(found))
    assert spelled == [b'Ad": "age', b'na": "age']
    assert found.confidences == [0.5 if token == ad else 0.25 if token == n else 1.0 for token in found.tokens]
    first = len(next(path for path in paths(found) if path[0] == ad))
    for budget in range(2 * first + 2):
        short = grammar_filtered(tree, matcher, remaining=FAR, budget=budget)
        assert (ad in short.tokens) == (budget >= first)
        assert len(short) in (0, first, len(found) - first, len(found))


def test_a_draft_that_goes_beyond_forced_text_is_tokenized_anew() -> None:
    """By hand: a token has the confidences of all draft tokens that begin in it, even of one that began earlier."""
    vocabulary = Vocabulary([b"", b"a", b"b", b"c", b"d", b"ab", b"bcd"], eos=[0])
    grammar = sequence("ab", choice("c", "d"), choice("a", "d"), repeat(choice("a", "b"), 1))
    matcher = compile(grammar, vocabulary).matcher()
    tree = DraftTree()
    after = tree.extend(ROOT, [1, 6], [0.5, 0.25], source="draft")  # a bcd
    tree.extend(after, [1, 1], [0.75, 0.5], source="draft")
    tree.extend(after, [5, 3], [0.125, 0.5], source="draft")  # ab c, which is refused
    found = grammar_filtered(tree, matcher, remaining=FAR, budget=FAR)
    assert [found.prefix(node) for node in range(len(found))] == [
        [5],
        [5, 3],
        [5, 3, 4],
        [5, 3, 4, 1],
        [5, 3, 4, 1, 1],
        [5, 3, 4, 5],
    ]
    assert found.confidences == [1.0, 0.25, 1.0, 0.75, 0.5, 0.125]
    assert found.sources == [FORCED, *["draft"] * 5]


def test_special_tokens_and_stops() -> None:
    """A special token may be forced or drafted; a stop is cut, and nothing is added after the last choice."""
    grammar = sequence(choice("a", "b"), SpecialToken("<tool>"), repeat(choice("a", SpecialToken("<tool>")), 0, 2))
    matcher = compile(grammar, TEXT).matcher()
    a = ord("a")
    tree = DraftTree.chain([a, TOOL, TOOL, EOS], 0.5)
    found = grammar_filtered(tree, matcher, remaining=FAR, budget=FAR)
    assert (found.tokens, found.confidences) == ([a, TOOL, TOOL], [0.5, 1.0, 0.5])
    tree = DraftTree.chain([a, a], 0.5)  # a draft in place of the special token does not go on after it
    assert grammar_filtered(tree, matcher, remaining=FAR, budget=FAR).tokens == [a, TOOL]
    done = grammar_filtered(DraftTree.chain([a, TOOL, a, a], 0.5), matcher, remaining=FAR, budget=FAR)
    assert done.tokens == [a, TOOL, a]
    stop_or_one = compile(choice("a", "ab", "b"), TEXT).matcher()
    assert grammar_filtered(DraftTree.chain([a, ord("b")]), stop_or_one, remaining=FAR, budget=FAR).tokens == [a]
    endless = Vocabulary(TEXT.tokens, special={TOOL: "<tool>"})  # there is no stop: the one token comes
    no_stop = compile(choice("a", sequence("ab", choice("a", "b")), "b"), endless).matcher()
    assert grammar_filtered(DraftTree.chain([a]), no_stop, remaining=FAR, budget=FAR).tokens == [a, ord("b")]


def test_a_branch_ends_where_the_budget_of_tokens_begins_to_tell() -> None:
    """Up to that place nothing is missing."""
    constraint = compile(PERSON, TEXT)
    text = TEXT.tokenize('{"name": "AdaAdaAdaAda", "age": 361, ')
    matcher = constraint.matcher()
    for remaining in range(1, 40):
        found = grammar_filtered(DraftTree.chain(text), matcher, remaining=remaining, budget=FAR)
        probe = matcher.fork()
        for node in range(len(found)):
            assert found.sources[node] == FORCED or not probe.needs_budget_mask(remaining - node)
            assert probe.accept(found.tokens[node])
    assert len(found) > 5


def test_a_spent_limit_ends_the_walk(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tokens found before stay, and the matcher goes on from its old state."""
    grammar = sg.regex("(?:(?:[ab]{1,63}c?){1,99}d?){1,99}")
    ended = 0
    for number, steps in enumerate((10_000, 12_000, 20_000, 40_000, 80_000, 10_000_000)):
        fresh = Vocabulary(TEXT.tokens, eos=[EOS], size=TEXT.size + 1 + number)
        matcher = compile(grammar, fresh, limits=Limits(steps=steps)).matcher()
        found = grammar_filtered(DraftTree.chain(b"abaabcbabdabba"), matcher, remaining=FAR, budget=FAR)
        assert matcher.history_length == 0
        assert found.tokens == list(b"abaabcbabdabba")[: len(found)]
        try:
            assert matcher.validate(found.tokens) == len(found)
        except LimitExceeded:
            ended += 1
    assert len(found) == 14


def sampled_tree(
    children: dict[int, tuple[int, ...]], distribution: np.ndarray, *, replaced: bool = False
) -> DraftTree:
    """A tree whose children were sampled, by parent; nodes come in the order of their parents."""
    tree = DraftTree()
    for parent, tokens in children.items():
        for token in tokens:
            tree.add(parent, token, 0.5)
        tree.sampled[parent] = SampledChildren(distribution, tokens, replaced)
    return tree


def test_sampled_children_stay_but_for_what_the_grammar_refuses() -> None:
    """An allowed stop stays; refused tokens go, with their draws; a budget cuts from some child on."""
    a, b, x = ord("a"), ord("b"), ord("x")
    matcher = compile(repeat(choice("a", "b"), 0, 9), TEXT).matcher()
    distribution = np.full(TEXT.size, 1 / TEXT.size)
    tree = sampled_tree({ROOT: (b, x, EOS, a), 0: (x, a, b)}, distribution)
    for budget, at_root, after_b in (
        (FAR, (b, EOS, a), (a, b)),
        (5, (b, EOS, a), (a, b)),
        (4, (b, EOS, a), (a,)),
        (3, (b, EOS, a), ()),
        (2, (b, EOS), ()),
        (1, (b,), ()),
    ):
        found = grammar_filtered(tree, matcher, remaining=FAR, budget=budget)
        assert len(found) == len(at_root) + len(after_b)
        assert found.sampled[ROOT].tokens == at_root
        assert found.sampled[ROOT].distribution is distribution
        node = found.child(ROOT, b)
        assert node is not None
        assert (found.sampled[node].tokens if after_b else ()) == after_b
        assert set(found.sampled) == ({ROOT, node} if after_b else {ROOT})
    again = sampled_tree({ROOT: (b, x, b, a, b)}, distribution, replaced=True)
    # After the last node that fits, a token that is already there must not count, since another would not.
    assert grammar_filtered(again, matcher, remaining=FAR, budget=1).sampled[ROOT].tokens == (b,)
    assert grammar_filtered(again, matcher, remaining=FAR, budget=2).sampled[ROOT].tokens == (b, b, a)
    assert grammar_filtered(again, matcher, remaining=FAR, budget=FAR).sampled[ROOT].tokens == (b, b, a, b)
    assert grammar_filtered(again, matcher, remaining=FAR, budget=2).sampled[ROOT].replaced


@pytest.mark.parametrize("replaced", [False, True])
@pytest.mark.parametrize("budget", [1, 2, 3, 4, 9])
def test_what_is_left_of_sampled_children_keeps_the_distribution(budget: int, replaced: bool) -> None:
    """Over every draw and every decision of a verifier, the next token has exactly the target's distribution.

    The grammar refuses one token, forces text after another, and cuts the drafts after it; the stop may come.
    """
    constraint = compile(
        choice("", sequence("a", repeat(choice("a", "b"), 0, 3)), sequence("bab", choice("a", "b"))), TEXT
    )
    tokens = [ord("a"), ord("b"), ord("x"), EOS]
    q = exact_distribution([2, 5, 2, 1])
    p = exact_distribution([3, 1, 0, 2])  # restricted to the grammar
    inside = [0, 1, 3]
    distribution = np.zeros(TEXT.size)
    distribution[tokens] = q.astype(float)
    verifier = IndependentRejection() if replaced else RecursiveRejection()

    def write(chance: EveryChance) -> int:
        weights = list(q)
        tree, sampled = DraftTree(), list[int]()
        for _ in range(3):
            index = chance.draw(weights)
            sampled.append(index)
            node = tree.add(ROOT, tokens[index], 0.5)
            if index == 0:  # the drafts after it depend on the draws
                tree.add(node, ord("b"), 0.5)
            if not replaced:
                weights[index] = Fraction(0)
        tree.sampled[ROOT] = SampledChildren(distribution, tuple(tokens[index] for index in sampled), replaced)
        found = grammar_filtered(tree, constraint.matcher(), remaining=FAR, budget=budget)
        left = found.sampled[ROOT].tokens if ROOT in found.sampled else ()
        drafts = [inside.index(tokens.index(token)) for token in left]
        return verifier.choose(p[inside], q[inside] / sum(q[inside]), drafts, chance)

    found = distribution_of(write)
    assert [found[index] for index in range(3)] == list(p[inside])


def test_a_walk_of_32_tokens_takes_less_than_a_millisecond(smollm_vocabulary: Vocabulary) -> None:
    """This is with 49k tokens, at steady state; an idle machine takes a quarter of a millisecond."""
    matcher = compile(PERSON, smollm_vocabulary).matcher()
    tokens = smollm_vocabulary.tokenize('{"name": "Ada Lovelace, Countess of the engines and of much else", "age": 361')
    tree = DraftTree.chain(tokens[:32], 0.9)
    spent = []
    for _ in range(30):
        begun = time.perf_counter()
        found = grammar_filtered(tree, matcher, remaining=FAR, budget=32)
        spent.append(time.perf_counter() - begun)
    assert len(found) > 15
    assert min(spent) < 1e-3 * slowness()

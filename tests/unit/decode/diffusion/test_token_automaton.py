"""Byte automata and their lifting to tokens, against Matchers that read every token in every state."""

from __future__ import annotations

import random
from collections import deque
from itertools import product

import numpy as np
import pytest
from structgen_kernels import _native

from structgen import Grammar, compile, json_schema, lark, regex
from structgen.decode.diffusion import token_automaton as lifting
from structgen.decode.diffusion.token_automaton import (
    DEAD_CLASS,
    FAR,
    ByteAutomaton,
    TokenAutomaton,
    byte_automaton,
    lift,
    refuse_infinite_checks,
    token_automaton,
)
from structgen.engine import Vocabulary
from structgen.errors import GrammarError, LimitExceeded
from structgen.grammar import nodes as ir
from structgen.grammars import JsonPolicy
from structgen.testing import byte_vocabulary

Symbol = bytes | int  # a byte, or a special token


def lexical(text: str) -> Grammar:
    return ir.Literal(text.encode())


# The pieces of é, 你 and 😀 are tokens that are not text alone.
PIECES = [*("é".encode()[i:j] for i in range(2) for j in range(i + 1, 3)), "你".encode()[:2], "你".encode()[2:]]
SPLIT = Vocabulary([b"", b"a", b"b", b"ab", b"\xf0\x9f", "😀".encode()[2:], *PIECES, "aé".encode(), b"b"], eos=[0])
AB = Vocabulary([b"", *byte_vocabulary(b"ab", 3)], eos=[0])
MARKED = Vocabulary(
    [b"", b"", b"", b"a", b"b", b"ab", b"ba", b"", b""], eos=[0, 7], special={1: "<open>", 2: "<close>", 8: "<unused>"}
)
TAGGED = ir.Sequence(
    (lexical("a"), ir.SpecialToken("<open>"), ir.Repeat(lexical("ab"), 0, 2), ir.SpecialToken("<close>"), lexical("b"))
)
SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "n": {"enum": ["é", None, True]}},
    "required": ["a"],
    "additionalProperties": False,
}

CASES = [
    pytest.param(regex("(a|b)*abb"), AB, id="suffix"),
    pytest.param(regex("(aa|bb){2,4}|b?"), AB, id="counted"),
    pytest.param(regex("(a|aa|aab)*b?"), AB, id="ambiguous"),
    pytest.param(regex("a?[éb你😀]{1,3}"), SPLIT, id="split characters"),
    pytest.param(regex("."), SPLIT, id="any character"),
    pytest.param(TAGGED, MARKED, id="special tokens"),
    pytest.param(ir.Choice((TAGGED, lexical("aab"))), MARKED, id="special or text"),
    pytest.param(regex(""), AB, id="empty text"),
]


def unfolded(grammar: Grammar, vocabulary: Vocabulary) -> ByteAutomaton:
    automaton = byte_automaton(compile(grammar, vocabulary))
    assert automaton is not None
    return automaton


def after(automaton: ByteAutomaton, state: int, byte: int) -> int:
    return int(automaton.targets[automaton.kind_of[byte], state])


def access(automaton: ByteAutomaton) -> list[list[Symbol]]:
    """A shortest path to each state, in bytes and special tokens."""
    ways: dict[int, list[Symbol]] = {0: []}
    waiting = deque([0])
    while waiting:
        state = waiting.popleft()
        steps: list[tuple[Symbol, int]] = [
            (bytes([byte]), after(automaton, state, byte)) for byte in range(256) if after(automaton, state, byte) >= 0
        ]
        steps += [(token, target) for source, token, target in automaton.specials.tolist() if source == state]
        for symbol, target in steps:
            if target not in ways:
                ways[target] = [*ways[state], symbol]
                waiting.append(target)
    return [ways[state] for state in range(automaton.states)]


def walked(automaton: ByteAutomaton, state: int, way: list[Symbol]) -> int:
    for symbol in way:
        if isinstance(symbol, bytes):
            for byte in symbol:
                state = after(automaton, state, byte)
                if state < 0:
                    return -1
        else:
            found = [t for s, token, t in automaton.specials.tolist() if (s, token) == (state, symbol)]
            if not found:
                return -1
            (state,) = found
    return state


def by_token(lifted: TokenAutomaton, size: int) -> dict[tuple[int, int], int]:
    """The state after each (state, token); the automaton must be deterministic."""
    made: dict[tuple[int, int], int] = {}
    for source, target, label in zip(
        lifted.source.tolist(), lifted.target.tolist(), lifted.label.tolist(), strict=True
    ):
        for of in lifted.label_class[lifted.label_begin[label] : lifted.label_begin[label + 1]].tolist():
            for token in lifted.members(of).tolist():
                assert (source, token) not in made
                made[source, token] = target
    return made


@pytest.mark.parametrize(("grammar", "vocabulary"), CASES)
def test_edges_are_what_matchers_accept(grammar: Grammar, vocabulary: Vocabulary) -> None:
    """Every state allows the tokens that the Matcher allows, and its target expects what the Matcher then expects."""
    automaton = unfolded(grammar, vocabulary)
    lifted = lift(automaton, vocabulary)
    constraint = compile(grammar, vocabulary)
    edges = by_token(lifted, vocabulary.size)
    ways = access(automaton)

    def at(way: list[Symbol]):  # type: ignore[no-untyped-def]
        matcher = constraint.matcher()
        for symbol in way:
            taken = matcher.accept_bytes(symbol) == len(symbol) if isinstance(symbol, bytes) else matcher.accept(symbol)
            assert taken
        return matcher

    assert lifted.states == automaton.states
    expected = [
        (matcher.is_accepting, matcher.live_bytes(), sorted(matcher.live_specials())) for matcher in map(at, ways)
    ]
    for state, way in enumerate(ways):
        assert lifted.accepting[state] == expected[state][0]
        for token in range(vocabulary.size):
            matcher = at(way)
            if token in vocabulary.eos:
                assert (state, token) not in edges
                assert matcher.accept(token) == expected[state][0]
            elif matcher.accept(token):
                target = edges[state, token]
                found = matcher.is_accepting, matcher.live_bytes(), sorted(matcher.live_specials())
                assert found == expected[target]
                assert target == walked(automaton, state, [vocabulary.tokens[token] or token])
            else:
                assert (state, token) not in edges


@pytest.mark.parametrize(("grammar", "vocabulary"), CASES)
def test_classes_are_tokens_that_act_alike(grammar: Grammar, vocabulary: Vocabulary) -> None:
    """Two tokens share a class iff no state distinguishes them; dead tokens and EOS have their own classes."""
    lifted = lift(unfolded(grammar, vocabulary), vocabulary)
    edges = by_token(lifted, vocabulary.size)
    acts = {
        token: tuple(edges.get((state, token), -1) for state in range(lifted.states))
        for token in range(vocabulary.size)
        if token not in vocabulary.eos
    }
    for one, other in product(acts, repeat=2):
        assert (acts[one] == acts[other]) == (lifted.class_of[one] == lifted.class_of[other])
    for token, act in acts.items():
        assert (lifted.class_of[token] == DEAD_CLASS) == (set(act) == {-1})
    assert sorted(lifted.members(lifted.eos_class).tolist()) == sorted(vocabulary.eos)
    assert lifted.classes == max(lifted.class_of) + 1


@pytest.mark.parametrize(("grammar", "vocabulary"), CASES)
def test_distances_are_shortest_token_sequences(grammar: Grammar, vocabulary: Vocabulary) -> None:
    """They agree with an extension of all sequences from a state until one is accepted."""
    lifted = lift(unfolded(grammar, vocabulary), vocabulary)
    edges = by_token(lifted, vocabulary.size)
    for state in range(lifted.states):
        reached, steps = {state}, 0
        while reached and not any(lifted.accepting[one] for one in reached) and steps <= lifted.states:
            reached = {target for (source, _), target in edges.items() if source in reached}
            steps += 1
        alive = reached and steps <= lifted.states
        assert lifted.distance[state] == (steps if alive else FAR)


def test_states_from_which_no_tokens_lead_on_are_far() -> None:
    """Without a token for b nothing ends in abb; the automaton over bytes cannot know that."""
    vocabulary = Vocabulary([b"", b"a", b"bb"], eos=[0])
    lifted = lift(unfolded(regex("ab|aaba"), AB), vocabulary)
    assert lifted.distance[0] == FAR
    lifted = lift(unfolded(regex("ab|aabba"), AB), vocabulary)
    assert lifted.distance[0] == 4
    assert FAR in lifted.distance


def moore(next_: np.ndarray, accepting: np.ndarray, specials: list[tuple[int, int, int]]) -> list[int]:
    """Equivalence of states by plain refinement until nothing changes: slow and simple."""
    block = [int(one) for one in accepting]
    while True:
        seen = [
            (
                block[state],
                tuple(block[target] if target >= 0 else -1 for target in next_[state].tolist()),
                tuple(sorted((token, block[target]) for source, token, target in specials if source == state)),
            )
            for state in range(len(block))
        ]
        numbers = {one: number for number, one in enumerate(dict.fromkeys(seen))}
        refined = [numbers[one] for one in seen]
        if len(set(refined)) == len(set(block)):
            return refined
        block = refined


def trimmed(rng: random.Random, states: int, symbols: int) -> tuple[np.ndarray, np.ndarray, list[tuple[int, int, int]]]:
    """A random automaton in which every state is reachable and live; special tokens are 0 and 1."""
    # States that differ only in the copy of a state that their edges lead to have equal futures.
    while True:
        original = {
            (state, symbol): rng.randrange(states)
            for state in range(states)
            for symbol in range(symbols + 2)
            if rng.random() < 0.6
        }
        moves = {
            (copy * states + source, symbol): rng.choice((target, states + target))
            for copy in range(2)
            for (source, symbol), target in original.items()
        }
        accepting = [rng.random() < 0.4 for _ in range(states)] * 2

        def closure(begin: set[int], pairs: list[tuple[int, int]]) -> set[int]:
            while more := {b for a, b in pairs if a in begin} - begin:
                begin = begin | more
            return begin

        forward = [(source, target) for (source, _), target in moves.items()]
        reached = closure({0}, forward)
        alive = closure({s for s in range(2 * states) if accepting[s]}, [(b, a) for a, b in forward])
        kept = sorted(reached & alive)
        if kept and kept[0] == 0:
            break
    number = {state: at for at, state in enumerate(kept)}
    next_ = np.full((len(kept), 256), -1, dtype=np.int32)
    specials = []
    for (source, symbol), target in moves.items():
        if source in number and target in number:
            if symbol < symbols:
                next_[number[source], symbol] = number[target]
            else:
                specials.append((number[source], symbol - symbols, number[target]))
    return next_, np.array([accepting[state] for state in kept]), specials


@pytest.mark.parametrize("seed", range(120))
def test_equal_futures_are_those_of_plain_refinement(seed: int) -> None:
    rng = random.Random(seed)
    next_, accepting, specials = trimmed(rng, rng.randint(1, 8), rng.randint(1, 3))
    edges = np.array(specials, dtype=np.int32).reshape(-1, 3)
    found = _native.equal_futures(next_, accepting.astype(np.uint8), edges).tolist()
    wanted = moore(next_, accepting, specials)
    assert len(set(zip(found, wanted, strict=True))) == len(set(found)) == len(set(wanted))
    assert set(found) == set(range(len(set(found))))


def test_some_random_automata_have_equal_states() -> None:
    """A control for the test above."""
    merged = 0
    for seed in range(120):
        rng = random.Random(seed)
        next_, accepting, specials = trimmed(rng, rng.randint(1, 8), rng.randint(1, 3))
        merged += len(set(moore(next_, accepting, specials))) < len(next_)
    assert merged > 60


@pytest.mark.parametrize(
    "grammar",
    [
        regex("(a|b)*abb"),
        regex("(aa|aab){1,3}"),
        regex("ab|bb|aab|bab"),
        json_schema(SCHEMA, policy=JsonPolicy(whitespace="compact")),
        lark('start: part "," part | part ";"\npart: "x" end | "y"\nend: "z"* | inner "w"\ninner: /[a-c]{0,3}/'),
    ],
    ids=["suffix", "counted", "finite", "schema", "rules"],
)
def test_automata_are_minimal_and_read_the_same(grammar: Grammar, json_vocabulary: Vocabulary) -> None:
    """No two states have equal futures; on random walks the automaton expects what a Matcher expects, byte for byte."""
    constraint = compile(grammar, json_vocabulary)
    automaton = unfolded(grammar, json_vocabulary)
    specials = [tuple(row) for row in automaton.specials.tolist()]
    assert len(set(moore(automaton.targets[automaton.kind_of].T, automaton.accepting, specials))) == automaton.states  # type: ignore[arg-type]
    rng = random.Random(1)
    for _ in range(60):
        matcher, state = constraint.matcher(), 0
        for _ in range(40):
            assert matcher.is_accepting == automaton.accepting[state]
            live = [byte for byte in range(256) if after(automaton, state, byte) >= 0]
            assert bytes(live) == bytes(sorted(matcher.live_bytes()))
            if not live:
                break
            byte = rng.choice(live)
            assert matcher.accept_bytes(bytes([byte])) == 1
            state = after(automaton, state, byte)


@pytest.mark.parametrize("seed", range(30))
def test_moves_are_kept_with_their_copies(seed: int) -> None:
    """A nondeterministic automaton holds each move as often as it was listed, each label only once."""
    rng = random.Random(seed)
    moves = [(rng.randrange(3), rng.randrange(3), rng.randrange(1, 4)) for _ in range(rng.choice((0, 1, 5, 15)))]
    lifted = token_automaton(
        [False, True, False], np.array([1, 2, 3, 4], dtype=np.int32), 5, np.array(moves, dtype=np.int64).reshape(-1, 3)
    )
    labels = [
        lifted.label_class[begin:end].tolist()
        for begin, end in zip(lifted.label_begin[:-1], lifted.label_begin[1:], strict=True)
    ]
    assert len({tuple(label) for label in labels}) == len(labels)
    assert all(label == sorted(set(label)) and label for label in labels)
    found = [
        (source, target, of)
        for source, target, label in zip(lifted.source, lifted.target, lifted.label, strict=True)
        for of in labels[label]
    ]
    assert sorted(found) == sorted(moves)
    assert sorted(zip(lifted.source, lifted.target, strict=True)) == list(
        zip(lifted.source, lifted.target, strict=True)
    )


def test_more_states_than_are_wanted_give_none(json_vocabulary: Vocabulary) -> None:
    constraint = compile(regex("a{50}"), json_vocabulary)
    assert byte_automaton(constraint, max_states=50) is None
    found = byte_automaton(constraint, max_states=51)
    assert found is not None
    assert found.states == 51


def test_more_moves_than_are_kept_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    automaton = unfolded(regex("(a|b)*abb"), AB)
    needed = sum(len(set(lift(automaton, AB).class_of[1:].tolist())) for _ in range(automaton.states))
    monkeypatch.setattr(lifting, "_MAX_MOVES", needed)
    assert lift(automaton, AB).states == 4
    monkeypatch.setattr(lifting, "_MAX_MOVES", 3)
    with pytest.raises(
        LimitExceeded, match=r"moves of token classes=3 .* has 4 states over bytes; simplify the grammar"
    ):
        lift(automaton, AB)


def test_what_recurs_has_no_automaton(json_vocabulary: Vocabulary) -> None:
    assert byte_automaton(compile(json_schema({}), json_vocabulary), max_states=2_000) is None


def test_values_that_must_differ_are_refused(json_vocabulary: Vocabulary) -> None:
    schema = {"type": "array", "items": {"type": "integer"}, "uniqueItems": True}
    with pytest.raises(GrammarError, match=r"must differ.*uniqueItems"):
        refuse_infinite_checks(compile(json_schema(schema), json_vocabulary))
    refuse_infinite_checks(compile(json_schema({"type": "integer"}), json_vocabulary))


def test_a_schema_has_few_classes(deepseek_vocabulary: Vocabulary) -> None:
    """Some hundreds of 128,000 tokens behave differently; the tables take less than a megabyte."""
    fields = {f"f{number}": {"type": "string"} for number in range(20)}
    schema = {"type": "object", "properties": fields, "required": list(fields), "additionalProperties": False}
    grammar = json_schema(schema, policy=JsonPolicy(whitespace="compact"))
    automaton = unfolded(grammar, deepseek_vocabulary)
    lifted = lift(automaton, deepseek_vocabulary)
    assert automaton.states > 500
    assert lifted.classes < 200
    assert lifted.memory_bytes < 1 << 20
    assert lifted.distance[0] == 81


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"next": np.zeros((2, 257), dtype=np.int32)}, "the shapes do not fit"),
        ({"next": np.zeros((1, 256), dtype=np.int32)}, "the shapes do not fit"),
        ({"next": np.full((2, 256), 2, dtype=np.int32)}, "a target is out of range"),
        ({"specials": np.array([[0, 1, 2]], dtype=np.int32)}, "a state is out of range"),
        ({"specials": np.array([[-1, 1, 0]], dtype=np.int32)}, "a state is out of range"),
    ],
)
def test_tables_that_point_outside_are_refused(change: dict[str, np.ndarray], problem: str) -> None:
    tables = {
        "next": np.full((2, 256), -1, dtype=np.int32),
        "accepting": np.ones(2, dtype=np.uint8),
        "specials": np.zeros((0, 3), dtype=np.int32),
    }
    assert _native.equal_futures(**tables).tolist() == [0, 0]
    with pytest.raises(ValueError, match=problem):
        _native.equal_futures(**{**tables, **change})

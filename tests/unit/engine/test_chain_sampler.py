"""The table of C functions for llama.cpp's chains, called as llama.cpp calls it, without llama.cpp."""

from __future__ import annotations

import ctypes
import gc
import math
import random
from collections.abc import Iterator, Sequence
from threading import Thread
from typing import Any

import pytest
from grammar_strategies import regular_terms, rule_terms, vocabularies
from hypothesis import given, settings, strategies as st
from llama_chain import Candidate, Candidates
from structgen_kernels import _native

from structgen.engine import Constraint, Matcher, Vocabulary, compile
from structgen.engine.mask import allowed_ids, empty_masks
from structgen.errors import UnsatisfiableGrammar, VocabularyError
from structgen.frontends.regex import regex
from structgen.grammar.limits import Limits
from structgen.grammar.nodes import Grammar, literal

_P = ctypes.c_void_p
EXCLUDED = -math.inf


class Table(ctypes.Structure):
    """``llama_sampler_i``, with the fields that later releases have."""

    _fields_ = (
        ("name", ctypes.CFUNCTYPE(ctypes.c_char_p, _P)),
        ("accept", ctypes.CFUNCTYPE(None, _P, ctypes.c_int32)),
        ("apply", ctypes.CFUNCTYPE(None, _P, _P)),
        ("reset", ctypes.CFUNCTYPE(None, _P)),
        ("clone", ctypes.CFUNCTYPE(_P, _P)),
        ("free", ctypes.CFUNCTYPE(None, _P)),
        ("backend", _P * 5),
        ("copy_state", ctypes.CFUNCTYPE(None, _P, _P)),
        ("later", _P * 8),
    )


class Sampler(ctypes.Structure):
    """``llama_sampler``."""

    _fields_ = (("table", ctypes.POINTER(Table)), ("context", _P))


class Host:
    """What llama.cpp does with samplers: it makes them, calls their functions, and frees them."""

    def __init__(self) -> None:
        self.held: dict[int, Sampler] = {}
        self.init = ctypes.CFUNCTYPE(_P, _P, _P)(self._init)

    def _init(self, table: int, context: int | None) -> int:
        made = Sampler(ctypes.cast(table, ctypes.POINTER(Table)), context)
        self.held[ctypes.addressof(made)] = made
        return ctypes.addressof(made)

    def make(self, constraint: Constraint, budget: int | None = None) -> tuple[int, _native.ChainSampler]:
        state = _native.ChainSampler(constraint.native, budget)
        return state.wrap(ctypes.cast(self.init, _P).value or 0), state

    def table(self, sampler: int) -> Any:
        return self.held[sampler].table.contents

    def accept(self, sampler: int, *tokens: int) -> None:
        for token in tokens:
            self.table(sampler).accept(sampler, token)

    def apply(
        self, sampler: int, tokens: Sequence[int], *, is_sorted: bool = False, selected: int = -1
    ) -> tuple[list[tuple[int, float]], Candidates]:
        data = (Candidate * len(tokens))(*((token, 1.0 + place, 0.5) for place, token in enumerate(tokens)))
        array = Candidates(ctypes.addressof(data), len(tokens), selected, is_sorted)
        self.table(sampler).apply(sampler, ctypes.addressof(array))
        assert array.size == len(tokens)
        return [(each.id, each.logit) for each in data], array

    def left(self, sampler: int, tokens: Sequence[int]) -> set[int]:
        """The tokens that may still be chosen; the logits of these are as they were."""
        found = self.apply(sampler, tokens)[0]
        assert all(logit in (1.0 + place, EXCLUDED) for place, (_, logit) in enumerate(found))
        return {token for token, logit in found if logit > EXCLUDED}

    def clone(self, sampler: int) -> int:
        copy: int = self.table(sampler).clone(sampler)
        return copy

    def free(self, sampler: int) -> None:
        self.table(sampler).free(sampler)
        del self.held[sampler]


@pytest.fixture
def host() -> Iterator[Host]:
    """A host that has freed all that it has made."""
    before = _native.ChainSampler.living()
    made = Host()
    yield made
    for sampler in list(made.held):
        made.free(sampler)
    assert _native.ChainSampler.living() == before


def state_of(sampler: int) -> _native.ChainSampler:
    """The state of a sampler."""
    found = _native.ChainSampler.find(sampler)
    assert found is not None
    return found


LETTERS = Vocabulary([b"a", b"b", b"ab", b"ba", b"c", b"", b""], eos=[6, 5], size=40)
ALL = range(40)


def test_the_layout_is_that_of_llama_h(host: Host) -> None:
    """No sampling on a device, and nothing that later releases add."""
    sampler, _ = host.make(compile(literal("a"), LETTERS))
    table = host.table(sampler)
    assert table.name(sampler) == b"structgen"
    assert all(address is None for address in (*table.backend, *table.later))
    assert _native.ChainSampler.table() == ctypes.addressof(table)
    other = Sampler(ctypes.pointer(Table()), 1)
    assert _native.ChainSampler.find(ctypes.addressof(other)) is None


@given(
    st.one_of(regular_terms(b"ab"), rule_terms(b"ab")),
    vocabularies(b"ab"),
    st.integers(0, 2**32),
    st.one_of(st.none(), st.integers(0, 6)),
)
@settings(max_examples=max(settings().max_examples // 5, 10))
def test_candidates_are_masked_by_their_ids(term: Grammar, tokens: list[bytes], seed: int, budget: int | None) -> None:
    """In any order, with ids that are missing, repeated or unknown, a token is left iff the matcher validates it."""
    try:
        constraint = compile(term, Vocabulary([*tokens, b"a", b"b"], eos=[0]))
    except (UnsatisfiableGrammar, VocabularyError):
        return
    chance, host, matcher = random.Random(seed), Host(), constraint.matcher()
    size, masks = constraint.vocabulary.size, empty_masks(constraint.vocabulary)
    sampler, state = host.make(constraint, budget)
    for taken in range(6):
        candidates = chance.choices([*range(size), -1, size, size + 64, 2**31 - 1, -(2**31)], k=chance.randrange(20))
        everything = host.left(sampler, range(size))
        if budget is None:
            assert everything == valid(matcher)
        matcher.fill_mask(masks, budget=None if budget is None else budget - taken)
        assert everything == set(allowed_ids(masks[0]).tolist())
        assert host.left(sampler, candidates) == everything & set(candidates)
        assert (state.fault() is None) == bool(everything & set(candidates))
        if not everything - {0}:
            break
        token = chance.choice(sorted(everything - {0}))
        host.accept(sampler, token)
        assert matcher.accept(token)
    assert state.is_accepting == matcher.is_accepting
    host.free(sampler)


def valid(matcher: Matcher) -> set[int]:
    """The tokens that may come next, one by one."""
    return {token for token in range(matcher.constraint.vocabulary.size) if matcher.validate([token]) == 1}


def test_what_order_and_choice_become(host: Host) -> None:
    """An array that loses candidates is no longer sorted; what was selected stays selected."""
    sampler, state = host.make(compile(regex("a|ba"), LETTERS))
    found, array = host.apply(sampler, [3, 0], is_sorted=True, selected=1)
    assert ([token for token, _ in found], array.sorted, array.selected) == ([3, 0], True, 1)
    assert not host.apply(sampler, [3, 4, 0], is_sorted=True)[1].sorted
    host.apply(sampler, [])
    fault = state.fault()
    assert fault is not None
    assert fault[0] == "starved"


def test_after_the_end_only_eos(host: Host) -> None:
    """All EOS ids end the output, and may be repeated."""
    sampler, state = host.make(compile(literal("aba"), LETTERS))
    host.accept(sampler, 2, 0)
    assert (state.is_accepting, state.is_terminated) == (True, False)
    assert host.left(sampler, ALL) == {5, 6}
    host.accept(sampler, 5)
    assert host.left(sampler, ALL) == {5, 6}
    host.accept(sampler, 6)
    assert (state.is_terminated, state.fault(), state.tokens) == (True, None, [2, 0])
    host.accept(sampler, 0)
    assert state.fault() is not None


@pytest.mark.parametrize("token", [1, 5, 39, 40, -1, 2**31 - 1])
def test_a_token_that_is_not_allowed(host: Host, token: int) -> None:
    """It is kept as an error; from then on EOS is all that can be chosen, until a reset."""
    sampler, state = host.make(compile(literal("aca"), LETTERS))
    host.accept(sampler, 0, token)
    host.accept(sampler, 4)  # would have been right
    assert state.fault() == ("refused", [0], token, 0, False, "")
    assert host.left(sampler, [6]) == {6}
    found, array = host.apply(sampler, [4, 5, 0, 6], is_sorted=True, selected=2)
    assert found == [(4, EXCLUDED), (5, 2.0), (0, EXCLUDED), (6, EXCLUDED)]
    assert (array.selected, array.sorted) == (1, False)
    found, _ = host.apply(sampler, [4, 0])
    assert found == [(6, 0.0), (0, EXCLUDED)]  # EOS is not among the candidates: it takes a place
    assert not state.is_accepting
    host.table(sampler).reset(sampler)
    assert (state.fault(), state.tokens) == (None, [])
    assert host.left(sampler, ALL) == {0}


def test_a_reset_does_not_hide_an_error(host: Host) -> None:
    """An error is forgotten by the reset after somebody was told of it."""
    sampler, state = host.make(compile(literal("aca"), LETTERS))
    host.accept(sampler, 1)
    host.table(sampler).reset(sampler)
    host.accept(sampler, 0)
    assert state.tokens == [0]
    assert state.fault() == ("refused", [], 1, 0, False, "")
    host.table(sampler).reset(sampler)
    assert state.fault() is None
    for is_told in (True, False):
        host.apply(sampler, [1, 4])
        assert not is_told or state.fault() is not None
        host.table(sampler).reset(sampler)
        assert state.fault() == (None if is_told else ("starved", [], -1, 2, True, ""))


def test_one_candidate_may_be_tried_first(host: Host) -> None:
    """Programs that mask one sampled candidate, and all only where that is refused, get the same answers."""
    sampler, state = host.make(compile(literal("aca"), LETTERS))
    for token in (0, 4, 0):
        assert host.left(sampler, [1]) == set()
        assert host.left(sampler, ALL) == {token}
        assert state.fault() is None
        host.accept(sampler, token)
    assert host.left(sampler, ALL) == {5, 6}


def test_budgets_are_kept(host: Host) -> None:
    """The output can be completed within the budget at every step, and a token beyond it is refused."""
    constraint = compile(regex("(a|b|c)*b"), LETTERS)
    sampler, state = host.make(constraint, 3)
    assert host.left(sampler, ALL) == {0, 1, 2, 3, 4}
    host.accept(sampler, 0, 4)
    assert host.left(sampler, ALL) == {1, 2}
    copy = host.clone(sampler)
    host.accept(sampler, 0)
    assert state.fault() == ("refused", [0, 4], 0, 40, False, "")
    host.accept(copy, 2)
    assert host.left(copy, ALL) == {5, 6}
    host.table(copy).reset(copy)
    assert host.left(copy, ALL) == {0, 1, 2, 3, 4}


def test_clones_go_their_own_ways(host: Host) -> None:
    """A clone has the state and the error of its original, and shares neither."""
    sampler, state = host.make(compile(regex("(ab|ba){2}c"), LETTERS))
    host.accept(sampler, 2)
    copy = host.clone(sampler)
    host.accept(sampler, 3)
    host.accept(copy, 1)
    assert (state.tokens, state_of(copy).tokens) == ([2, 3], [2, 1])
    assert (host.left(sampler, ALL), host.left(copy, ALL)) == ({4}, {0})
    host.accept(copy, 1)
    again = host.clone(copy)
    assert state.fault() is None
    assert state_of(again).fault() == state_of(copy).fault() == ("refused", [2, 1], 1, 40, False, "")
    assert host.left(again, ALL) == {5}
    host.free(sampler)
    assert host.left(again, ALL) == {5}


def test_copies_set_the_state(host: Host) -> None:
    """A sampler goes on where another is, of another vocabulary too; an error that nobody was told of stays."""
    sampler, state = host.make(compile(regex("(ab|ba){2}c"), LETTERS))
    large = Vocabulary([*(bytes([byte]) for byte in range(256)), b""], eos=[256])
    saved, _ = host.make(compile(literal("xyz"), large), 5)
    host.accept(saved, ord("x"), ord("y"))
    host.accept(sampler, 4)
    host.table(saved).copy_state(saved, sampler)
    assert state.tokens == [ord("x"), ord("y")]
    assert host.left(sampler, range(257)) == {ord("z")}
    assert state.fault() == ("refused", [], 4, 0, False, "")
    host.table(saved).copy_state(saved, sampler)
    assert state.fault() is None
    host.accept(sampler, ord("z"))
    assert host.left(sampler, range(257)) == {256}
    assert host.left(saved, range(257)) == {ord("z")}
    host.table(saved).copy_state(saved, saved)
    assert state_of(saved).tokens == [ord("x"), ord("y")]


def test_a_limit_that_is_reached(host: Host) -> None:
    """The error of the engine crosses no border; it is kept with the limit's name."""
    letters = Vocabulary([bytes([byte]) for byte in range(256)] + [b""], eos=[256])
    sampler, state = host.make(compile(regex("(a|b)*a.{12}b(a|b)*"), letters, limits=Limits(steps=2_000)))
    chance = random.Random(3)
    while state.fault() is None and len(state.tokens) < 200:
        if host.left(sampler, range(257)):
            host.accept(sampler, chance.choice(b"ab"))
    fault = state.fault()
    assert fault is not None
    assert (fault[0], fault[5]) == ("failed", "steps")
    assert host.apply(sampler, [0, 256])[0] == [(0, EXCLUDED), (256, 2.0)]


def test_another_layout_is_noticed() -> None:
    """A library that stores other fields gets no sampler, and nothing is left of it."""
    before = _native.ChainSampler.living()
    other = Sampler()
    init = ctypes.CFUNCTYPE(_P, _P, _P)(lambda _table, _context: ctypes.addressof(other))
    state = _native.ChainSampler(compile(literal("a"), LETTERS).native, None)
    assert state.wrap(ctypes.cast(init, _P).value or 0) == 0
    assert _native.ChainSampler.living() == before


def test_ten_thousand_clones(host: Host) -> None:
    """They are freed, in any order, from any thread, also after all objects of Python are gone."""
    sampler, state = host.make(compile(regex("(a|b){100}"), LETTERS))
    host.accept(sampler, *[0] * 50)
    before = _native.ChainSampler.living()
    kept: list[int] = []
    chance = random.Random(1)
    for _ in range(10_000):
        kept.append(host.clone(chance.choice(kept) if kept else sampler))
        if len(kept) > 20:
            host.free(kept.pop(chance.randrange(len(kept))))
    assert _native.ChainSampler.living() == before + len(kept)
    del state
    gc.collect()
    thread = Thread(target=lambda: [host.free(each) for each in kept])
    thread.start()
    thread.join()
    assert _native.ChainSampler.living() == before
    assert host.left(sampler, ALL) == {0, 1, 2, 3}

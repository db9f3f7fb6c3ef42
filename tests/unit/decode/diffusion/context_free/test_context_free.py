"""The posterior over canvases of recursive grammars, against enumeration."""

from __future__ import annotations

import math
import random
from collections import Counter
from fractions import Fraction
from functools import cache

import numpy as np
import pytest
from canvas_enumeration import chi_square, chi_square_bound
from context_free_enumeration import GRAMMARS, Canvases, Text, an_instance
from reference_chart import ReferenceChart

from structgen import compile, json_schema, lark, regex
from structgen.decode.diffusion.canvas import canvas_language
from structgen.decode.diffusion.context_free import ContextFreeLanguage
from structgen.decode.diffusion.context_free.chart import Chart
from structgen.decode.diffusion.mean_field import FREE, MeanField
from structgen.decode.diffusion.regular import RegularLanguage
from structgen.decode.diffusion.token_automaton import byte_automaton, lift
from structgen.engine import Vocabulary
from structgen.engine.network import network_of
from structgen.errors import GenerationError, LimitExceeded, UnsatisfiableGrammar
from structgen.grammar.nodes import Reference, Repeat, Rules, SpecialToken, choice, literal, sequence
from structgen.grammars import JsonPolicy
from structgen.testing import recursive, small_terms
from structgen.testing.small_scope import ITSELF

DETERMINISTIC = [name for name in GRAMMARS if name not in {"ambiguous", "palindromes without centre"}]
INSTANCES = [(name, seed) for name in GRAMMARS for seed in range(8)]


@cache
def language_of(name: str, ambiguity: str = "refused") -> ContextFreeLanguage:
    grammar, tokens = GRAMMARS[name]
    return ContextFreeLanguage(Text(lark(grammar), tokens).constraint, ambiguity=ambiguity)  # type: ignore[arg-type]


def in_ids(words: np.ndarray, size: int) -> list[set[int]]:
    bits = np.unpackbits(words.view(np.uint8), axis=1, bitorder="little")
    assert not bits[:, size:].any()
    return [set(np.flatnonzero(row).tolist()) for row in bits]


def all_free(slots: int) -> np.ndarray:
    return np.full(slots, FREE, dtype=np.int32)


def log(mass: Fraction) -> float:
    return math.log(mass) if mass else -math.inf


# by enumeration


@pytest.mark.parametrize(("name", "seed"), INSTANCES)
def test_completions_exist_and_masks_hold_what_they_hold(name: str, seed: int) -> None:
    """For every grammar, ambiguous ones too, masks allow a token in a slot iff some completion has it."""
    case = an_instance(name, seed)
    language = language_of(name)
    assert language.completable(case.array) == bool(case.masses)
    assert in_ids(language.masks(case.array), case.text.size) == case.allowed()
    forced = language.forced(case.array)
    singles = [min(held) if len(held) == 1 else FREE for held in case.allowed()]
    assert forced.tolist() == (singles if case.masses else list(case.canvas))


@pytest.mark.parametrize(("name", "seed"), INSTANCES)
def test_the_best_completion_is_the_best(name: str, seed: int) -> None:
    """The best completion is right for ambiguous grammars too: a maximum is not affected by duplicates."""
    case = an_instance(name, seed)
    posterior = language_of(name).posterior(case.mean_field, tail=case.tail)
    if not case.masses:
        with pytest.raises(GenerationError, match="no completion of the canvas spells a string of the grammar"):
            posterior.best()
        return
    best = posterior.best()
    assert best.log_prob == pytest.approx(log(max(case.masses.values())), abs=1e-9)
    assert case.masses[tuple(best.tokens.tolist())] == max(case.masses.values())


@pytest.mark.parametrize(("name", "seed"), [(name, seed) for name, seed in INSTANCES if name != "ambiguous"])
def test_masses_and_marginals_are_exact(name: str, seed: int) -> None:
    case = an_instance(name, seed)
    posterior = language_of(name, "counted").posterior(case.mean_field, tail=case.tail)
    assert posterior.log_z == pytest.approx(log(case.total), abs=1e-9)
    if not case.masses:
        return
    marginals = [[float(share) for share in case.marginal(slot)] for slot in range(len(case.canvas))]
    for slot, shares in enumerate(marginals):
        assert posterior.marginals(slot) == pytest.approx(shares, abs=1e-9)
    entropies = [-sum(share * math.log(share) for share in shares if share) for shares in marginals]
    assert posterior.entropies() == pytest.approx(entropies, abs=1e-9)
    for tokens in list(case.masses)[:5]:
        expected = [
            shares[token] if held == FREE else 1.0
            for shares, token, held in zip(marginals, tokens, case.canvas, strict=True)
        ]
        assert posterior.shares(np.array(tokens, dtype=np.int32)) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize(("name", "seed"), [(name, seed) for name in DETERMINISTIC for seed in range(6)])
def test_clamped_canvases_keep_the_distribution(name: str, seed: int) -> None:
    case = an_instance(name, seed, slots=4, fixed=0.1)
    posterior = language_of(name).posterior(case.mean_field, tail=case.tail)
    for tokens in [*list(case.masses)[::7], (0, 0, 0, 0)]:
        for kept in ((0,), (1, 3), (0, 1, 2, 3)):
            canvas = [
                token if held != FREE or slot in kept else FREE
                for slot, (held, token) in enumerate(zip(case.canvas, tokens, strict=True))
            ]
            is_same = all(held in (FREE, token) for held, token in zip(case.canvas, canvas, strict=True))
            mass = sum(case.masses_of(canvas).values(), Fraction(0)) if is_same else Fraction(0)
            assert posterior.clamped(np.array(canvas, dtype=np.int32)) == pytest.approx(log(mass), abs=1e-9)


SMALL = list(small_terms(6, [ITSELF, literal("a"), choice("b", "")]))
"""All small grammars that may recur: left, right, in the middle, through the empty text, and in several ways."""


@pytest.mark.exhaustive
@pytest.mark.parametrize("part", range(3))
def test_small_grammars_are_read_as_they_are_meant(part: int) -> None:
    """A hundred random grammars agree: masks and maxima always, masses if the grammar is known to be unambiguous.

    For the others the mass is never too small.
    """
    rng = random.Random(part)
    known = 0
    for term in rng.sample(SMALL, 100):
        text = Text(recursive(term), (b"a", b"b", b"ab", b"bb", b"ba"))
        try:
            language = ContextFreeLanguage(text.constraint, ambiguity="counted")
        except UnsatisfiableGrammar:
            continue
        for slots in (1, 3):
            distribution = []
            for _ in range(slots):
                weights = [rng.choice((1, 2, 5)) for _ in range(text.size)]
                distribution.append(tuple(Fraction(weight, sum(weights)) for weight in weights))
            case = Canvases(text, (FREE,) * slots, tuple(distribution), "scored")
            assert in_ids(language.masks(case.array), text.size) == case.allowed(), term
            posterior = language.posterior(case.mean_field, tail="scored")
            if case.masses:
                assert posterior.best().log_prob == pytest.approx(log(max(case.masses.values())), abs=1e-9), term
            if language.is_unambiguous:
                assert posterior.log_z == pytest.approx(log(case.total), abs=1e-9), term
            else:
                assert posterior.log_z >= log(case.total) - 1e-9, term
        known += language.is_unambiguous
    assert known > 20


def test_calls_that_may_read_nothing_one_after_another_are_finite() -> None:
    """Each of the calls may be empty, and the rest of a token is not passed round without being read."""
    text = Text(recursive(Repeat(sequence("a", Repeat(Repeat(ITSELF, 1, 2), 1, 2)), 0, None)), (b"a", b"aa", b"b"))
    language = ContextFreeLanguage(text.constraint)
    assert in_ids(language.masks(all_free(2)), text.size) == [{0, 1, 3}, {0, 1, 3}]


def test_special_tokens_are_read_in_any_rule() -> None:
    grammar = Rules({"s": choice(sequence("(", Reference("s"), ")"), SpecialToken("<x>"))}, Reference("s"))
    vocabulary = Vocabulary([b"(", b")", b"((", b"", b""], eos=[3], special={4: "<x>"})
    language = ContextFreeLanguage(compile(grammar, vocabulary))
    assert language.is_unambiguous
    assert in_ids(language.masks(all_free(3)), 5) == [{0, 4}, {3, 4}, {1, 3}]
    assert in_ids(language.masks(np.array([2, FREE, FREE, FREE], dtype=np.int32)), 5) == [{2}, {4}, {1}, {1}]
    distribution = MeanField(all_free(3), np.zeros((3, 5)))
    assert language.posterior(distribution, tail="scored").log_z == pytest.approx(math.log(2 / 125), abs=1e-9)


def sampled(case: Canvases, language: ContextFreeLanguage, draws: int, seed: int) -> Counter[tuple[int, ...]]:
    posterior = language.posterior(case.mean_field, tail=case.tail)
    generator = np.random.default_rng(seed)
    found: Counter[tuple[int, ...]] = Counter()
    for _ in range(draws):
        completion = posterior.draw(generator)
        tokens = tuple(completion.tokens.tolist())
        assert completion.log_prob == pytest.approx(log(case.masses[tokens]), abs=1e-9)
        found[tokens] += 1
    return found


def is_posterior(case: Canvases, language: ContextFreeLanguage, seed: int) -> bool:
    """Whether 1,000 draws pass chi-squared over all completions at alpha 1e-6; rare outcomes share one cell."""
    draws, others = 1000, ()
    counts: Counter[tuple[int, ...]] = Counter()
    distribution: dict[tuple[int, ...], Fraction] = {}
    found = sampled(case, language, draws, seed)
    assert set(found) <= set(case.masses)
    for tokens, mass in case.masses.items():
        cell = tokens if draws * mass >= 5 * case.total else others
        distribution[cell] = distribution.get(cell, Fraction(0)) + mass / case.total
        counts[cell] += found[tokens]
    assert len(distribution) > 4
    return chi_square(counts, distribution) < chi_square_bound(len(distribution))


@pytest.mark.parametrize("name", ["brackets", "json", "ambiguous"])
def test_draws_follow_the_posterior(name: str) -> None:
    assert is_posterior(an_instance(name, 3, slots=5, fixed=0.0), language_of(name), 11)


def test_draws_by_ways_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test above has power: an ambiguous grammar without correction is far from its posterior."""
    text = Text(lark(GRAMMARS["ambiguous"][0]), (b"1", b"+"))
    share = (Fraction(9, 20), Fraction(9, 20), Fraction(1, 10))
    case = Canvases(text, (FREE,) * 9, (share,) * 9, "free")  # 1, 2, 5 or 14 derivations
    language = ContextFreeLanguage(text.constraint)
    assert is_posterior(case, language, 5)
    monkeypatch.setattr(type(language.posterior(case.mean_field)), "_parses", lambda self, tokens: 1.0)
    assert not is_posterior(case, language, 5)


# ambiguity


def test_what_ambiguity_would_falsify_is_refused() -> None:
    case = an_instance("ambiguous", 0, slots=3, fixed=0.0)
    posterior = language_of("ambiguous").posterior(case.mean_field)
    assert posterior.counts_ways
    tokens = np.zeros(3, dtype=np.int32)
    for ask in (
        lambda: posterior.log_z,
        lambda: posterior.shares(tokens),
        lambda: posterior.marginals(0),
        posterior.entropies,
        lambda: posterior.clamped(all_free(3)),
    ):
        with pytest.raises(GenerationError, match=r'may count a canvas more than once.*ambiguity="counted"'):
            ask()


def test_ways_are_counted_if_that_is_wanted() -> None:
    """``1+1+1+1`` has five derivations, Catalan's number."""
    language = language_of("ambiguous", "counted")
    canvas = np.array([0, 1, 0, 1, 0, 1, 0], dtype=np.int32)
    distribution = MeanField(canvas, np.zeros((0, 5)))
    assert language.posterior(distribution).log_z == pytest.approx(math.log(5), abs=1e-9)


@pytest.mark.parametrize("name", GRAMMARS)
def test_grammars_whose_next_byte_decides_are_known_as_unambiguous(name: str) -> None:
    assert language_of(name).is_unambiguous == (name in DETERMINISTIC)


def test_no_way_among_too_many_is_an_error() -> None:
    """A limit of one draw is reached soon where a canvas has 14 ways."""
    language = ContextFreeLanguage(language_of_constraint("ambiguous"), max_draws=1)
    canvas = np.array([0, 1] * 4 + [0], dtype=np.int32)
    posterior = language.posterior(MeanField(canvas, np.zeros((0, 5))))
    generator = np.random.default_rng(0)
    with pytest.raises(LimitExceeded, match="draw from an ambiguous grammar: more than max_draws=1"):
        Counter(posterior.draw(generator).log_prob for _ in range(50))


@cache
def language_of_constraint(name: str):  # type: ignore[no-untyped-def]
    grammar, tokens = GRAMMARS[name]
    return Text(lark(grammar), tokens).constraint


# the network


def test_of_recursive_json_one_rule_is_called() -> None:
    """Arrays, objects, strings and numbers are inlined; the next byte always decides."""
    vocabulary = Vocabulary([bytes([byte]) for byte in range(256)] + [b""], eos=[256])
    network = network_of(compile(json_schema(True, policy=JsonPolicy(whitespace="compact")), vocabulary))
    assert len({start for _, start, _ in network.calls}) == 1
    assert network.states < 500
    assert network.is_deterministic


def test_lists_that_end_in_themselves_are_no_recursion() -> None:
    """A call at the end of a rule is a jump, so no calls remain."""
    vocabulary = Vocabulary([b"a", b",", b""], eos=[2])
    network = network_of(compile(lark('start: "a" rest\nrest: "," start | '), vocabulary))
    assert (network.calls, network.states) == ((), 2)


# two routes, two charts


REGULAR = [
    (regex("(ab|c)*d?"), (b"a", b"b", b"c", b"d", b"bc", b"dab")),
    (lark('start: item ("," item)*\nitem: "x" | "yy"'), (b"x", b"y", b",", b"x,", b"y,y")),
    (
        lark('start: "(" inner ")" | "[" inner "]"\ninner: /[0-9]/ ("+" /[0-9]/)*'),
        (b"(", b")", b"]", b"[1", b"1", b"+"),
    ),
]


@pytest.mark.parametrize("index", range(len(REGULAR)))
@pytest.mark.parametrize("tail", ["free", "scored"])
def test_regular_grammars_are_the_same_by_either_route(index: int, tail: str) -> None:
    grammar, tokens = REGULAR[index]
    vocabulary = Vocabulary([*tokens, b""], eos=[len(tokens)])
    constraint = compile(grammar, vocabulary)
    automaton = byte_automaton(constraint)
    assert automaton is not None
    one, two = RegularLanguage(lift(automaton, vocabulary), vocabulary), ContextFreeLanguage(constraint)
    assert two.is_unambiguous
    assert one.shortest == two.shortest
    rng = np.random.default_rng(index)
    for slots in (1, 6, 17):
        for fixed in (0.0, 0.3):
            canvas = np.where(rng.random(slots) < fixed, rng.integers(0, vocabulary.size, slots), FREE).astype(np.int32)
            assert one.completable(canvas) == two.completable(canvas)
            assert np.array_equal(one.masks(canvas), two.masks(canvas))
            assert np.array_equal(one.forced(canvas), two.forced(canvas))
            distribution = MeanField(canvas, 3 * rng.normal(size=(int((canvas == FREE).sum()), vocabulary.size)))
            left, right = one.posterior(distribution, tail=tail), two.posterior(distribution, tail=tail)  # type: ignore[arg-type]
            assert left.log_z == pytest.approx(right.log_z, abs=1e-9)
            if one.completable(canvas):
                assert left.best().log_prob == pytest.approx(right.best().log_prob, abs=1e-9)
                for slot in range(slots):
                    assert left.marginals(slot) == pytest.approx(right.marginals(slot), abs=1e-9)


@pytest.mark.parametrize("is_max", [False, True])
@pytest.mark.parametrize("name", ["json across values", "brackets in pairs", "ambiguous"])
def test_native_charts_equal_those_of_numpy(name: str, is_max: bool) -> None:
    """All masses that parses need, at every boundary, and the backward pass are equal; 11 slots lie in two blocks."""
    plan = language_of(name).plan
    rng = np.random.default_rng(4)
    for slots in (0, 1, 11):
        weights = np.log(rng.random((slots, len(plan.labels)))) * 30
        weights[rng.random(weights.shape) < 0.2] = -np.inf
        if is_max:
            weights[np.isfinite(weights)] = 0.0
        weights[:, 0] = 0.0
        native, reference = Chart(plan, weights, is_max=is_max), ReferenceChart(plan, weights, is_max=is_max)
        cells = np.arange(plan.cells, dtype=np.int32)
        assert native.ends == pytest.approx(reference.ends, abs=1e-9)
        rows, arrivals = native.reached
        row_of = np.repeat(np.arange(plan.rows), np.diff(plan.cell_begin))
        for begin in range(slots + 1):
            held = cells[rows[begin, row_of]]
            for end in range(begin, slots + 1):
                assert native.between(begin, held, end) == pytest.approx(reference.between(begin, held, end), abs=1e-9)
                after = rows[begin : end + 1, 0]
                assert native.until(begin, 0, end)[: len(after)][after] == pytest.approx(
                    reference.until(begin, 0, end)[: len(after)][after], abs=1e-9
                )
            for arrival in np.flatnonzero(arrivals[begin]).tolist():
                assert native.arrived(begin, arrival) == pytest.approx(reference.arrived(begin, arrival), abs=1e-9)
        needed = reference.needed(np.isfinite(reference.ends))
        assert rows[:, row_of][needed].all()
        if np.isfinite(reference.ends).any() and not is_max:
            ends = np.exp(reference.ends - reference.ends.max())
            assert native.label_shares(ends) == pytest.approx(reference.label_shares(ends), abs=1e-9)


def test_masses_far_below_any_float_are_kept() -> None:
    """Masses of exp(-4,800), from 60 slots at exp(-80) each, survive beside far more probable dead ends."""
    text = Text(lark('start: "(" start ")" | "x"'), (b"(", b")", b"x", b"y"))
    language = ContextFreeLanguage(text.constraint)
    slots = 61
    logits = np.zeros((slots, 5))
    logits[:, [0, 1, 2, 4]] = -1e6  # counts as 80 below the largest
    distribution = MeanField(all_free(slots), logits)
    canvas = [0] * 30 + [2] + [1] * 30
    each = distribution.log_prob_of(np.array(canvas, dtype=np.int32))
    assert each.sum() == pytest.approx(-80.0 * slots, abs=1e-9)
    posterior = language.posterior(distribution, tail="scored")
    # There is one string for each odd length, and EOS is as improbable as anything else.
    assert posterior.log_z == pytest.approx(math.log(31) - 80.0 * slots, abs=1e-9)
    assert posterior.best().log_prob == pytest.approx(-80.0 * slots, abs=1e-9)
    shares = posterior.marginals(0)
    assert shares == pytest.approx([30 / 31, 0, 1 / 31, 0, 0], abs=1e-9)


# limits and arguments


def test_charts_that_cost_too_much_name_the_limit_and_the_slots() -> None:
    language = ContextFreeLanguage(language_of_constraint("json"), max_steps=10_000)
    assert language.completable(all_free(3))
    with pytest.raises(LimitExceeded, match="chart of 40 slots: more than max_steps=10000 would be needed") as caught:
        language.completable(all_free(40))
    assert caught.value.limit == "max_steps"
    language = ContextFreeLanguage(language_of_constraint("json"), max_bytes=10_000)
    with pytest.raises(LimitExceeded, match="chart of 40 slots: more than max_bytes=10000"):
        language.masks(all_free(40))


def test_networks_that_are_too_large_name_the_limit() -> None:
    with pytest.raises(LimitExceeded, match="network of a grammar: more than max_states=2"):
        ContextFreeLanguage(language_of_constraint("json"), max_states=2)
    with pytest.raises(LimitExceeded, match="tokens of a grammar: more than max_effects=3"):
        ContextFreeLanguage(language_of_constraint("json"), max_effects=3)


def test_arguments_out_of_range_are_refused() -> None:
    constraint = language_of_constraint("json")
    with pytest.raises(ValueError, match="ambiguity must be one of refused, counted; found 'maybe'"):
        ContextFreeLanguage(constraint, ambiguity="maybe")  # type: ignore[arg-type]
    for name in ("max_states", "max_effects", "max_steps", "max_bytes", "max_draws"):
        with pytest.raises(ValueError, match=f"{name} must be at least 1; found 0"):
            ContextFreeLanguage(constraint, **{name: 0})  # type: ignore[arg-type]


def test_a_distribution_over_another_vocabulary_is_refused() -> None:
    with pytest.raises(GenerationError, match="one logit for each of 7 tokens; found 3 in a slot"):
        language_of("json").posterior(MeanField(all_free(2), np.zeros((2, 3))))


def test_ids_that_the_vocabulary_does_not_have_complete_nothing() -> None:
    for token in (7, 10**6, -5):
        assert not language_of("json").completable(np.array([FREE, token], dtype=np.int32))


# the choice of a route


@pytest.mark.exhaustive
def test_canvas_language_takes_the_regular_route_where_it_can() -> None:
    vocabulary = Vocabulary([bytes([byte]) for byte in range(256)] + [b""], eos=[256])
    finite = compile(regex("[ab]{3}"), vocabulary)
    assert isinstance(canvas_language(finite), RegularLanguage)
    assert canvas_language(finite) is canvas_language(finite)
    for small in ('start: "a" start | "b"', 'start: ("a" | "b")+'):
        assert isinstance(canvas_language(compile(lark(small), vocabulary)), RegularLanguage)
    moment = compile(json_schema({"type": "string", "format": "date-time"}), vocabulary)
    assert isinstance(canvas_language(moment), RegularLanguage)  # however many states a leap second takes
    recursive = compile(json_schema(True, policy=JsonPolicy(whitespace="compact")), vocabulary)
    assert isinstance(canvas_language(recursive), ContextFreeLanguage)
    assert canvas_language(recursive) is canvas_language(recursive)
    assert canvas_language(recursive, ambiguity="counted") is not canvas_language(recursive)


def test_what_recurs_and_is_ambiguous_is_not_unfolded_for_long() -> None:
    """Each state of this automaton is larger than the one before, though they all have the same future."""
    vocabulary = Vocabulary([b"1", b"+", b"1+", b""], eos=[3])
    language = canvas_language(compile(lark('start: e\ne: e "+" e | "1"'), vocabulary), ambiguity="counted")
    assert language.completable(np.full(5, FREE, dtype=np.int32))
    assert language.shortest == 1

"""The posterior over canvases of a regular language, against enumeration."""

from __future__ import annotations

import json
import math
import random
from collections import Counter
from fractions import Fraction
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from canvas_enumeration import Case, Runs, a_case, chi_square, chi_square_bound
from jsonschema import Draft202012Validator

from structgen import compile, json_schema, regex
from structgen.decode.diffusion.mean_field import FREE, LOWEST, MeanField
from structgen.decode.diffusion.regular import RegularLanguage
from structgen.decode.diffusion.token_automaton import FAR, byte_automaton, lift
from structgen.engine import Vocabulary
from structgen.errors import GenerationError
from structgen.grammars import JsonPolicy

CASES = [(seed, kind, tail) for seed in range(40) for kind in (True, False) for tail in ("free", "scored")]


def log(mass: Fraction) -> float:
    return math.log(mass) if mass else -math.inf


def distribution_of(canvas: np.ndarray, probabilities: list[list[float]]) -> MeanField:
    with np.errstate(divide="ignore"):
        return MeanField(canvas, np.log(np.array(probabilities)))


def all_free(slots: int) -> np.ndarray:
    return np.full(slots, FREE, dtype=np.int32)


def in_ids(words: np.ndarray, size: int) -> list[set[int]]:
    bits = np.unpackbits(words.view(np.uint8), axis=1, bitorder="little")
    assert not bits[:, size:].any()
    return [set(np.flatnonzero(row).tolist()) for row in bits]


# by enumeration


@pytest.mark.parametrize(("seed", "is_deterministic", "tail"), CASES)
def test_everything_equals_enumeration(seed: int, is_deterministic: bool, tail: str) -> None:
    """Masses, the best completion, all marginals and entropies agree; nondeterministic automata count their runs."""
    case = a_case(seed, is_deterministic=is_deterministic, tail=tail)  # type: ignore[arg-type]
    posterior = case.language.posterior(case.mean_field, tail=case.tail)
    assert posterior.log_z == pytest.approx(log(case.mass()), abs=1e-9)
    if not case.weights:
        for ask in (posterior.best, lambda: posterior.draw(np.random.default_rng(0)), posterior.entropies):
            with pytest.raises(GenerationError, match="no completion of the canvas spells a string of the grammar"):
                ask()
        return
    best = posterior.best()
    tokens = tuple(best.tokens.tolist())
    assert case.weights[tokens] == max(case.weights.values())
    assert best.log_prob == pytest.approx(log(case.weights[tokens]), abs=1e-9)
    assert tuple(posterior.best().tokens.tolist()) == tokens
    distribution = case.posterior()
    marginals = np.zeros((len(case.canvas), case.runs.size))
    for filled, share in distribution.items():
        for slot, token in enumerate(filled):
            marginals[slot, token] += float(share)
    for slot in range(len(case.canvas)):
        assert posterior.marginals(slot) == pytest.approx(marginals[slot], abs=1e-12)
    some = np.random.default_rng(seed).integers(0, case.runs.size, len(case.canvas)).astype(np.int32)
    wanted = [1.0 if held != FREE else marginals[slot, some[slot]] for slot, held in enumerate(case.canvas)]
    assert posterior.shares(some) == pytest.approx(wanted, abs=1e-12)
    entropies = [-sum(share * math.log(share) for share in row if share > 0) for row in marginals]
    assert posterior.entropies() == pytest.approx(entropies, abs=1e-9)
    sampled = posterior.draw(np.random.default_rng(seed))
    assert sampled.log_prob == pytest.approx(log(case.weights[tuple(sampled.tokens.tolist())]), abs=1e-9)


@pytest.mark.parametrize(("seed", "is_deterministic", "tail"), CASES[:100])
def test_masses_of_canvases_that_fix_more(seed: int, is_deterministic: bool, tail: str) -> None:
    """``clamped`` agrees for every way to fix one more slot, and for some ways to fix more."""
    case = a_case(seed, is_deterministic=is_deterministic, tail=tail)  # type: ignore[arg-type]
    posterior = case.language.posterior(case.mean_field, tail=case.tail)
    rng = random.Random(seed)
    more = [
        [rng.randrange(case.runs.size) if held == FREE and rng.random() < 0.5 else held for held in case.canvas]
        for _ in range(4)
    ]
    for slot, token in product(range(len(case.canvas)), range(case.runs.size)):
        if case.canvas[slot] == FREE:
            more.append([*case.canvas[:slot], token, *case.canvas[slot + 1 :]])
    for canvas in more:
        found = posterior.clamped(np.array(canvas, dtype=np.int32))
        assert found == pytest.approx(log(case.mass(canvas)), abs=1e-9)


@pytest.mark.parametrize(("seed", "is_deterministic"), [(seed, kind) for seed in range(50) for kind in (True, False)])
def test_what_each_slot_may_hold(seed: int, is_deterministic: bool) -> None:
    """``completable``, ``masks`` and ``forced`` are right in both directions."""
    case = a_case(seed, is_deterministic=is_deterministic, tail="scored")
    fillings = list(case.runs.fillings(case.canvas))
    assert case.language.completable(case.array) == bool(fillings)
    masks = in_ids(case.language.masks(case.array), case.runs.size)
    assert masks == [{tokens[slot] for tokens in fillings} for slot in range(len(case.canvas))]
    forced = case.language.forced(case.array).tolist()
    for slot, held in enumerate(case.canvas):
        only_tail = bool(fillings) and all(slot > case.runs.length(tokens) for tokens in fillings)
        if held != FREE or not (len(masks[slot]) == 1 or only_tail):
            assert forced[slot] == held
        else:
            assert forced[slot] == (case.runs.eos[0] if only_tail else min(masks[slot]))


def test_cases_are_of_many_kinds() -> None:
    """A control for the two tests above: enough canvases have completions, several runs, a tail, and fixed slots."""
    cases = [a_case(*one[:1], is_deterministic=one[1], tail=one[2]) for one in CASES]  # type: ignore[arg-type]
    solvable = [case for case in cases if case.weights]
    assert len(solvable) > 60
    assert len(cases) - len(solvable) > 20
    assert sum(any(case.runs.count_canvas(tokens) > 1 for tokens in case.weights) for case in solvable) > 12
    assert sum(any(case.runs.length(tokens) < len(tokens) - 1 for tokens in case.weights) for case in solvable) > 20
    assert sum(any(held != FREE for held in case.canvas) for case in solvable) > 12
    assert sum(len(case.weights) > 10 for case in solvable) > 8


def sampled(case: Case, draws: int, seed: int) -> Counter[tuple[int, ...]]:
    generator = np.random.default_rng(seed)
    posterior = case.language.posterior(case.mean_field, tail=case.tail)
    return Counter(tuple(posterior.draw(generator).tokens.tolist()) for _ in range(draws))


def rich_cases(*, is_deterministic: bool, count: int) -> list[Case]:
    """Cases with several outcomes; each is expected at least five times in 2,000 draws."""
    tails = ("free", "scored")
    cases = (a_case(seed, is_deterministic=is_deterministic, tail=tails[seed % 2]) for seed in range(1000, 1400))
    fitting = (case for case in cases if 4 <= len(case.weights) <= 60)
    return [case for case in fitting if min(case.posterior().values()) > Fraction(5, 2000)][:count]


@pytest.mark.parametrize("is_deterministic", [True, False])
def test_draws_have_the_posterior_distribution(is_deterministic: bool) -> None:
    """Chi-square with alpha 1e-6 over 2,000 draws accepts for each of three automata."""
    cases = rich_cases(is_deterministic=is_deterministic, count=3)
    assert len(cases) == 3
    for seed, case in enumerate(cases):
        distribution = case.posterior()
        assert chi_square(sampled(case, 2_000, seed), distribution) < chi_square_bound(len(distribution))


def test_the_draws_would_show_other_distributions() -> None:
    """A control: the same draws reject a distribution per text and tokens by existence of an edge.

    They also reject independent slots.
    """
    # Between states 0 and 1 the token 0 has three edges and the token 1 has one; token 2 leads elsewhere.
    moves = ((0, 1, 0), (0, 1, 0), (0, 1, 0), (0, 1, 1), (0, 2, 2), (1, 3, 0), (1, 3, 1), (2, 3, 1))
    runs = Runs(4, moves, frozenset({3}), (3,), 4)
    distribution = [[Fraction(1, 4)] * 4] * 2
    fillings = {tokens: Fraction(1, 16) for tokens in runs.fillings([FREE, FREE])}
    case = Case(runs, runs.language(), (FREE, FREE), distribution, "free", fillings)
    counts = sampled(case, 2_000, 1)
    right = case.posterior()
    assert chi_square(counts, right) < chi_square_bound(len(right))
    total = sum(fillings.values())
    by_text = {tokens: weight / total for tokens, weight in fillings.items()}
    # The states are sampled right, then a token with some edge between them by its probability alone.
    by_existence = {tokens: Fraction(8, 9) / 4 if tokens[0] < 2 else Fraction(1, 9) for tokens in fillings}
    marginals = [Counter[int]() for _ in range(2)]
    for tokens, share in right.items():
        for slot, token in enumerate(tokens):
            marginals[slot][token] += share  # type: ignore[assignment]
    alone = {
        (first, second): marginals[0][first] * Fraction(marginals[1][second])
        for first, second in product(range(4), repeat=2)
        if marginals[0][first] and marginals[1][second]
    }
    for wrong in (by_text, by_existence, alone):
        assert sum(wrong.values()) == 1
        assert chi_square(counts, wrong) > chi_square_bound(len(wrong))


def test_published_vectors(shared_data: Path) -> None:
    """Masses, marginals and best sequences agree with exact published ones."""
    cases = json.loads((shared_data / "vectors.json").read_text(encoding="utf-8"))["dfa_meanfield"]
    assert len(cases) >= 30
    for case in cases:
        size, slots = case["vocab"], len(case["probs"])
        moves = tuple((source, target, token) for source, token, target in case["delta"])
        runs = Runs(case["states"], moves, frozenset(case["accept"]), (size,), size + 1)
        distribution = [[*map(Fraction, row), Fraction(0)] for row in case["probs"]]
        logits = distribution_of(all_free(slots), [[float(share) for share in row] for row in distribution])
        posterior = runs.language().posterior(logits, tail="scored")
        mass = Fraction(case["Z_accept"])
        # A token of probability 0 counts as one of exp(LOWEST), which is negligible beside any other mass here.
        if mass == 0:
            assert posterior.log_z < LOWEST + 10
            continue
        assert posterior.log_z == pytest.approx(log(mass), abs=1e-9)
        assert posterior.best().log_prob == pytest.approx(log(Fraction(case["map_accept"]["prob"])), abs=1e-9)
        for slot, row in enumerate(case["constrained_marginals"]):
            wanted = [float(Fraction(share)) for share in row]
            assert posterior.marginals(slot)[:size] == pytest.approx(wanted, abs=1e-9)


# mistakes of other decoders


def language(pattern: str, tokens: list[bytes]) -> RegularLanguage:
    """The language of a regex over these tokens; the last is EOS."""
    vocabulary = Vocabulary(tokens, eos=[len(tokens) - 1])
    automaton = byte_automaton(compile(regex(pattern), vocabulary))
    assert automaton is not None
    return RegularLanguage(lift(automaton, vocabulary), vocabulary)


def test_edges_are_read_from_source_to_target() -> None:
    """The best string is ``ab`` though every slot prefers the other order."""
    posterior = language("ab", [b"a", b"b", b""]).posterior(
        distribution_of(all_free(2), [[0.01, 0.98, 0.01], [0.98, 0.01, 0.01]])
    )
    assert posterior.best().tokens.tolist() == [0, 1]
    assert posterior.best().log_prob == pytest.approx(2 * math.log(0.01))


def test_128_slots_of_small_chances_do_not_underflow() -> None:
    """1e-384 underflows in double precision; its logarithm does not."""
    members = language("a{128}", [b"a", b"b", b""])
    posterior = members.posterior(distribution_of(all_free(128), [[1e-3, 0.998, 1e-3]] * 128))
    assert posterior.log_z == pytest.approx(128 * math.log(1e-3), rel=1e-12)
    assert posterior.best().tokens.tolist() == posterior.draw(np.random.default_rng(0)).tokens.tolist() == [0] * 128
    assert posterior.shares(np.zeros(128, dtype=np.int32)) == pytest.approx(np.ones(128))
    assert posterior.entropies() == pytest.approx(np.zeros(128), abs=1e-9)


def test_what_is_1e_288_of_the_rest_is_still_found() -> None:
    """Ninety-six slots prefer a dead end to the only accepting path, which scaling by the largest would lose."""
    members = language("a{96}|b{96}c", [b"a", b"b", b"c", b""])
    rows = [[0.999, 1e-3, 0.0, 0.0]] * 96 + [[1e-4, 1e-4, 0.9998, 0.0]]
    posterior = members.posterior(distribution_of(np.array([FREE] * 96 + [2], dtype=np.int32), rows[:-1]))
    assert posterior.log_z == pytest.approx(96 * math.log(1e-3), rel=1e-9)
    assert posterior.draw(np.random.default_rng(0)).tokens.tolist() == [1] * 96 + [2]
    # Both paths at once: the rare one has its share in the marginals.
    both = members.posterior(distribution_of(all_free(97), [[0.5, 0.5e-3, 0.0, 0.4995]] * 96 + [[0.0, 0.0, 0.5, 0.5]]))
    assert math.log(both.marginals(3)[1]) == pytest.approx(96 * math.log(1e-3), rel=1e-9)


def test_a_language_without_mass_is_an_error_and_not_a_draw() -> None:
    """Maxima and draws do not depend on scale, so zero mass is checked explicitly."""
    for members, slots in ((language("ab", [b"a", b"b", b""]), 1), (language("a{3}", [b"a", b"b", b""]), 2)):
        distribution = distribution_of(all_free(slots), [[0.3, 0.3, 0.4]] * slots)
        posterior = members.posterior(distribution)
        assert posterior.log_z == -math.inf
        for ask in (
            posterior.best,
            posterior.entropies,
            lambda posterior=posterior: posterior.draw(np.random.default_rng(0)),
            lambda posterior=posterior: posterior.marginals(0),
            lambda posterior=posterior, slots=slots: posterior.shares(np.zeros(slots, dtype=np.int32)),
        ):
            with pytest.raises(GenerationError, match=r"no completion .* the shortest string takes [23]"):
                ask()


def test_a_canvas_ends_in_acceptance_and_not_in_mere_hope() -> None:
    """The best prefix that is live but cannot end in this canvas is not taken."""
    members = language("a{8}|b", [b"a", b"b", b""])
    posterior = members.posterior(distribution_of(all_free(2), [[0.98, 0.01, 0.01], [0.98, 0.01, 0.01]]))
    assert posterior.best().tokens.tolist() == [1, 2]


def test_blocks_that_are_filled_in_turn_see_those_to_come() -> None:
    """In two blocks of two slots, the best first block alone has no completion, or costs too much later.

    The posterior is of the whole canvas, so the first block is filled as the whole canvas needs it.
    """
    members = language("aabb|bbaa|aaaaaa", [b"a", b"b", b""])
    rows = [[0.9, 0.05, 0.05]] * 2 + [[0.9, 0.05, 0.05]] * 2
    best = members.posterior(distribution_of(all_free(4), rows)).best()
    assert best.log_prob == pytest.approx(2 * math.log(0.9) + 2 * math.log(0.05))
    rows[3] = [0.998, 0.001, 0.001]
    first = members.posterior(distribution_of(all_free(4), rows)).best().tokens[:2]
    assert first.tolist() == [1, 1]  # though ``aa`` is 324 times as probable there, and live


def test_slots_that_stay_free_weigh_what_the_model_says_of_them() -> None:
    """A slot that is masked again is no wildcard of weight 1: the model's preference there affects the others."""
    members = language("ax|by", [b"a", b"b", b"x", b"y", b""])
    posterior = members.posterior(
        distribution_of(all_free(2), [[0.6, 0.3, 0.05, 0.04, 0.01], [0.1, 0.1, 0.1, 0.6, 0.1]])
    )
    assert posterior.best().tokens.tolist() == [1, 3]
    assert posterior.shares(np.array([1, 3], dtype=np.int32)) == pytest.approx([0.75, 0.75])


def test_a_free_tail_does_not_push_the_end_to_the_last_slot() -> None:
    """A model that is unsure about padding does not write a longer text just to have less padding."""
    members = language("a+", [b"a", b"b", b""])
    rows = [[0.8, 0.1, 0.1], *[[0.30, 0.1, 0.6]] * 7]
    distribution = distribution_of(all_free(8), rows)
    assert members.posterior(distribution, tail="free").best().tokens.tolist() == [0] + [2] * 7
    unsure = distribution_of(all_free(8), [[0.8, 0.1, 0.1], [0.3, 0.1, 0.6], *[[0.5, 0.1, 0.4]] * 6])
    assert members.posterior(unsure, tail="free").best().tokens.tolist() == [0] + [2] * 7
    assert members.posterior(unsure, tail="scored").best().tokens.tolist() == [0] * 8


def test_tokens_of_probability_zero_keep_a_chance() -> None:
    """Half precision rounds small probabilities to zero; the only string would have no mass."""
    members = language("ab", [b"a", b"b", b""])
    with np.errstate(divide="ignore"):
        logits = np.log(np.array([[0, 1, 0], [1, 0, 0]], dtype=np.float16)).astype(np.float32)
    posterior = members.posterior(MeanField(all_free(2), logits))
    assert posterior.best().tokens.tolist() == [0, 1]
    assert posterior.log_z == pytest.approx(2 * LOWEST, rel=1e-6)


def test_fixed_slots_hold_what_no_member_has() -> None:
    """Ids out of range, special tokens and a model's mask id are safe: such canvases have no completion."""
    vocabulary = Vocabulary([b"a", b"b", b"", b"", b""], eos=[2], special=[3])  # 4 is padding
    automaton = byte_automaton(compile(regex("a+b?"), vocabulary))
    assert automaton is not None
    members = RegularLanguage(lift(automaton, vocabulary), vocabulary)
    for token in (3, 4, 5, 1000, 2**31 - 1, -2, -5, -(2**31)):
        canvas = np.array([FREE, token, FREE], dtype=np.int32)
        assert not members.completable(canvas)
        assert not members.masks(canvas).any()
        assert members.forced(canvas).tolist() == canvas.tolist()
        posterior = members.posterior(distribution_of(canvas, [[0.2] * 5] * 2))
        assert posterior.log_z == -math.inf
        with pytest.raises(GenerationError, match="no completion of the canvas"):
            posterior.best()
        assert members.posterior(distribution_of(all_free(3), [[0.2] * 5] * 3)).clamped(canvas) == -math.inf


def test_a_canvas_that_contradicts_the_distribution_has_no_completion_in_common() -> None:
    members = language("(a|b)+", [b"a", b"b", b""])
    posterior = members.posterior(distribution_of(np.array([0, FREE], dtype=np.int32), [[0.5, 0.2, 0.3]]))
    assert posterior.clamped(np.array([1, FREE], dtype=np.int32)) == -math.inf
    assert posterior.clamped(np.array([0, FREE], dtype=np.int32)) == posterior.log_z == pytest.approx(0.0)


def test_the_empty_text_and_the_empty_canvas() -> None:
    """A canvas of nothing but EOS and a canvas without slots work."""
    empty, members = language("", [b"a", b""]), language("a*", [b"a", b""])
    for slots in (0, 1, 3):
        distribution = (
            distribution_of(all_free(slots), [[0.75, 0.25]] * slots)
            if slots
            else MeanField(all_free(0), np.zeros((0, 2)))
        )
        best = empty.posterior(distribution).best()
        assert best.tokens.tolist() == [1] * slots
        assert best.log_prob == pytest.approx(math.log(0.25) if slots else 0.0)
        assert len(members.posterior(distribution).draw(np.random.default_rng(0)).tokens) == slots
        assert members.posterior(distribution).log_z == pytest.approx(0.0 if slots == 0 else math.log(1.0), abs=1e-9)
        assert len(members.posterior(distribution).entropies()) == slots


def test_without_eos_members_fill_the_canvas() -> None:
    vocabulary = Vocabulary([b"a", b"b"])
    automaton = byte_automaton(compile(regex("a+b"), vocabulary))
    assert automaton is not None
    members = RegularLanguage(lift(automaton, vocabulary), vocabulary)
    posterior = members.posterior(distribution_of(all_free(3), [[0.5, 0.5]] * 3))
    assert posterior.best().tokens.tolist() == [0, 0, 1]
    assert posterior.log_z == pytest.approx(math.log(1 / 8))
    assert posterior.shares(np.zeros(3, dtype=np.int32)) == pytest.approx([1, 1, 0])
    assert posterior.marginals(2) == pytest.approx([0, 1])
    assert posterior.entropies() == pytest.approx([0, 0, 0], abs=1e-12)
    assert members.masks(all_free(3)).ravel().tolist() == [1, 1, 2]
    assert members.forced(all_free(3)).tolist() == [0, 0, 1]


def test_a_language_that_no_tokens_spell_is_told_apart() -> None:
    automaton = byte_automaton(compile(regex("ab"), Vocabulary([b"a", b"b", b""], eos=[2])))
    assert automaton is not None
    vocabulary = Vocabulary([b"a", b"bb", b""], eos=[2])
    members = RegularLanguage(lift(automaton, vocabulary), vocabulary)
    with pytest.raises(
        GenerationError, match=r"no completion of the canvas .* no tokens spell any string of the grammar"
    ):
        members.posterior(distribution_of(all_free(4), [[0.4, 0.3, 0.3]] * 4)).best()


def test_logits_for_another_vocabulary_are_refused() -> None:
    members = language("a+", [b"a", b"b", b""])
    with pytest.raises(GenerationError, match=r"one logit for each of 3 tokens; found 4 in a slot"):
        members.posterior(MeanField(all_free(2), np.zeros((2, 4))))


# whole schemas

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 6},
        "kind": {"enum": ["né", "b\u2028", 3, None, [1, {"x": True}]]},
        "age": {"type": "integer", "minimum": 0, "maximum": 130},
        "tags": {"type": "array", "items": {"type": "boolean"}, "maxItems": 3},
    },
    "required": ["name", "kind", "age"],
    "additionalProperties": False,
}


def schema_language(vocabulary: Vocabulary) -> RegularLanguage:
    constraint = compile(json_schema(SCHEMA, policy=JsonPolicy(whitespace="compact")), vocabulary)
    automaton = byte_automaton(constraint)
    assert automaton is not None
    return RegularLanguage(lift(automaton, vocabulary), vocabulary)


def check_is_valid(vocabulary: Vocabulary, tokens: np.ndarray) -> None:
    ends = np.flatnonzero(np.isin(tokens, vocabulary.eos))
    length = int(ends[0]) if len(ends) else len(tokens)
    assert set(tokens[length:].tolist()) <= set(vocabulary.eos)
    value = json.loads(vocabulary.decode(tokens[:length].tolist()))
    Draft202012Validator(SCHEMA).validate(value)


@pytest.mark.parametrize("fixture", ["json_vocabulary", "deepseek_vocabulary"])
def test_what_is_sampled_under_a_schema_validates(fixture: str, request: pytest.FixtureRequest) -> None:
    """Random logits, with almost no mass on JSON, give valid JSON, also by native passes."""
    vocabulary: Vocabulary = request.getfixturevalue(fixture)
    members = schema_language(vocabulary)
    slots, rng = members.shortest + 12, np.random.default_rng(0)
    assert members.shortest < FAR
    for _ in range(3):
        distribution = MeanField(all_free(slots), 3 * rng.normal(size=(slots, vocabulary.size)).astype(np.float32))
        posterior = members.posterior(distribution)
        found = [posterior.best(), *(posterior.draw(rng) for _ in range(5))]
        for completion in found:
            check_is_valid(vocabulary, completion.tokens)
            assert completion.log_prob <= found[0].log_prob + 1e-6
        # Any part of a completion can be completed, and its reported scores agree.
        kept = np.where(rng.random(slots) < 0.4, found[1].tokens, FREE).astype(np.int32)
        assert members.completable(kept)
        assert np.isfinite(posterior.clamped(kept))
        masks = in_ids(members.masks(kept), vocabulary.size)
        assert all(token in mask for token, mask in zip(found[1].tokens.tolist(), masks, strict=True))
        again = members.posterior(MeanField(kept, distribution.logits[kept == FREE])).best()
        check_is_valid(vocabulary, again.tokens)
        assert again.tokens[kept != FREE].tolist() == kept[kept != FREE].tolist()
    for slot in (0, slots // 2, slots - 1):
        marginals = posterior.marginals(slot)
        assert marginals.sum() == pytest.approx(1.0, abs=1e-5)
        shares = marginals[marginals > 0]
        assert posterior.entropies()[slot] == pytest.approx(-(shares * np.log(shares)).sum(), abs=1e-4)
    # The same in double precision, with numpy alone.
    exact = members.posterior(MeanField(distribution.canvas, distribution.logits.astype(np.float64)))
    assert posterior.log_z == pytest.approx(exact.log_z, abs=1e-4)
    assert posterior.best().tokens.tolist() == exact.best().tokens.tolist()
    assert posterior.entropies() == pytest.approx(exact.entropies(), abs=1e-4)
    unfit = all_free(members.shortest - 1)
    assert not members.completable(unfit)
    assert members.completable(all_free(members.shortest))

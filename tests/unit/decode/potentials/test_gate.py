"""Potentials that guard a single output, and samplers of whole outputs in the loop."""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from typing import Any

import numpy as np
import pytest
from exact_target import exact_target, z_score

from structgen.decode import Context, Greedy, Multinomial, generate, start_generation
from structgen.decode.potentials import Potential, potential
from structgen.decode.sampling import AWRS, SMC
from structgen.engine import Vocabulary, compile
from structgen.errors import GenerationError
from structgen.frontends.regex import regex
from structgen.methods.monitors import monitor
from structgen.models import HashModel

VOCABULARY = Vocabulary([b"", b"a", b"b", b"ab", b"c", b"ca"], eos=[0])
PATTERN = "(a|b|c){1,5}"
CONSTRAINT = compile(regex(PATTERN), VOCABULARY)


@potential(always=True)
def no_repeats(text: str) -> bool:
    return not re.search("aa|bb|cc", text)


@potential
def ends_in_cb(text: str) -> bool:
    return text.endswith("cb")


class Barred(Potential):
    """Forbids ``a`` by its mask alone; sampled tokens are still asked about."""

    def prefix(self, hypothesis: Any, /) -> float:
        return -math.inf if b"a" in hypothesis.data else 0.0

    def complete(self, hypothesis: Any, /) -> float:
        return self.prefix(hypothesis)

    def allowed(self, hypothesis: Any, /) -> Any:
        return np.array([0b010101 if self.prefix(hypothesis) == 0 else 0], dtype=np.int32)


def admitted(text: str, token: int) -> bool:
    longer = text + VOCABULARY.tokens[token].decode()
    return bool(longer and re.fullmatch(PATTERN, longer) and not re.search("aa|bb|cc", longer))


def distribution_after(model: HashModel, tokens: tuple[int, ...]) -> Any:
    logits = model.start().extend([*model.encode_prompt("ab"), *tokens]).astype(np.float64)
    return logits - np.logaddexp.reduce(logits)


@pytest.mark.parametrize("seed", range(6))
def test_greedy_takes_the_best_that_is_admitted(seed: int) -> None:
    model = HashModel(VOCABULARY, seed=seed)
    result = generate(model, "ab", CONSTRAINT, potentials=[no_repeats], max_tokens=5)
    tokens: tuple[int, ...] = ()
    while True:
        text = VOCABULARY.decode(tokens).decode()
        distribution = distribution_after(model, tokens)
        allowed = [token for token in range(6) if admitted(text, token)]
        best = max(allowed, key=lambda token: distribution[token], default=0) if len(tokens) < 5 else 0
        if best == 0:
            break
        tokens = (*tokens, best)
    assert result.tokens == tokens


@pytest.mark.parametrize("sampler", [Greedy(), Multinomial(), AWRS(), SMC(6)], ids=repr)
@pytest.mark.parametrize("seed", range(5))
def test_what_is_forbidden_does_not_come(sampler: Any, seed: int) -> None:
    model = HashModel(VOCABULARY, seed=seed)
    for chosen, check in (
        ([no_repeats], lambda text: not re.search("aa|bb|cc", text)),
        ([Barred()], lambda text: "a" not in text),
        ([no_repeats, Barred()], lambda text: not re.search("a|bb|cc", text)),
        ([lambda text: len(text) % 2 == 0], lambda text: len(text) % 2 == 0),
    ):
        try:
            result = generate(model, "ab", CONSTRAINT, sampler=sampler, potentials=chosen, max_tokens=5, seed=seed)
        except GenerationError:
            if isinstance(sampler, (AWRS, SMC)):
                continue  # these do not go back, and all their particles may end where nothing is left
            raise
        assert check(result.text)
        assert re.fullmatch(PATTERN, result.text)
        assert result.stats.tokens == len(result.tokens)


@pytest.mark.parametrize("sampler", [Greedy(), Multinomial()], ids=repr)
def test_it_goes_back_where_nothing_is_left(sampler: Any) -> None:
    """The sampler finds ``cb`` at the end, however the model begins."""
    for seed in range(8):
        model = HashModel(VOCABULARY, seed=seed)
        result = generate(model, "ab", CONSTRAINT, sampler=sampler, potentials=[ends_in_cb], max_tokens=4, seed=seed)
        assert result.text.endswith("cb")
        assert sum(step.token is not None for step in result.steps) == len(result.tokens)


@pytest.mark.nightly
def test_masking_with_a_predicate_has_the_distribution_of_masking() -> None:
    """Over 1,500 outputs, ten z-scores beyond 6 have probability 2e-8."""
    model = HashModel(VOCABULARY, seed=2)
    counts = Counter[tuple[int, ...]]()
    for seed in range(1500):
        result = generate(
            model, "ab", CONSTRAINT, sampler=Multinomial(), potentials=[no_repeats], max_tokens=2, seed=seed
        )
        counts[result.tokens] += 1
    distribution: dict[tuple[int, ...], float] = {}
    for tokens in [(), *itertools.product(range(1, 6), repeat=1), *itertools.product(range(1, 6), repeat=2)]:
        chance = 1.0
        for length in range(len(tokens) + 1):
            before = tokens[:length]
            text = VOCABULARY.decode(before).decode()
            admitted = [
                token
                for token in range(1, 6)
                if length < 2 and not re.search("aa|bb|cc", text + VOCABULARY.tokens[token].decode())
            ]
            admitted += [0] if text else []
            chosen = tokens[length] if length < len(tokens) else 0
            if chosen not in admitted:
                chance = 0.0
                break
            probabilities = np.exp(distribution_after(model, before)[admitted])
            chance *= float(probabilities[admitted.index(chosen)] / probabilities.sum())
        if chance:
            distribution[tokens] = chance
    assert sum(distribution.values()) == pytest.approx(1)
    assert set(counts) <= set(distribution)
    for tokens, chance in sorted(distribution.items(), key=lambda item: -item[1])[:10]:
        assert abs(z_score([1.0] * counts[tokens] + [0.0] * (1500 - counts[tokens]), chance)) < 6


def test_forced_text_is_asked_about_too() -> None:
    vocabulary = Vocabulary([b"", b"x", b"y", b"xy"], eos=[0])
    constraint = compile(regex("xyxy|yx"), vocabulary)
    model = HashModel(vocabulary, writes="xyxy")
    no_double = potential(always=True)(lambda text: "yx" not in text or text == "yx")
    assert generate(model, "y", constraint, max_tokens=4).text == "xyxy"
    assert generate(model, "y", constraint, potentials=[no_double], max_tokens=4).text == "yx"


@pytest.mark.parametrize("sampler", [Greedy(), Multinomial(), AWRS(), SMC(4)], ids=repr)
def test_what_forbids_everything_is_named(sampler: Any) -> None:
    def never(text: str) -> bool:
        return False

    with pytest.raises(GenerationError, match=r"never forbade \d+ of \d+"):
        generate(HashModel(VOCABULARY), "ab", CONSTRAINT, sampler=sampler, potentials=[never], max_tokens=3)


@pytest.mark.parametrize("sampler", [Greedy(), Multinomial(), AWRS(), SMC(4)], ids=repr)
def test_a_mask_that_leaves_nothing_is_named(sampler: Any) -> None:
    """The dead end of a monitor is no score, so it is counted by the mask; a potential that leaves tokens is not."""
    vocabulary = Vocabulary([b"", b"a", b".", b"x", b"y", b"z"], eos=[0])
    constraint = compile(regex(r"a\.[xz]"), vocabulary)

    def fine(text: str) -> list[str]:
        return ["x", "y", "z"]

    def narrow(text: str) -> list[str]:
        return ["y"]

    monitors = [monitor(r"\.", fine), monitor(r"\.", narrow)]
    with pytest.raises(GenerationError, match=r"narrow left no token in [1-9]\d* masks") as raised:
        generate(HashModel(vocabulary), "a", constraint, sampler=sampler, potentials=monitors, max_tokens=4)
    assert "fine" not in str(raised.value)


def test_scores_need_weights() -> None:
    def score(text: str) -> float:
        return 0.5

    with pytest.raises(GenerationError, match=r"take only True and False .*; the score is 0.5 .*; give sampler=SMC"):
        generate(HashModel(VOCABULARY), "ab", CONSTRAINT, potentials=[score], max_tokens=3)
    assert generate(HashModel(VOCABULARY), "ab", CONSTRAINT, sampler=SMC(3), potentials=[score], max_tokens=3).text


def test_whole_outputs_can_be_rejected_and_are_written_anew() -> None:
    """Checks of programs do this: the remaining distribution is the sampler's without the rejected outputs."""
    model = HashModel(VOCABULARY, seed=4)
    target = exact_target(model, "ab", PATTERN, 3)
    with Context(model, model.encode_prompt("ab")) as context:
        generation = start_generation(context, CONSTRAINT, max_tokens=3, sampler=SMC(16), seed=3)
        seen: list[tuple[int, ...]] = []
        for _ in range(12):
            chunks = list(generation)
            result = generation.result()
            assert "".join(chunk.text for chunk in chunks) == result.text
            assert result.logprob + result.log_z == pytest.approx(target[result.tokens], abs=1e-4)
            assert result.tokens not in seen
            seen.append(result.tokens)
            generation.reject(len(result.tokens), keep=0)
        # A part of it stays, and only the rest is written anew.
        list(generation)
        result = generation.result()
        kept = result.tokens[:1]
        generation.reject(len(result.tokens), keep=1)
        list(generation)
        assert generation.result().tokens[:1] == kept
        assert generation.result().tokens != result.tokens


def test_the_best_sampler_and_the_sampled_one_agree_with_their_seeds() -> None:
    model = HashModel(VOCABULARY, seed=4)
    for sampler in (SMC(8), AWRS(), Multinomial()):
        first, second = (generate(model, "ab", CONSTRAINT, sampler=sampler, max_tokens=5, seed=9) for _ in range(2))
        assert first.tokens == second.tokens
        outputs = {
            generate(model, "ab", CONSTRAINT, sampler=sampler, max_tokens=5, seed=seed).tokens for seed in range(9)
        }
        assert len(outputs) > 1


class Grumbling(Potential):
    """Raises an error for every prefix that ends with ``word``."""

    def __init__(self, word: str) -> None:
        self.word = word

    def prefix(self, hypothesis: Any, /) -> float:
        if hypothesis.text.endswith(self.word):
            raise RuntimeError("no opinion")
        return 0.0

    def complete(self, hypothesis: Any, /) -> float:
        return 0.0


@pytest.mark.parametrize("allowed_at", range(4))
def test_forced_tokens_end_at_one_that_a_potential_forbids(allowed_at: int) -> None:
    """The matcher stands where the output does, and the search for another way starts there."""

    @potential(always=True)
    def short(text: str) -> bool:
        return len(text) <= allowed_at or not text.startswith("cabb")

    constraint = compile(regex("cabb|cabc"), VOCABULARY)
    with Context(HashModel(VOCABULARY, seed=1), [1]) as context:
        generation = start_generation(context, constraint, max_tokens=6, potentials=[short])
        for _ in generation:
            assert generation.matcher.history_length == len(generation.tokens)
        assert generation.result().text == "cabc"


@pytest.mark.parametrize("word", ["ca", "cab", "cabca"])
def test_an_error_within_forced_text_leaves_matcher_and_output_together(word: str) -> None:
    """A caller that catches it can rewind the output and go on."""
    constraint = compile(regex("cabcab"), VOCABULARY)
    with Context(HashModel(VOCABULARY, seed=1), [1]) as context:
        generation = start_generation(context, constraint, max_tokens=6, potentials=[Grumbling(word)])
        with pytest.raises(GenerationError, match="no opinion"):
            list(generation)
        assert len(generation.data) < len(word)
        assert generation.matcher.history_length == len(generation.tokens)
        generation.rewind(0)
        assert generation.matcher.history_length == 0


@pytest.mark.parametrize("budget", range(3, 8))
def test_forced_tokens_stop_where_the_budget_needs_other_ones(budget: int) -> None:
    """With and without potentials the tokens are the same."""
    constraint = compile(regex("cabab(c|ab)"), VOCABULARY)
    outputs = []
    for potentials in ([], [no_repeats]):
        with Context(HashModel(VOCABULARY, seed=1), [1]) as context:
            generation = start_generation(
                context, constraint, max_tokens=max(budget, constraint.min_tokens()), potentials=potentials
            )
            for _ in generation:
                pass
            outputs.append(generation.tokens)
    assert outputs[0] == outputs[1]

"""A*: the best outputs, against enumeration of all outputs."""

from __future__ import annotations

import json
import math

import jsonschema
import numpy as np
import pytest
from exact_target import exact_target
from toy_language import ToyLanguage

from structgen.decode.potentials import Hypothesis, potential
from structgen.decode.sampling import sample
from structgen.engine import Vocabulary, compile
from structgen.errors import GenerationError, LimitExceeded
from structgen.frontends.json_schema import json_schema
from structgen.frontends.regex import regex
from structgen.methods.strategies import AStar
from structgen.models import HashModel

VOCABULARY = Vocabulary([b"", b"a", b"b", b"ab", b"c", b"bc"], eos=[0])
PATTERN = "(a|b|c){1,4}"


def ordered(target: dict[tuple[int, ...], float]) -> list[tuple[tuple[int, ...], float]]:
    return sorted(target.items(), key=lambda item: (-item[1], item[0]))


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("budget", [1, 2, 4])
def test_it_finds_the_best_outputs_of_all(seed: int, budget: int) -> None:
    model = HashModel(VOCABULARY, seed=seed)
    constraint = compile(regex(PATTERN), VOCABULARY)
    right = ordered(exact_target(model, "ab", PATTERN, budget))
    sampled = sample(model, "ab", constraint, sampler=AStar(outputs=5), max_tokens=budget)
    assert [each.result.tokens for each in sampled.samples] == [tokens for tokens, _ in right[:5]]
    assert [each.log_weight for each in sampled.samples] == pytest.approx([log_p for _, log_p in right[:5]])
    assert sampled.best().tokens == right[0][0]
    everything = sample(model, "ab", constraint, sampler=AStar(outputs=10_000), max_tokens=budget)
    assert {each.result.tokens for each in everything.samples} == {tokens for tokens, _ in right}


@pytest.mark.parametrize("seed", range(8))
def test_a_perfect_heuristic_leads_straight_to_the_best(seed: int) -> None:
    """With the exact best completion as heuristic only the prefixes of the best output are expanded."""
    budget = 3
    language = ToyLanguage(HashModel(VOCABULARY, seed=seed), "ab", PATTERN, budget)
    totals = {output: language.log_p((*output, -1)) for output in language.outputs}

    def rest(hypothesis: Hypothesis) -> float:
        tokens = hypothesis.tokens
        best = max(total for output, total in totals.items() if output[: len(tokens)] == tokens)
        return best - language.log_p(tokens)

    constraint = compile(regex(PATTERN), VOCABULARY)
    blind = sample(language.model, "ab", constraint, sampler=AStar(), max_tokens=budget)
    led = sample(language.model, "ab", constraint, sampler=AStar(rest), max_tokens=budget)
    assert led.best().tokens == blind.best().tokens == max(totals, key=lambda output: totals[output])
    assert led.forwards <= blind.forwards


def test_potentials_are_part_of_the_score() -> None:
    for seed in range(6):
        model = HashModel(VOCABULARY, seed=seed)
        right = ordered(exact_target(model, "ab", PATTERN, 3, lambda text: -2.0 * text.count("a")))
        sampled = sample(
            model,
            "ab",
            regex(PATTERN),
            sampler=AStar(outputs=3),
            potentials=[lambda t: -2.0 * t.count("a")],
            max_tokens=3,
        )
        assert [each.result.tokens for each in sampled.samples] == [tokens for tokens, _ in right[:3]]
        forbidden = exact_target(model, "ab", PATTERN, 3, lambda text: 0.0 if "c" in text else -math.inf)
        found = sample(model, "ab", regex(PATTERN), sampler=AStar(), potentials=[lambda t: "c" in t], max_tokens=3)
        assert found.best().tokens == ordered(forbidden)[0][0]
    bonus = potential(lambda text: 3.0 * (text == "cab"))
    right = ordered(exact_target(model, "ab", PATTERN, 3, lambda text: 3.0 * (text == "cab")))
    sampled = sample(model, "ab", regex(PATTERN), sampler=AStar(most=3.0), potentials=[bonus], max_tokens=3)
    assert sampled.best().tokens == right[0][0]


def test_what_is_no_bound_is_found_out() -> None:
    model = HashModel(VOCABULARY, seed=1)
    with pytest.raises(GenerationError, match=r"underestimates.*admissible=False"):
        sample(model, "ab", regex(PATTERN), sampler=AStar(lambda hypothesis: -50.0, outputs=3), max_tokens=3)
    with pytest.raises(GenerationError, match="exceeds most=0"):
        sample(model, "ab", regex(PATTERN), sampler=AStar(lambda hypothesis: 1.0), max_tokens=3)
    with pytest.raises(GenerationError, match="the heuristic: it returned nan"):
        sample(model, "ab", regex(PATTERN), sampler=AStar(lambda hypothesis: math.nan), max_tokens=3)


def test_a_draft_may_give_up_prefixes() -> None:
    """A prefix with a low reward is not expanded, even if it is the most probable."""
    model = HashModel(VOCABULARY, seed=1)
    followed: set[str] = set()

    def reward(hypothesis: Hypothesis) -> float:
        followed.add(VOCABULARY.decode(hypothesis.tokens[:-1]).decode())
        return -5.0 if set(hypothesis.text) <= {"c"} else -math.inf

    led = sample(model, "ab", regex("[abc]{3}"), sampler=AStar(reward, admissible=False), max_tokens=3)
    free = sample(model, "ab", regex("[abc]{3}"), sampler=AStar(), max_tokens=3)
    assert led.best().text == "ccc" != free.best().text
    assert followed == {"", "c", "cc"}
    assert AStar(reward, admissible=False).target != AStar().target


@pytest.mark.parametrize("budget", [1, 2, 4, 12])
def test_outputs_are_members_within_any_budget(budget: int) -> None:
    vocabulary = Vocabulary([b"", *(bytes([byte]) for byte in b'[]{},:"ab12 '), b"12", b'"a'], eos=[0])
    schema = {"enum": [1, 12, "a", "ab", {"a": 2}]}
    constraint = compile(json_schema(schema), vocabulary)
    for seed in range(5):
        result = sample(HashModel(vocabulary, seed=seed), "1", constraint, sampler=AStar(), max_tokens=budget).best()
        jsonschema.validate(json.loads(result.text), schema)
        assert len(result.tokens) <= budget


def test_a_search_that_is_too_long_says_so() -> None:
    with pytest.raises(LimitExceeded, match="raise limit"):
        sample(HashModel(VOCABULARY), "ab", regex("[abc]{30}"), sampler=AStar(limit=20), max_tokens=30)


def test_ties_go_to_the_first_tokens() -> None:
    """The model gives all tokens the same probability: outputs come by falling probability, then by tokens."""

    class Flat(HashModel):
        def logits(self, state: int, matched: int) -> np.ndarray:
            return np.zeros(self.vocabulary.size, dtype=np.float32)

    sampled = sample(Flat(VOCABULARY), "ab", regex("[abc]{2}"), sampler=AStar(outputs=4), max_tokens=2)
    # Longer outputs are less probable: "ab" and "bc" as one token come first.
    assert [each.result.tokens for each in sampled.samples] == [(3,), (5,), (1, 1), (1, 2)]


def test_bad_numbers_are_refused() -> None:
    for bad in ({"outputs": 0}, {"limit": 0}, {"most": math.nan}, {"most": math.inf}):
        with pytest.raises(ValueError, match="AStar: "):
            AStar(**bad)  # type: ignore[arg-type]

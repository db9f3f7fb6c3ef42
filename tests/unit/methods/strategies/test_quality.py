"""Critics and rewards during the search, against second implementations over a toy language."""

from __future__ import annotations

import json
import math

import jsonschema
import pytest
from exact_target import exact_target
from toy_language import STOP, Prefix, ToyLanguage

from structgen.decode.potentials import Hypothesis
from structgen.decode.sampling import sample
from structgen.engine import Vocabulary, compile
from structgen.errors import GenerationError
from structgen.frontends.json_schema import json_schema
from structgen.frontends.regex import regex
from structgen.methods.strategies import QualityBeam, TransferQ
from structgen.models import HashModel

VOCABULARY = Vocabulary([b"", b"a", b"b", b"ab", b"c"], eos=[0])
PATTERN = "(a|b|c){1,3}"
BUDGET = 3


def toy(seed: int) -> ToyLanguage:
    return ToyLanguage(HashModel(VOCABULARY, seed=seed), "ab", PATTERN, BUDGET)


def taste(text: str) -> float:
    return 1.5 * text.count("b") - 0.7 * text.count("c") - 0.2 * len(text)


def critic(hypothesis: Hypothesis) -> float:
    return taste(hypothesis.text)


def beam(language: ToyLanguage, weight: float, beams: int, candidates: int) -> list[tuple[Prefix, float]]:
    def worth(path: Prefix) -> float:
        text = language.text(tuple(token for token in path if token != STOP))
        return (1 - weight) * language.log_p(path) / len(path) + weight * taste(text)

    held: list[Prefix] = [()]
    while any(path[-1:] != (STOP,) for path in held):
        grown = [path for path in held if path[-1:] == (STOP,)]
        for path in held:
            if path[-1:] != (STOP,):
                options = language.options(path)
                ranked = sorted(options, key=lambda token: -options[token])[:candidates]
                grown += [(*path, token) for token in ranked]
        # Among equal ones, complete ones come first, then ties are broken by tokens.
        held = sorted(grown, key=lambda path: (-worth(path), path[-1:] != (STOP,), path))[:beams]
    return [(path[:-1], worth(path)) for path in held]


@pytest.mark.parametrize(
    ("weight", "beams", "candidates"), [(0.5, 1, 2), (0.5, 3, 3), (0.2, 2, 4), (1.0, 2, 2), (0.0, 2, 3)]
)
def test_beams_are_kept_by_probability_and_critic(weight: float, beams: int, candidates: int) -> None:
    constraint = compile(regex(PATTERN), VOCABULARY)
    unlike_plain = 0
    for seed in range(20):
        language = toy(seed)
        sampler = QualityBeam(critic, weight=weight, beams=beams, candidates=candidates)
        sampled = sample(language.model, "ab", constraint, sampler=sampler, max_tokens=BUDGET)
        right = beam(language, weight, beams, candidates)
        assert [result.tokens for result in sampled.results] == [output for output, _ in right]
        assert [each.log_weight for each in sampled.samples] == pytest.approx([worth for _, worth in right])
        unlike_plain += right[0][0] != beam(language, 0.0, beams, candidates)[0][0]
    assert (unlike_plain > 3) == (weight > 0)


def test_with_beams_for_everything_the_best_of_all_is_found() -> None:
    for seed in range(10):
        model = HashModel(VOCABULARY, seed=seed)
        target = exact_target(model, "ab", PATTERN, BUDGET)
        worths = {
            output: 0.7 * log_p / (len(output) + 1) + 0.3 * taste(VOCABULARY.decode(output).decode())
            for output, log_p in target.items()
        }
        sampler = QualityBeam(critic, weight=0.3, beams=1_000)
        sampled = sample(model, "ab", regex(PATTERN), sampler=sampler, max_tokens=BUDGET)
        assert sampled.best().tokens == max(worths, key=lambda output: worths[output])
        assert len(sampled.samples) == len(target)


def tilted(language: ToyLanguage, output: Prefix, token: int, strength: float) -> float:
    """The log-probability of a token, and the reward of its greedy completion."""
    start = (*output, token)
    path = start if token == STOP else (*start, *language.greedy(start))
    return language.options(output)[token] + strength * taste(language.text(path[:-1]))


def transfer(language: ToyLanguage, candidates: int, strength: float) -> Prefix:
    output: Prefix = ()
    while output[-1:] != (STOP,):
        options = language.options(output)
        ranked = sorted(options, key=options.__getitem__, reverse=True)[:candidates]
        values = {token: tilted(language, output, token, strength) for token in ranked}
        output = (*output, max(values.items(), key=lambda item: item[1])[0])
    return output[:-1]


@pytest.mark.parametrize(("candidates", "strength"), [(2, 1.0), (4, 3.0), (5, 0.0), (1, 2.0)])
def test_tokens_are_taken_by_the_reward_of_their_completions(candidates: int, strength: float) -> None:
    constraint = compile(regex(PATTERN), VOCABULARY)
    unlike_greedy = 0
    for seed in range(20):
        language = toy(seed)
        sampler = TransferQ(critic, candidates=candidates, strength=strength)
        sampled = sample(language.model, "ab", constraint, sampler=sampler, max_tokens=BUDGET)
        assert sampled.best().tokens == transfer(language, candidates, strength)
        unlike_greedy += sampled.best().tokens != language.greedy(())[:-1]
    assert (unlike_greedy > 3) == (strength > 0 and candidates > 1)


@pytest.mark.parametrize("budget", [2, 3, 4, 7, 30])
def test_outputs_are_members_within_any_budget(budget: int) -> None:
    vocabulary = Vocabulary([b"", *(bytes([byte]) for byte in b'{}":,0123456789truefalsn ab[]')], eos=[0])
    schema = {"type": "array", "items": {"enum": [True, 12, "ab"]}, "maxItems": 3}
    constraint = compile(json_schema(schema), vocabulary)
    for seed in range(5):
        model = HashModel(vocabulary, seed=seed)
        for sampler in (QualityBeam(critic, beams=2), TransferQ(critic, candidates=2)):
            for result in sample(model, "12", constraint, sampler=sampler, max_tokens=budget).results:
                assert len(result.tokens) <= budget
                jsonschema.validate(json.loads(result.text), schema)


def test_what_is_given_up_or_forbidden_is_not_written() -> None:
    model = HashModel(VOCABULARY, seed=0)
    sampler = QualityBeam(lambda hypothesis: -math.inf if "a" in hypothesis.text else 0.0, beams=8)
    for result in sample(model, "ab", regex("[ab]{2}"), sampler=sampler).results:
        assert result.text == "bb"
    rewarded = TransferQ(lambda hypothesis: -math.inf if hypothesis.text != "ba" else 1.0, strength=1.0)
    # The greedy completions of all first tokens but one may be unwanted, or all: then nothing is written.
    sampled = sample(model, "ab", regex("b[ab]"), sampler=rewarded)
    assert {result.text for result in sampled.results} <= {"ba"}
    for judge, message in (
        (lambda hypothesis: math.nan, "it returned nan"),
        (lambda hypothesis: {}["x"], "it raised KeyError"),
    ):
        with pytest.raises(GenerationError, match=f"the critic: {message}"):
            sample(model, "ab", regex("[ab]{2}"), sampler=QualityBeam(judge))
        with pytest.raises(GenerationError, match=f"the reward: {message}"):
            sample(model, "ab", regex("[ab]{2}"), sampler=TransferQ(judge))


def test_bad_numbers_are_refused() -> None:
    for bad in ({"weight": 1.1}, {"weight": math.nan}, {"beams": 0}, {"candidates": 0}):
        with pytest.raises(ValueError, match="QualityBeam: "):
            QualityBeam(critic, **bad)  # type: ignore[arg-type]
    for bad in ({"strength": -1.0}, {"strength": math.inf}, {"completions": 0}, {"candidates": 0}):
        with pytest.raises(ValueError, match="TransferQ: "):
            TransferQ(critic, **bad)  # type: ignore[arg-type]

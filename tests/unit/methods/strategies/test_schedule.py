"""Samplers that are chosen at each step, against the samplers themselves."""

from __future__ import annotations

import json
import math
from typing import Any

import jsonschema
import numpy as np
import pytest

from structgen.decode import Greedy, Multinomial, Sampler, generate
from structgen.engine import Vocabulary, compile
from structgen.errors import GenerationError
from structgen.frontends.json_schema import json_schema
from structgen.methods.strategies.adaptive_sampler import Scheduled, Situation
from structgen.models import HashModel

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


@pytest.mark.parametrize("weights", [[1, 1, 2], [8, 1, 1, 4, 0], [1] * 100, [1, 1e-9]])
def test_what_a_situation_says(weights: list[float]) -> None:
    """Count, entropy and the largest probability agree with their definitions."""
    p = np.array(weights) / sum(weights)
    with np.errstate(divide="ignore"):
        situation = Situation.of(np.log(p))
    assert situation.allowed == len(weights)
    assert situation.entropy == pytest.approx(-math.fsum(value * math.log(value) for value in p if value))
    assert situation.likeliest == pytest.approx(max(p))


@pytest.mark.exhaustive
@pytest.mark.parametrize("sampler", [Greedy(), Multinomial(), Multinomial(temperature=0.3, top_p=0.8)])
def test_a_constant_schedule_is_the_sampler(sampler: Sampler, json_vocabulary: Vocabulary) -> None:
    """With the same random numbers the outputs are the same."""
    model = HashModel(json_vocabulary, seed=3)
    constraint = compile(json_schema(SCHEMA), json_vocabulary)
    for seed in range(4):
        alone, scheduled = (
            generate(model, "ab", constraint, max_tokens=80, sampler=each, seed=seed)
            for each in (sampler, Scheduled(lambda situation: sampler))
        )
        assert scheduled.tokens == alone.tokens


def test_each_step_has_the_sampler_of_its_situation(json_vocabulary: Vocabulary) -> None:
    """Where few tokens are allowed the most probable comes; in text the seed decides; the output is valid."""
    model = HashModel(json_vocabulary, seed=3)
    constraint = compile(json_schema(SCHEMA), json_vocabulary)
    seen: list[Situation] = []

    def schedule(situation: Situation) -> Sampler:
        seen.append(situation)
        return Multinomial(temperature=2.0) if situation.allowed > 100 else Greedy()

    differs = False
    for seed in range(5):
        seen.clear()
        result = generate(model, "ab", constraint, max_tokens=80, sampler=Scheduled(schedule), seed=seed)
        jsonschema.validate(json.loads(result.text), SCHEMA)
        matcher, size = constraint.matcher(), json_vocabulary.size
        base, situations = model.encode_prompt("ab"), iter(seen)
        for position, step in enumerate(result.steps):
            if not step.forced:
                row = np.zeros((1, (size + 31) // 32), dtype=np.int32)
                remaining = 80 - position
                if matcher.needs_budget_mask(remaining):
                    matcher.fill_mask_within(row, 0, remaining)
                else:
                    matcher.fill_mask(row)
                ids = [token for token in range(size) if row[0, token >> 5] >> (token & 31) & 1]
                assert next(situations).allowed == len(ids)
                logits = model.start().extend([*base, *result.tokens[:position]])
                is_best = ids[int(logits[ids].argmax())] == (step.token or 0)
                assert is_best or len(ids) > 100
                differs |= not is_best
            if step.token is not None:
                assert matcher.accept(step.token)
        assert next(situations, None) is None
    assert differs


@pytest.mark.nightly
def test_entropy_sets_the_temperature() -> None:
    """The temperature is a function of entropy.

    Draws follow the distribution at that temperature (Hoeffding, alpha = 1e-6).
    """
    sampler = Scheduled(lambda situation: Multinomial(temperature=situation.entropy))
    log_p = np.log(np.array([0.5, 0.3, 0.15, 0.05]))
    p = np.exp(log_p)
    temperature = -math.fsum(p * log_p)
    expected = p ** (1 / temperature) / (p ** (1 / temperature)).sum()
    random, draws = np.random.default_rng(0), 40_000
    counts = np.bincount([sampler.draw(log_p, random) for _ in range(draws)], minlength=4) / draws
    bound = math.sqrt(math.log(2 * 4 / 1e-6) / (2 * draws))
    assert np.abs(counts - expected).max() < bound
    assert np.abs(counts - p).max() > bound


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        (lambda situation: None, "no sampler of tokens"),
        (lambda situation: Multinomial, "no sampler of tokens"),
        (lambda situation: 1 / 0, "ZeroDivisionError"),
        (lambda situation: Multinomial(temperature=0), "ValueError.*temperature"),
    ],
)
def test_a_schedule_that_fails(schedule: Any, message: str) -> None:
    """The message says what the function did, and in which situation."""
    with pytest.raises(GenerationError, match=message) as caught:
        Scheduled(schedule).draw(np.log(np.array([0.5, 0.5])), np.random.default_rng(0))
    assert "Situation(allowed=2" in str(caught.value)


def test_it_takes_a_function() -> None:
    """A sampler in its place is refused, and a schedule is never lossless."""
    with pytest.raises(ValueError, match="expected a function"):
        Scheduled(Greedy())  # type: ignore[arg-type]
    assert isinstance(Scheduled(lambda situation: Greedy()), Sampler)
    assert Scheduled(lambda situation: Multinomial()).lossless is False

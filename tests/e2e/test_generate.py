"""The generation loop on the embedded model: valid within every budget, and the same with and without jump-forward."""

from __future__ import annotations

import json
import math
import time
from typing import Any

import jsonschema
import numpy as np
import pytest
from machine_load import slowness

from structgen.decode import Greedy, Multinomial, Sampler, generate
from structgen.engine import Vocabulary, compile
from structgen.frontends.json_schema import JsonPolicy, json_schema
from structgen.frontends.json_schema.policy import Whitespace
from structgen.models import HashModel, LanguageModel, load_model

SCHEMAS: dict[str, dict[str, Any]] = {
    "contact": {
        "type": "object",
        "properties": {
            "name": {"type": "string", "minLength": 1, "maxLength": 20},
            "age": {"type": "integer", "minimum": 0, "maximum": 120},
            "country": {"enum": ["Austria", "France", "Japan"]},
        },
        "required": ["name", "age", "country"],
        "additionalProperties": False,
    },
    "verification": {
        "type": "object",
        "properties": {"sentiment": {"enum": ["positive", "negative"]}, "certain": {"type": "boolean"}},
        "required": ["sentiment", "certain"],
        "additionalProperties": False,
    },
    "list": {"type": "array", "items": {"type": "string", "maxLength": 8}, "minItems": 1, "maxItems": 3},
    "either": {"anyOf": [{"type": "null"}, {"const": {"kind": "none", "reason": "not stated in the text"}}]},
    "event": {
        "type": "object",
        "properties": {
            "day": {"type": "string", "format": "date"},
            "guests": {"type": "array", "items": {"type": "integer"}, "maxItems": 2},
        },
        "required": ["day", "guests"],
        "additionalProperties": False,
    },
}
PROMPT = "Answer in JSON. Ada Lovelace, 36, lives in Paris and is delighted to come on 12 March 2024."

pytestmark = pytest.mark.model


@pytest.fixture(scope="module")
def model() -> LanguageModel:
    """The embedded model on one thread, so that parallel tests do not slow it down tenfold."""
    return load_model(device="cpu", threads=1)


def check(name: str, text: str) -> None:
    """Check independently of this project: the standard library parses the text, and ``jsonschema`` validates it."""
    jsonschema.Draft202012Validator(
        SCHEMAS[name], format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER
    ).validate(json.loads(text))


@pytest.mark.nightly
@pytest.mark.parametrize(("whitespace", "most"), [("compact", 0.75), ("flexible", 1.0)])
def test_jump_forward_saves_passes_and_changes_nothing(
    model: LanguageModel, whitespace: Whitespace, most: float
) -> None:
    """Greedy outputs are valid and the same; without free whitespace they take at most 3 passes for 4 tokens."""
    forwards = tokens = 0
    for name, schema in SCHEMAS.items():
        grammar = json_schema(schema, policy=JsonPolicy(whitespace=whitespace))
        constraint = compile(grammar, model.vocabulary)
        jumped = generate(model, PROMPT, constraint, max_tokens=80, drafter=None)
        plain = generate(model, PROMPT, constraint, max_tokens=80, jump_forward=False)
        check(name, jumped.text)
        assert jumped.tokens == plain.tokens
        assert jumped.value == json.loads(jumped.text)
        forwards += jumped.stats.forwards
        tokens += jumped.stats.tokens
    assert forwards / tokens <= most


@pytest.mark.parametrize("seeds", [2, pytest.param(5, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("name", ["contact", "list", "event"])
def test_the_exact_minimum_is_enough(model: LanguageModel, name: str, seeds: int) -> None:
    """With ``max_tokens`` at the minimum, greedy and sampling give valid outputs within it."""
    constraint = compile(json_schema(SCHEMAS[name]), model.vocabulary)
    least = constraint.min_tokens()
    samplers: list[tuple[Sampler, int]] = [(Greedy(), 0), *((Multinomial(), seed) for seed in range(seeds))]
    for sampler, seed in samplers:
        result = generate(model, PROMPT, constraint, max_tokens=least, sampler=sampler, seed=seed)
        check(name, result.text)
        assert result.stats.tokens <= least


def test_scores_are_those_of_the_model(model: LanguageModel) -> None:
    """``logprob + log_z`` is what plain forward passes give to the output and its stop."""
    constraint = compile(json_schema(SCHEMAS["verification"]), model.vocabulary)
    result = generate(model, PROMPT, constraint, sampler=Multinomial(), seed=1, score_ending=True)
    prompt = model.encode_prompt(PROMPT)
    session = model.start()
    rows = [session.extend(prompt), *(session.extend([token]) for token in result.tokens)]
    session.close()
    total = 0.0
    for row, token in zip(np.array(rows, dtype="float64"), [*result.tokens, None], strict=True):
        picked = [row[t] for t in model.vocabulary.eos] if token is None else [row[token]]
        top = row.max()
        total += math.log(sum(math.exp(x - top) for x in picked)) - math.log(sum(map(math.exp, row - top)))
    assert result.logprob + result.log_z == pytest.approx(total, abs=1e-2)


def test_the_loop_costs_less_than_a_millisecond_a_token(smollm_vocabulary: Vocabulary) -> None:
    """Over 49k tokens, masks, sampling and scores take under 1 ms of CPU time a token (best of five runs)."""
    constraint = compile(json_schema(SCHEMAS["contact"]), smollm_vocabulary)
    hashed = HashModel(smollm_vocabulary, writes='{"name": "Ada Lovelace", "age": 36, "country": "France"}')
    for sampler in (Greedy(), Multinomial(), Multinomial(temperature=0.7, top_k=50, top_p=0.9)):
        costs = []
        pace = slowness()
        for _ in range(6):
            began, spent = time.perf_counter(), time.process_time()
            stats = generate(hashed, PROMPT, constraint, sampler=sampler).stats
            awake = (time.process_time() - spent) / (time.perf_counter() - began)  # others may use the processor
            costs.append((stats.time_mask_s + stats.time_other_s) * awake / stats.tokens)
        assert min(costs[1:]) < 1e-3 * max(pace, slowness())

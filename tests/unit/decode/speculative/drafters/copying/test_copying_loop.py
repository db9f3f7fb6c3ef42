"""Drafters that copy and count, in the generation loop: the same output, in fewer forward passes."""

from __future__ import annotations

import json

import pytest
from word_vocabulary import draft_vocabulary

from structgen.decode import Greedy, Multinomial, Sampler, generate
from structgen.decode.speculative.drafter import Drafter
from structgen.decode.speculative.drafters.grammar_statistics import ForcedTokens, GrammarStatistics
from structgen.decode.speculative.drafters.prompt_lookup import CopySpec, PromptLookup
from structgen.decode.speculative.drafters.retrieval import Retrieval
from structgen.engine import compile
from structgen.frontends.json_schema import json_schema
from structgen.models import HashModel

VOCABULARY = draft_vocabulary()
PROMPT = "name: Ada Lovelace, works in London. name: Grace Hopper, works in Paris."
VALUE = [
    {"name": "Ada Lovelace", "city": "London", "open": True},
    {"name": "Grace Hopper", "city": "Paris", "open": False},
    {"name": "Ada Lovelace", "city": "London", "open": True},
]
CONSTRAINT = compile(
    json_schema(
        {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {"name": {"type": "string"}, "city": {"type": "string"}, "open": {"type": "boolean"}},
                "required": ["name", "city", "open"],
                "additionalProperties": False,
            },
        },
        whitespace="single",
    ),
    VOCABULARY,
)
DRAFTERS = {
    "forced tokens": ForcedTokens,
    "grammar statistics": GrammarStatistics,
    "prompt lookup": PromptLookup,
    "copyspec": CopySpec,
    "retrieval": Retrieval,
}


@pytest.mark.exhaustive
@pytest.mark.parametrize("sampler", [Greedy(), Multinomial(temperature=0.7), Multinomial(temperature=3.0)])
@pytest.mark.parametrize("name", DRAFTERS)
def test_the_output_is_the_same_in_fewer_passes(name: str, sampler: Sampler) -> None:
    model = HashModel(VOCABULARY, writes=json.dumps(VALUE))
    drafter: Drafter = DRAFTERS[name]()
    assert drafter.name == name
    for seed in range(3):
        settings = {"sampler": sampler, "seed": seed, "max_tokens": 150}
        without = generate(model, PROMPT, CONSTRAINT, drafter=None, **settings)  # type: ignore[arg-type]
        found = generate(model, PROMPT, CONSTRAINT, drafter=drafter, **settings)  # type: ignore[arg-type]
        assert found.tokens == without.tokens
        assert found.log_z == pytest.approx(without.log_z)
        assert found.stats.forwards <= without.stats.forwards
        if sampler == Greedy():
            assert found.text == json.dumps(VALUE)
            assert found.stats.forwards < without.stats.forwards


@pytest.mark.parametrize("name", ["grammar statistics", "retrieval"])
def test_what_was_written_once_is_known_the_second_time(name: str) -> None:
    model = HashModel(VOCABULARY, writes=json.dumps(VALUE))
    drafter: Drafter = DRAFTERS[name]()
    runs = [generate(model, PROMPT, CONSTRAINT, sampler=Greedy(), drafter=drafter).stats.forwards for _ in range(3)]
    assert runs[1] <= runs[0] / 2
    assert runs[2] <= runs[1] + 1

"""The generation loop with choices on the device, by kernels: the output equals that on the host."""

from __future__ import annotations

from typing import Any

import pytest
from device_hash_model import ResidentHashModel
from result_equality import assert_alike
from scripted_drafters import Noisy

from structgen.decode import Greedy, Multinomial, generate
from structgen.engine import Vocabulary
from structgen.frontends.regex import regex
from structgen.models.toy.hash import HashModel

VOCABULARY = Vocabulary([b"", *(bytes([byte]) for byte in range(32, 127)), b"ab", b"true", b'"n": '], eos=[0])
GRAMMAR = regex('\\{"n": (true|[a-z]{1,2})\\}')


@pytest.mark.parametrize(
    ("sampler", "drafter"),
    [
        (Greedy(), Noisy(width=2, depth=2)),
        (Multinomial(), None),
        (Multinomial(0.8, top_k=9, top_p=0.9, min_p=0.02), None),
    ],
    ids=["greedy and drafted", "multinomial", "shaped"],
)
def test_outputs_are_those_of_the_host(sampler: Any, drafter: Any, backend: str) -> None:
    here, there = HashModel(VOCABULARY, seed=4), ResidentHashModel(VOCABULARY, seed=4)
    settings: dict[str, Any] = {"sampler": sampler, "drafter": drafter, "seed": 2, "score_ending": True}
    results = [generate(model, "name", GRAMMAR, max_tokens=20, **settings) for model in (here, there)]
    assert_alike(*results, tolerance=1e-4)
    assert there.residence.copied_rows == 0
    assert 0 < there.residence.launches <= results[1].stats.forwards

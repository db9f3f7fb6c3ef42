"""All drafters that learn from rows, in the loop: outputs do not change, and draft tokens are reproducible."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable

import pytest
from schema_as_written import as_written as json_schema

from structgen.decode import Greedy, Multinomial, Result, Sampler, generate
from structgen.decode.speculative.drafter import Drafter
from structgen.decode.speculative.drafters.token_recycling import TokenRecycling
from structgen.decode.speculative.speculation import Speculation
from structgen.engine import Vocabulary
from structgen.frontends.regex import regex
from structgen.methods.drafters.jacobi import Jacobi
from structgen.methods.drafters.lookahead import Extended, Lookahead
from structgen.methods.drafters.ngram_tables import Stand, TrigramDrafts
from structgen.models.toy.hash import HashModel, HashSession

BYTES = Vocabulary([bytes([byte]) for byte in range(256)] + [b'": ', b', "', b"abc", b"bca", b"12", b""], eos=[261])
RECORD = json_schema(
    {
        "type": "object",
        "properties": {
            "word": {"type": "string", "maxLength": 12},
            "numbers": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 99}, "maxItems": 6},
            "kind": {"enum": ["red", "green", "grey"]},
        },
        "required": ["word", "numbers", "kind"],
        "additionalProperties": False,
    }
)
WISH = '{"word": "abcabcabcabc", "numbers": [12, 3, 12, 3, 12, 3], "kind": "grey"}'
MAKERS: dict[str, Callable[[], Drafter]] = {
    "recycling": TokenRecycling,
    "stand": lambda: Stand(draws=False),
    "trigrams": TrigramDrafts,
    "jacobi": Jacobi,
    "lookahead": Lookahead,
    "extended recycling": lambda: Extended(TokenRecycling()),
    "extended jacobi": lambda: Extended(Jacobi(3)),
}


def written(model: HashModel, sampler: Sampler, seed: int, drafter: Drafter | None, prompt: str = "go") -> Result:
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a drafter that fails is dropped with a warning
        return generate(
            model,
            prompt,
            RECORD,
            max_tokens=90,
            sampler=sampler,
            seed=seed,
            drafter=None if drafter is None else Speculation(drafter, budget=16),
        )


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize(
    "sampler", [Greedy(), Multinomial(), Multinomial(0.8, top_k=5)], ids=["greedy", "sampled", "shaped"]
)
def test_outputs_stay_what_they_are(name: str, sampler: Sampler) -> None:
    drafter = MAKERS[name]()
    for model in (HashModel(BYTES, writes=WISH), HashModel(BYTES, seed=1)):
        for seed in range(2):
            plain = written(model, sampler, seed, None)
            for _ in range(2):
                found = written(model, sampler, seed, drafter)
                assert found.tokens == plain.tokens
                assert found.stats.forwards <= plain.stats.forwards


@pytest.mark.parametrize("name", MAKERS)
def test_what_was_written_before_helps(name: str) -> None:
    model = HashModel(BYTES, writes=WISH)
    plain = written(model, Greedy(), 0, None)
    drafter = MAKERS[name]()
    first = written(model, Greedy(), 0, drafter).stats.forwards
    second = written(model, Greedy(), 0, drafter).stats.forwards
    assert first < plain.stats.forwards
    assert second <= first


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", [*MAKERS, "stand that draws"])
def test_the_same_happens_each_time(name: str) -> None:
    def run() -> list[object]:
        drafter = MAKERS.get(name, Stand)()
        found = []
        for seed in range(3):
            stats = written(HashModel(BYTES, writes=WISH, seed=3), Multinomial(), seed, drafter).stats
            found.append((stats.tokens, stats.forwards, stats.drafted, stats.accepted))
        return found

    assert run() == run()


@pytest.mark.parametrize("name", MAKERS)
def test_threads_share_a_drafter(name: str) -> None:
    drafter = MAKERS[name]()
    model = HashModel(BYTES, writes=WISH)
    expected = {seed: written(model, Multinomial(), seed, None).tokens for seed in range(4)}
    found: dict[int, tuple[int, ...]] = {}

    def write(seed: int) -> None:
        found[seed] = written(model, Multinomial(), seed, drafter).tokens

    threads = [threading.Thread(target=write, args=(seed,)) for seed in expected]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == expected


class ChainSession(HashSession):
    """Has the methods for trees, but its model does not allow trees."""

    @property
    def can_branch(self) -> bool:
        return False


class ChainModel(HashModel):
    def start(self) -> HashSession:
        return ChainSession(self)


@pytest.mark.parametrize("name", MAKERS)
def test_sessions_that_run_only_chains_will_do(name: str) -> None:
    """Rows that were not run are not learned from."""

    model = ChainModel(BYTES, writes=WISH)
    plain = generate(model, "go", regex("[a-c]{30}"), max_tokens=30, sampler=Greedy(), drafter=None)
    found = generate(
        model, "go", regex("[a-c]{30}"), max_tokens=30, sampler=Greedy(), drafter=Speculation(MAKERS[name](), budget=8)
    )
    assert found.tokens == plain.tokens
    assert found.stats.forwards <= plain.stats.forwards

"""Logits that stay on the device: the loop asks for tokens there, and writes the same output."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from drafting_prompts import GRAMMARS, WRITES
from result_equality import assert_alike
from scripted_drafters import Noisy

from structgen.decode import Context, Generation, Greedy, Multinomial, Result, Sampler, generate, start_generation
from structgen.decode.potentials import Hypothesis, Potential
from structgen.decode.sampling import SMC, Beam
from structgen.decode.speculative.drafters.auto import forget
from structgen.decode.speculative.drafters.grammar_statistics import ForcedTokens
from structgen.decode.speculative.drafters.token_recycling import TokenRecycling
from structgen.decode.step.sampler import GumbelMax
from structgen.engine import Constraint, Vocabulary, compile
from structgen.errors import GenerationError
from structgen.frontends.regex import regex
from structgen.grammar.nodes import CharClass, Grammar, Tempered, sequence
from structgen.methods.drafters.draft_model import DraftModel
from structgen.models.toy.hash import HashModel
from structgen.program import program

torch = pytest.importorskip("torch")

from device_hash_model import ResidentHashModel  # noqa: E402  # needs torch

TOLERANCE = 1e-4
SAMPLERS: list[Sampler] = [
    Greedy(),
    Multinomial(),
    Multinomial(0.6, top_k=20),
    Multinomial(1.4, top_p=0.8),
    Multinomial(min_p=0.1),
    Multinomial(0.8, top_k=30, top_p=0.9, min_p=0.02),
]
DRAFTERS: dict[str, Any] = {
    "none": lambda: None,
    "forced": ForcedTokens,
    "auto": lambda: "auto",
    "noisy": lambda: Noisy(width=2, depth=4),
    "recycling": TokenRecycling,
}


@pytest.fixture(scope="module")
def constraints(json_vocabulary: Vocabulary) -> dict[str, Constraint]:
    return {name: compile(grammar, json_vocabulary) for name, grammar in GRAMMARS.items()}


def pair(vocabulary: Vocabulary, name: str, *, seed: int = 3, **settings: Any) -> tuple[HashModel, ResidentHashModel]:
    """The same model with its logits on the host, and on the device."""
    writes = WRITES.get(name)
    return HashModel(vocabulary, seed=seed, writes=writes), ResidentHashModel(
        vocabulary, seed=seed, writes=writes, **settings
    )


def both(models: tuple[HashModel, ResidentHashModel], constraint: Any, **settings: Any) -> tuple[Result, Result]:
    """Two outputs from the same seed, with drafters that have learned nothing."""
    results = []
    make = settings.pop("drafter", lambda: "auto")
    for model in models:
        forget()
        results.append(
            generate(model, "Ada is 36; yes, perhaps", constraint, **{"max_tokens": 60, "drafter": make(), **settings})
        )
    return results[0], results[1]


@pytest.mark.exhaustive
@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("name", GRAMMARS)
def test_outputs_are_those_of_the_host(
    name: str, drafter: str, constraints: dict[str, Constraint], json_vocabulary: Vocabulary
) -> None:
    """Tokens are equal, and the scores up to rounding in float32, forced tokens and the stop included."""
    first = [*DRAFTERS].index(drafter)
    for seed, sampler in enumerate(SAMPLERS[first % 3 :: 3] if first else SAMPLERS):
        models = pair(json_vocabulary, name, seed=seed)
        here, there = both(
            models,
            constraints[name],
            sampler=sampler,
            seed=seed,
            drafter=DRAFTERS[drafter],
            score_ending=bool(seed % 2),
        )
        assert_alike(here, there, tolerance=TOLERANCE)
        assert here.stats.forwards == there.stats.forwards
        assert models[1].residence.launches > 0


@pytest.mark.exhaustive
@pytest.mark.parametrize("sampler", [Greedy(), Multinomial()], ids=["greedy", "multinomial"])
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_no_row_is_copied_and_a_pass_is_waited_for_once(
    drafter: str, sampler: Sampler, constraints: dict[str, Constraint], json_vocabulary: Vocabulary
) -> None:
    """Draft tokens are answered with the pass that ran them, and forced tokens with the choice after them."""
    for name in ("record", "nested", "choices"):
        _, model = pair(json_vocabulary, name)
        forget()
        result = generate(
            model, "Ada is 36", constraints[name], max_tokens=60, sampler=sampler, drafter=DRAFTERS[drafter](), seed=5
        )
        assert len(result.tokens) > 8
        assert model.residence.copied_rows == 0
        assert model.residence.launches <= result.stats.forwards


def test_drafts_that_come_are_not_asked_for_again(json_vocabulary: Vocabulary) -> None:
    """A few passes give many choices, each pass in one launch."""
    model = ResidentHashModel(json_vocabulary, seed=2, writes=WRITES["record"])
    draft = HashModel(json_vocabulary, seed=2, writes=WRITES["record"], name="draft")
    result = generate(model, "Ada", GRAMMARS["record"], max_tokens=60, drafter=DraftModel(draft))
    assert result.stats.accepted > 5
    assert result.stats.sampled > 2 * result.stats.forwards
    assert model.residence.launches <= result.stats.forwards
    assert model.residence.copied_rows == 0


@pytest.mark.exhaustive
@pytest.mark.parametrize("drafter", ["auto", "noisy", "recycling"])
def test_chains_on_sessions_that_know_no_trees(
    drafter: str, constraints: dict[str, Constraint], json_vocabulary: Vocabulary
) -> None:
    for seed, sampler in enumerate(SAMPLERS[:3]):
        models = pair(json_vocabulary, "record", seed=seed, branches=False)
        here, there = both(models, constraints["record"], sampler=sampler, seed=seed, drafter=DRAFTERS[drafter])
        assert_alike(here, there, tolerance=TOLERANCE)
        assert models[1].residence.copied_rows == 0


def test_sampled_drafts_are_verified_on_the_host(json_vocabulary: Vocabulary) -> None:
    """They need distributions, not tokens; the output is that of the host, draw for draw."""
    from structgen.methods.tree_policies.dynamic_tree import IndependentDraws

    models = pair(json_vocabulary, "free")
    draft = HashModel(json_vocabulary, seed=4, writes=WRITES.get("free"), name="draft")
    for seed in range(3):
        here, there = both(
            models,
            GRAMMARS["free"],
            sampler=Multinomial(),
            seed=seed,
            drafter=lambda: DraftModel(draft, shape=IndependentDraws((2, 1, 1))),
        )
        assert_alike(here, there, tolerance=TOLERANCE)
        assert there.stats.drafted > 0
    assert models[1].residence.copied_rows > 0


@pytest.mark.exhaustive
@pytest.mark.parametrize("sampler", [Greedy(), Multinomial()], ids=["greedy", "multinomial"])
def test_every_budget(sampler: Sampler, constraints: dict[str, Constraint], json_vocabulary: Vocabulary) -> None:
    """This includes masks that depend on the remaining tokens."""
    for name in ("record", "words", "choices"):
        models = pair(json_vocabulary, name)
        least = constraints[name].min_tokens()
        for budget in range(least, least + 7):
            here, there = both(models, constraints[name], sampler=sampler, seed=budget, max_tokens=budget)
            assert_alike(here, there, tolerance=TOLERANCE)


class NoVowels(Potential):
    """Forbids some tokens when they are sampled, and the end of short outputs."""

    def prefix(self, hypothesis: Hypothesis, /) -> float:
        return -np.inf if set(hypothesis.data) & set(b"aeiou") else 0.0

    def complete(self, hypothesis: Hypothesis, /) -> float:
        return 0.0 if len(hypothesis.data) > 6 else -np.inf


@pytest.mark.exhaustive
@pytest.mark.parametrize("sampler", SAMPLERS[:3], ids=["greedy", "multinomial", "shaped"])
def test_potentials(sampler: Sampler, json_vocabulary: Vocabulary) -> None:
    """Forbidden tokens are blocked, and sampled again with the next random number."""
    grammar = regex("[a-z]{2,12}")
    for seed in range(6):
        models = pair(json_vocabulary, "", seed=seed)
        here, there = both(models, grammar, sampler=sampler, seed=seed, potentials=[NoVowels()])
        assert_alike(here, there, tolerance=TOLERANCE)
        assert not set(there.text) & set("aeiou")


@pytest.mark.parametrize("sampler", [Greedy(), Multinomial()], ids=["greedy", "multinomial"])
def test_what_is_rejected_and_taken_back(
    sampler: Sampler, constraints: dict[str, Constraint], json_vocabulary: Vocabulary
) -> None:
    """The masks then belong to no state of the grammar."""

    def life(model: HashModel) -> Iterator[tuple[tuple[int, ...], Any]]:
        with Context(model, model.encode_prompt("say")) as context:
            generation = start_generation(context, constraints["words"], max_tokens=40, sampler=sampler, seed=7)
            for kept in (0, 2, 1):
                for _ in generation:
                    if len(generation.tokens) >= 5:
                        break
                yield generation.tokens, generation.steps
                generation.reject(len(generation.tokens), keep=kept)
            chunks = list(generation)
            generation.take_back(chunks[-2], 0) if len(chunks) > 1 else None
            chunks = list(generation)
            yield generation.tokens, generation.steps

    for here, there in zip(*(life(model) for model in pair(json_vocabulary, "words")), strict=True):
        assert here[0] == there[0]
        for one, other in zip(here[1], there[1], strict=True):
            assert one.logprob == pytest.approx(other.logprob, abs=TOLERANCE)


def test_temperatures_of_parts(json_vocabulary: Vocabulary) -> None:
    letters = CharClass([(97, 122)])
    grammar = sequence(letters.many(2, 4), Tempered(letters.many(2, 4), 0.3), Tempered(letters, 0.0), "!")
    for sampler in (Greedy(), Multinomial(2.0), Multinomial(top_k=5)):
        for seed in range(5):
            models = pair(json_vocabulary, "")
            here, there = both(models, grammar, sampler=sampler, seed=seed)
            assert_alike(here, there, tolerance=TOLERANCE)
            assert models[1].residence.copied_rows == 0


class Last:
    """An unknown sampler: it takes the last of the allowed tokens."""

    lossless = False

    def draw(self, log_p: Any, generator: np.random.Generator, /) -> int:
        return len(log_p) - 1


@pytest.mark.parametrize("sampler", [GumbelMax(), Last()], ids=["gumbel", "foreign"])
def test_samplers_that_have_to_see_the_distribution(sampler: Sampler, json_vocabulary: Vocabulary) -> None:
    models = pair(json_vocabulary, "record")
    here, there = both(models, GRAMMARS["record"], sampler=sampler)
    assert_alike(here, there, tolerance=TOLERANCE)
    assert models[1].residence.copied_rows > 0


def test_alternatives_are_read_from_the_distribution(json_vocabulary: Vocabulary) -> None:
    found = []
    for model in pair(json_vocabulary, "record"):
        with Context(model, model.encode_prompt("say")) as context:
            constraint = compile(GRAMMARS["record"], json_vocabulary)
            generation = start_generation(context, constraint, max_tokens=60, alternatives=3)
            list(generation)
            found.append(generation.result())
    assert [step.alternatives for step in found[0].steps] == [step.alternatives for step in found[1].steps]
    assert any(step.alternatives for step in found[1].steps)


def test_several_ends_are_one_event() -> None:
    """The stop has the probability of all EOS ids together, whichever is sampled."""
    vocabulary = Vocabulary([b"", b"", *(bytes([byte]) for byte in range(32, 127)), b""], eos=[0, 1, 97])
    stopped = 0
    for seed in range(12):
        models = HashModel(vocabulary, seed=seed), ResidentHashModel(vocabulary, seed=seed)
        here, there = both(
            models, regex("[a-z]*"), sampler=Multinomial(1.5), seed=seed, max_tokens=8, drafter=lambda: None
        )
        assert_alike(here, there, tolerance=TOLERANCE)
        assert models[1].residence.launches == there.stats.forwards
        stopped += there.steps[-1].token is None and not there.steps[-1].forced
        here, there = both(models, regex("[a-c]{3}"), seed=seed, score_ending=True)
        assert_alike(here, there, tolerance=TOLERANCE)
    assert stopped > 3


@pytest.mark.parametrize("way", [{"jump_forward": False}, {"score_ending": True}])
def test_other_ways_through_the_loop(way: dict[str, Any], json_vocabulary: Vocabulary) -> None:
    here, there = both(pair(json_vocabulary, "record"), GRAMMARS["record"], **way)
    assert_alike(here, there, tolerance=TOLERANCE)


def test_streams_come_in_the_same_pieces(json_vocabulary: Vocabulary) -> None:
    told: list[list[Any]] = []
    for model in pair(json_vocabulary, "record"):
        forget()
        told.append([])
        generate(model, "say", GRAMMARS["record"], max_tokens=60, stream=told[-1].append)
    assert told[0] == told[1]


@pytest.mark.parametrize("sampler", [SMC(4), Beam(3)], ids=["smc", "beam"])
def test_samplers_of_whole_outputs_read_rows(sampler: Any, json_vocabulary: Vocabulary) -> None:
    here, there = both(pair(json_vocabulary, "choices"), GRAMMARS["choices"], sampler=sampler)
    assert_alike(here, there, tolerance=TOLERANCE)


def test_programs(json_vocabulary: Vocabulary) -> None:
    @program
    def name(text: str) -> str:
        """Who is it? {text}"""

    said = [name("Ada", model=model) for model in pair(json_vocabulary, "", seed=9)]
    assert said[0] == said[1]


def nan_at(place: int) -> Any:
    def spoil(rows: Any) -> Any:
        rows = rows.copy()
        rows[:, place] = np.nan
        return rows

    return spoil


@pytest.mark.parametrize(
    ("spoil", "grammar", "words"),
    [
        (nan_at(5), regex("[a-z]{4}"), "NaN or infinity"),
        (
            lambda rows: rows + np.where(np.arange(rows.shape[1]) == 9, np.inf, 0.0),
            regex("[a-z]{4}"),
            "NaN or infinity",
        ),
        (nan_at(5), regex("abcabc[a-z]"), "NaN or infinity"),
        (
            lambda rows: np.where((np.arange(rows.shape[1]) == 2), rows, -np.inf),
            regex("[a-z]{4}"),
            "probability zero to every token that the grammar allows; 33 tokens are allowed",
        ),
        (lambda rows: np.hstack([rows, rows[:, :3]]), regex("[a-z]{4}"), "its vocabulary has"),
    ],
    ids=["nan", "infinity", "forced", "nothing", "wide"],
)
@pytest.mark.parametrize("sampler", [Greedy(), Multinomial()], ids=["greedy", "multinomial"])
def test_logits_that_are_no_distribution(
    spoil: Any, grammar: Grammar, words: str, sampler: Sampler, json_vocabulary: Vocabulary
) -> None:
    def spoiled(rows: Any) -> Any:
        return np.ascontiguousarray(spoil(rows), dtype=np.float32)

    model = ResidentHashModel(json_vocabulary, spoil=spoiled)
    constraint = compile(grammar, json_vocabulary)
    with pytest.raises(GenerationError, match=words):
        generate(model, "say", constraint, max_tokens=9, sampler=sampler, drafter=None, score_ending=True)


def test_a_row_that_is_no_distribution_harms_only_who_comes_there(json_vocabulary: Vocabulary) -> None:
    """Nothing is asked after a draft token that is rejected."""

    def spoil(rows: Any) -> Any:
        rows = rows.copy()
        rows[1:] = np.nan
        return rows

    class Wrong(Noisy):
        """Drafts tokens that are not written."""

        def propose(self, context: Context, state: Any, budget: int) -> Any:
            from structgen.decode.speculative.draft_tree import DraftTree

            return DraftTree.chain([json_vocabulary.tokenize(b"z")[0]])

    model = ResidentHashModel(json_vocabulary, writes="abcd", spoil=spoil)
    result = generate(model, "say", regex("[a-z]{4}"), max_tokens=9, drafter=Wrong())
    assert result.text == "abcd"
    assert result.stats.drafted > 0


def test_the_logits_of_a_generation_are_an_array(json_vocabulary: Vocabulary) -> None:
    here, there = (
        _logits(Context(model, model.encode_prompt("say")), compile(regex("[a-z]{4}"), json_vocabulary))
        for model in pair(json_vocabulary, "")
    )
    np.testing.assert_array_equal(here, there)


def _logits(context: Context, constraint: Constraint) -> Any:
    with context:
        generation: Generation = start_generation(context, constraint, max_tokens=9)
        return generation.logits()

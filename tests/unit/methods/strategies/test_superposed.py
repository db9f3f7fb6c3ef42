"""Superposed drafts against a second implementation, over a recurrent model with mixtures computed by hand."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import jsonschema
import numpy as np
import pytest
from function_model import FunctionModel
from numpy.typing import NDArray
from toy_language import STOP, Prefix, ToyLanguage

from structgen.decode import Greedy, generate
from structgen.decode.potentials import potential
from structgen.decode.sampling import Samples, sample
from structgen.engine import Vocabulary, compile
from structgen.errors import GenerationError
from structgen.frontends.json_schema import json_schema
from structgen.frontends.regex import regex
from structgen.methods.samplers.ngram_lookahead import END, NGram
from structgen.methods.strategies import Superposed
from structgen.models import HashModel
from structgen.models.protocol import SuperposableSession

VOCABULARY = Vocabulary([b"", b"a", b"b", b"ab", b"c"], eos=[0])
SEVERAL = Vocabulary([b"a", b"b", b"ab", b"c", b"", b"", b""], eos=[4, 6], special={5: "<|end|>"})
PATTERN = "(a|b|c){1,4}"
BUDGET = 4


class RecurrentModel:
    """``state = tanh(A state + B e)`` with the embedding ``e`` of a token, or the mean of several; one at a time."""

    max_context = None
    name = "recurrent"

    def __init__(self, vocabulary: Vocabulary, seed: int) -> None:
        random = np.random.default_rng(seed)
        self.vocabulary = vocabulary
        self.embeddings = random.normal(size=(vocabulary.size, 6))
        self.turn = random.normal(size=(6, 6)) / 2
        self.head = 2 * random.normal(size=(vocabulary.size, 6))
        self.calls: list[tuple[str, int]] = []

    def encode_prompt(self, prompt: Any, /, *, chat: bool = True) -> list[int]:
        return self.vocabulary.tokenize(prompt)

    def start(self) -> RecurrentSession:
        return RecurrentSession(self)

    def after(self, positions: Sequence[Mapping[int, float]]) -> NDArray[np.float32]:
        """The distribution after positions, from scratch."""
        state = np.zeros(6)
        for mixture in positions:
            embedding = sum((weight * self.embeddings[token] for token, weight in mixture.items()), np.zeros(6))
            state = np.tanh(self.turn @ state + embedding)
        logits: NDArray[np.float32] = (self.head @ state).astype(np.float32)
        return logits


class RecurrentSession:
    def __init__(self, model: RecurrentModel, positions: Sequence[Mapping[int, float]] = ()) -> None:
        self.model = model
        self.positions = list(positions)
        self.forwards = 0

    @property
    def length(self) -> int:
        return len(self.positions)

    def extend(self, token_ids: Sequence[int], /) -> NDArray[np.float32]:
        row: NDArray[np.float32] = self.extend_all(token_ids)[-1]
        return row

    def extend_all(self, token_ids: Sequence[int], /) -> NDArray[np.float32]:
        self.model.calls.append(("tokens", len(token_ids)))
        self.forwards += 1
        rows = []
        for token in token_ids:
            self.positions.append({token: 1.0})
            rows.append(self.model.after(self.positions))
        return np.stack(rows)

    def extend_mixed(self, mixtures: Sequence[Mapping[int, float]], /) -> NDArray[np.float32]:
        for mixture in mixtures:
            assert math.isclose(sum(mixture.values()), 1)
            assert min(mixture.values()) > 0
        self.model.calls.append(("mixtures", len(mixtures)))
        self.forwards += 1
        self.positions += mixtures
        return self.model.after(self.positions)

    def truncate(self, length: int, /) -> None:
        del self.positions[length:]

    def fork(self) -> RecurrentSession:
        return RecurrentSession(self.model, self.positions)

    def close(self) -> None:
        self.positions.clear()


def by_hand(language: ToyLanguage, model: RecurrentModel, sampler: Superposed) -> tuple[list[Prefix], int]:
    """The drafts by the definition, the best by the model's own distribution first, and the number of mixtures."""
    eos = list(model.vocabulary.eos)
    positions: list[Mapping[int, float]] = [{token: 1.0} for token in model.encode_prompt("ab")]
    prompt = len(positions)
    held: list[tuple[float, Prefix]] = [(0.0, ())]
    while True:
        logits = model.after(positions).astype(np.float64)
        distribution = logits - np.logaddexp.reduce(logits)
        grown = [each for each in held if each[1][-1:] == (STOP,)]
        for worth, path in held:
            if path[-1:] == (STOP,):
                continue
            options = {
                token: float(np.logaddexp.reduce(distribution[eos])) if token == STOP else float(distribution[token])
                for token in language.options(path)
            }
            # Sorting keeps the order of ties; options come in the order of ids.
            for token in sorted(options, key=lambda each: -options[each])[: sampler.candidates or sampler.drafts]:
                gain = options[token]
                if sampler.ngram is not None:
                    gain = (1 - sampler.alpha) * gain + sampler.alpha * usual(sampler.ngram, language, path, token)
                grown.append((worth + gain, (*path, token)))
        held = sorted(grown, key=lambda each: (-each[0], each[1][-1] != STOP, each[1]))[: sampler.drafts]
        live = [each for each in held if each[1][-1] != STOP]
        if not live:
            break
        weights = {path: math.exp((worth - live[0][0]) / sampler.temperature) for worth, path in live}
        mixture: dict[int, float] = {}
        for path, weight in weights.items():
            mixture[path[-1]] = mixture.get(path[-1], 0.0) + weight / sum(weights.values())
        positions.append(mixture)
    drafts = sorted((path for _, path in held), key=lambda path: (-language.log_p(path), path[:-1]))
    return [path[:-1] for path in drafts], len(positions) - prompt


def usual(ngram: NGram, language: ToyLanguage, path: Prefix, token: int) -> float:
    before = language.text(path).encode()
    symbols = [END] if token == STOP else list(language.model.vocabulary.tokens[token])
    logs = []
    for at, symbol in enumerate(symbols):
        seen = before + bytes(symbols[:at])
        logs.append(math.log(ngram.distribution(seen[max(0, len(seen) - ngram.order + 1) :])[symbol]))
    return sum(logs) / len(logs)


def toy(seed: int, vocabulary: Vocabulary = VOCABULARY) -> tuple[ToyLanguage, RecurrentModel]:
    model: Any = RecurrentModel(vocabulary, seed)
    return ToyLanguage(model, "ab", PATTERN, BUDGET), model


def sampled_by(
    model: Any, sampler: Superposed, pattern: str = PATTERN, budget: int = BUDGET, **options: Any
) -> Samples:
    return sample(model, "ab", regex(pattern), sampler=sampler, max_tokens=budget, **options)


@pytest.mark.parametrize("vocabulary", [VOCABULARY, SEVERAL], ids=["one EOS", "several"])
@pytest.mark.parametrize(
    "sampler",
    [
        Superposed(1),
        Superposed(2),
        Superposed(3),
        Superposed(3, candidates=1),
        Superposed(2, candidates=5, temperature=0.1),
        Superposed(3, candidates=5, ngram=NGram.of_texts(["abc", "cab", "cc"], order=3)),
        Superposed(2, ngram=NGram.of_texts(["ba"], order=2), alpha=0.9),
    ],
    ids=repr,
)
def test_drafts_are_those_of_the_definition(sampler: Superposed, vocabulary: Vocabulary) -> None:
    """Their steps and their ranking use the model's true distribution."""
    unlike = {"exact distribution": 0, "even weights": 0}
    for seed in range(12):
        language, model = toy(seed, vocabulary)
        right, mixtures = by_hand(language, model, sampler)
        model.calls.clear()
        sampled = sampled_by(model, sampler)
        assert [result.tokens for result in sampled.results] == right
        # The prompt, a mixture per step, and the drafts once more; this model runs one sequence per pass.
        assert model.calls[: 1 + mixtures] == [("tokens", 1), *[("mixtures", 1)] * mixtures]
        assert sorted(model.calls[1 + mixtures :]) == sorted(("tokens", len(path)) for path in right)
        assert sampled.forwards == sampled.best().stats.forwards == len(model.calls)
        for each, path in zip(sampled.samples, right, strict=True):
            assert each.log_weight == pytest.approx(language.log_p((*path, STOP)))
            assert each.result.logprob + each.result.log_z == pytest.approx(each.log_weight)
            assert [step.token for step in each.result.steps] == [*path, None]
        # Power: other mixtures give other drafts.
        unlike["exact distribution"] += right != beam(language, sampler)
        even = Superposed(sampler.drafts, sampler.candidates, 1e9, sampler.ngram, sampler.alpha)
        unlike["even weights"] += right != by_hand(language, model, even)[0]
    if sampler.drafts > 1 and sampler.candidates != 1 and sampler.ngram is None:
        assert min(unlike.values()) >= 3


def beam(language: ToyLanguage, sampler: Superposed) -> list[Prefix]:
    """As the definition, but every draft with the distribution after itself."""
    held: list[Prefix] = [()]
    while any(path[-1:] != (STOP,) for path in held):
        grown = [path for path in held if path[-1:] == (STOP,)]
        for path in held:
            if path[-1:] != (STOP,):
                options = language.options(path)
                ranked = sorted(options, key=lambda token: -options[token])
                grown += [(*path, token) for token in ranked[: sampler.candidates or sampler.drafts]]
        held = sorted(grown, key=lambda path: -language.log_p(path))[: sampler.drafts]
    return [path[:-1] for path in held]


def test_one_draft_is_greedy_decoding() -> None:
    """The mixture is the token at every step, so nothing is approximate."""
    letters = Vocabulary([b"", b"a", b"b", b"c"], eos=[0])  # every text has one spelling, forced or not
    for seed in range(20):
        language, _ = toy(seed)
        model: Any = RecurrentModel(VOCABULARY, seed)
        assert sampled_by(model, Superposed(1)).best().tokens == language.greedy(())[:-1]
        for pattern in (PATTERN, "a(b|c){2}a{2}|b{3}c?"):
            alone: Any = RecurrentModel(letters, seed)
            mine = sampled_by(alone, Superposed(1), pattern, 5).best()
            greedy = generate(alone, "ab", regex(pattern), sampler=Greedy(), max_tokens=5)
            assert mine.tokens == greedy.tokens
            assert [step.token for step in mine.steps] == [step.token for step in greedy.steps]
            assert [step.forced for step in mine.steps] == [step.forced for step in greedy.steps]
            assert [step.logprob for step in mine.steps] == pytest.approx([step.logprob for step in greedy.steps])


def test_passes_are_those_of_one_sequence(json_vocabulary: Vocabulary) -> None:
    """For any number of drafts: the prompt, one per position, and one for all drafts together."""
    model = HashModel(json_vocabulary, seed=1)
    for drafts in (1, 2, 8):
        sampled = sample(model, "x", regex("[a-z]{5,12}"), sampler=Superposed(drafts), max_tokens=12, seed=0)
        longest = max(len(result.tokens) for result in sampled.results)
        assert len(sampled.samples) == drafts
        assert sampled.forwards <= 2 + 12
        assert sampled.forwards >= 2 + longest
        assert {result.stats.forwards for result in sampled.results} == {sampled.forwards}


def test_long_drafts_are_read_in_parts() -> None:
    """What does not fit in 512 tokens comes in the next pass, and no step is lost."""
    language = Vocabulary([b"", b"a", b"b"], eos=[0])
    model = HashModel(language, seed=4)
    sampled = sampled_by(model, Superposed(3), "[ab]{400}", 400)
    for result in sampled.results:
        assert len(result.steps) == 401
        start = model.encode_prompt("ab")
        logits = model.start().extend_all([*start, *result.tokens]).astype(np.float64)[len(start) - 1 :]
        distribution = logits - np.logaddexp.reduce(logits, axis=1, keepdims=True)
        log_p = distribution[np.arange(401), [*result.tokens, 0]].sum()
        assert result.logprob + result.log_z == pytest.approx(log_p)
    assert sampled.forwards == 1 + 400 + math.ceil(400 / (512 // 3))


@pytest.mark.exhaustive
@pytest.mark.parametrize("budget", range(1, 7))
def test_outputs_are_members_whatever_ends_them(budget: int) -> None:
    """Drafts are in different states of the grammar; each keeps to its own."""
    pattern = r"a+|b(ab)*c|c{2,5}"
    for vocabulary in (VOCABULARY, SEVERAL):
        for seed in range(10):
            sampled = sampled_by(RecurrentModel(vocabulary, seed), Superposed(4), pattern, budget)
            again = sampled_by(RecurrentModel(vocabulary, seed), Superposed(4), pattern, budget, seed=7)
            assert sampled.samples
            assert [each.result.tokens for each in sampled.samples] == [each.result.tokens for each in again.samples]
            assert len({each.result.tokens for each in sampled.samples}) == len(sampled.samples)
            for result in sampled.results:
                assert re.fullmatch(pattern, result.text)
                assert len(result.tokens) <= budget
    bare = Vocabulary([b"a", b"b", b"ab"], eos=[])
    for seed in range(10):
        for result in sampled_by(RecurrentModel(bare, seed), Superposed(3), "[ab]{6}", max(budget, 3)).results:
            assert re.fullmatch("[ab]{6}", result.text)
            assert len(result.steps) == len(result.tokens) <= max(budget, 3)


def test_json_is_valid(json_vocabulary: Vocabulary) -> None:
    schema = {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 5},
            "tags": {"type": "array", "items": {"enum": [1, 2]}},
        },
        "required": ["name", "tags"],
        "additionalProperties": False,
    }
    constraint = compile(json_schema(schema), json_vocabulary)
    least = constraint.min_tokens()
    for seed in range(4):
        model = HashModel(json_vocabulary, seed=seed, writes='{"name": "ab", "tags": [1, 2]}')
        for budget in (least, least + 2, 60):
            sampled = sample(model, "x", constraint, sampler=Superposed(4), max_tokens=budget)
            assert len(sampled.samples) > 1 or budget == least
            for result in sampled.results:
                jsonschema.validate(json.loads(result.text), schema)
                assert len(result.tokens) <= budget


def test_the_only_output_is_found_and_an_empty_one_too() -> None:
    model = RecurrentModel(VOCABULARY, 0)
    assert [result.text for result in sampled_by(model, Superposed(3), "c").results] == ["c"]
    assert [result.text for result in sampled_by(model, Superposed(3), "").results] == [""]
    assert [result.text for result in sampled_by(model, Superposed(3), "a*", 0).results] == [""]
    bare = RecurrentModel(Vocabulary([b"a", b"b"], eos=[]), 0)
    (only,) = sampled_by(bare, Superposed(3), "", 0).samples
    assert (only.result.steps, only.log_weight) == ((), 0.0)


def test_potentials_weigh_and_forbid() -> None:
    @potential(always=True)
    def likes_c(text: str) -> float:
        return 4.0 * text.count("c")

    more = 0
    for seed in range(10):
        model = RecurrentModel(VOCABULARY, seed)
        alone = sampled_by(model, Superposed(3))
        tilted = sampled_by(model, Superposed(3), potentials=[likes_c])
        more += sum(each.text.count("c") for each in tilted.results) > sum(
            each.text.count("c") for each in alone.results
        )
        for each in tilted.samples:
            assert each.score == 4.0 * each.result.text.count("c")
            assert each.log_weight == pytest.approx(each.result.logprob + each.result.log_z + each.score)
        without = sampled_by(model, Superposed(3), potentials=[compile(regex("[ac]*"), VOCABULARY)])
        assert without.samples
        assert all("b" not in result.text for result in without.results)
    assert more >= 7


def test_models_that_read_no_mixtures_are_named() -> None:
    model: Any = FunctionModel(VOCABULARY, lambda text: {b"a": 0.9})
    assert not isinstance(model.start(), SuperposableSession)
    with pytest.raises(GenerationError, match=r"'function'.*a mixture of tokens in one position.*Beam or BestOf"):
        sampled_by(model, Superposed(2))


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"drafts": 0}, "drafts must be an integer of at least 1; found 0"),
        ({"candidates": 0}, "candidates must be an integer"),
        ({"temperature": 0.0}, "temperature must be finite and positive; found 0.0"),
        ({"temperature": math.nan}, "temperature"),
        ({"alpha": 1.1}, r"alpha must be in \[0, 1\]; found 1.1"),
        ({"alpha": math.nan}, "alpha"),
    ],
)
def test_values_out_of_range_are_refused(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=f"Superposed: {problem}"):
        Superposed(**options)

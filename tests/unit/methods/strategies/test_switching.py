"""Two alternating models, against a loop that recomputes everything from scratch at each step."""

from __future__ import annotations

import json
import math
import re
from typing import Any

import jsonschema
import numpy as np
import pytest
from function_model import FunctionModel
from numpy.typing import NDArray

from structgen.decode import Greedy, Multinomial, generate
from structgen.decode.potentials import potential
from structgen.decode.sampling import SequenceSampler, sample
from structgen.engine import Constraint, Vocabulary, compile
from structgen.errors import GenerationError, VocabularyError
from structgen.frontends.json_schema import JsonPolicy, json_schema
from structgen.grammar.nodes import ByteClass, Grammar, Repeat, choice, literal, sequence
from structgen.methods.strategies.token_chooser import Switching, SwitchingReport
from structgen.models import HashModel
from structgen.models.protocol import LanguageModel

LETTER = ByteClass([(ord("a"), ord("z"))])
RECORDS = {
    "type": "array",
    "minItems": 2,
    "maxItems": 2,
    "items": {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 5}, "ok": {"type": "boolean"}},
        "required": ["name", "ok"],
        "additionalProperties": False,
    },
}


def distribution_of(logits: NDArray[Any], ids: list[int]) -> list[float]:
    """Probabilities of ids, renormalised."""
    top = max(float(logits[token]) for token in ids)
    weights = [math.exp(float(logits[token]) - top) for token in ids]
    total = math.fsum(weights)
    return [weight / total for weight in weights]


def entropy(p: list[float]) -> float:
    return -math.fsum(value * math.log(value) for value in p if value)


def allowed(matcher: Any, size: int) -> list[int]:
    row = np.zeros((1, (size + 31) // 32), dtype=np.int32)
    matcher.fill_mask(row)
    return [token for token in range(size) if row[0, token >> 5] >> (token & 31) & 1]


def by_hand(
    small: LanguageModel,
    large: LanguageModel,
    prompt: list[int],
    constraint: Constraint,
    switching: Switching,
    *,
    masked: bool = True,
) -> tuple[list[int], list[bool], list[float]]:
    """Greedy outputs, the choosing model, and the entropies; ``masked`` is false for a wrong way to measure them."""
    matcher, size, eos = constraint.matcher(), constraint.vocabulary.size, constraint.vocabulary.eos[0]
    output: list[int] = []
    entropies: list[float] = []
    by_large: list[bool] = []
    is_large, run = False, 0
    while True:
        forced = matcher.forced_tokens()
        if forced:
            assert matcher.accept(forced[0])
            output.append(forced[0])
            continue
        ids = allowed(matcher, size)
        if ids == [eos]:
            return output, by_large, entropies
        if len(ids) == 1:
            token = ids[0]
        else:
            rows = [model.start().extend([*prompt, *output]) for model in (small, large)]
            entropies.append(entropy(distribution_of(rows[0], ids if masked else list(range(size)))))
            recent = entropies[-switching.window :]
            wants = sum(recent) / len(recent) > switching.threshold
            if wants != is_large and run >= switching.min_run:
                is_large, run = wants, 0
            run += 1
            by_large.append(is_large)
            distribution = distribution_of(rows[is_large], ids)
            token = ids[distribution.index(max(distribution))]
        if token == eos:
            return output, by_large, entropies
        assert matcher.accept(token)
        output.append(token)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("settings", [(0.8, 1, 0), (2.0, 3, 0), (1.5, 5, 4), (0.0, 1, 1), (9.0, 2, 0)])
def test_the_rule_is_the_papers_after_masking(
    seed: int, settings: tuple[float, int, int], json_vocabulary: Vocabulary
) -> None:
    """Tokens, shares and entropies equal those of the loop that recomputes everything; forced tokens do not count."""
    threshold, window, min_run = settings
    small, large = HashModel(json_vocabulary, seed=seed), HashModel(json_vocabulary, seed=seed + 100)
    constraint = compile(json_schema(RECORDS, policy=JsonPolicy(whitespace="compact")), json_vocabulary)
    reports: list[SwitchingReport] = []
    switching = Switching(large, threshold, window, min_run, report=reports.append)
    result = generate(small, "a prompt", constraint, max_tokens=400, sampler=switching)
    prompt = small.encode_prompt("a prompt")
    tokens, by_large, entropies = by_hand(small, large, prompt, constraint, switching)
    assert result.tokens == tuple(tokens)
    jsonschema.validate(json.loads(result.text), RECORDS)
    (report,) = reports
    assert report.entropies == pytest.approx(entropies, abs=1e-5)
    assert report.chosen == len(by_large) == sum(not step.forced for step in result.steps)
    assert report.by_large == sum(by_large)
    assert report.share == pytest.approx(sum(by_large) / len(by_large))
    assert report.switches == sum(a != b for a, b in zip([False, *by_large], by_large, strict=False))
    assert report.forced == sum(step.forced for step in result.steps) > 5
    assert report.forwards_large == sum(by_large)
    assert result.stats.forwards == report.forwards_small + report.forwards_large


def test_entropy_before_masking_would_decide_otherwise(json_vocabulary: Vocabulary) -> None:
    """Power: with the entropy of the whole vocabulary, another model would choose, and the output would differ."""
    small, large = HashModel(json_vocabulary, seed=1), HashModel(json_vocabulary, seed=101)
    constraint = compile(json_schema(RECORDS, policy=JsonPolicy(whitespace="compact")), json_vocabulary)
    switching, prompt = Switching(large, 2.0, 3, 0), small.encode_prompt("a prompt")
    right = by_hand(small, large, prompt, constraint, switching)
    wrong = by_hand(small, large, prompt, constraint, switching, masked=False)
    assert right[0] != wrong[0]
    assert all(wrong[1])
    assert not all(right[1])


def test_a_schedule_that_is_known_by_hand(json_vocabulary: Vocabulary) -> None:
    """Uniform distributions over one, two, four tokens have entropies 0, log 2, log 4: the switches can be counted."""
    widths = [1, 4, 4, 1, 1, 1, 2, 4]  # of the distribution of each letter

    def distribution(text: bytes) -> dict[bytes, float]:
        width = widths[min(len(text) - 1, len(widths) - 1)]
        return {bytes([ord("a") + index]): (1 - 1e-6) / width for index in range(width)}

    small = FunctionModel(json_vocabulary, distribution)
    large = FunctionModel(json_vocabulary, lambda text: {b"z": 0.9})
    reports: list[SwitchingReport] = []
    grammar = Repeat(LETTER, 8, 8)
    # Means of two: 0, .69, 1.39, .69, 0, 0, .35, 1.04 against 0.5: the large model is due at 2, 3, 4 and 8.
    result = generate(small, "x", grammar, sampler=Switching(large, 0.5, 2, 0, report=reports.append))
    assert result.text == "azzzaaaz"
    assert reports[0].entropies == pytest.approx([math.log(width) for width in widths], abs=1e-4)
    assert (reports[0].by_large, reports[0].switches, reports[0].share) == (4, 3, 0.5)
    # Each model goes on for at least two tokens: the large one takes over at 3 and leaves, since it is not due from 5
    # on.
    result = generate(small, "x", grammar, sampler=Switching(large, 0.5, 2, 2, report=reports.append))
    assert result.text == "aazzaaaz"
    assert reports[1].by_large == 3
    # At 4 the large model is not due any more, but has chosen one token only, and goes on for a second.
    result = generate(small, "x", grammar, sampler=Switching(large, 0.5, 1, 2, report=reports.append))
    assert result.text == "aazzaazz"
    assert reports[2].switches == 3
    # Five tokens each: the small model up to the fifth, when the mean is low again although its turn is over.
    result = generate(small, "x", grammar, sampler=Switching(large, 0.5, 2, 5, report=reports.append))
    assert result.text == "aaaaaaaz"


def test_the_large_model_catches_up_in_one_pass(json_vocabulary: Vocabulary) -> None:
    """When it is first needed it reads prompt and output at once, and later the tokens since then."""
    small = FunctionModel(json_vocabulary, lambda text: {b"a": 0.5, b"b": 0.5} if text.endswith(b"-") else {b"c": 1.0})
    large = FunctionModel(json_vocabulary, lambda text: {b"b": 1.0})
    part = sequence("[", LETTER, LETTER, "-", LETTER, "]")
    result = generate(small, "xyz", sequence(part, part), sampler=Switching(large, 0.5, 1, 0))
    assert result.text == "[cc-b][cc-b]"
    assert [json_vocabulary.decode(tokens) for tokens in large.fed] == [b"xyz[cc-", b"b][cc-"]
    untouched = FunctionModel(json_vocabulary, lambda text: {b"b": 1.0})
    generate(small, "xyz", part, sampler=Switching(untouched, 9.0, 1, 0))
    assert untouched.fed == []


def test_tokens_are_sampled_as_the_sampler_says(json_vocabulary: Vocabulary) -> None:
    """With the same model twice, the output is that of the model alone, sampled from the same random numbers."""
    model = HashModel(json_vocabulary, seed=5)
    constraint = compile(json_schema(RECORDS, policy=JsonPolicy(whitespace="compact")), json_vocabulary)
    for seed in range(4):
        alone = generate(model, "ab", constraint, sampler=Multinomial(top_k=9), seed=seed)
        switched = generate(
            model, "ab", constraint, sampler=Switching(model, 1.0, 2, 0, sampler=Multinomial(top_k=9)), seed=seed
        )
        assert switched.tokens == alone.tokens


def test_potentials_and_budgets_hold(json_vocabulary: Vocabulary) -> None:
    """What a potential forbids comes from neither model, and the output ends within the budget."""
    small, large = HashModel(json_vocabulary, seed=1), HashModel(json_vocabulary, seed=2)
    no_e = potential(always=True)(lambda text: "e" not in text)
    samples = sample(
        small, "ab", Repeat(LETTER, 4, 40), sampler=Switching(large, 3.0, 2, 0), potentials=[no_e], max_tokens=9
    )
    text = samples.best().text
    assert re.fullmatch("[a-df-z]{4,40}", text)
    assert samples.best().stats.tokens <= 9
    assert samples.lossless is False
    assert samples.log_evidence is None
    nothing = potential(always=True)(lambda text: len(text) < 2)
    samples = sample(
        small, "ab", Repeat(LETTER, 4, 40), sampler=Switching(large, 3.0, 2, 0), potentials=[nothing], max_tokens=9
    )
    assert samples.samples == ()


@pytest.mark.parametrize(
    ("grammar", "pattern"),
    [
        (
            sequence(
                '{"name": "', Repeat(LETTER, 0, 8), '", "12": [', Repeat(choice("1, ", "2, "), 0, 2), '], "ab": true}'
            ),
            r'\{"name": "[a-z]{0,8}", "12": \[([12], ){0,2}\], "ab": true\}',
        ),
        (literal('{"name": [true, false]}'), r'\{"name": \[true, false\]\}'),
        (choice('{"name": 12}', '{"name": null}', '[true, "ab"]'), r'\{"name": (12|null)\}|\[true, "ab"\]'),
    ],
)
def test_the_budget_is_always_enough(grammar: Grammar, pattern: str, spelling_vocabulary: Vocabulary) -> None:
    """From the exact minimum on, every budget gives a string, also where forced text needs a short spelling."""
    constraint = compile(grammar, spelling_vocabulary)
    small, large = (HashModel(spelling_vocabulary, seed=seed) for seed in (1, 2))
    least = constraint.min_tokens()
    for budget in range(least, least + 6):
        result = generate(small, "ab", constraint, max_tokens=budget, sampler=Switching(large, 1.0, 2, 0))
        assert result.stats.tokens <= budget
        assert re.fullmatch(pattern, result.text)


@pytest.fixture(scope="module")
def spelling_vocabulary(json_vocabulary: Vocabulary) -> Vocabulary:
    """A tokenizer whose own spelling takes one token per byte, far from the shortest."""
    tokens = json_vocabulary.tokens
    return Vocabulary(tokens, eos=[0], tokenize=lambda text: [tokens.index(bytes([byte])) for byte in text.encode()])


def test_one_word_needs_neither_model(json_vocabulary: Vocabulary) -> None:
    """Where all is forced, no choice is made, and the share is 0."""
    small, large = HashModel(json_vocabulary, seed=1), FunctionModel(json_vocabulary, lambda text: {})
    reports: list[SwitchingReport] = []
    result = generate(small, "ab", literal('{"name": 12}'), sampler=Switching(large, report=reports.append))
    assert result.text == '{"name": 12}'
    assert (reports[0].chosen, reports[0].share, large.fed) == (0, 0.0, [])


def test_a_vocabulary_without_eos(json_vocabulary: Vocabulary) -> None:
    """The output ends where nothing may follow."""
    vocabulary = Vocabulary(json_vocabulary.tokens)
    models = [HashModel(vocabulary, seed=seed) for seed in (1, 2)]
    result = generate(models[0], "ab", choice("ab", "cd"), sampler=Switching(models[1], 0.1, 1, 0))
    assert result.text in ("ab", "cd")


def test_another_vocabulary_is_refused(json_vocabulary: Vocabulary, ab_vocabulary: Vocabulary) -> None:
    """The models must share their tokens, and the large one's context must fit, before it is run."""
    small = HashModel(json_vocabulary)
    with pytest.raises(VocabularyError, match="another vocabulary"):
        generate(small, "ab", choice("ab", "cd"), sampler=Switching(HashModel(ab_vocabulary)))
    narrow = FunctionModel(json_vocabulary, lambda text: {}, max_context=5)
    with pytest.raises(GenerationError, match="exceed its context"):
        generate(small, "a prompt", choice("ab", "cd"), max_tokens=4, sampler=Switching(narrow))
    assert narrow.fed == []


def test_it_is_a_sampler_of_outputs(json_vocabulary: Vocabulary) -> None:
    """It reports that it is not lossless, and refuses numbers out of range."""
    model = HashModel(json_vocabulary)
    switching = Switching(model)
    assert isinstance(switching, SequenceSampler)
    assert switching.lossless is False
    assert switching.sampler == Greedy()
    for arguments in ({"threshold": -1.0}, {"threshold": math.nan}, {"window": 0}, {"min_run": -1}):
        with pytest.raises(ValueError, match=f"Switching: {next(iter(arguments))}"):
            Switching(model, **arguments)

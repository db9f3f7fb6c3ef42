"""Drafts from a part of the prompt: the right part is used, and nothing else differs."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
from drafter_tasks import position, row_after, task_of

from structgen.decode import Context, Multinomial, generate
from structgen.decode.speculative.draft_tree import ROOT
from structgen.decode.speculative.fixed_tree import Chain, Fixed
from structgen.engine import Constraint, Vocabulary, compile
from structgen.errors import VocabularyError
from structgen.frontends.regex import regex
from structgen.methods.drafters.draft_model import ShortContext, relevance, shortened
from structgen.models import HashModel

SHORT = ShortContext(tokens=64, head=8, tail=16, chunk=10, refresh=4)


@pytest.fixture(scope="module")
def constraint(ab_vocabulary: Vocabulary) -> Constraint:
    return compile(regex("([ab]{1,4}(c|dd)){1,30}"), ab_vocabulary)


def plain_relevance(chunks: Sequence[Sequence[int]], question: Sequence[int]) -> list[float]:
    """BM25 in plain Python."""

    def terms(tokens: Sequence[int]) -> list[tuple[int, ...]]:
        pairs = [tuple(tokens[at : at + 2]) for at in range(len(tokens) - 1)]
        return [(token,) for token in tokens] + pairs

    counted = [Counter(terms(chunk)) for chunk in chunks]
    average = sum(map(len, chunks)) / len(chunks)
    scores = []
    for chunk, counts in zip(chunks, counted, strict=True):
        score = 0.0
        for term in set(terms(question)):
            holding = sum(term in other for other in counted)
            rarity = math.log(1 + (len(chunks) - holding + 0.5) / (holding + 0.5))
            norm = 1.5 * (1 - 0.75 + 0.75 * len(chunk) / average)
            score += rarity * counts[term] * 2.5 / (counts[term] + norm)
        scores.append(score)
    return scores


@pytest.mark.parametrize("seed", range(10))
def test_relevance_is_bm25(seed: int) -> None:
    """The score agrees with the definition of BM25."""
    random = np.random.default_rng(seed)
    chunks = [
        random.integers(0, 12, size=int(random.integers(1, 20))).tolist() for _ in range(int(random.integers(1, 9)))
    ]
    question = random.integers(0, 14, size=int(random.integers(0, 12))).tolist()
    assert relevance(chunks, question) == pytest.approx(plain_relevance(chunks, question), abs=1e-9)
    assert relevance([], question) == []


def test_the_part_holds_prefix_end_and_what_is_asked_for() -> None:
    """The chunk with the words of the question is there, in its place, and the part is within its size."""
    prompt = [1000 + index for index in range(400)]
    prompt[203:206] = [7, 8, 9]
    prompt[-3:] = [7, 8, 9]
    part = shortened(prompt, prompt[-16:], SHORT)
    # The chunk with the question is at 198; of the others, which share nothing, those nearest to the end fit.
    assert part == [*prompt[:8], *prompt[198:208], *prompt[358:384], *prompt[384:]]
    assert len(part) <= 64


def test_distributions_are_those_of_the_shortened_prompt(constraint: Constraint) -> None:
    """At every node along an output, the distribution is that of a session that reads the part and then the output."""
    random = np.random.default_rng(0)
    target = HashModel(constraint.vocabulary, seed=1)
    prompt = [int(token) for token in random.integers(1, 200, size=300)]
    context = Context(target, prompt)
    setting = ShortContext(shape=Fixed.branching(2, 1), tokens=64, head=8, tail=16, chunk=10, refresh=4)
    drafting = setting.start(context, task_of(constraint, prompt, Multinomial(0.5)))
    checked = 0
    for _ in range(12):
        state = position(context, constraint, len(prompt))
        output = list(context.tokens[len(prompt) :])
        told = len(output) // 4 * 4
        part = shortened(prompt, [*prompt[-64:], *output[:told]], setting)
        tree = drafting.propose(context, state, 16)
        for parent, sampled in tree.sampled.items():
            path = tree.prefix(parent) if parent != ROOT else []
            matcher = state.matcher.fork()
            assert all(matcher.accept(token) for token in path)
            allowed = [token for token in range(constraint.vocabulary.size) if matcher.validate([token]) == 1]
            weights = np.exp(row_after(target, [*part, *output, *path]).astype(np.float64)[allowed] / 0.5)
            assert sampled.distribution[allowed] == pytest.approx(weights / weights.sum(), abs=1e-6)
            checked += 1
        if random.random() < 0.25 and output:
            context.truncate(len(prompt) + int(random.integers(len(output))))
        else:
            ids = np.flatnonzero(np.unpackbits(state.mask.view(np.uint8), bitorder="little"))
            context.append([int(random.choice([token for token in ids if token]))])
    assert checked > 24


def test_outputs_are_as_without(constraint: Constraint) -> None:
    """The target drafts greedily from a part of the prompt: outputs are equal seed for seed."""
    target = HashModel(constraint.vocabulary, seed=1, writes="abcabddbac")
    for seed in range(4):
        prompt = "ab" * 150 + "cd"
        setting = ShortContext(shape=Chain(4), tokens=64, head=8, tail=16, chunk=10, draws=False)
        options = {"max_tokens": 40, "seed": seed, "sampler": Multinomial(0.6)}
        plain = generate(target, prompt, constraint, drafter=None, **options)  # type: ignore[arg-type]
        drafted = generate(target, prompt, constraint, drafter=setting, **options)  # type: ignore[arg-type]
        assert plain.stats.prompt_tokens > 64
        assert drafted.tokens == plain.tokens
        assert drafted.stats.drafted > 0


def test_short_prompts_are_not_drafted_for(constraint: Constraint) -> None:
    """A draft would cost as much as the target."""
    target = HashModel(constraint.vocabulary)
    context = Context(target, [4] * 64)
    drafting = SHORT.start(context, task_of(constraint, [4] * 64))
    assert len(drafting.propose(context, position(context, constraint, 64), 16)) == 0
    drafting.close()


def test_another_model_needs_the_vocabulary(constraint: Constraint, json_vocabulary: Vocabulary) -> None:
    """It may draft if it has the target's tokens, and is refused otherwise."""
    context = Context(HashModel(constraint.vocabulary), [4] * 100)
    task = task_of(constraint, [4] * 100)
    same = ShortContext(HashModel(constraint.vocabulary, seed=9, max_context=90), tokens=64, head=8, tail=16, chunk=10)
    assert len(same.start(context, task).propose(context, position(context, constraint, 100), 16))
    other = ShortContext(HashModel(json_vocabulary), tokens=64, head=8, tail=16, chunk=10)
    with pytest.raises(VocabularyError, match="not the target's"):
        other.start(context, task)
    assert (SHORT.name, same.name) == ("short context", "short context of hash")


@pytest.mark.parametrize(
    "bad", [{"tokens": 0}, {"chunk": -1}, {"refresh": 0}, {"head": 1.5}, {"head": 300, "tail": 200}], ids=str
)
def test_settings_are_checked(bad: dict[str, int]) -> None:
    """Numbers must be positive and leave room for a chunk."""
    with pytest.raises(ValueError, match="ShortContext"):
        ShortContext(**bad)  # type: ignore[arg-type]

"""Adjusted logits: a loop in plain Python over one context at a time is the reference."""

from __future__ import annotations

import math
import random
from collections import Counter

import numpy as np
import pytest

import structgen as sg
from structgen.decode import Context, Speculation, start_generation
from structgen.decode.sampling.sampler_run import run_sampler
from structgen.drafters import PromptLookup
from structgen.errors import GenerationError
from structgen.models import HashModel
from structgen.models.adjusted import AdjustedModel, Adjustments
from structgen.models.protocol.tree import TokenTree
from structgen.samplers import SMC

VOCABULARY = sg.Vocabulary([b"", b"a", b"b", b"c", b"ab", b"ca", b"bb", b"abc"], eos=[0])
PROMPT = (1, 2, 3)
ALL = Adjustments(repetition=1.7, frequency=0.4, presence=-0.3, bias={4: 1.5, 0: -2.0})
EACH = [
    Adjustments(repetition=1.7),
    Adjustments(repetition=0.5),
    Adjustments(frequency=0.9),
    Adjustments(presence=1.1),
    Adjustments(bias={7: 3.0, 2: -100.0}),
    ALL,
]


def reference(adjustments: Adjustments, tokens: list[int]) -> list[float]:
    """The logits after all tokens; the first are the prompt."""
    row = [float(value) for value in HashModel(VOCABULARY, seed=3).start().extend(tokens)]
    for token in set(tokens):
        row[token] = row[token] / adjustments.repetition if row[token] > 0 else row[token] * adjustments.repetition
    for token, count in Counter(tokens[len(PROMPT) :]).items():
        row[token] -= adjustments.frequency * count + adjustments.presence
    return [value + adjustments.bias.get(token, 0.0) for token, value in enumerate(row)]


def adjusted(adjustments: Adjustments) -> AdjustedModel:
    """The model under test."""
    return AdjustedModel(HashModel(VOCABULARY, seed=3), adjustments, prompt=len(PROMPT))


@pytest.mark.parametrize("adjustments", EACH)
@pytest.mark.parametrize("drafter", ["auto", None, Speculation(PromptLookup(), cost=None)])
def test_greedy_outputs_are_those_of_the_loop(adjustments: Adjustments, drafter: object) -> None:
    """With and without draft tokens, whose rows are adjusted by their own paths."""
    tokens = list(PROMPT)
    while len(tokens) < len(PROMPT) + 24:
        row = reference(adjustments, tokens)
        best = max(range(len(row)), key=row.__getitem__)
        if best == 0:
            break
        tokens.append(best)
    grammar = sg.regex("[abc]{0,80}")
    constraint = sg.compile(grammar, VOCABULARY)
    with Context(adjusted(adjustments), PROMPT) as context:
        generation = start_generation(context, constraint, max_tokens=24, drafter=drafter)  # type: ignore[arg-type]
        for _ in generation:
            pass
        result = generation.result()
    assert list(result.tokens) == tokens[len(PROMPT) :]
    scored = [step.logprob + step.log_z for step in result.steps if step.log_z is not None]
    expected = []
    for at, token in enumerate([*tokens[len(PROMPT) :], 0][: len(scored)]):
        row = reference(adjustments, tokens[: len(PROMPT) + at])
        expected.append(row[token] - math.log(math.fsum(map(math.exp, row))))
    assert scored == pytest.approx(expected, abs=1e-5)


def test_trees_of_draft_tokens_have_the_rows_of_their_paths() -> None:
    """Random trees; random paths are kept; forks and cuts between."""
    chance = random.Random(5)
    session, tokens = adjusted(ALL).start(), []
    for _ in range(40):
        new = [chance.randrange(1, 8) for _ in range(chance.randrange(1, 3))]
        if len(tokens) < len(PROMPT):
            new = list(PROMPT)
        size = chance.randrange(1, 6)
        parents = [chance.randrange(-1, node) for node in range(size)]
        tree = TokenTree([chance.randrange(1, 8) for _ in range(size)], parents)
        every = chance.random() < 0.5
        rows = session.extend_tree(new, tree, all_positions=every)
        before, tokens = len(tokens), [*tokens, *new]
        ends = range(before + 1, len(tokens) + 1) if every else [len(tokens)]
        paths: list[list[int]] = []
        for token, parent in zip(tree.token_ids, parents, strict=True):
            paths.append([*(tokens if parent < 0 else paths[parent]), token])
        found = [reference(ALL, tokens[:end]) for end in ends] + [reference(ALL, path) for path in paths]
        assert rows == pytest.approx(np.array(found), abs=1e-4)
        kept = [] if chance.random() < 0.3 else [parents.index(-1)]
        while kept and kept[-1] in parents and chance.random() < 0.7:
            kept.append(parents.index(kept[-1]))
        session.keep(kept)
        tokens += [tree.token_ids[node] for node in kept]
        if chance.random() < 0.3 and len(tokens) > len(PROMPT) + 1:
            tokens.pop()
            session.truncate(len(tokens))
        if chance.random() < 0.3:
            session = session.fork()
        assert session.length == len(tokens)


def test_samplers_of_whole_outputs_see_the_adjusted_model() -> None:
    """The evidence of importance sampling over a grammar with two strings is that of enumeration."""
    grammar = sg.select(["a", "b"])
    constraint = sg.compile(grammar, VOCABULARY)
    with Context(adjusted(ALL), PROMPT) as context:
        whole = run_sampler(SMC(4000), context, constraint, max_tokens=2, generator=np.random.default_rng(1))
    mass = 0.0
    for token in (1, 2):
        first, last = reference(ALL, [*PROMPT]), reference(ALL, [*PROMPT, token])
        shares = [math.exp(row[at]) / math.fsum(map(math.exp, row)) for row, at in ((first, token), (last, 0))]
        mass += math.prod(shares)
    assert whole.log_evidence == pytest.approx(math.log(mass), abs=0.1)


def test_wrong_settings_say_so() -> None:
    """And a tree can be kept only after it was run."""
    with pytest.raises(ValueError, match="repetition must be positive"):
        Adjustments(repetition=0.0)
    assert not Adjustments()
    assert ALL
    session = adjusted(ALL).start()
    session.extend([1])
    with pytest.raises(GenerationError, match="no tree"):
        session.keep([0])

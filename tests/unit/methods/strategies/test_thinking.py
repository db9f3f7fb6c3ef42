"""Thoughts that are cut short: when, how, and what follows."""

from __future__ import annotations

import json
import math
import re

import jsonschema
import pytest

from structgen.decode.potentials import potential
from structgen.decode.sampling import sample
from structgen.decode.step.sampler import Greedy
from structgen.engine import Vocabulary, compile
from structgen.errors import BudgetError, GenerationError
from structgen.frontends.json_schema import json_schema
from structgen.frontends.regex import regex
from structgen.grammar.nodes import Grammar, SpecialToken
from structgen.methods.strategies import Boundary, Thinking
from structgen.models import HashModel

PIECES = [b"", *(bytes([byte]) for byte in b'abc.</think>{}":,yo012'), b"</", b"think", b">", b"ab.", b"<a"]
VOCABULARY = Vocabulary(list(dict.fromkeys(PIECES)), eos=[0])
THOUGHT = r"[abc.<]*"
ANSWER = {"type": "object", "properties": {"y": {"enum": [0, 12]}}, "required": ["y"], "additionalProperties": False}
END = len(VOCABULARY.tokenize("</think>"))


def grammar(thought: str = THOUGHT) -> Grammar:
    return regex(thought) + regex("</think>") + json_schema(ANSWER, whitespace="compact")


def parts(text: str) -> tuple[str, str]:
    thought, _, answer = text.partition("</think>")
    jsonschema.validate(json.loads(answer), ANSWER)
    return thought, answer


def thought_tokens(tokens: tuple[int, ...], thought: str) -> int:
    """Tokens that begin within the thought."""
    begun = 0
    for count, token in enumerate(tokens):
        if begun >= len(thought):
            return count
        begun += len(VOCABULARY.tokens[token])
    return len(tokens)


@pytest.mark.exhaustive
@pytest.mark.parametrize("most", [0, 1, 3, 8, 20])
def test_a_thought_is_ended_at_its_most(most: int) -> None:
    constraint = compile(grammar(), VOCABULARY)
    cut = left = 0
    for seed in range(30):
        model = HashModel(VOCABULARY, seed=seed)
        sampled = sample(model, "ab", constraint, sampler=Thinking(most), max_tokens=60, seed=seed).best()
        thought, _ = parts(sampled.text)
        assert re.fullmatch(THOUGHT, thought)
        assert thought_tokens(sampled.tokens, thought) <= most
        assert len(sampled.tokens) <= 60
        again = sample(model, "ab", constraint, sampler=Thinking(most), max_tokens=60, seed=seed).best()
        assert again.tokens == sampled.tokens
        free = sample(model, "ab", constraint, sampler=Thinking(), max_tokens=60, seed=seed).best()
        free_thought, _ = parts(free.text)
        if thought_tokens(free.tokens, free_thought + "</think>") <= most:
            left += 1
            assert free.tokens == sampled.tokens  # a thought that ends in time is unchanged
        else:
            cut += 1
            # Up to the cut both are the same.
            assert (
                free.tokens[: min(most, thought_tokens(sampled.tokens, thought))]
                == sampled.tokens[: min(most, thought_tokens(sampled.tokens, thought))]
            )
    assert cut > 5 or most == 20
    assert left > 5 or most < 20


@pytest.mark.exhaustive
@pytest.mark.parametrize("budget", range(12, 30, 3))
@pytest.mark.parametrize("reserved", [0, 7, 9, 50])
def test_the_budget_holds_and_tokens_are_kept_for_the_answer(budget: int, reserved: int) -> None:
    constraint = compile(grammar(), VOCABULARY)
    if constraint.min_tokens() > budget:
        with pytest.raises(BudgetError):
            sample(HashModel(VOCABULARY), "ab", constraint, sampler=Thinking(), max_tokens=budget)
        return
    for seed in range(20):
        model = HashModel(VOCABULARY, seed=seed, writes="abc" * 40)
        sampled = sample(
            model, "ab", constraint, sampler=Thinking(reserved=reserved), max_tokens=budget, seed=seed
        ).best()
        thought, _ = parts(sampled.text)
        assert len(sampled.tokens) <= budget
        used = thought_tokens(sampled.tokens, thought)
        assert budget - used - END >= min(reserved, budget - END) or used == 0


def test_a_model_that_never_stops_thinking_still_answers() -> None:
    """A power check: without the strategy the thought takes the whole budget."""
    model = HashModel(VOCABULARY, writes="abc." * 100)
    constraint = compile(grammar(), VOCABULARY)
    cut = sample(model, "ab", constraint, sampler=Thinking(4, sampler=Greedy()), max_tokens=80).best()
    free = sample(model, "ab", constraint, sampler=Thinking(sampler=Greedy()), max_tokens=80).best()
    assert thought_tokens(cut.tokens, parts(cut.text)[0]) == 4
    assert thought_tokens(free.tokens, parts(free.text)[0]) > 50


def test_a_redundant_thought_is_ended_at_a_boundary() -> None:
    model = HashModel(VOCABULARY, writes="abc.abc.abc.abc.abc.abc.")
    asked: list[str] = []

    def redundant(thought: str) -> bool:
        asked.append(thought)
        sentences = thought.split(".")[:-1]
        return len(sentences) != len(set(sentences))

    sampler = Thinking(redundant=redundant, sampler=Greedy())
    result = sample(model, "c.", compile(grammar(), VOCABULARY), sampler=sampler, max_tokens=80).best()
    assert parts(result.text)[0] == "abc.abc."
    assert asked == ["abc.", "abc.abc."]
    asked.clear()
    often = Thinking(redundant=redundant, boundary=Boundary(marks="", forced=False, most=2), sampler=Greedy())
    sample(model, "c.", compile(grammar(), VOCABULARY), sampler=often, max_tokens=80)
    assert len(asked) > 2
    with pytest.raises(GenerationError, match="redundant: it raised"):
        sample(
            model,
            "c.",
            compile(grammar(), VOCABULARY),
            sampler=Thinking(redundant=lambda text: bool(1 // 0)),
            max_tokens=80,
        )


def test_where_the_end_may_not_stand_yet_the_shortest_way_is_taken() -> None:
    """Thoughts consist of whole sentences of at least four letters, and the cut comes within one."""
    thought = r"([abc]{4,}\.)+"
    constraint = compile(grammar(thought), VOCABULARY)
    for seed in range(20):
        model = HashModel(VOCABULARY, seed=seed, writes="abc" * 30)
        for most in (0, 1, 2, 7):
            sampled = sample(model, "ab", constraint, sampler=Thinking(most), max_tokens=70, seed=seed).best()
            written, _ = parts(sampled.text)
            assert re.fullmatch(thought, written)
            assert thought_tokens(sampled.tokens, written) <= most + 5


def test_the_end_may_be_begun_already() -> None:
    """The cut comes right after ``<``, which only the end of the thought can continue."""
    constraint = compile(grammar("[abc]*"), VOCABULARY)
    model = HashModel(VOCABULARY, writes="a</think>")
    for most in (1, 2, 3):
        sampled = sample(model, "b", constraint, sampler=Thinking(most, sampler=Greedy()), max_tokens=40).best()
        assert sampled.text.startswith("a</think>")


def test_a_special_token_may_end_the_thought() -> None:
    vocabulary = Vocabulary([b"", b"a", b"b", b"y", b""], eos=[0], special={4: "<|end|>"})
    constraint = compile(regex("[ab]*") + SpecialToken("<|end|>") + regex("y"), vocabulary)
    for seed in range(10):
        model = HashModel(vocabulary, seed=seed, writes="abababababab")
        sampled = sample(model, "a", constraint, sampler=Thinking(3, end="<|end|>"), max_tokens=30, seed=seed).best()
        assert sampled.tokens[-2:] == (4, 3)
        assert len(sampled.tokens) <= 5


def test_potentials_are_heard_in_the_forced_end_too() -> None:
    """Where the end of the thought is forbidden for now, the thought goes on until it is not."""
    model = HashModel(VOCABULARY, writes="abc" * 30)

    @potential(always=True)
    def long_enough(text: str) -> bool:
        return "<" not in text or len(text.partition("<")[0]) >= 9

    sampled = sample(
        model, "ab", grammar("[abc]*"), sampler=Thinking(2, sampler=Greedy()), potentials=[long_enough], max_tokens=60
    ).best()
    assert 9 <= len(parts(sampled.text)[0]) <= 12


def test_bad_numbers_are_refused() -> None:
    for bad in ({"most": -1}, {"reserved": -1}, {"most": 1.5}, {"end": ""}, {"most": math.nan}):
        with pytest.raises(ValueError, match="Thinking: "):
            Thinking(**bad)  # type: ignore[arg-type]

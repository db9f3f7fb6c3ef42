"""Token healing, against the model's own distribution over all token sequences, enumerated."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any, Final

import numpy as np
import pytest
from exact_target import normalised, total_variation

from structgen.decode import Autoregressive, Chunk, Multinomial, generate
from structgen.engine import Constraint, Vocabulary, compile
from structgen.errors import BudgetError
from structgen.frontends.regex import regex
from structgen.grammar.nodes import SpecialToken, TokenSet, literal
from structgen.models import HashModel
from structgen.models.toy.hash import HashDiffusion
from structgen.samplers import AWRS, SMC, ExactBest, RejectionTrie

TOKENS: Final = [b"", b"a", b"b", b"c", b"ab", b"bc", b"abc", b"ca", b"aba", b""]
VOCABULARY: Final = Vocabulary(TOKENS, eos=[0], special={9: "<s>"})
WORDS: Final = ["b", "bc", "c", "ca", "ab", "ba", "bca"]
PATTERN: Final = "|".join(WORDS)
PROMPT: Final = "cba"  # the tokens c, b and a


def step_logs(model: HashModel, tokens: list[int]) -> np.ndarray[Any, Any]:
    """The model's own log-probabilities after tokens, one pass."""
    logits = model.start().extend(tokens).astype(np.float64)
    return logits - np.logaddexp.reduce(logits)


def spellings(text: bytes) -> list[tuple[int, ...]]:
    """All token sequences that spell a text."""
    if not text:
        return [()]
    return [
        (token, *rest)
        for token, piece in enumerate(TOKENS)
        if piece and text.startswith(piece)
        for rest in spellings(text[len(piece) :])
    ]


def healed_target(model: HashModel, words: list[str] = WORDS, prompt: str = PROMPT) -> dict[tuple[int, ...], float]:
    """The log of p(tokens, stop | prompt without its last token), for all tokens that spell its text and a word."""
    *before, last = model.encode_prompt(prompt)
    found = {}
    for word in words:
        for tokens in spellings(TOKENS[last] + word.encode()):
            logs, at = 0.0, list(before)
            for token in tokens:
                logs += float(step_logs(model, at)[token])
                at.append(token)
            found[tokens] = logs + float(step_logs(model, at)[0])
    return found


def local_logprob(model: HashModel, tokens: tuple[int, ...], target: dict[tuple[int, ...], float]) -> float:
    """The log-probability of an output under locally constrained decoding, from the set of all outputs alone."""
    before = model.encode_prompt(PROMPT)[:-1]
    total = 0.0
    for at in range(len(tokens) + 1):
        logs = step_logs(model, [*before, *tokens[:at]])
        follow = {(*other, 0)[at] for other in target if other[:at] == tokens[:at]}
        total += float(logs[(*tokens, 0)[at]] - np.logaddexp.reduce(logs[sorted(follow)]))
    return total


@pytest.fixture(scope="module")
def constraint() -> Constraint:
    return compile(regex(PATTERN), VOCABULARY)


@pytest.mark.parametrize("seed", range(6))
def test_the_most_probable_output(seed: int, constraint: Constraint) -> None:
    """``ExactBest`` finds the most probable of all healed token sequences."""
    model = HashModel(VOCABULARY, seed=seed)
    target = healed_target(model)
    result = generate(model, PROMPT, constraint, max_tokens=9, sampler=ExactBest(), heal=True)
    assert result.tokens == max(target, key=lambda tokens: target[tokens])
    assert result.logprob + result.log_z == pytest.approx(target[result.tokens], abs=1e-4)


def test_samples_have_the_distribution_given_the_prefix(constraint: Constraint) -> None:
    """A lossless sampler of whole outputs draws from the model's distribution given the prefix and the grammar."""
    model = HashModel(VOCABULARY, seed=1)
    exact = normalised(healed_target(model))
    count = 150
    drawn = Counter(
        generate(model, PROMPT, constraint, max_tokens=9, sampler=RejectionTrie(), heal=True, seed=seed).tokens
        for seed in range(count)
    )
    assert drawn.keys() <= exact.keys()
    expected = 0.4 * sum(math.sqrt(p * (1 - p) / count) for p in exact.values())  # of the total variation
    assert total_variation({tokens: n / count for tokens, n in drawn.items()}, exact) < 2 * expected


@pytest.mark.parametrize("jump", [True, False])
def test_steps_are_those_of_local_decoding(jump: bool, constraint: Constraint) -> None:
    """Every token has the probability that enumeration gives it; drafts change nothing."""
    model = HashModel(VOCABULARY, seed=2)
    target = healed_target(model)
    seen = set()
    for seed in range(60):
        settings = Autoregressive(heal=True, jump_forward=jump, score_ending=True)
        result = generate(model, PROMPT, constraint, max_tokens=9, sampler=Multinomial(), seed=seed, decoding=settings)
        assert b"".join(TOKENS[token] for token in result.tokens) == b"a" + result.data
        assert result.text in WORDS
        assert result.logprob == pytest.approx(local_logprob(model, result.tokens, target), abs=1e-4)
        assert result.logprob + result.log_z == pytest.approx(target[result.tokens], abs=1e-4)
        seen.add(result.tokens)
        if seed % 10 == 0:
            plain = generate(
                model, PROMPT, constraint, max_tokens=9, sampler=Multinomial(), seed=seed, heal=True, drafter=None
            )
            assert plain.tokens == result.tokens
    assert any(len(TOKENS[tokens[0]]) > 1 for tokens in seen), "a token spans prompt and output"
    assert len(seen) > 5


@pytest.mark.parametrize("sampler", [AWRS(), SMC(4), SMC(3, proposal=AWRS())])
def test_samplers_of_whole_outputs(sampler: Any, constraint: Constraint) -> None:
    """They write healed outputs, which spell the end of the prompt and a word."""
    model = HashModel(VOCABULARY, seed=3)
    target = healed_target(model)
    for seed in range(8):
        result = generate(model, PROMPT, constraint, max_tokens=9, sampler=sampler, seed=seed, heal=True)
        assert result.tokens in target
        assert result.text in WORDS


def test_streamed_texts_leave_the_prefix_out(constraint: Constraint) -> None:
    """Joined they are the text of the result, for prefixes of several bytes and characters that are cut."""
    for seed in range(30):
        chunks: list[Chunk] = []
        model = HashModel(VOCABULARY, seed=seed)
        result = generate(
            model, "abaaba", constraint, max_tokens=9, sampler=Multinomial(), seed=seed, heal=True, stream=chunks.append
        )
        assert "".join(chunk.text for chunk in chunks) == result.text
        assert result.text in WORDS
        assert VOCABULARY.decode(result.tokens) == b"aba" + result.data
        assert result.spelled == result.text
        assert result.value == result.text


def test_captures_and_token_sets_begin_after_the_prefix() -> None:
    """Named parts, sets of tokens and special tokens are read as without healing."""
    grammar = regex("[bc]").named("first") + SpecialToken("<s>") + TokenSet(["<s>", 3]).named("token") + literal("b")
    starts = set()
    for seed in range(20):
        model = HashModel(VOCABULARY, seed=seed)
        result = generate(model, PROMPT, grammar, max_tokens=9, sampler=Multinomial(), seed=seed, heal=True)
        assert result.data in (b"bb", b"cb", b"bcb", b"ccb")
        assert result.captures["first"] == result.text[0]
        assert result.captures["token"] == result.text[1:-1]
        assert result.spelled.startswith(result.text[0] + "<s>")
        starts.add(TOKENS[result.tokens[0]])
    assert b"ab" in starts


def test_a_special_token_at_the_end_stays(constraint: Constraint) -> None:
    """It is no text, so there is nothing to heal."""
    model = HashModel(VOCABULARY, seed=1)
    prompt = [1, 2, 9]
    model.encode_prompt = lambda *_, **__: prompt  # type: ignore[method-assign]
    healed = generate(model, PROMPT, constraint, max_tokens=9, heal=True)
    assert healed.tokens == generate(model, PROMPT, constraint, max_tokens=9).tokens
    assert healed.skipped == 0


def test_budgets(constraint: Constraint) -> None:
    """``max_tokens`` counts the tokens besides the rewritten one; an output that fits without healing fits with it."""
    model = HashModel(VOCABULARY, seed=4)
    for budget in (1, 2, 3):
        for seed in range(12):
            result = generate(model, PROMPT, constraint, max_tokens=budget, sampler=Multinomial(), seed=seed, heal=True)
            assert len(result.tokens) <= budget + 1
            assert result.text in WORDS
            assert result.cut_byte is None or 0 <= result.cut_byte <= len(result.data)
    with pytest.raises(BudgetError, match="max_tokens=1"):
        generate(model, PROMPT, regex("bbb"), max_tokens=1, heal=True)
    empty = generate(model, PROMPT, literal(""), max_tokens=0, heal=True)
    assert (empty.text, empty.tokens) == ("", (1,))


def test_what_cannot_be_healed_is_refused(constraint: Constraint) -> None:
    """A prompt of one token, potentials, and canvases: by name."""
    model = HashModel(VOCABULARY)
    with pytest.raises(ValueError, match="heal=True: the prompt is one token, b'a'"):
        generate(model, "a", constraint, heal=True)
    with pytest.raises(ValueError, match="potentials= and heal=True"):
        generate(model, PROMPT, constraint, heal=True, potentials=[lambda text: 0.0])
    with pytest.raises(ValueError, match="canonical=True and heal=True"):
        generate(model, PROMPT, constraint, heal=True, canonical=True)
    with pytest.raises(ValueError, match="heal=True is not for model"):
        generate(HashDiffusion(VOCABULARY, mask_token=9), PROMPT, constraint, max_tokens=9, heal=True)
    by_value = generate(model, PROMPT, constraint, decoding=Autoregressive(heal=True))
    assert by_value.tokens == generate(model, PROMPT, constraint, heal=True).tokens

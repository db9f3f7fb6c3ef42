"""Draft tokens where few are allowed, against a search of the whole vocabulary."""

from __future__ import annotations

import numpy as np
import pytest
from drafter_replay import draft_for, replay
from word_vocabulary import draft_vocabulary

from structgen.decode.speculative.drafters.grammar_statistics import ForcedTokens, few_allowed
from structgen.engine import compile
from structgen.grammar.nodes import choice, literal, sequence

VOCABULARY = draft_vocabulary()
FLAGS = compile(
    sequence('{"open": ', choice("true", "false", "null"), ', "tags": ', choice('"Ada"', '"London"'), "}"), VOCABULARY
)


@pytest.mark.parametrize("seed", range(20))
def test_few_allowed_are_the_bits_of_the_mask(seed: int) -> None:
    generator = np.random.default_rng(seed)
    size = 300
    ids = sorted(generator.choice(size, size=int(generator.integers(0, 12)), replace=False).tolist())
    bits = np.zeros(320, dtype=np.uint8)
    bits[ids] = 1
    mask = np.packbits(bits, bitorder="little").view(np.int32)
    eos = generator.integers(0, size, size=3).tolist()
    wanted = [token for token in ids if token not in eos]
    assert few_allowed(mask, eos, 12) == wanted
    assert few_allowed(mask, eos, 5) == (wanted if len(wanted) <= 5 and len(set(np.array(ids) // 32)) <= 5 else [])


def test_the_longest_of_the_allowed_tokens_are_drafted() -> None:
    drafting, context, state = draft_for(ForcedTokens(), FLAGS, [99])
    prefix = VOCABULARY.tokenize('{"open": ')
    assert all(state.matcher.accept(token) for token in prefix)
    context.append(prefix)
    state.matcher.fill_mask(state.mask[None])
    allowed = [token for token in range(VOCABULARY.size) if state.matcher.validate([token])]
    spelled = [VOCABULARY.tokens[token] for token in allowed]
    longest = {
        token
        for token, piece in zip(allowed, spelled, strict=True)
        if not any(other != piece and other.startswith(piece) for other in spelled)
    }
    tree = drafting.propose(context, state, 24)
    assert {tree.tokens[node] for node in tree.children(-1)} == longest
    assert len(longest) == 3
    assert [VOCABULARY.decode(tree.prefix(leaf)) for leaf in tree.leaves()] != []


@pytest.mark.parametrize("text", ['{"open": true, "tags": "Ada"}', '{"open": null, "tags": "London"}'])
def test_all_choices_are_looked_at_in_one_pass(text: str) -> None:
    output = VOCABULARY.tokenize(text)
    without = replay(None, FLAGS, [99], output)
    found = replay(ForcedTokens(), FLAGS, [99], output)
    assert found.passes == 1 < without.passes


def test_confidences_are_counted_for_each_set_of_choices() -> None:
    drafter = ForcedTokens()
    output = VOCABULARY.tokenize('{"open": false, "tags": "London"}')
    for _ in range(20):
        last = replay(drafter, FLAGS, [99], output)
    taken = [confidence for confidence, was_taken in last.reached if was_taken]
    missed = [confidence for confidence, was_taken in last.reached if not was_taken]
    assert min(taken) > 0.75
    assert max(missed) < 0.25


def test_wide_masks_are_left_alone() -> None:
    wide = compile(choice(*[literal(bytes([value]).decode()) for value in range(97, 110)]), VOCABULARY)
    drafting, context, state = draft_for(ForcedTokens(most=12), wide, [99])
    assert len(drafting.propose(context, state, 24)) == 0
    drafting, context, state = draft_for(ForcedTokens(most=13), wide, [99])
    assert len(drafting.propose(context, state, 24)) == 13


def test_most_must_be_positive() -> None:
    with pytest.raises(ValueError, match="ForcedTokens: most"):
        ForcedTokens(most=0)

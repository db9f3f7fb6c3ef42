"""Trimmed heads: removed tokens never come, or are rare; the other logits are those of the whole head."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from structgen.engine import Vocabulary, compile
from structgen.engine.mask import allowed_ids
from structgen.frontends.json_schema import json_schema
from structgen.frontends.regex import regex
from structgen.grammar.algebra import select
from structgen.grammar.nodes import Grammar, SpecialToken, literal
from structgen.methods.drafters.vocabulary_trim import TrimmedHeads, VocabularyTrim, reachable_tokens

if TYPE_CHECKING:
    from structgen.models.llama.model import LlamaModel

GRAMMARS: dict[str, Grammar] = {
    "date": regex("[0-9]{4}-[0-9]{2}-[0-9]{2}"),
    "choice": select(["yes, of course", "no"]),
    "record": json_schema(
        {
            "type": "object",
            "properties": {"name": {"enum": ["Ada", "Zoë"]}, "ages": {"type": "array", "items": {"type": "integer"}}},
            "required": ["name"],
            "additionalProperties": False,
        }
    ),
    "text": regex(r"(?s).{1,20}"),
}


@pytest.mark.parametrize("name", GRAMMARS)
def test_other_tokens_are_never_allowed(json_vocabulary: Vocabulary, name: str) -> None:
    """This holds along random strings, and there are few more tokens than those that occurred."""
    constraint = compile(GRAMMARS[name], json_vocabulary)
    reachable = set(reachable_tokens(constraint).tolist())
    random = np.random.default_rng(0)
    mask = np.zeros((1, (json_vocabulary.size + 31) // 32), dtype=np.int32)
    seen: set[int] = set()
    for _ in range(200):
        matcher = constraint.matcher()
        for _ in range(30):
            matcher.fill_mask(mask)
            ids = allowed_ids(mask[0], json_vocabulary.size)
            seen.update(ids.tolist())
            if not matcher.accept(int(random.choice(ids))) or matcher.is_terminated:
                break
    assert seen <= reachable
    assert set(json_vocabulary.eos) <= reachable
    if name in ("date", "choice"):
        assert len(reachable) < json_vocabulary.size / 4
    assert reachable_tokens(constraint) is reachable_tokens(constraint)


def test_special_tokens_are_reached_only_by_name(llama: LlamaModel) -> None:
    vocabulary = llama.vocabulary
    start = vocabulary.token_id("<|im_start|>")
    assert start not in reachable_tokens(compile(regex(r"(?s).{1,20}"), vocabulary))
    assert start in reachable_tokens(compile(SpecialToken("<|im_start|>") + literal("a"), vocabulary))


def test_the_frequent_ones_are_kept(json_vocabulary: Vocabulary) -> None:
    constraint = compile(regex("[a-f0-9]{1,9}"), json_vocabulary)
    reachable = reachable_tokens(constraint).tolist()
    frequent = (reachable[7], reachable[5], 999_999, json_vocabulary.size - 1, reachable[9])
    trim = VocabularyTrim(most=4, frequent=frequent)
    assert trim.ids(constraint).tolist() == sorted([*(reachable[at] for at in (7, 5, 9)), reachable[0]])
    assert VocabularyTrim(most=10_000).ids(constraint).tolist() == reachable
    assert VocabularyTrim(most=2, frequent=frequent).ids(constraint).tolist() == sorted(reachable[at] for at in (7, 5))
    with pytest.raises(ValueError, match="at least 1"):
        VocabularyTrim(most=0)


@pytest.mark.parametrize("most", [3, 40, 10_000, None])
def test_logits_are_those_of_the_whole_head(llama: LlamaModel, most: int | None) -> None:
    constraint = compile(regex(r"[a-z]{1,20}"), llama.vocabulary)
    session = llama.start()
    states = session.embedded([5, 9])
    whole = session.exit_logits(states)
    heads = TrimmedHeads(session, constraint, None if most is None else VocabularyTrim(most=most))
    for ids in (np.array([4, 90]), np.arange(20, 200), np.array([200, 201, 202, 203])):
        found = heads.exits(states, ids)
        assert found.shape == whole.shape
        known = np.isfinite(found)
        np.testing.assert_allclose(found[known], whole[known], atol=1e-5)
        assert known[0, ids].any()
        if most is None or len(ids) <= most:
            assert known[:, ids].all()
        else:
            assert known[0].sum() in (min(most, len(reachable_tokens(constraint))), llama.vocabulary.size)

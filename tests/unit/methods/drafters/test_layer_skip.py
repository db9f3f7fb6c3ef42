"""Self-drafts of a model: the output does not change, and drafts are those of the network without the layers."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from structgen.decode import Context, Greedy, Multinomial, Sampler, generate
from structgen.decode.speculative.draft_tree import ROOT
from structgen.decode.speculative.drafter import Drafter, DraftState, DraftTask
from structgen.decode.speculative.fixed_tree import Chain
from structgen.decode.step.distribution import project
from structgen.engine import Vocabulary, compile
from structgen.engine.mask import allowed_ids
from structgen.errors import DraftWarning, ModelError
from structgen.frontends.json_schema import json_schema
from structgen.frontends.regex import regex
from structgen.grammar.nodes import Grammar
from structgen.methods.drafters.dynamic_exit import DynamicExit
from structgen.methods.drafters.layer_skip import Clasp, LayerSkip
from structgen.methods.drafters.vocabulary_trim import VocabularyTrim
from structgen.models.toy.hash import HashModel

if TYPE_CHECKING:
    from structgen.engine import Constraint
    from structgen.models.llama.model import LlamaModel

RECORD = json_schema(
    {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer", "maximum": 130}},
        "required": ["name", "age"],
        "additionalProperties": False,
    }
)
GRAMMARS: dict[str, Grammar] = {"record": RECORD, "words": regex("([a-z]{1,6} ){2,6}[a-z]+")}
DRAFTERS: dict[str, Drafter] = {
    "skip": LayerSkip((2, 4), draws=False),
    "all": LayerSkip((), draws=False, trim=None),
    "none": LayerSkip((0, 1, 2, 3, 4, 5), draws=False),
    "clasp": Clasp(2, every=3, draws=False, trim=VocabularyTrim(most=30)),
    "exit": DynamicExit(draws=False, every=1),
}


@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("grammar", GRAMMARS)
@pytest.mark.parametrize("sampler", [Greedy(), Multinomial(0.8, top_k=30)], ids=["greedy", "sampled"])
def test_the_output_is_that_of_the_plain_loop(llama: LlamaModel, drafter: str, grammar: str, sampler: Sampler) -> None:
    constraint = compile(GRAMMARS[grammar], llama.vocabulary)
    options: dict[str, Any] = {"max_tokens": 50, "seed": 3, "sampler": sampler}
    plain = generate(llama, "say", constraint, drafter=None, **options)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        drafted = generate(llama, "say", constraint, drafter=DRAFTERS[drafter], **options)
    assert drafted.tokens == plain.tokens
    if drafter == "all" and isinstance(sampler, Greedy):
        assert drafted.stats.forwards < plain.stats.forwards
        assert drafted.stats.accepted == drafted.stats.drafted > 0


def task(constraint: Constraint, sampler: Sampler, prompt: int) -> DraftTask:
    return DraftTask(constraint, sampler, prompt, np.random.Generator(np.random.PCG64(5)))


def state_of(constraint: Constraint, tokens: Sequence[int] = ()) -> DraftState:
    matcher = constraint.matcher()
    for token in tokens:
        assert matcher.accept(token)
    mask = np.zeros((1, (constraint.vocabulary.size + 31) // 32), dtype=np.int32)
    matcher.fill_mask(mask)
    return DraftState(matcher, mask[0], 100, 0)


@pytest.mark.parametrize("trim", [None, VocabularyTrim(), VocabularyTrim(most=12)], ids=["whole", "exact", "trimmed"])
def test_sampled_tokens_carry_their_distribution(llama: LlamaModel, trim: VocabularyTrim | None) -> None:
    """After each node it is the softmax of the remaining layers' logits, masked, shaped, and zero beyond the head."""
    sampler = Multinomial(0.7, top_k=25, top_p=0.95)
    constraint = compile(regex("[a-z0-9]{2,60}"), llama.vocabulary)
    prompt = llama.vocabulary.tokenize(b"tell me")
    with Context(llama, prompt) as context:
        context.rows_on_host(1)
        context.append([9 + 70])
        drafting = LayerSkip((1, 3), Chain(5), trim).start(context, task(constraint, sampler, len(prompt)))
        state = state_of(constraint, context.tokens[len(prompt) :])
        tree = drafting.propose(context, state, 5)
        assert len(tree) == 5
        session = context.session
        for node in range(-1, 4):
            path = tree.prefix(node) if node != ROOT else []
            draft = session.skipping([0, 2, 4, 5], capacity=9)
            row = draft.extend([context.tokens[-1], *path])
            there = state_of(constraint, [*context.tokens[len(prompt) :], *path])
            ids = allowed_ids(there.mask, llama.vocabulary.size)
            if trim is not None and len(ids) > trim.most:
                ids = np.intersect1d(ids, trim.ids(constraint))
            weights = sampler.shaped(project(row, ids, 0.0).log_p)
            expected = np.zeros(llama.vocabulary.size)
            expected[ids] = weights / weights.sum()
            sampled = tree.sampled[node]
            np.testing.assert_allclose(sampled.distribution, expected, atol=1e-5)
            assert sampled.tokens == (tree.tokens[node + 1],)
            assert sampled.distribution[tree.tokens[node + 1]] > 0
        assert (
            LayerSkip((1, 3), trim=trim)
            .start(context, task(constraint, Greedy(), 0))
            .propose(context, state, 5)
            .sampled
            == {}
        )
        drafting.close()


def test_chosen_tokens_are_the_most_probable(llama: LlamaModel) -> None:
    constraint = compile(regex("[a-z0-9]{2,60}"), llama.vocabulary)
    prompt = llama.vocabulary.tokenize(b"tell me")
    with Context(llama, prompt) as context:
        context.rows_on_host(1)
        context.append([79])
        state = state_of(constraint, [79])
        tree = LayerSkip((5,)).start(context, task(constraint, Greedy(), len(prompt))).propose(context, state, 9)
        draft = context.session.skipping(range(5), capacity=9)
        row, tokens = draft.extend([79]), [79]
        for token in tree.tokens:
            ids = allowed_ids(state_of(constraint, tokens).mask, llama.vocabulary.size)
            assert token == ids[row[ids].argmax()]
            tokens.append(token)
            row = draft.extend([token])
        assert len(tree) == 4  # the default length


def test_nothing_is_drafted_after_a_prompt_that_was_not_read(llama: LlamaModel) -> None:
    constraint = compile(regex("[a-z]{2,60}"), llama.vocabulary)
    prompt = llama.vocabulary.tokenize(b"tell me " * 9)
    with Context(llama, prompt) as context:
        for drafter in (LayerSkip((5,)), Clasp(1), DynamicExit()):
            drafting = drafter.start(context, task(constraint, Greedy(), len(prompt)))
            assert len(drafting.propose(context, state_of(constraint), 9)) == 0
        assert context.session.length == 0


def test_drafts_end_with_the_context(llama: LlamaModel) -> None:
    """Near the maximal length drafts become shorter, and the output is complete."""
    constraint = compile(regex("[a-z]{1,60}"), llama.vocabulary)
    options: dict[str, Any] = {"max_tokens": 16, "sampler": Greedy()}
    prompt = "x" * (512 - 16)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        drafted = generate(llama, prompt, constraint, drafter=LayerSkip((3,), Chain(8)), **options)
    assert drafted.tokens == generate(llama, prompt, constraint, drafter=None, **options).tokens


def test_models_that_do_not_show_their_layers_are_written_without(
    llama: LlamaModel, json_vocabulary: Vocabulary
) -> None:
    constraint = compile(regex("[a-z]{2,6}"), json_vocabulary)
    model = HashModel(json_vocabulary)
    with Context(model, [5]) as context:
        for drafter in (LayerSkip((5,)), Clasp(1), DynamicExit()):
            with pytest.raises(ModelError, match="do not expose their layers"):
                drafter.start(context, task(constraint, Greedy(), 1))
    with pytest.warns(DraftWarning, match="do not expose their layers"):
        generate(model, "x", constraint, drafter=Clasp(1), sampler=Greedy())
    constraint = compile(regex("[a-z]{2,6}"), llama.vocabulary)
    with Context(llama, [5]) as context:
        for drafter in (LayerSkip((6,)), Clasp(7), DynamicExit((7,))):
            with pytest.raises(ModelError, match="it has 6 layers"):
                drafter.start(context, task(constraint, Greedy(), 1))


def test_clasp_chooses_layers_every_so_often(llama: LlamaModel, monkeypatch: pytest.MonkeyPatch) -> None:
    from structgen.methods.drafters import layer_skip

    found: list[tuple[int, ...]] = []
    original = layer_skip.closest_layers

    def noted(*args: Any, **options: Any) -> tuple[int, ...]:
        found.append(original(*args, **options))
        return found[-1]

    monkeypatch.setattr(layer_skip, "closest_layers", noted)
    constraint = compile(regex("[a-z0-9]{2,60}"), llama.vocabulary)
    with Context(llama, llama.vocabulary.tokenize(b"tell me")) as context:
        context.rows_on_host(1)
        drafting = Clasp(2, every=3).start(context, task(constraint, Greedy(), 7))
        for count in range(7):
            context.append([79])
            drafting.propose(context, state_of(constraint, [79] * (count + 1)), 2)
            context.rows_on_host(1)
    assert len(found) == 3
    assert {len(kept) for kept in found} == {4}


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda: LayerSkip((1, 1)), "different layers"),
        (lambda: LayerSkip((-1,)), "different layers"),
        (lambda: Clasp(0), "skipped must be at least 1"),
        (lambda: Clasp(2, every=0), "every must be at least 1"),
        (lambda: DynamicExit((3, 2)), "exits must ascend"),
        (lambda: DynamicExit((0,)), "exits must ascend"),
        (lambda: DynamicExit(longest=0), "longest must be at least 1"),
        (lambda: DynamicExit(every=0), "every must be at least 1"),
        (lambda: DynamicExit(decay=0), "decay must be in"),
        (lambda: DynamicExit(head=-1), "head must not be negative"),
    ],
)
def test_settings_are_checked(make: Any, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        make()

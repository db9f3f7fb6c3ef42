"""Trained heads in the loop: the plain output, in fewer passes where they were trained."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from structgen.decode import Context, Greedy, Multinomial, Sampler, generate, start_generation
from structgen.decode.speculative.drafter import DraftTask
from structgen.decode.speculative.fixed_tree import Chain
from structgen.engine import compile
from structgen.errors import ModelError
from structgen.frontends.json_schema import json_schema
from structgen.frontends.regex import regex
from structgen.grammar.nodes import Grammar
from structgen.methods.drafters.heads.trained_heads import TrainedHeads, load_heads
from structgen.methods.drafters.vocabulary_trim import VocabularyTrim
from structgen.models.llama.model import LlamaModel

torch = pytest.importorskip("torch")

from draft_head_training import config, new_weights, spoken, trained  # noqa: E402
from layered_llama import write_llama  # noqa: E402

KINDS = ["medusa", "hydra", "eagle"]
FREE = regex(r"(?s)[\x20-\x7e]{1,60}")
RECORD = json_schema(
    {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 20}, "age": {"type": "integer", "maximum": 130}},
        "required": ["name", "age"],
        "additionalProperties": False,
    }
)

CASES: list[tuple[Grammar, Sampler, dict[str, Any]]] = [
    (FREE, Greedy(), {}),
    (FREE, Multinomial(0.7), {"shape": Chain(3)}),
    (RECORD, Greedy(), {"trim": VocabularyTrim(most=50)}),
    (RECORD, Multinomial(0.7), {}),
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LlamaModel:
    folder = write_llama(tmp_path_factory.mktemp("llama") / "two", layers=2, attention=0.05)
    return LlamaModel(folder, name="two", device=torch.device("cpu"), dtype=torch.float32)


@pytest.fixture(scope="module", params=KINDS)
def folders(request: pytest.FixtureRequest, model: LlamaModel, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Heads before and after training."""
    from safetensors.torch import save_file

    kind: str = request.param
    said = spoken(model, count=20, length=24, seed=0)
    found = []
    for weights in (new_weights(kind, model, heads=3), trained(kind, model, said, heads=3, steps=30)):
        folder = tmp_path_factory.mktemp(kind)
        (folder / "config.json").write_text(json.dumps(config(kind, 3)))
        save_file(weights, folder / "model.safetensors")
        found.append(folder)
    return found


@pytest.mark.nightly
def test_they_save_passes_and_change_nothing(model: LlamaModel, folders: list[Path]) -> None:
    """Greedy and sampled outputs, free text and records, trees and chains, whole and trimmed heads are tested."""
    saved = [0, 0]
    for number, folder in enumerate(folders):
        heads = load_heads(folder, model)
        for grammar, sampler, settings in CASES:
            constraint = compile(grammar, model.vocabulary)
            options: dict[str, Any] = {"max_tokens": 30, "seed": 2, "sampler": sampler}
            plain = generate(model, "go on", constraint, drafter=None, **options)
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                drafted = generate(model, "go on", constraint, drafter=TrainedHeads(heads, **settings), **options)
            assert drafted.tokens == plain.tokens
            saved[number] += plain.stats.forwards - drafted.stats.forwards
    assert saved[1] > saved[0]


def test_heads_see_the_states_of_what_came(
    model: LlamaModel, folders: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Heads see the tokens of the output with the states of a pass over all of them."""
    heads = load_heads(folders[1], model)
    followed: list[tuple[int, list[int], Any]] = []
    kind = type(heads.start())
    original = kind.follow

    def noted(self: Any, position: int, token_ids: Any, states: Any) -> None:
        followed.append((position, list(token_ids), states))
        original(self, position, token_ids, states)

    monkeypatch.setattr(kind, "follow", noted)
    constraint = compile(RECORD, model.vocabulary)
    with Context(model, model.vocabulary.tokenize(b"go on")) as context:
        drafter = TrainedHeads(heads)
        generation = start_generation(context, constraint, max_tokens=60, sampler=Greedy(), drafter=drafter, seed=1)
        for _ in generation:
            pass
        tokens = list(context.tokens)
    session = model.start()
    session.watched = (2,)
    session.extend(tokens)
    whole = session.states[2]
    end = followed[0][0]  # a prompt in a separate pass is not seen
    for position, ids, states in followed:
        assert position == end
        end = position + len(ids)
        assert tokens[position:end] == ids
        np.testing.assert_allclose(states, whole[position:end], atol=1e-3)
    assert end > 20


def test_what_was_taken_back_is_forgotten(model: LlamaModel, folders: list[Path]) -> None:
    heads = load_heads(folders[1], model)
    constraint = compile(FREE, model.vocabulary)
    outputs = []
    for drafter in (None, TrainedHeads(heads)):
        with Context(model, model.vocabulary.tokenize(b"go on")) as context:
            generation = start_generation(
                context, constraint, max_tokens=30, sampler=Multinomial(0.8), drafter=drafter, seed=3
            )
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                while len(generation.tokens) < 12:
                    next(generation)
                generation.rewind(5)
                for _ in generation:
                    pass
            outputs.append(generation.tokens)
    assert outputs[0] == outputs[1]


def test_sampled_tokens_have_a_distribution(model: LlamaModel, folders: list[Path]) -> None:
    constraint = compile(FREE, model.vocabulary)
    sampler = Multinomial(0.9)
    options: dict[str, Any] = {"max_tokens": 40, "seed": 2, "sampler": sampler}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        drafter = TrainedHeads(load_heads(folders[1], model), Chain(3), draws=True)
        drafted = generate(model, "go on", constraint, drafter=drafter, **options)
    assert drafted.stats.drafted > 0


def test_heads_of_another_model_are_refused(model: LlamaModel, folders: list[Path]) -> None:
    class Wider:
        name, depth, width = "wider", 3, 48

        def start(self) -> Any:
            raise AssertionError("it is not asked")

    constraint = compile(FREE, model.vocabulary)
    with Context(model, [5]) as context:
        task = DraftTask(constraint, Greedy(), 1, np.random.default_rng(0))
        with pytest.raises(ModelError, match="states of 48 numbers"):
            TrainedHeads(Wider()).start(context, task)
    assert TrainedHeads(load_heads(folders[0], model)).name == folders[0].name

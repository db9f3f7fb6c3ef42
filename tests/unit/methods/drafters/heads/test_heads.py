"""Trained heads: their logits are those of the papers, and training makes them right more often."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from structgen.engine import Vocabulary
from structgen.errors import GenerationError, ModelError
from structgen.methods.drafters.heads.trained_heads import DraftHeads, HeadSession, load_heads
from structgen.models.llama.model import LlamaModel
from structgen.models.toy.hash import HashModel

torch = pytest.importorskip("torch")

from draft_head_training import config, eagle, embedding, hydra, medusa, new_weights, spoken, trained  # noqa: E402
from layered_llama import write_llama  # noqa: E402

KINDS = ["medusa", "hydra", "eagle"]
HEADS = 3


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LlamaModel:
    folder = write_llama(tmp_path_factory.mktemp("llama") / "one", layers=2, attention=0.05)
    return LlamaModel(folder, name="one", device=torch.device("cpu"), dtype=torch.float32)


@pytest.fixture(scope="module")
def said(model: LlamaModel) -> Any:
    """The training data of heads."""
    return spoken(model, count=24, length=32, seed=0)


def save(folder: Path, kind: str, weights: dict[str, Any], *, heads: int = HEADS) -> Path:
    from safetensors.torch import save_file

    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config(kind, heads)))
    save_file(weights, folder / f"{kind}.safetensors")
    return folder


@pytest.fixture(scope="module", params=KINDS)
def heads(request: pytest.FixtureRequest, model: LlamaModel, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A kind, weights, and the heads that are loaded from them."""
    kind: str = request.param
    generator = torch.Generator().manual_seed(4)
    weights = {
        key: torch.randn(value.shape, generator=generator) / 6
        for key, value in new_weights(kind, model, heads=HEADS).items()
    }
    return kind, weights, load_heads(save(tmp_path_factory.mktemp(kind) / "heads", kind, weights), model)


def passes(model: LlamaModel, tokens: list[int]) -> tuple[np.ndarray[Any, Any], Any]:
    """The last states of tokens as a session records them, and normed."""
    session = model.start()
    session.watched = (session.layers,)
    session.extend(tokens)
    states = session.states[session.layers]
    with torch.inference_mode():
        return states, model.network.normed(torch.tensor(states)).clone()


def expected(
    kind: str, weights: dict[str, Any], model: LlamaModel, normed: Any, tokens: list[int], path: list[int]
) -> Any:
    """The logits after ``path``, by the formulas, from scratch."""
    table = embedding(model)
    if kind == "medusa":
        return medusa(weights, normed[-1], len(path) - 1)
    if kind == "hydra":
        return hydra(weights, normed[-1], table[path], len(path) - 1)
    states = normed[None]
    after = [*tokens[1:], *path]
    for count in range(len(tokens), len(after) + 1):
        out = eagle(model, weights, states, table[after[:count]][None])
        states = torch.cat((states, out[:, -1:]), dim=1)
    return states[0, -1] @ table.T


@pytest.mark.parametrize("split", [[9], [4, 3, 2], [1] * 9])
def test_logits_are_those_of_the_formulas(model: LlamaModel, heads: Any, split: list[int]) -> None:
    """This holds however states are split, for paths that share prefixes, asked in any order."""
    kind, weights, loaded = heads
    tokens = [5, 80, 3, 250, 99, 5, 17, 200, 42]
    states, normed = passes(model, tokens)
    session = loaded.start()
    assert isinstance(loaded, DraftHeads)
    assert isinstance(session, HeadSession)
    at = 0
    for size in split:
        session.follow(at, tokens[at : at + size], states[at : at + size])
        at += size
        session.logits([[7, 8]])
    for paths in ([[7], [9]], [[7, 3, 9], [7, 4, 9]], [[7, 4], [8, 5], [7, 3]]):
        rows = session.logits(paths)
        assert (rows.shape, rows.dtype) == ((len(paths), 262), np.float32)
        for row, path in zip(rows, paths, strict=True):
            wanted = expected(kind, weights, model, normed, tokens, path).numpy()
            np.testing.assert_allclose(row, wanted, rtol=1e-3, atol=1e-3)


def test_going_back_and_going_on(model: LlamaModel, heads: Any) -> None:
    """Rows followed from an earlier position replace the old ones; after a gap, all starts anew."""
    kind, weights, loaded = heads
    tokens, other = [5, 80, 3, 250, 99, 5], [5, 80, 3, 11, 12]
    session = loaded.start()
    session.follow(0, tokens, passes(model, tokens)[0])
    states, normed = passes(model, other)
    session.follow(3, other[3:], states[3:])
    np.testing.assert_allclose(
        session.logits([[7, 8]])[0], expected(kind, weights, model, normed, other, [7, 8]), rtol=1e-3, atol=1e-3
    )
    # Rotations are relative, so a layer without context is a layer at the start.
    session.follow(40, other[2:], states[2:])
    np.testing.assert_allclose(
        session.logits([[7, 8]])[0], expected(kind, weights, model, normed[2:], other[2:], [7, 8]), rtol=1e-3, atol=1e-3
    )


def test_a_trimmed_head(model: LlamaModel, heads: Any) -> None:
    _, _, loaded = heads
    states, _ = passes(model, [5, 80, 3])
    session = loaded.start()
    session.follow(0, [5, 80, 3], states)
    head = model.start().trimmed([200, 4, 77])
    np.testing.assert_allclose(
        session.logits([[7], [8]], head=head), session.logits([[7], [8]])[:, head.ids], rtol=1e-5, atol=1e-5
    )


def test_what_cannot_be_asked(heads: Any) -> None:
    kind, _, loaded = heads
    session = loaded.start()
    with pytest.raises(GenerationError, match="follow no sequence"):
        session.logits([[7]])
    for paths in ([[]], [], [[7], [7, 8]]):
        with pytest.raises(GenerationError, match="same number of tokens"):
            session.logits(paths)
    if kind != "eagle":
        with pytest.raises(GenerationError, match="there are 3 heads"):
            session.logits([[7] * 4])


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", KINDS)
def test_training_makes_them_right(model: LlamaModel, said: Any, kind: str, tmp_path: Path) -> None:
    """On unseen texts, through files, sessions and all, the share of right first draft tokens grows."""
    tokens, _ = spoken(model, count=8, length=20, seed=99)
    shares = []
    for number, weights in enumerate(
        [new_weights(kind, model, heads=2), trained(kind, model, said, heads=2, steps=40)]
    ):
        loaded = load_heads(save(tmp_path / str(number), kind, weights, heads=2), model)
        right = []
        for text in tokens.tolist():
            states, _ = passes(model, text)
            session = loaded.start()
            for end in range(4, len(text) - 2):
                session.follow(end - 1, text[end - 1 : end], states[end - 1 : end])
                for ahead in (1, 2):
                    row = session.logits([text[end : end + ahead]])[0]
                    right.append(int(row.argmax()) == text[end + ahead])
        shares.append(np.mean(right))
    before, after = shares
    assert after > before + 0.1
    assert after > 0.25


@pytest.mark.parametrize("kind", KINDS)
def test_files_that_do_not_fit_are_refused(model: LlamaModel, kind: str, tmp_path: Path) -> None:
    weights = new_weights(kind, model, heads=HEADS)
    missing = dict(weights)
    lacking = min(key for key in weights if "output" not in key and not key.endswith((".1.weight", "bias")))
    del missing[lacking]
    with pytest.raises(ModelError, match=f"lack '{lacking}'"):
        load_heads(save(tmp_path / "missing", kind, missing), model)
    wrong = {key: torch.zeros(*value.shape[:-1], value.shape[-1] + 1) for key, value in weights.items()}
    with pytest.raises(ModelError, match="has the shape"):
        load_heads(save(tmp_path / "wrong", kind, wrong), model)
    folder = save(tmp_path / "damaged", kind, weights)
    (folder / f"{kind}.safetensors").write_bytes(b"x" * 40)
    with pytest.raises(ModelError, match="cannot be read"):
        load_heads(folder, model)
    (folder / f"{kind}.safetensors").unlink()
    with pytest.raises(ModelError, match="there are no weights"):
        load_heads(folder, model)


def test_folders_that_say_nothing_are_refused(model: LlamaModel, json_vocabulary: Vocabulary, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="cannot be read"):
        load_heads(tmp_path / "nowhere", model)
    weights = {"a": torch.zeros(1)}
    folder = save(tmp_path / "unknown", "medusa", weights)
    for text, problem in (
        ("{}", "does not name the kind of heads"),
        ("[]", "is not an object"),
        ('{"medusa_num_heads": 0}', "at least one head"),
        ('{"hydra_num_heads": "2"}', "at least one head"),
    ):
        (folder / "config.json").write_text(text)
        with pytest.raises(ModelError, match=problem):
            load_heads(folder, model)
    with pytest.raises(ModelError, match="exposes its hidden states"):
        load_heads(folder, HashModel(json_vocabulary))


def test_other_kinds_of_eagle_are_refused(model: LlamaModel, tmp_path: Path) -> None:
    weights = new_weights("eagle", model, heads=1) | {"layers.0.input_layernorm.weight": torch.ones(24)}
    with pytest.raises(ModelError, match="another version of EAGLE"):
        load_heads(save(tmp_path / "second", "eagle", weights), model)

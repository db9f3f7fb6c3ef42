"""The Llama in plain torch against that of transformers, and its sessions."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from structgen.errors import GenerationError, ModelError
from structgen.models import LanguageModel, PackedModel, Session
from structgen.models.llama.model import LlamaModel, LlamaSession
from structgen.models.llama.network import LlamaShape
from structgen.models.protocol import Extension

torch = pytest.importorskip("torch")

IDS = [5, 80, 3, 261, 99, 5, 17, 200, 42, 7, 7, 130]


@pytest.fixture(scope="module")
def model(tiny_folder: Path) -> LlamaModel:
    """The tiny model in float32 on the CPU."""
    return load(tiny_folder)


def load(folder: Path) -> LlamaModel:
    """Load a folder as the embedded model is loaded."""
    return LlamaModel(folder, name="tiny", device=torch.device("cpu"), dtype=torch.float32)


@pytest.fixture(scope="module")
def reference(tiny_folder: Path) -> Any:
    """The same folder, read by transformers."""
    transformers = pytest.importorskip("transformers")
    transformers.utils.logging.disable_progress_bar()
    return transformers.AutoModelForCausalLM.from_pretrained(tiny_folder, dtype=torch.float32).eval()


def reference_logits(reference: Any, ids: list[int]) -> Any:
    """One forward pass of transformers over all tokens, without a cache."""
    with torch.inference_mode():
        return reference(input_ids=torch.tensor([ids])).logits[0].numpy()


def test_logits_equal_those_of_transformers(model: LlamaModel, reference: Any) -> None:
    """This holds at every position, also far into the context and beyond the first capacity of the cache."""
    long = (IDS * 60)[:620]
    expected = reference_logits(reference, long)
    np.testing.assert_allclose(model.start().extend_all(long), expected, atol=1e-4)


def test_it_is_a_language_model(model: LlamaModel) -> None:
    """It implements the protocols; logits are float32, as wide as the vocabulary."""
    session = model.start()
    assert isinstance(model, LanguageModel)
    assert isinstance(session, Session)
    assert isinstance(model, PackedModel)
    row = session.extend(IDS)
    assert (row.shape, row.dtype) == ((264,), np.float32)
    assert model.vocabulary.size == 264
    assert model.vocabulary.eos == (2, 0)
    assert model.max_context == 640


@pytest.mark.parametrize("parts", [[12], [1] * 12, [5, 1, 6], [1, 11], [11, 1]])
def test_splitting_into_calls_changes_nothing(model: LlamaModel, reference: Any, parts: list[int]) -> None:
    """However the tokens are split, the logits are those of one pass over all of them."""
    expected = reference_logits(reference, IDS)
    session, at = model.start(), 0
    for size in parts:
        rows = session.extend_all(IDS[at : at + size])
        np.testing.assert_allclose(rows, expected[at : at + size], atol=1e-4)
        at += size
    assert (session.length, session.forwards) == (12, len(parts))


def test_truncation_and_forks_are_exact(model: LlamaModel, reference: Any) -> None:
    """Going back and branching off leave no trace of removed tokens, also where the cache had to grow."""
    session = model.start()
    session.extend((IDS * 30)[:300])
    session.truncate(4)
    other_session = session.fork()
    session.extend([11, 12, 13, 14])
    np.testing.assert_allclose(other_session.extend(IDS[4:]), reference_logits(reference, IDS)[-1], atol=1e-4)
    expected = reference_logits(reference, [*IDS[:4], 11, 12, 13, 14, 15])
    np.testing.assert_allclose(session.extend([15]), expected[-1], atol=1e-4)
    session.truncate(0)
    np.testing.assert_allclose(session.extend([9]), reference_logits(reference, [9])[-1], atol=1e-4)
    session.close()
    assert session.length == 0
    assert (other_session.length, other_session.forwards) == (12, 1)


@pytest.mark.parametrize("seed", range(4))
def test_sequences_in_one_pass_do_not_see_each_other(model: LlamaModel, reference: Any, seed: int) -> None:
    """Packs of prompts and single tokens, with truncations and forks between, agree with transformers."""
    random = np.random.default_rng(seed)
    sessions: list[tuple[LlamaSession, list[int]]] = [(model.start(), []) for _ in range(5)]
    for _ in range(12):
        at = int(random.integers(len(sessions)))
        session, ids = sessions[at]
        length = int(random.integers(len(ids) + 1))
        session.truncate(length)
        del ids[length:]
        other_session = int(random.integers(len(sessions)))
        if other_session != at:
            sessions[other_session] = session.fork(), list(ids)
        chosen = random.permutation(len(sessions))[: random.integers(1, len(sessions) + 1)]
        extensions, expected = [], []
        for index in chosen:
            session, ids = sessions[index]
            new = [int(token) for token in random.integers(264, size=random.choice([1, 1, 1, 2, 9, 40]))]
            ids += new
            all_positions = bool(random.integers(2))
            extensions.append(Extension(session, new, all_positions))
            rows = reference_logits(reference, ids)[-len(new) :]
            expected.append(rows if all_positions else rows[-1])
        forwards = [extension.session.forwards for extension in extensions]
        for row, wanted in zip(model.extend_many(extensions), expected, strict=True):
            assert (row.shape, row.dtype) == (wanted.shape, np.float32)
            np.testing.assert_allclose(row, wanted, atol=1e-4)
        assert [extension.session.forwards for extension in extensions] == [count + 1 for count in forwards]
        assert [session.length for session, _ in sessions] == [len(ids) for _, ids in sessions]


def test_a_pass_that_is_not_possible_extends_nothing(model: LlamaModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """A refused request, a session of another model, or lack of memory leaves all sessions unchanged."""
    first, second = model.start(), model.start()
    first.extend(IDS)
    with pytest.raises(GenerationError, match="no token has the id 264"):
        model.extend_many([Extension(first, [5], False), Extension(second, [264], False)])
    stranger = LlamaModel(model.folder, name="b", device=torch.device("cpu"), dtype=torch.float32).start()
    with pytest.raises(GenerationError, match="of another model"):
        model.extend_many([Extension(first, [5], False), Extension(stranger, [5], False)])
    with monkeypatch.context() as patch:
        patch.setattr(torch.nn.functional, "silu", lambda x: (_ for _ in ()).throw(RuntimeError("can't allocate")))
        with pytest.raises(GenerationError, match="can't allocate at 12 \\+ 1, 0 \\+ 2 tokens"):
            model.extend_many([Extension(first, [5], False), Extension(second, [5, 6], False)])
    assert [(each.length, each.forwards) for each in (first, second, stranger)] == [(12, 1), (0, 0), (0, 0)]


def test_the_context_is_a_bound(model: LlamaModel) -> None:
    """The whole context can be used, one token more is refused, and the session stays usable."""
    session = model.start()
    session.extend([5] * 639)
    with pytest.raises(GenerationError, match="1 token longer than the context"):
        session.extend([5, 5])
    session.extend([5])
    assert session.length == model.max_context
    with pytest.raises(GenerationError, match="no token has the id 264"):
        model.start().extend([264])


def test_an_interrupted_pass_leaves_no_trace(
    model: LlamaModel, reference: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C in the middle of a forward pass does not damage the cache."""
    session = model.start()
    session.extend(IDS[:6])
    calls = []
    real = torch.nn.functional.silu

    def interrupt(x: Any) -> Any:
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return real(x)

    with monkeypatch.context() as patch:
        patch.setattr(torch.nn.functional, "silu", interrupt)
        with pytest.raises(KeyboardInterrupt):
            session.extend([1, 2, 3])
    assert session.length == 6
    np.testing.assert_allclose(session.extend(IDS[6:]), reference_logits(reference, IDS)[-1], atol=1e-4)


def test_memory_that_cannot_be_had_is_explained(model: LlamaModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's own error becomes a GenerationError."""

    def fail(*args: Any) -> Any:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory")

    monkeypatch.setattr(torch.nn.functional, "silu", fail)
    with pytest.raises(GenerationError, match="can't allocate memory"):
        model.start().extend([1])


def test_prompts_follow_the_template(model: LlamaModel, byte_tokenizer: Any) -> None:
    """A text becomes the user's message; without chat it stays as it is; an empty prompt becomes a first token."""
    ids = model.encode_prompt("the cat")
    expected = "<|im_start|>user\nthe cat<|im_end|>\n<|im_start|>assistant\n"
    assert byte_tokenizer.decode(ids, skip_special_tokens=False) == expected
    assert ids == byte_tokenizer.encode(expected).ids
    assert model.encode_prompt([{"role": "user", "content": "the cat"}]) == ids
    assert model.encode_prompt("the cat", chat=False) == byte_tokenizer.encode("the cat").ids
    assert model.encode_prompt("", chat=False) == [1]


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "generation_config.json"])
def test_missing_and_damaged_files_are_explained(tiny_folder: Path, tmp_path: Path, name: str) -> None:
    """For any bad file, the error names the model and the problem."""
    folder = tmp_path / "copy"
    shutil.copytree(tiny_folder, folder)
    (folder / name).write_bytes((folder / name).read_bytes()[:20])
    with pytest.raises(ModelError, match="cannot be read"):
        load(folder)
    (folder / name).unlink()
    with pytest.raises(ModelError, match="cannot be read"):
        load(folder)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("model_type", "mistral"),
        ("tie_word_embeddings", False),
        ("hidden_act", "gelu"),
        ("attention_bias", True),
        ("rope_scaling", {"rope_type": "llama3", "factor": 8.0}),
        ("rope_parameters", {"rope_type": "yarn", "rope_theta": 1e4}),
    ],
)
def test_other_architectures_are_refused(tiny_folder: Path, key: str, value: Any) -> None:
    """Unsupported architectures are refused by name, since their logits would be silently wrong."""
    config = json.loads((tiny_folder / "config.json").read_text())
    with pytest.raises(ModelError, match=r"config\.json has"):
        LlamaShape.from_config(config | {key: value}, name="m")
    del config["vocab_size"]
    with pytest.raises(ModelError, match=r"config\.json lacks 'vocab_size'"):
        LlamaShape.from_config(config, name="m")


def test_half_precision_works(tiny_folder: Path, reference: Any) -> None:
    """In bfloat16 the logits stay near those of float32, and are returned as float32."""
    model = LlamaModel(tiny_folder, name="tiny", device=torch.device("cpu"), dtype=torch.bfloat16)
    row = model.start().extend(IDS)
    assert row.dtype == np.float32
    expected = reference_logits(reference, IDS)[-1]
    assert np.abs(row - expected).max() < 0.1 * np.abs(expected).max()

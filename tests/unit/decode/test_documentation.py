"""The examples of the pages on decoding and sampling run."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from docs_run import run_page, stand_in

import structgen
import structgen.models
from structgen.cli.main import main
from structgen.engine import Vocabulary
from structgen.models import HashModel


def test_examples_run(
    json_vocabulary: Vocabulary,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Every Python block runs by itself on a model without trained weights, and gives the documented output."""
    stand_in(monkeypatch, HashModel(json_vocabulary))
    results: list[Any] = []
    names = run_page("guides/generate.md", after=lambda names: results.append(names.get("result")))
    assert set(json.loads(results[0].text)) == {"name", "age"}
    assert re.fullmatch("[A-Z][a-z]{2,15} [A-Z][a-z]{2,15}", names["name"])
    assert names["found"]["answer"] in ("yes", "no")
    assert (names["healed"].text, len(names["healed"].tokens)) == ("//a", 2)
    assert names.blocks == 8
    names = run_page("reference/decoding.md")
    assert [part.text for part in names["running"].captures()] == ["note", "Ada</english>"]
    assert names.blocks == 1
    pages = {"guides/coroutines.md": 1, "guides/processes.md": 2, "reference/memory.md": 1}
    assert {page: run_page(page).blocks for page in pages} == pages


def test_examples_of_the_own_loop_run(
    json_vocabulary: Vocabulary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The loop ends with a number of one or two digits; in the tree one draft token is not allowed."""
    save_tiny_model(tmp_path)
    monkeypatch.setattr(structgen.models, "embedded_folder", lambda: tmp_path)
    monkeypatch.setattr(structgen, "load_model", lambda: HashModel(json_vocabulary), raising=False)
    names = run_page("guides/own-loop.md")
    assert names.blocks == 5
    assert names["allowed"] == [True, True, False, True]
    assert names["bitmask"].any(axis=1).tolist() == [True, True, True, False, True]
    assert re.search(r"b'[1-9][0-9]?'\n", capsys.readouterr().out)


def test_examples_of_traces_run(
    json_vocabulary: Vocabulary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The written trace is one that the command line shows."""
    monkeypatch.setattr(structgen, "load_model", lambda: HashModel(json_vocabulary), raising=False)
    names = run_page("guides/traces.md")
    assert names.blocks == 2
    (tmp_path / "trace.json").write_text(names["written"])
    assert main(["trace", str(tmp_path / "trace.json")]) == 0
    assert re.search(r"^answer 1: .*\n  token +chosen +removed", capsys.readouterr().out, re.MULTILINE)


def test_examples_of_transformers_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The block runs on a model with random weights, and both answers are cities."""
    save_tiny_model(tmp_path)
    monkeypatch.setattr(structgen.models, "embedded_folder", lambda: tmp_path)
    names = run_page("guides/transformers.md")
    assert len(names["answers"]) == 2
    assert {*names["answers"]} <= {" Paris", " Santiago", " Lima"}


def save_tiny_model(folder: Path) -> None:
    """Write a Llama with random weights and a tokenizer of single bytes, as ``save_pretrained`` does."""
    tokenizers = pytest.importorskip("tokenizers", reason="the tokenizers library is not installed")
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    inner = tokenizers.Tokenizer(tokenizers.models.BPE({piece: i for i, piece in enumerate(["<eos>", *alphabet])}, []))
    inner.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = tokenizers.decoders.ByteLevel()
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=inner, eos_token="<eos>", pad_token="<eos>", model_input_names=["input_ids", "attention_mask"]
    ).save_pretrained(folder)
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.LlamaConfig(vocab_size=257, eos_token_id=0, pad_token_id=0, bos_token_id=None, **sizes)
    transformers.LlamaForCausalLM(config).save_pretrained(folder)


def test_examples_of_sampling_run(json_vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same holds for the guide to exact sampling."""
    monkeypatch.setattr(structgen, "load_model", lambda: HashModel(json_vocabulary, seed=3), raising=False)
    names = run_page("guides/exact-sampling.md")
    assert names.blocks == 4
    assert names["one"].log_weight < 0
    assert names["in_order"]({"start": 1, "end": 2})
    assert all(re.fullmatch("(yes|maybe), (cat|dog)s", result.text) for result in names["samples"].results)
    assert names["again"].log_evidence < 0

"""Models of llama.cpp: the same file in transformers, the vocabulary, prompts, errors."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from threading import Thread

import numpy as np
import pytest


import structgen as sg
from structgen.errors import ModelError, VocabularyError
from structgen.models import Batch, load_model
from structgen.models.llama_cpp import library as library_module
from structgen.models.llama_cpp.library import Library
from structgen.models.llama_cpp.model import LlamaCppModel


@pytest.fixture(scope="module")
def model(tiny_gguf: Path) -> LlamaCppModel:
    """The tiny model, as a user loads it."""
    loaded = load_model(tiny_gguf, runtime="llama.cpp", threads=1)
    assert isinstance(loaded, LlamaCppModel)
    return loaded


def test_logits_equal_those_of_transformers(model: LlamaCppModel, tiny_gguf: Path) -> None:
    """transformers reads the same file, in float32; llama.cpp stores keys and values in float16."""
    pytest.importorskip("accelerate")
    reference = load_model(tiny_gguf)
    ids = [int(token) for token in np.random.default_rng(2).integers(261, size=120)]
    found = model.start().extend_all(ids)
    np.testing.assert_allclose(found, reference.start().extend_all(ids), atol=0.05)


def test_vocabulary_and_prompts(model: LlamaCppModel, tiny_gguf: Path) -> None:
    """They come from the file; names of special tokens in a prompt are special tokens."""
    vocabulary = model.vocabulary
    assert vocabulary.tokens[3 + 256 + 1] == b"the"
    assert vocabulary.eos[0] == 2
    assert vocabulary == sg.Vocabulary.load(tiny_gguf, size=264, eos=vocabulary.eos)
    assert model.max_context == 640
    ids = model.encode_prompt("the 12")
    assert ids[0] == 1
    text = "<|im_start|>user\nthe 12<|im_end|>\n<|im_start|>assistant\n"
    assert ids == model.encode_prompt(text, chat=False)
    assert b"".join(vocabulary.tokens[token] for token in ids) == re.sub(r"<.*?>", "", text).encode()
    assert model.encode_prompt([{"role": "user", "content": "the 12"}]) == ids
    assert len(model.encode_prompt("é" * 500, chat=False)) == 1000


def test_every_way_to_write_an_output(model: LlamaCppModel) -> None:
    """Greedy outputs do not depend on drafts; all samplers write strings of the grammar."""
    grammar = sg.json_schema({"type": "object", "properties": {"a": {"enum": ["the", "that"]}, "n": {"type": "integer"}}})
    constraint = sg.compile(grammar, model.vocabulary)
    plain = sg.generate(model, "the", constraint, max_tokens=40, drafter=None, jump_forward=False)
    for drafter in (sg.drafters.PromptLookup(), sg.drafters.Auto()):
        assert sg.generate(model, "the", constraint, max_tokens=40, drafter=drafter).text == plain.text
    for sampler in (sg.samplers.SMC(6), sg.samplers.AWRS(), sg.samplers.Beam(3), sg.Multinomial()):
        result = sg.generate(model, "the", constraint, max_tokens=40, sampler=sampler, seed=3)
        assert json.loads(result.text).get("a", "the") in ("the", "that")


def test_several_generations_share_passes(model: LlamaCppModel) -> None:
    """A batch gives what each alone gives."""
    constraint = sg.compile(sg.json_schema({"enum": ["the", "then", "that", "a the"]}), model.vocabulary)
    prompts = ["the", "then the", "a"]
    alone = [sg.generate(model, prompt, constraint, max_tokens=20).text for prompt in prompts]
    found: dict[int, str] = {}
    with Batch(model) as batch:
        workers = [batch.worker() for _ in prompts]

        def work(at: int) -> None:
            with workers[at]:
                found[at] = sg.generate(batch, prompts[at], constraint, max_tokens=20).text

        threads = [Thread(target=work, args=(at,)) for at in range(len(prompts))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert [found[at] for at in range(len(prompts))] == alone


def test_a_file_that_is_cut_short(tiny_gguf: Path, tmp_path: Path) -> None:
    """The error names the file."""
    data = tiny_gguf.read_bytes()
    for size in (4, 30, 2000, len(data) - 100):
        cut = tmp_path / f"cut{size}.gguf"
        cut.write_bytes(data[:size])
        with pytest.raises((ModelError, VocabularyError), match=cut.name):
            load_model(cut, runtime="llama.cpp")


def test_arguments_that_llama_cpp_does_not_take(tiny_gguf: Path, tmp_path: Path) -> None:
    """Each is named."""
    for settings, match in (
        ({"dtype": "float32"}, "dtype='float32'"),
        ({"device": "cuda"}, "device='cuda'"),
        ({"threads": 0}, "at least one thread"),
        ({"runtime": "onnx"}, "no such runtime"),
    ):
        with pytest.raises(ModelError, match=match):
            load_model(tiny_gguf, **{"runtime": "llama.cpp", **settings})  # type: ignore[arg-type]
    (tmp_path / "config.json").write_text("{}")
    for source in (tmp_path, "owner/name", (object(), object())):
        with pytest.raises(ModelError, match="llama.cpp runs GGUF files"):
            load_model(source, runtime="llama.cpp")


def test_without_llama_cpp(tiny_gguf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says what to install."""
    monkeypatch.setattr(library_module, "_PACKAGES", (("no_such_package", ("*.so",)),))
    library_module.library.cache_clear()
    try:
        with pytest.raises(ModelError, match=r"looked for no-such-package; pip install 'structgen-lm\[llamacpp\]'"):
            load_model(tiny_gguf, runtime="llama.cpp")
    finally:
        monkeypatch.undo()
        library_module.library.cache_clear()


def test_a_library_without_the_functions() -> None:
    """It is named, with the first function that it lacks."""
    other = next(Path(np.__file__).parent.rglob("*.so"))
    with pytest.raises(ModelError, match="package 'numpy'.*lacks a function.*there is no llama_"):
        Library(other, "numpy")


def test_neither_torch_nor_transformers_is_imported(tiny_gguf: Path) -> None:
    """A user of llama.cpp needs neither."""
    code = (
        "import sys, structgen as sg\n"
        f"model = sg.load_model({str(tiny_gguf)!r}, runtime='llama.cpp')\n"
        "print(sg.generate(model, 'the', sg.regex('the|that'), max_tokens=5).text)\n"
        "print([name for name in ('torch', 'transformers', 'xllamacpp') if name in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    text, imported = done.stdout.splitlines()
    assert text in ("the", "that")
    assert imported == "[]"
    assert not done.stderr

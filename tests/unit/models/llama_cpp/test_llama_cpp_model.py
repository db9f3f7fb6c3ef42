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
from tiny_gguf import CONTEXT, write_gguf

import structgen as sg
from structgen.errors import ModelError, VocabularyError
from structgen.models import Batch, load_model
from structgen.models.llama_cpp import library as library_module
from structgen.models.llama_cpp.library import Library
from structgen.models.llama_cpp.model import LlamaCppModel

MUTATION = """
import random, struct, sys
from structgen.errors import StructgenError
from structgen.models import load_model

source, header, target = open(sys.argv[1], "rb").read(), int(sys.argv[2]), sys.argv[3]
ran = refused = 0
for seed in range(1000):
    chance, data = random.Random(seed), bytearray(source)
    for _ in range(chance.choice([1, 1, 1, 2, 5])):
        at, kind, small = chance.randrange(header), chance.randrange(4), chance.randrange(2**16)
        if kind == 0:
            data[at] = chance.randrange(256)
        elif kind == 1:
            data[at : at + 4] = struct.pack("<I", chance.choice([0, 1, 2**31, 2**32 - 1, small]))
        elif kind == 2:
            data[at : at + 8] = struct.pack("<Q", chance.choice([0, 1, 2**63, 2**64 - 1, small]))
        else:
            data[at] ^= 1 << chance.randrange(8)
    open(target, "wb").write(data if chance.random() < 0.95 else data[: chance.randrange(len(data))])
    try:
        model = load_model(target, runtime="llama.cpp", threads=1)
        model.start().extend([5, 6, 7])
        model.vocabulary, model.encode_prompt("the")
        ran += 1
    except StructgenError:
        refused += 1
print(ran, refused)
"""


@pytest.fixture(scope="module")
def model(tiny_gguf: Path) -> LlamaCppModel:
    """The tiny model, as a user loads it."""
    loaded = load_model(tiny_gguf, runtime="llama.cpp", threads=1)
    assert isinstance(loaded, LlamaCppModel)
    return loaded


def test_logits_equal_those_of_transformers(model: LlamaCppModel, tiny_gguf: Path) -> None:
    """transformers reads the same file, in float32; llama.cpp stores keys and values in float16."""
    pytest.importorskip("accelerate")
    reference = load_model(tiny_gguf, runtime="torch")
    ids = [int(token) for token in np.random.default_rng(2).integers(261, size=120)]
    found = model.start().extend_all(ids)
    np.testing.assert_allclose(found, reference.start().extend_all(ids), atol=0.05)


def test_vocabulary_and_prompts(model: LlamaCppModel, tiny_gguf: Path) -> None:
    """They come from the file; names of control tokens are control tokens in the template alone."""
    vocabulary = model.vocabulary
    assert vocabulary.tokens[3 + 256 + 1] == b"the"
    assert vocabulary.eos[0] == 2
    assert vocabulary == sg.Vocabulary.load(tiny_gguf, size=264, eos=vocabulary.eos)
    assert model.max_context == CONTEXT
    ids = model.encode_prompt("the 12")
    assert ids[0] == 1
    text = "<|im_start|>user\nthe 12<|im_end|>\n<|im_start|>assistant\n"
    assert ids == model._tokenize(text, begins=False, reads_special=True)
    assert not set(vocabulary.special) & set(model.encode_prompt(text, chat=False))
    assert b"".join(vocabulary.tokens[token] for token in ids) == re.sub(r"<.*?>", "", text).encode()
    assert model.encode_prompt([{"role": "user", "content": "the 12"}]) == ids
    assert len(model.encode_prompt("é" * 500, chat=False)) == 1000


def test_added_tokens_that_are_not_special(tmp_path: Path) -> None:
    """llama.cpp finds them in all texts; a tag of calls is text in prompts, and a word stays a token."""
    from tokenizers import pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *alphabet, "th", "the", "<tool_call>", "<word>", "[PAD2]"]
    write_gguf(tmp_path / "m.gguf", tokens=tokens, token_type=[3] * 3 + [1] * 258 + [4, 4, 5])
    model = load_model(tmp_path / "m.gguf", runtime="llama.cpp", threads=1)
    text = "a<tool_call>b<word>"
    assert {261, 262} <= set(model._tokenize(text, begins=False, reads_special=False))
    for ids in (model.encode_prompt(text), model.encode_prompt(text, chat=False)):
        assert 261 not in ids
        assert 262 in ids
        assert text.encode() in b"".join(model.vocabulary.tokens[token] for token in ids)


def test_every_way_to_write_an_output(model: LlamaCppModel) -> None:
    """Greedy outputs do not depend on drafts; all samplers write strings of the grammar."""
    grammar = sg.json_schema(
        {"type": "object", "properties": {"a": {"enum": ["the", "that"]}, "n": {"type": "integer"}}}
    )
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


@pytest.mark.parametrize(
    ("entry", "value", "match"),
    [
        ("block_count", 0, r"llama\.block_count.*expected 1 to 512; found 0"),
        ("block_count", 600, r"llama\.block_count.*found 600"),
        ("context_length", 0, r"llama\.context_length"),
        ("tokens", ["a"] * 264, r"tokenizer\.ggml\.tokens.*expected tokens that differ; found 264 entries"),
        ("tokens", [f"a\0{index}" for index in range(264)], r"tokenizer\.ggml\.tokens.*found 264 entries"),
        ("token_type", [1] * 7, r"tokenizer\.ggml\.token_type.*expected 264 entries; found 7 entries"),
    ],
)
def test_headers_on_which_llama_cpp_ends_the_process(tmp_path: Path, entry: str, value: object, match: str) -> None:
    """They are refused before it reads them."""
    pytest.importorskip("xllamacpp")
    path = tmp_path / "changed.gguf"
    write_gguf(path, **{entry: value})
    with pytest.raises(ModelError, match=match):
        load_model(path, runtime="llama.cpp")


@pytest.mark.nightly
def test_mutated_headers(tiny_gguf: Path, tmp_path: Path) -> None:
    """None of 1,000 ends the process: each gives a model that runs, or an error of ours."""
    gguf = pytest.importorskip("gguf")
    (tmp_path / "mutate.py").write_text(MUTATION)
    header = gguf.GGUFReader(str(tiny_gguf)).data_offset
    done = subprocess.run(
        [sys.executable, str(tmp_path / "mutate.py"), str(tiny_gguf), str(header), str(tmp_path / "m.gguf")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    ran, refused = map(int, done.stdout.split())
    assert ran + refused == 1000
    assert min(ran, refused) > 50


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
        with pytest.raises(ModelError, match=r"llama\.cpp runs GGUF files"):
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
    with pytest.raises(ModelError, match=r"package 'numpy'.*lacks a function.*there is no llama_"):
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

"""Converting a GGUF file: a tiny Llama in llama.cpp's format is converted back unchanged."""

from __future__ import annotations

import errno
import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from structgen.errors import ModelError
from structgen.models.llama.eight_bits import write_eight_bits
from structgen.models.llama.embedded import convert_gguf
from structgen.models.protocol import silent

gguf = pytest.importorskip("gguf")

# Based on llama.cpp's conversion script, from Hugging Face's names to its own.
NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def gguf_name(name: str) -> str:
    """Return llama.cpp's name of a weight."""
    stem = name.removesuffix(".weight")
    if stem in NAMES:
        return f"{NAMES[stem]}.weight"
    _, _, layer, kind = stem.split(".", 3)
    return f"blk.{layer}.{NAMES[kind]}.weight"


def interleaved(weight: Any, heads: int) -> Any:
    """Reorder the rows of a head from halves to pairs, row by row, by the definition."""
    size = weight.shape[0] // heads
    order = [head * size + row // 2 + (row % 2) * (size // 2) for head in range(heads) for row in range(size)]
    return weight[order]


def write_gguf(path: Path, weights: dict[str, Any], *, pre: str = "smollm", extra: str | None = None) -> None:
    """Write a tiny Llama with a byte-level tokenizer that has "  " as a token."""
    from tokenizers import pre_tokenizers

    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(640)
    writer.add_embedding_length(24)
    writer.add_feed_forward_length(40)
    writer.add_block_count(3)
    writer.add_head_count(3)
    writer.add_head_count_kv(1)
    writer.add_rope_dimension_count(8)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(264)
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    tokens = [*special, *sorted(pre_tokenizers.ByteLevel.alphabet()), "ĠĠ", "12"]
    tokens += [f"<unused{i}>" for i in range(264 - len(tokens))]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types([3] * 3 + [1] * 258 + [3] * 3)
    writer.add_token_merges(["Ġ Ġ", "1 2"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)
    writer.add_chat_template("{{ messages[0]['content'] }} ü")
    for name, tensor in weights.items():
        values = tensor.numpy()
        if "q_proj" in name or "k_proj" in name:
            values = interleaved(values, 3 if "q_proj" in name else 1)
        writer.add_tensor(gguf_name(name), np.ascontiguousarray(values))
    if extra is not None:
        writer.add_tensor(extra, np.zeros((4, 4), dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture
def converted(tmp_path: Path, tiny_weights: dict[str, Any]) -> Path:
    """The converted folder."""
    write_gguf(tmp_path / "tiny.gguf", tiny_weights)
    folder = tmp_path / "out"
    folder.mkdir()
    convert_gguf(tmp_path / "tiny.gguf", folder, silent)
    return folder


def test_weights_come_out_as_they_were(converted: Path, tiny_weights: dict[str, Any]) -> None:
    """Names, shapes, values and the order of rows are those of Hugging Face."""
    from safetensors.numpy import load_file

    found = load_file(converted / "model.safetensors")
    assert set(found) == set(tiny_weights)
    for name, tensor in tiny_weights.items():
        np.testing.assert_array_equal(found[name], tensor.numpy(), err_msg=name)


def test_the_configuration_is_complete(converted: Path, tiny_folder: Path) -> None:
    """config.json has the values of the file; both end tokens are named; the template is text."""
    config = json.loads((converted / "config.json").read_text())
    expected = json.loads((tiny_folder / "config.json").read_text())
    assert {key: config[key] for key in expected} == expected
    assert json.loads((converted / "generation_config.json").read_text())["eos_token_id"] == [2, 0]
    assert (converted / "chat_template.jinja").read_text(encoding="utf-8") == "{{ messages[0]['content'] }} ü"
    modes = {(converted / name).stat().st_mode for name in ("config.json", "model.safetensors")}
    assert len(modes) == 1


def test_digits_stand_alone(converted: Path) -> None:
    """Digits are split off first, so "12" never merges and two spaces before a digit do."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(converted / "tokenizer.json"))
    assert tokenizer.encode("x  12").tokens == ["x", "ĠĠ", "1", "2"]
    text = "Grüße\n\t 100% 日本 😀 ½²\u0000"
    assert tokenizer.decode(tokenizer.encode(text).ids) == text
    assert tokenizer.encode("<|im_end|>a<|endoftext|>").ids == [2, tokenizer.token_to_id("a"), 0]
    assert tokenizer.decode([2], skip_special_tokens=True) == ""


def test_progress_counts_the_tensors(tmp_path: Path, tiny_weights: dict[str, Any]) -> None:
    """There is one report per tensor, in order."""
    write_gguf(tmp_path / "tiny.gguf", tiny_weights)
    seen: list[tuple[str, int, int | None]] = []
    convert_gguf(tmp_path / "tiny.gguf", tmp_path, lambda *report: seen.append(report))
    counts = [(done, total) for stage, done, total in seen if stage == "convert the weights"]
    assert counts == [(index, len(tiny_weights)) for index in range(len(tiny_weights))]


def test_other_files_are_refused(tmp_path: Path, tiny_weights: dict[str, Any]) -> None:
    """Another tokenizer, another tensor, a truncated file, or no GGUF file each give one error."""
    out = tmp_path / "out"
    out.mkdir()
    write_gguf(tmp_path / "pre.gguf", tiny_weights, pre="llama-bpe")
    with pytest.raises(ModelError, match="not the embedded model"):
        convert_gguf(tmp_path / "pre.gguf", out, silent)
    write_gguf(tmp_path / "extra.gguf", tiny_weights, extra="blk.0.attn_q.bias")
    with pytest.raises(ModelError, match=r"'blk\.0\.attn_q\.bias' is none of a plain Llama"):
        convert_gguf(tmp_path / "extra.gguf", out, silent)
    whole = (tmp_path / "pre.gguf").read_bytes()
    for name, data in {"cut.gguf": whole[:500], "text.gguf": b"hello, world" * 9}.items():
        (tmp_path / name).write_bytes(data)
        with pytest.raises(ModelError, match="no GGUF file, or it is incomplete"):
            convert_gguf(tmp_path / name, out, silent)


def test_a_full_disk_is_a_system_error(
    tmp_path: Path, tiny_weights: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """safetensors reports it as text only; the number is recovered, so that the caller can explain it."""
    import safetensors
    import safetensors.numpy

    def fail(*args: Any, **kwargs: Any) -> None:
        raise safetensors.SafetensorError("I/O error: No space left on device (os error 28)")

    write_gguf(tmp_path / "tiny.gguf", tiny_weights)
    monkeypatch.setattr(safetensors.numpy, "save_file", fail)
    with pytest.raises(OSError, match="No space left") as caught:
        convert_gguf(tmp_path / "tiny.gguf", tmp_path, silent)
    assert caught.value.errno == errno.ENOSPC


def test_four_bits_become_eight(tmp_path: Path) -> None:
    """As the library of the format does it: blocks to the last bit, other tensors and all metadata unchanged."""
    quants = gguf.quants
    kind = gguf.GGMLQuantizationType
    random = np.random.default_rng(7)
    values = random.normal(size=(40, 96)).astype(np.float32) * np.exp(random.normal(size=(40, 1))).astype(np.float32)
    values[3, :32] = 0
    tensors = {"a.weight": (values, kind.Q4_1), "b.weight": (values[:5], kind.Q8_0), "c": (values[0, :7], kind.F32)}
    writer = gguf.GGUFWriter(tmp_path / "old.gguf", "llama")
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q4_1)
    writer.add_token_list(["a", "é", "general.file_type"])
    for name, (array, wanted) in tensors.items():
        data = array if wanted is kind.F32 else quants.quantize(array, wanted)
        writer.add_tensor(name, data, raw_dtype=None if wanted is kind.F32 else wanted)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()

    write_eight_bits(tmp_path / "old.gguf", tmp_path / "new.gguf", silent)
    old, new = gguf.GGUFReader(tmp_path / "old.gguf"), gguf.GGUFReader(tmp_path / "new.gguf")
    assert [tensor.tensor_type for tensor in new.tensors] == [kind.Q8_0, kind.Q8_0, kind.F32]
    for before, after in zip(old.tensors, new.tensors, strict=True):
        assert (before.name, before.shape.tolist()) == (after.name, after.shape.tolist())
        exact = quants.dequantize(before.data, before.tensor_type)
        np.testing.assert_array_equal(after.data, quants.quantize(exact, after.tensor_type))
    assert list(old.fields) == list(new.fields)
    differing = [
        name
        for name, field in old.fields.items()
        if any(not np.array_equal(*both) for both in zip(field.parts, new.fields[name].parts, strict=True))
    ]
    assert differing == ["general.file_type"]
    assert new.fields["general.file_type"].contents() == gguf.LlamaFileType.MOSTLY_Q8_0


@pytest.mark.parametrize("cut", [10, 60, 300])
def test_a_file_that_is_cut_short_is_not_converted(tmp_path: Path, tiny_gguf: Path, cut: int) -> None:
    """Its descriptions or its data are not there."""
    (tmp_path / "cut.gguf").write_bytes(tiny_gguf.read_bytes()[:cut])
    with pytest.raises((ValueError, struct.error)):
        write_eight_bits(tmp_path / "cut.gguf", tmp_path / "new.gguf", silent)

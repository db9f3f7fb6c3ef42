"""A GGUF file whose 4-bit weights are stored in 8 bits, which llama.cpp multiplies faster."""

from __future__ import annotations

import math
import mmap
import struct
from typing import TYPE_CHECKING, Final

import numpy as np

from structgen.engine.tokenizers.gguf import MAGIC, GGUFTensor, read_gguf_layout

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from structgen.models.protocol import Progress

__all__ = ["write_eight_bits"]

_WEIGHTS: Final = 32  # in a block of either type
_Q4_1: Final = 3
_Q8_0: Final = 8
_BLOCK_BYTES: Final = {0: 4, _Q4_1: 20, _Q8_0: 34}
"""Bytes of a block by type; type 0 is float32, one in a block."""
_FILE_TYPE: Final = struct.pack("<Q", 17) + b"general.file_type" + struct.pack("<I", 4)
_MOSTLY_Q8_0: Final = 7
_CHUNK_BLOCKS: Final = 1 << 16


def write_eight_bits(source: Path, target: Path, progress: Progress) -> None:
    """Write a GGUF file with the tensors of ``source``: those of type Q4_1 as Q8_0, the others as they are.

    A block of Q4_1 is 32 weights of 4 bits with a scale and a minimum; one of Q8_0 has 8 bits and a scale.  The
    metadata stay, except the type of the file.  Source of the formats: ``ggml-common.h`` and ``ggml-quants.c``.

    Raises:
        ValueError: the file is damaged, or has tensors of other types than float32, Q4_1 and Q8_0.
        OSError: the disk is full.
    """
    with source.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        layout = read_gguf_layout(data)
        written, offset = [], 0
        for tensor in layout.tensors:
            kind = _Q8_0 if tensor.kind == _Q4_1 else tensor.kind
            written.append(tensor._replace(kind=kind, offset=offset))
            offset += -(-_size(written[-1]) // layout.alignment) * layout.alignment
        with target.open("wb") as new:
            new.write(MAGIC + struct.pack("<IQQ", 3, len(written), layout.entries) + _retyped(layout.metadata))
            for tensor in written:
                new.write(_description(tensor))
            new.write(b"\0" * (-new.tell() % layout.alignment))
            for done, (old, tensor) in enumerate(zip(layout.tensors, written, strict=True)):
                progress("convert the weights", done, len(written))
                start = layout.data + old.offset
                if old.kind == tensor.kind:
                    new.write(data[start : start + _size(old)])
                else:
                    for at in range(start, start + _size(old), _CHUNK_BLOCKS * _BLOCK_BYTES[_Q4_1]):
                        stop = min(at + _CHUNK_BLOCKS * _BLOCK_BYTES[_Q4_1], start + _size(old))
                        new.write(_to_q8_0(np.frombuffer(data[at:stop], dtype=np.uint8)).tobytes())
                new.write(b"\0" * (-new.tell() % layout.alignment))


def _size(tensor: GGUFTensor) -> int:
    if tensor.kind not in _BLOCK_BYTES:
        raise ValueError(f"tensor {tensor.name!r} has the type {tensor.kind}")
    per_block = 1 if tensor.kind == 0 else _WEIGHTS
    return math.prod(tensor.shape) // per_block * _BLOCK_BYTES[tensor.kind]


def _description(tensor: GGUFTensor) -> bytes:
    name = struct.pack("<Q", len(tensor.name)) + tensor.name
    shape = struct.pack(f"<I{len(tensor.shape)}Q", len(tensor.shape), *tensor.shape)
    return name + shape + struct.pack("<IQ", tensor.kind, tensor.offset)


def _retyped(metadata: bytes) -> bytes:
    """Return the metadata with the type of the file that llama.cpp calls "mostly Q8_0"."""
    at = metadata.find(_FILE_TYPE) + len(_FILE_TYPE)
    if at < len(_FILE_TYPE):
        return metadata
    return metadata[:at] + struct.pack("<I", _MOSTLY_Q8_0) + metadata[at + 4 :]


def _to_q8_0(data: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return blocks of Q8_0 for blocks of Q4_1."""
    blocks = data.reshape(-1, _BLOCK_BYTES[_Q4_1])
    scale, least = (blocks[:, at : at + 2].copy().view(np.float16).astype(np.float32) for at in (0, 2))
    low, high = blocks[:, 4:] & 15, blocks[:, 4:] >> 4
    weights = np.hstack([low, high]) * scale + least
    step = np.abs(weights).max(axis=1, keepdims=True) / np.float32(127)
    inverse = np.divide(1, step, out=np.zeros_like(step), where=step > 0)
    digits = weights * inverse
    digits = np.trunc(digits + np.copysign(np.float32(0.5), digits)).astype(np.int8)
    return np.hstack([step.astype(np.float16).view(np.uint8), digits.view(np.uint8)])

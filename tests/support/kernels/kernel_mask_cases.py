"""Masks for tests of kernels: random tables, codes of rows, and the tokens that they allow."""

from __future__ import annotations

import random
from dataclasses import dataclass

import torch
from structgen_kernels.masks.mask_rows import NOTHING, SPARSE_WORDS, MaskRows, MaskTable, without

__all__ = ["WIDTHS", "MaskCase", "bitmask_of", "mask_case"]

WIDTHS = (1, 31, 32, 33, 4097, 131_073)
"""Sizes of vocabularies that are not multiples of block sizes."""


@dataclass(frozen=True)
class MaskCase:
    """Masks and the tokens that they allow.

    Attributes:
        masks: the masks for kernels; bits from ``size`` on are random in all tables.
        allowed: bool ``[rows, size]``.
    """

    masks: MaskRows
    allowed: torch.Tensor


def bitmask_of(allowed: torch.Tensor, seed: int = 0) -> torch.Tensor:
    """Pack bool ``[rows, size]`` into int32 ``[rows, words]``, with random bits from ``size`` on."""
    rows, size = allowed.shape
    words = (size + 31) // 32
    generator = torch.Generator().manual_seed(seed)
    bits = torch.randint(0, 2, (rows, words * 32), generator=generator, dtype=torch.int64)
    bits[:, :size] = allowed
    packed = (bits.view(rows, words, 32) << torch.arange(32)).sum(-1)
    return torch.where(packed >= 2**31, packed - 2**32, packed).to(torch.int32)


def mask_case(rows: int, size: int, seed: int, *, codes: int = 2, possible: bool = False) -> MaskCase:
    """Make random masks: unions and differences of many kinds of dense and sparse rows.

    Args:
        rows: the number of rows of logits.
        size: the number of tokens of the vocabulary.
        seed: the seed of the random numbers.
        codes: the number of codes per row.
        possible: whether every row must allow some token.
    """
    chance = random.Random(seed)
    generator = torch.Generator().manual_seed(seed)
    dense = [
        torch.rand(size, generator=generator) < share for share in (0.0, 1.0, 0.5, min(1.0, 3 / size), 1 - 3 / size)
    ]
    dense.append(torch.zeros(size, dtype=torch.bool))
    dense[-1][chance.randrange(size)] = True
    sparse = [_sparse(size, chance, allows=allows, count=count) for allows in (False, True) for count in (0, 3, 200)]
    # A slice of a wider tensor, so that rows are strided.
    words = torch.nn.functional.pad(bitmask_of(torch.stack(dense), seed), (0, 3), value=-1)[:, :-2]
    table = MaskTable(size, words, torch.tensor([slot for slot, _ in sparse], dtype=torch.int32))
    meaning = [*dense, *(allowed for _, allowed in sparse)]
    made: list[list[int]] = []
    allowed: list[torch.Tensor] = []
    while len(made) < rows:
        row = [_code(chance, len(meaning)) for _ in range(codes)]
        kept = torch.zeros(size, dtype=torch.bool)
        for code in row:
            if code >= 0:
                kept |= meaning[code]
        if not any(code >= 0 for code in row):
            kept[:] = True
        for code in row:
            if code < NOTHING:
                kept &= ~meaning[-2 - code]
        if possible and not kept.any():
            continue
        made.append(row)
        allowed.append(kept)
    return MaskCase(MaskRows(table, torch.tensor(made, dtype=torch.int32)), torch.stack(allowed))


def _code(chance: random.Random, rows: int) -> int:
    kind = chance.random()
    row = chance.randrange(rows)
    return NOTHING if kind < 0.2 else without(row) if kind < 0.4 else row


def _sparse(size: int, chance: random.Random, *, allows: bool, count: int) -> tuple[list[int], torch.Tensor]:
    """Make a sparse row that allows all or no tokens except in some words, as a table row and as booleans."""
    words = (size + 31) // 32
    default = -1 if allows else 0
    numbers = sorted(chance.sample(range(words), min(count, words, SPARSE_WORDS)))
    values = [chance.randrange(-(2**31), 2**31) for _ in numbers]
    allowed = torch.full((words * 32,), allows)
    for number, value in zip(numbers, values, strict=True):
        for bit in range(32):
            allowed[number * 32 + bit] = bool(value >> bit & 1)
    padding = [2**31 - 1] * (SPARSE_WORDS - len(numbers))
    slot = [default, len(numbers), *numbers, *padding, *values, *(0 for _ in padding)]
    return slot, allowed[:size]

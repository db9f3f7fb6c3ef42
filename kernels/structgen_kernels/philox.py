"""Counter-based random numbers: Philox 4x32-10, the reference implementation of ``tl.philox``.

Each row of logits has a *seed* and an *offset*, both int64.  Its draws depend on these alone, not on the rest of the
batch or on the order of programs.  To draw several times from one seed, increase the offset.  Kernels take numbers for
different purposes from different *streams*.

Exponential variates are computed from 64 random bits, so that small ones also have the full relative precision of
float32.  Uniform variates of 24 bits, which are common, would give small exponential variates in steps of 6e-8.  These
decide between tokens of small probability, so a token of probability 1e-7 would be sampled at a wrong rate.

Source: J. Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3" (SC 2011).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self, final

import torch

from structgen_kernels.arguments import check_tensor

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["STREAMS", "Noise", "exponential", "philox", "random_words"]

STREAMS: Final = {
    "chunk": 0,
    "token": 1,
    "order": 2,
    "accept": 3,
    "edge": 4,
    "class_token": 5,
    "residual_block": 6,
    "residual_token": 7,
}
"""The second word of the counter, by the purpose of the numbers."""

_WORD: Final = 0xFFFFFFFF
_MULTIPLIERS: Final = (0xD2511F53, 0xCD9E8D57)
_KEY_STEPS: Final = (0x9E3779B9, 0xBB67AE85)
_ROUNDS: Final = 10
_SERIES_BELOW: Final = 0.0625


@final
@dataclass(frozen=True, slots=True)
class Noise:
    """The seed and the offset of each row.

    Attributes:
        seeds: int64 ``[rows]``.
        offsets: int64 ``[rows]``.

    Raises:
        KernelArgumentError: a tensor has another dtype or shape, or the devices differ.
    """

    seeds: Tensor
    offsets: Tensor

    def __post_init__(self) -> None:
        check_tensor("noise", "seeds", self.seeds, dtype=torch.int64, dims=1)
        check_tensor(
            "noise", "offsets", self.offsets, dtype=torch.int64, shape=self.seeds.shape, device=self.seeds.device
        )

    @classmethod
    def of(cls, seed: int, rows: int, device: torch.device | str = "cpu", *, offset: int = 0) -> Self:
        """Make noise for ``rows`` rows from one seed: row ``i`` has the seed ``seed + i``."""
        seeds = torch.arange(rows, dtype=torch.int64, device=device) + seed
        return cls(seeds, torch.full_like(seeds, offset))

    def __len__(self) -> int:
        return len(self.seeds)


def philox(counter: tuple[Tensor, Tensor, Tensor, Tensor], key: tuple[Tensor, Tensor]) -> tuple[Tensor, ...]:
    """Return four words for each counter.  Words are from 0 to ``2**32 - 1``, in int64."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        a_high, a_low = _product(c0, _MULTIPLIERS[0])
        b_high, b_low = _product(c2, _MULTIPLIERS[1])
        c0, c1, c2, c3 = b_high ^ c1 ^ k0, b_low, a_high ^ c3 ^ k1, a_low
        k0, k1 = (k0 + _KEY_STEPS[0]) & _WORD, (k1 + _KEY_STEPS[1]) & _WORD
    return c0, c1, c2, c3


def random_words(seeds: Tensor, offsets: Tensor, stream: int, index: Tensor) -> tuple[Tensor, ...]:
    """Return four random words for each index, the same as in kernels.

    Args:
        seeds: int64, broadcastable to the shape of ``index``.
        offsets: likewise.
        stream: see ``STREAMS``.
        index: integers from 0 to ``2**32 - 1``.
    """
    index = index.to(torch.int64)
    c1 = torch.full_like(index, stream)
    c2, c3 = (offsets & _WORD).expand_as(index), ((offsets >> 32) & _WORD).expand_as(index)
    key = (seeds & _WORD).expand_as(index), ((seeds >> 32) & _WORD).expand_as(index)
    return philox((index, c1, c2, c3), key)


def exponential(high: Tensor, low: Tensor) -> Tensor:
    """Return standard exponential variates, float32, from 64 random bits each: between ``2**-66`` and 45.1."""
    uniform = high.to(torch.float32) * 2.0**-32 + (low.to(torch.float32) + 0.5) * 2.0**-64
    # -log(1 - u): by its series for small u, where 1 - u would lose digits; else 1 - u from the complement of the bits.
    series = uniform * (1 + uniform * (1 / 2 + uniform * (1 / 3 + uniform * (1 / 4 + uniform * (1 / 5 + uniform / 6)))))
    rest = (_WORD - high).to(torch.float32) * 2.0**-32 + ((_WORD - low).to(torch.float32) + 0.5) * 2.0**-64
    return torch.where(uniform < _SERIES_BELOW, series, -torch.log(rest))


def _product(word: Tensor, multiplier: int) -> tuple[Tensor, Tensor]:
    """The high and the low word of a product, which as a whole may exceed int64."""
    low, high = (word & 0xFFFF) * multiplier, (word >> 16) * multiplier
    total = low + ((high & 0xFFFF) << 16)
    return (high >> 16) + (total >> 32), total & _WORD

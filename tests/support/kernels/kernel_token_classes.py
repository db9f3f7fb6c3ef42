"""Token classes for tests of kernels: partitions, logits, and scores of classes in double precision."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

__all__ = ["LOWEST", "PARTITIONS", "Distribution", "fast_scans", "hard_logits", "partition"]

LOWEST = -80.0
PARTITIONS = ("one", "own", "even", "skew")


def partition(kind: str, size: int, seed: int = 0) -> tuple[NDArray[np.int32], int]:
    """Return the class of each token and the number of classes: one class, one per token, even sizes, or one large.

    With the last two kinds there are classes without tokens, the first and the last among them.
    """
    rng = np.random.default_rng(seed)
    if kind == "one":
        return np.zeros(size, dtype=np.int32), 1
    if kind == "own":
        return rng.permutation(size).astype(np.int32), size
    classes = min(size, 40)
    of = rng.integers(0, classes, size)
    if kind == "skew":
        of[rng.random(size) < 0.9] = classes // 2
        of[: min(size, 5)] = np.arange(min(size, 5))
    return (of + 1).astype(np.int32), classes + 2


def hard_logits(size: int, dtype: torch.dtype, seed: int = 0, *, tail: int = 0) -> torch.Tensor:
    """Make seven rows: flat, usual, steep, ties, half minus infinity, all but one minus infinity, and one outlier.

    ``tail`` more columns are NaN and infinities.
    """
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(7, size, generator=generator) * torch.tensor([0.1, 3, 40, 3, 8, 1, 1])[:, None]
    logits[3] = logits[3].round()
    logits[4, torch.rand(size, generator=generator) < 0.5] = -torch.inf
    logits[4, size // 2] = 1.0
    logits[5] = -torch.inf
    logits[5, size // 3] = 2.0
    logits[6, size // 2] = 70.0
    beyond = torch.tensor([torch.nan, torch.inf, -torch.inf])[torch.arange(tail) % 3].expand(7, tail)
    return torch.cat([logits, beyond], dim=1).to(dtype)


@dataclass(frozen=True)
class Distribution:
    """The distributions of rows, in double precision.

    Attributes:
        scaled: float64 ``[rows, size]``, from ``LOWEST`` to 0.
        class_of: the class of each token.
        classes: the number of classes.
    """

    scaled: NDArray[np.float64]
    class_of: NDArray[np.int32]
    classes: int

    @classmethod
    def of(
        cls, logits: torch.Tensor, class_of: NDArray[np.int32], classes: int, scale: float | NDArray[np.float32] = 1.0
    ) -> Distribution:
        """Make the distributions of logits; columns from the size of the vocabulary on are ignored."""
        values = logits[:, : len(class_of)].to(torch.float64).numpy()
        factor = np.broadcast_to(np.asarray(scale, dtype=np.float32).astype(np.float64), len(values))[:, None]
        return cls(np.maximum((values - values.max(1, keepdims=True)) * factor, LOWEST), class_of, classes)

    def log_norms(self) -> NDArray[np.float64]:
        """Return the log of the sum of exponentials, float64 ``[rows]``."""
        return np.log(np.exp(self.scaled).sum(1))

    def by_class(self) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
        """Return log maxima, log sums and sums of ``p log p``, float64 ``[rows, classes]`` each."""
        rows = len(self.scaled)
        maxima = np.full((rows, self.classes), -np.inf)
        sums = np.full((rows, self.classes), -np.inf)
        mean_logs = np.zeros((rows, self.classes))
        log_p = self.scaled - self.log_norms()[:, None]
        for of in np.unique(self.class_of).tolist():
            held = log_p[:, self.class_of == of]
            maxima[:, of] = held.max(1)
            sums[:, of] = np.log(np.exp(held - maxima[:, [of]]).sum(1)) + maxima[:, of]
            mean_logs[:, of] = (np.exp(held) * held).sum(1)
        return maxima, sums, mean_logs

    def shares(self, row: int, of: int) -> tuple[NDArray[np.intp], NDArray[np.float64]]:
        """Return the tokens of a class by id, and the probability of each within the class."""
        members = np.flatnonzero(self.class_of == of)
        powers = np.exp(self.scaled[row, members])
        return members, powers / powers.sum()


def fast_scans(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the interpreter scan a vector in a logarithmic number of steps, not element by element."""
    from triton.runtime import interpreter

    def scanned(self, inputs):  # type: ignore[no-untyped-def]
        data = [each.handle.data for each in inputs]
        index = np.arange(len(data[0]))
        step = 1
        while step < len(index):
            left = [self.to_tensor(np.roll(each, step), given.dtype) for each, given in zip(data, inputs, strict=True)]
            right = [self.to_tensor(each, given.dtype) for each, given in zip(data, inputs, strict=True)]
            joined = self.combine_fn.fn(*left, *right)
            data = [np.where(index >= step, new.handle.data, old) for new, old in zip(joined, data, strict=True)]
            step *= 2
        return [self.to_tensor(each, given.dtype) for each, given in zip(data, inputs, strict=True)]

    monkeypatch.setattr(interpreter.ScanOps, "generic_scan", scanned)

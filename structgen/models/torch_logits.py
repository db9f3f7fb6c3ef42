"""Logits that stay on the model's device and are queried there: ``ResidentLogits`` in torch.

A row of 131,072 logits in float32 is 512 KiB.  A query sends the number of a mask, eight sampling parameters, and 16
KiB once for each new mask; its answer is five numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from itertools import pairwise
from threading import Lock
from typing import TYPE_CHECKING, Final, final

import numpy as np
import torch
from structgen_kernels.choices.choice import CHOSEN, NON_FINITE
from structgen_kernels.choices.masked_argmax import masked_argmax
from structgen_kernels.choices.masked_sample import Shape, Uniforms, masked_sample
from structgen_kernels.masks.mask_pool import MaskPool

from structgen.engine.mask import mask_width
from structgen.models.protocol import LogitsQuery, SampleAnswer, SampleQuery, ScoreQuery

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from structgen.models.protocol import Logits

__all__ = ["Residence", "TorchLogits", "is_resident_on"]

_DENSE_ROWS: Final = 1024
_SPARSE_ROWS: Final = 4096
"""Masks that a device keeps: for 131,072 tokens 16 MiB of dense masks and 4 MiB of sparse masks."""

_KERNEL_TYPES: Final = (torch.float32, torch.bfloat16, torch.float16)


def is_resident_on(device: torch.device, *, requested: bool | None) -> bool:
    """Return whether logits stay on a device: as requested, by default on CUDA only."""
    return device.type == "cuda" if requested is None else requested


@final
class Residence:
    """Answers queries to the logits of one model on its device; thread-safe.

    Attributes:
        launches: how often a device was queried, with one wait each.
        copied_rows: how many logits rows were copied to the host.
    """

    def __init__(self) -> None:
        self.launches = 0
        self.copied_rows = 0
        self._pool: MaskPool | None = None
        self._lock = Lock()

    def answers(self, logits: torch.Tensor, queries: Sequence[LogitsQuery]) -> list[SampleAnswer]:
        """Answer all queries together.

        Args:
            logits: ``[n, size]``; the row of a query is an index into these.
            queries: at least one query.
        """
        rows = _picked(logits, [each.row for each in queries])
        masks = list(dict.fromkeys(each.mask for each in queries if isinstance(each, SampleQuery)))
        pool = self._pool_of(logits)
        words = np.frombuffer(b"".join(masks), dtype=np.int32).reshape(len(masks), mask_width(logits.shape[1]))
        codes = dict(zip(masks, pool.hold_many(masks, words), strict=True))
        with ExitStack() as stack:
            for mask in masks:
                stack.callback(pool.release, mask)
            if logits.device.type == "cuda":  # kernels run on torch's current device
                stack.enter_context(torch.cuda.device(logits.device))
            allowed = pool.masks([[codes[each.mask]] if isinstance(each, SampleQuery) else [] for each in queries])
            numbers = _sent(torch.tensor([*map(_numbers, queries)], dtype=torch.float64), logits.device).T
            if any(isinstance(each, SampleQuery) and each.shape.temperature > 0 for each in queries):
                temperature, top_k, top_p, min_p, uniform, _ = numbers.contiguous()
                choice = masked_sample(rows, allowed, Shape(temperature, top_k.int(), top_p, min_p), Uniforms(uniform))
            else:
                choice = masked_argmax(rows, allowed)
            scores = rows.gather(1, numbers[5, :, None].long())[:, 0].float() - choice.log_mass
            # Token ids are exact in float32 up to 16,777,216.
            columns = [choice.tokens.float(), choice.log_p, choice.log_z, choice.status.float(), scores]
            answers = torch.stack(columns, dim=1).tolist()
        with self._lock:
            self.launches += 1
        return [_answer(query, *values) for query, values in zip(queries, answers, strict=True)]

    def _pool_of(self, logits: torch.Tensor) -> MaskPool:
        with self._lock:
            pool = self._pool
            if pool is None or pool.device != logits.device:
                size = logits.shape[1]
                pool = self._pool = MaskPool(size, rows=_DENSE_ROWS, sparse_rows=_SPARSE_ROWS, device=logits.device)
            return pool

    def host(self, logits: torch.Tensor) -> Logits:
        """Copy a row ``[size]`` to the host."""
        with self._lock:
            self.copied_rows += 1
        row: Logits = logits.float().cpu().numpy()
        return row


@final
class TorchLogits:
    """See ``structgen.models.protocol.tree.ResidentLogits``.

    Args:
        residence: answers the queries.
        logits: ``[n, size]``, of any floating type; nobody else writes to them.
        order: for each row the index into ``logits``, -1 for a row that was not run; by default the identity.
    """

    def __init__(self, residence: Residence, logits: torch.Tensor, order: Sequence[int] | None = None) -> None:
        self._residence = residence
        self._logits = logits if logits.dtype in _KERNEL_TYPES else logits.float()
        self._order = range(len(logits)) if order is None else tuple(order)
        self._answers: dict[LogitsQuery, SampleAnswer] = {}
        self._hosted: dict[int, Logits] = {}

    @property
    def shape(self) -> tuple[int, int]:
        """See ``ResidentLogits.shape``."""
        return len(self._order), self._logits.shape[1]

    def was_run(self, row: int, /) -> bool:
        """See ``ResidentLogits.was_run``."""
        return self._order[row] >= 0

    def host(self, row: int, /) -> Logits:
        """See ``ResidentLogits.host``."""
        index = self._order[row]
        if index not in self._hosted:
            self._hosted[index] = (
                np.full(self._logits.shape[1], np.nan, dtype=np.float32)
                if index < 0
                else self._residence.host(self._logits[index])
            )
        return self._hosted[index]

    def prefetch(self, queries: Sequence[LogitsQuery], /) -> None:
        """See ``ResidentLogits.prefetch``."""
        new = [each for each in dict.fromkeys(queries) if each not in self._answers]
        if new:
            placed = [each._replace(row=self._order[each.row]) for each in new]
            self._answers.update(zip(new, self._residence.answers(self._logits, placed), strict=True))

    def ask(self, query: LogitsQuery, /) -> SampleAnswer:
        """See ``ResidentLogits.ask``."""
        self.prefetch([query])
        return self._answers[query]

    def top(self, rows: Sequence[int], count: int, /) -> tuple[NDArray[np.int64], Logits]:
        """See ``ResidentLogits.top``."""
        picked = _picked(self._logits, [self._order[row] for row in rows])
        values, ids = picked.float().topk(min(count, picked.shape[1]), dim=1)
        top: NDArray[np.float64] = torch.stack([ids.double(), values.double()]).cpu().numpy()
        return top[0].astype(np.int64), top[1].astype(np.float32)

    def arranged(self, rows: Sequence[int], /) -> TorchLogits:
        """See ``ResidentLogits.arranged``."""
        return TorchLogits(self._residence, self._logits, [-1 if row < 0 else self._order[row] for row in rows])

    def __repr__(self) -> str:
        return f"<TorchLogits {list(self.shape)}, {self._logits.dtype} on {self._logits.device}>"


def _picked(logits: torch.Tensor, rows: Sequence[int]) -> torch.Tensor:
    """Return rows in the given order: a view if they are evenly spaced, else a copy."""
    step = rows[1] - rows[0] if len(rows) > 1 else 1
    if step > 0 and all(after - before == step for before, after in pairwise(rows)):
        return logits[rows[0] : rows[-1] + 1 : step]
    return logits[_sent(torch.tensor(rows), logits.device)]


def _numbers(query: LogitsQuery) -> tuple[float, ...]:
    """Return a query as numbers: temperature, top-k, top-p, min-p, the uniform number, the token."""
    if isinstance(query, ScoreQuery):
        return 1.0, 0, 1.0, 0.0, 0.0, query.token
    temperature, top_k, top_p, min_p = query.shape
    return (
        temperature,
        0 if top_k is None else top_k,
        1.0 if top_p is None else top_p,
        0.0 if min_p is None else min_p,
        query.uniform,
        0,
    )


def _sent(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Return a tensor on a device, without waiting for the device."""
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)


def _answer(query: LogitsQuery, token: float, log_p: float, log_z: float, status: float, score: float) -> SampleAnswer:
    is_finite = status != NON_FINITE
    if isinstance(query, ScoreQuery):
        return SampleAnswer(query.token, 0.0, score, is_finite)
    return (
        SampleAnswer(int(token), log_p, log_z, is_finite)
        if status == CHOSEN
        else SampleAnswer(-1, log_p, log_z, is_finite)
    )

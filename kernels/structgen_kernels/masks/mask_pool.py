"""A cache of mask rows on a device: each row is uploaded once and is then referred to by its number.

A step uploads only *codes* (see ``structgen_kernels.masks.mask_rows``), one list per row of logits: a sequence, a
position of a draft or a slot of a canvas.  An empty list allows every token, for requests without a constraint.
Several numbers mean the union of their rows; ``without(number)`` excludes the tokens of a row.

A row is sparse if at most ``SPARSE_WORDS`` of its words differ from 0 or from all ones and the sparse form is smaller:
``8 * SPARSE_WORDS + 8`` = 1,024 bytes instead of 4 bytes per 32 tokens.  Other rows are dense.

Host-to-device traffic: the row and 4 bytes for its slot, once; in each step ``4 * n`` bytes per row of logits, where
``n`` is the number of codes.
"""

from __future__ import annotations

import reprlib
import threading
from collections.abc import Hashable, Iterable, Sequence
from itertools import chain
from typing import TYPE_CHECKING, final

import numpy as np
import torch

from structgen_kernels.arguments import check_tensor
from structgen_kernels.errors import KernelArgumentError
from structgen_kernels.masks.mask_rows import MAX_CODES, NOTHING, SPARSE_WORDS, MaskRows, MaskTable
from structgen_kernels.masks.mask_slots import HeldRow, MaskSlots
from structgen_kernels.masks.sparse_masks import SPARSE_WIDTH, chosen_forms, default_words, pack_sparse

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

__all__ = ["MaskPool", "MaskPoolFull"]


class MaskPoolFull(RuntimeError):
    """No slot for a row: all other rows are referenced.

    Args:
        problem: the capacity, and how many slots are missing.
        remedy: what to do.
    """

    def __init__(self, problem: str, remedy: str) -> None:
        super().__init__(f"mask pool: {problem}; {remedy}")
        self.problem = problem
        self.remedy = remedy


@final
class MaskPool:
    """Mask rows by key, with reference counts, and the table that kernels read.

    A row stays in the pool while it has references.  A row without references stays until its slot is needed; the least
    recently used row is evicted first.  If all rows have references, the pool doubles, up to ``max_bytes``.

    The number of a row does not change while the row is in the pool.  Growth allocates new tensors, copies the rows on
    the device and replaces ``table``.  Masks made before growth keep the old table, and so does a CUDA graph captured
    before growth.  For captured steps, use a pool with ``grows=False``: it never replaces its table, and the numbers of
    its rows are row numbers of the table.

    All methods are thread-safe.  Their device work is queued on the current stream of the calling thread.  Queue work
    that reads a row before releasing the row, on the same stream or on one that the stream waits for.  No method
    synchronizes with the device, and none may be called inside a captured step.

    Attributes:
        size: the number of tokens of the vocabulary.
        device: the device of the rows.
        uploaded_bytes: bytes uploaded for rows so far.
        step_bytes: bytes uploaded for codes so far.

    Args:
        size: the number of tokens of the vocabulary.
        rows: the initial number of dense rows, of ``4 * ceil(size / 32)`` bytes each.
        sparse_rows: the initial number of sparse rows, of 1,024 bytes each.
        device: the device of the rows.
        grows: whether the pool grows when all rows have references.
        max_bytes: the limit for growth, in bytes of all rows; the ratio of the two forms stays the initial one.  The
            initial size may exceed the limit.  During growth both the old and the new rows are allocated.

    Raises:
        KernelArgumentError: ``size`` or ``rows`` is below 1, or ``sparse_rows`` is negative.
    """

    def __init__(
        self,
        size: int,
        *,
        rows: int,
        sparse_rows: int,
        device: torch.device | str,
        grows: bool = True,
        max_bytes: int = 256 << 20,
    ) -> None:
        if size < 1 or rows < 1 or sparse_rows < 0:
            raise KernelArgumentError(
                "mask pool", "size, rows and sparse_rows", f"must be at least 1, 1 and 0: {size}, {rows}, {sparse_rows}"
            )
        self.size = size
        self.uploaded_bytes = 0
        self.step_bytes = 0
        self._words = (size + 31) // 32
        self._max_bytes = max_bytes
        self._grows = grows
        share = max_bytes // (4 * (rows * self._words + sparse_rows * SPARSE_WIDTH)) if grows else 1
        self._dense = MaskSlots(rows, self._words, torch.device(device), first=0, most=rows * max(share, 1))
        self._sparse = MaskSlots(
            sparse_rows,
            SPARSE_WIDTH,
            torch.device(device),
            first=self._dense.most,  # numbers of sparse rows stay when the dense rows grow
            most=sparse_rows * max(share, 1),
        )
        self.device = self._dense.rows.device
        self._table = MaskTable(size, self._dense.rows, self._sparse.rows)
        self._rows: dict[Hashable, HeldRow] = {}
        self._lock = threading.RLock()

    @property
    def table(self) -> MaskTable:
        """The table for kernels.  Codes from ``masks`` and ``codes_into`` are valid for the table at that time."""
        return self._table

    @property
    def device_bytes(self) -> int:
        """Bytes allocated on the device for rows, used or free."""
        return 4 * (self._dense.rows.numel() + self._sparse.rows.numel())

    def __len__(self) -> int:
        """The number of rows in the pool, with or without references."""
        return len(self._rows)

    def row(self, key: Hashable) -> int | None:
        """Return the number of a row, or None if the row is not in the pool.  This adds no reference."""
        row = self._rows.get(key)
        return None if row is None else row.number

    def hold(self, key: Hashable, words: NDArray[np.int32] | Tensor) -> int:
        """As ``hold_many``, for one row ``[ceil(size / 32)]``."""
        return self.hold_many((key,), words[None])[0]

    def hold_many(self, keys: Sequence[Hashable], rows: NDArray[np.int32] | Tensor) -> list[int]:
        """Add a reference to each row, and upload the rows that are not in the pool in one copy.

        Complexity: O(1) for a row in the pool, whose content is not read; O(words) for a new row.

        Args:
            keys: keys that identify the content as long as the row is in the pool.  The content itself always does:
                with ``rows[i].tobytes()`` equal masks of different constraints share a row.
            rows: int32 ``[len(keys), ceil(size / 32)]`` on the host (a tensor elsewhere is copied to the host); bits
                from ``size`` on are ignored.

        Returns:
            The numbers of the rows.

        Raises:
            KernelArgumentError: the rows have another dtype or shape.
            MaskPoolFull: there are too few slots; no reference is added.
        """
        if tuple(rows.shape) != (len(keys), self._words):
            wanted = f"[{len(keys)}, {self._words}]"
            raise KernelArgumentError("mask pool", "rows", f"must have the shape {wanted}, not {list(rows.shape)}")
        if str(rows.dtype).removeprefix("torch.") != "int32":
            raise KernelArgumentError("mask pool", "rows", f"must be int32, not {rows.dtype}")
        with self._lock:
            found = [self._rows.get(key) for key in keys]  # once: hashing a long key is slow
            known = [row for row in found if row is not None]
            self._refer(known)
            if len(known) == len(keys):
                return [row.number for row in known]
            missing = [index for index, row in enumerate(found) if row is None]
            first = {keys[index]: index for index in reversed(missing)}
            try:
                words = rows.cpu().numpy() if isinstance(rows, torch.Tensor) else rows
                self._upload(list(first), words[list(first.values())])
            except BaseException:
                for row in known:
                    self._slots(row.number).release(row)
                raise
            self._refer(self._rows[keys[index]] for index in missing)
            return [self._rows[key].number for key in keys]

    def release(self, key: Hashable) -> None:
        """Drop a reference to a row.

        Raises:
            KernelArgumentError: the row has no references.
        """
        with self._lock:
            row = self._rows.get(key)
            if row is None or row.references == 0:
                raise KernelArgumentError("mask pool", "key", f"{reprlib.repr(key)} is not held")
            self._slots(row.number).release(row)

    def masks(self, lists: Sequence[Sequence[int]]) -> MaskRows:
        """Return masks for rows of logits; their codes are uploaded in one copy.

        Args:
            lists: for each row of logits the numbers of rows, and ``without`` of numbers, at most ``MAX_CODES``.
                Lists are padded to the longest length, rounded up to a power of two.

        Raises:
            KernelArgumentError: there are too many codes, or a code refers to a row that is not in the pool.
        """
        longest = max(map(len, lists), default=1)
        with self._lock:
            staging = self._codes(lists, len(lists), 1 << max(longest - 1, 0).bit_length())
            return MaskRows(self._table, staging.to(self.device, non_blocking=True))

    def codes_into(self, buffer: Tensor, lists: Sequence[Sequence[int]]) -> None:
        """Write codes to the buffer of a captured step; rows of logits beyond ``lists`` allow every token.

        Args:
            buffer: int32 ``[rows, n]`` on the device, contiguous, with at least as many rows as ``lists``.
            lists: as for ``masks``, with at most ``n`` codes each.

        Raises:
            KernelArgumentError: the buffer has the wrong dtype, shape or device; or as for ``masks``.
        """
        check_tensor("mask pool", "buffer", buffer, dtype=torch.int32, dims=2, device=self.device)
        if not buffer.is_contiguous() or len(buffer) < len(lists):
            raise KernelArgumentError(
                "mask pool", "buffer", f"must be contiguous, with {len(lists)} rows or more; found {list(buffer.shape)}"
            )
        with self._lock:
            buffer.copy_(self._codes(lists, *buffer.shape), non_blocking=True)

    def _codes(self, lists: Sequence[Sequence[int]], rows: int, width: int) -> Tensor:
        lengths = np.fromiter(map(len, lists), dtype=np.intp, count=len(lists))
        if lengths.max(initial=0) > min(width, MAX_CODES):
            raise KernelArgumentError(
                "mask pool", "lists", f"must have at most {min(width, MAX_CODES)} codes, not {lengths.max()}"
            )
        given = np.fromiter(chain.from_iterable(lists), dtype=np.int64, count=int(lengths.sum()))
        numbers = np.where(given < NOTHING, -2 - given, given)
        is_named = given != NOTHING
        if not (~is_named | self._dense.has(numbers) | self._sparse.has(numbers)).all():
            raise KernelArgumentError("mask pool", "lists", "refer to a row that is not in the pool, or was evicted")
        # In the table, sparse rows follow the dense rows allocated so far.
        shift = np.where(numbers >= self._sparse.first, self._sparse.first - len(self._dense.rows), 0)
        staging = self._staging(rows, width)
        codes = staging.numpy()
        codes.fill(NOTHING)
        codes[: len(lists)][np.arange(width) < lengths[:, None]] = given - np.where(given < NOTHING, -shift, shift)
        self.step_bytes += 4 * codes.size
        return staging

    def _staging(self, *shape: int) -> Tensor:
        # The pinned-memory allocator reuses a block only after the copies from the block are complete.
        return torch.empty(shape, dtype=torch.int32, pin_memory=self.device.type == "cuda")

    def _slots(self, number: int) -> MaskSlots:
        return self._dense if number < self._sparse.first else self._sparse

    def _refer(self, rows: Iterable[HeldRow]) -> None:
        for row in rows:
            self._slots(row.number).hold(row)

    def _upload(self, keys: list[Hashable], words: NDArray[np.int32]) -> None:
        default, differs = default_words(words, self.size)
        fits = np.count_nonzero(differs, axis=1) <= SPARSE_WORDS
        sparse, dense = chosen_forms(
            fits, words.shape[1], sparse_free=self._sparse.addable, dense_free=self._dense.addable
        )
        if len(dense) > self._dense.addable:
            raise self._full(len(dense) - self._dense.addable)
        forms = (
            (self._sparse, sparse, pack_sparse(words[sparse], default[sparse], differs[sparse])),
            (self._dense, dense, words[dense]),
        )
        for slots, which, _ in forms:
            self._grow(slots, len(which))
        places = [slots.free[len(slots.free) - len(which) :] for slots, which, _ in forms]
        pieces = [
            piece.reshape(-1)
            for (_, _, content), taken in zip(forms, places, strict=True)
            for piece in (np.array(taken, dtype=np.int32), content)
        ]
        staging = self._staging(sum(map(len, pieces)))
        np.concatenate(pieces, out=staging.numpy())
        sent = torch.split(staging.to(self.device, non_blocking=True), list(map(len, pieces)))
        for (slots, which, _), taken, at, content in zip(forms, places, sent[::2], sent[1::2], strict=True):
            if not taken:
                continue
            slots.rows.index_copy_(0, at.to(torch.int64), content.view(-1, slots.width))
            slots.use(taken)
            for index, place in zip(which.tolist(), taken, strict=True):
                self._rows[keys[index]] = HeldRow(keys[index], slots.first + place)
        self.uploaded_bytes += 4 * len(staging)

    def _grow(self, slots: MaskSlots, count: int) -> None:
        while len(slots.free) < count and slots.idle:
            del self._rows[slots.evict().key]
        if len(slots.free) < count:
            slots.grow(count - len(slots.free))
            self._table = MaskTable(self.size, self._dense.rows, self._sparse.rows)

    def _full(self, too_many: int) -> MaskPoolFull:
        held = sum(row.references > 0 for row in self._rows.values())
        slots = f"{self._dense.most} dense and {self._sparse.most} sparse slots"
        more = f"raise max_bytes={self._max_bytes:,}" if self._grows else "create the pool with more rows"
        problem = f"{too_many} rows do not fit beside {held} rows with references, in {slots}"
        return MaskPoolFull(problem, f"release rows, or {more}")

"""Masks of constraints that stay on a device: each is uploaded once, and named by its number from then on.

A step of a batch sends *codes* only (see ``structgen_kernels.masks.mask_rows``): one list for each row of logits, be
that a sequence, a position of a draft or a slot of a canvas.  An empty list allows everything, for requests without a
constraint; several numbers are united, and ``without(number)`` is subtracted.

A row is kept sparse where that takes fewer bytes, ``8 * SPARSE_WORDS + 8`` = 1,024 instead of 4 for each 32 tokens,
and no more than ``SPARSE_WORDS`` words differ from 0 or from all ones; else it is dense, whatever its content.

Bytes from the host: those of a row and 4 for its place, once; ``4 * n`` for each row of logits in a step, ``n`` being
its codes.
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
    """A row for which there is no room, since all others are held.

    Args:
        problem: what is taken, and by how much it is too little.
        remedy: what to do.
    """

    def __init__(self, problem: str, remedy: str) -> None:
        super().__init__(f"mask pool: {problem}; {remedy}")
        self.problem = problem
        self.remedy = remedy


@final
class MaskPool:
    """Rows of masks by key, counted references to them, and the table that kernels read.

    A row stays while it is held.  A row that nobody holds stays until its place is needed; then the one that was
    held last the longest ago goes first.  Where all are held, the pool grows by doubling, up to ``max_bytes``.

    Numbers of rows do not change while their rows are there.  Growing makes new tensors and copies the old ones on the
    device, so ``table`` is another one afterwards: masks made before stay what they were, and a CUDA graph that was
    captured before reads the old table.  Captured steps therefore take a pool that does not grow; its table is always
    the same, and its numbers are those of the table.

    Every method may be called by any thread.  What a method does on the device is queued on the current stream of its
    thread: work that reads a row must be queued before the row is released, on the same stream or one that it waits
    for.  Nothing waits for the device, and nothing here belongs into a captured step.

    Attributes:
        size: tokens of the vocabulary.
        device: where the rows are.
        uploaded_bytes: sent for rows so far.
        step_bytes: sent for codes so far.

    Args:
        size: tokens of the vocabulary.
        rows: dense rows at first, ``4 * ceil(size / 32)`` bytes each.
        sparse_rows: sparse rows at first, 1,024 bytes each.
        device: where the rows are to be.
        grows: whether more room is made where all rows are held.
        max_bytes: of all rows together, the two forms in the proportion in which they begin; what a pool begins with
            may be more.  While it grows, old rows and new ones are there.

    Raises:
        KernelArgumentError: there is no token, or no dense row.
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
            first=self._dense.most,  # so that numbers stay when the dense rows grow
            most=sparse_rows * max(share, 1),
        )
        self.device = self._dense.rows.device
        self._table = MaskTable(size, self._dense.rows, self._sparse.rows)
        self._rows: dict[Hashable, HeldRow] = {}
        self._lock = threading.RLock()

    @property
    def table(self) -> MaskTable:
        """The rows, for kernels.  Codes from ``masks`` and ``codes_into`` belong to it as it is at the time."""
        return self._table

    @property
    def device_bytes(self) -> int:
        """What the rows take on the device, used or not."""
        return 4 * (self._dense.rows.numel() + self._sparse.rows.numel())

    def __len__(self) -> int:
        """Rows that are there, held or not."""
        return len(self._rows)

    def row(self, key: Hashable) -> int | None:
        """The number of a row; None where it is not there.  It is not held by that."""
        row = self._rows.get(key)
        return None if row is None else row.number

    def hold(self, key: Hashable, words: NDArray[np.int32] | Tensor) -> int:
        """As ``hold_many``, of one row ``[ceil(size / 32)]``."""
        return self.hold_many((key,), words[None])[0]

    def hold_many(self, keys: Sequence[Hashable], rows: NDArray[np.int32] | Tensor) -> list[int]:
        """Count a reference to each of these rows, and upload those that are not there, all in one copy.

        O(1) for a row that is there, whose content is not looked at; O(words) for one that is not.

        Args:
            keys: what identifies the content, for as long as the row is there.  The content itself always does, as
                ``rows[i].tobytes()``: equal masks of different constraints then share a row.
            rows: int32 ``[len(keys), ceil(size / 32)]``, in memory of the host (or copied there); bits from ``size`` on
                do not count.

        Returns:
            Their numbers.

        Raises:
            KernelArgumentError: the rows have another type or shape.
            MaskPoolFull: there is no room for all of them; none is held then.
        """
        if tuple(rows.shape) != (len(keys), self._words):
            wanted = f"[{len(keys)}, {self._words}]"
            raise KernelArgumentError("mask pool", "rows", f"must have the shape {wanted}, not {list(rows.shape)}")
        if str(rows.dtype).removeprefix("torch.") != "int32":
            raise KernelArgumentError("mask pool", "rows", f"must be int32, not {rows.dtype}")
        with self._lock:
            found = [self._rows.get(key) for key in keys]  # once: it takes long where keys are contents
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
        """Take back a reference.

        Raises:
            KernelArgumentError: there is none.
        """
        with self._lock:
            row = self._rows.get(key)
            if row is None or row.references == 0:
                raise KernelArgumentError("mask pool", "key", f"{reprlib.repr(key)} is not held")
            self._slots(row.number).release(row)

    def masks(self, lists: Sequence[Sequence[int]]) -> MaskRows:
        """Return masks for rows of logits, whose codes are sent in one copy.

        Args:
            lists: for each row of logits numbers of rows and ``without`` of such numbers, at most ``MAX_CODES``.
                All are filled up to the longest, rounded up to a power of two.

        Raises:
            KernelArgumentError: there are too many codes, or one names a row that is not there.
        """
        longest = max(map(len, lists), default=1)
        with self._lock:
            staging = self._codes(lists, len(lists), 1 << max(longest - 1, 0).bit_length())
            return MaskRows(self._table, staging.to(self.device, non_blocking=True))

    def codes_into(self, buffer: Tensor, lists: Sequence[Sequence[int]]) -> None:
        """Write codes where a captured step reads them; rows of logits beyond ``lists`` are allowed everything.

        Args:
            buffer: int32 ``[rows, n]`` on the device, contiguous, with at least as many rows as ``lists``.
            lists: as for ``masks``, of at most ``n`` codes.

        Raises:
            KernelArgumentError: the buffer is of the wrong type, shape or device, or as for ``masks``.
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
            raise KernelArgumentError("mask pool", "lists", "name a row that is not there, or has been evicted")
        # The table numbers sparse rows from after the dense rows that there are.
        shift = np.where(numbers >= self._sparse.first, self._sparse.first - len(self._dense.rows), 0)
        staging = self._staging(rows, width)
        codes = staging.numpy()
        codes.fill(NOTHING)
        codes[: len(lists)][np.arange(width) < lengths[:, None]] = given - np.where(given < NOTHING, -shift, shift)
        self.step_bytes += 4 * codes.size
        return staging

    def _staging(self, *shape: int) -> Tensor:
        # The allocator of pinned memory gives a block out again when the copies from it are done.
        return torch.empty(shape, dtype=torch.int32, pin_memory=self.device.type == "cuda")

    def _slots(self, number: int) -> MaskSlots:
        return self._dense if number < self._sparse.first else self._sparse

    def _refer(self, rows: Iterable[HeldRow]) -> None:
        for row in rows:
            self._slots(row.number).hold(row)

    def _upload(self, keys: list[Hashable], words: NDArray[np.int32]) -> None:
        default, differs = default_words(words, self.size)
        fits = np.count_nonzero(differs, axis=1) <= SPARSE_WORDS
        sparse, dense = chosen_forms(fits, words.shape[1], sparse_room=self._sparse.room, dense_room=self._dense.room)
        if len(dense) > self._dense.room:
            raise self._full(len(dense) - self._dense.room)
        forms = (
            (self._sparse, sparse, pack_sparse(words[sparse], default[sparse], differs[sparse])),
            (self._dense, dense, words[dense]),
        )
        for slots, which, _ in forms:
            self._make_room(slots, len(which))
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

    def _make_room(self, slots: MaskSlots, count: int) -> None:
        while len(slots.free) < count and slots.idle:
            del self._rows[slots.evict().key]
        if len(slots.free) < count:
            slots.grow(count - len(slots.free))
            self._table = MaskTable(self.size, self._dense.rows, self._sparse.rows)

    def _full(self, too_many: int) -> MaskPoolFull:
        held = sum(row.references > 0 for row in self._rows.values())
        places = f"{self._dense.most} dense and {self._sparse.most} sparse ones"
        more = f"raise max_bytes={self._max_bytes:,}" if self._grows else "make it with more"
        problem = f"there is no room for {too_many} more rows beside {held} that are held, among {places}"
        return MaskPoolFull(problem, f"release rows, or {more}")

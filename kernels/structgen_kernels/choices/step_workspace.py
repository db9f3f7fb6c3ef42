"""All buffers of a step that chooses tokens, so that a captured step does not allocate."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, final

import torch

from structgen_kernels.arguments import check_logits
from structgen_kernels.choices.choice import Choice
from structgen_kernels.errors import KernelArgumentError

if TYPE_CHECKING:
    from torch import Tensor

    from structgen_kernels.masks.mask_rows import MaskRows

__all__ = ["CANDIDATES", "CHUNK", "SPLIT", "SPLIT_FIELDS", "Workspace", "workspace_for"]

CHUNK: Final = 128
"""Columns per chunk of the summary, four mask words: one maximum and one sum each."""

SPLIT: Final = 4096
"""The most columns per program, 32 per thread."""

SPLIT_FIELDS: Final = 5
"""Numbers per split: see ``structgen_kernels.choices.chunk_summary``."""


CANDIDATES: Final = 2048
"""The most tokens that ``masked_sample`` gathers before truncation: 8 per thread."""


@final
class Workspace:
    """Buffers for up to ``rows`` rows of up to ``columns`` tokens.  Only one step at a time may use them.

    Bytes: ``12 * ceil(columns / 128) + 20 * ceil(columns / 4096) + 16404`` per row, 28.6 KiB for 131,072 tokens.

    Args:
        rows: the number of rows of logits.
        columns: the number of tokens of the vocabulary.
        device: the device of the buffers.

    Attributes:
        maxima: float32 ``[rows, chunks]``, the largest allowed logit of each chunk.
        sums: float32 ``[rows, chunks]``, sums of exponentials relative to the maximum.
        splits: float32 ``[rows, 5, splits]``: see ``structgen_kernels.choices.chunk_summary``.
        survivors: int32 ``[rows, chunks]``, the chunks to read again.
        candidate_columns: int32 ``[rows, 2048]``, the candidate tokens, ascending, if they fit.
        candidate_logits: float32 ``[rows, 2048]``, the logits of the candidates.
    """

    def __init__(self, rows: int, columns: int, device: torch.device | str) -> None:
        self.rows = rows
        self.columns = columns
        self._place = torch.device(device)
        chunks, splits = -(-columns // CHUNK), -(-columns // SPLIT)
        self.maxima = self._buffer(rows, chunks)
        self.sums = self._buffer(rows, chunks)
        self.splits = self._buffer(rows, SPLIT_FIELDS, splits)
        self.survivors = self._buffer(rows, chunks, dtype=torch.int32)
        self.candidate_columns = self._buffer(rows, CANDIDATES, dtype=torch.int32)
        self.candidate_logits = self._buffer(rows, CANDIDATES)
        self._tokens = self._buffer(rows, dtype=torch.int32)
        self._log_p = self._buffer(rows)
        self._log_z = self._buffer(rows)
        self._log_mass = self._buffer(rows)
        self._status = self._buffer(rows, dtype=torch.int32)

    @property
    def device(self) -> torch.device:
        """The device of the buffers."""
        return self.maxima.device

    def choice(self, rows: int, kernel: str) -> Choice:
        """Return the output of the next step: views of the first ``rows`` rows of the buffers."""
        return Choice(
            tokens=self._tokens[:rows],
            log_p=self._log_p[:rows],
            log_z=self._log_z[:rows],
            log_mass=self._log_mass[:rows],
            status=self._status[:rows],
            kernel=kernel,
        )

    def arguments(self) -> tuple[Any, ...]:
        """Return the summary arguments of kernels: maxima, sums and their stride, splits and their strides."""
        return self.maxima, self.sums, self.maxima.stride(0), self.splits, self.splits.stride(0), self.splits.stride(1)

    def constants(self, size: int) -> dict[str, int]:
        """Return the compile-time constants of kernels that read the summary; they depend only on the vocabulary."""
        split = min(SPLIT, _power_of_two(max(size, CHUNK)))
        chunks, splits = -(-size // CHUNK), -(-size // split)
        return {"CHUNK": CHUNK, "SPLIT": split, "CHUNKS": _power_of_two(chunks), "SPLITS": _power_of_two(splits)}

    def _buffer(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.empty(shape, dtype=dtype, device=self._place)


def workspace_for(kernel: str, logits: Tensor, masks: MaskRows, workspace: Workspace | None) -> Workspace:
    """Check that logits, masks and workspace match, and return the workspace, or a new one for None.

    Raises:
        KernelArgumentError: the arguments do not match.
    """
    check_logits(kernel, logits, size=masks.size)
    if len(logits) != len(masks) or logits.device != masks.table.device:
        raise KernelArgumentError(
            kernel,
            "masks",
            f"must be {len(logits)} rows on {str(logits.device)!r}, not {len(masks)} on {str(masks.table.device)!r}",
        )
    if workspace is None:
        return Workspace(len(logits), masks.size, logits.device)
    if workspace.rows < len(logits) or workspace.columns < masks.size or workspace.device != logits.device:
        raise KernelArgumentError(
            kernel,
            "workspace",
            f"is for {workspace.rows} rows of {workspace.columns} tokens on {str(workspace.device)!r}, not for "
            f"{len(logits)} of {masks.size} on {str(logits.device)!r}",
        )
    return workspace


def _power_of_two(least: int) -> int:
    return 1 << (least - 1).bit_length()

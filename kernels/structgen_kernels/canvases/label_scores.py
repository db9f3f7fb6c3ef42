"""Scores of sets of classes: what labels the edges of an automaton, from what is known of each class.

Bytes, for each row: ``4 * classes`` are read, for the most part from a cache, and ``4 * labels`` written.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self, final

import numpy as np
import torch

from structgen_kernels.arguments import check_tensor
from structgen_kernels.dispatch import backend_for
from structgen_kernels.errors import KernelArgumentError
from structgen_kernels.launch import launch

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

__all__ = ["ClassLabels", "label_scores"]

_LABELS: Final = 32
_HELD: Final = 16
"""Labels of one program, and classes of each that it takes at a time."""


@final
@dataclass(frozen=True, slots=True, eq=False)
class ClassLabels:
    """Sets of classes; immutable, made once for each automaton.

    Attributes:
        classes: how many classes there are.
        begin: int32 ``[labels + 1]``: label ``k`` holds ``held[begin[k] : begin[k + 1]]``.
        held: int32, classes; one that a label names twice counts twice.
    """

    classes: int
    begin: Tensor
    held: Tensor

    @classmethod
    def of(
        cls,
        begin: NDArray[np.integer] | Tensor,
        held: NDArray[np.integer] | Tensor,
        classes: int,
        device: torch.device | str = "cpu",
    ) -> Self:
        """Take labels to a device.

        Raises:
            KernelArgumentError: the stretches do not ascend from 0 to the number of classes held, or a class is not
                below ``classes``.
        """
        starts = np.array(begin.cpu() if isinstance(begin, torch.Tensor) else begin, dtype=np.int64)
        of = np.array(held.cpu() if isinstance(held, torch.Tensor) else held, dtype=np.int64)
        if starts.ndim != 1 or of.ndim != 1 or not len(starts) or starts[0] != 0 or starts[-1] != len(of):
            raise KernelArgumentError("label_scores", "begin", f"must go from 0 to {len(of)}")
        if (np.diff(starts) < 0).any():
            raise KernelArgumentError("label_scores", "begin", "must ascend")
        if len(of) and (of.min() < 0 or of.max() >= classes):
            raise KernelArgumentError("label_scores", "held", f"must be from 0 to {classes - 1}")
        return cls(
            classes,
            torch.from_numpy(starts.astype(np.int32)).to(device),
            torch.from_numpy(of.astype(np.int32)).to(device),
        )

    def __len__(self) -> int:
        return len(self.begin) - 1


def label_scores(scores: Tensor, labels: ClassLabels, *, is_max: bool, out: Tensor | None = None) -> Tensor:
    """Return the largest score of the classes of each label, or the log of the sum of their exponentials.

    Args:
        scores: float32 ``[rows, classes]``, logarithms; minus infinity for what is not possible.
        labels: sets of classes.
        is_max: which of the two.
        out: float32 ``[rows, labels]``, filled in place; nothing is allocated then.

    Returns:
        float32 ``[rows, labels]``; minus infinity for a label without classes.

    Raises:
        KernelArgumentError: an argument is of the wrong type, shape or device.

    Precision: the largest score is exact, and the log of the sum to 1e-6 plus 1e-7 of itself.
    """
    check_tensor("label_scores", "scores", scores, dtype=torch.float32, shape=(None, labels.classes))
    if scores.device != labels.begin.device:
        raise KernelArgumentError("label_scores", "labels", f"must be on {str(scores.device)!r}")
    if out is None:
        out = torch.empty((len(scores), len(labels)), dtype=torch.float32, device=scores.device)
    check_tensor(
        "label_scores", "out", out, dtype=torch.float32, shape=(len(scores), len(labels)), device=scores.device
    )
    if backend_for(scores.device) == "torch":
        _reference(scores, labels, out, is_max=is_max)
    elif out.numel():
        from structgen_kernels.canvases.jit.label_scores import label_scores_kernel

        launch(
            label_scores_kernel,
            (len(scores), -(-len(labels) // _LABELS)),
            scores,
            scores.stride(0),
            labels.begin,
            labels.held,
            len(labels),
            out,
            out.stride(0),
            IS_MAX=is_max,
            LABELS=_LABELS,
            HELD=_HELD,
        )
    return out


def _reference(scores: Tensor, labels: ClassLabels, out: Tensor, *, is_max: bool) -> None:
    held = scores[:, labels.held.to(torch.int64)].to(torch.float64)
    lengths = labels.begin.diff().to(torch.int64)
    label = torch.repeat_interleave(torch.arange(len(labels), device=scores.device), lengths).expand(len(scores), -1)
    largest = held.new_full(out.shape, -torch.inf).scatter_reduce_(1, label, held, "amax")
    if is_max:
        out.copy_(largest)
        return
    base = largest.where(largest > -torch.inf, 0.0)
    out.copy_(torch.zeros_like(largest).scatter_add_(1, label, (held - base.gather(1, label)).exp()).log() + base)

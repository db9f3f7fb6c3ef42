"""Scores of the labels of an automaton's edges, which are sets of classes, from the scores of the classes.

Bytes per row: ``4 * classes`` are read, mostly from the cache, and ``4 * labels`` are written.
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
"""Labels per program, and classes per label and block."""


@final
@dataclass(frozen=True, slots=True, eq=False)
class ClassLabels:
    """The set of classes of each label; immutable, made once per automaton.

    Attributes:
        classes: the number of classes.
        begin: int32 ``[labels + 1]``: the classes of label ``k`` are ``held[begin[k] : begin[k + 1]]``.
        held: int32, the classes of all labels; a class that is listed twice counts twice.
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
        """Put labels on a device.

        Raises:
            KernelArgumentError: ``begin`` does not ascend from 0 to ``len(held)``, or a class is not below ``classes``.
        """
        starts = np.array(begin.cpu() if isinstance(begin, torch.Tensor) else begin, dtype=np.int64)
        of = np.array(held.cpu() if isinstance(held, torch.Tensor) else held, dtype=np.int64)
        if starts.ndim != 1 or of.ndim != 1 or not len(starts) or starts[0] != 0 or starts[-1] != len(of):
            raise KernelArgumentError("label_scores", "begin", f"must start at 0 and end at {len(of)}")
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
    """Return the maximum, or the log-sum-exp, of the scores of the classes of each label.

    Args:
        scores: float32 ``[rows, classes]``, logarithms; minus infinity for impossible classes.
        labels: the classes of each label.
        is_max: whether to take the maximum instead of the log-sum-exp.
        out: float32 ``[rows, labels]``, the output; None allocates it.

    Returns:
        float32 ``[rows, labels]``; minus infinity for a label without classes.

    Raises:
        KernelArgumentError: an argument has the wrong dtype, shape or device.

    Precision: the maximum is exact; the error of the log-sum-exp is at most 1e-6 plus 1e-7 of its value.
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

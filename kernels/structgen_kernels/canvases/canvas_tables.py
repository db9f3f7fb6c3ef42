"""What steps over canvases of a regular language know of it, on the device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self, final

import torch

from structgen_kernels.errors import KernelArgumentError

if TYPE_CHECKING:
    from torch import Tensor

    from structgen_kernels.canvases.chain_edges import ChainEdges
    from structgen_kernels.canvases.class_layout import ClassLayout
    from structgen_kernels.canvases.label_scores import ClassLabels

__all__ = ["CanvasTables"]


@final
@dataclass(frozen=True, slots=True, eq=False)
class CanvasTables:
    """An automaton over classes of tokens, with EOS and the tail after it; immutable.

    Attributes:
        edges: of the automaton.  The last label is that of the tail, the one before that of EOS.
        layout: of the classes.
        labels: the classes of every label of ``edges``; EOS and the tail both hold the class of EOS.
        filler: the token that a free tail is filled with, the first EOS; -1 where there is no EOS, for then there is no
            tail either.
        class_begin: int32 ``[classes + 1]``.
        class_label: int32: class ``c`` is held by labels ``class_label[class_begin[c] : class_begin[c + 1]]``.
    """

    edges: ChainEdges
    layout: ClassLayout
    labels: ClassLabels
    filler: int
    class_begin: Tensor
    class_label: Tensor

    @classmethod
    def of(cls, edges: ChainEdges, layout: ClassLayout, labels: ClassLabels, filler: int) -> Self:
        """Put together tables that lie on the same device.

        Raises:
            KernelArgumentError: they do not fit each other, or the filler is no token.
        """
        if edges.labels != len(labels) or len(labels) < 2:
            problem = (
                f"must be as many as label edges, {edges.labels}, EOS and the tail among them; found {len(labels)}"
            )
            raise KernelArgumentError("canvas tables", "labels", problem)
        if labels.classes != layout.classes:
            problem = f"are of {labels.classes} classes, where the layout has {layout.classes}"
            raise KernelArgumentError("canvas tables", "labels", problem)
        if not -1 <= filler < layout.size:
            raise KernelArgumentError("canvas tables", "filler", f"must be below {layout.size}, or -1; found {filler}")
        devices = {edges.device, layout.device, labels.begin.device}
        if len(devices) > 1:
            raise KernelArgumentError("canvas tables", "devices", f"differ: {sorted(map(str, devices))}")
        held = labels.held.cpu().long()
        label = torch.repeat_interleave(torch.arange(len(labels)), labels.begin.cpu().long().diff())
        counts = torch.bincount(held, minlength=layout.classes)
        begin = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
        by_class = label[torch.argsort(held, stable=True)]
        lists = (numbers.to(torch.int32).to(edges.device) for numbers in (begin, by_class))
        return cls(edges, layout, labels, filler, *lists)

    @property
    def device(self) -> torch.device:
        """Where they are."""
        return self.edges.device

    def holds(self) -> Tensor:
        """Which labels hold each class, bool ``[classes, labels]``."""
        counts = self.class_begin.diff().long()
        of = torch.repeat_interleave(torch.arange(len(counts), device=self.device), counts)
        made = torch.zeros((len(counts), self.edges.labels), dtype=torch.bool, device=self.device)
        made[of, self.class_label.long()] = True
        return made

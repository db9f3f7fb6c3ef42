"""The tables of a regular language that steps over canvases read, on the device."""

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
    """An automaton over token classes, with labels for EOS and for the tail after EOS; immutable.

    Attributes:
        edges: the edges of the automaton.  The last label is the tail, the one before is EOS.
        layout: the layout of the classes.
        labels: the classes of every label of ``edges``; EOS and the tail both have the class of EOS.
        filler: the token that fills a free tail, the first EOS token; -1 if there is no EOS, and so no tail.
        class_begin: int32 ``[classes + 1]``.
        class_label: int32: the labels with class ``c`` are ``class_label[class_begin[c] : class_begin[c + 1]]``.
    """

    edges: ChainEdges
    layout: ClassLayout
    labels: ClassLabels
    filler: int
    class_begin: Tensor
    class_label: Tensor

    @classmethod
    def of(cls, edges: ChainEdges, layout: ClassLayout, labels: ClassLabels, filler: int) -> Self:
        """Combine tables on the same device.

        Raises:
            KernelArgumentError: the tables do not match, or the filler is not a token.
        """
        if edges.labels != len(labels) or len(labels) < 2:
            problem = f"must be {edges.labels}, as many as the edges have, with EOS and the tail; found {len(labels)}"
            raise KernelArgumentError("canvas tables", "labels", problem)
        if labels.classes != layout.classes:
            problem = f"have {labels.classes} classes; the layout has {layout.classes}"
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
        """The device of the tables."""
        return self.edges.device

    def holds(self) -> Tensor:
        """Return which labels have each class, bool ``[classes, labels]``."""
        counts = self.class_begin.diff().long()
        of = torch.repeat_interleave(torch.arange(len(counts), device=self.device), counts)
        made = torch.zeros((len(counts), self.edges.labels), dtype=torch.bool, device=self.device)
        made[of, self.class_label.long()] = True
        return made

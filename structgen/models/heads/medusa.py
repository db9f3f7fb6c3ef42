"""Medusa: each head guesses one token, so many ahead, from the last hidden state alone.

Source: Cai et al. 2024, "Medusa: Simple LLM Inference Acceleration Framework with Multiple Decoding Heads" (arXiv
2401.10774), section 2.1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, final

import torch
import torch.nn.functional as F  # noqa: N812  # the name that every torch text uses

from structgen.models.heads.sessions import LastState, check_shapes, output_logits

if TYPE_CHECKING:
    from structgen.models.llama_model import LlamaModel
    from structgen.models.protocol import TrimmedHead

__all__ = ["MedusaHeads"]


@final
class MedusaHeads:
    """Heads of blocks ``x + silu(linear(x))`` on the normed last state, and an output matrix.

    Head ``k``, counted from 0, guesses the token behind ``k + 1`` tokens that the model has not seen.

    Args:
        model: what they belong to.
        weights: ``{head}.{block}.linear.weight`` ``[width, width]``, ``{head}.{block}.linear.bias`` ``[width]`` and
            ``{head}.{blocks}.weight`` ``[V, width]``; where the last is missing, the model's own output head serves.
        heads: how many.
        blocks: of each head.
        name: what messages call them.

    Raises:
        ModelError: a weight is missing or has another shape.
    """

    def __init__(
        self, model: LlamaModel, weights: Mapping[str, torch.Tensor], *, heads: int, blocks: int, name: str
    ) -> None:
        shape = model.network.shape
        width = shape.width
        expected: dict[str, tuple[int, ...]] = {}
        for head in range(heads):
            for block in range(blocks):
                expected[f"{head}.{block}.linear.weight"] = (width, width)
                expected[f"{head}.{block}.linear.bias"] = (width,)
            if f"{head}.{blocks}.weight" in weights:
                expected[f"{head}.{blocks}.weight"] = (shape.vocabulary, width)
        self._weights = check_shapes(weights, expected, model=model, name=name)
        self._blocks = blocks
        self.model = model
        self.name = name
        self.depth: int | None = heads
        self.width = width

    def start(self) -> LastState:
        """See ``DraftHeads.start``."""
        return LastState(self)

    def behind(
        self, states: torch.Tensor, paths: Sequence[Sequence[int]], head: TrimmedHead | None = None
    ) -> torch.Tensor:
        """Return the logits behind paths of one length.

        Args:
            states: normed, ``[rows, width]``: one for each path, or one for all.
            paths: tokens behind each; what they are makes no difference.
            head: what to compute.

        Returns:
            ``[len(paths), V]`` or ``[len(paths), len(head.ids)]``.
        """
        index = len(paths[0]) - 1
        x = states
        for block in range(self._blocks):
            weight, bias = (self._weights[f"{index}.{block}.linear.{kind}"] for kind in ("weight", "bias"))
            x = x + F.silu(F.linear(x, weight, bias))
        logits = output_logits(self.model, x, self._weights.get(f"{index}.{self._blocks}.weight"), head)
        return logits.expand(len(paths), -1)

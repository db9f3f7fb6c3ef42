"""Hydra: as Medusa, but each head knows the tokens before the one that it guesses.

Source: Ankner et al. 2024, "Hydra: Sequentially-Dependent Draft Heads for Medusa Decoding" (arXiv 2402.05109), section
3.  The names of the weights are those of this project.
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

__all__ = ["HydraHeads"]


@final
class HydraHeads:
    """Heads on the normed last state and the embeddings of the tokens behind it.

    Head ``k``, counted from 0, guesses the token behind ``k + 1`` tokens that the model has not seen.  Its input ``z``
    is the state and their embeddings, one behind the other; then come ``skip(z) + silu(input(z))``, blocks
    ``x + silu(linear(x))`` and an output matrix.

    Args:
        model: what they belong to.
        weights: ``heads.{head}.input.weight`` ``[width, (head + 2) * width]``, ``heads.{head}.input.bias`` ``[width]``,
            ``heads.{head}.skip.weight`` as the first, ``heads.{head}.blocks.{block}.weight`` ``[width, width]`` and
            ``.bias`` ``[width]``, and ``heads.{head}.output.weight`` ``[V, width]``; where the last is missing, the
            model's own output head serves.
        heads: how many.
        blocks: of each head, behind the first that takes the input.
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
            prefix = f"heads.{head}."
            expected[f"{prefix}input.weight"] = expected[f"{prefix}skip.weight"] = (width, (head + 2) * width)
            expected[f"{prefix}input.bias"] = (width,)
            for block in range(blocks):
                expected[f"{prefix}blocks.{block}.weight"] = (width, width)
                expected[f"{prefix}blocks.{block}.bias"] = (width,)
            if f"{prefix}output.weight" in weights:
                expected[f"{prefix}output.weight"] = (shape.vocabulary, width)
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
            paths: tokens behind each.
            head: what to compute.

        Returns:
            ``[len(paths), V]`` or ``[len(paths), len(head.ids)]``.
        """
        network = self.model.network
        prefix = f"heads.{len(paths[0]) - 1}."
        tokens = torch.tensor([list(path) for path in paths], device=network.device)
        seen = network.embedding(tokens.flatten()).view(len(paths), -1)
        z = torch.cat((states.expand(len(paths), -1), seen), dim=1)
        taken = F.silu(F.linear(z, self._weights[f"{prefix}input.weight"], self._weights[f"{prefix}input.bias"]))
        x = F.linear(z, self._weights[f"{prefix}skip.weight"]) + taken
        for block in range(self._blocks):
            weight, bias = (self._weights[f"{prefix}blocks.{block}.{kind}"] for kind in ("weight", "bias"))
            x = x + F.silu(F.linear(x, weight, bias))
        return output_logits(self.model, x, self._weights.get(f"{prefix}output.weight"), head)

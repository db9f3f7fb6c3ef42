"""Heads on the last hidden state: Medusa, and Hydra, whose heads also read the draft tokens before.

Source: Ankner et al. 2024, "Hydra: Sequentially-Dependent Draft Heads for Medusa Decoding" (arXiv 2402.05109), section
3.  The names of the weights are those of this project.

Source: Cai et al. 2024, "Medusa: Simple LLM Inference Acceleration Framework with Multiple Decoding Heads" (arXiv
2401.10774), section 2.1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, final

import torch
import torch.nn.functional as F  # noqa: N812  # the name that every torch text uses

from structgen.errors import GenerationError, ModelError
from structgen.models.llama.layers import weights_of

if TYPE_CHECKING:
    from structgen.models.llama.model import LlamaModel
    from structgen.models.protocol import Logits, States, TrimmedHead

__all__ = ["HydraHeads", "LastState", "MedusaHeads", "check_paths", "check_shapes", "output_logits"]


class OneStateHeads(Protocol):
    """Heads that need the last state of a sequence and the tokens after it."""

    model: LlamaModel
    name: str
    depth: int | None

    def after(
        self, states: torch.Tensor, paths: Sequence[Sequence[int]], head: TrimmedHead | None = None
    ) -> torch.Tensor:
        """Return the logits after paths of one length, ``[len(paths), tokens of the head]``."""


@final
class LastState:
    """Heads on the last state, after one sequence: see ``HeadSession``."""

    def __init__(self, heads: OneStateHeads) -> None:
        self._heads = heads
        self._state: torch.Tensor | None = None

    def follow(self, position: int, token_ids: Sequence[int], states: States, /) -> None:
        """See ``HeadSession.follow``."""
        del position, token_ids
        network = self._heads.model.network
        with torch.inference_mode():
            last = torch.tensor(states[-1:], device=network.device, dtype=network.dtype)
            self._state = network.normed(last)

    def logits(self, paths: Sequence[Sequence[int]], /, *, head: TrimmedHead | None = None) -> Logits:
        """See ``HeadSession.logits``."""
        check_paths(paths, depth=self._heads.depth, name=self._heads.name)
        if self._state is None:
            raise GenerationError(f"heads {self._heads.name!r}", "they follow no sequence yet")
        with torch.inference_mode():
            rows: Logits = self._heads.after(self._state, paths, head).float().cpu().numpy().copy()
            return rows


def check_paths(paths: Sequence[Sequence[int]], *, depth: int | None, name: str) -> None:
    """Raise ``GenerationError`` unless the paths have one length that the heads can predict after."""
    lengths = {len(path) for path in paths}
    if len(lengths) != 1 or min(lengths) < 1 or (depth is not None and max(lengths) > depth):
        raise GenerationError(
            f"heads {name!r}",
            "paths must all have the same number of tokens, at least one and at most as many as there are heads",
            evidence=f"found lengths {sorted(lengths)}; there are {depth or 'any number of'} heads",
        )


def check_shapes(
    weights: Mapping[str, torch.Tensor], expected: Mapping[str, tuple[int, ...]], *, model: LlamaModel, name: str
) -> dict[str, torch.Tensor]:
    """Return the expected weights, on the device of the model.

    Raises:
        ModelError: one is missing or has another shape.
    """
    network = model.network
    found = {}
    for key, shape in expected.items():
        tensor = weights.get(key)
        if tensor is None:
            raise ModelError(f"heads {name!r}", f"their files lack {key!r}", evidence=f"found {_some(weights)}")
        if tuple(tensor.shape) != shape:
            raise ModelError(
                f"heads {name!r}",
                f"{key!r} has the shape {list(tensor.shape)}",
                evidence=f"model {model.name!r} needs {list(shape)}",
                remedy="use heads that were trained for this model",
            )
        found[key] = tensor.to(device=network.device, dtype=network.dtype)
    return found


def output_logits(
    model: LlamaModel, x: torch.Tensor, output: torch.Tensor | None, head: TrimmedHead | None
) -> torch.Tensor:
    """The logits of ``x`` ``[rows, width]`` by a matrix of their own, or by the model's without its final norm."""
    network = model.network
    if output is None:
        return network.unembedded(x, weights_of(head, model))
    if head is not None:
        output = output[torch.tensor(head.ids, device=network.device)]
    return F.linear(x, output).float()


def _some(weights: Mapping[str, torch.Tensor]) -> str:
    names = sorted(weights)
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "") if names else "nothing"


@final
class HydraHeads:
    """Heads on the normed last state and the embeddings of the tokens after it.

    Head ``k``, from 0, drafts the token after ``k + 1`` tokens that the model has not seen.  Its input
    ``z`` is the state and their embeddings, one after the other; then come ``skip(z) + silu(input(z))``, blocks
    ``x + silu(linear(x))`` and an output matrix.

    Args:
        model: the model that they were trained for.
        weights: ``heads.{head}.input.weight`` ``[width, (head + 2) * width]``, ``heads.{head}.input.bias`` ``[width]``,
            ``heads.{head}.skip.weight`` as the first, ``heads.{head}.blocks.{block}.weight`` ``[width, width]`` and
            ``.bias`` ``[width]``, and ``heads.{head}.output.weight`` ``[V, width]``; where the last is missing, the
            model's own output head serves.
        heads: how many.
        blocks: of each head, after the first that takes the input.
        name: their name in messages.

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

    def after(
        self, states: torch.Tensor, paths: Sequence[Sequence[int]], head: TrimmedHead | None = None
    ) -> torch.Tensor:
        """Return the logits after paths of one length.

        Args:
            states: normed, ``[rows, width]``: one for each path, or one for all.
            paths: tokens after each.
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


@final
class MedusaHeads:
    """Heads of blocks ``x + silu(linear(x))`` on the normed last state, and an output matrix.

    Head ``k``, from 0, drafts the token after ``k + 1`` tokens that the model has not seen.

    Args:
        model: the model that they were trained for.
        weights: ``{head}.{block}.linear.weight`` ``[width, width]``, ``{head}.{block}.linear.bias`` ``[width]`` and
            ``{head}.{blocks}.weight`` ``[V, width]``; if the last is missing, the model's output head is used.
        heads: the number of heads.
        blocks: the number of blocks of each head.
        name: their name in messages.

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

    def after(
        self, states: torch.Tensor, paths: Sequence[Sequence[int]], head: TrimmedHead | None = None
    ) -> torch.Tensor:
        """Return the logits after paths of one length.

        Args:
            states: normed, ``[rows, width]``: one for each path, or one for all.
            paths: tokens after each; only their number matters.
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

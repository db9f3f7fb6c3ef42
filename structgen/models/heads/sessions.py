"""What the kinds of heads have in common: checks of weights, output matrices, and sessions that know one state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, final

import torch
import torch.nn.functional as F  # noqa: N812  # the name that every torch text uses

from structgen.errors import GenerationError, ModelError
from structgen.models.llama_layers import weights_of

if TYPE_CHECKING:
    from structgen.models.llama_model import LlamaModel
    from structgen.models.protocol import Logits, States, TrimmedHead

__all__ = ["LastState", "check_paths", "check_shapes", "output_logits"]


class OneStateHeads(Protocol):
    """Heads that need the last state of a sequence and the tokens behind it."""

    model: LlamaModel
    name: str
    depth: int | None

    def behind(
        self, states: torch.Tensor, paths: Sequence[Sequence[int]], head: TrimmedHead | None = None
    ) -> torch.Tensor:
        """Return the logits behind paths of one length, ``[len(paths), tokens of the head]``."""


@final
class LastState:
    """Heads that look at the last state alone, behind one sequence: see ``HeadSession``."""

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
            raise GenerationError(f"heads {self._heads.name!r}", "they follow nothing yet")
        with torch.inference_mode():
            rows: Logits = self._heads.behind(self._state, paths, head).float().cpu().numpy().copy()
            return rows


def check_paths(paths: Sequence[Sequence[int]], *, depth: int | None, name: str) -> None:
    """Raise ``GenerationError`` unless the paths can be looked behind in one step."""
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
    """Return the weights that are needed, where the model computes.

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

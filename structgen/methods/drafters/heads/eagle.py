"""EAGLE: one decoder layer that predicts hidden states from those of the model and the tokens.

Source: Li et al. 2024, "EAGLE: Speculative Sampling Requires Rethinking Feature Uncertainty" (arXiv 2401.15077),
section 3; the layer has no norm at its input, as there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, final

import torch
import torch.nn.functional as F  # noqa: N812  # the name that every torch text uses

from structgen.errors import GenerationError, ModelError
from structgen.methods.drafters.heads.last_state import check_paths, check_shapes
from structgen.models.llama.layers import weights_of
from structgen.models.llama.network import rotate

if TYPE_CHECKING:
    from structgen.models.llama.model import LlamaModel
    from structgen.models.protocol import Logits, States, TrimmedHead

__all__ = ["EagleHeads"]

_LAYER: Final = "layers.0."


@final
class EagleHeads:
    """A layer from the embedding of a token and the state of the token before to the state of the token.

    States are normed, so the model's output head gives logits.  The layer attends to its keys and values of the tokens
    with known states, and of its own draft tokens.

    Args:
        model: the model that they were trained for; it has the same number and width of attention heads.
        weights: ``fc.weight`` ``[width, 2 * width]`` for embedding and state, ``fc.bias`` if it has one, and of
            ``layers.0.`` the matrices of a Llama's layer and ``post_attention_layernorm.weight``.
        name: its name in messages.

    Raises:
        ModelError: a weight is missing or has another shape.
    """

    def __init__(self, model: LlamaModel, weights: Mapping[str, torch.Tensor], *, name: str) -> None:
        shape = model.network.shape
        width = shape.width
        gate = weights.get(f"{_LAYER}mlp.gate_proj.weight")
        hidden = shape.hidden if gate is None else int(gate.shape[0])
        queries, keys = shape.heads * shape.head_width, shape.key_value_heads * shape.head_width
        expected: dict[str, tuple[int, ...]] = {
            "fc.weight": (width, 2 * width),
            f"{_LAYER}self_attn.q_proj.weight": (queries, width),
            f"{_LAYER}self_attn.k_proj.weight": (keys, width),
            f"{_LAYER}self_attn.v_proj.weight": (keys, width),
            f"{_LAYER}self_attn.o_proj.weight": (width, queries),
            f"{_LAYER}post_attention_layernorm.weight": (width,),
            f"{_LAYER}mlp.gate_proj.weight": (hidden, width),
            f"{_LAYER}mlp.up_proj.weight": (hidden, width),
            f"{_LAYER}mlp.down_proj.weight": (width, hidden),
        }
        if "fc.bias" in weights:
            expected["fc.bias"] = (width,)
        if f"{_LAYER}input_layernorm.weight" in weights or "layers.1.self_attn.q_proj.weight" in weights:
            raise ModelError(
                f"heads {name!r}",
                "they are another version of EAGLE",
                evidence="a norm at the input, or a second layer",
                remedy="use weights of the first kind: one layer without a norm at its input",
            )
        self._weights = check_shapes(weights, expected, model=model, name=name)
        self.model = model
        self.name = name
        self.depth: int | None = None
        self.width = width

    def start(self) -> EagleSession:
        """See ``DraftHeads.start``."""
        return EagleSession(self)

    def inputs(self, tokens: torch.Tensor, states: torch.Tensor) -> torch.Tensor:
        """Return the input of the layer for tokens ``[rows]`` and the states before them ``[rows, width]``."""
        pairs = torch.cat((self.model.network.embedding(tokens), states), dim=-1)
        return F.linear(pairs, self._weights["fc.weight"], self._weights.get("fc.bias"))

    def keys_and_values(self, x: torch.Tensor, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return both for inputs ``[rows, width]`` at positions ``[rows]``: ``[rows, key_value_heads, head_width]``."""
        keys = rotate(self._projected(x, "k"), *self.model.network.rotation(positions))
        return keys, self._projected(x, "v")

    def queries(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Return the queries for inputs ``[rows, width]`` at positions ``[rows]``: ``[rows, heads, head_width]``."""
        return rotate(self._projected(x, "q"), *self.model.network.rotation(positions))

    def outputs(self, x: torch.Tensor, attended: torch.Tensor) -> torch.Tensor:
        """Return the states for inputs ``[rows, width]`` and attention outputs ``[rows, heads * head_width]``."""
        shape = self.model.network.shape
        x = x + F.linear(attended, self._weights[f"{_LAYER}self_attn.o_proj.weight"])
        norm = self._weights[f"{_LAYER}post_attention_layernorm.weight"]
        normed = F.rms_norm(x, (shape.width,), norm, shape.epsilon)
        gate, up, down = (self._weights[f"{_LAYER}mlp.{kind}_proj.weight"] for kind in ("gate", "up", "down"))
        return x + F.linear(F.silu(F.linear(normed, gate)) * F.linear(normed, up), down)

    def _projected(self, x: torch.Tensor, kind: str) -> torch.Tensor:
        projected = F.linear(x, self._weights[f"{_LAYER}self_attn.{kind}_proj.weight"])
        return projected.view(len(x), -1, self.model.network.shape.head_width)


class _Step(NamedTuple):
    """The output of the layer for the last token of a path."""

    state: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor


@final
class EagleSession:
    """An EAGLE layer after one sequence: see ``HeadSession``.

    It does not see tokens before the first one whose state it was given.
    """

    def __init__(self, heads: EagleHeads) -> None:
        self._heads = heads
        shape, network = heads.model.network.shape, heads.model.network
        self._start = 0
        self._tokens: list[int] = []
        nothing = torch.empty(0, device=network.device, dtype=network.dtype)
        self._states = nothing.view(0, shape.width)  # of the tokens, normed
        self._keys = nothing.view(0, shape.key_value_heads, shape.head_width)  # of all but the last
        self._values = self._keys
        self._steps: dict[tuple[int, ...], _Step] = {}

    def follow(self, position: int, token_ids: Sequence[int], states: States, /) -> None:
        """See ``HeadSession.follow``; O(new tokens), and a copy of the cache."""
        network = self._heads.model.network
        length = position - self._start
        if not 0 <= length <= len(self._tokens):
            self._start, length = position, 0
        self._steps = {}
        with torch.inference_mode():
            new = torch.tensor(states, device=network.device, dtype=network.dtype)
            self._states = torch.cat((self._states[:length], network.normed(new)))
            self._tokens = [*self._tokens[:length], *(int(token) for token in token_ids)]
            done = min(len(self._keys), max(length - 1, 0))
            last = len(self._tokens) - 1
            if last <= done:
                self._keys, self._values = self._keys[:last], self._values[:last]
                return
            tokens = torch.tensor(self._tokens[done + 1 :], device=network.device)
            x = self._heads.inputs(tokens, self._states[done:last])
            at = torch.arange(self._start + done, self._start + last, device=network.device)
            keys, values = self._heads.keys_and_values(x, at)
            self._keys = torch.cat((self._keys[:done], keys))
            self._values = torch.cat((self._values[:done], values))

    def logits(self, paths: Sequence[Sequence[int]], /, *, head: TrimmedHead | None = None) -> Logits:
        """See ``HeadSession.logits``; prefixes of earlier paths cost nothing."""
        heads = self._heads
        check_paths(paths, depth=heads.depth, name=heads.name)
        if not self._tokens:
            raise GenerationError(f"heads {heads.name!r}", "they follow no sequence yet")
        keys = [tuple(int(token) for token in path) for path in paths]
        with torch.inference_mode():
            for length in range(1, len(keys[0]) + 1):
                missing = {path[:length] for path in keys if path[:length] not in self._steps}
                if missing:
                    self._step(sorted(missing))
            states = torch.stack([self._steps[path].state for path in keys])
            rows: Logits = heads.model.network.unembedded(states, weights_of(head, heads.model)).cpu().numpy()
            return rows

    def _step(self, paths: Sequence[tuple[int, ...]]) -> None:
        """Run the last tokens of paths of one length; their prefixes were run."""
        heads, length = self._heads, len(paths[0])
        network = heads.model.network
        before = [self._states[-1] if length == 1 else self._steps[path[:-1]].state for path in paths]
        tokens = torch.tensor([path[-1] for path in paths], device=network.device)
        x = heads.inputs(tokens, torch.stack(before))
        position = self._start + len(self._tokens) + length - 2
        positions = torch.full((len(paths),), position, device=network.device)
        keys, values = heads.keys_and_values(x, positions)
        own = [[self._steps[path[:end]] for end in range(1, length)] for path in paths]
        attended = self._attend(
            heads.queries(x, positions),
            torch.stack(
                [torch.stack([*(step.key for step in steps), key]) for steps, key in zip(own, keys, strict=True)]
            ),
            torch.stack(
                [
                    torch.stack([*(step.value for step in steps), value])
                    for steps, value in zip(own, values, strict=True)
                ]
            ),
        )
        states = heads.outputs(x, attended)
        for path, state, key, value in zip(paths, states, keys, values, strict=True):
            self._steps[path] = _Step(state, key, value)

    def _attend(self, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        """Attend to the sequence and to paths.

        Args:
            queries: ``[paths, heads, head_width]``.
            keys: of the tokens of each path, ``[paths, length, key_value_heads, head_width]``.
            values: as ``keys``.

        Returns:
            ``[paths, heads * head_width]``.
        """
        count, key_heads = len(queries), keys.shape[2]
        grouped = queries.view(count, key_heads, -1, queries.shape[-1])
        past = torch.einsum("pkgd,nkd->pkgn", grouped, self._keys)
        path = torch.einsum("pkgd,plkd->pkgl", grouped, keys)
        scores = torch.cat((past, path), dim=-1) * queries.shape[-1] ** -0.5
        shares = scores.float().softmax(-1).to(queries.dtype)
        split = self._keys.shape[0]
        attended = torch.einsum("pkgn,nkd->pkgd", shares[..., :split], self._values)
        attended = attended + torch.einsum("pkgl,plkd->pkgd", shares[..., split:], values)
        return attended.reshape(count, -1)

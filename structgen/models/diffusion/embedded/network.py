"""The network of the embedded diffusion model in plain torch, and its weights.

The weights are a safetensors file in float16; its metadata holds the sizes.

A transformer without a causal mask.  Prompt tokens attend to one another and run through all layers once for all
canvases; slots attend to one another and to the prompt.  Besides its own distribution over tokens, a slot has one over
the tokens of the prompt (a pointer network, Vinyals 2015; mixed as in See 2017), because most of a document is copied.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, NamedTuple, cast, final

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional

from structgen.errors import ModelError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

__all__ = ["WEIGHTS", "DiffusionNetwork", "LiveState", "NetworkShape", "PromptState", "load_network", "save_network"]

_ROTARY_BASE = 1000.0
_EPSILON = 1e-6
_FLOOR = 1e-9  # below any token's probability: the pointer's probability is 0 for tokens that are not in the prompt


@final
@dataclass(frozen=True)
class NetworkShape:
    """The sizes of a network.

    Attributes:
        vocabulary: number of tokens.
        width: width of the residual stream.
        layers: number of layers.
        heads: heads of each layer.
        hidden: width of each feed-forward part.
        reach: number of neighbours on either side in a token's embedding.
        pointer: width of the pointer's queries and keys.
    """

    vocabulary: int
    width: int = 128
    layers: int = 4
    heads: int = 4
    hidden: int = 512
    reach: int = 2
    pointer: int = 64

    def as_dict(self) -> dict[str, int]:
        """Return the sizes by name."""
        return asdict(self)


class PromptState(NamedTuple):
    """The state of prompts of one length after a pass.

    Attributes:
        ids: ``[prompts, tokens]``.
        keys: for each layer ``[prompts, heads, tokens, width of a head]``.
        values: as ``keys``.
        pointers: keys of the pointer, ``[prompts, tokens, pointer]``.
        summary: features of the set of prompt tokens, ``[prompts, 1, pointer]``.
    """

    ids: Tensor
    keys: tuple[Tensor, ...]
    values: tuple[Tensor, ...]
    pointers: Tensor
    summary: Tensor

    def repeated(self, times: int) -> PromptState:
        """Return the state with every prompt ``times`` times in a row."""
        return self._each(lambda tensor: tensor.repeat_interleave(times, 0))

    def expanded(self, count: int) -> PromptState:
        """Return the state of one prompt for ``count`` canvases; nothing is copied."""
        return self._each(lambda tensor: tensor.expand(count, *tensor.shape[1:]))

    def _each(self, changed: Callable[[Tensor], Tensor]) -> PromptState:
        keys, values = tuple(map(changed, self.keys)), tuple(map(changed, self.values))
        return PromptState(changed(self.ids), keys, values, changed(self.pointers), changed(self.summary))


class LiveState(NamedTuple):
    """Keys and values of the slots of one canvas, each of the last pass in which the slot was live.

    Attributes:
        keys: for each layer ``[1, heads, slots, width of a head]``.
        values: as ``keys``.
    """

    keys: tuple[Tensor, ...]
    values: tuple[Tensor, ...]


class _Layer(nn.Module):
    """Attention and a feed-forward part, each after its norm."""

    def __init__(self, shape: NetworkShape) -> None:
        super().__init__()
        width = shape.width
        self.heads = shape.heads
        self.attention_norm = nn.Parameter(torch.ones(width))
        self.qkv = nn.Parameter(torch.empty(3 * width, width))
        self.prompt_norm = nn.Parameter(torch.ones(width))
        self.prompt_kv = nn.Parameter(torch.empty(2 * width, width))
        self.out = nn.Parameter(torch.zeros(width, width))
        self.feed_norm = nn.Parameter(torch.ones(width))
        self.up = nn.Parameter(torch.empty(shape.hidden, width))
        self.down = nn.Parameter(torch.zeros(width, shape.hidden))
        self.sharpness = nn.Parameter(torch.full((shape.heads, 1, 1), 3.0))
        for weight in (self.qkv, self.prompt_kv, self.up):
            nn.init.normal_(weight, std=width**-0.5)

    def project(self, stream: Tensor, turns: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values, ``[n, heads, tokens, width of a head]`` each."""
        n, tokens, width = stream.shape
        mixed = functional.linear(_norm(stream, self.attention_norm), self.qkv)
        query, key, value = mixed.view(n, tokens, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        query, key = (_turned(functional.rms_norm(each, each.shape[-1:], eps=_EPSILON), turns) for each in (query, key))
        return query * self.sharpness, key, value

    def project_prompt(self, stream: Tensor, turns: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """Return the keys and values of a prompt for the slots, as ``project`` does."""
        n, tokens, width = stream.shape
        mixed = functional.linear(_norm(stream, self.prompt_norm), self.prompt_kv)
        key, value = mixed.view(n, tokens, 2, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        return _turned(functional.rms_norm(key, key.shape[-1:], eps=_EPSILON), turns), value

    def attend(self, stream: Tensor, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Return the stream after attention and the feed-forward part."""
        attended = functional.scaled_dot_product_attention(query, key, value)
        stream = stream + functional.linear(attended.transpose(1, 2).reshape(stream.shape), self.out)
        hidden = functional.linear(_norm(stream, self.feed_norm), self.up)
        return stream + functional.linear(functional.relu(hidden).square(), self.down)


@final
class DiffusionNetwork(nn.Module):
    """Returns a log distribution over tokens for every slot."""

    def __init__(self, shape: NetworkShape) -> None:
        super().__init__()
        self.shape = shape
        width = shape.width
        self.embedding = nn.Parameter(torch.randn(shape.vocabulary, width) * 0.5)
        self.sides = nn.Parameter(torch.zeros(2, width))  # prompt, canvas
        neighbours = torch.zeros(2 * shape.reach + 1, width)
        neighbours[shape.reach] = 1.0
        self.neighbours = nn.Parameter(neighbours + 0.2 * torch.randn_like(neighbours))
        self.layers = cast("list[_Layer]", nn.ModuleList(_Layer(shape) for _ in range(shape.layers)))
        self.words = nn.Parameter(torch.randn(shape.vocabulary, shape.pointer) * 0.1)
        self.asked = nn.Parameter(torch.randn(shape.pointer, width) * width**-0.5)
        self.answer = nn.Parameter(torch.zeros(width, shape.pointer))
        self.final_norm = nn.Parameter(torch.ones(width))
        self.head = nn.Parameter(torch.zeros(shape.vocabulary, width))
        self.head_bias = nn.Parameter(torch.zeros(shape.vocabulary))
        self.pointer_query = nn.Parameter(torch.randn(shape.pointer, width) * width**-0.5)
        self.pointer_key = nn.Parameter(torch.randn(shape.pointer, width) * width**-0.5)
        self.pointer_gate = nn.Parameter(torch.zeros(1, width))

    def embed(self, ids: Tensor, side: int) -> Tensor:
        """Return the embeddings of tokens with their neighbours on both sides, ``[n, tokens, width]``."""
        looked = functional.embedding(ids, self.embedding)
        reach, tokens = self.shape.reach, ids.shape[1]
        padded = functional.pad(looked, (0, 0, reach, reach))
        mixed = self.sides[side].expand_as(looked)
        for offset in range(2 * reach + 1):
            mixed = torch.addcmul(mixed, padded[:, offset : offset + tokens], self.neighbours[offset])
        return mixed

    def read(self, ids: Tensor) -> PromptState:
        """Read prompts of one length, int64 ``[prompts, tokens]``, possibly of no tokens."""
        stream = self.embed(ids, 0)
        turns = self.turns(-ids.shape[1], 0)
        for layer in self.layers:
            stream = layer.attend(stream, *layer.project(stream, turns))
        keys, values = zip(*(layer.project_prompt(stream, turns) for layer in self.layers), strict=True)
        pointers = functional.linear(_norm(stream, self.final_norm), self.pointer_key)
        summary = functional.embedding(ids, self.words).sum(1, keepdim=True)
        return PromptState(ids, keys, values, pointers, summary)

    def run(self, canvases: Tensor, prompt: PromptState) -> Tensor:
        """Return the normed stream of all slots of canvases, ``[n, slots, width]``, for ``n`` prompts."""
        stream = self.embed(canvases, 1)
        turns = self.turns(0, canvases.shape[1])
        for layer, keys, values in zip(self.layers, prompt.keys, prompt.values, strict=True):
            query, key, value = layer.project(stream, turns)
            stream = layer.attend(stream, query, torch.cat([keys, key], 2), torch.cat([values, value], 2))
        return _norm(stream, self.final_norm)

    def new_live_state(self, slots: int) -> LiveState:
        """Return an empty state for the keys and values of a canvas."""
        shape = self.shape
        size = (1, shape.heads, slots, shape.width // shape.heads)
        keys, values = (tuple(self.embedding.new_zeros(size) for _ in range(shape.layers)) for _ in range(2))
        return LiveState(keys, values)

    def run_live(self, canvas: Tensor, live: Tensor, *, prompt: PromptState, state: LiveState) -> Tensor:
        """Run some slots of one canvas with the stored keys and values of the others.

        Args:
            canvas: ``[1, slots]``.
            live: the slots to run, ``[live]``; their keys and values are written to ``state``.
            prompt: the state of one prompt.
            state: keys and values of the slots; every slot that is not live must have been live before.

        Returns:
            The normed stream of the live slots, ``[1, live, width]``.
        """
        stream = self.embed(canvas, 1)[:, live]
        cosine, sine = self.turns(0, canvas.shape[1])
        for layer, *caches in zip(self.layers, prompt.keys, prompt.values, state.keys, state.values, strict=True):
            query, key, value = layer.project(stream, (cosine[live], sine[live]))
            prompt_keys, prompt_values, keys, values = caches
            keys[:, :, live], values[:, :, live] = key, value
            stream = layer.attend(
                stream, query, torch.cat([prompt_keys, keys], 2), torch.cat([prompt_values, values], 2)
            )
        return _norm(stream, self.final_norm)

    def own_logits(self, stream: Tensor, summary: Tensor) -> Tensor:
        """Return the logits of the slots' own distributions, which also depend on the set of prompt tokens.

        Attention finds tokens at a position; the summary finds tokens at any position (``"sold out"``).
        """
        extra = functional.linear(functional.linear(stream, self.asked) * summary, self.answer)
        return functional.linear(stream + extra, self.head, self.head_bias)

    def log_distribution(self, stream: Tensor, prompt: PromptState) -> Tensor:
        """Return the log distributions of slots, ``[n, slots, vocabulary]``."""
        own = functional.log_softmax(self.own_logits(stream, prompt.summary), -1)
        if not prompt.ids.shape[1]:
            return own
        pointed, gate = self.point(stream, prompt)
        ids = prompt.ids[:, None].expand(-1, stream.shape[1], -1)
        copied = torch.zeros_like(own).scatter_add_(2, ids, pointed)
        return torch.logaddexp(
            own + functional.logsigmoid(-gate), (copied + _FLOOR).log() + functional.logsigmoid(gate)
        )

    def point(self, stream: Tensor, prompt: PromptState) -> tuple[Tensor, Tensor]:
        """Return each slot's distribution over the tokens of its prompt, and the logit of using it."""
        query = functional.linear(stream, self.pointer_query)
        scores = query @ prompt.pointers.transpose(1, 2) * (4.0 / self.shape.pointer**0.5)
        return scores.softmax(-1), functional.linear(stream, self.pointer_gate)

    def turns(self, first: int, stop: int) -> tuple[Tensor, Tensor]:
        """Return cosines and sines of the rotary embedding (Su 2021) of positions; the canvas begins at 0."""
        half = self.shape.width // self.shape.heads // 2
        device = self.embedding.device
        speeds = _ROTARY_BASE ** (-torch.arange(half, device=device, dtype=torch.float32) / half)
        angles = torch.arange(first, stop, device=device, dtype=torch.float32)[:, None] * speeds
        return angles.cos(), angles.sin()


def _norm(stream: Tensor, gain: Tensor) -> Tensor:
    return functional.rms_norm(stream, stream.shape[-1:], gain, _EPSILON)


def _turned(vectors: Tensor, turns: tuple[Tensor, Tensor]) -> Tensor:
    cosine, sine = turns
    left, right = vectors.chunk(2, -1)
    return torch.cat([left * cosine - right * sine, left * sine + right * cosine], -1)


WEIGHTS = "weights.safetensors"


def save_network(folder: Path, shape: NetworkShape, weights: Mapping[str, Tensor]) -> None:
    """Write weights in float16, atomically."""
    half = {name: weight.detach().to("cpu", torch.float16).contiguous() for name, weight in weights.items()}
    new = folder / f"{WEIGHTS}.new"
    save_file(half, new, metadata={name: str(size) for name, size in shape.as_dict().items()})
    new.chmod(0o644)  # save_file makes it readable by its owner only
    new.replace(folder / WEIGHTS)


def load_network(folder: Path, *, device: torch.device) -> DiffusionNetwork:
    """Read a network that ``save_network`` wrote, in float32.

    Raises:
        ModelError: the file is missing or damaged.
    """
    path = folder / WEIGHTS
    try:
        with safe_open(path, framework="pt") as file:
            shape = NetworkShape(**{name: int(size) for name, size in file.metadata().items()})
            weights = {name: file.get_tensor(name).float() for name in file.keys()}  # noqa: SIM118 - no mapping
        network = DiffusionNetwork(shape)
        network.load_state_dict(weights)
    except (OSError, SafetensorError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        raise ModelError(
            f"weights {path.name}",
            "they cannot be read",
            evidence=str(error),
            remedy="check that the file is complete",
        ) from error
    return network.to(device).eval().requires_grad_(requires_grad=False)

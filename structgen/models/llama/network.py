"""A Llama decoder in plain torch: the forward pass of the embedded model.

Other models run through transformers.  This one does not, because the imports of ``AutoModelForCausalLM`` take longer
(2.0 s on two cores) than the rest of loading the embedded model (1.1 s, 0.9 s of it torch).  It reads an ordinary
Hugging Face folder (``config.json``, ``model.safetensors``), which transformers loads too: the reference implementation
of the tests.

The weights are memory-mapped: processes share one copy, and the first forward pass reads the pages.

Source of the architecture: Touvron et al. 2023 (RMSNorm before each block, SwiGLU, rotary positions) with
grouped queries (Ainslie et al. 2023) and, as in all small Llamas, the embedding as output head.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812  # the name that every torch text uses
from safetensors import SafetensorError, safe_open

from structgen.errors import ModelError
from structgen.models.llama.attention import attention
from structgen.models.products import FloatMatrices, Int8Matrices, check_int8, matrix_product
from structgen.models.torch_passes import check_awaited

if TYPE_CHECKING:
    from collections.abc import Sequence

    from structgen.models.llama.attention import Attention
    from structgen.models.llama.cache import Part
    from structgen.models.products import Matrices

__all__ = ["LlamaNetwork", "LlamaShape", "rotate"]


@dataclass(frozen=True, slots=True)
class LlamaShape:
    """The hyperparameters of a Llama."""

    vocabulary: int
    width: int
    hidden: int
    layers: int
    heads: int
    key_value_heads: int
    head_width: int
    rope_theta: float
    epsilon: float
    max_context: int

    @classmethod
    def from_config(cls, config: dict[str, Any], *, name: str) -> LlamaShape:
        """Read a ``config.json``.

        Raises:
            ModelError: a key is missing, or the model is not a plain Llama with tied embeddings.
        """
        rope = config.get("rope_parameters") or {}
        # The settings that the network implements; other values would give wrong logits without an error.
        expected: dict[str, tuple[object, object]] = {
            "model_type": (config.get("model_type"), "llama"),
            "tie_word_embeddings": (config.get("tie_word_embeddings"), True),
            "hidden_act": (config.get("hidden_act", "silu"), "silu"),
            "attention_bias": (config.get("attention_bias", False), False),
            "mlp_bias": (config.get("mlp_bias", False), False),
            "rope_type": (rope.get("rope_type", "default"), "default"),
            "rope_scaling": (config.get("rope_scaling"), None),
        }
        for key, (value, required) in expected.items():
            if value != required:
                raise ModelError(
                    f"model {name!r}",
                    f"config.json has {key}={value!r}",
                    evidence=f"expected {required!r}",
                    remedy="load it with transformers: load_model((model, tokenizer))",
                )
        try:
            heads = int(config["num_attention_heads"])
            return cls(
                vocabulary=int(config["vocab_size"]),
                width=int(config["hidden_size"]),
                hidden=int(config["intermediate_size"]),
                layers=int(config["num_hidden_layers"]),
                heads=heads,
                key_value_heads=int(config["num_key_value_heads"]),
                head_width=int(config.get("head_dim") or config["hidden_size"] // heads),
                rope_theta=float(rope.get("rope_theta") or config["rope_theta"]),
                epsilon=float(config["rms_norm_eps"]),
                max_context=int(config["max_position_embeddings"]),
            )
        except KeyError as error:
            raise ModelError(
                f"model {name!r}", f"config.json lacks {error.args[0]!r}", remedy="check that the file is complete"
            ) from error


class _Layer(NamedTuple):
    """The weights of one block; matrices of the same input are together."""

    input_norm: torch.Tensor
    queries_keys_values: Matrices
    mixed: Matrices
    post_norm: torch.Tensor
    gate_up: Matrices
    down: Matrices


class LlamaNetwork:
    """Weights and forward pass; immutable, shared by any number of sequences."""

    def __init__(
        self, shape: LlamaShape, weights: dict[str, torch.Tensor], *, device: torch.device, dtype: torch.dtype
    ) -> None:
        """Store ``weights``, named as in a Hugging Face file, on the device.

        Args:
            shape: the hyperparameters.
            weights: by their names.
            device: the device of the weights.
            dtype: their type.  ``torch.int8`` is for the weights in products on a CPU; all else is then float32.

        Raises:
            ModelError: this device does not run 8-bit products.
        """
        self.shape = shape
        self.device = device
        self.is_quantised = dtype == torch.int8
        if self.is_quantised:
            check_int8(device)
        self.dtype = torch.float32 if self.is_quantised else dtype
        # Rounding to digits would amplify the last bits of sums, which depend on the rows of a pass.  Attention that
        # sums in float64, rounded to float32, does not depend on them.
        self.sums_dtype = torch.float64 if self.is_quantised else dtype

        def placed(key: str) -> torch.Tensor:
            return weights[f"model.{key}.weight"].to(device=device, dtype=self.dtype)

        def matrices(*keys: str) -> Matrices:
            found = [placed(key) for key in keys]
            return Int8Matrices(found) if self.is_quantised else FloatMatrices(found, are_mapped=device.type == "cpu")

        self._embedding = placed("embed_tokens")
        self._norm = placed("norm")
        self._head = matrices("embed_tokens")
        self._layers = [
            _Layer(
                placed(f"{layer}.input_layernorm"),
                matrices(*(f"{layer}.self_attn.{kind}_proj" for kind in "qkv")),
                matrices(f"{layer}.self_attn.o_proj"),
                placed(f"{layer}.post_attention_layernorm"),
                matrices(f"{layer}.mlp.gate_proj", f"{layer}.mlp.up_proj"),
                matrices(f"{layer}.mlp.down_proj"),
            )
            for layer in (f"layers.{index}" for index in range(shape.layers))
        ]
        # Angles are always computed in float32: position 8000 in bfloat16 would be off by whole turns.
        half = torch.arange(0, shape.head_width, 2, dtype=torch.float32) / shape.head_width
        angles = torch.arange(shape.max_context, dtype=torch.float32)[:, None] / shape.rope_theta**half
        self._cosine = torch.cat([angles.cos()] * 2, dim=-1).to(device=device, dtype=self.dtype)
        self._sine = torch.cat([-angles.sin(), angles.sin()], dim=-1).to(device=device, dtype=self.dtype)
        self._product = matrix_product(device, self.dtype)
        self._epsilon = torch.full((1, 1), shape.epsilon)
        self._is_plain = device.type == "cpu" and self.dtype == torch.float32

    @classmethod
    def load(cls, folder: Path, *, device: torch.device, dtype: torch.dtype, name: str) -> LlamaNetwork:
        """Map the weights of a folder into memory.

        Raises:
            ModelError: a file is missing, damaged, or not of a Llama.
        """
        try:
            config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
            shape = LlamaShape.from_config(config, name=name)
            with safe_open(folder / "model.safetensors", framework="pt") as file:
                weights = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118  # not a mapping
            return cls(shape, weights, device=device, dtype=dtype)
        except (OSError, ValueError, KeyError, SafetensorError) as error:
            raise ModelError(
                f"model {name!r}",
                "its files cannot be read",
                evidence=f"{type(error).__name__}: {error} in {folder}",
                remedy="check that the files are complete",
            ) from error

    def forward(
        self, parts: Sequence[Part], *, watched: dict[int, torch.Tensor | None] | None = None
    ) -> list[torch.Tensor]:
        """Run the tokens of several sequences, each after the tokens of its cache.

        The rows of all sequences are concatenated without padding, so each weight, and each shared cache entry, is read
        once.

        Args:
            parts: at least one; no cache twice.  The pass writes keys and values to each cache; the caller advances its
                ``length``.
            watched: receives, for each key ``l``, state ``l`` of all rows of the pass, ``[rows, width]``; see
                ``LayeredSession``.

        Returns:
            For each part float32 logits ``[tokens, vocabulary]`` with ``all_positions``, else ``[1, vocabulary]``, and
            one more row for each token of its tree; the tensors share memory, but no element.
        """
        shape = self.shape
        for part in parts:
            part.cache.reserve(part.rows, alone=len(parts) == 1)
        with torch.inference_mode():
            positions = torch.tensor([at for part in parts for at in part.positions], device=self.device)
            x = self._embedded(parts)
            rotation = self.rotation(positions)
            attending = attention(parts, shape, self.dtype, self.sums_dtype)
            for index in range(shape.layers):
                check_awaited()
                if watched and index in watched:
                    watched[index] = x
                x = self.layer(index, x, rotation, attending)
            if watched and shape.layers in watched:
                watched[shape.layers] = x
            attending.end()
            rows_of_parts = zip(parts, x.split_with_sizes([part.rows for part in parts]), strict=True)
            selected = [rows[-part.logits_rows :] for part, rows in rows_of_parts]
            logits = self.logits(torch.cat(selected))
            return list(logits.split_with_sizes([len(rows) for rows in selected]))

    def rotation(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the rotary cosines and sines of tokens at ``positions`` ``[rows]``."""
        return self._cosine[positions, None], self._sine[positions, None]

    def embedding(self, ids: torch.Tensor) -> torch.Tensor:
        """Return rows of the embedding, which is also the output head: ``[rows, width]``, a copy."""
        return self._embedding[ids]

    def layer(
        self, index: int, x: torch.Tensor, rotation: tuple[torch.Tensor, torch.Tensor], attending: Attention
    ) -> torch.Tensor:
        """Return the output of block ``index`` for ``x`` ``[rows, width]``."""
        layer, shape = self._layers[index], self.shape
        heads = layer.queries_keys_values(self._scaled(x, layer.input_norm)).view(len(x), -1, shape.head_width)
        rotated = rotate(heads[:, : shape.heads + shape.key_value_heads], *rotation)
        queries, keys = rotated.split_with_sizes((shape.heads, shape.key_value_heads), 1)
        values = heads[:, -shape.key_value_heads :]
        x = x + layer.mixed(attending.mix(index, queries, keys, values))
        gate, up = layer.gate_up(self._scaled(x, layer.post_norm)).split_with_sizes((shape.hidden, shape.hidden), -1)
        return layer.down(F.silu(gate).mul_(up)).add_(x)

    def _scaled(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """Return rows divided by the root of their mean square, times ``weight``."""
        if not self._is_plain:
            return F.rms_norm(x, (self.shape.width,), weight, self.shape.epsilon)
        # On CPUs torch's own function is a dozen operations, and takes twice as long as this for few rows.
        norm = torch.linalg.vector_norm(x, 2.0, -1, keepdim=True)
        return (x * weight).mul_(torch.addcmul(self._epsilon, norm, norm, value=1 / self.shape.width).rsqrt_())

    def normed(self, x: torch.Tensor) -> torch.Tensor:
        """Return the input of the output head for ``x`` ``[rows, width]``, the output of a block."""
        return self._scaled(x, self._norm)

    def logits(self, x: torch.Tensor, head: torch.Tensor | None = None) -> torch.Tensor:
        """Return the float32 logits of states.

        Args:
            x: the output of a block, ``[rows, width]``.
            head: rows of the embedding, for the logits of some tokens only; None for all tokens.
        """
        return self.unembedded(self.normed(x), head)

    def unembedded(self, x: torch.Tensor, head: torch.Tensor | None = None) -> torch.Tensor:
        """As ``logits``, for normed states."""
        return (self._head(x) if head is None else self._product(x, head)).float()

    def _embedded(self, parts: Sequence[Part]) -> torch.Tensor:
        """Return the input of the first layer, ``[rows, width]``."""
        x = self._embedding[torch.tensor([token for part in parts for token in part.ids], device=self.device)]
        start = 0
        for part in parts:
            for row, mixture in enumerate(part.mixtures or (), start=start):
                ids = torch.tensor(list(mixture), device=self.device)
                # Always in float32: a weight in bfloat16 has 8 bits.
                weights = torch.tensor(list(mixture.values()), device=self.device, dtype=torch.float32)
                x[row] = (weights[:, None] * self._embedding[ids].float()).sum(0)
            start += part.rows
        return x


def rotate(x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
    """Rotate the pairs (i, i + head_width / 2) of ``x`` ``[rows, heads, head_width]`` by the angles of their positions.

    ``sine`` includes the signs of the rotation, so rolling by half the width suffices.
    """
    return torch.addcmul(x * cosine, x.roll(x.shape[-1] // 2, dims=-1), sine)

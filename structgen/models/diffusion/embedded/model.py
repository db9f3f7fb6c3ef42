"""``EmbeddedDiffusion``: a small masked diffusion model whose weights come with the package.

It was trained on twenty-two kinds of short records (``structgen.models.diffusion.embedded.tasks``): a prompt names the
kind and tells some facts, and the model writes the JSON document.  It knows nothing else.  It needs torch and
safetensors, no download, and a few milliseconds for a pass over a canvas.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, final

import numpy as np

from structgen.models.chat import messages_of_prompt
from structgen.models.diffusion.canvas import CanvasLimits
from structgen.models.diffusion.embedded.tokenizer import JSON, MASK, TEXT, Tokenizer
from structgen.models.placement import place, require

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch
    from numpy.typing import NDArray

    from structgen.models.diffusion.embedded.network import LiveState
    from structgen.models.diffusion.protocol import Canvases
    from structgen.models.protocol import Logits, Prompt

__all__ = ["EmbeddedDenoiser", "EmbeddedDiffusion", "load_embedded_diffusion"]

_FOLDER = Path(__file__).parent
_MAX_CONTEXT = 256  # positions are relative, so this is no bound of the network; training saw 55 tokens and 64 slots


def load_embedded_diffusion(*, device: str = "auto", folder: Path | None = None) -> EmbeddedDiffusion:
    """Load the embedded diffusion model.

    Args:
        device: ``"auto"`` (a GPU if there is one), or a device of torch such as ``"cpu"`` or ``"cuda:1"``.
        folder: holds other weights of ``training/embedded_diffusion/train.py``; None for those of the package.

    Raises:
        ModelError: torch or safetensors is missing, the device cannot be used, or a file is damaged.
    """
    require("torch", "safetensors")
    return EmbeddedDiffusion(folder or _FOLDER, device=place(device, "float32").device)


@final
class EmbeddedDiffusion:
    """The embedded diffusion model; it computes in float32 on every device.

    A prompt is a text such as ``"pet: Rex the dog, 4 years, has its shots"``: the name of a task, and facts.

    Args:
        folder: holds ``weights.safetensors``.
        device: where to run it.
        name: what messages call it.

    Raises:
        ModelError: a file is missing or damaged.
    """

    def __init__(self, folder: Path, *, device: torch.device, name: str = "embedded-diffusion") -> None:
        from structgen.models.diffusion.embedded.weights import load_network

        self.name = name
        self.network = load_network(folder, device=device)
        self.tokenizer = Tokenizer.load(_FOLDER / "tokenizer.json")
        self.vocabulary = self.tokenizer.vocabulary(self.network.shape.vocabulary)
        self.mask_token = MASK
        self.max_context: int | None = _MAX_CONTEXT

    @property
    def limits(self) -> CanvasLimits:
        """What it can take."""
        return CanvasLimits(self.name, self.vocabulary.size, self.max_context)

    def encode_prompt(self, prompt: Prompt, /, *, chat: bool = True) -> list[int]:
        """Return the tokens of a text, or of the contents of messages one to a line, in the frame that training had.

        With ``chat=False`` a text has no frame.  Special tokens that are spelled out are text like any other; so are
        characters that training never showed, as their bytes.

        Raises:
            ModelError: messages are malformed, or a text holds a lone surrogate.
        """
        if isinstance(prompt, str):
            ids = self.tokenizer.encode(prompt)
            return [TEXT, *ids, JSON] if chat else ids
        text = "\n".join(message["content"] for message in messages_of_prompt(prompt))
        return [TEXT, *self.tokenizer.encode(text), JSON]

    def start(self, prompt_ids: Sequence[int], /) -> EmbeddedDenoiser:
        """Return a denoiser of canvases that follow a prompt; reading the prompt is no forward pass of a canvas."""
        return EmbeddedDenoiser(self, self.limits.check_prompt(prompt_ids))

    def __repr__(self) -> str:
        return f"<EmbeddedDiffusion {self.name}, on {self.network.embedding.device}>"


@final
class EmbeddedDenoiser:
    """An ``EmbeddedDiffusion`` that has read one prompt.

    Tokens of a prompt do not see the canvas, so what the prompt has become is exact for every canvas.
    """

    def __init__(self, model: EmbeddedDiffusion, prompt_ids: list[int]) -> None:
        import torch

        self.model = model
        self.prompt_ids = tuple(prompt_ids)
        self.forwards = 0
        with torch.inference_mode():
            self._prompt = model.network.read(self._tensor(np.array([prompt_ids], dtype=np.int32)))
        self._live: LiveState | None = None
        self._logits: Logits | None = None

    def denoise(self, canvases: Canvases, /, *, start: int = 0, stop: int | None = None) -> Logits:
        """See ``Denoiser.denoise``; the logits are logarithms of probabilities."""
        import torch

        limits = self.model.limits
        checked = limits.check_canvases(canvases, prompt_tokens=len(self.prompt_ids))
        start, stop = limits.check_bounds(checked.shape[1], start, stop)
        network = self.model.network
        with torch.inference_mode():
            prompt = self._prompt.expanded(len(checked))
            stream = network.run(self._tensor(checked), prompt)
            logits: Logits = network.log_law(stream[:, start:stop], prompt).cpu().numpy()
        self.forwards += 1
        return logits

    def denoise_live(self, canvas: NDArray[np.int32], live: NDArray[np.bool_], /) -> Logits:
        """See ``CachingDenoiser.denoise_live``.

        A slot takes in the embeddings of its neighbours as they stand in ``canvas``, also of those that are left out.
        """
        import torch

        row, mask = self.model.limits.check_live(canvas, live, prompt_tokens=len(self.prompt_ids))
        if self._live is None or self._logits is None or len(self._logits) != len(row):
            self._live = self.model.network.new_live_state(len(row))
            self._logits = np.empty((len(row), self.model.vocabulary.size), dtype=np.float32)
            mask = np.ones_like(mask)
        slots = np.flatnonzero(mask)
        if len(slots):
            network = self.model.network
            with torch.inference_mode():
                stream = network.run_live(
                    self._tensor(row[None]), self._tensor(slots), prompt=self._prompt, state=self._live
                )
                self._logits[slots] = network.log_law(stream, self._prompt)[0].cpu().numpy()
            self.forwards += 1
        return self._logits.copy()

    def forget(self) -> None:
        """See ``CachingDenoiser.forget``."""
        self._live = self._logits = None

    def close(self) -> None:
        """See ``Denoiser.close``."""
        self.forget()

    def _tensor(self, ids: NDArray[np.integer]) -> torch.Tensor:
        import torch

        return torch.from_numpy(ids.astype(np.int64)).to(self.model.network.embedding.device)

"""``EmbeddedDiffusion``: a small masked diffusion model whose weights come with the package.

It was trained on twenty-two kinds of short records (``structgen.models.diffusion.embedded.tasks``): a prompt names the
kind and tells some facts, and the model writes the JSON document.  It knows nothing else.  It needs torch and
safetensors, no download, and a few milliseconds for a pass over a canvas.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, final

import numpy as np

from structgen.models.canvas import CanvasLimits
from structgen.models.chat import messages_of_prompt
from structgen.models.diffusion.embedded.tokenizer import JSON, MASK, TEXT, Tokenizer
from structgen.models.placement import place, require

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch
    from numpy.typing import NDArray

    from structgen.models.diffusion.embedded.network import LiveState
    from structgen.models.protocol import Logits, Prompt
    from structgen.models.protocol.diffusion import Canvases, SlotLogits

__all__ = ["EmbeddedDenoiser", "EmbeddedDiffusion", "load_embedded_diffusion"]

_FOLDER = Path(__file__).parent
_MAX_CONTEXT = 256  # positions are relative, so this is no bound of the network; training saw 55 tokens and 64 slots


def load_embedded_diffusion(
    *, device: str = "auto", folder: Path | None = None, resident: bool | None = None
) -> EmbeddedDiffusion:
    """Load the embedded diffusion model.

    Args:
        device: ``"auto"`` (a GPU if there is one), or a device of torch such as ``"cpu"`` or ``"cuda:1"``.
        folder: holds other weights of ``training/embedded_diffusion/train.py``; None for those of the package.
        resident: see ``EmbeddedDiffusion``.

    Raises:
        ModelError: torch or safetensors is missing, the device cannot be used, or a file is damaged.
    """
    require("torch", "safetensors")
    return EmbeddedDiffusion(folder or _FOLDER, device=place(device, "float32").device, resident=resident)


@final
class EmbeddedDiffusion:
    """The embedded diffusion model; it computes in float32 on every device.

    A prompt is a text such as ``"pet: Rex the dog, 4 years, has its shots"``: the name of a task, and facts.

    Args:
        folder: holds ``weights.safetensors``.
        device: where to run it.
        name: what messages call it.
        resident: whether logits stay on the device, where they are asked; None where that is a GPU.

    Raises:
        ModelError: a file is missing or damaged.
    """

    def __init__(
        self, folder: Path, *, device: torch.device, name: str = "embedded-diffusion", resident: bool | None = None
    ) -> None:
        from structgen.models.diffusion.embedded.network import load_network
        from structgen.models.diffusion.torch_slot_logits import CanvasResidence
        from structgen.models.torch_logits import is_resident_on

        self.name = name
        self.network = load_network(folder, device=device)
        self.tokenizer = Tokenizer.load(_FOLDER / "tokenizer.json")
        self.vocabulary = self.tokenizer.vocabulary(self.network.shape.vocabulary)
        self.mask_token = MASK
        self.max_context: int | None = _MAX_CONTEXT
        self.residence = CanvasResidence() if is_resident_on(device, resident) else None

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

        from structgen.models.diffusion.torch_slot_logits import LiveLogits

        self.model = model
        self.prompt_ids = tuple(prompt_ids)
        self.forwards = 0
        with torch.inference_mode():
            self._prompt = model.network.read(self._tensor(np.array([prompt_ids], dtype=np.int32)))
        self._live: LiveState | None = None
        self._logits = LiveLogits(model.residence)

    def denoise(self, canvases: Canvases, /, *, start: int = 0, stop: int | None = None) -> Logits:
        """See ``Denoiser.denoise``; the logits are logarithms of probabilities."""
        import torch

        limits = self.model.limits
        stream = self._stream(canvases)
        start, stop = limits.check_bounds(stream.shape[1], start, stop)
        with torch.inference_mode():
            prompt = self._prompt.expanded(len(stream))
            logits: Logits = self.model.network.log_law(stream[:, start:stop], prompt).cpu().numpy()
        return logits

    @property
    def is_resident(self) -> bool:
        """See ``ResidentDenoiser.is_resident``."""
        return self.model.residence is not None

    def denoise_resident(self, canvases: Canvases, asked: NDArray[np.bool_], /) -> list[SlotLogits]:
        """See ``ResidentDenoiser.denoise_resident``; only the laws of slots that are asked about are computed."""
        import torch

        from structgen.models.diffusion.torch_slot_logits import CanvasResidence, picked, slot_logits

        residence = self.model.residence or CanvasResidence()
        mask = self.model.limits.check_asked(canvases, asked)
        with torch.inference_mode():
            stream = picked(residence, self._stream(canvases), mask)
            rows = self.model.network.log_law(stream[None], self._prompt)[0]
        return list(slot_logits(residence, rows, mask))

    def _stream(self, canvases: Canvases) -> torch.Tensor:
        """Run the network; return what it made of each slot, before the law."""
        import torch

        checked = self.model.limits.check_canvases(canvases, prompt_tokens=len(self.prompt_ids))
        with torch.inference_mode():
            stream = self.model.network.run(self._tensor(checked), self._prompt.expanded(len(checked)))
        self.forwards += 1
        return stream

    def denoise_live(self, canvas: NDArray[np.int32], live: NDArray[np.bool_], /) -> Logits:
        """See ``CachingDenoiser.denoise_live``.

        A slot takes in the embeddings of its neighbours as they stand in ``canvas``, also of those that are left out.
        """
        self._run_live(canvas, live)
        return self._logits.host()

    def denoise_live_resident(
        self, canvas: NDArray[np.int32], live: NDArray[np.bool_], asked: NDArray[np.bool_], /
    ) -> SlotLogits:
        """See ``ResidentCachingDenoiser.denoise_live_resident``, and ``denoise_live``."""
        mask = self.model.limits.check_asked(canvas, asked)
        self._run_live(canvas, live)
        return self._logits.resident(mask)

    def _run_live(self, canvas: NDArray[np.int32], live: NDArray[np.bool_]) -> None:
        """Run the live slots; afterwards the logits of all slots are there."""
        import torch

        row, mask = self.model.limits.check_live(canvas, live, prompt_tokens=len(self.prompt_ids))
        is_first = self._live is None or len(self._logits) != len(row)
        if self._live is None or is_first:
            self._live = self.model.network.new_live_state(len(row))
        slots = np.arange(len(row)) if is_first else np.flatnonzero(mask)
        if len(slots):
            network = self.model.network
            with torch.inference_mode():
                stream = network.run_live(
                    self._tensor(row[None]), self._tensor(slots), prompt=self._prompt, state=self._live
                )
                logits = network.log_law(stream, self._prompt)[0]
            if is_first:
                self._logits.begin(logits)
            else:
                self._logits.write(slots, logits)
            self.forwards += 1

    def forget(self) -> None:
        """See ``CachingDenoiser.forget``."""
        self._live = None
        self._logits.forget()

    def close(self) -> None:
        """See ``Denoiser.close``."""
        self.forget()

    def _tensor(self, ids: NDArray[np.integer]) -> torch.Tensor:
        import torch

        return torch.from_numpy(ids.astype(np.int64)).to(self.model.network.embedding.device)

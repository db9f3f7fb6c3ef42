"""``EmbeddedDiffusion``: a small masked diffusion model with weights in the package, and its tokenizer.

The tokenizer encodes words in a text and in JSON by the same tokens.
"""

from __future__ import annotations

import functools
import itertools
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, final

import numpy as np

from structgen.engine.vocabulary import Vocabulary
from structgen.errors import ModelError
from structgen.models.location import place, require
from structgen.models.model_input import CanvasLimits, messages_of_prompt
from structgen.travel import Live

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import torch
    from numpy.typing import NDArray

    from structgen.models.diffusion.embedded.network import LiveState
    from structgen.models.protocol import Logits, Prompt
    from structgen.models.protocol.diffusion import Canvases, SlotLogits

__all__ = [
    "EOS",
    "JSON",
    "MASK",
    "SPECIAL",
    "TEXT",
    "EmbeddedDenoiser",
    "EmbeddedDiffusion",
    "Tokenizer",
    "load_embedded_diffusion",
]

SPECIAL = ("<mask>", "<eos>", "<text>", "<json>")
MASK, EOS, TEXT, JSON = range(len(SPECIAL))

_FIRST_BYTE = len(SPECIAL)
_KINDS = re.compile(r"(?P<word>[^\W\d]+)|(?P<digits>[0-9]{1,2})|(?P<other>\W+|\d)")
_WORDS_KEPT = 1 << 14


@final
class Tokenizer:
    """A tokenizer of the pieces in a file.

    Ids are the special tokens, the 256 bytes, the pairs of digits, then punctuation, whole words and merges in the
    order of the file.

    Args:
        punctuation: pieces of punctuation of more than one byte.
        words: words that are one token.
        merges: byte-pair merges for all other words, best first (Sennrich 2016).
    """

    def __init__(
        self, *, punctuation: Iterable[str], words: Iterable[str], merges: Iterable[tuple[bytes, bytes]]
    ) -> None:
        self.punctuation, self.words, self.merges = tuple(punctuation), tuple(words), tuple(merges)
        tokens = [b""] * len(SPECIAL) + [bytes([byte]) for byte in range(256)]
        tokens += [f"{pair:02}".encode() for pair in range(100)]
        tokens += [piece.encode() for piece in (*self.punctuation, *self.words)]
        self._ids = {token: id_ for id_, token in enumerate(tokens) if token}
        for left, right in self.merges:
            if left + right not in self._ids:  # two merges, or a merge and a word, may give the same piece
                self._ids[left + right] = len(tokens)
                tokens.append(left + right)
        self.tokens: tuple[bytes, ...] = tuple(tokens)
        self._whole = frozenset(self.words)
        self._pieces = frozenset(self.punctuation)
        self._ranks = {pair: rank for rank, pair in enumerate(self.merges)}
        self._longest = max((len(piece) for piece in self.punctuation), default=1)
        self._word = functools.lru_cache(_WORDS_KEPT)(self._spell)

    @classmethod
    def load(cls, path: Path) -> Tokenizer:
        """Read a file that ``save`` wrote.

        Raises:
            ModelError: the file is missing or malformed.
        """
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            return cls(
                punctuation=content["punctuation"],
                words=content["words"],
                merges=[(left.encode("latin-1"), right.encode("latin-1")) for left, right in content["merges"]],
            )
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ModelError(
                f"tokenizer {path.name}",
                "it cannot be read",
                evidence=repr(error),
                remedy="check that the file is complete",
            ) from error

    def save(self, path: Path) -> None:
        """Write the pieces to a file; bytes of merges as the characters of Latin-1."""
        content = {
            "punctuation": self.punctuation,
            "words": self.words,
            "merges": [[left.decode("latin-1"), right.decode("latin-1")] for left, right in self.merges],
        }
        path.write_text(json.dumps(content, ensure_ascii=False, indent=0) + "\n", encoding="utf-8")

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text; all bytes are tokens.

        Raises:
            ModelError: the text has a lone surrogate, which has no bytes.
        """
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise ModelError(
                "prompt",
                f"character {error.start} is a lone surrogate, which has no UTF-8",
                evidence=f"found {text[error.start]!r}",
                remedy="replace it",
            ) from error
        ids: list[int] = []
        for kind in _KINDS.finditer(text):
            run = kind[0]
            if kind.lastgroup == "word":
                ids += self._word(run)
            elif kind.lastgroup == "digits":
                ids.append(self._ids[run.encode()])
            else:
                ids += self._other(run)
        return ids

    def decode(self, ids: Iterable[int]) -> bytes:
        """Return the bytes of the tokens; special tokens have none."""
        return b"".join(self.tokens[token] for token in ids)

    def vocabulary(self, size: int) -> Vocabulary:
        """Return the vocabulary for decoders."""
        return Vocabulary(self.tokens, eos=(EOS,), special=dict(enumerate(SPECIAL)), size=size, tokenize=self.encode)

    def _spell(self, word: str) -> tuple[int, ...]:
        if word in self._whole:
            return (self._ids[word.encode()],)
        pieces = [bytes([byte]) for byte in word.encode()]
        while len(pieces) > 1:
            pairs = [self._ranks.get(pair, len(self._ranks)) for pair in itertools.pairwise(pieces)]
            best = min(pairs)
            if best == len(self._ranks):
                break
            at = pairs.index(best)
            pieces[at : at + 2] = [pieces[at] + pieces[at + 1]]
        return tuple(self._ids[piece] for piece in pieces)

    def _other(self, run: str) -> list[int]:
        ids: list[int] = []
        at = 0
        while at < len(run):
            length = min(self._longest, len(run) - at)
            while length > 1 and run[at : at + length] not in self._pieces:
                length -= 1
            piece = run[at : at + length]
            ids += [self._ids[piece.encode()]] if length > 1 else [_FIRST_BYTE + byte for byte in piece.encode()]
            at += length
        return ids


_FOLDER = Path(__file__).parent
_MAX_CONTEXT = 256  # positions are relative: not a limit of the network; training had 55 tokens and 64 slots


def load_embedded_diffusion(
    *, device: str = "auto", folder: Path | None = None, resident: bool | None = None
) -> EmbeddedDiffusion:
    """Load the embedded diffusion model.

    Args:
        device: ``"auto"`` (a GPU if there is one), or a device of torch such as ``"cpu"`` or ``"cuda:1"``.
        folder: a folder with other weights of ``training/embedded_diffusion/train.py``; None for those of the package.
        resident: see ``EmbeddedDiffusion``.

    Raises:
        ModelError: torch or safetensors is missing, the device cannot be used, or a file is damaged.
    """
    require("torch", "safetensors")
    return EmbeddedDiffusion(folder or _FOLDER, device=place(device, "float32").device, resident=resident)


@final
class EmbeddedDiffusion(Live):
    """The embedded diffusion model; it computes in float32 on every device.

    A prompt is a text such as ``"pet: Rex the dog, 4 years, has its shots"``: the name of a task, and facts.

    Args:
        folder: contains ``weights.safetensors``.
        device: the device of the model.
        name: the model's name in messages.
        resident: whether logits stay on the device and are queried there; None: only on a GPU.

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
        self.residence = CanvasResidence() if is_resident_on(device, requested=resident) else None

    @property
    def limits(self) -> CanvasLimits:
        """The limits of the model's input."""
        return CanvasLimits(self.name, self.vocabulary.size, self.max_context)

    def encode_prompt(self, prompt: Prompt, /, *, chat: bool = True) -> list[int]:
        """Return the tokens of a text, or of messages, one per line, in the prompt format of the training data.

        ``chat=False`` encodes the text without that format.  Special tokens that are spelled out are ordinary text, and
        unknown characters are encoded as bytes.

        Raises:
            ModelError: messages are malformed, or a text has a lone surrogate.
        """
        if isinstance(prompt, str):
            ids = self.tokenizer.encode(prompt)
            return [TEXT, *ids, JSON] if chat else ids
        text = "\n".join(message["content"] for message in messages_of_prompt(prompt))
        return [TEXT, *self.tokenizer.encode(text), JSON]

    def start(self, prompt_ids: Sequence[int], /) -> EmbeddedDenoiser:
        """Return a denoiser of canvases that follow a prompt; reading the prompt counts as no forward pass."""
        return EmbeddedDenoiser(self, self.limits.check_prompt(prompt_ids))

    def __repr__(self) -> str:
        return f"<EmbeddedDiffusion {self.name}, on {self.network.embedding.device}>"


@final
class EmbeddedDenoiser:
    """An ``EmbeddedDiffusion`` that has read one prompt.

    Prompt tokens do not attend to the canvas, so the cached prompt is exact for every canvas.
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
        """See ``Denoiser.denoise``; the logits are log-probabilities."""
        import torch

        limits = self.model.limits
        stream = self._stream(canvases)
        start, stop = limits.check_bounds(stream.shape[1], start, stop)
        with torch.inference_mode():
            prompt = self._prompt.expanded(len(stream))
            logits: Logits = self.model.network.log_distribution(stream[:, start:stop], prompt).cpu().numpy()
        return logits

    @property
    def is_resident(self) -> bool:
        """See ``ResidentDenoiser.is_resident``."""
        return self.model.residence is not None

    def denoise_resident(self, canvases: Canvases, queried: NDArray[np.bool_], /) -> list[SlotLogits]:
        """See ``ResidentDenoiser.denoise_resident``.

        Only the distributions of queried slots are computed.
        """
        import torch

        from structgen.models.diffusion.torch_slot_logits import CanvasResidence, picked, slot_logits

        residence = self.model.residence or CanvasResidence()
        mask = self.model.limits.check_queried(canvases, queried)
        with torch.inference_mode():
            stream = picked(residence, self._stream(canvases), mask)
            rows = self.model.network.log_distribution(stream[None], self._prompt)[0]
        return list(slot_logits(residence, rows, mask))

    def _stream(self, canvases: Canvases) -> torch.Tensor:
        """Run the network; return the final state of each slot."""
        import torch

        checked = self.model.limits.check_canvases(canvases, prompt_tokens=len(self.prompt_ids))
        with torch.inference_mode():
            stream = self.model.network.run(self._tensor(checked), self._prompt.expanded(len(checked)))
        self.forwards += 1
        return stream

    def denoise_live(self, canvas: NDArray[np.int32], live: NDArray[np.bool_], /) -> Logits:
        """See ``CachingDenoiser.denoise_live``.

        A slot's input includes the embeddings of its neighbours in ``canvas``, also of skipped ones.
        """
        self._run_live(canvas, live)
        return self._logits.host()

    def denoise_live_resident(
        self, canvas: NDArray[np.int32], live: NDArray[np.bool_], queried: NDArray[np.bool_], /
    ) -> SlotLogits:
        """See ``ResidentCachingDenoiser.denoise_live_resident``, and ``denoise_live``."""
        mask = self.model.limits.check_queried(canvas, queried)
        self._run_live(canvas, live)
        return self._logits.resident(mask)

    def _run_live(self, canvas: NDArray[np.int32], live: NDArray[np.bool_]) -> None:
        """Run the live slots; afterwards the logits of all slots are available."""
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
                logits = network.log_distribution(stream, self._prompt)[0]
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

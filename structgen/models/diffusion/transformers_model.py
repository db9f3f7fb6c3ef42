"""A ``DiffusionModel`` over masked diffusion networks of transformers, such as LLaDA and Dream.

The networks take ids and return logits of every position, with full attention.  They differ in the position that a
logits row is about.  In LLaDA (Nie et al. 2025, arXiv 2502.09992) and masked language models, row ``i`` is about
position ``i``.  Dream (Ye et al. 2025, arXiv 2508.15487) and DiffuCoder (Gong et al. 2025, arXiv 2506.20639) derive
from autoregressive models, and row ``i`` is about position ``i + 1``.  This module converts both to rows about slots.
"""

from __future__ import annotations

import inspect
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, final

import numpy as np
import torch

from structgen.engine.vocabulary import Vocabulary
from structgen.errors import GenerationError, ModelError, VocabularyError
from structgen.models.diffusion.torch_slot_logits import CanvasResidence, LiveLogits, picked, slot_logits
from structgen.models.model_input import CANVAS_SHIFTS, CanvasLimits, chat_prompt, head_width, named_eos
from structgen.models.torch_logits import is_resident_on
from structgen.models.transformers.model import written
from structgen.travel import Live

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from structgen.models.protocol import Logits, Prompt
    from structgen.models.protocol.diffusion import Canvases, SlotLogits

__all__ = ["CachingTransformersDenoiser", "TransformersDenoiser", "TransformersDiffusion", "load_vocabulary"]


def load_vocabulary(tokenizer: Any, *, size: int, eos: Sequence[int], mask_token: int) -> Vocabulary:
    """Read the vocabulary of a tokenizer object of transformers, fast or slow.

    Args:
        tokenizer: the tokenizer.
        size: width of the model's logits.
        eos: the EOS ids.
        mask_token: MASK; special even if the tokenizer does not say so.

    Raises:
        VocabularyError: the bytes of its tokens are not well defined.
    """
    if hasattr(tokenizer, "backend_tokenizer") or not isinstance(getattr(tokenizer, "byte_decoder", None), dict):
        return Vocabulary.load(tokenizer, size=size, eos=eos, special={mask_token: None})
    special: dict[int, str | None] = {mask_token: None}
    tokens = [b""] * size
    for text, token in tokenizer.get_vocab().items():
        if token < size and token not in tokenizer.added_tokens_decoder:
            tokens[token] = _bytes_of(text, tokenizer.byte_decoder)
    for token, added in tokenizer.added_tokens_decoder.items():
        if token >= size:
            continue
        if added.special or token in special:
            special[token] = added.content
        else:
            tokens[token] = added.content.encode()

    def encode(text: str) -> list[int]:
        return [int(token) for token in tokenizer.encode(text, add_special_tokens=False)]

    return Vocabulary(tokens, eos=eos, special=special, tokenize=encode)


def _bytes_of(text: str, decoder: dict[str, int]) -> bytes:
    try:
        return bytes(decoder[character] for character in text)
    except KeyError as error:
        raise VocabularyError(
            "vocabulary",
            f"token {text!r} is not in the tokenizer's byte alphabet",
            evidence=f"no byte is spelled {error.args[0]!r}",
        ) from error


# Names of the maximum number of positions in configurations.
_CONTEXTS: Final = ("max_sequence_length", "max_position_embeddings")

# Tokens that end a chat turn.  Tokenizers of diffusion models name the padding after an answer as EOS, which is right
# for the tail of a canvas; answers were trained to end with one of these tokens.
_TURN_ENDS: Final = ("<|eot_id|>", "<|im_end|>")


@final
class TransformersDiffusion(Live):
    """A loaded masked diffusion network and its tokenizer.

    Args:
        model: the network: ``model(input_ids=...)`` returns ``.logits``; set to evaluation mode.
        tokenizer: the tokenizer of transformers for the model.
        mask_token: MASK, as an id or the text of a special token; None takes it from configuration, generation settings
            or tokenizer.
        shift: 0 if logits at position ``i`` are about position ``i``, 1 if they are about ``i + 1``; None uses the
            shift of the model's family.
        name: the model's name in messages; by default the name that it was loaded by.
        resident: whether logits stay on the model's device and are queried there; None: only on a GPU.

    Raises:
        ModelError: MASK, the shift or EOS is neither given nor known, or MASK is no id of the model.
        VocabularyError: the bytes of the tokenizer's tokens are not well defined.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        *,
        mask_token: int | str | None = None,
        shift: int | None = None,
        name: str | None = None,
        resident: bool | None = None,
    ) -> None:
        self.model = model.eval()
        self.tokenizer = tokenizer
        self.name: str = name or getattr(model.config, "name_or_path", "") or type(written(model)).__name__
        self.shift = _shift(model.config, shift, self.name)
        parameters = inspect.signature(written(model).forward).parameters
        self._options: dict[str, Any] = {
            key: value for key, value in {"use_cache": False, "return_dict": True}.items() if key in parameters
        }
        self._keep = next((key for key in ("logits_to_keep", "num_logits_to_keep") if key in parameters), None)
        self.replaces_slots = {"replace_position", "past_key_values", "use_cache"} <= parameters.keys()
        # The arguments of a call that replaces some keys and values of an earlier pass.
        self.replacing = {"dual_cache": True} if "dual_cache" in parameters else {}
        bounds = (getattr(model.config, key, None) for key in _CONTEXTS)
        self.max_context: int | None = next((bound for bound in bounds if isinstance(bound, int) and bound > 0), None)
        self.id_limit: int = model.get_input_embeddings().weight.shape[0]
        width = self._head_width()
        self.mask_token = self._find_mask(mask_token, min(width, self.id_limit))
        self.vocabulary = load_vocabulary(tokenizer, size=width, eos=self._end_ids(width), mask_token=self.mask_token)
        self.residence = CanvasResidence() if is_resident_on(self.device, requested=resident) else None

    @property
    def device(self) -> torch.device:
        """The device of the network's input."""
        device: torch.device = self.model.get_input_embeddings().weight.device
        return device

    @property
    def limits(self) -> CanvasLimits:
        """The limits of the model's input."""
        return CanvasLimits(self.name, self.id_limit, self.max_context)

    def encode_prompt(self, prompt: Prompt, /, *, chat: bool = True) -> list[int]:
        """See ``DiffusionModel.encode_prompt``."""
        return chat_prompt(self.tokenizer, prompt, chat=chat, name=self.name)

    def start(self, prompt_ids: Sequence[int], /) -> TransformersDenoiser | CachingTransformersDenoiser:
        """Return a denoiser; a caching one if the network can replace some keys and values.

        A network with shift 1 has no logits about the first position: BOS, else EOS, replaces an empty prompt.
        """
        ids = self.limits.check_prompt(prompt_ids)
        if self.shift and not ids:
            bos = getattr(self.tokenizer, "bos_token_id", None)
            ids = [self.vocabulary.eos[0] if bos is None else int(bos)]
        return CachingTransformersDenoiser(self, ids) if self.replaces_slots else TransformersDenoiser(self, ids)

    def logits_at(self, rows: NDArray[np.int32], start: int, stop: int) -> torch.Tensor:
        """Run rows of ids, ``[n, positions]``; return the on-device logits at positions ``start`` to ``stop``."""
        extra: dict[str, Any] = {self._keep: rows.shape[1] - start} if self._keep else {}
        return self.pass_over(rows, start, stop, **extra)[0]

    def pass_over(self, rows: NDArray[np.int32], start: int, stop: int, **options: Any) -> tuple[torch.Tensor, Any]:
        """Run the network once; return the logits at the queried positions, and its whole output.

        The logits have the dtype of the network, and its next pass may overwrite them.

        Raises:
            GenerationError: the pass fails, or the logits have another width than the output head.
        """
        with self.explained(rows.shape), torch.inference_mode():
            ids = torch.from_numpy(np.ascontiguousarray(rows, dtype=np.int64)).to(self.device)
            output = self.model(input_ids=ids, **{**self._options, **options})
            logits: torch.Tensor = output.logits
            # If only the last positions were requested, the network may have returned only these.
            left_out = start if logits.shape[1] == options.get(self._keep or "") else 0
            queried = logits[:, start - left_out : stop - left_out, : self.vocabulary.size]
            if self.residence is None:
                queried = queried.float().cpu()
        if logits.shape[1] != rows.shape[1] - left_out or queried.shape[2] != self.vocabulary.size:
            raise GenerationError(
                f"model {self.name!r}",
                "the network's logits have another shape than its configuration states",
                evidence=f"found {list(logits.shape)} for {rows.shape[1]} positions and {self.vocabulary.size} tokens",
            )
        return queried, output

    @contextmanager
    def explained(self, shape: tuple[int, ...]) -> Iterator[None]:
        """Convert any error within, also in a transfer to the host, into one about the pass over these canvases."""
        try:
            yield
        except Exception as error:  # the network's code may raise anything
            raise GenerationError(
                f"model {self.name!r}",
                "the forward pass failed",
                evidence=f"{type(error).__name__}: {error} with {shape[0]} canvases of {shape[1]} positions",
                remedy="query fewer canvases at once, choose another device, or a smaller dtype",
            ) from error

    def _head_width(self) -> int:
        config = self.model.config
        return head_width(self.model) or int(getattr(config, "embedding_size", None) or config.vocab_size)

    def _find_mask(self, given: int | str | None, limit: int) -> int:
        sources = {
            "config": self.model.config,
            "generation_config": getattr(self.model, "generation_config", None),
            "tokenizer": self.tokenizer,
        }
        named = {name: getattr(source, "mask_token_id", None) for name, source in sources.items()}
        token_id = self.tokenizer.convert_tokens_to_ids(given) if isinstance(given, str) else given
        if isinstance(given, str) and (token_id is None or token_id == getattr(self.tokenizer, "unk_token_id", None)):
            raise ModelError(
                f"mask_token={given!r}",
                f"the tokenizer of model {self.name!r} has no such token",
                remedy="pass the id, or the text of one of its special tokens",
            )
        if token_id is None:
            token_id = next((token for token in named.values() if token is not None), None)
        if token_id is None:
            raise ModelError(
                f"model {self.name!r}",
                "no MASK is known, so it may be no masked diffusion model",
                evidence=f"looked for mask_token_id in {', '.join(named)}",
                remedy="pass mask_token=, the id or the text of the token",
            )
        if not 0 <= int(token_id) < limit:
            raise ModelError(
                f"model {self.name!r}",
                f"MASK cannot be token {token_id}",
                evidence=f"its embedding and logits have the tokens 0 to {limit - 1}",
                remedy="pass mask_token=, the id or the text of the token",
            )
        return int(token_id)

    def _end_ids(self, width: int) -> list[int]:
        """Return the EOS ids that generation settings, configuration and tokenizer name, then ends of turns."""
        added = self.tokenizer.get_added_vocab()
        ids = [*named_eos(self.model, self.tokenizer), *(added[text] for text in _TURN_ENDS if text in added)]
        eos = [int(token) for token in dict.fromkeys(ids) if 0 <= token < width and token != self.mask_token]
        if not eos:
            raise ModelError(
                f"model {self.name!r}",
                "neither the model nor its tokenizer names an EOS",
                remedy="set tokenizer.eos_token or model.config.eos_token_id and pass both",
            )
        return eos

    def __repr__(self) -> str:
        return f"<TransformersDiffusion {self.name}, shift {self.shift}, {self.model.dtype} on {self.model.device}>"


class TransformersDenoiser:
    """A ``TransformersDiffusion`` that has read one prompt; nothing is cached."""

    def __init__(self, model: TransformersDiffusion, prompt_ids: list[int]) -> None:
        self.model = model
        self.forwards = 0
        self._prompt = np.array(prompt_ids, dtype=np.int32)

    def denoise(self, canvases: Canvases, /, *, start: int = 0, stop: int | None = None) -> Logits:
        """See ``Denoiser.denoise``."""
        logits = self._pass(canvases, start, stop)
        with self.model.explained(logits.shape):
            host: Logits = logits.float().cpu().numpy()
        return host

    @property
    def is_resident(self) -> bool:
        """See ``ResidentDenoiser.is_resident``."""
        return self.model.residence is not None

    def denoise_resident(self, canvases: Canvases, queried: NDArray[np.bool_], /) -> list[SlotLogits]:
        """See ``ResidentDenoiser.denoise_resident``."""
        residence = self.model.residence or CanvasResidence()
        mask = self.model.limits.check_queried(canvases, queried)
        logits = self._pass(canvases)
        with self.model.explained(logits.shape):
            return list(slot_logits(residence, picked(residence, logits, mask), mask))

    def _pass(self, canvases: Canvases, start: int = 0, stop: int | None = None) -> torch.Tensor:
        """Run the network; return the logits of the slots ``start`` to ``stop`` of each canvas."""
        limits = self.model.limits
        checked = limits.check_canvases(canvases, prompt_tokens=len(self._prompt))
        start, stop = limits.check_bounds(checked.shape[1], start, stop)
        first = len(self._prompt) - self.model.shift
        prompts = np.broadcast_to(self._prompt, (len(checked), len(self._prompt)))
        logits = self.model.logits_at(np.concatenate([prompts, checked], axis=1), first + start, first + stop)
        self.forwards += 1
        return logits

    def close(self) -> None:
        """See ``Denoiser.close``."""


@final
class CachingTransformersDenoiser(TransformersDenoiser):
    """A denoiser for networks whose keys and values can be replaced position by position.

    Published checkpoints do not support this; the networks of Fast-dLLM (Wu et al. 2025, arXiv 2505.22618) do.  With
    ``use_cache=True`` they return ``past_key_values``.  Given these and ``replace_position``, bool ``[1, positions]``,
    they run the marked positions only.  They accept one range of positions, so all slots between the first and the last
    live slot run, which costs time but no accuracy.

    The first pass, and the first after ``forget``, runs the prompt too.
    """

    def __init__(self, model: TransformersDiffusion, prompt_ids: list[int]) -> None:
        super().__init__(model, prompt_ids)
        self._kept: Any = None
        self._logits = LiveLogits(model.residence)

    def denoise_live(self, canvas: NDArray[np.int32], live: NDArray[np.bool_], /) -> Logits:
        """See ``CachingDenoiser.denoise_live``."""
        self._run(canvas, live)
        return self._logits.host()

    def denoise_live_resident(
        self, canvas: NDArray[np.int32], live: NDArray[np.bool_], queried: NDArray[np.bool_], /
    ) -> SlotLogits:
        """See ``ResidentCachingDenoiser.denoise_live_resident``."""
        mask = self.model.limits.check_queried(canvas, queried)
        self._run(canvas, live)
        return self._logits.resident(mask)

    def _run(self, canvas: NDArray[np.int32], live: NDArray[np.bool_]) -> None:
        """Run the live slots; afterwards the logits of all slots are available."""
        row, mask = self.model.limits.check_live(canvas, live, prompt_tokens=len(self._prompt))
        slots = np.flatnonzero(mask)
        ids = np.concatenate([self._prompt, row])[None]
        if len(self._logits) != len(row):
            self._refresh(ids, len(row))
        elif len(slots):
            self._replace(ids, int(slots[0]), int(slots[-1]) + 1)

    def _refresh(self, ids: NDArray[np.int32], slots: int) -> None:
        self.forget()
        first = len(self._prompt) - self.model.shift
        logits, output = self.model.pass_over(ids, first, first + slots, use_cache=True)
        self._kept = output.past_key_values
        self._logits.begin(logits[0])
        self.forwards += 1

    def _replace(self, ids: NDArray[np.int32], start: int, stop: int) -> None:
        """Run the slots ``start`` to ``stop``.

        With shift 1, also run the position before ``start``: its logits are about slot ``start``.
        """
        model = self.model
        begin = len(self._prompt) + start - model.shift
        end = len(self._prompt) + stop
        marked = torch.zeros(ids.shape, dtype=torch.bool, device=model.device)
        marked[:, begin:end] = True
        try:
            logits, output = model.pass_over(
                ids[:, begin:end],
                0,
                stop - start,
                use_cache=True,
                past_key_values=self._kept,
                replace_position=marked,
                **model.replacing,
            )
        except BaseException:
            self.forget()  # some layers may have been written and others not
            raise
        self._kept = output.past_key_values
        self._logits.write(slice(start, stop), logits[0])
        self.forwards += 1

    def forget(self) -> None:
        """Drop all keys and values, also of the prompt, because the prompt attends to the canvas."""
        self._kept = None
        self._logits.forget()

    def close(self) -> None:
        """See ``Denoiser.close``."""
        self.forget()


def _shift(config: Any, given: int | None, name: str) -> int:
    """Return the shift of a network's logits: 0 or 1.

    Raises:
        ModelError: the given shift is not 0 or 1, or none is known.
    """
    if given is not None:
        if given not in (0, 1):
            raise ModelError(f"shift={given!r}", "logits at position i are about position i (0) or i + 1 (1)")
        return int(given)
    family = str(getattr(config, "model_type", "")).lower()
    if family in CANVAS_SHIFTS:
        return CANVAS_SHIFTS[family]
    named = [*(getattr(config, "architectures", None) or ()), *(getattr(config, "auto_map", None) or ())]
    if any(each.endswith("ForMaskedLM") for each in named):
        return 0
    raise ModelError(
        f"model {name!r}",
        "the position that its logits are about is unknown",
        evidence=f"its model_type is {family!r}; known are {', '.join(CANVAS_SHIFTS)} and masked language models",
        remedy="pass shift=0 where logits at position i are about i, as LLaDA's, or shift=1 for i + 1, as Dream's",
    )

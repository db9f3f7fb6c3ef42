"""A ``LanguageModel`` over ``LlamaNetwork``: what ``load_model()`` returns for the embedded model."""

from __future__ import annotations

import json
from functools import cached_property
from typing import TYPE_CHECKING

from structgen.engine.vocabulary import Vocabulary
from structgen.errors import GenerationError, ModelError
from structgen.models.chat import messages_of_prompt, render_chat
from structgen.models.extension import check_extension, check_truncation
from structgen.models.llama_network import KeyValues, LlamaNetwork

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import torch
    from tokenizers import Tokenizer

    from structgen.models.protocol import Logits, Prompt

__all__ = ["LlamaModel", "LlamaSession"]


class LlamaModel:
    """A Llama from a folder of Hugging Face files.

    Args:
        folder: holds ``config.json``, ``generation_config.json``, ``model.safetensors``, ``tokenizer.json``
            and ``chat_template.jinja``.
        name: what messages call the model.
        device: where to run it.
        dtype: of weights, cache and sums.

    Raises:
        ModelError: a file is missing or damaged.
    """

    def __init__(self, folder: Path, *, name: str, device: torch.device, dtype: torch.dtype) -> None:
        self.name = name
        self.folder = folder
        self.network = LlamaNetwork.load(folder, device=device, dtype=dtype, name=name)
        self.max_context: int | None = self.network.shape.max_context
        try:
            self._template = (folder / "chat_template.jinja").read_text(encoding="utf-8")
            generation = json.loads((folder / "generation_config.json").read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ModelError(f"model {name!r}", "its files cannot be read", evidence=str(error)) from error
        eos = generation["eos_token_id"]
        self._eos = tuple(eos) if isinstance(eos, list) else (eos,)
        self._bos: int | None = generation.get("bos_token_id")

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """The tokens, as wide as the logits."""
        return Vocabulary.load(self.folder / "tokenizer.json", size=self.network.shape.vocabulary, eos=self._eos)

    @cached_property
    def _tokenizer(self) -> Tokenizer:
        from tokenizers import Tokenizer

        return Tokenizer.from_file(str(self.folder / "tokenizer.json"))

    def encode_prompt(self, prompt: Prompt, /, *, chat: bool = True) -> list[int]:
        """See ``LanguageModel.encode_prompt``."""
        if isinstance(prompt, str) and not chat:
            text = prompt
        else:
            text = render_chat(self._template, messages_of_prompt(prompt), name=self.name)
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids or [self._eos[0] if self._bos is None else self._bos]

    def start(self) -> LlamaSession:
        """Return an empty session."""
        return LlamaSession(self)

    def __repr__(self) -> str:
        return f"<LlamaModel {self.name}, {self.network.dtype} on {self.network.device}>"


class LlamaSession:
    """One sequence of a ``LlamaModel``."""

    def __init__(self, model: LlamaModel) -> None:
        self._model = model
        self._cache = self._empty()
        self.forwards = 0

    def _empty(self) -> KeyValues:
        network = self._model.network
        return KeyValues(network.shape, device=network.device, dtype=network.dtype)

    @property
    def length(self) -> int:
        """Tokens in the sequence."""
        return self._cache.length

    def extend(self, token_ids: Sequence[int], /) -> Logits:
        """See ``Session.extend``."""
        row: Logits = self._run(token_ids, all_positions=False)[0]
        return row

    def extend_all(self, token_ids: Sequence[int], /) -> Logits:
        """See ``Session.extend_all``."""
        return self._run(token_ids, all_positions=True)

    def _run(self, token_ids: Sequence[int], *, all_positions: bool) -> Logits:
        network = self._model.network
        ids = check_extension(
            token_ids,
            length=self.length,
            name=self._model.name,
            id_limit=network.shape.vocabulary,
            max_context=network.shape.max_context,
        )
        try:
            logits = network.forward(ids, self._cache, all_positions=all_positions)
        except (
            RuntimeError,
            MemoryError,
        ) as error:  # torch reports memory that cannot be had as RuntimeError
            raise GenerationError(
                f"model {self._model.name!r}",
                "the forward pass failed",
                evidence=f"{error} at {self.length} + {len(ids)} tokens",
                remedy="shorten the prompt or choose another device",
            ) from error
        self._cache.length += len(ids)
        self.forwards += 1
        result: Logits = logits.cpu().numpy()
        return result

    def truncate(self, length: int, /) -> None:
        """See ``Session.truncate``; O(1)."""
        check_truncation(length, held=self.length, name=self._model.name)
        self._cache.length = length

    def fork(self) -> LlamaSession:
        """See ``Session.fork``; copies the cache, O(length)."""
        copy = LlamaSession(self._model)
        copy._cache = self._cache.fork()
        return copy

    def close(self) -> None:
        """See ``Session.close``."""
        self._cache = self._empty()

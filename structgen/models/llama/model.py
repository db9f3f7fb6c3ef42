"""A ``LanguageModel`` over ``LlamaNetwork``; ``load_model()`` returns it for the embedded model."""

from __future__ import annotations

import json
from functools import cached_property
from typing import TYPE_CHECKING

import torch

from structgen.engine.vocabulary import Vocabulary
from structgen.errors import GenerationError, ModelError
from structgen.models.control_tokens import ControlTokens
from structgen.models.llama.cache import KeyValues, Part
from structgen.models.llama.layers import LlamaLayers
from structgen.models.llama.network import LlamaNetwork
from structgen.models.model_input import messages_of_prompt, render_chat
from structgen.models.pass_times import pass_times
from structgen.models.protocol import Extension
from structgen.models.session import PackedSession, SequenceLimits, check_kept, check_truncation
from structgen.models.torch_logits import Residence, TorchLogits, is_resident_on
from structgen.models.torch_passes import TorchPasses
from structgen.travel import Live

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from tokenizers import Tokenizer

    from structgen.models.pass_times import PassTimes
    from structgen.models.protocol import Logits, Mixture, Prompt, ResidentLogits
    from structgen.models.protocol.tree import TokenTree

__all__ = ["LlamaModel", "LlamaSession"]


class LlamaModel(Live):
    """A Llama from a folder of Hugging Face files.

    Args:
        folder: contains ``config.json``, ``generation_config.json``, ``model.safetensors``, ``tokenizer.json`` and
            ``chat_template.jinja``.
        name: the model's name in messages.
        device: the device of the model.
        dtype: the dtype of weights, cache and sums; ``torch.int8``: of the weights in products on a CPU, the rest in
            float32.
        resident: whether logits stay on the device and tokens are sampled there; None: only on a GPU.

    Raises:
        ModelError: a file is missing or damaged.
    """

    def __init__(
        self, folder: Path, *, name: str, device: torch.device, dtype: torch.dtype, resident: bool | None = None
    ) -> None:
        self.name = name
        self.is_resident = is_resident_on(device, requested=resident)
        self.residence = Residence()
        self.folder = folder
        # Logits are the same for every number of threads, to the last bit.
        self.passes = TorchPasses(device, learns=True, is_checked=True)
        self.network = self.passes.run(lambda: LlamaNetwork.load(folder, device=device, dtype=dtype, name=name))
        self.max_context: int | None = self.network.shape.max_context
        try:
            self.chat_template = (folder / "chat_template.jinja").read_text(encoding="utf-8")
            generation = json.loads((folder / "generation_config.json").read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ModelError(
                f"model {name!r}",
                "its files cannot be read",
                evidence=str(error),
                remedy="check that the files are complete",
            ) from error
        eos = generation["eos_token_id"]
        self._eos = tuple(eos) if isinstance(eos, list) else (eos,)
        self._bos: int | None = generation.get("bos_token_id")

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """The vocabulary, as wide as the logits."""
        return Vocabulary.load(self.folder / "tokenizer.json", size=self.network.shape.vocabulary, eos=self._eos)

    @property
    def pass_times(self) -> PassTimes | None:
        """See ``structgen.models.pass_times``; None on a GPU, where rows cost next to nothing."""
        if self.network.device.type != "cpu":
            return None
        network = self.network
        kind = (network.shape, network.is_quantised, network.dtype, torch.get_num_threads())
        facts = ("llama", torch.__version__, torch.backends.cpu.get_cpu_capability(), *kind)
        return pass_times(self, facts)

    @cached_property
    def _tokenizer(self) -> Tokenizer:
        from tokenizers import Tokenizer

        return Tokenizer.from_file(str(self.folder / "tokenizer.json"))

    @property
    def limits(self) -> SequenceLimits:
        """The limits of the model's input."""
        return SequenceLimits(self.name, self.network.shape.vocabulary, self.network.shape.max_context)

    def encode_prompt(self, prompt: Prompt, /, *, chat: bool = True) -> list[int]:
        """See ``LanguageModel.encode_prompt``."""
        special = {name: token for token, name in self.vocabulary.special.items()}
        added = self._tokenizer.get_added_tokens_decoder().items()
        others = {each.content: token for token, each in added if not each.special}
        control, as_text = ControlTokens(special, others, self.chat_template), self.vocabulary.tokenize
        if isinstance(prompt, str) and not chat:
            ids = control.text_ids(prompt, self._encode, as_text)
        else:
            ids = control.chat_ids(messages_of_prompt(prompt), self._render, self._encode, as_text)
        return ids or [self._eos[0] if self._bos is None else self._bos]

    def _encode(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def _render(self, messages: list[dict[str, str]]) -> str:
        return render_chat(self.chat_template, messages, name=self.name)

    def start(self) -> LlamaSession:
        """Return an empty session."""
        return LlamaSession(self)

    def extend_many(self, extensions: Sequence[Extension], /) -> list[Logits]:
        """See ``PackedModel.extend_many``."""
        return self.run(*self._together(extensions))

    def extend_many_resident(self, extensions: Sequence[Extension], /) -> list[ResidentLogits]:
        """See ``ResidentModel.extend_many_resident``."""
        return [TorchLogits(self.residence, each) for each in self.run_resident(*self._together(extensions))]

    def _together(self, extensions: Sequence[Extension]) -> tuple[list[LlamaSession], list[Part]]:
        """The sessions of a pass, and what it runs of each."""
        sessions: list[LlamaSession] = []
        parts = []
        for session, token_ids, all_positions, tree in extensions:
            if not isinstance(session, LlamaSession) or session.model is not self:
                raise GenerationError(f"model {self.name!r}", f"{session!r} is a session of another model")
            sessions.append(session)
            parts.append(session.part(token_ids, all_positions=all_positions, tree=tree))
        return sessions, parts

    def run(self, sessions: Sequence[LlamaSession], parts: Sequence[Part]) -> list[Logits]:
        """Extend sessions by their parts in one forward pass.

        Raises:
            GenerationError: the pass fails; then no session is extended.
        """
        rows: list[Logits] = [each.cpu().numpy() for each in self.run_resident(sessions, parts)]
        return [
            each if part.all_positions or part.tree is not None else each[0]
            for each, part in zip(rows, parts, strict=True)
        ]

    def run_resident(self, sessions: Sequence[LlamaSession], parts: Sequence[Part]) -> list[torch.Tensor]:
        """As ``run``, with logits that stay on the device: ``[n, size]`` for each session.

        Raises:
            GenerationError: as ``run``.
        """
        for session in sessions:
            session.drop_tree()  # the pass overwrites it
        try:
            watched: dict[int, torch.Tensor | None] = {layer: None for each in sessions for layer in each.watched}
            rows = sum(part.rows for part in parts)
            logits = self.passes.run(lambda: self.network.forward(parts, watched=watched), rows=rows)
        except (RuntimeError, MemoryError) as error:  # torch reports exhausted memory as RuntimeError
            raise GenerationError(
                f"model {self.name!r}",
                "the forward pass failed",
                evidence=f"{error} at " + ", ".join(f"{part.start} + {part.rows}" for part in parts) + " tokens",
                remedy="shorten the prompt or choose another device",
            ) from error
        start = 0
        for session, part in zip(sessions, parts, strict=True):
            session.note(watched, start, start + part.rows)
            start += part.rows
            session.take(part)
        return logits

    def inferred(self, work: Callable[[], torch.Tensor]) -> torch.Tensor:
        """Return what work with the network's tensors gives, done where its passes run."""

        def run() -> torch.Tensor:
            with torch.inference_mode():
                return work()

        return self.passes.run(run)

    def __repr__(self) -> str:
        dtype = torch.int8 if self.network.is_quantised else self.network.dtype
        return f"<LlamaModel {self.name}, {dtype} on {self.network.device}>"


class LlamaSession(LlamaLayers, PackedSession):
    """One sequence of a ``LlamaModel``.

    Invariant: if there is a tree, its entries are in the cache after those of the sequence.
    """

    def __init__(self, model: LlamaModel) -> None:
        super().__init__()
        self.model = model
        network = model.network
        self._cache = KeyValues(network.shape, device=network.device, dtype=network.dtype)
        self._tree: TokenTree | None = None
        self.forwards = 0

    @property
    def can_branch(self) -> bool:
        """Always."""
        return True

    def _run(self, token_ids: Sequence[int], *, all_positions: bool, tree: TokenTree | None = None) -> Logits:
        return self.model.extend_many([Extension(self, token_ids, all_positions, tree)])[0]

    def extend_mixed(self, mixtures: Sequence[Mixture], /) -> Logits:
        """See ``SuperposableSession.extend_mixed``: embeddings are mixed."""
        checked = self.model.limits.check_mixtures(mixtures, length=self.length)
        first_tokens = [next(iter(mixture)) for mixture in checked]
        return self.model.run([self], [Part(first_tokens, self._cache, all_positions=False, mixtures=checked)])[0]

    @property
    def is_resident(self) -> bool:
        """See ``ResidentSession.is_resident``."""
        return self.model.is_resident

    def extend_resident(
        self, token_ids: Sequence[int], /, *, all_positions: bool = False, tree: TokenTree | None = None
    ) -> ResidentLogits:
        """See ``ResidentSession.extend_resident``."""
        part = self.part(token_ids, all_positions=all_positions, tree=tree)
        return TorchLogits(self.model.residence, self.model.run_resident([self], [part])[0])

    def keep(self, nodes: Sequence[int], /) -> None:
        """See ``TreeSession.keep``; entries are copied only if the nodes are not the first of the tree."""
        check_kept(nodes, tree=self._tree, name=self.model.name)
        self.drop_tree()  # first: an interruption may leave some entries overwritten
        self.model.passes.run(lambda: self._cache.keep(nodes))

    def drop_tree(self) -> None:
        """Drop the tree of the last pass."""
        self._tree = None

    def part(self, token_ids: Sequence[int], *, all_positions: bool, tree: TokenTree | None = None) -> Part:
        """Return this session's part in a forward pass.

        Raises:
            GenerationError: as ``extend`` and ``extend_tree``.
        """
        ids = self.model.limits.check_extension(token_ids, length=self.length, tree=tree)
        return Part(ids, self._cache, all_positions, tree=tree)

    def take(self, part: Part) -> None:
        """Append the tokens of ``part``, after a forward pass has written them to the cache."""
        self._cache.advance(len(part.token_ids))
        self._tree = part.tree
        self.forwards += 1

    def truncate(self, length: int, /) -> None:
        """See ``Session.truncate``."""
        check_truncation(length, held=self.length, name=self.model.name)
        self.drop_tree()
        self._cache.truncate(length)

    def fork(self) -> LlamaSession:
        """See ``Session.fork``; O(1), the cache is shared."""
        self.drop_tree()
        copy = LlamaSession(self.model)
        copy._cache = self.model.passes.run(self._cache.fork)
        return copy

    def close(self) -> None:
        """See ``Session.close``."""
        self.drop_tree()
        self._cache.truncate(0)

"""A ``LanguageModel`` that llama.cpp runs, from a GGUF file."""

from __future__ import annotations

import ctypes
import os
from functools import cached_property, partial
from typing import TYPE_CHECKING, Final

from structgen.engine.tokenizers.gguf import read_gguf_header
from structgen.engine.vocabulary import Vocabulary
from structgen.errors import GenerationError, ModelError
from structgen.models.control_tokens import ControlTokens
from structgen.models.llama_cpp.library import library
from structgen.models.llama_cpp.runner import Request, RowAlone, Runner
from structgen.models.model_input import messages_of_prompt, render_chat
from structgen.models.pass_times import pass_times
from structgen.models.protocol import Extension
from structgen.models.session import PackedSession, SequenceLimits, check_kept, check_truncation
from structgen.travel import Live

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from structgen.models.pass_times import PassTimes
    from structgen.models.protocol import Logits, Prompt
    from structgen.models.protocol.tree import TokenTree

__all__ = ["LlamaCppModel", "LlamaCppSession"]

_UNQUANTISED: Final = (0, 1, 32)
"""``general.file_type`` of files in float32, float16 and bfloat16."""
_MAX_LAYERS: Final = 512  # LLAMA_MAX_LAYERS
_CONTROL_KINDS: Final = (2, 3)
"""``tokenizer.ggml.token_type`` of the unknown token and of control tokens."""
_USER_DEFINED: Final = 4
_SPECIAL_TEXTS: Final = ("bos", "eos", "unknown", "padding", "separator", "mask")


class LlamaCppModel(Live):
    """A model of a GGUF file, with its own quantised weights.

    Products are computed in the integers of the file's quantisation, and keys and values are stored in float16.  So
    logits differ from those of the same weights in torch, and depend a little on how many rows share a pass.

    Args:
        path: the GGUF file.
        name: the model's name in messages; None takes the file's.
        device: ``"auto"`` (GPUs that the installed llama.cpp supports, else the CPU) or ``"cpu"``.
        threads: the most CPU threads of a pass; None: as many as this process has cores.  Passes over few rows take
            fewer where these turn out to be faster; logits do not depend on it.
        eos: ids or names of the tokens that end an answer; None: all that llama.cpp takes for such.

    Raises:
        ModelError: llama.cpp is not installed or refuses the file, or the model does not write text.
        VocabularyError: the file's tokenizer is not supported, or its tokens are not well defined.
    """

    def __init__(
        self,
        path: Path,
        *,
        name: str | None = None,
        device: str = "auto",
        threads: int | None = None,
        eos: Sequence[int | str] | None = None,
    ) -> None:
        self.name = path.stem if name is None else name
        self.path = path
        self._eos = eos
        self._library = library()
        self._header: Mapping[str, object] = read_gguf_header(path)
        _check_header(self._header, path)
        is_on_cpu = device == "cpu" or not self._library.llama_supports_gpu_offload()
        address = self._library.load_model(path, gpu_layers=0 if is_on_cpu else None)
        if not address:
            raise ModelError(
                f"file {path.name!r}",
                "llama.cpp cannot load it",
                evidence=self._library.last_errors(),
                remedy="check that the file is complete, and that this llama.cpp knows its architecture",
            )
        if self._library.llama_model_has_encoder(address):
            self._library.llama_model_free(address)
            raise ModelError(f"file {path.name!r}", "its model has an encoder", remedy="name a model that writes text")
        self._vocabulary_address: int = self._library.llama_model_get_vocab(address)
        self._width: int = self._library.llama_vocab_n_tokens(self._vocabulary_address)
        self.max_context: int | None = self._library.llama_model_n_ctx_train(address)
        self.is_recurrent = bool(self._library.llama_model_is_recurrent(address)) or (
            self._library.has("llama_model_is_hybrid") and bool(self._library.llama_model_is_hybrid(address))
        )
        self.chat_template = self._text("tokenizer.chat_template")
        self._threads = threads or _cores()
        self.runner = Runner(
            self._library,
            address,
            name=self.name,
            width=self._width,
            context=self.max_context,
            threads=self._threads,
            is_on_cpu=is_on_cpu,
            row_alone=self._row_alone(),
        )

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """The vocabulary, as wide as the logits."""
        ends: Sequence[int | str] | None = self._eos
        if ends is None:
            is_end = self._library.llama_vocab_is_eog
            found = [token for token in range(self._width) if is_end(self._vocabulary_address, token)]
            first = self._header.get("tokenizer.ggml.eos_token_id")
            ends = sorted(found, key=lambda token: token != first)
        return Vocabulary.load(self.path, size=self._width, eos=ends or None)

    @property
    def limits(self) -> SequenceLimits:
        """The limits of the model's input."""
        return SequenceLimits(self.name, self._width, self.max_context)

    def encode_prompt(self, prompt: Prompt, /, *, chat: bool = True) -> list[int]:
        """See ``LanguageModel.encode_prompt``."""
        template = self.chat_template
        control = ControlTokens(*self._added_tokens, template)

        def as_text(text: str, *, begins: bool = False) -> list[int]:
            return self._tokenize(text, begins=begins, reads_special=False)

        if isinstance(prompt, str) and not (chat and template):
            return control.text_ids(prompt, partial(as_text, begins=True), as_text) or [self.vocabulary.eos[0]]
        if template is None:
            raise ModelError(
                f"model {self.name!r}",
                "it has no chat template, so messages cannot be rendered",
                remedy="pass the prompt as one text",
            )
        return control.chat_ids(
            messages_of_prompt(prompt),
            lambda messages: render_chat(template, messages, name=self.name, special=self._special),
            lambda text: self._tokenize(text, begins=False, reads_special=True),
            as_text,
        )

    def start(self) -> LlamaCppSession:
        """Return an empty session."""
        return LlamaCppSession(self)

    def extend_many(self, extensions: Sequence[Extension], /) -> list[Logits]:
        """See ``PackedModel.extend_many``."""
        sessions: list[LlamaCppSession] = []
        requests: list[Request] = []
        for session, token_ids, all_positions, tree in extensions:
            if not isinstance(session, LlamaCppSession) or session.model is not self:
                raise GenerationError(f"model {self.name!r}", f"{session!r} is a session of another model")
            ids = self.limits.check_extension(token_ids, length=session.length, tree=tree)
            sessions.append(session)
            requests.append(Request(session.place, [*session.tokens, *ids], len(ids), all_positions, tree))
        rows = self.runner.run(requests)
        for session, request in zip(sessions, requests, strict=True):
            session.take(request)
        return [
            each if request.all_positions or request.tree is not None else each[0]
            for each, request in zip(rows, requests, strict=True)
        ]

    @property
    def can_branch(self) -> bool:
        """Whether sessions run trees: where all states are cells of the cache, and the weights are not quantised.

        After a path of a tree that is not its first, the cache has gaps, and sums have another order.  Quantised
        products make up to 1 of that in a logit, so that drafts would change texts (0.05 in unquantised files).
        """
        return not self.is_recurrent and self._is_unquantised

    @property
    def _is_unquantised(self) -> bool:
        return self._header.get("general.file_type") in _UNQUANTISED

    def _row_alone(self) -> RowAlone:
        if self.is_recurrent:  # its states would need a second sequence, and its sums do not depend on threads
            return RowAlone.ALWAYS
        if self._is_unquantised or "general.file_type" not in self._header:
            return RowAlone.NEVER
        return RowAlone.ONE_THREAD

    @property
    def pass_times(self) -> PassTimes | None:
        """See ``structgen.models.pass_times``."""
        file, compiled = self.path.stat(), self._library.path.stat()
        facts = (file.st_size, file.st_mtime_ns, compiled.st_size, compiled.st_mtime_ns, self._threads)
        return pass_times(self, ("llama.cpp", *facts))

    def _tokenize(self, text: str, *, begins: bool, reads_special: bool) -> list[int]:
        """Tokenize a text with the file's tokenizer.

        ``begins`` adds BOS where the file says so; ``reads_special`` makes control tokens of their spellings.
        """
        data = text.encode("utf-8", "surrogatepass")
        size = len(data) + 8
        while True:
            tokens = (ctypes.c_int32 * size)()
            count = self._library.llama_tokenize(
                self._vocabulary_address, data, len(data), ctypes.addressof(tokens), size, begins, reads_special
            )
            if count >= 0:
                return list(tokens[:count])
            size = -count

    @cached_property
    def _added_tokens(self) -> tuple[dict[str, int], dict[str, int]]:
        """The special tokens, and the others that llama.cpp finds in texts before all else, by their spellings."""
        tokens, kinds = (self._header.get(f"tokenizer.ggml.{key}") for key in ("tokens", "token_type"))
        special = {name: token for token, name in self.vocabulary.special.items()}
        others = {}
        pairs = zip(tokens, kinds, strict=True) if isinstance(tokens, list) and isinstance(kinds, list) else ()
        for token, (name, kind) in enumerate(pairs):
            if kind in _CONTROL_KINDS:
                special[name.decode("utf-8", "replace")] = token
            elif kind == _USER_DEFINED:
                others[name.decode("utf-8", "replace")] = token
        return special, others

    def _text(self, key: str) -> str | None:
        value = self._header.get(key)
        return value.decode("utf-8", "replace") if isinstance(value, bytes) else None

    @cached_property
    def _special(self) -> dict[str, str]:
        """Variables such as ``bos_token`` that chat templates use."""
        tokens = self._header.get("tokenizer.ggml.tokens")
        found: dict[str, str] = {}
        for role in _SPECIAL_TEXTS:
            token = self._header.get(f"tokenizer.ggml.{role}_token_id")
            if isinstance(tokens, list) and isinstance(token, int) and 0 <= token < len(tokens):
                short = {"unknown": "unk", "padding": "pad", "separator": "sep"}.get(role, role)
                found[f"{short}_token"] = tokens[token].decode("utf-8", "replace")
        return found

    def __repr__(self) -> str:
        return f"<LlamaCppModel {self.name}, {self._library!r}>"


def _check_header(header: Mapping[str, object], path: Path) -> None:
    """Refuse what llama.cpp does not refuse but asserts, which would end the process.

    Raises:
        ModelError: an entry is missing, of another type, or out of range.
    """

    def check(key: str, *, holds: bool, expected: str) -> None:
        if not holds:
            found = header.get(key)
            listed = f"{len(found)} entries" if isinstance(found, list) else f"{found!r:.60}"
            raise ModelError(
                f"file {path.name!r}",
                f"its entry {key} cannot be used",
                evidence=f"expected {expected}; found {listed}",
                remedy="check that the file is complete, or fetch it again",
            )

    name = header.get("general.architecture")
    check("general.architecture", holds=isinstance(name, bytes) and name.isascii(), expected="the name of a network")
    prefix = name.decode() if isinstance(name, bytes) else ""
    for key, most in (("block_count", _MAX_LAYERS), ("context_length", 2**31 - 1), ("embedding_length", 2**31 - 1)):
        value = header.get(f"{prefix}.{key}")
        check(f"{prefix}.{key}", holds=isinstance(value, int) and 1 <= value <= most, expected=f"1 to {most}")
    heads = header.get(f"{prefix}.attention.head_count", 1)
    counts = heads if isinstance(heads, list) else [heads]
    check(
        f"{prefix}.attention.head_count",
        holds=bool(counts) and all(isinstance(count, int) and count >= 0 for count in counts),
        expected="numbers of heads",
    )
    tokens = header.get("tokenizer.ggml.tokens")
    check(
        "tokenizer.ggml.tokens",
        holds=isinstance(tokens, list) and _differ(tokens),
        expected="tokens that differ",
    )
    size = len(tokens) if isinstance(tokens, list) else 0
    for key in ("token_type", "scores"):
        value = header.get(f"tokenizer.ggml.{key}", tokens)
        check(f"tokenizer.ggml.{key}", holds=isinstance(value, list) and len(value) == size, expected=f"{size} entries")


def _differ(tokens: list[object]) -> bool:
    """Whether all tokens differ as llama.cpp reads them: up to a zero byte, and an empty one as if it had a number."""
    read = [token.partition(b"\0")[0] if isinstance(token, bytes) else b"" for token in tokens]
    named = [token for token in read if token]
    return len(tokens) > 0 and len(set(named)) == len(named)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class LlamaCppSession(PackedSession):
    """One sequence of a ``LlamaCppModel``."""

    def __init__(self, model: LlamaCppModel) -> None:
        self.model = model
        self.tokens: list[int] = []
        self.place = model.runner.new_place()
        self._tree: TokenTree | None = None
        self.forwards = 0

    @property
    def length(self) -> int:
        """Tokens in the sequence."""
        return len(self.tokens)

    @property
    def can_branch(self) -> bool:
        """See ``TreeSession.can_branch``."""
        return self.model.can_branch

    @property
    def cuts_freely(self) -> bool:
        """Whether ``truncate`` costs nothing: not where a recurrent state stands for the tokens."""
        return not self.model.is_recurrent

    def _run(self, token_ids: Sequence[int], *, all_positions: bool, tree: TokenTree | None = None) -> Logits:
        return self.model.extend_many([Extension(self, token_ids, all_positions, tree)])[0]

    def keep(self, nodes: Sequence[int], /) -> None:
        """See ``TreeSession.keep``; no cell is copied."""
        tree = check_kept(nodes, tree=self._tree, name=self.model.name)
        self._tree = None  # first: an interruption may leave the tree in part
        self.tokens += [int(tree.token_ids[node]) for node in nodes]
        self.model.runner.keep(self.place, tree, nodes)

    def take(self, request: Request) -> None:
        """Take over what a pass has run."""
        self.tokens = list(request.tokens)
        self._tree = request.tree
        self.forwards += 1

    def truncate(self, length: int, /) -> None:
        """See ``Session.truncate``."""
        check_truncation(length, held=self.length, name=self.model.name)
        self._tree = None
        del self.tokens[length:]
        self.model.runner.cut(self.place, length)

    def fork(self) -> LlamaCppSession:
        """See ``Session.fork``; the cells are shared."""
        self._tree = None
        copy = LlamaCppSession(self.model)
        copy.place = self.model.runner.fork(self.place)
        copy.tokens = list(self.tokens)
        return copy

    def close(self) -> None:
        """See ``Session.close``."""
        self._tree = None
        self.tokens.clear()
        self.model.runner.forget(self.place)

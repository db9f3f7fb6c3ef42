"""The engines under one interface: compile a schema, start a sequence, fill a mask, fill a batch of masks."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np

from structgen.engine import Vocabulary, compile, fill_masks
from structgen.engine.mask import empty_masks
from structgen.errors import VocabularyError
from structgen.frontends.json_schema import JsonPolicy, forget_known, json_schema

__all__ = ["ENGINES", "NEEDS", "Bits", "Engine", "Sequence", "allows", "missing"]

Bits = np.ndarray[Any, np.dtype[np.int32]]

_POLICY: Final = JsonPolicy(whitespace="flexible", additional="written")
"""The language that other engines take a schema for."""
_THREADS: Final = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
"""As many as there are processors that this process may use."""


@dataclass(slots=True)
class Sequence:
    """One text in the making.

    Attributes:
        matcher: the engine's own object.
        fill: write the mask of the next token into ``words``.
        words: int32, [1, ceil(V / 32)]; all sequences of an engine write into the same row.
        accept: take a token; false if it is refused.
        may_end: whether the text is complete.
    """

    matcher: Any
    fill: Callable[[], object]
    words: Bits
    accept: Callable[[int], Any]
    may_end: Callable[[], bool]


class Engine(Protocol):
    """An engine under test, with a tokenizer loaded."""

    name: str
    version: str

    def compile(self, schema: str) -> Any:
        """Compile JSON text; any exception is a refusal."""

    def forget(self) -> None:
        """Drop what is kept of equal schemas, so that the next compilation is a cold one."""

    def start(self, compiled: Any) -> Sequence:
        """Begin a text."""

    def batch(self, sequences: list[Sequence], rows: Bits) -> Callable[[], object]:
        """Return what fills the masks of all sequences at once, on all processors, one row each.

        What can be made once for all calls, such as threads, is.
        """


def allows(words: Bits, token: int, row: int = 0) -> bool:
    """Whether the bit of ``token`` is set."""
    return bool(int(words[row, token >> 5]) >> (token & 31) & 1)


_IMPORTS: Final = (
    '{"pattern": "[a-z]+", "type": "string"}',
    '{"format": "hostname", "type": "string"}',
    '{"not": {"required": ["a"]}, "properties": {"b": {"multipleOf": 3}}}',
    '{"type": "array", "uniqueItems": true, "items": {"enum": [1, "a"]}}',
)
"""Schemas whose front-end modules are imported on first use; that happens before anything is timed."""


def _vocabulary_of(tokenizer: Path) -> Vocabulary:
    vocabulary = Vocabulary.load(tokenizer)
    if not vocabulary.eos:
        raise VocabularyError(
            f"tokenizer {str(tokenizer)!r}",
            "it names no EOS, which ends the instances",
            remedy="put its tokenizer_config.json or generation_config.json beside it, or take another",
        )
    return vocabulary


class Structgen:
    """This project, with its defaults; :func:`~structgen.engine.fill_masks` uses all processors."""

    name = "structgen"

    def __init__(self, tokenizer: Path) -> None:
        try:
            self.version = version("structgen-lm")
        except PackageNotFoundError:
            self.version = "(source tree)"
        self.vocabulary = _vocabulary_of(tokenizer)
        self.eos = self.vocabulary.eos[0]
        self.words: Bits = empty_masks(self.vocabulary.size)
        for schema in _IMPORTS:
            json_schema(schema, policy=_POLICY)
        self.start(self.compile("true")).fill()  # builds the trie
        self.forget()

    def compile(self, schema: str) -> Any:
        return compile(json_schema(schema, policy=_POLICY), self.vocabulary)

    def forget(self) -> None:
        forget_known()
        self.vocabulary.constraints.clear()

    def start(self, compiled: Any) -> Sequence:
        matcher, words = compiled.matcher(), self.words
        fill = partial(matcher.fill_mask, words)
        return Sequence(matcher, fill, words, matcher.accept, partial(_may_end, fill, words, self.eos))

    def batch(self, sequences: list[Sequence], rows: Bits) -> Callable[[], object]:
        return partial(fill_masks, [sequence.matcher for sequence in sequences], rows)


class Llguidance:
    """The Rust engine after guidance, with its defaults."""

    name = "llguidance"

    def __init__(self, tokenizer: Path) -> None:
        import llguidance
        import llguidance.numpy

        self.version = version("llguidance")
        self.library = llguidance
        self.fill_row = llguidance.numpy.fill_next_token_bitmask
        self.fill_rows = llguidance.numpy.fill_next_token_bitmask_par
        self.tokenizer = llguidance.LLTokenizer(tokenizer.read_text(encoding="utf-8"))
        self.words: Bits = empty_masks(self.tokenizer.vocab_size)
        self.start(self.compile("true")).fill()

    def compile(self, schema: str) -> Any:
        matcher_type = self.library.LLMatcher
        matcher = matcher_type(self.tokenizer, matcher_type.grammar_from_json_schema(schema), log_level=0)
        if matcher.is_error():
            raise ValueError(matcher.get_error())
        return matcher

    def forget(self) -> None:
        pass  # keeps nothing

    def start(self, compiled: Any) -> Sequence:
        matcher = compiled.deep_copy()
        fill = partial(self.fill_row, matcher, self.words, 0)
        return Sequence(matcher, fill, self.words, matcher.consume_token, matcher.is_accepting)

    @cached_property
    def executor(self) -> Any:
        return self.library.LLExecutor(num_threads=_THREADS)

    def batch(self, sequences: list[Sequence], rows: Bits) -> Callable[[], object]:
        pairs = [(sequence.matcher, row) for row, sequence in enumerate(sequences)]
        return partial(self.fill_rows, self.executor, pairs, rows)


class Xgrammar:
    """``strict=False`` is standard JSON Schema, and many times slower to compile than the library's default.

    It compiles on one thread, as the others do.
    """

    def __init__(self, tokenizer: Path, *, strict: bool) -> None:
        import torch
        import xgrammar

        self.name = "xgrammar" if strict else "xgrammar-standard"
        self.version = version("xgrammar")
        self.strict = strict
        self.library, self.torch = xgrammar, torch
        vocabulary = _vocabulary_of(tokenizer)
        self.eos, self.size = vocabulary.eos[0], vocabulary.size
        information = xgrammar.TokenizerInfo(
            list(vocabulary.tokens),
            vocab_type=xgrammar.VocabType.RAW,
            vocab_size=vocabulary.size,
            stop_token_ids=list(vocabulary.eos),
        )
        self.compiler = xgrammar.GrammarCompiler(information, max_threads=1)
        self.words: Bits = empty_masks(self.size)
        self.tensor = torch.from_numpy(self.words)
        self.start(self.compile("true")).fill()

    def compile(self, schema: str) -> Any:
        return self.compiler.compile_json_schema(schema, any_whitespace=True, strict_mode=self.strict)

    def forget(self) -> None:
        self.compiler.clear_cache()

    def start(self, compiled: Any) -> Sequence:
        matcher = self.library.GrammarMatcher(compiled)
        fill = partial(matcher.fill_next_token_bitmask, self.tensor)
        return Sequence(matcher, fill, self.words, matcher.accept_token, partial(_may_end, fill, self.words, self.eos))

    @cached_property
    def executor(self) -> Any:
        return self.library.BatchGrammarMatcher(max_threads=_THREADS)

    def batch(self, sequences: list[Sequence], rows: Bits) -> Callable[[], object]:
        matchers, tensor = [sequence.matcher for sequence in sequences], self.torch.from_numpy(rows)
        return partial(self.executor.batch_fill_next_token_bitmask, matchers, tensor)


ENGINES: Final[dict[str, Callable[[Path], Engine]]] = {
    "structgen": Structgen,
    "llguidance": Llguidance,
    "xgrammar": partial(Xgrammar, strict=True),
    "xgrammar-standard": partial(Xgrammar, strict=False),
}
NEEDS: Final = {"llguidance": ("llguidance",), "xgrammar": ("xgrammar", "torch")}
"""The libraries of an engine."""


def missing(engine: str) -> tuple[str, ...]:
    """Return the libraries that ``engine`` needs and that are not installed."""
    needed = NEEDS.get(engine.partition("-")[0], ())
    return tuple(name for name in needed if importlib.util.find_spec(name) is None)


def _may_end(fill: Callable[[], object], words: Bits, eos: int) -> bool:
    fill()
    return allows(words, eos)

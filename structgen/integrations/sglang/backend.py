"""The grammar backend of SGLang: descriptions become constraints, and requests their grammars."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import wraps
from inspect import signature
from pkgutil import resolve_name
from typing import Any, Final, final

import torch
from sglang.srt.constrained.base_grammar_backend import BaseGrammarBackend, InvalidGrammarObject
from sglang.srt.constrained.reasoner_grammar_backend import ReasonerGrammarBackend, ReasonerGrammarObject
from sglang.srt.constrained.torch_ops.token_filter_torch_ops import set_token_filter_torch
from sglang.srt.parser.reasoning_parser import ReasoningParser
from sglang.srt.runtime_context import get_exec, get_serving

from structgen.engine import Vocabulary, compile
from structgen.errors import StructgenError
from structgen.frontends.json_schema import JsonPolicy, json_schema
from structgen.grammar.limits import Limits
from structgen.grammar.nodes import Grammar
from structgen.integrations.sglang.grammar import (
    StructgenGrammar,
    allocate_vocab_mask,
    apply_vocab_mask,
    fill_entries,
    fill_trees,
    inner_grammar,
    move_vocab_mask,
)
from structgen.integrations.wire import Reading, WireError, is_lark, located, policy_and_limits, space_policy
from structgen.log import logger
from structgen.memory_cache import CONSTRAINTS, ContentCache

__all__ = ["GrammarCache", "StructgenGrammarBackend", "backend_for_server"]

OPTIONS: Final = "STRUCTGEN_SGLANG"
"""The environment variable with the options, as JSON; SGLang's command line has no place for those of plug-ins."""
ANY_JSON: Final = "$$ANY$$"
_LLGUIDANCE: Final = "%llguidance"
_BYTES_PER_BYTE: Final = 16
"""Estimated memory of a grammar and its constraint, for each byte of its description."""
_BYTES: Final = 4096
_MARK: Final = "of_structgen"
_MANAGER: Final = "sglang.srt.constrained.grammar_manager.GrammarManager"


class Refused(InvalidGrammarObject):  # type: ignore[misc]  # SGLang has no types
    """A description that is refused, with structgen's message; the next request with it gets the same answer."""


@final
class GrammarCache:
    """SGLang's ``cache`` of a backend, within structgen's bound in bytes (``STRUCTGEN_CACHE_MB``).

    Time-outs and other failures that SGLang makes itself are not kept: the next request is tried again.
    """

    def __init__(self) -> None:
        self._held: ContentCache[Any] = ContentCache(CONSTRAINTS)

    def get(self, key: tuple[str, str]) -> Any:
        """The cached result for a description, or None."""
        return self._held.get(key)

    def __setitem__(self, key: tuple[str, str], value: Any) -> None:
        if isinstance(value, Refused) or not isinstance(value, InvalidGrammarObject):
            self._held.put(key, value, _BYTES + _BYTES_PER_BYTE * len(key[1]))

    def pop(self, key: tuple[str, str], default: Any = None) -> Any:
        """Does nothing: the cache itself drops unused entries."""
        return default

    def clear(self) -> None:
        """Drop all."""
        self._held.clear()


@final
class StructgenGrammarBackend(BaseGrammarBackend):  # type: ignore[misc]  # SGLang has no types
    """Compiles the descriptions of requests.

    Args:
        vocabulary: as wide as the model's head, with all tokens that end an answer.
        policy: how JSON is written.
        limits: bounds on descriptions and masks; by default ``Limits.strict()``, for untrusted descriptions.
    """

    def __init__(self, vocabulary: Vocabulary, policy: JsonPolicy, limits: Limits | None = None) -> None:
        super().__init__()
        self.vocabulary = vocabulary
        self._limits = limits or Limits.strict()
        self._reading = Reading(self._limits, policy)
        self.cache = GrammarCache()

    allocate_vocab_mask = staticmethod(allocate_vocab_mask)
    move_vocab_mask = staticmethod(move_vocab_mask)
    apply_vocab_mask = staticmethod(apply_vocab_mask)

    def dispatch_json(self, key_string: str) -> Any:
        """A JSON Schema, or ``$$ANY$$``: any JSON value."""
        if key_string == ANY_JSON:
            return self._made("json", key_string, self._any_json)
        return self._made("json", key_string, lambda text: self._reading.schema("json_schema", text)[2])

    def dispatch_regex(self, key_string: str) -> Any:
        """A regular expression in the dialect of ECMA-262."""
        return self._made("regex", key_string, lambda text: self._reading.pattern("regex", text)[2])

    def dispatch_ebnf(self, key_string: str) -> Any:
        """EBNF of xgrammar; Lark after ``%llguidance``, and where no line has ``::=``."""
        is_other = key_string.lstrip().startswith(_LLGUIDANCE) or is_lark(key_string)
        read = self._reading.lark if is_other else self._reading.ebnf
        return self._made("ebnf", key_string, lambda text: read("ebnf", text)[2])

    def dispatch_structural_tag(self, key_string: str) -> Any:
        """A structural tag, in the new or the legacy form."""
        return self._made("structural_tag", key_string, lambda text: self._reading.tag("structural_tag", text)[2])

    def compile_framed_grammar(self, grammar: Any, frame: Callable[[dict[str, Any]], dict[str, Any]]) -> Any:
        """Compile a structural tag of SGLang's around a grammar; None for Lark and legacy tags."""
        content = _content(grammar)
        return None if content is None else self.dispatch_structural_tag(json.dumps(frame(content)))

    @property
    def is_support_token_filter(self) -> bool:
        """Whether single tokens can be let in or out; SGLang's strict thinking needs it."""
        return True

    def set_token_filter(
        self,
        vocab_mask: torch.Tensor,
        token_ids: Sequence[int],
        batch_idx: int,
        is_allowed: bool = True,  # noqa: FBT001, FBT002  SGLang's
        reset_vocab_mask: bool = True,  # noqa: FBT001, FBT002
    ) -> None:
        """Allow or exclude tokens in one row, after all of the row was set to the contrary if ``reset_vocab_mask``."""
        set_token_filter_torch(
            vocab_mask, list(token_ids), batch_idx, is_allowed=is_allowed, reset_vocab_mask=reset_vocab_mask
        )

    def _any_json(self, _: str) -> Grammar:
        with located("json_schema"):
            policy = replace(self._reading.policy, additional="written")
            return json_schema({}, policy=policy, limits=self._limits)

    def _made(self, kind: str, text: str, read: Callable[[str], Grammar]) -> Any:
        try:
            return StructgenGrammar(compile(read(text), self.vocabulary, limits=self._limits), kind, text)
        except (StructgenError, WireError) as error:
            logger.info("a %s is refused: %s", kind, error)
            return Refused(f"structgen: {error}")


def _content(grammar: StructgenGrammar) -> dict[str, Any] | None:
    """A description as a format of structural tags."""
    if grammar.kind == "json":
        schema = True if grammar.text == ANY_JSON else json.loads(grammar.text)
        return {"type": "json_schema", "json_schema": schema}
    if grammar.kind == "regex":
        return {"type": "regex", "pattern": grammar.text}
    if grammar.kind == "ebnf":
        is_other = grammar.text.lstrip().startswith(_LLGUIDANCE) or is_lark(grammar.text)
        return None if is_other else {"type": "grammar", "grammar": grammar.text}
    tag = json.loads(grammar.text)
    return tag.get("format")  # type: ignore[no-any-return]


def backend_for_server(tokenizer: Any, vocab_size: int, eos_token_ids: Iterable[int] | int | None) -> Any:
    """Make the backend for SGLang's settings, and hang it into SGLang.

    Raises:
        VocabularyError: the tokenizer is none that structgen reads; the server does not start.
        WireError: ``--constrained-json-whitespace-pattern`` is not one of white space.
        ValueError: ``STRUCTGEN_SGLANG`` is no JSON object of options.
    """
    settings = get_serving()
    named = [eos_token_ids] if isinstance(eos_token_ids, int) else list(eos_token_ids or ())
    own = getattr(tokenizer, "eos_token_id", None)
    more = getattr(tokenizer, "additional_stop_token_ids", None) or ()
    eos = list(dict.fromkeys([*named, *([] if own is None else [own]), *more]))
    vocabulary = Vocabulary.load(tokenizer, size=vocab_size, eos=eos or None)
    backend = StructgenGrammarBackend(vocabulary, *_options(settings))
    _hang_in()
    if not settings.reasoning_parser:
        return backend
    parser = ReasoningParser(model_type=settings.reasoning_parser, stream_reasoning=False, tokenizer=tokenizer)
    if not parser.detector.get_think_end_token_ids(tokenizer):
        return backend
    reasoner = ReasonerGrammarBackend(
        backend, parser, tokenizer, enable_strict_thinking=settings.enable_strict_thinking
    )
    reasoner.cache = GrammarCache()
    ReasonerGrammarObject.fill_vocab_mask_batched = staticmethod(fill_entries)
    return reasoner


def _options(settings: Any) -> tuple[JsonPolicy, Limits]:
    """The policy and the limits: those of the environment variable, and SGLang's settings of white space."""
    try:
        given = json.loads(os.environ.get(OPTIONS) or "{}")
    except ValueError as error:
        raise ValueError(f"{OPTIONS}: it is no JSON; {error}") from error
    return policy_and_limits(OPTIONS, given, _policy(settings))


def _policy(settings: Any) -> JsonPolicy:
    """How JSON is written, from SGLang's settings of white space; by default as ``json.dumps`` writes it."""
    space = settings.constrained_json_whitespace_pattern
    if space is not None:
        return space_policy("constrained_json_whitespace_pattern", space)
    has_none = settings.constrained_json_disable_any_whitespace or settings.constrained_json_max_whitespace_cnt == 0
    return JsonPolicy(whitespace="compact" if has_none else "single")


def _hang_in() -> None:
    """Let grammars know their requests, and fill trees of drafts in one call.

    Raises:
        RuntimeError: SGLang has not these functions with these parameters; the server does not start.
    """
    for target, around, parameters in _WRAPPED:
        place, _, name = target.rpartition(".")
        try:
            owner = resolve_name(place)
            original = getattr(owner, name)
            found = list(signature(original).parameters)
        except (AttributeError, ImportError):
            found = None
        if found != parameters.split():
            has = "it is not there" if found is None else f"it has {' '.join(found)}"
            raise RuntimeError(
                f"structgen: SGLang's {target} must have the parameters {parameters}; {has}; "
                "docs/guides/sglang.md names versions that were tried"
            )
        if not hasattr(original, _MARK):
            setattr(owner, name, _wrapper(original, around))


def _wrapper(original: Callable[..., Any], around: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        return around(original, *args, **kwargs)

    setattr(wrapped, _MARK, True)
    return wrapped


def _process(original: Callable[..., bool], manager: Any, req: Any) -> bool:
    is_queued = original(manager, req)
    if req.grammar is not None and not isinstance(req.grammar, Future):
        _begin(req)
    return is_queued


def _ready(original: Callable[..., list[Any]], manager: Any) -> list[Any]:
    reqs = original(manager)
    for req in reqs:
        if req.grammar is not None and not isinstance(req.grammar, Future):
            _begin(req)
    return reqs


def _begin(req: Any) -> None:
    """Tell a grammar its request, or refuse a request whose answer would be no string of the grammar."""
    grammar = inner_grammar(req.grammar)
    if grammar is None:
        return
    if get_exec().dllm.dllm_algorithm is not None:
        req.set_finish_with_abort("structgen: SGLang does not constrain diffusion models")
        return
    for name in ("min_new_tokens", "ignore_eos"):
        if getattr(req.sampling_params, name):
            req.set_finish_with_abort(f"structgen: leave {name} out: the grammar says when an answer ends")
            return
    try:
        grammar.begin(req, req.grammar if req.grammar is not grammar else None)
    except StructgenError as error:
        req.set_finish_with_abort(f"structgen: {error}")


_WRAPPED: Final[tuple[tuple[str, Callable[..., Any], str], ...]] = (
    (f"{_MANAGER}.process_req_with_grammar", _process, "self req"),
    (f"{_MANAGER}.get_ready_grammar_requests", _ready, "self"),
    (
        "sglang.srt.speculative.spec_utils.generate_token_bitmask",
        fill_trees,
        "reqs retrieve_next_token_cpu retrieve_next_sibling_cpu draft_tokens_cpu vocab_size",
    ),
)
"""The functions of SGLang to wrap, the wrappers, and the parameters that each must have.

SGLang's ``HookRegistry`` silently skips a function that another plug-in has patched before.
"""

"""Checks before vLLM accepts a request: what cannot be enforced or completed is refused."""

from __future__ import annotations

import json
import threading
from collections.abc import Collection, Mapping
from typing import Any, NoReturn
from weakref import WeakKeyDictionary

from structgen.integrations.vllm.backend import FIELD, Backend
from structgen.integrations.vllm.plugin import NAME
from structgen.integrations.wire import WireError

__all__ = ["check", "check_asked", "check_length", "refuse"]

_backends: WeakKeyDictionary[Any, Backend] = WeakKeyDictionary()
_lock = threading.Lock()


def check(params: Any) -> None:
    """Check what of a request's ``SamplingParams`` needs no tokenizer, and set its backend.

    Raises:
        VLLMValidationError: HTTP 400.
    """
    described = params.structured_outputs
    if described._backend not in (None, NAME):
        refuse("_backend", f"the backend of this server is {NAME}; found {described._backend!r:.60}; leave it out")
    described._backend = NAME
    _check_nesting("json", described.json)
    _check_nesting("structural_tag", described.structural_tag)
    if described.regex and "\x00" in described.regex:
        refuse(f"{FIELD}.regex", "a NUL character stands in it; write \\x00 for a NUL in the answer")
    if params.min_tokens:
        refuse(
            "min_tokens",
            f"found {params.min_tokens}; the end is masked until then, and nothing else may follow a complete answer; "
            "leave it out, and bound the length in the description",
        )
    if params.ignore_eos:
        refuse("ignore_eos", "what follows a complete answer would be no part of it; leave it out")


def _check_nesting(name: str, given: Any) -> None:
    """Refuse what is nested deeper than vLLM takes, at the pointer of the deepest part."""
    from vllm.exceptions import VLLMValidationError
    from vllm.sampling_params import check_json_nesting

    try:
        check_json_nesting(given, structural_tag=name == "structural_tag")
    except VLLMValidationError as error:
        problem = f"{error}; name inner parts in $defs, and refer to them"
        refuse(f"{FIELD}.{name}{_deepest(given)}", problem)


def _deepest(given: Any) -> str:
    """The JSON Pointer of a part that is nested deepest; empty if the text cannot be read."""
    try:
        left = [(json.loads(given) if isinstance(given, str) else given, "#", 0)]
    except (ValueError, RecursionError):
        return ""
    found, most = "#", 0
    while left:
        value, pointer, depth = left.pop()
        if depth > most:
            found, most = pointer, depth
        members = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list) else ()
        for name, part in members:
            left.append((part, f"{pointer}/{str(name).replace('~', '~0').replace('/', '~1')}", depth + 1))
    return found


def check_length(made: Any, vllm_config: Any, tokenizer: Any) -> None:
    """Compile the description of an ``EngineCoreRequest``, and refuse it if the answer does not fit.

    Raises:
        VLLMValidationError: HTTP 400, with the place in the request, and the tokens that the answer takes.
    """
    params = made.sampling_params
    length = len(made.prompt_embeds if made.prompt_token_ids is None else made.prompt_token_ids)
    _check_length(params, params.all_stop_token_ids, length, vllm_config, tokenizer)


def check_asked(processor: Any, prompt: Any, params: Any) -> None:
    """Check what ``InputProcessor.process_inputs`` will make of a prompt that is tokens, before it makes it.

    Raises:
        VLLMValidationError: as ``check`` and ``check_length`` do.
    """
    check(params)
    if not isinstance(prompt, Mapping) or "type" not in prompt:
        return  # a text; its length is not known yet
    ends = processor.generation_config_fields.get("eos_token_id") or ()
    own = processor.renderer.get_eos_token_id()
    stops = {
        *(params.stop_token_ids or ()),
        *([ends] if isinstance(ends, int) else ends),
        *(() if own is None else [own]),
    }
    rendered = prompt.get("decoder_prompt", prompt)
    ids = rendered.get("prompt_token_ids")
    length = len(rendered["prompt_embeds"] if ids is None else ids)
    _check_length(params, stops, length, processor.vllm_config, processor.get_tokenizer())


def _check_length(params: Any, stops: Collection[int], length: int, vllm_config: Any, tokenizer: Any) -> None:
    left = vllm_config.model_config.max_model_len - length
    tokens = left if params.max_tokens is None else min(params.max_tokens, left)
    try:
        _backend(vllm_config, tokenizer).check(params.structured_outputs, stops, tokens)
    except WireError as error:
        refuse(error.place, error.problem)


def _backend(vllm_config: Any, tokenizer: Any) -> Backend:
    with _lock:
        found = _backends.get(tokenizer)
        if found is None:
            found = _backends[tokenizer] = Backend.load(vllm_config, tokenizer)
        return found


def refuse(place: str, problem: str) -> NoReturn:
    """Refuse a request.

    Raises:
        VLLMValidationError: HTTP 400.
    """
    from vllm.exceptions import VLLMValidationError

    message = problem if problem.startswith(place) else f"{place}: {problem}"
    raise VLLMValidationError(message, parameter=place)

"""What is refused before vLLM takes a request: what cannot be enforced, and what cannot be completed."""

from __future__ import annotations

import threading
from typing import Any, NoReturn
from weakref import WeakKeyDictionary

from structgen.integrations.vllm.backend import FIELD, Backend
from structgen.integrations.vllm.plugin import NAME
from structgen.integrations.wire import WireError

__all__ = ["check", "check_length"]

_backends: WeakKeyDictionary[Any, Backend] = WeakKeyDictionary()
_lock = threading.Lock()


def check(params: Any) -> None:
    """Check what of a request's ``SamplingParams`` needs no tokenizer, and set its backend.

    Raises:
        VLLMValidationError: HTTP 400.
    """
    from vllm.sampling_params import check_json_nesting

    described = params.structured_outputs
    if described._backend not in (None, NAME):
        _refuse("_backend", f"the backend of this server is {NAME}; found {described._backend!r:.60}; leave it out")
    described._backend = NAME
    check_json_nesting(described.json)
    check_json_nesting(described.structural_tag, structural_tag=True)
    if described.regex and "\x00" in described.regex:
        _refuse(f"{FIELD}.regex", "a NUL character stands in it; write \\x00 for a NUL in the answer")
    if params.min_tokens:
        _refuse(
            "min_tokens",
            f"found {params.min_tokens}; the end is masked until then, and nothing else may follow a complete answer; "
            "leave it out, and bound the length in the description",
        )
    if params.ignore_eos:
        _refuse("ignore_eos", "what follows a complete answer would be no part of it; leave it out")


def check_length(made: Any, vllm_config: Any, tokenizer: Any) -> None:
    """Compile the description of an ``EngineCoreRequest``, and refuse it if the answer does not fit.

    Raises:
        VLLMValidationError: HTTP 400, with the place in the request, and the tokens that the answer takes.
    """
    params, prompt = made.sampling_params, made.prompt_token_ids
    length = len(prompt) if prompt is not None else len(made.prompt_embeds)
    tokens = min(params.max_tokens, vllm_config.model_config.max_model_len - length)
    backend = _backend(vllm_config, tokenizer)
    try:
        backend.check(params.structured_outputs, params.all_stop_token_ids, tokens)
    except WireError as error:
        _refuse(error.place, error.problem)


def _backend(vllm_config: Any, tokenizer: Any) -> Backend:
    with _lock:
        found = _backends.get(tokenizer)
        if found is None:
            found = _backends[tokenizer] = Backend.load(vllm_config, tokenizer)
        return found


def _refuse(place: str, problem: str) -> NoReturn:
    from vllm.exceptions import VLLMValidationError

    message = problem if problem.startswith(place) else f"{place}: {problem}"
    raise VLLMValidationError(message, parameter=place)

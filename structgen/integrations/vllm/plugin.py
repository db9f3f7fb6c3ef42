"""Registration with vLLM: the entry point ``vllm.general_plugins`` calls ``register`` in each process.

vLLM has no registry of grammar backends.  So ``register`` adds the name to its configuration and replaces a few
functions, which for other backends call the original.  It first checks what it relies on.  Where vLLM differs, only the
name is added, and a server that is started with structgen ends with an error that names the difference.

Source: vLLM 0.32: ``config/structured_outputs.py``, ``engine/arg_utils.py``, ``sampling_params.py``,
``v1/engine/input_processor.py``, ``v1/structured_output/__init__.py``.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, Literal, get_args

__all__ = ["NAME", "SWITCH", "differences", "register"]

NAME: Final = "structgen"
SWITCH: Final = "STRUCTGEN_VLLM"
"""The environment variable that selects the backend where no flag can."""

_SWITCH_S: Final = 0.001
_CONFIG: Final = ("vllm.config.structured_outputs", "StructuredOutputsConfig")
_ARGUMENTS: Final = ("vllm.engine.arg_utils", "EngineArgs")
_SAMPLING: Final = ("vllm.sampling_params", "SamplingParams")
_DESCRIBED: Final = ("vllm.sampling_params", "StructuredOutputsParams")
_INPUT: Final = ("vllm.v1.engine.input_processor", "InputProcessor")
_MANAGER: Final = ("vllm.v1.structured_output", "StructuredOutputManager")
_BACKEND: Final = ("vllm.v1.structured_output.backend_types", "StructuredOutputBackend")
_GRAMMAR: Final = ("vllm.v1.structured_output.backend_types", "StructuredOutputGrammar")

RELIED_ON: Final[dict[tuple[str, str], dict[str, tuple[str, ...]]]] = {
    _ARGUMENTS: {"create_structured_outputs_config": ("self",)},
    _SAMPLING: {
        "_validate_structured_outputs": ("self", "model_config", "structured_outputs_config", "tokenizer"),
    },
    _INPUT: {"process_inputs": ("self", "request_id", "prompt", "params", "supported_tasks")},
    _MANAGER: {
        "__init__": ("self", "vllm_config"),
        "_create_grammar": ("self", "request"),
        "_get_constraint_bounds": ("self", "request", "spec_tokens", "spec_tokens_committed"),
        "validate_tokens": ("self", "request", "spec_tokens"),
        "accept_tokens": ("self", "request", "new_token_ids"),
        "grammar_bitmask": (
            "self",
            "requests",
            "structured_output_request_ids",
            "scheduled_spec_decode_tokens",
        ),
    },
    _BACKEND: {
        "compile_grammar": ("self", "request_type", "grammar_spec", "stop_token_ids"),
        "allocate_token_bitmask": ("self", "max_num_seqs"),
        "destroy": ("self",),
    },
    _GRAMMAR: {
        "accept_tokens": ("self", "request_id", "tokens"),
        "validate_tokens": ("self", "tokens"),
        "rollback": ("self", "num_tokens"),
        "fill_bitmask": ("self", "bitmask", "batch_index"),
        "is_terminated": ("self",),
        "reset": ("self",),
    },
}
"""The first parameters of the functions that are replaced, called, or stood in for, by class."""
_CLIENT: Final = ("vllm.v1.engine.async_llm", "AsyncLLM")
_RESPONSES: Final = ("vllm.entrypoints.openai.responses.serving", "OpenAIServingResponses")
_CHAT: Final = ("vllm.entrypoints.openai.chat_completion.protocol", "ChatCompletionRequest")
_COMPLETION: Final = ("vllm.entrypoints.openai.completion.protocol", "CompletionRequest")

RELIED_ON_BY_SERVERS: Final[dict[tuple[str, str], dict[str, tuple[str, ...]]]] = {
    _CLIENT: {"generate": ("self", "prompt", "sampling_params", "request_id")},
    _RESPONSES: {"_generate_with_builtin_tools": ("self", "request_id", "engine_input", "sampling_params")},
    _CHAT: {
        "extract_structured_outputs": ("self",),
        "to_beam_search_params": ("self", "max_tokens", "default_sampling_params"),
    },
    _COMPLETION: {
        "extract_structured_outputs": ("self",),
        "to_beam_search_params": ("self", "max_tokens", "default_sampling_params"),
    },
}
"""The same for the process with the clients; checked once the backend is chosen, as others do not import it."""
_FIELDS: Final = (
    *("json", "regex", "choice", "grammar", "json_object", "structural_tag"),
    *("disable_any_whitespace", "disable_additional_properties", "whitespace_pattern"),
)


def register() -> None:
    """Make ``--structured-outputs-config.backend structgen`` and ``STRUCTGEN_VLLM=1`` work in this process.

    It may be called any number of times.

    Raises:
        RuntimeError: ``STRUCTGEN_VLLM`` is set, and this vLLM differs from what the plug-in relies on.
    """
    found = [*differences()]
    if found and is_switched_on():
        raise RuntimeError(_refusal(found))
    if not found:
        _install()
        return
    try:  # the name is accepted, and choosing it is an error that says why it does not work
        _add_name()
        _replace(_ARGUMENTS, "create_structured_outputs_config", functools.partial(_refusing, reason=_refusal(found)))
    except (AttributeError, ImportError, TypeError):
        return  # the name is unknown, and vLLM says so


def is_switched_on() -> bool:
    """Whether the environment selects the backend.

    Raises:
        RuntimeError: the variable has a value other than 0 and 1.
    """
    value = os.environ.get(SWITCH, "")
    if value not in ("", "0", "1"):
        raise RuntimeError(f"{SWITCH}: expected 0 or 1; found {value!r:.60}")
    return value == "1"


def _refusal(found: list[str]) -> str:
    version = getattr(importlib.import_module("vllm"), "__version__", "of unknown version")
    return (
        f"the backend structgen does not fit this vLLM ({version}), which was changed since 0.32: {'; '.join(found)}; "
        "install another version of vllm or of structgen-lm, or choose another backend"
    )


def differences() -> Iterator[str]:
    """Say where this vLLM differs from what the plug-in relies on."""
    yield from _functions(RELIED_ON)
    config, described = _class(_CONFIG), _class(_DESCRIBED)
    if config is None or "backend" not in getattr(config, "__pydantic_fields__", {}):
        yield f"{_CONFIG[1]} has no field backend"
    known = getattr(described, "__dataclass_fields__", {})
    if missing := [name for name in (*_FIELDS, "_backend") if name not in known]:
        yield f"{_DESCRIBED[1]} has no field {missing[0]}"
    for module, name in (("vllm.exceptions", "VLLMValidationError"), ("vllm.sampling_params", "check_json_nesting")):
        if not hasattr(importlib.import_module(module), name):
            yield f"there is no {module}.{name}"


def _functions(relied_on: Mapping[tuple[str, str], Mapping[str, tuple[str, ...]]]) -> Iterator[str]:
    for place, functions in relied_on.items():
        owner = _class(place)
        if owner is None:
            yield f"there is no {place[0]}.{place[1]}"
            continue
        for name, expected in functions.items():
            function = inspect.unwrap(getattr(owner, name, None) or _nothing)
            parameters = tuple(inspect.signature(function).parameters)
            if parameters[: len(expected)] != expected:
                said = f"takes ({', '.join(parameters)})" if function is not _nothing else "does not exist"
                yield f"{place[1]}.{name} {said}; expected ({', '.join(expected)})"


def _nothing() -> None:
    """Replaces a function that does not exist."""


def _class(place: tuple[str, str]) -> Any:
    try:
        return getattr(importlib.import_module(place[0]), place[1], None)
    except ImportError:
        return None


def _replace(place: tuple[str, str], name: str, around: Callable[..., Any]) -> None:
    """Replace a method by ``around(original, *args, **kwargs)``, once."""
    owner = _class(place)
    original = getattr(owner, name)
    if getattr(original, "of_structgen", False):
        return

    @functools.wraps(original)
    def replaced(*args: Any, **kwargs: Any) -> Any:
        return around(original, *args, **kwargs)

    replaced.of_structgen = True  # type: ignore[attr-defined]
    setattr(owner, name, replaced)


def _install() -> None:
    _add_name()
    _replace(_ARGUMENTS, "create_structured_outputs_config", _selecting)
    _replace(_SAMPLING, "_validate_structured_outputs", _validating)
    _replace(_INPUT, "process_inputs", _bounding)
    _replace(_MANAGER, "__init__", _starting)
    _replace(_MANAGER, "_create_grammar", _compiling)
    _replace(_MANAGER, "grammar_bitmask", _filling)


def _add_name() -> None:
    """Let the configuration have the name."""
    from pydantic.dataclasses import rebuild_dataclass

    config = _class(_CONFIG)
    known = get_args(config.__pydantic_fields__["backend"].annotation)
    if NAME in known:
        return
    names: Any = Literal[(*known, NAME)]
    config.__annotations__["backend"] = names
    config.__dataclass_fields__["backend"].type = names
    config.__pydantic_fields__["backend"].annotation = names
    rebuild_dataclass(config, force=True)


def _selecting(original: Callable[..., Any], arguments: Any) -> Any:
    """``EngineArgs.create_structured_outputs_config``: the environment variable chooses; a dict becomes an instance."""
    if isinstance(arguments.structured_outputs_config, dict):
        arguments.structured_outputs_config = _class(_CONFIG)(**arguments.structured_outputs_config)
    config = original(arguments)
    if is_switched_on() and config.backend != NAME:
        if config.backend != "auto":
            from structgen.log import logger

            logger.warning("%s=1: the backend is structgen in place of %s", SWITCH, config.backend)
        config.backend = NAME
    if config.backend == NAME:
        if found := [*_functions(RELIED_ON_BY_SERVERS)]:
            raise RuntimeError(_refusal(found))
        _replace(_CLIENT, "generate", _asking)
        _replace(_RESPONSES, "_generate_with_builtin_tools", _answering)
        _replace(_CHAT, "to_beam_search_params", _searching)
        _replace(_COMPLETION, "to_beam_search_params", _searching)
    return config


def _refusing(original: Callable[..., Any], arguments: Any, *, reason: str) -> Any:
    held = arguments.structured_outputs_config
    chosen = held.get("backend") if isinstance(held, dict) else getattr(held, "backend", None)
    if chosen == NAME:
        raise RuntimeError(reason)
    return original(arguments)


def _is_chosen(config: Any) -> bool:
    return config is not None and config.backend == NAME


def _validating(
    original: Callable[..., Any], params: Any, model_config: Any, structured_outputs_config: Any, tokenizer: Any
) -> Any:
    """``SamplingParams._validate_structured_outputs``: what a request describes is read before vLLM takes it."""
    described = params.structured_outputs
    is_plain = described is None or model_config.is_diffusion or tokenizer is None
    if is_plain or not _is_chosen(structured_outputs_config):
        return original(params, model_config, structured_outputs_config, tokenizer)
    from structgen.integrations.vllm.requests import check

    check(params)
    return None


def _bounding(original: Callable[..., Any], processor: Any, *args: Any, **kwargs: Any) -> Any:
    """``InputProcessor.process_inputs``: once the limit and the length of the prompt are known, the answer must fit."""
    made = original(processor, *args, **kwargs)
    params = made.sampling_params
    if params is not None and params.structured_outputs is not None:
        config = processor.vllm_config
        if _is_chosen(config.structured_outputs_config):
            from structgen.integrations.vllm.requests import check_length

            check_length(made, config, processor.get_tokenizer())
    return made


def _asking(
    original: Callable[..., Any], client: Any, prompt: Any, sampling_params: Any, *rest: Any, **more: Any
) -> Any:
    """``AsyncLLM.generate``: a request is refused when it is called, before a stream has its status.

    What it returns runs, and refuses, only when it is iterated: within the stream.
    """
    _refuse_early(client, prompt, sampling_params)
    return original(client, prompt, sampling_params, *rest, **more)


def _answering(
    original: Callable[..., Any],
    serving: Any,
    request_id: Any,
    engine_input: Any,
    sampling_params: Any,
    *rest: Any,
    **more: Any,
) -> Any:
    """``OpenAIServingResponses._generate_with_builtin_tools``, which calls ``AsyncLLM.generate`` within the stream."""
    _refuse_early(serving.engine_client, engine_input, sampling_params)
    return original(serving, request_id, engine_input, sampling_params, *rest, **more)


def _refuse_early(client: Any, prompt: Any, params: Any) -> None:
    if getattr(params, "structured_outputs", None) is not None and _is_chosen(
        client.vllm_config.structured_outputs_config
    ):
        from structgen.integrations.vllm.requests import check_asked

        check_asked(client.input_processor, prompt, params)


def _searching(original: Callable[..., Any], request: Any, *args: Any, **kwargs: Any) -> Any:
    """``to_beam_search_params``, which leaves the description out: what the search writes would not be enforced."""
    if request.extract_structured_outputs() is not None:
        from structgen.integrations.vllm.requests import refuse

        refuse("use_beam_search", "vLLM's server does not constrain beam search; leave it out, or the description")
    return original(request, *args, **kwargs)


def _starting(original: Callable[..., Any], manager: Any, *args: Any, **kwargs: Any) -> None:
    """``StructuredOutputManager.__init__``: the tokenizer is read at the start, where its errors end it."""
    original(manager, *args, **kwargs)
    config = manager.vllm_config
    if _is_chosen(config.structured_outputs_config) and not config.model_config.skip_tokenizer_init:
        from structgen.integrations.vllm.backend import Backend

        manager.backend = Backend.load(config, manager.tokenizer)
        # The scheduler waits so long, by default 5 ms, for a thread that reads a schema, where rows have to be made.
        sys.setswitchinterval(min(sys.getswitchinterval(), _SWITCH_S))


def _compiling(original: Callable[..., Any], manager: Any, request: Any) -> Any:
    """``StructuredOutputManager._create_grammar``."""
    config = manager.vllm_config
    if not _is_chosen(config.structured_outputs_config):
        return original(manager, request)
    from structgen.log import logger

    try:
        return manager.backend.grammar(request, config.model_config.max_model_len)
    except Exception as error:
        logger.error("the grammar of request %s cannot be made: %s", request.request_id, error)
        raise


def _filling(original: Callable[..., Any], manager: Any, requests: Any, ids: Any, drafts: Any) -> Any:
    """``StructuredOutputManager.grammar_bitmask``."""
    if not _is_chosen(manager.vllm_config.structured_outputs_config):
        return original(manager, requests, ids, drafts)
    from structgen.integrations.vllm.rows import batch_rows

    return batch_rows(manager, requests, ids, drafts)

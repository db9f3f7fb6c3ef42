"""The plug-in beside classes with the form of vLLM's, where vLLM is not installed; tests/engines has the real ones."""

import sys
from dataclasses import dataclass as plain, field
from types import ModuleType, SimpleNamespace
from typing import Any, Literal

import pytest
from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

import structgen as sg
from structgen.integrations.vllm import plugin
from structgen.integrations.vllm.backend import Backend

EOS = 256
VOCABULARY = sg.Vocabulary([*(bytes([value]) for value in range(256)), b""], eos=[EOS])


class Refused(Exception):
    """An error of a client."""

    def __init__(self, message: str, *, parameter: str | None = None) -> None:
        super().__init__(message)
        self.parameter = parameter


def _classes() -> dict[str, dict[str, Any]]:  # noqa: C901  a list
    """Modules with what the plug-in relies on."""

    @dataclass(config=ConfigDict(extra="forbid"))
    class StructuredOutputsConfig:
        backend: Literal["auto", "xgrammar"] = "auto"

    @plain
    class StructuredOutputsParams:
        json: Any = None
        regex: str | None = None
        choice: Any = None
        grammar: str | None = None
        json_object: bool | None = None
        structural_tag: str | None = None
        disable_any_whitespace: bool = False
        disable_additional_properties: bool = False
        whitespace_pattern: str | None = None
        _backend: str | None = field(default=None, init=False)

    class SamplingParams:
        def __init__(self, described: Any = None, max_tokens: int = 50, **others: Any) -> None:
            self.structured_outputs, self.max_tokens = described, max_tokens
            self.min_tokens, self.ignore_eos = others.get("min_tokens", 0), others.get("ignore_eos", False)
            self.all_stop_token_ids, self.stop_token_ids = {EOS}, None

        def _validate_structured_outputs(
            self, model_config: Any, structured_outputs_config: Any, tokenizer: Any
        ) -> None:
            self.checked_by = "vllm"

    class EngineArgs:
        def __init__(self, held: Any) -> None:
            self.structured_outputs_config = held

        def create_structured_outputs_config(self) -> Any:
            return self.structured_outputs_config

    class InputProcessor:
        def __init__(self, config: Any) -> None:
            self.vllm_config, self.generation_config_fields = config, {"eos_token_id": EOS}
            self.renderer = SimpleNamespace(get_eos_token_id=lambda: EOS)

        def get_tokenizer(self) -> Any:
            return VOCABULARY

        def process_inputs(self, request_id: str, prompt: list[int], params: Any, supported_tasks: Any) -> Any:
            return SimpleNamespace(sampling_params=params, prompt_token_ids=prompt)

    class StructuredOutputManager:
        def __init__(self, vllm_config: Any) -> None:
            self.vllm_config, self.backend, self.tokenizer = vllm_config, None, VOCABULARY

        def _create_grammar(self, request: Any) -> Any:
            return "vllm"

        def _get_constraint_bounds(
            self, request: Any, spec_tokens: Any, spec_tokens_committed: bool = False
        ) -> Any: ...

        def validate_tokens(self, request: Any, spec_tokens: Any) -> Any: ...

        def accept_tokens(self, request: Any, new_token_ids: Any) -> Any: ...

        def grammar_bitmask(
            self, requests: Any, structured_output_request_ids: Any, scheduled_spec_decode_tokens: Any
        ) -> Any:
            return "vllm"

    class StructuredOutputBackend:
        def compile_grammar(self, request_type: Any, grammar_spec: Any, stop_token_ids: Any = None) -> Any: ...

        def allocate_token_bitmask(self, max_num_seqs: int) -> Any: ...

        def destroy(self) -> None: ...

    class StructuredOutputGrammar:
        def accept_tokens(self, request_id: str, tokens: Any) -> Any: ...

        def validate_tokens(self, tokens: Any) -> Any: ...

        def rollback(self, num_tokens: int) -> None: ...

        def fill_bitmask(self, bitmask: Any, batch_index: int) -> None: ...

        def is_terminated(self) -> Any: ...

        def reset(self) -> None: ...

    class AsyncLLM:
        def __init__(self, config: Any) -> None:
            self.vllm_config, self.input_processor = config, InputProcessor(config)

        async def generate(self, prompt: Any, sampling_params: Any, request_id: str) -> Any:
            yield prompt

    class OpenAIServingResponses:
        async def _generate_with_builtin_tools(self, request_id: str, engine_input: Any, sampling_params: Any) -> Any:
            yield engine_input

    class Asked:
        def __init__(self, described: Any = None) -> None:
            self.described = described

        def extract_structured_outputs(self) -> Any:
            return self.described

        def to_beam_search_params(self, max_tokens: int, default_sampling_params: Any) -> Any:
            return max_tokens

    class ChatCompletionRequest(Asked): ...

    class CompletionRequest(Asked): ...

    def check_json_nesting(value: Any, *, structural_tag: bool = False) -> None:
        """As in vLLM: nine levels."""
        if len(str(value)) - len(str(value).lstrip("[")) > 9:
            raise Refused("nested too deeply")

    return {
        "vllm": {"__version__": "0.0"},
        "vllm.config.structured_outputs": {"StructuredOutputsConfig": StructuredOutputsConfig},
        "vllm.engine.arg_utils": {"EngineArgs": EngineArgs},
        "vllm.exceptions": {"VLLMValidationError": Refused},
        "vllm.sampling_params": {
            "SamplingParams": SamplingParams,
            "StructuredOutputsParams": StructuredOutputsParams,
            "check_json_nesting": check_json_nesting,
        },
        "vllm.v1.engine.async_llm": {"AsyncLLM": AsyncLLM},
        "vllm.entrypoints.openai.responses.serving": {"OpenAIServingResponses": OpenAIServingResponses},
        "vllm.entrypoints.openai.chat_completion.protocol": {"ChatCompletionRequest": ChatCompletionRequest},
        "vllm.entrypoints.openai.completion.protocol": {"CompletionRequest": CompletionRequest},
        "vllm.v1.engine.input_processor": {"InputProcessor": InputProcessor},
        "vllm.v1.structured_output": {"StructuredOutputManager": StructuredOutputManager},
        "vllm.v1.structured_output.backend_types": {
            "StructuredOutputBackend": StructuredOutputBackend,
            "StructuredOutputGrammar": StructuredOutputGrammar,
        },
    }


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """All names of these modules."""
    found: dict[str, Any] = {}
    for name, members in _classes().items():
        parts = name.split(".")
        for end in range(1, len(parts) + 1):
            if (parent := ".".join(parts[:end])) not in sys.modules or end == len(parts):
                monkeypatch.setitem(sys.modules, parent, ModuleType(parent))
        sys.modules[name].__dict__.update(members)
        found |= members
    monkeypatch.delenv(plugin.SWITCH, raising=False)
    return SimpleNamespace(**found)


def _config(engine: SimpleNamespace, backend: str = "structgen") -> Any:
    model = SimpleNamespace(is_diffusion=False, get_vocab_size=lambda: 257, max_model_len=40, skip_tokenizer_init=False)
    return SimpleNamespace(
        structured_outputs_config=engine.StructuredOutputsConfig(backend=backend),
        model_config=model,
        scheduler_config=SimpleNamespace(async_scheduling=False),
        num_speculative_tokens=0,
        additional_config={},
    )


def test_the_backend_is_chosen_by_name_or_by_the_environment(
    engine: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other names stay refused, and a dict becomes a configuration."""
    plugin.register()
    plugin.register()
    read = TypeAdapter(engine.StructuredOutputsConfig).validate_json
    assert read('{"backend": "structgen"}').backend == "structgen"
    with pytest.raises(ValidationError):
        read('{"backend": "other"}')
    assert engine.EngineArgs({"backend": "structgen"}).create_structured_outputs_config().backend == "structgen"
    assert engine.EngineArgs({}).create_structured_outputs_config().backend == "auto"
    monkeypatch.setenv(plugin.SWITCH, "1")
    for held in ({}, engine.StructuredOutputsConfig(backend="xgrammar")):
        assert engine.EngineArgs(held).create_structured_outputs_config().backend == "structgen"


def test_requests_are_checked_and_compiled(engine: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only where structgen is the backend."""
    monkeypatch.setattr(Backend, "load", classmethod(lambda cls, *_: cls(VOCABULARY)))
    plugin.register()
    config = _config(engine)
    params = engine.SamplingParams(engine.StructuredOutputsParams(regex="[0-9]{9}"), 9)
    params._validate_structured_outputs(config.model_config, config.structured_outputs_config, VOCABULARY)
    assert params.structured_outputs._backend == "structgen"
    processor = engine.InputProcessor(config)
    with pytest.raises(Refused, match="takes 10 tokens") as caught:
        processor.process_inputs("r", [1], params, ())
    assert caught.value.parameter == "max_tokens"
    params.max_tokens = 50
    assert processor.process_inputs("r", [1] * 30, params, ()).sampling_params is params
    with pytest.raises(Refused, match="takes 10 tokens"):
        processor.process_inputs("r", [1] * 31, params, ())
    manager = engine.StructuredOutputManager(config)
    request = SimpleNamespace(sampling_params=params, max_tokens=50, num_prompt_tokens=1, request_id="r")
    assert manager._create_grammar(request).accept_tokens("r", [*b"123456789", EOS])
    params.structured_outputs.regex = "("
    with pytest.raises(ValueError, match="unclosed"):
        manager._create_grammar(request)


@pytest.mark.parametrize(
    ("described", "others", "place"),
    [
        ({"regex": "a\x00"}, {}, "structured_outputs.regex"),
        ({"regex": "a"}, {"min_tokens": 2}, "min_tokens"),
        ({"regex": "a"}, {"ignore_eos": True}, "ignore_eos"),
    ],
)
def test_what_cannot_be_kept_is_refused_by_name(
    engine: SimpleNamespace, described: dict[str, Any], others: dict[str, Any], place: str
) -> None:
    """Before anything is compiled."""
    plugin.register()
    config = _config(engine)
    params = engine.SamplingParams(engine.StructuredOutputsParams(**described), **others)
    with pytest.raises(Refused) as caught:
        params._validate_structured_outputs(config.model_config, config.structured_outputs_config, VOCABULARY)
    assert caught.value.parameter == place


def test_streams_are_refused_before_they_are_iterated(engine: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the engine is called; of a prompt that is a text, only the description is looked at."""
    monkeypatch.setattr(Backend, "load", classmethod(lambda cls, *_: cls(VOCABULARY)))
    plugin.register()
    config = engine.EngineArgs({"backend": "structgen"}).create_structured_outputs_config()
    client = engine.AsyncLLM(_config(engine, config.backend))
    prompt = {"type": "token", "prompt_token_ids": [1] * 31}
    params = engine.SamplingParams(engine.StructuredOutputsParams(regex="[0-9]{9}"))
    serving = engine.OpenAIServingResponses()
    serving.engine_client = client
    for ask in (
        lambda: client.generate(prompt, params, "r"),
        lambda: client.generate({"type": "enc_dec", "decoder_prompt": prompt}, sampling_params=params, request_id="r"),
        lambda: serving._generate_with_builtin_tools(request_id="r", engine_input=prompt, sampling_params=params),
    ):
        with pytest.raises(Refused, match="takes 10 tokens"):
            ask()
    assert client.generate("text", params, "r") is not None
    params.structured_outputs.regex, params.structured_outputs.json = None, "[" * 10 + "{}" + "]" * 10
    with pytest.raises(Refused, match=r"in \$defs") as caught:
        client.generate("text", params, "r")
    assert caught.value.parameter == "structured_outputs.json#" + "/0" * 10
    assert client.generate(prompt, engine.SamplingParams(), "r") is not None
    other = engine.AsyncLLM(_config(engine, "xgrammar"))
    assert other.generate(prompt, params, "r") is not None


def test_beam_search_of_a_server_is_refused_beside_a_description(engine: SimpleNamespace) -> None:
    """vLLM would leave the description out."""
    plugin.register()
    engine.EngineArgs({"backend": "structgen"}).create_structured_outputs_config()
    for kind in (engine.ChatCompletionRequest, engine.CompletionRequest):
        assert kind().to_beam_search_params(7, {}) == 7
        with pytest.raises(Refused, match="does not constrain beam search"):
            kind("described").to_beam_search_params(7, {})


def test_other_backends_are_left_alone(engine: SimpleNamespace) -> None:
    """Each function goes on as before."""
    plugin.register()
    config = _config(engine, "xgrammar")
    params = engine.SamplingParams(engine.StructuredOutputsParams(regex="("), min_tokens=3)
    params._validate_structured_outputs(config.model_config, config.structured_outputs_config, VOCABULARY)
    assert params.checked_by == "vllm"
    assert engine.InputProcessor(config).process_inputs("r", [1], params, ()).sampling_params is params
    manager = engine.StructuredOutputManager(config)
    assert manager.backend is None
    assert manager._create_grammar(None) == manager.grammar_bitmask({}, [], {}) == "vllm"


def test_what_differs_is_named_and_nothing_else_changes(
    engine: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever asks for structgen gets the reason; the other backends work."""

    def accept_tokens(self: Any, tokens: Any) -> None:
        """Of another release."""

    monkeypatch.setattr(engine.StructuredOutputGrammar, "accept_tokens", accept_tokens)
    monkeypatch.delattr(engine.StructuredOutputManager, "_get_constraint_bounds")
    first, second = plugin.differences()
    assert "_get_constraint_bounds does not exist" in first
    assert "accept_tokens takes (self, tokens); expected (self, request_id, tokens)" in second
    plugin.register()
    assert engine.EngineArgs({"backend": "xgrammar"}).create_structured_outputs_config() == {"backend": "xgrammar"}
    for held in ({"backend": "structgen"}, engine.StructuredOutputsConfig(backend="structgen")):
        with pytest.raises(RuntimeError, match="_get_constraint_bounds does not exist"):
            engine.EngineArgs(held).create_structured_outputs_config()
    assert engine.StructuredOutputManager(_config(engine)).backend is None
    monkeypatch.setenv(plugin.SWITCH, "1")
    with pytest.raises(RuntimeError, match="does not fit this vLLM"):
        plugin.register()

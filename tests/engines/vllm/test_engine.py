"""The plug-in beside vLLM's own classes: entry points, the manager, and thoughts."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from conftest import ENVIRONMENT, SMALL

from structgen.engine import Matcher
from structgen.engine.row_buffer import RowBuffer
from structgen.integrations import request_matcher

pytestmark = pytest.mark.vllm

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
END_OF_THOUGHT = 17


@pytest.fixture(scope="module")
def tokenizer(folder: str) -> Any:
    """Of the model."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder)


class Reasoner:
    """A reasoner whose thoughts end with one token."""

    def __init__(self, tokenizer: Any, **_: Any) -> None:
        self.tokenizer = tokenizer

    def is_reasoning_end(self, ids: list[int]) -> bool:
        """Whether the end was written."""
        return END_OF_THOUGHT in ids

    def is_reasoning_end_streaming(self, ids: list[int], delta: list[int]) -> bool:
        """Whether it is among the last tokens."""
        return END_OF_THOUGHT in delta


@pytest.fixture
def manager(tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """vLLM's manager with structgen as its backend, for eight requests with up to four drafts."""
    from vllm.config import StructuredOutputsConfig
    from vllm.v1 import structured_output

    from structgen.integrations.vllm.plugin import register

    register()
    monkeypatch.setattr(structured_output, "cached_tokenizer_from_config", lambda **_: tokenizer)
    size = len(tokenizer) + 32
    config = SimpleNamespace(
        structured_outputs_config=StructuredOutputsConfig(backend="structgen"),
        model_config=SimpleNamespace(
            skip_tokenizer_init=False, get_vocab_size=lambda: size, is_diffusion=False, max_model_len=512
        ),
        scheduler_config=SimpleNamespace(max_num_seqs=8, async_scheduling=True),
        parallel_config=SimpleNamespace(distributed_executor_backend="uni"),
        speculative_config=None,
        num_speculative_tokens=4,
        additional_config={},
    )
    return structured_output.StructuredOutputManager(config)


def _request(manager: Any, tokenizer: Any, max_tokens: int = 60, **described: Any) -> Any:
    from vllm.sampling_params import SamplingParams, StructuredOutputsParams
    from vllm.v1.request import Request

    params = SamplingParams(max_tokens=max_tokens, structured_outputs=StructuredOutputsParams(**described))
    params.structured_outputs._backend = "structgen"
    params.update_from_generation_config({}, tokenizer.eos_token_id)
    request = Request(f"r{random.random()}", [1, 2, 3], params, None)
    manager.grammar_init(request)
    while not request.structured_output_request.is_grammar_ready:
        pass
    return request


def test_vllm_finds_the_plugin() -> None:
    """As it looks for all of them, and there is nothing in it that has changed."""
    from structgen.integrations.vllm.plugin import differences, register

    assert [each.load() for each in entry_points(group="vllm.general_plugins", name="structgen")] == [register]
    assert len(entry_points(group="vllm.endpoint_plugins", name="structgen")) == 1
    assert [*differences()] == []


def test_the_name_is_one_of_the_backends() -> None:
    """On the command line and in objects; other names stay refused."""
    from pydantic import TypeAdapter, ValidationError
    from vllm.config import StructuredOutputsConfig

    from structgen.integrations.vllm.plugin import register

    register()
    register()
    read = TypeAdapter(StructuredOutputsConfig).validate_json
    assert read('{"backend": "structgen"}').backend == "structgen"
    assert StructuredOutputsConfig(backend="structgen").backend == "structgen"
    with pytest.raises(ValidationError, match="structgen"):
        read('{"backend": "structgem"}')


def test_a_vllm_that_differs_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever asks for structgen is told what has changed; others are left alone."""
    from vllm.config import StructuredOutputsConfig
    from vllm.engine.arg_utils import EngineArgs
    from vllm.v1.structured_output import StructuredOutputManager

    from structgen.integrations.vllm import plugin

    def grammar_bitmask(self: Any, batch: Any) -> None:
        """Of another release."""

    original = EngineArgs.create_structured_outputs_config
    monkeypatch.setattr(EngineArgs, "create_structured_outputs_config", getattr(original, "__wrapped__", original))
    monkeypatch.setattr(StructuredOutputManager, "grammar_bitmask", grammar_bitmask)
    assert [*plugin.differences()] == [
        "StructuredOutputManager.grammar_bitmask takes (self, batch); expected (self, requests, "
        "structured_output_request_ids, scheduled_spec_decode_tokens)"
    ]
    plugin.register()
    held = SimpleNamespace(structured_outputs_config=StructuredOutputsConfig(backend="structgen"))
    with pytest.raises(RuntimeError, match="grammar_bitmask takes"):
        EngineArgs.create_structured_outputs_config(held)
    monkeypatch.setenv(plugin.SWITCH, "1")
    with pytest.raises(RuntimeError, match="does not fit this vLLM"):
        plugin.register()
    monkeypatch.setenv(plugin.SWITCH, "yes")
    with pytest.raises(RuntimeError, match="expected 0 or 1"):
        plugin.register()


def _config(folder: str, **arguments: Any) -> Any:
    from vllm.engine.arg_utils import EngineArgs

    from structgen.integrations.vllm.plugin import register

    register()
    return EngineArgs(model=folder, max_model_len=256, **arguments).create_engine_config()


def test_the_other_model_runner_is_refused_by_name(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM for CPUs has no Triton, which the model runner V2 needs: a start that asks for it ends."""
    from vllm import envs

    envs.disable_envs_cache()  # of an engine that ran here before
    monkeypatch.setenv("STRUCTGEN_VLLM", "1")
    assert _config(folder).use_v2_model_runner is False
    monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", "1")
    with pytest.raises(ValueError, match="Model Runner V2 requires Triton"):
        _config(folder)


def test_async_scheduling_is_off_or_refused_by_name(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On CPUs it is off, whatever is asked for; beside the drafter of forced text it is refused anywhere."""
    monkeypatch.setenv("STRUCTGEN_VLLM", "1")
    assert _config(folder, async_scheduling=True).scheduler_config.async_scheduling is False
    drafts = {
        "method": "custom_class",
        "model": "structgen.integrations.vllm.proposer.ForcedText",
        "num_speculative_tokens": 4,
    }
    assert _config(folder, speculative_config=drafts).scheduler_config.async_scheduling is False
    with pytest.raises(ValueError, match="async scheduling is only supported with"):
        _config(folder, speculative_config=drafts, async_scheduling=True)


def test_answers_are_complete_under_async_scheduling(folder: str) -> None:
    """Where it is kept on, as on GPUs: a step is planned while the tokens of the last one are still on their way."""
    import jsonschema_rs

    schemas: list[Any] = [SCHEMA, {"type": "array", "items": {"enum": ["x", "yy"]}, "minItems": 1, "maxItems": 3}] * 3
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("async_job.py")), json.dumps([folder, SMALL, schemas])],
        env={**os.environ, **ENVIRONMENT, "STRUCTGEN_VLLM": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-6000:]
    said = json.loads(done.stdout.splitlines()[-1])
    assert said["scheduler"] == "AsyncScheduler"
    for schema, answers in zip(schemas, said["answers"], strict=True):
        assert len(answers) == 2
        for text, reason in answers:
            assert reason == "stop"
            assert jsonschema_rs.is_valid(schema, json.loads(text))


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("thinks", [False, True])
def test_rows_of_one_call_are_those_of_the_walk_of_vllm(
    manager: Any, tokenizer: Any, seed: int, *, thinks: bool
) -> None:
    """For requests in any state, with drafts, padding and ends of thoughts: all rows that can be sampled from."""
    numbers = random.Random(seed)
    manager.reasoner_cls = Reasoner if thinks else None
    text = tokenizer.encode('{"a": 12345}')
    requests, drafts = {}, {}
    for at in range(8):
        request = _request(manager, tokenizer, json=SCHEMA)
        if thinks and at % 2:
            fed = [5, 6]
        else:
            fed = [*([5, END_OF_THOUGHT] if thinks else []), *text[: numbers.randrange(len(text))]]
        request.append_output_token_ids(fed)
        assert manager.accept_tokens(request, fed)
        requests[request.request_id] = request
        rest = [*text[len(fed) - 2 * thinks :], tokenizer.eos_token_id] if fed[:1] != [5] or at % 2 == 0 else []
        chain = [*([7, END_OF_THOUGHT] if thinks and at % 4 == 1 else []), *(rest or text)][: numbers.randrange(5)]
        if numbers.random() < 0.3:
            chain = [*chain[:2], -1, -1][:4]
        if chain:
            drafts[request.request_id] = chain
    ids = list(requests)
    rows = manager.grammar_bitmask(requests, ids, drafts).copy()
    walk = type(manager).grammar_bitmask.__wrapped__
    expected = walk(manager, requests, ids, drafts)
    assert rows.shape == expected.shape
    assert np.array_equal(rows, expected)


def test_thoughts_are_free_and_the_answer_fits(manager: Any, tokenizer: Any) -> None:
    """The limit counts the thoughts; drafts are validated from their end."""
    manager.reasoner_cls = Reasoner
    request = _request(manager, tokenizer, max_tokens=24, json=SCHEMA)
    ids = {request.request_id: request}
    numbers = random.Random(1)
    for token in (*(9 for _ in range(8)), END_OF_THOUGHT):
        assert (manager.grammar_bitmask(ids, [*ids], {}) == -1).all()
        request.append_output_token_ids([token])
        assert manager.accept_tokens(request, [token])
    assert manager.validate_tokens(request, [*tokenizer.encode('{"a": '), 11_111]) == tokenizer.encode('{"a": ')
    digits = {tokenizer.encode(str(digit))[0] for digit in range(10)}
    while not request.structured_output_request.grammar.is_terminated():
        row = manager.grammar_bitmask(ids, [*ids], {})[0]
        allowed = np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little"))
        liked = [token for token in allowed if token in digits] or list(allowed)
        token = int(numbers.choice(liked))
        request.append_output_token_ids([token])
        assert manager.accept_tokens(request, [token])
    written = list(request.output_token_ids)
    assert len(written) <= 24
    assert isinstance(json.loads(tokenizer.decode(written[9:-1]))["a"], int)


@pytest.mark.parametrize("with_drafts", [False, True])
@pytest.mark.parametrize("method", ["completes_within", "fill_mask", "accept"])
def test_an_exception_of_a_matcher_ends_its_own_request(
    manager: Any, tokenizer: Any, method: str, monkeypatch: pytest.MonkeyPatch, *, with_drafts: bool
) -> None:
    """The rows of the others are as without it; its own allow only EOS, and its next token ends it."""
    text = tokenizer.encode('{"a": 12345}')
    requests = {each.request_id: each for each in (_request(manager, tokenizer, json=SCHEMA) for _ in range(3))}
    ids = list(requests)
    drafts = dict.fromkeys(ids, text[:2]) if with_drafts else {}
    expected = manager.grammar_bitmask(requests, ids, drafts).copy()
    for request in requests.values():
        grammar = request.structured_output_request.grammar
        grammar.reset()
        grammar.is_begun = False
    manager.backend.destroy()  # else the rows are known
    broken, usual = requests[ids[1]], getattr(Matcher, method)

    def faulty(matcher: Any, *args: Any, **kwargs: Any) -> Any:
        if matcher is broken.structured_output_request.grammar.matcher.matcher:
            raise RuntimeError("a fault")
        return usual(matcher, *args, **kwargs)

    def together(*_: Any) -> None:
        raise RuntimeError("a fault of one of them")

    monkeypatch.setattr(Matcher, method, faulty)
    for place in (RowBuffer, "fill_owned"), (RowBuffer, "fill"), (request_matcher, "fill_mask_trees"):
        monkeypatch.setattr(*place, together)
    rows = manager.grammar_bitmask(requests, ids, drafts)
    each = len(rows) // 3
    assert np.array_equal(rows[:each], expected[:each])
    assert np.array_equal(rows[2 * each :], expected[2 * each :])
    assert not manager.accept_tokens(broken, text[:1])
    assert manager.accept_tokens(requests[ids[2]], text[:1])
    row = manager.grammar_bitmask(requests, [ids[1]], {})[0]
    allowed = np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little"))
    assert list(allowed) == [tokenizer.eos_token_id]

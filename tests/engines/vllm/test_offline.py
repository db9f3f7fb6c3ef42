"""``LLM(...)`` in this process, with the weights of the embedded model: what it writes, and what ends a request."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from conftest import ENVIRONMENT

from structgen.engine import Matcher
from structgen.engine.row_buffer import RowBuffer
from structgen.integrations.vllm.backend import Backend

pytestmark = pytest.mark.vllm

CONTEXT = 1024
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}


@pytest.fixture(scope="module")
def llm(folder: str) -> Any:
    """An engine, selected by the environment variable."""
    with pytest.MonkeyPatch.context() as patched:
        for name, value in {**ENVIRONMENT, "STRUCTGEN_VLLM": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}.items():
            patched.setenv(name, value)
        from vllm import LLM

        return LLM(model=folder, max_model_len=CONTEXT, max_num_seqs=16, enforce_eager=True, dtype="float32")


def _params(most: int, described: dict[str, Any], **more: Any) -> Any:
    from vllm import SamplingParams
    from vllm.sampling_params import StructuredOutputsParams

    return SamplingParams(
        max_tokens=most, **{"temperature": 0, **more}, structured_outputs=StructuredOutputsParams(**described)
    )


def test_answers_differ_and_are_valid(llm: Any) -> None:
    """Different schemas in one call, and two answers each; what is left of the model's length bounds them, too."""
    import jsonschema_rs
    from vllm.exceptions import VLLMValidationError

    schemas = [SCHEMA, {"type": "array", "items": {"enum": ["x", "yy"]}, "minItems": 1, "maxItems": 3}]
    asked = [_params(30, {"json": schema}, n=2, seed=1, temperature=1) for schema in schemas]
    for schema, answer in zip(schemas, llm.generate(["a", "b"], asked), strict=True):
        assert len(answer.outputs) == 2
        for each in answer.outputs:
            assert each.finish_reason == "stop"
            assert jsonschema_rs.is_valid(schema, json.loads(each.text))
    with pytest.raises(VLLMValidationError, match="takes"):
        llm.generate([{"prompt_token_ids": [1] * (CONTEXT - 60)}], _params(200, {"regex": "[0-9]{90}"}))


@pytest.mark.parametrize("method", ["completes_within", "fill_mask", "accept"])
def test_an_exception_of_a_matcher_ends_its_own_request(llm: Any, method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The others of its batch write what they write without it."""
    prompts = [f"Write a number below {at}." for at in range(10, 16)]
    asked = [_params(30 + (at == 2), {"regex": "The number is [0-9]{3,9}[a-z]{3}"}) for at in range(len(prompts))]
    expected = [answer.outputs[0].text for answer in llm.generate(prompts, asked)]
    broken, usual, grammar, together = [], getattr(Matcher, method), Backend.grammar, RowBuffer.fill_owned
    least = 0 if method == "completes_within" else 4

    def noted(backend: Backend, request: Any, length: int) -> Any:
        made = grammar(backend, request, length)
        if request.max_tokens == 31:
            broken.append(made.matcher.matcher)
        return made

    def is_broken(matcher: Matcher) -> bool:
        return any(matcher is each and each.history_length >= least for each in broken)

    def faulty(matcher: Matcher, *args: Any, **kwargs: Any) -> Any:
        if is_broken(matcher):
            raise RuntimeError("a fault")
        return usual(matcher, *args, **kwargs)

    def owned(rows: Any, requests: Any, ids: Any, of: Any) -> Any:
        if method == "fill_mask" and any(is_broken(of(requests[each])) for each in ids):
            raise RuntimeError("a fault of one of them")
        return together(rows, requests, ids, of)

    monkeypatch.setattr(Backend, "grammar", noted)
    monkeypatch.setattr(Matcher, method, faulty)
    monkeypatch.setattr(RowBuffer, "fill_owned", owned)
    found = [answer.outputs[0] for answer in llm.generate(prompts, asked)]
    assert len(broken) == 1
    assert found[2].finish_reason == "error"
    for at in (0, 1, 3, 4, 5):
        assert found[at].finish_reason == "stop"
        assert found[at].text == expected[at]
        assert re.fullmatch("The number is [0-9]{3,9}[a-z]{3}", found[at].text)
    monkeypatch.undo()
    assert [answer.outputs[0].text for answer in llm.generate(prompts, asked)] == expected

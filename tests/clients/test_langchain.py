"""LangChain: structured output by each method, calls of tools, and streams."""

from __future__ import annotations

from typing import Any

import jsonschema
import pytest
from asked import MODEL, MOST, QUESTION, SCHEMA, City

pytest.importorskip("langchain_openai")
from langchain_core.messages import HumanMessage, SystemMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI


@tool
def population(city: str) -> int:
    """How many people live in a city."""
    return 2_000_000


@pytest.fixture(scope="module")
def made(base_url: str) -> Any:
    """Makes a model with settings."""

    def make(**settings: Any) -> Any:
        settings = {"max_tokens": MOST, "max_retries": 0, **settings}
        return ChatOpenAI(base_url=base_url, api_key="none", model=MODEL, **settings)

    return make


@pytest.mark.parametrize("is_streamed", [False, True])
@pytest.mark.parametrize(
    ("method", "settings"),
    [("json_schema", {}), ("function_calling", {}), ("json_mode", {"extra_body": SCHEMA})],  # json_mode has no schema
)
def test_each_method_returns_the_model(made: Any, method: str, settings: Any, is_streamed: bool) -> None:
    asked = made(**settings).with_structured_output(City, method=method)
    found = list(asked.stream(QUESTION))[-1] if is_streamed else asked.invoke(QUESTION)
    assert isinstance(found, City)


@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
def test_strict_and_raw_answers(made: Any, method: str) -> None:
    """With the message beside the model, and no error of its parser."""
    asked = made().with_structured_output(City, method=method, strict=True, include_raw=True)
    found = asked.invoke(QUESTION)
    assert found["parsing_error"] is None
    assert isinstance(found["parsed"], City)
    assert found["raw"].usage_metadata["output_tokens"] <= MOST


def test_a_schema_is_a_dict(made: Any) -> None:
    schema = {
        "title": "city",
        "type": "object",
        "properties": {"name": {"type": "string", "pattern": "^[A-Z][a-z]{2,9}$"}},
        "required": ["name"],
    }
    jsonschema.validate(made().with_structured_output(schema).invoke(QUESTION), schema)


def test_a_loop_calls_a_tool_and_answers(made: Any) -> None:
    """The call and its result are in the history of the last turn."""
    history = [SystemMessage("Be brief."), HumanMessage("How many people live in Paris?")]
    asked = made(temperature=0).bind_tools([population], tool_choice="any", parallel_tool_calls=False)
    history.append(asked.invoke(history))
    (call,) = history[-1].tool_calls
    assert history[-1].invalid_tool_calls == []
    history.append(population.invoke(call))
    answer = made(max_tokens=8).bind_tools([population], tool_choice="none").invoke(history)
    assert answer.text
    assert not answer.tool_calls


@pytest.mark.parametrize("choice", ["auto", "required", "population", True])
def test_each_choice_of_tools_is_taken(made: Any, choice: Any) -> None:
    asked = made(max_tokens=40).bind_tools([population], tool_choice=choice, strict=True)
    message = asked.invoke("How many people live in Paris?")
    assert message.invalid_tool_calls == []
    assert message.tool_calls or choice == "auto"
    for call in message.tool_calls:
        population.args_schema.model_validate(call["args"])


def test_calls_are_streamed(made: Any) -> None:
    """The chunks, joined, have whole calls and the usage."""
    asked = made(stream_usage=True).bind_tools([population], tool_choice="required", parallel_tool_calls=False)
    first, *others = asked.stream("How many people live in Paris?")
    for chunk in others:
        first += chunk
    (call,) = first.tool_calls
    population.args_schema.model_validate(call["args"])
    assert first.usage_metadata["output_tokens"] <= MOST


def test_settings_are_taken(made: Any) -> None:
    asked = made(
        max_tokens=4,
        temperature=0.5,
        top_p=0.9,
        seed=1,
        n=2,
        logprobs=True,
        top_logprobs=2,
        frequency_penalty=0.1,
        presence_penalty=0.1,
        stop=["\n\n"],
        store=False,
        service_tier="auto",
        reasoning_effort="none",
    )
    (results,) = asked.generate([[HumanMessage("Hello")]]).generations
    assert len(results) == 2
    assert len(results[0].message.response_metadata["logprobs"]["content"]) == 4


def test_responses_are_the_model(made: Any) -> None:
    asked = made(use_responses_api=True).with_structured_output(City)
    assert isinstance(asked.invoke(QUESTION), City)


def test_responses_call_tools(made: Any) -> None:
    asked = made(use_responses_api=True).with_structured_output(City, method="function_calling")
    assert isinstance(asked.invoke(QUESTION), City)

"""Pydantic AI: each kind of output, streams, and an agent that calls a tool."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from asked import MODEL, MOST, QUESTION, SCHEMA, City

pytest.importorskip("pydantic_ai")
from pydantic_ai import Agent, ModelSettings, NativeOutput, PromptedOutput, ToolOutput
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider


@pytest.fixture(scope="module")
def provider(base_url: str) -> Any:
    return OpenAIProvider(base_url=base_url, api_key="none")


def agent(model: Any, output: Any, **settings: Any) -> Any:
    """An agent that asks once."""
    return Agent(model, output_type=output, retries=0, model_settings=ModelSettings(max_tokens=MOST, **settings))


@pytest.mark.parametrize(
    ("kind", "settings"),
    [(ToolOutput, {}), (NativeOutput, {}), (PromptedOutput, {"extra_body": SCHEMA})],  # told in words; enforced here
)
def test_each_kind_of_output_is_the_model(provider: Any, kind: Any, settings: Any) -> None:
    """At the first try."""
    result = agent(OpenAIChatModel(MODEL, provider=provider), kind(City), **settings).run_sync(QUESTION)
    assert isinstance(result.output, City)
    assert result.usage.output_tokens <= MOST


@pytest.mark.parametrize("kind", [ToolOutput, NativeOutput])
def test_output_is_streamed(provider: Any, kind: Any) -> None:
    """The last part is complete."""

    async def last() -> Any:
        async with agent(OpenAIChatModel(MODEL, provider=provider), kind(City)).run_stream(QUESTION) as result:
            parts = [part async for part in result.stream_output(debounce_by=None)]
            assert parts[-1] == await result.get_output()
        return parts[-1]

    assert isinstance(asyncio.run(last()), City)


def test_text_is_streamed(provider: Any) -> None:
    async def text() -> str:
        asked = Agent(OpenAIChatModel(MODEL, provider=provider), model_settings=ModelSettings(max_tokens=8))
        async with asked.run_stream("Hello") as result:
            return "".join([part async for part in result.stream_text(delta=True)])

    assert asyncio.run(text())


def test_an_agent_calls_a_tool_and_ends(provider: Any) -> None:
    """The tool is there until it was called; then only the output is left, for a call is required."""
    called: list[str] = []
    asked = Agent(
        OpenAIChatModel(MODEL, provider=provider),
        output_type=City,
        instructions="Look first.",
        system_prompt="Be brief.",
        model_settings=ModelSettings(max_tokens=MOST, parallel_tool_calls=False, temperature=0),
    )

    async def first_only(_: Any, definition: Any) -> Any:
        return None if called else definition

    @asked.tool_plain(prepare=first_only)
    def population(city: str) -> int:
        """How many people live in a city."""
        called.append(city)
        return 2_000_000

    result = asked.run_sync("How many people live in Paris?")
    assert isinstance(result.output, City)
    kinds = [part.part_kind for message in result.all_messages() for part in message.parts]
    assert kinds.count("tool-call") == 2
    assert len(called) == 1


def test_responses_have_native_output(provider: Any) -> None:
    result = agent(OpenAIResponsesModel(MODEL, provider=provider), NativeOutput(City)).run_sync(QUESTION)
    assert isinstance(result.output, City)


def test_responses_have_tool_output(provider: Any) -> None:
    result = agent(OpenAIResponsesModel(MODEL, provider=provider), ToolOutput(City)).run_sync(QUESTION)
    assert isinstance(result.output, City)

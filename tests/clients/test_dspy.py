"""DSPy: signatures with types, by its JSON adapter with the schema, and by its chat adapter with a regex."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import pytest
from asked import MODEL, QUESTION, City

dspy = pytest.importorskip("dspy")
from dspy.lm15 import (  # noqa: E402
    AccessPolicy,
    ModelSupport,
    OpenAIChatCompat,
    ProviderDefinition,
    register_provider,
    unregister_provider,
)

CHAT_FORM = (
    r"\[\[ ## city ## \]\]\n\{\"name\": \"[A-Z][a-z]{1,9}\", \"is_capital\": (true|false)\}\n\n"
    r"\[\[ ## is_sure ## \]\]\n(yes|no)\n\n\[\[ ## completed ## \]\]"
)
"""What the chat adapter reads, which it tells the model in words only."""


class Ask(dspy.Signature):
    """Answer the question."""

    question: str = dspy.InputField()
    city: City = dspy.OutputField()
    is_sure: Literal["yes", "no"] = dspy.OutputField()


@pytest.fixture(scope="module")
def lm(base_url: str) -> Iterator[Any]:
    """A model of a provider that says what it can: DSPy sends no schema to models that it does not know."""
    compat = OpenAIChatCompat.preset("openai")
    access = AccessPolicy(provider="structgen-tests", base_url=base_url)
    register_provider(
        ProviderDefinition.chat(access, compat=compat, placeholder_key="none"),
        supports=ModelSupport(function_calling=True, response_schema=True),
    )
    yield dspy.LM(f"structgen-tests/{MODEL}", max_tokens=110, cache=False, num_retries=0)
    unregister_provider("structgen-tests")


@pytest.mark.parametrize("module", ["Predict", "ChainOfThought"])
def test_the_json_adapter_returns_the_types(lm: Any, module: str) -> None:
    with dspy.context(lm=lm, adapter=dspy.JSONAdapter()):
        found = getattr(dspy, module)(Ask)(question=QUESTION)
    assert isinstance(found.city, City)
    assert found.is_sure in ("yes", "no")
    assert module == "Predict" or isinstance(found.reasoning, str)


def test_the_chat_adapter_returns_the_types(base_url: str) -> None:
    """Its own form is a regex in the body."""
    lm = dspy.LM(f"openai/{MODEL}", api_base=base_url, api_key="none", max_tokens=110, cache=False, num_retries=0)
    with dspy.context(lm=lm, adapter=dspy.ChatAdapter(use_json_adapter_fallback=False)):
        found = dspy.Predict(Ask, extra_body={"structured_outputs": {"regex": CHAT_FORM}})(question=QUESTION)
    assert isinstance(found.city, City)
    assert found.is_sure in ("yes", "no")


def test_tools_are_called(lm: Any) -> None:
    """By the server's own calls; free text is an answer too, and then there are none."""

    def population(city: str) -> int:
        """How many people live in a city."""
        return len(city)

    class Act(dspy.Signature):
        """Call the tool."""

        question: str = dspy.InputField()
        tools: list[dspy.Tool] = dspy.InputField()
        calls: dspy.ToolCalls = dspy.OutputField()

    with dspy.context(lm=lm, adapter=dspy.JSONAdapter()):
        tools = [dspy.Tool(population)]
        found = dspy.Predict(Act, tool_choice="required")(question="How many people live in Paris?", tools=tools)
    assert found.calls.tool_calls
    for call in found.calls.tool_calls:
        assert call.name == "population"
        assert isinstance(call.execute(functions={"population": population}), int)


def test_several_answers_are_the_types(lm: Any) -> None:
    with dspy.context(lm=lm, adapter=dspy.JSONAdapter()):
        found = dspy.Predict(Ask, n=2, temperature=1.0)(question=QUESTION)
    assert [isinstance(city, City) for city in found.completions.city] == [True, True]

"""Instructor: each of its modes for servers of OpenAI's interface returns the model that was asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
from asked import MESSAGES, MODEL, MOST, SCHEMA, City
from pydantic import BaseModel, field_validator

instructor = pytest.importorskip("instructor")
from instructor import Mode  # noqa: E402
from openai import OpenAI  # noqa: E402

ASKED: dict[Any, dict[str, Any]] = {
    Mode.FUNCTIONS: {},
    Mode.TOOLS: {},
    Mode.TOOLS_STRICT: {},
    Mode.JSON_SCHEMA: {},
    Mode.JSON_O1: {},
    Mode.JSON: {"extra_body": SCHEMA},
    Mode.MD_JSON: {"extra_body": SCHEMA},
    Mode.RESPONSES_TOOLS: {},
    Mode.RESPONSES_TOOLS_WITH_INBUILT_TOOLS: {},
}


@pytest.fixture(scope="module")
def of(base_url: str) -> Callable[[Any], Any]:
    """A client in a mode."""
    return lambda mode: instructor.from_openai(OpenAI(base_url=base_url, api_key="none", max_retries=0), mode=mode)


@pytest.mark.parametrize("mode", list(ASKED))
def test_each_mode_returns_the_model(of: Callable[[Any], Any], mode: Any) -> None:
    """At the first try: no answer is asked for again."""
    city = of(mode).chat.completions.create(
        model=MODEL, messages=MESSAGES, response_model=City, max_retries=0, max_tokens=MOST, **ASKED[mode]
    )
    assert isinstance(city, City)


@pytest.mark.parametrize("mode", [Mode.TOOLS, Mode.JSON_SCHEMA])
def test_parts_come_in_a_stream(of: Callable[[Any], Any], mode: Any) -> None:
    """The last is complete."""
    parts = list(
        of(mode).chat.completions.create_partial(
            model=MODEL, messages=MESSAGES, response_model=City, max_retries=0, max_tokens=MOST
        )
    )
    assert len(parts) > 1
    City.model_validate(parts[-1].model_dump())


def test_several_models_come_in_a_stream(of: Callable[[Any], Any]) -> None:
    """As many as the model writes."""
    cities = of(Mode.TOOLS).chat.completions.create_iterable(
        model=MODEL, messages=MESSAGES, response_model=City, max_retries=0, max_tokens=100, temperature=0
    )
    assert all(isinstance(city, City) for city in cities)


def test_several_calls_are_several_models(of: Callable[[Any], Any]) -> None:
    """Instructor says ``auto``; ``required`` makes the small model call."""
    cities = list(
        of(Mode.PARALLEL_TOOLS).chat.completions.create(
            model=MODEL,
            messages=MESSAGES,
            response_model=Iterable[City],
            max_retries=0,
            max_tokens=100,
            extra_body={"tool_choice": "required"},
        )
    )
    assert cities
    assert all(isinstance(city, City) for city in cities)


@pytest.mark.parametrize("mode", [Mode.TOOLS, Mode.JSON_SCHEMA])
def test_an_answer_is_asked_for_again(of: Callable[[Any], Any], mode: Any) -> None:
    """What no schema says is said in the next turn: the refused answer and the error come back as messages."""
    tried: list[str] = []

    class Checked(BaseModel):
        """A city."""

        name: str

        @field_validator("name")
        @classmethod
        def _second(cls, value: str) -> str:
            tried.append(value)
            if len(tried) == 1:
                raise ValueError("take another one")
            return value

    city = of(mode).chat.completions.create(
        model=MODEL, messages=MESSAGES, response_model=Checked, max_retries=1, max_tokens=30
    )
    assert [city.name] == tried[1:]

"""Functions as tools."""

from __future__ import annotations

import functools
import threading
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field
from typing_extensions import TypedDict

import structgen
from structgen.errors import GrammarError, ProgramError
from structgen.grammar.regex import regex
from structgen.program import Tool, tool


class Place(BaseModel):
    city: str


class Options(TypedDict, total=False):
    units: Literal["C", "F"]


@tool
def weather(place: Place, days: Annotated[int, Field(ge=1, le=9)] = 1, options: Options | None = None) -> str:
    """The weather of a place."""
    return f"{place.city} {days} {options}"


def test_a_tool_is_its_function() -> None:
    assert isinstance(weather, Tool)
    assert structgen.tool is tool
    assert (weather.name, weather.description) == ("weather", "The weather of a place.")
    assert weather(Place(city="Rome")) == "Rome 1 None"
    assert "days" in repr(weather)

    @tool(name="sum", description="Adds.")
    def add(x: int, y: int = 2) -> int:
        """Not this."""
        return x + y

    assert (add.name, add.description, add(1)) == ("sum", "Adds.", 3)


def test_calls_with_arguments_of_json() -> None:
    assert weather.call({"place": {"city": "Rome"}, "days": 3, "options": {"units": "C"}}) == "Rome 3 {'units': 'C'}"
    assert weather.call({"place": {"city": "Rome"}}) == "Rome 1 None"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "place: Field required"),
        ({"place": {"city": "Rome"}, "days": 10}, "days: .*less than or equal to 9"),
        ({"place": {"city": 3}}, "place.city: "),
        ({"place": {"city": "Rome"}, "day": 1}, "day: Extra"),
    ],
)
def test_arguments_that_do_not_fit_are_named(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ProgramError, match=rf"tool weather.*{message}"):
        weather.call(arguments)


def test_names_that_mean_something_to_pydantic() -> None:
    @tool
    def odd(model_config: int, schema: str, self: int, _private: int = 1) -> tuple[int, str, int, int]:
        return model_config, schema, self, _private

    assert odd.call({"model_config": 1, "schema": "s", "self": 2}) == (1, "s", 2, 1)
    assert odd.call({"model_config": 1, "schema": "s", "self": 2, "_private": 5}) == (1, "s", 2, 5)


def test_methods_and_what_can_be_called() -> None:
    class Shop:
        def price(self, item: str) -> int:
            return len(item)

        def __call__(self, item: str) -> str:
            return item

    assert tool(Shop().price).call({"item": "fish"}) == 4
    assert tool(name="shop")(Shop()).call({"item": "fish"}) == "fish"
    three = functools.partial(weather.function, days=3)
    assert tool(name="three")(three).call({"place": {"city": "Rome"}}) == "Rome 3 None"


def test_wrong_tools_name_the_parameter_and_the_way_out() -> None:
    with pytest.raises(ProgramError, match=r"tool bare, parameter 'x': it has no annotation.*annotate it"):

        @tool
        def bare(x) -> int:  # type: ignore[no-untyped-def]
            return 1

    with pytest.raises(ProgramError, match=r"parameter 'rest': it takes any number.*named parameters"):

        @tool
        def many(*rest: int) -> int:
            return 1

    with pytest.raises(ProgramError, match=r"parameter 'rest': it takes arguments of any name"):

        @tool
        def any_name(**rest: int) -> int:
            return 1

    with pytest.raises(ProgramError, match=r"parameter 'x': it cannot be given by name"):

        @tool
        def positional(x: int, /) -> int:
            return 1

    with pytest.raises(GrammarError, match=r"tool typed, parameter 'x': its annotation .*Event.* has no JSON form"):

        @tool
        def typed(x: threading.Event) -> int:
            return 1

    with pytest.raises(GrammarError, match=r"parameter 'x': its annotation is a grammar"):

        @tool
        def spelt(x: Annotated[str, regex("[ab]")]) -> int:
            return 1

    with pytest.raises(ProgramError, match=r"tool lost: its parameters are not known.*Nowhere"):

        @tool
        def lost(x: Nowhere) -> int:  # type: ignore[name-defined]  # noqa: F821
            return 1

    with pytest.raises(ProgramError, match="a coroutine function"):

        @tool
        async def waiting(x: int) -> int:
            return 1

    with pytest.raises(ProgramError, match="no function with a name"):
        tool(3)  # type: ignore[call-overload]

"""Functions as tools."""

from __future__ import annotations

import asyncio
import functools
import json
import threading
from typing import Annotated, Any, Literal

import pytest
from byte_membership import BYTES, is_member
from pydantic import BaseModel, Field
from typing_extensions import TypedDict

import structgen
from structgen.engine import compile
from structgen.errors import GrammarError, ProgramError
from structgen.frontends.regex import regex
from structgen.program import Tool, answer_of, tool


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
    assert structgen.program.tool is tool
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


LETTER = regex("[ab]")
SPELT = [
    (Annotated[str, structgen.grammars.Regex("[A-Z]{2}-[0-9]{2}")], "AB-12", "AB-123"),
    (Annotated[str, structgen.grammars.Lark('start: "(" start ")" | "x"')], "((x))", "((x)"),
    (Annotated[str, structgen.select(['say "hi"', "b"])], 'say "hi"', 'say "h"'),
    (Annotated[str, Field(max_length=3), structgen.grammars.Regex("a+")], "aaa", "aaaa"),
    (Annotated[str, structgen.grammars.Regex("a+")] | None, None, 3),
    (list[Annotated[str, structgen.grammars.Regex("a+")]], ["a", "aa"], ["a", "b"]),
]


@pytest.mark.parametrize(("kind", "good", "bad"), SPELT)
def test_grammars_of_texts_hold_for_arguments(kind: Any, good: Any, bad: Any) -> None:
    """They hold for the model's output, and for the arguments of ``call``."""

    def function(code: Any, times: int = 1) -> Any:
        return code

    function.__annotations__["code"] = kind
    use = tool(name="use")(function)
    start = compile(answer_of(use.arguments).grammar, BYTES).matcher()
    for written, expected in ((good, True), (bad, False)):
        assert is_member(start, json.dumps({"code": written}).encode()) is expected
        assert is_member(start, json.dumps({"code": written, "times": 2}).encode()) is expected
    assert use.call({"code": good}) == good
    with pytest.raises(ProgramError, match="code"):
        use.call({"code": bad})


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


def test_coroutine_functions_are_tools() -> None:
    @tool
    async def twice(x: int) -> int:
        """Twice."""
        return 2 * x

    async def both() -> tuple[int, int]:
        return await twice(2), await twice.call({"x": 3})

    assert asyncio.run(both()) == (4, 6)
    assert set(twice.arguments.model_json_schema()["properties"]) == {"x"}


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

    with pytest.raises(GrammarError, match=r"parameter 'x': its annotation is a grammar, and not a type.*Annotated"):

        @tool
        def spelt(x: LETTER) -> int:  # type: ignore[valid-type]
            return 1

    with pytest.raises(GrammarError, match=r"tool beside, parameter .x.: .*Annotated.int.* has no JSON form"):

        @tool
        def beside(x: Annotated[int, regex("[12]")]) -> int:
            return 1

    with pytest.raises(ProgramError, match=r"tool lost: its parameters are not known.*Nowhere"):

        @tool
        def lost(x: Nowhere) -> int:  # type: ignore[name-defined]  # noqa: F821
            return 1

    with pytest.raises(ProgramError, match="an asynchronous generator"):

        @tool
        async def several(x: int) -> Any:
            yield x

    with pytest.raises(ProgramError, match="no function with a name"):
        tool(3)  # type: ignore[call-overload]

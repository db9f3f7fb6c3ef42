"""Streams offer the answer so far: final values, validated once, and nothing else."""

from __future__ import annotations

import asyncio
import copy
import json
from collections.abc import Generator
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import pytest
from counting_validators import CALLS, counted
from pydantic import AfterValidator, BaseModel, Field
from scripted_remote_model import Scripted
from typing_extensions import TypedDict

from structgen.decode import Multinomial
from structgen.engine import Vocabulary
from structgen.models.toy.hash import HashModel
from structgen.program import Event, FieldFinal, ObjectFinal, Retracted, program


def shouted(value: str) -> str:
    return value.upper()


class Item(BaseModel):
    code: Annotated[str, counted("code"), AfterValidator(shouted)] = Field(max_length=4)
    size: Annotated[Literal["small", "large"], counted("size")]


class Order(BaseModel):
    customer: Annotated[str, counted("customer")] = Field(max_length=8)
    items: list[Item] = Field(max_length=3)
    days: Annotated[int, counted("days")] = Field(ge=1, le=30)


@program
def order() -> Order:
    """What is ordered?"""


TEXT = '{"customer": "Ada", "items": [{"code": "ab", "size": "small"}, {"code": "c", "size": "large"}], "days": 12}'
ONCE = {"customer": 1, "code": 2, "size": 2, "days": 1}
SEEN = {
    "customer": "Order(customer='Ada')",
    "items[0].code": "Order(customer='Ada', items=[Item(code='AB')])",
    "items[0].size": "Order(customer='Ada', items=[Item(code='AB', size='small')])",
    "items[0]": "Order(customer='Ada', items=[Item(code='AB', size='small')])",
    "items[1].code": "Order(customer='Ada', items=[Item(code='AB', size='small'), Item(code='C')])",
    "items[1].size": "Order(customer='Ada', items=[Item(code='AB', size='small'), Item(code='C', size='large')])",
    "items[1]": "Order(customer='Ada', items=[Item(code='AB', size='small'), Item(code='C', size='large')])",
    "items": "Order(customer='Ada', items=[Item(code='AB', size='small'), Item(code='C', size='large')])",
    "days": "Order(customer='Ada', items=[Item(code='AB', size='small'), Item(code='C', size='large')], days=12)",
}


def check(events: list[Event], value: Order) -> None:
    """Check that events show the values at their own time, when asked from the first to the last."""
    assert dict(CALLS) == ONCE
    assert {event.name: repr(event.partial) for event in events if isinstance(event, FieldFinal)} == SEEN
    assert dict(CALLS) == ONCE
    assert next(event.value for event in events if isinstance(event, ObjectFinal)) == value
    assert value.model_fields_set == {"customer", "items", "days"}


def test_a_stream(json_vocabulary: Vocabulary) -> None:
    model = HashModel(json_vocabulary, writes=TEXT)
    CALLS.clear()
    check(list(order.stream(model=model)), Order.model_construct(**order_values()))
    CALLS.clear()
    seen = {event.name: repr(event.partial) for event in order.stream(model=model) if isinstance(event, FieldFinal)}
    assert seen == SEEN


def order_values() -> dict[str, Any]:
    items = [Item.model_construct(code="AB", size="small"), Item.model_construct(code="C", size="large")]
    return {"customer": "Ada", "items": items, "days": 12}


def test_a_stream_that_is_waited_for(json_vocabulary: Vocabulary) -> None:
    model = HashModel(json_vocabulary, writes=TEXT)

    async def collect() -> list[Event]:
        return [event async for event in order.astream(model=model)]

    CALLS.clear()
    check(asyncio.run(collect()), Order.model_construct(**order_values()))


def test_a_generator_program(json_vocabulary: Vocabulary) -> None:
    @program
    def steps() -> Generator[Any, Any, Order]:
        yield "What is ordered? "
        made: Order = yield Order
        return made

    CALLS.clear()
    check(list(steps.stream(model=HashModel(json_vocabulary, writes=TEXT))), Order.model_construct(**order_values()))


def test_a_server() -> None:
    spaced = json.dumps(json.loads(TEXT), indent=1)
    CALLS.clear()
    check(list(order.stream(model=Scripted(spaced))), Order.model_construct(**order_values()))


def test_a_server_that_is_asked_again() -> None:
    partials = [
        copy.deepcopy(event.partial)
        for event in order.stream(model=Scripted('{"customer": "Ada", "items": [7]}', TEXT, piece=10))
        if isinstance(event, (FieldFinal, Retracted))
    ]
    assert [repr(each) for each in partials] == ["Order(customer='Ada')", "Order()", *SEEN.values()]


def even(value: int) -> int:
    if value % 2:
        raise ValueError("must be even")
    return value


class Checked(BaseModel):
    name: Annotated[str, counted("name")] = Field(max_length=8)
    count: Annotated[int, AfterValidator(even)] = Field(ge=0, le=99)
    note: str = Field(max_length=8)


@pytest.mark.parametrize("seed", range(6))
def test_what_is_taken_back_is_gone(json_vocabulary: Vocabulary, seed: int) -> None:
    @program(tries=60)
    def checked() -> Checked:
        """Say something."""

    model = HashModel(json_vocabulary, writes='{"name": "ab", "count": 37, "note": "x"}', seed=seed)
    sampler = Multinomial(temperature=0.5) if seed else None
    retracted = 0
    last: Any = None
    for event in checked.stream(model=model, sampler=sampler, seed=seed):
        if isinstance(event, Retracted):
            retracted += 1
            assert event.partial is not last
            assert "count" not in event.partial.model_fields_set
            last = event.partial
        if isinstance(event, FieldFinal):
            last = event.partial
            assert last.model_fields_set == set(vars(last))
            assert vars(last).get("count", 0) % 2 == 0
        if isinstance(event, ObjectFinal):
            assert vars(event.value) == vars(last)
    assert retracted or seed


@dataclass
class Point:
    x: int
    y: int = 5


class Named(TypedDict):
    name: str
    at: Point


@pytest.mark.parametrize(
    ("kind", "text", "seen"),
    [
        (Point, '{"x": 12, "y": 3}', ["Point(x=12)", "Point(x=12, y=3)"]),
        (
            Named,
            '{"name": "a", "at": {"x": 1, "y": 2}}',
            ["{'name': 'a'}", *(f"{{'name': 'a', 'at': Point({each})}}" for each in ("x=1", "x=1, y=2", "x=1, y=2"))],
        ),
        (list[int], "[10, 20]", ["[10]", "[10, 20]"]),
        (tuple[int, bool], "[10, true]", ["None", "None"]),
        (dict[Literal["a", "b"], set[int]], '{"a": [1, 2]}', ["{}", "{}", "{'a': {1, 2}}"]),
    ],
)
def test_other_types(kind: Any, text: str, seen: list[str]) -> None:
    @program
    def made() -> Generator[Any, Any, None]:
        yield "Make it."
        yield kind

    events = made.stream(model=Scripted(text))
    assert [repr(event.partial) for event in events if isinstance(event, FieldFinal)] == seen

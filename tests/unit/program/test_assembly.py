"""Values made part by part equal those that the type makes of the whole text, and nothing is validated twice."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import pytest
from counting_validators import CALLS, counted
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
    ValidationInfo,
    create_model,
    field_validator,
    model_validator,
)
from type_cases import CASES
from type_universe import Universe, spaced, written
from typing_extensions import TypedDict

from structgen.program.json_cursor import FieldEnd, JsonCursor
from structgen.program.stream.field_tracker import Assembly


def ends(text: bytes) -> list[FieldEnd]:
    cursor = JsonCursor()
    return [found for found in (*cursor.feed(text), *cursor.finish()) if isinstance(found, FieldEnd)]


def assembled(adapter: TypeAdapter[Any], text: bytes) -> Assembly:
    assembly = Assembly(adapter)
    for end in ends(text):
        assembly.add(end)
    return assembly


def same(one: Any, other: Any) -> bool:
    """Whether values are equal, of one type, and have the same fields set."""
    if type(one) is not type(other) or one != other:
        return False
    if isinstance(one, BaseModel):
        parts = [(getattr(one, name), getattr(other, name)) for name in type(one).model_fields]
        return one.model_fields_set == other.model_fields_set and all(same(*pair) for pair in parts)
    if isinstance(one, (list, tuple)):
        return all(map(same, one, other))
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    return True


@pytest.mark.parametrize("name", CASES)
def test_the_value_is_that_of_the_whole_text(name: str) -> None:
    case = CASES[name]
    adapter: TypeAdapter[Any] = TypeAdapter(case.kind)
    for value in case.values:
        for text in (written(adapter, value), spaced(written(adapter, value))):
            assembly = assembled(adapter, text)
            assert same(assembly.value, adapter.validate_json(text)), text
            assert assembly.partial.after(len(assembly.partial)) is assembly.value


@pytest.mark.parametrize("first", range(0, 60, 20))
def test_the_value_of_random_models_is_that_of_the_whole_text(first: int) -> None:
    for seed in range(first, first + 20):
        kind = Universe(seed).model()
        adapter: TypeAdapter[Any] = TypeAdapter(kind.annotation)
        for _ in range(3):
            text = written(adapter, kind.make())
            assembly = assembled(adapter, text)
            assert same(assembly.value, adapter.validate_json(text)), (seed, text)
            for count in range(len(assembly.partial)):
                repr(assembly.partial.after(count))


class Part(BaseModel):
    code: Annotated[str, counted("code")]
    price: Annotated[float, counted("price")] = 1.0

    @model_validator(mode="after")
    def whole(self) -> Part:
        CALLS["part"] += 1
        return self


@dataclass
class Place:
    street: Annotated[str, counted("street")]
    number: int = 7
    tags: list[Annotated[str, counted("tag")]] = field(default_factory=list)

    def __post_init__(self) -> None:
        CALLS["place"] += 1


class Note(TypedDict):
    words: Annotated[list[Annotated[str, counted("word")]], counted("words")]


class Round(BaseModel):
    kind: Literal["round"]
    radius: Annotated[int, counted("radius")]


class Square(BaseModel):
    kind: Literal["square"]
    side: int


class Order(BaseModel):
    model_config = ConfigDict(str_strip_whitespace=True, populate_by_name=True)

    customer: Annotated[str, counted("customer")] = Field(alias="Kunde")
    parts: list[Part]
    place: Place
    note: Note | None = None
    shape: Annotated[Round | Square, Field(discriminator="kind")]
    pair: tuple[Annotated[int, counted("pair")], str]
    counts: dict[str, Annotated[int, counted("count")]]
    total: int
    discount: Annotated[int, counted("discount")] = 0
    doubled: Annotated[int, BeforeValidator(lambda value: value * 2), counted("doubled")]

    @field_validator("total")
    @classmethod
    def sees_what_is_before(cls, value: int, info: ValidationInfo) -> int:
        CALLS["total"] += 1
        assert info.data["customer"] == "Ada"
        assert [type(part) for part in info.data["parts"]] == [Part, Part]
        assert info.data["note"] is None
        assert info.field_name == "total"
        return value

    @field_validator("discount")
    @classmethod
    def is_small(cls, value: int, info: ValidationInfo) -> int:
        if value > info.data["total"]:
            raise ValueError(f"must be at most {info.data['total']}")
        return value


TEXT = (
    b'{"Kunde": " Ada ", "parts": [{"code": "a"}, {"code": "b", "price": 2.5}], '
    b'"place": {"street": "x", "tags": ["u", "v"]}, '
    b'"shape": {"kind": "round", "radius": 3}, "pair": [1, "y"], "counts": {"p": 1, "q": 2}, '
    b'"total": 30, "discount": 5, "doubled": 4}'
)
ONCE = {
    "customer": 1, "code": 2, "price": 1, "part": 2, "street": 1, "tag": 2, "place": 1, "radius": 1, "pair": 1,
    "count": 2, "total": 1, "discount": 1, "doubled": 1,
}  # fmt: skip


def test_each_validator_runs_once() -> None:
    adapter = TypeAdapter(Order)
    CALLS.clear()
    expected = adapter.validate_json(TEXT)
    assert dict(CALLS) == ONCE
    CALLS.clear()
    assert same(assembled(adapter, TEXT).value, expected)
    assert dict(CALLS) == ONCE


def test_what_is_there_is_final_and_validated() -> None:
    adapter, seen = TypeAdapter(Order), []
    assembly = Assembly(adapter)
    for end in ends(TEXT):
        assembly.add(end)
        held = assembly.partial.after(len(assembly.partial))
        assert isinstance(held, Order)
        seen.append((end.path, held.model_fields_set.copy(), repr(held)))
    shown = {path: text for path, _, text in seen}
    assert shown["Kunde",] == "Order(customer='Ada')"
    assert shown["parts", 0, "code"] == "Order(customer='Ada', parts=[Part(code='a')])"
    assert shown["parts", 0] == "Order(customer='Ada', parts=[Part(code='a', price=1.0)])"
    assert shown["parts", 1, "code"].endswith("parts=[Part(code='a', price=1.0), Part(code='b')])")
    assert shown["place", "street"].endswith("place=Place(street='x'))")
    assert shown["place", "tags", 0].endswith("place=Place(street='x', tags=['u']))")
    assert "number=7" in shown["place",]
    assert shown["shape", "kind"].endswith("shape=Round(kind='round'))")
    assert shown["shape", "radius"].endswith("shape=Round(kind='round', radius=3))")
    assert "pair" not in shown["pair", 0]
    assert shown["counts", "p"].endswith("counts={'p': 1})")
    assert seen[-2][1] == {"customer", "parts", "place", "shape", "pair", "counts", "total", "discount", "doubled"}


def test_what_is_not_final_is_missing() -> None:
    assembly = Assembly(TypeAdapter(Order))
    for end in ends(TEXT):
        if end.path == ("place",):
            break
        assembly.add(end)
    held = assembly.partial.after(len(assembly.partial))
    for holder, name in ((held, "total"), (held, "discount"), (held.place, "number")):
        with pytest.raises(AttributeError):
            getattr(holder, name)
    assert isinstance(held.place, Place)
    assert vars(held.place) == {"street": "x", "tags": ["u", "v"]}
    parts = [{"code": "a", "price": 1.0}, {"code": "b", "price": 2.5}]
    assert held.model_dump(exclude={"place"}) == {"customer": "Ada", "parts": parts}


def test_what_was_there_earlier_can_be_asked_for() -> None:
    assembly = assembled(TypeAdapter(list[int]), b"[1, 2, 3]")
    last = assembly.partial.after(3)
    assert last == [1, 2, 3]
    assert assembly.partial.after(1) == [1]
    assert last == [1, 2, 3]
    assert assembly.partial.after(0) == []


def test_unions_grow_once_their_tag_is_known() -> None:
    def seen(text: bytes) -> list[str]:
        assembly, found = Assembly(TypeAdapter(list[Tagged])), []
        for end in ends(text):
            assembly.add(end)
            found.append(repr(assembly.partial.after(len(assembly.partial))))
        return found

    whole = "[Round(kind='round', radius=3)]"
    assert seen(b'[{"kind": "round", "radius": 3}]') == ["[Round(kind='round')]", whole, whole, whole]
    assert seen(b'[{"radius": 3, "kind": "round"}]') == ["[]", "[]", whole, whole]
    assert repr(Assembly(TypeAdapter(Tagged)).partial.after(0)) == "None"


def test_a_refused_value_leaves_no_trace() -> None:
    assembly = Assembly(TypeAdapter(Order))
    changed = TEXT.replace(b'"discount": 5', b'"discount": 50')
    for end in ends(changed):
        if end.path == ("discount",):
            with pytest.raises(ValidationError, match="must be at most 30"):
                assembly.add(end)
            break
        assembly.add(end)
    CALLS.clear()
    at = next(at for at, end in enumerate(ends(TEXT)) if end.path == ("discount",))
    before = ends(TEXT)[:at]
    assembly.restart(before)
    assert not CALLS
    for end in ends(TEXT)[len(before) :]:
        assembly.add(end)
    assert same(assembly.value, Order.model_validate_json(TEXT))


class Sum(BaseModel):
    most: int
    values: list[int]
    by_name: dict[str, int]

    @field_validator("values", "by_name")
    @classmethod
    def small(cls, value: Any, info: ValidationInfo) -> Any:
        CALLS["small"] += 1
        assert all(each <= info.data["most"] for each in (value.values() if isinstance(value, dict) else value))
        return value


Tagged = Annotated[Round | Square, Field(discriminator="kind")]


class First(BaseModel):
    kind: Literal["a", "b"] = Field(alias="kind")
    x: int


class Second(BaseModel):
    kind: Literal["c"]


class Holder(BaseModel):
    most: int
    shape: Tagged
    other: Tagged | None
    third: First | Second = Field(discriminator="kind")

    @field_validator("shape")
    @classmethod
    def small(cls, value: Any, info: ValidationInfo) -> Any:
        assert value.radius <= info.data["most"]
        return value


class Items(BaseModel):
    most: int
    values: list[Annotated[int, AfterValidator(lambda value, info: min(value, info.data["most"]))]]


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (Sum, b'{"most": 3, "values": [1, 2], "by_name": {"a": 1, "b": 3}}'),
        (Sum, b'{"most": 3, "values": [], "by_name": {"a": 1, "a": 2}}'),
        (Items, b'{"most": 3, "values": [1, 7]}'),
        (dict[str, Annotated[int, counted("count")]], b'{"a": 1, "b": 2, "a": 3}'),
        (list[Sum], b'[{"most": 3, "values": [1, 2], "by_name": {}}]'),
        (tuple[int, ...], b"[1, 2, 3]"),
        (tuple[int, Annotated[list[str], counted("words")]], b'[1, ["a"]]'),
        (set[int], b"[2, 1, 2]"),
        (Order | None, b"null"),
        (Tagged, b'{"kind": "round", "radius": 2}'),
        (Tagged, b'{"side": 2, "kind": "square"}'),
        (
            list[Tagged],
            b'[{"kind": "round", "radius": 2}, {"kind": "square", "side": 1}, {"kind": "square", "side": 2}]',
        ),
        (
            Holder,
            b'{"most": 3, "shape": {"kind": "round", "radius": 2}, "other": null, "third": {"kind": "a", "x": 1}}',
        ),
    ],
)
def test_validators_that_look_around(kind: Any, text: bytes) -> None:
    adapter: TypeAdapter[Any] = TypeAdapter(kind)
    assert same(assembled(adapter, text).value, adapter.validate_json(text))


class Stamped(BaseModel):
    model_config = ConfigDict(validate_default=True)

    first: Annotated[int, AfterValidator(lambda value: value + 1)] = 1
    second: Annotated[int, AfterValidator(lambda value, info: value + info.data["first"])] = 5
    third: Annotated[int, AfterValidator(lambda value, info: value + info.data["second"])]


@pytest.mark.parametrize(
    "text", [b'{"third": 2}', b'{"second": 3, "third": 2}', b'{"first": 9, "second": 3, "third": 2}']
)
def test_defaults_are_validated_as_ever(text: bytes) -> None:
    adapter = TypeAdapter(Stamped)
    assert same(assembled(adapter, text).value, adapter.validate_json(text))


def test_a_validator_may_validate_the_same_type() -> None:
    def reference(value: int) -> int:
        if value > 1:
            assert assembled(adapter, b'{"values": [1]}').value.values == [1]
        return value

    made = create_model("made", values=(list[Annotated[int, AfterValidator(reference)]], ...))
    adapter: TypeAdapter[Any] = TypeAdapter(made)
    assert assembled(adapter, b'{"values": [1, 2, 3]}').value.values == [1, 2, 3]


def test_the_work_is_linear_in_the_number_of_fields() -> None:
    def calls(count: int) -> int:
        fields: Any = {f"f{index}": (Annotated[int, AfterValidator(int)], ...) for index in range(count)}
        adapter: TypeAdapter[Any] = TypeAdapter(create_model("wide", **fields))
        found = ends(b"{%s}" % b", ".join(b'"f%d": 1' % index for index in range(count)))
        assembled(adapter, b"{%s}" % b", ".join(b'"f%d": 1' % index for index in range(count)))
        made = 0

        def count_calls(frame: Any, event: str, argument: Any) -> None:
            nonlocal made
            made += event in ("call", "c_call")

        assembly = Assembly(adapter)
        sys.setprofile(count_calls)
        try:
            for end in found:
                assembly.add(end)
                assembly.partial.after(len(assembly.partial))
        finally:
            sys.setprofile(None)
        return made

    assert calls(200) <= 2.2 * calls(100)

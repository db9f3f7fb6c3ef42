"""Validators run where their field ends, with the fields before it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

import pytest
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from typing_extensions import TypedDict

from structgen.program.json_cursor import FieldEnd, JsonCursor
from structgen.program.stream.field_tracker import Assembly
from structgen.program.stream.validation import problem_of


def even(value: int) -> int:
    if value % 2:
        raise ValueError("must be even")
    return value


Even = Annotated[int, AfterValidator(even)]


class Inner(BaseModel):
    x: Even

    @model_validator(mode="after")
    def small(self) -> Inner:
        if self.x > 50:
            raise ValueError("must be small")
        return self


class Outer(BaseModel):
    size: int
    word: str = Field(alias="wort")
    inner: Inner | None = None
    several: list[Inner] = []
    pair: tuple[int, Even] = (0, 0)
    by_name: dict[str, Even] = {}

    @field_validator("word")
    @classmethod
    def as_long_as_told(cls, value: str, info: ValidationInfo) -> str:
        if len(value) != info.data["size"]:
            raise ValueError(f"must have {info.data['size']} letters")
        return value


class Wrapped(BaseModel):
    inner: Inner

    @field_validator("inner", mode="before")
    @classmethod
    def doubled(cls, value: Any) -> Any:
        return {"x": value["x"] * 2}


class Typed(TypedDict):
    x: Even


@dataclass
class Plain:
    x: Even


class EvenShape(BaseModel):
    kind: Literal["even"]
    x: Even


class OddShape(BaseModel):
    kind: Literal["odd"]


class Shaped(BaseModel):
    shape: Annotated[EvenShape | OddShape, Field(discriminator="kind")]


def short(value: str) -> str:
    if len(value) > 2:
        raise ValueError("must be short")
    return value


class Stripped(BaseModel):
    model_config = ConfigDict(str_strip_whitespace=True)

    word: Annotated[str, AfterValidator(short)]


class Node(BaseModel):
    x: Even
    next: Node | None = None


def refused(kind: Any, text: str) -> tuple[tuple[str | int, ...], str] | None:
    """The path of the first value that a validator refuses, and its message; None if all are accepted."""
    assembly, cursor = Assembly(TypeAdapter(kind)), JsonCursor()
    for end in (*cursor.feed(text.encode()), *cursor.finish()):
        if isinstance(end, FieldEnd):
            try:
                assembly.add(end)
            except ValidationError as error:
                return end.path, problem_of(error)
    return None


def test_a_field_sees_those_before_it() -> None:
    assert refused(Outer, '{"size": 3, "wort": "abc"}') is None
    path, problem = refused(Outer, '{"size": 4, "wort": "abc"}') or ((), "")
    assert path == ("wort",)
    assert "must have 4 letters" in problem


@pytest.mark.parametrize(
    ("kind", "path", "text"),
    [
        (Outer, ("inner", "x"), '{"size": 1, "wort": "a", "inner": {"x": %d}}'),
        (Outer, ("several", 1, "x"), '{"size": 1, "wort": "a", "several": [{"x": 2}, {"x": %d}]}'),
        (Outer, ("pair", 1), '{"size": 1, "wort": "a", "pair": [1, %d]}'),
        (Outer, ("by_name", "any"), '{"size": 1, "wort": "a", "by_name": {"any": %d}}'),
        (Typed, ("x",), '{"x": %d}'),
        (Plain, ("x",), '{"x": %d}'),
        (Node, ("next", "next", "x"), '{"x": 2, "next": {"x": 4, "next": {"x": %d}}}'),
        (list[Even], (2,), "[2, 4, %d]"),
        (Shaped, ("shape", "x"), '{"shape": {"kind": "even", "x": %d}}'),
    ],
)
def test_a_value_is_refused_where_it_ends(kind: Any, path: tuple[str | int, ...], text: str) -> None:
    assert refused(kind, text % 4) is None
    found, problem = refused(kind, text % 5) or ((), "")
    assert found == path
    assert "must be even" in problem


def test_validators_of_a_whole_object_run_at_its_end() -> None:
    path, problem = refused(Outer, '{"size": 1, "wort": "a", "inner": {"x": 60}}') or ((), "")
    assert path == ("inner",)
    assert "must be small" in problem
    path, problem = refused(Outer, '{"size": 1, "wort": "a", "several": [{"x": 60}]}') or ((), "")
    assert path == ("several", 0)


def test_what_a_validator_rewrites_is_left_to_it() -> None:
    assert refused(Wrapped, '{"inner": {"x": 3}}') is None
    path, problem = refused(Wrapped, '{"inner": {"x": 40}}') or ((), "")
    assert path == ("inner",)
    assert "must be small" in problem


def test_alternatives_are_judged_as_a_whole() -> None:
    assert refused(dict[str, Inner | list[int]], '{"a": [3]}') is None
    path, _ = refused(dict[str, Inner | list[int]], '{"a": {"x": 3}}') or ((), "")
    assert path == ("a",)


def test_the_settings_of_a_model_hold_for_its_fields() -> None:
    assert refused(Stripped, '{"word": " ab "}') is None

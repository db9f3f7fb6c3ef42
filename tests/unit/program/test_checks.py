"""Validators run where their field ends, with the fields before it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import pytest
from pydantic import AfterValidator, BaseModel, Field, TypeAdapter, ValidationInfo, field_validator, model_validator
from typing_extensions import TypedDict

from structgen.program.checks import FieldChecks


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


class Node(BaseModel):
    x: Even
    next: Node | None = None


def problem(kind: Any, path: tuple[str | int, ...], value: Any, siblings: dict[str, Any] | None = None) -> str | None:
    if siblings is None and path and isinstance(path[-1], str):
        siblings = {path[-1]: value}
    return FieldChecks(TypeAdapter(kind)).problem(path, siblings, value)


def test_a_field_sees_those_before_it() -> None:
    assert problem(Outer, ("wort",), "abc", {"size": 3, "wort": "abc"}) is None
    assert "must have 4 letters" in str(problem(Outer, ("wort",), "abc", {"size": 4, "wort": "abc"}))


@pytest.mark.parametrize(
    ("kind", "path"),
    [
        (Outer, ("inner", "x")),
        (Outer, ("several", 3, "x")),
        (Outer, ("pair", 1)),
        (Outer, ("by_name", "any")),
        (Typed, ("x",)),
        (Plain, ("x",)),
        (Node, ("next", "next", "x")),
        (list[Even], (7,)),
    ],
)
def test_validators_are_found_by_their_path(kind: Any, path: tuple[str | int, ...]) -> None:
    assert problem(kind, path, 4) is None
    assert "must be even" in str(problem(kind, path, 5))


def test_validators_of_a_whole_object_run_at_its_end() -> None:
    assert "must be small" in str(problem(Outer, ("inner",), {"x": 60}, {"inner": {"x": 60}}))
    assert "must be small" in str(problem(Outer, ("several", 0), {"x": 60}))


def test_what_the_grammar_enforces_is_not_checked_again() -> None:
    assert problem(Outer, ("size",), "no number at all") is None
    assert problem(Outer, ("pair", 0), "no number at all") is None


def test_what_a_validator_rewrites_is_left_to_it() -> None:
    assert problem(Wrapped, ("inner", "x"), 3) is None
    assert problem(Wrapped, ("inner",), {"x": 3}, {"inner": {"x": 3}}) is None
    assert "must be small" in str(problem(Wrapped, ("inner",), {"x": 40}, {"inner": {"x": 40}}))


def test_alternatives_are_judged_as_a_whole() -> None:
    assert problem(dict[str, Inner | list[int]], ("a", "x"), 3) is None

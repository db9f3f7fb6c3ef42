"""Annotations without a JSON form are refused with their place and a solution."""

from __future__ import annotations

import dataclasses
import enum
import io
from collections.abc import Callable, Iterable
from typing import Annotated, Any, Generic, Literal, NamedTuple, TypeVar

import pytest
from pydantic import AliasPath, BaseModel, ConfigDict, Field, TypeAdapter
from typing_extensions import TypedDict

import structgen as sg
from structgen.errors import GrammarError
from structgen.frontends.json_schema import json_schema

T = TypeVar("T")
Bound = TypeVar("Bound", bound=int)


class Opaque:
    pass


class Inner(BaseModel):
    model_config = ConfigDict(arbitrary_types_allowed=True)
    calls: list[Callable[[int], str]]


class Outer(BaseModel):
    a: int
    inner: dict[str, Inner | None]


class WithFile(BaseModel):
    model_config = ConfigDict(arbitrary_types_allowed=True)
    file: io.TextIOWrapper | None


@dataclasses.dataclass
class Record:
    parts: list[Opaque]


class Row(TypedDict):
    record: Record


class Pair(NamedTuple):
    left: int
    right: Opaque


class Generics(BaseModel, Generic[T]):
    items: list[T]


class Limited(BaseModel, Generic[Bound]):
    item: Bound


class Lazy(BaseModel):
    numbers: Iterable[int]


class Marked(BaseModel):
    n: list[Annotated[str, sg.grammars.Regex("a")]]


class Deep(BaseModel):
    inside: int = Field(validation_alias=AliasPath("a", 0))


class BackReference(BaseModel):
    model_config = ConfigDict(regex_engine="python-re")
    twice: str = Field(pattern=r"^(a|b)\1$")


class Colors(enum.Enum):
    RED = (1, 0)
    BLUE = (0, 1)


class ByNumber(enum.Enum):
    ONE = 1


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (Outer, ["json schema of Outer", "inner[].calls[] is annotated", "Callable"]),
        (WithFile, ["json schema of WithFile", "file is annotated TextIOWrapper"]),
        (Record, ["json schema of Record", "parts[] is annotated Opaque"]),
        (Row, ["json schema of Row", "record.parts[] is annotated Opaque"]),
        (Pair, ["json schema of Pair", "right is annotated Opaque"]),
        (list[Opaque], ["[] is annotated Opaque"]),
        (Opaque, ["json schema of Opaque: it has no JSON form"]),
        (Marked(n=[]), ["it is a value of Marked; pass the type itself"]),
        (Record([]), ["it is a value of Record; pass the type itself"]),
        (Generics, ["json schema of Generics", "items[] is annotated ~T", "Name[int]"]),
        (dict[str, T], ["annotated ~T"]),  # type: ignore[valid-type]
        (Lazy, ["json schema of Lazy", "numbers is annotated", "Iterable[int]", "use list[...]"]),
        (Callable[[int], str], ["it has no JSON form"]),
        (print, ["json schema of print", "found a function"]),
        (dict[tuple[int, int], str], ["names in JSON objects are strings"]),
        (dict[ByNumber, str], ["names in JSON objects are strings"]),
        (dict[None, str], ["names in JSON objects are strings"]),
        (Deep, ["json schema of Deep", "'inside'", "AliasPath"]),
        (list[Colors], ["[] is annotated Colors", "no JSON value equals its constants"]),
        (Literal[b"x"], ["no JSON value equals its constants"]),
        (list["Missing"], ["Missing"]),  # type: ignore[name-defined]  # noqa: F821
        (list[Annotated[int, sg.grammars.Regex("a")]], ["at []: ", "cannot annotate another type"]),
        (list[Annotated[str, Field(pattern=r"(?=a)(?!b)")]], ["[] is annotated", "look-around"]),
        (BackReference, ["json schema of BackReference", "at twice: ", "back"]),
        (TypeAdapter(Generics), ["items[] is annotated ~T"]),
    ],
)
def test_the_place_is_named(kind: Any, words: list[str]) -> None:
    """The error names the type, the field inside it, the unsupported part, and a solution."""
    with pytest.raises(GrammarError) as caught:
        json_schema(kind)
    for word in words:
        assert word in str(caught.value)
    assert caught.value.remedy


@pytest.mark.parametrize("kind", [Generics[int], Limited, Limited[int], Marked, dict[Any, int], list[Any]])
def test_what_has_a_form_is_left_alone(kind: Any) -> None:
    """Bound type variables and ``Any`` are no errors."""
    json_schema(kind)

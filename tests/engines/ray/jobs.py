"""Programs and a model for the tests; the actors import this file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, Field

import structgen as sg
from structgen.models import HashModel

VOCABULARY = sg.Vocabulary([b"", *(bytes([byte]) for byte in range(256))], eos=[0])


def noise() -> HashModel:
    """A model of noise, which notes that it was made."""
    with Path(os.environ["RAY_TEST_NOTES"]).open("a") as notes:
        notes.write("model\n")
    return HashModel(VOCABULARY, max_context=4000)


class Person(BaseModel):
    """What ``person`` writes."""

    name: Annotated[str, Field(max_length=12)]
    age: Annotated[int, Field(ge=0, le=99)]
    kind: Literal["a", 3, None]


@sg.program(sampler=sg.Multinomial(), max_tokens=200)
def person(text: str) -> Person:
    """Who? {text}"""


@sg.program(sampler=sg.Multinomial())
def word(text: str) -> Any:
    with Path(os.environ["RAY_TEST_NOTES"]).open("a") as notes:
        notes.write(f"{text}\n")
    yield text
    if text == "fail":
        raise RuntimeError("on purpose")
    return (yield sg.regex("[a-z]{8}"))


def _even(value: int) -> int:
    if value % 2:
        raise ValueError("it is odd")
    return value


@sg.program(max_tokens=60)
def city(text: str) -> Literal["Paris", "London", "Rome"]:
    """Which city is in this text? {text}"""


@sg.program(max_tokens=20)
def odd(text: str) -> Annotated[Literal[1, 3], AfterValidator(_even)]:
    """A number. {text}"""


class Crate(BaseModel):
    """What ``crate`` writes; a grammar of xgrammar would not keep to the multiples."""

    apples: Annotated[int, Field(ge=100, le=999, multiple_of=7)]
    label: Annotated[str, Field(max_length=12)]


@sg.program(sampler=sg.Multinomial(), max_tokens=80)
def crate(text: str) -> Crate:
    """How many apples? {text}"""

"""Annotations as grammars: which are text, which are JSON, and which are neither."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, IntEnum
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel

from structgen.engine import Vocabulary, compile
from structgen.errors import GrammarError
from structgen.frontends.regex import regex
from structgen.grammar.algebra import select
from structgen.program import answer_of
from structgen.testing import byte_vocabulary


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Level(IntEnum):
    LOW = 1


class Point(BaseModel):
    x: int
    y: int = 0


VOCABULARY = Vocabulary([b"", *byte_vocabulary(bytes(range(256)), 1)[1:]], eos=[0])


def accepts(annotation: Any, text: str) -> bool:
    matcher = compile(answer_of(annotation).grammar, VOCABULARY).matcher()
    data = text.encode()
    return matcher.accept_bytes(data) == len(data) and matcher.is_accepting


@pytest.mark.parametrize(
    ("annotation", "text", "value"),
    [
        (str, 'any "text"\n', 'any "text"\n'),
        (Literal["yes", "no"], "no", "no"),
        (Colour, "blue", Colour.BLUE),
        (regex("[0-9]{2}"), "42", "42"),
        (Annotated[str, regex("[0-9]{2}")], "42", "42"),
        (Annotated[int, regex("[0-9]{2}")], "42", 42),
        (int, "-7", -7),
        (bool, "true", True),
        (None, "null", None),
        (Level, "1", Level.LOW),
        (Literal["a", 1], '"a"', "a"),
        (list[Colour], '["red"]', [Colour.RED]),
        (str | None, '"x"', "x"),
        (Point, '{"x": 1}', Point(x=1)),
        (dict[str, int], '{"a": 1}', {"a": 1}),
    ],
)
def test_texts_and_their_values(annotation: Any, text: str, value: Any) -> None:
    assert accepts(annotation, text)
    assert answer_of(annotation).value(text) == value


@pytest.mark.parametrize(
    ("annotation", "text"),
    [(Literal["yes", "no"], '"no"'), (Colour, "green"), (int, "7.5"), (Point, '{"x":1}'), (select(["a"]), "b")],
)
def test_what_is_not_written(annotation: Any, text: str) -> None:
    assert not accepts(annotation, text)


@pytest.mark.parametrize("annotation", [Callable[[int], int], object(), "no type", 3])
def test_what_is_no_type(annotation: Any) -> None:
    with pytest.raises(GrammarError):
        answer_of(annotation)

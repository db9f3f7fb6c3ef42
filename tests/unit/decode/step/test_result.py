"""Results and their values."""

from __future__ import annotations

import math
from dataclasses import FrozenInstanceError, dataclass
from typing import Any

import pydantic
import pytest

from structgen.decode.step.result import Result, Stats, Step
from structgen.engine import Vocabulary
from structgen.errors import GenerationError
from structgen.grammar.nodes import ByteClass, Grammar, Repeat, Shared, SpecialToken, literal, sequence
from structgen.grammar.nodes.description import Described, Description

STATS = Stats(1, 3, 1, 2, 0, 0, 2, 0.1, 0.2, 0.3)
LETTERS = Repeat(ByteClass([(97, 122)]), 0, None)


def result(
    data: bytes,
    grammar: Grammar | None = None,
    *,
    steps: tuple[Step, ...] = (),
    vocabulary: Vocabulary | None = None,
    tokens: tuple[int, ...] | None = None,
) -> Result:
    """A result over single bytes."""
    vocabulary = vocabulary or Vocabulary([bytes([byte]) for byte in range(256)])
    return Result(
        data=data,
        tokens=tuple(data) if tokens is None else tokens,
        steps=steps,
        stats=STATS,
        grammar=grammar if grammar is not None else literal(data),
        vocabulary=vocabulary,
    )


def described(value: str, python_type: object | None = None) -> Grammar:
    return Described(LETTERS, Description("test", value=value, python_type=python_type))


class Person(pydantic.BaseModel):
    name: str
    age: int


@dataclass
class Point:
    x: int
    y: float


def test_text_without_a_description_is_its_own_value() -> None:
    """A grammar without a description of values gives its text."""
    assert result(b"12").value == "12"
    assert result("é".encode()).text == str(result("é".encode())) == "é"


def test_json_is_parsed() -> None:
    """A JSON grammar gives the parsed value, a text grammar gives text; the outermost description counts."""
    data = b'{"a": [1, 2.5, null, "\\u00e9"]}'
    assert result(data, described("json")).value == {"a": [1, 2.5, None, "é"]}
    assert result(b"[1]", described("text")).value == "[1]"
    assert result(b"[1]", Described(described("text"), Description("outer", value="json"))).value == [1]
    assert result(b"[1]", Shared(described("json")).named("all")).value == [1]
    assert result(b"[1]", sequence(described("json"), literal("x"))).value == "[1]"


@pytest.mark.parametrize(
    ("data", "kind", "value"),
    [
        (b'{"name": "Ada", "age": 36}', Person, Person(name="Ada", age=36)),
        (b'{"x": 1, "y": 2}', Point, Point(1, 2.0)),
        (b"[1, 2]", tuple[int, int], (1, 2)),
        (b"7", int, 7),
    ],
)
def test_json_is_validated_into_its_type(data: bytes, kind: Any, value: Any) -> None:
    """A grammar made from a Python type gives a value of that type."""
    found = result(data, described("json", kind)).value
    assert found == value
    assert type(found) is type(value)


def test_a_validator_of_the_type_may_refuse() -> None:
    """An error that only the type can find is raised as it is, and the text is still there."""
    kind = pydantic.create_model("Even", n=(int, pydantic.Field(multiple_of=2)))
    odd = result(b'{"n": 3}', described("json", kind))
    with pytest.raises(pydantic.ValidationError, match="multiple of 2"):
        _ = odd.value
    assert odd.text == '{"n": 3}'


def test_nesting_beyond_the_parser_is_a_clean_error() -> None:
    """100,000 brackets are an error that says so, not a RecursionError."""
    data = b"[" * 100_000 + b"]" * 100_000
    with pytest.raises(GenerationError, match="nested too deeply"):
        _ = result(data, described("json")).value


def test_captures_are_found_in_the_tokens() -> None:
    """Names are looked up in the output; grammars without names have none."""
    assert result(b"abc").captures == {}
    assert result(b"a:b", sequence(LETTERS.named("k"), ":", LETTERS.named("v"))).captures == {"k": "a", "v": "b"}


def test_captures_see_special_tokens() -> None:
    """A special token in the output is no text, but it distinguishes alternatives."""
    vocabulary = Vocabulary([b"a", b"", b""], special={1: "<x>", 2: "<y>"})
    grammar = sequence(literal("a").named("first"), SpecialToken("<x>"), literal("a").named("second"))
    found = result(b"aa", grammar, vocabulary=vocabulary, tokens=(0, 1, 0))
    assert found.captures == {"first": "a", "second": "a"}


def test_scores_are_sums_over_steps() -> None:
    """``logprob`` sums all steps, ``log_z`` those that were scored, and ``unscored`` counts the others."""
    steps = (
        Step(5, False, -1.5, -0.5),
        Step(6, True, 0.0, -2.0),
        Step(7, True, 0.0, None),
        Step(None, True, 0.0, None),
    )
    made = result(b"abc", steps=steps)
    assert made.logprob == -1.5
    assert made.log_z == -2.5
    assert made.unscored == 2
    assert not math.isnan(made.logprob)


def test_results_are_immutable_and_short_to_print() -> None:
    """A result cannot be changed, and its repr does not print steps, grammar and vocabulary."""
    made = result(b"abc")
    with pytest.raises(FrozenInstanceError):
        made.data = b""  # type: ignore[misc]
    assert "Vocabulary" not in repr(made)
    assert repr(made).startswith("Result('abc', stop, ")

"""The form of the answer in the prompt, in each style."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field

import structgen as sg
from structgen.program.answer import answer_of
from structgen.program.prompt import description_of


class Item(BaseModel):
    name: str
    count: int


class Order(BaseModel):
    """Each kind of value."""

    customer: str = Field(description="who  pays")
    items: list[Item] = Field(description="what is bought")
    gift: Item | None = None
    tags: list[str]
    note: str | None = None
    kind: Literal["new", "old"]
    total: float
    paid: bool
    codes: dict[str, int]


class Node(BaseModel):
    name: str
    below: list[Node]


FIELDS = """Answer with JSON: object with the fields
- customer (who pays)
- items (what is bought): list of object with the fields
  - name
  - count: integer
- gift: null or object with the fields
  - name
  - count: integer
- tags: list
- note
- kind: "new" or "old"
- total: number
- paid: true or false
- codes: object with the fields
  - any other name: integer"""


def test_fields_are_listed_in_words() -> None:
    """A line for each field, with its description.  Nothing is said of a text, for small models copy the word."""
    assert description_of(answer_of(Order), "fields") == FIELDS


def test_the_sketch_is_json_with_words() -> None:
    """Every kind of value has its word."""
    assert description_of(answer_of(Item), "sketch") == (
        'Answer with JSON like this:\n{\n  "name": text\n  "count": integer\n}'
    )


def test_the_schema_is_that_of_the_type() -> None:
    """What stands in the prompt is the schema that pydantic writes."""
    first, _, rest = description_of(answer_of(Order), "schema").partition("\n")
    assert first == "Answer with JSON that fits this JSON Schema:"
    assert json.loads(rest) == Order.model_json_schema()


@pytest.mark.parametrize("style", ["sketch", "fields"])
@pytest.mark.parametrize(
    ("kind", "words"),
    [(Node, "another Node"), (Annotated[int, Field(ge=0)], "integer"), (tuple[int, str], "[integer, text]")],
)
def test_every_type_can_be_told(kind: Any, words: str, style: Any) -> None:
    """Types that hold themselves, and types without fields."""
    assert words in description_of(answer_of(kind), style)


@pytest.mark.parametrize("style", ["sketch", "fields", "schema", True])
def test_choices_need_no_style(style: Any) -> None:
    """Texts are no JSON: every style names the choices."""
    assert description_of(answer_of(Literal["a", "b"]), style) == "Answer with one of: a, b."


def test_false_says_nothing() -> None:
    """The setting may be a truth value."""
    assert description_of(answer_of(Order), False) == ""
    assert description_of(answer_of(Order), True) == description_of(answer_of(Order))


def test_an_unknown_style_is_refused() -> None:
    """The error names those that there are."""
    with pytest.raises(ValueError, match="fields, sketch, schema; found 'words'"):
        description_of(answer_of(Order), "words")  # type: ignore[arg-type]


@sg.program
def order_of(text: str) -> Order:
    """Read {text}"""


@pytest.mark.parametrize("style", ["sketch", "fields", "schema"])
def test_the_setting_of_a_program_says_the_style(style: Any) -> None:
    """The prompt of a program ends with the form in the style of the setting ``describe``."""
    described = sg.program(describe=style)(order_of.function)
    assert described.prompt("it") == f"Read it\n\n{description_of(answer_of(Order), style)}"
    assert order_of.prompt("it") == f"Read it\n\n{description_of(answer_of(Order))}"
    assert sg.program(describe=False)(order_of.function).prompt("it") == "Read it"

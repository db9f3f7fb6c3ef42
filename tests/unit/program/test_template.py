"""Docstrings as prompts."""

from __future__ import annotations

import pytest
from pydantic import BaseModel

from structgen.errors import ProgramError
from structgen.program.prompt import Template


class Person(BaseModel):
    name: str


def fill(docstring: str, **arguments: object) -> str:
    return Template.parse(docstring, arguments, subject="program f").fill(arguments, subject="program f")


def test_places_are_filled_as_format_does() -> None:
    assert fill("{a} and {b:.2f}, {{a}}, {a!r}", a="x", b=1.5) == "x and 1.50, {a}, 'x'"
    assert fill("{a.real} {b[k]} {c[1]}", a=3, b={"k": "v"}, c=[1, 2]) == "3 v 2"


def test_indentation_of_the_source_is_left_out() -> None:
    assert fill("First.\n\n        Second: {a}\n          deeper\n    ", a=1) == "First.\n\nSecond: 1\n  deeper"


def test_models_are_shown_as_json_and_have_parts() -> None:
    assert fill("{p} {p.name}", p=Person(name="Ada")) == '{"name":"Ada"} Ada'


def test_braces_in_arguments_are_text() -> None:
    assert fill("{a}", a="{b} {{c}}") == "{b} {{c}}"


@pytest.mark.parametrize(
    ("docstring", "message"),
    [
        ("one\n{missing}", r"names 'missing', which is no argument; line 2 of the docstring; the arguments are a"),
        ("{missing[0]}", "names 'missing'"),
        ("{a", "cannot be read"),
        ("a}", "cannot be read"),
        ("{}", "names ''"),
        ("{0}", "names '0'"),
    ],
)
def test_templates_that_do_not_read(docstring: str, message: str) -> None:
    with pytest.raises(ProgramError, match=message):
        fill(docstring, a=1)


@pytest.mark.parametrize("docstring", ["{a.nothing}", "{a[0]}", "{a:nonsense}"])
def test_arguments_that_do_not_fit(docstring: str) -> None:
    with pytest.raises(ProgramError, match="does not fit its place"):
        fill(docstring, a=1)

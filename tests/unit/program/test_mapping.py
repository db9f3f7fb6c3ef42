"""Programs over many items, together."""

from __future__ import annotations

import threading
from collections.abc import Generator
from typing import Annotated, Any, Literal

import pytest
from pydantic import AfterValidator

from structgen.decode import Multinomial
from structgen.engine import Vocabulary
from structgen.errors import GenerationError, ProgramError, ValidationFailed
from structgen.grammar.regex import regex
from structgen.models.hash_model import HashModel
from structgen.program import program


def no_x(value: str) -> str:
    if "x" in value:
        raise ValueError("has an x")
    return value


@program
def word(text: str, count: int = 1) -> Annotated[str, regex("[a-z]{3,6}")]:
    """{text} {count}"""


@program
def steps(text: str) -> Generator[Any, Any, list[str]]:
    yield text
    found = []
    for _ in range(len(text) % 4):
        found.append((yield regex("[a-z]{2}")))
        yield " "
    if text == "fails":
        raise RuntimeError("on purpose")
    return found


@pytest.mark.parametrize("batch_size", [1, 3, 8, 50])
@pytest.mark.parametrize("settings", [{}, {"sampler": Multinomial(), "seed": 3}])
def test_the_results_are_those_of_one_by_one(
    json_vocabulary: Vocabulary, batch_size: int, settings: dict[str, Any]
) -> None:
    model = HashModel(json_vocabulary, seed=2)
    items = [f"item {number} " + "ab" * number for number in range(20)]
    together = word.map(items, batch_size=batch_size, model=model, **settings)
    assert [item.index for item in together] == list(range(20))
    assert [item.value for item in together] == [word(item, model=model, **settings) for item in items]


def test_items_are_arguments_by_name_by_position_or_the_only_one(json_vocabulary: Vocabulary) -> None:
    model = HashModel(json_vocabulary)
    items: list[Any] = ["a", ("a", 2), {"text": "a", "count": 3}]
    prompts = [item.run.arguments for item in word.map(items, model=model) if item.run is not None]
    assert prompts == [{"text": "a", "count": count} for count in (1, 2, 3)]


def test_an_item_that_fails_does_not_stop_the_others(json_vocabulary: Vocabulary) -> None:
    model = HashModel(json_vocabulary)
    found = steps.map(["one", "fails", "three", "longer"], batch_size=2, model=model)
    assert [item.error is None for item in found] == [True, False, True, True]
    with pytest.raises(RuntimeError, match="on purpose") as failure:
        _ = found[1].value
    assert "in item 1 of steps.map" in failure.value.__notes__
    assert [len(item.value) for item in found if item.error is None] == [3, 1, 2]
    wrong = word.map(["a", {"txt": "b"}], model=model)
    assert isinstance(wrong[1].error, ProgramError)
    assert wrong[0].error is None


def test_checks_fail_by_item(json_vocabulary: Vocabulary) -> None:
    @program(tries=1)
    def letter(text: str) -> Annotated[Literal["x", "y"], AfterValidator(no_x)]:
        """{text}"""

    found = letter.map([f"{number}" for number in range(12)], model=HashModel(json_vocabulary, seed=1))
    assert {type(item.error) for item in found} == {type(None), ValidationFailed}


def test_progress_counts_the_items(json_vocabulary: Vocabulary, capsys: pytest.CaptureFixture[str]) -> None:
    told: list[tuple[int, int | None]] = []
    word.map("abcde", model=HashModel(json_vocabulary), progress=lambda _, done, total: told.append((done, total)))
    assert told[-1] == (5, 5)
    assert [done for done, _ in told] == sorted({done for done, _ in told})
    word.map("abc", model=HashModel(json_vocabulary), progress=True)
    assert capsys.readouterr().out == ""


def test_no_items_and_no_batch(json_vocabulary: Vocabulary) -> None:
    assert word.map([], model=HashModel(json_vocabulary)) == []
    with pytest.raises(ValueError, match="batch_size must be at least 1"):
        word.map(["a"], batch_size=0, model=HashModel(json_vocabulary))


def test_an_interruption_stops_all(json_vocabulary: Vocabulary) -> None:
    threads = threading.active_count()

    def interrupt(_stage: str, done: int, _total: int | None) -> None:
        if done >= 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        word.map([str(number) for number in range(500)], model=HashModel(json_vocabulary), progress=interrupt)
    assert threading.active_count() == threads


def test_a_model_that_fails_fails_its_items(json_vocabulary: Vocabulary) -> None:
    found = word.map(["a" * 400, "b"], model=HashModel(json_vocabulary, max_context=300), max_tokens=10)
    assert isinstance(found[0].error, GenerationError)
    assert found[1].error is None

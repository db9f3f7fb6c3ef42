"""The grades that the benchmark of extraction gives."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture
def tasks(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    yield import_module("extraction_tasks")
    sys.modules.pop("extraction_tasks", None)


GOLD = {
    "customer": "Hartmann & Sons",
    "items": [{"name": "screws", "quantity": 4}, {"name": "nails", "quantity": 2}],
    "total": 7.5,
    "express": True,
}


def graded(tasks: Any, **changes: Any) -> dict[str, tuple[str, float]]:
    gold = tasks.Order.model_validate(GOLD)
    answer = tasks.Order.model_validate(GOLD | changes)
    return {grade.path: (grade.verdict, grade.score) for grade in tasks.grades(gold, answer)}


def test_the_right_answer_has_full_marks(tasks: Any) -> None:
    """A field that is absent in both is right, too."""
    assert set(graded(tasks).values()) == {("correct", 1.0)}


@pytest.mark.parametrize(
    ("changes", "path", "expected"),
    [
        ({"customer": "  hartmann &\nSONS. "}, "customer", ("correct", 1.0)),
        ({"customer": "Hartmann"}, "customer", ("wrong", 0.0)),
        ({"total": 7.51}, "total", ("wrong", 0.0)),
        ({"express": False}, "express", ("wrong", 0.0)),
        ({"note": "ring twice"}, "note", ("invented", 0.0)),
        ({"items": []}, "items", ("missing", 0.0)),
        # the order does not matter
        ({"items": GOLD["items"][::-1]}, "items", ("correct", 1.0)),
        # 2 of 2 found and 2 of 4 there: precision 1, recall 1/2
        ({"items": GOLD["items"][:1]}, "items", ("wrong", pytest.approx(2 / 3))),
        # a repeated item is one too many: precision 4/6, recall 1
        ({"items": [*GOLD["items"], GOLD["items"][0]]}, "items", ("wrong", pytest.approx(0.8))),
        # three of four members are right
        ({"items": [{"name": "screws", "quantity": 5}, GOLD["items"][1]]}, "items", ("wrong", pytest.approx(0.75))),
    ],
)
def test_one_change_changes_one_grade(tasks: Any, changes: Any, path: str, expected: Any) -> None:
    """Each kind of mistake has its verdict, and the other fields stay right."""
    found = graded(tasks, **changes)
    assert found.pop(path) == expected
    assert set(found.values()) == {("correct", 1.0)}


def test_what_the_document_tells_can_be_missing(tasks: Any) -> None:
    """A nested object that is left out is missing in each of its fields; one that is made up is one mistake."""
    legs = [{"origin": "Oslo", "destination": "Rome", "date": "1 May"}]
    trip = {"traveller": "Ada", "legs": legs, "cabin": "first", "bags": 1}
    without = tasks.Trip.model_validate(trip)
    stays = tasks.Trip.model_validate(trip | {"hotel": {"name": "Ritz", "nights": 2}})
    dropped = [grade for grade in tasks.grades(stays, without) if grade.score < 1]
    assert [(each.path, each.verdict, each.optional, each.present) for each in dropped] == [
        ("hotel.name", "missing", True, True),
        ("hotel.nights", "missing", True, True),
    ]
    made_up = [grade for grade in tasks.grades(without, stays) if grade.score < 1]
    assert [(each.path, each.verdict, each.present) for each in made_up] == [("hotel", "invented", False)]


def test_gold_texts_are_quotations(tasks: Any) -> None:
    """Forty documents and twenty held out, each with a right answer whose free texts occur in it."""
    held = tasks.documents()
    assert [sum(document.heldout is wanted for document in held) for wanted in (False, True)] == [40, 20]
    assert len({document.name for document in held}) == 60
    for document in held:
        text = " ".join(document.text.split())
        for name, value in _texts(document.gold):
            if name not in ("currency", "degree", "severity", "pets", "sky", "tone", "department", "cabin"):
                assert value in text, (document.name, name)


def _texts(value: Any, name: str = "") -> list[tuple[str, str]]:
    if isinstance(value, str):
        return [(name, value)]
    parts = (
        [(name, each) for each in value]
        if isinstance(value, list)
        else list(value)
        if hasattr(value, "model_fields_set")
        else []
    )
    return [found for key, part in parts for found in _texts(part, key)]

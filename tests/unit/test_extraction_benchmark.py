"""The benchmark of extraction: its documents, its grades, its variants and how they are compared."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Imports scripts of the benchmarks, which are no package."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    before = set(sys.modules)
    yield import_module
    for name in set(sys.modules) - before:
        if name.startswith("extraction"):
            del sys.modules[name]


@pytest.fixture
def tasks(load: Any) -> Any:
    return load("extraction_tasks")


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


def test_a_changed_type_asks_for_the_same(load: Any, tasks: Any) -> None:
    """The changes reach the fields of nested types, and the right answers are values of the changed types."""
    variants = load("extraction_variants")
    change = variants.Change(is_reversed=True, required=True, unique=True, short=True)
    schema = variants.changed(tasks.Trip, change).model_json_schema()
    assert list(schema["properties"]) == ["hotel", "bags", "cabin", "legs", "traveller"]
    assert sorted(schema["required"]) == sorted(schema["properties"])
    assert schema["properties"]["legs"]["uniqueItems"] is True
    assert schema["$defs"]["Hotel"]["properties"]["name"]["maxLength"] == variants.MAX_STRING
    for document in tasks.documents():
        made = variants.changed(document.model, variants.Change(required=True, unique=True))
        assert made.model_validate(document.gold.model_dump()).model_dump() == document.gold.model_dump()


def test_unknown_parts_are_refused(load: Any, tasks: Any) -> None:
    """A misspelled variant does not run as another one."""
    with pytest.raises(ValueError, match="part 'uniqe'"):
        load("extraction_variants").run_of("plain, uniqe", tasks.documents()[0])


def test_variants_are_compared_document_by_document(load: Any) -> None:
    """The sign test leaves out equal documents: 5 better and 1 worse have p = 2 * (1 + 6) / 64."""
    script = load("extraction")

    def rows(scores: list[float]) -> list[dict[str, Any]]:
        return [
            {"document": str(at), "grades": [["", "wrong", score, False, True], ["", "correct", 1.0, False, True]]}
            for at, score in enumerate(scores)
        ]

    pairs = script.compared(rows([1, 1, 0.5, 1, 1, 0, 0.3]), rows([0, 0.5, 0, 0, 0, 1, 0.3]))
    assert (pairs.better, pairs.worse) == (5, 1)
    assert pairs.p_value == pytest.approx(14 / 64)
    assert script.Pairs(0, 0).p_value == 1


def test_copied_words_are_found(load: Any) -> None:
    """A text that is a word of the description or the name of a field was not taken from the document."""
    script = load("extraction")
    answers = ['{"next_meeting": "Next meeting"}', '{"a": ["Text"]}', '{"a": [{"b": "text book"}], "c": 1}']
    assert [script.is_copied({"answer": answer}) for answer in answers] == [True, True, False]

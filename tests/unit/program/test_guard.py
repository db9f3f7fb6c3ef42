"""The guard ends lists and strings that repeat themselves, where the grammar allows it, and says so."""

from __future__ import annotations

import json
from typing import Annotated, Any

import pytest
from pydantic import BaseModel, Field

from structgen.decode import Multinomial
from structgen.engine import Vocabulary
from structgen.models.toy.hash import HashModel
from structgen.program import Guard, Retracted, Text, program
from structgen.program.stream.guard import GuardReader


class Order(BaseModel):
    items: list[str]
    note: str = Field(max_length=400)


LONG = "".join(map(str, range(1000, 1120))) * 3  # a phrase of 480 bytes


@program(max_tokens=300)
def order() -> Order:
    """What is ordered?"""


@program(max_tokens=300)
def story() -> str:
    """Tell a story."""


def _where(text: str, *, is_json: bool = True, **settings: int) -> list[tuple[int, str]]:
    reader = GuardReader(Guard(**settings), is_json=is_json)
    return [(found.at, found.reason) for found in reader.read(text.encode())][:1]


@pytest.mark.parametrize(
    ("text", "at", "reason"),
    [
        ('["a", "a", "a", "a"]', '["a", "a", "a"', "the same item 3 times"),
        ('{"x": [{"n": 1}, {"n": 1}, {"n": 1}, {}]}', '{"x": [{"n": 1}, {"n": 1}, {"n": 1}', "the same item 3 times"),
        ('["a", "b", "a", "b", "a", "b", "a"]', '["a", "b", "a", "b", "a", "b"', "the same 2 items 3 times"),
        (json.dumps(["ha " * 40]), '["' + "ha " * 16, "repeats itself"),
        (json.dumps([LONG]), '["' + LONG[:-1], "repeats itself"),
        (json.dumps({"k": "-" * 60}), '{"k": "' + "-" * 47, "repeats itself"),
        (json.dumps([1] * 300), "[" + "1, " * 255 + "1", "it has 256 items"),
    ],
)
def test_what_repeats_has_to_end(text: str, at: str, reason: str) -> None:
    """The first byte that may not be written is the one after what is shown."""
    ((found, why),) = _where(text)
    assert found == len(at) - (why == "it repeats itself" and text[len(at) - 1] == " ")
    assert reason in why


@pytest.mark.parametrize(
    "text",
    [
        '["a", "a"]',
        '["a", "b", "a", "b"]',
        "[0, 0, 0, 0, 0, 0, 0]",
        "[true, true, true, true]",
        '[["a", "a"], ["a", "a"]]',
        '{"a": "x", "b": "x", "c": "x", "d": "x"}',
        '["a", "a", "b", "a", "a", "b", "a", "a"]',
        json.dumps(["The cat sat on the mat, and the dog sat on the cat, and the cow sat on the dog, and all sat."]),
        json.dumps({"line": "-" * 40}),
        json.dumps(["".join(map(str, range(1000, 1150))) * 3]),
        '"a, a, a, a, a"',
    ],
)
def test_what_does_not_repeat_may_go_on(text: str) -> None:
    """Two equal items, short runs, numbers, and members of objects are left alone."""
    assert _where(text) == []


def test_settings_are_checked() -> None:
    """A guard without meaning is refused."""
    with pytest.raises(ValueError, match="Guard: items is an integer from 1 on; found 0"):
        Guard(items=0)


@pytest.mark.parametrize("sampler", [None, Multinomial(temperature=0.05)])
def test_a_list_ends(json_vocabulary: Vocabulary, sampler: Any) -> None:
    """The answer goes on after the list; the run says what was ended, and nothing else changes."""
    text = '{"items": [' + ", ".join(['"text"'] * 40) + '], "note": "no"}'
    model = HashModel(json_vocabulary, writes=text)
    run = order.run(model=model, sampler=sampler)
    assert run.value.items == ["text"] * 3
    assert run.limited == {"items": "it has the same item 3 times in a row"}
    assert run.trace["answers"][0]["limited"] == dict(run.limited)
    free = order.run(model=model, sampler=sampler, guard=None)
    assert (free.value.items, free.limited) == (["text"] * 40, {})


def test_events_take_back_what_was_ended(json_vocabulary: Vocabulary) -> None:
    """The texts of the stream, with what was taken back, are the text of the answer."""
    model = HashModel(json_vocabulary, writes='{"items": [' + ", ".join(['"ab"'] * 40) + '], "note": "no"}')
    text = ""
    for event in order.stream(model=model):
        if isinstance(event, Text):
            text += event.text
        elif isinstance(event, Retracted):
            text = text[: event.length]
            assert event.problem == "it has the same item 3 times in a row"
            assert event.path == ("items",)
    assert json.loads(text)["items"] == ["ab"] * 3
    assert text == order.run(model=model).outcomes[0].text


def test_a_string_ends(json_vocabulary: Vocabulary) -> None:
    """A phrase that repeats ends the string, within JSON and of a whole text."""
    phrase = "and then "
    model = HashModel(json_vocabulary, writes='{"items": [], "note": "' + phrase * 30 + '"}')
    run = order.run(model=model)
    assert run.value.note.startswith(phrase * 5)
    assert len(run.value.note) < 48 + len(phrase)
    assert run.limited == {"note": "it repeats itself"}
    told = story.run(model=HashModel(json_vocabulary, writes=phrase * 30))
    assert (phrase * 30).startswith(told.value)
    assert 30 < len(told.value) < 48 + len(phrase)
    assert told.limited == {"": "it repeats itself"}


def test_names_are_not_written_twice(json_vocabulary: Vocabulary) -> None:
    """In an object with names of the model's own each name occurs once."""

    @program(max_tokens=120)
    def ages() -> dict[str, int]:
        """How old?"""

    writer = HashModel(json_vocabulary, writes='{"ann": 1, "bob": 2, "ann": 3}')
    run = ages.run(model=writer)
    names = [name for name, _ in json.loads(run.outcomes[0].text, object_pairs_hook=list)]
    assert names[:2] == ["ann", "bob"]
    assert len(names) == len(set(names)) > 2
    assert run.limited["ann"] == "its name was written twice"
    text = ages.run(model=writer, guard=None).outcomes[0].text
    assert text == '{"ann": 1, "bob": 2, "ann": 3}'


def test_the_grammar_decides(json_vocabulary: Vocabulary) -> None:
    """Where a list or a string may not end, the guard does nothing."""

    @program(max_tokens=300)
    def six() -> Annotated[list[str], Field(min_length=6, max_length=6)]:
        """Six?"""

    @program(max_tokens=300)
    def line() -> Annotated[list[Annotated[str, Field(pattern="^-{60}$")]], Field(max_length=1)]:
        """A line?"""

    run = six.run(model=HashModel(json_vocabulary, writes=json.dumps(["a"] * 6)))
    assert (run.value, run.limited) == (["a"] * 6, {})
    ruled = line.run(model=HashModel(json_vocabulary, writes=json.dumps(["-" * 60])))
    assert (ruled.value, ruled.limited) == (["-" * 60], {})

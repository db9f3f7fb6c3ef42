"""Prompts and grammars on which every drafter is tried."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import Thread
from typing import Any, Final

from structgen.frontends.json_schema import json_schema
from structgen.frontends.lark import lark
from structgen.frontends.regex import regex
from structgen.grammar.algebra import select
from structgen.grammar.nodes import Grammar
from structgen.models.batching import Batch
from structgen.models.protocol import LanguageModel

__all__ = ["GRAMMARS", "PROMPTS", "WRITES", "together"]

_PEOPLE: Final = ("Ada", "Grace", "Alan", "Barbara", "Edsger", "Donald", "Frances", "Ken", "Hedy", "Kurt")
_TEXTS: Final = (
    "{name} is {age} and likes {colour}.",
    'Fill in {{"name": "{name}", "age": {age}, "tags": ["{colour}"]}}',
    "List: [[{age}], ({age}), [1, [2, 3]]] of {name}",
    "did {name} come? yes, of course. did {name} stay? no, never.",
    "the {colour} house of {name} the {colour} house of {name} the",
)
PROMPTS: Final = tuple(
    text.format(name=name, age=20 + 7 * at, colour=("red", "green", "blue")[at % 3])
    for at, name in enumerate(_PEOPLE)
    for text in _TEXTS
)
"""Fifty texts; some spell what may be asked for."""

GRAMMARS: Final[dict[str, Grammar]] = {
    "record": json_schema(
        {
            "type": "object",
            "properties": {
                "name": {"type": "string", "maxLength": 12},
                "age": {"type": "integer", "minimum": 0, "maximum": 130},
                "tags": {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "maxItems": 3},
            },
            "required": ["name", "age", "tags"],
            "additionalProperties": False,
        }
    ),
    "words": regex("(([a-z]{1,6}|[0-9]{4}) ){2,5}[a-z]+"),
    "nested": lark(
        """
        start: "[" value ("," value)+ "]"
        value: "[" [value ("," value)*] "]" | "(" value ")" | NUMBER
        NUMBER: /[1-9][0-9]{0,2}/
        """
    ),
    "choices": select(["yes, of course", "yes, perhaps", "no, never", "no, not at all", "maybe"]).many(2, 4, sep="; "),
    "free": regex(r"(?s).{1,40}"),
}

WRITES: Final = {
    "record": '{"name": "Ada", "age": 36, "tags": ["red", "blue"]}',
    "words": "the red house of ada the red house of ada",
    "nested": "[[1,[2,(3)]],(4),[1,[2,(3)]]]",
    "choices": "yes, of course; no, never; yes, of course",
    "free": "Ada is 36 and likes red. Ada is 36 and ",
}
"""What a model may want to write in each."""


def together(model: LanguageModel, programs: Sequence[Callable[[LanguageModel], Any]]) -> list[Any]:
    """Run programs in threads that share forward passes; return their results."""
    found: list[Any] = [None] * len(programs)

    def run(at: int, batch: Batch, worker: Any) -> None:
        with worker:
            try:
                found[at] = programs[at](batch)
            except BaseException as error:
                found[at] = error

    with Batch(model) as batch:
        workers = [batch.worker() for _ in programs]
        threads = [Thread(target=run, args=(at, batch, worker), daemon=True) for at, worker in enumerate(workers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive(), "an output waits for ever"
    for each in found:
        if isinstance(each, BaseException):
            raise each
    return found

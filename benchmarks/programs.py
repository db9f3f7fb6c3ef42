"""What a program costs beside the ``generate`` that it makes: prompt, events, validated values, scores.

The model is a hash that writes a given answer and answers in microseconds; its vocabulary has little more than bytes,
so there are many tokens, each with its events.  Calls of the program and of ``generate`` alternate; times are those of
the processor, and the least of all rounds, for whatever else runs can only add to them.

Usage: python benchmarks/programs.py [--rounds 200]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from time import process_time
from typing import Literal

from pydantic import BaseModel, Field

import structgen as sg
from structgen.engine import Vocabulary, compile
from structgen.models import HashModel
from structgen.program import Program

JOINTS = (b'{"', b'"}', b'":', b'": "', b'", "', b'",', b"]}", b"true")


class Person(BaseModel):
    """Two fields."""

    name: str = Field(max_length=12)
    age: int = Field(ge=0, le=130)


class Item(BaseModel):
    """One of several."""

    code: str = Field(max_length=4)
    kind: Literal["a", "b"]


class Order(BaseModel):
    """Nested fields."""

    who: Person
    items: list[Item] = Field(max_length=4)
    ok: bool
    total: float


@sg.program
def person(text: str) -> Person:
    """Say who {text} is."""


@sg.program
def order(text: str) -> Order:
    """Say what {text} is."""


CASES: tuple[tuple[Program[[str], BaseModel], BaseModel], ...] = (
    (person, Person(name="Ada", age=36)),
    (
        order,
        Order(
            who=Person(name="Ada", age=36),
            items=[Item(code="x1", kind="a"), Item(code="y", kind="b"), Item(code="zz", kind="a")],
            ok=True,
            total=3.5,
        ),
    ),
)


def seconds(call: Callable[[], object]) -> float:
    began = process_time()
    call()
    return process_time() - began


def row(program: Program[[str], BaseModel], value: BaseModel, rounds: int) -> str:
    """Measure one program."""
    vocabulary = Vocabulary([b"", *(bytes([byte]) for byte in range(256)), *JOINTS], eos=[0])
    text = value.model_dump_json().replace(":", ": ").replace(",", ", ")
    model, prompt = HashModel(vocabulary, writes=text), program.prompt("x")
    constraint = compile(program.answer.grammar, vocabulary)
    calls: list[Callable[[], object]] = [
        lambda: sg.generate(model, prompt, constraint),
        lambda: program.run("x", model=model),
        lambda: [getattr(event, "partial", None) for event in program.stream("x", model=model)],
        lambda: program.run("x", model=model, marginals=True),
    ]
    made = program.run("x", model=model)
    if made.value != value:
        raise SystemExit(f"{program.name}: it is {made.value!r}, not {value!r}")
    times = [[seconds(call) for call in calls] for _ in range(rounds)]
    bare, plain, partial, weighed = (min(column) * 1e3 for column in zip(*times, strict=True))
    tokens = made.stats.tokens if made.stats is not None else 0
    costs = " | ".join(f"{each:.2f}" for each in (bare, plain, plain - bare, partial, weighed))
    return f"| {program.name} | {tokens} | {costs} |"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=200)
    rounds = parser.parse_args().rounds
    print("| program | tokens | generate ms | program ms | overhead ms | with partial objects ms | with marginals ms |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    for program, value in CASES:
        print(row(program, value, rounds))


if __name__ == "__main__":
    main()

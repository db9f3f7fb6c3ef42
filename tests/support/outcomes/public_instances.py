"""One of each public class, and those that belong to a running process."""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import BaseModel

import structgen as sg
from structgen import drafters, errors, grammars, policies, potentials, samplers, shapes, verification
from structgen.decode.diffusion import Chooser, Completion, Filling, MeanField, SlotRanking, Snapshot
from structgen.decode.sampling import Problem, Proposed
from structgen.errors import StructgenError
from structgen.lazy import stub_names
from structgen.models import HashModel
from structgen.program import (
    AgentResult,
    Call,
    Done,
    Evidence,
    FieldFinal,
    Loss,
    Retracted,
    Served,
    Thought,
    Violation,
    ask,
    program,
    tool,
)

__all__ = ["MADE", "PUBLIC", "REFUSED", "VOCABULARY", "add", "failure", "instance", "matcher", "model", "who"]

PACKAGE = Path(sg.__file__).parent
VOCABULARY = sg.Vocabulary([*(bytes([value]) for value in range(256)), b"ab", b'{"', b""], eos=[258])
COST = drafters.CostModel(0.05)


class User(BaseModel):
    name: str
    age: int


@program(max_tokens=40)
def who(text: str) -> User:
    """Who is it? {text}"""


@tool
def add(left: int, right: int) -> int:
    """Add two numbers."""
    return left + right


def half(values: Any, tokens: Any, token: int) -> float:
    """A judge, and a choice of slots, that stand at the top of a module."""
    return 0.5


class Settled:
    """A filter for ``Learned``."""

    def settled(self, views: Any) -> Any:
        """Nothing is settled."""
        return np.zeros(len(views[-1]))


class Heads:
    """Trained heads without any."""

    name, depth, width = "none", None, 4

    def start(self) -> Any:
        """Never asked."""
        raise AssertionError


@functools.cache
def model() -> HashModel:
    """A model that writes a user."""
    return HashModel(VOCABULARY, seed=1, writes='{"name": "Ada", "age": 36}')


@functools.cache
def run() -> sg.program.Run[Any]:
    """The result of a program."""
    return who.run("Ada", model=model())


def failure(work: Callable[[], object]) -> BaseException:
    """The error that ``work`` raises, with a note."""
    with pytest.raises(StructgenError) as caught:
        work()
    caught.value.add_note("seen in a test")
    return caught.value


def result() -> Any:
    """The output of a generation."""
    return run().outcomes[0].result


def samples() -> Any:
    """Several outputs."""
    return sg.sample(model(), "x", sg.regex("ab|cd"), sampler=samplers.SMC(3))


def matcher() -> sg.Matcher:
    """A matcher in the middle, with a text and a refused token in its past."""
    made = sg.compile(sg.regex("[ab]*x{2,5}"), VOCABULARY).matcher()
    assert made.accept(256)
    assert not made.accept(ord("c"))
    assert made.accept_bytes(b"axq") == 2
    return made


def event(kind: type) -> Any:
    """The first event of a kind."""
    return next(each for each in who.stream("Ada", model=model()) if isinstance(each, kind))


MADE: dict[str, Callable[[], object]] = {
    # errors, raised by what raises them
    "StructgenError": lambda: StructgenError("it", "is wrong", evidence="found 1", remedy="take 2"),
    "GrammarError": lambda: failure(lambda: sg.json_schema(7)),
    "GrammarSyntaxError": lambda: failure(lambda: sg.regex("a(b")),
    "UnsupportedFeature": lambda: failure(lambda: sg.regex(r"(a)\1")),
    "UnsatisfiableGrammar": lambda: failure(lambda: sg.compile(sg.regex("a") & sg.regex("b"), VOCABULARY)),
    "LimitExceeded": lambda: failure(lambda: sg.regex("a" * 100, limits=sg.Limits(source_bytes=9))),
    "VocabularyError": lambda: failure(lambda: sg.Vocabulary([b""])),
    "BudgetError": lambda: failure(lambda: sg.generate(model(), "x", sg.regex("a{90}"), max_tokens=3)),
    "AnswerCut": lambda: failure(lambda: who("Ada", model=model(), max_tokens=25, on_cut="raise")),
    "ArgumentError": lambda: failure(lambda: sg.compile("a", VOCABULARY)),
    "ProgramError": lambda: failure(who),
    "GenerationError": lambda: errors.GenerationError("decoding", "it stopped"),
    "ModelError": lambda: failure(lambda: sg.load_model("/no/such/folder/")),
    "ValidationFailed": lambda: errors.ValidationFailed("age", [("3", "too young")]),
    # core
    "Grammar": lambda: sg.json_schema(User),
    "Vocabulary": lambda: VOCABULARY,
    "Constraint": lambda: sg.compile(sg.json_schema(User), VOCABULARY),
    "Matcher": matcher,
    "Report": lambda: sg.compile(sg.json_schema(User), VOCABULARY).report,
    "Explanation": lambda: matcher().explain(b"q"),
    "Regex": lambda: grammars.Regex("a+"),
    "Lark": lambda: grammars.Lark('start: "a"'),
    "Result": result,
    "Samples": samples,
    "Sample": lambda: samples().samples[0],
    "Round": lambda: samples().history[0],
    "Hypothesis": lambda: potentials.Hypothesis(sg.regex("a*"), VOCABULARY, (97,)),
    "Problem": lambda: Problem(model(), (1,), sg.compile(sg.regex("a*"), VOCABULARY), (), 5),
    "Proposed": lambda: Proposed(3, 0.5, -0.5),
    # drafters, their trees and verifiers
    "CostModel": lambda: COST,
    "Speculation": lambda: drafters.Speculation(drafters.PromptLookup()),
    "Clasp": lambda: drafters.Clasp(2),
    "Combined": lambda: drafters.Combined((drafters.PromptLookup(), drafters.TokenRecycling())),
    "DraftModel": lambda: drafters.DraftModel(model()),
    "Extended": lambda: drafters.Extended(drafters.PromptLookup()),
    "LayerSkip": lambda: drafters.LayerSkip((1, 2)),
    "TrainedHeads": lambda: drafters.TrainedHeads(Heads()),
    "Bandit": lambda: shapes.Bandit((drafters.PromptLookup(), drafters.Jacobi()), cost=COST),
    "Arms": lambda: shapes.Arms(shapes.UCB(), 2),
    "DraftDistribution": lambda: shapes.DraftDistribution(np.array([3, 4]), np.array([0.5, 0.25])),
    "DraftMemory": lambda: shapes.DraftMemory(3, 4),
    "Fixed": lambda: shapes.Fixed.branching(2, 2),
    "Goodput": lambda: shapes.Goodput(drafters.TokenRecycling(), COST),
    "OptimalForm": lambda: shapes.OptimalForm((-1, 0), 1.5),
    "Pearl": lambda: shapes.Pearl(drafters.TokenRecycling()),
    "Sequoia": lambda: shapes.Sequoia(COST),
    "Judge": lambda: verification.Judge(half),
    # diffusion
    "AdaptiveParallel": lambda: sg.diffusion.AdaptiveParallel(model()),
    "Learned": lambda: policies.Learned(Settled()),
    "Chooser": lambda: Chooser(half),
    "Completion": lambda: Completion(np.array([1, 2], np.int32), -0.5),
    "Filling": lambda: Filling((1, 2), ((0,), (1,)), (), policies.Factor(), sg.diffusion.Dingo(), None),
    "MeanField": lambda: MeanField(np.array([-1, 3], np.int32), np.arange(5.0).reshape(1, 5)),
    "SlotRanking": lambda: SlotRanking(np.array([1, 0]), False),
    "Snapshot": lambda: Snapshot(np.array([1], np.int32), np.array([0]), 1, np.array([], np.intp)),
    # programs
    "Run": run,
    "Mapped": lambda: who.map(["Ada", "Bob"], model=model())[1],
    "Outcome": lambda: run().outcomes[0],
    "Program": lambda: who,
    "Tool": lambda: add,
    "Answer": lambda: who.answer,
    "Ask": lambda: ask(User, max_tokens=9),
    "AgentResult": lambda: AgentResult(3, (Call("add", {"left": 1, "right": 2}, 3),)),
    "Call": lambda: Call("add", {"left": 1}, error="ValueError: no"),
    "Evidence": lambda: Evidence(("a",), "b", 0, 1, ((0, 1),)),
    "FieldScore": lambda: run().outcomes[0].fields[0],
    "Loss": lambda: Loss("#/a", "pattern", "is left out"),
    "Served": lambda: Served("a", "stop", 1, None, None, ()),
    "Violation": lambda: Violation(("a",), "b", "is wrong"),
    "Done": lambda: event(Done),
    "Text": lambda: event(sg.program.Text),
    "FieldFinal": lambda: event(FieldFinal),
    "FieldStarted": lambda: event(sg.program.FieldStarted),
    "ObjectFinal": lambda: event(sg.program.ObjectFinal),
    "Retracted": lambda: Retracted(1, ("a",), "is wrong"),
    "Thought": lambda: Thought("well"),
    "HashModel": model,
    "Translation": lambda: importlib.import_module("structgen.integrations.openai_server").Translation({"a": 1}),
}
"""How one of each class is made that takes arguments; a class that needs none is made without."""

REFUSED: dict[str, str] = {
    "Batch": "its sequences share the passes of a model",
    "Branches": "they grow with a model's cache",
    "CanvasRun": "it is a canvas while it is filled",
    "Context": "it holds the session of a model",
    "Denoised": "it is one step of a canvas while it is filled, with the posterior of the automaton",
    "OpenAIServer": "it holds a connection, and a key that no pickle may carry",
    "structgen.decode.sampling.Branch": "it grows with a model's cache",
    "structgen.program.Branch": "it is a conversation within a program that runs",
}
"""What belongs to a running process, and why."""


def public_classes() -> dict[str, type]:
    """All concrete classes in the stubs of the package, and in the lists of the modules that users import from."""
    modules = {
        ".".join(stub.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__"): stub
        for stub in PACKAGE.rglob("*.pyi")
    }
    names = {(module, name) for module, stub in modules.items() for name in stub_names(stub)}
    for part in ("errors", "engine", "models", "program", "integrations.openai_server"):
        names |= {(f"structgen.{part}", name) for name in importlib.import_module(f"structgen.{part}").__all__}
    names.add(("structgen.decode.step.context", "Context"))
    found: dict[str, type] = {}
    for module, name in sorted(names):
        value = found_under(module, name)
        if inspect.isclass(value) and not inspect.isabstract(value) and not getattr(value, "_is_protocol", False):
            found[f"{module}.{name}"] = value
    return {next(path for path in found if found[path] is kind): kind for kind in dict.fromkeys(found.values())}


def found_under(module: str, name: str) -> object:
    """The value of a public name; names that have moved come from their new place."""
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return getattr(importlib.import_module(module), name)


PUBLIC = public_classes()


def instance(path: str) -> object:
    """One of a public class."""
    return (MADE.get(path) or MADE.get(path.rsplit(".", 1)[1]) or PUBLIC[path])()

"""Programs with drafts: every event, value and score is that of the program without drafts."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Annotated, Any, Literal

import pytest
from drafter_catalogue import CASES
from pydantic import AfterValidator, BaseModel, Field, ValidationInfo, field_validator
from result_equality import assert_alike
from scripted_drafters import Noisy

from structgen.decode import Greedy, Multinomial, Result, Sampler
from structgen.decode.speculative.speculation import AnyDrafter
from structgen.engine import Vocabulary
from structgen.errors import ValidationFailed
from structgen.models.toy.hash import HashModel
from structgen.program import Done, Run, ask, extract, program
from structgen.program.outcome import Outcome

TITLES = (
    "auto",
    "combined",
    "jacobi",
    "another draft model, dyspec",
    "exact string match",
    "bandit, exp3",
    "stand, chosen",
)
SAMPLERS: tuple[Sampler, ...] = (Greedy(), Multinomial(0.7), Multinomial(1.3, top_k=12))


@pytest.fixture(autouse=True)
def no_drafter_fails() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def even(value: int) -> int:
    if value % 2:
        raise ValueError("must be even")
    return value


class Person(BaseModel):
    name: str = Field(min_length=1, max_length=12)
    age: Annotated[int, AfterValidator(even)] = Field(ge=0, le=130)
    kind: Literal["friend", "foe"]

    @field_validator("kind")
    @classmethod
    def fits_the_age(cls, value: str, info: ValidationInfo) -> str:
        if info.data.get("age", 0) > 100 and value == "foe":
            raise ValueError("too old for a foe")
        return value


@program(tries=12, max_tokens=80)
def checked(text: str) -> Person:
    """Who is it? {text}"""


class Found(BaseModel):
    who: str
    why: str


@program(max_tokens=60)
def talked(text: str) -> Any:
    yield f"Say what it is: {text}"
    kind = yield ask(Literal["person", "animal", "thing"])
    yield "And its name?"
    text = yield ask(str, max_tokens=12)
    yield "All of it."
    person = yield ask(Person, max_tokens=80)
    return kind, text, person


DOCUMENT = "Ada wrote the first program. Grace found the first bug, in 1947."
JOBS: dict[str, tuple[Any, str, str | None]] = {
    "checks": (checked, "Ada, 35, foe", '{"name": "Ada", "age": 35, "kind": "foe"}'),
    "checks at random": (checked, "Ada, 35, foe", None),
    "evidence": (extract, DOCUMENT, '{"who": "Grace", "why": "found the first bug"}'),
    "turns": (talked, "Grace", '{"name": "Grace", "age": 107, "kind": "foe"}'),
}


def drafters(model: HashModel) -> list[AnyDrafter]:
    return [Noisy(), Noisy(width=1, depth=8), *(case.make(model) for case in CASES if case.title in TITLES)]


def told(job: Any, model: Any, text: str, **options: Any) -> tuple[list[Any], Run[Any] | None, str]:
    """All events but the last, the result, and the error."""
    events: list[Any] = []
    try:
        arguments = [text] if job is not extract else [Found, text]
        options |= {"evidence": True, "max_tokens": 80} if job is extract else {}
        for event in job.stream(*arguments, model=model, **options):
            if isinstance(event, Done):
                return events, event.run, ""
            events.append(event)
    except ValidationFailed as error:
        return events, None, str(error)
    raise AssertionError("a program ends with a run or an error")


def result_of(outcome: Outcome) -> Result:
    assert isinstance(outcome.result, Result)
    return outcome.result


@pytest.mark.exhaustive
@pytest.mark.parametrize("title", JOBS)
def test_events_values_and_scores_are_the_same(json_vocabulary: Vocabulary, title: str) -> None:
    """Fields that are taken back, quotations, and turns on one text agree; greedy and sampled."""
    job, text, writes = JOBS[title]
    failed = 0
    for seed, sampler in enumerate(SAMPLERS):
        model = HashModel(json_vocabulary, seed=seed, writes=writes)
        options: dict[str, Any] = {"sampler": sampler, "seed": seed, "alternatives": seed}
        events, plain, problem = told(job, model, text, drafter=None, **options)
        failed += plain is None
        for drafter in drafters(model):
            drafted_events, drafted, drafted_problem = told(job, model, text, drafter=drafter, **options)
            assert drafted_events == events
            assert drafted_problem == problem
            if plain is not None and drafted is not None:
                assert drafted.value == plain.value
                for one, other in zip(plain.outcomes, drafted.outcomes, strict=True):
                    assert_alike(result_of(one), result_of(other))
                    assert one.violations == other.violations
                    assert one.fields == other.fields
    assert failed < len(SAMPLERS)


@pytest.mark.exhaustive
def test_programs_in_one_batch_are_the_same(json_vocabulary: Vocabulary) -> None:
    """Six programs share four places and one drafter."""
    model = HashModel(json_vocabulary, seed=3, writes=JOBS["checks"][2])
    texts = [f"person {number}: Ada, {number}, friend" for number in range(6)]
    for sampler in SAMPLERS[:2]:
        plain = checked.map(texts, model=model, batch_size=4, drafter=None, sampler=sampler)
        for drafter in drafters(model):
            drafted = checked.map(texts, model=model, batch_size=4, drafter=drafter, sampler=sampler)
            for one, other in zip(plain, drafted, strict=True):
                assert (one.run is None) == (other.run is None)
                if one.run is not None and other.run is not None:
                    assert one.value == other.value
                    assert_alike(result_of(one.run.outcomes[0]), result_of(other.run.outcomes[0]))


def test_an_interruption_ends_a_program(json_vocabulary: Vocabulary) -> None:
    """Ctrl-C comes in a pass; the next run on the same model is normal."""

    class Interrupted(HashModel):
        left = 4

        def logits(self, state: int, matched: int) -> Any:
            type(self).left -= 1
            if self.left == 0:
                raise KeyboardInterrupt
            return super().logits(state, matched)

    model = Interrupted(json_vocabulary, seed=3, writes=JOBS["turns"][2])
    with pytest.raises(KeyboardInterrupt):
        talked.run("Grace", model=model, drafter=Noisy())
    plain = HashModel(json_vocabulary, seed=3, writes=JOBS["turns"][2])
    assert told(talked, model, "Grace", drafter=Noisy())[0] == told(talked, plain, "Grace", drafter=None)[0]

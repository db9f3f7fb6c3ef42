"""Programs on a model without weights that prefers a given text."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Generator, Iterator
from typing import Annotated, Any, Literal

import pytest
from pydantic import AfterValidator, BaseModel, Field, ValidationInfo, field_validator

import structgen
from structgen.decode import Multinomial
from structgen.engine import Vocabulary
from structgen.errors import (
    AnswerCut,
    ArgumentError,
    BudgetError,
    CutWarning,
    GenerationError,
    GrammarError,
    ProgramError,
    ValidationFailed,
)
from structgen.frontends.regex import regex
from structgen.models.toy.hash import HashModel
from structgen.program import (
    Done,
    FieldFinal,
    FieldStarted,
    ObjectFinal,
    Retracted,
    Text,
    ask,
    assistant,
    fork,
    program,
    system,
    user,
)


class Person(BaseModel):
    name: str = Field(max_length=12, description="the first name")
    age: int = Field(ge=0, le=130)


@program
def extract(text: str) -> Person:
    """Who is it? {text}"""


def model(vocabulary: Vocabulary, writes: str | None = None, **settings: Any) -> HashModel:
    return HashModel(vocabulary, writes=writes, **settings)


ADA = '{"name": "Ada", "age": 36}'


def test_a_function_returns_its_value(json_vocabulary: Vocabulary) -> None:
    person: Person = extract("Ada, 36", model=model(json_vocabulary, ADA))
    assert person == Person(name="Ada", age=36)


class Team(BaseModel):
    city: str = Field(max_length=8)
    names: list[str]


@program
def team(text: str) -> Team:
    """Who? {text}"""


NAMES = '{"city": "York", "names": ["Ada", "Bob", "Cyd", "Dan", "Eve", "Fay"]}'


@pytest.mark.parametrize("budget", [22, 26, 30, 34, 200])
def test_values_that_the_budget_cut_are_marked(json_vocabulary: Vocabulary, budget: int) -> None:
    """Values that are not marked are those of a larger budget, in the run and in its events."""
    writer = model(json_vocabulary, NAMES)
    run = team.run("x", model=writer, max_tokens=budget)
    whole = json.loads(NAMES)
    assert run.finish_reason == ("length" if budget < 200 else "stop")
    assert bool(run.cut_fields) == (budget < 200)
    for name, held in run.fields.items():
        if not held.is_cut and name == "city":
            assert held.value == whole["city"]
        if not held.is_cut and name.startswith("names["):
            assert held.value == whole["names"][held.path[-1]]
    assert "city" not in run.cut_fields
    assert run.fields["names"].is_cut == run.fields[""].is_cut == (budget < 200)
    events = [event for event in team.stream("x", model=writer, max_tokens=budget) if isinstance(event, FieldFinal)]
    assert {event.path: event.is_cut for event in events} == {
        held.path: held.is_cut for held in run.fields.values() if held.path
    }
    assert run.trace["answers"][0]["finish_reason"] == run.finish_reason


@pytest.mark.parametrize("budget", [22, 26, 34, 200])
def test_an_answer_that_is_cut_goes_on(json_vocabulary: Vocabulary, budget: int) -> None:
    """With ``on_cut="continue"`` the answer is that of a larger budget, and what was cut is taken back."""
    writer = model(json_vocabulary, NAMES)
    events = list(team.stream("x", model=writer, max_tokens=budget, on_cut="continue"))
    run = events[-1].run
    assert (run.value.model_dump(), run.finish_reason, run.cut_fields) == (json.loads(NAMES), "stop", [])
    text = ""
    for event in events:
        if isinstance(event, Text):
            text += event.text
        elif isinstance(event, Retracted):
            text = text[: event.length]
    assert text == run.outcomes[0].text == NAMES
    assert sum(isinstance(event, Retracted) for event in events) == {22: 2, 26: 1, 34: 1, 200: 0}[budget]
    assert run.outcomes[0].result.tokens == team.run("x", model=writer, max_tokens=200).outcomes[0].result.tokens


def test_a_cut_answer_may_be_an_error_or_a_warning(json_vocabulary: Vocabulary) -> None:
    """``on_cut="raise"`` gives the answer with its marks; a call that returns the value alone warns."""
    writer = model(json_vocabulary, NAMES)
    with pytest.raises(AnswerCut, match=r"max_tokens=26: the budget cut the answer.*cut are names\[") as caught:
        team("x", model=writer, max_tokens=26, on_cut="raise")
    assert caught.value.outcome.result.finish_reason == "length"
    assert team("x", model=writer, max_tokens=200, on_cut="raise").city == "York"
    with pytest.warns(CutWarning, match=r"program team: the budget \(max_tokens\) cut the answer: names\["):
        team("x", model=writer, max_tokens=26)
    with pytest.raises(ValueError, match="on_cut is one of raise, mark, continue; found 'stop'"):
        team("x", model=writer, on_cut="stop")


def test_a_budget_is_not_doubled_for_ever(json_vocabulary: Vocabulary) -> None:
    """A text without end is cut at 16 times the budget."""

    @program
    def endless() -> Team:
        """Who?"""

    writer = model(json_vocabulary, '{"city": "York", "names": [' + '"Ada", ' * 500)
    with pytest.raises(AnswerCut, match="max_tokens=352"):
        endless(model=writer, max_tokens=22, on_cut="continue", guard=None)


def test_the_prompt_has_the_arguments_and_the_form(json_vocabulary: Vocabulary) -> None:
    assert extract.prompt("Ada") == (
        "Who is it? Ada\n\nAnswer with JSON: object with the fields\n- name (the first name)\n- age: integer"
    )

    @program(describe=False)
    def plain(text: str) -> Literal["a", "b"]:
        """Which? {text}"""

    assert plain.prompt(text="x") == "Which? x"


def test_a_run_knows_how_sure_the_model_was(json_vocabulary: Vocabulary) -> None:
    run = extract.run("Ada", model=model(json_vocabulary, ADA))
    assert run.text == ADA
    assert run.fields["name"].value == "Ada"
    assert list(run.fields) == ["name", "age", ""]
    inner = run.fields["name"].logprob + run.fields["age"].logprob
    assert run.fields[""].logprob == pytest.approx(run.logprob)
    assert 0 >= inner >= run.logprob - 1e-9
    assert run.stats.tokens == len(run.outcomes[0].result.tokens)
    assert run.stats.forced > 0
    assert json.loads(json.dumps(run.trace))["answers"][0]["fields"][0]["value"] == "Ada"


def test_probabilities_of_choices_sum_to_one(json_vocabulary: Vocabulary) -> None:
    """There is one choice per first letter: its probability is that of its letter among the allowed ones."""
    total = 0.0
    for wish in ("x", "y", "z"):

        @program
        def choose() -> Literal["x", "y", "z"]:
            """Choose."""

        found = choose.run(model=model(json_vocabulary, seed=4), sampler=_Wish(json_vocabulary, wish))
        assert found.value == wish
        total += found.fields[""].probability
    assert total == pytest.approx(1)


class _Wish:
    """Takes the token at a fixed rank of the masked distribution: the first, second, third of the allowed ones."""

    lossless = False

    def __init__(self, vocabulary: Vocabulary, wish: str) -> None:
        self.place = "xyz".index(wish)

    def draw(self, log_p: Any, generator: Any) -> int:
        return self.place


def test_events_come_with_the_token_that_settles_them(json_vocabulary: Vocabulary) -> None:
    events = list(extract.stream("Ada", model=model(json_vocabulary, ADA)))
    texts = "".join(event.text for event in events if isinstance(event, Text))
    assert texts == ADA
    written = ""
    final: dict[str, str] = {}
    for event in events:
        if isinstance(event, Text):
            written += event.text
        if isinstance(event, FieldFinal):
            final[event.name] = written
    assert final["name"] in ('{"name": "Ada"', '{"name": "Ada",', '{"name": "Ada", "')
    assert ADA.startswith(final["age"])
    assert isinstance(events[-1], Done)
    assert isinstance(events[-2], ObjectFinal)
    assert events[-1].run.value == events[-2].value
    started = [event.name for event in events if isinstance(event, FieldStarted)]
    assert started == ["", "name", "age"]


class Flags(BaseModel):
    level: Literal["low", "medium", "high"]
    score: int = Field(ge=10, le=99)
    done: bool


def test_a_value_is_final_before_it_is_written_where_nothing_else_can_follow(json_vocabulary: Vocabulary) -> None:
    @program
    def rate() -> Flags:
        """Rate it."""

    text = '{"level": "medium", "score": 42, "done": true}'
    written = ""
    final = {}
    for event in rate.stream(model=model(json_vocabulary, text)):
        if isinstance(event, Text):
            written += event.text
        if isinstance(event, FieldFinal):
            final[event.name] = written, event.value
    assert final["level"] == ('{"level": "m', "medium")
    assert final["score"][0].endswith('"score": 42')
    assert final["done"][0].endswith(('"done": t', '"done": tr', '"done": true'))


def even(value: int) -> int:
    if value % 2:
        raise ValueError("must be even")
    return value


class Checked(BaseModel):
    name: str = Field(max_length=8)
    count: Annotated[int, AfterValidator(even)] = Field(ge=0, le=99)
    note: str = Field(max_length=8)

    @field_validator("note")
    @classmethod
    def differs(cls, value: str, info: ValidationInfo) -> str:
        if value == info.data["name"]:
            raise ValueError("must differ from the name")
        return value


@program
def checked() -> Checked:
    """Say something."""


REFUSED = {"count": '{"name": "ab", "count": 37, "note": "x"}', "note": '{"name": "ab", "count": 36, "note": "ab"}'}


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("field", REFUSED)
def test_what_a_validator_refuses_is_sampled_again_where_it_stands(
    json_vocabulary: Vocabulary, field: str, seed: int
) -> None:
    wish = REFUSED[field]
    sampler = Multinomial(temperature=0.5) if seed else None
    run = checked.run(model=model(json_vocabulary, wish, seed=seed), sampler=sampler, seed=seed, tries=60)
    value = run.value
    assert value.count % 2 == 0
    assert value.note != value.name
    assert Checked.model_validate_json(run.text) == value
    violations = run.outcomes[0].violations
    if seed == 0:
        assert {violation.path for violation in violations} == {(field,)}
        assert run.text.startswith(wish[: wish.index(field) + len(field)])
    json.dumps(run.trace)


def test_retractions_are_told(json_vocabulary: Vocabulary) -> None:
    wish = '{"name": "ab", "count": 37, "note": "x"}'
    text = ""
    final: dict[str, Any] = {}
    for event in checked.stream(model=model(json_vocabulary, wish), tries=60):
        if isinstance(event, Text):
            text += event.text
        if isinstance(event, FieldFinal):
            final[event.name] = event.value
        if isinstance(event, Retracted):
            assert event.path == ("count",)
            text = text[: event.length]
    assert json.loads(text) == final


def never(value: str) -> str:
    raise ValueError(f"{value} will not do")


def test_a_validator_that_always_fails_ends_with_what_it_said(json_vocabulary: Vocabulary) -> None:
    @program(tries=3)
    def hopeless() -> dict[Literal["a"], Annotated[str, AfterValidator(never)]]:
        """Try."""

    with pytest.raises(ValidationFailed, match=r"refuse all 3 values.*will not do") as failure:
        hopeless(model=model(json_vocabulary, '{"a": "xy"}', seed=1))
    assert len(failure.value.violations) == 3
    assert len({text for text, _ in failure.value.violations}) > 1

    @program
    def exhausted() -> Annotated[Literal["x", "y"], AfterValidator(never)]:
        """Try."""

    with pytest.raises(ValidationFailed, match="refuse all"):
        exhausted(model=model(json_vocabulary))


def test_generator_programs(json_vocabulary: Vocabulary) -> None:
    @program
    def chain(topic: str) -> Generator[Any, Any, tuple[str, int]]:
        yield f"About {topic}: "
        letter = yield regex("[ab]")
        yield "; "
        count = yield ask(int, max_tokens=2)
        for _ in range(count % 2):
            yield "odd"
        return letter, count

    run = chain.run("x", model=model(json_vocabulary, "a; 7"))
    assert run.value == ("a", 7)
    assert run.text == "About x: a; 7odd"
    assert [outcome.text for outcome in run.outcomes] == ["a", "7"]
    events = list(chain.stream("x", model=model(json_vocabulary, "a; 7")))
    assert "".join(event.text for event in events if isinstance(event, Text)) == run.text
    assert next(event.written for event in events if isinstance(event, Text)) is False


def test_the_cache_is_kept_from_step_to_step(json_vocabulary: Vocabulary) -> None:
    fed = _Counted(json_vocabulary)

    @program(chat=False)
    def steps() -> Generator[Any, Any, None]:
        for _ in range(10):
            yield "some more text "
            yield regex("[a-z]{3}")

    run = steps.run(model=fed)
    assert fed.tokens_fed <= len(run.text) + 30  # at most one token per byte, twice only at boundaries


class _Counted(HashModel):
    """Counts the tokens that it is given."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        super().__init__(vocabulary)
        self.tokens_fed = 0

    def start(self) -> Any:
        session, counter = super().start(), self
        for name in ("extend", "extend_all"):
            inner = getattr(session, name)

            def counted(ids: Any, inner: Any = inner) -> Any:
                counter.tokens_fed += len(ids)
                return inner(ids)

            setattr(session, name, counted)
        return session


def test_forks_share_the_prefix_and_go_their_own_ways(json_vocabulary: Vocabulary) -> None:
    @program(chat=False, sampler=Multinomial())
    def branches() -> Generator[Any, Any, tuple[list[str], str]]:
        yield "prefix "
        made = yield fork(3)
        found = []
        for branch in made:
            yield branch.say(f"{branch.index}: ")
            found.append((yield branch.ask(regex("[a-z]{4}"))))
        yield made[1]
        rest = yield regex("[0-9]")
        return found, rest

    run = branches.run(model=model(json_vocabulary))
    found, rest = run.value
    assert len(set(found)) == 3
    assert run.text == f"prefix 1: {found[1]}{rest}"


class _Chat(HashModel):
    """Encodes turns in its own way, and records the prompts."""

    def __init__(self, vocabulary: Vocabulary, **settings: Any) -> None:
        super().__init__(vocabulary, **settings)
        self.prompts: list[str] = []

    def encode_prompt(self, prompt: Any, /, *, chat: bool = True) -> list[int]:
        if not isinstance(prompt, str):
            prompt = "".join(f"<{turn['role']}>{turn['content']}" for turn in prompt) + "<assistant>"
        elif chat:
            prompt = f"<user>{prompt}<assistant>"
        self.prompts.append(prompt)
        return super().encode_prompt(prompt, chat=False)


def test_turns_of_a_chat(json_vocabulary: Vocabulary) -> None:
    @program(system="Be brief.")
    def talk() -> Generator[Any, Any, str]:
        yield "One?"
        first = yield regex("[a-c]")
        yield " and "
        yield regex("[d-f]")
        yield user("Two?")
        yield assistant("Well, ")
        yield regex("[x-z]")
        yield system("End.")
        return str(first)

    chat = _Chat(json_vocabulary)
    run = talk.run(model=chat)
    a, b, c = (outcome.text for outcome in run.outcomes)
    assert chat.prompts == [
        "<system>Be brief.<user>One?<assistant>",
        " and ",
        f"<system>Be brief.<user>One?<assistant>{a} and {b}<user>Two?<assistant>",
        "Well, ",
    ]
    assert c in "xyz"


def test_programs_call_programs_with_the_same_model(json_vocabulary: Vocabulary) -> None:
    @program
    def inner() -> Literal["p", "q"]:
        """Inner."""

    @program
    def outer() -> Generator[Any, Any, str]:
        yield "x"
        yield regex("[ab]")
        return inner()

    assert outer(model=model(json_vocabulary, "q")) == "q"


def test_the_default_model_is_loaded_once(json_vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch) -> None:
    import structgen.models
    import structgen.program.definition as home

    loaded: list[int] = []

    def load_model() -> HashModel:
        loaded.append(1)
        return model(json_vocabulary, ADA)

    monkeypatch.setattr(structgen.models, "load_model", load_model)
    monkeypatch.setattr(home, "_default", [])
    assert extract("x") == extract("y") == Person(name="Ada", age=36)
    assert loaded == [1]


def test_the_same_seed_gives_the_same_value(json_vocabulary: Vocabulary) -> None:
    sampler = Multinomial()
    runs = [extract.run("x", model=model(json_vocabulary), sampler=sampler, seed=seed).text for seed in (1, 1, 2)]
    assert runs[0] == runs[1] != runs[2]


def test_a_program_says_what_generate_says(json_vocabulary: Vocabulary) -> None:
    lm = model(json_vocabulary, seed=6)
    run = extract.run("x", model=lm, sampler=Multinomial(), seed=9, max_tokens=50)
    plain = structgen.generate(
        lm, extract.prompt("x"), extract.answer.grammar, sampler=Multinomial(), seed=9, max_tokens=50
    )
    assert run.outcomes[0].result.tokens == plain.tokens


def test_awaiting_and_cancelling(json_vocabulary: Vocabulary) -> None:
    async def work() -> None:
        assert await extract.aio("x", model=model(json_vocabulary, ADA)) == Person(name="Ada", age=36)
        names = [
            event.name
            async for event in extract.astream("x", model=model(json_vocabulary, ADA))
            if event.kind == "field_final"
        ]
        assert names == ["name", "age"]
        slow = _Slow(json_vocabulary)
        task = asyncio.create_task(extract.aio("x", model=slow, drafter=None))
        assert await asyncio.to_thread(slow.reached.wait, 10)
        task.cancel()
        slow.go.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert slow.closed.wait(10)
        assert slow.forwards < 30
        with pytest.raises(BudgetError):
            await extract.aio("x", model=model(json_vocabulary), max_tokens=1)

    asyncio.run(work())


class _Slow(HashModel):
    """Waits in its third forward pass until it is released."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        super().__init__(vocabulary)
        self.reached, self.go, self.closed = threading.Event(), threading.Event(), threading.Event()
        self.forwards = 0

    def start(self) -> Any:
        session, outer = super().start(), self
        extend, close = session.extend, session.close

        def slow(ids: Any) -> Any:
            outer.forwards += 1
            if outer.forwards == 3:
                outer.reached.set()
                outer.go.wait(10)
            return extend(ids)

        def closing() -> None:
            outer.closed.set()
            close()

        session.extend, session.close = slow, closing  # type: ignore[method-assign]
        return session


def test_closing_a_stream_frees_the_cache(json_vocabulary: Vocabulary) -> None:
    slow = _Slow(json_vocabulary)
    slow.go.set()
    events = extract.stream("x", model=slow)
    next(events)
    events.close()
    assert slow.closed.is_set()


def test_methods(json_vocabulary: Vocabulary) -> None:
    class Shop:
        name = "Fish"

        @program(describe=False)
        def greet(self, who: str) -> Literal["hi", "yo"]:
            """{self.name}: greet {who}."""

    assert Shop().greet("Ada", model=model(json_vocabulary, "yo")) == "yo"


def nothing(text: str) -> None: ...


def test_wrong_programs_are_told_at_once() -> None:
    with pytest.raises(ProgramError, match="no return annotation"):

        @program
        def unannotated(text: str):  # type: ignore[no-untyped-def]
            """{text}"""

    with pytest.raises(ProgramError, match="names 'txt'"):

        @program
        def misspelt(text: str) -> int:
            """{txt}"""

    with pytest.raises(ProgramError, match="parameter 'model' is one that every program has"):

        @program
        def reserved(model: str) -> int:
            """{model}"""

    with pytest.raises(ProgramError, match="nothing to ask"):

        @program
        def silent(text: str) -> int: ...

    with pytest.raises(ProgramError, match="both a template and a body"):

        @program
        def both(text: str) -> str:
            """{text}"""
            return text * 2

    with pytest.raises(ProgramError, match="no plain function"):

        @program
        async def waiting(text: str) -> int:
            """{text}"""

    with pytest.raises(GrammarError, match=r"Iterator|generator"):

        @program
        def untypable(text: str) -> Iterator[Any] | type[int]:
            """{text}"""

    with pytest.raises(TypeError, match=r"unknown settings temperature; write sampler=sg\.Multinomial\(temperature="):
        program(temperature=2)(nothing)
    with pytest.raises(TypeError, match=r"unknown settings max_token; is 'max_tokens' meant\?"):
        program(max_token=2)(nothing)
    with pytest.raises(TypeError, match="unknown settings zzz; give settings among alternatives, canonical, chat,"):
        program(zzz=2)(nothing)


def test_wrong_calls(json_vocabulary: Vocabulary) -> None:
    with pytest.raises(ProgramError, match=r"missing a required argument: 'text'; call it as extract\(text\)$"):
        extract.stream()
    for name, remedy in (
        ("temperature", r"write sampler=sg\.Multinomial\(temperature=\.\.\.\)"),
        ("max_token", "is 'max_tokens' meant\\?"),
        ("texts", "is 'text' meant\\?"),
        ("zzz", r"call it as extract\(text\)"),
    ):
        with pytest.raises(ProgramError, match=f"unexpected keyword argument {name!r}; {remedy}$"):
            extract("x", **{name: 1})
    with pytest.raises(ArgumentError, match=r"map: expected a list of items; found the text .*write map\(\[text\]\)"):
        extract.map("abc", model=model(json_vocabulary))
    with pytest.raises(BudgetError, match="shortest output"):
        extract("x", model=model(json_vocabulary), max_tokens=3)
    with pytest.raises(GenerationError, match="exceed its context by"):
        extract("x" * 400, model=model(json_vocabulary, max_context=300))


@pytest.mark.parametrize("step", [None, 3, 2.5, {"a": 1}, b"bytes", object()])
def test_steps_that_are_none(json_vocabulary: Vocabulary, step: object) -> None:
    closed = []

    @program
    def wrong() -> Generator[Any, Any, None]:
        try:
            yield "x"
            yield step
        finally:
            closed.append(True)

    with pytest.raises(ProgramError, match="it yields"):
        wrong(model=model(json_vocabulary))
    assert closed


def test_asking_before_anything_was_said(json_vocabulary: Vocabulary) -> None:
    @program
    def mute() -> Generator[Any, Any, None]:
        yield int

    with pytest.raises(ProgramError, match="before anything was said"):
        mute(model=model(json_vocabulary))


def test_turns_need_a_chat(json_vocabulary: Vocabulary) -> None:
    @program(chat=False)
    def turns() -> Generator[Any, Any, None]:
        yield user("x")

    with pytest.raises(ProgramError, match="takes its prompt as it is"):
        turns(model=model(json_vocabulary))


def test_a_function_with_a_body_returns_the_prompt(json_vocabulary: Vocabulary) -> None:
    @program(describe=False)
    def listed(items: list[str]) -> Literal["a", "b"]:
        return "Choose from " + ", ".join(items)  # type: ignore[return-value]

    assert listed.prompt(["x", "y"]) == "Choose from x, y"
    assert listed(["x"], model=model(json_vocabulary, "b")) == "b"

    @program
    def no_text() -> int:
        return 3

    with pytest.raises(ProgramError, match="returns int, not the prompt"):
        no_text(model=model(json_vocabulary))

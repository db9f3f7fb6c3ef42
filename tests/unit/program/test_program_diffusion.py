"""Programs on models that fill canvases: the programs of autoregressive models, unchanged."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Generator
from typing import Annotated, Any, Literal

import pytest
from pydantic import AfterValidator, BaseModel, Field, ValidationInfo, field_validator, model_validator

import structgen as sg
from structgen.decode.diffusion.canvas_run import Snapshot
from structgen.engine import Vocabulary
from structgen.errors import BudgetError, GenerationError, ProgramError, ValidationFailed
from structgen.models import HashModel
from structgen.models.diffusion import HashDiffusion
from structgen.program import Done, FieldFinal, ObjectFinal, Retracted, Text

EOS, MASK = 0, 262
VOCABULARY = Vocabulary(
    [b"", *(bytes([byte]) for byte in range(256)), b'{"', b'":"', b'","', b'":', b',"', b""],
    eos=[EOS],
    special={MASK: "<mask>"},
)


def model(writes: str | None = None, **settings: Any) -> HashDiffusion:
    return HashDiffusion(VOCABULARY, writes=writes, **settings)


class Person(BaseModel):
    name: str = Field(max_length=12, description="the first name")
    age: int = Field(ge=0, le=130)


@sg.program
def extract(text: str) -> Person:
    """Who is it? {text}"""


ADA = '{"name":"Ada","age":36}'


def test_a_program_returns_its_value() -> None:
    assert extract("Ada, 36", model=model(ADA)) == Person(name="Ada", age=36)


def test_the_same_program_runs_on_both_kinds_of_model() -> None:
    """The models prefer the same text; a canvas has no white space, and other outputs have a space."""
    canvas = extract.run("x", model=model(ADA))
    tokens = extract.run("x", model=HashModel(VOCABULARY, writes='{"name": "Ada", "age": 36}'))
    assert canvas.value == tokens.value
    assert (canvas.text, tokens.text) == (ADA, '{"name": "Ada", "age": 36}')


def test_a_run_tells_scores_and_costs() -> None:
    run = extract.run("Ada, 36", model=model(ADA))
    assert run.stats is not None
    assert 0 < run.stats.forwards < run.stats.tokens  # forced slots cost none
    assert run.stats.forced + run.stats.sampled == run.stats.tokens
    result = run.outcomes[0].result
    assert isinstance(result, sg.Result)
    assert result.canvas is not None
    for name, text in (("name", b'"Ada"'), ("age", b"36")):
        field = run.fields[name]
        assert result.data[field.start : field.end] == text
        assert field.probability is not None
        assert 0.9 < field.probability <= 1  # a preference of 16 nats against noise of 6
    assert json.loads(json.dumps(run.trace))["value"] == {"name": "Ada", "age": 36}


def test_events_come_as_on_other_models() -> None:
    events = list(extract.stream("x", model=model(ADA)))
    assert "".join(event.text for event in events if isinstance(event, Text)) == ADA
    assert [(event.name, event.value) for event in events if isinstance(event, FieldFinal)] == [
        ("name", "Ada"),
        ("age", 36),
    ]
    assert isinstance(events[-2], ObjectFinal)
    assert isinstance(events[-1], Done)


def test_a_generator_program_is_a_conversation_of_canvases() -> None:
    """Every answer is a canvas after the whole conversation, which the next canvas reads."""
    heard: list[list[int]] = []

    @sg.program(system="Be brief.")
    def talk() -> Generator[Any, Any, Any]:
        yield "Is it?"
        first = yield Literal["yes", "no"]
        yield " and "
        second = yield sg.regex("[a-c]{2}")
        yield sg.program.user("Sure?")
        third = yield bool
        return first, second, third

    run = talk.run(model=_listening(heard))
    first, second, third = run.value
    assert first in ("yes", "no")
    assert isinstance(third, bool)
    assert len(heard) == 3
    # The earlier answer is in the prompt with the very tokens of its canvas.
    said = run.outcomes[0].result
    assert isinstance(said, sg.Result)
    end = VOCABULARY.tokenize(" and ")
    assert heard[1] == [*heard[0], *said.tokens, *end]
    spelled = b"".join(VOCABULARY.tokens[token] for token in heard[2]).decode()
    assert spelled == f"Be brief.\nIs it?\n{first} and {second}\nSure?"
    assert run.text == f"Be brief.Is it?{first} and {second}Sure?{json.dumps(third)}"


def _listening(heard: list[list[int]]) -> Any:
    inner = model()

    class Listening:
        name, vocabulary, mask_token, max_context = inner.name, inner.vocabulary, inner.mask_token, inner.max_context
        encode_prompt = staticmethod(inner.encode_prompt)

        def start(self, prompt_ids: Any, /) -> Any:
            heard.append(list(prompt_ids))
            return inner.start(prompt_ids)

    return Listening()


def test_forks_share_what_was_said() -> None:
    @sg.program
    def branches() -> Generator[Any, Any, Any]:
        yield "Say "
        left, right = yield sg.program.fork(2)
        yield left.say("left")
        yield right.say("right")
        first = yield left.ask(sg.regex("[a-z]{3}"))
        second = yield right.ask(sg.regex("[a-z]{3}"))
        yield left
        third = yield sg.regex("[a-z]{3}")
        return first, second, third

    run = branches.run(model=model())
    first, second, third = run.value
    assert first != second  # the model gets another prompt; noise of 26^3 texts
    assert run.text == f"Say left{first}{third}"


def test_without_chat_all_text_is_one() -> None:
    @sg.program(chat=False)
    def complete() -> Generator[Any, Any, Any]:
        yield "a"
        return (yield sg.regex("b{2}"))

    assert complete(model=model()) == "bb"
    with pytest.raises(ProgramError, match="chat=False"):
        sg.program(chat=False)(_turns)(model=model())


def _turns() -> Generator[Any, Any, Any]:
    yield sg.program.user("a")


def test_each_answer_has_a_stream_of_its_own() -> None:
    """With sampling, answers to the same prompt differ, and the same seed gives the same run."""

    @sg.program(sampler=sg.diffusion.Posterior())
    def twice() -> Generator[Any, Any, Any]:
        yield "?"
        first = yield sg.regex("[a-z]{4}")
        yield sg.program.user("?")
        second = yield sg.regex("[a-z]{4}")
        return first, second

    runs = [twice(model=model(context=0.0), seed=seed) for seed in (0, 0, 1)]
    assert runs[0] == runs[1] != runs[2]
    assert runs[0][0] != runs[0][1]


def odd(value: int) -> int:
    if value % 2 == 0:
        raise ValueError("it is even")
    return value


class Checked(BaseModel):
    name: str = Field(max_length=12)
    age: Annotated[int, AfterValidator(odd)] = Field(ge=0, le=130)
    member: bool


@sg.program
def check(text: str) -> Checked:
    """{text}"""


def test_a_refused_value_is_filled_in_anew_after_what_stands() -> None:
    """The text before the value stays, and the value is the most probable one that passes."""
    events = list(check.stream("x", model=model('{"name":"Ada","age":36,"member":true}')))
    retracted = [event for event in events if isinstance(event, Retracted)]
    assert retracted
    assert all((event.length, event.path) == (len('{"name":"Ada","age":'), ("age",)) for event in retracted)
    assert all(event.partial.name == "Ada" for event in retracted)
    run = events[-1].run  # type: ignore[union-attr]
    assert run.value.name == "Ada"
    assert run.value.age % 2 == 1
    tried = [each.text for each in run.outcomes[0].violations]
    assert tried[0] == "36"
    assert len(set(tried)) == len(tried)
    assert all(int(text) % 2 == 0 for text in tried)
    text = ""
    for event in events:
        if isinstance(event, Text):
            text += event.text
        elif isinstance(event, Retracted):
            text = text[: event.length]
    assert text == run.text


def seven(text: str) -> str:
    if text != "7":
        raise ValueError("it is not 7")
    return text


def nothing(text: str) -> str:
    raise ValueError("nothing will do")


@sg.program(tries=8)
def lucky() -> Annotated[str, sg.regex("[0-7]"), AfterValidator(seven)]:  # type: ignore[type-arg]
    """Which?"""


@sg.program
def never() -> Annotated[str, sg.regex("[0-7]"), AfterValidator(nothing)]:  # type: ignore[type-arg]
    """Which?"""


def test_refused_values_do_not_come_again() -> None:
    """Of eight values only the last passes: with eight tries it is always found."""
    for seed in range(8):
        run = lucky.run(model=model(seed=seed), sampler=sg.diffusion.Posterior(), seed=seed)
        tried = [each.text for each in run.outcomes[0].violations]
        assert run.value == "7"
        assert len(set(tried)) == len(tried)


@pytest.mark.parametrize(("tries", "found"), [(3, 3), (20, 8)])
def test_a_language_of_which_all_is_refused_fails(tries: int, found: int) -> None:
    """The error says what was tried: as many values as allowed, or all of them."""
    with pytest.raises(ValidationFailed, match=f"refuse all {found} values") as caught:
        never(model=model(), tries=tries)
    assert len(set(caught.value.violations)) == found


class Big(BaseModel):
    n: Literal[36, 41, 360]
    last: bool

    @field_validator("n")
    @classmethod
    def of_hundreds(cls, value: int) -> int:
        if value < 100:
            raise ValueError("it is too small")
        return value


@sg.program
def big() -> Big:
    """How many?"""


def test_a_number_is_refused_and_not_what_begins_with_it() -> None:
    """36 is preferred and refused; 360, which has the same prefix, is not."""
    run = big.run(model=model('{"n":36,"last":true}'))
    assert run.outcomes[0].violations[0].text == "36"
    assert run.value.n == 360


class Span(BaseModel):
    start: int = Field(ge=0, le=9)
    end: int = Field(ge=0, le=9)

    @field_validator("end")
    @classmethod
    def after(cls, value: int, info: ValidationInfo) -> int:
        if value <= info.data["start"]:
            raise ValueError("it ends before it begins")
        return value

    @model_validator(mode="after")
    def short(self) -> Span:
        if self.end - self.start > 2:
            raise ValueError("it is too long")
        return self


@sg.program(tries=60)
def span() -> Span:
    """When?"""


def test_checks_of_the_whole_see_all_fields() -> None:
    for seed in range(3):
        found = span.run(model=model(seed=seed), sampler=sg.diffusion.Posterior(), seed=seed).value
        assert 0 < found.end - found.start <= 2


class Tree(BaseModel):
    label: Literal["a", "b"]
    below: list[Tree] = Field(default=[], max_length=2)

    @field_validator("label")
    @classmethod
    def of_leaves(cls, value: str) -> str:
        if value == "a":
            raise ValueError("no a")
        return value


@sg.program(max_tokens=14, tries=40)
def tree(text: str) -> Tree:
    """{text}"""


def test_grammars_that_recur_are_sampled_anew() -> None:
    """Nothing can be excluded from them: sampling restarts, and the most probable canvas would come again."""
    want = '{"label":"b","below":[{"label":"b","below":[]}]}'
    assert tree("x", model=model(want), max_tokens=60) == Tree.model_validate_json(want)
    with pytest.raises(GenerationError, match=r"refuse '\"a\"', which cannot be left out .* recurs; .*Posterior"):
        tree("x", model=model('{"label":"a"}'))
    flat = sg.Unmasking(temperature=8.0)
    sampled = sg.diffusion.Posterior()
    found = [tree.run("x", model=model(seed=seed), sampler=sampled, unmasking=flat, seed=seed) for seed in range(6)]
    assert all("a" not in re.findall('"label":"(.)"', run.text) for run in found)
    refused = [each for run in found for each in run.outcomes[0].violations]
    assert refused  # otherwise nothing was resampled


class Line(BaseModel):
    item: Literal["tea", "cake"]
    count: int = Field(ge=1, le=9)


class Order(BaseModel):
    table: int | None = Field(default=None, ge=1, le=20)
    lines: list[Line] = Field(min_length=1, max_length=2)


def test_nested_structures() -> None:
    @sg.program
    def order(text: str) -> Order:
        """{text}"""

    text = '{"table":null,"lines":[{"item":"tea","count":2},{"item":"cake","count":1}]}'
    unmasking = sg.Unmasking(canvas=80, policy=sg.policies.Factor(2.0))
    run = order.run("two teas and a cake", model=model(text), unmasking=unmasking)
    assert run.value == Order.model_validate_json(text)
    assert set(run.fields) >= {"table", "lines[0].item", "lines[1].count"}


def test_captures() -> None:
    @sg.program
    def date() -> sg.regex("(?P<year>20[0-9]{2})-(?P<month>0[1-9])"):  # type: ignore[valid-type]
        """When?"""

    result = date.run(model=model("2024-05")).outcomes[0].result
    assert isinstance(result, sg.Result)
    assert result.captures == {"year": "2024", "month": "05"}


def test_extraction_and_its_evidence() -> None:
    document = "Ada, 36, lives here."
    assert sg.extract(Person, document, model=model(ADA)) == Person(name="Ada", age=36)
    run = sg.extract.run(Person, document, model=model(ADA), evidence=True)
    assert run.value.name == "Ada"
    assert [(each.text, each.spans) for each in run.evidence] == [("Ada", ((0, 3),))]


def test_many_items() -> None:
    found = extract.map(["a", "b", "c"], model=model(ADA), batch_size=2)
    assert [item.value for item in found] == [Person(name="Ada", age=36)] * 3


def test_in_threads() -> None:
    assert asyncio.run(extract.aio("x", model=model(ADA))) == Person(name="Ada", age=36)


def test_unmasking_says_how_canvases_are_filled() -> None:
    """Slots, policy, blocks and stream are set for each answer."""
    seen: list[Snapshot] = []
    unmasking = sg.Unmasking(canvas=24, policy=sg.policies.Static(per_step=6), block=12, stream=seen.append)
    run = extract.run("x", model=model(ADA), unmasking=unmasking)
    result = run.outcomes[0].result
    assert isinstance(result, sg.Result)
    assert result.canvas is not None
    assert (result.canvas.slots, result.canvas.policy, result.canvas.block) == (24, sg.policies.Static(per_step=6), 12)
    assert seen[-1].canvas.tolist() == list(result.canvas.tokens)
    assert sg.program(unmasking=unmasking)(_named)(model=model("ab")) == "ab"


def _named() -> Annotated[str, sg.regex("[ab]{2}")]:  # type: ignore[type-arg]
    """Which?"""


@pytest.mark.parametrize("settings", [{"canvas": 0}, {"block": 0}, {"canvas": 2.5}, {"temperature": 0.0}])
def test_settings_out_of_range_are_refused(settings: Any) -> None:
    with pytest.raises(ValueError, match=next(iter(settings))):
        sg.Unmasking(**settings)


def test_max_tokens_bounds_an_answer() -> None:
    @sg.program
    def word() -> Generator[Any, Any, Any]:
        yield "?"
        return (yield sg.program.ask(sg.regex("[a-z]{1,40}"), max_tokens=5))

    assert len(word(model=model())) <= 5
    with pytest.raises(BudgetError, match="max_tokens=6"):
        extract("x", model=model(ADA), max_tokens=6)


def test_smc_writes_answers() -> None:
    assert extract("x", model=model(ADA), sampler=sg.samplers.SMC(2), max_tokens=20) == Person(name="Ada", age=36)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"potentials": [lambda text: True]}, "potentials"),
        ({"alternatives": 3}, "alternatives"),
        ({"sampler": sg.Greedy()}, "Greedy is a sampler of models that write token by token"),
        ({"sampler": sg.samplers.Beam(2)}, "Beam is a sampler"),
    ],
)
def test_what_only_token_by_token_can_do_is_refused_by_name(settings: Any, words: str) -> None:
    with pytest.raises(ProgramError, match=words) as caught:
        extract("x", model=model(ADA), **settings)
    assert caught.value.remedy


def test_exact_quotations_are_refused_by_name() -> None:
    with pytest.raises(ProgramError, match=r"evidence='exact'.*evidence=True"):
        sg.extract(Person, "Ada, 36", model=model(ADA), evidence="exact")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"sampler": sg.diffusion.Dingo()}, "Dingo is for models that fill"),
        ({"unmasking": sg.Unmasking(canvas=9)}, "unmasking"),
    ],
)
def test_what_only_canvases_can_do_is_refused_on_other_models(settings: Any, words: str) -> None:
    with pytest.raises(ProgramError, match=words):
        extract("x", model=HashModel(VOCABULARY), **settings)


def test_programs_call_programs_on_the_same_model() -> None:
    @sg.program
    def outer() -> Generator[Any, Any, Any]:
        yield "Who?"
        yield Literal["Ada"]
        return extract("x")

    assert outer(model=model(ADA)) == Person(name="Ada", age=36)


def test_agents_call_tools() -> None:
    @sg.program.tool
    def double(number: int) -> int:
        """Double a number."""
        return 2 * number

    task = sg.program.agent([double], answer=bool, max_steps=1)
    answer = task("?", model=model('{"tool":"double","arguments":{"number":4}}'))
    assert [(call.tool, call.result) for call in answer.calls] == [("double", 8)]
    assert answer.is_forced

"""Thoughts before typed answers."""

from __future__ import annotations

import json
from collections.abc import Generator
from typing import Annotated, Any, Literal

import pytest
from pydantic import AfterValidator, BaseModel
from scripted_remote_model import Scripted

import structgen as sg
from structgen.engine import Vocabulary
from structgen.errors import BudgetError, GenerationError, ProgramError
from structgen.frontends.chat import families, load_family
from structgen.frontends.chat.family import family_of_tags
from structgen.models import HashModel
from structgen.models.diffusion import HashDiffusion
from structgen.program import Done, FieldFinal, Retracted, Text, Thought

BYTES = [b"", *(bytes([byte]) for byte in range(256))]
PLAIN = Vocabulary(BYTES, eos=[0])
TAGGED = Vocabulary([*BYTES, b"", b""], eos=[0], special={257: "<think>", 258: "</think>"})
ADA = '{"name": "Ada", "age": 36}'


class Person(BaseModel):
    name: str
    age: int


@sg.program(think=40)
def who(text: str) -> Person:
    """Who is it? {text}"""


class _Heard(HashModel):
    """Remembers the prompts of chats."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.prompts: list[Any] = []
        self.prompt_suffix = ""
        self.started: list[Any] = []

    def encode_prompt(self, prompt: Any, /, *, chat: bool = True) -> list[int]:
        if chat:
            self.prompts.append(prompt)
        return super().encode_prompt(prompt, chat=chat) + (
            [] if not (chat and self.prompt_suffix) else [self.vocabulary.token_id(self.prompt_suffix)]
        )

    def start(self) -> Any:
        self.started.append(super().start())
        return self.started[-1]


class _Tagging(_Heard):
    """Writes the closing tag as the special token, which is no text of the script."""

    def __init__(self, vocabulary: Vocabulary, writes: str) -> None:
        before, _, after = writes.removeprefix("<think>").partition("</think>")
        super().__init__(vocabulary, writes=before + after)
        self.closes_at = len(before.encode())

    def logits(self, state: int, matched: int) -> Any:
        row = super().logits(state, matched)
        if matched == self.closes_at:
            row[258] += 100
        return row


def _model(vocabulary: Vocabulary, writes: str) -> _Heard:
    return _Tagging(vocabulary, writes) if vocabulary is TAGGED else _Heard(vocabulary, writes=writes)


def test_the_value_stays_typed_and_the_thought_is_text() -> None:
    run = who.run("Ada", model=_Heard(PLAIN, writes=f"She is 36.\n</think>\n\n{ADA}"))
    assert run.value == Person(name="Ada", age=36)
    assert (run.thought, run.text) == ("She is 36.", ADA)
    (outcome,) = run.outcomes
    assert outcome.thought == "She is 36."
    assert set(run.fields) == {"", "name", "age"}
    assert who.run("Ada", model=_Heard(PLAIN, writes=ADA), think=0).thought is None


@pytest.mark.parametrize("vocabulary", [PLAIN, TAGGED], ids=["text", "tokens"])
@pytest.mark.parametrize("budget", [1, 2, 7, 30])
def test_a_thought_has_its_own_budget(vocabulary: Vocabulary, budget: int) -> None:
    """One byte is one token here, so bytes are counted; the answer's budget, exactly its length, is left alone."""
    lm = HashModel(vocabulary, writes="a" * 90 + "</think>")
    run = who.run("Ada", model=lm, think=budget, max_tokens=len('{"name": "", "age": 0}'))
    assert run.thought == "a" * budget
    assert run.outcomes[0].thinking is not None
    assert run.outcomes[0].thinking.result.finish_reason == "length"
    assert len(run.text) == len('{"name": "", "age": 0}')


def test_costs_and_traces_hold_the_thought() -> None:
    run = who.run("Ada", model=HashModel(PLAIN, writes=f"Hm.\n</think>\n\n{ADA}"))
    thinking, answer = run.outcomes[0].thinking, run.outcomes[0].result
    assert thinking is not None
    assert isinstance(thinking.result, sg.Result)
    assert isinstance(answer, sg.Result)
    assert run.stats is not None
    assert run.stats.tokens == len(thinking.result.tokens) + len(answer.tokens)
    assert run.logprob == answer.logprob
    (trace,) = json.loads(json.dumps(run.trace))["answers"]
    assert trace["thought"]["text"] == "Hm."
    assert [step["token"] for step in trace["thought"]["steps"][: len(thinking.result.tokens)]] == [
        *thinking.result.tokens
    ]


@pytest.mark.parametrize("vocabulary", [PLAIN, TAGGED], ids=["text", "tokens"])
@pytest.mark.parametrize("thought", ["one </thin two\n</ </think", "", "é\n\n", "<think>"])
def test_events_tell_the_thought_from_the_output(vocabulary: Vocabulary, thought: str) -> None:
    """Tags and prefixes of tags in the thought are told apart; the output alone is text."""
    lm = _model(vocabulary, f"<think>\n{thought}\n</think>\n\n{ADA}")
    events = list(who.stream("Ada", model=lm))
    done = events[-1]
    assert isinstance(done, Done)
    assert "".join(event.text for event in events if isinstance(event, Thought)) == done.run.thought == thought
    assert "".join(event.text for event in events if isinstance(event, Text)) == done.run.text == ADA
    kinds = [event.kind for event in events]
    assert "thought" not in kinds[kinds.index("text") :]
    assert [event.name for event in events if isinstance(event, FieldFinal)] == ["name", "age"]


def test_texts_say_in_which_field_they_are() -> None:
    events = who.stream("Ada", model=HashModel(PLAIN, writes=ADA), think=0)
    pieces: dict[str | None, str] = {}
    for event in events:
        if isinstance(event, Text):
            pieces[event.name] = pieces.get(event.name, "") + event.text
    assert pieces["name"].endswith('Ada"')
    assert pieces["age"].endswith("36")


def test_models_with_tags_are_not_asked_and_others_are() -> None:
    for vocabulary, is_asked in ((TAGGED, False), (PLAIN, True)):
        lm = _model(vocabulary, f"<think>\nHm.\n</think>\n\n{ADA}")
        who.run("Ada", model=lm)
        assert ["<think>" in prompt for prompt in lm.prompts] == [is_asked]
        assert lm.prompts[0].startswith(who.prompt("Ada"))


def test_a_template_may_open_the_thought() -> None:
    lm = _model(TAGGED, f"Hm.\n</think>\n\n{ADA}")
    lm.prompt_suffix = "<think>"
    run = who.run("Ada", model=lm)
    assert run.outcomes[0].thinking is not None
    result = run.outcomes[0].thinking.result
    assert isinstance(result, sg.Result)
    assert (run.thought, result.spelled) == ("Hm.", "Hm.\n</think>\n\n")


@sg.program(think=20)
def two(topic: str) -> Generator[Any, Any, Any]:
    yield f"About {topic}:"
    first = yield Literal["yes", "no"]
    yield sg.program.user("Sure?")
    second = yield sg.program.ask(Literal["sure", "unsure"], think=0)
    return first, second


def test_later_turns_do_not_repeat_the_thought() -> None:
    lm = _Heard(PLAIN, writes="Hm.\n</think>\n\nyes")
    run = two.run("it", model=lm)
    assert run.value[0] == "yes"
    assert [outcome.thought for outcome in run.outcomes] == ["Hm.", None]
    assert run.thought is None
    assert lm.prompts[1] == [
        {"role": "user", "content": "About it:"},
        {"role": "assistant", "content": "yes"},
        {"role": "user", "content": "Sure?"},
    ]
    assert "Hm" not in run.text


def odd(value: int) -> int:
    if value % 2 == 0:
        raise ValueError("even")
    return value


class Odd(BaseModel):
    number: Annotated[int, AfterValidator(odd)]


@sg.program(think=20)
def ask() -> Odd:
    """Which?"""


def test_refused_values_are_retracted_behind_the_thought() -> None:
    events = list(ask.stream(model=HashModel(PLAIN, writes='Hm.\n</think>\n\n{"number": 8}')))
    done, retracted = events[-1], [event for event in events if isinstance(event, Retracted)]
    assert isinstance(done, Done)
    assert done.run.value.number % 2 == 1
    assert done.run.thought == "Hm."
    assert retracted[0].path == ("number",)
    assert retracted[0].length < len('{"number": 8}')


def test_what_cannot_be_is_refused_before_the_first_pass() -> None:
    lm = _Heard(PLAIN, max_context=200)
    with pytest.raises(GenerationError, match="exceed its context"):
        who.run("Ada", model=lm, think=60, max_tokens=60)
    with pytest.raises(BudgetError):
        who.run("Ada", model=lm, think=5, max_tokens=3)
    with pytest.raises(ProgramError, match=r"SMC weighs whole outputs.*leave think out"):
        who.run("Ada", model=lm, sampler=sg.samplers.SMC())
    for wrong in (-1, True, 2.5):
        with pytest.raises(ProgramError, match="is no number of tokens"):
            who.run("Ada", model=lm, think=wrong)
    assert {session.forwards for session in lm.started} == {0}


def test_servers_are_asked_twice() -> None:
    server = Scripted("She says 36.", ADA)
    events = list(who.stream("Ada", model=server))
    done = events[-1]
    assert isinstance(done, Done)
    assert (done.run.value, done.run.thought) == (Person(name="Ada", age=36), "She says 36.")
    assert "".join(event.text for event in events if isinstance(event, Text)) == ADA
    first, second = server.prompts
    assert [turn["role"] for turn in second] == ["user", "assistant", "user"]
    assert first == second[:1]
    assert second[1]["content"] == "She says 36."


def test_a_server_that_thinks_nothing_is_not_told_to_go_on_thinking() -> None:
    server = Scripted(" ", ADA)
    assert who("Ada", model=server) == Person(name="Ada", age=36)
    (turn,) = server.prompts[1]
    assert turn["content"] == who.prompt("Ada")


def test_canvases_hold_a_thought_each() -> None:
    vocabulary = Vocabulary([*BYTES, b""], eos=[0], special={257: "<mask>"})
    run = who.run("Ada", model=HashDiffusion(vocabulary, writes='{"name":"Ada","age":36}'), think=6)
    assert run.value == Person(name="Ada", age=36)
    assert run.thought is not None
    assert len(run.thought.encode()) <= 6


def test_extraction_and_agents_think() -> None:
    run = sg.extract.run(Person, "Ada, 36", think=20, model=HashModel(PLAIN, writes=f"Hm.\n</think>\n\n{ADA}"))
    assert (run.value, run.thought) == (Person(name="Ada", age=36), "Hm.")
    lm = HashModel(PLAIN, writes='Hm.\n</think>\n\n{"answer": 3}')
    run_of_agent = sg.program.agent([sg.program.tool(name="f")(lambda: 1)], answer=int, think=9).run("How?", model=lm)
    assert (run_of_agent.value.answer, run_of_agent.thought) == (3, "Hm.")


@pytest.mark.parametrize("name", families())
def test_families_are_known_by_their_tags(name: str) -> None:
    """The tags of a family lead to the form of its thoughts; of two with the same tags, to one of them."""
    family = load_family(name)
    found = family_of_tags(set(family.tokens).__contains__)
    if family.thought is None:
        assert found is None
    else:
        assert found is not None
        assert set(found.tokens) == set(family.tokens)

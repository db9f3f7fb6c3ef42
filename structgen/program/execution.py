"""How a program runs: its steps one after the other, each telling its events."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, final, get_origin

import numpy as np

from structgen.decode import AnyPotential, AnySampler, Greedy
from structgen.engine import compile
from structgen.errors import ProgramError
from structgen.grammar.nodes import Grammar
from structgen.program.answer import Answer, answer_of
from structgen.program.commands import Ask, Branch, Fork, InBranch, Turn
from structgen.program.conversation import Conversation
from structgen.program.events import Event, Text
from structgen.program.remote import Dialogue, RemoteModel, RemoteWriting
from structgen.program.run import Outcome
from structgen.program.writing import Writing

if TYPE_CHECKING:
    from structgen.grammar.limits import Limits
    from structgen.models.protocol import LanguageModel

__all__ = ["Execution", "Settings", "current_model", "settings_with"]

current_model: ContextVar[LanguageModel | RemoteModel | None] = ContextVar("current_model", default=None)
"""The model of the program that is running, for those that it calls."""

_GREEDY: Final = Greedy()


@final
@dataclass(frozen=True, slots=True)
class Settings:
    """What holds for all answers of a program unless one says otherwise.

    Attributes:
        max_tokens: the most tokens of one answer.
        sampler: chooses tokens, or writes whole answers.
        potentials: what else answers have to fulfil, or are worth.
        seed: of the random numbers; each answer has a stream of its own.
        chat: whether turns are spelled by the model's chat template.
        tries: how often a field is drawn that its type's own validators refuse.
        describe: whether the prompt says how the answer is to be written.
        alternatives: how many other tokens the trace notes at each choice.
        marginals: whether all values of fields that have few are weighed: see ``FieldScore.marginals``.
        limits: for compiling.
    """

    max_tokens: int = 256
    sampler: AnySampler = _GREEDY
    potentials: Sequence[AnyPotential] = ()
    seed: int = 0
    chat: bool = True
    tries: int = 8
    describe: bool = True
    alternatives: int = 0
    marginals: bool = False
    limits: Limits | None = None


@final
class Execution:
    """A program that runs: its conversation, and what the model has answered.

    Args:
        model: the language model, here or behind a server.
        settings: for all answers.
        subject: what messages call the program.
    """

    def __init__(self, model: LanguageModel | RemoteModel, settings: Settings, subject: str) -> None:
        self._model = model
        self._settings = settings
        self._subject = subject
        self._conversation: Conversation | Dialogue = (
            Dialogue(model, chat=settings.chat)
            if isinstance(model, RemoteModel)
            else Conversation(model, chat=settings.chat)
        )
        self._open = [self._conversation]
        self.outcomes: list[Outcome] = []

    @property
    def transcript(self) -> str:
        """All text so far, of the branch in which the program is."""
        return self._conversation.transcript

    def close(self) -> None:
        """Free all caches."""
        for conversation in self._open:
            conversation.close()

    def open_with(self, system: str) -> None:
        """Begin with a turn of the system."""
        self._conversation.turn("system", system)
        self._conversation.turn("user", "")

    def ask_once(self, prompt: str, answer: Answer) -> Iterator[Event]:
        """Run a program that is one prompt and one answer."""
        self._conversation.say(prompt)
        yield from self._write(self._conversation, answer, Ask(answer.annotation))

    def follow(self, steps: Generator[Any, Any, Any]) -> Generator[Event, None, Any]:
        """Run a generator program; the value is what it returns.

        Raises:
            ProgramError: it yields something that is no step.
        """
        sent: Any = None
        try:
            while True:
                token = current_model.set(self._model)
                try:
                    step = steps.send(sent)
                except StopIteration as stop:
                    return stop.value
                finally:
                    current_model.reset(token)
                sent = yield from self._take(step)
        finally:
            steps.close()

    def _take(self, step: Any) -> Generator[Event, None, Any]:
        """Do one step; the value is what the program is sent."""
        if isinstance(step, Fork):
            return self._fork(step.count)
        if isinstance(step, Branch):
            self._conversation = step.conversation
            return None
        if isinstance(step, InBranch):
            return (yield from self._act(step.branch.conversation, step.what, told=False))
        return (yield from self._act(self._conversation, step, told=True))

    def _act(self, conversation: Conversation | Dialogue, step: Any, *, told: bool) -> Generator[Event, None, Any]:
        if isinstance(step, str):
            conversation.say(step)
            if told and step:
                yield Text(step, written=False)
            return None
        if isinstance(step, Turn):
            conversation.turn(step.role, step.text)
            if told and step.text:
                yield Text(step.text, written=False)
            return None
        request = step if isinstance(step, Ask) else Ask(step)
        if not _is_annotation(request.annotation):
            raise ProgramError(
                self._subject,
                f"it yields {_shown(request.annotation)}",
                evidence="a step is text, a turn, a type, a grammar, ask(...), fork(...) or a branch",
                remedy="yield one of these; a value of your own goes into text: yield str(value)",
            )
        events = self._write(conversation, answer_of(request.annotation), request)
        for event in events:
            if told:
                yield event
        return self.outcomes[-1].value

    def _fork(self, count: int) -> list[Branch]:
        self._conversation.read()  # once, not by each branch
        made = [Branch(index, self._conversation.fork()) for index in range(count)]
        self._open.extend(branch.conversation for branch in made)
        return made

    def _write(self, conversation: Conversation | Dialogue, answer: Answer, request: Ask) -> Iterator[Event]:
        settings = self._settings
        max_tokens = settings.max_tokens if request.max_tokens is None else request.max_tokens
        sampler = settings.sampler if request.sampler is None else request.sampler
        potentials = (*settings.potentials, *request.potentials)
        tries = settings.tries if request.tries is None else request.tries
        seed = _stream(settings.seed, len(self.outcomes))
        writing: Writing | RemoteWriting
        if isinstance(conversation, Dialogue):
            if answer.source is not None and answer.source.search_limit:
                raise ProgramError(
                    self._subject,
                    "the most probable quotations cannot be searched for on a server",
                    evidence="it does not tell how probable each token is",
                    remedy="take evidence=True, or a local model",
                )
            if potentials:
                raise ProgramError(
                    self._subject,
                    "potentials cannot be asked while a server writes",
                    evidence=f"there are {len(potentials)}",
                    remedy="check the value by its type's validators, or take a local model",
                )
            writing = RemoteWriting(
                conversation.model,
                conversation.prompt(),
                answer,
                max_tokens=max_tokens,
                sampler=sampler,
                seed=seed,
                tries=tries,
                limits=settings.limits,
            )
        else:
            writing = Writing(
                conversation.ready(),
                answer,
                compile(answer.grammar, conversation.model.vocabulary, limits=settings.limits),
                max_tokens=max_tokens,
                sampler=sampler,
                potentials=potentials,
                seed=seed,
                tries=tries,
                alternatives=settings.alternatives,
                marginals=settings.marginals,
            )
        yield from writing
        conversation.written(writing.outcome.text)
        self.outcomes.append(writing.outcome)


def _stream(seed: int, index: int) -> int:
    """The seed of the ``index``-th answer: the program's own for the first, so that it is that of ``generate``."""
    return seed if index == 0 else int(np.random.SeedSequence([seed, index]).generate_state(1, np.uint64)[0])


def _is_annotation(value: Any) -> bool:
    if isinstance(value, (Grammar, Answer, type)) or get_origin(value) is not None:
        return True
    return type(value).__module__ in ("typing", "typing_extensions")  # Any, aliases, new types


def _shown(value: Any) -> str:
    text = repr(value)
    return f"{text if len(text) <= 60 else text[:57] + '...'} of type {type(value).__name__}"


def settings_with(settings: Settings, changes: dict[str, Any]) -> Settings:
    """The settings with those of ``changes`` that are not None."""
    return replace(settings, **{name: value for name, value in changes.items() if value is not None})

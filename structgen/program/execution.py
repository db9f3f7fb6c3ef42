"""Runs a program step by step and yields the events of each step."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Generator, Iterable, Iterator
from contextvars import ContextVar
from dataclasses import replace
from typing import Any, Final, TypeAlias, cast, final, get_origin

from structgen.decode import AnySampler, Greedy
from structgen.decode.diffusion.posterior import CanvasSampler
from structgen.decode.step.context import check_model
from structgen.engine import compile
from structgen.errors import AnswerCut, GrammarError, LimitExceeded, ProgramError, meant
from structgen.grammar.nodes import Grammar
from structgen.models.protocol import LanguageModel
from structgen.models.protocol.diffusion import DiffusionModel
from structgen.program.answer import Answer, answer_of
from structgen.program.backends import AnswerStream, ProgramSettings, seed_of_stream
from structgen.program.backends.canvas_answer import CanvasAnswerStream, CanvasConversation, canvas_sampler
from structgen.program.backends.remote_answer import RemoteAnswerStream, RemoteConversation, RemoteModel
from structgen.program.backends.token_answer import TokenAnswerStream
from structgen.program.command import AnyConversation, Ask, Branch, BranchCommand, ForkCommand, TurnCommand
from structgen.program.conversation import Conversation
from structgen.program.outcome import Outcome, Served, Thinking
from structgen.program.stream.event import Event, Retracted, Text
from structgen.program.thinking import think_in_tokens, think_on_a_canvas, think_remotely

__all__ = [
    "AnyModel",
    "Execution",
    "ProgramSettings",
    "call_remedy",
    "check_answering",
    "current_model",
    "refuse_unknown_settings",
    "settings_with",
]

AnyModel: TypeAlias = "LanguageModel | DiffusionModel | RemoteModel"
"""A model that answers a program: autoregressive, diffusion, or on a server."""

current_model: ContextVar[AnyModel | None] = ContextVar("current_model", default=None)
"""The model of the program that is running, for those that it calls."""

_GREEDY: Final = Greedy()
_UNMASKING: Final = ProgramSettings().unmasking
_MAX_DOUBLINGS: Final = 4
"""How often ``on_cut="continue"`` doubles a budget: up to 16 times ``max_tokens``."""


@final
class Execution:
    """A program that runs on a model of any kind: its conversation, and what the model has answered."""

    def __init__(self, model: AnyModel, settings: ProgramSettings, subject: str) -> None:
        self._model = model
        self._settings = settings
        self._subject = subject
        self._conversation: AnyConversation = _conversation_with(model, chat=settings.chat)
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
        if isinstance(step, ForkCommand):
            return self._fork(step.count)
        if isinstance(step, Branch):
            self._conversation = step.conversation
            return None
        if isinstance(step, BranchCommand):
            return (yield from self._act(step.branch.conversation, step.what, is_reported=False))
        return (yield from self._act(self._conversation, step, is_reported=True))

    def _act(self, conversation: AnyConversation, step: Any, *, is_reported: bool) -> Generator[Event, None, Any]:
        if isinstance(step, str):
            conversation.say(step)
            if is_reported and step:
                yield Text(step, written=False)
            return None
        if isinstance(step, TurnCommand):
            conversation.turn(step.role, step.text)
            if is_reported and step.text:
                yield Text(step.text, written=False)
            return None
        request = step if isinstance(step, Ask) else Ask(step)
        if not _is_annotation(request.annotation):
            raise ProgramError(
                self._subject,
                f"it yields {_describe_value(request.annotation)}",
                evidence="a step is text, a turn, a type, a grammar, ask(...), fork(...) or a branch",
                remedy="yield one of these; a value of your own goes into text: yield str(value)",
            )
        events = self._write(conversation, answer_of(request.annotation), request)
        for event in events:
            if is_reported:
                yield event
        return self.outcomes[-1].value

    def _fork(self, count: int) -> list[Branch]:
        self._conversation.read()  # once, not by each branch
        made = [Branch(index, self._conversation.fork()) for index in range(count)]
        self._open.extend(branch.conversation for branch in made)
        return made

    def _write(self, conversation: AnyConversation, answer: Answer, request: Ask) -> Iterator[Event]:
        """Let the model write an answer, and write it again with twice the budget as long as ``on_cut`` asks for that.

        With the same seed an answer begins as it did with a smaller budget, up to the cut.

        Raises:
            AnswerCut: the budget cut the answer, and it may not be larger.
        """
        settings = self._settings_of(request)
        answer = self._writable(conversation, answer, settings)
        thinking = yield from self._think(conversation, answer, settings)
        for doublings in range(_MAX_DOUBLINGS + 1):
            writing = self._writing(conversation, answer, settings)
            yield from writing
            outcome = replace(writing.outcome, thinking=thinking)
            tokens = () if isinstance(outcome.result, Served) else outcome.result.tokens
            if settings.on_cut == "mark" or outcome.result.finish_reason == "stop":
                break
            if settings.on_cut == "raise" or doublings == _MAX_DOUBLINGS:
                raise AnswerCut(settings.max_tokens, outcome)
            conversation.take_back(tokens)
            yield Retracted(0, (), f"the budget of {settings.max_tokens} tokens cut it")
            settings = replace(settings, max_tokens=2 * settings.max_tokens)
        conversation.written(outcome.text, tokens)
        self.outcomes.append(outcome)

    def _writable(self, conversation: AnyConversation, answer: Answer, settings: ProgramSettings) -> Answer:
        """The answer, or the one in its place where its quotations cannot be searched for or cannot be written.

        Another sampler than that of the most probable token is asked for its own samples.
        """
        source = answer.source
        if source is None or source.otherwise is None:
            return answer
        if not isinstance(conversation, Conversation) or not isinstance(settings.sampler, Greedy | None):
            return source.otherwise
        try:
            constraint = compile(answer.grammar, conversation.model.vocabulary, limits=settings.limits)
            is_short = constraint.matcher().completes_within(settings.max_tokens)
        except (GrammarError, LimitExceeded):
            is_short = False
        return answer if is_short else source.otherwise

    def _think(
        self, conversation: AnyConversation, answer: Answer, settings: ProgramSettings
    ) -> Generator[Event, None, Thinking | None]:
        """Let the model think before an answer, if it shall.

        Raises:
            ProgramError: ``think`` is no number of tokens.
        """
        if settings.think == 0:
            return None
        if isinstance(settings.think, bool) or not isinstance(settings.think, int) or settings.think < 0:
            raise ProgramError(
                self._subject, f"think={settings.think!r:.40} is no number of tokens", remedy="give 1 or more, or 0"
            )
        if isinstance(conversation, RemoteConversation):
            return (yield from think_remotely(conversation, settings, self._token_sampler(settings)))
        if isinstance(conversation, CanvasConversation):
            self._refuse_on_canvases(conversation.model, answer, settings)
            sampler = canvas_sampler(settings.sampler, conversation.model, self._subject)
            return (yield from think_on_a_canvas(conversation, settings, sampler, self._subject))
        constraint = compile(answer.grammar, conversation.model.vocabulary, limits=settings.limits)
        chooser = self._token_sampler(settings)
        return (yield from think_in_tokens(conversation, constraint, settings, chooser, self._subject))

    def _writing(self, conversation: AnyConversation, answer: Answer, settings: ProgramSettings) -> AnswerStream:
        if isinstance(conversation, RemoteConversation):
            return self._remote_writing(conversation, answer, settings)
        if isinstance(conversation, CanvasConversation):
            return self._canvas_writing(conversation, answer, settings)
        return self._token_writing(conversation, answer, settings)

    def _token_writing(
        self, conversation: Conversation, answer: Answer, settings: ProgramSettings
    ) -> TokenAnswerStream:
        context = conversation.ready()
        constraint = compile(answer.grammar, conversation.model.vocabulary, limits=settings.limits)
        return TokenAnswerStream(context, answer, constraint, settings, sampler=self._token_sampler(settings))

    def _canvas_writing(
        self, conversation: CanvasConversation, answer: Answer, settings: ProgramSettings
    ) -> CanvasAnswerStream:
        model = conversation.model
        self._refuse_on_canvases(model, answer, settings)
        prompt_ids = conversation.prompt_ids()
        sampler = canvas_sampler(settings.sampler, model, self._subject)
        return CanvasAnswerStream(model, prompt_ids, answer, settings, sampler=sampler)

    def _remote_writing(
        self, conversation: RemoteConversation, answer: Answer, settings: ProgramSettings
    ) -> RemoteAnswerStream:
        if answer.source is not None and answer.source.search_limit:
            raise ProgramError(
                self._subject,
                "the most probable quotations cannot be searched for on a server",
                evidence="it does not tell how probable each token is",
                remedy="take evidence=True, or a local model",
            )
        if settings.potentials:
            raise ProgramError(
                self._subject,
                "potentials cannot be evaluated while a server writes",
                evidence=f"there are {len(settings.potentials)}",
                remedy="check the value by its type's validators, or take a local model",
            )
        if settings.canonical:
            raise ProgramError(
                self._subject,
                "canonical=True is for models in this process",
                evidence="the server chooses the tokens",
                remedy="leave it out, or take a local model",
            )
        prompt = conversation.prompt()
        return RemoteAnswerStream(conversation.model, prompt, answer, settings, sampler=self._token_sampler(settings))

    def _refuse_on_canvases(self, model: DiffusionModel, answer: Answer, settings: ProgramSettings) -> None:
        """Refuse by name what only writing token by token can do."""
        refused = {
            "potentials": (bool(settings.potentials), "check the value by its type's validators"),
            "canonical": (settings.canonical, "leave it out: a canvas is not written from left to right"),
            "alternatives": (settings.alternatives > 0, "leave it out: FieldScore.probability tells how sure it is"),
            "evidence='exact'": (
                answer.source is not None and bool(answer.source.search_limit),
                "take evidence=True, whose quotations are the most probable ones of each canvas",
            ),
        }
        for name, (is_asked, remedy) in refused.items():
            if is_asked:
                raise ProgramError(
                    self._subject,
                    f"{name} is for models that write token by token",
                    evidence=f"model {model.name!r} fills canvases",
                    remedy=f"{remedy}, or take an autoregressive model",
                )

    def _token_sampler(self, settings: ProgramSettings) -> AnySampler:
        """The sampler of tokens or of whole outputs.

        Raises:
            ProgramError: it, or the unmasking, is one of canvases.
        """
        sampler = settings.sampler
        of_canvases = isinstance(sampler, CanvasSampler)
        if of_canvases or settings.unmasking != _UNMASKING:
            raise ProgramError(
                self._subject,
                f"{type(sampler).__name__ if of_canvases else 'unmasking'} is for models that fill canvases",
                evidence=f"model {self._model.name!r} writes token by token",
                remedy="leave it out, or take a diffusion model",
            )
        return _GREEDY if sampler is None else cast("AnySampler", sampler)

    def _settings_of(self, request: Ask) -> ProgramSettings:
        """Those of the next answer: what the request leaves open is as in all answers."""
        settings = self._settings
        return replace(
            settings,
            max_tokens=settings.max_tokens if request.max_tokens is None else request.max_tokens,
            sampler=settings.sampler if request.sampler is None else request.sampler,
            potentials=(*settings.potentials, *request.potentials),
            seed=seed_of_stream(settings.seed, len(self.outcomes)),
            tries=settings.tries if request.tries is None else request.tries,
            think=settings.think if request.think is None else request.think,
        )


def check_answering(model: object, subject: str) -> None:
    """Check that ``model`` can answer a program.

    Raises:
        ArgumentError: it is no model of any kind, for instance a name.
    """
    check_model(model, subject, kinds=(LanguageModel, DiffusionModel, RemoteModel))


def _conversation_with(model: AnyModel, *, chat: bool) -> AnyConversation:
    if isinstance(model, RemoteModel):
        return RemoteConversation(model, chat=chat)
    if isinstance(model, DiffusionModel):
        return CanvasConversation(model, chat=chat)
    return Conversation(model, chat=chat)


def _is_annotation(value: Any) -> bool:
    if isinstance(value, (Grammar, Answer, type)) or get_origin(value) is not None:
        return True
    return type(value).__module__ in ("typing", "typing_extensions")  # Any, aliases, new types


def _describe_value(value: Any) -> str:
    text = repr(value)
    return f"{text if len(text) <= 60 else text[:57] + '...'} of type {type(value).__name__}"


def refuse_unknown_settings(subject: str, settings: dict[str, Any], known: set[str]) -> None:
    """Refuse settings that are neither ``system`` nor in ``known``.

    Raises:
        TypeError: there are such.
    """
    unknown = sorted(settings.keys() - known)
    if unknown:
        names = sorted(known | {"system"})
        remedy = _setting_meant(unknown, names) or f"give settings among {', '.join(names)}"
        raise TypeError(f"{subject}: unknown settings {', '.join(unknown)}; {remedy}")


def call_remedy(name: str, signature: inspect.Signature, given: Iterable[str], settings: Iterable[str]) -> str:
    """What to do about keywords and arguments that do not fit a program called ``name``.

    ``given`` are the keywords of the call that are no settings; ``settings`` are the settings that there are.
    """
    unknown = [each for each in given if each not in signature.parameters]
    bare = [each.replace(annotation=inspect.Parameter.empty) for each in signature.parameters.values()]
    shown = signature.replace(parameters=bare, return_annotation=inspect.Signature.empty)
    return _setting_meant(unknown, [*signature.parameters, *settings]) or f"call it as {name}{shown}"


def _setting_meant(unknown: Iterable[str], known: Collection[str]) -> str:
    for name in unknown:
        if name in ("temperature", "top_k", "top_p", "min_p"):
            return f"write sampler=sg.Multinomial({name}=...)"
        if asked := meant(name, known):
            return asked
    return ""


def settings_with(settings: ProgramSettings, changes: dict[str, Any]) -> ProgramSettings:
    """The settings with those of ``changes`` that are not None; a drafter and a guard may be."""
    given = {name: value for name, value in changes.items() if value is not None or name in ("drafter", "guard")}
    return replace(settings, **given)

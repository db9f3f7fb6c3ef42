"""``@structgen.program``: functions that a language model answers."""

from __future__ import annotations

import functools
import inspect
import threading
import typing
import warnings
from collections.abc import AsyncIterator, Callable, Generator, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, Generic, ParamSpec, TypeVar, final, overload

from structgen.decode.step.background import awaited, streamed
from structgen.errors import CutWarning, GrammarError, ProgramError
from structgen.program.answer import Answer, answer_of
from structgen.program.backends import OnCut, ProgramSettings
from structgen.program.batch_map import MappedItems, map_items
from structgen.program.execution import (
    AnyModel,
    Execution,
    call_remedy,
    check_answering,
    current_model,
    refuse_unknown_settings,
    settings_with,
)
from structgen.program.outcome import Run
from structgen.program.prompt import Style, Template, description_of, has_empty_body
from structgen.program.stream.event import Done, Event
from structgen.program.stream.guard import Guard
from structgen.travel import ByName

if TYPE_CHECKING:
    from structgen.decode import AnyCanvasSampler, AnyDrafter, AnyPotential, AnySampler
    from structgen.decode.diffusion.commit_policy import Unmasking
    from structgen.grammar.limits import Limits
    from structgen.models.protocol import LanguageModel, Progress

__all__ = ["Program", "program"]

Parameters = ParamSpec("Parameters")
Value = TypeVar("Value")

_RESERVED: Final = (
    "model",
    "max_tokens",
    "sampler",
    "potentials",
    "seed",
    "drafter",
    "tries",
    "alternatives",
    "marginals",
    "unmasking",
    "think",
    "on_cut",
    "guard",
    "canonical",
)


@final
class Program(ByName, Generic[Parameters, Value]):
    """A function that a language model answers; made by ``structgen.program``.

    Calling it returns the value.  Besides its own arguments every call takes

    * ``model``: the language model, a diffusion model, or one on a server (``integrations.openai_server.remote``); by
      default that of the program that calls it, else ``structgen.load_model()``;
    * ``max_tokens``, ``sampler``, ``potentials``, ``seed``, ``drafter``, ``tries``, ``alternatives``, ``marginals``,
      ``unmasking``, ``think``, ``on_cut``, ``guard``, ``canonical``: see ``program``, in place of the program's own
      settings.

    Attributes:
        function: the function that was decorated.
        name: what messages and traces call it.
        settings: what holds unless a call says otherwise.
        system: the turn of the system before all others; None if there is none.
    """

    def __init__(
        self, function: Callable[Parameters, Any], settings: ProgramSettings, *, system: str | None = None
    ) -> None:
        functools.update_wrapper(self, function)
        self.function = function
        self.name: str = getattr(function, "__qualname__", type(function).__name__)
        self.settings = settings
        self._subject = f"program {self.name}"
        self.system = system
        self._signature = _signature(function, self._subject)
        for name in _RESERVED:
            if name in self._signature.parameters:
                raise ProgramError(
                    self._subject,
                    f"its parameter {name!r} is one that every program has",
                    evidence=f"reserved are {', '.join(_RESERVED)}",
                    remedy="give it another name",
                )
        self._is_generator = inspect.isgeneratorfunction(function)
        docstring = inspect.getdoc(function)
        self._template: Template | None = None
        self._descriptions: dict[Style | bool, str] = {}
        if self._is_generator:
            return
        empty = has_empty_body(function)
        if docstring and not empty:
            raise ProgramError(
                self._subject,
                "it has both a template and a body",
                remedy="leave the body empty, yield the steps, or return the prompt and drop the docstring",
            )
        if docstring:
            self._template = Template.parse(function.__doc__ or "", self._signature.parameters, subject=self._subject)
        elif empty:
            raise ProgramError(
                self._subject,
                "it has nothing to ask",
                remedy="write the prompt as its docstring, return it, or yield the steps",
            )
        self.answer  # noqa: B018  an unusable annotation is an error here

    @functools.cached_property
    def answer(self) -> Answer:
        """The requested answer: the return annotation.

        Raises:
            ProgramError: there is none, or it can't be resolved.
            GrammarError: it is no type that can be written, see ``docs/guides/programs.md``.
        """
        if self._is_generator:
            raise ProgramError(self._subject, "it yields its steps, so it has no single answer")
        annotation = _return_annotation(self.function, self._signature, self._subject)
        try:
            return answer_of(annotation)
        except GrammarError as error:
            error.add_note(f"in the return annotation of {self._subject}")
            raise

    def prompt(self, *args: Parameters.args, **kwargs: Parameters.kwargs) -> str:
        """Return the prompt, without running the model.

        Raises:
            ProgramError: the arguments do not fit, or it yields its steps.
        """
        if self._is_generator:
            raise ProgramError(self._subject, "it yields its steps, so it has no single prompt")
        return self._prompt(self._bound(args, kwargs), describe=self.settings.describe)

    def __call__(self, *args: Any, **kwargs: Any) -> Value:
        """Return the value: see ``run``; warn where the budget cut it, since a value has no marks."""
        return _value(self.run(*args, **kwargs))

    def run(self, *args: Any, **kwargs: Any) -> Run[Value]:
        """Run the program and return a ``Run``: the value, and the outcomes of the model's answers.

        Raises:
            ProgramError: the arguments do not fit, or the program yields what is no step.
            ArgumentError: ``model`` is no model, such as a name; or a setting has the wrong type.
            ValidationFailed: the type's own validators refused every attempt.
            BudgetError: ``max_tokens`` is too small for any answer.
            GenerationError: the prompt is too long for the model; it says by how much.
            ModelError: the model can't be loaded, or refuses the prompt.
        """
        for event in self.stream(*args, **kwargs):
            if isinstance(event, Done):
                return event.run
        raise RuntimeError("a stream ended without its last event")

    def stream(self, *args: Any, **kwargs: Any) -> Generator[Event, None, None]:
        """Run the program and yield its events; the last is ``Done``.

        Close the generator to stop early: that frees the model's cache.

        Raises:
            ProgramError, ArgumentError: the arguments do not fit; immediately.  All else as ``run``, while events are
                read.
        """
        changes: dict[str, Any] = {name: kwargs.pop(name) for name in _RESERVED if name in kwargs}
        model = changes.pop("model", None)
        bound = self._bound(args, kwargs)
        if model is not None:
            check_answering(model, self._subject)
        return self._events(model, bound, settings_with(self.settings, changes))

    async def aio(self, *args: Any, **kwargs: Any) -> Value:
        """A call in a thread: ``value = await program.aio(...)``.  Cancelling stops it and frees the model's cache."""
        return _value(await self.arun(*args, **kwargs))

    async def arun(self, *args: Any, **kwargs: Any) -> Run[Value]:
        """``run`` in a thread: ``run = await program.arun(...)``.  Cancelling stops it and frees the model's cache."""
        last: Event | None = None
        async for event in self.astream(*args, **kwargs):
            last = event
        if not isinstance(last, Done):
            raise RuntimeError("a stream ended without its last event")
        return last.run

    def astream(self, *args: Any, **kwargs: Any) -> AsyncIterator[Event]:
        """``stream`` in a thread: ``async for event in program.astream(...)``.  Cancelling stops it."""
        return streamed(self.stream(*args, **kwargs))

    def map(
        self,
        items: Iterable[Any],
        *,
        batch_size: int = 8,
        model: AnyModel | None = None,
        progress: Progress | bool | None = None,
        **settings: Any,
    ) -> MappedItems[Value]:
        """Run the program for each item, ``batch_size`` at a time in one forward pass, without padding.

        An item that fails does not stop the others.  Ctrl-C stops all.

        Args:
            items: arguments: a mapping by name, a tuple by position, anything else as the only one.
            batch_size: how many run at a time, each in a thread of its own.
            model: as for a call.
            progress: True shows a bar on a terminal or in a notebook, False nothing; None a bar in a notebook, once it
                takes two seconds; or a callback, which is called with the number of finished items.
            **settings: as for a call.

        Returns:
            one ``Mapped`` for each item, in their order: ``[item.value for item in program.map(...)]``.

        Raises:
            ValueError: ``batch_size`` is less than 1.
            ArgumentError: ``model`` is no model, or ``items`` is a text.
        """
        if model is None:
            model = current_model.get() or _default_model()
        check_answering(model, self._subject)
        return map_items(self, items, model=model, batch_size=batch_size, progress=progress, settings=settings)

    async def amap(self, items: Iterable[Any], **settings: Any) -> MappedItems[Value]:
        """``map`` in threads: ``items = await program.amap(...)``.  Cancelling stops all of them."""
        return await awaited(self.map, items, **settings)

    def _events(
        self, model: AnyModel | None, bound: inspect.BoundArguments, settings: ProgramSettings
    ) -> Generator[Event, None, None]:
        if model is None:
            model = current_model.get() or _default_model()
        execution = Execution(model, settings, self._subject)
        try:
            if self.system is not None:
                execution.open_with(self.system)
            if self._is_generator:
                value = yield from execution.follow(self._steps(bound))
            else:
                yield from execution.ask_once(self._prompt(bound, describe=settings.describe), self.answer)
                value = execution.outcomes[-1].value
            yield Done(
                Run(
                    value=value,
                    text=execution.transcript if self._is_generator else execution.outcomes[-1].text,
                    outcomes=tuple(execution.outcomes),
                    program=self.name,
                    arguments=dict(bound.arguments),
                    model=model.name,
                    seed=settings.seed,
                )
            )
        finally:
            execution.close()

    def _bound(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> inspect.BoundArguments:
        try:
            bound = self._signature.bind(*args, **kwargs)
        except TypeError as error:
            raise ProgramError(
                self._subject,
                "the arguments do not fit",
                evidence=str(error),
                remedy=call_remedy(self.name, self._signature, kwargs, _RESERVED),
            ) from None
        bound.apply_defaults()
        return bound

    def _prompt(self, bound: inspect.BoundArguments, *, describe: Style | bool) -> str:
        if self._template is not None:
            text = self._template.fill(bound.arguments, subject=self._subject)
        else:
            text = self.function(*bound.args, **bound.kwargs)
            if not isinstance(text, str):
                raise ProgramError(
                    self._subject,
                    f"its body returns {type(text).__name__}, not the prompt",
                    remedy="return text, or yield the steps",
                )
        if describe not in self._descriptions:
            self._descriptions[describe] = description_of(self.answer, describe)
        described = self._descriptions[describe]
        return f"{text}\n\n{described}" if described else text

    def _steps(self, bound: inspect.BoundArguments) -> Generator[Any, Any, Any]:
        steps: Generator[Any, Any, Any] = self.function(*bound.args, **bound.kwargs)
        return steps

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        """Programs among the attributes of a class are methods."""
        return self if instance is None else functools.partial(self.__call__, instance)

    def __repr__(self) -> str:
        return f"<program {self.name}{self._signature}>"


@overload
def program(function: Callable[Parameters, Generator[Any, Any, Value]], /) -> Program[Parameters, Value]: ...
@overload
def program(function: Callable[Parameters, Value], /) -> Program[Parameters, Value]: ...
@overload
def program(
    *,
    system: str | None = None,
    max_tokens: int = 256,
    sampler: AnySampler | AnyCanvasSampler | None = None,
    potentials: Sequence[AnyPotential] = (),
    seed: int = 0,
    drafter: AnyDrafter = "auto",
    chat: bool = True,
    tries: int = 8,
    describe: Style | bool = True,
    alternatives: int = 0,
    marginals: bool = False,
    limits: Limits | None = None,
    unmasking: Unmasking | None = None,
    think: int = 0,
    on_cut: OnCut = "mark",
    guard: Guard | None = ...,
    canonical: bool = False,
) -> Callable[[Callable[Parameters, Value]], Program[Parameters, Value]]: ...
def program(function: Callable[..., Any] | None = None, /, **settings: Any) -> Any:
    """Make a program of a function: ``@program``, or ``@program(max_tokens=80)``.

    The docstring is the prompt, with the arguments in its braces, and the return annotation says what the model may
    answer.  A function with a body and no docstring returns the prompt.  A generator function yields its steps: text
    that is added, types and grammars that the model answers, turns, forks; its return value is the result.

    Args:
        function: what to decorate.
        **settings: for all calls.

            * ``system``: a turn of the system before all others.
            * ``max_tokens``: the most tokens of one answer, EOS not counted.
            * ``sampler``: chooses tokens, writes whole answers, or takes completions of canvases; by default the most
              probable tokens, or the most probable completions.
            * ``potentials``: further conditions or weights of answers.
            * ``seed``: of the sampler's random numbers; each answer has a stream of its own.
            * ``drafter``: proposes draft tokens, which the model verifies together: see ``structgen.generate``.
            * ``chat``: whether the prompt becomes turns of the model's chat template.
            * ``tries``: the maximum number of samples of a field that the type's own validators refuse.
            * ``describe``: whether the prompt ends with the form of the answer and the descriptions of its fields;
              ``"fields"``, ``"sketch"`` or ``"schema"`` says in which style.
            * ``alternatives``: how many other tokens the trace notes at each choice.
            * ``marginals``: whether to weigh all values of fields that have few: see ``FieldScore.marginals``.
            * ``limits``: for compiling.
            * ``unmasking``: how a diffusion model fills the canvas of each answer: ``structgen.Unmasking(...)``.
            * ``think``: the most tokens of a thought that the model writes before each answer; 0 for none.
            * ``on_cut``: what happens where the budget decides a part of an answer.  ``"mark"``: the answer has marks,
              see ``Run.cut_fields``, and a call that returns the value alone warns.  ``"raise"``: ``AnswerCut``.
              ``"continue"``: the answer is written again with twice the budget, up to 16 times ``max_tokens``; it is
              the same up to the cut.
            * ``guard``: ends lists and strings that repeat themselves: see ``structgen.program.Guard``; None for none.
            * ``canonical``: whether answers have only the tokens that the tokenizer writes for their text: see
              ``structgen.generate``; each answer is a text of its own.

    Raises:
        ProgramError: the template names no argument, there is no return annotation, or a parameter has a reserved name.
        GrammarError: the annotation can't be written; it is named.
    """
    system = settings.pop("system", None)
    refuse_unknown_settings("program", settings, set(ProgramSettings.__dataclass_fields__))
    held = settings_with(ProgramSettings(), settings)

    def decorate(function: Callable[..., Any]) -> Program[..., Any]:
        if not callable(function) or inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
            raise ProgramError(
                f"program {getattr(function, '__qualname__', function)!r}",
                "it is no plain function",
                remedy="decorate a def; to wait for it, call it by aio",
            )
        return Program(function, held, system=system)

    return decorate if function is None else decorate(function)


def _value(run: Run[Value]) -> Value:
    """The value of a run, with a warning if the budget cut it."""
    if run.finish_reason == "length":
        names = ", ".join(run.cut_fields[:8]) or "the end"
        warnings.warn(
            f"program {run.program}: the budget (max_tokens) cut the answer: {names}; allow more tokens, or take "
            "on_cut='continue' or 'raise'; run(...) tells which fields are cut",
            CutWarning,
            stacklevel=3,
        )
    return run.value


def _signature(function: Callable[..., Any], subject: str) -> inspect.Signature:
    try:
        return inspect.signature(function)
    except (TypeError, ValueError) as error:
        raise ProgramError(subject, "its parameters are not known", evidence=str(error)) from error


def _return_annotation(function: Callable[..., Any], signature: inspect.Signature, subject: str) -> Any:
    if signature.return_annotation is inspect.Signature.empty:
        raise ProgramError(
            subject,
            "it has no return annotation, so nothing says what the model may answer",
            remedy="annotate it, with str for any text",
        )
    if not isinstance(signature.return_annotation, str) and not hasattr(function, "__wrapped__"):
        return signature.return_annotation
    try:
        return typing.get_type_hints(function, include_extras=True)["return"]
    except (NameError, SyntaxError, TypeError) as error:
        raise ProgramError(
            subject,
            "its return annotation can't be resolved",
            evidence=str(error),
            remedy="define the type at the module's top before the program",
        ) from error


_default: list[LanguageModel] = []
_default_lock = threading.Lock()


def _default_model() -> LanguageModel:
    """``structgen.load_model()``, loaded once."""
    with _default_lock:
        if not _default:
            from structgen.models import load_model

            _default.append(load_model())
        return _default[0]

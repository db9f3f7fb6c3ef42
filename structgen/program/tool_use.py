"""``structgen.tool`` and ``structgen.agent``.

Python functions that a language model may call, and programs in which it calls them until it answers.
"""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Final, Generic, Literal, ParamSpec, TypeVar, Union, final, overload

from structgen.errors import GrammarError, ProgramError
from structgen.frontends.json_schema import json_schema
from structgen.frontends.python_types import schema_of_type
from structgen.grammar.nodes import Grammar
from structgen.markup import card, shortened, table
from structgen.program.answer import Answer, answer_of
from structgen.program.backends import ProgramSettings
from structgen.program.command import user
from structgen.program.definition import Program
from structgen.program.execution import refuse_unknown_settings, settings_with
from structgen.program.prompt import sketch_of
from structgen.program.stream.validation import problem_of
from structgen.program.tool_call import Call, CallRunner, result_message
from structgen.travel import ByName

if TYPE_CHECKING:
    from pydantic import BaseModel

__all__ = ["AgentResult", "Call", "Tool", "agent", "tool"]

Parameters = ParamSpec("Parameters")
Value = TypeVar("Value")

_UNNAMED: Final = {
    inspect.Parameter.VAR_POSITIONAL: "takes any number of arguments",
    inspect.Parameter.VAR_KEYWORD: "takes arguments of any name",
    inspect.Parameter.POSITIONAL_ONLY: "cannot be given by name",
}


@final
class Tool(ByName, Generic[Parameters, Value]):
    """A function that a language model may call; made by ``structgen.tool``.

    Calling it calls the function.

    Attributes:
        function: the function.
        name: what the model calls it.
        description: the text about it in the prompt.
        arguments: a pydantic model of the arguments, which is also what may be written.
    """

    def __init__(self, function: Callable[Parameters, Value], name: str, description: str) -> None:
        functools.update_wrapper(self, function)
        self.function = function
        self.name = name
        self.description = description
        self.arguments: type[BaseModel] = _model_of(function, name)

    def call(self, arguments: Mapping[str, Any]) -> Value:
        """Call the function with arguments by name, as JSON has them; those with a default may be left out.

        Of a coroutine function the value is to be awaited.

        Raises:
            ProgramError: an argument is missing, unknown or of another type; it is named.  What the function raises
                passes through.
        """
        from pydantic import ValidationError

        try:
            held = self.arguments.model_validate(dict(arguments))
        except ValidationError as error:
            raise ProgramError(
                f"tool {self.name}",
                "the arguments do not fit",
                evidence=problem_of(error),
                remedy=f"call it with {inspect.signature(self.function)}",
            ) from error
        return self.function(**self.given(held))  # type: ignore[call-arg]

    def given(self, arguments: BaseModel) -> dict[str, Any]:
        """The arguments that were written, by the names of the parameters."""
        return {
            held.alias or name: getattr(arguments, name)
            for name, held in self.arguments.model_fields.items()
            if name in arguments.model_fields_set
        }

    def __call__(self, *args: Parameters.args, **kwargs: Parameters.kwargs) -> Value:
        """Call the function."""
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<tool {self.name}{inspect.signature(self.function)}>"


@overload
def tool(function: Callable[Parameters, Value], /) -> Tool[Parameters, Value]: ...
@overload
def tool(
    *, name: str | None = None, description: str | None = None
) -> Callable[[Callable[Parameters, Value]], Tool[Parameters, Value]]: ...
def tool(
    function: Callable[..., Any] | None = None, /, *, name: str | None = None, description: str | None = None
) -> Any:
    """Make a tool of a function: ``@tool``, or ``@tool(name="search")``.

    Args:
        function: what to make a tool of, a coroutine function too; each parameter is annotated with a type that has a
            JSON form.  Descriptions of parameters are given as pydantic takes them, ``Annotated[int,
            Field(description="...")]``.
        name: what the model calls it; by default the name of the function.
        description: the text about it in the prompt; by default the docstring.

    Raises:
        ProgramError: it is no plain function, or a parameter cannot be given by name or has no annotation; the
            parameter is named.
        GrammarError: the annotation of a parameter has no JSON form; the parameter is named.
    """

    def decorate(function: Callable[..., Any]) -> Tool[..., Any]:
        own_name = getattr(function, "__name__", None) if name is None else name
        if not callable(function) or inspect.isclass(function) or own_name is None or not own_name.strip():
            raise ProgramError(
                f"tool {function!r}", "it is no function with a name", remedy="give a def, or tool(name=...)(function)"
            )
        if inspect.isasyncgenfunction(function):
            raise ProgramError(
                f"tool {own_name}", "it is an asynchronous generator", remedy="give a def or async def that returns"
            )
        text = inspect.getdoc(function) if description is None else description
        return Tool(function, own_name, text or "")

    return decorate if function is None else decorate(function)


def _model_of(function: Callable[..., Any], name: str) -> type[BaseModel]:
    """The arguments of a function as a model of pydantic, without others."""
    from pydantic import ConfigDict, Field, create_model

    fields: dict[str, Any] = {}
    for at, (parameter, annotation, is_required) in enumerate(_parameters(function, name)):
        # Names of its own, for those of parameters may mean something to pydantic.  The function knows its defaults.
        fields[f"argument_{at}"] = annotation, Field(... if is_required else None, alias=parameter)
    return create_model(name, __config__=ConfigDict(extra="forbid"), __doc__=None, **fields)


def _parameters(function: Callable[..., Any], name: str) -> list[tuple[str, Any, bool]]:
    """Name and type of each parameter, and whether it must be given."""
    subject = f"tool {name}"
    try:
        signature = inspect.signature(function)
        hints = typing.get_type_hints(_annotated(function), include_extras=True)
    except (TypeError, ValueError, NameError, SyntaxError) as error:
        raise ProgramError(
            subject,
            "its parameters are not known",
            evidence=str(error),
            remedy="define the types at the module's top, before the function",
        ) from error
    found = []
    for parameter in signature.parameters.values():
        if parameter.kind in _UNNAMED:
            raise ProgramError(
                f"{subject}, parameter {parameter.name!r}",
                f"it {_UNNAMED[parameter.kind]}, and a model gives arguments by name",
                remedy="give the function named parameters, or wrap it in one that has",
            )
        if parameter.name not in hints:
            raise ProgramError(
                f"{subject}, parameter {parameter.name!r}",
                "it has no annotation, so nothing says what the model may write",
                remedy="annotate it, with str for any text",
            )
        _check(f"{subject}, parameter {parameter.name!r}", hints[parameter.name])
        found.append((parameter.name, hints[parameter.name], parameter.default is inspect.Parameter.empty))
    return found


def _check(subject: str, annotation: Any) -> None:
    """Refuse a type that cannot be written as JSON."""
    if isinstance(annotation, Grammar):
        raise GrammarError(
            subject,
            "its annotation is a grammar, and not a type",
            remedy="write Annotated[str, ...] around the grammar",
        )
    try:
        json_schema(annotation)
    except GrammarError as error:
        raise GrammarError(
            subject,
            f"its annotation {inspect.formatannotation(annotation)} has no JSON form",
            evidence=error.evidence,
            remedy="annotate it with a type that pydantic can describe",
        ) from error


def _annotated(function: Any) -> Any:
    """What has the annotations: of an object that is called, its ``__call__``; of a partial, what it calls."""
    while isinstance(function, functools.partial):
        function = function.func
    return function if inspect.isroutine(function) else type(function).__call__


_INTRODUCTION: Final = "Use these tools as you need them, one call at a time; their results are shown to you."
_SEVERAL: Final = "Use these tools as you need them; their results are shown to you. Write up to {} calls at a time:"
_LAST_MESSAGE: Final = "No further calls are possible. Answer now."


@final
@dataclass(frozen=True, slots=True)
class AgentResult(Generic[Value]):
    """What an agent returns.

    Attributes:
        answer: the final answer.
        calls: what was called before, in order.
        is_forced: whether the number of calls was used up, so that the model could only answer.
    """

    answer: Value
    calls: tuple[Call, ...] = field(default=())
    is_forced: bool = False

    def _repr_html_(self) -> str:
        rows = [
            (each.tool, shortened(repr(each.arguments), 300), shortened(each.error or repr(each.result), 300))
            for each in self.calls
        ]
        answer = ("answer", shortened(repr(self.answer), 300), "forced: no calls were left" if self.is_forced else "")
        return card(f"Agent, {len(rows)} calls", table([*rows, answer]))


@overload
def agent(
    tools: Iterable[Tool[Any, Any] | Callable[..., Any]],
    *,
    answer: type[Value],
    max_steps: int = 8,
    parallel: int = 1,
    name: str = "agent",
    **settings: Any,
) -> Program[[str], AgentResult[Value]]: ...
@overload
def agent(
    tools: Iterable[Tool[Any, Any] | Callable[..., Any]],
    *,
    max_steps: int = 8,
    parallel: int = 1,
    name: str = "agent",
    **settings: Any,
) -> Program[[str], AgentResult[str]]: ...
def agent(
    tools: Iterable[Tool[Any, Any] | Callable[..., Any]],
    *,
    answer: Any = str,
    max_steps: int = 8,
    parallel: int = 1,
    name: str = "agent",
    **settings: Any,
) -> Program[[str], AgentResult[Any]]:
    """Make a program that lets the model call tools until it answers: ``agent([search])("Who was ...?")``.

    At each step the model writes a call, ``{"tool": "search", "arguments": {...}}``, or the answer,
    ``{"answer": ...}``; the grammar allows nothing else.  What a tool returns, or the exception that it raises, becomes
    a turn of the user.

    Args:
        tools: functions, or what ``structgen.tool`` makes of them.
        answer: type of the final answer; any that has a JSON form.
        max_steps: the most steps with calls.  After the last one only an answer is possible, and the result says so.
        parallel: the most calls of one step.  Above 1 a step is ``{"calls": [...]}``, and its calls run in parallel:
            functions in threads, coroutine functions in an event loop.
        name: what messages and traces call the program.
        **settings: all settings of ``structgen.program`` except ``chat`` and ``describe``; ``max_tokens`` holds for
            each step.

    Returns:
        a program of one argument, the task, whose value is an ``AgentResult``.

    Raises:
        ProgramError: there are no tools, two have one name, or one is no tool; or the answer is a grammar.
        GrammarError: the answer has no JSON form.
        ValueError: ``max_steps`` or ``parallel`` is less than 1.
    """
    for setting, count in (("max_steps", max_steps), ("parallel", parallel)):
        if count < 1:
            raise ValueError(f"agent: {setting} must be at least 1; found {count}")
    system = settings.pop("system", None)
    refuse_unknown_settings("agent", settings, set(ProgramSettings.__dataclass_fields__) - {"chat", "describe"})
    loop = _Loop(_by_name(tools, f"agent {name!r}"), answer, f"agent {name!r}", max_steps=max_steps, parallel=parallel)

    def steps(task: str) -> Generator[Any, Any, AgentResult[Any]]:
        return (yield from loop.steps(task))

    steps.__name__ = steps.__qualname__ = name
    return Program(steps, settings_with(ProgramSettings(), settings), system=system)


class _Loop:
    """The steps of an agent: its tools by name, the type of its final answer, and the most steps and calls."""

    def __init__(
        self, tools: dict[str, Tool[Any, Any]], kind: Any, subject: str, *, max_steps: int, parallel: int
    ) -> None:
        self._tools = tools
        self._max_steps = max_steps
        self._parallel = parallel
        self._subject = subject
        if isinstance(kind, Grammar):
            raise ProgramError(
                subject,
                "its answer is a grammar, and not a type",
                remedy="write Annotated[str, ...] around the grammar",
            )
        schema_of_type(kind)  # refuses a type without a JSON form, by its own name
        final_answer = _model("answer", answer=kind)
        calls = [
            _model(f"call_of_{each.name}", tool=Literal[each.name], arguments=each.arguments) for each in tools.values()
        ]
        self._final = answer_of(final_answer)
        self._forms = [answer_of(each) for each in calls]
        if parallel > 1:
            from pydantic import Field

            one: Any = Union[(*calls,)]
            calls = [_model("calls", calls=Annotated[list[one], Field(min_length=1, max_length=parallel)])]
        self._either = answer_of(Union[(*calls, final_answer)])

    def steps(self, task: str) -> Generator[Any, Any, AgentResult[Any]]:
        """Let the model call and answer."""
        if not isinstance(task, str):
            raise ProgramError(self._subject, f"the task is of type {type(task).__name__}", remedy="give text")
        yield self._prompt(task)
        calls: list[Call] = []
        with CallRunner() as runner:
            for step in range(1, self._max_steps + 1):
                reply = yield self._either
                if hasattr(reply, "answer"):
                    return AgentResult(reply.answer, tuple(calls))
                written = [reply] if hasattr(reply, "tool") else reply.calls
                tools = [self._tools[each.tool] for each in written]
                made = runner.run(
                    [
                        (tool.name, tool.function, tool.given(each.arguments))
                        for tool, each in zip(tools, written, strict=True)
                    ]
                )
                calls += made
                lines = [*map(result_message, made), *([_LAST_MESSAGE] if step == self._max_steps else [])]
                yield user("\n".join(lines))
        reply = yield self._final
        return AgentResult(reply.answer, tuple(calls), is_forced=True)

    def _prompt(self, task: str) -> str:
        parts = [task, _INTRODUCTION]
        if self._parallel > 1:
            parts[1] = f'{_SEVERAL.format(self._parallel)}\n{{"calls": [CALL, ...]}}'
        for each, form in zip(self._tools.values(), self._forms, strict=True):
            parts.append(f"{each.name}: {each.description}\n{_form(form)}" if each.description else _form(form))
        return "\n\n".join([*parts, f"When you know the answer, write it:\n{_form(self._final)}"])


def _by_name(tools: Iterable[Tool[Any, Any] | Callable[..., Any]], subject: str) -> dict[str, Tool[Any, Any]]:
    if not isinstance(tools, Iterable):
        raise ProgramError(subject, "its tools must be a list", remedy="write agent([tool])")
    found: dict[str, Tool[Any, Any]] = {}
    for each in tools:
        held = each if isinstance(each, Tool) else tool(each)
        if held.name in found:
            raise ProgramError(
                subject, f"two tools have the name {held.name!r}", remedy="name one of them: tool(name=...)(function)"
            )
        found[held.name] = held
    if not found:
        raise ProgramError(subject, "it has no tools", remedy="give one, or make a plain program")
    return found


def _model(name: str, **fields: Any) -> type[BaseModel]:
    from pydantic import ConfigDict, create_model

    required: dict[str, Any] = {field: (kind, ...) for field, kind in fields.items()}
    return create_model(name, __config__=ConfigDict(extra="forbid"), **required)


def _form(answer: Answer) -> str:
    return "" if answer.adapter is None else sketch_of(answer.adapter)

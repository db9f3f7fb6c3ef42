"""``structgen.agent``: programs in which a language model calls tools until it answers."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, TypeVar, Union, final, overload

from structgen.errors import ProgramError
from structgen.grammar.nodes import Grammar
from structgen.program.answer import Answer, answer_of, schema_of_answer
from structgen.program.commands import user
from structgen.program.definition import Program
from structgen.program.describe import sketch_of
from structgen.program.execution import Settings, settings_with
from structgen.program.tools import Tool, tool

if TYPE_CHECKING:
    from pydantic import BaseModel


__all__ = ["AgentResult", "Call", "agent"]

Value = TypeVar("Value")

_INTRODUCTION: Final = "Use these tools as you need them, one call at a time; their results are shown to you."
_LAST: Final = "No further calls are possible. Answer now."


@final
@dataclass(frozen=True, slots=True)
class Call:
    """One call of a tool.

    Attributes:
        tool: its name.
        arguments: what it was called with, by name, as values of the parameters' types; without defaults.
        result: what it returned; None where it raised.
        error: the exception as text, ``"ValueError: ..."``; None where it returned.
    """

    tool: str
    arguments: dict[str, Any]
    result: Any = None
    error: str | None = None


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


@overload
def agent(
    tools: Iterable[Tool[Any, Any] | Callable[..., Any]],
    *,
    answer: type[Value],
    max_steps: int = 8,
    name: str = "agent",
    **settings: Any,
) -> Program[[str], AgentResult[Value]]: ...
@overload
def agent(
    tools: Iterable[Tool[Any, Any] | Callable[..., Any]], *, max_steps: int = 8, name: str = "agent", **settings: Any
) -> Program[[str], AgentResult[str]]: ...
def agent(
    tools: Iterable[Tool[Any, Any] | Callable[..., Any]],
    *,
    answer: Any = str,
    max_steps: int = 8,
    name: str = "agent",
    **settings: Any,
) -> Program[[str], AgentResult[Any]]:
    """Make a program that lets the model call tools until it answers: ``agent([search])("Who was ...?")``.

    At each step the model writes a call, ``{"tool": "search", "arguments": {...}}``, or the answer,
    ``{"answer": ...}``; the grammar admits nothing else.  What a tool returns, or the exception that it raises, becomes
    a turn of the user.

    Args:
        tools: functions, or what ``structgen.tool`` makes of them.
        answer: type of the final answer; any that has a JSON form.
        max_steps: the most calls.  After the last one only an answer is possible, and the result says so.
        name: what messages and traces call the program.
        **settings: as those of ``structgen.program``: ``system``, ``max_tokens`` (for each step), ``sampler``,
            ``seed``, ``tries``, ``limits``.

    Returns:
        a program of one argument, the task, whose value is an ``AgentResult``.

    Raises:
        ProgramError: there are no tools, two have one name, or one is no tool; or the answer is a grammar.
        GrammarError: the answer has no JSON form.
        ValueError: ``max_steps`` is less than 1.
    """
    if max_steps < 1:
        raise ValueError(f"agent: max_steps must be at least 1; found {max_steps}")
    system = settings.pop("system", None)
    unknown = set(settings) - set(Settings.__dataclass_fields__) | ({"chat", "describe"} & set(settings))
    if unknown:
        raise TypeError(f"agent: unknown settings {', '.join(sorted(unknown))}")
    loop = _Loop(_by_name(tools, f"agent {name!r}"), answer, max_steps, f"agent {name!r}")

    def steps(task: str) -> Generator[Any, Any, AgentResult[Any]]:
        return (yield from loop.steps(task))

    steps.__name__ = steps.__qualname__ = name
    return Program(steps, settings_with(Settings(), settings), system=system)


class _Loop:
    """The steps of an agent.

    Args:
        tools: by name.
        kind: type of the final answer.
        max_steps: the most calls.
        subject: what messages call it.
    """

    def __init__(self, tools: dict[str, Tool[Any, Any]], kind: Any, max_steps: int, subject: str) -> None:
        self._tools = tools
        self._max_steps = max_steps
        self._subject = subject
        if isinstance(kind, Grammar):
            raise ProgramError(
                subject,
                "its answer is a grammar, and not a type",
                remedy="write Annotated[str, ...] around the grammar",
            )
        schema_of_answer(kind)  # refuses a type without a JSON form, by its own name
        final_answer = _model("answer", answer=kind)
        calls = [
            _model(f"call_of_{each.name}", tool=Literal[each.name], arguments=each.arguments) for each in tools.values()
        ]
        self._final = answer_of(final_answer)
        self._either = answer_of(Union[(*calls, final_answer)])
        self._forms = [answer_of(each) for each in calls]

    def steps(self, task: str) -> Generator[Any, Any, AgentResult[Any]]:
        """Let the model call and answer."""
        if not isinstance(task, str):
            raise ProgramError(self._subject, f"the task is of type {type(task).__name__}", remedy="give text")
        yield self._prompt(task)
        calls: list[Call] = []
        while len(calls) < self._max_steps:
            reply = yield self._either
            if not hasattr(reply, "tool"):
                return AgentResult(reply.answer, tuple(calls))
            calls.append(_called(self._tools[reply.tool], reply.arguments))
            told = _told(calls[-1])
            yield user(told if len(calls) < self._max_steps else f"{told}\n{_LAST}")
        reply = yield self._final
        return AgentResult(reply.answer, tuple(calls), is_forced=True)

    def _prompt(self, task: str) -> str:
        parts = [task, _INTRODUCTION]
        for each, form in zip(self._tools.values(), self._forms, strict=True):
            parts.append(f"{each.name}: {each.description}\n{_form(form)}" if each.description else _form(form))
        return "\n\n".join([*parts, f"When you know the answer, write it:\n{_form(self._final)}"])


def _by_name(tools: Iterable[Tool[Any, Any] | Callable[..., Any]], subject: str) -> dict[str, Tool[Any, Any]]:
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


def _called(tool: Tool[Any, Any], arguments: BaseModel) -> Call:
    """Call a tool; what it raises is told to the model, who may do better."""
    given = tool.given(arguments)
    try:
        return Call(tool.name, given, result=tool.function(**given))
    except Exception as error:
        return Call(tool.name, given, error=f"{type(error).__name__}: {error}")


def _told(call: Call) -> str:
    """What the model is told of a call."""
    if call.error is not None:
        return f"{call.tool} failed: {call.error}"
    return f"{call.tool} returned: {call.result if isinstance(call.result, str) else _written(call.result)}"


def _written(value: Any) -> str:
    """A value as JSON; what pydantic can't write is shown."""
    from pydantic_core import PydanticSerializationError, to_jsonable_python

    try:
        return json.dumps(to_jsonable_python(value, fallback=repr), ensure_ascii=False)
    except (PydanticSerializationError, RecursionError, ValueError):
        return repr(value)

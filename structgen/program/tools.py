"""``structgen.tool``: Python functions that a language model may call."""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, Generic, ParamSpec, TypeVar, final, overload

from structgen.errors import GrammarError, ProgramError
from structgen.grammar.json_schema import json_schema
from structgen.grammar.nodes import Grammar
from structgen.program.answer import POLICY, schema_of_answer
from structgen.program.checks import problem_of

if TYPE_CHECKING:
    from pydantic import BaseModel

__all__ = ["Tool", "tool"]

Parameters = ParamSpec("Parameters")
Value = TypeVar("Value")

_UNNAMED: Final = {
    inspect.Parameter.VAR_POSITIONAL: "takes any number of arguments",
    inspect.Parameter.VAR_KEYWORD: "takes arguments of any name",
    inspect.Parameter.POSITIONAL_ONLY: "cannot be given by name",
}


@final
class Tool(Generic[Parameters, Value]):
    """A function that a language model may call; made by ``structgen.tool``.

    Calling it calls the function.

    Attributes:
        function: the function.
        name: what the model calls it.
        description: what the model is told of it.
        arguments: a pydantic model of the arguments, which is also what may be written.
    """

    def __init__(self, function: Callable[Parameters, Value], name: str, description: str) -> None:
        functools.update_wrapper(self, function)
        self.function = function
        self.name = name
        self.description = description
        self.arguments: type[BaseModel] = _model_of(function, name)

    def call(self, arguments: Mapping[str, Any]) -> Value:
        """Call the function with arguments as JSON has them.

        Args:
            arguments: by name; those with a default may be left out.

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
        function: what to make a tool of; each parameter is annotated with a type that has a JSON form.  Descriptions of
            parameters are given as pydantic takes them, ``Annotated[int, Field(description="...")]``.
        name: what the model calls it; by default the name of the function.
        description: what the model is told; by default the docstring.

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
        if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
            raise ProgramError(
                f"tool {own_name}", "it is a coroutine function", remedy="give a plain def that calls asyncio.run"
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
        schema, formats = schema_of_answer(annotation)
        json_schema(schema, policy=POLICY, formats=formats)
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

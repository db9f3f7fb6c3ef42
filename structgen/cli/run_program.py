"""``structgen run program.py:name``: a program from a file of Python."""

from __future__ import annotations

import contextlib
import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any, Final

import click

from structgen.cli.grammar_source import read_text, run_file
from structgen.cli.run_prompts import PromptLine, read_lines, write_rows
from structgen.cli.terminal import INTERRUPTED, Failure, write_costs
from structgen.progress import ProgressBar

if TYPE_CHECKING:
    from pydantic import TypeAdapter

    from structgen.cli.run_option import Request
    from structgen.program import Program, Run
    from structgen.program.execution import AnyModel

__all__ = [
    "follow",
    "is_program",
    "json_arguments",
    "load_program",
    "plain_argument",
    "program_rows",
    "run_program",
    "run_quietly",
    "run_values",
]

_SUFFIX: Final = ".py"


def is_program(path: str) -> bool:
    """Whether ``path`` names a program in a file of Python: ``FILE.py:NAME``, or ``FILE.py`` if it holds only one."""
    file, _, name = path.rpartition(":")
    return (file.endswith(_SUFFIX) and name.isidentifier()) or path.endswith(_SUFFIX)


def run_program(
    path: str,
    request: Request,
    *,
    load: Callable[[], AnyModel],
    progress: ProgressBar,
    changes: dict[str, Any],
    outputs: int,
) -> list[Run[Any]]:
    """Run the program ``FILE.py:NAME``, write its results and return them.

    ``changes`` take the place of the program's own settings; one that is None is left to the program.  There are
    ``outputs`` runs, each with a seed of its own.

    Raises:
        Failure: the file cannot be run, holds no such program, or an argument is unusable.
        StructgenError: as ``Program.run``.
    """
    program = load_program(path, system=request.system)
    bound = _arguments(program, request.arg)
    stream = request.stream and request.decoder == "autoregressive"  # a canvas is shown on standard error
    runs: list[Run[Any]] = []
    try:
        model = load()
        for seed in range(request.seed, request.seed + outputs):
            run = follow(program, {**bound, **changes, "seed": seed, "model": model}, progress, stream=stream)
            progress.close()
            _write(run, as_json=request.as_json, streamed=stream)
            runs.append(run)
    finally:
        progress.close()
    if request.trace is not None:
        page = json.dumps(runs[-1].trace, ensure_ascii=False, indent=1)
        Path(request.trace).write_text(page + "\n", encoding="utf-8")
    return runs


def program_rows(path: str, request: Request, *, load: Callable[[], AnyModel], changes: dict[str, Any]) -> int:
    """Run the program ``FILE.py:NAME`` with the arguments of each line of ``--prompts``; return the exit status.

    Raises:
        Failure: as ``run_program`` and ``write_rows``.
    """
    program = load_program(path, system=request.system)
    lines = read_lines(str(request.prompts), "args", plain=plain_argument(program))

    def write(line: PromptLine, model: AnyModel, stopped: Event) -> dict[str, Any]:
        arguments = json_arguments(program, line.values["args"])
        return run_values(run_quietly(program, {**arguments, **changes}, request, line, model, stopped))

    return write_rows(request, lines, lambda: (load(), write))


def plain_argument(program: Program[..., Any]) -> Callable[[str], dict[str, str]] | None:
    """Return what makes arguments of a line of text; None if the program needs more than one."""
    parameters = inspect.signature(program.function).parameters
    needed = [name for name, held in parameters.items() if held.default is inspect.Parameter.empty]
    return (lambda text: {needed[0]: text}) if len(needed) == 1 else None


def run_quietly(
    program: Program[..., Any],
    arguments: dict[str, Any],
    request: Request,
    line: PromptLine,
    model: AnyModel,
    stopped: Event,
) -> Run[Any]:
    """Run a program with the settings of a line, until the event is set."""
    from structgen.program import Done

    settings = {
        "seed": line.values.get("seed", request.seed + line.index),
        "max_tokens": line.values.get("max_tokens", request.max_tokens),
        "model": model,
    }
    with contextlib.closing(program.stream(**{**arguments, **settings})) as events:
        for event in events:
            if isinstance(event, Done):
                return event.run
            if stopped.is_set():
                break
    raise InterruptedError("it was not finished")


def follow(
    program: Program[..., Any],
    arguments: dict[str, Any],
    progress: ProgressBar,
    *,
    stream: bool,
    shows_prompt: bool = True,
) -> Run[Any]:
    """Run a program once and show how far it is; with ``stream``, its text, and its own text if ``shows_prompt``.

    Raises:
        Failure: the user has interrupted.
        StructgenError: as ``Program.run``.
    """
    from structgen.program import Done, Retracted, Text

    tokens = 0
    written = ""
    events = program.stream(**arguments)
    progress("generate tokens:", 0, None)
    if stream:
        progress.close()  # the text itself shows it
    try:
        for event in events:
            if isinstance(event, Done):
                return event.run
            if isinstance(event, Text) and (shows_prompt or event.written):
                tokens += event.written
                written += event.text
                if stream:
                    click.echo(event.text.encode(), nl=False)
                else:
                    progress("generate tokens:", tokens, None)
            elif isinstance(event, Retracted):
                written = written[: event.length]
                if stream:  # what was written stays on the terminal; a new line shows that it is void
                    click.echo(f"\n[{event.problem}]\n{written}".encode(), nl=False)
    except KeyboardInterrupt:
        progress.close()
        raise Failure(f"interrupted; the output so far: {written}", INTERRUPTED) from None
    finally:
        events.close()
    raise RuntimeError("a stream ended without its last event")


def run_values(run: Run[Any]) -> dict[str, Any]:
    """Return what became of a program as values of JSON."""
    return {
        "value": run.trace["value"],
        "text": run.text,
        "fields": {name: field.probability for name, field in run.fields.items()},
        "finish_reason": run.finish_reason,
        "cut": run.cut_fields,
        "seed": run.seed,
        "logprob": run.logprob,
        "log_z": run.log_z,
        "stats": None if run.stats is None else run.stats.as_dict(),
    }


def _write(run: Run[Any], *, as_json: bool, streamed: bool) -> None:
    if as_json:
        click.echo(json.dumps(run_values(run), ensure_ascii=False))
    elif streamed:
        click.echo()
    else:
        value = run.trace["value"]
        click.echo(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))
    if run.stats is not None:
        write_costs(run.stats, cut=_cut_text(run))


def _cut_text(run: Run[Any]) -> str:
    if run.finish_reason == "stop":
        return ""
    return f"the values of {', '.join(run.cut_fields)}" if run.cut_fields else "the end of the answer"


def load_program(path: str, *, system: str | None = None) -> Program[..., Any]:
    """Run the file as a module and take the program out of it; ``system`` replaces its own turn of the system.

    Raises:
        Failure: the file cannot be run, or holds no such program.
    """
    from structgen.program.definition import Program

    program = _program_in(path)
    if system is None:
        return program
    return Program(program.function, program.settings, system=system)


def _program_in(path: str) -> Program[..., Any]:
    from structgen.program.definition import Program

    file, name = (path, "") if path.endswith(_SUFFIX) else path.rsplit(":", 1)
    module = run_file(file)
    programs = {key: value for key, value in vars(module).items() if isinstance(value, Program)}
    if not name and len(programs) == 1:
        return next(iter(programs.values()))
    if not programs:
        raise Failure(f"{file}: it holds no program; put @structgen.program before a function")
    if name not in programs:
        held = ", ".join(programs) or "none"
        what = f"it holds no program {name!r}" if name else "it holds several programs"
        raise Failure(f"{file}: {what}; programs there are: {held}; write {file}:NAME")
    return programs[name]


def _arguments(program: Program[..., Any], given: Sequence[str]) -> dict[str, Any]:
    """The arguments by name: text where text is asked for, else read as the annotation says."""
    parameters = inspect.signature(program.function).parameters
    found: dict[str, Any] = {}
    for item in given:
        name, separator, text = item.partition("=")
        if not separator or name not in parameters:
            known = ", ".join(parameters) or "none"
            raise Failure(f"--arg {item}: expected NAME=VALUE with the name of a parameter; they are: {known}")
        if name in found:
            raise Failure(f"--arg {item}: {name} is given twice")
        found[name] = _value(name, read_text(text[1:]) if text.startswith("@") else text, program)
    missing = [
        name for name, held in parameters.items() if name not in found and held.default is inspect.Parameter.empty
    ]
    if missing:
        raise Failure(f"program {program.name}: it needs {missing[0]!r}; give --arg {missing[0]}=VALUE")
    return found


def json_arguments(program: Program[..., Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a line, each read as its annotation says.

    Raises:
        Failure: one is missing, unknown, or of another type.
    """
    from pydantic import ValidationError

    parameters = inspect.signature(program.function).parameters
    for name in given:
        if name not in parameters:
            raise Failure(f'"args": there is no {name!r}; the parameters are {", ".join(parameters) or "none"}')
    found: dict[str, Any] = {}
    for name, held in parameters.items():
        if name in given:
            adapter = _adapter(name, program, Any)
            try:
                found[name] = given[name] if adapter is None else adapter.validate_json(json.dumps(given[name]))
            except ValidationError as error:
                raise Failure(f'"args": {name}: {error.errors(include_url=False)[0]["msg"]}') from None
        elif held.default is inspect.Parameter.empty:
            raise Failure(f'"args": {name!r} is missing')
    return found


def _adapter(name: str, program: Program[..., Any], default: Any) -> TypeAdapter[Any] | None:
    """What makes values of a parameter's type; None where the annotation is nothing that pydantic knows."""
    from typing import get_type_hints

    from pydantic import TypeAdapter
    from pydantic.errors import PydanticUserError

    try:
        return TypeAdapter(get_type_hints(program.function, include_extras=True).get(name, default))
    except (NameError, TypeError, PydanticUserError):
        return None


def _value(name: str, text: str, program: Program[..., Any]) -> Any:
    from pydantic import ValidationError

    adapter = _adapter(name, program, str)
    if adapter is None:
        return text
    try:
        return adapter.validate_python(text)
    except ValidationError as refused:
        try:
            return adapter.validate_json(text)
        except ValidationError as error:
            faults = error.errors(include_url=False)
            if faults[0]["type"] == "json_invalid":
                faults = refused.errors(include_url=False)
            problem = faults[0]["msg"]
            kind = program.function.__annotations__.get(name, "text")
            raise Failure(f"--arg {name}={text[:60]}: it is no {getattr(kind, '__name__', kind)}; {problem}") from None

"""``structgen run program.py:name``: a program from a file of Python."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from structgen.cli.grammar_source import read_text, run_file
from structgen.cli.terminal import INTERRUPTED, Failure, ProgressLine, write_costs

if TYPE_CHECKING:
    from structgen.cli.run_option import Request
    from structgen.program import Program, Run
    from structgen.program.execution import AnyModel

__all__ = ["is_program", "run_program"]

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
    progress: ProgressLine,
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
    program = _load(path)
    bound = _arguments(program, request.arg)
    stream = request.stream and request.decoder == "autoregressive"  # a canvas is shown on standard error
    runs: list[Run[Any]] = []
    try:
        model = load()
        for seed in range(request.seed, request.seed + outputs):
            run = _follow(program, {**bound, **changes, "seed": seed, "model": model}, progress, stream=stream)
            progress.close()
            _write(run, as_json=request.as_json, streamed=stream)
            runs.append(run)
    finally:
        progress.close()
    if request.trace is not None:
        page = json.dumps(runs[-1].trace, ensure_ascii=False, indent=1)
        Path(request.trace).write_text(page + "\n", encoding="utf-8")
    return runs


def _follow(program: Program[..., Any], arguments: dict[str, Any], progress: ProgressLine, *, stream: bool) -> Run[Any]:
    """Run a program once and show how far it is."""
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
            if isinstance(event, Text):
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


def _write(run: Run[Any], *, as_json: bool, streamed: bool) -> None:
    if as_json:
        trace = run.trace
        line = {
            "value": trace["value"],
            "text": run.text,
            "fields": {name: field.probability for name, field in run.fields.items()},
            "finish_reason": run.finish_reason,
            "cut": run.cut_fields,
            "seed": run.seed,
            "logprob": run.logprob,
            "log_z": run.log_z,
            "stats": None if run.stats is None else run.stats.as_dict(),
        }
        click.echo(json.dumps(line, ensure_ascii=False))
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


def _load(path: str) -> Program[..., Any]:
    """Run the file as a module and take the program out of it."""
    from structgen.program.definition import Program

    file, name = (path, "") if path.endswith(_SUFFIX) else path.rsplit(":", 1)
    module = run_file(file)
    programs = {key: value for key, value in vars(module).items() if isinstance(value, Program)}
    if not name and len(programs) == 1:
        return next(iter(programs.values()))
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
        raise Failure(f"program {program.name} needs --arg {missing[0]}=VALUE")
    return found


def _value(name: str, text: str, program: Program[..., Any]) -> Any:
    from typing import get_type_hints

    from pydantic import TypeAdapter, ValidationError
    from pydantic.errors import PydanticUserError

    try:
        kind = get_type_hints(program.function, include_extras=True).get(name, str)
        adapter: Any = TypeAdapter(kind)
    except (NameError, TypeError, PydanticUserError):
        return text
    try:
        return adapter.validate_python(text)
    except ValidationError:
        try:
            return adapter.validate_json(text)
        except ValidationError as error:
            problem = error.errors(include_url=False)[0]["msg"]
            raise Failure(f"--arg {name}={text[:60]}: it is no {getattr(kind, '__name__', kind)}; {problem}") from None

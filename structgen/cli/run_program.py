"""``structgen run program.py:name``: a program from a file of Python."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from structgen.cli.grammar_source import read_text, run_file
from structgen.cli.model_option import model_of
from structgen.cli.terminal import DONE, INTERRUPTED, Failure, ProgressLine, write_costs

if TYPE_CHECKING:
    from structgen.decode import AnyCanvasSampler, AnySampler
    from structgen.program import Program, Run
    from structgen.program.execution import AnyModel

__all__ = ["is_program", "run_program"]

_SUFFIX: Final = ".py"


def is_program(path: str) -> bool:
    """Whether ``path`` names a program in a file of Python: ``FILE.py:NAME``, or ``FILE.py`` if it holds only one."""
    file, _, name = path.rpartition(":")
    return (file.endswith(_SUFFIX) and name.isidentifier()) or path.endswith(_SUFFIX)


def run_program(  # noqa: PLR0913  what the options of the command say, by name
    path: str,
    arguments: Sequence[str],
    *,
    model: str | None,
    changes: dict[str, Any],
    sampler: AnySampler | AnyCanvasSampler | None,
    seeds: Sequence[int],
    stream: bool,
    as_json: bool,
    trace: str | None,
    device: str = "auto",
    load: Callable[[str | None, ProgressLine], AnyModel] | None = None,
    progress: ProgressLine | None = None,
    on_run: Callable[[Run[Any]], object] | None = None,
) -> int:
    """Run a program once for each seed and write its results.

    Args:
        path: ``FILE.py:NAME``.
        arguments: ``NAME=VALUE`` or ``NAME=@FILE`` each.
        model: what ``load`` is given.
        changes: settings in place of the program's own.
        sampler: the same; None leaves it to the program.
        seeds: one for each run.
        stream: write the text as it is made.
        as_json: write a line of JSON a run.
        trace: where to write the trace of the last run.
        device: where a model runs that ``load`` does not load.
        load: loads the model; by default one that writes token by token.
        progress: shows how far it is.
        on_run: told of each run once it is written.

    Raises:
        Failure: the file cannot be run, holds no such program, or an argument is unusable.
        StructgenError: as ``Program.run``.
    """
    program = _load(path)
    bound = _arguments(program, arguments)
    progress = progress or ProgressLine()
    try:
        loaded = load(model, progress) if load is not None else model_of(model, progress, device=device)
        for seed in seeds:
            run = _follow(
                program, bound, loaded, progress, {**changes, "sampler": sampler, "seed": seed}, stream=stream
            )
            progress.close()
            _write(run, as_json=as_json, streamed=stream)
            if on_run is not None:
                on_run(run)
    finally:
        progress.close()
    if trace is not None:
        Path(trace).write_text(json.dumps(run.trace, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    return DONE


def _follow(
    program: Program[..., Any],
    arguments: dict[str, Any],
    model: AnyModel,
    progress: ProgressLine,
    settings: dict[str, Any],
    *,
    stream: bool,
) -> Run[Any]:
    from structgen.program import Done, Retracted, Text

    tokens = 0
    written = ""
    events = program.stream(**arguments, **settings, model=model)
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
        write_costs(run.stats)


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

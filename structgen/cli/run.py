"""``structgen run``: let a model write a member of the language."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

import click

from structgen.cli.failure import DONE, INTERRUPTED, Failure
from structgen.cli.program_file import is_program, run_program
from structgen.cli.progress import ProgressLine
from structgen.cli.source import (
    STANDARD_INPUT,
    SourceOptions,
    compile_source,
    read_source,
    read_text,
    source_options,
)
from structgen.cli.vocabulary import model_of

if TYPE_CHECKING:
    from structgen.decode import Generation, Result, Sampler
    from structgen.engine import Constraint
    from structgen.models import LanguageModel

__all__ = ["run"]

_DEFAULT_PROMPT: Final = "Write an example."
_DEFAULT_TOKENS: Final = 256
_TRACED_ALTERNATIVES: Final = 4


@dataclass(frozen=True, slots=True)
class _Request:
    """What the command line asks for, beside the description."""

    prompt: str | None
    prompt_file: str | None
    model: str | None
    max_tokens: int | None
    count: int
    seed: int
    temperature: float | None
    top_k: int | None
    top_p: float | None
    min_p: float | None
    stream: bool
    as_json: bool
    no_chat: bool
    arg: tuple[str, ...]
    trace: str | None


@dataclass(frozen=True, slots=True)
class _Task:
    """What is the same for all outputs of one call."""

    model: LanguageModel
    constraint: Constraint
    prompt: list[int]
    sampler: Sampler
    progress: ProgressLine


@click.command()
@click.argument("paths", nargs=-1, metavar="FILE")
@source_options("single")
@click.option("--prompt", metavar="P", help=f"What the model is asked.  [default: {_DEFAULT_PROMPT}]")
@click.option("--prompt-file", metavar="F", help="The same from a file, or - for standard input.")
@click.option("--model", metavar="M", help="A hub id, a folder or a GGUF file.  [default: SmolLM2-135M-Instruct]")
@click.option(
    "--max-tokens",
    type=click.IntRange(min=0),
    metavar="N",
    help="The output is complete within N tokens.  [default: 256, or what a program says]",
)
@click.option("-n", "count", type=click.IntRange(min=1), metavar="K", default=1, help="Write K outputs, by sampling.")
@click.option("--seed", type=click.IntRange(min=0), metavar="S", default=0, help="Output i is drawn with seed S + i.")
@click.option("--temperature", type=float, metavar="T", help="Sample; 0 takes the most probable tokens.")
@click.option("--top-k", type=int, metavar="K", help="Sample from the K most probable tokens.")
@click.option("--top-p", type=float, metavar="P", help="Sample from the fewest tokens with probability P together.")
@click.option("--min-p", type=float, metavar="P", help="Sample from tokens with P times the highest probability.")
@click.option("--stream", is_flag=True, help="Write the text as it is made.")
@click.option("--json", "as_json", is_flag=True, help="Write each output as one line of JSON with value and scores.")
@click.option("--arg", multiple=True, metavar="NAME=VALUE", help="An argument of a program; NAME=@F reads it from F.")
@click.option("--trace", metavar="F", help="Write what happened in a program to F; see `structgen trace`.")
@click.option("--no-chat", is_flag=True, help="Give the model the prompt as it is, not as a message of a chat.")
def run(paths: tuple[str, ...], source: SourceOptions, **options: Any) -> int:
    """Let a model write a member of the language of FILE.

    FILE is a JSON Schema or a Lark grammar, or - for a JSON Schema on standard input, or a program in a file of Python:
    FILE.py:NAME. The output is always complete and valid: if --max-tokens is too small for any, that is said before the
    model is asked.

    Without sampling options one output is written, from the most probable tokens.
    """
    request = _Request(**options)
    (path,) = source.take_path(paths, "FILE")
    if request.stream and request.as_json:
        raise click.UsageError("--stream writes text as it is made and --json a line at the end: give one of them")
    if path is not None and is_program(path):
        return _run_program(path, request)
    for name, given in (("--arg", request.arg), ("--trace", request.trace)):
        if given:
            raise click.UsageError(f"{name} is for programs: give FILE.py:NAME")
    sampler = _sampler(request)
    prompt = _prompt(request, path)
    read = read_source(path, source)
    compile_source(read)  # refuses what is wrong before a model is fetched and loaded
    progress = ProgressLine()
    try:
        model = model_of(request.model, progress)
        constraint = compile_source(read, model.vocabulary)
        ids = model.encode_prompt(prompt, chat=not request.no_chat)
        task = _Task(model, constraint, ids, sampler, progress)
        for index in range(request.count):
            _write_output(task, request, request.seed + index)
    finally:
        progress.close()
    return DONE


def _run_program(path: str, request: _Request) -> int:
    """Run a program; what the options do not say, it says itself."""
    if request.prompt is not None or request.prompt_file is not None or request.no_chat:
        raise click.UsageError("a program has its own prompt: give its arguments with --arg NAME=VALUE")
    sampling = (request.temperature, request.top_k, request.top_p, request.min_p) != (None, None, None, None)
    return run_program(
        path,
        request.arg,
        model=request.model,
        changes={
            "max_tokens": request.max_tokens,
            "alternatives": None if request.trace is None else _TRACED_ALTERNATIVES,
        },
        sampler=_sampler(request) if sampling or request.count > 1 else None,
        seeds=range(request.seed, request.seed + request.count),
        stream=request.stream,
        as_json=request.as_json,
        trace=request.trace,
    )


def _sampler(request: _Request) -> Sampler:
    """The sampler that the options ask for: none of them, and one output, is greedy."""
    from structgen.decode import Greedy, Multinomial

    cut = (request.top_k, request.top_p, request.min_p) != (None, None, None)
    if request.temperature == 0 and cut:
        raise click.UsageError("--temperature 0 takes the most probable tokens; it goes with no other sampling option")
    if request.temperature == 0 or (request.temperature is None and not cut and request.count == 1):
        return Greedy()
    try:
        temperature = 1.0 if request.temperature is None else request.temperature
        return Multinomial(temperature, request.top_k, request.top_p, request.min_p)
    except ValueError as error:
        raise click.UsageError(str(error).removeprefix("Multinomial: ")) from error


def _prompt(request: _Request, path: str | None) -> str:
    if request.prompt_file is None:
        return _DEFAULT_PROMPT if request.prompt is None else request.prompt
    if request.prompt is not None:
        raise click.UsageError("--prompt and --prompt-file exclude each other")
    if request.prompt_file == path == STANDARD_INPUT:
        raise click.UsageError("FILE and --prompt-file cannot both be standard input")
    return read_text(request.prompt_file)


def _write_output(task: _Task, request: _Request, seed: int) -> None:
    """Generate one output and write it."""
    from structgen.decode import Context, start_generation

    with Context(task.model, task.prompt) as context:
        generation = start_generation(
            context, task.constraint, max_tokens=_most_tokens(request), sampler=task.sampler, seed=seed
        )
        try:
            _follow(generation, task.progress, stream=request.stream)
        except KeyboardInterrupt:
            task.progress.close()
            partial = generation.data.decode("utf-8", "replace")
            raise Failure(
                f"interrupted after {len(generation.tokens)} tokens of the output: {partial}", INTERRUPTED
            ) from None
        result = generation.result()
    task.progress.close()
    if request.as_json:
        click.echo(_as_json(result, seed))
    else:
        click.echo(b"\n" if request.stream else result.data + b"\n", nl=False)
    stats = result.stats
    seconds = stats.time_mask_s + stats.time_model_s + stats.time_other_s
    click.echo(
        f"{stats.tokens} tokens in {seconds:.1f} s: {stats.forced} forced, {stats.forwards} forward passes", err=True
    )


def _follow(generation: Generation, progress: ProgressLine, *, stream: bool) -> None:
    """Run a generation to its end and show how far it is."""
    progress("generate tokens:", 0, None)
    if stream:
        progress.close()  # the text itself shows it
    for chunk in generation:
        if stream:
            click.echo(chunk.text.encode(), nl=False)
        else:
            progress("generate tokens:", len(generation.tokens), None)


def _most_tokens(request: _Request) -> int:
    return _DEFAULT_TOKENS if request.max_tokens is None else request.max_tokens


def _as_json(result: Result, seed: int) -> str:
    return json.dumps(
        {
            "text": result.text,
            "value": result.value,
            "captures": result.captures,
            "tokens": list(result.tokens),
            "finish_reason": result.finish_reason,
            "seed": seed,
            "logprob": _finite(result.logprob),
            "log_z": _finite(result.log_z),
            "unscored": result.unscored,
            "stats": asdict(result.stats),
        },
        ensure_ascii=False,
    )


def _finite(value: float) -> float | None:
    """JSON has no infinities: a probability of zero is null."""
    return value if math.isfinite(value) else None

"""``structgen run``: let a model write a string of the grammar."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, get_args

import click

from structgen.cli.grammar_source import SourceOptions, compile_source, read_source, source_options
from structgen.cli.model_option import model_of
from structgen.cli.run_canvas import run_canvases
from structgen.cli.run_option import (
    DEFAULT_PROMPT,
    DEFAULT_TOKENS,
    DRAFTER_NAMES,
    Decoder,
    Request,
    drafter_of,
    failures_noted,
    potentials_of,
    sampler_of,
    write_weights,
)
from structgen.cli.run_program import is_program, run_program
from structgen.cli.terminal import DONE, INTERRUPTED, Failure, ProgressLine, cut_text, result_as_json, write_costs
from structgen.methods.catalogue import CANVAS_SAMPLERS, COMMIT_POLICIES, REUSES, SAMPLERS

if TYPE_CHECKING:
    from structgen.decode import AnyDrafter, AnyPotential, AnySampler, Generation
    from structgen.engine import Constraint
    from structgen.models import LanguageModel

__all__ = ["run"]

_TRACED_ALTERNATIVES: Final = 4
_CANVAS_OPTIONS: Final = {
    **dict.fromkeys(
        ("canvas", "policy", "block", "reuse", "replay"),
        "it says how a canvas is filled; leave it out, or take --decoder diffusion",
    ),
    "trust_remote_code": "models that write token by token run no code of their files; leave it out",
}


@dataclass(frozen=True, slots=True)
class _GenerationTask:
    """What is the same for all outputs of one call."""

    model: LanguageModel
    constraint: Constraint
    prompt: list[int]
    sampler: AnySampler
    potentials: Sequence[AnyPotential]
    drafter: AnyDrafter
    progress: ProgressLine


@click.command()
@click.argument("paths", nargs=-1, metavar="FILE")
@source_options()
@click.option("--prompt", metavar="P", help=f"What the model is asked.  [default: {DEFAULT_PROMPT}]")
@click.option("--prompt-file", metavar="F", help="The same from a file, or - for standard input.")
@click.option(
    "--model",
    metavar="M",
    help="A hub id, a folder or a GGUF file.  [default: SmolLM2-135M-Instruct, or the embedded diffusion model]",
)
@click.option(
    "--device",
    metavar="D",
    default="auto",
    show_default=True,
    help="Where the model runs: auto (a GPU if there is one), cpu, cuda, cuda:1, mps.",
)
@click.option(
    "--decoder",
    type=click.Choice(get_args(Decoder)),
    default="autoregressive",
    show_default=True,
    help="Write token by token, or fill a canvas with a diffusion model.",
)
@click.option(
    "--max-tokens",
    type=click.IntRange(min=0),
    metavar="N",
    help="The output is complete within N tokens.  [default: 256, or what a program says]",
)
@click.option(
    "--sampler",
    metavar="NAME[:KEY=VALUE,...]",
    help=f"How outputs are sampled: {', '.join(SAMPLERS)}; of canvases: {', '.join(CANVAS_SAMPLERS)}.  "
    "[default: greedy, or multinomial with options of it; dingo]",
)
@click.option(
    "--drafter",
    metavar="NAME[:KEY=VALUE,...]",
    help=f"Proposes draft tokens, which the model verifies together: {', '.join(DRAFTER_NAMES)}.  "
    "[default: auto, or what a program says]",
)
@click.option(
    "--potential",
    multiple=True,
    metavar="FILE.py:NAME",
    help="A predicate or score of the text that outputs have to fulfil; may be repeated.",
)
@click.option("--weights", is_flag=True, help="Write every sample with its normalised weight, and the log-evidence.")
@click.option(
    "-n",
    "count",
    type=click.IntRange(min=1),
    metavar="K",
    help="Write K outputs, by sampling; with smc and its like: take K particles for one.",
)
@click.option("--seed", type=click.IntRange(min=0), metavar="S", default=0, help="Output i is sampled with seed S + i.")
@click.option("--temperature", type=float, metavar="T", help="Sample; 0 takes what is most probable.")
@click.option("--top-k", type=int, metavar="K", help="Sample from the K most probable tokens.")
@click.option("--top-p", type=float, metavar="P", help="Sample from the fewest tokens with probability P together.")
@click.option("--min-p", type=float, metavar="P", help="Sample from tokens with P times the highest probability.")
@click.option(
    "--canvas",
    type=click.IntRange(min=1),
    metavar="N",
    help="Slots of the canvas.  [default: what the language takes as a rule]",
)
@click.option(
    "--policy",
    metavar="NAME[:KEY=VALUE,...]",
    help=f"Which slots of a canvas are committed together: {', '.join(COMMIT_POLICIES)}.  [default: static]",
)
@click.option(
    "--block", type=click.IntRange(min=1), metavar="N", help="Fill the canvas N slots at a time from left to right."
)
@click.option(
    "--reuse",
    metavar="NAME[:KEY=VALUE,...]",
    help=f"Which slots a pass leaves out: {', '.join(REUSES)}.  [default: none]",
)
@click.option("--replay", metavar="F.html", help="Write a page to F.html that replays how the canvas was filled.")
@click.option("--trust-remote-code", is_flag=True, help="Run the code that comes with a diffusion model's files.")
@click.option("--stream", is_flag=True, help="Write the text as it is made; show a canvas on standard error.")
@click.option("--json", "as_json", is_flag=True, help="Write each output as one line of JSON with value and scores.")
@click.option("--arg", multiple=True, metavar="NAME=VALUE", help="An argument of a program; NAME=@F reads it from F.")
@click.option("--trace", metavar="F", help="Write what happened in a program, or with --weights, to F.")
@click.option("--no-chat", is_flag=True, help="Give the model the prompt as it is, not as a message of a chat.")
def run(paths: tuple[str, ...], source: SourceOptions, **options: Any) -> int:
    """Let a model write a string of the grammar of FILE.

    FILE is a JSON Schema or a grammar, or - for a JSON Schema on standard input, or a program in a file of Python:
    FILE.py:NAME. The output is always complete and valid: if --max-tokens is too small for any, that is said before the
    model is asked.

    Without sampling options one output is written, from the most probable tokens. With --sampler smc outputs follow the
    model's own distribution given that they belong to the language, which choosing token by token does not; --weights
    shows all.

    With --decoder diffusion a diffusion model fills a canvas: --sampler dingo (the default) takes the most probable
    completion at each step, posterior samples one; --policy says how much of it stands before the next forward pass.
    """
    request = Request(**options)
    click.get_current_context().with_resource(failures_noted())
    (path,) = source.take_path(paths, "FILE")
    if request.stream and request.as_json:
        raise click.UsageError("--stream writes text as it is made and --json a line at the end: give one of them")
    if request.decoder == "diffusion":
        return run_canvases(path, source, request)
    request.refuse(_CANVAS_OPTIONS)
    if path is not None and is_program(path):
        return _run_program(path, request)
    if request.arg:
        raise click.UsageError("--arg is for programs: give FILE.py:NAME")
    if request.trace is not None and not request.weights:
        raise click.UsageError("--trace is for programs and for --weights: give FILE.py:NAME, or --weights")
    sampler = _sampler(request)
    prompt = request.read_prompt(path)
    potentials = potentials_of(request.potential)
    read = read_source(path, source)
    compile_source(read)  # refuses what is wrong before a model is fetched and loaded
    progress = ProgressLine()
    try:
        drafter = drafter_of(request.drafter, progress)
        _check_drafter(request, drafter, sampler)
        model = model_of(request.model, progress, device=request.device)
        constraint = compile_source(read, model.vocabulary)
        ids = model.encode_prompt(prompt, chat=not request.no_chat)
        task = _GenerationTask(model, constraint, ids, sampler, potentials, drafter, progress)
        if request.weights:
            _write_weights(task, request)
            return DONE
        for index in range(1 if _is_whole(sampler) else request.count or 1):
            _write_output(task, request, request.seed + index)
    finally:
        progress.close()
    return DONE


def _check_drafter(request: Request, drafter: AnyDrafter, sampler: AnySampler) -> None:
    """Refuse a drafter that the sampler has no use for."""
    from structgen.decode.sampling import SequenceSampler
    from structgen.decode.sampling.sampler_run import whole_speculation

    if isinstance(sampler, SequenceSampler):
        try:
            whole_speculation(drafter, sampler)
        except ValueError as error:
            raise click.UsageError(
                f"--drafter {request.drafter} is not for --sampler {request.sampler}; leave it out"
            ) from error


def _run_program(path: str, request: Request) -> int:
    """Run a program; what the options do not say, it says itself."""
    request.refuse_for_program()
    sampling = request.sampler is not None or _has_sampling_params(request)
    sampler = _sampler(request) if sampling or (request.count or 1) > 1 else None
    changes: dict[str, Any] = {
        "max_tokens": request.max_tokens,
        "alternatives": None if request.trace is None else _TRACED_ALTERNATIVES,
        "potentials": potentials_of(request.potential) or None,
        "sampler": sampler,
    }
    progress = ProgressLine()
    if request.drafter is not None:
        changes["drafter"] = drafter_of(request.drafter, progress)  # None is no drafter there
    run_program(
        path,
        request,
        load=lambda: model_of(request.model, progress, device=request.device),
        progress=progress,
        changes=changes,
        outputs=1 if _is_whole(sampler) else request.count or 1,
    )
    return DONE


def _has_sampling_params(request: Request) -> bool:
    return (request.temperature, request.top_k, request.top_p, request.min_p) != (None, None, None, None)


def _is_whole(sampler: AnySampler | None) -> bool:
    """Whether it takes ``-n`` for itself."""
    from structgen.decode.sampling import SequenceSampler

    return isinstance(sampler, SequenceSampler)


def _sampler(request: Request) -> AnySampler:
    """The sampler that the options ask for: none of them, and one output, is greedy."""
    from structgen.decode import Greedy, Multinomial

    if request.sampler is not None:
        if _has_sampling_params(request):
            raise click.UsageError(
                "--temperature, --top-k, --top-p and --min-p are those of multinomial: "
                "leave out --sampler, or write --sampler multinomial:temperature=0.8"
            )
        sampler = sampler_of(request.sampler, request.count, weights=request.weights)
        if request.weights and not _is_whole(sampler):
            raise click.UsageError(f"--weights needs outputs with weights: --sampler smc, not {request.sampler}")
        return sampler
    if request.weights:
        if _has_sampling_params(request):
            raise click.UsageError(
                "--weights are those of the model's own distribution: "
                "leave out --temperature, --top-k, --top-p and --min-p"
            )
        return sampler_of("smc", request.count, weights=True)
    cut = (request.top_k, request.top_p, request.min_p) != (None, None, None)
    if request.temperature == 0 and cut:
        raise click.UsageError("--temperature 0 takes the most probable tokens; it goes with no other sampling option")
    if request.temperature == 0 or (request.temperature is None and not cut and (request.count or 1) == 1):
        return Greedy()
    try:
        temperature = 1.0 if request.temperature is None else request.temperature
        return Multinomial(temperature, request.top_k, request.top_p, request.min_p)
    except ValueError as error:
        raise click.UsageError(str(error).removeprefix("Multinomial: ")) from error


def _write_output(task: _GenerationTask, request: Request, seed: int) -> None:
    """Generate one output and write it."""
    from structgen.decode import Context, start_generation

    with Context(task.model, task.prompt) as context:
        generation = start_generation(
            context,
            task.constraint,
            max_tokens=_max_tokens(request),
            sampler=task.sampler,
            potentials=task.potentials,
            seed=seed,
            drafter=task.drafter,
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
        click.echo(result_as_json(result, seed))
    else:
        click.echo(b"\n" if request.stream else result.data + b"\n", nl=False)
    write_costs(result.stats, cut=cut_text(result))


def _write_weights(task: _GenerationTask, request: Request) -> None:
    """Sample outputs and write all of them with their weights."""
    import numpy as np

    from structgen.decode import Context
    from structgen.decode.sampling import SequenceSampler, run_sampler
    from structgen.decode.sampling.sampler_run import whole_speculation

    if not isinstance(task.sampler, SequenceSampler):
        raise click.UsageError("--weights needs a sampler of whole outputs")
    task.progress("sample outputs", 0, None)
    with Context(task.model, task.prompt) as context:
        samples = run_sampler(
            task.sampler,
            context,
            task.constraint,
            potentials=task.potentials,
            max_tokens=_max_tokens(request),
            generator=np.random.Generator(np.random.PCG64(request.seed)),
            speculation=whole_speculation(task.drafter, task.sampler),
        )
    task.progress.close()
    write_weights(samples, request, task.sampler, task.model.name)


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


def _max_tokens(request: Request) -> int:
    return DEFAULT_TOKENS if request.max_tokens is None else request.max_tokens

"""``structgen run``: let a model write a string of the grammar."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, get_args

import click

from structgen.cli.command import (
    DESCRIPTIONS,
    Command,
    complete_files,
    completes,
    completes_files,
    output_file,
    output_option,
)
from structgen.cli.grammar_source import (
    STANDARD_INPUT,
    SourceOptions,
    compile_source,
    read_source,
    read_text,
    source_options,
)
from structgen.cli.model_option import model_of, model_options
from structgen.cli.run_canvas import run_canvases
from structgen.cli.run_option import (
    DEFAULT_PROMPT,
    DRAFTER_NAMES,
    Decoder,
    Request,
    drafter_of,
    potentials_of,
    sampler_of,
)
from structgen.cli.run_program import is_program, program_rows, run_program
from structgen.cli.run_prompts import read_lines, write_rows
from structgen.cli.run_server import check_served, run_on_server, server_of
from structgen.cli.run_tokens import TokenTask, write_output, write_outputs_with_weights
from structgen.cli.terminal import DONE, noted
from structgen.errors import DraftWarning
from structgen.methods.catalogue import CANVAS_SAMPLERS, COMMIT_POLICIES, REUSES, SAMPLERS
from structgen.progress import ProgressBar

if TYPE_CHECKING:
    from structgen.decode import AnyDrafter, AnySampler
    from structgen.models import LanguageModel
    from structgen.program.execution import AnyModel

__all__ = ["run"]

_TRACED_ALTERNATIVES: Final = 4
_CANVAS_OPTIONS: Final = {
    **dict.fromkeys(
        ("canvas", "policy", "block", "reuse", "replay"),
        "it says how a canvas is filled; leave it out, or take --decoder diffusion",
    ),
    "trust_remote_code": "models that write token by token run no code of their files; leave it out",
}
_GROUPS: Final = {
    "Prompt": ("prompt", "prompt_file", "system", "no_chat", "chat_template", "arg"),
    "Many prompts": ("prompts", "batch_size", "resume"),
    "Model": ("model", "model_name", "device", "runtime", "decoder", "trust_remote_code"),
    "Sampling": (
        *("max_tokens", "temperature", "top_k", "top_p", "min_p", "count", "seed"),
        *("sampler", "drafter", "potential", "canonical", "weights"),
    ),
    "Canvases of diffusion models": ("canvas", "policy", "block", "reuse", "replay"),
}


@click.command(
    cls=Command,
    groups=_GROUPS,
    examples=(
        'structgen run person.schema.json --prompt "Ada Lovelace, 36"',
        "cat review.txt | structgen run sentiment.schema.json --prompt - --stream",
        'structgen run contact.py:contact --arg text="Call Bob on 555 1234"',
        "structgen run person.schema.json --prompts in.jsonl -o out.jsonl --resume",
        "structgen run person.schema.json --model http://localhost:8000/v1#qwen3",
    ),
)
@click.argument("paths", nargs=-1, metavar="FILE", shell_complete=completes_files(*DESCRIPTIONS, ".py"))
@source_options()
@click.option(
    "--prompt", metavar="P", help=f"What the model is asked, or - for standard input.  [default: {DEFAULT_PROMPT}]"
)
@click.option("--prompt-file", metavar="F", shell_complete=complete_files, help="The same from a file.")
@click.option("--system", metavar="TEXT", help="A message of the system before the prompt.")
@click.option(
    "--chat-template",
    metavar="F",
    shell_complete=complete_files,
    help="A chat template (Jinja) in place of that of the model.",
)
@click.option(
    "--prompts",
    metavar="F",
    shell_complete=complete_files,
    help='Many prompts or arguments, one a line: *.txt, or JSON lines such as {"prompt": "..."}. '
    "Each becomes a line of JSON, in the order in which they are done.",
)
@click.option(
    "--batch-size",
    type=click.IntRange(min=1),
    metavar="N",
    default=8,
    show_default=True,
    help="How many run in one forward pass.",
)
@click.option(
    "--resume", is_flag=True, help="Go on with the file of -o: only write rows that it lacks, or that failed."
)
@model_options(
    model=".  [default: SmolLM2-135M-Instruct, or the embedded diffusion model]",
    name="; or --model ADDRESS#NAME.",
    device="",
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
    shell_complete=completes(dict.fromkeys((*SAMPLERS, *CANVAS_SAMPLERS))),
    help=f"How outputs are sampled: {', '.join(SAMPLERS)}; of canvases: {', '.join(CANVAS_SAMPLERS)}.  "
    "[default: greedy, or multinomial with options of it; dingo]",
)
@click.option(
    "--drafter",
    metavar="NAME[:KEY=VALUE,...]",
    shell_complete=completes(DRAFTER_NAMES),
    help=f"Proposes draft tokens, which the model verifies together: {', '.join(DRAFTER_NAMES)}.  "
    "[default: auto, or what a program says]",
)
@click.option(
    "--potential",
    multiple=True,
    metavar="FILE.py:NAME",
    shell_complete=completes_files(".py"),
    help="A predicate or score of the text that outputs have to fulfil; may be repeated.",
)
@click.option("--canonical", is_flag=True, help="Only outputs whose tokens the tokenizer itself would write.")
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
    shell_complete=completes(COMMIT_POLICIES),
    help=f"Which slots of a canvas are committed together: {', '.join(COMMIT_POLICIES)}.  [default: static]",
)
@click.option(
    "--block", type=click.IntRange(min=1), metavar="N", help="Fill the canvas N slots at a time from left to right."
)
@click.option(
    "--reuse",
    metavar="NAME[:KEY=VALUE,...]",
    shell_complete=completes(REUSES),
    help=f"Which slots a pass leaves out: {', '.join(REUSES)}.  [default: none]",
)
@click.option("--replay", metavar="F.html", help="Write a page to F.html that replays how the canvas was filled.")
@output_option
@click.option("--stream", is_flag=True, help="Write the text as it is made; show a canvas on standard error.")
@click.option("--json", "as_json", is_flag=True, help="Write each output as one line of JSON with value and scores.")
@click.option("--arg", multiple=True, metavar="NAME=VALUE", help="An argument of a program; NAME=@F reads it from F.")
@click.option("--trace", metavar="F", help="Write what happened in a program, or with --weights, to F.")
@click.option("--no-chat", is_flag=True, help="Give the model the prompt as it is, not as a message of a chat.")
def run(paths: tuple[str, ...], source: SourceOptions, **options: Any) -> int:
    """Let a model write JSON or text that FILE allows.

    FILE is a JSON Schema or a grammar, or - for a JSON Schema on standard input, or a program in a file of Python:
    FILE.py:NAME. The output is always complete and valid: if --max-tokens is too small for any, that is said before the
    model is asked.

    Without sampling options one output is written, from the most probable tokens. With --sampler smc outputs follow the
    model's own distribution given that they are valid, which choosing token by token does not; --weights
    shows all.

    With --decoder diffusion a diffusion model fills a canvas: --sampler dingo (the default) takes the most probable
    completion at each step, posterior samples one; --policy says how much of it stands before the next forward pass.
    """
    request = Request(**options)
    click.get_current_context().with_resource(noted(DraftWarning))
    (path,) = source.take_path(paths, "FILE", others="give a prompt with --prompt, a program's argument with --arg")
    request.check()
    if path == STANDARD_INPUT and STANDARD_INPUT in (request.prompts, request.chat_template):
        raise click.UsageError("FILE and another option cannot both be standard input")
    if request.chat_template is not None:  # the text itself from here on
        request = replace(request, chat_template=read_text(request.chat_template))
    # Rows are written to their file one by one, so that an interruption loses none.
    with output_file(None if request.prompts is not None else request.output):
        return _run(path, source, request)


def _run(path: str | None, source: SourceOptions, request: Request) -> int:
    """Run a description or a program on a model of any kind."""
    if request.decoder == "diffusion":
        if request.is_served:
            raise click.UsageError("--decoder diffusion is for models in this process, not for --model ADDRESS")
        return run_canvases(path, source, request)
    request.refuse(_CANVAS_OPTIONS)
    if request.is_served:
        check_served(request)
    if path is not None and is_program(path):
        return _run_program(path, request)
    if request.arg:
        raise click.UsageError("--arg is for programs: give FILE.py:NAME")
    if request.trace is not None and not request.weights:
        raise click.UsageError("--trace is for programs and for --weights: give FILE.py:NAME, or --weights")
    sampler = _sampler(request)
    outputs = _outputs(sampler, request)
    if request.is_served:
        return run_on_server(path, source, request, sampler, outputs)
    prompt = "" if request.prompts is not None else request.read_prompt(path)
    lines = None if request.prompts is None else read_lines(request.prompts, "prompt", plain=str)
    potentials = potentials_of(request.potential)
    read = read_source(path, source)
    compile_source(read)  # refuses what is wrong before a model is fetched and loaded
    progress = ProgressBar()

    def load() -> TokenTask:
        drafter = drafter_of(request.drafter, progress)
        _check_drafter(request, drafter, sampler)
        model = _load_model(request, progress)
        return TokenTask(model, compile_source(read, model.vocabulary), sampler, potentials, drafter, progress, request)

    try:
        if lines is not None:
            return write_rows(request, lines, lambda: (task := load(), (task.model, task.row))[1])
        task = load()
        ids = task.model.encode_prompt(prompt, chat=not request.no_chat)
        if request.weights:
            write_outputs_with_weights(task, ids)
            return DONE
        for index in range(outputs):
            write_output(task, ids, request.seed + index)
    finally:
        progress.close()
    return DONE


def _load_model(request: Request, progress: ProgressBar) -> LanguageModel:
    model = model_of(request.model, progress, device=request.device, runtime=request.runtime or "auto")
    if request.chat_template is not None:
        from structgen.models.model_input import use_chat_template

        use_chat_template(model, request.chat_template)
    return model


def _outputs(sampler: AnySampler | None, request: Request) -> int:
    """How many outputs are written; samplers of whole outputs take ``-n`` for themselves."""
    return 1 if _is_whole(sampler) else request.outputs


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
    outputs = _outputs(sampler, request)
    changes: dict[str, Any] = {
        "max_tokens": request.max_tokens,
        "alternatives": None if request.trace is None else _TRACED_ALTERNATIVES,
        "potentials": potentials_of(request.potential) or None,
        "sampler": sampler,
        "canonical": request.canonical or None,
    }
    progress = ProgressBar()
    if request.drafter is not None:
        changes["drafter"] = drafter_of(request.drafter, progress)  # None is no drafter there

    def load() -> AnyModel:
        if request.is_served:
            return server_of(str(request.model), request.model_name)
        return _load_model(request, progress)

    if request.prompts is not None:
        return program_rows(path, request, load=load, changes=changes)
    run_program(path, request, load=load, progress=progress, changes=changes, outputs=outputs)
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
        problem = str(error).removeprefix("Multinomial: ").partition("; use Greedy()")
        raise click.UsageError(
            problem[0] + ("; --temperature 0 takes what is most probable" if problem[1] else "")
        ) from error

"""``structgen run --decoder diffusion``: let a diffusion model fill a canvas."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import click
from click.core import ParameterSource

from structgen.cli.grammar_source import compile_source, read_source
from structgen.cli.model_option import EMBEDDED, NamedOption, diffusion_model_of
from structgen.cli.run_option import write_weights
from structgen.cli.run_program import is_program, program_rows, run_program
from structgen.cli.run_prompts import PromptLine, RowWriter, prompt_of, read_lines, write_rows
from structgen.cli.terminal import (
    DONE,
    INTERRUPTED,
    CanvasScreen,
    Failure,
    cut_text,
    result_as_json,
    result_values,
    write_costs,
)
from structgen.methods.catalogue import CANVAS_SAMPLERS, COMMIT_POLICIES, REUSES
from structgen.progress import ProgressBar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from threading import Event

    from structgen.cli.grammar_source import SourceOptions
    from structgen.cli.run_option import Request
    from structgen.decode import AnyCanvasSampler, Result
    from structgen.decode.diffusion.canvas_run import Snapshot
    from structgen.decode.diffusion.commit_policy import CommitPolicy, Unmasking
    from structgen.decode.diffusion.replay import Recorder
    from structgen.decode.sampling import SMC
    from structgen.engine import Constraint
    from structgen.models import Prompt
    from structgen.models.diffusion import DiffusionModel
    from structgen.program.execution import AnyModel

__all__ = ["run_canvases"]

_TOKEN_DECODER_OPTIONS: Final = {
    **dict.fromkeys(
        ("top_k", "top_p", "min_p"), "--sampler posterior samples from the whole distribution; leave it out"
    ),
    "runtime": "torch runs diffusion models; leave it out",
    "drafter": "drafts of canvases are policies; give --policy freedave or --policy selfspeculative",
    "canonical": "a canvas is not written from left to right; leave it out, or take --decoder autoregressive",
    "potential": "canvases take no potentials; say it in the grammar, or take --decoder autoregressive",
}
_UNMASKING_OPTIONS: Final = ("policy", "block", "reuse", "replay", "stream")


def run_canvases(path: str | None, source: SourceOptions, request: Request) -> int:
    """Fill canvases with strings of a description, or with the answers of a program.

    ``path`` is that of the description or the program; None where ``--regex`` stands for it.

    Raises:
        click.UsageError: options do not fit each other.
        Failure: a file cannot be read, or a model cannot be loaded.
        StructgenError: as ``structgen.generate``.
    """
    request.refuse(_TOKEN_DECODER_OPTIONS)
    if request.max_tokens is not None and request.canvas is not None:
        raise click.UsageError("--max-tokens and --canvas both say how many slots there are: give one of them")
    sampler = _sampler(request)
    if _is_smc(sampler):
        for name in _UNMASKING_OPTIONS:
            if getattr(request, name):
                raise click.UsageError(f"--{name} is not for smc, which fills many canvases in an order of its own")
    elif request.weights:
        raise click.UsageError("--weights needs outputs with weights: --sampler smc")
    unmasking = _unmasking(request)
    shown = _CanvasProgress(request, streams=not _is_smc(sampler))
    try:
        if path is not None and is_program(path):
            return _run_program(path, request, sampler, unmasking, shown)
        return _run_source(path, source, request, sampler, unmasking, shown)
    finally:
        shown.progress.close()


def _run_source(
    path: str | None,
    source: SourceOptions,
    request: Request,
    sampler: AnyCanvasSampler,
    unmasking: Unmasking,
    shown: _CanvasProgress,
) -> int:
    if request.arg:
        raise click.UsageError("--arg is for programs: give FILE.py:NAME")
    if request.trace is not None and not request.weights:
        raise click.UsageError(
            "--trace is for programs and for --weights: give FILE.py:NAME; --replay F.html shows how a canvas is filled"
        )
    prompt = "" if request.prompts is not None else request.read_prompt(path)
    lines = None if request.prompts is None else read_lines(request.prompts, "prompt", plain=str)
    if click.get_current_context().get_parameter_source("whitespace") is ParameterSource.DEFAULT:
        # White space takes slots; each runs in each pass; where tokens are written one by one, it costs none.
        source = replace(source, whitespace="compact")
    read = read_source(path, source)
    compile_source(read)  # refuses what is wrong before a model is loaded
    if lines is not None:

        def prepare() -> tuple[DiffusionModel, RowWriter]:
            model = shown.load(request.model, shown.progress)
            return model, _row_writer(request, compile_source(read, model.vocabulary), sampler, unmasking)

        return write_rows(request, lines, prepare)
    model = shown.load(request.model, shown.progress)
    constraint = compile_source(read, model.vocabulary)
    if request.weights:
        _write_weighted(model, prompt, constraint, cast("SMC", sampler), unmasking, shown)
    else:
        _write_outputs(model, prompt, constraint, sampler, unmasking, shown)
    return DONE


def _row_writer(request: Request, constraint: Constraint, sampler: AnyCanvasSampler, unmasking: Unmasking) -> RowWriter:
    """Return what fills the canvas of a line of ``--prompts``."""

    def write(line: PromptLine, model: AnyModel, stopped: Event) -> dict[str, Any]:
        from structgen.decode import generate

        def stop(_: Snapshot) -> None:
            if stopped.is_set():
                raise InterruptedError("it was not finished")

        seed = line.values.get("seed", request.seed + line.index)
        result = generate(
            cast("DiffusionModel", model),
            prompt_of(line, request),
            constraint,
            max_tokens=line.values.get("max_tokens", request.max_tokens),
            sampler=sampler,
            seed=seed,
            decoding=replace(unmasking, stream=None if _is_smc(sampler) else stop),
            chat=not request.no_chat,
        )
        return result_values(result, seed)

    return write


def _write_weighted(
    model: DiffusionModel,
    prompt: Prompt,
    constraint: Constraint,
    sampler: SMC,
    unmasking: Unmasking,
    shown: _CanvasProgress,
) -> None:
    from structgen.decode.sampling import sample

    request = shown.request
    shown.progress("sample outputs", 0, None)
    samples = sample(
        model,
        prompt,
        constraint,
        sampler=sampler,
        max_tokens=request.max_tokens,
        canvas=request.canvas,
        temperature=unmasking.temperature,
        seed=request.seed,
        chat=not request.no_chat,
    )
    shown.progress.close()
    write_weights(samples, request, sampler, model.name)


def _write_outputs(
    model: DiffusionModel,
    prompt: Prompt,
    constraint: Constraint,
    sampler: AnyCanvasSampler,
    unmasking: Unmasking,
    shown: _CanvasProgress,
) -> None:
    from structgen.decode import generate

    request = shown.request
    results: list[Result] = []
    for index in range(_outputs(sampler, request)):
        shown.begin()
        with shown.interruptible():
            result = generate(
                model,
                prompt,
                constraint,
                max_tokens=request.max_tokens,
                sampler=sampler,
                seed=request.seed + index,
                decoding=replace(unmasking, stream=shown.stream),
                chat=not request.no_chat,
            )
        shown.progress.close()
        results.append(result)
        if request.as_json:
            click.echo(result_as_json(result, request.seed + index))
        else:
            click.echo(result.data + b"\n", nl=False)
        slots = None if result.canvas is None else result.canvas.slots
        write_costs(result.stats, slots=slots, cut=cut_text(result))
    names = [f"seed {request.seed + index}" if len(results) > 1 else "" for index in range(len(results))]
    shown.write_replay(results, names)


def _run_program(
    path: str, request: Request, sampler: AnyCanvasSampler, unmasking: Unmasking, shown: _CanvasProgress
) -> int:
    request.refuse_for_program()
    from structgen.program.outcome import Served

    outputs = _outputs(sampler, request)
    says_sampler = request.sampler is not None or request.temperature is not None or outputs > 1
    changes = {
        "max_tokens": request.max_tokens,
        "unmasking": replace(unmasking, stream=None if request.prompts is not None else shown.stream),
        "sampler": sampler if says_sampler else None,
    }

    def load() -> DiffusionModel:
        return shown.load(request.model, shown.progress)

    if request.prompts is not None:
        return program_rows(path, request, load=load, changes=changes)
    runs = run_program(path, request, load=load, progress=shown.progress, changes=changes, outputs=outputs)
    outcomes = [outcome.result for run in runs for outcome in run.outcomes]
    results = [result for result in outcomes if not isinstance(result, Served)]
    shown.write_replay(results, [f"answer {number}" for number in range(1, len(results) + 1)])
    return DONE


class _CanvasProgress:
    """Output while canvases are filled: progress, the canvas on standard error, snapshots for the replay."""

    def __init__(self, request: Request, *, streams: bool) -> None:
        self.request = request
        self._last: Snapshot | None = None
        self._model: DiffusionModel | None = None
        self.stream: Callable[[Snapshot], object] | None = self.tell if streams else None
        self._screen: Callable[[Snapshot], object] | None = None
        self.progress = ProgressBar()
        self.recorder: Recorder

    def load(self, name: str | None, progress: ProgressBar) -> DiffusionModel:
        """Load the model, and get ready to show its tokens."""
        from structgen.decode.diffusion.replay import Recorder

        model = diffusion_model_of(
            name, progress, trust_remote_code=self.request.trust_remote_code, device=self.request.device
        )
        if self.request.chat_template is not None:
            from structgen.models.model_input import use_chat_template

            use_chat_template(model, self.request.chat_template)
        self._model = model
        self.recorder = Recorder()
        if self.request.stream:
            self._screen = CanvasScreen(model.vocabulary)
        return model

    def write_replay(self, results: Sequence[Result], names: Sequence[str]) -> None:
        """Write the page that ``--replay`` asks for."""
        from structgen.decode.diffusion.replay import replay_page

        if self.request.replay is not None:
            page = replay_page(self.recorder.replays(results, names=names))
            Path(self.request.replay).write_text(page, encoding="utf-8")

    def begin(self) -> None:
        """A canvas is about to be filled."""
        if self._screen is None:
            self.progress("fill slots:", 0, None)

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """Report on Ctrl-C what is on the canvas.

        Raises:
            Failure: the user has interrupted.
        """
        from structgen.decode.diffusion.fill import shown_canvas
        from structgen.decode.diffusion.replay import visible

        try:
            yield
        except KeyboardInterrupt:
            self.progress.close()
            so_far = ""
            if self._last is not None and self._model is not None:
                free = int((self._last.canvas < 0).sum())
                text = visible(shown_canvas(self._last.canvas, self._model.vocabulary))
                so_far = f" with {free} of {len(self._last.canvas)} slots free: {text}"
            raise Failure(f"interrupted{so_far}", INTERRUPTED) from None

    def tell(self, snapshot: Snapshot) -> None:
        """Show and keep a snapshot."""
        self._last = snapshot
        if self.request.replay is not None:
            self.recorder(snapshot)
        if self._screen is not None:
            self.progress.close()
            self._screen(snapshot)
        else:
            self.progress("fill slots:", int((snapshot.canvas >= 0).sum()), len(snapshot.canvas))


def _outputs(sampler: AnyCanvasSampler, request: Request) -> int:
    """How many outputs are written; SMC takes ``-n`` for itself."""
    return 1 if _is_smc(sampler) else request.outputs


def _is_smc(sampler: AnyCanvasSampler) -> bool:
    from structgen.decode.sampling import SMC

    return isinstance(sampler, SMC)


def _sampler(request: Request) -> AnyCanvasSampler:
    """The sampler that the options ask for: without any, and for one output, the most probable completions."""
    from structgen.decode.diffusion.posterior import Dingo, Posterior

    if request.sampler is not None and request.temperature == 0:
        raise click.UsageError("--temperature 0 takes the most probable completions: leave out --sampler")
    named = "smc" if request.sampler is None and request.weights else request.sampler
    if named is not None:
        made: AnyCanvasSampler = NamedOption.parse("--sampler", named).value(CANVAS_SAMPLERS, count=request.count)
        return made
    if request.temperature in (None, 0) and (request.count or 1) == 1:
        return Dingo()
    if request.temperature == 0:
        raise click.UsageError("--temperature 0 takes the most probable completions, so all outputs were the same")
    return Posterior()


def _unmasking(request: Request) -> Unmasking:
    from structgen.decode.diffusion.commit_policy import Unmasking

    policy = None if request.policy is None else _policy(request.policy, request.model)
    reuse: Any = None if request.reuse is None else NamedOption.parse("--reuse", request.reuse).value(REUSES)
    try:
        return Unmasking(
            canvas=request.canvas,
            policy=policy,
            temperature=request.temperature or 1.0,
            block=request.block,
            reuse=reuse,
        )
    except ValueError as error:
        raise click.UsageError(str(error).removeprefix("Unmasking: ")) from error


def _policy(text: str, model: str | None) -> CommitPolicy:
    """The policy that ``--policy`` asks for; the filter of a learned one comes with the embedded model."""
    option, given = NamedOption.parse("--policy", text), {}
    if option.name == "learned":
        if model not in (None, EMBEDDED):
            raise click.UsageError(
                "--policy learned: its filter was trained for the embedded diffusion model; pass one of your own to "
                "structgen.generate(policy=Learned(filter))"
            )
        from structgen.methods.policies.stateful import load_slot_filter

        given["filter"] = load_slot_filter()
    made: CommitPolicy = option.value(COMMIT_POLICIES, given=given)
    return made

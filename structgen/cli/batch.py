"""``structgen batch``: a program, or requests in OpenAI's batch format, over many lines in several processes."""

from __future__ import annotations

import asyncio
import hashlib
import io
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, get_args

import click

from structgen.cli.batch_file import LineFile, RowLog, key_of, request_line
from structgen.cli.batch_processes import Finished, Job, LineRunner, run_in_processes
from structgen.cli.command import Command, completes_files
from structgen.cli.grammar_source import run_file
from structgen.cli.model_option import EMBEDDED, decoder_of, diffusion_model_of, model_of, model_options
from structgen.cli.run_option import Decoder
from structgen.cli.run_program import is_program, json_arguments, load_program, plain_argument
from structgen.cli.run_prompts import PromptLine, line_of
from structgen.cli.run_server import server_of
from structgen.cli.terminal import DONE, FAILED, INTERRUPTED, Failure, lines_told, say
from structgen.errors import ModelError, install
from structgen.progress import ProgressBar

if TYPE_CHECKING:
    from threading import Event

    from structgen.models import Runtime
    from structgen.program import Program
    from structgen.program.execution import AnyModel

__all__ = ["batch"]

_LINE: Final = ("args", "id", "max_tokens", "seed")
"""The members that a line for a program may have."""


@dataclass(frozen=True, slots=True)
class _Model:
    """The options that name the model."""

    model: str | None
    model_name: str | None
    device: str
    runtime: Runtime | None
    decoder: Decoder | None
    trust_remote_code: bool

    @property
    def is_served(self) -> bool:
        """Whether it is on a server."""
        return self.model is not None and self.model.startswith(("http://", "https://"))

    def load(self, process: int, processes: int) -> AnyModel:
        """Load it for one of several processes, which share the processors; ``--device A,B`` gives them by turns."""
        if self.is_served:
            return server_of(str(self.model), self.model_name)
        if self.model is not None and is_program(self.model):
            return _own_model(self.model)
        devices = self.device.split(",")
        device = devices[process % len(devices)]
        progress = ProgressBar() if processes == 1 else ProgressBar(io.StringIO())
        decoder = self.decoder or decoder_of(self.model, progress)
        if decoder == "diffusion":
            return diffusion_model_of(self.model, progress, trust_remote_code=self.trust_remote_code, device=device)
        threads = max(1, _processors() // processes) if processes > 1 else None
        return model_of(
            self.model or EMBEDDED, progress, device=device, runtime=self.runtime or "auto", threads=threads
        )


def _processors() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _own_model(path: str) -> AnyModel:
    """The model that the function of ``FILE.py:NAME`` returns."""
    from structgen.program.execution import check_answering

    file, _, name = path.rpartition(":")
    function = getattr(run_file(file), name, None) if file else None
    if not callable(function):
        raise Failure(f"--model {path}: expected FILE.py:NAME, with a function NAME that returns a model")
    model: AnyModel = function()
    check_answering(model, f"--model {path}")
    return model


@dataclass(frozen=True, slots=True)
class _ProgramJob:
    """A program: see ``Job``."""

    path: str
    model: _Model
    batch_size: int
    seed: int
    max_tokens: int | None
    attempts: int

    def load(self, process: int, processes: int) -> LineRunner:
        from structgen.program.batch_map import run_batched

        program = load_program(self.path)
        model = self.model.load(process, processes)

        def run(lines: Iterable[PromptLine], finished: Finished) -> None:
            run_batched(
                lines,
                lambda line, model, stopped: self._row(program, line, model, stopped),
                finished,
                model=model,
                batch_size=self.batch_size,
            )

        return run

    def failed(self, line: PromptLine, problem: str, attempt: int) -> dict[str, Any]:
        from structgen.program.batch_row import error_row

        return error_row(key_of(line), f"{line.place}: {problem}", attempt)

    def _row(self, program: Program[..., Any], line: PromptLine, model: AnyModel, stopped: Event) -> dict[str, Any]:
        from structgen.program.batch_row import item_row, item_seed

        if line.fault:
            return self.failed(line, line.fault, 1)
        try:
            arguments = json_arguments(program, line.values["args"])
        except Failure as failure:
            return self.failed(line, failure.message, 1)
        key, given = key_of(line), line.values.get("seed")
        row = item_row(
            program,
            key,
            arguments,
            model=model,
            seed=given if given is not None else lambda attempt: item_seed(self.seed, key, attempt),
            attempts=self.attempts,
            is_stopped=stopped.is_set,
            settings={"max_tokens": line.values.get("max_tokens", self.max_tokens)},
        )
        return row if row["error"] is None else {**row, "error": f"{line.place}: {row['error']}"}


@dataclass(frozen=True, slots=True)
class _RequestJob:
    """Requests in OpenAI's batch format, which the server's application answers: see ``Job``."""

    model: _Model
    batch_size: int
    seed: int

    def load(self, process: int, processes: int) -> LineRunner:
        try:
            from structgen.integrations.server.in_process import InProcess
        except ImportError as error:
            raise ModelError(
                "structgen batch",
                "a package is missing for requests in OpenAI's format",
                evidence=str(error),
                remedy=install("server"),
            ) from None
        from structgen.heap import share_heaps

        share_heaps()  # each answer has a thread
        model: Any = self.model.load(process, processes)

        async def run(lines: Iterable[PromptLine], finished: Finished) -> None:
            server = InProcess(model, max_running=self.batch_size, name=self.model.model_name)
            pending, turn = iter(lines), asyncio.Lock()

            async def work() -> None:
                while True:
                    async with turn:
                        line = await asyncio.to_thread(next, pending, None)
                    if line is None:
                        return
                    finished(line, await self._row(server, line))

            try:
                await asyncio.gather(*(work() for _ in range(self.batch_size)))
            finally:
                await server.close()

        return lambda lines, finished: asyncio.run(run(lines, finished))

    async def _row(self, server: Any, line: PromptLine) -> dict[str, Any]:
        from structgen.program.batch_row import item_seed

        key = key_of(line)
        status, body = await server.answer(line.values["url"], line.values["body"], seed=item_seed(self.seed, key))
        digest = _digest(key)
        response = {"status_code": status, "request_id": f"req_{digest}", "body": body}
        return {"id": f"batch_req_{digest}", "custom_id": key, "response": response, "error": None}

    def failed(self, line: PromptLine, problem: str, attempt: int) -> dict[str, Any]:
        key = key_of(line)
        error = {"code": "process_ended", "message": f"{line.place}: {problem}"}
        return {"id": f"batch_req_{_digest(key)}", "custom_id": key, "response": None, "error": error}


def _digest(key: str | int) -> str:
    return hashlib.blake2b(str(key).encode("utf-8", "backslashreplace"), digest_size=12).hexdigest()


@click.command(
    cls=Command,
    groups={
        "Job": ("workers", "batch_size", "resume", "retry", "attempts", "seed", "max_tokens"),
        "Model": ("model", "model_name", "device", "runtime", "decoder", "trust_remote_code"),
    },
    examples=(
        "structgen batch contact.py:contact in.jsonl out.jsonl --workers 2 --resume",
        "structgen batch contact.py in.jsonl out.jsonl --model http://localhost:8000/v1#qwen3",
        "structgen batch requests.jsonl answers.jsonl --model model.gguf",
    ),
)
@click.argument(
    "paths", nargs=-1, metavar="[FILE.py:NAME] IN OUT", shell_complete=completes_files(".py", ".jsonl", ".txt")
)
@click.option(
    "--workers",
    type=click.IntRange(min=1),
    metavar="N",
    default=1,
    show_default=True,
    help="Processes, each with a model of its own.",
)
@click.option(
    "--batch-size",
    type=click.IntRange(min=1),
    metavar="N",
    default=8,
    show_default=True,
    help="How many lines run in one forward pass of a process.",
)
@click.option("--resume", is_flag=True, help="Go on with OUT: only run lines whose ids it lacks.")
@click.option("--retry", is_flag=True, help="With --resume: take rows that are errors out of OUT, and run them again.")
@click.option(
    "--attempts",
    type=click.IntRange(min=1),
    metavar="N",
    default=1,
    show_default=True,
    help="Run a line that fails up to N times, each with another seed.",
)
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    metavar="S",
    default=0,
    show_default=True,
    help="The seed of each line follows from S and its id.",
)
@click.option("--max-tokens", type=click.IntRange(min=0), metavar="N", help="In place of the program's own.")
@model_options(
    model=", or FILE.py:NAME, a function that returns a model.  [default: the embedded model]",
    name=", or in requests.",
    device="; cuda:0,cuda:1 are taken by turns",
)
@click.option(
    "--decoder",
    type=click.Choice(get_args(Decoder)),
    help="The model writes token by token, or fills canvases.  [default: by its files]",
)
def batch(paths: tuple[str, ...], **options: Any) -> int:
    """Run a program for each line of IN, and append a row to OUT for each.

    A line of IN is {"id": ..., "args": {...}}, or in a *.txt the argument itself. A row of OUT has id, value, error,
    losses, tokens and attempt; a line that fails is a row too. Rows come in the order in which they are done.

    Without FILE.py:NAME the lines are requests in OpenAI's batch format, and so are the rows.

    --resume goes on with a run, however that was ended; the rows are the same as without the interruption.
    """
    if len(paths) not in (2, 3):
        raise click.UsageError(f"expected [FILE.py:NAME] IN OUT, found {' '.join(paths) or 'nothing'}")
    source, output = paths[-2:]
    path = paths[0] if len(paths) == 3 else None
    workers, resume, retry = options.pop("workers"), options.pop("resume"), options.pop("retry")
    if retry and not resume:
        raise click.UsageError("--retry goes on with the rows of OUT: add --resume")
    job, lines = _job(path, source, **options)
    of_requests = path is None
    log = RowLog(
        output,
        resume=resume,
        retry=retry,
        key="custom_id" if of_requests else "id",
        is_error=_is_error_answer if of_requests else lambda row: row["error"] is not None,
    )
    with log:
        return _run(job, lines, log, workers)


def _job(
    path: str | None, source: str, *, batch_size: int, seed: int, max_tokens: int | None, attempts: int, **model: Any
) -> tuple[Job, LineFile]:
    """The job and its lines; both are checked before a model is loaded."""
    chosen = _Model(**model)
    if chosen.model_name is not None and path is not None and not chosen.is_served:
        raise click.UsageError("--model-name is for a server: give its address, --model http://localhost:8000/v1")
    if path is None:
        if chosen.is_served:
            raise click.UsageError("requests are answered in this process: give a model, or send them to the server")
        if max_tokens is not None or attempts > 1:
            raise click.UsageError("--max-tokens and --attempts are for programs: each request has its own max_tokens")
        return _RequestJob(chosen, batch_size, seed), LineFile(source, request_line)
    if not is_program(path):
        raise click.UsageError(f"{path}: expected a program, FILE.py:NAME")
    program = load_program(path)
    plain = plain_argument(program) if source.lower().endswith(".txt") else None
    if source.lower().endswith(".txt") and plain is None:
        raise Failure(f"{source}: a line of text is one argument, and the program takes several; write JSON lines")
    read = LineFile(source, lambda data, index, place: line_of(data, index, place, _LINE, plain=plain))
    return _ProgramJob(path, chosen, batch_size, seed, max_tokens, attempts), read


def _is_error_answer(row: dict[str, Any]) -> bool:
    response = row.get("response")
    return not isinstance(response, dict) or response.get("status_code") != 200


def _run(job: Job, lines: LineFile, log: RowLog, workers: int) -> int:
    """Run the lines that have no row, and return the exit status."""
    total = len(lines.places)
    skipped = sum(key in log.finished for key in lines.places)
    if skipped < len(log.finished):
        say("note", f"OUT has {len(log.finished) - skipped} rows of ids that IN has not")

    def told() -> str:
        held, failed = (sum(key in rows for key in lines.places) for rows in (log.finished, log.errors))
        return lines_told(total, done=held - failed, failed=failed, earlier=skipped)

    first = ""

    try:
        with _progress(total, skipped, log) as advance:

            def finished(_: PromptLine, row: dict[str, Any]) -> None:
                nonlocal first
                log.write(row)
                advance()
                if not first and isinstance(row.get("error"), str):
                    first = row["error"]

            if skipped < total:
                left = lines.lines(log.finished)
                if workers == 1:
                    job.load(0, 1)(left, finished)
                else:
                    run_in_processes(job, left, finished, processes=min(workers, total - skipped))
    except KeyboardInterrupt:
        raise Failure(f"interrupted: {told()}; --resume goes on", INTERRUPTED) from None
    if first:
        say("note", f"the first error: {first}")
    click.echo(told(), err=True)
    return FAILED if log.errors else DONE


@contextmanager
def _progress(total: int, skipped: int, log: RowLog) -> Iterator[Callable[[], None]]:
    """A bar on standard error, if that is a terminal."""
    began, done = monotonic(), 0
    with ProgressBar() as bar:

        def advance() -> None:
            nonlocal done
            done += 1
            pace = done / max(monotonic() - began, 1e-9)
            bar("run lines", skipped + done, total, f"{pace:.1f}/s, {len(log.errors)} errors")

        bar("run lines", skipped, total)
        yield advance

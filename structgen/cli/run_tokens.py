"""``structgen run`` with an autoregressive model: outputs, rows, and samples with weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from structgen.cli.run_option import DEFAULT_TOKENS, write_weights
from structgen.cli.run_prompts import PromptLine, prompt_of
from structgen.cli.terminal import INTERRUPTED, Failure, cut_text, result_as_json, result_values, write_costs
from structgen.progress import ProgressBar

if TYPE_CHECKING:
    from threading import Event

    from structgen.cli.run_option import Request
    from structgen.decode import AnyDrafter, AnyPotential, AnySampler, Context, Generation
    from structgen.engine import Constraint
    from structgen.models import LanguageModel
    from structgen.program.execution import AnyModel

__all__ = ["TokenTask", "write_output", "write_outputs_with_weights"]


@dataclass(frozen=True, slots=True)
class TokenTask:
    """The settings that all outputs of one call share."""

    model: LanguageModel
    constraint: Constraint
    sampler: AnySampler
    potentials: Sequence[AnyPotential]
    drafter: AnyDrafter
    progress: ProgressBar
    request: Request

    def generation(self, context: Context, seed: int, max_tokens: int | None = None) -> Generation:
        """Return the generation of an output after a prompt; ``max_tokens`` is in place of that of the options."""
        from structgen.decode import start_generation

        return start_generation(
            context,
            self.constraint,
            max_tokens=_max_tokens(self.request) if max_tokens is None else max_tokens,
            sampler=self.sampler,
            potentials=self.potentials,
            seed=seed,
            drafter=self.drafter,
            canonical=self.request.canonical,
        )

    def row(self, line: PromptLine, model: AnyModel, stopped: Event) -> dict[str, Any]:
        """Generate the output of a line of ``--prompts``: see ``RowWriter``."""
        from structgen.decode import Context

        seed = line.values.get("seed", self.request.seed + line.index)
        batch: Any = model
        ids = batch.encode_prompt(prompt_of(line, self.request), chat=not self.request.no_chat)
        with Context(batch, ids) as context:
            generation = self.generation(context, seed, line.values.get("max_tokens"))
            for _ in generation:
                if stopped.is_set():
                    raise InterruptedError("it was not finished")
            return result_values(generation.result(), seed)


def write_output(task: TokenTask, prompt: list[int], seed: int) -> None:
    """Generate one output and write it."""
    from structgen.decode import Context

    request = task.request
    with Context(task.model, prompt) as context:
        generation = task.generation(context, seed)
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


def write_outputs_with_weights(task: TokenTask, prompt: list[int]) -> None:
    """Sample outputs and write all of them with their weights."""
    request = task.request
    import numpy as np

    from structgen.decode import Context
    from structgen.decode.potentials import with_canonical
    from structgen.decode.sampling import SequenceSampler, run_sampler
    from structgen.decode.sampling.sampler_run import whole_speculation

    if not isinstance(task.sampler, SequenceSampler):
        raise click.UsageError("--weights needs a sampler of whole outputs")
    max_tokens = _max_tokens(request)
    potentials = with_canonical(task.potentials, task.constraint, max_tokens, canonical=request.canonical)
    task.progress("sample outputs", 0, None)
    with Context(task.model, prompt) as context:
        samples = run_sampler(
            task.sampler,
            context,
            task.constraint,
            potentials=potentials,
            max_tokens=max_tokens,
            generator=np.random.Generator(np.random.PCG64(request.seed)),
            speculation=whole_speculation(task.drafter, task.sampler),
        )
    task.progress.close()
    write_weights(samples, request, task.sampler, task.model.name)


def _follow(generation: Generation, progress: ProgressBar, *, stream: bool) -> None:
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

"""``structgen run --sampler``: which sampler the command line asks for, and what it drew."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from structgen.cli.failure import Failure
from structgen.cli.module_file import run_file
from structgen.cli.named import Home, named_value
from structgen.cli.output import accepted_drafts, finite

if TYPE_CHECKING:
    from structgen.cli.request import Request
    from structgen.decode import AnyCanvasSampler, AnyPotential, AnySampler
    from structgen.decode.sampling import Samples

__all__ = ["SAMPLERS", "potentials_of", "sampler_of", "trace_of", "weights_as_json", "weights_as_text", "write_weights"]

SAMPLERS: Final = {
    "greedy": Home("structgen.decode", "Greedy"),
    "multinomial": Home("structgen.decode", "Multinomial"),
    "awrs": Home("structgen.decode.sampling", "AWRS"),
    "smc": Home("structgen.decode.sampling", "SMC", "particles"),
    "bestof": Home("structgen.decode.sampling", "BestOf", "n"),
    "beam": Home("structgen.decode.sampling", "Beam", "n"),
    "asap": Home("structgen.decode.sampling", "ASAp", "samples"),
    "rejection": Home("structgen.decode.sampling", "RejectionTrie", "samples"),
    "exact": Home("structgen.decode.sampling", "ExactBest", "n"),
    "cautious": Home("structgen.decode.strategies", "Cautious"),
    "adadec": Home("structgen.decode.strategies", "AdaDec"),
    "foresight": Home("structgen.decode.strategies", "Foresight"),
    "firstfinish": Home("structgen.decode.strategies", "FirstFinish", "samples"),
    "thinking": Home("structgen.decode.strategies", "Thinking"),
    "momentum": Home("structgen.decode.strategies", "Momentum"),
    "lookback": Home("structgen.decode.strategies", "LookBack"),
    "bregman": Home("structgen.decode.strategies", "BregmanTopK"),
}
"""The samplers of models that write token by token, by name."""

TRACE_VERSION: Final = 1


def sampler_of(text: str, count: int | None, *, weights: bool) -> AnySampler:
    """Return the sampler that ``NAME`` or ``NAME:KEY=VALUE,...`` asks for.

    Args:
        text: the option.
        count: ``-n``, which samplers of whole outputs take for themselves; None is their default.
        weights: whether weights are wanted, which AWRS by itself has as importance sampling only.

    Raises:
        click.UsageError: there is no such sampler, or its settings are unusable.
    """
    from structgen.decode.sampling import AWRS, SMC

    sampler: AnySampler = named_value("--sampler", text, SAMPLERS, count=count)
    if isinstance(sampler, AWRS) and weights:
        return SMC(count or 1, ess_threshold=0, proposal=sampler)
    return sampler


def potentials_of(paths: Sequence[str]) -> list[AnyPotential]:
    """Return what ``FILE.py:NAME`` names: potentials, or functions of the text of a complete output.

    Raises:
        Failure: a file cannot be run, or holds no such thing.
    """
    return [_potential(path) for path in paths]


def _potential(path: str) -> AnyPotential:
    from structgen.decode.potentials import as_potential

    file, _, name = path.rpartition(":")
    if not file.endswith(".py") or not name.isidentifier():
        raise Failure(f"--potential {path}: expected FILE.py:NAME")
    module = run_file(file)
    if not hasattr(module, name):
        raise Failure(f"--potential {path}: {file} holds no {name!r}")
    try:
        return as_potential(getattr(module, name))
    except TypeError as error:
        raise Failure(f"--potential {path}: {error}") from error


def write_weights(samples: Samples, request: Request, sampler: AnySampler | AnyCanvasSampler, model: str) -> None:
    """Write all samples with their weights, and where ``--trace`` asks for it, how they came about."""
    if request.trace is not None:
        page = trace_of(samples, sampler, model=model, seed=request.seed)
        Path(request.trace).write_text(page, encoding="utf-8")
    if request.as_json:
        click.echo(weights_as_json(samples))
    else:
        for line in weights_as_text(samples):
            click.echo(line)
    # Where nobody was asked and something was written, nobody forbade anything.
    asked = f", {samples.asked} questions; {samples.verdict}" if samples.asked or not samples.samples else ""
    click.echo(
        f"{samples.particles} particles, {samples.tokens} tokens, {samples.forwards} forward passes"
        f"{accepted_drafts(samples.drafts)}{asked}",
        err=True,
    )


def weights_as_text(samples: Samples) -> Iterator[str]:
    """A line for each sample with its normalised weight, and one with the log-evidence."""
    for weight, sample in zip(samples.weights, samples.samples, strict=True):
        text = sample.result.text
        shown = json.dumps(text, ensure_ascii=False) if "\n" in text else text
        yield f"{weight:.4f}  {shown}"
    evidence = "unknown to this sampler" if samples.log_evidence is None else f"{samples.log_evidence:.4f}"
    error = "" if samples.standard_error is None else f" ± {samples.standard_error:.4f}"
    size = f"effective sample size {samples.ess:.1f} of {samples.particles}"
    yield f"log evidence {evidence}{error}, {size}"


def weights_as_json(samples: Samples) -> str:
    """One line of JSON with all samples and the log-evidence."""
    return json.dumps(
        {
            "samples": [
                {
                    "text": sample.result.text,
                    "weight": float(weight),
                    "log_weight": finite(sample.log_weight),
                    "particles": sample.particles,
                    "score": finite(sample.score),
                    "tokens": list(sample.result.tokens),
                    "finish_reason": sample.result.finish_reason,
                }
                for weight, sample in zip(samples.weights, samples.samples, strict=True)
            ],
            **_summary(samples),
        },
        ensure_ascii=False,
    )


def trace_of(samples: Samples, sampler: AnySampler | AnyCanvasSampler, *, model: str, seed: int) -> str:
    """What ``structgen trace`` shows of a run."""
    page = {
        "structgen_trace": TRACE_VERSION,
        "sampler": repr(sampler),
        "model": model,
        "seed": seed,
        "rounds": [{**asdict(each), "log_evidence": finite(each.log_evidence)} for each in samples.history],
        "outputs": [
            {"text": sample.result.text, "weight": float(weight), "particles": sample.particles}
            for weight, sample in zip(samples.weights, samples.samples, strict=True)
        ],
        "verdict": samples.verdict,
        **_summary(samples),
    }
    return json.dumps(page, ensure_ascii=False, indent=1) + "\n"


def _summary(samples: Samples) -> dict[str, Any]:
    return {
        "lossless": samples.lossless,
        "log_evidence": None if samples.log_evidence is None else finite(samples.log_evidence),
        "standard_error": samples.standard_error,
        "ess": samples.ess,
        "particles": samples.particles,
        "forwards": samples.forwards,
        "sampled_tokens": samples.tokens,
        "asked": samples.asked,
        "masks": samples.masks,
        "drafts": None if samples.drafts is None else asdict(samples.drafts),
    }

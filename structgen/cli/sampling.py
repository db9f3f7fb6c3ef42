"""``structgen run --sampler``: which sampler the command line asks for, and what it drew."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any, Final

import click

from structgen.cli.failure import Failure
from structgen.cli.module_file import run_file

if TYPE_CHECKING:
    from structgen.decode import AnyPotential, AnySampler
    from structgen.decode.sampling import Samples

__all__ = ["SAMPLERS", "potentials_of", "sampler_of", "trace_of", "weights_as_json", "weights_as_text"]

SAMPLERS: Final = {
    "greedy": ("structgen.decode", "Greedy", None),
    "multinomial": ("structgen.decode", "Multinomial", None),
    "awrs": ("structgen.decode.sampling", "AWRS", None),
    "smc": ("structgen.decode.sampling", "SMC", "particles"),
    "bestof": ("structgen.decode.sampling", "BestOf", "n"),
    "beam": ("structgen.decode.sampling", "Beam", "n"),
    "asap": ("structgen.decode.sampling", "ASAp", "samples"),
    "rejection": ("structgen.decode.sampling", "RejectionTrie", "samples"),
    "exact": ("structgen.decode.sampling", "ExactBest", "n"),
    "cautious": ("structgen.decode.strategies", "Cautious", None),
    "adadec": ("structgen.decode.strategies", "AdaDec", None),
    "foresight": ("structgen.decode.strategies", "Foresight", None),
    "firstfinish": ("structgen.decode.strategies", "FirstFinish", "samples"),
    "thinking": ("structgen.decode.strategies", "Thinking", None),
    "momentum": ("structgen.decode.strategies", "Momentum", None),
    "lookback": ("structgen.decode.strategies", "LookBack", None),
    "bregman": ("structgen.decode.strategies", "BregmanTopK", None),
}
"""The samplers by name: where they are, their class, and what ``-n`` is called there."""

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

    name, _, settings = text.partition(":")
    if name not in SAMPLERS:
        raise click.UsageError(f"--sampler {name!r} is none; there are {', '.join(SAMPLERS)}")
    home, kind, counted = SAMPLERS[name]
    held = _settings(name, settings)
    made: Any = getattr(importlib.import_module(home), kind)
    known = [field.name for field in fields(made)]
    for key in held:
        if key not in known:
            raise click.UsageError(
                f"--sampler {name}: there is no {key!r}; there are {', '.join(known) or 'no settings'}"
            )
    if counted is not None and count is not None:
        if counted in held:
            raise click.UsageError(f"--sampler {name}: {counted} is what -n says: give one of them")
        held[counted] = count
    try:
        sampler: AnySampler = made(**held)
        if name == "awrs" and weights:
            sampler = SMC(count or 1, ess_threshold=0, proposal=AWRS(**held))
    except (ValueError, TypeError) as error:
        raise click.UsageError(f"--sampler {name}: {error}") from error
    return sampler


def _settings(name: str, text: str) -> dict[str, Any]:
    held: dict[str, Any] = {}
    for item in text.split(",") if text else ():
        key, separator, value = item.partition("=")
        if not separator or not key:
            raise click.UsageError(f"--sampler {name}: expected KEY=VALUE; found {item!r}")
        try:
            held[key] = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            held[key] = value
    return held


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
                    "log_weight": _finite(sample.log_weight),
                    "particles": sample.particles,
                    "score": _finite(sample.score),
                    "tokens": list(sample.result.tokens),
                    "finish_reason": sample.result.finish_reason,
                }
                for weight, sample in zip(samples.weights, samples.samples, strict=True)
            ],
            **_summary(samples),
        },
        ensure_ascii=False,
    )


def trace_of(samples: Samples, sampler: AnySampler, *, model: str, seed: int) -> str:
    """What ``structgen trace`` shows of a run."""
    page = {
        "structgen_trace": TRACE_VERSION,
        "sampler": repr(sampler),
        "model": model,
        "seed": seed,
        "rounds": [{**asdict(each), "log_evidence": _finite(each.log_evidence)} for each in samples.history],
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
        "log_evidence": None if samples.log_evidence is None else _finite(samples.log_evidence),
        "standard_error": samples.standard_error,
        "ess": samples.ess,
        "particles": samples.particles,
        "forwards": samples.forwards,
        "sampled_tokens": samples.tokens,
        "asked": samples.asked,
        "masks": samples.masks,
    }


def _finite(value: float) -> float | None:
    """JSON has no infinities: the logarithm of zero is null."""
    return value if math.isfinite(value) else None

"""The options of ``structgen run``, read: the request, its sampler and potentials, and its drafter."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

import click

from structgen.cli.grammar_source import STANDARD_INPUT, read_text, run_file
from structgen.cli.model_option import NamedOption, model_of, unknown
from structgen.cli.terminal import Failure, accepted_drafts, finite
from structgen.methods.catalogue import BRIDGES, DRAFTERS, SAMPLERS

if TYPE_CHECKING:
    from structgen.decode import AnyCanvasSampler, AnyPotential, AnySampler
    from structgen.decode.sampling import Samples
    from structgen.decode.speculative.speculation import AnyDrafter
    from structgen.models import Prompt, Runtime
    from structgen.progress import ProgressBar

__all__ = [
    "DEFAULT_PROMPT",
    "DEFAULT_TOKENS",
    "DRAFTER_NAMES",
    "Decoder",
    "Request",
    "drafter_of",
    "potentials_of",
    "sampler_of",
    "trace_of",
    "weights_as_json",
    "weights_as_text",
    "write_weights",
]

_OPTION: Final = "--drafter"
_AUTO: Final = "auto"
_NONE: Final = "none"
_DRAFT_MODEL: Final = "draft-model"

DRAFTER_NAMES: Final = (_AUTO, _NONE, *DRAFTERS)
"""All that the option may name."""

_LEARN_FROM_OWN_ROWS: Final = ("jacobi", "lookahead")
"""Drafters that learn from the rows of their own draft tokens."""

_NOT_SETTABLE: Final = frozenset(
    ("calibration", "counts", "drafter", "distributions", "pool", "ranks", "shape", "store", "trials", "trim")
)
"""Settings of drafters that are no literals."""


def drafter_of(text: str | None, progress: ProgressBar) -> AnyDrafter:
    """Return what ``NAME`` or ``NAME:KEY=VALUE,...`` asks for, None as ``auto``; a draft model is loaded.

    Draft tokens are run only where they are expected to pay, as those of ``auto`` are; those of ``jacobi`` and
    ``lookahead`` are run in any case, for what their rows say.

    Raises:
        click.UsageError: there is no such drafter, or its settings are unusable.
        Failure: there is no such draft model, or it cannot be loaded.
    """
    option = NamedOption.parse(_OPTION, _AUTO if text is None else text)
    name = option.name
    if name in (_AUTO, _NONE):
        if option.settings:
            raise click.UsageError(unknown(f"{_OPTION} {name}", next(iter(option.settings)), ()))
        return "auto" if name == _AUTO else None
    if name not in DRAFTERS:
        raise click.UsageError(unknown(_OPTION, name, DRAFTER_NAMES))
    from structgen.decode.speculative.speculation import Speculation

    given: dict[str, Any] = {}
    if name == _DRAFT_MODEL:
        given = _draft_model(option.settings, progress)
    elif name == "short-context":
        given = {"model": None}  # the target itself
    drafter = option.value(DRAFTERS, given=given, unsaid=_NOT_SETTABLE)
    return Speculation(drafter, cost=None if name in _LEARN_FROM_OWN_ROWS else "assumed")


def _draft_model(held: dict[str, Any], progress: ProgressBar) -> dict[str, Any]:
    """Take the model and the bridge out of the settings of ``draft-model``."""
    if "model" not in held:
        raise click.UsageError(f"{_OPTION} {_DRAFT_MODEL}: it needs a model: write {_DRAFT_MODEL}:model=M")
    bridge = held.pop("bridge", None)
    if bridge is not None:
        bridge = NamedOption.parse(f"{_OPTION} {_DRAFT_MODEL}:bridge", str(bridge)).value(BRIDGES)
    return {"bridge": bridge, "model": model_of(str(held.pop("model")), progress)}


DEFAULT_PROMPT: Final = "Write an example."
DEFAULT_TOKENS: Final = 256

Decoder: TypeAlias = Literal["autoregressive", "diffusion"]


_NOT_WITH_PROMPTS: Final = {
    **dict.fromkeys(("prompt", "prompt_file"), "the file has the prompts; leave it out"),
    "arg": 'each line has its arguments, {"args": {...}}; leave it out',
    "stream": "each row is written when it is done; leave it out",
    **dict.fromkeys(("weights", "trace", "replay"), "they are of one output; run that prompt alone"),
}


@dataclass(frozen=True, slots=True)
class Request:
    """The options of ``structgen run``, as they were given."""

    prompt: str | None
    prompt_file: str | None
    prompts: str | None
    system: str | None
    chat_template: str | None
    batch_size: int
    resume: bool
    output: str | None
    model: str | None
    model_name: str | None
    device: str
    runtime: Runtime | None
    trust_remote_code: bool
    decoder: Decoder
    max_tokens: int | None
    sampler: str | None
    drafter: str | None
    potential: tuple[str, ...]
    canonical: bool
    weights: bool
    count: int | None
    seed: int
    temperature: float | None
    top_k: int | None
    top_p: float | None
    min_p: float | None
    canvas: int | None
    policy: str | None
    block: int | None
    reuse: str | None
    replay: str | None
    stream: bool
    as_json: bool
    no_chat: bool
    arg: tuple[str, ...]
    trace: str | None

    @property
    def is_served(self) -> bool:
        """Whether the model is on a server: ``--model`` is an address."""
        return self.model is not None and self.model.startswith(("http://", "https://"))

    @property
    def outputs(self) -> int:
        """How many outputs are written.

        Raises:
            click.UsageError: several of many prompts.
        """
        if self.prompts is not None and (self.count or 1) > 1:
            raise click.UsageError("-n is for one prompt: write a prompt K times, with an id for each")
        return self.count or 1

    def refuse(self, options: Mapping[str, str], *, by: str | None = None) -> None:
        """Refuse options that are given although there is no use for them.

        Args:
            options: by name of the option, the reason and what to do instead.
            by: the option that has no use for them; None: ``--decoder``.

        Raises:
            click.UsageError: one is given.
        """
        for name, reason in options.items():
            if getattr(self, name) not in (None, False, ()):
                by = by or f"--decoder {self.decoder}"
                raise click.UsageError(f"--{name.replace('_', '-')} is not for {by}: {reason}")

    def check(self) -> None:
        """Refuse options that exclude each other for every description and model.

        Raises:
            click.UsageError: such are given.
        """
        if self.stream and self.as_json:
            raise click.UsageError("--stream writes text as it is made and --json a line at the end: give one of them")
        if self.no_chat:
            self.refuse(
                dict.fromkeys(("system", "chat_template"), "there are no messages; leave one out"), by="--no-chat"
            )
        if self.prompts is not None:
            self.refuse(_NOT_WITH_PROMPTS, by="--prompts")
        elif self.resume:
            raise click.UsageError("--resume goes on with many prompts: give them with --prompts FILE")
        if not self.is_served and self.model_name is not None:
            raise click.UsageError("--model-name is for a server: give its address, --model http://localhost:8000/v1")

    def refuse_for_program(self) -> None:
        """Refuse options that a program has no use for.

        Raises:
            click.UsageError: one is given.
        """
        if self.prompt is not None or self.prompt_file is not None or self.no_chat:
            raise click.UsageError("a program has its own prompt: give its arguments with --arg NAME=VALUE")
        if self.weights:
            raise click.UsageError("--weights is for descriptions: a program has one value")

    def read_prompt(self, path: str | None) -> Prompt:
        """Return the prompt of the model; ``path`` is the file of the description.

        Raises:
            click.UsageError: options exclude each other.
            Failure: the file cannot be read.
        """
        text = self._prompt_text(path)
        if self.system is None:
            return text
        return [{"role": "system", "content": self.system}, {"role": "user", "content": text}]

    def _prompt_text(self, path: str | None) -> str:
        name, file = "--prompt-file", self.prompt_file
        if file is None:
            if self.prompt != STANDARD_INPUT:
                return DEFAULT_PROMPT if self.prompt is None else self.prompt
            name, file = "--prompt", STANDARD_INPUT
        elif self.prompt is not None:
            raise click.UsageError("--prompt and --prompt-file exclude each other")
        if file == path == STANDARD_INPUT:
            raise click.UsageError(f"FILE and {name} cannot both be standard input")
        return read_text(file)


TRACE_VERSION: Final = 1


def sampler_of(text: str, count: int | None, *, weights: bool) -> AnySampler:
    """Return the sampler that ``NAME`` or ``NAME:KEY=VALUE,...`` asks for.

    Samplers of whole outputs take ``count``, which is ``-n``, for themselves; None is their default.  Where ``weights``
    are requested, AWRS or Multinomial by itself is importance sampling.

    Raises:
        click.UsageError: there is no such sampler, or its settings are unusable.
    """
    from structgen.decode import Multinomial
    from structgen.decode.sampling import AWRS, SMC

    sampler: AnySampler = NamedOption.parse("--sampler", text).value(SAMPLERS, count=count)
    if weights and isinstance(sampler, (AWRS, Multinomial)) and sampler.lossless:
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
    # Without queries, and with samples, no potential forbade anything.
    queries = f", {samples.queries} queries; {samples.verification}" if samples.queries or not samples.samples else ""
    click.echo(
        f"{samples.particles} particles, {samples.tokens} tokens, {samples.forwards} forward passes"
        f"{accepted_drafts(samples.drafts)}{queries}",
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
                    "cut_at": sample.result.cut_at,
                }
                for weight, sample in zip(samples.weights, samples.samples, strict=True)
            ],
            **_summary(samples),
        },
        ensure_ascii=False,
    )


def trace_of(samples: Samples, sampler: AnySampler | AnyCanvasSampler, *, model: str, seed: int) -> str:
    """The trace of a run, which ``structgen trace`` shows."""
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
        "verification": samples.verification,
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
        "queries": samples.queries,
        "masks": samples.masks,
        "drafts": None if samples.drafts is None else asdict(samples.drafts),
    }

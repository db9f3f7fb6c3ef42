"""What ``structgen run`` is asked for, beside the description."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

import click

from structgen.cli.source import STANDARD_INPUT, read_text

__all__ = ["DEFAULT_PROMPT", "DEFAULT_TOKENS", "Decoder", "Request"]

DEFAULT_PROMPT: Final = "Write an example."
DEFAULT_TOKENS: Final = 256

Decoder: TypeAlias = Literal["autoregressive", "diffusion"]


@dataclass(frozen=True, slots=True)
class Request:
    """The options of ``structgen run``, as they were given."""

    prompt: str | None
    prompt_file: str | None
    model: str | None
    device: str
    trust_remote_code: bool
    decoder: Decoder
    max_tokens: int | None
    sampler: str | None
    drafter: str | None
    potential: tuple[str, ...]
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

    def refuse(self, options: dict[str, str]) -> None:
        """Refuse options that are given although the decoder has no use for them.

        Args:
            options: fields of the request, with what to do instead.

        Raises:
            click.UsageError: one is given.
        """
        for name, remedy in options.items():
            if getattr(self, name) not in (None, False, ()):
                raise click.UsageError(
                    f"--{name.replace('_', '-')} is not for --decoder {self.decoder}; leave it out: {remedy}"
                )

    def read_prompt(self, path: str | None) -> str:
        """Return what the model is asked.

        Args:
            path: where the description is read from.

        Raises:
            click.UsageError: options exclude each other.
            Failure: the file cannot be read.
        """
        if self.prompt_file is None:
            return DEFAULT_PROMPT if self.prompt is None else self.prompt
        if self.prompt is not None:
            raise click.UsageError("--prompt and --prompt-file exclude each other")
        if self.prompt_file == path == STANDARD_INPUT:
            raise click.UsageError("FILE and --prompt-file cannot both be standard input")
        return read_text(self.prompt_file)

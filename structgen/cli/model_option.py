"""Options that name something: ``NAME`` or ``NAME:KEY=VALUE,...``, and the model or vocabulary of ``--model``."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar, final

import click

from structgen.cli.command import complete_device, complete_models
from structgen.cli.terminal import UNUSABLE, Failure
from structgen.errors import ModelError
from structgen.methods.catalogue import made, unknown
from structgen.progress import ProgressBar

if TYPE_CHECKING:
    from structgen.engine import Vocabulary
    from structgen.methods.catalogue import Method
    from structgen.models import LanguageModel, Runtime
    from structgen.models.diffusion import DiffusionModel

__all__ = [
    "EMBEDDED",
    "RUNTIMES",
    "NamedOption",
    "decoder_of",
    "diffusion_model_of",
    "model_of",
    "model_options",
    "unknown",
    "vocabulary_of",
]

_COMMA: Final = re.compile(r",(?![^()\[\]]*[)\]])")
"""A comma between settings, not within the brackets of a value."""


@final
@dataclass(frozen=True, slots=True)
class NamedOption:
    """The value of an option ``NAME`` or ``NAME:KEY=VALUE,...``.

    Attributes:
        option: its name, for messages.
        name: of a class.
        settings: literals of Python, else texts.
    """

    option: str
    name: str
    settings: dict[str, Any]

    @staticmethod
    def parse(option: str, text: str) -> NamedOption:
        """Read what an option was given.

        Raises:
            click.UsageError: a setting is no ``KEY=VALUE``.
        """
        name, _, settings = text.partition(":")
        held: dict[str, Any] = {}
        for item in _COMMA.split(settings) if settings else ():
            key, separator, value = item.partition("=")
            if not separator or not key:
                raise click.UsageError(f"{option} {name}: expected KEY=VALUE; found {item!r}")
            try:
                held[key] = ast.literal_eval(value)
            except (ValueError, SyntaxError):
                held[key] = value
        return NamedOption(option, name, held)

    def value(
        self,
        homes: Mapping[str, Method],
        *,
        count: int | None = None,
        given: Mapping[str, Any] | None = None,
        unsaid: Collection[str] = (),
    ) -> Any:
        """Return the object of the class with the settings.

        Args:
            homes: the classes by name.
            count: ``-n``, which some classes take for themselves; None is their default.
            given: settings that are no literals, so that the option cannot say them.
            unsaid: settings that are no literals either, and keep their defaults.

        Raises:
            click.UsageError: there is no such name, or its settings are unusable.
        """
        settings = dict(self.settings)
        counted = homes[self.name].counted if self.name in homes else None
        if counted is not None and count is not None:
            if counted in settings:
                raise click.UsageError(f"{self.option} {self.name}: {counted} is what -n says: give one of them")
            settings[counted] = count
        try:
            return made(homes, self.name, settings, subject=self.option, given=given, unsaid=unsaid)
        except ValueError as error:
            raise click.UsageError(str(error)) from error


RUNTIMES: Final = ("torch", "llama.cpp")
"""The values of ``--runtime``."""
EMBEDDED: Final = "embedded"
"""The name for ``--model`` of the default model."""


_Function = TypeVar("_Function", bound=Callable[..., Any])


def model_options(*, model: str, name: str, device: str) -> Callable[[_Function], _Function]:
    """Options of commands that run a model or ask a server.

    The parameters are ``model``, ``model_name``, ``device``, ``runtime`` and ``trust_remote_code``.

    Args:
        model: the end of the help of ``--model``: what else it may name, and the default.
        name: the end of that of ``--model-name``.
        device: the end of that of ``--device``.
    """
    options = (
        click.option(
            "--model",
            metavar="M",
            shell_complete=complete_models,
            help=f"A hub id, a folder, a GGUF file, or the address of a server{model}",
        ),
        click.option("--model-name", metavar="NAME", help=f"The model's name on the server{name}"),
        click.option(
            "--device",
            metavar="D",
            shell_complete=complete_device,
            default="auto",
            show_default=True,
            help=f"Where the model runs: auto (a GPU if there is one), cpu, cuda, cuda:1, mps{device}.",
        ),
        click.option(
            "--runtime",
            type=click.Choice(RUNTIMES),
            help="What runs the model: torch, or llama.cpp, the default for the embedded model and GGUF files.",
        ),
        click.option(
            "--trust-remote-code", is_flag=True, help="Run the code that comes with a diffusion model's files."
        ),
    )

    def decorated(function: _Function) -> _Function:
        for option in reversed(options):
            function = option(function)
        return function

    return decorated


@contextmanager
def _failures_of(name: str | None, progress: ProgressBar) -> Iterator[None]:
    """Load a model; failures of one that the user named are the user's.

    Raises:
        Failure: there is no model of this name, it cannot be loaded, or there is no such device.
        ModelError: the embedded model cannot be fetched or loaded.
    """
    try:
        yield
    except ModelError as error:
        if name in {None, EMBEDDED} and not error.subject.startswith(("device", "llama.cpp")):
            raise
        raise Failure(str(error), UNUSABLE) from error
    finally:
        progress.close()


def model_of(
    name: str | None,
    progress: ProgressBar,
    *,
    device: str = "auto",
    runtime: Runtime = "auto",
    threads: int | None = None,
) -> LanguageModel:
    """Load a model that writes token by token; ``threads`` as of ``load_model``.

    Raises:
        Failure: there is no model of this name, it cannot be loaded, or there is no such device or runtime.
        ModelError: the embedded model cannot be fetched.
    """
    from structgen.models import load_model

    with _failures_of(name, progress):
        source = None if name == EMBEDDED else name
        return load_model(source, device=device, progress=progress, runtime=runtime, threads=threads)


def decoder_of(name: str | None, progress: ProgressBar) -> Literal["autoregressive", "diffusion"]:
    """How a model writes, by its files; ``autoregressive`` where they do not say.

    Raises:
        Failure: there is no model of this name.
    """
    from structgen.models.location import configuration
    from structgen.models.model_input import fills_canvases

    if name in {None, EMBEDDED}:
        return "autoregressive"
    with _failures_of(name, progress):
        return "diffusion" if fills_canvases(configuration(str(name))) else "autoregressive"


def diffusion_model_of(
    name: str | None, progress: ProgressBar, *, trust_remote_code: bool, device: str = "auto"
) -> DiffusionModel:
    """Load a diffusion model; errors as of ``model_of``."""
    from structgen.models import load_diffusion_model

    source = None if name == EMBEDDED else name
    with _failures_of(name, progress):
        return load_diffusion_model(source, trust_remote_code=trust_remote_code, device=device, progress=progress)


def vocabulary_of(name: str) -> Vocabulary:
    """Read the tokens of a model, without its weights where they lie in a folder or file of their own.

    Raises:
        Failure: there is no model of this name.
        ModelError: the embedded model cannot be fetched.
        VocabularyError: its tokenizer cannot be read.
    """
    from structgen.engine import Vocabulary
    from structgen.models import embedded_folder
    from structgen.models.location import find_local

    progress = ProgressBar()
    with _failures_of(name, progress):
        local = embedded_folder(progress=progress) if name == EMBEDDED else find_local(name)
    return model_of(name, progress).vocabulary if local is None else Vocabulary.load(local)

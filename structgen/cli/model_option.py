"""Options that name something: ``NAME`` or ``NAME:KEY=VALUE,...``, and the model or vocabulary of ``--model``."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Collection, Mapping
from dataclasses import MISSING, fields
from typing import TYPE_CHECKING, Any, Final

import click

from structgen.cli.terminal import UNUSABLE, Failure, ProgressLine
from structgen.errors import ModelError

if TYPE_CHECKING:
    from structgen.engine import Vocabulary
    from structgen.methods.catalogue import Method
    from structgen.models import LanguageModel
    from structgen.models.diffusion import DiffusionModel

__all__ = [
    "EMBEDDED",
    "diffusion_model_of",
    "instantiate",
    "model_of",
    "named_value",
    "split_named",
    "vocabulary_of",
]

_COMMA: Final = re.compile(r",(?![^()\[\]]*[)\]])")
"""A comma between settings, not within the brackets of a value."""


def named_value(
    option: str,
    text: str,
    homes: Mapping[str, Method],
    *,
    count: int | None = None,
    given: Mapping[str, Any] | None = None,
) -> Any:
    """Return the value that an option asks for.

    Args:
        option: its name, for messages.
        text: ``NAME`` or ``NAME:KEY=VALUE,...``.
        homes: the classes by name.
        count: ``-n``, which some classes take for themselves; None is their default.
        given: settings that are no literals, so that the option cannot say them.

    Raises:
        click.UsageError: there is no such name, or its settings are unusable.
    """
    name, held = split_named(option, text)
    return instantiate(option, name, held, homes, count=count, given=given)


def instantiate(
    option: str,
    name: str,
    held: Mapping[str, Any],
    homes: Mapping[str, Method],
    *,
    count: int | None = None,
    given: Mapping[str, Any] | None = None,
    unsaid: Collection[str] = (),
) -> Any:
    """Return the value of a name and its settings: ``named_value``, once the option is split.

    Args:
        option: its name, for messages.
        name: of the class.
        held: the settings.
        homes: the classes by name.
        count: see ``named_value``.
        given: see ``named_value``.
        unsaid: settings that are no literals either, and keep their defaults.

    Raises:
        click.UsageError: there is no such name, or its settings are unusable.
    """
    if name not in homes:
        raise click.UsageError(f"{option} {name!r} is none; there are {', '.join(homes)}")
    home = homes[name]
    made: Any = getattr(importlib.import_module(home.module), home.kind)
    settable = [field for field in fields(made) if field.init and field.name not in {*(given or ()), *unsaid}]
    known = [field.name for field in settable]
    for key in held:
        if key not in known:
            raise click.UsageError(
                f"{option} {name}: there is no {key!r}; there are {', '.join(known) or 'no settings'}"
            )
    settings = dict(held)
    if home.counted is not None and count is not None:
        if home.counted in settings:
            raise click.UsageError(f"{option} {name}: {home.counted} is what -n says: give one of them")
        settings[home.counted] = count
    for field in settable:
        if field.default is MISSING and field.default_factory is MISSING and field.name not in settings:
            raise click.UsageError(f"{option} {name}: it needs {field.name}: write {name}:{field.name}=VALUE")
    try:
        return made(**settings, **(given or {}))
    except (ValueError, TypeError) as error:
        raise click.UsageError(f"{option} {name}: {error}") from error


def split_named(option: str, text: str) -> tuple[str, dict[str, Any]]:
    """Split ``NAME:KEY=VALUE,...``; values are literals of Python, else texts.

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
    return name, held


EMBEDDED: Final = "embedded"
"""What ``--model`` calls the model that is used without it."""


def model_of(name: str | None, progress: ProgressLine, *, device: str = "auto") -> LanguageModel:
    """Load a model.

    Raises:
        Failure: there is no model of this name, it cannot be loaded, or there is no such device.
        ModelError: the embedded model cannot be fetched.
    """
    from structgen.models import load_model

    try:
        return load_model(None if name == EMBEDDED else name, device=device, progress=progress)
    except ModelError as error:
        if name in {None, EMBEDDED} and not error.subject.startswith("device"):
            raise
        raise Failure(str(error), UNUSABLE) from error
    finally:
        progress.close()


def diffusion_model_of(
    name: str | None, progress: ProgressLine, *, trust_remote_code: bool, device: str = "auto"
) -> DiffusionModel:
    """Load a diffusion model.

    Raises:
        Failure: there is no model of this name, it cannot be loaded, or there is no such device.
        ModelError: the embedded model cannot be loaded.
    """
    from structgen.models import load_diffusion_model

    try:
        return load_diffusion_model(
            None if name == EMBEDDED else name, trust_remote_code=trust_remote_code, device=device, progress=progress
        )
    except ModelError as error:
        if name in {None, EMBEDDED} and not error.subject.startswith("device"):
            raise
        raise Failure(str(error), UNUSABLE) from error
    finally:
        progress.close()


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

    progress = ProgressLine()
    try:
        local = embedded_folder(progress=progress) if name == EMBEDDED else find_local(name)
    except ModelError as error:
        if name == EMBEDDED:
            raise
        raise Failure(str(error), UNUSABLE) from error
    finally:
        progress.close()
    return model_of(name, progress).vocabulary if local is None else Vocabulary.load(local)

"""Options that name a value with settings: ``NAME`` or ``NAME:KEY=VALUE,...``."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, NamedTuple

import click

__all__ = ["Home", "named_value", "split_named"]


class Home(NamedTuple):
    """Where a class is that an option names.

    Attributes:
        module: holds it.
        kind: its name, a dataclass.
        counted: what ``-n`` is called there; None where it takes none.
    """

    module: str
    kind: str
    counted: str | None = None


def named_value(
    option: str,
    text: str,
    homes: Mapping[str, Home],
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
    if name not in homes:
        raise click.UsageError(f"{option} {name!r} is none; there are {', '.join(homes)}")
    home = homes[name]
    made: Any = getattr(importlib.import_module(home.module), home.kind)
    known = [field.name for field in fields(made) if field.init and field.name not in (given or ())]
    for key in held:
        if key not in known:
            raise click.UsageError(
                f"{option} {name}: there is no {key!r}; there are {', '.join(known) or 'no settings'}"
            )
    if home.counted is not None and count is not None:
        if home.counted in held:
            raise click.UsageError(f"{option} {name}: {home.counted} is what -n says: give one of them")
        held[home.counted] = count
    try:
        return made(**held, **(given or {}))
    except (ValueError, TypeError) as error:
        raise click.UsageError(f"{option} {name}: {error}") from error


def split_named(option: str, text: str) -> tuple[str, dict[str, Any]]:
    """Split ``NAME:KEY=VALUE,...``; values are literals of Python, else texts.

    Raises:
        click.UsageError: a setting is no ``KEY=VALUE``.
    """
    name, _, settings = text.partition(":")
    held: dict[str, Any] = {}
    for item in settings.split(",") if settings else ():
        key, separator, value = item.partition("=")
        if not separator or not key:
            raise click.UsageError(f"{option} {name}: expected KEY=VALUE; found {item!r}")
        try:
            held[key] = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            held[key] = value
    return name, held

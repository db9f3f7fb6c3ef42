"""``structgen run --drafter``: what guesses tokens, so that one forward pass tells several."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, TextIO

import click

from structgen.cli.named import Home, made_value, named_value, split_named
from structgen.cli.vocabulary import model_of
from structgen.errors import DraftWarning

if TYPE_CHECKING:
    from structgen.cli.progress import ProgressLine
    from structgen.decode.speculative.speculation import AnyDrafter

__all__ = ["DRAFTERS", "DRAFTER_NAMES", "drafter_of", "failures_noted"]

_OPTION: Final = "--drafter"
_AUTO: Final = "auto"
_NONE: Final = "none"
_DRAFT_MODEL: Final = "draft-model"
_HOME: Final = "structgen.decode.speculative.drafters"

DRAFTERS: Final = {
    "forced-tokens": Home(_HOME, "ForcedTokens"),
    "prompt-lookup": Home(_HOME, "PromptLookup"),
    "copyspec": Home(_HOME, "CopySpec"),
    "retrieval": Home(_HOME, "Retrieval"),
    "grammar-statistics": Home(_HOME, "GrammarStatistics"),
    "token-recycling": Home(_HOME, "TokenRecycling"),
    "stand": Home(_HOME, "Stand"),
    "trigrams": Home(_HOME, "TrigramDrafts"),
    "jacobi": Home(_HOME, "Jacobi"),
    "lookahead": Home(_HOME, "Lookahead"),
    "short-context": Home(_HOME, "ShortContext"),
    "layer-skip": Home(_HOME, "LayerSkip"),
    "clasp": Home(_HOME, "Clasp"),
    "dynamic-exit": Home(_HOME, "DynamicExit"),
    _DRAFT_MODEL: Home(_HOME, "DraftModel"),
}
"""The drafters by name."""

DRAFTER_NAMES: Final = (_AUTO, _NONE, *DRAFTERS)
"""All that the option may name."""

_RUN_ALL: Final = ("jacobi", "lookahead")
"""Drafters that learn from the rows of their own guesses."""

_BRIDGES: Final = {
    "match": Home(_HOME, "ExactStringMatch"),
    "intersection": Home(_HOME, "TokenIntersection"),
    "rejection": Home(_HOME, "StringRejection"),
}
"""Ways between two vocabularies, by name: ``draft-model:bridge=NAME``."""

_UNSAID: Final = frozenset(
    ("calibration", "counts", "drafter", "laws", "pool", "ranks", "shape", "store", "trials", "trim")
)
"""Settings of drafters that are no literals."""


def drafter_of(text: str | None, progress: ProgressLine) -> AnyDrafter:
    """Return what ``NAME`` or ``NAME:KEY=VALUE,...`` asks for; the model of ``draft-model`` is loaded.

    Guesses are run only where they are expected to pay, as those of ``auto`` are; those of ``jacobi`` and ``lookahead``
    are run in any case, for what their rows say.

    Args:
        text: the option; None is ``auto``.
        progress: shows how far loading is.

    Raises:
        click.UsageError: there is no such drafter, or its settings are unusable.
        Failure: there is no such draft model, or it cannot be loaded.
    """
    name, held = split_named(_OPTION, _AUTO if text is None else text)
    if name in (_AUTO, _NONE):
        if held:
            raise click.UsageError(f"{_OPTION} {name}: there is no {next(iter(held))!r}; there are no settings")
        return "auto" if name == _AUTO else None
    if name not in DRAFTERS:
        raise click.UsageError(f"{_OPTION} {name!r} is none; there are {', '.join(DRAFTER_NAMES)}")
    from structgen.decode.speculative.speculation import Speculation

    given: dict[str, Any] = {}
    if name == _DRAFT_MODEL:
        given = _draft_model(held, progress)
    elif name == "short-context":
        given = {"model": None}  # the target itself
    drafter = made_value(_OPTION, name, held, DRAFTERS, given=given, unsaid=_UNSAID)
    return Speculation(drafter, cost=None if name in _RUN_ALL else "assumed")


def _draft_model(held: dict[str, Any], progress: ProgressLine) -> dict[str, Any]:
    """Take the model and the bridge out of the settings of ``draft-model``."""
    if "model" not in held:
        raise click.UsageError(f"{_OPTION} {_DRAFT_MODEL}: it needs a model: write {_DRAFT_MODEL}:model=M")
    bridge = held.pop("bridge", None)
    return {
        "bridge": None if bridge is None else named_value(f"{_OPTION} {_DRAFT_MODEL}:bridge", str(bridge), _BRIDGES),
        "model": model_of(str(held.pop("model")), progress),
    }


@contextmanager
def failures_noted() -> Iterator[None]:
    """Write warnings of drafters that failed as notes on standard error, without their place in the code."""
    others = warnings.showwarning

    def show(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        if issubclass(category, DraftWarning):
            click.echo(f"note: {message}", err=True)
        else:
            others(message, category, filename, lineno, file, line)

    with warnings.catch_warnings():
        warnings.simplefilter("always", DraftWarning)
        warnings.showwarning = show
        yield

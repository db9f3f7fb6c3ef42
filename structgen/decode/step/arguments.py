"""Checks of what users pass to the decoding calls: the model, the sampler, the seed.

Each public call checks its arguments once, before anything is compiled or run.  A value of another kind, such as the
name of a model, gets an error that says what to pass instead.
"""

from __future__ import annotations

from os import PathLike
from typing import Final

from structgen.errors import ArgumentError, found
from structgen.models.protocol import LanguageModel
from structgen.models.protocol.diffusion import DiffusionModel

__all__ = ["check_model", "check_seed", "wrong_sampler"]

_LOCAL: Final[tuple[type, ...]] = (LanguageModel, DiffusionModel)


def check_model(model: object, call: str, *, kinds: tuple[type, ...] = _LOCAL) -> None:
    """Check that ``model`` is of one of ``kinds``.

    Raises:
        ArgumentError: it is not, for instance a name, or a model of transformers.
    """
    if isinstance(model, kinds) and not isinstance(model, type):
        return
    if isinstance(model, (str, PathLike)):
        name = str(model)
        remedy = f"load it first: sg.load_model({name!r:.80}), or sg.load_diffusion_model(...) for a diffusion model"
    elif model is None:
        remedy = "pass sg.load_model() for the embedded model, or sg.load_model(name)"
    elif isinstance(model, tuple) and len(model) == 2:
        remedy = "wrap the pair: sg.load_model((model, tokenizer))"
    elif isinstance(model, type):
        remedy = "pass an object: sg.load_model(name)"
    elif hasattr(model, "serve"):
        remedy = "a model on a server answers programs and sg.extract; pass it there as model="
    elif _is_network(model):
        remedy = "wrap it with its tokenizer: sg.load_model((model, tokenizer))"
    else:
        remedy = "pass sg.load_model(name), or an object with the attributes of structgen.models.LanguageModel"
    raise ArgumentError(call, "expected a model", evidence=found(model), remedy=remedy)


def _is_network(model: object) -> bool:
    """Whether it is a model of torch or transformers, which are not imported for that."""
    return any(kind.__module__.partition(".")[0] in ("torch", "transformers") for kind in type(model).__mro__)


def wrong_sampler(call: str, sampler: object, *, expected: str, example: str) -> ArgumentError:
    """Make the error for a value that is no sampler; ``example`` is one."""
    if isinstance(sampler, type):
        remedy = f"pass an object: {sampler.__name__}()"
    elif isinstance(sampler, str):
        remedy = f"names are for the command line; pass an object, such as {example}"
    else:
        remedy = f"pass {example}, or another one of sg.samplers"
    return ArgumentError(call, f"expected {expected}", evidence=found(sampler), remedy=remedy)


def check_seed(seed: object) -> None:
    """Check a seed.

    Raises:
        ArgumentError: it is not a whole number.
        ValueError: it is negative.
    """
    if not hasattr(seed, "__index__"):
        raise ArgumentError("seed", "expected a whole number", evidence=found(seed), remedy="pass seed=0")
    if int(seed) < 0:
        raise ValueError(f"seed must be at least 0; found {seed}")

"""The methods that have a name: one table, which the command line, the documentation and the tests read.

A method registers here by name, as a string, so that reading the table imports no method.
"""

from __future__ import annotations

import importlib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import MISSING, fields
from typing import Any, Final, NamedTuple

from structgen.errors import meant

__all__ = [
    "BRIDGES",
    "CANVAS_SAMPLERS",
    "COMMIT_POLICIES",
    "DRAFTERS",
    "REUSES",
    "SAMPLERS",
    "Method",
    "made",
    "unknown",
]


class Method(NamedTuple):
    """Where a method is.

    Attributes:
        module: the public module that offers the class.
        kind: the name of the class, a dataclass whose fields are the settings of the method.
        counted: the field that ``-n`` sets; None where there is none.
    """

    module: str
    kind: str
    counted: str | None = None


DRAFTERS: Final = {
    "forced-tokens": Method("structgen.drafters", "ForcedTokens"),
    "prompt-lookup": Method("structgen.drafters", "PromptLookup"),
    "copyspec": Method("structgen.drafters", "CopySpec"),
    "retrieval": Method("structgen.drafters", "Retrieval"),
    "grammar-statistics": Method("structgen.drafters", "GrammarStatistics"),
    "token-recycling": Method("structgen.drafters", "TokenRecycling"),
    "stand": Method("structgen.drafters", "Stand"),
    "trigrams": Method("structgen.drafters", "TrigramDrafts"),
    "jacobi": Method("structgen.drafters", "Jacobi"),
    "lookahead": Method("structgen.drafters", "Lookahead"),
    "short-context": Method("structgen.drafters", "ShortContext"),
    "layer-skip": Method("structgen.drafters", "LayerSkip"),
    "clasp": Method("structgen.drafters", "Clasp"),
    "dynamic-exit": Method("structgen.drafters", "DynamicExit"),
    "draft-model": Method("structgen.drafters", "DraftModel"),
}
"""Drafters: ``--drafter``."""

BRIDGES: Final = {
    "match": Method("structgen.drafters", "ExactStringMatch"),
    "intersection": Method("structgen.drafters", "TokenIntersection"),
    "rejection": Method("structgen.drafters", "StringRejection"),
}
"""Ways between the vocabularies of two models: ``--drafter draft-model:bridge=NAME``."""

SAMPLERS: Final = {
    "greedy": Method("structgen.samplers", "Greedy"),
    "multinomial": Method("structgen.samplers", "Multinomial"),
    "awrs": Method("structgen.samplers", "AWRS"),
    "smc": Method("structgen.samplers", "SMC", "particles"),
    "bestof": Method("structgen.samplers", "BestOf", "n"),
    "beam": Method("structgen.samplers", "Beam", "n"),
    "asap": Method("structgen.samplers", "ASAp", "samples"),
    "rejection": Method("structgen.samplers", "RejectionTrie", "samples"),
    "exact": Method("structgen.samplers", "ExactBest", "n"),
    "cautious": Method("structgen.methods.strategies", "Cautious"),
    "adadec": Method("structgen.methods.strategies", "AdaDec"),
    "foresight": Method("structgen.methods.strategies", "Foresight"),
    "firstfinish": Method("structgen.methods.strategies", "FirstFinish", "samples"),
    "thinking": Method("structgen.methods.strategies", "Thinking"),
    "momentum": Method("structgen.methods.strategies", "Momentum"),
    "lookback": Method("structgen.methods.strategies", "LookBack"),
    "bregman": Method("structgen.methods.strategies", "BregmanTopK"),
}
"""Samplers of autoregressive models: ``--sampler``."""

CANVAS_SAMPLERS: Final = {
    "dingo": Method("structgen.diffusion", "Dingo"),
    "posterior": Method("structgen.diffusion", "Posterior"),
    "smc": Method("structgen.samplers", "SMC", "particles"),
}
"""Samplers of diffusion models: ``--sampler`` with ``--decoder diffusion``."""

COMMIT_POLICIES: Final = {
    "static": Method("structgen.policies", "Static"),
    "threshold": Method("structgen.policies", "Threshold"),
    "factor": Method("structgen.policies", "Factor"),
    "prophet": Method("structgen.policies", "Prophet"),
    "credit": Method("structgen.policies", "CreditDecoding"),
    "localleap": Method("structgen.policies", "LocalLeap"),
    "entropy": Method("structgen.policies", "EntropyBound"),
    "explore": Method("structgen.policies", "Explore"),
    "learned": Method("structgen.policies", "Learned"),
    "freedave": Method("structgen.diffusion", "FreeDave"),
    "selfspeculative": Method("structgen.diffusion", "SelfSpeculative"),
}
"""Commit policies of diffusion models: ``--policy``."""

REUSES: Final = {
    "prefix": Method("structgen.diffusion", "PrefixReuse"),
    "dual": Method("structgen.diffusion", "DualReuse"),
    "delayed": Method("structgen.diffusion", "DelayedReuse"),
}
"""Rules for which slots a pass runs: ``--reuse``."""


def made(
    methods: Mapping[str, Method],
    name: str,
    settings: Mapping[str, Any],
    *,
    subject: str,
    given: Mapping[str, Any] | None = None,
    unsaid: Collection[str] = (),
) -> Any:
    """Return a method of a table with its settings.

    Args:
        methods: by name.
        name: of the method.
        settings: by name of the field.
        subject: who asks, for messages.
        given: settings that ``settings`` may not have.
        unsaid: settings that it may not have either, and that keep their defaults.

    Raises:
        ValueError: there is no such name, or its settings are unusable.
    """
    if name not in methods:
        raise ValueError(unknown(subject, name, methods))
    home, subject = methods[name], f"{subject} {name}"
    kind: Any = getattr(importlib.import_module(home.module), home.kind)
    settable = [field for field in fields(kind) if field.init and field.name not in {*(given or ()), *unsaid}]
    known = [field.name for field in settable]
    for key in settings:
        if key not in known:
            raise ValueError(unknown(subject, key, known))
    for field in settable:
        if field.default is MISSING and field.default_factory is MISSING and field.name not in settings:
            raise ValueError(f"{subject}: it needs {field.name}: write {name}:{field.name}=VALUE")
    try:
        return kind(**settings, **(given or {}))
    except (ValueError, TypeError) as error:
        raise ValueError(f"{subject}: {str(error).removeprefix(f'{home.kind}: ')}") from error


def unknown(subject: str, name: str, known: Iterable[str]) -> str:
    """Say that there is no such name, which one may be meant, and which there are."""
    names = list(known)
    parts = [f"{subject}: there is no {name!r}", f"there are {', '.join(names) or 'no settings'}", meant(name, names)]
    return "; ".join(part for part in parts if part)

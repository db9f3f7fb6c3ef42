"""The methods that have a name: one table, which the command line, the documentation and the tests read.

A method registers here by name, as a string, so that reading the table imports no method.
"""

from __future__ import annotations

from typing import Final, NamedTuple

__all__ = ["BRIDGES", "CANVAS_SAMPLERS", "COMMIT_POLICIES", "DRAFTERS", "REUSES", "SAMPLERS", "Method"]


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

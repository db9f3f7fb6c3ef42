"""Say what a language model may write; every decoder reads the same automaton.

The public names are imported when they are first used, so that ``import structgen`` costs almost nothing and pulls
in neither numpy nor torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from structgen.decode import Greedy, Multinomial, Result, generate
    from structgen.decode.monitors import monitor, ordered, refers, unique
    from structgen.decode.potentials import Hypothesis, Potential, potential
    from structgen.decode.sampling import (
        AWRS,
        SMC,
        ASAp,
        Beam,
        BestOf,
        ExactBest,
        Lookahead,
        NGram,
        RejectionTrie,
        Samples,
        sample,
    )
    from structgen.engine import Constraint, Explanation, Matcher, Vocabulary, compile, fill_masks
    from structgen.errors import (
        BudgetError,
        GenerationError,
        GrammarError,
        LimitExceeded,
        ModelError,
        ProgramError,
        StructgenError,
        ValidationFailed,
        VocabularyError,
    )
    from structgen.grammar.algebra import optional, select
    from structgen.grammar.json_schema import JsonPolicy, json_schema
    from structgen.grammar.lark import lark, load
    from structgen.grammar.limits import Limits
    from structgen.grammar.markers import Lark, Regex
    from structgen.grammar.nodes import Grammar, literal
    from structgen.grammar.regex import regex
    from structgen.integrations.openai_server import remote
    from structgen.models import load_model
    from structgen.program import Run, agent, ask, assistant, extract, fork, program, system, tool, user

__all__ = [
    "AWRS",
    "SMC",
    "ASAp",
    "Beam",
    "BestOf",
    "BudgetError",
    "Constraint",
    "ExactBest",
    "Explanation",
    "GenerationError",
    "Grammar",
    "GrammarError",
    "Greedy",
    "Hypothesis",
    "JsonPolicy",
    "Lark",
    "LimitExceeded",
    "Limits",
    "Lookahead",
    "Matcher",
    "ModelError",
    "Multinomial",
    "NGram",
    "Potential",
    "ProgramError",
    "Regex",
    "RejectionTrie",
    "Result",
    "Run",
    "Samples",
    "StructgenError",
    "ValidationFailed",
    "Vocabulary",
    "VocabularyError",
    "agent",
    "ask",
    "assistant",
    "compile",
    "extract",
    "fill_masks",
    "fork",
    "generate",
    "json_schema",
    "lark",
    "literal",
    "load",
    "load_model",
    "monitor",
    "optional",
    "ordered",
    "potential",
    "program",
    "refers",
    "regex",
    "remote",
    "sample",
    "select",
    "system",
    "tool",
    "unique",
    "user",
]

_NAMES = {
    "structgen.decode": ("Greedy", "Multinomial", "Result", "generate"),
    "structgen.decode.monitors": ("monitor", "ordered", "refers", "unique"),
    "structgen.decode.potentials": ("Hypothesis", "Potential", "potential"),
    "structgen.decode.sampling": (
        "AWRS",
        "SMC",
        "ASAp",
        "Beam",
        "BestOf",
        "ExactBest",
        "Lookahead",
        "NGram",
        "RejectionTrie",
        "Samples",
        "sample",
    ),
    "structgen.engine": ("Constraint", "Explanation", "Matcher", "Vocabulary", "compile", "fill_masks"),
    "structgen.errors": (
        "BudgetError",
        "GenerationError",
        "GrammarError",
        "LimitExceeded",
        "ModelError",
        "ProgramError",
        "StructgenError",
        "ValidationFailed",
        "VocabularyError",
    ),
    "structgen.grammar.algebra": ("optional", "select"),
    "structgen.grammar.json_schema": ("JsonPolicy", "json_schema"),
    "structgen.grammar.lark": ("lark", "load"),
    "structgen.grammar.limits": ("Limits",),
    "structgen.grammar.markers": ("Lark", "Regex"),
    "structgen.grammar.nodes": ("Grammar", "literal"),
    "structgen.grammar.regex": ("regex",),
    "structgen.integrations.openai_server": ("remote",),
    "structgen.models": ("load_model",),
    "structgen.program": ("Run", "agent", "ask", "assistant", "extract", "fork", "program", "system", "tool", "user"),
}
_HOMES = {name: module for module, names in _NAMES.items() for name in names}

if not TYPE_CHECKING:  # a type checker would take every name for defined

    def __getattr__(name: str) -> Any:
        """Import a public name from its home and keep it."""
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(_HOMES[name]), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])

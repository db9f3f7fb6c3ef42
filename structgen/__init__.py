"""Say what a language model may write; every decoder reads the same automaton.

The public names are imported when they are first used, so that ``import structgen`` costs almost nothing and pulls
in neither numpy nor torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from structgen.decode import DraftStats, Greedy, Multinomial, Result, Speculation, generate
    from structgen.decode.diffusion.canvas_sampler import Dingo, Posterior
    from structgen.decode.diffusion.drafting.adaptive_parallel import AdaptiveParallel
    from structgen.decode.diffusion.drafting.free_dave import FreeDave
    from structgen.decode.diffusion.drafting.self_speculative import SelfSpeculative
    from structgen.decode.diffusion.policies import (
        CreditDecoding,
        EntropyBound,
        Explore,
        Factor,
        Learned,
        LocalLeap,
        Prophet,
        Static,
        Threshold,
    )
    from structgen.decode.diffusion.replay import Recorder, replay_page
    from structgen.decode.diffusion.reuse import DelayedReuse, DualReuse, PrefixReuse
    from structgen.decode.diffusion.unmasking import Unmasking
    from structgen.decode.infilling import hole, infill
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
    from structgen.decode.speculative import drafters, shapes, verification
    from structgen.decode.speculative.cost import CostModel
    from structgen.engine import Constraint, Explanation, Matcher, Vocabulary, compile, fill_masks
    from structgen.errors import (
        BudgetError,
        DraftWarning,
        GenerationError,
        GrammarError,
        LimitExceeded,
        ModelError,
        ProgramError,
        StructgenError,
        ValidationFailed,
        VocabularyError,
    )
    from structgen.grammar.algebra import optional, select, text, token
    from structgen.grammar.dialects import write
    from structgen.grammar.ebnf import ebnf
    from structgen.grammar.gbnf import gbnf
    from structgen.grammar.indentation import NEWLINE, Indentation, block, indented
    from structgen.grammar.json_schema import JsonPolicy, json_schema
    from structgen.grammar.lark import lark
    from structgen.grammar.limits import Limits
    from structgen.grammar.loading import load
    from structgen.grammar.markers import Lark, Regex
    from structgen.grammar.nodes import Grammar, literal
    from structgen.grammar.protocols import answer, read_reply, think, tool_calls
    from structgen.grammar.regex import regex
    from structgen.grammar.substrings import substring_of
    from structgen.grammar.until import any_text
    from structgen.integrations.openai_server import remote
    from structgen.integrations.sql_grammar import select_grammar
    from structgen.models import load_diffusion_model, load_model
    from structgen.program import Run, agent, ask, assistant, extract, fork, program, system, tool, user

__all__ = [
    "AWRS",
    "NEWLINE",
    "SMC",
    "ASAp",
    "AdaptiveParallel",
    "Beam",
    "BestOf",
    "BudgetError",
    "Constraint",
    "CostModel",
    "CreditDecoding",
    "DelayedReuse",
    "Dingo",
    "DraftStats",
    "DraftWarning",
    "DualReuse",
    "EntropyBound",
    "ExactBest",
    "Explanation",
    "Explore",
    "Factor",
    "FreeDave",
    "GenerationError",
    "Grammar",
    "GrammarError",
    "Greedy",
    "Hypothesis",
    "Indentation",
    "JsonPolicy",
    "Lark",
    "Learned",
    "LimitExceeded",
    "Limits",
    "LocalLeap",
    "Lookahead",
    "Matcher",
    "ModelError",
    "Multinomial",
    "NGram",
    "Posterior",
    "Potential",
    "PrefixReuse",
    "ProgramError",
    "Prophet",
    "Recorder",
    "Regex",
    "RejectionTrie",
    "Result",
    "Run",
    "Samples",
    "SelfSpeculative",
    "Speculation",
    "Static",
    "StructgenError",
    "Threshold",
    "Unmasking",
    "ValidationFailed",
    "Vocabulary",
    "VocabularyError",
    "agent",
    "answer",
    "any_text",
    "ask",
    "assistant",
    "block",
    "compile",
    "drafters",
    "ebnf",
    "extract",
    "fill_masks",
    "fork",
    "gbnf",
    "generate",
    "hole",
    "indented",
    "infill",
    "json_schema",
    "lark",
    "literal",
    "load",
    "load_diffusion_model",
    "load_model",
    "monitor",
    "optional",
    "ordered",
    "potential",
    "program",
    "read_reply",
    "refers",
    "regex",
    "remote",
    "replay_page",
    "sample",
    "select",
    "select_grammar",
    "shapes",
    "substring_of",
    "system",
    "text",
    "think",
    "token",
    "tool",
    "tool_calls",
    "unique",
    "user",
    "verification",
    "write",
]

_NAMES = {
    "structgen.integrations.sql_grammar": ("select_grammar",),
    "structgen.decode": ("DraftStats", "Greedy", "Multinomial", "Result", "Speculation", "generate"),
    "structgen.decode.diffusion.canvas_sampler": ("Dingo", "Posterior"),
    "structgen.decode.diffusion.drafting.adaptive_parallel": ("AdaptiveParallel",),
    "structgen.decode.diffusion.drafting.free_dave": ("FreeDave",),
    "structgen.decode.diffusion.drafting.self_speculative": ("SelfSpeculative",),
    "structgen.decode.diffusion.policies": (
        "CreditDecoding",
        "EntropyBound",
        "Explore",
        "Factor",
        "Learned",
        "LocalLeap",
        "Prophet",
        "Static",
        "Threshold",
    ),
    "structgen.decode.diffusion.replay": ("Recorder", "replay_page"),
    "structgen.decode.diffusion.reuse": ("DelayedReuse", "DualReuse", "PrefixReuse"),
    "structgen.decode.diffusion.unmasking": ("Unmasking",),
    "structgen.decode.infilling": ("hole", "infill"),
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
    "structgen.decode.speculative": ("drafters", "shapes", "verification"),
    "structgen.decode.speculative.cost": ("CostModel",),
    "structgen.engine": ("Constraint", "Explanation", "Matcher", "Vocabulary", "compile", "fill_masks"),
    "structgen.errors": (
        "BudgetError",
        "DraftWarning",
        "GenerationError",
        "GrammarError",
        "LimitExceeded",
        "ModelError",
        "ProgramError",
        "StructgenError",
        "ValidationFailed",
        "VocabularyError",
    ),
    "structgen.grammar.algebra": ("optional", "select", "text", "token"),
    "structgen.grammar.dialects": ("write",),
    "structgen.grammar.ebnf": ("ebnf",),
    "structgen.grammar.gbnf": ("gbnf",),
    "structgen.grammar.indentation": ("Indentation", "NEWLINE", "block", "indented"),
    "structgen.grammar.json_schema": ("JsonPolicy", "json_schema"),
    "structgen.grammar.lark": ("lark",),
    "structgen.grammar.limits": ("Limits",),
    "structgen.grammar.loading": ("load",),
    "structgen.grammar.markers": ("Lark", "Regex"),
    "structgen.grammar.nodes": ("Grammar", "literal"),
    "structgen.grammar.protocols": ("answer", "read_reply", "think", "tool_calls"),
    "structgen.grammar.regex": ("regex",),
    "structgen.grammar.substrings": ("substring_of",),
    "structgen.grammar.until": ("any_text",),
    "structgen.integrations.openai_server": ("remote",),
    "structgen.models": ("load_diffusion_model", "load_model"),
    "structgen.program": ("Run", "agent", "ask", "assistant", "extract", "fork", "program", "system", "tool", "user"),
}
_HOMES = {name: module for module, names in _NAMES.items() for name in names}
_PACKAGES = ("structgen.decode.speculative",)
"""Their names are modules, which have to be imported before they are attributes."""

if not TYPE_CHECKING:  # a type checker would take every name for defined

    def __getattr__(name: str) -> Any:
        """Import a public name from its home and keep it."""
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        home = _HOMES[name]
        if home in _PACKAGES:
            importlib.import_module(f"{home}.{name}")
        value = getattr(importlib.import_module(home), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])

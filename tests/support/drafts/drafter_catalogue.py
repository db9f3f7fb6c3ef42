"""Every drafter with several settings, for tests that check all of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from word_vocabulary import draft_vocabulary

from structgen.decode.speculative.cost import CostModel
from structgen.decode.speculative.drafter import Drafter
from structgen.decode.speculative.drafters.auto import Auto, Combined
from structgen.decode.speculative.drafters.grammar_statistics import ForcedTokens, GrammarStatistics
from structgen.decode.speculative.drafters.prompt_lookup import CopySpec, PromptLookup
from structgen.decode.speculative.drafters.retrieval import Retrieval
from structgen.decode.speculative.drafters.token_recycling import TokenRecycling
from structgen.decode.speculative.speculation import AnyDrafter, Speculation
from structgen.methods.drafters.draft_model import DraftModel, ShortContext
from structgen.methods.drafters.dynamic_exit import DynamicExit
from structgen.methods.drafters.jacobi import Jacobi
from structgen.methods.drafters.layer_skip import Clasp, LayerSkip
from structgen.methods.drafters.lookahead import Extended, Lookahead
from structgen.methods.drafters.ngram_tables import Stand, TrigramDrafts
from structgen.methods.drafters.string_rejection import StringRejection
from structgen.methods.drafters.token_bridge import ExactStringMatch, TokenIntersection
from structgen.methods.drafters.vocabulary_trim import VocabularyTrim
from structgen.methods.tree_policies.dynamic_tree import IndependentDraws
from structgen.models.protocol import LanguageModel
from structgen.models.toy.hash import HashModel
from structgen.shapes import EXP3, Bandit, Chain, DySpec, Fixed, Goodput, OptTree, Pearl, Sequoia

__all__ = ["CASES", "LAYERED", "DrafterCase"]

COST = CostModel(0.05)
"""Cheap rows, so that nearly all draft tokens are run."""


@dataclass(frozen=True)
class DrafterCase:
    """A drafter with its settings.

    Attributes:
        title: the name of the test.
        make: makes a new one, for outputs of a target.
        draws: whether it draws tokens from a distribution where the sampler draws.
        drafts: whether it drafts many tokens in short outputs of models that hardly repeat themselves.
    """

    title: str
    make: Callable[[LanguageModel], AnyDrafter]
    draws: bool = False
    drafts: bool = True


def alike(target: LanguageModel, *, seed: int | None = None) -> HashModel:
    """A draft model with the target's vocabulary.

    It has the target's own distributions if the target is a ``HashModel`` and no seed is given.
    """
    given = target.seed if isinstance(target, HashModel) and seed is None else seed or 0
    draft = HashModel(target.vocabulary, seed=given, name="draft")
    if isinstance(target, HashModel):
        draft.script = target.script
    return draft


def foreign(writes: str | None = '{"name": "Ada", "age": 36, "tags": ["red"]}') -> HashModel:
    """A draft model with its own vocabulary."""
    return HashModel(draft_vocabulary(), seed=3, writes=writes, name="foreign")


def _by_model(shape: Any, *, draws: bool = True, seed: int | None = None) -> Callable[[LanguageModel], Drafter]:
    return lambda target: DraftModel(alike(target, seed=seed), shape, draws=draws)


def _recycled(shape: Any) -> Callable[[LanguageModel], Drafter]:
    return lambda _: TokenRecycling(shape=shape())


SHAPES: dict[str, Callable[[], Any]] = {
    "chain": lambda: Chain(3),
    "fixed": lambda: Fixed.branching(3, 2, 1),
    "opt tree": lambda: OptTree(depth=4),
    "dyspec": lambda: DySpec(least=0.01),
    "sequoia": lambda: Sequoia(COST),
}


def _together(_: LanguageModel) -> Combined:
    return Combined((ForcedTokens(), PromptLookup(), TokenRecycling(), Jacobi(), GrammarStatistics()))


CASES: tuple[DrafterCase, ...] = (
    DrafterCase("forced tokens", lambda _: ForcedTokens()),
    DrafterCase("forced tokens, two", lambda _: ForcedTokens(most=2)),
    DrafterCase("prompt lookup", lambda _: PromptLookup()),
    DrafterCase("prompt lookup, long matches", lambda _: PromptLookup(1, 3, values=False), drafts=False),
    DrafterCase("copy spec", lambda _: CopySpec(), drafts=False),
    DrafterCase("copy spec, one", lambda _: CopySpec(1, 4)),
    DrafterCase("retrieval", lambda _: Retrieval()),
    DrafterCase("retrieval, no pairs", lambda _: Retrieval(places=2, distributions=None)),
    DrafterCase("grammar statistics", lambda _: GrammarStatistics()),
    DrafterCase("grammar statistics, one", lambda _: GrammarStatistics(most=1)),
    DrafterCase("trigrams", lambda _: TrigramDrafts()),
    DrafterCase("trigrams, exploring", lambda _: TrigramDrafts(exploration=0.5)),
    DrafterCase("stand", lambda _: Stand(), draws=True),
    DrafterCase("stand, chosen", lambda _: Stand(draws=False)),
    DrafterCase("stand, chain", lambda _: Stand(Chain(3)), draws=True),
    DrafterCase("lookahead", lambda _: Lookahead()),
    DrafterCase("lookahead, small", lambda _: Lookahead(window=2, size=2, hits=1)),
    DrafterCase("jacobi", lambda _: Jacobi()),
    DrafterCase("jacobi, random start", lambda _: Jacobi(window=3, seed=1)),
    DrafterCase("token recycling", lambda _: TokenRecycling()),
    *(DrafterCase(f"token recycling, {name}", _recycled(shape)) for name, shape in SHAPES.items()),
    *(DrafterCase(f"draft model, {name}", _by_model(shape()), draws=True) for name, shape in SHAPES.items()),
    *(
        DrafterCase(f"another draft model, {name}", _by_model(shape(), draws=False, seed=99))
        for name, shape in SHAPES.items()
    ),
    DrafterCase("draft model, independent draws", _by_model(IndependentDraws((2, 2))), draws=True),
    DrafterCase(
        "draft model with a drafter", lambda target: DraftModel(alike(target), drafter=PromptLookup()), draws=True
    ),
    DrafterCase("exact string match", lambda _: DraftModel(foreign(), bridge=ExactStringMatch())),
    DrafterCase("exact string match, tree", lambda _: DraftModel(foreign(), Fixed.branching(2, 2), ExactStringMatch())),
    DrafterCase("token intersection", lambda _: DraftModel(foreign(), bridge=TokenIntersection()), draws=True),
    DrafterCase("string rejection", lambda _: DraftModel(foreign(), bridge=StringRejection()), draws=True),
    DrafterCase("string rejection, chosen", lambda _: DraftModel(foreign(), Chain(3), StringRejection(), draws=False)),
    DrafterCase("short context", lambda _: ShortContext(tokens=3, head=1, tail=1, chunk=1), draws=True),
    DrafterCase(
        "short context of a draft model",
        lambda target: ShortContext(alike(target), tokens=6, head=1, tail=3, chunk=2, refresh=2, draws=False),
    ),
    DrafterCase("short context, prompts that fit", lambda _: ShortContext(), drafts=False),
    DrafterCase("phrases after a lookup", lambda _: Extended(PromptLookup())),
    DrafterCase("phrases after a draft model", lambda t: Extended(DraftModel(alike(t)), phrases=1), draws=True),
    DrafterCase("goodput", lambda _: Goodput(TokenRecycling(), COST)),
    DrafterCase(
        "goodput, dear rows", lambda _: Goodput(TokenRecycling(), CostModel(0.5), price=0.1, trial=2), drafts=False
    ),
    DrafterCase("goodput of a draft model", lambda t: Goodput(DraftModel(alike(t)), COST), draws=True),
    DrafterCase("pearl", lambda _: Pearl(TokenRecycling())),
    DrafterCase("pearl of a draft model", lambda t: Pearl(DraftModel(alike(t)), 2, 8, 2), draws=True),
    DrafterCase("bandit", lambda t: Bandit((TokenRecycling(), DraftModel(alike(t))), cost=COST), draws=True),
    DrafterCase("bandit, exp3", lambda _: Bandit((TokenRecycling(), Jacobi()), EXP3(0.2), COST, (0.0, 0.1))),
    DrafterCase("combined", _together),
    DrafterCase("combined with a draft model", lambda t: Combined((DraftModel(alike(t)), PromptLookup()))),
    DrafterCase("auto", lambda _: Auto()),
    DrafterCase("auto, by name", lambda _: "auto"),
    DrafterCase("a small budget", lambda target: Speculation(_together(target), budget=2)),
    DrafterCase("rows that must pay", lambda target: Speculation(_together(target), cost=CostModel(0.2))),
    DrafterCase("rows as assumed", lambda t: Speculation(DraftModel(alike(t)), cost="assumed"), draws=True),
)
"""For any target."""

LAYERED: tuple[DrafterCase, ...] = (
    DrafterCase("layer skip", lambda _: LayerSkip((1, 2)), draws=True),
    DrafterCase("layer skip, tree", lambda _: LayerSkip((0,), Fixed.branching(2, 2), VocabularyTrim(9), draws=False)),
    DrafterCase("clasp", lambda _: Clasp(2), draws=True),
    DrafterCase("clasp, always anew", lambda _: Clasp(1, 1, DySpec(0.01), None, draws=False)),
    DrafterCase("dynamic exit", lambda _: DynamicExit(every=1, head=0.1), draws=True),
    DrafterCase("dynamic exit, fixed", lambda _: DynamicExit((3,), longest=3, draws=False)),
)
"""For a ``LlamaModel`` of at least four layers."""

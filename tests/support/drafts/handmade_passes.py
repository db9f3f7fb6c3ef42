"""Small vocabularies and grammars for drafters that learn from rows, and states and passes made by hand."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from structgen.decode import Context, Greedy, Sampler
from structgen.decode.speculative.draft_tree import DraftTree
from structgen.decode.speculative.drafter import DraftState, DraftTask, Verified
from structgen.engine import Constraint, Matcher, Vocabulary, compile
from structgen.frontends.regex import regex
from structgen.grammar.nodes import Grammar

__all__ = ["LETTERS", "allowed", "compiled", "ran", "state_of", "task_of", "tree_of_texts"]

LETTERS = Vocabulary([b"", *(bytes([letter]) for letter in b"abcdef,.")], eos=[0])
"""EOS is token 0, ``a`` is 1, and so on."""


def compiled(grammar: str | Grammar, vocabulary: Vocabulary = LETTERS) -> Constraint:
    return compile(regex(grammar) if isinstance(grammar, str) else grammar, vocabulary)


def state_of(matcher: Matcher, remaining: int = 1_000) -> DraftState:
    size = matcher.constraint.vocabulary.size
    mask = np.zeros((1, (size + 31) // 32), dtype=np.int32)
    matcher.fill_mask(mask)
    return DraftState(matcher.fork(), mask[0], remaining, 0)


def task_of(constraint: Constraint, sampler: Sampler | None = None, seed: int = 0) -> DraftTask:
    return DraftTask(constraint, sampler or Greedy(), 1, np.random.default_rng(seed))


def allowed(matcher: Matcher) -> set[int]:
    """The tokens that may come next, asked one by one."""
    return {token for token in range(matcher.constraint.vocabulary.size) if matcher.fork().accept(token)}


def ran(context: Context, tree: DraftTree) -> Verified:
    """Run a tree after a context, each node in its own sequence."""
    model = context.model
    rows = [model.start().extend([*context.tokens, *tree.prefix(node)]) for node in range(len(tree))]
    return Verified(len(context), tree, np.stack([model.start().extend(context.tokens), *rows]))


def tree_of_texts(vocabulary: Vocabulary, texts: Iterable[str]) -> DraftTree:
    tree = DraftTree()
    for text in texts:
        tree.extend(-1, vocabulary.tokenize(text.encode()), 0.5)
    return tree

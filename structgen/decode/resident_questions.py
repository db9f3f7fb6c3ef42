"""What the loop will ask of a pass whose logits stay with the model: asked at once, it is waited for once.

The loop itself does not change: it asks where it comes to a choice, and finds the answer.  A question that was not
foreseen is asked then, and one that was foreseen in vain is forgotten with the logits, so foresight decides how often a
device is waited for, and nothing about what is written.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from structgen.decode.mask_words import only_token
from structgen.decode.rows import ResidentRow, Rows
from structgen.decode.sampler import Greedy, Multinomial, Sampler
from structgen.decode.speculative.draft_tree import FORCED, ROOT, DraftTree
from structgen.errors import LimitExceeded
from structgen.models.protocol import Choosing, Question, Scoring, Shaping

if TYPE_CHECKING:
    from structgen.engine import Matcher
    from structgen.models.protocol import ResidentLogits

__all__ = ["ask_together", "choosing", "shape_of", "tree_questions"]

_MOST_PROBABLE = Shaping(temperature=0.0)


def shape_of(sampler: Sampler) -> Shaping | None:
    """What a device has to know of a sampler; None where it has to see the law itself."""
    match sampler:
        case Greedy():
            return _MOST_PROBABLE
        case Multinomial():
            return Shaping(sampler.temperature, sampler.top_k, sampler.top_p, sampler.min_p)
    return None


def choosing(row: int, mask: NDArray[np.int32], shape: Shaping, generator: np.random.Generator) -> Choosing:
    """The question for the next token under a mask that is not empty; it takes a random number where one is drawn."""
    if shape.temperature == 0 or only_token(mask) is not None:
        return Choosing(row, mask.tobytes(), _MOST_PROBABLE)
    return Choosing(row, mask.tobytes(), shape, generator.random())


def tree_questions(
    tree: DraftTree, told: Rows, matcher: Matcher, shape: Shaping, generator: np.random.Generator
) -> Iterator[tuple[ResidentLogits, Question]]:
    """What will be asked behind the tokens of a tree where they come.

    Args:
        tree: what was looked at, with what the grammar forces behind each guess.
        told: the logits behind the sequence and each of its nodes.
        matcher: where the output stands; it is not moved.
        shape: what tokens are drawn from.
        generator: the sampler's; it is not moved.  The next choice takes its next number, the choice behind it the one
            after that.
    """
    masks = np.zeros((1 + len(tree), (matcher.constraint.vocabulary.size + 31) // 32), dtype=np.int32)
    try:
        matcher.fill_mask_tree(tree.tokens, tree.parents, masks)
    except LimitExceeded:  # the limits are for outputs, not for guesses
        return
    forced = {
        parent: token
        for token, parent, source in zip(tree.tokens, tree.parents, tree.sources, strict=True)
        if source == FORCED
    }
    were_run = told.were_run()
    twin = copy.deepcopy(generator)
    uniforms = [twin.random() for _ in range(tree.depth() + 1)]
    taken: list[int] = []  # choices down to each node
    for node, (parent, source) in enumerate(zip(tree.parents, tree.sources, strict=True)):
        taken.append((0 if parent == ROOT else taken[parent]) + (source != FORCED))
        row, mask = told[1 + node], masks[1 + node]
        if not isinstance(row, ResidentRow) or not were_run[1 + node] or not mask.any():
            continue
        only = forced.get(node, only_token(mask))
        if only is not None:
            yield row.logits, Scoring(row.place, only)
        else:
            uniform = 0.0 if shape.temperature == 0 else uniforms[taken[node]]
            yield row.logits, Choosing(row.place, mask.tobytes(), shape, uniform)


def ask_together(questions: Iterable[tuple[ResidentLogits, Question]]) -> None:
    """Foresee questions, those to the same logits at once."""
    passes: dict[int, tuple[ResidentLogits, list[Question]]] = {}
    for logits, question in questions:
        passes.setdefault(id(logits), (logits, []))[1].append(question)
    for logits, asked in passes.values():
        logits.foresee(asked)

"""``DraftModel``: a smaller language model drafts.  ``ShortContext``: a model drafts from a part of a long prompt.

A ``DraftModel`` may have a drafter of its own (staged speculation): B. Spector and C. Re, "Accelerating LLM Inference
with Staged Speculative Decoding" (2023, arXiv 2308.04623).

``ShortContext`` chooses the part by the words that it shares with the end of the prompt.  Source of the idea: G. Chen
et al., "Long-Context Inference with Retrieval-Augmented Speculative Decoding" (RAPID, 2025, arXiv 2502.20330); here the
drafter's distribution does not enter the target's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, final

import numpy as np

from structgen.decode.speculative.draft_tree import DraftTree
from structgen.decode.speculative.drafter import (
    Drafter,
    Drafting,
    DraftState,
    DraftTask,
    GrammarPosition,
    GuardedDrafting,
    Verified,
)
from structgen.decode.speculative.fixed_tree import Chain
from structgen.decode.speculative.tree_policy import Shape
from structgen.decode.step.sampler import Greedy
from structgen.errors import LimitExceeded, VocabularyError
from structgen.methods.drafters.draft_session import (
    Bridge,
    BridgeTask,
    DraftSession,
    check_capacity,
    fitted_logits,
    have_same_tokens,
    vocabulary_of,
)
from structgen.methods.drafters.model_growth import DraftRow, DraftRows, RowsDrafting
from structgen.models.protocol import LanguageModel

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from structgen.decode.step.context import Context
    from structgen.engine import Vocabulary
    from structgen.models.protocol import Logits

__all__ = ["DraftModel", "InnerStage", "SameTokensRows", "ShortContext", "relevance", "shortened"]

_SEED: Final = 1
_MAX_STAGED: Final = 16


@final
class InnerStage:
    """A ``DraftStage``: a drafter that predicts the tokens of a draft model.

    A draft token is right if it is the token that the draft model then takes, sampled or chosen.  If the drafter fails,
    the draft model continues alone.

    Args:
        drafter: drafts for the draft model.
        task: the output that the draft model drafts for.
    """

    def __init__(self, drafter: Drafter, task: DraftTask) -> None:
        self._drafter = drafter
        self._task = DraftTask(
            task.constraint, Greedy(), task.prompt_tokens, np.random.Generator(np.random.PCG64(_SEED))
        )
        self._drafting: GuardedDrafting | None = None

    def draft(self, context: Context, position: GrammarPosition, most: int) -> DraftTree:
        """See ``DraftStage.draft``."""
        if self._drafting is None:
            self._drafting = GuardedDrafting(self._drafter, context, self._task)
        remaining = most if position.remaining is None else position.remaining
        state = DraftState(position.matcher, position.mask, remaining, len(position.ids).bit_length())
        budget = min(most, _MAX_STAGED)
        tree = self._drafting.propose(context, state, budget)
        try:
            allowed = position.matcher.validate_tree(tree.tokens, tree.parents)
        except LimitExceeded:  # limits are for outputs, not for draft tokens
            return DraftTree()
        eos = position.matcher.constraint.vocabulary.eos
        nodes = [node for node, token in enumerate(tree.tokens) if allowed[node] and token not in eos]
        return tree.kept(nodes[:budget])

    def observe(self, start: int, tree: DraftTree, rows: Logits) -> None:
        """See ``DraftStage.observe``."""
        if self._drafting is not None:
            self._drafting.observe(Verified(start, tree, rows))

    def close(self) -> None:
        """Free the drafter's state of this output."""
        drafting, self._drafting = self._drafting, None
        if drafting is not None:
            drafting.close()


_SHAPE: Final = Chain(length=5)


@final
@dataclass(frozen=True)
class DraftModel(Drafter):
    """A smaller model drafts, and the target verifies its tokens in one pass.

    Its distributions are masked by the grammar and shaped by the sampler, like those of the target.  With a
    ``Multinomial``, draft tokens are sampled from them and the tree records the distributions, so the verifier accepts
    as many tokens as the overlap of the two distributions allows.  With any other sampler, the most probable tokens are
    chosen.

    Source: Y. Leviathan et al. (ICML 2023, arXiv 2211.17192); C. Chen et al. (2023, arXiv 2302.01318).

    Attributes:
        model: the draft model.
        shape: the tree policy.
        bridge: translates between the vocabularies if the model has another one than the target; None refuses it.
        drafter: drafts for the draft model; None for none.  Not with a bridge.
        draws: whether tokens are sampled if the sampler samples; False chooses the most probable tokens, and the output
            of a seed is the same as without drafts.

    Raises:
        ValueError: both a bridge and a drafter are given.
    """

    model: LanguageModel
    shape: Shape = _SHAPE
    bridge: Bridge | None = None
    drafter: Drafter | None = None
    draws: bool = True

    def __post_init__(self) -> None:
        if self.bridge is not None and self.drafter is not None:
            raise ValueError(
                "DraftModel: a drafter for the draft model and a bridge exclude each other; "
                f"found bridge={self.bridge!r} and drafter={self.drafter!r}"
            )

    @property
    def name(self) -> str:
        """See ``Drafter.name``."""
        stage = "" if self.drafter is None else f" with {self.drafter.name}"
        return f"draft model {self.model.name}{stage}"

    def start(self, context: Context, task: DraftTask) -> Drafting:
        """See ``Drafter.start``.

        Raises:
            VocabularyError: the vocabularies differ and there is no bridge, or it cannot translate between them.
            GenerationError: the prompt does not fit into the draft model's context.
        """
        target, draft = task.constraint.vocabulary, vocabulary_of(self.model)
        if not have_same_tokens(target, draft):
            if self.bridge is None:
                remedy = (
                    "draft with a model of the same family, or through its text: "
                    "DraftModel(..., bridge=ExactStringMatch())"
                )
                raise _vocabulary_error(self.model, target, draft, remedy)
            return self.bridge.start(BridgeTask(self.model, context.tokens, task, self.shape, self.draws))
        check_capacity(self.model, len(context))
        stage = None if self.drafter is None else InnerStage(self.drafter, task)
        return RowsDrafting(task, self.shape, SameTokensRows(self.model, target, stage), draws=self.draws)


@final
class SameTokensRows(DraftRows):
    """The logits rows of a draft model with the same tokens as the target.

    Args:
        model: the draft model.
        target: the vocabulary of the output.
        stage: drafts for the draft model.
    """

    def __init__(self, model: LanguageModel, target: Vocabulary, stage: InnerStage | None = None) -> None:
        self._session = DraftSession(model)
        self._target = target
        self._draft = model.vocabulary
        self._stage = stage

    @property
    def session(self) -> DraftSession:
        """The draft model's own sequence."""
        return self._session

    def follow(self, tokens: Sequence[int]) -> None:
        """See ``DraftRows.follow``."""
        self._session.follow(tokens)

    def rows(
        self, paths: Sequence[tuple[int, ...]], positions: Sequence[GrammarPosition], most: int
    ) -> Sequence[DraftRow | None]:
        """See ``DraftRows.rows``."""
        rows = self._session.rows(paths, position=positions[-1], stage=self._stage, most=most)
        return [None if row is None else fitted_logits(row, self._target, self._draft) for row in rows]

    def close(self) -> None:
        """See ``DraftRows.close``."""
        if self._stage is not None:
            self._stage.close()
        self._session.close()


def _vocabulary_error(model: LanguageModel, target: Vocabulary, draft: Vocabulary, remedy: str) -> VocabularyError:
    same = sum(ours == theirs for ours, theirs in zip(target.tokens, draft.tokens, strict=False))
    return VocabularyError(
        f"draft model {model.name!r}",
        "its vocabulary is not the target's",
        evidence=f"{draft.size} and {target.size} tokens, and {same} of them have the same id and bytes",
        remedy=remedy,
    )


_K1: Final = 1.5
_B: Final = 0.75
_WORD: Final = 1 << 31


def relevance(chunks: Sequence[Sequence[int]], question: Sequence[int]) -> list[float]:
    """Score chunks of tokens by the tokens and token pairs that they share with a question.

    BM25 with tokens and pairs as terms, ``k1 = 1.5`` and ``b = 0.75``; each term of the question counts once.

    Source: S. Robertson and H. Zaragoza, "The Probabilistic Relevance Framework: BM25 and Beyond" (2009).

    Args:
        chunks: token ids of each.
        question: token ids.

    Returns:
        For each chunk a score of at least 0; 0 if nothing is shared.

    Complexity: O(n log n) for n tokens.
    """
    if not chunks:
        return []
    query = np.unique(_terms(question))
    counts = np.zeros((len(chunks), len(query)))
    lengths = np.zeros(len(chunks))
    for index, chunk in enumerate(chunks):
        terms, times = np.unique(_terms(chunk), return_counts=True)
        lengths[index] = len(chunk)
        at = np.searchsorted(query, terms)
        inside = at < len(query)
        inside[inside] = query[at[inside]] == terms[inside]
        counts[index, at[inside]] = times[inside]
    holding = (counts > 0).sum(axis=0)
    rarity = np.log1p((len(chunks) - holding + 0.5) / (holding + 0.5))
    norm = _K1 * (1 - _B + _B * lengths / max(float(lengths.mean()), 1.0))
    scores = counts * (_K1 + 1) / (counts + norm[:, None]) @ rarity
    return [float(score) for score in scores]


def _terms(tokens: Sequence[int]) -> NDArray[np.int64]:
    """A number for each token and each pair of neighbours."""
    ids = np.asarray(tokens, dtype=np.int64)
    return np.concatenate((ids, (ids[:-1] + 1) * _WORD + ids[1:]))


_QUESTION: Final = 64


@final
@dataclass(frozen=True)
class ShortContext(Drafter):
    """The target, or a draft model with its vocabulary, drafts from a part of the prompt.

    The part is the head of the prompt, its tail, and the chunks between them that share the most words with the end of
    the prompt and the output so far, in order.  It is chosen again as the output grows.  Prompts of at most ``tokens``
    tokens get no drafts, which would cost as much as the target.

    Attributes:
        model: the model that drafts; None is the target.
        shape: the tree policy.
        tokens: how many tokens of the prompt are read.
        head: how many of them are from the start of the prompt.
        tail: how many of them are from its end.
        chunk: how many tokens a chunk has.
        refresh: after how many tokens of the output the part is chosen again; None chooses once.
        draws: as for ``DraftModel``.

    Raises:
        ValueError: a number is not positive, or ``head``, ``tail`` and a chunk do not fit into ``tokens``.
    """

    model: LanguageModel | None = None
    shape: Shape = _SHAPE
    tokens: int = 512
    head: int = 64
    tail: int = 128
    chunk: int = 64
    refresh: int | None = 128
    draws: bool = True

    def __post_init__(self) -> None:
        for name in ("tokens", "head", "tail", "chunk", "refresh"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or value < 1):
                raise ValueError(f"ShortContext: {name} must be an integer of at least 1; found {value!r}")
        if self.head + self.tail + self.chunk > self.tokens:
            raise ValueError(
                "ShortContext: head, tail and a chunk must fit into tokens; "
                f"found {self.head} + {self.tail} + {self.chunk} > {self.tokens}"
            )

    @property
    def name(self) -> str:
        """See ``Drafter.name``."""
        return "short context" if self.model is None else f"short context of {self.model.name}"

    def start(self, context: Context, task: DraftTask) -> Drafting:
        """See ``Drafter.start``.

        Raises:
            VocabularyError: the vocabularies differ.
        """
        if task.prompt_tokens <= self.tokens:
            return _NoDrafting()
        model = context.model if self.model is None else self.model
        target = task.constraint.vocabulary
        if not have_same_tokens(target, vocabulary_of(model)):
            remedy = "draft with the target itself, ShortContext(), or with a model of the same family"
            raise _vocabulary_error(model, target, vocabulary_of(model), remedy)
        rows = _ShortRows(SameTokensRows(model, target), self, task.prompt_tokens)
        return RowsDrafting(task, self.shape, rows, draws=self.draws)


@final
class _NoDrafting(Drafting):
    """Drafts nothing."""

    def propose(self, context: Context, state: DraftState, budget: int) -> DraftTree:
        """See ``Drafting.propose``."""
        return DraftTree()


@final
class _ShortRows(DraftRows):
    """The logits rows of a model that reads a part of the prompt."""

    def __init__(self, rows: SameTokensRows, setting: ShortContext, prompt_tokens: int) -> None:
        self._rows = rows
        self._setting = setting
        self._prompt_tokens = prompt_tokens
        self._chosen: tuple[tuple[int, ...], list[int]] | None = None  # the question, and the part

    def follow(self, tokens: Sequence[int]) -> None:
        """See ``DraftRows.follow``."""
        prompt, output = tokens[: self._prompt_tokens], tokens[self._prompt_tokens :]
        setting = self._setting
        end = 0 if setting.refresh is None else len(output) // setting.refresh * setting.refresh
        question = (*prompt[-_QUESTION:], *output[:end][-_QUESTION:])
        if self._chosen is None or self._chosen[0] != question:
            self._chosen = question, shortened(prompt, question, setting)
        self._rows.follow([*self._chosen[1], *output])

    def rows(
        self, paths: Sequence[tuple[int, ...]], positions: Sequence[GrammarPosition], most: int
    ) -> Sequence[DraftRow | None]:
        """See ``DraftRows.rows``."""
        return self._rows.rows(paths, positions, most)

    def close(self) -> None:
        """See ``DraftRows.close``."""
        self._rows.close()


def shortened(prompt: Sequence[int], question: Sequence[int], setting: ShortContext) -> list[int]:
    """Return the part of a prompt that is read: at most ``setting.tokens`` of its tokens, in order.

    Of equally relevant chunks the later one is chosen.

    Args:
        prompt: token ids, more than ``setting.tokens``.
        question: the tokens that chunks are scored by.
        setting: the sizes of the parts.

    Complexity: O(n log n).
    """
    middle = prompt[setting.head : len(prompt) - setting.tail]
    chunks = [middle[at : at + setting.chunk] for at in range(0, len(middle), setting.chunk)]
    scores = relevance(chunks, question)
    ranked = sorted(range(len(chunks)), key=lambda index: (-scores[index], -index))
    capacity = setting.tokens - setting.head - setting.tail
    selected: list[int] = []
    for index in ranked:
        if len(chunks[index]) <= capacity:
            selected.append(index)
            capacity -= len(chunks[index])
    part = list(prompt[: setting.head])
    for index in sorted(selected):
        part += chunks[index]
    return [*part, *prompt[len(prompt) - setting.tail :]]

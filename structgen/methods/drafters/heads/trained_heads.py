"""Trained heads that draft tokens from a model's last hidden states: how they are loaded, and their drafter.

Importing this module imports no torch; ``load_heads`` does.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, final, runtime_checkable

import numpy as np

from structgen.decode.speculative.draft_tree import ROOT, DraftTree
from structgen.decode.speculative.drafter import Drafter, Drafting, DraftState, DraftTask, Verified
from structgen.errors import ModelError
from structgen.methods.drafters.draft_session import common_length
from structgen.methods.drafters.layer_skip import layered_session
from structgen.methods.drafters.model_growth import DraftRows, RowsDrafting
from structgen.methods.drafters.vocabulary_trim import TrimmedHeads, VocabularyTrim
from structgen.methods.tree_policies.dynamic_tree import OptTree
from structgen.models.location import require

if TYPE_CHECKING:
    from collections.abc import Sequence

    from structgen.decode.speculative.grammar_position import GrammarPosition
    from structgen.decode.speculative.tree_policy import Shape
    from structgen.decode.step.context import Context
    from structgen.models.protocol import LanguageModel, LayeredSession, Logits, States, TrimmedHead

__all__ = ["DraftHeads", "HeadRows", "HeadSession", "TrainedHeads", "load_heads"]


@runtime_checkable
class HeadSession(Protocol):
    """Heads after one sequence; not for use by two threads at a time."""

    def follow(self, position: int, token_ids: Sequence[int], states: States, /) -> None:
        """Stand after the last of some tokens.

        What it holds of earlier tokens stays if they reach up to these, and is dropped otherwise.

        Args:
            position: of the first.
            token_ids: at least one.
            states: what the network's last layer made of each, ``[len(token_ids), width]``, before the final norm.
        """

    def logits(self, paths: Sequence[Sequence[int]], /, *, head: TrimmedHead | None = None) -> Logits:
        """Return what may follow each of some continuations.

        Args:
            paths: tokens after the sequence: from one to ``DraftHeads.depth`` of them, all as many.
            head: what to compute; None for all tokens.

        Returns:
            float32 ``[len(paths), V]``, or ``[len(paths), len(head.ids)]``; the caller owns the array.

        Raises:
            GenerationError: nothing is followed yet, paths are of different lengths, or too long.
        """


@runtime_checkable
class DraftHeads(Protocol):
    """Trained heads of a model: unchanging, so any number of sequences may share them."""

    @property
    def name(self) -> str:
        """What messages and statistics call them."""

    @property
    def depth(self) -> int | None:
        """How many tokens a path may have at most; None where there is no bound."""

    @property
    def width(self) -> int:
        """How long the states are that they were trained for."""

    def start(self) -> HeadSession:
        """Return a session that follows nothing yet."""


def load_heads(folder: str | Path, model: LanguageModel) -> DraftHeads:
    """Load heads that were trained for a model.

    A folder holds ``config.json`` and one or more files of safetensors.  Which heads they are, the configuration says:

    * ``medusa_num_heads`` (and ``medusa_num_layers``): Medusa, with the names of its own files (``0.0.linear.weight``).
    * ``hydra_num_heads`` (and ``hydra_num_layers``): heads that know the tokens before (``HydraHeads``).
    * ``architectures`` that begin with ``Eagle``, or ``fc.weight`` among the weights: EAGLE, with its own names.

    Args:
        folder: see above.
        model: what they were trained for: a ``LlamaModel``, whose embedding and output head they may use.

    Raises:
        ModelError: a file is missing or damaged, the heads are of another kind or for another model.
    """
    require("torch", "safetensors")
    from structgen.methods.drafters.heads.checkpoint import heads_in
    from structgen.models.llama.model import LlamaModel

    if not isinstance(model, LlamaModel):
        raise ModelError(
            f"model {getattr(model, 'name', model)!r}",
            "heads need a model that shows its hidden states",
            evidence=f"found {type(model).__name__}",
            remedy="use the embedded model or another LlamaModel",
        )
    return heads_in(Path(folder), model)


@final
class HeadRows(DraftRows):
    """Rows of trained heads, which follow the states of the passes over the output.

    Args:
        context: of the output.
        session: its session.
        heads: what draft tokens.
        trim: for which tokens logits are computed.
    """

    def __init__(self, context: Context, session: LayeredSession, heads: DraftHeads, trim: TrimmedHeads) -> None:
        self._context = context
        self._session = session
        self._trained = heads
        self._heads = heads.start()
        self._trim = trim
        self._told: list[tuple[Verified, States]] = []  # passes that are not followed yet
        self._start = 0  # of the tokens that are followed
        self._tokens: list[int] = []
        self._pending: list[int] = []

    @property
    def is_after(self) -> bool:
        """Whether the heads follow all that the model has seen."""
        return bool(self._tokens) and self._start + len(self._tokens) == self._session.length

    def watch(self) -> None:
        """See to it that the next pass notes the last states."""
        self._session.watched = tuple({*self._session.watched, self._session.layers})

    def observe(self, verified: Verified) -> None:
        """Take in a pass."""
        states = self._session.states.get(self._session.layers)
        if states is not None:
            self._told.append((verified, states))

    def follow(self, tokens: Sequence[int]) -> None:
        """See ``DraftRows.follow``."""
        seen = self._context.session.length  # with what was looked ahead at and came
        self._pending = list(tokens[seen:])
        if common_length(self._tokens, tokens[self._start : seen]) < len(self._tokens):  # some were taken back
            self._heads, self._tokens = self._trained.start(), []
        told, self._told = self._told, []
        for verified, states in told:
            self._follow(tokens[:seen], verified, states)

    def rows(
        self, paths: Sequence[tuple[int, ...]], positions: Sequence[GrammarPosition], most: int
    ) -> list[Logits | None]:
        """See ``DraftRows.rows``; paths of one length in one step."""
        found: list[Logits | None] = [None] * len(paths)
        if not self.is_after or not self._pending:
            return found
        steps: dict[int, list[int]] = {}
        for index, path in enumerate(paths):
            length = len(self._pending) + len(path)
            if self._trained.depth is None or length <= self._trained.depth:
                steps.setdefault(length, []).append(index)
        for indices in steps.values():
            allowed = np.unique(np.concatenate([positions[index].ids for index in indices]))
            head: TrimmedHead | None = self._trim.of(allowed)
            logits = self._heads.logits([(*self._pending, *paths[index]) for index in indices], head=head)
            for index, row in zip(indices, self._trim.spread(logits, head), strict=True):
                found[index] = row
        return found

    def _follow(self, tokens: Sequence[int], verified: Verified, states: States) -> None:
        """Follow what became of a pass: its tokens, and those of its tree that came."""
        tree = verified.tree
        run = range(len(tree)) if self._context.branches else tree.token_tree().first_chain()
        trunk = len(states) - len(run)
        first = verified.start - trunk
        if first < 0 or len(tokens) < verified.start:
            return
        rows_of = {node: row for row, node in enumerate(run, start=trunk)}
        rows = list(range(trunk))
        node = ROOT
        for token in tokens[verified.start :]:
            child = tree.child(node, token)
            if child is None or child not in rows_of:
                break
            node = child
            rows.append(rows_of[node])
        followed = tokens[first : first + len(rows)]
        if first != self._start + len(self._tokens):
            self._start, self._tokens = first, []
        self._tokens += followed
        self._heads.follow(first, followed, states[rows])

    def close(self) -> None:
        """See ``DraftRows.close``."""
        self._session.watched = tuple(set(self._session.watched) - {self._session.layers})
        self._told = []


@final
@dataclass(frozen=True)
class TrainedHeads(Drafter):
    """Drafts by heads that predict from the target's last hidden states (see ``loading.load_heads``).

    The grammar is applied to what heads say before a tree is made of it, so no node is spent on what cannot come.  The
    states are those of passes over the output; a prompt that was read before has none, which only EAGLE's layer misses.

    Sources: Cai et al. 2024, Medusa (arXiv 2401.10774); Ankner et al. 2024, Hydra (arXiv 2402.05109); Li et al. 2024,
    EAGLE (arXiv 2401.15077).

    Attributes:
        heads: trained for the model that writes.
        shape: of the drafts.  Without knowledge of each other, Medusa's heads make a product of their draft tokens, of
            which the likeliest are kept.
        trim: for which tokens logits are computed; None for all.
        draws: whether tokens are drawn where the sampler is a ``Multinomial``; else the most probable ones are chosen.
    """

    heads: DraftHeads
    shape: Shape = field(default_factory=lambda: OptTree(depth=5))
    trim: VocabularyTrim | None = None
    draws: bool = False

    @property
    def name(self) -> str:
        """See ``Drafter.name``."""
        return self.heads.name

    def start(self, context: Context, task: DraftTask) -> Drafting:
        """See ``Drafter.start``.

        Raises:
            ModelError: the model does not show its layers, or the heads are for states of another width.
        """
        session = layered_session(context, drafter="TrainedHeads")
        if session.width != self.heads.width:
            raise ModelError(
                f"heads {self.heads.name!r}",
                f"they are for states of {self.heads.width} numbers",
                evidence=f"those of model {context.model.name!r} have {session.width}",
                remedy="use heads that were trained for this model",
            )
        rows = HeadRows(context, session, self.heads, TrimmedHeads(session, task.constraint, self.trim))
        return _HeadDrafting(rows, RowsDrafting(task, self.shape, rows, draws=self.draws))


@final
class _HeadDrafting(Drafting):
    def __init__(self, rows: HeadRows, drafting: RowsDrafting) -> None:
        self._rows = rows
        self._drafting = drafting

    def propose(self, context: Context, state: DraftState, budget: int) -> DraftTree:
        """See ``Drafting.propose``."""
        self._rows.watch()
        return self._drafting.propose(context, state, budget)

    def observe(self, verified: Verified) -> None:
        """See ``Drafting.observe``."""
        self._rows.observe(verified)

    def close(self) -> None:
        """See ``Drafting.close``."""
        self._drafting.close()

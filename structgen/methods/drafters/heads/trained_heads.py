"""Trained heads that draft from a model's last hidden states: loading, and their drafter.

Importing this module imports no torch; ``load_heads`` does.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, final, runtime_checkable

import numpy as np

from structgen.decode.speculative.draft_tree import ROOT, DraftTree
from structgen.decode.speculative.drafter import Drafter, Drafting, DraftState, DraftTask, GrammarPosition, Verified
from structgen.errors import ModelError
from structgen.methods.drafters.draft_session import common_length
from structgen.methods.drafters.layer_skip import layered_session
from structgen.methods.drafters.model_growth import DraftRows, RowsDrafting
from structgen.methods.drafters.vocabulary_trim import TrimmedHeads, VocabularyTrim
from structgen.methods.tree_policies.dynamic_tree import OptTree
from structgen.models.location import require

if TYPE_CHECKING:
    from collections.abc import Sequence

    from structgen.decode.speculative.tree_policy import Shape
    from structgen.decode.step.context import Context
    from structgen.models.protocol import LanguageModel, LayeredSession, Logits, States, TrimmedHead

__all__ = ["DraftHeads", "HeadRows", "HeadSession", "TrainedHeads", "load_heads"]


@runtime_checkable
class HeadSession(Protocol):
    """Heads after one sequence; not for use by two threads at a time."""

    def follow(self, position: int, token_ids: Sequence[int], states: States, /) -> None:
        """Move to the end of some tokens.

        Earlier tokens stay if these continue them, and are dropped otherwise.

        Args:
            position: the position of the first token.
            token_ids: at least one.
            states: the outputs of the network's last layer, ``[len(token_ids), width]``, before the final norm.
        """

    def logits(self, paths: Sequence[Sequence[int]], /, *, head: TrimmedHead | None = None) -> Logits:
        """Return the logits after each of some continuations.

        Args:
            paths: tokens after the sequence, all of one length from 1 to ``DraftHeads.depth``.
            head: the tokens for which logits are computed; None for all.

        Returns:
            float32 ``[len(paths), V]``, or ``[len(paths), len(head.ids)]``; the caller owns the array.

        Raises:
            GenerationError: there is no sequence yet, or paths are too long or of different lengths.
        """


@runtime_checkable
class DraftHeads(Protocol):
    """Trained heads of a model: immutable, so any number of sequences may share them."""

    @property
    def name(self) -> str:
        """Their name in messages and statistics."""

    @property
    def depth(self) -> int | None:
        """The largest number of tokens of a path; None for no bound."""

    @property
    def width(self) -> int:
        """The width of the states that they were trained for."""

    def start(self) -> HeadSession:
        """Return a session without a sequence."""


def load_heads(folder: str | Path, model: LanguageModel) -> DraftHeads:
    """Load heads that were trained for a model.

    The folder has ``config.json`` and one or more safetensors files.  The configuration names the kind of heads:

    * ``medusa_num_heads`` (and ``medusa_num_layers``): Medusa, with the names of its own files (``0.0.linear.weight``).
    * ``hydra_num_heads`` (and ``hydra_num_layers``): heads that also read the draft tokens before (``HydraHeads``).
    * ``architectures`` that begin with ``Eagle``, or ``fc.weight`` among the weights: EAGLE, with its own names.

    Args:
        folder: the folder.
        model: the model that they were trained for, a ``LlamaModel``; they may use its embedding and output head.

    Raises:
        ModelError: a file is missing or damaged, the heads are of another kind or for another model.
    """
    require("torch", "safetensors")
    from structgen.methods.drafters.heads.checkpoint import heads_in
    from structgen.models.llama.model import LlamaModel

    if not isinstance(model, LlamaModel):
        raise ModelError(
            f"model {getattr(model, 'name', model)!r}",
            "heads need a model that exposes its hidden states",
            evidence=f"found {type(model).__name__}",
            remedy="use the embedded model or another LlamaModel",
        )
    return heads_in(Path(folder), model)


@final
class HeadRows(DraftRows):
    """The logits rows of trained heads, which follow the hidden states of the passes over the output.

    Args:
        context: the context of the output.
        session: its session.
        heads: the trained heads.
        trim: the tokens for which logits are computed.
    """

    def __init__(self, context: Context, session: LayeredSession, heads: DraftHeads, trim: TrimmedHeads) -> None:
        self._context = context
        self._session = session
        self._trained = heads
        self._heads = heads.start()
        self._trim = trim
        self._passes: list[tuple[Verified, States]] = []  # passes that the heads do not follow yet
        self._start = 0  # position of the first token that the heads follow
        self._tokens: list[int] = []
        self._pending: list[int] = []

    @property
    def is_after(self) -> bool:
        """Whether the heads follow all tokens that the model has seen."""
        return bool(self._tokens) and self._start + len(self._tokens) == self._session.length

    def watch(self) -> None:
        """Have the next pass record the last hidden states."""
        self._session.watched = tuple({*self._session.watched, self._session.layers})

    def observe(self, verified: Verified) -> None:
        """Record a pass."""
        states = self._session.states.get(self._session.layers)
        if states is not None:
            self._passes.append((verified, states))

    def follow(self, tokens: Sequence[int]) -> None:
        """See ``DraftRows.follow``."""
        seen = self._context.session.length  # accepted draft tokens included
        self._pending = list(tokens[seen:])
        if common_length(self._tokens, tokens[self._start : seen]) < len(self._tokens):  # some were taken back
            self._heads, self._tokens = self._trained.start(), []
        passes, self._passes = self._passes, []
        for verified, states in passes:
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
        """Follow the tokens of a pass: its new tokens, and the accepted part of its tree."""
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
        self._passes = []


@final
@dataclass(frozen=True)
class TrainedHeads(Drafter):
    """Drafts with heads that predict from the target's last hidden states (see ``load_heads``).

    The grammar masks the logits of the heads before a tree is grown, so no node is refused.  The states are those of
    passes over the output; states of a prompt that was read before are missing, which matters for EAGLE only.

    Sources: Cai et al. 2024, Medusa (arXiv 2401.10774); Ankner et al. 2024, Hydra (arXiv 2402.05109); Li et al. 2024,
    EAGLE (arXiv 2401.15077).

    Attributes:
        heads: heads that were trained for the target.
        shape: the tree policy.  Medusa's heads are independent of each other, so a tree has the likeliest products of
            their draft tokens.
        trim: the tokens for which logits are computed; None for all.
        draws: whether tokens are sampled if the sampler is a ``Multinomial``; otherwise the most probable ones are
            chosen.
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
            ModelError: the model does not expose its layers, or the heads are for states of another width.
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

"""Self-speculation: the target drafts for itself without some of its layers.

``LayerSkip`` leaves out fixed layers, ``Clasp`` those that matter least; ``LayerRows`` are the logits rows of such a
network after an output.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol, final

import numpy as np

from structgen.decode.speculative.drafter import Drafter, Drafting, DraftTask
from structgen.decode.speculative.fixed_tree import Chain
from structgen.errors import ModelError
from structgen.methods.drafters.draft_session import common_length
from structgen.methods.drafters.model_growth import DraftRows, RowsDrafting
from structgen.methods.drafters.vocabulary_trim import TrimmedHeads, VocabularyTrim
from structgen.models.protocol import LayeredSession

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from structgen.decode.speculative.grammar_position import GrammarPosition
    from structgen.decode.speculative.tree_policy import Shape
    from structgen.decode.step.context import Context
    from structgen.models.protocol import Logits, SkippingSession, States

__all__ = ["Clasp", "LayerChoice", "LayerRows", "LayerSkip", "closest_layers", "layered_session"]

_PENDING: Final = 32
"""So many tokens that the model has not seen are run in a draft; after more of them, a prompt, nothing is drafted."""


def layered_session(context: Context, *, drafter: str) -> LayeredSession:
    """Return the session of a context if it shows its layers.

    Args:
        context: of the output.
        drafter: what needs it, for the message.

    Raises:
        ModelError: it does not.
    """
    session = context.session
    if not isinstance(session, LayeredSession):
        raise ModelError(
            f"model {context.model.name!r}",
            f"its sessions do not show their layers, which {drafter} needs",
            evidence=f"found {type(session).__name__}",
            remedy="use the embedded model or another LlamaModel outside a batch, or another drafter",
        )
    return session


class LayerChoice(Protocol):
    """Says which layers a draft runs."""

    def layers(self, session: LayeredSession, tokens: Sequence[int], /) -> Sequence[int]:
        """Return them, ascending.

        Args:
            session: what the model was given of the output, at least a token; not to be changed.
            tokens: the prompt and the output so far.
        """


@final
class LayerRows(DraftRows):
    """Rows of the network that is left, after the keys and values of the whole one.

    Args:
        context: of the output.
        session: its session.
        choice: which layers run.
        heads: for which tokens logits are computed.
    """

    def __init__(self, context: Context, session: LayeredSession, choice: LayerChoice, heads: TrimmedHeads) -> None:
        self._context = context
        self._session = session
        self._choice = choice
        self._heads = heads
        self._pending: list[int] = []
        self._kept: Sequence[int] = ()
        self._draft: SkippingSession | None = None
        self._drafted: list[int] = []
        self._room = 0

    def follow(self, tokens: Sequence[int]) -> None:
        """See ``DraftRows.follow``."""
        self._draft = None
        self._drafted = []
        self._pending = self._context.unseen
        if self.can_draft:
            self._kept = self._choice.layers(self._session, tokens)

    @property
    def can_draft(self) -> bool:
        """Whether the model has seen enough: after a prompt that it has not, nothing is drafted."""
        return 0 < len(self._pending) <= _PENDING and self._session.length > 0

    def rows(
        self, paths: Sequence[tuple[int, ...]], positions: Sequence[GrammarPosition], most: int
    ) -> list[Logits | None]:
        """See ``DraftRows.rows``; one pass through the layers for each path."""
        if not self.can_draft:
            return [None] * len(paths)
        if self._draft is None:
            longest = max(map(len, paths))
            self._room = self._fitting(len(self._pending) + longest + most)
            if self._room < len(self._pending) + longest:
                return [None] * len(paths)
            self._draft = self._session.skipping(self._kept, room=self._room)
        return [self._row(self._draft, path, position) for path, position in zip(paths, positions, strict=True)]

    def close(self) -> None:
        """See ``DraftRows.close``."""
        self._draft = None

    def _row(self, draft: SkippingSession, path: tuple[int, ...], position: GrammarPosition) -> Logits | None:
        wanted = [*self._pending, *path]
        if len(wanted) > self._room:
            return None
        common = min(common_length(wanted, self._drafted), len(wanted) - 1)
        draft.truncate(self._session.length + common)
        head = self._heads.of(position.ids)
        logits = draft.extend(wanted[common:], head=head)
        self._drafted = wanted
        return self._heads.spread(logits, head)

    def _fitting(self, room: int) -> int:
        bound = self._context.model.max_context
        return room if bound is None else min(room, bound - self._session.length)


def closest_layers(
    through: Callable[[int, States], States], state: States, *, layers: int, skipped: int
) -> tuple[int, ...]:
    r"""Return the layers that stay where ``skipped`` are left out, ascending, by the state of one token.

    ``h(i)`` is the token's state after the first ``i`` layers of the whole network, ``g(i, j)`` one after some of
    them, ``j`` of them left out::

        g(0, 0) = h(0)
        g(i, j) = whichever is closer to h(i), by cosine:  layer i of g(i - 1, j)  or  g(i - 1, j - 1)

    of equally close ones the first; the answer is how ``g(layers, skipped)`` came about.  This is not the best set: a
    cell keeps one state, the closest to ``h(i)`` at that depth, though another might have ended closer to the last one,
    and the state of a single token is looked at.  (It is the best set where layers add what does not depend on their
    input, at right angles.)

    Source: Chen et al. 2025, CLaSp (arXiv 2505.24196).

    Args:
        through: what layer ``i`` makes of states ``[rows, width]``, of each by itself; it is called for all of a depth
            at once.
        state: ``h(0)``, float32 ``[width]``.
        layers: how many the network has.
        skipped: how many are left out; from 0 to ``layers``.

    Complexity: each layer once, on at most ``skipped + 1`` rows.
    """
    if not 0 <= skipped <= layers:
        raise ValueError(f"skipped must lie between 0 and {layers}; found {skipped}")
    if skipped == layers:
        return ()
    cells = state[None]  # g(i, j), a row for each j; the first is h(i)
    kept = np.zeros((layers, skipped + 1), dtype=np.bool_)
    for layer in range(layers):
        run = through(layer, cells)
        count = min(layer + 1, skipped) + 1
        # All rows may be kept but the one that left out every layer so far; all but the first may be skipped.
        stay = np.full(count, -np.inf)
        stay[: len(run)] = _cosines(run, run[0])
        leave = np.full(count, -np.inf)
        leave[1:] = _cosines(cells[: count - 1], run[0])
        kept[layer, :count] = stay >= leave
        chosen = np.empty((count, len(state)), dtype=np.float32)
        for row in range(count):
            chosen[row] = run[row] if kept[layer, row] else cells[row - 1]
        cells = chosen
    staying: list[int] = []
    left = skipped
    for layer in range(layers - 1, -1, -1):
        if kept[layer, left]:
            staying.append(layer)
        else:
            left -= 1
    return tuple(staying[::-1])


def _cosines(states: States, target: States) -> NDArray[np.float64]:
    """The cosines between states ``[rows, width]`` and ``target`` ``[width]``, times the length of the latter."""
    rows = states.astype(np.float64)
    lengths = np.linalg.norm(rows, axis=1)
    cosines: NDArray[np.float64] = rows @ target.astype(np.float64) / np.maximum(lengths, np.finfo(np.float64).tiny)
    return cosines


@final
@dataclass(frozen=True)
class LayerSkip(Drafter):
    """Drafts through the target's own network without certain layers.

    The keys and values of verified tokens are those of the whole network, so a draft begins at once and costs nothing
    but its own rows.

    Source: Zhang et al. 2023, "Draft & Verify" (arXiv 2309.08168), where a search over a text chooses the layers.

    Attributes:
        skipped: the layers that are left out, counted from 0.
        shape: of the drafts.
        trim: for which tokens a draft computes logits; None for all.
        draws: whether tokens are drawn where the sampler is a ``Multinomial``; else the most probable ones are chosen.

    Raises:
        ValueError: a layer is negative or comes twice.
    """

    skipped: tuple[int, ...]
    shape: Shape = field(default_factory=lambda: Chain(4))
    trim: VocabularyTrim | None = field(default_factory=VocabularyTrim)
    draws: bool = True

    def __post_init__(self) -> None:
        if len(set(self.skipped)) < len(self.skipped) or any(layer < 0 for layer in self.skipped):
            raise ValueError(f"LayerSkip: skipped must be different layers from 0 on; found {self.skipped!r}")

    @property
    def name(self) -> str:
        """See ``Drafter.name``."""
        return f"layer skip of {len(self.skipped)}"

    def start(self, context: Context, task: DraftTask) -> Drafting:
        """See ``Drafter.start``.

        Raises:
            ModelError: the model does not show its layers, or lacks one of ``skipped``.
        """
        session = layered_session(context, drafter="LayerSkip")
        _check_count(max(self.skipped, default=-1) + 1, session, context)
        kept = tuple(layer for layer in range(session.layers) if layer not in self.skipped)
        rows = LayerRows(context, session, _FixedLayers(kept), TrimmedHeads(session, task.constraint, self.trim))
        return RowsDrafting(task, self.shape, rows, draws=self.draws)


@final
@dataclass(frozen=True)
class Clasp(Drafter):
    """Drafts through the target's own network, leaving out layers that matter least where the output stands.

    Which these are, is found by ``closest_layers`` from the last token that the model has seen.  That costs about as
    much as a pass over ``skipped + 1`` rows, so it is not done before every draft.

    Source: Chen et al. 2025, CLaSp (arXiv 2505.24196).

    Attributes:
        skipped: how many layers are left out.
        every: before how many drafts layers are chosen once.
        shape: of the drafts.
        trim: for which tokens a draft computes logits; None for all.
        draws: whether tokens are drawn where the sampler is a ``Multinomial``; else the most probable ones are chosen.

    Raises:
        ValueError: ``skipped`` or ``every`` is below 1.
    """

    skipped: int
    every: int = 16
    shape: Shape = field(default_factory=lambda: Chain(4))
    trim: VocabularyTrim | None = field(default_factory=VocabularyTrim)
    draws: bool = True

    def __post_init__(self) -> None:
        for name in ("skipped", "every"):
            if getattr(self, name) < 1:
                raise ValueError(f"Clasp: {name} must be at least 1; found {getattr(self, name)!r}")

    @property
    def name(self) -> str:
        """See ``Drafter.name``."""
        return f"clasp of {self.skipped}"

    def start(self, context: Context, task: DraftTask) -> Drafting:
        """See ``Drafter.start``.

        Raises:
            ModelError: the model does not show its layers, or has fewer than ``skipped``.
        """
        session = layered_session(context, drafter="Clasp")
        _check_count(self.skipped, session, context)
        rows = LayerRows(
            context,
            session,
            _ClosestLayers(self.skipped, self.every),
            TrimmedHeads(session, task.constraint, self.trim),
        )
        return RowsDrafting(task, self.shape, rows, draws=self.draws)


@final
class _FixedLayers:
    """The same layers for every draft."""

    def __init__(self, kept: tuple[int, ...]) -> None:
        self._kept = kept

    def layers(self, session: LayeredSession, tokens: Sequence[int], /) -> Sequence[int]:
        """See ``LayerChoice.layers``."""
        del session, tokens
        return self._kept


@final
class _ClosestLayers:
    """The layers whose loss the last token that was seen notices least."""

    def __init__(self, skipped: int, every: int) -> None:
        self._skipped = skipped
        self._every = every
        self._drafts = 0
        self._kept: tuple[int, ...] = ()

    def layers(self, session: LayeredSession, tokens: Sequence[int], /) -> Sequence[int]:
        """See ``LayerChoice.layers``."""
        if self._drafts % self._every == 0:
            last = session.length - 1
            self._kept = closest_layers(
                lambda layer, states: session.through(layer, states, last),
                session.embedded([tokens[last]])[0],
                layers=session.layers,
                skipped=self._skipped,
            )
        self._drafts += 1
        return self._kept


def _check_count(count: int, session: LayeredSession, context: Context) -> None:
    if count > session.layers:
        raise ModelError(
            f"model {context.model.name!r}",
            f"it has {session.layers} layers, not {count}",
            remedy="leave out fewer layers",
        )

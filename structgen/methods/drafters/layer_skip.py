"""Self-speculation: the target drafts for itself without some of its layers.

``LayerSkip`` skips fixed layers, ``Clasp`` those that matter least; ``LayerRows`` are the logits rows of such a
network.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol, final

import numpy as np

from structgen.decode.speculative.drafter import Drafter, Drafting, DraftTask, GrammarPosition
from structgen.decode.speculative.fixed_tree import Chain
from structgen.errors import ModelError
from structgen.methods.drafters.draft_session import common_length
from structgen.methods.drafters.model_growth import DraftRows, RowsDrafting
from structgen.methods.drafters.vocabulary_trim import TrimmedHeads, VocabularyTrim
from structgen.models.protocol import LayeredSession

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from structgen.decode.speculative.tree_policy import Shape
    from structgen.decode.step.context import Context
    from structgen.models.protocol import Logits, SkippingSession, States

__all__ = ["Clasp", "LayerChoice", "LayerRows", "LayerSkip", "closest_layers", "layered_session"]

_PENDING: Final = 32
"""The largest number of unseen tokens that a draft runs; with more of them, as after a prompt, nothing is drafted."""


def layered_session(context: Context, *, drafter: str) -> LayeredSession:
    """Return the session of a context if it exposes its layers.

    Args:
        context: the context of the output.
        drafter: the drafter that needs it, for the message.

    Raises:
        ModelError: it does not.
    """
    session = context.session
    if not isinstance(session, LayeredSession):
        raise ModelError(
            f"model {context.model.name!r}",
            f"its sessions do not expose their layers, which {drafter} needs",
            evidence=f"found {type(session).__name__}",
            remedy="use the embedded model or another LlamaModel outside a batch, or another drafter",
        )
    return session


class LayerChoice(Protocol):
    """Chooses the layers that a draft runs."""

    def layers(self, session: LayeredSession, tokens: Sequence[int], /) -> Sequence[int]:
        """Return them, ascending.

        Args:
            session: the session, with at least one token; not to be changed.
            tokens: the prompt and the output so far.
        """


@final
class LayerRows(DraftRows):
    """The logits rows of a network without some layers, on the keys and values of the whole network.

    Args:
        context: the context of the output.
        session: its session.
        choice: chooses the layers.
        heads: the output heads.
    """

    def __init__(self, context: Context, session: LayeredSession, choice: LayerChoice, heads: TrimmedHeads) -> None:
        self._context = context
        self._session = session
        self._choice = choice
        self._heads = heads
        self._pending: list[int] = []
        self._layers: Sequence[int] = ()
        self._draft: SkippingSession | None = None
        self._drafted: list[int] = []
        self._capacity = 0

    def follow(self, tokens: Sequence[int]) -> None:
        """See ``DraftRows.follow``."""
        self._draft = None
        self._drafted = []
        self._pending = self._context.unseen
        if self.can_draft:
            self._layers = self._choice.layers(self._session, tokens)

    @property
    def can_draft(self) -> bool:
        """Whether few enough tokens are unseen: after an unseen prompt, nothing is drafted."""
        return 0 < len(self._pending) <= _PENDING and self._session.length > 0

    def rows(
        self, paths: Sequence[tuple[int, ...]], positions: Sequence[GrammarPosition], most: int
    ) -> list[Logits | None]:
        """See ``DraftRows.rows``; one pass through the layers for each path."""
        if not self.can_draft:
            return [None] * len(paths)
        if self._draft is None:
            longest = max(map(len, paths))
            self._capacity = self._fitting(len(self._pending) + longest + most)
            if self._capacity < len(self._pending) + longest:
                return [None] * len(paths)
            self._draft = self._session.skipping(self._layers, capacity=self._capacity)
        return [self._row(self._draft, path, position) for path, position in zip(paths, positions, strict=True)]

    def close(self) -> None:
        """See ``DraftRows.close``."""
        self._draft = None

    def _row(self, draft: SkippingSession, path: tuple[int, ...], position: GrammarPosition) -> Logits | None:
        tokens = [*self._pending, *path]
        if len(tokens) > self._capacity:
            return None
        common = min(common_length(tokens, self._drafted), len(tokens) - 1)
        draft.truncate(self._session.length + common)
        head = self._heads.of(position.ids)
        logits = draft.extend(tokens[common:], head=head)
        self._drafted = tokens
        return self._heads.spread(logits, head)

    def _fitting(self, count: int) -> int:
        bound = self._context.model.max_context
        return count if bound is None else min(count, bound - self._session.length)


def closest_layers(
    through: Callable[[int, States], States], state: States, *, layers: int, skipped: int
) -> tuple[int, ...]:
    r"""Return the layers that remain if ``skipped`` layers are skipped, ascending, chosen by the state of one token.

    ``h(i)`` is the token's state after the first ``i`` layers of the whole network, ``g(i, j)`` its state after the
    first ``i`` layers without ``j`` of them::

        g(0, 0) = h(0)
        g(i, j) = whichever is closer to h(i), by cosine:  layer i of g(i - 1, j)  or  g(i - 1, j - 1)

    and of equally close ones the first; the result is the layers of ``g(layers, skipped)``.  It need not be the best
    set: each cell keeps only the state closest to ``h(i)`` at that depth, and one token is a small sample.  (It is the
    best set if the layers add orthogonal vectors that do not depend on their input.)

    Source: Chen et al. 2025, CLaSp (arXiv 2505.24196).

    Args:
        through: the output of layer ``i`` for states ``[rows, width]``, row by row; called once for each depth.
        state: ``h(0)``, float32 ``[width]``.
        layers: the number of layers of the network.
        skipped: how many are skipped, from 0 to ``layers``.

    Complexity: each layer once, on at most ``skipped + 1`` rows.
    """
    if not 0 <= skipped <= layers:
        raise ValueError(f"skipped must lie between 0 and {layers}; found {skipped}")
    if skipped == layers:
        return ()
    cells = state[None]  # g(i, j), a row for each j; the first is h(i)
    is_run = np.zeros((layers, skipped + 1), dtype=np.bool_)
    for layer in range(layers):
        run = through(layer, cells)
        count = min(layer + 1, skipped) + 1
        # Every row but the one that skipped all layers so far may run the layer; every row but the first may skip it.
        stay = np.full(count, -np.inf)
        stay[: len(run)] = _cosines(run, run[0])
        leave = np.full(count, -np.inf)
        leave[1:] = _cosines(cells[: count - 1], run[0])
        is_run[layer, :count] = stay >= leave
        chosen = np.empty((count, len(state)), dtype=np.float32)
        for row in range(count):
            chosen[row] = run[row] if is_run[layer, row] else cells[row - 1]
        cells = chosen
    staying: list[int] = []
    left = skipped
    for layer in range(layers - 1, -1, -1):
        if is_run[layer, left]:
            staying.append(layer)
        else:
            left -= 1
    return tuple(staying[::-1])


def _cosines(states: States, target: States) -> NDArray[np.float64]:
    """The cosines between states ``[rows, width]`` and ``target`` ``[width]``, times the norm of ``target``."""
    rows = states.astype(np.float64)
    lengths = np.linalg.norm(rows, axis=1)
    cosines: NDArray[np.float64] = rows @ target.astype(np.float64) / np.maximum(lengths, np.finfo(np.float64).tiny)
    return cosines


@final
@dataclass(frozen=True)
class LayerSkip(Drafter):
    """Drafts with the target without certain layers.

    The keys and values of verified tokens are those of the whole network, so a draft costs only its own rows.

    Source: Zhang et al. 2023, "Draft & Verify" (arXiv 2309.08168), where a search over a text chooses the layers.

    Attributes:
        skipped: the skipped layers, counted from 0.
        shape: the tree policy.
        trim: the tokens for which a draft computes logits; None for all.
        draws: whether tokens are sampled if the sampler is a ``Multinomial``; otherwise the most probable ones are
            chosen.

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
            ModelError: the model does not expose its layers, or lacks one of ``skipped``.
        """
        session = layered_session(context, drafter="LayerSkip")
        _check_count(max(self.skipped, default=-1) + 1, session, context)
        layers = tuple(layer for layer in range(session.layers) if layer not in self.skipped)
        rows = LayerRows(context, session, _FixedLayers(layers), TrimmedHeads(session, task.constraint, self.trim))
        return RowsDrafting(task, self.shape, rows, draws=self.draws)


@final
@dataclass(frozen=True)
class Clasp(Drafter):
    """Drafts with the target without the layers that matter least for its last token.

    ``closest_layers`` chooses them at the last token that the model has seen.  That costs about as much as a pass over
    ``skipped + 1`` rows, so it is not done before every draft.

    Source: Chen et al. 2025, CLaSp (arXiv 2505.24196).

    Attributes:
        skipped: how many layers are skipped.
        every: the layers are chosen once for this many drafts.
        shape: the tree policy.
        trim: the tokens for which a draft computes logits; None for all.
        draws: whether tokens are sampled if the sampler is a ``Multinomial``; otherwise the most probable ones are
            chosen.

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
            ModelError: the model does not expose its layers, or has fewer than ``skipped``.
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

    def __init__(self, layers: tuple[int, ...]) -> None:
        self._layers = layers

    def layers(self, session: LayeredSession, tokens: Sequence[int], /) -> Sequence[int]:
        """See ``LayerChoice.layers``."""
        del session, tokens
        return self._layers


@final
class _ClosestLayers:
    """The layers that ``closest_layers`` retains at the last token that was seen."""

    def __init__(self, skipped: int, every: int) -> None:
        self._skipped = skipped
        self._every = every
        self._drafts = 0
        self._layers: tuple[int, ...] = ()

    def layers(self, session: LayeredSession, tokens: Sequence[int], /) -> Sequence[int]:
        """See ``LayerChoice.layers``."""
        if self._drafts % self._every == 0:
            last = session.length - 1
            self._layers = closest_layers(
                lambda layer, states: session.through(layer, states, last),
                session.embedded([tokens[last]])[0],
                layers=session.layers,
                skipped=self._skipped,
            )
        self._drafts += 1
        return self._layers


def _check_count(count: int, session: LayeredSession, context: Context) -> None:
    if count > session.layers:
        raise ModelError(
            f"model {context.model.name!r}", f"it has {session.layers} layers, not {count}", remedy="skip fewer layers"
        )

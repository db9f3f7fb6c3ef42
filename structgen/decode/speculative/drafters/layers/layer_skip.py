"""Self-speculation: the target drafts for itself with some of its layers left out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, final

from structgen.decode.speculative.drafter import Drafter, Drafting, DraftTask
from structgen.decode.speculative.drafters.draft_models.model_drafting import RowsDrafting
from structgen.decode.speculative.drafters.layers.closest_layers import closest_layers
from structgen.decode.speculative.drafters.layers.layer_rows import LayerRows, layered_session
from structgen.decode.speculative.drafters.layers.trim import Heads, VocabularyTrim
from structgen.decode.speculative.shapes.chain import Chain
from structgen.errors import ModelError

if TYPE_CHECKING:
    from structgen.decode.context import Context
    from structgen.decode.speculative.shapes.growth import Shape
    from structgen.models.protocol import LayeredSession

__all__ = ["Clasp", "LayerSkip"]


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
        rows = LayerRows(context, session, _Fixed(kept), Heads(session, task.constraint, self.trim))
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
            context, session, _Closest(self.skipped, self.every), Heads(session, task.constraint, self.trim)
        )
        return RowsDrafting(task, self.shape, rows, draws=self.draws)


@final
class _Fixed:
    """The same layers for every draft."""

    def __init__(self, kept: tuple[int, ...]) -> None:
        self._kept = kept

    def layers(self, session: LayeredSession, tokens: Sequence[int], /) -> Sequence[int]:
        """See ``LayerChoice.layers``."""
        del session, tokens
        return self._kept


@final
class _Closest:
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

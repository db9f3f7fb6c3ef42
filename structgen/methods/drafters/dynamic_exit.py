"""Self-speculation: the target drafts for itself by early exits, chosen by measured acceptance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, final

import numpy as np

from structgen.decode.speculative.draft_tree import ROOT, DraftTree
from structgen.decode.speculative.drafter import Drafter, Drafting, DraftState, DraftTask, Verified
from structgen.decode.speculative.fixed_tree import Chain
from structgen.decode.speculative.verifier import shaped_distribution
from structgen.decode.step.distribution import project
from structgen.decode.step.sampler import Multinomial
from structgen.engine.mask import allowed_ids, empty_masks
from structgen.errors import ModelError
from structgen.methods.drafters.layer_skip import LayerRows, layered_session
from structgen.methods.drafters.model_growth import RowsDrafting
from structgen.methods.drafters.vocabulary_trim import TrimmedHeads, VocabularyTrim

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from structgen.decode.step.context import Context
    from structgen.engine import Matcher
    from structgen.models.protocol import LayeredSession, Logits, States

__all__ = ["DynamicExit", "ExitRates"]

_PRIOR: Final = 1.0
"""The weight of the prior, an acceptance rate of 1/2, in positions."""


@final
class ExitRates:
    """Acceptance rates by exit; later positions weigh more.

    Source: Entezari Zarch et al. 2025, DEL (arXiv 2504.05598): tokens per layer.  There the head costs nothing; here it
    counts as ``head`` layers, and a draft may be empty.

    Args:
        exits: after how many layers a draft may exit, each at least 1.
        layers: the number of layers of the network.
        head: the cost of the output head, in layers.
        decay: the factor on the weight of a position for each later position, in (0, 1].
    """

    def __init__(self, exits: Sequence[int], *, layers: int, head: float, decay: float) -> None:
        self.exits = tuple(exits)
        self._layers = layers
        self._head = head
        self._decay = decay
        self._taken = np.zeros(len(self.exits))
        self._seen = 0.0

    def add(self, taken: NDArray[np.float64]) -> None:
        """Record a position: for each exit the acceptance probability of its draft token."""
        self._taken = self._taken * self._decay + taken
        self._seen = self._seen * self._decay + 1

    def rates(self) -> NDArray[np.float64]:
        """Return the acceptance rate of each exit."""
        rates: NDArray[np.float64] = (self._taken + _PRIOR / 2) / (self._seen + _PRIOR)
        return rates

    def tokens_per_layer(self, longest: int) -> NDArray[np.float64]:
        """Return the expected tokens per layer of drafts of each length, ``[exits, longest + 1]``.

        At acceptance rate ``a``, a draft of ``d`` tokens gives ``1 + a + ... + a ** d`` tokens, and costs ``d`` times
        the layers up to the exit and once the whole network.
        """
        lengths = np.arange(longest + 1)
        tokens = np.cumsum(self.rates()[:, None] ** lengths, axis=1)
        drafts = np.array(self.exits)[:, None] + self._head
        result: NDArray[np.float64] = tokens / (lengths * drafts + self._layers + self._head)
        return result

    def best(self, longest: int) -> tuple[int, int]:
        """Return the exit and length, at most ``longest``, with the most tokens per layer; length 0 drafts nothing."""
        values = self.tokens_per_layer(longest)
        at, length = np.unravel_index(int(values.argmax()), values.shape)
        return self.exits[int(at)], int(length)


_EXITS: Final = 6
_LOOKED_AT: Final = 4
"""The largest number of positions of a pass at which exits are compared with the target."""


@final
@dataclass(frozen=True)
class DynamicExit(Drafter):
    """Drafts through the first layers of the target, with the exit and the draft length chosen by measured acceptance.

    The draft token of each exit at a verified position is computed from the hidden states of the verifying pass; it
    depends on verified tokens alone, so it is the token that a draft would have had.  If the sampler samples, it counts
    with its acceptance probability, the sum of ``min(p, q)``.

    The gain depends on a network that was trained for early exits.

    Source: Entezari Zarch et al. 2025, DEL (arXiv 2504.05598).  Unlike there, keys and values of draft tokens are not
    reused in verification, whose cost is reading the weights.

    Attributes:
        exits: after how many layers a draft may exit; empty for six evenly spaced ones up to three quarters of the
            layers.
        longest: the largest number of tokens of a draft.
        every: one pass in ``every`` is examined.
        decay: the factor on the weight of a position for each later examined position.
        head: the cost of the output head, in layers.
        trim: the tokens for which logits are computed; None for all.
        draws: whether tokens are sampled if the sampler is a ``Multinomial``; otherwise the most probable ones are
            chosen.

    Raises:
        ValueError: a value is out of range.
    """

    exits: tuple[int, ...] = ()
    longest: int = 6
    every: int = 2
    decay: float = 0.95
    head: float = 2.0
    trim: VocabularyTrim | None = field(default_factory=VocabularyTrim)
    draws: bool = True

    def __post_init__(self) -> None:
        if list(self.exits) != sorted(set(self.exits)) or any(each < 1 for each in self.exits):
            raise ValueError(f"DynamicExit: exits must ascend from 1 on; found {self.exits!r}")
        for name in ("longest", "every"):
            if getattr(self, name) < 1:
                raise ValueError(f"DynamicExit: {name} must be at least 1; found {getattr(self, name)!r}")
        if not 0 < self.decay <= 1:
            raise ValueError(f"DynamicExit: decay must be in (0, 1]; found {self.decay!r}")
        if not 0 <= self.head < np.inf:
            raise ValueError(f"DynamicExit: head must not be negative; found {self.head!r}")

    @property
    def name(self) -> str:
        """See ``Drafter.name``."""
        return "dynamic exit"

    def start(self, context: Context, task: DraftTask) -> Drafting:
        """See ``Drafter.start``.

        Raises:
            ModelError: the model does not expose its layers, or has fewer than one of ``exits``.
        """
        session = layered_session(context, drafter="DynamicExit")
        exits = self.exits or _even_exits(session.layers)
        if exits[-1] > session.layers:
            raise ModelError(
                f"model {context.model.name!r}", f"it has {session.layers} layers, so it has no exit after {exits[-1]}"
            )
        return _ExitDrafting(self, exits, context, session, task)


@final
class _FirstLayers:
    """The layers up to an exit."""

    def __init__(self) -> None:
        self.exit = 1

    def layers(self, session: LayeredSession, tokens: Sequence[int], /) -> Sequence[int]:
        """See ``LayerChoice.layers``."""
        del session, tokens
        return range(self.exit)


@final
class _ExitDrafting(Drafting):
    def __init__(
        self, drafter: DynamicExit, exits: tuple[int, ...], context: Context, session: LayeredSession, task: DraftTask
    ) -> None:
        self._drafter = drafter
        self._session = session
        self._task = task
        self._heads = TrimmedHeads(session, task.constraint, drafter.trim)
        self._rates = ExitRates(exits, layers=session.layers, head=drafter.head, decay=drafter.decay)
        self._choice = _FirstLayers()
        rows = LayerRows(context, session, self._choice, self._heads)
        self._drafting = RowsDrafting(task, Chain(drafter.longest), rows, draws=drafter.draws)
        self._passes = 0
        self._before: tuple[int, Matcher] | None = None
        self._pass: tuple[Verified, Mapping[int, States]] | None = None

    def propose(self, context: Context, state: DraftState, budget: int) -> DraftTree:
        """See ``Drafting.propose``."""
        self._learn(context)
        self._before = len(context), state.matcher
        self._session.watched = tuple({*self._session.watched, *self._rates.exits})
        self._choice.exit, length = self._rates.best(self._drafter.longest)
        return self._drafting.propose(context, state, min(budget, length)) if length else DraftTree()

    def observe(self, verified: Verified) -> None:
        """See ``Drafting.observe``."""
        self._passes += 1
        if self._passes % self._drafter.every == 0:
            self._pass = verified, self._session.states

    def close(self) -> None:
        """See ``Drafting.close``."""
        self._session.watched = tuple(set(self._session.watched) - set(self._rates.exits))
        self._pass = self._before = None
        self._drafting.close()

    def _learn(self, context: Context) -> None:
        """Compare the draft tokens of the exits with the tokens after the last examined pass."""
        examined, before = self._pass, self._before
        self._pass = None
        if examined is None or before is None or examined[0].start != before[0]:
            return
        verified, states = examined
        if any(exit_ not in states for exit_ in self._rates.exits):
            return
        start, matcher = before[0], before[1].fork()
        tree = verified.tree
        run = list(range(len(tree))) if context.branches else tree.token_tree().first_chain()
        rows_of = {node: at for at, node in enumerate(run, start=1)}
        base = len(states[self._rates.exits[0]]) - len(run) - 1
        vocabulary = self._task.constraint.vocabulary
        mask = empty_masks(vocabulary)
        node = ROOT
        for token in context.tokens[start:][:_LOOKED_AT]:
            matcher.fill_mask(mask)
            ids = allowed_ids(mask[0], vocabulary.size)
            if len(ids) > 1:
                row = base + rows_of.get(node, 0)
                exits = np.stack([states[exit_][row] for exit_ in self._rates.exits])
                self._rates.add(self._taken(exits, verified.rows[1 + node], ids, token))
            child = tree.child(node, token)
            if child is None or child not in rows_of or not matcher.accept(token):
                break
            node = child

    def _taken(self, exits: States, target: Logits, ids: NDArray[np.intp], token: int) -> NDArray[np.float64]:
        """The acceptance probability of the draft token of each exit."""
        drafts = self._heads.exits(exits, ids)
        sampler = self._task.sampler
        if not (isinstance(sampler, Multinomial) and self._drafter.draws):
            taken: NDArray[np.float64] = (ids[drafts[:, ids].argmax(axis=1)] == token).astype(np.float64)
            return taken
        p, *qs = (shaped_distribution(sampler, project(row, ids, 0.0)) for row in (target, *drafts))
        return np.array([np.minimum(p, q).sum() for q in qs])


def _even_exits(layers: int) -> tuple[int, ...]:
    """Evenly spaced exits up to three quarters of the layers."""
    last = max(1, layers * 3 // 4)
    return tuple(sorted({max(1, last * at // _EXITS) for at in range(1, _EXITS + 1)}))

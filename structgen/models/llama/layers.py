"""A Llama's network layer by layer, for drafts by a session's own model.

A draft runs some of the layers after the session's keys and values.  It writes its own after them, where the session's
next pass will overwrite them, so it copies nothing.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, cast, final

import numpy as np
import torch

from structgen.errors import GenerationError
from structgen.models.llama.attended import attend
from structgen.models.llama.attention import attention
from structgen.models.llama.cache import KeyValues, Link, Part

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from structgen.models.llama.model import LlamaModel
    from structgen.models.llama.network import LlamaShape
    from structgen.models.protocol import Logits, States, TrimmedHead

__all__ = ["LlamaHead", "LlamaLayers", "LlamaSkippingSession"]


@final
class LlamaHead:
    """Some rows of a Llama's output head: see ``TrimmedHead``.

    Attributes:
        ids: the tokens of the rows.
        weights: the rows, ``[len(ids), width]``.
    """

    __slots__ = ("ids", "weights")

    def __init__(self, ids: NDArray[np.intp], weights: torch.Tensor) -> None:
        self.ids = ids
        self.weights = weights


class LlamaLayers(ABC):
    """The layer access of a Llama's session: see ``LayeredSession``."""

    model: LlamaModel
    _cache: KeyValues

    def __init__(self) -> None:
        self.watched: tuple[int, ...] = ()
        self.draft: LlamaSkippingSession | None = None  # with keys and values after those of the session
        self._noted: Mapping[int, torch.Tensor] = {}

    @property
    def length(self) -> int:
        """Tokens in the sequence."""
        return self._cache.length

    @property
    def layers(self) -> int:
        """Number of layers of the network."""
        return self.model.network.shape.layers

    @property
    def width(self) -> int:
        """Elements of a state."""
        return self.model.network.shape.width

    @property
    def states(self) -> Mapping[int, States]:
        """See ``LayeredSession.states``."""
        return {layer: _array(rows) for layer, rows in self._noted.items()}

    def note(self, watched: Mapping[int, torch.Tensor | None], start: int, stop: int) -> None:
        """Store the watched states of a pass for this session: its rows ``start`` to ``stop``."""
        self.draft = None
        noted = {}
        for layer in self.watched:
            rows = watched.get(layer)
            if rows is not None:
                noted[layer] = rows[start:stop]
        self._noted = noted

    def embedded(self, token_ids: Sequence[int], /) -> States:
        """See ``LayeredSession.embedded``."""
        return _array(self._rows(token_ids)[1])

    def trimmed(self, token_ids: Sequence[int] | NDArray[np.intp], /) -> LlamaHead:
        """See ``LayeredSession.trimmed``."""
        return LlamaHead(*self._rows(token_ids))

    def through(self, layer: int, states: States, position: int, /) -> States:
        """See ``LayeredSession.through``."""
        network = self.model.network
        if not (0 <= layer < self.layers and 0 <= position < self.length):
            raise GenerationError(
                f"model {self.model.name!r}",
                f"there is no layer {layer}, or no token at {position}",
                evidence=f"{self.layers} layers, {self.length} tokens",
            )

        def run() -> torch.Tensor:
            at = torch.full((len(states),), position, device=network.device)
            past = _StateAttention(self._cache, position, network.shape)
            return network.layer(layer, self._tensor(states), network.rotation(at), past)

        return _array(self.model.inferred(run))

    def exit_logits(self, states: States, /, *, head: TrimmedHead | None = None) -> Logits:
        """See ``LayeredSession.exit_logits``."""
        weights = weights_of(head, self.model)
        return _array(self.model.inferred(lambda: self.model.network.logits(self._tensor(states), weights)))

    def skipping(self, kept: Sequence[int], /, *, capacity: int) -> LlamaSkippingSession:
        """See ``LayeredSession.skipping``."""
        layers = [int(layer) for layer in kept]
        if layers != sorted(set(layers)) or any(not 0 <= layer < self.layers for layer in layers):
            raise GenerationError(
                f"model {self.model.name!r}",
                "the layers of a draft must be layers of the network, in ascending order",
                evidence=f"found {layers}; there are {self.layers}",
            )
        self.truncate(self.length)  # drops a tree whose keys and values would be overwritten
        self._cache.reserve(capacity, alone=True)
        self.draft = LlamaSkippingSession(self, self._cache, layers, capacity)
        return self.draft

    @abstractmethod
    def truncate(self, length: int, /) -> None:
        """See ``Session.truncate``."""

    def _rows(self, token_ids: Sequence[int] | NDArray[np.intp]) -> tuple[NDArray[np.intp], torch.Tensor]:
        """Return the checked ids and their rows of the embedding."""
        network = self.model.network
        ids = np.asarray(token_ids, dtype=np.intp)
        if not len(ids) or ids.min() < 0 or ids.max() >= network.shape.vocabulary:
            evidence = f"found {ids.min()} to {ids.max()}" if len(ids) else "found none"
            raise GenerationError(
                f"model {self.model.name!r}", f"ids run from 0 to {network.shape.vocabulary - 1}", evidence=evidence
            )
        return ids, self.model.inferred(lambda: network.embedding(torch.tensor(ids, device=network.device)))

    def _tensor(self, states: States) -> torch.Tensor:
        network = self.model.network
        return torch.tensor(states, device=network.device, dtype=network.dtype)


@final
class LlamaSkippingSession:
    """Some layers of a Llama after the tokens of a session: see ``SkippingSession``."""

    def __init__(self, session: LlamaLayers, cache: KeyValues, kept: Sequence[int], capacity: int) -> None:
        self._session = session
        self._links = cache.links
        self._cache = cache
        self._layers = kept
        self._capacity = capacity
        self._drafted = 0
        self._start = cache.length

    @property
    def length(self) -> int:
        """Tokens in the sequence."""
        return self._start + self._drafted

    def extend(self, token_ids: Sequence[int], /, *, head: TrimmedHead | None = None) -> Logits:
        """See ``SkippingSession.extend``."""
        model = self._session.model
        network = model.network
        ids = model.limits.check_extension(token_ids, length=self.length)
        self._check(len(ids))
        weights = weights_of(head, model)
        # A pass only reads the contents of a cache.
        part = Part(ids, cast("KeyValues", _SessionAndDraft(self._links, self._drafted)), all_positions=False)

        def run() -> torch.Tensor:
            x = network.embedding(torch.tensor(ids, device=network.device))
            rotation = network.rotation(torch.arange(part.start, part.end, device=network.device))
            attending = attention([part], network.shape, network.dtype, network.sums_dtype)
            for layer in self._layers:
                x = network.layer(layer, x, rotation, attending)
            return network.logits(x[-1:], weights)[0]

        logits: Logits = _array(model.inferred(run))
        self._drafted += len(ids)
        return logits

    def truncate(self, length: int, /) -> None:
        """See ``SkippingSession.truncate``."""
        if not self._start <= length <= self.length:
            raise GenerationError(
                f"model {self._session.model.name!r}",
                f"a draft cannot be cut to {length} tokens",
                evidence=f"it has {self.length}, and {self._start} of them belong to the session",
            )
        self._drafted = length - self._start

    def _check(self, count: int) -> None:
        subject = f"model {self._session.model.name!r}"
        if self._session.draft is not self or self._cache.links != self._links:
            raise GenerationError(
                subject, "the session has changed since the draft was started", remedy="start another draft"
            )
        if self._drafted + count > self._capacity:
            raise GenerationError(
                subject,
                f"the draft has no capacity for {self._drafted + count} tokens",
                evidence=f"it was started with capacity={self._capacity}",
                remedy="start it with a larger capacity",
            )


@final
class _SessionAndDraft:
    """The keys and values of a session, then those of a draft."""

    __slots__ = ("length", "links")

    def __init__(self, links: tuple[Link, ...], drafted: int) -> None:
        segment, held = links[-1]
        self.links = (*links[:-1], Link(segment, held + drafted))
        self.length = sum(link.length for link in self.links)


@final
class _StateAttention:
    """Attention of several states of one token, each to the tokens before it and to itself."""

    def __init__(self, cache: KeyValues, position: int, shape: LlamaShape) -> None:
        self._shape = shape
        self._spans = []
        for segment, held in cache.links:
            length = min(held, position)
            if length:
                self._spans.append(segment.entries[:, :, :, :length])
            position -= length

    def mix(self, layer: int, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        shape, rows = self._shape, len(queries)
        groups = shape.heads // shape.key_value_heads
        scores = (queries.float() * keys.float().repeat_interleave(groups, 1)).sum(-1)
        log_sums = scores * shape.head_width**-0.5
        output = values.float().repeat_interleave(groups, 1)
        grouped = queries.view(rows, shape.key_value_heads, groups, -1).transpose(0, 1).flatten(1, 2)
        for span in self._spans:
            there, sums = attend(grouped.to(span.dtype), span[layer, 0], span[layer, 1], None)
            back = (shape.key_value_heads, rows, groups)
            there = there.float().reshape(*back, -1).transpose(0, 1).flatten(1, 2)
            sums = sums.float().reshape(back).transpose(0, 1).flatten(1)
            # The weight of the past is its share of both softmax sums.
            output = torch.lerp(output, there, (sums - log_sums).sigmoid()[..., None])
            log_sums = torch.logaddexp(log_sums, sums)
        return output.flatten(1).to(queries.dtype)

    def end(self) -> None:
        """Do nothing: no entries are stored."""


def weights_of(head: TrimmedHead | None, model: LlamaModel) -> torch.Tensor | None:
    """Return the rows of a head.

    Raises:
        GenerationError: the head belongs to another model.
    """
    if head is None:
        return None
    if not isinstance(head, LlamaHead) or head.weights.shape[1] != model.network.shape.width:
        raise GenerationError(f"model {model.name!r}", f"{head!r} is no head of this model")
    return head.weights


def _array(rows: torch.Tensor) -> NDArray[np.float32]:
    array: NDArray[np.float32] = rows.float().cpu().numpy()
    return array

"""A diffusion model fitted to texts by counting: an n-gram chain whose denoiser is exact.

The states of the chain are the observed *contexts*, the last ``order - 1`` tokens or fewer.  In each slot the chain
either continues as some text did in this context, or forgets the context and writes a uniformly sampled token, which is
then its whole context.  So the distribution of the next token is the counted one with additive smoothing, and no step
leads to an unobserved context: there are as many states and steps as distinct n-grams in the texts, while a plain
trigram model has a state for each pair of tokens.

A text that is shorter than the canvas is followed by EOS.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING, Final, NamedTuple, final

import numpy as np

from structgen.models.model_input import find_mask
from structgen.models.toy.markov_diffusion import ChainDiffusion

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from structgen.engine.vocabulary import Vocabulary
    from structgen.models.protocol.diffusion import Canvases

__all__ = ["NGramDiffusion"]

Context = tuple[int, ...]

# A pseudo-token before the first token of a text.
_START: Final = -1


class _Steps(NamedTuple):
    """Counted steps of the chain, sorted by a key.

    Attributes:
        source: state before the step.
        token: the token of the step.
        target: state after the step.
        chance: probability of the step in its state.
        keys: the distinct keys, ascending.
        begins: index of the first step of each key.
    """

    source: NDArray[np.int64]
    token: NDArray[np.int64]
    target: NDArray[np.int64]
    chance: NDArray[np.float64]
    keys: NDArray[np.int64]
    begins: NDArray[np.int64]

    def by(self, key: str) -> _Steps:
        """Return the steps sorted by ``source``, ``token`` or ``target``."""
        values = {"source": self.source, "token": self.token, "target": self.target}[key]
        order = np.argsort(values, kind="stable")
        keys, begins = np.unique(values[order], return_index=True)
        return _Steps(self.source[order], self.token[order], self.target[order], self.chance[order], keys, begins)

    def gather(self, amounts: NDArray[np.float64], width: int) -> NDArray[np.float64]:
        """Sum the amounts of steps, ``[n, steps]``, by key: ``[n, width]``."""
        sums = np.zeros((len(amounts), width))
        if len(self.keys):
            sums[:, self.keys] = np.add.reduceat(amounts, self.begins, axis=1)
        return sums


@final
class NGramDiffusion(ChainDiffusion):
    """An n-gram chain as a diffusion model, with exact denoisers; made by ``fit``.

    A denoiser's row ``i`` is ``log P(X_i = v | the tokens of the other fixed slots)`` of the chain.  If the other slots
    have probability 0, which needs ``smoothing=0`` or a token that the chain never writes, the row is the marginal
    distribution of the slot.

    Probabilities are doubles, normalised in every slot: a path through the canvas that is less probable than another by
    a factor of 1e-300 counts as impossible.

    Args:
        vocabulary: the vocabulary, with MASK as a special token and an EOS.
        counts: for each context the counts of the next tokens; EOS for the end of a text.
        order: length of the n-grams.
        smoothing: added to every count; 0 for none.
        mask_token: the id of MASK.
        reads_prompt: see ``fit``.
        name: the model's name in messages.

    Complexity: O(distinct n-grams + vocabulary.size) per canvas and slot.

    Source: Bahl, Jelinek and Mercer 1983 (the chain); Baum et al. 1970 (the recursions).
    """

    def __init__(  # noqa: PLR0913  public: the settings of ``fit``
        self,
        vocabulary: Vocabulary,
        counts: Mapping[Context, Mapping[int, int]],
        *,
        order: int,
        smoothing: float,
        mask_token: int,
        reads_prompt: bool = False,
        name: str = "n-gram",
    ) -> None:
        super().__init__(vocabulary, mask_token, reads_prompt=reads_prompt, name=name)
        if () not in counts:
            raise ValueError("counts must have the empty context; found none; use NGramDiffusion.fit(texts)")
        self.order = order
        self.smoothing = smoothing
        end = vocabulary.eos[0]
        self._numbers: dict[Context, int] = {context: number for number, context in enumerate(counts)}
        self._ended = len(self._numbers)
        self._states = self._ended + 1
        writable = np.array([bool(piece) for piece in vocabulary.tokens])
        writable[end] = True
        self._uniform = writable / writable.sum()
        self._forgets = np.zeros(self._states)
        self._after = np.array([self._number((token,)) for token in range(vocabulary.size)])
        self._after[end] = self._ended
        self._landing: NDArray[np.float64] = np.bincount(
            self._after, weights=self._uniform, minlength=self._states
        ).astype(np.float64)
        steps = self._count(counts, end, int(writable.sum()))
        self._by_source, self._by_target, self._by_token = (steps.by(key) for key in ("source", "target", "token"))
        self.first: NDArray[np.float64] = np.eye(1, self._states, self._number((_START,)))[0]

    @classmethod
    def fit(  # noqa: PLR0913  public: each is a keyword with a default
        cls,
        texts: Iterable[Sequence[int]],
        vocabulary: Vocabulary,
        *,
        order: int = 2,
        smoothing: float = 0.01,
        mask_token: int | None = None,
        reads_prompt: bool = False,
        name: str = "n-gram",
    ) -> NGramDiffusion:
        """Count the n-grams of texts.

        Args:
            texts: token ids of each text, without EOS.
            vocabulary: the vocabulary, with MASK as a special token.
            order: length of the n-grams: 1 for independent tokens, 2 for pairs, 3 for triples.
            smoothing: added to the count of every text token and of EOS, in every context.
            mask_token: the id of MASK; None for the special token with the spelling of MASK (``<mask>``).
            reads_prompt: whether the prompt is the text before the canvas; by default every canvas begins a text.
            name: the model's name in messages.

        Raises:
            ModelError: the vocabulary has no MASK.
            ValueError: there are no texts, a text has a special token, ``order`` or ``smoothing`` is out of range, or
                the vocabulary has no EOS.

        Complexity: O(order * tokens of all texts) time and memory.
        """
        mask = find_mask(vocabulary, mask_token)
        if order < 1:
            raise ValueError(f"order must be at least 1; found {order}; 2 counts pairs of tokens")
        if not (math.isfinite(smoothing) and smoothing >= 0):
            raise ValueError(f"smoothing must be 0 or more; found {smoothing!r}")
        if not vocabulary.eos:
            raise ValueError("the vocabulary must have an EOS, which follows a text; found none")
        counts: dict[Context, Counter[int]] = {}
        for text in texts:
            ids = [*map(int, text)]
            if wrong := [token for token in ids if not (0 <= token < vocabulary.size and vocabulary.tokens[token])]:
                raise ValueError(f"texts must hold tokens of text; found the id {wrong[0]}; leave EOS and MASK out")
            history = [_START, *ids]
            for position, token in enumerate([*ids, vocabulary.eos[0]], start=1):
                for length in range(min(order - 1, position) + 1):
                    counts.setdefault(tuple(history[position - length : position]), Counter())[token] += 1
        if not counts:
            raise ValueError("texts must hold at least one text; found none")
        return cls(
            vocabulary, counts, order=order, smoothing=smoothing, mask_token=mask, reads_prompt=reads_prompt, name=name
        )

    def check_slots(self, slots: int, /) -> None:
        """See ``ChainDiffusion.check_slots``; any number of slots is valid."""

    def read(self, prompt_ids: list[int], /) -> NDArray[np.float64]:
        """See ``ChainDiffusion.read``."""
        if not (self.reads_prompt and prompt_ids):
            return self.first
        ahead, logs = self._forward(self.first, np.array([prompt_ids], dtype=np.int32), len(prompt_ids))
        return ahead[-1][0] if np.isfinite(logs[0]) else self.first

    def log_chance(self, first: NDArray[np.float64], canvas: Canvases, /) -> float:
        """See ``ChainDiffusion.log_chance``."""
        return float(self._forward(first, canvas, canvas.shape[1])[1][0])

    def conditionals(
        self, first: NDArray[np.float64], canvases: Canvases, start: int, stop: int, /
    ) -> NDArray[np.float64]:
        """See ``ChainDiffusion.conditionals``."""
        ahead, _ = self._forward(first, canvases, stop - 1)
        back = self._backward(canvases, start)
        distributions = np.empty((len(canvases), stop - start, self.vocabulary.size))
        alone: list[NDArray[np.float64]] = []
        for slot in range(start, stop):
            distribution = self._written(ahead[slot], back[slot - start + 1])
            totals = distribution.sum(axis=1, keepdims=True)
            if not totals.all():
                if not alone:
                    nothing = np.full((1, stop), self.mask_token, dtype=np.int32)
                    alone = self._forward(first, nothing, stop - 1)[0]
                distribution = np.where(
                    totals > 0, distribution, self._written(alone[slot], np.ones((1, self._states)))
                )
                totals = distribution.sum(axis=1, keepdims=True)
            distributions[:, slot - start] = distribution / totals
        with np.errstate(divide="ignore"):
            logs: NDArray[np.float64] = np.log(distributions)
        return logs

    def _number(self, context: Context) -> int:
        """Return the state of the longest observed suffix of ``context``; the empty suffix always is."""
        context = context[max(0, len(context) - self.order + 1) :]
        while context not in self._numbers:
            context = context[1:]
        return self._numbers[context]

    def _count(self, counts: Mapping[Context, Mapping[int, int]], end: int, alphabet: int) -> _Steps:
        """Return the steps of counts, and store each state's probability of forgetting its context."""
        rows: list[tuple[int, int, int, float]] = []
        for source, (context, followers) in enumerate(counts.items()):
            total = sum(followers.values()) + self.smoothing * alphabet
            self._forgets[source] = self.smoothing * alphabet / total
            for token, count in followers.items():
                target = self._ended if token == end else self._number((*context, token))
                rows.append((source, token, target, count / total))
        rows.append((self._ended, end, self._ended, 1.0))
        sources, tokens, targets = np.array([row[:3] for row in rows], dtype=np.int64).T
        none = np.zeros(0, dtype=np.int64)
        return _Steps(sources, tokens, targets, np.array([row[3] for row in rows]), none, none)

    def _forward(
        self, first: NDArray[np.float64], canvases: Canvases, slots: int
    ) -> tuple[list[NDArray[np.float64]], NDArray[np.float64]]:
        """Run the forward recursion over the first ``slots`` slots.

        Returns:
            For each slot, and after the last, the distribution of the state given the earlier tokens, ``[n, states]``
            (zero if their probability is 0); and the log-probability of all these tokens, ``[n]``.
        """
        ahead = [np.tile(first, (len(canvases), 1))]
        logs = np.zeros(len(canvases))
        for slot in range(slots):
            moved = self._moved(ahead[-1], canvases[:, slot])
            totals = moved.sum(axis=1)
            with np.errstate(divide="ignore"):
                logs += np.log(totals)
            ahead.append(moved / np.where(totals > 0, totals, 1.0)[:, None])
        return ahead, logs

    def _moved(self, states: NDArray[np.float64], tokens: NDArray[np.int32]) -> NDArray[np.float64]:
        """Return the mass of each state after a slot that holds ``tokens`` (MASK: any)."""
        moved = np.zeros_like(states)
        forgetting = _weighed(states, self._forgets)
        if (free := np.flatnonzero(tokens == self.mask_token)).size:
            steps = self._by_target
            moved[free] = steps.gather(states[free].take(steps.source, axis=1) * steps.chance, self._states)
            moved[free] += forgetting[free, None] * self._landing
        for token in set(tokens.tolist()) - {self.mask_token}:
            rows = np.flatnonzero(tokens == token)
            source, target, chance = self._steps_of(token)
            for one in rows:
                np.add.at(moved[one], target, states[one, source] * chance)
            moved[rows, self._after[token]] += forgetting[rows] * self._uniform[token]
        return moved

    def _backward(self, canvases: Canvases, start: int) -> list[NDArray[np.float64]]:
        """Return, for each slot from ``start`` on and after the last, the probability of the tokens from there on.

        Each is ``[n, states]``, scaled so that its largest is 1.
        """
        back = [np.ones((len(canvases), self._states))]
        for slot in range(canvases.shape[1] - 1, start - 1, -1):
            came = self._came(back[-1], canvases[:, slot])
            largest = came.max(axis=1, keepdims=True)
            back.append(came / np.where(largest > 0, largest, 1.0))
        return back[::-1]

    def _came(self, after: NDArray[np.float64], tokens: NDArray[np.int32]) -> NDArray[np.float64]:
        """Return the probability of ``tokens`` (MASK: any) and the later tokens from each state before them."""
        came = np.zeros_like(after)
        if (free := np.flatnonzero(tokens == self.mask_token)).size:
            steps = self._by_source
            came[free] = steps.gather(after[free].take(steps.target, axis=1) * steps.chance, self._states)
            came[free] += _weighed(after[free], self._landing)[:, None] * self._forgets
        for token in set(tokens.tolist()) - {self.mask_token}:
            rows = np.flatnonzero(tokens == token)
            source, target, chance = self._steps_of(token)
            came[np.ix_(rows, source)] = after[np.ix_(rows, target)] * chance
            came[rows] += (after[rows, self._after[token]] * self._uniform[token])[:, None] * self._forgets
        return came

    def _written(self, before: NDArray[np.float64], after: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the mass of each token in a slot between states before and states after it, ``[n, size]``."""
        steps = self._by_token
        amounts = before.take(steps.source, axis=1) * steps.chance * after.take(steps.target, axis=1)
        distribution = steps.gather(amounts, self.vocabulary.size)
        distribution += _weighed(before, self._forgets)[:, None] * self._uniform * after.take(self._after, axis=1)
        return distribution

    def _steps_of(self, token: int) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
        """Return source, target and probability of the counted steps with ``token``."""
        steps = self._by_token
        index = int(np.searchsorted(steps.keys, token))
        if index == len(steps.keys) or steps.keys[index] != token:
            return steps.source[:0], steps.target[:0], steps.chance[:0]
        begin, end = [*steps.begins, len(steps.source)][index : index + 2]
        return steps.source[begin:end], steps.target[begin:end], steps.chance[begin:end]

    def __repr__(self) -> str:
        return (
            f"<NGramDiffusion {self.name}, order {self.order}, {self._states} contexts, {len(self.vocabulary)} tokens>"
        )


def _weighed(rows: NDArray[np.float64], weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the weighted sum of each row.

    Not as a matrix product: waiting for the threads of BLAS costs a hundred times as much as these few thousand
    multiplications when another process uses one of their cores.
    """
    sums: NDArray[np.float64] = np.einsum("ns,s->n", rows, weights)
    return sums

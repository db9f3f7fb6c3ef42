"""Canvases of a small language, enumerated without any automaton: the expected results of decoding."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from structgen.engine import Vocabulary

__all__ = ["FREE", "MASK", "VOCABULARY", "ScriptedDiffusion", "ToyCanvases", "log_softmax"]

FREE = -1
VOCABULARY = Vocabulary([b"", b"a", b"b", b"ab", b"1", b".", b""], eos=[0], special={6: "<mask>"})
MASK = 6

Canvas = tuple[int, ...]


def log_softmax(logits: Any) -> NDArray[np.float64]:
    """Log-softmax over the last axis, in double precision."""
    rows: NDArray[np.float64] = np.asarray(logits, dtype=np.float64)
    found: NDArray[np.float64] = rows - np.logaddexp.reduce(rows, axis=-1, keepdims=True)
    return found


class ToyCanvases:
    """The canvases of ``slots`` slots that spell a string matching a pattern, then EOS to their end.

    Args:
        pattern: of Python's ``re``.
        slots: of a canvas.
        vocabulary: with few tokens, one EOS.
    """

    def __init__(self, pattern: str, slots: int, vocabulary: Vocabulary = VOCABULARY) -> None:
        self.slots = slots
        self.eos = vocabulary.eos[0]
        spelling = [token for token in range(vocabulary.size) if vocabulary.tokens[token]]
        self.members: list[Canvas] = []
        for length in range(slots + 1):
            for tokens in itertools.product(spelling, repeat=length):
                if re.fullmatch(pattern.encode(), vocabulary.decode(tokens)):
                    self.members.append((*tokens, *[self.eos] * (slots - length)))
        self._array = np.array(self.members, dtype=np.int32).reshape(len(self.members), slots)

    def agreeing(self, canvas: Sequence[int] | NDArray[np.int32]) -> NDArray[np.int32]:
        """The strings that agree with the fixed slots of a canvas, ``[n, slots]``."""
        row = np.asarray(canvas)
        found: NDArray[np.int32] = self._array[((row == FREE) | (self._array == row)).all(axis=1)]
        return found

    def length(self, canvas: Sequence[int]) -> int:
        """The number of slots before the tail."""
        row = list(canvas)
        return row.index(self.eos) if self.eos in row else len(row)

    def distribution(
        self, log_probs: NDArray[np.float64], *, tail: str = "free", canvas: Sequence[int] | None = None
    ) -> dict[Canvas, float]:
        """Probabilities of the strings under the product of these distributions, ``[slots, vocabulary]``.

        The probabilities are conditional on the language.

        Args:
            log_probs: of every token in every slot.
            tail: whether the slots after the first EOS count.
            canvas: what is fixed, which does not count.
        """
        fixed = (FREE,) * self.slots if canvas is None else tuple(canvas)
        masses = {}
        for member in map(tuple, self.agreeing(fixed).tolist()):
            scored = self.slots if tail == "scored" else min(self.slots, self.length(member) + 1)
            logs = [log_probs[slot, member[slot]] for slot in range(scored) if fixed[slot] == FREE]
            masses[member] = float(np.exp(sum(logs)))
        total = sum(masses.values())
        return {member: mass / total for member, mass in masses.items()}

    def marginals(self, distribution: dict[Canvas, float], size: int) -> NDArray[np.float64]:
        """Marginal probabilities of every token in every slot, ``[slots, size]``."""
        found = np.zeros((self.slots, size))
        for member, chance in distribution.items():
            found[np.arange(self.slots), member] += chance
        return found

    def forced(self, canvas: Sequence[int]) -> Canvas:
        """The canvas, with every slot filled in which all strings that agree with the fixed slots agree."""
        members = self.agreeing(canvas)
        return tuple(
            int(members[0, slot]) if token == FREE and (members[:, slot] == members[0, slot]).all() else int(token)
            for slot, token in enumerate(canvas)
        )


class ScriptedDiffusion:
    """A diffusion model whose logits are a given function of the canvas, ``[slots] -> [slots, vocabulary]``."""

    def __init__(
        self,
        logits: Callable[[NDArray[np.int32]], Any],
        vocabulary: Vocabulary = VOCABULARY,
        *,
        mask_token: Any = MASK,
        max_context: int | None = None,
    ) -> None:
        self.logits = logits
        self.vocabulary = vocabulary
        self.mask_token = mask_token
        self.max_context = max_context
        self.name = "scripted"
        self.closed = 0

    def encode_prompt(self, prompt: Any, /, *, chat: bool = True) -> list[int]:
        return self.vocabulary.tokenize(prompt)

    def start(self, prompt_ids: Sequence[int], /) -> _ScriptedDenoiser:
        return _ScriptedDenoiser(self)


class _ScriptedDenoiser:
    def __init__(self, model: ScriptedDiffusion) -> None:
        self._model = model
        self.forwards = 0

    def denoise(self, canvases: NDArray[np.int32], /, *, start: int = 0, stop: int | None = None) -> Any:
        self.forwards += 1
        return np.stack([np.asarray(self._model.logits(canvas), dtype=np.float32)[start:stop] for canvas in canvases])

    def close(self) -> None:
        self._model.closed += 1

"""A diffusion model without weights, for tests of programs and for examples.

``HashDiffusion`` needs neither torch nor a download and says the same on every machine: its logits are a hash of the
prompt and of what stands in the other slots.  With ``writes`` it has a text that it wants to write, so that a test can
see what a grammar makes of a given answer.  With ``context`` between 0 and 1 a test sets how much a slot minds the
others, which is what decides how many tokens can be drafted at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

import numpy as np

from structgen.models.canvas import CanvasLimits, find_mask
from structgen.models.chat import plain_prompt

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from structgen.engine.vocabulary import Vocabulary
    from structgen.models.protocol import Logits, Prompt
    from structgen.models.protocol.diffusion import Canvases

__all__ = ["HashDenoiser", "HashDiffusion"]

_WORD: Final = (1 << 64) - 1
# The constants of SplitMix64 (Steele, Lea and Flood 2014).
_GAMMA: Final = 0x9E3779B97F4A7C15
_MIX_1, _MIX_2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)

# Noise lies in [-3, 3), so a wish of 16 wins against any noise.
_NOISE: Final = 3.0
_WISH: Final = 16.0


@final
class HashDiffusion:
    """A deterministic diffusion model.

    The logits of a slot are noise, uniform on ``[-3, 3)``, of which a share of ``1 - context`` is a hash of the prompt
    and the slot's position, and a share of ``context`` a hash of these and of all other fixed slots with their
    positions.  A wish adds 16.

    Args:
        vocabulary: the tokens; MASK is a special one.
        mask_token: the id of MASK; None for the special token that is spelled like one (``<mask>``).
        seed: another seed is another model.
        writes: a text that it wants to write from the first slot on, then EOS; None for no wish.
        context: 0 for slots that do not mind the others, 1 for slots that change with every one of them.
        max_context: the longest prompt and canvas together, or None.
        name: what messages call it.

    Raises:
        ModelError: the vocabulary has no MASK.
        ValueError: ``context`` is not in [0, 1].
        VocabularyError: ``writes`` cannot be spelled.

    Complexity: O(vocabulary.size) for each slot that is asked about.

    Example:
        >>> from structgen.engine import Vocabulary
        >>> vocabulary = Vocabulary([b"", b"a", b"b", b"ab", b""], eos=[0], special={4: "<mask>"})
        >>> denoiser = HashDiffusion(vocabulary, writes="abb").start([])
        >>> denoiser.denoise(np.array([[4, 4, 4, 4]], dtype=np.int32)).argmax(axis=2).tolist()
        [[3, 2, 0, 0]]
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        *,
        mask_token: int | None = None,
        seed: int = 0,
        writes: str | bytes | None = None,
        context: float = 1.0,
        max_context: int | None = None,
        name: str = "hash",
    ) -> None:
        if not 0 <= context <= 1:
            raise ValueError(f"context must be between 0 and 1; found {context!r}; 0 is a slot that minds no other")
        self.vocabulary = vocabulary
        self.mask_token = find_mask(vocabulary, mask_token)
        self.max_context = max_context
        self.name = name
        self.seed = seed
        self.context = context
        self.wished: tuple[int, ...] | None = None if writes is None else tuple(vocabulary.tokenize(writes))
        self._ids = np.arange(vocabulary.size, dtype=np.uint64) * np.uint64(_GAMMA)

    @property
    def limits(self) -> CanvasLimits:
        """What it can take."""
        return CanvasLimits(self.name, self.vocabulary.size, self.max_context)

    def encode_prompt(self, prompt: Prompt, /, *, chat: bool = True) -> list[int]:
        """Return the tokens of the text, or of the messages one to a line; ``chat`` makes no difference."""
        return plain_prompt(self.vocabulary, prompt)

    def start(self, prompt_ids: Sequence[int], /) -> HashDenoiser:
        """Return a denoiser of canvases that follow a prompt."""
        return HashDenoiser(self, self.limits.check_prompt(prompt_ids))

    def logits(self, prompt: np.uint64, canvases: Canvases, slots: NDArray[np.int64]) -> Logits:
        """Return the logits of some slots of each canvas behind a prompt of this hash."""
        positions = np.arange(canvases.shape[1], dtype=np.uint64)
        places = _mixed(positions + np.uint64(1)) ^ prompt  # [slots]
        tokens = _mixed(canvases.astype(np.uint64) ^ _mixed(places))  # [n, slots]
        tokens[canvases == self.mask_token] = 0
        # A slot does not see itself, so its own token is taken out of the sum.
        others = tokens.sum(axis=1, dtype=np.uint64)[:, None] - tokens
        alone = np.broadcast_to(places[slots], (len(canvases), len(slots)))
        share = np.float32(self.context)
        logits = np.zeros((len(canvases), len(slots), self.vocabulary.size), dtype=np.float32)
        if self.context < 1:
            logits += (np.float32(1) - share) * self._noise(alone)
        if self.context > 0:
            logits += share * self._noise(_mixed(others[:, slots] + alone) ^ np.uint64(_GAMMA))
        if self.wished is not None:
            self._wish(logits, slots, self.wished)
        return logits

    def _noise(self, states: NDArray[np.uint64]) -> NDArray[np.float32]:
        words = _mixed(self._ids ^ states[..., None])
        uniform = (words >> np.uint64(40)).astype(np.float32) / np.float32(1 << 24)
        return uniform * np.float32(2 * _NOISE) - np.float32(_NOISE)

    def _wish(self, logits: Logits, slots: NDArray[np.int64], wished: tuple[int, ...]) -> None:
        for row, slot in enumerate(slots):
            end = self.vocabulary.eos[:1]
            for token in wished[slot : slot + 1] or end:
                logits[:, row, token] += np.float32(_WISH)

    def __repr__(self) -> str:
        return f"<HashDiffusion {self.name}, {self.vocabulary.size} tokens, seed {self.seed}>"


@final
class HashDenoiser:
    """A ``HashDiffusion`` that has read one prompt.

    It keeps "keys and values" as a network of one layer would: those of a slot are the token that stood in it when it
    was last live.  So decoders that leave slots out of a pass can be tested without a network.
    """

    def __init__(self, model: HashDiffusion, prompt_ids: list[int]) -> None:
        self.model = model
        self.prompt_ids = tuple(prompt_ids)
        self.forwards = 0
        state = np.array([model.seed & _WORD], dtype=np.uint64)
        for token in prompt_ids:
            state = _mixed(state ^ _mixed(np.array([token + 1], dtype=np.uint64)))
        self._prompt: np.uint64 = _mixed(state)[0]
        self._seen: NDArray[np.int32] | None = None
        self._logits: Logits | None = None

    def denoise(self, canvases: Canvases, /, *, start: int = 0, stop: int | None = None) -> Logits:
        """See ``Denoiser.denoise``."""
        checked = self.model.limits.check_canvases(canvases, prompt_tokens=len(self.prompt_ids))
        start, stop = self.model.limits.check_bounds(checked.shape[1], start, stop)
        self.forwards += 1
        return self.model.logits(self._prompt, checked, np.arange(start, stop))

    def denoise_live(self, canvas: NDArray[np.int32], live: NDArray[np.bool_], /) -> Logits:
        """See ``CachingDenoiser.denoise_live``."""
        row, mask = self.model.limits.check_live(canvas, live, prompt_tokens=len(self.prompt_ids))
        if self._seen is None or self._logits is None or len(self._seen) != len(row):
            self._seen = row.copy()
            self._logits = np.empty((len(row), self.model.vocabulary.size), dtype=np.float32)
            mask = np.ones_like(mask)
        self._seen[mask] = row[mask]
        slots = np.flatnonzero(mask)
        if len(slots):
            self._logits[slots] = self.model.logits(self._prompt, self._seen[None], slots)[0]
            self.forwards += 1
        return self._logits.copy()

    def forget(self) -> None:
        """See ``CachingDenoiser.forget``."""
        self._seen = self._logits = None

    def close(self) -> None:
        """See ``Denoiser.close``."""
        self.forget()


def _mixed(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """SplitMix64 of every element; uint64 arithmetic of arrays wraps around silently."""
    words = words + np.uint64(_GAMMA)
    words = (words ^ (words >> np.uint64(30))) * _MIX_1
    words = (words ^ (words >> np.uint64(27))) * _MIX_2
    return words ^ (words >> np.uint64(31))

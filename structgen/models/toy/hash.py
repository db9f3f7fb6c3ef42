"""Models without weights, for tests of programs and for examples: a language model and a diffusion model."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

import numpy as np

from structgen.errors import GenerationError
from structgen.models.model_input import CanvasLimits, find_mask, plain_prompt
from structgen.models.session import SequenceLimits, check_kept, check_truncation, extend

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from structgen.engine.vocabulary import Vocabulary
    from structgen.models.protocol import Extension, Logits, Mixture, Prompt
    from structgen.models.protocol.diffusion import Canvases
    from structgen.models.protocol.tree import TokenTree

__all__ = ["HashDenoiser", "HashDiffusion", "HashModel", "HashSession"]

_WORD = (1 << 64) - 1
# The constants of SplitMix64 (Steele, Lea and Flood 2014).
_GAMMA, _MIX_1, _MIX_2 = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB

# Noise is in [-3, 3), so a bonus of 16 exceeds any noise, and each further byte of a token adds another bonus.
_NOISE = 3.0
_WISH = 16.0
_WISH_PER_BYTE = 8.0

# Weights of mixtures are rounded to multiples of 2**-32: the last bits of a double depend on the machine.
_PARTS = 1 << 32


class HashModel:
    """A deterministic model whose logits depend on all earlier tokens.

    The model finds the longest prefix of ``writes`` that the sequence ends with (as bytes, so token boundaries do not
    matter) and prefers to continue ``writes`` from there, by long tokens.  After all of ``writes`` it prefers EOS.

    Args:
        vocabulary: the vocabulary.
        seed: another seed is another model.
        writes: the text that the model prefers to write, or None.
        max_context: the maximum length of a sequence, or None.
        name: the model's name in messages.

    Example:
        >>> from structgen.engine import Vocabulary
        >>> vocabulary = Vocabulary([b"", b"a", b"b", b"ab"], eos=[0])
        >>> session = HashModel(vocabulary, writes="aab").start()
        >>> [int(session.extend([token]).argmax()) for token in (2, 1, 3)]
        [1, 3, 0]
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        *,
        seed: int = 0,
        writes: str | bytes | None = None,
        max_context: int | None = None,
        name: str = "hash",
    ) -> None:
        self.vocabulary = vocabulary
        self.max_context = max_context
        self.name = name
        self.seed = seed
        self.script = _Script(vocabulary, writes.encode() if isinstance(writes, str) else writes or b"")
        self._ids = np.arange(vocabulary.size, dtype=np.uint64) * np.uint64(_GAMMA)

    @property
    def limits(self) -> SequenceLimits:
        """The limits of the model's input."""
        return SequenceLimits(self.name, self.vocabulary.size, self.max_context)

    def encode_prompt(self, prompt: Prompt, /, *, chat: bool = True) -> list[int]:
        """Return the tokens of the text, or of the messages one to a line; ``chat`` makes no difference."""
        return plain_prompt(self.vocabulary, prompt) or [(*self.vocabulary.eos, 0)[0]]

    def start(self) -> HashSession:
        """Return an empty session."""
        return HashSession(self)

    def extend_many(self, extensions: Sequence[Extension], /) -> list[Logits]:
        """See ``PackedModel.extend_many``."""
        for session, token_ids, _, tree in extensions:
            if not isinstance(session, HashSession) or session.model is not self:
                raise GenerationError(f"model {self.name!r}", f"{session!r} is a session of another model")
            session.check(token_ids, tree)
        return [extend(extension, name=self.name) for extension in extensions]

    def logits(self, state: int, matched: int) -> Logits:
        """Return the logits after a context with this hash whose last ``matched`` bytes are a prefix of the script."""
        return _noise(self._ids ^ np.uint64(state)) + self.script.wishes(matched)

    def __repr__(self) -> str:
        return f"<HashModel {self.name}, {self.vocabulary.size} tokens, seed {self.seed}>"


class HashSession:
    """One sequence of a ``HashModel``; the cache is a hash and a script position for each token."""

    def __init__(self, model: HashModel) -> None:
        self.model = model
        self._states: list[tuple[int, int]] = [(_mix(model.seed & _WORD), 0)]
        self._tree: TokenTree | None = None
        self._tree_states: list[tuple[int, int]] = []
        self.forwards = 0

    @property
    def can_branch(self) -> bool:
        """Always."""
        return True

    @property
    def length(self) -> int:
        """Tokens in the sequence."""
        return len(self._states) - 1

    def extend(self, token_ids: Sequence[int], /) -> Logits:
        """See ``Session.extend``."""
        self._append(token_ids)
        return self.model.logits(*self._states[-1])

    def extend_all(self, token_ids: Sequence[int], /) -> Logits:
        """See ``Session.extend_all``."""
        added = self._append(token_ids)
        return np.stack([self.model.logits(*state) for state in self._states[-added:]])

    def extend_mixed(self, mixtures: Sequence[Mixture], /) -> Logits:
        """See ``SuperposableSession.extend_mixed``.

        The hash includes all tokens of a mixture with their weights; the script continues with the token of the largest
        weight, ties by the lowest id.
        """
        model = self.model
        checked = model.limits.check_mixtures(mixtures, length=self.length)
        self._drop_tree()
        for mixture in checked:
            state, matched = self._states[-1]
            heaviest = max(mixture, key=mixture.__getitem__)
            word = _mix(heaviest)
            if len(mixture) > 1:
                for token, weight in mixture.items():
                    word = _mix(word ^ _mix(token) ^ _mix(round(weight * _PARTS)))
            self._states.append((_mix(state ^ word), model.script.advance(matched, heaviest)))
        self.forwards += 1
        return model.logits(*self._states[-1])

    def extend_tree(self, token_ids: Sequence[int], tree: TokenTree, /, *, all_positions: bool = False) -> Logits:
        """See ``TreeSession.extend_tree``."""
        self.check(token_ids, tree)
        added = self._append(token_ids)
        for token, parent in zip(tree.token_ids, tree.parents, strict=True):
            self._tree_states.append(self._after(self._states[-1] if parent < 0 else self._tree_states[parent], token))
        self._tree = tree
        states = self._states[-added if all_positions else -1 :] + self._tree_states
        return np.stack([self.model.logits(*state) for state in states])

    def keep(self, nodes: Sequence[int], /) -> None:
        """See ``TreeSession.keep``."""
        check_kept(nodes, tree=self._tree, name=self.model.name)
        self._states += [self._tree_states[node] for node in nodes]
        self._drop_tree()

    def check(self, token_ids: Sequence[int], tree: TokenTree | None = None) -> list[int]:
        """Return the ids, or raise ``GenerationError`` as ``extend`` and ``extend_tree``."""
        return self.model.limits.check_extension(token_ids, length=self.length, tree=tree)

    def _append(self, token_ids: Sequence[int]) -> int:
        ids = self.check(token_ids)
        self._drop_tree()
        for token in ids:
            self._states.append(self._after(self._states[-1], token))
        self.forwards += 1
        return len(ids)

    def _after(self, before: tuple[int, int], token: int) -> tuple[int, int]:
        state, matched = before
        return _mix(state ^ _mix(int(token))), self.model.script.advance(matched, int(token))

    def _drop_tree(self) -> None:
        self._tree = None
        self._tree_states = []

    def truncate(self, length: int, /) -> None:
        """See ``Session.truncate``."""
        check_truncation(length, held=self.length, name=self.model.name)
        self._drop_tree()
        del self._states[length + 1 :]

    def fork(self) -> HashSession:
        """See ``Session.fork``."""
        self._drop_tree()
        copy = HashSession(self.model)
        copy._states = list(self._states)
        return copy

    def close(self) -> None:
        """See ``Session.close``."""
        self._drop_tree()
        del self._states[1:]


class _Script:
    """The preferred text of a model as an automaton of Knuth, Morris and Pratt (1977)."""

    def __init__(self, vocabulary: Vocabulary, text: bytes) -> None:
        self._tokens = vocabulary.tokens
        self._text = text
        self._ends = np.zeros(vocabulary.size, dtype=np.float32)
        self._ends[list(vocabulary.eos)] = _WISH
        self._silent = np.zeros(vocabulary.size, dtype=np.float32)
        self._spelled: dict[bytes, list[int]] = {}
        for token, piece in enumerate(vocabulary.tokens):
            if piece and piece in text:
                self._spelled.setdefault(piece, []).append(token)
        self._longest = max(map(len, self._spelled), default=0)
        self._borders = _borders(text)

    def advance(self, matched: int, token: int) -> int:
        """Return how many bytes of the text are matched after ``token``; amortised O(bytes)."""
        text, borders = self._text, self._borders
        for byte in self._tokens[token] if text else b"":
            while matched and (matched == len(text) or text[matched] != byte):
                matched = borders[matched]
            matched += text[matched] == byte
        return matched

    def wishes(self, matched: int) -> NDArray[np.float32]:
        """Return the bonus to add to the logits after ``matched`` bytes of the text."""
        if not self._text:
            return self._silent
        if matched == len(self._text):
            return self._ends
        wishes = self._silent.copy()
        for length in range(1, min(self._longest, len(self._text) - matched) + 1):
            tokens = self._spelled.get(self._text[matched : matched + length], ())
            wishes[list(tokens)] = _WISH + _WISH_PER_BYTE * length
        return wishes


def _borders(text: bytes) -> list[int]:
    """For each length of a prefix, the length of its longest proper border; ``[0]`` of the empty text."""
    borders = [0] * (len(text) + 1)
    border = 0
    for length in range(2, len(text) + 1):
        while border and text[border] != text[length - 1]:
            border = borders[border]
        border += text[border] == text[length - 1]
        borders[length] = border
    return borders


def _mix(word: int) -> int:
    word = (word + _GAMMA) & _WORD
    word = ((word ^ (word >> 30)) * _MIX_1) & _WORD
    word = ((word ^ (word >> 27)) * _MIX_2) & _WORD
    return word ^ (word >> 31)


def _mixed(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Apply ``_mix`` to every element; uint64 arithmetic of arrays wraps around silently."""
    words = words + np.uint64(_GAMMA)
    words = (words ^ (words >> np.uint64(30))) * np.uint64(_MIX_1)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(_MIX_2)
    return words ^ (words >> np.uint64(31))


def _noise(words: NDArray[np.uint64]) -> NDArray[np.float32]:
    """Uniform noise for each hash, in ``[-_NOISE, _NOISE)``."""
    uniform = (_mixed(words) >> np.uint64(40)).astype(np.float32) / np.float32(1 << 24)
    return uniform * np.float32(2 * _NOISE) - np.float32(_NOISE)


@final
class HashDiffusion:
    """A deterministic diffusion model.

    The logits of a slot are noise, uniform on ``[-3, 3)``; a share of ``1 - context`` is a hash of the prompt
    and the slot's position, and a share of ``context`` a hash of these and of all other fixed slots with their
    positions.  The preferred token gets a bonus of 16.

    Args:
        vocabulary: the vocabulary, with MASK as a special token.
        mask_token: the id of MASK; None for the special token with the spelling of MASK (``<mask>``).
        seed: another seed is another model.
        writes: the text that the model prefers to write from the first slot on, then EOS; or None.
        context: 0 for slots that are independent of the others, 1 for slots that depend on all others.
        max_context: the maximum length of prompt and canvas together, or None.
        name: the model's name in messages.

    Raises:
        ModelError: the vocabulary has no MASK.
        ValueError: ``context`` is not in [0, 1].
        VocabularyError: ``writes`` cannot be spelled.

    Complexity: O(vocabulary.size) per queried slot.

    Example:
        >>> from structgen.engine import Vocabulary
        >>> vocabulary = Vocabulary([b"", b"a", b"b", b"ab", b""], eos=[0], special={4: "<mask>"})
        >>> denoiser = HashDiffusion(vocabulary, writes="abb").start([])
        >>> denoiser.denoise(np.array([[4, 4, 4, 4]], dtype=np.int32)).argmax(axis=2).tolist()
        [[3, 2, 0, 0]]
    """

    def __init__(  # noqa: PLR0913  public: each is a keyword with a default
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
            raise ValueError(f"context must be between 0 and 1; found {context!r}; 0 makes slots independent")
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
        """The limits of the model's input."""
        return CanvasLimits(self.name, self.vocabulary.size, self.max_context)

    def encode_prompt(self, prompt: Prompt, /, *, chat: bool = True) -> list[int]:
        """Return the tokens of the text, or of the messages one to a line; ``chat`` makes no difference."""
        return plain_prompt(self.vocabulary, prompt)

    def start(self, prompt_ids: Sequence[int], /) -> HashDenoiser:
        """Return a denoiser of canvases that follow a prompt."""
        return HashDenoiser(self, self.limits.check_prompt(prompt_ids))

    def logits(self, prompt: np.uint64, canvases: Canvases, slots: NDArray[np.int64]) -> Logits:
        """Return the logits of some slots of each canvas after a prompt of this hash."""
        positions = np.arange(canvases.shape[1], dtype=np.uint64)
        at = _mixed(positions + np.uint64(1)) ^ prompt  # [slots]
        tokens = _mixed(canvases.astype(np.uint64) ^ _mixed(at))  # [n, slots]
        tokens[canvases == self.mask_token] = 0
        # A slot does not depend on itself, so its own token is removed from the sum.
        others = tokens.sum(axis=1, dtype=np.uint64)[:, None] - tokens
        alone = np.broadcast_to(at[slots], (len(canvases), len(slots)))
        share = np.float32(self.context)
        logits = np.zeros((len(canvases), len(slots), self.vocabulary.size), dtype=np.float32)
        if self.context < 1:
            logits += (np.float32(1) - share) * _noise(self._ids ^ alone[..., None])
        if self.context > 0:
            words = _mixed(others[:, slots] + alone) ^ np.uint64(_GAMMA)
            logits += share * _noise(self._ids ^ words[..., None])
        if self.wished is not None:
            self._wish(logits, slots, self.wished)
        return logits

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

    It caches "keys and values" like a network of one layer: those of a slot are its token when it was last live.  So
    decoders that skip slots in a pass can be tested without a network.
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

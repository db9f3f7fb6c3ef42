"""A model whose distribution is a function of the tokens before, for tests that compute by hand."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from structgen.engine import Vocabulary


class FunctionModel:
    """Runs one sequence at a time.

    Args:
        vocabulary: the tokens.
        distribution: the probabilities of texts, each one token, after a text; the rest shares what is missing.
        max_context: the longest sequence.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        distribution: Callable[[bytes], Mapping[bytes, float]],
        max_context: int | None = None,
    ) -> None:
        self.vocabulary = vocabulary
        self.max_context = max_context
        self.name = "function"
        self.fed: list[list[int]] = []
        self._distribution = distribution

    def encode_prompt(self, prompt: Any, /, *, chat: bool = True) -> list[int]:
        return self.vocabulary.tokenize(prompt)

    def start(self) -> FunctionSession:
        return FunctionSession(self)

    def logits(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        """The model's logits after tokens."""
        distribution = self._distribution(self.vocabulary.decode(tokens))
        rest = max(1 - sum(distribution.values()), 1e-9) / self.vocabulary.size
        weights = np.full(self.vocabulary.size, rest)
        for text, probability in distribution.items():
            weights[self.vocabulary.tokens.index(text)] += probability
        return np.log(weights).astype(np.float32)


class FunctionSession:
    """One sequence; its tokens are the cache."""

    def __init__(self, model: FunctionModel, tokens: Sequence[int] = ()) -> None:
        self._model = model
        self._tokens = list(tokens)
        self.forwards = 0

    @property
    def length(self) -> int:
        return len(self._tokens)

    def extend(self, token_ids: Sequence[int], /) -> NDArray[np.float32]:
        return self.extend_all(token_ids)[-1]

    def extend_all(self, token_ids: Sequence[int], /) -> NDArray[np.float32]:
        self._model.fed.append(list(token_ids))
        self.forwards += 1
        rows = []
        for token in token_ids:
            self._tokens.append(token)
            rows.append(self._model.logits(self._tokens))
        return np.stack(rows)

    def truncate(self, length: int, /) -> None:
        del self._tokens[length:]

    def fork(self) -> FunctionSession:
        return FunctionSession(self._model, self._tokens)

    def close(self) -> None:
        self._tokens.clear()

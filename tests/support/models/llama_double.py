"""A double of ``llama_cpp.Llama`` 0.3.36: how its loop calls logits processors, stopping criteria and draft models.

Kept from it: ids that hold draft tokens during sampling, the cut where a draft token differs, the copy of the scores
that is only written if no processor raises, ``extend`` for a logit bias, and the criterion that is asked once more at
the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray


class LlamaDouble:
    """Greedy or sampled output of a function from ids to logits.

    Args:
        logits: of the next token, after the ids of a prompt and an output.
        eos: ids that end an output.
    """

    def __init__(self, logits: Callable[[Sequence[int]], NDArray[np.float32]], eos: Sequence[int]) -> None:
        self.logits = logits
        self.eos = set(eos)
        self.draft_model: Callable[..., Any] | None = None
        self.ids = np.zeros(4096, dtype=np.intc)
        self.n_tokens = 0
        self.passes = 0
        self.swallowed: list[BaseException] = []

    def eval(self, tokens: Sequence[int]) -> None:
        self.ids[self.n_tokens : self.n_tokens + len(tokens)] = tokens
        self.n_tokens += len(tokens)
        self.passes += 1

    def sample(self, at: int, processors: Any, chance: np.random.Generator | None) -> int:
        scores = np.array(self.logits(self.ids[: at + 1].tolist()), dtype=np.float32)
        try:  # a callback of ctypes: what it raises is printed
            for processor in processors or ():
                scores[:] = processor(self.ids[: self.n_tokens], scores)
        except BaseException as error:
            self.swallowed.append(error)
        if chance is None:
            return int(np.argmax(scores))
        weights = np.exp(scores - scores.max())
        return int(chance.choice(len(scores), p=weights / weights.sum()))

    def generate(self, tokens: list[int], processors: Any, criteria: Any, chance: Any) -> Iterator[int]:
        self.n_tokens, tokens = 0, list(tokens)
        at = len(tokens) - 1
        while True:
            self.eval(tokens)
            while at < self.n_tokens:
                token = self.sample(at, processors, chance)
                at += 1
                if criteria is not None and criteria(self.ids[:at], None):
                    return
                yield token
                tokens = [token]
                if at < self.n_tokens and token != self.ids[at]:
                    self.n_tokens = at
                    break
            if self.draft_model is not None:
                self.ids[self.n_tokens : self.n_tokens + 1] = tokens
                tokens += self.draft_model(self.ids[: self.n_tokens + 1]).astype(int).tolist()

    def create_completion(
        self,
        prompt: list[int],
        *,
        max_tokens: int = 16,
        temperature: float = 0.0,
        seed: int = 0,
        logits_processor: Any = None,
        stopping_criteria: Any = None,
        logit_bias: dict[int, float] | None = None,
    ) -> list[int]:
        if logit_bias is not None:

            def bias(_ids: Any, scores: NDArray[np.float32]) -> NDArray[np.float32]:
                changed = scores.copy()
                for token, value in logit_bias.items():
                    changed[token] += value
                return changed

            logits_processor = [bias] if logits_processor is None else logits_processor.extend([bias])
        chance = np.random.default_rng(seed) if temperature else None
        output: list[int] = []
        for token in self.generate(prompt, logits_processor, stopping_criteria, chance):
            if token in self.eos:
                break
            output.append(token)
            if len(output) >= max_tokens:
                break
        if stopping_criteria is not None:
            stopping_criteria(self.ids[: self.n_tokens], None)
        return output

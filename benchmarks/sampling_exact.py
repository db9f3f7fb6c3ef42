"""Exact distributions of small languages under a model, and a model that remembers its logits.

The members of a small language are listed, each is spelled with tokens in all ways, and all of these sequences are
scored.  No automaton and no mask takes part in that, so the distributions can referee those who use them.
"""

from __future__ import annotations

import math
from collections import OrderedDict, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

import numpy as np

from structgen.models.protocol import Extension

if TYPE_CHECKING:
    from structgen.engine import Vocabulary
    from structgen.models.protocol import Logits, PackedModel, Prompt, Session

__all__ = ["Distribution", "Remembering", "distance", "local_distribution", "log_sum", "scored", "spellings"]

Distribution: TypeAlias = dict[tuple[int, ...], float]
"""Sequences of tokens, the stop left out, with log-probabilities."""


class Worth(Protocol):
    """The logarithm of a factor on the probability of a prefix, or, where ``is_end``, of an output."""

    def __call__(self, tokens: tuple[int, ...], *, is_end: bool) -> float:
        """Return the logarithm."""


_PACK: Final = 16
_MAX_ROWS: Final = 12_000


class Remembering:
    """A model whose answers are kept, so that thousands of runs after one prompt need few forward passes.

    The same tokens always have the same logits, to the last bit.

    Args:
        model: what answers; it must be able to run several sequences at once.
        most: logits that are kept; the longest unused are dropped.

    Attributes:
        misses: answers that had to be computed.
    """

    def __init__(self, model: PackedModel, most: int = _MAX_ROWS) -> None:
        self._model = model
        self._most = most
        self._rows: OrderedDict[tuple[int, ...], Logits] = OrderedDict()
        self._prompts: dict[tuple[int, ...], Session] = {}
        self.name = f"{model.name}, remembered"
        self.vocabulary: Vocabulary = model.vocabulary
        self.max_context: int | None = model.max_context
        self.misses = 0

    def encode_prompt(self, prompt: Prompt, /, *, chat: bool = True) -> list[int]:
        """See ``LanguageModel``."""
        return self._model.encode_prompt(prompt, chat=chat)

    def start(self) -> _RememberingSession:
        """See ``LanguageModel``."""
        return _RememberingSession(self, ())

    def learn(self, prompt: Sequence[int], outputs: Iterable[tuple[int, ...]]) -> None:
        """Compute the logits after a prompt and after each of several outputs, many in one forward pass."""
        prompt = tuple(prompt)
        wanted = [output for output in dict.fromkeys(outputs) if prompt + output not in self._rows]
        base = self._base(prompt)
        for start in range(0, len(wanted), _PACK):
            part = wanted[start : start + _PACK]
            sessions = [base.fork() for _ in part]
            rows = self._model.extend_many(
                [
                    Extension(session, [prompt[-1], *output], all_positions=False)
                    for session, output in zip(sessions, part, strict=True)
                ]
            )
            for output, row in zip(part, rows, strict=True):
                self._keep(prompt + output, row)

    def row(self, tokens: tuple[int, ...]) -> Logits:
        """The logits after tokens."""
        known = self._rows.get(tokens)
        if known is not None:
            self._rows.move_to_end(tokens)
            return known
        length = max((len(each) for each in self._prompts if tokens[: len(each)] == each), default=len(tokens))
        self.learn(tokens[:length], [tokens[length:]])
        return self._rows[tokens]

    def _base(self, prompt: tuple[int, ...]) -> Session:
        """A session with the prompt but for its last token."""
        if prompt not in self._prompts:
            session = self._model.start()
            if len(prompt) > 1:
                session.extend(prompt[:-1])
            self._prompts[prompt] = session
        return self._prompts[prompt]

    def _keep(self, tokens: tuple[int, ...], row: Logits) -> None:
        self.misses += 1
        row.setflags(write=False)
        self._rows[tokens] = row
        if len(self._rows) > self._most:
            self._rows.popitem(last=False)


class _RememberingSession:
    """A sequence of a ``Remembering`` model."""

    def __init__(self, model: Remembering, tokens: tuple[int, ...]) -> None:
        self._model = model
        self._tokens = tokens
        self.forwards = 0

    @property
    def length(self) -> int:
        return len(self._tokens)

    def extend(self, token_ids: Sequence[int], /) -> Logits:
        self._tokens += tuple(token_ids)
        self.forwards += 1
        return self._model.row(self._tokens)

    def extend_all(self, token_ids: Sequence[int], /) -> Logits:
        rows = [self._model.row((*self._tokens, *token_ids[: end + 1])) for end in range(len(token_ids))]
        self._tokens += tuple(token_ids)
        self.forwards += 1
        return np.stack(rows)

    def truncate(self, length: int, /) -> None:
        self._tokens = self._tokens[:length]

    def fork(self) -> _RememberingSession:
        return _RememberingSession(self._model, self._tokens)

    def close(self) -> None:
        self._tokens = ()


def spellings(vocabulary: Vocabulary, text: str, most: int) -> Iterator[tuple[int, ...]]:
    """All sequences of at most ``most`` tokens that spell a text."""
    by_bytes: dict[bytes, list[int]] = defaultdict(list)
    for token, data in enumerate(vocabulary.tokens):
        if data:
            by_bytes[data].append(token)
    data = text.encode()
    agenda: list[tuple[tuple[int, ...], int]] = [((), 0)]
    while agenda:
        tokens, start = agenda.pop()
        if start == len(data):
            yield tokens
        elif len(tokens) < most:
            for end in range(start + 1, len(data) + 1):
                agenda.extend(((*tokens, token), end) for token in by_bytes.get(data[start:end], ()))


def scored(model: Remembering, prompt: Sequence[int], members: Iterable[str], max_tokens: int) -> Distribution:
    """The log-probability of each spelling of each member, its stop included; they sum to the evidence."""
    sequences = [tokens for member in members for tokens in spellings(model.vocabulary, member, max_tokens)]
    prompt = tuple(prompt)
    model.learn(prompt, (tokens[:end] for tokens in sequences for end in range(len(tokens) + 1)))
    stops = list(model.vocabulary.eos)
    distribution = {}
    for tokens in sequences:
        total = 0.0
        for end in range(len(tokens) + 1):
            row = model.row(prompt + tokens[:end]).astype(np.float64)
            nexts = stops if end == len(tokens) else [tokens[end]]
            total += log_sum(row[nexts]) - log_sum(row)
        distribution[tokens] = total
    return distribution


def local_distribution(
    model: Remembering, prompt: Sequence[int], distribution: Distribution, worth: Worth | None = None
) -> Distribution:
    """The distribution of one who draws token after token from the model's distribution, masked and normalised.

    Args:
        model: the model.
        prompt: the tokens before the output.
        distribution: holds all sequences that are allowed.
        worth: the factor on the model's probability of each continuation.  None is locally constrained decoding.
    """
    prompt = tuple(prompt)
    nexts: dict[tuple[int, ...], set[int | None]] = defaultdict(set)
    for tokens in distribution:
        for end, token in enumerate(tokens):
            nexts[tokens[:end]].add(token)
        nexts[tokens].add(None)
    stops = list(model.vocabulary.eos)

    def chance(prefix: tuple[int, ...], token: int | None) -> float:
        row = model.row(prompt + prefix).astype(np.float64)
        log_p = log_sum(row[stops if token is None else [token]])
        if worth is None:
            return log_p
        return log_p + (worth(prefix, is_end=True) if token is None else worth((*prefix, token), is_end=False))

    masses = {
        prefix: log_sum(np.array([chance(prefix, token) for token in allowed])) for prefix, allowed in nexts.items()
    }
    return {
        tokens: sum(chance(tokens[:end], token) - masses[tokens[:end]] for end, token in enumerate((*tokens, None)))
        for tokens in distribution
    }


def distance(one: dict[tuple[int, ...], float], two: dict[tuple[int, ...], float]) -> float:
    """Total variation of two distributions, given as probabilities."""
    return 0.5 * sum(abs(one.get(tokens, 0.0) - two.get(tokens, 0.0)) for tokens in one.keys() | two.keys())


def log_sum(values: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> float:
    """Logarithm of the sum of exponentials."""
    top = float(values.max())
    return top + math.log(float(np.exp(values - top).sum())) if math.isfinite(top) else top

"""A model whose distribution contrasts its logits under one prompt with those under another.

One mechanism, three uses: context-aware decoding (the other prompt lacks the context), uncertainty-aware selective
contrast (it is a degraded prompt, and only uncertain steps are contrasted), and instructive decoding (it requests the
opposite). The result is a ``LanguageModel``: grammars, samplers and potentials need not know of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final, Self, final

import numpy as np

from structgen.errors import GenerationError
from structgen.models.protocol import Extension, PackedModel
from structgen.models.session import check_truncation, extend, treeless

if TYPE_CHECKING:
    from structgen.models.protocol import LanguageModel, Logits, Prompt, Session

__all__ = ["Contrastive", "ContrastiveSession"]

_GAP: Final = 100.0
"""Nats between the lowest contrasted token and the highest implausible one."""


@final
class Contrastive:
    """A language model that runs on two prompts and mixes their logits.

        logits = gain * (logits with the prompt) - alpha * (logits with the other prompt)

    Both prompts are followed by the same output. The resulting distribution differs from the model's: ``lossless`` is
    false, and samplers that are exact are exact for this distribution. The grammar's mask comes after the mixture.

    An encoded prompt begins with ids that are no tokens of the vocabulary: they encode where the prompt ends and the
    output begins, so that a session's answers depend on its ids alone. There are enough of them for the longer prompt
    to count when prompt and output are compared with the context; ``Stats.prompt_tokens`` counts them. So a prompt has
    to come from ``encode_prompt`` of this model. Later prompt parts, as in a conversation, follow both prompts.

    Args:
        model: runs both streams, in one pass if it is a ``PackedModel``.
        without: the other prompt.
        alpha: see above.
        gain: see above; None for ``1 + alpha``.
        plausibility: contrast only tokens with at least this share of the most probable token's probability under the
            prompt (X. Li et al. 2023, arXiv 2210.15097). The others rank below all of these, in the model's order and
            proportion, so that tokens remain if the grammar forbids the plausible ones. None contrasts all tokens.
        uncertain_below: contrast only where the model is uncertain under the prompt: where the standard deviation of
            its probabilities, as a share of the largest possible one, is below this number. None for always.

    Raises:
        ValueError: a number is out of range.
        ModelError: the other prompt cannot be encoded.

    Example:
        ``sg.generate(Contrastive(lm, without="Who won?"), "The Reds won 3:1. Who won?", grammar)``

    Source: W. Shi et al., "Trusting Your Evidence" (2023, arXiv 2305.14739), and Z. Xu (2023, arXiv 2312.14335) for
    ``gain = 1 + alpha``; ``selective`` and ``instructive`` name theirs.
    """

    lossless: ClassVar[bool] = False

    if TYPE_CHECKING:
        extend_many: Callable[[Sequence[Extension]], list[Logits]]

    def __init__(
        self,
        model: LanguageModel,
        *,
        without: Prompt,
        alpha: float = 0.5,
        gain: float | None = None,
        plausibility: float | None = None,
        uncertain_below: float | None = None,
    ) -> None:
        if not (math.isfinite(alpha) and alpha >= 0):
            raise ValueError(f"Contrastive: alpha must be a finite number of at least 0; found {alpha!r}")
        if gain is not None and not (math.isfinite(gain) and gain > 0):
            raise ValueError(f"Contrastive: gain must be a positive number, or None for 1 + alpha; found {gain!r}")
        if plausibility is not None and not 0 < plausibility <= 1:
            raise ValueError(f"Contrastive: plausibility must be in (0, 1], or None; found {plausibility!r}")
        if uncertain_below is not None and not 0 <= uncertain_below <= 1:
            raise ValueError(f"Contrastive: uncertain_below must be in [0, 1], or None; found {uncertain_below!r}")
        self.model = model
        self.alpha = alpha
        self.gain = 1 + alpha if gain is None else gain
        self.plausibility = plausibility
        self.uncertain_below = uncertain_below
        self.name = f"contrastive {model.name}"
        self.vocabulary = model.vocabulary
        self._others = tuple(model.encode_prompt(without, chat=chat) for chat in (False, True))
        self._packed = model if isinstance(model, PackedModel) else None
        if self._packed is not None:  # otherwise the contrastive model must not be a PackedModel either
            self.extend_many = self._extend_many

    @classmethod
    def selective(
        cls,
        model: LanguageModel,
        *,
        lame: Prompt,
        alpha: float = 1.0,
        uncertain_below: float = 0.7,
        plausibility: float | None = 0.1,
    ) -> Self:
        """Contrast with a lame prompt, which lacks the useful part, and only where the model is uncertain.

            logits = (logits with the prompt) - alpha * (logits with the lame prompt)

        Source: S. Wang et al., USCD (2024, arXiv 2409.05923). Deviations: the standard deviation is a share of its
        largest value, so that the threshold does not depend on the vocabulary size; plausibility is relative to the
        most probable token, as in X. Li et al.; the defaults are not tuned.
        """
        return cls(
            model, without=lame, alpha=alpha, gain=1.0, plausibility=plausibility, uncertain_below=uncertain_below
        )

    @classmethod
    def instructive(cls, model: LanguageModel, *, noisy: Prompt, epsilon: float = 0.3) -> Self:
        """Contrast with a prompt whose instruction is distorted, or requests the opposite.

            logits = (logits with the prompt) - epsilon * (logits with the noisy prompt)

        Source: T. Kim et al., "Distort, Distract, Decode" (2023, arXiv 2311.00233).
        """
        return cls(model, without=noisy, alpha=epsilon, gain=1.0)

    @property
    def target(self) -> str:
        """Its distribution, in a few words."""
        rest = "" if self.uncertain_below is None else ", where the first is uncertain"
        return f"{self.gain:g} times the logits with the prompt less {self.alpha:g} times those with the other{rest}"

    @property
    def max_context(self) -> int | None:
        """The longest sequence, including the ids that are no tokens."""
        return None if self.model.max_context is None else self.model.max_context + 1

    def encode_prompt(self, prompt: Prompt, /, *, chat: bool = True) -> list[int]:
        """See ``LanguageModel.encode_prompt``; the first ids are no tokens."""
        tokens = self.model.encode_prompt(prompt, chat=chat)
        excess = max(len(self._others[chat]) - len(tokens), 0)
        return [self.vocabulary.size + 2 * len(tokens) + chat] * (1 + excess) + tokens

    def start(self) -> ContrastiveSession:
        """Return an empty session."""
        return ContrastiveSession(self, self.model.start(), self.model.start())

    def mixed(self, main: Logits, other: Logits) -> Logits:
        """Mix the logits with the prompt and those with the other prompt, ``[V]``."""
        if self.uncertain_below is not None and _certainty(main) >= self.uncertain_below:
            return main
        logits, against = main.astype(np.float64), other.astype(np.float64)
        floor = np.isneginf(against)
        if floor.any() and not floor.all():  # probability 0 under the other prompt is no evidence for a token
            against[floor] = against[~floor].min()
        mixed = self.gain * logits
        possible = ~np.isneginf(logits)
        mixed[possible] -= self.alpha * against[possible]
        if self.plausibility is not None:
            rest = possible & (logits < logits.max() + math.log(self.plausibility))
            if rest.any():
                lowest = mixed[possible & ~rest].min()
                mixed[rest] = logits[rest] - logits[rest].max() + lowest - _GAP
        return mixed.astype(np.float32)

    def prompt_shape(self, first: int) -> tuple[int, list[int]]:
        """Return the length of the prompt whose first id this is, and the tokens of the other prompt.

        Raises:
            GenerationError: the id is a token.
        """
        length, chat = divmod(first - self.vocabulary.size, 2)
        if length < 1:
            raise GenerationError(
                f"model {self.name!r}",
                "the sequence does not begin with a prompt that this model encoded",
                evidence=f"its first id is {first}",
                remedy="encode the prompt with encode_prompt of this model, not of the one inside it",
            )
        return length, self._others[chat]

    def run(self, extensions: Sequence[Extension]) -> list[Logits]:
        """Append ids to sessions of this model, to all of them or none."""
        plans: list[_PassPlan] = []
        for session, token_ids, all_positions, tree in extensions:
            if not isinstance(session, ContrastiveSession) or session.model is not self:
                raise GenerationError(f"model {self.name!r}", f"it cannot extend {session!r}, which is not its own")
            if tree is not None:
                raise treeless(name=self.name)
            plans.append(session.plan(token_ids, all_positions=all_positions))
        steps = [step for plan in plans for step in plan.steps]
        try:
            if self._packed is not None:
                rows = self._packed.extend_many(steps) if steps else []
            else:
                rows = [extend(step, name=self.name) for step in steps]
        except BaseException:
            for plan in plans:
                plan.session.take_back()
            raise
        answers = iter(rows)
        return [
            plan.session.take(plan, [next(answers) for _ in plan.steps], packed=self._packed is not None)
            for plan in plans
        ]

    def _extend_many(self, extensions: Sequence[Extension], /) -> list[Logits]:
        """See ``PackedModel.extend_many``: both streams of all sessions run in one pass."""
        return self.run(extensions)

    def __repr__(self) -> str:
        return f"<Contrastive {self.model!r}, {self.target}>"


@final
@dataclass(frozen=True, slots=True)
class _PassPlan:
    """The work of one session in a pass.

    Attributes:
        session: the session.
        ids: the appended ids.
        tokens: those of ``ids`` that are tokens.
        length: tokens of the prompt.
        other: tokens of the other prompt.
        all_positions: whether to return logits after each id.
        steps: the extensions of the streams: none, of the prompt's stream alone, or of both.
        held: tokens in each stream before the pass.
    """

    session: ContrastiveSession
    ids: list[int]
    tokens: list[int]
    length: int
    other: list[int]
    all_positions: bool
    steps: list[Extension]
    held: tuple[int, int]


@final
class ContrastiveSession:
    """One sequence of a ``Contrastive`` model: two sessions in lockstep.

    Invariant: both prompts end at the same time: if the sequence holds ``n`` tokens, the second stream holds at most
        ``n`` minus the length of the prompt plus that of the other prompt.
    """

    def __init__(self, model: Contrastive, main: Session, other: Session) -> None:
        self.model = model
        self.forwards = 0
        self._main = main
        self._other = other
        self._ids: list[int] = []
        self._tokens: list[int] = []

    @property
    def length(self) -> int:
        """Ids in the sequence, including those that are no tokens."""
        return len(self._ids)

    def extend(self, token_ids: Sequence[int], /) -> Logits:
        """See ``Session.extend``; after ids that are no tokens, the logits before them are returned."""
        return self.model.run([Extension(self, token_ids, all_positions=False)])[0]

    def extend_all(self, token_ids: Sequence[int], /) -> Logits:
        """See ``Session.extend_all``; within the prompt, the logits are those with the prompt alone."""
        return self.model.run([Extension(self, token_ids, all_positions=True)])[0]

    def truncate(self, length: int, /) -> None:
        """See ``Session.truncate``."""
        check_truncation(length, held=len(self._ids), name=self.model.name)
        count = len(self._tokens) - sum(map(self._is_token, self._ids[length:]))
        del self._ids[length:]
        self._cut(count)

    def fork(self) -> ContrastiveSession:
        """See ``Session.fork``."""
        fork = ContrastiveSession(self.model, self._main.fork(), self._other.fork())
        fork._ids = list(self._ids)
        fork._tokens = list(self._tokens)
        return fork

    def close(self) -> None:
        """See ``Session.close``."""
        self._ids.clear()
        self._tokens.clear()
        self._main.close()
        self._other.close()

    def plan(self, token_ids: Sequence[int], *, all_positions: bool) -> _PassPlan:
        """Return the work that appending ids requires.

        Raises:
            GenerationError: there are no ids, or the sequence does not begin with an encoded prompt.
        """
        ids = [int(token) for token in token_ids]
        if not ids:
            raise GenerationError(
                f"model {self.model.name!r}", "no tokens to extend the sequence by", remedy="pass at least one token id"
            )
        length, other = self.model.prompt_shape((self._ids or ids)[0])
        if self._tokens and not self._is_token(ids[0]):
            # The logits after this id are those before it, which are not stored: run the last token again.
            self._cut_streams(len(self._tokens) - 1, length, other)
        tokens = [token for token in ids if self._is_token(token)]
        everything = self._tokens + tokens
        target = _second_length(len(everything), length, other)
        held = self._main.length, self._other.length
        second = other + everything[length:]
        steps = [
            Extension(stream, pending, all_positions)
            for stream, pending in ((self._main, everything[held[0] :]), (self._other, second[held[1] : target]))
            if pending
        ]
        return _PassPlan(self, ids, tokens, length, other, all_positions, steps, held)

    def take(self, plan: _PassPlan, rows: list[Logits], *, packed: bool) -> Logits:
        """Add the results of a pass, and return the mixed logits."""
        self.forwards += min(len(rows), 1) if packed else len(rows)
        before = len(self._tokens)
        self._ids += plan.ids
        self._tokens += plan.tokens
        if not plan.all_positions:
            return self._mixed(plan, [each[None] for each in rows], len(self._tokens), from_end=True)
        answers, count = [], before
        for token in plan.ids:
            count += self._is_token(token)
            answers.append(self._mixed(plan, rows, count, from_end=False))
        return np.stack(answers)

    def take_back(self) -> None:
        """Truncate the streams after a failed pass; missing tokens run the next time."""
        self._cut(len(self._tokens))

    def _mixed(self, plan: _PassPlan, rows: list[Logits], count: int, *, from_end: bool) -> Logits:
        """The logits of the sequence at ``count`` tokens."""
        if not count:
            return np.zeros(self.model.vocabulary.size, dtype=np.float32)
        main: Logits = rows[0][-1 if from_end else count - plan.held[0] - 1]
        if count < plan.length:
            return main
        shift = len(plan.other) - plan.length
        return self.model.mixed(main, rows[1][-1 if from_end else count + shift - plan.held[1] - 1])

    def _cut(self, count: int) -> None:
        del self._tokens[count:]
        if self._ids:
            self._cut_streams(count, *self.model.prompt_shape(self._ids[0]))
        else:
            self._main.truncate(0)
            self._other.truncate(0)

    def _cut_streams(self, count: int, length: int, other: list[int]) -> None:
        self._main.truncate(min(self._main.length, count))
        self._other.truncate(min(self._other.length, _second_length(count, length, other)))

    def _is_token(self, token: int) -> bool:
        return token < self.model.vocabulary.size


def _second_length(count: int, length: int, other: list[int]) -> int:
    """The length of the second stream if the first has ``count`` tokens."""
    return max(count + len(other) - length, 0)


def _certainty(logits: Logits) -> float:
    """The standard deviation of the probabilities, as a share of its value if one token has probability 1."""
    weights = np.exp(logits.astype(np.float64) - float(logits.max()))
    p = weights / weights.sum()
    largest = math.sqrt(len(p) - 1) / len(p)
    return float(p.std()) / largest if largest else 1.0

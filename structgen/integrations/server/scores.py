"""The scores in a response: log-probabilities of tokens, fields, marginals, weights.

OpenAI's ``logprobs`` are log-probabilities of the model: ``logprob + log_z`` of each step.  Those renormalised over the
allowed tokens are ``allowed_logprob``.  With penalties or a bias both are of the adjusted model.  Only allowed tokens
are listed as alternatives.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, final

from structgen.decode import Result, Step
from structgen.frontends.json_schema.source.location import plain_pointer
from structgen.integrations.server.writing import Item, Scored, Weighed
from structgen.program.json_cursor import FieldEnd

if TYPE_CHECKING:
    from structgen.engine import Vocabulary
    from structgen.integrations.server.runner import Task

__all__ = ["Answer", "field_event", "ranked", "text_of", "token_scores", "usage"]

_NEVER: Final = -9999.0
"""Minus infinity in OpenAI's API, since JSON has none."""


def text_of(vocabulary: Vocabulary, token: int) -> str:
    """A token as text: special tokens by their names; bytes that are no UTF-8 become U+FFFD."""
    return vocabulary.special.get(token) or vocabulary.tokens[token].decode("utf-8", "replace")


def _finite(value: float) -> float:
    return value if math.isfinite(value) else _NEVER


def ranked(step: Step, top: int) -> list[tuple[int, float, float]]:
    """The most probable tokens of a step, each with its log-probability of the model and among the allowed ones.

    A forced step has one.  The end of the answer is no token.
    """
    held = [] if step.token is None else [(step.token, step.logprob)]
    log_z = step.log_z or 0.0
    found = sorted([*held, *step.alternatives], key=lambda each: (-each[1], each[0]))[:top]
    return [(token, _finite(logprob + log_z), _finite(logprob)) for token, logprob in found]


def token_scores(vocabulary: Vocabulary, steps: Iterable[Step], top: int) -> list[dict[str, Any]]:
    """The entries of ``logprobs.content`` for steps that are tokens."""

    def entry(token: int, logprob: float, allowed: float) -> dict[str, Any]:
        data = vocabulary.tokens[token]
        known = {"token": text_of(vocabulary, token), "logprob": logprob, "bytes": list(data) or None}
        return {**known, "allowed_logprob": allowed}

    return [
        {
            **entry(step.token, _finite(step.logprob + (step.log_z or 0.0)), _finite(step.logprob)),
            "forced": step.forced,
            "top_logprobs": [entry(*each) for each in ranked(step, top)],
        }
        for step in steps
        if step.token is not None
    ]


def field_event(end: FieldEnd) -> dict[str, Any]:
    """The event of a field that is final."""
    return {"type": "field", "pointer": plain_pointer(end.path), "value": end.value}


@final
@dataclass(slots=True)
class Answer:
    """An answer as it is collected.

    Attributes:
        vocabulary: of its tokens.
        steps: with their scores, if they were wanted.
        fields: those that are final, if they were wanted.
        weighed: what is known at the end.
    """

    vocabulary: Vocabulary
    steps: list[Step] = field(default_factory=list)
    fields: list[FieldEnd] = field(default_factory=list)
    weighed: Weighed = field(default_factory=Weighed)
    _result: Result | None = None

    def note(self, item: Item) -> None:
        """Add an item."""
        match item:
            case Scored():
                self.steps += item.steps
            case FieldEnd():
                self.fields.append(item)
            case Weighed():
                self.weighed = item
            case Result():
                self._result = item

    @property
    def result(self) -> Result:
        """The result; only once the answer is complete."""
        if self._result is None:
            raise RuntimeError("the answer is not complete")
        return self._result

    def report(self, task: Task, *, in_full: bool) -> dict[str, Any] | None:
        """The member ``structgen`` of this answer in the response.

        For who asks for no more, the token from which on the limit decided; None if it decided nothing.
        """
        if not in_full:
            return None if self.result.cut_at is None else {"cut_at": self.result.cut_at}
        result = self.result
        held: dict[str, Any] = {
            "seed": task.seed,
            "tokens": result.stats.tokens,
            "forced_tokens": result.stats.forced,
            "forwards": result.stats.forwards,
            "logprob": _finite(result.logprob),
            "log_z": _finite(result.log_z),
            "unscored_steps": result.unscored,
            "cut_at": result.cut_at,
        }
        if task.has_events:
            held["fields"] = [field_event(end) for end in self.fields]
        if task.has_marginals:
            held["marginals"] = [
                {"pointer": plain_pointer(end.path), "values": _shares(shares)}
                for end, shares in self.weighed.marginals
            ]
        if (samples := self.weighed.samples) is not None:
            held |= {
                "log_evidence": None if samples.log_evidence is None else _finite(samples.log_evidence),
                "lossless": samples.lossless,
                "ess": samples.ess,
                "samples": [
                    {"text": sample.result.text, "weight": float(weight), "log_weight": _finite(sample.log_weight)}
                    for weight, sample in zip(samples.weights, samples.samples, strict=True)
                ],
            }
        return held


def _shares(shares: Mapping[Any, float] | None) -> list[dict[str, Any]] | None:
    if shares is None:
        return None
    ordered = sorted(shares.items(), key=lambda each: -each[1])
    return [{"value": value, "probability": share} for value, share in ordered]


def usage(tasks: Sequence[Task], answers: Sequence[Answer]) -> dict[str, Any]:
    """The tokens of several answers, and of their prompts: of each prompt once, whatever the number of its answers."""
    prompts = {id(task.tokens): task.tokens for task in tasks}  # two equal prompts are two
    prompt, tokens = sum(map(len, prompts.values())), sum(answer.result.stats.tokens for answer in answers)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": tokens,
        "total_tokens": prompt + tokens,
        "completion_tokens_details": {"forced_tokens": sum(answer.result.stats.forced for answer in answers)},
    }

"""A model whose logits are adjusted by the tokens so far: repetition penalties, and a bias for some tokens.

For clients of servers, which send such settings.  The logits of a position are still a function of the tokens before
it, so everything that runs on a ``LanguageModel``, trees of draft tokens included, runs on an ``AdjustedModel``.

Sources: N. S. Keskar et al., "CTRL" (arXiv 1909.05858), section 4.1, for the penalty that divides; OpenAI's API
reference for those that are subtracted and for the bias; the order is that of vLLM.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, final

import numpy as np

from structgen.models.protocol import TreeSession
from structgen.models.session import PackedSession, can_branch, check_kept, treeless

if TYPE_CHECKING:
    from structgen.engine.vocabulary import Vocabulary
    from structgen.models.pass_times import PassTimes
    from structgen.models.protocol import LanguageModel, Logits, Prompt, Session
    from structgen.models.protocol.tree import TokenTree

__all__ = ["AdjustedModel", "AdjustedSession", "Adjustments"]


@final
@dataclass(frozen=True, slots=True)
class Adjustments:
    """The adjustments of the logits at each position, in this order.

    Attributes:
        repetition: logits of tokens that occur in prompt or output are divided by it where they are positive, and
            multiplied by it elsewhere; 1 changes nothing.
        frequency: subtracted from the logit of a token, times how often the output has it.
        presence: subtracted from the logits of the tokens that the output has.
        bias: added to the logits of these tokens.

    Raises:
        ValueError: ``repetition`` is not positive.
    """

    repetition: float = 1.0
    frequency: float = 0.0
    presence: float = 0.0
    bias: Mapping[int, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.repetition > 0:
            raise ValueError(f"repetition must be positive; found {self.repetition}")

    def __bool__(self) -> bool:
        """Whether they change anything."""
        return self != _NONE

    def apply(self, logits: Logits, tokens: Sequence[int], prompt: int) -> None:
        """Adjust one row in place; O(tokens).

        Args:
            logits: float32 ``[size]``.
            tokens: all tokens before the position.
            prompt: how many of them are the prompt.
        """
        if self.repetition != 1:
            seen = np.unique(np.asarray(tokens, dtype=np.intp))
            held = logits[seen]
            logits[seen] = np.where(held > 0, held / self.repetition, held * self.repetition)
        if self.frequency or self.presence:
            written, counts = np.unique(np.asarray(tokens[prompt:], dtype=np.intp), return_counts=True)
            logits[written] -= (self.frequency * counts + self.presence).astype(np.float32)
        for token, value in self.bias.items():
            logits[token] += value


_NONE = Adjustments()


@final
class AdjustedModel:
    """A ``LanguageModel`` with adjusted logits, for outputs after one prompt.

    Args:
        model: the model.
        adjustments: of its logits.
        prompt: how many tokens the prompt has; the logits within it are adjusted as if there were no output.
    """

    def __init__(self, model: LanguageModel, adjustments: Adjustments, *, prompt: int) -> None:
        self.model = model
        self.adjustments = adjustments
        self.prompt = prompt
        self.name = model.name
        self.vocabulary: Vocabulary = model.vocabulary
        self.max_context = model.max_context

    @property
    def pass_times(self) -> PassTimes | None:
        """Those of the model."""
        return getattr(self.model, "pass_times", None)

    def encode_prompt(self, prompt: Prompt, /, *, chat: bool = True) -> list[int]:
        """See ``LanguageModel.encode_prompt``."""
        return self.model.encode_prompt(prompt, chat=chat)

    def start(self) -> AdjustedSession:
        """See ``LanguageModel.start``."""
        return AdjustedSession(self, self.model.start())

    def __repr__(self) -> str:
        return f"AdjustedModel({self.model!r}, {self.adjustments!r}, prompt={self.prompt})"


@final
class AdjustedSession(PackedSession):
    """One sequence of an ``AdjustedModel``.

    Args:
        model: the model.
        inner: the session of the wrapped model, which holds ``tokens``.
        tokens: the sequence.
    """

    def __init__(self, model: AdjustedModel, inner: Session, tokens: Sequence[int] = ()) -> None:
        self._model = model
        self._inner = inner
        self._tokens = list(tokens)
        self._tree: TokenTree | None = None

    @property
    def length(self) -> int:
        """Tokens in the sequence."""
        return self._inner.length

    @property
    def forwards(self) -> int:
        """Forward passes that this session has run; a fork starts at zero."""
        return self._inner.forwards

    @property
    def cuts_freely(self) -> bool:
        """Whether ``truncate`` of the wrapped session costs nothing."""
        return bool(getattr(self._inner, "cuts_freely", True))

    @property
    def can_branch(self) -> bool:
        """See ``TreeSession.can_branch``, of the wrapped session."""
        return can_branch(self._inner)

    def _run(self, token_ids: Sequence[int], *, all_positions: bool, tree: TokenTree | None = None) -> Logits:
        if tree is not None:
            if not can_branch(self._inner):
                raise treeless(name=self._model.name)
            rows = self._inner.extend_tree(token_ids, tree, all_positions=all_positions)
        elif all_positions:
            rows = self._inner.extend_all(token_ids)
        else:
            rows = self._inner.extend(token_ids)[None]
        self._tree = tree
        before = len(self._tokens)
        self._tokens.extend(map(int, token_ids))
        apply, prompt = self._model.adjustments.apply, self._model.prompt
        ends = range(before + 1 if all_positions else len(self._tokens), len(self._tokens) + 1)
        for row, end in zip(rows, ends, strict=False):
            apply(row, self._tokens[:end], prompt)
        if tree is None:
            return rows if all_positions else rows[0]
        paths: list[list[int]] = []
        for row, token, parent in zip(rows[len(ends) :], tree.token_ids, tree.parents, strict=True):
            paths.append([*(self._tokens if parent < 0 else paths[parent]), int(token)])
            apply(row, paths[-1], prompt)
        return rows

    def keep(self, nodes: Sequence[int], /) -> None:
        """See ``TreeSession.keep``."""
        tree, self._tree = check_kept(nodes, tree=self._tree, name=self._model.name), None
        if not isinstance(self._inner, TreeSession):
            raise treeless(name=self._model.name)
        self._inner.keep(nodes)
        self._tokens.extend(int(tree.token_ids[node]) for node in nodes)

    def truncate(self, length: int, /) -> None:
        """See ``Session.truncate``."""
        self._inner.truncate(length)
        self._tree = None
        del self._tokens[length:]

    def fork(self) -> AdjustedSession:
        """See ``Session.fork``."""
        return AdjustedSession(self._model, self._inner.fork(), self._tokens)

    def close(self) -> None:
        """See ``Session.close``."""
        self._inner.close()
        self._tree = None
        self._tokens.clear()

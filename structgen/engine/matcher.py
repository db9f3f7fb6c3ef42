"""The moving state of one sequence over a Constraint."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from structgen_kernels import _native

from structgen.engine.explanation import Explanation, describe_bytes
from structgen.errors import VocabularyError

if TYPE_CHECKING:
    from structgen.engine.constraint import Constraint

__all__ = ["Matcher", "fill_masks"]

_NEAREST: Final = 6


class Matcher(_native.Matcher):
    """The only mutable object: which tokens one sequence has taken so far.

    Made by ``Constraint.matcher()``.  Masks are rows of int32 words: bit ``i & 31`` of word ``i >> 5`` is set when
    token ``i`` may come next; a row has ``ceil(V / 32)`` words and its bits from ``V`` on are zero.

    The native methods ``accept(token_id) -> bool``, ``accept_bytes(data) -> int``, ``validate(token_ids) -> int``,
    ``rollback(count)``, ``reset()``, ``fill_mask(bitmask, row=0)``, ``fill_mask_within(bitmask, row, budget)``,
    ``needs_budget_mask(budget)``, ``forced_bytes()``, ``is_accepting`` and ``is_terminated`` release the GIL where
    they work.  A refused ``accept`` leaves the state as it was.

    A Matcher belongs to one thread at a time; Matchers of one Constraint may be used in different threads.
    """

    __slots__ = ("_constraint",)
    _constraint: Constraint  # set by what makes it: an __init__ in Python would cost as much as a mask

    @property
    def constraint(self) -> Constraint:
        """The Constraint that this Matcher moves over."""
        return self._constraint

    def fork(self) -> Matcher:
        """Return an independent Matcher in the same state, with the same history."""
        copy = Matcher(self)
        copy._constraint = self._constraint
        return copy

    def forced_tokens(self) -> list[int]:
        """Return the canonical tokens of the text that every continuation begins with.

        The text of ``forced_bytes()`` is tokenized as the tokenizer would, and tokens are dropped from its end for
        as long as some token of the vocabulary could begin inside the dropped part and reach beyond the forced
        text: there the choice is the model's.  Every returned token is allowed in turn.
        """
        forced = self.forced_bytes()
        if not forced:
            return []
        try:
            tokens = self._constraint.vocabulary.tokenize(forced)
        except VocabularyError:
            return []
        starts = [0]
        for token in tokens:
            starts.append(starts[-1] + len(self._constraint.vocabulary.tokens[token]))
        return tokens[: self.uncertain_from(forced, starts[:-1])]

    def explain(self, token_or_bytes: int | bytes) -> Explanation:
        """Say whether a token id or a text may come next, and if not, what is expected where.

        Raises:
            VocabularyError: the id is out of range.
        """
        vocabulary = self._constraint.vocabulary
        probe = self.fork()
        if isinstance(token_or_bytes, bytes):
            subject, symbol = token_or_bytes, None
        else:
            if not 0 <= token_or_bytes < vocabulary.size:
                raise VocabularyError(
                    "explain",
                    f"token {token_or_bytes} is out of range",
                    evidence=f"the vocabulary has {vocabulary.size} tokens",
                )
            subject, symbol = vocabulary.tokens[token_or_bytes], token_or_bytes
        if symbol is not None and not subject:
            subject = vocabulary.special.get(symbol, f"<[{symbol}]>").encode()
            allowed = probe.accept(symbol)
            accepted = len(subject) if allowed else 0
        else:
            accepted = probe.accept_bytes(subject)
            allowed = accepted == len(subject)
            if symbol is not None:
                allowed = self.validate([symbol]) == 1
        specials = tuple(vocabulary.special[token] for token in probe.live_specials())
        expected = describe_bytes(probe.live_bytes(), accepting=probe.is_accepting, specials=specials)
        nearest = () if allowed else self._constraint.nearest_tokens(self, subject[: accepted + 1], _NEAREST)
        return Explanation(subject, allowed, accepted, expected, probe.open_rules(), nearest)

    def open_rules(self) -> tuple[str, ...]:
        """Return the names of the rules that are open, outermost first, along one of the possible readings.

        Grammars that share an engine share call stacks of equal content, whatever their rules are called; so what
        was accepted is read once more in an engine of its own.  Costs a compilation.
        """
        alone = self._constraint.alone().matcher()
        alone.replay(self)
        return tuple(filter(None, alone.rule_path()))

    def __repr__(self) -> str:
        state = "terminated" if self.is_terminated else "accepting" if self.is_accepting else "open"
        return f"Matcher({self.history_length} tokens, {state})"


def fill_masks(matchers: Sequence[Matcher], bitmask: Any) -> None:
    """Fill row ``i`` of ``bitmask`` for ``matchers[i]``, on all processors of the process, without the GIL.

    Args:
        matchers: at most as many as ``bitmask`` has rows; they may belong to different constraints on vocabularies
            of the same size.
        bitmask: int32 array or CPU tensor, contiguous, ``[rows, ceil(V / 32)]``.

    Raises:
        IndexError: there are more matchers than rows.
        ValueError: the rows have the wrong width.
    """
    _native.fill_masks(list(matchers), bitmask)

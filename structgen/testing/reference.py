"""The reference implementation: slow, simple, and compared with every fast path.

A :class:`ReferenceMatcher` reads bytes and special tokens one by one and keeps those prefixes that can
still be completed to a string of the grammar. It shares no code with the engine: rules, sequences, choices
and repetitions are recognised by Earley's algorithm (``earley.py``); characters, intersections, complements
and JSON strings by derivatives (``derivatives.py``).

Two facts give the promise about prefixes. Earley's items are all reachable: each belongs to a derivation
that agrees with what was read. And terms without strings are never entered, so every item can be completed.
``structgen.testing.small_scope`` states the meaning a third time, by set algebra alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from structgen.grammar.nodes import Grammar
from structgen.testing.derivatives import Algebra, Symbol
from structgen.testing.earley import Recogniser

__all__ = ["ReferenceMatcher"]


class ReferenceMatcher:
    """Reads one sequence under a grammar, byte by byte, with no regard to speed.

    Args:
        grammar: any closed term.
        special: the special tokens of a vocabulary, id to text, so that a ``SpecialToken`` by id and one by text
            are the same symbol.
        algebra: expressions and their cached derivatives, which matchers of similar grammars may share.

    Raises:
        GrammarError: a reference is unbound, or an intersection, complement or JSON string is recursive.

    Complexity: that of Earley's algorithm, at most cubic in the bytes read for a fixed grammar.

    >>> from structgen.grammar.nodes import Reference, Rules, choice, sequence
    >>> m = ReferenceMatcher(Rules({"s": choice("x", sequence("(", Reference("s"), ")"))}, Reference("s")))
    >>> m.accept_bytes(b"((x)x"), m.is_accepting, m.allowed_bytes()
    (4, False, {41})
    """

    def __init__(
        self, grammar: Grammar, special: Mapping[int, str] | None = None, *, algebra: Algebra | None = None
    ) -> None:
        self._special = dict(special or {})
        self._recogniser = Recogniser(grammar, self._special, algebra)
        self._history = [self._recogniser.start]

    @property
    def is_accepting(self) -> bool:
        """Whether the text so far is a string of the grammar."""
        return self._history[-1].is_accepting

    @property
    def is_live(self) -> bool:
        """Whether the text so far can be completed; false only at the start of an empty language."""
        return bool(self._history[-1].items)

    def advance(self, byte: int) -> bool:
        """Read ``byte`` if some string continues with it; otherwise change nothing."""
        return self._move(byte)

    def advance_special(self, token: int | str) -> bool:
        """Read the special token with this id or text, as :meth:`advance` reads a byte."""
        return self._move(self._recogniser.special(token))

    def accept_bytes(self, data: bytes) -> int:
        """Read ``data`` up to the first byte that no string continues with; return how many bytes were read."""
        for count, byte in enumerate(data):
            if not self.advance(byte):
                return count
        return len(data)

    def rollback(self, count: int) -> None:
        """Forget the last ``count`` symbols.

        Raises:
            ValueError: fewer symbols were read.
        """
        if not 0 <= count < len(self._history):
            raise ValueError(f"rollback: {count} symbols requested; {len(self._history) - 1} were read")
        del self._history[len(self._history) - count :]

    def fork(self) -> ReferenceMatcher:
        """Return an independent matcher that has read the same."""
        reference = object.__new__(ReferenceMatcher)
        reference._special = self._special
        reference._recogniser = self._recogniser
        reference._history = list(self._history)
        return reference

    def allowed_bytes(self) -> set[int]:
        """Return the bytes that some string continues with."""
        return self._recogniser.next_bytes(self._history[-1])

    def allows_token(self, token: bytes) -> bool:
        """Whether some string continues with all bytes of ``token``; a token without bytes is never allowed."""
        position = self._history[-1]
        for byte in token:
            following = self._recogniser.step(position, byte)
            if following is None:
                return False
            position = following
        return bool(token)

    def mask(self, tokens: Sequence[bytes], *, eos: Iterable[int] = ()) -> set[int]:
        """Return the ids of ``tokens`` that may come next, each tried on its own.

        Special tokens are those that the matcher was made with; they and ``eos`` are no text, whatever
        their bytes. An EOS id may come iff the matcher is accepting.
        """
        ending = set(eos)
        here = self._history[-1]
        allowed = ending if self.is_accepting else set()
        for identity in self._special.keys() - ending:
            if self._recogniser.step(here, self._recogniser.special(identity)) is not None:
                allowed.add(identity)
        ordinary = (i for i in range(len(tokens)) if i not in ending and i not in self._special)
        # In byte order, a token needs only to be tried from where it leaves the one before.
        before, path = b"", [here]
        for index in sorted(ordinary, key=tokens.__getitem__):
            token = tokens[index]
            while not token.startswith(before):
                before = before[:-1]
            del path[len(before) + 1 :]
            while len(path) <= len(token):
                position = self._recogniser.step(path[-1], token[len(path) - 1])
                if position is None:
                    break
                path.append(position)
            before = token[: len(path) - 1]
            if token and before == token:
                allowed.add(index)
        return allowed

    def _move(self, symbol: Symbol) -> bool:
        position = self._recogniser.step(self._history[-1], symbol)
        if position is None:
            return False
        self._history.append(position)
        return True

"""The state of one sequence over a Constraint, and why a token or a string may or may not come next."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from structgen_kernels import _native

from structgen.engine.arguments import token_out_of_range, wrong_argument
from structgen.errors import GrammarError, LimitExceeded, VocabularyError, number_of
from structgen.grammar.nodes import ByteClass

if TYPE_CHECKING:
    from structgen.engine.constraint import Constraint
    from structgen.engine.parse.open_text import NamedPart

__all__ = ["Explanation", "Matcher", "describe_bytes", "fill_mask_trees", "fill_masks", "row_temperatures"]


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why one continuation is allowed or not.

    Attributes:
        subject: the bytes of the continuation; the text of an EOS or special token.
        allowed: whether all of it may come next.
        accepted: how many of its bytes may come next.
        expected: what may come at the first refused byte, or after the subject if it is allowed; readable.
        rules: names of the open rules, outermost first.
        nearest: allowed tokens that share the longest prefix with the subject, as (id, bytes).
    """

    subject: bytes
    allowed: bool
    accepted: int
    expected: str
    rules: tuple[str, ...]
    nearest: tuple[tuple[int, bytes], ...]

    def _repr_html_(self) -> str:
        from structgen.markup import card, text_block

        return card("Explanation", text_block(str(self)))

    def __str__(self) -> str:
        if self.allowed:
            return f"{self.subject!r} is allowed; then {self.expected}"
        lines = [f"{self.subject!r} is not allowed: expected {self.expected} after {self.subject[: self.accepted]!r}"]
        if self.rules:
            lines.append("in rule " + " > ".join(self.rules))
        if self.nearest:
            lines.append("nearest allowed tokens: " + ", ".join(f"{token} {data!r}" for token, data in self.nearest))
        return "\n".join(lines)


def describe_bytes(live: bytes, *, accepting: bool, specials: tuple[str, ...] = ()) -> str:
    """Write a set of bytes as ranges, with the special tokens and the end of the output if they are possible.

    >>> describe_bytes(b"012345", accepting=True)
    "'0'..'5' or the end"
    """
    parts: list[str] = []
    for low, high in ByteClass((value, value) for value in live).ranges:
        if high - low < 2:
            parts.extend(_byte(value) for value in range(low, high + 1))
        else:
            parts.append(f"{_byte(low)}..{_byte(high)}")
    if len(parts) > _MAX_RANGES:
        parts = [*parts[:_MAX_RANGES], f"{len(parts) - _MAX_RANGES} more ranges"]
    parts.extend(f"the token {text}" for text in specials)
    if accepting:
        parts.append("the end")
    if not parts:
        return "nothing"
    return parts[0] if len(parts) == 1 else ", ".join(parts[:-1]) + " or " + parts[-1]


def _byte(value: int) -> str:
    return repr(chr(value)) if value < 0x80 else f"byte 0x{value:02x}"


_MAX_NEAREST: Final = 6
_MAX_NAMED: Final = 100
_MAX_RANGES: Final = 12
"""How many special tokens, and tokens of token sets, an explanation names."""
_MAX_BUDGET: Final = 2**31
"""A larger budget has the same masks as this one."""


def _counted(subject: str, budget: int) -> int:
    try:
        count = operator.index(budget)
    except TypeError:
        count = -1
    if count < 0:
        raise wrong_argument(subject, "budget", budget)
    return min(count, _MAX_BUDGET)


class Matcher(_native.Matcher):
    """The only mutable object of the engine: the state of one sequence after the tokens accepted so far.

    Made by ``Constraint.matcher()``.  Masks have the layout of :mod:`structgen.engine.mask`.

    ``accept(token_id) -> bool``, ``accept_bytes(data) -> int``, ``validate(token_ids) -> int``,
    ``rollback(count)``, ``reset()``, ``forced_bytes()``, ``is_accepting`` and ``is_terminated`` release the GIL where
    they work, and so does ``allowed_tokens(most) -> list[int]``, which returns up to ``most`` tokens that may come
    next, EOS left out.  A refused ``accept`` leaves the state as it was.  Ctrl-C ends long work of these and of masks,
    with the state as before.  A pickled Matcher takes again what it took; a copy is a fork.

    ``fill_mask(bitmask, row=0, *, budget=None)`` writes the mask of the next token into one row of ``bitmask``, an
    int32 array or CPU tensor, contiguous, ``[rows, ceil(V / 32)]``.  ``budget`` counts the tokens that are left, EOS
    left out: the mask then allows only tokens after which the output can still be completed within the budget; with 0
    it allows nothing but EOS.  A wrong width and a negative budget are a ``ValueError``, a missing row an
    ``IndexError``, a bound of the constraint's limits a ``LimitExceeded``, and an argument of another kind than the
    method takes an ``ArgumentError``.  ``needs_budget_mask(budget)`` and
    ``fill_mask_within(bitmask, row, budget)`` are the two halves of it.

    Equal ``state_id`` means equal continuations, unless values of earlier text matter too; states get other numbers
    after the engine has dropped them at ``Limits.states``, or the constraint has moved to an engine of its own.  Equal
    ``mask_id`` means equal masks without a budget, for all Matchers of one Constraint at any time; it is None if the
    mask depends on more than the state, such as on values that must differ from each other.

    A Matcher belongs to one thread at a time; Matchers of one Constraint may be used in different threads.
    """

    __slots__ = ("_constraint",)
    _constraint: Constraint  # set by Constraint.matcher() and fork(): an __init__ would cost as much as a mask

    @property
    def constraint(self) -> Constraint:
        """The Constraint of this Matcher."""
        return self._constraint

    def fork(self) -> Matcher:
        """Return an independent Matcher in the same state, with the same history."""
        copy = Matcher(self)
        copy._constraint = self._constraint
        return copy

    def __copy__(self) -> Matcher:
        return self.fork()

    def __deepcopy__(self, memo: object) -> Matcher:
        return self.fork()

    def __reduce__(self) -> tuple[Callable[..., Matcher], tuple[Constraint, list[int | bytes]]]:
        """A pickle holds the constraint and the accepted tokens; unpickling accepts them again."""
        return _replayed, (self._constraint, self.taken())

    def advance_forced(self, budget: int | None = None) -> list[int]:
        """Accept the forced tokens that fit into a budget, and return them.

        Stops before a token after which the output could not be completed within the budget: other tokens may spell the
        forced text shorter there.

        Args:
            budget: how many tokens are left, EOS not counted; None is no limit.

        Raises:
            ValueError: the budget is negative.
            LimitExceeded: a bound of the constraint's limits was reached; the state is as before.
        """
        budget = None if budget is None else _counted("advance_forced", budget)
        taken: list[int] = []
        try:
            for token in self.forced_tokens():
                left = _MAX_BUDGET if budget is None else budget - len(taken)
                is_tight = budget is not None and self.needs_budget_mask(left)
                if left == 0 or not self.accept(token):
                    break
                taken.append(token)
                if is_tight and not self.completes_within(left - 1):
                    self.rollback(1)
                    taken.pop()
                    break
        except LimitExceeded:
            self.rollback(len(taken))
            raise
        return taken

    def completes_within(self, budget: int) -> bool:
        """Return whether at most ``budget`` further tokens complete the text.

        The same as to compare :meth:`min_tokens`, but nothing is searched where the string that is shortest in bytes
        takes no more tokens: a few steps for each of its bytes.

        Raises:
            ValueError: the budget is negative.
            LimitExceeded: a bound of the constraint's limits was reached; the state is as before.
        """
        return super().completes_within(_counted("completes_within", budget))

    def validate_tree(self, token_ids: Sequence[int], parents: Sequence[int]) -> list[bool]:
        """Return which tokens of a tree are allowed, each after its ancestors; the state stays as it is.

        No descendant of a refused token or of EOS is allowed.

        Args:
            token_ids: the tokens.
            parents: for each token the index of its parent, which comes earlier in the list; -1 for a root.

        Raises:
            ValueError: the lengths differ, or a parent does not come before its child.
            VocabularyError: an id is out of range.
            LimitExceeded: a bound of the constraint's limits was reached; the state is as before.
        """
        return super().validate_tree(token_ids, parents)

    def fill_mask_tree(
        self, token_ids: Sequence[int], parents: Sequence[int], bitmask: Any, row: int = 0
    ) -> list[bool]:
        """Fill the masks of a tree of tokens, and return which tokens are allowed as ``validate_tree`` does.

        Mask row ``row`` is for the next token, and mask row ``row + 1 + i`` for the token after token ``i``.  A mask
        after a refused token or after EOS is empty.  Each mask is that of ``fill_mask`` without a budget.

        Complexity: at steady state a few table look-ups and one copied mask row for each token; new states are built as
        in ``fill_mask``.

        Args:
            token_ids: the tokens.
            parents: as for ``validate_tree``.
            bitmask: int32 array or CPU tensor, contiguous, ``[rows, ceil(V / 32)]``.
            row: the first of the ``1 + len(token_ids)`` mask rows.

        Raises:
            ValueError: the tree is malformed (see ``validate_tree``), or the rows have the wrong width.
            IndexError: there are too few rows.
            VocabularyError: an id is out of range.
            LimitExceeded: a bound of the constraint's limits was reached; the state is as before, and the content of
                the rows is undefined.
        """
        return super().fill_mask_tree(token_ids, parents, bitmask, row)

    def forced_tokens(self) -> list[int]:
        """Return the canonical tokens of the bytes that every continuation begins with.

        The tokenizer's tokens of ``forced_bytes()``, without those at the end that a longer token could replace: a
        token that begins there and reaches beyond the forced bytes.  Every returned token is allowed in turn.
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
        certain = tokens[: self.uncertain_from(forced, starts[:-1])]
        return certain[: self.validate(certain)] if self._constraint.native.has_budgets else certain

    def forced_text(self) -> str:
        """Return the text that every continuation begins with: the whole characters at the start of ``forced_bytes()``.

        Empty where the next byte belongs to a character that a token has begun.
        """
        forced = self.forced_bytes()
        try:
            return forced.decode()
        except UnicodeDecodeError as error:
            return forced[: error.start].decode()

    def explain(self, token_or_bytes: int | bytes) -> Explanation:
        """Say whether a token id or a string may come next, and if not, what is expected at which byte.

        Raises:
            VocabularyError: the id is out of range.
            ArgumentError: it is neither an int nor bytes.
        """
        vocabulary = self._constraint.vocabulary
        probe = self.fork()
        if isinstance(token_or_bytes, bytes):
            subject, symbol = token_or_bytes, None
        else:
            try:
                symbol = operator.index(token_or_bytes)
            except TypeError as error:
                raise wrong_argument("explain", "token_or_bytes", token_or_bytes) from error
            if not 0 <= symbol < vocabulary.size:
                raise token_out_of_range("explain", symbol, vocabulary.size)
            subject = vocabulary.tokens[symbol]
        if symbol is not None and not subject:
            subject = vocabulary.special.get(symbol, f"<[{symbol}]>").encode()
            allowed = probe.accept(symbol)
            accepted = len(subject) if allowed else 0
        else:
            accepted = probe.accept_bytes(subject)
            allowed = accepted == len(subject)
            if symbol is not None:
                allowed = self.validate([symbol]) == 1
        specials = tuple(
            vocabulary.special.get(token) or f"<[{token}]>" for token in probe.live_specials()[:_MAX_NAMED]
        )
        expected = describe_bytes(probe.live_bytes(), accepting=probe.is_accepting, specials=specials)
        nearest = () if allowed else self._constraint.nearest_tokens(self, subject[: accepted + 1], _MAX_NEAREST)
        return Explanation(subject, allowed, accepted, expected, probe.open_rules(), nearest)

    def captures(self) -> tuple[NamedPart, ...]:
        """Return the named parts so far, by start: those that are certain for every continuation.

        A part is there if every parse of every output that begins with the text so far has it from the same byte on.
        It is closed if all of them end it at the same byte; else it is open, and its text is what it has in all of
        them.  So nothing is taken back: a closed part stays, an open one only gets longer, and ``Result.captures`` of
        the whole output has them.  What only some parses have is left out until the text decides.

        Inside intersections, complements and values that must differ, the set of possible parses is over-approximated,
        so fewer parts may be certain.

        Raises:
            LimitExceeded: the parse takes more than ``Limits.steps``.

        Complexity: a parse of the text so far, in plain Python, 10 to 50 microseconds a byte; polynomial for every
        grammar.
        """
        from structgen.engine.parse.open_text import parts_of_tokens

        constraint, taken, is_over = self._constraint, self.taken(), self.is_terminated
        if is_over and taken:
            del taken[-1]  # EOS
        texts, special = constraint.vocabulary.tokens, constraint.vocabulary.special
        return parts_of_tokens(constraint.grammar, taken, texts, special, constraint.limits, is_over=is_over)

    def open_rules(self) -> tuple[str, ...]:
        """Return the names of the open rules, outermost first, of one of the possible parses.

        Grammars in one engine share call stacks of equal content and so lose rule names: the accepted bytes are parsed
        again in an engine of its own.  Costs a compilation.
        """
        alone = self._constraint.alone().matcher()
        alone.replay(self)
        return tuple(filter(None, alone.rule_path()))

    def __repr__(self) -> str:
        state = "terminated" if self.is_terminated else "accepting" if self.is_accepting else "open"
        return f"Matcher({number_of(self.history_length, 'token')}, {state})"


def _replayed(constraint: Constraint, taken: Sequence[int | bytes]) -> Matcher:
    matcher = constraint.matcher()
    for step in taken:
        if not (matcher.accept_bytes(step) if isinstance(step, bytes) else matcher.accept(step)):
            raise GrammarError(
                "matcher",
                "its constraint refuses what the pickled matcher had accepted",
                evidence=f"step {matcher.history_length} is {step!r}",
                remedy="pickle and unpickle with the same version",
            )
    return matcher


def fill_masks(matchers: Sequence[Matcher], bitmask: Any, *, budget: int | None = None) -> None:
    """Fill mask row ``i`` of ``bitmask`` for ``matchers[i]``, on all processors of the process, without the GIL.

    Args:
        matchers: at most as many as there are rows; their constraints may differ, on vocabularies of equal size.
        bitmask: int32 array or CPU tensor, contiguous, ``[rows, ceil(V / 32)]``.
        budget: as for ``Matcher.fill_mask``, the same for all.  Masks that depend on it are filled one by one.

    Raises:
        IndexError: there are more matchers than rows.
        ValueError: the rows have the wrong width, or the budget is negative.
        LimitExceeded: a limit of some constraint was reached.  The error's ``rows`` are those of the matchers that met
            one, and allow nothing; all other rows are filled, and all matchers are as before.
    """
    try:
        alone: Sequence[int] = range(len(matchers))  # filled one by one
    except TypeError as error:
        raise wrong_argument("fill_masks", "matchers", matchers) from error
    if budget is not None:
        budget = _counted("fill_masks", budget)
    try:
        tight = [] if budget is None else [row for row in alone if matchers[row].needs_budget_mask(budget)]
        if not tight or len(tight) < len(matchers):
            _native.fill_masks(matchers, bitmask)
        alone = tight
    except AttributeError as error:  # something else than a matcher is among them
        raise wrong_argument("fill_masks", "matchers", matchers) from error
    except LimitExceeded as error:
        if len(matchers) == 1:
            bitmask[0] = 0
            error.rows = (0,)
            raise
    met: list[int] = []
    first: LimitExceeded | None = None
    for row in alone:
        try:
            matchers[row].fill_mask(bitmask, row, budget=budget)
        except LimitExceeded as error:
            bitmask[row] = 0
            met.append(row)
            first = first or error
    if first is not None:
        first.rows = tuple(met)
        raise first


def row_temperatures(matchers: Sequence[Matcher], *, default: float = 1.0) -> list[float]:
    """Return for each matcher the temperature at which its next token is to be sampled; goes with ``fill_masks``.

    That is ``Matcher.temperature()``, the temperature of the innermost part of the grammar (``Tempered``) that the
    token may belong to; 0 means the most probable token.

    Args:
        matchers: the rows of a batch.
        default: the temperature of the request, which holds outside such parts.

    Raises:
        ValueError: ``default`` is negative or not finite.
        LimitExceeded: a bound of some constraint's limits was reached; all matchers are as before.
    """
    if not 0 <= default < float("inf"):
        raise ValueError(f"row_temperatures: default is {default!r}; give a finite number that is not negative")
    found = [matcher.temperature() if matcher.constraint.has_temperatures else None for matcher in matchers]
    return [default if temperature is None else temperature for temperature in found]


def fill_mask_trees(
    matchers: Sequence[Matcher], trees: Sequence[tuple[Sequence[int], Sequence[int]]], bitmask: Any
) -> list[list[bool]]:
    """Fill the masks of a tree of tokens for each matcher, on all processors as ``fill_masks`` does.

    Args:
        matchers: as for ``fill_masks``.
        trees: for each matcher token ids and parents, as for ``Matcher.fill_mask_tree``.
        bitmask: int32 array or CPU tensor, contiguous, ``[rows, ceil(V / 32)]``.  A tree of ``n`` tokens fills
            ``n + 1`` rows; the trees follow each other.

    Returns:
        For each tree which tokens are allowed.

    Raises:
        IndexError: there are too few rows.
        ValueError: a tree is malformed, there are not as many trees as matchers, or the rows have the wrong width.
        VocabularyError: an id is out of range.
        LimitExceeded: a bound of some constraint's limits was reached; all matchers are as before.
    """
    return _native.fill_mask_trees(matchers, trees, bitmask)

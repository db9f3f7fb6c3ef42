"""Monitors: from a trigger to the end of the identifier, what is written is one of the strings that a provider names.

Identifiers are read by a regular expression whose automaton over bytes is made where it is reached.

Source: L. A. Agrawal, A. Kanade, N. Goyal, S. K. Lahiri, S. K. Rajamani, "Guiding Language Models of Code with Global
Context using Monitors" (NeurIPS 2023, arXiv 2306.10763).  The paper masks tokens by prefix; here identifiers, triggers
and tokens need not begin or end together, and a finished identifier must be one of the strings.
"""

from __future__ import annotations

import codecs
from collections import OrderedDict
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias, TypeVar, final

import numpy as np
from numpy.typing import NDArray

from structgen.engine import Vocabulary, compile
from structgen.errors import GenerationError, StructgenError
from structgen.frontends.regex import regex
from structgen.methods.monitors.bytewise_potential import BytewisePotential, Options, token_index

if TYPE_CHECKING:
    from structgen.decode.potentials.potential import Hypothesis
    from structgen.engine import Matcher

__all__ = ["LazyAutomaton", "LazyState", "Monitor", "Provider", "Trigger", "monitor", "rest_of_character"]

_CONTINUATION: Final = (0x80, 0xBF)
_MAX_STATES: Final = 1 << 16


@final
class LazyState:
    """A state: what has been read so far can still become a member.

    Attributes:
        is_accepting: what has been read is a member.
    """

    __slots__ = ("_automaton", "_boundary", "_matcher", "_next", "is_accepting")

    def __init__(self, automaton: LazyAutomaton, matcher: Matcher) -> None:
        self._automaton = automaton
        self._matcher = matcher
        self._next: dict[int, LazyState | None] = {}
        self._boundary: NDArray[np.bool_] | None = None
        self.is_accepting = matcher.is_accepting

    def after(self, data: bytes) -> LazyState | None:
        """Return the state after more bytes; None where nothing that begins so is a member."""
        node: LazyState | None = self
        for byte in data:
            if node is None:
                return None
            node = node._next[byte] if byte in node._next else node._step(byte)
        return node

    def may_refuse(self, prefix: bytes) -> bool:
        """Whether some character that begins with these bytes leads to no state; False if no character does.

        Complexity: O(states that the character's bytes lead to), 64 bytes each.
        """
        rest = rest_of_character(prefix)
        if rest is None:
            return False
        node = self.after(prefix)
        level = {node}
        for low, high in rest:
            if None in level:
                return True
            level = {each.after(bytes([byte])) for each in level if each for byte in range(low, high + 1)}
        return None in level

    @property
    def boundary(self) -> NDArray[np.bool_]:
        """With which bytes a character may begin that leads to no state, ``[256]``."""
        if self._boundary is None:
            self._boundary = np.array([self.may_refuse(bytes([byte])) for byte in range(256)])
        return self._boundary

    def _step(self, byte: int) -> LazyState | None:
        matcher = self._matcher.fork()
        found = self._automaton.node(matcher) if matcher.accept(byte) else None
        self._next[byte] = found
        return found


@final
class LazyAutomaton:
    """Makes the states of a regular expression.

    Args:
        pattern: in Python's dialect.

    Attributes:
        start: the state before any input.

    Raises:
        GrammarError: the pattern is wrong, or not a regular one.
    """

    def __init__(self, pattern: str) -> None:
        self._nodes: dict[int | None, LazyState] = {}
        self.start = self.node(compile(regex(pattern), _bytes()).matcher())

    def node(self, matcher: Matcher) -> LazyState:
        """Return the state that ``matcher`` is in; it must not move any more."""
        # Unlike the number of a state it is not given again when the engine has forgotten its states.
        number = matcher.mask_id
        known = self._nodes.get(number)
        if known is None:
            if len(self._nodes) >= _MAX_STATES:
                self._nodes.clear()  # those that are in use stay where they are
            known = self._nodes[number] = LazyState(self, matcher)
        return known


def rest_of_character(prefix: bytes) -> tuple[tuple[int, int], ...] | None:
    """The ranges of the bytes that are missing to a character of UTF-8; None if no character begins so.

    ``prefix`` has at least one byte, and all but its last are the prefix of a character.
    """
    first, count = prefix[0], len(prefix)
    if first < 0x80:
        return () if count == 1 else None
    if not 0xC2 <= first <= 0xF4:
        return None
    second = {0xE0: (0xA0, 0xBF), 0xED: (0x80, 0x9F), 0xF0: (0x90, 0xBF), 0xF4: (0x80, 0x8F)}.get(first, _CONTINUATION)
    length = 2 if first < 0xE0 else 3 if first < 0xF0 else 4
    ranges = (second, *[_CONTINUATION] * (length - 2))
    if count > length or not all(low <= byte <= high for byte, (low, high) in zip(prefix[1:], ranges, strict=False)):
        return None
    return ranges[count - 1 :]


@lru_cache(maxsize=1)
def _bytes() -> Vocabulary:
    return Vocabulary([bytes([byte]) for byte in range(256)])


Provider: TypeAlias = Callable[[str], "Iterable[str] | None"]
Trigger: TypeAlias = "str | Callable[[str], bool]"

_KEPT_ANSWERS: Final = 1024
_KEPT_ROWS: Final = 512
_SHOWN: Final = 60
_NOT_QUERIED: Final = object()

_Answer = TypeVar("_Answer")


class _MonitorState(NamedTuple):
    """Where the output stands.

    Attributes:
        trigger: in the automaton of the trigger; None where that is a function.
        pending: the bytes of a character that is not complete.
        options: the identifier must be one of them; None outside of identifiers.
        opened: where the identifier begins.
        node: the identifier so far, in the automaton of identifiers; None outside.
    """

    trigger: LazyState | None
    pending: bytes = b""
    options: Options | None = None
    opened: int = 0
    node: LazyState | None = None


@final
class Monitor(BytewisePotential[_MonitorState]):
    """The potential that :func:`monitor` makes."""

    def __init__(self, trigger: Trigger, provider: Provider, identifier: str, name: str) -> None:
        super().__init__()
        self._provider = provider
        self._name = name
        self._fires = None if isinstance(trigger, str) else trigger
        self._trigger = LazyAutomaton(f"(?s:.*)(?:{trigger})").start if isinstance(trigger, str) else None
        self._identifier = LazyAutomaton(identifier).start
        self._answers: OrderedDict[str, Options | None] = OrderedDict()
        self._rows: OrderedDict[tuple[bytes, Options, bytes], NDArray[np.int32]] = OrderedDict()

    @property
    def name(self) -> str:
        """See ``Potential``."""
        return self._name

    def allowed(self, hypothesis: Hypothesis, /) -> NDArray[np.int32] | None:
        """See ``Potential``: within an identifier, what goes on with an option or ends one."""
        state = self._at(hypothesis)
        if state is None or state.options is None or state.node is None or state.pending:
            return None
        options, node, written = state.options, state.node, hypothesis.data[state.opened :]
        key = hypothesis.vocabulary.digest, options, written
        row = self._rows.get(key)
        if row is None:

            def boundary(rest: bytes) -> NDArray[np.bool_]:
                after = node.after(rest)
                return after.boundary if after is not None else np.ones(256, dtype=np.bool_)

            index = token_index(hypothesis.vocabulary)
            row = index.choices(options.after(written), boundary, ends=written in options)
            self._rows[key] = row
            if len(self._rows) > _KEPT_ROWS:
                self._rows.popitem(last=False)
        else:
            self._rows.move_to_end(key)
        return row

    def _begin(self) -> _MonitorState | None:
        """See ``Reading``: the trigger may match nothing at all."""
        return self._opened(_MonitorState(self._trigger), b"", 0)

    def _read(self, state: _MonitorState, data: bytes, start: int) -> _MonitorState | None:
        """See ``Reading``: character by character."""
        at = start - len(state.pending)
        text, taken = codecs.utf_8_decode(data[at:], "surrogateescape", False)
        end = at + taken
        found: _MonitorState | None = state._replace(pending=b"")
        for character in text:
            raw = character.encode("utf-8", "surrogateescape")
            at += len(raw)
            if found is not None:
                found = self._after(found, raw, data, at)
            if found is None:
                return None
        if found is None or end == len(data):
            return found
        return self._with_pending(found, data, end)

    def _may_end(self, state: _MonitorState, data: bytes) -> bool:
        """See ``Reading``: an identifier must be whole."""
        return state.options is None or (not state.pending and data[state.opened :] in state.options)

    def _after(self, state: _MonitorState, raw: bytes, data: bytes, at: int) -> _MonitorState | None:
        """The state after a character, which ends at ``at``; None where it is forbidden."""
        if self._trigger is not None and state.trigger is not None:
            # What is no character belongs to no match, so that a match begins after it at the earliest.
            state = state._replace(trigger=state.trigger.after(raw) or self._trigger)
        if state.options is not None and state.node is not None:
            if _is_broken(raw):
                return None
            node = state.node.after(raw)
            if node is not None:
                return state._replace(node=node) if state.options.begins(data[state.opened : at]) else None
            if data[state.opened : at - len(raw)] not in state.options:
                return None
            state = _MonitorState(state.trigger)
        return self._opened(state, data, at)

    def _opened(self, state: _MonitorState, data: bytes, at: int) -> _MonitorState | None:
        """The state with an identifier that begins at ``at``, if the trigger matches and the provider has a say."""
        if self._fires is None:
            if state.trigger is None or not state.trigger.is_accepting:
                return state
            text = data[:at].decode("utf-8", "replace")
        else:
            text = data[:at].decode("utf-8", "replace")
            if not self._ask(self._fires, "trigger", text):
                return state
        options = self._options(text)
        if options is None:
            return state
        return _MonitorState(state.trigger, b"", options, at, self._identifier) if len(options) else None

    def _with_pending(self, state: _MonitorState, data: bytes, end: int) -> _MonitorState | None:
        """The state with the bytes after ``end``, which begin a character."""
        pending = data[end:]
        if state.options is not None and state.node is not None and not state.options.begins(data[state.opened :]):
            is_whole = data[state.opened : end] in state.options
            if not is_whole or not state.node.may_refuse(pending):
                return None
        return state._replace(pending=pending)

    def _options(self, text: str) -> Options | None:
        """What the provider answers, asked once."""
        known = self._answers.get(text, _NOT_QUERIED)
        if known is not _NOT_QUERIED:
            return self._answers[text]
        answer = self._ask(lambda so_far: self._checked(self._provider(so_far)), "provider", text)
        self._answers[text] = answer
        if len(self._answers) > _KEPT_ANSWERS:
            self._answers.popitem(last=False)
        return answer

    def _checked(self, answer: Iterable[str] | None) -> Options | None:
        """The strings as bytes.

        Raises:
            ValueError: one of them is no identifier, so that it could never be written.
        """
        if answer is None:
            return None
        if isinstance(answer, str):
            raise ValueError(f"it returned a text, {answer!r:.60}, and not several")
        options = Options(option.encode() for option in answer)
        for option in options.members:
            if self._identifier.after(option) is None:
                raise ValueError(
                    f"option {option.decode()!r} is not what identifiers look like; widen `identifier` or leave it out"
                )
        return options

    def _ask(self, function: Callable[[str], _Answer], what: str, text: str) -> _Answer:
        try:
            return function(text)
        except StructgenError:
            raise
        except Exception as error:
            raise GenerationError(
                f"monitor {self._name}",
                f"its {what} raised {type(error).__name__}: {error}",
                evidence=f"for {_shown(text)}",
                remedy="let it return None where it does not know",
            ) from error


def monitor(trigger: Trigger, provider: Provider, *, identifier: str = r"\w+", name: str = "") -> Monitor:
    r"""Make a potential that allows, from each trigger to the end of an identifier, only what ``provider`` names.

    An identifier begins where the trigger's match ends and goes on for as long as what is written can still become a
    member of ``identifier``; the character after that ends it, and may be part of the next trigger.  It must then be
    one of the strings that the provider returned for the text up to the trigger; ``""`` among them says that none
    need follow.  Triggers within an identifier are not looked at.  An output may end within an identifier only if
    that is a whole one.  The identifier and the character after it must be UTF-8.

    ``prefix`` is minus infinity where nothing that begins so can be allowed.  Elsewhere something can be, namely the
    identifier's rest and then the end, if the grammar allows that; but for a character with some bytes
    missing, where what its end triggers is not known yet.

    Args:
        trigger: a regex that some part of the text must match which ends at the trigger point, and which is found
            again by reading on, however long the text is; or a function of the text up to a point, which is asked
            after every character outside of identifiers.
        provider: given the text up to the trigger point, the strings that may follow.  No strings at all mean that
            nothing may follow, so that the trigger itself is blocked.  None means that it has no opinion.  It must be
            pure: it is asked once about a text.
        identifier: a regex for what identifiers look like.
        name: what messages call it.

    Raises:
        GrammarError: a regex is wrong, or uses what no automaton can do; give a function as trigger then.

    Example:
        >>> members = {"user": ["name", "email"], "order": ["id", "total"]}
        >>> attributes = monitor(r"(user|order)\.", lambda text: members[text[:-1].split()[-1]])
    """
    return Monitor(trigger, provider, identifier, name or getattr(provider, "__name__", repr(provider)))


def _is_broken(raw: bytes) -> bool:
    """Whether it is a byte that belongs to no character."""
    return len(raw) == 1 and raw[0] >= 0x80


def _shown(text: str) -> str:
    return repr(text) if len(text) <= _SHOWN else f"{len(text)} characters that end with {text[-_SHOWN:]!r}"

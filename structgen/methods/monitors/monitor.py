"""Monitors: from a trigger to the end of an identifier, the output must be one of the strings of a provider.

Identifiers are matched by a regular expression, whose byte automaton is built lazily.

Source: L. A. Agrawal, A. Kanade, N. Goyal, S. K. Lahiri, S. K. Rajamani, "Guiding Language Models of Code with Global
Context using Monitors" (NeurIPS 2023, arXiv 2306.10763). The paper masks tokens by prefix; here identifiers, triggers
and tokens may overlap in any way, and a finished identifier must be one of the strings.
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
    """A state: the input so far can still become a match.

    Attributes:
        is_accepting: whether the input so far is a match.
    """

    __slots__ = ("_automaton", "_boundary", "_matcher", "_next", "is_accepting")

    def __init__(self, automaton: LazyAutomaton, matcher: Matcher) -> None:
        self._automaton = automaton
        self._matcher = matcher
        self._next: dict[int, LazyState | None] = {}
        self._boundary: NDArray[np.bool_] | None = None
        self.is_accepting = matcher.is_accepting

    def after(self, data: bytes) -> LazyState | None:
        """Return the state after more bytes; None if no match has this prefix."""
        node: LazyState | None = self
        for byte in data:
            if node is None:
                return None
            node = node._next[byte] if byte in node._next else node._step(byte)
        return node

    def may_refuse(self, prefix: bytes) -> bool:
        """Whether some character that begins with these bytes leads to no state; False if no character begins so.

        Complexity: O(states that the character's bytes lead to), 64 bytes each.
        """
        rest = rest_of_character(prefix)
        if rest is None:
            return False
        level = {self.after(prefix)}
        for low, high in rest:
            if None in level:
                return True
            level = {each.after(bytes([byte])) for each in level if each for byte in range(low, high + 1)}
        return None in level

    @property
    def boundary(self) -> NDArray[np.bool_]:
        """The first bytes of characters that lead to no state, bool ``[256]``."""
        if self._boundary is None:
            self._boundary = np.array([self.may_refuse(bytes([byte])) for byte in range(256)])
        return self._boundary

    def _step(self, byte: int) -> LazyState | None:
        matcher = self._matcher.fork()
        state = self._automaton.state_of(matcher) if matcher.accept(byte) else None
        self._next[byte] = state
        return state


@final
class LazyAutomaton:
    """Builds the states of a regular expression on demand.

    Args:
        pattern: in Python's dialect.

    Attributes:
        start: the state before any input.

    Raises:
        GrammarError: the pattern is invalid, or not regular.
    """

    def __init__(self, pattern: str) -> None:
        self._states: dict[int | None, LazyState] = {}
        self.start = self.state_of(compile(regex(pattern), _bytes()).matcher())

    def state_of(self, matcher: Matcher) -> LazyState:
        """Return the state of ``matcher``, which must not move any more."""
        # The engine may reuse the number of a dropped state, but not a mask_id.
        number = matcher.mask_id
        state = self._states.get(number)
        if state is None:
            if len(self._states) >= _MAX_STATES:
                self._states.clear()  # states in use remain reachable
            state = self._states[number] = LazyState(self, matcher)
        return state


def rest_of_character(prefix: bytes) -> tuple[tuple[int, int], ...] | None:
    """Return the byte ranges that complete a UTF-8 character; None if no character begins so.

    ``prefix`` has at least one byte, and all but its last byte begin a character.
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

_MAX_ANSWERS: Final = 1024
_MAX_ROWS: Final = 512
_SHOWN: Final = 60
_NOT_QUERIED: Final = object()

_Answer = TypeVar("_Answer")


class _MonitorState(NamedTuple):
    """The state of a monitor after some output.

    Attributes:
        trigger: the state in the trigger's automaton; None if the trigger is a function.
        pending: the bytes of an incomplete character.
        options: the strings that the identifier may be; None outside of identifiers.
        opened: where the identifier begins.
        node: the state in the identifiers' automaton; None outside of identifiers.
    """

    trigger: LazyState | None
    pending: bytes = b""
    options: Options | None = None
    opened: int = 0
    node: LazyState | None = None


@final
class Monitor(BytewisePotential[_MonitorState]):
    """The potential of :func:`monitor`."""

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
        """See ``Potential``: within an identifier, tokens that continue an option or end one."""
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
            if len(self._rows) > _MAX_ROWS:
                self._rows.popitem(last=False)
        else:
            self._rows.move_to_end(key)
        return row

    def _begin(self) -> _MonitorState | None:
        """See ``BytewisePotential``: the trigger may match the empty string."""
        return self._opened(_MonitorState(self._trigger), b"", 0)

    def _read(self, state: _MonitorState, data: bytes, start: int) -> _MonitorState | None:
        """See ``BytewisePotential``: character by character."""
        at = start - len(state.pending)
        text, taken = codecs.utf_8_decode(data[at:], "surrogateescape")
        end = at + taken
        current: _MonitorState | None = state._replace(pending=b"")
        for character in text:
            raw = character.encode("utf-8", "surrogateescape")
            at += len(raw)
            if current is not None:
                current = self._after(current, raw, data, at)
            if current is None:
                return None
        if current is None or end == len(data):
            return current
        return self._with_pending(current, data, end)

    def _may_end(self, state: _MonitorState, data: bytes) -> bool:
        """See ``BytewisePotential``: an identifier must be complete."""
        return state.options is None or (not state.pending and data[state.opened :] in state.options)

    def _after(self, state: _MonitorState, raw: bytes, data: bytes, at: int) -> _MonitorState | None:
        """The state after a character, which ends at ``at``; None if it is forbidden."""
        if self._trigger is not None and state.trigger is not None:
            # A match contains no broken character, so it begins after one at the earliest.
            state = state._replace(trigger=state.trigger.after(raw) or self._trigger)
        if state.options is not None and state.node is not None:
            if len(raw) == 1 and raw[0] >= 0x80:  # a byte that belongs to no character
                return None
            node = state.node.after(raw)
            if node is not None:
                return state._replace(node=node) if state.options.begins(data[state.opened : at]) else None
            if data[state.opened : at - len(raw)] not in state.options:
                return None
            state = _MonitorState(state.trigger)
        return self._opened(state, data, at)

    def _opened(self, state: _MonitorState, data: bytes, at: int) -> _MonitorState | None:
        """The state with an identifier that begins at ``at``, if the trigger matches and the provider gives options."""
        if self._fires is None:
            if state.trigger is None or not state.trigger.is_accepting:
                return state
            text = data[:at].decode("utf-8", "replace")
        else:
            text = data[:at].decode("utf-8", "replace")
            if not self._call(self._fires, "trigger", text):
                return state
        options = self._options(text)
        if options is None:
            return state
        return _MonitorState(state.trigger, b"", options, at, self._identifier) if len(options) else None

    def _with_pending(self, state: _MonitorState, data: bytes, end: int) -> _MonitorState | None:
        """The state with the bytes after ``end``, an incomplete character."""
        pending = data[end:]
        if state.options is not None and state.node is not None and not state.options.begins(data[state.opened :]):
            is_whole = data[state.opened : end] in state.options
            if not is_whole or not state.node.may_refuse(pending):
                return None
        return state._replace(pending=pending)

    def _options(self, text: str) -> Options | None:
        """The provider's options, queried once for each text."""
        cached = self._answers.get(text, _NOT_QUERIED)
        if cached is not _NOT_QUERIED:
            return self._answers[text]
        answer = self._checked(self._call(self._provided, "provider", text), text)
        self._answers[text] = answer
        if len(self._answers) > _MAX_ANSWERS:
            self._answers.popitem(last=False)
        return answer

    def _provided(self, text: str) -> object:
        """The provider's answer; of an iterable its items, since a generator may raise before the last one."""
        answer = self._provider(text)
        if answer is None or isinstance(answer, str):
            return answer
        try:
            strings = iter(answer)
        except TypeError:
            return answer
        return tuple(strings)

    def _checked(self, answer: object, text: str) -> Options | None:
        """Return the provider's strings as options.

        Raises:
            GenerationError: the answer is no list of strings, or a string can never be generated.
        """
        if answer is None:
            return None
        if isinstance(answer, str):
            raise self._refused("one string, not a list", "return a list of strings", text, f"{answer!r:.60} ")
        if not isinstance(answer, tuple):
            raise self._refused(f"{answer!r:.60}, not a list", "return a list of strings", text)
        encoded = []
        for option in answer:
            if not isinstance(option, str):
                problem = f"{option!r:.60}, which is of type {type(option).__name__}"
                raise self._refused(problem, "return a list of strings", text)
            try:
                encoded.append(option.encode())
            except UnicodeEncodeError:
                raise self._refused(
                    f"{option!r:.60}, which has a lone surrogate", "leave the string out", text
                ) from None
        options = Options(encoded)
        for member in options.members:
            if self._identifier.after(member) is None:
                problem = f"{member.decode()!r:.60}, which does not match identifier"
                raise self._refused(problem, "widen identifier, or leave the string out", text)
        return options

    def _refused(self, what: str, remedy: str, text: str, found: str = "") -> GenerationError:
        return GenerationError(
            f"monitor {self._name}",
            f"its provider returned {what}",
            evidence=f"{found}for {_shown(text)}",
            remedy=remedy,
        )

    def _call(self, function: Callable[[str], _Answer], what: str, text: str) -> _Answer:
        try:
            return function(text)
        except StructgenError:
            raise
        except Exception as error:
            raise GenerationError(
                f"monitor {self._name}",
                f"its {what} raised {type(error).__name__}: {error}",
                evidence=f"for {_shown(text)}",
                remedy="let it return None for texts that it does not know",
            ) from error


def monitor(trigger: Trigger, provider: Provider, *, identifier: str = r"\w+", name: str = "") -> Monitor:
    r"""Make a potential that allows, from each trigger to the end of an identifier, only the provider's strings.

    An identifier begins where the trigger's match ends, and continues while the text can still become a match of
    ``identifier``. The next character ends it, and may be part of the next trigger. The identifier must then be one of
    the strings that the provider returned for the text up to the trigger; ``""`` among them makes it optional. Triggers
    within an identifier are ignored. An output may end within an identifier only if that is complete. The identifier
    and the character after it must be UTF-8.

    ``prefix`` is minus infinity if no continuation is allowed. Otherwise some continuation is, namely the rest of the
    identifier and then the end, if the grammar allows it. The exception is an incomplete character, whose last bytes
    may fire a trigger.

    Args:
        trigger: a regex that must match some part of the text that ends at the trigger point; it is matched
            incrementally, however long the text is. Or a function of the text up to a point, which is called after
            every character outside of identifiers.
        provider: returns the strings that may follow the text up to the trigger point. An empty list means that nothing
            may follow, so the trigger itself is blocked. None sets no restriction. It must be pure: it is called once
            for each text.
        identifier: a regex for identifiers.
        name: the name in messages.

    Raises:
        GrammarError: a regex is invalid or not regular; pass a function as trigger then.

    Example:
        >>> members = {"user": ["name", "email"], "order": ["id", "total"]}
        >>> attributes = monitor(r"(user|order)\.", lambda text: members[text[:-1].split()[-1]])
    """
    return Monitor(trigger, provider, identifier, name or getattr(provider, "__name__", repr(provider)))


def _shown(text: str) -> str:
    return repr(text) if len(text) <= _SHOWN else f"{len(text)} characters that end with {text[-_SHOWN:]!r}"

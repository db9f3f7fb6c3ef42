"""The probability of each value of the fields that have few values.

For models that write token by token and for canvases.  Token by token, the distribution is that of the loop
(``structgen.decode.autoregressive.loop``) with a lossless sampler.  A text may be spelled by many token sequences, each
with its own next-token distributions, so the sequences are searched: each up to the token after which only one value is
possible.
"""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, final

import numpy as np

from structgen.decode.step.context import shared_length
from structgen.decode.step.distribution import project
from structgen.engine import compile
from structgen.engine.mask import allowed_ids, empty_masks
from structgen.errors import UnsatisfiableGrammar
from structgen.frontends.regex import regex
from structgen.grammar.algebra import optional
from structgen.grammar.limits import counted
from structgen.grammar.nodes import ANY_CHAR, Grammar, Repeat, literal
from structgen.models.protocol import PackedModel
from structgen.program.json_cursor import SCALAR_BYTES, string_end
from structgen.program.outcome import token_offsets

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping, Sequence

    from numpy.typing import NDArray

    from structgen.decode import Context, Generation, Result
    from structgen.decode.diffusion.posterior import Tail
    from structgen.engine import Constraint, Matcher
    from structgen.models.protocol import Logits
    from structgen.models.protocol.diffusion import DiffusionModel
    from structgen.program.answer import Answer
    from structgen.program.json_cursor import FieldEnd

__all__ = ["MAX_TEXTS", "canvas_marginals", "few_texts", "field_marginals", "values_of"]

MAX_TEXTS: Final = 100
"""The most texts that a field may have whose probabilities are computed."""
_MAX_PASSES: Final = 1_000
"""The most forward passes for one field."""
_MAX_TEXT_BYTES: Final = 4_096
"""The most bytes of such a text."""
_FIELDS_PER_BATCH: Final = 16
_BRANCHES_PER_PASS: Final = 16
_NEGLIGIBLE: Final = 2.0**-41
"""The share of the probability that may be left unsearched: most spellings are very improbable."""


def field_marginals(
    generation: Generation, answer: Answer, ends: Sequence[FieldEnd], offsets: Sequence[int], *, max_tokens: int
) -> list[Mapping[Any, float] | None]:
    """Return for each field the probability of each of its values; None where it has too many, or is a container.

    ``generation`` is a finished output and stays as it is; ``offsets`` are the bytes at which its tokens begin, and the
    end; ``max_tokens`` is its budget.
    """
    found: list[Mapping[Any, float] | None] = []
    for at in range(0, len(ends), _FIELDS_PER_BATCH):
        queries = [_query(generation, answer, end, offsets, max_tokens) for end in ends[at : at + _FIELDS_PER_BATCH]]
        answerable = [query for query in queries if query is not None]
        try:
            answered = iter(_marginals(answerable, max_passes=_MAX_PASSES))
        finally:
            for query in answerable:
                query.context.close()
        found += [None if query is None else next(answered) for query in queries]
    return found


def _query(
    generation: Generation, answer: Answer, end: FieldEnd, offsets: Sequence[int], max_tokens: int
) -> _MarginalQuery | None:
    tokens, data = generation.tokens, generation.data
    first = next((at for at in range(len(tokens)) if offsets[at + 1] > end.start), len(tokens))
    matcher = generation.matcher.fork()
    matcher.rollback(len(tokens) - first)
    before = data[offsets[first] : end.start]
    place = matcher.fork()
    place.accept_bytes(before)
    texts = few_texts(place, is_json=answer.form == "json", most=MAX_TEXTS)
    values = None if texts is None else values_of(answer, texts)
    if values is None:
        return None
    chosen_at = first
    steps = generation.steps
    while chosen_at < len(tokens) and steps[chosen_at].forced:
        chosen_at += 1
    for token in tokens[first:chosen_at]:
        matcher.accept(token)
    context = generation.context.fork()
    context.truncate(len(context) - (len(tokens) - chosen_at))
    return _MarginalQuery(
        context, matcher, max_tokens - chosen_at, data[offsets[first] : offsets[chosen_at]], before, values
    )


def values_of(answer: Answer, texts: Sequence[bytes]) -> dict[bytes, Any] | None:
    """Return the values by their texts; None where Python takes two of them for one, as ``1`` and ``True``."""
    made = {text: json.loads(text) if answer.form == "json" else _text_value(answer, text) for text in texts}
    kinds = {(type(value), value) for value in made.values()}
    return made if len(kinds) == len({value for _, value in kinds}) else None


def _text_value(answer: Answer, text: bytes) -> Any:
    """The value that a text spells; the text itself where a check refuses it, or where the value cannot be a key."""
    from pydantic import ValidationError

    shown = text.decode("utf-8", "replace")
    try:
        value = answer.value(shown)
        hash(value)
    except (ValidationError, TypeError):
        return shown
    return value


def few_texts(matcher: Matcher, *, is_json: bool, most: int) -> list[bytes] | None:
    """Return all texts that may follow the position of a matcher; None if there are more than ``most``.

    The matcher is at the first byte and stays there.  With ``is_json`` the texts are scalars within JSON, else all that
    is still to come.  The end of an array, which may stand in the place of its first item, is no scalar.

    Complexity: O(``most`` times the bytes of the longest).
    """
    found: list[bytes] = []
    work: list[tuple[bytes, Matcher]] = [(b"", matcher)]
    while work:
        text, at = work.pop()
        live = at.live_bytes()
        if is_json and not text and (b"{"[0] in live or b"["[0] in live):
            return None
        if not is_json:
            ends = at.is_accepting
        elif text[:1] == b'"':
            # string_end scans from the start of the text, so only if the text ends with a quote
            ends = text.endswith(b'"') and string_end(text, 1) is not None
            live = b"" if ends else live
        else:
            ends = bool(text) and (at.is_accepting or not SCALAR_BYTES.issuperset(live))
            live = bytes(SCALAR_BYTES.intersection(live)) if text else live.replace(b"]", b"")
        if ends:
            found.append(text)
        if len(found) + len(work) + len(live) > most or len(text) > _MAX_TEXT_BYTES:
            return None
        for byte in live:
            ahead = at.fork()
            ahead.accept_bytes(bytes([byte]))
            work.append((text + bytes([byte]), ahead))
    return found


@final
@dataclass(frozen=True, slots=True)
class _MarginalQuery:
    """A query for the probabilities of some values at a position of the output.

    Attributes:
        context: the prompt and the output up to a position where the loop runs the model; it stays as it is.
        matcher: the matcher after the same tokens; it stays as it is.
        budget: how many tokens may follow.
        written: the end of the output, from the start of some token on.
        before: the text from that start up to the position of the value.
        values: the values by their texts; all possible ones at the position, except the end of an array.
    """

    context: Context
    matcher: Matcher
    budget: int
    written: bytes
    before: bytes
    values: Mapping[bytes, Hashable]

    def possible_values(self, written: bytes) -> list[Hashable]:
        """The values that are still possible after ``written``; none if it is the output of no value here."""
        size = len(self.before)
        if len(written) <= size:
            return list(set(self.values.values())) if self.before.startswith(written) else []
        if not written.startswith(self.before):
            return []
        text = written[size:]
        possible = {value for each, value in self.values.items() if each.startswith(text)}
        if possible:
            return list(possible)
        ended = [each for each in self.values if text.startswith(each)]  # and other text follows
        return [self.values[max(ended, key=len)]] if ended else []


@dataclass(eq=False, slots=True)
class _MarginalBranch:
    """A token sequence after which several values are possible."""

    query: _MarginalQuery
    matcher: Matcher
    written: bytes
    probability: float
    tokens: list[int] = field(default_factory=list)

    @property
    def budget(self) -> int:
        return self.query.budget - len(self.tokens)


@final
class _MarginalSearch:
    """All branches of one query, and the probability of each value so far."""

    def __init__(self, query: _MarginalQuery) -> None:
        vocabulary = query.context.model.vocabulary
        self._texts, self._eos = vocabulary.tokens, vocabulary.eos
        self._row: NDArray[np.int32] = empty_masks(vocabulary)
        self._parts: dict[Hashable, list[float]] = defaultdict(list)  # of the probability of each value
        self._values = query.values
        self._passes = 0
        self._settled = 0.0
        self.branches = [_MarginalBranch(query, query.matcher.fork(), query.written, 1.0)]

    def is_over(self) -> bool:
        """Whether the rest is negligible compared with what is known."""
        return math.fsum(each.probability for each in self.branches) <= _NEGLIGIBLE * self._settled

    def exceeds(self, max_passes: int) -> bool:
        """Whether it has taken, or is certain to take, more than ``max_passes`` forward passes."""
        most = max(max_passes - self._passes, 0)
        left = sorted((each.probability for each in self.branches), reverse=True)[most:]
        return math.fsum(left) > _NEGLIGIBLE

    def masses(self) -> dict[Any, float]:
        """The probabilities of all values, which sum to 1, given that there is one."""
        sums = {value: math.fsum(self._parts[value]) for value in self._values.values()}
        total = math.fsum(sums.values())
        return {value: mass / total for value, mass in sums.items()}

    def begin(self, branch: _MarginalBranch) -> NDArray[np.intp] | None:
        """Take a branch out, and return its allowed tokens; None if it needs no model and is settled."""
        self.branches.remove(branch)
        return self._choices(branch)

    def take(self, branch: _MarginalBranch, ids: NDArray[np.intp], logits: Logits) -> None:
        """Follow each allowed token of a branch."""
        self._passes += 1
        for token, log_p in zip(ids.tolist(), project(logits, ids).log_p.tolist(), strict=True):
            probability = branch.probability * math.exp(log_p)
            if token in self._eos:
                self._end(branch, probability)
            elif probability:
                self._follow(branch, token, probability)

    def _follow(self, branch: _MarginalBranch, token: int, probability: float) -> None:
        written = branch.written + self._texts[token]
        possible = branch.query.possible_values(written)
        if len(possible) == 1:
            self._settle(possible[0], probability)
        elif possible:
            matcher = branch.matcher.fork()
            matcher.accept(token)
            self.branches.append(_MarginalBranch(branch.query, matcher, written, probability, [*branch.tokens, token]))

    def _end(self, branch: _MarginalBranch, probability: float) -> None:
        self._settle(self._values[branch.written[len(branch.query.before) :]], probability)

    def _settle(self, value: Hashable, probability: float) -> None:
        self._parts[value].append(probability)
        self._settled += probability

    def _choices(self, branch: _MarginalBranch) -> NDArray[np.intp] | None:
        """Take the forced tokens and return the allowed ones; None if only one value stays possible."""
        while True:
            possible = branch.query.possible_values(branch.written)
            if len(possible) <= 1:
                if possible:
                    self._settle(possible[0], branch.probability)
                return None
            run = branch.matcher.advance_forced(branch.budget)
            if not run:
                branch.matcher.fill_mask(self._row, budget=branch.budget)
                ids = allowed_ids(self._row[0], len(self._texts))
                ordinary = ids[~np.isin(ids, self._eos)]
                if not len(ordinary):
                    self._end(branch, branch.probability)
                    return None
                if len(ids) > 1 or not branch.matcher.accept(int(ids[0])):
                    return ids
                run = [int(ids[0])]
            branch.tokens += run
            branch.written += b"".join(self._texts[token] for token in run)


def _marginals(queries: Sequence[_MarginalQuery], *, max_passes: int) -> list[dict[Any, float] | None]:
    """Return the probabilities of the values of each query; None if its search takes more than ``max_passes``.

    The most probable sequences come first, and share forward passes if the model is a ``PackedModel``.

    Raises:
        GenerationError: the model fails.

    Complexity: one forward pass of few tokens for each spelling of a prefix that several values share, except the least
        probable of them, which are negligible together.
    """
    searches = [_MarginalSearch(query) for query in queries]
    with closing(_BranchContexts()) as contexts:
        while going_on := [each for each in searches if not each.is_over() and not each.exceeds(max_passes)]:
            waiting = [(branch, search) for search in going_on for branch in search.branches]
            waiting.sort(key=lambda each: -each[0].probability)
            begun = [(branch, search, search.begin(branch)) for branch, search in waiting[:_BRANCHES_PER_PASS]]
            part = [(branch, search, ids) for branch, search, ids in begun if ids is not None]
            for (branch, search, ids), logits in zip(part, contexts.run([each[0] for each in part]), strict=True):
                search.take(branch, ids, logits)
    return [search.masses() if search.is_over() else None for search in searches]


@final
class _BranchContexts:
    """Contexts of the branches that ran last, as many as a pass has: a branch goes on from the nearest of them."""

    def __init__(self) -> None:
        self._held: list[tuple[_MarginalBranch, Context]] = []

    def run(self, branches: Sequence[_MarginalBranch]) -> list[Logits]:
        """Return the logits after each branch."""
        contexts = self._placed(branches)
        if len(contexts) > 1 and isinstance(model := contexts[0].model, PackedModel):
            return model.extend_many([context.extension() for context in contexts])
        return [context.session.extend(context.unseen) for context in contexts]

    def close(self) -> None:
        """Free the caches."""
        for _, context in self._held:
            context.close()
        self._held.clear()

    def _placed(self, branches: Sequence[_MarginalBranch]) -> list[Context]:
        """Contexts with the tokens of each branch; the last that goes on from one takes it over, others fork it."""
        nearest = [self._nearest(branch) for branch in branches]
        users = Counter(context for context, _ in nearest)
        unused = [each for each in self._held if each[1] not in users]
        used = {each[1]: each for each in self._held if each[1] in users}
        excess = max(len(unused) + len(branches) - _BRANCHES_PER_PASS, 0)
        for _, context in unused[:excess]:
            context.close()
        self._held = [*unused[excess:], *used.values()]
        placed: list[Context] = []
        for branch, (source, shared) in zip(branches, nearest, strict=True):
            users[source] -= 1
            if source in used and not users[source]:
                self._held.remove(used[source])
                context = source
            else:
                context = source.fork()
            self._held.append((branch, context))
            if len(context) > (length := len(branch.query.context) + shared):  # else its last token would run again
                context.truncate(length)
            context.append(branch.tokens[shared:])
            context.prepare()
            placed.append(context)
        return placed

    def _nearest(self, branch: _MarginalBranch) -> tuple[Context, int]:
        """The context that shares most tokens with a branch, and how many after the query's."""
        best = branch.query.context, 0
        for other, context in self._held:
            shared = shared_length(other.tokens, branch.tokens) if other.query is branch.query else 0
            # A recurrent state cannot be cut: all would run again, with the prompt.
            if shared > best[1] and (shared == len(other.tokens) or context.looks_ahead):
                best = context, shared
        return best


_REST: Final = optional(regex(r"[^0-9.eE+\-]") + Repeat(ANY_CHAR, 0, None))
"""What may follow a value in JSON: nothing with which a number would go on."""


def canvas_marginals(  # noqa: PLR0913  the model, the answer and how it was written: no two of them travel together
    model: DiffusionModel,
    answer: Answer,
    constraint: Constraint,
    result: Result,
    ends: Sequence[FieldEnd],
    *,
    temperature: float,
    tail: Tail,
) -> list[Mapping[Any, float] | None]:
    """Return for each field the probability of each of its values; None where it has too many, or is a container.

    The slots from the one in which the field begins are freed, and the model is asked once about this canvas.  What it
    says, restricted to the language and to the text before the field, is a distribution of canvases; the probability of
    a value is the mass of the canvases that have it there, whatever tokens spell it and whatever follows.

    The prompt of ``model`` is the conversation before the answer, whatever text it is given.  ``temperature`` is that
    of the distribution of each slot, and ``tail`` says how slots after the output count.

    Complexity: a forward pass for each field, and a language for each of its values.
    """
    # Imported here, so that programs on other models do not pay for canvases.
    from structgen.decode.diffusion.canvas import canvas_language
    from structgen.decode.diffusion.forward_pass import denoise
    from structgen.decode.diffusion.mean_field import FREE, MeanField

    canvas = np.array(result.tokens if result.canvas is None else result.canvas.tokens, dtype=np.int32)
    offsets = token_offsets(result.tokens, result.vocabulary.tokens)
    denoiser = model.start(model.encode_prompt(""))
    found: list[Mapping[Any, float] | None] = []
    try:
        for end in ends:
            before = result.data[: end.start]
            place = constraint.matcher()
            place.accept_bytes(before)
            texts = few_texts(place, is_json=answer.form == "json", most=MAX_TEXTS)
            values = None if texts is None else values_of(answer, texts)
            if values is None:
                found.append(None)
                continue
            freed = canvas.copy()
            freed[max(np.searchsorted(offsets, end.start, side="right") - 1, 0) :] = FREE
            size = model.vocabulary.size
            (logits,) = denoise(denoiser, [freed], mask_token=model.mask_token, size=size)
            distribution = MeanField(freed, logits, temperature=temperature)
            masses: list[float] = []
            for text in values:
                try:
                    held = compile(_having(constraint.grammar, answer, before, text), constraint.vocabulary)
                except UnsatisfiableGrammar:
                    masses.append(-np.inf)
                    continue
                language = canvas_language(held)
                with counted(constraint.limits, limit="canvas_steps"):
                    masses.append(language.posterior(distribution, tail=tail).log_z)
            weights = np.exp(np.array(masses) - max(masses))
            shares = (weights / weights.sum()).tolist()
            found.append(dict(zip(values.values(), shares, strict=True)))
    finally:
        denoiser.close()
    return found


def _having(grammar: Grammar, answer: Answer, before: bytes, text: bytes) -> Grammar:
    """The strings with ``text`` as the value that follows ``before``."""
    having: Grammar = literal((before + text).decode())
    return grammar & (having + _REST if answer.form == "json" else having)

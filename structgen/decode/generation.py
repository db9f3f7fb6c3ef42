"""The autoregressive loop: one generation in progress.

Each turn asks the matcher first.  Tokens that the grammar forces are taken without looking at the model; they reach
it together with the next token that has to be chosen, in one forward pass, whose logits at the positions before also
tell what the model thought of them.  Otherwise the mask projects the model's law and the sampler draws from that.

The budget is kept token by token: where the plain mask may lead to a state from which the output cannot be completed
in the tokens that are left, the mask is replaced by one that cannot, so every output is complete.
"""

from __future__ import annotations

import codecs
import copy
from collections import deque
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Self, final

import numpy as np
from numpy.typing import NDArray

from structgen.decode.potentials import Gate
from structgen.decode.projection import allowed_ids, log_mass, no_law, nothing_possible, project, runners_up
from structgen.decode.resident_questions import ask_together, choosing, only_token, shape_of, tree_questions
from structgen.decode.result import FinishReason, Result, Stats, Step
from structgen.decode.rows import ResidentRow, Row, on_host
from structgen.decode.sampler import Multinomial, Sampler
from structgen.decode.speculative.drafts import Drafts
from structgen.decode.tempering import at_temperature, check_tempering
from structgen.decode.writer import Withheld, Writer
from structgen.errors import GenerationError
from structgen.models.protocol import Scoring

if TYPE_CHECKING:
    from structgen.decode.context import Context
    from structgen.decode.potentials import Potential
    from structgen.decode.sampling import SequenceSampler
    from structgen.decode.speculative.draft_tree import DraftTree
    from structgen.decode.speculative.speculation import Speculation
    from structgen.engine import Constraint, Matcher, Vocabulary
    from structgen.models.protocol import Chosen, Logits, Question, ResidentLogits, Shaping

__all__ = ["Chunk", "Generation"]


@final
@dataclass(frozen=True, slots=True)
class Chunk:
    """What one turn of the loop adds to the output.

    Attributes:
        text: the characters that are complete now; all texts joined are the text of the result.
        tokens: the tokens; a run of several was forced.
        forced: the grammar left no choice.
        start: how many tokens of the output stand before it: fewer than were told where some were taken back.
    """

    text: str
    tokens: tuple[int, ...]
    forced: bool
    start: int = 0


@final
class Generation:
    """Yields the output of one generation in chunks; ``result()`` is there once it is exhausted.

    The tokens are added to the context as they are taken, and stay there.

    Args:
        context: the prompt, at least one token, with the model that has to go on from there.
        constraint: compiled for the model's vocabulary.
        max_tokens: tokens that the output may have, EOS not counted; at least ``constraint.min_tokens()``.
        sampler: chooses tokens, or writes the whole output at once.
        seed: of the random numbers that the sampler is given.
        jump_forward: run forced tokens through the model together with the next token that has to be chosen, not in
            forward passes of their own.  The output is the same.
        score_ending: spend one more forward pass if the output ends in forced steps, so that they are scored.
            Without ``jump_forward`` they always are.
        alternatives: how many other tokens are noted at each choice.
        potentials: what they forbid is withheld where it would come.
        speculation: how to guess tokens, so that one forward pass tells several; None not to.  Not without
            ``jump_forward``, which runs even forced tokens one by one.
    """

    def __init__(  # noqa: PLR0913  of generate
        self,
        context: Context,
        constraint: Constraint,
        *,
        max_tokens: int,
        sampler: Sampler | SequenceSampler,
        seed: int,
        jump_forward: bool = True,
        score_ending: bool = False,
        alternatives: int = 0,
        potentials: Sequence[Potential] = (),
        speculation: Speculation | None = None,
    ) -> None:
        context.prepare()
        self._context = context
        self._vocabulary = constraint.vocabulary
        self._grammar = constraint.grammar
        self._matcher = constraint.matcher()
        self._forwards_before = context.forwards
        self._generator = np.random.Generator(np.random.PCG64(seed))
        self._potentials = tuple(potentials)
        self._writer: Writer | None = None
        self._is_tempered = constraint.has_temperatures
        if self._is_tempered:
            check_tempering(sampler)
        if isinstance(sampler, Sampler):
            self._sampler: Sampler = sampler
        else:
            self._sampler = Multinomial()
            self._writer = Writer(sampler, context, constraint, max_tokens, speculation if jump_forward else None)
        self._gate = Gate(self._potentials, self._grammar, self._vocabulary)
        self._max_tokens = max_tokens
        self._jump_forward = jump_forward
        self._score_ending = score_ending or not jump_forward
        self._alternatives = alternatives
        size = self._vocabulary.size
        self._mask: NDArray[np.int32] = np.zeros((1, (size + 31) // 32), dtype=np.int32)
        self._not_eos = _words_without(self._vocabulary.eos, size)
        self._prompt_tokens = len(context)
        self._tokens: list[int] = []
        self._steps: list[Step] = []
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._scored = 0  # steps at the beginning that have their log_z
        self._time_mask = 0.0
        self._time_model = 0.0
        self._began = perf_counter()
        self._ended: float | None = None
        self._finish_reason: FinishReason | None = None
        self._withheld: dict[tuple[int, ...], set[int]] = {}  # by the tokens before them
        self._floor = 0  # tokens that are not taken back
        self._drafts: Drafts | None = None
        # Drafts are judged by one sampler for all positions, so where parts have their own there are none.
        if speculation is not None and jump_forward and self._writer is None and not self._is_tempered:
            self._drafts = Drafts(speculation, context, constraint, self._sampler, seed)
        self._planned: deque[Step] = deque()  # what is to be taken next
        self._searches = 0  # forward passes beside those of the context
        self._chunks = self._run()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Chunk:
        return next(self._chunks)

    @property
    def context(self) -> Context:
        """What the output is added to."""
        return self._context

    @property
    def data(self) -> bytes:
        """The output so far."""
        return self._vocabulary.decode(self._tokens)

    @property
    def tokens(self) -> tuple[int, ...]:
        """The tokens of the output so far."""
        return tuple(self._tokens)

    @property
    def vocabulary(self) -> Vocabulary:
        """What the tokens belong to."""
        return self._vocabulary

    @property
    def matcher(self) -> Matcher:
        """Where the output stands in the grammar.  Fork it to look ahead; the generation moves it."""
        return self._matcher

    @property
    def steps(self) -> tuple[Step, ...]:
        """The steps so far; those after the last choice have no ``log_z`` yet."""
        return tuple(self._steps)

    @property
    def remaining(self) -> int:
        """Tokens that are left of the budget."""
        return self._max_tokens - len(self._tokens)

    @property
    def alternatives(self) -> int:
        """How many other tokens are noted at each choice."""
        return self._alternatives

    def draw(self, log_p: NDArray[np.float64]) -> int:
        """Let the sampler choose an index of normalised log-probabilities."""
        return 0 if len(log_p) == 1 else self._sampler_here().draw(log_p, self._generator)

    def _sampler_here(self) -> Sampler:
        temperature = self._matcher.temperature() if self._is_tempered else None
        return self._sampler if temperature is None else at_temperature(self._sampler, temperature)

    def logits(self) -> Logits:
        """Run what is pending through the model, and return the logits of the token that comes next.

        Whoever does not go on with a token then calls ``context.prepare()``, so that the next pass has one to run.
        """
        last = on_host(self._forward(ahead=True)[-1])
        unseen = self._context.unseen
        if unseen:  # the law was known, but the session does not hold the tokens any more
            return self._context.session.extend(unseen)
        return last

    def withheld_after(self, tokens: tuple[int, ...]) -> Set[int]:
        """What must not come next where the output went on with ``tokens``: see ``reject`` and ``withhold``."""
        return self._withheld.get((*self._tokens, *tokens), set()) if self._withheld else set()

    def withhold(self, tokens: Iterable[int]) -> None:
        """Take none of ``tokens`` here; where nothing else is left, go back as after ``reject``."""
        self._context.prepare()
        self._withheld.setdefault(self.tokens, set()).update(tokens)

    def rewind(self, length: int) -> None:
        """Take back all tokens from position ``length`` of the output on, and what was planned."""
        count = len(self._tokens) - length
        self._planned.clear()
        self._matcher.rollback(count)
        self._context.truncate(len(self._context) - count)
        del self._tokens[length:]
        del self._steps[length:]
        self._scored = min(self._scored, length)
        self._decoder.reset()
        self._decoder.decode(self.data)
        if self._finish_reason is not None:
            self._finish_reason = self._ended = None
            self._chunks = self._run()

    def take_back(self, chunk: Chunk, keep: int) -> Chunk:
        """Take back ``chunk``, which came last, but for its first ``keep`` tokens; return what is left of it."""
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        decoder.decode(self._vocabulary.decode(self._tokens[: chunk.start]))
        kept = chunk.tokens[:keep]
        self.rewind(chunk.start + keep)
        return Chunk(decoder.decode(self._vocabulary.decode(kept)), kept, chunk.forced, chunk.start)

    def plan(self, steps: Iterable[Step], *, forwards: int, time_model_s: float) -> None:
        """Take steps that were chosen elsewhere, one a turn, before anything else; what is taken back ends that.

        Args:
            steps: with their scores; the stop may be the last.
            forwards: forward passes that it took to choose them, beside those of the context.
            time_model_s: seconds in the model.
        """
        self._planned.extend(steps)
        self._searches += forwards
        self._time_model += time_model_s

    def reject(self, length: int, *, keep: int, also: Iterable[int] = ()) -> None:
        """Go on from the first ``keep`` tokens, with no output that begins with the first ``length`` tokens.

        For what is found wrong although it is a member: the token that completed it is withheld there from now on, and
        so is, one token earlier, what no token is left to continue.  Samplers draw from what remains.  Of a finished
        output, its stop is withheld: a longer one may begin with it.

        Args:
            length: a number of tokens of the output, at least ``keep``.
            keep: a number of tokens; these are not taken back any more, even if nothing is left to follow them.
            also: other tokens than the last of those that must not come in its place either.

        Raises:
            ValueError: the numbers are not in that order, or the output is shorter.
            GenerationError: only those ``keep`` tokens are rejected, and it is not finished.
        """
        if not 0 <= keep <= length <= len(self._tokens):
            raise ValueError(f"reject: expected 0 <= {keep} <= {length} <= {len(self._tokens)}")
        self._floor = keep
        stops = self._finish_reason is not None and length == len(self._tokens) and bool(self._vocabulary.eos)
        if stops:
            self._withheld.setdefault(self.tokens, set()).update(self._vocabulary.eos)
        elif length == keep:
            raise self._nothing_left()
        else:
            self._withheld.setdefault(tuple(self._tokens[: length - 1]), set()).update(
                [self._tokens[length - 1], *also]
            )
        self.rewind(keep)

    def result(self) -> Result:
        """The finished output.

        Raises:
            GenerationError: the generation is not through.
        """
        if self._finish_reason is None or self._ended is None:
            raise GenerationError(
                "generation",
                "it has no result yet",
                evidence=f"it stands at {len(self._tokens)} tokens",
                remedy="iterate to its end first",
            )
        forced = sum(step.forced for step in self._steps if step.token is not None)
        drafts = None if self._drafts is None else self._drafts.stats()
        if self._writer is not None:
            drafts = self._writer.drafts
        stats = Stats(
            prompt_tokens=self._prompt_tokens,
            tokens=len(self._tokens),
            forced=forced,
            sampled=len(self._tokens) - forced,
            drafted=0 if drafts is None else drafts.drafted,
            accepted=0 if drafts is None else drafts.accepted,
            forwards=self._context.forwards - self._forwards_before + self._searches,
            time_mask_s=self._time_mask,
            time_model_s=self._time_model,
            time_other_s=max(self._ended - self._began - self._time_model - self._time_mask, 0.0),
            drafts=drafts,
        )
        return Result(
            data=self.data,
            tokens=self.tokens,
            steps=tuple(self._steps),
            stats=stats,
            finish_reason=self._finish_reason,
            grammar=self._grammar,
            vocabulary=self._vocabulary,
        )

    def _run(self) -> Iterator[Chunk]:
        while self._finish_reason is None:
            if self._planned:
                step = self._planned.popleft()
                token = self._take(step)
                if token is not None:
                    yield self._chunk([token], forced=step.forced)
                continue
            if self._writer is not None:
                self._write(self._writer)
                continue
            began = perf_counter()
            run = self._force() or self._look()
            self._time_mask += perf_counter() - began
            if run:
                yield self._chunk(run, forced=True)
            elif self._finish_reason is None:
                token = self._choose()
                if token is not None:
                    yield self._chunk([token], forced=False)
        if self._score_ending:
            self._score_forced_ending()
        if self._drafts is not None:
            self._drafts.finish(self._context)
        self._ended = perf_counter()
        rest = self._decoder.decode(b"", final=True)
        if rest:  # a grammar over bytes may end within a character
            yield Chunk(rest, (), False, len(self._tokens))

    def _chunk(self, tokens: list[int], *, forced: bool) -> Chunk:
        text = self._decoder.decode(self._vocabulary.decode(tokens))
        return Chunk(text, tuple(tokens), forced, len(self._tokens) - len(tokens))

    def _force(self) -> list[int]:
        """Take the tokens of the text that every continuation shares, as far as the budget allows."""
        matcher = self._matcher
        run: list[int] = []
        for token in matcher.forced_tokens():
            remaining = self._max_tokens - len(self._tokens)
            if remaining <= 0:
                break
            tight = matcher.needs_budget_mask(remaining)
            if token in self._withheld_here() or not self._admits(token) or not matcher.accept(token):
                break
            if tight and not self._is_completable(remaining - 1):
                matcher.rollback(1)  # the canonical tokens are too many here: let the budgeted mask choose
                break
            self._take_forced(token)
            run.append(token)
        return run

    def _is_completable(self, budget: int) -> bool:
        needed = self._matcher.min_tokens()
        return needed is not None and needed <= budget

    def _take_forced(self, token: int) -> None:
        self._tokens.append(token)
        self._context.append([token])
        self._steps.append(Step(token, True, 0.0, None))

    def _look(self) -> list[int]:
        """Fill the mask of the next token; take the token if it is the only choice, finish if there is none."""
        matcher = self._matcher
        while True:
            remaining = self._max_tokens - len(self._tokens)
            if remaining > 0 and matcher.needs_budget_mask(remaining):
                matcher.fill_mask_within(self._mask, 0, remaining)
            else:
                matcher.fill_mask(self._mask)
            self._exclude()
            withheld = self._withheld_here()
            ordinary = self._mask[0] & self._not_eos
            is_accepting = matcher.is_accepting and withheld.isdisjoint(self._vocabulary.eos)
            if remaining <= 0 or not ordinary.any():
                if is_accepting and self._admits(None):
                    self._end()
                    return []
                if not self._withheld and not self._potentials:
                    raise self._dead_end()
                self._turn_back()
                continue
            token = None if is_accepting and self._vocabulary.eos else only_token(ordinary)
            if token is None or (self._admits(token) and not matcher.accept(token)):
                return []
            if token in self._withheld_here():
                continue
            self._take_forced(token)
            return [token]

    def _exclude(self) -> None:
        """Take out of the mask what is withheld, and what potentials are known to forbid."""
        withheld = self._withheld_here()
        if withheld:
            self._mask[0] &= _words_without(tuple(withheld), self._vocabulary.size)
        forbidding = self._gate.mask(self._tokens)
        if forbidding is not None:
            self._mask[0] &= forbidding | ~self._not_eos  # the stop is asked about when it comes

    def _admits(self, token: int | None) -> bool:
        """Ask the potentials about a token or the stop; what they forbid is withheld here from now on."""
        if self._gate.admits(self._tokens, token):
            return True
        self._withheld.setdefault(tuple(self._tokens), set()).update(
            self._vocabulary.eos if token is None else (token,)
        )
        return False

    def _withheld_here(self) -> set[int]:
        return self._withheld.get(tuple(self._tokens), set()) if self._withheld else set()

    def _turn_back(self) -> None:
        """Give up the last token where all that may follow it is withheld."""
        length = len(self._tokens)
        if length <= self._floor:
            raise self._nothing_left()
        self._withheld.setdefault(tuple(self._tokens[:-1]), set()).add(self._tokens[-1])
        self.rewind(length - 1)

    def _end(self) -> None:
        """Finish where the model is not asked: the grammar, or only the budget, allows nothing more."""
        self._matcher.fill_mask(self._mask)  # what the grammar alone allows
        if (self._mask[0] & self._not_eos).any():
            self._finish_reason = "length"
            return
        self._finish_reason = "stop"
        if self._vocabulary.eos:
            self._steps.append(Step(None, True, 0.0, None))

    def _nothing_left(self) -> GenerationError:
        return GenerationError(
            "generation",
            "all that may follow was rejected",
            evidence=self._standing(),
            remedy="loosen the checks, or let the grammar say what they want",
        )

    def _standing(self) -> str:
        verdict = self._gate.verdict()
        standing = f"it stands at {len(self._tokens)} tokens and ends with {self.data[-40:]!r}"
        return f"{standing}; {verdict}" if verdict else standing

    def _dead_end(self) -> GenerationError:
        return GenerationError(
            "generation",
            "no token continues the output and it is not complete",
            evidence=self._standing(),
            remedy="check that the vocabulary can spell what the grammar needs",
        )

    def _choose(self) -> int | None:
        """Let the model and the sampler choose among what the mask allows; None is the stop, or nothing is left."""
        row = self._forward(ahead=True, draft=True)[-1]
        shape = self._resident_shape(row)
        if isinstance(row, ResidentRow) and shape is not None:
            return self._choose_there(row, shape)
        logits = on_host(row)
        total = log_mass(logits)
        ids = allowed_ids(self._mask[0], self._vocabulary.size)
        chosen: int | None = None
        if self._drafts is not None:
            chosen = self._drafts.choose(
                project(logits, ids, total),
                self._context,
                self._matcher,
                self.remaining,
                self._generator,
                is_plain=not self._potentials and not self._withheld,
            )
        while True:
            projection = project(logits, ids, total)
            index, chosen = self.draw(projection.log_p) if chosen is None else chosen, None
            token = int(ids[index])
            if self._admits(None if token in self._vocabulary.eos else token):
                break
            ids = ids[~np.isin(ids, list(self._withheld_here()))]
            if not len(ids):
                self._context.prepare()
                return None
        logprob = float(projection.log_p[index])
        others = runners_up(projection, index, self._alternatives)
        if token in self._vocabulary.eos:
            # Stopping is one event, whichever of several EOS ids is drawn.
            ends = np.isin(ids, self._vocabulary.eos)
            return self._take(Step(None, False, log_mass(projection.log_p[ends]), projection.log_z, others))
        return self._take(Step(token, False, logprob, projection.log_z, others))

    def _choose_there(self, row: ResidentRow, shape: Shaping) -> int | None:
        """As ``_choose``, where the logits stay with the model."""
        mask, eos = self._mask[0], self._vocabulary.eos
        while True:
            chosen = row.logits.ask(choosing(row.place, mask, shape, self._generator))
            if not chosen.is_finite:
                raise no_law()
            if chosen.token < 0:
                raise nothing_possible(allowed_ids(mask, self._vocabulary.size))
            if self._admits(None if chosen.token in eos else chosen.token):
                break
            self._exclude()
            if not mask.any():
                self._context.prepare()
                return None
        if chosen.token not in eos:
            return self._take(Step(chosen.token, False, chosen.log_p, chosen.log_z))
        return self._take(Step(None, False, self._stop_log_p(row, chosen), chosen.log_z))

    def _stop_log_p(self, row: ResidentRow, chosen: Chosen) -> float:
        """Of the stop among what is allowed: one event, whichever of several EOS ids is drawn."""
        ends = self._ends()
        return chosen.log_p if len(ends) == 1 else min(self._log_p(row, ends) - chosen.log_z, 0.0)

    def _ends(self) -> list[int]:
        """The EOS ids that the mask allows."""
        words = self._mask[0]
        return [token for token in self._vocabulary.eos if words[token >> 5] >> (token & 31) & 1]

    def _resident_shape(self, row: Row) -> Shaping | None:
        """What the next token is drawn from where a row is asked for it; None where it has to be looked at."""
        if not isinstance(row, ResidentRow) or self._alternatives:
            return None
        if self._drafts is not None and self._drafts.has_drawn:
            return None
        return shape_of(self._sampler_here())

    def _write(self, writer: Writer) -> None:
        """Let a sampler of whole outputs write all that is missing, and plan to take it; or end what is written."""
        if writer.is_complete(self.tokens):
            self._end()
            return
        written = writer.write(self.tokens, [*self._potentials, Withheld(self._withheld)], self._generator)
        self.plan(written.steps, forwards=written.stats.forwards, time_model_s=written.stats.time_model_s)

    def _take(self, step: Step) -> int | None:
        """Add a step that was chosen and has its scores; None where it is the stop."""
        token = step.token
        if token is None:
            self._steps.append(step)
            self._finish_reason = "stop"
            return None
        began = perf_counter()
        accepted = self._matcher.accept(token)
        self._time_mask += perf_counter() - began
        if not accepted:
            raise GenerationError("matcher", f"it refuses token {token}, which its own mask allows")
        self._tokens.append(token)
        self._context.append([token])
        self._steps.append(step)
        self._scored = len(self._steps)
        return token

    def _forward(self, *, ahead: bool, draft: bool = False, stop: bool = False) -> list[Row]:
        """Run the pending tokens and score the forced ones among them.

        Args:
            ahead: whether the last of them is run too, so that the last row is what comes after it.
            draft: whether a token is chosen next, under the mask, so that guesses may be run with them.
            stop: whether the stop is scored behind the last of them.

        Returns:
            The logits before each unscored token, and those after the last one if ``ahead``.
        """
        unscored = self._tokens[self._scored :]
        count = len(unscored) + ahead
        end = len(self._context) - (not ahead)
        drafts = self._drafts if draft else None
        if drafts is not None and len(self._context.known(count, end=end)) < count:
            drafts.settle(self._context)
            drafts.propose(self._context, self._matcher, self._mask[0], self._max_tokens - len(self._tokens))
        elif drafts is not None:
            drafts.spare()
            drafts = None
        began = perf_counter()
        tree = None if drafts is None else drafts.tree
        rows = self._rows(count, end, tree)
        in_masks = self._foresee(rows, unscored, tree, chooses=draft, stops=stop)
        spent = perf_counter() - began - in_masks
        self._time_mask += in_masks
        self._time_model += spent
        if drafts is not None:
            drafts.observe(self._context, rows[-1], spent)
        for offset, token in enumerate(unscored):
            self._steps[self._scored + offset] = Step(token, True, 0.0, self._log_p(rows[offset], [token]))
        self._scored += len(unscored)
        return rows

    def _log_p(self, row: Row, tokens: Sequence[int]) -> float:
        """Log of the probability that the model gives to some tokens together."""
        if not isinstance(row, ResidentRow):
            return log_mass(row[list(tokens)]) - log_mass(row)
        questions = [Scoring(row.place, token) for token in tokens]
        row.logits.foresee(questions)
        answers = [row.logits.ask(question) for question in questions]
        if not all(answer.is_finite for answer in answers):
            raise no_law()
        return log_mass(np.array([answer.log_z for answer in answers]))

    def _foresee(
        self, rows: Sequence[Row], unscored: Sequence[int], tree: DraftTree | None, *, chooses: bool, stops: bool
    ) -> float:
        """Ask what will be asked of a pass, all at once; return the seconds that masks took of it.

        Where the logits are arrays there is nothing to do.
        """
        row = rows[-1]
        if not isinstance(row, ResidentRow):
            return 0.0
        asked: list[tuple[ResidentLogits, Question]] = [
            (each.logits, Scoring(each.place, token))
            for each, token in zip(rows, unscored, strict=False)
            if isinstance(each, ResidentRow)
        ]
        shape = self._resident_shape(row) if chooses else None
        ends = self._vocabulary.eos if stops else () if shape is None else self._ends()
        if stops or len(ends) > 1:  # the stop is all of them together
            asked += ((row.logits, Scoring(row.place, token)) for token in ends)
        began = perf_counter()
        if shape is not None:
            asked.append((row.logits, choosing(row.place, self._mask[0], shape, copy.deepcopy(self._generator))))
            ahead = self._context.ahead
            if tree is not None and ahead is not None and not self._withheld and not self._potentials:
                asked += tree_questions(tree, ahead.told, self._matcher, shape, self._generator)
        in_masks = perf_counter() - began
        ask_together(asked)
        if chooses and shape is None:
            on_host(row)
        return in_masks

    def _rows(self, count: int, end: int, tree: DraftTree | None) -> list[Row]:
        """The logits after each of the last ``count`` of ``end`` tokens of the context."""
        rows: list[Row]
        if self._jump_forward:
            rows = self._context.rows(count, tree.token_tree() if tree else None, end=end)
        else:
            session = self._context.session
            unseen = self._context.tokens[session.length : end]
            first = len(unseen) - count + 1
            rows = [session.extend(unseen[:first]), *(session.extend([token]) for token in unseen[first:])]
        if rows[-1].shape != (self._vocabulary.size,):
            raise GenerationError(
                f"model {self._context.model.name!r}",
                f"it returned {rows[-1].shape[-1]} logits",
                evidence=f"its vocabulary has {self._vocabulary.size} tokens",
                remedy="give the vocabulary the width of the model's head (size=...)",
            )
        return rows

    def _score_forced_ending(self) -> None:
        stopped = bool(self._steps) and self._steps[-1].token is None
        forced_stop = stopped and self._steps[-1].log_z is None
        if not forced_stop and self._scored >= len(self._tokens):
            return
        last = self._forward(ahead=forced_stop, stop=forced_stop)[-1]
        if forced_stop:
            self._steps[-1] = Step(None, True, 0.0, self._log_p(last, self._vocabulary.eos))


def _words_without(ids: Sequence[int], size: int) -> NDArray[np.int32]:
    """A mask row with every bit set but those of ``ids``."""
    bits = np.ones((size + 31) // 32 * 32, dtype=np.uint8)
    bits[list(ids)] = 0
    words: NDArray[np.int32] = np.packbits(bits, bitorder="little").view(np.int32)
    return words

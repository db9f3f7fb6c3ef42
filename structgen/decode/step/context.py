"""The tokens in front of a model, with what the model made of them, and the checks before anything is generated.

``Context`` keeps the session of a model between steps. ``check_start`` and ``check_vocabulary`` refuse what cannot
succeed: a budget below the shortest output, or a constraint that was compiled for another vocabulary.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Self, final

from structgen.decode.step.logits_row import LogitsRows, LookAhead, on_host
from structgen.engine import Constraint, Vocabulary, compile
from structgen.errors import BudgetError, GenerationError, VocabularyError
from structgen.grammar.nodes import Grammar
from structgen.models.protocol import Extension, ResidentSession, TreeSession
from structgen.models.session import ChainSession

if TYPE_CHECKING:
    from collections.abc import Sequence

    from structgen.decode.step.logits_row import LogitsRow
    from structgen.grammar.limits import Limits
    from structgen.models.protocol import LanguageModel, Logits, ResidentLogits, Session
    from structgen.models.protocol.diffusion import DiffusionModel
    from structgen.models.protocol.tree import TokenTree

__all__ = ["Context", "check_start", "check_vocabulary", "constraint_of"]

_SHORT: Final = 32
"""Up to so many logits are taken although one is wanted."""


@final
class Context:
    """A sequence of tokens that generations go on from, and its session.

    The session (the key-value cache) holds a prefix of the tokens; the rest reaches the model with the next forward
    pass.  So text can be added, taken back or exchanged at no cost but that of what changed.

    A forward pass may look ahead at tokens that are not part of the sequence (``rows``).  Those of them that are added
    then need no pass any more: which they are is read from the tokens themselves, so cache and tokens cannot differ.

    Close it, or use it in a ``with`` statement, to free the cache.

    Args:
        model: the language model.
        tokens: token ids to begin with.
    """

    __slots__ = ("_ahead", "_session", "_tokens", "_trees", "model")

    def __init__(self, model: LanguageModel, tokens: Sequence[int] = ()) -> None:
        self.model = model
        self._tokens = list(tokens)
        self._session = model.start()
        self._ahead: LookAhead | None = None
        self._trees: TreeSession | ChainSession | None = None  # what holds the tree of the look ahead

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __len__(self) -> int:
        return len(self._tokens)

    @property
    def tokens(self) -> tuple[int, ...]:
        """All token ids."""
        return tuple(self._tokens)

    @property
    def unseen(self) -> list[int]:
        """The tokens at the end that the model has not been given yet."""
        return self._tokens[self.session.length :]

    @property
    def session(self) -> Session:
        """The model's state over the tokens that it was given; of a look ahead, over those that came."""
        self._settle()
        return self._session

    @property
    def ahead(self) -> LookAhead | None:
        """What the last forward pass told about tokens to come; None where it did not look ahead.

        It stays true of what follows the same tokens, also where some were taken back.
        """
        return self._ahead

    @property
    def forwards(self) -> int:
        """Forward passes that were run for this context; a fork starts at zero."""
        return self._session.forwards

    def append(self, tokens: Sequence[int]) -> None:
        """Add tokens at the end."""
        self._tokens.extend(tokens)

    def truncate(self, length: int) -> None:
        """Drop all tokens from position ``length`` on.

        The last one that stays is left to the next forward pass, which tells what follows it.

        Raises:
            ValueError: ``length`` is negative or larger than the sequence.
        """
        if not 0 <= length <= len(self._tokens):
            raise ValueError(f"length must lie between 0 and {len(self._tokens)}; found {length}")
        del self._tokens[length:]
        session = self.session
        if session.length >= length:
            session.truncate(max(length - 1, 0))
        if self._ahead is not None and length < self._ahead.start:
            self._ahead = None

    def replace(self, tokens: Sequence[int]) -> None:
        """Exchange the whole sequence; what it has in common with the old one, from the start on, stays cached."""
        common = 0
        for old, new in zip(self._tokens, tokens, strict=False):
            if old != new:
                break
            common += 1
        self.truncate(common)
        self.append(tokens[common:])

    def prepare(self) -> None:
        """See to it that the next forward pass has a token to run, the last one again if need be.

        Raises:
            ValueError: there are no tokens at all.
        """
        if not self._tokens:
            raise ValueError("a context must hold a token before anything can be generated")
        self.truncate(len(self._tokens))

    def read(self) -> None:
        """Run all tokens but the last, which the next forward pass begins with."""
        unseen = self.unseen
        if len(unseen) > 1:
            self._session.extend(unseen[:-1])

    @property
    def branches(self) -> bool:
        """Whether all of a tree can be looked at in one pass, or only its first chain."""
        return self._branching is not None

    @property
    def _branching(self) -> TreeSession | None:
        session = self._session
        return session if isinstance(session, TreeSession) and session.can_branch else None

    @property
    def _resident(self) -> ResidentSession | None:
        session = self._session
        return session if isinstance(session, ResidentSession) and session.is_resident else None

    @property
    def looks_ahead(self) -> bool:
        """Whether a look ahead is of use.

        It is not where a session cannot branch, and has to run its whole sequence again after tokens were cut off: it
        says so itself (``cuts_freely``).
        """
        return self.branches or bool(getattr(self._session, "cuts_freely", True))

    def known(self, count: int, *, end: int | None = None) -> list[LogitsRow]:
        """The logits that ``rows`` would return, up to the first that a look ahead does not tell."""
        rows: list[LogitsRow] = []
        ahead = self._ahead
        end = len(self._tokens) if end is None else end
        first = end - count + 1
        if ahead is None or first < ahead.start:
            return rows
        for length in range(first, end + 1):
            row = ahead.distribution(self._tokens[ahead.start : length])
            if row is None:
                break
            rows.append(row)
        return rows

    def distributions(
        self, count: int, tree: TokenTree | None = None, *, end: int | None = None, again: bool = False
    ) -> list[Logits]:
        """What ``rows`` returns, on the host."""
        return [on_host(row) for row in self.rows(count, tree, end=end, again=again)]

    def rows(
        self, count: int, tree: TokenTree | None = None, *, end: int | None = None, again: bool = False
    ) -> list[LogitsRow]:
        """Return the logits after each of the last ``count`` tokens, from a look ahead or from the model.

        What the model has not seen is run in one forward pass, a prompt of several tokens before the first of the
        ``count`` in one of its own: only its last logits are needed.

        Args:
            count: at least one.  None of these tokens is seen already, but by a look ahead.
            tree: looked at after the tokens where there is a pass; ``ahead`` tells then what it told.  Not after a
                long prompt where only a chain can be run, whose logits are those of all tokens or of one.
            end: takes the first ``end`` tokens for all of them; without a tree.
            again: with a count of 1: run what the model has not seen also where a look ahead tells its distribution,
                for the sake of the tree.
        """
        rows = [] if again else self.known(count, end=end)
        if len(rows) == count:
            return rows
        seen = self.session.length
        self._ahead = None
        unseen = self._tokens[seen:end]
        missing = count - len(rows)
        if len(unseen) > missing > 1:
            rows.extend(self._run(unseen[: 1 - missing], every=False))
            unseen, missing = unseen[1 - missing :], missing - 1
        every = 1 < missing == len(unseen)
        if tree is None or not (self.branches or (self.looks_ahead and (every or len(unseen) <= _SHORT))):
            rows.extend(self._run(unseen, every=every))
            return rows
        trees = self._branching or ChainSession(self._session, name=self.model.name)
        try:
            found = self._run_tree(trees, unseen, tree, every=every)
            self._look(trees, tree, found, first=missing - 1)
        except BaseException:  # Ctrl-C may land after the pass, where the cache holds a chain
            self._forget(len(self._tokens))
            raise
        rows.extend(LogitsRows(found, 0, missing))
        return rows

    def extension(self, tree: TokenTree | None = None) -> Extension:
        """What has to run for the logits of the next token, as a part of a pass over several contexts.

        ``told`` takes what the pass tells; nothing may happen to the context in between.

        Args:
            tree: looked at after the tokens; only where ``branches``.
        """
        return Extension(self.session, self.unseen, all_positions=False, tree=tree)

    def told(self, tree: TokenTree | None, rows: Logits) -> Logits:
        """Take over what a pass told of an ``extension``, and return the logits of the next token.

        Args:
            tree: that of the extension.
            rows: what the pass returned for it: ``[1 + n, V]``, or ``[V]`` without a tree.
        """
        self._ahead = None
        if tree is None or not isinstance(self._session, TreeSession):
            return rows
        self._look(self._session, tree, rows, first=0)
        distribution: Logits = rows[0]
        return distribution

    def fork(self) -> Context:
        """Return an independent context with the same tokens, and what is cached of them."""
        copy = Context.__new__(Context)
        copy.model = self.model
        copy._tokens = list(self._tokens)
        copy._session = self.session.fork()
        copy._ahead = self._ahead  # what was told stays true; the cache of it is not the copy's
        copy._trees = None
        return copy

    def close(self) -> None:
        """Free the cache; the tokens stay."""
        self._ahead = self._trees = None
        self._session.close()

    def _run(self, token_ids: Sequence[int], *, every: bool) -> LogitsRows:
        """Extend the session; the logits after each of the tokens, or after the last."""
        if (resident := self._resident) is not None:
            return LogitsRows(resident.extend_resident(token_ids, all_positions=every))
        return LogitsRows(self._session.extend_all(token_ids) if every else self._session.extend(token_ids)[None])

    def _run_tree(
        self, trees: TreeSession | ChainSession, token_ids: Sequence[int], tree: TokenTree, *, every: bool
    ) -> Logits | ResidentLogits:
        """As ``_run``, and look at a tree after the tokens."""
        if (resident := self._resident) is None:
            return trees.extend_tree(token_ids, tree, all_positions=every)
        if isinstance(trees, ChainSession):
            return trees.extend_resident(resident, token_ids, tree, all_positions=every)
        return resident.extend_resident(token_ids, all_positions=every, tree=tree)

    def _look(
        self, trees: TreeSession | ChainSession, tree: TokenTree, logits: Logits | ResidentLogits, *, first: int
    ) -> None:
        """Note what a pass told of a tree after all tokens, from row ``first`` on, and what holds the tree."""
        self._trees = trees
        nodes = tree.first_chain() if isinstance(trees, ChainSession) else None
        self._ahead = LookAhead(len(self._tokens), tree, LogitsRows(logits, first), nodes)

    def _settle(self) -> None:
        """Take over what a look ahead has run of the tokens that came."""
        ahead, trees = self._ahead, self._trees
        if ahead is not None and trees is not None:
            self._trees = None
            try:
                trees.keep(ahead.path(self._tokens[ahead.start :]))
            except BaseException:  # as in ``rows``
                self._forget(ahead.start)
                raise

    def _forget(self, length: int) -> None:
        """Drop the look ahead, and what the cache holds of it after ``length`` tokens."""
        self._ahead = self._trees = None
        if self._session.length > length:
            self._session.truncate(length)

    def __repr__(self) -> str:
        return f"<Context of {len(self._tokens)} tokens, {self._session.length} cached, {self.model.name}>"


def constraint_of(
    grammar: Grammar | Constraint,
    model: LanguageModel | DiffusionModel,
    limits: Limits | None,
    *,
    heeds_temperatures: bool = False,
) -> Constraint:
    """Return a constraint for the model's vocabulary; a grammar is compiled.

    Args:
        grammar: the grammar, or a constraint.
        model: the model.
        limits: for compiling.
        heeds_temperatures: whether the caller draws the parts that have a temperature at that temperature.

    Raises:
        TypeError: it is neither.
        ValueError: parts of the grammar have a temperature, which the caller does not heed.
        GrammarError, LimitExceeded, VocabularyError: the grammar does not compile.
    """
    if isinstance(grammar, (Constraint, Grammar)):
        made = grammar if isinstance(grammar, Constraint) else compile(grammar, model.vocabulary, limits=limits)
        if made.has_temperatures and not heeds_temperatures:
            raise ValueError(
                "parts of the grammar have a temperature of their own, which this way of decoding does not heed; "
                "call generate(...) with a sampler of tokens, or leave temperatures out of the grammar"
            )
        return made
    raise TypeError(f"generate: expected a Grammar or a Constraint, found {type(grammar).__name__}")


def check_start(model: LanguageModel, prompt_tokens: int, constraint: Constraint, max_tokens: int) -> None:
    """Check that an output can be completed.

    Raises:
        ValueError: ``max_tokens`` is no number of tokens.
        BudgetError: the shortest string of the grammar takes more than ``max_tokens``.
        GenerationError: prompt and ``max_tokens`` do not fit the model's context.
        VocabularyError: the constraint belongs to another vocabulary.
    """
    check_vocabulary(constraint.vocabulary, model)
    if not isinstance(max_tokens, int) or max_tokens < 0:
        raise ValueError(f"max_tokens must be an integer of at least 0; found {max_tokens!r}")
    needed = constraint.min_tokens()
    if needed > max_tokens:
        raise BudgetError(budget=max_tokens, needed=needed)
    most = model.max_context
    excess = 0 if most is None else prompt_tokens + max_tokens - most
    if excess > 0:
        raise GenerationError(
            f"model {model.name!r}",
            f"prompt and output exceed its context by {excess} tokens",
            evidence=f"the prompt has {prompt_tokens}, max_tokens={max_tokens}, the context holds {most}",
            remedy=_context_remedy(excess, max_tokens, needed),
        )


def check_vocabulary(vocabulary: Vocabulary, model: LanguageModel | DiffusionModel) -> None:
    """Check that a constraint was compiled for the model's vocabulary.

    Raises:
        VocabularyError: it was not.
    """
    if vocabulary is not model.vocabulary and vocabulary.digest != model.vocabulary.digest:
        raise VocabularyError(
            "constraint",
            f"it was compiled for another vocabulary than that of model {model.name!r}",
            evidence=f"{vocabulary!r}, not {model.vocabulary!r}",
            remedy="compile the grammar with model.vocabulary",
        )


def _context_remedy(excess: int, max_tokens: int, needed: int) -> str:
    if max_tokens - excess >= needed:
        return f"allow at most max_tokens={max_tokens - excess}, or shorten the prompt"
    return f"shorten the prompt by {needed - (max_tokens - excess)} tokens at least and lower max_tokens"

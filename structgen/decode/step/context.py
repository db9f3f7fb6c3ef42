"""``Context``: a sequence of tokens and its key-value cache, where a token's walk through the loop meets the model.

``rows`` runs the tokens that the model has not seen and returns logits; rows that a look-ahead computed are not run
again.  ``check_model``, ``check_start`` and ``check_vocabulary`` are the checks before the first forward pass.
"""

from __future__ import annotations

from os import PathLike
from typing import TYPE_CHECKING, Final, Self, cast, final

from structgen.decode.step.background import check_stopped
from structgen.decode.step.logits_row import LogitsRows, LookAhead, on_host
from structgen.engine import Constraint, Vocabulary, compile
from structgen.engine.arguments import wrong_grammar
from structgen.errors import ArgumentError, BudgetError, GenerationError, VocabularyError, found, number_of
from structgen.grammar.nodes import Grammar
from structgen.models.protocol import Extension, LanguageModel, ResidentSession, TreeSession
from structgen.models.protocol.diffusion import DiffusionModel
from structgen.models.session import ChainSession
from structgen.travel import Live

if TYPE_CHECKING:
    from collections.abc import Sequence

    from structgen.decode.step.logits_row import LogitsRow
    from structgen.grammar.limits import Limits
    from structgen.models.protocol import Logits, ResidentLogits, Session
    from structgen.models.protocol.tree import TokenTree

__all__ = [
    "Context",
    "check_model",
    "check_start",
    "check_vocabulary",
    "constraint_of",
    "refuse_temperatures",
    "shared_length",
]

_SHORT: Final = 32
"""Maximum number of unseen tokens whose logits are all computed so that a chain can be looked ahead."""
_LOCAL_MODELS: Final[tuple[type, ...]] = (LanguageModel, DiffusionModel)


@final
class Context(Live):
    """A sequence of tokens, and the model's session over a prefix of it.

    The session holds the key-value cache.  The tokens after its prefix are run in the next forward pass, so appending,
    truncating and replacing cost only the tokens that changed.

    A forward pass may look ahead at draft tokens that are not part of the sequence (``rows``).  Draft tokens that are
    appended afterwards need no further pass.  The context finds them by comparing tokens, so cache and tokens always
    agree.

    Close it, or use it in a ``with`` statement, to free the cache.

    Args:
        model: the language model.
        tokens: the first token ids.

    Raises:
        ArgumentError: ``model`` is no language model.
    """

    __slots__ = ("_ahead", "_is_resident", "_is_tree", "_session", "_tokens", "_trees", "model")

    def __init__(self, model: LanguageModel, tokens: Sequence[int] = ()) -> None:
        check_model(model, "Context", kinds=(LanguageModel,))
        self.model = model
        self._tokens = list(tokens)
        self._set_session(model.start())
        self._ahead: LookAhead | None = None
        self._trees: TreeSession | ChainSession | None = None  # the session whose cache holds the look-ahead's tree

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
        """The tokens at the end that the model has not run."""
        return self._tokens[self.session.length :]

    @property
    def session(self) -> Session:
        """The model's session; draft tokens of a look-ahead that were not appended are removed from it."""
        self._settle()
        return self._session

    @property
    def ahead(self) -> LookAhead | None:
        """The logits that the last forward pass computed for draft tokens; None if it had none.

        They stay valid after the same tokens, also if some of these are removed and appended again.
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
        """Remove all tokens from position ``length`` on.

        The last remaining token is run again in the next forward pass, for the logits after it.

        Raises:
            ValueError: ``length`` is negative or larger than the sequence.
        """
        if not 0 <= length <= len(self._tokens):
            raise ValueError(f"length must be between 0 and {len(self._tokens)}; found {length}")
        del self._tokens[length:]
        session = self.session
        if session.length >= length:
            session.truncate(max(length - 1, 0))
        if self._ahead is not None and length < self._ahead.start:
            self._ahead = None

    def replace(self, tokens: Sequence[int]) -> None:
        """Replace the whole sequence; the cache keeps the prefix that old and new tokens share."""
        common = shared_length(self._tokens, tokens)
        self.truncate(common)
        self.append(tokens[common:])

    def prepare(self) -> None:
        """Make sure that the next forward pass has a token to run, if necessary the last one again.

        Raises:
            ValueError: there are no tokens at all.
        """
        if not self._tokens:
            raise ValueError("a context must hold a token before anything can be generated")
        self.truncate(len(self._tokens))

    def read(self) -> None:
        """Run all unseen tokens but the last, which the next forward pass begins with."""
        unseen = self.unseen
        if len(unseen) > 1:
            check_stopped()
            self._session.extend(unseen[:-1])

    @property
    def branches(self) -> bool:
        """Whether one pass can run a whole draft tree, or only its first chain."""
        return self._branching is not None

    @property
    def _branching(self) -> TreeSession | None:
        session = cast("TreeSession", self._session)
        return session if self._is_tree and session.can_branch else None

    @property
    def _resident(self) -> ResidentSession | None:
        session = cast("ResidentSession", self._session)
        return session if self._is_resident and session.is_resident else None

    @property
    def looks_ahead(self) -> bool:
        """Whether the session can look ahead cheaply: it branches, or truncates without running its tokens again."""
        return self.branches or bool(getattr(self._session, "cuts_freely", True))

    def computed(self, count: int, *, end: int | None = None) -> list[LogitsRow]:
        """The logits that ``rows`` would return, up to the first that no look-ahead computed."""
        rows: list[LogitsRow] = []
        ahead = self._ahead
        end = len(self._tokens) if end is None else end
        first = end - count + 1
        if ahead is None or first < ahead.start:
            return rows
        for length in range(first, end + 1):
            row = ahead.row_after(self._tokens[ahead.start : length])
            if row is None:
                break
            rows.append(row)
        return rows

    def rows_on_host(self, count: int, tree: TokenTree | None = None, *, again: bool = False) -> list[Logits]:
        """Return ``rows`` as arrays on the host."""
        return [on_host(row) for row in self.rows(count, tree, again=again)]

    def rows(
        self, count: int, tree: TokenTree | None = None, *, end: int | None = None, again: bool = False
    ) -> list[LogitsRow]:
        """Return the logits after each of the last ``count`` tokens, from a look-ahead or from the model.

        One forward pass runs the unseen tokens.  Unseen tokens before the ``count`` run in a pass of their own, which
        computes only its last logits.

        Args:
            count: at least one; the session has seen none of these tokens, except by a look-ahead.
            tree: draft tokens to run after the tokens if a pass is needed; ``ahead`` has their logits then.  Ignored
                after a long prompt if only a chain can be run: its session computes all logits or one.
            end: use only the first ``end`` tokens; without a tree.
            again: with a count of 1: run the unseen tokens, and the tree after them, even if a look-ahead has the
                logits.
        """
        rows = [] if again else self.computed(count, end=end)
        if len(rows) == count:
            return rows
        check_stopped()
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
            logits = self._run_tree(trees, unseen, tree, every=every)
            self._set_ahead(trees, tree, logits, first=missing - 1)
        except BaseException:  # Ctrl-C may come after the pass, when the cache holds a chain
            self._forget(len(self._tokens))
            raise
        rows.extend(LogitsRows(logits, 0, missing))
        return rows

    def extension(self, tree: TokenTree | None = None) -> Extension:
        """Return the unseen tokens as one part of a pass over several contexts.

        Hand the logits of the pass to ``take_logits``, without changing the context in between.

        Args:
            tree: draft tokens to run after the unseen tokens; requires ``branches``.
        """
        check_stopped()
        return Extension(self.session, self.unseen, all_positions=False, tree=tree)

    def take_logits(self, tree: TokenTree | None, rows: Logits) -> Logits:
        """Take the logits of an ``extension`` from the pass that ran it, and return those of the next token.

        ``rows`` is ``[1 + n, V]`` for the tree of the extension, or ``[V]`` without a tree.
        """
        self._ahead = None
        if tree is None or not isinstance(self._session, TreeSession):
            return rows
        self._set_ahead(self._session, tree, rows, first=0)
        logits: Logits = rows[0]
        return logits

    def fork(self) -> Context:
        """Return an independent context with the same tokens and a fork of the cache."""
        copy = Context.__new__(Context)
        copy.model = self.model
        copy._tokens = list(self._tokens)
        copy._set_session(self.session.fork())
        copy._ahead = self._ahead  # the logits stay valid; the cache of the draft tokens is not forked
        copy._trees = None
        return copy

    def _set_session(self, session: Session) -> None:
        self._session = session
        # Read at each step, and checks against a protocol are slow.
        self._is_tree = isinstance(session, TreeSession)
        self._is_resident = isinstance(session, ResidentSession)

    def close(self) -> None:
        """Free the cache; the tokens stay."""
        self._ahead = self._trees = None
        self._session.close()

    def _run(self, token_ids: Sequence[int], *, every: bool) -> LogitsRows:
        """Extend the session; return the logits after each of the tokens, or only after the last."""
        if (resident := self._resident) is not None:
            return LogitsRows(resident.extend_resident(token_ids, all_positions=every))
        return LogitsRows(self._session.extend_all(token_ids) if every else self._session.extend(token_ids)[None])

    def _run_tree(
        self, trees: TreeSession | ChainSession, token_ids: Sequence[int], tree: TokenTree, *, every: bool
    ) -> Logits | ResidentLogits:
        """As ``_run``, with draft tokens after the tokens."""
        if (resident := self._resident) is None:
            return trees.extend_tree(token_ids, tree, all_positions=every)
        if isinstance(trees, ChainSession):
            return trees.extend_resident(resident, token_ids, tree, all_positions=every)
        return resident.extend_resident(token_ids, all_positions=every, tree=tree)

    def _set_ahead(
        self, trees: TreeSession | ChainSession, tree: TokenTree, logits: Logits | ResidentLogits, *, first: int
    ) -> None:
        """Store the logits of a tree after all tokens, from row ``first`` on, and the session that holds the tree."""
        self._trees = trees
        nodes = tree.first_chain() if isinstance(trees, ChainSession) else None
        self._ahead = LookAhead(len(self._tokens), tree, LogitsRows(logits, first), nodes)

    def _settle(self) -> None:
        """Keep the draft tokens in the cache that were appended since; drop the others."""
        ahead, trees = self._ahead, self._trees
        if ahead is not None and trees is not None:
            self._trees = None
            try:
                trees.keep(ahead.path(self._tokens[ahead.start :]))
            except BaseException:  # as in ``rows``
                self._forget(ahead.start)
                raise

    def _forget(self, length: int) -> None:
        """Drop the look-ahead, and its tokens from the cache after position ``length``."""
        self._ahead = self._trees = None
        if self._session.length > length:
            self._session.truncate(length)

    def __repr__(self) -> str:
        return f"<Context of {number_of(len(self._tokens), 'token')}, {self._session.length} cached, {self.model.name}>"


def shared_length(first: Sequence[int], second: Sequence[int]) -> int:
    """Return the length of the prefix that two sequences share."""
    count = min(len(first), len(second))
    if first[:count] == second[:count]:
        return count
    return next((at for at in range(count) if first[at] != second[at]), count)


def constraint_of(
    grammar: Grammar | Constraint,
    model: LanguageModel | DiffusionModel,
    limits: Limits | None,
    *,
    heeds_temperatures: bool = False,
) -> Constraint:
    """Return a constraint for the model's vocabulary; a grammar is compiled within ``limits``.

    ``heeds_temperatures`` is whether the caller samples at the temperatures that parts of the grammar set.

    Raises:
        ArgumentError: ``grammar`` is neither; a schema, a type or a text must become one first.
        ValueError: parts of the grammar have a temperature, and the caller ignores temperatures.
        GrammarError, LimitExceeded, VocabularyError: the grammar does not compile.
    """
    if isinstance(grammar, (Constraint, Grammar)):
        constraint = grammar if isinstance(grammar, Constraint) else compile(grammar, model.vocabulary, limits=limits)
        if not heeds_temperatures:
            refuse_temperatures(constraint)
        return constraint
    raise wrong_grammar("grammar", grammar)


def refuse_temperatures(constraint: Constraint) -> None:
    """Refuse with ``ValueError`` a grammar whose parts have temperatures, where all tokens are sampled alike."""
    if constraint.has_temperatures:
        raise ValueError(
            "parts of the grammar have a temperature of their own, which this way of decoding ignores; "
            "call generate(...) with a sampler of tokens, or leave temperatures out of the grammar"
        )


def check_model(model: object, call: str, *, kinds: tuple[type, ...] = _LOCAL_MODELS) -> None:
    """Check that ``model`` is of one of ``kinds``.

    Raises:
        ArgumentError: it is not, for instance a name, or a model of transformers.
    """
    if isinstance(model, kinds) and not isinstance(model, type):
        return
    if isinstance(model, (str, PathLike)):
        name = str(model)
        remedy = f"load it first: sg.load_model({name!r:.80}), or sg.load_diffusion_model(...) for a diffusion model"
    elif model is None:
        remedy = "pass sg.load_model() for the embedded model, or sg.load_model(name)"
    elif isinstance(model, tuple) and len(model) == 2:
        remedy = "wrap the pair: sg.load_model((model, tokenizer))"
    elif isinstance(model, type):
        remedy = "pass an object: sg.load_model(name)"
    elif hasattr(model, "serve"):
        remedy = "a model on a server answers programs and sg.extract; pass it there as model="
    elif _is_network(model):
        remedy = "wrap it with its tokenizer: sg.load_model((model, tokenizer))"
    else:
        remedy = "pass sg.load_model(name), or an object with the attributes of structgen.models.LanguageModel"
    raise ArgumentError(call, "expected a model", evidence=found(model), remedy=remedy)


def _is_network(model: object) -> bool:
    """Whether it is a model of torch or transformers, which are not imported for that."""
    return any(kind.__module__.partition(".")[0] in ("torch", "transformers") for kind in type(model).__mro__)


def check_start(model: LanguageModel, prompt_tokens: int, constraint: Constraint, max_tokens: int) -> None:
    """Check that an output can be completed.

    Raises:
        ValueError: ``max_tokens`` is no number of tokens.
        BudgetError: the shortest string of the grammar takes more than ``max_tokens``.
        GenerationError: prompt and ``max_tokens`` do not fit the model's context.
        VocabularyError: the constraint belongs to another vocabulary.
    """
    own, of_model = constraint.vocabulary, model.vocabulary
    if own.eos == of_model.eos or own.special != of_model.special or own.tokens != of_model.tokens:
        # It may have stop tokens of its own, but no other tokens.
        check_vocabulary(own, model)
    if not isinstance(max_tokens, int) or max_tokens < 0:
        raise ValueError(f"max_tokens must be an integer of at least 0; found {max_tokens!r}; pass max_tokens=256")
    if not constraint.matcher().completes_within(max_tokens):
        raise BudgetError(budget=max_tokens, needed=constraint.min_tokens())
    limit = model.max_context
    excess = 0 if limit is None else prompt_tokens + max_tokens - limit
    if excess > 0:
        raise GenerationError(
            f"model {model.name!r}",
            f"prompt and output exceed its context by {number_of(excess, 'token')}",
            evidence=f"the prompt has {prompt_tokens}, max_tokens={max_tokens}, the context holds {limit}",
            remedy=_context_remedy(excess, max_tokens, constraint.min_tokens()),
        )


def check_vocabulary(vocabulary: Vocabulary, model: LanguageModel | DiffusionModel) -> None:
    """Check that a constraint was compiled for the model's vocabulary.

    Raises:
        VocabularyError: it was not.
    """
    if vocabulary is not model.vocabulary and vocabulary.digest != model.vocabulary.digest:
        raise VocabularyError(
            "constraint",
            f"it was compiled for another vocabulary, not for that of model {model.name!r}",
            evidence=f"{vocabulary!r}, not {model.vocabulary!r}",
            remedy="compile the grammar with model.vocabulary",
        )


def _context_remedy(excess: int, max_tokens: int, needed: int) -> str:
    if max_tokens - excess >= needed:
        return f"allow at most max_tokens={max_tokens - excess}, or shorten the prompt"
    return f"shorten the prompt by at least {number_of(needed - (max_tokens - excess), 'token')} and lower max_tokens"

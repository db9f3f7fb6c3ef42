"""The grammar of one request in SGLang, and the masks of a batch and of trees of drafts.

Source: SGLang 0.5.23, ``srt/constrained`` and ``srt/speculative/spec_utils.py``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from http import HTTPStatus
from itertools import pairwise
from typing import Any, Final, NoReturn, final
from weakref import ref

import numpy as np
import torch
from numpy.typing import NDArray
from sglang.srt.constrained.base_grammar_backend import BaseGrammarObject, GrammarStats
from sglang.srt.constrained.reasoner_grammar_backend import ReasonerGrammarObject
from sglang.srt.utils.common import is_pin_memory_available
from structgen_kernels.masks.apply_mask import apply_mask
from structgen_kernels.masks.mask_rows import MaskRows

from structgen.engine import Constraint, compile, fill_mask_trees
from structgen.errors import BudgetError
from structgen.integrations.request_matcher import RequestMatcher, fill_rows
from structgen.log import logger

__all__ = [
    "StructgenGrammar",
    "allocate_vocab_mask",
    "apply_vocab_mask",
    "fill_entries",
    "fill_trees",
    "inner_grammar",
    "move_vocab_mask",
    "plain_grammar",
]

_ALL: Final = -1
"""Each word of a row that allows everything."""


def allocate_vocab_mask(vocab_size: int, batch_size: int, device: Any) -> torch.Tensor:
    """A mask that allows everything, int32 ``[batch_size, ceil(vocab_size / 32)]`` on the host, whatever the device."""
    shape = (batch_size, (vocab_size + 31) // 32)
    return torch.full(shape, _ALL, dtype=torch.int32, pin_memory=is_pin_memory_available())


def move_vocab_mask(vocab_mask: torch.Tensor, device: Any) -> torch.Tensor:
    """The mask on a device; the copy does not wait."""
    return vocab_mask.to(device, non_blocking=True)


def apply_vocab_mask(logits: torch.Tensor, vocab_mask: torch.Tensor) -> None:
    """Set the logits of what is not allowed to minus infinity, on any device."""
    size = min(32 * vocab_mask.shape[1], logits.shape[1])
    apply_mask(logits[: len(vocab_mask)], MaskRows.of_bitmask(vocab_mask, size))


@final
class StructgenGrammar(BaseGrammarObject):  # type: ignore[misc]  # SGLang has no types
    """One request's grammar; or the pattern in SGLang's cache that ``copy`` copies.

    Args:
        constraint: for a vocabulary as wide as the model's head.
        kind: SGLang's name of the description: ``json``, ``regex``, ``ebnf``, ``structural_tag``.
        text: the description.
    """

    def __init__(self, constraint: Constraint, kind: str, text: str) -> None:
        super().__init__()
        self.constraint = constraint
        self.kind = kind
        self.text = text
        self.request = RequestMatcher(constraint.matcher())
        self.grammar_stats = GrammarStats(dispatch_type=kind)
        self._req: Any = None
        self._reasoner: Any = None
        self._lost = 0  # tokens since a limit was met

    def copy(self) -> StructgenGrammar:
        """A grammar at the start of an answer, for another request."""
        made = StructgenGrammar(self.constraint, self.kind, self.text)
        made.grammar_stats = dataclasses.replace(self.grammar_stats, is_cache_hit=True, tree_traversal_time=[])
        return made

    def begin(self, req: Any, reasoner: Any = None) -> None:
        """Learn which request it serves; ``reasoner`` is SGLang's object around it, if it has one.

        Raises:
            BudgetError: the shortest answer takes more than ``max_new_tokens``.
            VocabularyError: a stop token of the request is text, which would cut answers off.
            LimitExceeded: a bound of ``Limits`` was reached.
        """
        vocabulary = self.constraint.vocabulary
        stops = [token for token in req.sampling_params.stop_token_ids or () if token not in vocabulary.eos]
        if stops:
            wider = vocabulary.with_eos([*vocabulary.eos, *sorted(stops)])
            self.constraint = compile(self.constraint.grammar, wider, limits=self.constraint.limits)
            self.request = RequestMatcher(self.constraint.matcher())
        most = req.sampling_params.max_new_tokens
        if most is not None and self.constraint.min_tokens() > most:
            raise BudgetError(budget=most, needed=self.constraint.min_tokens())
        self._req, self._reasoner = ref(req), reasoner

    def prepare(self) -> None:
        """Bound the answer by what is left to its request, where it has not begun.

        One token is kept for EOS if the answer can do without: with no room for it, SGLang says ``length``.  Tokens of
        thoughts count; they are known when the thoughts have ended.
        """
        req = None if self._req is None else self._req()
        if req is None or self.request.taken or req.sampling_params.max_new_tokens is None:
            return
        room = int(req.sampling_params.max_new_tokens) - self._thought()
        needed = self.constraint.min_tokens()
        self.request.limit = next((most for most in (room - 1, room) if needed <= most), None)

    def _thought(self) -> int:
        """How many tokens came before the answer."""
        reasoner = self._reasoner
        if reasoner is None or reasoner.reasoning_in_grammar or reasoner.tokens_in_think < 0:
            return 0
        return int(reasoner.tokens_in_think) + len(reasoner.think_end_ids)

    def accept_token(self, token: int) -> None:
        """Take a token; what follows the end has no effect.

        Raises:
            ValueError: it is not allowed; SGLang ends the request with the message.
        """
        self.current_token = token
        if self.request.failure is None:
            self.prepare()
            if self.request.accept([token]):
                return
            if self.request.failure is None:
                self._refuse(token)
        self._lost += 1
        self.end_if_failed()

    def _refuse(self, token: int) -> NoReturn:
        vocabulary = self.constraint.vocabulary
        known = 0 <= token < vocabulary.size
        why = self.request.matcher.explain(token) if known else f"the vocabulary has {vocabulary.size} tokens"
        raise ValueError(f"structgen: token {token} after {self.request.taken} tokens of the answer: {why}")

    def end_if_failed(self) -> None:
        """Let SGLang end the request with the error that its grammar met, if it met one.

        Raises:
            ValueError: the request is not known.
        """
        failure = self.request.failure
        if failure is None:
            return
        req = None if self._req is None else self._req()
        if req is None:
            raise ValueError(f"structgen: {failure}")
        from sglang.srt.managers.schedule_batch import FINISH_ABORT

        req.to_finish = FINISH_ABORT(f"structgen: {failure}", HTTPStatus.INTERNAL_SERVER_ERROR, "InternalServerError")

    def rollback(self, k: int) -> None:
        """Take back the last ``k`` tokens, those past the end included."""
        lost = min(k, self._lost)
        self._lost -= lost
        self.request.rollback(k - lost)

    def is_terminated(self) -> bool:
        """Whether EOS was accepted."""
        return self.request.is_over

    def fill_vocab_mask(self, vocab_mask: torch.Tensor, idx: int) -> None:
        """Write the row of the next token."""
        self.prepare()
        self.request.fill(vocab_mask, idx)
        self.end_if_failed()

    @staticmethod
    def fill_vocab_mask_batched(entries: Sequence[Any], vocab_mask: torch.Tensor) -> None:
        """Write the rows of a batch in one call."""
        fill_entries(entries, vocab_mask)

    @staticmethod
    def reset_vocab_mask(vocab_mask: torch.Tensor) -> None:
        """Let all rows allow everything."""
        vocab_mask.fill_(_ALL)

    def allocate_vocab_mask(self, vocab_size: int, batch_size: int, device: Any) -> torch.Tensor:
        """See the function of this name."""
        return allocate_vocab_mask(vocab_size, batch_size, device)

    @staticmethod
    def move_vocab_mask(vocab_mask: torch.Tensor, device: Any) -> torch.Tensor:
        """See the function of this name."""
        return move_vocab_mask(vocab_mask, device)

    @staticmethod
    def apply_vocab_mask(logits: torch.Tensor, vocab_mask: torch.Tensor) -> None:
        """See the function of this name."""
        apply_vocab_mask(logits, vocab_mask)

    def __repr__(self) -> str:
        return f"StructgenGrammar({self.kind}, {self.text[:80]!r}, {self.request.taken} tokens)"


def inner_grammar(grammar: Any) -> StructgenGrammar | None:
    """The grammar of this module that an object is, or holds for the time after a thought."""
    held = grammar.grammar if isinstance(grammar, ReasonerGrammarObject) else grammar
    return held if isinstance(held, StructgenGrammar) else None


def plain_grammar(grammar: Any) -> StructgenGrammar | None:
    """The grammar whose mask is all there is to the next token: there is no thought, or it has ended."""
    if isinstance(grammar, ReasonerGrammarObject) and (grammar.reasoning_in_grammar or grammar.tokens_after_end < 0):
        return None
    return inner_grammar(grammar)


def fill_entries(entries: Sequence[Any], vocab_mask: torch.Tensor) -> None:
    """Write the listed rows, those of answers in one call; SGLang's objects fill those of thoughts."""
    rows: list[int] = []
    grammars: list[StructgenGrammar] = []
    for entry in entries:
        grammar = plain_grammar(entry.grammar)
        if grammar is None:
            entry.grammar.fill_vocab_mask(vocab_mask, entry.row)
        else:
            grammar.prepare()
            rows.append(entry.row)
            grammars.append(grammar)
    if not grammars:
        return
    words = np.zeros((len(grammars), vocab_mask.shape[1]), dtype=np.int32)
    fill_rows([grammar.request for grammar in grammars], (), words)
    vocab_mask.numpy()[rows] = words
    for grammar in grammars:
        grammar.end_if_failed()


def fill_trees(
    original: Callable[..., Any],
    reqs: Sequence[Any],
    next_token: torch.Tensor,
    next_sibling: torch.Tensor,
    draft_tokens: torch.Tensor,
    vocab_size: int,
) -> Any:
    """In place of SGLang's ``generate_token_bitmask``: the masks of all trees of drafts in one call.

    Args:
        original: SGLang's function, for batches with grammars of others.
        reqs: the requests.
        next_token: for each node of each tree its first child, -1 for none; int64 ``[requests, nodes]`` on the host.
        next_sibling: its next sibling, likewise.
        draft_tokens: the tokens; node 0 is one that is accepted already.
        vocab_size: the width of the logits.

    Returns:
        The mask, ``[requests * nodes, ceil(vocab_size / 32)]``, and a grammar that can apply it; rows of nodes that
        cannot be reached allow everything.
    """
    from sglang.srt.speculative.spec_utils import traverse_tree

    held = [req.grammar for req in reqs if req.grammar is not None]
    if not held or any(inner_grammar(grammar) is None for grammar in held):
        return original(reqs, next_token, next_sibling, draft_tokens, vocab_size)
    nodes = draft_tokens.shape[-1]
    mask = held[0].allocate_vocab_mask(vocab_size=vocab_size, batch_size=draft_tokens.numel(), device="cpu")
    trees: list[_Tree] = []
    for at, req in enumerate(reqs):
        if req.grammar is None or req.grammar.is_terminated():
            continue
        grammar = plain_grammar(req.grammar)
        rows = slice(at * nodes, (at + 1) * nodes)
        if grammar is None:  # the drafts may end a thought, which SGLang's object knows
            links = next_token[at], next_sibling[at], draft_tokens[at]
            traverse_tree(*links, req.grammar, mask[rows], vocab_size=vocab_size)
        else:
            grammar.prepare()
            trees.append(_Tree(grammar, next_token[at], next_sibling[at], draft_tokens[at], mask.numpy()[rows]))
    _fill(trees, mask.shape[1])
    return mask, held[-1]


@final
class _Tree:
    """The drafts of one request, parents before their children.

    Attributes:
        nodes: the node of each token.
        tokens: those of the nodes; ids that the vocabulary does not have are left out, with all that follows them.
        parents: the index of each token's parent; -1 for children of the root.
        rows: the rows of the request, by node.
    """

    def __init__(
        self,
        grammar: StructgenGrammar,
        next_token: torch.Tensor,
        next_sibling: torch.Tensor,
        tokens: torch.Tensor,
        rows: NDArray[np.int32],
    ) -> None:
        self.grammar, self.rows = grammar, rows
        self.nodes: list[int] = []
        self.tokens: list[int] = []
        self.parents: list[int] = []
        children, siblings, ids = next_token.tolist(), next_sibling.tolist(), tokens.tolist()
        size = grammar.constraint.vocabulary.size
        stack = [(children[0], -1)]
        while stack:
            node, parent = stack.pop()
            if node == -1 or len(self.nodes) >= len(ids):
                continue
            stack.append((siblings[node], parent))
            if 0 <= ids[node] < size:
                self.nodes.append(node)
                self.tokens.append(ids[node])
                self.parents.append(parent)
                stack.append((children[node], len(self.nodes) - 1))

    def put(self, words: NDArray[np.int32]) -> None:
        """Narrow the rows of the tree by what is left to the request, and write those that can be reached.

        Args:
            words: the row of the root and one for each token.
        """
        begun = self.grammar.request.taken
        try:
            self._write(words, begun)
        finally:
            self.grammar.request.matcher.rollback(self.grammar.request.taken - begun)

    def _write(self, words: NDArray[np.int32], begun: int) -> None:
        request, eos = self.grammar.request, self.grammar.constraint.vocabulary.eos
        self._narrow(words, 0)
        depths, reached = [0], [True]
        for place, (token, parent) in enumerate(zip(self.tokens, self.parents, strict=True), start=1):
            is_allowed = reached[parent + 1] and bool(int(words[parent + 1, token >> 5]) >> (token & 31) & 1)
            reached.append(is_allowed and token not in eos)
            depths.append(depths[parent + 1] + 1)
            if not reached[place]:
                continue
            if request.limit is not None:
                request.matcher.rollback(request.taken - begun - depths[parent + 1])
                request.matcher.accept(token)
                self._narrow(words, place)
            self.rows[self.nodes[place - 1]] = words[place]
        self.rows[0] = words[0]

    def _narrow(self, words: NDArray[np.int32], row: int) -> None:
        left = self.grammar.request.left
        if left is not None and self.grammar.request.matcher.needs_budget_mask(left):
            self.grammar.request.matcher.fill_mask_within(words, row, left)

    def put_slowly(self, words: NDArray[np.int32]) -> None:
        """Fill and write the rows one by one, after a matcher has met an error in some tree.

        Where it meets one after a draft, the row there allows only EOS: a draft that is taken then ends the request
        with the error when SGLang has it accepted.
        """
        request = self.grammar.request
        request.fill(words, 0)
        if request.failure is None:
            try:
                request.matcher.fill_mask_tree(self.tokens, self.parents, words)
                self.put(words)
                return
            except Exception:  # of whatever kind, it is that of this request
                request.fill(words, 0)
        words[1:] = 0
        for token in self.grammar.constraint.vocabulary.eos:
            words[1:, token >> 5] |= np.int32(1) << np.int32(token & 31)
        self.rows[0] = words[0]
        self.rows[self.nodes] = words[1:]
        self.grammar.end_if_failed()


def _fill(trees: Sequence[_Tree], width: int) -> None:
    if not trees:
        return
    starts = np.cumsum([0, *(1 + len(tree.tokens) for tree in trees)])
    words = np.zeros((int(starts[-1]), width), dtype=np.int32)
    parts = [words[start:end] for start, end in pairwise(starts)]
    healthy = [tree for tree in trees if tree.grammar.request.failure is None]
    try:
        if len(healthy) == len(trees):
            matchers = [tree.grammar.request.matcher for tree in trees]
            fill_mask_trees(matchers, [(tree.tokens, tree.parents) for tree in trees], words)
            for tree, part in zip(trees, parts, strict=True):
                tree.put(part)
            return
    except Exception:
        logger.debug("the trees of a batch are filled one by one", exc_info=True)
    for tree, part in zip(trees, parts, strict=True):
        tree.put_slowly(part)

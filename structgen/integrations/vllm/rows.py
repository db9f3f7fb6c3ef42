"""The mask rows of a whole batch in one call, instead of ``StructuredOutputManager.grammar_bitmask``.

Source: vLLM 0.32, ``vllm/v1/structured_output/__init__.py``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from structgen.integrations.request_matcher import ALL, fill_rows
from structgen.integrations.vllm.backend import RequestGrammar
from structgen.log import logger

if TYPE_CHECKING:
    from structgen.engine import Matcher
    from structgen.engine.row_buffer import RowBuffer

__all__ = ["batch_rows"]


def batch_rows(
    manager: Any, requests: dict[str, Any], ids: list[str], drafts: Mapping[str, Sequence[int]]
) -> Any | None:
    """Fill one row for the next token of each request, and one after each of its drafts.

    Rows before the end of the thoughts, after padding, and past the end of an answer allow everything.

    Args:
        manager: vLLM's ``StructuredOutputManager``, whose backend is ``Backend``.
        requests: all requests by id.
        ids: the constrained requests, in the order of the rows.
        drafts: the draft tokens of each, -1 where padded.

    Returns:
        The rows, an int32 array ``[rows, ceil(V / 32)]``; None if no request is constrained.
    """
    if not ids:
        return None
    if manager._grammar_bitmask is None:
        most = manager.vllm_config.scheduler_config.max_num_seqs
        per_request = 1 + manager.vllm_config.num_speculative_tokens
        manager._grammar_bitmask = manager.backend.allocate_token_bitmask(most * per_request)
    bitmask = manager._grammar_bitmask
    buffer = manager.backend.buffer_of(bitmask)
    if not drafts and (manager.reasoner_cls is None or manager.enable_in_reasoning):
        for row in _left_rows(buffer, requests, ids):
            _grammar_of(requests[ids[row]]).matcher.fill(buffer.rows, row)
        return buffer.rows[: len(ids)]
    buffer.forget()
    grammars: list[RequestGrammar] = []
    chains: list[Sequence[int]] = []
    places: list[int] = []  # the first row of each grammar
    free: list[tuple[int, int]] = []
    row = 0
    for request_id in ids:
        request = requests[request_id]
        grammar = _grammar_of(request)
        given = drafts.get(request_id, ())
        chain = _unpadded(given)
        start, first = manager._get_constraint_bounds(request, chain)
        end = row + 1 + len(given)
        if first <= len(chain):
            grammar.begin(request.num_output_tokens + start)
            grammars.append(grammar)
            chains.append(chain[start:])
            places.append(row + start)
            free += [(row, row + first), (row + len(chain) + 1, end)]
        else:
            free.append((row, end))
        row = end
    _fill(grammars, chains, places, bitmask[:row])
    for begin, end in free:
        if begin < end:
            bitmask[begin:end] = ALL
    return bitmask[:row].numpy()


def _left_rows(buffer: RowBuffer, requests: dict[str, Any], ids: list[str]) -> Sequence[int]:
    """Fill the rows in one call; return those that remain: all of them, if a matcher raises an error.

    Filled one by one, only the request with the error fails.
    """
    try:
        return buffer.fill_owned(requests, ids, _begun)
    except Exception as error:
        logger.debug("the rows of a batch are filled one by one: %s", error)
        buffer.forget()
        for request_id in ids:
            _begun(requests[request_id])
        return range(len(ids))


def _grammar_of(request: Any) -> RequestGrammar:
    grammar: RequestGrammar = request.structured_output_request.grammar
    return grammar


def _begun(request: Any) -> Matcher:
    """The matcher of a request, whose answer begins with this row."""
    grammar = _grammar_of(request)
    if not grammar.is_begun:
        grammar.begin(request.num_output_tokens)
    return grammar.matcher.matcher


def _unpadded(tokens: Sequence[int]) -> Sequence[int]:
    return next((tokens[:at] for at, token in enumerate(tokens) if token < 0), tokens)


def _fill(
    grammars: Sequence[RequestGrammar], chains: Sequence[Sequence[int]], places: Sequence[int], bitmask: Any
) -> None:
    """Fill the rows of grammars; through a buffer if other rows lie between them."""
    matchers = [grammar.matcher for grammar in grammars]
    rows = sum(len(chain) + 1 for chain in chains)
    if rows == len(bitmask):
        fill_rows(matchers, chains, bitmask)
        return
    held = bitmask.new_empty((rows, bitmask.shape[1]))
    fill_rows(matchers, chains, held)
    at = 0
    for place, chain in zip(places, chains, strict=True):
        count = len(chain) + 1
        bitmask[place : place + count] = held[at : at + count]
        at += count

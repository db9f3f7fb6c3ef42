"""The grammar backend of vLLM: one ``Backend`` for each engine, one ``RequestGrammar`` for each request.

They have the methods of ``StructuredOutputBackend`` and ``StructuredOutputGrammar``, and import no vLLM; torch only to
allocate rows.

Source: vLLM 0.32, ``vllm/v1/structured_output/backend_types.py``.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, Final, final

from structgen.engine import Vocabulary, compile
from structgen.engine.mask import mask_width
from structgen.engine.row_buffer import RowBuffer
from structgen.errors import BudgetError, StructgenError
from structgen.frontends.json_schema import JsonPolicy
from structgen.grammar.limits import Limits
from structgen.integrations.request_matcher import RequestMatcher
from structgen.integrations.wire import Reading, WireError, policy_and_limits, structured_outputs

if TYPE_CHECKING:
    from structgen.engine import Constraint

__all__ = ["Backend", "RequestGrammar", "options_of"]

FIELD: Final = "structured_outputs"
"""The field of a request that describes the answer; vLLM converts other fields into it."""
_DESCRIBING: Final = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")
_OPTIONS: Final = ("disable_any_whitespace", "disable_additional_properties", "whitespace_pattern")


def options_of(additional: object) -> tuple[JsonPolicy, Limits]:
    """Read the member ``structgen`` of vLLM's ``--additional-config``.

    Raises:
        ValueError: there is no such option, or its value is wrong.
    """
    given = additional.get("structgen", {}) if isinstance(additional, Mapping) else {}
    return policy_and_limits("additional-config: structgen", given)


@final
class Backend:
    """The descriptions of an engine's requests, compiled for its tokenizer.

    It may be used by several threads.

    Attributes:
        vocabulary: of the model's head, with the EOS ids of the tokenizer.
        policy: how JSON is written, unless a request says otherwise.
        limits: bounds on each description.
        most_drafts: how many draft tokens a request may be given; 0 if drafts cannot be replaced.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        *,
        policy: JsonPolicy | None = None,
        limits: Limits | None = None,
        most_drafts: int = 0,
    ) -> None:
        self.vocabulary = vocabulary
        self.policy = policy or JsonPolicy()
        self.limits = limits or Limits.strict()
        self.most_drafts = most_drafts
        self._buffer: tuple[Any, RowBuffer] | None = None

    @classmethod
    def load(cls, vllm_config: Any, tokenizer: Any) -> Backend:
        """Read the tokenizer and the options of an engine.

        Raises:
            VocabularyError: the tokenizer cannot be read.
            ValueError: an option is wrong.
        """
        policy, limits = options_of(vllm_config.additional_config)
        vocabulary = Vocabulary.load(tokenizer, size=vllm_config.model_config.get_vocab_size())
        is_async = bool(vllm_config.scheduler_config.async_scheduling)
        most = 0 if is_async else int(vllm_config.num_speculative_tokens)
        return cls(vocabulary, policy=policy, limits=limits, most_drafts=most)

    def ending_with(self, stop_token_ids: Collection[int] | None) -> Vocabulary:
        """The vocabulary of a request whose answer ends with one of these tokens.

        Raises:
            WireError: one of them is text.
        """
        ends = sorted({*self.vocabulary.eos, *(stop_token_ids or ())})
        try:
            return self.vocabulary.with_eos(ends)
        except StructgenError as error:
            raise WireError("stop_token_ids", str(error), error) from error

    def constraint(self, params: Any, stop_token_ids: Collection[int] | None = None) -> Constraint:
        """Compile what a request's ``StructuredOutputsParams`` describe.

        Raises:
            WireError: the description is malformed or cannot be enforced, or a limit was reached.
        """
        given = {name: getattr(params, name, None) for name in (*_DESCRIBING, *_OPTIONS)}
        return self._compiled({name: value for name, value in given.items() if value is not None}, stop_token_ids)

    def _compiled(self, given: Mapping[str, Any], stop_token_ids: Collection[int] | None) -> Constraint:
        vocabulary = self.ending_with(stop_token_ids)
        _, place, grammar = structured_outputs(Reading(self.limits, self.policy), FIELD, given)
        try:
            return compile(grammar, vocabulary, limits=self.limits)
        except StructgenError as error:
            raise WireError(place, str(error), error) from error

    def check(self, params: Any, stop_token_ids: Collection[int] | None, tokens: int | None) -> None:
        """Refuse a request that cannot be enforced, or whose shortest answer with EOS takes more than ``tokens``.

        Raises:
            WireError: with the place in the request, and what to do.
        """
        constraint = self.constraint(params, stop_token_ids)
        if tokens is None:
            return
        try:
            if tokens > 0 and constraint.matcher().completes_within(tokens - 1):
                return
            needed = constraint.min_tokens()
        except StructgenError as error:
            raise WireError(FIELD, str(error), error) from error
        short = BudgetError(budget=tokens, needed=needed + 1, evidence="the last of them ends the answer")
        raise WireError("max_tokens", str(short), short)

    def grammar(self, request: Any, max_model_len: int) -> RequestGrammar:
        """The grammar of a ``Request`` of vLLM, which ends within its ``max_tokens`` and the length of the model."""
        params = request.sampling_params
        constraint = self.constraint(params.structured_outputs, params.all_stop_token_ids)
        found = RequestGrammar(constraint, self.most_drafts)
        found.max_tokens = min(request.max_tokens, max_model_len - request.num_prompt_tokens)
        return found

    def compile_grammar(
        self, request_type: Any, grammar_spec: str, stop_token_ids: Collection[int] | None = None
    ) -> RequestGrammar:
        """The grammar of a description by its type and text, without options and without a limit.

        Raises:
            WireError: as ``constraint`` does.
        """
        name = request_type.name.lower()
        value: Any = grammar_spec
        if name == "json_object":
            value = True
        elif name == "choice":
            value = json.loads(grammar_spec)
        return RequestGrammar(self._compiled({name: value}, stop_token_ids), self.most_drafts)

    def allocate_token_bitmask(self, max_num_seqs: int) -> Any:
        """Rows that allow everything, an int32 tensor ``[max_num_seqs, ceil(V / 32)]`` on the CPU."""
        import torch

        return torch.full((max_num_seqs, mask_width(self.vocabulary.size)), -1, dtype=torch.int32)

    def buffer_of(self, bitmask: Any) -> RowBuffer:
        """The row buffer of a tensor; it remembers the last rows as long as vLLM passes the same tensor."""
        if self._buffer is None or self._buffer[0] is not bitmask:
            self._buffer = bitmask, RowBuffer(bitmask.numpy())
        return self._buffer[1]

    def destroy(self) -> None:
        """Drop the references to the requests of the last batch."""
        self._buffer = None


@final
class RequestGrammar:
    """The grammar of one request, with the methods of vLLM's ``StructuredOutputGrammar``.

    Attributes:
        matcher: the answer so far.
        max_tokens: of the answer, thoughts and the token that ends it included; None is no limit.
        is_begun: whether a token of the answer was accepted, or one is about to be.
    """

    __slots__ = ("_most_drafts", "is_begun", "matcher", "max_tokens")

    def __init__(self, constraint: Constraint, most_drafts: int = 0) -> None:
        self.matcher = RequestMatcher(constraint.matcher())
        self.max_tokens: int | None = None
        self.is_begun = False
        self._most_drafts = most_drafts

    def begin(self, written: int) -> None:
        """Bound the answer before its first token, after ``written`` tokens that are no part of it.

        After long thoughts the rest may be too short for any answer; then only vLLM bounds it.
        """
        if self.matcher.taken == 0 and self.max_tokens is not None:
            self.matcher.limit_to(max(0, self.max_tokens - written - 1))
        self.is_begun = True

    def accept_tokens(self, request_id: str, tokens: list[int]) -> bool:
        """Accept sampled tokens; those after the end have no effect."""
        del request_id
        return self.matcher.accept(tokens)

    def validate_tokens(self, tokens: list[int]) -> list[int]:
        """The drafts of the next step: forced text first, where drafts may be replaced, else the valid prefix."""
        if self._most_drafts:
            return self.matcher.drafts(tokens, self._most_drafts)
        return self.matcher.validate(tokens)

    def rollback(self, num_tokens: int) -> None:
        """Take back tokens."""
        self.matcher.rollback(num_tokens)

    def fill_bitmask(self, bitmask: Any, batch_index: int) -> None:
        """Write the row of the next token."""
        self.matcher.fill(bitmask, batch_index)

    def is_terminated(self) -> bool:
        """Whether the answer is over."""
        return self.matcher.is_over

    def reset(self) -> None:
        """Go back to the start."""
        self.matcher.reset()

"""Constraints in the continuous batching of transformers, one for each request.

>>> outputs = generate_batch(model, inputs, schemas, tokenizer, max_new_tokens=200)              # doctest: +SKIP
>>> with continuous_batching(model, tokenizer) as batching:                                      # doctest: +SKIP
...     batching.add_request(ids, schema, max_new_tokens=200)
...     for output in batching.results(): ...

There transformers has no argument for a processor, so these functions add one to the manager before it starts.  Each
step sends it one integer for each request: the number of a mask in a pool on the device.

Source: transformers 5.24, ``generation/continuous_batching``.
"""

from __future__ import annotations

import copy
import warnings
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Self, final

import numpy as np
import torch
from structgen_kernels.masks.apply_mask import apply_mask
from structgen_kernels.masks.mask_pool import MaskPool
from structgen_kernels.masks.mask_rows import NOTHING, MaskRows
from transformers import ContinuousBatchingConfig
from transformers.generation.continuous_batching import RequestStatus
from transformers.generation.continuous_batching.cb_logits_processors import ContinuousBatchingLogitsProcessor
from transformers.generation.continuous_batching.utils import WorkloadHints

from structgen.engine import Constraint
from structgen.errors import BudgetError, CutWarning, GenerationError, StructgenError, VocabularyError
from structgen.integrations.request_matcher import RequestMatcher, fill_rows
from structgen.integrations.transformers_loop import constraint_from
from structgen.models.model_input import head_width
from structgen.travel import Live

if TYPE_CHECKING:
    from structgen.grammar.nodes import Grammar

__all__ = ["ConstrainedBatching", "ConstraintBatchProcessor", "continuous_batching", "generate_batch"]

_SUBJECT: Final = "continuous batching"
_SPARSE_ROWS: Final = 512
_KEPT: Final = 8
"""States that are kept for each request of a full batch; a state that was dropped is made again from its tokens."""
_POLL_S: Final = 0.5
_CHILD: Final = "__child#"


def generate_batch(
    model: Any,
    inputs: Sequence[Sequence[int]],
    constraints: Sequence[Constraint | Grammar | Mapping[str, Any] | type | None],
    vocabulary: object = None,
    *,
    max_new_tokens: int | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Generate one output for each prompt, in batches whose requests come and go, as ``model.generate_batch`` does.

    Args:
        model: a causal language model of transformers.
        inputs: the token ids of each prompt.
        constraints: for each prompt what its output may be, as ``ConstrainedBatching.add_request`` takes it.
        vocabulary: see ``continuous_batching``.
        max_new_tokens: the most tokens of an output, within which it is complete; by default that of the config.
        options: of ``continuous_batching``.

    Returns:
        transformers' ``GenerationOutput`` objects by request id, in the order of the prompts.  ``error`` of one that is
        not complete says why (a bound of ``Limits``), and a ``CutWarning`` does.

    Raises what ``continuous_batching`` and ``ConstrainedBatching.add_request`` raise, before anything runs.
    """
    if len(inputs) != len(constraints):
        raise GenerationError(
            _SUBJECT,
            "there must be a constraint for each prompt",
            evidence=f"{len(inputs)} prompts and {len(constraints)} constraints",
            remedy="pass [constraint] * len(inputs), and None where an output is free",
        )
    if not inputs:
        return {}
    config = options.get("generation_config") or model.generation_config
    hints = WorkloadHints(
        max_prompt_length=max(map(len, inputs)),
        max_generated_length=max_new_tokens or config.max_new_tokens or 0,
        num_requests=len(inputs) * (config.num_return_sequences or 1),
    )
    with continuous_batching(model, vocabulary, **{"workload_hints": hints, **options}) as batching:
        checked = [batching.checked(each, max_new_tokens) for each in constraints]
        for number, (prompt, constraint) in enumerate(zip(inputs, checked, strict=True)):
            batching.add_request(prompt, constraint, max_new_tokens=max_new_tokens, request_id=f"req_{number}")
        found = {output.request_id: output for output in batching.results()}
    return dict(sorted(found.items(), key=_place))


def _place(item: tuple[str, Any]) -> tuple[int, int]:
    parent, _, child = item[0].partition(_CHILD)
    return int(parent.removeprefix("req_")), int(child) + 1 if child else 0


@contextmanager
def continuous_batching(
    model: Any,
    vocabulary: object = None,
    *,
    generation_config: Any = None,
    continuous_batching_config: Any = None,
    workload_hints: Any = None,
) -> Iterator[ConstrainedBatching]:
    """Run ``model.init_continuous_batching`` with a processor that masks each request by its own constraint.

    Leaving the block waits for the open requests (an error ends them), and frees the cache.

    Args:
        model: a causal language model of transformers.
        vocabulary: a ``Vocabulary`` as wide as the model's head, or its tokenizer; None if all requests have a
            ``Constraint``.
        generation_config: as for transformers; temperature, top-k and top-p are applied after the masks.
        continuous_batching_config: as for transformers.  ``use_async_batching`` is turned off where it is not set.
        workload_hints: transformers' ``WorkloadHints``, by which it chooses sizes that the config leaves open.

    Raises:
        GenerationError: ``use_async_batching`` is on: the last token of a request is then not on the host when the next
            step begins, so that no mask can be made; or the model has a manager that is kept from an earlier call.
    """
    settings = continuous_batching_config or getattr(generation_config, "continuous_batching_config", None)
    settings = copy.copy(settings) if settings is not None else ContinuousBatchingConfig()
    if settings.use_async_batching:
        problem = "use_async_batching is on, where a step begins before the token of the last one is known"
        raise GenerationError(_SUBJECT, problem, remedy="pass ContinuousBatchingConfig(use_async_batching=False)")
    settings.use_async_batching = False
    manager = model.init_continuous_batching(
        generation_config=generation_config, continuous_batching_config=settings, workload_hints=workload_hints
    )
    if manager.batch_processor is not None or manager.is_running():
        raise GenerationError(
            _SUBJECT,
            "the model has a manager that an earlier call kept (persistent_manager=True)",
            remedy="call model.destroy_cached_continuous_batching_manager() first",
        )
    width = head_width(model) or int(model.config.get_text_config().vocab_size)
    processor = ConstraintBatchProcessor(
        width, rows=manager.continuous_batching_config.max_requests_per_batch, device=model.device
    )
    processor.join(manager.logit_processor)
    failed = True
    try:
        manager.warmup()
        manager.start()
        yield ConstrainedBatching(manager, processor, vocabulary)
        failed = False
    finally:
        manager.stop(block=True, hard_stop=failed)
        manager.destroy()


@final
class ConstrainedBatching(Live):
    """A running ``ContinuousBatchingManager`` with constraints; made by ``continuous_batching``.

    Attributes:
        manager: transformers' manager, for what is not here: ``cancel_request``, ``pause``.
    """

    def __init__(self, manager: Any, processor: ConstraintBatchProcessor, vocabulary: object) -> None:
        self.manager = manager
        self._processor = processor
        self._vocabulary = vocabulary
        self._open: dict[str, tuple[Constraint | None, int]] = {}  # outputs that are still to come
        self._count = 0

    def checked(self, constraint: object, max_new_tokens: int | None = None) -> Constraint | None:
        """Return what ``add_request`` takes, compiled; raise what it raises."""
        if constraint is None:
            return None
        compiled = constraint_from(constraint, self._vocabulary, "add_request", model=self.manager.model)
        self._processor.check(compiled)
        most = self._most(max_new_tokens)
        if most is not None and compiled.min_tokens() > most:
            raise BudgetError(budget=most, needed=compiled.min_tokens())
        return compiled

    def add_request(
        self,
        input_ids: Sequence[int],
        constraint: Constraint | Grammar | Mapping[str, Any] | type | None = None,
        *,
        max_new_tokens: int | None = None,
        request_id: str | None = None,
        streaming: bool = False,
        **settings: Any,
    ) -> str:
        """Queue a request; return its id.

        Args:
            input_ids: the prompt.
            constraint: a ``Constraint``, or a grammar, a JSON Schema (a ``dict``) or a Python type, whose JSON is
                written; None for free text.
            max_new_tokens: the most tokens of the output, within which it is complete; by default that of the config.
            request_id: by default one that is new.
            streaming: whether ``results`` yields the output after each token.
            settings: ``temperature``, ``top_k``, ``top_p`` of the request, where the config has per-request processors.

        Raises:
            BudgetError: the shortest string takes more than ``max_new_tokens``.
            VocabularyError: the vocabulary is not as wide as the model's head, or no token ends an output.
            GenerationError: parts of the grammar have temperatures, or the manager has stopped.
            ArgumentError, GrammarError, LimitExceeded: there is no constraint, or it does not compile.
        """
        compiled = self.checked(constraint, max_new_tokens)
        if compiled is not None:
            settings |= {"constraint": compiled, "eos_token_id": list(compiled.vocabulary.eos)}
        if request_id is None:
            request_id, self._count = f"structgen_{self._count}", self._count + 1
        if request_id in self._open:
            raise GenerationError(_SUBJECT, f"there is a request {request_id!r} already", remedy="leave the id out")
        self._open[request_id] = compiled, self.manager.num_return_sequences
        taken = None
        try:
            taken = self.manager.add_request(
                list(input_ids),
                request_id=request_id,
                max_new_tokens=self._most(max_new_tokens),
                streaming=streaming,
                **settings,
            )
        finally:
            if taken is None:  # ``results`` does not wait for it
                self._open.pop(request_id, None)
        if taken is None:
            raise self._stopped()
        return request_id

    def cancel_request(self, request_id: str) -> None:
        """Drop a request, which then has no output."""
        self.manager.cancel_request(request_id)
        self._open.pop(request_id, None)

    def results(self) -> Iterator[Any]:
        """Yield transformers' ``GenerationOutput`` of each request as it is done, until none is left.

        A finished output without an ``error`` is complete: the constraint checks it once more, since other processors
        may have changed the scores.

        Raises:
            GenerationError: the manager has stopped before they were done.
        """
        while self._open:
            output = self.manager.get_result(timeout=_POLL_S)
            if output is None and not self.manager.is_running():
                raise self._stopped()
            if output is None or output.request_id.partition(_CHILD)[0] not in self._open:  # cancelled
                continue
            yield self._finished(output) if output.is_finished() else output

    def _finished(self, output: Any) -> Any:
        parent = output.request_id.partition(_CHILD)[0]
        constraint, left = self._open.pop(parent)
        if left > 1:
            self._open[parent] = constraint, left - 1
        error = self._processor.forget(output.request_id)
        if constraint is None or output.error is not None:
            return output
        if error is None:
            error = _violation(constraint, output.generated_tokens)
        if error is None:
            return output
        warnings.warn(f"request {output.request_id} ends before it is complete: {error}", CutWarning, stacklevel=3)
        return replace(output, error=str(error), status=RequestStatus.FAILED)

    def _most(self, max_new_tokens: int | None) -> int | None:
        most = self.manager.generation_config.max_new_tokens if max_new_tokens is None else max_new_tokens
        return None if most is None else int(most)

    def _stopped(self) -> GenerationError:
        cause = self.manager.background_thread_status.fatal_error
        error = GenerationError(
            _SUBJECT,
            "the manager of transformers has stopped",
            evidence="" if cause is None else f"{type(cause).__name__}: {cause}",
            remedy="begin again with a new continuous_batching(...)",
        )
        error.__cause__ = cause
        return error


def _violation(constraint: Constraint, tokens: Sequence[int]) -> StructgenError | None:
    """Why an output is no string of the grammar; None if it is one."""
    matcher = constraint.matcher()
    taken = matcher.validate(tokens)
    for token in tokens[:taken]:
        matcher.accept(token)
    if taken == len(tokens) and (matcher.is_terminated or matcher.is_accepting):
        return None
    if taken < len(tokens):
        return _outside(f"token {tokens[taken]} at position {taken} of the output")
    return GenerationError(_SUBJECT, "the output is not complete", remedy="give it a larger max_new_tokens")


def _outside(what: str) -> GenerationError:
    remedy = "let no other processor exclude what the grammar needs"
    return GenerationError(_SUBJECT, f"{what} is outside the grammar", remedy=remedy)


@final
@dataclass(slots=True)
class _Row:
    """The state of one request.

    Attributes:
        state: transformers' object; another one after a request went back to the queue, or for a copy of it.
        request: the answer so far.
        taken: how many of ``state.generated_tokens`` it has.
    """

    state: Any
    request: RequestMatcher
    taken: int = 0

    @classmethod
    def begun(cls, state: Any, constraint: Constraint) -> Self:
        """Make the row of a state, with the tokens that were there before the request went back to the queue."""
        tokens = state.to_generation_output().generated_tokens
        before = len(tokens) - len(state.generated_tokens)
        most = state.max_new_tokens
        row = cls(state, RequestMatcher(constraint.matcher(), None if most is None else before + int(most)))
        row._take(tokens)
        return row

    def follow(self) -> None:
        """Take the tokens that are new."""
        self._take(self.state.generated_tokens[self.taken :])

    def _take(self, tokens: Sequence[int]) -> None:
        self.taken = len(self.state.generated_tokens)
        if self.request.failure is None and not self.request.accept(tokens) and self.request.failure is None:
            self.request.failure = _outside(f"one of the tokens {list(tokens)}")


@final
class ConstraintBatchProcessor(Live, ContinuousBatchingLogitsProcessor):
    """The processor of ``continuous_batching``: the masks of the step in a pool, and their numbers by request.

    A request whose constraint meets a bound of ``Limits`` ends there with EOS, and the others go on.

    Args:
        width: the columns of the scores, which is the size of all vocabularies.
        rows: the most requests of a step.
        device: where the scores are.
    """

    supported_kwargs: dict[str, type] = {"constraint": Constraint}  # noqa: RUF012  transformers declares it so
    ignored_kwargs: tuple[str, ...] = ()

    def __init__(self, width: int, *, rows: int, device: Any) -> None:
        self._width = width
        self._most = _KEPT * rows
        self._pool = MaskPool(width, rows=rows, sparse_rows=_SPARSE_ROWS, device=device, grows=False)
        self._held: list[bytes] = []
        self._rows: OrderedDict[str, _Row] = OrderedDict()

    def join(self, processors: Any) -> None:
        """Become the first of a ``ContinuousBatchingLogitsProcessorList``, before tensors for it are made."""
        processors.logits_processor.insert(0, self)
        processors.tensors_required += 1
        processors.supported_keys.update(self.supported_kwargs)
        processors.do_processing = True

    def check(self, constraint: Constraint) -> None:
        """Refuse a constraint that cannot be applied here.

        Raises:
            VocabularyError: its vocabulary is not as wide as the scores, or has no token that ends an output.
            GenerationError: parts of its grammar have temperatures.
        """
        if constraint.vocabulary.size != self._width:
            raise VocabularyError(
                "constraint",
                f"its vocabulary has {constraint.vocabulary.size} tokens, and the model's head {self._width}",
                remedy=f"load the vocabulary with size={self._width}",
            )
        if not constraint.vocabulary.eos:
            raise VocabularyError(
                "constraint",
                "its vocabulary has no token that ends an output",
                remedy="name it: Vocabulary.load(tokenizer, eos=[...])",
            )
        if constraint.has_temperatures:
            raise GenerationError(
                _SUBJECT,
                "parts of the grammar have a temperature of their own, which is not applied here",
                remedy="remove the temperatures, or use ConstraintLogitsProcessor with model.generate",
            )

    def fill_defaults(self, int32_tensor: torch.Tensor) -> None:
        """Write the number for a request without a constraint."""
        int32_tensor.fill_(NOTHING)

    def prepare_tensor_args(self, requests_with_new_token: Sequence[Any]) -> torch.Tensor:
        """Return the number of the mask of each request, int32 ``[requests]`` on the host; masks go to the pool."""
        rows = [self._row(request.state) for request in requests_with_new_token]
        constrained = [row for row in rows if row is not None]
        words = np.zeros((len(constrained), (self._width + 31) // 32), dtype=np.int32)
        fill_rows([row.request for row in constrained], (), words)
        held, self._held = self._held, []
        for key in held:  # the step that read them is over: batching is not asynchronous
            self._pool.release(key)
        self._held = [row.tobytes() for row in words]
        numbers = iter(self._pool.hold_many(self._held, words) if len(words) else ())
        if self._pool.device.type == "cuda":  # the pass runs on a stream of its own
            torch.cuda.current_stream(self._pool.device).synchronize()
        return torch.tensor([NOTHING if row is None else next(numbers) for row in rows], dtype=torch.int32)

    def __call__(self, scores: torch.Tensor, tensor_arg: torch.Tensor) -> torch.Tensor:
        """Set the scores of excluded tokens to minus infinity, in place.

        Args:
            scores: float32 ``[tokens, width]``.
            tensor_arg: int32, the numbers of ``prepare_tensor_args``, at least ``tokens`` of them.
        """
        apply_mask(scores, MaskRows(self._pool.table, tensor_arg[: len(scores), None].contiguous()))
        return scores

    def forget(self, request_id: str) -> Exception | None:
        """Drop the state of a request, and return the error that ended it."""
        row = self._rows.pop(request_id, None)
        return None if row is None else row.request.failure

    def _row(self, state: Any) -> _Row | None:
        constraint = state.logit_processor_kwargs.get("constraint")
        if constraint is None:
            return None
        row = self._rows.pop(state.request_id, None)
        if row is None or row.state is not state:
            row = _Row.begun(state, constraint)
        else:
            row.follow()
        self._rows[state.request_id] = row
        while len(self._rows) > self._most:
            self._rows.popitem(last=False)
        return row

"""The decoding loop of structgen after ``transformers.generate(custom_generate=...)``."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from os import PathLike
from typing import TYPE_CHECKING, Any, Final, cast
from weakref import WeakKeyDictionary

import torch
from transformers import (
    EosTokenCriteria,
    LogitsProcessorList,
    MaxLengthCriteria,
    MinPLogitsWarper,
    StoppingCriteriaList,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)
from transformers.generation.utils import GenerateDecoderOnlyOutput

from structgen.decode import AnyDrafter, Context, Greedy, Multinomial, Result, Sampler, start_generation
from structgen.engine import Constraint, Vocabulary, compile
from structgen.engine.arguments import wrong_grammar
from structgen.errors import ArgumentError, CutWarning, GenerationError, LimitExceeded, VocabularyError, found
from structgen.frontends.json_schema import json_schema
from structgen.grammar.nodes import Grammar
from structgen.models.model_input import head_width, named_eos
from structgen.models.transformers.model import TransformersModel

if TYPE_CHECKING:
    from structgen.decode import Generation
    from structgen.models.protocol import LanguageModel

__all__ = ["constrained_generate", "constraint_from"]

_UNDERSTOOD: Final = frozenset(
    ("attention_mask", "cache", "cache_position", "logits_to_keep", "past_key_values", "position_ids", "use_cache")
)
_SHAPES: Final[dict[type, str]] = {
    TemperatureLogitsWarper: "temperature",
    TopKLogitsWarper: "top_k",
    TopPLogitsWarper: "top_p",
    MinPLogitsWarper: "min_p",
}
_MODES: Final = ("greedy_search", "sample")


def constrained_generate(  # noqa: PLR0913  transformers calls it with these names
    model: Any,
    input_ids: torch.Tensor,
    logits_processor: LogitsProcessorList,
    stopping_criteria: StoppingCriteriaList,
    generation_config: Any,
    *,
    constraint: Constraint | Grammar | Mapping[str, Any] | type,
    vocabulary: object = None,
    sampler: Sampler | None = None,
    seed: int | None = None,
    drafter: AnyDrafter = "auto",
    jump_forward: bool = True,
    results: list[Result | LimitExceeded] | None = None,
    **model_kwargs: Any,
) -> GenerateDecoderOnlyOutput | torch.Tensor:
    """Decode each row with ``structgen.decode``, so that every output is complete within ``max_new_tokens``.

    For ``model.generate(**inputs, custom_generate=constrained_generate, constraint=constraint)``.  Settings that this
    loop does not support (beams, penalties, stop strings, scores ...) are refused by name, except ``streamer`` and
    ``assistant_model``, which transformers does not pass to a custom loop.

    Args:
        model: a causal language model of transformers.
        input_ids: ``[rows, length]``, prompts padded on the left.
        logits_processor: what transformers made of the generation config: temperature, top-k, top-p and min-p.
        stopping_criteria: those for length and EOS; the constraint's vocabulary says which tokens end an output.
        generation_config: ``max_length``, ``pad_token_id``, ``do_sample``, ``return_dict_in_generate``.
        constraint: compiled for the model's vocabulary; or, with ``vocabulary``, a grammar, a JSON Schema (a ``dict``),
            or a Python type, whose JSON is written.
        vocabulary: a ``Vocabulary`` or the model's tokenizer, for which a grammar is compiled.  (transformers keeps an
            argument ``tokenizer`` for itself.)
        sampler: used instead of the settings of the generation config.
        seed: row ``i`` is sampled with ``seed + i``; by default sampled from torch's generator.
        drafter: see ``structgen.decode.generate``.
        jump_forward: see ``structgen.decode.generate``.
        results: a list to which the ``Result`` of each row is appended; of a row that a limit ended, the error, which
            has its text.
        model_kwargs: ``attention_mask`` and what transformers adds to it.

    Returns:
        Token ids ``[rows, longest]``, the prompt included, padded on the right; an EOS id follows each output that
        ended before the length limit.  A row of several that meets a bound of ``Limits`` ends there without EOS, and a
        ``CutWarning`` says so.

    Raises:
        GenerationError: a setting is not supported here, or prompt and output exceed the context.
        BudgetError: the shortest string of the grammar takes more than ``max_new_tokens``.
        LimitExceeded: the only row meets a bound of ``Limits``.
        VocabularyError: the vocabulary of the constraint is not as wide as the model's head.
        ArgumentError: ``drafter`` is none, or there is no constraint, and nothing that one can be compiled from.
    """
    _check_request(model, generation_config, stopping_criteria, model_kwargs)
    if sampler is None:
        sampler = _sampler(logits_processor, do_sample=bool(generation_config.do_sample))
    if seed is None:
        seed = int(torch.randint(0, 2**62, ()))
    constraint = constraint_from(constraint, vocabulary, "constrained_generate", model=model)
    hosted = _hosted(model, constraint)
    length = input_ids.shape[1]
    outputs: list[list[int]] = []
    for index, prompt in enumerate(_prompts(input_ids, model_kwargs.get("attention_mask"))):
        with Context(hosted, prompt) as context:
            generation = start_generation(
                context,
                constraint,
                max_tokens=int(generation_config.max_length) - length,
                sampler=sampler,
                seed=seed + index,
                drafter=drafter,
                jump_forward=jump_forward,
            )
            result = _written(generation, index, is_alone=len(input_ids) == 1)
        if results is not None:
            results.append(result)
        outputs.append(_with_eos(result, int(generation_config.max_length) - length))
    sequences = _joined(input_ids, outputs, _padding(generation_config, constraint))
    if not generation_config.return_dict_in_generate:
        return sequences
    return GenerateDecoderOnlyOutput(sequences=cast("torch.LongTensor", sequences))


def _written(generation: Generation, row: int, *, is_alone: bool) -> Result | LimitExceeded:
    """Write an output to its end; return the limit that ended it, unless it is the only one."""
    try:
        for _ in generation:
            pass
    except LimitExceeded as error:
        if is_alone:
            raise
        warnings.warn(f"row {row} ends before it is complete: {error}", CutWarning, stacklevel=3)
        return error
    return generation.result()


def constraint_from(value: object, source: object, call: str, *, model: Any = None) -> Constraint:
    """Return a constraint as it is; compile a grammar, a JSON Schema or a Python type for ``source``.

    Args:
        value: what ``call`` takes for a constraint.
        source: a ``Vocabulary`` or a tokenizer; None for a constraint.
        call: the function, for messages.
        model: the model of transformers, where it is known: it says how wide the vocabulary is and what ends an output.

    Raises:
        ArgumentError: there is nothing to compile, or nothing to compile it for.
        GrammarError, LimitExceeded, VocabularyError: it does not compile.
    """
    if isinstance(source, (int, str, PathLike)):
        remedy = f"write prompt_length={source}; the second argument is the tokenizer"
        if not isinstance(source, int):
            remedy = f"load it first: AutoTokenizer.from_pretrained({str(source)!r})"
        raise ArgumentError(call, "expected a tokenizer or a Vocabulary", evidence=found(source), remedy=remedy)
    if isinstance(value, Constraint):
        return value
    if isinstance(value, (str, bytes, PathLike)) or value is None:
        raise wrong_grammar(call, value, expected="a Constraint, a Grammar, a JSON Schema (dict) or a type")
    if source is None:
        raise ArgumentError(
            call,
            "a grammar, a schema or a type needs the model's tokenizer, for which it is compiled",
            evidence=f"{found(value)} and no tokenizer",
            remedy="pass vocabulary=tokenizer, or sg.compile(grammar, sg.Vocabulary.load(tokenizer))",
        )
    grammar = value if isinstance(value, Grammar) else json_schema(value)
    return compile(grammar, source if isinstance(source, Vocabulary) else _vocabulary(source, model))


_vocabularies: Final[WeakKeyDictionary[Any, dict[object, Vocabulary]]] = WeakKeyDictionary()
"""The vocabularies of tokenizers, by what else they depend on: reading one may take a second."""


def _vocabulary(tokenizer: Any, model: Any) -> Vocabulary:
    """The vocabulary of a tokenizer, as wide as the model's head and with the model's EOS ids."""
    size = None if model is None else head_width(model)
    eos = None if model is None else named_eos(model, tokenizer) or None
    known = _vocabularies.setdefault(tokenizer, {})
    key = len(tokenizer), size, eos and tuple(eos)
    if key not in known:
        known[key] = Vocabulary.load(tokenizer, size=size, eos=eos)
    return known[key]


def _hosted(model: Any, constraint: Constraint) -> LanguageModel:
    """The model after the protocol of the loop, with the vocabulary that the constraint was compiled for."""
    hosted = TransformersModel(model, list(constraint.vocabulary.tokens))
    width = hosted.vocabulary.size
    if width != constraint.vocabulary.size:
        raise VocabularyError(
            "constraint",
            f"its vocabulary has {constraint.vocabulary.size} tokens, and the model's head {width}",
            remedy=f"load the vocabulary with size={width}",
        )
    hosted.vocabulary = constraint.vocabulary
    return hosted


def _check_request(model: Any, config: Any, criteria: StoppingCriteriaList, model_kwargs: Mapping[str, Any]) -> None:
    mode = str(getattr(config.get_generation_mode(), "value", config.get_generation_mode()))
    if mode not in _MODES:
        raise _refused(f"generation mode {mode!r} is not done here", "use ConstraintLogitsProcessor for it")
    if model.config.is_encoder_decoder:
        raise _refused("the model has an encoder", "use ConstraintLogitsProcessor")
    for name in ("output_scores", "output_logits", "output_attentions", "output_hidden_states"):
        if config.return_dict_in_generate and getattr(config, name, False):
            raise _refused(f"{name} is not returned here", "read log-probabilities from results=[...]")
    for criterion in criteria:
        if not isinstance(criterion, (MaxLengthCriteria, EosTokenCriteria)):
            raise _refused(
                f"stopping criterion {type(criterion).__name__} could cut an output off", "put it into the grammar"
            )
    for name in ("cache", "past_key_values"):  # the second is its name before transformers 5.24
        cache = model_kwargs.get(name)
        if cache is not None and cache.get_seq_length() > 0:
            raise _refused(f"{name} is not empty", "pass the whole prompt")
    unknown = sorted(name for name, value in model_kwargs.items() if name not in _UNDERSTOOD and value is not None)
    if unknown:
        raise _refused(f"model inputs {unknown} are not passed on", "use ConstraintLogitsProcessor")


def _sampler(processors: LogitsProcessorList, *, do_sample: bool) -> Sampler:
    shape: dict[str, Any] = {}
    for processor in processors:
        name = _SHAPES.get(type(processor))
        if name is None or name in shape or getattr(processor, "min_tokens_to_keep", 1) > 1:
            raise _refused(
                f"logits processor {type(processor).__name__} is not applied here",
                "remove it, pass sampler=..., or use ConstraintLogitsProcessor",
            )
        shape[name] = getattr(processor, name)
    return Multinomial(**shape) if do_sample else Greedy()


def _prompts(input_ids: torch.Tensor, attention_mask: torch.Tensor | None) -> list[list[int]]:
    rows: list[list[int]] = input_ids.tolist()
    if attention_mask is None:
        return rows
    kept: list[list[int]] = attention_mask.tolist()
    prompts = [
        [token for token, keep in zip(row, flags, strict=True) if keep] for row, flags in zip(rows, kept, strict=True)
    ]
    for index, prompt in enumerate(prompts):
        if not prompt:
            raise _refused(f"the attention mask hides all of prompt {index}", "give every row a token")
    return prompts


def _with_eos(result: Result | LimitExceeded, max_tokens: int) -> list[int]:
    tokens = list(result.tokens)
    if isinstance(result, LimitExceeded):
        return tokens
    ends = result.vocabulary.eos
    took_eos = bool(result.steps) and result.steps[-1].token is None
    if took_eos and ends and len(tokens) < max_tokens:
        tokens.append(ends[0])
    return tokens


def _padding(config: Any, constraint: Constraint) -> int:
    if config.pad_token_id is not None:
        return int(config.pad_token_id)
    return constraint.vocabulary.eos[0] if constraint.vocabulary.eos else 0


def _joined(input_ids: torch.Tensor, outputs: list[list[int]], padding: int) -> torch.Tensor:
    longest = max(map(len, outputs))
    filled = [output + [padding] * (longest - len(output)) for output in outputs]
    added = torch.tensor(filled, dtype=input_ids.dtype, device=input_ids.device).reshape(len(outputs), longest)
    return torch.cat((input_ids, added), dim=1)


def _refused(problem: str, remedy: str) -> GenerationError:
    return GenerationError("constrained_generate", problem, remedy=remedy)

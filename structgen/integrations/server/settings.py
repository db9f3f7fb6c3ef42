"""The sampling settings of a request, as the ``Task`` of its first answer."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, Final, cast

from structgen.decode.potentials.canonical import Canonical
from structgen.decode.step.context import check_start, refuse_temperatures
from structgen.decode.step.sampler import Greedy, Multinomial, Sampler
from structgen.engine import compile
from structgen.errors import StructgenError, UnsatisfiableGrammar
from structgen.grammar.nodes import ANY_CHAR, Repeat, literal, sequence
from structgen.integrations.server.description import located
from structgen.integrations.server.protocol import ChatRequest, Options, wrong
from structgen.integrations.server.runner import Task
from structgen.methods.catalogue import CANVAS_SAMPLERS, COMMIT_POLICIES, REUSES, SAMPLERS, made
from structgen.models.adjusted import Adjustments

if TYPE_CHECKING:
    from structgen.decode import AnySampler
    from structgen.grammar.nodes import Grammar
    from structgen.integrations.server.description import Description
    from structgen.integrations.server.service import Service
    from structgen.methods.catalogue import Method
    from structgen.models import LanguageModel
    from structgen.models.protocol.diffusion import DiffusionModel

__all__ = ["sampler_of", "task_of"]

_SEEDS: Final = 1 << 63
_NEW_SEEDS: Final = 1 << 31
"""A request without a seed gets one below."""
_MAX_SAMPLES: Final = 64
"""The largest number of outputs that a sampler may write for one answer."""
_MAX: Final = 1024
"""The largest number that a setting of a sampler may be."""
_TRACED: Final = 3
"""How many other tokens a trace names."""
_SHAPE: Final = {"temperature": (1.0,), "top_p": (1.0,), "top_k": (0, -1), "min_p": (0.0,)}
"""The settings of token sampling, with the values that change nothing."""


def task_of(
    service: Service,
    request: ChatRequest,
    description: Description,
    tokens: Sequence[int],
    max_tokens: int,
    *,
    top: int | None = None,
) -> Task:
    """Return the task of the first answer.

    Args:
        service: the model, and limits.
        request: has the sampling settings.
        description: the grammar of the answer.
        tokens: of the prompt.
        max_tokens: of the answer.
        top: how many alternatives of each step are returned with their scores; 0: the chosen token only; None: no
            scores.

    Raises:
        APIError: a setting is unusable, or does not go with another one.
        StructgenError: the description cannot be enforced.
    """
    if service.is_diffusion:
        return _canvas_task(service, request, description, tokens, max_tokens, has_scores=top is not None)
    options, sampler = request.structgen or Options(), sampler_of(request)
    _check_options(request, options)
    constraint = service.compiled(description.grammar)
    is_json = description.kind == "json"
    if not isinstance(sampler, Sampler):
        try:
            refuse_temperatures(constraint)
        except ValueError as error:
            wrong("structgen.sampler", str(error))
    if options.marginals and (options.sampler is not None or description.kind not in ("json", "grammar")):
        other = "leave structgen.sampler out" if options.sampler is not None else "describe the answer"
        wrong("structgen.marginals", f"they are of answers with fields, written token by token; {other}")
    if options.canonical:
        try:
            Canonical(constraint, max_tokens)
        except StructgenError as error:
            wrong("structgen.canonical", str(error))
    task = Task(
        tuple(tokens),
        constraint,
        max_tokens,
        sampler,
        seed=_seed(request),
        alternatives=max(top or 0, _TRACED if options.trace else 0),
        adjustments=_adjustments(request, service.model.vocabulary.size),
        stops=_stops(request, description, service),
        has_scores=top is not None or request.structgen is not None,
        has_events=options.events and is_json,
        has_marginals=options.marginals,
        is_json=is_json,
        is_canonical=options.canonical,
        is_traced=options.trace,
    )
    # Before the status of a stream is sent.
    check_start(cast("LanguageModel", service.model), len(tokens), constraint, max_tokens)
    return task


def _check_options(request: ChatRequest, options: Options) -> None:
    """Refuse options that need a diffusion model, a stream, or a sampler of tokens.

    Raises:
        APIError: there is such an option.
    """
    for name in ("policy", "block", "reuse"):
        if getattr(options, name) is not None:
            wrong(f"structgen.{name}", "it is of diffusion models; the model writes token by token")
    if options.trace and not request.stream:
        wrong("structgen.trace", "it is of chats with stream: true")
    if options.trace and (request.stop or options.sampler is not None):
        wrong("structgen.trace", "it does not go with stop or structgen.sampler; leave them out")


def sampler_of(request: ChatRequest) -> AnySampler:
    """The sampler for a request, by default at temperature 1, as in OpenAI's API.

    Raises:
        APIError: there is no such sampler, or its settings are unusable.
    """
    wanted = None if request.structgen is None else request.structgen.sampler
    if wanted is None:
        if request.temperature == 0:
            return Greedy()
        top_k = request.top_k if request.top_k and request.top_k > 0 else None
        return Multinomial(request.temperature or 1.0, top_k=top_k, top_p=request.top_p, min_p=request.min_p)
    for name, neutral in _SHAPE.items():
        if getattr(request, name) not in (None, *neutral):
            wrong(name, "structgen.sampler says how tokens are chosen; give one of them")
    chosen: AnySampler = _method("structgen.sampler", wanted, SAMPLERS)
    return chosen


def _method(place: str, wanted: str | dict[str, Any], known: Mapping[str, Method]) -> Any:
    """A method of the catalogue by its name, with settings."""
    settings: dict[str, Any] = {"name": wanted} if isinstance(wanted, str) else dict(wanted)
    name = settings.pop("name", None)
    if not isinstance(name, str):
        wrong(place, "expected a name, or an object with 'name' and settings")
    for key, value in settings.items():
        counted = name in known and known[name].counted == key
        if not (value is None or isinstance(value, (bool, int, float, str))):
            wrong(f"{place}.{key}", "expected a number, a text, true, false or null")
        if isinstance(value, (int, float)) and not abs(value) <= (_MAX_SAMPLES if counted else _MAX):
            wrong(f"{place}.{key}", f"at most {_MAX_SAMPLES if counted else _MAX} on this server")
    try:
        return _bounded(made(known, name, settings, subject=place))
    except (ValueError, TypeError) as error:
        wrong(place, str(error).removeprefix(f"{place}: "))


def _bounded(sampler: Any) -> AnySampler:
    """The sampler with its numbers cut to the largest that a request may give; its defaults may be larger."""
    values = {each.name: getattr(sampler, each.name) for each in fields(sampler)}
    high = [name for name, value in values.items() if type(value) is int and value > _MAX]
    return replace(sampler, **dict.fromkeys(high, _MAX)) if high else sampler  # type: ignore[no-any-return]


_OF_TOKENS: Final[Mapping[str, tuple[Any, ...]]] = {
    **_SHAPE,
    "frequency_penalty": (0.0,),
    "presence_penalty": (0.0,),
    "repetition_penalty": (1.0,),
    "logit_bias": ({},),
}
"""The settings of autoregressive models, with the values that change nothing."""
_CANVAS_SAMPLERS: Final = {name: CANVAS_SAMPLERS[name] for name in ("dingo", "posterior")}


def _canvas_task(
    service: Service,
    request: ChatRequest,
    description: Description,
    tokens: Sequence[int],
    max_tokens: int,
    *,
    has_scores: bool,
) -> Task:
    """The task of an answer of a diffusion model.

    Raises:
        APIError: a setting is of models that write token by token, or no canvas can hold what is described.
    """
    from structgen.decode.diffusion.canvas import canvas_constraint
    from structgen.decode.diffusion.commit_policy import Unmasking
    from structgen.decode.diffusion.entry import slots_within
    from structgen.decode.diffusion.posterior import Dingo, Posterior

    options = request.structgen or Options()
    for name, neutral in _OF_TOKENS.items():
        if name != "temperature" and getattr(request, name) not in (None, *neutral):
            wrong(name, "the model fills a canvas, and does not write token by token; leave it out")
    if has_scores:
        wrong("logprobs", "slots are filled in any order, so no token has a probability after those before it")
    for name in ("marginals", "canonical", "trace"):
        if getattr(options, name):
            wrong(f"structgen.{name}", "it is of models that write token by token; leave it out")
    if _stops(request, description, service):
        wrong("stop", "a canvas is filled as a whole; describe where the answer ends, with regex for example")
    model = cast("DiffusionModel", service.model)
    if options.sampler is not None:
        sampler = _method("structgen.sampler", options.sampler, _CANVAS_SAMPLERS)
    else:
        sampler = Dingo() if request.temperature == 0 else Posterior()
    policy = None if options.policy is None else _method("structgen.policy", options.policy, COMMIT_POLICIES)
    reuse = None if options.reuse is None else _method("structgen.reuse", options.reuse, REUSES)
    if reuse is not None and not service.has_reuse:
        wrong("structgen.reuse", "the model keeps no keys and values of slots; leave it out")
    constraint = service.compiled(description.grammar)
    with located(description.source or "messages"):
        canvas_constraint(constraint, model, None)
        capacity = None if model.max_context is None else model.max_context - len(tokens)
        slots = slots_within(constraint, max_tokens, capacity=capacity)
    return Task(
        tuple(tokens),
        constraint,
        max_tokens,
        sampler,
        seed=_seed(request),
        has_events=options.events and description.kind == "json",
        is_json=description.kind == "json",
        unmasking=Unmasking(
            canvas=slots,
            policy=policy,
            temperature=request.temperature or 1.0,
            block=options.block,
            reuse=reuse,
        ),
    )


def _seed(request: ChatRequest) -> int:
    named = None if request.structgen is None else request.structgen.seed
    if None not in (named, request.seed) and named != request.seed:
        wrong("structgen.seed", f"seed says {request.seed}; give one of them")
    given = request.seed if named is None else named
    return secrets.randbelow(_NEW_SEEDS) if given is None else given % _SEEDS


def _adjustments(request: ChatRequest, size: int) -> Adjustments:
    bias: dict[int, float] = {}
    for text, value in (request.logit_bias or {}).items():
        if not (text.isascii() and text.isdecimal() and int(text) < size):
            wrong("logit_bias", f"expected ids of tokens, from 0 to {size - 1}; found {text!r:.40}")
        bias[int(text)] = value
    return Adjustments(
        repetition=1.0 if request.repetition_penalty is None else request.repetition_penalty,
        frequency=request.frequency_penalty or 0.0,
        presence=request.presence_penalty or 0.0,
        bias=bias,
    )


def _stops(request: ChatRequest, description: Description, service: Service) -> tuple[str, ...]:
    """The stops of free text; with a description, those that could cut the answer are refused."""
    given = [request.stop] if isinstance(request.stop, str) else request.stop or []
    stops = tuple(stop for stop in dict.fromkeys(given) if stop)
    if description.kind == "text":
        return stops
    for stop in stops:
        if _may_contain(description.grammar, stop, service):
            wrong(
                "stop",
                f"{stop!r:.60} may occur within what {description.source or 'the reply'} describes, and would cut it",
            )
    return ()


def _may_contain(grammar: Grammar, text: str, service: Service) -> bool:
    """Whether a string of a grammar may contain a text; yes, where that is not decided."""
    anything = Repeat(ANY_CHAR, 0, None)
    try:
        compile(grammar & sequence(anything, literal(text), anything), service.model.vocabulary, limits=service.limits)
    except UnsatisfiableGrammar:
        return False
    except (StructgenError, ValueError):
        return True
    return True

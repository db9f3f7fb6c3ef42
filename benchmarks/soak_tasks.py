"""What ``soak.py`` runs: one task for each way to decode, and for what goes wrong.

A task returns the outputs that it finished, as (source, text).  It may raise any ``StructgenError``, which the caller
counts; whatever else it raises is a finding.
"""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Callable, Generator
from contextlib import closing, suppress
from typing import Any, Final

from soak_sources import HOSTILE, Output, Source, Workbench

import structgen as sg
from structgen import diffusion, drafters, samplers
from structgen.engine.mask import allowed_ids, empty_masks
from structgen.models import HashModel
from structgen.models.diffusion import HashDiffusion

__all__ = ["TASKS", "Cancelled"]

MAX_TOKENS: Final = 80
LIMITS: Final = sg.Limits(steps=3_000_000, distance_steps=200_000)
"""As a server would set them: with the defaults one mask within a budget may take seconds."""


class Cancelled(BaseException):
    """The user gives up, as with Ctrl-C; no error, so nothing may swallow it."""


def _stream(rng: random.Random) -> Callable[[Any], None]:
    """A callback that one time in eight gives up after some chunks."""
    left = rng.randint(1, 20) if rng.random() < 0.125 else -1

    def take(_chunk: Any) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            raise Cancelled

    return take


def _sampler(rng: random.Random) -> Any:
    return rng.choice([sg.Greedy(), sg.Multinomial(), sg.Multinomial(temperature=1.5, top_p=0.9)])


def masks(bench: Workbench, rng: random.Random) -> list[Output]:
    """Masked decoding without drafts; the stream may be given up."""
    source = bench.source(rng)
    settings: dict[str, Any] = {"max_tokens": MAX_TOKENS, "seed": rng.randrange(99), "drafter": None, "limits": LIMITS}
    result = sg.generate(bench.model(rng), "go", source.grammar, sampler=_sampler(rng), stream=_stream(rng), **settings)
    return [(source, result.text)]


def speculation(bench: Workbench, rng: random.Random) -> list[Output]:
    """Decoding with drafts."""
    source, model = bench.source(rng), bench.model(rng)
    drafter = rng.choice(
        [
            "auto",
            drafters.PromptLookup(),
            drafters.TokenRecycling(),
            drafters.GrammarStatistics(),
            drafters.DraftModel(HashModel(bench.vocabulary, seed=model.seed)),
            drafters.DraftModel(bench.model(rng)),
        ]
    )
    prompt = "{'name': 12} ab ab the the name"
    settings: dict[str, Any] = {
        "max_tokens": MAX_TOKENS,
        "seed": rng.randrange(99),
        "drafter": drafter,
        "limits": LIMITS,
    }
    result = sg.generate(model, prompt, source.grammar, sampler=_sampler(rng), stream=_stream(rng), **settings)
    return [(source, result.text)]


def particles(bench: Workbench, rng: random.Random) -> list[Output]:
    """Sequential Monte Carlo."""
    source = bench.source(rng)
    proposal = rng.choice([sg.samplers.AWRS(), sg.Multinomial()])
    return _sampled(bench, rng, source, samplers.SMC(rng.randint(2, 8), proposal=proposal))


def rejection(bench: Workbench, rng: random.Random) -> list[Output]:
    """Adaptive rejection without masks, or with masks after some rejected tokens."""
    source = bench.source(rng)
    return _sampled(bench, rng, source, samplers.AWRS(mask_after=rng.choice([None, 1, 8])))


def _sampled(bench: Workbench, rng: random.Random, source: Source, sampler: Any) -> list[Output]:
    settings: dict[str, Any] = {"max_tokens": MAX_TOKENS, "seed": rng.randrange(99), "limits": LIMITS}
    found = sg.sample(bench.model(rng), "go", source.grammar, sampler=sampler, **settings)
    return [(source, held.result.text) for held in found.samples]


def canvases(bench: Workbench, rng: random.Random) -> list[Output]:
    """A diffusion model fills a canvas."""
    source = bench.source(rng, "srrl")
    model = HashDiffusion(bench.vocabulary, seed=rng.randrange(1 << 30), context=rng.choice([0.0, 1.0]))
    sampler = rng.choice([diffusion.Dingo(), diffusion.Posterior(), samplers.SMC(3)])
    settings: dict[str, Any] = {"canvas": rng.choice([16, 24, 40]), "limits": LIMITS}
    result = sg.generate(model, "go", source.grammar, sampler=sampler, seed=rng.randrange(99), **settings)
    return [(source, result.text)]


@sg.program(limits=LIMITS, max_tokens=MAX_TOKENS)
def write(grammar: sg.Grammar) -> Generator[Any, Any, str]:
    """One answer of a grammar, and what follows it."""
    yield "go "
    text = yield grammar
    yield " then "
    yield sg.select(["yes", "no"])
    return text


def batches(bench: Workbench, rng: random.Random) -> list[Output]:
    """Programs that share passes, hostile ones among them."""
    sources = [bench.source(rng) for _ in range(rng.randint(2, 6))]
    items = [{"grammar": source.grammar} for source in sources]
    if rng.random() < 0.3:
        items.append({"grammar": sg.regex(HOSTILE[0])})
    found = write.map(items, model=bench.model(rng), batch_size=rng.randint(1, 4), seed=rng.randrange(99))
    for held in found:
        if held.error is not None and not isinstance(held.error, sg.errors.StructgenError):
            raise held.error
    return [
        (source, held.run.outcomes[0].text)
        for source, held in zip(sources, found, strict=False)
        if held.run is not None
    ]


def programs(bench: Workbench, rng: random.Random) -> list[Output]:
    """A program whose stream may be closed before its end."""
    source = bench.source(rng)
    left = rng.randint(1, 12) if rng.random() < 0.3 else -1
    outputs: list[Output] = []
    with closing(write.stream(source.grammar, model=bench.model(rng), seed=rng.randrange(99))) as events:
        for event in events:
            left -= 1
            if left == 0:
                break
            if isinstance(event, sg.program.Done):
                outputs.append((source, event.run.outcomes[0].text))
    return outputs


def coroutines(bench: Workbench, rng: random.Random) -> list[Output]:
    """Some outputs at once in coroutines; some are cancelled."""
    sources = [bench.source(rng) for _ in range(3)]

    async def one(source: Source) -> Output | None:
        work = sg.generate.aio(
            bench.model(rng), "go", source.grammar, max_tokens=MAX_TOKENS, drafter=None, limits=LIMITS
        )
        with suppress(TimeoutError, sg.errors.StructgenError):
            return source, (await asyncio.wait_for(work, rng.choice([0.002, 0.02, 30]))).text
        return None

    async def together() -> list[Output | None]:
        return await asyncio.gather(*map(one, sources))

    return [output for output in asyncio.run(together()) if output is not None]


def _check_budget(constraint: sg.Constraint) -> None:
    if constraint.min_tokens() > MAX_TOKENS:
        raise sg.errors.BudgetError(budget=MAX_TOKENS, needed=constraint.min_tokens())


def walks(bench: Workbench, rng: random.Random) -> list[Output]:
    """A matcher takes random tokens of a real vocabulary, forks and goes back, and ends within a budget."""
    source = bench.source(rng)
    return _walk(source, rng.choice([bench.vocabulary, bench.real_vocabulary]), rng)


def _walk(source: Source, vocabulary: sg.Vocabulary, rng: random.Random) -> list[Output]:
    constraint = sg.compile(source.grammar, vocabulary, limits=LIMITS)
    _check_budget(constraint)
    matcher = constraint.matcher()
    rows, tokens, budget = empty_masks(vocabulary), list[int](), MAX_TOKENS
    while True:
        matcher.fill_mask(rows, budget=budget - len(tokens))
        ids = allowed_ids(rows[0], vocabulary.size)
        ends = [int(token) for token in ids if token in vocabulary.eos]
        if ends and (len(ends) == len(ids) or rng.random() < 0.1):
            return [(source, vocabulary.decode(tokens).decode())]
        ordinary = [int(token) for token in rng.choices(ids.tolist(), k=4) if token not in vocabulary.eos]
        if not ordinary:
            continue
        fork = matcher.fork()
        if not fork.accept(ordinary[0]) or not matcher.accept(ordinary[0]):
            raise AssertionError(f"{source.text}: token {ordinary[0]} is in the mask and refused, after {tokens}")
        if rng.random() < 0.2 and fork.state_id != matcher.state_id:
            raise AssertionError(f"{source.text}: a fork is in another state, after {tokens}")
        tokens.append(ordinary[0])
        if rng.random() < 0.1:
            back = rng.randint(1, min(len(tokens), 3))
            matcher.rollback(back)
            del tokens[len(tokens) - back :]


def rows(bench: Workbench, rng: random.Random) -> list[Output]:
    """A server's step: one row for each of some sequences, hostile ones among them; what meets a limit ends."""
    sources = [bench.source(rng) for _ in range(rng.randint(1, 4))]
    hostile = rng.choice(HOSTILE)
    limits = sg.Limits(steps=rng.choice([20_000, 300_000]))
    compiled = [sg.compile(source.grammar, bench.vocabulary, limits=LIMITS) for source in sources]
    for constraint in compiled:
        _check_budget(constraint)
    with suppress(sg.errors.LimitExceeded):
        compiled.append(sg.compile(sg.regex(hostile), bench.vocabulary, limits=limits))
    matchers = {number: constraint.matcher() for number, constraint in enumerate(compiled)}
    written: dict[int, list[int]] = {number: [] for number in matchers}
    outputs, vocabulary = list[Output](), bench.vocabulary
    for step in range(MAX_TOKENS + 1):
        numbers, masks = list(matchers), empty_masks(vocabulary, len(matchers))
        try:
            sg.fill_masks(list(matchers.values()), masks, budget=MAX_TOKENS - step)
        except sg.errors.LimitExceeded as error:
            for row in error.rows:
                del matchers[numbers[row]]
        for row, number in enumerate(numbers):
            if number not in matchers:
                continue
            ids = allowed_ids(masks[row], vocabulary.size).tolist()
            token = rng.choice(ids)
            if token in vocabulary.eos:
                text = vocabulary.decode(written[number]).decode()
                outputs += [(sources[number], text)] if number < len(sources) else []
                del matchers[number]
                continue
            try:
                if not matchers[number].accept(token):
                    raise AssertionError(f"token {token} is in the mask and refused, after {written[number]}")
            except sg.errors.LimitExceeded:
                del matchers[number]
            written[number].append(token)
        if not matchers:
            break
    return outputs


def bad_inputs(bench: Workbench, rng: random.Random) -> list[Output]:
    """Sources with a mistake in them: each is refused, or means something else."""
    kind = rng.choice("srl")
    text = bench.source(rng, kind).text
    at = rng.randrange(len(text) + 1)
    text = rng.choice([text[:at], text[:at] + rng.choice('(){}[]"\\|*?\0\ud800~:,') + text[at:], text[at:] + text[:at]])
    read = {"s": sg.json_schema, "r": sg.regex, "l": sg.lark}[kind]
    sg.compile(read(text), bench.vocabulary, limits=LIMITS).matcher().fill_mask(empty_masks(bench.vocabulary))
    return []


def tiny_limits(bench: Workbench, rng: random.Random) -> list[Output]:
    """Any output under limits that are too small is exact, or an error."""
    source = bench.source(rng)
    limits = sg.Limits(steps=int(10 ** rng.uniform(1, 5)), states=int(10 ** rng.uniform(2, 5)))
    result = sg.generate(bench.model(rng), "go", source.grammar, max_tokens=MAX_TOKENS, limits=limits)
    return [(source, result.text)]


def hostile(bench: Workbench, rng: random.Random) -> list[Output]:
    """A grammar that asks for much meets its limit, or is written."""
    text = rng.choice(HOSTILE)
    compiled = re.compile(text)
    source = Source("regex", text, sg.regex(text), lambda written: compiled.fullmatch(written) is not None)
    result = sg.generate(bench.model(rng), "go", source.grammar, max_tokens=60, limits=sg.Limits(steps=1_000_000))
    return [(source, result.text)]


def embedded(bench: Workbench, rng: random.Random) -> list[Output]:
    """The embedded model writes."""
    if not bench.has_embedded:
        return masks(bench, rng)
    source = bench.source(rng, "srrl")
    result = sg.generate(
        bench.embedded, "Write an example.", source.grammar, max_tokens=48, sampler=_sampler(rng), limits=LIMITS
    )
    return [(source, result.text)]


TASKS: Final[dict[Callable[[Workbench, random.Random], list[Output]], float]] = {
    masks: 4,
    speculation: 4,
    particles: 2,
    rejection: 2,
    canvases: 2,
    batches: 2,
    programs: 3,
    coroutines: 1,
    walks: 4,
    rows: 2,
    bad_inputs: 2,
    tiny_limits: 2,
    hostile: 0.5,
    embedded: 0.1,
}
"""The tasks, and how often each is run."""

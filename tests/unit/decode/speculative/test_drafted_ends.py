"""Drafted outputs that end, are cut short or are interrupted equal those without drafts."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, final

import numpy as np
import pytest
from drafter_catalogue import CASES, DrafterCase
from drafter_tasks import PlainModel, PlainSession
from drafting_prompts import together
from result_equality import assert_alike
from scripted_drafters import Knowing, Noisy

from structgen.decode import Chunk, Context, Greedy, Multinomial, Result, Sampler, generate, start_generation
from structgen.decode.potentials import potential
from structgen.decode.speculative.draft_tree import ROOT, DraftTree
from structgen.decode.speculative.drafter import Drafter, Drafting, DraftState, DraftTask
from structgen.engine import Constraint, Vocabulary, compile
from structgen.errors import GenerationError
from structgen.frontends.json_schema import json_schema
from structgen.frontends.regex import regex
from structgen.grammar.nodes import Grammar
from structgen.methods.strategies import Thinking
from structgen.models.toy.hash import HashModel, HashSession

TITLES = (
    *("auto", "combined", "jacobi", "lookahead", "exact string match", "pearl", "bandit, exp3"),
    *("another draft model, dyspec", "another draft model, fixed", "string rejection, chosen", "stand, chosen"),
)
RECORD = json_schema(
    {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 12},
            "tags": {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "maxItems": 3},
        },
        "required": ["name", "tags"],
        "additionalProperties": False,
    }
)
WRITES = '{"name": "Grace", "tags": ["blue", "red"]}'
SAMPLERS: tuple[Sampler, ...] = (Greedy(), Multinomial(), Multinomial(0.6, top_k=9))


@pytest.fixture(autouse=True)
def no_drafter_fails() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


@final
@dataclass(frozen=True)
class Stopping(Drafter, Drafting):
    """Drafts the end of the output, and tokens after it."""

    stops: tuple[int, ...]

    @property
    def name(self) -> str:
        return "stopping"

    def start(self, context: Context, task: DraftTask) -> Drafting:
        return self

    def propose(self, context: Context, state: DraftState, budget: int) -> DraftTree:
        tree = DraftTree()
        allowed = state.matcher.allowed_tokens(3)
        for stop in self.stops:
            tree.extend(ROOT, [stop, *allowed, stop], 0.9)
        for token in allowed:
            node = tree.add(ROOT, token, 0.5)
            for stop in self.stops:
                tree.extend(node, [stop, stop, token], 0.9)
            tree.extend(node, [*allowed, *self.stops], 0.9)
        return tree


def drafters(model: HashModel, plain: Result, turn: int = 0) -> Iterator[Any]:
    """Drafters that are right, wrong, stop or draft random trees, and three of the project's own, in turn."""
    stops = model.vocabulary.eos or (0,)
    for tokens, length in (
        (plain.tokens, 3),
        (plain.tokens, 99),
        (plain.tokens[::-1], 5),
        ((*plain.tokens, *stops), 50),
    ):
        yield Knowing(tokens=tokens, prompt_tokens=plain.stats.prompt_tokens, length=length)
    yield Noisy()
    yield Noisy(width=1, depth=12)
    yield Stopping(tuple(stops))
    yield from (case.make(model) for case in taken(turn))


def taken(turn: int, *, foreign: bool = True) -> list[DrafterCase]:
    """Three of the project's drafters."""
    cases = [case for case in CASES if case.title in TITLES and (foreign or "string" not in case.title)]
    return [cases[(3 * turn + at) % len(cases)] for at in range(3)]


def check(model: HashModel, constraint: Constraint, target: Any = None, **options: Any) -> Result:
    """Compare with every kind of drafter, alternately with and without a score of the ending."""
    turn = options["max_tokens"] + options.get("seed", 0)
    options["score_ending"] = turn % 2 == 0
    plain = generate(target or model, "say", constraint, drafter=None, **options)
    for drafter in drafters(model, plain, turn):
        drafted = generate(target or model, "say", constraint, drafter=drafter, **options)
        assert_alike(plain, drafted)
        assert drafted.stats.forwards <= plain.stats.forwards
    return plain


@pytest.mark.exhaustive
@pytest.mark.parametrize("sampler", SAMPLERS, ids=repr)
def test_budgets_of_every_size(json_vocabulary: Vocabulary, sampler: Sampler) -> None:
    """From the minimum on, the output is complete, whatever is drafted."""
    constraint = compile(RECORD, json_vocabulary)
    model = HashModel(json_vocabulary, seed=3, writes=WRITES)
    least = constraint.min_tokens()
    for most in (*range(least, least + 6), least + 13):
        plain = check(model, constraint, max_tokens=most, sampler=sampler, seed=most)
        assert len(plain.tokens) <= most
        json.loads(plain.text)


def test_a_budget_of_nothing(json_vocabulary: Vocabulary) -> None:
    """An output may have no token, or one."""
    constraint = compile(regex("a*"), json_vocabulary)
    for most in (0, 1, 2):
        check(HashModel(json_vocabulary, seed=1), constraint, max_tokens=most)


@pytest.mark.exhaustive
@pytest.mark.parametrize("room", [0, 1, 3, 30])
def test_contexts_that_are_full_at_the_end(json_vocabulary: Vocabulary, room: int) -> None:
    """A tree fits wherever the output does, even at the end of the context."""
    constraint = compile(regex("[a-z]{4,40}"), json_vocabulary)
    for seed in range(3):
        model = HashModel(json_vocabulary, seed=seed, writes="the red house, the red house")
        prompt = len(model.encode_prompt("say"))
        full = HashModel(
            json_vocabulary, seed=seed, writes="the red house, the red house", max_context=prompt + 12 + room
        )
        for target in (full, PlainModel(full)):
            check(full, constraint, target, max_tokens=12, sampler=SAMPLERS[seed], seed=seed)


@pytest.mark.exhaustive
@pytest.mark.parametrize("stops", [(), (0,), (0, 1, 2)], ids=["none", "one", "three"])
def test_vocabularies_with_any_number_of_stops(stops: tuple[int, ...]) -> None:
    """Without a stop, outputs end where nothing may follow."""
    tokens = [b"", b"", b"", *(bytes([letter]) for letter in b'abc[]{}",:. 0123456789truefalsn'), b"ab", b'["']
    vocabulary = Vocabulary([*dict.fromkeys(tokens[3:]), b"", b"", b""], eos=[])
    size = vocabulary.size
    vocabulary = Vocabulary(
        [*dict.fromkeys(tokens[3:]), b"", b"", b""],
        eos=[size - 1 - stop for stop in stops],
        special={size - 1: "<1>", size - 2: "<2>", size - 3: "<3>"},
    )
    for grammar in (regex("[abc]{2,5}(ab)?"), regex('[[]("[ab]{1,3}",){1,2}0[]]'), regex("(a|b){3}cab")):
        constraint = compile(grammar, vocabulary)
        for seed, sampler in enumerate(SAMPLERS):
            model = HashModel(vocabulary, seed=seed)
            for target in (model, PlainModel(model)):
                plain = check_plainly(model, constraint, target, max_tokens=20, sampler=sampler, seed=seed)
                assert plain.finish_reason in ("stop", "length")


def check_plainly(model: HashModel, constraint: Constraint, target: Any, **options: Any) -> Result:
    """As ``check``, without draft models that have their own vocabulary."""
    plain = generate(target, "a", constraint, drafter=None, **options)
    for drafter in (
        Knowing(tokens=plain.tokens, prompt_tokens=plain.stats.prompt_tokens, length=99),
        Noisy(),
        Stopping(model.vocabulary.eos or (0,)),
        *(case.make(model) for case in taken(options["seed"], foreign=False)),
    ):
        drafted = generate(target, "a", constraint, drafter=drafter, **options)
        assert_alike(plain, drafted)
    return plain


FORCED = {
    "at the start": regex("here it begins: [ab]{2}[.]?"),
    "within": regex("([ab]{1,2} and then again ){2}(no|yes, of course)"),
    "all of it": regex("nothing is chosen here"),
    "all but the end": regex("nothing is chosen here[.]?"),
    "between bytes of a character": regex("[éè€]{2,4}x"),
}


@pytest.mark.exhaustive
@pytest.mark.parametrize("place", FORCED)
def test_text_that_is_forced(json_vocabulary: Vocabulary, place: str) -> None:
    """Draft tokens come before it, in it, and after it."""
    constraint = compile(FORCED[place], json_vocabulary)
    for seed, sampler in enumerate(SAMPLERS):
        model = HashModel(json_vocabulary, seed=seed, writes="ab and then again b" if seed else None)
        check(model, constraint, max_tokens=60, sampler=sampler, seed=seed)


def test_forced_tokens_one_by_one(json_vocabulary: Vocabulary) -> None:
    """Without jump-forward no drafter is asked, and nothing is looked ahead at."""
    constraint = compile(RECORD, json_vocabulary)
    model = HashModel(json_vocabulary, seed=1, writes=WRITES)
    plain = generate(model, "say", constraint, max_tokens=40, jump_forward=False, drafter=None)
    for drafter in drafters(model, plain):
        drafted = generate(model, "say", constraint, max_tokens=40, jump_forward=False, drafter=drafter)
        assert_alike(plain, drafted)
        assert drafted.stats.drafts is None
        jumped = generate(model, "say", constraint, max_tokens=40, drafter=drafter, score_ending=True)
        assert jumped.tokens == plain.tokens
        assert jumped.log_z == pytest.approx(plain.log_z)


@potential(always=True)
def no_green(text: str) -> bool:
    """Asked about sampled tokens; the token that completes a forbidden text is resampled."""
    return "green" not in text and "z" not in text


@potential
def some_tag(text: str) -> bool:
    """Asked at the end, so that part of the output is taken back."""
    return "[]" not in text


@pytest.mark.exhaustive
@pytest.mark.parametrize("sampler", SAMPLERS, ids=repr)
def test_potentials_that_forbid(json_vocabulary: Vocabulary, sampler: Sampler) -> None:
    """Redrawn, blocked and withdrawn tokens are the same."""
    record = compile(RECORD, json_vocabulary)
    no_capital = compile(regex("[^A-Z]*"), json_vocabulary)
    tags = compile(regex(r"[\[](red|green|blue)?(,(red|green))*\]"), json_vocabulary)
    for seed in range(3):
        model = HashModel(json_vocabulary, seed=seed, writes='{"name": "Grace", "tags": ["green", "red"]}')
        plain = check_alike_or_failing(
            model, record, max_tokens=40, sampler=sampler, seed=seed, potentials=[no_green, no_capital]
        )
        assert plain is None or "G" not in plain.text
        check_alike_or_failing(model, tags, max_tokens=12, sampler=sampler, seed=seed, potentials=[some_tag])


def check_alike_or_failing(model: HashModel, constraint: Constraint, **options: Any) -> Result | None:
    """Check that outputs are the same, or that the error is the same where everything is forbidden."""
    try:
        plain = generate(model, "say", constraint, drafter=None, **options)
    except GenerationError as error:
        for drafter in (Noisy(), *(case.make(model) for case in taken(0))):
            with pytest.raises(GenerationError) as caught:
                generate(model, "say", constraint, drafter=drafter, **options)
            assert str(caught.value) == str(error)  # noqa: PT017  the error of the plain loop is another one
        return None
    for drafter in drafters(model, plain):
        drafted = generate(model, "say", constraint, drafter=drafter, **options)
        assert_alike(plain, drafted)
    return plain


def test_chunks_are_those_of_the_plain_loop(json_vocabulary: Vocabulary) -> None:
    """Streams have the same pieces: a drafted token is sent as soon as it is certain, one by one."""
    constraint = compile(RECORD, json_vocabulary)
    for seed, sampler in enumerate(SAMPLERS):
        model = HashModel(json_vocabulary, seed=seed, writes=WRITES)
        told: list[Chunk] = []
        options: dict[str, Any] = {"max_tokens": 40, "sampler": sampler, "seed": seed}
        plain = generate(model, "say", constraint, drafter=None, stream=told.append, **options)
        assert "".join(chunk.text for chunk in told) == plain.text
        for drafter in drafters(model, plain, seed):
            chunks: list[Chunk] = []
            generate(model, "say", constraint, drafter=drafter, stream=chunks.append, **options)
            assert chunks == told


def test_other_tokens_that_were_likely(json_vocabulary: Vocabulary) -> None:
    """Alternatives are those of the plain loop."""
    constraint = compile(RECORD, json_vocabulary)
    model = HashModel(json_vocabulary, seed=4, writes=WRITES)

    def written(drafter: Any) -> Result:
        with Context(model, model.encode_prompt("say")) as context:
            generation = start_generation(context, constraint, max_tokens=40, drafter=drafter, alternatives=3)
            for _ in generation:
                pass
            return generation.result()

    plain = written(None)
    assert any(step.alternatives for step in plain.steps)
    for drafter in drafters(model, plain):
        assert_alike(plain, written(drafter))


THOUGHT: Grammar = regex(r"[a-z.]{0,60}") + regex("</think>") + RECORD


@pytest.mark.exhaustive
def test_thoughts(json_vocabulary: Vocabulary) -> None:
    """A thought before the answer is written token by token, and another is cut short by a strategy."""
    constraint = compile(THOUGHT, json_vocabulary)
    for seed, sampler in enumerate(SAMPLERS):
        model = HashModel(json_vocabulary, seed=seed, writes=f"well.a.b.</think>{WRITES}" if seed else None)
        check(model, constraint, max_tokens=70, sampler=sampler, seed=seed)
        options: dict[str, Any] = {"max_tokens": 60, "seed": seed, "sampler": Thinking(5, sampler=sampler)}
        plain = generate(model, "say", constraint, drafter=None, **options)
        assert_alike(plain, generate(model, "say", constraint, drafter="auto", **options))


class InterruptedSession(HashSession):
    """Raises Ctrl-C at some pass, before it or after it."""

    model: Any

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        self.calls = 0

    def _pass(self, run: Callable[[], Any]) -> Any:
        self.calls += 1
        at, after = self.model.interrupted
        if self.calls == at and not after:
            raise KeyboardInterrupt
        found = run()
        if self.calls == at:
            self._drop_tree()  # the state of a session that is interrupted after its pass
            raise KeyboardInterrupt
        return found

    def extend(self, token_ids: Sequence[int], /) -> Any:
        return self._pass(partial(super().extend, token_ids))

    def extend_all(self, token_ids: Sequence[int], /) -> Any:
        return self._pass(partial(super().extend_all, token_ids))

    def extend_tree(self, token_ids: Sequence[int], tree: Any, /, *, all_positions: bool = False) -> Any:
        return self._pass(partial(super().extend_tree, token_ids, tree, all_positions=all_positions))


class InterruptedModel(HashModel):
    interrupted: tuple[int, bool] = (0, False)

    def start(self) -> HashSession:
        return InterruptedSession(self)


@final
class InterruptedPlainModel(PlainModel):
    def start(self) -> PlainSession:
        return PlainSession(self.model.start())


@pytest.mark.parametrize("after", [False, True], ids=["before a pass", "after a pass"])
@pytest.mark.parametrize("chains", [False, True], ids=["trees", "chains"])
def test_an_interruption_leaves_a_context_that_can_be_used(
    json_vocabulary: Vocabulary, after: bool, chains: bool
) -> None:
    """This holds at every pass of an output: the next output on the same text is what a new context gives."""
    constraint = compile(RECORD, json_vocabulary)
    fresh = HashModel(json_vocabulary, seed=6, writes=WRITES)
    with Context(fresh, fresh.encode_prompt("say")) as context:
        plain = start_generation(context, constraint, max_tokens=40, drafter=None)
        for _ in plain:
            pass
        tokens = context.tokens
    for at in range(1, 9):
        model = InterruptedModel(json_vocabulary, seed=6, writes=WRITES)
        model.interrupted = (at, after)
        target: Any = InterruptedPlainModel(model) if chains else model
        knowing = Knowing(tokens=plain.tokens, prompt_tokens=len(tokens) - len(plain.tokens), length=2)
        with Context(target, model.encode_prompt("say")) as context:
            generation = start_generation(context, constraint, max_tokens=40, drafter=knowing)
            try:
                for _ in generation:
                    pass
            except KeyboardInterrupt:
                pass
            else:
                break
            assert context.tokens == tokens[: len(context)]
            assert len(context.unseen) + context.session.length == len(context)
            context.prepare()
            np.testing.assert_array_equal(context.rows_on_host(1)[-1], fresh.start().extend(context.tokens))
            context.truncate(len(model.encode_prompt("say")))
            again = start_generation(context, constraint, max_tokens=40, drafter=knowing)
            for _ in again:
                pass
            assert again.tokens == plain.tokens
    assert at > 4


@pytest.mark.parametrize("chains", [False, True], ids=["trees", "chains"])
def test_an_interruption_between_a_pass_and_its_look_ahead(
    json_vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch, chains: bool
) -> None:
    """The cache may then hold draft tokens, which are not part of the text."""
    import structgen.decode.step.context as module

    model = HashModel(json_vocabulary, seed=6, writes=WRITES)
    constraint = compile(RECORD, json_vocabulary)
    target: Any = PlainModel(model) if chains else model
    with Context(target, model.encode_prompt("say")) as context:
        generation = start_generation(context, constraint, max_tokens=40, drafter=Noisy(width=1, depth=9))
        next(generation)

        def interrupted(*_: Any) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patched:
            patched.setattr(module, "LookAhead", interrupted)
            with pytest.raises(KeyboardInterrupt):
                for _ in generation:
                    pass
        assert context.session.length <= len(context)
        context.prepare()
        np.testing.assert_array_equal(context.rows_on_host(1)[-1], model.start().extend(context.tokens))


@pytest.mark.parametrize("after", [False, True])
def test_an_interruption_where_the_cache_takes_over_drafts(json_vocabulary: Vocabulary, after: bool) -> None:
    """A chain is cut off again from the cache of a session that knows no trees."""

    class Cut(PlainSession):
        armed = False

        def truncate(self, length: int, /) -> None:
            if self.armed:
                type(self).armed = False
                if after:
                    super().truncate(length)
                raise KeyboardInterrupt
            super().truncate(length)

    class Model(PlainModel):
        def start(self) -> PlainSession:
            return Cut(self.model.start())

    model = HashModel(json_vocabulary, seed=6, writes=WRITES)
    constraint = compile(RECORD, json_vocabulary)
    with Context(Model(model), model.encode_prompt("say")) as context:
        generation = start_generation(context, constraint, max_tokens=40, drafter=Noisy(width=1, depth=9))
        for _ in range(3):
            next(generation)
        Cut.armed = True
        with pytest.raises(KeyboardInterrupt):
            for _ in generation:
                pass
        assert context.session.length <= len(context)
        context.prepare()
        np.testing.assert_array_equal(context.rows_on_host(1)[-1], model.start().extend(context.tokens))


def test_an_interruption_in_a_batch(json_vocabulary: Vocabulary) -> None:
    """One of four outputs is interrupted; the others are written on, as they are alone."""
    constraint = compile(RECORD, json_vocabulary)
    model = HashModel(json_vocabulary, seed=7, writes=WRITES)
    plain = [generate(model, "say", constraint, max_tokens=40, seed=seed, drafter=None) for seed in range(4)]

    def write(target: Any, seed: int) -> Any:
        told: list[Chunk] = []

        def stream(chunk: Chunk) -> None:
            told.append(chunk)
            if seed == 2 and len(told) > 3:
                raise KeyboardInterrupt

        try:
            return generate(target, "say", constraint, max_tokens=40, seed=seed, drafter=Noisy(), stream=stream)
        except KeyboardInterrupt:
            return None

    found = together(model, [partial(write, seed=seed) for seed in range(4)])
    assert found[2] is None
    for seed in (0, 1, 3):
        assert_alike(plain[seed], found[seed])

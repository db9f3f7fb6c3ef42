"""Drafters that fail in all sorts of ways: one warning, the drafter is dropped, the output is the plain loop's."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, final

import numpy as np
import pytest
from result_equality import assert_alike
from schema_as_written import as_written as json_schema
from scripted_drafters import Knowing
from word_vocabulary import draft_vocabulary

from structgen.decode import Multinomial, generate, start_generation
from structgen.decode.speculative.cost import CostModel
from structgen.decode.speculative.draft_tree import ROOT, DraftTree, SampledChildren
from structgen.decode.speculative.drafter import Drafter, Drafting, DraftState, DraftTask, Verified
from structgen.decode.speculative.drafters.auto import Combined
from structgen.decode.speculative.drafters.token_recycling import TokenRecycling
from structgen.decode.speculative.speculation import Speculation
from structgen.decode.step.context import Context
from structgen.engine import Constraint, Vocabulary, compile
from structgen.errors import DraftWarning
from structgen.methods.drafters.draft_model import DraftModel
from structgen.methods.drafters.token_bridge import ExactStringMatch
from structgen.models.toy.hash import HashModel
from structgen.shapes import Bandit

RECORD = json_schema(
    {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer", "maximum": 130}},
        "required": ["name", "age"],
        "additionalProperties": False,
    }
)
WRITES = '{"name": "Grace", "age": 85}'
SIZE = 5  # the number of tokens before a drafter begins to fail


@final
@dataclass(frozen=True, eq=False)
class Bad(Drafter, Drafting):
    """Drafts well at first, then does something wrong with a tree or with its arguments."""

    wrong: Callable[[Bad, Context, DraftState], Any]
    title: str = "bad"
    calls: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.title

    def start(self, context: Context, task: DraftTask) -> Drafting:
        self.calls.append("start")
        return self

    def propose(self, context: Context, state: DraftState, budget: int) -> DraftTree:
        self.calls.append("propose")
        if self.calls.count("propose") < 3:
            return DraftTree.chain(state.matcher.forced_tokens() or [40, 41])
        tree: DraftTree = self.wrong(self, context, state)
        return tree

    def observe(self, verified: Verified) -> None:
        self.calls.append("observe")

    def close(self) -> None:
        self.calls.append("close")


def changed(change: Callable[[DraftTree], object], *_: Any) -> DraftTree:
    """A tree of three tokens that was tampered with."""
    tree = DraftTree.chain([ord("a"), ord("b")], 0.5)
    tree.add(ROOT, ord("c"), 0.5)
    change(tree)
    return tree


def of(change: Callable[[DraftTree], object]) -> Callable[..., DraftTree]:
    return partial(changed, change)


def sampled(distribution: Any, tokens: Any = (97,), parent: int = ROOT) -> Callable[..., DraftTree]:
    return of(lambda tree: tree.sampled.update({parent: SampledChildren(distribution, tokens)}))


def mask_written(_: Bad, __: Context, state: DraftState) -> DraftTree:
    state.mask[:] = -1
    return DraftTree()


def failing(_: Bad, __: Context, ___: DraftState) -> DraftTree:
    raise RuntimeError("lost")


def deep(depth: int) -> int:
    return deep(depth + 1)


WIDTH = len(draft_vocabulary().tokens)
FLAT = np.full(WIDTH, 1 / WIDTH)
WRONGS: dict[str, Callable[..., Any]] = {
    "raises": failing,
    "recurses without end": lambda *_: deep(0),
    "runs out of memory": lambda *_: (_ for _ in ()).throw(MemoryError()),
    "nothing": lambda *_: None,
    "a list": lambda *_: [1, 2],
    "a token tree": lambda *_: DraftTree.chain([1]).token_tree(),
    "a negative id": of(lambda tree: tree.add(ROOT, -1)),
    "an id too large": of(lambda tree: tree.add(ROOT, 10**6)),
    "an id that is no word of a machine": of(lambda tree: tree.add(ROOT, 10**30)),
    "a text for a token": of(lambda tree: tree.add(ROOT, "a")),  # type: ignore[arg-type]
    "a fraction for a token": of(lambda tree: tree.add(ROOT, 100.0)),  # type: ignore[arg-type]
    "no token": of(lambda tree: tree.add(ROOT, None)),  # type: ignore[arg-type]
    "a confidence of NaN": of(lambda tree: tree.add(ROOT, 100, math.nan)),
    "a confidence above 1": of(lambda tree: tree.add(ROOT, 100, 1.5)),
    "a confidence without end": of(lambda tree: tree.add(ROOT, 100, math.inf)),
    "a negative confidence": of(lambda tree: tree.add(ROOT, 100, -0.5)),
    "a text for a confidence": of(lambda tree: tree.add(ROOT, 100, "high")),  # type: ignore[arg-type]
    "its own parent": of(lambda tree: tree.parents.__setitem__(0, 0)),
    "parents in a circle": of(lambda tree: tree.parents.__setitem__(slice(0, 2), [1, 0])),
    "a parent that comes later": of(lambda tree: tree.parents.__setitem__(0, 2)),
    "a parent below the root": of(lambda tree: tree.parents.__setitem__(2, -2)),
    "a parent that is not there": of(lambda tree: tree.add(77, 100)),
    "no parents": of(lambda tree: tree.parents.clear()),
    "too few confidences": of(lambda tree: tree.confidences.pop()),
    "too few sources": of(lambda tree: tree.sources.pop()),
    "another token than was added": of(lambda tree: tree.tokens.__setitem__(1, 100)),
    "a distribution that is too short": sampled(FLAT[:7]),
    "a distribution of two dimensions": sampled(FLAT[None]),
    "a distribution of NaN": sampled(np.full(WIDTH, math.nan)),
    "a distribution without mass": sampled(np.zeros(WIDTH)),
    "a distribution that is negative": sampled(np.where(np.arange(WIDTH) == 1, -0.5, 1.5 / (WIDTH - 1))),
    "logits for a distribution": sampled(np.linspace(-3, 3, WIDTH)),
    "no distribution": sampled(None),
    "a list for a distribution": sampled(FLAT.tolist()),
    "sampled tokens that are none": sampled(FLAT, ("a",)),
    "sampled after no node": sampled(FLAT, parent=99),
    "writes into the mask": mask_written,
}


@pytest.fixture(scope="module")
def constraint() -> Constraint:
    return compile(RECORD, draft_vocabulary())


def model_of(seed: int) -> HashModel:
    return HashModel(draft_vocabulary(), seed=seed, writes=WRITES)


@pytest.mark.parametrize("cost", [None, CostModel(0.05)], ids=["all draft tokens", "draft tokens that pay"])
@pytest.mark.parametrize("title", WRONGS)
def test_one_warning_and_the_same_output(constraint: Constraint, title: str, cost: CostModel | None) -> None:
    """Whatever it drafts, it is told once to end, and is not asked again."""
    model = model_of(len(title))
    for sampler in (Multinomial(), Multinomial(0.5, top_k=5)):
        options: dict[str, Any] = {"max_tokens": 40, "seed": 1, "sampler": sampler}
        plain = generate(model, "say", constraint, drafter=None, **options)
        bad = Bad(WRONGS[title])
        with pytest.warns(DraftWarning, match="drafter 'bad'") as caught:
            drafted = generate(model, "say", constraint, drafter=Speculation(bad, cost=cost), **options)
        assert len(caught) == 1
        assert_alike(plain, drafted)
        assert bad.calls.count("start") == bad.calls.count("close") == 1
        assert bad.calls[-2:] == ["propose", "close"]


@pytest.mark.parametrize("title", WRONGS)
def test_others_are_asked_on(constraint: Constraint, title: str) -> None:
    """Beside a drafter that fails, the others go on to draft, and right draft tokens go on to save passes."""
    model = model_of(3)
    plain = generate(model, "say", constraint, max_tokens=40, drafter=None)
    knowing = Knowing(tokens=plain.tokens, prompt_tokens=plain.stats.prompt_tokens)
    for wrapped in (Combined, Bandit):
        bad = Bad(WRONGS[title])
        with pytest.warns(DraftWarning, match="drafter 'bad'") as caught:
            drafted = generate(model, "say", constraint, max_tokens=40, drafter=wrapped((bad, knowing)))
        assert len(caught) == 1
        assert_alike(plain, drafted)
        assert drafted.stats.drafts is not None
        assert drafted.stats.drafts.sources["knowing"].accepted > 0
        assert drafted.stats.forwards < plain.stats.forwards


def test_a_matcher_that_is_moved_is_no_matter(constraint: Constraint) -> None:
    """A drafter has its own matcher; the loop's matcher judges its drafts."""
    model = model_of(4)

    def moving(_: Bad, __: Context, state: DraftState) -> DraftTree:
        taken: list[int] = []
        while not state.matcher.is_terminated and len(taken) < 9:
            allowed = state.matcher.allowed_tokens(1)
            if not allowed:
                break
            state.matcher.accept(allowed[0])
            taken += allowed
        return DraftTree.chain(taken[::-1], 0.5)

    for seed in range(5):
        options: dict[str, Any] = {"max_tokens": 40, "seed": seed, "sampler": Multinomial()}
        plain = generate(model, "say", constraint, drafter=None, **options)
        for drafter in (Bad(moving), Combined((Bad(moving), TokenRecycling()))):
            assert_alike(plain, generate(model, "say", constraint, drafter=drafter, **options))


@pytest.mark.exhaustive
@pytest.mark.timeout(30)
def test_huge_trees_are_cut(constraint: Constraint) -> None:
    """A chain and a fan of many thousand tokens, allowed ones and others, are cut."""
    model = model_of(5)
    plain = generate(model, "say", constraint, max_tokens=40, drafter=None)
    chain = DraftTree.chain([ord("a")] * 50_000, 0.9)
    fan, comb = DraftTree(), DraftTree()
    for first in range(WIDTH):
        node = fan.add(ROOT, first, 1 / WIDTH)
        for second in range(0, WIDTH, 3):
            fan.add(node, second, 1 / WIDTH)
    node = ROOT
    for _ in range(50):
        for token in range(WIDTH):
            last = comb.add(node, token, 0.5)
        node = last
    for tree in (chain, fan, comb):
        drafted = generate(model, "say", constraint, max_tokens=40, drafter=Bad(lambda *_, tree=tree: tree))
        assert_alike(plain, drafted)
        assert drafted.stats.drafted <= 32 * drafted.stats.forwards


@pytest.mark.parametrize("beside", [(), (TokenRecycling(),)], ids=["alone", "combined"])
def test_a_drafter_that_failed_stays_dropped(constraint: Constraint, beside: tuple[Drafter, ...]) -> None:
    """This holds also where the output is rejected and drafting starts anew."""
    model = model_of(6)
    drafter = Combined((Bad(failing), *beside)) if beside else Bad(failing)

    def write_four_times(context: Context) -> None:
        generation = start_generation(context, constraint, max_tokens=40, drafter=drafter)
        for _ in range(4):
            for _ in generation:
                pass
            generation.reject(len(generation.tokens), keep=2)

    with Context(model, model.encode_prompt("say")) as context, pytest.warns(DraftWarning) as caught:
        write_four_times(context)
    assert len(caught) == 1


def no_tokenizer() -> Any:
    """A model without a vocabulary."""

    class Mute:
        name = "mute"
        max_context = None

        def start(self) -> Any:
            return model_of(0).start()

    return Mute()


@pytest.mark.parametrize(
    ("drafter", "message"),
    [
        (lambda: DraftModel(no_tokenizer()), "mute"),
        (lambda: DraftModel(no_tokenizer(), bridge=ExactStringMatch()), "mute"),
        (lambda: DraftModel(HashModel(Vocabulary([b"", b"a", b"b"], eos=[0]))), "its vocabulary is not the target's"),
        (lambda: DraftModel(HashModel(draft_vocabulary(), max_context=2)), "the prompt is too long for it"),
    ],
    ids=["no tokenizer", "no tokenizer, bridge", "another vocabulary", "a context that is too short"],
)
def test_draft_models_that_do_not_fit(constraint: Constraint, drafter: Callable[[], Drafter], message: str) -> None:
    """The message names the model and a solution; the output is written, alone and among others."""
    model = model_of(7)
    plain = generate(model, "say", constraint, max_tokens=40, drafter=None)
    for given in (drafter(), Combined((drafter(), TokenRecycling()))):
        with pytest.warns(DraftWarning, match=message) as caught:
            assert_alike(plain, generate(model, "say", constraint, max_tokens=40, drafter=given))
        assert len(caught) == 1


def test_warnings_that_are_errors_are_the_callers(constraint: Constraint) -> None:
    """A caller that turns warnings into errors gets one, not an output."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(DraftWarning, match="lost"):
            generate(model_of(8), "say", constraint, max_tokens=40, drafter=Bad(failing))


@pytest.mark.parametrize("wrapped", [False, True])
def test_an_interruption_is_no_failure(constraint: Constraint, wrapped: bool) -> None:
    """Ctrl-C in a drafter ends the output, and the context stays usable."""

    def interrupted(*_: Any) -> DraftTree:
        raise KeyboardInterrupt

    model = model_of(9)
    with Context(model, model.encode_prompt("say")) as context:
        drafter: Drafter = Bad(interrupted)
        generation = start_generation(
            context, constraint, max_tokens=40, drafter=Combined((drafter, TokenRecycling())) if wrapped else drafter
        )
        with pytest.raises(KeyboardInterrupt):
            for _ in generation:
                pass
        assert context.session.length + len(context.unseen) == len(context)
        fresh = model.start().extend(context.tokens)
        context.prepare()
        np.testing.assert_array_equal(context.rows_on_host(1)[-1], fresh)

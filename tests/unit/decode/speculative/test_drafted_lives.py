"""Random operations on contexts: drafted outputs are written, taken back, blocked, planned, forked and exchanged.

After every step the matcher stands where a fresh one stands after the same tokens, the cache holds a prefix of the
text, the model's next distribution is that of a fresh session, and every score in the output is that of its token.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, final

import numpy as np
import pytest
from drafter_tasks import PlainModel
from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from structgen.decode import Greedy, Multinomial, Sampler, Step, start_generation
from structgen.decode.autoregressive.loop import Chunk, Generation
from structgen.decode.speculative.draft_tree import ROOT, DraftTree
from structgen.decode.speculative.drafter import Drafter, Drafting, DraftState, DraftTask
from structgen.decode.speculative.drafters.auto import Auto, Combined
from structgen.decode.speculative.speculation import AnyDrafter, Speculation
from structgen.decode.step.context import Context
from structgen.engine import Constraint, Vocabulary, compile
from structgen.engine.mask import allowed_ids
from structgen.errors import GenerationError
from structgen.frontends.json_schema import json_schema
from structgen.frontends.lark import lark
from structgen.frontends.regex import regex
from structgen.methods.drafters.draft_model import DraftModel
from structgen.methods.drafters.jacobi import Jacobi
from structgen.methods.verifiers.tree_verification import BlockVerification
from structgen.models import Batch, HashModel
from structgen.shapes import Chain, Fixed

GRAMMARS = (
    json_schema(
        {
            "type": "object",
            "properties": {"name": {"type": "string", "maxLength": 8}, "ok": {"type": "boolean"}, "n": {"const": 120}},
            "required": ["name", "ok", "n"],
            "additionalProperties": False,
        }
    ),
    regex("([a-z]{1,4} ){1,3}end[.]"),
    lark('start: "[" value ("," value)* "]"\nvalue: start | "(" value ")" | /[0-9]{1,2}/'),
    regex("(?s).{2,30}"),
)
MOST = 40


@final
@dataclass(frozen=True)
class Foreseeing(Drafter, Drafting):
    """Asks a fresh session for the most probable tokens, and drafts these or others.

    Attributes:
        rate: how often it drafts the most probable tokens.
        width: the number of siblings.
        depth: the number of levels.
    """

    rate: float
    width: int
    depth: int

    @property
    def name(self) -> str:
        return f"foreseeing {self.rate}"

    def start(self, context: Context, task: DraftTask) -> Drafting:
        return _Foresight(self, task)

    def propose(self, context: Context, state: DraftState, budget: int) -> DraftTree:
        raise NotImplementedError


@final
class _Foresight(Drafting):
    def __init__(self, drafter: Foreseeing, task: DraftTask) -> None:
        self._drafter = drafter
        self._task = task

    def propose(self, context: Context, state: DraftState, budget: int) -> DraftTree:
        tree, node = DraftTree(), ROOT
        matcher, size = state.matcher.fork(), self._task.constraint.vocabulary.size
        generator = self._task.generator
        tokens = list(context.tokens)
        for _ in range(self._drafter.depth):
            ids = allowed_ids(mask_of(matcher, size), size)
            if not len(ids):
                break
            row = context.model.start().extend(tokens)
            best = int(ids[row[ids].argmax()])
            others = generator.choice(ids, size=self._drafter.width).tolist()
            drafts = [best, *others] if generator.random() < self._drafter.rate else others
            for draft in reversed(drafts):
                last = tree.add(node, draft, 0.5)
            tokens.append(drafts[0])
            node = last
            if not matcher.accept(drafts[0]):
                break
        return tree


def mask_of(matcher: Any, size: int) -> Any:
    mask = np.zeros((1, (size + 31) // 32), dtype=np.int32)
    matcher.fill_mask(mask)
    return mask[0]


def drafters_of(vocabulary: Vocabulary) -> tuple[AnyDrafter, ...]:
    draft = HashModel(vocabulary, seed=1)
    return (
        Foreseeing(1.0, 1, 4),
        Foreseeing(0.0, 2, 3),
        Foreseeing(0.5, 3, 5),
        Combined((Foreseeing(0.5, 1, 3), Jacobi())),
        Auto(),
        DraftModel(draft, Fixed.branching(2, 2)),
        Speculation(DraftModel(draft, Chain(4)), verifier=BlockVerification()),
        None,
    )


class Lives(RuleBasedStateMachine):
    """A context and the outputs on it; subclasses choose the model."""

    model: ClassVar[Any]
    constraints: ClassVar[tuple[Constraint, ...]]
    drafters: ClassVar[tuple[AnyDrafter, ...]]
    tolerance: ClassVar[float] = 0.0

    context: Context
    generation: Generation | None = None
    others: list[Context]

    @initialize(prompt=st.text("ab[1,{ ", min_size=1, max_size=40), always=st.booleans())
    def begin(self, prompt: str, always: bool) -> None:
        self.context = Context(self.model, self.model.encode_prompt(prompt, chat=False))
        self.others = []
        self.always = always  # otherwise the cache is left alone: reading it makes it settle
        self.prompt = len(self.context)
        self.chunk: Chunk | None = None
        self.is_finished = self.is_planned = False

    def teardown(self) -> None:
        if hasattr(self, "context"):
            self._check_cache(self.context)
            self._check_scores()
            for context in (self.context, *self.others):
                context.close()

    # Operations.

    @precondition(lambda self: self.generation is None)
    @rule(
        grammar=st.integers(0, len(GRAMMARS) - 1),
        drafter=st.integers(0, 7),
        sampler=st.sampled_from([Greedy(), Greedy(), Multinomial(), Multinomial(0.5, top_k=9)]),
        seed=st.integers(0, 99),
        score=st.booleans(),
    )
    def start(self, grammar: int, drafter: int, sampler: Sampler, seed: int, score: bool) -> None:
        self.constraint = self.constraints[grammar]
        self.prompt = len(self.context)
        if self.prompt > 300:
            self.context.replace(self.context.tokens[:20])
            self.prompt = 20
        self.generation = start_generation(
            self.context,
            self.constraint,
            max_tokens=max(MOST, self.constraint.min_tokens()),
            sampler=sampler,
            seed=seed,
            drafter=self.drafters[drafter],
            score_ending=score,
        )
        self.chunk, self.is_finished, self.is_planned = None, False, False

    @precondition(lambda self: self.generation is not None)
    @rule(count=st.integers(1, 9))
    def step(self, count: int) -> None:
        for _ in range(count):
            if self.generation is None:
                return
            try:
                self.chunk = next(self.generation)
            except StopIteration:
                self.is_finished = True
                return
            except GenerationError as error:
                assert "rejected" in str(error)  # noqa: PT017  it happens only now and then
                self.generation = None
                return

    @precondition(lambda self: self.generation is not None)
    @rule()
    def run_out(self) -> None:
        self.step(60)

    @precondition(lambda self: self.generation is not None and self.is_finished)
    @rule()
    def finish(self) -> None:
        result = self._now().result()
        assert result.tokens == self.context.tokens[self.prompt :]
        self._check_scores()
        chosen = [at for at, step in enumerate(result.steps) if not step.forced]
        if not self.is_planned:  # planned tokens are not asked about, nor are forced ones before them
            assert all(step.log_z is not None for step in result.steps[: max(chosen, default=0)])
        self.generation = None

    @precondition(lambda self: self.generation is not None)
    @rule()
    def abandon(self) -> None:
        self.generation = None

    @precondition(lambda self: self.generation is not None and self.generation.tokens)
    @rule(data=st.data())
    def reject(self, data: st.DataObject) -> None:
        generation = self._now()
        length = data.draw(st.integers(1, len(generation.tokens)))
        generation.reject(length, keep=data.draw(st.integers(0, length - 1)))
        self.is_finished = False

    @precondition(lambda self: self.generation is not None)
    @rule(share=st.floats(0, 1))
    def rewind(self, share: float) -> None:
        generation = self._now()
        generation.rewind(int(share * len(generation.tokens)))
        self.is_finished = False

    @precondition(lambda self: self.generation is not None and self.chunk is not None and self.chunk.tokens)
    @rule(share=st.floats(0, 1))
    def take_back(self, share: float) -> None:
        generation, chunk = self._now(), self.chunk
        assert chunk is not None
        if chunk.start + len(chunk.tokens) == len(generation.tokens):
            left = generation.take_back(chunk, int(share * len(chunk.tokens)))
            assert left.tokens == chunk.tokens[: len(left.tokens)]
            self.chunk, self.is_finished = None, False

    @precondition(lambda self: self.generation is not None and not self.is_finished)
    @rule(seed=st.integers(0, 99))
    def block(self, seed: int) -> None:
        generation = self._now()
        size = self.constraint.vocabulary.size
        ids = allowed_ids(mask_of(generation.matcher, size), size)
        if len(ids) > 1:
            generation.block(np.random.default_rng(seed).choice(ids, size=len(ids) // 2, replace=False).tolist())

    @precondition(lambda self: self.generation is not None and not self.is_finished)
    @rule(seed=st.integers(0, 99), count=st.integers(1, 3))
    def plan(self, seed: int, count: int) -> None:
        """Plan tokens that are allowed here; those after the first may continue one that a rewind takes back."""
        generation = self._now()
        vocabulary = self.constraint.vocabulary
        matcher = generation.matcher.fork()
        steps: list[Step] = []
        tokens = list(self.context.tokens)
        for _ in range(count):
            ids = allowed_ids(mask_of(matcher, vocabulary.size), vocabulary.size)
            ids = ids[~np.isin(ids, vocabulary.eos)]
            left = generation.remaining - len(steps)
            if not len(ids) or left <= 0 or matcher.needs_budget_mask(left):
                break
            token = int(np.random.default_rng(seed).choice(ids))
            steps.append(Step(token, False, self._log_p(tokens, [token]), 0.0))
            assert matcher.accept(token)
            tokens.append(token)
        generation.rewind(len(generation.tokens))  # earlier plans follow other tokens
        self.is_planned = True
        generation.plan(steps, forwards=0, time_model_s=0.0)

    @precondition(lambda self: self.generation is not None and not self.is_finished)
    @rule()
    def ask(self) -> None:
        """Ask as strategies do that choose tokens themselves."""
        generation = self._now()
        self.context.prepare()
        self._same(generation.logits(), self.context)
        self.context.prepare()  # nothing was chosen

    @precondition(lambda self: len(self.context) > 0)
    @rule()
    def fork(self) -> None:
        self.others.append(self.context.fork())
        self._check_cache(self.others[-1])

    @precondition(lambda self: self.generation is None and self.others)
    @rule()
    def go_on_with_a_fork(self) -> None:
        self.others.append(self.context)
        self.context = self.others.pop(0)
        self.prompt = len(self.context)

    @precondition(lambda self: self.generation is None)
    @rule(text=st.text("ab 1", min_size=1, max_size=12), share=st.floats(0, 1))
    def exchange(self, text: str, share: float) -> None:
        """Exchange the text after some of it, or after all of it."""
        tokens = self.model.encode_prompt(text, chat=False)
        self.context.replace([*self.context.tokens[: int(share * len(self.context))], *tokens])
        self.prompt = len(self.context)

    @precondition(lambda self: self.generation is None and len(self.context) > 1)
    @rule(share=st.floats(0, 1), token=st.integers(1, 200))
    def alter(self, share: float, token: int) -> None:
        """Change one token, near the end or far from it; the tokens after it stay."""
        tokens = list(self.context.tokens)
        tokens[int(share * (len(tokens) - 1))] = token
        self.context.replace(tokens)
        self.prompt = len(self.context)

    @precondition(lambda self: self.generation is None)
    @rule(text=st.text("ab 1", min_size=1, max_size=12))
    def append(self, text: str) -> None:
        self.context.append(self.model.encode_prompt(text, chat=False))
        self.prompt = len(self.context)

    @precondition(lambda self: self.generation is None and len(self.context) > 0)
    @rule()
    def read(self) -> None:
        self.context.read()

    @rule()
    def look(self) -> None:
        """Look at the cache, even where it is otherwise left alone."""
        self._check_cache(self.context)
        self._check_scores()

    # Invariants.

    @invariant()
    def matcher_and_text_agree(self) -> None:
        generation = self.generation
        if generation is None:
            return
        assert self.context.tokens[self.prompt :] == generation.tokens
        fresh, now = self.constraint.matcher(), generation.matcher
        assert all(fresh.accept(token) for token in generation.tokens)
        size = self.constraint.vocabulary.size
        np.testing.assert_array_equal(mask_of(fresh, size), mask_of(now, size))
        assert fresh.is_accepting == now.is_accepting
        assert fresh.forced_tokens() == now.forced_tokens()
        assert fresh.min_tokens() == now.min_tokens()
        assert fresh.history_length == now.history_length

    @invariant()
    def cache_and_text_agree(self) -> None:
        if getattr(self, "always", False):
            self._check_cache(self.context)

    def _check_cache(self, context: Context) -> None:
        session = context.session
        assert session.length <= len(context)
        assert len(context.unseen) + session.length == len(context)
        if len(context):
            with context.fork() as copy:
                copy.prepare()
                self._same(copy.rows_on_host(1)[-1], copy)

    def _check_scores(self) -> None:
        """Each token's projected probability times the mass of the mask is the model's probability."""
        generation = self.generation
        if generation is None:
            return
        tokens = list(self.context.tokens[: self.prompt])
        for step in generation.steps:
            ids = self.constraint.vocabulary.eos if step.token is None else [step.token]
            if step.log_z is not None:
                expected = self._log_p(tokens, ids)
                assert step.logprob + step.log_z == pytest.approx(expected, abs=max(self.tolerance, 1e-5))
            tokens += [] if step.token is None else [step.token]

    def _same(self, row: Any, context: Context) -> None:
        fresh = self.model.start().extend(context.tokens)
        np.testing.assert_allclose(row, fresh, rtol=0, atol=self.tolerance)

    def _log_p(self, tokens: list[int], ids: Any) -> float:
        row = self.model.start().extend(tokens).astype(np.float64)
        return float(np.logaddexp.reduce(row[list(ids)]) - np.logaddexp.reduce(row))

    def _now(self) -> Generation:
        assert self.generation is not None
        return self.generation


def check_lives(target: Any, examples: int, steps: int, error: float = 0.0) -> None:
    """Run many sequences of operations on a model."""

    class Here(Lives):
        model = target
        constraints = tuple(compile(grammar, target.vocabulary) for grammar in GRAMMARS)
        drafters = drafters_of(target.vocabulary)
        tolerance = error

    here = Here.TestCase
    here.settings = settings(max_examples=examples, stateful_step_count=steps, deadline=None)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        here().runTest()


def hash_model(vocabulary: Vocabulary) -> HashModel:
    return HashModel(vocabulary, seed=2, writes='{"name": "ab", "ok": true, "n": 120}')


MODELS: dict[str, Callable[[Vocabulary], Any]] = {
    "trees": hash_model,
    "chains": lambda vocabulary: PlainModel(hash_model(vocabulary)),
    "a batch": lambda vocabulary: Batch(hash_model(vocabulary)),
}


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", MODELS)
def test_lives(json_vocabulary: Vocabulary, kind: str) -> None:
    """They agree exactly, on sessions that run trees, on those that run chains, and in a batch."""
    check_lives(MODELS[kind](json_vocabulary), 50, 25)


@pytest.mark.nightly
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kind", MODELS)
def test_many_lives(json_vocabulary: Vocabulary, kind: str) -> None:
    """The same holds for many more."""
    check_lives(MODELS[kind](json_vocabulary), 1_500, 50)


def network(kind: str, tmp_path_factory: pytest.TempPathFactory) -> Any:
    torch = pytest.importorskip("torch")
    from layered_llama import write_llama

    folder = write_llama(tmp_path_factory.mktemp("llama") / "two", layers=2)
    if kind == "llama":
        from structgen.models.llama.model import LlamaModel

        return LlamaModel(folder, name="two", device=torch.device("cpu"), dtype=torch.float32)
    transformers = pytest.importorskip("transformers")
    from structgen.models import from_transformers

    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(folder / "tokenizer.json"), eos_token="<|im_end|>"
    )
    return from_transformers(transformers.AutoModelForCausalLM.from_pretrained(folder), tokenizer, name="two")


@pytest.mark.parametrize("kind", ["llama", "transformers"])
def test_lives_on_a_network(tmp_path_factory: pytest.TempPathFactory, kind: str) -> None:
    """They agree up to rounding."""
    check_lives(network(kind, tmp_path_factory), 3, 15, 1e-3)


@pytest.mark.nightly
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kind", ["llama", "transformers"])
def test_many_lives_on_a_network(tmp_path_factory: pytest.TempPathFactory, kind: str) -> None:
    """The same holds for many more."""
    check_lives(network(kind, tmp_path_factory), 300, 50, 1e-3)

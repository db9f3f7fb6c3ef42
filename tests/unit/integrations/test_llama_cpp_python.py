"""The logits processor and the draft model for llama-cpp-python: on a double of its loop, and on it if installed."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from llama_double import LlamaDouble
from numpy.typing import NDArray

import structgen as sg
from structgen.engine import Vocabulary
from structgen.errors import ArgumentError, BudgetError, GenerationError, LimitExceeded, VocabularyError
from structgen.integrations.llama_cpp_python import ConstraintDraftModel, ConstraintLogitsProcessor

WORDS = ["the", "that", "then", '{"', '": ', ', "', "name", "ab", "name that", " the that then"]
VOCABULARY = Vocabulary(
    [*(bytes([byte]) for byte in range(256)), *(word.encode() for word in WORDS), b"", b""], eos=[267]
)
PROMPT = [3, 1, 4, 1, 5]
JSON = sg.json_schema(
    {
        "type": "object",
        "properties": {"name": {"enum": ["the", "that"]}, "n": {"type": "integer"}},
        "required": ["name", "n"],
    }
)
GRAMMARS = [JSON, sg.regex("(the|tha[a-f]+) [0-9]{3,9} (the that then|a the)"), sg.regex("(ab|name )*then")]


def logits(ids: Sequence[int]) -> NDArray[np.float32]:
    """Logits that depend on all ids."""
    seed = int.from_bytes(hashlib.blake2b(repr(list(ids)).encode(), digest_size=8).digest())
    return np.random.default_rng(seed).normal(size=VOCABULARY.size + 3).astype(np.float32) * 2


def double() -> LlamaDouble:
    """A model with a few more logits than tokens."""
    return LlamaDouble(logits, VOCABULARY.eos)


def expected(grammar: sg.Grammar, most: int) -> list[int]:
    """The greedy output, by validating every token."""
    constraint, output = sg.compile(grammar, VOCABULARY), list[int]()
    matcher = constraint.matcher()
    while not matcher.is_terminated and len(output) < most:
        scores = logits([*PROMPT, *output])
        token = next(int(each) for each in np.argsort(-scores) if matcher.validate([int(each)]) == 1)
        assert matcher.accept(token)
        output.append(token)
    return [token for token in output if token != 267]


@pytest.mark.parametrize("grammar", GRAMMARS)
def test_greedy_outputs(grammar: sg.Grammar) -> None:
    """They are the greedy ones under the grammar, with and without drafts, and drafts save passes."""
    processor = ConstraintLogitsProcessor(sg.compile(grammar, VOCABULARY))
    plain, drafted = double(), double()
    wanted = expected(grammar, 60)
    assert plain.create_completion(PROMPT, **processor.arguments, max_tokens=60) == wanted
    processor.reset()
    drafted.draft_model = processor.draft_model()
    assert drafted.create_completion(PROMPT, **processor.arguments, max_tokens=60) == wanted
    processor.check()
    assert plain.swallowed == drafted.swallowed == []
    assert drafted.passes <= plain.passes


@pytest.mark.parametrize("seed", range(4))
def test_draft_tokens_that_are_rejected(seed: int) -> None:
    """Wrong drafts of any length change nothing; every output of samples is one of the grammar, within the budget."""
    grammar = GRAMMARS[seed % 3]
    constraint = sg.compile(grammar, VOCABULARY)
    chance = np.random.default_rng(seed)

    def propose(_ids: Any) -> NDArray[np.intc]:
        return chance.integers(97, 123, size=chance.integers(0, 7)).astype(np.intc)

    model = double()
    processor = ConstraintLogitsProcessor(constraint, max_tokens=40)
    model.draft_model = processor.draft_model(propose)
    for sample in range(5):
        processor.reset()
        tokens = model.create_completion(PROMPT, **processor.arguments, temperature=1.0, seed=sample)
        matcher = constraint.matcher()
        assert all(map(matcher.accept, tokens))
        assert matcher.is_accepting
        assert len(tokens) <= 40
    assert not model.swallowed


def test_forced_tokens_are_drafted() -> None:
    """Half of the output is forced here, and runs in the passes of other tokens."""
    plain, drafted = double(), double()
    constraint = sg.compile(sg.regex('[ab]{"name": "[cd]", "name that": [0-9]}'), VOCABULARY)
    processor = ConstraintLogitsProcessor(constraint)
    output = plain.create_completion(PROMPT, **processor.arguments, max_tokens=60)
    processor.reset()
    drafted.draft_model = processor.draft_model()
    assert drafted.create_completion(PROMPT, **processor.arguments, max_tokens=60) == output
    assert drafted.passes < plain.passes


@pytest.mark.parametrize("has_drafts", [False, True])
def test_one_processor_for_several_prompts(*, has_drafts: bool) -> None:
    """Another prompt, the same one again, and one that goes on after an output that had ended."""
    processor, model = ConstraintLogitsProcessor(sg.compile(JSON, VOCABULARY)), double()
    if has_drafts:
        model.draft_model = processor.draft_model()
    first = model.create_completion(PROMPT, **processor.arguments, max_tokens=60)
    for prompt in (PROMPT, [3, 1], [9, 9, 9, 9, 9, 9, 9, 9], [*PROMPT, *first, 267, 7, 7], PROMPT):
        fresh = ConstraintLogitsProcessor(sg.compile(JSON, VOCABULARY))
        other = double()
        wanted = other.create_completion(prompt, **fresh.arguments, max_tokens=60)
        assert model.create_completion(prompt, **processor.arguments, max_tokens=60) == wanted
    assert not model.swallowed


def test_a_prompt_that_continues_an_output_that_was_cut() -> None:
    """It cannot be told from drafts of somebody else: an error, and no text without the grammar."""
    processor, model = ConstraintLogitsProcessor(sg.compile(JSON, VOCABULARY)), double()
    first = model.create_completion(PROMPT, **processor.arguments, max_tokens=4)
    with pytest.raises(GenerationError, match=r"more than were sampled.*or call reset\(\)"):
        model.create_completion([*PROMPT, *first, 7, 7], **processor.arguments)
    assert not model.swallowed
    processor.reset()
    model.create_completion([*PROMPT, *first, 7, 7], **processor.arguments)


def test_going_back_in_an_output() -> None:
    """Loops that drop the last tokens get the masks of the earlier position."""
    constraint = sg.compile(JSON, VOCABULARY)
    processor, output = ConstraintLogitsProcessor(constraint), expected(JSON, 60)
    zeros = np.zeros(VOCABULARY.size, dtype=np.float32)
    order = [*range(8), 5, 6, 2, 3, 4, *range(len(output) + 1), 0, 1]
    for taken in order:
        ids = np.array([*PROMPT, *output[:taken]], dtype=np.intc)
        matcher = constraint.matcher()
        assert all(map(matcher.accept, output[:taken]))
        masked = processor(ids, zeros)
        assert np.flatnonzero(masked == 0).tolist() == [
            token for token in range(VOCABULARY.size) if matcher.validate([token]) == 1
        ]
        processor.check()
    processor(np.array([*PROMPT, 98, 98], dtype=np.intc), zeros)
    with pytest.raises(GenerationError, match="another output than was sampled"):
        processor.check()


def test_after_the_end() -> None:
    """A loop that goes on after EOS gets EOS."""
    processor = ConstraintLogitsProcessor(sg.compile(sg.literal("ab"), VOCABULARY))
    model = double()
    tokens = model.generate(PROMPT, [processor], processor.stops, None)
    assert [next(tokens) for _ in range(5)][-3:] == [267, 267, 267]
    processor.check()


def test_errors_come_out_of_the_loop() -> None:
    """An exception in the processor, which the loop swallows, ends the output and is raised by the criterion."""
    letters = Vocabulary([bytes([byte]) for byte in range(256)] + [b""], eos=[256])
    constraint = sg.compile(sg.regex("(a|b)*a.{12}b(a|b)*"), letters, limits=sg.Limits(steps=2_000))
    processor = ConstraintLogitsProcessor(constraint)
    model = LlamaDouble(lambda ids: logits(ids)[:257], [256])
    with pytest.raises(LimitExceeded, match="steps"):
        model.create_completion(PROMPT, **processor.arguments, max_tokens=300, temperature=1.0)
    with pytest.raises(LimitExceeded, match="steps") as caught:
        processor.check()
    assert caught.value.tokens == tuple(processor.tokens) != ()
    assert caught.value.text == letters.decode(processor.tokens).decode()
    scores = processor(np.array(PROMPT, dtype=np.intc), np.zeros(300, dtype=np.float32))
    assert np.flatnonzero(scores > -np.inf).tolist() == [256]


@pytest.mark.parametrize("when", ["before", "inside"])
def test_ctrl_c_in_the_processor(monkeypatch: pytest.MonkeyPatch, when: str) -> None:
    """The interruption is raised by the criterion; no token is chosen without a mask and kept."""
    processor, model = ConstraintLogitsProcessor(sg.compile(JSON, VOCABULARY)), double()
    calls = [0]

    def interrupt(_ids: Any) -> None:
        calls[0] += 1
        if calls[0] == 3:
            raise KeyboardInterrupt

    if when == "inside":
        monkeypatch.setattr(processor, "_follow", interrupt_first(interrupt, processor._follow))
        with pytest.raises(KeyboardInterrupt):
            model.create_completion(PROMPT, **processor.arguments)
        assert not model.swallowed
        return

    def outer(ids: Any, scores: Any) -> Any:
        interrupt(ids)
        return processor(ids, scores)

    with pytest.raises(GenerationError, match="a token was sampled without it"):
        model.create_completion(PROMPT, logits_processor=[outer], stopping_criteria=processor.stops)
    assert len(model.swallowed) == 1


def interrupt_first(first: Callable[[Any], None], then: Callable[[Any], None]) -> Callable[[Any], None]:
    """Both, one after the other."""

    def both(ids: Any) -> None:
        first(ids)
        then(ids)

    return both


def test_scores_that_others_change() -> None:
    """A bias stays within the grammar; a processor that raises a masked score is found by the next call."""
    constraint = sg.compile(JSON, VOCABULARY)
    processor, model = ConstraintLogitsProcessor(constraint), double()
    tokens = model.create_completion(PROMPT, **processor.arguments, max_tokens=60, logit_bias={50: 5.0, 5: 90.0})
    assert constraint.matcher().validate([*tokens, 267]) == len(tokens) + 1
    assert 50 in tokens
    processor.reset()

    def raising(_ids: Any, scores: NDArray[np.float32]) -> NDArray[np.float32]:
        return np.where(np.arange(len(scores)) == 5, np.float32(100), scores)

    with pytest.raises(GenerationError, match=r"token 5 \(b'\\x05'\) at position 0.*raise scores"):
        model.create_completion(PROMPT, logits_processor=[processor, raising], stopping_criteria=processor.stops)
    processor.reset()

    def excluding(_ids: Any, scores: NDArray[np.float32]) -> NDArray[np.float32]:
        return np.where(np.arange(len(scores)) == 123, -np.float32(np.inf), scores) - np.where(
            np.arange(len(scores)) == 259, np.float32(np.inf), 0
        )

    with pytest.raises(GenerationError, match=r"are minus infinity.*2 tokens may come after 0 tokens"):
        model.create_completion(PROMPT, logits_processor=[excluding, processor], stopping_criteria=processor.stops)


def test_loops_without_the_processor() -> None:
    """The criterion raises at the first token, and so does ``check`` where nothing was masked."""
    processor, model = ConstraintLogitsProcessor(sg.compile(JSON, VOCABULARY)), double()
    with pytest.raises(GenerationError, match="it was not called"):
        model.create_completion(PROMPT, stopping_criteria=processor.stops)
    processor.reset()
    with pytest.raises(GenerationError, match="it was not called"):
        processor.check()
    processor.reset()
    model.draft_model = lambda ids: ids[-2:]
    with pytest.raises(GenerationError, match=r"hold 2 tokens more than were sampled.*processor.draft_model\(other\)"):
        model.create_completion(PROMPT, **processor.arguments)


def test_what_is_refused() -> None:
    """No constraint, too small a budget, nothing that ends an output.  Without a processor nothing is drafted."""
    with pytest.raises(ArgumentError, match="ConstraintLogitsProcessor: expected a Constraint"):
        ConstraintLogitsProcessor(JSON)  # type: ignore[arg-type]
    with pytest.raises(BudgetError, match="max_tokens=2"):
        ConstraintLogitsProcessor(sg.compile(JSON, VOCABULARY), max_tokens=2)
    with pytest.raises(VocabularyError, match="no token ends an output"):
        ConstraintLogitsProcessor(sg.compile(sg.literal("a"), Vocabulary([b"a"], eos=[])))
    assert ConstraintDraftModel(None)(np.array(PROMPT, dtype=np.intc)).dtype == np.intc


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The tiny model in llama-cpp-python."""
    llama_cpp = pytest.importorskip("llama_cpp")
    from tiny_gguf import write_gguf

    path = tmp_path_factory.mktemp("tiny-gguf") / "tiny.gguf"
    write_gguf(path)
    return llama_cpp.Llama(str(path), n_ctx=512, verbose=False, logits_all=True, n_threads=1)


def test_llama_cpp_python_itself(llama: Any) -> None:
    """The double's tests in short, and the sampler of the native library in its own chain."""
    import llama_cpp
    from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

    from structgen.integrations.llama_cpp import sampler
    from structgen.models import load_model

    path = Path(llama.model_path)
    model = load_model(path, runtime="llama.cpp", threads=1)
    ids = model.encode_prompt("the")
    for grammar in GRAMMARS:
        constraint = sg.compile(grammar, model.vocabulary)
        text = sg.generate(model, "the", constraint, max_tokens=40, drafter=None, jump_forward=False).text
        processor = ConstraintLogitsProcessor(constraint, max_tokens=40)
        drafts = processor.draft_model(), processor.draft_model(LlamaPromptLookupDecoding())
        for llama.draft_model in (None, *drafts):
            reply = llama.create_completion(ids, temperature=0.0, **processor.arguments)
            assert reply["choices"][0]["text"] == text
            reply = llama.create_completion(ids, temperature=2.0, seed=3, logit_bias={"5": 90.0}, **processor.arguments)
            matcher = constraint.matcher()
            written = reply["choices"][0]["text"].encode()
            assert matcher.accept_bytes(written) == len(written)
            assert matcher.is_accepting
        llama.draft_model = None
        chain = llama_cpp._internals.LlamaSampler()
        with sampler(constraint, max_tokens=40, library=llama_cpp) as constrained:
            llama_cpp.llama_sampler_chain_add(chain.sampler, constrained.release())
            chain.add_greedy()
            llama._sampler, output = chain, []
            llama.reset()
            llama.eval(ids)
            while not llama_cpp.llama_vocab_is_eog(llama._model.vocab, token := chain.sample(llama._ctx)):
                output.append(token)
                llama.eval([token])
            assert llama.detokenize(output) == text.encode()
            copy = chain.clone()
            assert constrained.clone_at(llama_cpp.llama_sampler_chain_get(copy.sampler, 0)).tokens == output
            copy.close()
        llama._sampler = None
        chain.close()
    processor = ConstraintLogitsProcessor(constraint, max_tokens=40)
    with pytest.raises(GenerationError, match="token 5"):
        llama.create_completion(
            ids,
            logits_processor=[processor, lambda _ids, scores: np.where(np.arange(len(scores)) == 5, 100, scores)],
            stopping_criteria=processor.stops,
        )

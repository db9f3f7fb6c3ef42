"""The sampler in chains of llama.cpp itself: the same outputs as structgen's own loop, and errors that are kept."""

from __future__ import annotations

import ctypes
import gc
import math
import random
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("xllamacpp")

from llama_chain import ChainHost, apply, samplers
from structgen_kernels import _native
from tiny_gguf import write_gguf

import structgen as sg
from structgen.engine import Vocabulary
from structgen.engine.mask import allowed_ids, empty_masks
from structgen.errors import (
    ArgumentError,
    BudgetError,
    GenerationError,
    LimitExceeded,
    ModelError,
    VocabularyError,
)
from structgen.integrations.llama_cpp import _Functions, sampler
from structgen.models import load_model
from structgen.models.llama.embedded import embedded_gguf

GRAMMARS = [
    sg.json_schema(
        {
            "type": "object",
            "properties": {"a": {"enum": ["the", "that"]}, "n": {"type": "integer"}},
            "required": ["a", "n"],
        }
    ),
    sg.regex("(the|tha[a-f]+) [0-9]{3,9} (the that then|a the)"),
    sg.json_schema({"type": "array", "items": {"type": "string", "maxLength": 4}, "minItems": 2}),
]


@pytest.fixture(scope="module")
def tiny_gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama with random weights and a byte-level vocabulary."""
    path = tmp_path_factory.mktemp("tiny-gguf") / "tiny.gguf"
    write_gguf(path)
    return path


@pytest.fixture(scope="module")
def model(tiny_gguf: Path) -> Any:
    """The model in structgen."""
    return load_model(tiny_gguf, runtime="llama.cpp", threads=1)


@pytest.fixture(scope="module")
def host(tiny_gguf: Path) -> Iterator[ChainHost]:
    """The model in a program around llama.cpp."""
    made = ChainHost(tiny_gguf)
    yield made
    made.close()


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """Every sampler of structgen is freed."""
    before = _native.ChainSampler.living()
    yield
    assert _native.ChainSampler.living() == before


def constraint_of(model: Any, grammar: sg.Grammar = GRAMMARS[0]) -> Any:
    """A grammar for the tiny model."""
    return sg.compile(grammar, model.vocabulary)


@pytest.mark.parametrize("grammar", GRAMMARS)
def test_a_greedy_chain_writes_what_generate_writes(model: Any, host: ChainHost, grammar: sg.Grammar) -> None:
    """With and without a budget that the output would exceed."""
    constraint = constraint_of(model, grammar)
    for most in (constraint.min_tokens(), constraint.min_tokens() + 9, 60):
        expected = sg.generate(model, "the", constraint, max_tokens=most, drafter=None, jump_forward=False)
        with sampler(constraint, max_tokens=most) as constrained:
            chain = host.chain(constrained, host.library.llama_sampler_init_greedy())
            assert host.write(chain, model.encode_prompt("the"), 100) == list(expected.tokens) == constrained.tokens
            assert (constrained.is_complete, constrained.is_terminated) == (True, True)
        host.library.llama_sampler_free(chain)


def test_a_sampling_chain_writes_strings_of_the_grammar(model: Any, host: ChainHost) -> None:
    """Top-k and temperature after the constraint; a reset begins the same output again."""
    constraint, library = constraint_of(model, GRAMMARS[1]), host.library
    found = set()
    for seed in range(3):
        with sampler(constraint, max_tokens=40) as constrained:
            parts = (library.llama_sampler_init_top_k(5), library.llama_sampler_init_temp(2.0))
            chain = host.chain(constrained, *parts, library.llama_sampler_init_dist(seed))
            tokens = host.write(chain, model.encode_prompt("the"), 100)
            matcher = constraint.matcher()
            assert all(map(matcher.accept, tokens))
            assert matcher.is_accepting
            library.llama_sampler_reset(chain)
            assert host.write(chain, model.encode_prompt("the"), 100) == tokens
            found.add(tuple(tokens))
        library.llama_sampler_free(chain)
    assert len(found) == 3


def test_a_clone_goes_on_from_the_middle(model: Any, host: ChainHost) -> None:
    """Chain and clone write the same from the same context, and each its own after other tokens."""
    constraint, library = constraint_of(model), host.library
    whole = list(sg.generate(model, "the", constraint, max_tokens=40, drafter=None, jump_forward=False).tokens)
    prompt = model.encode_prompt("the")
    constrained = sampler(constraint, max_tokens=40)
    chain = host.chain(constrained, library.llama_sampler_init_greedy())
    head = host.write(chain, prompt, 5)
    clone = library.llama_sampler_clone(chain)
    copied = constrained.clone_at(library.llama_sampler_chain_get(clone, 0))
    assert head == copied.tokens == whole[:5]
    assert head + host.go_on(chain, 100) == whole
    host.read([*prompt, *head], anew=True)
    library.llama_sampler_copy(clone, chain)  # what servers do with a state that they saved
    assert constrained.tokens == head
    assert head + host.go_on(chain, 100) == whole
    assert (copied.tokens, copied.is_complete) == (head, False)
    library.llama_sampler_free(chain)
    host.read([*prompt, *head], anew=True)
    assert head + host.go_on(clone, 100) == whole
    library.llama_sampler_free(clone)
    copied.check()
    constrained.check()


def test_a_constraint_behind_a_sampler_that_drops_candidates(model: Any, host: ChainHost) -> None:
    """The only candidate is not allowed: the error says so, and the output ends."""
    library = host.library
    constrained = sampler(constraint_of(model))
    wrong = host.chain(library.llama_sampler_init_top_k(1), constrained, library.llama_sampler_init_greedy())
    assert len(host.write(wrong, model.encode_prompt("the"), 20)) == 1
    for _ in range(2):
        with pytest.raises(GenerationError, match=r"none of the 1 candidates .* put it first in the chain"):
            constrained.check()
    library.llama_sampler_reset(wrong)
    constrained.check()
    library.llama_sampler_free(wrong)


def test_a_token_that_others_chose(model: Any, host: ChainHost) -> None:
    """The block raises at its end, with the token, its place and the text."""
    begin = model.vocabulary.tokens.index(b"{")
    constrained = sampler(constraint_of(model))

    def use() -> int:
        with constrained:
            chain = host.chain(constrained, host.library.llama_sampler_init_greedy())
            host.library.llama_sampler_accept(chain, begin)
            host.library.llama_sampler_accept(chain, 5)
            assert not host.go_on(chain, 5)
            host.library.llama_sampler_free(chain)
        return chain

    with pytest.raises(GenerationError, match=r"token 5 \(b'#'\) at position 1 of the output.*ends with b'\{'"):
        use()
    assert constrained.tokens == [begin]


def test_a_limit_in_the_middle(model: Any, host: ChainHost) -> None:
    """The output ends there, and the error has its text."""
    grammar = sg.regex(r"ab(?:(?:[ab]{1,63}c?){1,99}d?){1,99}")
    constrained = sampler(sg.compile(grammar, model.vocabulary, limits=sg.Limits(steps=600)))
    chain = host.chain(constrained, host.library.llama_sampler_init_greedy())
    tokens = host.write(chain, model.encode_prompt("the"), 40)
    with pytest.raises(LimitExceeded, match=r"steps=600 .*after \d+ tokens") as caught:
        constrained.check()
    assert caught.value.tokens == tuple(tokens[: len(caught.value.tokens)])
    assert (caught.value.text or "").startswith("ab")
    host.library.llama_sampler_free(chain)


def test_who_frees_the_sampler(model: Any, host: ChainHost) -> None:
    """The object until it hands it over, then the chain; the state outlives both."""
    constraint, library = constraint_of(model), host.library
    before = _native.ChainSampler.living()
    alone = sampler(constraint)
    assert apply(alone.pointer, [(5, 1.0)]) == [(5, -math.inf)]
    library.llama_sampler_reset(alone)
    alone.close()
    alone.close()
    assert _native.ChainSampler.living() == before
    for use in (lambda: alone.pointer, lambda: alone.add_to(1), alone.release):
        with pytest.raises(GenerationError, match="no longer belongs to this object"):
            use()
    released = sampler(constraint)
    chain = host.chain(released.release())
    released.close()
    assert _native.ChainSampler.living() == before + 1
    library.llama_sampler_accept(chain, 5)
    library.llama_sampler_free(chain)
    assert _native.ChainSampler.living() == before
    with pytest.raises(GenerationError, match="token 5"):
        released.check()
    sampler(constraint)
    gc.collect()
    assert _native.ChainSampler.living() == before


def test_memory_of_clones(model: Any, host: ChainHost) -> None:
    """Ten thousand clones and frees leave nothing."""
    library = host.library
    chain = host.chain(sampler(constraint_of(model)), library.llama_sampler_init_greedy())
    held = []
    for _ in range(2):
        for _ in range(5_000):
            library.llama_sampler_free(library.llama_sampler_clone(chain))
        held.append(int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize())
    assert held[1] - held[0] < 2**20
    library.llama_sampler_free(chain)


def test_what_is_refused(model: Any) -> None:
    """A grammar, a budget that is too small, a vocabulary without an end, and what is no llama.cpp."""
    constraint = constraint_of(model)
    with pytest.raises(ArgumentError, match="expected a Constraint"):
        sampler(GRAMMARS[0])  # type: ignore[arg-type]
    with pytest.raises(BudgetError, match="max_tokens=2"):
        sampler(constraint, max_tokens=2)
    with pytest.raises(VocabularyError, match="no token ends an output"):
        sampler(sg.compile(sg.literal("a"), Vocabulary([b"a"], eos=[])))
    with pytest.raises(ArgumentError, match="llama_sampler_init is none of its functions"):
        sampler(constraint, library=math)
    with pytest.raises(ArgumentError, match="address of a llama_sampler"), sampler(constraint) as constrained:
        constrained.add_to(None)
    greedy = samplers().llama_sampler_init_greedy()
    with pytest.raises(ArgumentError, match="another kind of sampler"), sampler(constraint) as constrained:
        constrained.clone_at(greedy)
    samplers().llama_sampler_free(greedy)


def test_layouts_are_checked() -> None:
    """A llama.cpp whose functions are in another order, or whose candidates are, is refused."""
    real = samplers()

    class Other:
        def __init__(self, **changed: Any) -> None:
            self.changed = changed

        def __getattr__(self, name: str) -> Any:
            return self.changed.get(name) or getattr(real, name)

    assert _Functions(Other()).address("llama_sampler_free")
    with pytest.raises(ModelError, match=r"llama_sampler_i has a layout that is not understood; calls go to its"):
        _Functions(Other(llama_sampler_accept=real.llama_sampler_reset))
    nothing = ctypes.CFUNCTYPE(ctypes.c_void_p)(lambda: real.llama_sampler_init_top_k(3))
    with pytest.raises(ModelError, match="llama_token_data_array"):
        _Functions(Other(llama_sampler_init_greedy=nothing))


def test_every_candidate_of_a_random_walk(model: Any, host: ChainHost) -> None:
    """llama.cpp's own apply on cut, shuffled and sorted candidates."""
    constraint, chance = constraint_of(model, GRAMMARS[2]), random.Random(4)
    matcher = constraint.matcher()
    with sampler(constraint) as constrained:
        for _ in range(30):
            ids = chance.sample(range(264), k=chance.choice([264, 100]))
            left = {token for token, logit in apply(constrained.pointer, [(token, 1.0) for token in ids]) if logit == 1}
            assert left == {token for token in ids if matcher.validate([token]) == 1}
            choices = matcher.allowed_tokens(300)
            if not choices:
                break
            token = chance.choice(choices)
            host.library.llama_sampler_accept(constrained, token)
            assert matcher.accept(token)
        assert constrained.tokens
        apply(constrained.pointer, [(token, 1.0) for token in range(264)])


@pytest.mark.nightly
@pytest.mark.model
def test_the_embedded_model() -> None:
    """A vocabulary of 49,152 tokens and quantised weights: the greedy choice under the masks, step by step."""
    path = embedded_gguf()
    model: Any = load_model(path, runtime="llama.cpp", threads=1)
    prompt = model.encode_prompt("Write a list of names as JSON.")
    constraint = sg.compile(
        sg.json_schema({"type": "array", "items": {"type": "string"}, "minItems": 9}), model.vocabulary
    )
    matcher, masks, expected = constraint.matcher(), empty_masks(model.vocabulary), list[int]()
    session, fresh = model.start(), prompt
    for _ in range(40):
        logits = session.extend(fresh)
        matcher.fill_mask(masks)
        ids = allowed_ids(masks[0])
        fresh = [int(ids[np.argmax(logits[ids])])]
        assert matcher.accept(fresh[0])
        expected += fresh
    host = ChainHost(path)
    with sampler(constraint) as constrained:
        chain = host.chain(constrained, host.library.llama_sampler_init_greedy())
        assert host.write(chain, prompt, 40) == expected
    host.library.llama_sampler_free(chain)
    host.close()

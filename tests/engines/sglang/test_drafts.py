"""Trees of drafts in SGLang's own classes: the masks of ``generate_token_bitmask``, beside SGLang's own walk."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

pytest.importorskip("sglang", reason="SGLang is not installed: make engines-sglang")
torch = pytest.importorskip("torch")

import scripted_sglang as sg_server  # noqa: E402
from scripted_sglang import END_THINK, EOS, WIDTH, byte_tokenizer, decode, mask_of, request, served, take, text_of  # noqa: E402
from sglang.srt.speculative import spec_utils  # noqa: E402

from structgen import compile, regex as sg_regex  # noqa: E402
from structgen.grammar.limits import Limits  # noqa: E402
from structgen.integrations.sglang import plugin  # noqa: E402
from structgen.integrations.sglang.grammar import StructgenGrammar, inner_grammar  # noqa: E402

pytestmark = [pytest.mark.sglang, pytest.mark.filterwarnings("ignore")]

LIST = {"type": "array", "items": {"type": "integer"}, "maxItems": 100}
EXPLODING = "|".join(rf"(?:(?:[ab]{{1,{most}}}c?){{1,99}}d?){{1,99}}" for most in (63, 64, 65, 66))


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    plugin.register()
    return byte_tokenizer()


@pytest.fixture
def manager(tokenizer: Any) -> Iterator[Any]:
    with served(tokenizer) as made:
        yield made


@pytest.fixture
def thinking(tokenizer: Any) -> Iterator[Any]:
    with served(tokenizer, reasoning_parser="qwen3") as made:
        yield made


def _id(manager: Any, letter: str) -> int:
    (token,) = manager.scheduler.tokenizer.encode(letter)
    return int(token)


def random_tree(random: np.random.Generator, nodes: int, tokens: list[int]) -> tuple[Any, Any, Any]:
    """The links of a random tree as SGLang has them, int64 ``[1, nodes]``."""
    children: list[list[int]] = [[] for _ in range(nodes)]
    for node in range(1, nodes):
        children[int(random.integers(0, node))].append(node)
    first, sibling = [-1] * nodes, [-1] * nodes
    for listed in children:
        for at, node in enumerate(listed):
            sibling[node] = listed[at + 1] if at + 1 < len(listed) else -1
    for node, listed in enumerate(children):
        first[node] = listed[0] if listed else -1
    ids = random.choice(tokens, nodes)
    return tuple(torch.tensor([each], dtype=torch.int64) for each in (first, sibling, ids.tolist()))


def sglangs(reqs: list[Any], links: Any) -> Any:
    """The mask of SGLang's own walk over the trees, node by node."""
    return spec_utils.generate_token_bitmask.__wrapped__(reqs, *links, WIDTH)[0]


@pytest.mark.parametrize("most", [4, 7, 64])
def test_trees_of_drafts_are_those_of_sglangs_walk(manager: Any, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """One call for all trees gives the rows of SGLang's walk, near limits too, and leaves states as they were."""
    from structgen.integrations.sglang import grammar as module

    calls: list[int] = []
    usual = module.fill_mask_trees
    monkeypatch.setattr(module, "fill_mask_trees", lambda *given: (calls.append(len(given[0])), usual(*given))[1])
    random = np.random.default_rng(most)
    letters = [int(token) for token in manager.scheduler.tokenizer.encode("[]0123,5 ")]
    tokens = [*letters, *letters, EOS, 300, 70]
    for turn in range(12):
        reqs = [
            request(manager, f"{turn}-0", json_schema=json.dumps(LIST), max_new_tokens=most),
            request(manager, f"{turn}-1"),
            request(manager, f"{turn}-2", regex=r"\[?[0-5]{1,9}\]?", max_new_tokens=most),
        ]
        for token in manager.scheduler.tokenizer.encode("[1")[: turn % 3]:
            take(reqs[0], token)
            take(reqs[2], token)
        trees = [random_tree(random, 9, tokens) for _ in reqs]
        links = tuple(torch.cat(each) for each in zip(*trees, strict=True))
        found, _ = spec_utils.generate_token_bitmask(reqs, *links, WIDTH)
        wanted = sglangs(reqs, links)
        assert found.tolist() == wanted.tolist()
        assert [inner_grammar(req.grammar).request.taken for req in (reqs[0], reqs[2])] == [turn % 3] * 2
    assert calls == [2] * 12


def test_drafts_that_end_a_thought(thinking: Any) -> None:
    """A tree that ends the thought has free rows before, and rows of the grammar after it."""
    req = request(thinking, "r", reasoning=True, regex="[ab]{3}")
    mask_of([req])
    take(req, 1)
    a = thinking.scheduler.tokenizer.encode("a")[0]
    links = (
        torch.tensor([[1, 2, 3, -1]]),
        torch.tensor([[-1, -1, -1, -1]]),
        torch.tensor([[1, 5, END_THINK, a]]),
    )
    found, _ = spec_utils.generate_token_bitmask([req], *links, WIDTH)
    assert (found[:2] == -1).all()
    for row in found[2:].numpy():
        bits = np.unpackbits(row.view(np.uint8), bitorder="little")[:WIDTH]
        assert np.flatnonzero(bits).tolist() == sorted(thinking.scheduler.tokenizer.encode("ab"))
    assert inner_grammar(req.grammar).request.taken == 0


def test_runs_that_go_past_the_end(manager: Any) -> None:
    """A verified run is kept up to EOS, and rollback over it and what follows comes back to the same state."""
    tokenizer = manager.scheduler.tokenizer
    req = request(manager, "run", regex="[ab]{2}")
    run = [*tokenizer.encode("ab"), EOS, 7, 8]
    kept = sg_server.SchedulerBatchResultProcessor._accept_grammar_tokens(None, req, run)
    assert kept == run[:3]
    assert req.grammar.is_terminated()
    for token in run[3:]:
        req.grammar.accept_token(token)
    req.grammar.rollback(4)
    assert not req.grammar.is_terminated()
    assert req.grammar.current_token == 8
    mask = mask_of([req]).grammar_mask.vocab_mask[0].numpy()
    bits = np.unpackbits(mask.view(np.uint8), bitorder="little")[:WIDTH]
    assert np.flatnonzero(bits).tolist() == sorted(tokenizer.encode("ab"))


def test_a_bound_that_a_draft_meets(manager: Any) -> None:
    """The rows after it allow only EOS, and the answer goes on where the draft is not taken."""
    pattern = f"x[a-f]{{3}}|y[a-f]{{3}}(?:{EXPLODING})"
    constraint = compile(sg_regex(pattern), manager.grammar_backend.vocabulary, limits=Limits(steps=1_400)).alone()
    manager.grammar_backend.set_cache(("regex", pattern), StructgenGrammar(constraint, "regex", pattern))
    req = request(manager, "hostile", regex=pattern)
    y, a, x = (_id(manager, letter) for letter in "yax")
    links = torch.tensor([[1, 2, 3, 4, 5, -1]]), torch.tensor([[-1] * 6]), torch.tensor([[0, y, a, a, a, a]])
    found, _ = spec_utils.generate_token_bitmask([req], *links, WIDTH)
    allowed = [np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little")).tolist() for row in found.numpy()]
    assert allowed[0] == sorted([x, y])
    assert allowed[5] == [EOS]
    assert not req.to_finish
    take(req, x)
    decode([req], 5)
    assert re.fullmatch("x[a-f]{3}", text_of(req))

"""Gaps of a given number of slots: errors of published methods, unbounded depth, and vocabularies of models."""

from __future__ import annotations

import json

import numpy as np
import pytest
from jsonschema import Draft202012Validator

from structgen import compile, json_schema, lark
from structgen.decode.diffusion.context_free import ContextFreeLanguage
from structgen.decode.diffusion.mean_field import FREE, MeanField
from structgen.engine import Vocabulary
from structgen.errors import GrammarError
from structgen.grammars import JsonPolicy

COMPACT = JsonPolicy(whitespace="compact")
VALUES = 'start: v\nv: "[" v ("," v)* "]" | "null" | "true"'
PIECES = (b"nul", b"ull", b"n", b"u", b"l", b"ul", b"null", b"[", b"]", b",", b"],", b"[n", b"l]", b"t", b"r", b"e")


def vocabulary_of(tokens: tuple[bytes, ...], *, has_eos: bool = True) -> Vocabulary:
    return Vocabulary([*tokens, b""], eos=[len(tokens)] if has_eos else [])


def language_of(grammar: str, tokens: tuple[bytes, ...], *, has_eos: bool = True) -> ContextFreeLanguage:
    return ContextFreeLanguage(compile(lark(grammar), vocabulary_of(tokens, has_eos=has_eos)))


def canvas_of(tokens: tuple[bytes, ...], *slots: bytes | None) -> np.ndarray:
    return np.array([FREE if slot is None else tokens.index(slot) for slot in slots], dtype=np.int32)


def held(words: np.ndarray, slot: int, tokens: tuple[bytes, ...]) -> set[bytes]:
    bits = np.unpackbits(words[slot].view(np.uint8), bitorder="little")[: len(tokens)]
    return {tokens[token] for token in np.flatnonzero(bits).tolist()}


# a gap of k slots holds k tokens


def test_fragments_on_both_sides_of_a_gap_are_one_word_only_if_they_fit() -> None:
    """``nul_ull`` is not ``null``, whatever fills the gap; ``n_l`` is, if the gap holds ``ul``."""
    language = language_of(VALUES, PIECES, has_eos=False)
    for gap in (1, 2, 3):
        assert not language.completable(canvas_of(PIECES, b"nul", *[None] * gap, b"ull"))
    one = canvas_of(PIECES, b"n", None, b"l")
    assert held(language.masks(one), 1, PIECES) == {b"ul"}
    two = canvas_of(PIECES, b"n", None, None, b"l")
    masks = language.masks(two)
    assert (held(masks, 1, PIECES), held(masks, 2, PIECES)) == ({b"u"}, {b"l"})


def test_a_gap_holds_neither_more_nor_fewer_tokens_than_its_slots() -> None:
    """A gap of any length would make ``n_u_l`` ``null``; with one slot each, its texts have five bytes or more."""
    language = language_of(VALUES, PIECES, has_eos=False)
    assert not language.completable(canvas_of(PIECES, b"n", None, b"u", None, b"l"))
    assert not language.completable(canvas_of(PIECES, b"n", None, None, None, b"l"))
    assert language.completable(canvas_of(PIECES, b"n", b"u", None, b"l"))
    # Within brackets there is room: [n u l l], one token each.
    assert language.completable(canvas_of(PIECES, b"[", b"n", b"u", None, b"l", None))
    assert not language.completable(canvas_of(PIECES, b"[", b"n", b"u", b"l", None, None, None, b"ull"))


def test_a_gap_may_lie_across_the_ends_of_several_rules() -> None:
    language = language_of(VALUES, PIECES, has_eos=False)
    canvas = canvas_of(PIECES, b"[", b"[n", b"ul", None, None, b"null", None)
    masks = language.masks(canvas)
    assert held(masks, 3, PIECES) == {b"l]", b"l"}
    assert held(masks, 4, PIECES) == {b",", b"],"}  # [[null],null] and [[null,null]..., which one bracket cannot end
    assert held(masks, 6, PIECES) == {b"]"}


def test_what_k_tokens_can_spell_lies_between_the_fewest_tokens_and_the_bytes() -> None:
    """If every token splits in two, k tokens can spell a text iff k is between its fewest tokens and its bytes."""
    pieces = tuple(sorted({bytes([byte]) for byte in b"[]nul"} | {b"nu", b"ll", b"nul", b"null", b"[[", b"]]", b"[[n"}))
    for piece in pieces:
        assert len(piece) == 1 or any(piece[:at] in pieces and piece[at:] in pieces for at in range(1, len(piece)))
    language = language_of('start: "[" start "]" | "null"', pieces, has_eos=False)
    for depth in range(4):
        text = b"[" * depth + b"null" + b"]" * depth
        fewest = [0] + [len(text)] * len(text)
        for end in range(1, len(text) + 1):
            for piece in pieces:
                if text[:end].endswith(piece):
                    fewest[end] = min(fewest[end], fewest[end - len(piece)] + 1)
        for slots in range(1, len(text) + 3):
            canvas = np.full(slots, FREE, dtype=np.int32)
            masks = language.masks(canvas)
            others = range(8)  # strings of other depths may fit, too
            fits = [deep for deep in others if _fewest(deep, pieces) <= slots <= 4 + 2 * deep]
            assert language.completable(canvas) == bool(fits)
            assert (depth in fits) == (fewest[-1] <= slots <= len(text))
            assert bool(masks.any()) == bool(fits)


def _fewest(depth: int, pieces: tuple[bytes, ...]) -> int:
    text = b"[" * depth + b"null" + b"]" * depth
    fewest = [0] + [len(text)] * len(text)
    for end in range(1, len(text) + 1):
        fewest[end] = min(fewest[end - len(piece)] + 1 for piece in pieces if text[:end].endswith(piece))
    return fewest[-1]


def test_a_tail_follows_the_member_and_holds_nothing_else() -> None:
    language = language_of(VALUES, PIECES)
    eos = len(PIECES)
    canvas = np.array([FREE, FREE, eos, FREE], dtype=np.int32)
    masks = language.masks(canvas)
    assert [bool(masks[slot, eos // 32] >> eos % 32 & 1) for slot in range(4)] == [False, True, True, True]
    assert held(masks, 3, PIECES) == set()
    assert held(masks, 0, PIECES) == {b"null", b"n", b"nul"}
    assert not language.completable(np.array([eos, FREE], dtype=np.int32))
    assert not language.completable(np.array([FREE, eos, PIECES.index(b"]")], dtype=np.int32))
    assert language.forced(canvas).tolist() == [FREE, FREE, eos, eos]


def test_without_eos_members_fill_the_canvas() -> None:
    language = language_of(VALUES, PIECES, has_eos=False)
    canvas = np.full(2, FREE, dtype=np.int32)
    distribution = MeanField(canvas, np.zeros((2, len(PIECES) + 1)))
    tokens = language.posterior(distribution).best().tokens
    assert json.loads(b"".join(PIECES[token] for token in tokens.tolist())) in (None, [None])
    assert sum(language.posterior(distribution).marginals(1)) == pytest.approx(1.0, abs=1e-9)


# depth


def test_depth_has_no_bound() -> None:
    """In 150 nested rules the counterpart of every bracket is found, wherever the gap is."""
    tokens = (b"(", b")", b"x", b"((", b"))")
    language = language_of('start: "(" start ")" | "x"', tokens, has_eos=False)
    deep = canvas_of(tokens, *[b"("] * 150, b"x", *[None] * 150)
    assert language.forced(deep)[151:].tolist() == [1] * 150  # 150 slots for 150 brackets leave no choice
    assert not language.completable(deep[:-76])  # pairs of brackets save 75 slots at most
    assert language.completable(deep[:-75])
    assert held(language.masks(deep[:-75]), 200, tokens) == {b"))"}


def test_the_shortest_member_takes_so_many_slots() -> None:
    language = language_of('start: "(" start ")" | "xyz" "x" | "zz" start', (b"(", b")", b"x", b"y", b"z", b"yz"))
    assert language.shortest == 3
    assert not language.completable(np.full(2, FREE, dtype=np.int32))
    assert language.completable(np.full(3, FREE, dtype=np.int32))


# vocabularies of models


def favouring_structure(vocabulary: Vocabulary, rng: np.random.Generator, slots: int) -> np.ndarray:
    """Logits of some model that prefers brackets and quotes."""
    logits = rng.normal(size=(slots, vocabulary.size)).astype(np.float32) * 2
    index = {text: token for token, text in enumerate(vocabulary.tokens)}
    for text in (b'{"', b"[", b'":"', b'",', b"},", b"]", b"}", b'"', b'":[', b"]}", b"},{", b"12", b"null", b"true"):
        if text in index:
            logits[:, index[text]] += 10
    logits[:, list(vocabulary.eos)] -= 8
    return logits


def text_of(vocabulary: Vocabulary, tokens: np.ndarray) -> bytes:
    eos = np.flatnonzero(np.isin(tokens, vocabulary.eos))
    kept = tokens[: int(eos[0])] if len(eos) else tokens
    return b"".join(vocabulary.tokens[token] for token in kept.tolist())


@pytest.mark.parametrize("trials", [2, pytest.param(4, marks=pytest.mark.nightly)])
def test_draws_of_recursive_json_are_json(deepseek_vocabulary: Vocabulary, trials: int) -> None:
    """With 128,000 tokens and 40 slots, some of them fixed in the middle, texts are JSON, and some nest."""
    vocabulary = deepseek_vocabulary
    language = ContextFreeLanguage(compile(json_schema(True, policy=COMPACT), vocabulary))
    rng = np.random.default_rng(7)
    nested = 0
    index = {text: token for token, text in enumerate(vocabulary.tokens)}
    for trial in range(trials):
        canvas = np.full(40, FREE, dtype=np.int32)
        if trial % 2:
            canvas[0], canvas[20], canvas[21] = index[b'{"'], index[b'":'], index[b"["]
        logits = favouring_structure(vocabulary, rng, int((canvas == FREE).sum()))
        posterior = language.posterior(MeanField(canvas, logits), tail="scored")
        masks = language.masks(canvas)
        for completion in (posterior.best(), *(posterior.draw(rng) for _ in range(3))):
            text = text_of(vocabulary, completion.tokens)
            json.loads(text)
            nested += text.count(b"[") + text.count(b"{") > 3
            assert np.array_equal(completion.tokens[canvas != FREE], canvas[canvas != FREE])
            allowed = masks[np.arange(40), completion.tokens // 32] >> (completion.tokens % 32) & 1
            assert allowed.all()
            assert (posterior.shares(completion.tokens) > 0).all()
        assert posterior.best().log_prob <= posterior.log_z + 1e-9
    assert nested >= trials


def test_open_objects_of_a_schema_validate(deepseek_vocabulary: Vocabulary) -> None:
    vocabulary = deepseek_vocabulary
    schema = {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "children": {"type": "array", "items": {"$ref": "#"}}},
        "required": ["a"],
    }
    language = ContextFreeLanguage(compile(json_schema(schema, policy=COMPACT), vocabulary))
    assert language.is_unambiguous
    rng = np.random.default_rng(3)
    canvas = np.full(32, FREE, dtype=np.int32)
    posterior = language.posterior(MeanField(canvas, favouring_structure(vocabulary, rng, 32)))
    for completion in (posterior.best(), posterior.draw(rng), posterior.draw(rng)):
        Draft202012Validator(schema).validate(json.loads(text_of(vocabulary, completion.tokens)))


def test_values_that_must_differ_are_refused() -> None:
    schema = {"type": "array", "items": {"$ref": "#"}, "uniqueItems": True}
    constraint = compile(json_schema(schema, policy=COMPACT), vocabulary_of((b"[", b"]", b",")))
    with pytest.raises(GrammarError, match="values or names that must differ"):
        ContextFreeLanguage(constraint)

"""The cases of the grammar library, judged by the engine in several tokenizations, the reference and Lark."""

from __future__ import annotations

import random

import lark as peer
import pytest
from grammar_library import (
    GRAMMARS,
    NAMES,
    folder,
    longest_match,
    random_split,
    split_vocabulary,
    tokens_read,
    words,
)
from lark_reference import lark_accepts

from structgen.engine import compile
from structgen.testing.reference import ReferenceMatcher

BY_NAME = pytest.mark.parametrize("name", NAMES)
# Lark's Earley parser ignores their lines, and their variants are too many for the reference implementation;
# tests/unit/frontends/indentation/test_indentation.py checks the product that makes them.
WITHOUT_BLOCKS = pytest.mark.parametrize(
    "name", [name for name in NAMES if "%declare _INDENT" not in folder(name).text]
)


def test_every_folder_is_checked() -> None:
    """Every grammar of the library has a parser that judges it."""
    assert {path.parent.name for path in GRAMMARS.glob("*/grammar.lark")} == set(NAMES)


@BY_NAME
def test_folder_is_complete(name: str) -> None:
    """Each folder has enough distinct cases, and says what it covers, what it leaves out and what checks it."""
    cases = folder(name)
    assert len(cases.accept) >= 15
    assert len(cases.reject) >= 15
    texts = [*cases.accept, *(text for text, _ in cases.reject)]
    assert len(set(texts)) == len(texts)
    readme = (GRAMMARS / name / "README.md").read_text("utf-8")
    assert readme.startswith(f"# {name}\n")
    assert "Checked with: " in readme
    assert "Left out" in readme or "Known gaps" in readme


@WITHOUT_BLOCKS
def test_cases_in_the_reference(name: str) -> None:
    """The reference implementation finds each first wrong byte where the cases say it is."""
    blank = ReferenceMatcher(folder(name).grammar)
    for text in folder(name).accept:
        matcher = blank.fork()
        assert matcher.accept_bytes(text.encode()) == len(text.encode()), text
        assert matcher.is_accepting, text
    for text, offset in folder(name).reject:
        matcher = blank.fork()
        assert matcher.accept_bytes(text.encode()) == offset, text
        assert offset < len(text.encode()) or not matcher.is_accepting, text


@BY_NAME
@pytest.mark.parametrize("longest", [40, pytest.param(10_000, marks=pytest.mark.nightly)])
def test_cases_in_lark(name: str, longest: int) -> None:
    """Lark's Earley parser, which tries every division into terminals, gives the same verdicts."""
    cases = folder(name)
    if "%declare" in cases.text:
        pytest.skip("it declares where blocks begin, which only a lexer of its own tells Lark")
    parser = peer.Lark(
        cases.text,
        start=cases.start,
        parser="earley",
        lexer="dynamic_complete",
        ambiguity="forest",
        import_paths=[str(GRAMMARS / name)],
    )
    for text in cases.accept:
        assert len(text) > longest or lark_accepts(parser, text), text
    for text, _ in cases.reject:
        assert len(text) > longest or not lark_accepts(parser, text), text


@BY_NAME
def test_cases_in_the_engine(name: str) -> None:
    """The engine gives the same verdicts byte by byte, in the longest tokens, and for any other split."""
    cases = folder(name)
    rng = random.Random(name)
    texts = [*cases.accept, *(text for text, _ in cases.reject)]
    vocabulary_words = {word for text in texts for word in words(text)}
    cuts = {text: [random_split(rng, text.encode()) for _ in range(2)] for text in texts}
    pieces = {piece for several in cuts.values() for cut in several for piece in cut}
    vocabulary = split_vocabulary(pieces | vocabulary_words)
    ids = {token: number for number, token in enumerate(vocabulary.tokens)}
    constraint = compile(cases.grammar, vocabulary)
    for text, offset in [*((text, None) for text in cases.accept), *cases.reject]:
        data = text.encode()
        whole = [data[i : i + 1] for i in range(len(data))]
        for cut in (whole, longest_match(data, vocabulary_words), *cuts[text]):
            matcher = constraint.matcher()
            count = tokens_read(matcher, cut, ids)
            before = sum(map(len, cut[:count]))
            if offset is None:
                assert count == len(cut), (text, cut)
                assert matcher.is_accepting, (text, cut)
            elif offset == len(data):
                assert before == len(data), (text, cut)
                assert not matcher.is_accepting, (text, cut)
            else:
                assert before <= offset < before + len(cut[count]), (text, cut)

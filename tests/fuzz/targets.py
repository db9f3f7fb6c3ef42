"""What is fuzzed: each target takes bytes and says what became of them, or raises what must never be raised.

The bytes of most targets are a letter that chooses options, and a text. Seeds are in ``corpus``: a JSON string a line,
whose characters up to U+00FF are bytes. No target needs the fuzzer: ``tests/unit/test_fuzzing.py`` replays all seeds.
"""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Final, TypeAlias

import numpy as np

import structgen as sg
from structgen.errors import LimitExceeded, StructgenError
from structgen.grammar.nodes import Grammar

__all__ = [
    "BOUNDS",
    "Finding",
    "Mutate",
    "Target",
    "decoded",
    "encoded",
    "explored",
    "seeds",
    "vocabulary",
    "with_letter",
]

CORPUS: Final = Path(__file__).resolve().parent / "corpus"
BOUNDS: Final = sg.Limits(
    states=50_000, regular_states=20_000, steps=4_000_000, distance_steps=200_000, grammar_nodes=50_000, nesting=300
)
"""A tenth of the default: what these bounds allow takes well under a second."""
MOST_SECONDS: Final = 4.0
"""CPU seconds of one input beyond which it is a finding; the fuzzer's counters make Python several times slower."""
_EVERY: Final = 0.1
_cpu: Final = [0.0, 0.0]
"""A reading of the clock and of the CPU's clock: the latter can take as long as an input, so it is read seldom, and an
input has taken at most what the process has since the last reading."""

Mutate: TypeAlias = Callable[[bytes, "list[bytes]", random.Random], bytes]
"""Takes an input, the seeds and random numbers, and returns another input."""


class Finding(AssertionError):
    """An input shows a fault."""


@dataclass(frozen=True)
class Target:
    """Something to fuzz.

    Attributes:
        name: also that of its corpus.
        run: returns what became of the input, for the counts; raises for a fault.
        mutate: an input from another one.
        outcomes: how often ``run`` returned what.
    """

    name: str
    run: Callable[[bytes], str]
    mutate: Mutate
    outcomes: Counter[str] = field(default_factory=Counter)

    def __call__(self, data: bytes) -> str:
        """Run one input.

        Raises:
            Finding: it took too long.
            Exception: whatever the code under test raised against its promise.
        """
        began = time.perf_counter()
        if began > _cpu[0] + _EVERY:
            _cpu[:] = began, time.process_time()
        try:
            outcome = self.run(data)
        except LimitExceeded:
            outcome = "limit"
        except StructgenError as error:
            str(error)
            outcome = "refused"
        if time.perf_counter() > began + MOST_SECONDS:
            spent = time.process_time() - _cpu[1]
            if spent > MOST_SECONDS:
                raise Finding(f"{self.name}: {spent:.1f} s for {len(data)} bytes")
        self.outcomes[outcome] += 1
        return outcome


def encoded(data: bytes) -> str:
    """The line of a corpus for an input."""
    return json.dumps(data.decode("latin-1"))


def seeds(name: str) -> list[bytes]:
    """The corpus of a target."""
    lines = (CORPUS / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line).encode("latin-1") for line in lines]


def decoded(data: bytes) -> str:
    """The text of bytes; those that are no UTF-8 become lone surrogates, which front ends must refuse."""
    return data.decode("utf-8", "surrogateescape")


def with_letter(mutate: Callable[[str, list[str], random.Random], str], letters: int) -> Mutate:
    """Let a mutation of texts keep the letter in front, mostly."""
    from text_mutation import LONGEST, mutated_bytes

    known: list[str] = []

    def run(data: bytes, others: list[bytes], rng: random.Random) -> bytes:
        if rng.random() < 0.08:
            return mutated_bytes(data, rng)
        if len(known) != len(others):
            known[:] = [decoded(one[1:]) for one in others]
        letter = data[:1] if data and rng.random() < 0.9 else bytes([97 + rng.randrange(letters)])
        if rng.random() < 0.05:
            return rng.choice(others)
        made = letter + mutate(decoded(data[1:]), known, rng).encode("utf-8", "surrogatepass")
        return made if len(made) <= LONGEST else data

    return run


_WORDS: Final = (
    *(b"ab", b"abc", b"the", b" the", b'{"', b'":', b'", "', b'"}', b"}}", b"\\u", b"\\n", b"12", b"true", b"null"),
    *("é".encode(), "é".encode()[:1] + b"x", "😀".encode()[2:], b"a" * 9, b"root", b"==", b"\n  ", b"</", b"<think>"),
)
_SPECIAL: Final = ("<|im_end|>", "<think>", "</think>", "<tool_call>", "</tool_call>")


@cache
def vocabulary() -> sg.Vocabulary:
    """All bytes, some words, and some special tokens; id 0 is EOS."""
    tokens = [b"", *(bytes([byte]) for byte in range(256)), *_WORDS]
    special = {len(tokens) + index: text for index, text in enumerate(_SPECIAL)}
    return sg.Vocabulary([*tokens, *(b"" for _ in special)], eos=[0], special=special)


def explored(grammar: Grammar, data: bytes) -> str:
    """Compile a grammar and take a few tokens; each bit that is looked at agrees with ``accept``.

    Raises:
        Finding: it does not, or the mask is empty before the end.
    """
    if not isinstance(grammar, Grammar):
        raise Finding(f"no grammar: {type(grammar)}")
    words = vocabulary()
    matcher = sg.compile(grammar, words, limits=BOUNDS).matcher()
    rng = random.Random(data)
    masks = np.zeros((1, (words.size + 31) // 32), dtype=np.int32)
    for _ in range(4):
        matcher.fill_mask(masks)
        bits = np.unpackbits(masks.view(np.uint8), bitorder="little").tolist()
        allowed = [token for token, bit in enumerate(bits) if bit]
        if not allowed:
            raise Finding("the mask is empty before the end")
        if bits[0] != matcher.is_accepting:
            raise Finding(f"EOS is {bits[0]} in the mask, is_accepting is {matcher.is_accepting}")
        for token in (rng.choice(allowed), rng.randrange(words.size), rng.randrange(words.size)):
            if matcher.validate([token]) != bits[token]:
                raise Finding(f"token {token} is {bits[token]} in the mask and not so for validate")
        if allowed == [0]:
            break
        token = rng.choice(allowed[not allowed[0] :])
        if not matcher.accept(token):
            raise Finding(f"token {token} is in the mask and refused")
    return "compiled"


def all_targets() -> Iterator[Target]:
    """Every target that is written in Python."""
    import differential
    import files
    import front_ends

    yield from front_ends.TARGETS
    yield from files.TARGETS
    yield differential.TARGET


def by_name() -> Mapping[str, Target]:
    """The same, by name."""
    return {target.name: target for target in all_targets()}

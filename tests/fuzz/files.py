"""Files that come with a model: tokenizers, GGUF headers, and chat templates."""

from __future__ import annotations

import json
import mmap
import random
import re
import struct
import tempfile
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, Final

from json_mutation import mutated_json
from targets import Target, decoded, with_letter
from text_mutation import LONGEST, Notation, mutated_bytes, mutated_text

import structgen as sg
from structgen.engine.tokenizers.gguf import read_gguf_layout
from structgen.models.model_input import render_chat

__all__ = ["TARGETS"]


@cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    """A folder in memory where there is one, for all inputs of the process."""
    memory = Path("/dev/shm")  # a folder of its own is made in it
    return tempfile.TemporaryDirectory(prefix="structgen-fuzz-", dir=memory if memory.is_dir() else None)


def _use(words: sg.Vocabulary) -> str:
    """What a vocabulary is for: tokens of a text, and a mask."""
    try:
        if words.decode(ids := words.tokenize("ab a b.")) != b"ab a b.":
            raise AssertionError(f"the tokens {ids} spell another text")
    except sg.VocabularyError:
        return "read, and lacks letters"
    sg.compile(sg.regex("[ab .]*"), words).matcher()
    return "read"


_FILES: Final = (
    "tokenizer.json",
    "tokenizer_config.json",
    "generation_config.json",
    "config.json",
    "special_tokens_map.json",
)


def _tokenizer(data: bytes) -> str:
    """A JSON object: the files of a folder by name, as JSON values or texts."""
    try:
        files = json.loads(decoded(data[1:]))
    except (ValueError, RecursionError):
        return "no files"
    if not isinstance(files, dict):
        return "no files"
    folder = Path(_folder().name)
    for path in folder.iterdir():
        path.unlink()
    for name, content in files.items():
        if name not in (*_FILES, "tekken.json", "a.tiktoken"):
            continue
        text = content if isinstance(content, str) else json.dumps(content)
        (folder / name).write_bytes(text.encode("utf-8", "surrogatepass"))
    words = sg.Vocabulary.load(folder)
    return _use(words) if words.size < 4096 else "read, and large"


def _gguf(data: bytes) -> str:
    path = Path(_folder().name) / "model.gguf"
    path.write_bytes(data or b"\0")
    damaged = suppress(struct.error, KeyError, ValueError)  # what the reader of the layout promises
    with damaged, path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        read_gguf_layout(content)
    return _use(sg.Vocabulary.load(path))


_MESSAGES: Final = [
    {"role": "system", "content": "Be {{ brief }}."},
    {"role": "user", "content": "<|im_end|>\n{% raw %}"},
    {"role": "assistant", "content": ""},
    {"role": "user", "content": "é😀" * 40},
]


def _template(data: bytes) -> str:
    text = render_chat(decoded(data[1:]), _MESSAGES, name="fuzzed", special={"bos_token": "<s>", "eos_token": "</s>"})
    if not isinstance(text, str):
        raise TypeError(f"a rendering is a text, not a {type(text).__name__}")
    return "rendered"


_TEMPLATES: Final = Notation(
    re.compile(
        r"""(?P<item>\{\{.*?\}\}|\{\#.*?\#\}|'[^'\n]*'|"[^"\n]*"|\d+(?:\.\d+)?|\[[^\[\]]*\]|\|\s*\w+(?:\([^()]*\))?)
        |(?P<line>\{%-?\s*(?:for|if|elif|else|endif|endfor|set|macro|endmacro|block|endblock|raw|endraw)\b|-?%\})
        |(?P<name>[A-Za-z_]\w*(?:\.\w+)*)|(?P<open>\()|(?P<close>\))|(?P<after>(?!))|(?P<bar>(?!))|(?P<head>(?!))|(?P<blank>\s+)""",
        re.VERBOSE | re.DOTALL,
    ),
    items="""\
{{ messages[0]['content'] }}
{{ bos_token }}
{{ 'a' * 3 }}
{{ 10 ** 9 }}
{{ range(10**9) | list }}
{% for m in messages %}{{ m.role }}{% endfor %}
{% if messages %}a{% endif %}
{{ loop.index0 }}
{{ messages | tojson }}
{{ '%99999d' % 3 }}
{{ 'a'.join(['b'] * 99) }}
{{ raise_exception('no') }}
{{ ''.__class__.__mro__ }}
{{ messages | map(attribute='content') | join('-') }}
{{ cycler('a', 'b').next() }}
{% set x = namespace(n=0) %}
{% set x.n = x.n + 1 %}
{% macro f(a) %}{{ a }}{% endmacro %}{{ f(f) }}
{% for i in range(99) %}{% for j in range(99) %}{{ i }}{% endfor %}{% endfor %}
{{ lipsum(n=3) }}
{% break %}
{{ messages | batch(2) | list }}
{{ 'a' | center(99999999) }}
{{ 'a' | indent(3) }}
{{ self }}
{{ dict(a=1) }}
{{ 1 // 0 }}
{{ messages.append(messages) }}
{{ 'x'.format(*messages) }}
{{ messages | sort(attribute='role') }}""".splitlines(),
    repeats=[
        "",
        "",
        *(f" {word}" for word in ("| length", "| upper", "| tojson", "* 2", "~ 'a'", "+ 1", "is defined")),
        "[0]",
        "['role']",
        ".items()",
    ],
    separator="",
)


def _pack_string(text: bytes) -> bytes:
    return struct.pack("<Q", len(text)) + text


_CODES: Final = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}


def _pack_value(kind: int, value: Any) -> bytes:
    if kind == 8:
        return _pack_string(value)
    if kind == 9:
        inner, values = value
        return struct.pack("<IQ", inner, len(values)) + b"".join(_pack_value(inner, one) for one in values)
    return struct.pack("<" + _CODES[kind], value)


def packed_gguf(entries: dict[bytes, tuple[int, Any]], *, version: int = 3, tensors: int = 0) -> bytes:
    """A GGUF file without the data of tensors; an entry is its kind and value, an array (kind of items, items)."""
    body = b"".join(
        _pack_string(key) + struct.pack("<I", kind) + _pack_value(kind, value) for key, (kind, value) in entries.items()
    )
    return b"GGUF" + struct.pack("<IQQ", version, tensors, len(entries)) + body


def _random_value(kind: int, rng: random.Random) -> Any:
    if kind == 8:
        return rng.choice((b"", b"gpt2", b"llama", b"bert", b"\xff", "é".encode(), b"a" * 40))
    if kind == 9:
        inner = rng.choice(sorted({*_CODES, 8}))
        return inner, [_random_value(inner, rng) for _ in range(rng.randrange(6))]
    code = _CODES[kind]
    if code in "fd?":
        return rng.random() < 0.5
    bits = 8 * struct.calcsize("<" + code)
    low, high = (0, 2**bits - 1) if code.isupper() else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    return rng.choice((0, 1, 2, high, low, min(high, 255)))


_KEYS: Final = (
    *(b"tokenizer.ggml.model", b"tokenizer.ggml.pre", b"tokenizer.ggml.tokens", b"tokenizer.ggml.token_type"),
    *(
        b"tokenizer.ggml.merges",
        b"tokenizer.ggml.eos_token_id",
        b"general.architecture",
        b"llama.vocab_size",
        b"general.alignment",
    ),
)
_TEXTS: Final = ("a", "b", "ab", "Ġa", "▁a", "<0x0A>", "<0xZZ>", "<s>", "", "😀", ".", " ")
_PIECES: Final = (*(text.encode() for text in _TEXTS), b"\xff")


def _gguf_entries(rng: random.Random) -> dict[bytes, tuple[int, Any]]:
    tokens = [rng.choice(_PIECES) for _ in range(rng.randrange(1, 20))]
    types = [rng.choice((1, 1, 1, 2, 3, 4, 5, 6, 9, -1)) for _ in tokens]
    entries: dict[bytes, tuple[int, Any]] = {
        b"general.architecture": (8, b"llama"),
        b"tokenizer.ggml.model": (8, rng.choice((b"gpt2", b"llama", b"bert", b"t5"))),
        b"tokenizer.ggml.pre": (8, rng.choice((b"gpt-2", b"smollm", b"qwen2", b"llama-bpe", b"other"))),
        b"tokenizer.ggml.tokens": (9, (8, tokens)),
        b"tokenizer.ggml.token_type": (9, (5, types[: rng.choice((len(types), len(types), 1))])),
        b"tokenizer.ggml.merges": (
            9,
            (8, [rng.choice((b"a b", b"", b"ab", b"\xff b")) for _ in range(rng.randrange(3))]),
        ),
        b"tokenizer.ggml.eos_token_id": (4, rng.choice((0, 0, 0, len(tokens) - 1, len(tokens), 2**32 - 1))),
        b"llama.vocab_size": (4, rng.choice((len(tokens), len(tokens), len(tokens) + 3, len(tokens) + 3, 0, 2**31))),
    }
    for _ in range(rng.randrange(3)):
        kind = rng.choice(sorted({*_CODES, 8, 9}))
        entries[rng.choice(_KEYS)] = kind, _random_value(kind, rng)
    return entries


def _mutated_gguf(data: bytes, others: list[bytes], rng: random.Random) -> bytes:
    """A new file of random entries, or some bytes of a file changed: a length, a kind, a text."""
    if rng.random() < 0.4 or len(data) < 24:
        data = packed_gguf(
            _gguf_entries(rng),
            version=rng.choice((*(3, 3, 3, 3, 3, 3), *(2, 2, 2), 1)),
            tensors=rng.choice((0, 0, 1, 2**63)),
        )
    if rng.random() < 0.25:
        data = mutated_bytes(data, rng)
    if rng.random() < 0.15 and len(data) > 12:
        at = rng.randrange(4, len(data) - 8)
        data = (
            data[:at]
            + struct.pack("<Q", rng.choice((0, 1, 2**31, 2**32 - 1, 2**62, 2**64 - 1, len(data))))
            + data[at + 8 :]
        )
    return data[: 2 * LONGEST]


TARGETS: Final = (
    Target("tokenizer", _tokenizer, with_letter(mutated_json, 1)),
    Target("gguf", _gguf, _mutated_gguf),
    Target(
        "template", _template, with_letter(lambda text, others, rng: mutated_text(text, others, _TEMPLATES, rng), 1)
    ),
)

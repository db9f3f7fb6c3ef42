"""The cases of ``bad_input``: commands with the files that they read, and lines of Python."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Final
from unittest.mock import patch

__all__ = ["COMMANDS", "CONTEXT", "FILES", "PYTHON", "Command"]

CONTEXT: Final = 400
"""Tokens that the context of the toy model holds; each is a byte."""


@dataclass(frozen=True)
class Command:
    """A command that goes wrong.

    Attributes:
        title: what the user did.
        arguments: those of ``structgen``.
        files: by name; None is a folder.
        stdin: what standard input holds.
        into: where standard output goes, if that is the point: ``/dev/full``, or a closed pipe.
        changed: what is different in this process meanwhile.
    """

    title: str
    arguments: tuple[str, ...]
    files: dict[str, bytes | None] = field(default_factory=dict)
    stdin: bytes = b""
    into: str = ""
    changed: Callable[[], AbstractContextManager[Any]] = nullcontext


@contextlib.contextmanager
def _no_hub() -> Iterator[None]:
    """The hub cannot be reached."""
    from huggingface_hub import HfApi

    def refuse(*_: object, **__: object) -> None:
        raise OSError("Connection refused")

    with patch.object(HfApi, "model_info", refuse):
        yield


@contextlib.contextmanager
def _unknown_on_hub() -> Iterator[None]:
    """The hub answers that it has no such model."""
    import httpx
    from huggingface_hub import HfApi
    from huggingface_hub.errors import RepositoryNotFoundError

    def refuse(*_: object, **__: object) -> None:
        raise RepositoryNotFoundError(
            "404 Client Error.", response=httpx.Response(404, request=httpx.Request("GET", "https://hub"))
        )

    with patch.object(HfApi, "model_info", refuse):
        yield


@contextlib.contextmanager
def _interrupted() -> Iterator[None]:
    """Ctrl-C comes in the sixth forward pass."""
    from structgen.models.toy.hash import HashSession

    extend, passes = HashSession.extend, iter(range(100))

    def extend_until(self: HashSession, tokens: Any, /) -> Any:
        if next(passes) == 5:
            raise KeyboardInterrupt
        return extend(self, tokens)

    with patch.object(HashSession, "extend", extend_until):
        yield


_USER: Final = b'{"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}'
_PAIR: Final = b'start: pair\npair: KEY "=" VALUE\nKEY: /[a-z]+/\nVALUE: /[0-9]+/\n'
_FORM: Final = b'''import structgen as sg


@sg.program
def greet(name: str, times: int = 1) -> str:
    """Greet {name} {times} times."""
'''


def _check(title: str, name: str, data: bytes | None, *more: str, **rest: Any) -> Command:
    return Command(title, ("check", name, *more), {name: data}, **rest)


def _run(title: str, *arguments: str, **rest: Any) -> Command:
    return Command(title, ("run", *arguments), **rest)


COMMANDS: Final = (
    # Files.
    Command("The file is not there", ("check", "schema.json")),
    Command("A folder instead of a file", ("check", "schemas"), {"schemas": None}),
    _check("The file is empty", "empty.json", b""),
    _check("A letter instead of a schema", "notes.txt", b"Dear all,\nthe meeting is on Monday.\n"),
    _check("A picture instead of a schema", "picture.json", b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR\x00\x00\x00\x10"),
    _check("Latin-1 instead of UTF-8", "umlaut.json", '{"title": "Größe"}'.encode("latin-1")),
    _check("UTF-16, as Notepad and PowerShell write it", "wide.json", '{"type": "string"}'.encode("utf-16")),
    _check("Windows line ends (no mistake)", "windows.json", b'{\r\n  "type": "string"\r\n}\r\n'),
    _check("Windows line ends in a grammar (no mistake)", "windows.lark", _PAIR.replace(b"\n", b"\r\n")),
    _check("A byte order mark (no mistake)", "mark.json", b'\xef\xbb\xbf{"type": "string"}'),
    Command("A file in a folder that may not be read", ("check", "schema.json/part"), {"schema.json": _USER}),
    # JSON.
    _check("YAML instead of JSON", "schema.yaml", b"type: object\nproperties:\n  name:\n    type: string\n"),
    _check("YAML in a file named .json", "yaml.json", b"type: object\nproperties:\n  name:\n    type: string\n"),
    _check("A Python literal instead of JSON", "python.json", b"{'type': 'object', 'additionalProperties': False}\n"),
    _check("Python's True in JSON", "true.json", b'{"type": "array", "uniqueItems": True}\n'),
    _check("A trailing comma", "comma.json", b'{\n  "type": "string",\n  "maxLength": 5,\n}\n'),
    _check("Comments in JSON", "comment.json", b'{\n  // a name\n  "type": "string"\n}\n'),
    _check("Two documents in one file", "two.json", b'{"type": "string"}\n{"type": "integer"}\n'),
    _check("Curly quotation marks", "curly.json", "{“type”: “string”}\n".encode()),
    _check("The same name twice", "twice.json", b'{"type": "string", "type": "integer"}'),
    _check("An array instead of a schema", "array.json", b'[{"type": "string"}]'),
    # JSON Schema.
    _check("A type is misspelt", "type.json", b'{"type": "strin"}'),
    _check("A keyword is misspelt", "keyword.json", b'{"type": "object", "propertis": {"a": {}}, "required": ["a"]}'),
    _check("A keyword is misspelt, and --strict", "keyword.json", b'{"type": "string", "maxlength": 5}', "--strict"),
    _check("A document instead of a schema", "ada.json", b'{"name": "Ada", "age": 36}'),
    _check("A reference leads nowhere", "reference.json", b'{"$ref": "#/$defs/user", "$defs": {"usr": {}}}'),
    _check("A reference to the network", "remote.json", b'{"$ref": "https://example.org/user.json"}'),
    _check("No value satisfies the schema", "never.json", b'{"type": "integer", "minimum": 5, "maximum": 3}'),
    _check("A pattern that is no expression", "pattern.json", b'{"type": "string", "pattern": "[a-"}'),
    # Regular expressions.
    Command("A parenthesis is not closed", ("check", "--regex", "(a|b")),
    Command("A back-reference", ("check", "--regex", r"(a+)-\1")),
    Command("A look-behind of no fixed length", ("check", "--regex", "(?<=a+)b")),
    Command("A regular expression that matches nothing", ("check", "--regex", "a(?!.*)b")),
    # Grammars.
    _check("A rule is not defined", "undefined.lark", b'start: greeting\ngreeting: "hello " nam\nname: /[a-z]+/\n'),
    _check("The first rule has another name", "other.lark", b'greeting: "hello"\n'),
    _check("--start names no rule", "pair.lark", _PAIR, "--start", "pairs"),
    _check("Rules that only refer to each other", "circle.lark", b'start: a | "x" b\na: b\nb: a | "(" b ")"\n'),
    _check("A rule that never ends, and nothing else", "endless.lark", b'start: "a" start\n'),
    _check("A quotation mark is missing in Lark", "quote.lark", b'start: "hello\n'),
    _check("Lark in a file of another name", "grammar.txt", _PAIR),
    _check("A rule is not defined in GBNF", "undefined.gbnf", b'root ::= "a" thing\n'),
    _check("GBNF with Lark's colon", "colon.gbnf", b'root: "a"\n'),
    _check("GBNF without root", "noroot.gbnf", b'start ::= "a"\n'),
    # Commands and options.
    Command("A command is misspelt", ("chek", "schema.json")),
    Command("An option is misspelt", ("run", "user.json", "--promt", "x"), {"user.json": _USER}),
    Command("No file is named", ("check",)),
    Command("Too many files", ("check", "user.json", "pair.lark")),
    Command("An expression and a file", ("check", "user.json", "--regex", "a")),
    _run("An option without its value", "user.json", "--max-tokens"),
    _run("Words for a number", "user.json", "--max-tokens", "ten"),
    _run("A negative number", "user.json", "--max-tokens", "-5"),
    _run("A temperature that is no number", "user.json", "--temperature", "nan"),
    _run("A negative temperature", "user.json", "--temperature", "-1"),
    _run("A probability above 1", "user.json", "--top-p", "90"),
    _run("No outputs", "user.json", "-n", "0"),
    _run("A sampler is misspelt", "user.json", "--sampler", "gredy"),
    _run("A setting of a sampler is misspelt", "user.json", "--sampler", "multinomial:temprature=0.7"),
    _run("A setting of a sampler is out of range", "user.json", "--sampler", "smc:particles=0"),
    _run("A drafter is misspelt", "user.json", "--drafter", "prompt-look"),
    _run("A drafter needs a setting", "user.json", "--drafter", "draft-model"),
    _run("Options that exclude each other", "user.json", "--prompt", "x", "--prompt-file", "prompt.txt"),
    _run("--stream and --json", "user.json", "--stream", "--json"),
    _run("A sampler and its temperature apart", "user.json", "--sampler", "multinomial", "--temperature", "0.5"),
    _run("An option of canvases", "user.json", "--canvas", "64"),
    # Generation.
    _run("The budget is too small", "user.json", "--max-tokens", "3"),
    _run("A huge budget", "user.json", "--max-tokens", "1000000"),
    _run("The prompt is longer than the context", "user.json", "--prompt", "word " * 100),
    _run("The prompt is empty (no mistake)", "--regex", "yes", "--prompt", ""),
    _run("The file of the prompt is not there", "user.json", "--prompt-file", "prompt.txt"),
    _run("Ctrl-C", "--regex", "[a-z]{30}", "--drafter", "none", changed=_interrupted),
    # Models.
    _run("A model that is not there", "user.json", "--model", "./smollm"),
    _run("A model that the hub does not know", "user.json", "--model", "some/modle", changed=_unknown_on_hub),
    _run("No network", "user.json", "--model", "some/model", changed=_no_hub),
    _run("A model's name is misspelt, and there is no network", "user.json", "--model", "smolm", changed=_no_hub),
    _run("A folder without a model", "user.json", "--model", "schemas"),
    _run("A folder without weights", "user.json", "--model", "half", files={"half/config.json": b"{}"}),
    _run(
        "A folder without a tokenizer",
        *("user.json", "--model", "mute"),
        files={"mute/config.json": b'{"model_type": "llama"}', "mute/model.safetensors": b""},
    ),
    _run("A file that is no model", "user.json", "--model", "notes.txt"),
    # Programs.
    Command("A Python file without a program", ("run", "none.py"), {"none.py": b"x = 1\n"}),
    Command("A program that is not there", ("run", "form.py:gret"), {"form.py": _FORM}),
    Command("A program with a syntax error", ("run", "wrong.py"), {"wrong.py": b"def f(:\n    pass\n"}),
    Command("A program whose import fails", ("run", "lost.py"), {"lost.py": b"import nowhere_at_all\n"}),
    Command("A program without its argument", ("run", "form.py")),
    Command("An argument that the program does not have", ("run", "form.py", "--arg", "nam=Ada")),
    Command("An argument of the wrong type", ("run", "form.py", "--arg", "name=Ada", "--arg", "times=twice")),
    Command("A prompt for a program", ("run", "form.py", "--prompt", "Hello")),
    Command("check of a program", ("check", "form.py")),
    # Documents.
    Command("The document is not there", ("match", "user.json", "document.json")),
    Command("The document is missing", ("match", "user.json")),
    Command("The document is a picture", ("match", "user.json", "picture.json")),
    Command("The document is empty", ("match", "user.json", "empty.json")),
    Command("The document ends too soon", ("match", "user.json", "short.json"), {"short.json": b'{"name": "Ada'}),
    Command("The document has another type", ("match", "user.json", "seven.json"), {"seven.json": b'{"name": 7}\n'}),
    Command("A prefix that is not valid", ("explain", "user.json", "--text", '{"name": 7')),
    Command("A trace that is none", ("trace", "user.json")),
    # Output.
    Command("The disk is full", ("check", "user.json"), into="/dev/full"),
    Command("The disk is full, with -o", ("convert", "user.json", "--to", "gbnf", "-o", "/dev/full")),
    Command("The output file is in no folder", ("show", "user.json", "-o", "nowhere/page.txt")),
    Command("The output file is a folder", ("convert", "user.json", "--to", "gbnf", "-o", "schemas")),
    Command("The output pipe is closed", ("check", "user.json"), into="a closed pipe"),
)

FILES: Final = {
    "whole/config.json": b'{"model_type": "llama"}',
    "whole/model.safetensors": b"",
    "whole/tokenizer.json": b"{}",
}
"""Files that lines of Python read, beside those of the commands."""

PYTHON: Final = (
    # The model.
    ("A name instead of a model", 'sg.generate("gpt2", "Hello", grammar)'),
    ("The same with sample", 'sg.sample("gpt2", "Hello", grammar)'),
    ("The same with extract", 'sg.extract(int, "I am 36", model="gpt2")'),
    ("The same with a program", 'greet("Ada", model="gpt2")'),
    ("The same with infill", 'sg.infill("gpt2", ["a", sg.grammars.hole(3)], grammar)'),
    ("A model of transformers as it is", 'sg.generate(transformers_model, "Hello", grammar)'),
    ("A pair of transformers as it is", 'sg.generate((transformers_model, tokenizer), "Hello", grammar)'),
    ("A model on a server", 'sg.generate(sg.remote("http://localhost:8000/v1", "a-model"), "Hello", grammar)'),
    ("No model", 'sg.generate(None, "Hello", grammar)'),
    ("The class of a model", 'sg.generate(type(model), "Hello", grammar)'),
    ("Arguments in another order", 'sg.generate("Hello", model, grammar)'),
    # The grammar and the vocabulary.
    ("A schema instead of a grammar", 'sg.generate(model, "Hello", schema)'),
    ("A type instead of a grammar", 'sg.generate(model, "Hello", int)'),
    ("A text instead of a grammar", 'sg.generate(model, "Hello", "[a-z]+")'),
    ("A list of texts instead of a grammar", 'sg.generate(model, "Hello", ["yes", "no"])'),
    ("A compiled expression instead of a grammar", 'sg.generate(model, "Hello", re.compile("[a-z]+"))'),
    ("No vocabulary", 'sg.compile("[a]", None)'),
    ("A tokenizer instead of a vocabulary", "sg.compile(grammar, tokenizer)"),
    ("A model instead of a vocabulary", "sg.compile(grammar, model)"),
    ("A schema is compiled", "sg.compile(schema, vocabulary)"),
    ("A text is compiled", 'sg.compile("[a]", vocabulary)'),
    ("Limits that are a number", "sg.compile(grammar, vocabulary, limits=3)"),
    ("No tokenizer", "sg.Vocabulary.load(None)"),
    ("No tokens", "sg.Vocabulary([], eos=[0])"),
    ("A tokenizer in place of tokens", "sg.Vocabulary(tokenizer)"),
    ("A name that is empty", 'grammar.named("")'),
    # The settings.
    ("A budget that is a text", 'sg.generate(model, "Hello", grammar, max_tokens="10")'),
    ("A negative budget", 'sg.generate(model, "Hello", grammar, max_tokens=-1)'),
    ("A budget that is too small", 'sg.generate(model, "Hello", sg.regex("[a-z]{9}"), max_tokens=4)'),
    ("Limits that are a number, in generate", 'sg.generate(model, "Hello", grammar, limits=3)'),
    ("A sampler's name", 'sg.generate(model, "Hello", grammar, sampler="greedy")'),
    ("A sampler's class", 'sg.generate(model, "Hello", grammar, sampler=sg.Greedy)'),
    ("A sampler's name, in sample", 'sg.sample(model, "Hello", grammar, sampler="smc")'),
    ("A drafter's name", 'sg.generate(model, "Hello", grammar, drafter="nope")'),
    ("A drafter's name that exists", 'sg.generate(model, "Hello", grammar, drafter="prompt-lookup")'),
    ("A temperature", 'sg.generate(model, "Hello", grammar, temperature=0.7)'),
    ("A temperature out of range", "sg.Multinomial(temperature=-1)"),
    ("A temperature that is a text", 'sg.Multinomial(temperature="hot")'),
    ("A seed that is a text", 'sg.generate(model, "Hello", grammar, seed="x")'),
    ("A misspelt keyword", 'sg.generate(model, "Hello", grammar, max_token=3)'),
    ("A canvas without slots", 'sg.generate(diffusion_model, "Hello", grammar, canvas=0)'),
    ("A temperature out of range, of a canvas", 'sg.generate(diffusion_model, "Hello", grammar, temperature=-1.0)'),
    ("A commit policy's name", 'sg.generate(diffusion_model, "Hello", grammar, policy="static")'),
    ("A potential that is not in a list", 'sg.generate(model, "Hello", grammar, potentials=lambda text: True)'),
    ("A stream that is no function", 'sg.generate(model, "Hello", grammar, stream=True)'),
    # The prompt.
    ("A prompt that the vocabulary cannot spell", 'sg.generate(letters_model, "ab ca", sg.regex("a"))'),
    ("A prompt that is bytes", 'sg.generate(model, b"Hello", grammar)'),
    ("A prompt that is None", "sg.generate(model, None, grammar)"),
    ("A message that is a text", 'sg.generate(model, ["Hello"], grammar)'),
    ("A message without a role", 'sg.generate(model, [{"content": "Hello"}], grammar)'),
    (
        "An image in a message",
        'sg.generate(model, [{"role": "user", "content": [{"type": "text", "text": "What is this?"}, '
        '{"type": "image_url", "image_url": {"url": "https://example.org/cat.png"}}]}], grammar)',
    ),
    # Masks in a loop of one's own.
    ("A text instead of a token", 'constraint.matcher().accept("a")'),
    ("A negative id", "constraint.matcher().accept(-1)"),
    ("A list of ids instead of one", "constraint.matcher().accept([98, 99])"),
    ("A text instead of bytes", 'constraint.matcher().accept_bytes("a")'),
    ("An id beside texts", 'constraint.matcher().validate([98, "a"])'),
    ("More steps back than were taken", "constraint.matcher().rollback(2)"),
    ("No bitmask", "constraint.matcher().fill_mask(None)"),
    ("A bitmask of int64", "constraint.matcher().fill_mask(numpy.zeros((1, 9), dtype=numpy.int64))"),
    ("A mask without rows", "constraint.matcher().fill_mask(numpy.zeros(9, dtype=numpy.int32))"),
    ("A row that is not there", "constraint.matcher().fill_mask(numpy.zeros((1, 9), dtype=numpy.int32), -1)"),
    ("None among matchers", "sg.fill_masks([None], numpy.zeros((1, 9), dtype=numpy.int32))"),
    ("A matcher of a constraint by its class", "sg.Matcher(constraint)"),
    ("A text is explained", 'constraint.matcher().explain("a")'),
    # Libraries that are not installed.
    ("Without torch", 'without("torch", sg.load_model, "whole")'),
    ("Without httpx", 'without("httpx", sg.remote, "http://localhost:8000/v1", "a-model")'),
    ("Without sqlalchemy", 'without("sqlalchemy", read_catalogue, "sqlite://")'),
    ("Without jedi", 'without("jedi", python_attributes, ".", before="")'),
    # Files and schemas.
    ("A path instead of a schema", 'sg.json_schema("user.json")'),
    ("A path instead of a grammar", 'sg.lark("sql.lark")'),
    ("A model of transformers without its tokenizer", "sg.load_model(transformers_model)"),
    ("A file that is not there", 'sg.load("nowhere.lark")'),
    ("A schema with a set", 'sg.json_schema({"enum": {1, 2}})'),
)

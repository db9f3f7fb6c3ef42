"""Uses an installed wheel from outside the checkout: everything that it needs must be in it.

Usage: python -I .ci/wheel_smoke.py CHECKOUT
"""

import hashlib
import random
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from importlib.metadata import metadata, requires, version
from pathlib import Path

import numpy as np

import structgen as sg
from structgen.models.diffusion import HashDiffusion
from structgen.testing import check_laws


def expect(condition: bool, what: str) -> None:  # noqa: FBT001  a condition, as of assert
    """End with a message unless ``condition`` holds."""
    if not condition:
        sys.exit(f"the wheel is broken: {what}")


RECORD = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "tags": {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "maxItems": 3, "uniqueItems": True},
        "when": {"type": "string", "format": "date"},
        "n": {"type": "integer", "minimum": -5, "maximum": 1200},
    },
    "required": ["name", "n"],
}
LIST = 'start: "[" (item ("," item)*)? "]"\nitem: /-?[0-9]+/ | start | "(" /[a-z]{1,8}/ ":" item ")"\n'
WALKS = (
    (
        lambda: sg.json_schema(RECORD),
        '{"name": "Ada é", "tags": ["red", "blue"], "when": "1815-12-10", "n": 36}',
    ),
    (lambda: sg.lark(LIST), "[1,(ab:[2,-3]),[[]]]"),
    (lambda: sg.regex(r"(\w{1,30} ){2,9}(yes|no|true|null)"), "name été true null"),
    (lambda: ~sg.regex(".*ab.{3}b.*") & sg.regex("[a-z ]{4,50}"), "xaab baname"),
)
MASKS = "8963cb3b5c5717a21ccb52eced4537638ea47b11aa922e3a73ec546ee38d97c5"


def masks() -> str:
    """A checksum of the masks along some texts, which is the same on every machine."""
    texts = "".join(text for _, text in WALKS).encode()
    parts = sorted({texts[at : at + size] for size in (2, 3, 5) for at in range(0, len(texts), size)})
    vocabulary = sg.Vocabulary([b"", *(bytes([value]) for value in range(256)), *parts], eos=[0])
    checksum, rows = hashlib.sha256(), np.zeros((2, (vocabulary.size + 31) // 32), dtype=np.int32)
    for grammar, text in WALKS:
        matcher = sg.compile(grammar(), vocabulary).matcher()
        for token in vocabulary.tokenize(text.encode()):
            matcher.fill_mask(rows)
            matcher.fill_mask(rows, 1, budget=40)
            checksum.update(rows.astype("<i4").tobytes())
            expect(matcher.accept(token), f"{text!r} is refused")
        checksum.update(repr((matcher.forced_tokens(), matcher.is_accepting)).encode())
    return checksum.hexdigest()


def main() -> None:
    """Check the installed package, its command and its data files."""
    checkout = Path(sys.argv[1]).resolve()
    package = Path(sg.__file__).resolve().parent
    expect(checkout / "structgen" != package, f"{package} is the source tree, not the wheel")
    expect(metadata("structgen-lm")["License-Expression"] == "Apache-2.0", "its licence is not stated")
    expect((package / "py.typed").is_file(), "py.typed is missing")
    base = [each for each in requires("structgen-lm") or [] if "extra ==" not in each]
    expect(not [each for each in base if each.startswith(("torch", "transformers"))], f"it needs {base}")
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        expect(not sys._is_gil_enabled(), "its engine brings the interpreter's lock back")  # type: ignore[attr-defined]
    expect(masks() == MASKS, f"masks differ from those of other machines: {masks()}")

    vocabulary = sg.Vocabulary([b"", *(bytes([value]) for value in range(256)), b'": ', b'{"'], eos=[0])
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "additionalProperties": False}
    for grammar in (sg.json_schema(schema), sg.regex(r"[a-c]{2,3}"), sg.lark('start: "(" start ")" | "x"')):
        check_laws(sg.compile(grammar, vocabulary), random.Random(0))
    for source in sorted((checkout / "grammars").rglob("*.lark")):
        shipped = package / "grammars" / source.relative_to(checkout / "grammars")
        expect(shipped.is_file(), f"{shipped.relative_to(package)} is missing")
        sg.compile(sg.load(shipped), vocabulary)

    for data in (
        "models/diffusion/embedded/weights.safetensors",
        "models/diffusion/embedded/tokenizer.json",
        "methods/policies/slot_filter.json",
    ):
        expect((package / data).is_file(), f"{data} is missing")
    masked = sg.Vocabulary([*vocabulary.tokens, b""], eos=[0], special={vocabulary.size: "<mask>"})
    recorder = sg.diffusion.Recorder()
    filled = sg.generate(HashDiffusion(masked), "", sg.json_schema(schema), canvas=12, stream=recorder)
    expect(isinstance(filled.value, dict), f"a diffusion model writes {filled.text!r}")
    expect(
        "</html>" in sg.diffusion.replay_page(recorder.replays([filled])), "the page that replays a canvas is not whole"
    )

    scripts = sysconfig.get_path("scripts")  # on Windows not beside the interpreter, but in an environment
    command = shutil.which("structgen", path=scripts)
    if command is None:
        sys.exit(f"the wheel is broken: there is no structgen in {scripts}")
    with tempfile.TemporaryDirectory() as folder:
        answers = [
            subprocess.run(
                [command, *arguments], cwd=folder, capture_output=True, text=True, encoding="utf-8", check=False
            )
            for arguments in (["--version"], ["explain", "--regex", "a[0-9]", "--text", "a"], ["check", "--regex", "("])
        ]
    expect(version("structgen-lm") in answers[0].stdout, "--version does not tell the version")
    expect("'0'..'9'" in answers[1].stdout, f"explain says {answers[1].stdout!r} {answers[1].stderr!r}")
    expect(answers[2].returncode == 2, "check does not refuse a malformed regular expression")
    sys.stdout.write(f"the wheel of structgen-lm {version('structgen-lm')} works from {package}\n")


main()

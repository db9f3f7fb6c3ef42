"""Uses an installed wheel from outside the checkout: everything that it needs must be in it.

Usage: python -I .ci/wheel_smoke.py CHECKOUT
"""

import random
import subprocess
import sys
import tempfile
from importlib.metadata import metadata, version
from pathlib import Path

import structgen as sg
from structgen.models.diffusion import HashDiffusion
from structgen.testing import check_laws


def expect(condition: bool, what: str) -> None:  # noqa: FBT001  a condition, as of assert
    """End with a message unless ``condition`` holds."""
    if not condition:
        sys.exit(f"the wheel is broken: {what}")


def main() -> None:
    """Check the installed package, its command and its data files."""
    checkout = Path(sys.argv[1]).resolve()
    package = Path(sg.__file__).resolve().parent
    expect(checkout / "structgen" != package, f"{package} is the source tree, not the wheel")
    expect(metadata("structgen-lm")["License-Expression"] == "Apache-2.0", "its licence is not stated")
    expect((package / "py.typed").is_file(), "py.typed is missing")

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

    command = Path(sys.executable).with_name("structgen")
    with tempfile.TemporaryDirectory() as folder:
        answers = [
            subprocess.run([command, *arguments], cwd=folder, capture_output=True, text=True, check=False)
            for arguments in (["--version"], ["explain", "--regex", "a[0-9]", "--text", "a"], ["check", "--regex", "("])
        ]
    expect(version("structgen-lm") in answers[0].stdout, "--version does not tell the version")
    expect("'0'..'9'" in answers[1].stdout, f"explain says {answers[1].stdout!r} {answers[1].stderr!r}")
    expect(answers[2].returncode == 2, "check does not refuse a malformed regular expression")
    sys.stdout.write(f"the wheel of structgen-lm {version('structgen-lm')} works from {package}\n")


main()

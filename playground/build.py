"""Builds the playground: one page that needs no other file, from the engine, the front ends and a vocabulary.

``python playground/build.py [--out FOLDER]`` needs emscripten (``em++``) and an installed structgen, whose embedded
model has the vocabulary.  The page is ``FOLDER/index.html``; what it is made of lies beside it in ``parts``.
"""

from __future__ import annotations

import argparse
import base64
import gzip
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Final

from library import library

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_HERE: Final = Path(__file__).resolve().parent
_ROOT: Final = _HERE.parent
_FOLDERS: Final = ("terms", "automaton", "masks", "matcher", "scopes", "frontends/lark", "frontends/json_schema")
_LEFT_OUT: Final = {"chain_sampler.cpp", "python_json.cpp"}
"""What is bound to Python or to llama.cpp."""
_COMPILE: Final = ("-std=c++20", "-fwasm-exceptions", "-Wall", "-DNDEBUG")
_EXPORTED: Final = (
    *("argument", "answer", "mask_words", "load_vocabulary", "load_library", "compile", "pack_source", "shortest_text"),
    *("reset_text", "accept_token", "fill_mask", "prepare_mask", "describe", "explain"),
)
_LINK: Final = (
    "-fwasm-exceptions",
    "-sMODULARIZE=1",
    "-sEXPORT_NAME=createModule",
    "-sENVIRONMENT=web,worker,node",
    "-sALLOW_MEMORY_GROWTH=1",
    "-sMAXIMUM_MEMORY=1GB",
    "-sTOTAL_STACK=8MB",
    "-sFILESYSTEM=0",
    "-sDYNAMIC_EXECUTION=0",
    "-sEXPORTED_FUNCTIONS=" + ",".join(f"_{name}" for name in _EXPORTED),
)
_MOST_BYTES: Final = 1_500_000
"""Of the module with its library, compressed."""


def sources() -> list[Path]:
    """The C++ files of the module."""
    native = _ROOT / "kernels" / "native"
    engine = [path for folder in _FOLDERS for path in sorted((native / folder).glob("*.cpp"))]
    return [path for path in engine if path.name not in _LEFT_OUT] + sorted((_HERE / "native").glob("*.cpp"))


def _newest(folder: Path) -> float:
    return max(path.stat().st_mtime for path in folder.rglob("*.h"))


def _compile(compiler: str, level: str, objects: Path) -> list[Path]:
    """Compile what has changed; a changed header means all."""
    native = _HERE / "native"
    headers = max(_newest(_ROOT / "kernels" / "native"), _newest(native))
    include = ["-include", str(native / "compat" / "library.h")]
    include += [f"-I{folder}" for folder in (native / "compat", _ROOT / "kernels" / "native", native)]
    made, waiting = [], []
    for source in sources():
        target = objects / f"{source.relative_to(_ROOT)}.o".replace("/", "_")
        made.append(target)
        if not target.exists() or target.stat().st_mtime < max(source.stat().st_mtime, headers):
            waiting.append([compiler, *_COMPILE, level, *include, "-c", str(source), "-o", str(target)])
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(lambda command: subprocess.run(command, check=True), waiting))
    return made


def vocabulary() -> bytes:
    """The vocabulary of the embedded model, as ``load_vocabulary`` of ``native/module.cpp`` takes it."""
    from structgen import Vocabulary
    from structgen.models import embedded_folder

    loaded = Vocabulary.load(embedded_folder())
    data = bytearray([len(loaded.eos)])
    for token in loaded.eos:
        data += token.to_bytes(4, "little")
    for text in loaded.tokens:
        size = len(text)
        data += bytes([size]) if size < 0xFF else b"\xff" + size.to_bytes(2, "little")
        data += text
    return bytes(data)


def packed(data: bytes) -> str:
    """Compressed, in base64."""
    return base64.b64encode(gzip.compress(data, 9, mtime=0)).decode()


def page(parts: Path) -> str:
    """The page, with all its parts inside."""
    own = _HERE / "page"
    glue = (parts / "module.js").read_text("utf-8")
    worker = "\n".join([glue, *((own / name).read_text("utf-8") for name in ("engine.js", "worker.js"))])
    if "</script" in worker:
        raise ValueError("the worker would end the element that holds it")
    inside = {
        "/*page.css*/": (own / "page.css").read_text("utf-8"),
        "/*page.js*/": (own / "page.js").read_text("utf-8"),
        "/*worker*/": worker,
        "/*module*/": packed((parts / "module.wasm").read_bytes()),
        "/*vocabulary*/": packed((parts / "vocabulary.bin").read_bytes()),
        "/*library*/": packed((parts / "library.json").read_bytes()),
    }
    text = (own / "index.html").read_text("utf-8")
    for mark, content in inside.items():
        before, found, after = text.partition(mark)
        if not found:
            raise ValueError(f"index.html has no place for {mark}")
        text = before + content + after
    return text


def _sizes(parts: Path) -> Iterator[str]:
    for name in ("module.wasm", "module.js", "library.json", "vocabulary.bin"):
        data = (parts / name).read_bytes()
        yield f"{name}: {len(data):,} bytes, {len(gzip.compress(data, 9)):,} compressed"


def main(arguments: Sequence[str] | None = None) -> int:
    """Build the page; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=_ROOT / "build" / "playground", help="the folder of the page")
    parser.add_argument("-O", dest="level", default="2", help="how the compiler optimises: 1, 2, 3, s, z")
    chosen = parser.parse_args(arguments)
    compiler = shutil.which("em++")
    if compiler is None:
        print("the playground needs emscripten: apt-get install emscripten (it has em++)", file=sys.stderr)
        return 2
    parts, objects = chosen.out / "parts", chosen.out / f"objects-O{chosen.level}"
    parts.mkdir(parents=True, exist_ok=True)
    objects.mkdir(exist_ok=True)
    level = f"-O{chosen.level}"
    made = _compile(compiler, level, objects)
    # Debian's emscripten needs Debian's acorn, which another node would not look for.
    paths = os.pathsep.join(filter(None, [os.environ.get("NODE_PATH"), "/usr/share/nodejs"]))
    environment = {**os.environ, "NODE_PATH": paths}
    subprocess.run(
        [compiler, level, *_LINK, *map(str, made), "-o", str(parts / "module.js")], check=True, env=environment
    )
    (parts / "library.json").write_text(library(), "utf-8")
    (parts / "vocabulary.bin").write_bytes(vocabulary())
    (chosen.out / "index.html").write_text(page(parts), "utf-8")
    print("\n".join(_sizes(parts)))
    module = sum(
        len(gzip.compress((parts / name).read_bytes(), 9)) for name in ("module.wasm", "module.js", "library.json")
    )
    print(f"{chosen.out / 'index.html'}: {(chosen.out / 'index.html').stat().st_size:,} bytes; module {module:,}")
    if module > _MOST_BYTES:
        print(f"the module has more than {_MOST_BYTES:,} bytes, compressed", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

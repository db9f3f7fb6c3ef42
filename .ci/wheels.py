"""Builds the wheels of this machine, checks them, and uses each where there is no compiler.

Usage: python .ci/wheels.py [--folder FOLDER] [--compiled FOLDER] [INTERPRETER ...]

Without interpreters, those of the supported versions that are on the PATH. Each gets the wheel that pip would choose:
one with the stable ABI for all from 3.12 on, one for each older and each free-threaded version.

With ``--compiled``, the wheels of that folder are used and none is built.
"""

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[1]
NAMES = ("python3.11", "python3.12", "python3.13", "python3.14", "python3.14t")
MAX_WHEEL_BYTES = 15_000_000
BIN = "Scripts" if os.name == "nt" else "bin"
COMPILERS = ("cc", "c++", "gcc", "g++", "clang", "clang++", "cmake", "ninja", "make")
ASK = """
import json, sys, sysconfig
free = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))
print(json.dumps([sys.executable, list(sys.version_info[:3]), free, sys.implementation.name]))
"""


def run(*command: object, folder: Path = CHECKOUT, **options: str) -> str:
    """Run a command with its output shown on failure; return what it prints."""
    words, environment = [str(part) for part in command], {**os.environ, **options}
    done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{done.stdout}{done.stderr}\nfailed: {' '.join(words)}")
    return done.stdout


class Interpreter:
    """An interpreter, and the tag of the wheel that pip chooses for it."""

    def __init__(self, path: str) -> None:
        self.path, version, self.is_free, implementation = json.loads(run(path, "-I", "-c", ASK))
        self.version = ".".join(map(str, version))
        short = f"cp{version[0]}{version[1]}"
        self.name = short + "t" * self.is_free
        self.tag = "cp312-abi3" if version[:2] >= [3, 12] and not self.is_free else f"{short}-{self.name}"
        if implementation != "cpython" or version[:2] < [3, 11]:
            sys.exit(f"{path}: structgen needs CPython 3.11 or newer, this is {implementation} {self.version}")

    def make_venv(self, folder: Path) -> Path:
        """Make a virtual environment without pip; return its interpreter."""
        shutil.rmtree(folder, ignore_errors=True)
        run(self.path, "-m", "venv", "--without-pip", folder)
        return folder / BIN / "python"


def found() -> list[str]:
    """The interpreters on the PATH that run; a name may stand for a version that is not installed."""
    there = []
    for name in NAMES:
        path = shutil.which(name)
        if path and subprocess.run([path, "-c", ""], capture_output=True, check=False).returncode == 0:
            there.append(path)
    return there


def pip(python: Path, *arguments: object) -> None:
    """Run this interpreter's pip for another one."""
    run(sys.executable, "-m", "pip", "--python", python, *arguments)


def build(interpreter: Interpreter, work: Path) -> Path:
    """Build a wheel with the tools of the group ``build``, and let it run on older systems."""
    venv = work / f"build-{interpreter.name}"
    stamp = venv / "stamp"  # tools that stay keep what is compiled valid
    python = venv / BIN / "python" if stamp.exists() else interpreter.make_venv(venv)
    pip(python, "install", "--quiet", "-c", "constraints.txt", "--group", "pyproject.toml:build")
    stamp.touch()
    raw = work / f"raw-{interpreter.name}"
    shutil.rmtree(raw, ignore_errors=True)
    # The library of C++ may be newer than those of others. Inside and hidden, what is unused asks nothing of glibc.
    flags = "-static-libstdc++ -Wl,--exclude-libs,ALL" if sys.platform == "linux" else ""
    options = [f"-Ccmake.define.CMAKE_MODULE_LINKER_FLAGS={flags}"] * bool(flags)
    pip(python, "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", raw, *options, ".")
    (wheel,) = raw.glob("*.whl")
    return wheel


def repaired(wheel: Path, folder: Path) -> Path:
    """The wheel with the tag of the oldest system that it runs on, checked; elsewhere than on Linux, a copy."""
    if sys.platform != "linux":
        return Path(shutil.copy(wheel, folder))
    before = set(folder.glob("*.whl"))
    tools = Path(sys.executable).parent
    run(tools / "auditwheel", "repair", "--strip", "--wheel-dir", folder, wheel, PATH=f"{tools}:{os.environ['PATH']}")
    (made,) = set(folder.glob("*.whl")) - before
    print(run(tools / "auditwheel", "show", made).strip().splitlines()[0])
    if "-abi3-" in made.name:
        run(tools / "abi3audit", "--strict", made)
        print(f"{made.name} keeps to the stable ABI")
    return made


def size_of(folder: Path) -> int:
    """The bytes of all files in a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def use(interpreter: Interpreter, wheel: Path, work: Path) -> str:
    """Install the wheel where there is no compiler, use it there, and return a line of a table."""
    venv = work / f"use-{interpreter.name}"
    python = interpreter.make_venv(venv)
    bare = {"PATH": str(python.parent), "CC": "", "CXX": ""}
    for name in COMPILERS:
        if shutil.which(name, path=bare["PATH"]):
            sys.exit(f"{python.parent} has {name}")
    begin = time.perf_counter()
    run(
        sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--only-binary", ":all:",
        "-c", CHECKOUT / "constraints.txt", wheel, folder=work, **bare,
    )  # fmt: skip
    took = time.perf_counter() - begin
    (packages,) = venv.glob("[Ll]ib/**/site-packages")
    own = sum(size_of(packages / name) for name in ("structgen", "structgen_kernels"))
    everything = size_of(packages)
    if any((packages / name).exists() for name in ("torch", "transformers", "triton")):
        sys.exit("the base installation has torch")
    run(python, "-I", CHECKOUT / ".ci/wheel_smoke.py", CHECKOUT, folder=work, **bare)
    name, version, tag = interpreter.name, interpreter.version, interpreter.tag
    return f"{name:7}  {version:8}  {tag:13}  {took:5.1f} s  {own / 1e6:5.1f} MB  {everything / 1e6:6.1f} MB"


def main() -> None:
    """Build, check and use."""
    reading = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    reading.add_argument("interpreters", nargs="*")
    reading.add_argument("--folder", type=Path, default=CHECKOUT / "dist", help="where the wheels go")
    reading.add_argument("--compiled", type=Path, help="a folder of wheels to use")
    given = reading.parse_args()
    folder, work = given.folder.resolve(), CHECKOUT / "build/wheels"
    folder.mkdir(parents=True, exist_ok=True)
    work.mkdir(parents=True, exist_ok=True)
    interpreters = [Interpreter(path) for path in given.interpreters or found()]
    if not interpreters:
        sys.exit(f"there is no interpreter; name one, or put one of {', '.join(NAMES)} on the PATH")
    wheels: dict[str, Path] = {}
    for interpreter in interpreters:
        if interpreter.tag in wheels:
            continue
        if given.compiled:
            (wheels[interpreter.tag],) = given.compiled.resolve().glob(f"*-{interpreter.tag}-*.whl")
        else:
            for old in folder.glob(f"*-{interpreter.tag}-*.whl"):
                old.unlink()
            print(f"building {interpreter.tag} with {interpreter.path}", flush=True)
            wheels[interpreter.tag] = repaired(build(interpreter, work), folder)
    for wheel in wheels.values():
        size = wheel.stat().st_size
        print(f"{wheel.name}: {size / 1e6:.1f} MB")
        if size > MAX_WHEEL_BYTES:
            sys.exit(f"{wheel.name} has {size} bytes; the limit is {MAX_WHEEL_BYTES}")
    print(f"on {platform.platform()}, without a compiler:")
    print("Python   version   wheel          install  structgen   with all")
    for interpreter in interpreters:
        print(use(interpreter, wheels[interpreter.tag], work), flush=True)


main()

"""Compile kernels for GPUs on a machine without a GPU, with the arguments of their launches.

Triton's interpreter accepts code that the compiler rejects, and does not report registers.  So each test file of
kernels has a function ``launches`` that calls its operations once.  This script compiles the kernels that ``launches``
launches, and does not run them.  Tensors stay on the CPU and results are undefined, so ``launches`` must not read them.

    python tests/support/kernels/kernel_builds.py FILE [TARGET]

The script prints a JSON list with one entry per kernel, target and set of types.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

__all__ = ["TARGETS", "built"]

TARGETS = (80, 90)
"""Compute capabilities times ten: A100; H100 and H200."""
_TYPES = {
    "torch.float32": "*fp32",
    "torch.float16": "*fp16",
    "torch.bfloat16": "*bf16",
    "torch.float64": "*fp64",
    "torch.int8": "*i8",
    "torch.uint8": "*u8",
    "torch.bool": "*i1",
    "torch.int16": "*i16",
    "torch.int32": "*i32",
    "torch.int64": "*i64",
    "torch.uint32": "*u32",
}


def built(file: Path, target: int) -> list[dict[str, Any]]:
    """Compile, for one target, the kernels that ``launches`` of a test file launches, and return their figures.

    Each entry has ``kernel``, ``target``, ``registers``, ``spilled_bytes`` (local memory), ``shared_bytes``,
    ``barriers`` (explicit ones in the kernel), ``synchronisations`` (all barriers, those of reductions included),
    ``incoherent_loads`` (through the non-coherent cache, or asynchronous), and ``loads`` and ``stores``, how many
    instructions of each width access global memory, by the bytes of a thread.
    """
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    paths = [str(file.parent), str(Path(__file__).parent), *sys.path]
    environment["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
    done = subprocess.run(
        [sys.executable, __file__, str(file), str(target)],
        capture_output=True,
        text=True,
        env=environment,
        timeout=600,
        check=False,
    )
    if done.returncode:
        raise AssertionError(f"{file.name}: kernels do not compile\n{done.stderr[-6000:]}")
    entries: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return entries


class _Builder:
    """A replacement for launches, which compiles."""

    def __init__(self, targets: Sequence[int]) -> None:
        self.targets = targets
        self.found: dict[tuple[str, str, int], dict[str, Any]] = {}

    def run(self, kernel: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> None:
        """Replace ``JITFunction.run``: compile ``kernel`` for all targets without a launch."""
        parameters = {parameter.name: parameter for parameter in kernel.params}
        bound = dict(zip(parameters, args, strict=False))
        bound |= {name: options.pop(name) for name in list(options) if name in parameters}
        # In the order of parameters: constants are known to the compiler by their index.
        bound = {name: bound.get(name, parameter.default) for name, parameter in parameters.items()}
        signature: dict[str, Any] = {}
        constants: dict[tuple[int, ...], Any] = {}
        even: dict[tuple[int, ...], list[list[Any]]] = {}
        for index, (name, value) in enumerate(bound.items()):
            signature[name] = _specialized((index,), parameters[name], value, constants, even)
        for target in self.targets:
            key = (kernel.fn.__name__, str([signature, constants, [*even]]), target)
            if key not in self.found:
                self.found[key] = _compiled(kernel, signature, constants, even, target, options)


def _specialized(
    path: tuple[int, ...],
    parameter: Any,
    value: Any,
    constants: dict[tuple[int, ...], Any],
    even: dict[tuple[int, ...], list[list[Any]]],
) -> Any:
    """Return the type of an argument, and record which parts are constants or multiples of 16, as a launch does."""
    from triton.language import constexpr

    if isinstance(value, tuple):
        parts = [_specialized((*path, index), parameter, part, constants, even) for index, part in enumerate(value)]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    is_constant = parameter.is_constexpr or isinstance(value, constexpr) or value is None
    if is_constant or _is_one(parameter, value):
        constants[path] = value.value if isinstance(value, constexpr) else value
        return "constexpr"
    if _is_even(parameter, value):
        even[path] = [["tt.divisibility", 16]]
    return _type_of(value)


def _is_one(parameter: Any, value: Any) -> bool:
    """Whether a launch specializes on a number because it is 1."""
    return type(value) is int and value == 1 and not parameter.do_not_specialize


def _is_even(parameter: Any, value: Any) -> bool:
    """Whether a launch specializes on a number or an address because it is a multiple of 16."""
    if parameter.do_not_specialize or parameter.do_not_specialize_on_alignment or isinstance(value, (bool, float)):
        return False
    number: int = value if isinstance(value, int) else value.data_ptr()
    return number % 16 == 0


def _compiled(
    kernel: Any,
    signature: dict[str, Any],
    constants: dict[tuple[int, ...], Any],
    even: dict[tuple[int, ...], list[list[Any]]],
    target: int,
    options: Any,
) -> dict[str, Any]:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    source = ASTSource(fn=kernel, signature=signature, constexprs=constants, attrs=even)
    done = triton.compile(source, target=GPUTarget("cuda", target, 32), options=options)
    named = {str(path): value for path, value in constants.items()}
    of_name = {kernel.params[path[0]].name: value for path, value in constants.items() if len(path) == 1}
    entry = {"kernel": kernel.fn.__name__, "target": target, "types": signature, "constants": named | of_name}
    code, graph = done.asm["ptx"], str(done.asm["ttgir"])
    figures = {
        "shared_bytes": done.metadata.shared,
        "barriers": len(re.findall(r"^ *(?:gpu|ttg)\.barrier\b", graph, re.MULTILINE)),
        "synchronisations": len(re.findall(r"\bbar(?:rier)?(?:\.cta)?\.sync\b", code)),
        "incoherent_loads": len(re.findall(r"\bld\.global(?:\.\w+)*\.nc\b|\bcp\.async\.c[ag]\b", code)),
        "loads": _widths(code, "ld"),
        "stores": _widths(code, "st"),
    }
    return entry | _resources(done.asm["cubin"]) | figures


def _widths(code: str, operation: str) -> dict[str, int]:
    found = re.findall(rf"\b{operation}\.global(?:\.[a-z]\w*?)*?(?:\.v(\d))?\.[bfsu](\d+)\b", code)
    return {str(width): count for width, count in Counter(int(n or 1) * int(bits) // 8 for n, bits in found).items()}


def _resources(cubin: bytes) -> dict[str, int]:
    import triton

    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        said = subprocess.run([tool, "--dump-resource-usage", file.name], capture_output=True, text=True, check=True)
    figures = {name: int(number) for name, number in re.findall(r"\b(REG|STACK|LOCAL):(\d+)", said.stdout)}
    return {"registers": figures["REG"], "spilled_bytes": figures["LOCAL"] + figures["STACK"]}


def _type_of(value: Any) -> str:
    if isinstance(value, bool):
        return "i1"
    if isinstance(value, int):
        return "i32" if -(2**31) <= value < 2**31 else "i64"
    if isinstance(value, float):
        return "fp32"
    return _TYPES[str(value.dtype)]


def main(file: str, *targets: str) -> None:
    """Compile the kernels that a file launches."""
    import triton
    from structgen_kernels import dispatch

    builder = _Builder([int(target) for target in targets] or TARGETS)
    dispatch.is_interpreted = lambda: True  # so that operations accept tensors on the CPU

    def run(kernel: Any, *args: Any, **options: Any) -> None:  # a function, so that it becomes a method
        builder.run(kernel, *args, **options)

    triton.runtime.jit.JITFunction.run = run
    specification = importlib.util.spec_from_file_location("launching", file)
    if specification is None or specification.loader is None:
        raise SystemExit(f"{file}: no Python file")
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    with dispatch.use_backend("triton"):
        module.launches()
    print(json.dumps(list(builder.found.values()), default=str))


if __name__ == "__main__":
    main(*sys.argv[1:])

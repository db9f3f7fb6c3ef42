"""Everything below Python speed: the native engine."""

from __future__ import annotations

from importlib import import_module


def _says_why(error: ImportError) -> str:
    """Which interpreter this is, which engine is installed, and what to do."""
    import platform
    import sys
    import sysconfig
    from pathlib import Path

    lock = ", without its lock," if sysconfig.get_config_var("Py_GIL_DISABLED") else ""
    python = f"{platform.python_implementation()} {platform.python_version()}{lock} on {sysconfig.get_platform()}"
    there = sorted(path.name for path in Path(__file__).parent.glob("_native.*") if path.suffix != ".pyi")
    return (
        f"structgen: the engine cannot be loaded in {python}; installed is {', '.join(there) or 'none'} ({error}); "
        f"install structgen-lm with this interpreter: {sys.executable} -m pip install --force-reinstall structgen-lm"
    )


try:
    import_module("structgen_kernels._native")
except ImportError as error:
    raise ImportError(_says_why(error), name=error.name, path=error.path) from error

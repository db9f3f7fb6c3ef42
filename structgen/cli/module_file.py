"""A file of Python that the command line is given."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

from structgen.cli.failure import Failure
from structgen.cli.source import read_text

__all__ = ["run_file"]


def run_file(file: str) -> ModuleType:
    """Run a file as a module; it finds what lies beside it.

    Raises:
        Failure: it cannot be read or run.
    """
    read_text(file)  # says what is wrong with the file in the words of the other commands
    spec = importlib.util.spec_from_file_location(Path(file).stem, file)
    if spec is None or spec.loader is None:
        raise Failure(f"{file}: it is no module of Python")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # annotations are resolved through it
    sys.path.insert(0, str(Path(file).resolve().parent))
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise Failure(f"{file}: it cannot be run; {type(error).__name__}: {error}") from error
    return module

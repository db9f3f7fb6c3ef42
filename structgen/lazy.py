"""Imports on first use: names listed once, in the stub beside a module, and modules under their old names.

A stub such as ``structgen/samplers.pyi`` says ``from structgen.decode.sampling.smc import SMC as SMC``.  Type checkers
and editors read it, and so does :func:`lazy_names` at run time.  The old names of modules that
have moved can be imported for one release, with a ``DeprecationWarning``.
"""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Collection, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec

__all__ = ["MOVED", "find_moved_modules", "lazy_names", "stub_names"]


def lazy_names(
    module: str, file: str, *, kept: Collection[str] | None = None, distribution: str = ""
) -> tuple[Any, Any]:
    """Return ``__getattr__`` and ``__dir__`` for a module whose names are listed in its stub.

    Args:
        module: its ``__name__``.
        file: its ``__file__``; the stub has the same path with the suffix ``.pyi``.
        kept: the names that belong here; None: all. The others have moved to the module that the stub names; they still
            work, with a ``DeprecationWarning``.
        distribution: the installed package whose version is ``__version__``; none if empty.
    """
    sources: dict[str, tuple[str, str]] = {}

    def read() -> dict[str, tuple[str, str]]:
        if not sources:
            sources.update(stub_names(Path(file).with_suffix(".pyi")))
        return sources

    def get(name: str) -> Any:
        """Import a name from the module in the stub, and cache it."""
        if distribution and name == "__version__":
            return _version(distribution)
        if name.startswith("__") or name not in read():
            # With both, Python asks in a traceback for the name that is meant.
            raise AttributeError(f"module {module!r} has no attribute {name!r}", name=name, obj=sys.modules[module])
        source, original = read()[name]
        if source in (module, f"{module}.{name}"):  # a submodule: its import sets the attribute
            return importlib.import_module(f"{module}.{name}")
        value = getattr(importlib.import_module(source), original)
        if kept is not None and name not in kept:
            warnings.warn(f"{module}.{name} is now {source}.{name}", DeprecationWarning, stacklevel=2)
        else:
            setattr(sys.modules[module], name, value)
        return value

    def names() -> list[str]:
        return sorted(read())

    return get, names


def _version(distribution: str) -> str:
    """The version of an installed package; ``"unknown"`` where it is imported without being installed."""
    from importlib import metadata

    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return "unknown"


def stub_names(stub: Path) -> dict[str, tuple[str, str]]:
    """Return the module of each name of a stub, and its name there."""
    import ast  # needed only for the first look-up

    return {
        alias.asname or alias.name: (statement.module or "", alias.name)
        for statement in ast.parse(stub.read_text(encoding="utf-8")).body
        if isinstance(statement, ast.ImportFrom)
        for alias in statement.names
    }


MOVED: Final = {
    "structgen.decode.context": "structgen.decode.step.context",
    "structgen.decode.diffusion.byte_automaton": "structgen.decode.diffusion.token_automaton",
    "structgen.decode.diffusion.canvas_sampler": "structgen.decode.diffusion.posterior",
    "structgen.decode.diffusion.drafting.adaptive_parallel": "structgen.methods.diffusion_drafting.adaptive_parallel",
    "structgen.decode.diffusion.drafting.drafts": "structgen.methods.diffusion_drafting.canvas_draft",
    "structgen.decode.diffusion.drafting.free_dave": "structgen.methods.diffusion_drafting.canvas_draft",
    "structgen.decode.diffusion.drafting.self_speculative": "structgen.methods.diffusion_drafting.canvas_draft",
    "structgen.decode.diffusion.policies": "structgen.methods.policies",
    "structgen.decode.diffusion.reuse": "structgen.decode.diffusion.forward_pass",
    "structgen.decode.diffusion.trajectories.reveal_order": "structgen.decode.diffusion.trajectory",
    "structgen.decode.gumbel_max": "structgen.decode.step.sampler",
    "structgen.decode.infilling": "structgen.methods.infilling",
    "structgen.decode.look_ahead": "structgen.decode.step.logits_row",
    "structgen.decode.monitors": "structgen.methods.monitors",
    "structgen.decode.projection": "structgen.decode.step.distribution",
    "structgen.decode.sampling.asap": "structgen.methods.samplers.trie_sampler",
    "structgen.decode.sampling.beam": "structgen.methods.samplers.beam",
    "structgen.decode.sampling.best_of": "structgen.methods.samplers.best_of",
    "structgen.decode.search": "structgen.decode.autoregressive.search",
    "structgen.decode.speculative.chance": "structgen.decode.speculative.verifier",
    "structgen.decode.speculative.shapes": "structgen.shapes",
    "structgen.decode.speculative.verification": "structgen.verification",
    "structgen.decode.speculative.worth": "structgen.decode.speculative.cost",
    "structgen.decode.strategies": "structgen.methods.strategies",
    "structgen.engine.inclusion": "structgen.engine.analysis.inclusion",
    "structgen.engine.members": "structgen.engine.analysis.uniform_sampling",
    "structgen.grammar.dialects": "structgen.frontends.convert",
    "structgen.grammar.ebnf": "structgen.frontends.bnf",
    "structgen.grammar.gbnf": "structgen.frontends.bnf",
    "structgen.grammar.indentation": "structgen.frontends.indentation",
    "structgen.grammar.json_schema": "structgen.frontends.json_schema",
    "structgen.grammar.lark": "structgen.frontends.lark",
    "structgen.grammar.loading": "structgen.frontends.loading",
    "structgen.grammar.markers": "structgen.frontends.python_types.markers",
    "structgen.grammar.protocols": "structgen.frontends.chat",
    "structgen.grammar.regex": "structgen.frontends.regex",
    "structgen.grammar.report": "structgen.grammar.nodes.description",
    "structgen.grammar.substrings": "structgen.frontends.free_text",
    "structgen.grammar.types": "structgen.frontends.python_types",
    "structgen.grammar.typical": "structgen.engine.report",
    "structgen.grammar.until": "structgen.frontends.free_text",
    "structgen.integrations.python_names": "structgen.methods.monitors.python_names",
    "structgen.integrations.sql_catalogue": "structgen.methods.monitors.sql.catalogue",
    "structgen.integrations.sql_grammar": "structgen.methods.monitors.sql.grammar",
    "structgen.models.diffusion.embedded.slot_filter": "structgen.methods.policies.stateful",
    "structgen.models.embedded": "structgen.models.llama.embedded",
    "structgen.models.heads": "structgen.methods.drafters.heads.trained_heads",
    "structgen.models.llama_model": "structgen.models.llama.model",
}
"""The new name of each module that documentation or examples named."""


class _MovedModules:
    """A finder and loader of ``sys.meta_path`` that answers an old name with the module of the new one."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        is_package = any(old.startswith(f"{name}.") for old in MOVED)
        if name not in MOVED and not is_package:
            return None
        from importlib.machinery import ModuleSpec

        return ModuleSpec(name, self, is_package=is_package)  # type: ignore[arg-type]  # a loader by its methods

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        if spec.name not in MOVED:  # a package that is no more, above a module that has moved
            return None
        new = MOVED[spec.name]
        warnings.warn(f"the module {spec.name} is now {new}", DeprecationWarning, stacklevel=2)
        module = importlib.import_module(new)
        self._spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Nothing to do: the module has been executed under its new name, which its attributes keep."""
        if module.__name__ in MOVED.values():
            module.__spec__ = self._spec


def find_moved_modules() -> None:
    """Let old names of modules be imported; a second call changes nothing."""
    if not any(isinstance(finder, _MovedModules) for finder in sys.meta_path):
        sys.meta_path.append(_MovedModules())

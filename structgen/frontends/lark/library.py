"""The files of a grammar: imports, and the definition of every name in its file."""

from __future__ import annotations

import itertools
from dataclasses import replace
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import PurePath
from typing import Final

from structgen.frontends.grammar_source import GrammarSource, read_source
from structgen.frontends.lark.definition import Definition, Import, Module, read_module
from structgen.grammar.limits import Limits

__all__ = ["Library", "builtin_texts"]

# Lark writes this terminal with a look-behind; its lexers find exactly these strings.
_REPLACED: Final = {"common": r'ESCAPED_STRING: /"([^"\\\n]|\\[^\n])*"/'}


class Library:
    """The main grammar and the files that it imports from, each read once."""

    def __init__(self, main: GrammarSource | Module, limits: Limits) -> None:
        """Read the main grammar, unless it is a ``Module`` already, and look up its imports.

        Raises:
            GrammarSyntaxError: a file is no Lark grammar, or an import leads to nothing.
            GrammarError: a file cannot be read.
            UnsupportedFeature: a statement is not supported.
            LimitExceeded: a file is too large or nested too deeply.
        """
        self._limits = limits
        self.main = main if isinstance(main, Module) else read_module(main, limits)
        self.modules: dict[object, Module] = {None: self.main}
        self._changed: dict[int, Definition] = {}  # by the definition that was overridden or extended
        self._settle()
        self._names: dict[tuple[int, str], str] = {}
        for alias in self.main.imports:  # a definition that is imported keeps the first name it gets
            found = self.find(self.main, alias)
            if found is not None:
                self._names.setdefault((id(found.module), found.name), alias)
        self._taken = {*self.main.definitions, *self.main.imports}

    def find(self, module: Module, name: str) -> Definition | None:
        """Return the definition of ``name`` in ``module``, None if there is none.

        Raises:
            GrammarSyntaxError: an import leads to no file, to no definition or in a circle.
        """
        found = self._written(module, name)
        return None if found is None else self._changed.get(id(found), found)

    def _written(self, module: Module, name: str) -> Definition | None:
        """Return the definition of ``name`` in ``module`` before ``%override`` and ``%extend``."""
        seen: set[tuple[int, str]] = set()
        while name not in module.definitions:
            statement = module.imports.get(name)
            if statement is None:
                return None
            span = (statement.position, statement.position + len(name))
            if (id(module), name) in seen:
                raise module.source.syntax_error(span, f"{name!r} is imported in a circle")
            seen.add((id(module), name))
            target = self._module(module, statement)
            if statement.name not in target.definitions and statement.name not in target.imports:
                raise module.source.syntax_error(
                    span,
                    f"{target.source.name} does not define {statement.name!r}",
                    f"it defines {_listed(list(target.definitions))}",
                )
            module, name = target, statement.name
        return module.definitions[name]

    def _settle(self) -> None:
        """Apply ``%override`` and ``%extend`` of the main grammar, for all references to the changed definitions.

        Raises:
            GrammarSyntaxError: the changed name is not defined before, or has other parameters.
        """
        for name, changes in self.main.changes.items():
            written = self._written(self.main, name)
            found = written and self._changed.get(id(written), written)
            further = [] if found is None else list(found.further)
            for made, is_extension in changes:
                span = made.span
                keyword = "%extend" if is_extension else "%override"
                if found is None or (found.module is self.main and found.position > made.position):
                    problem = f"{keyword} of {name!r}, which is not defined before"
                    raise self.main.source.syntax_error(span, problem, "define it, or import it under this name")
                if is_extension and len(found.parameters) != len(made.parameters):
                    raise self.main.source.syntax_error(
                        span, f"{keyword} of {name!r} with {len(made.parameters)} parameters",
                        f"it has {len(found.parameters)}",
                    )  # fmt: skip
                if is_extension:
                    further.append(made)
                else:
                    found, further = made, []
            if written is not None and found is not None:
                self._changed[id(written)] = replace(found, further=tuple(further))

    def name_of(self, definition: Definition) -> str:
        """Return the name of a definition in the whole grammar: its own, or ``file__name`` in an imported file."""
        if definition.module is self.main:
            return definition.name
        key = (id(definition.module), definition.name)
        if key not in self._names:
            wish = name = f"{PurePath(definition.module.source.name).stem}__{definition.name}"
            count = 1
            while name in self._taken:
                count += 1
                name = f"{wish}_{count}"
            self._taken.add(name)
            self._names[key] = name
        return self._names[key]

    def _module(self, module: Module, statement: Import) -> Module:
        source = module.source
        if statement.is_relative and not source.is_builtin:
            if source.folder is None:
                raise source.syntax_error(
                    (statement.position, statement.position + 1),
                    "a relative import in a grammar without a path",
                    "pass path=..., or load the grammar from its file",
                )
            path = source.folder.joinpath(*statement.path[:-1], f"{statement.path[-1]}.lark")
            key: object = path.resolve()
            if key not in self.modules:
                self.modules[key] = self._imported(read_source(path, self._limits, is_imported=True))
        else:
            key = statement.path
            if key not in self.modules:
                self.modules[key] = self._builtin(source, statement)
        return self.modules[key]

    def _imported(self, source: GrammarSource) -> Module:
        module = read_module(source, self._limits)
        for made, is_extension in itertools.chain.from_iterable(module.changes.values()):
            keyword = "%extend" if is_extension else "%override"
            raise source.refused(
                made.position, keyword, f"{keyword} in an imported file is not supported",
                "write it in the file that imports both",
            )  # fmt: skip
        return module

    def _builtin(self, source: GrammarSource, statement: Import) -> Module:
        name = ".".join(statement.path)
        texts = builtin_texts(*statement.path)
        if texts is None:
            folder = _builtin_folder()
            known = sorted(entry.name.removesuffix(".lark") for entry in folder.iterdir() if ".lark" in entry.name)
            raise source.syntax_error(
                (statement.position, statement.position + 1),
                f"Lark has no grammar called {name!r}",
                f"import from {_listed(known)}, or write %import .{name}.NAME for a file beside this one",
            )
        module, *others = (
            read_module(GrammarSource(text, name, is_imported=True, is_builtin=True), self._limits) for text in texts
        )
        for other in others:
            module.definitions |= other.definitions
        return module


def builtin_texts(*path: str) -> list[str] | None:
    """Return the texts of a file of Lark's library; later texts replace definitions of earlier ones."""
    file = _builtin_folder().joinpath(*path[:-1], f"{path[-1]}.lark")
    if not file.is_file():
        return None
    texts = [file.read_text("utf-8")]
    replaced = _REPLACED.get(".".join(path))
    return texts if replaced is None else [*texts, replaced]


def _builtin_folder() -> Traversable:
    return resources.files("lark").joinpath("grammars")


def _listed(names: list[str]) -> str:
    shown = ", ".join(names[:8])
    return f"{shown} and {len(names) - 8} more" if len(names) > 8 else shown

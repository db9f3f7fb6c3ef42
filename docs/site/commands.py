"""The reference of the command line, made from the commands themselves."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator

import click
from pages import Page

from structgen.cli.command import Command
from structgen.cli.main import cli

__all__ = ["pages"]


def pages() -> Iterator[Page]:
    """One page with all commands and options."""
    lines = [
        "# Commands and options",
        "",
        "Every command with all of its options, as `structgen COMMAND --help` lists them."
        " [The command line](../cli.md) explains what the commands write, and has examples.",
        "",
        "| command | what it does |",
        "| --- | --- |",
    ]
    commands = list(_commands(cli, click.Context(cli, info_name="structgen"), "structgen"))
    lines += [
        f"| [`{path}`](#{_anchor(path)}) | {_cell(command.get_short_help_str(1000))} |" for path, command, _ in commands
    ]
    for path, command, context in commands:
        lines += ["", *_section(path, command, context)]
    yield Page("reference/api/commands.md", "\n".join(lines) + "\n")


def _commands(
    group: click.Group, context: click.Context, path: str
) -> Iterator[tuple[str, click.Command, click.Context]]:
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if command is None or command.hidden:
            continue
        inner = click.Context(command, info_name=name, parent=context)
        if isinstance(command, click.Group):
            yield from _commands(command, inner, f"{path} {name}")
        else:
            yield f"{path} {name}", command, inner


def _anchor(path: str) -> str:
    return path.replace(" ", "-")


def _cell(text: str) -> str:
    return re.sub(r"\s+", " ", text).replace("|", "\\|").replace("<", "&lt;")


def _section(path: str, command: click.Command, context: click.Context) -> Iterator[str]:
    yield f"## {path} {{ #{_anchor(path)} }}"
    yield ""
    yield f"```text\n{path} {' '.join(command.collect_usage_pieces(context))}\n```"
    for paragraph in inspect.cleandoc(command.help or "").replace("\b\n", "").split("\n\n"):
        yield ""
        yield " ".join(paragraph.split())
    for heading, rows in _options(command, context).items():
        yield ""
        yield f"**{heading}**"
        yield ""
        yield "| option | meaning |"
        yield "| --- | --- |"
        for names, meaning in rows:
            yield f"| {', '.join(f'`{name.strip()}`' for name in names.split(', '))} | {_cell(meaning)} |".replace(
                "`|", "`\\|"
            )
    examples = getattr(command, "examples", ())
    if examples:
        yield ""
        yield "```text"
        yield from examples
        yield "```"


def _options(command: click.Command, context: click.Context) -> dict[str, list[tuple[str, str]]]:
    """Names and meanings by the heading of the help."""
    groups = command.groups if isinstance(command, Command) else {}
    heading_of = {name: heading for heading, names in groups.items() for name in names}
    rows: dict[str, list[tuple[str, str]]] = {heading: [] for heading in groups}
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context) if isinstance(parameter, click.Option) else None
        if record is not None:
            rows.setdefault(heading_of.get(parameter.name or "", "Options"), []).append(record)
    return {heading: held for heading, held in rows.items() if held}

"""Build the site of the documentation: ``python docs/site/build.py [FOLDER]``; FOLDER is ``build/site`` by default.

The pages of ``docs``, what they link to, and the reference, which is made of docstrings and of the command line, are
staged as Markdown; Zensical makes HTML of them.  Beside each page lies its Markdown, and ``llms.txt`` lists all.
The playground is part of the site where ``make playground`` has built it.
The map of the pages is ``docs/index.md``: its headings are the sections of the site, its lists the pages in order, with
the names that they have in the navigation.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any, Final

import api
import commands
from pages import CHECKOUT, Page, Site

FOLDER: Final = Path(__file__).resolve().parent
STAGED: Final = CHECKOUT / "build" / "docs"
PLAYGROUND: Final = CHECKOUT / "build" / "playground" / "index.html"


def generated() -> list[Page]:
    """The pages that nobody writes."""
    return [*api.pages(), *commands.pages()]


def navigation(site: Site) -> list[Any]:
    """The map of ``docs/index.md`` as Zensical takes it: sections, their parts, and pages by title."""
    entries: list[Any] = [{"Home": "index.md"}]
    places: list[list[Any]] = [entries]
    for line in site.pages["index.md"].text.splitlines():
        if heading := re.match(r"(##+) (.+)", line):
            depth = len(heading[1]) - 1
            places[depth:] = [[]]
            places[depth - 1].append({heading[2]: places[depth]})
        elif entry := re.match(r"- \[([^\]]+)\]\(([^)#]+)\)", line):
            is_number = entry[1].isdigit()  # of a decision
            places[-1].append({site.pages[entry[2]].title if is_number else entry[1]: entry[2]})
    return [entry for entry in entries if next(iter(entry.values()))]


def settings(site: Site) -> dict[str, Any]:
    """The settings of Zensical: those of ``zensical.toml``, the folders and the map."""
    project = tomllib.loads((FOLDER / "zensical.toml").read_text(encoding="utf-8"))["project"]
    return {"project": {**project, "docs_dir": "pages", "site_dir": "site", "nav": navigation(site)}}


def written(value: Any) -> str:
    """A value in TOML, in one line."""
    match value:
        case bool():
            return "true" if value else "false"
        case dict():
            return "{" + ", ".join(f"{written(name)} = {written(each)}" for name, each in value.items()) + "}"
        case list():
            return "[" + ", ".join(map(written, value)) + "]"
        case str():
            return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
        case _:
            return str(value)


def index_for_machines(site: Site) -> str:
    """The text of ``llms.txt``: what structgen is, and all pages of the map, with what each is about.

    Source: https://llmstxt.org
    """
    _, about, rest = site.pages["index.md"].text.split("\n\n", 2)
    _, sections = re.split(r"^(?=## )", rest, maxsplit=1, flags=re.MULTILINE)
    return f"# structgen\n\n> {about}\n\n{sections}"


def build(target: Path) -> None:
    """Write the site to a folder, which is emptied before."""
    has_playground = PLAYGROUND.is_file()
    site = Site("playground/index.html" if has_playground else None)
    site.add(*generated())
    site.read_docs()
    shutil.rmtree(STAGED, ignore_errors=True)
    shutil.rmtree(target, ignore_errors=True)
    site.stage(STAGED / "pages")
    shutil.copytree(FOLDER / "assets", STAGED / "pages" / "assets", dirs_exist_ok=True)
    if has_playground:
        (STAGED / "pages" / "playground").mkdir()
        shutil.copyfile(PLAYGROUND, STAGED / "pages" / "playground" / "index.html")
    lines = [f"{name} = {written(value)}" for name, value in settings(site)["project"].items()]
    (STAGED / "zensical.toml").write_text("\n".join(["[project]", *lines, ""]), encoding="utf-8")
    command = [sys.executable, "-m", "zensical", "build", "--strict", "--config-file", str(STAGED / "zensical.toml")]
    subprocess.run(command, check=True, cwd=STAGED)
    shutil.move(STAGED / "site", target)
    for path, page in site.pages.items():
        (target / path).write_text(page.markdown, encoding="utf-8")
    (target / "llms.txt").write_text(index_for_machines(site), encoding="utf-8")
    if not has_playground:
        sys.stdout.write("The playground is left out; to build it, with emscripten: `make playground docs`.\n")


if __name__ == "__main__":
    reader = argparse.ArgumentParser(description="Build the site of the documentation.")
    reader.add_argument("folder", nargs="?", type=Path, default=CHECKOUT / "build" / "site", help="emptied before")
    build(reader.parse_args().folder.resolve())

"""What README and the pages say is there: imports, paths, links, commands, tables, pictures, kernels, figures.

Each guard takes the documentation and yields what is wrong with it; that each finds its kind of error is shown by
planting one.
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import importlib.util
import io
import itertools
import json
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import PurePosixPath
from statistics import fmean
from types import ModuleType
from typing import Any

import pytest

import bench.cli.main
import mltcp.cli.main
import placement.cli.main
from mltcp.core.errors import UsageError
from tests.unit.docs.pages import (
    FOLDERS,
    PACKAGES,
    ROOT,
    Page,
    anchor,
    commands,
    files_of_the_tree,
    pages,
    python_sources,
)

PROGRAMS = {"mltcp": mltcp.cli.main, "mltcp-bench": bench.cli.main, "mltcp-placement": placement.cli.main}


@dataclass(frozen=True)
class Documentation:
    """The pages by path, the files of the repository, and the documents of ``docs/results`` by path."""

    pages: Mapping[str, Page]
    files: frozenset[str]
    results: Mapping[str, Any]

    def with_text(self, path: str, old: str, new: str) -> Documentation:
        """The same with the first `old` of a page replaced."""
        text = self.pages[path].text
        assert old in text, f"{path}: {old}"
        return replace(self, pages={**self.pages, path: Page(path, text.replace(old, new, 1))})


@cache
def documentation() -> Documentation:
    results = {
        f"docs/results/{path.name}": json.loads(path.read_text()) for path in ROOT.glob("docs/results/*.json")
    }
    return Documentation(pages(), files_of_the_tree(), results)


def imports_that_fail(docs: Documentation) -> Iterator[str]:
    """Imports, attributes of imported modules, and calls of what is imported, in Python code."""
    for page in docs.pages.values():
        for line, block in page.blocks:
            for source in python_sources(block):
                yield from (f"{page.path}:{line}: {error}" for error in _errors_of_python(source))


def _errors_of_python(source: str) -> Iterator[str]:
    try:
        tree = ast.parse(source)
    except SyntaxError as error:
        yield f"no Python: {error}"
        return
    names: dict[str, Any] = {}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Import | ast.ImportFrom):
            continue
        for alias in node.names:
            try:
                module = importlib.import_module(
                    node.module if isinstance(node, ast.ImportFrom) else alias.name
                )
                value = _member(module, alias.name) if isinstance(node, ast.ImportFrom) else module
            except (ImportError, AttributeError) as error:
                yield str(error)
                continue
            names[alias.asname or alias.name] = value
    for node in ast.walk(tree):
        name = node.func.id if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) else None
        if name in names and not callable(names[name]):
            yield f"{name} is called, and is {names[name]!r}"
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            module = names.get(node.value.id)
            if isinstance(module, ModuleType) and not hasattr(module, node.attr):
                yield f"{module.__name__} has no {node.attr}"


def _member(module: ModuleType, name: str) -> Any:
    try:
        return getattr(module, name)
    except AttributeError:
        return importlib.import_module(f"{module.__name__}.{name}")


_SOURCE = r"\.(?:py|c|h|lua|proto|service)"
# Programs of the reader, a file of the kernel's, environments of gymnasium and a package of the protocol.
_NOT_OF_THE_TREE = {
    *("train.py", "vmlinux.h", "mltcp.placement.v1"),
    *("placement/Contention-v0", "placement/PublishedContention-v0"),
}


def paths_that_are_not_there(docs: Documentation) -> Iterator[str]:
    """Paths from a folder of the repository anywhere, names of source files and dotted modules in ``code``."""
    tops = "|".join(re.escape(folder) for folder in FOLDERS)
    endings = {path[start:] for path in docs.files for start in _starts(path)}
    for page in docs.pages.values():
        for line, text, code in page.lines:
            named = re.findall(rf"(?<![\w/.$@:-])(?:{tops})/[\w./*-]*\w", text)
            if not code:
                quoted = re.findall(r"`([^`\s]+)`", text)
                named += [
                    word.split("::")[0] for word in quoted if re.fullmatch(rf"[\w./*-]+{_SOURCE}", word)
                ]
                named += [
                    word for word in quoted if re.fullmatch(rf"(?:{'|'.join(PACKAGES)})(?:\.\w+)+", word)
                ]
            for name in named:
                if name.startswith("/"):  # a file of the host
                    continue
                if name not in endings | _NOT_OF_THE_TREE and not _is_glob_or_module(name):
                    yield f"{page.path}:{line}: {name} is not there"


def _starts(path: str) -> Iterator[int]:
    yield 0
    yield from (found.end() for found in re.finditer("/", path))


def _is_glob_or_module(name: str) -> bool:
    if "*" in name:
        return any(ROOT.glob(name)) or any(ROOT.glob(f"*/{name}"))
    if "/" in name or name.split(".")[0] not in PACKAGES:
        return False
    module, _, attribute = name.rpartition(".")
    with contextlib.suppress(ImportError, AttributeError):
        return bool(_member(importlib.import_module(module), attribute) or True)
    return False


def links_that_are_dead(docs: Documentation) -> Iterator[str]:
    """Relative links to a file, and their anchors."""
    for page in docs.pages.values():
        text = "\n".join(line for _, line in page.prose)
        for target in re.findall(r"\]\(([^)\s]+)\)", text):
            if "://" in target or target.startswith("mailto:"):
                continue
            path, _, name = target.partition("#")
            linked = _normal(page.folder / path) if path else page.path
            if linked not in docs.files:
                yield f"{page.path}: {target}: no such file"
            elif name and linked in docs.pages and name not in docs.pages[linked].anchors:
                yield f"{page.path}: {target}: no such heading"


def _normal(path: PurePosixPath) -> str:
    parts: list[str] = []
    for part in path.parts:
        if part == ".." and parts:
            parts.pop()
        else:
            parts.append(part)
    return "/".join(parts)


def commands_that_are_refused(docs: Documentation) -> Iterator[str]:
    """Command lines in code that the program's own parser refuses, and scripts and modules that are not there."""
    for page in docs.pages.values():
        for line, block in page.blocks:
            for command in commands(block):
                if error := _error_of(command, docs):
                    yield f"{page.path}:{line}: {' '.join(command)}: {error}"
        for line, text in page.prose:
            for quoted in re.findall(r"`((?:mltcp|mltcp-bench|mltcp-placement|pip) [^`]+)`", text):
                if error := _error_of_part(next(commands(quoted), [])):
                    yield f"{page.path}:{line}: {quoted}: {error}"


def _error_of(command: list[str], docs: Documentation) -> str | None:
    program, *arguments = command
    program = re.sub(r".*/bin/", "", program)
    if "--" in arguments[:-1] and (error := _error_of(arguments[arguments.index("--") + 1 :], docs)):
        return error
    if program in PROGRAMS:
        return _refusal(program, tuple(arguments))
    if program.startswith("script/"):
        if program not in docs.files:
            return "no such script"
        options = [word for word in arguments if word.startswith("--")]
        return next(
            (f"{word} is not in it" for word in options if word not in (ROOT / program).read_text()), None
        )
    if program == "pip":
        return _error_of_pip(arguments)
    if program in ("python", "torchrun") and "-m" in arguments:
        return _error_of_module(arguments[arguments.index("-m") + 1 :])
    return None


def _error_of_pip(arguments: list[str]) -> str | None:
    """An extra that there is not, or this project by its name, which no index has: it is a clone or a wheel."""
    known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    extras = [
        extra
        for word in arguments
        for found in re.findall(r"\[([\w,]+)\]", word)
        for extra in found.split(",")
    ]
    if any(re.fullmatch(r"mltcp(\[[\w,]+\])?", word) for word in arguments):
        return "no index has it"
    return next((f"no extra {extra}" for extra in extras if extra not in known), None)


def _error_of_module(arguments: list[str]) -> str | None:
    name, *rest = arguments
    if name.split(".")[0] not in (*PACKAGES, "docs", "tests"):
        return None
    specification = importlib.util.find_spec(name)
    if specification is None:
        return f"no module {name}"
    source = "".join(path.read_text() for path in (ROOT / name.replace(".", "/")).parent.rglob("*.py"))
    return next(
        (f"{word} is not in it" for word in rest if word.startswith("--") and word not in source), None
    )


@cache
def _refusal(program: str, arguments: tuple[str, ...]) -> str | None:
    output = io.StringIO()
    try:
        with contextlib.redirect_stderr(output), contextlib.redirect_stdout(output):
            PROGRAMS[program].parse(arguments)
    except UsageError as error:
        return str(error)
    except SystemExit as end:
        return output.getvalue().strip().split("\n")[-1] if end.code else None
    return None


def _error_of_part(command: list[str]) -> str | None:
    """What is wrong with a command that is quoted in a sentence, where arguments may be left out."""
    program, *arguments = command or ["mltcp"]
    if program == "pip":
        return _error_of_pip(arguments)
    names = [each.name for each in PROGRAMS[program].SUBCOMMANDS]
    if not arguments or arguments[0].startswith("-") or arguments[0] == "--help":
        return None
    if arguments[0] not in names:
        return f"{arguments[0]} is none of {', '.join(names)}"
    before = arguments[: arguments.index("--")] if "--" in arguments else arguments
    helps = _help(
        program,
        tuple(itertools.takewhile(lambda word: re.fullmatch(r"[a-z-]+", word) and word[0] != "-", before)),
    )
    options = {word for word in before[1:] if word.startswith("--")}
    return next((f"no option {word}" for word in options if not re.search(rf"{word}\b", helps)), None)


@cache
def _help(program: str, words: tuple[str, ...]) -> str:
    """What ``--help`` prints of a command, and of the commands within it that its words name."""
    output = io.StringIO()
    kinds = ("contest", "jobs", "contention") if (program, words) == ("mltcp-bench", ("compare",)) else ()
    for line in (words[:1], words, *((*words, kind) for kind in kinds)):
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(io.StringIO()):
            with contextlib.suppress(SystemExit, UsageError):
                PROGRAMS[program].parse([*line, "--help"])
    return output.getvalue()


def tables_that_are_broken(docs: Documentation) -> Iterator[str]:
    """Rows with more or fewer cells than their header, rows without a header, and tables that are one line."""
    for page in docs.pages.values():
        headers = {table.line for table in page.tables}
        before = ""
        for line, text in page.prose:
            if "|---" in text and not re.fullmatch(r"\s*\|(\s*:?-+:?\s*\|)+", text):
                yield f"{page.path}:{line}: a table within a line"
            elif (
                text.lstrip().startswith("|") and not before.lstrip().startswith("|") and line not in headers
            ):
                yield f"{page.path}:{line}: a row without a table"
            before = text
        for table in page.tables:
            if not all(re.fullmatch(r":?-+:?", cell) for cell in table.rule):
                yield f"{page.path}:{table.line}: a table without a rule below its header"
            for number, row in enumerate((table.rule, *table.rows), table.line + 1):
                if len(row) != len(table.columns):
                    yield f"{page.path}:{number}: {len(row)} cells, and {len(table.columns)} columns"


DEMO = "docs/pictures/demo.png"  # link_use.png of script/demo


def pictures_that_nothing_shows_or_makes(docs: Documentation) -> Iterator[str]:
    """Pictures that no page shows, and pictures whose name no command of the page that shows them writes."""
    shown: dict[str, list[Page]] = {}
    for page in docs.pages.values():
        for target in re.findall(r"\]\(([^)\s]+\.(?:png|svg))\)", page.text):
            shown.setdefault(_normal(page.folder / target), []).append(page)
    written = _names_of_pictures_in_the_sources()
    for picture in sorted(path for path in docs.files if path.startswith("docs/pictures/") and "." in path):
        name = PurePosixPath(picture).name
        if picture not in shown:
            yield f"{picture}: no page shows it"
        elif picture != DEMO and not re.fullmatch(written, name):
            blocks = [block for page in shown[picture] for _, block in page.blocks]
            if not any(re.search(rf"[\s/]{re.escape(name)}\b", block) for block in blocks):
                yield f"{picture}: no command of {', '.join(page.path for page in shown[picture])} writes this name"


@cache
def _names_of_pictures_in_the_sources() -> str:
    """A pattern of the file names that the programs give their pictures."""
    names = set()
    for path in (path for folder in ("bench", "placement", "docs") for path in (ROOT / folder).rglob("*.py")):
        source = path.read_text()
        for node in ast.walk(ast.parse(source)) if ".svg" in source or ".png" in source else ():
            if isinstance(node, ast.JoinedStr):
                parts = [part.value if isinstance(part, ast.Constant) else None for part in node.values]
                if parts[0] and str(parts[-1]).endswith((".svg", ".png")):
                    names.add("".join(re.escape(str(part)) if part else ".+" for part in parts))
            elif isinstance(node, ast.Constant) and re.fullmatch(r"[\w-]+\.(svg|png)", str(node.value)):
                names.add(re.escape(node.value))
            elif (
                isinstance(node, ast.Constant)
                and path.name == "plots.py"
                and re.fullmatch(r"[a-z_]{4,}", str(node.value))
            ):
                names.add(rf"(?:[\w.]+-)?{node.value}\.png")
    return "|".join(sorted(names))


def pictures_that_are_others(docs: Documentation) -> Iterator[str]:
    """SVG files that write the same words: one is a copy of the other."""
    words: dict[tuple[str, ...], str] = {}
    for picture in sorted(path for path in docs.files if path.endswith(".svg")):
        text = tuple(re.findall(r"<!-- (.*?) -->", (ROOT / picture).read_text()))
        if text in words:
            yield f"{picture} and {words[text]} are the same picture"
        words[text] = picture


def kernels_that_were_not_tried(docs: Documentation) -> Iterator[str]:
    """Kernels of README that are in no table of kernels."""
    tried = {
        version
        for page in docs.pages.values()
        for table in page.tables
        for row in table.rows
        for column, cell in zip(table.columns, row, strict=False)
        if re.search(r"linux|kernel", column, re.IGNORECASE)
        for version in re.findall(r"\b\d+\.\d+", cell)
    }
    for paragraph in re.split(r"\n\s*\n", docs.pages["README.md"].text):
        if re.search(r"\bLinux\b|\bkernels?\b", paragraph):
            for version in re.findall(
                r"(?<![\d.,])[4-7]\.\d{1,2}(?=\.\d+\b|\b)(?! ?(?:%|x\b|Gbit|Mbit|m?s\b|us\b))", paragraph
            ):
                if version not in tried:
                    yield f"README.md: Linux {version} is in no table of kernels"


def results_that_differ(docs: Documentation) -> Iterator[str]:
    """Documents of ``docs/results`` that differ from the tables of their page."""
    for path, document in docs.results.items():
        yield from (f"{path}: {error}" for error in _differences(document, docs.pages[document["page"]]))
        for table in document["tables"]:
            values = [value for row in table["rows"] for value in row[1:]]
            for policy, runs in table.get("runs", {}).items():
                if not any(abs(fmean(runs) - value) < 0.01 for value in values):
                    yield f"{path}: no value of {table['section']!r} is the mean of the runs of {policy}"


def figures_without_a_source(docs: Documentation) -> Iterator[str]:
    """Rows of README's results whose figures are not together in a column or a row of a table of ``docs/results``.

    The table is one of the page and section that the row links. Where README names a column of it, such as *second
    half*, the figures are in that column.
    """
    by_page = {document["page"]: document for document in docs.results.values()}
    readme = docs.pages["README.md"]
    for table in readme.tables:
        if not table.section.startswith("Results"):
            continue
        text = readme.text.partition(f"## {table.section}\n")[2].partition("\n## ")[0]
        for row in table.rows:
            links = re.findall(r"\]\(([^)#\s]+\.md)(?:#([\w-]+))?\)", " ".join(row))
            lines = [line for page, name in links for line in _lines(by_page.get(page), name, text)]
            figures = [figure for cell in row[1:] if "](" not in cell for figure in _figures(cell)]
            if not any(
                all(any(_is_rounded(each, value) for value in line) for each in figures) for line in lines
            ):
                yield f"README.md: {row[0]}: {', '.join(figures)} are not in one line of docs/results for {links}"


_NUMBER = re.compile(r"(?<![\w.@-])-?(?:\d[\d,]*\.?\d*|\.\d+)")


def _figures(cell: str) -> list[str]:
    """The numbers of a cell, but for those in names and in ranges in brackets."""
    without = re.sub(r"`[^`]*`|\([^()]*(?:\.\.|,)[^()]*\)", "", cell.replace("**", ""))
    return [number.strip("-").rstrip(",.") for number in _NUMBER.findall(without)]


def _is_rounded(figure: str, value: float) -> bool:
    plain = figure.replace(",", "")
    half = 0.5000001 * 10 ** -len(plain.partition(".")[2])
    return any(abs(float(plain) - each) <= half for each in (value, 100 * value))


def _lines(document: Any, name: str, text: str) -> Iterator[list[float]]:
    """The values of each column and row of a page's tables, or of those of one section if it is named."""
    for table in (document or {"tables": []})["tables"]:
        if name and anchor(table["section"]) != name:
            continue
        columns = table["columns"]
        values = [[_values(cell) for cell in row] for row in table["rows"]]
        meant = [at for at, column in enumerate(columns) if at and len(column) > 5 and column in text]
        for at in meant or range(1, len(columns)):
            yield [value for row in values for value in row[at]]
        if not meant:
            yield from ([value for cell in row[1:] for value in cell] for row in values)


def _values(cell: str | float) -> list[float]:
    return [float(each.replace(",", "")) for each in _figures(cell)] if isinstance(cell, str) else [abs(cell)]


def _differences(document: Any, page: Page) -> Iterator[str]:
    """Tables of a document that its page does not have: equal in text, or values that the page's row rounds."""
    for table in document["tables"]:
        named = [each for each in page.tables if each.section == table["section"]]
        if table["source"] == "table":
            rows = tuple(tuple(row) for row in table["rows"])
            if not any(each.columns == tuple(table["columns"]) and each.rows == rows for each in named):
                yield f"{page.path} has another table in {table['section']!r}: {table['columns']}"
            continue
        for name, *values in table["rows"]:
            start = re.compile(rf"[|\s`*]*{re.escape(name)}[\s`*|]")
            line = " ".join(line for line in page.text.splitlines() if start.match(line))
            figures = _figures(re.sub(r"`|(?<=\d) (?=\d{3}\b)", "", line))
            for column, value in zip(table["columns"][1:], values, strict=True):
                if not any(_is_rounded(figure, abs(value)) for figure in figures):
                    yield f"{page.path}: no line of {name} has its {column}, {value}"


GUARDS: tuple[Callable[[Documentation], Iterator[str]], ...] = (
    imports_that_fail,
    paths_that_are_not_there,
    links_that_are_dead,
    commands_that_are_refused,
    tables_that_are_broken,
    pictures_that_nothing_shows_or_makes,
    pictures_that_are_others,
    kernels_that_were_not_tried,
    results_that_differ,
    figures_without_a_source,
)


@pytest.mark.parametrize("guard", GUARDS, ids=lambda guard: guard.__name__)
def test_the_documentation_says_what_is_there(guard):
    assert list(guard(documentation())) == []


def _with_picture(docs: Documentation, name: str, shown_by: str | None = None) -> Documentation:
    """The same with another picture, shown at the end of a page or nowhere."""
    docs = replace(docs, files=docs.files | {f"docs/pictures/{name}"})
    if shown_by is None:
        return docs
    text = f"{docs.pages[shown_by].text}\n![A picture](pictures/{name})\n"
    return replace(docs, pages={**docs.pages, shown_by: Page(shown_by, text)})


def _with_row_in_readme(docs: Documentation, figure: str) -> Documentation:
    """The same with a row in README's first table of results that has this figure, of results.md."""
    table = next(table for table in docs.pages["README.md"].tables if table.section.startswith("Results"))
    row = ["planted", figure, *[""] * (len(table.columns) - 3), "[results](docs/results.md)"]
    lines = docs.pages["README.md"].text.split("\n")
    lines.insert(table.line + 1, f"| {' | '.join(row)} |")
    return replace(docs, pages={**docs.pages, "README.md": Page("README.md", "\n".join(lines))})


def _replaced(path: str, old: str, new: str) -> Callable[[Documentation], Documentation]:
    return lambda docs: docs.with_text(path, old, new)


PLANTED: tuple[
    tuple[Callable[[Documentation], Iterator[str]], Callable[[Documentation], Documentation], str], ...
] = (
    (
        imports_that_fail,
        _replaced(
            "docs/reproduction.md", "published.simulation import run", "published.simulation import simulate"
        ),
        "published.simulation.simulate",
    ),
    (
        imports_that_fail,
        _replaced(
            "docs/reproduction.md", "published.simulation import run", "published import simulation as run"
        ),
        "run is called",
    ),
    (
        imports_that_fail,
        _replaced("docs/backend.md", "collectives.profile()", "collectives.profiles()"),
        "no profiles",
    ),
    (
        paths_that_are_not_there,
        _replaced("CONTRIBUTING.md", "`tests/unit/bench/warm`", "`tests/unit/warm`"),
        "tests/unit/warm is not there",
    ),
    (
        paths_that_are_not_there,
        _replaced("docs/cassini.md", "# Cassini", "# Cassini\n`module.py`"),
        "module.py",
    ),
    (
        paths_that_are_not_there,
        _replaced("docs/elastic.md", "elastic_executor", "live_executor"),
        "live_executor",
    ),
    (links_that_are_dead, _replaced("docs/results.md", "(lab.md)", "(labs.md)"), "labs.md: no such file"),
    (
        links_that_are_dead,
        _replaced("docs/results.md", "ebpf.md#calls-that-do-not-happen", "ebpf.md#skipped"),
        "ebpf.md#skipped: no such heading",
    ),
    (commands_that_are_refused, _replaced("docs/results.md", "--perturb", "--disturb"), "--disturb"),
    (commands_that_are_refused, _replaced("docs/ebpf.md", "$ mltcp load", "$ mltcp register"), "'register'"),
    (commands_that_are_refused, _replaced("docs/hosts.md", "--set snapshot1", "--sets"), "--sets"),
    (commands_that_are_refused, _replaced("docs/security.md", "daemon --only", "daemon --just"), "--just"),
    (
        commands_that_are_refused,
        _replaced("docs/backend.md", "# script/conf", "# script/reconf"),
        "no such script",
    ),
    (
        commands_that_are_refused,
        _replaced("docs/theory.md", "docs.vary_theory", "docs.vary"),
        "no module docs.vary",
    ),
    (
        tables_that_are_broken,
        _replaced("docs/results-unlike-jobs.md", "|\n|---|---|---|---|\n", "| |---|---|---|---|\n"),
        "a table within a line",
    ),
    (tables_that_are_broken, _replaced("docs/slurm.md", "| the same |", ""), "2 cells, and 3 columns"),
    (pictures_that_nothing_shows_or_makes, lambda docs: _with_picture(docs, "links.png"), "no page shows it"),
    (
        pictures_that_nothing_shows_or_makes,
        lambda docs: _with_picture(docs, "async_sgd_figure7.svg", "docs/reproduction-async-sgd.md"),
        "writes this name",
    ),
    (
        pictures_that_are_others,
        lambda docs: _with_picture(docs, "../pictures/links.svg"),
        "are the same picture",
    ),
    (
        kernels_that_were_not_tried,
        _replaced("README.md", "# MLTCP\n", "# MLTCP\nLinux 5.99 was tried.\n"),
        "Linux 5.99",
    ),
    (figures_without_a_source, lambda docs: _with_row_in_readme(docs, "7.77"), "7.77"),
    (results_that_differ, _replaced("docs/results.md", "1.286", "1.296"), "has another table"),
)


@pytest.mark.parametrize(
    ("guard", "plant", "found"), PLANTED, ids=[f"{each[0].__name__}: {each[2]}" for each in PLANTED]
)
def test_a_planted_error_is_found(guard, plant, found):
    docs = documentation()
    planted = plant(docs)
    new = set(guard(planted)) - set(guard(docs))
    assert any(found in each for each in new), new

"""The pages of the documentation, taken apart: code blocks, command lines, tables, links and headings."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).parents[3]
PACKAGES = ("mltcp", "collectives", "placement", "bench")
FOLDERS = (*PACKAGES, "docs", "tests", "script", ".ci")


def files_of_the_tree() -> frozenset[str]:
    """Every file and folder of the repository that a page can name."""
    paths = [
        path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if "__pycache__" not in path.parts
    ]
    paths += [path for path in ROOT.iterdir() if path.is_file()] + [ROOT / folder for folder in FOLDERS]
    return frozenset(str(path.relative_to(ROOT)) for path in paths)


@dataclass(frozen=True)
class Table:
    """A table, as its cells are written; `line` is that of its header, `section` the heading above it."""

    line: int
    section: str
    columns: tuple[str, ...]
    rule: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Page:
    """One page by its path in the repository."""

    path: str
    text: str

    @property
    def folder(self) -> PurePosixPath:
        """The folder that the page's relative links start from."""
        return PurePosixPath(self.path).parent

    @cached_property
    def lines(self) -> list[tuple[int, str, bool]]:
        """Number, text and whether it is code, of every line; an indented block follows an empty line."""
        result, fenced, indented, before = [], False, False, ""
        for number, line in enumerate(self.text.splitlines(), 1):
            if line.startswith("```"):
                fenced, indented = not fenced, False
                result.append((number, "", False))
                before = ""
                continue
            starts = bool(re.match(r" {4,}\S", line)) and (not before.strip() or before.startswith("#"))
            indented = starts or (indented and (line.startswith("    ") or not line.strip()))
            code = fenced or (indented and not re.match(r" {4,}[*\d]", line))
            result.append((number, line if fenced else line[4:] if code else line, code))
            before = line
        return result

    @cached_property
    def blocks(self) -> list[tuple[int, str]]:
        """First line and text of every code block."""
        result: list[tuple[int, list[str]]] = []
        previous = False
        for number, line, code in self.lines:
            if code and not previous:
                result.append((number, []))
            if code:
                result[-1][1].append(line)
            previous = code
        return [(number, "\n".join(lines)) for number, lines in result]

    @cached_property
    def prose(self) -> list[tuple[int, str]]:
        """The lines that are not code."""
        return [(number, line) for number, line, code in self.lines if not code]

    @cached_property
    def anchors(self) -> frozenset[str]:
        """The anchors of the headings, as a forge makes them."""
        headings = [line.lstrip("#").strip().lower() for _, line in self.prose if re.match(r"#+ ", line)]
        return frozenset(anchor(heading) for heading in headings)

    @cached_property
    def tables(self) -> list[Table]:
        """The tables of the page; rows keep the number of cells that they have."""
        result: list[Table] = []
        section, rows = "", []
        for number, line in [*self.prose, (len(self.lines) + 1, "")]:
            if line.lstrip().startswith("|"):
                rows.append((number, cells(line)))
                continue
            if len(rows) > 1:
                result.append(
                    Table(rows[0][0], section, rows[0][1], rows[1][1], tuple(row for _, row in rows[2:]))
                )
            rows = []
            section = line.lstrip("#").strip() if re.match(r"#+ ", line) else section
        return result


def anchor(heading: str) -> str:
    """The anchor of a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def cells(line: str) -> tuple[str, ...]:
    """The cells of a row; a pipe in a cell is written with a backslash."""
    return tuple(
        cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip().removeprefix("|").removesuffix("|"))
    )


def pages() -> dict[str, Page]:
    """Every page of the documentation."""
    paths = [*ROOT.glob("*.md"), *sorted((ROOT / "docs").rglob("*.md"))]
    return {name: Page(name, path.read_text()) for path in paths for name in [str(path.relative_to(ROOT))]}


def python_sources(block: str) -> Iterator[str]:
    """The Python code of a block: all of it, a here-document's, or the argument of ``python -c``."""
    bodies = re.findall(r"<<'?END'?\n(.*?)\n\s*END\b", block, re.DOTALL)
    bodies += re.findall(r"python3? -c \"(.*?)\"", block, re.DOTALL)
    bodies += re.findall(r"python3? -c '(.*?)'", block, re.DOTALL)
    if re.match(r"(from|import) ", block):
        bodies.append(block)
    for body in bodies:
        yield re.sub(r"\$(\w+)", r"\1", body)


# A prompt, or a name of a host and a prompt.
_PROMPT = re.compile(r"\s*(?:[\w.-]+)?[$#] (?=\S)")
_WRAPPERS = {
    *("sudo", "do", "then", "while", "time", "nohup", "{", "(", "exec", "env"),
    *("taskset -c 1", "taskset -c 0", "sudo -E", "sudo -n"),
}


def commands(block: str) -> Iterator[list[str]]:
    """The words of every simple command in a block of shell commands, variables and substitutions filled in.

    Where the block has prompts, only lines with a prompt are commands, the others are what was printed.
    """
    block = re.sub(r"<<'?END'?\n.*?\n\s*END\b", "", block, flags=re.DOTALL)
    block = re.sub(r"python3? -c (['\"]).*?\1", "python -c CODE", block, flags=re.DOTALL)
    lines = re.sub(r"\$\(\([^)]*\)\)", "1", block.replace("\\\n", "")).split("\n")
    prompted = [line[found.end() :] for line in lines if (found := _PROMPT.match(line))]
    text = "\n".join(prompted or lines)
    while found := re.search(r"\$\(([^()]*)\)", text):
        text = f"{text[: found.start()]}1{text[found.end() :]}\n{found[1]}"
    variables: dict[str, str] = dict(re.findall(r"for (\w+) in ([^\s;]+)", text))
    for line in text.split("\n"):
        yield from _simple_commands(line, variables)


def _simple_commands(line: str, variables: dict[str, str]) -> Iterator[list[str]]:
    lexer = shlex.shlex(line, posix=True, punctuation_chars=";&|()<>")
    lexer.commenters, lexer.whitespace_split = "#", True
    try:
        parts = list(lexer)
    except ValueError:  # a quotation that ends on another line: what is printed, not typed
        return
    command: list[str] = []
    for word in [*parts, ";"]:
        if not set(word) <= set(";&|()"):
            command.append(word)
            continue
        while command and (command[0] in _WRAPPERS or re.match(r"\w+=", command[0])):
            name, _, value = command[0].partition("=")
            variables |= {name: value} if value else {}
            del command[0]
        for wrapper in (each.split() for each in _WRAPPERS if " " in each):
            if command[: len(wrapper)] == wrapper:
                del command[: len(wrapper)]
        if words := [filled(word, variables) for word in without_redirections(command)]:
            yield words
        command = []


def without_redirections(words: list[str]) -> list[str]:
    """A command's words without what follows ``<`` and ``>``, and without an ellipsis."""
    result: list[str] = []
    skip = False
    for word in words:
        if set(word) <= set("<>&"):
            skip = True
        elif not skip and word != "...":
            result.append(word)
        else:
            skip = False
    return result


def filled(word: str, variables: Mapping[str, str]) -> str:
    """A word with its variables' values and the first of each set of braces."""
    word = re.sub(r"\$\{?(\w+)\}?", lambda found: variables.get(found[1], "VALUE"), word)
    return re.sub(r"\{([^{},]+),[^{}]*\}", r"\1", word)

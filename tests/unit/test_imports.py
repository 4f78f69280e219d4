"""Who of the four packages may import whom, read from the sources and seen in a fresh process."""

import ast
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = frozenset({"mltcp", "collectives", "placement", "bench"})


@dataclass(frozen=True)
class Import:
    """One imported module, by its full name, and where."""

    module: str
    line: int
    lazy: bool


@dataclass(frozen=True)
class Rule:
    """What a package may import of this project, what only inside functions, and what it never may."""

    project: frozenset[str]
    lazily: frozenset[str] = frozenset()
    never: frozenset[str] = frozenset()


RULES = {
    "mltcp": Rule(frozenset({"mltcp"}), never=frozenset({"torch", "grpc", "numpy", "matplotlib"})),
    "collectives": Rule(frozenset({"collectives", "mltcp"}), lazily=frozenset({"placement.client.client"})),
    "placement": Rule(frozenset({"placement"}), never=frozenset({"torch"})),
    "bench": Rule(PACKAGES),
}


def imports_of(source, package):
    """Every import in the source of a module of that package; ``from a import b`` counts as ``a.b``."""
    found = []

    def visit(node, lazy):
        if isinstance(node, ast.Import):
            found.extend(Import(alias.name, node.lineno, lazy) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parts = package.split(".")
            above = parts[: len(parts) - node.level + 1] if node.level else []
            module = ".".join([*above, *([node.module] if node.module else [])])
            found.extend(Import(f"{module}.{alias.name}", node.lineno, lazy) for alias in node.names)
        lazy = lazy or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for child in ast.iter_child_nodes(node):
            visit(child, lazy)

    visit(ast.parse(source), lazy=False)
    return found


def lies_in(module, packages):
    return any(module == package or module.startswith(f"{package}.") for package in packages)


def violations(source, package):
    rule = RULES[package.split(".")[0]]
    for found in imports_of(source, package):
        allowed = rule.project | rule.lazily if found.lazy else rule.project
        if lies_in(found.module, rule.never) or (
            lies_in(found.module, PACKAGES) and not lies_in(found.module, allowed)
        ):
            yield f"line {found.line}: {package} may not import {found.module} here"


@pytest.mark.parametrize("package", sorted(PACKAGES))
def test_package_keeps_to_its_imports(package):
    paths = sorted((ROOT / package).rglob("*.py"))
    assert paths
    broken = [
        f"{path.relative_to(ROOT)}: {each}"
        for path in paths
        for each in violations(path.read_text(), ".".join(path.relative_to(ROOT).parts[:-1]))
    ]
    assert not broken


@pytest.mark.parametrize(
    ("package", "source"),
    [
        ("mltcp", "import torch.distributed"),
        ("mltcp", "def f():\n    from torch import nn"),
        ("mltcp.ebpf", "from grpc import aio"),
        ("mltcp.daemon", "import bench.compare.contend_plots"),
        ("mltcp", "from bench import plots"),
        ("mltcp", "import os, placement"),
        ("collectives", "from placement import client"),
        ("collectives", "def f():\n    from placement import simulator"),
        ("collectives", "from bench.lab import hosts"),
        ("placement.policies", "import torch"),
        ("placement", "if True:\n    from mltcp import errors"),
    ],
)
def test_forbidden_import_is_found(package, source):
    assert list(violations(source, package))


@pytest.mark.parametrize(
    ("package", "source"),
    [
        ("mltcp", "import os\nfrom mltcp.core.errors import UsageError"),
        ("mltcp.ebpf", "from . import layout\nfrom ..errors import UsageError"),
        ("mltcp", "import torchlike\nimport benchmark"),
        ("collectives", "import torch\nfrom mltcp import iteration"),
        ("collectives", "def f():\n    from placement.client.client import Client"),
        ("placement", "import grpc\nfrom placement.policies import x"),
        ("bench", "import torch, mltcp, collectives, placement, bench.compare.contend_plots"),
    ],
)
def test_allowed_import_is_passed(package, source):
    assert not list(violations(source, package))


def test_relative_imports_are_resolved():
    source = "from . import a\nfrom .b import c\nfrom ..d import e"
    assert [found.module for found in imports_of(source, "mltcp.ebpf")] == [
        "mltcp.ebpf.a",
        "mltcp.ebpf.b.c",
        "mltcp.d.e",
    ]


def test_mltcp_brings_none_of_the_heavy_packages_with_it():
    script = (
        "import importlib, pkgutil, sys, mltcp\n"
        "for module in pkgutil.walk_packages(mltcp.__path__, 'mltcp.'):\n"
        "    if not module.name.endswith('__main__'):\n"
        "        importlib.import_module(module.name)\n"
        "heavy = {'torch', 'grpc', 'numpy', 'matplotlib', 'bench', 'collectives', 'placement'}\n"
        "print(*sorted(heavy & set(sys.modules)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == []

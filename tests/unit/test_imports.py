"""The imports allowed between packages and sub-packages, read from the sources; and no cycles between files."""

import ast
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from placement.policies.schedulers.contention.rounds_scheduler import RoundsScheduler
from placement.policies.schedulers.contention.rule import RULES as ROUNDS_RULES
from placement.policies.schedulers.deadlines.rules import RULES as DEADLINE_RULES
from placement.policies.schedulers.deadlines.scheduler import DeadlineScheduler
from placement.policies.schedulers.registry import SCHEDULERS, named_scheduler
from placement.policies.schedulers.response.catalogue import RESPONSE_SCHEDULERS, JsqChunk, ResponseScheduler

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("mltcp", "collectives", "placement", "bench")


@dataclass(frozen=True)
class Import:
    """One imported name, dotted, and where; `lazy` inside a function."""

    module: str
    line: int
    lazy: bool


@dataclass(frozen=True)
class Rule:
    """The imports of this project that a package may make anywhere, inside functions only, and never."""

    project: frozenset[str]
    lazily: frozenset[str] = frozenset()
    never: frozenset[str] = frozenset()


RULES = {
    "mltcp": Rule(frozenset({"mltcp"}), never=frozenset({"torch", "grpc", "numpy", "matplotlib"})),
    "collectives": Rule(frozenset({"collectives", "mltcp"}), lazily=frozenset({"placement.client"})),
    "placement": Rule(frozenset({"placement", "mltcp.core"}), never=frozenset({"torch"})),
    # The laws of the network model are those of the eBPF programs.
    "placement.simulator.network": Rule(
        frozenset({"placement", "mltcp.core", "mltcp.control"}), never=frozenset({"torch"})
    ),
    "placement.learning": Rule(frozenset({"placement", "mltcp.core"})),
    "bench": Rule(frozenset(PACKAGES)),
}

# Within a package, imports go to the left only. A module that is not listed stands to the right of all that are.
LAYERS = {
    "mltcp": ("core", "control", "ebpf", "pacing", "daemon", "cli"),
    "mltcp.daemon": ("client", "journal", "jobs", "descriptors", "mechanisms", "service"),
    "collectives": (
        "core",
        "transport",
        "recording",
        "gate",
        "agent",
        "group",
        "elastic",
        "parameter_server",
    ),
    "collectives.recording": (
        *("records", "completion", "operation", "acked_bytes"),
        *("detection", "optimizer_steps", "demand", "recorder"),
    ),
    "placement": (
        *("model", "cassini", "policies", "traces", "simulator", "learning", "experiments", "plots"),
        *("gate", "engines", "service", "client", "cli"),
    ),
    "placement.policies": ("catalogue", "least_delay", "placing", "slot_pool", "communication", "schedulers"),
    "placement.simulator": (
        *("outcome", "exact", "network", "published", "flows", "fluid", "parameter_server"),
        *("scheduled_job", "cluster_run", "rates", "rivals"),
    ),
    "placement.service": (
        *("protocol", "state", "ratio_table", "contention", "counts", "measured_speeds", "checkpoints"),
        *("restart_costs", "job_classes", "decision_records", "context", "lifecycle", "decisions"),
    ),
    "bench": (
        *("command_line", "plain_documents", "tables", "warm", "lab", "workloads", "compare", "hosts"),
        *("async_sgd", "live_jobs", "sensitivity", "allreduce", "alone", "perf", "cost", "soak", "cli"),
    ),
    "bench.compare": (
        *("results", "approach", "contest", "coordination", "provider", "launch", "engine", "trace"),
        *("report", "holding", "holding_picture"),
    ),
    "bench.hosts": (
        *("hosts_file", "shared_directory", "messages", "measures", "hosted", "agent", "remote_rank"),
        *("connection", "placement", "session", "provider"),
    ),
    "bench.lab": ("link", "topology", "network", "bottleneck"),
    "bench.workloads": (
        *(
            "profile",
            "model_work",
            "phases",
            "job",
            "place",
            "kinds",
            "models",
            "group",
            "rank",
            "launched_rank",
            "rank_pool",
        ),
        *("elastic", "parameter_server", "preload"),
    ),
    "bench.workloads.parameter_server": (
        *(
            "job",
            "log",
            "work",
            "session",
            "launch",
            "malleable_job",
            "run",
        ),
    ),
    "bench.live_jobs": (
        *(
            "comparison",
            "elastic_executor",
            "lab_scale",
            "start_cost",
            "span_terms",
            "contention_table",
            "contention_service",
            "whole_jobs_service",
            "whole_jobs",
            "contention",
        ),
        *("async_lab", "async_executor", "async_profile", "async_jobs"),
    ),
}


def modules():
    """Every module of the project by dotted name; generated ones are left out."""
    paths = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
    names = {path: path.relative_to(ROOT).with_suffix("").parts for path in paths if "_pb2" not in path.name}
    return {".".join(name[:-1] if name[-1] == "__init__" else name): path for path, name in names.items()}


def package_of(name, path):
    return name if path.name == "__init__.py" else name.rpartition(".")[0]


def imports_of(source, package):
    """Every import in the source of a module of that package; ``from a import b`` counts as ``a.b``."""
    return read(source, package)[0]


@cache
def read(source, package):
    """The imports in the source of a module of that package, and the names of the classes that others may use."""
    found, classes = [], set()

    def visit(node, lazy):
        if isinstance(node, ast.Import):
            found.extend(Import(alias.name, node.lineno, lazy) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parts = package.split(".")
            above = parts[: len(parts) - node.level + 1] if node.level else []
            module = ".".join([*above, *([node.module] if node.module else [])])
            found.extend(Import(f"{module}.{alias.name}", node.lineno, lazy) for alias in node.names)
        elif isinstance(node, ast.ClassDef) and node.name[0] != "_":
            classes.add(node.name)
        lazy = lazy or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for child in ast.iter_child_nodes(node):
            visit(child, lazy)

    visit(ast.parse(source), lazy=False)
    return found, classes


def lies_in(module, packages):
    return any(module == package or module.startswith(f"{package}.") for package in packages)


def violations(source, package):
    rule = RULES[max((each for each in RULES if lies_in(package, [each])), key=len)]
    for found in imports_of(source, package):
        allowed = rule.project | rule.lazily if found.lazy else rule.project
        if lies_in(found.module, rule.never) or (
            lies_in(found.module, PACKAGES) and not lies_in(found.module, allowed)
        ):
            yield f"line {found.line}: {package} may not import {found.module} here"


def layer_violations(importing, imported):
    """The layer rules, as text, that this import between two modules breaks."""
    for package, layers in LAYERS.items():
        below = f"{package}."
        if importing.startswith(below) and imported.startswith(below):
            left, right = (name.removeprefix(below).split(".")[0] for name in (imported, importing))
            place = {name: position for position, name in enumerate(layers)}
            if left != right and place.get(left, len(layers)) > place.get(right, len(layers)):
                yield f"{importing} may not import {imported}: in {package}, {right} stands left of {left}"


@cache
def edges():
    """Of every module, the modules of the project that it imports, and on which line."""
    known = modules()
    found = {}
    for name, path in known.items():
        for each in imports_of(path.read_text(), package_of(name, path)):
            target = each.module
            while target and target not in known:
                target = target.rpartition(".")[0]
            if target and target != name:
                found.setdefault(name, {}).setdefault(target, each.line)
    return found


def cycles(graph):
    """The strongly connected components of more than one module (Tarjan's algorithm)."""
    order, low, stack, found = {}, {}, [], []

    def visit(name):
        order[name] = low[name] = len(order)
        stack.append(name)
        for target in graph.get(name, ()):
            if target not in order:
                visit(target)
                low[name] = min(low[name], low[target])
            elif target in stack:
                low[name] = min(low[name], order[target])
        if low[name] == order[name]:
            component = stack[stack.index(name) :]
            del stack[stack.index(name) :]
            if len(component) > 1:
                found.append(sorted(component))

    for name in graph:
        if name not in order:
            visit(name)
    return found


@pytest.mark.parametrize("package", PACKAGES)
def test_package_keeps_to_its_imports(package):
    paths = sorted((ROOT / package).rglob("*.py"))
    assert paths
    broken = [
        f"{path.relative_to(ROOT)}: {each}"
        for path in paths
        for each in violations(path.read_text(), ".".join(path.relative_to(ROOT).parts[:-1]))
    ]
    assert not broken


@pytest.mark.parametrize("package", PACKAGES)
def test_imports_between_sub_packages_go_one_way(package):
    broken = [
        f"line {line}: {each}"
        for importing, targets in edges().items()
        if importing.startswith(f"{package}.")
        for imported, line in targets.items()
        for each in layer_violations(importing, imported)
    ]
    assert not broken


def test_every_sub_package_has_its_layer():
    for package, layers in LAYERS.items():
        root = ROOT.joinpath(*package.split("."))
        folders = {path.parent.name for path in root.glob("*/__init__.py")}
        assert set(layers) >= folders - {"profiles"}, package


@pytest.mark.parametrize("package", PACKAGES)
def test_no_class_of_a_package_has_the_name_of_another(package):
    places = {}
    for name, path in modules().items():
        if lies_in(name, [package]):
            for each in read(path.read_text(), package_of(name, path))[1]:
                places.setdefault(each, []).append(name)
    assert {each: where for each, where in places.items() if len(where) > 1} == {}


def test_a_scheduler_has_one_implementation():
    """A name is a row of one table of rules, which one class carries out, or it is a class of its own."""
    tables = {
        DeadlineScheduler: DEADLINE_RULES,
        ResponseScheduler: RESPONSE_SCHEDULERS,
        RoundsScheduler: ROUNDS_RULES,
    }
    names = [name for table in tables.values() for name in table]
    assert len(names) == len({*names})
    for scheduler, table in tables.items():
        assert {type(named_scheduler(name)) for name in table} <= {scheduler, JsqChunk}
    own = SCHEDULERS.keys() - {*names}
    assert len({type(named_scheduler(name)) for name in own}) == len(own)


@pytest.mark.parametrize("name", ["packages", "states"])
def test_the_pictures_of_the_architecture_are_those_of_the_sources(name):
    pytest.importorskip("matplotlib")
    from PIL import Image

    from docs.draw_architecture import FACTS

    with Image.open(ROOT / "docs" / "pictures" / f"architecture_{name}.png") as picture:
        assert picture.text["Description"] == FACTS[name](), "python -m docs.draw_architecture"


def test_no_files_import_each_other():
    assert cycles(edges()) == []


def test_a_cycle_is_found():
    assert cycles({"a": ["b"], "b": ["c", "d"], "c": ["a"], "d": []}) == [["a", "b", "c"]]
    assert cycles({"a": ["b", "c"], "b": ["c"], "c": []}) == []


@pytest.mark.parametrize(
    ("importing", "imported"),
    [
        ("mltcp.pacing.tc.htb_qdisc", "mltcp.daemon.journal"),
        ("mltcp.core.errors", "mltcp.control.fluid"),
        ("placement.model.cluster", "placement.policies.catalogue"),
        ("placement.service.state.job_record", "placement.service.server"),
        ("bench.lab.lab", "bench.compare.engine"),
    ],
)
def test_an_import_to_the_right_is_found(importing, imported):
    assert list(layer_violations(importing, imported))
    assert not list(layer_violations(imported, importing))


@pytest.mark.parametrize(
    ("package", "source"),
    [
        ("mltcp", "import torch.distributed"),
        ("mltcp.control", "import numpy"),
        ("mltcp", "def f():\n    from torch import nn"),
        ("mltcp.ebpf", "from grpc import aio"),
        ("mltcp.daemon", "import bench.plots"),
        ("mltcp", "from bench import plots"),
        ("mltcp", "import os, placement"),
        ("collectives", "from placement import client"),
        ("collectives", "def f():\n    from placement import simulator"),
        ("collectives", "from bench.lab import hosts"),
        ("placement.policies", "import torch"),
        ("placement", "if True:\n    from mltcp import ebpf"),
        ("placement", "from mltcp.pacing.rate_law import RateLaw"),
    ],
)
def test_forbidden_import_is_found(package, source):
    assert list(violations(source, package))


@pytest.mark.parametrize(
    ("package", "source"),
    [
        ("mltcp", "import os\nfrom mltcp.core.errors import UsageError"),
        ("mltcp.ebpf", "from . import layout\nfrom ..core.errors import UsageError"),
        ("mltcp", "import torchlike\nimport benchmark"),
        ("collectives", "import torch\nfrom mltcp.control import iteration"),
        ("collectives", "def f():\n    from placement.client.client import Client"),
        ("placement", "import grpc\nfrom placement.policies import x\nfrom mltcp.core import errors"),
        ("bench", "import torch, mltcp, collectives, placement, bench.plots"),
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


@pytest.mark.parametrize(
    ("package", "heavy"),
    [
        ("mltcp", {"torch", "grpc", "numpy", "matplotlib", "bench", "collectives", "placement"}),
        ("mltcp.core", {"torch", "grpc", "numpy", "matplotlib", "rich", "pyroute2", "mltcp.control"}),
    ],
)
def test_a_package_brings_none_of_the_heavy_ones_with_it(package, heavy):
    script = (
        f"import importlib, pkgutil, sys, {package} as package\n"
        f"for module in pkgutil.walk_packages(package.__path__, '{package}.'):\n"
        "    if not module.name.endswith('__main__'):\n"
        "        importlib.import_module(module.name)\n"
        f"print(*sorted({heavy!r} & set(sys.modules)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == []

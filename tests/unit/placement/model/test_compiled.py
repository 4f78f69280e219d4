"""Where compiled code is kept: in a folder of its own for every version of the sources."""

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from numba.core.errors import NumbaWarning

import placement
from mltcp.core.machine_code import digest_of
from placement.model import compiled as compiling

ROOT = Path(placement.__file__).parent
_ASK = """\
from placement.policies import placing
print(placing.choose._entry._cache.cache_path)
"""


def folder(tree, **environment):
    """The cache folder that a fresh interpreter uses with the package of this tree."""
    environment = {"PATH": os.environ["PATH"], "HOME": "/somewhere", "PYTHONPATH": str(tree), **environment}
    command = [sys.executable, "-P", "-c", _ASK]
    return subprocess.run(
        command, env=environment, cwd=tree, capture_output=True, text=True, check=True, timeout=60
    ).stdout.strip()


@pytest.fixture
def copy(tmp_path):
    """The package, copied to another place."""
    for package in ("placement", "mltcp"):
        shutil.copytree(
            ROOT.parent / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__")
        )
    return tmp_path / "placement"


def trees():
    texts = {path: path.read_text() for path in sorted(ROOT.rglob("*.py"))}
    return {path: ast.parse(text) for path, text in texts.items() if "import compiled" in text}


def is_compiled(function):
    decorators = [getattr(each, "id", "") for each in function.decorator_list]
    return any(each.startswith("compiled") for each in decorators)


def functions(tree):
    return [each for each in ast.walk(tree) if isinstance(each, ast.FunctionDef) and is_compiled(each)]


def imported(tree):
    """Of each name that a module takes from this package, the file that it comes from."""
    found = {}
    for each in ast.walk(tree):
        if isinstance(each, ast.ImportFrom) and (each.module or "").split(".")[0] == "placement":
            base = ROOT.joinpath(*each.module.split(".")[1:])
            for name in each.names:
                paths = [base / f"{name.name}.py", base.with_suffix(".py"), base / "__init__.py"]
                found[name.asname or name.name] = next(path for path in paths if path.exists())
    return found


def relevant():
    """Of each file with compiled functions, the files of what these name, arguments' types included."""
    found = {}
    for path, tree in trees().items():
        names = imported(tree)
        for function in functions(tree):
            used = {each.id for each in ast.walk(function) if isinstance(each, ast.Name)}
            found.setdefault(path, {path}).update(names[name] for name in used & names.keys())
    return found


def test_the_cache_hangs_on_all_that_compiled_code_contains():
    """What a module names directly, and all that these name: so the laws of a direct name are those of all."""
    relevant_to = relevant()
    assert {"exact/simulation.py", "policies/communication.py"} <= {
        "/".join(each.parts[-2:]) for each in relevant_to
    }
    for module, named in relevant_to.items():
        sources = {*compiling.sources_of(module)}
        assert named <= sources, module
        assert all({*compiling.sources_of(each)} <= sources for each in named), module


def test_a_change_of_what_a_module_imports_changes_its_folder_alone(copy):
    def digests():
        compiling._imported.cache_clear()
        modules = copy / "policies" / "placing.py", copy / "simulator" / "exact" / "compute.py"
        return [digest_of(copy.parent, compiling.sources_of(each, copy.parent)) for each in modules]

    before = digests()
    transfers = copy / "simulator" / "exact" / "transfers.py"
    transfers.write_bytes(transfers.read_bytes() + b"\n")
    placing, compute = digests()
    assert placing == before[0]
    assert compute != before[1]
    os.utime(copy / "policies" / "placing.py", (1, 1))
    assert digests() == [placing, compute]


def test_the_folder_does_not_hang_on_where_the_package_is(copy):
    here = folder(ROOT.parent, XDG_CACHE_HOME="/caches")
    assert here.startswith("/caches/mltcp/placement-")
    assert folder(copy.parent, XDG_CACHE_HOME="/caches") == here


def test_the_folder_is_where_the_environment_says():
    assert folder(ROOT.parent).startswith("/somewhere/.cache/mltcp/placement-")
    assert folder(ROOT.parent, NUMBA_CACHE_DIR="/given", XDG_CACHE_HOME="/caches").startswith(
        "/given/placement-"
    )


@pytest.fixture
def cache(monkeypatch, tmp_path):
    """An empty cache."""
    monkeypatch.setattr(compiling, "_folder_of", lambda module: tmp_path / "here")
    return tmp_path / "here"


def test_what_is_compiled_is_kept_there(cache):
    function = compiling.compiled(_twice)
    assert function(21) == 42
    assert list(cache.rglob("*.nbi"))
    again = compiling.compiled(_twice)
    assert again(21) == 42
    assert sum(again._entry.stats.cache_hits.values()) == 1


def _twice(number):
    return 2 * number


def test_python_and_compiled_code_may_call_the_same_function(cache):
    global _doubled
    _doubled = compiling.compiled(_twice)
    quadrupled = compiling.compiled_with_arrays(_four_times)
    assert (_doubled(21), quadrupled(21), _doubled(21.5)) == (42, 84, 43.0)
    assert (_doubled.__name__, _doubled.__doc__) == (_twice.__name__, _twice.__doc__)


def _four_times(number):
    return _doubled(_doubled(number))


def test_no_machine_code_is_made_of_what_only_compiled_code_calls(cache):
    """Its callers have copies of it, also where it was compiled by an earlier process."""
    global _doubled
    _doubled = compiling.compiled(_twice)
    assert compiling.compiled(_four_times)(21) == 84
    (inner,) = _doubled._inner.overloads.values()
    assert not list(inner.library.get_defined_functions())
    _doubled = compiling.compiled(_twice)
    assert compiling.compiled(_eight_times)(21) == 168
    assert sum(_doubled._inner.stats.cache_hits.values()) == 1


def _eight_times(number):
    return _doubled(_doubled(_doubled(number)))


_LARGE = np.arange(1_000_000)


def test_a_rule_with_a_large_table_of_its_own_is_compiled_each_time(cache):
    """numba does not keep the code of a function that refers to an address, and says so with the file and line."""
    function = compiling.compiled(_looked_up)
    with pytest.warns(NumbaWarning, match="dynamic globals") as told:
        assert function(21) == 21
    assert told[0].filename == __file__


def _looked_up(number):
    return _LARGE[number]

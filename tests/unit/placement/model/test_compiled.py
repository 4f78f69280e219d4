"""Where compiled code is kept: in a folder of its own for every version of the sources."""

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from numba import config

import placement
from placement.model import compiled as compiling

ROOT = Path(placement.__file__).parent
_ASK = "from placement.model import compiled; print(compiled._FOLDER)"


def folder(tree, **environment):
    """The cache folder that a fresh interpreter uses with the package of this tree."""
    environment = {"PATH": os.environ["PATH"], "HOME": "/somewhere", "PYTHONPATH": str(tree), **environment}
    command = [sys.executable, "-P", "-c", _ASK]
    return subprocess.run(
        command, env=environment, cwd=tree, capture_output=True, text=True, check=True, timeout=60
    ).stdout.strip()


@pytest.fixture
def copy(tmp_path, monkeypatch):
    """A copied package, and its digest as it is from now on."""
    shutil.copytree(ROOT, tmp_path / "placement", ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(compiling, "__file__", str(tmp_path / "placement" / "model" / "compiled.py"))
    return tmp_path / "placement"


def trees():
    return {path: ast.parse(path.read_text()) for path in sorted(ROOT.rglob("*.py"))}


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
    """The files that compiled functions are in, and those of what they name, arguments' types included."""
    found = set()
    for path, tree in trees().items():
        names = imported(tree)
        for function in functions(tree):
            used = {each.id for each in ast.walk(function) if isinstance(each, ast.Name)}
            found |= {path} | {names[name] for name in used & names.keys()}
    return sorted(str(each.relative_to(ROOT)) for each in found)


@pytest.mark.slow
def test_there_are_compiled_functions():
    assert {"simulator/exact/simulation.py", "policies/communication.py", "model/state.py"} <= {*relevant()}


@pytest.mark.slow
def test_a_change_in_any_source_changes_the_folder(copy):
    before = compiling._sources_digest()
    for name in relevant():
        source = copy / name
        text = source.read_bytes()
        source.write_bytes(text + b"\n")
        assert compiling._sources_digest() != before, name
        source.write_bytes(text)
    assert compiling._sources_digest() == before


def test_a_new_a_moved_and_a_removed_source_change_the_folder(copy):
    seen = [compiling._sources_digest()]
    new = copy / "new.py"
    new.write_text("from placement.model.compiled import compiled\n")
    seen.append(compiling._sources_digest())
    new.rename(copy / "moved.py")
    seen.append(compiling._sources_digest())
    (copy / "simulator" / "exact" / "transfers.py").unlink()
    seen.append(compiling._sources_digest())
    assert len({*seen}) == 4


def test_nothing_else_changes_the_folder(copy):
    before = compiling._sources_digest()
    assert len(before) == 16
    (copy / "__pycache__").mkdir(exist_ok=True)
    (copy / "__pycache__" / "compiled.pyc").write_bytes(b"compiled")
    (copy / "notes.txt").write_text("compiled")
    os.utime(copy / "model" / "compiled.py", (1, 1))
    assert compiling._sources_digest() == before


def test_the_folder_does_not_hang_on_where_the_package_is(copy):
    digest = compiling._sources_digest()
    assert folder(copy.parent, XDG_CACHE_HOME="/caches") == f"/caches/mltcp/placement-{digest}"
    assert folder(ROOT.parent, XDG_CACHE_HOME="/caches") == f"/caches/mltcp/placement-{digest}"


def test_the_folder_is_where_the_environment_says():
    digest = compiling._sources_digest()
    assert folder(ROOT.parent) == f"/somewhere/.cache/mltcp/placement-{digest}"
    assert folder(ROOT.parent, XDG_CACHE_HOME="") == f"/somewhere/.cache/mltcp/placement-{digest}"
    given = {"NUMBA_CACHE_DIR": "/given", "XDG_CACHE_HOME": "/caches"}
    assert folder(ROOT.parent, **given) == f"/given/placement-{digest}"


def test_numba_is_left_as_it_was(monkeypatch, tmp_path):
    monkeypatch.setattr(config, "CACHE_DIR", "elsewhere")
    monkeypatch.setattr(compiling, "_FOLDER", tmp_path / "here")
    for compiler in (compiling.compiled, compiling.compiled_with_arrays):
        compiler(_twice)
        assert config.CACHE_DIR == "elsewhere"
        with pytest.raises(TypeError):
            compiler(7)
        assert config.CACHE_DIR == "elsewhere"


def test_what_is_compiled_is_kept_there(monkeypatch, tmp_path):
    monkeypatch.setattr(compiling, "_FOLDER", tmp_path / "here")
    function = compiling.compiled(_twice)
    assert function(21) == 42
    assert list((tmp_path / "here").rglob("*.nbi"))
    again = compiling.compiled(_twice)
    assert again(21) == 42
    assert sum(again._entry.stats.cache_hits.values()) == 1


def _twice(number):
    return 2 * number


def test_python_and_compiled_code_may_call_the_same_function(monkeypatch, tmp_path):
    monkeypatch.setattr(compiling, "_FOLDER", tmp_path)
    global _doubled
    _doubled = compiling.compiled(_twice)
    quadrupled = compiling.compiled_with_arrays(_four_times)
    assert (_doubled(21), quadrupled(21), _doubled(21.5)) == (42, 84, 43.0)
    assert (_doubled.__name__, _doubled.__doc__) == (_twice.__name__, _twice.__doc__)


def _four_times(number):
    return _doubled(_doubled(number))

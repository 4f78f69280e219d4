"""The version of the distribution, and the error that names the extra to install."""

import importlib
import re
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest

from mltcp.core.extras import MODULES_OF_EXTRA, not_installed

ROOT = Path(__file__).resolve().parents[4]
MODULES = {  # of the distributions whose module has another name
    "grpcio": "grpc",
    "grpcio-health-checking": "grpc_health",
    "grpcio-reflection": "grpc_reflection",
    "protobuf": "google",
    "stable-baselines3": "stable_baselines3",
}


def test_modules_are_those_of_the_distribution():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for extra, modules in MODULES_OF_EXTRA.items():
        names = [re.match(r"[\w-]+", each)[0] for each in extras[extra] if not each.startswith("mltcp[")]
        assert {MODULES.get(name, name) for name in names} == set(modules)


def test_message_names_the_extra():
    error = ModuleNotFoundError("No module named 'numpy'", name="numpy")
    assert str(not_installed(error)) == "numpy is not installed; pip install 'mltcp[placement]'"
    assert str(not_installed(error, "service")) == "numpy is not installed; pip install 'mltcp[service]'"


def test_other_modules_are_not_optional():
    assert not_installed(ModuleNotFoundError("No module named 'nothing'", name="nothing")) is None
    assert not_installed(ModuleNotFoundError("no name")) is None


@pytest.mark.parametrize(
    ("package", "command"),
    [("mltcp", "mltcp"), ("bench", "mltcp-bench"), ("placement", "mltcp-placement")],
)
def test_each_command_prints_the_version(package, command, capsys):
    with pytest.raises(SystemExit, match=r"^0$"):
        importlib.import_module(f"{package}.cli.main").main(["--version"])
    assert capsys.readouterr().out == f"{command} {version('mltcp')}\n"

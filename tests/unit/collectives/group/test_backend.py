"""Registration of the backend with torch, and the groups that it makes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.distributed import _functional_collectives as functional

from collectives.group.inner_group import Devices, must_share, own_devices
from collectives.group.torch_version import version
from tests.unit.collectives.ranks import run_ranks

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[4]
ONE_RANK = (
    "dist.init_process_group({backend!r}, store=dist.HashStore(), rank=0, world_size=1)\n"
    "tensor = torch.ones(3); dist.all_reduce(tensor)\n"
    "print(dist.get_backend(), type(dist.group.WORLD).__name__, tensor.tolist(), flush=True)\n"
    # An orderly end with a group alive fails now and then, with plain Gloo as well.
    "import os; os._exit(0)\n"
)


def program(text, **environment):
    """The output and the standard error of a program in a new interpreter."""
    done = subprocess.run(
        [sys.executable, "-c", text],
        env={**os.environ, "GLOO_SOCKET_IFNAME": "lo", "MLTCP_CC": "none", **environment},
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr
    # Gloo before torch 2.10 prints that it is connected.
    printed = [line for line in done.stdout.splitlines() if not line.startswith("[Gloo]")]
    return "\n".join(printed).strip(), done.stderr.strip()


def test_a_script_needs_no_import():
    script = "import torch, torch.distributed as dist\n" + ONE_RANK.format(backend="mltcp")
    assert program(script)[0] == "mltcp MltcpProcessGroup [1.0, 1.0, 1.0]"


def average_of_integers(rank, ranks):
    tensor = torch.tensor([rank, -5 * rank, 7])
    dist.all_reduce(tensor, op=dist.ReduceOp.AVG)
    later = torch.tensor([2 * rank + 1], dtype=torch.int32)
    work = dist.all_reduce(later, op=dist.ReduceOp.AVG, async_op=True)
    work.wait()
    real = torch.tensor([float(rank)])
    dist.all_reduce(real, op=dist.ReduceOp.AVG)
    return tensor.tolist(), later.tolist(), real.tolist()


def test_integers_are_averaged_as_nccl_does():
    assert run_ranks(average_of_integers) == [([0, -2, 7], [2], [0.5])] * 2


def test_with_autoload_off_an_import_is_enough():
    script = "import torch, torch.distributed as dist, collectives\n" + ONE_RANK.format(backend="mltcp")
    assert program(script, TORCH_DEVICE_BACKEND_AUTOLOAD="0")[0].startswith("mltcp MltcpProcessGroup")


@pytest.mark.parametrize(
    "module", ["collectives", "collectives.group.backend", "collectives.recording.recorder"]
)
def test_ours_may_be_imported_before_torch(module):
    script = f"import {module}, torch, torch.distributed as dist\n" + ONE_RANK.format(backend="mltcp")
    assert program(script) == ("mltcp MltcpProcessGroup [1.0, 1.0, 1.0]", "")


def test_with_autoload_off_nothing_of_ours_is_loaded():
    script = "import sys, torch; print([name for name in sys.modules if name.startswith('collectives')])"
    assert program(script, TORCH_DEVICE_BACKEND_AUTOLOAD="0")[0] == "[]"


UNTRIED = "import torch, torch.distributed as dist; torch.__version__ = '9.9.0'; import collectives\n"


@pytest.mark.parametrize("backend", ["mltcp", "gloo"])
def test_with_a_torch_that_has_not_been_tried_groups_are_plain_and_it_is_said_once(backend):
    script = UNTRIED + ONE_RANK.format(backend=backend)
    said, warned = program(script, TORCH_DEVICE_BACKEND_AUTOLOAD="0", MLTCP_WRAP="gloo")
    assert said.splitlines()[-1] == f"{backend} ProcessGroup [1.0, 1.0, 1.0]"
    assert warned.splitlines() == [
        "mltcp: torch 9.9.0 has not been tried (2.9 to 2.15 have): groups are plain Gloo or NCCL; try MLTCP_ANY_TORCH=1"
    ]


def test_such_a_torch_is_used_if_the_user_says_so_and_refused_if_nothing_may_be_missing():
    script = UNTRIED + ONE_RANK.format(backend="mltcp")
    around = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    said, warned = program(script, MLTCP_ANY_TORCH="1", **around)
    assert (said.splitlines()[-1], warned) == ("mltcp MltcpProcessGroup [1.0, 1.0, 1.0]", "")
    with pytest.raises(AssertionError, match=r"NotAvailableError: mltcp: torch 9\.9\.0 has not been tried"):
        program(script, MLTCP_STRICT="1", **around)


@pytest.mark.skipif(
    version(torch.__version__) < (2, 14), reason="torch looks for backends by name from 2.14 on"
)
def test_with_autoload_off_a_newer_torch_finds_the_backend_by_its_name():
    script = "import torch, torch.distributed as dist\n" + ONE_RANK.format(backend="mltcp")
    assert program(script, TORCH_DEVICE_BACKEND_AUTOLOAD="0")[0] == "mltcp MltcpProcessGroup [1.0, 1.0, 1.0]"


def test_importing_torch_loads_little_of_ours():
    script = (
        "import sys, torch; print(sorted(name for name in sys.modules if name.startswith('collectives')))"
    )
    hooks = [".group.operation_hooks"] if hasattr(dist.ProcessGroup, "register_pre_hook") else []
    loaded = [
        f"collectives{name}"
        for name in ("", ".group", ".group.autoload", ".group.backend", *hooks, ".group.torch_version")
    ]
    assert program(script)[0] == str(loaded)


def test_importing_torch_survives_whatever_is_wrong_with_the_hook():
    # A torch of another version, to which the backend cannot be made known.
    script = (
        "import sys\n"
        "class Broken:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'collectives.group.backend':\n"
        "            raise RuntimeError('broken on purpose')\n"
        "sys.meta_path.insert(0, Broken())\n"
        "import torch; print(torch.ones(1).item())"
    )
    out, errors = program(script)
    assert out == "1.0"
    assert "broken on purpose" in errors


def test_a_script_that_names_gloo_gets_gloo_unless_it_is_told_otherwise():
    script = "import torch, torch.distributed as dist\n" + ONE_RANK.format(backend="gloo")
    assert program(script)[0].startswith("gloo ProcessGroup ")
    assert program(script, MLTCP_WRAP="gloo,nccl")[0].startswith("gloo MltcpProcessGroup")
    assert program(script, MLTCP_WRAP="nccl")[0].startswith("gloo ProcessGroup ")


def test_groups_of_several_devices_are_wrapped_when_all_their_backends_are():
    script = "import torch, torch.distributed as dist\n" + ONE_RANK.format(backend="cpu:gloo")
    assert program(script, MLTCP_WRAP="gloo")[0].startswith("cpu:gloo MltcpProcessGroup")


def describes_itself(rank, ranks):
    world = dist.group.WORLD
    sub = dist.new_group([1])
    return (
        (
            dist.get_backend(),
            world.name(),
            dist.get_rank(),
            dist.get_world_size(),
            str(dist.get_backend_config()),
        ),
        dist.get_process_group_ranks(world),
        sub is dist.GroupMember.NON_GROUP_MEMBER
        or (dist.get_backend(sub), dist.get_process_group_ranks(sub)),
        world._get_backend(torch.device("cpu")).name(),
    )


def test_the_group_says_what_it_is():
    outcome = run_ranks(describes_itself)
    for rank, (own, members, sub, inner) in enumerate(outcome):
        devices = "cpu:mltcp,cuda:mltcp" if torch.backends.cuda.is_built() else "cpu:mltcp"
        assert own == ("mltcp", "mltcp", rank, 2, devices)
        assert members == [0, 1]
        assert inner == "gloo"
        assert sub is True if rank == 0 else sub == ("mltcp", [1])


@pytest.mark.parametrize(
    ("ranks", "shared"),
    [
        ([Devices("a", ("0", "1")), Devices("a", ("0", "1"))], False),
        ([Devices("a", ("0",)), Devices("a", ("0",))], True),
        ([Devices("a", ("0",)), Devices("b", ("0",))], False),
        ([Devices("a", ("0",)), Devices("a", ("1",))], False),
        ([Devices("a", ("0", "1"))] * 3, True),
        ([Devices("a", ("0", "1"))] * 2 + [Devices("b", ())], True),
    ],
)
def test_ranks_share_a_gpu_when_a_host_has_more_ranks_than_gpus(ranks, shared):
    assert must_share(ranks) is shared


def test_a_host_is_what_nccl_takes_for_one(monkeypatch):
    assert own_devices().host == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    monkeypatch.setenv("NCCL_HOSTID", "container-7")
    assert own_devices().host == "container-7"


def counts_everything(rank, ranks):
    """Each operation of torch.distributed under the name and with the bytes that it counts as."""
    import collectives

    t, big = torch.ones(4), torch.ones(8)
    lists = [torch.ones(4) for _ in range(ranks)]
    with collectives.iteration():
        dist.all_reduce(t)
        dist.all_reduce_coalesced([t, big])
        dist.broadcast(t, 0)
        dist.reduce(t, 0)
        dist.all_gather(lists, t)
        dist.all_gather_into_tensor(torch.ones(8), t)
        dist.reduce_scatter(t, [torch.ones(4) for _ in range(ranks)])
        dist.reduce_scatter_tensor(t, big)
        dist.all_to_all_single(torch.ones(8), big)
        dist.all_to_all([torch.ones(4) for _ in range(ranks)], [torch.ones(4) for _ in range(ranks)])
        dist.gather(t, [torch.ones(4) for _ in range(ranks)] if rank == 0 else None, 0)
        dist.scatter(t, [torch.ones(4) for _ in range(ranks)] if rank == 0 else None, 0)
        dist.barrier()
        if rank == 0:
            dist.send(t, 1)
            dist.isend(t, 1).wait()
        else:
            dist.recv(t, 0)
            dist.irecv(t).wait()
        with dist._coalescing_manager():
            dist.all_reduce(t)
            dist.all_reduce(big)
        functional.all_reduce(t, "sum", [0, 1]).sum().item()
    operations = collectives.iterations()[0].operations
    return [(each.name, each.bytes) for each in operations], all(each.completed_ns for each in operations)


def test_every_operation_is_counted_under_torchs_name_with_its_payload():
    for rank, (operations, complete) in enumerate(run_ranks(counts_everything)):
        point_to_point = "send" if rank == 0 else "recv"
        assert operations == [
            ("all_reduce", 16),
            ("all_reduce", 48),
            ("broadcast", 16),
            ("reduce", 16),
            ("all_gather", 16),
            ("all_gather", 16),
            ("reduce_scatter", 32),
            ("reduce_scatter", 32),
            ("all_to_all", 32),
            ("all_to_all", 32),
            ("gather", 16),
            ("scatter", 32 if rank == 0 else 0),
            ("barrier", 0),
            (point_to_point, 16),
            (point_to_point, 16),
            ("all_reduce", 48),
            ("all_reduce", 16),
        ]
        assert complete

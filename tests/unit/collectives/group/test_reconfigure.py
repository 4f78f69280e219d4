"""Groups whose ranks connect only when they are told with whom (since torch 2.14): they are found."""

import pytest
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from tests.unit.collectives.ranks import run_ranks
from tests.unit.collectives.transport.test_gloo_sockets import meet

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not hasattr(dist.ProcessGroup, "reconfigure"), reason="torch has it from 2.14 on"),
]


def reconfigured(rank, ranks, directory, backend):
    store = dist.FileStore(str(directory / "store"), ranks)
    dist.init_process_group(backend, store=store, rank=rank, world_size=ranks, enable_reconfigure=True)
    group, found = dist.group.WORLD, []
    for uuid, order in enumerate([[0, 1, 2], [2, 0, 1]]):
        store.set(f"handle/{uuid}/{rank}", c10d._get_reconfigure_handle())
        handles = [store.get(f"handle/{uuid}/{each}").decode() for each in order]
        c10d._reconfigure(uuid=uuid, handles=handles).wait()
        tensor = torch.tensor([10.0**rank])
        dist.all_reduce(tensor)
        peers = sorted(each.peer_rank for each in group.sockets())
        found.append((group.rank(), tensor.item(), peers))
        meet(store, f"found/{uuid}", rank, ranks)
    return found


@pytest.mark.parametrize(("backend", "environment"), [("mltcp", {}), ("gloo", {"MLTCP_WRAP": "gloo"})])
def test_the_connections_are_found_with_their_new_ranks(tmp_path, backend, environment):
    outcome = run_ranks(reconfigured, 3, None, environment, 60, tmp_path, backend)
    for rank, (first, second) in enumerate(outcome):
        then = [1, 2, 0][rank]
        assert first == (rank, 111.0, [each for each in range(3) if each != rank])
        assert second == (then, 111.0, [each for each in range(3) if each != then])

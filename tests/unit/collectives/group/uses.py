"""The kinds of use of torch.distributed that any backend's users rely on: each returns what can be compared.

A use is a function of (rank, ranks, directory); `USES` has them by name. They run in the same processes, in this
order, on 2 ranks.
"""

import hashlib
import io
import warnings
from contextlib import nullcontext
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import _functional_collectives as functional
from torch.nn.parallel import DistributedDataParallel

from collectives.group.torch_version import version

IMPORTED_LATE = (
    *("torch._dynamo", "torch._dynamo.variables", "torch._functorch.aot_autograd", "torch.profiler"),
    *("torch.distributed.checkpoint", "torch.distributed.fsdp", "torch.distributed.optim"),
    *("torch.distributed.pipelining", "torch.distributed.tensor.debug", "torch.distributed.tensor.parallel"),
)
USES = {}
WORLD = [0, 1]
TORCH = version(torch.__version__)


def use(function):
    USES[function.__name__] = function
    return function


def use_since(earliest):
    """A use that plain Gloo does not survive on an earlier torch, which ends the process."""
    return use if earliest <= TORCH else lambda function: function


def uses(**functions):
    USES.update(functions)


def own(rank, size=6):
    return torch.arange(size, dtype=torch.float32) * (rank + 1) + rank


def parts(rank, ranks, size=3):
    return [own(rank, size) + 10 * part for part in range(ranks)]


def reduced(rank, op, dtype=torch.float32, **options):
    tensor = (own(rank) + 1).to(dtype)
    dist.all_reduce(tensor, op=op, **options)
    return tensor.tolist()


def checksum(module):
    digest = hashlib.sha256()
    for parameter in module.parameters():
        local = parameter.to_local() if hasattr(parameter, "to_local") else parameter
        digest.update(local.detach().numpy().tobytes())
    return digest.hexdigest()


def net(width=8):
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))


def trained(model, rank, steps=3, optimizer=None, context=nullcontext, width=8):
    optimizer = optimizer or torch.optim.Adam(model.parameters(), lr=0.05, foreach=False)
    for step in range(steps):
        generator = torch.Generator().manual_seed(100 * step + rank)
        with context():
            optimizer.zero_grad()
            model(torch.randn(4, width, generator=generator)).pow(2).sum().backward()
            optimizer.step()
    return checksum(model)


# -- reductions --------------------------------------------------------------------------------------------------------

for _op in ("SUM", "PRODUCT", "MIN", "MAX", "AVG"):
    uses(**{f"all_reduce_{_op.lower()}": lambda r, n, d, op=_op: reduced(r, getattr(dist.ReduceOp, op))})
for _op in ("BAND", "BOR", "BXOR"):
    uses(
        **{
            f"all_reduce_{_op.lower()}": lambda r, n, d, op=_op: reduced(
                r, getattr(dist.ReduceOp, op), torch.int32
            )
        }
    )
for _type in (torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.uint8, torch.complex64):
    uses(**{f"all_reduce_{str(_type)[6:]}": lambda r, n, d, t=_type: str(reduced(r, dist.ReduceOp.SUM, t))})


@use
def all_reduce_of_a_sparse_tensor(rank, ranks, directory):
    tensor = torch.sparse_coo_tensor([[rank, 3]], [1.0, 2.0], (5,))
    dist.all_reduce(tensor)
    return tensor.to_dense().tolist()


@use
def all_reduce_async(rank, ranks, directory):
    tensor = own(rank)
    work = dist.all_reduce(tensor, async_op=True)
    waited = work.wait()
    return waited, work.is_completed(), work.is_success(), tensor.tolist()


@use
def all_reduce_future(rank, ranks, directory):
    work = dist.all_reduce(own(rank), async_op=True)
    return work.get_future().then(lambda future: future.value()[0].sum().item()).wait()


@use
def all_reduce_coalesced(rank, ranks, directory):
    tensors = [own(rank), own(rank, 2)]
    dist.all_reduce_coalesced(tensors)
    return [tensor.tolist() for tensor in tensors]


@use
def coalescing_manager(rank, ranks, directory):
    tensors = [own(rank), own(rank, 2)]
    with dist._coalescing_manager(async_ops=True) as manager:
        for tensor in tensors:
            dist.all_reduce(tensor)
    manager.wait()
    return [tensor.tolist() for tensor in tensors]


@use
def coalescing_manager_of_a_device(rank, ranks, directory):
    group = dist.new_group(WORLD)
    with dist._coalescing_manager(group, device=torch.device("cpu")):
        dist.all_reduce(own(rank), group=group)


@use
def reduce(rank, ranks, directory):
    tensor = own(rank)
    dist.reduce(tensor, 1)
    return tensor.tolist() if rank == 1 else None


@use
def premultiplied_sum_is_refused_as_gloo_refuses_it(rank, ranks, directory):
    # In a group of its own: a barrier of Gloo's right after a failed operation may raise that operation's error.
    return reduced(rank, dist._make_nccl_premul_sum(2.0), group=dist.new_group(WORLD))


# -- data movement -----------------------------------------------------------------------------------------------------


@use
def broadcast(rank, ranks, directory):
    tensor = own(rank)
    dist.broadcast(tensor, 1)
    return tensor.tolist()


@use
def all_gather(rank, ranks, directory):
    tensors = [torch.zeros(6) for _ in range(ranks)]
    dist.all_gather(tensors, own(rank))
    return [tensor.tolist() for tensor in tensors]


@use
def all_gather_of_different_sizes(rank, ranks, directory):
    tensors = [torch.zeros(3 + each) for each in range(ranks)]
    dist.all_gather(tensors, own(rank, 3 + rank))
    return [tensor.tolist() for tensor in tensors]


@use
def all_gather_into_tensor(rank, ranks, directory):
    tensor = torch.zeros(6 * ranks)
    dist.all_gather_into_tensor(tensor, own(rank))
    return tensor.tolist()


@use
def all_gather_single_async(rank, ranks, directory):
    tensor = torch.zeros(6 * ranks)
    dist.all_gather_single(tensor, own(rank), async_op=True).wait()
    return tensor.tolist()


@use
def all_gather_coalesced(rank, ranks, directory):
    lists = [[torch.zeros(6), torch.zeros(2)] for _ in range(ranks)]
    dist.all_gather_coalesced(lists, [own(rank), own(rank, 2)])
    return [[tensor.tolist() for tensor in each] for each in lists]


@use
def gather(rank, ranks, directory):
    tensors = [torch.zeros(6) for _ in range(ranks)] if rank == 1 else None
    dist.gather(own(rank), tensors, 1)
    return tensors and [tensor.tolist() for tensor in tensors]


@use
def scatter(rank, ranks, directory):
    tensor = torch.zeros(3)
    dist.scatter(tensor, parts(rank, ranks) if rank == 0 else None, 0)
    return tensor.tolist()


@use
def reduce_scatter(rank, ranks, directory):
    tensor = torch.zeros(3)
    dist.reduce_scatter(tensor, parts(rank, ranks))
    return tensor.tolist()


@use
def reduce_scatter_tensor(rank, ranks, directory):
    tensor = torch.zeros(3)
    dist.reduce_scatter_tensor(tensor, torch.cat(parts(rank, ranks)))
    return tensor.tolist()


@use
def all_to_all(rank, ranks, directory):
    tensors = [torch.zeros(3) for _ in range(ranks)]
    dist.all_to_all(tensors, parts(rank, ranks))
    return [tensor.tolist() for tensor in tensors]


@use
def all_to_all_single(rank, ranks, directory):
    tensor = torch.zeros(6)
    dist.all_to_all_single(tensor, own(rank))
    return tensor.tolist()


@use
def all_to_all_single_of_uneven_splits(rank, ranks, directory):
    tensor = torch.zeros(2 * (rank + 1))
    dist.all_to_all_single(tensor, own(rank, 3), [rank + 1] * 2, [1, 2])
    return tensor.tolist()


# -- point to point ----------------------------------------------------------------------------------------------------


@use
def send_and_receive(rank, ranks, directory):
    tensor = own(rank)
    source = dist.send(tensor, 1) if rank == 0 else dist.recv(tensor, 0)
    return source, tensor.tolist()


@use
def receive_from_anyone(rank, ranks, directory):
    tensor = own(rank)
    source = dist.send(tensor, 0) if rank == 1 else dist.recv(tensor)
    return source, tensor.tolist()


@use
def send_and_receive_async(rank, ranks, directory):
    tensor = own(rank)
    work = dist.isend(tensor, 1 - rank) if rank == 0 else dist.irecv(tensor, 1 - rank)
    return work.wait(), tensor.tolist()


@use
def tags(rank, ranks, directory):
    first, second = own(rank), own(rank, 2)
    if rank == 0:
        works = [dist.isend(first, 1, tag=7), dist.isend(second, 1, tag=8)]
    else:
        works = [dist.irecv(second, 0, tag=8), dist.irecv(first, 0, tag=7)]
    for work in works:
        work.wait()
    return first.tolist(), second.tolist()


@use
def batch_isend_irecv(rank, ranks, directory):
    received = torch.zeros(6)
    operations = [dist.P2POp(dist.isend, own(rank), 1 - rank), dist.P2POp(dist.irecv, received, 1 - rank)]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    return received.tolist()


# -- barriers, objects, groups -----------------------------------------------------------------------------------------


@use
def barrier(rank, ranks, directory):
    return dist.barrier(), dist.barrier(async_op=True).wait()


@use
def monitored_barrier(rank, ranks, directory):
    return dist.monitored_barrier(timeout=timedelta(seconds=20), wait_all_ranks=True)


@use
def all_gather_object(rank, ranks, directory):
    objects = [None] * ranks
    dist.all_gather_object(objects, {"rank": rank, "data": "x" * (rank + 3)})
    return objects


@use
def broadcast_object_list(rank, ranks, directory):
    objects = [rank, "from 0"] if rank == 0 else [None, None]
    dist.broadcast_object_list(objects, 0)
    return objects


@use
def gather_object(rank, ranks, directory):
    objects = [None] * ranks if rank == 0 else None
    dist.gather_object(("rank", rank), objects, 0)
    return objects


@use
def scatter_object_list(rank, ranks, directory):
    objects = [None]
    dist.scatter_object_list(objects, ["zero", "one"] if rank == 0 else None, 0)
    return objects


@use
def send_object_list(rank, ranks, directory):
    objects = ["sent", 5] if rank == 0 else [None, None]
    dist.send_object_list(objects, 1) if rank == 0 else dist.recv_object_list(objects, 0)
    return objects


@use
def new_group(rank, ranks, directory):
    group, alone = dist.new_group(WORLD), dist.new_group([1])
    tensor = own(rank)
    dist.all_reduce(tensor, group=group)
    inside = alone is not dist.GroupMember.NON_GROUP_MEMBER
    return tensor.tolist(), inside, dist.get_process_group_ranks(group)


@use
def new_group_with_a_timeout(rank, ranks, directory):
    group = dist.new_group(WORLD, timeout=timedelta(milliseconds=500))
    if rank == 0:
        dist.all_reduce(own(rank), group=group)


@use
def new_subgroups(rank, ranks, directory):
    group, groups = dist.new_subgroups(1)
    return dist.get_world_size(group), len(groups)


@use
def new_subgroups_by_enumeration(rank, ranks, directory):
    group, groups = dist.new_subgroups_by_enumeration([[0], [1]])
    return dist.get_process_group_ranks(group), len(groups)


@use
def split_group(rank, ranks, directory):
    return dist.get_process_group_ranks(dist.split_group(split_ranks=[[0], [1]]))


@use
def destroyed_group(rank, ranks, directory):
    group = dist.new_group(WORLD)
    dist.destroy_process_group(group)
    dist.all_reduce(own(rank), group=group)


@use
def sequence_numbers(rank, ranks, directory):
    group = dist.new_group(WORLD)
    before = group._get_sequence_number_for_group()
    dist.all_reduce(own(rank), group=group)
    return group._get_sequence_number_for_group() - before


@use
def setting_the_timeout(rank, ranks, directory):
    group = dist.new_group(WORLD)
    return dist.distributed_c10d._set_pg_timeout(timedelta(seconds=33), group)


@use
def aborting(rank, ranks, directory):
    group = dist.new_group(WORLD)
    dist.barrier()  # a rank that still connects to one that has aborted fails by chance
    dist.distributed_c10d._abort_process_group(group)


@use
def group_properties(rank, ranks, directory):
    group = dist.new_group(WORLD, group_desc="described")
    return (
        group.rank(),
        group.size(),
        group.group_desc,
        sorted(map(str, group._device_types)),
        group.group_name != "",
    )


def attributes(group):
    """All that a group says of itself, but for what is another one's (the type and the backend's name)."""
    backend = group._get_backend(torch.device("cpu"))
    return {
        "name": group.group_name,
        "description": group.group_desc,
        "rank": group.rank(),
        "size": group.size(),
        "bound device": group.bound_device_id,
        "devices": sorted(map(str, group._device_types)),
        "timeout": getattr(getattr(backend, "options", None), "_timeout", None),
        "backend": (backend.name(), backend.rank(), backend.size()),
        "hooks": group._has_hooks(),
        "has a store": group.get_group_store() is not None,
        "sequence": group._get_sequence_number_for_group(),
    }


LONG = timedelta(seconds=77)


@use
def attributes_of_the_default_group(rank, ranks, directory):
    return attributes(dist.group.WORLD)


@use
def attributes_of_a_new_group(rank, ranks, directory):
    return [
        attributes(dist.new_group(WORLD)),
        attributes(dist.new_group(WORLD, timeout=LONG, group_desc="described")),
    ]


@use
def attributes_of_a_split_group(rank, ranks, directory):
    world = dist.group.WORLD
    return attributes(world.split_group([rank], timeout=LONG, group_name=f"{rank}", group_desc="described"))


@use
def attributes_of_a_merged_group(rank, ranks, directory):
    store = dist.FileStore(str(directory / f"merged-{rank}"), 1)
    alone = [dist.new_group([each]) for each in WORLD][rank]
    return attributes(
        alone.merge_remote_group(store, 1, timeout=LONG, group_name="merged", group_desc="described")
    )


@use
def sharded_tensor_on_the_cpu(rank, ranks, directory):
    from torch.distributed._shard import sharded_tensor
    from torch.distributed._shard.sharding_spec import ChunkShardingSpec

    spec = ChunkShardingSpec(dim=0, placements=["rank:0/cpu", "rank:1/cpu"])
    tensor = sharded_tensor.full(spec, (4, 2), 3.0)
    tensor.local_tensor().add_(rank)
    gathered = torch.zeros(4, 2) if rank == 0 else None
    tensor.gather(0, gathered)
    return None if gathered is None else gathered.tolist()


@use
def a_tensor_that_is_not_contiguous(rank, ranks, directory):
    tensor = own(rank, 12).reshape(3, 4).t()
    dist.all_reduce(tensor)
    return tensor.tolist()


@use
def an_empty_tensor(rank, ranks, directory):
    tensor = torch.zeros(0)
    dist.all_reduce(tensor)
    return tensor.tolist()


# -- on top of it ------------------------------------------------------------------------------------------------------


@use
def functional_collectives(rank, ranks, directory):
    group = dist.group.WORLD
    return [
        functional.all_reduce(own(rank), "sum", group).tolist(),
        functional.all_gather_tensor(own(rank), 0, group).tolist(),
        functional.reduce_scatter_tensor(own(rank), "sum", 0, group).tolist(),
        functional.all_to_all_single(own(rank), [3, 3], [3, 3], group).tolist(),
        functional.broadcast(own(rank), 0, group).tolist(),
    ]


@use
def functional_coalesced(rank, ranks, directory):
    tensors = functional.all_reduce_coalesced([own(rank), own(rank, 2)], "sum", dist.group.WORLD)
    gathered = functional.all_gather_into_tensor_coalesced([own(rank), own(rank, 2)], dist.group.WORLD)
    return [tensor.tolist() for tensor in [*tensors, *gathered]]


@use
def autograd_functions(rank, ranks, directory):
    from torch.distributed.nn.functional import all_reduce as differentiable

    tensor = own(rank).requires_grad_()
    differentiable(tensor * (rank + 1)).sum().backward()
    return tensor.grad.tolist()


@use
def compiled(rank, ranks, directory):
    @torch.compile(backend="aot_eager", fullgraph=True)
    def step(tensor):
        return functional.all_reduce(tensor * 2, "sum", dist.group.WORLD) + 1

    return step(own(rank)).tolist()


@use
def compiled_in_place(rank, ranks, directory):
    @torch.compile(backend="aot_eager")
    def step(tensor):
        tensor = tensor * 2
        dist.all_reduce(tensor)
        return tensor + 1

    return step(own(rank)).tolist()


@use
def device_mesh(rank, ranks, directory):
    mesh = dist.init_device_mesh("cpu", (1, 2), mesh_dim_names=("outer", "inner"))
    tensor = own(rank)
    dist.all_reduce(tensor, group=mesh["inner"].get_group())
    return tensor.tolist(), mesh.get_coordinate(), mesh["outer"].size()


@use
def distributed_tensor(rank, ranks, directory):
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    mesh = dist.init_device_mesh("cpu", (2,))
    tensor = distribute_tensor(torch.arange(8.0).reshape(4, 2), mesh, [Shard(0)])
    product = tensor @ distribute_tensor(torch.ones(2, 3), mesh, [Replicate()])
    return product.full_tensor().tolist(), tensor.redistribute(placements=[Shard(1)]).to_local().tolist()


@use
def ddp(rank, ranks, directory):
    return trained(DistributedDataParallel(net()), rank)


@use
def ddp_with_many_buckets(rank, ranks, directory):
    return trained(DistributedDataParallel(net(64), bucket_cap_mb=0.01), rank, width=64)


@use
def ddp_with_static_graph(rank, ranks, directory):
    return trained(DistributedDataParallel(net(), static_graph=True), rank)


@use
def ddp_with_unused_parameters(rank, ranks, directory):
    class Half(nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.unused = net(), nn.Linear(2, 2)

        def forward(self, x):
            return self.used(x)

    return trained(DistributedDataParallel(Half(), find_unused_parameters=True), rank)


@use
def ddp_with_buffers(rank, ranks, directory):
    model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8))
    return trained(DistributedDataParallel(model), rank), model[1].running_mean.tolist()


@use
def ddp_with_a_comm_hook(rank, ranks, directory):
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook

    model = DistributedDataParallel(net())
    model.register_comm_hook(None, fp16_compress_hook)
    return trained(model, rank)


@use
def ddp_with_power_sgd(rank, ranks, directory):
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

    model = DistributedDataParallel(net())
    state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=1, start_powerSGD_iter=2)
    model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    return trained(model, rank, steps=4)


@use
def ddp_join(rank, ranks, directory):
    model = DistributedDataParallel(net())
    with model.join():
        return trained(model, rank, steps=2 + rank)


@use
def ddp_no_sync(rank, ranks, directory):
    model = DistributedDataParallel(net())
    with model.no_sync():
        model(torch.ones(2, 8) * rank).sum().backward()
    return trained(model, rank)


@use
def synchronised_batch_norm_is_refused_on_the_cpu(rank, ranks, directory):
    nn.SyncBatchNorm.convert_sync_batchnorm(nn.Sequential(nn.BatchNorm1d(8)))(torch.ones(4, 8))


@use
def zero_redundancy_optimizer(rank, ranks, directory):
    from torch.distributed.optim import ZeroRedundancyOptimizer

    model = DistributedDataParallel(net())
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.05, foreach=False)
    return trained(model, rank, optimizer=optimizer)


@use
def post_local_sgd(rank, ranks, directory):
    from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager

    model, averager = net(), PeriodicModelAverager(period=2)
    for step in range(4):
        trained(model, rank + step, steps=1)
        averager.average_parameters(model.parameters())
    return checksum(model)


@use
def fsdp1(rank, ranks, directory):
    from torch.distributed.fsdp import FullyShardedDataParallel

    return trained(FullyShardedDataParallel(net(), device_id=torch.device("cpu")), rank)


@use
def fsdp2(rank, ranks, directory):
    from torch.distributed.fsdp import fully_shard

    model = net()
    mesh = dist.init_device_mesh("cpu", (2,))
    for layer in (model[0], model[2]):
        fully_shard(layer, mesh=mesh)
    return trained(fully_shard(model, mesh=mesh), rank)


@use
def tensor_parallel(rank, ranks, directory):
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    model = parallelize_module(net(), dist.init_device_mesh("cpu", (2,)), plan)
    return trained(model, 0)


@use_since((2, 10))
def pipeline(rank, ranks, directory):
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

    module = net()[2 * rank]
    stage = PipelineStage(module, rank, ranks, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, 2, loss_fn=nn.functional.mse_loss)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        schedule.step(torch.ones(4, 8)) if rank == 0 else schedule.step(target=torch.zeros(4, 8))
        optimizer.step()
    return checksum(module)


@use
def checkpoint(rank, ranks, directory):
    from torch.distributed import checkpoint as dcp
    from torch.distributed.fsdp import fully_shard

    model = fully_shard(net(), mesh=dist.init_device_mesh("cpu", (2,)))
    dcp.save(model.state_dict(), checkpoint_id=str(directory / "checkpoint"))
    again = fully_shard(
        nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)), mesh=dist.init_device_mesh("cpu", (2,))
    )
    state = again.state_dict()
    dcp.load(state, checkpoint_id=str(directory / "checkpoint"))
    again.load_state_dict(state)
    return checksum(again) == checksum(model), checksum(again)


@use
def profiler_events(rank, ranks, directory):
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        dist.all_reduce(own(rank))
        dist.broadcast(own(rank), 0)
    return sorted(
        {event.key for event in profiler.key_averages() if "c10d::" in event.key or "gloo:" in event.key}
    )


@use
def comm_debug_mode(rank, ranks, directory):
    from torch.distributed.tensor.debug import CommDebugMode

    with CommDebugMode() as mode:
        functional.all_reduce(own(rank), "sum", dist.group.WORLD).tolist()
        dist.all_reduce(own(rank))
    return {str(key): count for key, count in mode.get_comm_counts().items()}


@use
def pickling_a_reduce_op(rank, ranks, directory):
    stream = io.BytesIO()
    torch.save({"op": dist.ReduceOp.SUM}, stream)
    return stream.tell() > 0


@use
def an_operation_of_a_wrong_shape(rank, ranks, directory):
    dist.all_gather_into_tensor(torch.zeros(5), own(rank))


@use
def a_wrong_root(rank, ranks, directory):
    dist.broadcast(own(rank), 7)


def run_all(rank, ranks, directory):
    """The outcome of every use on this rank: its value, or the exception's type and first line."""
    warnings.simplefilter("ignore")
    outcome = {}
    for name, function in USES.items():
        dist.barrier()
        try:
            outcome[name] = ("returned", function(rank, ranks, directory))
        except Exception as error:
            lines = str(error).splitlines() or [""]
            outcome[name] = ("raised", type(error).__name__, lines[0])
    return outcome

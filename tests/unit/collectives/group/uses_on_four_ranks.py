"""Uses of torch.distributed on 4 ranks: asynchronous forms, parts of the world, two-dimensional meshes, faults.

They come on top of those in tests/unit/collectives/group/uses.py, which run on 2 ranks. Each is a function of (rank,
directory) and returns what can be compared; `USES` has them by name.
"""

import warnings
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import _functional_collectives as functional
from torch.distributed import distributed_c10d as c10d
from torch.nn.parallel import DistributedDataParallel

from tests.unit.collectives.group.uses import TORCH, checksum, net, own, parts, trained

RANKS = 4
SHORT = timedelta(milliseconds=500)
USES = {}


def use(function):
    USES[function.__name__] = function
    return function


def use_since(earliest):
    return use if earliest <= TORCH else lambda function: function


def lists(tensors):
    return [tensor.tolist() for tensor in tensors]


def apart(ranks, **options):
    """A group of its own for what may fail: Gloo's next operation in the same group may raise the same error."""
    return dist.new_group(ranks, **options)


def error_of(function, *arguments, **options):
    """The exception's type and first line, for a use whose ranks must go on afterwards."""
    try:
        function(*arguments, **options)
    except Exception as error:
        return type(error).__name__, str(error).splitlines()[0]
    return "nothing raised"


@use
def locally_synchronised_group(rank, directory):
    # The first, and one on each rank: torch names groups by how many a rank has made, so that it must be equally many.
    group = dist.new_group([0, 1] if rank < 2 else [2, 3], use_local_synchronization=True)
    tensor = own(rank)
    dist.all_reduce(tensor, group=group)
    return tensor.tolist()


# -- asynchronous forms and what a work tells --------------------------------------------------------------------------


def _asynchronous(rank):
    """Every collective: its name, its arguments, and the tensors it leaves results in."""
    gathered, scattered, exchanged = [[torch.zeros(3) for _ in range(RANKS)] for _ in range(3)]
    tensor, joined, piece, other = own(rank), torch.zeros(12), torch.zeros(3), torch.zeros(3)
    swapped, summed = torch.zeros(4), torch.zeros(3)
    at_root = scattered if rank == 1 else None
    sources = parts(rank, RANKS) if rank == 2 else None
    return {
        "all_reduce": ((tensor,), [tensor]),
        "broadcast": ((own(rank, 3), 3), []),
        "reduce": ((summed.add_(rank), 0), [summed] if rank == 0 else []),
        "all_gather": ((gathered, own(rank, 3)), gathered),
        "all_gather_into_tensor": ((joined, own(rank, 3)), [joined]),
        "gather": ((own(rank, 3), at_root, 1), scattered),
        "scatter": ((piece, sources, 2), [piece]),
        "reduce_scatter": ((other, parts(rank, RANKS)), [other]),
        "reduce_scatter_tensor": ((torch.zeros(3), torch.cat(parts(rank, RANKS))), []),
        "all_to_all": ((exchanged, parts(rank, RANKS)), exchanged),
        "all_to_all_single": ((swapped, own(rank, 4)), [swapped]),
        "barrier": ((), []),
    }


@use
def every_collective_async(rank, directory):
    results = {}
    for name, (arguments, tensors) in _asynchronous(rank).items():
        work = getattr(dist, name)(*arguments, async_op=True)
        waited = work.wait(timedelta(seconds=30))
        tensors = tensors or [each for each in arguments if isinstance(each, torch.Tensor)]
        results[name] = waited, work.is_completed(), work.is_success(), lists(tensors)
    return results


@use
def every_future(rank, directory):
    results = {}
    for name, (arguments, _) in _asynchronous(rank).items():
        work = getattr(dist, name)(*arguments, async_op=True)
        work.wait()
        try:
            future = work.get_future()
            results[name] = future.then(lambda done: repr(done.value())).wait(), future.done()
        except RuntimeError as error:  # Gloo's barrier has none
            results[name] = str(error).splitlines()[0]
    return results


@use
def many_works_waited_for_in_reverse(rank, directory):
    tensors = [own(rank) + number for number in range(50)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    for work in reversed(works):
        work.wait()
    return lists(tensors)


@use
def works_that_nobody_waits_for(rank, directory):
    tensors = [own(rank) for _ in range(20)]
    for tensor in tensors:
        dist.all_reduce(tensor, async_op=True)
    dist.barrier()
    return lists(tensors)


@use
def chained_callbacks(rank, directory):
    future = dist.all_reduce(own(rank), async_op=True).get_future()
    seen = []
    future.add_done_callback(lambda done: seen.append(done.value()[0].sum().item()))
    doubled = future.then(lambda done: done.value()[0] * 2).then(lambda done: done.value().tolist())
    return torch.futures.wait_all([doubled]), seen


@use
def a_callback_that_raises(rank, directory):
    def raising(done):
        raise ValueError("from the callback")

    return error_of(dist.all_reduce(own(rank), async_op=True).get_future().then(raising).wait)


@use
def what_a_work_tells(rank, directory):
    work = dist.all_reduce(own(rank), async_op=True)
    work.wait()
    return lists(work.result()), error_of(work.exception), error_of(work.source_rank), work.synchronize()


@use
def what_a_receive_tells(rank, directory):
    if rank % 2 == 0:
        work = dist.isend(own(rank), rank + 1)
        return work.wait(), work.is_completed()
    tensor = torch.zeros(6)
    work = dist.irecv(tensor, rank - 1)
    return work.wait(), work.is_completed(), work._source_rank(), tensor.tolist()


# -- coalescing --------------------------------------------------------------------------------------------------------


@use
def coalesced_all_gathers(rank, directory):
    outputs = [torch.zeros(12), torch.zeros(8)]
    with dist._coalescing_manager(async_ops=True) as manager:
        dist.all_gather_into_tensor(outputs[0], own(rank, 3))
        dist.all_gather_into_tensor(outputs[1], own(rank, 2))
    manager.wait()
    return lists(outputs)


@use
def coalesced_reduce_scatters(rank, directory):
    outputs = [torch.zeros(3), torch.zeros(2)]
    with dist._coalescing_manager():
        dist.reduce_scatter_tensor(outputs[0], own(rank, 12))
        dist.reduce_scatter_tensor(outputs[1], own(rank, 8))
    return lists(outputs)


@use
def coalesced_functional_reduce_scatters(rank, directory):
    inputs = [own(rank, 12), own(rank, 8)]
    return lists(functional.reduce_scatter_tensor_coalesced(inputs, "sum", [0, 0], dist.group.WORLD))


@use
def methods_of_the_group(rank, directory):
    group = dist.group.WORLD
    reduced, gathered = own(rank), [[torch.zeros(3) for _ in range(RANKS)]]
    group.allreduce([reduced]).wait()
    group.allgather(gathered, [own(rank, 3)]).wait()
    group.broadcast(shared := own(rank, 3), 2).wait()
    group.barrier().wait()
    return reduced.tolist(), lists(gathered[0]), shared.tolist()


# -- parts of the world ------------------------------------------------------------------------------------------------


@use
def a_part_of_the_world_out_of_order(rank, directory):
    group = dist.new_group([3, 0, 2])
    if rank == 1:
        return dist.get_rank(group), dist.all_reduce(own(rank), group=group)
    tensor, joined = own(rank), torch.zeros(9)
    dist.all_reduce(tensor, group=group)
    dist.all_gather_into_tensor(joined, own(rank, 3), group=group)
    return (
        dist.get_process_group_ranks(group),
        dist.get_group_rank(group, rank),
        tensor.tolist(),
        joined.tolist(),
    )


@use
def roots_by_their_rank_in_the_group(rank, directory):
    group = dist.new_group([1, 3])
    if rank in (0, 2):
        return None
    tensor, objects = own(rank), [rank, "object"]
    gathered = [torch.zeros(6), torch.zeros(6)] if rank == 3 else None
    dist.broadcast(tensor, group=group, group_src=1)
    dist.broadcast_object_list(objects, group=group, group_src=0)
    dist.gather(own(rank), gathered, group=group, group_dst=1)
    dist.reduce(summed := own(rank), group=group, group_dst=1)
    return tensor.tolist(), objects, gathered and lists(gathered), summed.tolist() if rank == 3 else None


@use
def messages_inside_a_group(rank, directory):
    group = dist.new_group([1, 2, 3])
    if rank == 0:
        return None
    tensor = own(rank)
    if rank == 1:
        return sorted(dist.recv(tensor, group=group, tag=4) for _ in range(2))
    return dist.send(tensor, group_dst=0, group=group, tag=4)


@use
def a_ring_of_batched_messages(rank, directory):
    tensor = torch.zeros(6)
    works = dist.batch_isend_irecv(
        [
            dist.P2POp(dist.irecv, tensor, (rank - 1) % RANKS),
            dist.P2POp(dist.isend, own(rank), (rank + 1) % RANKS),
        ]
    )
    for work in works:
        work.wait()
    return tensor.tolist(), len(works)


@use
def receiving_from_anyone_asynchronously(rank, directory):
    if rank != 0:
        return dist.send(torch.tensor([float(rank)]), 0, tag=9)
    tensors = [torch.zeros(1) for _ in range(3)]
    for work in [dist.irecv(tensor, tag=9) for tensor in tensors]:
        work.wait()
    return sorted(tensor.item() for tensor in tensors)


@use
def groups_within_groups_of_two(rank, directory):
    group, groups = dist.new_subgroups(2)
    tensor = own(rank)
    dist.all_reduce(tensor, group=group)
    dist.barrier(group=group)
    return tensor.tolist(), len(groups), dist.get_process_group_ranks(group)


@use
def crossed_groups_by_enumeration(rank, directory):
    group, _ = dist.new_subgroups_by_enumeration([[0, 2], [1, 3]])
    objects = [None, None]
    dist.all_gather_object(objects, ("rank", rank), group=group)
    return objects


@use
def groups_made_and_destroyed(rank, directory):
    sums = []
    for number in range(5):
        group = dist.new_group(range(RANKS))
        tensor = own(rank) + number
        dist.all_reduce(tensor, group=group)
        sums.append(tensor.tolist())
        dist.destroy_process_group(group)
    return sums, c10d.get_pg_count()


@use
def names_and_configuration(rank, directory):
    group = dist.new_group(range(RANKS))
    config = dist.get_backend_config(group)
    return (
        dist.get_backend(group),
        # Gloo has cuda where torch has none; under its own name the backend has what torch has.
        config.replace("mltcp", "gloo").removesuffix("" if torch.cuda.is_available() else ",cuda:gloo"),
        type(c10d._get_process_group_store(group)).__name__,
        c10d._get_pg_default_device(group).type,
        sorted(c10d._device_capability(group)),
        c10d._get_object_coll_device(group),
    )


@use
def a_store_based_barrier(rank, directory):
    store = c10d._get_default_store()
    return c10d._store_based_barrier(rank, store, "conformance", RANKS, timedelta(seconds=20))


# -- faults ------------------------------------------------------------------------------------------------------------


@use
def a_rank_that_does_not_come(rank, directory):
    group = apart(range(RANKS), timeout=SHORT)
    return None if rank == 3 else error_of(dist.all_reduce, own(rank), group=group)[0]


@use
def a_rank_that_does_not_come_to_a_monitored_barrier(rank, directory):
    group = apart(range(RANKS))
    if rank == 2:
        return None
    told = error_of(dist.monitored_barrier, group, SHORT, wait_all_ranks=True)
    return told if rank == 0 else told[0]


@use
def a_message_that_does_not_come(rank, directory):
    group = apart([0, 1], timeout=SHORT)
    return error_of(dist.recv, torch.zeros(1), 1, group=group)[0] if rank == 0 else None


@use
def a_shorter_timeout_set_later(rank, directory):
    group = apart(range(RANKS))
    c10d._set_pg_timeout(SHORT, group)
    return None if rank == 3 else error_of(dist.all_reduce, own(rank), group=group)[0]


@use
def waiting_too_short(rank, directory):
    group = apart([0, 1])
    if rank != 0:
        return None
    work = dist.all_reduce(own(rank), group=group, async_op=True)
    return error_of(work.wait, SHORT)[0]


@use
def a_future_that_fails(rank, directory):
    group = apart(range(RANKS), timeout=SHORT)
    if rank == 3:
        return None
    future = dist.all_reduce(own(rank), group=group, async_op=True).get_future()
    return error_of(future.wait)[0]


@use
def arguments_that_cannot_be(rank, directory):
    group = apart(range(RANKS))
    return [
        error_of(dist.all_reduce, [1, 2], group=group),
        error_of(dist.all_gather, [torch.zeros(2)], own(rank), group=group),
        error_of(dist.send, own(rank), rank, group=group),
        error_of(dist.scatter, torch.zeros(1), None, 0, group=group) if rank == 0 else None,
        error_of(dist.gather, torch.zeros(1), None, 0, group=group) if rank == 0 else None,
        error_of(dist.reduce, own(rank), 9, group=group),
        error_of(dist.all_to_all_single, torch.zeros(5), own(rank, 5), group=group),
        error_of(dist.new_group, [0, 9]),
    ]


@use
def a_group_that_was_aborted(rank, directory):
    group = apart(range(RANKS))
    c10d._abort_process_group(group)
    return error_of(dist.all_reduce, own(rank), group=group)


@use
def an_operation_gloo_has_not(rank, directory):
    group = apart(range(RANKS))
    sparse = torch.sparse_coo_tensor([[rank]], [1.0], (4,))
    return [
        error_of(dist.broadcast, sparse, 0, group=group),
        error_of(c10d._time_estimator(group, torch.device("cpu")).__enter__),
        error_of(dist.shrink_group, [3], group=group),
    ]


# -- training on meshes ------------------------------------------------------------------------------------------------


def mesh_of_two_by_two():
    return dist.init_device_mesh("cpu", (2, 2), mesh_dim_names=("outer", "inner"))


@use
def a_mesh_and_its_slices(rank, directory):
    mesh = mesh_of_two_by_two()
    rows, columns, flat = own(rank), own(rank), own(rank)
    dist.all_reduce(rows, group=mesh["outer"].get_group())
    dist.all_reduce(columns, group=mesh["inner"].get_group())
    dist.all_reduce(flat, group=mesh["outer", "inner"]._flatten("both").get_group())
    return rows.tolist(), columns.tolist(), flat.tolist(), mesh.get_coordinate(), mesh.get_local_rank("inner")


@use
def distributed_tensors_on_a_mesh(rank, directory):
    from torch.distributed.tensor import Partial, Replicate, Shard, distribute_tensor

    mesh = mesh_of_two_by_two()
    tensor = distribute_tensor(torch.arange(64.0).reshape(8, 8), mesh, [Shard(0), Shard(1)])
    moved = tensor.redistribute(placements=[Shard(1), Replicate()])
    partial = type(tensor).from_local(own(rank, 8), mesh, [Partial(), Partial()])
    return (
        (tensor @ tensor.t()).full_tensor().tolist(),
        moved.to_local().tolist(),
        partial.full_tensor().tolist(),
    )


@use
def hybrid_sharding(rank, directory):
    from torch.distributed.fsdp import fully_shard

    model = net()
    mesh = mesh_of_two_by_two()
    fully_shard(model[0], mesh=mesh)
    return trained(fully_shard(model, mesh=mesh), rank)


@use
def fsdp1_in_each_strategy(rank, directory):
    from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy

    sums = {}
    for strategy in (ShardingStrategy.FULL_SHARD, ShardingStrategy.SHARD_GRAD_OP, ShardingStrategy.NO_SHARD):
        model = FullyShardedDataParallel(
            net(), sharding_strategy=strategy, use_orig_params=True, device_id=torch.device("cpu")
        )
        sums[strategy.name] = trained(model, rank)
    return sums


@use
def fsdp2_with_tensor_parallel(rank, directory):
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = mesh_of_two_by_two()
    plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    model = parallelize_module(net(), mesh["inner"], plan)
    return trained(fully_shard(model, mesh=mesh["outer"]), mesh.get_local_rank("outer"))


@use
def sequence_parallel(rank, directory):
    from torch.distributed.tensor.parallel import SequenceParallel, parallelize_module

    model = parallelize_module(
        nn.Sequential(nn.LayerNorm(8)), dist.init_device_mesh("cpu", (RANKS,)), {"0": SequenceParallel()}
    )
    torch.manual_seed(2)
    return model(torch.randn(2, 2, 8)).full_tensor().tolist()


@use
def ddp_in_each_manner(rank, directory):
    manners = {
        "bucket views": {"gradient_as_bucket_view": True},
        "small buckets": {"bucket_cap_mb": 0.001},
        "own group": {"process_group": dist.new_group(range(RANKS))},
    }
    return {how: trained(DistributedDataParallel(net(), **options), rank) for how, options in manners.items()}


@use
def ddp_with_each_hook(rank, directory):
    from torch.distributed.algorithms.ddp_comm_hooks import debugging_hooks, default_hooks

    hooks = {
        "all_reduce": default_hooks.allreduce_hook,
        "wrapped": default_hooks.fp16_compress_wrapper(default_hooks.allreduce_hook),
        "none": debugging_hooks.noop_hook,
    }
    sums = {}
    for how, hook in hooks.items():
        model = DistributedDataParallel(net())
        model.register_comm_hook(None, hook)
        sums[how] = trained(model, rank)
    refused = DistributedDataParallel(net())
    return sums, error_of(refused.register_comm_hook, None, default_hooks.bf16_compress_hook)


@use
def ddp_whose_models_differ(rank, directory):
    group = apart(range(RANKS), timeout=timedelta(seconds=2))
    model = nn.Linear(8, 8 + (rank == 1))
    told = error_of(DistributedDataParallel, model, process_group=group)
    return told if rank == 1 else told[0]  # the others run into a time-out, whose text depends on when


@use
def ddp_compiled(rank, directory):
    model = DistributedDataParallel(net())
    return trained(torch.compile(model, backend="aot_eager"), rank)


@use
def compiled_in_groups(rank, directory):
    group = mesh_of_two_by_two()["inner"].get_group()

    @torch.compile(backend="aot_eager", fullgraph=True)
    def step(tensor):
        gathered = functional.all_gather_tensor(tensor, 0, group)
        return functional.reduce_scatter_tensor(gathered * 2, "sum", 0, group)

    return step(own(rank)).tolist()


@use
def zero_with_overlap_and_consolidation(rank, directory):
    from torch.distributed.optim import ZeroRedundancyOptimizer

    model = DistributedDataParallel(net())
    optimizer = ZeroRedundancyOptimizer(
        model.parameters(), torch.optim.Adam, parameters_as_bucket_view=True, lr=0.05, foreach=False
    )
    total = trained(model, rank, optimizer=optimizer)
    optimizer.consolidate_state_dict(to=0)
    return total, len(optimizer.state_dict()["state"]) if rank == 0 else None


@use_since((2, 10))  # as in tests/unit/collectives/group/uses.py
def a_pipeline_of_four(rank, directory):
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    torch.manual_seed(rank)
    module = nn.Linear(8, 8)
    schedule = Schedule1F1B(
        PipelineStage(module, rank, RANKS, torch.device("cpu")), 4, nn.functional.mse_loss
    )
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        schedule.step(
            *([torch.ones(8, 8)] if rank == 0 else []), **({"target": torch.zeros(8, 8)} if rank == 3 else {})
        )
        optimizer.step()
    return checksum(module)


@use
def an_asynchronous_checkpoint(rank, directory):
    from torch.distributed import checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict
    from torch.distributed.fsdp import fully_shard

    model = fully_shard(net(), mesh=dist.init_device_mesh("cpu", (RANKS,)))
    path = str(directory / "asynchronous")
    dcp.async_save(get_model_state_dict(model), checkpoint_id=path).result()
    torch.manual_seed(9)
    other = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
    other = fully_shard(other, mesh=dist.init_device_mesh("cpu", (RANKS,)))
    state = get_model_state_dict(other)
    dcp.load(state, checkpoint_id=path)
    set_model_state_dict(other, state)
    return checksum(other) == checksum(model), checksum(other)


@use
def differentiable_collectives(rank, directory):
    from torch.distributed.nn import functional as differentiable

    results = {}
    for name in ("all_gather", "all_to_all", "reduce_scatter", "broadcast"):
        tensor = own(rank, 4).requires_grad_()
        outcome = {
            "all_gather": lambda tensor=tensor: torch.cat(differentiable.all_gather(tensor)),
            "all_to_all": lambda tensor=tensor: torch.cat(
                differentiable.all_to_all([torch.zeros(1) for _ in range(RANKS)], list(tensor.split(1)))
            ),
            "reduce_scatter": lambda tensor=tensor: differentiable.reduce_scatter(
                torch.zeros(1), list(tensor.split(1))
            ),
            "broadcast": lambda tensor=tensor: differentiable.broadcast(tensor, 1),
        }[name]()
        (outcome * (rank + 1)).sum().backward()
        results[name] = outcome.tolist(), tensor.grad.tolist()
    return results


@use
def events_of_every_operation(rank, directory):
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        for name, (arguments, _) in _asynchronous(rank).items():
            getattr(dist, name)(*arguments)
    keys = {event.key for event in profiler.key_averages()}
    return sorted(key for key in keys if key.startswith(("c10d::", "gloo:", "record_param_comms")))


# -- everything again --------------------------------------------------------------------------------------------------


@use
def destroyed_and_made_again(rank, directory):
    """The last one: it takes the world away."""
    backend = dist.get_backend()
    sums = []
    for number in range(3):
        dist.barrier()
        dist.destroy_process_group()
        store = dist.FileStore(str(directory / f"again-{number}"), RANKS)
        dist.init_process_group(backend, store=store, rank=rank, world_size=RANKS)
        tensor = own(rank) + number
        dist.all_reduce(tensor)
        sums.append(tensor.tolist())
    return sums


def run_all(rank, ranks, directory):
    """The outcome of every use on this rank: its value, or the exception's type and first line."""
    warnings.simplefilter("ignore")
    outcome = {}
    for name, function in USES.items():
        # By the store: whatever a use did to the groups, the ranks meet again.
        c10d._store_based_barrier(rank, c10d._get_default_store(), name, ranks, timedelta(seconds=60))
        try:
            outcome[name] = ("returned", function(rank, directory))
        except Exception as error:
            lines = str(error).splitlines() or [""]
            outcome[name] = ("raised", type(error).__name__, lines[0])
    return outcome

"""Bytes that a rank puts on the network for an operation of Gloo's.

Measured on ``bytes_acked`` of the connections of 2, 3, 4, 5 and 8 ranks with 4 kB to 128 MiB and every root (S:
Operation.bytes; v: rank relative to the root; n: ranks), and equal to the algorithm's own count but for headers:

    all_reduce          2 (n-1)/n S          ring
    reduce_scatter      2 (n-1)/n S          an all-reduce of the whole input; of a list: one of each tensor
    all_gather          (n-1) S              ring
    all_to_all          (n-1)/n S            directly to each rank; even splits
    reduce              S; the root (n-1)/n S; more from 2 n MiB on (see _reduce)
    broadcast           S for each child in the binomial tree: v has the children v + 2^k < n with 2^k > v
    gather              S; the root nothing
    scatter             the root (n-1)/n S, the others nothing
    send                S
    barrier             144 bytes for each of ceil(log2 n) rounds

Headers are 48 to 144 bytes a message, and are left out: 576 (n-1) bytes for an all-reduce up to 2 n MiB, 288 (n-1) for
all_gather, 144 (n-1) for all_to_all, 576 n (n-1) for reduce_scatter of a list. With 1 MiB on 4 ranks that is 0.5 % at
most; with 4 kB it is 28 % of an all-reduce, and more than the payload of reduce_scatter of a list.

NCCL's rings send the same for all_reduce, all_gather and all_to_all, but half of it for reduce_scatter, (n-1)/n S, and
S from every rank but the last for broadcast. That, its trees, and traffic within a host are not modelled here.
"""

from __future__ import annotations

BARRIER_ROUND_BYTES = 144
REDUCE_SEGMENT_BYTES = 1 << 20
"""Gloo divides the tensor of a reduce into at least two segments per rank, none larger than this."""


def sent_bytes(name: str, nbytes: int, rank: int, size: int, root: int = 0) -> int:
    """Bytes that rank `rank` of `size` sends for the operation `name` with a payload of `nbytes`.

    `root` applies to broadcast, reduce, gather and scatter. An unknown operation sends nothing.
    """
    if size < 2:
        return 0
    others, is_root = size - 1, rank == root
    if name in ("all_reduce", "reduce_scatter"):
        return 2 * others * nbytes // size
    if name == "all_gather":
        return others * nbytes
    if name == "all_to_all":
        return others * nbytes // size
    if name == "reduce":
        return _reduce(nbytes, rank, size, is_root)
    if name == "broadcast":
        return nbytes * _children((rank - root) % size, size)
    if name == "gather":
        return 0 if is_root else nbytes
    if name == "scatter":
        return others * nbytes // size if is_root else 0
    if name == "barrier":
        return BARRIER_ROUND_BYTES * (size - 1).bit_length()
    return nbytes if name == "send" else 0


def _children(relative: int, size: int) -> int:
    """Number of children of a node in the binomial tree over `size` nodes."""
    first = relative.bit_length()
    return sum(relative + (1 << power) < size for power in range(first, size.bit_length()))


def _reduce(nbytes: int, rank: int, size: int, is_root: bool) -> int:
    """Bytes of a reduce: a rank sends all but the last two segments of its own chunk along the ring, then its chunk.

    With two segments per chunk that is a reduce-scatter and a gather. Larger tensors have more segments per chunk, and
    Gloo sends those on that a reduce-scatter would keep (the loop in gloo/reduce.cc ends two segments before the last,
    not one chunk before it).
    """
    segment = min(-(-nbytes // (2 * size)), REDUCE_SEGMENT_BYTES)
    if segment == 0:
        return 0
    segments_a_chunk = -(-max(-(-nbytes // segment), 2 * size) // size)
    chunk_start, chunk_end = (min(nbytes, each * segments_a_chunk * segment) for each in (rank, rank + 1))
    kept_start = min(nbytes, ((rank + 1) * segments_a_chunk - 2) * segment)
    round_the_ring = nbytes - (chunk_end - kept_start)
    return round_the_ring if is_root else round_the_ring + chunk_end - chunk_start

"""What a rank puts on the network for an operation of Gloo's.

Measured on ``bytes_acked`` of the connections of 2, 3, 4, 5 and 8 ranks with 1 MiB (S: Operation.bytes; v: rank
relative to the root; n: ranks), and equal to the algorithm's own count within headers (48 to
144 bytes a message, 1.6 % at most):

    all_reduce          2 (n-1)/n S          ring
    reduce_scatter      2 (n-1)/n S          an all-reduce of the whole input
    all_gather          (n-1) S              ring
    all_to_all          (n-1)/n S            directly to each rank; even splits
    reduce              S; the root (n-1)/n S
    broadcast           S for each child in the binomial tree: v has the children v + 2^k < n with 2^k > v
    gather              S; the root nothing
    scatter             the root (n-1)/n S, the others nothing
    send                S
    barrier             144 bytes for each of ceil(log2 n) rounds

NCCL's rings send the same; its trees, and what stays inside a host, are not told apart.
"""

from __future__ import annotations

BARRIER_ROUND_BYTES = 144


def sent_bytes(name: str, nbytes: int, rank: int, size: int, root: int = 0) -> int:
    """Bytes that rank `rank` of `size` sends for the operation `name` with a payload of `nbytes`.

    `root` matters to broadcast, reduce, gather and scatter. An unknown operation sends nothing.
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
        return others * nbytes // size if is_root else nbytes
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
    """The children of a node of the binomial tree over `size` nodes."""
    first = relative.bit_length()
    return sum(relative + (1 << power) < size for power in range(first, size.bit_length()))

"""The ``mltcp`` backend of torch.distributed: a process group around Gloo and NCCL that knows a job's iterations.

This room is reserved: nothing is registered with torch yet. Any program, PyTorch ones included, runs under MLTCP
without it, through ``mltcp run``.
"""

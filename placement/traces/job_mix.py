"""What the jobs of a cluster's trace train, and how they divide it: descriptions for `simulator.network.parallelism`.

A trace says how many GPUs a job had, and mostly no more. The rule:

* ``equal``: every job trains bert, data-parallel: the jobs of a sweep.
* ``random``: every network that fits is equally likely; transformers of `LANGUAGE` from 8 GPUs on.
* ``llm``: from 8 GPUs on one of `LANGUAGE` that fits, each equally likely; below one of `ENCODERS`.

A network is chosen by the seed and the job's user and number of GPUs, so that a user who comes again with as many
trains the same again; by its name where no user is told. Where the trace tells what was trained (`RECORDED`),
``random`` and ``llm`` take that, if it fits.

A transformer is divided so that 16 bytes a parameter (Rajbhandari et al., SC 2020: two of weights, two of gradients and
twelve of Adam) take at most `MOST_BYTES` of a GPU: over the fewest tensor-parallel GPUs of one host, up to 8, and then
over the fewest stages; what is left is data parallel. One that cannot be divided so by the job's GPUs does not fit. Its
batch has `TOKENS` tokens, or a sequence a replica if that is more, in one microbatch or in four a stage.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from mltcp.core.errors import UsageError, shown
from placement.traces.model_shapes import DATA_PARALLEL, TRANSFORMERS, Transformer
from placement.traces.recorded_trace import RecordedJob

MIXES = ("equal", "random", "llm")
EQUAL = "bert"
ENCODERS = ("bert", "camembert", "roberta")
NETWORKS = ("vgg11", "vgg16", "vgg19", "resnet50", "wideresnet101", *ENCODERS)
LANGUAGE = ("gpt2", "llama7b", "llama13b", "llama30b", "llama65b", "gpt3")

RECORDED: Mapping[str, str] = MappingProxyType(
    {
        "llama": "llama7b",
        "gpt-7b": "llama7b",
        "gpt-13b": "llama13b",
        "llama_30b": "llama30b",
        "65b": "llama65b",
        "gpt-3b": "gpt2",
        "resnet": "resnet50",
        "bert": "bert",
    }
)
"""The networks for those that Lingjun's trace names."""

FEWEST_OF_LANGUAGE = 8
PARAMETER_BYTES = 16
MOST_BYTES = 64e9
TOKENS = 1 << 19
"""Half a million, as Brown et al. (2020) have for their smaller networks."""

_TENSOR = (1, 2, 4, 8)
_STAGE_MICROBATCHES = 4


@dataclass(frozen=True)
class JobMix:
    """Assigns networks to jobs.

    Attributes:
        name: one of `MIXES`.
        seed: of the choices.
        host_gpus: of a host, which tensor parallelism does not leave.

    Raises:
        UsageError: another name.
    """

    name: str = "random"
    seed: int = 0
    host_gpus: int = 8

    def __post_init__(self) -> None:
        if self.name not in MIXES:
            raise UsageError(f"mix: expected {', '.join(MIXES)}, got {shown(self.name)}")

    def description(self, job: RecordedJob) -> str:
        """What the job trains and how, such as ``llama7b:dp=4,tp=2,pp=1,batch=64,microbatches=1,slices=1``."""
        return _described(self._network(job), job.gpus, self.host_gpus)

    def _network(self, job: RecordedJob) -> str:
        if self.name == "equal":
            return EQUAL
        recorded = RECORDED.get(job.model.lower())
        if recorded is not None and self._fits(recorded, job.gpus):
            return recorded
        language = [each for each in LANGUAGE if self._fits(each, job.gpus)]
        if job.gpus < FEWEST_OF_LANGUAGE or not language:
            choices = list(ENCODERS) if self.name == "llm" else list(NETWORKS)
        else:
            choices = language if self.name == "llm" else [*NETWORKS, *language]
        return choices[_hash(f"{self.seed} {job.user or job.name} {job.gpus}") % len(choices)]

    def _fits(self, network: str, gpus: int) -> bool:
        return network in DATA_PARALLEL or _degrees(TRANSFORMERS[network], gpus, self.host_gpus) is not None


def _described(network: str, gpus: int, host_gpus: int) -> str:
    if network in DATA_PARALLEL:
        sizes = DATA_PARALLEL[network]
        return f"{network}:dp={gpus},megabytes={sizes.megabytes:.6g},compute_ms={sizes.compute_ms():.6g}"
    shape = TRANSFORMERS[network]
    degrees = _degrees(shape, gpus, host_gpus)
    assert degrees is not None, "it fits"
    tensor, stages = degrees
    replicas = gpus // (tensor * stages)
    microbatches = _STAGE_MICROBATCHES * stages if stages > 1 else 1
    batch = max(1, TOKENS // (replicas * shape.sequence * microbatches))
    return (
        f"{network}:dp={replicas},tp={tensor},pp={stages},batch={batch},microbatches={microbatches},slices=1"
    )


def _degrees(shape: Transformer, gpus: int, host_gpus: int) -> tuple[int, int] | None:
    """The tensor-parallel GPUs and the stages over which it is divided; None: the GPUs do not hold it."""
    least = shape.parameters * PARAMETER_BYTES / MOST_BYTES
    tensors = [each for each in _TENSOR if gpus % each == 0 and each <= host_gpus]
    for tensor in tensors:
        if tensor >= least:
            return tensor, 1
    tensor = tensors[-1]
    for stages in range(2, gpus // tensor + 1):
        if tensor * stages >= least and shape.layers % stages == 0 and gpus % (tensor * stages) == 0:
            return tensor, stages
    return None


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()[:8])

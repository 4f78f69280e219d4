"""Real models as work of a job, from short descriptions: ``bert:dp=2``, ``gpt2:pp=2,dp=2,scale=0.1``, ``dlrm:ep=4``.

A description is ``MODEL[:KEY=VALUE,...]``, as of `placement.simulator.network.parallelism`:

* ``dp`` (or ``ddp``) data parallel, by DistributedDataParallel; ``fsdp`` with all parameters sharded (`fully_shard`);
* ``tp`` tensor parallel within layers (`parallelize_module`), ``pp`` a pipeline of stages (1F1B);
* ``ep`` experts, or embedding tables, on as many workers, reached by all-to-alls. Without any of these, dp is 2.

Other keys: ``scale`` of width, depth, vocabulary and sequence (1 is the published size), ``batch``, samples of a
microbatch on a worker, ``microbatches`` (2 pp), ``tune`` (full, lora, frozen), and ``compute_ms``, the computing of
an iteration. Worker t + tp (d + dp s) is tensor rank t of replica d of stage s. ``:8`` at the end says how
many there are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from bench.workloads.profile import builtin_names
from mltcp.core.errors import UsageError, shown
from mltcp.core.quantities import parse_number


@dataclass(frozen=True)
class LanguageShape:
    """The published shape of a transformer; `head` is the size of an attention head."""

    layers: int
    hidden: int
    head: int
    feed_forward: int
    sequence: int
    vocabulary: int

    @property
    def heads(self) -> int:
        """Of attention."""
        return self.hidden // self.head

    def scaled(self, scale: float, stages: int = 1, tensor: int = 1) -> LanguageShape:
        """Width, depth, vocabulary and sequence multiplied; layers fill `stages`, heads are shared by `tensor`.

        Heads keep their size, so that the width is a whole number of them.
        """
        heads = _multiple(self.heads * scale, tensor)
        hidden = heads * self.head
        return LanguageShape(
            _multiple(self.layers * scale, stages),
            hidden,
            self.head,
            _multiple(self.feed_forward / self.hidden * hidden, 8 * tensor),
            max(8, round(self.sequence * scale)),
            max(64, round(self.vocabulary * scale)),
        )


def _multiple(value: float, of: int) -> int:
    return of * max(1, round(value / of))


LANGUAGE: Mapping[str, LanguageShape] = MappingProxyType(
    {
        "bert": LanguageShape(12, 768, 64, 3072, 512, 30522),
        "roberta": LanguageShape(24, 1024, 64, 4096, 512, 50265),
        "camembert": LanguageShape(12, 768, 64, 3072, 512, 32005),
        "xlm": LanguageShape(12, 1024, 128, 4096, 512, 95000),
        "gpt1": LanguageShape(12, 768, 64, 3072, 512, 40478),
        "gpt2": LanguageShape(48, 1600, 64, 6400, 1024, 50257),
        "gpt3": LanguageShape(96, 12288, 128, 49152, 2048, 50257),
        "llama": LanguageShape(32, 4096, 128, 11008, 2048, 32000),
        "moe": LanguageShape(32, 4096, 128, 14336, 2048, 32000),
    }
)
"""Devlin et al. (2019, base), Liu et al. (2019, large), Martin et al. (2020, base), Lample and Conneau (2019, XNLI-15),
Radford et al. (2018, 2019: the largest), Brown et al. (2020: the largest), Touvron et al. (2023: the smallest), Jiang
et al. (2024: Mixtral 8x7B)."""

MASKED = ("bert", "roberta", "camembert", "xlm")
"""Encoders, which learn words that are masked; the others learn the next word."""

VISION = ("vgg11", "vgg16", "vgg19", "resnet50", "wideresnet101")
DLRM, EXPERTS = "dlrm", "moe"
MODELS = (*VISION, *LANGUAGE, DLRM)

_DIVISIONS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "tp": ("gpt3", "llama"),
        "pp": ("gpt1", "gpt2", "gpt3", "llama"),
        "ep": (DLRM, EXPERTS),
        "fsdp": (*VISION, *LANGUAGE),
    }
)
"""The models that can be divided so; all but DLRM can be data parallel."""

TUNES = ("full", "lora", "frozen")
"""What is trained: everything, low-rank updates of the attention (Hu et al., 2022), or the head alone."""

VALUE_BYTES = 4
"""Of a parameter, a gradient, an activation."""

FORWARD = 1 / 3
"""The share of the forward pass in the computing of an iteration (2 of 6 FLOP a parameter and token)."""

_WHOLE = ("dp", "fsdp", "tp", "pp", "ep", "batch", "microbatches")
_KEYS = (*_WHOLE, "scale", "tune", "compute_ms")
MOST_RANKS = 64
_RECOMMENDATIONS = 512
"""The batch of DLRM, whose samples are small."""


@dataclass(frozen=True)
class ModelWork:
    """The training of a model; see the module's text for what its fields mean.

    Attributes:
        sharded: whether the data-parallel workers share the parameters (``fsdp``).
        compute_s: of an iteration; a faster machine waits for the rest of it, block by block.
        scale: 0: the largest of a few at which the model has at most 6 MB of parameters.
        bucket_bytes: of gradients that are reduced at once: 25 MiB at the published size, and less in proportion.
        sent_bytes: that a rank sends in an iteration, about; for what a run is expected to take.
        gradient_bytes: of the gradients that a rank has in common with its replicas.
        block_bytes: of them, those of each block, in the order of the forward pass, if the model is not divided.

    Raises:
        UsageError: the model cannot be divided like that, or a value is out of range.
    """

    model: str
    dp: int = 1
    tp: int = 1
    pp: int = 1
    ep: int = 1
    sharded: bool = False
    scale: float = 0.0
    batch: int = 2
    microbatches: int = 1
    tune: str = "full"
    compute_s: float = 0.0
    bucket_bytes: int = 25 << 20
    sent_bytes: int = 0
    gradient_bytes: int = 0
    block_bytes: tuple[int, ...] = ()
    seed: int = 0

    def __post_init__(self) -> None:
        if self.model not in MODELS:
            raise UsageError(f"job: model: expected {', '.join(MODELS)}, got {shown(self.model)}")
        asked = {"tp": self.tp > 1, "pp": self.pp > 1, "ep": self.ep > 1, "fsdp": self.sharded}
        for key, models in _DIVISIONS.items():
            if asked[key] and self.model not in models:
                raise UsageError(f"job {self.model}: {key}: expected one of {', '.join(models)} for it")
        if self.ep not in (1, self.dp) or (self.sharded and self.ranks > self.dp):
            raise UsageError(f"job {self.model}: ep or fsdp: expected no other kind of parallelism beside it")
        if not 1 <= self.ranks <= MOST_RANKS:
            raise UsageError(f"job {self.model}: expected 1 to {MOST_RANKS} workers, got {self.ranks}")
        if self.tune != "full" and (self.model not in LANGUAGE or self.ranks > self.dp or self.ep > 1):
            raise UsageError(
                f"job {self.model}: tune: expected a data-parallel language model for {self.tune}"
            )
        if self.pp > self.microbatches:
            raise UsageError(f"job {self.model}: microbatches: expected at least pp = {self.pp}")

    @property
    def ranks(self) -> int:
        """The number of workers."""
        return self.dp * self.tp * self.pp

    @property
    def language(self) -> LanguageShape:
        """The shape at this scale, of a language model."""
        return LANGUAGE[self.model].scaled(self.scale, self.pp, self.tp)

    def isolated_iteration_s(self, rate_bps: float) -> float:
        """What an iteration takes alone on a link of this rate, about."""
        return self.compute_s + self.sent_bytes * 8 / rate_bps


def parse_model(text: str) -> ModelWork:
    """The work that a description stands for.

    Raises:
        UsageError: an unknown model or key, or a value that does not fit; the message names it.
    """
    model, _, rest = text.partition(":")
    rest, _, workers = rest.partition(":")
    model = model.lower()
    values = dict(_pair(model, each) for each in rest.split(",") if each)
    whole: dict[str, Any] = {
        key: _whole(values[key], f"job {model}: {key}") for key in _WHOLE if key in values
    }
    sharded = "fsdp" in whole
    dp = whole.pop("fsdp", whole.get("dp", whole.get("ep", 1)))
    if not any(key in values for key in ("dp", "fsdp", "tp", "pp", "ep")):
        dp = 2
    if model == DLRM:
        whole = {"batch": _RECOMMENDATIONS, **whole, "ep": dp}
    work = ModelWork(
        model, **{"microbatches": 2 * whole.get("pp", 1) if whole.get("pp", 1) > 1 else 1, **whole, "dp": dp},
        sharded=sharded, tune=_tune(model, values.get("tune", "full")),
    )  # fmt: skip
    if "scale" in values:
        scale = parse_number(values["scale"], field=f"job {model}: scale", lowest=1e-3, highest=1)
        work = replace(work, scale=scale)
    if "compute_ms" in values:
        milliseconds = parse_number(
            values["compute_ms"], field=f"job {model}: compute_ms", lowest=1e-3, highest=1e6
        )
        work = replace(work, compute_s=milliseconds / 1e3)
    if workers and _whole(workers, f"job {model}: workers") != work.ranks:
        raise UsageError(
            f"job {model}: workers: expected the {work.ranks} of its parts, got {shown(workers)}"
        )
    return work


def is_model(text: str) -> bool:
    """Whether the text describes a model; a bare name that is also one of a built-in profile is the profile's."""
    name, colon, _ = text.partition(":")
    return name.lower() in MODELS and (bool(colon) or name not in builtin_names())


def _pair(model: str, text: str) -> tuple[str, str]:
    key, _, value = text.partition("=")
    key = "dp" if key == "ddp" else key
    if key not in _KEYS:
        raise UsageError(f"job {model}: expected {', '.join(_KEYS)}, got {shown(key)}")
    return key, value


def _whole(text: str, where: str) -> int:
    number = parse_number(text, field=where, lowest=1, highest=1e6)
    if number != int(number):
        raise UsageError(f"{where}: expected a whole number, got {shown(text)}")
    return int(number)


def _tune(model: str, text: str) -> str:
    if text not in TUNES:
        raise UsageError(f"job {model}: tune: expected {', '.join(TUNES)}, got {shown(text)}")
    return text

"""The table of profiles: published sizes of networks, and what an iteration of them computes and reduces by one rule.

The rule: a network reduces its parameters, `GRADIENT_BYTES` each, in a ring after its backward pass, and computes three
times its forward pass, once forward and twice backward, at a rate that was measured. Transformers' tensor, pipeline and
expert parallelism follows from their shape in `simulator.network.parallelism`, and so do DLRM's all-to-alls.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

GRADIENT_BYTES = 4
"""Data-parallel training with autocast keeps parameters and gradients in 32 bits."""

A100_TFLOPS = 140.0
"""Of transformers with parallel layers on an A100: 138 to 163 (Narayanan et al., SC 2021)."""

DATA_PARALLEL_TFLOPS = 60.0
"""Of ResNet-50 on an A100, mixed precision: 2,470 images a second (NVIDIA, 2021) of 3 x 8.18 GFLOP are 60.6."""

LOW_RANK = 8
"""Of the updates that fine-tuning by LoRA trains (Hu et al., ICLR 2022): of the queries' and the values' matrices."""

IMAGE = 224
"""The side of the images, in pixels, for which `DataParallelNetwork.forward_gflop` is."""


@dataclass(frozen=True)
class Transformer:
    """The shape of a transformer.

    Attributes:
        layers, hidden, sequence, vocabulary: its sizes.
        own_layer_parameters: of a layer; 0: as many as a layer of GPT of this width.
    """

    layers: int
    hidden: int
    sequence: int
    vocabulary: int
    own_layer_parameters: int = 0

    @property
    def layer_parameters(self) -> int:
        """Of attention (a third) and feed-forward (two thirds), without biases."""
        return self.own_layer_parameters or 12 * self.hidden**2

    @property
    def layer_updates(self) -> int:
        """The parameters that LoRA trains in a layer: two matrices for the queries, two for the values."""
        return 4 * LOW_RANK * self.hidden

    @property
    def parameters(self) -> int:
        """Of all layers and of the embedding."""
        return self.layers * self.layer_parameters + self.vocabulary * self.hidden


TRANSFORMERS: Mapping[str, Transformer] = MappingProxyType(
    {
        "gpt1": Transformer(12, 768, 512, 40478),
        "gpt2": Transformer(48, 1600, 1024, 50257),
        "gpt3": Transformer(96, 12288, 2048, 50257),
        "llama7b": Transformer(32, 4096, 2048, 32000),
        "llama13b": Transformer(40, 5120, 2048, 32000),
        "llama30b": Transformer(60, 6656, 2048, 32000),
        "llama65b": Transformer(80, 8192, 2048, 32000),
    }
)
"""Radford et al. (2018, 2019: the largest), Brown et al. (2020: the largest), Touvron et al. (2023)."""


@dataclass(frozen=True)
class DataParallelNetwork:
    """A network that is trained data-parallel.

    Attributes:
        parameters: all of them.
        forward_gflop: of a sample, two a multiplication and addition.
        batch: samples of a worker, where no other number is told.
        dense: of a network for images, the parameters behind its convolutions, whose operations do not depend on the
            image's size; 0: not for images.
        updates: the parameters that LoRA trains; 0: not for this network.
    """

    parameters: int
    forward_gflop: float
    batch: int
    dense: int = 0
    updates: int = 0

    @property
    def megabytes(self) -> float:
        """Of the gradients."""
        return self.parameters * GRADIENT_BYTES / 1e6

    @property
    def lora_megabytes(self) -> float:
        """Of the gradients of LoRA's updates alone."""
        return self.updates * GRADIENT_BYTES / 1e6

    def compute_ms(
        self, batch: int | None = None, image: int = IMAGE, tflops: float = DATA_PARALLEL_TFLOPS
    ) -> float:
        """Of an iteration of a worker.

        Args:
            batch: samples; None: the usual number.
            image: side of the images in pixels.
            tflops: of the GPU.
        """
        dense_gflop = 2 * self.dense / 1e9
        forward_gflop = (self.forward_gflop - dense_gflop) * (image / IMAGE) ** 2 + dense_gflop
        return 3 * forward_gflop * (batch or self.batch) / tflops


def _encoder(layers: int, hidden: int, parameters: int, batch: int) -> DataParallelNetwork:
    """A transformer of sequences of 512 tokens: 2 FLOP a token and parameter of its layers."""
    shape = Transformer(layers, hidden, 512, 0)
    forward_gflop = 2 * shape.parameters * 512 / 1e9
    return DataParallelNetwork(parameters, forward_gflop, batch, updates=layers * shape.layer_updates)


_VGG_DENSE = 123_642_856
_RESNET_DENSE = 2_049_000

DATA_PARALLEL: Mapping[str, DataParallelNetwork] = MappingProxyType(
    {
        "vgg11": DataParallelNetwork(132_863_336, 15.22, 128, _VGG_DENSE),
        "vgg16": DataParallelNetwork(138_357_544, 30.94, 128, _VGG_DENSE),
        "vgg19": DataParallelNetwork(143_667_240, 39.26, 128, _VGG_DENSE),
        "resnet50": DataParallelNetwork(25_557_032, 8.18, 128, _RESNET_DENSE),
        "wideresnet101": DataParallelNetwork(126_886_696, 45.50, 128, _RESNET_DENSE),
        "bert": _encoder(12, 768, 110_000_000, 32),
        "camembert": _encoder(12, 768, 110_000_000, 32),
        "roberta": _encoder(24, 1024, 355_000_000, 16),
        "xlm": _encoder(12, 1024, 249_000_000, 16),
    }
)
"""Parameters and operations on images of 224 x 224 are torchvision's; Devlin et al. (2019: base), Martin et al. (2020),
Liu et al. (2019: large), Lample and Conneau (2019: XNLI-15)."""


@dataclass(frozen=True)
class RecommendationNetwork:
    """DLRM (Naumov et al., 2019): embedding tables, divided over the workers, and replicated perceptrons.

    Attributes:
        tables: of embeddings.
        width: of an embedding.
        parameters: of the perceptrons.
        batch: samples of a worker, where no other number is told.
    """

    tables: int
    width: int
    parameters: int
    batch: int

    @property
    def megabytes(self) -> float:
        """Of the perceptrons' gradients."""
        return self.parameters * GRADIENT_BYTES / 1e6

    def vectors_bytes(self, batch: int) -> int:
        """Of the embeddings of so many samples."""
        return batch * self.tables * self.width * GRADIENT_BYTES

    def compute_ms(self, batch: int, tflops: float = DATA_PARALLEL_TFLOPS) -> float:
        """Of an iteration of a worker: the perceptrons'."""
        return 3 * 2 * self.parameters * batch / 1e9 / tflops


DLRM = RecommendationNetwork(26, 128, 2_368_897, 512)
"""MLPerf's: perceptrons of 13-512-256-128 and 479-1024-1024-512-256-1."""

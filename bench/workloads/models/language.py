"""Transformers of the library ``transformers``, by configuration and with random weights, whole or as stages."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Placement, Replicate
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    parallelize_module,
)

from bench.workloads.model_work import MASKED, LanguageShape
from bench.workloads.models.pacing import Pacer
from mltcp.core.errors import NotAvailableError

_IGNORED = -100
_MASK, _FIRST_WORD, _WORDS = 3, 4, 32  # before them are paddings
_MASKED_SHARE = 0.15
_RANK, _ALPHA = 8, 16


@dataclass(frozen=True)
class _Family:
    """Where a model of the library has its parts, by attribute path, and what its configuration calls them.

    Attributes:
        kind: the beginning of its class names.
        head_class: the end of the name of its class with a head.
        embeddings: the module of tokens, or of tokens and positions together.
        positions: the module of learned positions.
        layers, norm, head: its layers, what normalises the last one's output, and the head.
        fields: names in the configuration of layers, hidden, heads, feed_forward, sequence and vocabulary.
        further: of the configuration.
    """

    kind: str
    head_class: str
    embeddings: str
    layers: str
    head: str
    positions: str | None = None
    norm: str | None = None
    rotary: str | None = None
    fields: tuple[str, ...] = (
        "num_hidden_layers",
        "hidden_size",
        "num_attention_heads",
        "intermediate_size",
        "max_position_embeddings",
        "vocab_size",
    )
    further: tuple[tuple[str, Any], ...] = ()


_GPT_FIELDS = ("n_layer", "n_embd", "n_head", "n_inner", "n_positions", "vocab_size")
_LLAMA = _Family(
    *("Llama", "ForCausalLM", "model.embed_tokens", "model.layers", "lm_head"),
    norm="model.norm",
    rotary="model.rotary_emb",
)
_FAMILIES: Mapping[str, _Family] = {
    "bert": _Family("Bert", "ForMaskedLM", "bert.embeddings", "bert.encoder.layer", "cls"),
    "roberta": _Family("Roberta", "ForMaskedLM", "roberta.embeddings", "roberta.encoder.layer", "lm_head"),
    "camembert": _Family(
        "Camembert", "ForMaskedLM", "roberta.embeddings", "roberta.encoder.layer", "lm_head"
    ),
    "gpt1": _Family(
        *("OpenAIGPT", "LMHeadModel", "transformer.tokens_embed", "transformer.h", "lm_head"),
        positions="transformer.positions_embed",
        fields=_GPT_FIELDS,
    ),
    "gpt2": _Family(
        *("GPT2", "LMHeadModel", "transformer.wte", "transformer.h", "lm_head"),
        positions="transformer.wpe",
        norm="transformer.ln_f",
        fields=_GPT_FIELDS,
    ),
    # GPT-3's own code is not public; OPT was made after it, with matrices that can be divided (Zhang et al., 2022).
    "gpt3": _Family(
        *("OPT", "ForCausalLM", "model.decoder.embed_tokens", "model.decoder.layers", "lm_head"),
        positions="model.decoder.embed_positions",
        norm="model.decoder.final_layer_norm",
        fields=(*_Family.fields[:3], "ffn_dim", *_Family.fields[4:]),
        further=(("activation_function", "gelu"),),
    ),
    "llama": _LLAMA,
    "moe": _LLAMA,
}

_COLUMNS, _ROWS = ColwiseParallel, RowwiseParallel
_LLAMA_PLAN: Mapping[str, Callable[[], ParallelStyle]] = {
    **{f"self_attn.{name}_proj": _COLUMNS for name in "qkv"},
    **{"self_attn.o_proj": _ROWS, "mlp.gate_proj": _COLUMNS, "mlp.up_proj": _COLUMNS, "mlp.down_proj": _ROWS},
}
_OPT_PLAN: Mapping[str, Callable[[], ParallelStyle]] = {
    **{f"self_attn.{name}_proj": _COLUMNS for name in "qkv"},
    **{"self_attn.out_proj": _ROWS, "fc1": _COLUMNS, "fc2": _ROWS},
}


class LanguageModel(nn.Module):
    """A model, or one stage of it: what it lacks is None.

    Its input are tokens, of shape (batch, sequence), or the output of the stage before, (batch, sequence, hidden); its
    output the latter, or logits, (batch, sequence, vocabulary). There is no dropout: replicas of a tensor-parallel
    layer must stay alike, and a loss must fall within a short run.

    Attributes:
        layers: of the stage.
        pacer: of its layers and its head.
        embedding: the weight of the tokens' embedding, or of the head that shares it; None: not shared.
    """

    def __init__(self, name: str, shape: LanguageShape, stage: int = 0, stages: int = 1) -> None:
        super().__init__()
        family = _FAMILIES[name]
        whole = _built(family, shape)
        share = shape.layers // stages
        first, last = stage == 0, stage == stages - 1
        self.vocabulary, self.sequence, self.masked = shape.vocabulary, shape.sequence, name in MASKED
        self.hidden = shape.hidden
        self.embeddings = whole.get_submodule(family.embeddings) if first else None
        self.positions = whole.get_submodule(family.positions) if first and family.positions else None
        layers = list(whole.get_submodule(family.layers))
        self.layers = nn.ModuleList(layers[stage * share : (stage + 1) * share])
        self.norm = whole.get_submodule(family.norm) if last and family.norm else None
        self.head = whole.get_submodule(family.head) if last else None
        self.rotary = whole.get_submodule(family.rotary) if family.rotary else None
        self.pacer = Pacer(0.0, 1)
        shared = whole.config.tie_word_embeddings and stages > 1 and (first or last)
        self.embedding = (
            (whole.get_input_embeddings() if first else whole.get_output_embeddings()).weight
            if shared
            else None
        )

    @property
    def blocks(self) -> list[nn.Module]:
        """The parts that are paced and sharded one by one."""
        return [*self.layers, *([self.head] if self.head is not None else [])]

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        """The output of the stage."""
        self.pacer.begin()
        if self.embeddings is not None:
            values = self.embeddings(values)
        if self.positions is not None:
            values = values + self.positions.weight[: self.sequence]
        more: dict[str, Any] = {}
        if self.rotary is not None:
            places = torch.arange(self.sequence, device=values.device)[None]
            more["position_embeddings"] = self.rotary(values, places)
        for number, layer in enumerate(self.layers):
            output = layer(values, **more)
            values = self.pacer.after(number, output if isinstance(output, torch.Tensor) else output[0])
        if self.norm is not None:
            values = self.norm(values)
        return values if self.head is None else self.pacer.after(len(self.layers), self.head(values))

    def samples(self, count: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        """Sequences of few words, each word followed by the same other one, and what is to be learned of them."""
        first = torch.randint(_WORDS, (count, 1), generator=generator)
        words = _FIRST_WORD + (first + 5 * torch.arange(self.sequence + 1)) % _WORDS
        if not self.masked:
            return words[:, :-1], words[:, 1:]
        words = words[:, :-1]
        hidden = torch.rand(words.shape, generator=generator) < _MASKED_SHARE
        hidden[:, 0] = True
        return words.masked_fill(hidden, _MASK), words.masked_fill(~hidden, _IGNORED)

    @staticmethod
    def loss(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """The mean cross entropy of the words that are to be learned."""
        return nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=_IGNORED)

    def ends(self, batch: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The shapes and types of the stage's input and output for so many samples, as tensors without values."""
        with torch.device("meta"):
            hidden = torch.empty(batch, self.sequence, self.hidden, requires_grad=True)
            tokens = torch.empty(batch, self.sequence, dtype=torch.int64)
            logits = torch.empty(batch, self.sequence, self.vocabulary, requires_grad=True)
        return (
            tokens if self.embeddings is not None else hidden,
            hidden if self.head is None else logits,
        )

    def divide(self, name: str, mesh: DeviceMesh) -> None:
        """Share the matrices of every layer among the ranks of the mesh, by columns and then by rows."""
        for layer in self.layers:
            parallelize_module(layer, mesh, _plan(name))
            if name == "gpt3":
                attention: Any = layer.self_attn
                attention.num_heads //= mesh.size()


def _plan(name: str) -> dict[str, ParallelStyle]:
    """Megatron's: one all-reduce of the activations after attention and feed-forward part, and one of the gradients."""
    styles = _OPT_PLAN if name == "gpt3" else _LLAMA_PLAN
    plan: dict[str, ParallelStyle] = {path: style() for path, style in styles.items()}
    named: dict[str, Placement] = {"hidden_states": Replicate()}
    plan["self_attn"] = PrepareModuleInput(input_kwarg_layouts=named, desired_input_kwarg_layouts=named)
    if name != "gpt3":
        plan["mlp"] = PrepareModuleInput(input_layouts=Replicate(), desired_input_layouts=Replicate())
    return plan


def _built(family: _Family, shape: LanguageShape) -> Any:
    library = _library()
    size = (shape.layers, shape.hidden, shape.heads, shape.feed_forward)
    values = dict(zip(family.fields, (*size, shape.sequence + 2, shape.vocabulary), strict=True))
    if family.kind == "OPT":
        values["word_embed_proj_dim"] = shape.hidden
    config = getattr(library, f"{family.kind}Config")(**values, **dict(family.further))
    config._attn_implementation = "eager" if family.kind == "OpenAIGPT" else "sdpa"
    return getattr(library, f"{family.kind}{family.head_class}")(config).eval()


def _library() -> Any:
    # Nothing is fetched: models are made of their configuration.
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    try:
        import transformers
    except ImportError:
        raise NotAvailableError(
            "language models need the library transformers: pip install -c constraints.txt -e '.[models]'"
        ) from None
    return transformers


class CrossLingualModel(nn.Module):
    """XLM, whose layers are not modules of their own in the library: it is used whole, and paced by hooks."""

    def __init__(self, shape: LanguageShape) -> None:
        super().__init__()
        library = _library()
        config = library.XLMConfig(
            n_layers=shape.layers,
            emb_dim=shape.hidden,
            n_heads=shape.heads,
            vocab_size=shape.vocabulary,
            max_position_embeddings=shape.sequence,
        )
        self.model = library.XLMWithLMHeadModel(config).eval()
        self.vocabulary, self.sequence, self.masked = shape.vocabulary, shape.sequence, True
        self.pacer = Pacer(0.0, 1)
        self.blocks: list[nn.Module] = list(self.model.transformer.ffns)
        for number, block in enumerate(self.blocks):
            block.register_forward_hook(lambda _, __, output, number=number: self.pacer.after(number, output))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """The logits."""
        self.pacer.begin()
        logits: torch.Tensor = self.model(tokens).logits
        return logits

    samples = LanguageModel.samples
    loss = staticmethod(LanguageModel.loss)


class LowRank(nn.Module):
    """A frozen linear layer with a trained update of rank 8 (Hu et al., 2022)."""

    def __init__(self, layer: nn.Module, inputs: int, outputs: int) -> None:
        super().__init__()
        self.layer = layer
        self.down, self.up = nn.Linear(inputs, _RANK, bias=False), nn.Linear(_RANK, outputs, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        """The layer's output and the update's."""
        frozen: torch.Tensor = self.layer(values)
        return frozen + self.up(self.down(values)) * (_ALPHA / _RANK)


_ADAPTED = ("q_proj", "v_proj", "query", "value", "c_attn", "q_lin", "v_lin")


def fine_tuned(model: nn.Module, tune: str) -> None:
    """Freeze all but what is trained: updates of the attention's matrices (lora), or the head (frozen)."""
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    if tune == "frozen":
        head = getattr(model, "head", None)
        trained = model.model.pred_layer if head is None else head  # type: ignore[union-attr]
        for parameter in trained.parameters():  # type: ignore[union-attr]
            parameter.requires_grad_(True)
        return
    for parent in list(model.modules()):
        for name, layer in list(parent.named_children()):
            if name in _ADAPTED:
                inputs, outputs = _sides(layer)
                setattr(parent, name, LowRank(layer, inputs, outputs))


def _sides(layer: Any) -> tuple[int, int]:
    """The inputs and outputs of a linear layer; the library's Conv1D has its matrix transposed."""
    if isinstance(layer, nn.Linear):
        return layer.in_features, layer.out_features
    return int(layer.weight.shape[0]), int(layer.nf)


def preload() -> None:
    """Import what all families need, which takes seconds; NotAvailableError if the library is not installed."""
    library = _library()
    for family in _FAMILIES.values():
        getattr(library, f"{family.kind}{family.head_class}")

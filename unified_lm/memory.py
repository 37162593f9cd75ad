"""Device memory of a training step, from a decoder's real shapes and without its weights.

One layer of real width is run on fake tensors (no values, no memory): what autograd would keep is counted, byte by
byte, under the adapters, data types and checkpointing of the run. Everything else is arithmetic on parameter counts.
Not counted: fragmentation of the allocator, the CUDA context (about 0.5 GiB), workspaces of cuBLAS and NCCL.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from transformers import AutoModelForCausalLM, PretrainedConfig, PreTrainedTokenizerBase

from unified_lm.losses import FEWEST_ROWS
from unified_lm.model import UnifiedLM
from unified_lm.packing import Sequence, collate

GIB = 2**30
PROBE = 251  # tokens of the fake forward: a prime, so that no weight has a side of that length
SMALL_VOCABULARY = 509  # of the one-layer model: its embeddings are counted, never made


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Bytes that one device holds at the peak of a training step, by what they are for."""

    weights: int
    gradients: int
    optimizer: int
    activations: int
    weight_copies: int
    head: int

    @property
    def total(self) -> int:
        return sum(getattr(self, field.name) for field in fields(self))


@dataclass(frozen=True, kw_only=True)
class LayerCost:
    """What a run's decoder costs: bytes of parameters by part, and bytes that a forward keeps for its backward.

    `recomputed_per_token`: what one layer keeps while a backward runs it again, under checkpointing. `copies`: weights
    that autocast casts, once a chunk.
    """

    parameters: int
    learning: int
    weight_bytes: int
    learning_bytes: int
    layer_bytes: int
    outer_bytes: int
    kept_per_token: float
    recomputed_per_token: float
    copies: int


@dataclass(frozen=True, kw_only=True)
class TrainingPlan:
    """What of a run decides its memory: chunks (tokens), processes and sharding, AdamW's states, a next-token loss."""

    chunk_tokens: int
    keep_tokens: int = 0
    processes: int = 1
    sharded: bool = False
    optimizer_states: str = "float32"
    next_token: bool = True


def training_memory(cost: LayerCost, config: PretrainedConfig, plan: TrainingPlan) -> Memory:
    """The peak of one device in a training step of a run whose decoder costs `cost`."""
    share = plan.processes if plan.sharded else 1
    gathered = cost.outer_bytes + 2 * cost.layer_bytes if plan.sharded else 0
    unsharded_gradients = cost.learning_bytes if plan.sharded else 0
    state_bytes = {"float32": 2 * cost.learning_bytes, "8bit": 2 * cost.learning}[plan.optimizer_states]
    kept_tokens = max(plan.chunk_tokens, plan.keep_tokens)
    rows = max(FEWEST_ROWS, config.hidden_size)
    labelled = min(rows, plan.chunk_tokens) if plan.next_token else 0
    return Memory(
        weights=round(cost.weight_bytes / share + gathered),
        gradients=round(cost.learning_bytes / share + unsharded_gradients),
        optimizer=round(state_bytes / share),
        activations=round(cost.kept_per_token * kept_tokens + cost.recomputed_per_token * plan.chunk_tokens),
        weight_copies=cost.copies,
        head=labelled * config.vocab_size * (4 + 4 + 2),  # logits in float32, their gradient, and the product's
    )


def measure_layer(
    config: PretrainedConfig,
    tokenizer: PreTrainedTokenizerBase,
    *,
    apply: Callable[[UnifiedLM], object],
    dtype: torch.dtype,
    autocast: torch.dtype | None,
    checkpointing: bool = False,
    slots: int = 0,
    device: str = "cuda",
) -> LayerCost:
    """Count what a decoder of this configuration costs in training; `apply` sets what of it learns."""
    layers, vocabulary = config.num_hidden_layers, config.vocab_size
    config = copy.deepcopy(config)
    config.num_hidden_layers, config.vocab_size = 1, SMALL_VOCABULARY
    config.pad_token_id = None
    if getattr(config, "layer_types", None):
        config.layer_types = config.layer_types[:1]
    with torch.device("meta"):
        backbone = AutoModelForCausalLM.from_config(config, dtype=dtype)
    backbone.to_empty(device="cpu").tie_weights()
    model = UnifiedLM(backbone, tokenizer, kernel="sdpa", autocast=autocast)
    apply(model)
    model.train()
    (layer,) = backbone.base_model.layers
    inner = {id(p) for p in layer.parameters()}
    one = count_parameters(layer.parameters())
    rest = count_parameters((p for p in backbone.parameters() if id(p) not in inner), vocabulary)
    kept, copies = count_kept(model, config.hidden_size, dtype, device)
    between = config.hidden_size * dtype.itemsize  # a checkpointed layer keeps its input alone
    slot_parameters = slots * config.hidden_size
    return LayerCost(
        parameters=layers * one.count + rest.count + slot_parameters,
        learning=layers * one.learning + rest.learning + slot_parameters,
        weight_bytes=layers * one.bytes + rest.bytes + 4 * slot_parameters,
        learning_bytes=layers * one.learning_bytes + rest.learning_bytes + 4 * slot_parameters,
        layer_bytes=one.bytes,
        outer_bytes=rest.bytes,
        kept_per_token=float(layers * (between if checkpointing else kept)),
        recomputed_per_token=kept if checkpointing else 0.0,
        copies=(1 if checkpointing else layers) * copies,
    )


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Numbers and bytes of some parameters, and of those among them that learn."""

    count: int
    bytes: int
    learning: int
    learning_bytes: int


def count_parameters(parameters: Iterable[nn.Parameter], vocabulary: int = SMALL_VOCABULARY) -> Sizes:
    """Sizes of parameters; a matrix over the small vocabulary counts as one over the real one."""
    counted = [(p, p.numel() * (vocabulary if len(p) == SMALL_VOCABULARY else len(p)) // len(p)) for p in parameters]
    learning = [(p, n) for p, n in counted if p.requires_grad]
    return Sizes(
        count=sum(n for _, n in counted),
        bytes=sum(n * p.element_size() for p, n in counted),
        learning=sum(n for _, n in learning),
        learning_bytes=sum(n * p.element_size() for p, n in learning),
    )


def count_kept(model: UnifiedLM, width: int, dtype: torch.dtype, device: str) -> tuple[float, int]:
    """Bytes a token that the layer of a one-layer model keeps for its backward, and bytes of copies of its weights.

    Copies are the casts of float32 weights under autocast, which a backward keeps once a chunk.
    """
    (layer,) = model.backbone.base_model.layers
    kept: dict[int, tuple[int, torch.Tensor]] = {}
    copies: dict[int, tuple[int, torch.Tensor]] = {}
    inside = False

    def set_inside(value: bool) -> None:
        nonlocal inside
        inside = value

    with FakeTensorMode(allow_non_fake_inputs=True):
        make_fake(model, device)
        weights = {p.untyped_storage()._cdata for p in model.parameters()}
        shapes = {matrix_shape(p) for p in model.parameters() if p.dim() == 2}

        def note(x: torch.Tensor) -> torch.Tensor:
            storage = x.untyped_storage()
            if inside and storage._cdata not in weights:
                is_copy = matrix_shape(x) in shapes
                (copies if is_copy else kept)[storage._cdata] = (storage.nbytes(), x)
            return x

        hooks = [
            layer.register_forward_pre_hook(lambda *_: set_inside(True)),
            layer.register_forward_hook(lambda *_: set_inside(False)),
        ]
        layout = collate([Sequence(tokens=(5,) * PROBE)]).layout
        embeddings = torch.randn(PROBE, width, dtype=dtype, requires_grad=True)
        with torch.autograd.graph.saved_tensors_hooks(note, lambda x: x):
            model.run_decoder(embeddings, torch.arange(PROBE), layout)
        for hook in hooks:
            hook.remove()
    return sum(size for size, _ in kept.values()) / PROBE, sum(size for size, _ in copies.values())


def matrix_shape(x: torch.Tensor) -> tuple[int, ...]:
    """The sizes of a matrix in either order, whatever dimensions of one stand around it."""
    return tuple(sorted(size for size in x.shape if size > 1))


class MaskedDropout(nn.Module):
    """Dropout that keeps one byte an element, as CUDA's does; a CPU's keeps the mask in the input's data type."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.native_dropout(x, self.p, True)[0]


def make_fake(model: nn.Module, device: str) -> None:
    """Replace parameters and buffers by fake tensors of their shape, and dropout by the device's kind of it."""
    for module in list(model.modules()):
        for name, value in module._parameters.items():
            if value is not None:
                fake = torch.empty(value.shape, dtype=value.dtype)
                module._parameters[name] = nn.Parameter(fake, requires_grad=value.requires_grad)
        for name, value in module._buffers.items():
            if value is not None:
                module._buffers[name] = torch.empty(value.shape, dtype=value.dtype)
        for name, child in module.named_children():
            if isinstance(child, nn.Dropout) and device == "cuda":
                setattr(module, name, MaskedDropout(child.p))

"""Small models and formats that several test files build in the same way."""

import torch

from unified_lm.attention import Plan
from unified_lm.backbones import Tiny
from unified_lm.data.rows import TrainingRow
from unified_lm.model import UnifiedLM
from unified_lm.prompts.format import Format
from unified_lm.prompts.template import Template

CHATML = Template(
    name="chatml",
    query="<|im_start|>user\n{instruction}{text}<|im_end|>\n",
    document="{text}",
    answer="<|im_start|>assistant\n{text}<|im_end|>\n",
    instruction="{instruction}: ",
    turns={"system": "<|im_start|>system\n{text}<|im_end|>\n"},
)
ARCHITECTURES = ("llama", "qwen2", "qwen3", "mistral", "gemma3")
CAUSAL = Plan(embed="causal", generate="causal")
PLANS = {
    "causal": CAUSAL,
    "bidirectional": Plan(embed="bidirectional", generate="bidirectional"),
    "gritlm": Plan(embed="bidirectional", generate="causal"),
    "prefix": Plan(embed="prefix", generate="prefix"),
}


def unified(
    architecture="llama", *, slots=0, kernel="sdpa", autocast=None, heads=None, double=False, **tiny
) -> UnifiedLM:
    loaded = Tiny(architecture=architecture, **tiny).load()
    model = UnifiedLM(loaded.model, loaded.tokenizer, slots=slots, kernel=kernel, autocast=autocast, heads=heads)
    return model.double() if double else model


def fitting(method, architecture="llama", **options) -> UnifiedLM:
    """A model with the slots, the heads and the attention that a method asks for."""
    width = options.get("hidden", 64)
    torch.manual_seed(0)
    return unified(architecture, slots=method.slots, heads=method.heads(width), **options)


def form(model: UnifiedLM, plan: Plan = CAUSAL, template: Template = CHATML, **lengths) -> Format:
    slots = 0 if model.slots is None else len(model.slots)
    return Format(
        template=template,
        tokenizer=model.tokenizer,
        plan=plan,
        slots=slots,
        document_slots=min(1, slots),
        **lengths,
    )


def mixed_rows(count=9, *, answers=True, documents=True) -> list[TrainingRow]:
    """Rows of mixed kinds: documents only, answers only, both; 0 to 2 hard negatives of each kind; uneven lengths."""
    rows = []
    for i in range(count):
        pair = documents and (i % 3 != 2 or not answers)
        rows.append(
            TrainingRow(
                query=f"what is the number {i}? " * (1 + i % 2),
                instruction="find it" if i % 2 else "",
                positive=f"the document about {i * i}. " * (1 + i % 4) if pair else None,
                negatives=tuple(f"not {i} but {i + k}" for k in range(i % 3)) if pair else (),
                answer=f"it is the number {i} of course" if answers and i % 3 else None,
                negative_dialogues=tuple((f"is {i} {i + k}?", f"no, {k} more") for k in range(i % 3))
                if answers
                else (),
            )
        )
    return rows


def gradient(model: torch.nn.Module) -> torch.Tensor:
    return torch.cat([p.grad.reshape(-1) for p in model.parameters() if p.grad is not None])


def apart(a: torch.Tensor, b: torch.Tensor) -> float:
    """Distance of two gradients relative to the second one's norm."""
    return float((a - b).norm() / b.norm())

"""Every training method: those of conf/method, found by their files, and variants that are worth a law."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.utils import instantiate

from tests.unified_lm.methods.test_llm2vec_gen import Drawn
from unified_lm.methods.base import Method

CONF = Path(__file__).parents[1] / "conf"
FOR_TINY_MODELS: Mapping[str, Mapping[str, Any]] = {
    "contrastive_latent": {"latents": 8, "latent_heads": 2},
    "gem": {"slots": 3, "ramp_start": 0, "plain_share": 0.3, "temperature": 0.5},
    "gritlm": {"mixed_rows": 2},
    "llm2vec_gen": {"slots": 3, "teacher": Drawn()},
    "mntp": {"share": 0.5},
    "simcse": {"temperature": 0.5},
}
VARIANTS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "contrastive symmetric, last": ("contrastive", {"symmetric": True, "readout": "last"}),
    "contrastive with slots": ("contrastive", {"symmetric": True, "readout": "slot_1", "slots": 2}),
    "ulme without slots": ("ulme", {"slots": 0}),
    "ulme, gradient not stopped, last": ("ulme", {"slots": 2, "stop_gradient": False, "target": "last"}),
    "ulme, length-weighted": ("ulme", {"slots": 1, "target": "length_weighted"}),
    "ulme, documents as answers": ("ulme", {"slots": 2, "positives_as_answers": True}),
    "gritlm, sums over samples": ("gritlm", {"generative_loss": "token", "embedding_weight": 2.0}),
    "llm2vec_gen with hard negatives": ("llm2vec_gen", {"margin_weight": 0.5}),
    "llm_jepa reverse, predictors, info_nce": (
        "llm_jepa",
        {"slots": 2, "reverse": True, "distance": "info_nce", "stop_gradient": True},
    ),
}


def methods_of_conf() -> dict[str, Method]:
    """The methods of conf/method with the settings of their files, those that train nothing included."""
    with initialize_config_dir(version_base=None, config_dir=str(CONF)):
        names = sorted(path.stem for path in (CONF / "method").glob("*.yaml"))
        return {name: instantiate(compose(f"method/{name}").method, _convert_="all") for name in names}


def trained_methods() -> dict[str, Method]:
    """Those that train, as small as a tiny decoder needs them, and the variants."""
    found = {
        name: replace(method, **FOR_TINY_MODELS.get(name, {}))
        for name, method in methods_of_conf().items()
        if method.trains
    }
    return found | {name: replace(found[of], **changes) for name, (of, changes) in VARIANTS.items()}


METHODS = trained_methods()

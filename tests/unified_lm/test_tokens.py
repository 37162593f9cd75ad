"""The token cache returns what the tokenizer returns, and knows one tokenizer from another."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from tests.models import form, mixed_rows, unified
from tests.unified_lm.test_slots import ulme
from unified_lm.backbones import Tiny
from unified_lm.prompts.token_cache import TokenCache, tokenize_strings

STRINGS = ["a text", "", "<|im_end|> is plain, äé漢", "a text", "one two three " * 300]


def test_what_was_tokenized_once_is_read_and_is_the_same(tmp_path):
    tokenizer = Tiny().load().tokenizer
    cache = TokenCache(tokenizer, tmp_path)
    assert cache(STRINGS) == tokenize_strings(tokenizer, STRINGS)
    again = TokenCache(tokenizer, tmp_path)
    assert again(STRINGS[::-1]) == tokenize_strings(tokenizer, STRINGS[::-1])
    assert (again.hits, again.misses) == (5, 0) and cache.misses == 4


def test_another_tokenizer_finds_nothing(tmp_path):
    first, second = (Tiny(vocab=v).load().tokenizer for v in (512, 500))
    TokenCache(first, tmp_path)(STRINGS)
    cache = TokenCache(second, tmp_path)
    assert cache(STRINGS) == tokenize_strings(second, STRINGS)
    assert cache.hits == 1  # the text that stands twice


def test_a_damaged_file_costs_time_and_nothing_else(tmp_path, caplog):
    tokenizer = Tiny().load().tokenizer
    TokenCache(tokenizer, tmp_path)(STRINGS)
    for file in tmp_path.iterdir():
        file.write_bytes(b"no database" * 500)
    cache = TokenCache(tokenizer, tmp_path)
    assert cache(STRINGS) == cache(STRINGS) == tokenize_strings(tokenizer, STRINGS)
    assert caplog.text.count("cannot be used") == 1


def test_threads_and_processes_may_share_it(tmp_path):
    tokenizer = Tiny().load().tokenizer
    caches = [TokenCache(tokenizer, tmp_path) for _ in range(3)]
    lists = [[f"text {i + j}" for j in range(30)] for i in range(20)]
    with ThreadPoolExecutor(6) as pool:
        found = list(pool.map(lambda n: caches[n % 3](lists[n]), range(20)))
    assert found == [tokenize_strings(tokenizer, strings) for strings in lists]


def test_a_format_with_a_cache_makes_the_same_sequences(tmp_path):
    model = unified(slots=2)
    plain = form(model)
    cached = replace(plain, cache=TokenCache(model.tokenizer, tmp_path))
    for _ in range(2):
        assert ulme(2).sequences(mixed_rows(), cached) == ulme(2).sequences(mixed_rows(), plain)
    assert cached.cache.hits > 0

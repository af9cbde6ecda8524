"""Bytes of stored keys and values. Figures of vLLM's own spec classes: 0.20.2 and 0.32.0."""

from __future__ import annotations

import pytest

from kvcore.base.errors import CatalogueError, EngineRefusalError
from kvcore.cache.kv_formats import FORMATS, kv_format


@pytest.mark.parametrize(
    ("kv_cache_dtype", "page"),
    [
        ("bfloat16", 65_536),
        ("float32", 131_072),
        ("fp8_e4m3", 32_768),
        ("int8_per_token_head", 33_792),
        ("fp8_per_token_head", 33_792),
        ("int4_per_token_head", 17_408),
        ("nvfp4", 18_432),
        ("turboquant_4bit_nc", 16 * 8 * 134),
        ("turboquant_k8v4", 16 * 8 * 196),
    ],
)
def test_page_of_llama_3_8b(kv_cache_dtype: str, page: int) -> None:
    """16 tokens of 8 heads of 128."""
    assert 16 * 8 * kv_format(kv_cache_dtype).head_bytes(128, 128) == page


def test_turboquant_slots_are_even() -> None:
    # Keys 128 x 3 bits = 48 bytes and 2 of overhead, values 128 x 4 bits = 64 and 4.
    assert kv_format("turboquant_k3v4_nc").head_bytes(128, 128) == 48 + 2 + 64 + 4
    # 80 elements of 3 bits are 30 bytes each: 30 + 2 + 30 + 4.
    assert kv_format("turboquant_3bit_nc").head_bytes(80, 80) == 66
    # 72 elements: 27 + 2 + 27 + 4; 60 elements: 23 + 2 + 23 + 4 = 52; 63: 24 + 2 + 24 + 4.
    assert kv_format("turboquant_3bit_nc").head_bytes(60, 63) == 23 + 2 + 24 + 4 + 1


@pytest.mark.parametrize(
    ("kv_cache_dtype", "slot"),
    [
        # vllm/v1/attention/ops/rocm_octave.py: 64 rotated dims of 4 bits, 192 of 3, values, scales of 2 bytes.
        ("octave_k3v4", 248),  # 32 + 72 + 128 + 2 x 5 = 242
        ("octave_k3v3", 216),  # 32 + 72 + 96 + 2 x 5 = 210
        ("octave_k3v3_compact", 196),  # 96 + 96 + 2 x 2
        ("ultraquant_4bit", 272),  # ultraquant/format.py: D=256 -> 272 B/slot
        ("nvfp4_4over6", 288),
    ],
)
def test_slots_of_heads_of_256(kv_cache_dtype: str, slot: int) -> None:
    assert kv_format(kv_cache_dtype).head_bytes(256, 256) == slot


def test_keys_and_values_of_different_size() -> None:
    assert kv_format("bfloat16").head_bytes(192, 128) == 640
    assert kv_format("int8_per_token_head").head_bytes(192, 128) == 328


@pytest.mark.parametrize(
    ("kv_cache_dtype", "size"), [("bfloat16", 1152), ("fp8", 576), ("fp8_ds_mla", 656), ("nvfp4_ds_mla", 352)]
)
def test_latent_vector_of_deepseek_v3(kv_cache_dtype: str, size: int) -> None:
    assert kv_format(kv_cache_dtype).latent_vector_bytes(576) == size


def test_unknown_dtype_is_refused() -> None:
    with pytest.raises(EngineRefusalError) as refusal:
        kv_format("fp9")
    assert (refusal.value.code, refusal.value.field) == ("unknown-kv-cache-dtype", "kv_cache_dtype")


@pytest.mark.parametrize(
    "table",
    [
        {"source": "x", "key_bits": 8},
        {"source": "x", "key_bits": 8, "value_bits": 8, "colour": 1},
        {"source": "x", "key_bits": "8", "value_bits": 8},
        {"source": "x", "key_bits": True, "value_bits": 8},
    ],
)
def test_wrong_tables_are_named(table: dict[str, object]) -> None:
    with pytest.raises(CatalogueError, match=r"formats\.toml formats odd"):
        FORMATS.read({"reviewed": "0.33.0", "formats": {"odd": table}})

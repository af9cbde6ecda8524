"""Pins travel inside the link, and a broken one is named."""

import hashlib
from urllib.parse import parse_qsl

import pytest

from kvcore.wire import link
from kvcore.wire.link import MAX_PINS, Pin, decode_pins, encode_pins
from kvcore.wire.request import scenario_from_request


def scenario(**fields):
    return scenario_from_request({"model": "Qwen/Qwen3-32B", "accelerator": "H100-80GB", **fields})


FOUR = tuple(
    Pin(scenario=one)
    for one in (
        scenario(tensor_parallel_size=2, max_model_len=32768),
        scenario(quantization="fp8", kv_cache_dtype="fp8", accelerator="H200-141GB"),
        scenario(
            measured={"weights_gib": 8.5}, speculative_config={"method": "ngram", "num_speculative_tokens": 3}
        ),
        scenario(
            accelerator={"memory_gib": 24, "vendor": "nvidia", "name": "GeForce RTX 4090"},
            env={"A": "b&c=d%"},
        ),
    )
)


def test_pins_survive_a_link_of_text() -> None:
    outer = link.encode(scenario()) | encode_pins(FOUR)
    text = link.query_string(outer)
    assert decode_pins(dict(parse_qsl(text))) == FOUR
    assert link.decode(dict(parse_qsl(text))).repairs == ()


def test_there_are_four_at_most() -> None:
    assert len(encode_pins((*FOUR, *FOUR))) == MAX_PINS
    assert (
        decode_pins({f"pin.{number}": link.pin_text(scenario()) for number in range(1, 9)})
        == (Pin(scenario=scenario()),) * MAX_PINS
    )


def test_an_accelerator_that_left_the_catalogue_is_named() -> None:
    (pin,) = decode_pins({"pin.2": "v=1&model=Qwen/Qwen3-32B&accelerator=H99-OLD&max_model_len=4096"})
    (repair,) = pin.repairs
    assert (repair.field, repair.given, repair.error.code) == (
        "accelerator",
        "H99-OLD",
        "unknown-accelerator",
    )
    assert pin.scenario is not None
    assert pin.scenario.max_model_len == 4096


@pytest.mark.parametrize(
    "text",
    ["banana", "&&&&", "=", "%ZZ", "x" * 4000, "a=1&" * 500, "\x00", "🙂" * 50, "pin.1=v%3D1", "lang=zh"],
    ids=str.__len__,
)
def test_a_pin_without_a_scenario_is_left_out_and_named(text: str) -> None:
    (pin,) = decode_pins({"pin.1": text})
    assert pin.scenario is None
    (repair,) = pin.repairs
    assert (repair.field, repair.error.code) == ("pin.1", "unreadable-pin")
    assert len(repair.given) <= 60
    assert encode_pins([pin]) == {}


def test_pins_of_different_engines_stand_beside_each_other() -> None:
    mixed = (Pin(scenario=scenario(engine_version="0.11.0")), Pin(scenario=scenario(engine="vllm-ascend")))
    assert decode_pins(encode_pins(mixed)) == mixed


def test_an_empty_pin_is_nothing() -> None:
    assert decode_pins({"pin.1": "", "pin.2": "  ", "model": "Qwen/Qwen3-32B"}) == ()


def test_a_config_too_long_for_a_link_cannot_be_pinned() -> None:
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256,
    }  # fmt: skip
    short = scenario_from_request({"model": "mine", "config": config, "accelerator": "H100-80GB"})
    # Digests deflate to no less than half.
    noise = "".join(hashlib.sha256(bytes([n])).hexdigest() for n in range(150))
    dull, long = (
        scenario_from_request(
            {"model": "mine", "config": config | {"notes": notes}, "accelerator": "H100-80GB"}
        )
        for notes in ("x" * 9000, noise)
    )
    assert link.fits_in_link(short)
    assert link.fits_in_link(dull)
    assert not link.fits_in_link(long)


def test_a_parameter_without_a_value_is_read_in_a_pin_as_in_a_link() -> None:
    params = {"model": "Qwen/Qwen3-8B", "accelerator": "H100-80GB", "env.VLLM_USE_V1": "", "max_num_seqs": ""}
    (pin,) = decode_pins({"pin.1": link.query_string(params)})
    opened = link.decode(params)
    assert pin.scenario == opened.scenario
    assert pin.scenario is not None
    assert pin.scenario.env == {"VLLM_USE_V1": ""}
    for repairs in (pin.repairs, opened.repairs):
        assert [(repair.field, repair.error.code) for repair in repairs] == [
            ("max_num_seqs", "invalid-value")
        ]
    assert link.fits_in_link(opened.scenario)


def test_a_scenario_of_more_fields_than_a_pin_has_is_not_pinned() -> None:
    assert not link.fits_in_link(scenario(env={f"A{number}": "" for number in range(80)}))
    assert link.fits_in_link(scenario(env={f"A{number}": "" for number in range(40)}))


@pytest.mark.parametrize("name", ["pin.5", "pin.01", "pin.0", "pin.", "pin.x"])
def test_a_pin_of_another_name_is_not_dropped_in_silence(name: str) -> None:
    params = link.encode(scenario()) | {name: link.pin_text(scenario()), "utm_x": "1"}
    assert [(repair.field, repair.error.code) for repair in link.decode(params).repairs] == [
        (name, "pin-not-read")
    ]

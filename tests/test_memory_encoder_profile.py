"""What the profile run draws for an encoder: tokens by the processors' rules, bytes by arithmetic, printed logs."""

from typing import Any

import pytest

from kvcore.base.units import GIB, gib
from kvcore.engine.protocol import Setting
from kvcore.engine.setting import setting_of
from kvcore.engines.registry import engine_of, view_of
from kvcore.memory.activations import ACTIVATIONS, peak_activation_bytes
from kvcore.memory.encoder_profile import drawn_items, encoder_bytes, profiled_bytes
from kvcore.model.config import Section
from kvcore.model.families import read_architecture
from kvcore.model.parts.image_encoders import moonvit
from kvcore.wire.request import scenario_from_request
from tests.engine_examples import A100, GEMMA3_12B, H100, setting_for

QWEN2_VL, QWEN25_VL = "Qwen/Qwen2-VL-2B-Instruct", "Qwen/Qwen2.5-VL-7B-Instruct"
QWEN3_VL, QWEN35 = "Qwen/Qwen3-VL-30B-A3B-Instruct", "Qwen/Qwen3.5-0.8B"


def of(model: str, version: str = "0.28.0", **fields: Any) -> Setting:
    """A setting of a model of the catalogue."""
    asked = {"model": model, "accelerator": H100, "engine_version": version, **fields}
    scenario = scenario_from_request(asked)
    assert scenario.accelerator is not None
    architecture = read_architecture(scenario.config)
    resolved = engine_of(scenario).resolve(scenario, architecture, view_of(scenario.accelerator))
    return setting_of(scenario, architecture, resolved, scenario.accelerator, 0)


def drawn(setting: Setting) -> tuple[int, int]:
    """Items, and tokens of each."""
    vision = setting.architecture.vision
    assert vision is not None
    found = drawn_items(setting, vision, ACTIVATIONS.load().encoder)
    return found.items, found.tokens


def profiled(setting: Setting) -> tuple[int, int]:
    """Bytes while the encoder runs, and those that stay."""
    return encoder_bytes(setting, ACTIVATIONS.load().encoder)


def peak_of(setting: Setting) -> tuple[int, int]:
    """The same, or nothing where no encoder is profiled."""
    tables = ACTIVATIONS.load()
    return profiled_bytes(setting, tables.encoder, tables.audio)


class TestTokens:
    """By vllm/model_executor/models/qwen2_vl.py and qwen3_vl.py."""

    def test_minimax_m3_draws_pairs_of_frames_of_their_own_size(self) -> None:
        """500 frames of 602,112 pixels, two of which are 768 tokens; an image is 672 × 672 pixels, 576 tokens.

        By vllm/models/minimax_m3/common/mm_preprocess.py and transformers_utils/processors/minimax_m3.py (0.33.0).
        """
        model = "MiniMaxAI/MiniMax-M3"
        assert drawn(of(model, "0.29.0")) == (1, 250 * 768)
        assert drawn(of(model, "0.29.0", max_model_len=10240)) == (1, 13 * 768)
        only_images = of(model, "0.29.0", max_model_len=10240, limit_mm_per_prompt={"image": 4, "video": 0})
        assert drawn(only_images)[1] == 576

    def test_a_video_as_long_as_the_context_has_room_for(self) -> None:
        """A published log of 0.23.0 prints a budget of 114,688 tokens and one video; a frame has 16,384."""
        assert drawn(of(QWEN25_VL, "0.23.0", max_model_len=128000)) == (1, 114_688)
        assert drawn(of(QWEN25_VL, "0.10.2", max_model_len=128000)) == (1, 7 * 16384)
        assert drawn(of(QWEN25_VL, "0.10.2", max_model_len=131072)) == (1, 8 * 16384)
        assert drawn(of(QWEN25_VL, "0.23.0", max_model_len=8192)) == (1, 16384)
        images = {"limit_mm_per_prompt": {"video": 0}}
        assert drawn(of(QWEN25_VL, "0.23.0", max_model_len=128000, **images)) == (1, 16384)

    def test_one_image_where_a_video_is_shrunk(self) -> None:
        """Printed for Qwen3-VL-30B on 0.13.0 and Qwen3-VL-32B: a budget of 16,384 tokens, 1 image."""
        assert drawn(of(QWEN3_VL, "0.13.0", max_model_len=8192)) == (1, 16384)

    @pytest.mark.parametrize(
        ("version", "pixels", "tokens"),
        [("0.28.0", 262144, 334), ("0.28.0", 331 * 784, 330), ("0.28.0", 784, 1), ("0.11.0", 262144, 324)],
    )
    def test_max_pixels(self, version: str, pixels: int, tokens: int) -> None:
        """28 × 28 pixels make a token: 262144 / 784 = 334.4. Before 0.12 a square: 512 / 28 = 18.3."""
        bounds = {
            "mm_processor_kwargs": {"max_pixels": pixels},
            "limit_mm_per_prompt": {"video": 0, "image": 1},
        }
        assert drawn(of(QWEN2_VL, version, max_model_len=4096, max_num_seqs=1, **bounds)) == (1, tokens)

    def test_videos_of_small_frames(self) -> None:
        """Three pairs of frames of 334 tokens in 1,024 of context, seven in 4,096."""
        bounds = {"mm_processor_kwargs": {"max_pixels": 262144}, "max_num_seqs": 1}
        assert drawn(of(QWEN2_VL, max_model_len=1024, **bounds)) == (1, 3 * 334)
        assert drawn(of(QWEN2_VL, max_model_len=4096, **bounds)) == (1, 7 * 334)

    def test_sizes_of_the_limit_shrink_what_is_drawn(self) -> None:
        limits = {"image": 1, "image.width": 512, "image.height": 256}
        assert drawn(of(QWEN35, max_model_len=8192, limit_mm_per_prompt=limits)) == (1, 16 * 8)

    def test_images_of_one_size_ignore_max_pixels(self) -> None:
        bounds = {"mm_processor_kwargs": {"max_pixels": 1000}}
        plain = setting_for(GEMMA3_12B, engine_version="0.19.0")
        assert drawn(plain) == drawn(setting_for(GEMMA3_12B, engine_version="0.19.0", **bounds)) == (32, 256)

    def test_kimi_vl_draws_a_square_under_the_processors_limit(self) -> None:
        """1024 // 14 = 73 patches a side, 73² above 4096: 1024 × 64 / 73 = 897 pixels, padded to 33 × 28."""
        side = -(-int(1024 * 64 / 73) // 28)
        section = Section(
            {"hidden_size": 1152, "intermediate_size": 4304, "num_attention_heads": 16, "num_hidden_layers": 27,
             "patch_size": 14, "init_pos_emb_height": 64, "init_pos_emb_width": 64}, "vision_config"
        )  # fmt: skip
        vision = moonvit(section, text=2048).vision
        assert vision is not None
        assert (vision.max_tokens_per_item, vision.patches_per_token, vision.hidden_size) == (
            side**2,
            4,
            1152,
        )

    def test_kimi_k25_draws_images_of_its_most_patches(self) -> None:
        assert drawn(of("moonshotai/Kimi-K2.5", max_model_len=8192, tensor_parallel_size=8)) == (
            2,
            16384 // 4,
        )


class TestBytes:
    def test_outputs_and_pixels_stay_in_v1(self) -> None:
        """Qwen3-VL-30B, 0.13.0: 16,384 tokens of 2048 with three levels of features, 65,536 patches of 1536 values."""
        _, kept = profiled(of(QWEN3_VL, "0.13.0", max_model_len=8192))
        assert kept == 16384 * 2048 * 4 * 2 + 65536 * 1536 * 2
        _, kept = profiled(setting_for(GEMMA3_12B, engine_version="0.19.0"))
        assert kept == 32 * 256 * 3840 * 2 + 32 * 4096 * 588 * 2

    def test_only_outputs_stay_in_v2(self) -> None:
        env = {"env": {"VLLM_USE_V2_MODEL_RUNNER": "1"}}
        _, kept = profiled(of(QWEN35, max_model_len=8192, **env))
        assert kept == 16384 * 1024 * 2

    def test_ranks_share_what_is_inside_of_layers(self) -> None:
        vector = 65536 * 768 * 2
        assert profiled(of(QWEN35))[0] == 12 * vector
        assert profiled(of(QWEN35, tensor_parallel_size=2))[0] == (3 + 9 // 2 + 0.5) * vector
        assert profiled(of(QWEN35, tensor_parallel_size=2, mm_encoder_tp_mode="data"))[0] == 12 * vector

    @pytest.mark.parametrize(
        "fields",
        [{"skip_mm_profiling": True}, {"language_model_only": True},
         {"limit_mm_per_prompt": {"image": 0, "video": 0}}],
    )  # fmt: skip
    def test_nothing_is_drawn(self, fields: dict[str, Any]) -> None:
        assert peak_of(of(QWEN35, **fields)) == (0, 0)
        assert peak_of(setting_for(GEMMA3_12B, limit_mm_per_prompt={"image": 0})) == (0, 0)


class TestPublished:
    def test_qwen35_on_0_28(self) -> None:
        """An A100 prints 1.36 GiB, of which 0.09 are the graphs' estimate."""
        peak = peak_activation_bytes(of(QWEN35, max_model_len=8192, max_num_seqs=32, accelerator=A100))
        assert gib(peak.value) == pytest.approx(1.36 - 0.09, rel=0.07)

    def test_without_bounds_images_may_be_smaller(self) -> None:
        """The interval goes down to the peak without images, as the repository's own bounds are not read."""
        fields = {"max_model_len": 1024, "max_num_seqs": 1}
        free = peak_activation_bytes(of(QWEN2_VL, **fields))
        bound = peak_activation_bytes(of(QWEN2_VL, mm_processor_kwargs={"max_pixels": 262144}, **fields))
        assert free.interval is not None
        assert bound.interval is not None
        assert free.interval[0] < bound.value < 0.2 * GIB
        assert bound.interval[1] < 0.2 * GIB < 1.5 * GIB < free.value

    def test_what_is_not_explained_is_in_the_interval(self) -> None:
        """RedHatAI's Qwen3.6-35B-A3B-NVFP4, 0.20.0 on an RTX 5090 of 31.84 GiB: 0.8 × 31.84 less 21.86 of
        weights and 0.32 for the cache are 3.29 GiB, eager and with Marlin, of which the model that is at hand peaks at
        1.94. On a card of capability 9.0 the interval is what the encoder's own constants say."""
        fields = {
            "max_model_len": 8192,
            "max_num_batched_tokens": 8192,
            "max_num_seqs": 32,
            "enforce_eager": True,
        }
        model = "nvidia/Qwen3.6-35B-A3B-NVFP4"
        here, hopper = (
            peak_activation_bytes(of(model, "0.20.0", accelerator=card, **fields))
            for card in ("rtx-5090-32gb", H100)
        )
        assert here.value == hopper.value < 2 * GIB
        assert here.interval is not None
        assert hopper.interval is not None
        assert hopper.interval[1] < 2.5 * GIB < 3.1 * GIB < here.interval[1] < 3.3 * GIB

"""What the profile run draws for an encoder of audio: recordings as logs print them, bytes counted by hand."""

from typing import Any

import pytest

from kvcore.engine.protocol import Setting
from kvcore.engine.setting import setting_of
from kvcore.engines.registry import engine_of, view_of
from kvcore.memory.activations import ACTIVATIONS
from kvcore.memory.encoder_profile import (
    audio_bytes,
    profiled_bytes,
    recording_chunks,
    recording_tokens,
    recordings,
)
from kvcore.model.families import read_architecture
from kvcore.wire.request import scenario_from_request
from tests.engine_examples import H100

TEXT = {
    "hidden_size": 4096, "intermediate_size": 11008, "num_attention_heads": 32, "num_hidden_layers": 2,
    "num_key_value_heads": 32, "max_position_embeddings": 32768, "vocab_size": 151936,
}  # fmt: skip
QWEN2 = {**TEXT, "model_type": "qwen2"}
LLAMA = {**TEXT, "model_type": "llama"}
WHISPER_ENCODER = {
    "d_model": 1280, "hidden_size": 1280, "encoder_attention_heads": 20, "encoder_ffn_dim": 5120, "encoder_layers": 2,
    "num_hidden_layers": 2, "num_attention_heads": 20, "intermediate_size": 5120, "max_source_positions": 1500,
    "num_mel_bins": 128,
}  # fmt: skip

WHISPER = {
    "architectures": ["WhisperForConditionalGeneration"], "model_type": "whisper", "torch_dtype": "float16",
    "d_model": 1280, "decoder_attention_heads": 20, "decoder_ffn_dim": 5120, "decoder_layers": 32,
    "encoder_attention_heads": 20, "encoder_ffn_dim": 5120, "encoder_layers": 32, "max_source_positions": 1500,
    "max_target_positions": 448, "num_mel_bins": 128, "vocab_size": 51866, "is_encoder_decoder": True,
}  # fmt: skip
QWEN2_AUDIO = {
    "architectures": ["Qwen2AudioForConditionalGeneration"], "model_type": "qwen2_audio",
    "audio_config": {**WHISPER_ENCODER, "model_type": "qwen2_audio_encoder"}, "text_config": QWEN2,
    "torch_dtype": "bfloat16",
}  # fmt: skip
FLAMINGO = {
    **QWEN2_AUDIO,
    "architectures": ["AudioFlamingo3ForConditionalGeneration"],
    "model_type": "audioflamingo3",
}
VOXTRAL = {
    "architectures": ["VoxtralForConditionalGeneration"], "model_type": "voxtral", "torch_dtype": "bfloat16",
    "audio_config": {**WHISPER_ENCODER, "model_type": "voxtral_encoder"}, "text_config": LLAMA,
}  # fmt: skip
ULTRAVOX = {
    "architectures": ["UltravoxModel"], "model_type": "ultravox", "torch_dtype": "bfloat16", "stack_factor": 8,
    "hidden_size": 4096, "audio_config": {**WHISPER_ENCODER, "model_type": "whisper"}, "text_config": LLAMA,
}  # fmt: skip
ASR = {
    "architectures": ["Qwen3ASRForConditionalGeneration"], "model_type": "qwen3_asr", "torch_dtype": "bfloat16",
    "thinker_config": {
        "model_type": "qwen3_asr", "text_config": {**TEXT, "model_type": "qwen3", "head_dim": 128},
        "audio_config": {
            "model_type": "qwen3_asr_audio_encoder", "d_model": 1024, "encoder_attention_heads": 16,
            "encoder_ffn_dim": 4096, "encoder_layers": 2, "num_mel_bins": 128, "output_dim": 4096,
            "downsample_hidden_size": 480, "n_window": 50, "conv_chunksize": 500,
        },
    },
}  # fmt: skip
GRANITE = {
    "architectures": ["GraniteSpeechForConditionalGeneration"], "model_type": "granite_speech",
    "torch_dtype": "bfloat16", "window_size": 15, "downsample_rate": 5,
    "text_config": {**TEXT, "model_type": "granite"},
    "encoder_config": {
        "model_type": "granite_speech_encoder", "hidden_dim": 1024, "input_dim": 160, "output_dim": 42, "num_heads": 8,
        "dim_head": 128, "feedforward_mult": 4, "context_size": 200, "num_layers": 2,
    },
    "projector_config": {
        "model_type": "blip_2_qformer", "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 2,
        "num_attention_heads": 16, "encoder_hidden_size": 1024,
    },
}  # fmt: skip
DASHENG = {
    "architectures": ["MiDashengLMModel"], "model_type": "midashenglm", "torch_dtype": "bfloat16",
    "subsample_factor": 5, "text_config": QWEN2,
    "audio_encoder_config": {"embed_dim": 1280, "depth": 2, "num_heads": 16, "mlp_ratio": 4.0},
}  # fmt: skip
PHI4 = {
    **TEXT, "architectures": ["Phi4MMForCausalLM"], "model_type": "phi4mm", "torch_dtype": "bfloat16",
    "audio_processor": {"name": "cascades", "config": {
        "attention_dim": 1024, "attention_heads": 16, "linear_units": 1536, "num_blocks": 2, "input_size": 80,
        "time_reduction": 8, "kernel_size": 3, "nemo_conv_settings": {"conv_channels": 1024},
        "relative_attention_bias_args": {"type": "t5", "t5_bias_max_distance": 500},
    }},
}  # fmt: skip


def of(config: dict[str, Any], version: str = "0.20.0", **fields: Any) -> Setting:
    """A setting of a config."""
    asked = {"config": config, "accelerator": H100, "engine_version": version, **fields}
    scenario = scenario_from_request(asked)
    assert scenario.accelerator is not None
    architecture = read_architecture(scenario.config)
    resolved = engine_of(scenario).resolve(scenario, architecture, view_of(scenario.accelerator))
    return setting_of(scenario, architecture, resolved, scenario.accelerator, 0)


def drawn(setting: Setting) -> tuple[int, int, int]:
    """Recordings, tokens of each, and chunks of each."""
    audio = setting.architecture.audio
    assert audio is not None
    return recordings(setting, audio), recording_tokens(setting, audio), recording_chunks(setting, audio)


def profiled(setting: Setting) -> tuple[int, int]:
    """Bytes while the encoder runs, and those that stay."""
    return audio_bytes(setting, ACTIVATIONS.load().audio)


def peak_of(setting: Setting) -> tuple[int, int]:
    """The same of the encoder that the profile run chooses."""
    tables = ACTIVATIONS.load()
    return profiled_bytes(setting, tables.encoder, tables.audio)


class TestDrawn:
    """By the classes' processors in vllm/model_executor/models (0.11.0 to 0.33.0)."""

    def test_as_logs_print_it(self) -> None:
        """whisper-large-v3 on 0.15.1: a budget of 2048 tokens, 1 item. Qwen3-Omni, whose encoder Qwen3-ASR has, in
        vLLM's pull request 32167: 8192 tokens, 21 items."""
        assert drawn(of(WHISPER, "0.15.1", max_num_batched_tokens=2048)) == (1, 1500, 1)
        assert drawn(of(ASR, max_model_len=16384, max_num_batched_tokens=8192)) == (21, 390, 1)

    @pytest.mark.parametrize(
        ("config", "expected"),
        [
            (QWEN2_AUDIO, (8192 // 750, 750, 1)),
            (FLAMINGO, (1, 20 * 750, 20)),
            (ULTRAVOX, (8192 // (16 * 188), 16 * 188, 16)),
            (GRANITE, (1, 5001, 1)),
            (DASHENG, (8192 // 50, 50, 1)),
            # 241,000 samples are 1,504 rows.
            (PHI4, (8192 // 188, 188, 1)),
        ],
    )
    def test_by_class(self, config: dict[str, Any], expected: tuple[int, int, int]) -> None:
        """As many as fit in the batch; a single one may be longer than it."""
        assert drawn(of(config, max_num_batched_tokens=8192, max_model_len=32768)) == expected

    def test_a_recording_that_fills_the_context(self) -> None:
        """Voxtral: four positions a token, so that 375 tokens are a chunk of 30 seconds; a log of 8,192 tokens prints a
        budget of 8192 tokens, 1 item."""
        assert drawn(of(VOXTRAL, max_model_len=8192, max_num_batched_tokens=8192)) == (1, 8192, 22)
        assert drawn(of(VOXTRAL, max_model_len=32768, max_num_batched_tokens=2048)) == (1, 32768, 88)
        assert drawn(of(VOXTRAL, max_model_len=1000, max_num_batched_tokens=8192))[0] == 8

    def test_limits_of_the_request(self) -> None:
        """One recording a prompt, and two prompts at once."""
        asked = {"limit_mm_per_prompt": {"audio": 1}, "max_num_seqs": 2}
        assert drawn(of(QWEN2_AUDIO, max_model_len=32768, **asked))[0] == 2


class TestBytes:
    """Vectors of 16 bits, by hand."""

    def test_layers(self) -> None:
        """Ten recordings, 1,500 positions each: residual, norm, and MLP and GELU of 5,120; on every rank the same."""
        asked = {"max_num_batched_tokens": 8192, "max_model_len": 32768}
        running = 10 * 1500 * (2 * 1280 + 2 * 5120) * 2
        stays = 10 * 750 * 4096 * 2 + 10 * 3000 * 128 * 2
        assert profiled(of(QWEN2_AUDIO, **asked)) == (running, stays)
        assert profiled(of(QWEN2_AUDIO, tensor_parallel_size=2, **asked)) == (running, stays)
        went_in = 10 * 3000 * 128 * 2
        assert profiled(of(QWEN2_AUDIO, "0.32.0", **asked)) == (running + went_in, stays - went_in)

    def test_ranks_share_mlps(self) -> None:
        """Ultravox's layers are vLLM's own; 16 chunks at once of the 32 that are drawn."""
        one, four = (
            profiled(
                of(ULTRAVOX, tensor_parallel_size=ranks, max_num_batched_tokens=8192, max_model_len=32768)
            )
            for ranks in (1, 4)
        )
        assert one[0] == 16 * 1500 * (2 * 1280 + 2 * 5120) * 2
        assert four[0] == 16 * 1500 * (2 * 1280 + 2 * 1280) * 2
        assert one[1] == four[1] == 2 * 16 * 188 * 4096 * 2 + 32 * 3000 * 128 * 2

    def test_convolutions_of_windows(self) -> None:
        """21 recordings of 30 seconds are 630 windows, of which 500 run at once; the first convolution gives 480 × 64 ×
        50 values of each, and its GELU as many: 2.9 GiB."""
        running, _ = profiled(of(ASR, max_model_len=16384, max_num_batched_tokens=8192))
        assert running == 500 * 2 * 480 * 64 * 50 * 2
        few, _ = profiled(of(ASR, max_model_len=16384, max_num_batched_tokens=2048))
        assert few == 5 * 30 * 2 * 480 * 64 * 50 * 2

    def test_one_recording_after_another(self) -> None:
        """Phi-4-multimodal's first convolution gives 1,024 × 752 × 40 values, and its ReLU as many; what 43 recordings
        give stays, with 1,504 × 80 values of each that went in."""
        asked = {"max_num_batched_tokens": 8192, "max_model_len": 32768}
        stays = 43 * (188 * 4096 + 1504 * 80) * 2
        assert profiled(of(PHI4, **asked)) == (2 * 1024 * 752 * 40 * 2, stays)
        assert peak_of(of(PHI4, limit_mm_per_prompt={"image": 0}, **asked)) == profiled(of(PHI4, **asked))

    def test_products_of_queries_and_positions(self) -> None:
        """Before 0.22 Granite's attention keeps 8 × 200 × 128 values of each of 25,000 positions: 9.5 GiB."""
        assert profiled(of(GRANITE, "0.21.0"))[0] == 25_000 * 8 * 200 * 128 * 2
        assert profiled(of(GRANITE, "0.22.0"))[0] == 25_000 * (2 * 1024 + 2 * 4096) * 2

    def test_nothing_without_recordings(self) -> None:
        """Ruled out, or not profiled."""
        assert peak_of(of(QWEN2_AUDIO, limit_mm_per_prompt={"audio": 0})) == (0, 0)
        assert peak_of(of(QWEN2_AUDIO, skip_mm_profiling=True)) == (0, 0)
        assert peak_of(of(QWEN2_AUDIO)) != (0, 0)


def test_images_come_before_recordings() -> None:
    """An omni model draws its largest item, an image; with images ruled out a recording of 750 tokens."""
    model = {"model": "Qwen/Qwen2.5-Omni-7B-AWQ", "max_num_batched_tokens": 8192, "max_model_len": 32768}
    both = of_model(**model)
    hears = of_model(**model, limit_mm_per_prompt={"image": 0, "video": 0})
    positions = 8192 // 750 * 1500
    assert peak_of(hears)[0] == positions * (2 * 1280 + 2 * 5120) * 2
    assert peak_of(both)[0] > peak_of(hears)[0]


def of_model(model: str, **fields: Any) -> Setting:
    """A setting of a model of the catalogue."""
    scenario = scenario_from_request(
        {"model": model, "accelerator": H100, "engine_version": "0.20.0", **fields}
    )
    assert scenario.accelerator is not None
    architecture = read_architecture(scenario.config)
    resolved = engine_of(scenario).resolve(scenario, architecture, view_of(scenario.accelerator))
    return setting_of(scenario, architecture, resolved, scenario.accelerator, 0)

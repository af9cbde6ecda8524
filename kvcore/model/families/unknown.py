"""Classes that no family claims: a plain decoder, where the config has no key that says otherwise.

The engine runs such a model through its Transformers backend. What its tensors are is assumed, and the architecture
says so; what it keeps of a request follows from its heads.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from kvcore.model.architecture import Architecture
from kvcore.model.config import ModelConfig
from kvcore.model.families.decoder import LLAMA, read_decoder

SUFFIX: Final = "ForCausalLM"
DRAFTS: Final = ("eagle", "medusa", "mtp", "speculator", "draft", "dflash")
"""In the name of what only proposes tokens for another model."""

PLAIN_KEYS: Final = frozenset(
    "hidden_size intermediate_size num_hidden_layers num_attention_heads num_key_value_heads head_dim vocab_size"
    " max_position_embeddings rope_theta rope_scaling rope_parameters partial_rotary_factor rms_norm_eps norm_eps"
    " layer_norm_eps layer_norm_epsilon tie_word_embeddings attention_bias mlp_bias hidden_act sliding_window"
    " use_sliding_window max_window_layers layer_types quantization_config".split()
)
"""Of which every one is read, or changes no tensor."""

HARMLESS_KEYS: Final = frozenset(
    "architectures model_type auto_map torch_dtype dtype transformers_version _name_or_path bos_token_id eos_token_id"
    " pad_token_id unk_token_id use_cache initializer_range attention_dropout residual_dropout hidden_dropout"
    " resid_pdrop attn_pdrop embd_pdrop pretraining_tp is_causal id2label label2id task_specific_params"
    " output_attentions output_hidden_states return_dict tokenizer_class use_flash_attn _attn_implementation"
    " _attn_implementation_autoset attn_implementation is_decoder is_encoder_decoder add_cross_attention"
    " chunk_size_feed_forward finetuning_task name_or_path problem_type unsloth_version unsloth_fixed".split()
)

WINDOWS: Final = frozenset({"full_attention", "sliding_attention"})

GATED: Final = frozenset({"silu", "swish", "swiglu"})
"""Activations of a gated feed-forward part. With others it may be plain."""


def strange_keys(config: ModelConfig) -> tuple[str, ...]:
    """What in a config is not of a plain decoder: keys, an activation that may be no gate, other kinds of layers.

    Example:
        >>> config = {"architectures": ["NewForCausalLM"], "hidden_act": "silu", "num_experts": 8}
        >>> strange_keys(ModelConfig.from_mapping(config))
        ('num_experts',)
    """
    root = config.root
    given = {key for key, value in config.raw.items() if value is not None and value is not False}
    strange = sorted(given - PLAIN_KEYS - HARMLESS_KEYS)
    if root.string("hidden_act", "silu") not in GATED:
        strange.append("hidden_act")
    if not WINDOWS.issuperset(root.strings("layer_types") or ()):
        strange.append("layer_types")
    return tuple(strange)


def is_named_like_a_decoder(config: ModelConfig) -> bool:
    """Whether the class's name is that of a model that generates text by itself."""
    name = config.architectures[0] if config.architectures else ""
    return name.endswith(SUFFIX) and not any(draft in name.lower() for draft in DRAFTS)


def read_unknown(config: ModelConfig) -> Architecture:
    """The plain decoder that the config describes, marked as assumed.

    Raises ModelError for a missing or unusable size.
    """
    return replace(read_decoder(LLAMA, config), is_assumed=True)

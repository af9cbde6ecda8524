"""Write kvcore/model/class_defaults.json from dumps of transformers config classes.

    python tools/class_defaults.py DUMPS > kvcore/model/class_defaults.json

DUMPS is a folder with one `<model_type>.json` each: `json.dumps(SomeConfig().to_dict())`. Only keys that decide a
size, a count or a length are kept; lists that a class derives from other keys (layer_types) are left out, because
their default belongs to the default number of layers. JSON, a line for each model_type: a plan from the shell reads it.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

DROPPED = re.compile(
    r"(^_|_token_id$|token_index$|dropout|pdrop$|initializer|layerdrop|_act$|activation|_eps$|epsilon$|_coef|_loss_"
    r"|^output_|^summary_|^id2label|^label2id|^time_step_(min|max|floor|scale|init|limit)|router_jitter|input_jitter"
    r"|^(use_cache|return_dict|transformers_version|architectures|dtype|chunk_size_feed_forward|is_encoder_decoder"
    r"|problem_type|initializer_range|model_type|pretraining_tp|norm_topk_prob|routed_scaling_factor|layer_types"
    r"|mlp_layer_types|layers_block_type|residual_in_fp32|rescale_prenorm_residual|num_logits_to_keep|embedding_multiplier"
    r"|logits_scaling|residual_multiplier|attention_multiplier|logit_scale|query_pre_attn_scalar|topk_method|init_std"
    r"|scale_attn_weights|init_device|activation_sparsity_pattern|norm_min|eps|time_step_rank|no_rope_layers|moe_layers"
    r"|image_grid_pinpoints|hybrid_layer_ids|audio_config|rope_theta|block_types|mtp_layers_block_type)$)"
)


DERIVED = {
    "falcon": ("ffn_hidden_size", "num_kv_heads"),
    "gpt2": ("n_inner",),
    "mamba": ("intermediate_size",),
}
"""Keys that the class computes from others although the dump shows a number."""

FIXED_HEAD_DIM = ("qwen3",)
"""Classes whose head_dim is a constant that happens to equal hidden_size / num_attention_heads of the defaults."""


def size_keys(dump: dict[str, Any]) -> dict[str, Any]:
    """The entries of one dump that can decide a size.

    A rope default keeps its partial_rotary_factor. KV heads equal to the heads, and a head_dim equal to
    hidden_size / heads, are left out: those classes compute them from what the file says.
    """
    derived = set(DERIVED.get(dump["model_type"], ()))
    heads = dump.get("num_attention_heads") or 0
    if dump.get("num_key_value_heads") == heads:
        derived.add("num_key_value_heads")
    if (
        heads
        and dump["model_type"] not in FIXED_HEAD_DIM
        and dump.get("head_dim") == dump["hidden_size"] // heads
    ):
        derived.add("head_dim")
    kept = {
        key: value
        for key, value in dump.items()
        if not DROPPED.search(key) and key not in derived and isinstance(value, bool | int | float | str)
    }
    rope = dump.get("rope_parameters") or {}
    for key in ("partial_rotary_factor",):
        if key in rope:
            kept[key] = rope[key]
    return kept


def tables(folder: Path) -> dict[str, tuple[str, dict[str, Any]]]:
    """model_type, or model_type/section, with its source and its kept entries."""
    found: dict[str, tuple[str, dict[str, Any]]] = {}
    for path in sorted(folder.glob("*.json")):
        dump = json.loads(path.read_text("utf-8"))
        source = f"transformers {dump['transformers_version']}, config class of {path.stem}"
        found[path.stem] = (source, size_keys(dump))
        for key, nested in dump.items():
            if isinstance(nested, dict) and key in (
                "text_config",
                "vision_config",
                "attn_config",
                "ffn_config",
            ):
                found[f"{path.stem}/{key}"] = (f"{source}, its {key}", size_keys(nested))
    return found


def main() -> None:
    """Print the JSON document."""
    lines = (
        f"  {json.dumps(name)}: {json.dumps({'source': source, 'values': dict(sorted(values.items()))})}"
        for name, (source, values) in tables(Path(sys.argv[1])).items()
    )
    print("{\n" + ",\n".join(lines) + "\n}")


if __name__ == "__main__":
    main()

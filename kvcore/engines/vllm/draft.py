"""Which draft a `--speculative-config` loads, and how many tokens it proposes."""

from __future__ import annotations

from typing import Final

from kvcore import catalogue
from kvcore.base.errors import EngineRefusalError, Notice, ScenarioError, notice
from kvcore.base.kept import kept
from kvcore.model.architecture import Architecture
from kvcore.model.config import ModelConfig
from kvcore.model.families import read_architecture
from kvcore.model.families.drafts import (
    Draft,
    checkpoint_draft,
    read_head,
    read_medusa,
    read_mlp_speculator,
    read_parallel,
    spark_draft,
    usual_head,
    whole_model_draft,
)
from kvcore.model.quantization import Quantization, read_quantization
from kvcore.scenario import NEEDED_DRAFTS, Parallel, SpeculativeConfig

WITHOUT_DRAFT: Final = frozenset({"ngram", "[ngram]", "ngram_gpu", "suffix"})
"""Methods that look proposals up."""

HEADS: Final = frozenset({"eagle", "eagle3"})
SPARK: Final = "dspark"
PARALLEL: Final = ("dflash", SPARK)
STATELESS: Final = {"medusa": kept(read_medusa), "mlp_speculator": kept(read_mlp_speculator)}
SUFFIX_TOKENS: Final = 24
"""Source: vllm/config/speculative.py:SpeculativeConfig.suffix_decoding_max_tree_depth (0.32)."""


def uses_checkpoint_drafts(method: str) -> bool:
    """Whether a method runs the multi-token-prediction layers of a checkpoint: mtp, and its older names by model.

    Source: vllm/config/speculative.py:MTPModelTypes (0.11, 0.32).

    Example:
        >>> uses_checkpoint_drafts("deepseek_mtp"), uses_checkpoint_drafts("eagle")
        (True, False)
    """
    return method == "mtp" or method.endswith("_mtp")


def proposed_tokens(speculative: SpeculativeConfig, architecture: Architecture) -> int:
    """num_speculative_tokens, by default as many as the checkpoint's draft layers predict.

    Raises EngineRefusalError where the asked number does not go round them evenly.

    Source: vllm/config/speculative.py:SpeculativeConfig.__post_init__ (0.32).
    """
    asked, config = speculative.num_speculative_tokens, draft_config(speculative)
    if not uses_checkpoint_drafts(speculative.method):
        size = _block_size(config, architecture) if speculative.method == SPARK else None
        return asked or size or (SUFFIX_TOKENS if speculative.method == "suffix" else 1)
    if config is not None:
        architecture = read_architecture(config)
    steps = max(1, architecture.draft_steps)
    if asked is None:
        return steps
    if asked > steps and asked % steps:
        raise EngineRefusalError(
            "speculative-tokens-not-divisible",
            field="speculative_config.num_speculative_tokens",
            value=asked,
            steps=steps,
        )
    return asked


def _block_size(config: ModelConfig | None, architecture: Architecture) -> int | None:
    """Tokens that a DSpark draft proposes by itself: as its config says, or the checkpoint that it is in."""
    size = config.root.optional_integer("block_size") if config else None
    spark = (architecture if config is None else read_architecture(config)).spark if size is None else None
    return spark.tokens if spark else size


def read_draft(
    speculative: SpeculativeConfig | None,
    architecture: Architecture,
    quantization: Quantization,
    parallel: Parallel,
    max_model_len: int,
) -> Draft | None:
    """The draft that the engine loads in addition to the model; None where it loads none, or none that is known here.

    Raises ScenarioError `draft-model-unknown` for a draft that has no usual shape without a config, EngineRefusalError
    for a method that the model has no layers for and for a tensor parallel size that the draft cannot have.

    Source: vllm/config/speculative.py:SpeculativeConfig.__post_init__ (0.32).
    """
    if speculative is None:
        return None
    asked, ranks = speculative.draft_tensor_parallel_size, parallel.tensor_parallel_size
    if asked not in (None, 1, ranks):
        raise EngineRefusalError(
            "draft-ranks", "speculative_config.draft_tensor_parallel_size", asked, ranks=ranks
        )
    method, config = speculative.method, draft_config(speculative)
    if method in HEADS:
        if config is None:
            return _usual_head(architecture, method)
        return _read_head(config, method, architecture, max_model_len)
    if uses_checkpoint_drafts(method):
        if config is not None:
            architecture, quantization = read_architecture(config), read_quantization(config, None)
        if not architecture.draft_layers:
            raise EngineRefusalError("speculative-method-unsupported", "speculative_config.method", method)
        return _checkpoint_draft(architecture, quantization)
    if method not in NEEDED_DRAFTS:
        return None
    if method == SPARK and (own := _own_spark(config, architecture, quantization)):
        return own
    if config is None:
        raise ScenarioError("draft-model-unknown", "speculative_config.model", speculative.model or method)
    if method in PARALLEL:
        return _read_parallel(config, architecture, max_model_len)
    if method in STATELESS:
        return STATELESS[method](config)
    return _whole_model_draft(read_architecture(config), read_quantization(config, None))


def draft_config(speculative: SpeculativeConfig) -> ModelConfig | None:
    """The config of the draft: as given, else of that name in the catalogue, else None."""
    if speculative.config is not None or speculative.model is None or speculative.method in WITHOUT_DRAFT:
        return speculative.config
    known = catalogue.bundled_model(speculative.model)
    return None if known is None else known.config


def _own_spark(
    config: ModelConfig | None, architecture: Architecture, quantization: Quantization
) -> Draft | None:
    """The DSpark draft in the checkpoint of the model, or in the one that `--speculative-config` names.

    Without a model it is the target: vllm/config/speculative.py:SpeculativeConfig.__post_init__ (0.25.0, 0.33.0).
    """
    if config is None:
        return _spark_draft(architecture, quantization)
    if not config.language.has("dspark_target_layer_ids"):
        return None
    return _spark_draft(read_architecture(config), read_quantization(config, None))


_read_head = kept(read_head)
_spark_draft = kept(spark_draft)
_read_parallel = kept(read_parallel)
_checkpoint_draft = kept(checkpoint_draft)
_whole_model_draft = kept(whole_model_draft)


@kept
def _usual_head(architecture: Architecture, method: str) -> Draft:
    return usual_head(method, architecture)


def draft_notices(speculative: SpeculativeConfig | None, draft: Draft | None) -> tuple[Notice, ...]:
    """Notices about the draft: its shape is assumed, or it is not counted."""
    if speculative is None or speculative.method in WITHOUT_DRAFT:
        return ()
    facts = {"method": speculative.method[:40], "model": (speculative.model or "")[:80]}
    if draft is None:
        return (notice("draft-not-counted", "speculative_config.method", **facts),)
    if draft.is_assumed:
        return (notice("draft-head-assumed", "speculative_config.model", **facts),)
    return ()

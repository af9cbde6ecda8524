"""vllm-ascend's own cache specs and plans, on a CPU: cases in, rows out, as JSON lines.

    PYTHONPATH=<unpacked vllm-ascend>:<unpacked vllm of the same number> python npu_planner.py < cases.json > rows.jsonl

Of vllm-ascend run `refresh_block_size`, the patches of hybrid models and of the planner, its spec classes, and
`get_kv_cache_spec` of its runner and of DeepSeek-V4's layers: those functions are taken out of modules whose other
imports need a card. Of vLLM run the layers' `get_kv_cache_spec` and the planner. `torch_npu` is stood in.
"""

from __future__ import annotations

import ast
import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import planner as older
import stand_ins

GIB = 1 << 30


def main() -> None:
    stand_ins.install_for_import()
    stand_ins.install_npu()
    import vllm.v1.core.kv_cache_utils as planner

    printed: list[str] = []
    planner.logger = older.Recorder(printed)
    patch()
    older.answer(lambda case: plan(planner, case, printed), printed)


def patch() -> None:
    """The patches that the platform applies before an engine starts, its spec classes where it has any."""
    importlib.import_module("vllm_ascend.patch.platform")
    older.register_specs()
    if has("core/kv_cache_interface.py"):
        from vllm_ascend.core.kv_cache_interface import register_ascend_kv_cache_specs

        register_ascend_kv_cache_specs()


def has(path: str) -> bool:
    """Whether the release has that file."""
    return (folder() / path).exists()


def folder() -> Path:
    """The folder of the package."""
    import vllm_ascend

    return Path(vllm_ascend.__file__).parent


def taken(path: str, *names: str, **known: Any) -> Any:
    """A function or method of a file that cannot be imported whole, with those of its imports that can be."""
    if not has(path):
        raise LookupError(path)
    tree = ast.parse((folder() / path).read_text("utf-8"))
    wanted: Any = tree
    for name in names:
        kinds = (ast.FunctionDef, ast.ClassDef)
        wanted = next((node for node in wanted.body if isinstance(node, kinds) and node.name == name), None)
        if wanted is None:
            raise LookupError(name)
    used = {node.id for node in ast.walk(wanted) if isinstance(node, ast.Name)} - {*known}
    scope: dict[str, Any] = {"__name__": "vllm_ascend.taken"}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            _bring(node, used, scope)
    wanted.decorator_list = []
    code = [*ast.parse("from __future__ import annotations").body, wanted]
    exec(compile(ast.Module(body=code, type_ignores=[]), path, "exec"), scope | known, found := {})
    function = found[names[-1]]
    function.__globals__.update(known)
    return function


def _bring(node: ast.Import | ast.ImportFrom, used: set[str], scope: dict[str, Any]) -> None:
    """Imports the names that the function uses; a missing class becomes one without instances."""
    for alias in node.names:
        name = alias.asname or alias.name.split(".")[0]
        if name not in used:
            continue
        try:
            if isinstance(node, ast.ImportFrom):
                scope[name] = getattr(importlib.import_module(node.module or ""), alias.name)
            else:
                scope[name] = importlib.import_module(alias.name if alias.asname else name)
        except (ImportError, AttributeError, RuntimeError, TypeError, ValueError, NameError):
            scope.setdefault(name, type(name, (), {}))


def plan(planner: Any, case: dict[str, Any], printed: list[str]) -> dict[str, Any]:
    """The row of a case, in the order of a start: block size, hybrid pages, specs, planner."""
    config = flags(case)
    refresh(config)
    if config.model_config.is_hybrid:
        align(config, case)
    ranks = [specs(config, case, stage) for stage in case["stages"]]
    available = [int(case["available_gib"] * GIB)] * len(ranks)
    pages = [{name: spec.page_size_bytes for name, spec in rank.items()} for rank in ranks]
    configs = planner.get_kv_cache_configs(config, ranks, available)
    cache = configs[0]
    return {
        "block_size": config.cache_config.block_size,
        "num_blocks": min(each.num_blocks for each in configs),
        "tokens": older.printed_tokens(planner, config, cache, printed),
        "concurrency": planner.get_max_concurrency_for_kv_cache_config(config, cache),
        "groups": [
            [type(group.kv_cache_spec).__name__, group.kv_cache_spec.block_size, len(group.layer_names)]
            for group in cache.kv_cache_groups
        ],
        "pages": [sorted(set(rank.values())) for rank in pages],
    }


def flags(case: dict[str, Any]) -> Any:
    """The configuration as vLLM hands it to the plug-in, as far as specs and planner read it."""
    import torch

    config = older.flags(case)
    layers = [layer for stage in case["stages"] for layer in stage]
    latent = next((layer for layer in layers if layer["kind"] == "latent"), {})
    heads = next((layer for layer in layers if layer["kind"] == "attention"), {"heads": 1, "size": 576})
    model = config.model_config
    model.dtype, model.use_mla = torch.bfloat16, bool(latent)
    model.is_hybrid = any(layer["kind"] == "state" for layer in layers)
    model.enforce_eager, model.architecture = False, case["model_type"]
    rope = {"kv_lora_rank": latent.get("rank"), "qk_rope_head_dim": latent.get("rope")}
    model.hf_config = model.hf_text_config = SimpleNamespace(
        model_type=case["model_type"], index_head_dim=latent.get("index", 0), **rope
    )
    model.get_num_kv_heads = lambda _: heads["heads"]
    model.get_head_size = lambda: heads["size"]
    cache = config.cache_config
    cache.block_size, cache.cache_dtype = case.get("block_size"), "auto"
    cache.mamba_block_size = cache.mamba_page_size_padded = None
    cache.enable_prefix_caching = case.get("prefix_caching", True)
    config.scheduler_config.enable_chunked_prefill = True
    config.compilation_config = SimpleNamespace(static_forward_context={})
    config.additional_config, config.kv_transfer_config = {}, None
    drafts = case.get("speculative_tokens", 0)
    if drafts:
        config.speculative_config = SimpleNamespace(
            num_speculative_tokens=drafts, method="mtp", use_eagle=lambda: True
        )
    return config


def refresh(config: Any) -> None:
    """The block size as the platform sets it; until 0.11 within `check_and_update_config`, by the same rule."""
    try:
        taken("utils.py", "refresh_block_size", get_ascend_config=_no_config)(config)
    except LookupError:
        cache = config.cache_config
        before = cache.block_size
        is_kept = config.model_config.hf_config.model_type == "qwen3_next"
        cache.block_size = before if is_kept and before else 128


def _no_config() -> Any:
    raise RuntimeError("no additional config is given")


def align(config: Any, case: dict[str, Any]) -> None:
    """The patched `HybridAttentionMambaModelConfig`, with the shapes that vLLM gives the model's states."""
    import vllm.model_executor.models.config as hybrid

    found = sys.modules["vllm_ascend.patch.platform.patch_mamba_config"]
    state = next(layer for stage in case["stages"] for layer in stage if layer["kind"] == "state")
    shapes, dtypes = state_tensors(state)
    model = SimpleNamespace(
        get_mamba_state_shape_from_config=lambda _: shapes, get_mamba_state_dtype_from_config=lambda _: dtypes
    )
    found.ModelRegistry = SimpleNamespace(resolve_model_cls=lambda *_, **__: (model, None))
    found.MambaModelConfig = SimpleNamespace(verify_and_update_config=lambda _: None)
    hybrid.HybridAttentionMambaModelConfig.verify_and_update_config(config)
    if config.cache_config.mamba_block_size is None:
        config.cache_config.mamba_block_size = config.model_config.max_model_len


def state_tensors(state: dict[str, Any]) -> tuple[Any, Any]:
    """Shapes and dtypes of a gated delta net on one rank, as vLLM computes the shapes."""
    import torch
    import vllm.model_executor.layers.mamba.mamba_utils as mamba

    mamba.is_conv_state_dim_first = lambda: False
    keys = ("ranks", "k_heads", "v_heads", "k_size", "v_size", "rows")
    names = ("tp_world_size", "num_k_heads", "num_v_heads", "head_k_dim", "head_v_dim", "conv_kernel_size")
    given = {name: state[key] for key, name in zip(keys, names, strict=True)}
    shapes = mamba.MambaStateShapeCalculator.gated_delta_net_state_shape(**given)
    return shapes, (torch.bfloat16, getattr(torch, state["dtype"]))


def specs(config: Any, case: dict[str, Any], stage: list[dict[str, Any]]) -> dict[str, Any]:
    """The runner's cache specs for a stage's layers."""
    import torch

    context = config.compilation_config.static_forward_context
    context.clear()
    for index, layer in enumerate(stage):
        for number in range(layer["layers"]):
            where = "mtp" if layer.get("draft") else "model.layers"
            context |= dict(modules(config, layer, f"{where}.{index}.{number}"))
    latent = next((layer for layer in stage if layer["kind"] == "latent"), {})
    runner = SimpleNamespace(
        vllm_config=config,
        model_config=config.model_config,
        cache_config=config.cache_config,
        speculative_config=config.speculative_config,
        block_size=config.cache_config.block_size,
        kv_cache_dtype=torch.bfloat16,
        use_sparse="index" in latent,
        use_sparse_c8_indexer=False,
        use_compress=case["model_type"] == "deepseek_v4",
        sparse_head_dim=tuple(latent.get(name, 0) for name in ("rank", "rope", "index")),
        sfa_dcp_replicated_indexer_size=1,
        shared_kv_cache_layers={},
    )
    path = next(name for name in ("worker/model_runner_v1.py",) if has(name))
    known = {"has_ec_transfer": lambda: False, "get_layers_from_vllm_config": _layers}
    return taken(path, "NPUModelRunner", "get_kv_cache_spec", **known)(runner)


def _layers(config: Any, kind: type) -> dict[str, Any]:
    found = config.compilation_config.static_forward_context.items()
    return {name: layer for name, layer in found if isinstance(layer, kind)}


def modules(config: Any, layer: dict[str, Any], name: str) -> Iterator[tuple[str, Any]]:
    """The modules of one layer that keep something, as the model registers them."""
    if layer["kind"] == "compressed":
        yield from compressed(config, layer, name)
    elif layer["kind"] == "state":
        shapes, dtypes = state_tensors(layer)
        yield f"{name}.linear_attn", recurrent(shapes, dtypes)
    else:
        yield f"{name}.attn", attention(layer)


def attention(layer: dict[str, Any]) -> Any:
    """An attention module with the attributes that its spec is made of."""
    import torch

    plain, latent = older.attention_classes()
    is_latent = layer["kind"] == "latent"
    module = bare(latent if is_latent else plain)
    module.num_kv_heads = 1 if is_latent else layer["heads"]
    module.head_size = module.head_size_v = layer["rank"] + layer["rope"] if is_latent else layer["size"]
    module.attn_type, module.kv_sharing_target_layer_name = "decoder", None
    module.sliding_window, module.kv_cache_dtype = layer.get("window"), "auto"
    module.kv_cache_torch_dtype = module.dtype = torch.bfloat16
    module.impl = SimpleNamespace(has_indexer="index" in layer)
    return module


def bare(kind: type) -> Any:
    """An object of a module's class that was never set up."""
    import torch

    module = kind.__new__(kind)
    torch.nn.Module.__init__(module)
    return module


def recurrent(shapes: Any, dtypes: Any) -> Any:
    """A layer with a recurrent state."""
    from vllm.model_executor.layers.mamba.abstract import MambaBase

    kind = type("GatedDeltaNet", (MambaBase,), {"mamba_type": "gdn_attention"})
    kind.__abstractmethods__ = frozenset()
    kind.get_state_shape, kind.get_state_dtype = (lambda _: shapes), (lambda _: dtypes)
    return kind()


def compressed(config: Any, layer: dict[str, Any], name: str) -> Iterator[tuple[str, Any]]:
    """A layer of DeepSeek-V4: a window, and by its ratio compressed vectors, an indexer, and their states."""
    import torch

    ratio, size, keys = layer["ratio"], layer["size"], layer["index"]
    path, block = "models/deepseek_v4.py", config.cache_config.block_size
    own = "models/layer/attention/layer.py"
    table = taken(own, "get_dsv4_block_sizes")()
    (_, window_block, four_block, many_block), _ = table[block]
    cache = SimpleNamespace(cache_dtype="auto")
    lookup = {"_dsv4_block_sizes": lambda: table, "DSV4_BLOCK_SIZES": table}

    def kept(file: str, kind: str, **fields: Any) -> Any:
        return layer_of(
            lambda given: taken(file, kind, "get_kv_cache_spec", **lookup)(SimpleNamespace(**fields), given)
        )

    yield f"{name}.swa_cache", kept(
        path, "AscendDeepseekV4SWACache", head_dim=size, window_size=layer["window"], dtype=torch.bfloat16,
        block_size=window_block, cache_config=cache,
    )  # fmt: skip
    if ratio <= 1:
        return
    yield (
        f"{name}.attn",
        kept(own, "DSAAttention", compress_ratio=ratio, kv_cache_dtype="auto", head_size=size),
    )
    for part, width in (("attn", size), ("indexer", keys))[: 2 if ratio == 4 else 1]:
        windows = 2 if ratio == 4 else 1
        yield f"{name}.{part}.state_cache", kept(
            path, "AscendCompressorStateCache", state_dim=2 * windows * width, compress_ratio=ratio,
            block_size=four_block if ratio == 4 else many_block, dtype=torch.float32,
            sliding_window=windows * ratio,
        )  # fmt: skip
    if ratio == 4:
        yield f"{name}.indexer.k_cache", kept(
            path, "AscendDeepseekV4IndexerCache", head_dim=keys, dtype=torch.int8, compress_ratio=ratio,
            cache_config=cache,
        )  # fmt: skip


def layer_of(spec: Any) -> Any:
    """A layer whose spec is `spec` of the configuration."""
    from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase

    kind = type("Kept", (AttentionLayerBase,), {"get_kv_cache_spec": lambda _, config: spec(config)})
    kind.__abstractmethods__ = frozenset()
    return kind()


if __name__ == "__main__":
    main()

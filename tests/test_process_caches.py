"""Caches of the process outlive a visit: they have no text of a visitor, and no more bytes than stated."""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import io
import pkgutil
import sys
from collections.abc import Iterator
from operator import itemgetter
from types import FunctionType, ModuleType
from typing import Any

import kvcore
import pages.ui
from kvcore.base.errors import KvPlannerError
from kvcore.base.kept import size_of
from kvcore.catalogue import find_model
from kvcore.charts.plan_report import qr_image
from kvcore.deploy.launch_files import Artefact, artefact
from kvcore.engines.vllm import captures
from kvcore.evidence.log.reader import read_log
from kvcore.planning import plan
from kvcore.wire.request import scenario_from_request
from kvcore.workload.logs import read_request_logs
from kvcore.workload.requests import Reading

MARK = "markofavisitor"
MOST_BYTES = 64 << 20
"""All caches together, as docs/hosting.md says."""
LINK_BYTES = 200
"""A result's place in a cache: its dictionary entry and its link in the order of use."""
MIXTURE = dict(find_model("Qwen/Qwen3-30B-A3B").config.raw)
OWN = {
    "model": f"somebody/{MARK}", "config": MIXTURE, "tensor_parallel_size": 2,
    "accelerator": {"name": f"{MARK} card", "memory_gib": 80, "vendor": "nvidia"},
}  # fmt: skip
NPU = {"engine": "vllm-ascend", "accelerator": "Ascend-910B1-64GB"}
GROUPS = {
    "group_0": {"targets": ["Linear"], "weights": {"num_bits": 8, "type": "int", "strategy": "channel"}}
}
REQUESTS: dict[str, dict[str, Any]] = {
    "env": {"env": {"A": MARK, MARK.upper(): "1"}},
    "driver": {"surroundings": {"driver": MARK}},
    "connector": {"kv_transfer_config": {"kv_connector": MARK, "kv_role": "kv_both", "engine_id": MARK}},
    "method": {"quantization": MARK},
    "draft": {"speculative_config": {"method": MARK, "num_speculative_tokens": 2}},
    "version": {"engine_version": f"0.19.0+{MARK}"},
    "no version": {"engine_version": f"0.19.0{MARK}"},
    "additional": NPU | {"additional_config": {"ascend_log_path": MARK}},
    "class": {"config": MIXTURE | {"architectures": [MARK]}},
    "format": {"config": MIXTURE | {"quantization_config": {"quant_method": MARK}}},
    "ignored": {
        "config": MIXTURE | {"quantization_config": {
            "quant_method": "compressed-tensors", "format": MARK, "ignore": [MARK], "config_groups": GROUPS,
        }}
    },
}  # fmt: skip
"""Every field that takes a text, accepted or refused."""

OWN_NAMES = {
    "kvcore.api.openapi": {"openapi"},
    "kvcore.catalogue.accelerators": {"_card", "_rows", "_spelling_words", "load_accelerators", "spellings"},
    "kvcore.catalogue.models": {"_by_lower_id", "model_ids"},
    "kvcore.catalogue.names": {"_by_lower_id", "_by_name", "_mirrors"},
    "kvcore.catalogue.search": {"_accelerators", "_models"},
    "kvcore.catalogue.siblings": {"_checkpoints", "_rows", "known_ids"},
    "kvcore.deploy.templates": {"templates"},
    "kvcore.engines.registry": {"_engine", "format_refusals"},
    "kvcore.engines.sglang.tables": {"own_releases"},
    "kvcore.engines.vllm.backends": {"_forced_backends"},
    "kvcore.engines.vllm.versions": {"releases_of"},
    "kvcore.evidence.accuracy": {"load_accuracy"},
    "kvcore.evidence.log.line_formats": {"compile_format"},
    "kvcore.explain.documents": {"figures"},
    "kvcore.explain.stories": {"oldest", "planned"},
    "kvcore.explain.reference": {"_facts_of_starts"},
    "kvcore.flags.other": {"_effects"},
    "kvcore.manifests.arguments": {"_kinds"},
    "kvcore.memory.framework": {"_card_names"},
    "kvcore.memory.spending": {"_card_names"},
    "kvcore.model.families": {"readers"},
    "kvcore.base.words": {"_read", "platform_words"},
    "kvcore.memory.surroundings": {"_cases"},
    "kvcore.scenario": {"_unset_values", "unset_scenario"},
    "kvcore.tables": {"_load", "_version"},
    "kvcore.charts.catalogue_rows": {"accelerator_rows", "model_rows", "sibling_rows", "version_rows"},
    "kvcore.charts.plan_report": {"_frame"},
    "kvcore.workload.database.query": {"_kept", "layouts"},
    "kvcore.workload.requests": {"_counts", "_kinds"},
    "kvcore.controls.in_force": {"_defaults"},
    "pages.ui.shared.shell": {"_declared"},
    "re": {"compile"},
}
"""By module: tables, templates, names and texts of this repository, each read once."""


def modules() -> Iterator[ModuleType]:
    for package in (kvcore, pages.ui):
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            importlib.import_module(found.name)
    names = [name for name in sys.modules if name.partition(".")[0] in ("kvcore", "pages")]
    yield from (sys.modules[name] for name in names)


def caches() -> dict[str, Any]:
    """Every functools cache of the program, by its function's name."""
    found = {}
    for module in modules():
        for value in list(vars(module).values()):
            for one in (value, *(vars(value).values() if isinstance(value, type) else ())):
                if isinstance(one, functools._lru_cache_wrapper):
                    found[f"{one.__module__}.{one.__qualname__}"] = one
    return found


def contents(cache: Any) -> list[Any]:
    """Keys and results of a cache."""
    inner = [
        one for one in gc.get_referents(cache) if one is not vars(cache) and one is not cache.__wrapped__
    ]
    return [one for one in inner if not isinstance(one, type)]


def parts(value: Any) -> list[Any]:
    """All that `value` refers to; the collector skips the keys of a dictionary whose keys are all texts."""
    return [*gc.get_referents(value), *(value if isinstance(value, dict) else ())]


def marks(cache: Any) -> list[str]:
    """Texts of the visitor anywhere in a cache."""
    seen: set[int] = set()
    waiting, found = contents(cache), []
    while waiting:
        one = waiting.pop()
        if id(one) in seen or isinstance(one, type | ModuleType | FunctionType):
            continue
        seen.add(id(one))
        if isinstance(one, str | bytes):
            text = one if isinstance(one, str) else one.decode("latin-1")
            found += [text] if MARK in text.lower() else []
        else:
            waiting += parts(one)
    return found


def ask(**fields: Any) -> bool:
    """Plans a request and writes every file; whether there was a plan."""
    try:
        planned = plan(scenario_from_request(OWN | fields))
    except KvPlannerError:
        return False
    for kind in Artefact:
        try:
            artefact(kind, planned)
        except KvPlannerError:
            continue
    return True


def test_a_cache_with_a_text_is_found():
    @functools.lru_cache(maxsize=2)
    def by_text(text: str) -> int:
        return len(text)

    @functools.cache
    def by_length(length: int, more: int) -> dict[str, str]:
        return {MARK * length: ""}

    for cache, arguments in ((by_text, (f"a {MARK}",)), (by_length, (1, 2))):
        assert not marks(cache)
        cache(*arguments)
        assert marks(cache)


def test_no_cache_of_the_process_has_a_visitors_text():
    assert len([name for name, fields in REQUESTS.items() if ask(**fields)]) >= 4
    lines = [
        b'{"prompt_tokens":1}',
        b'{"usage":{"prompt_tokens":4,"completion_tokens":3},"%s":1}' % MARK.encode(),
        b"%s,prompt_tokens,completion_tokens\n1,2,3\n" % MARK.encode(),
        b"prompt,completion_tokens\n1,3\n",
        b"nothing",
    ]
    columns = (("prompt", MARK),)
    for line in lines:
        with contextlib.suppress(KvPlannerError):
            read_request_logs([io.BytesIO(line)], reading=Reading(columns=columns))
    read_log(f"docker run -e A={MARK} vllm/vllm-openai:v0.11.0 --model {MARK} -q {MARK} --enforce-eager")
    assert qr_image(f"https://example.org/?model={MARK}")
    assert {name: found for name, cache in caches().items() if (found := marks(cache))} == {}


def test_full_caches_stay_within_the_stated_bytes():
    """Each cache filled to its limit with results as large as extreme requests leave."""
    found = caches()
    largest = {
        "pipeline_parallel_size": 16, "max_num_seqs": 1 << 20, "max_num_batched_tokens": 1 << 31,
        "max_model_len": 1 << 20, "max_loras": 64, "enable_lora": True, "data_parallel_size": 1024,
    }  # fmt: skip
    for version in ("0.6.6", "0.9.2", "0.11.0", "0.20.2", "0.33.0"):
        ask(engine_version=version)
        for name, value in largest.items():
            ask(engine_version=version, **{name: value})
    texts = [
        *contents(found["kvcore.base.words._read"]),
        *contents(found["kvcore.base.words.platform_words"]),
    ]
    once = size_of(texts)
    full = {}
    for name, cache in found.items():
        info = cache.cache_info()
        if info.maxsize is not None and info.currsize:
            # The texts of a language count once.
            own = size_of([*texts, *contents(cache)]) - once
            full[name] = round(info.maxsize * (own / info.currsize + LINK_BYTES))
    assert 0 < sum(full.values()) < MOST_BYTES, sorted(full.items(), key=itemgetter(1))[-5:]


def test_an_unbounded_cache_has_keys_of_this_repository_only():
    """Add a new one to OWN_NAMES after checking that no visitor decides how many results it has."""
    endless = (name.rpartition(".") for name, cache in caches().items() if cache.cache_info().maxsize is None)
    assert [(module, name) for module, _, name in endless if name not in OWN_NAMES.get(module, ())] == []


def test_v0_captures_no_more_sizes_than_the_engine_has():
    facts = {"rule": None, "max_num_batched_tokens": 1 << 31, "limit": 512, "num_speculative_tokens": 0}
    sizes = captures.capture_sizes(max_num_seqs=1 << 20, **facts)
    assert (len(sizes), sizes[-1]) == (3 + 8192 // 8, 8192)
    # The last size is the first that fits that many requests.
    for requests, last in (
        (1, (1,)),
        (3, (1, 2, 4)),
        (100, (96, 104)),
        (256, (248, 256)),
        (8190, (8184, 8192)),
    ):
        assert captures.capture_sizes(max_num_seqs=requests, **facts)[-len(last) :] == last


def test_many_different_sizes_stay_within_the_stated_bytes():
    facts = {"rule": None, "max_num_batched_tokens": 1 << 31, "limit": 512, "num_speculative_tokens": 0}
    for number in range(600):
        captures.capture_sizes(max_num_seqs=(1 << 20) - number, **facts)
    assert 0 < size_of(contents(captures.capture_sizes)) <= 2 << 20

"""Every correction of the source documents against plans of the release that it is shown for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import pytest

from kvcore.base.errors import KvPlannerError
from kvcore.base.parts import SUMMED, UNUSED
from kvcore.base.words import Language, words
from kvcore.explain.reference import POST_MORTEM, RULE_OF_THUMB, facts, truth
from kvcore.explain.stories import LLAMA, SHORT_POST_MORTEM
from kvcore.planning import Plan, Verdict, plan
from kvcore.texts import CORRECTIONS
from kvcore.wire import link
from kvcore.workload.limits import is_above_model

RELEASES: Final = ("0.6.6", "0.8.5", "0.11.2", "0.12.0", "0.19.1", "0.33.0")
"""The oldest and the newest, and both sides of what changed in between."""
T: Final = words(Language.ENGLISH)


def planned(given: object, release: str, **changed: object) -> Plan:
    """A document's start in a release, with some fields changed."""
    assert isinstance(given, dict)
    fields = {**given, **changed, "engine_version": release}
    written = {
        name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in fields.items()
    }
    decoded = link.decode(written)
    assert decoded.repairs == ()
    return plan(decoded.scenario)


def refusal(given: object, release: str, **changed: object) -> str:
    """The code with which a release refuses a start; "" where it takes it."""
    try:
        planned(given, release, **changed)
    except KvPlannerError as error:
        return error.code
    return ""


def pool(found: Plan) -> float:
    assert found.memory is not None
    return found.memory.kv_cache.value / 2**30


def tokens(found: Plan) -> int:
    assert found.cache is not None
    return found.cache.tokens


def hidden_size(said: str, release: str) -> None:
    # 80 layers × 2 × 8 heads × 128 × 2 bytes on four GPUs, 8,192 tokens: 2.5 GiB
    cache = planned(POST_MORTEM, release).cache
    assert cache is not None
    assert cache.bytes_per_token * 4 * 8192 == 2.5 * 2**30
    assert "takes 2.5 GiB, not 20 GiB" in said


def batch(said: str, release: str) -> None:
    hidden_size("takes 2.5 GiB, not 20 GiB", release)
    assert "20 GiB for each request by that formula, 2.5 GiB in truth" in said


def reserve(said: str, release: str) -> None:
    long, short = (pool(planned(POST_MORTEM, release, max_model_len=length)) for length in (8192, 2048))
    chunked = planned(POST_MORTEM, release).resolved.enable_chunked_prefill
    assert (long == short) is chunked
    assert 0 <= 1 - long / short < 0.02
    assert f"{long:.1f} GiB" in said
    assert f"{short:.1f} GiB" in said
    assert ("is the same with" in said) is chunked
    assert ("without chunked prefill" in said) is not chunked
    assert f"vllm {release}" in said


def last_block(said: str, release: str) -> None:
    """Blocks are parts of one pool: larger ones change its tokens by less than one block."""
    del said
    small, large = (tokens(planned(SHORT_POST_MORTEM, release, block_size=size)) for size in (16, 32))
    assert abs(small - large) < 32


def boundaries(said: str, release: str) -> None:
    found = planned(POST_MORTEM, release)
    assert f"room for {tokens(found):,} tokens" in said
    for length in (2048, 4096):
        assert tokens(planned(POST_MORTEM, release, max_model_len=length)) / length > 100


def model_limit(said: str, release: str) -> None:
    assert "trained for 4,096 tokens" in said
    without = {name: value for name, value in POST_MORTEM.items() if not name.startswith("env.")}
    starts = (without, POST_MORTEM, SHORT_POST_MORTEM)
    assert [is_above_model(planned(start, release)) for start in starts] == [True, False, False]


def utilization(said: str, release: str) -> None:
    """Of a larger share only the KV cache gets more."""
    del said
    low, high = (planned(POST_MORTEM, release, gpu_memory_utilization=share).memory for share in (0.8, 0.9))
    assert low is not None
    assert high is not None
    more = high.budget.value - low.budget.value
    assert high.kv_cache.value - low.kv_cache.value == pytest.approx(more, rel=1e-3)
    assert high.weights.value == low.weights.value


def heads(said: str, release: str) -> None:
    """Three of four GPUs are enough of them, but 3 does not divide 64 heads; two do."""
    del said
    assert refusal(POST_MORTEM, release, tensor_parallel_size=3)
    assert not refusal(POST_MORTEM, release, tensor_parallel_size=2)


def gpu_alarm(said: str, release: str) -> None:
    memory = planned(POST_MORTEM, release).memory
    assert memory is not None
    taken = sum(getattr(memory, part).value for part in SUMMED if part != UNUSED.name)
    assert taken > 0.89 * memory.total.value
    # vllm/engine/metrics.py (0.6.6); vllm/v1/metrics/loggers.py renamed it in 0.10
    assert ("gpu_cache_usage_perc" in said) is (release in {"0.6.6", "0.8.5"})


def batched_tokens(said: str, release: str) -> None:
    for step in (256, 512):
        code = refusal(LLAMA, release, max_num_batched_tokens=step)
        assert ("refuses a step of 256" in said) is bool(code)
        # vllm/engine/arg_utils.py: refused until 0.11.2, since 0.12.0 the default of max_num_seqs follows
        assert bool(code) is (release in {"0.6.6", "0.8.5", "0.11.2"})
    if "takes a step of 256" in said:
        assert planned(LLAMA, release, max_num_batched_tokens=256).resolved.max_num_seqs == 256
        assert "at most 256 requests at once" in said
        assert (
            refusal(LLAMA, release, max_num_batched_tokens=256, max_num_seqs=512) == "batch-below-sequences"
        )


def latent(said: str, release: str) -> None:
    """(512 + 64) × 2 bytes × 61 layers on every card, however many share the model."""
    start = {"model": "deepseek-ai/DeepSeek-V3", "accelerator": "H200-141GB", "max_model_len": 16384}
    for size in (8, 16):
        cache = planned(start, release, tensor_parallel_size=size).cache
        if cache is not None:
            assert cache.bytes_per_token == 70_272
    assert "68.6 KiB per token" in said


def batched_product(said: str, release: str) -> None:
    """Two requests of 4,096 tokens and a step of 2,048: taken with chunked prefill, refused without."""
    del said
    changed = {"max_num_batched_tokens": 2048, "max_num_seqs": 2}
    assert not refusal(LLAMA, release, enable_chunked_prefill=True, **changed)
    assert refusal(LLAMA, release, enable_chunked_prefill=False, **changed)
    assert not refusal(
        LLAMA, release, enable_chunked_prefill=False, max_num_batched_tokens=4096, max_num_seqs=2
    )


def rule_of_thumb(said: str, release: str) -> None:
    del said
    cache = planned(RULE_OF_THUMB, release).cache
    assert cache is not None
    assert (cache.tokens, cache.max_concurrency) == (163_840, 20)


PLANNED: Final[dict[str, Callable[[str, str], None]]] = {
    check.__name__: check
    for check in (
        hidden_size, batch, reserve, last_block, boundaries, model_limit, utilization, heads, gpu_alarm, batched_tokens,
        latent, batched_product, rule_of_thumb,
    )
}  # fmt: skip
NOT_PLANNED: Final = {
    "peak": "about a counter of PyTorch in another process",
    "latency_metric": "the name of a metric, in the table of releases",
    "hit_rate": "names of metrics",
    "log_line": "a line of a log",
    "peak_limit": "a limit of people; the checklist shows both",
    "more_memory": "names of metrics",
    "cut_answers": "the name of a metric",
    "queue": "half of the target, in the thresholds of going live",
    "wrk": "the load generator of the release",
    "rate": "a command under Going live",
    "p99": "512 tokens / 15 tokens/s = 34 s",
    "former": "flags of releases, in the table of former flags",
}
"""Corrections that claim nothing of memory or of a start, and why no plan can check them."""


def test_every_correction_is_checked_or_says_why_not() -> None:
    assert set(CORRECTIONS) == {*PLANNED, *NOT_PLANNED}


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("name", PLANNED)
def test_a_correction_is_what_the_release_shown_does(name: str, release: str) -> None:
    shown = planned(LLAMA, release)
    assert shown.verdict is Verdict.FITS
    PLANNED[name](truth(CORRECTIONS[name], facts(shown), T), release)


def test_the_release_of_the_post_mortem_is_named_where_its_log_line_is_corrected() -> None:
    said = truth(CORRECTIONS["log_line"], facts(planned(LLAMA, "0.33.0")), T)
    assert "0.2.6" in said

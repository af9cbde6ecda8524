"""The pre-run of vllm-mindspore, which does not profile: from the peak of one run to the memory of the KV cache.

GB are 2**30 bytes here, as in the guide that the procedure is from.
Source: vllm-mindspore's tuning guide for Ascend, sections 3 and 4.
"""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Iterable, Mapping
from typing import Final

from msgspec import Struct
from msgspec.structs import asdict, replace

from kvcore.base.errors import Notice, ScenarioError
from kvcore.base.units import GIB, ceil_div
from kvcore.engine.overheads import written_gb
from kvcore.engines.registry import engine_with_variables
from kvcore.evidence.log.reader import StartupLog
from kvcore.evidence.recognized import find_logged_model
from kvcore.scenario import Parallel

ENGINE, VARIABLES = engine_with_variables()
"""The engine of the guide, and its variables."""
DEFAULT_UTILIZATION: Final = 0.9
DEFAULT_LENGTH: Final = 16384
UTILIZATION_STEPS: Final = (0.87, 0.85, 0.8)
"""Lower utilizations to try. Source: as above, sections 3.2.1 and 4."""
LENGTH_STEPS: Final = (8192, 4096)
WEIGHTS_SHARE: Final = 0.97
"""A measured peak below this share of the planned weights is of another model or of other settings. Of 121 weights in
published logs 97 % are as computed within 1 % (docs/accuracy.md); a peak is logged in whole MB."""
FIRST_TOKEN: Final = 1000
"""An id of an ordinary token in every vocabulary."""
LEVEL_VARIABLE: Final = "GLOG_v"
"""Set to 1, the runtime logs its peak."""


class PreRun(Struct, frozen=True, kw_only=True):
    """The pre-run's settings. The defaults are the guide's, for a card of 64 GB.

    Raises ScenarioError `prerun-model-share` when nothing is left for the KV cache: the engine would compute a
    negative number of blocks.

    Example:
        >>> round(PreRun().kv_gb, 1)
        7.6
    """

    total_gb: float = VARIABLES.default_total_gb
    model_gb: float = VARIABLES.default_model_gb
    gpu_memory_utilization: float = DEFAULT_UTILIZATION
    max_model_len: int = DEFAULT_LENGTH
    batched_tokens: int | None = None
    """Most tokens of one step; None for one request of the full length, as in the guide."""

    def __post_init__(self) -> None:
        if self.model_gb >= self.budget_gb:
            value, limit = f"{self.model_gb:g}", f"{self.budget_gb:.1f}"
            raise ScenarioError("prerun-model-share", field=VARIABLES.model, value=value, limit=limit)

    @property
    def budget_gb(self) -> float:
        """ASCEND_TOTAL_MEMORY_GB × gpu_memory_utilization.

        Example:
            >>> round(PreRun().budget_gb, 1)
            57.6
        """
        return self.total_gb * self.gpu_memory_utilization

    @property
    def kv_gb(self) -> float:
        """The KV cache of the pre-run: the budget less vLLM_MODEL_MEMORY_USE_GB."""
        return self.budget_gb - self.model_gb

    @property
    def exports(self) -> Mapping[str, str]:
        """Environment of the pre-run."""
        return {LEVEL_VARIABLE: "1", **_exports(self.total_gb, self.model_gb)}

    @property
    def flags(self) -> Mapping[str, str]:
        """Flags of the pre-run: requests of the full length that fill one step."""
        return _flags(self.gpu_memory_utilization, self.requests, self.max_model_len, self.step_tokens)

    @property
    def step_tokens(self) -> int:
        """--max-num-batched-tokens of the pre-run: the largest step that its peak is measured for."""
        return self.batched_tokens or self.max_model_len

    @property
    def requests(self) -> int:
        """Requests of the full length, sent at once, that fill one step.

        Example:
            >>> PreRun().requests, PreRun(batched_tokens=65536).requests, PreRun(batched_tokens=4096).requests
            (1, 4, 1)
        """
        return ceil_div(self.step_tokens, self.max_model_len)

    @property
    def prompt_tokens(self) -> int:
        """Tokens of each prompt: one of `max_model_len` stays for the answer, or the engine refuses the request.

        Example:
            >>> PreRun().prompt_tokens
            16383
        """
        return max(1, self.max_model_len - 1)

    def request_command(self, model: str, port: int) -> str:
        """A shell command that sends requests of the full length at once, each with one token to answer.

        The prompts are lists of token ids, which no tokenizer changes, and begin differently, so that none takes
        another's blocks.
        Source: vllm/entrypoints/openai/protocol.py:CompletionRequest.prompt (0.7.3, 0.8.3, 0.9.1).
        """
        body = (
            f'{{"model": {json.dumps(model)}, "prompt": [[{FIRST_TOKEN} + n] * {self.prompt_tokens} '
            f'for n in range({self.requests})], "max_tokens": 1}}'
        )
        return (
            f"python3 -c {shlex.quote(f'import json; print(json.dumps({body}))')} \\\n"
            f"  | curl -s http://localhost:{port}/v1/completions -H 'Content-Type: application/json' -d @-\n"
        )

    @property
    def notices(self) -> tuple[Notice, ...]:
        """`prerun-system-share` when system and driver do not fit next to the budget."""
        left_gb = self.total_gb - self.budget_gb
        if left_gb >= VARIABLES.system_gib:
            return ()
        share = math.floor(100 * (1 - VARIABLES.system_gib / self.total_gb)) / 100
        params = {"left": f"{left_gb:.1f}", "system": f"{VARIABLES.system_gib:g}", "share": f"{share:g}"}
        return (Notice(code="prerun-system-share", field="gpu_memory_utilization", params=params),)


class PreRunResult(Struct, frozen=True, kw_only=True):
    """The settings of the final start, from the peak of the pre-run.

    Raises ScenarioError `prerun-peak-below-kv` for a peak that is not even as large as the pre-run's KV cache,
    `prerun-peak-below-weights` where the rest of it is less than the weights of the model, and `prerun-no-kv` when
    weights and activations take the whole budget.

    Example:
        >>> found = PreRunResult(prerun=PreRun(), peak_gb=29614 / 1024, bytes_per_token=70272)
        >>> round(found.peak_gb, 1), round(found.model_gb, 1), round(found.kv_gb, 1)
        (28.9, 21.3, 36.3)
        >>> found.final_model_gb, round(found.final_kv_gb, 1), found.max_num_seqs
        (22, 35.6, 33)
    """

    prerun: PreRun
    peak_gb: float
    """"actual peak used mem": weights, activations and the KV cache together."""
    bytes_per_token: float
    """KV bytes of one token on one card."""
    weights_gb: float = 0.0
    """Weights of the model on one card: the peak cannot be less than them and the KV cache; 0 for an unknown model."""

    def __post_init__(self) -> None:
        if self.peak_gb <= self.prerun.kv_gb:
            value, kv = f"{self.peak_gb:.1f}", f"{self.prerun.kv_gb:.1f}"
            raise ScenarioError("prerun-peak-below-kv", field="peak_used_gib", value=value, kv=kv)
        if self.model_gb < WEIGHTS_SHARE * self.weights_gb:
            model, weights = f"{self.model_gb:.1f}", f"{self.weights_gb:.1f}"
            raise ScenarioError(
                "prerun-peak-below-weights", field="peak_used_gib", value=model, weights=weights
            )
        if self.final_model_gb >= self.prerun.budget_gb:
            value, limit = str(self.final_model_gb), f"{self.prerun.budget_gb:.1f}"
            raise ScenarioError("prerun-no-kv", field=VARIABLES.model, value=value, limit=limit)

    @property
    def model_gb(self) -> float:
        """Weights and activations: the peak less the KV cache of the pre-run."""
        return self.peak_gb - self.prerun.kv_gb

    @property
    def kv_gb(self) -> float:
        """The possible KV cache: the budget less weights and activations."""
        return self.prerun.budget_gb - self.model_gb

    @property
    def tokens(self) -> int:
        """Tokens in `kv_gb`."""
        return int(self.kv_gb * GIB / self.bytes_per_token)

    @property
    def final_model_gb(self) -> int:
        """vLLM_MODEL_MEMORY_USE_GB of the final start: rounded up to whole GB."""
        return math.ceil(self.model_gb - 1e-9)

    @property
    def final_kv_gb(self) -> float:
        """The KV cache of the final start."""
        return self.prerun.budget_gb - self.final_model_gb

    @property
    def final_tokens(self) -> int:
        """Tokens in `final_kv_gb`."""
        return int(self.final_kv_gb * GIB / self.bytes_per_token)

    @property
    def max_num_seqs(self) -> int:
        """Requests of the full length whose tokens stay below `final_tokens`; 0 for none.

        At most the tokens of a step, since a decoding step computes one token of each request.
        """
        held = max(0, self.final_tokens - 1) // self.prerun.max_model_len
        return min(held, self.max_num_batched_tokens)

    @property
    def max_num_batched_tokens(self) -> int:
        """Tokens of a step, as in the pre-run: no larger step was measured.

        The guide wants max_num_seqs × max_model_len, a step that nobody measured; the engine asks for no such product.
        Source: vllm-mindspore's own start of DeepSeek-R1 with 256 sequences of 32,768 tokens has
        --max-num-batched-tokens=4096 (docs/vllm_mindspore: deepseek_parallel, r0.4.0).
        """
        return self.prerun.step_tokens

    @property
    def exports(self) -> Mapping[str, str]:
        """Environment of the final start."""
        return _exports(self.prerun.total_gb, self.final_model_gb)

    @property
    def flags(self) -> Mapping[str, str]:
        """Flags of the final start."""
        prerun = self.prerun
        seqs = max(1, self.max_num_seqs)
        return _flags(prerun.gpu_memory_utilization, seqs, prerun.max_model_len, self.max_num_batched_tokens)


class Remedy(Struct, frozen=True, kw_only=True):
    """A change after an out-of-memory error, with values in the order to try them."""

    field: str
    values: tuple[str, ...]


def out_of_memory_remedies(
    prerun: PreRun, parallel: Parallel, *, has_experts: bool = False
) -> tuple[Remedy, ...]:
    """In the guide's order: a larger model share, a lower utilization, a shorter length, more cards.

    More cards are a larger tensor parallel size, and for a mixture of experts data parallelism with whole experts on
    each card: MoE layers are divided by the product of both. Data parallelism alone copies everything else.
    Source: vllm-mindspore, user_guide/supported_features/parallel (r0.4.0).

    Example:
        >>> [(remedy.field, remedy.values) for remedy in out_of_memory_remedies(PreRun(), Parallel())][:2]
        [('vLLM_MODEL_MEMORY_USE_GB', ('51', '52', '54')), ('gpu_memory_utilization', ('0.87', '0.85', '0.8'))]
    """
    shares = (math.floor(prerun.model_gb) + step for step in (1, 2, 4))
    tried: dict[str, Iterable[float]] = {
        VARIABLES.model: [share for share in shares if share < prerun.budget_gb],
        "gpu_memory_utilization": [
            step
            for step in UTILIZATION_STEPS
            if step < prerun.gpu_memory_utilization and step * prerun.total_gb > prerun.model_gb
        ],
        "max_model_len": [length for length in LENGTH_STEPS if length < prerun.max_model_len],
        "tensor_parallel_size": [2 * parallel.tensor_parallel_size],
    }
    if has_experts:
        tried["data_parallel_size"] = [2 * parallel.data_parallel_size]
    return tuple(Remedy(field=name, values=tuple(map(str, values))) for name, values in tried.items())


def prerun_from_log(log: StartupLog, given: PreRun) -> PreRun:
    """`given` with the values of the log's exports and flags. Raises ScenarioError as `PreRun` does."""
    return replace(given, **asdict(settings_from_log(log, given)))


class LoggedSettings(Struct, frozen=True, kw_only=True):
    """The settings of a logged pre-run, even where no start can have them."""

    total_gb: float
    model_gb: float
    gpu_memory_utilization: float
    max_model_len: int
    batched_tokens: int | None


def settings_from_log(log: StartupLog, given: PreRun) -> LoggedSettings:
    """The values of the log's exports and flags, those of `given` where it has none."""

    def exported_gb(name: str, default: float) -> float:
        value = written_gb(log.env.get(name, ""))
        return value if value is not None and value < 1e4 else default

    flags = log.flags
    says_batch = flags.max_num_batched_tokens not in (None, 0, flags.max_model_len)
    return LoggedSettings(
        total_gb=exported_gb(VARIABLES.total, given.total_gb),
        model_gb=exported_gb(VARIABLES.model, given.model_gb),
        gpu_memory_utilization=flags.gpu_memory_utilization or given.gpu_memory_utilization,
        max_model_len=flags.max_model_len if (flags.max_model_len or 0) > 0 else given.max_model_len,
        batched_tokens=flags.max_num_batched_tokens if says_batch else given.batched_tokens,
    )


def check_model(log: StartupLog, model: str) -> None:
    """Raises ScenarioError `prerun-other-model` for the log of another model of the catalogue than `model`.

    Example:
        >>> from kvcore.evidence.log.reader import read_log
        >>> log = read_log("non-default args: {'model': '/models/Qwen3-8B', 'max_model_len': 8192}")
        >>> check_model(log, "Qwen/Qwen3-8B")
        >>> check_model(log, "Qwen/Qwen3-32B")
        Traceback (most recent call last):
        kvcore.base.errors.ScenarioError: the log is of Qwen/Qwen3-8B, and the sidebar has Qwen/Qwen3-32B
    """
    logged = find_logged_model(log.model)
    if logged is not None and logged.id != model:
        raise ScenarioError("prerun-other-model", field="model", logged=logged.id, model=model)


def documented_bytes_per_token(layers: int, heads: int, head_size: int) -> int:
    """layers × heads × head_size × 2: the guide's bytes of a token, more than latent attention keeps.

    In 16 bits it is the keys of all heads alone; keys and values take twice that.

    Example:
        >>> documented_bytes_per_token(61, 128, 128)
        1998848
        >>> round(documented_bytes_per_token(61, 128, 128) / (61 * (512 + 64) * 2), 1)
        28.4
    """
    return layers * heads * head_size * 2


def _exports(total_gb: float, model_gb: float) -> dict[str, str]:
    return {VARIABLES.total: f"{total_gb:g}", VARIABLES.model: f"{model_gb:g}"}


def _flags(utilization: float, seqs: int, length: int, batched_tokens: int) -> dict[str, str]:
    return {
        "--gpu-memory-utilization": f"{utilization:g}",
        "--max-num-seqs": str(seqs),
        "--max-model-len": str(length),
        "--max-num-batched-tokens": str(batched_tokens),
    }

"""The start of a plan as data: arguments, environment, and the machines that it takes.

Replicas that fit into a machine differ in their data parallel flags. The machines of a replica that takes more than one
meet at the first one's address, or, where the release cannot do that, on a Ray cluster that is started before.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Final

from msgspec import Struct, field

from kvcore.base.errors import ScenarioError
from kvcore.base.units import ceil_div
from kvcore.catalogue.documented import modelslim_repository
from kvcore.catalogue.names import Recognition
from kvcore.engine.facts import RankTable
from kvcore.engine.switches import GraphSizeFlag
from kvcore.engines.registry import view_of
from kvcore.flags import Flag, Kind, LaunchRule, LinkRule, fields_of
from kvcore.model.overrides import read_overrides
from kvcore.model.quantization.modelslim import METHOD as MODELSLIM
from kvcore.planning import Plan
from kvcore.planning.origin import origin_of
from kvcore.scenario import (
    AUTO,
    KEPT_AS_JSON,
    Runner,
    Scenario,
    nested,
    set_fields,
    unset_scenario,
    value_of,
)
from kvcore.wire.request import UNNAMED_MODEL

RESOLVED: Final = (
    "dtype", "gpu_memory_utilization", "max_model_len", "max_num_seqs", "max_num_batched_tokens",
)  # fmt: skip
"""Resolved values that a command with every flag names."""
MODEL_PLACE: Final = "/path/to/your/model"
MODELSCOPE: Final = "VLLM_USE_MODELSCOPE"
"""Set, checkpoints come from ModelScope. Source: vllm/envs.py (0.8.5, 0.33.0)."""
NAMED_TYPE: Final = re.compile(r"(?i)w[48]a\d+")
"""Marks the names of ModelSlim's checkpoints."""
PLAIN: Final = re.compile(r"[^A-Za-z0-9._-]+")
PORT: Final = 8000
"""The engine's default port."""
RPC_PORT: Final = 13389
RAY_PORT: Final = 6379
MOST_MACHINES: Final = 64
"""Most starts that anybody would copy by hand."""
FIRST: Final = "$NODE0_IP"
"""The shell variable with the first machine's address."""


def launch_arguments(plan: Plan, *, every_flag: bool = False) -> dict[str, Any]:
    """Flag names without dashes -> values; True for switches, a tuple for several words.

    Only what the scenario sets, unless `every_flag`.

    The model is not among them. Order is that of the sidebar, the same in every artefact.
    """
    own = plan.resolved.engine.own_arguments(plan.scenario, plan.resolved, every_flag=every_flag)
    if own is not None:
        return own
    chosen: dict[str, Any] = {}
    scenario = plan.scenario
    said = set_fields(scenario)
    # Source: vllm-ascend's docs/source/quick_start.md (0.23.0): Atlas 300I Duo is started with float16.
    takes_float16 = scenario.dtype == AUTO and view_of(plan.accelerator).is_310p
    if takes_float16:
        said |= {"dtype"}
    for name, flag, arguments in _arguments(said, every_flag):
        if flag.launch is LaunchRule.OWN:
            chosen |= _OWN[name](plan)
        else:
            chosen |= _by_kind(flag, scenario) if arguments is None else arguments
    if every_flag:
        defaults = {name.replace("_", "-"): getattr(plan.resolved, name) for name in RESOLVED}
        chosen |= {name: value for name, value in defaults.items() if chosen[name] is None}
    if takes_float16:
        chosen["dtype"] = "float16"
    return {name: value for name, value in chosen.items() if value is not None}


@lru_cache(maxsize=512)
def _arguments(said: frozenset[str], every_flag: bool) -> tuple[tuple[str, Flag, dict[str, Any] | None], ...]:
    """The flags of a start whose fields `said` are set, with their arguments where these do not depend on a value."""
    found: list[tuple[str, Flag, dict[str, Any] | None]] = []
    for name, flag in fields_of().items():
        if flag.launch is LaunchRule.OWN:
            found += [(name, flag, None)] if name in _OWN else []
        elif flag.cli and name != "model":
            unset = _by_kind(flag, unset_scenario())
            if name in said or flag.needs in said:
                found.append((name, flag, None))
            elif every_flag or any(value is not None for value in unset.values()):
                found.append((name, flag, unset))
    return tuple(found)


def _by_kind(flag: Flag, scenario: Scenario) -> dict[str, Any]:
    """A flag by its row: given where it is not the default, or where the switch that it belongs to is on."""
    name, value = flag.cli[0].removeprefix("--"), value_of(scenario, flag.name)
    if flag.needs and not value_of(scenario, flag.needs):
        return {name: None}
    if flag.kind is Kind.BOOLEAN and flag.default is None and value is False:
        return {f"no-{name}": True}
    if flag.kind is Kind.OBJECT:
        return {name: _json(None if value is None else nested(value))}
    if flag.kind is Kind.BOOLEAN or (value == flag.default and not flag.needs):
        return {name: value or None if flag.kind is Kind.BOOLEAN else None}
    return {name: "auto" if flag.auto is not None and value == flag.auto else value}


def _overrides(plan: Plan) -> dict[str, str]:
    """The overrides of the config, a stretched rope as the release spells it."""
    scenario = plan.scenario
    if scenario.hf_overrides is None:
        return {}
    said = read_overrides(scenario.hf_overrides).spelled(scenario.config, plan.resolved.version)
    return {"hf-overrides": json.dumps(said)}


def _blocks(plan: Plan) -> dict[str, Any]:
    """The block size, and the backend that has to be asked for with the model."""
    backend = plan.resolved.engine.backend_to_ask_for(plan.architecture)
    return {"block-size": plan.scenario.block_size, "attention-backend": backend}


def _runner(plan: Plan) -> dict[str, str]:
    """`--runner` where it is asked for, as the release spells it."""
    scenario = plan.scenario
    if scenario.runner is Runner.AUTO:
        return {}
    flag, value = plan.resolved.engine.runner_flag(scenario, scenario.runner, plan.resolved.version)
    return {flag: value}


def _graphs(plan: Plan) -> dict[str, Any]:
    """The flags about CUDA graphs that the release has; settings without a flag, and passes, go into
    `--compilation-config`.

    A list there contains only the sizes that are captured: before 0.11.1 a size above the batch stops the start.

    Source: vllm/engine/arg_utils.py (0.8.5, 0.9.2, 0.11.0, 0.11.1), vllm/v1/worker/gpu_model_runner.py:_dummy_run
    (0.8.5, 0.11.0).
    """
    scenario, switches = plan.scenario, plan.resolved.switches
    flag = switches.graph_size_flag
    flags: dict[str, Any] = {}
    config: dict[str, Any] = {}
    largest, sizes = scenario.max_cudagraph_capture_size, scenario.cudagraph_capture_sizes
    if flag is GraphSizeFlag.OWN:
        flags["cudagraph-capture-sizes"] = sizes
    elif sizes is not None:
        config["cudagraph_capture_sizes"] = plan.resolved.cudagraph_capture_sizes or sizes
    if scenario.cudagraph_mode is not None:
        config["cudagraph_mode"] = scenario.cudagraph_mode
    if scenario.fuse_allreduce_rms is not None:
        config["pass_config"] = {switches.allreduce_fusion_pass: scenario.fuse_allreduce_rms}
    return {flag.removeprefix("--"): largest, **flags, "compilation-config": _json(config or None)}


def launch_words(name: str, value: object) -> list[str]:
    """One flag of `launch_arguments` as words of a command.

    Example:
        >>> launch_words("enforce-eager", True), launch_words("cudagraph-capture-sizes", (1, 2))
        (['--enforce-eager'], ['--cudagraph-capture-sizes', '1', '2'])
    """
    if value is True:
        return [f"--{name}"]
    return [f"--{name}", *(map(str, value) if isinstance(value, tuple) else [str(value)])]


def launch_environment(plan: Plan) -> dict[str, str]:
    """Environment variables that the command needs."""
    environment = dict(plan.scenario.env)
    longer = plan.resolved.engine.facts.launch.longer_variable
    if plan.resolved.max_model_len > plan.resolved.derived_max_model_len:
        environment[longer] = "1"
    if _needs_modelslim(plan.scenario) and modelslim_repository(plan.scenario.model):
        environment.setdefault(MODELSCOPE, "True")
    table = rank_table_of(plan)
    return environment if table is None else {table.variable: table.path} | environment


def rank_table_of(plan: Plan) -> RankTable | None:
    """The file that lists the cards of all servers, where this server's connector needs one; else None."""
    connector, version = plan.resolved.engine.transfer(plan.scenario).connector, plan.resolved.version
    tables = plan.resolved.engine.facts.launch.rank_tables
    return next((row for row in tables if row.connector == connector and row.covers(version)), None)


def modelslim_name(scenario: Scenario) -> str:
    """ModelSlim's checkpoint to serve in place of the scenario's model; "" where the model itself is served.

    A repository of ModelScope where a guide names one, else a path to fill in.

    Example:
        >>> from kvcore.wire.request import scenario_from_request
        >>> asked = {"engine": "vllm-ascend", "accelerator": "Ascend-910B3-64GB", "quantization": "ascend"}
        >>> names = ("Qwen/Qwen3-32B", "Qwen/Qwen3-8B")
        >>> [modelslim_name(scenario_from_request({**asked, "model": name})) for name in names]
        ['vllm-ascend/Qwen3-32B-W8A8', '/path/to/Qwen3-8B-W8A8']
    """
    if not _needs_modelslim(scenario):
        return ""
    # A path for a person to replace has only letters, digits, dots and dashes.
    plain = PLAIN.sub("-", scenario.model.rsplit("/", 1)[-1])[:80]
    return modelslim_repository(scenario.model) or f"/path/to/{plain}-W8A8"


def _needs_modelslim(scenario: Scenario) -> bool:
    """Whether a ModelSlim checkpoint is planned, but neither a side file nor the name says that the model is one."""
    name = scenario.model
    is_given = scenario.config.hf_quant_config is not None or name.startswith(("/", ".", "~"))
    is_planned = scenario.quantization == MODELSLIM and name != UNNAMED_MODEL
    return is_planned and not is_given and NAMED_TYPE.search(name) is None


def served_model(plan: Plan) -> str:
    """The model as the command names it: a path to fill in where only a config.json is known.

    Example:
        >>> from kvcore import catalogue
        >>> from kvcore.planning import plan
        >>> from kvcore.wire.request import scenario_from_request
        >>> config = dict(catalogue.find_model("Qwen/Qwen3-8B").config.raw)
        >>> served_model(plan(scenario_from_request({"config": config, "accelerator": "H100-80GB"})))
        '/path/to/your/model'
    """
    name = plan.scenario.model
    if name == UNNAMED_MODEL:
        return MODEL_PLACE
    if other := modelslim_name(plan.scenario):
        return other
    if (origin := origin_of(plan.scenario)) is not None and origin.how is Recognition.NAME:
        return origin.entry.id
    # A name that begins with a dash would be read as a flag.
    return f"./{name}" if name.startswith("-") else name


def _json(value: object) -> str | None:
    return None if value is None else json.dumps(value, separators=(",", ":"))


def _speculative(plan: Plan) -> dict[str, str | None]:
    draft = plan.scenario.speculative_config
    if draft is None:
        return {}
    rows = fields_of("speculative_config").items()
    said = {key: getattr(draft, key) for key, flag in rows if flag.link is LinkRule.SET}
    return {"speculative-config": _json({key: value for key, value in said.items() if value is not None})}


def _kept(name: str) -> Callable[[Plan], dict[str, str | None]]:
    """An object as it was given."""
    return lambda plan: {name.replace("_", "-"): getattr(plan.scenario, name)}


def _redundant(plan: Plan) -> dict[str, Any]:
    """The switch that redundant experts need, and their number as the release spells it.

    Source: vllm/engine/arg_utils.py (0.9.2 --num-redundant-experts, 0.10.2 --eplb-config).
    """
    count = plan.scenario.parallel.num_redundant_experts
    flag = plan.resolved.switches.redundant_experts_flag
    return {"enable-eplb": True, flag: count} if count and flag else {}


_OWN: Final[Mapping[str, Callable[[Plan], dict[str, Any]]]] = {
    "runner": _runner,
    "hf_overrides": _overrides,
    "block_size": _blocks,
    "max_cudagraph_capture_size": _graphs,
    "speculative_config": _speculative,
    "num_redundant_experts": _redundant,
    **{name: _kept(name) for name in KEPT_AS_JSON},
}
"""Flags that depend on the release or on other flags; `_graphs` writes all that are about graphs."""


class Machine(Struct, frozen=True, kw_only=True):
    """One machine of the start."""

    cards: int
    before: tuple[str, ...] = ()
    """Shell lines before the server."""
    serves: bool = True
    """Whether the server is started on it."""
    flags: Mapping[str, Any] = field(default_factory=dict)


def machines_of(plan: Plan) -> tuple[Machine, ...]:
    """All machines in order; a single one without flags of its own where all cards fit into it.

    Raises ScenarioError `too-many-machines` beyond 64 of them.

    Source: vllm's docs/serving/data_parallel_deployment.md (0.23.0), parallelism_scaling.md (0.18.0, 0.33.0) and
    vllm-ascend's docs/source/tutorials (0.23.0): one API server on the first machine, --headless on the others;
    --nnodes on all, or ray start --head, then --address.

    Example:
        >>> from kvcore.planning import plan
        >>> from kvcore.wire.request import scenario_from_request
        >>> asked = {"model": "Qwen/Qwen3-30B-A3B", "accelerator": "Ascend-910B4-32GB", "tensor_parallel_size": 4,
        ...          "data_parallel_size": 4, "enable_expert_parallel": True}
        >>> found = machines_of(plan(scenario_from_request(asked)))
        >>> [machine.flags.get("data-parallel-start-rank") for machine in found]
        [None, 2]
    """
    number = number_of_machines(plan)
    if number > MOST_MACHINES:
        field = (
            "data_parallel_size"
            if plan.scenario.parallel.data_parallel_size > 1
            else "pipeline_parallel_size"
        )
        raise ScenarioError("too-many-machines", field=field, machines=str(number), limit=str(MOST_MACHINES))
    return tuple(_machine(plan, place, number) for place in range(number))


def first_machine(plan: Plan) -> Machine:
    """The first of the machines, however many there are."""
    return _machine(plan, 0, number_of_machines(plan))


def number_of_machines(plan: Plan) -> int:
    """Number of machines that the start takes."""
    parallel, most = plan.scenario.parallel, plan.accelerator.devices_per_node
    size, replicas = parallel.ranks_per_replica, parallel.data_parallel_size
    if size * replicas <= most:
        return 1
    if size <= most:
        return ceil_div(replicas, most // size)
    is_ray = _is_on_ray(plan) and plan.resolved.engine.machine_flags(plan.scenario, 0, 2, 0, FIRST) is None
    return ceil_div(size * replicas, most) if is_ray else size // _shared_cards(size, most) * replicas


def _machine(plan: Plan, place: int, number: int) -> Machine:
    parallel, most = plan.scenario.parallel, plan.accelerator.devices_per_node
    size, replicas = parallel.ranks_per_replica, parallel.data_parallel_size
    if number == 1:
        return Machine(cards=size * replicas)
    here = min(most // size, replicas - place * (most // size)) if size <= most else 0
    own_flags = plan.resolved.engine.machine_flags(plan.scenario, place, number, here, FIRST)
    if own_flags is not None:
        return Machine(cards=size * here if here else _shared_cards(size, most), flags=own_flags)
    if size <= most:
        start = place * (most // size)
        local = min(most // size, replicas - start)
        own = {"data-parallel-start-rank": start, "headless": True} if start else {}
        shared = {
            "data-parallel-size-local": local,
            "data-parallel-address": FIRST,
            "data-parallel-rpc-port": RPC_PORT,
        }
        return Machine(cards=size * local, flags=shared | own)
    if _is_on_ray(plan):
        return _on_ray(place, most)
    own = {"headless": True} if place else {}
    flags = {"nnodes": number, "node-rank": place, "master-addr": FIRST, **own}
    return Machine(cards=_shared_cards(size, most), flags=flags)


def _is_on_ray(plan: Plan) -> bool:
    """Whether the machines that share a replica join a Ray cluster."""
    return plan.resolved.version < plan.resolved.engine.facts.launch.nodes_since


def _shared_cards(size: int, most: int) -> int:
    """Cards of each machine that shares a replica of `size` ranks: the largest divisor of `size` up to `most`.

    Source: vllm/engine/arg_utils.py:EngineArgs.create_engine_config (0.18.0, 0.33.0): --nnodes divides the ranks.

    Example:
        >>> _shared_cards(16, 8), _shared_cards(20, 8)
        (8, 5)
    """
    return next(cards for cards in range(most, 0, -1) if size % cards == 0)


def _on_ray(place: int, cards: int) -> Machine:
    if place:
        return Machine(cards=cards, before=(f'ray start --address="{FIRST}:{RAY_PORT}"',), serves=False)
    before = (f"ray start --head --port={RAY_PORT}",)
    return Machine(cards=cards, before=before, flags={"distributed-executor-backend": "ray"})

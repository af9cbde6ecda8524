"""The server to start, as every launch file needs it: program, flags, cards, image, places to fill in."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

from msgspec import Struct

from kvcore.base.errors import ScenarioError
from kvcore.base.units import GIB, round_up
from kvcore.catalogue.documented import is_gated
from kvcore.deploy.launch import (
    FIRST,
    Machine,
    first_machine,
    launch_arguments,
    launch_environment,
    launch_words,
    machines_of,
    number_of_machines,
    served_model,
)
from kvcore.deploy.templates import templates
from kvcore.engine.facts import Launch
from kvcore.engines.registry import find_engine
from kvcore.host.limits import saving_variable
from kvcore.planning import Plan

FIRST_ADDRESS: Final = "192.0.2.10"
"""An address reserved for documentation, for a person to replace (RFC 5737)."""
TOKEN: Final = "HF_TOKEN"
"""The variable with a token of the Hub."""
_START_SECONDS_PER_GIB: Final = 4
"""Seconds of start per GiB of weights on one card, for the start-up probe: a slow disk reads 250 MiB/s."""
_START_SECONDS_FLOOR: Final = 600
"""Seconds of compilation and graph capture, whatever the size."""


class HostLimits(Struct, frozen=True, kw_only=True):
    """Memory of a container or a unit, and its /dev/shm, which counts against it."""

    memory_gib: int
    shm_gib: int


class ServerStart(Struct, frozen=True, kw_only=True):
    """The start of a server."""

    plan: Plan
    launch: Launch
    model: str
    arguments: Mapping[str, Any]
    environment: Mapping[str, str]

    @property
    def program(self) -> list[str]:
        """The words before the flags."""
        return [*self.launch.program, self.model]

    @property
    def flags(self) -> list[list[str]]:
        """Each flag with its words."""
        return [launch_words(name, value) for name, value in self.arguments.items()]

    @property
    def container(self) -> tuple[list[str], list[list[str]]]:
        """The program's words, none where the image starts it, and the flags."""
        if self.launch.image_starts_server:
            return [], [["--model", self.model], *self.flags]
        return self.program, self.flags

    @property
    def folder(self) -> str | None:
        """The model's folder, where it is a path on the machine."""
        return self.model if self.model.startswith("/") else None

    @property
    def asks_for_token(self) -> bool:
        """Whether the Hub gives the model, or its draft, only to an account that has accepted its terms."""
        draft = self.plan.scenario.speculative_config
        names = (self.plan.scenario.model, draft.model if draft is not None else None)
        return TOKEN not in self.environment and any(name is not None and is_gated(name) for name in names)

    @property
    def machines(self) -> tuple[Machine, ...]:
        """The machines of the start."""
        return machines_of(self.plan)

    @property
    def ranks(self) -> int:
        """Cards that the first machine uses, over all its replicas."""
        return first_machine(self.plan).cards

    @property
    def platform(self) -> Mapping[str, Any]:
        """The vendor's row of `platforms` in templates.yaml: how its cards are passed to a server."""
        found: Mapping[str, Any] = templates()["platforms"].get(self.plan.accelerator.vendor.value, {})
        return found

    @property
    def resource(self) -> str:
        """The resource name of the cards in Kubernetes."""
        known: Mapping[str, str] = self.platform["resources"]
        return next(name for chip, name in known.items() if chip in self.plan.accelerator.id)

    @property
    def mounts(self) -> list[str]:
        """Paths of the driver that a container mounts at the same place."""
        network = self.platform.get("network", ()) if number_of_machines(self.plan) > 1 else ()
        return [*self.platform.get("driver", ()), *network]

    @property
    def visible(self) -> dict[str, str]:
        """The variable that restricts a server to its cards; empty where it takes all cards of the machine."""
        name, taken = self.platform.get("visible"), self.ranks
        is_known = find_engine(self.plan.scenario.engine).runs_on(self.plan.accelerator)
        takes_all = taken >= self.plan.accelerator.devices_per_node
        if name is None or name in self.environment or takes_all or not is_known:
            return {}
        return {name: ",".join(map(str, range(taken)))}

    @property
    def places(self) -> Mapping[str, str]:
        """Variables to fill in on each of several machines: the first one's address, its own address, its interface."""
        own: Mapping[str, str] = self.platform.get("places", {})
        return {FIRST[1:]: FIRST_ADDRESS, **own}

    @property
    def network(self) -> Mapping[str, str]:
        """Variables that several machines need, as shell expressions, without those that the scenario sets."""
        ray = self.platform.get("ray", {}) if first_machine(self.plan).before else {}
        known: Mapping[str, str] = {**self.platform.get("several", {}), **ray}
        return {name: value for name, value in known.items() if name not in self.environment}

    @property
    def limits(self) -> HostLimits | None:
        """Limits of the host's memory to write down; None where no flag asks for any of it, or on several machines."""
        host = self.plan.host
        if host is None or len(self.machines) > 1:
            return None
        return HostLimits(memory_gib=host.limit_bounds[1] // GIB, shm_gib=host.shm_bytes // GIB)

    @property
    def devices(self) -> list[str]:
        """Device files of the cards; empty where the container runtime passes the cards itself."""
        card, ranks = self.platform.get("card"), range(self.ranks)
        own = [f"{card}{rank}" for rank in ranks] if card is not None else []
        return [*own, *self.platform.get("devices", ())]


def start_of(plan: Plan, *, every_flag: bool = False) -> ServerStart:
    """The start of a plan; `every_flag` includes resolved defaults."""
    return ServerStart(
        plan=plan,
        launch=plan.resolved.engine.facts.launch,
        model=served_model(plan),
        arguments=launch_arguments(plan, every_flag=every_flag),
        environment={**launch_environment(plan), **_saving(plan)},
    )


def _saving(plan: Plan) -> dict[str, str]:
    """The variable by which torch pins tensors without rounding, where the start pins any."""
    host = plan.host
    variable = None if host is None else saving_variable(plan.scenario, plan.resolved, host)
    return {} if variable is None else dict([variable.split("=", 1)])


def machine_variables(plan: Plan) -> tuple[str, ...]:
    """Variables that a command for several machines sets on each of them; empty for one machine.

    Raises ScenarioError `too-many-machines`.

    Example:
        >>> from kvcore.planning import plan
        >>> from kvcore.wire.request import scenario_from_request
        >>> asked = {"model": "Qwen/Qwen3-30B-A3B", "accelerator": "H100-80GB", "tensor_parallel_size": 8}
        >>> machine_variables(plan(scenario_from_request({**asked, "data_parallel_size": 2})))
        ('NODE0_IP',)
    """
    start = start_of(plan)
    return (*start.places, *start.network) if len(start.machines) > 1 else ()


def has_image(plan: Plan) -> bool:
    """Whether the engine is published as a container image for cards of this vendor."""
    return plan.resolved.engine.facts.launch.image_for(plan.accelerator.vendor) is not None


def no_image(plan: Plan) -> ScenarioError:
    """The error where the engine has no image for the card's vendor."""
    return ScenarioError("no-container-image", field="accelerator", engine=plan.scenario.engine)


def image(plan: Plan) -> str:
    """The engine's own container image for the planned version and the card's vendor.

    Raises ScenarioError where none is known.
    """
    found = plan.resolved.engine.facts.launch.image_for(plan.accelerator.vendor)
    if found is None:
        raise no_image(plan)
    version = plan.resolved.engine_version
    return f"{found.name}:v{version}{found.suffix_of(plan.accelerator.id, version)}"


def start_seconds(plan: Plan) -> int:
    """Seconds that a start may take before a probe should give up, in whole minutes."""
    loaded_gib = plan.weights.total / GIB * plan.scenario.parallel.ranks_per_replica
    return round_up(math.ceil(_START_SECONDS_FLOOR + _START_SECONDS_PER_GIB * loaded_gib), 60)

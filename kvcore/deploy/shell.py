"""Commands that a shell runs: one line for one machine, a block of lines for each of several."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

from kvcore.deploy.launch import (
    FIRST,
    MOST_MACHINES,
    Machine,
    first_machine,
    launch_arguments,
    launch_environment,
    launch_words,
    number_of_machines,
    rank_table_of,
    served_model,
)
from kvcore.engine.records import Role
from kvcore.planning import Plan

if TYPE_CHECKING:
    from kvcore.deploy.server_start import ServerStart


def launch_command(plan: Plan) -> str:
    """One shell line: environment, program, model, flags; for several machines, the lines that each of them runs."""
    if number_of_machines(plan) > 1:
        return several_machines_command(plan).removesuffix("\n")
    environment = [f"{name}={shlex.quote(value)}" for name, value in launch_environment(plan).items()]
    argv = [*plan.resolved.engine.facts.launch.program, served_model(plan)]
    for name, value in launch_arguments(plan).items():
        argv += launch_words(name, value)
    return " ".join([*environment, shlex.join(argv)])


def several_machines_command(plan: Plan) -> str:
    """The commands of each of several machines, as in the command's file; of too many only the first machine's."""
    # The places that a person fills in are data that a program with one machine need not read.
    from kvcore.deploy.server_start import start_of

    return several_machines(start_of(plan))


def several_machines(start: ServerStart) -> str:
    """The commands of each machine under its number, below the variables that a person fills in; of too many machines
    only the first one's."""
    number = number_of_machines(start.plan)
    machines = start.machines if number <= MOST_MACHINES else (first_machine(start.plan),)
    texts = (
        f"# {place} / {number}\n{before_server(start, machine)}"
        + (folded(on_machine(start.program, start.flags, machine)) if machine.serves else "")
        for place, machine in enumerate(machines, start=1)
    )
    return exports(start.places, "export ") + "\n".join(texts)


def before_server(start: ServerStart, machine: Machine) -> str:
    """The shell lines that one of several machines runs before the server."""
    network = "".join(f'export {name}="{value}"\n' for name, value in start.network.items())
    return network + own_exports(start) + "".join(f"{line}\n" for line in machine.before)


def own_exports(start: ServerStart) -> str:
    """The environment of a server, below the comment on how its rank table is made."""
    return _rank_table(start) + exports({**start.visible, **start.environment}, "export ")


def _rank_table(start: ServerStart) -> str:
    """A comment on how the table of all servers' cards is made on each machine: cards of the servers that compute
    prompts, then of those that decode; `...` is known only to whoever starts the other kind of servers."""
    table, parallel = rank_table_of(start.plan), start.plan.scenario.parallel
    if table is None:
        return ""
    cards = str(parallel.ranks_per_replica * parallel.data_parallel_size)
    computes = start.plan.resolved.engine.transfer(start.plan.scenario).role is Role.PRODUCER
    counts = (cards, "...") if computes else ("...", cards)
    words = (
        "bash", table.script, "--ips", "...", "--npus-per-node", str(start.plan.accelerator.devices_per_node),
        "--network-card-name", "...", "--prefill-device-cnt", counts[0], "--decode-device-cnt", counts[1],
    )  # fmt: skip
    return f"# {' '.join(words)}\n"


def on_machine(program: list[str], flags: Iterable[list[str]], machine: Machine) -> list[str]:
    """The server's command on one of several machines, each flag quoted for the shell.

    The first machine's address is expanded only in that machine's own flags: a model may be named like the variable.
    """
    words = (shlex.join(launch_words(name, value)) for name, value in machine.flags.items())
    own = (_ADDRESS.sub(r'"\1"', word) for word in words)
    shared = (flag for flag in flags if flag[:1] not in [[f"--{name}"] for name in machine.flags])
    return [*map(shlex.join, filter(None, (program, *shared))), *own]


_ADDRESS: Final = re.compile(rf"'({re.escape(FIRST)}(?::\d{{1,5}})?)'")
"""The first machine's address, with a port where one belongs to it."""


def exports(environment: Mapping[str, str], before: str) -> str:
    """A line `before`NAME=value for each variable."""
    return "".join(f"{before}{name}={shlex.quote(value)}\n" for name, value in environment.items())


def folded(parts: Iterable[str]) -> str:
    """A command over several lines, one part each."""
    return " \\\n  ".join(parts) + "\n"

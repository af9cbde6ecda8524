"""A start whose release nobody states: what other releases of the engine would leave it.

A published start, or a request that is read aloud, often has no version. The plan's figures are those of the newest
release; the interval of the KV memory spans what the releases do that may be meant.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from kvcore.engine.protocol import Setting


def other_settings(setting: Setting) -> Iterator[Setting]:
    """The same rank on each of `other_versions`, with the utilization that is the default there.

    Weights and the other flags stay those of the planned release: what differs in them is small next to the budget.
    """
    for version in setting.engine.other_versions(setting.scenario):
        switches, resolved = setting.engine.switches(version), replace(setting.resolved, version=version)
        if setting.scenario.gpu_memory_utilization is None:
            resolved = replace(resolved, gpu_memory_utilization=switches.gpu_memory_utilization)
        yield replace(setting, resolved=resolved, switches=switches)

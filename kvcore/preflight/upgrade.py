"""What another release of the engine changes for the workloads of files, and why."""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from kvcore.advice.difference import Difference, difference
from kvcore.base.errors import KvPlannerError, Notice
from kvcore.engines.registry import find_engine, is_planned
from kvcore.planning import Batch
from kvcore.preflight.outcome import Asked, Checked, Checks, Outcome, judged


class Upgraded(Struct, frozen=True, kw_only=True):
    """One workload on two releases of its engine."""

    before: Checked
    after: Checked
    difference: Difference | None
    """None where one of the releases refuses it, or where it cannot be planned."""

    @property
    def ends(self) -> bool:
        """Whether it starts on the first release and not on the second."""
        return self.before.outcome is Outcome.STARTS and self.after.outcome is not Outcome.STARTS


def upgraded(found: Checks, before: str | None, after: str) -> tuple[Checks, tuple[Upgraded, ...]]:
    """All workloads judged on a later release, each beside the one before: `before`, or what its file says.

    A release that an engine does not have leaves open whether its workload starts.

    Example:
        >>> from kvcore.manifests.files import Source
        >>> from kvcore.preflight.outcome import check_files
        >>> found = check_files([Source("run.sh", "vllm serve Qwen/Qwen3-8B --max-model-len 8192")], "L4-24GB")
        >>> later, (one,) = upgraded(found, "0.10.0", "0.33.0")
        >>> later.status, [change.name for change in one.difference.settings][:1]
        (0, ['gpu_memory_utilization'])
    """
    batch = Batch()
    pairs = []
    for one in found.checked:
        own = one.workload
        earlier = one if before is None else _on(one, before, found.asked, batch)
        later = _on(one, after, found.asked, batch)
        both = zip(earlier.plans[:1], later.plans[:1], strict=False)
        told = next((difference(*plans) for plans in both), None) if is_planned(own.engine) else None
        pairs.append(Upgraded(before=earlier, after=later, difference=told))
    checks = replace(
        found, checked=tuple(pair.after for pair in pairs), asked=replace(found.asked, release=after)
    )
    return checks, tuple(pairs)


def _on(one: Checked, release: str, asked: Asked, batch: Batch) -> Checked:
    """A workload judged on a release."""
    own = one.workload
    if not is_planned(own.engine):
        return one
    try:
        find_engine(own.engine).release(release)
    except KvPlannerError as error:
        said = Notice(code=error.code, field=error.field, params=error.params)
        return Checked(workload=own, outcome=Outcome.CANNOT_BE_KNOWN, reasons=(said,))
    return judged(own, replace(asked, release=release), batch)

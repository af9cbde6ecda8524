"""What the processes of a server take of the host's memory besides what its flags ask for, as intervals."""

from __future__ import annotations

from typing import Final

from kvcore.base.quantity import Grade, Quantity, Scope, Unit, explained, given
from kvcore.base.units import GIB, MIB
from kvcore.model.architecture import Architecture
from kvcore.scenario import Scenario
from kvcore.tables import Amount, Count, Record, Reviewed, Source, TableFile

QUEUE_CHUNK: Final = "VLLM_MQ_MAX_CHUNK_BYTES_MB"


class Queues(Record, frozen=True, kw_only=True):
    """Queues between the processes of an engine."""

    chunks: Count
    order_mib: Count
    answer_mib: Count
    group_chunks: Count
    group_mib: Count


class SharedMemory(Record, frozen=True, kw_only=True):
    """/dev/shm next to a tier."""

    few_gib: Amount
    many_gib: Amount
    many_ranks: Count


class Pcie(Record, frozen=True, kw_only=True):
    """The most that 16 lanes carry one way, in 10^9 bytes a second."""

    older_gb_s: Amount
    newer_gb_s: Amount


class ProcessTable(Reviewed, frozen=True, kw_only=True):
    """processes.toml."""

    source: Source
    worker_gib: tuple[Amount, Amount]
    api_server_gib: tuple[Amount, Amount]
    item_cache_gib: Amount
    queues: Queues
    shm: SharedMemory
    pcie: Pcie


PROCESSES: Final = TableFile("kvcore.host", "processes.toml", ProcessTable)


def each_of(count: int, each_bytes: float) -> float:
    """Bytes of so many processes."""
    return count * each_bytes


def _between(name: str, count: Quantity, ends: tuple[float, float], source: str) -> Quantity:
    low, high = (end * GIB for end in ends)
    return explained(
        name,
        each_of,
        count,
        given(f"{name}_each", (low + high) / 2, Unit.BYTES, Grade.ASSUMED),
        scope=Scope.TOTAL,
        grade=Grade.ASSUMED,
        source=source,
        interval=(count.value * low, count.value * high),
    )


def process_parts(
    scenario: Scenario, architecture: Architecture, weights_bytes: float, ranks: int, replicas: int
) -> tuple[Quantity, ...]:
    """Workers, API servers and the cache of images and video of one machine, in bytes; asleep, the weights too.

    `weights_bytes`: those of a rank; `ranks` and `replicas`: those on the machine. A server is started for each replica
    where none is said.

    Source: vllm/entrypoints/cli/serve.py: api_server_count (0.33.0); vllm/config/multimodal.py:mm_processor_cache_gb;
    vllm/device_allocator/cumem.py:CuMemAllocator.sleep (0.33.0): pinned, each allocation rounded up.
    """
    table = PROCESSES.load()
    servers = given("api_servers", replicas)
    parts = [
        _between("host_workers", given("ranks", ranks), table.worker_gib, table.source),
        _between("host_servers", servers, table.api_server_gib, table.source),
    ]
    if architecture.is_multimodal and not scenario.language_model_only:
        holders = given("servers_and_replicas", 2 * replicas)
        source = "vllm/config/multimodal.py:MultiModalConfig.mm_processor_cache_gb (0.33.0), filled as used"
        parts.append(_between("host_items", holders, (0.0, table.item_cache_gib), source))
    if scenario.enable_sleep_mode:
        source = "vllm/device_allocator/cumem.py:CuMemAllocator.sleep (0.33.0): level 1, asleep"
        ends = weights_bytes / GIB, 2 * weights_bytes / GIB
        parts.append(_between("host_asleep", given("ranks", ranks), ends, source))
    return tuple(parts)


def queue_bytes(ranks: int, order_chunk: int, answer_chunk: int, chunks: int, group: int) -> int:
    """Bytes of the queues of an engine when they are full: orders, each rank's answers, those of the group."""
    return chunks * order_chunk + ranks * chunks * answer_chunk + group


def queues_of(scenario: Scenario) -> Quantity | None:
    """The queues of one engine in /dev/shm, at the most; None of one rank, which runs in the engine's own process."""
    parallel, own = scenario.parallel, PROCESSES.load().queues
    if parallel.ranks_per_replica == 1:
        return None
    return explained(
        "host_queues",
        queue_bytes,
        given("ranks", parallel.ranks_per_replica),
        given("order_chunk", _order_mib(scenario) * MIB, Unit.BYTES),
        given("answer_chunk", own.answer_mib * MIB, Unit.BYTES),
        given("chunks", own.chunks),
        given("group_queue", own.group_chunks * own.group_mib * MIB, Unit.BYTES),
        scope=Scope.PER_REPLICA,
        source="vllm/distributed/device_communicators/shm_broadcast.py:ShmRingBuffer (0.33.0)",
    )


def largest_queue_bytes(scenario: Scenario) -> int:
    """Bytes of the largest queue, which /dev/shm must have free where it is checked; 0 of one rank.

    A chunk has a byte for the writer and one for each reader besides.
    """
    parallel, own = scenario.parallel, PROCESSES.load().queues
    ranks = parallel.ranks_per_replica
    if ranks == 1:
        return 0
    orders = own.chunks * (_order_mib(scenario) * MIB + 1 + ranks)
    return max(orders, own.chunks * (own.answer_mib * MIB + 2))


def _order_mib(scenario: Scenario) -> int:
    text = scenario.env.get(QUEUE_CHUNK, "")
    usable = text.isascii() and text.isdecimal() and len(text) <= 6
    return int(text) if usable else PROCESSES.load().queues.order_mib


def shm_floor_bytes(ranks: int) -> int:
    """Bytes of /dev/shm to leave next to a tier.

    Example:
        >>> shm_floor_bytes(4) // GIB, shm_floor_bytes(8) // GIB
        (1, 8)
    """
    table = PROCESSES.load().shm
    return int((table.many_gib if ranks >= table.many_ranks else table.few_gib) * GIB)

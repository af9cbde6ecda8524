"""Prefix hits by cache size as data: a chart with the knee marked, what it says, and JSON."""

from __future__ import annotations

from typing import Any, Final

from kvcore.base.numbers import share_text, short_number
from kvcore.base.units import GIB, rounded
from kvcore.base.words import Words
from kvcore.charts import plotting as draw
from kvcore.planning import Plan
from kvcore.replay.reuse import Reuse
from kvcore.replay.settings import Settings

HEIGHT: Final = 300


def block_gib(planned: Plan) -> float:
    """A block on all ranks of a replica that keep a part of it, in GiB."""
    bytes_per_block = planned.cache.bytes_per_block if planned.cache is not None else 0
    parallel = planned.scenario.parallel
    return bytes_per_block * parallel.tensor_parallel_size / GIB


def reuse_report(found: Reuse, settings: Settings, gib: float) -> dict[str, Any]:
    """The curve as JSON; sizes in blocks and in GiB of the replica."""
    knee = found.knee_blocks()
    return {
        "sampled": found.sampled,
        "now": {
            "blocks": settings.usable_blocks,
            "hit_rate": rounded(found.hit_rate(settings.usable_blocks)),
        },
        "knee": {"blocks": knee, "gib": rounded(knee * gib), "hit_rate": rounded(found.hit_rate(knee))},
        "most": rounded(found.most),
        "curve": [
            {"blocks": blocks, "gib": rounded(blocks * gib), "hit_rate": rounded(rate)}
            for blocks, rate in found.curve()
        ],
    }


def reuse_table(report: dict[str, Any]) -> str:
    """The sizes that matter, for people."""
    now, knee = report["now"], report["knee"]
    rows = (
        ("hits of the pool now", f"{100 * now['hit_rate']:.1f} %"),
        ("hits at the knee", f"{100 * knee['hit_rate']:.1f} %"),
        ("cache at the knee", f"{knee['gib']:.1f} GiB"),
        ("hits at most", f"{100 * report['most']:.1f} %"),
    )
    return "\n".join(f"{name:<24}{value:>16}" for name, value in rows)


def reuse_chart(found: Reuse, settings: Settings, gib: float, t: Words) -> draw.Figure:
    """Hit rate over cache size, with the pool as it is and the knee."""
    curve = found.curve()
    sizes = [blocks * gib for blocks, _ in curve]
    rates = [100 * rate for _, rate in curve]
    knee, now = found.knee_blocks(), settings.usable_blocks
    data = [
        draw.scatter("lines", sizes, rates, t("{size} GiB find {rate} %", size="%{x:.2f}", rate="%{y:.1f}"),
                     name="curve", line=draw.stroke(draw.CURRENT_LINE, 2.5)),
        draw.scatter("markers+text", [knee * gib], [100 * found.hit_rate(knee)], name="knee", text=[t("knee")],
                     textposition="top left", marker={"color": draw.CAPACITY, "size": 10, "symbol": "diamond"}),
        draw.scatter("markers+text", [now * gib], [100 * found.hit_rate(now)], name="now", text=[t("now")],
                     textposition="bottom right", marker={"color": draw.OPERATING_POINT, "size": 10}),
    ]  # fmt: skip
    low, high = min(sizes[0], now * gib), max(sizes[-1], now * gib)
    return draw.figure(
        data,
        HEIGHT,
        (56, 16, 16, 46),
        showlegend=False,
        hovermode="closest",
        xaxis=draw.log_axis(low * 0.9, high * 1.1, t("cache of a replica, GiB")),
        yaxis=draw.axis(t("prefix hit rate, %"), 8, range=[0, max(rates) * 1.15 + 1]),
    )


def reuse_sentence(found: Reuse, settings: Settings, gib: float, t: Words) -> str:
    """What the cache finds now, at the knee, and at most; and how much memory beyond the GPU's the knee takes."""
    knee, now = found.knee_blocks(), settings.usable_blocks
    said = t(
        "The {size} GiB of now find {rate} of the prompt tokens; {knee} GiB find {knee_rate}, and more buys less; a "
        "cache that forgets nothing finds {most}.",
        size=short_number(now * gib), rate=share_text(found.hit_rate(now), t), knee=short_number(knee * gib),
        knee_rate=share_text(found.hit_rate(knee), t), most=share_text(found.most, t),
    )  # fmt: skip
    if knee > now:
        said += " " + t("CPU memory can give the {size} GiB that the GPUs lack: {flag}.", flag="--kv-offloading-size",
                        size=short_number((knee - now) * gib))  # fmt: skip
    return said

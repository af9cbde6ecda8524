"""Quality: published scores of one model before and after, as bars, each with its source."""

from __future__ import annotations

from html import escape

from kvcore.base.numbers import two_decimals
from kvcore.base.words import Words, listed
from kvcore.charts.drawings.drawing import Drawing, box, words_box
from kvcore.explain.quality import WEIGHTS, PublishedScore, published_scores
from kvcore.planning import Plan


def quality_drawing(_: Plan, t: Words) -> Drawing:
    """Every published result: what has fewer bits, the score that is left, and who says so."""
    rows = published_scores()
    return Drawing(
        title=t("Published scores before and after"),
        html=box("kv-scores", "".join(_row(row, t) for row in rows)),
        alternative=listed(t, (f"{_name(row, t)}: {row.before:.2f} → {row.after:.2f}" for row in rows)),
    )


def _name(row: PublishedScore, t: Words) -> str:
    kept = t("weights") if row.kept == WEIGHTS else t("weights and KV cache")
    return f"{row.format} ({kept}), {row.model}, {row.benchmark}"


def _row(row: PublishedScore, t: Words) -> str:
    kept = t("weights") if row.kept == WEIGHTS else t("weights and KV cache")
    change = ("+" if row.points >= 0 else "") + two_decimals(row.points)
    bars = box("kv-score kv-before", variables=f"--share:{row.before / 100:.4f}") + box(
        "kv-score", variables=f"--share:{row.after / 100:.4f}"
    )
    figures = f"{row.before:.2f} → <b>{row.after:.2f}</b> ({escape(change)})"
    return (
        words_box("kv-row-name", f"{row.format} · {kept}")
        + box("kv-score-bars", bars)
        + box("kv-size", figures)
        + words_box("kv-soft kv-source", f"{row.model} · {row.benchmark} · {row.source}")
    )

"""The stylesheet as Streamlit takes it."""

from pathlib import Path

STYLE = Path(__file__).resolve().parents[1] / "pages" / "ui" / "shared" / "style.css"


def test_nothing_in_it_looks_like_a_tag() -> None:
    """Streamlit's sanitizer drops a whole stylesheet that holds one, and every page loses its looks without a word."""
    assert "<" not in STYLE.read_text(encoding="utf-8")

"""The stylesheets as the document and Streamlit take them."""

from pathlib import Path

UI = Path(__file__).resolve().parents[1] / "pages" / "ui"


def test_nothing_in_them_looks_like_a_tag() -> None:
    """Streamlit's sanitizer drops a whole stylesheet that holds one, and every page loses its looks without a word."""
    sheets = sorted(UI.rglob("*.css"))
    assert len(sheets) > 5
    for sheet in sheets:
        assert "<" not in sheet.read_text(encoding="utf-8"), sheet.name

"""Tables as HTML: heads, cells with figures, and a second line in a cell. Every text is escaped here."""

from collections.abc import Iterable
from html import escape

import streamlit as st


def html(head: Iterable[str], body: str, kind: str = "") -> str:
    """A table with rows that are HTML already; `kind` is a class of its own."""
    heads = "".join(f'<th scope="col">{escape(text)}</th>' for text in head)
    own = f" {kind}" if kind else ""
    return f'<div class="kv-table{own}"><table><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table></div>'


def show(head: Iterable[str], body: str, kind: str = "") -> None:
    """Shows such a table on the page."""
    st.html(html(head, body, kind))


def figures(*texts: str) -> str:
    """Table cells, each with a figure."""
    return "".join(f'<td class="kv-figure">{escape(text)}</td>' for text in texts)


def two_lines(first: str, second: str) -> str:
    """The content of a cell, with a second, fainter line where it is not empty."""
    return f'{escape(first)}<div class="kv-soft">{escape(second)}</div>' if second else escape(first)

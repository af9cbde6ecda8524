"""A tab on a new server: its first change counts, and what it did not change comes from the link."""

from __future__ import annotations

from streamlit.testing.v1 import AppTest

from tests.page_app import APP, checked, metrics, open_app, params

LINK = {"model": "Qwen/Qwen3-8B", "accelerator": "H100-80GB", "max_model_len": "8192"}


def on_a_new_server(tab: AppTest, link: dict[str, str]) -> AppTest:
    """A fresh session's answer to the values of a tab that another server has drawn."""
    fresh = AppTest.from_file(APP, default_timeout=300)
    fresh.context = {"locale": "en-US"}
    for name, value in link.items():
        fresh.query_params[name] = value
    return checked(fresh._run(tab._tree.get_widget_states()))


def test_the_first_change_is_made() -> None:
    tab = open_app(LINK)
    link = params(tab)
    tab.select_slider(key="max_model_len.slider").set_value(4096)
    fresh = on_a_new_server(tab, link)
    assert params(fresh)["max_model_len"] == "4096"
    assert metrics(fresh) == metrics(checked(tab.run()))


def test_a_click_counts() -> None:
    tab = open_app(LINK | {"max_num_seqs": "16"})
    link = params(tab)
    chip = next(button for button in tab.button if button.label.startswith("max_num_seqs"))
    chip.click()
    assert "max_num_seqs" not in params(on_a_new_server(tab, link))


def test_nothing_changed_is_the_link() -> None:
    tab = open_app(LINK)
    link = params(tab)
    fresh = on_a_new_server(tab, link)
    assert params(fresh) == link
    assert metrics(fresh) == metrics(tab)

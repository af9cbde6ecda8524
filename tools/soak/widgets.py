"""Widgets on the wire: which elements of a page are widgets, and what each sends for a value."""

from __future__ import annotations

from typing import Any

from streamlit.proto.Block_pb2 import Block
from streamlit.proto.Element_pb2 import Element
from streamlit.proto.Slider_pb2 import Slider
from streamlit.proto.WidgetStates_pb2 import WidgetState

TRIGGERS = ("button", "download_button")
FOLDS = ("expandable", "popover")
WIDGETS = (
    "button_group", "checkbox", "file_uploader", "multiselect", "number_input", "radio", "selectbox", "slider",
    "text_area", "text_input",
)  # fmt: skip
"""Widgets of the app; `state_of` raises on others."""


def widget_of(content: Element | Block) -> Any | None:
    """The widget in an element or container; None for one that sends nothing."""
    kind = content.WhichOneof("type")
    if isinstance(content, Block):
        inner = getattr(content, kind) if kind in FOLDS else None
        return inner if inner is not None and inner.id else None
    return getattr(content, kind) if kind in WIDGETS or kind in TRIGGERS else None


def key_of(widget: Any) -> str:
    """The key that the script gave a widget, "None" for none."""
    name: str = widget.id.split("-", 2)[-1]
    return name


def state_of(widget: Any, value: Any = None) -> WidgetState | None:
    """The state that the browser sends for `value`, or for the value that the server drew where that is None.

    A button has no state, nor has an upload that nobody made.
    """
    kind = widget.DESCRIPTOR.name
    given = value is not None
    if kind in ("Button", "DownloadButton"):
        return None
    if kind == "FileUploader":
        return None
    if kind in ("TextInput", "TextArea"):
        drawn = widget.value if widget.set_value else widget.default
        return WidgetState(id=widget.id, string_value=str(value) if given else drawn)
    if kind == "NumberInput":
        return _number(widget, value)
    if kind == "Checkbox":
        drawn = widget.value if widget.set_value else widget.default
        return WidgetState(id=widget.id, bool_value=bool(value) if given else drawn)
    if kind in ("Expandable", "Popover"):
        drawn = widget.expanded if kind == "Expandable" else widget.open
        return WidgetState(id=widget.id, bool_value=bool(value) if given else drawn)
    if kind in ("Selectbox", "Radio"):
        text = str(value) if given else _chosen(widget)
        return WidgetState(id=widget.id, string_value=text) if text is not None else None
    return _array(widget, value)


def _number(widget: Any, value: Any) -> WidgetState | None:
    if value is not None:
        return WidgetState(id=widget.id, double_value=float(value))
    drawn = "value" if widget.set_value else "default"
    if not widget.HasField(drawn):
        return None
    return WidgetState(id=widget.id, double_value=getattr(widget, drawn))


def _chosen(widget: Any) -> str | None:
    if widget.set_value:
        return widget.raw_value if widget.HasField("raw_value") else None
    return widget.options[widget.default] if widget.HasField("default") and widget.options else None


def _array(widget: Any, value: Any) -> WidgetState:
    kind, state = widget.DESCRIPTOR.name, WidgetState(id=widget.id)
    values = None if value is None else list(value) if isinstance(value, (list, tuple)) else [value]
    if kind == "Slider" and widget.type != Slider.SELECT_SLIDER:
        drawn = widget.value if widget.set_value else widget.default
        state.double_array_value.data.extend(map(float, drawn if values is None else values))
        return state
    if kind == "Slider":
        texts = (
            list(widget.raw_value) if widget.set_value else [widget.options[int(i)] for i in widget.default]
        )
    elif kind in ("ButtonGroup", "MultiSelect"):
        options = [option.content if kind == "ButtonGroup" else option for option in widget.options]
        texts = list(widget.raw_values) if widget.set_value else [options[i] for i in widget.default]
    else:
        raise ValueError(f"no words for a {kind}")
    state.string_array_value.data.extend(texts if values is None else map(str, values))
    return state

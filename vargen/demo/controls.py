"""Components that more than one tab has. Each function takes the module `gradio` as `gr`.

Belongs here: building them. Does not belong here: what happens when a visitor uses them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from vargen.demo import markup
from vargen.demo.settings import write_settings
from vargen.methods.base import MethodConfig


def start_and_stop(gr: Any, label: str) -> tuple[Any, Any]:
    """The button that starts a computation, and the one that stops it."""
    name = label.lower()
    with gr.Row(elem_classes="tight"):
        start = gr.Button(label, variant="primary", elem_id=name, scale=3)
        return start, gr.Button("Stop", interactive=False, elem_id=f"stop-{name}", scale=1, min_width=90)


def examples(gr: Any, label: str, texts: Sequence[str], visible: bool = True) -> Any:
    """Texts to choose from. A click gives the number of the chosen one."""
    options = {"label": label, "elem_id": label.lower(), "visible": visible}
    return gr.Dataset(components=["textbox"], samples=[[text] for text in texts], type="index", **options)


def method_list(gr: Any, methods: Mapping[str, MethodConfig], first: str, name: str) -> tuple[Any, Any]:
    """A list of methods with this element id, and the line that says what the chosen one does."""
    chosen = gr.Dropdown(markup.choices(methods), value=first, label="Method", elem_id=name, filterable=False)
    return chosen, gr.HTML(describe(methods[first])[0])


def settings_box(gr: Any, config: MethodConfig) -> Any:
    """The settings of a method, to edit."""
    label = "Settings of the method, one a line"
    return gr.Textbox(write_settings(config), label=label, lines=4, max_lines=16, elem_classes="code")


def describe(config: MethodConfig) -> tuple[str, str]:
    """The line that says what a method does, as HTML, and its settings."""
    return markup.method_hint(config), write_settings(config)


def picture(gr: Any, name: str) -> Any:
    """A picture with this element id, which visitors can save and enlarge."""
    return gr.Image(show_label=False, interactive=False, buttons=["download", "fullscreen"], elem_id=name)

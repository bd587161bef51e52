"""Components of more than one tab, and a method's settings as text that people edit, as in a preset.

A function that builds a component takes the module `gradio` as `gr`. Settings that name a folder are left out of the
text, since visitors of a page must not reach files of the machine behind it. Does not belong here: answers to a visitor
who uses a component.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from vargen.base.errors import UserError
from vargen.base.reading import parse_yaml, reason_of
from vargen.demo import markup
from vargen.methods.base import MethodConfig, configure

AnyConfig = TypeVar("AnyConfig", bound=MethodConfig)


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
    """A list of methods with this element id, and the line that describes the chosen one."""
    chosen = gr.Dropdown(markup.choices(methods), value=first, label="Method", elem_id=name, filterable=False)
    return chosen, gr.HTML(describe(methods[first])[0])


def settings_box(gr: Any, config: MethodConfig) -> Any:
    """The settings of a method, to edit."""
    label = "Settings of the method, one a line"
    return gr.Textbox(write_settings(config), label=label, lines=4, max_lines=16, elem_classes="code")


def describe(config: MethodConfig) -> tuple[str, str]:
    """The line that describes a method, as HTML, and its settings."""
    return markup.method_hint(config), write_settings(config)


def picture(gr: Any, name: str) -> Any:
    """A picture with this element id, which visitors can save and enlarge."""
    return gr.Image(show_label=False, interactive=False, buttons=["download", "fullscreen"], elem_id=name)


def write_settings(config: MethodConfig) -> str:
    """Every setting that may be changed, one a line; empty for a method without any."""
    hidden = ("name", *config.weights)
    return "".join(f"{name}: {_written(value)}\n" for name, value in config.to_dict().items() if name not in hidden)


def _written(value: Any) -> str:
    """The value as JSON, which is also YAML; a plain word without quotes where YAML reads it back."""
    return value if isinstance(value, str) and parse_yaml(value) == value else json.dumps(value)


def read_method(methods: Mapping[str, AnyConfig], name: str, text: str) -> AnyConfig:
    """The method of this name with the settings of a text. Raises UserError as `read_settings`, or for another name."""
    if name not in methods:
        raise UserError(f"method {name!r} does not fit this model; choose another")
    return read_settings(methods[name], text)


def read_settings(config: AnyConfig, text: str) -> AnyConfig:
    """The method with the settings of a text. Settings that the text leaves out keep their values. Raises UserError for
    a text that is no list of settings, an unknown setting, a folder, or a value out of range."""
    try:
        given: Any = parse_yaml(text)
    except ValueError as error:
        raise UserError(f"settings: write one `name: value` a line ({reason_of(error)})") from error
    if given is None:
        return config
    if not isinstance(given, dict):
        raise UserError(f"settings: write one `name: value` a line, got {text.strip()!r}")
    for name in given:
        if name in config.weights:
            raise UserError(f"settings: {name} names a folder and cannot be set here; start `vargen demo` with --model")
    kept = {name: value for name, value in config.to_dict().items() if name != "name"}
    return configure(type(config), {**kept, **{str(name): value for name, value in given.items()}})

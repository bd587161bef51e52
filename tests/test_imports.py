"""The rules of the house: who may import whom, and which words the core does not say.

Imports are read from the source with `ast`, those under `TYPE_CHECKING` and inside functions too, so nothing is run and
no place hides one. Each rule is a function of {module: modules it imports} and is shown to fail on a planted violation.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("metrics", "specdecode", "vargen", "scenes")

FLOORS = {
    "specdecode": (
        "kernels trace", "checks ragged sampling", "kv_cache tree", "roles", "drafters targets verifiers", "loop",
        "graphs grid text", "hub runs",
    ),
    "vargen": (
        "base", "runs", "drawing", "methods", "checkpoints", "drafters", "models", "pipelines", "training", "jobs",
        "video", "demo", "serve", "commands", "cli",
    ),
}  # fmt: skip
"""The parts of a package from the ground up; those of one floor do not import each other."""

FAMILIES = {
    "llamagen": "llamagen",
    "janus": "janus",
    "token_images": "token_images",
    "emu3": "token_images",  # one of them
    "glm_image": "glm_image",
}
"""Families of models, by words in names. A module is special to the first that its name contains, else general."""

CHOOSERS = ("vargen.pipelines.loading", "vargen.models.description")
"""General modules that choose among families, so they import all of them."""

MOST_FLOORS = {"vargen.pipelines": 6}
"""The longest line of imports within a folder, in modules."""

Imports = Mapping[str, Collection[str]]
Edge = tuple[str, str]


def read_sources(root: Path, packages: Iterable[str]) -> dict[str, str]:
    """The source of every module of these packages, by dotted name; a package goes by its own name."""
    sources = {}
    for package in packages:
        for path in sorted((root / package).rglob("*.py")):
            parts = path.relative_to(root).with_suffix("").parts
            sources[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path.read_text()
    return sources


def read_imports(sources: Mapping[str, str]) -> dict[str, set[str]]:
    """Which of these modules each of them imports, wherever in its source."""
    imports: dict[str, set[str]] = {}
    for module, source in sources.items():
        named: set[str] = set()
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Import):
                named |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                assert not node.level, f"{module}: relative imports are not used here"
                # What is imported from a package is a module of it, or a name of its own.
                names = {f"{node.module}.{alias.name}" for alias in node.names}
                named |= {name if name in sources else str(node.module) for name in names}
        imports[module] = named & sources.keys() - {module}
    return imports


def within(module: str, *packages: str) -> bool:
    """Whether a module is one of these packages or lies in one."""
    return any(module == package or module.startswith(f"{package}.") for package in packages)


def _edges(imports: Imports) -> Iterator[Edge]:
    return ((module, other) for module, others in imports.items() for other in others)


def core_imports_above(imports: Imports) -> set[Edge]:
    """`specdecode` and `metrics` import neither `vargen`, nor `scenes`, nor each other."""
    return {
        (module, other)
        for module, other in _edges(imports)
        for core in ("specdecode", "metrics")
        if within(module, core) and not within(other, core)
    }


def product_imports_the_world(imports: Imports) -> set[Edge]:
    """`vargen` never imports `scenes`; it finds a world through entry points."""
    return {
        (module, other) for module, other in _edges(imports) if within(module, "vargen") and within(other, "scenes")
    }


def pictures_import_videos(imports: Imports) -> set[Edge]:
    """The picture half never imports `vargen.video`: commands and the page do, and entry points name what it has."""
    return {
        (module, other)
        for module, other in _edges(imports)
        if within(module, "vargen") and not within(module, "vargen.video", "vargen.commands", "vargen.demo")
        if within(other, "vargen.video")
    }


def higher_floors(imports: Imports) -> set[Edge]:
    """A floor imports only floors below it."""
    levels = {
        f"{package}.{room}": number
        for package, floors in FLOORS.items()
        for number, rooms in enumerate(floors)
        for room in rooms.split()
    }

    def room(module: str) -> str:
        # `python -m vargen` is the command line by another name.
        return ".".join(module.split(".")[:2]).replace("__main__", "cli")

    def is_higher(module: str, other: str) -> bool:
        if room(module) == room(other) or "." not in module or "." not in other:
            return False
        return module.split(".")[0] == other.split(".")[0] in FLOORS and levels[room(module)] <= levels[room(other)]

    return {(module, other) for module, other in _edges(imports) if is_higher(module, other)}


def family(module: str) -> str | None:
    """The family of models that a module of models, drafters or pipelines is about; None: it is general."""
    if not within(module, "vargen.models", "vargen.drafters", "vargen.pipelines") or module in CHOOSERS:
        return None
    return next((name for word, name in FAMILIES.items() if word in module), None)


def general_imports_special(imports: Imports) -> set[Edge]:
    """A general module of models, drafters or pipelines imports no module that is about one family."""
    return {
        (module, other)
        for module, other in _edges(imports)
        if within(module, "vargen.models", "vargen.drafters", "vargen.pipelines")
        and module not in CHOOSERS
        and family(other) not in (None, family(module))
    }


def circles(imports: Imports) -> set[Edge]:
    """Imports that lead back to where they began."""

    def reached_from(start: str) -> set[str]:
        reached: set[str] = set()
        waiting = [start]
        while waiting:
            for other in imports.get(waiting.pop(), ()):
                if other not in reached:
                    reached.add(other)
                    waiting.append(other)
        return reached

    reached = {module: reached_from(module) for module in imports}
    return {(module, other) for module, other in _edges(imports) if module in reached.get(other, ())}


def num_floors(imports: Imports, folder: str) -> int:
    """Modules in the longest line of imports within a folder; there are no circles."""

    def floor(module: str) -> int:
        return 1 + max((floor(other) for other in imports[module] if within(other, folder)), default=0)

    return max(floor(module) for module in imports if within(module, folder))


RULES: dict[Callable[[Imports], set[Edge]], Edge] = {
    core_imports_above: ("specdecode.loop", "metrics.tables"),
    product_imports_the_world: ("vargen.commands.evaluate", "scenes.cases"),
    pictures_import_videos: ("vargen.serve.app", "vargen.video.models.frames"),
    higher_floors: ("vargen.runs.files", "vargen.drawing.sheet"),
    general_imports_special: ("vargen.drafters.eagle_head", "vargen.models.llamagen.llamagen_target"),
}
"""Every rule about single imports, with one that breaks it."""


@pytest.fixture(scope="module")
def sources() -> dict[str, str]:
    return read_sources(ROOT, PACKAGES)


@pytest.fixture(scope="module")
def imports(sources: dict[str, str]) -> dict[str, set[str]]:
    return read_imports(sources)


@pytest.mark.parametrize("rule", [*RULES, circles], ids=lambda rule: rule.__name__)
def test_the_house_keeps_the_rule(rule, imports):
    assert not rule(imports), rule.__doc__


@pytest.mark.parametrize(("rule", "planted"), RULES.items(), ids=lambda value: getattr(value, "__name__", ""))
def test_a_planted_import_breaks_the_rule(rule, planted):
    allowed = {
        "scenes.cases": {"vargen.jobs.cases", "scenes.rendering.scene"},
        "vargen.commands.evaluate": {"vargen.jobs.evaluation"},
        "vargen.models.llamagen.llamagen_draft_head": {
            "vargen.models.llamagen.llamagen_target",
            "vargen.drafters.eagle_head",
        },
        "vargen.commands.caption": {"vargen.video.jobs.captioning"},
        "vargen.video.drafters.video_draft_head": {"vargen.video.models.target"},
        "vargen.jobs.benchmark": {"metrics.tables"},
        "vargen.pipelines.llamagen": {"vargen.models.llamagen.llamagen_target", "specdecode.loop"},
        "vargen.pipelines.loading": {"vargen.pipelines.llamagen", "vargen.pipelines.janus"},
    }
    assert not rule(allowed)
    module, other = planted
    assert rule({**allowed, module: {*allowed.get(module, ()), other}}) == {planted}


def test_a_planted_floor_of_the_core_is_found():
    for planted in (("specdecode.kernels.native", "specdecode.kv_cache"), ("specdecode.sampling", "specdecode.ragged")):
        module, other = planted
        assert higher_floors({other: {module}}) == ({(other, module)} if "ragged" in other else set())
        assert higher_floors({module: {other}}) == {planted}


@pytest.mark.parametrize(("folder", "most"), MOST_FLOORS.items())
def test_a_folder_has_few_floors(folder, most, imports):
    assert num_floors(imports, folder) <= most


def test_a_planted_floor_is_counted():
    house = {"a.one": {"b.one", "a.two"}, "a.two": {"b.one"}, "b.one": set[str]()}
    assert num_floors(house, "a") == 2
    assert num_floors({**house, "a.two": {"a.three"}, "a.three": set[str]()}, "a") == 3


def test_a_planted_circle_is_found():
    line = {"a": {"b", "c"}, "b": {"c"}, "c": set[str](), "d": {"a"}}
    assert not circles(line)
    assert circles({**line, "c": {"a"}}) == {("a", "b"), ("a", "c"), ("b", "c"), ("c", "a")}


def test_imports_are_read_wherever_they_stand():
    sources = {
        "pack": "",
        "pack.one": "import pack.two\nfrom pack import three as number\nfrom pack.two import name",
        "pack.two": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from pack.one import Name",
        "pack.three": "def load():\n    import os\n    from pack import one, version",
    }
    assert read_imports(sources) == {
        "pack": set(),
        "pack.one": {"pack.two", "pack.three"},
        "pack.two": {"pack.one"},
        "pack.three": {"pack.one", "pack"},
    }


# ---------------------------------------------------------------------------------------------------------------------
# Words

_WORDS = re.compile(r"picture|image|video|caption", re.IGNORECASE)
_SOURCE = re.compile(r"arXiv|\bet al\b|equations?\b|algorithm \d|section \d", re.IGNORECASE)
_TITLE = re.compile(r'(?<!")"[^"]+"(?=[\s(,]+(arXiv|[A-Z]+) \d)')
"""What a paper is called, followed by where it appeared."""


def foreign_words(source: str) -> list[tuple[int, str]]:
    """Lines of a file that speak of pictures, images, videos or captions.

    Comments may where they name the source of a formula, and so may the title of a paper.
    """
    texts = {tokenize.NAME, tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING), tokenize.COMMENT}
    found = []
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in texts or (token.type == tokenize.COMMENT and _SOURCE.search(token.string)):
            continue
        said = _TITLE.sub(lambda title: "\n" * title[0].count("\n"), token.string)
        found += [
            (number, line.strip())
            for number, line in enumerate(said.splitlines(), start=token.start[0])
            if _WORDS.search(line)
        ]
    return found


def test_the_core_speaks_of_tokens_alone(sources):
    assert not {
        name: lines for name, text in sources.items() if within(name, "specdecode") and (lines := foreign_words(text))
    }


def test_a_planted_word_is_found():
    for planted in (
        "def f(image): pass",
        '"""Tokens of a Video."""',
        "x = 'caption'",
        "# pictures",
        "x = f'{y} pictures'",
    ):
        assert len(foreign_words(planted)) == 1


def test_a_source_of_a_formula_may_be_named():
    assert not foreign_words("x = 1  # of image tokens: equation 3 of arXiv 2411.00000\n# tokens\ny = 2")
    assert not foreign_words('"""Rule: "Faster\nimage generation" (ICCV 2025), "Of videos", arXiv 2410.01699."""')

"""The README, the lab book and the model card say what the recorded results say; weights keep to their limit."""

import re
from pathlib import Path

import figures
from build_results import build, not_shown
from results_page.plain import plain_tables
from results_page.records import RESULTS

from vargen.base.reading import read_yaml
from vargen.base.resources import find_config

ROOT = Path(__file__).resolve().parent.parent
PUBLIC = ("https://github.com/vargen/vargen/blob/main/", "https://raw.githubusercontent.com/vargen/vargen/main/")


def test_documents_are_built_from_the_recorded_results():
    stale = [str(path.relative_to(ROOT)) for path, text in build().items() if path.read_text() != text]
    assert not stale, f"run python benchmarks/build_results.py; out of date: {stale}"


def test_every_figure_of_readme_and_docs_is_that_of_its_record():
    """Each is told once it is another one, and so is one that nothing measured."""
    told = read_yaml(ROOT / "benchmarks" / "figures.yaml")
    no_figure, checked = "|".join(told["no_figure"]), 0
    for page in figures.pages():
        text, words = figures.text_of(page), figures.words_of(page, told)
        assert not [*figures.faults_in(text, words, no_figure)], page
        for figure in figures.figures_outside(text, no_figure):
            other = re.sub(r"\d|^[A-Za-z]+", "7", figure[0], count=1) if "7" not in figure[0] else "9 of 9"
            changed = text[: figure.start()] + other + text[figure.end() :]
            assert any(figures.faults_in(changed, words, no_figure)), f"{page}: {figure}"
            checked += 1
        assert any(figures.faults_in(f"{text} It is 7.3 times faster.", words, no_figure))
        assert any(figures.faults_in(f"{text} It needs twelve passes.", words, no_figure))
    assert checked > 400


def test_shipped_weights_stay_within_their_share():
    weights = ROOT / "scenes" / "weights"
    sizes = {path.relative_to(weights): path.stat().st_size for path in weights.rglob("*") if path.is_file()}
    # These have their own share of 60 MiB.
    others = {
        "scenes-256", "drafter", "draft_model", "clip", "video-llm", "video-llm-draft",
    }  # fmt: skip
    assert 0 < sum(size for path, size in sizes.items() if not others & {*path.parts}) <= 38 * 2**20
    assert sum(sizes.values()) <= 60 * 2**20


def test_every_record_has_a_table_or_is_named_as_one_without():
    page = (ROOT / "benchmarks" / "lab" / "results.md").read_text()
    assert all(f"`{name}`" in page for name in not_shown())
    assert len(not_shown()) < len([*RESULTS.glob("*.json")]) / 10


def test_a_plain_table_has_a_column_for_each_field_that_varies():
    rows = [
        {"way": "ar", "bytes_peak": 3 * 2**20, "share": {"value": 0.5, "interval": [0.4, 0.6]}, "exact": True},
        {"way": "scd", "bytes_peak": 2**20, "share": {"value": 0.25, "interval": None}, "exact": True},
        {"way": "eagle", "seconds": 0.12345},
    ]
    assert plain_tables(rows).split("\n\n") == [
        "| way | MiB peak | share |\n|---|---|---|\n| ar | 3 | 0.5 (0.4 to 0.6) |\n| scd | 1 | 0.25 |",
        "In every row: exact yes.",
        "| way | seconds |\n|---|---|\n| eagle | 0.123 |",
    ]
    assert plain_tables(rows, ("way",)).count("|---|") == 1


def test_every_picture_and_page_the_readme_links_to_is_there():
    text = (ROOT / "README.md").read_text()
    links = [part.split(")")[0] for part in text.split("](")[1:]]
    assert links and all(link.startswith("https://") for link in links)  # so that they work on a package index
    own = [link.removeprefix(prefix) for link in links for prefix in PUBLIC if link.startswith(prefix)]
    assert len(own) >= 10 and all((ROOT / link).is_file() for link in own)


def test_every_claim_of_exactness_stands_on_its_page_and_has_its_test():
    """The table of benchmarks/lab/robustness.md; a claim in other words, or a test of another name, is found here."""
    page = (ROOT / "benchmarks" / "lab" / "robustness.md").read_text()
    rows = [line.strip("| ").split(" | ") for line in page.split("|---|---|---|\n")[1].splitlines()]
    assert len(rows) >= 54
    for words, place, test in rows:
        text = " ".join((ROOT / place.strip("`")).read_text().split())
        assert words in text, f"{place} does not say: {words}"
        file, _, name = test.strip("`").partition("::")
        assert f"def {name}(" in (ROOT / file).read_text(), test


def test_the_readme_holds_no_figure_of_an_unclean_commit():
    assert "-dirty" not in (ROOT / "README.md").read_text()
    assert "dirty" not in (RESULTS / "bench_weighted.json").read_text()


def test_the_readme_draws_in_less_than_half_of_the_passes_as_it_says(capsys):
    """Its Python example, as it stands; the passes it prints are those of the comment behind it."""
    text = (ROOT / "README.md").read_text()
    example = text.split("```python\n")[1].split("```")[0]
    said = int(example.split("# ")[1].split(" ")[0])
    exec(example.replace('output.images[0].save("cone.png")\n', ""), {})
    assert int(capsys.readouterr().out) == said <= 128


def test_shipped_configs_name_no_folder_of_the_machine_that_trained_them():
    for path in (ROOT / "scenes" / "weights").rglob("*.json"):
        assert '"_name_or_path": "/' not in path.read_text(), path


def test_recorded_results_name_no_folder_of_the_machine_that_made_them():
    for path in (ROOT / "benchmarks" / "results").glob("*.json"):
        assert ': "/' not in path.read_text(), path


def test_every_configuration_that_a_page_names_is_shipped():
    named = set()
    for page in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "benchmarks" / "lab").glob("*.md")):
        named |= {(page, name) for name in re.findall(r"--config ([\w./-]+)", page.read_text())}
    assert len(named) >= 5
    for page, name in named:
        assert find_config(name).is_file(), page


def test_no_two_commands_of_a_page_write_to_one_folder():
    """Another run's folder would be refused. Without `--output`, `vargen generate` finds a free one."""
    assert 'vargen generate "a green cone on grass"\n' in (ROOT / "README.md").read_text()
    usual = {"evaluate": "evaluation", "tune": "tuning"}
    for page in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md")):
        blocks = re.findall(r"^```bash\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)
        lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
        writers: dict[str, set[str]] = {}
        for line in lines:
            command = re.search(r"(?:vargen|run\.sh) ((generate|evaluate|tune|train|bench)\b.*)", line)
            if command is None:
                continue
            written = re.search(r"--output (\S+)", command[1])
            if folder := written[1] if written else usual.get(command[2]):
                writers.setdefault(folder.rstrip("/"), set()).add(" ".join(command[1].split()))
        assert all(len(commands) == 1 for commands in writers.values()), (page, writers)

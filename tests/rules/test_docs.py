"""The documentation says what the program does: every command, every option, every example as printed."""

import ast
import re
from pathlib import Path
from textwrap import dedent

import pytest

from capplan.cli.commands import COMMANDS, FUNCTIONS
from capplan.readers.yaml_file import parse_yaml, schema_line
from docs.generators.console_blocks import blocks_of
from tests.files import written_to

ROOT = Path(__file__).resolve().parents[2]


def test_the_command_pages_are_current():
    from docs.generators.commands import documentation

    written = [ROOT / "docs" / "commands.md", *(ROOT / "docs" / "commands").glob("*.md")]
    shown = {page.relative_to(ROOT / "docs").as_posix(): page.read_text(encoding="utf-8") for page in written}
    assert shown == documentation(), "run: make docs"


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_is_one_thin_function(name):
    file, _, wanted = FUNCTIONS[name].partition(".")
    path = ROOT / "capplan" / "cli" / f"{file}.py"
    tree = ast.parse(path.read_text(encoding="utf-8"))
    (function,) = (node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == wanted)
    assert ast.get_docstring(function).splitlines()[0] == COMMANDS[name], "the summary in cli/commands.json"
    body = function.body[1:]
    assert body[-1].end_lineno - body[0].lineno < 30
    assert len(function.args.args + function.args.kwonlyargs) <= 10, (
        "options that belong together are a group"
    )
    operators = (ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod, ast.Pow)  # + joins lists
    assert [ast.unparse(n) for n in ast.walk(function) if isinstance(getattr(n, "op", None), operators)] == []


def test_the_architecture_names_every_room():
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    rooms = {p.name for p in (ROOT / "capplan").iterdir() if p.is_dir() and p.name[0] not in "_."}
    assert {room for room in rooms if f"`{room}`" not in text and f"`{room}/`" not in text} == set()


def test_links_of_the_documentation_lead_somewhere():
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *ROOT.glob("*/README.md")]
    for page in pages:
        for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            if not re.match(r"[a-z]+:", target):
                assert (page.parent / target).exists(), f"{page.relative_to(ROOT)}: {target}"


@pytest.mark.parametrize("path", sorted((ROOT / "scenarios").glob("*.yaml")), ids=lambda p: p.stem)
def test_every_shipped_scenario_is_read(path):
    from capplan.scenario.scenario import read_scenario

    assert path.read_text(encoding="utf-8").startswith("# yaml-language-server: $schema=")
    assert read_scenario(path).name == path.stem


@pytest.mark.parametrize("name", ["scenario", "workload"])
def test_a_file_that_capplan_writes_names_a_schema_of_the_site(name):
    """A file is committed: a path of one machine, or a file that is not there, helps no colleague."""
    site = re.search(r"^site_url: (\S+)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE)[1]
    assert schema_line(name) == f"# yaml-language-server: $schema={site}schema/{name}.json"
    assert (ROOT / "docs" / "schema" / f"{name}.json").is_file()


def test_every_recipe_names_its_tests_and_they_exist():
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    for recipe in re.split(r"^## ", text, flags=re.MULTILINE)[1:]:
        assert re.search(r"pytest .*tests/|make oracle", recipe), recipe.splitlines()[0]
    for name in re.findall(r"\btests/[\w/]+\.\w+", text):
        assert (ROOT / name).is_file(), name


def test_changes_are_listed_under_a_version():
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert "## [Unreleased]" in text or re.search(r"^## \[\d+\.\d+\.\d+\]", text, re.MULTILINE)


OF_ONE_SERVICE = {
    "name": "mine",
    "model": "qwen3-8b",
    "traffic": [{"name": "chat", "request_rate": "2 req/s", "input_tokens": 900, "output_tokens": 90}],
    "slo": {"ttft_p95": "1 s"},
    "fleet": {"hardware": ["l40s"]},
}
BLOCKS = [
    pytest.param(page.stem, dedent(block), id=f"{page.stem}-{number}")
    for page in sorted((ROOT / "docs" / "how-to").glob("*.md"))
    for number, block in enumerate(
        re.findall(r"```yaml\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    )
]


@pytest.mark.parametrize(("page", "block"), BLOCKS)
def test_the_keys_that_a_how_to_shows_are_those_of_a_scenario(page, block, tmp_path, host_file):
    """A block that is no file of its own has keys of a scenario, or of a class of its traffic."""
    from capplan.scenario.scenario import read_scenario

    if "github/workflows" in block:
        return
    keys = parse_yaml(block, page).value
    if "users" in keys:
        traffic = {key: value for key, value in OF_ONE_SERVICE["traffic"][0].items() if key != "request_rate"}
        keys = {"traffic": [traffic | keys]}
    if "calibration" in keys:
        (tmp_path / keys["calibration"]).write_text(host_file)
    if "images" in block:
        keys["model"] = "Qwen/Qwen3-VL-8B-Instruct"
    path = written_to(tmp_path / "mine.yaml", OF_ONE_SERVICE | keys)
    assert read_scenario(path).classes


@pytest.mark.parametrize(
    "page",
    [page for folder in ("how-to", "tutorials") for page in sorted((ROOT / "docs" / folder).glob("*.md"))],
    ids=lambda page: page.stem,
)
def test_a_page_begins_with_what_to_type(page):
    """A reader in a hurry finds the command, or the keys to write, in the first lines; `troubleshoot` begins with the exit codes."""
    if page.stem != "troubleshoot":
        before, block, _ = page.read_text(encoding="utf-8").partition("```")
        assert block
        assert len(re.sub(r"<!--.*?-->|\]\([^)]*\)", "", before).split()) <= 60


@pytest.mark.parametrize(
    "page",
    [page for folder in ("how-to", "tutorials") for page in sorted((ROOT / "docs" / folder).glob("*.md"))],
    ids=lambda page: page.stem,
)
def test_a_percentage_or_a_price_in_the_conclusion_of_an_output_stands_in_it(page):
    """The paragraph below a block that `make docs` writes; a list there is no conclusion of it."""
    text = page.read_text(encoding="utf-8")
    printed = "".join(blocks_of(text))
    for conclusion in re.findall(
        r"^<!-- output written.*?^```$\n\n([^-|#<].*?)\n\n", text, re.DOTALL | re.MULTILINE
    ):
        for figure in re.findall(r"\$[\d,.]*\d|\d[\d.]*%", conclusion):
            assert figure in printed, conclusion


def test_how_tos_that_plan_a_kind_of_service_show_its_keys():
    planned = {page.stem for page in (ROOT / "docs" / "how-to").glob("plan-*.md")}
    assert planned <= {block.values[0] for block in BLOCKS}


def test_the_picture_of_the_tutorial_on_traces_is_there(root):
    picture = root / "docs" / "pictures" / "support-chat-frontier.svg"
    assert '<title id="picture-0">support-chat; goodput</title>' in picture.read_text(encoding="utf-8")

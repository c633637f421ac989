"""Each command in README and docs is one that this version has, each setting exists, and each has a docstring."""

import re
from pathlib import Path
from typing import Any

import pytest
from documentation import PAGES, PROJECT, blocks, commands
from typer.main import get_command

import gnn_encoder
from docs.pages import documented, page_of_file, reference
from gnn_encoder.cli.app import app
from gnn_encoder.settings.pipeline import Settings
from gnn_encoder.settings.presets import load_settings, settable

SHELL = {
    path: "".join(block.text for block in blocks(path.read_text("utf-8")) if block.language == "bash") for path in PAGES
}
FIELDS = {step: set(field.annotation.model_fields) for step, field in Settings.model_fields.items() if field.annotation}
NOTEBOOK = "notebook.md"
"""It names settings of the day of a measurement."""
TARGETS = set(re.findall(r"^([\w-]+):", (PROJECT / "Makefile").read_text("utf-8"), re.MULTILINE))
EXTRAS = set(re.findall(r"^([\w-]+) = \[", (PROJECT / "pyproject.toml").read_text("utf-8"), re.MULTILINE))


def parse(words: list[str]) -> dict[str, Any]:
    """The options of a command, read by the parser of the command line; a wrong one is an error."""
    command: Any = get_command(app)
    while subcommands := getattr(command, "commands", None):
        command = subcommands[words[0]]
        words = words[1:]
    return dict(command.make_context(command.name, list(words)).params)


def check(words: list[str]) -> None:
    """Fails for a command of this project that does not exist."""
    if not words:
        return
    program, *rest = words
    if program == "gnn-encoder":
        options = parse(rest)
        changes = [change for change in options.get("overrides") or () if not change.startswith("shared.")]
        load_settings("quickstart", changes)
    elif program == "make":
        assert {word for word in rest if "=" not in word} <= TARGETS, words
    elif program == "python" and rest[0].endswith(".py"):
        assert (PROJECT / rest[0]).is_file(), words
    elif program == "pip":
        extras = set(",".join(re.findall(r"\[(.+?)\]", " ".join(rest))).split(",")) - {""}
        assert extras <= EXTRAS, words


@pytest.mark.parametrize("path", [path for path, text in SHELL.items() if text], ids=lambda path: path.name)
def test_each_command_exists_and_takes_these_options(path: Path) -> None:
    for words in commands(SHELL[path]):
        check(words)


def test_the_pages_have_their_commands() -> None:
    """The control: blocks are found, and wrong commands are refused."""
    assert sum(words[:1] == ["gnn-encoder"] for text in SHELL.values() for words in commands(text)) > 100
    assert list(commands("A=1 gnn-encoder run & make run # all\ncat <<END\ngnn-encoder no\nEND"))[:2] == [
        ["gnn-encoder", "run"], ["make", "run"],
    ]  # fmt: skip
    wrong = ("gnn-encoder rum", "gnn-encoder run --datset x", "gnn-encoder run --set train_gnn.epoch=1", "make rum",
             "pip install gnn-encoder[no]", "python benchmarks/no.py")  # fmt: skip
    for line in wrong:
        with pytest.raises(Exception, match=r"."):
            check(line.split())


@pytest.mark.parametrize("path", [path for path in PAGES if path.name != NOTEBOOK], ids=lambda path: path.name)
def test_each_setting_that_a_page_names_exists(path: Path) -> None:
    for step, name in re.findall(
        r"\b([a-z]\w+)\.([a-z]\w*)\b(?![./(])", re.sub(r"\]\(.*?\)", "", path.read_text("utf-8"))
    ):
        assert step not in FIELDS or name in FIELDS[step] | {"md", "py", "yaml"}, f"{path.name}: {step}.{name}"


@pytest.mark.parametrize("step", Settings.model_fields)
def test_each_setting_has_a_docstring(step: str) -> None:
    model: Any = Settings.model_fields[step].annotation
    assert model.__doc__
    assert not [name for name, text in documented(model).items() if not text]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_python_in_the_pages_compiles_and_imports_what_there_is(path: Path) -> None:
    for block in blocks(path.read_text("utf-8")):
        if block.language == "python":
            compile(block.text, path.name, "exec")
            for names in re.findall(r"^from gnn_encoder import (.+)$", block.text, re.MULTILINE):
                assert set(names.split(", ")) <= set(gnn_encoder.__all__)


def test_the_readme_is_short() -> None:
    assert len((PROJECT / "README.md").read_text("utf-8").splitlines()) <= 150


def test_the_reference_has_what_a_user_may_set_in_words() -> None:
    sections = reference()["reference/settings.md"].split("\n## ")[1:]
    assert [text.partition("\n")[0] for text in sections] == list(Settings.model_fields)
    for text in sections:
        step = text.partition("\n")[0]
        assert set(re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE)) == settable(step), step
    assert "Annotated" not in "".join(sections) and "Literal" not in "".join(sections)
    assert "| `nodes` | `1` | integer 1 to 1024 |" in sections[list(Settings.model_fields).index("train_gnn")]
    assert "[`data/twins.py`](../../src/gnn_encoder/data/twins.py)" in sections[0]


def test_mkdocs_takes_the_page_of_a_file_whose_name_begins_with_a_dot() -> None:
    assert page_of_file(".github/workflows/retrain.yml") == "source/github/workflows/retrain.yml.md"
    assert page_of_file("docs/pages.py") == "source/docs/pages.py.md"

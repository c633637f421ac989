"""Imports between rooms point down only, as CONTRIBUTING.md's table has it."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[1]
SOURCE = PROJECT / "src" / "gnn_encoder"


def rooms_in_order() -> list[str]:
    """The rooms of the table in CONTRIBUTING.md, from the bottom up."""
    page = (PROJECT / "CONTRIBUTING.md").read_text("utf-8")
    return re.findall(r"^\| `(\w+)(?:/|\.py)` \|", page, flags=re.MULTILINE)


def imports(module: Path, source: str) -> Iterator[str]:
    """The rooms that a module imports, those inside functions too."""
    for node in ast.walk(ast.parse(source)):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{module}: relative imports hide the room that they lead to"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        for name in names:
            package, _, rest = name.partition(".")
            if package == "gnn_encoder" and not rest.startswith("__"):
                yield rest.partition(".")[0]


def upward(module: Path, source: str, order: list[str]) -> list[str]:
    """What a module imports from rooms above its own."""
    room = module.relative_to(SOURCE).parts[0].removesuffix(".py")
    return [f"{room} -> {other}" for other in imports(module, source) if order.index(other) > order.index(room)]


MODULES = sorted([*SOURCE.glob("*/**/*.py"), SOURCE / "errors.py"])
"""`rglob` would not follow the link to the pipelines."""


@pytest.mark.parametrize("module", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_point_down(module: Path) -> None:
    assert not upward(module, module.read_text("utf-8"), rooms_in_order())


def test_an_upward_import_is_seen_wherever_it_stands() -> None:
    source = "def inside():\n    from gnn_encoder.steps import evaluate\n"
    assert upward(SOURCE / "models" / "gnn.py", source, rooms_in_order()) == ["models -> steps"]
    assert not upward(SOURCE / "cli" / "app.py", source, rooms_in_order())


def test_the_table_has_every_room() -> None:
    rooms = {path.parent.name for path in SOURCE.glob("*/__init__.py")} | {"errors"}
    assert set(rooms_in_order()) == rooms
    assert [path.name for path in SOURCE.glob("*.py")] in (["__init__.py", "errors.py"], ["errors.py", "__init__.py"])


def test_steps_do_not_import_steps() -> None:
    for module in (SOURCE / "steps").glob("*.py"):
        assert "steps" not in set(imports(module, module.read_text("utf-8"))), module.name

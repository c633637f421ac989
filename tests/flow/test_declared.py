"""What is parsed of a step is what its function has once it is imported."""

import inspect
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import get_args, get_origin, get_type_hints

import pytest

from gnn_encoder.artifacts import Draft
from gnn_encoder.flow import declared as parsing
from gnn_encoder.flow.declared import Declared, Input, declared, step_names
from gnn_encoder.settings.outcome import Fuse, Rank


def imported(name: str) -> Declared:
    """The declaration of a step as Python has it."""
    step = getattr(import_module(f"gnn_encoder.steps.{name}"), name)
    function, outputs = step.__wrapped__, inspect.getclosurevars(step).nonlocals["outputs"]
    hints, parameters = get_type_hints(function), inspect.signature(function).parameters
    assert {key for key, hint in hints.items() if hint is Draft} == set(outputs)
    inputs = {
        key: Input(
            list in map(get_origin, (hints[key], *get_args(hints[key]))),
            parameter.default is not inspect.Parameter.empty,
        )
        for key, parameter in parameters.items()
        if key not in ("context", "settings", *outputs)
    }
    purpose = (inspect.getdoc(function) or "").partition("\n")[0]
    return Declared(name, purpose, hints["settings"], inputs, outputs)


@pytest.mark.parametrize("name", step_names())
def test_a_steps_declaration_is_that_of_its_function(name: str) -> None:
    declaration, expected = declared(name), imported(name)
    assert declaration == expected
    assert list(declaration.inputs) == list(expected.inputs) and list(declaration.outputs) == list(expected.outputs)
    assert declaration.purpose and declaration.outputs


Changed = Callable[..., Declared]


@pytest.fixture
def changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Changed:
    """The declaration of `rank` with changes of its source."""
    source = (parsing.STEPS / "rank.py").read_text("utf-8")
    monkeypatch.setattr(parsing, "STEPS", tmp_path)

    def replaced(*changes: tuple[str, str]) -> Declared:
        text = source
        for old, new in changes:
            assert old in text
            text = text.replace(old, new)
        (tmp_path / "rank.py").write_text(text, "utf-8")
        return declared.__wrapped__("rank")

    return replaced


def test_a_changed_signature_is_seen(changed: Changed) -> None:
    """The control of the comparison above."""
    before = imported("rank")
    assert changed() == before
    one = Input(is_list=False, is_optional=False)
    assert before.inputs["dataset"] == one and before.inputs["bundle"] == Input(is_list=False, is_optional=True)
    for old, new, name, expected in (
        ("dataset: Path", "dataset: list[Path]", "dataset", Input(is_list=True, is_optional=False)),
        ("dataset: Path", "dataset: Path, more: Path", "more", one),
        ("    bundle: Path | None = None", "    bundle: list[Path] | None = None", "bundle", Input(True, True)),
    ):
        assert changed((old, new)).inputs == {**before.inputs, name: expected}
    assert before.settings is Rank and changed(("Rank", "Fuse")).settings is Fuse
    assert changed(('@step(run="run")', '@step(run="vectors")')).outputs == {"run": "vectors"}
    assert changed(('@step(run="run")', "@step(run=OF_INPUT)")).outputs == {"run": ""}


def test_a_name_that_is_no_step_is_a_key_error() -> None:
    with pytest.raises(KeyError, match="rang"):
        declared("rang")
    assert not any(name.startswith("_") for name in step_names())


def test_settings_are_found_where_the_step_imports_them(changed: Changed) -> None:
    imports = "from gnn_encoder.settings.outcome import Rank"
    of_module = changed(
        (imports, "from gnn_encoder.settings import outcome"), ("settings: Rank", "settings: outcome.Rank")
    )
    assert of_module.settings is Rank
    with pytest.raises(TypeError, match="no import of Rank"):
        changed((imports, ""))

"""Presets: YAML files that fill the settings, and overrides on top of them.

A preset has one section per step and a `shared` section, whose values become the defaults of every
section that has a setting of that name. How BM25 scores is told `bm25_retrieve`, and holds for
`encode_corpus` too. Whatever is wrong is one line that names the key.
"""

import json
import re
from collections.abc import Iterable, Mapping
from importlib import resources
from pathlib import Path
from typing import Any

import pydantic
import yaml

from gnn_encoder.errors import UserError, one_line
from gnn_encoder.settings import STEPS, STUDY, BuildGraph, Lexical, Settings, TrainGnn, step_settings
from gnn_encoder.settings.shared import known_names


class _Loader(yaml.SafeLoader):
    """YAML in which 3e-5 is a number, as everywhere else; YAML 1.1 wants 3.0e-5 and takes it for a text."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+$"), [*"-+0123456789"]
)


def read_yaml(text: str) -> Any:
    """What a YAML text says.

    Raises:
        yaml.YAMLError, ValueError: it is none (the latter from a date that does not exist).
    """
    loader = _Loader(text)
    try:
        return loader.get_single_data()
    finally:
        loader.dispose()


def read_yaml_file(path: Path) -> Any:
    """What a YAML file says; nothing is an empty mapping.

    Raises:
        UserError: it is not valid YAML.
    """
    try:
        return read_yaml(path.read_text(encoding="utf-8")) or {}
    except (yaml.YAMLError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)  # its own text quotes the line, where a secret may stand
        told = f"line {mark.line + 1}: {getattr(error, 'problem', '')}" if mark else one_line(error)
        raise UserError(f"{path} is not valid YAML: {told}") from None


def preset_folder() -> Path:
    """The presets of this project: in the wheel, or in the source tree it was installed from."""
    packaged = Path(str(resources.files("gnn_encoder"))) / "pipelines" / "presets"
    return packaged if packaged.is_dir() else Path(__file__).parents[3] / "pipelines" / "presets"


def preset_names() -> list[str]:
    """Names that `--preset` takes."""
    return sorted(path.stem for path in preset_folder().glob("*.yaml"))


def load_settings(preset: str, overrides: Iterable[str] = ()) -> Settings:
    """Settings of a preset (a name, or a YAML file of your own), with `step.key=value` overrides.

    Raises:
        UserError: unknown preset, section or key, wrong type, impossible value.
    """
    path = Path(preset) if preset.endswith((".yaml", ".yml")) else preset_folder() / f"{preset}.yaml"
    if not path.is_file():
        raise UserError(f"no preset {preset!r}: choose one of {', '.join(preset_names())}, or give a YAML file")
    return parse_settings(read_yaml_file(path), overrides, source=str(path))


def parse_settings(tree: Any, overrides: Iterable[str] = (), source: str = "settings") -> Settings:
    """Settings from a parsed preset: sections per step, `shared` spread over those that have the field."""
    if not isinstance(tree, Mapping) or not all(v is None or isinstance(v, Mapping) for v in tree.values()):
        raise UserError(f"{source}: expected one section of settings per step")
    sections = {name: dict(values or {}) for name, values in tree.items()}
    for override in overrides:
        key, equals, value = override.partition("=")
        step, dot, field = key.partition(".")
        if not (equals and dot and field):
            raise UserError(f"--set {override}: write it as step.setting=value, as in train_gnn.epochs=3")
        try:
            sections.setdefault(step, {})[field] = read_yaml(value)
        except (yaml.YAMLError, ValueError):  # the latter from a date that is none
            raise UserError(f"--set {override}: {value!r} is not a YAML value") from None
    shared = sections.pop("shared", {})
    _refuse_unknown("setting shared", shared, {f for step in STEPS for f in step_settings(step).model_fields}, source)
    _refuse_unknown("step", sections, {*STEPS, *STUDY}, source)
    encoding = sections.get("encode_corpus", {})
    for step in (*STEPS, *STUDY):
        fields = settable(step)
        _refuse_unknown(f"setting {step}", sections.get(step, {}), fields, source)
        spread = {name: value for name, value in shared.items() if name in fields}
        sections[step] = spread | sections.get(step, {})
    scored = {name: value for name, value in sections["bm25_retrieve"].items() if name in Lexical.model_fields}
    sections["encode_corpus"] |= scored | encoding
    try:
        return Settings.model_validate(sections)
    except pydantic.ValidationError as error:
        raise UserError(f"{source}: {_describe(error)}") from None


def settable(step: str) -> set[str]:
    """A step's own settings: a variant's graph and training are set where the main pipeline's are."""
    elsewhere = {*BuildGraph.model_fields, *TrainGnn.model_fields, "variant"} if step == "try_variant" else set()
    return set(step_settings(step).model_fields) - elsewhere


def _refuse_unknown(what: str, given: Mapping[str, Any], known: set[str], source: str) -> None:
    for name in given:
        if name not in known:
            label = f"{what}.{name}" if what.startswith("setting ") else f"{what} {name!r}"
            raise UserError(f"{source}: unknown {label}: {known_names(name, known)}")


def _describe(error: pydantic.ValidationError) -> str:
    first = error.errors()[0]
    message = first["msg"].removeprefix("Value error, ")
    if not first["loc"]:  # a rule over several settings, which its text names
        return message
    # A union's branches are pydantic's own words in the location; the user wrote only step.setting.
    key = ".".join(str(part) for part in first["loc"][:2])
    more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
    return f"{key} = {json.dumps(first['input'], default=str)}: {message}{more}"

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
from gnn_encoder.settings.graph import BuildGraph, TrainGnn
from gnn_encoder.settings.pipeline import PIPELINES, Settings, step_settings
from gnn_encoder.settings.shared import Lexical, known_names


class _Loader(yaml.SafeLoader):
    """YAML in which 3e-5 is a number, as everywhere else; YAML 1.1 wants 3.0e-5 and takes it for a text."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+$"), [*"-+0123456789"]
)
MOST_NODES, MOST_LEVELS = 10_000, 20
"""Largest YAML read: the largest preset has some 100 nodes on 3 levels. Nine aliases can stand for 10^9 nodes."""


def read_yaml(text: str) -> Any:
    """What a YAML text says.

    Raises:
        yaml.YAMLError: it is not valid YAML, or larger than `MOST_NODES` and `MOST_LEVELS` with its aliases expanded.
    """
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        waiting, nodes = [(node, 0)] if node else [], 0
        while waiting:
            part, level = waiting.pop()
            nodes += 1
            if nodes > MOST_NODES or level > MOST_LEVELS:
                raise yaml.YAMLError("it is too large, nested too deeply, or refers to itself")
            parts = [] if isinstance(part, yaml.ScalarNode) else part.value
            waiting += [(each, level + 1) for pair in parts for each in (pair if isinstance(pair, tuple) else (pair,))]
        return loader.construct_document(node) if node else None
    except yaml.YAMLError:
        raise
    except Exception as error:  # PyYAML's own: `!!timestamp x` is an AttributeError, `!!bool x` a KeyError
        raise yaml.YAMLError(f"it holds a value that cannot be read ({type(error).__name__})") from error


def read_yaml_file(path: Path) -> Any:
    """What a YAML file says; nothing is an empty mapping.

    Raises:
        UserError: it is not valid YAML.
    """
    try:
        return read_yaml(path.read_text(encoding="utf-8")) or {}
    except (yaml.YAMLError, UnicodeDecodeError) as error:
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
        except yaml.YAMLError:
            raise UserError(f"--set {key}: {_shown(value)} is not a YAML value") from None
    shared = sections.pop("shared", {})
    anywhere = {field for step in PIPELINES["train"] for field in step_settings(step).model_fields}
    _refuse_unknown("setting shared", shared, anywhere, source)
    _refuse_unknown("step", sections, set(Settings.model_fields), source)
    encoding = sections.get("encode_corpus", {})
    for step in Settings.model_fields:
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
    return f"{key} = {_shown(first['input'])}: {message}{more}"


def _shown(value: Any) -> str:
    """A value as JSON in at most 60 characters."""
    try:
        text = json.dumps(value, default=str)
    except (TypeError, ValueError):  # a key that JSON cannot have; an integer of more than 4,300 digits
        return f"a {type(value).__name__}"
    return text if len(text) <= 60 else f"{text[:57]}…"

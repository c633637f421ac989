"""Presets: YAML files that fill the settings, and overrides on top of them.

A preset has one section per step and a section `shared`. A value in `shared` is the default of every section that has
a setting of that name. `bm25_retrieve` sets the depths for `first_stage`. A mistake in a preset is an error of one line
that names the key.
"""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pydantic
import yaml

from gnn_encoder.errors import UserError, one_line
from gnn_encoder.settings.graph import BuildGraph, TrainGnn
from gnn_encoder.settings.outcome import IndexKind
from gnn_encoder.settings.pipeline import PIPELINES, Settings
from gnn_encoder.settings.services import addresses_in, allow_key
from gnn_encoder.settings.shared import Inference, LongPassages
from gnn_encoder.settings.values import described, known_names, shown


class _Loader(yaml.SafeLoader):
    """YAML in which 3e-5 is a number, as usual. In YAML 1.1, 3e-5 is a text and 3.0e-5 is a number."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+$"), [*"-+0123456789"]
)
MOST_NODES, MOST_LEVELS = 10_000, 20
"""Limits of a YAML text. The largest preset has about 100 nodes on 3 levels. Nine aliases can expand to 10^9 nodes."""


def read_yaml(text: str) -> Any:
    """Returns the value of a YAML text; a YAMLError if it is not valid or, with aliases expanded, above the limits."""
    try:
        loader = _Loader(text)
        root = loader.get_single_node()
        waiting, nodes = [(root, 0)] if root else [], 0
        while waiting:
            node, level = waiting.pop()
            nodes += 1
            if nodes > MOST_NODES or level > MOST_LEVELS:
                raise yaml.YAMLError("the text is too large, nested too deeply, or refers to itself")
            children = [] if isinstance(node, yaml.ScalarNode) else node.value  # of a mapping, pairs
            waiting += [(child, level + 1) for c in children for child in (c if isinstance(c, tuple) else (c,))]
        return loader.construct_document(root) if root else None
    except yaml.YAMLError:
        raise
    except Exception as error:  # in PyYAML `!!timestamp x` is an AttributeError, `!!bool x` a KeyError
        raise yaml.YAMLError(f"a value cannot be read ({type(error).__name__})") from error


class _Dumper(yaml.SafeDumper):
    """Puts a text between quotes that `_Loader` would read as a number, such as 3e-5."""


_Dumper.yaml_implicit_resolvers = _Loader.yaml_implicit_resolvers


def yaml_of(value: Any) -> str:
    """Returns a text that `read_yaml` reads as the value."""
    return str(yaml.dump(value, Dumper=_Dumper, allow_unicode=True, sort_keys=False))


def read_yaml_file(path: Path) -> Any:
    """Returns the value of a YAML file, {} for an empty file; raises UserError if the file is not valid YAML."""
    try:
        return read_yaml(path.read_text(encoding="utf-8")) or {}
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        mark = getattr(error, "problem_mark", None)  # PyYAML's text quotes the line, which may hold a secret
        problem = f"line {mark.line + 1}: {getattr(error, 'problem', '')}" if mark else one_line(error)
        raise UserError(f"{path} is not valid YAML: {problem}") from None


def pipelines_folder() -> Path:
    """Returns the package's folder `pipelines`; in a source tree it is a link."""
    return Path(__file__).parents[1] / "pipelines"


def preset_names() -> list[str]:
    """Returns the names that `--preset` accepts."""
    return sorted(path.stem for path in (pipelines_folder() / "presets").glob("*.yaml"))


def load_settings(preset: str, overrides: Iterable[str] = ()) -> Settings:
    """Returns the settings of a preset (a name, or your own YAML file), with `step.key=value` overrides.

    A key of a mapping is set alone, as `train_reranker.systems.colbert.epochs=3`; its name may have dots, as
    `train_reranker.systems.published:./my.model.precision=fp32`.

    Raises UserError for an unknown preset, section or key, and for a value that is impossible or of a wrong type.
    """
    is_path = preset.endswith((".yaml", ".yml"))
    path = Path(preset) if is_path else pipelines_folder() / "presets" / f"{preset}.yaml"
    if not path.is_file():
        raise UserError(f"no preset {preset!r}: choose one of {', '.join(preset_names())}, or give a YAML file")
    tree = read_yaml_file(path)
    settings = parse_settings(tree, overrides, source=str(path))
    allow_key(addresses_in(tree))
    return settings


def parse_settings(tree: Any, overrides: Iterable[str] = (), source: str = "settings") -> Settings:
    """Returns the settings in a parsed preset; values of `shared` go to each section that has the field.

    The tree may be a stored run's. The overrides are the user's: services that they name get the key.
    """
    if not isinstance(tree, Mapping) or not all(v is None or isinstance(v, Mapping) for v in tree.values()):
        raise UserError(f"{source}: expected one section of settings per step")
    sections = {name: dict(values or {}) for name, values in tree.items()}
    for override in overrides:
        key, equals, value = override.partition("=")
        step, dot, field = key.partition(".")
        if not (equals and dot and field):
            raise UserError(f"--set {override}: write it as step.setting=value, as in train_gnn.epochs=3")
        first, *inner = field.split(".", 1)
        *outer, last = [first, *(name for rest in inner for name in rest.rsplit(".", 1))]
        section = sections.setdefault(step, {})
        for name in outer:  # a section's mapping, such as `train_reranker.systems`
            section[name] = dict(present) if isinstance(present := section.get(name), Mapping) else {}
            section = section[name]
        try:
            section[last] = read_yaml(value)
        except yaml.YAMLError:
            raise UserError(f"--set {key}: {shown(value)} is not a YAML value") from None
        allow_key(addresses_in(section[last]))
    shared = sections.pop("shared", {})
    anywhere = {field for step in PIPELINES["train"] for field in settable(step)}
    _refuse_unknown(source, "setting shared.{}", shared, anywhere)
    _refuse_unknown(source, "step {!r}", sections, Settings.model_fields)
    first_stage = sections.get("first_stage", {})
    for step in Settings.model_fields:
        section, fields = sections.get(step, {}), settable(step)
        _refuse_unknown(source, f"setting {step}.{{}}", section, fields)
        taken = fields - NOT_SHARED.get(step, set())
        sections[step] = {name: value for name, value in shared.items() if name in taken} | section
    depths = {name: value for name, value in sections["bm25_retrieve"].items() if name in settable("first_stage")}
    sections["first_stage"] |= depths | first_stage
    try:
        return Settings.model_validate(sections)
    except pydantic.ValidationError as error:
        raise UserError(f"{source}: {described(error)}") from None


ELSEWHERE: dict[str, set[str]] = {
    "ingest": {"chosen_on_dev", "needs"},
    "dense_retrieve": {*LongPassages.model_fields},
    "encode": {"previous"},
    "encode_with_labels": {"kind", "system", "measure", "bm25", *IndexKind.model_fields},
    "make_parts": {*IndexKind.model_fields},
    "fuse_parts": {"kind", "system", "bm25", *Inference.model_fields, *IndexKind.model_fields},
    "choose_graph": {"tried", "measure"},
    "recommend": {"measure", "bm25"},
    "try_variant": {*BuildGraph.model_fields, *TrainGnn.model_fields, "variant", "labels"},
    "generate_queries": {"negative_depth"},
    "select_training_set": {"negative_depth"},
    "train_reranker": {"kind", "lite"},
    "evaluate_passages": {"system", "measure"},
    "propagate_sections": {"system", "measure", "depth"},
    "weigh_reranker": {"measure", "depth"},
    "compare_rerankers": {"study", "depth"},
}
"""Step → settings that a pipeline derives from other sections, or from its systems or study."""
NOT_SHARED = {"write_queries": {"generator"}}
"""Step → settings with the name of a shared one that do not take its value: with a generator the labels are written."""
NUMBERS = {"shard"}
"""Settings that the pipeline gives to each task that shares a step's work."""


def settable(step: str) -> set[str]:
    """Names of the settings in a step's section. A variant's graph and training are set in the main steps' sections."""
    return set(type(Settings.model_fields[step].default).model_fields) - ELSEWHERE.get(step, set()) - NUMBERS


def changed_settings(settings: Settings) -> dict[str, dict[str, Any]]:
    """Returns {step: {setting: value}} of what a user may set and differs from the default, as JSON; not the data.

    A depth of `first_stage` is there, too, if it is not that of `bm25_retrieve`, which it would be without an entry.
    """
    values, defaults = (of.model_dump(mode="json") for of in (settings, Settings()))
    changed = {
        step: {name: value for name, value in of.items() if name in settable(step) and value != defaults[step][name]}
        for step, of in values.items()
    }
    for name in ("dataset", "forgotten"):  # of the root
        changed["ingest"].pop(name, None)
    for name in changed["bm25_retrieve"].keys() & settable("first_stage"):
        if (depth := values["first_stage"][name]) != values["bm25_retrieve"][name]:
            changed["first_stage"][name] = depth
    return {step: of for step, of in changed.items() if of}


def _refuse_unknown(source: str, kind: str, names: Iterable[str], known: Iterable[str]) -> None:
    for name in names:
        if name not in known:
            raise UserError(f"{source}: unknown {kind.format(name)}: {known_names(name, known)}")

"""The variants of `gnn-encoder ablate`, as changes to a preset: the paper's (Table 3, Fig. 3, Fig. 4) and more."""

from collections.abc import Iterable
from typing import Any

import yaml

from gnn_encoder.errors import UserError
from gnn_encoder.settings.graph import GraphShape, TrainGnn, TryVariant
from gnn_encoder.settings.pipeline import Settings
from gnn_encoder.settings.presets import parse_settings, read_yaml, settable
from gnn_encoder.settings.systems import label_systems
from gnn_encoder.settings.values import LARGEST

FULL, BEFORE = "full", "dual encoder"
"""The two reference variants: the preset without changes, and M_de without the GNN."""

STUDIES: dict[str, dict[str, dict[str, Any]]] = {
    "parts": {
        "without GNN": {"train_gnn.layers": 0},
        "without edges": {"build_graph.edges": "none"},
        "without MGT": {"train_gnn.mask": "drop_positives"},
        "without MGT, no edge dropped": {"train_gnn.mask": "none"},
        "without edge features": {"build_graph.edge_features": "none"},
        "one layer": {"train_gnn.layers": 1},
        "two layers": {"train_gnn.layers": 2},
        "cross-encoder self-loops": {"build_graph.self_loop_features": "cross_encoder"},
        "refreshed passage cache": {"train_gnn.cache_refreshes": 4},
    },
    "gate": {
        f"without filter gate, α = {alpha}": {"train_gnn.gate": "fixed", "train_gnn.gate_alpha": alpha}
        for alpha in (0.1, 0.25, 0.5, 0.75, 1.0)
    },
    "neighbors": {
        f"k = {k}": {"build_graph.edges": "retrieved", "build_graph.neighbors": k} for k in (5, 10, 15, 20, 25, 35, 50)
    },
    "mask": {
        f"β = {fraction:.0%}": {"train_gnn.mask": "sample", "train_gnn.mask_fraction": fraction}
        for fraction in (0.01, 0.02, 0.05, 0.1, 0.2, 0.4, 0.8)
    },
    "edges": {
        "retrieved edges alone": {"build_graph.edges": "retrieved"},
        "labelled edges too": {"build_graph.edges": "retrieved+labelled"},
        "labelled edges alone": {"build_graph.edges": "labelled"},
        "h'_p as eq. 10 has it": {"train_gnn.normalize_passages": "no"},
        "h'_p at unit length": {"train_gnn.normalize_passages": "yes"},
    },
    "labels": {system.lower(): {"try_variant.mode": kind} for kind, system in label_systems().items()},
}
"""Study → variant → changed settings. `parts` and `gate` are Table 3 and more, `neighbors` is Fig. 3, `mask` is Fig. 4,
`edges` are choices of this project, and `labels` are what labels give without training."""

SHARED = dict.fromkeys(GraphShape.model_fields, "build_graph") | dict.fromkeys(TrainGnn.model_fields, "train_gnn")
"""Setting of a variant → the step whose section has the setting."""
OWN = settable("try_variant")
"""Settings that only `try_variant` has."""


def variants(settings: Settings, studies: Iterable[str], user_variants: Iterable[str]) -> list[TryVariant]:
    """Returns the full model, M_de, and every variant of the studies and of the user, without repetition.

    A user's variant has the form `NAME: step.setting=value step.setting=value`.
    """
    if (mode := settings.try_variant.mode) in label_systems():
        raise UserError(f"try_variant.mode = {mode}: choose frozen or joint; the study labels has this use of labels")
    wanted: dict[str, dict[str, Any]] = {FULL: {}, BEFORE: {"try_variant.mode": "untrained"}}
    for study in studies:
        if study not in STUDIES:
            raise UserError(f"no study {study!r}: choose of {', '.join(STUDIES)}")
        wanted |= STUDIES[study]
    wanted |= dict(_parsed(text) for text in user_variants)
    distinct: dict[str, TryVariant] = {}
    for name, changes in wanted.items():
        variant = _variant(settings, name, changes)
        # A sweep may repeat the preset's value: one run is enough for both.
        distinct.setdefault(variant.model_copy(update={"variant": ""}).model_dump_json(), variant)
    return list(distinct.values())


def with_seeds(variant: TryVariant, seeds: int) -> list[TryVariant]:
    """Returns the variant with consecutive seeds, from its own seed; one seed if it trains nothing."""
    count = seeds if variant.trains else 1
    return [variant.model_copy(update={"seed": (variant.seed + i) % (LARGEST + 1)}) for i in range(count)]


def _parsed(text: str) -> tuple[str, dict[str, Any]]:
    name, colon, rest = text.partition(":")
    changes = dict(part.partition("=")[::2] for part in rest.split())
    if not (colon and name.strip() and changes and all(changes.values())):
        raise UserError(f"--variant {text!r}: write it as 'NAME: step.setting=value …'")
    try:
        return name.strip(), {key: read_yaml(value) for key, value in changes.items()}
    except yaml.YAMLError:
        raise UserError(f"--variant {text!r}: a value in it is not YAML") from None


def _variant(settings: Settings, name: str, changes: dict[str, Any]) -> TryVariant:
    sections = {*SHARED.values(), "try_variant"}
    tree = {step: getattr(settings, step).model_dump(include=settable(step)) for step in sections}
    for key, value in changes.items():
        step, _, setting = key.partition(".")
        if step not in tree:
            raise UserError(
                f"variant {name!r}: {key} is none of {', '.join(sorted(tree))}: variants share all earlier steps"
            )
        tree[step][setting] = value
    whole = parse_settings(tree, source=f"variant {name!r}")
    shared = {setting: getattr(getattr(whole, step), setting) for setting, step in SHARED.items()}
    if whole.try_variant.mode != "joint" or shared["layers"] < 2:
        shared["cache_refreshes"] = 0  # either the encoders are frozen, so vectors stay current, or eq. 6 is left out
    labels, mode = None, whole.try_variant.mode
    if mode in label_systems():
        changes = {"kind": mode, "kinds": (mode,), "measure": settings.evaluate.measures[0]}
        labels = settings.encode_with_labels.model_copy(update=changes)
    shared["nodes"] = 1  # a variant is one pod
    return TryVariant(**shared, **whole.try_variant.model_dump(include=OWN), variant=name, labels=labels)

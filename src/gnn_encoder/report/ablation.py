"""Compares variants of one model: means over seeds, and the significance of differences from the full model."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from rich.console import Group
from rich.table import Table

from gnn_encoder.artifacts import Figures
from gnn_encoder.errors import UserError
from gnn_encoder.evaluation.measures import NAMES
from gnn_encoder.evaluation.results import block, of_split
from gnn_encoder.evaluation.significance import SIGNIFICANT
from gnn_encoder.report.table import figures_table, is_significant, strata_table
from gnn_encoder.settings.graph import CompareVariants, TryVariant
from gnn_encoder.settings.measures import COLD, WARM
from gnn_encoder.settings.studies import FULL

SHOWN = ("RR@10", "nDCG@10", "R@5", "R@20", "R@100")
"""Measures of the terminal's table; more do not fit into 80 columns."""
SWEEPS = {
    "neighbors": ("k, passages per query", frozenset({"neighbors", "edges"})),
    "mask_fraction": ("β, share of queries masked in a round", frozenset({"mask_fraction", "mask"})),
    "gate_alpha": ("α of a fixed gate", frozenset({"gate_alpha", "gate"})),
}
"""Setting → the label of its axis, and the settings that may differ from the full model's along the axis."""
LEAST = 3
"""Smallest number of points of a curve."""


@dataclass(frozen=True)
class Variant:
    """A variant: its settings, {split: values [seeds, queries, measures]}, and {split: is warm, bool [queries]}."""

    settings: TryVariant
    values: dict[str, np.ndarray]
    warm: dict[str, np.ndarray]

    def stratum(self, name: str) -> "Variant":
        """Returns the values of the warm or of the cold queries; splits without such a query are left out."""
        inside = {split: rows if name == WARM else ~rows for split, rows in self.warm.items()}
        kept = {split: values[:, inside[split]] for split, values in self.values.items() if inside[split].any()}
        return Variant(self.settings, kept, self.warm)


def gathered(figures: Sequence[Figures]) -> dict[str, Variant]:
    """Returns the variants by name, in order of first appearance. All `figures` must be of the same queries."""
    by_name: dict[str, list[tuple[TryVariant, dict[str, np.ndarray]]]] = {}
    warm: dict[str, np.ndarray] = {}
    for trial in figures:
        table = trial.per_query
        if table.column("query") != figures[0].per_query.column("query"):
            raise UserError("the variants were measured on different queries: run all variants on one dataset")
        splits = np.asarray(table.column("split"))
        values = np.stack([np.asarray(table.column(name)) for name in NAMES], axis=1)
        settings = TryVariant.model_validate(trial.manifest.settings)
        by_split = {str(split): values[splits == split] for split in dict.fromkeys(splits.tolist())}
        warm = {split: np.asarray(table.column(WARM))[splits == split] for split in by_split}
        by_name.setdefault(settings.variant, []).append((settings, by_split))
    return {
        name: Variant(
            seeds[0][0], {split: np.stack([values[split] for _, values in seeds]) for split in seeds[0][1]}, warm
        )
        for name, seeds in by_name.items()
    }


def compared(variants: dict[str, Variant], settings: CompareVariants) -> dict[str, Any]:
    """Returns the facts of a `block` against the full model, over each query's means over seeds; and `deviations`.

    `deviations`, {split: {variant: {measure: value}}}, are the standard deviations of the seeds' means, for variants
    with several seeds.
    """
    splits = list(variants[FULL].values)
    per_query = {
        split: {name: variant.values[split].mean(axis=0) for name, variant in variants.items()} for split in splits
    }
    deviations = {
        split: {
            name: dict(zip(NAMES, variant.values[split].mean(axis=1).std(axis=0, ddof=1).tolist(), strict=True))
            for name, variant in variants.items()
            if len(variant.values[split]) > 1
        }
        for split in splits
    }
    return {**block(per_query, NAMES, baseline=FULL, **settings.model_dump()), "deviations": deviations}


def compared_strata(variants: dict[str, Variant], settings: CompareVariants) -> dict[str, Any]:
    """Returns {`warm`, `cold`: `compared` over the queries of the stratum}; a stratum without a query is left out."""
    strata = {name: {key: variant.stratum(name) for key, variant in variants.items()} for name in (WARM, COLD)}
    return {name: compared(parts, settings) for name, parts in strata.items() if parts[FULL].values}


def sweep(variants: dict[str, Variant], setting: str) -> list[tuple[float, str]]:
    """Returns (value, variant) of the variants that differ from the full model in one setting only, ascending.

    The full model is included if its other settings are those of the curve.
    """
    _, free = SWEEPS[setting]
    model = variants[FULL].settings
    ignored = {"variant", "seed", *free}
    fixed = model.model_dump(exclude=ignored)
    on_curve = {name: v.settings for name, v in variants.items() if v.settings.model_dump(exclude=ignored) == fixed}
    companions = free - {setting}
    kinds = [tuple(getattr(s, other) for other in companions) for n, s in on_curve.items() if n != FULL]
    if kinds:
        kind = max(set(kinds), key=kinds.count)
        on_curve = {n: s for n, s in on_curve.items() if tuple(getattr(s, other) for other in companions) == kind}
    return sorted((float(getattr(s, setting)), name) for name, s in on_curve.items())


def ablation_tables(metrics: dict[str, Any]) -> Group:
    """Returns `ablation_table`, and the table of the warm and cold queries of the headline split."""
    return Group(ablation_table(metrics), "", strata_table(metrics))


def ablation_table(metrics: dict[str, Any]) -> Table:
    """Returns the table variants × measures, with a block per split; ± is the standard deviation over seeds."""
    caption = f"* differs from {metrics['baseline']}: p < {SIGNIFICANT}, paired randomization test, Holm's correction"
    table = figures_table(SHOWN, caption)
    for split, variants in metrics["results"].items():
        table.add_row(f"[dim]{of_split(metrics, split)} ({metrics['queries'][split]:,})[/dim]")
        for name in variants:
            table.add_row(name, *(_cell(metrics, split, name, measure) for measure in SHOWN))
        table.add_section()
    return table


def _cell(metrics: dict[str, Any], split: str, variant: str, measure: str) -> str:
    deviation = metrics["deviations"][split].get(variant, {}).get(measure)
    spread = "" if deviation is None else f"±{deviation:.3f}".replace("±0.", "±.")
    mark = "*" if is_significant(metrics, split, variant, measure) else " "
    return f"{metrics['results'][split][variant][measure]:.3f}{spread}{mark}"

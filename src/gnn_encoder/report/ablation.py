"""Compares variants of one model: means over seeds, and the significance of differences from the full model."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from rich.table import Table

from gnn_encoder.artifacts import Figures
from gnn_encoder.errors import UserError
from gnn_encoder.evaluation.measures import NAMES
from gnn_encoder.evaluation.results import corrected, means, p_values
from gnn_encoder.evaluation.significance import SIGNIFICANT
from gnn_encoder.report.table import figures_table, is_significant
from gnn_encoder.settings.graph import TryVariant

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
    """A variant: its settings, and {split: values [seeds, queries, measures]}."""

    settings: TryVariant
    values: dict[str, np.ndarray]


def gathered(figures: Sequence[Figures]) -> dict[str, Variant]:
    """Returns the variants by name, in order of first appearance. All `figures` must be of the same queries."""
    by_name: dict[str, list[tuple[TryVariant, dict[str, np.ndarray]]]] = {}
    for each in figures:
        table = each.per_query
        if table.column("query") != figures[0].per_query.column("query"):
            raise UserError("the variants were measured on different queries: run all variants on one dataset")
        splits = np.asarray(table.column("split"))
        values = np.stack([np.asarray(table.column(name)) for name in NAMES], axis=1)
        settings = TryVariant.model_validate(each.manifest.settings)
        by_split = {str(split): values[splits == split] for split in dict.fromkeys(splits.tolist())}
        by_name.setdefault(settings.variant, []).append((settings, by_split))
    return {
        name: Variant(seeds[0][0], {split: np.stack([values[split] for _, values in seeds]) for split in seeds[0][1]})
        for name, seeds in by_name.items()
    }


def compared(variants: dict[str, Variant], full: str, permutations: int, seed: int) -> dict[str, Any]:
    """Returns `results`, `deviations`, `p_values` and `p_holm`, each {split: {variant: {measure: value}}}.

    `results` are means over seeds and queries. `deviations` are standard deviations of the seeds' means, for variants
    with several seeds. `p_values` compare each query's mean over seeds with the full model's. `p_holm` are the
    p-values corrected for the number of variants.
    """
    statistics: dict[str, dict[str, Any]] = {"results": {}, "deviations": {}, "p_values": {}, "p_holm": {}}
    for split in variants[full].values:
        per_query = {name: variant.values[split].mean(axis=0) for name, variant in variants.items()}
        of_seeds = {name: variant.values[split].mean(axis=1) for name, variant in variants.items()}
        statistics["results"][split] = means(per_query)
        statistics["deviations"][split] = {
            name: dict(zip(NAMES, seed_means.std(axis=0, ddof=1).tolist(), strict=True))
            for name, seed_means in of_seeds.items()
            if len(seed_means) > 1
        }
        statistics["p_values"][split] = p = p_values(per_query, permutations, seed, baseline=full)
        statistics["p_holm"][split] = corrected(p)
    return statistics


def sweep(variants: dict[str, Variant], full: str, setting: str) -> list[tuple[float, str]]:
    """Returns (value, variant) of the variants that differ from the full model in one setting only, ascending.

    The full model is included if its other settings are those of the curve.
    """
    _, free = SWEEPS[setting]
    model = variants[full].settings
    ignored = {"variant", "seed", *free}
    fixed = model.model_dump(exclude=ignored)
    on_curve = {name: v.settings for name, v in variants.items() if v.settings.model_dump(exclude=ignored) == fixed}
    companions = free - {setting}
    kinds = [tuple(getattr(s, other) for other in companions) for n, s in on_curve.items() if n != full]
    if kinds:
        kind = max(set(kinds), key=kinds.count)
        on_curve = {n: s for n, s in on_curve.items() if tuple(getattr(s, other) for other in companions) == kind}
    return sorted((float(getattr(s, setting)), name) for name, s in on_curve.items())


def ablation_table(metrics: dict[str, Any]) -> Table:
    """Returns the table variants × measures, with a block per split; ± is the standard deviation over seeds."""
    caption = f"* differs from {metrics['full']}: p < {SIGNIFICANT}, paired randomization test, Holm's correction"
    table = figures_table(SHOWN, caption)
    for split, variants in metrics["results"].items():
        table.add_row(f"[dim]{split} ({metrics['queries'][split]:,})[/dim]")
        for name in variants:
            table.add_row(name, *(_cell(metrics, split, name, measure) for measure in SHOWN))
        table.add_section()
    return table


def _cell(metrics: dict[str, Any], split: str, variant: str, measure: str) -> str:
    deviation = metrics["deviations"][split].get(variant, {}).get(measure)
    spread = "" if deviation is None else f"±{deviation:.3f}".replace("±0.", "±.")
    mark = "*" if is_significant(metrics, split, variant, measure) else " "
    return f"{metrics['results'][split][variant][measure]:.3f}{spread}{mark}"

"""The table of a run as a DataFrame, which a notebook displays with the report's first picture."""

from html import escape
from typing import Any, ClassVar

import pandas as pd

from gnn_encoder.artifacts import Report
from gnn_encoder.evaluation.measures import mean_name
from gnn_encoder.report import systems
from gnn_encoder.report.page import render_picture, verdict

FORMS = {"p": "{:.2g}", "ms": "{:.1f}", "MB": "{:.1f}"}
"""How a column is displayed; the others are with three decimals."""


class Comparison(pd.DataFrame):
    """The systems of a run, the best first; of systems with equal figures one stands for all.

    Columns: the means of all measures over the test queries; `low` and `high`, the 95 % interval of the first; its
    corrected `p` against the baseline, which has none; its mean on dev; `ms` a question and `MB` of the bundle, where
    they were measured; `recommended`; and the names of the systems that have the `same figures`.
    """

    _metadata: ClassVar[list[str]] = ["metrics"]
    metrics: dict[str, Any]
    """All figures of the report."""

    @classmethod
    def of(cls, report: Report) -> "Comparison":
        """Returns the table of a report."""
        metrics = report.metrics
        split, (first, *others), equal = metrics["headline_split"], metrics["measures"], systems.distinct(metrics)
        names, of_system, on_dev = systems.best_first(metrics), metrics["results"][split], metrics["results"].get("dev")
        rows = []
        for name, drawn in zip(names, systems.rows(metrics, split, metrics, names), strict=True):
            row = {mean_name(first): drawn["mean"], "low": drawn["low"], "high": drawn["high"]}
            row["p"] = metrics["p_holm"].get(split, {}).get(name, {}).get(first)
            if split != "dev" and on_dev:
                row[f"{mean_name(first)} dev"] = on_dev.get(name, {}).get(first)
            row |= {mean_name(measure): of_system[name][measure] for measure in others}
            row |= {"ms": drawn.get("ms"), "MB": drawn.get("megabytes"), "recommended": drawn["recommended"]}
            rows.append({**row, "same figures": ", ".join(equal[name])})
        table = cls(rows, index=pd.Index(names, name="system"))
        table.metrics = metrics
        return table

    @property
    def _constructor(self) -> type[pd.DataFrame]:
        return pd.DataFrame  # a part of the table has no picture

    def _repr_html_(self) -> str:
        """Returns the table, and in a frame of its own the picture, which names equal systems and needs no network."""
        chosen = systems.chosen(self.metrics)
        shown = self.drop(columns=["recommended", "same figures"], errors="ignore").dropna(axis=1, how="all")
        shown = shown.rename(index={chosen: f"{chosen} ★"}).rename_axis(None)
        forms = {name: form.format for name, form in FORMS.items() if name in shown}
        table = shown.to_html(float_format="{:.3f}".format, formatters=forms, na_rep="", border=0)
        height = 230 + 17 * len(self)
        frame = f'style="width: 100%; max-width: 60rem; height: {height}px; border: 0" title="The systems, drawn"'
        sentence = verdict(self.metrics)["sentence"]
        return (
            f'<p>{escape(sentence)}</p>{table}<iframe {frame} srcdoc="{escape(render_picture(self.metrics))}"></iframe>'
        )

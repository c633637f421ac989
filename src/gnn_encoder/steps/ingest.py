"""Converts any dataset to the canonical form, or refuses the dataset and lists all its problems."""

import json
import sys
from dataclasses import asdict

from gnn_encoder.artifacts import Draft
from gnn_encoder.data import canonicalize, open_source
from gnn_encoder.data.validation import Kind
from gnn_encoder.engines.step import Context, Metrics, step
from gnn_encoder.errors import UserError
from gnn_encoder.settings.foundation import Ingest


@step(dataset="dataset")
def ingest(context: Context, settings: Ingest, dataset: Draft) -> Metrics:
    """Reads, checks and writes the dataset; counts go to the log, the metrics and `data_profile.json`.

    Raises:
        UserError: the data set is not usable, or a later step chooses by dev queries and none has a relevant passage.
    """
    source = open_source(settings)
    progress = context.progress("reading passages", source.work, source.unit)
    report = canonicalize(source, settings, draft=dataset, advance=progress.advance)
    if settings.chosen_on_dev and settings.needs == "labels" and not report.findable["dev"]:
        raise UserError(
            f"{source.name} has no dev query with a relevant passage in the corpus, and "
            f"{', '.join(settings.chosen_on_dev)} = best chooses by dev queries: set it to last, or add such queries"
        )
    for problem in report.problems:  # labels of dev and test for unknown passages count as missed
        done = "found" if problem.kind is Kind.UNKNOWN_PASSAGE else "left out"
        print(f"ingest: {done} {problem}", file=sys.stderr)
    for remark in report.remarks:
        print(f"ingest: {remark}", file=sys.stderr)
    context.log.text(json.dumps(asdict(report), indent=1, ensure_ascii=False), "data_profile.json")
    return {**report.metrics(), "headline": report.headline}

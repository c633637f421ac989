"""Options that several commands share."""

from pathlib import Path
from typing import Annotated

import typer

from gnn_encoder.errors import UserError, expanded

VARIABLE = "GNN_ENCODER_ROOT"
"""Environment variable with the root, used if `--root` is not given."""
DEFAULT_ROOT = Path("gnn-encoder-runs")
HOST = "KF_PIPELINES_ENDPOINT"


def given_root(text: str | Path) -> Path:
    """Returns the folder of `--root`, with `~` expanded; raises UserError for an empty name or invalid UTF-8."""
    if not str(text):
        raise UserError("--root is empty: name a folder, or leave the option out")
    folder = expanded(text)
    try:
        str(folder.absolute()).encode()
    except UnicodeEncodeError:
        raise UserError(f"--root {str(folder.absolute())!a} is not UTF-8: name a folder whose path is UTF-8") from None
    return folder


PRESET = typer.Option(help="Name of a preset (`gnn-encoder presets`), or your own YAML file.")
Preset = Annotated[str, PRESET]
Data = Annotated[str | None, typer.Option("--dataset", help="Path or URI of the data; by default that of the preset.")]
Overrides = Annotated[
    list[str] | None, typer.Option("--set", metavar="STEP.KEY=VALUE", help="Change a setting; repeatable.")
]
Root = Annotated[
    Path,
    typer.Option(
        parser=given_root,
        metavar="FOLDER",
        envvar=VARIABLE,
        show_envvar=False,
        help=f"Folder of runs, checkpoints and the MLflow store [${VARIABLE}]; $MLFLOW_TRACKING_URI: another store.",
    ),
]
Host = Annotated[str, typer.Option(envvar=HOST, show_envvar=False, help=f"Address of Kubeflow Pipelines [${HOST}].")]
ClusterFile = Annotated[
    Path | None,
    typer.Option("--cluster", metavar="FILE", help="Cluster file: artifact store, images, needs of the steps."),
]
Encoders = Annotated[
    list[str] | None,
    typer.Option(
        "--encoder",
        help="Encoder of a run without a preset: a published one's name, a folder, or the address of an embeddings "
        "service, http://…/v1#MODEL [minilm]. Repeatable: the best of several on dev is chosen.",
    ),
]
Vectors = Annotated[
    Path | None, typer.Option(help="Folder with vectors of corpus and queries that any model has made.")
]
Budget = Annotated[
    str | None, typer.Option(help="Time after which a run without a preset ends, such as 5m or 2h [30m].")
]
Until = Annotated[
    str | None, typer.Option(help="The last rung: words, as-it-is, labels (what trains nothing), training, re-ranking.")
]
RunDataset = Annotated[Path | None, typer.Option(help="Dataset of a run [ROOT/latest/dataset].")]
Split = Annotated[str, typer.Option(help="Split of the dataset.")]
Log = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Log of searches whose clicks become labels: query, passage, count or clicks and views; position and "
        "date, if there are any. CSV or JSON lines.",
    ),
]
Verbose = Annotated[bool, typer.Option("--verbose", help="Print a line when a step starts, goes on and ends.")]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Only show the steps: what is cached, and the time of the others if known.")
]
Mermaid = Annotated[bool, typer.Option("--mermaid", help="Only print the graph of the steps as a Mermaid flowchart.")]

Systems = Annotated[
    str | None,
    typer.Option(
        metavar="SYSTEM,…",
        help="Re-rankers, by default the preset's compare_rerankers.systems; the last is the headline's. "
        "published:FOLDER is a published re-ranker as it is, trained:FOLDER the same, trained further, and "
        "colbert:FOLDER published late interaction. The table has their order within each group: on labelled triples, "
        "qsf, on generated queries (ss_bert_t, ss_bert_h), ss_bert_d, distilled ones, in documents (mim, lim, mix_im).",
    ),
]
FirstStage = Annotated[
    str | None,
    typer.Option(
        metavar="SOURCE",
        help="Hits to re-rank: bm25 (the default), pool (given with the data), a TREC run file, or a finished run, "
        "such as ROOT/latest; run files and bundles also by s3:// address.",
    ),
]


def named_systems(text: str | None, preset: str, overrides: list[str]) -> list[str]:
    """Returns the systems in the option's text, without a text the preset's; raises UserError for an unknown system."""
    from gnn_encoder.settings.presets import load_settings
    from gnn_encoder.settings.reranking_systems import system_names

    if text is None:
        return system_names(load_settings(preset, overrides).compare_rerankers.systems)
    return system_names([name.strip() for name in text.split(",") if name.strip()])


def checked_host(host: str) -> str:
    """Returns the address; raises UserError if it is empty."""
    if not host:
        raise UserError(f"no server: give --host, or set {HOST}")
    return host

"""The command `dashboard`: MLflow's user interface."""

import os
import sys
from typing import Annotated

import typer

from gnn_encoder.cli.options import DEFAULT_ROOT, Root
from gnn_encoder.errors import without_password


def dashboard(
    root: Root = DEFAULT_ROOT, port: Annotated[int, typer.Option(min=1, max=65535, help="Port on this machine.")] = 5000
) -> None:
    """Open MLflow's user interface on this root's runs."""
    from gnn_encoder.tracking.mlflow_runs import find_experiment, reaching
    from gnn_encoder.tracking.pipeline_run import existing_store

    uri = existing_store(root)
    if uri.startswith("http"):
        typer.echo(f"The runs are at {without_password(uri)}")
        return
    with reaching(uri) as client:
        experiment = find_experiment(client)
    runs = f"#/experiments/{experiment.experiment_id}/runs?workflowType=machine_learning" if experiment else ""
    typer.echo(f"MLflow at http://127.0.0.1:{port}/{runs} (Ctrl-C ends it)")
    sys.stdout.flush()
    os.environ["MLFLOW_BACKEND_STORE_URI"] = uri  # the URI may hold a password, and every user can read a command line
    # One reader needs one worker and no evaluation jobs, for which MLflow starts eight processes.
    os.environ.setdefault("MLFLOW_SERVER_ENABLE_JOB_EXECUTION", "false")
    store = (root.resolve() / "artifacts").as_uri()
    options = [f"--default-artifact-root={store}", f"--port={port}", "--workers=1"]
    os.execv(sys.executable, [sys.executable, "-m", "mlflow", "ui", *options])

"""The `--root` option: the folder of runs, checkpoints and the MLflow store."""

from pathlib import Path
from typing import Any

import typer

from gnn_encoder.errors import UserError, expanded

VARIABLE = "GNN_ENCODER_ROOT"
"""Environment variable that names the root where `--root` is not given."""
DEFAULT_ROOT = Path("gnn-encoder-runs")


def root_option(help: str) -> Any:
    """`--root`, which falls back to the environment variable and then to the command's own default."""
    return typer.Option(parser=given_root, metavar="FOLDER", envvar=VARIABLE, show_envvar=False, help=help)


def given_root(text: str | Path) -> Path:
    """The folder that a user names, `~` expanded.

    Raises:
        UserError: the name is empty, not UTF-8, or has the home of an unknown user.
    """
    if not str(text):
        raise UserError("--root is empty: name a folder, or leave the option out")
    folder = expanded(text)
    try:
        str(folder.absolute()).encode()
    except UnicodeEncodeError:
        raise UserError(f"--root {str(folder.absolute())!a} is not UTF-8: name a folder whose path is") from None
    return folder

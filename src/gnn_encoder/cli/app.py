"""The command line: `gnn-encoder run · submit · update · retrain · ablate · rerank · models · search · explain …`.

Each command imports heavy modules itself, so that `--help` stays fast.
"""

import sys
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from gnn_encoder import __version__
from gnn_encoder.cli import bundles, clusters, datasets, labels, models, pipelines
from gnn_encoder.cli.dashboard import dashboard
from gnn_encoder.cli.doctor import doctor, version_of
from gnn_encoder.cli.forget import forget
from gnn_encoder.cli.judging import judge
from gnn_encoder.cli.orders import orders
from gnn_encoder.cli.prune import prune
from gnn_encoder.cli.retrain import retrain
from gnn_encoder.cli.serving import serve
from gnn_encoder.cli.watch import watch
from gnn_encoder.errors import CONTROL, UserError, print_any_text

app = typer.Typer(
    help="Find, train, serve and explain the best retriever for your passages: words, encoders, labels, a GNN-encoder.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",  # rich's own markup takes [training] in a help text for a style
)
app.add_typer(datasets.data, name="data")
app.add_typer(models.models, name="models")
app.add_typer(labels.labels, name="labels")
app.add_typer(clusters.schedule, name="schedule")

for command in (
    pipelines.run, clusters.submit, clusters.runs, pipelines.update, pipelines.ablate, pipelines.rerank,
    pipelines.presets, clusters.compile_, retrain, forget, prune, serve, watch, judge, orders,
    bundles.search, bundles.copy, bundles.export, bundles.explain, bundles.evaluate, dashboard, doctor,
):  # fmt: skip
    app.command(command.__name__.rstrip("_"))(command)


@app.callback(invoke_without_command=True)
def _version(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version, the commit, and those of torch and transformers.")
    ] = False,
) -> None:
    if version:
        typer.echo(_versions())
        raise typer.Exit


def _versions() -> str:
    """Returns this program's version, the commit if it runs in a clone, and the versions of torch and transformers."""
    import subprocess

    clone = Path(__file__).parents[3]
    words = [__version__]
    if (clone / ".git").exists():
        command = ["git", "-C", str(clone), "describe", "--always", "--dirty", "--exclude=*"]
        with suppress(OSError):
            words += [
                f"commit {name}" for name in subprocess.run(command, capture_output=True, text=True).stdout.split()
            ]
    for package in ("torch", "transformers"):
        found = version_of(package)
        words.append(f"{package} {found}" if found else f"no {package}")
    return ", ".join(words)


def main() -> None:
    """Entry point. An error that the user can fix is one line with exit code 2, like a wrong option."""
    print_any_text()
    try:
        if sys.platform == "win32":
            raise UserError("gnn-encoder runs on Linux and macOS: on Windows use WSL (`wsl --install`)")
        for argument in sys.argv[1:]:
            if any("\ud800" <= character <= "\udfff" for character in argument):  # from bytes that are not UTF-8
                raise UserError(f"the argument {argument!a} is not UTF-8: write it in UTF-8, or rename the file")
        app()
    except UserError as error:
        message = str(error)
    except OSError as error:
        if error.errno is None:
            raise
        message = f"{error.strerror}: {error.filename or 'while writing'}"
    typer.echo(f"error: {message.translate(CONTROL)}", err=True)
    raise SystemExit(2)

"""The command `serve`: a bundle behind HTTP."""

import os
import socket
from typing import Annotated

import typer

from gnn_encoder.cli.bundles import Named
from gnn_encoder.cli.options import DEFAULT_ROOT, Root
from gnn_encoder.errors import UserError

TOKEN = "GNN_ENCODER_TOKEN"
DRAIN = 30
"""Seconds that requests in work may take after SIGTERM."""


def serve(
    bundle: Named,
    host: Annotated[str, typer.Option(help="Address to listen at; 0.0.0.0: all of this machine's.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen at; 0: a free one.")] = 8000,
    waiting: Annotated[int, typer.Option(min=1, help="Questions that may wait; more are answered with 429.")] = 512,
    look: Annotated[
        float, typer.Option(min=0.1, help="Seconds between two looks at where the bundle's name leads.")
    ] = 5.0,
    root: Root = DEFAULT_ROOT,
) -> None:
    """Serve a trained bundle over HTTP until SIGTERM: POST /search, /health/ready, /metrics, /docs.

    If the bundle's name leads to another bundle later (a moved alias, a new run), that one is opened beside and takes
    over. With GNN_ENCODER_TOKEN set, clients need the header `Authorization: Bearer TOKEN`.
    """
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    import uvicorn

    from gnn_encoder.serving.app import Limits, create_app
    from gnn_encoder.serving.following import Followed

    token = os.environ.get(TOKEN, "")
    try:
        listening = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except (OSError, OverflowError) as error:
        raise UserError(f"cannot listen at {host}, port {port} ({error}): choose others by --host and --port") from None
    followed = Followed(bundle, root)
    served, where = followed.current, listening.getsockname()
    application = create_app(followed, Limits(waiting=waiting, look_seconds=look), token)
    typer.echo(
        f"serving    {served.system}, version {served.version}, {len(served.retriever.bundle.passages):,} passages"
    )
    typer.echo(f"at         http://{f'[{where[0]}]' if ':' in where[0] else where[0]}:{where[1]}, described at /docs")
    if not token and where[0] not in ("127.0.0.1", "::1"):
        typer.echo(f"warning    anyone who reaches this address may search: set {TOKEN}", err=True)
    config = uvicorn.Config(
        application, access_log=False, log_level="warning", timeout_graceful_shutdown=DRAIN, server_header=False
    )
    uvicorn.Server(config).run(sockets=[listening])

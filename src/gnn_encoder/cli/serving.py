"""The command `serve`: a bundle behind HTTP."""

import os
import socket
from pathlib import Path
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
    look: Annotated[
        float, typer.Option(min=0.1, help="Seconds between two looks at where the bundle's name leads.")
    ] = 5.0,
    labels: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Keep the labels that people give on the page; --set ingest.labels=FILE trains on them.",
        ),
    ] = None,
    judge: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Let people judge at /judge what `gnn-encoder judge FOLDER` pooled."),
    ] = None,
    rights: Annotated[
        str | None,
        typer.Option(
            metavar="FIELD", help="A caller sees only passages that have one of the caller's groups in FIELD."
        ),
    ] = None,
    rights_claim: Annotated[
        str,
        typer.Option(metavar="NAME", help="With a key in GNN_ENCODER_RIGHTS_KEY: the token's claim with the groups."),
    ] = "groups",
    rights_audience: Annotated[
        str | None, typer.Option(metavar="NAME", help="Whom the tokens must be for: their claim `aud`.")
    ] = None,
    rights_header: Annotated[
        str, typer.Option(metavar="NAME", help="The header in which the proxy in front sets the groups, with commas.")
    ] = "",
    trust_proxy: Annotated[
        bool, typer.Option("--trust-proxy", help="Nobody but the proxy reaches this address, so its header is true.")
    ] = False,
    log: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Keep the questions, without their callers, for `gnn-encoder watch`."),
    ] = None,
    log_days: Annotated[int, typer.Option(min=1, help="Days after which logged questions are deleted.")] = 30,
    root: Root = DEFAULT_ROOT,
) -> None:
    """Serve a trained bundle over HTTP until SIGTERM: a page at /, POST /search, /health/ready, /metrics, /docs.

    If the bundle's name leads to another bundle later (a moved alias, a new run), that one is opened beside and takes
    over. With GNN_ENCODER_TOKEN set, clients need the header `Authorization: Bearer TOKEN`. With --rights, groups come
    from the caller's signed token (JWT; GNN_ENCODER_RIGHTS_KEY has the secret or the public key), or from
    --rights-header.
    """
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    import uvicorn

    from gnn_encoder.serving.app import create_app
    from gnn_encoder.serving.draining import DrainingServer
    from gnn_encoder.serving.feedback import Feedback
    from gnn_encoder.serving.following import Followed
    from gnn_encoder.serving.guard import LOOPBACK, Limits
    from gnn_encoder.serving.judging import PeoplesJudging
    from gnn_encoder.serving.questions import QuestionLog
    from gnn_encoder.serving.rights import KEY, rights_of
    from gnn_encoder.tracking.pipeline_run import impatient

    token = os.environ.get(TOKEN, "").strip()
    if TOKEN in os.environ and not token:
        raise UserError(f"{TOKEN} is empty: give it a token, or unset it to serve without one")
    listening = listening_at(host, port)
    where = listening.getsockname()
    key = os.environ.get(KEY, "").strip()
    limited = rights_of(rights, key, rights_claim, rights_audience, rights_header, token, trust_proxy)
    local = not token and not limited and where[0] in LOOPBACK
    private = bool(token or limited) or local
    if (labels or judge) and not private:
        option, does = ("--labels", "trains the model") if labels else ("--judge", "judges")
        raise UserError(f"with {option} and no token, anyone who reaches {where[0]} {does}: set {TOKEN}")
    feedback = Feedback(labels) if labels else None
    judging = PeoplesJudging(judge) if judge else None
    questions = QuestionLog(log, log_days) if log else None
    with impatient():  # once: setting the environment while another thread reads it is not safe
        followed = Followed(bundle, root, rights)
        application = create_app(
            followed, Limits(look_seconds=look), token, feedback, local, judging, limited, questions
        )
        served = followed.current
        typer.echo(
            f"serving    {served.system}, version {served.version}, {len(served.retriever.bundle.passages):,} passages"
        )
        address = f"[{where[0]}]" if ":" in where[0] else where[0]
        typer.echo(f"at         http://{address}:{where[1]}, described at /docs")
        if rights:
            typer.echo(f"rights     by the field {rights}, groups from {rights_header or 'signed tokens'}")
        if judging:
            typer.echo(f"judging    {judge}, at /judge")
        if log:
            typer.echo(f"log        {log}, questions of the last {log_days} days")
        if not private:
            typer.echo(f"warning    anyone who reaches this address may search: set {TOKEN}", err=True)
        config = uvicorn.Config(
            application, access_log=False, log_level="warning", timeout_graceful_shutdown=DRAIN, server_header=False
        )
        DrainingServer(config).run(sockets=[listening])


def listening_at(host: str, port: int) -> socket.socket:
    """Returns a socket that listens; its connections send at once, else an answer waits 40 ms for the client's ACK."""
    try:
        listening = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except (OSError, OverflowError) as error:
        raise UserError(f"cannot listen at {host}, port {port} ({error}): choose others by --host and --port") from None
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listening

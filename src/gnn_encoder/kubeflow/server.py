"""A Kubeflow Pipelines server: a run is sent to it, asked after, and listed with the others.

What goes over the wire is KFP's own client's work, except for waiting: the client's own never ends for a run
that somebody cancels, and ends at the first answer that fails.
"""

import contextlib
import io
import json
import os
import socket
import ssl
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import certifi

from gnn_encoder.errors import UserError, one_line, without_password
from gnn_encoder.settings import PIPELINES
from gnn_encoder.settings.cluster import Cluster

TOKEN = "GNN_ENCODER_KFP_TOKEN"
"""Environment variable: the token that the server wants, if it wants one."""
AUTHORITIES = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE")
"""Environment variables, OpenSSL's and requests' own: a PEM file of the authorities that may sign the server's
certificate, the first that is set. KFP's client looks at neither and knows public ones alone.
"""
PAGES = "KF_PIPELINES_UI_ENDPOINT"
"""Environment variable, KFP's own: where the server's pages are, if not where its API is."""
FINAL = ("SUCCEEDED", "SKIPPED", "FAILED", "CANCELED")
CONNECT_SECONDS = 10.0
POLL_SECONDS = 5.0
PATIENCE = 60
"""How many answers in a row may fail before nobody waits any longer; a server that restarts misses a few."""


@dataclass(frozen=True)
class Run:
    """A run, as far as the server tells. States are KFP's own words."""

    run_id: str
    name: str
    state: str
    created: datetime | None
    finished: datetime | None
    steps: Mapping[str, str]
    """Step → state, of those that have begun."""
    errors: tuple[str, ...]
    """What failed, a line each."""


class Unanswered(UserError):
    """The server is there no more, or not in a state to answer. It may be again."""


class Server:
    """KFP's API at an address."""

    def __init__(self, host: str, namespace: str = "") -> None:
        """Connect.

        Args:
            host: the server's address, as `https://kubeflow.example.com/pipeline`.
            namespace: whose runs, where the server has several users.

        Raises:
            UserError: nothing answers there, or something else than KFP, or it refuses.
        """
        self.host, self._namespace = host.rstrip("/"), namespace
        try:
            address = urlsplit(self.host)
        except ValueError:  # as `http://[::1`
            address = urlsplit("")
        if address.scheme not in ("http", "https") or not address.hostname or address.username:
            raise UserError(
                f"--host {without_password(host)}: write it as https://HOST or http://HOST:PORT, with its path if it "
                f"has one; a token comes from {TOKEN}"
            )
        authorities = next(filter(None, map(os.environ.get, AUTHORITIES)), None) or certifi.where()
        try:  # urllib3 would try four times and wait for each without end
            port = address.port or {"http": 80, "https": 443}[address.scheme]
            with socket.create_connection((address.hostname, port), CONNECT_SECONDS) as connection:
                if address.scheme == "https":
                    _greet(connection, address.hostname, authorities)
        except (OSError, ValueError) as error:
            raise UserError(f"cannot reach {self.host}: {one_line(error)}; check --host") from None
        with self._telling(), warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            self._client = _client_class()(
                host=self.host,
                namespace=namespace,
                existing_token=os.environ.get(TOKEN) or None,
                ssl_ca_cert=authorities,
            )
            several_users = self._client.get_kfp_healthz().multi_user
            if several_users and not namespace:
                raise UserError(f"{self.host} has several users: say `namespace` in the cluster file")

    def submit(self, package: Path, arguments: Mapping[str, str], cluster: Cluster, name: str) -> str:
        """Start a run of a package under a name, and give its id.

        Raises:
            UserError: the server refuses.
        """
        with self._telling(), contextlib.redirect_stdout(io.StringIO()):  # the client prints links of its own
            experiment = self._client.create_experiment(cluster.experiment, namespace=self._namespace or None)
            run = self._client.run_pipeline(
                experiment_id=experiment.experiment_id,
                job_name=name,
                pipeline_package_path=str(package),
                params=dict(arguments),
                pipeline_root=cluster.pipeline_root or None,
                enable_caching=cluster.caching,
                service_account=cluster.service_account or None,
            )
        return str(run.run_id)

    def run(self, run_id: str) -> Run:
        """How a run is.

        Raises:
            UserError: there is none of that id, or the server does not answer.
        """
        with self._telling():
            found = self._client.get_run(run_id)
        return _as_run(found)

    def runs(self, experiment: str, limit: int) -> list[Run]:
        """The last runs of an experiment, the newest first; none where there is no such experiment.

        Raises:
            UserError: the server does not answer.
        """
        with self._telling():
            try:
                found = self._client.get_experiment(experiment_name=experiment, namespace=self._namespace or None)
            except ValueError as error:  # the client's word for none and for several
                if str(error).startswith("No experiment"):
                    return []
                raise UserError(f"{self.host}: {one_line(error)}") from None
            listed = self._client.list_runs(
                experiment_id=found.experiment_id, page_size=limit, sort_by="created_at desc"
            )
            return [_as_run(each) for each in listed.runs or []]

    def page(self, run_id: str) -> str:
        """Where a browser sees a run."""
        return f"{(os.environ.get(PAGES) or self.host).rstrip('/')}/#/runs/details/{run_id}"

    @contextmanager
    def _telling(self) -> Iterator[None]:
        """Errors of the wire and of the server in one line."""
        import urllib3
        from kfp_server_api import ApiException

        try:
            yield
        except urllib3.exceptions.HTTPError as error:
            raise Unanswered(f"cannot reach {self.host}: {one_line(getattr(error, 'reason', None) or error)}") from None
        except ApiException as error:
            token = "the token has expired or is wrong" if os.environ.get(TOKEN) else "it wants a token"
            told = {
                401: f"{self.host} does not let us in: {token}; set {TOKEN}",
                403: f"{self.host} forbids it in namespace {self._namespace or '(none)'}: {_words(error)}",
                404: f"{self.host} does not have it: {_words(error)}; check --host, and the path in it",
            }.get(error.status, f"{self.host} answers {error.status}: {_words(error)}")
            raise (Unanswered if error.status == 429 or error.status >= 500 else UserError)(told) from None
        if not self._client.answered_in_json():  # the client reads any page as an answer that says nothing
            raise UserError(
                f"{self.host} answers, but not as KFP does, perhaps with a page to log in: "
                f"set {TOKEN} to a valid token, or check --host"
            )


def follow(server: Server, run_id: str, tell: Callable[[str], None]) -> Run:
    """Wait for a run's end and tell each step's changes, a line each.

    Raises:
        UserError: the server has not answered for minutes, or lets us in no more. The run goes on.
    """
    seen: dict[str, str] = {}
    missed = 0
    while True:
        try:
            run = server.run(run_id)
        except Unanswered as error:
            missed += 1
            if missed > PATIENCE:
                raise
            if missed == 1:
                tell(f"{error}; still waiting")
        else:
            missed = 0
            for step, state in run.steps.items():
                if seen.get(step) != state:
                    tell(f"{time.strftime('%H:%M:%S')}  {step:<22} {state.lower()}")
            seen |= run.steps
            if run.state in FINAL:
                return run
        time.sleep(POLL_SECONDS)


def _greet(connection: socket.socket, host: str, authorities: str) -> None:
    """TLS's handshake, in which a server shows its certificate."""
    try:
        ssl.create_default_context(cafile=authorities).wrap_socket(connection, server_hostname=host).close()
    except (ssl.SSLError, FileNotFoundError) as error:
        raise UserError(
            f"no trusted connection to {host} ({one_line(error)}): set {AUTHORITIES[0]} to a PEM file with the "
            "certificate of the authority that signed the server's, or check --host"
        ) from None


def _client_class() -> type:
    import kfp

    class Client(kfp.Client):  # type: ignore[misc]
        def get_kfp_healthz(self, sleep_duration: int = 5) -> Any:
            return self._healthz_api.healthz_service_get_healthz()  # once: KFP's own asks five times and logs each

        def answered_in_json(self) -> bool:
            return "json" in self._healthz_api.api_client.last_response.getheader("Content-Type", "")

    return Client


def _as_run(found: Any) -> Run:
    details = (found.run_details.task_details if found.run_details else None) or []
    # Attempts of one step come under one name; the last counts.
    ordered = sorted(details, key=lambda task: task.create_time.timestamp() if task.create_time else 0.0)
    last = {str(task.display_name).replace("-", "_"): task for task in ordered}
    steps = {step: task for step, task in last.items() if step in PIPELINES["train"]}
    failures = [(f"{step}: ", task.error) for step, task in steps.items()] + [("", found.error)]
    return Run(
        run_id=str(found.run_id),
        name=str(found.display_name),
        state=str(found.state or "PENDING"),
        created=found.created_at,
        # A run that goes on has the epoch for its end.
        finished=found.finished_at if found.finished_at and found.finished_at.year > 1970 else None,
        steps={step: str(task.state or "PENDING") for step, task in steps.items()},
        errors=tuple(f"{where}{one_line(error.message)}" for where, error in failures if error and error.message),
    )


def _words(error: Any) -> str:
    """What a refusal says for itself."""
    try:
        body = json.loads(error.body)
        return one_line(body.get("message") or body.get("error") or error.reason)
    except (TypeError, ValueError, AttributeError):  # no JSON, or not KFP's
        return one_line(error.reason)

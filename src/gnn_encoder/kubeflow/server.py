"""A Kubeflow Pipelines server: starts, reads and lists runs; creates, lists and deletes recurring runs.

Requests go through `kfp_server_api`, the client that KFP generates from the description of its API, with a time limit
and the current token. `kfp.Client` has neither: it waits forever if a server accepts a connection but never answers, or
if somebody cancels the run.
"""

import json
import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import certifi

from gnn_encoder.errors import UserError, one_line, without_password
from gnn_encoder.kubeflow.cluster import Cluster
from gnn_encoder.kubeflow.cluster_run import ClusterRun, cluster_run
from gnn_encoder.kubeflow.schedule import Schedule, Scheduled, scheduled

# Environment variables. All except the first belong to KFP, OpenSSL and requests.
TOKEN, TOKEN_FILE = "GNN_ENCODER_KFP_TOKEN", "KF_PIPELINES_SA_TOKEN_PATH"
"""The token for a server that requires one, and the path of a file with the token, used if `TOKEN` is not set."""
AUTHORITIES = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE")
"""PEM file of the authorities that may sign the server's certificate; the first variable that is set is used. KFP's
client reads neither variable and trusts public authorities only."""
PAGES = "KF_PIPELINES_UI_ENDPOINT"
"""The address of the server's web pages, if it differs from the address of the API."""
FINAL = ("SUCCEEDED", "SKIPPED", "FAILED", "CANCELED")
CONNECT_SECONDS = 10.0
ANSWER_SECONDS = 60.0
"""Time limit for the next bytes of an answer."""
POLL_SECONDS = 5.0
PATIENCE_SECONDS = 300.0
"""How long `follow` waits for a server that does not answer. A restart takes a minute or two."""


class Unanswered(UserError):
    """The server cannot be reached or cannot answer now, but may answer later."""


class Server:
    """KFP's API at an address."""

    def __init__(self, host: str, namespace: str = "") -> None:
        """Connects to an address such as `https://kubeflow.example.com/pipeline`.

        A server with several users requires the namespace.
        """
        import kfp_server_api

        self.host, self._namespace = host.rstrip("/"), namespace
        try:
            address = urlsplit(self.host)
        except ValueError:  # such as `http://[::1`
            address = urlsplit("")
        if address.scheme not in ("http", "https") or not address.hostname or address.username:
            raise UserError(
                f"--host {without_password(host)}: write https://HOST or http://HOST:PORT, with a path if the server "
                f"has one; {TOKEN} sets a token"
            )
        api = _api_client(self.host)
        self._runs = kfp_server_api.RunServiceApi(api)
        self._experiments = kfp_server_api.ExperimentServiceApi(api)
        self._schedules = kfp_server_api.RecurringRunServiceApi(api)
        try:
            with self._errors_in_a_line():
                several_users = kfp_server_api.HealthzServiceApi(api).healthz_service_get_healthz().multi_user
        except Unanswered as error:
            raise Unanswered(f"{error}; check --host") from None
        if several_users and not namespace:
            raise UserError(f"{self.host} has several users: say `namespace` in the cluster file")

    def submit(self, package: Sequence[Any], cluster: Cluster, name: str) -> str:
        """Starts a run of a package (see `package.package`) with a name; returns the run's id."""
        from kfp_server_api import V2beta1Run

        run = V2beta1Run(display_name=name, **self._sent(package, cluster))
        try:
            with self._errors_in_a_line():
                return str(self._runs.run_service_create_run(run).run_id)
        except Unanswered as error:
            raise UserError(f"{error}; {name} may have started all the same: see gnn-encoder runs") from None

    def schedule(self, package: Sequence[Any], cluster: Cluster, schedule: Schedule) -> str:
        """Creates a recurring run of a package; returns its id. Raises UserError if the experiment has its name."""
        import kfp_server_api as kfp

        if self.schedules(cluster.experiment, schedule.name):
            raise UserError(
                f"{cluster.experiment} has a recurring run {schedule.name!r}: choose another --name, or remove it with "
                "gnn-encoder schedule remove"
            )
        cron = kfp.V2beta1CronSchedule(cron=schedule.cron) if schedule.cron else None
        period = kfp.V2beta1PeriodicSchedule(interval_second=str(schedule.every_seconds))
        recurring = kfp.V2beta1RecurringRun(
            display_name=schedule.name,
            trigger=kfp.V2beta1Trigger(cron_schedule=cron, periodic_schedule=None if cron else period),
            mode=kfp.RecurringRunMode.ENABLE,
            max_concurrency=str(schedule.at_once),
            no_catchup=not schedule.catch_up,
            namespace=self._namespace or None,
            **self._sent(package, cluster),
        )
        try:
            with self._errors_in_a_line():
                return str(self._schedules.recurring_run_service_create_recurring_run(recurring).recurring_run_id)
        except Unanswered as error:
            known = f"{schedule.name} may have been created all the same: see gnn-encoder schedule list"
            raise UserError(f"{error}; {known}") from None

    def schedules(self, experiment: str, name: str = "") -> list[Scheduled]:
        """Returns the recurring runs of an experiment, newest first; with a name, those of that name only."""
        with self._errors_in_a_line():
            if not (number := self._experiment(experiment)):
                return []
            more = {"filter": _equals(name)} if name else {}
            listed = self._schedules.recurring_run_service_list_recurring_runs(
                experiment_id=number, page_size=200, sort_by="created_at desc", **more
            )
            return [scheduled(recurring_run) for recurring_run in listed.recurring_runs or []]

    def unschedule(self, schedule_id: str) -> None:
        """Deletes a recurring run. Its runs stay, also those that are running, which KFP would delete otherwise."""
        with self._errors_in_a_line():
            self._schedules.recurring_run_service_delete_recurring_run(schedule_id, propagation_policy="ORPHAN")

    def run(self, run_id: str) -> ClusterRun:
        """Returns the run with an id."""
        with self._errors_in_a_line():
            return cluster_run(self._runs.run_service_get_run(run_id))

    def runs(self, experiment: str, limit: int) -> list[ClusterRun]:
        """Returns the last runs of an experiment, newest first; empty if the experiment does not exist."""
        with self._errors_in_a_line():
            if not (number := self._experiment(experiment)):
                return []
            listed = self._runs.run_service_list_runs(experiment_id=number, page_size=limit, sort_by="created_at desc")
            return [cluster_run(run) for run in listed.runs or []]

    def page(self, run_id: str, kind: str = "runs") -> str:
        """Returns the address of a run's page, or of a recurring run's if `kind` is `recurringrun`."""
        return f"{(os.environ.get(PAGES) or self.host).rstrip('/')}/#/{kind}/details/{run_id}"

    def _sent(self, package: Sequence[Any], cluster: Cluster) -> dict[str, Any]:
        """Returns what a run and a recurring run have in common; creates the experiment if it does not exist."""
        from kfp_server_api import V2beta1Experiment, V2beta1RuntimeConfig

        with self._errors_in_a_line():
            experiment = self._experiment(cluster.experiment)
            if not experiment:
                new = V2beta1Experiment(display_name=cluster.experiment, namespace=self._namespace)
                experiment = self._experiments.experiment_service_create_experiment(new).experiment_id
        spec, *platform = package
        return {
            "experiment_id": experiment,
            "pipeline_spec": {"pipeline_spec": spec, "platform_spec": platform[0]} if platform else spec,
            "runtime_config": V2beta1RuntimeConfig(pipeline_root=cluster.pipeline_root or None, parameters={}),
            "service_account": cluster.service_account or None,
        }

    def _experiment(self, name: str) -> str:
        """Returns the id of the experiment with a name, empty if there is none."""
        listed = self._experiments.experiment_service_list_experiments(namespace=self._namespace, filter=_equals(name))
        return listed.experiments[0].experiment_id if listed.experiments else ""

    @contextmanager
    def _errors_in_a_line(self) -> Iterator[None]:
        """Turns errors of the connection and of the server into a `UserError` of one line."""
        from kfp_server_api import ApiException
        from urllib3.exceptions import HTTPError, ReadTimeoutError, SSLError

        try:
            yield
        except HTTPError as error:
            cause = getattr(error, "reason", None) or error
            message = f"cannot reach {self.host}: {one_line(cause.__cause__ or cause)}"
            if isinstance(cause, ReadTimeoutError):
                message = f"cannot reach {self.host}: no answer within {ANSWER_SECONDS:g} s"
            elif isinstance(cause, SSLError):
                message = (
                    f"no trusted connection to {self.host} ({one_line(cause)}): set {AUTHORITIES[0]} to a PEM file "
                    "with the certificate of the authority that signed the server's"
                )
            raise Unanswered(message) from None
        except ApiException as error:
            token = "the token has expired or is wrong" if _token() else "it demands a token"
            message = {
                401: f"{self.host} does not let us in: {token}; set {TOKEN}, or {TOKEN_FILE} to a file that has it",
                403: f"{self.host} forbids it in namespace {self._namespace or '(none)'}: {_words(error)}",
                404: f"{self.host} does not have it: {_words(error)}; check --host, and the path in it",
            }.get(error.status, f"{self.host} answers {error.status}: {_words(error)}")
            raise (Unanswered if error.status == 429 or error.status >= 500 else UserError)(message) from None
        except (AttributeError, TypeError, ValueError):  # the client's errors for other JSON or for bytes
            raise UserError(f"{self.host} answers, but not as KFP does: check --host") from None


def follow(server: Server, run_id: str, show: Callable[[str], None]) -> ClusterRun:
    """Waits for the end of a run, and passes `show` a line for each change of a step's state.

    Raises:
        UserError: the server has not answered for minutes, or refuses the token. The run continues.
    """
    seen: dict[str, str] = {}
    terminated = ended = False
    failing_since = None
    while True:
        try:
            run = server.run(run_id)
        except Unanswered as error:
            if failing_since is None:
                failing_since = time.monotonic()
                show(f"{error}; still waiting")
            elif time.monotonic() - failing_since > PATIENCE_SECONDS:
                raise
        else:
            failing_since = None
            for step, state in run.steps.items():
                if seen.get(step) != state:
                    show(f"{time.strftime('%H:%M:%S')}  {step:<42} {state.lower()}")
            seen |= run.steps
            terminated = terminated or run.terminated
            if run.state in FINAL:
                # The server records the end of a run before the ends of its tasks, so ask again for the failed tasks.
                if run.state == "SUCCEEDED" or run.failed or ended:
                    return replace(run, terminated=terminated)
                ended = True
        time.sleep(POLL_SECONDS)


def _api_client(host: str) -> Any:
    """Returns KFP's generated client for a server."""
    import kfp_server_api
    import urllib3

    class Api(kfp_server_api.ApiClient):  # type: ignore[misc]
        def request(self, method: str, url: str, headers: Any = None, **more: Any) -> Any:
            if token := _token():
                headers = {**(headers or {}), "authorization": f"Bearer {token}"}
            more["_request_timeout"] = (CONNECT_SECONDS, ANSWER_SECONDS)
            answer = super().request(method, url, headers=headers, **more)
            if "json" not in answer.getheader("Content-Type", ""):  # the client reads a web page as an empty answer
                raise UserError(
                    f"{host} answers, but not as KFP does, perhaps with a page to log in: "
                    f"set {TOKEN} to a valid token, or check --host"
                )
            return answer

    configuration = kfp_server_api.Configuration(host=host)
    configuration.ssl_ca_cert = next(filter(None, map(os.environ.get, AUTHORITIES)), None) or certifi.where()
    # No retries, because urllib3 makes three without a pause; `follow` tries again by itself. Redirects are followed.
    configuration.retries = urllib3.Retry(total=None, connect=0, read=0, redirect=3, status=0, other=0)
    return Api(configuration)


def _equals(name: str) -> str:
    """Returns KFP's filter for a name."""
    return json.dumps({"predicates": [{"operation": 1, "key": "display_name", "stringValue": name}]})


def _token() -> str:
    """Returns the server's token, empty if none is set.

    The file is read for each request, because a service account's token is valid for one hour.
    """
    source, token = TOKEN, os.environ.get(TOKEN, "").strip()
    if not token and (source := os.environ.get(TOKEN_FILE, "")):
        try:
            token = Path(source).read_text("latin-1").strip()
        except OSError as error:
            raise UserError(f"cannot read the token that {TOKEN_FILE} names: {one_line(error)}") from None
    if not re.fullmatch("[!-~]*", token):  # the HTTP client's error would quote the token
        raise UserError(f"the token from {source} has white space or a character that is not ASCII: copy it again")
    return token


def _words(error: Any) -> str:
    """Returns the server's message in an error."""
    try:
        body = json.loads(error.body)
        return one_line(body.get("message") or body.get("error") or error.reason)
    except (TypeError, ValueError, AttributeError):  # not JSON, or not from KFP
        return one_line(error.reason)

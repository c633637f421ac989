"""KFP's v2beta1 API as its published description has it, and a small server that plays it and its Argo workflow.

The description is read off `kfp_server_api`, which KFP generates from its OpenAPI file: each operation's
method, path, query parameters, body and answer, and each message's fields and their types. The client sends
what it serializes through the same messages, but a pipeline's specification goes through them as any object:
that is held against the pipeline's own messages.
"""

import functools
import inspect
import json
import re
import ssl
import threading
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import kfp_server_api
from google.protobuf import json_format
from kfp.kubernetes.kubernetes_executor_config_pb2 import KubernetesExecutorConfig
from kfp.pipeline_spec import pipeline_spec_pb2 as messages
from loopback import Handler

NOT_SENT = frozenset(("error", "executor_detail", "pod_name"))
"""Fields of a task that the description has and KFP 2.17's converter of workflows never fills."""
STATES = {"Pending": "PENDING", "Running": "RUNNING", "Succeeded": "SUCCEEDED", "Skipped": "SKIPPED"}
STATES |= {"Failed": "FAILED", "Error": "FAILED"}
"""Argo's phases and what KFP makes of them. A task in any other phase, as Omitted, is sent without a state."""
WORKFLOW = "gnn-encoder-train-x7k2p"
BEGUN = "2026-11-22T01:00:00Z"
PLAIN = {"str": str, "int": int, "bool": bool, "float": float, "datetime": str, "object": object}
EXAMPLE = Path(__file__).parents[1] / "pipelines" / "clusters" / "example.yaml"
APIS = ("ExperimentServiceApi", "RunServiceApi", "RecurringRunServiceApi", "HealthzServiceApi")


@dataclass(frozen=True)
class Operation:
    method: str
    path: str
    query: frozenset[str]
    body: str
    answer: str

    def matches(self, method: str, path: str) -> bool:
        return method == self.method and re.fullmatch(re.sub(r"\{\w+\}", "[^/]+", self.path), path) is not None


def described() -> list[Operation]:
    """Every operation that the description has for experiments, runs, recurring runs and health."""
    return [operation for api in APIS for operation in _of(getattr(kfp_server_api, api))]


def _of(api: type) -> Iterator[Operation]:
    for name, function in inspect.getmembers(api, inspect.isfunction):
        if not name.endswith("_with_http_info"):
            continue
        source = inspect.getsource(function)
        path, method = re.search(r"'(/apis/[^']+)', '([A-Z]+)'", source).groups()  # type: ignore[union-attr]
        body = re.search(r"body_params = local_var_params\['(\w+)'\]", source)
        kind = re.search(rf":type {body[1]}: (\w+)", source)[1] if body else ""  # type: ignore[index]
        answer = re.search(r"response_type='([^']+)'", source)
        yield Operation(
            method,
            path,
            frozenset(re.findall(r"query_params.append\(\('(\w+)'", source)),
            kind,
            answer[1] if answer else "",
        )


def check(value: Any, kind: str, where: str = "body") -> None:
    """Raise ValueError where a JSON value is not what the description has for it."""
    if listed := re.fullmatch(r"list\[(.+)\]", kind):
        _is(value, list, where, kind)
        for number, part in enumerate(value):
            check(part, listed[1], f"{where}[{number}]")
    elif mapped := re.fullmatch(r"dict\(str, (.+)\)", kind):
        _is(value, dict, where, kind)
        for name, part in value.items():
            check(part, mapped[1], f"{where}.{name}")
    elif kind in PLAIN:
        _is(value, PLAIN[kind], where, kind)
    elif allowed := getattr(getattr(kfp_server_api, kind), "allowable_values", None):
        if value not in allowed:
            raise ValueError(f"{where}: {value!r} is none of {allowed}")
    else:
        message = getattr(kfp_server_api, kind)
        types = {message.attribute_map[name]: part for name, part in message.openapi_types.items()}
        _is(value, dict, where, kind)
        if kind == "V2beta1PipelineTaskDetail" and (filled := NOT_SENT & set(value)):
            raise ValueError(f"{where}: KFP sends no {min(filled)} of a task")
        for name, part in value.items():
            if name not in types:
                raise ValueError(f"{where}: {kind} has no field {name!r}")
            check(part, types[name], f"{where}.{name}")
        if kind in ("V2beta1Run", "V2beta1RecurringRun") and "pipeline_spec" in value:
            check_pipeline(value["pipeline_spec"])


def _is(value: Any, kind: type, where: str, name: str) -> None:
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise ValueError(f"{where}: {value!r} is no {name}")


def check_pipeline(document: dict[str, Any]) -> None:
    """Raise ValueError where a pipeline's specification has a field that KFP's messages do not have."""
    spec = document.get("pipeline_spec", document)
    try:
        json_format.ParseDict(spec, messages.PipelineSpec())
        json_format.ParseDict(spec["deploymentSpec"], messages.PipelineDeploymentConfig())
        platforms = json_format.ParseDict(document.get("platform_spec", {}), messages.PlatformSpec())
        for config in platforms.platforms["kubernetes"].deployment_spec.executors.values():
            json_format.ParseDict(json_format.MessageToDict(config), KubernetesExecutorConfig())
    except json_format.ParseError as error:
        raise ValueError(f"pipeline_spec: {error}") from None


def tasks_of(sent: dict[str, Any]) -> dict[str, Any]:
    """The tasks of a run's or a recurring run's pipeline, by name."""
    document = sent["pipeline_spec"]
    tasks: dict[str, Any] = document.get("pipeline_spec", document)["root"]["dag"]["tasks"]
    return tasks


def arguments_of(sent: dict[str, Any]) -> dict[str, str]:
    """The JSON argument of each task that is a step."""
    texts = {name: task["inputs"].get("parameters", {}).get("arguments") for name, task in tasks_of(sent).items()}
    return {name: arguments["runtimeValue"]["constant"] for name, arguments in texts.items() if arguments}


def node_hash(name: str) -> int:
    """Argo's hash of a node's name: FNV-1a, 32 bits."""
    return functools.reduce(lambda digest, byte: (digest ^ byte) * 16777619 & 0xFFFFFFFF, name.encode(), 2166136261)


def at(state: str, *history: str, **phases: str | list[str]) -> dict[str, Any]:
    """A run as KFP tells of it, from the nodes of its Argo workflow.

    Args:
        state: of the run.
        history: its former states.
        phases: task, or task and `_driver`, → Argo's phase; of a task with retries, the phases of its attempts. An
            underscore stands for the hyphen in a task's name.
    """
    children: dict[str, list[str]] = {"root": []}
    shown = [("root", "root", "Running")]
    last = "root"

    def add(parent: str, node: str, phase: str) -> str:
        children.setdefault(parent, []).append(f"{WORKFLOW}-{node_hash(f'{WORKFLOW}.{node}')}")
        shown.append((node, node.rpartition(".")[2], phase))
        return node

    for task, attempts in phases.items():
        name = f"root.{task}".replace("_", "-").removeprefix("root." if task == "root_driver" else "")
        if name.endswith("-driver"):
            last = add(last, name, str(attempts))
            continue
        several = attempts if isinstance(attempts, list) else []
        if f"{task}_driver" not in phases:
            last = add(last, f"{name}-driver", "Succeeded")
        phase = several[-1] if several else str(attempts)
        last = add(last, name, phase)
        if phase != "Omitted":
            last = retried = add(last, f"{name}.executor", phase)
            for number, one in enumerate(several):
                last = add(retried, f"{retried}({number})", one)
    tasks = [
        {
            "run_id": "run-0",
            "task_id": str(uuid.uuid5(uuid.NAMESPACE_OID, node)),
            "display_name": display,
            "create_time": BEGUN,  # the workflow's, whatever the task
            "start_time": BEGUN,
            "end_time": "0001-01-01T00:00:00Z" if phase == "Running" else "2026-11-22T02:00:00Z",
            **({"state": STATES[phase]} if phase in STATES else {}),
            "state_history": [{"update_time": BEGUN, **({"state": STATES[phase]} if phase in STATES else {})}],
            "child_tasks": [{"pod_name": child} for child in children.get(node, [])],
        }
        for node, display, phase in shown
    ]
    states = [{"update_time": BEGUN, "state": one} for one in (*history, state)]
    return {"state": state, "state_history": states, **({"run_details": {"task_details": tasks}} if phases else {})}


@dataclass
class KfpServer:
    """Plays the API on a port of this machine; every request is held against the description."""

    token: str = ""
    """Without it in the request: 401."""
    prefix: str = ""
    """Path that the API is under; elsewhere is a page that says 404."""
    multi_user: bool = False
    progress: list[dict[str, Any]] = field(default_factory=lambda: [{"state": "SUCCEEDED"}])
    """What successive questions after a run are answered with; the last stays."""
    failures: list[int] = field(default_factory=list)
    """Statuses that the next questions after a run are answered with instead."""
    silent: Callable[[str], bool] = lambda place: False
    """Whether a question, named by its method and path, is accepted and not answered."""
    login_page: bool = False
    certificate: Path | None = None
    """A file with its key and certificate: it speaks TLS."""
    requests: list[tuple[str, str, Any]] = field(default_factory=list)
    """Method, path and body of each."""
    problems: list[str] = field(default_factory=list)
    """Where a request or an answer was not as described."""
    experiments: list[dict[str, Any]] = field(default_factory=list)
    runs: list[dict[str, Any]] = field(default_factory=list)
    schedules: list[dict[str, Any]] = field(default_factory=list)
    execute: Callable[[dict[str, str]], object] = lambda arguments: None
    """What is done with the arguments of a new run's tasks before its submission is answered."""

    def __enter__(self) -> "KfpServer":
        owner, self._described = self, described()

        class Api(Handler):
            def answer(self) -> None:
                text = self.body().decode()
                if owner.silent(f"{self.command} {urlsplit(self.path).path}"):
                    self.rfile.read(1)  # until the client gives up
                    self.close_connection = True
                    return
                status, kind, content = owner.handle(self.command, self.path, self.headers.get("authorization"), text)
                self.send(status, content, kind)

            do_GET = do_POST = do_DELETE = answer

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Api)
        if self.certificate:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(self.certificate)
            self._http.handle_error = lambda *_: None  # type: ignore[method-assign]  # a client that does not trust it
            # The handshake in the request's own thread: one that breaks off stops no other.
            self._http.socket = context.wrap_socket(self._http.socket, server_side=True, do_handshake_on_connect=False)
        threading.Thread(target=self._http.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self._http.shutdown()
        self._http.server_close()

    @property
    def url(self) -> str:
        return f"http{'s' if self.certificate else ''}://127.0.0.1:{self._http.server_port}"

    def seen(self, method: str, path: str) -> list[Any]:
        """Bodies of the requests of that kind."""
        return [body for verb, where, body in self.requests if verb == method and re.fullmatch(path, where)]

    def handle(self, method: str, address: str, authorization: str | None, text: str) -> tuple[int, str, bytes]:
        if self.login_page:
            return 200, "text/html", b"<html>Log in</html>"
        parts = urlsplit(address)
        query = {name: values[0] for name, values in parse_qs(parts.query, keep_blank_values=True).items()}
        if not parts.path.startswith(f"{self.prefix}/apis/"):
            return 404, "text/html", b"<html>Not here</html>"
        path = parts.path.removeprefix(self.prefix)
        body = json.loads(text) if text else None
        self.requests.append((method, path, body))
        operation = next((one for one in self._described if one.matches(method, path)), None)
        try:
            if operation is None:
                raise ValueError("the description has no such operation")
            if unknown := set(query) - operation.query:
                raise ValueError(f"no such query parameter: {unknown}")
            int(query.get("page_size", 1))
            if bool(operation.body) != (body is not None):
                raise ValueError(f"the body should be {operation.body or 'none'}")
            if body is not None:
                check(body, operation.body)
        except ValueError as error:
            self.problems.append(f"{method} {path}: {error}")
            return _json(400, {"code": 3, "message": str(error)})
        if self.token and authorization != f"Bearer {self.token}":
            return _json(401, {"code": 16, "message": "Unauthorized"})
        status, answer = self._do(method, path, query, body)
        if status == 200:
            try:
                check(answer, operation.answer, "answer")
            except ValueError as error:
                self.problems.append(f"{method} {path}: {error}")
        return _json(status, answer)

    def _do(self, method: str, path: str, query: dict[str, str], body: Any) -> tuple[int, dict[str, Any]]:
        address = path.removeprefix("/apis/v2beta1/")
        if address == "healthz":
            return 200, {"multi_user": self.multi_user}
        if address == "experiments" and method == "POST":
            record = {**body, "experiment_id": f"experiment-{len(self.experiments)}"}
            self.experiments.append(record)
            return 200, record
        if address == "experiments":
            (predicate,) = json.loads(query["filter"])["predicates"]
            wanted = [
                experiment for experiment in self.experiments if experiment["display_name"] == predicate["stringValue"]
            ]
            return 200, {"experiments": wanted, "total_size": len(wanted)} if wanted else {}
        if address.partition("/")[0] == "recurringruns":
            return self._do_recurring(method, address, query, body)
        if address == "runs" and method == "POST":
            record = {**body, "run_id": f"run-{len(self.runs)}", "state": "PENDING", "created_at": BEGUN}
            self.runs.append(record)
            self.execute(arguments_of(body))
            return 200, record
        if address == "runs":
            mine = [run for run in self.runs if run["experiment_id"] == query["experiment_id"]]
            return 200, {"runs": mine[: int(query["page_size"])], "total_size": len(mine)}
        run = next((run for run in self.runs if address == f"runs/{run['run_id']}"), None)
        if run is None:
            return 404, {"code": 5, "message": f"{address} not found"}
        if self.failures:
            return self.failures.pop(0), {"code": 14, "message": "upstream connect error"}
        now = self.progress.pop(0) if len(self.progress) > 1 else self.progress[0]
        return 200, {**run, **now}

    def _do_recurring(self, method: str, address: str, query: dict[str, str], body: Any) -> tuple[int, dict[str, Any]]:
        """Answers for recurring runs, with what KFP 2.17's server checks of them."""
        if method == "POST":
            (schedule,) = body["trigger"].values()
            fields = schedule.get("cron", "* * * * *").split()
            if not 5 <= len(fields) <= 6:
                message = f"Schedule cron is not a supported format: Expected 5 to 6 fields, found {len(fields)}"
                return 400, {"code": 3, "message": message}
            if not 1 <= int(body.get("max_concurrency", 0)) <= 10:
                message = "Max concurrency of a recurring run must be at least 1 and at most 10"
                return 400, {"code": 3, "message": message}
            status = "ENABLED" if body.get("mode") == "ENABLE" else "DISABLED"
            record = {**body, "recurring_run_id": str(len(self.schedules)), "status": status, "created_at": BEGUN}
            self.schedules.append(record)
            return 200, record
        if method == "DELETE":
            kept = [one for one in self.schedules if address != f"recurringruns/{one['recurring_run_id']}"]
            if len(kept) == len(self.schedules):
                return 404, {"code": 5, "message": f"{address} not found"}
            self.schedules = kept
            return 200, {}
        mine = [one for one in self.schedules if one["experiment_id"] == query["experiment_id"]]
        for predicate in json.loads(query.get("filter", "{}")).get("predicates", []):
            mine = [one for one in mine if one[predicate["key"]] == predicate["stringValue"]]
        return 200, {"recurringRuns": mine[: int(query["page_size"])], "total_size": len(mine)} if mine else {}


def _json(status: int, answer: dict[str, Any]) -> tuple[int, str, bytes]:
    return status, "application/json", json.dumps(answer).encode()

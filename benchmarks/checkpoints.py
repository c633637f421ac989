"""Steps of a training with checkpoints to a slow store: those while a state is written or sent against all others.

The state, parameters and two moments of each, has `--megabytes`. The store is a process on this machine that takes
`--rate` MB/s over all connections and keeps nothing. A step is busy from the copy of a state until the store has it.
The delay is the seconds of the busy steps beyond as many of the mean of the others, before and after: it has all that a
checkpoint costs, copies, and the time of the cores in the threads that write and send, and the machine's own changes
of speed matter little. The end of a training, which waits for the store, is not measured.

    python benchmarks/checkpoints.py [--megabytes 2600] [--rate 20] [--every 60] [--steps 1150]
"""

import argparse
import os
import tempfile
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from math import inf
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Lock
from typing import Any, ClassVar
from urllib.parse import parse_qs, unquote, urlsplit

import numpy as np
import torch
from common import show
from torch import nn

from gnn_encoder.models.dual_encoder import device
from gnn_encoder.settings.shared import Optimization
from gnn_encoder.storage.checkpoint_store import Checkpoints
from gnn_encoder.tracking.context import CHECKPOINTS, Context
from gnn_encoder.tracking.mlflow_runs import StepLog
from gnn_encoder.training.checkpoint import Position, Saver
from gnn_encoder.training.loop import Objective, fit

WIDTH, CHUNK, FIRST = 2048, 2**18, 3
"""Width of the model's layers; bytes that the store reads at a time; steps at the start that are not measured."""


class Over(Exception):
    """The steps are done."""


class Batches:
    """The same random rows at each step."""

    steps_per_epoch, batch_examples = 10**6, 1.0

    def __init__(self, rows: int) -> None:
        self._rows = torch.randn(rows, WIDTH, generator=torch.Generator().manual_seed(0))

    def draws(self, epoch: int) -> Iterator[int]:
        """Numbers without an end."""
        return iter(range(self.steps_per_epoch))

    def batch(self, drawn: int) -> torch.Tensor:
        """Rows [n, `WIDTH`]."""
        return self._rows


class Measured:
    """When each step began, and the processor seconds of all threads until then; when states were copied and sent."""

    def __init__(self) -> None:
        self.began: list[float] = []
        self.used: list[float] = []
        self.copies: dict[int, tuple[float, float]] = {}
        """Number of steps → when the copy of the state after them began and ended."""
        self.sent: dict[int, float] = {}
        """Number of steps → when the store had the state."""
        self._checkpoints: Checkpoints | None = None

    def train(self, options: argparse.Namespace) -> None:
        """Train `--steps` steps, with a checkpoint every `--every` seconds."""
        torch.manual_seed(0)
        layers = round(options.megabytes * 1e6 / 12 / WIDTH**2)
        net = nn.Sequential(*[nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(layers)])
        save, send = Saver.save, Checkpoints._send

        def loss(batch: torch.Tensor) -> torch.Tensor:
            self.began.append(time.perf_counter())
            self.used.append(time.process_time())
            if len(self.began) > FIRST + options.steps:
                raise Over
            result: torch.Tensor = net(batch.to(device())).square().mean()
            return result

        def saving(saver: Saver, position: Position, kept: Any) -> None:
            self._checkpoints, since = saver._checkpoints, time.perf_counter()
            save(saver, position, kept)
            self.copies[position.step] = since, time.perf_counter()

        def sending(checkpoints: Checkpoints, snapshot: Path, steps: int) -> None:
            send(checkpoints, snapshot, steps)
            self.sent[steps] = time.perf_counter()

        Saver.save, Checkpoints._send = saving, sending  # type: ignore[method-assign, assignment]
        try:
            settings = Optimization(epochs=1, learning_rate=1e-5, checkpoint_seconds=options.every, precision="fp32")
            fit(Objective(net, Batches(options.rows), loss), settings, Context("train", StepLog(), "training"))
        except Over:
            pass
        finally:
            Saver.save, Checkpoints._send = save, send  # type: ignore[method-assign]

    def finish(self) -> None:
        """Wait until the last state is sent, and remove all."""
        if self._checkpoints:
            self._checkpoints.finish()
            self._checkpoints.drop()

    def busy(self) -> np.ndarray:
        """Whether a state was copied, written or sent in each measured step, bool [steps]."""
        began, ended = np.array(self.began[FIRST:-1]), np.array(self.began[FIRST + 1 :])
        found = np.zeros(len(began), dtype=bool)
        for number, (since, _) in self.copies.items():  # of states that wait, only the last is sent
            until = min((when for steps, when in self.sent.items() if steps >= number), default=inf)
            found |= (ended > since) & (began < until)
        if found.all() or not found.any():
            raise SystemExit(f"{'every' if found.all() else 'no'} step has a checkpoint: give more --steps to compare")
        return found


class Store(BaseHTTPRequestHandler):
    """As much of S3 as checkpoints need; bodies are read at the rate, and thrown away."""

    protocol_version = "HTTP/1.1"
    free_at, lock = 0.0, Lock()
    rate: ClassVar[Any] = None
    """Bytes a second, shared with the benchmark's process."""
    sizes: ClassVar[dict[str, int]] = {}

    def _body(self) -> int:
        length = left = int(self.headers.get("Content-Length") or 0)
        while left:
            read = len(self.rfile.read(min(left, CHUNK)))
            left -= read
            with Store.lock:  # all connections share the rate
                now = time.monotonic()
                Store.free_at = min(max(Store.free_at, now) + read / Store.rate.value, now + 60)
            while Store.rate.value < inf and (wait := Store.free_at - time.monotonic()) > 0:
                time.sleep(min(wait, 1.0))
        return length

    def _answer(self, body: str = "", status: int = 200) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("ETag", '"x"')
        self.end_headers()
        self.wfile.write(body.encode())

    def do_PUT(self) -> None:
        """Take an object or a part."""
        key = unquote(urlsplit(self.path).path)
        Store.sizes[key] = Store.sizes.get(key, 0) + self._body()
        self._answer()

    def do_POST(self) -> None:
        """Begin or end an object in parts."""
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        kind = "Initiate" if "uploads" in urlsplit(self.path).query else "Complete"
        self._answer(f"<{kind}MultipartUploadResult><UploadId>1</UploadId></{kind}MultipartUploadResult>")

    def do_GET(self) -> None:
        """List objects, or unfinished ones, of which there are none. There is no marker of a folder."""
        url = urlsplit(self.path)
        bucket, query = f"{url.path.rstrip('/')}/", parse_qs(url.query)
        if "uploads" in url.query:
            return self._answer("<ListMultipartUploadsResult></ListMultipartUploadsResult>")
        if "prefix" not in query:
            return self._answer("<Error><Code>NoSuchKey</Code></Error>", 404)
        items = "".join(
            f"<Contents><Key>{key.removeprefix(bucket)}</Key><Size>{size}</Size><ETag>x</ETag></Contents>"
            for key, size in Store.sizes.copy().items()
            if key.startswith(bucket + query["prefix"][0])
        )
        return self._answer(f"<ListBucketResult><IsTruncated>false</IsTruncated>{items}</ListBucketResult>")

    def do_DELETE(self) -> None:
        """Remove an object."""
        Store.sizes.pop(unquote(urlsplit(self.path).path), None)
        self._answer(status=204)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def serve(rate: Any, address: Connection) -> None:
    """The store's process."""
    os.nice(19)  # it stands for another machine, so it should take little of this one's time
    Store.rate = rate
    server = ThreadingHTTPServer(("127.0.0.1", 0), Store)
    address.send(server.server_port)
    server.serve_forever()


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=2600)
    parser.add_argument("--rate", type=float, default=20.0)
    parser.add_argument("--every", type=float, default=60.0, help="seconds between two checkpoints, at least")
    parser.add_argument("--steps", type=int, default=1150, help="enough for a first state, which waits for its share")
    parser.add_argument("--rows", type=int, default=64, help="of a batch: more rows, longer steps")
    options = parser.parse_args()
    receiver, sender = get_context("spawn").Pipe(duplex=False)
    rate = get_context("spawn").Value("d", options.rate * 1e6)
    get_context("spawn").Process(target=serve, args=(rate, sender), daemon=True).start()
    os.environ |= {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{receiver.recv()}", "AWS_ACCESS_KEY_ID": "me",
        "AWS_SECRET_ACCESS_KEY": "secret", "AWS_DEFAULT_REGION": "here", "GNN_ENCODER_S3_ADDRESSING": "path",
        CHECKPOINTS: "s3://bucket/checkpoints",
    }  # fmt: skip
    measured = Measured()
    with tempfile.TemporaryDirectory() as folder:
        tempfile.tempdir = folder  # checkpoints of this machine
        measured.train(options)
        busy, sent = measured.busy(), len(measured.sent)
        rate.value = inf
        measured.finish()
    steps, used = np.diff(measured.began[FIRST:]), np.diff(measured.used[FIRST:])
    rows = []
    for name, some in (("no checkpoint is written", ~busy), ("one is written or sent", busy)):
        if some.any():
            figures = steps[some].mean(), steps[some].max(), used[some].mean()
            rows.append((name, f"{some.sum()}", *(f"{value:.3f}" for value in figures)))
    delay = float(steps[busy].sum() - busy.sum() * steps[~busy].mean())
    copies = sum(until - since for since, until in measured.copies.values())
    title = f"{options.megabytes} MB at least {options.every:.0f} s apart to a store of {options.rate:.0f} MB/s"
    caption = (
        f"{len(measured.copies)} states copied, {sent} sent. Steps are delayed by {delay:.1f} s in all, "
        f"{100 * delay / (steps.sum() - delay):.1f} %; the copies take {copies:.1f} s of that."
    )
    show(title, ("while", "steps", "seconds a step", "longest", "processor seconds"), rows, caption)


if __name__ == "__main__":
    main()

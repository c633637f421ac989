"""Steps of a training with checkpoints to a slow store, against the same training without checkpoints.

The state, parameters and two moments of each, has `--megabytes`. The store is a process on this machine that takes
`--rate` MB/s over all connections and keeps nothing. Both sides train the same steps and take turns, ABBA. The delay
is the difference of the sides' mean seconds a step, so it has all that checkpoints cost: copies, and the time of the
cores in the threads that write and send. Other work on the machine disturbs it, but hardly the processor time of this
process, of which the table has the mean a step, too. The end of a training, which waits for the store, is not
measured.

    python benchmarks/checkpoints.py [--megabytes 2600] [--rate 20] [--every 60] [--steps 150] [--rounds 2]
"""

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from math import inf
from multiprocessing import get_context
from multiprocessing.connection import Connection
from threading import Lock
from typing import Any, ClassVar
from urllib.parse import parse_qs, unquote, urlsplit

import torch
from common import show
from torch import nn

from gnn_encoder.models.dual_encoder import device
from gnn_encoder.settings.shared import Optimization
from gnn_encoder.storage.checkpoint_store import Checkpoints
from gnn_encoder.tracking.context import CHECKPOINTS, Context
from gnn_encoder.tracking.mlflow_runs import StepLog
from gnn_encoder.training.checkpoint import Saver
from gnn_encoder.training.loop import Objective, fit

WIDTH, CHUNK, FIRST = 2048, 2**18, 3
"""Width of the model's layers; bytes that the store reads at a time; steps at the start that are not measured."""


class Over(Exception):
    """The steps are done."""


class Batches:
    """The same random rows at each step."""

    steps_per_epoch, batch_examples = 10**6, 1

    def __init__(self, rows: int) -> None:
        self._rows = torch.randn(rows, WIDTH, generator=torch.Generator().manual_seed(0))

    def draws(self, epoch: int) -> Iterator[int]:
        """Numbers without an end."""
        return iter(range(self.steps_per_epoch))

    def batch(self, drawn: int) -> torch.Tensor:
        """Rows [n, `WIDTH`]."""
        return self._rows


class Measured:
    """Seconds of each step, and of each call in which a state is copied, of one side in all rounds."""

    def __init__(self) -> None:
        self.steps: list[float] = []
        self.copies: list[float] = []
        self.processor = 0.0
        """Processor seconds of all threads."""
        self.sent = 0
        self._checkpoints: Checkpoints | None = None

    def train(self, key: str, every: float, options: argparse.Namespace) -> None:
        """Train `--steps` steps, with a checkpoint every so many seconds."""
        torch.manual_seed(0)
        layers = round(options.megabytes * 1e6 / 12 / WIDTH**2)
        net = nn.Sequential(*[nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(layers)])
        began, used, save, send = [], [], Saver.save, Checkpoints._send

        def loss(batch: torch.Tensor) -> torch.Tensor:
            began.append(time.perf_counter())
            used.append(time.process_time())
            if len(began) > FIRST + options.steps:
                raise Over
            result: torch.Tensor = net(batch.to(device())).square().mean()
            return result

        def saving(saver: Saver, *given: Any) -> None:
            self._checkpoints, since = saver._checkpoints, time.perf_counter()
            save(saver, *given)
            self.copies.append(time.perf_counter() - since)

        def sending(*given: Any) -> None:
            send(*given)
            self.sent += len(began) <= FIRST + options.steps

        Saver.save, Checkpoints._send = saving, sending  # type: ignore[method-assign, assignment]
        try:
            settings = Optimization(epochs=1, learning_rate=1e-5, checkpoint_seconds=every, precision="fp32")
            fit(Objective(net, Batches(options.rows), loss), settings, Context("train", StepLog(), key))
        except Over:
            self.steps += [after - before for before, after in pairwise(began[FIRST:])]
            self.processor += used[-1] - used[FIRST]
        finally:
            Saver.save, Checkpoints._send = save, send  # type: ignore[method-assign]

    def finish(self) -> None:
        """Wait until the last state is sent, and remove all."""
        if self._checkpoints:
            self._checkpoints.finish()
            self._checkpoints.drop()


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
    parser.add_argument("--every", type=float, default=60.0, help="seconds between two checkpoints")
    parser.add_argument("--steps", type=int, default=150, help="of each side in each round")
    parser.add_argument("--rows", type=int, default=128, help="of a batch: more rows, longer steps")
    parser.add_argument("--rounds", type=int, default=2)
    options = parser.parse_args()
    receiver, sender = get_context("spawn").Pipe(duplex=False)
    rate = get_context("spawn").Value("d", options.rate * 1e6)
    get_context("spawn").Process(target=serve, args=(rate, sender), daemon=True).start()
    os.environ |= {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{receiver.recv()}", "AWS_ACCESS_KEY_ID": "me",
        "AWS_SECRET_ACCESS_KEY": "secret", "AWS_DEFAULT_REGION": "here", "GNN_ENCODER_S3_ADDRESSING": "path",
        CHECKPOINTS: "s3://bucket/checkpoints",
    }  # fmt: skip
    sides = {"without checkpoints": (1e9, Measured()), "with checkpoints": (options.every, Measured())}
    with tempfile.TemporaryDirectory() as folder:
        tempfile.tempdir = folder  # checkpoints of this machine
        for number in range(options.rounds):
            for name, (every, measured) in list(sides.items())[:: -1 if number % 2 else 1]:  # ABBA
                measured.train(f"{name}-{number}", every, options)
                rate.value = inf  # what is not sent yet would disturb the other side
                measured.finish()
                rate.value = options.rate * 1e6
    plain, saved = (measured for _, measured in sides.values())
    means = [statistics.fmean(each.steps) for each in (plain, saved)]
    rows = [
        (name, f"{len(each.steps)}", f"{mean:.3f}", f"{max(each.steps):.2f}", f"{len(each.copies)}, {each.sent}",
         f"{statistics.fmean(each.copies):.3f}" if each.copies else "", f"{each.processor / len(each.steps):.3f}")
        for (name, (_, each)), mean in zip(sides.items(), means, strict=True)
    ]  # fmt: skip
    headings = ("", "steps", "seconds a step", "longest", "states copied, sent", "seconds a copy", "processor seconds")
    title = f"{options.megabytes} MB every {options.every:.0f} s to a store of {options.rate:.0f} MB/s"
    delay, more = sum(saved.steps) - means[0] * len(saved.steps), saved.processor / plain.processor - 1
    caption = (
        f"Steps are delayed by {100 * (means[1] / means[0] - 1):.1f} %, {delay:.1f} s in all; the copies take "
        f"{100 * sum(saved.copies) / sum(saved.steps):.2f} %, {sum(saved.copies):.1f} s. "
        f"Processor time is {100 * more:.1f} % more."
    )
    show(title, headings, rows, caption)


if __name__ == "__main__":
    main()

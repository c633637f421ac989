"""The nodes that train one model together: tasks of one step, on machines that do not share a disk.

Node 1 leads. It opens torch's `TCPStore` on its own address, and announces address, port and a fresh token in the place
of the step's checkpoints (`storage.meeting`). The other nodes read the announcement and join. All keys in the store
begin with the token, and a number joins once: a node that is tried again joins the leader's next attempt, never the one
before. torch's own launcher (`torchrun`) needs an address that is known before the tasks start, which tasks of a
pipeline do not have.

Each node writes a counter and a word to its key once a second or so, and reads the keys of all nodes. A node whose
counter stands still is lost. A node that fails leaves the error as its word. All nodes then end with the cause named.
They are tried again, meet anew, and resume from the last checkpoint.
"""

import json
import os
import re
import secrets
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass
from datetime import timedelta
from multiprocessing import Pipe
from typing import Any

import torch.distributed as dist

from gnn_encoder.errors import UserError, one_line
from gnn_encoder.storage.meeting import Meeting
from gnn_encoder.tracking.context import Context

WAIT = "GNN_ENCODER_NODE_WAIT"
"""Environment variable: seconds in which all nodes of a training have to meet; by default an hour."""
LOST = "GNN_ENCODER_NODE_LOST"
"""Environment variable: seconds without a sign of life after which a node is lost; by default 30."""
PORT = "GNN_ENCODER_NODE_PORT"
"""Environment variable: the port on which the leader's store listens; by default any free port."""
LINE_SECONDS, PROBE_SECONDS = 10.0, 5.0
LINGER_SECONDS = 5.0
"""How long a failed leader keeps the store open, so that the other nodes read the cause."""
TCP_STORE: Any = dist.TCPStore  # type: ignore[attr-defined]
PREFIX_STORE: Any = dist.PrefixStore  # type: ignore[attr-defined]
AGAIN = "run again, and the training resumes from its last checkpoint"
BROKEN = re.compile(r"gloo/|Dist\w*Error")
"""In an error of a process whose connection to another process broke: the path of gloo's source, or torch's type."""
Others = Callable[[Callable[[Exception], None]], AbstractContextManager[None]]
DONE, LEFT = "done", "left"
"""Words of a node: of the leader when its outputs are complete, and of any node that stops writing."""


class LeaderLost(RuntimeError):
    """The leader is gone, so that no other node can go on."""


class NoLeader(UserError):
    """No leader announced itself in the time in which the nodes have to meet."""


@dataclass(frozen=True)
class Place:
    """Where the leader's store is, for one attempt."""

    host: str
    port: int
    token: str

    def store(self, timeout: timedelta) -> Any:
        """Returns a connection to the store; `timeout` is the limit of waits for a key."""
        tcp = TCP_STORE(self.host, self.port, None, False, timeout, False)
        return PREFIX_STORE(self.token, tcp)


class Nodes:
    """The nodes of a training that has `count` nodes, as node `number` (from 0) sees them."""

    def __init__(self, title: str, number: int, count: int) -> None:
        self.title, self.number, self.count = title, number, count
        self.lost_after = _number(LOST, 30.0)
        self.alarm, self._bell = Pipe(duplex=False)
        """A connection that becomes readable when another node fails; `failure` is then set."""
        self.failure: Exception | None = None
        self.place = Place("", 0, "")
        self._store: Any = None
        self._server: Any = None
        self._word = self._written = ""
        self._beats = 0
        self._states = [(0, "")] * count
        """Counter and word of each node; the counter of a node that has not joined is 0."""
        self._changed = [time.monotonic()] * count
        self._heard, self._stopped, self._wake = threading.Condition(), threading.Event(), threading.Event()
        self._contact = time.monotonic()
        self._thread = threading.Thread(target=self._exchange_until_stopped, name="nodes", daemon=True)
        self._watch = threading.Thread(target=self._notice_silence, name="nodes' watch", daemon=True)

    def name(self, number: int) -> str:
        """A node's name for users, who count from 1."""
        return f"node {number + 1} of {self.count}" + (", the leader," if number == 0 else "")

    def meet(self, meeting: Meeting) -> None:
        """Waits until all nodes have joined.

        Raises:
            UserError: they did not within the time limit, or the place of the checkpoints is not usable.
            RuntimeError: a node that had joined was lost.
        """
        limit = _number(WAIT, 3600.0)
        deadline = time.monotonic() + limit
        announced = ""
        if self.number == 0:
            announced = self._open()
            meeting.announce(announced)
        try:
            if not announced:
                self._join(meeting, deadline, limit)
            self._contact = time.monotonic()
            self._thread.start()
            self._watch.start()
            missing = self._until(lambda: all(beats for beats, _ in self._states), deadline)
        finally:
            if announced:
                meeting.close(announced)
        if missing:
            absent = ", ".join(str(i + 1) for i, (beats, _) in enumerate(self._states) if not beats)
            raise UserError(_late(f"of the {self.count} nodes, {absent} did not come within {limit:,.0f} s", meeting))

    def cause(self, error: Exception) -> Exception:
        """Returns the failure behind an error: of another node, if the error is a broken connection to it."""
        with self._heard:
            if BROKEN.search(str(error)):
                self._heard.wait_for(lambda: self.failure, self.lost_after + 2 * self._pause)
            return self.failure or error

    def finish(self) -> None:
        """Waits until the leader's outputs are complete; the leader waits until the other nodes know.

        Raises:
            Exception: the failure of another node.
        """
        if self.number:
            self._until(lambda: self._states[0][1] == DONE, None)
            self._say(LEFT)
            return
        with self._heard:
            before = self._beats
            self._heard.wait_for(lambda: self.failure or self._beats > before + 1, self.lost_after)  # the last news
            if self.failure:
                raise self.failure
            self._word = DONE  # from here on, no node's failure counts
        self._say(DONE)
        self._wait_for_others(self.lost_after)

    def fail(self, error: BaseException) -> None:
        """Says to the other nodes why this node ends, unless another node's failure is the reason."""
        if not self._thread.is_alive():
            return
        text = "it was stopped" if isinstance(error, KeyboardInterrupt) else one_line(error)
        told = {"user": isinstance(error, UserError), "text": text}
        self._say(LEFT if self.failure else json.dumps(told))
        if self.number == 0:
            self._wait_for_others(LINGER_SECONDS)

    def close(self) -> None:
        """Ends the exchange; the leader's store closes."""
        self._stopped.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(2 * self._pause)  # it may wait for a machine that is gone
        self._store = self._server = None

    @property
    def _pause(self) -> float:
        return min(1.0, self.lost_after / 5)

    def _open(self) -> str:
        """Opens the leader's store; returns the announcement."""
        name, port = socket.gethostname(), int(_number(PORT, 0))
        try:
            family, _, _, _, address = socket.getaddrinfo(name, port, type=socket.SOCK_STREAM)[0]
            listener = socket.create_server(address, family=family, backlog=1024)
        except OSError as error:
            raise UserError(f"no store for the nodes on {name}, port {port}: {error.strerror}; set {PORT}") from None
        host, port = listener.getsockname()[:2]
        self.place, timeout = Place(host, port, secrets.token_hex(8)), timedelta(seconds=self.lost_after)
        self._server = TCP_STORE(host, port, None, True, timeout, False, master_listen_fd=listener.detach())
        self._store = PREFIX_STORE(self.place.token, self._server)
        for number in range(self.count):
            self._store.set(_key(number), "0 ")
        self._store.add(f"joined/{self.number}", 1)
        return json.dumps(asdict(self.place))

    def _join(self, meeting: Meeting, deadline: float, limit: float) -> None:
        """Joins the leader's attempt that was announced last."""
        refused, printed = set(), time.monotonic()
        while True:
            place = _parsed(meeting.read())
            if place and place.token not in refused:
                with suppress(OSError, dist.DistError):  # it is dead, or not reachable yet
                    if self._joined(place):
                        return
                    refused.add(place.token)
            if (now := time.monotonic()) > deadline:
                where = f" at {place.host}:{place.port}" if place else ""
                what = f"{self.name(self.number)} found no leader{where} within {limit:,.0f} s"
                raise NoLeader(_late(what, meeting))
            if now - printed >= LINE_SECONDS:
                printed = now
                print(f"{self.title}: {self.name(self.number)} waits for the leader", file=sys.stderr)
            time.sleep(self._pause)

    def _joined(self, place: Place) -> bool:
        """Whether this node is now part of an attempt; no if the attempt had this node before."""
        socket.create_connection((place.host, place.port), PROBE_SECONDS).close()  # torch's error has forty lines
        store = place.store(timedelta(seconds=self.lost_after))
        if not store.check([_key(self.number)]) or store.add(f"joined/{self.number}", 1) > 1:
            return False
        self.place, self._store = place, store
        return True

    def _say(self, word: str) -> None:
        """Lets the other nodes read a word, now."""
        with self._heard:
            self._word = word
            self._wake.set()
            self._heard.wait_for(lambda: self._written == word or self._stopped.is_set(), 2 * self.lost_after)

    def _until(self, ready: Callable[[], bool], deadline: float | None) -> bool:
        """Waits until something is so, printing what is waited for; returns whether the deadline passed before.

        Raises:
            Exception: the failure of another node.
        """
        printed = time.monotonic()
        with self._heard:
            while not ready():
                if self.failure:
                    raise self.failure
                if deadline and time.monotonic() > deadline:
                    return True
                if time.monotonic() - printed >= LINE_SECONDS and not all(beats for beats, _ in self._states):
                    printed = time.monotonic()
                    here = sum(beats > 0 for beats, _ in self._states)
                    print(f"{self.title}: {here} of {self.count} nodes have met", file=sys.stderr)
                self._heard.wait(self._pause)
        return False

    def _wait_for_others(self, seconds: float) -> None:
        """Waits until all other nodes have said their last word; the store must be open until then."""
        with self._heard:
            others = [number for number in range(self.count) if number != self.number]
            self._heard.wait_for(lambda: all(self._states[number][1] for number in others), seconds)

    def _exchange_until_stopped(self) -> None:
        """The main function of the thread that writes and reads the nodes' keys."""
        keys = [_key(number) for number in range(self.count)]
        while True:
            self._wake.clear()
            word = self._word
            try:
                self._store.set(keys[self.number], f"{self._beats + 1} {word}")
                values = self._store.multi_get(keys)
            except dist.DistError:
                self._stopped.set()
                self.ring(LeaderLost(f"{self.name(0)} was lost: the connection to it broke; {AGAIN}"))
                return
            with self._heard:
                self._beats, self._written, self._contact = self._beats + 1, word, time.monotonic()
                for number, value in enumerate(values):
                    self._read(number, value.decode())
                self._heard.notify_all()
            if self._stopped.is_set():
                return
            self._wake.wait(self._pause)

    def _notice_silence(self) -> None:
        """The main function of the thread that notices if the leader's machine is gone.

        An operation of torch's store may then wait without end, whatever the store's timeout is (torch 2.13).
        """
        while not self._stopped.wait(self._pause):
            if (silent := time.monotonic() - self._contact) > self.lost_after:
                self._stopped.set()
                self.ring(LeaderLost(f"{self.name(0)} was lost: no answer for {silent:.0f} s; {AGAIN}"))

    def _read(self, number: int, value: str) -> None:
        """Takes note of the state of a node."""
        beats, _, word = value.partition(" ")
        now, state = time.monotonic(), (int(beats), word)
        if state != self._states[number]:
            self._states[number], self._changed[number] = state, now
        if number == self.number:
            return
        if word.startswith("{"):
            told = json.loads(word)
            kind = UserError if told["user"] else RuntimeError
            self.ring(kind(f"{self.name(number)} failed: {told['text']}"))
        elif state[0] and not word and (silent := now - self._changed[number]) > self.lost_after:
            what = f"no sign of life for {silent:.0f} s (was it killed, or is its machine gone?)"
            self.ring(RuntimeError(f"{self.name(number)} was lost: {what}; {AGAIN}"))

    def ring(self, failure: Exception) -> None:
        """Ends this node's block with a failure, unless the node has ended or failed already; for any thread."""
        with self._heard:
            if not self.failure and not self._word:
                self.failure = failure
                self._bell.send(None)
            self._heard.notify_all()


@contextmanager
def gathered(context: Context, number: int, count: int, others: Others = lambda ring: nullcontext()) -> Iterator[Nodes]:
    """A block in which the nodes of a training are together; it begins when all have met, and ends in all together.

    The block of the leader, number 0, has to complete the outputs. An error in a block ends the blocks of all nodes.
    `others` is a block around it, in which the other nodes exist; it calls `Nodes.ring` if they fail.
    """
    nodes = Nodes(context.title or context.step, number, count)
    with others(nodes.ring):
        try:
            nodes.meet(context.meeting())
            yield nodes
            nodes.finish()
        except BaseException as error:
            nodes.fail(error)
            raise
        finally:
            nodes.close()


def _key(number: int) -> str:
    return f"node/{number}"


def _parsed(text: str) -> Place | None:
    """The announced place; None without a place that can be read."""
    with suppress(ValueError, TypeError):
        place = Place(**json.loads(text))
        if isinstance(place.host, str) and isinstance(place.port, int) and isinstance(place.token, str):
            return place
    return None


def _late(what: str, meeting: Meeting) -> str:
    return (
        f"{what} (they meet at {meeting}): check that all pods run, that they can reach each other, and that no node's "
        f"output came from a cache; {WAIT} is the time limit in seconds"
    )


def _number(variable: str, default: float) -> float:
    text = os.environ.get(variable, "")
    try:
        value = float(text or default)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1e6:
        raise UserError(f"{variable} = {text}: write a number, such as {default:.0f}")
    return value

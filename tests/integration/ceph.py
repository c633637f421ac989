"""A real object store for the tests: Ceph with one disk and the S3 gateway, on loopback in one folder."""

import os
import shutil
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
import uuid
from pathlib import Path

from private_ca import write_certificates

PROGRAMS = ("ceph", "ceph-authtool", "ceph-mgr", "ceph-mon", "ceph-osd", "monmaptool", "radosgw", "radosgw-admin")
PACKAGES = ("ceph-common", "ceph-mgr", "ceph-mon", "ceph-osd", "radosgw")
ACCESS_KEY, SECRET_KEY = "integration", "integration-secret-key"
READY_SECONDS = 240
DISK_BYTES = 8 * 2**30
"""Of the disk's file, which takes no more than what is stored."""

CONFIGURATION = """\
[global]
fsid = {fsid}
mon host = [v2:127.0.0.1:{v2}/0,v1:127.0.0.1:{v1}/0]
public network = 127.0.0.0/8
public addr = 127.0.0.1
cluster addr = 127.0.0.1
auth allow insecure global id reclaim = false
osd pool default size = 1
osd pool default min size = 1
mon allow pool size one = true
osd crush chooseleaf type = 0
osd pool default pg num = 8
osd pool default pgp num = 8
mon max pg per osd = 500
mon data avail warn = 2
mon data avail crit = 1
mon osd nearfull ratio = .95
mon osd backfillfull ratio = .96
mon osd full ratio = .97
bluestore block size = {disk}
bluestore block create = true
osd memory target = 1073741824
keyring = {folder}/keyring
run dir = {folder}/run
admin socket = {folder}/run/$name.asok
pid file = {folder}/run/$name.pid
log file = {folder}/log/$name.log
crash dir = {folder}/log
mon data = {folder}/mon
mgr data = {folder}/mgr
osd data = {folder}/osd
rgw data = {folder}/rgw
[client.rgw]
rgw frontends = beast endpoint=127.0.0.1:{port} ssl_endpoint=127.0.0.1:{tls_port} \
    ssl_certificate={certificate} tcp_nodelay=1
rgw enable ops log = false
rgw thread pool size = 64
"""


class Ceph:
    """The store in a folder; it can be killed and started again with what it holds."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        v1, v2, self.port, self._tls_port = free_ports(4)
        for name in ("run", "log", "mon", "mgr", "osd", "rgw"):
            (folder / name).mkdir(parents=True)
        self._fsid, self._monitor = str(uuid.uuid4()), f"[v2:127.0.0.1:{v2},v1:127.0.0.1:{v1}]"
        self.authority, certificate = write_certificates(folder)
        configuration = CONFIGURATION.format(
            fsid=self._fsid, v1=v1, v2=v2, port=self.port, tls_port=self._tls_port, certificate=certificate,
            folder=folder, disk=DISK_BYTES,
        )  # fmt: skip
        (folder / "ceph.conf").write_text(configuration)
        self._daemons: list[subprocess.Popen[bytes]] = []
        self._made = False

    @property
    def endpoint(self) -> str:
        """Where the gateway listens."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def tls_endpoint(self) -> str:
        """The same with a certificate that `authority` signed."""
        return f"https://127.0.0.1:{self._tls_port}"

    def start(self) -> None:
        """Start all daemons and wait until the gateway answers; the first time the cluster and a user are made."""
        if not self._made:
            self._make_monitor()
        self._daemon("ceph-mon", "-i", "a")
        wait_for(lambda: self._asks("ceph", "-s"), "the object store's monitor")
        self._daemon("ceph-mgr", "-i", "x")
        if not self._made:
            disk = str(uuid.uuid4())
            number = self.run("ceph", "osd", "new", disk).strip()
            self.run("ceph-osd", "-i", number, "--mkfs", "--osd-uuid", disk)
        self._daemon("ceph-osd", "-i", "0")
        wait_for(lambda: "1 up" in self.run("ceph", "osd", "stat"), "the object store's disk")
        self._daemon("radosgw", "-n", "client.rgw")
        wait_for(lambda: answers(self.endpoint), "the object store's gateway")
        if not self._made:
            keys = (f"--access-key={ACCESS_KEY}", f"--secret-key={SECRET_KEY}")
            self.run("radosgw-admin", "user", "create", "--uid=tests", "--display-name=tests", *keys)
        self._made = True

    def kill(self) -> None:
        """kill -9 of every daemon at once."""
        for daemon in self._daemons:
            daemon.send_signal(signal.SIGKILL)
        for daemon in self._daemons:
            daemon.wait()
        self._daemons.clear()

    def remove(self) -> None:
        """Kill it and delete what it holds."""
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def run(self, *command: str) -> str:
        """One of Ceph's commands; what it prints."""
        done = subprocess.run(command, env=self._environment(), capture_output=True, text=True, timeout=60, check=False)
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)}: {done.stderr[-2000:]}")
        return done.stdout

    def _make_monitor(self) -> None:
        keyring, monmap = str(self.folder / "keyring"), str(self.folder / "monmap")
        self.run("monmaptool", "--create", "--fsid", self._fsid, "--addv", "a", self._monitor, monmap)
        self.run("ceph-authtool", "-C", keyring, "-n", "mon.", "--gen-key", "--cap", "mon", "allow *")
        rights = [word for part in ("mon", "osd", "mgr") for word in ("--cap", part, "allow *")]
        for name in ("client.admin", "client.rgw", "mgr.x", "osd.0"):
            self.run("ceph-authtool", keyring, "-n", name, "--gen-key", *rights)
        self.run("ceph-mon", "--mkfs", "-i", "a", "--monmap", monmap, "--keyring", keyring)

    def _daemon(self, *command: str) -> None:
        with (self.folder / "log" / f"{command[0]}.out").open("ab") as log:
            daemon = subprocess.Popen([*command, "-f"], env=self._environment(), stdout=log, stderr=log)
        self._daemons.append(daemon)

    def _asks(self, *command: str) -> bool:
        try:
            self.run(*command)
        except (RuntimeError, subprocess.TimeoutExpired):
            return False
        return True

    def _environment(self) -> dict[str, str]:
        return {**os.environ, "CEPH_CONF": str(self.folder / "ceph.conf")}


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on now."""
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def answers(url: str) -> bool:
    """Whether an HTTP server is there, whatever it says."""
    try:
        urllib.request.urlopen(url, timeout=5)
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False
    return True


def wait_for(ready, what: str) -> None:
    """Until it is ready, or fail."""
    until = time.monotonic() + READY_SECONDS
    while not ready():
        if time.monotonic() > until:
            raise RuntimeError(f"{what} did not start within {READY_SECONDS} s")
        time.sleep(0.2)

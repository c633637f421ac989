"""MLflow's server with PostgreSQL behind it and its artifacts in the object store, on loopback."""

import os
import pwd
import shutil
import subprocess
import sys
from pathlib import Path

from integration.ceph import answers, free_ports, wait_for
from integration.engine import quietly

PACKAGES = ("postgresql",)
DRIVER = "psycopg2"


def programs() -> Path | None:
    """Debian's folder of PostgreSQL's programs, of the newest version; None where it is not installed."""
    initdbs = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[4]))
    return initdbs[-1].parent if initdbs else None


class TrackingServer:
    """The server and its database, in a folder."""

    def __init__(self, folder: Path, artifacts: str) -> None:
        self.folder, self._artifacts = folder, artifacts
        self._database, self._port = free_ports(2)
        self._processes: list[subprocess.Popen[bytes]] = []

    @property
    def uri(self) -> str:
        """Where it answers."""
        return f"http://127.0.0.1:{self._port}"

    @property
    def database_uri(self) -> str:
        """Where its database is, which lets anybody in, whatever the password."""
        return f"postgresql+psycopg2://postgres@127.0.0.1:{self._database}/postgres"

    def dump(self) -> str:
        """All that is in the database, as SQL."""
        bin_ = programs()
        assert bin_ is not None
        return quietly(
            str(bin_ / "pg_dump"), "-h", "127.0.0.1", "-p", str(self._database), "-U", "postgres", "postgres"
        )

    def start(self) -> None:
        """Make the database and start both."""
        bin_, data = programs(), self.folder / "data"
        assert bin_ is not None
        self.folder.chmod(0o755)
        data.mkdir()
        owner = pwd.getpwnam("postgres")  # it refuses to run as root
        os.chown(data, owner.pw_uid, owner.pw_gid)
        as_owner = ("runuser", "-u", "postgres", "--")
        quietly(*as_owner, str(bin_ / "initdb"), "--auth=trust", "-D", str(data))
        options = ["-D", str(data), "-p", str(self._database), "-k", "", "-c", "listen_addresses=127.0.0.1"]
        self._start(*as_owner, str(bin_ / "postgres"), *options)
        ready = [str(bin_ / "pg_isready"), "-h", "127.0.0.1", "-p", str(self._database), "-q"]
        wait_for(lambda: subprocess.run(ready, check=False).returncode == 0, "the database")
        self._start(
            sys.executable, "-m", "mlflow", "server", "--backend-store-uri", self.database_uri, "--workers", "1",
            "--artifacts-destination", self._artifacts, "--host", "127.0.0.1", "--port", str(self._port),
        )  # fmt: skip
        wait_for(lambda: answers(f"{self.uri}/health"), "MLflow")

    def remove(self) -> None:
        """Stop both and delete what they hold."""
        for process in reversed(self._processes):
            process.terminate()
            process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _start(self, *command: str) -> None:
        environment = {**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
        with (self.folder / "log").open("ab") as log:
            self._processes.append(subprocess.Popen(command, stdout=log, stderr=log, env=environment))

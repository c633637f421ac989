"""MLflow stores whose tables are copied: MLflow takes a second or more to make them, and many tests have a store."""

import functools
import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path


@functools.cache
def _tables() -> bytes:
    from mlflow.tracking import MlflowClient

    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder) / "mlflow.db"
        MlflowClient(f"sqlite:///{store}").search_experiments()
        with closing(sqlite3.connect(store)) as connection:
            return connection.serialize()


def write_store(path: Path) -> str:
    """Write an empty store; returns its URI."""
    path.write_bytes(_tables())
    return f"sqlite:///{path}"

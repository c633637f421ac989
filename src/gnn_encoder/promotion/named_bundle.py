"""What a user names as a bundle: a folder, an `s3://` address, or a registered version."""

import re
from pathlib import Path

from gnn_encoder.errors import UserError
from gnn_encoder.promotion.registry import open_registry
from gnn_encoder.storage import is_remote, local_folder
from gnn_encoder.tracking.pipeline_run import existing_store, impatient

SCHEME = "models:/"
_NAMED = re.compile(rf"{SCHEME}(?P<name>[^@/]+)[@/](?P<version>[^@/]+)")


def named_bundle(name: str, root: Path) -> Path:
    """The folder on this machine that `name` means.

    A registered version (`models:/NAME@ALIAS`, `models:/NAME/VERSION`) is looked up in the environment's tracking
    store, else the root's. Where ROOT/latest leads to the same bundle it is named, as what explains it lies there.

    Raises:
        UserError: no such version, or nothing complete where it should lie.
    """
    registered = parse_name(name)
    if registered is None:
        if not is_remote(name) and not local_folder(name).is_dir():
            raise UserError(
                f"no bundle {name}: name a folder such as gnn-encoder-runs/latest/bundle, an s3:// address or "
                f"{SCHEME}NAME@ALIAS"
            )
        return local_folder(name)
    model, version = registered
    with impatient():
        found = open_registry(existing_store(root), model).find(version)
    folder, latest = found.bundle_folder(), root / "latest" / "bundle"
    return latest if latest.exists() and latest.resolve() == folder else folder


def parse_name(text: str) -> tuple[str, str] | None:
    """`models:/NAME@ALIAS` or `models:/NAME/VERSION` as name and alias or version; None of anything else.

    Raises:
        UserError: it begins so, and does not go on so.
    """
    if not text.startswith(SCHEME):
        return None
    if not (found := _NAMED.fullmatch(text)):
        raise UserError(f"{text}: write {SCHEME}NAME@ALIAS or {SCHEME}NAME/VERSION")
    return found["name"], found["version"]

"""The browser that all tests here share."""

import os
import shutil
from collections.abc import Iterator
from typing import Any

import pytest
from required import missing

QUIET = ("--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-background-networking", "--disable-sync")


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    try:
        from playwright.sync_api import sync_playwright
    except ModuleNotFoundError:
        missing("no playwright: make test-browser installs it")
    program = os.environ.get("GNN_ENCODER_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
    if not program:
        missing("no Chromium: apt-get install chromium, or name one in GNN_ENCODER_CHROMIUM")
    with sync_playwright() as engine:
        opened = engine.chromium.launch(executable_path=program, args=list(QUIET))
        yield opened
        opened.close()

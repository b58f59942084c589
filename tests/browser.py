"""Headless Chromium for tests of pages."""

from __future__ import annotations

import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium")


class Quiet(SimpleHTTPRequestHandler):
    """Serves files without logging requests."""

    def log_message(self, *args: object) -> None:
        pass


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """Serve a folder and return its address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()


def opened(address: str, profile: Path, *flags: str, seconds: int = 15) -> tuple[str, list[str]]:
    """The page after its scripts have run for some seconds of virtual time, and its console output."""
    chromium = [str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", f"--virtual-time-budget={1000 * seconds}"]
    command = [*chromium, "--enable-logging=stderr", f"--user-data-dir={profile}", *flags, "--dump-dom", address]
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=110)
    return result.stdout, [line for line in result.stderr.splitlines() if "CONSOLE" in line]

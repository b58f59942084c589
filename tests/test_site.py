"""The documentation site builds without warnings, and a browser shows it."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import Quiet, needs_chromium, opened, served

ROOT = Path(__file__).parent.parent
pytestmark = [pytest.mark.slow, needs_chromium]

# The search runs in a worker, for which the browser's virtual clock does not wait; it does for requests.
PROBE = """<iframe src="/?q=toeplitz_product"></iframe><pre id="found"></pre><script>
onload = async () => {
  for (let i = 0; i < 5; i++) await fetch("/wait");
  const page = document.querySelector("iframe").contentDocument;
  found.textContent = page.querySelector(".md-search-result__list").textContent;
};
</script>"""


class Slow(Quiet):
    """Waits two real seconds on ``/wait``."""

    def do_GET(self) -> None:
        if self.path == "/wait":
            time.sleep(2)
            self.send_response(204)
            self.end_headers()
        else:
            super().do_GET()


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The site, built in strict mode: a link or an anchor without a target is an error."""
    pytest.importorskip("mkdocs")
    site = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(site)]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    (site / "probe.html").write_text(PROBE)
    with served(site, Slow) as address:
        yield address


@pytest.mark.parametrize("size", ["1280,900", "390,844"])
def test_the_first_page_has_a_title_and_a_figure(address: str, tmp_path: Path, size: str) -> None:
    page, console = opened(address, tmp_path, f"--window-size={size}")
    assert "<title>lagwise</title>" in page
    assert re.search(r'<img[^>]*src="figures/results\.png"', page)
    assert not console


def test_a_search_finds_the_function(address: str, tmp_path: Path) -> None:
    page, console = opened(f"{address}probe.html", tmp_path)
    found = re.search(r'<pre id="found">(.*?)</pre>', page, re.S)
    assert found is not None
    assert "toeplitz_product" in found[1]
    assert not console


@pytest.mark.parametrize("path", ["reference/ops/", "benchmarks/", "recipes/"])
def test_a_page_opens_without_an_error(address: str, tmp_path: Path, path: str) -> None:
    page, console = opened(address + path, tmp_path)
    assert "<h1" in page
    assert not console

"""Reports in a browser: scripts run without errors, plots zoom, and pages fit the width of a phone."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import pytest
from browser import needs_chromium, opened

from lagwise.analysis.report import plot_run
from lagwise.runs import evaluate_run

pytestmark = [pytest.mark.slow, needs_chromium]

# Opens the first plot, turns the wheel over its upper left quarter, presses the buttons, drags, and closes it again.
PROBE = """<script>
const boxes = [], box = () => boxes.push(plot.getAttribute("viewBox"));
document.querySelector("figure button").click();
box();
const area = plot.getBoundingClientRect();
const at = { clientX: area.x + area.width / 4, clientY: area.y + area.height / 4, pointerId: 1, cancelable: true };
plot.dispatchEvent(new WheelEvent("wheel", { ...at, deltaY: -200 }));
box();
plot.setPointerCapture = () => {};  // there is no real pointer
plot.dispatchEvent(new PointerEvent("pointerdown", at));
plot.dispatchEvent(new PointerEvent("pointermove", { ...at, clientX: at.clientX + 100 }));
plot.dispatchEvent(new PointerEvent("pointerup", at));
box();
for (const button of dialog.querySelectorAll("button[value]")) {
  button.click();
  box();
}
const isOpen = dialog.open;
dialog.close();
dialog.addEventListener("close", () => {
  const found = { boxes, isOpen, left: dialog.querySelectorAll("svg").length };
  document.body.insertAdjacentHTML("beforeend", `<pre id="found">${JSON.stringify(found)}</pre>`);
});
</script>"""
# Headless windows have a least width, frames have none.
PHONE = """<iframe src="{page}" style="width: 390px; height: 800px"></iframe><pre id="found"></pre><script>
onload = () => {{
  const page = document.querySelector("iframe").contentDocument.documentElement;
  const figures = [...page.querySelectorAll("td:nth-child(2)")];
  const hidden = figures.filter(cell => cell.getBoundingClientRect().right > page.clientWidth).length;
  const plots = page.querySelectorAll("figure svg").length;
  found.textContent = [page.scrollWidth, page.clientWidth, plots, figures.length, hidden].join(" ");
}};
</script>"""


@pytest.fixture
def report(tiny_run: Path) -> Path:
    evaluate_run(tiny_run, [32, 64], progress=False)
    return plot_run(tiny_run)[-1]


def test_a_plot_zooms(report: Path, tmp_path: Path) -> None:
    probe = report.with_name("probe.html")
    probe.write_text(report.read_text().replace("</body>", f"{PROBE}</body>"))
    page, console = opened(probe.as_uri(), tmp_path / "profile", "--window-size=1280,900")
    assert not console
    assert '<a href="#learning">' in page
    found = re.search(r'<pre id="found">(\{.*?)</pre>', page, re.S)
    assert found is not None
    boxes, is_open, left = json.loads(found[1]).values()
    assert is_open
    assert left == 0
    whole, zoomed, dragged, nearer, farther, reset = [[float(n) for n in box.split()] for box in boxes]
    assert zoomed[2] == pytest.approx(whole[2] * math.exp(-0.4))
    assert zoomed[2] / zoomed[3] == pytest.approx(whole[2] / whole[3])
    assert zoomed[0] > whole[0]
    assert zoomed[0] - dragged[0] == pytest.approx(100 * zoomed[2] / 1280, rel=0.2)
    assert dragged[2:] == zoomed[2:]
    assert nearer[2] == pytest.approx(0.7 * zoomed[2])
    assert farther[2] == pytest.approx(1.4 * nearer[2])
    assert reset == whole


@pytest.mark.parametrize("flags", [[], ["--blink-settings=preferredColorScheme=0"]], ids=["light", "dark"])
def test_pages_fit_the_width_of_a_phone(report: Path, tmp_path: Path, flags: list[str]) -> None:
    (report.parent / "phone.html").write_text(PHONE.format(page=report.name))
    flags = [*flags, "--allow-file-access-from-files"]
    page, console = opened((report.parent / "phone.html").as_uri(), tmp_path / "profile", *flags)
    assert not console
    found = re.search(r'<pre id="found">(\d+) (\d+) (\d+) (\d+) (\d+)</pre>', page)
    assert found is not None
    assert int(found[1]) <= int(found[2]) <= 390
    assert int(found[3]) == 4
    assert int(found[4]) > 10
    assert int(found[5]) == 0  # the first column of figures is seen without scrolling

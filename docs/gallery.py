"""Write gallery.md: the scripts of examples/ that draw a figure, run anew, each with its figure and its code."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "gallery.md"
FIGURES = ROOT / "docs" / "figures"


def scripts() -> list[Path]:
    """The scripts that draw a figure of their own name."""
    return [path for path in sorted((ROOT / "examples").glob("*.py")) if f'"{path.stem}.png"' in path.read_text()]


def draw(script: Path, folder: Path) -> Path:
    """Run a script in a folder, and return its figure."""
    environment = {**os.environ, "MPLBACKEND": "Agg"}
    subprocess.run([sys.executable, str(script)], cwd=folder, env=environment, check=True)
    return folder / f"{script.stem}.png"


def page() -> str:
    """The text of the page."""
    parts = [
        "# Gallery\n\nEach script runs in seconds and draws its figure; all are in [`examples/`](../examples). "
        "`stream_onnx.py` there\nstreams an exported model without PyTorch ([export](export.md)), and\n"
        "[`tnn_in_one_file.py`](../examples/tnn_in_one_file.py) is a whole TNN to read.\n"
    ]
    for script in scripts():
        code = script.read_text()
        title = ast.get_docstring(ast.parse(code)) or script.stem
        body = code.split('"""', 2)[2].strip()
        parts.append(
            f"## {title.rstrip('.')}\n\n![{title}](figures/{script.stem}.png)\n\n"
            f"`examples/{script.name}`:\n\n```python\n{body}\n```\n"
        )
    return "\n".join(parts)


if __name__ == "__main__":
    for each in scripts():
        with tempfile.TemporaryDirectory() as temporary:
            (FIGURES / f"{each.stem}.png").write_bytes(draw(each, Path(temporary)).read_bytes())
    PAGE.write_text(page())

"""What forecasting says without the packages that it needs."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize(("missing", "named"), [(["sklearn"], "scikit-learn"), (["pandas", "sklearn"], "scikit-learn")])
def test_missing_packages_are_named(missing: list[str], named: str) -> None:
    blocked = "; ".join(f"sys.modules[{name!r}] = None" for name in missing)
    code = f"import sys; {blocked}\nfrom lagwise import LagForecaster"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert f"ImportError: {named} is missing: install lagwise[forecast]" in done.stderr

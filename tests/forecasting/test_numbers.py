"""Numbers as people write them, and codes for missing values."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from lagwise.data.numbers import decimal_separator
from lagwise.forecasting.numbers import missing_codes, to_numbers


def read(texts: list[str], usual: str) -> list[float]:
    return to_numbers(pd.Series(texts, name="y", dtype=str), decimal_separator([texts], usual)).tolist()


@pytest.mark.parametrize(
    ("texts", "usual", "numbers"),
    [
        (["987", "1.000", "1.013"], ",", [987, 1000, 1013]),
        (["987", "1,000", "1,013"], ".", [987, 1000, 1013]),
        (["987", "1,000", "1,013"], ",", [987, 1000, 1013]),
        (["1.013,5", "1.014", "3"], ",", [1013.5, 1014, 3]),
        (["1,013.5", "1,014", "3"], ".", [1013.5, 1014, 3]),
        (["1.234.567", "1.013"], ",", [1234567, 1013]),
        (["0.5", "1.013", "2"], ",", [0.5, 1.013, 2]),
        (["0,5", "1,013", "2"], ",", [0.5, 1.013, 2]),
        (["1.013", "1.250"], ".", [1.013, 1.25]),
        (["1,013", "1,250"], ",", [1.013, 1.25]),
        (["1 013,5", "7\u00a0000", "12"], ",", [1013.5, 7000, 12]),
        (["1'013", "987"], ".", [1013, 987]),
        (["\u22121.5", "-2", "+3", "1e5", "2.5E-3"], ".", [-1.5, -2, 3, 1e5, 2.5e-3]),
    ],
)
def test_separators(texts: list[str], usual: str, numbers: list[float]) -> None:
    assert read(texts, usual) == numbers


def test_numbers_that_may_be_read_in_two_ways_are_refused() -> None:
    with pytest.raises(ValueError, match=r"such as '1.013' may be thousands or have three decimals"):
        read(["1.013", "1.250"], ",")
    with pytest.raises(ValueError, match=r"such as '1.55' and '1,5'"):
        read(["1,5", "1.55"], ",")
    with pytest.raises(ValueError, match=r"column 'y' has '1,2,3' in row 2"):
        read(["1.5", "1,2,3"], ".")


def test_text_is_read_to_the_last_digit() -> None:
    values = np.random.default_rng(0).normal(size=200) * 10.0 ** np.arange(-100, 100)
    assert read([repr(float(value)) for value in values], ".") == values.tolist()


WAVE = 20 + 3 * np.sin(np.arange(300) * 2 * np.pi / 7)


@pytest.mark.parametrize("code", [-999, 999999, -99, -9, 9999, -999.9, 1e20, -32768])
def test_codes_for_missing_values_are_found(code: float) -> None:
    values = WAVE.copy()
    values[[40, 41, 120]] = code
    found, notes = missing_codes("y", values)
    assert np.flatnonzero(np.isnan(found)).tolist() == [40, 41, 120]
    assert len(notes) == 1
    assert f"has {code:g} 3 times" in notes[0]


@pytest.mark.parametrize(
    "values",
    [np.arange(300) % 100, np.arange(300) % 10, np.arange(0, 3000, 3) - 999, WAVE, np.full(30, 99), [9, 99, 5]],
)
def test_values_that_are_no_codes_stay(values: np.ndarray) -> None:
    values = np.asarray(values, dtype=float)
    found, notes = missing_codes("y", values)
    np.testing.assert_array_equal(found, values)
    assert notes == []


def test_values_far_from_the_rest_are_named_and_stay() -> None:
    values = WAVE.copy()
    values[[7, 9]] = 5000, 6000
    found, notes = missing_codes("y", values)
    np.testing.assert_array_equal(found, values)
    assert "has 5000 in row 8 and 1 more" in notes[0]

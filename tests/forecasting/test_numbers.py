"""Numbers of a table, and codes for missing values."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from lagwise.forecasting.numbers import to_numbers, without_codes


def test_numbers_of_text_are_named_by_column_and_row() -> None:
    column = pd.Series(["1.5", "1,2,3"], name="y", dtype=str)
    with pytest.raises(ValueError, match=r"column 'y' has '1,2,3' in row 2"):
        to_numbers(column, ".")
    assert to_numbers(column[:1], ".").tolist() == [1.5]


WAVE = 20 + 3 * np.sin(np.arange(300) * 2 * np.pi / 7)


@pytest.mark.parametrize("code", [-999, 999999, -99, -9, 9999, -999.9, 1e20, -32768])
def test_codes_for_missing_values_are_found(code: float) -> None:
    values = WAVE.copy()
    values[[40, 41, 120]] = code
    found, notes = without_codes("y", values)
    assert np.flatnonzero(np.isnan(found)).tolist() == [40, 41, 120]
    assert len(notes) == 1
    assert f"has {code:g} 3 times" in notes[0]


@pytest.mark.parametrize(
    "values",
    [
        np.where(np.arange(200) % 100 == 50, 99, 5 + np.arange(200) % 36),  # promotions
        np.arange(300) % 100,
        np.arange(300) % 10,
        np.arange(0, 3000, 3) - 999,
        WAVE,
        np.full(30, 99),
        [9, 99, 5],
    ],
)
def test_values_that_are_no_codes_stay(values: np.ndarray) -> None:
    values = np.asarray(values, dtype=float)
    found, notes = without_codes("y", values)
    np.testing.assert_array_equal(found, values)
    assert notes == []


def test_values_far_from_the_rest_are_named_and_stay() -> None:
    values = WAVE.copy()
    values[[7, 9]] = 5000, 6000
    found, notes = without_codes("y", values)
    np.testing.assert_array_equal(found, values)
    assert "has 5000 in row 8 and 1 more" in notes[0]


def test_codes_are_named_by_an_option() -> None:
    values = WAVE.copy()
    values[[40, 41, 120]] = -999
    values[7] = 5
    found, notes = without_codes("y", values, [5])
    assert np.flatnonzero(np.isnan(found)).tolist() == [7]
    assert "-999 in row 41 and 2 more" in notes[0]
    np.testing.assert_array_equal(without_codes("y", values, [])[0], values)
    with pytest.raises(ValueError, match=r"no value but the codes \[1\]"):
        without_codes("y", np.ones(3), [1])


def test_true_and_false_are_numbers() -> None:
    assert to_numbers(pd.Series(["True", "false", "TRUE"], name="open", dtype=str), ".").tolist() == [1, 0, 1]
    with pytest.raises(ValueError, match="has 'true' in row 1"):
        to_numbers(pd.Series(["true", "2"], name="open", dtype=str), ".")

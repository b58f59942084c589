"""Numbers of a table, and codes for missing values."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from lagwise.forecasting.cells import outlier_notes, to_numbers


def cells(*texts: str) -> pd.Series:
    return pd.Series(texts, name="y", dtype=str)


def test_numbers_percentages_and_truths() -> None:
    assert to_numbers(cells("1.5", "", "1,200"), ".").tolist()[::2] == [1.5, 1200]
    assert to_numbers(cells("True", "false", "TRUE"), ".").tolist() == [1, 0, 1]
    assert to_numbers(cells("5%", "7,5%"), ",").tolist() == [5, 7.5]


@pytest.mark.parametrize("texts", [("1.5", "1,2,3"), ("1", "true"), ("1", "5%"), ("1", "inf"), ("1", "n/k")])
def test_other_text_is_named_by_column_and_row(texts: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match=rf"column 'y' has '{texts[1]}' in row 2, which is not a number"):
        to_numbers(cells(*texts), ".")


WAVE = 20 + 3 * np.sin(np.arange(300) * 2 * np.pi / 7)


@pytest.mark.parametrize("code", [-999, 999999, 1e20])
def test_codes_for_missing_values_are_noted_and_named_by_an_option(code: float) -> None:
    values = WAVE.copy()
    values[[40, 41, 120]] = code
    (note,) = outlier_notes("y", values)
    assert f"has {code:g} in row 41 and 2 more" in note
    assert "name it with `missing`" in note
    found = to_numbers(pd.Series(values, name="y"), ".", [code])
    assert np.flatnonzero(np.isnan(found)).tolist() == [40, 41, 120]
    with pytest.raises(ValueError, match="no value at all"):
        to_numbers(pd.Series([1, 1], name="y"), ".", [1])


@pytest.mark.parametrize(
    "values",
    [
        np.where(np.arange(200) % 100 == 50, 99, 5 + np.arange(200) % 36),  # promotions
        np.arange(0, 3000, 3) - 999,
        WAVE,
        np.full(30, 99),
        [9, 99, 5],
    ],
)
def test_values_that_are_no_codes_have_no_note(values: np.ndarray) -> None:
    assert outlier_notes("y", np.asarray(values, dtype=float)) == []

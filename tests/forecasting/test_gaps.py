"""Missing values."""

from __future__ import annotations

import numpy as np

from lagwise.forecasting.gaps import carry_forward, stretches

NAN = np.nan


def test_gaps_are_filled_with_the_last_observed_value() -> None:
    x = np.array([[NAN, 1.0], [2.0, NAN], [NAN, NAN], [3.0, 4.0]])
    assert carry_forward(x).tolist() == [[0.0, 1.0], [2.0, 1.0], [2.0, 1.0], [3.0, 4.0]]
    assert carry_forward(x[:1], np.array([7.0, 8.0])).tolist() == [[7.0, 1.0]]


def test_filling_row_by_row_is_the_same() -> None:
    x = np.where(np.random.default_rng(0).random((50, 3)) < 0.5, NAN, 1.0) * np.arange(50)[:, None]
    whole, last = carry_forward(x), np.zeros(3)
    for row, expected in zip(x, whole, strict=True):
        last = carry_forward(row[None], last)[0]
        assert last.tolist() == expected.tolist()


def test_long_gaps_split_a_series_and_short_ones_do_not() -> None:
    missing = np.zeros((20, 3), dtype=bool)
    missing[5:7, 0] = missing[5:8, 1] = missing[:4, 2] = True
    assert stretches(missing, 2) == {(0, 20): [0], (0, 5): [1], (8, 20): [1], (4, 20): [2]}

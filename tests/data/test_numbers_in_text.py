"""Numbers in text: separators, signs of a missing value, and columns that count."""

from __future__ import annotations

import numpy as np
import pytest

from lagwise.data.numbers import count_up, decimal_separator, to_floats, with_points


def read(texts: list[str], usual: str | None) -> list[float]:
    values, wrong = to_floats(texts, decimal_separator([texts], usual))
    assert wrong is None
    return values.tolist()


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
        (["987", "1,013"], None, [987, 1013]),
        (["1,5", "1.013,25", "NA"], None, [1.5, 1013.25, None]),
        (["\u22121.5", "-2", "+3", "1e5", "2.5E-3"], ".", [-1.5, -2, 3, 1e5, 2.5e-3]),
    ],
)
def test_separators(texts: list[str], usual: str, numbers: list[float | None]) -> None:
    np.testing.assert_array_equal(read(texts, usual), np.array(numbers, dtype=float))


def test_numbers_that_may_be_read_in_two_ways_are_refused() -> None:
    with pytest.raises(ValueError, match=r"such as '1.013' may be thousands or have three decimals"):
        read(["1.013", "1.250"], ",")
    with pytest.raises(ValueError, match=r"such as '1.55' and '1,5'"):
        read(["1,5", "1.55"], ",")
    with pytest.raises(ValueError, match=r"such as '2,853' may be thousands"):
        read(["6", "2,853"], None)  # between tabs
    assert to_floats(["1.5", "1,2,3", "x"], ".")[1] == 1


def test_text_is_read_to_the_last_digit() -> None:
    values = np.random.default_rng(0).normal(size=200) * 10.0 ** np.arange(-100, 100)
    assert read([repr(float(value)) for value in values], ".") == values.tolist()


def test_cells_are_rewritten_only_where_all_are_numbers() -> None:
    assert with_points(["1,5", "", "1.013,25"], ",") == ["1.5", "", "1013.25"]
    for cells in (["1,5", "a"], ["1.5", "2"], ["1,2,3", "2,3,4"], []):
        assert with_points(cells, ",") is cells
    assert with_points(["1,5"], ".") == ["1,5"]


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        (["0", "1", "2"], True),
        (["1", "2"], True),
        (["2", "3"], False),
        (["0", "2"], False),
        (["a"], False),
        ([], False),
    ],
)
def test_columns_that_count(cells: list[str], expected: bool) -> None:
    assert count_up(cells) is expected

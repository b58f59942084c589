import pandas as pd
import pytest

from lagwise.forecasting.month_names import in_english
from lagwise.forecasting.times import regular_times

FRENCH = "janv. févr. mars avr. mai juin juil. août sept. oct. nov. déc.".split()  # noqa: SIM905
GERMAN = ["Januar", "Februar", "März", "April", "Mai", "Juni", "Juli"]


@pytest.mark.parametrize(
    ("texts", "following"),
    [
        ([f"{name} 2015" for name in GERMAN], ["August 2015", "September 2015"]),
        (["Jan. 15", "Febr. 15", "März 15", "Apr. 15"], ["Mai 15", "Juni 15"]),
        (["Nov-15", "Dez-15", "Jan-16", "Feb-16", "Mrz-16"], ["Apr-16", "Mai-16"]),
        (["Fr 05.01.2024", "Sa 06.01.2024", "So 07.01.2024"], ["Mo 08.01.2024", "Di 09.01.2024"]),
        (["Freitag, 5. Januar 2024", "Samstag, 6. Januar 2024", "Sonntag, 7. Januar 2024"], ["Montag, 8. Januar 2024"]),
        ([f"{name} {year}" for year in (2014, 2015) for name in FRENCH], ["janv. 2016", "févr. 2016"]),
        (["30 janvier 2024", "31 janvier 2024", "1er février 2024", "2 février 2024"], ["3 février 2024"]),
        (["3 de enero de 2024", "4 de enero de 2024", "5 de enero de 2024"], ["6 de enero de 2024"]),
        (["gen 2015", "feb 2015", "mar 2015", "apr 2015"], ["mag 2015"]),
        (["MAI 2015", "JUN 2015", "JUL 2015", "AGO 2015"], ["SET 2015"]),
        (["mrt 2015", "apr 2015", "mei 2015"], ["jun 2015"]),
        (["stycznia 2015", "lutego 2015", "marca 2015"], ["kwietnia 2015"]),
    ],
)
def test_months_and_weekdays_by_name_in_other_languages_are_read_and_written_alike(
    texts: list[str], following: list[str]
) -> None:
    times = regular_times(pd.Series(texts, name="t"))
    assert times.write(times.grid.following(len(following))) == following


def test_english_and_unknown_words_are_left_alone() -> None:
    assert in_english(pd.Series(["Jan 2015", "Feb 2015"])) is None
    assert in_english(pd.Series(["Januar 2015", "Summe 2015"])) is None
    assert in_english(pd.Series(["2015-01-01"])) is None


def test_days_and_hours_have_leading_zeros_only_where_the_table_has_them() -> None:
    for texts, following in [
        (["13/1/2024 8:00", "13/1/2024 9:00", "13/1/2024 10:00"], "13/1/2024 11:00"),
        (["29.2.2024", "1.3.2024", "2.3.2024"], "3.3.2024"),
        (["29.02.2024", "01.03.2024", "02.03.2024"], "03.03.2024"),
    ]:
        times = regular_times(pd.Series(texts, name="t"))
        assert times.write(times.grid.following(1)) == [following]


def test_24_00_is_the_midnight_after() -> None:
    times = regular_times(pd.Series(["31.01.2024 23:00", "31.01.2024 24:00", "01.02.2024 01:00"], name="t"))
    assert list(times.times.hour) == [23, 0, 1]
    assert times.times.is_monotonic_increasing
    assert any("24:00" in note for note in times.notes)

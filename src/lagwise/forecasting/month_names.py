"""Names of months and weekdays in other languages than English."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import pandas as pd

_ENGLISH = "january february march april may june july august september october november december".split()  # noqa: SIM905
_ENGLISH_DAYS = ["monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"]
# Months, days from Monday, and words between the parts of a date; other spellings follow a bar. Months that are
# declined in dates have a line of their own.
_LANGUAGES = (
    (
        "januar|jänner februar|feber märz|mrz|maerz april mai juni juli august september oktober november dezember",
        "montag dienstag mittwoch donnerstag freitag samstag sonntag",
        "den der",
    ),
    (
        "janvier février|fevrier mars avril mai juin juillet août|aout septembre octobre novembre décembre|decembre",
        "lundi mardi mercredi jeudi vendredi samedi dimanche",
        "le er",
    ),
    (
        "enero febrero marzo abril mayo junio julio agosto septiembre|setiembre octubre noviembre diciembre",
        "lunes martes miércoles|miercoles jueves viernes sábado|sabado domingo",
        "de del",
    ),
    (
        "gennaio febbraio marzo aprile maggio giugno luglio agosto settembre ottobre novembre dicembre",
        "lunedì|lunedi martedì|martedi mercoledì|mercoledi giovedì|giovedi venerdì|venerdi sabato domenica",
        "",
    ),
    (
        "janeiro fevereiro março|marco abril maio junho julho agosto setembro outubro novembro dezembro",
        "segunda terça|terca quarta quinta sexta sábado|sabado domingo",
        "de",
    ),
    (
        "januari februari maart|mrt april mei juni juli augustus september oktober november december",
        "maandag dinsdag woensdag donderdag vrijdag zaterdag zondag",
        "",
    ),
    (
        "januari februari mars april maj juni juli augusti september oktober november december",
        "måndag tisdag onsdag torsdag fredag lördag söndag",
        "den",
    ),
    (
        "januar februar marts|mars april maj|mai juni juli august september oktober november december|desember",
        "mandag tirsdag onsdag torsdag fredag lørdag søndag",
        "den",
    ),
    (
        "styczeń luty marzec kwiecień maj czerwiec lipiec sierpień wrzesień październik listopad grudzień",
        "poniedziałek wtorek środa czwartek piątek sobota niedziela",
        "",
    ),
    (
        "stycznia lutego marca kwietnia maja czerwca lipca sierpnia września października listopada grudnia",
        "poniedziałek wtorek środa czwartek piątek sobota niedziela",
        "",
    ),
    (
        "январь февраль март апрель май июнь июль август сентябрь октябрь ноябрь декабрь",
        "понедельник вторник среда четверг пятница суббота воскресенье",
        "",
    ),
    (
        "января февраля марта апреля мая июня июля августа сентября октября ноября декабря",
        "понедельник вторник среда четверг пятница суббота воскресенье",
        "",
    ),
)
#: Words between the parts of dates.
BETWEEN = r"\b(?:de|del|den|der|le)\b"
_WORD = r"[^\W\d_]+\.?"
_LEAST = 2  # letters of a shortened name


class Translated(NamedTuple):
    """Dates with English months and weekdays of three letters, and what turns such a date back."""

    text: pd.Series
    back: Callable[[str], str]


def in_english(text: pd.Series) -> Translated | None:
    """Dates with months by name in another language, in English; None if English has all their words, or no language.

    Names that the text does not have are written back as long as the longest of those that it has, with a point if
    others have one.
    """
    words = {word for each in text.dropna() for word in re.findall(_WORD, each)}
    if not words or all(_found(word, _ENGLISH, _ENGLISH_DAYS) for word in words):
        return None
    for line in _LANGUAGES:
        months, days, between = (part.split() for part in line)
        found = {word: _found(word, months, days) for word in words if word.lower() not in between}
        if found and all(found.values()):
            english: dict[str, Any] = found
            back = _names(english, _ENGLISH, months) | _names(english, _ENGLISH_DAYS, days)
            text = text.str.replace(r"\b1er\b", "1", regex=True)  # the first of a month in French
            return Translated(
                text.map(partial(_replaced, names=english), na_action="ignore"), partial(_replaced, names=back)
            )
    return None


def _found(word: str, months: Sequence[str], days: Sequence[str]) -> str | None:
    """The short English name of a month or weekday, also shortened where that leaves one name."""
    word = word.rstrip(".").lower()
    for names, english in ((months, _ENGLISH), (days, _ENGLISH_DAYS)):
        spellings = [each.split("|") for each in names]
        exact = [i for i, each in enumerate(spellings) if word in each]
        begun = [i for i, each in enumerate(spellings) if any(name.startswith(word) for name in each)]
        if len(place := exact or begun) == 1 and len(word) >= _LEAST:
            return _short(english[place[0]])
    return None


def _names(found: Mapping[str, str], english: Sequence[str], names: Sequence[str]) -> dict[str, str]:
    """How the text writes, or would write, each English name; none if it has none of them."""
    own = {short: word for word, short in found.items() if short in map(_short, english)}
    words = list(own.values())
    length = max((len(word.rstrip(".")) for word in words), default=0)
    whole = all(word.lower() in "|".join(names).split("|") for word in words)
    for short, name in zip(map(_short, english), (each.split("|")[0] for each in names), strict=True):
        if words and short not in own:
            cut = name if whole or len(name) <= length else name[:length]
            cut += "." if cut != name and any(word.endswith(".") for word in words) else ""
            own[short] = cut.upper() if words[0].isupper() else cut.capitalize() if words[0][0].isupper() else cut
    return own


def _replaced(text: str, names: Mapping[str, str]) -> str:
    return re.sub(_WORD, lambda match: names.get(match[0], match[0]), text)


def _short(name: str) -> str:
    return name[:3].capitalize()

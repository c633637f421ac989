"""When a recurring run starts: the usual cron expressions become KFP's, and mistakes become one line."""

import pytest

from gnn_encoder.errors import UserError
from gnn_encoder.kubeflow.schedule import kfp_cron, new_schedule


@pytest.mark.parametrize(
    "text",
    [
        "0 3 * * *",
        "*/15 8-17 * * 1-5",
        "0,30 0-23/2 1,15 jan-jun MON",
        "5/10 ? ? * ?",
        "59 23 31 12 6",
        "0 0 29 2 *",
        "0 0 30 2 1",  # on Mondays
        "0 0 31 2,3 *",
    ],
)
def test_kfp_gets_the_second_first(text: str) -> None:
    assert kfp_cron(f" {text} ") == f"0 {text}"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "give five fields, minute, hour, day of the month, month, day of the week, as in"),
        ("0 0 3 * * *", "give five fields"),
        ("@daily", "give five fields"),
        ("60 * * * *", "60 is no minute: give a number from 0 to 59"),
        ("* 24 * * *", "24 is no hour"),
        ("* * 0 * *", "0 is no day of the month: give a number from 1 to 31"),
        ("* * * 13 *", "13 is no month"),
        ("* * * mon *", "mon is no month"),
        ("* * * * 7", "7 is no day of the week: give a number from 0 to 6"),
        ("* * * * fry", "fry is no day of the week"),
        ("5-1 * * * *", "5-1 goes backwards"),
        ("*/0 * * * *", "cannot read '*/0' as the minute"),
        ("*-5 * * * *", "cannot read '*-5' as the minute"),
        ("1, * * * *", "cannot read '' as the minute"),
        ("-1 * * * *", "cannot read '-1' as the minute"),
        ("٣ * * * *", "cannot read '٣' as the minute"),
        ("0 0 30 2 *", "no such month has a day 30"),
        ("0 0 31 4,6 ?", "no such month has a day 31"),
        ("0 0 31 4 1,*", "no such month has a day 31"),
    ],
)
def test_what_kfp_would_refuse_or_misread(text: str, words: str) -> None:
    with pytest.raises(UserError) as caught:
        kfp_cron(text)
    assert words in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "seconds"), [("30m", 1800), ("24h", 86400), ("7d", 604800), ("1d12h", 129600), ("1m", 60)]
)
def test_lengths_of_time(text: str, seconds: int) -> None:
    assert new_schedule("a", None, text, 1, False).every_seconds == seconds


@pytest.mark.parametrize("text", ["", "0h", "24", "1.5h", "30s", "12h1d", "-1h", "daily", "99999d"])
def test_what_is_no_length_of_time(text: str) -> None:
    with pytest.raises(UserError, match="write it as 30m, 24h, 7d or 1d12h"):
        new_schedule("a", None, text, 1, False)

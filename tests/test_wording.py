from veilset.wording import time_taken


def test_times_have_no_more_digits_than_people_read() -> None:
    assert [time_taken(seconds) for seconds in (0.0, 0.94, 5.148, 1000.0)] == [
        "under 1 s",
        "under 1 s",
        "5 s",
        "17 minutes",
    ]

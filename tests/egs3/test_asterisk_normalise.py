"""Transcripts as they are spoken."""

import pytest

from dataset.normalise import normalise


@pytest.mark.parametrize(
    ("raw", "spoken"),
    [
        ("Please hold.", "please hold"),
        ("That extension, is-busy!", "that extension is busy"),
        ("dash [-]", "dash"),
        ("[this is a simple beep tone]", ""),
        ("keywords separated by * and then press #", "keywords separated by star and then press pound"),
        ("press 1 to accept", "press one to accept"),
        ("18 new, 0 old", "eighteen new zero old"),
        ("extension 1234", "extension one two three four"),
        ("code 42", "code four two"),
        ("a 28.8 kilobit modem", "a twenty eight point eight kilobit modem"),
        ("H.323", "h three two three"),
        ("at www.asterisk.org", "at w w w dot asterisk dot org"),
        ("A.M. or P.M.", "a m or p m"),
        ('a polite "don\'t call" menu', "a polite don't call menu"),
        ("callers' names, 'quoted'", "callers names quoted"),
        ("", ""),
    ],
)
def test_a_transcript_becomes_its_spoken_words(raw: str, spoken: str) -> None:
    """Signs, digits and stage directions become words or nothing."""
    assert normalise(raw) == spoken

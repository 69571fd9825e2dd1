"""Text on pages: code is set as code, and everything is escaped."""

from __future__ import annotations

import pytest

from veilset.report.pages import as_code


@pytest.mark.parametrize(
    ("text", "html"),
    [
        ("no budget (`veilset budget init`)", "no budget (<code>veilset budget init</code>)"),
        ("`a` and `b`", "<code>a</code> and <code>b</code>"),
        ("one ` alone", "one ` alone"),
        ("`<b>` & <i>", "<code>&lt;b&gt;</code> &amp; &lt;i&gt;"),
    ],
)
def test_what_stands_between_backticks_is_code_and_everything_is_escaped(text: str, html: str) -> None:
    assert str(as_code(text)) == html

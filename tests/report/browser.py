"""What a real browser says of a page: console messages, elements that are seen, broken pictures, width.

The pages stand in frames, unchanged and under their own content policy; the script that looks at them is outside. What
their policy refuses lands on the console, and what it would let through in the log of the network.
"""

import json
import re
import shutil
import subprocess
from html import unescape
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on the PATH: pages were not looked at")
PHONE, DESK = 360, 1200
SECONDS = 120
NET_LOG = "net.json"
FRAMES = """<!DOCTYPE html><title>frames</title>{frames}<pre id="found"></pre><script>
window.onload = () => {{
  const found = [...document.querySelectorAll("iframe")].map(frame => {{
    const page = frame.contentDocument, seen = selector => [...page.querySelectorAll(selector)]
      .filter(one => one.getBoundingClientRect().width > 1 && one.getBoundingClientRect().height > 1);
    return {{
      name: frame.name, width: frame.width | 0, widest: page.documentElement.scrollWidth,
      broken: [...page.images].filter(one => !one.naturalWidth).map(one => one.alt),
      sections: seen("h2").map(one => one.innerText),
      seen: Object.fromEntries(JSON.parse(frame.dataset.wanted).map(one => [one, seen(one).length])),
    }};
  }});
  document.getElementById("found").textContent = JSON.stringify(found);
}};
</script>"""


def look_at(
    pages: dict[str, Path], folder: Path, wanted: dict[str, list[str]]
) -> tuple[list[dict[str, Any]], list[str]]:
    """What is seen of every page at both widths, with a count for each of its `wanted` selectors; all complaints."""
    frames = [
        f'<iframe name="{name}" width="{width}" height="800" src="{page.as_uri()}"'
        f" data-wanted='{json.dumps(wanted[name])}'></iframe>"
        for name, page in pages.items()
        for width in (DESK, PHONE)
    ]
    outside = folder / "frames.html"
    outside.write_text(FRAMES.format(frames="".join(frames)))
    done = chromium("--allow-file-access-from-files", "--dump-dom", outside.as_uri(), profile=folder / "profile")
    found = re.search(r'<pre id="found">(\[.*?)</pre>', done.stdout, re.DOTALL)
    assert found, f"the pages did not load\n{done.stderr[-2000:]}"
    return json.loads(unescape(found[1])), [*console(done.stderr), *requests(folder / "profile" / NET_LOG)]


def chromium(*words: str, profile: Path) -> subprocess.CompletedProcess[str]:
    quiet = ("--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync")
    command = [
        str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", *quiet,
        "--enable-logging=stderr", "--v=0", "--host-resolver-rules=MAP * ~NOTFOUND", f"--user-data-dir={profile}",
        f"--log-net-log={profile / NET_LOG}", *words,
    ]  # fmt: skip
    profile.mkdir(exist_ok=True)
    return subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=True)


def console(stderr: str) -> list[str]:
    """Messages of the pages themselves, errors and warnings alike: a good page has none."""
    return re.findall(r"CONSOLE[:(]\d+\)?\]\s*(.*)", stderr)


def requests(net_log: Path) -> list[str]:
    """What the pages, and not the browser for itself, asked the network for."""
    found = [event.get("params", {}) for event in json.loads(net_log.read_text())["events"]]
    own = [one for one in found if one.get("initiator", "not an origin") != "not an origin"]
    return [f"asked for {one['url']}" for one in own if str(one.get("url")).startswith(("http", "ws"))]

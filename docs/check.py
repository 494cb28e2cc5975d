"""Checks the built site: links and privacy in its files, then every page in a headless browser: `make site-check`.

In the files: every internal link and anchor leads somewhere, nothing is loaded from another host, no path of this
machine stands in a page. Links to other hosts are listed, not followed. In the browser, at the width of a phone and
of a large screen, on every page and on the results of a search: no error on the console, no failed request, nothing
that scrolls sideways. And the search finds something.
"""

import argparse
import functools
import http.server
import shutil
import sys
import tempfile
import threading
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urljoin, urlsplit

if TYPE_CHECKING:
    from playwright.sync_api import Page as Tab

ROOT = Path(__file__).parents[1]
SITE = ROOT / "_site"
WIDTHS = (400, 1600)  # CSS pixels
LOADED = {"script": "src", "img": "src", "iframe": "src", "source": "src", "object": "data"}
SEARCH = "search.html?q=advantage"
BROWSERS = ("chromium", "chromium-browser", "google-chrome")


class Page(HTMLParser):
    """What a page links to, what it loads, and the anchors it has."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attrs}
        self.anchors |= {found[name] for name in ("id", "name") if name in found}
        if tag == "a" and "href" in found:
            self.links.append(found["href"])
        elif tag == "form" and "action" in found:  # every page has a box to search from
            self.links.append(found["action"])
        elif tag == "link" and found.get("rel") in ("stylesheet", "icon", "preload"):
            self.loaded.append(found["href"])
        elif LOADED.get(tag, "") in found:
            self.loaded.append(found[LOADED[tag]])


def faults(site: Path, private: tuple[str, ...]) -> tuple[list[str], set[str]]:
    """Reads all pages of a site.

    Args:
        site: its folder.
        private: texts that must not stand in any page, such as paths of this machine.

    Returns:
        A sentence for every fault, and the addresses of other hosts that pages link to.
    """
    pages = {path: Page(path.read_text(encoding="utf-8")) for path in sorted(site.rglob("*.html"))}
    found: list[str] = []
    external: set[str] = set()
    for path, page in pages.items():
        name = path.relative_to(site)
        text = path.read_text(encoding="utf-8")
        found += [f"{name}: the page names {secret}" for secret in private if secret in text]
        found += [f"{name}: loads {address} from another host" for address in page.loaded if is_elsewhere(address)]
        external |= {address for address in page.links if is_elsewhere(address)}
        inside = [address for address in page.links + page.loaded if not is_elsewhere(address)]
        found += [f"{name}: {address} leads nowhere" for address in inside if not leads(path, address, pages)]
    return found, external


def is_elsewhere(address: str) -> bool:
    """Whether an address is of another host; one that holds its data itself is not."""
    parts = urlsplit(address)
    return bool(parts.netloc) or parts.scheme not in ("", "data")


def leads(path: Path, address: str, pages: dict[Path, Page]) -> bool:
    """Whether an address on a page is that of a file, and its anchor one that the file has."""
    parts = urlsplit(address)
    if parts.scheme == "data":
        return True
    target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
    if target not in pages:
        return target.is_file() and not parts.fragment
    return not parts.fragment or unquote(parts.fragment) in pages[target].anchors


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


def visit(address: str, site: Path, shots: Path | None) -> Iterator[str]:
    """Opens every page of a served site and a search in a headless browser, and yields a sentence for every fault.

    Args:
        address: of the served site.
        site: its folder.
        shots: folder for a picture of every page at every width, light and dark, or None.
    """
    from playwright.sync_api import sync_playwright

    seen: list[str] = []

    def note(fault: bool, text: str) -> None:
        if fault:
            seen.append(text)

    with sync_playwright() as playwright:
        browser_path = next(filter(None, map(shutil.which, BROWSERS)), playwright.chromium.executable_path)
        if not Path(browser_path).is_file():
            raise SystemExit(
                "error: no browser is here: install chromium, or run .venv/bin/playwright install chromium."
            )
        browser = playwright.chromium.launch(executable_path=browser_path, args=["--no-sandbox"])
        tab = browser.new_page()
        tab.on("console", lambda message: note(message.type in ("error", "warning"), f"says {message.text}"))
        tab.on("pageerror", lambda error: note(True, f"raises {error}"))
        tab.on("requestfailed", lambda request: note(True, f"cannot load {request.url}"))
        tab.on("request", lambda request: note(not request.url.startswith(address), f"asks for {request.url}"))
        for name in [*sorted(str(path.relative_to(site)) for path in site.rglob("*.html")), SEARCH]:
            tab.goto(urljoin(address, name))
            note(name == SEARCH and not finds(tab), "finds nothing")
            for width in WIDTHS:
                tab.set_viewport_size({"width": width, "height": 900})
                needed = tab.evaluate("document.documentElement.scrollWidth")
                note(needed > width, f"is {needed} pixels wide in a window of {width}")
                if shots:
                    photograph(tab, shots / f"{name.replace('/', '_')}.{width}")
            yield from (f"{name} {fault}" for fault in seen)
            seen.clear()
        browser.close()


def finds(tab: "Tab") -> bool:
    """Whether an open search has results, once all that the page loads for them is there."""
    from playwright.sync_api import TimeoutError

    try:
        tab.wait_for_selector("#search-results li", timeout=20_000)
    except TimeoutError:
        return False
    tab.wait_for_load_state("networkidle")
    return True


def photograph(tab: "Tab", stem: Path) -> None:
    """Takes a picture of a whole page in light and in dark colours."""
    for scheme in ("light", "dark"):
        tab.emulate_media(color_scheme=scheme)
        tab.screenshot(path=f"{stem}.{scheme}.png", full_page=True)


def main() -> None:
    """Checks the built site, in its files and in a headless browser."""
    parser = argparse.ArgumentParser(prog="python docs/check.py", description=main.__doc__)
    parser.add_argument("--shots", type=Path, metavar="FOLDER", help="take a picture of every page at every width")
    arguments = parser.parse_args()
    if not (SITE / "index.html").is_file():
        raise SystemExit("error: there is no site in _site/: make site builds it.")
    private = (str(ROOT), f"{Path.home()}/", f"{tempfile.gettempdir()}/")
    found, external = faults(SITE, private)
    print(*sorted(external), sep="\n")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(SITE))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        found += visit(f"http://127.0.0.1:{server.server_port}/", SITE, arguments.shots)
        server.shutdown()
    print(*found, sep="\n", file=sys.stderr)
    if found:
        raise SystemExit(f"error: {len(found)} faults in the site")
    print(
        f"{len(list(SITE.rglob('*.html')))} pages: no fault; the links above lead to other hosts and were not followed"
    )


if __name__ == "__main__":
    main()

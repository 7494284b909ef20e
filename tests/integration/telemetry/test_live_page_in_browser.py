"""The live page in a real browser: readable at any width and in any light, and nobody's text is run.

Pages of made-up states, from a server on the loopback; under load it is in ``serving``.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from prism_ray.telemetry import live_page
from tests.integration.browser import browser, complaints, needed_browser, set_scheme, set_size
from tests.unit.telemetry.live_states import decision, replica, state

Say = Callable[..., str]

ATTACKS = (
    "<script>owned=1</script>",
    '"><img src=x onerror=owned=1>',
    "</style><svg onload=owned=1>",
    "javascript:owned=1//",
    "{{7*7}}${7*7}",
)

# Text whose colour differs too little from what is behind it: WCAG 2's contrast, at least 4.5.
PALE = """
const light = c => { const v = c.map(x => { x /= 255; return x <= 0.03928 ? x / 12.92
  : ((x + 0.055) / 1.055) ** 2.4 }); return 0.2126 * v[0] + 0.7152 * v[1] + 0.0722 * v[2] };
const parse = s => s.match(/[\\d.]+/g).map(Number);
const pale = [];
for (const e of document.querySelectorAll("body *")) {
  if (![...e.childNodes].some(n => n.nodeType === 3 && n.data.trim())) continue;
  if (["SCRIPT", "STYLE", "NOSCRIPT"].includes(e.tagName)) continue;
  const style = getComputedStyle(e);
  let behind = e, back = [0, 0, 0, 0];
  while (behind && back.length > 3 && back[3] === 0) {
    back = parse(getComputedStyle(behind).backgroundColor); behind = behind.parentElement;
  }
  const front = parse(e instanceof SVGElement ? style.fill : style.color);
  const [a, b] = [light(front), light(back)].sort((x, y) => y - x);
  const contrast = (a + 0.05) / (b + 0.05);
  const named = `${e.tagName} ${e.className.baseVal ?? e.className}`;
  if (contrast < 4.5) pale.push(`${named} ${contrast.toFixed(1)}`);
}
return [...new Set(pale)];
"""


@pytest.fixture(scope="module")
def driver() -> Iterator[Any]:
    with browser() as running:
        yield running


@pytest.fixture
def say() -> Iterator[Say]:
    """Serve a document with the page's own headers (None: hang up instead); gives its address."""
    needed_browser()
    said: dict[str, str | None] = {}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            html = said.get(self.path, "")
            if html is None:
                return
            self.send_response(200 if self.path in said else 404)
            for name, value in live_page.HEADERS.items():
                self.send_header(name, value)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.end_headers()
            self.wfile.write(html.encode())

        def log_message(self, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()

    def serve(html: str | None) -> str:
        said["/prism/"] = html
        return f"http://127.0.0.1:{server.server_port}/prism/"

    yield serve
    server.shutdown()
    server.server_close()


def attacked(text: str) -> dict[str, Any]:
    """A state in which everything that a client can name is ``text``."""
    hostile = state(1)
    hostile["window"]["segments"][0]["label"] = text
    hostile["window"]["buckets"][0]["signature"] = [text, text]
    hostile["window"]["fronts"][0]["front"] = [text, text]
    hostile["decisions"] = [decision(text, reason=text)]
    hostile["replicas"] = [replica(0, replica=text, model=text)]
    return hostile


@pytest.mark.parametrize("text", ATTACKS)
def test_what_clients_name_is_shown_and_never_run(driver: Any, say: Say, text: str) -> None:
    driver.get(say(live_page.page(attacked(text))))
    assert driver.execute_script("return typeof owned") == "undefined"
    for tag in ("img", "iframe", "object", "embed"):
        assert driver.execute_script(f"return document.querySelectorAll('{tag}').length") == 0
    assert driver.execute_script("return document.scripts.length") == 1
    assert text in driver.execute_script("return document.querySelector('.segments').innerText")
    assert complaints(driver) == [], "nothing was even tried"


def test_a_script_that_got_into_the_page_all_the_same_would_not_run(driver: Any, say: Say) -> None:
    html = live_page.page(state(1)).replace("</main>", "<script>owned=1</script></main>")
    driver.get(say(html.replace("<h1>", '<h1 onclick="owned=1">')))
    driver.execute_script("document.querySelector('h1').click()")
    assert driver.execute_script("return typeof owned") == "undefined"
    assert any("Content Security Policy" in said for said in complaints(driver))


@pytest.mark.parametrize("replicas", [1, 64])
@pytest.mark.parametrize("width", [360, 800, 1400, 2400])
def test_it_fits_every_window(driver: Any, say: Say, replicas: int, width: int) -> None:
    """Wide tables scroll in themselves; the page does not."""
    driver.get(say(live_page.page(state(replicas))))
    set_size(driver, width, 900)
    assert driver.execute_script("return document.documentElement.scrollWidth") <= width
    boxes = "[...document.querySelectorAll('main > *, section, figure')]"
    ends = f"{boxes}.map(e => e.getBoundingClientRect().right)"
    assert driver.execute_script(f"return Math.max(...{ends})") <= width
    rows = driver.execute_script("return document.querySelectorAll('.replicas tbody tr').length")
    assert rows == replicas


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_text_stands_out_from_what_is_behind_it(driver: Any, say: Say, scheme: str) -> None:
    shown = state(3)
    shown["replicas"][1]["draining"] = True
    shown["telemetry"]["store_up"] = False
    set_scheme(driver, scheme)
    driver.get(say(live_page.page(shown)))
    dark = driver.execute_script("return getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, dark[4:-1].split(","))) < 200) == (scheme == "dark")
    assert driver.execute_script(PALE) == []


def test_a_reader_keeps_place_and_selection_while_it_is_refreshed(driver: Any, say: Say) -> None:
    set_size(driver, 1400, 900)
    driver.get(say(live_page.page(state(64), refresh_s=1)))
    box = "document.querySelector('.replicas .scroll')"
    driver.execute_script(f"{box}.scrollTop = 200; {box}.focus(); {box}.dataset.old = 1")
    say(live_page.page(state(64, waiting=4242), refresh_s=1))
    _until(driver, "document.querySelector('.facts').innerText.includes('4,242')")
    assert driver.execute_script(f"return {box}.dataset.old") is None, "it is another table"
    assert driver.execute_script(f"return {box}.scrollTop") == 200
    assert driver.execute_script(f"return document.activeElement === {box}")

    driver.execute_script("getSelection().selectAllChildren(document.querySelector('.facts'))")
    say(live_page.page(state(64, waiting=777), refresh_s=1))
    kept = driver.execute_async_script(
        "setTimeout(() => arguments[0](document.querySelector('.facts').innerText), 2500)"
    )
    assert "4,242" in kept, "it waits while text is selected"
    driver.execute_script("getSelection().removeAllRanges()")
    _until(driver, "document.querySelector('.facts').innerText.includes('777')")
    assert complaints(driver) == []


@pytest.mark.parametrize("broken", ["", None], ids=["an empty page", "no answer"])
def test_while_nobody_answers_it_says_so_and_goes_on_when_somebody_does(
    driver: Any, say: Say, broken: str | None
) -> None:
    driver.get(say(live_page.page(state(1, waiting=4141), refresh_s=1)))
    say(broken)
    _until(driver, "document.getElementById('status').className === 'warn'")
    assert "no answer" in driver.find_element("id", "status").text
    assert "4,141" in driver.find_element("css selector", ".facts").text, "what it knew stays"
    say(live_page.page(state(1, waiting=31), refresh_s=1))
    _until(driver, "document.getElementById('status').className === ''")
    _until(driver, "document.querySelector('.facts').innerText.includes('31')")


def test_without_scripts_the_browser_looks_again_itself(say: Say) -> None:
    with browser(scripts=False) as driver:
        driver.get(say(live_page.page(state(1, waiting=11), refresh_s=1)))
        assert "11" in driver.find_element("css selector", ".facts").text
        say(live_page.page(state(1, waiting=22_222), refresh_s=1))
        for _ in range(100):
            if "22,222" in driver.page_source:
                break
            threading.Event().wait(0.1)
        assert "22,222" in driver.page_source
        assert len(driver.find_elements("css selector", "svg")) == 2, "charts need no script"


def _until(driver: Any, condition: str, timeout_s: float = 20.0) -> None:
    from selenium.webdriver.support.wait import WebDriverWait

    WebDriverWait(driver, timeout_s).until(lambda d: d.execute_script(f"return {condition}"))

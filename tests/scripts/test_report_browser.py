"""The page of `gradcomp report` in a headless browser: complete, readable, and without a network."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, sync_playwright
from test_report import report, write_profile, write_run

SCHEMES = ("light", "dark")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    path = shutil.which("chromium")
    assert path is not None, "scripts/setup --dev installs chromium"
    with sync_playwright() as playwright:
        # Chromium runs as root, in a container for example, only without its sandbox.
        arguments = ["--no-sandbox", "--disable-background-networking"]
        found = playwright.chromium.launch(executable_path=path, args=arguments)
        yield found
        found.close()


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    write_profile(folder / "profile")
    write_run(folder / "dense", "identity")
    write_run(folder / "top-k", "residual|topk(ratio=0.01)", profile=folder / "profile")
    report(folder, folder / "dense", folder / "top-k")
    return folder / "report.html"


@pytest.fixture
def page(browser: Browser, file: Path) -> Iterator[Page]:
    page = browser.new_page()
    faults: list[str] = []
    page.on("console", lambda message: faults.append(message.text))
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.on("request", lambda request: faults.append(request.url))
    page.goto(file.as_uri())
    yield page
    page.close()
    assert faults == [file.as_uri()], "the page itself is the only request"


# Relative luminance and contrast as in WCAG 2.
CONTRAST = """
([selector]) => {
  const rgba = text => text.match(/[\\d.]+/g).map(Number);
  const light = text => {
    const [r, g, b] = rgba(text).map(v => v / 255)
      .map(v => v <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4);
    return .2126 * r + .7152 * g + .0722 * b;
  };
  const ground = element => {
    for (; element; element = element.parentElement) {
      const colour = getComputedStyle(element).backgroundColor;
      if (rgba(colour)[3] !== 0) return colour;
    }
  };
  return [...document.querySelectorAll(selector)].map(element => {
    const style = getComputedStyle(element);
    const inside = element instanceof SVGElement;
    const [a, b] = [light(inside ? style.fill : style.color), light(ground(element))];
    return (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
  });
}"""


@pytest.mark.parametrize("scheme", SCHEMES)
def test_texts_stand_out_from_the_ground(page: Page, scheme: str) -> None:
    page.emulate_media(color_scheme=scheme)
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert ground == {"light": "rgb(255, 255, 255)", "dark": "rgb(22, 22, 22)"}[scheme]
    for selector in ("h1, h2, td, th", "svg text"):
        contrasts = page.evaluate(CONTRAST, [selector])
        assert len(contrasts) > 20
        assert min(contrasts) >= 4.5


def test_all_charts_are_seen_and_their_labels_apart(page: Page) -> None:
    page.set_viewport_size({"width": 1280, "height": 900})
    charts = page.locator("svg")
    assert charts.count() == 6
    for number in range(charts.count()):
        box = charts.nth(number).bounding_box()
        assert box is not None
        assert box["width"] > 800
        assert box["height"] > 50
    overlaps = page.evaluate(
        """() => [...document.querySelectorAll('svg')].flatMap(svg => {
          const texts = [...svg.querySelectorAll('text')];
          const boxes = texts.map(text => text.getBoundingClientRect());
          return texts.flatMap((text, i) => texts.slice(i + 1).filter((_, j) => {
            const [a, b] = [boxes[i], boxes[i + 1 + j]];
            return a.left < b.right - 1 && b.left < a.right - 1
              && a.top < b.bottom - 1 && b.top < a.bottom - 1;
          }).map(other => `${text.textContent} | ${other.textContent}`));
        })"""
    )
    assert overlaps == []


@pytest.mark.parametrize("width", [400, 1280])
def test_the_page_itself_never_scrolls_sideways(page: Page, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_letters_of_charts_can_be_read_on_a_telephone(page: Page) -> None:
    page.set_viewport_size({"width": 390, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    heights = page.evaluate(
        "() => [...document.querySelectorAll('svg text')].filter(t => t.textContent.trim()).map(t => t.getBBox().height"
        " * t.getScreenCTM().a)"
    )
    shown = [height for height in heights if height > 0]
    assert len(shown) > 20
    assert min(shown) > 8


def test_values_of_a_run_cannot_run(page: Page) -> None:
    assert page.locator("script").count() == 0
    assert page.get_by_text('<script>alert("x")</script>').count() > 0

"""A real browser before a real server: Debian's Chromium, driven by Playwright. Only the test that delivers rows needs
a JVM: that of the test run."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright

from strandline.core.roles import Role
from strandline.lake import Lake, open_lake
from strandline.lake_admin import init_lake
from strandline.serve.pages import source
from tests.browser.shown_lake import fill, past
from tests.conftest import missing
from tests.serve.conftest import serving

ROOT = Path(__file__).resolve().parents[2]
AXE = ROOT / ".cache/axe-core/axe.min.js"
PICTURES = ROOT / ".cache/screenshots"
WHOLE_PAGES = "STRANDLINE_SCREENSHOTS"
PHONE = {"width": 390, "height": 844}
DESKTOP = {"width": 1280, "height": 860}
PATIENCE_MILLISECONDS = 60_000


@dataclass
class Shown:
    """A lake with something on every page, and its server."""

    lake: Lake
    url: str
    secrets: dict[Role, str]
    folder: Path


@dataclass
class Visitor:
    """A browser that notes what must not happen: errors in its console, requests to other hosts."""

    page: Page
    url: str
    complaints: list[str] = field(default_factory=list)
    expected: set[int] = field(default_factory=set)  # statuses that the test provokes

    def __post_init__(self) -> None:
        self.page.set_default_timeout(PATIENCE_MILLISECONDS)
        self.page.on("console", self._console)
        self.page.on("pageerror", lambda e: self.complaints.append(f"error: {e}"))
        self.page.on("request", self._request)

    def _console(self, message: Any) -> None:
        # A page that is refused is a failed resource to the browser.
        is_expected = any(f"status of {status} " in message.text for status in self.expected)
        if message.type in ("error", "warning") and not is_expected:
            self.complaints.append(f"{message.type}: {message.text}")

    def _request(self, request: Any) -> None:
        if not request.url.startswith(self.url):
            self.complaints.append(f"request to {request.url}")

    def go(self, path: str) -> Page:
        self.page.goto(self.url + path)
        return self.page

    def log_in(self, secret: str) -> None:
        """With the form, as a person does."""
        self.go("/login")
        self.page.fill("#token", secret)
        self.page.get_by_role("button", name="Log in").click()
        self.page.get_by_role("heading", name="Overview").wait_for()

    def picture(self, name: str, *, whole: bool = True) -> Path:
        """Build output: nothing is compared with it. A picture of a whole page is for people, and made on demand only:
        it takes the browser longer than the page itself."""
        PICTURES.mkdir(parents=True, exist_ok=True)
        path = PICTURES / f"{name}.png"
        if not whole or WHOLE_PAGES in os.environ:
            self.page.screenshot(path=str(path), full_page=whole)
        return path


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if program is None:
        missing("there is no chromium; scripts/test_parts.sh installs it")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shown]:
    folder = tmp_path_factory.mktemp("shown")
    with init_lake(folder):
        pass
    with open_lake(folder / "strandline.toml") as lake, pytest.MonkeyPatch.context() as patch:
        fill(lake, folder / "out")
        secrets = {role: lake.receiver.create_token(f"the {role}", role=role)[1] for role in Role}
        patch.setattr(source, "FigureHistory", lambda: past(lake.status()))
        with serving(lake) as url:
            patch.undo()
            yield Shown(lake, url, secrets, folder)


@pytest.fixture(scope="module")
def session(browser: Browser, shown: Shown) -> Any:
    """The cookies of an admin who has logged in once, for all tests that are not about logging in."""
    context = browser.new_context()
    Visitor(context.new_page(), shown.url).log_in(shown.secrets[Role.ADMIN])
    state = context.storage_state()
    context.close()
    return state


def visit(browser: Browser, url: str, **options: Any) -> Iterator[Visitor]:
    context: BrowserContext = browser.new_context(**options)
    visitor = Visitor(context.new_page(), url)
    yield visitor
    context.close()
    assert visitor.complaints == []


@pytest.fixture
def visitor(browser: Browser, shown: Shown) -> Iterator[Visitor]:
    yield from visit(browser, shown.url, viewport=DESKTOP)


@pytest.fixture
def admin(browser: Browser, shown: Shown, session: Any) -> Iterator[Visitor]:
    yield from visit(browser, shown.url, viewport=DESKTOP, storage_state=session)


@pytest.fixture
def on_phone(browser: Browser, shown: Shown, session: Any) -> Iterator[Visitor]:
    phone = {"viewport": PHONE, "has_touch": True, "is_mobile": True}
    yield from visit(browser, shown.url, **phone, color_scheme="dark", storage_state=session)

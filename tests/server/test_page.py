"""The page at ``/`` in headless Chromium: send, stream, stop, reload, keys, a base model."""

from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import byte_model
import pytest

pytest.importorskip("playwright.sync_api", reason="extra [test] is not installed")

from playwright import sync_api

from edge_infer.checkpoint.convert import convert
from edge_infer.engine.scheduler import Scheduler
from edge_infer.server.config import ServerConfig

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
ARTIFACTS = Path(__file__).parents[2] / "build" / "test-artifacts"
expect = sync_api.expect
expect.set_options(timeout=30_000)

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine")


@pytest.fixture(scope="module")
def browser() -> Iterator[sync_api.Browser]:
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM,
            args=["--no-sandbox"],  # CI runs as root
        )
        yield browser
        browser.close()


@pytest.fixture
def open_page(browser):
    """``open_page(url, **context options)``: a page of a new session. What its console says at the
    level of an error, a violated content policy too, fails the test."""
    contexts = []
    problems: list[str] = []

    def heard(message: sync_api.ConsoleMessage) -> None:
        # An answer of 400 or 401 is an error to the console, and what some tests are about.
        if message.type == "error" and not message.text.startswith("Failed to load resource"):
            problems.append(message.text)

    def opened(url: str, **options) -> sync_api.Page:
        contexts.append(browser.new_context(**options))
        page = contexts[-1].new_page()
        page.set_default_timeout(30_000)
        page.on("pageerror", lambda e: problems.append(str(e)))
        page.on("console", heard)
        page.on("request", lambda r: r.url.startswith(url) or problems.append(r.url))
        page.goto(url)
        return page

    yield opened
    for context in contexts:
        context.close()
    assert problems == []


@pytest.fixture
def slow(monkeypatch) -> None:
    """Steps of 50 ms, so that there is something to stop."""
    step = Scheduler.step

    def slowly(self, **options) -> None:
        step(self, **options)
        time.sleep(0.05)

    monkeypatch.setattr(Scheduler, "step", slowly)


def say(page: sync_api.Page, text: str) -> None:
    page.get_by_label("Message", exact=True).fill(text)
    page.keyboard.press("Enter")


def settle(page: sync_api.Page) -> None:
    """Waits until nothing runs."""
    expect(page.get_by_role("button", name="Send")).to_be_visible()


def answers(page: sync_api.Page) -> sync_api.Locator:
    return page.locator(".turn.assistant")


def test_an_answer_comes_with_its_figures_and_survives_a_reload(server, open_page) -> None:
    page = open_page(server.url)
    page.get_by_label("Max tokens").fill("16")
    page.get_by_label("Seed").fill("7")
    with page.expect_request("**/v1/chat/completions") as sent:
        say(page, "Hello <b>there</b>")
    body = json.loads(sent.value.post_data)
    assert body["messages"] == [{"role": "user", "content": "Hello <b>there</b>"}]
    assert (body["max_tokens"], body["seed"], body["temperature"]) == (16, 7, 0.7)
    settle(page)
    expect(answers(page).locator("footer")).to_contain_text("16 generated")
    assert page.locator(".turn b").count() == 0
    text = answers(page).locator(".body").inner_text()
    assert text
    page.reload()
    expect(page.locator(".turn")).to_have_count(2)
    assert answers(page).locator(".body").inner_text() == text
    assert page.get_by_label("Seed").input_value() == "7"
    with page.expect_request("**/v1/chat/completions") as sent:
        say(page, "And?")
    assert len(json.loads(sent.value.post_data)["messages"]) == 3
    settle(page)
    page.get_by_role("button", name="New chat").click()
    expect(page.locator(".turn")).to_have_count(0)


def test_text_streams_and_stops(server, open_page, slow) -> None:
    page = open_page(server.url)
    page.get_by_label("Max tokens").fill("400")
    say(page, "Hello")
    body = answers(page).locator(".body")
    expect(body).not_to_have_text("")
    expect(body).not_to_have_text(body.inner_text())  # more has come
    assert server.context.engine.stats().running == 1
    page.get_by_role("button", name="Stop").click()
    expect(answers(page).locator("footer")).to_contain_text("Stopped")
    for _ in range(100):
        if server.context.engine.stats().running == 0:
            break
        page.wait_for_timeout(50)
    assert server.context.engine.stats().running == 0
    say(page, "Again")
    page.keyboard.press("Escape")
    settle(page)
    assert answers(page).count() == 2


def test_a_reload_in_the_midst_keeps_what_came(server, open_page, slow) -> None:
    page = open_page(server.url)
    page.get_by_label("Max tokens").fill("400")
    say(page, "Hello")
    expect(answers(page).locator(".body")).not_to_have_text("")
    page.reload()
    expect(answers(page).locator("footer")).to_contain_text("reloaded")
    settle(page)


def test_text_of_a_model_is_never_markup(server, open_page) -> None:
    page = open_page(server.url)
    text = "Look:\n```html\n<img src=x onerror=alert(1)>\n```\n<script>alert(2)</script> `a<b`"
    turns = [{"role": "user", "text": "x"}, {"role": "assistant", "text": text}]
    page.add_init_script(f"sessionStorage.setItem('turns', {json.dumps(json.dumps(turns))})")
    page.reload()
    body = answers(page).locator(".body")
    assert body.locator("pre code").inner_text() == "<img src=x onerror=alert(1)>"
    assert body.locator("p code").inner_text() == "a<b"
    assert body.locator("img, script").count() == 0


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("light", {"color_scheme": "light", "viewport": {"width": 1200, "height": 800}}),
        ("dark", {"color_scheme": "dark", "viewport": {"width": 1200, "height": 800}}),
        ("phone", {"color_scheme": "light", "viewport": {"width": 390, "height": 780}}),
    ],
)
def test_the_page_fits_and_shows_the_machine(server, open_page, name, options) -> None:
    page = open_page(server.url, **options)
    panel = page.get_by_role("button", name="Panel")
    if name == "phone":
        assert not page.get_by_role("complementary").is_visible()
        panel.click()
    page.get_by_label("Max tokens").fill("40")
    page.get_by_label("Seed").fill("7")
    if name == "phone":
        panel.click()
    say(page, "Hello")
    settle(page)
    ARTIFACTS.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=ARTIFACTS / f"page-{name}.png")
    if name == "phone":
        panel.click()
    expect(page.locator("#memory-table tr").first).to_contain_text("MiB")
    expect(page.locator("#kv-value")).to_contain_text("of")
    expect(page.locator("#rate-chart .line")).to_have_attribute("d", re.compile("L"))
    page.screenshot(path=ARTIFACTS / f"page-{name}-machine.png")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    ground = "getComputedStyle(document.body).backgroundColor"
    before = page.evaluate(ground)
    page.get_by_role("button", name="Switch between light and dark").click()
    assert page.evaluate(ground) != before


def test_a_server_with_keys_is_asked_with_one(start_server, open_page) -> None:
    with start_server(ServerConfig(model_names=("tiny",), api_keys=("secret",))) as locked:
        page = open_page(locked.url)
        expect(page.get_by_role("alert")).to_contain_text("API key")
        page.get_by_label("API key").fill("secret")
        page.keyboard.press("Tab")
        expect(page.locator("#model")).to_have_text("tiny")
        page.get_by_label("Max tokens").fill("8")
        say(page, "Hello")
        settle(page)
        expect(answers(page).locator("footer")).to_contain_text("8 generated")


def test_a_base_model_continues_the_text(start_server, tmp_path, open_page) -> None:
    folder = byte_model.write_model(tmp_path / "hf")
    config = folder / "tokenizer_config.json"
    without = {k: v for k, v in json.loads(config.read_text()).items() if k != "chat_template"}
    config.write_text(json.dumps(without))
    base = convert(folder, tmp_path / "base", bits=4)
    with start_server(model=base) as server:
        page = open_page(server.url)
        expect(page.get_by_role("alert")).to_contain_text("no chat template")
        expect(page.get_by_label("System prompt")).to_be_disabled()
        page.get_by_label("Max tokens").fill("12")
        with page.expect_request("**/v1/completions") as sent:
            say(page, "The sea")
        assert json.loads(sent.value.post_data)["prompt"] == "The sea"
        settle(page)
        expect(answers(page).locator("footer")).to_contain_text("12 generated")


def test_settings_out_of_range_are_named(server, open_page) -> None:
    page = open_page(server.url)
    page.get_by_label("Top-p").fill("7")
    say(page, "Hello")
    expect(page.get_by_role("alert")).to_contain_text("Top-p")
    assert page.locator(".turn").count() == 0


def test_errors_of_the_server_are_shown(server, open_page) -> None:
    page = open_page(server.url)
    page.route("**/v1/chat/completions", lambda route: route.continue_(post_data="{}"))
    say(page, "Hello")
    expect(answers(page).locator(".error")).to_contain_text("messages")


def test_the_files_have_a_policy(server) -> None:
    for path in ("/", "/page/main.js", "/page/page.css", "/page/icon.svg"):
        answer = server.http.get(path)
        assert answer.status_code == 200
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy and "unsafe" not in policy
    for path in ("/page/none.js", "/page/..%2Frouting.py", "/page/%2e%2e/app.py"):
        assert server.http.get(path).status_code == 404

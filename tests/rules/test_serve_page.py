"""The page of `capplan serve` in a real browser: one scenario as form, YAML and address; each number is a leaf of the JSON; hands, eyes and phones."""

import json
import re
import time
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from threading import Thread

import pytest

pytest.importorskip("fastapi")
pytest.importorskip("uvicorn")

from tests.browser import CHROMIUM, browser
from tests.served import server

pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed to open the page with"),
    pytest.mark.long,
]
SCENARIO = """\
name: <img src=x onerror=alert(1)>
model: Qwen/Qwen3-8B
traffic:
  - name: chat
    request_rate: 4 req/s
    input_tokens: 1500
    output_tokens: 200
slo: {ttft_p95: 1 s, tpot_p95: 50 ms}
fleet: {hardware: [l40s, h100-sxm]}
"""
LABELS = re.compile(
    r"TTFT p95|TPOT p95|TTFT, 95th percentile|TPOT, 95th percentile|95th|TP|PP|EP|DP|of GPUs|k8s"
)


def wait(page, condition, seconds=60):
    until = time.monotonic() + seconds
    while not page.run(condition):
        assert time.monotonic() < until, page.run("document.body.innerText")
        time.sleep(0.05)


def write(page, selector, text):
    page.run(
        f"(e => {{ e.value = {json.dumps(text)}; e.dispatchEvent(new Event('input', {{bubbles: true}})); }})"
        f"(document.querySelector({json.dumps(selector)}))"
    )


def text(page, selector):
    return page.run(f"document.querySelector({json.dumps(selector)}).textContent")


def ask(page):
    wait(page, "!document.getElementById('find').disabled")
    page.run("document.getElementById('find').click()")
    wait(page, "!document.getElementById('stop').hidden", 5)
    wait(page, "document.getElementById('stop').hidden")


def field(name):
    return f"#keys [name='{name}']"


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    with server(tmp_path_factory.mktemp("served")) as running:
        yield running


@pytest.fixture(scope="module")
def opened(served, tmp_path_factory):
    with browser(tmp_path_factory.mktemp("profile")) as page:
        page.open(f"{served.address}/")
        wait(page, "!document.getElementById('find').disabled")
        yield page


@pytest.fixture(scope="module")
def page(opened):
    write(opened, "#yaml", SCENARIO)
    ask(opened)
    assert opened.run("document.getElementById('problem').hidden"), text(opened, "#problem")
    return opened


@pytest.fixture(scope="module")
def plan(served):
    return json.loads(
        served.post("fleet", {"contents": {"scenario.yaml": SCENARIO}, "scenario": "scenario.yaml"}).text
    )


def test_nothing_is_logged_and_nothing_comes_from_elsewhere(page, served):
    assert page.said("Runtime.exceptionThrown", "Log.entryAdded", "Runtime.consoleAPICalled") == []
    loaded = {event["request"]["url"] for event in page.said("Network.requestWillBeSent")}
    assert all(url.startswith((served.address, "data:,")) for url in loaded), loaded


def test_the_page_shows_the_json_of_the_command(page, plan):
    assert page.run("window.capplan.fleet") == plan


def leaf(found, path):
    for part in re.findall(r"[^.\[\]]+", path):
        found = found[int(part)] if part.isdigit() else found[part]
    return found


def strings(found):
    if isinstance(found, dict):
        for key, item in found.items():
            yield key
            yield from strings(item)
    elif isinstance(found, list):
        for item in found:
            yield from strings(item)
    elif isinstance(found, str):
        yield found


def test_every_number_is_a_leaf_of_the_json(page, plan):
    answers = page.run("({fleet: window.capplan.fleet, report: window.capplan.report})")
    shown = page.run(
        "Array.from(document.querySelectorAll('#answer [data-path]')).map(e => "
        "[e.dataset.command, e.dataset.path, e.value || e.dataset.value, e.textContent])"
    )
    assert len(shown) > 30
    for command, path, value, said in shown:
        exact = leaf(answers[command]["result"], path)
        assert float(value) == exact, path
        number = float(re.sub(r"[^0-9.]", "", said))
        scale = 100 if said.endswith("%") else 1000 if said.endswith(" ms") else 1
        assert number == pytest.approx(exact * scale, rel=0.02, abs=0.51 if said.startswith("$") else 1.0 if scale == 100 else 0.01)  # fmt: skip


def test_no_other_text_of_the_answer_has_a_number_of_its_own(page):
    answers = page.run("({fleet: window.capplan.fleet, report: window.capplan.report})")
    known = " \n ".join(strings(answers))
    texts = page.run(
        "(() => { const w = document.createTreeWalker(document.getElementById('answer'), NodeFilter.SHOW_TEXT); const found = []; "
        "while (w.nextNode()) { if (!w.currentNode.parentElement.closest('[data-path], pre, option')) { found.push(w.currentNode.data); } } return found; })()"
    )
    for said in texts:
        rest = LABELS.sub("", said)
        if said.strip() in known:
            continue
        if re.search(r"\d", rest):
            parts = [
                part for part in re.split(r", recommended|: |, | \(|\)|\(", rest) if re.search(r"\d", part)
            ]
            assert all(part.strip() in known for part in parts), said


def test_form_and_yaml_are_the_same_scenario(page):
    write(page, field("slo.ttft_p95"), "900 ms")
    assert "ttft_p95: 900 ms" in page.run("document.getElementById('yaml').value")
    write(page, field("fleet.hardware"), "l40s, l4")
    assert page.run("jsyaml.load(document.getElementById('yaml').value).fleet.hardware") == ["l40s", "l4"]
    write(page, field("traffic[0].input_tokens"), "{mean: 900, p95: 3000}")
    assert page.run("jsyaml.load(document.getElementById('yaml').value).traffic[0].input_tokens.p95") == 3000
    write(page, "#yaml", SCENARIO.replace("1 s", "700 ms"))
    assert page.run(f'document.querySelector("{field("slo.ttft_p95")}").value') == "700 ms"
    write(page, "#yaml", "name: [")
    assert text(page, "#yaml-error")
    write(page, "#yaml", SCENARIO)
    assert text(page, "#yaml-error") == ""


def test_a_plan_is_chosen_by_pointer_and_by_keyboard(page, plan):
    assert len(plan["result"]["plans"]) > 1
    page.run("document.querySelectorAll('g.mark')[1].dispatchEvent(new MouseEvent('click', {bubbles: true}))")
    assert (
        float(page.run("document.querySelector('#figures data').value"))
        == plan["result"]["plans"][1]["usd_per_month"]
    )
    assert f"recommended {plan['result']['plans'][0]['gpus']}" in text(page, "#figures")
    page.run("document.querySelectorAll('g.mark')[0].focus()")
    page.run("document.activeElement.dispatchEvent(new KeyboardEvent('keydown', {key: 'Enter', bubbles: true}))")  # fmt: skip
    assert (
        float(page.run("document.querySelector('#figures data').value"))
        == plan["result"]["plans"][0]["usd_per_month"]
    )
    assert page.run("document.activeElement.getAttribute('aria-pressed')") == "true"


def test_the_sliders_say_what_the_json_says(page):
    report = page.run("window.capplan.report.result")
    page.run("document.querySelector('#load input').focus()")
    before = text(page, "#load output")
    page.press("ArrowRight")
    after = page.run("Array.from(document.querySelectorAll('#load data')).map(d => Number(d.value))")
    assert text(page, "#load output") != before
    assert after in [[row["request_rate"], row["gpus"], row["usd_per_month"]] for row in report["what_if"]]
    page.run("document.querySelector('#confidence input').focus()")
    page.press("ArrowRight")
    said = page.run("Array.from(document.querySelectorAll('#confidence data')).map(d => Number(d.value))")
    assert said in [[row["confidence"], row["gpus"], row["usd_per_month"]] for row in report["certainty"]]


def test_other_targets_are_computed_by_the_same_search(page, served):
    page.run("document.querySelector('#ttft button').click()")
    wait(page, "window.capplan.targets.length === 5", 120)
    page.run("document.querySelector('#ttft input').focus()")
    page.press("ArrowLeft")
    said = page.run("Array.from(document.querySelectorAll('#ttft data')).map(d => Number(d.value))")
    body = {
        "contents": {"scenario.yaml": SCENARIO},
        "scenario": "scenario.yaml",
        "set": ["slo.ttft_p95=0.75 s"],
    }
    other = json.loads(served.post("fleet", body).text)["result"]
    best = other["plans"][other["recommended"]]
    assert said == [0.75, best["gpus"], best["usd_per_month"]]


def test_launch_commands_and_names_are_text(page):
    assert "vllm serve Qwen/Qwen3-8B" in text(page, "#launch")
    page.run(
        "(s => { s.value = 'k8s'; s.dispatchEvent(new Event('change')); })(document.getElementById('target'))"
    )
    wait(page, "document.getElementById('launch').textContent.includes('kind: Deployment')")
    assert page.run("document.querySelectorAll('img').length") == 0


def test_a_link_is_a_plan(page, served, tmp_path_factory):
    link = page.run("location.href")
    assert "#capplan=" in link
    with browser(tmp_path_factory.mktemp("other")) as other:
        other.open(link)
        wait(
            other,
            "!document.getElementById('answer').hidden && document.getElementById('stop').hidden",
        )
        for selector in ("#figures", "#order", "#decision"):
            assert text(other, selector) == text(page, selector)
        assert other.run("document.getElementById('stale').hidden")
        other.open(re.sub("capplan=[^&]*", "capplan=0.9.0", link))
        wait(other, "document.getElementById('stale')?.hidden === false")
        assert "capplan 0.9.0 instead of" in text(other, "#stale")


def test_a_mistake_is_shown_with_its_place_and_the_way_out(page):
    write(page, "#yaml", SCENARIO.replace("l40s", "l41s"))
    ask(page)
    assert "fleet.hardware[0]: unknown hardware 'l41s': did you mean" in text(page, "#problem")
    write(page, "#yaml", SCENARIO)
    ask(page)
    assert page.run("document.getElementById('problem').hidden")


def test_an_answer_of_several_fleets_is_shown_as_its_json(page, served):
    traffic = [{"name": "a", "request_rate": "1 req/s", "input_tokens": 500, "output_tokens": 50}]
    second = {
        "name": "b",
        "model": "qwen3-0.6b",
        "gpu_memory_utilization": 0.3,
        "changes": {"traffic": traffic},
    }
    keys = {"name": "both", "model": "qwen3-0.6b", "gpu_memory_utilization": 0.5, "traffic": traffic}
    more = {"slo": {"ttft_p95": "1 s"}, "fleet": {"hardware": ["l40s"]}}
    several = json.dumps({**keys, **more, "sharing": {"by": "device", "models": [second]}})
    found = served.post("fleet", {"contents": {"s.yaml": several}, "scenario": "s.yaml"})
    assert found.status == 200, found.text
    assert "plans" not in json.loads(found.text)["result"]
    write(page, "#yaml", several)
    ask(page)
    assert page.run("document.getElementById('answer').hidden")
    asked = json.loads(text(page, "#other pre"))["result"]
    assert asked["scenario"] == json.loads(found.text)["result"]["scenario"]
    write(page, "#yaml", SCENARIO)
    ask(page)
    assert page.run("document.getElementById('other').hidden")


def test_a_search_can_be_stopped(page, served):
    write(page, "#yaml", SCENARIO.replace("4 req/s", "40 req/s"))
    page.run("document.getElementById('find').click()")
    page.run("document.getElementById('stop').click()")
    wait(page, "document.getElementById('progress').textContent === 'stopped'", 5)
    until = time.monotonic() + 5
    while time.monotonic() < until and [f for f in served.folder.iterdir() if f.name.startswith("capplan-")]:
        time.sleep(0.05)
    assert [f for f in served.folder.iterdir() if f.name.startswith("capplan-")] == []
    write(page, "#yaml", SCENARIO)


def test_a_page_of_another_site_learns_and_starts_nothing(served, tmp_path_factory):
    folder = tmp_path_factory.mktemp("evil")
    (folder / "index.html").write_text("<!DOCTYPE html><title>evil</title>")
    handler = partial(SimpleHTTPRequestHandler, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as evil, browser(folder / "profile") as other:
        Thread(target=evil.serve_forever, daemon=True).start()
        other.open(f"http://127.0.0.1:{evil.server_port}/")
        plain = "{method: 'POST', body: '{}', headers: {'Content-Type': 'application/json'}}"
        for how in (plain, plain.replace("application/json", "text/plain"), "{}"):
            asked = f"fetch('{served.address}/v1/models', {how}).then(() => 'answered', () => 'refused')"
            assert other.run(asked) == "refused"
        blind = f"fetch('{served.address}/v1/fit', {{method: 'POST', mode: 'no-cors', body: '{{}}'}}).then(() => 'answered', () => 'refused')"
        assert other.run(blind) == "refused"
        framed = f"new Promise(done => {{ const f = document.createElement('iframe'); f.src = '{served.address}/'; f.onload = () => {{ try {{ done(f.contentDocument ? 'open' : 'closed'); }} catch (e) {{ done('closed'); }} }}; document.body.append(f); }})"
        assert other.run(framed) == "closed"
        evil.shutdown()


@pytest.mark.parametrize("width", [360, 390, 768, 1280])
def test_the_page_never_scrolls_sideways(page, width):
    page.call(
        "Emulation.setDeviceMetricsOverride", width=width, height=800, deviceScaleFactor=1, mobile=False
    )
    assert page.run("document.scrollingElement.scrollWidth") <= width
    heights = (
        "Array.from(document.querySelectorAll('#chart text')).map(t => t.getBoundingClientRect().height)"
    )
    wait(page, f"Math.min(...{heights}) > 11", 5)  # drawn again for the width
    page.call("Emulation.clearDeviceMetricsOverride")


@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing(page, scheme, width):
    script = (files("axe_core_python") / "axe.min.js").read_text(encoding="utf-8")
    page.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
    page.call(
        "Emulation.setDeviceMetricsOverride", width=width, height=844, deviceScaleFactor=1, mobile=False
    )
    try:
        page.run(f"(() => {{ {script} }})()")
        found = page.run(
            "axe.run(document, {resultTypes: ['violations']}).then(r => r.violations.map(v => [v.id, v.nodes.map(n => n.target.join(' '))]))"
        )
        assert found == []
    finally:
        page.call("Emulation.clearDeviceMetricsOverride")
        page.call("Emulation.setEmulatedMedia", features=[])

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
from tests.served import ROOT, server

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


def working(served):
    """Return the folders of requests that are being answered."""
    return [item.name for item in served.folder.iterdir() if item.name.startswith("capplan-")]


def field(name):
    return f"[name='{name}']"


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
    answers = page.run("window.capplan")
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
    answers = page.run("window.capplan")
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
                part
                for part in re.split(r", recommended|, cheapest so far|: |, | \(|\)|\(", rest)
                if re.search(r"\d", part)
            ]
            assert all(part.strip() in known for part in parts), said


def test_form_and_yaml_are_the_same_scenario(page):
    write(page, field("slo.ttft_p95"), "900 ms")
    assert "ttft_p95: 900 ms" in page.run("document.getElementById('yaml').value")
    write(page, field("fleet.hardware"), "l40s, l4")
    assert page.run("YAML.parse(document.getElementById('yaml').value).fleet.hardware") == ["l40s", "l4"]
    write(page, field("traffic[0].input_tokens"), "{mean: 900, p95: 3000}")
    assert page.run("YAML.parse(document.getElementById('yaml').value).traffic[0].input_tokens.p95") == 3000
    write(page, "#yaml", SCENARIO.replace("1 s", "700 ms"))
    assert page.run(f'document.querySelector("{field("slo.ttft_p95")}").value') == "700 ms"
    write(page, "#yaml", "# why\n" + SCENARIO + "  # last\n")
    write(page, field("slo.tpot_p95"), "45 ms")
    write(page, field("slo.confidence"), "90 %")
    write(page, field("slo.confidence"), "")
    kept = page.run("document.getElementById('yaml').value")
    assert kept.startswith("# why\nname: <img src=x onerror=alert(1)>\n")
    assert "slo: {ttft_p95: 1 s, tpot_p95: 45 ms}\n" in kept
    assert "# last" in kept
    write(page, "#yaml", "model: qwen3-8b\n")
    write(page, field("traffic[0].request_rate"), "3 req/s")
    assert page.run("YAML.parse(document.getElementById('yaml').value).traffic") == [
        {"request_rate": "3 req/s"}
    ]
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


SLIDERS = {
    "load": "request_rate",
    "ttft": "ttft_limit_s",
    "confidence": "confidence",
    "price": "gpu_price_ratio",
}


def values(page, selector):
    return page.run(f"Array.from(document.querySelectorAll('{selector} data')).map(d => Number(d.value))")


def test_the_sliders_say_what_the_json_says(page, served, plan):
    """Each slider moves one number of a point; the fleet of the point is shown, and is what the command prints."""
    points = json.loads(served.post("what-if", {"plan": plan}).text)["result"]["points"]
    assert page.run("window.capplan['what-if'].result.points") == points
    best = plan["result"]["plans"][plan["result"]["recommended"]]
    assert values(page, "#if") == [best["gpus"], best["usd_per_month"]]
    for name in SLIDERS:
        page.run(f"document.querySelector('#{name} input').focus()")
        before = values(page, f"#{name}")
        page.press("ArrowRight")
        assert values(page, f"#{name}")[0] > before[0]
        at = {key: values(page, f"#{slider}")[0] for slider, key in SLIDERS.items()}
        (point,) = [one for one in points if at.items() <= one.items()]
        assert values(page, "#if") == [point["gpus"], point["usd_per_month"]]
        assert point["hardware"] in text(page, "#if")
    assert page.run("document.querySelector('#load input').getAttribute('aria-valuetext')").endswith("req/s")


def test_two_plans_are_side_by_side(page, plan):
    page.run("document.querySelectorAll('#plans button')[1].click()")
    rows = page.run(
        "Array.from(document.querySelectorAll('#beside tbody tr')).map(r => Array.from(r.querySelectorAll('data')).map(d => [d.dataset.path, Number(d.value)]))"
    )
    assert len(rows) > 8
    for first, second in [row for row in rows if len(row) == 2]:
        assert first == [first[0], leaf(plan["result"], first[0])]
        assert second == [second[0], leaf(plan["result"], second[0])]
        assert (first[0][:8], second[0][:8]) == ("plans[0]", "plans[1]")
    page.run("document.getElementById('keep').click()")
    write(page, "#yaml", SCENARIO.replace("4 req/s", "9 req/s"))
    ask(page)
    kept = values(page, "#beside tbody tr:first-child")
    assert kept == [
        plan["result"]["plans"][1]["usd_per_month"],
        page.run("window.capplan.fleet.result.plans[window.capplan.fleet.result.recommended].usd_per_month"),
    ]
    page.run("document.getElementById('forget').click()")
    write(page, "#yaml", SCENARIO)
    ask(page)


def test_plans_are_shown_as_they_are_found(page, plan):
    """Each partial answer has plans that are among those of the answer or cost far more; its numbers are leaves too."""
    page.run(
        "window.seen = []; window.watch = setInterval(() => { const a = document.getElementById('answer'); if (a.classList.contains('partial')) {"
        " window.seen.push([JSON.parse(JSON.stringify(window.capplan.fleet)), Array.from(document.querySelectorAll('#plans [data-path]')).map(e => [e.dataset.path, Number(e.value)]), document.getElementById('plans').textContent]); } }, 20)"
    )
    write(
        page,
        "#yaml",
        SCENARIO.replace("4 req/s", "16 req/s").replace(
            "[l40s, h100-sxm]", "[l40s, h100-sxm, h200-sxm, b200]"
        ),
    )
    ask(page)
    page.run("clearInterval(window.watch)")
    seen = page.run("window.seen")
    assert seen
    assert all("recommended" not in shown for *_, shown in seen)
    final = page.run("window.capplan.fleet.result.plans")
    known = {(one["hardware"], one["gpus"], one["usd_per_month"]) for one in final}
    for so_far, shown, _ in seen:
        assert [leaf(so_far["result"], path) for path, _ in shown] == [value for _, value in shown]
        for one in so_far["result"]["plans"]:
            dear = one["usd_per_month"] > 4 * final[0]["usd_per_month"]
            assert dear or (one["hardware"], one["gpus"], one["usd_per_month"]) in known
    write(page, "#yaml", SCENARIO)
    ask(page)


def test_every_key_of_a_scenario_is_in_the_form(page):
    """The form is made from the schema: opened group by group, it has each key once, and says what it means."""
    schema = json.loads((ROOT / "docs/schema/scenario.json").read_text())
    page.run(
        "(function open() { const shut = Array.from(document.querySelectorAll('#more details:not([open])')); shut.forEach(d => { d.open = true; }); })()"
    )
    names = "Array.from(document.querySelectorAll('#question [name]')).map(e => e.name)"
    wait(page, f"{names}.includes('prices.provider')")
    found = page.run(names)
    assert len(found) == len(set(found))
    assert {name.split(".")[0].split("[")[0] for name in found} == set(schema["properties"])
    for of, prefix in (
        ("Promise", "slo."),
        ("Fleet", "fleet."),
        ("Traffic", "traffic[0]."),
        ("Prices", "prices."),
    ):
        keys = {prefix + key for key in schema["$defs"][of]["properties"]}
        assert {
            key for key in keys if not any(name == key or name.startswith(f"{key}.") for name in found)
        } <= {
            key
            for key in keys
            if page.run(
                f"Array.from(document.querySelectorAll('#more summary')).some(s => s.textContent.startsWith({json.dumps(key.rpartition('.')[2] + ':')}))"
            )
        }
    write(page, "[name='engine_version']", "0.9.0")
    assert "engine_version: 0.9.0" in page.run("document.getElementById('yaml').value")
    write(page, "#yaml", SCENARIO + "max_num_seqs: 64\n")
    assert page.run("document.querySelector(\"[name='max_num_seqs']\").value") == "64"
    write(page, "#yaml", SCENARIO)


def test_a_second_tab_has_a_scenario_of_its_own(page, served, tmp_path_factory):
    with browser(tmp_path_factory.mktemp("second")) as other:
        other.open(f"{served.address}/")
        wait(other, "!document.getElementById('find').disabled")
        write(other, "#yaml", SCENARIO.replace("4 req/s", "8 req/s"))
        page.run("document.getElementById('find').click()")
        ask(other)
        wait(page, "document.getElementById('stop').hidden")
        rates = [tab.run("window.capplan.fleet.result.demand.peak_requests_per_s") for tab in (page, other)]
        assert rates == [4.0, 8.0]
        other.run("document.getElementById('find').click()")
        wait(other, "!document.getElementById('stop').hidden")
    until = time.monotonic() + 20  # the tab is closed, so nobody waits for its search
    while time.monotonic() < until and working(served):
        time.sleep(0.05)
    assert working(served) == []


def test_the_page_is_used_by_keyboard_alone(page, plan):
    """Tab reaches every control that is shown, in the order of the page, and each shows that it has the focus."""
    page.run("document.querySelectorAll('details[open]').forEach(d => { d.open = false; })")
    kinds = "a, button, input, select, textarea, summary, g.mark, [tabindex='0']"
    wanted = page.run(
        f'Array.from(document.querySelectorAll("{kinds}")).filter(e => e.checkVisibility() && !e.disabled).length'
    )
    where = (
        "(e => { const s = getComputedStyle(e); return [Array.from(document.querySelectorAll('*')).indexOf(e), s.outlineStyle !== 'none', e.outerHTML.slice(0, 80)]; })"
        "(document.activeElement)"
    )
    page.run("document.querySelector('a.skip').focus()")
    seen = [page.run(where)]
    for _ in range(wanted - 1):
        page.press("Tab")
        seen.append(page.run(where))
    places = [place for place, *_ in seen]
    assert places == sorted(places)
    assert len(set(places)) == wanted
    assert [one for one in seen if not one[1]] == []


def test_launch_commands_and_names_are_text(page):
    assert "vllm serve Qwen/Qwen3-8B" in text(page, "#launch")
    page.run(
        "(s => { s.value = 'k8s'; s.dispatchEvent(new Event('change')); })(document.getElementById('target'))"
    )
    wait(page, "document.getElementById('launch').textContent.includes('kind: Deployment')")
    assert page.run("document.querySelectorAll('img').length") == 0


def test_report_and_plan_are_downloaded_and_commands_copied(page, served, tmp_path):
    page.call("Page.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path))
    for button, name in (("plan", "plan.json"), ("report", "plan.html")):
        page.run(f"document.getElementById('{button}').click()")
        until = time.monotonic() + 60
        while not (tmp_path / name).is_file() and time.monotonic() < until:
            time.sleep(0.05)
    saved = (tmp_path / "plan.json").read_text(encoding="utf-8")
    assert json.loads(saved) == page.run("window.capplan.fleet")
    sent = {"contents": {"plan.json": saved}, "plan": "plan.json"}
    report = served.post("report", sent, headers={"Accept": "text/html"}).text
    assert (tmp_path / "plan.html").read_text(encoding="utf-8") == report
    page.run("navigator.clipboard.writeText = t => { window.copied = t; return Promise.resolve(); }")
    page.run("document.getElementById('copy').click()")
    assert page.run("window.copied") == text(page, "#launch")


def test_a_link_is_a_plan(page, served, tmp_path_factory):
    link = page.run("location.href")
    assert "#capplan=" in link
    with browser(tmp_path_factory.mktemp("other")) as other:
        other.open(link)
        wait(other, "!document.getElementById('answer').hidden && document.getElementById('stop').hidden")
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
    wait(page, "document.getElementById('progress').textContent === 'stopped'")
    until = time.monotonic() + 20
    while time.monotonic() < until and working(served):
        time.sleep(0.05)
    assert working(served) == []
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
    page.run("document.querySelectorAll('details').forEach(d => { d.open = true; })")
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
    page.run("document.querySelectorAll('details').forEach(d => { d.open = true; })")
    try:
        page.run(f"(() => {{ {script} }})()")
        found = page.run(
            "axe.run(document, {resultTypes: ['violations']}).then(r => r.violations.map(v => [v.id, v.nodes.map(n => n.target.join(' '))]))"
        )
        assert found == []
    finally:
        page.call("Emulation.clearDeviceMetricsOverride")
        page.call("Emulation.setEmulatedMedia", features=[])

"use strict";
// A question is a scenario; its answer is the JSON of commands. A number that is shown is a <data> element with its place in that JSON.
(function () {
  const $ = function (id) { return document.getElementById(id); };
  const KEYS = [
    ["model", "Model", "a Hugging Face id"],
    ["traffic[0].request_rate", "Requests at the peak", "20 req/s"],
    ["slo.confidence", "Probability to meet all targets", "80 %"],
    ["traffic[0].input_tokens", "Input tokens", "1500, or {mean: 1500, p95: 5000}"],
    ["traffic[0].output_tokens", "Output tokens", "300, or {mean: 300, p95: 800}"],
    ["slo.ttft_p95", "TTFT, 95th percentile", "800 ms"],
    ["slo.tpot_p95", "TPOT, 95th percentile", "40 ms"],
    ["fleet.hardware", "GPUs to compare", "l40s, h100-sxm"],
    ["weight_dtype", "Weight dtype", "as in the model's config"],
    ["fleet.headroom", "Headroom", "20 %"]
  ];
  const FIRST = "support-chat";
  let scenario = {};
  let answer = null;
  let raw = "";
  let chosen = 0;
  let asking = null;

  // asking

  function headers(more) {
    const token = sessionStorage.getItem("token");
    return Object.assign(token ? { Authorization: "Bearer " + token } : {}, more);
  }

  async function ask(path, body, accept, signal) {
    const how = body === undefined ? { headers: headers({}) } : {
      method: "POST", signal: signal, body: JSON.stringify(body),
      headers: headers({ "Content-Type": "application/json", Accept: accept || "application/json" })
    };
    const response = await fetch(path, how);
    if (response.status === 401) { $("token-field").hidden = false; $("token").focus(); }
    if (!response.ok) { throw new Error((await response.json()).detail); }
    return response;
  }

  async function events(response, told) {
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let left = "";
    for (;;) {
      const part = await reader.read();
      left += part.value || "";
      const whole = left.split("\n\n");
      left = whole.pop();
      for (const event of whole) {
        const lines = event.split("\n");
        const kind = lines[0].slice("event: ".length);
        const text = lines.slice(1).map(function (line) { return line.slice("data: ".length); }).join("\n");
        if (kind === "progress") { told(JSON.parse(text)); }
        if (kind === "problem") { throw new Error(JSON.parse(text).detail); }
        if (kind === "result") { return text; }
      }
      if (part.done) { throw new Error("The server ended before it answered."); }
    }
  }

  // the scenario: form and YAML

  function parts(path) { return path.match(/[^.[\]]+/g).map(function (part) { return /^\d+$/.test(part) ? Number(part) : part; }); }

  function value(of, path) {
    return parts(path).reduce(function (inside, part) { return inside === undefined || inside === null ? undefined : inside[part]; }, of);
  }

  function put(path, given) {
    const steps = parts(path);
    const last = steps.pop();
    let inside = scenario;
    steps.forEach(function (part, at) {
      if (typeof inside[part] !== "object" || inside[part] === null) { inside[part] = typeof (steps[at + 1] || last) === "number" ? [] : {}; }
      inside = inside[part];
    });
    if (given === undefined) { delete inside[last]; } else { inside[last] = given; }
  }

  function flow(given) {
    if (given === undefined || given === null) { return ""; }
    if (Array.isArray(given) && given.every(function (item) { return typeof item === "string"; })) { return given.join(", "); }
    return typeof given === "object" ? jsyaml.dump(given, { flowLevel: 0 }).trim() : String(given);
  }

  function read(path, text) {
    if (text.trim() === "") { return undefined; }
    if (path === "fleet.hardware") { return text.split(",").map(function (name) { return name.trim(); }).filter(Boolean); }
    try { return jsyaml.load(text); } catch (error) { return text; }
  }

  function fill() {
    KEYS.forEach(function (key) { $("keys").querySelector('[name="' + key[0] + '"]').value = flow(value(scenario, key[0])); });
  }

  function load(text) {
    $("yaml").value = text;
    parse();
  }

  function parse() {
    try {
      const found = jsyaml.load($("yaml").value);
      if (typeof found !== "object" || found === null || Array.isArray(found)) { throw new Error("A scenario has keys, such as model: qwen3-8b"); }
      scenario = found;
      $("yaml-error").textContent = "";
      fill();
      return true;
    } catch (error) {
      $("yaml-error").textContent = error.message;
      return false;
    }
  }

  function field(key) {
    const label = document.createElement("label");
    const input = document.createElement("input");
    input.name = key[0];
    input.placeholder = key[2];
    if (key[0] === "model") { input.setAttribute("list", "models"); }
    label.append(key[1], input);
    input.addEventListener("input", function () {
      put(key[0], read(key[0], input.value));
      $("yaml").value = jsyaml.dump(scenario, { lineWidth: 100, noRefs: true });
      $("yaml-error").textContent = "";
    });
    $("keys").append(label);
  }

  // the address

  function encoded(text) {
    const bytes = new TextEncoder().encode(text);
    return btoa(Array.from(bytes, function (byte) { return String.fromCharCode(byte); }).join("")).replace(/\+/g, "-").replace(/\//g, "_").replace(/=+$/, "");
  }

  function decoded(text) {
    const binary = atob(text.replace(/-/g, "+").replace(/_/g, "/"));
    return new TextDecoder().decode(Uint8Array.from(binary, function (letter) { return letter.charCodeAt(0); }));
  }

  function priced(result) {
    const rows = value(result, "plan_file.inputs.prices") || [];
    return rows.flatMap(function (row) { return row.dates; }).sort().pop() || "";
  }

  function remember() {
    const held = new URLSearchParams({ capplan: answer.capplan, prices: priced(answer.result), scenario: encoded($("yaml").value) });
    history.replaceState(null, "", "#" + held);
  }

  function recalled() {
    const held = new URLSearchParams(location.hash.slice(1));
    return held.has("scenario") ? { capplan: held.get("capplan"), prices: held.get("prices"), yaml: decoded(held.get("scenario")) } : null;
  }

  // numbers

  const SHOWN = {
    usd: function (given) { return "$" + given.toLocaleString("en-US", { maximumFractionDigits: 0 }); },
    price: function (given) { return "$" + given.toLocaleString("en-US", { minimumFractionDigits: 2, maximumFractionDigits: 2 }); },
    count: function (given) { return given.toLocaleString("en-US", { maximumFractionDigits: 2 }); },
    share: function (given) { return given > 0.99 ? "> 99%" : given < 0.01 ? "< 1%" : Math.floor(given * 100 + 1e-9) + "%"; },
    time: function (given) {
      return given < 1 ? (given * 1000).toLocaleString("en-US", { maximumSignificantDigits: 3 }) + " ms"
        : given.toLocaleString("en-US", { maximumSignificantDigits: 3 }) + " s";
    }
  };

  function number(of, path, kind) {
    const given = value(of.result, path);
    if (typeof given !== "number") { return document.createTextNode("–"); }
    const shown = document.createElement("data");
    shown.value = String(given);
    shown.dataset.path = path;
    shown.dataset.command = of.command;
    shown.title = path;
    shown.textContent = SHOWN[kind](given);
    return shown;
  }

  function cell(row, ...content) {
    const made = document.createElement("td");
    made.append(...content);
    row.append(made);
    return made;
  }

  function heads(table, names) {
    const row = document.createElement("tr");
    names.forEach(function (name) {
      const made = document.createElement("th");
      made.scope = "col";
      made.textContent = name[0];
      made.className = name[1] || "";
      row.append(made);
    });
    table.tHead.replaceChildren(row);
    table.tBodies[0].replaceChildren();
    return table.tBodies[0];
  }

  function layout(at) {
    const made = document.createElement("span");
    [["TP", "tensor_parallel"], ["PP", "pipeline_parallel"], ["EP", "expert_parallel"], ["DP", "data_parallel"]].forEach(function (kind, order) {
      if (order === 0 || value(answer.result, at + kind[1]) > 1) { made.append(order ? " " : "", kind[0], number(answer, at + kind[1], "count")); }
    });
    return made;
  }

  // the answer

  function figure(name, content, beside) {
    const made = document.createElement("div");
    const term = document.createElement("dt");
    const said = document.createElement("dd");
    const more = document.createElement("dd");
    term.textContent = name;
    said.append(...content);
    more.className = "beside";
    more.append(...beside);
    made.append(term, said, more);
    $("figures").append(made);
  }

  function limit(name) {
    return value(answer.result, "plan_file.inputs.targets." + name) === undefined ? ["no target"] : ["target ", number(answer, "plan_file.inputs.targets." + name, "time")];
  }

  function show() {
    const result = answer.result;
    const at = "plans[" + chosen + "].";
    $("answer").hidden = false;
    $("figures").replaceChildren();
    if (result.plans.length) {
      const plan = result.plans[chosen];
      const kept = function (path, kind, beside) {
        const other = "plans[" + result.recommended + "]." + path;
        return chosen === result.recommended ? beside : beside.concat("; recommended ", number(answer, other, kind));
      };
      [["per month", "usd_per_month", "usd", typeof plan.usd_per_month_low !== "number" ? [plan.price_basis] : [number(answer, at + "usd_per_month_low", "usd"), " to ", number(answer, at + "usd_per_month_high", "usd")]],
        ["GPUs", "gpus", "count", [plan.hardware]],
        ["chance to meet the SLO", "slo_met_probability", "share", ["required ", number(answer, "plan_file.inputs.confidence", "share")]],
        ["per million output tokens", "usd_per_million_output_tokens", "price", ["all tokens ", number(answer, at + "usd_per_million_tokens", "price")]],
        ["TTFT, 95th percentile", "ttft_s.p95", "time", limit("ttft_p95")],
        ["TPOT, 95th percentile", "tpot_s.p95", "time", limit("tpot_p95")]
      ].forEach(function (row) { figure(row[0], [number(answer, at + row[1], row[2])], kept(row[1], row[2], row[3])); });
      showOrder(at, plan);
      showWaterfall(at, plan);
    }
    showPlans();
    draw();
    whatIf();
  }

  function choose(plan) {
    chosen = plan;
    const focused = document.activeElement && document.activeElement.closest("g.mark");
    show();
    if (focused) { $("chart").querySelector('g.mark[aria-pressed="true"]').focus(); }
  }

  function showPlans() {
    const body = heads($("plans"), [["plan"], ["GPUs", "number"], ["layout", "optional"], ["per month", "number"], ["chance to meet the SLO", "number"],
      ["TTFT p95", "number optional"], ["TPOT p95", "number optional"], ["per million output tokens", "number optional"]]);
    answer.result.plans.forEach(function (plan, order) {
      const at = "plans[" + order + "].";
      const row = document.createElement("tr");
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = plan.hardware + (order === answer.result.recommended ? ", recommended" : "");
      button.addEventListener("click", function () { choose(order); $("plans").querySelectorAll("button")[order].focus(); });
      row.setAttribute("aria-current", String(order === chosen));
      cell(row, button);
      cell(row, number(answer, at + "gpus", "count")).className = "number";
      cell(row, layout(at)).className = "optional";
      cell(row, number(answer, at + "usd_per_month", "usd")).className = "number";
      cell(row, number(answer, at + "slo_met_probability", "share")).className = "number";
      cell(row, number(answer, at + "ttft_s.p95", "time")).className = "number optional";
      cell(row, number(answer, at + "tpot_s.p95", "time")).className = "number optional";
      cell(row, number(answer, at + "usd_per_million_output_tokens", "price")).className = "number optional";
      body.append(row);
    });
  }

  function showOrder(at, plan) {
    const body = heads($("order"), [["machines", "number"], ["SKU"], ["provider"], ["GPU"], ["per hour", "number"], ["price of"]]);
    (plan.order ? plan.order.machines : []).forEach(function (machine, order) {
      const one = at + "order.machines[" + order + "].";
      const row = document.createElement("tr");
      cell(row, number(answer, one + "count", "count")).className = "number";
      cell(row, machine.sku || "");
      cell(row, [machine.provider, machine.region].filter(Boolean).join(", "));
      cell(row, machine.hardware);
      cell(row, number(answer, one + "usd_per_hour", "price")).className = "number";
      cell(row, machine.date || "");
      body.append(row);
    });
  }

  function showWaterfall(at, plan) {
    $("waterfall").hidden = !plan.waterfall;
    if (!plan.waterfall) { return; }
    const body = heads($("waterfall").querySelector("table"), [["step"], ["GPUs", "number"], ["per month", "number"], ["key"]]);
    plan.waterfall.forEach(function (step, order) {
      const one = at + "waterfall[" + order + "].";
      const row = document.createElement("tr");
      cell(row, step.step);
      cell(row, number(answer, one + "gpus", "count")).className = "number";
      cell(row, number(answer, one + "usd_per_month", "usd")).className = "number";
      cell(row, step.key || "");
      body.append(row);
    });
  }

  function listed(id, lines) {
    $(id).replaceChildren(...lines.map(function (line) {
      const item = document.createElement("li");
      item.append(...[].concat(line));
      return item;
    }));
  }

  // the chart

  function svg(name, attributes, ...inside) {
    const made = document.createElementNS("http://www.w3.org/2000/svg", name);
    Object.entries(attributes).forEach(function (pair) { made.setAttribute(pair[0], pair[1]); });
    made.append(...inside);
    return made;
  }

  function scale(values, from, to) {
    const least = Math.min(...values);
    const most = Math.max(...values);
    return function (given) { return most === least ? (from + to) / 2 : from + (given - least) / (most - least) * (to - from); };
  }

  function draw() {
    const plans = answer.result.plans.map(function (plan, order) { return { plan: plan, order: order, x: value(plan, "ttft_s.p95"), y: plan.usd_per_month }; })
      .filter(function (mark) { return typeof mark.x === "number" && typeof mark.y === "number"; });
    const old = $("chart").querySelector("svg");
    if (old) { old.remove(); }
    if (!plans.length) { return; }
    const wide = Math.max(260, $("chart").clientWidth);
    const x = scale(plans.map(function (mark) { return mark.x; }), 120, wide - 60);
    const y = scale(plans.map(function (mark) { return mark.y; }), 225, 62);
    const drawn = svg("svg", { viewBox: "0 0 " + wide + " 300", role: "group", "aria-label": "Plans by TTFT and dollars per month" });
    drawn.append(svg("line", { class: "axis", x1: 74, y1: 255, x2: wide - 10, y2: 255 }), svg("line", { class: "axis", x1: 74, y1: 24, x2: 74, y2: 255 }),
      svg("text", { x: wide - 10, y: 292, "text-anchor": "end" }, "TTFT, 95th percentile"), svg("text", { x: 4, y: 14 }, "dollars per month"));
    const ends = function (of, sign) { return plans.reduce(function (best, mark) { return sign * mark[of] < sign * best[of] ? mark : best; }); };
    [["x", 1], ["x", -1], ["y", 1], ["y", -1]].forEach(function (end) {
      const mark = ends(end[0], end[1]);
      const across = end[0] === "x";
      const path = "plans[" + mark.order + "]." + (across ? "ttft_s.p95" : "usd_per_month");
      const place = across ? { x: x(mark.x), y: 270, "text-anchor": "middle" } : { x: 68, y: y(mark.y) + 4, "text-anchor": "end" };
      const label = svg("text", place, SHOWN[across ? "time" : "usd"](mark[end[0]]));
      label.dataset.path = path;
      label.dataset.value = String(mark[end[0]]);
      label.dataset.command = answer.command;
      drawn.append(label);
    });
    plans.forEach(function (mark) {
      const recommended = mark.order === answer.result.recommended;
      const made = svg("g", { class: "mark" + (recommended ? " recommended" : ""), tabindex: 0, role: "button", "aria-pressed": mark.order === chosen,
        "aria-label": mark.plan.hardware + ", " + SHOWN.count(mark.plan.gpus) + " GPUs, " + SHOWN.usd(mark.y) + " per month, TTFT " + SHOWN.time(mark.x) },
        svg("circle", { cx: x(mark.x), cy: y(mark.y), r: 9 }), svg("text", { x: x(mark.x), y: y(mark.y) - 14, "text-anchor": "middle" }, mark.plan.hardware));
      made.addEventListener("click", function () { choose(mark.order); });
      made.addEventListener("keydown", function (event) {
        if (event.key === "Enter" || event.key === " ") { event.preventDefault(); choose(mark.order); }
      });
      drawn.append(made);
    });
    $("chart").append(drawn);
  }

  // what if

  let reviewed = null;
  let targets = [];

  function slide(id, rows, at, said) {
    const panel = $(id);
    const input = panel.querySelector("input");
    panel.hidden = rows.length < 2;
    if (panel.hidden) { return; }
    input.min = 0;
    input.max = rows.length - 1;
    input.value = at;
    const tell = function () {
      const content = said(rows[Number(input.value)]);
      const text = content.map(function (part) { return typeof part === "string" ? part : part.textContent; }).join("");
      panel.querySelector("output").replaceChildren(...content);
      input.setAttribute("aria-valuetext", text);
    };
    input.oninput = tell;
    tell();
  }

  function whatIf() {
    const sure = answer.result.certainty || [];
    const today = sure.findIndex(function (row) { return row.confidence === value(answer.result, "plan_file.inputs.confidence"); });
    slide("confidence", sure.map(function (row, order) { return "certainty[" + order + "]."; }), Math.max(0, today), function (at) {
      return [number(answer, at + "confidence", "share"), ": ", number(answer, at + "gpus", "count"), " GPUs (", String(value(answer.result, at + "hardware")), "), ",
        number(answer, at + "usd_per_month", "usd"), " per month"];
    });
    const rows = reviewed ? reviewed.result.what_if || [] : [];
    const names = Array.from(new Set(rows.map(function (row) { return row.hardware + " " + row.plan; })));
    const of = names[answer.result.plans.length === names.length ? chosen : 0];
    const own = rows.map(function (row, order) { return { row: row, at: "what_if[" + order + "]." }; })
      .filter(function (item) { return item.row.hardware + " " + item.row.plan === of; });
    slide("load", own, Math.max(0, own.findIndex(function (item) { return item.row.traffic_ratio === 1; })), function (item) {
      return [number(reviewed, item.at + "request_rate", "count"), " req/s: ", number(reviewed, item.at + "gpus", "count"), " GPUs (", item.row.hardware, "), ",
        number(reviewed, item.at + "usd_per_month", "usd"), " per month"];
    });
    showTargets();
  }

  function showTargets() {
    const panel = $("ttft");
    const limited = value(answer.result, "plan_file.inputs.targets.ttft_p95");
    panel.hidden = limited === undefined;
    panel.querySelector("button").hidden = targets.length > 1;
    panel.querySelector("label").hidden = targets.length < 2;
    if (targets.length < 2) { panel.querySelector("output").replaceChildren(); return; }
    const now = targets.findIndex(function (other) { return value(other.result, "plan_file.inputs.targets.ttft_p95") === limited; });
    slide("ttft", targets, Math.max(0, now), function (other) {
      const at = "plans[" + other.result.recommended + "].";
      const plan = other.result.plans[other.result.recommended];
      return [number(other, "plan_file.inputs.targets.ttft_p95", "time"), ": "].concat(plan
        ? [number(other, at + "gpus", "count"), " GPUs (", plan.hardware, "), ", number(other, at + "usd_per_month", "usd"), " per month"] : ["no plan"]);
    });
  }

  async function computeTargets() {
    const button = $("ttft").querySelector("button");
    const limited = value(answer.result, "plan_file.inputs.targets.ttft_p95");
    const base = answer;
    button.disabled = true;
    try {
      const found = await Promise.all([0.5, 0.75, 1.5, 2].map(async function (ratio) {
        const response = await ask("v1/fleet", { contents: { "scenario.yaml": $("yaml").value }, scenario: "scenario.yaml", set: ["slo.ttft_p95=" + limited * ratio + " s"] });
        return response.json();
      }));
      if (base !== answer) { return; }
      targets = found.slice(0, 2).concat([answer], found.slice(2));
      window.capplan.targets = targets;
      showTargets();
    } catch (error) { problem(error); } finally { button.disabled = false; }
  }

  // one question after the other

  function problem(error) {
    if (error.name === "AbortError") { return; }
    $("problem").hidden = false;
    $("problem").querySelector("pre").textContent = error.message;
  }

  function planned() { return { contents: { "plan.json": raw }, plan: "plan.json" }; }

  async function submit(event) {
    if (event) { event.preventDefault(); }
    if (!parse()) { $("yaml").focus(); return; }
    if (asking) { asking.abort(); }
    const mine = new AbortController();
    asking = mine;
    $("problem").hidden = true;
    $("other").hidden = true;
    $("stop").hidden = false;
    $("progress").textContent = "searching";
    try {
      const body = { contents: { "scenario.yaml": $("yaml").value }, scenario: "scenario.yaml" };
      const response = await ask("v1/fleet", body, "text/event-stream", mine.signal);
      raw = await events(response, function (step) {
        $("progress").textContent = step.total ? step.what + ": " + step.done + " of " + step.total : step.what;
      });
      answer = JSON.parse(raw);
      $("other").hidden = Array.isArray(answer.result.plans);
      if (!$("other").hidden) {
        $("other").querySelector("pre").textContent = raw;
        $("answer").hidden = true;
        remember();
        $("progress").textContent = "done";
        return;
      }
      reviewed = null;
      targets = [];
      chosen = answer.result.recommended || 0;
      window.capplan = { fleet: answer, targets: targets };
      $("decision").textContent = answer.result.plans.length ? answer.result.why || "" : "No plan meets the targets.";
      listed("rejected", answer.result.rejected.map(function (row, order) { return [row.hardware + ": " + row.reason + " (", number(answer, "rejected[" + order + "].count", "count"), ")"]; }));
      listed("assumptions", answer.assumptions.map(function (row) { return row.assumption + " (" + row.replace + ")"; }));
      listed("warnings", answer.warnings);
      $("warned").hidden = !answer.warnings.length;
      show();
      said();
      remember();
      $("progress").textContent = "done";
      await Promise.all([review(mine), launch(mine)]);
    } catch (error) {
      if (error.name !== "AbortError") { $("answer").hidden = true; $("progress").textContent = ""; }
      problem(error);
    } finally {
      if (asking === mine) { asking = null; $("stop").hidden = true; }
    }
  }

  function said() {
    const held = recalled();
    const changes = [];
    if (held && held.capplan && held.capplan !== answer.capplan) { changes.push("capplan " + held.capplan + " instead of " + answer.capplan); }
    if (held && held.prices && held.prices !== priced(answer.result)) { changes.push("prices of " + held.prices + " instead of " + priced(answer.result)); }
    $("stale").hidden = !changes.length;
    $("stale").textContent = changes.length ? "The link was made with " + changes.join(" and ") + ": its numbers may have been others." : "";
  }

  async function review(mine) {
    if (!answer.result.plans.length) { return; }
    reviewed = await (await ask("v1/report", planned(), "application/json", mine.signal)).json();
    window.capplan.report = reviewed;
    $("decision").textContent = reviewed.result.decision;
    whatIf();
  }

  async function launch(mine) {
    if (!answer.result.plans.length) { $("launch").textContent = ""; return; }
    const body = Object.assign(planned(), { target: $("target").value || "vllm" });
    $("launch").textContent = await (await ask("v1/export", body, "text/plain", mine && mine.signal)).text();
  }

  function save(name, text, type) {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([text], { type: type }));
    link.download = name;
    link.click();
    setTimeout(function () { URL.revokeObjectURL(link.href); }, 10000);
  }

  async function copied(text) {
    await navigator.clipboard.writeText(text);
    $("copied").textContent = "copied";
    setTimeout(function () { $("copied").textContent = ""; }, 2000);
  }

  async function offer() {
    const found = await Promise.all(["openapi.json", "v1/scenarios", "v1/models", "page/scenario.json"].map(function (path) { return ask(path).then(function (r) { return r.json(); }); }));
    const options = function (names) { return names.map(function (name) { return new Option(name, name); }); };
    $("target").replaceChildren(...options(found[0].paths["/v1/export"].post.requestBody.content["application/json"].schema.properties.target.enum));
    $("start").replaceChildren(...options(found[1].result.rows.map(function (row) { return row.scenario; })));
    $("start").value = FIRST;
    const models = document.createElement("datalist");
    models.id = "models";
    models.append(...options(found[2].result.rows.map(function (row) { return row.model; })));
    document.body.append(models);
    Object.entries(found[3].properties).forEach(function (pair) {
      const term = document.createElement("dt");
      const told = document.createElement("dd");
      term.textContent = pair[0];
      told.textContent = pair[1].description || pair[1].title || "";
      $("more").querySelector("dl").append(term, told);
    });
  }

  async function start() {
    const held = recalled();
    try {
      load(held ? held.yaml : await (await ask("v1/scenarios/" + FIRST)).text());
      $("find").disabled = false;
      await Promise.all([offer(), held ? submit() : null]);
    } catch (error) { problem(error); }
  }

  $("question").addEventListener("submit", submit);
  $("yaml").addEventListener("input", parse);
  $("stop").addEventListener("click", function () { if (asking) { asking.abort(); $("progress").textContent = "stopped"; } });
  $("link").addEventListener("click", function () { if (answer) { remember(); } copied(location.href); });
  $("copy").addEventListener("click", function () { copied($("launch").textContent); });
  $("target").addEventListener("change", function () { launch().catch(problem); });
  $("ttft").querySelector("button").addEventListener("click", computeTargets);
  $("plan").addEventListener("click", function () { save("plan.json", raw, "application/json"); });
  $("report").addEventListener("click", function () {
    ask("v1/report", planned(), "text/html").then(function (r) { return r.text(); }).then(function (text) { save("plan.html", text, "text/html"); }).catch(problem);
  });
  $("token").addEventListener("change", function () { sessionStorage.setItem("token", $("token").value); $("problem").hidden = true; start(); });
  $("start").addEventListener("change", function () {
    ask("v1/scenarios/" + $("start").value).then(function (r) { return r.text(); }).then(load).catch(problem);
  });
  window.addEventListener("resize", function () { if (answer && !$("answer").hidden) { draw(); } });
  window.addEventListener("hashchange", function () { const held = recalled(); if (held && held.yaml !== $("yaml").value) { load(held.yaml); submit(); } });
  KEYS.forEach(field);
  start();
}());

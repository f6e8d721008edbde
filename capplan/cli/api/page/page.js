"use strict";
// A question is a scenario; its answer is the JSON of commands. A number that is shown is a <data> element with its place in that JSON.
(function () {
  const $ = function (id) { return document.getElementById(id); };
  const KEYS = {
    model: "Model", "traffic[0].request_rate": "Requests at the peak", "slo.confidence": "Probability to meet all targets",
    "traffic[0].input_tokens": "Input tokens", "traffic[0].output_tokens": "Output tokens", "slo.ttft_p95": "TTFT, 95th percentile",
    "slo.tpot_p95": "TPOT, 95th percentile", "fleet.hardware": "GPUs to compare", weight_dtype: "Weight dtype", "fleet.headroom": "Headroom"
  };
  const COMPARED = [["per month", "usd_per_month", "usd"], ["GPUs", "gpus", "count"], ["chance to meet the SLO", "slo_met_probability", "share"],
    ["TTFT, 95th percentile", "ttft_s.p95", "time"], ["TPOT, 95th percentile", "tpot_s.p95", "time"], ["per million output tokens", "usd_per_million_output_tokens", "price"],
    ["per million tokens", "usd_per_million_tokens", "price"], ["replicas", "replicas", "count"], ["spare replicas", "spare_replicas", "count"],
    ["tensor parallel", "tensor_parallel", "count"], ["pipeline parallel", "pipeline_parallel", "count"], ["sequences at a replica", "concurrency_per_replica", "count"], ["watts", "watts", "count"]];
  const FIRST = "support-chat";
  let scenario = YAML.parseDocument("");
  let keys = {};
  let schema = null;
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
        if (kind === "progress" || kind === "found") { told(kind, JSON.parse(text)); }
        if (kind === "problem") { throw new Error(JSON.parse(text).detail); }
        if (kind === "result") { return text; }
      }
      if (part.done) { throw new Error("The server ended before it answered."); }
    }
  }

  // the scenario: form and YAML; the form changes a key of the document, whose comments stay

  function parts(path) { return path.match(/[^.[\]]+/g).map(function (part) { return /^\d+$/.test(part) ? Number(part) : part; }); }

  function value(of, path) {
    return parts(path).reduce(function (inside, part) { return inside === undefined || inside === null ? undefined : inside[part]; }, of);
  }

  const WRITTEN = { lineWidth: 0, flowCollectionPadding: false };

  function put(path, given) {
    const steps = parts(path);
    steps.slice(0, -1).forEach(function (_, at) {
      const above = steps.slice(0, at + 1);
      const inside = scenario.getIn(above);
      if (inside === null || (inside !== undefined && typeof inside !== "object")) { scenario.deleteIn(above); }
    });
    if (given === undefined) { if (scenario.hasIn(steps)) { scenario.deleteIn(steps); } } else { scenario.setIn(steps, scenario.createNode(given, { flow: true })); }
    $("yaml").value = scenario.toString(WRITTEN);
    keys = scenario.toJS();
    $("yaml-error").textContent = "";
  }

  function flow(given) {
    if (given === undefined || given === null) { return ""; }
    if (Array.isArray(given) && given.every(function (item) { return typeof item === "string"; })) { return given.join(", "); }
    return typeof given === "object" ? YAML.stringify(given, Object.assign({ collectionStyle: "flow" }, WRITTEN)).trim() : String(given);
  }

  function read(path, text) {
    if (text.trim() === "") { return undefined; }
    if (path === "fleet.hardware") { return text.split(",").map(function (name) { return name.trim(); }).filter(Boolean); }
    try { return YAML.parse(text); } catch (error) { return text; }
  }

  function fill() {
    $("question").querySelectorAll("[name]").forEach(function (input) { input.value = flow(value(keys, input.name)); });
  }

  function load(text) {
    $("yaml").value = text;
    parse();
  }

  function parse() {
    try {
      const tree = YAML.parseDocument($("yaml").value);
      if (tree.errors.length) { throw tree.errors[0]; }
      const found = tree.toJS();
      if (typeof found !== "object" || found === null || Array.isArray(found)) { throw new Error("A scenario has keys, such as model: qwen3-8b"); }
      scenario = tree;
      keys = found;
      $("yaml-error").textContent = "";
      fill();
      return true;
    } catch (error) {
      $("yaml-error").textContent = error.message;
      return false;
    }
  }

  function described(of) {
    const one = of.$ref ? schema.$defs[of.$ref.split("/").pop()] : (of.anyOf || []).find(function (kind) { return kind.type !== "null"; });
    return one ? Object.assign({}, described(one), of.description ? { description: of.description } : {}) : of;
  }

  function declared(path) {
    return parts(path).reduce(function (of, part) { const found = described(of); return typeof part === "number" ? found.items : found.properties[part]; }, schema);
  }

  function field(path, name, of) {
    const kinds = of.enum || (of.type === "boolean" ? ["true", "false"] : null);
    const input = document.createElement(kinds ? "select" : "input");
    const label = document.createElement("label");
    if (kinds) { input.append(new Option("", "")); kinds.forEach(function (kind) { input.append(new Option(kind, kind)); }); }
    input.name = path;
    if (!kinds) { input.placeholder = (of.examples || [])[0] || ""; }
    input.title = of.description || "";
    if (path === "model") { input.setAttribute("list", "models"); }
    label.append(name, input);
    input.value = flow(value(keys, path));
    input.addEventListener("input", function () {
      put(path, read(path, input.value));
    });
    return label;
  }

  function fields(into, of, path) {
    Object.entries(of.properties).forEach(function (pair) {
      const inner = described(pair[1]);
      const place = path + pair[0];
      const whole = place === "traffic" ? described(inner.items) : inner;
      if (!whole.properties) {
        if (place in KEYS) { return; }
        const told = document.createElement("p");
        told.textContent = inner.description || "";
        into.append(field(place, pair[0], inner), told);
        return;
      }
      const group = document.createElement("details");
      const head = document.createElement("summary");
      head.textContent = pair[0] + ": " + (inner.description || "");
      group.append(head);
      group.addEventListener("toggle", function () { fields(group, whole, place === "traffic" ? "traffic[0]." : place + "."); }, { once: true });
      into.append(group);
    });
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
    const of = answer ? { capplan: answer.capplan, prices: priced(answer.result) } : {};
    history.replaceState(null, "", "#" + new URLSearchParams(Object.assign(of, { scenario: encoded($("yaml").value) })));
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
    times: function (given) { return given.toLocaleString("en-US", { maximumFractionDigits: 2 }) + " times"; },
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
    $("answer").classList.toggle("partial", answer.partial === true);
    if (answer.partial) { $("answer").hidden = false; showPlans(); draw(); return; }
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
    sideBySide();
    draw();
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
      button.textContent = plan.hardware + (order !== answer.result.recommended ? "" : answer.partial ? ", cheapest so far" : ", recommended");
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

  function sideBySide() {
    const plans = answer.result.plans;
    $("beside").hidden = plans.length < 2 && !kept;
    if ($("beside").hidden) { return; }
    const best = answer.result.recommended;
    const left = kept ? { of: kept.of, at: kept.at, name: "kept: " + kept.name } : { of: answer, at: best, name: "recommended" };
    const sides = [left, { of: answer, at: kept || chosen !== best ? chosen : best === 0 ? 1 : 0, name: kept || chosen !== best ? "chosen" : "another" }];
    const body = heads($("beside").querySelector("table"), [[""]].concat(sides.map(function (side) {
      return [side.name + ": " + side.of.result.plans[side.at].hardware, "number"];
    })));
    COMPARED.forEach(function (quantity) {
      const row = document.createElement("tr");
      cell(row, quantity[0]);
      sides.forEach(function (side) { cell(row, number(side.of, "plans[" + side.at + "]." + quantity[1], quantity[2])).className = "number"; });
      body.append(row);
    });
    $("forget").hidden = !kept;
  }

  function keep() {
    kept = { of: { command: "kept", result: answer.result }, at: chosen, name: answer.result.scenario };
    window.capplan.kept = kept.of;
    sideBySide();
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

  const AXES = [["load", "request_rate", "count", " req/s"], ["ttft", "ttft_limit_s", "time", ""], ["confidence", "confidence", "share", ""], ["price", "gpu_price_ratio", "times", ""]];
  let surface = null;
  let kept = null;

  function whatIf() {
    const points = surface.result.points;
    AXES.forEach(function (axis) {
      const panel = $(axis[0]);
      const input = panel.querySelector("input");
      const all = Array.from(new Set(points.map(function (point) { return point[axis[1]]; }))).sort(function (a, b) { return a - b; });
      const now = panel.values ? panel.values[Number(input.value)] : today(axis[0]);
      panel.values = all;
      panel.hidden = all.length < 2;
      input.min = 0;
      input.max = all.length - 1;
      input.value = all.reduce(function (best, one, order) { return Math.abs(one - now) < Math.abs(all[best] - now) ? order : best; }, 0);
      input.oninput = tell;
    });
    $("if").hidden = !points.length;
    if (points.length) { $("of-price").textContent = answer.result.plans[answer.result.recommended].hardware; tell(); }
  }

  function today(axis) {
    const points = surface.result.points;
    return axis === "load" ? points.find(function (point) { return point.traffic_ratio === 1; }).request_rate
      : axis === "confidence" ? value(answer.result, "plan_file.inputs.confidence") : axis === "price" ? 1 : points[0].ttft_limit_s;
  }

  function tell() {
    const wanted = AXES.map(function (axis) { const panel = $(axis[0]); return panel.values[Number(panel.querySelector("input").value)]; });
    const order = surface.result.points.findIndex(function (point) { return AXES.every(function (axis, which) { return point[axis[1]] === wanted[which]; }); });
    const point = surface.result.points[order];
    AXES.forEach(function (axis, which) {
      const panel = $(axis[0]);
      const any = surface.result.points.findIndex(function (one) { return one[axis[1]] === wanted[which]; });
      const shown = number(surface, "points[" + any + "]." + axis[1], axis[2]);
      panel.querySelector("output").replaceChildren(shown, axis[3]);
      panel.querySelector("input").setAttribute("aria-valuetext", shown.textContent + axis[3]);
    });
    const place = "points[" + order + "].";
    $("if").replaceChildren(...!point ? ["not computed yet"] : point.gpus === null ? ["no fleet meets the targets within the limits"]
      : [number(surface, place + "gpus", "count"), " x " + point.hardware + ", ", number(surface, place + "usd_per_month", "usd"), " per month"]);
  }

  async function computeSurface(mine) {
    if (!answer.result.plans.length) { return; }
    surface = { command: "what-if", result: { points: [], target: null } };
    AXES.forEach(function (axis) { $(axis[0]).values = null; $(axis[0]).hidden = true; });
    $("if").hidden = true;
    $("computing").textContent = "computing";
    try {
      const response = await ask("v1/what-if", planned(), "text/event-stream", mine.signal);
      const text = await events(response, function (kind, step) {
        if (kind === "progress") { $("computing").textContent = "computing " + step.what + ": " + step.done + " of " + step.total; return; }
        surface.result.points = surface.result.points.concat(step.points);
        window.capplan["what-if"] = surface;
        whatIf();
      });
      surface = JSON.parse(text);
      window.capplan["what-if"] = surface;
      whatIf();
      $("computing").textContent = "";
    } catch (error) {
      if (error.name !== "AbortError") { $("computing").textContent = error.message; }
    }
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
      const found = [];
      raw = await events(response, function (kind, step) {
        if (kind === "progress") { $("progress").textContent = step.what + ": " + step.done + " of " + step.total; return; }
        found.push(...step.plans);
        found.sort(function (a, b) { return (a.usd_per_month === null) - (b.usd_per_month === null) || a.usd_per_month - b.usd_per_month; });
        answer = { command: "fleet", partial: true, result: { plans: found, recommended: 0 } };
        chosen = 0;
        window.capplan.fleet = answer;
        show();
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
      chosen = answer.result.recommended || 0;
      window.capplan.fleet = answer;
      $("decision").textContent = answer.result.plans.length ? answer.result.why || "" : "No plan meets the targets.";
      listed("rejected", answer.result.rejected.map(function (row, order) { return [row.hardware + ": " + row.reason + " (", number(answer, "rejected[" + order + "].count", "count"), ")"]; }));
      listed("assumptions", answer.assumptions.map(function (row) { return row.assumption + " (" + row.replace + ")"; }));
      listed("warnings", answer.warnings);
      $("warned").hidden = !answer.warnings.length;
      show();
      said();
      remember();
      $("progress").textContent = "done";
      await Promise.all([computeSurface(mine), review(mine), launch(mine)]);
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
    const reviewed = await (await ask("v1/report", planned(), "application/json", mine.signal)).json();
    window.capplan.report = reviewed;
    $("decision").textContent = reviewed.result.decision;
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
    const found = await Promise.all(["openapi.json", "v1/scenarios", "v1/models"].map(function (path) { return ask(path).then(function (r) { return r.json(); }); }));
    const options = function (names) { return names.map(function (name) { return new Option(name, name); }); };
    $("target").replaceChildren(...options(found[0].paths["/v1/export"].post.requestBody.content["application/json"].schema.properties.target.enum));
    $("start").replaceChildren(...options(found[1].result.rows.map(function (row) { return row.scenario; })));
    $("start").value = FIRST;
    const models = document.createElement("datalist");
    models.id = "models";
    models.append(...options(found[2].result.rows.map(function (row) { return row.model; })));
    document.body.append(models);
  }

  async function start() {
    const held = recalled();
    try {
      if (!schema) {
        schema = await (await ask("page/scenario.json")).json();
        Object.entries(KEYS).forEach(function (key) { $("keys").append(field(key[0], key[1], described(declared(key[0])))); });
        fields($("more"), schema, "");
      }
      load(held ? held.yaml : await (await ask("v1/scenarios/" + FIRST)).text());
      $("find").disabled = false;
      await Promise.all([offer(), held ? submit() : null]);
    } catch (error) { problem(error); }
  }

  $("question").addEventListener("submit", submit);
  $("yaml").addEventListener("input", parse);
  $("stop").addEventListener("click", function () { if (asking) { asking.abort(); $("progress").textContent = "stopped"; } });
  $("link").addEventListener("click", function () { remember(); copied(location.href); });
  $("copy").addEventListener("click", function () { copied($("launch").textContent); });
  $("target").addEventListener("change", function () { launch().catch(problem); });
  $("keep").addEventListener("click", keep);
  $("forget").addEventListener("click", function () { kept = null; sideBySide(); });
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
  window.capplan = {};
  start();
}());

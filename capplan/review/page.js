"use strict";
// Everything that a reader needs is in the page without this; it adds values under the pointer and the slider.
(function () {
  const tip = document.getElementById("tip");

  function hide() {
    tip.textContent = "";
  }

  function show(mark) {
    const box = mark.getBoundingClientRect();
    tip.textContent = mark.dataset.said;
    const left = Math.min(box.right + 8, window.innerWidth - tip.offsetWidth - 4);
    tip.style.left = Math.max(4, left) + "px";
    tip.style.top = Math.max(4, box.top - tip.offsetHeight - 4) + "px";
  }

  function light(chart, mark) {
    chart.querySelectorAll("g.on").forEach(function (other) { other.classList.remove("on"); });
    mark.classList.add("on");
  }

  document.querySelectorAll("svg.chart").forEach(function (chart) {
    const marks = Array.from(chart.querySelectorAll("g.mark"));
    let at = -1;
    marks.forEach(function (mark) {
      const title = mark.querySelector("title");
      mark.dataset.said = title.textContent;
      title.remove();
      mark.addEventListener("pointerenter", function () { show(mark); });
      mark.addEventListener("pointerleave", hide);
    });
    if (marks.length === 0) { return; }
    chart.setAttribute("tabindex", "0");
    chart.addEventListener("keydown", function (event) {
      const steps = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 };
      if (event.key === "Escape") { hide(); }
      if (!(event.key in steps)) { return; }
      event.preventDefault();
      at = at === -1 ? 0 : (at + steps[event.key] + marks.length) % marks.length;
      light(chart, marks[at]);
      show(marks[at]);
    });
    chart.addEventListener("blur", hide);
  });

  const panel = document.querySelector("div.what-if");
  if (panel === null) { return; }
  const plans = JSON.parse(document.getElementById("what-if-points").textContent);
  const which = panel.querySelector("select");
  const slider = panel.querySelector("input");
  const said = panel.querySelector("output");
  const chart = panel.parentElement.querySelector("svg.chart");
  const firsts = plans.map(function (plan, at) {
    return plans.slice(0, at).reduce(function (sum, before) { return sum + (before.charted ? before.points.length : 0); }, 0);
  });

  function update() {
    const plan = plans[which.selectedIndex];
    const point = plan.points[Number(slider.value)];
    said.textContent = point.said;
    slider.setAttribute("aria-valuetext", point.said);
    if (chart === null || !plan.charted) { return; }
    light(chart, chart.querySelectorAll("g.mark")[firsts[which.selectedIndex] + Number(slider.value)]);
  }

  // Plans have points of their own: another plan is shown at the traffic nearest to the one that was chosen.
  let ratio = 1;
  function change() {
    const points = plans[which.selectedIndex].points;
    const away = points.map(function (point) { return Math.abs(Math.log(point.ratio / ratio)); });
    slider.max = String(points.length - 1);
    slider.value = String(away.indexOf(Math.min.apply(null, away)));
    update();
  }
  function slide() {
    ratio = plans[which.selectedIndex].points[Number(slider.value)].ratio;
    update();
  }
  which.addEventListener("change", change);
  slider.addEventListener("input", slide);
  update();
}());

"use strict";
// The theme: what the system prefers, until the reader chooses.
const root = document.documentElement, button = document.querySelector("button.theme");
const system = matchMedia("(prefers-color-scheme: dark)");
const isDark = () => (root.dataset.theme || (system.matches ? "dark" : "light")) === "dark";
const name = () => { button.textContent = isDark() ? "Light theme" : "Dark theme"; };
try { const kept = localStorage.getItem("ucan-theme"); if (kept === "dark" || kept === "light") root.dataset.theme = kept; } catch { /* not kept */ }
button.hidden = false;
button.addEventListener("click", () => {
  root.dataset.theme = isDark() ? "light" : "dark";
  try { localStorage.setItem("ucan-theme", root.dataset.theme); } catch { /* not kept */ }
  name();
});
system.addEventListener("change", name);
name();

// Reading the curves: the value of every run at the radius under the pointer, or under the arrow keys.
const SVG = "http://www.w3.org/2000/svg";
for (const plot of document.querySelectorAll(".plot")) {
  const { unit, digits, lines } = JSON.parse(plot.querySelector("script").textContent);
  const tip = plot.querySelector(".tip");
  const shown = () => [...plot.querySelectorAll("svg")].find((svg) => svg.getBoundingClientRect().width > 0);
  const box = (svg) => Object.fromEntries(["left", "right", "top", "bottom", "most"].map((key) => [key, Number(svg.dataset[key])]));
  let at = null;

  const read = (line, size) => {  // on (at[i - 1], at[i]] the curve has value i
    let low = 0, high = line.at.length;
    while (low < high) { const middle = (low + high) >> 1; if (line.at[middle] >= size) high = middle; else low = middle + 1; }
    return { percent: line.percent[low], low: line.low[low], high: line.high[low] };
  };
  const hide = () => {
    tip.hidden = true;
    plot.querySelectorAll(".cursor").forEach((old) => old.remove());
  };
  const show = (size) => {
    const svg = shown(), frame = box(svg);
    at = Number(Math.min(frame.most, Math.max(0, size)).toFixed(digits));
    hide();
    const x = frame.left + (frame.right - frame.left) * at / frame.most;
    const layer = document.createElementNS(SVG, "g");
    layer.setAttribute("class", "cursor");
    const rule = document.createElementNS(SVG, "path");
    rule.setAttribute("d", `M${x} ${frame.top}V${frame.bottom}`);
    rule.setAttribute("stroke", "var(--soft)");
    layer.append(rule);
    tip.replaceChildren();
    const title = document.createElement("b");
    title.textContent = `${unit} ${at.toFixed(digits)} or more`;
    const table = document.createElement("table");
    const spoken = [];
    for (const line of lines) {
      const value = read(line, at);
      const dot = document.createElementNS(SVG, "circle");
      dot.setAttribute("cx", x);
      dot.setAttribute("cy", frame.bottom - (frame.bottom - frame.top) * value.percent / 100);
      dot.setAttribute("r", 4);
      dot.setAttribute("fill", `var(--run-${line.colour})`);
      layer.append(dot);
      const row = table.insertRow(), first = row.insertCell(), swatch = document.createElement("span");
      swatch.className = `swatch ${line.scope}`;
      swatch.style.setProperty("--c", `var(--run-${line.colour})`);
      const whose = line.scope === "pipeline" ? line.label : `${line.label} (${line.scope})`;
      first.append(swatch, whose);
      row.insertCell().textContent = `${value.percent.toFixed(1)} %`;
      row.insertCell().textContent = `[${value.low.toFixed(1)}, ${value.high.toFixed(1)}]`;
      spoken.push(`${whose} ${value.percent.toFixed(1)} percent`);
    }
    tip.append(title, table);
    svg.append(layer);
    tip.hidden = false;
    const inside = plot.getBoundingClientRect(), drawn = svg.getBoundingClientRect();
    const place = drawn.left - inside.left + x * drawn.width / svg.viewBox.baseVal.width;
    const left = place > inside.width / 2 ? place - tip.offsetWidth - 14 : place + 14;
    tip.style.left = `${Math.max(0, Math.min(left, inside.width - tip.offsetWidth))}px`;
    tip.style.top = `${10 * drawn.width / svg.viewBox.baseVal.width}px`;
    plot.setAttribute("aria-valuenow", at);
    plot.setAttribute("aria-valuetext", `${unit} ${at.toFixed(digits)}: ${spoken.join(", ")}`);
  };
  const sizeAt = (event) => {
    const svg = shown(), drawn = svg.getBoundingClientRect(), frame = box(svg);
    const x = (event.clientX - drawn.left) * svg.viewBox.baseVal.width / drawn.width;
    return frame.most * (x - frame.left) / (frame.right - frame.left);
  };
  plot.addEventListener("pointermove", (event) => show(sizeAt(event)));
  plot.addEventListener("pointerdown", (event) => show(sizeAt(event)));
  plot.addEventListener("pointerleave", hide);
  plot.addEventListener("blur", hide);
  plot.addEventListener("keydown", (event) => {
    const most = box(shown()).most, step = most / (event.shiftKey ? 10 : 50);
    const to = { ArrowRight: (at ?? 0) + step, ArrowLeft: (at ?? 0) - step, Home: 0, End: most }[event.key];
    if (event.key === "Escape") hide();
    if (to === undefined) return;
    event.preventDefault();
    show(to);
  });
}

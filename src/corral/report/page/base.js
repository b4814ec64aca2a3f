// Used by every other script: the data, the state of the page, elements, colours, numbers.

const data = JSON.parse(document.getElementById("data").textContent);
data.groups.forEach((group, id) => {
  group.id = id;
  group.place = data.groups.slice(0, id).filter((other) => other.env === group.env).length;
});
const byId = (id) => document.getElementById(id);

const state = {
  env: data.groups[0].env,
  hidden: new Set(),        // ids of groups
  seeds: false,             // draw single seeds
  hiddenSeeds: new Set(),   // "group/seed"
  zoom: null,               // [first, last] iteration, of all charts
  cursor: null,             // iteration under the pointer, in all charts
  trueCost: false,          // draw C also where C⁺ is constrained
  metrics: [null, null],    // columns of the charts of the reader's choice
  pathSeed: null,
  episode: 0,
  allSettings: false,
  sort: { key: null, down: true },
};

const inEnv = () => data.groups.filter((group) => group.env === state.env);
const shown = () => inEnv().filter((group) => !state.hidden.has(group.id));
const seedShown = (group, run) => state.seeds && !state.hiddenSeeds.has(`${group.id}/${run.seed}`);

function make(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") element.addEventListener(name, value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== null && value !== undefined && value !== false) element.setAttribute(name, value);
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  return element;
}
const el = (tag, attributes = {}, ...children) => make(document.createElement(tag), attributes, children);
const svg = (tag, attributes = {}, ...children) =>
  make(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);

// The seven colours of the style sheet; a second round is dotted.
function look(group) {
  return { stroke: `var(--colour-${group.place % 7})`, "stroke-dasharray": group.place < 7 ? null : "2 3" };
}
const colour = (group) => look(group).stroke;
const swatch = (group) => svg("svg", { width: 16, height: 10, "aria-hidden": "true" },
  svg("line", { x1: 0, x2: 16, y1: 5, y2: 5, "stroke-width": 3, ...look(group) }));

const PLAIN = new Intl.NumberFormat("en", { maximumSignificantDigits: 4 });
function format(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  const size = Math.abs(value);
  const text = size !== 0 && (size < 1e-3 || size >= 1e7) ? value.toExponential(2) : PLAIN.format(value);
  return text.replace("-", "−");
}
const count = (number, what) => `${number.toLocaleString("en")} ${what}${number === 1 ? "" : "s"}`;

// Round numbers between low and high, about `wanted` of them.
function ticks(low, high, wanted, whole = false) {
  const rough = (high - low) / wanted;
  const unit = 10 ** Math.floor(Math.log10(rough));
  let step = unit * [1, 2, 5, 10].find((factor) => factor * unit >= rough * 0.999);
  if (whole) step = Math.max(1, Math.round(step));
  const found = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + 1e-9 * step; k++)
    found.push(Number((k * step).toPrecision(12)));
  return found;
}

const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;
function deviation(values) {
  const centre = mean(values);
  return Math.sqrt(values.reduce((sum, value) => sum + (value - centre) ** 2, 0) / (values.length - 1));
}

function pressable(button, pressed) {
  button.setAttribute("aria-pressed", pressed ? "true" : "false");
  return button;
}
// Buttons of which one is pressed; a click calls `choose(value)`.
function choice(options, chosen, choose) {
  const button = ([value, text]) => el("button", { type: "button", click: () => choose(value) }, text);
  return options.map((option) => pressable(button(option), option[0] === chosen));
}

// Number formats, elements, colours, search.

const kMissing = '–';

function format_number(value, digits = 4) {
  if (value === null || !Number.isFinite(value)) return kMissing;
  return Number(value.toPrecision(digits)).toLocaleString('en-US', {maximumSignificantDigits: digits});
}

function format_scaled(value, base, units, digits = 3) {
  if (value === null || !Number.isFinite(value)) return [kMissing, ''];
  let unit = 0;
  while (Math.abs(value) >= base && unit + 1 < units.length) {
    value /= base;
    ++unit;
  }
  const text = Math.abs(value) >= 10 ** digits ? String(Math.round(value)) : String(Number(value.toPrecision(digits)));
  return [text, units[unit]];
}

const format_count = (value) => format_scaled(value, 1000, ['', 'K', 'M', 'G', 'T']).join('');
const kByteUnits = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
const format_bytes = (bytes) => format_scaled(bytes, 1024, kByteUnits).join(' ');
const format_ns = (ns, digits = 3) => ns === 0 ? '0' : format_scaled(ns, 1000, ['ns', 'µs', 'ms', 's'], digits).join(' ');
const format_percent = (fraction) => Number.isFinite(fraction) ? `${(100 * fraction).toFixed(1)}%` : kMissing;

// An element with attributes and children; texts become text nodes, so they are never parsed as markup.
function element(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith('on')) node.addEventListener(name.slice(2), value);
    else if (name === 'style') node.style.cssText = value;
    else node.setAttribute(name, value);
  }
  node.append(...children.filter((child) => child !== null));
  return node;
}

const swatch = (color, kind = '') => element('i', {class: `swatch ${kind}`, style: `background:${color}`});

function legend(entries) {
  return element('div', {class: 'legend'}, ...entries.map(([name, color, kind]) => element('span', {}, swatch(color, kind), name)));
}

// cells: [content, class]; content is text or a node.
function table(head, rows) {
  const cells = (tag, row) => row.map(([content, name]) => element(tag, {class: name ?? ''}, content));
  return element('table', {}, element('thead', {}, element('tr', {}, ...cells('th', head))),
    element('tbody', {}, ...rows.map((row) => element('tr', {class: row.kind ?? ''}, ...cells('td', row.cells)))));
}

// Value of a CSS variable in the current colour scheme; scripts that draw read it again when the scheme changes.
const color_of = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
const kDarkScheme = matchMedia('(prefers-color-scheme: dark)');

// First index in [begin, end) of an ascending array whose value is not below `value`.
function lower_bound(values, value, begin = 0, end = values.length) {
  while (begin < end) {
    const middle = (begin + end) >> 1;
    if (values[middle] < value) begin = middle + 1;
    else end = middle;
  }
  return begin;
}

const sum_of = (items, value) => items.reduce((total, item) => total + value(item), 0);

const clamp = (value, low, high) => Math.min(Math.max(value, low), high);

function quantile(values, fraction) {
  const sorted = values.filter(Number.isFinite).sort((a, b) => a - b);
  return sorted.length === 0 ? NaN : sorted[Math.round(fraction * (sorted.length - 1))];
}

// Round values (1, 2 or 5 times a power of ten) in [low, high], about `count` of them.
function nice_ticks(low, high, count) {
  const raw = (high - low) / Math.max(count, 1);
  if (!(raw > 0)) return [low];
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = power * [1, 2, 5, 10].find((factor) => factor * power >= raw * 0.999);
  const ticks = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; ++i) ticks.push(i * step + 0);  // not -0
  return ticks;
}

// 1, 2 and 5 times each power of ten in [low, high]; plain round values if these are fewer than three.
function log_ticks(low, high) {
  const ticks = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); ++power) {
    for (const factor of [1, 2, 5]) {
      const tick = factor * 10 ** power;
      if (tick >= low * 0.999 && tick <= high * 1.001) ticks.push(tick);
    }
  }
  return ticks.length >= 3 ? ticks : nice_ticks(low, high, 5);
}

// Sizes the canvas for the screen's resolution; the context then draws in CSS pixels.
function prepare_canvas(canvas, width, height) {
  const ratio = window.devicePixelRatio || 1;
  const [pixel_width, pixel_height] = [Math.round(width * ratio), Math.round(height * ratio)];
  if (canvas.width !== pixel_width || canvas.height !== pixel_height) {
    canvas.width = pixel_width;
    canvas.height = pixel_height;
  }
  const context = canvas.getContext('2d');
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  context.font = '11px system-ui, -apple-system, "Segoe UI", Roboto, Arial, sans-serif';
  return context;
}

// One tooltip for all charts, next to the pointer.
const tooltip = {
  node: element('div', {class: 'tooltip', hidden: '', role: 'status'}),
  show(x, y, title, rows) {
    const list = element('dl');
    for (const [name, value, color] of rows) {
      list.append(element('dt', {}, color ? swatch(color) : null, name), element('dd', {}, value));
    }
    this.node.replaceChildren(element('strong', {}, title), list);
    this.node.hidden = false;
    const box = this.node.getBoundingClientRect();
    const left = x + 16 + box.width > innerWidth ? x - 16 - box.width : x + 16;
    this.node.style.left = `${Math.max(left, 4)}px`;
    this.node.style.top = `${clamp(y + 16, 4, Math.max(innerHeight - box.height - 4, 4))}px`;
  },
  hide() {
    this.node.hidden = true;
  },
};

// Calls draw at most once per frame.
function once_a_frame(draw) {
  let asked = false;
  return () => {
    if (asked) return;
    asked = true;
    requestAnimationFrame(() => {
      asked = false;
      draw();
    });
  };
}

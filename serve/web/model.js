// What all views share: questions to the server, numbers, names and colours as a person sees them.

// offline answers instead of a server, in a page that was saved; else null.
export const offline = { ask: null };

// A channel asks one question at a time: a new one takes back the one before.
export class Channel {
  constructor() { this.control = null; }

  stop() { this.control?.abort(); }

  // ask returns the answer, or null if it was taken back. It throws an Error that a person can read; refused says that the
  // question was wrong.
  async ask(what, params) {
    this.stop();
    if (offline.ask) return offline.ask(what, params);
    const control = this.control = new AbortController();
    const done = busy.start();
    try {
      const query = new URLSearchParams(Object.entries(params).filter(([, v]) => v !== '' && v !== undefined && v !== null));
      const r = await fetch(`api/${what}?${query}`, { signal: control.signal });
      if (!r.ok) throw Object.assign(new Error((await r.text()).trim()), { refused: r.status === 400 });
      return await r.json();
    } catch (e) {
      if (control.signal.aborted) return null;
      if (e instanceof TypeError) throw new Error('The server has ended; see its terminal.');
      throw e;
    } finally {
      done();
      if (this.control === control) this.control = null;
    }
  }
}

// busy shows, when an answer takes long, that it is being worked on and how far that is.
export const busy = {
  n: 0, timer: 0,
  start() {
    if (!this.n++) this.timer = setTimeout(() => this.show(), 250);
    return () => {
      if (--this.n) return;
      clearTimeout(this.timer);
      const bar = document.getElementById('busy');
      bar.classList.remove('on');
      bar.removeAttribute('aria-valuenow');
    };
  },
  async show() {
    const bar = document.getElementById('busy'), fill = bar.firstElementChild;
    bar.classList.add('on');
    while (this.n) {
      const s = await fetch('api/status').then(r => r.json()).catch(() => ({}));
      bar.classList.toggle('known', !!s.work);
      fill.style.width = s.work ? `${100 * s.work}%` : '';
      if (s.work) bar.setAttribute('aria-valuenow', Math.round(100 * s.work));
      await new Promise(r => setTimeout(r, 200));
    }
  },
};

// el makes an element; text is never markup.
export function el(tag, props = {}, ...children) {
  const e = document.createElement(tag);
  for (const [k, v] of Object.entries(props)) {
    if (k === 'class') e.className = v;
    else if (k.startsWith('on')) e.addEventListener(k.slice(2), v);
    else if (v === true && !k.startsWith('aria-')) e.setAttribute(k, '');
    else if (k.startsWith('aria-') || v !== false && v !== undefined) e.setAttribute(k, v);
  }
  e.append(...children);
  return e;
}

export const $ = id => document.getElementById(id);

export const comma = n => Math.round(n).toLocaleString('en-US');

// bytes is an amount of memory.
export function bytes(n) {
  let i = 0;
  for (; n >= 1024 && i < 4; i++) n /= 1024;
  return `${i ? n.toFixed(1) : comma(n)} ${['B', 'KiB', 'MiB', 'GiB', 'TiB'][i]}`;
}

// percent is the share of n in all: what is neither nothing nor all never looks so.
export function percent(n, all) {
  if (!all) return '0.0 %';
  const p = 100 * n / all, s = (p % 1 === 0.25 ? p - 0.05 : p).toFixed(1); // halves to even, as in Go
  if (s === '0.0' && n > 0) return '<0.1 %';
  if (s === '100.0' && n < all) return '>99.9 %';
  return s + ' %';
}

// points is the difference of two shares.
export function points(d) {
  const s = (100 * Math.abs(d)).toFixed(Math.abs(d) < 0.001 ? 2 : 1);
  return +s === 0 ? '±0' : (d > 0 ? '+' : '−') + s;
}

const units = [[1e9, 's'], [1e6, 'ms'], [1e3, 'µs'], [1, 'ns']];

export function seconds(ns, digits = 3) {
  const [f, unit] = units.find(([f]) => ns >= f) || units[3];
  return `${+(ns / f).toPrecision(digits)} ${unit}`;
}

// singular is as in package profile.
const singular = u => u.length < 4 || /[:/]/.test(u) ? u : u.replace(/(ss|sh|ch)es$|([^s])s$/, '$1$2');

// weight writes a number of what is counted.
export function weight(n, unit) {
  if (unit === 'ns') return seconds(n, 4);
  return `${comma(n)} ${n === 1 ? singular(unit) : unit}`;
}

export const base = path => path.slice(path.lastIndexOf('/') + 1) || '[unknown]';

// kinds of labels, as in tree.go.
export const Kind = { func: 0, kernel: 1, none: 2, group: 3, stop: 4 };
export const Inlined = 1 << 14;

const light = {
  hues: ['#a1c7ff', '#d3f49a', '#d0adf0', '#8de4dc', '#fff299', '#febbd6', '#bbebfe', '#8edda6'],
  kernel: '#f9a45c', none: '#cfc8bf', group: '#dcdde1', stop: '#e8b9b1', rest: '#ececef',
  text: '#16181d', paper: '#ffffff', hit: '#6d28d9', hitText: '#ffffff', line: '#16181d', dim: '#6b7079', grid: '#e4e5e9',
  accent: '#3457d5', soft: '#dfe5fb', area: '#b9c6f3', same: '#e9ebf0', more: [214, 60, 50], less: [40, 110, 210],
};
const dark = {
  hues: ['#335381', '#4f6620', '#5b3e73', '#1c6e68', '#736a22', '#7a435c', '#2f6478', '#1d653a'],
  kernel: '#95480b', none: '#5a544b', group: '#464a52', stop: '#6d403a', rest: '#2a2d34',
  text: '#f2f3f5', paper: '#15171b', hit: '#ffd54f', hitText: '#16181d', line: '#ffffff', dim: '#9aa0aa', grid: '#2b2e35',
  accent: '#8fa8ff', soft: '#28345f', area: '#3f528f', same: '#353940', more: [226, 84, 72], less: [70, 140, 240],
};
const prefersDark = matchMedia('(prefers-color-scheme: dark)');
export const palette = () => prefersDark.matches ? dark : light;
export const onScheme = f => prefersDark.addEventListener('change', f);

// colour is that of a label.
export function colour(c, label, modules) {
  switch (label.kind) {
    case Kind.kernel: return c.kernel;
    case Kind.none: return c.none;
    case Kind.group: return c.group;
    case Kind.stop: return c.stop;
  }
  return shades(c, modules[label.module].hue)[shade(label)];
}

// shades are three of a hue, so that neighbours differ.
function shades(c, hue) {
  const i = hue % c.hues.length;
  return c.shades?.[i] || ((c.shades ||= [])[i] = [0, 0.11, 0.22].map(k => {
    const v = parseInt(c.hues[i].slice(1), 16), to = c.text === dark.text ? 0 : 255;
    return `rgb(${[16, 8, 0].map(s => Math.round((v >> s & 255) * (1 - k) + to * k)).join()})`;
  }));
}

function shade(label) {
  if (label.shade === undefined) {
    let h = 0;
    for (let i = 0; i < label.text.length; i++) h = h * 31 + label.text.charCodeAt(i) | 0;
    label.shade = (h >>> 0) % 3;
  }
  return label.shade;
}

// change is the colour of a share a that was b, of n and m samples in all: red for more, blue for less, strong where the
// difference is large and three times what chance makes.
export function change(c, a, b, n, m) {
  if (!a && !b) return c.same;
  const d = a - b, sure = Math.min(1, Math.abs(d) / Math.sqrt(a / (n || 1) + b / (m || 1)) / 3);
  const k = 0.72 * sure * Math.abs(d) / Math.max(a, b), to = d > 0 ? c.more : c.less;
  const from = parseInt(c.same.slice(1), 16);
  return `rgb(${to.map((v, i) => Math.round((from >> 16 - 8 * i & 255) * (1 - k) + v * k)).join()})`;
}

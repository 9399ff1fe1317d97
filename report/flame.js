(function () {
'use strict';

// The first half has no document: what Go wrote becomes a tree, and questions about it are answered.

// decode returns the tree: for each frame its name, depth, caller, callees, weights, and where it starts.
// Of two profiles, there are the weights of each, and how much each frame has changed.
function decode(data) {
  const size = data.diff ? 5 : 3, n = data.nodes.length / size;
  const m = {
    data, n,
    frame: new Int32Array(n), depth: new Int32Array(n), parent: new Int32Array(n), kids: [],
    x: new Float64Array(n), level: new Int8Array(n), weights: [],
  };
  for (let w = 0; w < (data.diff ? 2 : 1); w++) m.weights.push({ self: new Float64Array(n), total: new Float64Array(n) });
  const path = [];
  for (let i = 0; i < n; i++) {
    const d = data.nodes[size * i + 1];
    m.frame[i] = data.nodes[size * i];
    m.depth[i] = d;
    m.weights.forEach((w, k) => { w.self[i] = w.total[i] = data.nodes[size * i + 2 + k]; });
    if (data.diff) m.level[i] = data.nodes[size * i + 4];
    m.kids.push([]);
    m.parent[i] = d ? path[d - 1] : -1;
    if (d) m.kids[path[d - 1]].push(i);
    path[d] = i;
  }
  for (let i = n - 1; i > 0; i--) for (const w of m.weights) w.total[m.parent[i]] += w.total[i];
  use(m, false, false);
  return m;
}

// use makes frames as wide as they are after, or before.
function use(m, before, heavy) {
  const w = m.weights[before && m.weights[1] ? 1 : 0];
  m.self = w.self;
  m.total = w.total;
  order(m, heavy);
}

// order sorts callees by name, or the heaviest first, and puts them side by side.
function order(m, heavy) {
  for (let i = 0; i < m.n; i++) {
    m.kids[i].sort(heavy ? (a, b) => m.total[b] - m.total[a] || a - b : (a, b) => a - b);
    let x = m.x[i];
    for (const k of m.kids[i]) {
      m.x[k] = x;
      x += m.total[k];
    }
  }
}

const nameOf = (m, i) => m.data.frames[m.frame[i]][0];
const howsOf = (m, i) => m.data.frames[m.frame[i]][1];
const inlinedOf = (m, i) => m.data.frames[m.frame[i]][2] || 0;

// everywhere adds up the frames of one name, each stack once.
function everywhere(m, name) {
  return outermost(m, 0, i => nameOf(m, i) === name);
}

// outermost adds up the frames from root on for which is holds, and not those above them.
function outermost(m, root, is) {
  let sum = 0;
  const todo = [root];
  while (todo.length) {
    const i = todo.pop();
    if (is(i)) sum += m.total[i];
    else for (const k of m.kids[i]) todo.push(k);
  }
  return sum;
}

// find returns which names a search matches: a regular expression for functions or, after an @, for
// modules. Capitals count only if there are any. It throws SyntaxError.
function find(m, search) {
  const module = search[0] === '@';
  const source = module ? search.slice(1) : search;
  const re = new RegExp(source, /[A-Z]/.test(source.replace(/\\./g, '')) ? '' : 'i');
  return m.data.names.map(([text, mod]) => module ? mod >= 0 && re.test(base(m.data.modules[mod])) : re.test(text));
}

const base = path => path.slice(path.lastIndexOf('/') + 1) || '[unknown]';

// visible calls f with each frame that is at least as wide as least when lo to hi fill the width, from
// the root up: f(frame, left, right).
function visible(m, lo, hi, width, least, f) {
  const scale = width / (hi - lo || 1);
  const todo = [0];
  while (todo.length) {
    const i = todo.pop();
    const a = Math.max(0, (m.x[i] - lo) * scale), b = Math.min(width, (m.x[i] + m.total[i] - lo) * scale);
    if (b - a < least) continue;
    f(i, a, b);
    for (let k = m.kids[i].length - 1; k >= 0; k--) todo.push(m.kids[i][k]);
  }
}

// frameAt returns the frame of that depth over a point, or -1.
function frameAt(m, depth, x) {
  let i = 0;
  for (let d = 0; d < depth && i !== undefined; d++) i = m.kids[i].find(k => x >= m.x[k] && x < m.x[k] + m.total[k]);
  return i === undefined || depth < 0 || x < m.x[i] || x >= m.x[i] + m.total[i] ? -1 : i;
}

// neighbour returns the next frame of the same depth to the left (-1) or the right (1), or i.
function neighbour(m, i, step) {
  const d = m.depth[i];
  let up = i, at = -1;
  while (m.parent[up] >= 0) { // a caller with a callee that reaches that deep
    const kids = m.kids[m.parent[up]];
    for (let k = kids.indexOf(up) + step; kids[k] !== undefined && at < 0; k += step) at = reach(m, kids[k], d, step);
    if (at >= 0) return at;
    up = m.parent[up];
  }
  return i;
}

function reach(m, i, depth, step) {
  const todo = [i];
  while (todo.length) {
    const k = todo.pop();
    if (m.depth[k] === depth) return k;
    const kids = m.kids[k];
    for (let j = 0; j < kids.length; j++) todo.push(kids[step > 0 ? kids.length - 1 - j : j]);
  }
  return -1;
}

// names.js is put here.

// weakest is the bit of the least certain way in which a frame was found.
const weakest = hows => 31 - Math.clz32(hows);

// The state of the view is in the address, after the #, so that a link can be passed on.
function parseHash(hash, m) {
  const q = new URLSearchParams(hash.replace(/^#/, ''));
  const zoom = Number(q.get('zoom'));
  return {
    zoom: Number.isInteger(zoom) && zoom > 0 && zoom < m.n ? zoom : 0,
    search: q.get('search') || '',
    icicle: q.has('icicle') ? q.get('icicle') !== '0' : m.data.icicle,
    heavy: q.get('order') === 'size',
    colour: colours(m).includes(q.get('colour')) ? q.get('colour') : colours(m)[0],
    before: !!m.data.diff && q.get('width') === 'before',
  };
}

// colours are what frames can be coloured by, the usual first.
const colours = m => m.data.diff ? ['change', 'module', 'how'] : ['module', 'how'];

function formatHash(s, m) {
  const q = new URLSearchParams();
  if (s.zoom) q.set('zoom', s.zoom);
  if (s.search) q.set('search', s.search);
  if (s.icicle !== m.data.icicle) q.set('icicle', s.icicle ? 1 : 0);
  if (s.heavy) q.set('order', 'size');
  if (s.colour !== colours(m)[0]) q.set('colour', s.colour);
  if (s.before) q.set('width', 'before');
  const h = q.toString();
  return h && '#' + h;
}

function percent(n, all) {
  if (!(all > 0)) return '0.0 %';
  const p = 100 * n / all, s = (p % 1 === 0.25 ? p - 0.05 : p).toFixed(1); // halves to even, as in Go
  if (s === '0.0' && n > 0) return '<0.1 %';
  if (s === '100.0' && n < all) return '>99.9 %';
  return s + ' %';
}

const comma = n => n.toLocaleString('en-US');
const units = [[1e9, 's'], [1e6, 'ms'], [1e3, 'µs'], [1, 'ns']];

// number is a weight, for people; quantity has the unit, too.
function number(n) {
  if (data.unit !== 'ns') return comma(n);
  const [f, unit] = units.find(([f]) => n >= f) || units[3];
  return `${n / f >= 1000 ? comma(Math.round(n / f)) : +(n / f).toPrecision(4)} ${unit}`;
}
const quantity = n => data.unit === 'ns' ? number(n) : `${comma(n)} ${n === 1 ? singular(data.unit) : data.unit}`;
// singular is as in package profile.
const singular = u => u.length < 4 || /[:/]/.test(u) ? u : u.replace(/(ss|sh|ch)es$|([^s])s$/, '$1$2');

if (typeof module === 'object' && module.exports) {
  module.exports = { decode, order, everywhere, outermost, find, visible, frameAt, neighbour, fit, parseHash, formatHash, percent, weakest, nameOf, use, colours, singular };
}
if (typeof document !== 'object') return;

// The second half draws.

const SVG = 'http://www.w3.org/2000/svg', HTML = 'http://www.w3.org/1999/xhtml';
const PAD = 10, ROW = 18, LEAST = 0.4;

const me = document.currentScript;
const svg = me && me.ownerSVGElement || document.documentElement;
const data = JSON.parse(svg.getElementById('data').textContent);
const m = decode(data);
let all = m.total[0];

// el makes an element: attributes by name, on… as listeners, the rest as children.
function el(ns, tag, attrs, ...children) {
  const e = document.createElementNS(ns, tag);
  for (const [k, v] of Object.entries(attrs || {})) {
    if (k.startsWith('on')) e.addEventListener(k.slice(2), v);
    else e.setAttribute(k, v);
  }
  e.append(...children);
  return e;
}
const h = (tag, attrs, ...children) => el(HTML, tag, attrs, ...children);

let state = parseHash(location.hash, m);
let hits = null; // by name
let lo = 0, hi = all; // what fills the width
let width = 0, top = 0, height = 0, bottom = 0;
let cursor = -1, under = -1; // frames: the keyboard's, and the pointer's
let char = 7.23;

const search = h('input', {
  type: 'search', placeholder: 'Search (regular expression)', 'aria-label': 'Search functions by a regular expression, or modules after an @',
  title: 'A regular expression for functions or, after an @, for modules', spellcheck: 'false', autocomplete: 'off',
  oninput: () => go({ search: search.value }, true),
});
const found = h('output', {});
const reset = h('button', { type: 'button', title: 'Show everything (Esc)', onclick: () => go({ zoom: 0, search: '' }) }, 'Reset');
const flip = h('button', { type: 'button', title: 'Turn upside down (i)', onclick: () => go({ icicle: !state.icicle }) });
const sort = h('button', { type: 'button', title: 'Order callees by name or by size (o)', onclick: () => go({ heavy: !state.heavy }) });
const colour = h('button', { type: 'button', title: 'Colour by module, how frames were found, or how they have changed (c)', onclick: () => go({ colour: nextColour() }) });
const side = h('button', { type: 'button', title: 'Frames as wide as they are after, or were before (w)', onclick: () => go({ before: !state.before }) });
const legend = h('ul', { class: 'legend' });
const bar = h('div', { class: 'bar' },
  h('h1', {}, data.title), ...data.lines.map(s => h('p', {}, s)),
  h('form', { role: 'search', onsubmit: e => e.preventDefault() }, search, found, reset, flip, sort, colour, ...data.diff ? [side] : []), legend);
const head = el(SVG, 'foreignObject', { x: 0 }, bar);
const tip = h('div', { class: 'tip' });
const tipBox = el(SVG, 'foreignObject', { 'pointer-events': 'none', visibility: 'hidden' }, tip);
const live = h('div', { class: 'live', 'aria-live': 'polite' });
bar.append(live);

const paths = new Map(); // by class
const layer = el(SVG, 'g', {}), labels = el(SVG, 'g', {});
const inlined = el(SVG, 'path', { class: 'inlined' });
const same = el(SVG, 'path', { class: 'same' }), edge = el(SVG, 'rect', { class: 'edge', visibility: 'hidden' });
const over = el(SVG, 'rect', { class: 'over', x: 0, width: '100%' });
const graph = el(SVG, 'g', {
  class: 'graph', tabindex: 0, role: 'application', 'aria-roledescription': 'flame graph',
  'aria-label': data.title + '. Arrow keys go from frame to frame, Enter zooms, Escape shows everything.',
}, over, layer, inlined, labels, same, edge);

const y = depth => state.icicle ? top + depth * ROW : bottom - (depth + 1) * ROW;

// draw shows lo to hi.
function draw() {
  const w = width - 2 * PAD, d = new Map(), texts = [], dashes = [];
  const ancestors = new Set();
  for (let i = m.parent[state.zoom]; i >= 0; i = m.parent[i]) ancestors.add(i);
  let deepest = 0;
  visible(m, lo, hi, w, LEAST, i => { deepest = Math.max(deepest, m.depth[i]); });
  bottom = Math.max(top + (deepest + 1) * ROW, floor);
  visible(m, lo, hi, w, LEAST, (i, a, b) => {
    const hit = hits && hits[nameOf(m, i)];
    const cls = hit ? 'hit' : ancestors.has(i) ? 'up' : classOf(i);
    const s = `M${(a + PAD).toFixed(2)} ${y(m.depth[i])}h${Math.max(b - a - 0.5, 0.3).toFixed(2)}v${ROW - 1}H${(a + PAD).toFixed(2)}z`;
    const list = d.get(cls);
    if (list) list.push(s); else d.set(cls, [s]);
    if (inlinedOf(m, i) === 1 && b - a > 3) dashes.push(`M${(a + PAD + 1).toFixed(2)} ${y(m.depth[i]) + ROW - 2}h${(b - a - 2.5).toFixed(2)}`);
    const n = Math.floor((b - a - 5) / char);
    if (n >= 3) texts.push(i, a + PAD + 3, n, hit);
  });
  inlined.setAttribute('d', dashes.join(''));
  for (const [c, p] of paths) if (!d.has(c)) p.removeAttribute('d');
  for (const [c, list] of d) {
    if (!paths.has(c)) {
      paths.set(c, el(SVG, 'path', { class: c }));
      layer.append(paths.get(c));
    }
    paths.get(c).setAttribute('d', list.join(''));
  }
  let t = labels.firstChild;
  for (let k = 0; k < texts.length; k += 4) {
    if (!t) labels.append(t = el(SVG, 'text', {}));
    const i = texts[k];
    t.setAttribute('x', texts[k + 1]);
    t.setAttribute('y', y(m.depth[i]) + 13);
    t.setAttribute('class', (texts[k + 3] ? 'hit ' : '') + (inlinedOf(m, i) === 1 ? 'in' : ''));
    const s = fit(data.names[nameOf(m, i)][0], texts[k + 2]);
    if (t.textContent !== s) t.textContent = s;
    t = t.nextSibling;
  }
  while (t) {
    const next = t.nextSibling;
    t.remove();
    t = next;
  }
  height = bottom + PAD;
  svg.setAttribute('height', height);
  over.setAttribute('y', top);
  over.setAttribute('height', bottom - top);
  point();
}

// classOf is the class of a frame's colour.
function classOf(i) {
  const hows = howsOf(m, i), n = m.level[i];
  if (state.colour === 'change') return n > 0 ? 'more' + n : n < 0 ? 'less' + -n : 'even';
  return state.colour === 'how' && hows ? 'h' + weakest(hows) : data.names[nameOf(m, i)][2];
}

const nextColour = () => colours(m)[(colours(m).indexOf(state.colour) + 1) % colours(m).length];

let floor = 0; // bottom is not above this, so that the root stays where it is

// resize lays everything out anew.
function resize() {
  width = Math.max(320, svg.getBoundingClientRect().width);
  head.setAttribute('width', width);
  head.setAttribute('height', 2000);
  const tall = Math.ceil(bar.getBoundingClientRect().height);
  head.setAttribute('height', tall);
  top = tall + 4;
  let deepest = 0;
  visible(m, 0, all, width - 2 * PAD, LEAST, i => { deepest = Math.max(deepest, m.depth[i]); });
  floor = Math.min(top + (deepest + 1) * ROW, innerHeight - PAD);
  draw();
}

// show makes the view what state says, at once or smoothly.
let frameRequest = 0;
function show(smooth) {
  hits = null;
  found.className = '';
  found.textContent = '';
  if (state.search) {
    try {
      hits = find(m, state.search);
      const n = outermost(m, 0, i => hits[nameOf(m, i)]);
      let s = `${percent(n, all)} matched`;
      if (state.zoom) s += `, ${percent(outermost(m, state.zoom, i => hits[nameOf(m, i)]), m.total[state.zoom])} of this frame`;
      found.textContent = s;
    } catch (e) {
      found.className = 'bad';
      found.textContent = 'not a regular expression';
    }
  }
  if (search.value !== state.search) search.value = state.search;
  reset.disabled = !state.zoom && !state.search;
  flip.textContent = state.icicle ? 'Flame' : 'Icicle';
  sort.textContent = state.heavy ? 'Order: size' : 'Order: name';
  colour.textContent = 'Colour: ' + { module: 'module', how: 'how found', change: 'change' }[state.colour];
  side.textContent = 'Width: ' + data.diff?.[state.before ? 0 : 1];
  key();
  const from = [lo, hi], to = [m.x[state.zoom], m.x[state.zoom] + m.total[state.zoom]];
  cancelAnimationFrame(frameRequest);
  if (!smooth || matchMedia('(prefers-reduced-motion: reduce)').matches || document.hidden) {
    [lo, hi] = to;
    resize();
    return;
  }
  const start = performance.now();
  const step = now => {
    const t = Math.min(1, Math.max(0, (now - start) / 180)), e = t * (2 - t);
    // Zooming is even when the width changes by equal factors; the ends move with it.
    const w0 = from[1] - from[0] || 1, w1 = to[1] - to[0] || 1, w = w0 * Math.pow(w1 / w0, e);
    const part = w0 === w1 ? e : (w - w0) / (w1 - w0);
    lo = from[0] + (to[0] - from[0]) * part;
    hi = lo + w;
    if (t === 1) {
      [lo, hi] = to;
      resize();
      if (!state.icicle && cursorRow() > innerHeight + scrollY) scrollTo(scrollX, height);
      return;
    }
    draw();
    frameRequest = requestAnimationFrame(step);
  };
  frameRequest = requestAnimationFrame(step);
}

const cursorRow = () => y(m.depth[state.zoom]);

// key lists the colours.
function key() {
  const items = [];
  const item = (c, text, title, click) => items.push(h('li', {}, h('button', { type: 'button', title, onclick: click },
    el(SVG, 'svg', { width: 12, height: 12, 'aria-hidden': 'true' }, el(SVG, 'rect', { class: c, width: 12, height: 12, rx: 2 })), text)));
  if (state.colour === 'change') {
    const text = ['none, or chance', '0.05', '0.2', '1', '3', '10'];
    for (let n = -5; n <= 5; n++) {
      item(n > 0 ? 'more' + n : n < 0 ? 'less' + -n : 'even', n ? `${n > 0 ? '+' : '−'}${text[Math.abs(n)]} pp` : text[0],
        n ? `Frames whose part of all has ${n > 0 ? 'grown' : 'shrunk'} by ${text[Math.abs(n)]} points of a percent or more` : 'Frames whose change can be chance', () => {});
    }
  } else if (state.colour === 'how') {
    let bits = 0;
    for (const [, b] of data.frames) bits |= b;
    data.hows.forEach((text, b) => {
      if (bits >> b & 1 && b !== 0) item('h' + b, text, 'Frames that were found by ' + text, () => {});
    });
  } else {
    const weight = new Map();
    for (let i = 0; i < m.n; i++) {
      const mod = data.names[nameOf(m, i)][1];
      if (mod >= 0) weight.set(mod, (weight.get(mod) || 0) + m.self[i]);
    }
    const colours = new Map(data.names.map(([, mod, c]) => [mod, c]));
    const top = [...weight].sort((a, b) => b[1] - a[1] || a[0] - b[0]).slice(0, 8);
    for (const [mod, n] of top) {
      const name = base(data.modules[mod]), c = colours.get(mod);
      const one = /^[ck]/.test(c) ? c[0] + (c[0] === 'k' ? 1 : 3 * Math.floor(c.slice(1) / 3) + 1) : c;
      item(one, `${name} ${percent(n, all)}`, `${data.modules[mod] || name}: ${percent(n, all)} in its own code. Click to search.`,
        () => go({ search: '@^' + name.replace(/[\\^$.*+?()[\]{}|]/g, '\\$&') + '$' }));
    }
  }
  if (data.frames.some(f => f[2])) items.push(h('li', { class: 'key' }, h('i', {}, 'italic'), ': inlined'));
  legend.replaceChildren(...items);
}

// go changes the state, and the address with it.
function go(change, replace) {
  const before = state;
  state = Object.assign({}, state, change);
  arrange(before);
  try {
    history[replace ? 'replaceState' : 'pushState'](null, '', formatHash(state, m) || location.pathname + location.search);
  } catch (e) { /* not allowed in some frames; the view changes all the same */ }
  show(state.zoom !== before.zoom);
}

function back() {
  const before = state;
  state = parseHash(location.hash, m);
  arrange(before);
  show(state.zoom !== before.zoom);
}

// arrange lays frames out anew if that is what has changed.
function arrange(before) {
  if (state.before !== before.before) use(m, state.before, state.heavy);
  else if (state.heavy !== before.heavy) order(m, state.heavy);
  all = m.total[0];
}

// point outlines the frame in question, and the others of its name, and describes it.
function point(at) {
  const i = under >= 0 ? under : cursor;
  const scale = (width - 2 * PAD) / (hi - lo || 1);
  const left = k => Math.max(0, (m.x[k] - lo) * scale), right = k => Math.min(width - 2 * PAD, (m.x[k] + m.total[k] - lo) * scale);
  if (i < 0 || right(i) - left(i) <= 0) {
    edge.setAttribute('visibility', 'hidden');
    tipBox.setAttribute('visibility', 'hidden');
    same.removeAttribute('d');
    return;
  }
  edge.setAttribute('visibility', 'visible');
  edge.setAttribute('x', left(i) + PAD);
  edge.setAttribute('y', y(m.depth[i]));
  edge.setAttribute('width', Math.max(1, right(i) - left(i) - 0.5));
  edge.setAttribute('height', ROW - 1);
  if (tip.frame !== i || tip.zoom !== state.zoom) {
    tip.frame = i;
    tip.zoom = state.zoom;
    describe(i);
  }
  const d = [], name = nameOf(m, i);
  if (data.names[name][1] >= 0) {
    visible(m, lo, hi, width - 2 * PAD, 1, (k, a, b) => {
      if (k !== i && nameOf(m, k) === name) d.push(`M${a + PAD + 0.5} ${y(m.depth[k]) + 0.5}h${Math.max(0, b - a - 1.5)}v${ROW - 2}H${a + PAD + 0.5}z`);
    });
  }
  same.setAttribute('d', d.join(''));
  const w = Math.min(480, width - 2 * PAD), row = y(m.depth[i]);
  tipBox.setAttribute('width', w);
  tipBox.setAttribute('height', 2000);
  const tall = Math.ceil(tip.getBoundingClientRect().height) + 1;
  tipBox.setAttribute('height', tall);
  const x = at ? at.x + 12 : left(i) + PAD;
  let ty = row + ROW + 6;
  if (ty + tall > scrollY + innerHeight) ty = row - tall - 6;
  tipBox.setAttribute('x', Math.max(PAD, Math.min(x, width - PAD - w)));
  tipBox.setAttribute('y', Math.max(scrollY, ty));
  tipBox.setAttribute('visibility', 'visible');
}

// describe fills the box beside a frame.
function describe(i) {
  const [text, mod, , note] = data.names[nameOf(m, i)];
  const rows = [];
  const row = (what, n) => {
    const cells = [what, quantity(n), percent(n, all)];
    if (state.zoom) cells.push(percent(n, m.total[state.zoom]) + ' of zoom');
    rows.push(h('tr', {}, ...cells.map(c => h('td', {}, c))));
  };
  if (data.diff) compared(i, rows);
  else {
    row('total', m.total[i]);
    row('self', m.self[i]);
  }
  if (mod >= 0 && !data.diff) {
    const n = everywhere(m, nameOf(m, i));
    if (n !== m.total[i]) row('everywhere', n);
  }
  const lines = [h('b', {}, text)];
  if (mod >= 0) lines.push(h('div', { class: 'dim' }, data.modules[mod] || '[unknown]'));
  lines.push(h('table', {}, ...rows));
  if (note) lines.push(h('div', { class: 'dim' }, note));
  const hows = data.hows.filter((_, b) => howsOf(m, i) >> b & 1);
  if (hows.length) lines.push(h('div', { class: 'dim' }, 'found by ' + hows.join(', ')));
  const inl = inlinedOf(m, i);
  if (inl) lines.push(h('div', { class: 'dim' }, inl === 1 ? 'inlined into its caller' : 'inlined into its caller in part'));
  tip.replaceChildren(...lines);
}

// compared fills the rows about a frame in two profiles.
function compared(i, rows) {
  const [now, was] = m.weights;
  const row = (...cells) => rows.push(h('tr', {}, ...cells.map(c => h('td', {}, c))));
  const points = (a, b) => (a / now.total[0] - b / was.total[0] || 0) * 100;
  const signed = n => `${n < 0 ? '−' : '+'}${Math.abs(n).toFixed(2)} pp`;
  row('', 'before', '', 'after', '', 'change');
  for (const [what, k] of [['total', 'total'], ['self', 'self']]) {
    row(what, number(was[k][i]), percent(was[k][i], was.total[0]), number(now[k][i]), percent(now[k][i], now.total[0]), signed(points(now[k][i], was[k][i])));
  }
  if (!m.level[i]) row('', '', '', '', '', 'small, or chance');
}

// choose moves the keyboard's cursor.
function choose(i) {
  cursor = i;
  under = -1;
  const a = y(m.depth[i]);
  if (a < scrollY + top) scrollTo(scrollX, a - top - ROW);
  else if (a + 2 * ROW > scrollY + innerHeight) scrollTo(scrollX, a + 3 * ROW - innerHeight);
  point();
  const [text] = data.names[nameOf(m, i)];
  live.textContent = `${text}, ${percent(m.total[i], all)}, ${percent(m.self[i], all)} self`;
}

function widest(i) {
  let best = -1;
  for (const k of m.kids[i]) {
    const in_ = m.x[k] < hi && m.x[k] + m.total[k] > lo;
    if (in_ && (best < 0 || m.total[k] > m.total[best])) best = k;
  }
  return best;
}

function onkey(e) {
  if ((e.ctrlKey || e.metaKey) && e.key === 'f' && document.activeElement !== search || e.key === '/' && document.activeElement !== search) {
    e.preventDefault();
    search.focus();
    search.select();
    return;
  }
  if (e.key === 'Escape') {
    if (state.search || state.zoom) go(state.search ? { search: '' } : { zoom: 0 });
    cursor = under = -1;
    if (document.activeElement === search) graph.focus();
    point();
    e.preventDefault();
    return;
  }
  if (e.ctrlKey || e.metaKey || e.altKey || bar.contains(document.activeElement)) return;
  const i = cursor < 0 ? state.zoom : cursor;
  const deeper = state.icicle ? 'ArrowDown' : 'ArrowUp', back = state.icicle ? 'ArrowUp' : 'ArrowDown';
  let to = i;
  switch (e.key) {
  case deeper: to = cursor < 0 ? i : widest(i); break;
  case back: to = m.parent[i]; break;
  case 'ArrowLeft': to = neighbour(m, i, -1); break;
  case 'ArrowRight': to = neighbour(m, i, 1); break;
  case 'Enter': case ' ': go({ zoom: i }); e.preventDefault(); return;
  case 'Backspace': go({ zoom: Math.max(0, m.parent[state.zoom]) }); e.preventDefault(); return;
  case 'i': flip.click(); return;
  case 'o': sort.click(); return;
  case 'c': colour.click(); return;
  case 'w': if (data.diff) side.click(); return;
  case 'n': case 'N': to = match(i, e.key === 'n' ? 1 : -1); break;
  default: return;
  }
  e.preventDefault();
  if (to >= 0 && m.x[to] < hi && m.x[to] + m.total[to] > lo) choose(to);
}

// match is the next frame in the picture that the search matches.
function match(i, step) {
  const list = [];
  if (hits) visible(m, lo, hi, width - 2 * PAD, 1, k => { if (hits[nameOf(m, k)]) list.push(k); });
  list.sort((a, b) => a - b);
  if (!list.length) return -1;
  const next = step > 0 ? list.find(k => k > i) : list.reverse().find(k => k < i);
  return next === undefined ? list[0] : next;
}

function frameUnder(e) {
  const box = svg.getBoundingClientRect(), py = e.clientY - box.top;
  const depth = Math.floor((state.icicle ? py - top : bottom - py) / ROW);
  return frameAt(m, depth, lo + (e.clientX - box.left - PAD) / (width - 2 * PAD) * (hi - lo));
}

graph.addEventListener('pointermove', e => {
  const i = frameUnder(e);
  under = i;
  cursor = i < 0 ? cursor : -1;
  point({ x: e.clientX - svg.getBoundingClientRect().left });
});
graph.addEventListener('pointerleave', () => {
  under = -1;
  point();
});
graph.addEventListener('click', e => {
  const i = frameUnder(e);
  if (i >= 0) go({ zoom: i === state.zoom ? Math.max(0, m.parent[i]) : i });
});
graph.addEventListener('blur', () => {
  cursor = -1;
  point();
});
document.addEventListener('keydown', onkey);
addEventListener('resize', resize);
addEventListener('scroll', () => head.setAttribute('y', svg === document.documentElement ? scrollY : 0));
addEventListener('popstate', back);

svg.getElementById('static').remove();
svg.removeAttribute('viewBox');
svg.setAttribute('width', '100%');
svg.append(graph, head, tipBox);
const ruler = el(SVG, 'text', { visibility: 'hidden' }, 'm'.repeat(100));
svg.append(ruler);
char = ruler.getComputedTextLength() / 100 || char;
ruler.remove();
use(m, state.before, state.heavy);
all = m.total[0];
show(false);
if (!state.icicle) scrollTo(0, height);
}());

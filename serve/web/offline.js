// Answers a page's questions without a server, from what export.go put into the page: the sums are those of filter.go, tree.go, graph.go and top.go.

import { offline } from './model.js';

const markInner = 1 << 15, maxGraph = 40000, maxRows = 500, size = 6, group = 3, stop = 4;

// wrong is the error of a question that cannot be answered.
const wrong = text => Object.assign(new Error(text), { refused: true });

// compile makes a regular expression of what a person typed: case matters only if there are capitals. That of "" is null.
function compile(s) {
  if (!s) return null;
  const exact = s.includes('(?-i:'), plain = s.replaceAll('(?-i:', '(?:');
  try {
    return new RegExp(plain, exact || /(?:^|[^\\])[A-Z]/.test(s) ? 'u' : 'iu');
  } catch {
    try {
      return new RegExp(plain, exact || /(?:^|[^\\])[A-Z]/.test(s) ? '' : 'i'); // "\-" is one without u
    } catch (e) {
      throw wrong(e.message);
    }
  }
}

// engine returns what answers a question: ask(what, params).
export function engine(d) {
  const { parent, label, marks, labels, stacks, base } = d, nodes = label.length;
  const first = new Int32Array(nodes), next = new Int32Array(nodes);
  for (let n = nodes - 1; n > 0; n--) {
    next[n] = first[parent[n]];
    first[parent[n]] = n;
  }
  const sides = d.info.inputs.length;
  let last = null; // the filter before, and its sums

  const matching = re => labels.map(l => l.kind !== group && l.kind !== stop && re.test(l.text));
  const below = is => {
    const under = new Uint8Array(nodes);
    for (let n = 0; n < nodes; n++) under[n] = is[label[n]] || n && under[parent[n]] ? 1 : 0;
    return under;
  };

  function weigh(q) {
    const key = JSON.stringify(['pid', 'tid', 'comm', 'with', 'without', 'event', 'by'].map(k => q[k] ?? ''));
    if (last?.key === key) return last;
    const has = k => q[k] !== undefined && q[k] !== '' && q[k] !== null, comm = compile(q.comm), periods = q.by === 'periods';
    const wanted = [[q.with, 1], [q.without, 0]].filter(([s]) => s).map(([s, want]) => [below(matching(compile(s))), want]);
    const w = { key, self: [], total: [], all: [0, 0], samples: [0, 0], stops: [] };
    for (let side = 0; side < sides; side++) {
      w.self.push(new Float64Array(nodes));
      w.stops.push(d.info.stops.map(() => 0));
    }
    for (let i = 0; i < stacks.leaf.length; i++) {
      const side = i >= base ? 1 : 0, leaf = stacks.leaf[i];
      if (has('event') && stacks.event[i] !== +q.event) continue;
      if (!side && (has('pid') && stacks.pid[i] !== +q.pid || has('tid') && stacks.tid[i] !== +q.tid)) continue;
      if (comm && !comm.test(d.comms[stacks.comm[i]]) || wanted.some(([under, want]) => under[leaf] !== want)) continue;
      const n = periods ? stacks.period[i] : stacks.count[i];
      w.self[side][leaf] += n;
      w.all[side] += n;
      w.samples[side] += stacks.count[i];
      w.stops[side][stacks.stop[i]] += stacks.count[i];
    }
    for (let side = 0; side < sides; side++) {
      const total = Float64Array.from(w.self[side]);
      for (let n = nodes - 1; n > 0; n--) total[parent[n]] += total[n];
      w.total.push(total);
    }
    return last = w;
  }

  const at = (list, side, n) => side < sides ? list[side][n] : 0;

  function head(w, q) {
    const out = { all: w.all, totals: w.samples.slice(0, sides).map((samples, s) => ({ samples, byStop: w.stops[s], noStops: d.info.inputs[s].noStops })) };
    const re = compile(q.search);
    if (!re) return [out, null];
    const match = matching(re), under = below(match);
    out.found = { functions: match.filter(m => m).length, weight: [0, 0] };
    for (let n = 0; n < nodes; n++) {
      if (match[label[n]] && (!n || !under[parent[n]])) for (const s of [0, 1]) out.found.weight[s] += at(w.total, s, n);
    }
    return [out, match];
  }

  function top(q) {
    const w = weigh(q), re = compile(q.match), sums = labels.map(() => [[0, 0], [0, 0]]);
    for (let s = 0; s < sides; s++) {
      for (let n = 0; n < nodes; n++) {
        sums[label[n]][0][s] += w.self[s][n];
        if (!(marks[n] & markInner)) sums[label[n]][1][s] += w.total[s][n];
      }
    }
    const rows = [];
    labels.forEach((l, id) => {
      const [self, total] = sums[id];
      if (l.kind !== group && l.kind !== stop && total[0] + total[1] && !(re && !re.test(l.text))) rows.push({ id, text: l.text, module: l.module, kind: l.kind, self, total });
    });
    const delta = n => n[0] / (w.all[0] || 1) - n[1] / (w.all[1] || 1), text = (a, b) => a < b ? -1 : a > b ? 1 : 0;
    const by = {
      name: () => 0, module: (a, b) => text(d.bases[a.module], d.bases[b.module]), total: (a, b) => a.total[0] - b.total[0],
      delta: (a, b) => delta(a.self) - delta(b.self), tdelta: (a, b) => delta(a.total) - delta(b.total),
    }[q.sort] || ((a, b) => a.self[0] - b.self[0] || a.total[0] - b.total[0]);
    rows.sort((a, b) => (q.dir === 'up' ? 1 : -1) * (by(a, b) || text(a.text, b.text) || a.id - b.id));
    const lo = +(q.offset || 0), limit = Math.min(+(q.limit ?? 200), maxRows);
    return { ...head(w, q)[0], rows: rows.slice(lo, lo + limit), count: rows.length, most: rows.reduce((m, r) => Math.max(m, r.self[0]), 0) };
  }

  function graph(q) {
    const w = weigh(q), up = q.view === 'inverted' || q.view === 'callers', side = Math.min(+(q.side || 0), sides - 1), fn = +q.fn, width = Math.max(1, +(q.width || 1000));
    const both = (list, n) => [at(list, 0, n), at(list, 1, n)];
    const sum = r => {
      r.w = [0, 0];
      for (const p of r.parts) for (const s of [0, 1]) r.w[s] += p.w[s];
      return r;
    };
    function root() {
      if (q.view === 'inverted') {
        const parts = [];
        for (let n = 1; n < nodes; n++) {
          const x = both(w.self, n);
          if (x[0] + x[1]) parts.push({ n, w: x });
        }
        return sum({ label: label[0], parts });
      }
      if (q.view === 'callers' || q.view === 'callees') {
        const parts = [], inner = new Map();
        for (let n = 0; n < nodes; n++) {
          if (label[n] !== fn || q.view === 'callees' && marks[n] & markInner) continue;
          const x = { n, w: both(w.total, n) };
          inner.set(n, x);
          parts.push(x);
          if (!(marks[n] & markInner)) continue;
          let outer = parent[n];
          while (label[outer] !== fn) outer = parent[outer];
          for (const s of [0, 1]) inner.get(outer).w[s] -= x.w[s];
        }
        return sum({ label: fn, parts: parts.filter(p => p.w[0] || p.w[1]) });
      }
      return { label: label[0], parts: [{ n: 0, w: w.all }], w: w.all };
    }
    function kids(of) {
      const out = new Map(), whole = q.view === 'inverted' && of.label === label[0];
      const add = (n, x) => {
        if (!x[0] && !x[1]) return;
        let k = out.get(label[n]);
        if (!k) out.set(label[n], k = { label: label[n], parts: [], w: [0, 0], at: new Map() });
        for (const s of [0, 1]) k.w[s] += x[s];
        const same = up && !whole && k.at.get(n);
        if (same) for (const s of [0, 1]) same.w[s] += x[s];
        else {
          const p = { n, w: [...x] };
          k.parts.push(p);
          if (up && !whole) k.at.set(n, p);
        }
      };
      for (const p of of.parts) {
        if (whole) add(p.n, p.w);
        else if (up) parent[p.n] && add(parent[p.n], p.w);
        else for (let c = first[p.n]; c; c = next[c]) add(c, both(w.total, c));
      }
      return [...out.values()];
    }
    const path = [root()];
    for (const id of (q.path ? String(q.path).split('.') : []).map(x => parseInt(x, 36))) {
      const k = kids(path.at(-1)).find(k => k.label === id);
      if (!k) break;
      path.push(k);
    }
    let out, ids, names, hidden;
    function node(x, depth) {
      if (!ids.has(x.label)) {
        names.push(x.label);
        ids.set(x.label, names.length);
      }
      let own = 0, mark = 0;
      for (const p of x.parts) {
        if (!up) own += w.self[side][p.n];
        else if (x.label !== label[0] && !parent[p.n]) own += p.w[side];
        mark |= marks[p.n];
      }
      out.push(depth, ids.get(x.label), x.w[side], own, x.w[1 - side], mark & ~markInner);
    }
    function emit(x, depth, cut) {
      node(x, depth);
      if (out.length > maxGraph * size) return false;
      const rest = [0, 0];
      let few = 0;
      const list = kids(x).filter(k => {
        if (k.w[side] >= cut) return true;
        for (const s of [0, 1]) rest[s] += k.w[s];
        few++;
        return false;
      });
      list.sort((a, b) => (q.order === 'heavy' ? b.w[side] - a.w[side] : 0) || (labels[a.label].text < labels[b.label].text ? -1 : labels[a.label].text > labels[b.label].text ? 1 : a.label - b.label));
      for (const k of list) if (!emit(k, depth + 1, cut)) return false;
      hidden += few;
      if (rest[side]) out.push(depth + 1, 0, rest[side], 0, rest[1 - side], 0);
      return true;
    }
    for (let cut = Math.max(1, Math.ceil(path.at(-1).w[side] / (4 * width))); ; cut *= 2) {
      [out, ids, names, hidden] = [[], new Map(), [], 0];
      path.slice(0, -1).forEach(node);
      if (emit(path.at(-1), path.length - 1, cut)) break;
    }
    const [h, match] = head(w, q);
    const all = [{ id: -1, text: '', module: -1, kind: group }, ...names.map(id => ({ id, ...labels[id] }))];
    const hits = match ? all.flatMap((l, i) => l.id >= 0 && match[l.id] ? [i] : []) : [];
    if (hits.length) h.hits = hits;
    return { ...h, nodes: out, labels: all, path: path.length - 1, hidden };
  }

  return async (what, q) => {
    switch (what) {
      case 'info': return d.info;
      case 'graph': return graph(q);
      case 'top': return top(q);
    }
    throw wrong(`A saved page has no ${what}.`);
  };
}

offline.ask = engine(JSON.parse(document.getElementById('saved').textContent));

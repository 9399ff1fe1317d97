// The page: what is shown is in the address after the #, so that back, forward and reload work.
import { $, Channel, comma, el, offline, palette, onScheme, percent, seconds, weight } from './model.js';
import { Graph } from './graph.js';
import { Table } from './tables.js';
import { Timeline } from './timeline.js';
import { Source } from './source.js';

const views = ['flame', 'top', 'sandwich', 'source'];
const filters = ['pid', 'tid', 'comm', 'service', 'pod', 'with', 'without', 'event', 'by', 'lo', 'hi', 'group'];
const defaults = { tab: 'flame', view: '', fn: '', path: '', flip: '', heavy: '', side: '', search: '', ...Object.fromEntries(filters.map(f => [f, ''])) };
const numeric = new Set(['fn', 'pid', 'tid', 'lo', 'hi', 'event']);

const app = {
  state: { ...defaults }, info: null,
  typed: null, // a search that is not in the address yet

  // params are what every question says.
  params() {
    const p = Object.fromEntries(filters.map(f => [f, this.state[f]]));
    if (this.state.tab !== 'top' && this.state.search) p.search = this.state.search;
    return p;
  },

  // unit is that of weights.
  unit() {
    if (this.state.by !== 'periods') return 'samples';
    const e = this.info.events || [], one = this.state.event !== '' ? e[this.state.event] : e.length === 1 ? e[0] : null;
    return !one ? 'events' : one.unit === 'nanoseconds' ? 'ns' : one.unit === 'count' ? one.name.split(':')[0] : one.unit;
  },

  // set changes the state and shows what follows from it.
  set(change, replace) {
    this.tip(null);
    if (this.typed !== null) change = { search: this.typed, ...change };
    this.typed = null;
    const next = { ...this.state, ...change };
    if (next.group !== this.state.group || next.view !== this.state.view) next.path = '';
    const hash = '#' + new URLSearchParams(Object.entries(next).filter(([k, v]) => v !== defaults[k]));
    if (hash === (location.hash || '#')) return;
    history[replace ? 'replaceState' : 'pushState'](null, '', hash);
    this.show();
  },

  // show brings the page to what the address says.
  show() {
    const old = this.state, s = this.state = { ...defaults };
    for (const [k, v] of new URLSearchParams(location.hash.slice(1))) if (k in s && !(numeric.has(k) && Number.isNaN(+v))) s[k] = numeric.has(k) && v !== '' ? +v : v;
    if (!views.includes(s.tab)) s.tab = 'flame';
    const changed = (...names) => this.first || names.some(n => old[n] !== s[n]), filtered = changed(...filters);
    for (const v of views) {
      $('tab-' + v).setAttribute('aria-selected', v === s.tab);
      $('tab-' + v).tabIndex = v === s.tab ? 0 : -1;
      $('panel-' + v).hidden = v !== s.tab;
    }
    $('chosen').hidden = s.tab === 'source' || !this.chosen;
    if ($('search').value !== s.search) $('search').value = s.search;
    if (!s.search) $('found').textContent = '';
    if (filtered) $('chosen-text').textContent = ''; // the view that it is of knows the new numbers
    for (const [id, on] of [['calls', s.view !== 'inverted'], ['inverted', s.view === 'inverted'], ['flip', s.flip], ['heavy', s.heavy], ['side', s.side]]) $(id).setAttribute('aria-pressed', !!on);
    $('group').value = s.group;
    this.chips();
    if (this.timeline) {
      if (changed(...filters.filter(f => f !== 'lo' && f !== 'hi'))) this.timeline.load();
      else this.timeline.draw();
    }
    const again = filtered || changed('tab', 'search');
    switch (s.tab) {
      case 'flame': {
        const g = this.graph;
        g.view = s.view || 'calls';
        g.extra = { order: s.heavy, side: s.side };
        if (g.up !== !!s.flip) {
          g.up = !!s.flip;
          g.turn();
        }
        const path = s.path ? s.path.split('.').map(x => parseInt(x, 36)) : [];
        if (again || changed('view', 'heavy', 'side') || path.join() !== g.path.join()) {
          g.path = path;
          g.load();
        }
        break;
      }
      case 'top': if (again) this.table.load(); break;
      case 'sandwich': if (again || changed('fn')) this.sandwich(); break;
      case 'source': if (filtered || changed('tab', 'fn')) this.source.load(); break;
    }
    this.first = false;
  },

  sandwich() {
    const { fn } = this.state;
    this.picking = false;
    for (const g of [this.callers, this.callees]) {
      if (this.state.fn === '') continue;
      if (g.extra?.fn !== fn) g.path = [];
      g.extra = { fn };
      g.load();
    }
    if (fn === '') {
      $('picked').textContent = 'Choose a function here, in the table or in the graph.';
      $('pick').focus();
    }
  },

  go(tab, fn) { this.set({ tab, fn, path: this.state.path }); },

  // loaded takes what every answer has.
  loaded(from, g) {
    this.fail(null);
    this.badge(g);
    if (from === this.table) $('found').textContent = this.state.search ? `${comma(g.count)} ${g.count === 1 ? 'function' : 'functions'}` : '';
    else $('found').textContent = g.found ? `${percent(g.found.weight[0], g.all[0])} in ${comma(g.found.functions)}` : '';
    if (from === this.callers && !this.picking) { // an answer is not written over what somebody types
      const l = from.name(0), all = g.all[0];
      $('pick').value = l.text;
      $('picked').textContent = `total ${percent(from.total(0), all)} · ${weight(from.total(0), this.unit())}`;
    }
    document.body.dataset.ready = this.state.tab;
  },

  pathChanged(g) {
    if (g === this.graph) this.set({ path: g.path.map(n => n.toString(36)).join('.') });
  },

  // fail says what went wrong, and null that nothing did. What is shown stays if only the question was wrong.
  fail(e) {
    $('notice').hidden = !e?.refused;
    $('loading').hidden = !e || e.refused;
    if (!e) return;
    if (e.refused) return void ($('notice').textContent = e.message);
    document.querySelector('.loading .meter').hidden = true;
    $('loading-text').textContent = e.message;
    $('loading-note').textContent = '';
  },

  say(text) { $('live').textContent = text; },

  // choose shows a function of a view in the bar at the bottom.
  choose(label, d, from) {
    this.chosen = label && label.kind < 3 ? label : null;
    this.chosenBy = from;
    $('chosen').hidden = false;
    $('chosen-name').textContent = d.name;
    this.numbers(d);
    for (const id of ['go-sandwich', 'go-source', 'go-with']) $(id).hidden = !this.chosen;
    $('go-source').hidden ||= !this.info.source;
  },

  // numbers writes those of what is in the bar; without any it is not in what is shown now.
  numbers(d) {
    $('chosen-text').textContent = d ? d.lines.map(l => `${l[0].toLowerCase()} ${l.slice(1).join(' · ')}`).join('   ') : 'not in what is shown';
  },

  // tip shows what is under the pointer.
  tip(e, d) {
    const t = $('tip');
    t.hidden = !e || !d;
    if (t.hidden) return;
    if (t.shown !== d.name + d.lines) {
      t.shown = d.name + d.lines;
      t.replaceChildren(el('b', {}, d.name), el('table', {}, ...d.lines.map(l => el('tr', {}, ...l.map(c => el('td', {}, c))))), ...d.notes.map(n => el('p', {}, n)));
    }
    const w = t.offsetWidth, h = t.offsetHeight;
    t.style.left = `${Math.max(4, Math.min(e.clientX + 14, innerWidth - w - 6))}px`;
    t.style.top = `${e.clientY + 18 + h < innerHeight ? e.clientY + 18 : Math.max(4, e.clientY - h - 12)}px`;
  },

  // badge says how many of the stacks are whole.
  badge(g) {
    const b = $('badge'), t = g.totals[0], of = grade => t.byStop.reduce((n, v, i) => n + (this.info.stops[i].grade === grade ? v : 0), 0);
    b.hidden = false;
    if (t.noStops) b.textContent = 'completeness not recorded';
    else b.textContent = t.samples ? `${percent(of('whole'), t.samples)} whole` : 'no samples';
    const whole = t.samples ? of('whole') / t.samples : 1;
    b.dataset.grade = t.noStops || !t.samples ? 'none' : whole >= 0.95 ? 'good' : whole >= 0.8 ? 'fair' : 'poor';
    const box = $('completeness');
    box.replaceChildren(el('h2', {}, 'How stacks end'), el('p', { class: 'dim' }, this.info.inputs[0].summary));
    if (t.noStops) return void box.append(el('p', {}, 'This format does not say how stacks ended.'));
    const rows = t.byStop.map((n, i) => [n, this.info.stops[i]]).filter(([n]) => n).sort((a, c) => c[0] - a[0]);
    box.append(el('table', {}, ...rows.map(([n, s]) => el('tr', {}, el('td', {}, percent(n, t.samples)), el('td', {}, comma(n)), el('td', {}, el('b', {}, s.grade === s.name || s.name === 'outermost' ? s.grade : `${s.grade}: ${s.name}`), el('p', { class: 'dim' }, s.name === 'outermost' ? 'ends at a thread’s first frame' : s.note || 'kernel threads and the like'))))));
    const hows = Object.entries(this.info.hows).filter(([k]) => k !== 'unknown').sort((a, c) => c[1] - a[1]), frames = hows.reduce((n, h) => n + h[1], 0);
    if (frames) box.append(el('h2', {}, 'How frames were found, in all of the recording'), el('table', {}, ...hows.map(([k, n]) => el('tr', {}, el('td', {}, percent(n, frames)), el('td', {}, comma(n)), el('td', {}, k)))));
    if (g.totals[1] && !g.totals[1].noStops) box.append(el('h2', {}, 'Baseline'), el('p', { class: 'dim' }, this.info.inputs[1].summary));
  },

  // chips are the filters in use, each with a way out.
  chips() {
    const s = this.state, out = [], add = (text, clear) => out.push(el('button', { class: 'chip', title: 'Remove this filter', onclick: () => this.set(clear) }, text, el('span', { 'aria-hidden': 'true' }, ' ×')));
    if (s.tid !== '') add(`thread ${s.tid}`, { tid: '', pid: '' });
    else if (s.pid !== '') add(`process ${s.pid}`, { pid: '' });
    if (s.service) add(`service ${s.service}`, { service: '' });
    if (s.pod) add(`pod ${s.pod}`, { pod: '' });
    if (s.comm) add(`thread name ${s.comm}`, { comm: '' });
    if (s.with) add(`with ${s.with}`, { with: '' });
    if (s.without) add(`without ${s.without}`, { without: '' });
    if (s.event !== '') add(this.info.events[s.event]?.name || 'event', { event: '' });
    if (s.hi) add(`${seconds(s.lo, 4)} – ${seconds(s.hi, 4)}`, { lo: '', hi: '' });
    if (s.by !== defaults.by) add(`by ${this.unit()}`, { by: defaults.by });
    $('chips').replaceChildren(...out);
  },

  legend() {
    const c = palette(), item = (style, text) => {
      const i = el('i', { class: 'dot' });
      i.style.background = style;
      return el('li', {}, i, text);
    };
    const two = this.info.inputs.length > 1;
    $('legend').replaceChildren(...two ? [item(`rgb(${c.less})`, 'less than before'), item(c.same, 'same'), item(`rgb(${c.more})`, 'more')]
      : [...this.info.modules.map((m, i) => [m, i]).filter(([m]) => m.path && m.path[0] !== '[').sort((a, b) => a[0].hue - b[0].hue).slice(0, 4).map(([m]) => item(c.hues[m.hue % c.hues.length], m.path.slice(m.path.lastIndexOf('/') + 1))),
        item(c.kernel, 'kernel'), item(c.stop, 'not whole')]);
  },
};

// wait follows the reading of the profile.
async function wait() {
  for (;;) {
    const s = await fetch('api/status').then(async r => r.ok ? r.json() : { state: 'failed', error: await r.text() }, () => ({ state: 'failed', error: 'The server has ended; see its terminal.' }));
    $('name').textContent = s.name || 'unspool';
    document.title = `${s.name || 'unspool'} – unspool`;
    if (s.state === 'failed') throw new Error(s.error);
    if (s.state === 'ready') return;
    const { done, total, samples } = s.progress, mib = n => `${comma(n / (1 << 20))} MiB`;
    $('loading-text').textContent = `Reading ${s.name}`;
    $('loading-bar').style.width = total ? `${100 * done / total}%` : '';
    $('loading-note').textContent = total && done >= total ? 'finding names' : `${total ? `${mib(done)} of ${mib(total)}` : ''}${samples ? ` · ${comma(samples)} samples` : ''}`;
    await new Promise(r => setTimeout(r, 80));
  }
}

function fillFilters(info) {
  const one = (value, text) => el('option', { value }, text), groups = new Map();
  for (const t of info.threads) if (t.pid || t.tid) groups.get(t.pid)?.push(t) || groups.set(t.pid, [t]);
  $('f-thread').replaceChildren(one('', 'All'), ...[...groups].map(([pid, list]) => {
    const main = list.find(t => t.tid === pid) || list[0], g = el('optgroup', { label: `${main.comm} (${pid})` });
    g.append(one(`${pid}`, `process ${pid}, ${comma(list.reduce((n, t) => n + t.samples, 0))} samples`));
    if (list.length > 1) g.append(...list.map(t => one(`${pid}/${t.tid}`, `${t.comm} ${t.tid}, ${comma(t.samples)} samples`)));
    return g;
  }));
  const events = info.events || [];
  $('f-event').replaceChildren(one('', 'All'), ...events.map((e, i) => one(`${i}`, e.name)));
  $('f-eventbox').hidden = events.length < 2;
  $('f-by').replaceChildren(one('samples', 'Samples'), one('periods', events.length !== 1 ? 'Events' : events[0].unit === 'nanoseconds' ? 'Time' : events[0].name));
  // Before it opens: "toggle" comes some time after, over what was typed since.
  $('filters').addEventListener('beforetoggle', e => {
    if (e.newState !== 'open') return;
    const s = app.state;
    $('f-thread').value = s.tid !== '' ? `${s.pid}/${s.tid}` : `${s.pid}`;
    if ($('f-thread').selectedIndex < 0) $('f-thread').value = '';
    for (const k of ['comm', 'service', 'pod', 'with', 'without', 'event', 'by']) $('f-' + k).value = s[k];
  });
  $('filters').addEventListener('submit', e => {
    e.preventDefault();
    const [pid, tid] = $('f-thread').value.split('/');
    app.set({ pid: pid ? +pid : '', tid: tid ? +tid : '', event: $('f-event').value === '' ? '' : +$('f-event').value, ...Object.fromEntries(['comm', 'service', 'pod', 'with', 'without', 'by'].map(k => [k, $('f-' + k).value])) });
    $('filters').hidePopover();
  });
  $('f-clear').onclick = () => {
    app.set(Object.fromEntries(filters.map(f => [f, defaults[f]])));
    $('filters').hidePopover();
  };
}

const quoted = s => s.replace(/[.*+?^${}()|[\]\\]/g, '\\$&');

// only is the regular expression of one name, which may have been cut (tree.go).
const only = name => `^(?-i:${quoted(name.replace(/…$/, ''))})${name.endsWith('…') ? '' : '$'}`;

function controls() {
  for (const v of views) $('tab-' + v).onclick = () => app.go(v, app.state.fn === '' && app.chosen && v !== 'flame' && v !== 'top' ? app.chosen.id : app.state.fn);
  $('tabs').addEventListener('keydown', e => {
    const d = { ArrowRight: 1, ArrowLeft: -1 }[e.key];
    if (!d) return;
    const v = views[(views.indexOf(app.state.tab) + d + views.length) % views.length];
    $('tab-' + v).click();
    $('tab-' + v).focus();
  });
  $('calls').onclick = () => app.set({ view: '' });
  $('inverted').onclick = () => app.set({ view: 'inverted' });
  $('flip').onclick = () => app.set({ flip: app.state.flip ? '' : '1' });
  $('heavy').onclick = () => app.set({ heavy: app.state.heavy ? '' : 'heavy' });
  $('side').onclick = () => app.set({ side: app.state.side ? '' : '1' });
  $('group').onchange = e => app.set({ group: e.target.value });
  let timer;
  $('search').addEventListener('input', e => {
    app.typed = e.target.value;
    clearTimeout(timer);
    timer = setTimeout(() => app.typed !== null && app.set({}, true), 120);
  });
  const picks = new Channel();
  let list = [];
  // named returns functions that match, the heaviest first; null if it was asked again.
  const named = match => picks.ask('top', { ...app.params(), match, sort: 'total', limit: 20 }).then(t => t && t.rows, () => []);
  $('pick').addEventListener('input', async e => {
    app.picking = true;
    const hit = list.find(r => r.text === e.target.value);
    if (hit) return app.go('sandwich', hit.id);
    const rows = await named(quoted(e.target.value));
    if (!rows) return;
    list = rows;
    $('picks').replaceChildren(...list.map(r => el('option', { value: r.text })));
  });
  $('pick').addEventListener('change', async e => {
    const text = e.target.value;
    if (!text) return;
    for (const match of [only(text), quoted(text)]) {
      const rows = await named(match);
      if (!rows) return;
      if (rows[0]?.id === app.state.fn) return app.sandwich();
      if (rows.length) return app.go('sandwich', rows[0].id);
    }
    $('picked').textContent = 'No function matches.';
  });
  $('go-sandwich').onclick = () => app.chosen && app.go('sandwich', app.chosen.id);
  $('go-source').onclick = () => app.chosen && app.go('source', app.chosen.id);
  $('go-with').onclick = () => app.chosen && app.set({ with: only(app.chosen.text) });
  $('help').onclick = () => $('keys').showModal();
  addEventListener('popstate', () => {
    app.typed = null;
    app.show();
  });
  addEventListener('keydown', e => {
    app.tip(null);
    if (e.ctrlKey || e.metaKey || e.altKey || $('keys').open) return;
    if (e.target.matches('input, select')) {
      if (e.key === 'Escape' && e.target === $('search')) {
        e.target.value = '';
        app.set({ search: '' }, true);
        $(app.state.tab === 'top' ? 'table' : 'graph').querySelector('[tabindex]').focus();
      }
      return;
    }
    const fn = app.chosen?.id;
    switch (e.key) {
      case '1': case '2': case '3': case '4': $('tab-' + views[e.key - 1]).click(); break;
      case '/': $('search').focus(); $('search').select(); break;
      case '?': $('keys').showModal(); break;
      case 'c': if (fn !== undefined) app.go('sandwich', fn); break;
      case 's': if (fn !== undefined && app.info.source) app.go('source', fn); break;
      case 'f': $('filters').showPopover(); $('f-thread').focus(); break;
      case 't': app.timeline?.toggle(); break;
      case 'Escape': if (app.state.search) app.set({ search: '' }, true); return;
      default: return;
    }
    e.preventDefault();
  });
}

async function start() {
  if (location.search && !offline.ask) history.replaceState(null, '', location.pathname + location.hash); // the token is in a cookie now
  try {
    if (!offline.ask) await wait();
    app.info = await new Channel().ask('info', {});
  } catch (e) {
    return app.fail(e);
  }
  const { info } = app;
  defaults.by = info.periods ? 'periods' : 'samples';
  $('loading').hidden = true;
  $('name').textContent = info.inputs.map(i => i.name).join(' compared with ');
  $('about').textContent = [info.command, info.host, info.start ? new Date(info.start).toLocaleString() : '', info.duration ? seconds(info.duration) : '', info.inputs.map(i => `${comma(i.samples)} samples`).join(' against '), (info.events || []).map(e => e.name).join(', ')].filter(Boolean).join(' · ');
  $('about').title = $('about').textContent;
  $('pprof').hidden = !!offline.ask;
  $('newest').hidden = !info.live || !!offline.ask;
  if (offline.ask) {
    document.title = `${$('name').textContent} – unspool`;
    $('tab-source').hidden = $('groupbox').hidden = true;
    $('saved-note').hidden = false;
  }
  $('side').hidden = info.inputs.length < 2;
  app.badge({ totals: info.inputs });
  app.legend();
  onScheme(() => { app.legend(); app.table.draw(); });
  app.graph = new Graph($('graph'), 'calls', app, 'Flame graph. Arrow keys move from frame to frame, Enter zooms, Escape zooms out.');
  app.callers = new Graph($('callers'), 'callers', app, 'Callers of the function');
  app.callees = new Graph($('callees'), 'callees', app, 'Callees of the function');
  app.callers.up = true;
  app.table = new Table($('table'), app);
  app.source = new Source($('source'), app);
  if (info.services) {
    $('f-servicebox').hidden = false;
    $('group-default').textContent = 'service';
    $('group-default').after(el('option', { value: 'comm' }, 'thread name'));
    if (info.pods) {
      $('f-podbox').hidden = false;
      $('group-default').after(el('option', { value: 'pod' }, 'pod'));
    }
  }
  if (info.timed) app.timeline = new Timeline(app);
  fillFilters(info);
  controls();
  app.first = true;
  app.show();
}

start();

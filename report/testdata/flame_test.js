// Holds the first half of flame.js, which needs no document, against plain definitions: node flame_test.js SCRIPT DATA.
'use strict';
const assert = require('node:assert');
const fs = require('node:fs');
const f = require(process.argv[2]);
const data = JSON.parse(fs.readFileSync(process.argv[3], 'utf8'));
const m = f.decode(data);

// Each frame spans what its callees and it itself weigh, and lies within its caller.
let self = 0;
for (let i = 0; i < m.n; i++) {
  self += m.self[i];
  assert.strictEqual(m.total[i], m.self[i] + m.kids[i].reduce((n, k) => n + m.total[k], 0));
  for (const k of m.kids[i]) {
    assert.strictEqual(m.parent[k], i);
    assert.strictEqual(m.depth[k], m.depth[i] + 1);
    assert(m.x[k] >= m.x[i] && m.x[k] + m.total[k] <= m.x[i] + m.total[i]);
  }
}
assert.strictEqual(m.total[0], self);

// Sorting by weight keeps the sums and puts the heaviest first.
f.order(m, true);
for (let i = 0; i < m.n; i++) m.kids[i].forEach((k, n, all) => assert(!n || m.total[all[n - 1]] >= m.total[k]));
f.order(m, false);

// Shares are rounded as profile.Percent does it: what lies in the middle to the even digit.
assert.deepStrictEqual([1, 3, 5, 7].map(n => f.percent(n, 16)), ['6.2 %', '18.8 %', '31.2 %', '43.8 %']);
assert.deepStrictEqual([f.percent(1, 400), f.percent(12251, 100000), f.percent(1, 1e6), f.percent(999999, 1e6)], ['0.2 %', '12.3 %', '<0.1 %', '>99.9 %']);

// A search matches by name, without regard to case unless there are capitals, or by module.
const names = data.names.map(n => n[0]);
const hits = s => names.filter((_, i) => f.find(m, s)[i]);
assert.deepStrictEqual(hits('^main$'), ['main']);
assert.deepStrictEqual(hits('MAIN'), []);
assert(hits('@^libc').length > 0 && hits('@^libc').every(n => n !== 'main'));
assert.throws(() => f.find(m, '('), SyntaxError);

// A recursive function counts once in each stack.
const walk = names.findIndex(n => n.startsWith('walk('));
let want = 0;
for (let i = 0; i < m.n; i++) {
  let outer = f.nameOf(m, i) === walk;
  for (let p = m.parent[i]; p >= 0; p = m.parent[p]) if (f.nameOf(m, p) === walk) outer = false;
  if (outer) want += m.total[i];
}
assert(want > 0);
assert.strictEqual(f.everywhere(m, walk), want);

// What is visible at full width is everything; the frame at a point is the one drawn there.
const seen = [];
f.visible(m, 0, m.total[0], 1000, 0.001, (i, a, b) => {
  seen.push(i);
  assert.strictEqual(f.frameAt(m, m.depth[i], m.x[i] + m.total[i] / 2), i);
  assert(a >= 0 && b <= 1000.001);
});
assert.strictEqual(seen.length, m.n);
assert.strictEqual(f.frameAt(m, 99, 0), -1);

// The neighbour to the right of the neighbour to the left is where one was.
for (const i of seen) {
  const r = f.neighbour(m, i, 1);
  assert.strictEqual(m.depth[r], m.depth[i]);
  if (r !== i) assert.strictEqual(f.neighbour(m, r, -1), i);
}

// A name is made to fit.
for (const n of ['f', 'std::vector<int, std::allocator<int>>::push_back(int const&)', '日本語の関数', names[walk]])
  for (let w = 0; w < 70; w++) {
    const s = f.fit(n, w);
    assert([...s].length <= Math.max(w, n.length <= w ? n.length : 0), `${s} in ${w}`);
  }

for (const [n, w, want] of [
  ['std::vector<int, std::allocator<int>>::push_back(int const&)', 50, 'std::vector<int, std::allocator<int>>::push_back()'],
  ['std::vector<int, std::allocator<int>>::push_back(int const&)', 30, 'std::vector<…>::push_back()'],
  ['std::vector<int, std::allocator<int>>::push_back(int const&)', 12, 'push_back()'],
  ['<alloc::vec::Vec<Thing> as core::ops::Drop>::drop', 48, '<alloc::vec::Vec<…> as core::ops::Drop>::drop'],
  ['github.com/a/b.(*Reader).Read', 20, 'b.(*Reader).Read'],
  ['日本語の関数', 5, '日本…'],
]) assert.strictEqual(f.fit(n, w), want);

// What stands behind the # in the address comes back as it was.
for (const s of ['', '#zoom=2&search=a%26b%23%28&icicle=1&order=size&colour=how', '#zoom=99999999&search=%C3%BC', '#zoom=-1']) {
  const state = f.parseHash(s, m);
  assert(state.zoom >= 0 && state.zoom < m.n);
  assert.deepStrictEqual(f.parseHash(f.formatHash(state, m), m), state);
}
assert.strictEqual(f.parseHash('#search=a%26b%23%28', m).search, 'a&b#(');

// Of two profiles, widths are those after or before, and the other weights stay.
const two = JSON.parse(JSON.stringify(data));
two.diff = ['before', 'after'];
two.nodes = [];
for (let i = 0; i < m.n; i++) two.nodes.push(...data.nodes.slice(3 * i, 3 * i + 3), i, i % 11 - 5);
const d = f.decode(two);
assert.deepStrictEqual([...d.total], [...m.total]);
f.use(d, true, false);
assert.strictEqual(d.total[0], m.n * (m.n - 1) / 2);
assert.strictEqual(d.level[7], 7 % 11 - 5);
for (let i = 0; i < d.n; i++) for (const k of d.kids[i]) assert(d.x[k] >= d.x[i] && d.x[k] + d.total[k] <= d.x[i] + d.total[i]);
for (const s of ['#colour=module&width=before', '#colour=how', '']) {
  assert.strictEqual(f.formatHash(f.parseHash(s, d), d), s);
}
assert.strictEqual(f.parseHash('', d).colour, 'change');
assert.strictEqual(f.parseHash('#width=before', m).before, false);

// One of anything is in the singular, as package profile has it.
for (const [many, one] of Object.entries({ samples: 'sample', 'page-faults': 'page-fault', 'cache-misses': 'cache-miss', branches: 'branch', 'context-switches': 'context-switch', cs: 'cs', 'sched:sched_stats': 'sched:sched_stats', progress: 'progress' })) {
  assert.strictEqual(f.singular(many), one);
}

// Functions that the engine compiles at run time, called by each other and by its own: jit.js SECONDS
const until = Date.now() + Number(process.argv[2]) * 1000;

function fib(n) { return n < 2 ? n : fib(n - 1) + fib(n - 2); }

class Tree {
  constructor(key) { this.key = key; this.left = this.right = null; }
  insert(key) {
    const side = key < this.key ? 'left' : 'right';
    if (this[side]) this[side].insert(key); else this[side] = new Tree(key);
  }
  sum() { return this.key + (this.left ? this.left.sum() : 0) + (this.right ? this.right.sum() : 0); }
}

function nest(n, f) { return n === 0 ? f() : [n].map(m => nest(m - 1, f))[0]; }

let turns = 0, total = 0;
while (Date.now() < until) {
  turns++;
  total += fib(20);
  const t = new Tree(500);
  for (let i = 0; i < 1000; i++) t.insert(i * 7919 % 1009);
  total += t.sum();
  total += nest(20, () => JSON.parse(JSON.stringify({ a: [1, 2, { b: 'text' }] })).a.length);
  total += 'left-right '.repeat(40).replace(/(\w+)-(\w+)/g, (_, a, b) => b + a).length;
  const v = Array.from({ length: 2000 }, (_, i) => i * 7919 % 2003);
  v.sort((a, b) => a - b);
  // A new function now and then, so that the engine goes on compiling.
  if (turns % 50 === 0) total += new Function('n', `let s = 0; for (let i = 0; i < n; i++) s += i % ${turns}; return s`)(100000);
}
console.log(turns, total);

"""Calls of all kinds for some seconds: recursion, callbacks from C, the json and re modules."""
import json
import re
import sys
import time


def ackermann(m, n):
    if m == 0:
        return n + 1
    return ackermann(m - 1, 1 if n == 0 else ackermann(m, n - 1))


def nest(depth, f):
    return f() if depth == 0 else max([depth], key=lambda d: nest(d - 1, f))


tree = {"k%d" % i: [{"v": list(range(20))}] * 10 for i in range(10)}
end = time.monotonic() + float(sys.argv[1] if len(sys.argv) > 1 else 1)
turns = 0
while time.monotonic() < end:
    turns += 1
    ackermann(2, 9)
    nest(3, lambda: json.loads(json.dumps(tree)))
    nest(2, lambda: re.sub(r"(\w+)-(\w+)", lambda m: m[2] + m[1], "left-right " * 40))
print(turns)

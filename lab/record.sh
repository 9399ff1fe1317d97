#!/bin/sh
# Makes the recordings that the lab works on, with stock perf: programs as they are shipped, without frame
# pointers, with copies of 8 KiB of stack.
#
#	record.sh small|full DIR
#
# small makes about 5,000 samples of g++ and a few thousand of the others, in half a minute and 100 MB.
# full makes about 104,000 of g++, in a minute and 1 GB. It takes perf, g++, gcc, python3, openssl, and the
# permission to record one's own processes (kernel.perf_event_paranoid at most 2); and hackbench of rt-tests, without
# which there is no recording of it.
set -eu

usage() { echo "usage: record.sh small|full DIR" >&2; exit 2; }
[ $# = 2 ] || usage
case $1 in
small) compiles=1 compile_hz=500 loops=100 seconds=1 hz=1000 turns=60 messages=600 ;;
full)  compiles=3 compile_hz=3200 loops=200 seconds=4 hz=2000 turns=300 messages=1500 ;;
*) usage ;;
esac
src=$(cd "$(dirname "$0")/workload" && pwd)
mkdir -p "$2"
out=$(cd "$2" && pwd)
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
cd "$tmp"

# record NAME HZ COMMAND...
record() {
  name=$1 rate=$2
  shift 2
  perf record -q -o "$name.tmp" -F "$rate" --call-graph dwarf,8192 -- "$@" >"$name.log" 2>&1 || {
    cat "$name.log" >&2
    exit 1
  }
  mv "$name.tmp" "$out/$name.data"
  echo "$name: $(wc -c <"$out/$name.data") bytes"
}

# They must be there when the recordings are read.
gcc -O2 -o "$out/signals" "$src/signals.c"
g++ -std=c++17 -O2 -g -o "$out/inlined" "$src/inlined.cc"

record gxx "$compile_hz" sh -c '
  i=0
  while [ $i -lt '"$compiles"' ]; do
    g++ -std=c++17 -O2 -c "$1" -o "$2"
    g++ -std=c++17 -O0 -g -c "$1" -o "$2"
    i=$((i + 1))
  done' sh "$src/heavy.cc" "$out/heavy.o" # not /dev/null, which a compiler that is root may remove
rm -f "$out/heavy.o"
record python "$hz" python3 "$src/calls.py" "$seconds"
record messaging "$hz" perf bench sched messaging -l "$loops"
if command -v hackbench >/dev/null; then
  record hackbench "$hz" hackbench -g 4 -l "$messages"
fi
record openssl "$hz" openssl speed -seconds "$seconds" rsa2048
record inlined "$hz" "$out/inlined" "$seconds"
record signals "$hz" "$out/signals" "$turns"
record sigaltstack "$hz" "$out/signals" "$turns" altstack

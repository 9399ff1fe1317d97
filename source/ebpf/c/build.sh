#!/bin/sh
# Compiles the kernel's program for each machine, into a directory: clang-19, llvm-19, libbpf-dev. Run by go generate; a test compares the
# results with what is committed.
set -e
cd "$(dirname "$0")"
out=${1:-..}
for machine in amd64 arm64; do
  target=$machine
  [ $machine = arm64 ] || target=x86 # libbpf's name
  # Of the headers for user space of this machine, nothing differs that the program for another one has.
  clang-19 -target bpf -D__TARGET_ARCH_$target -mcpu=v3 -O2 -g -Wall -Wextra -Werror -Wno-unused-function -I"/usr/include/$(uname -m)-linux-gnu" \
    -I../../../runtime -fdebug-prefix-map="$PWD"=. -c unspool.bpf.c -o "$out/unspool_$machine.bpf.o"
  llvm-strip-19 -g "$out/unspool_$machine.bpf.o" # DWARF; BTF stays
done

#!/bin/sh
# Compiles the kernel's program: clang-19, llvm-19, libbpf-dev. Run by go generate; a test compares the result with what is
# committed.
set -e
cd "$(dirname "$0")"
out=${1:-../unspool.bpf.o}
clang-19 -target bpf -D__TARGET_ARCH_x86 -mcpu=v3 -O2 -g -Wall -Wextra -Werror -Wno-unused-function -I"/usr/include/$(uname -m)-linux-gnu" -I../../../runtime \
  -fdebug-prefix-map="$PWD"=. -c unspool.bpf.c -o "$out"
llvm-strip-19 -g "$out" # DWARF; BTF stays

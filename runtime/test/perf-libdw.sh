#!/bin/sh
# Builds a perf that is linked with libdw only, from Debian's linux-source-6.1, as DIR/perf: some minutes, and 2 GB below DIR.
#
#	perf-libdw.sh DIR
#
# It takes linux-source-6.1, libdw-dev, libelf-dev, flex, bison, gcc and make.
set -eu

[ $# = 1 ] || { echo "usage: perf-libdw.sh DIR" >&2; exit 2; }
mkdir -p "$1"
cd "$1"
tar -xf /usr/src/linux-source-6.1.tar.xz
nice -n 10 make -s -j2 -C linux-source-6.1/tools/perf WERROR=0 NO_LIBUNWIND=1 NO_LIBPERL=1 NO_LIBPYTHON=1 NO_SLANG=1 NO_LIBBPF=1 NO_JVMTI=1 \
	NO_GTK2=1 NO_LIBNUMA=1 NO_LIBAUDIT=1 NO_LIBCRYPTO=1 NO_SDT=1 NO_LIBBABELTRACE=1 NO_LIBCAP=1 NO_LIBTRACEEVENT=1 NO_LIBPFM4=1 NO_LZMA=1 \
	NO_LIBZSTD=1
mv linux-source-6.1/tools/perf/perf perf

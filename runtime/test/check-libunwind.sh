#!/bin/sh
# Runs libunwind's own check programs with Debian's libraries and with the drop-ins, and prints a table. Exits with 1 if
# one passes with Debian's and not with ours, unless it is listed below; and if one that is listed passes.
#
#	check-libunwind.sh DROPINS [HOST]
#
# DROPINS is the directory of libunwind.so.8 and libunwind-x86_64.so.8, or for HOST aarch64-linux-gnu libunwind-aarch64.so.8. Programs for HOST are
# cross-compiled, and run under qemu-user, which has no ptrace and no core files. The programs are built from Debian's source
# package, which apt-get fetches; $SOURCE names a tree where that has been done. On Debian 12, build-essential is enough:
# where libunwind8 is not installed, the libraries that the source makes are taken for Debian's.
set -eu

# Prints why a program may fail with the drop-ins.
known() {
	:
}

# These do not look at the libraries that are loaded.
left_out() {
	case $1 in
	test-static-link) echo "is linked statically" ;;
	run-check-namespace) echo "looks at the names that the libraries of the source tree export; TestABI does with ours" ;;
	esac
}

dropins=$(cd "$1" && pwd) host=${2:-}
installed=/usr/lib/${host:-x86_64-linux-gnu}
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
trap 'exit 1' INT TERM

# Fetches the source package that the installed library was made from, or the newest, by apt's first Debian mirror.
fetch() {
	. /etc/os-release
	mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 2>/dev/null | grep '/debian/*$' | head -n 1)
	mkdir -p "$tmp/apt/lists/partial" "$tmp/apt/cache/archives/partial" "$tmp/source"
	echo "deb-src [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] ${mirror:-http://deb.debian.org/debian} $VERSION_CODENAME main" >"$tmp/apt/list"
	set -- -qq -o Dir::Etc::sourcelist="$tmp/apt/list" -o Dir::Etc::sourceparts=/dev/null -o Dir::State::lists="$tmp/apt/lists" \
		-o Dir::Cache="$tmp/apt/cache" -o APT::Sandbox::User="$(id -un)"
	apt-get "$@" update
	version=$(dpkg-query -W -f '${source:Version}' libunwind8 2>/dev/null || true)
	(cd "$tmp/source" && apt-get "$@" source "libunwind${version:+=$version}")
	set -- "$tmp"/source/libunwind-*/
	source=$1
}

source=${SOURCE:-}
if [ -z "$source" ]; then
	fetch >"$tmp/log" 2>&1 || { cat "$tmp/log"; echo "check-libunwind: no source package of libunwind"; exit 1; }
	echo "building $(basename "$source")"
	(cd "$source" && ./configure -q ${host:+"--host=$host" "--build=x86_64-linux-gnu"} && make -s -j2 && make -s -j2 check TESTS=) >"$tmp/log" 2>&1 ||
		{ tail -n 40 "$tmp/log"; echo "check-libunwind: libunwind cannot be built"; exit 1; }
fi

# Debian's libraries, and those of the other two that the programs use.
stock=$installed others=
if [ ! -e $installed/libunwind-ptrace.so.0 ] || [ ! -e $installed/libunwind-coredump.so.0 ]; then
	stock=$source/src/.libs others=:$source/src/.libs
fi
echo "stock: $stock"

# Libtool's programs are scripts that set LD_LIBRARY_PATH: the real ones go into one directory, with the scripts that run them.
mkdir "$tmp/bin"
find "$source/tests" -maxdepth 1 -type f -perm -u+x -exec cp -t "$tmp/bin" {} +
find "$source/tests/.libs" -maxdepth 1 -type f -perm -u+x -exec cp -t "$tmp/bin" {} +
tests=$(printf 'include Makefile\nprint:\n\t@echo $(TESTS)\n' | make -s -C "$source/tests" -f - print)
[ -n "$tests" ] || { echo "check-libunwind: no list of programs"; exit 1; }

# Those for another machine become scripts that have QEMU run them.
if [ -n "$host" ]; then
	for f in "$tmp"/bin/*; do
		[ "$(head -c 4 "$f" | tail -c 3)" = ELF ] || continue
		mv "$f" "$f.elf"
		printf '#!/bin/sh\nexec qemu-%s -L /usr/%s -E LD_LIBRARY_PATH="$PROGRAM_LIBRARIES" "$0.elf" "$@"\n' "${host%%-*}" "$host" >"$f"
		chmod +x "$f"
	done
fi

# Runs one; 77 is automake's word for a program that cannot say.
run() {
	status=0
	libraries=LD_LIBRARY_PATH
	[ -z "$host" ] || libraries=PROGRAM_LIBRARIES
	(cd "$tmp/bin" && env "$1" "$libraries=$2" timeout -s KILL 120 "./$3") >"$tmp/out.$4" 2>&1 </dev/null || status=$?
	case $status in
	0) echo pass ;;
	77) echo skip ;;
	*) echo "exit $status" ;;
	esac
}

bad=0 passed=0 total=0
printf '%-32s %-10s %-10s %-10s\n' program stock drop-in strict
for t in $tests; do
	reason=$(left_out "$t")
	if [ -n "$reason" ]; then
		printf '%-32s %s\n' "$t" "left out: $reason"
		continue
	fi
	a=$(run UNSPOOL_STRICT=0 "$stock$others" "$t" stock)
	b=$(run UNSPOOL_STRICT=0 "$dropins$others" "$t" ours)
	c=$(run UNSPOOL_STRICT=1 "$dropins$others" "$t" strict)
	note= reason=$(known "$t")
	total=$((total + 1))
	if [ "$a" = pass ] && { [ "$b" != pass ] || [ "$c" != pass ]; }; then
		note=${reason:-FAILED}
		[ -n "$reason" ] || bad=1
	elif [ -n "$reason" ]; then
		note="LISTED, BUT PASSES" bad=1
	fi
	[ "$b" = pass ] && [ "$c" = pass ] && passed=$((passed + 1))
	printf '%-32s %-10s %-10s %-10s %s\n' "$t" "$a" "$b" "$c" "$note"
	if [ "$note" = FAILED ]; then
		tail -n 5 "$tmp/out.ours" "$tmp/out.strict"
	fi
done
echo "$passed of $total pass with the drop-ins"

# What a step of a walk of the own stack takes, in instructions: QEMU counts them. Two programs' difference is walks only.
if [ -n "$host" ]; then
	"$host-gcc" -O2 -I"$source/include" -o "$tmp/step_count" "$(dirname "$0")/testdata/step_count.c" "$source/src/.libs/libunwind.so" \
		"$source/src/.libs/libunwind-${host%%-*}.so"
	one=-singlestep # in QEMU before 8.1, and no more since 9.0
	if "qemu-${host%%-*}" -help 2>&1 | grep -q one-insn-per-tb; then
		one=-one-insn-per-tb
	fi
	instructions() {
		"qemu-${host%%-*}" $one -d exec,nochain -D /dev/stdout -L "/usr/$host" -E LD_LIBRARY_PATH="$1" "$tmp/step_count" "$2" | grep -c '^Trace' || :
	}
	steps=$("qemu-${host%%-*}" -L "/usr/$host" -E LD_LIBRARY_PATH="$dropins" "$tmp/step_count" 1)
	for libraries in "$stock$others" "$dropins"; do
		less=$(instructions "$libraries" 20) more=$(instructions "$libraries" 60)
		if [ "$less" -eq 0 ] || [ "$more" -le "$less" ]; then
			echo "check-libunwind: QEMU counts $less and $more instructions of 20 and 60 walks ($libraries)"
			exit 1
		fi
		echo "unw_step, with two unw_get_reg: $(((more - less) / 40 / steps)) instructions ($libraries)"
	done
fi
exit $bad

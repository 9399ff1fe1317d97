#!/bin/sh
# kernel.sh SUITE ARCH DIR: prints the path of the kernel for clouds of a suite of Debian, in DIR, where it puts it when it is not there yet.
# SUITE-16k is the suite's kernel with pages of 16 KiB, which is not one for clouds.
# It takes Debian's apt, whose own sources and lists are left alone.
set -eu
suite=$1 arch=$2 dir=$3/$1-$2
case $suite in
*-16k) suite=${suite%-16k} kind="$arch-16k" ;;
*) kind="cloud-$arch" ;;
esac
mkdir -p "$dir"
# Others may want it at the same time.
exec 9>"$dir/lock"
flock 9
# That of sid changes: six days after it came here, it is fetched again.
for image in "$dir"/vmlinuz-*; do
  if [ -f "$image" ] && { [ "$suite" != sid ] || [ -z "$(find "$image" -ctime +5)" ]; }; then echo "$image"; exit; fi
done
mkdir -p "$dir/lists/partial" "$dir/cache/archives/partial" "$dir/new"
# The mirror of this machine, but of another suite.
mirror=$(cat /etc/apt/sources.list /etc/apt/sources.list.d/* 2>/dev/null | awk '$1 == "deb" {for (i = 2; i <= NF; i++) if ($i ~ /:\//) {print $i; exit}} $1 == "URIs:" {print $2; exit}')
echo "deb [arch=$arch] ${mirror:-http://deb.debian.org/debian} $suite main" >"$dir/sources.list"
in_suite() {
  "$@" -o Dir::Etc::sourcelist="$dir/sources.list" -o Dir::Etc::sourceparts=- -o Dir::State::lists="$dir/lists" -o Dir::Cache="$dir/cache" \
    -o APT::Architecture="$arch" -o APT::Architectures="$arch" -o Dir::State::status=/dev/null -o APT::Sandbox::User=root
}
in_suite apt-get -qq update >&2
# Of newer suites, the image has a package of its own, linux-binary.
names=$(in_suite apt-cache search --names-only "^linux-(image|binary)-[0-9].*-$kind\$" | cut -d ' ' -f 1 | sort -V)
package=$(echo "$names" | awk '/^linux-binary/ {binary = $0} {last = $0} END {print binary ? binary : last}')
if [ -z "$package" ]; then echo "$suite has no kernel $kind" >&2; exit 1; fi
rm -rf "$dir/new"
mkdir "$dir/new"
(cd "$dir/new" && in_suite apt-get -qq download "$package" >&2 && dpkg -x ./*.deb . && rm ./*.deb)
# Of newer suites, the image is called vmlinuz, in the directory of its version.
image=$(find "$dir/new" -name 'vmlinuz*' -type f)
version=${image##*/vmlinuz}
[ -n "$version" ] || version=-$(basename "$(dirname "$image")")
rm -f "$dir"/vmlinuz-*
mv "$image" "$dir/vmlinuz$version"
rm -rf "$dir/new" "$dir/lists" "$dir/cache" "$dir/sources.list"
echo "$dir/vmlinuz$version"

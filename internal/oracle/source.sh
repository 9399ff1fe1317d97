#!/bin/sh
# source.sh SUITE - DIR PACKAGE PATTERN...: prints the path of a directory below DIR with those files of a source package of Debian whose paths match a
# pattern of tar's. Beside it is the package's description (.dsc). The archive itself is not kept.
set -eu
suite=$1 dir=$3/source-$1
package=$4
shift 4
mkdir -p "$dir"
# Others may want it at the same time.
exec 9>"$dir/lock"
flock 9
wanted="2 $package $*" # and how they are unpacked here: count it on when that changes
if [ "$(cat "$dir/done" 2>/dev/null)" = "$wanted" ]; then echo "$dir/files"; exit; fi
rm -rf "$dir/files" "$dir/done" "$dir/get" "$dir"/*.dsc
mkdir -p "$dir/get/lists/partial" "$dir/files"
mirror=$(cat /etc/apt/sources.list /etc/apt/sources.list.d/* 2>/dev/null | awk '$1 == "deb" {for (i = 2; i <= NF; i++) if ($i ~ /:\//) {print $i; exit}} $1 == "URIs:" {print $2; exit}')
echo "deb-src ${mirror:-http://deb.debian.org/debian} $suite main" >"$dir/get/list"
cd "$dir/get"
in_suite() {
  "$@" -o Dir::Etc::sourcelist="$dir/get/list" -o Dir::Etc::sourceparts=- -o Dir::State::lists="$dir/get/lists" -o Dir::Cache="$dir/get/cache" \
    -o APT::Sandbox::User="$(id -un)" </dev/null
}
in_suite apt-get -qq update >&2
in_suite apt-get -qq --download-only source "$package" >&2
mv ./*.dsc "$dir"
for archive in *.orig.tar.*; do
  case $archive in *.asc) continue ;; esac
  tar -x -C "$dir/files" -f "$archive" --no-same-owner --strip-components=1 --wildcards "$@"
done
cd /
rm -rf "$dir/get"
echo "$wanted" >"$dir/done"
echo "$dir/files"

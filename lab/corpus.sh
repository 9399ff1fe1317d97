#!/bin/sh
# corpus.sh ARCH DIR SUITE PACKAGE...: puts the ELF files of packages of a suite of Debian, and of all packages they depend on, below DIR/SUITE,
# a directory for each package, unless they are there already. It takes Debian's apt, whose own sources and lists are left alone.
set -eu
arch=$1 dir=$2/$3 suite=$3
shift 3
wanted=$(echo "$arch $*" | cksum)
if [ "$(cat "$dir/done" 2>/dev/null)" = "$wanted" ]; then exit; fi
mkdir -p "$dir/lists/partial" "$dir/cache/archives/partial"
# The mirror of this machine, but of another suite.
mirror=$(cat /etc/apt/sources.list /etc/apt/sources.list.d/* 2>/dev/null | awk '$1 == "deb" {for (i = 2; i <= NF; i++) if ($i ~ /:\//) {print $i; exit}} $1 == "URIs:" {print $2; exit}')
echo "deb [arch=$arch] ${mirror:-http://deb.debian.org/debian} $suite main" >"$dir/sources.list"
in_suite() {
  "$@" -o Dir::Etc::sourcelist="$dir/sources.list" -o Dir::Etc::sourceparts=- -o Dir::State::lists="$dir/lists" -o Dir::Cache="$dir/cache" \
    -o APT::Architecture="$arch" -o APT::Architectures="$arch" -o Dir::State::status=/dev/null -o APT::Sandbox::User=root
}
in_suite apt-get -qq update >&2
in_suite apt-get -qqy --no-install-recommends --download-only install "$@" >&2
for deb in "$dir"/cache/archives/*.deb; do
  name=$(basename "$deb" .deb)
  to=$dir/${name%%_*}
  rm -rf "$to"
  mkdir "$to"
  dpkg --fsys-tarfile "$deb" | tar -x -C "$to" --no-same-owner --delay-directory-restore
  # Links may lead out of the directory: only files are kept, and of those only ELF.
  find "$to" ! -type d ! -type f -delete
  find "$to" -type f | while IFS= read -r file; do
    [ "$(head -c 4 "$file" | od -An -tx1)" = " 7f 45 4c 46" ] || rm -f "$file"
  done
  find "$to" -depth -type d -empty -delete
  rm "$deb"
done
rm -rf "$dir/lists" "$dir/cache" "$dir/sources.list"
echo "$wanted" >"$dir/done"

#!/bin/sh
# sources.sh DIR PACKAGE...: puts the sources of packages of this machine's release of Debian below DIR, without Debian's patches, a directory for
# each package, unless they are there already. It takes Debian's apt, whose own sources and lists are left alone.
set -eu
dir=$1
shift
mkdir -p "$dir"
# Others may want them at the same time.
exec 9>"$dir/lock"
flock 9
. /etc/os-release
mirror=$(cat /etc/apt/sources.list /etc/apt/sources.list.d/* 2>/dev/null | awk '$1 == "deb" {for (i = 2; i <= NF; i++) if ($i ~ /:\//) {print $i; exit}} $1 == "URIs:" {print $2; exit}')
apt=$dir/apt
for package; do
  if [ -e "$dir/$package/done" ]; then continue; fi
  rm -rf "$dir/${package:?}"
  mkdir -p "$dir/$package" "$apt/lists/partial" "$apt/cache/archives/partial"
  set -- -qq -o Dir::Etc::sourcelist="$apt/list" -o Dir::Etc::sourceparts=- -o Dir::State::lists="$apt/lists" -o Dir::Cache="$apt/cache" -o APT::Sandbox::User=root
  if [ ! -e "$apt/list" ]; then
    echo "deb-src ${mirror:-http://deb.debian.org/debian} $VERSION_CODENAME main" >"$apt/list"
    apt-get "$@" update >&2
  fi
  (cd "$dir/$package" && apt-get "$@" --download-only source "$package" >&2 && dpkg-source --no-check --skip-patches -x ./*.dsc source >&2 && touch done)
done
rm -rf "$apt"

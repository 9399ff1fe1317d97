#!/bin/sh
# debian.sh SUITE ARCH DIR PACKAGE...: prints the path of a directory below DIR with the files of packages of a suite of Debian, and of all packages
# they depend on, as dpkg's database there says. It takes Debian's apt, whose own sources and lists are left alone.
set -eu
suite=$1 arch=$2 dir=$3/root-$1-$2
shift 3
mkdir -p "$dir"
# Others may want it at the same time.
exec 9>"$dir/lock"
flock 9
wanted="1 $*" # and how they are unpacked here: count it on when that changes
if [ "$(cat "$dir/done" 2>/dev/null)" = "$wanted" ]; then echo "$dir/root"; exit; fi
rm -rf "$dir/root" "$dir/done"
: >"$dir/status" # its directory has the lock
root=$dir/root
db=$root/var/lib/dpkg
mkdir -p "$dir/lists/partial" "$dir/cache/archives/partial" "$root/usr/bin" "$root/usr/sbin" "$root/usr/lib" "$root/usr/lib64" "$db/info" "$db/updates" "$root/var/log"
ln -s usr/bin usr/sbin usr/lib usr/lib64 "$root"
# The mirror of this machine, but of another suite.
mirror=$(cat /etc/apt/sources.list /etc/apt/sources.list.d/* 2>/dev/null | awk '$1 == "deb" {for (i = 2; i <= NF; i++) if ($i ~ /:\//) {print $i; exit}} $1 == "URIs:" {print $2; exit}')
echo "deb [arch=$arch] ${mirror:-http://deb.debian.org/debian} $suite main" >"$dir/sources.list"
in_suite() {
  "$@" -o Dir::Etc::sourcelist="$dir/sources.list" -o Dir::Etc::sourceparts=- -o Dir::State::lists="$dir/lists" -o Dir::Cache="$dir/cache" \
    -o APT::Architecture="$arch" -o APT::Architectures="$arch" -o Dir::State::status="$dir/status" -o APT::Sandbox::User=root </dev/null
}
in_suite apt-get -qq update >&2
in_suite apt-get -qqy --no-install-recommends --download-only install "$@" >&2
for deb in "$dir"/cache/archives/*.deb; do
  # Nobody reads documents there, and one language is enough.
  dpkg --fsys-tarfile "$deb" | tar -x -C "$root" --no-same-owner --keep-directory-symlink --wildcards \
    --exclude './usr/share/doc/*' --exclude './usr/share/man/*' --exclude './usr/share/locale/*' --exclude './usr/share/i18n/*' --exclude '*/gconv/*'
  name=$(dpkg-deb -f "$deb" Package)
  [ "$(dpkg-deb -f "$deb" Multi-Arch)" != same ] || name=$name:$arch
  dpkg --fsys-tarfile "$deb" | tar -t | sed 's,^\.,,; s,/$,,; s,^$,/.,' >"$db/info/$name.list"
  dpkg-deb -f "$deb" | awk '{print} /^Package:/ {print "Status: install ok installed"}' >>"$db/status"
  echo >>"$db/status"
done
rm -rf "$dir/lists" "$dir/cache" "$dir/sources.list" "$dir/status" "$dir"/lock-frontend
echo "$wanted" >"$dir/done"
echo "$root"

#!/usr/bin/env bash
# Brings rdma-core's own tests, which are in Python (pyverbs), to target/pyverbs, as the
# distribution packages them. Packages are downloaded and unpacked, not installed. Does nothing
# where that was done before. Exits with 77, and says why, where they cannot be had.
#
# The tests name vendors' libraries, whose package comes along. The libraries of rdma-core itself
# are ours: `remora run` has the program find them.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/toolchain.sh
source scripts/toolchain.sh

folder=$(target_dir)/pyverbs
packages=(python3-pyverbs ibverbs-providers)

cannot() {
    printf "rdma-core's tests in Python cannot be had here: %s\n" "$1" >&2
    exit 77
}

have apt-get || cannot "there is no apt-get"
# The modules are built for the distribution's Python.
[[ -x /usr/bin/python3 ]] || cannot "/usr/bin/python3 is missing (Debian: python3)"
have ip || cannot "ip is missing, which the tests call (Debian: iproute2)"
[[ -n $(apt_candidate python3-pyverbs) ]] || apt_update
version=$(apt_candidate python3-pyverbs)
[[ -n $version ]] || cannot "this distribution has no package python3-pyverbs"
[[ $(cat "$folder/version" 2>/dev/null) == "$version" ]] && exit 0

# The library of the Python that they are built for.
python=$(LC_ALL=C apt-cache depends python3-pyverbs | sed -n 's/^ *Depends: \(libpython3.*\)/\1/p')
rm -rf "$folder"
mkdir -p "$folder/packages" "$folder/root" "$folder/suite"
options=(-qq)
# As root apt would go on as a user that may not write here.
((EUID != 0)) || options+=(-o APT::Sandbox::User=root)
(cd "$folder/packages" && apt-get "${options[@]}" download "${packages[@]}" "$python") ||
    cannot "its packages cannot be downloaded (apt-get download)"
for package in "$folder"/packages/*.deb; do dpkg-deb -x "$package" "$folder/root"; done
rm -r "$folder/packages"
cp -r "$folder/root/usr/share/doc/rdma-core/tests" "$folder/suite/tests"
find "$folder/suite/tests" -name '*.gz' -exec gunzip {} +
mkdir -p "$folder/libraries"
find "$folder/root" \( -name 'libmlx5.so.*' -o -name 'libefa.so.*' -o -name 'libpython3*.so.*' \) \
    -exec cp -P {} "$folder/libraries" \;
printf '%s\n' "$version" >"$folder/version"

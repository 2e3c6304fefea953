#!/usr/bin/env bash
# Makes the virtual machine whose kernel is the tests' real RoCE v2 peer: Debian's kernel with its
# soft-RoCE driver (rdma_rxe), the RDMA programs of the distribution, and two programs of the tests
# (tests/peer). `./ci.sh rxe` runs the tests with it (docs/testing.md). Prints its folder, which
# has vmlinuz, initrd, and verbs_peer for the host's side.
#
#   scripts/rxe-vm.sh           makes the machine in target/rxe-vm, unless it is there
#   scripts/rxe-vm.sh with PROGRAM
#                               prints a folder whose ramdisk has PROGRAM, too, and the libraries of
#                               this system that it needs; tests/peer/machine_init runs it
#   scripts/rxe-vm.sh setup     only installs QEMU and a C compiler (for ci.sh's stage setup)
#
# It needs the network once, and root only for what `setup` installs: packages are downloaded and
# unpacked, not installed. Exits with 77, and says why, where the machine cannot be made.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/toolchain.sh
source scripts/toolchain.sh

# What the machine has inside. The kernel's package is what `linux-image-amd64` depends on.
tools=(perftest ibverbs-utils rdmacm-utils iproute2 ibverbs-providers)
headers=(libibverbs-dev librdmacm-dev)
programs=(
    {,usr/}{,s}bin/{rdma,ip}
    usr/bin/ibv_devices usr/bin/ibv_devinfo usr/bin/ibv_{rc,uc,ud,srq}_pingpong
    usr/bin/ib_{send,write,read,atomic}_{lat,bw}
    usr/bin/rping usr/bin/ucmatose usr/bin/udaddy usr/bin/rstream usr/bin/rdma_{client,server}
)
modules=(crc32_generic crc32-pclmul crc32c_generic virtio_pci virtio_net ib_uverbs rdma_ucm
    rdma_rxe)

cannot() {
    printf 'no soft-RoCE virtual machine here: %s\n' "$1" >&2
    exit 77
}

make_setup() {
    [[ $(uname -m) == x86_64 ]] && have apt-get || return 0 # the stage says so
    need_command qemu-system-x86_64 "a virtual machine, whose kernel is the real RoCE peer" \
        qemu-system-x86
    need_command ip "network namespaces, to reach the virtual machine" iproute2
    need_command objdump "to see which libraries a program needs" binutils
    need_command xz "to unpack the kernel's modules" xz-utils
    need_command cc "a C compiler, for the programs inside" gcc libc6-dev
    [[ -n $(apt_candidate linux-image-amd64) ]] || apt_update
}

# --- packages ----------------------------------------------------------------------------------

# The newest kernel's package: linux-image-amd64 depends on it.
kernel_package() {
    LC_ALL=C apt-cache depends linux-image-amd64 2>/dev/null |
        sed -n 's/^ *Depends: \(linux-image-[0-9].*\)/\1/p' | head -n1
}

# The libraries that the tools need, and those that these need.
library_packages() {
    LC_ALL=C apt-cache depends --recurse --no-recommends --no-suggests --no-conflicts \
        --no-breaks --no-replaces --no-enhances "${tools[@]}" 2>/dev/null |
        grep -E '^z?lib[a-z0-9.+-]*$' | grep -vE '^lib(pam|newt|slang|readline|semanage|perl)' |
        sort -u
}

# NAME=VERSION of those of the packages that apt knows.
versions() {
    LC_ALL=C apt-cache policy "$@" 2>/dev/null | sed -nE \
        -e 's/^([^ ]+):$/\1/;t keep' -e 's/^ *Candidate: *([0-9][^ ]*)$/\1/;t show' -e d \
        -e ':keep;h;d' -e ':show;H;x;s/\n/=/p'
}

download() {
    local options=(-qq)
    # As root apt would go on as a user that may not write here.
    ((EUID != 0)) || options+=(-o APT::Sandbox::User=root)
    apt-get "${options[@]}" download "$@"
}

# --- the base: kernel, modules, programs -------------------------------------------------------

# needs FILE: the shared libraries that it names.
needs() { objdump -p "$1" 2>/dev/null | sed -n 's/^ *NEEDED *//p'; }

# add_libraries ROOT SYSROOT: copies the libraries that the programs in ROOT need, and so on.
add_libraries() {
    local root=$1 sysroot=$2 library found added=1
    while ((added)); do
        added=0
        while read -r library; do
            [[ ! -e $root/lib/$library ]] || continue
            found=$(find "$sysroot" -name "$library" \( -type f -o -type l \) -print -quit)
            [[ -n $found ]] || fail "no package brought $library"
            cp -L "$found" "$root/lib/$library"
            added=1
        done < <(find "$root/bin" "$root/lib" -type f -perm -u+r | while read -r file; do
            needs "$file"
        done | sort -u)
    done
}

# add_module ROOT SYSROOT NAME: copies a kernel module, after those it depends on, and notes the
# order. A module without a file is part of the kernel.
add_module() {
    local root=$1 sysroot=$2 name=$3 file depends other
    file=$(find "$sysroot" -name "${name//[-_]/[-_]}.ko*" -type f -print -quit)
    [[ -n $file ]] || return 0
    local here=$root/modules/${name//-/_}.ko
    [[ ! -e $here ]] || return 0
    case $file in
        *.xz) xz -dc "$file" >"$here" ;;
        *.zst) zstd -qdc "$file" >"$here" ;;
        *) cp "$file" "$here" ;;
    esac
    depends=$(tr '\0' '\n' <"$here" | sed -n 's/^depends=//p' | tr ',' '\n')
    for other in $depends; do add_module "$root" "$sysroot" "$other"; done
    basename "$here" >>"$root/modules/order"
}

# make_base FOLDER PACKAGE...: downloads the packages, and makes kernel and ramdisk of them.
make_base() {
    local base=$1 root sysroot name
    shift
    root=$base/root sysroot=$base/sysroot
    mkdir -p "$base/packages" "$sysroot" "$root"/{bin,lib,dev,proc,sys,etc,run,modules}
    printf 'fetching %d packages\n' "$#" >&2
    (cd "$base/packages" && download "$@") >&2 || {
        if [[ -z ${apt_is_updated:-} ]] && ((EUID == 0)); then apt_update >&2; fi
        (cd "$base/packages" && download "$@") >&2 || cannot "apt-get download failed"
    }
    for name in "$base"/packages/*.deb; do dpkg -x "$name" "$sysroot"; done
    rm -r "$base/packages"
    cp "$sysroot"/boot/vmlinuz-* "$base/vmlinuz"
    cp "$(find "$sysroot" -path '*bin/busybox' -type f -print -quit)" "$root/bin/busybox"
    for name in $("$root/bin/busybox" --list); do
        [[ $name == busybox ]] || ln -s busybox "$root/bin/$name"
    done
    for name in "${programs[@]}"; do
        [[ ! -f $sysroot/$name ]] || cp -L --remove-destination "$sysroot/$name" "$root/bin/"
    done
    # Where the C library looks, and where libibverbs looks for its drivers.
    ln -s lib "$root/lib64"
    local drivers=usr/lib/x86_64-linux-gnu/libibverbs
    mkdir -p "$root/$drivers" "$root/etc/libibverbs.d"
    cp "$sysroot/$drivers"/librxe-rdmav*.so "$root/$drivers/"
    echo "driver rxe" >"$root/etc/libibverbs.d/rxe.driver"
    # The C library loads it by name when a thread is cancelled.
    cp "$(find "$sysroot" -name libgcc_s.so.1 -print -quit)" "$root/lib/"
    add_libraries "$root" "$sysroot"
    cp "$(find "$sysroot" -name 'ld-linux-x86-64.so.2' -print -quit)" "$root/lib/"
    for name in "${modules[@]}"; do add_module "$root" "$sysroot" "$name"; done
    [[ -e $root/modules/rdma_rxe.ko ]] || cannot "the kernel has no rdma_rxe"
    archive "$root" "$root/bin/busybox" >"$base/initrd"
    # Headers and libraries stay: the tests' own programs are built with them.
    rm -rf "${sysroot:?}"/{,usr/}lib/modules "${sysroot:?}/boot"
}

# archive FOLDER BUSYBOX: writes the folder as the archive that the kernel unpacks. Compression
# would cost more time than it saves.
archive() {
    (cd "$1" && find . | LC_ALL=C sort | "$2" cpio -o -H newc 2>/dev/null)
}

# --- the rest: our own programs ----------------------------------------------------------------

make_image() {
    local image=$1 base=$2 sysroot=$2/sysroot root=$1/root library
    mkdir -p "$root/bin"
    library=$sysroot/usr/lib/x86_64-linux-gnu
    cc -O2 -g -Wall -Wextra -Werror -o "$root/bin/agent" tests/peer/agent.c
    cc -O2 -g -Wall -Wextra -Werror -I "$sysroot/usr/include" -o "$root/bin/verbs_peer" \
        tests/peer/verbs_peer.c -L "$library" -Wl,-rpath-link,"$library" -lrdmacm -libverbs
    install -m 755 tests/peer/init "$root/init"
    cp "$base/initrd" "$image/initrd"
    archive "$root" "$base/root/bin/busybox" >>"$image/initrd"
    cp "$root/bin/verbs_peer" "$image/"
    ln -s "../$(basename "$base")/vmlinuz" "$image/vmlinuz"
}

# make_with_program FOLDER IMAGE BASE PROGRAM: the machine of IMAGE, with another program.
make_with_program() {
    local folder=$1 image=$2 base=$3 program=$4 root=$1/root library
    mkdir -p "$root/program"
    strip -o "$root/program/program" "$program"
    for library in $(ldd "$program" | grep -o '/[^ ]*'); do cp -L "$library" "$root/program/"; done
    install -m 755 tests/peer/machine_init "$root/machine_init"
    cp "$image/initrd" "$folder/initrd"
    archive "$root" "$base/root/bin/busybox" >>"$folder/initrd"
    ln -s "../$(basename "$base")/vmlinuz" "$folder/vmlinuz"
}

# once FOLDER COMMAND...: makes the folder with the command, under another name until it is whole.
once() {
    local folder=$1 command=$2
    shift 2
    [[ ! -d $folder ]] || return 0
    rm -rf "$folder.new"
    mkdir -p "$folder.new"
    "$command" "$folder.new" "$@"
    mv "$folder.new" "$folder"
}

# older WHAT: the newest folder of this kind that an earlier run has made.
older() { find "$place" -maxdepth 1 -type d -name "$1-????????????" -printf '%T@ %p\n' |
    sort -rn | sed -n '1s/^[^ ]* //p'; }

hash_of() { sha256sum | cut -c1-12; }

if [[ ${1:-} == setup ]]; then
    make_setup
    exit
fi

[[ $(uname -m) == x86_64 ]] || cannot "it is made of x86-64 packages, and this is $(uname -m)"
have qemu-system-x86_64 || cannot "qemu-system-x86_64 is missing (./ci.sh setup)"
have apt-get || cannot "it is made of Debian packages, and there is no apt here"
for tool in cc objdump ip xz; do have "$tool" || cannot "$tool is missing (./ci.sh setup)"; done

place=$(target_dir)/rxe-vm
mkdir -p "$place"
exec 9>"$place/lock"
flock 9 # two runs at a time would make the same folders

kernel=$(kernel_package)
if [[ -n $kernel ]]; then
    mapfile -t libraries < <(library_packages)
    mapfile -t packages < <(versions "$kernel" busybox-static "${tools[@]}" "${headers[@]}" \
        "${libraries[@]}")
    ((${#packages[@]} > 10)) || cannot "apt does not know the packages"
    base=$place/base-$( (printf '%s\n' "${packages[@]}" && cat scripts/rxe-vm.sh) | hash_of)
    once "$base" make_base "${packages[@]}"
else
    base=$(older base)
    [[ -n $base ]] || cannot "apt does not know linux-image-amd64 (not Debian, or no lists)"
    printf 'apt does not know linux-image-amd64; going on with %s\n' "$base" >&2
fi
image=$place/image-$( (echo "$base" && cat scripts/rxe-vm.sh tests/peer/*) | hash_of)
once "$image" make_image "$base"
kept=(! -path "$base" ! -path "$image")
if [[ ${1:-} == with ]]; then
    program=$(realpath "${2:?which program}")
    folder=$place/program-$( (echo "$image" && cat "$program") | hash_of)
    once "$folder" make_with_program "$image" "$base" "$program"
    kept+=(! -path "$folder")
    image=$folder
fi
# Folders made of older packages or sources are not used any more.
find "$place" -mindepth 1 -maxdepth 1 -type d "${kept[@]}" -exec rm -rf {} +
printf '%s\n' "$image"

# SPDX-License-Identifier: Apache-2.0
# A bare Debian or Ubuntu for chroot, for scripts in bash that source this file. Needs root, debootstrap and the package
# archive that this machine uses. After bare_system, the system is in $system; `inside COMMAND` runs a command in it,
# and clean_system removes it.
#
# A system takes minutes to make. Therefore it is stored in $CTRT_SYSTEM_CACHE (default ~/.cache/ctrt), one file for
# each release and list of packages, and made again after a week, so that it has the archive's updates.

# Mounts are made in a mount namespace of the script, so that none is left behind, however the script ends.
[ -n "${CTRT_PRIVATE_MOUNTS:-}" ] || ! unshare -m true 2>/dev/null ||
    CTRT_PRIVATE_MOUNTS=yes exec unshare -m bash "$0" "$@"

# bare_system RELEASE LOG PACKAGE...: makes $system, with the packages and their dependencies. Returns 1 and sets
# $system_error if that is not possible here. $SYSTEM_MIRROR is the package archive of a release of another
# distribution, such as http://archive.ubuntu.com/ubuntu, which needs the package
# ubuntu-archive-keyring. With SYSTEM_STORE_ONLY it makes only what is stored.
bare_system() {
    release=$1
    system_log=$2
    shift 2
    system_error=
    [ "$(id -u)" -eq 0 ] || { system_error="needs root for chroot"; return 1; }
    command -v debootstrap >/dev/null || { system_error="needs debootstrap"; return 1; }
    [ -n "${CTRT_PRIVATE_MOUNTS:-}" ] || { system_error="this machine does not permit mounts"; return 1; }
    system_cache=${CTRT_SYSTEM_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/ctrt}
    content=$(printf '%s\n' "$@" | sort | cksum | cut -d ' ' -f 1)
    stored=$system_cache/system-$release-$(dpkg --print-architecture)-$content.tar
    [ -z "$(find "$stored" -mtime +7 2>/dev/null)" ] || rm -f "$stored"
    [ -z "${SYSTEM_STORE_ONLY:-}" ] || [ ! -s "$stored" ] || return 0
    system=$(mktemp -d "${TMPDIR:-/var/tmp}/ctrt-system-XXXXXX")
    chmod 755 "$system"
    if [ -s "$stored" ] && tar -C "$system" -xf "$stored" 2>"$system_log"; then
        mount_system
        return
    fi

    . /etc/os-release
    mirror=${SYSTEM_MIRROR:-$(cat /etc/apt/sources.list /etc/apt/sources.list.d/*.sources \
        /etc/apt/sources.list.d/*.list 2>/dev/null |
        sed -n 's/^URIs: *\([^ ]*\).*/\1/p; s/^deb \(\[[^]]*\] \)\?\([^ ]*\) .*/\2/p' | grep -v security |
        grep -E "/${ID:-debian}/?$" | head -n 1)}
    options=--components=main
    rules=
    case $mirror in
    */ubuntu*)
        options="--components=main,universe --keyring=/usr/share/keyrings/ubuntu-archive-keyring.gpg"
        [ -e "/usr/share/debootstrap/scripts/$release" ] || rules=gutsy ;;      # what all releases are links to
    esac
    if ! debootstrap --variant=minbase --include=ca-certificates $options "$release" "$system" "$mirror" \
        $rules >"$system_log" 2>&1
    then
        system_error="debootstrap of $release failed: $(tail -n 1 "$system_log")"
        return 1
    fi
    # The machine's settings for the package archive, so that the bare system reaches what this one reaches.
    cp -L /etc/resolv.conf /etc/hosts "$system/etc/" 2>/dev/null
    for settings in $(grep -l '^Acquire' /etc/apt/apt.conf.d/* 2>/dev/null); do
        dpkg -S "$settings" >/dev/null 2>&1 || cp "$settings" "$system/etc/apt/apt.conf.d/"
    done
    [ ! -f /etc/ssl/certs/ca-certificates.crt ] ||
        cp -L /etc/ssl/certs/ca-certificates.crt "$system/etc/ssl/certs/ca-certificates.crt"
    mount_system || return 1
    if ! { inside apt-get -qq update && inside apt-get -y -qq --no-install-recommends \
        -o Dpkg::Options::=--force-unsafe-io install "$@" && inside apt-get clean; } >"$system_log" 2>&1
    then
        system_error="installing $* in $release failed: $(tail -n 1 "$system_log")"
        return 1
    fi
    # Under another name at first, because another process may store or read the same system.
    compress='gzip -1'
    ! command -v zstd >/dev/null || compress='zstd -q -1'
    mkdir -p "$system_cache" && tar -C "$system" --one-file-system -I "$compress" -cf "$stored.$$" . &&
        mv "$stored.$$" "$stored" || rm -f "$stored.$$"
}

mount_system() {
    mount -t proc proc "$system/proc" && mount --rbind /sys "$system/sys" && mount --rbind /dev "$system/dev" || {
        system_error="this machine does not permit mounts"
        return 1
    }
}

inside() {
    env -i ${http_proxy:+http_proxy="$http_proxy"} ${https_proxy:+https_proxy="$https_proxy"} HOME=/root \
        PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 TERM=dumb \
        DEBIAN_FRONTEND=noninteractive chroot "$system" "$@" </dev/null
}

clean_system() {
    [ -d "${system:-}" ] || return 0
    for folder in dev sys proc; do umount -l "$system/$folder" 2>/dev/null || true; done
    rm -rf --one-file-system "$system"
}

#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Checks that the library passes every new descriptor through the functions of core/base/descriptor.h, so that none is
# 0, 1 or 2. Functions of the C library that open and close a descriptor by themselves (scandir, dlopen) are allowed.
srcdir=${srcdir:-$(cd "$(dirname "$0")/.." && pwd)}
. "$srcdir/tests/lib.sh"
cd "$srcdir" || exit 1

work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT

# violations FOLDER...: prints the lines that create a descriptor outside of those functions. `open(&` and `open(device`
# call functions of tables.
violations() {
    calls='open|openat|creat|socket|socketpair|accept|accept4|pipe|pipe2|memfd_create|epoll_create|epoll_create1'
    calls="$calls|eventfd|timerfd_create|signalfd|inotify_init|inotify_init1|dup|fopen|fopen64|freopen|opendir|tmpfile"
    calls="$calls|mkstemp|mkostemp|shm_open|popen|userfaultfd|fanotify_init"
    numbers='SYS_(pidfd_open|pidfd_getfd|perf_event_open|io_uring_setup)'
    safe='fds?_above_stdio|CTRT_PLUGIN_DESCRIPTOR|F_DUPFD_CLOEXEC, (3|STDERR_FILENO [+] 1)|[^a-z_]open[(](&|device)'
    find "$@" -type f \( -name '*.c' -o -name '*.h' \) ! -path 'core/base/descriptor.c' | sort |
        xargs grep -HnE '[(]|F_DUPFD' | grep -vE '^[^:]*:[0-9]+: *[*]' | sed 's@/[*].*@@' |
        grep -E "(^|[^A-Za-z0-9_>.\"])($calls)[(]|F_DUPFD|$numbers" | grep -vE "$safe"
}
check "every descriptor of the library is above 2" "$(violations core nn share parallel data plugins backends)"
mkdir -p "$work/core"
cat >"$work/core/bad.c" <<'END'
int a(void) { return open("/", 0); }
int b(void) { return fd_above_stdio(open("/", 0)); }
int c(int fd) { return fcntl(fd, F_DUPFD_CLOEXEC, 0); }
void d(int e[2]) { if (socketpair(1, 1, 0, e) != 0) return; }
int f(int fd) { return (int)syscall(SYS_pidfd_open, fd, 0); }
END
case $(cd "$work" && violations core | cut -d: -f2 | tr '\n' ' ') in
    '1 3 4 5 ') ok "calls that bypass them are found" ;;
    *) not_ok "calls that bypass them are found" "$(cd "$work" && violations core)" ;;
esac
finish

/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cuda/host/diagnose.c: diagnoses why there is no CUDA device, with messages that name the remedy.
 *
 * The driver only returns an error number, and not always the most specific one. The cause is derived from the files of
 * its kernel module. Each message begins with a keyword in brackets for programs; doc/cuda.md lists the keywords. The
 * files are used only to explain a failure of the driver; their contents never make a device unavailable. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "discovery.h"
#include "plugins/common/file.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <limits.h>
#include <link.h>
#include <pwd.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

const char *cuda_root = "";

/* ---- files ---- */

/* Writes cuda_root and the formatted path. Returns false if the path is too long. */
static bool place(char path[PATH_MAX], const char *format, ...) CTRT_PRINTF(2, 3);
static bool place(char path[PATH_MAX], const char *format, ...)
{
    const int used = snprintf(path, PATH_MAX, "%s", cuda_root);
    va_list arguments;
    va_start(arguments, format);
    const int length = vsnprintf(path + used, (size_t)(PATH_MAX - used), format, arguments);
    va_end(arguments);
    return length < PATH_MAX - used;
}

bool cuda_read_file(const char *path, char *text, size_t bytes)
{
    char full[PATH_MAX];
    const int fd = place(full, "%s", path) ? CTRT_PLUGIN_DESCRIPTOR(cuda_host, open(full, O_RDONLY | O_CLOEXEC)) : -1;
    const size_t got = file_read(fd, text, bytes);
    if (fd >= 0)
        close(fd);
    return got > 0;
}

/* Opens a folder below cuda_root. Returns NULL if it cannot be read. */
static DIR *open_folder(const char *path)
{
    char full[PATH_MAX];
    const int fd = place(full, "%s", path)
                       ? CTRT_PLUGIN_DESCRIPTOR(cuda_host, open(full, O_RDONLY | O_DIRECTORY | O_CLOEXEC)) : -1;
    DIR *folder = fd >= 0 ? fdopendir(fd) : NULL;
    if (folder == NULL && fd >= 0)
        close(fd);
    return folder;
}

static bool exists(const char *path)
{
    char full[PATH_MAX];
    return place(full, "%s", path) && access(full, F_OK) == 0;
}

/* The state of the driver's kernel module and of the PCI bus. */
struct machine {
    bool module;                                /* the kernel module is loaded */
    char version[32];                           /* "550.54.15"; "": unknown */
    int gpus;                                   /* number of GPUs that the module drives */
    int minors[CUDA_DEVICES];                   /* N of each GPU's /dev/nvidiaN; -1: unknown */
    int cards;                                  /* number of NVIDIA GPUs on the PCI bus; -1: the bus is not visible */
    char card[32], card_driver[32];             /* address of the first and the kernel driver bound to it; "": none */
    bool container, windows;                    /* running in a container; under WSL */
};

/* Finds the first word that is a version: digits with at least one dot. */
static void find_version(char version[32], const char *text)
{
    for (const char *at = text; *at != '\0' && *at != '\n';) {
        const size_t length = strspn(at, "0123456789.");
        if (length > 2 && length < 32 && memchr(at, '.', length) != NULL && (at == text || at[-1] == ' ')) {
            memcpy(version, at, length);
            version[length] = '\0';
            return;
        }
        at += length > 0 ? length : 1;
    }
}

static void look_at_module(struct machine *m)
{
    char text[512];
    m->module = exists("/proc/driver/nvidia/version") || exists("/sys/module/nvidia");
    if (cuda_read_file("/proc/driver/nvidia/version", text, sizeof text))
        find_version(m->version, text);
    if (m->version[0] == '\0' && cuda_read_file("/sys/module/nvidia/version", text, sizeof text))
        find_version(m->version, text);
    DIR *folder = open_folder("/proc/driver/nvidia/gpus");
    for (struct dirent *entry; folder != NULL && m->gpus < CUDA_DEVICES && (entry = readdir(folder)) != NULL;) {
        char file[300];
        if (entry->d_name[0] == '.')
            continue;
        snprintf(file, sizeof file, "/proc/driver/nvidia/gpus/%s/information", entry->d_name);
        const char *minor = cuda_read_file(file, text, sizeof text) ? strstr(text, "Device Minor:") : NULL;
        m->minors[m->gpus++] = minor != NULL ? atoi(minor + strlen("Device Minor:")) : -1;
    }
    if (folder != NULL)
        closedir(folder);
}

/* Counts NVIDIA's (vendor 0x10de) display controllers (class 0x03). */
static void look_at_bus(struct machine *m)
{
    char path[PATH_MAX], file[300], text[64];
    DIR *folder = open_folder("/sys/bus/pci/devices");
    if (folder == NULL) {
        m->cards = -1;
        return;
    }
    for (struct dirent *entry; (entry = readdir(folder)) != NULL;) {
        snprintf(file, sizeof file, "/sys/bus/pci/devices/%s/vendor", entry->d_name);
        if (entry->d_name[0] == '.' || !cuda_read_file(file, text, sizeof text) || strncmp(text, "0x10de", 6) != 0)
            continue;
        snprintf(file, sizeof file, "/sys/bus/pci/devices/%s/class", entry->d_name);
        if (!cuda_read_file(file, text, sizeof text) || strncmp(text, "0x03", 4) != 0)
            continue;
        if (m->cards++ > 0 && strcmp(entry->d_name, m->card) > 0)
            continue;
        char target[PATH_MAX];
        snprintf(m->card, sizeof m->card, "%.31s", entry->d_name);
        const ssize_t length = place(path, "/sys/bus/pci/devices/%s/driver", m->card)
                                   ? readlink(path, target, sizeof target - 1)
                                   : -1;
        target[length > 0 ? length : 0] = '\0';
        const char *slash = strrchr(target, '/');
        snprintf(m->card_driver, sizeof m->card_driver, "%.31s", slash != NULL ? slash + 1 : target);
    }
    closedir(folder);
}

static void look_around(struct machine *m)
{
    char text[4096];
    *m = (struct machine){ .windows = exists("/dev/dxg") };
    look_at_module(m);
    look_at_bus(m);
    m->container = exists("/.dockerenv") || exists("/run/.containerenv") || getenv("KUBERNETES_SERVICE_HOST") != NULL;
    if (!m->container && cuda_read_file("/proc/self/cgroup", text, sizeof text))
        m->container = strstr(text, "docker") != NULL || strstr(text, "kubepods") != NULL
                       || strstr(text, "/lxc") != NULL;
}

/* ---- device nodes ---- */

/* Returns 0 if the process has the permission to open a device node, else an errno value. Does not open the node,
 * because opening it initialises an idle GPU, which can take a second. */
static int look_at_node(const char *path)
{
    char full[PATH_MAX];
    if (!place(full, "%s", path))
        return ENOENT;
    return faccessat(AT_FDCWD, full, R_OK | W_OK, AT_EACCESS) == 0 ? 0 : errno;
}

/* Like look_at_node, but opens the node, as the driver does. */
static int open_node(const char *path)
{
    char full[PATH_MAX];
    if (!place(full, "%s", path))
        return ENOENT;
    const int fd = CTRT_PLUGIN_DESCRIPTOR(cuda_host, open(full, O_RDWR | O_CLOEXEC | O_NONBLOCK));
    if (fd < 0)
        return errno;
    close(fd);
    return 0;
}

static const char *user_name(char text[64], uid_t id)
{
    struct passwd entry, *found = NULL;
    char buffer[1024];
    if (getpwuid_r(id, &entry, buffer, sizeof buffer, &found) == 0 && found != NULL)
        snprintf(text, 64, "%.50s", found->pw_name);
    else
        snprintf(text, 64, "%u", (unsigned)id);
    return text;
}

static const char *group_name(char text[64], gid_t id)
{
    struct group entry, *found = NULL;
    char buffer[4096];
    if (getgrgid_r(id, &entry, buffer, sizeof buffer, &found) == 0 && found != NULL)
        snprintf(text, 64, "%.50s", found->gr_name);
    else
        snprintf(text, 64, "%u", (unsigned)id);
    return text;
}

static void describe_denied(char *text, size_t bytes, const char *path, int error)
{
    char full[PATH_MAX], owner[64], group[64], me[64];
    struct stat facts;
    if (error == EPERM) {
        snprintf(text, bytes,
                 "[no-permission] %s may not be opened, whatever its permissions: a control group denies devices to "
                 "this process (in containers: start with the NVIDIA Container Toolkit, or --device %s)", path, path);
        return;
    }
    if (!place(full, "%s", path) || stat(full, &facts) != 0) {
        snprintf(text, bytes, "[no-permission] %s may not be opened by this process", path);
        return;
    }
    const bool by_group = (facts.st_mode & 060) == 060;
    snprintf(text, bytes, "[no-permission] %s belongs to %s:%s with mode %04o, so user %s may not open it: %s%s%s",
             path, user_name(owner, facts.st_uid), group_name(group, facts.st_gid), (unsigned)facts.st_mode & 07777,
             user_name(me, geteuid()), by_group ? "add the user to group " : "",
             by_group ? group : "ask the administrator for permission (NVreg_DeviceFileMode of the module)",
             by_group ? " and log in again" : "");
}

/* Checks the device nodes with `try_node`. If one is missing or not accessible, writes that to `text` and returns
 * true. */
static bool describe_nodes(char *text, size_t bytes, const struct machine *m, int (*try_node)(const char *path))
{
    char nodes[CUDA_DEVICES + 2][32];
    int count = 0, numbered = 0, usable = 0, worst = 0;
    const char *worst_node = "/dev/nvidia0";
    snprintf(nodes[count++], sizeof nodes[0], "/dev/nvidiactl");
    snprintf(nodes[count++], sizeof nodes[0], "/dev/nvidia-uvm");
    for (int i = 0; i < m->gpus; i++)
        if (m->minors[i] >= 0)
            snprintf(nodes[count++], sizeof nodes[0], "/dev/nvidia%d", m->minors[i]);
    if (count == 2)
        snprintf(nodes[count++], sizeof nodes[0], "/dev/nvidia0");
    for (int i = 0; i < count; i++) {
        const int error = try_node(nodes[i]);
        const bool gpu = i >= 2;
        numbered += gpu;
        usable += gpu && error == 0;
        if (error == 0)
            continue;
        if (gpu) {                              /* one usable GPU is enough */
            if (worst == 0 || error != ENOENT)
                worst = error, worst_node = nodes[i];
            continue;
        }
        if (error == ENOENT && i == 1)
            snprintf(
                text, bytes,
                "[no-device-node] /dev/nvidia-uvm is missing: load the module (modprobe nvidia-uvm, or run "
                "nvidia-modprobe -u -c 0)%s",
                m->container ? "; in containers, the host has to do that before the container starts" : "");
        else if (error == ENOENT)
            snprintf(text, bytes, "[no-device-node] %s is missing%s", nodes[i],
                     m->container
                         ? ": start the container with its GPUs (docker run --gpus all; NVIDIA Container Toolkit)"
                         : ": run nvidia-modprobe, or nvidia-smi as root, which create it");
        else if (error == EACCES || error == EPERM)
            describe_denied(text, bytes, nodes[i], error);
        else
            snprintf(text, bytes, "[device-node] %s cannot be opened: %s", nodes[i], strerror(error));
        return true;
    }
    if (usable > 0 || worst == 0)
        return false;
    if (worst == EACCES || worst == EPERM)
        describe_denied(text, bytes, worst_node, worst);
    else if (worst == ENOENT)
        snprintf(text, bytes, "[no-device-node] %s is missing, and so %s%s", worst_node,
                 numbered > 1 ? "are all GPUs' device nodes" : "is the GPU's device node",
                 m->container ? ": start the container with its GPUs (docker run --gpus all; NVIDIA Container Toolkit)"
                              : ": run nvidia-modprobe");
    else
        snprintf(text, bytes, "[gpu-failed] %s cannot be opened: %s; see the kernel's log (dmesg, NVRM: Xid)",
                 worst_node, strerror(worst));
    return true;
}

/* ---- libcuda.so.1 cannot be loaded ---- */

static void describe_no_module(char *text, size_t bytes, const struct machine *m)
{
    if (m->cards == 0)
        snprintf(text, bytes, "[no-gpu] there is no NVIDIA GPU in this machine (none on the PCI bus)");
    else if (m->cards < 0)
        snprintf(text, bytes, "[no-driver] there is no NVIDIA driver: neither its kernel module nor libcuda.so.1");
    else if (strcmp(m->card_driver, "vfio-pci") == 0)
        snprintf(text, bytes, "[no-driver] the NVIDIA GPU at %s is reserved for a virtual machine (bound to vfio-pci)",
                 m->card);
    else if (m->card_driver[0] != '\0')
        snprintf(
            text, bytes,
            "[no-driver] the NVIDIA GPU at %s uses the driver %s: install NVIDIA's driver (525 or later) and prevent "
            "%s from loading",
            m->card, m->card_driver, m->card_driver);
    else
        snprintf(text, bytes,
                 "[no-driver] the NVIDIA GPU at %s has no driver: install NVIDIA's driver, 525 or later",
                 m->card);
}

static void describe_no_library(char *text, size_t bytes, const struct machine *m, const char *dl_error)
{
    const char *wanted = getenv("NVIDIA_DRIVER_CAPABILITIES");
    if (dl_error != NULL && strstr(dl_error, "libcuda.so.1: cannot open shared object file: No such file") == NULL)
        snprintf(text, bytes, "[library-broken] libcuda.so.1 cannot be loaded: %s", dl_error);
    else if (m->windows)
        snprintf(
            text, bytes,
            "[no-library] this is WSL, and libcuda.so.1 is not found: add /usr/lib/wsl/lib to the loader's path "
            "(ldconfig)");
    else if (!m->module)
        describe_no_module(text, bytes, m);
    else if (m->container && wanted != NULL && strstr(wanted, "compute") == NULL && strstr(wanted, "all") == NULL)
        snprintf(text, bytes,
                 "[no-library] this container has no libcuda.so.1, because NVIDIA_DRIVER_CAPABILITIES=%s lacks "
                 "\"compute\"", wanted);
    else if (m->container)
        snprintf(text, bytes,
                 "[no-library] the kernel has NVIDIA's driver%s%s, but this container has no libcuda.so.1: start it by "
                 "docker run --gpus all (NVIDIA Container Toolkit)", m->version[0] != '\0' ? " " : "", m->version);
    else
        snprintf(text, bytes,
                 "[no-library] the kernel has NVIDIA's driver%s%s, but libcuda.so.1 is not installed (Debian: "
                 "libcuda1; of the same version)", m->version[0] != '\0' ? " " : "", m->version);
}

/* ---- errors of the driver ---- */

/* Reads the version from the name of the file to which libcuda.so.1 links: "550.54.15"; "" if it has none. */
static void library_version(char version[32])
{
    struct link_map *map = NULL;
    char real[PATH_MAX];
    version[0] = '\0';
    void *library = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
    if (library == NULL)
        return;
    if (dlinfo(library, RTLD_DI_LINKMAP, &map) == 0 && map != NULL && realpath(map->l_name, real) != NULL) {
        const char *tail = strstr(real, "libcuda.so.");
        if (tail != NULL && strchr(tail + strlen("libcuda.so."), '.') != NULL)
            snprintf(version, 32, "%.31s", tail + strlen("libcuda.so."));
    }
    dlclose(library);
}

static void describe_mismatch(char *text, size_t bytes, const struct machine *m)
{
    char library[32];
    library_version(library);
    snprintf(
        text, bytes,
        "[version-mismatch] libcuda.so.1%s%s and the kernel module%s%s have different versions: after an update of the "
        "driver, reboot or reload the module%s",
        library[0] != '\0' ? " " : "", library, m->version[0] != '\0' ? " " : "", m->version,
        m->container ? "; in containers, remove the image's own libcuda" : "");
}

void cuda_reason_hidden(char *text, size_t bytes, const char *visible, int present, bool twice)
{
    if (twice)
        snprintf(text, bytes,
                 "[hidden] CUDA_VISIBLE_DEVICES=%s contains a GPU twice, so the driver hides all %d", visible,
                 present);
    else
        snprintf(text, bytes, "[hidden] CUDA_VISIBLE_DEVICES=%s hides %s%d NVIDIA GPU%s of this machine", visible,
                 present == 1 ? "the " : "all ", present, present == 1 ? "" : "s");
}

void cuda_reason_mig(char *text, size_t bytes, const char *name, const char *pci)
{
    snprintf(text, bytes,
             "[mig-without-instance] %s (%s) is in MIG mode and has no instance: create one (nvidia-smi mig -cgi ... "
             "-C), or disable MIG (nvidia-smi -mig 0)", name, pci);
}

void cuda_reason_old(char *text, size_t bytes, int version)
{
    struct machine m;
    look_around(&m);
    snprintf(text, bytes,
             "[driver-too-old] the driver%s%s supports CUDA %d.%d, and 12.0 is required: install driver 525 or later",
             m.version[0] != '\0' ? " " : "", m.version, version / 1000, version % 1000 / 10);
}

static void describe_no_device(char *text, size_t bytes, const struct machine *m)
{
    const char *visible = getenv("CUDA_VISIBLE_DEVICES"), *given = getenv("NVIDIA_VISIBLE_DEVICES");
    if (!m->module && !m->windows && m->gpus == 0) {
        describe_no_module(text, bytes, m);
        return;
    }
    if (m->container && given != NULL
        && (strcmp(given, "void") == 0 || strcmp(given, "none") == 0 || given[0] == '\0')) {
        snprintf(text, bytes, "[hidden] NVIDIA_VISIBLE_DEVICES=%s gives this container no GPU", given);
        return;
    }
    if (describe_nodes(text, bytes, m, open_node))
        return;
    if (visible != NULL)
        cuda_reason_hidden(text, bytes, visible, m->gpus > 0 ? m->gpus : m->cards > 0 ? m->cards : 0, false);
    else if (m->gpus == 0)
        snprintf(
            text, bytes,
            "[no-gpu] the driver%s%s is loaded but finds no usable GPU; see the kernel's log (dmesg, NVRM)",
            m->version[0] != '\0' ? " " : "", m->version);
    else
        snprintf(text, bytes, "[no-device] the driver has %d GPU%s, but CUDA finds none; nvidia-smi may show why",
                 m->gpus, m->gpus == 1 ? "" : "s");
}

bool cuda_reason_node_missing(void)
{
    struct machine m;
    char text[512];
    look_around(&m);
    return m.module && !m.windows && describe_nodes(text, sizeof text, &m, look_at_node);
}

static const struct { cu_result result; const char *words; } texts[] = {
    { CU_SYSTEM_NOT_READY,
      "[not-ready] the machine's GPUs are not ready yet: on machines with NVSwitch the service nvidia-fabricmanager "
      "must run, in the driver's version (systemctl status nvidia-fabricmanager)" },
    { CU_COMPAT_NOT_SUPPORTED_ON_DEVICE,
      "[compat-refused] this libcuda.so.1 belongs to a package for forward compatibility (cuda-compat), which works on "
      "data centre GPUs only: let the loader find the driver's own library first" },
    { CU_STUB_LIBRARY,
      "[stub-library] the libcuda.so.1 that was found is the toolkit's stub for linking: remove its folder "
      "(lib64/stubs) from LD_LIBRARY_PATH" },
    { CU_NOT_INITIALIZED,
      "[forked] the driver cannot be initialised here: most likely something other than ctrt used CUDA in the parent "
      "before this process was forked. Fork before, or start the child by exec" },
    { CU_DEINITIALIZED, "[ending] the driver has shut down: the process is about to exit" },
    { CU_OUT_OF_MEMORY, "[no-host-memory] the driver has not enough host memory to initialise" },
    { CU_DEVICE_UNAVAILABLE,
      "[busy] the GPU is busy: it is in an exclusive or prohibited compute mode (nvidia-smi -q -d COMPUTE), and "
      "another process may have it" },
    { CU_INVALID_DEVICE,
      "[invalid-device] the driver rejects the list of devices: check CUDA_VISIBLE_DEVICES and, with MIG, the "
      "instances" },
};

void cuda_diagnose(char *text, size_t bytes, cu_result result, const char *dl_error)
{
    struct machine m;
    look_around(&m);
    for (size_t i = 0; i < COUNT_OF(texts); i++)
        if (texts[i].result == result) {
            snprintf(text, bytes, "%s", texts[i].words);
            return;
        }
    if (result < 0)
        describe_no_library(text, bytes, &m, dl_error);
    else if (result == CU_SYSTEM_DRIVER_MISMATCH)
        describe_mismatch(text, bytes, &m);
    else if (result == CU_NO_DEVICE)
        describe_no_device(text, bytes, &m);
    else if (!m.windows && !m.module && m.cards >= 0)
        describe_no_module(text, bytes, &m);
    else if (!describe_nodes(text, bytes, &m, open_node))
        snprintf(
            text, bytes,
            "[driver-failed] the driver%s%s fails to initialise (error %d); see the kernel's log (dmesg, NVRM)",
            m.version[0] != '\0' ? " " : "", m.version, result);
}

bool cuda_transient(const char *dl_error)
{
    static const int errors[] = { EMFILE, ENFILE, ENOMEM, EIO, EINTR };
    for (size_t i = 0; i < COUNT_OF(errors); i++)
        if (dl_error != NULL && strstr(dl_error, strerror(errors[i])) != NULL)
            return true;
    return false;
}

int32_t cuda_probe(char *reason, size_t bytes)
{
    void *library = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
    if (library == NULL) {
        const char *dl_error = dlerror();
        if (cuda_transient(dl_error)) {
            snprintf(reason, bytes, "%s", dl_error);
            return CTRT_PROBE_AGAIN;
        }
        cuda_diagnose(reason, bytes, -1, dl_error);
        return 0;
    }
    if (bytes > 0)                              /* the library stays loaded for cuda_driver_load() */
        reason[0] = '\0';
    return 1;
}

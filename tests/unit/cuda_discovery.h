/* SPDX-License-Identifier: Apache-2.0 */
/* Test fixture for the discovery of backends/cuda, based on cuda_fake.h: a host table, recorded trees of /proc, /sys
 * and /dev, and a child process for each case, because a process keeps the result of its first discovery. */
#ifndef CTRT_TESTS_CUDA_DISCOVERY_H
#define CTRT_TESTS_CUDA_DISCOVERY_H

#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>

#include "child.h"
#include "cuda_fake.h"
#include "plugin_host.h"

#define UNUSED __attribute__((unused))

const ctrt_host *cuda_host = &host_table;

/* ---- recorded file trees ---- */

struct file {
    const char *path, *text;                    /* text NULL: a folder; "-> x": a symbolic link to x */
    int mode;                                   /* 0: 0666 */
};

static char tree[] = "/tmp/ctrt-gpus-XXXXXX";

/* Replaces the tree by these files. */
static void make_tree(const struct file *files)
{
    char path[1024];
    snprintf(path, sizeof path, "rm -rf %s/* %s/.dockerenv", tree, tree);
    if (system(path) != 0)
        exit(99);
    for (; files != NULL && files->path != NULL; files++) {
        snprintf(path, sizeof path, "%s%s", tree, files->path);
        for (char *slash = path + strlen(tree) + 1; (slash = strchr(slash, '/')) != NULL; *slash++ = '/') {
            *slash = '\0';
            (void)mkdir(path, 0755);
        }
        if (files->text == NULL) {
            (void)mkdir(path, 0755);
        } else if (strncmp(files->text, "-> ", 3) == 0) {
            if (symlink(files->text + 3, path) != 0)
                exit(99);
        } else {
            FILE *out = fopen(path, "w");
            if (out == NULL)
                exit(99);
            fputs(files->text, out);
            fclose(out);
            chmod(path, files->mode != 0 ? (mode_t)files->mode : 0666);
        }
    }
}

#define CARD(address, driver)                                                               \
    { "/sys/bus/pci/devices/" address "/vendor", "0x10de\n", 0 },                           \
    { "/sys/bus/pci/devices/" address "/class", "0x030200\n", 0 },                          \
    { "/sys/bus/pci/devices/" address "/driver", "-> ../../../bus/pci/drivers/" driver, 0 }
#define OTHERS                                                                              \
    { "/sys/bus/pci/devices/0000:00:02.0/vendor", "0x8086\n", 0 },                          \
    { "/sys/bus/pci/devices/0000:00:02.0/class", "0x030000\n", 0 },                         \
    { "/sys/bus/pci/devices/0000:01:00.1/vendor", "0x10de\n", 0 },                          \
    { "/sys/bus/pci/devices/0000:01:00.1/class", "0x040300\n", 0 }
#define MODULE                                                                              \
    { "/proc/driver/nvidia/version",                                                        \
      "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 22:23:56 UTC 2024\n" \
      "GCC version:  gcc version 12.2.0 (Debian 12.2.0-14)\n", 0 }
#define OPEN_MODULE                                                                         \
    { "/proc/driver/nvidia/version",                                                        \
      "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build\n", 0 }
#define GPU(address, minor)                                                                 \
    { "/proc/driver/nvidia/gpus/" address "/information",                                   \
      "Model: \t\t NVIDIA H200\nIRQ:   \t\t 120\nDevice Minor: \t " minor "\n", 0 }
#define NODES { "/dev/nvidiactl", "", 0 }, { "/dev/nvidia-uvm", "", 0 }
#define END   { NULL, NULL, 0 }

UNUSED static const struct file bare[] = { OTHERS, END };
UNUSED static const struct file no_bus[] = { { "/proc", NULL, 0 }, END };
UNUSED static const struct file nouveau[] = { OTHERS, CARD("0000:65:00.0", "nouveau"),
                                              CARD("0000:66:00.0", "vfio-pci"), END };
UNUSED static const struct file guest[] = { CARD("0000:65:00.0", "vfio-pci"), END };
UNUSED static const struct file no_driver[] = {
    { "/sys/bus/pci/devices/0000:65:00.0/vendor", "0x10de\n", 0 },
    { "/sys/bus/pci/devices/0000:65:00.0/class", "0x030000\n", 0 }, END };
UNUSED static const struct file module_only[] = { MODULE, GPU("0000:65:00.0", "0"), CARD("0000:65:00.0", "nvidia"),
                                                  NODES, { "/dev/nvidia0", "", 0 }, END };
UNUSED static const struct file open_module[] = { OPEN_MODULE, GPU("0000:65:00.0", "0"), END };
UNUSED static const struct file container[] = { MODULE, { "/.dockerenv", "", 0 }, END };
UNUSED static const struct file pod[] = { MODULE, { "/proc/self/cgroup", "0::/kubepods/burstable/pod1\n", 0 }, END };
UNUSED static const struct file wsl[] = { { "/dev/dxg", "", 0 }, { "/sys/bus/pci/devices", NULL, 0 }, END };
UNUSED static const struct file no_control[] = { MODULE, GPU("0000:65:00.0", "0"), { "/dev/nvidia0", "", 0 }, END };
UNUSED static const struct file no_uvm[] = { MODULE, GPU("0000:65:00.0", "0"), { "/dev/nvidiactl", "", 0 },
                                             { "/dev/nvidia0", "", 0 }, END };
UNUSED static const struct file no_node[] = { MODULE, GPU("0000:65:00.0", "3"), NODES, { "/dev/nvidia0", "", 0 }, END };
UNUSED static const struct file one_of_two[] = { MODULE, GPU("0000:65:00.0", "0"), GPU("0000:66:00.0", "1"), NODES,
                                                 { "/dev/nvidia1", "", 0 }, END };
UNUSED static const struct file denied[] = {
    MODULE, GPU("0000:65:00.0", "0"), { "/dev/nvidiactl", "", 0060 }, { "/dev/nvidia-uvm", "", 0060 },
        { "/dev/nvidia0", "", 0060 }, END };
UNUSED static const struct file denied_gpu[] = { MODULE, GPU("0000:65:00.0", "0"), NODES, { "/dev/nvidia0", "", 0100 },
                                                 END };
UNUSED static const struct file odd_control[] = { MODULE, GPU("0000:65:00.0", "0"), { "/dev/nvidiactl", NULL, 0 },
                                                  { "/dev/nvidia-uvm", "", 0 }, END };
UNUSED static const struct file odd_uvm[] = { MODULE, GPU("0000:65:00.0", "0"), { "/dev/nvidiactl", "", 0 },
                                              { "/dev/nvidia-uvm", "-> nvidia-uvm", 0 }, END };
UNUSED static const struct file odd_gpu[] = { MODULE, GPU("0000:65:00.0", "1"), NODES,
                                              { "/dev/nvidia1", "-> nvidia1", 0 }, END };
UNUSED static const struct file odd_gpu_of_two[] = {
    MODULE, GPU("0000:65:00.0", "0"), GPU("0000:66:00.0", "1"), NODES, { "/dev/nvidia1", NULL, 0 }, END };
UNUSED static const struct file no_gpu[] = { MODULE, { "/proc/driver/nvidia/gpus", NULL, 0 }, NODES,
                                             { "/dev/nvidia0", "", 0 }, END };

/* ---- one child process per case ---- */

#define SETTINGS(...) ((const char *const[]){ __VA_ARGS__, NULL })

#define IN_DISCOVERY(...) IN_CHILD(__VA_ARGS__) if (CHECK_OK(cuda_discovery_init()))

/* What a child process found. */
struct found {
    ctrt_status status;
    int count, inits, nvml_inits;
    char message[512], logged[512];
    char uuids[8][64];
    ctrt_device_info first;
};
static struct found *shared;                    /* memory that the child shares */

/* Counts the devices in a child process with these environment variables, and describes up to 8 of them if `describe`
 * is set. With `unprivileged` a child of root changes to user 65534 first. */
static struct found discover(const char *const *settings, bool unprivileged, bool describe)
{
    memset(shared, 0, sizeof *shared);
    IN_CHILD(NULL) {
        int32_t count = -1;
        if (settings != NULL)
            child_environment(settings);
        if (unprivileged && geteuid() == 0 && (setegid(65534) != 0 || seteuid(65534) != 0))
            _exit(98);
        shared->status = cuda_discovery_init();
        if (shared->status == CTRT_OK)
            shared->status = cuda_count(&count);
        shared->count = count;
        for (int i = 0; describe && i < count && i < 8 && shared->status == CTRT_OK; i++) {
            ctrt_device_info info = { .size = sizeof info };
            shared->status = cuda_describe(i, &info);
            memcpy(shared->uuids[i], info.uuid, sizeof shared->uuids[i]);
            if (i == 0)
                shared->first = info;
        }
        shared->inits = fake_machine.inits;
        shared->nvml_inits = fake_machine.nvml_inits;
        snprintf(shared->message, sizeof shared->message, "%.500s", host_error);
        snprintf(shared->logged, sizeof shared->logged, "%.500s", host_logged);
        /* LeakSanitizer needs the rights of the user that started the test. */
        if (unprivileged && getuid() == 0 && (seteuid(0) != 0 || setegid(0) != 0 || prctl(PR_SET_DUMPABLE, 1) != 0))
            _exit(97);
    }
    CHILD_END;
    return *shared;
}

static inline void discovery_begin(void)
{
    static const char *const variables[] = { "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "NVIDIA_VISIBLE_DEVICES",
                                             "NVIDIA_DRIVER_CAPABILITIES",
                                             "KUBERNETES_SERVICE_HOST", "CTRT_CUDA_NVML" };
    for (size_t i = 0; i < COUNT_OF(variables); i++)
        unsetenv(variables[i]);
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED || mkdtemp(tree) == NULL || chmod(tree, 0755) != 0)
        exit(99);
    cuda_root = tree;
}

static inline int discovery_end(void)
{
    char command[64];
    snprintf(command, sizeof command, "rm -rf %s", tree);
    return system(command) != 0 ? 99 : done();
}

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Tests the messages that say why there is no CUDA device: each case sets files and driver results, and expects a code
 * and a text. */
#include "cuda_discovery.h"

#define NOT_THERE "libcuda.so.1: cannot open shared object file: No such file or directory"

static const struct reason_case {
    const char *code, *words;
    const struct file *files;
    const char *const *settings;
    const char *no_cuda, *no_entry;
    int init, version, mig, nvml;               /* nvml: result of nvmlInit, or -1 without NVML */
    bool none, unprivileged;                    /* none: the driver has no devices */
    ctrt_status status;                         /* 0: CTRT_ERR_NO_DEVICE or CTRT_ERR_NOT_SUPPORTED */
} reasons[] = {
    { "[no-gpu]", "no NVIDIA GPU in this machine", bare, .no_cuda = NOT_THERE },
    { "[no-driver]", "neither its kernel module nor libcuda.so.1", no_bus, .no_cuda = NOT_THERE },
    { "[no-driver]", "0000:65:00.0 uses the driver nouveau", nouveau, .no_cuda = NOT_THERE },
    { "[no-driver]", "0000:65:00.0 is reserved for a virtual machine", guest, .no_cuda = NOT_THERE },
    { "[no-driver]", "0000:65:00.0 has no driver", no_driver, .no_cuda = NOT_THERE },
    { "[no-library]", "NVIDIA's driver 550.54.15, but libcuda.so.1 is not installed", module_only,
      .no_cuda = NOT_THERE },
    { "[no-library]", "driver 580.65.06,", open_module, .no_cuda = NOT_THERE },
    { "[no-library]", "this container has no libcuda.so.1: start it by docker run --gpus all", container,
      .no_cuda = NOT_THERE },
    { "[no-library]", "this container has no libcuda.so.1", pod, .no_cuda = NOT_THERE },
    { "[no-library]", "NVIDIA_DRIVER_CAPABILITIES=utility lacks \"compute\"", container,
      SETTINGS("NVIDIA_DRIVER_CAPABILITIES=utility"), .no_cuda = NOT_THERE },
    { "[no-library]", "this is WSL", wsl, .no_cuda = NOT_THERE },
    { "[library-broken]", "invalid ELF header", module_only, .no_cuda = "/usr/lib/libcuda.so.1: invalid ELF header" },
    { "[library-broken]", "libnvidia-ptx.so", module_only,
      .no_cuda = "libnvidia-ptx.so: cannot open shared object file: No such file or directory" },
    { "[driver-too-old]", "the driver 550.54.15 supports CUDA 11.4, and 12.0 is required", module_only,
      .version = 11040 },
    { "[driver-too-old]", "lacks cuLibraryLoadData", module_only, .no_entry = "cuLibraryLoadData" },
    { "[version-mismatch]", "the kernel module 550.54.15 have different versions", module_only, .nvml = 18,
      .init = 803 },
    { "[version-mismatch]", "remove the image's own libcuda", container, .nvml = 18, .init = 803 },
    { "[not-ready]", "nvidia-fabricmanager must run", module_only, .nvml = -1, .init = 802 },
    { "[compat-refused]", "cuda-compat", module_only, .nvml = -1, .init = 804 },
    { "[stub-library]", "lib64/stubs", module_only, .nvml = -1, .init = 34 },
    { "[forked]", "before this process was forked", module_only, .nvml = -1, .init = 3 },
    { "[busy]", "exclusive or prohibited compute mode", module_only, .nvml = -1, .init = 46 },
    { "[no-gpu]", "no NVIDIA GPU in this machine", bare, .nvml = 9, .init = 100 },
    { "[no-driver]", "has no driver", no_driver, .nvml = 9, .init = 100 },
    { "[no-device-node]", "/dev/nvidiactl is missing: run nvidia-modprobe", no_control, .nvml = 9, .init = 999 },
    { "[no-device-node]", "/dev/nvidiactl is missing", no_control, .nvml = 9, .init = 100 },
    { "[no-device-node]", "/dev/nvidiactl is missing: start the container with its GPUs", container, .nvml = 9,
      .init = 100 },
    { "[no-device-node]", "modprobe nvidia-uvm", no_uvm, .nvml = -1, .init = 999 },
    { "[no-device-node]", "/dev/nvidia3 is missing", no_node, .nvml = -1, .init = 100 },
    { "[no-device]", "the driver has 2 GPUs, but CUDA finds none", one_of_two, .nvml = -1, .init = 100 },
    { "[no-permission]", "/dev/nvidiactl belongs to ", denied, .nvml = 4, .init = 100, .unprivileged = true },
    { "[no-permission]", "add the user to group ", denied, .nvml = -1, .init = 999, .unprivileged = true },
    { "[no-permission]", "ask the administrator", denied_gpu, .nvml = -1, .init = 100, .unprivileged = true },
    { "[no-gpu]", "550.54.15 is loaded but finds no usable GPU", no_gpu, .nvml = -1, .init = 100 },
    { "[no-gpu]", "finds no usable GPU", no_gpu, .nvml = -1, .none = true },
    { "[ending]", "the driver has shut down", module_only, .nvml = -1, .init = 4 },
    { "[no-host-memory]", "not enough host memory", module_only, .nvml = -1, .init = 2,
      .status = CTRT_ERR_OUT_OF_MEMORY },
    { "[invalid-device]", "check CUDA_VISIBLE_DEVICES", module_only, .nvml = -1, .init = 101 },
    { "[device-node]", "/dev/nvidiactl cannot be opened: Is a directory", odd_control, .nvml = -1, .init = 999 },
    { "[device-node]", "/dev/nvidia-uvm cannot be opened: Too many levels", odd_uvm, .nvml = 9, .init = 100 },
    { "[gpu-failed]", "/dev/nvidia1 cannot be opened: Too many levels", odd_gpu, .nvml = -1, .init = 100 },
    { "[gpu-failed]", "/dev/nvidia1 cannot be opened: Is a directory", odd_gpu_of_two, .nvml = -1, .init = 999 },
    { "[driver-failed]", "(error 999)", module_only, .nvml = -1, .init = 999 },
    { "[hidden]", "CUDA_VISIBLE_DEVICES=-1 hides all 2", module_only, .settings = SETTINGS("CUDA_VISIBLE_DEVICES=-1") },
    { "[hidden]", "CUDA_VISIBLE_DEVICES= hides all 2", module_only, .settings = SETTINGS("CUDA_VISIBLE_DEVICES=") },
    { "[hidden]", "CUDA_VISIBLE_DEVICES=0,0 contains a GPU twice", module_only,
      .settings = SETTINGS("CUDA_VISIBLE_DEVICES=0,0") },
    { "[hidden]", "CUDA_VISIBLE_DEVICES=7 hides the 1 NVIDIA GPU", module_only, SETTINGS("CUDA_VISIBLE_DEVICES=7"),
      .nvml = -1, .init = 100 },
    { "[hidden]", "NVIDIA_VISIBLE_DEVICES=void", container, SETTINGS("NVIDIA_VISIBLE_DEVICES=void"), .nvml = 9,
      .init = 100 },
    { "[mig-without-instance]", "NVIDIA H200 (0000:01:00.0) is in MIG mode", module_only, .mig = 2 },
};

static void test_reasons(void)
{
    group("each cause of a missing device gives its code and text");
    for (size_t i = 0; i < COUNT_OF(reasons); i++) {
        const struct reason_case *c = &reasons[i];
        make_tree(c->files);
        fake_machine_reset();
        fake_machine.no_cuda = c->no_cuda;
        fake_machine.no_entry = c->no_entry;
        fake_machine.init = c->init;
        if (c->version != 0)
            fake_machine.version = c->version;
        fake_machine.nvml = c->nvml >= 0;
        fake_machine.nvml_init = c->nvml > 0 ? c->nvml : 0;
        fake_machine.all[0].mig = fake_machine.all[1].mig = c->mig;
        if (c->none)
            fake_machine.count = 0;
        const struct found a = discover(c->settings, c->unprivileged, false);
        CHECK(c->status != CTRT_OK ? a.status == c->status : a.status == CTRT_ERR_NO_DEVICE
              || a.status == CTRT_ERR_NOT_SUPPORTED, "%s: status %d, %d devices", c->words, (int)a.status, a.count);
        CHECK(strncmp(a.message, c->code, strlen(c->code)) == 0, "%s: expected %s, got: %s", c->words, c->code,
              a.message);
        CHECK_HAS(a.message, c->words);
        CHECK_TRUE(strlen(a.message) < 420);
    }
    group("cuda_probe returns 0 with the reason, in 255 bytes, if libcuda is missing, and does not call cuInit");
    for (size_t i = 0; i < COUNT_OF(reasons); i++) {
        char text[256] = "?";
        if (reasons[i].no_cuda == NULL)
            continue;
        make_tree(reasons[i].files);
        fake_machine_reset();
        fake_machine.no_cuda = reasons[i].no_cuda;
        IN_CHILD(NULL) {
            if (reasons[i].settings != NULL)
                child_environment(reasons[i].settings);
            CHECK(cuda_probe(text, sizeof text) == 0 && strstr(text, reasons[i].words) != NULL, "%s: %s",
                  reasons[i].words, text);
        }
        CHILD_END;
    }
    char text[256] = "?";
    fake_machine_reset();
    CHECK_TRUE(cuda_probe(text, sizeof text) > 0);
    CHECK_STR(text, "");
    CHECK_EQ(fake_machine.inits, 0);
}

/* The table of doc/cuda.md and the cases above must have the same codes. */
static void test_table(void)
{
    char path[4096], line[4096];
    const char *srcdir = getenv("srcdir");
    bool seen[COUNT_OF(reasons)] = { false };
    int words = 0;
    snprintf(path, sizeof path, "%s/doc/cuda.md", srcdir != NULL ? srcdir : ".");
    FILE *in = fopen(path, "r");
    group("every code of the table in doc/cuda.md has a case, and every case's code is in the table");
    if (!CHECK(in != NULL, "%s cannot be read", path))
        return;
    while (fgets(line, sizeof line, in) != NULL) {
        char *end = strncmp(line, "| `[", 4) == 0 ? strchr(line + 2, '|') : NULL;
        if (end == NULL)
            continue;
        *end = '\0';
        for (char *at = line; (at = strchr(at, '[')) != NULL; at++) {
            const size_t length = strcspn(at, "]") + 1;
            bool found = false;
            for (size_t i = 0; i < COUNT_OF(reasons); i++)
                if (strlen(reasons[i].code) == length && strncmp(reasons[i].code, at, length) == 0)
                    found = seen[i] = true;
            CHECK(found, "%.*s has no case", (int)length, at);
            words++;
        }
    }
    fclose(in);
    CHECK(words > 15, "the table has %d codes, expected more than 15", words);
    for (size_t i = 0; i < COUNT_OF(reasons); i++)
        CHECK(seen[i], "%s (%s) is not in the table", reasons[i].code, reasons[i].words);
}

TEST_MAIN
{
    discovery_begin();
    test_reasons();
    test_table();
    return discovery_end();
}

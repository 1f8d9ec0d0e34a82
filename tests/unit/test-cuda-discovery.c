/* SPDX-License-Identifier: Apache-2.0 */
/* Tests the device discovery of the cuda backend: which GPUs it finds, their order and properties, and the messages
 * that say why there is no device. The driver and NVML are fake libraries; /proc, /sys and /dev are recorded trees. */
#include "core/device/visible.h"
#include "calls.h"
#include "cuda_discovery.h"

TEST(lists, "CUDA_VISIBLE_DEVICES is parsed as a CTRT_VISIBLE_DEVICES list without types")
{
    struct cuda_gpu gpus[6];
    const char *uuids[6];
    memset(gpus, 0, sizeof gpus);
    for (int i = 0; i < 6; i++) {
        snprintf(gpus[i].facts.uuid, sizeof gpus[i].facts.uuid, "GPU-a%d010203-0000-0000-0000-00000000000%d", i, i);
        uuids[i] = gpus[i].facts.uuid;
    }
    static const char *const pieces[] = { "0", "1", "2", "5", "6", "-1", "+3", "-0", " 4 ", "", "x", "3y", "GPU-a1",
                                          "GPU-a", "GPU-a2010203", "GPU-", ",",
                                          " ", "99999999999", "MI-a" };
    unsigned state = 1;
    for (int i = 0; i < 20000; i++) {
        char text[128] = "";
        int ids[16], want[16];
        bool twice;
        state = state * 1664525u + 1013904223u;
        for (unsigned n = state >> 28; n > 0 && strlen(text) < 100; n /= 2) {
            state = state * 1664525u + 1013904223u;
            strcat(text, pieces[(state >> 16) % COUNT_OF(pieces)]);
            strcat(text, state >> 31 ? "," : "");
        }
        const int count = cuda_visible(ids, 16, text, gpus, 6, &twice),
            wanted = visible_parse(want, 16, text, 6, uuids);
        if (!CHECK(count == wanted && memcmp(ids, want, sizeof ids[0] * (size_t)count) == 0, "\"%s\": %d, expected %d",
                   text, count, wanted))
            break;
    }
    group("the kind of a list: all, indices, UUIDs, MIG");
    CHECK_EQ(cuda_visible_kind(NULL), CUDA_LIST_ALL);
    CHECK_EQ(cuda_visible_kind(""), CUDA_LIST_NUMBERS);
    CHECK_EQ(cuda_visible_kind("0,1"), CUDA_LIST_NUMBERS);
    CHECK_EQ(cuda_visible_kind(" GPU-a1"), CUDA_LIST_UUIDS);
    CHECK_EQ(cuda_visible_kind("MIG-a1"), CUDA_LIST_MIG);
    CHECK_EQ(cuda_visible_kind("GPU-1, MIG-a1"), CUDA_LIST_MIG);
}

/* ---- discovery ---- */

#define UUID(i) "GPU-a" #i "010203-0000-0000-0000-00000000000" #i

/* Sets up three GPUs; if `two_models`, the driver lists the second model first. */
static void three_gpus(bool two_models)
{
    fake_machine_reset();
    fake_machine.present = fake_machine.count = 3;
    if (two_models) {
        fake_machine.all[0].name = "NVIDIA T4";
        fake_machine.gpus[0] = 2, fake_machine.gpus[1] = 0, fake_machine.gpus[2] = 1;
    }
}

static const struct count_case {
    const char *what, *settings[3];
    int count, uuids[3], inits;                 /* expected: the devices' UUIDs by number, and calls of cuInit */
    bool two_models, counted_only, no_nvml;
    int nvml_init, denied, mig, shown;          /* denied: index of a GPU; shown: number of devices the driver shows */
} counts[] = {
    { "a list selects and orders", { "CUDA_VISIBLE_DEVICES=2,0" }, 2, { 2, 0 }, .inits = 0 },
    { "a list of UUIDs", { "CUDA_VISIBLE_DEVICES=GPU-a1" }, 1, { 1 }, .inits = 0 },
    { "no access to a GPU in a container", { NULL }, 2, { 0, 2 }, 0, .denied = 1 },
    { "without NVML", { "CTRT_CUDA_NVML=off" }, 3, { 0, 1, 2 }, .inits = 1 },
    { "nvmlInit fails", { NULL }, 3, { 0, 1, 2 }, 1, .nvml_init = 999 },
    { "a GPU in MIG mode", { "CUDA_VISIBLE_DEVICES=0" }, 1, { 0 }, 1, .mig = 1, .shown = 1 },
    { "nvidia-smi's order", { NULL }, 3, { 0, 1, 2 }, 0, .two_models = true },
    { "the same without NVML", { NULL }, 3, { 0, 1, 2 }, 1, .two_models = true, .no_nvml = true },
    { "the driver's indices are counted without it", { "CUDA_VISIBLE_DEVICES=0" }, 1, { 0 }, 0, .two_models = true,
      .shown = 1, .counted_only = true },
    { "but resolved by it", { "CUDA_VISIBLE_DEVICES=0" }, 1, { 2 }, 1, .two_models = true, .shown = 1 },
    { "unless in the bus's order", { "CUDA_VISIBLE_DEVICES=0", "CUDA_DEVICE_ORDER=PCI_BUS_ID" }, 1, { 0 }, 0,
      .two_models = true, .shown = 1 },
    { "the fastest first", { "CUDA_DEVICE_ORDER=FASTEST_FIRST" }, 3, { 2, 0, 1 }, 1, .two_models = true },
};

TEST(counting, "devices are counted and described without cuInit, with one nvmlInit")
{
    make_tree(module_only);
    three_gpus(false);
    struct found a = discover(NULL, false, true);
    CHECK_EQ(a.status, CTRT_OK);
    CHECK_EQ(a.count, 3);
    CHECK_EQ(a.inits, 0);
    CHECK_EQ(a.nvml_inits, 1);
    CHECK_STR(a.uuids[0], UUID(0));
    CHECK_STR(a.uuids[2], UUID(2));
    CHECK_STR(a.first.name, "NVIDIA H200");
    CHECK_STR(a.first.pci, "0000:01:00.0");
    CHECK_STR(a.first.cpus, "0-3,8");
    CHECK_TRUE(a.first.total_memory == (uint64_t)140 << 30 && a.first.compute_major == 9 && a.first.processors == 132);
    CHECK_TRUE(a.first.clock_khz == 1980000 && a.first.ecc == 1);

    group("without NVML the driver gives the same properties");
    fake_machine.nvml = false;
    struct found b = discover(NULL, false, true);
    CHECK_EQ(b.status, CTRT_OK);
    CHECK_EQ(b.count, 3);
    CHECK_EQ(b.inits, 1);
    memcpy(b.first.cpus, a.first.cpus, sizeof a.first.cpus);            /* the driver does not report cpus */
    CHECK(memcmp(&a.first, &b.first, sizeof a.first) == 0, "properties differ; the driver's are %s %s %s",
          b.first.name, b.first.uuid, b.first.pci);

    group("counts and order of the devices");
    EACH(c, counts) {
        three_gpus(c->two_models);
        fake_machine.nvml = !c->no_nvml;
        fake_machine.nvml_init = c->nvml_init;
        fake_machine.nvml_denied = c->denied > 0 ? c->denied : -1;
        fake_machine.all[1].mig = c->mig;
        fake_machine.count = c->shown > 0 ? c->shown : 3;
        a = discover(c->settings, false, !c->counted_only);
        CHECK_EQ(a.status, CTRT_OK);
        CHECK_EQ(a.count, c->count);
        CHECK_EQ(a.inits, c->inits);
        for (int k = 0; k < c->count && !c->counted_only; k++)
            CHECK(a.uuids[k][5] == '0' + c->uuids[k], "%s: device %d is %s, expected GPU-a%d", c->what, k, a.uuids[k],
                  c->uuids[k]);
    }
    fake_machine_reset();
    fake_machine.all[1].mig = 1;
    a = discover(NULL, false, true);
    CHECK_EQ(a.count, 2);
    CHECK_HAS(a.uuids[1], "MIG-a1");

    group("devices are usable in spite of a missing node if cuInit succeeds");
    make_tree(no_uvm);
    fake_machine_reset();
    a = discover(NULL, false, false);
    CHECK_EQ(a.count, 2);
    CHECK_EQ(a.inits, 1);
    make_tree(module_only);

    group("a misspelt environment variable is logged");
    fake_machine_reset();
    a = discover(SETTINGS("CUDA_VISIBLE_DEVICE=1"), false, false);
    CHECK_HAS(a.logged, "CUDA_VISIBLE_DEVICE is set but has no effect");
    CHECK_EQ(a.count, 2);
    a = discover(SETTINGS("CUDA_VISIBLE_DEVICES=1"), false, false);
    CHECK_STR(a.logged, "");
}

TEST(opening, NULL)
{
    int32_t count = 0;
    cu_device device = -1;
    make_tree(module_only);
    group("a device found by NVML is mapped to the driver's ordinal by UUID");
    three_gpus(true);
    IN_DISCOVERY(NULL) {
        static const int want[] = { 1, 2, 0 };
        CHECK_OK(cuda_count(&count));
        CHECK_EQ(count, 3);
        CHECK_EQ(fake_machine.inits, 0);
        EACH(w, want) {
            CHECK_OK(cuda_ordinal_of(&device, (int)(w - want)));
            CHECK_EQ(device, *w);
        }
        CHECK_EQ(fake_machine.inits, 1);
        CHECK_FAILS(cuda_ordinal_of(&device, 3), CTRT_ERR_NO_DEVICE, "there are 3 CUDA devices");
        CHECK_FAILS(cuda_ordinal_of(&device, -1), CTRT_ERR_NO_DEVICE, "there are 3 CUDA devices");
    }

    group("a change of CUDA_VISIBLE_DEVICES after counting is reported, and no other device is used instead");
    fake_machine_reset();
    IN_DISCOVERY("CUDA_VISIBLE_DEVICES=0") {
        CHECK_EQ(cuda_count(&count), CTRT_OK);
        CHECK_EQ(count, 1);
        setenv("CUDA_VISIBLE_DEVICES", "1", 1);
        fake_machine.count = 1, fake_machine.gpus[0] = 1;
        CHECK_FAILS(cuda_ordinal_of(&device, 0), CTRT_ERR_NO_DEVICE, "the driver does not show " UUID(0));
        CHECK_HAS(ctrt_error_message(), "CUDA_VISIBLE_DEVICES is now 1");
        CHECK(strstr(logged, "driver shows 0") != NULL || strstr(logged, "too late") != NULL, "logged: %s", logged);
    }
    IN_DISCOVERY("CUDA_VISIBLE_DEVICES=1") {
        fake_machine.count = 1, fake_machine.gpus[0] = 1;
        CHECK_OK(cuda_count(&count));
        CHECK_OK(cuda_ordinal_of(&device, 0));
        CHECK_EQ(device, 0);
        CHECK_STR(logged, "");
        setenv("CUDA_VISIBLE_DEVICES", "0", 1);
        CHECK_OK(cuda_ordinal_of(&device, 0));
        CHECK_HAS(logged, "CUDA_VISIBLE_DEVICES has changed to 0");
    }

    group("a failed discovery keeps its error when NVML works later");
    fake_machine_reset();
    fake_machine.init = 802;
    fake_machine.nvml_init = 999;
    IN_DISCOVERY(NULL) {
        CHECK_EQ(cuda_count(&count), CTRT_ERR_NO_DEVICE);
        fake_machine.nvml_init = 0;
        CHECK_FAILS(cuda_count(&count), CTRT_ERR_NO_DEVICE, "[not-ready]");
        CHECK_EQ(fake_machine.inits, 1);
    }
}

TEST(usage, "load, memory and processes come from NVML, without cuInit")
{
    make_tree(module_only);
    fake_machine_reset();
    IN_DISCOVERY("CUDA_VISIBLE_DEVICES=1") {
        ctrt_device_process list[2];
        ctrt_device_usage usage = { .size = sizeof usage, .process_room = 2, .processes = list };
        CHECK_OK(cuda_usage(0, &usage));
        const uint64_t total = (uint64_t)140 << 30;
        CHECK_TRUE(usage.busy == 100 && usage.memory_busy == 50 && usage.temperature == -1);
        CHECK_TRUE(usage.total_memory == total && usage.free_memory == total / 4);
        CHECK_EQ(usage.process_count, 3);
        CHECK_TRUE(list[0].pid == 1000 && list[0].memory == 4096 && list[1].pid == 1001
                   && list[1].memory == UINT64_MAX);
        CHECK_EQ(cuda_usage(1, &usage), CTRT_ERR_NO_DEVICE);
        CHECK_EQ(cuda_usage(0, &usage), CTRT_OK);
        CHECK_EQ(fake_machine.inits, 0);
        CHECK_EQ(fake_machine.nvml_inits, 1);
    }
    fake_machine.processes = 1000;
    IN_DISCOVERY(NULL) {
        ctrt_device_process list[1500];
        ctrt_device_usage usage = { .size = sizeof usage, .process_room = 1500, .processes = list };
        CHECK_EQ(cuda_usage(0, &usage), CTRT_OK);
        CHECK_EQ(usage.process_count, 1001);
        CHECK_EQ(list[999].pid, 1999);
        CHECK_EQ(list[1000].pid, 2000);
    }
    fake_machine.nvml = false;
    IN_DISCOVERY(NULL) {
        ctrt_device_usage usage = { .size = sizeof usage };
        CHECK_FAILS(cuda_usage(0, &usage), CTRT_ERR_NOT_SUPPORTED, "libnvidia-ml.so.1");
    }

    group("links between devices come from NVML, and from the driver once it is initialised");
    three_gpus(false);
    IN_DISCOVERY(NULL) {
        ctrt_device_link link = { .size = sizeof link };
        cu_device device;
        CHECK_EQ(cuda_link(0, 1, &link), CTRT_OK);
        CHECK_EQ(link.direct, 1);
        CHECK_EQ(link.kind, CTRT_LINK_NVLINK);
        CHECK_EQ(link.links, 4);
        CHECK_EQ(cuda_link(0, 2, &link), CTRT_OK);
        CHECK_EQ(link.direct, 0);
        CHECK_EQ(link.kind, CTRT_LINK_BRIDGE);
        CHECK_EQ(link.links, 0);
        CHECK_EQ(fake_machine.inits, 0);
        CHECK_EQ(cuda_ordinal_of(&device, 0), CTRT_OK);
        CHECK_EQ(cuda_link(0, 2, &link), CTRT_OK);
        CHECK_EQ(link.direct, 1);
        CHECK_EQ(cuda_link(0, 3, &link), CTRT_ERR_NO_DEVICE);
    }

    group("the CPUs near a device, as a list of ranges");
    IN_DISCOVERY(NULL) {
        ctrt_device_info info = { .size = sizeof info };
        CHECK_OK(cuda_describe(1, &info));
        CHECK_STR(info.cpus, "0-64");
    }
    static const struct file placed[] = { { "/sys/bus/pci/devices/0000:01:00.0/local_cpulist", "4-7,12\n", 0 },
                                          { "/sys/bus/pci/devices/0000:01:00.0/numa_node", "1\n", 0 }, END };
    make_tree(placed);
    IN_DISCOVERY(NULL) {
        ctrt_device_info info = { .size = sizeof info };
        CHECK_EQ(cuda_describe(0, &info), CTRT_OK);
        CHECK_EQ(info.numa_node, 1);
        CHECK_STR(info.cpus, "4-7,12");
        /* A caller built with an older, smaller ctrt_device_info. */
        memset(&info, 0x5a, sizeof info);
        info.size = offsetof(ctrt_device_info, cpus);
        CHECK_EQ(cuda_describe(0, &info), CTRT_OK);
        CHECK_EQ(info.cpus[0], 0x5a);
        CHECK_EQ(info.size, offsetof(ctrt_device_info, cpus));
    }
}

/* ---- reasons: each case sets files and driver results, and expects a code and a text ---- */

#define NOT_THERE "libcuda.so.1: cannot open shared object file: No such file or directory"

static const struct reason_case {
    const char *code, *words;
    const struct file *files;
    const char *const *settings;
    const char *no_cuda, *no_entry;
    int init, version, mig, nvml, fabric;       /* nvml: result of nvmlInit, or -1 without NVML */
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
    { "[not-ready]", "nvidia-fabricmanager must run", module_only, .init = 802, .fabric = 2 },
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
    { "[no-device-node]", "modprobe nvidia-uvm", no_uvm, .init = 999 },
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

TEST(all_reasons, "each cause of a missing device gives its code and text; cuda_probe returns 0 with a missing "
                  "libcuda's reason")
{
    char text[256] = "?";
    EACH(c, reasons) {
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
        if (c->fabric != 0)
            fake_machine.all[1].fabric = c->fabric;
        if (c->none)
            fake_machine.count = 0;
        const struct found a = discover(c->settings, c->unprivileged, false);
        CHECK(c->status != CTRT_OK ? a.status == c->status : a.status == CTRT_ERR_NO_DEVICE
              || a.status == CTRT_ERR_NOT_SUPPORTED, "%s: status %d, %d devices", c->words, (int)a.status, a.count);
        CHECK(strncmp(a.message, c->code, strlen(c->code)) == 0, "%s: expected %s, got: %s", c->words, c->code,
              a.message);
        CHECK_HAS(a.message, c->words);
        CHECK_TRUE(strlen(a.message) < 420);
        if (c->no_cuda != NULL)
            CHILD_LOOP(child, c->settings != NULL ? c->settings : SETTINGS(NULL), exit) {
                CHECK_EQ(cuda_probe(text, sizeof text), 0);
                CHECK_HAS(text, c->words);
            }
    }
    group("cuda_probe does not call cuInit");
    fake_machine_reset();
    CHECK_TRUE(cuda_probe(text, sizeof text) > 0);
    CHECK_STR(text, "");
    CHECK_EQ(fake_machine.inits, 0);
}

/* The table of doc/cuda.md and the cases above must have the same codes. */
TEST(table, "every code of the table in doc/cuda.md has a case, and every case's code is in the table")
{
    char path[4096], line[4096];
    const char *srcdir = getenv("srcdir");
    bool seen[COUNT_OF(reasons)] = { false };
    int words = 0;
    snprintf(path, sizeof path, "%s/doc/cuda.md", srcdir != NULL ? srcdir : ".");
    FILE *in = fopen(path, "r");
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
            EACH(c, reasons)
                if (strlen(c->code) == length && strncmp(c->code, at, length) == 0)
                    found = seen[c - reasons] = true;
            CHECK(found, "%.*s has no case", (int)length, at);
            words++;
        }
    }
    fclose(in);
    CHECK(words > 15, "the table has %d codes, expected more than 15", words);
    EACH(c, reasons)
        CHECK(seen[c - reasons], "%s (%s) is not in the table", c->code, c->words);
}

TEST_MAIN
{
    discovery_begin();
    return run_tests();
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Tests the device discovery of the cuda backend: which GPUs it finds, their order and properties, and its behaviour
 * after fork. The driver and NVML are fake libraries (cuda_fake.h); /proc, /sys and /dev are recorded trees. */
#include "core/device/visible.h"
#include "cuda_bed.h"

/* ---- CUDA_VISIBLE_DEVICES ---- */

static void test_lists(void)
{
    /* PyTorch's test cases for CUDA_VISIBLE_DEVICES on a machine with 6 GPUs. */
    static const struct { const char *text; int want[6], wanted; } cases[] = {
        { "0, 1, 2, -1, 3", { 0, 1, 2 }, 3 },
        { "0, 1, 2, 1", { 0 }, 0 },
        { "2, +3, -0, 5", { 2, 3, 0, 5 }, 4 },
        { "one,two,3,4", { 0 }, 0 },
        { "4,3,two,one", { 4, 3 }, 2 },
        { "1gpu2,2ampere", { 1, 2 }, 2 },
        { "0,2", { 0, 2 }, 2 },
        { "", { 0 }, 0 },
        { NULL, { 0, 1, 2, 3, 4, 5 }, 6 },
        { "GPU-a2,GPU-a0010203-0000", { 2, 0 }, 2 },
        { "GPU-a", { 0 }, 0 },
        { "GPU-a1,GPU-a1", { 0 }, 0 },
        { "GPU-a3,2", { 3 }, 1 },
        { "0,9,1", { 0 }, 1 },
    };
    struct cuda_gpu gpus[6];
    const char *uuids[6];
    memset(gpus, 0, sizeof gpus);
    for (int i = 0; i < 6; i++) {
        snprintf(gpus[i].facts.uuid, sizeof gpus[i].facts.uuid, "GPU-a%d010203-0000-0000-0000-00000000000%d", i, i);
        uuids[i] = gpus[i].facts.uuid;
    }
    group("CUDA_VISIBLE_DEVICES selects the same devices as in PyTorch's test cases");
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        int ids[16];
        bool twice;
        const int count = cuda_visible(ids, 16, cases[i].text, gpus, 6, &twice);
        CHECK(count == cases[i].wanted && memcmp(ids, cases[i].want, sizeof ids[0] * (size_t)count) == 0, "\"%s\": %d devices, first %d",
              cases[i].text != NULL ? cases[i].text : "(unset)", count, count > 0 ? ids[0] : -1);
    }
    group("CUDA_VISIBLE_DEVICES is parsed as a CTRT_VISIBLE_DEVICES list without types");
    static const char *const pieces[] = { "0", "1", "2", "5", "6", "-1", "+3", "-0", " 4 ", "", "x", "3y", "GPU-a1", "GPU-a", "GPU-a2010203", "GPU-", ",",
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
        const int count = cuda_visible(ids, 16, text, gpus, 6, &twice), wanted = visible_parse(want, 16, text, 6, uuids);
        if (!CHECK(count == wanted && memcmp(ids, want, sizeof ids[0] * (size_t)count) == 0, "\"%s\": %d, expected %d", text, count, wanted))
            break;
    }
    group("the kind of a list: all, indices, UUIDs, MIG");
    CHECK(cuda_visible_kind(NULL) == CUDA_LIST_ALL && cuda_visible_kind("") == CUDA_LIST_NUMBERS && cuda_visible_kind("0,1") == CUDA_LIST_NUMBERS
          && cuda_visible_kind(" GPU-a1") == CUDA_LIST_UUIDS && cuda_visible_kind("MIG-a1") == CUDA_LIST_MIG
          && cuda_visible_kind("GPU-1, MIG-a1") == CUDA_LIST_MIG, "cuda_visible_kind returned a wrong kind");
}

/* ---- discovery ---- */

#define UUID(i) "GPU-a" #i "010203-0000-0000-0000-00000000000" #i

static void test_counting(void)
{
    show(module_only);
    group("devices are counted and described without cuInit, with one nvmlInit");
    fake_machine_reset();
    fake_machine.present = fake_machine.count = 3;
    struct answer a = ask(NULL, false, true);
    CHECK(a.status == CTRT_OK && a.count == 3, "status %d, %d devices: %s", (int)a.status, a.count, a.message);
    CHECK(a.inits == 0, "cuInit was called %d times", a.inits);
    CHECK(a.nvml_inits == 1, "nvmlInit was called %d times, expected once", a.nvml_inits);
    CHECK(strcmp(a.uuids[0], UUID(0)) == 0 && strcmp(a.uuids[2], UUID(2)) == 0, "%s, %s", a.uuids[0], a.uuids[2]);
    const ctrt_device_info *f = &a.first;
    CHECK(strcmp(f->name, "NVIDIA H200") == 0 && f->total_memory == (uint64_t)140 << 30 && f->compute_major == 9 && f->processors == 132
          && f->clock_khz == 1980000 && f->ecc == 1 && strcmp(f->pci, "0000:01:00.0") == 0 && strcmp(f->cpus, "0-3,8") == 0,
          "%s, %llu bytes, %d.%d, %d, %d kHz, ecc %d, %s, cpus %s", f->name, (unsigned long long)f->total_memory, f->compute_major, f->compute_minor,
          f->processors, f->clock_khz, f->ecc, f->pci, f->cpus);

    group("without NVML the driver gives the same properties");
    fake_machine.nvml = false;
    const struct answer b = ask(NULL, false, true);
    CHECK(b.status == CTRT_OK && b.count == 3 && b.inits == 1, "status %d, %d devices, cuInit %d times", (int)b.status, b.count, b.inits);
    snprintf(a.first.cpus, sizeof a.first.cpus, "%s", b.first.cpus);       /* the driver does not report cpus */
    CHECK(strcmp(a.first.name, b.first.name) == 0 && strcmp(a.first.uuid, b.first.uuid) == 0 && strcmp(a.first.pci, b.first.pci) == 0
          && a.first.total_memory == b.first.total_memory && a.first.compute_major == b.first.compute_major
          && a.first.compute_minor == b.first.compute_minor && a.first.processors == b.first.processors && a.first.clock_khz == b.first.clock_khz
          && a.first.numa_node == b.first.numa_node && a.first.ecc == b.first.ecc && a.first.flags == b.first.flags,
          "properties differ; the driver's are %s %s %s",
          b.first.name, b.first.uuid, b.first.pci);

    group("CUDA_VISIBLE_DEVICES selects and orders the devices");
    fake_machine_reset();
    fake_machine.present = fake_machine.count = 3;
    a = ask(SETTINGS("CUDA_VISIBLE_DEVICES=2,0"), false, true);
    CHECK(a.count == 2 && strcmp(a.uuids[0], UUID(2)) == 0 && strcmp(a.uuids[1], UUID(0)) == 0 && a.inits == 0, "%d: %s, %s; cuInit %d times", a.count,
          a.uuids[0], a.uuids[1], a.inits);
    a = ask(SETTINGS("CUDA_VISIBLE_DEVICES=GPU-a1"), false, true);
    CHECK(a.count == 1 && strcmp(a.uuids[0], UUID(1)) == 0 && a.inits == 0, "%d: %s", a.count, a.uuids[0]);

    group("GPUs that the container may not access are omitted");
    fake_machine.nvml_denied = 1;
    a = ask(NULL, false, true);
    CHECK(a.count == 2 && strcmp(a.uuids[1], UUID(2)) == 0, "%d: %s", a.count, a.uuids[1]);

    group("with CTRT_CUDA_NVML=off the driver is used");
    fake_machine_reset();
    a = ask(SETTINGS("CTRT_CUDA_NVML=off"), false, false);
    CHECK(a.count == 2 && a.inits == 1, "%d devices, cuInit %d times", a.count, a.inits);

    group("when nvmlInit fails, the driver is used");
    fake_machine.nvml_init = 999;
    a = ask(NULL, false, false);
    CHECK(a.count == 2 && a.inits == 1, "%d devices, cuInit %d times", a.count, a.inits);

    group("with a GPU in MIG mode the driver enumerates the devices");
    fake_machine_reset();
    fake_machine.all[1].mig = 1;
    a = ask(NULL, false, true);
    CHECK(a.count == 2 && a.inits == 1 && strncmp(a.uuids[1], "MIG-a1", 6) == 0, "%d devices, cuInit %d times, %s", a.count, a.inits, a.uuids[1]);
    a = ask(SETTINGS("CUDA_VISIBLE_DEVICES=0"), false, true);
    CHECK(a.inits == 1, "cuInit %d times", a.inits);

    group("problems that NVML does not report: a fabric that is not ready, missing device nodes");
    fake_machine_reset();
    fake_machine.init = 802;
    fake_machine.all[1].fabric = 2;
    a = ask(NULL, false, false);
    CHECK(a.status == CTRT_ERR_NO_DEVICE && strncmp(a.message, "[not-ready]", 11) == 0, "%d devices: %s", a.count, a.message);
    show(no_uvm);
    fake_machine_reset();
    fake_machine.init = 999;
    a = ask(NULL, false, false);
    CHECK(a.status == CTRT_ERR_NO_DEVICE && strstr(a.message, "modprobe nvidia-uvm") != NULL, "%d devices: %s", a.count, a.message);
    fake_machine.init = 0;                      /* cuInit succeeds, so the devices are usable */
    a = ask(NULL, false, false);
    CHECK(a.count == 2 && a.inits == 1, "%d devices: %s", a.count, a.message);
    show(module_only);

    group("a misspelt environment variable is logged");
    fake_machine_reset();
    a = ask(SETTINGS("CUDA_VISIBLE_DEVICE=1"), false, false);
    CHECK(strstr(a.logged, "CUDA_VISIBLE_DEVICE is set, and has no effect") != NULL && a.count == 2, "logged: %s", a.logged);
    a = ask(SETTINGS("CUDA_VISIBLE_DEVICES=1"), false, false);
    CHECK(a.logged[0] == '\0', "logged: %s", a.logged);
}

/* Sets up GPUs of two models, of which the driver lists the second model first. */
static void mixed(void)
{
    fake_machine_reset();
    fake_machine.present = fake_machine.count = 3;
    fake_machine.all[0].name = "NVIDIA T4";
    fake_machine.gpus[0] = 2, fake_machine.gpus[1] = 0, fake_machine.gpus[2] = 1;
}

static void test_order(void)
{
    show(module_only);
    group("devices are in nvidia-smi's order, independently of the driver's order");
    mixed();
    struct answer a = ask(NULL, false, true);
    CHECK(a.count == 3 && a.inits == 0 && strcmp(a.uuids[0], UUID(0)) == 0 && strcmp(a.uuids[2], UUID(2)) == 0, "%s, %s", a.uuids[0], a.uuids[2]);
    fake_machine.nvml = false;
    a = ask(NULL, false, true);
    CHECK(a.count == 3 && strcmp(a.uuids[0], UUID(0)) == 0 && strcmp(a.uuids[2], UUID(2)) == 0, "without NVML: %s, %s", a.uuids[0], a.uuids[2]);

    group("indices in CUDA_VISIBLE_DEVICES are the driver's; if the models differ, the driver resolves them");
    mixed();
    fake_machine.count = 1;                     /* the driver shows its device 0 only */
    a = ask(SETTINGS("CUDA_VISIBLE_DEVICES=0"), false, false);
    CHECK(a.count == 1 && a.inits == 0, "%d devices, cuInit %d times", a.count, a.inits);
    a = ask(SETTINGS("CUDA_VISIBLE_DEVICES=0"), false, true);
    CHECK(a.count == 1 && a.inits == 1 && strcmp(a.uuids[0], UUID(2)) == 0, "%s, cuInit %d times", a.uuids[0], a.inits);
    a = ask(SETTINGS("CUDA_VISIBLE_DEVICES=0", "CUDA_DEVICE_ORDER=PCI_BUS_ID"), false, true);
    CHECK(a.inits == 0 && strcmp(a.uuids[0], UUID(0)) == 0, "%s, cuInit %d times", a.uuids[0], a.inits);
    mixed();
    a = ask(SETTINGS("CUDA_DEVICE_ORDER=FASTEST_FIRST"), false, true);
    CHECK(a.inits == 1 && strcmp(a.uuids[0], UUID(2)) == 0, "%s, cuInit %d times", a.uuids[0], a.inits);
}

static void test_opening(void)
{
    int32_t count = 0;
    cu_device device = -1;
    show(module_only);
    group("a device found by NVML is mapped to the driver's ordinal by UUID");
    mixed();
    IN_CHILD(NULL) {
        static const int want[] = { 1, 2, 0 };
        CHECK(cuda_count(&count) == CTRT_OK && count == 3 && fake_machine.inits == 0, "%d devices: %s", count, host_error);
        for (int i = 0; i < 3; i++)
            CHECK(cuda_ordinal_of(&device, i) == CTRT_OK && device == want[i], "cuda:%d is %d, expected %d: %s", i, device, want[i], host_error);
        CHECK(fake_machine.inits == 1, "cuInit was called %d times", fake_machine.inits);
        CHECK(cuda_ordinal_of(&device, 3) == CTRT_ERR_NO_DEVICE && strstr(host_error, "there are 3 CUDA devices") != NULL, "%s", host_error);
        CHECK(cuda_ordinal_of(&device, -1) == CTRT_ERR_NO_DEVICE, "cuda:-1 did not give CTRT_ERR_NO_DEVICE");
    }
    CHILD_END;

    group("a change of CUDA_VISIBLE_DEVICES after counting is reported, and no other device is used instead");
    fake_machine_reset();
    IN_CHILD("CUDA_VISIBLE_DEVICES=0") {
        CHECK(cuda_count(&count) == CTRT_OK && count == 1, "%d devices", count);
        setenv("CUDA_VISIBLE_DEVICES", "1", 1);
        fake_machine.count = 1, fake_machine.gpus[0] = 1;
        CHECK(cuda_ordinal_of(&device, 0) == CTRT_ERR_NO_DEVICE && strstr(host_error, "the driver does not show " UUID(0)) != NULL
              && strstr(host_error, "CUDA_VISIBLE_DEVICES is now 1") != NULL, "%s", host_error);
        CHECK(strstr(host_logged, "driver shows 0") != NULL || strstr(host_logged, "too late") != NULL, "logged: %s", host_logged);
    }
    CHILD_END;
    IN_CHILD("CUDA_VISIBLE_DEVICES=1") {
        fake_machine.count = 1, fake_machine.gpus[0] = 1;
        CHECK(cuda_count(&count) == CTRT_OK && cuda_ordinal_of(&device, 0) == CTRT_OK && device == 0 && host_logged[0] == '\0', "%s", host_logged);
        setenv("CUDA_VISIBLE_DEVICES", "0", 1);
        CHECK(cuda_ordinal_of(&device, 0) == CTRT_OK && strstr(host_logged, "CUDA_VISIBLE_DEVICES has changed to 0") != NULL, "logged: %s", host_logged);
    }
    CHILD_END;

    group("a process that only counted devices can fork, and the child can use them");
    fake_machine_reset();
    IN_CHILD(NULL) {
        ctrt_device_info info = { .size = sizeof info };
        CHECK(cuda_count(&count) == CTRT_OK && cuda_describe(1, &info) == CTRT_OK && fake_machine.inits == 0,
              "counting or describing failed, or called cuInit in the parent");
        fflush(stdout);
        const pid_t grandchild = fork();
        if (grandchild == 0)
            _exit(cuda_ordinal_of(&device, 1) == CTRT_OK && fake_machine.inits == 1 && device == 1 ? 0 : 1);
        int how = 0;
        waitpid(grandchild, &how, 0);
        CHECK(how == 0, "the device cannot be used in the child");
    }
    CHILD_END;

    group("a child forked after CUDA was used gets CTRT_ERR_FORKED with the parent's process id");
    IN_CHILD(NULL) {
        CHECK(cuda_ordinal_of(&device, 0) == CTRT_OK, "%s", host_error);
        const pid_t parent = getpid();
        fflush(stdout);
        const pid_t grandchild = fork();
        if (grandchild == 0) {
            char words[64];
            ctrt_device_info info = { .size = sizeof info };
            snprintf(words, sizeof words, "process %d initialised CUDA", (int)parent);
            const bool told = cuda_ordinal_of(&device, 1) == CTRT_ERR_FORKED && strstr(host_error, words) != NULL;
            _exit(told && cuda_count(&count) == CTRT_OK && count == 2 && cuda_describe(1, &info) == CTRT_OK && fake_machine.inits == 1 ? 0 : 1);
        }
        int how = 0;
        waitpid(grandchild, &how, 0);
        CHECK(how == 0, "the child did not get CTRT_ERR_FORKED with the parent's id, or could not count and describe");
    }
    CHILD_END;
    group("a failed discovery keeps its error when NVML works later");
    fake_machine_reset();
    fake_machine.init = 802;
    fake_machine.nvml_init = 999;
    IN_CHILD(NULL) {
        CHECK(cuda_count(&count) == CTRT_ERR_NO_DEVICE, "%d devices", count);
        fake_machine.nvml_init = 0;
        CHECK(cuda_count(&count) == CTRT_ERR_NO_DEVICE && strncmp(host_error, "[not-ready]", 11) == 0 && fake_machine.inits == 1, "%s", host_error);
    }
    CHILD_END;
}

static void test_usage(void)
{
    show(module_only);
    group("load, memory and processes come from NVML, without cuInit");
    fake_machine_reset();
    IN_CHILD("CUDA_VISIBLE_DEVICES=1") {
        ctrt_device_process list[2];
        ctrt_device_usage usage = { .size = sizeof usage, .process_room = 2, .processes = list };
        CHECK(cuda_usage(0, &usage) == CTRT_OK, "%s", host_error);
        const uint64_t total = (uint64_t)140 << 30;
        CHECK(usage.busy == 2 && usage.memory_busy == 7 && usage.total_memory == total && usage.free_memory == total / 4 && usage.temperature == -1,
              "busy %d, %d; memory %llu of %llu; %d degrees", usage.busy, usage.memory_busy, (unsigned long long)usage.used_memory,
              (unsigned long long)usage.total_memory, usage.temperature);
        CHECK(usage.process_count == 3 && list[0].pid == 1000 && list[0].memory == 4096 && list[1].pid == 1001 && list[1].memory == UINT64_MAX,
              "%d processes, %d with %llu bytes", usage.process_count, (int)list[0].pid, (unsigned long long)list[0].memory);
        CHECK(cuda_usage(1, &usage) == CTRT_ERR_NO_DEVICE,
              "cuda_usage of a hidden device did not give CTRT_ERR_NO_DEVICE");
        CHECK(cuda_usage(0, &usage) == CTRT_OK && fake_machine.inits == 0 && fake_machine.nvml_inits == 1,
              "cuInit %d times, NVML %d times", fake_machine.inits, fake_machine.nvml_inits);
    }
    CHILD_END;
    fake_machine.processes = 1000;
    IN_CHILD(NULL) {
        ctrt_device_process list[1500];
        ctrt_device_usage usage = { .size = sizeof usage, .process_room = 1500, .processes = list };
        CHECK(cuda_usage(0, &usage) == CTRT_OK && usage.process_count == 1001 && list[999].pid == 1999 && list[1000].pid == 2000, "%d processes",
              usage.process_count);
    }
    CHILD_END;
    fake_machine.nvml = false;
    IN_CHILD(NULL) {
        ctrt_device_usage usage = { .size = sizeof usage };
        CHECK(cuda_usage(0, &usage) == CTRT_ERR_NOT_SUPPORTED && strstr(host_error, "libnvidia-ml.so.1") != NULL, "%s", host_error);
    }
    CHILD_END;

    group("links between devices come from NVML, and from the driver once it is initialised");
    fake_machine_reset();
    fake_machine.present = fake_machine.count = 3;
    IN_CHILD(NULL) {
        ctrt_device_link link = { .size = sizeof link };
        CHECK(cuda_link(0, 1, &link) == CTRT_OK && link.direct == 1 && link.kind == CTRT_LINK_NVLINK && link.links == 4, "direct %d, kind %d, %d links",
              link.direct, link.kind, link.links);
        CHECK(cuda_link(0, 2, &link) == CTRT_OK && link.direct == 0 && link.kind == CTRT_LINK_SYSTEM && link.links == 0, "direct %d, kind %d, %d links",
              link.direct, link.kind, link.links);
        CHECK(fake_machine.inits == 0, "cuInit was called");
        cu_device device;
        CHECK(cuda_ordinal_of(&device, 0) == CTRT_OK && cuda_link(0, 2, &link) == CTRT_OK && link.direct == 1,
              "direct does not follow the driver after cuInit");
        CHECK(cuda_link(0, 3, &link) == CTRT_ERR_NO_DEVICE,
              "a link to a missing device did not give CTRT_ERR_NO_DEVICE");
    }
    CHILD_END;

    group("the CPUs near a device, as a list of ranges");
    IN_CHILD(NULL) {
        ctrt_device_info info = { .size = sizeof info };
        CHECK(cuda_describe(1, &info) == CTRT_OK && strcmp(info.cpus, "0-64") == 0, "%s", info.cpus);
    }
    CHILD_END;
    static const struct file placed[] = { { "/sys/bus/pci/devices/0000:01:00.0/local_cpulist", "4-7,12\n", 0 },
                                          { "/sys/bus/pci/devices/0000:01:00.0/numa_node", "1\n", 0 }, END };
    show(placed);
    IN_CHILD(NULL) {
        ctrt_device_info info = { .size = sizeof info };
        CHECK(cuda_describe(0, &info) == CTRT_OK && strcmp(info.cpus, "4-7,12") == 0 && info.numa_node == 1, "%s, node %d", info.cpus, info.numa_node);
        /* A caller built with an older, smaller ctrt_device_info. */
        memset(&info, 0x5a, sizeof info);
        info.size = offsetof(ctrt_device_info, cpus);
        CHECK(cuda_describe(0, &info) == CTRT_OK && info.cpus[0] == 0x5a
              && info.size == offsetof(ctrt_device_info, cpus), "cuda_describe wrote beyond info.size, or changed it");
    }
    CHILD_END;
}

TEST_MAIN
{
    bed_begin();
    test_lists();
    test_counting();
    test_order();
    test_opening();
    test_usage();
    return bed_end();
}

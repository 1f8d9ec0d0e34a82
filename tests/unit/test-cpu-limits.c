/* SPDX-License-Identifier: Apache-2.0 */
/* Tests the cpu backend's memory limits and memory nodes on other machines: containers, control groups and machines
 * with several nodes. Each case is a tree of the files in /proc and /sys that the backend reads. */
#include <errno.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <linux/mempolicy.h>
#include <sys/stat.h>
#include <unistd.h>

#include "backends/cpu/host/internal.h"
#include "backends/cpu/host/numa.h"
#include "fake_host.h"

const ctrt_host *cpu_host = &host_table;

#define MIB ((uint64_t)1 << 20)
#define GIB ((uint64_t)1 << 30)
#define NONE UINT64_MAX

/* ---- trees ---- */

struct file {
    const char *path, *text;
};

static char tree[] = "/tmp/ctrt-machine-XXXXXX";

static void make_parents(char *path)
{
    for (char *slash = path + 1; (slash = strchr(slash, '/')); slash++) {
        *slash = '\0';
        (void)mkdir(path, 0755);
        *slash = '/';
    }
}

static void show(const struct file *files)
{
    char path[1024];
    snprintf(path, sizeof path, "rm -rf %s/*", tree);
    REQUIRE_EQ(system(path), 0);
    for (; files && files->path; files++) {
        snprintf(path, sizeof path, "%s%s", tree, files->path);
        make_parents(path);
        FILE *out = fopen(path, "w");
        REQUIRE(out, "%s: %s", path, strerror(errno));
        fputs(files->text, out);
        fclose(out);
    }
}

#define MEMINFO(total, available, swap)                                                                                \
    { "/proc/meminfo", "MemTotal:       " total " kB\nMemFree:         1234 kB\nMemAvailable:   " available             \
                       " kB\nCached: 5 kB\nSwapTotal: 9 kB\nSwapFree:       " swap " kB\n" }
#define NO_SWAP "0"
#define STATUS(anonymous, swapped)                                                                                     \
    { "/proc/self/status", "Name:\tx\nVmSize:\t 9000000 kB\nRssAnon:\t" anonymous " kB\nRssFile:\t 1 kB\nVmSwap:\t" swapped \
                           " kB\nMems_allowed_list:\t0\n" }

/* A machine with 64 GiB, of which 48 GiB are available. */
#define LARGE_MACHINE MEMINFO("67108864", "50331648", NO_SWAP), STATUS("10240", "0")

static const struct file bare[] = { LARGE_MACHINE, { "/proc/self/cgroup", "0::/user.slice\n" }, { NULL, NULL } };

static const struct file with_swap[] = {
    MEMINFO("67108864", "50331648", "8388608"), STATUS("10240", "0"), { NULL, NULL },
};

/* Docker or Kubernetes with cgroup v2 and its own namespace: the limit is at the root of the mount. */
static const struct file container_v2[] = {
    LARGE_MACHINE,
    { "/proc/self/cgroup", "0::/\n" },
    { "/sys/fs/cgroup/memory.max", "4294967296\n" },
    { "/sys/fs/cgroup/memory.high", "max\n" },
    { "/sys/fs/cgroup/memory.current", "3221225472\n" },
    { "/sys/fs/cgroup/memory.swap.max", "0\n" },
    { "/sys/fs/cgroup/memory.stat", "anon 2147483648\nfile 1073741824\nshmem 0\ninactive_anon 0\nactive_anon 2147483648\n"
                                    "inactive_file 536870912\nactive_file 536870912\nslab_reclaimable 0\nslab 0\n" },
    { NULL, NULL },
};

/* systemd: the service may use 8 GiB; the slice that it shares with other services has 1 GiB left. */
static const struct file slice_v2[] = {
    LARGE_MACHINE,
    { "/proc/self/cgroup", "0::/system.slice/train.service\n" },
    { "/sys/fs/cgroup/system.slice/train.service/memory.max", "8589934592\n" },
    { "/sys/fs/cgroup/system.slice/train.service/memory.current", "1073741824\n" },
    { "/sys/fs/cgroup/system.slice/train.service/memory.swap.max", "max\n" },
    { "/sys/fs/cgroup/system.slice/memory.max", "17179869184\n" },
    { "/sys/fs/cgroup/system.slice/memory.current", "16106127360\n" },
    { NULL, NULL },
};

/* Only memory.high: the process is throttled above 2 GiB and never killed. */
static const struct file high_v2[] = {
    LARGE_MACHINE,
    { "/proc/self/cgroup", "0::/a\n" },
    { "/sys/fs/cgroup/a/memory.max", "max\n" },
    { "/sys/fs/cgroup/a/memory.high", "2147483648\n" },
    { "/sys/fs/cgroup/a/memory.current", "1073741824\n" },
    { NULL, NULL },
};

/* v2 with 2 GiB of memory and 1 GiB of swap, half of which is used; the machine has 8 GiB of swap. */
static const struct file swap_v2[] = {
    MEMINFO("67108864", "50331648", "8388608"),
    STATUS("10240", "0"),
    { "/proc/self/cgroup", "0::/a\n" },
    { "/sys/fs/cgroup/a/memory.max", "2147483648\n" },
    { "/sys/fs/cgroup/a/memory.current", "1073741824\n" },
    { "/sys/fs/cgroup/a/memory.swap.max", "1073741824\n" },
    { "/sys/fs/cgroup/a/memory.swap.current", "536870912\n" },
    { NULL, NULL },
};

/* Docker with v1: the path of the group is the host's and does not exist in the container; the root of the mount is
 * the container's group. */
static const struct file docker_v1[] = {
    LARGE_MACHINE,
    { "/proc/self/cgroup", "11:cpuset:/docker/abc\n4:memory:/docker/abc\n1:name=systemd:/docker/abc\n0::/\n" },
    { "/sys/fs/cgroup/memory/memory.limit_in_bytes", "2147483648\n" },
    { "/sys/fs/cgroup/memory/memory.usage_in_bytes", "1610612736\n" },
    { "/sys/fs/cgroup/memory/memory.memsw.limit_in_bytes", "9223372036854771712\n" },
    { "/sys/fs/cgroup/memory/memory.stat", "cache 1\ninactive_file 7\ntotal_inactive_file 268435456\n"
                                           "total_active_file 268435456\n" },
    { NULL, NULL },
};

static const struct file unlimited_v1[] = {
    LARGE_MACHINE,
    { "/proc/self/cgroup", "4:memory:/user\n" },
    { "/sys/fs/cgroup/memory/user/memory.limit_in_bytes", "9223372036854771712\n" },
    { "/sys/fs/cgroup/memory/user/memory.usage_in_bytes", "1610612736\n" },
    { NULL, NULL },
};

static const struct file nothing[] = { { NULL, NULL } };

static const struct file rubbish[] = {
    { "/proc/meminfo", "MemTotal\nMemAvailable: -\n" },
    { "/proc/self/cgroup", "::::\n0:\n:\n" },
    { "/sys/fs/cgroup/memory.max", "" },
    { NULL, NULL },
};

/* ---- available memory ---- */

static void test_room(void)
{
    static const struct {
        const char *name;
        const struct file *files;
        uint64_t total, free, grantable;
        const char *bound;
    } cases[] = {
        { "no limit", bare, 64 * GIB, 48 * GIB, 48 * GIB, "machine" },
        { "swap", with_swap, 64 * GIB, 48 * GIB, 56 * GIB, "machine" },
        { "container, v2", container_v2, 4 * GIB, 2 * GIB, 2 * GIB, "control group /" },
        { "slice, v2", slice_v2, 8 * GIB, GIB, GIB, "control group /system.slice" },
        { "memory.high", high_v2, 2 * GIB, GIB, 48 * GIB, "machine" },
        { "swap in a group, v2", swap_v2, 2 * GIB, GIB, GIB + GIB / 2, "control group /a" },
        { "docker, v1", docker_v1, 2 * GIB, GIB, GIB, "control group /" },
        { "no limit, v1", unlimited_v1, 64 * GIB, 48 * GIB, 48 * GIB, "machine" },
        { "nothing to read", nothing, 0, 0, NONE, "" },
        { "rubbish", rubbish, 0, 0, NONE, "" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct cpu_memory_room room;
        show(cases[i].files);
        cpu_memory_room(&room);
        REQUIRE(!(room.total != cases[i].total || room.free != cases[i].free ||
                room.grantable != cases[i].grantable
            || strcmp(room.bound, cases[i].bound) != 0),
                "%s: total %llu MiB, free %llu MiB, grantable %llu MiB by \"%s\"; expected %llu, %llu, %llu by \"%s\"",
                cases[i].name, (unsigned long long)(room.total / MIB), (unsigned long long)(room.free / MIB),
                (unsigned long long)(room.grantable / MIB), room.bound, (unsigned long long)(cases[i].total / MIB),
                (unsigned long long)(cases[i].free / MIB), (unsigned long long)(cases[i].grantable / MIB),
                cases[i].bound);
    }
}

/* ---- refused allocations ---- */

static void check_is(const char *value)
{
    setenv("CTRT_CPU_MEMORY_CHECK", value, 1);
    REQUIRE_EQ(cpu_limits_init(), CTRT_OK);
}

static void test_refusal(void)
{
    show(container_v2);                         /* 2 GiB left */
    check_is("on");
    REQUIRE_EQ(cpu_memory_grant(2 * GIB), CTRT_OK);
    cpu_memory_returned(2 * GIB);
    REQUIRE_EQ(cpu_memory_grant(2 * GIB + 64), CTRT_ERR_OUT_OF_MEMORY);
    static const char *const said[] = { "2.00 GiB (2147483712 bytes)", "control group /", "limit 4.00 GiB",
                                        "used and not reclaimable 2.00 GiB", "CTRT_CPU_MEMORY_CHECK=off" };
    for (int i = 0; i < 5; i++)
        REQUIRE(strstr(host_error, said[i]), "the refusal does not say \"%s\": %s", said[i], host_error);

    check_is("off");
    REQUIRE_EQ(cpu_memory_grant(3 * GIB), CTRT_OK);
    cpu_memory_returned(3 * GIB);

    show(nothing);                              /* without known limits nothing is refused */
    check_is("on");
    REQUIRE_EQ(cpu_memory_grant(1024 * GIB), CTRT_OK);
    cpu_memory_returned(1024 * GIB);
}

/* Granted blocks that are not yet written to are missing from the group's usage, and count nevertheless. */
static void test_promises(void)
{
    show(container_v2);
    check_is("on");
    int granted = 0;
    while (granted < 100 && cpu_memory_grant(256 * MIB) == CTRT_OK)
        granted++;
    if (granted != 8)                           /* 10 MiB of other anonymous memory count as written */
        FAIL("of 2 GiB, %d blocks of 256 MiB were granted, expected 8", granted);
    REQUIRE(strstr(host_error, "not yet written to 1.99 GiB"), "the refusal: %s", host_error);
    cpu_memory_returned(256 * MIB);
    REQUIRE_EQ(cpu_memory_grant(256 * MIB), CTRT_OK);
    REQUIRE_EQ(cpu_memory_grant(256 * MIB), CTRT_ERR_OUT_OF_MEMORY);

    /* Written blocks are in the group's usage and in the process's; half of the process's memory is swapped out. */
    static const struct file written[] = {
        MEMINFO("67108864", "50331648", NO_SWAP), STATUS("1048576", "1048576"), { "/proc/self/cgroup", "0::/\n" },
        { "/sys/fs/cgroup/memory.max", "4294967296\n" }, { "/sys/fs/cgroup/memory.current", "3221225472\n" }, { NULL, NULL },
    };
    show(written);
    REQUIRE_EQ(cpu_memory_grant(1 * GIB), CTRT_OK);
    REQUIRE_EQ(cpu_memory_grant(1 * GIB), CTRT_ERR_OUT_OF_MEMORY);
    cpu_memory_returned(3 * GIB);
}

/* The check runs once for many small requests, and for each request when little memory is left. */
static void test_small_ones(void)
{
    static const struct file full[] = {
        LARGE_MACHINE, { "/proc/self/cgroup", "0::/\n" }, { "/sys/fs/cgroup/memory.max", "1073741824\n" },
        { "/sys/fs/cgroup/memory.current", "1072693248\n" }, { NULL, NULL },     /* 1 MiB left */
    };
    show(bare);
    check_is("on");
    REQUIRE_EQ(cpu_memory_grant(2 * MIB), CTRT_OK);
    show(full);
    int granted = 0;
    while (granted < 1000 && cpu_memory_grant(2 * MIB) == CTRT_OK)
        granted++;
    REQUIRE(!(granted > 16), "with 1 MiB left, %d blocks of 2 MiB were granted before a check", granted);
    for (int i = 0; i < 3; i++)
        REQUIRE_EQ(cpu_memory_grant(2 * MIB), CTRT_ERR_OUT_OF_MEMORY);
    cpu_memory_returned((size_t)(granted + 1) * 2 * MIB);
}

/* ---- memory nodes ---- */

static void test_lists(void)
{
    static const struct { const char *text; bool good; int count; } cases[] = {
        { "0\n", true, 1 },   { "0-3,8", true, 5 }, { "0-1023", true, 1024 }, { "\n", true, 0 },      { "", true, 0 },
        { "x", false, 0 },    { "3-1", false, 0 },  { "0-5000", false, 1024 }, { "1,2,x", false, 2 }, { "7 8", false, 1 },
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct cpu_list list;
        bool good = cpu_list_parse(&list, cases[i].text);
        REQUIRE(!(good != cases[i].good || cpu_list_count(&list) != cases[i].count),
                "list \"%s\": %s, %d members; expected %s, %d", cases[i].text, good ? "good" : "bad",
                cpu_list_count(&list), cases[i].good ? "good" : "bad", cases[i].count);
    }
}

#define NODES    "/sys/devices/system/node/"
#define ALLOWED(list) { "/proc/self/status", "Name:\tx\nCpus_allowed_list:\t0-7\nMems_allowed:\t1\nMems_allowed_list:\t" list "\n" }

static const struct file one_node[] = {
    ALLOWED("0"), { NODES "online", "0\n" }, { NODES "has_memory", "0\n" }, { NODES "node0/cpulist", "0-7\n" }, { NULL, NULL },
};
static const struct file two_nodes[] = {
    ALLOWED("0-1"), { NODES "online", "0-1\n" }, { NODES "has_memory", "0-1\n" }, { NODES "node0/cpulist", "0-3,8-11\n" },
    { NODES "node1/cpulist", "4-7,12-15\n" }, { NULL, NULL },
};
static const struct file two_nodes_cpuset_one[] = {
    ALLOWED("1"), { NODES "online", "0-1\n" }, { NODES "has_memory", "0-1\n" }, { NODES "node0/cpulist", "0-3\n" },
    { NODES "node1/cpulist", "4-7\n" }, { NULL, NULL },
};
/* Two sockets, a node of slow memory without processors (2), and processors without memory (3). */
static const struct file odd_nodes[] = {
    ALLOWED("0-7"), { NODES "online", "0-3\n" }, { NODES "has_memory", "0-2\n" }, { NODES "node0/cpulist", "0-3\n" },
    { NODES "node1/cpulist", "4-7\n" }, { NODES "node2/cpulist", "\n" }, { NODES "node3/cpulist", "8-9\n" }, { NULL, NULL },
};

static void test_nodes(void)
{
    static const struct {
        const struct file *files;
        const char *text, *processors;
        int mode;
        const char *nodes, *error;
    } cases[] = {
        { one_node, "local", "0-7", MPOL_DEFAULT, NULL, NULL },
        { one_node, "interleave", "0-7", MPOL_DEFAULT, NULL, NULL },
        { one_node, "0", "0-7", MPOL_DEFAULT, NULL, NULL },
        { one_node, "1", "0-7", 0, NULL, "may use are 0" },
        { two_nodes, "local", "0-15", MPOL_DEFAULT, NULL, NULL },
        { two_nodes, "interleave", "0-15", MPOL_INTERLEAVE, "0-1", NULL },
        { two_nodes, "interleave", "3-4", MPOL_INTERLEAVE, "0-1", NULL },
        { two_nodes, "interleave", "0-3", MPOL_DEFAULT, NULL, NULL },   /* pinned to one node: local is best */
        { two_nodes, "1", "0-3", MPOL_PREFERRED, "1", NULL },
        { two_nodes, "2", "0-15", 0, NULL, "may use are 0-1" },
        { two_nodes_cpuset_one, "interleave", "0-7", MPOL_DEFAULT, NULL, NULL },
        { two_nodes_cpuset_one, "0", "0-7", 0, NULL, "may use are 1" },
        { odd_nodes, "interleave", "0-9", MPOL_INTERLEAVE, "0-1", NULL },
        { odd_nodes, "interleave", "8-9", MPOL_INTERLEAVE, "0-2", NULL },    /* no node is near: all nodes */
        { odd_nodes, "2", "0-9", MPOL_PREFERRED, "2", NULL },
        { odd_nodes, "3", "0-9", 0, NULL, "may use are 0-2" },
        { nothing, "interleave", "0-7", MPOL_DEFAULT, NULL, NULL },
        { nothing, "0", "0-7", MPOL_DEFAULT, NULL, NULL },
        { nothing, "1", "0-7", 0, NULL, "0 alone" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct cpu_list processors, nodes, want;
        int mode = -1;
        show(cases[i].files);
        REQUIRE_TRUE(cpu_list_parse(&processors, cases[i].processors));
        host_error[0] = '\0';
        ctrt_status status = cpu_numa_choose(&mode, &nodes, cases[i].text, &processors);
        if (cases[i].error) {
            REQUIRE(!(status != CTRT_ERR_INVALID_ARGUMENT || !strstr(host_error, cases[i].error)),
                    "case %zu, CTRT_NUMA=%s: status %d, \"%s\"; expected \"...%s\"", i, cases[i].text, (int)status,
                    host_error, cases[i].error);
            continue;
        }
        REQUIRE(!(status != CTRT_OK || mode != cases[i].mode),
                "case %zu, CTRT_NUMA=%s: status %d, mode %d, expected %d", i, cases[i].text, (int)status, mode,
                cases[i].mode);
        REQUIRE(!(cases[i].nodes && (!cpu_list_parse(&want, cases[i].nodes) || memcmp(&want, &nodes,
                sizeof want) != 0)), "case %zu, CTRT_NUMA=%s: not the nodes %s", i, cases[i].text, cases[i].nodes);
    }
}

/* The system call itself on this machine. Every machine supports a preference for node 0. */
static void test_placing(void)
{
    show(two_nodes);
    setenv("CTRT_NUMA", "0", 1);
    REQUIRE_EQ(cpu_numa_init(), CTRT_OK);
    REQUIRE_EQ(cpu_pages_init(), CTRT_OK);
    check_is("off");
    host_logged[0] = '\0';
    void *block = NULL;
    REQUIRE_EQ(cpu_pages_map(&block, 4 * MIB), CTRT_OK);
    memset(block, 1, 4 * MIB);
    if (host_logged[0]) {
        printf("# the node of a block is not tested: %s\n", host_logged);
    } else {
        char line[512], *found = NULL;
        FILE *maps = fopen("/proc/self/numa_maps", "r");
        while (maps && !found && fgets(line, sizeof line, maps))
            if (strtoull(line, NULL, 16) == (uintptr_t)block)
                found = line;
        if (maps)
            fclose(maps);
        if (!maps)
            printf("# no numa_maps: the node of a block is not tested\n");
        REQUIRE(!(maps && (!found || !strstr(found, "prefer:0"))), "the block's line in numa_maps: %s",
                found ? found : "none");
    }
    cpu_pages_unmap(block, 4 * MIB);
    unsetenv("CTRT_NUMA");
    REQUIRE_EQ(cpu_numa_init(), CTRT_OK);
}

TEST_MAIN
{
    cpu_root = mkdtemp(tree);
    REQUIRE(cpu_root != NULL, "cannot create folder %s", tree);
    group("total, free and grantable memory come from the tightest limit");
    test_room();
    group("requests above the limit are refused with a reason");
    test_refusal();
    group("granted memory that is not yet written counts");
    test_promises();
    group("small requests are checked together, and one by one near the limit");
    test_small_ones();
    group("lists of processors and nodes are parsed");
    test_lists();
    group("CTRT_NUMA selects the policy and the nodes");
    test_nodes();
    group("blocks are on the selected node");
    test_placing();
    show(nothing);
    CHECK(rmdir(tree) == 0, "%s is not empty", tree);
    return done();
}

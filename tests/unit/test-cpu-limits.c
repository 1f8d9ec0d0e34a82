/* SPDX-License-Identifier: Apache-2.0 */
/* Tests the cpu backend's memory limits and memory nodes on other machines: containers, control groups and machines
 * with several nodes. Each case is a tree of the files in /proc and /sys that the backend reads. */
#include <linux/mempolicy.h>

#include "backends/cpu/host/internal.h"
#include "backends/cpu/host/numa.h"
#include "base/param.h"
#include "calls.h"
#include "file_tree.h"
#include "log_kept.h"
#include "registry/internal.h"
#include "tap.h"

const ctrt_host *cpu_host = &registry_host;

#define MIB ((uint64_t)1 << 20)
#define GIB ((uint64_t)1 << 30)
#define NONE UINT64_MAX

/* The files of a machine end at the first one without a path. */
struct machine {
    struct file files[9];
};

#define MEMINFO(total, available, swap)                                                                              \
    { "/proc/meminfo", "MemTotal:       " total " kB\nMemFree:         1234 kB\nMemAvailable:   " available           \
                       " kB\nCached: 5 kB\nSwapTotal: 9 kB\nSwapFree:       " swap " kB\n", 0 }
#define STATUS(anonymous, swapped)                                                                                   \
    { "/proc/self/status", "Name:\tx\nVmSize:\t 9000000 kB\nRssAnon:\t" anonymous " kB\nRssFile:\t 1 kB\nVmSwap:\t"   \
                           swapped " kB\nMems_allowed_list:\t0\n", 0 }
/* A machine with 64 GiB, of which 48 GiB are available; the second one also has 8 GiB of swap. */
#define LARGE      MEMINFO("67108864", "50331648", "0"), STATUS("10240", "0")
#define LARGE_SWAP MEMINFO("67108864", "50331648", "8388608"), STATUS("10240", "0")
#define IN_GROUP(text)            { "/proc/self/cgroup", text "\n", 0 }
#define END                       { NULL, NULL, 0 }
#define V2(group, name, text)     { "/sys/fs/cgroup" group "/memory." name, text "\n", 0 }
#define V1(group, name, text)     { "/sys/fs/cgroup/memory" group "/memory." name, text "\n", 0 }

static const struct machine nothing, bare = { { LARGE, IN_GROUP("0::/user.slice") } };

/* Docker or Kubernetes with cgroup v2 and its own namespace: the limit is at the root of the mount. 2 GiB are left. */
static const struct machine container = { {
    LARGE, IN_GROUP("0::/"), V2("", "max", "4294967296"), V2("", "high", "max"), V2("", "current", "3221225472"),
    V2("", "swap.max", "0"),
    V2("", "stat", "anon 2147483648\nfile 1073741824\nshmem 0\ninactive_anon 0\nactive_anon 2147483648\n"
                   "inactive_file 536870912\nactive_file 536870912\nslab_reclaimable 0\nslab 0"),
} };

TEST(available, NULL)
{
    const struct {
        const char *name;
        struct machine machine;
        uint64_t total, free, grantable;
        const char *bound;
    } cases[] = {
        { "no limit", bare, 64 * GIB, 48 * GIB, 48 * GIB, "machine" },
        { "swap", { { LARGE_SWAP } }, 64 * GIB, 48 * GIB, 56 * GIB, "machine" },
        { "container, v2", container, 4 * GIB, 2 * GIB, 2 * GIB, "control group /" },
        /* systemd: the service may use 8 GiB; the slice that it shares with other services has 1 GiB left. */
        { "slice, v2", { {
            LARGE, IN_GROUP("0::/system.slice/train.service"),
            V2("/system.slice/train.service", "max", "8589934592"),
            V2("/system.slice/train.service", "current", "1073741824"),
            V2("/system.slice/train.service", "swap.max", "max"),
            V2("/system.slice", "max", "17179869184"), V2("/system.slice", "current", "16106127360") } },
          8 * GIB, GIB, GIB, "control group /system.slice" },
        /* Only memory.high: the process is throttled above 2 GiB and never killed. */
        { "memory.high", { {
            LARGE, IN_GROUP("0::/a"), V2("/a", "max", "max"), V2("/a", "high", "2147483648"),
            V2("/a", "current", "1073741824") } },
          2 * GIB, GIB, 48 * GIB, "machine" },
        /* 2 GiB of memory and 1 GiB of swap, half of which is used. */
        { "swap in a group, v2", { {
            LARGE_SWAP, IN_GROUP("0::/a"), V2("/a", "max", "2147483648"), V2("/a", "current", "1073741824"),
            V2("/a", "swap.max", "1073741824"), V2("/a", "swap.current", "536870912") } },
          2 * GIB, GIB, GIB + GIB / 2, "control group /a" },
        /* The path of the group is the host's and does not exist in the container; the root of the mount is the
         * container's group. */
        { "docker, v1", { {
            LARGE, IN_GROUP("11:cpuset:/docker/abc\n4:memory:/docker/abc\n1:name=systemd:/docker/abc\n0::/"),
            V1("", "limit_in_bytes", "2147483648"), V1("", "usage_in_bytes", "1610612736"),
            V1("", "memsw.limit_in_bytes", "9223372036854771712"),
            V1("", "stat", "cache 1\ninactive_file 7\ntotal_inactive_file 268435456\ntotal_active_file 268435456") } },
          2 * GIB, GIB, GIB, "control group /" },
        { "no limit, v1", { {
            LARGE, IN_GROUP("4:memory:/user"), V1("/user", "limit_in_bytes", "9223372036854771712"),
            V1("/user", "usage_in_bytes", "1610612736") } },
          64 * GIB, 48 * GIB, 48 * GIB, "machine" },
        { "nothing to read", nothing, 0, 0, NONE, "" },
        { "invalid files", { {
            { "/proc/meminfo", "MemTotal\nMemAvailable: -\n", 0 }, IN_GROUP("::::\n0:\n:"), V2("", "max", "") } },
          0, 0, NONE, "" },
    };
    EACH(c, cases) {
        struct cpu_memory_limits available;
        group("total, free and grantable memory come from the tightest limit: %s", c->name);
        make_tree(c->machine.files);
        cpu_memory_limits(&available);
        CHECK_EQ(available.total / MIB, c->total / MIB);
        CHECK_EQ(available.free / MIB, c->free / MIB);
        CHECK_EQ(available.grantable / MIB, c->grantable / MIB);
        CHECK_STR(available.bound, c->bound);
    }
}

static void set_check(const char *value)
{
    setenv("CTRT_CPU_MEMORY_CHECK", value, 1);
    param_forget_values();
    REQUIRE_EQ(cpu_limits_init(), CTRT_OK);
}

static void check_granted(uint64_t bytes)
{
    CHECK_EQ(cpu_memory_grant(bytes), CTRT_OK);
    cpu_memory_returned(bytes);
}

static int grant_all(uint64_t bytes)
{
    int granted = 0;
    while (granted < 1000 && cpu_memory_grant(bytes) == CTRT_OK)
        granted++;
    return granted;
}

TEST(refusal, NULL)
{
    static const char *const words[] = { "2.00 GiB (2147483712 bytes)", "control group /", "limit 4.00 GiB",
                                         "used and not reclaimable 2.00 GiB", "CTRT_CPU_MEMORY_CHECK=off" };
    group("requests above the limit are refused with a reason");
    make_tree(container.files);
    set_check("on");
    check_granted(2 * GIB);
    EACH(word, words)
        CHECK_FAILS(cpu_memory_grant(2 * GIB + 64), CTRT_ERR_OUT_OF_MEMORY, *word);
    set_check("off");
    check_granted(3 * GIB);
    make_tree(nothing.files);                             /* without known limits nothing is refused */
    set_check("on");
    check_granted(1024 * GIB);
}

TEST(promises, "granted memory that is not yet written counts, although it is missing from the group's usage")
{
    make_tree(container.files);
    set_check("on");
    CHECK_EQ(grant_all(256 * MIB), 8);          /* 10 MiB of other anonymous memory count as written */
    CHECK_HAS(ctrt_error_message(), "not yet written 1.99 GiB");
    cpu_memory_returned(256 * MIB);
    CHECK_EQ(cpu_memory_grant(256 * MIB), CTRT_OK);
    CHECK_EQ(cpu_memory_grant(256 * MIB), CTRT_ERR_OUT_OF_MEMORY);

    /* Written blocks are in the group's usage and in the process's; half of the process's memory is swapped out. */
    make_tree((const struct file[]){
        MEMINFO("67108864", "50331648", "0"), STATUS("1048576", "1048576"), IN_GROUP("0::/"),
        V2("", "max", "4294967296"), V2("", "current", "3221225472"), END });
    CHECK_EQ(cpu_memory_grant(1 * GIB), CTRT_OK);
    CHECK_EQ(cpu_memory_grant(1 * GIB), CTRT_ERR_OUT_OF_MEMORY);
    cpu_memory_returned(3 * GIB);
}

TEST(small_requests, "small requests are checked together, and one by one near the limit")
{
    make_tree(bare.files);
    set_check("on");
    CHECK_EQ(cpu_memory_grant(2 * MIB), CTRT_OK);
    make_tree((const struct file[]){                   /* 1 MiB left */
        LARGE, IN_GROUP("0::/"), V2("", "max", "1073741824"), V2("", "current", "1072693248"), END });
    const int granted = grant_all(2 * MIB);
    CHECK(granted <= 16, "with 1 MiB left, %d blocks of 2 MiB were granted before a check", granted);
    for (int i = 0; i < 3; i++)
        CHECK_EQ(cpu_memory_grant(2 * MIB), CTRT_ERR_OUT_OF_MEMORY);
    cpu_memory_returned((size_t)(granted + 1) * 2 * MIB);
}

TEST(lists, "lists of processors and nodes are parsed")
{
    static const struct { const char *text; bool good; int count; } cases[] = {
        { "0\n", true, 1 }, { "0-3,8", true, 5 }, { "0-1023", true, 1024 },  { "\n", true, 0 },     { "", true, 0 },
        { "x", false, 0 },  { "3-1", false, 0 },  { "0-5000", false, 1024 }, { "1,2,x", false, 2 }, { "7 8", false, 1 },
    };
    EACH(c, cases) {
        struct cpu_list list;
        CHECK_EQ(cpu_list_parse(&list, c->text), c->good);
        CHECK_EQ(cpu_list_count(&list), c->count);
    }
}

#define ALLOWED(list) \
    { "/proc/self/status", "Name:\tx\nCpus_allowed_list:\t0-7\nMems_allowed:\t1\nMems_allowed_list:\t" list "\n", 0 }
#define NODES(name, list) { "/sys/devices/system/node/" name, list "\n", 0 }

static const struct machine one_node = { {
    ALLOWED("0"), NODES("online", "0"), NODES("has_memory", "0"), NODES("node0/cpulist", "0-7"),
} };
static const struct machine two_nodes = { {
    ALLOWED("0-1"), NODES("online", "0-1"), NODES("has_memory", "0-1"), NODES("node0/cpulist", "0-3,8-11"),
    NODES("node1/cpulist", "4-7,12-15"),
} };
static const struct machine cpuset_one = { {
    ALLOWED("1"), NODES("online", "0-1"), NODES("has_memory", "0-1"), NODES("node0/cpulist", "0-3"),
    NODES("node1/cpulist", "4-7"),
} };
/* Two sockets, a node of slow memory without processors (2), and processors without memory (3). */
static const struct machine odd_nodes = { {
    ALLOWED("0-7"), NODES("online", "0-3"), NODES("has_memory", "0-2"), NODES("node0/cpulist", "0-3"),
    NODES("node1/cpulist", "4-7"), NODES("node2/cpulist", ""), NODES("node3/cpulist", "8-9"),
} };

TEST(nodes, NULL)
{
    static const struct {
        const struct machine *machine;
        const char *text, *processors;
        int mode;
        const char *nodes, *error;
    } cases[] = {
        { &one_node, "local", "0-7", MPOL_DEFAULT, NULL, NULL },
        { &one_node, "interleave", "0-7", MPOL_DEFAULT, NULL, NULL },
        { &one_node, "0", "0-7", MPOL_DEFAULT, NULL, NULL },
        { &one_node, "1", "0-7", 0, NULL, "may use are 0" },
        { &two_nodes, "local", "0-15", MPOL_DEFAULT, NULL, NULL },
        { &two_nodes, "interleave", "0-15", MPOL_INTERLEAVE, "0-1", NULL },
        { &two_nodes, "interleave", "3-4", MPOL_INTERLEAVE, "0-1", NULL },
        { &two_nodes, "interleave", "0-3", MPOL_DEFAULT, NULL, NULL },  /* pinned to one node: local is best */
        { &two_nodes, "1", "0-3", MPOL_PREFERRED, "1", NULL },
        { &two_nodes, "2", "0-15", 0, NULL, "may use are 0-1" },
        { &cpuset_one, "interleave", "0-7", MPOL_DEFAULT, NULL, NULL },
        { &cpuset_one, "0", "0-7", 0, NULL, "may use are 1" },
        { &odd_nodes, "interleave", "0-9", MPOL_INTERLEAVE, "0-1", NULL },
        { &odd_nodes, "interleave", "8-9", MPOL_INTERLEAVE, "0-2", NULL },      /* no node is near: all nodes */
        { &odd_nodes, "2", "0-9", MPOL_PREFERRED, "2", NULL },
        { &odd_nodes, "3", "0-9", 0, NULL, "may use are 0-2" },
        { &nothing, "interleave", "0-7", MPOL_DEFAULT, NULL, NULL },
        { &nothing, "0", "0-7", MPOL_DEFAULT, NULL, NULL },
        { &nothing, "1", "0-7", 0, NULL, "0 alone" },
    };
    EACH(c, cases) {
        struct cpu_list processors, nodes, want;
        int mode = -1;
        group("CTRT_NUMA selects the policy and the nodes: case %zu, CTRT_NUMA=%s", (size_t)(c - cases), c->text);
        make_tree(c->machine->files);
        REQUIRE_TRUE(cpu_list_parse(&processors, c->processors));
        if (c->error != NULL)
            CHECK_FAILS(cpu_numa_choose(&mode, &nodes, c->text, &processors), CTRT_ERR_INVALID_ARGUMENT, c->error);
        else if (CHECK_OK(cpu_numa_choose(&mode, &nodes, c->text, &processors)))
            CHECK_EQ(mode, c->mode);
        if (c->nodes)
            CHECK_TRUE(cpu_list_parse(&want, c->nodes) && memcmp(&want, &nodes, sizeof want) == 0);
    }
}

/* The system call itself on this machine. Every machine supports a preference for node 0. */
TEST(placing, "blocks are on the selected node")
{
    make_tree(two_nodes.files);
    setenv("CTRT_NUMA", "0", 1);
    param_forget_values();
    REQUIRE_EQ(cpu_numa_init(), CTRT_OK);
    REQUIRE_EQ(cpu_pages_init(), CTRT_OK);
    set_check("off");
    log_keep(CTRT_LOG_INFO);
    void *block = NULL;
    REQUIRE_EQ(cpu_pages_map(&block, 4 * MIB), CTRT_OK);
    memset(block, 1, 4 * MIB);
    FILE *maps = fopen("/proc/self/numa_maps", "r");
    if (logged[0] || !maps) {
        printf("# the node of a block is not tested: %s\n", logged[0] ? logged : "no numa_maps");
    } else {
        char line[512] = "";
        while (fgets(line, sizeof line, maps) && strtoull(line, NULL, 16) != (uintptr_t)block)
            continue;
        CHECK_HAS(line, "prefer:0");
    }
    if (maps)
        fclose(maps);
    cpu_pages_unmap(block, 4 * MIB);
    unsetenv("CTRT_NUMA");
    param_forget_values();
    REQUIRE_EQ(cpu_numa_init(), CTRT_OK);
}

TEST_MAIN
{
    cpu_root = tree = folder_new();
    return run_tests();
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Tests how a process finds its rank and its store from the environment variables of launchers, and its machine's
 * address. */
#include <arpa/inet.h>

#include "calls.h"
#include "child.h"
#include "folder.h"
#include "device/launcher.h"
#include "parallel/comm/environment.h"
#include "parallel/store/own_address.h"

static void value_is(ctrt_store *store, const char *key, const char *want)
{
    void *value = NULL;
    size_t bytes = 0;
    if (CHECK_OK(ctrt_store_get(store, key, &value, &bytes, 1)))
        CHECK_STR((char *)value, want);
    free(value);
}

/* The host name is an address of the loopback interface. failures.sh tests this with two machines. */
TEST(test_own_address, "the machine's address for other machines")
{
    static const char *const names[] = { "127.0.1.1", "localhost" };
    char first[OWN_ADDRESS_BYTES] = "";
    EACH(name, names) {
        char own[OWN_ADDRESS_BYTES], address[OWN_ADDRESS_BYTES + 16];
        unsigned char bytes[16];
        own_address(own, *name);
        if (first[0] == '\0')
            memcpy(first, own, sizeof own);
        CHECK_STR(own, first);
        const bool v6 = inet_pton(AF_INET6, own, bytes) == 1;
        CHECK(v6 || inet_pton(AF_INET, own, bytes) == 1, "\"%s\" is not a numeric address", own);
        snprintf(address, sizeof address, v6 ? "tcp://[%s]:0" : "tcp://%s:0", own);
        CTRT_AUTO(store) server = NULL, client = NULL;
        CHECK_OK(ctrt_store_open(&server, address, true, 10));
        CHECK_OK(ctrt_store_open(&client, ctrt_store_address(server), false, 10));
        CHECK_OK(ctrt_store_set(client, "a", "b", 1));
        value_is(server, "a", "b");
    }
}

/* `want`: "LAUNCHER RANK/SIZE LOCAL_RANK/LOCAL_SIZE", or a part of the error message. */
static const struct { const char *settings[6], *want; } ranks[] = {
    { { "X=1" }, "none 0/1 0/1" },
    { { "RANK=5", "WORLD_SIZE=8", "LOCAL_RANK=1", "LOCAL_WORLD_SIZE=4" }, "torchrun 5/8 1/4" },
    { { "RANK=5", "WORLD_SIZE=8", "SLURM_PROCID=0", "SLURM_STEP_NUM_TASKS=2" }, "torchrun 5/8 5/8" },
    { { "RANK=5", "WORLD_SIZE=8", "LOCAL_RANK=1" }, "torchrun 5/8 1/8" },
    { { "RANK=", "WORLD_SIZE=" }, "none 0/1 0/1" },
    { { "OMPI_COMM_WORLD_RANK=3", "OMPI_COMM_WORLD_SIZE=4", "OMPI_COMM_WORLD_LOCAL_RANK=1",
        "OMPI_COMM_WORLD_LOCAL_SIZE=2" }, "Open MPI 3/4 1/2" },
    { { "PMI_RANK=3", "PMI_SIZE=4", "MPI_LOCALRANKID=1", "MPI_LOCALNRANKS=2" }, "MPICH 3/4 1/2" },
    { { "PMI_RANK=3", "PMI_SIZE=4", "PMI_LOCAL_RANK=1", "PMI_LOCAL_SIZE=2" }, "MPICH 3/4 1/2" },
#define SLURM(rank, local, node, per_node) \
    { "SLURM_PROCID=" rank, "SLURM_STEP_NUM_TASKS=11", "SLURM_LOCALID=" local, "SLURM_NODEID=" node, \
      "SLURM_STEP_TASKS_PER_NODE=" per_node }
    { SLURM("9", "2", "2", "4(x2),3"), "Slurm 9/11 2/3" }, { SLURM("5", "1", "1", "4(x2),3"), "Slurm 5/11 1/4" },
    { SLURM("9", "2", "3", "4(x2),3"), "SLURM_STEP_TASKS_PER_NODE is" },
    { SLURM("9", "2", "3", "4(x2"), "SLURM_STEP_TASKS_PER_NODE is" },
    { { "SLURM_PROCID=0", "SLURM_NTASKS=8" }, "none 0/1 0/1" },         /* a batch script */
    { { "RANK=x", "WORLD_SIZE=8" }, "RANK is \"x\"" }, { { "RANK=-1", "WORLD_SIZE=8" }, "RANK is \"-1\"" },
    { { "RANK=1", "WORLD_SIZE=8 " }, "WORLD_SIZE is \"8 \"" },
    { { "RANK=1", "WORLD_SIZE=99999999999" }, "WORLD_SIZE is" },
    { { "RANK=1" }, "RANK is set, but WORLD_SIZE is not" },
    { { "PMI_SIZE=1" }, "PMI_SIZE is set, but PMI_RANK is not" },
    { { "RANK=8", "WORLD_SIZE=8" }, "RANK is 8, expected less than WORLD_SIZE" },
    { { "RANK=0", "WORLD_SIZE=0" }, "RANK is 0, expected less than WORLD_SIZE" },
    { { "RANK=5", "WORLD_SIZE=8", "LOCAL_RANK=4", "LOCAL_WORLD_SIZE=4" },
      "LOCAL_RANK is 4, expected less than LOCAL_WORLD_SIZE" },
};

/* `want`: the address, or a part of the error message. */
static const struct { const char *settings[4], *want; } stores[] = {
    { { "X=1" }, "" },
    { { "MASTER_ADDR=node1", "MASTER_PORT=29500" }, "tcp://node1:29500" },
    { { "MASTER_ADDR=node1", "MASTER_PORT=29500", "TORCHELASTIC_USE_AGENT_STORE=True" }, "tcp://node1:29501" },
    { { "MASTER_ADDR=fe80::1", "MASTER_PORT=1" }, "tcp://[fe80::1]:1" },
    { { "MASTER_ADDR=node1", "MASTER_PORT=1", "CTRT_STORE=file:///x" }, "file:///x" },
    { { "MASTER_ADDR=node1" }, "MASTER_ADDR is set, but MASTER_PORT is not" },
    { { "MASTER_ADDR=node1", "MASTER_PORT=0" }, "MASTER_PORT is \"0\"" },
};

TEST(test_environment, "rank and size from the variables of launchers")
{
    EACH(c, ranks) {
        CHILD_LOOP(child, c->settings, _exit) {
            struct rank_environment found;
            int rank = -1, size = -1, local_rank = -1, local_size = -1;
            char text[64];
            if (strchr(c->want, '/') == NULL) {
                CHECK_FAILS(ctrt_comm_environment(&rank, &size, &local_rank, &local_size), CTRT_ERR_INVALID_ARGUMENT,
                            c->want);
            } else {
                CHECK_OK(ctrt_comm_environment(&rank, &size, &local_rank, &local_size));
                CHECK_OK(launcher_read(&found));
                snprintf(text, sizeof text, "%s %d/%d %d/%d", found.launcher != NULL ? found.launcher : "none", rank,
                         size, local_rank, local_size);
                CHECK_STR(text, c->want);
                CHECK_OK(ctrt_comm_environment(NULL, NULL, NULL, NULL));
            }
        }
    }

    group("the address of the store from the environment");
    EACH(c, stores) {
        CHILD_LOOP(child, c->settings, _exit) {
            char address[ENVIRONMENT_STORE_BYTES];
            if (strstr(c->want, " is ") != NULL)
                CHECK_FAILS(environment_store(address), CTRT_ERR_INVALID_ARGUMENT, c->want);
            else if (CHECK_OK(environment_store(address)))
                CHECK_STR(address, c->want);
        }
    }
    group("a store is opened again, or as a client where this process serves it");
    IN_FORK {
        CTRT_AUTO(store) first = NULL, second = NULL;
        char address[2][256];
        for (int i = 0; i < 2; i++)
            snprintf(address[i], sizeof address[i], "file://%s/store%d", folder_new(), i);
        CHECK_OK(environment_open_store(&first, address[0], 0, 5));
        CHECK_OK(ctrt_store_set(first, "k", "v", 1));
        ctrt_store_release(&first);
        CHECK_OK(environment_open_store(&second, address[0], 0, 5));
        value_is(second, "k", "v");
        CHECK_OK(ctrt_store_open(&first, address[1], true, 5));
        CHECK_OK(ctrt_store_set(first, "k", "w", 1));
        CHECK_OK(environment_open_store(&second, address[1], 0, 5));
        value_is(second, "k", "w");
        ctrt_store_release(&second);            /* before `first`, which serves it */
    }
}

TEST_MAIN
{
    static const char *const names[] = {
        "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "PMI_RANK", "PMI_SIZE",
        "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS",
        "TORCHELASTIC_USE_AGENT_STORE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS",
    };
    EACH(name, names)
        unsetenv(*name);
    return run_tests();
}

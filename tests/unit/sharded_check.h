/* SPDX-License-Identifier: Apache-2.0 */
/* sharded_check.h: stages and meshes of the strategy `sharded`, and comparisons of its shards, for tests. */
#ifndef CTRT_TESTS_SHARDED_CHECK_H
#define CTRT_TESTS_SHARDED_CHECK_H

#include "calls.h"
#include "rank_check.h"

static int columns;                             /* of the mesh under test */

/* ---- shards ---- */

/* This rank's rows of a tensor: chunks of ceil(rows / columns) rows. */
static inline void near_rows(const char *what, size_t index, ctrt_tensor *got, ctrt_tensor *want, struct rank *rank)
{
    CTRT_AUTO(tensor) rows = NULL;
    if (!CHECK(!got == !want, "%s %zu: %p, expected %p", what, index, (void *)got, (void *)want) || got == NULL)
        return;
    const int64_t all = ctrt_tensor_size(want, 0), chunk = (all + columns - 1) / columns,
                  begin = chunk * (rank->number % columns) < all ? chunk * (rank->number % columns) : all,
                  own = begin + chunk < all ? chunk : all - begin;
    if (!CHECK(ctrt_tensor_size(got, 0) == own, "%s %zu: %lld rows, expected %lld", what, index,
               (long long)ctrt_tensor_size(got, 0), (long long)own) || own == 0)
        return;
    ctrt_no_grad {
        CTRT_AUTO(tensor) plain = NULL, mine = NULL;
        CHECK_OK(ctrt_detach(&plain, want));
        CHECK_OK(ctrt_detach(&mine, got));
        CHECK_OK(ctrt_narrow(&rows, plain, 0, begin, own));
        NEAR(mine, rows, 1e-5);
    }
}

static inline void same_shards(struct pair *p, struct rank *rank, bool grads)
{
    for (size_t i = 0; i < ctrt_module_parameter_count(p->one); i++) {
        ctrt_tensor *got = parameter(p->net, i), *want = parameter(p->one, i);
        near_rows("parameter", i, got, want, rank);
        if (grads)
            near_rows("gradient", i, ctrt_tensor_grad(got), ctrt_tensor_grad(want), rank);
    }
}

/* ---- configurations ---- */

static const struct config {
    const char *stage, *mesh;
    int ranks, columns;
} configs[] = {
    { "1", "", 1, 1 }, { "2", "", 1, 1 }, { "3", "", 1, 1 }, { "1", "", 2, 2 }, { "2", "", 2, 2 }, { "3", "", 2, 2 },
    { "1", "", 3, 3 }, { "2", "", 3, 3 }, { "3", "", 3, 3 },
    { "1", "1x4", 4, 4 }, { "2", "1x4", 4, 4 }, { "3", "1x4", 4, 4 },
    { "1", "2x2", 4, 2 }, { "2", "2x2", 4, 2 }, { "3", "2x2", 4, 2 }, { "3", "4x1", 4, 1 },
};

/* Under ThreadSanitizer stage 3 of 2 ranks and of the mesh 2x2; under AddressSanitizer each number of ranks with two or
 * three of the stages, and each kind of mesh. */
#if defined(__SANITIZE_THREAD__)
enum { FIRST_CONFIG = 5, CONFIG_STEP = 9 };
#elif defined(__SANITIZE_ADDRESS__)
enum { FIRST_CONFIG = 1, CONFIG_STEP = 2 };
#else
enum { FIRST_CONFIG = 0, CONFIG_STEP = 1 };
#endif

struct body {
    const char *name;
    void (*run)(struct rank *rank);
    bool all_kinds;                             /* else: threads on sim */
    const char *canonical;
    const void *argument;
};

/* A process uses the library first in its rank, and threads share the device `cpu`. */
static inline void in_process(struct rank *rank)
{
    const struct body *body = rank->argument;
    CHECK_OK(ctrt_device_get(&cpu, "cpu"));
    body->run(rank);
}

static inline void run_config(const struct config *config, const struct body *body)
{
    for (enum kind kind = ON_CPU; kind < (enum kind)TESTED_KINDS; kind++) {
        if (kind != ON_SIM && !body->all_kinds)
            continue;
        IN_CHILD("CTRT_SIM=devices=4,memory=32m,poison=yes", "CTRT_NUM_THREADS=1") {
            setenv("CTRT_SHARDED_STAGE", config->stage, 1);
            setenv("CTRT_SHARDED_MESH", config->mesh, 1);
            setenv("CTRT_CANONICAL", body->canonical, 1);
            columns = config->columns;
            if (kind != PROCESSES)
                CHECK_OK(ctrt_device_get(&cpu, "cpu"));
            run_quiet(kind, config->ranks, 20, kind == PROCESSES ? in_process : body->run, body, -1);
        }
    }
}

#endif

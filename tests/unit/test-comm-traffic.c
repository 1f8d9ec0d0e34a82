/* SPDX-License-Identifier: Apache-2.0 */
/* The bytes and copies on each link between simulated devices are those of the formulas in doc/communicators.md, for
 * every collective of the engine `host`, and for the gradients of the strategy `data-parallel`. */
#include "comm_job.h"
#include "comm_values.h"
#include "parallel_check.h"

struct link {
    uint64_t copies, bytes;
};

/* Traffic from device s to device d. */
struct traffic {
    struct link links[MOST][MOST];
};

static struct traffic traffic_read(void)
{
    struct traffic traffic = { 0 };
    for (int d = 0; d < MOST; d++)
        for (int s = 0; s < MOST; s++)
            CHECK_OK(sim->link(d, s, &traffic.links[s][d].copies, &traffic.links[s][d].bytes));
    return traffic;
}

static void traffic_check(const struct traffic *before, struct link want[MOST][MOST], int size, const char *what,
                          long long n)
{
    const struct traffic now = traffic_read();
    for (int s = 0; s < MOST; s++)
        for (int d = 0; d < MOST; d++) {
            const uint64_t bytes = now.links[s][d].bytes - before->links[s][d].bytes;
            const uint64_t copies = now.links[s][d].copies - before->links[s][d].copies;
            CHECK(bytes == want[s][d].bytes && copies == want[s][d].copies,
                  "%s of %lld elements on %d devices: link %d-%d has %llu bytes in %llu copies, expected %llu in %llu",
                  what, n, size, s, d, (unsigned long long)bytes, (unsigned long long)copies,
                  (unsigned long long)want[s][d].bytes, (unsigned long long)want[s][d].copies);
        }
}

static void add(struct link *link, int64_t elements, ctrt_dtype dtype)
{
    link->copies += elements > 0;
    link->bytes += (uint64_t)elements * ctrt_dtype_size(dtype);
}

/* ---- collectives ---- */

/* Elements of rank r's share of n, in a reduction by `size` ranks. */
static int64_t share(int64_t n, int size, int r)
{
    const int64_t each = (n + size - 1) / size, begin = each * r < n ? each * r : n;
    return begin + each < n ? each : n - begin;
}

static void expect(struct link want[MOST][MOST], const struct collective *c, int size)
{
    for (int s = 0; s < size; s++)
        for (int d = 0; d < size; d++) {
            struct link *link = &want[s][d];
            const bool from_root = s == c->root, to_root = d == c->root;
            if (s == d)
                continue;
            switch (c->kind) {
            case CTRT_COLLECTIVE_BROADCAST:
            case CTRT_COLLECTIVE_SCATTER:        add(link, from_root ? c->count : 0, c->dtype); break;
            case CTRT_COLLECTIVE_GATHER:         add(link, to_root ? c->count : 0, c->dtype); break;
            case CTRT_COLLECTIVE_ALL_GATHER:
            case CTRT_COLLECTIVE_ALL_TO_ALL:
            case CTRT_COLLECTIVE_REDUCE_SCATTER: add(link, c->count, c->dtype); break;
            case CTRT_COLLECTIVE_SEND:           add(link, from_root && d == c->to ? c->count : 0, c->dtype); break;
            case CTRT_COLLECTIVE_ALL_REDUCE:
            case CTRT_COLLECTIVE_REDUCE:
                add(link, share(c->count, size, d), c->dtype);
                add(link, c->kind == CTRT_COLLECTIVE_ALL_REDUCE || to_root ? share(c->count, size, s) : 0, c->dtype);
                break;
            default: break;
            }
        }
}

static void collective_traffic(struct rank *rank)
{
    static const int64_t counts[] = { 0, 1, 5, 4096 };
    static const ctrt_dtype dtypes[] = { CTRT_F32, CTRT_BF16 };
    struct collective first = { .kind = CTRT_COLLECTIVE_ALL_TO_ALL, .dtype = CTRT_F32, .count = 1 };
    CHECK_OK(collective_start(&first, rank->comm, false));      /* tests the links */
    collective_finish(&first, rank->comm, "");
    for (ctrt_collective kind = CTRT_COLLECTIVE_BARRIER; kind <= CTRT_COLLECTIVE_SEND; kind++)
        for (size_t i = 0; i < COUNT(counts) * COUNT(dtypes); i++) {
            struct collective c = { .kind = kind, .dtype = dtypes[i % COUNT(dtypes)],
                                    .count = counts[i / COUNT(dtypes)], .root = (int)i % rank->size,
                                    .to = (int)(i + 1) % rank->size };
            struct traffic before;
            CHECK_OK(ctrt_comm_barrier(rank->comm));
            if (rank->number == 0)
                before = traffic_read();
            CHECK_OK(ctrt_comm_barrier(rank->comm));
            CHECK_OK(collective_start(&c, rank->comm, false));
            CHECK_OK(ctrt_comm_barrier(rank->comm));
            if (rank->number == 0) {
                struct link want[MOST][MOST] = { 0 };
                expect(want, &c, rank->size);
                traffic_check(&before, want, rank->size, kinds_of_collectives[kind], c.count);
            }
            collective_finish(&c, rank->comm, "");
        }
}

/* ---- data-parallel ---- */

/* A step without changed parameters: device 0 sends each other device its rows; the gradients of each bucket, and the
 * losses, go up a binary tree to device 0. */
static void gradient_traffic(int n)
{
    enum { ROWS = 12, IN = 64, OUT = 32 };
    ctrt_device *devices[MOST];
    CTRT_AUTO(module) net = NULL, module = NULL;
    CTRT_AUTO(tensor) x = NULL, loss = NULL;
    struct link want[MOST][MOST] = { 0 };
    struct traffic before;
    for (int i = 0; i < n; i++)
        devices[i] = numbered(i);
    CHECK_OK(ctrt_linear_new(&module, IN, OUT, false, devices[0]));
    CHECK_OK(ctrt_parallel_new(&net, module, "data-parallel", devices, n));
    CHECK_OK(ctrt_ones(&x, CTRT_SHAPE(ROWS, IN), CTRT_F32, devices[0]));
    for (int step = 0; step < 2; step++) {          /* the first one copies the module and tests the links */
        for (int i = 0; i < n; i++)
            CHECK_OK(ctrt_device_synchronize(devices[i]));
        before = traffic_read();
        CHECK_OK(ctrt_parallel_step(&loss, net, &x, 1, mean_loss, NULL));
    }
    for (int i = 0; i < n; i++)
        CHECK_OK(ctrt_device_synchronize(devices[i]));
    for (int d = 1; d < n; d++)
        add(&want[0][d], ROWS / n * IN, CTRT_F32);
    for (int distance = 1; distance < n; distance *= 2)
        for (int d = 0; d + distance < n; d += 2 * distance) {
            add(&want[d + distance][d], IN * OUT, CTRT_F32);
            add(&want[d + distance][d], 1, CTRT_F32);
        }
    traffic_check(&before, want, n, "a step", IN * OUT);
}

TEST_MAIN
{
    for (int n = 2; n <= MOST; n++) {
        group("%d devices", n);
        IN_CHILD("CTRT_SIM=devices=4") {
            for (int i = 0; i < MOST; i++) {
                char name[16];
                snprintf(name, sizeof name, "sim:%d", i);
                (void)sim_open(name);
            }
            run_job(ON_SIM, n, 60, collective_traffic, NULL, -1);
            gradient_traffic(n);
        }
    }
    return done();
}

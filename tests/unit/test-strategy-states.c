/* SPDX-License-Identifier: Apache-2.0 */
/* The states of `distributed` and `sharded` (plugins/strategy/ranks/states.h): the table has these changes and no other
 * ones, and jobs of ranks make them and no other ones. The jobs run the strategies' sources with a function that
 * records the changes (tests/plugins/states.c). */
#include <dlfcn.h>

#include "plugins/strategy/ranks/states.h"
#include "folder.h"
#include "rank_check.h"

/* Which of the jobs below makes a change. SHARDED: in a mesh of two rows. */
enum { NONE, SHARDED = 1, DISTRIBUTED = 2, BOTH = SHARDED | DISTRIBUTED, SHARDED_ONE_ROW = 4 };

#define CHANGE(machine, from, to, jobs) { MACHINE_##machine, machine##_##from, machine##_##to, jobs, #from " to " #to }
static const struct change {
    enum machine machine;
    unsigned from, to, jobs;
    const char *name;
} changes[] = {
    CHANGE(PASS, IDLE, IDLE, BOTH), CHANGE(PASS, IDLE, FORWARD, BOTH), CHANGE(PASS, FORWARD, TURN, BOTH),
    CHANGE(PASS, FORWARD, IDLE, BOTH), CHANGE(PASS, TURN, FORWARD, SHARDED), CHANGE(PASS, TURN, BACKWARD, BOTH),
    CHANGE(PASS, TURN, IDLE, BOTH), CHANGE(PASS, BACKWARD, IDLE, BOTH),

    CHANGE(ORDER, OF_MODULE, OF_MODULE, NONE), CHANGE(ORDER, OF_MODULE, RECORDED, BOTH),
    CHANGE(ORDER, RECORDED, AGREED, BOTH), CHANGE(ORDER, RECORDED, OF_MODULE, NONE),
    CHANGE(ORDER, AGREED, OF_MODULE, NONE),                 /* the last two: new groups, test-survive.c */

    CHANGE(BUCKET, FILLING, FILLING, DISTRIBUTED), CHANGE(BUCKET, FILLING, READY, DISTRIBUTED),
    CHANGE(BUCKET, READY, REDUCING, DISTRIBUTED), CHANGE(BUCKET, REDUCING, REDUCED, DISTRIBUTED),
    CHANGE(BUCKET, REDUCED, FILLING, DISTRIBUTED), CHANGE(BUCKET, READY, FILLING, NONE),
    CHANGE(BUCKET, REDUCING, FILLING, NONE),                /* the last two: captures that fail */

    CHANGE(SLOT, UNDIVIDED, SHARD, SHARDED), CHANGE(SLOT, SHARD, ABSENT, SHARDED), CHANGE(SLOT, SHARD, WHOLE, SHARDED),
    CHANGE(SLOT, SHARD, UNDIVIDED, SHARDED), CHANGE(SLOT, ABSENT, SHARD, SHARDED), CHANGE(SLOT, ABSENT, WHOLE, SHARDED),
    CHANGE(SLOT, WHOLE, SHARD, SHARDED), CHANGE(SLOT, WHOLE, ABSENT, SHARDED),

    CHANGE(GATHER, NONE, NONE, SHARDED), CHANGE(GATHER, NONE, ISSUED, SHARDED),
    CHANGE(GATHER, ISSUED, NONE, SHARDED), CHANGE(GATHER, ISSUED, GATHERED, SHARDED),
    CHANGE(GATHER, GATHERED, NONE, SHARDED), CHANGE(GATHER, GATHERED, OPEN, SHARDED),
    CHANGE(GATHER, OPEN, GATHERED, SHARDED),

    CHANGE(REDUCE, NONE, NONE, SHARDED), CHANGE(REDUCE, NONE, ROW, SHARDED), CHANGE(REDUCE, ROW, NONE, SHARDED),
    CHANGE(REDUCE, ROW, COLUMN, SHARDED), CHANGE(REDUCE, ROW, DONE, SHARDED_ONE_ROW),
    CHANGE(REDUCE, COLUMN, NONE, SHARDED), CHANGE(REDUCE, COLUMN, DONE, SHARDED), CHANGE(REDUCE, DONE, NONE, SHARDED),
};

static const struct change *change_of(unsigned machine, unsigned from, unsigned to)
{
    for (size_t i = 0; i < COUNT(changes); i++)
        if (changes[i].machine == machine && changes[i].from == from && changes[i].to == to)
            return &changes[i];
    return NULL;
}

static void table(void)
{
    for (unsigned machine = 0; machine < MACHINES; machine++)
        for (unsigned from = 0; from <= MOST_STATES; from++)
            for (unsigned to = 0; to <= MOST_STATES; to++)
                CHECK(state_may_follow(machine, from, to) == (change_of(machine, from, to) != NULL),
                      "machine %u: the table %s state %u after state %u", machine,
                      state_may_follow(machine, from, to) ? "has" : "has not", to, from);
}

/* ---- jobs ---- */

/* Compares the changes that this process has made with the list. */
static void made_check(const char *folder, const char *file, unsigned job)
{
    void *plugin = dlopen(folder_join(folder, file), RTLD_NOW | RTLD_NOLOAD);
    const atomic_uint (*made)[MOST_STATES] = plugin != NULL ? dlsym(plugin, "strategy_states_made") : NULL;
    if (!CHECK(made != NULL, "the strategy is not that of %s: %s", folder, dlerror()))
        return;
    for (unsigned machine = 0; machine < MACHINES; machine++)
        for (unsigned from = 0; from < MOST_STATES; from++)
            for (unsigned to = 0; to < MOST_STATES; to++) {
                const struct change *change = change_of(machine, from, to);
                const bool was = made[machine][from] & STATE(to);
                CHECK(!was || change != NULL, "%s: machine %u changed from %u to %u", file, machine, from, to);
                CHECK(was || change == NULL || !(change->jobs & job), "%s: machine %u never changed from %s", file,
                      machine, change != NULL ? change->name : "");
            }
    dlclose(plugin);
}

/* A forward pass of this rank's rows; its loss, whose backward pass the caller runs. */
static void forward_loss(ctrt_tensor **loss, ctrt_module *net, struct rank *rank, int turn)
{
    CTRT_AUTO(tensor) x = batch_of(rank->device, CTRT_F32, turn, 2 * rank->number, 2), y = NULL;
    CHECK_OK(ctrt_forward(&y, net, x));
    CHECK_OK(square_loss(loss, y, NULL, 0, NULL));
}

static void passes(struct rank *rank)
{
    const char *strategy = rank->argument;
    CTRT_AUTO(module) module = new_net(mlp_new, rank), net = net_of_ranks(module, strategy, rank);
    CTRT_AUTO(tensor) a = NULL, b = NULL;
    char text[65];
    for (int i = 0; i < 3; i++)                             /* in the last step rank 1 has no rows */
        (void)step_rows(net, rank, i, 2 * rank->number, i == 2 && rank->number == 1 ? 0 : 2);
    CHECK_OK(ctrt_parallel_no_sync(net, true));
    (void)step_rows(net, rank, 3, 2 * rank->number, 2);
    CHECK_OK(ctrt_parallel_no_sync(net, false));
    ctrt_no_grad forward_loss(&a, net, rank, 4);
    forward_loss(&a, net, rank, 5);                         /* given up or, by sharded, joined */
    forward_loss(&b, net, rank, 6);
    CHECK_OK(ctrt_backward(b));
    forward_loss(&a, net, rank, 7);                         /* given up */
    (void)step_rows(net, rank, 8, 2 * rank->number, 2);
    CHECK_OK(ctrt_module_sha256(text, net));
}

/* The branch does not use its parameter `never`. */
static ctrt_status unused_new(ctrt_module **out, ctrt_device *device)
{
    ctrt_module *branch = NULL;
    CTRT_TRY(branch_new(&branch, device));
    return ctrt_sequential_new(out, CTRT_MODULES(branch, CTRT_NEW(linear, FEATURES, FEATURES, true, device),
                                                 CTRT_NEW(linear, FEATURES, FEATURES, true, device),
                                                 CTRT_NEW(linear, FEATURES, FEATURES, true, device)));
}

/* The backward pass of the program does not compute all gradients, and reductions run when the next step ends it. */
static void incomplete(struct rank *rank)
{
    CTRT_AUTO(module) module = new_net(unused_new, rank), net = net_of_ranks(module, rank->argument, rank);
    CTRT_AUTO(tensor) x = batch_of(rank->device, CTRT_F32, 0, 0, 2), loss = NULL;
    forward_loss(&loss, net, rank, 0);
    CHECK_OK(ctrt_backward(loss));
    CHECK_OK(ctrt_comm_barrier(rank->comm));
    CHECK_FAILS(ctrt_parallel_step(&loss, net, &x, 1, square_loss, NULL), CTRT_ERR_STATE, "computed no gradient");
}

/* ---- programs that break the order of a pass ---- */

/* y = 2 x a, in whose forward pass the module also runs a backward pass or the net itself. */
struct odd {
    enum { ODD_NOTHING, ODD_BACKWARD, ODD_NET } what;
};
static _Thread_local ctrt_module *odd_net;

static ctrt_status odd_forward(ctrt_tensor **y, ctrt_module *self, ctrt_tensor *const *inputs, int count)
{
    const struct odd *odd = ctrt_module_state(self);
    ctrt_tensor *a = NULL;
    CTRT_AUTO(tensor) other = NULL;
    (void)count;
    CTRT_TRY(ctrt_module_tensor(&a, self, "a"));
    CTRT_TRY(ctrt_mul(y, inputs[0], a));
    if (odd->what == ODD_BACKWARD) {
        CTRT_TRY(square_loss(&other, *y, NULL, 0, NULL));
        return ctrt_backward(other);
    }
    return odd->what == ODD_NET ? ctrt_forward(&other, odd_net, inputs[0]) : CTRT_OK;
}

static const ctrt_module_class odd_class = {
    .size = sizeof(ctrt_module_class), .kind = "Odd", .state_bytes = sizeof(struct odd), .forward = odd_forward,
    .state_pointers = CTRT_STATE_PLAIN,
};

static ctrt_status odd_new(ctrt_module **out, ctrt_device *device)
{
    CTRT_AUTO(tensor) a = ramp(CTRT_SHAPE(FEATURES), 0.1, device);
    CTRT_TRY(ctrt_module_new(out, &odd_class));
    return ctrt_module_add_parameter(*out, "a", a);
}

static void odd_order(struct rank *rank)
{
    const bool sharded = strcmp(rank->argument, "sharded") == 0;
    for (int what = ODD_BACKWARD; what <= (sharded ? ODD_NET : ODD_BACKWARD); what++) {
        CTRT_AUTO(comm) comm = NULL;                        /* sharded aborts it */
        CTRT_AUTO(module) module = new_net(odd_new, rank), net = NULL;
        CTRT_AUTO(tensor) x = batch_of(rank->device, CTRT_F32, 0, 0, 2), y = NULL, loss = NULL;
        CHECK_OK(ctrt_comm_split(&comm, rank->comm, 0, rank->number));
        if (!CHECK_OK(ctrt_parallel_new_comm(&net, module, rank->argument, comm)))
            return;
        CHECK_OK(ctrt_parallel_step(&loss, net, &x, 1, square_loss, NULL));
        odd_net = net;
        ((struct odd *)ctrt_module_state(module))->what = what;
        CHECK_FAILS(ctrt_forward(&y, net, x), CTRT_ERR_STATE,
                    what == ODD_NET ? "a module of the net cannot run the net" : "before the forward pass has ended");
    }
}

static void run(const char *strategy, const char *mesh, unsigned job)
{
    char file[64], test[64];
    char *folder = folder_new();
    snprintf(file, sizeof file, "strategy-%s", strategy);
    snprintf(test, sizeof test, "states-%s", strategy);
    folder_copy_so(folder, file, test);
    IN_CHILD(folder_path(folder, getenv("CTRT_PLUGIN_PATH")), "CTRT_SIM=devices=4,memory=32m", "CTRT_NUM_THREADS=1") {
        setenv("CTRT_SHARDED_MESH", mesh, 1);
        run_quiet(ON_SIM, 4, 20, passes, strategy, -1);
        run_quiet(ON_SIM, 4, 20, incomplete, strategy, -1);
        strcat(file, ".so");
        made_check(folder, file, job);
    }
}

TEST_MAIN
{
    group("the table of states has the legal changes and no other ones");
    table();
    group("jobs of sharded make the changes of its states");
    run("sharded", "2x2", SHARDED);
    run("sharded", "1x4", SHARDED_ONE_ROW);
    group("jobs of distributed make the changes of its states");
    run("distributed", "", DISTRIBUTED);
    group("backward passes in a forward pass, and a net that runs itself");
    static const char *const strategies[] = { "sharded", "distributed" };
    EACH(strategy, strategies)
        IN_CHILD("CTRT_SIM=devices=4,memory=32m", "CTRT_NUM_THREADS=1")
            run_quiet(ON_SIM, 1, 20, odd_order, *strategy, -1);
    return done();
}

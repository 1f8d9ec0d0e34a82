/* SPDX-License-Identifier: Apache-2.0 */
/* data/training_generators.c: the states of random generators in the file of a training run. */
#include "data/training_generators.h"

#include <inttypes.h>

#include "base/array.h"
#include "ctrt/comm.h"
#include "ctrt/ops.h"
#include "device/device.h"
#include "nn/module/module.h"
#include "parallel/strategy/strategy.h"

enum { SEED, OFFSET, NUMBERS };         /* of a generator */

/* The devices of generators 0, 1, ... The cpu can be in the list a second time, as a device of the training. */
struct devices {
    ctrt_device **items;
    size_t count, capacity;
};

static ctrt_status device_add(struct devices *list, ctrt_device *device)
{
    for (size_t i = 1; i < list->count; i++)
        if (device_home(list->items[i]) == device_home(device))
            return CTRT_OK;
    CTRT_TRY(ARRAY_RESERVE(list->items, list->capacity, list->count, "a list of devices"));
    list->items[list->count++] = device;
    return CTRT_OK;
}

static ctrt_status generator_devices_find(struct devices *list, ctrt_module *module)
{
    const struct parallel *strategy = parallel_of(module);
    ctrt_device *cpu = NULL;
    CTRT_TRY(device_cpu(&cpu));
    CTRT_TRY(device_add(list, cpu));
    if (strategy != NULL) {
        for (int i = 0; i < strategy->config.count; i++)
            CTRT_TRY(device_add(list, strategy->devices[i]));
        return CTRT_OK;
    }
    for (enum walk_kind kind = WALK_PARAMETERS; kind <= WALK_BUFFERS; kind++) {
        const struct walk *walk;
        CTRT_TRY(module_walk(&walk, module, kind));
        for (size_t i = 0; i < walk->count; i++)
            CTRT_TRY(device_add(list, ctrt_tensor_device(walk->entries[i].tensor)));
    }
    return CTRT_OK;
}

static ctrt_comm *comm_of(ctrt_module *module)
{
    const struct parallel *strategy = parallel_of(module);
    return strategy != NULL ? strategy->comm : NULL;
}

static int64_t rank_count(ctrt_module *module)
{
    return comm_of(module) != NULL ? ctrt_comm_size(comm_of(module)) : 1;
}

/* ---- saving ---- */

/* Sets *out to the states of this rank, [1, generators, 2]. */
static ctrt_status own_states(ctrt_tensor **out, const struct devices *list, ctrt_device *device)
{
    const size_t bytes = list->count * NUMBERS * sizeof(int64_t);
    HOST_AUTO int64_t *numbers = host_alloc(bytes);
    ALLOC_CHECK(numbers, bytes, "the states of random generators");
    for (size_t i = 0; i < list->count; i++) {
        uint64_t seed = 0, offset = 0;
        CTRT_TRY(ctrt_generator_get(list->items[i], &seed, &offset));
        numbers[i * NUMBERS + SEED] = (int64_t)seed;
        numbers[i * NUMBERS + OFFSET] = (int64_t)offset;
    }
    return ctrt_from_data(out, numbers, (int64_t)list->count * NUMBERS,
                          CTRT_SHAPE(1, (int64_t)list->count, NUMBERS), CTRT_I64, device);
}

static ctrt_status states_get(ctrt_tensor **out, struct devices *list, ctrt_module *module)
{
    ctrt_comm *comm = comm_of(module);
    CTRT_AUTO(tensor) own = NULL, all = NULL;
    CTRT_TRY(generator_devices_find(list, module));
    ctrt_device *const cpu = list->items[0];
    if (comm == NULL)
        return own_states(out, list, cpu);
    CTRT_TRY(own_states(&own, list, ctrt_comm_device(comm)));
    CTRT_TRY(ctrt_empty(&all, CTRT_SHAPE(ctrt_comm_size(comm), (int64_t)list->count, NUMBERS), CTRT_I64,
                        ctrt_comm_device(comm)));
    CTRT_TRY(ctrt_comm_all_gather(NULL, comm, all, own));
    return ctrt_to_device(out, all, cpu);
}

ctrt_status generators_get(ctrt_tensor **out, ctrt_module *module)
{
    struct devices list = { .count = 0 };
    const ctrt_status status = states_get(out, &list, module);
    host_free(list.items);
    return ctrt_context(status, "the states of random generators");
}

/* ---- loading ---- */

ctrt_status generators_read(ctrt_tensor **out, const ctrt_tensor_file *file, ctrt_module *module)
{
    CTRT_AUTO(tensor_file) section = NULL;
    CTRT_AUTO(tensor) states = NULL;
    ctrt_device *cpu = NULL;
    CTRT_TRY(tensor_file_section(&section, file, GENERATORS_SECTION));
    if (ctrt_tensor_file_count(section) == 0)
        return CTRT_OK;
    CTRT_TRY(device_cpu(&cpu));
    CTRT_TRY(ctrt_tensor_file_read(&states, section, GENERATORS_NAME, cpu));
    if (ctrt_tensor_dtype(states) != CTRT_I64 || ctrt_tensor_ndim(states) != 3 || ctrt_tensor_size(states, 1) < 1
        || ctrt_tensor_size(states, 2) != NUMBERS)
        return ctrt_fail(CTRT_ERR_FORMAT, "the states of random generators are no i64 tensor [ranks, generators, 2]");
    if (ctrt_tensor_size(states, 0) == rank_count(module))
        ctrt_tensor_assign(out, states);
    return CTRT_OK;
}

static ctrt_status states_set(struct devices *list, ctrt_tensor *states, ctrt_module *module)
{
    const int64_t generators = ctrt_tensor_size(states, 1);
    const int rank = comm_of(module) != NULL ? ctrt_comm_rank(comm_of(module)) : 0;
    const int64_t *own = (const int64_t *)ctrt_tensor_data(states) + rank * generators * NUMBERS;
    CTRT_TRY(generator_devices_find(list, module));
    for (size_t i = 0; i < MIN(list->count, (size_t)generators); i++)
        CTRT_TRY(ctrt_generator_set(list->items[i], (uint64_t)own[i * NUMBERS + SEED],
                                    (uint64_t)own[i * NUMBERS + OFFSET]));
    return CTRT_OK;
}

ctrt_status generators_set(ctrt_tensor *states, ctrt_module *module)
{
    struct devices list = { .count = 0 };
    const ctrt_status status = states != NULL ? states_set(&list, states, module) : CTRT_OK;
    host_free(list.items);
    return ctrt_context(status, "the states of random generators");
}

/* SPDX-License-Identifier: Apache-2.0 */
/* fake_pool.h: blocks of the memory pool of fake devices, for internal tests. Uses tap.h.
 *
 *     folder = pool_folder();
 *     IN_FAKE("CTRT_MEMORY=direct", "CTRT_FAKE_MEMORY=64m") {
 *         struct device_memory *memory = open_memory("fake:0");
 *         ctrt_block block = take(memory, 1000);
 *         give(memory, &block, 1000);
 *     } */
#ifndef CTRT_TESTS_FAKE_POOL_H
#define CTRT_TESTS_FAKE_POOL_H

#include "child.h"
#include "folder.h"
#include "memory/pool.h"
#include "memory_checks.h"

static char *folder;                    /* the plugin path of the fake devices */

/* Creates a folder with the fake backend and the policies direct and caching. */
static inline char *pool_folder(void)
{
    return FOLDER_OF("backend-fake", "memory-direct", "memory-caching");
}

/* A child process with fake devices and these settings, at least one. */
#define IN_FAKE(...) IN_CHILD(folder_path(folder, NULL), __VA_ARGS__)

/* Opens the device. A failure ends the child process. */
static inline struct device_memory *open_memory(const char *name)
{
    ctrt_device *device = NULL;
    if (!CHECK_OK(ctrt_device_get(&device, name))) {
        fflush(stdout);
        exit(1);
    }
    return device->memory;
}

/* A TEST (tap.h) in a child process with these settings, with the memory of fake:0. FAKE_AGAIN repeats it. */
#define FAKE_TEST(function, ...)                                                                          \
    static void function(struct device_memory *memory, ctrt_device *device);                              \
    FAKE_AGAIN(function, __VA_ARGS__)                                                                     \
    static void function(__attribute__((unused)) struct device_memory *memory,                            \
                         __attribute__((unused)) ctrt_device *device)
#define FAKE_AGAIN(...)        FAKE_RUN_AT(__LINE__, __VA_ARGS__)
#define FAKE_RUN_AT(line, ...) FAKE_RUN(line, __VA_ARGS__)
#define FAKE_RUN(line, function, what, ...)                                                               \
    TEST(function##_##line, what " (" #__VA_ARGS__ ")")                                                   \
    {                                                                                                     \
        IN_FAKE(__VA_ARGS__) {                                                                            \
            struct device_memory *memory = open_memory("fake:0");                                         \
            function(memory, memory->device);                                                             \
        }                                                                                                 \
    }

static inline ctrt_block take(struct device_memory *memory, size_t bytes)
{
    ctrt_block block = { 0 };
    CHECK_OK(pool_alloc(memory, &block, bytes, NULL));
    return block;
}

/* Checks that `bytes` do not fit, with these words in the message. */
static inline void take_fails(struct device_memory *memory, size_t bytes, const char *words)
{
    ctrt_block block = { 0 };
    CHECK_FAILS(pool_alloc(memory, &block, bytes, NULL), CTRT_ERR_OUT_OF_MEMORY, words);
}

/* `bytes`: the requested size. */
static inline void give(struct device_memory *memory, ctrt_block *block, size_t bytes)
{
    pool_free(memory, block, bytes, NULL);
    block->address = NULL;
}

/* The next value of a fixed pseudo-random sequence. */
static inline uint32_t next_random(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

#endif

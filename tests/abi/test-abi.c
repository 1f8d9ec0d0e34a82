/* SPDX-License-Identifier: Apache-2.0 */
/* The binary border: every struct and constant of ctrt/plugin.h lies where each released version has put it.
 * A plugin that was built with an older header reads these offsets.
 *
 * Structs that begin with their size may have grown at the end; all others are fixed for the life of the
 * major version. */
#include <stddef.h>

#include "ctrt/plugin.h"
#include "tap.h"

/* A row of a version's file, judged. */
static void judge_size(const char *name, size_t now, size_t then, bool may_grow)
{
    CHECK(may_grow ? now >= then : now == then, "struct %s has %zu bytes, had %zu", name, now, then);
}

static void judge_field(const char *name, const char *field, size_t offset, size_t size, size_t old_offset,
                        size_t old_size)
{
    CHECK(offset == old_offset && size == old_size, "%s.%s: offset %zu, %zu bytes; was at %zu with %zu bytes",
          name, field, offset, size, old_offset, old_size);
}

static void judge_constant(const char *name, long now, long then)
{
    CHECK(now == then, "%s is %ld, was %ld", name, now, then);
}

#define GROWS(name, then)    judge_size(#name, sizeof(name), then, true);
#define FIXED(name, then)    judge_size(#name, sizeof(name), then, false);
#define CONSTANT(name, then) judge_constant(#name, name, then);
#define FIELD(name, field, offset, size) \
    judge_field(#name, #field, offsetof(name, field), sizeof(((name *)0)->field), offset, size);

static void judge_1_0(void)
{
    group("plugin ABI 1.0");
#include "plugin-1.0.def"
}

/* The border's own promise: a table's slot counts as there only when it lies inside the table's size. */
static void judge_slots(void)
{
    ctrt_memory_policy policy = { .size = sizeof policy };
    ctrt_memory_policy *absent = NULL;
    group("CTRT_SLOT");
    CHECK(!CTRT_SLOT(&policy, trim), "an empty slot counts");
    policy.trim = (void (*)(void *))judge_slots;
    CHECK(CTRT_SLOT(&policy, trim), "a filled slot does not count");
    policy.size = offsetof(ctrt_memory_policy, trim) + sizeof policy.trim;
    CHECK(CTRT_SLOT(&policy, trim), "the last slot inside the size does not count");
    policy.size--;
    CHECK(!CTRT_SLOT(&policy, trim), "a slot that is half outside counts");
    CHECK(!CTRT_SLOT(absent, trim), "a slot of no table counts");
    CHECK(CTRT_PLUGIN_ABI_MAJOR == 1, "the major version is %u: this test pins version 1",
          CTRT_PLUGIN_ABI_MAJOR);
}

TEST_MAIN
{
    if (sizeof(void *) != 8)
        return skip_rest("the layouts are those of 64-bit machines");
    judge_1_0();
    judge_slots();
    return done();
}

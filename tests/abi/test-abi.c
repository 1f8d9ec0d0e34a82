/* SPDX-License-Identifier: Apache-2.0 */
/* The plugin ABI: structs and constants of ctrt/plugin.h have the layout and values of each released version, because
 * plugins built with an older header use those offsets.
 *
 * Structs whose first member is their size may be extended at the end; all others are fixed within a major version. */
#include <stddef.h>

#include "ctrt/plugin.h"
#include "tap.h"

/* Each checks one line of a version's file. */
static void check_size(const char *name, size_t now, size_t then, bool may_grow)
{
    CHECK(may_grow ? now >= then : now == then, "struct %s has %zu bytes, had %zu", name, now, then);
}

static void check_field(const char *name, const char *field, size_t offset, size_t size, size_t old_offset,
                        size_t old_size)
{
    CHECK(offset == old_offset && size == old_size, "%s.%s: offset %zu, %zu bytes; was at %zu with %zu bytes",
          name, field, offset, size, old_offset, old_size);
}

static void check_constant(const char *name, long now, long then)
{
    CHECK(now == then, "%s is %ld, was %ld", name, now, then);
}

#define GROWS(name, then)    check_size(#name, sizeof(name), then, true);
#define FIXED(name, then)    check_size(#name, sizeof(name), then, false);
#define CONSTANT(name, then) check_constant(#name, name, then);
#define FIELD(name, field, offset, size) \
    check_field(#name, #field, offsetof(name, field), sizeof(((name *)0)->field), offset, size);

static void check_1_0(void)
{
    group("plugin ABI 1.0");
#include "plugin-1.0.def"
}

/* CTRT_SLOT: a slot of a table is present only if it is inside the table's size and not NULL. */
static void check_slots(void)
{
    ctrt_memory_policy policy = { .size = sizeof policy };
    ctrt_memory_policy *absent = NULL;
    group("CTRT_SLOT");
    CHECK(!CTRT_SLOT(&policy, trim), "a NULL slot is reported as present");
    policy.trim = (void (*)(void *))check_slots;
    CHECK(CTRT_SLOT(&policy, trim), "a slot is reported as absent");
    policy.size = offsetof(ctrt_memory_policy, trim) + sizeof policy.trim;
    CHECK(CTRT_SLOT(&policy, trim), "the last slot inside the size is reported as absent");
    policy.size--;
    CHECK(!CTRT_SLOT(&policy, trim), "a slot partly outside the size is reported as present");
    CHECK(!CTRT_SLOT(absent, trim), "a slot of a NULL table is reported as present");
    CHECK(CTRT_PLUGIN_ABI_MAJOR == 1, "the major version is %u, but this test checks version 1",
          CTRT_PLUGIN_ABI_MAJOR);
}

TEST_MAIN
{
    if (sizeof(void *) != 8)
        return skip_rest("the recorded layouts are those of 64-bit machines");
    check_1_0();
    check_slots();
    return done();
}

/* SPDX-License-Identifier: Apache-2.0 */
/* memory/quota.c: limits on the memory allocated from a device. */
#include "memory/quota.h"

#include "base/base.h"
#include "base/param.h"
#include "base/strbuf.h"
#include "memory/pinned_cache.h"
#include "registry/registry.h"

static const ctrt_param limit_param = {
    sizeof limit_param, "CTRT_MEMORY_LIMIT", CTRT_PARAM_STRING, NULL, NULL,
    "limits on the memory reserved from devices: DEVICE=SIZE or DEVICE=PERCENT%, separated by commas; DEVICE may be a "
    "type: cuda=90%,cpu=2g",
};
CORE_PARAM(limit_param);

static ctrt_status malformed(const char *text, const char *entry, size_t length)
{
    return ctrt_fail(
        CTRT_ERR_INVALID_ARGUMENT,
        "CTRT_MEMORY_LIMIT=%.200s: \"%.*s\" is not DEVICE=SIZE or DEVICE=PERCENT%%, as in cuda:0=8g,cpu=50%%",
        text, (int)MIN(length, 100), entry);
}

/* Parses a size, or "50%" of `total`. *of_unknown: a percentage, but `total` is 0. */
static bool parse_amount(uint64_t *out, const char *amount, uint64_t total, bool *of_unknown)
{
    size_t length = strlen(amount);
    *of_unknown = false;
    if (length > 1 && amount[length - 1] == '%') {
        unsigned percent = 0;
        for (size_t i = 0; i + 1 < length; i++) {
            if (amount[i] < '0' || amount[i] > '9' || i > 2)
                return false;
            percent = 10 * percent + (unsigned)(amount[i] - '0');
        }
        if (percent > 100)
            return false;
        *of_unknown = total == 0;
        *out = total / 100 * percent + total % 100 * percent / 100;
        return true;
    }
    static const ctrt_param bytes_param = { sizeof bytes_param, "CTRT_MEMORY_LIMIT", CTRT_PARAM_BYTES, NULL, NULL,
                                            NULL };
    int64_t bytes;
    if (param_parse(&bytes, &bytes_param, amount) != CTRT_OK)
        return false;
    *out = (uint64_t)bytes;
    return true;
}

ctrt_status quota_parse(uint64_t *limit, const char *text, const char *name, const char *type, uint64_t total)
{
    bool by_name = false;
    *limit = QUOTA_NONE;
    for (const char *at = text; *at != '\0';) {
        size_t length = strcspn(at, ","), key = strcspn(at, "=");
        char device[64], amount[64];
        uint64_t bytes = 0;
        bool of_unknown;
        if (key == 0 || key >= length || key >= sizeof device || length - key - 1 >= sizeof amount)
            return malformed(text, at, length);
        snprintf(device, sizeof device, "%.*s", (int)key, at);
        snprintf(amount, sizeof amount, "%.*s", (int)(length - key - 1), at + key + 1);
        const char *index = strchr(device, ':');
        if (index != NULL && (index[1] == '\0' || index[1 + strspn(index + 1, "0123456789")] != '\0'))
            return malformed(text, at, length);
        if (!parse_amount(&bytes, amount, total, &of_unknown))
            return malformed(text, at, length);
        bool exact = strcmp(device, name) == 0;
        if (exact || (strcmp(device, type) == 0 && !by_name)) {
            if (of_unknown)
                return ctrt_fail(
                    CTRT_ERR_INVALID_ARGUMENT,
                    "CTRT_MEMORY_LIMIT=%.200s: %s does not report its total memory; give a size, not a percentage",
                    text, name);
            *limit = bytes;
            by_name = exact;
        }
        at += length;
        if (*at == ',' && *++at == '\0')
            return malformed(text, at, 0);
    }
    return CTRT_OK;
}

/* Entries for unknown device types have no effect, because the backend may be installed on other machines that the same
 * text is used on. If the type is similar to a known one, it is a misspelling and an error. */
static ctrt_status check_types(const char *text)
{
    static atomic_flag said = ATOMIC_FLAG_INIT;
    const char *names[64];
    const size_t count = registry_names(names, COUNT_OF(names), CTRT_COMPONENT_BACKEND);
    for (const char *at = text; *at != '\0'; at += strcspn(at, ","), at += *at == ',') {
        char type[64];
        bool known = false;
        snprintf(type, sizeof type, "%.*s", (int)strcspn(at, ":="), at);
        for (size_t i = 0; i < count && !known; i++)
            known = strcmp(type, names[i]) == 0;
        const char *near = known ? NULL : nearest_word(type, names, count);
        if (near != NULL)
            return ctrt_fail(CTRT_ERR_INVALID_ARGUMENT,
                             "CTRT_MEMORY_LIMIT=%.200s: there is no backend %s; did you mean %s?", text, type, near);
        if (!known && !atomic_flag_test_and_set(&said))
            log_message(CTRT_LOG_WARNING, "memory",
                        "CTRT_MEMORY_LIMIT=%.200s: there is no backend %s, so that part has no effect",
                        text, type);
    }
    return CTRT_OK;
}

ctrt_status quota_init(struct device_memory *memory)
{
    ctrt_device *device = memory->device;
    uint64_t free_bytes = 0, limit = QUOTA_NONE;
    ctrt_param_value value;
    memory->total_bytes = 0;
    if (slot_memory_info(device, &free_bytes, &memory->total_bytes) == CTRT_ERR_PLUGIN)
        return CTRT_ERR_PLUGIN;
    CTRT_TRY(param_read(&value, &limit_param, "core"));
    if (value.text != NULL)
        CTRT_TRY(quota_parse(&limit, value.text, device->name, device->type, memory->total_bytes));
    if (value.text != NULL)
        CTRT_TRY(check_types(value.text));
    atomic_store(&memory->limit, limit);
    return CTRT_OK;
}

__thread bool limit_refused;

static ctrt_status too_much(struct device_memory *memory, uint64_t limit, uint64_t reserved, size_t bytes)
{
    char allowed[32], had[32], wanted[32];
    limit_refused = true;
    return ctrt_fail(CTRT_ERR_OUT_OF_MEMORY, "the limit is %s on %s; %s in addition to the %s reserved would exceed it",
                     format_bytes(allowed, limit), memory->device->name, format_bytes(wanted, bytes),
                     format_bytes(had, reserved));
}

ctrt_status quota_take(struct device_memory *memory, size_t bytes)
{
    uint64_t reserved = atomic_load_explicit(&memory->reserved, memory_order_relaxed);
    do {
        uint64_t limit = atomic_load_explicit(&memory->limit, memory_order_relaxed);
        if (likely(limit == QUOTA_NONE))
            continue;
        uint64_t all = reserved + pinned_held(memory->device);
        if (unlikely(bytes > limit || all > limit - bytes))
            return too_much(memory, limit, all, bytes);
    } while (!atomic_compare_exchange_weak_explicit(&memory->reserved, &reserved, reserved + bytes,
                                                    memory_order_relaxed, memory_order_relaxed));
    return CTRT_OK;
}

ctrt_status quota_check(struct device_memory *memory, size_t bytes)
{
    uint64_t limit = atomic_load_explicit(&memory->limit, memory_order_relaxed);
    uint64_t all = atomic_load_explicit(&memory->reserved, memory_order_relaxed) + pinned_held(memory->device);
    return all <= limit ? CTRT_OK : too_much(memory, limit, all - bytes, bytes);
}

void quota_count(struct device_memory *memory, size_t bytes)
{
    atomic_fetch_add_explicit(&memory->reserved, bytes, memory_order_relaxed);
}

void quota_give(struct device_memory *memory, size_t bytes)
{
    atomic_fetch_sub_explicit(&memory->reserved, bytes, memory_order_relaxed);
}

/* ---- public ---- */

ctrt_status ctrt_memory_set_limit(ctrt_device *device, uint64_t bytes)
{
    struct device_memory *memory;
    CTRT_TRY(memory_get(&memory, device));
    atomic_store(&memory->limit, bytes);
    return CTRT_OK;
}

ctrt_status ctrt_memory_set_fraction(ctrt_device *device, double fraction)
{
    if (!(fraction >= 0 && fraction <= 1))
        return ctrt_fail(CTRT_ERR_INVALID_ARGUMENT, "memory_set_fraction: the fraction is %g, expected 0 to 1",
                         fraction);
    struct device_memory *memory;
    CTRT_TRY(memory_get(&memory, device));
    if (memory->total_bytes == 0)
        return ctrt_fail(CTRT_ERR_NOT_SUPPORTED,
                         "memory_set_fraction: %s does not report its total memory; use ctrt_memory_set_limit",
                         memory->device->name);
    atomic_store(&memory->limit,
                 fraction < 1 ? (uint64_t)((double)memory->total_bytes * fraction) : memory->total_bytes);
    return CTRT_OK;
}

uint64_t ctrt_memory_limit(ctrt_device *device)
{
    struct device_memory *memory;
    return memory_get(&memory, device) == CTRT_OK ? atomic_load(&memory->limit) : QUOTA_NONE;
}

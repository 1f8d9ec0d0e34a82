/* SPDX-License-Identifier: Apache-2.0 */
/* parallel/strategy/balance.c: finds devices that differ much in memory or processors. */
#include <string.h>

#include "base/base.h"
#include "device/device.h"
#include "parallel/replicas/devices.h"

#define BALANCED 0.75                       /* PyTorch's limit */

struct facts {
    const char *type;                       /* NULL: unknown */
    double values[2];                       /* total memory in bytes, processors; 0: unknown */
};
static const char *const names[2] = { "memory", "processors" };

/* Finds the two devices of one type with the smallest ratio of the value. */
static ctrt_imbalance worst_of(const struct facts *facts, int n, int value)
{
    ctrt_imbalance worst = { .slow = 0, .fast = 0, .ratio = 1, .what = names[value] };
    for (int i = 0; i < n; i++)
        for (int k = 0; k < n; k++) {
            const double slow = facts[i].values[value], fast = facts[k].values[value];
            if (facts[i].type == NULL || facts[k].type == NULL || strcmp(facts[i].type, facts[k].type) != 0
                || slow <= 0 || fast <= 0 || slow / fast >= worst.ratio)
                continue;
            worst.slow = i, worst.fast = k, worst.ratio = slow / fast;
        }
    return worst;
}

bool ctrt_devices_imbalanced(ctrt_imbalance *out, ctrt_device *const *devices, int n)
{
    if (devices == NULL || n < 2)
        return false;
    struct facts *facts = host_calloc((size_t)n * sizeof *facts);
    if (facts == NULL)
        return false;
    for (int i = 0; i < n; i++) {
        ctrt_device_properties properties = CTRT_DEVICE_PROPERTIES;
        if (devices[i] == NULL || ctrt_device_get_properties(&properties, devices[i]->name) != CTRT_OK)
            continue;
        facts[i] = (struct facts){ devices[i]->type, { (double)properties.total_memory, properties.processors } };
    }
    bool found = false;
    for (int value = 0; value < 2 && !found; value++) {
        const ctrt_imbalance worst = worst_of(facts, n, value);
        found = worst.ratio < BALANCED;
        if (!found)
            continue;
        log_message(CTRT_LOG_WARNING, "parallel",
                    "%s (devices[%d]) has %.0f %% of the %s of %s (devices[%d]) and will hold it up; give it less work "
                    "(weights of ctrt_scatter_options) or leave it out", devices[worst.slow]->name, worst.slow,
                    100 * worst.ratio, worst.what, devices[worst.fast]->name, worst.fast);
        if (out != NULL)
            *out = worst;
    }
    host_free(facts);
    return found;
}

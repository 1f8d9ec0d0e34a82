/* SPDX-License-Identifier: Apache-2.0 */
/* Tests the options of the simulated devices, and the reasons why there are none. */
#include "calls.h"
#include "memory_checks.h"
#include "sims.h"

TEST_MAIN
{
    ctrt_device *device = NULL;
    static const struct { const char *setting, *words; } bad[] = {
        { "CTRT_SIM=devces=4", "did you mean devices?" }, { "CTRT_SIM=devces=4", "known: devices, memory, latency" },
        { "CTRT_SIM=devices=four", "devices: expected a number of devices, 0 to 64, not \"four\"" },
        { "CTRT_SIM=devices=65", "0 to 64" }, { "CTRT_SIM=devices", "has no value" },
        { "CTRT_SIM=memory=lots", "memory: expected a size" }, { "CTRT_SIM=memory=64m/", "memory: expected a size" },
        { "CTRT_SIM=memory=1", "from 512 bytes" }, { "CTRT_SIM=latency=-1us", "latency: expected a time" },
        { "CTRT_SIM=latency=20parsecs", "not \"20parsecs\"" }, { "CTRT_SIM=bandwidth=fast", "bandwidth" },
        { "CTRT_SIM=peers=rings", "peers: expected all, ring, none, or pairs" },
        { "CTRT_SIM=peers=0-5", "pairs of existing devices" }, { "CTRT_SIM=peers=0-0", "pairs" },
        { "CTRT_SIM=seed=x", "seed: expected a whole number" }, { "CTRT_SIM=poison=maybe", "yes or no" },
        { "CTRT_SIM=holes=2", "holes: expected yes or no" }, { "CTRT_SIM=fault=aloc:3", "did you mean alloc?" },
        { "CTRT_SIM=fault=alloc", "alloc: expected the number of an allocation" },
        { "CTRT_SIM=fault=alloc:0", "not \"0\"" }, { "CTRT_SIM=fault=op:addd@3", "no kernel for an op \"addd\"" },
        { "CTRT_SIM=fault=link:0", "two devices" }, { "CTRT_SIM=fault=late:soon", "a time" },
        { "CTRT_SIM=fault=99.alloc:1", "not a device number" }, { "CTRT_SIM_FAULT=op:never@1", "op:never@1" },
        { "CTRT_SIM=devices=0", "no visible device" }, { "CTRT_BACKENDS=-cpu", "the backend cpu cannot be used" },
        { "CTRT_VISIBLE_DEVICES=cpu", "2 of 2 hidden by CTRT_VISIBLE_DEVICES=cpu" },
    };
    group("options are parsed; the reason for missing devices names the variable and the option");
    EACH(c, bad)
        IN_CHILD(c->setting, "CTRT_LOG=error") {
            const char *why = NULL;
            CHECK_TRUE(!ctrt_is_available("sim", &why));
            CHECK_HAS(why, c->words);
            CHECK_EQ(ctrt_device_count("sim"), 0);
            CHECK_TRUE(ctrt_device_get(&device, "sim:0") != CTRT_OK);
            CHECK_HAS(ctrt_error_message(), c->words);
            if (strncmp(c->setting, "CTRT_SIM", 8) == 0 && strstr(c->setting, "devices=0") == NULL)
                CHECK_HAS(ctrt_error_message(), strncmp(c->setting, "CTRT_SIM=", 9) ? "CTRT_SIM_FAULT=" : "CTRT_SIM=");
        }
    IN_CHILD(NULL)
        CHECK_EQ(ctrt_device_count("sim"), 2);
    IN_CHILD("CTRT_SIM= devices=3, memory=1m/2m ,latency=5us,bandwidth=8g,peers=0-2,seed=9,jitter=1us,pinned=4k,"
             "fault=alloc:3;1.copy:2+") {
        CHECK_EQ(ctrt_device_count("sim"), 3);
        for (int i = 0; i < 3; i++) {
            char name[16];
            ctrt_device_properties properties;
            snprintf(name, sizeof name, "sim:%d", i);
            CHECK_OK(ctrt_device_get_properties(&properties, name));
            EQUALS((properties.total_memory, i == 0 ? MIB : 2 * MIB), (properties.asynchronous, true),
                   (properties.host_memory, false), (strncmp(properties.uuid, "SIM-", 4), 0));
        }
    }
    return done();
}

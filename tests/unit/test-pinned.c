/* SPDX-License-Identifier: Apache-2.0 */
/* Pinned host memory: size classes, reuse, figures, giving back; and why a device is not there, for each cause. */
#include "core/memory/pinned.h"

#include "sims.h"

static void test_classes(void)
{
    static const struct { size_t bytes, granted; } golden[] = {
        { 1, 64 }, { 64, 64 }, { 65, 128 }, { 512, 512 }, { 513, 576 }, { 1000, 1024 }, { 1024, 1024 }, { 1025, 1152 },
        { 4096, 4096 }, { 4097, 4608 }, { 1 << 20, 1 << 20 }, { (1 << 20) + 1, (1 << 20) + (1 << 17) },
    };
    group("size classes waste at most 12.5 %%");
    for (size_t i = 0; i < COUNT(golden); i++)
        CHECK(pinned_round(golden[i].bytes) == golden[i].granted, "%zu bytes get %zu, not %zu", golden[i].bytes,
              pinned_round(golden[i].bytes), golden[i].granted);
    double worst = 0;
    for (size_t bytes = 1; bytes < (size_t)1 << 40; bytes += 1 + bytes / 97) {
        const size_t granted = pinned_round(bytes);
        CHECK(granted >= bytes && pinned_round(granted) == granted, "%zu bytes get %zu", bytes, granted);
        if (bytes > 512 && (double)(granted - bytes) / (double)granted > worst)
            worst = (double)(granted - bytes) / (double)granted;
    }
    CHECK(worst <= 0.125, "%.2f %% of a block are not used", 100 * worst);
}

static void test_reuse(void)
{
    group("a block is reused, but not while a device copies from it; what nobody has is given back");
    IN_CHILD("CTRT_SIM=devices=1,latency=30ms") {
        ctrt_device *device = sim_open("sim:0"), *cpu = NULL;
        CTRT_AUTO(tensor) a = NULL, b = NULL, there = NULL;
        struct pinned_figures figures;
        bool left = false;
        CHECK_OK(ctrt_device_get(&cpu, "cpu"));
        CHECK_OK(ctrt_empty_pinned(&a, CTRT_SHAPE(1000), CTRT_F32, device));
        void *place = ctrt_tensor_data(a);
        ctrt_tensor_release(&a);
        CHECK_OK(ctrt_empty_pinned(&a, CTRT_SHAPE(1010), CTRT_F32, device));        /* of the same class */
        CHECK(ctrt_tensor_data(a) == place, "the block was not reused");
        CHECK_OK(ctrt_fill_(a, ctrt_float(2)));
        CHECK_OK(ctrt_to_non_blocking(&there, a, device, &left));
        CHECK(left, "not asynchronous");
        ctrt_tensor_release(&a);
        CHECK_OK(ctrt_empty_pinned(&b, CTRT_SHAPE(1010), CTRT_F32, device));
        CHECK(ctrt_tensor_data(b) != place, "handed out while the device reads it");
        pinned_figures(&figures, device);
        CHECK(figures.active_requests == 1 && figures.active_bytes == 4096 && figures.allocations == 2 && figures.allocated_bytes == 8192
                  && figures.host_allocs == 2 && figures.host_frees == 0,
              "%llu active, %llu bytes; %llu held, %llu bytes", (unsigned long long)figures.active_requests,
              (unsigned long long)figures.active_bytes, (unsigned long long)figures.allocations,
              (unsigned long long)figures.allocated_bytes);
        CHECK(total(there) == 2020, "%g", total(there));
        ctrt_tensor_release(&b);
        CHECK_OK(ctrt_empty_pinned(&a, CTRT_SHAPE(1010), CTRT_F32, device));
        pinned_figures(&figures, device);
        CHECK(figures.host_allocs == 2, "%llu calls of the device", (unsigned long long)figures.host_allocs);
        ctrt_tensor_release(&a);
        pinned_trim(device);
        pinned_figures(&figures, device);
        CHECK(figures.allocations == 0 && figures.allocated_bytes == 0 && figures.host_frees == 2, "%llu blocks are held",
              (unsigned long long)figures.allocations);
        CHECK(sim_read(0).host_bytes == 0, "%llu bytes", (unsigned long long)sim_read(0).host_bytes);
    }
    CHILD_END;
    group("pinned memory that runs out: a status, and a second try after giving back");
    IN_CHILD("CTRT_SIM=devices=1,pinned=1m") {
        ctrt_device *device = sim_open("sim:0");
        CTRT_AUTO(tensor) a = NULL, b = NULL;
        CHECK_OK(ctrt_empty_pinned(&a, CTRT_SHAPE(200000), CTRT_F32, device));
        CHECK_FAILS(ctrt_empty_pinned(&b, CTRT_SHAPE(100000), CTRT_F32, device), CTRT_ERR_OUT_OF_MEMORY, "pinned");
        ctrt_tensor_release(&a);
        CHECK_OK(ctrt_empty_pinned(&b, CTRT_SHAPE(100000), CTRT_F32, device));
        CHECK_OK(sim->inject(0, "host:1"));
        CHECK_OK(ctrt_empty_pinned(&a, CTRT_SHAPE(5000), CTRT_F32, device));      /* the second try succeeds */
        ctrt_tensor_release(&a);
        CHECK_OK(sim->inject(0, "host:1+"));
        CHECK_FAILS(ctrt_empty_pinned(&a, CTRT_SHAPE(9000), CTRT_F32, device), CTRT_ERR_OUT_OF_MEMORY, "pinned");
    }
    CHILD_END;
}

/* ---- why a device is not there ---- */

static void test_reasons(void)
{
    static const struct { const char *setting, *reason; } causes[] = {
        { "CTRT_SIM=devices=0", "no visible device" },
        { "CTRT_BACKENDS=-sim", "switched off by CTRT_BACKENDS=-sim" },
        { "CTRT_BACKENDS=cpu", "CTRT_BACKENDS=cpu" },
        { "CTRT_VISIBLE_DEVICES=cpu", "2 of 2 hidden by CTRT_VISIBLE_DEVICES=cpu" },
        { "CTRT_SIM=device=3", "did you mean devices?" },
        { "CTRT_SIM=memory=lots", "memory" },
        { "CTRT_BACKENDS=-cpu", "the backend cpu cannot be used" },
        { "CTRT_PLUGIN_PATH=/nowhere", "no file backend-sim.so" },
    };
    group("a device that is not there says why, for each cause, and asking opens nothing");
    for (size_t i = 0; i < COUNT(causes); i++) {
        IN_CHILD(causes[i].setting, "CTRT_LOG=error") {
            const char *why = NULL;
            ctrt_device *device = NULL;
            if (strstr(causes[i].setting, "PLUGIN_PATH") && ctrt_is_available("sim", NULL))
                exit(0);                    /* an installed one is found as well */
            CHECK(!ctrt_is_available("sim", &why), "%s: available", causes[i].setting);
            CHECK(why != NULL && strstr(why, causes[i].reason), "%s: %s", causes[i].setting, why);
            CHECK(ctrt_device_count("sim") == 0, "%s: %d devices", causes[i].setting, ctrt_device_count("sim"));
            CHECK(ctrt_device_get(&device, "sim:0") != CTRT_OK && strstr(ctrt_error_message(), causes[i].reason), "%s: %s",
                  causes[i].setting, ctrt_error_message());
        }
        CHILD_END;
    }
}

int main(void)
{
    test_classes();
    test_reuse();
    test_reasons();
    return done();
}

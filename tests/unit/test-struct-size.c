/* SPDX-License-Identifier: Apache-2.0 */
/* Structs that the library writes for programs compiled with other headers: fewer members, more members, no size. */
#include "calls.h"
#include "tensors.h"

static ctrt_memory_scope *scope;

static ctrt_status stats(void *out) { return ctrt_memory_get_stats(out, cpu); }
static ctrt_status peaks(void *out) { return ctrt_memory_scope_read(out, scope); }
static ctrt_status properties(void *out) { return ctrt_device_get_properties(out, "cpu"); }
static ctrt_status usage(void *out) { return ctrt_device_get_usage(out, "cpu"); }
static ctrt_status link_of(void *out) { return ctrt_device_get_link(out, "cpu", "cpu"); }
static ctrt_status parameter(void *out) { return ctrt_param_get_info(out, 0); }
static ctrt_status plugin(void *out) { return ctrt_plugin_list(out, 0); }
static ctrt_status scaler(void *out)
{
    CTRT_AUTO(grad_scaler) scaler = NULL;
    CTRT_TRY(ctrt_grad_scaler_new(&scaler, NULL));
    return ctrt_grad_scaler_get_state(out, scaler);
}
static ctrt_status prediction(void *out)
{
    ctrt_dry_run *run = NULL;
    CTRT_TRY(ctrt_dry_run_begin(&run, cpu));
    const ctrt_status status = ctrt_dry_run_end(out, &run);
    ctrt_dry_run_release(&run);
    return status;
}

TEST(sizes, "no byte behind the caller's struct is written, and members that the library lacks are 0")
{
    static const struct written { const char *name; size_t bytes; ctrt_status (*call)(void *out); } all[] = {
        { "memory_stats", sizeof(ctrt_memory_stats), stats }, { "memory_peaks", sizeof(ctrt_memory_peaks), peaks },
        { "device_properties", sizeof(ctrt_device_properties), properties },
        { "usage", sizeof(ctrt_usage), usage }, { "link", sizeof(ctrt_link), link_of },
        { "param_info", sizeof(ctrt_param_info), parameter }, { "plugin_info", sizeof(ctrt_plugin_info), plugin },
        { "grad_scaler_state", sizeof(ctrt_grad_scaler_state), scaler },
        { "memory_prediction", sizeof(ctrt_memory_prediction), prediction },
    };
    union { size_t size; unsigned char bytes[8192]; } own, other;
    CHECK_OK(ctrt_memory_scope_begin(&scope, cpu));
    EACH(w, all) {
        memset(&own, 0xaa, sizeof own);
        own.size = w->bytes;
        CHECK(w->call(&own) == CTRT_OK, "%s: %s", w->name, ctrt_error_message());
        CHECK(own.size == w->bytes, "%s: the size is changed", w->name);
        for (int more = -8; more <= 16; more += 8) {
            memset(&other, 0xaa, sizeof other);
            const size_t size = other.size = w->bytes + (size_t)more, common = more < 0 ? size : w->bytes;
            CHECK(w->call(&other) == CTRT_OK, "%s: %s", w->name, ctrt_error_message());
            size_t zeros = common, kept = size;
            while (zeros < size && other.bytes[zeros] == 0)
                zeros++;
            while (kept < sizeof other && other.bytes[kept] == 0xaa)
                kept++;
            CHECK(zeros == size || more < 0, "%s with %d bytes more: byte %zu is not 0", w->name, more, zeros);
            CHECK(kept == sizeof other, "%s with %d bytes more: byte %zu is written", w->name, more, kept);
        }
        other.size = 0;
        CHECK_FAILS(w->call(&other), CTRT_ERR_INVALID_ARGUMENT, "is not initialized (its size is 0)");
    }
    ctrt_memory_scope_release(&scope);
}

TEST_MAIN
{
    if (!cpu_opened())
        return done();
    return run_tests();
}

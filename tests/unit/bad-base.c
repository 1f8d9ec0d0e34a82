/* SPDX-License-Identifier: Apache-2.0 */
/* Bad input to base.h, device.h and memory.h, for test-bad-input.c. */
#include <math.h>
#include <string.h>

#include "../options.h"
#include "bad-input.h"

static void base(void)
{
    int64_t value = 0;
    ctrt_param_info info = CTRT_PARAM_INFO;
    /* test-base checks what these return. */
    FINE(ctrt_status_string((ctrt_status)12345) != NULL);
    FINE(ctrt_fail(CTRT_ERR_IO, "%s", "words") == CTRT_ERR_IO && ctrt_error_message() != NULL);
    FINE(ctrt_context(CTRT_OK, "unused") == CTRT_OK);
    FINE(ctrt_version() != NULL && ctrt_version()[0] != '\0');
    FINE((ctrt_log_set_callback(NULL, NULL), true));
    FINE((ctrt_log_set_level((ctrt_log_level)99), ctrt_log_set_level(CTRT_LOG_ERROR), true));
    BAD(NOT_FOUND, ctrt_param_set("CTRT_NO_SUCH_THING", "1"));
    BAD(NOT_FOUND, ctrt_param_set("", "1"));
    BAD(INVALID_ARGUMENT, ctrt_param_set(NULL, "1"));
    BAD(INVALID_ARGUMENT, ctrt_param_set("CTRT_LOG", "loud"));
    FINE(strstr(ctrt_error_message(), "CTRT_LOG") != NULL);
    NULL_IN2(ctrt_constant_find, &value, "CTRT_OK");
    BAD(INVALID_ARGUMENT, ctrt_param_set("CTRT_FALLBACK", "maybe"));
    BAD(INVALID_ARGUMENT, ctrt_param_get_info(NULL, 0));
    BAD(NOT_FOUND, ctrt_param_get_info(&info, SIZE_MAX));
    BAD(NOT_FOUND, ctrt_status_get(NULL, NULL, SIZE_MAX));
    BAD(NOT_FOUND, ctrt_constant_get(NULL, NULL, SIZE_MAX));
    BAD(NOT_FOUND, ctrt_constant_find(&value, "CTRT_CHANELS_LAST"));
    FINE(strstr(ctrt_error_message(), "CTRT_CHANNELS_LAST") != NULL);
    ctrt_progress *bar = NULL;
    BAD(INVALID_ARGUMENT, ctrt_progress_new(NULL, 1, NULL));
    BAD(INVALID_ARGUMENT, ctrt_progress_new(&bar, -1, NULL));
    FINE((ctrt_progress_add(NULL, 1), true));
    FINE((ctrt_progress_note(NULL, "x"), true));
    FINE(!ctrt_progress_due(NULL));
    FINE(ctrt_progress_count(NULL) == 0);
    FINE((ctrt_progress_release(&bar), bar == NULL));
}

static void device(void)
{
    ctrt_device_spec spec = { "", 0 };
    ctrt_device_properties properties = CTRT_DEVICE_PROPERTIES;
    ctrt_plugin_info plugin = CTRT_PLUGIN_INFO;
    ctrt_device *device = NULL;
    char buffer[64];
    char long_name[4000] = "";
    memset(long_name, 'a', sizeof long_name - 1);
    NULL_IN2(ctrt_device_parse, &spec, "cpu");
    BAD(INVALID_ARGUMENT, ctrt_device_parse(&spec, ""));
    BAD(INVALID_ARGUMENT, ctrt_device_parse(&spec, long_name));
    BAD(INVALID_ARGUMENT, ctrt_device_format(NULL, 10, &spec));
    BAD(INVALID_ARGUMENT, ctrt_device_format(buffer, sizeof buffer, NULL));
    BAD(INVALID_ARGUMENT, ctrt_device_format(buffer, 0, &(ctrt_device_spec){ "cpu", -1 }));
    BAD(INVALID_ARGUMENT, ctrt_device_get(NULL, "cpu"));
    BAD(INVALID_ARGUMENT, ctrt_device_get(&device, "cpu:7"));
    BAD(NO_DEVICE, ctrt_device_get(&device, "quantum"));
    FINE(strstr(ctrt_error_message(), "cpu") != NULL);  /* the message lists the known types */
    BAD(NO_DEVICE, ctrt_device_get(&device, "fake:99"));
    BAD(INVALID_ARGUMENT, ctrt_device_get(&device, long_name));
    FINE(device == NULL);
    BAD(INVALID_ARGUMENT, ctrt_device_auto(NULL));
    const char *why = NULL;
    FINE(!ctrt_is_available(NULL, &why) && why != NULL && why[0] != '\0');
    FINE(!ctrt_is_available("", &why) && why != NULL && why[0] != '\0');
    FINE(!ctrt_is_available("quantum", &why) && why != NULL && why[0] != '\0');
    FINE(!ctrt_is_available(long_name, NULL));
    FINE(ctrt_device_count(NULL) == 0 && ctrt_device_count("quantum") == 0 && ctrt_device_count("") == 0);
    BAD(INVALID_ARGUMENT, ctrt_device_list(NULL, 0));
    BAD(INVALID_ARGUMENT, ctrt_device_get_properties(NULL, "cpu"));
    BAD(NOT_FOUND, ctrt_device_list(&spec, SIZE_MAX));
    BAD(NO_DEVICE, ctrt_device_get_properties(&properties, "quantum"));
    BAD(NO_DEVICE, ctrt_device_get_properties(&properties, "fake:99"));
    ctrt_usage usage = CTRT_USAGE;
    BAD(INVALID_ARGUMENT, ctrt_device_get_usage(NULL, "cpu"));
    BAD(NO_DEVICE, ctrt_device_get_usage(&usage, "quantum"));
    size_t count = 0;
    BAD(INVALID_ARGUMENT, ctrt_device_get_processes(NULL, NULL, 0, "cpu"));
    BAD(INVALID_ARGUMENT, ctrt_device_get_processes(NULL, &count, 1, "cpu"));
    BAD(NO_DEVICE, ctrt_device_get_processes(NULL, &count, 0, "fake:99"));
    char *table = NULL;
    BAD(NO_DEVICE, ctrt_show_utilization(&table, "quantum", false));
    BAD(INVALID_ARGUMENT, ctrt_show_utilization(NULL, "cpu", false));
    BAD(INVALID_ARGUMENT, ctrt_show_utilization(&table, long_name, true));
    FINE(table == NULL);
    ctrt_pick_options pick = *PICK(.type = "cpu", .max_load = (double)NAN);
    NULL_IN2(ctrt_pick_devices, &spec, &count, 1, NULL);
    BAD(INVALID_ARGUMENT, ctrt_pick_devices(&spec, &count, 1, &pick));
    pick = *PICK(.type = "cpu", .interval = (double)INFINITY);
    BAD(INVALID_ARGUMENT, ctrt_pick_devices(&spec, &count, 1, &pick));
    pick = *PICK(.type = "quantum");
    BAD(NO_DEVICE, ctrt_pick_devices(&spec, &count, 1, &pick));
    FINE(count == 0);
    ctrt_link link = CTRT_LINK;
    BAD(INVALID_ARGUMENT, ctrt_device_get_link(NULL, "cpu", "cpu"));
    BAD(NO_DEVICE, ctrt_device_get_link(&link, "cpu", "quantum"));
    BAD(NO_DEVICE, ctrt_device_get_link(&link, "fake:99", "cpu"));
    FINE(!strcmp(ctrt_device_name(NULL), "(null)"));
    FINE(ctrt_device_type(NULL) != NULL);
    FINE(ctrt_device_index(NULL) < 0);
    uint64_t free_bytes, total;
    FINE(ctrt_device_memory_info(p.cpu, NULL, NULL) == CTRT_OK && ctrt_device_memory_info(p.cpu, &free_bytes,
        &total) == CTRT_OK);
    FINE(ctrt_device_memory_info(NULL, NULL, NULL) <= 0);
    FINE(ctrt_device_synchronize(NULL) <= 0);
    FINE((ctrt_device_synchronizations(NULL), true));
    BAD(INVALID_ARGUMENT, ctrt_device_set_current(NULL));
    BAD(INVALID_ARGUMENT, ctrt_device_get_current(NULL, "cpu"));
    BAD(NO_DEVICE, ctrt_device_get_current(&device, "quantum"));
    FINE(ctrt_device_push(NULL) == CTRT_OK && ctrt_device_pop() == CTRT_OK);
    BAD(STATE, ctrt_device_pop());
    BAD(INVALID_ARGUMENT, ctrt_default_device(NULL));
    FINE(ctrt_set_default_device(NULL) == CTRT_OK && ctrt_set_default_device(p.cpu) == CTRT_OK);
    BAD(INVALID_ARGUMENT, ctrt_plugin_list(NULL, 0));
    BAD(NOT_FOUND, ctrt_plugin_list(&plugin, SIZE_MAX));
    FINE(ctrt_plugin_folder(0) != NULL && ctrt_plugin_folder(SIZE_MAX) == NULL);
}

static void quiet_oom(void *user, ctrt_device *device, size_t bytes, const char *report)
{
    (void)user, (void)device, (void)bytes, (void)report;
}

static void memory_stats(void)
{
    int64_t value = 7;
    char *text = NULL;
    BAD(INVALID_ARGUMENT, ctrt_memory_stat_get(NULL, NULL, "num_ooms"));
    BAD(INVALID_ARGUMENT, ctrt_memory_stat_get(&value, NULL, NULL));
    BAD(NOT_FOUND, ctrt_memory_stat_get(&value, NULL, ""));
    BAD(NOT_FOUND, ctrt_memory_stat_get(&value, NULL, "allocated_bytes.all.curent"));
    FINE(strstr(ctrt_error_message(), "did you mean allocated_bytes.all.current?") != NULL && value == 7);
    FINE(ctrt_memory_stat_key(SIZE_MAX) == NULL && ctrt_memory_stat_key(0) != NULL);
    BAD(INVALID_ARGUMENT, ctrt_memory_summary(NULL, NULL, false));
    BAD(INVALID_ARGUMENT, ctrt_memory_summary_json(NULL, NULL));
    BAD(INVALID_ARGUMENT, ctrt_memory_metrics(NULL, CTRT_METRICS_JSON));
    BAD(INVALID_ARGUMENT, ctrt_memory_metrics(&text, (ctrt_metrics_format)9));
    FINE(text == NULL);
}

static void memory_scopes_and_limits(void)
{
    ctrt_memory_scope *scope = NULL;
    ctrt_memory_peaks peaks = CTRT_MEMORY_PEAKS;
    BAD(INVALID_ARGUMENT, ctrt_memory_scope_begin(NULL, NULL));
    BAD(INVALID_ARGUMENT, ctrt_memory_scope_read(&peaks, NULL));
    BAD(INVALID_ARGUMENT, ctrt_memory_scope_end(&peaks, NULL));
    BAD(INVALID_ARGUMENT, ctrt_memory_scope_end(&peaks, &scope));
    FINE((ctrt_memory_scope_release(NULL), ctrt_memory_scope_release(&scope), true));
    FINE(ctrt_memory_scope_begin(&scope, NULL) == CTRT_OK && ctrt_memory_scope_begin(&scope, NULL) == CTRT_OK);
    BAD(INVALID_ARGUMENT, ctrt_memory_scope_read(NULL, scope));
    FINE(ctrt_memory_scope_end(NULL, &scope) == CTRT_OK && scope == NULL);
    static const double fractions[] = { -0.1, 1.5, 0.0 / 0.0, 1e300 };
    for (size_t k = 0; k < sizeof fractions / sizeof fractions[0]; k++)
        BAD(INVALID_ARGUMENT, ctrt_memory_set_fraction(NULL, fractions[k]));
    FINE(ctrt_memory_set_limit(NULL, UINT64_MAX) == CTRT_OK && ctrt_memory_limit(NULL) == UINT64_MAX);
}

static void memory_release(void)
{
    /* The test's tensors still exist, so these calls may fail. */
    FINE(ctrt_memory_release_all(NULL) == CTRT_OK || strstr(ctrt_error_message(), "still hold") != NULL);
    FINE(ctrt_shutdown() == CTRT_OK || strstr(ctrt_error_message(), "still hold") != NULL);
    FINE(ctrt_memory_allocated(NULL) == ctrt_memory_allocated(p.cpu));
}

static void memory_owners(void)
{
    ctrt_memory_owner *owners = NULL;
    size_t count = 0;
    char *text = NULL;
    BAD(INVALID_ARGUMENT, ctrt_memory_label_push(NULL));
    BAD(INVALID_ARGUMENT, ctrt_memory_label_push(""));
    BAD(STATE, ctrt_memory_label_pop());
    FINE(ctrt_memory_label()[0] == '\0');
    BAD(INVALID_ARGUMENT, ctrt_memory_set_watch((ctrt_memory_watch)9, 0));
    BAD(INVALID_ARGUMENT, ctrt_memory_set_watch((ctrt_memory_watch)-1, 0));
    FINE(ctrt_memory_set_watch(CTRT_MEMORY_WATCH_ALL, SIZE_MAX / 8) == CTRT_ERR_OUT_OF_MEMORY);
    FINE(ctrt_memory_set_watch(CTRT_MEMORY_WATCH_NONE, 0) == CTRT_OK);
    BAD(IO, ctrt_memory_snapshot_write("/nowhere/snapshot.json", NULL));
    NULL_IN2(ctrt_memory_owners, &owners, &count, NULL);
    BAD(INVALID_ARGUMENT, ctrt_memory_annotate(NULL, NULL));
    BAD(INVALID_ARGUMENT, ctrt_memory_snapshot(NULL, NULL));
    BAD(INVALID_ARGUMENT, ctrt_memory_snapshot_write(NULL, NULL));
    BAD(INVALID_ARGUMENT, ctrt_memory_last_oom(NULL, NULL));
    FINE((ctrt_memory_set_oom_callback(quiet_oom, NULL), ctrt_memory_set_oom_callback(NULL, NULL), true));
    FINE(text == NULL && owners == NULL);
}

static void memory(void)
{
    ctrt_memory_stats stats = CTRT_MEMORY_STATS;
    FINE(ctrt_memory_allocated(NULL) == ctrt_memory_allocated(p.cpu));          /* NULL is the default device */
    FINE(ctrt_memory_max_allocated(NULL) >= ctrt_memory_allocated(NULL));
    FINE(ctrt_memory_reserved(NULL) >= ctrt_memory_allocated(NULL));
    FINE(ctrt_memory_max_reserved(NULL) >= ctrt_memory_reserved(NULL));
    FINE((ctrt_memory_reset_peak(NULL), ctrt_memory_max_allocated(NULL) == ctrt_memory_allocated(NULL)));
    FINE(ctrt_memory_empty_cache(NULL) == CTRT_OK);
    FINE(ctrt_memory_policy_name(NULL) != NULL);
    BAD(INVALID_ARGUMENT, ctrt_memory_get_stats(NULL, p.cpu));
    FINE(ctrt_memory_get_stats(&stats, NULL) == CTRT_OK);
}

void bad_base(void)
{
    RUN_ALL(base, device, memory, memory_stats, memory_scopes_and_limits, memory_owners, memory_release);
}

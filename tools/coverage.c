/* SPDX-License-Identifier: Apache-2.0 */
/* tools/coverage.c: `ctrt ops --coverage`, which shows for each op and dtype whether a device has a kernel and, if not,
 * what the library does instead: as text, as JSON, or as an HTML page that contains the JSON (coverage.html). */
#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <string.h>

#include "ctrt/ctrt.h"
#include "json.h"
#include "tool.h"

static const char page[] =
#include "coverage.inc"
    ;
static const char marker[] = "@COVERAGE@";

enum path { NATIVE, COMPOSED, CPU, MISSING, UNDEFINED, PATHS };
static const struct { const char *word, *sign, *meaning; } paths[PATHS] = {
    [NATIVE] = { "native", "x", "the device has a kernel" },
    [COMPOSED] = { "composed", "o", "without a kernel, the library calls other ops" },
    [CPU] = { "cpu", "c", "runs on the cpu if CTRT_FALLBACK is cpu, else it is an error" },
    [MISSING] = { "missing", "!", "no kernel, also not on the cpu: always an error" },
    [UNDEFINED] = { "undefined", ".", "the op is not defined for this dtype" },
};

static const struct op { const char *name, *form, *promotion, *dtypes, *text; } ops[] = {
#define CTRT_OP(name, form, promotion, dtypes, numbers, autocast, in_place, gradient, text) \
    { #name, #form, #promotion, #dtypes, text },
#include "ctrt/ops.def"
};
#define OPS (sizeof ops / sizeof ops[0])

/* Ops that the library computes by other ops if the device has no kernel (core/ops/attention.c, nn/optim/step.c). */
static const char *const composed[] = { "attention", "attention_backward", "sgd_step", "adam_step" };

static ctrt_device *device, *cpu;
static int counts[PATHS];

static bool has_kernels(const struct op *op)
{
    return strcmp(op->form, "GRAPH") != 0;
}

static bool is_defined(const struct op *op, ctrt_dtype dtype)
{
    const bool floats = strcmp(op->dtypes, "FLOATS") == 0 || strcmp(op->promotion, "TO_FLOAT") == 0;
    return floats ? ctrt_dtype_is_floating(dtype) : dtype != CTRT_BOOL || strcmp(op->dtypes, "NUMBERS") != 0;
}

static enum path path_of(const struct op *op, ctrt_dtype dtype)
{
    if (ctrt_op_supported(device, op->name, dtype))
        return NATIVE;
    if (!is_defined(op, dtype))
        return UNDEFINED;
    for (size_t i = 0; i < sizeof composed / sizeof composed[0]; i++)
        if (strcmp(op->name, composed[i]) == 0)
            return COMPOSED;
    return device != cpu && cpu != NULL && ctrt_op_supported(cpu, op->name, dtype) ? CPU : MISSING;
}

static bool is_of_device(const ctrt_plugin_info *plugin)
{
    return strcmp(plugin->component, ctrt_device_type(device)) == 0
           && (strcmp(plugin->kind, "backend") == 0 || strcmp(plugin->kind, "kernels") == 0)
           && strcmp(plugin->state, "loaded") == 0;
}

static void count_paths(void)
{
    ctrt_dtype dtype;
    for (size_t k = 0; k < OPS; k++)
        for (size_t i = 0; has_kernels(&ops[k]) && ctrt_dtype_get(NULL, &dtype, i) == CTRT_OK; i++)
            counts[path_of(&ops[k], dtype)]++;
}

/* ---- text ---- */

static void text_row(const struct op *op)
{
    const char *name;
    ctrt_dtype dtype;
    printf("%-24s", op != NULL ? op->name : "");
    for (size_t i = 0; ctrt_dtype_get(&name, &dtype, i) == CTRT_OK; i++)
        printf("%5s", op != NULL ? paths[path_of(op, dtype)].sign : ctrt_dtype_name(dtype));
    printf("\n");
}

static void write_text(void)
{
    ctrt_plugin_info plugin = CTRT_PLUGIN_INFO;
    printf("kernels of %s\n", ctrt_device_name(device));
    for (size_t i = 0; ctrt_plugin_list(&plugin, i) == CTRT_OK; i++)
        if (is_of_device(&plugin))
            printf("  %s\n", plugin.file);
    printf("\n");
    text_row(NULL);
    for (size_t k = 0; k < OPS; k++)
        if (has_kernels(&ops[k]))
            text_row(&ops[k]);
    printf("\n");
    for (int path = 0; path < PATHS; path++)
        printf("%5d  %s  %s: %s\n", counts[path], paths[path].sign, paths[path].word, paths[path].meaning);
}

/* ---- JSON ---- */

static void op_json(const struct op *op)
{
    ctrt_dtype dtype;
    json_open(NULL, '{');
    json_string("op", op->name);
    json_string("text", op->text);
    json_open("dtypes", '{');
    for (size_t i = 0; ctrt_dtype_get(NULL, &dtype, i) == CTRT_OK; i++)
        json_string(ctrt_dtype_name(dtype), paths[path_of(op, dtype)].word);
    json_close('}');
    json_close('}');
}

static void write_json(void)
{
    ctrt_plugin_info plugin = CTRT_PLUGIN_INFO;
    json_open(NULL, '{');
    json_string("version", ctrt_version());
    json_string("device", ctrt_device_name(device));
    json_open("files", '[');
    for (size_t i = 0; ctrt_plugin_list(&plugin, i) == CTRT_OK; i++)
        if (is_of_device(&plugin))
            json_string(NULL, plugin.file);
    json_close(']');
    json_open("paths", '[');
    for (int path = 0; path < PATHS; path++) {
        json_open(NULL, '{');
        json_string("path", paths[path].word);
        json_string("meaning", paths[path].meaning);
        json_number("count", counts[path]);
        json_close('}');
    }
    json_close(']');
    json_open("ops", '[');
    for (size_t k = 0; k < OPS; k++)
        if (has_kernels(&ops[k]))
            op_json(&ops[k]);
    json_close(']');
    json_close('}');
}

static void write_html(void)
{
    const char *gap = strstr(page, marker);
    fwrite(page, 1, (size_t)(gap - page), stdout);
    write_json();
    fputs(gap + strlen(marker), stdout);
}

static const struct { const char *word; void (*write)(void); } formats[] = {
    { "text", write_text }, { "json", write_json }, { "html", write_html },
};
#define FORMATS (sizeof formats / sizeof formats[0])

/* ---- the command ---- */

int tool_coverage(int argc, char **argv, const char *usage)
{
    static const struct option options[] = {
        { "coverage", no_argument, NULL, 'c' },
        { "format", required_argument, NULL, 'f' },
        { NULL, 0, NULL, 0 },
    };
    const char *format = "text", *output = NULL;
    size_t chosen = 0;
    for (int c; (c = getopt_long(argc, argv, "o:", options, NULL)) != -1;) {
        switch (c) {
        case 'c': break;
        case 'f': format = optarg; break;
        case 'o': output = optarg; break;
        default:  fputs(usage, stderr); return 2;
        }
    }
    while (chosen < FORMATS && strcmp(formats[chosen].word, format) != 0)
        chosen++;
    if (chosen == FORMATS || argc - optind > 1) {
        fputs(usage, stderr);
        return 2;
    }
    const char *target = optind < argc ? argv[optind] : "cpu";
    if (tool_is_file(target) && (target = tool_device_of("ops", target)) == NULL)
        return 1;
    if (ctrt_device_get(&device, target) != CTRT_OK) {
        fprintf(stderr, "ctrt ops: %s\n", ctrt_error_message());
        return 1;
    }
    if (ctrt_device_get(&cpu, "cpu") != CTRT_OK)
        cpu = NULL;                             /* nothing runs on the cpu */
    if (output != NULL && strcmp(output, "-") != 0 && freopen(output, "w", stdout) == NULL) {
        fprintf(stderr, "ctrt ops: %s: %s\n", output, strerror(errno));
        return 1;
    }
    count_paths();
    formats[chosen].write();
    return 0;
}

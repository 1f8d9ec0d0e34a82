/* SPDX-License-Identifier: Apache-2.0 */
/* Calls every public function with bad input: each call must return its status and a message, must not crash and must
 * not write its output. The calls are in bad-*.c.
 *
 * The test reads the functions' names from the headers in include/ctrt, and a function that no call names is a failure.
 * Each function has one TAP line. */
#include <dirent.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bad-input.h"
#include "run.h"
#include "folder.h"

struct props p;
ctrt_tensor *out;

/* ---- the functions and their calls ---- */

static struct function {
    char name[64];
    int calls, failures;
    bool declared;
} functions[512];
static int function_count;
static char details[1 << 16];

static struct function *function_of(const char *name, size_t length)
{
    for (int k = 0; k < function_count; k++)
        if (strlen(functions[k].name) == length && !strncmp(functions[k].name, name, length))
            return &functions[k];
    if (function_count == 512 || length >= sizeof functions[0].name)
        return NULL;
    struct function *added = &functions[function_count++];
    memcpy(added->name, name, length);
    return added;
}

static const char *name_end(const char *at)
{
    return at + strspn(at, "abcdefghijklmnopqrstuvwxyz0123456789_");
}

/* Finds every "ctrt_NAME(" in the text, counts a call of it if `count` is set, and returns the first function. */
static struct function *each_call(const char *text, bool count)
{
    struct function *first = NULL;
    for (const char *at = text; (at = strstr(at, "ctrt_")) != NULL; at = name_end(at)) {
        const char *end = name_end(at);
        if (*end != '(')
            continue;
        struct function *function = function_of(at, (size_t)(end - at));
        if (function != NULL && count)
            function->calls++;
        if (first == NULL)
            first = function;
    }
    return first;
}

void called(const char *expression)
{
    each_call(expression, true);
}

__attribute__((format(printf, 2, 3)))
static void fail(const char *expression, const char *format, ...)
{
    struct function *function = each_call(expression, false);
    size_t used = strlen(details);
    if (function != NULL)
        function->failures++;
    if (used + 700 > sizeof details)
        return;
    used += (size_t)snprintf(details + used, 300, "#   %.250s: ", expression);
    va_list list;
    va_start(list, format);
    vsnprintf(details + used, 380, format, list);
    va_end(list);
    strcat(details, "\n");
}

void told_bad(const char *expression, ctrt_status got, int want)
{
    if (got == CTRT_OK)
        fail(expression, "was accepted");
    else if (want != BAD_ANY && (int)got != want)
        fail(expression, "got '%s' (%s), expected '%s'", ctrt_status_string(got), ctrt_error_message(),
             ctrt_status_string((ctrt_status)want));
    else if (ctrt_error_message()[0] == '\0' || !strcmp(ctrt_error_message(), "stale"))
        fail(expression, "no message");
    if (out != NULL) {
        if (got != CTRT_OK)
            fail(expression, "changed its output although it failed");
        ctrt_tensor_release(&out);
    }
}

void told_fine(const char *expression, bool fine)
{
    if (!fine)
        fail(expression, "is false");
}

/* ---- the declared functions ---- */

static void declare(const char *name, size_t length)
{
    struct function *function = function_of(name, length);
    if (function != NULL)
        function->declared = true;
}

static void read_header(const char *path)
{
    FILE *in = fopen(path, "r");
    char line[1024];
    while (in != NULL && fgets(line, sizeof line, in) != NULL) {
        const char *at;
        if (strncmp(line, "#", 1) == 0)
            continue;
        if (!strncmp(line, "CTRT_API", 8) && (at = strstr(line, "ctrt_")) != NULL) {
            for (; at && *name_end(at) != '('; at = strstr(name_end(at), "ctrt_"))
                ;                                               /* the return type comes first */
            if (at != NULL)
                declare(at, (size_t)(name_end(at) - at));
        }
    }
    if (in != NULL)
        fclose(in);
}

/* The functions that ops.h declares by ctrt/ops.def. */
#define UNARY_no(name)   #name,
#define UNARY_yes(name)  #name, #name "_",
#define BINARY_no(name)  #name, #name "_scalar",
#define BINARY_yes(name) #name, #name "_scalar", #name "_", #name "_scalar_",
#define OWN_no(name)
#define GRAPH_no(name)
static const char *const listed[] = {
#define CTRT_OP(name, form, promotion, dtypes, numbers, in_place, gradient, text) form##_##in_place(ctrt_##name)
#include "ctrt/ops.def"
#undef CTRT_OP
};

static void read_headers(void)
{
    for (size_t k = 0; k < sizeof listed / sizeof listed[0]; k++)
        declare(listed[k], strlen(listed[k]));
    char folder[2048], path[4096];
    snprintf(folder, sizeof folder, "%s/include/ctrt", getenv("srcdir") ? getenv("srcdir") : ".");
    DIR *open = opendir(folder);
    for (struct dirent *entry; open && (entry = readdir(open)) != NULL;) {
        size_t length = strlen(entry->d_name);
        /* plugin.h declares functions that plugins define. */
        if (length < 2 || strcmp(entry->d_name + length - 2, ".h") || !strcmp(entry->d_name, "plugin.h"))
            continue;
        snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        read_header(path);
    }
    if (open)
        closedir(open);
}

/* ---- objects for the calls ---- */

static bool props_make(void)
{
    static const int64_t two[2] = { 0, 1 };
    ctrt_status status = ctrt_device_get(&p.cpu, "cpu");
    if (!status) status = ctrt_ones(&p.x, CTRT_SHAPE(2, 3), CTRT_F32, p.cpu);
    if (!status) status = ctrt_ones(&p.wide, CTRT_SHAPE(5, 7), CTRT_F32, p.cpu);
    if (!status) status = ctrt_from_data(&p.whole, two, 2, CTRT_SHAPE(2), CTRT_I64, p.cpu);
    if (!status) status = ctrt_ones(&p.truth, CTRT_SHAPE(2, 3), CTRT_BOOL, p.cpu);
    if (!status) status = ctrt_ones(&p.number, CTRT_SCALAR_SHAPE, CTRT_F32, p.cpu);
    if (!status) status = ctrt_ones(&p.none, CTRT_SHAPE(0, 3), CTRT_F32, p.cpu);
    if (!status) status = ctrt_ones(&p.leaf, CTRT_SHAPE(2, 3), CTRT_F32, p.cpu);
    if (!status) status = ctrt_tensor_require_grad(p.leaf, true);
    if (!status) status = ctrt_ones(&p.image, CTRT_SHAPE(1, 2, 4, 4), CTRT_F32, p.cpu);
    if (!status) status = ctrt_ones(&p.filter, CTRT_SHAPE(3, 2, 3, 3), CTRT_F32, p.cpu);
    if (!status) status = ctrt_linear_new(&p.linear, 3, 4, true, p.cpu);
    if (!status) status = ctrt_sgd_new(&p.sgd, p.linear, &(ctrt_sgd_options){ .lr = 0.1 });
    if (status)
        printf("Bail out! %s\n", ctrt_error_message());
    /* The device of a test plugin whose memory the host cannot read. */
    if (ctrt_device_get(&p.other, "fake:0") != CTRT_OK
        || ctrt_empty(&p.away, CTRT_SHAPE(2, 3), CTRT_F32, p.other) != CTRT_OK)
        printf("# no second device: %s\n", ctrt_error_message());
    return status == CTRT_OK;
}

static void props_release(void)
{
    ctrt_tensor **tensors[] = { &p.x,    &p.wide, &p.whole, &p.truth,  &p.number,
                                &p.none, &p.leaf, &p.image, &p.filter, &p.away };
    for (size_t k = 0; k < sizeof tensors / sizeof tensors[0]; k++)
        ctrt_tensor_release(tensors[k]);
    ctrt_optimizer_release(&p.sgd);
    ctrt_module_release(&p.linear);
}

TEST_MAIN
{
    /* The library's plugins, and a test plugin as a second kind of device. */
    char *folder = folder_new();
    folder_copy(folder, "backend-cpu.so", built_path("backend-cpu"), -1);
    folder_copy(folder, "memory-caching.so", built_path("memory-caching"), -1);
    folder_copy(folder, "memory-direct.so", built_path("memory-direct"), -1);
    folder_actor(folder, "backend-fake");
    setenv("CTRT_PLUGIN_PATH", folder, 1);
    if (!props_make())
        return 1;
    bad_base();
    bad_tensor();
    bad_stream();
    bad_split();
    bad_ops();
    bad_autograd();
    bad_nn();
    bool second_device = p.away != NULL;
    props_release();
    folder_remove(folder);
    ctrt_log_set_level(CTRT_LOG_ERROR);
    read_headers();
    int number = 0, failed = 0, declared = 0;
    for (int k = 0; k < function_count; k++) {
        struct function *f = &functions[k];
        if (!f->declared)
            continue;
        declared++;
        bool bad = f->failures > 0 || f->calls == 0;
        failed += bad;
        printf("%s %d - %s: %d calls%s\n", bad ? "not ok" : "ok", ++number, f->name, f->calls,
               f->calls ? "" : ", no call of it");
    }
    printf("%s", details);
    bool known = declared > 250 && second_device;
    printf("%s %d - the headers were read and a second device was available\n1..%d\n", known ? "ok" : "not ok",
           number + 1, number + 1);
    return failed > 0 || !known || details[0] != '\0';
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Calls every public function with bad input: each call must return its status and a message, must not crash and must
 * not write its output. The calls are in bad-*.c.
 *
 * The test reads the functions' names from the headers in include/ctrt, and a function that no call names is a
 * failure. */
#include "../options.h"
#include "bad-input.h"
#include "folder.h"
#include "tap.h"

struct objects p;
ctrt_tensor *out;

/* ---- the functions and their calls ---- */

static struct function {
    char name[64];
    int calls;
    bool declared;
} functions[1024];
static int function_count;

static struct function *function_of(const char *name, size_t length)
{
    for (int k = 0; k < function_count; k++)
        if (strlen(functions[k].name) == length && !strncmp(functions[k].name, name, length))
            return &functions[k];
    if (function_count == 1024 || length >= sizeof functions[0].name)
        return NULL;
    struct function *added = &functions[function_count++];
    memcpy(added->name, name, length);
    return added;
}

static const char *name_end(const char *at)
{
    return at + strspn(at, "abcdefghijklmnopqrstuvwxyz0123456789_");
}

/* Counts a call of every "ctrt_NAME(" in the expression. */
void count_call(const char *expression)
{
    for (const char *at = expression; (at = strstr(at, "ctrt_")) != NULL; at = name_end(at)) {
        struct function *function = *name_end(at) == '(' ? function_of(at, (size_t)(name_end(at) - at)) : NULL;
        if (function != NULL)
            function->calls++;
    }
}

void begin_bad(const char *expression)
{
    count_call(expression);
    ctrt_tensor_assign(&out, p.number);
    ctrt_fail(CTRT_ERR_INTERNAL, "stale");
}

void check_bad(const char *expression, ctrt_status got, int want)
{
    const char *message = ctrt_error_message();
    CHECK(got != CTRT_OK && (want == CTRT_ERR_ANY || (int)got == want), "%s: got '%s' (%s), expected '%s'", expression,
          ctrt_status_string(got), message, want == CTRT_ERR_ANY ? "an error" : ctrt_status_string((ctrt_status)want));
    CHECK(message[0] != '\0' && strcmp(message, "stale") != 0, "%s: no message", expression);
    CHECK(out == p.number || got == CTRT_OK, "%s: changed its output although it failed", expression);
    ctrt_tensor_release(&out);
}

void check_fine(const char *expression, bool fine)
{
    CHECK(fine, "%s is false", expression);
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
        const char *at = strncmp(line, "CTRT_API", 8) == 0 ? strstr(line, "ctrt_") : NULL;
        while (at != NULL && *name_end(at) != '(')              /* the return type comes first */
            at = strstr(name_end(at), "ctrt_");
        if (at != NULL)
            declare(at, (size_t)(name_end(at) - at));
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
#define CTRT_OP(name, form, promotion, dtypes, numbers, autocast, in_place, gradient, text) \
    form##_##in_place(ctrt_##name)
#include "ctrt/ops.def"
#undef CTRT_OP
};

static void read_headers(void)
{
    EACH(name, listed)
        declare(*name, strlen(*name));
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

static ctrt_status objects_make(void)
{
    static const int64_t two[2] = { 0, 1 };
    TRY(ctrt_device_get(&p.cpu, "cpu"));
    TRY(ctrt_ones(&p.x, CTRT_SHAPE(2, 3), CTRT_F32, p.cpu));
    TRY(ctrt_ones(&p.wide, CTRT_SHAPE(5, 7), CTRT_F32, p.cpu));
    TRY(ctrt_from_data(&p.whole, two, 2, CTRT_SHAPE(2), CTRT_I64, p.cpu));
    TRY(ctrt_ones(&p.truth, CTRT_SHAPE(2, 3), CTRT_BOOL, p.cpu));
    TRY(ctrt_ones(&p.number, CTRT_SCALAR_SHAPE, CTRT_F32, p.cpu));
    TRY(ctrt_ones(&p.none, CTRT_SHAPE(0, 3), CTRT_F32, p.cpu));
    TRY(ctrt_ones(&p.leaf, CTRT_SHAPE(2, 3), CTRT_F32, p.cpu));
    TRY(ctrt_tensor_require_grad(p.leaf, true));
    TRY(ctrt_ones(&p.image, CTRT_SHAPE(1, 2, 4, 4), CTRT_F32, p.cpu));
    TRY(ctrt_ones(&p.filter, CTRT_SHAPE(3, 2, 3, 3), CTRT_F32, p.cpu));
    TRY(ctrt_linear_new(&p.linear, 3, 4, true, p.cpu));
    CTRT_TRY(ctrt_sgd_new(&p.sgd, p.linear, SGD(.lr = 0.1)));
    /* The device of a test plugin whose memory the host cannot read. */
    CTRT_TRY(ctrt_device_get(&p.other, "fake:0"));
    return ctrt_empty(&p.away, CTRT_SHAPE(2, 3), CTRT_F32, p.other);
}

static void objects_release(void)
{
    ctrt_tensor_release(&p.x);
    ctrt_tensor_release(&p.wide);
    ctrt_tensor_release(&p.whole);
    ctrt_tensor_release(&p.truth);
    ctrt_tensor_release(&p.number);
    ctrt_tensor_release(&p.none);
    ctrt_tensor_release(&p.leaf);
    ctrt_tensor_release(&p.image);
    ctrt_tensor_release(&p.filter);
    ctrt_tensor_release(&p.away);
    ctrt_optimizer_release(&p.sgd);
    ctrt_module_release(&p.linear);
}

TEST_MAIN
{
    /* The library's plugins, and a test plugin as a second kind of device. */
    const char *folder = FOLDER_OF("backend-cpu", "memory-caching", "memory-direct", "comm-host", "strategy-single",
                                   "backend-fake");
    setenv("CTRT_PLUGIN_PATH", folder, 1);
    const ctrt_status made = objects_make();
    REQUIRE(made == CTRT_OK, "%s", ctrt_error_message());
    group("calls with bad input");
    RUN_ALL(bad_base, bad_tensor, bad_stream, bad_layout, bad_parallel, bad_share, bad_strategy, bad_comm,
            bad_loading, bad_datasets);
    RUN_ALL(bad_transforms, bad_ops, bad_autograd, bad_nn, objects_release);
    ctrt_log_set_level(CTRT_LOG_ERROR);
    group("every declared function was called");
    read_headers();
    int declared = 0;
    for (int k = 0; k < function_count; k++) {
        declared += functions[k].declared;
        CHECK(!functions[k].declared || functions[k].calls > 0, "no call of %s", functions[k].name);
    }
    CHECK(declared > 250, "%d functions are declared", declared);
    return done();
}

/* SPDX-License-Identifier: Apache-2.0 */
/* The base layer of core: error messages, log, edit distance, interned strings, free lists, injected allocation
 * failures, arrays, pointer tables, locks, parameters. */
#include <pthread.h>

#include "base/array.h"
#include "base/intern.h"
#include "base/lock.h"
#include "base/host_alloc.h"
#include "base/param.h"
#include "base/ptr_map.h"
#include "child.h"

/* ---- messages ---- */

static void *message_of_thread(void *out)
{
    strcpy(out, ctrt_error_message());
    ctrt_fail(CTRT_ERR_IO, "the thread's own");
    return NULL;
}

static void test_messages(void)
{
    char long_text[9000], other[64] = "?";
    group("error messages are per thread, can be prefixed with context, and are truncated");
    CHECK(strcmp(ctrt_error_message(), "") == 0, "the message before any failure is \"%s\"", ctrt_error_message());
    CHECK(ctrt_fail(CTRT_ERR_SHAPE, "shape %d", 3) == CTRT_ERR_SHAPE, "ctrt_fail changed the status");
    CHECK(ctrt_context(CTRT_ERR_SHAPE, "op %s", "add") == CTRT_ERR_SHAPE, "ctrt_context changed the status");
    CHECK(strcmp(ctrt_error_message(), "op add: shape 3") == 0, "the message is \"%s\"", ctrt_error_message());
    CHECK(ctrt_context(CTRT_OK, "nothing") == CTRT_OK && strcmp(ctrt_error_message(), "op add: shape 3") == 0,
          "ctrt_context changed the message of a success");
    ctrt_fail(CTRT_ERR_IO, "again: %s", ctrt_error_message());
    CHECK(strcmp(ctrt_error_message(), "again: op add: shape 3") == 0,
          "a message that formats the previous message: %s", ctrt_error_message());
    memset(long_text, 'x', sizeof long_text);
    long_text[sizeof long_text - 1] = '\0';
    ctrt_fail(CTRT_ERR_IO, "%s", long_text);
    size_t length = strlen(ctrt_error_message());
    CHECK(length == 4095 && strcmp(ctrt_error_message() + length - 3, "...") == 0,
          "a truncated message has %zu characters, expected 4095 that end with ...", length);
    ctrt_context(CTRT_ERR_IO, "before");
    CHECK(strncmp(ctrt_error_message(), "before: xxx", 11) == 0 && strlen(ctrt_error_message()) == 4095,
          "a truncated message with context begins with \"%.20s\"", ctrt_error_message());
    ctrt_fail(CTRT_ERR_IO, NULL);
    CHECK(strcmp(ctrt_error_message(), "input or output failed") == 0, "the default message is \"%s\"",
          ctrt_error_message());
    CHECK_FAILS(fail_null("f", "x"), CTRT_ERR_INVALID_ARGUMENT, "f: x is NULL");
    pthread_t thread;
    pthread_create(&thread, NULL, message_of_thread, other);
    pthread_join(thread, NULL);
    CHECK(strcmp(other, "") == 0 && strstr(ctrt_error_message(), "x is NULL"), "threads share messages: %s",
          other);
    CHECK_FAILS(out_of_memory(77, "a thing"), CTRT_ERR_OUT_OF_MEMORY, "out of memory: 77 bytes for a thing");

    group("every status code has a text");
    for (int code = 0; code >= -17; code--)
        CHECK(strcmp(ctrt_status_string((ctrt_status)code), "unknown status") != 0, "code %d has no text", code);
    CHECK(strcmp(ctrt_status_string(CTRT_OK), "success") == 0, "the text of CTRT_OK is \"%s\"",
          ctrt_status_string(CTRT_OK));
    CHECK(strcmp(ctrt_status_string((ctrt_status)-1000), "unknown status") == 0, "an unknown code has a text");
    size_t codes = 0;
    const char *name = NULL;
    ctrt_status value = CTRT_OK;
    while (ctrt_status_get(&name, &value, codes) == CTRT_OK) {
        int64_t found = 1;
        CHECK(ctrt_constant_find(&found, name) == CTRT_OK && found == value, "%s is %d and %lld", name, value,
              (long long)found);
        codes++;
    }
    CHECK(codes == 19 && strcmp(name, "CTRT_ERR_DEVICE_LOST") == 0 && value == CTRT_ERR_DEVICE_LOST,
          "%zu status codes, the last is %s", codes, name);
    CHECK_FAILS(ctrt_status_get(NULL, NULL, codes), CTRT_ERR_NOT_FOUND, "there are 19 status codes");
    CHECK(strcmp(ctrt_version(), "") != 0 && strchr(ctrt_version(), '.'), "the version is \"%s\"", ctrt_version());
}

static void test_nearest(void)
{
    static const char *const known[] = { "cpu", "cuda", "caching", "nccl-multi", NULL, "" };
    static const struct {
        const char *word, *want;
    } cases[] = {
        { "cudda", "cuda" },
        { "cdua", "cuda" },
        { "CUDA", "cuda" },
        { "cud", "cuda" },
        { "gpu", "cpu" },
        { "cachign", "caching" },
        { "caching", "caching" },
        { "nccl_multi", "nccl-multi" },
        { "xyz", NULL },
        { "", NULL },
        { "c", NULL },
        { "rocm", NULL },
        { "cccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccc", NULL },
    };
    group("nearest_word returns the candidate with the smallest edit distance");
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        const char *got = nearest_word(cases[i].word, known, COUNT_OF(known));
        CHECK(got == cases[i].want || (got && cases[i].want && strcmp(got, cases[i].want) == 0),
              "%s gives %s, expected %s", cases[i].word, got ? got : "none",
              cases[i].want ? cases[i].want : "none");
    }
    CHECK(nearest_word(NULL, known, 2) == NULL && nearest_word("cpu", known, 0) == NULL,
          "NULL or an empty list has a nearest word");
}

static void test_keep(void)
{
    char text[] = "a text";
    group("equal strings are interned once");
    const char *a = intern_string(text), *b = intern_format("%s %s", "a", "text");
    CHECK(a != NULL && a != text && a == b, "equal strings are interned at %p and %p", (const void *)a,
          (const void *)b);
    text[0] = 'b';
    CHECK(strcmp(a, "a text") == 0 && intern_string(text) != a, "the interned string changed with its source");
    CHECK(intern_string(NULL) == NULL, "NULL was interned");
}

/* ---- log ---- */

struct heard {
    int lines;
    ctrt_log_level level;
    char component[32], text[256];
};

static void hear(void *user, ctrt_log_level level, const char *component, const char *text)
{
    struct heard *heard = user;
    heard->lines++;
    heard->level = level;
    snprintf(heard->component, sizeof heard->component, "%s", component);
    snprintf(heard->text, sizeof heard->text, "%s", text);
}

static void test_log(void)
{
    struct heard heard = { 0 };
    group("the callback receives log lines up to the log level");
    IN_CHILD("CTRT_LOG=info") {
        ctrt_log_set_callback(hear, &heard);
        log_message(CTRT_LOG_INFO, "me", "number %d", 5);
        CHECK(heard.lines == 1 && heard.level == CTRT_LOG_INFO && strcmp(heard.component, "me") == 0
                  && strcmp(heard.text, "number 5") == 0,
              "%d lines, the last is %s: %s", heard.lines, heard.component, heard.text);
        log_message(CTRT_LOG_DEBUG, "me", "too much");
        CHECK(heard.lines == 1, "a debug line was logged at level info");
        ctrt_log_set_level(CTRT_LOG_ERROR);
        log_message(CTRT_LOG_WARNING, "me", "too much");
        CHECK(heard.lines == 1, "a warning was logged");
        ctrt_log_set_level((ctrt_log_level)99);
        log_message(CTRT_LOG_DEBUG, NULL, "%s", "now");
        CHECK(heard.lines == 2 && strcmp(heard.component, "?") == 0, "a debug line was not logged");
        log_message((ctrt_log_level)-5, "me", "no level");
        log_message((ctrt_log_level)4, "me", "no level");
        CHECK(heard.lines == 2, "a line with an invalid level was logged");
    }
    CHILD_END;
    IN_CHILD("CTRT_LOG=loud") {
        ctrt_log_set_callback(hear, &heard);
        log_message(CTRT_LOG_WARNING, "me", "first");
        CHECK(heard.lines == 2 && strcmp(heard.text, "first") == 0, "%d lines, the last is %s", heard.lines,
              heard.text);
        log_message(CTRT_LOG_INFO, "me", "quiet");
        CHECK(heard.lines == 2, "a malformed CTRT_LOG is not the default");
    }
    CHILD_END;
}

/* ---- memory ---- */

static void *make_garbage(void *argument)
{
    (void)argument;
    void *objects[FREE_LIST_LIMIT + 10];
    for (int i = 0; i < FREE_LIST_LIMIT + 10; i++)
        objects[i] = free_list_take(FREE_NODE, 64);
    for (int i = 0; i < FREE_LIST_LIMIT + 10; i++)
        free_list_put(FREE_NODE, objects[i]);
    return (void *)(intptr_t)thread_state.free[FREE_NODE].count;
}

static void test_memory(void)
{
    group("free lists are bounded and are freed with their thread");
    pthread_t thread;
    void *kept;
    pthread_create(&thread, NULL, make_garbage, NULL);
    pthread_join(thread, &kept);
    if (FREE_LISTS_BYPASSED)
        CHECK(kept == NULL, "a sanitized build kept %ld objects", (long)(intptr_t)kept);
    else
        CHECK((intptr_t)kept == FREE_LIST_LIMIT, "%ld objects were kept", (long)(intptr_t)kept);
    thread_register();
    void *object = free_list_take(FREE_TENSOR, 64);
    free_list_put(FREE_TENSOR, object);
    void *again = free_list_take(FREE_TENSOR, 64);
    CHECK(FREE_LISTS_BYPASSED || again == object, "the freed object was not reused");
    free_list_put(FREE_TENSOR, again);

    group("alloc_fail_at makes the n-th allocation, or all from the n-th on, fail");
    alloc_fail_at(3, false);
    void *one = host_alloc(8), *two = host_calloc(8), *three = host_strdup("x"),
         *four = free_list_take(FREE_TENSOR, 64);
    CHECK(one && two && !three && four, "only the third of four allocations must fail: %p %p %p %p", one, two, three,
          four);
    CHECK(alloc_fail_at(2, true) == 4, "four allocations were not counted");
    void *five = host_alloc(8), *six = host_realloc(NULL, 8), *seven = free_list_take(FREE_TENSOR, 64);
    CHECK(five && !six && !seven, "the second and third of three allocations must fail: %p %p %p", five, six, seven);
    CHECK(alloc_fail_at(0, false) == 3, "three allocations were not counted");
    void *eight = host_alloc(0);
    CHECK(eight != NULL && !alloc_fault_due(), "allocations still fail");
    host_free(one), host_free(two), host_free(four), host_free(five), host_free(eight);
}

/* ---- arrays and tables ---- */

static void test_array(void)
{
    struct { uint32_t number, unused[4]; } *items = NULL;
    size_t room = 0, count = 0, failed = 0;
    group("an array grows; a failed allocation leaves it unchanged");
    for (size_t i = 0; i < 1000; i++) {
        alloc_fail_at(i % 3 == 0, true);
        const size_t before = room;
        const bool grown = ARRAY_GROW(items, room, count);
        failed += !grown;
        CHECK(grown ? count < room : room == before, "capacity %zu for %zu items, previously %zu", room, count, before);
        if (grown)
            items[count].number = (uint32_t)count, count++;
    }
    alloc_fail_at(1, true);
    room = count;
    CHECK_FAILS(ARRAY_RESERVE(items, room, count, "a list"), CTRT_ERR_OUT_OF_MEMORY, "for a list");
    alloc_fail_at(0, false);
    for (size_t i = 0; i < count; i++)
        CHECK(items[i].number == i, "item %zu is %u", i, items[i].number);
    room = UINT32_MAX / 2 + 1;
    CHECK(failed > 0 && !ARRAY_GROW(items, room, room), "no growth failed, or an array of 2^32 items was created");
    host_free(items);
}

/* Adds and removes items with random keys and compares each lookup with an array. */
static void test_ptr_map(void)
{
    struct item { const void *key; uint32_t value; };
    static const struct { uintptr_t stride; uint32_t keys; int removed; } cases[] = {    /* removed: of 8 steps */
        { 1, 5, 4 }, { 8, 60, 3 }, { 16, 500, 4 }, { 64, 300, 1 }, { 4096, 500, 3 }, { (uintptr_t)1 << 40, 100, 3 },
    };
    static uint32_t values[500];
    group("a pointer table contains the items that were added and not removed, also after failed allocations");
    for (size_t c = 0; c < COUNT_OF(cases); c++) {
        struct ptr_map map = { 0 };
        uint64_t random = 1;
        size_t count = 0, wrong = 0, seen = 0;
        memset(values, 0, sizeof values);
        for (uint32_t step = 1; step <= 6000; step++) {
            random = random * 6364136223846793005u + 1442695040888963407u;
            const uint32_t k = (uint32_t)(random >> 33) % cases[c].keys;
            const void *key = (const void *)((k + 1) * cases[c].stride);
            struct item *item = ptr_map_find(&map, key, sizeof *item);
            wrong += (item != NULL ? item->value : 0) != values[k];
            if ((int)(random >> 60) % 8 < cases[c].removed) {
                if (item != NULL)
                    ptr_map_remove(&map, item, sizeof *item), count--;
                values[k] = 0;
                continue;
            }
            alloc_fail_at(step % 5 == 0, true);
            item = ptr_map_add(&map, key, sizeof *item);
            alloc_fail_at(0, false);
            wrong += item == NULL ? values[k] != 0 : item->value != values[k] || item->key != key;
            if (item != NULL)
                count += values[k] == 0, item->value = values[k] = step;
        }
        for (struct item *item = NULL; (item = ptr_map_next(&map, item, sizeof *item)) != NULL; seen++)
            wrong += item->value != values[(uintptr_t)item->key / cases[c].stride - 1];
        CHECK(wrong == 0 && seen == count && map.count == count, "case %zu: %zu wrong, %zu seen, %zu counted of %zu", c,
              wrong, seen, map.count, count);
        ptr_map_clear(&map, sizeof(struct item));
        CHECK(ptr_map_next(&map, NULL, sizeof(struct item)) == NULL && map.count == 0,
              "case %zu: the table is not empty after clearing", c);
        ptr_map_free(&map);
    }
}

/* ---- locks ---- */

LOCK_DEFINE(test_lock, LOCK_DEVICE);
static int shared_number;

static void *count_up(void *argument)
{
    (void)argument;
    for (int i = 0; i < 5000; i++) {
        lock_enter(&test_lock);
        lock_enter(&test_lock);
        shared_number++;
        lock_leave(&test_lock);
        lock_leave(&test_lock);
    }
    return NULL;
}

static void test_locks(void)
{
    pthread_t threads[4];
    group("recursive locks exclude other threads and are free in a forked child");
    for (int i = 0; i < 4; i++)
        pthread_create(&threads[i], NULL, count_up, NULL);
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    CHECK(shared_number == 20000, "the counter is %d, expected 20000", shared_number);
    lock_enter(&test_lock);
    IN_CHILD("CTRT_X=1") {
        alarm(20);
        lock_enter(&test_lock);
        lock_leave(&test_lock);
        lock_leave(&test_lock);
        CHECK(test_lock.depth == 0 && pthread_mutex_trylock(&test_lock.mutex) == 0,
              "the child's lock is not free");
    }
    CHILD_END;
    lock_leave(&test_lock);
}

/* ---- parameters ---- */

#define PARAM(type, fallback, words) { sizeof(ctrt_param), "CTRT_TEST_X", type, fallback, words, "for tests" }

static void test_param_values(void)
{
    static const struct {
        ctrt_param param;
        const char *text;
        int64_t want;
        const char *error;
    } cases[] = {
        { PARAM(CTRT_PARAM_INT, NULL, NULL), "42", 42, NULL },
        { PARAM(CTRT_PARAM_INT, NULL, NULL), "-7", -7, NULL },
        { PARAM(CTRT_PARAM_INT, NULL, NULL), "4x", 0, "integer" },
        { PARAM(CTRT_PARAM_INT, NULL, NULL), "1.5", 0, "integer" },
        { PARAM(CTRT_PARAM_INT, NULL, NULL), "99999999999999999999", 0, "too large" },
        { PARAM(CTRT_PARAM_BOOL, NULL, NULL), "yes", 1, NULL },
        { PARAM(CTRT_PARAM_BOOL, NULL, NULL), "OFF", 0, NULL },
        { PARAM(CTRT_PARAM_BOOL, NULL, NULL), "1", 1, NULL },
        { PARAM(CTRT_PARAM_BOOL, NULL, NULL), "maybe", 0, "expected 1, yes" },
        { PARAM(CTRT_PARAM_BYTES, NULL, NULL), "4096", 4096, NULL },
        { PARAM(CTRT_PARAM_BYTES, NULL, NULL), "512k", 512 << 10, NULL },
        { PARAM(CTRT_PARAM_BYTES, NULL, NULL), "64m", 64 << 20, NULL },
        { PARAM(CTRT_PARAM_BYTES, NULL, NULL), "64MiB", 64 << 20, NULL },
        { PARAM(CTRT_PARAM_BYTES, NULL, NULL), "1g", 1 << 30, NULL },
        { PARAM(CTRT_PARAM_BYTES, NULL, NULL), "2T", (int64_t)2 << 40, NULL },
        { PARAM(CTRT_PARAM_BYTES, NULL, NULL), "10b", 10, NULL },
        { PARAM(CTRT_PARAM_BYTES, NULL, NULL), "-1", 0, "a size such as" },
        { PARAM(CTRT_PARAM_BYTES, NULL, NULL), "64q", 0, "a size such as" },
        { PARAM(CTRT_PARAM_BYTES, NULL, NULL), "m", 0, "a size such as" },
        { PARAM(CTRT_PARAM_BYTES, NULL, NULL), "64mm", 0, "a size such as" },
        { PARAM(CTRT_PARAM_BYTES, NULL, NULL), "9999999999t", 0, "too large" },
        { PARAM(CTRT_PARAM_ENUM, NULL, "error|cpu|both"), "cpu", 1, NULL },
        { PARAM(CTRT_PARAM_ENUM, NULL, "error|cpu|both"), "BOTH", 2, NULL },
        { PARAM(CTRT_PARAM_ENUM, NULL, "error|cpu|both"), "cup", 0,
          "expected one of error|cpu|both; did you mean cpu?" },
        { PARAM(CTRT_PARAM_ENUM, NULL, NULL), "x", 0, "expected one of" },
        { PARAM(CTRT_PARAM_STRING, NULL, NULL), "anything", 0, NULL },
        { PARAM((ctrt_param_type)9, NULL, NULL), "x", 0, "not a ctrt_param_type" },
    };
    group("parameter values are parsed, and invalid ones are errors");
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        int64_t value = -99;
        ctrt_status status = param_parse(&value, &cases[i].param, cases[i].text);
        CHECK(status == (cases[i].error ? CTRT_ERR_INVALID_ARGUMENT : CTRT_OK), "\"%s\": status %d: %s",
              cases[i].text, (int)status, ctrt_error_message());
        if (status == CTRT_OK)
            CHECK(value == cases[i].want, "\"%s\" is parsed as %lld", cases[i].text, (long long)value);
        else
            CHECK(cases[i].error && strstr(ctrt_error_message(), cases[i].error)
                      && strstr(ctrt_error_message(), "CTRT_TEST_X="),
                  "\"%s\": wrong message: %s", cases[i].text, ctrt_error_message());
    }
}

static const ctrt_param number = { sizeof number, "CTRT_TEST_NUMBER",  CTRT_PARAM_INT, "5",
                                   NULL,          "a number for tests" };
static const ctrt_param text_param = { sizeof text_param, "CTRT_TEST_TEXT", CTRT_PARAM_STRING, NULL, NULL,
                                       "a text for tests" };

static void test_param_origins(void)
{
    ctrt_param_value value;
    group("a parameter's value comes from the default, the environment or the program");
    IN_CHILD("CTRT_OTHER=1") {
        CHECK_OK(param_read(&value, &number, "test"));
        CHECK(value.integer == 5 && strcmp(value.text, "5") == 0 && !value.is_set, "the default is %lld, expected 5",
              (long long)value.integer);
        CHECK_OK(param_read(&value, &text_param, "test"));
        CHECK(value.text == NULL && !value.is_set, "no default: %s", value.text);
    }
    CHILD_END;
    IN_CHILD("CTRT_TEST_NUMBER=6", "CTRT_TEST_TEXT=") {
        CHECK_OK(param_read(&value, &number, "test"));
        CHECK(value.integer == 6 && value.is_set, "the environment's value is %lld, expected 6",
              (long long)value.integer);
        CHECK_OK(param_read(&value, &text_param, "test"));
        CHECK(value.text != NULL && value.text[0] == '\0' && value.is_set, "an empty string is not taken as a value");
        CHECK_FAILS(ctrt_param_set("CTRT_TEST_NUMBER", "7"), CTRT_ERR_STATE, "is already in use as \"6\"");
        CHECK_OK(ctrt_param_set("CTRT_TEST_NUMBER", "6"));
    }
    CHILD_END;
    IN_CHILD("CTRT_TEST_NUMBER=6") {
        param_declare(&number, "test");
        CHECK_OK(ctrt_param_set("CTRT_TEST_NUMBER", "8"));
        CHECK_FAILS(ctrt_param_set("CTRT_TEST_NUMBER", "x"), CTRT_ERR_INVALID_ARGUMENT, "CTRT_TEST_NUMBER=x");
        CHECK_OK(param_read(&value, &number, "test"));
        CHECK(value.integer == 8 && value.is_set, "the program's value is %lld, expected 8", (long long)value.integer);
    }
    CHILD_END;
    IN_CHILD("CTRT_TEST_NUMBER=6") {
        param_declare(&number, "test");
        CHECK_OK(ctrt_param_set("CTRT_TEST_NUMBER", "8"));
        CHECK_OK(ctrt_param_set("CTRT_TEST_NUMBER", NULL));
        CHECK_OK(param_read(&value, &number, "test"));
        CHECK(value.integer == 6, "after ctrt_param_set(NULL): %lld", (long long)value.integer);
    }
    CHILD_END;
    IN_CHILD("CTRT_TEST_NUMBER=six") {
        for (int i = 0; i < 2; i++)
            CHECK_FAILS(param_read(&value, &number, "test"), CTRT_ERR_INVALID_ARGUMENT,
                        "CTRT_TEST_NUMBER=six: expected an integer");
        CHECK_FAILS(param_read(NULL, &number, "test"), CTRT_ERR_INVALID_ARGUMENT, NULL);
        CHECK_FAILS(param_read(&value, NULL, "test"), CTRT_ERR_INVALID_ARGUMENT, NULL);
        ctrt_param small = number;
        small.size = 8;
        CHECK_FAILS(param_read(&value, &small, "test"), CTRT_ERR_INVALID_ARGUMENT, NULL);
        CHECK_FAILS(ctrt_param_set(NULL, "x"), CTRT_ERR_INVALID_ARGUMENT, "NULL");
        CHECK_FAILS(ctrt_param_set("CTRT_LGO", "info"), CTRT_ERR_NOT_FOUND, "did you mean CTRT_LOG?");
        CHECK_FAILS(ctrt_param_get_info(NULL, 0), CTRT_ERR_INVALID_ARGUMENT, "NULL");
    }
    CHILD_END;
    IN_CHILD("CTRT_TEST_NUMBER=6") {
        ctrt_param_info info;
        bool seen = false, log_seen = false;
        param_declare(&number, "test");
        for (size_t i = 0; ctrt_param_get_info(&info, i) == CTRT_OK; i++) {
            log_seen = log_seen
                       || (strcmp(info.name, "CTRT_LOG") == 0 && strcmp(info.owner, "core") == 0
                           && strcmp(info.type, "enum") == 0);
            if (strcmp(info.name, "CTRT_TEST_NUMBER") == 0)
                seen = strcmp(info.value, "6") == 0 && strcmp(info.origin, "environment") == 0
                       && strcmp(info.owner, "test") == 0 && strcmp(info.type, "int") == 0
                       && strcmp(info.help, "a number for tests") == 0;
        }
        CHECK(seen && log_seen, "a parameter is not listed");
        CHECK_OK(ctrt_param_set("CTRT_TEST_NUMBER", "9"));      /* listing a parameter does not read it */
    }
    CHILD_END;
}

static void test_param_warnings(void)
{
    struct heard heard = { 0 };
    ctrt_param_value value;
    group("misspelt environment variables and late changes are logged once");
    IN_CHILD("CTRT_TEST_NUMBR=6", "CTRT_SOMETHING_ELSE=1") {
        ctrt_log_set_callback(hear, &heard);
        param_declare(&number, "test");
        param_check_environment();
        CHECK(heard.lines == 1
                  && strstr(heard.text, "unknown environment variable CTRT_TEST_NUMBR; did you mean CTRT_TEST_NUMBER?"),
              "%d log lines, the last: %s", heard.lines, heard.text);
        param_check_environment();
        CHECK(heard.lines == 1, "%d warnings, expected 1", heard.lines);
    }
    CHILD_END;
    IN_CHILD("CUDA_VISIBLE_DEVICE=0") {
        ctrt_log_set_callback(hear, &heard);
        param_check_environment();
        CHECK(heard.lines == 1 && strstr(heard.text, "did you mean CUDA_VISIBLE_DEVICES?"),
              "%d log lines, the last: %s", heard.lines, heard.text);
    }
    CHILD_END;
    IN_CHILD("CUDA_VISIBLE_DEVICES=0", "CTRT_LOG=warning") {
        ctrt_log_set_callback(hear, &heard);
        param_check_environment();
        CHECK(heard.lines == 0, "unexpected log line: %s", heard.text);
    }
    CHILD_END;
    IN_CHILD("CTRT_TEST_NUMBER=6") {
        ctrt_log_set_callback(hear, &heard);
        CHECK_OK(param_read(&value, &number, "test"));
        setenv("CTRT_TEST_NUMBER", "7", 1);
        CHECK_OK(param_read(&value, &number, "test"));
        CHECK_OK(param_read(&value, &number, "test"));
        CHECK(value.integer == 6 && heard.lines == 1
                  && strstr(heard.text, "CTRT_TEST_NUMBER was changed after it was read as \"6\""),
              "%d log lines, the last: %s", heard.lines, heard.text);
        param_forget_values();
        CHECK_OK(param_read(&value, &number, "test"));
        CHECK(value.integer == 7, "after param_forget_values: %lld", (long long)value.integer);
    }
    CHILD_END;
}

TEST_MAIN
{
    unsetenv("CTRT_LOG");
    test_log();
    test_param_origins();
    test_param_warnings();
    test_messages();
    test_nearest();
    test_keep();
    test_memory();
    test_array();
    test_ptr_map();
    test_locks();
    test_param_values();
    return done();
}

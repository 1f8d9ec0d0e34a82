/* SPDX-License-Identifier: Apache-2.0 */
/* The base layer of core: error messages, log, free lists, pointer tables, SHA-256, parameters, and shapes in
 * messages. */
#include <pthread.h>

#include "calls.h"
#include "base/host_alloc.h"
#include "base/param.h"
#include "base/ptr_map.h"
#include "base/sha256.h"
#include "child.h"
#include "tensor/shape.h"

static int log_lines;
static char last_line[256];

static void keep_line(void *user, ctrt_log_level level, const char *component, const char *text)
{
    (void)user;
    log_lines++;
    snprintf(last_line, sizeof last_line, "%d %s: %s", (int)level, component, text);
}

/* Checks the number of log lines, and that the last one contains `words`. */
static void check_log(int lines, const char *words)
{
    CHECK(log_lines == lines && strstr(last_line, words) != NULL, "%d log lines, the last is %s; expected %d, \"%s\"",
          log_lines, last_line, lines, words);
}

TEST(test_log, "the callback receives log lines up to the log level")
{
    IN_CHILD("CTRT_LOG=info") {
        ctrt_log_set_callback(keep_line, NULL);
        log_message(CTRT_LOG_INFO, "me", "number %d", 5);
        check_log(1, "2 me: number 5");
        log_message(CTRT_LOG_DEBUG, "me", "too much");
        ctrt_log_set_level(CTRT_LOG_ERROR);
        log_message(CTRT_LOG_WARNING, "me", "too much");
        check_log(1, "number 5");
        ctrt_log_set_level((ctrt_log_level)99);
        log_message(CTRT_LOG_DEBUG, NULL, "%s", "now");
        check_log(2, "3 ?: now");
        log_message((ctrt_log_level)-5, "me", "no level");
        log_message((ctrt_log_level)4, "me", "no level");
        check_log(2, "now");
    }
    IN_CHILD("CTRT_LOG=loud") {                 /* a malformed value is a warning, and the default is used */
        ctrt_log_set_callback(keep_line, NULL);
        log_message(CTRT_LOG_WARNING, "me", "first");
        log_message(CTRT_LOG_INFO, "me", "quiet");
        check_log(2, "first");
    }
}

static void check_digest(const uint8_t digest[SHA256_BYTES], const char *want)
{
    char text[2 * SHA256_BYTES + 1];
    for (int i = 0; i < SHA256_BYTES; i++)
        snprintf(text + 2 * i, 3, "%02x", digest[i]);
    CHECK_STR(text, want);
}

TEST(sha256, "SHA-256 and HMAC give the published values")
{
    uint8_t digest[SHA256_BYTES], other[SHA256_BYTES];
    struct sha256 hash;
    char million[1000];
    static const struct { const char *text, *want; } hashes[] = {       /* FIPS 180-4's examples */
        { "", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855" },
        { "abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad" },
        { "abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
          "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1" },
        { "abcdefghbcdefghicdefghijdefghijkefghijklfghijklmghijklmnhijklmnoijklmnopjklmnopqklmnopqrlmnopqrsmnopqrst"
          "nopqrstu", "cf5b16a778af8380036ce59e7b0492370b249b11e8f07a51afac45037afee9d1" },
    };
    static const struct { char key[132]; size_t key_bytes; char data[160]; size_t bytes; const char *want; } macs[] = {
        { "\x0b\x0b\x0b\x0b\x0b\x0b\x0b\x0b\x0b\x0b\x0b\x0b\x0b\x0b\x0b\x0b\x0b\x0b\x0b\x0b", 20, "Hi There", 8,
          "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7" },
        { "Jefe", 4, "what do ya want for nothing?", 28,
          "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843" },
        { "\xaa", 131, "Test Using Larger Than Block-Size Key - Hash Key First", 54,
          "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54" },
        { "\xaa", 131, "This is a test using a larger than block-size key and a larger than block-size data. The key "
          "needs to be hashed before being used by the HMAC algorithm.", 152,
          "9b09ffa71b942fcb27635fbcd5b0e944bfdc63644f0713938a7f51535c3a35e2" },
    };
    EACH(h, hashes) {
        const size_t length = strlen(h->text);
        for (size_t cut = 0; cut <= length; cut++) {
            sha256_begin(&hash);
            sha256_add(&hash, h->text, cut);
            sha256_add(&hash, h->text + cut, length - cut);
            sha256_end(digest, &hash);
            check_digest(digest, h->want);
        }
    }
    memset(million, 'a', sizeof million);
    sha256_begin(&hash);
    for (int i = 0; i < 1000; i++)
        sha256_add(&hash, million, sizeof million);
    sha256_end(digest, &hash);
    check_digest(digest, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
    EACH(m, macs) {                       /* RFC 4231's cases 1, 2, 6 and 7 */
        struct hmac hmac;
        char key[132];
        memcpy(key, m->key, sizeof key);
        if (m->key_bytes > 64)
            memset(key, 0xaa, m->key_bytes);
        hmac_begin(&hmac, key, m->key_bytes);
        sha256_add(&hmac.inner, m->data, m->bytes);
        hmac_end(digest, &hmac);
        check_digest(digest, m->want);
    }
    for (int i = 0; i < SHA256_BYTES; i++) {
        memcpy(other, digest, sizeof other);
        CHECK_TRUE(sha256_equal(digest, other));
        other[i] ^= 1;
        CHECK_TRUE(!sha256_equal(digest, other));
    }
}

static const ctrt_param number = {
    sizeof number, "CTRT_TEST_NUMBER", CTRT_PARAM_INT, "5", NULL, "a number for tests",
};
static const ctrt_param text_param = {
    sizeof text_param, "CTRT_TEST_TEXT", CTRT_PARAM_STRING, NULL, NULL, "a text for tests",
};

/* Checks the value of CTRT_TEST_NUMBER and whether it is set. */
static void check_number(int64_t want, bool is_set)
{
    ctrt_param_value value = { 0 };
    CHECK_OK(param_read(&value, &number, "test"));
    CHECK_EQ(value.integer, want);
    CHECK_EQ(value.is_set, is_set);
}

TEST(test_param_origins, "a parameter's value comes from the default, the environment or the program")
{
    static const struct { const char *environment, *set; int64_t want; bool is_set; } cases[] = {
        { "CTRT_OTHER=1", NULL, 5, false }, { "CTRT_OTHER=1", "8", 8, true },
        { "CTRT_TEST_NUMBER=6", NULL, 6, true }, { "CTRT_TEST_NUMBER=6", "8", 8, true },
    };
    ctrt_param_value value;
    EACH(c, cases) {
        IN_CHILD(c->environment) {
            param_declare(&number, "test");
            CHECK_OK(ctrt_param_set("CTRT_TEST_NUMBER", "9"));
            CHECK_OK(ctrt_param_set("CTRT_TEST_NUMBER", c->set));         /* NULL: not set */
            CHECK_FAILS(ctrt_param_set("CTRT_TEST_NUMBER", "x"), CTRT_ERR_INVALID_ARGUMENT, "CTRT_TEST_NUMBER=x");
            check_number(c->want, c->is_set);
        }
    }
    IN_CHILD("CTRT_TEST_NUMBER=6", "CTRT_TEST_TEXT=") {
        check_number(6, true);
        CHECK_FAILS(ctrt_param_set("CTRT_TEST_NUMBER", "7"), CTRT_ERR_STATE, "is already in use as \"6\"");
        CHECK_OK(ctrt_param_set("CTRT_TEST_NUMBER", "6"));
        CHECK_OK(param_read(&value, &text_param, "test"));
        CHECK_STR(value.text, "");
        CHECK_TRUE(value.is_set);
    }
    IN_CHILD("CTRT_OTHER=1") {
        CHECK_OK(param_read(&value, &text_param, "test"));
        CHECK_TRUE(value.text == NULL && !value.is_set);
    }
    IN_CHILD("CTRT_TEST_NUMBER=six") {
        const ctrt_param small = { .size = 8, .name = "CTRT_TEST_NUMBER" };
        for (int i = 0; i < 2; i++)
            CHECK_FAILS(param_read(&value, &number, "test"), CTRT_ERR_INVALID_ARGUMENT,
                        "CTRT_TEST_NUMBER=six: expected an integer");
        CHECK_FAILS(param_read(NULL, &number, "test"), CTRT_ERR_INVALID_ARGUMENT, NULL);
        CHECK_FAILS(param_read(&value, NULL, "test"), CTRT_ERR_INVALID_ARGUMENT, NULL);
        CHECK_FAILS(param_read(&value, &small, "test"), CTRT_ERR_INVALID_ARGUMENT, NULL);
        CHECK_FAILS(ctrt_param_set("CTRT_LGO", "info"), CTRT_ERR_NOT_FOUND, "did you mean CTRT_LOG?");
    }
}

TEST(test_param_warnings, "misspelt environment variables and late changes are logged once")
{
    static const struct { const char *setting, *words; } cases[] = {
        { "CTRT_TEST_NUMBR=6", "unknown environment variable CTRT_TEST_NUMBR; did you mean CTRT_TEST_NUMBER?" },
        { "CTRT_SOMETHING_ELSE=1", NULL }, { "CUDA_VISIBLE_DEVICE=0", "did you mean CUDA_VISIBLE_DEVICES?" },
        { "CUDA_VISIBLE_DEVICES=0", NULL }, { "CTRT_LOG=warning", NULL },
    };
    EACH(c, cases) {
        IN_CHILD(c->setting) {
            ctrt_log_set_callback(keep_line, NULL);
            param_declare(&number, "test");
            for (int again = 0; again < 2; again++)
                param_check_environment();
            check_log(c->words != NULL, c->words != NULL ? c->words : "");
        }
    }
    IN_CHILD("CTRT_TEST_NUMBER=6") {
        ctrt_log_set_callback(keep_line, NULL);
        check_number(6, true);
        setenv("CTRT_TEST_NUMBER", "7", 1);
        for (int again = 0; again < 2; again++)
            check_number(6, true);
        check_log(1, "CTRT_TEST_NUMBER was changed after it was read as \"6\"");
        param_forget_values();
        check_number(7, true);
    }
}

static void *message_of_thread(void *out)
{
    strcpy(out, ctrt_error_message());
    ctrt_fail(CTRT_ERR_IO, "the thread's own");
    return NULL;
}

TEST(test_messages, "error messages are per thread, can be prefixed with context, and are truncated")
{
    char long_text[9000], other[64] = "?";
    CHECK_STR(ctrt_error_message(), "");
    CHECK_FAILS(ctrt_fail(CTRT_ERR_SHAPE, "shape %d", 3), CTRT_ERR_SHAPE, "shape 3");
    CHECK_FAILS(ctrt_context(CTRT_ERR_SHAPE, "op %s", "add"), CTRT_ERR_SHAPE, "op add: shape 3");
    CHECK_OK(ctrt_context(CTRT_OK, "nothing"));
    CHECK_STR(ctrt_error_message(), "op add: shape 3");
    ctrt_fail(CTRT_ERR_IO, "again: %s", ctrt_error_message());
    CHECK_STR(ctrt_error_message(), "again: op add: shape 3");
    memset(long_text, 'x', sizeof long_text);
    long_text[sizeof long_text - 1] = '\0';
    ctrt_fail(CTRT_ERR_IO, "%s", long_text);
    CHECK_EQ(strlen(ctrt_error_message()), 4095);
    CHECK_STR(ctrt_error_message() + 4095 - 3, "...");
    ctrt_context(CTRT_ERR_IO, "before");
    CHECK_EQ(strncmp(ctrt_error_message(), "before: xxx", 11), 0);
    CHECK_EQ(strlen(ctrt_error_message()), 4095);
    ctrt_fail(CTRT_ERR_IO, NULL);
    CHECK_STR(ctrt_error_message(), "input or output failed");
    CHECK_FAILS(fail_null("f", "x"), CTRT_ERR_INVALID_ARGUMENT, "f: x is NULL");
    in_threads(1, message_of_thread, other, 0);
    CHECK_STR(other, "");
    CHECK_HAS(ctrt_error_message(), "x is NULL");
    CHECK_FAILS(out_of_memory(77, "a thing"), CTRT_ERR_OUT_OF_MEMORY, "out of memory: 77 bytes for a thing");

    /* The name of the function that failed is replaced, also behind a name that was added twice. */
    CHECK_FAILS(fail_from(CTRT_ERR_SHAPE, "matmul (rows)", "shape %d", 3), CTRT_ERR_SHAPE, "matmul (rows): shape 3");
    CHECK_EQ(error_rename(CTRT_ERR_SHAPE, "linear"), CTRT_ERR_SHAPE);
    CHECK_STR(ctrt_error_message(), "linear (rows): shape 3");
    error_rename(CTRT_ERR_SHAPE, "mse_loss");
    CHECK_STR(ctrt_error_message(), "mse_loss (rows): shape 3");
    ctrt_fail(CTRT_ERR_SHAPE, "gather: index 3");       /* by a plugin */
    context_from(CTRT_ERR_SHAPE, "gather");
    CHECK_STR(ctrt_error_message(), "gather: index 3");
    error_rename(CTRT_ERR_SHAPE, "embedding");
    CHECK_STR(ctrt_error_message(), "embedding: index 3");
    ctrt_fail(CTRT_ERR_IO, "cpu: no memory");
    error_rename(CTRT_ERR_IO, "linear");
    CHECK_STR(ctrt_error_message(), "linear: cpu: no memory");
    fail_from(CTRT_ERR_IO, "f", NULL);
    ctrt_context(CTRT_ERR_IO, "layer 0");
    error_rename(CTRT_ERR_IO, "net");
    CHECK_STR(ctrt_error_message(), "net: layer 0: f: input or output failed");
    fail_from(CTRT_ERR_IO, "f", "%s", long_text);
    error_rename(CTRT_ERR_IO, "longer");
    CHECK_EQ(strncmp(ctrt_error_message(), "longer: xxx", 11), 0);
    CHECK_EQ(strlen(ctrt_error_message()), 4095);
    CHECK_OK(error_rename(CTRT_OK, "f"));
    CHECK_OK(context_from(CTRT_OK, "f"));

    group("every status code has a text and a name");
    size_t codes = 0;
    const char *name = NULL;
    ctrt_status value = CTRT_OK;
    for (; ctrt_status_get(&name, &value, codes) == CTRT_OK; codes++) {
        int64_t found = 1;
        CHECK(strcmp(ctrt_status_string(value), "unknown status") != 0, "%s has no text", name);
        CHECK_OK(ctrt_constant_find(&found, name));
        CHECK_EQ(found, value);
    }
    CHECK_EQ(codes, 20);
    CHECK_STR(name, "CTRT_ERR_COMM");
    CHECK_EQ(value, CTRT_ERR_COMM);
    CHECK_FAILS(ctrt_status_get(NULL, NULL, codes), CTRT_ERR_NOT_FOUND, "there are 20 status codes");
    CHECK_STR(ctrt_status_string(CTRT_OK), "success");
    CHECK_STR(ctrt_status_string((ctrt_status)-1000), "unknown status");
    CHECK_HAS(ctrt_version(), ".");
}

static void *make_garbage(void *count)
{
    void *objects[FREE_LIST_LIMIT + 10];
    for (int i = 0; i < FREE_LIST_LIMIT + 10; i++)
        objects[i] = free_list_take(FREE_NODE, 64);
    for (int i = 0; i < FREE_LIST_LIMIT + 10; i++)
        free_list_put(FREE_NODE, objects[i]);
    *(int *)count = (int)thread_state.free[FREE_NODE].count;
    return NULL;
}

TEST(test_memory, "free lists are bounded and are freed with their thread")
{
    int count = -1;
    in_threads(1, make_garbage, &count, 0);
    CHECK_EQ(count, FREE_LISTS_BYPASSED ? 0 : FREE_LIST_LIMIT);
    thread_register();
    void *object = free_list_take(FREE_TENSOR, 64);
    free_list_put(FREE_TENSOR, object);
    void *again = free_list_take(FREE_TENSOR, 64);
    CHECK(FREE_LISTS_BYPASSED || again == object, "the freed object was not reused");
    free_list_put(FREE_TENSOR, again);
}

/* Adds and removes items with random keys and compares each lookup with an array. */
TEST(test_ptr_map, "a pointer table contains the items that were added and not removed, also after failed allocations")
{
    struct item { const void *key; uint32_t value; };
    static const struct { uintptr_t stride; uint32_t keys; int removed; } cases[] = {    /* removed: of 8 steps */
        { 1, 5, 4 }, { 8, 60, 3 }, { 16, 500, 4 }, { 64, 300, 1 }, { 4096, 500, 3 }, { (uintptr_t)1 << 40, 100, 3 },
    };
    static uint32_t values[500];
    EACH(c, cases) {
        struct ptr_map map = { 0 };
        uint64_t random = 1;
        size_t count = 0, wrong = 0, seen = 0;
        memset(values, 0, sizeof values);
        for (uint32_t step = 1; step <= 6000; step++) {
            random = random * 6364136223846793005u + 1442695040888963407u;
            const uint32_t k = (uint32_t)(random >> 33) % c->keys;
            const void *key = (const void *)((k + 1) * c->stride);
            struct item *item = ptr_map_find(&map, key, sizeof *item);
            wrong += (item != NULL ? item->value : 0) != values[k];
            if ((int)(random >> 60) % 8 < c->removed) {
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
            wrong += item->value != values[(uintptr_t)item->key / c->stride - 1];
        CHECK(wrong == 0 && seen == count && map.count == count, "%zu wrong, %zu seen, %zu counted of %zu", wrong, seen,
              map.count, count);
        ptr_map_clear(&map, sizeof(struct item));
        CHECK_TRUE(ptr_map_next(&map, NULL, sizeof(struct item)) == NULL && map.count == 0);
        ptr_map_free(&map);
    }
}

TEST(test_param_values, "parameter values are parsed, and invalid ones are errors")
{
    static const struct { ctrt_param_type type; const char *text; int64_t want; } good[] = {
        { CTRT_PARAM_INT, "42", 42 }, { CTRT_PARAM_INT, "-7", -7 }, { CTRT_PARAM_BOOL, "yes", 1 },
        { CTRT_PARAM_BOOL, "OFF", 0 }, { CTRT_PARAM_BOOL, "1", 1 }, { CTRT_PARAM_BYTES, "4096", 4096 },
        { CTRT_PARAM_BYTES, "512k", 512 << 10 }, { CTRT_PARAM_BYTES, "64m", 64 << 20 },
        { CTRT_PARAM_BYTES, "64MiB", 64 << 20 }, { CTRT_PARAM_BYTES, "1g", 1 << 30 },
        { CTRT_PARAM_BYTES, "2T", (int64_t)2 << 40 }, { CTRT_PARAM_BYTES, "10b", 10 }, { CTRT_PARAM_ENUM, "cpu", 1 },
        { CTRT_PARAM_ENUM, "BOTH", 2 }, { CTRT_PARAM_STRING, "anything", 0 },
    };
    static const struct { ctrt_param_type type; const char *text, *words; } bad[] = {
        { CTRT_PARAM_INT, "4x", "integer" }, { CTRT_PARAM_INT, "1.5", "integer" },
        { CTRT_PARAM_INT, "99999999999999999999", "too large" }, { CTRT_PARAM_BOOL, "maybe", "expected 1, yes" },
        { CTRT_PARAM_BYTES, "-1", "a size such as" }, { CTRT_PARAM_BYTES, "64q", "a size such as" },
        { CTRT_PARAM_BYTES, "m", "a size such as" }, { CTRT_PARAM_BYTES, "64mm", "a size such as" },
        { CTRT_PARAM_BYTES, "9999999999t", "too large" },
        { CTRT_PARAM_ENUM, "cup", "expected one of error|cpu|both; did you mean cpu?" },
        { (ctrt_param_type)9, "x", "not a ctrt_param_type" },
    };
    ctrt_param param = { sizeof param, "CTRT_TEST_X", CTRT_PARAM_INT, NULL, "error|cpu|both", "for tests" };
    EACH(c, good) {
        int64_t value = -99;
        param.type = c->type;
        CHECK_OK(param_parse(&value, &param, c->text));
        CHECK_EQ(value, c->want);
    }
    EACH(c, bad) {
        int64_t value;
        param.type = c->type;
        CHECK_FAILS(param_parse(&value, &param, c->text), CTRT_ERR_INVALID_ARGUMENT, c->words);
        CHECK_HAS(ctrt_error_message(), "CTRT_TEST_X=");
    }
    int64_t value;
    param.type = CTRT_PARAM_ENUM;
    param.words = NULL;
    CHECK_FAILS(param_parse(&value, &param, "x"), CTRT_ERR_INVALID_ARGUMENT, "expected one of");
}

/* Callers check the number of dimensions first. */
TEST(test_shape_text, "a list longer than any tensor's shape is truncated in messages")
{
    char text[SHAPE_TEXT_BYTES];
    int64_t many[100];
    for (int i = 0; i < 100; i++)
        many[i] = INT64_MIN;
    CHECK_HAS(shape_text(text, many, 100), ", ...]");
    CHECK(strstr(shape_text(text, many, 8), "...") == NULL, "the longest shape of a tensor is truncated: %s", text);
}

TEST_MAIN
{
    unsetenv("CTRT_LOG");
    return run_tests();
}

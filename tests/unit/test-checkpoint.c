/* SPDX-License-Identifier: Apache-2.0 */
/* Checkpoints: save and load, hand-written files, corrupt files and failed writes. */
#include <errno.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "folder.h"
#include "small_net.h"

static const char *folder;

#define in_folder(name) folder_join(folder, name)

static void write_bytes(const char *path, const void *bytes, size_t size)
{
    FILE *file = fopen(path, "wb");
    CHECK(file && fwrite(bytes, 1, size, file) == size && fclose(file) == 0, "cannot write %s", path);
}

/* Writes the header length, the header and `data` bytes with increasing values. Returns the size. */
static size_t compose(unsigned char *bytes, const char *header, size_t data)
{
    size_t length = strlen(header);
    for (int i = 0; i < 8; i++)
        bytes[i] = (unsigned char)(length >> 8 * i);
    memcpy(bytes + 8, header, length);
    for (size_t i = 0; i < data; i++)
        bytes[8 + length + i] = (unsigned char)i;
    return 8 + length + data;
}

static ctrt_status open_bytes(ctrt_tensor_file **file, const void *bytes, size_t size)
{
    const char *path = in_folder("by-hand.safetensors");
    write_bytes(path, bytes, size);
    return ctrt_tensor_file_open(file, path);
}

static ctrt_status open_header(ctrt_tensor_file **file, const char *header, size_t data)
{
    static unsigned char bytes[1 << 16];
    return open_bytes(file, bytes, compose(bytes, header, data));
}

TEST(good_files, "hand-written files can be opened")
{
    static const struct { const char *header; size_t data, count; } cases[] = {
        { "{}", 0, 0 }, { "{}      ", 0, 0 }, { "{\"__metadata__\":{}}", 0, 0 },
        { "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 8, 1 },
        { "{ \"a\" : { \"shape\" : [ 2 ] ,\n\t\"data_offsets\" : [ 0 , 8 ] , \"dtype\" : \"F32\" } } \n", 8, 1 },
        { "{\"b\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[4,7]},"
          "\"a\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]}}", 7, 2 },
        { "{\"a\":{\"dtype\":\"I64\",\"shape\":[0,5],\"data_offsets\":[0,0]},"
          "\"b\":{\"dtype\":\"I8\",\"shape\":[1],\"data_offsets\":[0,1]},"
          "\"c\":{\"dtype\":\"I8\",\"shape\":[0],\"data_offsets\":[1,1]}}", 1, 3 },
        { "{\"a\":{\"dtype\":\"BF16\",\"shape\":[0,9223372036854775807,9223372036854775807],\"data_offsets\":[0,0]}}",
          0, 1 },
        { "{\"a\":{\"dtype\":\"F16\",\"shape\":[1,1,1,1,1,1,1,1],\"data_offsets\":[0,2]}}", 2, 1 },
        { "{\"\":{\"dtype\":\"BOOL\",\"shape\":[4],\"data_offsets\":[0,4]}}", 4, 1 },
    };
    CTRT_AUTO(tensor_file) file = NULL;
    EACH(c, cases) {
        CHECK_OK(open_header(&file, c->header, c->data));
        CHECK_EQ(ctrt_tensor_file_count(file), c->count);
    }

    group("names, values and metadata of a hand-written file are read");
    CTRT_AUTO(tensor) t = NULL;
    /* One name is a-umlaut, g-clef (two surrogates), quote, slash. The data of "odd" is unaligned. */
    CHECK_OK(open_header(&file,
                         "{\"__metadata__\":{\"k\\n\":\"v\"},"
                         "\"odd\":{\"dtype\":\"I16\",\"shape\":[2,1],\"data_offsets\":[1,5]},"
                         "\"\\u00e4\\uD834\\uDD1E\\\"\\/\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},"
                         "\"flags\":{\"dtype\":\"BOOL\",\"shape\":[3],\"data_offsets\":[5,8]}}", 8));
    CHECK_OK(ctrt_tensor_file_read(&t, file, "odd", cpu));
    CHECK_EQ(ctrt_tensor_dtype(t), CTRT_I16);
    SHAPE_IS(t, 2, 1);
    VALUES_ARE(t, 0x0201, 0x0403);
    CHECK_OK(ctrt_tensor_file_read(&t, file, "\xc3\xa4\xf0\x9d\x84\x9e\"/", cpu));
    CHECK_OK(ctrt_tensor_file_read(&t, file, "flags", cpu));
    CHECK_EQ(ctrt_tensor_dtype(t), CTRT_BOOL);
    VALUES_ARE(t, 1, 1, 1);
    CHECK_STR(ctrt_tensor_file_name(file, 0), "odd");
    CHECK_TRUE(ctrt_tensor_file_name(file, 3) == NULL);
    CHECK_STR(ctrt_tensor_file_metadata(file, "k\n"), "v");
    CHECK_TRUE(ctrt_tensor_file_metadata(file, "q") == NULL);
    CHECK_FAILS(ctrt_tensor_file_read(&t, file, "odt", cpu), CTRT_ERR_NOT_FOUND, "did you mean \"odd\"");
    CHECK_FAILS(ctrt_tensor_file_read(NULL, file, "odd", cpu), CTRT_ERR_INVALID_ARGUMENT, "out");
    CHECK_FAILS(ctrt_tensor_file_read(&t, file, NULL, cpu), CTRT_ERR_INVALID_ARGUMENT, "name");
}

#define ONE(fields) "{\"a\":{" fields "}}"
#define F32_2       "\"dtype\":\"F32\",\"shape\":[2],"

TEST(foreign, "tensors that ctrt cannot read do not prevent the use of the others; unknown keys are skipped")
{
    CTRT_AUTO(tensor_file) file = NULL;
    CTRT_AUTO(tensor) t = NULL;
    static const char *const dtypes[] = { "F32", "F8_E4M3", "U16", "C64", "F4", "XYZ", "I8" };
    static const char *const words[] = {
        NULL, "tensor \"b\" has dtype \"F8_E4M3\"", "tensor \"c\" has dtype \"U16\"",
        "tensor \"d\" has dtype \"C64\"", "tensor \"e\" has dtype \"F4\"", "tensor \"f\" has dtype \"XYZ\"",
        "tensor \"g\" has 9 dimensions, more than 8",
    };
    CHECK_OK(open_header(&file,
                         "{\"__metadata__\":null,"
                         "\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4],"
                         "\"more\":[1,{\"b\":-2.5e-3}],\"more\":null},"
                         "\"b\":{\"dtype\":\"F8_E4M3\",\"shape\":[2],\"data_offsets\":[4,6]},"
                         "\"c\":{\"x\":true,\"dtype\":\"U16\",\"shape\":[2],\"data_offsets\":[6,10]},"
                         "\"d\":{\"dtype\":\"C64\",\"shape\":[1],\"data_offsets\":[10,18],\"x\":{}},"
                         "\"e\":{\"dtype\":\"F4\",\"shape\":[4],\"data_offsets\":[18,20]},"
                         "\"f\":{\"dtype\":\"XYZ\",\"shape\":[7],\"data_offsets\":[20,23]},"
                         "\"g\":{\"dtype\":\"I8\",\"shape\":[1,1,1,1,1,1,1,1,3],\"data_offsets\":[23,26]}}", 26));
    CHECK_EQ(ctrt_tensor_file_count(file), COUNT(dtypes));
    for (size_t i = 0; i < COUNT(dtypes); i++) {
        char name[2] = { (char)('a' + i), '\0' };
        CHECK_STR(ctrt_tensor_file_name(file, i), name);
        CHECK_STR(ctrt_tensor_file_dtype(file, i), dtypes[i]);
        if (i == 0)
            CHECK_OK(ctrt_tensor_file_read(&t, file, name, cpu));
        else
            CHECK_FAILS(ctrt_tensor_file_read(&t, file, name, cpu), CTRT_ERR_NOT_SUPPORTED, words[i]);
    }
    CHECK_TRUE(ctrt_tensor_file_dtype(file, COUNT(dtypes)) == NULL);
    CTRT_AUTO(dataset) d = NULL;
    const char *path = in_folder("by-hand.safetensors");
    CHECK_FAILS(ctrt_safetensors_dataset(&d, path, NULL, 0), CTRT_ERR_NOT_SUPPORTED, "tensor \"b\" has dtype");
    CHECK_OK(ctrt_safetensors_dataset(&d, path, (const char *[]){ "a" }, 1));
}

TEST(metadata, "metadata is written, listed and read")
{
    CTRT_AUTO(tensor_file) file = NULL;
    static const ctrt_metadata pairs[] = { { "z", "1" }, { "a\"", "\xc3\xa4\n" }, { "", "" } };
    static const struct { ctrt_metadata pairs[2]; const char *words; } bad[] = {
        { { { "k", "1" }, { "k", "2" } }, "the metadata has the key \"k\" twice" },
        { { { "k", "1" }, { "l", "\xff" } }, "a value of the metadata is not UTF-8" },
        { { { "\xff", "1" }, { "l", "1" } }, "a key of the metadata is not UTF-8" },
        { { { "k", "1" }, { "l", NULL } }, "the value of metadata 1 is NULL" },
    };
    const char *path = in_folder("metadata.safetensors");
    CHECK_OK(ctrt_save_tensors_with_metadata(path, NULL, NULL, 0, pairs, COUNT(pairs)));
    CHECK_OK(ctrt_tensor_file_open(&file, path));
    EACH(pair, pairs)
        CHECK_STR(ctrt_tensor_file_metadata(file, pair->key), pair->value);
    CHECK_STR(ctrt_tensor_file_metadata_key(file, 0), "");
    CHECK_STR(ctrt_tensor_file_metadata_key(file, 2), "z");
    CHECK_TRUE(ctrt_tensor_file_metadata_key(file, 3) == NULL && ctrt_tensor_file_metadata_key(NULL, 0) == NULL);
    EACH(c, bad)
        CHECK_FAILS(ctrt_save_tensors_with_metadata(path, NULL, NULL, 0, c->pairs, 2), CTRT_ERR_INVALID_ARGUMENT,
                    c->words);
    CHECK_FAILS(ctrt_save_tensors_with_metadata(path, NULL, NULL, 0, NULL, 1), CTRT_ERR_INVALID_ARGUMENT, "metadata");
}

TEST(bad_files, "corrupt headers are errors")
{
    static const struct file_case { const char *header; size_t data; const char *words; } cases[] = {
        { "", 0, "expected '{'" },
        { "{", 0, "expected '\"'" },
        { "{}}", 0, "byte 10: there is text after" },
        { "{\"a\"}", 0, "expected ':'" },
        { "{\"a\":1}", 0, "expected '{'" },
        { "{\"a\":{}}", 0, "expected '\"'" }, { "{a:{}}", 0, "expected '\"'" },
        { "{\"a\":{\"a\":{\"a\":{\"a\":{}}}}}", 0, "expected dtype, shape and data_offsets" },
        { ONE(F32_2 "\"data_offsets\":[0,8],"), 8, "expected '\"'" },
        { "{\"a\":{" F32_2 "\"data_offsets\":[0,8]},}", 8, "expected '\"'" },
        { "{\"a\":{" F32_2 "\"data_offsets\":[0,8]}", 8, "expected ',' or '}'" },
        { ONE("\"shape\":[2],\"data_offsets\":[0,8]"), 8, "expected dtype, shape and data_offsets" },
        { ONE(F32_2 "\"dtype\":\"F32\",\"data_offsets\":[0,8]"), 8, "repeated key \"dtype\"" },
        { ONE(F32_2 "\"data_offsets\":[0,8],\"more\":01"), 8, "expected ',' or '}'" },
        { ONE(F32_2 "\"data_offsets\":[0,8],\"more\":-"), 8, "expected a value" },
        { ONE(F32_2 "\"data_offsets\":[0,8],\"more\":1."), 8, "expected digits" },
        { ONE(F32_2 "\"data_offsets\":[0,8],\"more\":1e"), 8, "expected an exponent" },
        { ONE(F32_2 "\"data_offsets\":[0,8],\"more\":[1}"), 8, "expected ',' or ']'" },
        { ONE(F32_2 "\"data_offsets\":[0,8],\"more\":{1:2}"), 8, "expected '\"'" },
        { ONE(F32_2 "\"data_offsets\":[0,8],\"more\":nul"), 8, "expected a value" },
        { ONE("\"dtype\":\"U16\",\"shape\":[2],\"data_offsets\":[0,8]"), 8, "shape and dtype U16 take 4 bytes" },
        { ONE("\"dtype\":\"F6_E2M3\",\"shape\":[3],\"data_offsets\":[0,2]"), 2, "F6_E2M3 take 3 bytes" },
        { ONE("\"dtype\":4,\"shape\":[2],\"data_offsets\":[0,8]"), 8, "expected '\"'" },
        { ONE("\"dtype\":\"F32\",\"shape\":2,\"data_offsets\":[0,8]"), 8, "expected '['" },
        { ONE("\"dtype\":\"F32\",\"shape\":[2,],\"data_offsets\":[0,8]"), 8, "integer" },
        { ONE("\"dtype\":\"F32\",\"shape\":[-2],\"data_offsets\":[0,8]"), 8, "not negative" },
        { ONE("\"dtype\":\"F32\",\"shape\":[2.0],\"data_offsets\":[0,8]"), 8, "integer" },
        { ONE("\"dtype\":\"F32\",\"shape\":[02],\"data_offsets\":[0,8]"), 8, "leading zero" },
        { ONE("\"dtype\":\"F32\",\"shape\":[9223372036854775808],\"data_offsets\":[0,8]"), 8, "64 bits" },
        { ONE("\"dtype\":\"F32\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,0]"), 0, "2^63" },
        { ONE("\"dtype\":\"F64\",\"shape\":[2305843009213693952],\"data_offsets\":[0,0]"), 0, "2^63" },
        { ONE(F32_2 "\"data_offsets\":[0,4]"), 4, "take 8 bytes, data_offsets span 4" },
        { ONE(F32_2 "\"data_offsets\":[8,0]"), 8, "[8, 0]" },
        { ONE(F32_2 "\"data_offsets\":[0,16]"), 8, "are not inside the 8 bytes" },
        { ONE(F32_2 "\"data_offsets\":[0]"), 8, "expected ','" },
        { ONE(F32_2 "\"data_offsets\":[4,12]"), 12, "after the end of the previous one" },
        { ONE(F32_2 "\"data_offsets\":[0,8]"), 9, "1 bytes follow the last tensor" }, { "{}", 1, "1 bytes follow" },
        { "{\"a\":{" F32_2 "\"data_offsets\":[0,8]},\"b\":{" F32_2 "\"data_offsets\":[4,12]}}", 12,
          "before the end of the previous one" },
        { "{\"a\":{" F32_2 "\"data_offsets\":[0,8]},\"b\":{" F32_2 "\"data_offsets\":[9,17]}}", 17,
          "after the end of the previous one" },
        { "{\"a\":{" F32_2 "\"data_offsets\":[0,8]},\"a\":{" F32_2 "\"data_offsets\":[8,16]}}", 16,
          "two tensors are named \"a\"" },
        { "{\"a\":{" F32_2 "\"data_offsets\":[0,8]},\"\\u0061\":{" F32_2 "\"data_offsets\":[8,16]}}", 16,
          "two tensors" },
        { "{\"__metadata__\":{},\"__metadata__\":{}}", 0, "a second __metadata__" },
        { "{\"__metadata__\":{\"k\":\"1\",\"k\":\"2\"}}", 0, "\"k\" twice" },
        { "{\"__metadata__\":{\"k\":1}}", 0, "expected '\"'" }, { "{\"__metadata__\":{\"k\":{}}}", 0, "expected '\"'" },
        { "{\"__metadata__\":[]}", 0, "expected '{'" },
        { "{\"a", 0, "without end" },
        { "{\"\\x61\":", 0, "unknown escape" },
        { "{\"\\u12g4\":", 0, "hexadecimal" },
        { "{\"\\u0000\":", 0, "zero character" },
        { "{\"\\ud834\":", 0, "surrogate" },
        { "{\"\\ud834\\u0041\":", 0, "surrogate" },
        { "{\"a\nb\":", 0, "control character" },
        { "{\"\x80\":", 0, "not UTF-8" },                 /* continuation byte without a start */
        { "{\"\xc0\xaf\":", 0, "not UTF-8" },              /* overlong */
        { "{\"\xe0\x80\xaf\":", 0, "not UTF-8" },
        { "{\"\xed\xa0\x80\":", 0, "not UTF-8" },          /* a surrogate */
        { "{\"\xf4\x90\x80\x80\":", 0, "not UTF-8" },      /* beyond U+10FFFF */
        { "{\"\xf8\x88\x80\x80\x80\":", 0, "not UTF-8" },
        { "{\"\xe2\x82", 0, "not UTF-8" },                  /* cut off */
    };
    CTRT_AUTO(tensor_file) file = NULL;
    EACH(c, cases)
        if (!CHECK_FAILS(open_header(&file, c->header, c->data), CTRT_ERR_FORMAT, c->words))
            printf("# the header was %s\n", c->header);
    CHECK(file == NULL, "a failed open set the output");
}

TEST(bad_sizes, "corrupt header lengths are errors")
{
    static const char header[] =
        "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},\"b\":{\"dtype\":\"I8\",\"shape\":[3],"
                                 "\"data_offsets\":[8,11]},\"__metadata__\":{\"x\":\"\\u00e4\"}}";
    static unsigned char bytes[1024], changed[1024];
    CTRT_AUTO(tensor_file) file = NULL;
    size_t size = compose(bytes, header, 11);
    CHECK_OK(open_bytes(&file, bytes, size));
    for (size_t cut = 0; cut < size; cut++)
        CHECK_FAILS(open_bytes(&file, bytes, cut), CTRT_ERR_FORMAT, NULL);
    memcpy(changed, bytes, size);
    memset(changed, 0xff, 8);
    CHECK_FAILS(open_bytes(&file, changed, size), CTRT_ERR_FORMAT, "header length 18446744073709551615 exceeds");
    changed[0] = (unsigned char)(size - 7), memset(changed + 1, 0, 7);
    CHECK_FAILS(open_bytes(&file, changed, size), CTRT_ERR_FORMAT, "exceeds the file's size");
    memcpy(changed, (const unsigned char[]){ 1, 0xe1, 0xf5, 5 }, 4);           /* 100,000,001 in a sparse file */
    write_bytes(in_folder("sparse"), changed, 8);
    CHECK(truncate(in_folder("sparse"), 100000009) == 0, "truncate: %s", strerror(errno));
    CHECK_FAILS(ctrt_tensor_file_open(&file, in_folder("sparse")), CTRT_ERR_FORMAT,
                "header length 100000001 exceeds 100000000 bytes");
    unlink(in_folder("sparse"));

    group("paths that are no regular files are errors");
    CHECK_FAILS(ctrt_tensor_file_open(&file, in_folder("nothing")), CTRT_ERR_IO, "No such file");
    CHECK_FAILS(ctrt_tensor_file_open(&file, folder), CTRT_ERR_IO, "regular");
    CHECK_FAILS(ctrt_tensor_file_open(&file, "/dev/zero"), CTRT_ERR_IO, "regular");
    if (CHECK(mkfifo(in_folder("pipe"), 0600) == 0, "mkfifo: %s", strerror(errno)))
        CHECK_FAILS(ctrt_tensor_file_open(&file, in_folder("pipe")), CTRT_ERR_IO, "regular");
    unlink(in_folder("pipe"));
}

TEST(tensors, "named tensors of all dtypes are saved and read")
{
    static const ctrt_dtype dtypes[] = { CTRT_BOOL, CTRT_F32, CTRT_I8, CTRT_F64, CTRT_F16, CTRT_U8, CTRT_BF16, CTRT_I64,
                                         CTRT_I16, CTRT_I32 };
    ctrt_tensor *list[COUNT(dtypes) + 3] = { NULL };
    const char *names[COUNT(dtypes) + 3];
    CTRT_AUTO(tensor_file) file = NULL;
    size_t n = COUNT(dtypes);
    for (size_t i = 0; i < n; i++) {
        names[i] = ctrt_dtype_name(dtypes[i]);
        list[i] = tensor_with(DOUBLES(0, 1, 1, 0, 1, 1), CTRT_SHAPE(2, 3), dtypes[i], cpu);
    }
    CHECK_OK(ctrt_t(&list[n], list[1]));
    names[n++] = "turned \"\\\n\x01 \xc3\xa4";
    CHECK_OK(ctrt_zeros(&list[n], CTRT_SHAPE(0, 4), CTRT_F32, cpu));
    names[n++] = "none";
    CHECK_OK(ctrt_scalar_tensor(&list[n], ctrt_int(-5), CTRT_I64, cpu));
    names[n++] = "scalar";
    const char *path = in_folder("tensors.safetensors");
    CHECK_OK(ctrt_save_tensors(path, names, list, n));
    CHECK_OK(ctrt_tensor_file_open(&file, path));
    CHECK_EQ(ctrt_tensor_file_count(file), n);
    for (size_t i = 0; i < n; i++) {
        CTRT_AUTO(tensor) t = NULL;
        double want[6] = { 0 };
        if (!CHECK_OK(ctrt_tensor_file_read(&t, file, names[i], cpu)))
            continue;
        CHECK(ctrt_tensor_dtype(t) == ctrt_tensor_dtype(list[i]), "%s has another dtype", names[i]);
        check_shape(names[i], __LINE__, t, ctrt_ints_of(ctrt_tensor_shape(list[i]), ctrt_tensor_ndim(list[i])));
        CHECK_OK(ctrt_to_host(want, sizeof want, list[i], CTRT_F64));
        check_values(names[i], __LINE__, t, want, ctrt_tensor_numel(list[i]));
    }

    group("the order of the tensors does not change the file");
    static unsigned char first[4096], second[4096];
    ctrt_tensor *backward[COUNT(list)];
    const char *backward_names[COUNT(list)];
    for (size_t i = 0; i < n; i++)
        backward[i] = list[n - 1 - i], backward_names[i] = names[n - 1 - i];
    const size_t size = folder_read(first, sizeof first, path);
    CHECK_OK(ctrt_save_tensors(path, backward_names, backward, n));
    CHECK(folder_read(second, sizeof second, path) == size && memcmp(first, second, size) == 0,
          "another order produced another file");
    uint64_t length = 0;
    for (int i = 7; i >= 0; i--)
        length = length << 8 | first[i];
    CHECK(length % 8 == 0 && size > 8 + length, "data begins at byte %llu", (unsigned long long)length + 8);

    group("invalid names and lists are errors");
    ctrt_tensor *t = list[0];
    static const struct { const char *names[2]; const char *words; } bad[] = {
        { { "a", "a" }, "two tensors are named \"a\"" }, { { "a", NULL }, "name of item 1 is NULL" },
        { { "\xff", "a" }, "not UTF-8 at byte 0" }, { { "a", "__metadata__" }, "__metadata__" },
    };
    size_t before = folder_files(folder);
    EACH(c, bad)
        CHECK_FAILS(ctrt_save_tensors(in_folder("bad"), c->names, (ctrt_tensor *[]){ t, t }, 2),
                    CTRT_ERR_INVALID_ARGUMENT, c->words);
    CHECK_EQ(folder_files(folder), before);
    CHECK_OK(ctrt_save_tensors(in_folder("empty"), NULL, NULL, 0));
    CHECK_OK(ctrt_tensor_file_open(&file, in_folder("empty")));
    CHECK_EQ(ctrt_tensor_file_count(file), 0);
    tensors_release(list, (int)n);
}

TEST(failing, "a failed write keeps the old file")
{
    CTRT_AUTO(tensor) t = OP(ones, CTRT_SHAPE(3), CTRT_F32, cpu);
    CTRT_AUTO(tensor_file) file = NULL;
    const char *path = in_folder("kept.safetensors"), *name = "t";
    CHECK_OK(ctrt_save_tensors(path, &name, &t, 1));
    CHECK_OK(ctrt_zeros(&t, CTRT_SHAPE(100000), CTRT_F32, cpu));
    size_t before = folder_files(folder);
    struct rlimit old, small;
    getrlimit(RLIMIT_FSIZE, &old);
    signal(SIGXFSZ, SIG_IGN);
    small = old;
    small.rlim_cur = 5000;
    CHECK(setrlimit(RLIMIT_FSIZE, &small) == 0, "setrlimit: %s", strerror(errno));
    ctrt_status status = ctrt_save_tensors(path, &name, &t, 1);
    setrlimit(RLIMIT_FSIZE, &old);
    CHECK_FAILS(status, CTRT_ERR_IO, "cannot write");
    CHECK_EQ(folder_files(folder), before);         /* the temporary file was removed */
    CHECK_OK(ctrt_tensor_file_open(&file, path));
    CHECK_OK(ctrt_tensor_file_read(&t, file, name, cpu));
    SHAPE_IS(t, 3);
    char longest[8192];
    memset(longest, 'x', sizeof longest - 1);
    longest[sizeof longest - 1] = '\0';
    CHECK_FAILS(ctrt_save_tensors(longest, &name, &t, 1), CTRT_ERR_IO, "File name too long");
    /* A folder cannot be replaced by a file, so the temporary file is removed. */
    char beside[600];
    snprintf(beside, sizeof beside, "%s.tmp-%ld-", folder, (long)getpid());
    CHECK(access(beside, F_OK) != 0, "%s was not removed", beside);
}

TEST(modules, "a module is saved and loaded")
{
    CTRT_AUTO(module) a = NULL, b = NULL, other = NULL;
    CTRT_AUTO(tensor) x = NULL, scratch = NULL;
    CTRT_AUTO(tensor_file) file = NULL;
    const char *path = in_folder("module.safetensors");
    CHECK_OK(small_net_new(&a));
    CHECK_OK(small_net_new(&b));
    CHECK_OK(ctrt_randn(&x, CTRT_SHAPE(5, 3), CTRT_F32, cpu));
    CHECK_OK(ctrt_forward(&x, a, x));               /* changes the running statistics */
    CHECK_OK(ctrt_ones(&scratch, CTRT_SHAPE(1), CTRT_F32, cpu));
    CHECK_OK(ctrt_module_add_buffer(a, "scratch", scratch, false));
    CHECK(!same_modules(a, b), "two new networks have equal values");
    CHECK_OK(ctrt_save(a, path));
    CHECK_OK(ctrt_tensor_file_open(&file, path));
    CHECK_EQ(ctrt_tensor_file_count(file), 3 + 2 + 3);      /* parameters and persistent buffers */
    CHECK_OK(ctrt_load(b, path));
    CHECK(same_modules(b, a), "the loaded module differs from the saved one");
    ctrt_tensor *w = NULL;
    CHECK_OK(ctrt_module_tensor(&w, b, "0.weight"));
    CHECK_TRUE(ctrt_tensor_requires_grad(w) && ctrt_tensor_is_leaf(w));

    group("files that do not match the module are errors");
    CHECK_OK(ctrt_sequential_new(&other, CTRT_MODULES(CTRT_NEW(linear, 3, 5, true, cpu),
                                                      CTRT_NEW(linear, 4, 2, true, cpu))));
    double before[15];
    CHECK_OK(ctrt_module_tensor(&w, other, "0.weight"));
    CHECK_OK(ctrt_to_host(before, sizeof before, w, CTRT_F64));
    CHECK_FAILS(ctrt_load(other, path), CTRT_ERR_STATE,
                "0.weight is f32[4, 3] in the file and f32[5, 3] in the module");
    CHECK_HAS(ctrt_error_message(), "not in the module: ");
    CHECK_HAS(ctrt_error_message(), "1.running_mean");
    check_values("0.weight after a failed load", __LINE__, w, before, 15);
    CHECK_OK(ctrt_save(other, path));
    CHECK_FAILS(ctrt_load(b, path), CTRT_ERR_STATE, "missing in the file: ");
    CHECK(same_modules(b, a), "a failed load changed the module");
    CHECK_OK(ctrt_save(a, path));
    CHECK_OK(ctrt_module_to(b, NULL, CTRT_F64));
    CHECK_FAILS(ctrt_load(b, path), CTRT_ERR_STATE, "f32[4, 3] in the file and f64[4, 3] in the module");
}

/* test-optim-kinds continues from saved states. */
static void load_optimizer(bool adamw)
{
    /* The kind of the parameters that cannot load the file: of another kind, with fewer, with other ones. */
    static const struct { bool same_kind; int64_t in; const char *words[2]; } wrong[] = {
        { false, 0, { "SGD, the optimizer is AdamW", "AdamW, the optimizer is SGD" } },
        { true, 3, { "belong to this optimizer", "belong to this optimizer" } },
        { true, 2, { "0.weight", "0.weight" } },
    };
    CTRT_AUTO(module) net = NULL, small = NULL;
    CTRT_AUTO(optimizer) optimizer = NULL, other = NULL;
    const char *net_path = in_folder("net.safetensors"), *path = in_folder("optimizer.safetensors"),
               *no_lr = in_folder("no-lr.safetensors");
    CHECK_OK(small_net_new(&net));
    CHECK_OK(small_net_optimizer(&optimizer, net, adamw));
    CHECK_OK(ctrt_save(net, net_path));
    CHECK_OK(ctrt_optimizer_save(optimizer, path));     /* before the first step: no state yet */
    CHECK_OK(ctrt_optimizer_load(optimizer, path));
    CHECK_OK(small_net_step(net, optimizer, cpu, 0));
    CHECK_OK(ctrt_optimizer_save(optimizer, path));
    CHECK_FAILS(ctrt_optimizer_load(optimizer, net_path), CTRT_ERR_STATE, "no optimizer");
    if (!adamw) {
        static unsigned char bytes[128];
        write_bytes(no_lr, bytes, compose(bytes, "{\"__metadata__\":{\"optimizer\":\"SGD\"}}", 0));
        CHECK_FAILS(ctrt_optimizer_load(optimizer, no_lr), CTRT_ERR_STATE,
                    "the file has no number optimizer.lr of type f64");
    }
    EACH(c, wrong) {
        if (c->in > 0)
            CHECK_OK(ctrt_sequential_new(&small, CTRT_MODULES(CTRT_NEW(linear, c->in, 4, true, cpu))));
        CHECK_OK(small_net_optimizer(&other, small != NULL ? small : net, adamw == c->same_kind));
        CHECK_FAILS(ctrt_optimizer_load(other, path), CTRT_ERR_STATE, c->words[adamw]);
    }
}

TEST(expanded, "a buffer whose elements share memory is saved and loaded; a file with different values is an error")
{
    CTRT_AUTO(module) net = NULL;
    CTRT_AUTO(tensor) row = NULL, expanded = NULL, other = NULL;
    const char *path = in_folder("expanded.safetensors");
    static const float values[] = { 1, 2, 3 };
    CHECK_OK(ctrt_linear_new(&net, 3, 2, true, cpu));
    CHECK_OK(ctrt_from_data(&row, values, 3, CTRT_SHAPE(3, 1), CTRT_F32, cpu));
    CHECK_OK(ctrt_expand(&expanded, row, CTRT_SHAPE(4, 3, 2)));
    CHECK_OK(ctrt_module_add_buffer(net, "mask", expanded, true));
    CHECK_OK(ctrt_save(net, path));
    CHECK_OK(ctrt_fill_(row, ctrt_int(7)));
    CHECK_OK(ctrt_load(net, path));
    VALUES_ARE(row, 1, 2, 3);

    const char *const names[] = { "weight", "bias", "mask" };
    ctrt_tensor *list[3] = { NULL, NULL, NULL };
    CHECK_OK(ctrt_module_tensor(&list[0], net, "weight"));
    CHECK_OK(ctrt_module_tensor(&list[1], net, "bias"));
    CHECK_OK(ctrt_arange(&other, ctrt_int(0), ctrt_int(24), ctrt_int(1), CTRT_F32, cpu));
    CHECK_OK(ctrt_reshape(&other, other, CTRT_SHAPE(4, 3, 2)));
    list[2] = other;
    CHECK_OK(ctrt_save_tensors(path, names, list, 3));
    ctrt_no_grad
        CHECK_OK(ctrt_fill_(list[1], ctrt_int(5)));
    CHECK_FAILS(ctrt_load(net, path), CTRT_ERR_STATE, "\"mask\": the tensor of the module is expanded");
    VALUES_ARE(row, 1, 2, 3);
    VALUES_ARE(list[1], 5, 5);
}

TEST(optimizers, "files of optimizers without state, of other kinds and of other parameters")
{
    load_optimizer(false);
    load_optimizer(true);
}

/* Loads files whose state has the parameter's dtype or another dtype. */
TEST(state_dtypes, "optimizer state of another dtype is converted")
{
    static const struct { const char *dtype; size_t bytes; unsigned char one[8]; } files[] = {      /* 1 */
        { "F16", 2, { 0, 0x3c } }, { "BF16", 2, { 0x80, 0x3f } }, { "F32", 4, { 0, 0, 0x80, 0x3f } },
        { "F64", 8, { 0, 0, 0, 0, 0, 0, 0xf0, 0x3f } },
    };
    static const ctrt_dtype dtypes[] = { CTRT_F16, CTRT_BF16, CTRT_F32, CTRT_F64 };
    for (size_t f = 0; f < COUNT(files); f++)
        EACH(c, dtypes) {
            char header[1024];
            unsigned char bytes[2048], *data;
            CTRT_AUTO(module) net = NULL;
            CTRT_AUTO(optimizer) optimizer = NULL;
            ctrt_tensor *state = NULL, *w = NULL;
            double value = 0;
#define NUMBER(name, dtype, at) "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":[],\"data_offsets\":[" at "]},"
            snprintf(header, sizeof header, "{\"__metadata__\":{\"optimizer\":\"SGD\"},"
                     NUMBER("optimizer.lr", "F64", "0,8") NUMBER("optimizer.momentum", "F64", "8,16")
                     NUMBER("optimizer.dampening", "F64", "16,24") NUMBER("optimizer.weight_decay", "F64", "24,32")
                     NUMBER("weight.step", "I64", "32,40")
                     "\"weight.momentum_buffer\":{\"dtype\":\"%s\",\"shape\":[1,1],\"data_offsets\":[40,%zu]}}",
                     files[f].dtype, 40 + files[f].bytes);
            const size_t size = compose(bytes, header, 40 + files[f].bytes);
            data = bytes + size - 40 - files[f].bytes;
            memcpy(data, (const double[]){ 0.5, 0.5, 0, 0 }, 32);
            memcpy(data + 32, (const int64_t[]){ 3 }, 8);
            memcpy(data + 40, files[f].one, files[f].bytes);
            const char *path = in_folder("state.safetensors");
            write_bytes(path, bytes, size);
            CHECK_OK(ctrt_linear_new(&net, 1, 1, false, cpu));
            CHECK_OK(ctrt_module_to(net, NULL, *c));
            CHECK_OK(ctrt_sgd_new(&optimizer, net, NULL));
            CHECK_OK(ctrt_optimizer_load(optimizer, path));
            CHECK_OK(ctrt_optimizer_state(&state, optimizer, 0, "momentum_buffer"));
            CHECK(ctrt_tensor_dtype(state) == (*c == CTRT_F64 ? CTRT_F64 : CTRT_F32), "%s for %s became %s",
                  files[f].dtype, ctrt_dtype_name(*c), ctrt_dtype_name(ctrt_tensor_dtype(state)));
            CHECK_OK(ctrt_module_tensor(&w, net, "weight"));
            grad_with(w, DOUBLES(0));
            CHECK_OK(ctrt_optimizer_step(optimizer));
            CHECK_OK(ctrt_optimizer_state(&state, optimizer, 0, "momentum_buffer"));
            CHECK_OK(ctrt_item(&value, state));
            CHECK(value == 0.5, "%s for %s: %g after a step of momentum 0.5", files[f].dtype,
                  ctrt_dtype_name(*c), value);
        }
}

TEST_MAIN
{
    folder = folder_new();
    return cpu_opened() ? run_tests() : done();
}

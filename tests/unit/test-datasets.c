/* SPDX-License-Identifier: Apache-2.0 */
/* Ready datasets: values of small files, and the message for each kind of malformed file. */
#include "dataset_files.h"

/* ---- IDX ---- */

#define IDX_IMAGES "\0\0\x08\3\0\0\0\2\0\0\0\2\0\0\0\3" "\0\1\2\3\4\5" "\xff\0\xff\0\xff\0"
#define IDX_LABELS "\0\0\x08\1\0\0\0\2\7\1"

TEST(idx, "IDX: images and labels, resized, normalised, malformed")
{
    CTRT_AUTO(dataset) d = NULL;
    const char *images = FILE_OF("images", IDX_IMAGES), *labels = FILE_OF("labels", IDX_LABELS);
    CHECK_OK(ctrt_idx_dataset(&d, images, labels, &CTRT_WITH(ctrt_image_options, .dtype = CTRT_U8)));
    CHECK_EQ(ctrt_dataset_length(d), 2);
    CHECK_STR(ctrt_dataset_field(d, 0)->name, "image");
    CHECK_EQ(ctrt_dataset_field(d, 0)->ndim, 3);
    CHECK_FIELD(d, 0, 0, 0, 1, 2, 3, 4, 5);
    CHECK_FIELD(d, 0, 1, 7);
    CHECK_FIELD(d, 1, 1, 1);
    CHECK_OK(ctrt_idx_dataset(&d, images, NULL, &CTRT_WITH(ctrt_image_options, .mean = { 0.5f }, .std = { 0.25f })));
    CHECK_EQ(ctrt_dataset_field_count(d), 1);
    CHECK_FIELD(d, 1, 0, 2, -2, 2, -2, 2, -2);
    CHECK_OK(ctrt_idx_dataset(&d, images, NULL, &CTRT_WITH(ctrt_image_options, .dtype = CTRT_U8, .height = 1,
                                                           .width = 1)));
    CHECK_FIELD(d, 0, 0, 2);                    /* the mean, 2.5, rounded to even */
    static const struct bad cases[] = {
        BAD("\0\0", FORMAT, "at least 4 bytes, this one has 2"),
        BAD("", FORMAT, "this one has 0"),
        BAD("\x1f\x8b\x08\0\0", FORMAT, "gunzip"),
        BAD("\1\0\x08\3\0\0\0\0", FORMAT, "begins with 01 00, expected 00 00"),
        BAD("\0\0\x0a\1\0\0\0\0", FORMAT, "byte 2 is 0x0a"),
        BAD("\0\0\x08\0", NOT_SUPPORTED, "0 dimensions"),
        BAD("\0\0\x08\x63\0", NOT_SUPPORTED, "99 dimensions"),
        BAD("\0\0\x08\3\0\0\0\2\0\0", FORMAT, "truncated: the header of 3 dimensions has 16 bytes, the file 10"),
        BAD("\0\0\x08\3\0\0\0\1\0\0\0\1\0\0\0\2x", FORMAT,
            "truncated: u8 of shape [1, 1, 2] needs 2 bytes after the header, the file has 1"),
        BAD("\0\0\x08\3\0\0\0\1\0\0\0\1\0\0\0\1xyz", FORMAT, "too long: u8 of shape [1, 1, 1] needs 1 bytes"),
        BAD("\0\0\x0e\3\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", FORMAT, "needs more than"),
        BAD("\0\0\x08\1\0\0\0\1x", FORMAT, "u8 of shape [1], expected u8 with 3 dimensions (images); "
            "ctrt_idx_arrays_dataset reads other arrays"),
        BAD("\0\0\x0c\3\0\0\0\0\0\0\0\1\0\0\0\1", FORMAT, "i32 of shape [0, 1, 1], expected u8"),
        BAD("\0\0\x08\3\0\0\0\1\0\0\0\0\0\0\0\2", FORMAT, "images of 2x0 (width x height)"),
        BAD("\0\0\x08\3\0\0\0\1\0\0\0\2\0\0\0\0", FORMAT, "images of 0x2 (width x height)"),
    };
    CHECK_BAD(cases, ctrt_idx_dataset(out, bad_path, NULL, NULL));
    static const struct bad labels_cases[] = {
        BAD("\0\0\x08\1\0\0\0\1x", FORMAT, "has 1 labels for the 2 images"),
        BAD(IDX_IMAGES, FORMAT, "expected integers with 1 dimension (labels)"),
        BAD("\0\0\x0d\1\0\0\0\1abcd", FORMAT, "f32 of shape [1], expected integers"),
    };
    CHECK_BAD(labels_cases, ctrt_idx_dataset(out, images, bad_path, NULL));
    const char *wide = FILE_OF("wide", "\0\0\x0c\1\0\0\0\2\0\1\0\2\xff\xff\xff\xfe");
    const char *real = FILE_OF("real", "\0\0\x0d\2\0\0\0\2\0\0\0\1\x3f\xc0\0\0\xc0\0\0\0");
    CHECK_OK(ctrt_idx_dataset(&d, images, wide, NULL));
    CHECK_FIELD(d, 0, 1, 65538);
    CHECK_FIELD(d, 1, 1, -2);
    CHECK_OK(ctrt_idx_arrays_dataset(&d, (const char *[]){ "x", "y" }, (const char *[]){ real, wide }, 2));
    CHECK_FIELD(d, 0, 0, 1.5);
    CHECK_FIELD(d, 1, 0, -2);
    CHECK_FIELD(d, 1, 1, -2);
    CHECK_OK(ctrt_idx_dataset(&d, images, labels, NULL));
    REQUIRE_TRUE(truncate(images, 20) == 0);
    ctrt_tensor *fields[2] = { NULL };
    CHECK_FAILS(ctrt_dataset_get(fields, d, 1, 1, 0), CTRT_ERR_IO, "was truncated after it was opened: it had 28");
}

/* ---- CIFAR ---- */

TEST(cifar, "CIFAR: records of several files, labels of both kinds, malformed")
{
    enum { RECORD = 1 + 3072 };
    static unsigned char bytes[2 * RECORD];
    CTRT_AUTO(dataset) d = NULL;
    memset(bytes, 9, RECORD);
    memset(bytes + RECORD, 200, RECORD);
    const char *two = file_of("two", bytes, sizeof bytes);
    bytes[0] = 3;
    const char *one = file_of("one", bytes, RECORD), *paths[] = { one, two };
    ctrt_image_options options = { .size = sizeof(ctrt_image_options), .dtype = CTRT_U8, .height = 1, .width = 1 };
    CHECK_OK(ctrt_cifar_dataset(&d, paths, 2, CTRT_CIFAR10, &options));
    CHECK_EQ(ctrt_dataset_length(d), 3);
    CHECK_FIELD(d, 0, 1, 3);
    CHECK_FIELD(d, 1, 1, 9);
    CHECK_FIELD(d, 1, 0, 9, 9, 9);
    ctrt_tensor *fields[2] = { NULL };
    CHECK_FAILS(ctrt_dataset_get(fields, d, 2, 1, 0), CTRT_ERR_FORMAT,
                "two: record 1 has the label 200, expected 0 to 9");
    CHECK_FAILS(ctrt_cifar_dataset(&d, paths, 2, CTRT_CIFAR100, NULL), CTRT_ERR_FORMAT,
                "one has 3073 bytes, expected records of 3074 bytes (CIFAR-100)");
    bytes[0] = 4, bytes[1] = 55;
    paths[0] = file_of("hundred", bytes, RECORD + 1);
    for (int coarse = 0; coarse < 2; coarse++) {
        CHECK_OK(ctrt_cifar_dataset(&d, paths, 1, coarse ? CTRT_CIFAR100_COARSE : CTRT_CIFAR100, &options));
        CHECK_FIELD(d, 0, 1, coarse ? 4 : 55);
    }
    static const struct bad cases[] = { BAD("", FORMAT, "0 bytes"), BAD("abc", FORMAT, "3 bytes, expected records") };
    CHECK_BAD(cases, ctrt_cifar_dataset(out, &bad_path, 1, CTRT_CIFAR10, NULL));
}

/* ---- CSV ---- */

TEST(csv, "CSV: separators, quotes, labels, headers, malformed")
{
    static const struct csv_case {
        const char *text;
        ctrt_csv_options options;
        int64_t rows;
        double x[4];                            /* the last row */
        int columns;
        double y;
    } cases[] = {
        { "1,2,3\n4,5,6\n", { .label = -1 }, 2, { 4, 5 }, 2, 6 },
        { "1,2,3\r\n4,5,6", { .label = 1 }, 2, { 5, 6 }, 2, 4 },
        { "\xef\xbb\xbf" "a;b\n\n 1.5 ; -2e-3\n \n", { .separator = ';', .header = true }, 1, { 1.5, -2e-3f }, 2, 0 },
        { "\"7\"\t\"0.25\"\n", { .separator = '\t', .label = 2, .label_float = true }, 1, { 7 }, 1, 0.25 },
        { "1 2 -3\n", { .separator = ' ' }, 1, { 1, 2, -3 }, 3, 0 },
        { "\" 7 \" , \"\t8\"\n", { 0 }, 1, { 7, 8 }, 2, 0 },
        { "\"a,b\",\"c\"\"d\"\n1,2\n", { .header = true }, 1, { 1, 2 }, 2, 0 },
        { "1,,N/A,\"\"\n", { .missing_nan = true }, 1, { 1, NAN, NAN, NAN }, 4, 0 },
    };
    EACH(c, cases) {
        CTRT_AUTO(dataset) d = NULL;
        ctrt_csv_options options = c->options;
        options.size = sizeof options;
        if (!CHECK_OK(ctrt_csv_dataset(&d, file_of("table", c->text, strlen(c->text)), &options)))
            continue;
        CHECK_EQ(ctrt_dataset_length(d), c->rows);
        CHECK_EQ(ctrt_dataset_field_count(d), c->options.label != 0 ? 2 : 1);
        check_field(d, c->rows - 1, 0, c->x, c->columns);
        if (c->options.label != 0)
            check_field(d, c->rows - 1, 1, &c->y, 1);
    }
    CTRT_AUTO(dataset) digits = NULL;
    char path_of_digits[4096];
    snprintf(path_of_digits, sizeof path_of_digits, "%s/examples/data/digits.csv", getenv("srcdir"));
    if (CHECK_OK(ctrt_csv_dataset(&digits, path_of_digits, &CTRT_WITH(ctrt_csv_options, .label = -1)))) {
        CHECK_EQ(ctrt_dataset_length(digits), 1797);
        CHECK_EQ(ctrt_dataset_field(digits, 0)->shape[0], 64);
        CHECK_FIELD(digits, 1796, 1, 8);
    }
    static const struct bad bad[] = {
        BAD("", FORMAT, "no numbers"),
        BAD("\n \n", FORMAT, "no numbers"),
        BAD("1,2\n3,x4\n", FORMAT, "line 2, column 2: expected a number, found \"x4\""),
        BAD("1,2\n\n3\n", FORMAT, "line 3 has 1 columns, expected 2 as in the first line"),
        BAD("1,,2\n", FORMAT, "line 1, column 2 is empty, expected a number; with options.missing_nan"),
        BAD("1,2\n1,NA\n", FORMAT, "found \"NA\"; with options.missing_nan it is NaN"),
        BAD("width,height\n1,2\n", FORMAT, "found \"width\"; if this line has names, set options.header"),
        BAD("1,\"2\n", FORMAT, "line 1, column 2: expected a number, found \"\"2\""),
        BAD("\x1f\x8b\x08", FORMAT, "truncated"),
        BAD("\x1f\x8b\x08\0\0\0\0\0\2\3\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", FORMAT, "malformed"),
        BAD("1,2\n3,4\0\n", FORMAT, "line 2, column 2: expected a number"),
    };
    CHECK_BAD(bad, ctrt_csv_dataset(out, bad_path, NULL));
    static const struct bad tabs[] = { BAD("1\t2\n \n\t\n", FORMAT, "line 3, column 1 is empty") };
    CHECK_BAD(tabs, ctrt_csv_dataset(out, bad_path, (&CTRT_WITH(ctrt_csv_options, .separator = '\t'))));
    static const struct bad labels[] = {
        BAD("1,0.5\n", FORMAT, "line 1, column 2: the label 0.5 is not an integer; with options.label_float"),
        BAD("1,cat\n", FORMAT, "found \"cat\"; if labels are texts, set options.label_classes"),
        BAD("1\n", FORMAT, "no column except the label"),
    };
    CHECK_BAD(labels, ctrt_csv_dataset(out, bad_path, (&CTRT_WITH(ctrt_csv_options, .label = -1))));
    CTRT_AUTO(dataset) d = NULL;
    const char *path = FILE_OF("table", "1,2\n");
    CHECK_FAILS(ctrt_csv_dataset(&d, path, &CTRT_WITH(ctrt_csv_options, .label = 3)), CTRT_ERR_INVALID_ARGUMENT,
                "column 3");
    CHECK_FAILS(ctrt_csv_dataset(&d, path, &CTRT_WITH(ctrt_csv_options, .separator = '.')), CTRT_ERR_INVALID_ARGUMENT,
                "cannot separate");
    CHECK_FAILS(ctrt_csv_dataset(&d, path, &CTRT_WITH(ctrt_csv_options, .label_classes = true)),
                CTRT_ERR_INVALID_ARGUMENT, "label 0");
    CHECK_FAILS(ctrt_csv_dataset(&d, path, &CTRT_WITH(ctrt_csv_options, .label = 1, .label_classes = true,
                                                      .label_float = true)), CTRT_ERR_INVALID_ARGUMENT, "label_float");

    const ctrt_csv_options classes = { .size = sizeof(ctrt_csv_options), .label = 2, .label_classes = true };
    path = FILE_OF("classes", "1,\"the \"\"dog\"\"\"\n2, cat\n3,\" ant, red \"\n4,cat\n");
    CHECK_OK(ctrt_csv_dataset(&d, path, &classes));
    static const int64_t labels_want[] = { 2, 1, 0, 1 };
    for (int64_t i = 0; i < 4; i++)
        check_field(d, i, 1, (const double[]){ (double)labels_want[i] }, 1);
    CHECK_STR(ctrt_csv_class(d, 0), "ant, red");
    CHECK_STR(ctrt_csv_class(d, 1), "cat");
    CHECK_STR(ctrt_csv_class(d, 2), "the \"dog\"");
    CHECK_TRUE(ctrt_csv_class(d, 3) == NULL && ctrt_csv_class(d, -1) == NULL && ctrt_csv_class(NULL, 0) == NULL);
    CHECK_FAILS(ctrt_csv_dataset(&d, FILE_OF("classes", "1,a\n2,\n"), &classes), CTRT_ERR_FORMAT,
                "line 2, column 2: the label is empty");
    static const char compressed[] = "\x1f\x8b\x08\0\0\0\0\0\2\3\x33\xd4\x31\xe2\x32\xd6\x31\xe1\2\0"
                                     "\x47\x93\x6c\xaf\x08\0\0";
    path = file_of("table.csv.gz", compressed, sizeof compressed);      /* the last 0 is in it */
    CHECK_OK(ctrt_csv_dataset(&d, path, NULL));
    CHECK_FIELD(d, 1, 0, 3, 4);
    CHECK_FAILS(ctrt_csv_dataset(&d, file_of("table.csv.gz", compressed, 20), NULL), CTRT_ERR_FORMAT, "truncated");
}

/* ---- numpy and safetensors ---- */

TEST(npy, "numpy.save: files of numpy, several fields, malformed")
{
    static const char *const names[] = { "f4", "f8", "i8", "u1", "b1", "f2", "version2" };
    EACH(name, names) {
        CTRT_AUTO(dataset) d = NULL;
        const char *path = reference_file(*name);
        const struct ref_record *want = ref_find(ref, "npy/%s", *name);
        if (!CHECK_OK(ctrt_npy_dataset(&d, name, &path, 1)))
            continue;
        CHECK_STR(ctrt_dtype_name(ctrt_dataset_field(d, 0)->dtype), want->dtype);
        CHECK_EQ(ctrt_dataset_length(d), want->dims[0]);
        const int64_t row = want->numel / want->dims[0];
        for (int64_t i = 0; i < want->dims[0]; i++)
            check_field(d, i, 0, want->f + i * row, row);
    }
    tap_state.row = 0;
    CTRT_AUTO(dataset) d = NULL;
    const char *both[] = { reference_file("i8"), reference_file("b1") }, *fields[] = { "x", "mask" };
    CHECK_OK(ctrt_npy_dataset(&d, fields, both, 2));
    CHECK_FIELD(d, 1, 0, 3, 4, 5);
    CHECK_FIELD(d, 1, 1, 0, 1);
    both[1] = reference_file("f4");
    CHECK_FAILS(ctrt_npy_dataset(&d, fields, both, 2), CTRT_ERR_FORMAT, "\"mask\" of shape [3, 2, 2] has 3 rows, but "
                "\"x\" has 2");
#define NPY(header) "\x93NUMPY\1\0\x46\0" header
    static const char swapped[] = NPY("{'descr': '>i2', 'fortran_order': False, 'shape': (1, 3), }          \n")
                                  "\0\1\xff\xfe\x12\x34";
    both[0] = file_of("swapped", swapped, sizeof swapped - 1);
    CHECK_OK(ctrt_npy_dataset(&d, fields, both, 1));
    CHECK_FIELD(d, 0, 0, 1, -2, 0x1234);
    static const char fortran[] = NPY("{'descr': '>f4', 'fortran_order': True, 'shape': (2, 3, 2), }        \n");
    float values[12];
    for (uint32_t i = 0; i < 12; i++)           /* value i is at the place of the transposed array */
        ((uint32_t *)values)[i] = __builtin_bswap32(((union { float f; uint32_t u; }){ .f = (float)i }).u);
    char both_orders[sizeof fortran - 1 + sizeof values];
    memcpy(both_orders, fortran, sizeof fortran - 1);
    memcpy(both_orders + sizeof fortran - 1, values, sizeof values);
    both[0] = file_of("fortran", both_orders, sizeof both_orders);
    CHECK_OK(ctrt_npy_dataset(&d, fields, both, 1));
    CHECK_FIELD(d, 0, 0, 0, 6, 2, 8, 4, 10);
    CHECK_FIELD(d, 1, 0, 1, 7, 3, 9, 5, 11);
    static const struct bad cases[] = {
        BAD("", FORMAT, "not a file of numpy.save"),
        BAD("\x93NUMPX\1\0\0\0", FORMAT, "not a file of numpy.save"),
        BAD("\x93NUMPY\4\0\0\0", NOT_SUPPORTED, "version 4.0"),
        BAD("\x93NUMPY\1\0\xff\0{}", FORMAT, "truncated: the header has 265 bytes, the file 12"),
        BAD("\x93NUMPY\2\0\1\0\0\xff{", FORMAT, "truncated: the header has"),
        BAD("\x93NUMPY\1\0\2\0{}", FORMAT, "expected the keys descr"),
        BAD("\x93NUMPY\1\0\0\0", FORMAT, "expected '{'"),
        BAD(NPY("{'descr': '<c8', 'fortran_order': False, 'shape': (2,), }            \n"), NOT_SUPPORTED, "'<c8'"),
        BAD(NPY("{'descr': '|f4', 'fortran_order': False, 'shape': (2,), }            \n"), NOT_SUPPORTED, "'|f4'"),
        BAD(NPY("{'descr': '>u4', 'fortran_order': False, 'shape': (0,), }            \n"), NOT_SUPPORTED,
            "unsigned integers of 4 bytes"),
        BAD(NPY("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (2,), }   \n"), NOT_SUPPORTED,
            "structured arrays"),
        BAD(NPY("{'descr': '<f4', 'fortran_order': Maybe, 'shape': (1,), }            \n"), FORMAT, "'fortran_order'"),
        BAD(NPY("{'descr': '<f4', 'fortran_order': False, 'shape': (1 2), }           \n"), FORMAT, "in the shape"),
        BAD(NPY("{'descr': '<f4', 'fortran_order': False, 'shape': (-1,), }           \n"), FORMAT, "a size"),
        BAD(NPY("{'descr': '<f4', 'fortran_order': False, 'shape': 7, }               \n"), FORMAT, "parentheses"),
        BAD(NPY("{'descr': '<f4', 'fortran_order': False, 'shape': (1,), 'more': 1}   \n"), FORMAT, "key 'more'"),
        BAD(NPY("{'descr': '<f4', 'fortran_order': False, 'shape': (1,1,1,1,1,1,1,1,1)}"), NOT_SUPPORTED,
            "more than 8"),
        BAD(NPY("{'descr': '<f4', 'fortran_order': False, 'shape': (), }              \n") "abcd", FORMAT,
            "a single number"),
        BAD(NPY("{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }            \n") "abcdefg", FORMAT,
            "truncated: f32 of shape [2] needs 8 bytes after the header, the file has 7"),
        BAD(NPY("{'descr':'<f8','fortran_order':False,'shape':(2305843009213693952,4)} "), FORMAT, "more than"),
    };
    CHECK_BAD(cases, ctrt_npy_dataset(out, &fields[0], &bad_path, 1));
}

TEST(safetensors, "safetensors: chosen tensors and all, malformed")
{
    static const float x[] = { 1, 2, 3, 4 };
    static const int64_t y[] = { 7, 8 };
    static const char *const names[] = { "x", "y" };
    CTRT_AUTO(tensor) tensors = NULL;
    CTRT_AUTO(tensor) second = NULL;
    CTRT_AUTO(dataset) d = NULL;
    const char *path = folder_join(folder, "t.safetensors");
    CHECK_OK(ctrt_from_data(&tensors, x, 4, CTRT_SHAPE(2, 2), CTRT_F32, NULL));
    CHECK_OK(ctrt_from_data(&second, y, 2, CTRT_SHAPE(2), CTRT_I64, NULL));
    CHECK_OK(ctrt_save_tensors(path, names, (ctrt_tensor *[]){ tensors, second }, 2));
    CHECK_OK(ctrt_safetensors_dataset(&d, path, NULL, 0));
    CHECK_EQ(ctrt_dataset_field_count(d), 2);
    CHECK_FIELD(d, 1, 0, 3, 4);
    CHECK_FIELD(d, 1, 1, 8);
    CHECK_OK(ctrt_safetensors_dataset(&d, path, names + 1, 1));
    CHECK_STR(ctrt_dataset_field(d, 0)->name, "y");
    CHECK_FAILS(ctrt_safetensors_dataset(&d, path, (const char *[]){ "z" }, 1), CTRT_ERR_NOT_FOUND,
                "has no tensor \"z\"");
    static const struct bad cases[] = {
        BAD("", FORMAT, NULL), BAD("\x10\0\0\0\0\0\0\0{}", FORMAT, NULL),
        BAD("\2\0\0\0\0\0\0\0{}", INVALID_ARGUMENT, "0 tensors"),
    };
    CHECK_BAD(cases, ctrt_safetensors_dataset(out, bad_path, NULL, 0));
}

/* ---- tokens ---- */

/* The header of llm.c before some tokens. */
static const char *llmc_file(uint32_t magic, uint32_t version, uint32_t count, const void *tokens, size_t bytes)
{
    char text[1024 + 64] = "";
    memcpy(text, (uint32_t[]){ magic, version, count }, 12);
    memcpy(text + 1024, tokens, bytes);
    return file_of("llmc", text, 1024 + bytes);
}

TEST(token_headers, "tokens: headers of llm.c and numpy.save, other files, raw")
{
    static const uint16_t narrow[] = { 50256, 11, 12 };
    static const uint32_t wide[] = { 128000, 70000, 3 };
    const ctrt_tokens_options two = { .size = sizeof(ctrt_tokens_options), .length = 2 };
    CTRT_AUTO(dataset) d = NULL;
    CHECK_OK(ctrt_tokens_dataset(&d, llmc_file(20240520, 1, 3, narrow, 6), &two));
    CHECK_EQ(ctrt_dataset_length(d), 1);
    CHECK_FIELD(d, 0, 0, 50256, 11);
    CHECK_FIELD(d, 0, 1, 11, 12);
    CHECK_OK(ctrt_tokens_dataset(&d, llmc_file(20240801, 7, 3, wide, 12), &two));
    CHECK_FIELD(d, 0, 0, 128000, 70000);
    CHECK_FAILS(ctrt_tokens_dataset(&d, llmc_file(20240801, 7, 3, wide, 12),
                                    &CTRT_WITH(ctrt_tokens_options, .length = 2, .bytes = 2)),
                CTRT_ERR_FORMAT, "the header says tokens of 4 bytes, options.bytes is 2");
    CHECK_FAILS(ctrt_tokens_dataset(&d, llmc_file(20240520, 1, 4, narrow, 6), &two), CTRT_ERR_FORMAT,
                "truncated: the header of llm.c says 4 tokens of 2 bytes, the file has 6 bytes");
    CHECK_FAILS(ctrt_tokens_dataset(&d, llmc_file(20240520, 2, 3, narrow, 6), &two), CTRT_ERR_FORMAT,
                "version (2)");
    CHECK_FAILS(ctrt_tokens_dataset(&d, llmc_file(20250211, 1, 3, narrow, 6), &two), CTRT_ERR_FORMAT,
                "number 20250211");
    CHECK_FAILS(ctrt_tokens_dataset(&d, llmc_file(4711, 1, 3, narrow, 6), &two), CTRT_ERR_FORMAT, "set options.raw");
    CHECK_OK(ctrt_tokens_dataset(&d, llmc_file(4711, 1, 3, narrow, 6),
                                 &CTRT_WITH(ctrt_tokens_options, .length = 2, .raw = true)));
    CHECK_FIELD(d, 0, 0, 4711, 0);

    static const struct { const char *descr, *bytes; size_t size; double x[2]; } arrays[] = {
        { "<u2", "\x50\xc4\1\0\2\0", 6, { 50256, 1 } },
        { ">u2", "\xc4\x50\0\1\0\2", 6, { 50256, 1 } },
        { "<u4", "\0\xf4\1\0\1\0\0\0\0\0\0\0", 12, { 128000, 1 } },
        { "<i4", "\0\xf4\1\0\1\0\0\0\0\0\0\0", 12, { 128000, 1 } },
        { "|u1", "\xff\1\2", 3, { 255, 1 } },
    };
    EACH(c, arrays) {
        char file[200];
        const int length = snprintf(file, sizeof file, "\x93NUMPY\1%cF%c{'descr': '%s', 'fortran_order': False, "
                                    "'shape': (3,), }%*s", 0, 0, c->descr, 13, "\n");
        memcpy(file + length, c->bytes, c->size);
        if (CHECK_OK(ctrt_tokens_dataset(&d, file_of("array", file, (size_t)length + c->size), &two)))
            check_field(d, 0, 0, c->x, 2);
    }
    static const struct bad cases[] = {
        BAD(NPY("{'descr': '<f4', 'fortran_order': False, 'shape': (1,), }            \n") "abcd", FORMAT,
            "an array of f32; tokens are integers"),
        BAD(NPY("{'descr': '<i2', 'fortran_order': True, 'shape': (1, 2), }           \n") "abcd", NOT_SUPPORTED,
            "Fortran order"),
        BAD("\x1f\x8b\x08\0", FORMAT, "compressed by gzip"),
        BAD("PK\3\4 ", FORMAT, "ZIP file (also .npz"),
        BAD("\x10\0\0\0\0\0\0\0{\"tokens\":", FORMAT, "a safetensors file"),
        BAD("To be, or not to be, that is the question: whether it is nobler in the mind", FORMAT, "like text"),
    };
    CHECK_BAD(cases, ctrt_tokens_dataset(out, bad_path, &CTRT_WITH(ctrt_tokens_options, .length = 1)));
    static const struct bad negative[] = {
        BAD(NPY("{'descr': '<i2', 'fortran_order': False, 'shape': (2,), }            \n") "\1\0\xff\xff", FORMAT,
            "token 1 is -1"),
    };
    CHECK_OK(ctrt_tokens_dataset(&d, file_of("negative", negative->bytes, negative->size),
                                 &CTRT_WITH(ctrt_tokens_options, .length = 1)));
    ctrt_tensor *fields[2] = { NULL };
    CHECK_FAILS(ctrt_dataset_get(fields, d, 0, 1, 0), negative->status, negative->words);
}

TEST(tokens, "tokens: windows side by side, with a stride and at random, malformed")
{
    uint16_t tokens[11];
    CTRT_AUTO(dataset) d = NULL;
    for (int i = 0; i < 11; i++)
        tokens[i] = (uint16_t)(1000 + i);
    const char *path = file_of("tokens", tokens, sizeof tokens);
    CHECK_OK(ctrt_tokens_dataset(&d, path, &CTRT_WITH(ctrt_tokens_options, .length = 3)));
    CHECK_EQ(ctrt_dataset_length(d), 3);
    CHECK_FIELD(d, 2, 0, 1006, 1007, 1008);
    CHECK_FIELD(d, 2, 1, 1007, 1008, 1009);
    CHECK_OK(ctrt_tokens_dataset(&d, path, &CTRT_WITH(ctrt_tokens_options, .length = 3, .stride = 1)));
    CHECK_EQ(ctrt_dataset_length(d), 8);
    CHECK_FIELD(d, 7, 1, 1008, 1009, 1010);
    static const uint32_t wide[] = { 1, 70000, 0xffffffff };
    CHECK_OK(ctrt_tokens_dataset(&d, file_of("wide", wide, 12), &CTRT_WITH(ctrt_tokens_options, .length = 2,
                                                                           .bytes = 4)));
    CHECK_FIELD(d, 0, 1, 70000, 0xffffffff);
    CHECK_FAILS(ctrt_tokens_dataset(&d, file_of("odd", tokens, 6), &CTRT_WITH(ctrt_tokens_options, .length = 1,
                                                                              .bytes = 4)),
                CTRT_ERR_FORMAT, "odd: 6 bytes, no multiple of 4");
    CHECK_FAILS(ctrt_tokens_dataset(&d, path, &CTRT_WITH(ctrt_tokens_options, .length = 11)), CTRT_ERR_FORMAT,
                "has 11 tokens; a window and " "the token after it are 12");
    CHECK_FAILS(ctrt_tokens_dataset(&d, path, &CTRT_WITH(ctrt_tokens_options, .length = 0)), CTRT_ERR_INVALID_ARGUMENT,
                "length 0");
    CHECK_FAILS(ctrt_tokens_dataset(&d, path, &CTRT_WITH(ctrt_tokens_options, .length = 1, .bytes = 3)),
                CTRT_ERR_INVALID_ARGUMENT, "3 bytes");

    CHECK_OK(ctrt_tokens_dataset(&d, path, &CTRT_WITH(ctrt_tokens_options, .length = 3, .random = true,
                                                      .samples = 200)));
    int seen[8] = { 0 };
    for (int64_t i = 0; i < 200; i++) {
        int64_t x[3], y[3];
        ctrt_sample sample = { .size = sizeof sample, .index = i, .out = (void *[]){ x, y } };
        ctrt_sample_random_start(&sample.random, 5, 0, i);
        if (!CHECK_OK(ctrt_dataset_read(&sample, d)) || !CHECK_TRUE(x[0] >= 1000 && x[0] < 1008))
            break;
        seen[x[0] - 1000]++;
        CHECK(x[1] == x[0] + 1 && y[2] == x[0] + 3, "window at %lld", (long long)x[0]);
    }
    for (int i = 0; i < 8; i++)
        CHECK(seen[i] > 8 && seen[i] < 50, "position %d was chosen %d times of 200, expected about 25", i, seen[i]);
    CHECK_OK(ctrt_tokens_dataset(&d, path, &CTRT_WITH(ctrt_tokens_options, .length = 10, .vocabulary = 1010)));
    ctrt_tensor *fields[2] = { NULL };
    CHECK_FAILS(ctrt_dataset_get(fields, d, 0, 1, 0), CTRT_ERR_FORMAT, "token 10 is 1010, expected 0 to 1009");
}

TEST_MAIN { return run_file_tests(); }

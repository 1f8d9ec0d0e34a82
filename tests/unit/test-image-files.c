/* SPDX-License-Identifier: Apache-2.0 */
/* Image files and folders of images: the pixels of PIL, options, malformed and damaged files, plugins. */
#include "dataset_files.h"

/* ---- plugins, first because their test needs a process that has not used the library ---- */

TEST(plugins, "image files: plugins of the program, and those without a function")
{
    char *plugins = FOLDER_OF("image-bmp", "image-webp", "backend-cpu", "memory-caching");
    const char *good = FILE_OF("good", "BM\5"), *huge = FILE_OF("huge", "BM\0"), *bad = FILE_OF("bad", "BM");
    const char *webp = FILE_OF("webp", "RIFF\1\2\3\4WEBP");
    IN_CHILD(folder_path(plugins, NULL), "CTRT_LOG=error") {
        CTRT_AUTO(tensor) image = NULL;
        CHECK_OK(ctrt_read_image(&image, good, 1));
        check_values_within("image", __LINE__, image, (double[]){ 5, 5, 5, 5, 5 }, 5, 0);
        CHECK_FAILS(ctrt_read_image(&image, huge, 3), CTRT_ERR_FORMAT, "huge: an image of 0x1");
        CHECK_FAILS(ctrt_read_image(&image, bad, 3), CTRT_ERR_FORMAT, "bad: no width");
        CHECK_FAILS(ctrt_read_image(&image, webp, 3), CTRT_ERR_NOT_FOUND,
                    "struct ctrt_image_codec: required slot decode is missing");
    }
}

/* ---- a folder of images ---- */

static void make_image(const char *name, int value)
{
    char bytes[64];
    const int header = snprintf(bytes, sizeof bytes, "P5 2 1 255\n");
    bytes[header] = bytes[header + 1] = (char)value;
    file_of(name, bytes, (size_t)header + 2);
}

static ctrt_status invert(const ctrt_image *out, const ctrt_image *image, ctrt_sample_random *random, void *user)
{
    (void)random;
    CTRT_TRY(ctrt_image_to_float(out, image, (float[]){ 1 }, (float[]){ -1 }));
    ++*(int *)user;
    return CTRT_OK;
}

TEST(image_folder, "a folder of images: classes and files in the order of torchvision, errors that name the file")
{
    CTRT_AUTO(dataset) d = NULL;
    ctrt_image_options options = { .size = sizeof(ctrt_image_options), .height = 1, .width = 2, .dtype = CTRT_U8,
                                   .channels = 1 };
    static const char *const order[] = { "b/2.PGM", "b/a/3.ppm", "b/a-b/4.pgm", "cat/1.pgm", "cat/5.jpeg" };
    const char *root = folder_join(folder, "root");
    (void)mkdir(root, 0755);
    CHECK_FAILS(ctrt_image_folder_dataset(&d, root, &options), CTRT_ERR_NOT_FOUND, "has no sub-folder");
    static const char *const folders[] = { "root/cat", "root/b", "root/b/a", "root/b/a-b" };
    EACH(name, folders)
        (void)mkdir(folder_join(folder, *name), 0755);
    CHECK_FAILS(ctrt_image_folder_dataset(&d, root, &options), CTRT_ERR_NOT_FOUND, "root/b has no image");
    EACH(name, order) {
        char path[64];
        snprintf(path, sizeof path, "root/%s", *name);
        make_image(path, 10 * (int)(name - order));
    }
    FILE_OF("root/cat/notes.txt", "no image");
    CHECK_OK(ctrt_image_folder_dataset(&d, root, &options));
    CHECK_EQ(ctrt_dataset_length(d), 5);
    CHECK_STR(ctrt_image_folder_class(d, 0), "b");
    CHECK_STR(ctrt_image_folder_class(d, 1), "cat");
    CHECK_TRUE(ctrt_image_folder_class(d, 2) == NULL && ctrt_image_folder_class(NULL, 0) == NULL);
    /* "b/a-b" is before "b/a" with its "/": os.walk's paths are compared as text. */
    static const int at[] = { 0, 1, 2, 3, 4 };
    EACH(i, at) {
        const int64_t index = *i;
        CHECK_HAS(ctrt_image_folder_path(d, index), order[*i]);
        check_field(d, index, 0, (const double[]){ 10 * *i, 10 * *i }, 2);
        check_field(d, index, 1, (const double[]){ index >= 3 }, 1);
    }
    tap_state.row = 0;
    int calls = 0;
    options = CTRT_WITH(ctrt_image_options, .height = 1, .width = 2, .channels = 1, .transform = invert,
                        .user = &calls);
    make_image("root/b/2.PGM", 255);
    CHECK_OK(ctrt_image_folder_dataset(&d, root, &options));
    CHECK_FIELD(d, 0, 0, 0, 0);
    CHECK_EQ(calls, 1);
    ctrt_tensor *fields[2] = { NULL };
    FILE_OF("root/cat/5.jpeg", "P5 2 1 255\nx");
    CHECK_FAILS(ctrt_dataset_get(fields, d, 4, 1, 0), CTRT_ERR_FORMAT, "cat/5.jpeg: truncated: a PGM image of 2x1");
    unlink(folder_join(folder, "root/cat/1.pgm"));
    CHECK_FAILS(ctrt_dataset_get(fields, d, 3, 1, 0), CTRT_ERR_IO, "cat/1.pgm: cannot open: No such file");
    CHECK_FAILS(ctrt_image_folder_dataset(&d, root, &CTRT_WITH(ctrt_image_options, .height = 3)),
                CTRT_ERR_INVALID_ARGUMENT, "width 0");
    CHECK_FAILS(ctrt_image_folder_dataset(&d, root, &CTRT_WITH(ctrt_image_options, .height = 3, .width = 3,
                                                               .channels = 2)), CTRT_ERR_INVALID_ARGUMENT,
                                                               "2 channels");
    CHECK_FAILS(ctrt_image_folder_dataset(&d, "/nowhere", &options), CTRT_ERR_IO, "/nowhere: cannot open the folder");
    make_image("root/cat/1.pgm", 1);
    make_image("root/cat/3.tif", 1);                /* a PGM image: the first bytes count */
    CHECK_OK(ctrt_image_folder_dataset(&d, root, &options));
    FILE_OF("root/cat/4.webp", "RIFF\1\2\3\4WEBP");
    FILE_OF("root/cat/6.bmp", "BM");
    CHECK_FAILS(ctrt_image_folder_dataset(&d, root, &options), CTRT_ERR_NOT_FOUND, "cat/6.bmp: the format webp needs "
                "the plugin image-webp");
    CHECK_HAS(ctrt_error_message(), "no decoder for ");
    CHECK_HAS(ctrt_error_message(), "/root/cat/4.webp, ");
    REQUIRE_TRUE(symlink(".", folder_join(folder, "root/b/link")) == 0);
    CHECK_FAILS(ctrt_image_folder_dataset(&d, root, &options), CTRT_ERR_IO, "do symbolic links form a circle?");
}

/* ---- image files ---- */

static void check_image(const char *name, const char *kind, int channels, double tolerance)
{
    CTRT_AUTO(tensor) image = NULL;
    const struct ref_record *want = ref_find(ref, "%s/%s", kind, name);
    const ctrt_status status = ctrt_read_image(&image, reference_file(name), channels);
    if (!CHECK_OK(status))
        return;
    CHECK_EQ(ctrt_tensor_size(image, 1), want->dims[0]);
    CHECK_EQ(ctrt_tensor_size(image, 2), want->dims[1]);
    unsigned char got[1024];
    const int64_t pixels = want->dims[0] * want->dims[1];
    CHECK_OK(ctrt_to_host(got, sizeof got, image, CTRT_U8));
    for (int64_t i = 0; i < pixels; i++)
        for (int c = 0; c < channels; c++)
            CHECK_NEAR(got[c * pixels + i], want->i[channels * i + c], tolerance);
}

TEST(image_files, "image files: the pixels of PIL")
{
    static const struct { const char *name, *plugin; } cases[] = {
        { "rgb.ppm", NULL },         { "gray.pgm", NULL },       { "small.pgm", NULL },
        { "rgb.jpg", "image-jpeg" }, { "gray.jpg", "image-jpeg" }, { "subsampled.jpg", "image-jpeg" },
        { "cmyk.jpg", "image-jpeg" }, { "rgb.png", "image-png" }, { "rgba.png", "image-png" },
        { "gray.png", "image-png" }, { "palette.png", "image-png" },
    };
    EACH(c, cases) {
        if (c->plugin != NULL && access(built_path(c->plugin), F_OK) != 0)
            continue;
        check_image(c->name, "rgb", 3, 0);
        check_image(c->name, "gray", 1, 0);
    }
}

TEST(bad_images, "image files: malformed")
{
    static const struct { const char *bytes; size_t size; ctrt_status status; const char *words; } cases[] = {
        BAD("", FORMAT, "begins with nothing"),
        BAD("hello, world", FORMAT, "begins with 68 65 6c 6c 6f 2c 20 77"),
        BAD("P6 1 1 255\nab", FORMAT, "truncated: a PPM image of 1x1 (width x height) needs 3 bytes"),
        BAD("P5", FORMAT, "malformed PGM header"),
        BAD("P5 1 0 255\n", FORMAT, "malformed PGM header"),
        BAD("P5 99999999 9999 255\n", FORMAT, "malformed PGM header"),
        BAD("P5 16000000 16000000 255\n", FORMAT, "16000000x16000000 (width x height); the largest has"),
        BAD("P5 1 1 65536\nab", FORMAT, "the largest value, 1 to 65535"),
        BAD("P5 1 1 65535\na", FORMAT, "needs 2 bytes"),
        BAD("P5 1 1 65535\nab", NOT_SUPPORTED, "values of 16 bits; images have 8. Set options.reduce_depth"),
        BAD("BM but no plugin", NOT_FOUND, "the format bmp needs the plugin image-bmp"),
    };
    CTRT_AUTO(tensor) image = NULL;
    EACH(c, cases) {
        CHECK_FAILS(ctrt_read_image(&image, file_of("bad", c->bytes, c->size), 3), c->status, c->words);
        CHECK_HAS(ctrt_error_message(), "/bad");
    }
    tap_state.row = 0;
    static const struct { const char *name, *plugin, *words; } cut[] = {
        { "rgb.jpg", "image-jpeg", "the JPEG file is truncated" }, { "rgb.png", "image-png", "(libpng)" },
    };
    EACH(c, cut) {
        if (access(built_path(c->plugin), F_OK) != 0)
            continue;
        const char *path = reference_file(c->name);
        struct stat about;
        /* Each prefix of the file must be refused. */
        REQUIRE_TRUE(stat(path, &about) == 0);
        for (off_t size = about.st_size - (c->plugin[6] == 'j' ? 2 : 13); size > 8; size -= 7) {
            REQUIRE_TRUE(truncate(path, size) == 0);
            const ctrt_status status = ctrt_read_image(&image, path, 3);
            CHECK(status == CTRT_ERR_FORMAT, "%s, %lld bytes: %s", c->name, (long long)size,
                  ctrt_status_string(status));
        }
    }
}

/* The file name.jpg of the reference with Exif data, in either order of bytes. */
static const char *with_orientation(const char *name, int orientation, bool little)
{
    unsigned char bytes[4096], out[4096 + 40];
    static const unsigned char exif[2][36] = {
        "\xff\xe1\0\x22" "Exif\0\0MM\0*\0\0\0\x08\0\1\1\x12\0\3\0\0\0\1\0\0\0\0\0\0\0",
        "\xff\xe1\0\x22" "Exif\0\0II*\0\x08\0\0\0\1\0\x12\1\3\0\1\0\0\0\0\0\0\0\0\0\0",
    };
    const size_t size = folder_read(bytes, sizeof bytes, reference_file(name));
    memcpy(out, bytes, 2);
    memcpy(out + 2, exif[little], 36);
    out[2 + (little ? 28 : 29)] = (unsigned char)orientation;
    memcpy(out + 38, bytes + 2, size - 2);
    return file_of("turned.jpg", out, size + 36);
}

TEST(image_options, "image files: 16 bits reduced to 8, orientation by Exif data")
{
    static const char png[] =
        "\x89PNG\r\n\x1a\n\0\0\0\x0dIHDR\0\0\0\3\0\0\0\1\x10\0\0\0\0\x6e\x1b\x97\x2b\0\0\0\x0f"
        "IDAT\x78\x9c\x63\x60\x60\x68\x68\xf8\xff\x1f\0\x06\x84\x02\xff\x46\x60\xde\xb6\0\0\0\0IEND\xae\x42\x60\x82";
    CTRT_AUTO(tensor) image = NULL;
    const ctrt_image_options reduce = { .size = sizeof(ctrt_image_options), .channels = 1, .reduce_depth = true };
    CHECK_OK(ctrt_read_image_with(&image, FILE_OF("deep.pgm", "P5 3 1 65535\n\0\0\x80\x80\xff\xff"), &reduce));
    check_values_within("pgm", __LINE__, image, (double[]){ 0, 128, 255 }, 3, 0);
    if (access(built_path("image-png"), F_OK) == 0) {
        const char *path = file_of("deep.png", png, sizeof png - 1);
        CHECK_FAILS(ctrt_read_image(&image, path, 1), CTRT_ERR_NOT_SUPPORTED, "Set options.reduce_depth");
        CHECK_OK(ctrt_read_image_with(&image, path, &reduce));
        check_values_within("png", __LINE__, image, (double[]){ 0, 128, 255 }, 3, 0);
    }
    if (access(built_path("image-jpeg"), F_OK) != 0)
        return;
    enum { H = 9, W = 11 };
    unsigned char upright[H * W], got[H * W];
    CHECK_OK(ctrt_read_image(&image, reference_file("gray.jpg"), 1));
    CHECK_OK(ctrt_to_host(upright, sizeof upright, image, CTRT_U8));
    REQUIRE_TRUE(ctrt_tensor_size(image, 1) == H && ctrt_tensor_size(image, 2) == W);
    for (int o = 0; o <= 9; o++) {
        const char *path = with_orientation("gray.jpg", o, o % 2 == 0);
        const bool turned = o >= 2 && o <= 8, columns = o >= 5 && o <= 8;
        CHECK_OK(ctrt_read_image(&image, path, 1));
        CHECK_OK(ctrt_to_host(got, sizeof got, image, CTRT_U8));
        CHECK(memcmp(got, upright, sizeof got) == 0, "orientation %d without the option", o);
        CHECK_OK(ctrt_read_image_with(&image, path, &CTRT_WITH(ctrt_image_options, .channels = 1,
                                                               .exif_orientation = true)));
        CHECK_OK(ctrt_to_host(got, sizeof got, image, CTRT_U8));
        CHECK_EQ(ctrt_tensor_size(image, 1), columns ? W : H);
        /* Where the first row and the first column of the file are (Exif 2.32, 4.6.4). */
        static const struct { bool bottom, right; } first[] = {
            [2] = { false, true }, [3] = { true, true }, [4] = { true, false }, [5] = { false, false },
            [6] = { false, true }, [7] = { true, true }, [8] = { true, false }, [9] = { false, false },
        };
        for (int y = 0; y < H; y++)
            for (int x = 0; x < W; x++) {
                const int rows = columns ? W : H, width = columns ? H : W;
                int row = columns ? x : y, column = columns ? y : x;
                row = turned && first[o].bottom ? rows - 1 - row : row;
                column = turned && first[o].right ? width - 1 - column : column;
                if (!CHECK(got[row * width + column] == upright[y * W + x], "orientation %d, pixel %d, %d", o, y, x))
                    y = H, x = W;
            }
    }
}

TEST(damaged_images, "image files: damaged bytes give pixels or an error")
{
    static const char *const names[] = { "subsampled.jpg", "cmyk.jpg", "rgba.png", "palette.png", "rgb.ppm" };
    CTRT_AUTO(tensor) image = NULL;
    EACH(name, names) {
        const char *path = reference_file(*name);
        unsigned char bytes[4096];
        const size_t size = folder_read(bytes, sizeof bytes, path);
        for (int i = 0; i < FEWER_SANITIZED(160); i++) {
            ctrt_sample_random random;
            ctrt_sample_random_start(&random, 1, 0, i);
            unsigned char *byte = &bytes[ctrt_sample_random_below(&random, size)], before = *byte;
            *byte ^= (unsigned char)(1 + ctrt_sample_random_below(&random, 255));
            const ctrt_status status = ctrt_read_image(&image, file_of("damaged", bytes, size), 3);
            CHECK(status == CTRT_OK || status == CTRT_ERR_FORMAT || status == CTRT_ERR_NOT_SUPPORTED
                      || status == CTRT_ERR_NOT_FOUND, "%s, byte %d: %s", *name, (int)(byte - bytes),
                  ctrt_error_message());
            *byte = before;
        }
    }
}

TEST_MAIN { return run_file_tests(); }

/* SPDX-License-Identifier: Apache-2.0 */
/* contract_image.c: checks of image decoders (ctrt/image_plugin.h), with images of contract_image_files.c and with
 * files that are no images. Files and pixels end at a page that cannot be accessed, and files cannot be written. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "contract_image.h"

#include <errno.h>
#include <sys/mman.h>
#include <unistd.h>

static const ctrt_image_codec *codec;

/* ---- memory whose end is at the end of accessible pages ---- */

struct fenced {
    unsigned char *base, *data;
    size_t mapped;
};

static void fenced_new(struct fenced *fenced, size_t bytes)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), pages = (bytes + page - 1) / page + 1;
    fenced->mapped = pages * page;
    fenced->base = mmap(NULL, fenced->mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (fenced->base == MAP_FAILED)
        contract_skip("the host has no %zu bytes", fenced->mapped);
    mprotect(fenced->base + fenced->mapped - page, page, PROT_NONE);
    fenced->data = fenced->base + fenced->mapped - page - bytes;
}

/* A copy of a file that can only be read. */
static void fenced_file(struct fenced *fenced, const unsigned char *file, size_t bytes)
{
    fenced_new(fenced, bytes);
    if (bytes > 0)
        memcpy(fenced->data, file, bytes);
    mprotect(fenced->base, fenced->mapped - (size_t)sysconf(_SC_PAGESIZE), PROT_READ);
}

static void fenced_free(struct fenced *fenced)
{
    munmap(fenced->base, fenced->mapped);
}

/* ---- decoding ---- */

static bool tolerated(ctrt_status status)
{
    return status == CTRT_OK || status == CTRT_ERR_NOT_SUPPORTED || status == CTRT_ERR_OUT_OF_MEMORY;
}

/* Decodes a file of any contents as the library does. If it is an image, the pixels are in *out, if that is not NULL,
 * to be freed by the caller. Fails the check if the status is not one of those that are allowed. */
static ctrt_status decode_any(struct fenced *out, ctrt_image_info *info, const unsigned char *contents, size_t bytes,
                              const char *what)
{
    struct fenced file, rgb;
    *info = (ctrt_image_info){ .size = sizeof *info, .bits = 8 };
    fenced_file(&file, contents, bytes);
    contract_step("describe of %s, %zu bytes", what, bytes);
    ctrt_status status = codec->describe(info, file.data, bytes);
    if (!tolerated(status))
        contract_refused(status, CTRT_ERR_FORMAT);
    if (status == CTRT_OK) {
        EXPECT(info->height > 0 && info->width > 0 && (info->bits == 8 || info->bits == 16),
               "%lld x %lld pixels, %d bits", (long long)info->height, (long long)info->width, (int)info->bits);
        const bool small = info->height < 4096 && info->width < 4096;
        fenced_new(&rgb, small ? (size_t)(3 * info->height * info->width) : 1);
        contract_step("decode of %s, %zu bytes, %lld x %lld pixels", what, bytes, (long long)info->height,
                      (long long)info->width);
        status = small ? codec->decode(rgb.data, info, file.data, bytes) : CTRT_ERR_NOT_SUPPORTED;
        if (!tolerated(status))
            contract_refused(status, CTRT_ERR_FORMAT);
        if (out != NULL && status == CTRT_OK)
            *out = rgb;
        else
            fenced_free(&rgb);
    }
    fenced_free(&file);
    return status;
}

static void expect_image(const struct image *image)
{
    struct fenced rgb;
    ctrt_image_info info;
    contract_ok(decode_any(&rgb, &info, image->file, image->bytes, image->what));
    EXPECT(info.height == image->height && info.width == image->width && info.bits == image->bits,
           "%lld x %lld pixels of %d bits, expected %d x %d of %d", (long long)info.height, (long long)info.width,
           (int)info.bits, image->height, image->width, image->bits);
    for (int i = 0; i < 3 * image->height * image->width; i++)
        EXPECT(abs(rgb.data[i] - image->rgb[i]) <= image->tolerance, "row %d, column %d, channel %d is %d, expected %d",
               i / 3 / image->width, i / 3 % image->width, i % 3, rgb.data[i], image->rgb[i]);
    fenced_free(&rgb);
}

/* ---- checks with images ---- */

static int variants;                            /* of the format */

static void need_images(void)
{
    struct image image;
    while (image_new(&image, contract_target.component->name, variants, 5, 3)) {
        image_free(&image);
        variants++;
    }
    if (variants == 0)
        contract_skip("the check has no images of the format %s", contract_target.component->name);
}

static void each_image(void (*body)(const struct image *image))
{
    static const int sizes[][2] = { { 1, 1 }, { 3, 5 }, { 8, 8 }, { 17, 9 }, { 2, 31 } };
    need_images();
    for (int v = 0; v < variants; v++)
        for (int s = 0; s < 5; s++) {
            struct image image;
            (void)image_new(&image, contract_target.component->name, v, sizes[s][0], sizes[s][1]);
            body(&image);
            image_free(&image);
        }
}

static void check_decode(void)
{
    each_image(expect_image);
}

/* A library that was compiled with the first members of the struct only. */
static void older_body(const struct image *image)
{
    union {
        ctrt_image_info info;
        unsigned char bytes[sizeof(ctrt_image_info)];
    } older = { .info = { .size = offsetof(ctrt_image_info, bits), .bits = 0x5a5a5a5a } };
    contract_step("describe of %s with info->size %zu", image->what, older.info.size);
    contract_ok(codec->describe(&older.info, image->file, image->bytes));
    contract_expect_bytes(older.bytes + offsetof(ctrt_image_info, bits), sizeof older.info.bits, 0x5a,
                          "info after info->size");
}

static void check_older(void)
{
    each_image(older_body);
}

static void truncated_body(const struct image *image)
{
    ctrt_image_info info;
    for (size_t bytes = 0; bytes < image->needed; bytes++)
        contract_refused(decode_any(NULL, &info, image->file, bytes, "a truncated image"), CTRT_OK);
}

static void check_truncated(void)
{
    each_image(truncated_body);
}

static void damaged_body(const struct image *image)
{
    ctrt_image_info info;
    unsigned char *file = contract_alloc(image->bytes);
    for (size_t i = 0; i < image->bytes; i++) {
        static const unsigned char changes[] = { 0xff, 0x80, 0x01 };
        memcpy(file, image->file, image->bytes);
        file[i] ^= changes[i % 3];
        (void)decode_any(NULL, &info, file, image->bytes, "an image with a changed byte");
    }
    free(file);
}

static void check_damaged(void)
{
    each_image(damaged_body);
}

/* A file of the author's, of a format or variant that contract_image_files.c cannot write. */
static void check_given(void)
{
    enum { MOST = 16384 };
    const char *path = contract_target.options;
    unsigned char *file = contract_alloc(MOST + 1);
    struct image image = { .what = "the file of --options", .file = file };
    ctrt_image_info info;
    if (path[0] == '\0')
        contract_skip("--options names no file of the format");
    contract_step("reading %s", path);
    FILE *stream = fopen(path, "rb");
    EXPECT(stream != NULL, "%s", strerror(errno));
    image.bytes = fread(file, 1, MOST + 1, stream);
    fclose(stream);
    EXPECT(image.bytes <= MOST, "it has more than %d bytes: the check decodes it once for each", MOST);
    contract_ok(decode_any(NULL, &info, file, image.bytes, image.what));
    for (size_t bytes = 0; bytes < image.bytes; bytes++)
        (void)decode_any(NULL, &info, file, bytes, "the truncated file of --options");
    damaged_body(&image);
    free(file);
}

static void decode_thread(int number)
{
    struct image image;
    for (int n = 0; n < 200; n++) {
        (void)image_new(&image, contract_target.component->name, (n + number) % variants, 1 + (n * 7 + number) % 40,
                        1 + (n * 3 + number * 5) % 40);
        expect_image(&image);
        image_free(&image);
    }
}

static void check_threads(void)
{
    need_images();
    contract_in_threads(decode_thread, 4);
}

static void fork_child(void)
{
    decode_thread(1);
}

static void check_fork(void)
{
    need_images();
    decode_thread(0);
    int children[2];
    for (int i = 0; i < 2; i++)
        children[i] = contract_fork(fork_child);
    decode_thread(2);
    for (int i = 0; i < 2; i++)
        contract_join(children[i]);
}

static void balance_body(const struct image *image)
{
    ctrt_image_info info;
    expect_image(image);
    (void)decode_any(NULL, &info, image->file, image->needed - 1, "a truncated image");
    (void)decode_any(NULL, &info, image->file, image->needed / 2, "a truncated image");
}

static void check_balance(void)
{
    long blocks = 0;
    size_t space = 0;
    for (int n = 0; n < 40; n++) {
        each_image(balance_body);
        variants = 0;
        if (n == 4)
            blocks = contract_host_blocks(), space = contract_space();
    }
    EXPECT(contract_host_blocks() <= blocks, "%ld blocks of host->alloc were not freed",
           contract_host_blocks() - blocks);
    EXPECT(contract_space() < space + ((size_t)2 << 20), "%zu KiB of address space were not returned",
           (contract_space() - space) >> 10);
}

static void memory_body(const struct image *image)
{
    const long before = contract_host_blocks();
    for (long n = 1; n < 50; n++) {
        unsigned char *rgb = contract_alloc((size_t)(3 * image->height * image->width));
        ctrt_image_info info = { .size = sizeof info, .bits = 8 };
        contract_step("%s, while call %ld of host->alloc fails", image->what, n);
        contract_host_fail(n);
        ctrt_status status = codec->describe(&info, image->file, image->bytes);
        if (status == CTRT_OK)
            status = codec->decode(rgb, &info, image->file, image->bytes);
        const bool failed = contract_host_failed();
        contract_host_fail(0);
        free(rgb);
        EXPECT(status == CTRT_OK || failed, "failed, although the host has memory");
        if (status != CTRT_OK)
            contract_refused(status, CTRT_ERR_OUT_OF_MEMORY);
        EXPECT(contract_host_blocks() <= before, "%ld blocks of host->alloc were not freed",
               contract_host_blocks() - before);
        if (!failed)
            return;
    }
}

static void check_host_memory(void)
{
    each_image(memory_body);
}

/* ---- checks with files that are no images ---- */

/* The first bytes of files of the known formats. */
static const char beginnings[5][26] = {
    "\xff\xd8\xff\xe0\0\x10JFIF\0\1\1", "\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\1\0\0\0\1\x8", "BM\x46\0\0\0",
    "II*\0\x8\0", "RIFF\x10\0\0\0WEBPVP8 ",
};

/* Files of any length, of the format's first bytes or not, with random bytes after them. */
static void check_malformed(void)
{
    uint32_t state = 1;
    unsigned char file[200];
    ctrt_image_info info;
    for (int i = 0; i < 3000; i++) {
        const size_t bytes = (size_t)(i % 200);
        for (size_t k = 0; k < bytes; k++) {
            state = state * 1664525u + 1013904223u;
            file[k] = k < (size_t)(i % 30) ? (unsigned char)beginnings[i % 5][k % 26] : (unsigned char)(state >> 24);
        }
        (void)decode_any(NULL, &info, file, bytes, "a file that is no image");
    }
    EXPECT(contract_host_blocks() < 100, "%ld blocks of host->alloc were not freed", contract_host_blocks());
}

static void codec_prepare(const void *table, unsigned needs)
{
    (void)needs;
    codec = table;
    EXPECT(CTRT_SLOT(codec, describe) && CTRT_SLOT(codec, decode), "required slots are describe and decode");
}

static const struct contract_check checks[] = {
    CONTRACT_COMMON(0),
    { "decode", check_decode, 0,
      "height, width, bits and pixels are those of the image: red, green, blue, row by row from the top, no gaps" },
    { "older", check_older, 0, "describe writes the members that are within info->size" },
    { "truncated", check_truncated, 0, "truncated files are CTRT_ERR_FORMAT, with a message" },
    { "damaged", check_damaged, 0, "malformed files are CTRT_ERR_FORMAT, with a message; nothing else is accessed" },
    { "file", check_given, 0,
      "the file that --options names is decoded; truncated or with a changed byte it is an image or CTRT_ERR_FORMAT" },
    { "malformed", check_malformed, 0, "malformed files are CTRT_ERR_FORMAT, with a message" },
    { "threads", check_threads, 0, "the functions are called from several threads" },
    { "fork", check_fork, 0, "the functions are called in worker processes, also after calls in their parent" },
    { "balance", check_balance, 0, "decode frees what it has allocated, also when it fails" },
    { "host.memory", check_host_memory, 0,
      "if host->alloc fails, the call fails with a message, and nothing is lost" },
    { NULL, NULL, 0, NULL },
};

const struct contract_kind contract_image = { CTRT_COMPONENT_IMAGE, "image", { checks }, codec_prepare };

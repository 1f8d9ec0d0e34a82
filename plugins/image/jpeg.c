/* SPDX-License-Identifier: Apache-2.0 */
/* plugins/image/jpeg.c: JPEG images by libjpeg (libjpeg-turbo), opened when the plugin is first looked at. */
#include <stdio.h>

#include <dlfcn.h>
#include <jpeglib.h>
#include <jerror.h>
#include <setjmp.h>
#include <stdlib.h>
#include <string.h>

#include "config.h"
#include "ctrt/image_plugin.h"

static const ctrt_host *host;

/* The functions of the library. */
static struct {
    struct jpeg_error_mgr *(*std_error)(struct jpeg_error_mgr *);
    void (*create)(j_decompress_ptr, int, size_t);
    void (*destroy)(j_decompress_ptr);
    void (*memory)(j_decompress_ptr, const unsigned char *, unsigned long);
    int (*header)(j_decompress_ptr, boolean);
    boolean (*start)(j_decompress_ptr);
    JDIMENSION (*read)(j_decompress_ptr, JSAMPARRAY, JDIMENSION);
    boolean (*finish)(j_decompress_ptr);
} jpeg;

static const struct { const char *name; void *function; } symbols[] = {
    { "jpeg_std_error", &jpeg.std_error },          { "jpeg_CreateDecompress", &jpeg.create },
    { "jpeg_destroy_decompress", &jpeg.destroy },   { "jpeg_mem_src", &jpeg.memory },
    { "jpeg_read_header", &jpeg.header },           { "jpeg_start_decompress", &jpeg.start },
    { "jpeg_read_scanlines", &jpeg.read },          { "jpeg_finish_decompress", &jpeg.finish },
};

/* Called once, before all other functions. */
static int32_t jpeg_probe(char *reason, size_t bytes)
{
    void *library = dlopen(CTRT_JPEG_SONAME, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    for (size_t i = 0; library != NULL && i < sizeof symbols / sizeof symbols[0]; i++)
        if ((*(void **)symbols[i].function = dlsym(library, symbols[i].name)) == NULL)
            library = NULL;
    if (library == NULL)
        snprintf(reason, bytes, "%s", dlerror());
    return library != NULL;
}

/* ---- decoding ----
 *
 * libjpeg reports errors through error_exit, which must not return. A warning means that it replaced missing data. */

struct decoder {
    struct jpeg_error_mgr errors;               /* first, because libjpeg passes its address */
    struct jpeg_decompress_struct info;
    jmp_buf failed;
    char message[JMSG_LENGTH_MAX];
    bool memory;                                /* the error is a lack of memory */
    bool truncated;
    JSAMPLE *row;                               /* a row of a CMYK image, or NULL */
};

static struct decoder *decoder_of(j_common_ptr common)
{
    return (struct decoder *)(void *)common->err;
}

static void error_exit(j_common_ptr common)
{
    struct decoder *d = decoder_of(common);
    d->errors.format_message(common, d->message);
    d->memory = d->errors.msg_code == JERR_OUT_OF_MEMORY;
    longjmp(d->failed, 1);
}

static void emit_message(j_common_ptr common, int level)
{
    struct decoder *d = decoder_of(common);
    if (level < 0 && d->errors.msg_code == JWRN_JPEG_EOF)
        d->truncated = true;
}

static void output_message(j_common_ptr common)
{
    (void)common;
}

/* Creates the decoder and reads the header. Called between setjmp and destroy. */
static void begin(struct decoder *d, const void *file, size_t bytes)
{
    jpeg.create(&d->info, JPEG_LIB_VERSION, sizeof d->info);
    jpeg.memory(&d->info, file, (unsigned long)bytes);
    jpeg.header(&d->info, TRUE);
}

/* As PIL's conversion from CMYK. It takes the values as inverted, as Adobe's programs write them, also in files without
 * Adobe's marker. */
static void cmyk_row(unsigned char *rgb, const JSAMPLE *row, JDIMENSION width)
{
    for (JDIMENSION x = 0; x < width; x++)
        for (int c = 0; c < 3; c++) {
            const unsigned ink = 255u - row[4 * x + c], rest = row[4 * x + 3];
            const unsigned product = ink * rest + 128;
            rgb[3 * x + c] = (unsigned char)(rest - ((product + (product >> 8)) >> 8));
        }
}

static void jpeg_read_rows(struct decoder *d, unsigned char *rgb)
{
    struct jpeg_decompress_struct *info = &d->info;
    const bool cmyk = info->jpeg_color_space == JCS_CMYK || info->jpeg_color_space == JCS_YCCK;
    info->out_color_space = cmyk ? JCS_CMYK : JCS_RGB;
    jpeg.start(info);
    if (cmyk)
        d->row = info->mem->alloc_small((j_common_ptr)info, JPOOL_IMAGE, 4 * (size_t)info->output_width);
    while (info->output_scanline < info->output_height) {
        JSAMPROW line = rgb + (size_t)info->output_scanline * 3 * info->output_width, target = cmyk ? d->row : line;
        jpeg.read(info, &target, 1);
        if (cmyk)
            cmyk_row(line, d->row, info->output_width);
    }
    jpeg.finish(info);
}

/* Reads the header, and the pixels if `rgb` is not NULL. */
static ctrt_status jpeg_run(ctrt_image_info *info, unsigned char *rgb, const void *file, size_t bytes)
{
    struct decoder *d = host->alloc(sizeof *d);
    if (d == NULL)
        return host->fail(CTRT_ERR_OUT_OF_MEMORY, "out of memory: %zu bytes for a JPEG decoder", sizeof *d);
    memset(d, 0, sizeof *d);
    d->info.err = jpeg.std_error(&d->errors);
    d->errors.error_exit = error_exit;
    d->errors.emit_message = emit_message;
    d->errors.output_message = output_message;
    ctrt_status status = CTRT_OK;
    if (setjmp(d->failed) == 0) {
        begin(d, file, bytes);
        if (rgb == NULL)
            info->height = d->info.image_height, info->width = d->info.image_width;
        else if (info->height != d->info.image_height || info->width != d->info.image_width)
            status = host->fail(CTRT_ERR_FORMAT, "the JPEG file has changed");
        else
            jpeg_read_rows(d, rgb);
        if (d->truncated && rgb != NULL)
            status = host->fail(CTRT_ERR_FORMAT, "the JPEG file is truncated");
    } else {
        status = host->fail(d->memory ? CTRT_ERR_OUT_OF_MEMORY : CTRT_ERR_FORMAT, "%s (libjpeg)", d->message);
    }
    jpeg.destroy(&d->info);
    host->free(d);
    return status;
}

static ctrt_status describe(ctrt_image_info *info, const void *file, size_t bytes)
{
    return jpeg_run(info, NULL, file, bytes);
}

static ctrt_status decode(void *rgb, const ctrt_image_info *info, const void *file, size_t bytes)
{
    ctrt_image_info expected = *info;
    return jpeg_run(&expected, rgb, file, bytes);
}

static ctrt_status init(const ctrt_host *table)
{
    host = table;
    return CTRT_OK;
}

static const ctrt_image_codec codec = { .size = sizeof codec, .describe = describe, .decode = decode };
static const ctrt_component components[] = {
    { .size = sizeof(ctrt_component), .kind = CTRT_COMPONENT_IMAGE, .name = "jpeg", .table = &codec,
     .probe = jpeg_probe },
};

CTRT_PLUGIN_DEFINE("image-jpeg", PACKAGE_VERSION, "JPEG images by libjpeg", components, init)

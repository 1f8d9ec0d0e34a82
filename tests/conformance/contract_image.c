/* SPDX-License-Identifier: Apache-2.0 */
/* contract_image.c: checks of image decoders (ctrt/image_plugin.h) with files that are no images. */
#include "contract.h"
#include "ctrt/image_plugin.h"

static const ctrt_image_codec *codec;

/* The first bytes of files of the known formats. */
static const char beginnings[5][26] = {
    "\xff\xd8\xff\xe0\0\x10JFIF\0\1\1", "\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\1\0\0\0\1\x8", "BM\x46\0\0\0",
    "II*\0\x8\0", "RIFF\x10\0\0\0WEBPVP8 ",
};

/* Files of any length, of the format's first bytes or not, with random bytes after them. The file ends at the end of a
 * block, so that a sanitizer or a debugger's allocator finds reads after it. */
static void codec_malformed(int number)
{
    uint32_t state = (uint32_t)number + 1;
    for (int i = 0; i < 3000; i++) {
        const size_t bytes = (size_t)(i % 200);
        unsigned char *file = malloc(bytes > 0 ? bytes : 1);
        ctrt_image_info info = { .size = sizeof info, .bits = 8 };
        for (size_t k = 0; k < bytes; k++) {
            state = state * 1664525u + 1013904223u;
            file[k] = k < (size_t)(i % 30) ? (unsigned char)beginnings[i % 5][k % 26] : (unsigned char)(state >> 24);
        }
        contract_step("describe of a file of %zu bytes that is no image", bytes);
        ctrt_status status = codec->describe(&info, file, bytes);
        if (status != CTRT_OK && status != CTRT_ERR_NOT_SUPPORTED && status != CTRT_ERR_OUT_OF_MEMORY)
            contract_refused(status, CTRT_ERR_FORMAT);
        if (status == CTRT_OK) {
            EXPECT(info.height > 0 && info.width > 0 && (info.bits == 8 || info.bits == 16),
                   "%lld x %lld pixels, %d bits",
                   (long long)info.height, (long long)info.width, (int)info.bits);
            const size_t size = info.height < 4096 && info.width < 4096 ? (size_t)(3 * info.height * info.width) : 0;
            unsigned char *rgb = contract_alloc(size + 64);
            memset(rgb + size, 0x5a, 64);
            contract_step("decode of a truncated file");
            status = size > 0 ? codec->decode(rgb, &info, file, bytes) : CTRT_OK;
            if (status != CTRT_OK && status != CTRT_ERR_NOT_SUPPORTED)
                contract_refused(status, CTRT_ERR_FORMAT);
            contract_expect_bytes(rgb + size, 64, 0x5a, "after the end of the pixels");
            free(rgb);
        }
        free(file);
    }
}

static void check_codec_malformed(void)
{
    codec_malformed(0);
    EXPECT(contract_host_blocks() < 100, "%ld blocks of host->alloc were not freed", contract_host_blocks());
}

static void check_codec_threads(void)
{
    contract_in_threads(codec_malformed, 4);
}

static void codec_prepare(const void *table, unsigned needs)
{
    (void)needs;
    codec = table;
    EXPECT(CTRT_SLOT(codec, describe) && CTRT_SLOT(codec, decode), "required slots are describe and decode");
}

static const struct contract_check checks[] = {
    { "names", contract_check_names, 0, CONTRACT_NAMES },
    { "malformed", check_codec_malformed, 0, "malformed and truncated files are CTRT_ERR_FORMAT, with a message" },
    { "threads", check_codec_threads, 0, "the functions are called from several threads" },
    { NULL, NULL, 0, NULL },
};

const struct contract_kind contract_image = { CTRT_COMPONENT_IMAGE, "image", { checks }, codec_prepare };

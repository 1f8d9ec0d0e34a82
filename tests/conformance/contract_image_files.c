/* SPDX-License-Identifier: Apache-2.0 */
/* contract_image_files.c: writes PNG, JPEG and BMP files of given pixels, in the simplest form that the formats permit:
 * PNG without compression, JPEG with one coefficient per block. */
#include "contract_image.h"

/* ---- bytes ---- */

static void put(struct image *image, uint64_t value, int bytes, bool big)
{
    for (int i = 0; i < bytes; i++)
        image->file[image->bytes++] = (unsigned char)(value >> 8 * (big ? bytes - 1 - i : i));
}

static void put_bytes(struct image *image, const void *from, size_t bytes)
{
    memcpy(image->file + image->bytes, from, bytes);
    image->bytes += bytes;
}

static unsigned char pixel(int row, int column, int channel)
{
    return (unsigned char)(row * 29 + column * 13 + channel * 71 + 5);
}

/* ---- PNG ---- */

static uint32_t crc_of(const unsigned char *bytes, size_t count)
{
    uint32_t crc = UINT32_MAX;
    for (size_t i = 0; i < count; i++) {
        crc ^= bytes[i];
        for (int k = 0; k < 8; k++)
            crc = crc >> 1 ^ (crc & 1 ? 0xedb88320u : 0);
    }
    return ~crc;
}

static size_t chunk_begin(struct image *image, const char *type)
{
    put(image, 0, 4, true);
    put_bytes(image, type, 4);
    return image->bytes;
}

static void chunk_end(struct image *image, size_t from)
{
    const uint32_t crc = crc_of(image->file + from - 4, image->bytes - from + 4);
    const size_t end = image->bytes;
    image->bytes = from - 8;
    put(image, end - from, 4, true);
    image->bytes = end;
    put(image, crc, 4, true);
}

/* Grey, RGB, RGBA of 8 bits. */
static void write_png(struct image *image, int variant)
{
    static const int channels[] = { 1, 3, 4 }, types[] = { 0, 2, 6 };
    const size_t row = (size_t)(1 + image->width * channels[variant]), all = row * (size_t)image->height;
    put_bytes(image, "\x89PNG\r\n\x1a\n", 8);
    size_t chunk = chunk_begin(image, "IHDR");
    put(image, (uint64_t)image->width, 4, true), put(image, (uint64_t)image->height, 4, true);
    put(image, 8, 1, true), put(image, (uint64_t)types[variant], 1, true), put(image, 0, 3, true);
    chunk_end(image, chunk);
    chunk = chunk_begin(image, "IDAT");
    put(image, 0x7801, 2, true);                                        /* zlib; one block that is not compressed */
    put(image, 1, 1, false), put(image, all, 2, false), put(image, ~all & 0xffff, 2, false);
    const size_t data = image->bytes;
    for (int y = 0; y < image->height; y++) {
        put(image, 0, 1, false);
        for (int x = 0; x < image->width; x++) {
            const unsigned char *rgb = image->rgb + 3 * (y * image->width + x);
            put_bytes(image, rgb, channels[variant] == 1 ? 1 : 3);
            if (channels[variant] == 4)
                put(image, (uint64_t)(x * 40 % 256), 1, false);         /* a transparency that is dropped */
        }
    }
    uint32_t a = 1, b = 0;                                              /* Adler-32 */
    for (size_t i = data; i < image->bytes; i++)
        a = (a + image->file[i]) % 65521, b = (b + a) % 65521;
    put(image, b << 16 | a, 4, true);
    chunk_end(image, chunk);
    image->needed = image->bytes - 8;
    chunk_end(image, chunk_begin(image, "IEND"));
}

/* ---- JPEG: grey, each block of 8 x 8 pixels has one value ---- */

struct bits {
    uint32_t held;
    int count;
};

static void put_bits(struct image *image, struct bits *bits, uint32_t value, int count)
{
    for (int i = count - 1; i >= 0; i--) {
        bits->held = bits->held << 1 | (value >> i & 1);
        if (++bits->count < 8)
            continue;
        put(image, bits->held & 0xff, 1, false);
        if ((bits->held & 0xff) == 0xff)
            put(image, 0, 1, false);
        bits->held = 0, bits->count = 0;
    }
}

static void write_jpeg(struct image *image)
{
    static const unsigned char dc[] = { 0xff, 0xc4, 0, 31, 0, 0, 0, 0, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
                                        0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11 };           /* 12 codes of 4 bits */
    static const unsigned char ac[] = { 0xff, 0xc4, 0, 20, 0x10, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 };
    struct bits bits = { 0, 0 };
    int last = 0;
    put(image, 0xffd8, 2, true);
    put(image, 0xffdb, 2, true), put(image, 67, 2, true), put(image, 0, 1, true);
    for (int i = 0; i < 64; i++)
        put(image, 8, 1, true);
    put(image, 0xffc0, 2, true), put(image, 11, 2, true), put(image, 8, 1, true);
    put(image, (uint64_t)image->height, 2, true), put(image, (uint64_t)image->width, 2, true);
    put(image, 0x01011100, 4, true);
    put_bytes(image, dc, sizeof dc);
    put_bytes(image, ac, sizeof ac);
    put(image, 0xffda, 2, true), put(image, 8, 2, true), put(image, 0x0101, 2, true), put(image, 0x00003f00, 4, true);
    for (int y = 0; y < image->height; y += 8)
        for (int x = 0; x < image->width; x += 8) {
            const int value = image->rgb[3 * (y * image->width + x)] - 128, difference = value - last;
            int category = 0;
            while (abs(difference) >> category != 0)
                category++;
            put_bits(image, &bits, (uint32_t)category, 4);
            put_bits(image, &bits, (uint32_t)(difference < 0 ? difference - 1 : difference), category);
            put_bits(image, &bits, 0, 1);                               /* the end of the block */
            last = value;
        }
    while (bits.count > 0)
        put_bits(image, &bits, 1, 1);
    image->needed = image->bytes - 1;
    put(image, 0xffd9, 2, true);
    image->tolerance = 2;
}

/* ---- BMP of 24 bits, rows from the bottom, padded to 4 bytes ---- */

static void write_bmp(struct image *image)
{
    const int padding = (4 - image->width * 3 % 4) % 4;
    const uint64_t data = (uint64_t)((image->width * 3 + padding) * image->height);
    put_bytes(image, "BM", 2);
    put(image, 54 + data, 4, false), put(image, 0, 4, false), put(image, 54, 4, false), put(image, 40, 4, false);
    put(image, (uint64_t)image->width, 4, false), put(image, (uint64_t)image->height, 4, false);
    put(image, 1, 2, false), put(image, 24, 2, false), put(image, 0, 4, false), put(image, data, 4, false);
    put(image, 0, 8, false), put(image, 0, 8, false);
    for (int y = image->height - 1; y >= 0; y--) {
        for (int x = 0; x < image->width; x++)
            for (int channel = 2; channel >= 0; channel--)
                put(image, image->rgb[3 * (y * image->width + x) + channel], 1, false);
        put(image, 0, padding, false);
    }
    image->needed = image->bytes - 4;
}

/* ---- */

static const struct variant {
    const char *format, *what;
    bool grey, blocks;
} variants[] = {
    { "png", "a grey PNG image", true, false }, { "png", "an RGB PNG image", false, false },
    { "png", "an RGBA PNG image", false, false }, { "jpeg", "a grey JPEG image", true, true },
    { "bmp", "a BMP image", false, false },
};

bool image_new(struct image *image, const char *format, int variant, int height, int width)
{
    const struct variant *found = NULL;
    int n = 0;
    for (size_t i = 0; i < sizeof variants / sizeof variants[0] && found == NULL; i++)
        if (strcmp(variants[i].format, format) == 0 && n++ == variant)
            found = &variants[i];
    if (found == NULL)
        return false;
    *image = (struct image){ .what = found->what, .height = height, .width = width, .bits = 8 };
    image->rgb = contract_alloc((size_t)(3 * height * width));
    image->file = contract_alloc((size_t)(4 * height * width + 4 * height + 1024));
    for (int i = 0; i < 3 * height * width; i++) {
        const int y = i / 3 / width, x = i / 3 % width;
        image->rgb[i] = pixel(found->blocks ? y / 8 : y, found->blocks ? x / 8 : x, found->grey ? 0 : i % 3);
    }
    if (strcmp(format, "png") == 0)
        write_png(image, variant);
    else if (strcmp(format, "jpeg") == 0)
        write_jpeg(image);
    else
        write_bmp(image);
    return true;
}

void image_free(struct image *image)
{
    free(image->rgb);
    free(image->file);
}

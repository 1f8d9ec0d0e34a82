/* SPDX-License-Identifier: Apache-2.0 */
/* data/exif.c: the orientation of an image, from the Exif data of JPEG and PNG files.
 *
 * Exif data is a TIFF file: the order of its bytes, 42, the offset of a list of entries of 12 bytes (tag, type, count,
 * value) with their number before it (Exif 2.32, 4.6.2; TIFF 6.0, section 2). JPEG files have it in a segment APP1
 * (Exif 2.32, 4.7.2), PNG files in a chunk eXIf (PNG, third edition, 11.3.4.5). */
#include "base/base.h"
#include "data/image.h"

#define ORIENTATION 0x0112              /* a tag whose value is one number of type SHORT */
#define SHORT       3

struct bytes {
    const unsigned char *at;
    size_t size;
    bool little;                        /* the least significant byte is the first */
};

/* Returns a number of `count` bytes, or 0 if it is not inside. */
static uint32_t exif_number(const struct bytes *b, size_t at, int count)
{
    uint32_t value = 0;
    if (b->size < (size_t)count || at > b->size - (size_t)count)
        return 0;
    for (int i = 0; i < count; i++)
        value |= (uint32_t)b->at[at + (size_t)i] << 8 * (b->little ? i : count - 1 - i);
    return value;
}

static int tiff_orientation(struct bytes tiff)
{
    if (tiff.size < 8 || (memcmp(tiff.at, "II*\0", 4) != 0 && memcmp(tiff.at, "MM\0*", 4) != 0))
        return 1;
    tiff.little = tiff.at[0] == 'I';
    const size_t list = exif_number(&tiff, 4, 4);
    const uint32_t count = exif_number(&tiff, list, 2);
    for (size_t i = 0; i < count && list + 2 + 12 * i + 12 <= tiff.size; i++) {
        const size_t at = list + 2 + 12 * i;
        if (exif_number(&tiff, at, 2) != ORIENTATION || exif_number(&tiff, at + 2, 2) != SHORT)
            continue;
        const uint32_t value = exif_number(&tiff, at + 8, 2);
        return value >= 1 && value <= 8 ? (int)value : 1;
    }
    return 1;
}

/* Segments are FF, a marker, and for most markers their length with its own two bytes. */
static int jpeg_orientation(const struct bytes *file)
{
    for (size_t at = 2; at + 4 <= file->size && file->at[at] == 0xff;) {
        const unsigned marker = file->at[at + 1];
        const size_t length = exif_number(file, at + 2, 2);
        if (marker == 0xff) {                   /* fill */
            at++;
            continue;
        }
        if (marker == 0xda || marker == 0xd9 || length < 2 || length > file->size - at - 2)
            return 1;                           /* the pixels, or the end */
        if (marker == 0xe1 && length >= 8 && memcmp(file->at + at + 4, "Exif\0\0", 6) == 0)
            return tiff_orientation((struct bytes){ file->at + at + 10, length - 8, false });
        at += 2 + length;
    }
    return 1;
}

/* Chunks are the length of their data, a type of four letters, the data, and a checksum. */
static int png_orientation(const struct bytes *file)
{
    for (size_t at = 8; at + 12 <= file->size;) {
        const size_t length = exif_number(file, at, 4);
        if (length > file->size - at - 12)
            return 1;
        if (memcmp(file->at + at + 4, "eXIf", 4) == 0)
            return tiff_orientation((struct bytes){ file->at + at + 8, length, false });
        at += 12 + length;
    }
    return 1;
}

int exif_orientation(const void *file, size_t size)
{
    const struct bytes b = { file, size, false };
    if (size > 4 && b.at[0] == 0xff && b.at[1] == 0xd8)
        return jpeg_orientation(&b);
    return size > 8 && memcmp(b.at, "\x89PNG\r\n\x1a\n", 8) == 0 ? png_orientation(&b) : 1;
}

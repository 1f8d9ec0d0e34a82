/* SPDX-License-Identifier: Apache-2.0 */
/* ctrt/image_plugin.h: the interface of image decoders, plugins of kind `image`.
 *
 * The decoder of a format is in the file image-FORMAT.so. The library itself reads PPM and PGM; it recognizes the
 * formats jpeg, png, bmp, tiff and webp by their first bytes and looks for the plugin of that name. The table of a
 * component of kind CTRT_COMPONENT_IMAGE is a ctrt_image_codec. The functions are called from several threads and in
 * worker processes of the data loader. */
#ifndef CTRT_IMAGE_PLUGIN_H
#define CTRT_IMAGE_PLUGIN_H

#include "ctrt/plugin.h"

CTRT_BEGIN_DECLS

typedef struct ctrt_image_info {
    size_t size;                        /* set by the caller */
    int64_t height, width;
    int32_t bits;                       /* of a value: 8 or 16; set to 8 by the caller. `decode` reduces 16 to 8 */
} ctrt_image_info;

typedef struct ctrt_image_codec {
    size_t size;
    /* Required: writes the size of the image in the `bytes` bytes (0 or more) of a file at `file`, which cannot
     * be written. Of *info it writes the members that are within info->size. CTRT_ERR_FORMAT for malformed files,
     * CTRT_ERR_NOT_SUPPORTED for a variant of the format, CTRT_ERR_OUT_OF_MEMORY, each with a message, before which the
     * library puts the file's name. The size may be any; the library refuses what it has no memory for. */
    ctrt_status (*describe)(ctrt_image_info *info, const void *file, size_t bytes);
    /* Required: writes height * width pixels of three bytes (red, green, blue), row by row from the top, without gaps.
     * `info`: as describe wrote it for the same file. A transparency channel is dropped, and grey is written as three
     * equal bytes (as PIL's convert("RGB")). Errors are those of describe; a truncated file is CTRT_ERR_FORMAT, and
     * what is in `rgb` then is undefined. Keeps nothing after it has returned. */
    ctrt_status (*decode)(void *rgb, const ctrt_image_info *info, const void *file, size_t bytes);
} ctrt_image_codec;

CTRT_END_DECLS

#endif

/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CTRT_IMAGE_PLUGIN_H
#define CTRT_IMAGE_PLUGIN_H
#include "ctrt/plugin.h"
CTRT_BEGIN_DECLS
typedef struct ctrt_image_info {
    size_t size;
    int64_t height, width;
    int32_t bits;
} ctrt_image_info;
typedef struct ctrt_image_codec {
    size_t size;
    ctrt_status (*describe)(ctrt_image_info *info, const void *file, size_t bytes);
    ctrt_status (*decode)(void *rgb, const ctrt_image_info *info, const void *file, size_t bytes);
} ctrt_image_codec;
CTRT_END_DECLS
#endif

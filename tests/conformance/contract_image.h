/* SPDX-License-Identifier: Apache-2.0 */
/* contract_image.h: small image files for the checks of image decoders. */
#ifndef CTRT_CONTRACT_IMAGE_H
#define CTRT_CONTRACT_IMAGE_H

#include "contract.h"
#include "ctrt/image_plugin.h"

struct image {
    const char *what;                   /* "a grey PNG image" */
    int height, width, bits;
    unsigned char *rgb;                 /* the pixels that a decoder has to write */
    int tolerance;
    unsigned char *file;
    size_t bytes, needed;               /* needed: shorter files lack pixels */
};

/* Makes an image of the variant `variant` of a format; false: the format is not known, or has no such variant. */
bool image_new(struct image *image, const char *format, int variant, int height, int width);
void image_free(struct image *image);

#endif

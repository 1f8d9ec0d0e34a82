/* SPDX-License-Identifier: Apache-2.0 */
/* data/image.h: images in host memory: checks of arguments, decoding of files, samples of datasets of images. */
#ifndef DATA_IMAGE_H
#define DATA_IMAGE_H

#include "ctrt/datasets.h"

#define IMAGE_MAX_SIDE     (1 << 24)            /* so that products of sides and strides fit 64 bits */
#define IMAGE_MAX_CHANNELS 1024
#define IMAGE_MAX_PIXELS   ((int64_t)178956970) /* of a file; PIL warns of more as of a decompression bomb */

/* Check one image, or an image and a result of the same dtype and number of channels. */
ctrt_status image_check(const char *function, const char *argument, const ctrt_image *image);
ctrt_status image_check_pair(const char *function, const ctrt_image *out, const ctrt_image *image);

/* ---- image_file.c: decoding ---- */

/* Reads and decodes the file: u8, three channels, pixel by pixel. Of the options only reduce_depth and exif_orientation
 * are used. On success the caller frees out->pixels with host_free. Messages begin with the path. */
ctrt_status image_file_read(ctrt_image *out, const char *path, const ctrt_image_options *options);
/* Writes into `name` the format of the file whose decoder is missing, or "" if the file can be decoded, as far as its
 * first bytes and `extension` (".png") tell. The file is only read if there is no decoder for `extension`. */
ctrt_status image_file_lacks_decoder(const char **name, const char *path, const char *extension);
/* Writes the size of the image in a PPM or PGM file (pnm.c), the bits of its values (8 or 16) and, if `rgb` is not
 * NULL, its pixels with 8 bits. */
ctrt_status pnm_decode(unsigned char *rgb, int64_t *height, int64_t *width, int *bits, const void *file, size_t bytes);
/* Returns the orientation by the Exif data of a JPEG or PNG file: 1 to 8, 1 if there is none (exif.c). */
int exif_orientation(const void *file, size_t size);

/* ---- image_sample.c: samples of datasets of images ---- */

/* Checks the options for images of the file's size (0: any size) and completes them: no member that has a default is 0.
 * `what` begins messages. */
ctrt_status image_options_check(ctrt_image_options *options, const char *what, int channels, int64_t height,
                                int64_t width);
/* Fills the fields "image" and "label" of a dataset with these options. */
void image_fields(ctrt_field fields[2], const ctrt_image_options *options);
/* Writes the sample's image to field 0 and the label to field 1. */
ctrt_status image_sample(ctrt_sample *sample, const ctrt_image_options *options, const ctrt_image *image);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* ctrt/datasets.h: datasets of common file formats. doc/datasets.md describes the formats.
 *
 * Each function opens files and creates a dataset for the loader of ctrt/data.h; *out owns it (assignment rule of
 * ctrt/base.h). Files stay open or mapped until the last reference to the dataset is released; worker processes share
 * the mapped pages. The datasets can be read by several threads.
 *
 * Errors: CTRT_ERR_IO for files that cannot be read, also if a file becomes shorter while the dataset is used,
 * CTRT_ERR_FORMAT for malformed ones. The message names the file, the place in it and what was expected. For a dataset
 * that the fork server opens too, call these functions from the opener of ctrt_dataset_open. */
#ifndef CTRT_DATASETS_H
#define CTRT_DATASETS_H

#include "ctrt/transforms.h"

CTRT_BEGIN_DECLS

/* ---- images ------------------------------------------------------------------------------------------------------
 *
 * Fields: "image", f32 or u8 (channels, height, width), and "label", i64 (). */

/* How the images of a dataset become samples. All 0: the file's size as f32 from 0 to 1. */
typedef struct ctrt_image_options {
    size_t size;
    int64_t height, width;              /* of the samples; 0: of the file (not for a folder of images) */
    int channels;                       /* a folder of images: 3, or 1 for grey; 0: 3. Others: 0 */
    ctrt_dtype dtype;                   /* CTRT_F32 or CTRT_U8; 0: f32 */
    float mean[4], std[4];              /* of each channel, for f32 (ctrt_image_to_float); std[0] 0: not used */
    /* Writes a sample. NULL: resizes, with antialias, if the sizes differ, then ctrt_image_to_float if f32. With a
     * function of the program, mean and std are not used. */
    ctrt_image_function transform;
    void *user;                         /* its last argument; must stay valid as long as the dataset, also in workers */
    /* Of image files. reduce_depth: values of 16 bits are read with 8; without it they are CTRT_ERR_NOT_SUPPORTED.
     * exif_orientation: images are turned upright by the Exif data of JPEG and PNG files. */
    bool reduce_depth, exif_orientation;
} ctrt_image_options;
#define CTRT_IMAGE_OPTIONS CTRT_SIZED_(ctrt_image_options)

/* ctrt_read_image (ctrt/transforms.h) with options: channels, reduce_depth and exif_orientation; the others must be
 * 0. */
CTRT_API ctrt_status ctrt_read_image_with(ctrt_tensor **out, const char *path, const ctrt_image_options *options);

/* IDX files, the format of MNIST and Fashion-MNIST: images u8 (N, H, W), labels of integers (N). `labels` NULL: without
 * the field "label". `options` NULL: the defaults. The files must not be compressed. */
CTRT_API ctrt_status ctrt_idx_dataset(ctrt_dataset **out, const char *images, const char *labels,
                                      const ctrt_image_options *options);

/* The binary versions of CIFAR-10 and CIFAR-100, from one file or more (data_batch_1.bin, ...; train.bin). COARSE: the
 * label is the superclass. */
typedef enum ctrt_cifar_kind { CTRT_CIFAR10, CTRT_CIFAR100, CTRT_CIFAR100_COARSE } ctrt_cifar_kind;
CTRT_API ctrt_status ctrt_cifar_dataset(ctrt_dataset **out, const char *const *paths, int count, ctrt_cifar_kind kind,
                                        const ctrt_image_options *options);

/* A folder with a sub-folder for each class, as torchvision's ImageFolder. The classes are the names of the sub-folders
 * in sorted order. The samples are the files in and below them, in sorted order, whose extension is that of an image
 * (.jpg .jpeg .png .ppm .bmp .pgm .tif .tiff .webp, in any case). Symbolic links are followed. Formats:
 * ctrt_read_image.
 *
 * options->height and width are required. With a transform of the program they are the size of its result, and it gets
 * the image as decoded: u8, pixel by pixel. CTRT_ERR_NOT_FOUND if there is no class, if a class has no image, or if
 * there is no decoder for some files, which the message names. */
CTRT_API ctrt_status ctrt_image_folder_dataset(ctrt_dataset **out, const char *folder,
                                               const ctrt_image_options *options);
/* Return the name of class `label` of a folder of images, valid as long as the dataset, and the file of a sample; NULL
 * if there is none, or for another dataset. */
CTRT_API const char *ctrt_image_folder_class(const ctrt_dataset *dataset, int64_t label);
CTRT_API const char *ctrt_image_folder_path(const ctrt_dataset *dataset, int64_t index);

/* ---- tables and arrays ------------------------------------------------------------------------------------------- */

typedef struct ctrt_csv_options {
    size_t size;
    char separator;                     /* between columns; 0: ',' */
    bool header;                        /* the first line has names, and is skipped */
    int label;                          /* the column with the label: 1 is the first, -1 the last; 0: none */
    bool label_float;                   /* the label is f32 instead of i64 */
    bool label_classes;                 /* labels are texts; "y" is the place of the label among all of them, sorted */
    bool missing_nan;                   /* empty cells and NA, N/A, NULL, null, None, ? are NaN; else they are errors */
} ctrt_csv_options;
#define CTRT_CSV_OPTIONS CTRT_SIZED_(ctrt_csv_options)

/* A text file of numbers, one sample per line, which is read into memory. Fields: "x", f32 (columns without the
 * label), and, if a label was chosen, "y", i64 () or f32 (). Numbers are as strtod reads them in the C locale. Cells
 * may be in quotes (a quote inside is written twice) and surrounded by spaces, also inside the quotes. Lines end in LF
 * or CR LF; empty lines are skipped. A file compressed by gzip is read with zlib (libz.so.1). `options` NULL: the
 * defaults. */
CTRT_API ctrt_status ctrt_csv_dataset(ctrt_dataset **out, const char *path, const ctrt_csv_options *options);
/* Returns the text of class `label` of a table with label_classes, valid as long as the dataset; NULL if there is none,
 * or for another dataset. */
CTRT_API const char *ctrt_csv_class(const ctrt_dataset *dataset, int64_t label);

/* Arrays of numpy.save, mapped into memory: file k is field names[k]. Sample i is row i of each array, so the arrays
 * have the same first size. Rows of arrays in Fortran order and of big-endian numbers are converted when they are read.
 * CTRT_ERR_NOT_SUPPORTED for types that ctrt lacks. */
CTRT_API ctrt_status ctrt_npy_dataset(ctrt_dataset **out, const char *const *names, const char *const *paths,
                                      int count);

/* The same for IDX files of any type: u8, i8, i16, i32, f32, f64, whose numbers are big-endian. */
CTRT_API ctrt_status ctrt_idx_arrays_dataset(ctrt_dataset **out, const char *const *names, const char *const *paths,
                                             int count);

/* Tensors of a safetensors file, mapped into memory: each is a field. `names`: which of them, and in which order; NULL
 * (with count 0): all, sorted by name. Sample i is row i of each tensor. CTRT_ERR_NOT_FOUND for an unknown name. */
CTRT_API ctrt_status ctrt_safetensors_dataset(ctrt_dataset **out, const char *path, const char *const *names,
                                              int count);

/* ---- text -------------------------------------------------------------------------------------------------------- */

typedef struct ctrt_tokens_options {
    size_t size;
    int bytes;                          /* of a token: 2 or 4, unsigned, little-endian; 0: as the header says, else 2 */
    int64_t length;                     /* tokens of a window; required */
    bool random;                        /* windows at random positions */
    bool raw;                           /* the file has no header, whatever its first bytes are */
    int64_t stride;                     /* between windows that are not random; 0: `length` */
    int64_t samples;                    /* random windows of an epoch; 0: as many as fit side by side */
    int64_t vocabulary;                 /* tokens must be less than this; 0: not checked */
} ctrt_tokens_options;
#define CTRT_TOKENS_OPTIONS CTRT_SIZED_(ctrt_tokens_options)

/* A file of tokens, mapped into memory: without header, with that of llm.c (GPT-2 and Llama 3), or an array of integers
 * of numpy.save. Fields: "x" and "y", i64 (length): a window of the file, and the same window one token later.
 *
 * CTRT_ERR_FORMAT if the file has no window, if a token is negative or not in the vocabulary, or if the file begins as
 * text, as another known format or with an unknown header of llm.c's kind. With options->raw nothing is recognized. */
CTRT_API ctrt_status ctrt_tokens_dataset(ctrt_dataset **out, const char *path, const ctrt_tokens_options *options);

CTRT_END_DECLS

#endif

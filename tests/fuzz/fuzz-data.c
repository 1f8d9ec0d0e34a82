/* SPDX-License-Identifier: Apache-2.0 */
/* The parsers of data files: IDX, numpy.save, tokens, CSV, PPM and PGM. Accepted files must meet the contract of
 * parsers.h. '`' in the input stands for a zero byte, so that the examples can be strings. */
#include "base/host_alloc.h"
#include "data/image.h"
#include "data/parsers.h"
#include "fuzz.h"
#include "tensor/shape.h"

static const char *const fuzz_examples[] = {
    "``\x08\3```\1```\2```\3abcdef", "``\x0c\1```\2abcdefgh", "\x1f\x8b\x08", "``\x0e\x08````",
    "\x93NUMPY\1`:`{'descr': '<f4', 'fortran_order': False, 'shape': (2, 1), }abcdefgh",
    "\x93NUMPY\2`9```{'shape':(), 'descr':\"|u1\",'fortran_order':True} \n                   \n\n\n\nx",
    "1,2,3\n4,5,6\n", "a;b\r\n\n\"1.5\";-2e-3", "\xef\xbb\xbf" "7\t8", "nan,inf\n0x1p4,1e999",
    "\" cat, x\",1\n dog ,2\n\"a\"\"b\", 3",
    "1,NA\n,2\n?,null",
    "\x93NUMPY\1`;`{'descr': '>u2', 'fortran_order': False, 'shape': (2, 1), }abcdefgh",
    "\x88\xd8\x34\1\1```\2```",
    "P5 2 1 255\nab", "P6\n# c\n1 1 15\nabc", "P5 1 2 65535\nabcd",
    "\xff\xd8\xff\xe1`\x1e" "Exif``II*`\x08```\1`\x12\1\3`\1```\6```\xff\xda",
    "\x89PNG\r\n\x1a\n```\x14" "eXIfMM`*```\x08`\1\1\x12`\3```\1`\6``abcd", NULL,
};
static const char *const fuzz_words[] = {
    "`", "\xff\xff\xff\xff", "'shape'", "'descr'", "'<f8'", "(1, )", "4611686018427387904", ",", "\n", "\"", "1e5",
    "P6", " 255\n", NULL,
};

static void check_array(const struct array_header *header, size_t size)
{
    size_t bytes;
    PROMISE(header->ndim >= 0 && header->ndim <= CTRT_MAX_DIMS && header->element > 0 && header->element <= 8);
    PROMISE(header->dtype == 0 || dtype_bytes(header->dtype) == header->element);
    PROMISE(array_bytes(&bytes, header) && bytes == header->bytes);
    PROMISE(header->begin <= size && header->bytes <= size - header->begin);
}

static void try_csv(const uint8_t *data, size_t size)
{
    static const ctrt_csv_options options[] = {
        { .separator = ',' }, { .separator = ';', .header = true }, { .separator = '\t', .label = -1 },
        { .separator = ',', .label = 2, .label_float = true }, { .separator = ' ', .missing_nan = true },
        { .separator = ',', .label = 1, .label_classes = true },
    };
    for (int k = 0; k < 6; k++) {
        struct csv_table table;
        if (csv_parse(&table, data, size, &options[k]) != CTRT_OK)
            continue;
        PROMISE(table.rows >= 1 && table.columns >= 1 && (size_t)(table.rows * table.columns) <= size + 1);
        PROMISE((table.y != NULL) == (options[k].label != 0));
        for (int64_t i = 0; i < table.rows && options[k].label_classes; i++)
            PROMISE(((int64_t *)table.y)[i] >= 0 && ((int64_t *)table.y)[i] < table.class_count);
        csv_free(&table);
    }
}

static void try_pnm(const uint8_t *data, size_t size)
{
    int64_t height, width, again[2];
    int bits;
    const int orientation = exif_orientation(data, size);
    PROMISE(orientation >= 1 && orientation <= 8);
    if (pnm_decode(NULL, &height, &width, &bits, data, size) != CTRT_OK)
        return;
    PROMISE(bits == 8 || bits == 16);
    PROMISE(height >= 1 && width >= 1 && (size_t)(height * width) <= size);
    unsigned char *rgb = malloc((size_t)(height * width * 3));
    PROMISE(rgb != NULL && pnm_decode(rgb, &again[0], &again[1], &bits, data, size) == CTRT_OK);
    PROMISE(again[0] == height && again[1] == width);
    free(rgb);
}

static int fuzz_one(const uint8_t *data, size_t size)
{
    struct array_header header;
    uint8_t *copy = malloc(size > 0 ? size : 1);                /* of this size, so that a sanitizer sees its end */
    PROMISE(copy != NULL);
    for (size_t i = 0; i < size; i++)
        copy[i] = data[i] == '`' ? 0 : data[i];
    if (idx_parse(&header, copy, size) == CTRT_OK) {
        check_array(&header, size);
        PROMISE(header.begin + header.bytes == size);
    }
    if (npy_parse(&header, copy, size) == CTRT_OK)
        check_array(&header, size);
    if (tokens_parse(&header, copy, size, size % 3 * 2, size % 5 == 4) == CTRT_OK) {
        check_array(&header, size);
        PROMISE(header.bytes % header.element == 0);
    }
    try_csv(copy, size);
    try_pnm(copy, size);
    free(copy);
    return 0;
}

FUZZ_MAIN

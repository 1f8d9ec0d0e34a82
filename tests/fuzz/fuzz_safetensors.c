/* SPDX-License-Identifier: Apache-2.0 */
/* The header of a safetensors file, from any bytes. What is accepted must be as safetensors.h promises. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "nn/safetensors.h"
#include "tensor/shape.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct safetensors_header header;
    if (safetensors_parse(&header, data, size) != CTRT_OK)
        return 0;
    size_t bytes = 0;
    uint64_t header_length = 0;
    for (int i = 7; i >= 0; i--)
        header_length = header_length << 8 | data[i];
    for (size_t i = 0; i < header.count; i++) {
        const struct safetensors_entry *entry = &header.entries[i];
        size_t span = entry->end - entry->begin, length = strlen(entry->name);
        if (entry->begin > entry->end || entry->end > size || entry->begin < 8 + header_length
            || span != (size_t)entry->numel * dtype_bytes(entry->dtype))
            abort();                                /* outside the file, or not its shape */
        if (safetensors_find(&header, entry->name) != entry)
            abort();                                /* not found, or two of one name */
        for (size_t at = 0; at < length; ) {
            size_t step = utf8_length((const unsigned char *)entry->name + at, length - at);
            if (step == 0)
                abort();
            at += step;
        }
        bytes += span;
    }
    if (bytes != size - 8 - header_length)
        abort();                                    /* holes or overlaps */
    for (size_t i = 0; i < header.metadata_count; i++)
        if (safetensors_metadata(&header, header.metadata[i].key) != header.metadata[i].value)
            abort();
    safetensors_free(&header);
    return 0;
}

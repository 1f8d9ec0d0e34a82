/* SPDX-License-Identifier: Apache-2.0 */
/* nn/module/hash.c: the SHA-256 of a module's tensors, for comparing runs and ranks to the bit. */
#include "base/sha256.h"
#include "ctrt/checkpoint.h"
#include "nn/module/module.h"
#include "tensor/tensor.h"

/* Adds name, dtype, shape and values, each preceded by its size. */
static ctrt_status hash_add_tensor(struct sha256 *hash, const struct walk_entry *entry)
{
    ctrt_tensor *tensor = entry->tensor;
    const ctrt_dtype dtype = ctrt_tensor_dtype(tensor);
    const char *type = ctrt_dtype_name(dtype);
    const int64_t ndim = ctrt_tensor_ndim(tensor);
    const size_t bytes = (size_t)ctrt_tensor_numel(tensor) * ctrt_dtype_size(dtype);
    HOST_AUTO void *values = host_alloc(bytes + 1);
    ALLOC_CHECK(values, bytes, "the values of a tensor");
    CTRT_TRY(ctrt_context(ctrt_to_host(values, bytes, tensor, dtype), "%s", entry->name));
    sha256_add(hash, entry->name, strlen(entry->name) + 1);
    sha256_add(hash, type, strlen(type) + 1);
    sha256_add(hash, &ndim, sizeof ndim);
    sha256_add(hash, ctrt_tensor_shape(tensor), (size_t)ndim * sizeof(int64_t));
    sha256_add(hash, values, bytes);
    return CTRT_OK;
}

static ctrt_status add_tensors(struct sha256 *hash, ctrt_module *module)
{
    for (int kind = 0; kind < WALK_KINDS; kind++) {
        const struct walk *walk;
        CTRT_TRY(module_walk(&walk, module, (enum walk_kind)kind));
        for (size_t i = 0; i < walk->count; i++)
            if (walk->entries[i].persistent)
                CTRT_TRY(hash_add_tensor(hash, &walk->entries[i]));
    }
    return CTRT_OK;
}

ctrt_status ctrt_module_sha256(char text[65], ctrt_module *module)
{
    struct sha256 hash;
    uint8_t digest[SHA256_BYTES];
    bool write = true;
    NULL_CHECK("module_sha256", text);
    NULL_CHECK("module_sha256", module);
    sha256_begin(&hash);
    CTRT_TRY(ctrt_context(module_event(module, CTRT_MODULE_SAVE_BEGIN, &write), "module_sha256"));
    ctrt_status status = add_tensors(&hash, module);
    CTRT_TRY(ctrt_context(module_event_end(status, module, CTRT_MODULE_SAVE_END, NULL), "module_sha256"));
    sha256_end(digest, &hash);
    for (int i = 0; i < SHA256_BYTES; i++)
        snprintf(text + 2 * i, 3, "%02x", digest[i]);
    return CTRT_OK;
}

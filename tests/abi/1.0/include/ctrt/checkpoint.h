/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CTRT_CHECKPOINT_H
#define CTRT_CHECKPOINT_H
#include "ctrt/optim.h"
CTRT_BEGIN_DECLS
CTRT_API ctrt_status ctrt_save(ctrt_module *module, const char *path);
CTRT_API ctrt_status ctrt_load(ctrt_module *module, const char *path);
CTRT_API ctrt_status ctrt_module_sha256(char text[65], ctrt_module *module);
CTRT_API ctrt_status ctrt_optimizer_save(ctrt_optimizer *optimizer, const char *path);
CTRT_API ctrt_status ctrt_optimizer_load(ctrt_optimizer *optimizer, const char *path);
CTRT_API ctrt_status ctrt_save_tensors(const char *path, const char *const *names, ctrt_tensor *const *tensors,
                                       size_t count);
typedef struct ctrt_metadata {
    const char *key, *value;
} ctrt_metadata;
CTRT_API ctrt_status ctrt_save_tensors_with_metadata(const char *path, const char *const *names,
                                                     ctrt_tensor *const *tensors, size_t count,
                                                     const ctrt_metadata *metadata, size_t metadata_count);
typedef struct ctrt_tensor_file ctrt_tensor_file;
CTRT_API ctrt_status ctrt_tensor_file_open(ctrt_tensor_file **out, const char *path);
CTRT_API void ctrt_tensor_file_release(ctrt_tensor_file **file);
CTRT_API size_t ctrt_tensor_file_count(const ctrt_tensor_file *file);
CTRT_API const char *ctrt_tensor_file_name(const ctrt_tensor_file *file, size_t index);
CTRT_API const char *ctrt_tensor_file_dtype(const ctrt_tensor_file *file, size_t index);
CTRT_API const char *ctrt_tensor_file_metadata(const ctrt_tensor_file *file, const char *key);
CTRT_API const char *ctrt_tensor_file_metadata_key(const ctrt_tensor_file *file, size_t index);
CTRT_API ctrt_status ctrt_tensor_file_read(ctrt_tensor **out, ctrt_tensor_file *file, const char *name,
                                           ctrt_device *device);
CTRT_END_DECLS
#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* ctrt/checkpoint.h: saves and loads modules and optimizers as safetensors files.
 *
 * A regular file is written under a temporary name in the same folder, synced and renamed, so that a failed or
 * interrupted save leaves the old file intact. The new file has the permissions of the file that it replaces, and
 * its owner if the process may set it; other hard links keep the old contents. Symbolic links at the end of `path`
 * are followed, except those of another user in a world-writable folder with the sticky bit. A pipe or a device is
 * written to in place. Opening a pipe waits for a reader; if the reader exits, SIGPIPE is raised unless the program
 * ignores it.
 *
 * The strategy `sharded` can save a checkpoint in parts (CTRT_SHARDED_CHECKPOINT=parts, doc/sharded.md): `path` is
 * then an index, next to which each rank writes a safetensors file PATH.a.RANK-of-RANKS (or .b.) with its rows of each
 * tensor, which need not fit on one machine. All functions that read checkpoints read them as one file. The index is
 * written when all parts are complete, so that a failed or interrupted save leaves the old checkpoint intact. If a
 * part is missing (CTRT_ERR_IO), truncated or of another save (CTRT_ERR_FORMAT), the message names it.
 *
 * Every field of a file's header is validated before use. Errors: CTRT_ERR_IO (also if another process truncates the
 * file while it is read), CTRT_ERR_FORMAT (malformed file). A tensor whose dtype or number of dimensions ctrt lacks
 * does not prevent the use of the others; reading it is CTRT_ERR_NOT_SUPPORTED. */
#ifndef CTRT_CHECKPOINT_H
#define CTRT_CHECKPOINT_H

#include "ctrt/optim.h"

CTRT_BEGIN_DECLS

/* Saves parameters and persistent buffers by dotted name. They may be on any device. With a module that is divided over
 * ranks all of them must save; in parts, all succeed or all fail, with a message that names the rank. */
CTRT_API ctrt_status ctrt_save(ctrt_module *module, const char *path);
/* Loads a file into a module with the same names, shapes and dtypes, which may be on any device. Missing, surplus or
 * mismatching tensors are CTRT_ERR_STATE with a message that names them. The values are written into the module's
 * tensors, whose addresses do not change. All of them are first read into host memory, which takes as many bytes as
 * these tensors (of a divided module, as its shards), so that an error of the file or CTRT_ERR_OUT_OF_MEMORY of the
 * host changes nothing. Only an error of the device while values are copied to it can leave the module partly loaded;
 * the message says so. */
CTRT_API ctrt_status ctrt_load(ctrt_module *module, const char *path);
/* Writes the SHA-256 of the names, dtypes, shapes and values of what ctrt_save would write, as 64 hexadecimal digits
 * and a NUL byte. Equal for equal bits, wherever the tensors are. Waits for the values. */
CTRT_API ctrt_status ctrt_module_sha256(char text[65], ctrt_module *module);
/* ctrt_optimizer_save writes the optimizer's options, and the state and step count of each parameter.
 * ctrt_optimizer_load requires the same kind of optimizer over parameters of the same names and shapes
 * (CTRT_ERR_STATE) and converts state of any floating dtype. Options that the constructor would reject and step
 * counts above 2^53 are CTRT_ERR_FORMAT. A failed load changes nothing, with one exception: if a step of the
 * optimizer is in a captured graph, so that the state keeps its addresses, an error of the device can leave it
 * partly loaded. */
CTRT_API ctrt_status ctrt_optimizer_save(ctrt_optimizer *optimizer, const char *path);
CTRT_API ctrt_status ctrt_optimizer_load(ctrt_optimizer *optimizer, const char *path);

/* Saves `count` named tensors. The names must be UTF-8 and unique. */
CTRT_API ctrt_status ctrt_save_tensors(const char *path, const char *const *names, ctrt_tensor *const *tensors,
                                       size_t count);
/* The same with `metadata_count` pairs of strings, the file's __metadata__. They must be UTF-8, the keys unique. */
typedef struct ctrt_metadata {
    const char *key, *value;
} ctrt_metadata;
CTRT_API ctrt_status ctrt_save_tensors_with_metadata(const char *path, const char *const *names,
                                                     ctrt_tensor *const *tensors, size_t count,
                                                     const ctrt_metadata *metadata, size_t metadata_count);

/* An open file, for reading tensor by tensor; uses one file descriptor, and one per part. Several threads may read
 * from it at the same time. */
typedef struct ctrt_tensor_file ctrt_tensor_file;
/* Opens the safetensors file `path` and validates its header. On success *out owns the file. */
CTRT_API ctrt_status ctrt_tensor_file_open(ctrt_tensor_file **out, const char *path);
/* Closes *file and sets it to NULL. */
CTRT_API void ctrt_tensor_file_release(ctrt_tensor_file **file);
CTRT_API size_t ctrt_tensor_file_count(const ctrt_tensor_file *file);
/* Returns the name of the `index`-th tensor, valid as long as the file is open; NULL past the last one. */
CTRT_API const char *ctrt_tensor_file_name(const ctrt_tensor_file *file, size_t index);
/* Returns its dtype in the words of the format ("F32", "F8_E4M3"), valid as long as the file is open; NULL past the
 * last one. */
CTRT_API const char *ctrt_tensor_file_dtype(const ctrt_tensor_file *file, size_t index);
/* Returns the value of `key` in the file's __metadata__, valid as long as the file is open; NULL if there is none. */
CTRT_API const char *ctrt_tensor_file_metadata(const ctrt_tensor_file *file, const char *key);
/* Returns the `index`-th key of __metadata__, in sorted order, valid as long as the file is open; NULL past the last
 * one. */
CTRT_API const char *ctrt_tensor_file_metadata_key(const ctrt_tensor_file *file, size_t index);
/* Creates a tensor on `device` (NULL: the default device) with the values of the tensor `name` in the file.
 * CTRT_ERR_NOT_FOUND, with the nearest name in the message, if there is none of that name; CTRT_ERR_NOT_SUPPORTED if
 * ctrt lacks its dtype or it has more than CTRT_MAX_DIMS dimensions. */
CTRT_API ctrt_status ctrt_tensor_file_read(ctrt_tensor **out, ctrt_tensor_file *file, const char *name,
                                           ctrt_device *device);

CTRT_END_DECLS

#endif

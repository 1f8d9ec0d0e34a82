/* SPDX-License-Identifier: Apache-2.0 */
/* ctrt/checkpoint.h: state of modules and optimizers as safetensors files.
 *
 * A regular file is written under a temporary name in the same folder, synced and renamed, so that a failed or
 * interrupted save leaves the old file. The new file has the permissions of the file that it replaces, and its owner as
 * far as the process may set it; other hard links keep the old contents. Symbolic links at the end of `path` are
 * followed, except another user's in a folder with the sticky bit that everybody may write to. A pipe or a device is
 * written to in place. A pipe is opened when it has a reader, for which the call waits, and raises SIGPIPE when the
 * reader has gone, unless the program ignores that.
 *
 * Every field of a file's header is checked before use. A file that another process makes shorter while it is read is
 * CTRT_ERR_IO. Errors: CTRT_ERR_IO, CTRT_ERR_FORMAT (malformed file), CTRT_ERR_NOT_SUPPORTED (a data type that ctrt
 * lacks). */
#ifndef CTRT_CHECKPOINT_H
#define CTRT_CHECKPOINT_H

#include "ctrt/optim.h"

CTRT_BEGIN_DECLS

/* Parameters and persistent buffers by dotted name, from whichever device. */
CTRT_API ctrt_status ctrt_save(ctrt_module *module, const char *path);
/* Into a module of the same names, shapes and dtypes, on whichever device; missing, surplus or ill-fitting tensors
 * are CTRT_ERR_STATE that names them. The values are written into the module's tensors, whose addresses stay. All of
 * them are read into host memory first, which takes as many bytes as the file has, so that an error of the file or
 * CTRT_ERR_OUT_OF_MEMORY of the host changes nothing. Only an error of the device itself while values are copied to it
 * can leave a part of the module loaded; the message says so then. */
CTRT_API ctrt_status ctrt_load(ctrt_module *module, const char *path);
/* The optimizer's options, and each parameter's state and number of steps. Loading requires the same kind of
 * optimizer over parameters of the same names and shapes (state of any floating dtype is converted). Options that the
 * constructor would refuse are CTRT_ERR_FORMAT, and so is a number of steps above 2^53. A failed load changes nothing;
 * only of an optimizer whose step is in a captured graph, and whose state keeps its addresses, an error of the device
 * may leave a part loaded. */
CTRT_API ctrt_status ctrt_optimizer_save(ctrt_optimizer *optimizer, const char *path);
CTRT_API ctrt_status ctrt_optimizer_load(ctrt_optimizer *optimizer, const char *path);

/* Named tensors, without modules. Names are UTF-8 and differ. */
CTRT_API ctrt_status ctrt_save_tensors(const char *path, const char *const *names, ctrt_tensor *const *tensors,
                                       size_t count);

/* A file that stays open, with a descriptor, for reading tensor by tensor. May be read from several threads at once. */
typedef struct ctrt_tensor_file ctrt_tensor_file;
CTRT_API ctrt_status ctrt_tensor_file_open(ctrt_tensor_file **out, const char *path);
CTRT_API void ctrt_tensor_file_release(ctrt_tensor_file **file);
CTRT_API size_t ctrt_tensor_file_count(const ctrt_tensor_file *file);
/* The name of the `index`-th tensor; lives as long as the file. NULL past the last. */
CTRT_API const char *ctrt_tensor_file_name(const ctrt_tensor_file *file, size_t index);
/* A value of the file's __metadata__; NULL when there is none of that key. Lives as long as the file. */
CTRT_API const char *ctrt_tensor_file_metadata(const ctrt_tensor_file *file, const char *key);
/* Reads one tensor by name onto `device` (NULL: default), as a copy. */
CTRT_API ctrt_status ctrt_tensor_file_read(ctrt_tensor **out, ctrt_tensor_file *file, const char *name,
                                           ctrt_device *device);

CTRT_END_DECLS

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* nn/checkpoint/tensor_file.c: reads tensors from open safetensors files. */
#include "nn/checkpoint/tensor_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/base.h"
#include "base/descriptor.h"
#include "base/host_alloc.h"
#include "base/thread.h"
#include "memory/pool.h"
#include "stream/stream.h"
#include "tensor/shape.h"
#include "tensor/tensor.h"

#define BUFFER_BYTES ((size_t)16 << 20)

/* Reads exactly `bytes` bytes at `offset`. The file is not mapped, because access to a mapped page raises SIGBUS if
 * another process has truncated the file. */
static ctrt_status tensor_file_read_at(void *to, int fd, size_t bytes, size_t offset)
{
    char *at = to;
    while (bytes > 0) {
        const ssize_t got = pread(fd, at, bytes, (off_t)offset);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return ctrt_fail(CTRT_ERR_IO, "cannot read byte %zu: %s", offset, strerror(errno));
        if (got == 0)
            return ctrt_fail(CTRT_ERR_IO, "the file was truncated after it was opened: byte %zu is missing",
                             offset);
        at += got;
        bytes -= (size_t)got;
        offset += (size_t)got;
    }
    return CTRT_OK;
}

static ctrt_status tensor_file_header_read(ctrt_tensor_file *file)
{
    unsigned char first[8];
    struct stat about;
    size_t bytes;
    if (fstat(file->fd, &about) != 0)
        return ctrt_fail(CTRT_ERR_IO, "%s", strerror(errno));
    if (!S_ISREG(about.st_mode))
        return ctrt_fail(CTRT_ERR_IO, "not a regular file");
    const size_t size = (size_t)about.st_size;
    CTRT_TRY(tensor_file_read_at(first, file->fd, MIN(size, sizeof first), 0));
    CTRT_TRY(safetensors_header_bytes(&bytes, first, size));
    HOST_AUTO unsigned char *header = host_alloc(bytes);
    ALLOC_CHECK(header, bytes, "a file's header");
    memcpy(header, first, sizeof first);            /* not read again, because the file may have changed */
    CTRT_TRY(tensor_file_read_at(header + sizeof first, file->fd, bytes - sizeof first, sizeof first));
    return safetensors_parse(&file->header, header, size);
}

void ctrt_tensor_file_release(ctrt_tensor_file **file)
{
    CANCEL_DISABLED;
    if (file == NULL || *file == NULL)
        return;
    for (size_t i = 0; i < (*file)->part_count; i++)
        ctrt_tensor_file_release(&(*file)->parts[i]);
    host_free((*file)->parts);
    safetensors_free(&(*file)->header);
    if ((*file)->fd >= 0)
        close((*file)->fd);
    host_free(*file);
    *file = NULL;
}

ctrt_status tensor_file_open_one(ctrt_tensor_file **out, const char *path)
{
    CTRT_AUTO(tensor_file) file = host_calloc(sizeof *file);
    ALLOC_CHECK(file, sizeof(ctrt_tensor_file), "an open file");
    do
        file->fd = fd_above_stdio(open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK));   /* does not wait for a pipe */
    while (file->fd < 0 && errno == EINTR);
    if (file->fd < 0)
        return ctrt_fail(CTRT_ERR_IO, "cannot open %.500s: %s", path, strerror(errno));
    CTRT_TRY(ctrt_context(tensor_file_header_read(file), "%.500s", path));
    *out = file;
    file = NULL;
    return CTRT_OK;
}

ctrt_status ctrt_tensor_file_open(ctrt_tensor_file **out, const char *path)
{
    CANCEL_DISABLED;
    CTRT_AUTO(tensor_file) file = NULL;
    NULL_CHECK("tensor_file_open", out);
    NULL_CHECK("tensor_file_open", path);
    CTRT_TRY(tensor_file_open_one(&file, path));
    CTRT_TRY(parts_open(file, path));
    ctrt_tensor_file *old = *out;
    *out = file;
    file = old;
    return CTRT_OK;
}

ctrt_status tensor_file_section(ctrt_tensor_file **out, const ctrt_tensor_file *file, const char *prefix)
{
    const struct safetensors_header *from = &file->header;
    const size_t length = strlen(prefix), metadata_bytes = from->metadata_count * sizeof *from->metadata;
    CTRT_AUTO(tensor_file) section = host_calloc(sizeof *section);
    ALLOC_CHECK(section, sizeof(ctrt_tensor_file), "an open file");
    struct safetensors_header *to = &section->header;
    section->fd = fcntl(file->fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
    if (section->fd < 0)
        return ctrt_fail(CTRT_ERR_IO, "cannot copy a file descriptor: %s", strerror(errno));
    to->entries = host_alloc((from->count + 1) * sizeof *to->entries);
    to->metadata = host_alloc(metadata_bytes + 1);
    if (to->entries == NULL || to->metadata == NULL)
        return out_of_memory(from->count * sizeof *to->entries + metadata_bytes, "a list of tensors");
    if (metadata_bytes > 0)
        memcpy(to->metadata, from->metadata, metadata_bytes);
    to->metadata_count = from->metadata_count;
    for (size_t i = 0; i < from->count; i++)
        if (strncmp(from->entries[i].name, prefix, length) == 0 && from->entries[i].name[length] == '.') {
            to->entries[to->count] = from->entries[i];
            to->entries[to->count++].name += length + 1;
        }
    CTRT_TRY(safetensors_sort(to));
    *out = section;
    section = NULL;
    return CTRT_OK;
}

size_t ctrt_tensor_file_count(const ctrt_tensor_file *file)
{
    return file ? file->header.count : 0;
}

const char *ctrt_tensor_file_name(const ctrt_tensor_file *file, size_t index)
{
    return file && index < file->header.count ? file->header.entries[index].name : NULL;
}

const char *ctrt_tensor_file_dtype(const ctrt_tensor_file *file, size_t index)
{
    return file && index < file->header.count ? file->header.entries[index].format_dtype : NULL;
}

const char *ctrt_tensor_file_metadata_key(const ctrt_tensor_file *file, size_t index)
{
    return file && index < file->header.metadata_count ? file->header.metadata[index].key : NULL;
}

const char *ctrt_tensor_file_metadata(const ctrt_tensor_file *file, const char *key)
{
    return file && key ? safetensors_metadata(&file->header, key) : NULL;
}

/* ---- reading ---- */

/* Reads elements of a divided tensor, each from the part that has it. */
static ctrt_status divided_values(char *to, const ctrt_tensor_file *file, const struct safetensors_entry *entry,
                                  int64_t from, int64_t count)
{
    for (size_t i = 0; i < file->part_count && count > 0; i++) {
        const struct safetensors_entry *rows = safetensors_find(&file->parts[i]->header, entry->name);
        const int64_t here = MAX(MIN(count, rows->numel - from), 0);
        if (here > 0)
            CTRT_TRY(tensor_file_values(to, file->parts[i], rows, from, here));
        to += (size_t)here * dtype_bytes(entry->dtype);
        count -= here;
        from = MAX(from - rows->numel, 0);
    }
    return CTRT_OK;
}

ctrt_status tensor_file_values(void *to, const ctrt_tensor_file *file, const struct safetensors_entry *entry,
                               int64_t from, int64_t count)
{
    const size_t each = dtype_bytes(entry->dtype);
    if (entry->divided)
        return divided_values(to, file, entry, from, count);
    CTRT_TRY(ctrt_context(tensor_file_read_at(to, file->fd, (size_t)count * each, entry->begin + (size_t)from * each),
                          "reading \"%s\"", entry->name));
    if (entry->dtype == CTRT_BOOL)                  /* a file may contain bool bytes other than 0 and 1 */
        for (int64_t i = 0; i < count; i++)
            ((unsigned char *)to)[i] = ((unsigned char *)to)[i] != 0;
    return CTRT_OK;
}

/* Returns whether the host may write directly to the memory of a new tensor. */
static bool host_writes(const ctrt_tensor *tensor)
{
    return device_host_memory(tensor->device) && !dry_run_on(tensor->device) && !tensor->storage->moves;
}

/* Reads the values from element `first` on through a buffer of at most BUFFER_BYTES in host memory. */
static ctrt_status read_buffered(ctrt_tensor *tensor, const ctrt_tensor_file *file,
                                 const struct safetensors_entry *entry, int64_t first)
{
    const int64_t numel = ctrt_tensor_numel(tensor);
    const int64_t most = MIN(numel, (int64_t)(BUFFER_BYTES / dtype_bytes(entry->dtype)));
    const size_t bytes = (size_t)most * dtype_bytes(entry->dtype);
    CTRT_AUTO(tensor) flat = NULL, part = NULL;
    CTRT_TRY(ctrt_reshape(&flat, tensor, CTRT_SHAPE(numel)));
    HOST_AUTO void *buffer = host_alloc(bytes);
    ALLOC_CHECK(buffer, bytes, "a buffer for a file's values");
    for (int64_t from = 0; from < numel; from += most) {
        const int64_t count = MIN(most, numel - from);
        CTRT_TRY(tensor_file_values(buffer, file, entry, first + from, count));
        CTRT_TRY(ctrt_narrow(&part, flat, 0, from, count));
        CTRT_TRY(ctrt_from_host_(part, buffer, count, entry->dtype));
    }
    return CTRT_OK;
}

ctrt_status tensor_file_part(ctrt_tensor **out, const ctrt_tensor_file *file, const struct safetensors_entry *entry,
                             int64_t from, ctrt_ints shape, ctrt_device *device)
{
    CTRT_AUTO(tensor) tensor = NULL;
    CTRT_TRY(ctrt_empty(&tensor, shape, entry->dtype, device));
    if (ctrt_tensor_numel(tensor) > 0)
        CTRT_TRY(host_writes(tensor)
                     ? tensor_file_values(tensor->view.data, file, entry, from, ctrt_tensor_numel(tensor))
                     : read_buffered(tensor, file, entry, from));
    ctrt_tensor_assign(out, tensor);
    return CTRT_OK;
}

ctrt_status ctrt_tensor_file_read(ctrt_tensor **out, ctrt_tensor_file *file, const char *name, ctrt_device *device)
{
    CANCEL_DISABLED;
    NULL_CHECK("tensor_file_read", out);
    NULL_CHECK("tensor_file_read", file);
    NULL_CHECK("tensor_file_read", name);
    const struct safetensors_entry *entry = safetensors_find(&file->header, name);
    if (entry)
        CTRT_TRY(ctrt_context(safetensors_readable(entry), "tensor_file_read"));
    if (entry)
        return ctrt_context(tensor_file_part(out, file, entry, 0, ctrt_ints_of(entry->shape, entry->ndim), device),
                            "reading \"%s\"", name);

    HOST_AUTO const char **names = host_alloc((file->header.count + 1) * sizeof *names);
    ALLOC_CHECK(names, (file->header.count + 1) * sizeof *names, "the names in a file");
    for (size_t i = 0; i < file->header.count; i++)
        names[i] = file->header.entries[i].name;
    const char *nearest = nearest_word(name, names, file->header.count);
    return ctrt_fail(CTRT_ERR_NOT_FOUND, "tensor_file_read: no tensor \"%s\"%s%s%s", name,
                     nearest ? "; did you mean \"" : "", nearest ? nearest : "", nearest ? "\"?" : "");
}

bool place_fits(const struct safetensors_entry *entry, const ctrt_module_place *place)
{
    return shape_equal(entry->shape, entry->ndim, place->shape, place->ndim);
}

/* ---- name lists for messages ---- */

void name_list_add(struct name_list *list, const char *format, ...)
{
    char words[160];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(words, sizeof words, format, arguments);
    va_end(arguments);
    list->total++;
    if (list->named + 1 < list->total || list->length + strlen(words) + 32 > sizeof list->text)
        return;                         /* after the first name that does not fit, names are only counted */
    list->length += (size_t)sprintf(list->text + list->length, "%s%s", list->named ? ", " : "", words);
    list->named++;
}

const char *name_list_end(struct name_list *list)
{
    if (list->named < list->total)
        snprintf(list->text + list->length, sizeof list->text - list->length, " and %zu more",
                 list->total - list->named);
    return list->text;
}

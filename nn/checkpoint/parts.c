/* SPDX-License-Identifier: Apache-2.0 */
/* nn/checkpoint/parts.c: saves modules and optimizers in parts. */
#include "nn/checkpoint/parts.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/descriptor.h"
#include "base/hash.h"
#include "nn/module/module.h"

#define MOST_METADATA 8

ctrt_status places_find(ctrt_module *module, ctrt_module_place *places, size_t count)
{
    ctrt_module_rows rows = { places, count };
    for (size_t i = 0; i < count; i++) {
        ctrt_module_place *place = &places[i];
        *place = (ctrt_module_place){ .tensor = place->tensor, .ndim = ctrt_tensor_ndim(place->tensor) };
        memcpy(place->shape, ctrt_tensor_shape(place->tensor), (size_t)place->ndim * sizeof *place->shape);
    }
    return module_event(module, CTRT_MODULE_ROWS, &rows);
}

/* ---- the path ---- */

/* Finds the folder of the parts, and the checkpoint that is replaced. */
static ctrt_status common_find(struct parts_save *p)
{
    CTRT_AUTO(tensor_file) file = NULL;
    struct stat about;
    if (realpath(p->path, p->common) == NULL) {
        if (errno != ENOENT || strlen(p->path) >= sizeof p->common)
            return ctrt_fail(CTRT_ERR_IO, "%s", strerror(errno != ENOENT ? errno : ENAMETOOLONG));
        strcpy(p->common, p->path);
        return CTRT_OK;
    }
    if (stat(p->common, &about) != 0 || !S_ISREG(about.st_mode))
        return ctrt_fail(CTRT_ERR_IO, "not a regular file, so there is no place for parts next to it");
    p->mode = about.st_mode & 07777;
    const ctrt_status status = tensor_file_open_one(&file, p->common);
    if (status != CTRT_OK)                          /* a file of another format is replaced */
        return status == CTRT_ERR_FORMAT || status == CTRT_ERR_NOT_SUPPORTED ? CTRT_OK : status;
    (void)parts_header_read(&p->before, file);
    return CTRT_OK;
}

/* Chooses a number, whose lowest bit selects the names that the present checkpoint does not use. */
static ctrt_status number_choose(struct parts_save *p)
{
    if (getrandom(&p->save, sizeof p->save, 0) != (ssize_t)sizeof p->save)
        return ctrt_fail(CTRT_ERR_IO, "getrandom: %s", strerror(errno));
    p->save = (p->save & ~UINT64_C(1)) | (p->before.count > 0 ? ~p->before.save & 1 : 0);
    return CTRT_OK;
}

ctrt_status parts_begin(struct parts_save *p, ctrt_module *module, ctrt_optimizer *optimizer, const char *path)
{
    *p = (struct parts_save){ .path = path, .module = module,
                              .parts = { .optimizer = optimizer, .write = true } };
    CTRT_TRY(module_event(module, CTRT_MODULE_SAVE_PARTS, &p->parts));
    if (p->parts.count == 0)
        return CTRT_OK;
    CTRT_TRY(common_find(p));
    return number_choose(p);
}

/* ---- files ---- */

static bool writes_index(const struct parts_save *p)
{
    return p->parts.write && p->parts.part == 0;
}

/* Writes those of the items that are divided, or those that are not, with the numbers of the save as metadata. The rows
 * of a tensor without dimensions are one element, which the process that has it writes to the index. */
static ctrt_status items_write(const struct parts_save *p, const char *path, int part,
                               const struct safetensors_item *items, size_t count, const ctrt_metadata *more,
                               size_t more_count)
{
    char texts[3][24];
    ctrt_metadata metadata[MOST_METADATA] = {
        { PARTS_KEY, texts[0] }, { SAVE_KEY, texts[1] }, { PART_KEY, texts[2] },
    };
    size_t pairs = part < 0 ? 2 : 3, n = 0;
    ctrt_status status = CTRT_OK;
    snprintf(texts[0], sizeof texts[0], "%d", (int)p->parts.count);
    snprintf(texts[1], sizeof texts[1], "%016llx", (unsigned long long)p->save);
    snprintf(texts[2], sizeof texts[2], "%d", part);
    for (size_t i = 0; i < more_count && pairs < MOST_METADATA; i++)
        metadata[pairs++] = more[i];
    HOST_AUTO struct safetensors_item *chosen = host_calloc((count + 1) * sizeof *chosen);
    ALLOC_CHECK(chosen, (count + 1) * sizeof *chosen, "a list of tensors");
    for (size_t i = 0; i < count && status == CTRT_OK; i++) {
        const bool divided = items[i].place != NULL && items[i].place->ndim > 0;
        if (divided != (part >= 0))
            continue;
        chosen[n].name = items[i].name;
        if (divided || items[i].place == NULL)
            chosen[n++].tensor = ctrt_tensor_retain(items[i].tensor);
        else
            status = ctrt_view_as(&chosen[n++].tensor, items[i].tensor, CTRT_SCALAR_SHAPE);
    }
    if (status == CTRT_OK)
        status = safetensors_write(path, chosen, n, metadata, pairs);
    for (size_t i = 0; i < n; i++)
        ctrt_tensor_release(&chosen[i].tensor);
    return ctrt_context(status, "%.500s", path);
}

/* Creates the file with the permissions of the index, which the writer of the file keeps. */
static ctrt_status permissions_copy(const struct parts_save *p, const char *path)
{
    if (p->mode == 0)
        return CTRT_OK;
    const int fd = fd_above_stdio(open(path, O_CREAT | O_WRONLY | O_CLOEXEC | O_NOFOLLOW, 0600));
    const bool failed = fd < 0 || fchmod(fd, p->mode) != 0;
    const int error = errno;
    if (fd >= 0)
        close(fd);
    return failed ? ctrt_fail(CTRT_ERR_IO, "%.500s: %s", path, strerror(error)) : CTRT_OK;
}

static ctrt_status part_write(const struct parts_save *p, const char *path, const struct safetensors_item *items,
                              size_t count)
{
    CTRT_TRY(permissions_copy(p, path));
    return items_write(p, path, p->parts.part, items, count, NULL, 0);
}

static void parts_remove(const struct parts_save *p)
{
    char path[PATH_MAX];
    for (int i = 0; i < p->before.count; i++)
        if (parts_path(path, p->common, p->before.save, i, p->before.count) == CTRT_OK)
            (void)unlink(path);
}

/* ---- the order of the steps ---- */

static uint64_t path_hash(const struct parts_save *p)
{
    return hash_bytes(HASH_START, p->path, strlen(p->path));
}

/* Compares the status of all processes. Writes the first one's number of the save, and hash of the path, to `first`. */
static ctrt_status agree(const struct parts_save *p, ctrt_status status, uint64_t first[2])
{
    ctrt_module_agreement agreement = { .status = status, .numbers = { p->save, path_hash(p) } };
    const ctrt_status all = module_event(p->module, CTRT_MODULE_AGREE, &agreement);
    if (first != NULL)
        memcpy(first, agreement.numbers, sizeof agreement.numbers);
    return all != CTRT_OK ? all : status;
}

ctrt_status parts_write(struct parts_save *p, ctrt_status status, const struct safetensors_item *items, size_t count,
                        const ctrt_metadata *metadata, size_t metadata_count)
{
    char path[PATH_MAX] = "";
    uint64_t first[2];
    CTRT_TRY(agree(p, status, first));
    p->save = first[0];
    if (first[1] != path_hash(p))
        status = ctrt_fail(CTRT_ERR_INVALID_ARGUMENT, "the process of part 0 saves to another path; all must save to "
                           "the same one");
    else if (p->parts.write)
        status = parts_path(path, p->common, p->save, p->parts.part, p->parts.count);
    if (status == CTRT_OK && p->parts.write)
        status = part_write(p, path, items, count);

    const ctrt_status all = agree(p, status, NULL);
    /* If the communicator has failed, the process of part 0 may have written the index already. */
    if (all != CTRT_OK && *path != '\0' && (status != CTRT_OK || all != CTRT_ERR_COMM))
        (void)unlink(path);
    CTRT_TRY(all);

    if (writes_index(p))
        status = items_write(p, p->common, -1, items, count, metadata, metadata_count);
    CTRT_TRY(agree(p, status, NULL));
    if (writes_index(p))
        parts_remove(p);
    return CTRT_OK;
}

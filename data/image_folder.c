/* SPDX-License-Identifier: Apache-2.0 */
/* data/image_folder.c: a folder of images with a sub-folder for each class. */
#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <strings.h>
#include <sys/stat.h>

#include "base/array.h"
#include "base/base.h"
#include "base/descriptor.h"
#include "base/host_alloc.h"
#include "data/dataset.h"
#include "data/image.h"

#define DEEPEST 32                      /* folders below a class; Linux follows up to 40 symbolic links in a path */

struct names {
    char **items;
    size_t count, capacity;
};

struct folder_state {
    char *folder;
    struct names classes, paths;        /* paths: of the samples */
    int64_t *first;                     /* of each class: index of its first sample; at the end, the length */
    ctrt_image_options options;
};

static bool is_image(const char *name)
{
    static const char *const extensions[] = { ".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff",
                                              ".webp" };
    const size_t length = strlen(name);
    for (size_t i = 0; i < COUNT_OF(extensions); i++) {
        const size_t bytes = strlen(extensions[i]);
        if (length >= bytes && strcasecmp(name + length - bytes, extensions[i]) == 0)
            return true;
    }
    return false;
}

/* ---- lists of names ---- */

static void names_free(struct names *names)
{
    for (size_t i = 0; i < names->count; i++)
        host_free(names->items[i]);
    host_free(names->items);
    *names = (struct names){ 0 };
}

static ctrt_status names_add(struct names *names, const char *name)
{
    CTRT_TRY(ARRAY_RESERVE(names->items, names->capacity, names->count, "a list of files"));
    char *copy = host_strdup(name);
    ALLOC_CHECK(copy, strlen(name) + 1, "a list of files");
    names->items[names->count++] = copy;
    return CTRT_OK;
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static void names_sort(struct names *names)
{
    if (names->count > 1)
        qsort(names->items, names->count, sizeof names->items[0], compare_names);
}

/* ---- reading folders ---- */

static ctrt_status join(char out[PATH_MAX], const char *folder, const char *name)
{
    const int length = snprintf(out, PATH_MAX, "%s/%s", folder, name);
    return length < PATH_MAX ? CTRT_OK
                             : ctrt_fail(CTRT_ERR_IO, "%.500s/%.255s: the path is too long", folder, name);
}

/* Adds the names of the folder's sub-folders and of its images, sorted. `folders` or `images` may be NULL. */
static ctrt_status list_folder(struct names *folders, struct names *images, const char *folder)
{
    DIR *dir = opendir_above_stdio(folder);
    ctrt_status status = CTRT_OK;
    struct dirent *entry;
    if (dir == NULL)
        return ctrt_fail(CTRT_ERR_IO, "%.500s: cannot open the folder: %s", folder, strerror(errno));
    while (status == CTRT_OK && (errno = 0, entry = readdir(dir)) != NULL) {
        char path[PATH_MAX];
        struct stat about;
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
            continue;
        status = join(path, folder, entry->d_name);
        if (status != CTRT_OK)
            break;
        const bool is_folder = stat(path, &about) == 0 && S_ISDIR(about.st_mode);
        if (is_folder && folders != NULL)
            status = names_add(folders, entry->d_name);
        else if (!is_folder && images != NULL && is_image(entry->d_name))
            status = names_add(images, entry->d_name);
    }
    if (status == CTRT_OK && errno != 0)
        status = ctrt_fail(CTRT_ERR_IO, "%.500s: cannot read the folder: %s", folder, strerror(errno));
    closedir(dir);
    if (folders != NULL)
        names_sort(folders);
    if (images != NULL)
        names_sort(images);
    return status;
}

/* Adds `folder` and all folders below it. */
static ctrt_status walk(struct names *out, const char *folder, int depth)
{
    struct names folders = { 0 };
    if (depth > DEEPEST)
        return ctrt_fail(CTRT_ERR_IO, "%.500s: more than %d folders below each other; do symbolic links form a circle?",
                         folder, DEEPEST);
    CTRT_TRY(names_add(out, folder));
    ctrt_status status = list_folder(&folders, NULL, folder);
    for (size_t i = 0; i < folders.count && status == CTRT_OK; i++) {
        char path[PATH_MAX];
        status = join(path, folder, folders.items[i]);
        if (status == CTRT_OK)
            status = walk(out, path, depth + 1);
    }
    names_free(&folders);
    return status;
}

/* Adds the images of a class, in the order of torchvision: sorted by the path of their folder, then by name. */
static ctrt_status add_class(struct names *paths, const char *folder)
{
    struct names folders = { 0 };
    ctrt_status status = walk(&folders, folder, 0);
    names_sort(&folders);
    for (size_t i = 0; i < folders.count && status == CTRT_OK; i++) {
        struct names images = { 0 };
        char path[PATH_MAX];
        status = list_folder(NULL, &images, folders.items[i]);
        for (size_t k = 0; k < images.count && status == CTRT_OK; k++) {
            status = join(path, folders.items[i], images.items[k]);
            if (status == CTRT_OK)
                status = names_add(paths, path);
        }
        names_free(&images);
    }
    names_free(&folders);
    return status;
}

/* Fails if there is no decoder for some of the files, and names the first ones. */
static ctrt_status check_decoders(const struct names *paths)
{
    enum { NAMED = 3 };
    const char *missing = "", *first[NAMED] = { "", "", "" };
    int count = 0;
    for (size_t i = 0; i < paths->count && count < NAMED; i++) {
        const char *name, *path = paths->items[i], *extension = strrchr(path, '.');
        CTRT_TRY(image_file_lacks_decoder(&name, path, extension != NULL ? extension : ""));
        if (name[0] == '\0')
            continue;
        missing = count == 0 ? name : missing;
        first[count++] = path;
    }
    return count == 0 ? CTRT_OK
                      : ctrt_fail(CTRT_ERR_NOT_FOUND, "no decoder for %.300s%s%.300s%s%.300s: the format %s needs the "
                                  "plugin image-%s; install it (`ctrt plugins`), or remove or convert the files",
                                  first[0], count > 1 ? ", " : "", first[1], count > 2 ? ", " : "", first[2], missing,
                                  missing);
}

static ctrt_status image_folder_open(struct folder_state *s)
{
    CTRT_TRY(image_options_check(&s->options, "image_folder_dataset", 0, 0, 0));
    CTRT_TRY(list_folder(&s->classes, NULL, s->folder));
    if (s->classes.count == 0)
        return ctrt_fail(CTRT_ERR_NOT_FOUND, "%.500s has no sub-folder; each sub-folder is a class", s->folder);
    s->first = host_calloc((s->classes.count + 1) * sizeof *s->first);
    ALLOC_CHECK(s->first, s->classes.count * sizeof *s->first, "a dataset");
    for (size_t i = 0; i < s->classes.count; i++) {
        char path[PATH_MAX];
        CTRT_TRY(join(path, s->folder, s->classes.items[i]));
        CTRT_TRY(add_class(&s->paths, path));
        s->first[i + 1] = (int64_t)s->paths.count;
        if (s->first[i + 1] == s->first[i])
            return ctrt_fail(CTRT_ERR_NOT_FOUND, "%.500s has no image; expected files .jpg .jpeg .png .ppm .bmp .pgm "
                             ".tif .tiff .webp", path);
    }
    return check_decoders(&s->paths);
}

/* ---- the dataset ---- */

static int64_t folder_length(void *state)
{
    return (int64_t)((struct folder_state *)state)->paths.count;
}

/* The last class whose first sample is not after `index`. */
static int64_t image_folder_class_of(const struct folder_state *s, int64_t index)
{
    size_t low = 0, high = s->classes.count;
    while (high - low > 1) {
        const size_t middle = (low + high) / 2;
        if (s->first[middle] <= index)
            low = middle;
        else
            high = middle;
    }
    return (int64_t)low;
}

static ctrt_status folder_item(ctrt_sample *sample, void *state)
{
    const struct folder_state *s = state;
    const char *path = s->paths.items[sample->index];
    ctrt_image image = { 0 };
    CTRT_TRY(image_file_read(&image, path, &s->options));
    *(int64_t *)sample->out[1] = image_folder_class_of(s, sample->index);
    ctrt_status status = CTRT_OK;
    if (s->options.channels == 1) {             /* in place: no pixel is written before it was read */
        const ctrt_image gray = ctrt_image_hwc(image.pixels, CTRT_U8, image.height, image.width, 1);
        status = ctrt_image_to_gray(&gray, &image);
        image = gray;
    }
    if (status == CTRT_OK)
        status = ctrt_context(image_sample(sample, &s->options, &image), "%.500s", path);
    host_free(image.pixels);
    return status;
}

static void folder_free(void *state)
{
    struct folder_state *s = state;
    names_free(&s->classes);
    names_free(&s->paths);
    host_free(s->first);
    host_free(s->folder);
    host_free(s);
}

ctrt_status ctrt_image_folder_dataset(ctrt_dataset **out, const char *folder, const ctrt_image_options *options)
{
    if (out == NULL || folder == NULL || options == NULL)
        return fail_null("image_folder_dataset", out == NULL ? "out" : folder == NULL ? "folder" : "options");
    ctrt_image_options own = CTRT_IMAGE_OPTIONS;
    CTRT_TRY(struct_read(&own, sizeof own, options, "image_folder_dataset", "options"));
    struct folder_state *s = host_calloc(sizeof *s);
    ALLOC_CHECK(s, sizeof *s, "a dataset");
    s->options = own;
    s->folder = host_strdup(folder);
    ctrt_field fields[2];
    ctrt_status status = s->folder != NULL ? image_folder_open(s) : out_of_memory(strlen(folder) + 1, "a dataset");
    image_fields(fields, &s->options);
    if (status == CTRT_OK)
        status = ctrt_dataset_new(out, &(ctrt_dataset_functions){
            .size = sizeof(ctrt_dataset_functions), .name = folder, .fields = fields, .field_count = 2,
            .length = folder_length, .item = folder_item, .free = folder_free }, s);
    if (status != CTRT_OK)
        folder_free(s);
    return status;
}

static const struct folder_state *state_of(const ctrt_dataset *dataset)
{
    return dataset != NULL && dataset->functions.item == folder_item ? dataset->state : NULL;
}

const char *ctrt_image_folder_class(const ctrt_dataset *dataset, int64_t label)
{
    const struct folder_state *s = state_of(dataset);
    return s != NULL && label >= 0 && label < (int64_t)s->classes.count ? s->classes.items[label] : NULL;
}

const char *ctrt_image_folder_path(const ctrt_dataset *dataset, int64_t index)
{
    const struct folder_state *s = state_of(dataset);
    return s != NULL && index >= 0 && index < (int64_t)s->paths.count ? s->paths.items[index] : NULL;
}

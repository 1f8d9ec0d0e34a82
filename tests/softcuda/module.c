/* SPDX-License-Identifier: Apache-2.0 */
/* tests/softcuda/module.c: libraries, modules and kernels.
 *
 * Only the format of an image is checked; its contents are ignored. Kernels are looked up by name in libsoftkernels.so,
 * which is in the directory of libcuda.so.1. The image "softcuda:PATH" names another library. */
#define _GNU_SOURCE
#include "driver.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct image {
    void *opened;                           /* handle of dlopen; never closed, because its kernels may still be
                                             * running */
    const struct softcuda_library *library;
    pthread_mutex_t lock;
    struct function *functions;
};

static const char own_prefix[] = "softcuda:";

/* Accepts PTX text, an ELF file of kernels, a fat binary (with or without its wrapper), and a single zero byte, which
 * is the image of a build without nvcc. */
static bool looks_right(const char *image)
{
    uint32_t magic;
    if (image[0] == '\0')
        return true;
    memcpy(&magic, image, sizeof magic);
    return magic == 0xba55ed50 || magic == 0x466243b1 || memcmp(image, "\177ELF", 4) == 0
           || strstr(image, ".version") != NULL;
}

static void beside_this_library(char *path, size_t bytes)
{
    Dl_info info;
    path[0] = '\0';
    if (dladdr((void *)(uintptr_t)looks_right, &info) == 0 || info.dli_fname == NULL)
        return;
    const char *slash = strrchr(info.dli_fname, '/');
    snprintf(path, bytes, "%.*slibsoftkernels.so", slash != NULL ? (int)(slash - info.dli_fname + 1) : 0,
             info.dli_fname);
}

static result open_image(struct image **out, const void *data)
{
    char path[512];
    if (out == NULL || data == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (strncmp(data, own_prefix, strlen(own_prefix)) == 0)
        snprintf(path, sizeof path, "%s", (const char *)data + strlen(own_prefix));
    else if (!looks_right(data))
        return CUDA_ERROR_INVALID_IMAGE;
    else
        beside_this_library(path, sizeof path);
    struct image *image = calloc(1, sizeof *image);
    if (image == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    image->opened = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (image->opened != NULL)
        image->library = dlsym(image->opened, "softcuda_library");
    if (image->library == NULL || image->library->bytes != sizeof *image->library
        || image->library->here_bytes != sizeof softcuda_here) {
        fprintf(stderr, "softcuda: no kernels: %s\n",
                image->opened == NULL ? dlerror() : "not a library of kernels for this libcuda.so.1");
        free(image);
        return CUDA_ERROR_NO_BINARY_FOR_GPU;
    }
    pthread_mutex_init(&image->lock, NULL);
    *out = image;
    return CUDA_SUCCESS;
}

/* Returns the kernel, which is looked up once per image. NULL: there is none, or no memory. */
static struct function *function_find(struct image *image, const char *name)
{
    char symbol[300];
    snprintf(symbol, sizeof symbol, "softcuda_kernel_%s", name);
    pthread_mutex_lock(&image->lock);
    struct function *function = image->functions;
    while (function != NULL && strcmp(function->kernel->name, name) != 0)
        function = function->next;
    const struct softcuda_kernel *kernel = function == NULL ? dlsym(image->opened, symbol) : NULL;
    if (kernel != NULL && (function = calloc(1, sizeof *function)) != NULL) {
        *function = (struct function){ .kernel = kernel, .library = image->library, .next = image->functions };
        image->functions = function;
        handle_add(HANDLE_KERNEL, function);
    }
    pthread_mutex_unlock(&image->lock);
    return function;
}

/* ---- entry points ---- */

EXPORT result cuLibraryLoadData(struct image **out, const void *data, void *jit, void **jit_values, unsigned n_jit,
                                void *choices, void **values, unsigned n)
{
    CALL(cuLibraryLoadData, ENTER_INIT);
    (void)jit, (void)jit_values, (void)n_jit, (void)choices, (void)values, (void)n;
    const result made = open_image(out, data);
    if (made == CUDA_SUCCESS)
        handle_add(HANDLE_LIBRARY, *out);
    return made;
}

EXPORT result cuLibraryUnload(struct image *image)
{
    CALL(cuLibraryUnload, ENTER_INIT);
    if (!handle_remove(HANDLE_LIBRARY, image))
        return CUDA_ERROR_INVALID_HANDLE;
    for (int i = 0; i < n_devices; i++)
        device_wait_idle(&devices[i]);
    while (image->functions != NULL) {
        struct function *function = image->functions;
        image->functions = function->next;
        handle_remove(HANDLE_KERNEL, function);
        free(function);
    }
    pthread_mutex_destroy(&image->lock);
    free(image);
    return CUDA_SUCCESS;
}

EXPORT result cuLibraryGetKernel(struct function **out, struct image *image, const char *name)
{
    CALL(cuLibraryGetKernel, ENTER_INIT);
    if (out == NULL || name == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (!handle_is(HANDLE_LIBRARY, image))
        return CUDA_ERROR_INVALID_HANDLE;
    *out = function_find(image, name);
    return *out != NULL ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

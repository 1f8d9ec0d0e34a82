/* SPDX-License-Identifier: Apache-2.0 */
/* tests/ptx/kernel.c: fat binaries and launches. A fat binary is a header of 16 bytes (magic number, version, its size,
 * size of all entries) and entries. An entry has a kind (1: PTX, 2: a cubin), a version, the size of its header and the
 * size of its payload. At byte 28 it has the architecture, and at byte 40 flags, among them those of compressed
 * payloads. */
#include "driver.h"

#include <stdio.h>
#include <stdlib.h>

enum { MAGIC = (int)0xba55ed50, KIND_PTX = 1, COMPRESSED = 0x2000 | 0x8000 };

struct module *driver_modules;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static uint64_t read_bytes(const unsigned char *p, unsigned bytes)
{
    uint64_t x = 0;
    memcpy(&x, p, bytes);
    return x;
}

/* Returns the text of the newest PTX, for the caller to free; *why: a message if there is none. */
static char *find_ptx(const unsigned char *image, const char **why)
{
    *why = "this image is no fat binary";
    if ((int)read_bytes(image, 4) != MAGIC)
        return NULL;
    const unsigned char *p = image + read_bytes(image + 6, 2), *end = p + read_bytes(image + 8, 8);
    const unsigned char *best = NULL;
    uint64_t newest = 0;
    *why = "this fat binary has no PTX: build the plugin with NVCC_ARCH='-gencode arch=compute_90,code=compute_90 "
           "--no-compress'";
    while (p + 64 <= end) {
        const uint64_t header = read_bytes(p + 4, 4), payload = read_bytes(p + 8, 8);
        if (read_bytes(p, 2) == KIND_PTX && read_bytes(p + 28, 4) >= newest) {
            if (read_bytes(p + 40, 8) & COMPRESSED) {
                *why = "this PTX is compressed: build the plugin with --no-compress in NVCC_ARCH";
            } else {
                best = p;
                newest = read_bytes(p + 28, 4);
            }
        }
        p += header + payload;
    }
    if (best == NULL)
        return NULL;
    const uint64_t header = read_bytes(best + 4, 4), payload = read_bytes(best + 8, 8);
    return strndup((const char *)best + header, payload);
}

result library_load(struct module **out, const void *image, void *jit, void **jit_values, unsigned n_jit, void *options,
                    void **values, unsigned n)
{
    (void)jit, (void)jit_values, (void)n_jit, (void)options, (void)values, (void)n;
    const char *why;
    char text[256];
    char *ptx = find_ptx(image, &why);
    if (ptx == NULL) {
        fprintf(stderr, "ptx: %s\n", why);
        return NO_BINARY;
    }
    struct module *m = ptx_module_new(ptx, text, sizeof text);
    if (m == NULL) {
        fprintf(stderr, "ptx: %s\n", text);
        return INVALID_PTX;
    }
    pthread_mutex_lock(&lock);
    m->next = driver_modules;
    driver_modules = m;
    pthread_mutex_unlock(&lock);
    *out = m;
    return OK;
}

result library_kernel(struct function **out, struct module *library, const char *name)
{
    struct function *f = ptx_module_find(library, name);
    if (f == NULL || !f->is_kernel)
        return NOT_FOUND;
    pthread_mutex_lock(&library->lock);
    const char *error = ptx_decode(f);
    pthread_mutex_unlock(&library->lock);
    if (error != NULL) {
        fprintf(stderr, "ptx: %s\n", error);
        return INVALID_PTX;
    }
    *out = f;
    return OK;
}

enum { SHARED_DEFAULT = 48 << 10, SHARED_MOST = 227 << 10, MAX_DYNAMIC_SHARED = 8 };

result kernel_set(int attribute, int value, struct function *kernel, int device)
{
    (void)device;
    if (attribute != MAX_DYNAMIC_SHARED || value < 0 || value + (int)kernel->shared_bytes > SHARED_MOST)
        return INVALID_VALUE;
    kernel->dynamic_allowed = (uint32_t)value;
    return OK;
}

result launch_kernel(struct function *kernel, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                     unsigned block_y, unsigned block_z, unsigned shared, struct stream *s, void **parameters,
                     void **extra)
{
    const unsigned long long threads = (unsigned long long)block_x * block_y * block_z;
    if (kernel == NULL || extra != NULL || grid_x == 0 || grid_y == 0 || grid_z == 0 || threads == 0 || threads > 1024
        || grid_x > INT32_MAX || grid_y > 65535 || grid_z > 65535 || block_z > 64)
        return INVALID_VALUE;
    if (kernel->max_threads > 0 && threads > kernel->max_threads)
        return OUT_OF_RESOURCES;
    const uint32_t most = kernel->dynamic_allowed > 0 ? kernel->dynamic_allowed + kernel->shared_bytes : SHARED_DEFAULT;
    if (shared + kernel->shared_bytes > most)
        return INVALID_VALUE;
    struct work work = { .kind = LAUNCH };
    struct launch *launch = &work.launch;
    launch->function = kernel;
    launch->grid[0] = grid_x, launch->grid[1] = grid_y, launch->grid[2] = grid_z;
    launch->threads[0] = block_x, launch->threads[1] = block_y, launch->threads[2] = block_z;
    launch->shared_dynamic = shared;
    for (unsigned k = 0; k < kernel->parameter_count; k++)
        launch->parameter_bytes = kernel->parameters[k].offset + kernel->parameters[k].bytes;
    launch->parameters = aligned_alloc(64, (launch->parameter_bytes + 64) / 64 * 64);
    if (launch->parameters == NULL)
        return OUT_OF_MEMORY;
    for (unsigned k = 0; k < kernel->parameter_count; k++)
        memcpy(launch->parameters + kernel->parameters[k].offset, parameters[k], kernel->parameters[k].bytes);
    const result r = driver_enqueue(s, &work);
    if (r != OK)
        free(launch->parameters);
    return r;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* tests/softcuda/library.h: for the fake cuBLAS and cuDNN: functions of libcuda.so.1, options, elements, workspaces. */
#ifndef SOFTCUDA_LIBRARY_H
#define SOFTCUDA_LIBRARY_H

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "api.h"
#include "device_half.h"

/* Exported by libcuda.so.1. softcuda_enter counts a call and returns an injected status, else 0. softcuda_enqueue runs
 * `function` in stream order with a copy of the argument. The others access memory of a device there, with checks. */
extern int softcuda_enter(const char *symbol);
extern result softcuda_enqueue(void *stream, result (*function)(void *), void (*release)(void *), const void *argument,
                               size_t bytes);
extern result softcuda_read(void *to, address from, size_t bytes);
extern result softcuda_write(address to, const void *from, size_t bytes);
extern result softcuda_overwrite(address to, unsigned char value, size_t bytes);
extern result cuCtxGetCurrent(void **context);
extern result cuCtxSynchronize(void);

#define ENTER(symbol) TRY(softcuda_enter(#symbol))

/* Returns the number of an entry NAME=NUMBER of an environment variable, 0 for "no"; -1: there is no such entry. */
static inline long library_option(const char *variable, const char *name)
{
    const char *text = getenv(variable);
    const size_t bytes = strlen(name);
    for (; text != NULL && *text != '\0'; text = strchr(text, ','), text = text != NULL ? text + 1 : NULL)
        if (strncmp(text, name, bytes) == 0 && text[bytes] == '=')
            return strncmp(text + bytes + 1, "no", 2) == 0 ? 0 : strtol(text + bytes + 1, NULL, 10);
    return -1;
}

/* cuBLAS and cuDNN number these types in the same way; any other number is bfloat16. */
enum { TYPE_F32 = 0, TYPE_F64 = 1, TYPE_F16 = 2 };

static inline size_t element_bytes(int type)
{
    return type == TYPE_F64 ? 8 : type == TYPE_F32 ? 4 : 2;
}

static inline double element_load(int type, const void *at)
{
    float f;
    double d;
    uint16_t h;
    switch (type) {
    case TYPE_F64: return memcpy(&d, at, 8), d;
    case TYPE_F32: return memcpy(&f, at, 4), (double)f;
    case TYPE_F16: return memcpy(&h, at, 2), (double)soft_float_of_half(h);
    default: return memcpy(&h, at, 2), (double)soft_float_of_bfloat(h);
    }
}

static inline void element_store(int type, void *at, double x)
{
    const float f = (float)x;
    const uint16_t h = type == TYPE_F16 ? soft_half_of(f) : soft_bfloat_of(f);
    memcpy(at, type == TYPE_F64 ? (const void *)&x : type == TYPE_F32 ? (const void *)&f : &h, element_bytes(type));
}

/* Reads `n` elements of device memory as doubles. tf32: rounds them to 10 bits of fraction. */
static inline result library_read(double *out, address at, int type, size_t n, bool tf32)
{
    char *raw = allocated(malloc(n * element_bytes(type) + 1));
    const result made = softcuda_read(raw, at, n * element_bytes(type));
    for (size_t i = 0; i < n && made == CUDA_SUCCESS; i++) {
        out[i] = element_load(type, raw + i * element_bytes(type));
        const uint32_t bits = soft_bits_of_float((float)out[i]);
        if (tf32 && isfinite(out[i]))
            out[i] = (double)soft_float_of_bits((bits + 0xfffu + (bits >> 13 & 1u)) & 0xffffe000u);
    }
    free(raw);
    return made;
}

static inline result library_write(const double *values, address at, int type, size_t n)
{
    char *raw = allocated(malloc(n * element_bytes(type) + 1));
    for (size_t i = 0; i < n; i++)
        element_store(type, raw + i * element_bytes(type), values[i]);
    const result made = softcuda_write(at, raw, n * element_bytes(type));
    free(raw);
    return made;
}

/* Overwrites the workspace, so that tests detect if it overlaps other data. If `late`, takes some milliseconds. */
static inline result library_workspace(address at, size_t bytes, bool late)
{
    const result made = softcuda_overwrite(at, 0xaa, bytes);
    if (late)
        nanosleep(&(struct timespec){ .tv_nsec = 4000000 }, NULL);
    return made;
}

#endif

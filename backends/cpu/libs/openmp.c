/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cpu/libs/openmp.c: OpenMP parallel regions of a library, run with the backend's own threads.
 *
 * GCC compiles a region to a call of GOMP_parallel. A library calls imported functions through addresses that the
 * dynamic loader stores in its data (System V ABI, relocations of types JUMP_SLOT and GLOB_DAT). This file stores
 * others there, in this library only. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "openmp.h"

#include "host/cpu.h"
#include "host/team.h"

#include <dlfcn.h>
#include <link.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static _Thread_local int inside;        /* calls of cpu_openmp_enter without leave */
static _Thread_local int threads_before;
static bool adopted;

/* OpenMP's own functions, as the library would call them. */
static struct {
    void (*parallel)(void (*function)(void *), void *data, unsigned threads, unsigned flags);
    void (*barrier)(void);
    int (*max_threads)(void), (*num_threads)(void), (*thread_num)(void), (*in_parallel)(void);
    void (*set_num_threads)(int);
} openmp;

/* Returns whether the calling thread runs a region of the library with the backend's threads, or may start one. */
static bool ours(void)
{
    return inside > 0 || cpu_team_tasks() > 0;
}

struct region {
    void (*function)(void *);
    void *data;
};

static void run_region(void *argument, int index, int count)
{
    const struct region *region = argument;
    (void)index, (void)count;
    region->function(region->data);
}

static void parallel(void (*function)(void *), void *data, unsigned threads, unsigned flags)
{
    struct region region = { function, data };
    const int wanted = threads > 0 ? (int)threads : cpu_thread_count();
    if (!ours())
        openmp.parallel(function, data, threads, flags);
    else if (wanted == 1 || cpu_team_tasks() > 0)
        cpu_team_run_nested(run_region, &region);
    else if (cpu_team_grow(wanted) >= wanted)
        cpu_team_run(wanted, run_region, &region, true);
    else                                /* not after cpu_threads_limited() returned false */
        openmp.parallel(function, data, threads, flags);
}

static void barrier(void)
{
    if (!ours())
        openmp.barrier();
    else
        cpu_team_barrier();
}

static int max_threads(void)
{
    return ours() ? cpu_thread_count() : openmp.max_threads();
}

static int num_threads(void)
{
    const int tasks = cpu_team_tasks();
    return tasks > 0 ? tasks : inside > 0 ? 1 : openmp.num_threads();
}

static int thread_num(void)
{
    return ours() ? cpu_team_index() : openmp.thread_num();
}

static int in_parallel(void)
{
    return ours() ? cpu_team_tasks() > 1 : openmp.in_parallel();
}

static const struct { const char *name; void *replacement, *original; } functions[] = {
    { "GOMP_parallel", parallel, &openmp.parallel }, { "GOMP_barrier", barrier, &openmp.barrier },
    { "omp_get_max_threads", max_threads, &openmp.max_threads },
    { "omp_get_num_threads", num_threads, &openmp.num_threads },
    { "omp_get_thread_num", thread_num, &openmp.thread_num },
    { "omp_in_parallel", in_parallel, &openmp.in_parallel },
};
enum { FUNCTIONS = sizeof functions / sizeof functions[0] };

/* The parts of a loaded library that describe its imports. */
struct image {
    const struct link_map *map;
    const ElfW(Sym) *symbols;
    const char *names;
    const ElfW(Rela) *tables[2];        /* of JUMP_SLOT, and all other relocations */
    size_t counts[2];
    char *read_only;                    /* the part that the loader made read-only after relocation */
    size_t read_only_bytes;
};

/* Some C libraries store addresses in the dynamic section, others offsets. */
static const void *address_of(const struct link_map *map, ElfW(Addr) pointer)
{
    return (const void *)(pointer < map->l_addr ? map->l_addr + pointer : pointer);
}

static bool image_read(struct image *image, const struct link_map *map)
{
    bool rela = true;
    *image = (struct image){ .map = map };
    for (const ElfW(Dyn) *d = map->l_ld; d->d_tag != DT_NULL; d++)
        switch (d->d_tag) {
        case DT_SYMTAB: image->symbols = address_of(map, d->d_un.d_ptr); break;
        case DT_STRTAB: image->names = address_of(map, d->d_un.d_ptr); break;
        case DT_JMPREL: image->tables[0] = address_of(map, d->d_un.d_ptr); break;
        case DT_PLTRELSZ: image->counts[0] = d->d_un.d_val / sizeof(ElfW(Rela)); break;
        case DT_PLTREL: rela = d->d_un.d_val == DT_RELA; break;
        case DT_RELA: image->tables[1] = address_of(map, d->d_un.d_ptr); break;
        case DT_RELASZ: image->counts[1] = d->d_un.d_val / sizeof(ElfW(Rela)); break;
        }
    return rela && image->symbols != NULL && image->names != NULL;
}

static int find_read_only(struct dl_phdr_info *info, size_t bytes, void *argument)
{
    struct image *image = argument;
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    (void)bytes;
    if (info->dlpi_addr != image->map->l_addr)
        return 0;
    for (int i = 0; i < info->dlpi_phnum; i++)
        if (info->dlpi_phdr[i].p_type == PT_GNU_RELRO) {
            const size_t address = info->dlpi_addr + info->dlpi_phdr[i].p_vaddr, begin = address & ~(page - 1),
                         end = (address + info->dlpi_phdr[i].p_memsz) & ~(page - 1);
            image->read_only = (char *)begin;
            image->read_only_bytes = end > begin ? end - begin : 0;
        }
    return 1;
}

static size_t symbol_of(const ElfW(Rela) *relocation)
{
    return sizeof(ElfW(Addr)) == 8 ? (size_t)((uint64_t)relocation->r_info >> 32)
                                   : (size_t)((uint32_t)relocation->r_info >> 8);
}

/* Returns the address of the pointer through which the library calls `functions[*index]`, or NULL if relocation `i` of
 * a table is none. Sets *unknown if it is another function of an OpenMP library. */
static void **pointer_at(const struct image *image, int table, size_t i, int *index, bool *unknown)
{
    static const char *const prefixes[] = { "GOMP_", "omp_", "__kmpc_" };
    const ElfW(Rela) *relocation = &image->tables[table][i];
    const size_t symbol = symbol_of(relocation);
    if (symbol == 0 || image->symbols[symbol].st_shndx != SHN_UNDEF)
        return NULL;
    const char *name = image->names + image->symbols[symbol].st_name;
    void **pointer = (void **)(image->map->l_addr + relocation->r_offset);
    for (*index = 0; *index < FUNCTIONS; ++*index)
        if (strcmp(name, functions[*index].name) == 0)
            /* All relocations of a table for the PLT are pointers; others are if the function's address is there. */
            return table == 0 || *pointer == *(void **)functions[*index].original ? pointer : NULL;
    for (size_t p = 0; p < sizeof prefixes / sizeof prefixes[0]; p++)
        *unknown |= strncmp(name, prefixes[p], strlen(prefixes[p])) == 0;
    return NULL;
}

/* Counts the pointers, or with `replace` replaces them. Returns 0 if the library uses OpenMP in another way. */
static int visit(const struct image *image, bool replace)
{
    int count = 0, index;
    bool unknown = false;
    for (int table = 0; table < 2; table++)
        for (size_t i = 0; image->tables[table] && i < image->counts[table]; i++) {
            void **pointer = pointer_at(image, table, i, &index, &unknown);
            count += pointer != NULL;
            if (pointer && replace)
                __atomic_store_n(pointer, functions[index].replacement, __ATOMIC_RELEASE);
        }
    return unknown ? 0 : count;
}

static bool adopt(const void *function)
{
    Dl_info info;
    struct link_map *map = NULL;
    struct image image;
    if (dladdr1(function, &info, (void **)&map, RTLD_DL_LINKMAP) == 0 || !map || !image_read(&image, map)
        || visit(&image, false) == 0)
        return false;
    dl_iterate_phdr(find_read_only, &image);
    if (image.read_only_bytes > 0
        && mprotect(image.read_only, image.read_only_bytes, PROT_READ | PROT_WRITE) != 0)
        return false;
    visit(&image, true);
    if (image.read_only_bytes > 0)
        mprotect(image.read_only, image.read_only_bytes, PROT_READ);
    return true;
}

void cpu_openmp_adopt(void *object, const void *function)
{
    bool complete = true;
    for (int i = 0; i < FUNCTIONS; i++) {
        *(void **)functions[i].original = dlsym(object, functions[i].name);
        complete &= *(void **)functions[i].original != NULL;
    }
    *(void **)&openmp.set_num_threads = dlsym(object, "omp_set_num_threads");
    adopted = complete && adopt(function);
}

void cpu_openmp_enter(void)
{
    if (inside++ == 0 && !adopted && openmp.set_num_threads && openmp.max_threads) {
        threads_before = openmp.max_threads();
        openmp.set_num_threads(1);
    }
}

void cpu_openmp_leave(void)
{
    if (--inside == 0 && !adopted && openmp.set_num_threads && openmp.max_threads)
        openmp.set_num_threads(threads_before);
}

int cpu_openmp_threads(void)
{
    return adopted ? cpu_thread_count() : 1;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* registry/internal.h: what the registry's own files share. */
#ifndef CORE_REGISTRY_INTERNAL_H
#define CORE_REGISTRY_INTERNAL_H

#include <sys/types.h>

#include "base/lock.h"
#include "registry/registry.h"

#define MAX_COMPONENTS  64          /* of one file */
#define MAX_FOLDERS     32

struct plugin_file {
    const char *path, *folder;
    const char *stem;               /* "backend-cpu" */
    ctrt_component_kind kind;       /* by the file's name */
    const char *name;               /* "cpu" */
    enum plugin_state state;
    const char *reason;
    const ctrt_plugin *plugin;      /* once judged */
    struct component *components;
    size_t count;
    bool initialising, initialised;
};

/* ---- search.c: which files are there ---- */

/* Finds the files of all folders once; CTRT_ERR_OUT_OF_MEMORY may be tried again. With the lock held, as
 * everything below. */
ctrt_status search_files(void);
extern struct plugin_file **registry_files;
extern size_t registry_file_count;
/* "searched /a, /b (no such folder)" */
const char *search_words(void);
/* The folders in their order; NULL past the last. */
const char *search_folder(size_t index);
/* "backend" and back; 0 for no such word. */
const char *kind_word(ctrt_component_kind kind);
ctrt_component_kind kind_of_word(const char *word, size_t length);

/* ---- judging; each returns true when all is well, else writes a reason in words ---- */

/* trust.c. Only a process with more rights than its caller, or root's, needs to mistrust: `strict`. Then file
 * and folder must belong to root or `user`, and nobody else may write to them: neither all others nor a group
 * other than root's and the user's own. */
bool trust_judge(const char *path, bool strict, uid_t user, gid_t group, char *reason, size_t bytes);
bool trust_needed(void);

/* elf.c: is the file as long as its own headers say? dlopen of a truncated one would be a bus error. What is
 * no ELF file at all is left to dlopen, whose text is good. */
bool elf_judge(const char *path, char *reason, size_t bytes);

/* judge.c */
bool judge_plugin(const ctrt_plugin *plugin, char *reason, size_t bytes);
bool judge_component(const ctrt_component *component, size_t stride, char *reason, size_t bytes);
bool judge_table(ctrt_component_kind kind, const void *table, char *reason, size_t bytes);
/* Rows of kernels; after init, which may have put them together. NULL is fine. */
bool judge_kernels(const ctrt_kernel_table *table, char *reason, size_t bytes);

/* ---- select.c: CTRT_BACKENDS ---- */

/* CTRT_OK when backend `name` may be used; CTRT_ERR_NO_DEVICE, with the reason as message, when the user said
 * no. */
ctrt_status select_backend(const char *name);

/* ---- load.c ---- */

void registry_enter(void);
void registry_leave(void);
/* Phase one for one file; anything but OUT_OF_MEMORY is noted in the file and is CTRT_OK here. */
ctrt_status file_open(struct plugin_file *file);
/* Phase one for all files of `kind` (0: of all kinds). */
ctrt_status file_open_all(ctrt_component_kind kind);
/* Phase two. */
ctrt_status file_init(struct plugin_file *file);

/* host.c */
extern const ctrt_host registry_host;

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* registry/internal.h: what the registry's own files share. */
#ifndef CORE_REGISTRY_INTERNAL_H
#define CORE_REGISTRY_INTERNAL_H

#include <pthread.h>
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
    const char *loader_name;        /* the loader's name of the object, which dl.c replaced by `path` */
    const ctrt_plugin *plugin;      /* once judged */
    struct component *components;
    size_t count;
    bool probe_again;               /* a component's probe said CTRT_PROBE_AGAIN */
    bool listed;                    /* init was called for listings of parameters alone, and failed */
    bool initialising, initialised; /* `initialising` by the thread `initialiser`; changes with the lock and load.c's own mutex */
    pthread_t initialiser;
    const struct plugin_file *waits_for;        /* its init waits until that one's has ended */
    struct plugin_file *next_running;
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

/* ---- judging ---- */

/* A verdict: JUDGED_WELL, JUDGED_BAD (about the file, so it is remembered; the reason is written in words), or an errno value when
 * the system failed to look (EMFILE, ENOMEM, EIO), which the next use tries again. */
enum { JUDGED_BAD = -1, JUDGED_WELL = 0 };

/* trust.c. Is `error` a shortage or failure of the moment, which says nothing about the file? */
bool error_is_transient(int error);
/* Writes "WHAT PATH: ERROR" as the reason and returns the verdict for `error`. */
int judge_errno(int error, const char *what, const char *path, char *reason, size_t bytes);

/* Descriptors of a plugin file (for reading) and of the folder of its path (O_PATH; -1 when nothing had to be judged). The caller
 * closes both. */
struct trusted_file {
    int file, folder;
};

/* Opens the plugin at `path`. `strict`: only when no user except root and `user` can decide what that file and all folders
 * above it are. Returns a verdict. */
int trust_open(struct trusted_file *out, const char *path, bool strict, uid_t user, char *reason, size_t bytes);
/* Whether this process has to be strict: root's, or with more rights than its caller. *user: who is trusted then. */
bool trust_needed(uid_t *user);
/* Called between judging and loading. For tests. */
extern void (*trust_judged_hook)(void);

/* dl.c: judges the file and loads it. Returns a verdict. The handle is never closed. */
int dl_load(void **handle, struct plugin_file *file, char *reason, size_t bytes);

/* elf.c: is the file as long as its own headers say? dlopen of a truncated one would be a bus error. A file that is no ELF file at
 * all is left to dlopen, whose message is good. Returns a verdict. */
int elf_judge(int fd, const char *path, char *reason, size_t bytes);

/* The others return true when all is well, else write a reason in words. */

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
/* Phase one for one file. A verdict about the file is noted in it and is CTRT_OK here. CTRT_ERR_OUT_OF_MEMORY and CTRT_ERR_IO: the
 * system failed for the moment, and the next call tries again. */
ctrt_status file_open(struct plugin_file *file);
/* Phase one for all files of `kind` (0: of all kinds); the first error, after all were tried. */
ctrt_status file_open_all(ctrt_component_kind kind);
/* Phase two. Releases the lock while the plugin's init runs, so it must be held once only. Waits when another thread initialises the
 * file; CTRT_ERR_STATE when that one waits for this thread, or for `caller`, the plugin that calls (NULL: the program). */
ctrt_status file_init(struct plugin_file *file, const struct plugin_file *caller);

/* Calls the init of a file none of whose components can be used here, so that listings have its parameters. A failure has no effect. */
void file_declare(struct plugin_file *file);

/* registry.c: registry_use on behalf of the plugin whose code `address` is. */
ctrt_status registry_use_from(const struct component **out, ctrt_component_kind kind, const char *name, const void *address);

/* host.c */
extern const ctrt_host registry_host;

#endif

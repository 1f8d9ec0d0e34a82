/* SPDX-License-Identifier: Apache-2.0 */
/* registry/internal.h: declarations shared by the files of the registry. */
#ifndef CORE_REGISTRY_INTERNAL_H
#define CORE_REGISTRY_INTERNAL_H

#include <pthread.h>
#include <sys/types.h>

#include "base/lock.h"
#include "registry/registry.h"

#define MAX_COMPONENTS  64          /* per plugin file */
#define MAX_FOLDERS     32

/* The end of the reason for which a plugin that is linked with libctrt.so is refused in a program with libctrt.a. */
#define OTHER_LIBRARY "This program contains another copy of ctrt: link it with the shared library, not with libctrt.a"

/* whole.c. Refer to it by its name only (dlsym). */
CTRT_API extern const char ctrt_library_whole;

/* A plugin that is linked into the library: builtin.c. */
struct builtin_plugin {
    const char *stem;               /* "backend-cpu" */
    ctrt_plugin_entry entry;
};
/* In libctrt.a: ends with an entry without a stem. NULL in libctrt.so, which has no built-in plugins. */
extern const struct builtin_plugin registry_builtin[] __attribute__((weak, visibility("hidden")));

struct plugin_file {
    const char *path, *folder;
    const char *stem;               /* "backend-cpu" */
    ctrt_component_kind kind;       /* taken from the file name */
    const char *name;               /* "cpu" */
    enum plugin_state state;
    const char *reason;
    const char *loader_name;        /* the loader's original name of the object, which dl.c replaced by `path` */
    ctrt_plugin_entry builtin;      /* the entry function of a built-in plugin; NULL of files */
    const ctrt_plugin *plugin;      /* NULL until the file is loaded and its plugin table validated */
    struct component *components;
    size_t count;
    bool probe_again;               /* a component's probe returned CTRT_PROBE_AGAIN */
    bool listed;                    /* file_declare called init, and init failed */
    bool initialising, initialised; /* `initialising` changes only with the registry lock and load.c's init_mutex */
    pthread_t initialiser;          /* the thread that runs init, while `initialising` */
    const struct plugin_file *waits_for;        /* the file whose init must end before this file's init can continue */
    struct plugin_file *next_running;           /* list of files whose init runs; load.c */
};

/* ---- search.c: search path and plugin files ---- */

/* Finds the plugin files of all folders; after success, further calls have no effect. After CTRT_ERR_OUT_OF_MEMORY or
 * CTRT_ERR_IO the next call tries again. This function and all functions below require the registry lock. */
ctrt_status search_files(void);
extern struct plugin_file **registry_files;
extern size_t registry_file_count;
/* Returns the list of searched folders for messages: "searched /a, /b (no such folder)". */
const char *search_words(void);
/* Returns a folder of the search path, in search order; NULL if `index` is too large. */
const char *search_folder(size_t index);
/* Convert a kind to the word in file names ("backend") and back. Return "" and 0 for unknown arguments. */
const char *kind_word(ctrt_component_kind kind);
ctrt_component_kind kind_of_word(const char *word, size_t length);

/* ---- validation ---- */

/* A result: VALIDATE_OK, VALIDATE_REFUSED, or an errno value. VALIDATE_REFUSED is a permanent property of the file, so
 * it is stored with the file; the function has written the reason. An errno value (EMFILE, ENOMEM, EIO, ...) is a
 * transient error, after which the next use tries again. */
enum { VALIDATE_REFUSED = -1, VALIDATE_OK = 0 };

/* file_permissions.c: returns whether `error` is transient (a shortage of resources, for example), so that a later
 * attempt may succeed. */
bool error_is_transient(int error);
/* Writes "WHAT PATH: ERROR" as the reason and returns the result for `error`. */
int validate_errno(int error, const char *what, const char *path, char *reason, size_t bytes);

/* Descriptors of a plugin file (for reading) and of the folder of its path (O_PATH; -1 if permissions were not
 * checked). The caller closes both. */
struct checked_file {
    int file, folder;
};

/* Opens the plugin at `path`. `strict`: checks that no user except root and `user` can change or replace the file or a
 * folder above it. Returns a result. */
int open_checked(struct checked_file *out, const char *path, bool strict, uid_t user, char *reason, size_t bytes);
/* Returns whether open_checked must be strict: in processes of root and in processes with more privileges than their
 * caller. *user: the user who is trusted in addition to root. */
bool permissions_matter(uid_t *user);
/* For tests: called after the validation of a file and before dlopen. */
extern void (*validated_hook)(void);

/* dl.c: validates the file and loads it. Returns a result. The handle is never closed. */
int dl_load(void **handle, struct plugin_file *file, char *reason, size_t bytes);

/* elf.c: checks that the file contains all segments that its headers declare, because dlopen of a truncated file raises
 * SIGBUS. Accepts files that are not ELF files, because dlopen reports those. Returns a result. */
int elf_validate(int fd, const char *path, char *reason, size_t bytes);

/* validate.c: validation of the tables of a plugin. These functions return true for a valid table; otherwise they write
 * a reason into `reason` (`bytes` bytes) and return false. */
bool validate_plugin(const ctrt_plugin *plugin, char *reason, size_t bytes);
bool validate_component(const ctrt_component *component, size_t stride, char *reason, size_t bytes);
bool validate_table(ctrt_component_kind kind, const void *table, char *reason, size_t bytes);
/* Validates a kernel table. Call it after init, because init may fill the table. NULL is valid. `newer`: the plugin was
 * compiled for a newer minor version of the ABI, which may have more dtypes. */
bool validate_kernels(const ctrt_kernel_table *table, bool newer, char *reason, size_t bytes);

/* ---- select.c: CTRT_BACKENDS ---- */

/* Returns CTRT_OK if backend `name` may be used, CTRT_ERR_NO_DEVICE if CTRT_BACKENDS excludes it. */
ctrt_status select_backend(const char *name);

/* ---- child.c: CTRT_PROBE=child ---- */

/* With CTRT_PROBE=child, calls `function` in a child process. Sets *out to whether it returned there, or true without
 * CTRT_PROBE=child. If it did not, writes the reason: "crashed with SIGSEGV in its probe". Errors: malformed
 * parameters, CTRT_ERR_OUT_OF_MEMORY. Requires the registry lock. */
ctrt_status child_survives(bool *out, void (*function)(struct plugin_file *), struct plugin_file *file, char *reason,
                           size_t bytes);
/* Called by `function`: the end of the reason, "in its probe". Static. Has no effect outside of a child. */
void child_step(const char *words);

/* ---- load.c ---- */

void registry_enter(void);
void registry_leave(void);
/* Phase one for one file. A refusal is stored in file->state and file->reason, and the function returns CTRT_OK.
 * CTRT_ERR_OUT_OF_MEMORY and CTRT_ERR_IO: a transient error; the next call tries again. */
ctrt_status file_open(struct plugin_file *file);
/* Phase one for all files of `kind` (0: all kinds). Tries all files and returns the first error. */
ctrt_status file_open_all(ctrt_component_kind kind);
/* Phase two. Releases the lock while the plugin's init runs, so the calling thread must hold the lock exactly once. If
 * another thread initialises the file, waits for that thread. CTRT_ERR_STATE if that init waits for this thread or for
 * the init of `caller`, the plugin that makes the call (NULL: the program). */
ctrt_status file_init(struct plugin_file *file, const struct plugin_file *caller);

/* Calls the init of a file that has no usable component on this machine, so that its parameters are declared and
 * listed. Errors of init are ignored. */
void file_declare(struct plugin_file *file);

/* registry.c: like registry_use, for a call from the plugin that contains the code address `address`. */
ctrt_status registry_use_from(const struct component **out, ctrt_component_kind kind, const char *name,
                              const void *address);

/* host.c */
extern const ctrt_host registry_host;

#endif

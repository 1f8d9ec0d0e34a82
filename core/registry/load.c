/* SPDX-License-Identifier: Apache-2.0 */
/* registry/load.c: opens plugin files (phase one) and initialises them (phase two). */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <time.h>

#include "base/base.h"
#include "base/intern.h"
#include "base/host_alloc.h"
#include "base/param.h"
#include "base/thread.h"
#include "registry/internal.h"

LOCK_DEFINE(registry_lock, LOCK_REGISTRY);

void registry_enter(void)
{
    lock_enter(&registry_lock);
}

void registry_leave(void)
{
    lock_leave(&registry_lock);
}

static ctrt_status refuse(struct plugin_file *file, const char *reason)
{
    file->state = PLUGIN_REFUSED;
    file->reason = intern_format("%s", reason);
    log_message(CTRT_LOG_WARNING, "registry", "%s refused: %s", file->path, file->reason);
    return CTRT_OK;
}

/* Returns the plugin's entry function, or NULL with a reason. The handle is never closed, because dlclose has no effect
 * with RTLD_NODELETE. */
static ctrt_plugin_entry load_entry_of(void *handle, char *reason, size_t bytes)
{
    ctrt_plugin_entry entry;
    void *symbol = dlsym(handle, "ctrt_plugin_v1");
    if (symbol != NULL) {
        memcpy(&entry, &symbol, sizeof entry);      /* ISO C does not define a cast between these types */
        return entry;
    }
    for (int major = 2; major < 10; major++) {
        char name[32];
        snprintf(name, sizeof name, "ctrt_plugin_v%d", major);
        if (dlsym(handle, name) != NULL) {
            snprintf(reason, bytes, "built for plugin ABI %d, this library supports %u.%u", major,
                     CTRT_PLUGIN_ABI_MAJOR, CTRT_PLUGIN_ABI_MINOR);
            return NULL;
        }
    }
    snprintf(reason, bytes, "it does not export ctrt_plugin_v1, so it is not a ctrt plugin");
    return NULL;
}

/* Returns whether the loaded plugin calls another copy of this library than the one that loads it. This happens in a
 * program that contains the static library, because the plugin is linked with the shared one: devices, errors and
 * handles of the two copies are different. */
static bool uses_other_library(void *handle)
{
    Dl_info own, theirs;
    void *symbol = dlsym(RTLD_DEFAULT, "ctrt_library_whole");   /* the program's, if it exports the whole library */
    if (symbol == NULL)
        symbol = dlsym(handle, "ctrt_library_whole");           /* of the plugin or a library that it needs */
    return symbol != NULL && dladdr((void *)(uintptr_t)uses_other_library, &own) != 0 && dladdr(symbol, &theirs) != 0
           && own.dli_fbase != theirs.dli_fbase;
}

/* Calls the component's probe and stores its result. Terminates the reason, because the plugin may not have done so. */
static void load_probe(struct component *component, const ctrt_component *declared)
{
    char reason[256] = "";
    component->fitness = 1;
    if (CTRT_SLOT(declared, probe)) {
        child_step("in its probe");
        component->fitness = declared->probe(reason, sizeof reason);
        reason[sizeof reason - 1] = '\0';
    }
    bool fit = component->fitness > 0;
    component->file->probe_again = component->file->probe_again || component->fitness == CTRT_PROBE_AGAIN;
    component->state = fit ? PLUGIN_READY : PLUGIN_ABSENT;
    component->reason = reason[0] != '\0' ? intern_format("%s", reason)
                        : fit             ? ""
                                          : "its probe failed without a reason";
}

static void fill_component(struct component *component, struct plugin_file *file,
                           const ctrt_component *declared)
{
    char reason[512] = "";
    component->file = file;
    component->reason = "";
    component->name = "";
    component->state = PLUGIN_REFUSED;
    if (validate_component(declared, file->plugin->component_stride, reason, sizeof reason)) {
        component->kind = declared->kind;
        component->name = declared->name;
        component->score = declared->score;
        component->table = declared->table;
        if (validate_table(component->kind, component->table, reason, sizeof reason)) {
            load_probe(component, declared);
            return;
        }
    }
    component->reason = intern_format("%s", reason);
    log_message(CTRT_LOG_WARNING, "registry", "%s: component %s refused: %s", file->path, component->name,
                component->reason);
}

static const ctrt_component *declared_at(const struct plugin_file *file, size_t i)
{
    return (const ctrt_component *)((const char *)file->plugin->components + i * file->plugin->component_stride);
}

static ctrt_status take_components(struct plugin_file *file)
{
    const ctrt_plugin *plugin = file->plugin;
    struct component *components = host_calloc(plugin->component_count * sizeof *components);
    ALLOC_CHECK(components, plugin->component_count * sizeof *components, file->stem);
    size_t refused = 0;
    for (size_t i = 0; i < plugin->component_count; i++) {
        fill_component(&components[i], file, declared_at(file, i));
        refused += components[i].state == PLUGIN_REFUSED;
    }
    file->components = components;
    file->count = plugin->component_count;
    file->state = refused == file->count ? PLUGIN_REFUSED : PLUGIN_READY;
    file->reason = refused == file->count ? components[0].reason : "";
    return CTRT_OK;
}

static void component_refuse(struct component *component, const char *reason)
{
    component->state = PLUGIN_REFUSED;
    component->reason = reason;
}

/* Refuses the file with all of its components that are ready. */
static void file_refuse(struct plugin_file *file, const char *reason)
{
    file->state = PLUGIN_REFUSED;
    file->reason = reason;
    for (size_t i = 0; i < file->count; i++)
        if (file->components[i].state == PLUGIN_READY)
            component_refuse(&file->components[i], reason);
}

/* Validates the component's kernel table. Runs after init, because init may fill the table. */
static void validate_late(struct component *component)
{
    char reason[512];
    const ctrt_kernel_table *kernels = NULL;
    if (component->kind == CTRT_COMPONENT_BACKEND && CTRT_SLOT((const ctrt_backend *)component->table, kernels))
        kernels = ((const ctrt_backend *)component->table)->kernels;
    if (component->kind == CTRT_COMPONENT_KERNELS)
        kernels = ((const ctrt_kernels *)component->table)->kernels;
    const bool newer = component->file->plugin->abi_minor > CTRT_PLUGIN_ABI_MINOR;
    if (component->state == PLUGIN_READY && !validate_kernels(kernels, newer, reason, sizeof reason))
        component_refuse(component, intern_format("%s", reason));
}

/* Returns CTRT_ERR_IO if a probe returned CTRT_PROBE_AGAIN. */
static ctrt_status probe_status(const struct plugin_file *file)
{
    for (size_t i = 0; i < file->count && file->probe_again; i++)
        if (file->components[i].fitness == CTRT_PROBE_AGAIN)
            return ctrt_fail(CTRT_ERR_IO, "plugin %s: %s; the next use retries", file->stem,
                             file->components[i].reason);
    return CTRT_OK;
}

/* Repeats the probes that returned CTRT_PROBE_AGAIN. */
static ctrt_status probe_again(struct plugin_file *file)
{
    file->probe_again = false;
    for (size_t i = 0; i < file->count; i++) {
        struct component *component = &file->components[i];
        if (component->state != PLUGIN_ABSENT || component->fitness != CTRT_PROBE_AGAIN)
            continue;
        load_probe(component, declared_at(file, i));
        if (file->initialised)
            validate_late(component);
    }
    return probe_status(file);
}

/* Loads the file. *entry remains NULL, with a reason, if the file is refused. */
static ctrt_status load_file(ctrt_plugin_entry *entry, struct plugin_file *file, char *reason, size_t bytes)
{
    void *handle = NULL;
    const int result = dl_load(&handle, file, reason, bytes);
    if (result == VALIDATE_REFUSED)
        return CTRT_OK;
    if (result != VALIDATE_OK) {
        file->reason = intern_format("%s; the next use retries", reason);
        return ctrt_fail(result == ENOMEM ? CTRT_ERR_OUT_OF_MEMORY : CTRT_ERR_IO, "plugin %s: %s", file->stem,
                         file->reason);
    }
    if (uses_other_library(handle))
        snprintf(reason, bytes, "it is linked with libctrt.so. " OTHER_LIBRARY);
    else
        *entry = load_entry_of(handle, reason, bytes);
    return CTRT_OK;
}

/* Whether the file has a component with its name: of kernels-cuda-fast.so, also kernels of cuda. True if a component
 * was refused, because its reason is more important. */
static bool declares_own_name(const struct plugin_file *file)
{
    bool own = false;
    for (size_t i = 0; i < file->count && !own; i++) {
        const struct component *here = &file->components[i];
        const size_t length = strlen(here->name);
        const bool begins = strncmp(file->name, here->name, length) == 0;
        own = here->state == PLUGIN_REFUSED
              || (here->kind == file->kind && begins
                  && (file->name[length] == '\0'
                      || (file->kind == CTRT_COMPONENT_KERNELS && file->name[length] == '-')));
    }
    return own;
}

/* A component is searched by the name of its file, so one of another name would never be found. */
static void refuse_other_name(struct plugin_file *file)
{
    const struct component *first = &file->components[0];
    const char *kind = kind_word(file->kind), *declared = kind_word(first->kind);
    const size_t backend = strcspn(file->name, "-");
    if (file->kind == CTRT_COMPONENT_KERNELS && first->kind == file->kind && file->name[backend] != '\0')
        file_refuse(file, intern_format("the file is named as kernels of the backend %.*s, but its component is %s: a "
                                        "component of kind kernels has the name of the backend", (int)backend,
                                        file->name, first->name));
    else
        file_refuse(file, intern_format("the file is named as the %s %s, but it has the %s %s only: rename the file to "
                                        "%s-%s.so, or the component to %s", kind, file->name, declared, first->name,
                                        declared, first->name, file->name));
    log_message(CTRT_LOG_WARNING, "registry", "%s refused: %s", file->path, file->reason);
}

/* Loads the file and probes its components in this process. */
static ctrt_status open_here(struct plugin_file *file)
{
    char reason[1024] = "";
    ctrt_plugin_entry entry = file->builtin;
    CTRT_TRY(entry == NULL ? load_file(&entry, file, reason, sizeof reason) : CTRT_OK);
    if (entry == NULL)
        return refuse(file, reason);
    file->reason = "";
    child_step("in ctrt_plugin_v1");
    const ctrt_plugin *plugin = entry(CTRT_PLUGIN_ABI_MAJOR, CTRT_PLUGIN_ABI_MINOR);
    if (!validate_plugin(plugin, reason, sizeof reason))
        return refuse(file, reason);
    file->plugin = plugin;
    CTRT_TRY(take_components(file));
    if (!declares_own_name(file))
        refuse_other_name(file);
    return probe_status(file);
}

static void try_open(struct plugin_file *file)
{
    (void)open_here(file);
}

ctrt_status file_open(struct plugin_file *file)
{
    char reason[512] = "";
    bool survives;
    if (file->state != PLUGIN_FOUND)
        return file->probe_again && file->state == PLUGIN_READY ? probe_again(file) : CTRT_OK;
    if (file->kind == CTRT_COMPONENT_BACKEND) {
        ctrt_status allowed = select_backend(file->name);
        if (allowed == CTRT_ERR_OUT_OF_MEMORY)
            return allowed;
        if (allowed != CTRT_OK) {
            file->state = PLUGIN_DISABLED;
            file->reason = intern_format("%s", ctrt_error_message());
            return CTRT_OK;
        }
    }
    CTRT_TRY(child_survives(&survives, try_open, file, reason, sizeof reason));
    if (survives)
        return open_here(file);
    file->state = PLUGIN_CRASHED;
    file->reason = intern_format("%s", reason);
    log_message(CTRT_LOG_WARNING, "registry", "%s: %s", file->path, file->reason);
    return CTRT_OK;
}

ctrt_status file_open_all(ctrt_component_kind kind)
{
    ctrt_status first = CTRT_OK;
    CTRT_TRY(search_files());
    for (size_t i = 0; i < registry_file_count; i++)
        if ((int)kind == 0 || registry_files[i]->kind == kind) {
            const ctrt_status status = file_open(registry_files[i]);
            first = first == CTRT_OK ? status : first;
        }
    return first;
}

/* ---- phase two ---- */

/* A plugin's init runs without the registry lock, because init may start threads that call host functions and may wait
 * for these threads. */
static pthread_mutex_t init_mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t init_ended = PTHREAD_COND_INITIALIZER;    /* signalled also when a waits_for changes */
static struct plugin_file *running;         /* list of files whose init runs; protected by init_mutex */

/* Returns whether the init of `file` runs in the calling thread or was the origin of the call (`caller`). */
static bool runs_here(const struct plugin_file *file, const struct plugin_file *caller)
{
    return file->initialising && (file == caller || pthread_equal(file->initialiser, pthread_self()));
}

/* Returns whether the init of `file` waits, directly or through other inits, for the calling thread or `caller`. The
 * caller of this function holds init_mutex. */
static bool waits_for_here(const struct plugin_file *file, const struct plugin_file *caller)
{
    for (size_t i = 0; file != NULL && i <= registry_file_count; i++, file = file->waits_for)
        if (runs_here(file, caller))
            return true;
    return false;
}

/* Waits until another thread has ended the init of `file`. Returns false without waiting if that init waits for the
 * calling thread. Call it without the registry lock. */
static bool wait_for_init(const struct plugin_file *file, const struct plugin_file *caller)
{
    CANCEL_DISABLED;
    pthread_mutex_lock(&init_mutex);
    const bool waits = waits_for_here(file, caller);
    pthread_cond_broadcast(&init_ended);        /* a waiting fork must see the change of waits_for below */
    while (file->initialising && !waits) {
        for (struct plugin_file *here = running; here != NULL; here = here->next_running)
            if (runs_here(here, caller))
                here->waits_for = file;
        pthread_cond_wait(&init_ended, &init_mutex);
    }
    for (struct plugin_file *here = running; here != NULL && !waits; here = here->next_running)
        if (runs_here(here, caller))
            here->waits_for = NULL;
    pthread_mutex_unlock(&init_mutex);
    return !waits;
}

static void init_begins(struct plugin_file *file)
{
    pthread_mutex_lock(&init_mutex);
    file->initialiser = pthread_self();
    file->initialising = true;
    file->next_running = running;
    running = file;
    pthread_mutex_unlock(&init_mutex);
}

static void init_ends(struct plugin_file *file)
{
    pthread_mutex_lock(&init_mutex);
    struct plugin_file **at = &running;
    while (*at != file)
        at = &(*at)->next_running;
    *at = file->next_running;
    file->initialising = false;
    pthread_cond_broadcast(&init_ended);
    pthread_mutex_unlock(&init_mutex);
}

/* Runs the init of a plugin with the registry lock released. Cancellation is disabled, because a cancelled thread would
 * leave the plugin partly initialised. */
static ctrt_status run_init(struct plugin_file *file)
{
    CANCEL_DISABLED;
    init_begins(file);
    registry_leave();
    const ctrt_status status = file->plugin->init(&registry_host);
    registry_enter();
    init_ends(file);
    return status;
}

/* Returns whether another thread runs an init that does not wait for an init of the calling thread. The caller holds
 * init_mutex. */
static bool init_elsewhere(void)
{
    const struct plugin_file *file = running;
    while (file != NULL && waits_for_here(file, NULL))
        file = file->next_running;
    return file != NULL;
}

/* For lock_fork_when. The caller holds all locks of the library, so no init can begin meanwhile. */
static bool no_init_elsewhere(void)
{
    pthread_mutex_lock(&init_mutex);
    const bool none = !init_elsewhere();
    pthread_mutex_unlock(&init_mutex);
    return none;
}

/* A fork waits at most this long for inits of other threads, because an init may wait for the forking thread in a way
 * that the registry cannot detect. For example, the init may have started that thread and join it. */
#define FORK_WAIT_SECONDS 3

/* For lock_fork_when. Waits until no other thread runs an init; returns false on timeout. */
static bool wait_for_inits(void)
{
    struct timespec until;
    bool in_time = true;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += FORK_WAIT_SECONDS;
    CANCEL_DISABLED;
    pthread_mutex_lock(&init_mutex);
    while (in_time && init_elsewhere())
        in_time = pthread_cond_timedwait(&init_ended, &init_mutex, &until) != ETIMEDOUT;
    pthread_mutex_unlock(&init_mutex);
    return in_time;
}

/* Marks plugins as refused whose init runs in another thread, because that thread does not exist in the child. */
static void after_fork_in_child(void)
{
    pthread_mutex_init(&init_mutex, NULL);
    pthread_cond_init(&init_ended, NULL);
    for (struct plugin_file **at = &running; *at != NULL;) {
        struct plugin_file *file = *at;
        if (runs_here(file, NULL)) {
            at = &file->next_running;
            continue;
        }
        *at = file->next_running;
        file->initialising = false;
        file_refuse(file, "another thread was initialising it when the process forked");
    }
}

__attribute__((constructor)) static void load_start(void)
{
    lock_fork_when(no_init_elsewhere, wait_for_inits);
    (void)lock_at_fork(NULL, NULL, after_fork_in_child);
}

static void try_init(struct plugin_file *file)
{
    child_step("in its init");
    (void)run_init(file);
}

/* Runs init, with CTRT_PROBE=child first in a child process. */
static ctrt_status run_init_safely(struct plugin_file *file)
{
    char reason[512] = "";
    bool survives;
    CTRT_TRY(child_survives(&survives, try_init, file, reason, sizeof reason));
    return survives ? run_init(file) : ctrt_fail(CTRT_ERR_PLUGIN, "%s", reason);
}

ctrt_status file_init(struct plugin_file *file, const struct plugin_file *caller)
{
    if (file->initialised)
        return CTRT_OK;
    bool ended = true;
    while (file->initialising && ended) {
        registry_leave();
        ended = wait_for_init(file, caller);
        registry_enter();
    }
    if (file->initialised)
        return CTRT_OK;
    if (!ended)
        return ctrt_fail(CTRT_ERR_STATE, "plugin %s looks up its own backend while it is initialised", file->stem);
    if (file->state != PLUGIN_READY)
        return ctrt_fail(CTRT_ERR_PLUGIN, "plugin %s: %s", file->stem, file->reason);

    ctrt_status status = CTRT_OK;
    if (CTRT_SLOT(file->plugin, init)) {
        char before[4096];
        snprintf(before, sizeof before, "%s", ctrt_error_message());
        ctrt_fail(CTRT_ERR_PLUGIN, "init returned an error without a message");
        status = run_init_safely(file);
        if (status == CTRT_OK)
            ctrt_fail(CTRT_ERR_PLUGIN, "%s", before); /* restores the message from before init */
    }
    param_check_environment();
    if (status == CTRT_ERR_OUT_OF_MEMORY || status == CTRT_ERR_IO)
        return ctrt_context(status, "plugin %s", file->stem);       /* transient: the next use tries again */
    if (status != CTRT_OK) {
        file_refuse(file, intern_format("init failed: %s", ctrt_error_message()));
        log_message(CTRT_LOG_WARNING, "registry", "%s: %s", file->path, file->reason);
        return ctrt_fail(CTRT_ERR_PLUGIN, "plugin %s: %s", file->stem, file->reason);
    }
    file->initialised = true;
    for (size_t i = 0; i < file->count; i++)
        validate_late(&file->components[i]);
    return CTRT_OK;
}

void file_declare(struct plugin_file *file)
{
    if (file->initialised || file->initialising || file->listed || file->state != PLUGIN_READY
        || !CTRT_SLOT(file->plugin, init))
        return;
    if (run_init_safely(file) == CTRT_OK)
        file->initialised = true;
    else
        file->listed = true;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* base/param.c: the table of parameters with their values and the origin of each value. */
#define _GNU_SOURCE
#include "base/param.h"

#include <stdlib.h>
#include <unistd.h>

#include "base/base.h"
#include "base/intern.h"
#include "base/lock.h"
#include "base/host_alloc.h"

enum origin { ORIGIN_DEFAULT, ORIGIN_ENVIRONMENT, ORIGIN_PROGRAM };

struct value {
    const char *text;
    int64_t integer;
    enum origin origin;
};

/* A name that was declared, set, or found in the environment. Nodes are never freed; strings are interned
 * (intern.h). */
struct param_node {
    struct param_node *next;
    const char *name, *owner;
    const ctrt_param *param;    /* the first declaration; NULL: none yet */
    const ctrt_param *other;    /* the last conflicting declaration that was reported */
    const char *program;        /* set by ctrt_param_set */
    const char *rejected;       /* error message: `program` was malformed according to a later declaration */
    bool read;                  /* `value` is final */
    bool secret;                /* listings and messages must not contain the value */
    struct value value;         /* parsed according to the first declaration */
    bool complained;            /* a misspelled or late-changed environment variable was reported */
};

void (*param_declare_all)(void);
void (*param_before_set)(const char *name);

LOCK_DEFINE(param_lock, LOCK_PARAM);
static struct param_node *first;

static struct param_node *find(const char *name)
{
    struct param_node *node = first;
    while (node != NULL && strcmp(node->name, name) != 0)
        node = node->next;
    return node;
}

static struct param_node *find_or_add(const char *name)
{
    struct param_node *node = find(name);
    if (node != NULL)
        return node;
    const char *kept = intern_string(name);
    node = kept != NULL ? host_calloc(sizeof *node) : NULL;
    if (node == NULL)
        return NULL;
    node->name = kept;
    struct param_node **end = &first;
    while (*end != NULL)
        end = &(*end)->next;
    *end = node;
    return node;
}

/* Returns the text of a parameter's value for listings and messages. */
static const char *shown(const struct param_node *node, const char *text)
{
    return text != NULL && text[0] != '\0' && node->secret ? "set" : text;
}

static bool same_text(const char *a, const char *b)
{
    return a == b || (a != NULL && b != NULL && strcmp(a, b) == 0);
}

/* Returns whether two declarations have the same type, default and enum words. */
static bool same_meaning(const ctrt_param *a, const ctrt_param *b)
{
    return a == b || (a->type == b->type && same_text(a->words, b->words) && same_text(a->fallback, b->fallback));
}

/* Adds a declaration; has no effect if the name has one already. Parses a value that the program set before. The caller
 * holds param_lock. Returns NULL when out of memory. */
static struct param_node *declare(const ctrt_param *param, const char *owner)
{
    struct param_node *node = find_or_add(param->name);
    if (node == NULL || node->param != NULL)
        return node;
    node->param = param;
    node->owner = owner;
    int64_t ignored;
    if (node->program != NULL && param_parse(&ignored, param, node->program) != CTRT_OK) {
        node->rejected = intern_string(ctrt_error_message());
        node->program = NULL;
    }
    return node;
}

/* Returns whether `param`, which may come from a plugin, has a name and is large enough. */
static bool plausible(const ctrt_param *param)
{
    return param != NULL && param->size >= sizeof *param && param->name != NULL && param->name[0] != '\0';
}

void param_declare(const ctrt_param *param, const char *owner)
{
    if (!plausible(param))
        return;
    lock_enter(&param_lock);
    declare(param, owner);
    lock_leave(&param_lock);
}

void param_declare_secret(const ctrt_param *param)
{
    lock_enter(&param_lock);
    struct param_node *node = declare(param, "core");
    if (node != NULL)
        node->secret = true;
    lock_leave(&param_lock);
}

/* Reads a value according to the declaration `param`: the value set by the program, else the environment variable, else
 * the default. An empty environment variable counts as unset, except for string parameters, for which the empty string
 * can have a meaning (for example "no device is visible"). */
static ctrt_status find_value(struct value *out, const struct param_node *node, const ctrt_param *param)
{
    const char *text = node->program;
    enum origin origin = ORIGIN_PROGRAM;
    if (text == NULL) {
        text = secure_getenv(node->name);
        origin = ORIGIN_ENVIRONMENT;
        if (text != NULL && text[0] == '\0' && param->type != CTRT_PARAM_STRING)
            text = NULL;
    }
    if (text == NULL) {
        text = param->fallback;
        origin = ORIGIN_DEFAULT;
    }
    int64_t integer = 0;
    if (text != NULL) {
        CTRT_TRY(param_parse(&integer, param, text));
        size_t bytes = strlen(text) + 1;
        text = intern_string(text);
        ALLOC_CHECK(text, bytes, node->name);
    }
    out->text = text;
    out->integer = integer;
    out->origin = origin;
    return CTRT_OK;
}

/* Returns true, once per parameter, if the environment variable has been set to another value since it was read. */
static bool changed_late(struct param_node *node)
{
    if (!node->read || node->value.origin == ORIGIN_PROGRAM || node->complained)
        return false;
    const char *now = secure_getenv(node->name),
               *then = node->value.origin == ORIGIN_ENVIRONMENT ? node->value.text : NULL;
    if (now != NULL && now[0] == '\0' && node->param->type != CTRT_PARAM_STRING)
        now = NULL;
    if (now == NULL || (then != NULL && strcmp(now, then) == 0))
        return false;
    node->complained = true;
    return true;
}

static void warn_late(const char *name, const char *text)
{
    log_message(CTRT_LOG_WARNING, "core",
                "the environment variable %s was changed after it was read as \"%s\"; the change has no effect. Set it "
                "before the program starts, or call ctrt_param_set before the first use",
                name, text != NULL ? text : "(unset)");
}

static const char *or_unknown(const char *owner)
{
    return owner != NULL ? owner : "?";
}

static void warn_other(const char *name, const char *owner, const char *first_owner)
{
    log_message(CTRT_LOG_WARNING, "core",
            "%s declares the parameter %s with another type, other words or another default than %s, which declared it "
            "first; each uses its own declaration",
            or_unknown(owner), name, first_owner);
}

ctrt_status param_read(ctrt_param_value *out, const ctrt_param *param, const char *owner)
{
    if (out == NULL || !plausible(param))
        return ctrt_fail(CTRT_ERR_INVALID_ARGUMENT, "a parameter of %s is declared without size or name",
                         owner ? owner : "?");
    lock_enter(&param_lock);
    struct param_node *node = declare(param, owner);
    const bool first_meaning = node != NULL && same_meaning(node->param, param);
    struct value value = { 0 };
    const char *other_owner = NULL;
    const char *read_as = NULL;
    bool late = false;
    ctrt_status status = node == NULL ? out_of_memory(sizeof *node, param->name) : CTRT_OK;
    if (first_meaning) {
        if (!node->read)
            status = find_value(&node->value, node, param);
        node->read = status == CTRT_OK;
        value = node->value;
        late = node->read && changed_late(node);
        read_as = shown(node, value.text);
    } else if (node != NULL) {
        status = find_value(&value, node, param);
        other_owner = node->other != param ? or_unknown(node->owner) : NULL;
        node->other = param;
    }
    lock_leave(&param_lock);
    if (other_owner != NULL)
        warn_other(param->name, owner, other_owner);
    if (late)
        warn_late(param->name, read_as);
    if (status != CTRT_OK)
        return status;
    out->text = value.text;
    out->integer = value.integer;
    out->is_set = value.origin != ORIGIN_DEFAULT;
    return CTRT_OK;
}

void param_reopen(const char *name)
{
    lock_enter(&param_lock);
    struct param_node *node = find(name);
    if (node != NULL)
        node->read = false;
    lock_leave(&param_lock);
}

/* Returns a hash of the environment's pointers. The hash detects changes because setenv and putenv replace the pointer
 * of an entry. */
static uintptr_t environment_version(void)
{
    uintptr_t version = 1;
    for (char **entry = environ; entry != NULL && *entry != NULL; entry++)
        version = version * 31 + (uintptr_t)*entry;
    return version;
}

void param_check_late(void)
{
    static _Atomic uintptr_t seen;
    struct { const char *name, *text; } late[8];
    size_t count = 0;
    const uintptr_t version = environment_version();
    if (atomic_exchange_explicit(&seen, version, memory_order_relaxed) == version)
        return;
    lock_enter(&param_lock);
    for (struct param_node *node = first; node != NULL && count < COUNT_OF(late); node = node->next)
        if (node->param != NULL && changed_late(node)) {
            late[count].name = node->name;
            late[count++].text = shown(node, node->value.text);
        }
    lock_leave(&param_lock);
    for (size_t i = 0; i < count; i++)
        warn_late(late[i].name, late[i].text);
    param_check_environment();
}

/* ---- public ---- */

/* Returns CTRT_ERR_NOT_FOUND; the message suggests the most similar declared name. */
static ctrt_status fail_unknown(const char *name)
{
    const char *names[256];
    size_t count = 0;
    lock_enter(&param_lock);
    for (struct param_node *node = first; node != NULL && count < COUNT_OF(names); node = node->next)
        if (node->param != NULL)
            names[count++] = node->name;
    lock_leave(&param_lock);
    const char *near = nearest_word(name, names, count);
    return ctrt_fail(CTRT_ERR_NOT_FOUND, "there is no parameter %s%s%s%s (`ctrt info --params` lists them)",
                     name, near ? "; did you mean " : "", near ? near : "", near ? "?" : "");
}

/* Sets the value of a declared parameter. The caller holds param_lock. */
static ctrt_status node_set(struct param_node *node, const char *value)
{
    int64_t ignored;
    if (value != NULL)
        CTRT_TRY(param_parse(&ignored, node->param, value));
    if (node->read) {
        bool same = value != NULL && node->value.text != NULL && strcmp(value, node->value.text) == 0;
        if (same)
            return CTRT_OK;
        return ctrt_fail(CTRT_ERR_STATE,
                         "%s is already in use as \"%s\"; set it before the first call that uses it",
                         node->name, node->value.text != NULL ? shown(node, node->value.text) : "(unset)");
    }
    const char *kept = intern_string(value);
    if (value != NULL && kept == NULL)
        return out_of_memory(strlen(value) + 1, node->name);
    node->program = kept;
    return CTRT_OK;
}

ctrt_status ctrt_param_set(const char *name, const char *value)
{
    NULL_CHECK("param_set", name);
    if (param_before_set != NULL)
        param_before_set(name);
    lock_enter(&param_lock);
    struct param_node *node = find(name);
    bool known = node != NULL && node->param != NULL;
    ctrt_status status = CTRT_OK;
    if (known) {
        status = node_set(node, value);
    } else {
        /* The parameter may belong to a plugin that is not loaded yet. The value is stored before the plugins are
         * loaded (param_declare_all below), because the plugin may read it in its init. */
        node = find_or_add(name);
        const char *kept = intern_string(value);
        if (node == NULL || (value != NULL && kept == NULL))
            status = out_of_memory(strlen(name), "a parameter");
        else
            node->program = kept, node->rejected = NULL;
    }
    lock_leave(&param_lock);
    if (known || status != CTRT_OK)
        return status;

    if (param_declare_all != NULL)
        param_declare_all();
    lock_enter(&param_lock);
    const char *rejected = node->rejected;
    known = node->param != NULL;
    node->rejected = NULL;
    if (!known)
        node->program = NULL;
    lock_leave(&param_lock);
    if (!known)
        return fail_unknown(name);
    return rejected != NULL ? ctrt_fail(CTRT_ERR_INVALID_ARGUMENT, "%s", rejected) : CTRT_OK;
}

ctrt_status ctrt_param_get_info(ctrt_param_info *info, size_t index)
{
    static const char *const origins[] = { "default", "environment", "program" };
    static const char *const types[] = { "string", "int", "bool", "bytes", "enum" };
    ctrt_param_info own = CTRT_PARAM_INFO;
    NULL_CHECK("param_get_info", info);
    if (index == 0 && param_declare_all != NULL)
        param_declare_all();
    lock_enter(&param_lock);
    struct param_node *node = first;
    while (node != NULL && (node->param == NULL || index-- > 0))
        node = node->next;
    ctrt_status status = CTRT_OK;
    if (node == NULL) {
        status = ctrt_fail(CTRT_ERR_NOT_FOUND, "there is no parameter with that index");
    } else {
        /* Listing reads the environment without setting node->read, so that the value can still be set. */
        const char *environment = node->read ? NULL : intern_string(secure_getenv(node->name));
        own.name = node->name;
        own.value = shown(node, node->read      ? node->value.text
                                  : node->program ? node->program
                                  : environment   ? environment
                                                  : node->param->fallback);
        own.origin = origins[node->read ? node->value.origin : node->program ? ORIGIN_PROGRAM
                               : environment ? ORIGIN_ENVIRONMENT : ORIGIN_DEFAULT];
        own.owner = node->owner != NULL ? node->owner : "";
        own.help = node->param->help != NULL ? node->param->help : "";
        own.type = (size_t)node->param->type < COUNT_OF(types) ? types[node->param->type] : "?";
    }
    lock_leave(&param_lock);
    return status != CTRT_OK ? status : struct_write(info, &own, sizeof own, "param_get_info", "info");
}

/* ---- misspelled variables ---- */

/* Returns the part of the name after the prefix CTRT_, or NULL for names without this prefix. Only this part is
 * compared, because the common prefix would make all names similar. */
static const char *own_part(const char *name)
{
    return strncmp(name, "CTRT_", 5) == 0 && name[5] != '\0' ? name + 5 : NULL;
}

/* Returns the known name that is most similar to the unknown environment variable `name`. NULL if `name` is known or if
 * no name is similar. The caller holds param_lock. */
static const char *meant(const char *name)
{
    static const char *const foreign[] = { "CUDA_VISIBLE_DEVICES" };
    /* Parameters of backends over other backends, whose parameters have similar names and are declared first. */
    static const char *const later[] = { "CTRT_SIM_MULTI", "CTRT_NCCL_MULTI" };
    for (size_t i = 0; i < COUNT_OF(later); i++)
        if (strcmp(name, later[i]) == 0)
            return NULL;
    if (strncmp(name, "CUDA_V", 6) == 0 && strcmp(name, foreign[0]) != 0)
        return nearest_word(name, foreign, COUNT_OF(foreign));
    const char *part = own_part(name), *parts[256];
    size_t count = 0;
    if (part == NULL)
        return NULL;
    for (struct param_node *node = first; node != NULL && count < COUNT_OF(parts); node = node->next) {
        if (node->param == NULL)
            continue;
        if (strcmp(node->name, name) == 0)
            return NULL;
        if (own_part(node->name) != NULL)
            parts[count++] = own_part(node->name);
    }
    const char *near = nearest_word(part, parts, count);
    return near != NULL ? near - 5 : NULL;
}

void param_check_environment(void)
{
    struct { const char *name, *meant; } found[8];
    size_t count = 0;
    lock_enter(&param_lock);
    for (char **entry = environ; entry != NULL && *entry != NULL && count < COUNT_OF(found); entry++) {
        char name[64];
        size_t length = strcspn(*entry, "=");
        if (length >= sizeof name || (strncmp(*entry, "CTRT_", 5) != 0 && strncmp(*entry, "CUDA_V", 6) != 0))
            continue;
        memcpy(name, *entry, length);
        name[length] = '\0';
        const char *near = meant(name);
        struct param_node *node = near != NULL ? find_or_add(name) : NULL;
        if (node == NULL || node->complained)
            continue;
        node->complained = true;
        found[count].name = node->name;
        found[count++].meant = near;
    }
    lock_leave(&param_lock);
    for (size_t i = 0; i < count; i++)
        log_message(CTRT_LOG_WARNING, "core", "unknown environment variable %s; did you mean %s?",
                    found[i].name, found[i].meant);
}

void param_forget_values(void)
{
    lock_enter(&param_lock);
    for (struct param_node *node = first; node != NULL; node = node->next) {
        node->read = node->complained = false;
        node->program = node->value.text = node->rejected = NULL;
    }
    lock_leave(&param_lock);
}

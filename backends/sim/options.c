/* SPDX-License-Identifier: Apache-2.0 */
/* backends/sim/options.c: parses CTRT_SIM, the configuration of the simulated devices. */
#include "sim.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

static const ctrt_param sim_param = {
    .size = sizeof(ctrt_param), .name = "CTRT_SIM", .type = CTRT_PARAM_STRING,
    .help = "simulated devices: devices=4,memory=64m,latency=20us,bandwidth=8g,peers=ring,... (doc/sim.md)",
};
static const ctrt_param fault_param = {
    .size = sizeof(ctrt_param), .name = "CTRT_SIM_FAULT", .type = CTRT_PARAM_STRING,
    .help = "faults of simulated devices, counted from their opening: alloc:3;op:add@57;link:0-1 (doc/sim.md)",
};

/* ---- words and numbers ---- */

/* Returns the edit distance of two words: insertions, deletions, substitutions (Wagner and Fischer 1974). Both words
 * must have fewer than 32 letters. */
static size_t distance(const char *a, const char *b)
{
    size_t row[32], columns = strlen(b);
    for (size_t j = 0; j <= columns; j++)
        row[j] = j;
    for (size_t i = 1; a[i - 1] != '\0'; i++) {
        size_t diagonal = row[0];
        row[0] = i;
        for (size_t j = 1; j <= columns; j++) {
            size_t best = diagonal + (tolower((unsigned char)a[i - 1]) != b[j - 1]);
            diagonal = row[j];
            best = row[j] + 1 < best ? row[j] + 1 : best;
            best = row[j - 1] + 1 < best ? row[j - 1] + 1 : best;
            row[j] = best;
        }
    }
    return row[columns];
}

const char *sim_nearest_word(const char *word, const char *const *words)
{
    const char *found = NULL;
    size_t best = strlen(word) / 3 + 2;
    if (strlen(word) > 30)
        return NULL;
    for (; *words != NULL; words++) {
        size_t d = distance(word, *words);
        if (d < best && d < strlen(*words))
            best = d, found = *words;
    }
    return found;
}

const char *sim_known_words(char *buffer, size_t bytes, const char *word, const char *const *words)
{
    const char *near = sim_nearest_word(word, words);
    size_t used = 0;
    buffer[0] = '\0';
    for (size_t i = 0; words[i] != NULL && used < bytes; i++)
        used += (size_t)snprintf(buffer + used, bytes - used, "%s%s", i > 0 ? ", " : "", words[i]);
    if (near != NULL && used < bytes)
        snprintf(buffer + used, bytes - used, "; did you mean %s?", near);
    return buffer;
}

bool sim_parse_count(uint64_t *out, const char *text)
{
    char *end;
    if (!isdigit((unsigned char)text[0]))
        return false;
    errno = 0;
    *out = strtoull(text, &end, 10);
    return *end == '\0' && errno == 0;
}

/* Parses a number, possibly with a fraction, and multiplies it by the factor of the unit that follows. `units` ends
 * with a NULL name. */
struct unit {
    const char *name;
    double factor;
};

static bool parse_with_unit(double *out, const char *text, const struct unit *units)
{
    char *end;
    if (!isdigit((unsigned char)text[0]) || text[strspn(text, "0123456789.")] == 'x')
        return false;
    double value = strtod(text, &end);
    for (; units->name != NULL; units++)
        if (strcasecmp(end, units->name) == 0) {
            *out = value * units->factor;
            return *out <= 9e15;                /* integers up to this are exact in a double */
        }
    return false;
}

bool sim_parse_bytes(uint64_t *out, const char *text)
{
    static const struct unit units[] = {
        { "", 1 }, { "b", 1 }, { "k", 1024. }, { "kb", 1024. }, { "kib", 1024. }, { "m", 1048576. }, { "mb", 1048576. },
        { "mib", 1048576. }, { "g", 1073741824. }, { "gb", 1073741824. }, { "gib", 1073741824. },
        { "t", 1099511627776. }, { "tb", 1099511627776. }, { "tib", 1099511627776. }, { NULL, 0 }
    };
    double value;
    if (!parse_with_unit(&value, text, units))
        return false;
    *out = (uint64_t)value;
    return true;
}

bool sim_parse_time(int64_t *nanoseconds, const char *text)
{
    static const struct unit units[] = {
        { "", 1e3 }, { "ns", 1 }, { "us", 1e3 }, { "ms", 1e6 }, { "s", 1e9 }, { NULL, 0 }
    };
    double value;
    if (!parse_with_unit(&value, text, units) || value > 3600e9)
        return false;
    *nanoseconds = (int64_t)value;
    return true;
}

/* ---- the options ---- */

/* State of the parser; `why` receives what was expected if a value is malformed. */
struct reading {
    struct sim_options *options;
    const char *name;               /* name of the variable */
    const char *peers;              /* parsed when the number of devices is known */
    uint64_t jitter;                /* ns */
    char why[256];
};

static bool expected(struct reading *r, const char *what)
{
    snprintf(r->why, sizeof r->why, "expected %s", what);
    return false;
}

static bool parse_time(uint64_t *out, const char *text)
{
    int64_t time;
    bool good = sim_parse_time(&time, text);
    *out = good ? (uint64_t)time : 0;
    return good;
}

/* Parses "64m/256m": an entry per device; the last entry applies to all further devices. */
static bool read_list(uint64_t list[SIM_DEVICES], char *value, bool (*parse)(uint64_t *out, const char *text))
{
    int count = 0;
    for (char *rest = value, *entry; (entry = strsep(&rest, "/")) != NULL; count++)
        if (count == SIM_DEVICES || !parse(&list[count], entry))
            return false;
    for (; count < SIM_DEVICES; count++)
        list[count] = list[count - 1];
    return true;
}

static bool read_devices(struct reading *r, char *value)
{
    uint64_t count;
    if (!sim_parse_count(&count, value) || count > SIM_DEVICES)
        return expected(r, "a number of devices, 0 to 64");
    r->options->devices = (int)count;
    return true;
}

static bool read_memory(struct reading *r, char *value)
{
    if (!read_list(r->options->memory, value, sim_parse_bytes))
        return expected(r, "a size such as 64m or 1g, or one for each device: 64m/256m");
    for (int i = 0; i < SIM_DEVICES; i++)
        if (r->options->memory[i] < SIM_ALIGN || r->options->memory[i] > (uint64_t)1 << 42)
            return expected(r, "a size from 512 bytes to 4t");
    return true;
}

static bool read_latency(struct reading *r, char *value)
{
    uint64_t list[SIM_DEVICES];
    if (!read_list(list, value, parse_time))
        return expected(r, "a time such as 20us or 1.5ms, or one for each device: 0/20us");
    for (int i = 0; i < SIM_DEVICES; i++)
        r->options->latency[i] = (int64_t)list[i];
    return true;
}

static bool read_bandwidth(struct reading *r, char *value)
{
    return read_list(r->options->bandwidth, value, sim_parse_bytes)
           || expected(r, "bytes a second, such as 8g; 0: no limit; or one for each device: 8g/16g");
}

static bool read_pinned(struct reading *r, char *value)
{
    return sim_parse_bytes(&r->options->pinned, value) || expected(r, "a size such as 64m; 0: no limit");
}

static bool read_seed(struct reading *r, char *value)
{
    return sim_parse_count(&r->options->seed, value) || expected(r, "a whole number");
}

static bool read_jitter(struct reading *r, char *value)
{
    return parse_time(&r->jitter, value) || expected(r, "a time such as 50us");
}

static bool read_poison(struct reading *r, char *value)
{
    r->options->poison = strcmp(value, "yes") == 0;
    return r->options->poison || strcmp(value, "no") == 0 || expected(r, "yes or no");
}

static bool read_holes(struct reading *r, char *value)
{
    r->options->holes = strcmp(value, "yes") == 0;
    return r->options->holes || strcmp(value, "no") == 0 || expected(r, "yes or no");
}

static bool option_fault(struct reading *r, char *value)
{
    r->why[0] = '\0';
    return sim_faults_parse(&r->options->faults, r->name, value) == CTRT_OK;    /* sets the error */
}

static bool read_peers(struct reading *r, char *value)
{
    r->peers = value;
    return true;
}

static const struct option {
    const char *name;
    bool (*read)(struct reading *r, char *value);
} options[] = {
    { "devices", read_devices }, { "memory", read_memory }, { "latency", read_latency },
    { "bandwidth", read_bandwidth }, { "peers", read_peers }, { "pinned", read_pinned }, { "seed", read_seed },
    { "jitter", read_jitter }, { "poison", read_poison }, { "holes", read_holes }, { "fault", option_fault },
};
#define OPTIONS (sizeof options / sizeof options[0])

static void link_both(struct sim_options *o, int a, int b)
{
    o->peers[a] |= (uint64_t)1 << b;
    o->peers[b] |= (uint64_t)1 << a;
}

/* Parses "ring", "all", "none", or pairs: 0-1/2-3. */
static bool make_peers(struct reading *r, const char *value)
{
    struct sim_options *o = r->options;
    char *end;
    memset(o->peers, 0, sizeof o->peers);
    if (strcmp(value, "none") == 0)
        return true;
    if (strcmp(value, "all") == 0 || strcmp(value, "ring") == 0) {
        for (int a = 0; a < o->devices; a++)
            for (int b = 0; b < a; b++)
                if (value[0] == 'a' || a - b == 1 || a - b == o->devices - 1)
                    link_both(o, a, b);
        return true;
    }
    for (const char *at = value;; at = end + 1) {
        long a = strtol(at, &end, 10), b = -1;
        if (isdigit((unsigned char)at[0]) && *end == '-' && isdigit((unsigned char)end[1]))
            b = strtol(end + 1, &end, 10);
        if (b < 0 || a == b || a >= o->devices || b >= o->devices || (*end != '/' && *end != '\0'))
            return expected(r, "all, ring, none, or pairs of existing devices: 0-1/2-3");
        link_both(o, (int)a, (int)b);
        if (*end == '\0')
            return true;
    }
}

static void defaults(struct sim_options *o)
{
    *o = (struct sim_options){ .devices = 2, .seed = 1 };
    for (int i = 0; i < SIM_DEVICES; i++)
        o->memory[i] = (uint64_t)256 << 20;
}

static char *trim(char *word)
{
    word += strspn(word, " \t");
    for (size_t length = strlen(word); length > 0 && isspace((unsigned char)word[length - 1]);)
        word[--length] = '\0';
    return word;
}

static ctrt_status read_option(struct reading *r, const char *text, char *entry)
{
    char *value = strchr(entry, '=');
    if (value != NULL)
        *value++ = '\0';
    entry = trim(entry);
    for (size_t i = 0; i < OPTIONS; i++) {
        if (strcmp(options[i].name, entry) != 0)
            continue;
        if (value == NULL)
            return sim_host->fail(CTRT_ERR_INVALID_ARGUMENT, "%s=%s: \"%s\" has no value; write %s=...", r->name, text,
                                  entry, entry);
        value = trim(value);
        if (options[i].read(r, value))
            return CTRT_OK;
        if (r->why[0] == '\0')
            return CTRT_ERR_INVALID_ARGUMENT;
        return sim_host->fail(CTRT_ERR_INVALID_ARGUMENT, "%s=%s: %s: %s, not \"%s\"", r->name, text, entry, r->why,
                              value);
    }
    const char *words[OPTIONS + 1] = { NULL };
    char known[256];
    for (size_t i = 0; i < OPTIONS; i++)
        words[i] = options[i].name;
    return sim_host->fail(CTRT_ERR_INVALID_ARGUMENT, "%s=%s: there is no option \"%s\"; known: %s", r->name, text,
                          entry, sim_known_words(known, sizeof known, entry, words));
}

ctrt_status sim_options_parse(struct sim_options *out, const char *name, const char *text)
{
    char copy[2048];
    struct reading r = { .options = out, .name = name, .peers = "all" };
    defaults(out);
    if ((size_t)snprintf(copy, sizeof copy, "%s", text) >= sizeof copy)
        return sim_host->fail(CTRT_ERR_INVALID_ARGUMENT, "%s: longer than %zu characters", name, sizeof copy - 1);
    for (char *rest = copy, *entry; (entry = strsep(&rest, ",")) != NULL;) {
        if (*trim(entry) == '\0')
            continue;
        CTRT_TRY(read_option(&r, text, entry));
    }
    if (!make_peers(&r, r.peers))
        return sim_host->fail(CTRT_ERR_INVALID_ARGUMENT, "%s=%s: peers: %s, not \"%s\"", name, text, r.why, r.peers);
    if (r.jitter > 0) {
        char late[48];
        snprintf(late, sizeof late, "late:%lluns", (unsigned long long)r.jitter);
        return sim_faults_parse(&out->faults, name, late);
    }
    return CTRT_OK;
}

ctrt_status sim_options_read(struct sim_options *out)
{
    ctrt_param_value sim, fault;
    ctrt_status status = sim_host->param(&sim, &sim_param);
    if (status == CTRT_OK)
        status = sim_host->param(&fault, &fault_param);
    if (status == CTRT_OK)
        status = sim_options_parse(out, sim_param.name, sim.text != NULL ? sim.text : "");
    if (status == CTRT_OK && fault.text != NULL)
        status = sim_faults_parse(&out->faults, fault_param.name, fault.text);
    return status;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* tools/info.c: `ctrt info` and `ctrt plugins`, which list devices, plugins and parameters. */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ctrt/device.h"
#include "ctrt/memory.h"
#include "ctrt/plugin.h"
#include "json.h"
#include "tool.h"

/* What is shown, and how: a set. */
enum { JSON = 1, DEVICES = 2, PLUGINS = 4, PARAMS = 8, MEMORY = 16, LOAD = 32 };

/* ---- devices ---- */

/* Returns the free memory of a device in bytes, or -1 on error; ctrt_error_message has the reason. Opens the device. */
static long long free_memory(const char *name)
{
    ctrt_device *device = NULL;
    uint64_t free_bytes = 0, total = 0;
    if (ctrt_device_get(&device, name) != CTRT_OK
        || ctrt_device_memory_info(device, &free_bytes, &total) != CTRT_OK)
        return -1;
    return (long long)free_bytes;
}

static void device_text(const char *name, const ctrt_device_properties *facts, unsigned choice)
{
    char text[32];
    printf("  %-12s %s\n", name, facts->name[0] != '\0' ? facts->name : "(without a name)");
    printf("  %-12s memory %s", "",
           facts->total_memory > 0 ? tool_bytes(text, facts->total_memory) : "unknown");
    if (choice & MEMORY) {
        long long left = free_memory(name);
        if (left >= 0)
            printf(", free %s", tool_bytes(text, (unsigned long long)left));
        else
            printf(", free unknown (%s)", ctrt_error_message());
    }
    if (facts->processors > 0)
        printf(", %d %s", facts->processors, strncmp(name, "cpu", 3) == 0 ? "cores" : "multiprocessors");
    if (facts->clock_khz > 0)
        printf(", %d MHz", facts->clock_khz / 1000);
    if (facts->compute_major > 0)
        printf(", compute %d.%d", facts->compute_major, facts->compute_minor);
    if (facts->numa_node >= 0)
        printf(", NUMA node %d", facts->numa_node);
    if (facts->ecc >= 0)
        printf(", ECC %s", facts->ecc ? "on" : "off");
    printf("%s\n", facts->asynchronous ? ", asynchronous" : "");
    if (facts->uuid[0] != '\0' || facts->pci[0] != '\0')
        printf("  %-12s %s%s%s\n", "", facts->uuid,
               facts->uuid[0] != '\0' && facts->pci[0] != '\0' ? "  PCI " : "", facts->pci);
    if (facts->cpus[0] != '\0')
        printf("  %-12s processors %s are near\n", "", facts->cpus);
}

static void load_json(const char *name);

static void device_json(const char *name, const ctrt_device_properties *facts, unsigned choice)
{
    json_open(NULL, '{');
    json_string("device", name);
    json_string("name", facts->name);
    json_string("uuid", facts->uuid);
    json_string("pci", facts->pci);
    json_number("total_memory", (long long)facts->total_memory);
    if (choice & MEMORY)
        json_number("free_memory", free_memory(name));
    json_number("compute_major", facts->compute_major);
    json_number("compute_minor", facts->compute_minor);
    json_number("processors", facts->processors);
    json_number("clock_khz", facts->clock_khz);
    json_number("numa_node", facts->numa_node);
    json_number("ecc", facts->ecc);
    json_string("cpus", facts->cpus);
    json_bool("host_memory", facts->host_memory);
    json_bool("asynchronous", facts->asynchronous);
    if (choice & LOAD)
        load_json(name);
    json_close('}');
}

static void show_devices(unsigned choice)
{
    ctrt_device_spec spec;
    int count = 0;
    for (size_t i = 0; ctrt_device_list(&spec, i) == CTRT_OK; i++) {
        char name[64];
        ctrt_device_properties facts = CTRT_DEVICE_PROPERTIES;
        if (ctrt_device_format(name, sizeof name, &spec) != CTRT_OK
            || ctrt_device_get_properties(&facts, name) != CTRT_OK) {
            if (!(choice & JSON))
                printf("  %-12s %s\n", spec.type, ctrt_error_message());
            continue;
        }
        ((choice & JSON) ? device_json : device_text)(name, &facts, choice);
        count++;
    }
    if (count == 0 && !(choice & JSON))
        printf("  none can be used; see the plugins for the reasons\n");
}

/* ---- links ---- */

/* Describes the link from `name` to `peer` in at most 7 characters: "-" for the same device, "?" for unknown, "yes" or
 * "no" for direct copies, "NV4" for NVLink with 4 links. */
static const char *link_word(char word[8], const char *name, const char *peer)
{
    ctrt_link link = CTRT_LINK;
    if (strcmp(name, peer) == 0)
        return "-";
    if (ctrt_device_get_link(&link, name, peer) != CTRT_OK || link.direct < 0)
        return "?";
    if (strcmp(link.kind, "NVLink") == 0)
        snprintf(word, 8, link.links > 0 ? "NV%d" : "NV", link.links);
    else
        snprintf(word, 8, "%s", link.direct ? "yes" : "no");
    return word;
}

static void link_json(const char *name, const char *peer)
{
    ctrt_link link = CTRT_LINK;
    if (strcmp(name, peer) == 0 || ctrt_device_get_link(&link, name, peer) != CTRT_OK)
        return;
    json_open(NULL, '{');
    json_string("device", name);
    json_string("peer", peer);
    json_number("direct", link.direct);
    json_number("links", link.links);
    json_string("kind", link.kind);
    json_close('}');
}

static void links_head(const char *type, int count)
{
    printf("direct copies between devices of %s\n  %-12s", type, "");
    for (int i = 0; i < count; i++)
        printf(" %6d", i);
    printf("\n");
}

/* Prints for each device type which devices can copy directly to each other, one row per device. Skips types with only
 * one device. */
static void show_links(unsigned choice)
{
    ctrt_device_spec spec;
    char name[64], peer[64], word[8];
    for (size_t i = 0; ctrt_device_list(&spec, i) == CTRT_OK; i++) {
        const int count = spec.index >= 0 ? ctrt_device_count(spec.type) : 0;
        if (count < 2 || ctrt_device_format(name, sizeof name, &spec) != CTRT_OK)
            continue;
        if (!(choice & JSON) && spec.index == 0)
            links_head(spec.type, count);
        if (!(choice & JSON))
            printf("  %-12s", name);
        for (spec.index = 0; spec.index < count; spec.index++) {
            if (ctrt_device_format(peer, sizeof peer, &spec) != CTRT_OK)
                continue;
            if (choice & JSON)
                link_json(name, peer);
            else
                printf(" %6s", link_word(word, name, peer));
        }
        if (!(choice & JSON))
            printf("\n");
    }
}

/* ---- load ---- */

/* Prints a utilization table, or an error message, for each device type. */
static void show_load(void)
{
    ctrt_device_spec spec;
    char type[sizeof spec.type] = "";
    for (size_t i = 0; ctrt_device_list(&spec, i) == CTRT_OK; i++) {
        char *table = NULL;
        if (strcmp(type, spec.type) == 0)
            continue;
        snprintf(type, sizeof type, "%s", spec.type);
        if (ctrt_show_utilization(&table, type, true) == CTRT_OK)
            printf("load of %s\n%s", type, table);
        else
            printf("load of %s: %s\n", type, ctrt_error_message());
        free(table);
    }
}

static void load_json(const char *name)
{
    ctrt_usage usage = CTRT_USAGE;
    ctrt_process list[64];
    size_t count = 0;
    const bool known = ctrt_device_get_usage(&usage, name) == CTRT_OK;
    json_number("busy", known ? usage.busy : -1);
    json_number("used_memory", known && usage.total_memory > 0 ? (long long)usage.used_memory : -1);
    json_number("temperature", known ? usage.temperature : -1);
    json_number("milliwatts", known && usage.power >= 0 ? (long long)(usage.power * 1000) : -1);
    json_open("processes", '[');
    if (ctrt_device_get_processes(list, &count, sizeof list / sizeof list[0], name) != CTRT_OK)
        count = 0;
    for (size_t i = 0; i < count && i < sizeof list / sizeof list[0]; i++) {
        json_open(NULL, '{');
        json_number("pid", (long long)list[i].pid);
        json_string("name", list[i].name);
        json_number("memory", list[i].memory == UINT64_MAX ? -1 : (long long)list[i].memory);
        json_close('}');
    }
    json_close(']');
}

const char *tool_default_device(char *name, size_t bytes)
{
    ctrt_param_info info = CTRT_PARAM_INFO;
    ctrt_device_spec spec;
    for (size_t i = 0; ctrt_param_get_info(&info, i) == CTRT_OK; i++)
        if (strcmp(info.name, "CTRT_DEVICE") == 0 && info.value != NULL && strcmp(info.value, "auto") != 0
            && info.value[0] != '\0') {
            snprintf(name, bytes, "%s", info.value);
            return name;
        }
    if (ctrt_device_list(&spec, 0) != CTRT_OK || ctrt_device_format(name, bytes, &spec) != CTRT_OK)
        return NULL;
    return name;
}

/* ---- plugins ---- */

/* Returns whether the component is disabled because another one of its kind and name is used. */
static bool is_hidden(const ctrt_plugin_info *info)
{
    ctrt_plugin_info other = CTRT_PLUGIN_INFO;
    for (size_t i = 0; strcmp(info->state, "disabled") == 0 && ctrt_plugin_list(&other, i) == CTRT_OK; i++)
        if (strcmp(other.kind, info->kind) == 0 && strcmp(other.component, info->component) == 0
            && (strcmp(other.state, "ready") == 0 || strcmp(other.state, "loaded") == 0))
            return true;
    return false;
}

static void show_plugins(unsigned choice)
{
    ctrt_plugin_info info = CTRT_PLUGIN_INFO;
    int hidden = 0;
    for (size_t i = 0; ctrt_plugin_list(&info, i) == CTRT_OK; i++) {
        if (choice & JSON) {
            json_open(NULL, '{');
            json_string("file", info.file);
            json_string("plugin", info.plugin);
            json_string("version", info.version);
            json_string("kind", info.kind);
            json_string("component", info.component);
            json_string("state", info.state);
            json_string("reason", info.reason);
            json_number("score", info.score);
            json_close('}');
        } else if (is_hidden(&info)) {
            hidden++;
        } else {
            printf("  %-9s %-8s %-16s %s%s%s\n", info.state, info.kind[0] != '\0' ? info.kind : "-",
                   info.component[0] != '\0' ? info.component : "-",
                   info.file[0] != '\0' ? info.file : "(no file)",
                   info.version[0] != '\0' ? ", version " : "", info.version);
            if (info.reason[0] != '\0')
                printf("  %-9s %s\n", "", info.reason);
        }
    }
    if (hidden > 0)
        printf("  and %d of the same names, which are not used; --json lists them\n", hidden);
}

/* ---- parameters ---- */

static int by_name(const void *a, const void *b)
{
    return strcmp(((const ctrt_param_info *)a)->name, ((const ctrt_param_info *)b)->name);
}

static void show_params(unsigned choice)
{
    static ctrt_param_info list[256];
    size_t count = 0;
    ctrt_param_info next = CTRT_PARAM_INFO;
    while (count < sizeof list / sizeof list[0] && ctrt_param_get_info(&next, count) == CTRT_OK)
        list[count++] = next;
    qsort(list, count, sizeof list[0], by_name);
    for (size_t i = 0; i < count; i++) {
        const ctrt_param_info *info = &list[i];
        if (choice & JSON) {
            json_open(NULL, '{');
            json_string("name", info->name);
            json_string("value", info->value);
            json_string("origin", info->origin);
            json_string("owner", info->owner);
            json_string("type", info->type);
            json_string("help", info->help);
            json_close('}');
        } else {
            printf("  %-22s %s (%s; %s, of %s)\n  %-22s %s\n", info->name,
                   info->value != NULL ? info->value : "unset", info->origin, info->type, info->owner, "",
                   info->help);
        }
    }
}

/* ---- output ---- */

static void json_list(const char *key, void (*show)(unsigned), unsigned choice)
{
    json_open(key, '[');
    show(choice);
    json_close(']');
}

static void show_json(unsigned choice)
{
    json_open(NULL, '{');
    json_string("version", ctrt_version());
    json_number("plugin_abi_major", CTRT_PLUGIN_ABI_MAJOR);
    json_number("plugin_abi_minor", CTRT_PLUGIN_ABI_MINOR);
    json_open("plugin_search_path", '[');
    for (size_t i = 0; ctrt_plugin_folder(i) != NULL; i++)
        json_string(NULL, ctrt_plugin_folder(i));
    json_close(']');
    if (choice & DEVICES) {
        char name[128];
        json_string("default_device", tool_default_device(name, sizeof name));
        json_list("devices", show_devices, choice);
        json_list("links", show_links, choice);
    }
    if (choice & PLUGINS)
        json_list("plugins", show_plugins, choice);
    if (choice & PARAMS)
        json_list("parameters", show_params, choice);
    json_close('}');
}

static void show_text(unsigned choice)
{
    printf("ctrt %s, plugin ABI %u.%u\n", ctrt_version(), CTRT_PLUGIN_ABI_MAJOR, CTRT_PLUGIN_ABI_MINOR);
    printf("plugins are searched in\n");
    for (size_t i = 0; ctrt_plugin_folder(i) != NULL; i++)
        printf("  %s%s\n", ctrt_plugin_folder(i),
               ctrt_plugin_folder(i)[0] == '/' ? "" : " (ignored: not an absolute path)");
    if (choice & DEVICES) {
        char name[128];
        const char *best = tool_default_device(name, sizeof name);
        ctrt_device_properties facts = CTRT_DEVICE_PROPERTIES;
        printf("devices (auto is %s)\n", best != NULL ? best : "none");
        if (getenv("CTRT_DEVICE") != NULL && best != NULL && ctrt_device_get_properties(&facts, best) != CTRT_OK)
            printf("  %-12s %s\n", best, ctrt_error_message());
        show_devices(choice);
        show_links(choice);
        if (choice & LOAD)
            show_load();
    }
    if (choice & PLUGINS) {
        printf("plugins\n");
        show_plugins(choice);
    }
    if (choice & PARAMS) {
        printf("parameters: environment variables, or ctrt_param_set in a program\n");
        show_params(choice);
    }
}

static int info_usage(FILE *out, const char *command, int status)
{
    fprintf(out, "usage: ctrt %s [OPTION...]\n", command);
    if (strcmp(command, "info") == 0)
        fprintf(out,
                "  --devices   only devices\n"
                "  --plugins   only plugins\n"
                "  --params    only parameters\n"
                "  --memory    open each device and show its free memory\n"
                "  --load      utilization, memory and processes of each device, without opening it\n");
    fprintf(out, "  --json      as JSON\n  --help      this text\n");
    return status;
}

/* The options of `ctrt info`; the last three are also those of `ctrt plugins`. */
static const struct option info_options[] = {
    { "devices", no_argument, NULL, DEVICES },
    { "plugins", no_argument, NULL, PLUGINS },
    { "params", no_argument, NULL, PARAMS },
    { "memory", no_argument, NULL, MEMORY },
    { "load", no_argument, NULL, LOAD },
    { "json", no_argument, NULL, 'j' },
    { "help", no_argument, NULL, 'h' },
    { NULL, 0, NULL, 0 },
};

static int info_run(int argc, char **argv, const struct option *options, unsigned choice)
{
    for (int option; (option = getopt_long(argc, argv, "jh", options, NULL)) != -1;) {
        if (option == 'h')
            return info_usage(stdout, argv[0], 0);
        if (option == '?')
            return info_usage(stderr, argv[0], 2);
        choice |= option == 'j' ? JSON : (unsigned)option;
    }
    if (optind < argc) {
        fprintf(stderr, "ctrt %s: unexpected argument \"%s\"\n", argv[0], argv[optind]);
        return info_usage(stderr, argv[0], 2);
    }
    /* A plugin that crashes is listed, instead of ending the command. */
    if (setenv("CTRT_PROBE", "child", 0) != 0)
        return 2;
    if (!(choice & (DEVICES | PLUGINS | PARAMS)))
        choice |= DEVICES | PLUGINS | PARAMS;
    (choice & JSON ? show_json : show_text)(choice);
    return 0;
}

int tool_info(int argc, char **argv)
{
    return info_run(argc, argv, info_options, 0);
}

int tool_plugins(int argc, char **argv)
{
    return info_run(argc, argv, info_options + 5, PLUGINS);
}

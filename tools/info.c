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

struct info_choice {
    bool json, devices, plugins, params, memory, load;
};

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

static void device_text(const char *name, const ctrt_device_properties *facts, const struct info_choice *choice)
{
    char text[32];
    printf("  %-12s %s\n", name, facts->name[0] != '\0' ? facts->name : "(without a name)");
    printf("  %-12s memory %s", "",
           facts->total_memory > 0 ? tool_bytes(text, facts->total_memory) : "unknown");
    if (choice->memory) {
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

static void device_json(const char *name, const ctrt_device_properties *facts, const struct info_choice *choice)
{
    json_open(NULL, '{');
    json_string("device", name);
    json_string("name", facts->name);
    json_string("uuid", facts->uuid);
    json_string("pci", facts->pci);
    json_number("total_memory", (long long)facts->total_memory);
    if (choice->memory)
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
    if (choice->load)
        load_json(name);
    json_close('}');
}

/* Returns the number of devices shown. */
static int show_devices(const struct info_choice *choice)
{
    ctrt_device_spec spec;
    int count = 0;
    for (size_t i = 0; ctrt_device_list(&spec, i) == CTRT_OK; i++) {
        char name[64];
        ctrt_device_properties facts = CTRT_DEVICE_PROPERTIES;
        if (ctrt_device_format(name, sizeof name, &spec) != CTRT_OK
            || ctrt_device_get_properties(&facts, name) != CTRT_OK) {
            if (!choice->json)
                printf("  %-12s %s\n", spec.type, ctrt_error_message());
            continue;
        }
        (choice->json ? device_json : device_text)(name, &facts, choice);
        count++;
    }
    return count;
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
static void show_links(const struct info_choice *choice)
{
    ctrt_device_spec spec;
    char name[64], peer[64], word[8];
    for (size_t i = 0; ctrt_device_list(&spec, i) == CTRT_OK; i++) {
        const int count = spec.index >= 0 ? ctrt_device_count(spec.type) : 0;
        if (count < 2 || ctrt_device_format(name, sizeof name, &spec) != CTRT_OK)
            continue;
        if (!choice->json && spec.index == 0)
            links_head(spec.type, count);
        if (!choice->json)
            printf("  %-12s", name);
        for (spec.index = 0; spec.index < count; spec.index++) {
            if (ctrt_device_format(peer, sizeof peer, &spec) != CTRT_OK)
                continue;
            if (choice->json)
                link_json(name, peer);
            else
                printf(" %6s", link_word(word, name, peer));
        }
        if (!choice->json)
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

static void show_plugins(const struct info_choice *choice)
{
    ctrt_plugin_info info = CTRT_PLUGIN_INFO;
    for (size_t i = 0; ctrt_plugin_list(&info, i) == CTRT_OK; i++) {
        if (choice->json) {
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
        } else {
            printf("  %-9s %-8s %-16s %s%s%s\n", info.state, info.kind[0] != '\0' ? info.kind : "-",
                   info.component[0] != '\0' ? info.component : "-",
                   info.file[0] != '\0' ? info.file : "(no file)",
                   info.version[0] != '\0' ? ", version " : "", info.version);
            if (info.reason[0] != '\0')
                printf("  %-9s %s\n", "", info.reason);
        }
    }
}

/* ---- parameters ---- */

static int by_name(const void *a, const void *b)
{
    return strcmp(((const ctrt_param_info *)a)->name, ((const ctrt_param_info *)b)->name);
}

static void show_params(const struct info_choice *choice)
{
    static ctrt_param_info list[256];
    size_t count = 0;
    ctrt_param_info next = CTRT_PARAM_INFO;
    while (count < sizeof list / sizeof list[0] && ctrt_param_get_info(&next, count) == CTRT_OK)
        list[count++] = next;
    qsort(list, count, sizeof list[0], by_name);
    for (size_t i = 0; i < count; i++) {
        const ctrt_param_info *info = &list[i];
        if (choice->json) {
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

static void show_json(const struct info_choice *choice)
{
    json_open(NULL, '{');
    json_string("version", ctrt_version());
    json_number("plugin_abi_major", CTRT_PLUGIN_ABI_MAJOR);
    json_number("plugin_abi_minor", CTRT_PLUGIN_ABI_MINOR);
    json_open("plugin_search_path", '[');
    for (size_t i = 0; ctrt_plugin_folder(i) != NULL; i++)
        json_string(NULL, ctrt_plugin_folder(i));
    json_close(']');
    if (choice->devices) {
        char name[128];
        json_string("default_device", tool_default_device(name, sizeof name));
        json_open("devices", '[');
        show_devices(choice);
        json_close(']');
        json_open("links", '[');
        show_links(choice);
        json_close(']');
    }
    if (choice->plugins) {
        json_open("plugins", '[');
        show_plugins(choice);
        json_close(']');
    }
    if (choice->params) {
        json_open("parameters", '[');
        show_params(choice);
        json_close(']');
    }
    json_close('}');
}

static void show_text(const struct info_choice *choice)
{
    printf("ctrt %s, plugin ABI %u.%u\n", ctrt_version(), CTRT_PLUGIN_ABI_MAJOR, CTRT_PLUGIN_ABI_MINOR);
    printf("plugins are searched in\n");
    for (size_t i = 0; ctrt_plugin_folder(i) != NULL; i++)
        printf("  %s\n", ctrt_plugin_folder(i));
    if (choice->devices) {
        char name[128];
        const char *best = tool_default_device(name, sizeof name);
        printf("devices (auto is %s)\n", best != NULL ? best : "none");
        if (show_devices(choice) == 0)
            printf("  none can be used; see the plugins for the reasons\n");
        show_links(choice);
        if (choice->load)
            show_load();
    }
    if (choice->plugins) {
        printf("plugins\n");
        show_plugins(choice);
    }
    if (choice->params) {
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

int tool_info(int argc, char **argv)
{
    static const struct option options[] = {
        { "json", no_argument, NULL, 'j' },
        { "devices", no_argument, NULL, 'd' },
        { "plugins", no_argument, NULL, 'P' },
        { "params", no_argument, NULL, 'p' },
        { "memory", no_argument, NULL, 'm' },
        { "load", no_argument, NULL, 'l' },
        { "help", no_argument, NULL, 'h' },
        { NULL, 0, NULL, 0 },
    };
    struct info_choice choice = { 0 };
    for (int option; (option = getopt_long(argc, argv, "jh", options, NULL)) != -1;) {
        if (option == 'h')
            return info_usage(stdout, argv[0], 0);
        if (option == '?')
            return info_usage(stderr, argv[0], 2);
        choice.json = choice.json || option == 'j';
        choice.devices = choice.devices || option == 'd';
        choice.plugins = choice.plugins || option == 'P';
        choice.params = choice.params || option == 'p';
        choice.memory = choice.memory || option == 'm';
        choice.load = choice.load || option == 'l';
    }
    if (optind < argc) {
        fprintf(stderr, "ctrt %s: unexpected argument \"%s\"\n", argv[0], argv[optind]);
        return info_usage(stderr, argv[0], 2);
    }
    if (!choice.devices && !choice.plugins && !choice.params)
        choice.devices = choice.plugins = choice.params = true;
    (choice.json ? show_json : show_text)(&choice);
    return 0;
}

int tool_plugins(int argc, char **argv)
{
    static const struct option options[] = {
        { "json", no_argument, NULL, 'j' }, { "help", no_argument, NULL, 'h' }, { NULL, 0, NULL, 0 },
    };
    struct info_choice choice = { .plugins = true };
    for (int option; (option = getopt_long(argc, argv, "jh", options, NULL)) != -1;) {
        if (option == 'h')
            return info_usage(stdout, argv[0], 0);
        if (option == '?')
            return info_usage(stderr, argv[0], 2);
        choice.json = true;
    }
    if (optind < argc) {
        fprintf(stderr, "ctrt %s: unexpected argument \"%s\"\n", argv[0], argv[optind]);
        return info_usage(stderr, argv[0], 2);
    }
    (choice.json ? show_json : show_text)(&choice);
    return 0;
}

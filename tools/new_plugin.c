/* SPDX-License-Identifier: Apache-2.0 */
/* tools/new_plugin.c: `ctrt new-plugin`, which copies the templates of a kind of plugin and of its build files to a new
 * folder. In the files, `template` becomes the plugin's name, and the other words of plugin_init become what they stand
 * for. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <ftw.h>
#include <getopt.h>
#include <limits.h>
#include <pwd.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "ctrt/base.h"
#include "tool.h"

#define COUNT_OF(table) (sizeof(table) / sizeof(table)[0])

/* `prefix`: of the file, before the plugin's name. `module`: of pkg-config; `target`: of CMake. `names`: the only names
 * that a plugin of this kind can have, or NULL. */
static const struct kind {
    const char *name, *prefix, *module, *target, *names, *summary;
} kinds[] = {
    { "backend", "backend-", "ctrt-plugin", "ctrt::plugin", NULL, "hardware whose work is done when a call returns" },
    { "backend-async", "backend-", "ctrt-plugin", "ctrt::plugin", NULL, "hardware with queues, events and buffers" },
    { "kernels", "kernels-cpu-", "ctrt-plugin", "ctrt::plugin", NULL, "kernels that are added to the backend cpu" },
    { "memory", "memory-", "ctrt-plugin", "ctrt::plugin", NULL, "memory policy" },
    { "comm", "comm-", "ctrt", "ctrt::ctrt", NULL, "engine that connects ranks" },
    { "strategy", "strategy-", "ctrt", "ctrt::ctrt", NULL, "parallel strategy" },
    { "image", "image-", "ctrt-plugin", "ctrt::plugin", " bmp jpeg png tiff webp ", "decoder of image files" },
};

/* What is replaced by what. */
struct word {
    const char *text, *value;
};

struct plugin {
    const struct kind *kind;
    struct word words[11];              /* ends with text NULL */
    char stem[64], upper[40], sources[512], maintainer[256], date[64], year[8];
};

static int usage(FILE *out, int status)
{
    fputs("usage: ctrt new-plugin NAME --kind KIND [--folder FOLDER] [--templates FOLDER]\n"
          "Makes a folder with a plugin that builds by make, CMake and Meson, passes `make check`, can be installed,\n"
          "and has the files of a Debian package. The pages of doc/plugin-guide show how to go on. Kinds:\n", out);
    for (size_t i = 0; i < COUNT_OF(kinds); i++)
        fprintf(out, "    %-14s %s\n", kinds[i].name, kinds[i].summary);
    fputs("  --kind KIND          the kind\n"
          "  --folder FOLDER      the new folder (NAME)\n"
          "  --templates FOLDER   the templates, instead of those that are installed with this command\n"
          "The package's maintainer is that of DEBFULLNAME and DEBEMAIL.\n", out);
    return status;
}

/* Prints why, without a plugin. Returns the exit status. */
static int refuse(int status, const char *format, ...) __attribute__((format(printf, 2, 3)));
static int refuse(int status, const char *format, ...)
{
    va_list arguments;
    fputs("ctrt new-plugin: ", stderr);
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fputc('\n', stderr);
    return status;
}

/* ---- what is replaced ---- */

static const struct kind *kind_find(const char *name)
{
    for (size_t i = 0; name != NULL && i < COUNT_OF(kinds); i++)
        if (strcmp(kinds[i].name, name) == 0)
            return &kinds[i];
    return NULL;
}

/* The rule of ctrt_component.name in ctrt/plugin.h, for the part of the file's name behind its kind. */
static bool name_valid(const struct kind *kind, const char *name)
{
    const size_t length = strlen(name), before = strlen(strchr(kind->prefix, '-') + 1);
    return length > 0 && length + before <= 31 && strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789-") == length
           && name[0] >= 'a' && name[0] <= 'z' && name[length - 1] != '-';
}

/* The maintainer as the tools of Debian find it: DEBFULLNAME, else the user's full name or login; DEBEMAIL, else
 * LOGIN@localhost. */
static void maintainer_find(char *text, size_t bytes)
{
    const struct passwd *user = getpwuid(getuid());
    const char *login = user != NULL ? user->pw_name : "nobody", *name = getenv("DEBFULLNAME"),
               *mail = getenv("DEBEMAIL");
    char full[128] = "", address[128];
    if (user != NULL && user->pw_gecos != NULL)
        snprintf(full, sizeof full, "%.*s", (int)strcspn(user->pw_gecos, ","), user->pw_gecos);
    snprintf(address, sizeof address, "%s@localhost", login);
    snprintf(text, bytes, "%s <%s>", name != NULL ? name : full[0] != '\0' ? full : login,
             mail != NULL ? mail : address);
}

static void plugin_init(struct plugin *p, const struct kind *kind, const char *name)
{
    const time_t now = time(NULL);
    const struct tm *day = gmtime(&now);
    p->kind = kind;
    snprintf(p->stem, sizeof p->stem, "%s%s", kind->prefix, name);
    for (size_t i = 0; i <= strlen(name) && i < sizeof p->upper; i++)
        p->upper[i] = name[i] == '-' ? '_' : name[i] >= 'a' && name[i] <= 'z' ? (char)(name[i] - 32) : name[i];
    strftime(p->date, sizeof p->date, "%a, %d %b %Y %H:%M:%S +0000", day);
    strftime(p->year, sizeof p->year, "%Y", day);
    maintainer_find(p->maintainer, sizeof p->maintainer);
    const struct word words[COUNT_OF(p->words)] = {
        { "template", name },           { "TEMPLATE", p->upper },       { "@stem@", p->stem },
        { "@kind@", kind->name },       { "@module@", kind->module },   { "@target@", kind->target },
        { "@sources@", p->sources },    { "@version@", ctrt_version() }, { "@maintainer@", p->maintainer },
        { "@date@", p->date },          { "@year@", p->year },
    };
    memcpy(p->words, words, sizeof words);
}

/* Writes `text` with its words replaced. */
static void write_replaced(FILE *out, const struct plugin *p, const char *text)
{
    while (*text != '\0') {
        size_t w = 0;
        while (w < COUNT_OF(p->words) && strncmp(text, p->words[w].text, strlen(p->words[w].text)) != 0)
            w++;
        if (w < COUNT_OF(p->words)) {
            fputs(p->words[w].value, out);
            text += strlen(p->words[w].text);
        } else {
            fputc(*text++, out);
        }
    }
}

/* ---- copying ---- */

/* Returns the contents of a text file, which the caller frees; NULL after a message. */
static char *file_read(const char *path)
{
    char *text = NULL;
    size_t capacity = 0;
    FILE *in = fopen(path, "re");
    if (in == NULL || (getdelim(&text, &capacity, '\0', in) < 0 && ferror(in)) || text == NULL) {
        refuse(1, "%s: %s", path, in == NULL || ferror(in) ? strerror(errno) : "the file is empty");
        free(text);
        text = NULL;
    }
    if (in != NULL)
        fclose(in);
    return text;
}

/* Copies a file, unless `to` exists. Scripts become executable. */
static bool file_copy(const struct plugin *p, const char *from, const char *to)
{
    char *text = file_read(from);
    if (text == NULL)
        return false;
    FILE *out = fopen(to, "wxe");
    bool fine = out != NULL;
    const bool exists = out == NULL && errno == EEXIST;
    if (fine) {
        write_replaced(out, p, text);
        fine = !ferror(out) && (text[0] != '#' || text[1] != '!' || fchmod(fileno(out), 0755) == 0);
        fine = fclose(out) == 0 && fine;
    }
    free(text);
    if (!fine && !exists)
        refuse(1, "writing %s: %s", to, strerror(errno));
    return fine || exists;
}

static bool folder_copy(const struct plugin *p, const char *from, const char *to);

static bool entry_copy(const struct plugin *p, const char *from, const char *to, const char *name)
{
    struct stat facts;
    char source[PATH_MAX], target[PATH_MAX];
    if (snprintf(source, sizeof source, "%s/%s", from, name) >= (int)sizeof source
        || snprintf(target, sizeof target, "%s/%s", to, name) >= (int)sizeof target)
        return refuse(1, "%s/%s: the name is too long", to, name) == 0;
    if (stat(source, &facts) != 0 || !S_ISDIR(facts.st_mode))
        return file_copy(p, source, target);
    if (mkdir(target, 0755) != 0 && errno != EEXIST)
        return refuse(1, "%s: %s", target, strerror(errno)) == 0;
    return folder_copy(p, source, target);
}

/* Copies a folder with its folders. Files that exist already, because a folder before had them too, stay. */
static bool folder_copy(const struct plugin *p, const char *from, const char *to)
{
    struct dirent **entries = NULL;
    const int count = scandir(from, &entries, NULL, alphasort);
    bool fine = count >= 0;
    if (!fine)
        refuse(1, "%s: %s", from, strerror(errno));
    for (int i = 0; i < count; i++) {
        const char *name = entries[i]->d_name;
        if (fine && name[0] != '.')
            fine = entry_copy(p, from, to, name);
        free(entries[i]);
    }
    free(entries);
    return fine;
}

/* Lists the plugin's files in C, separated by blanks: those of the folder except try.c. */
static void sources_list(struct plugin *p, const char *folder)
{
    struct dirent **entries = NULL;
    const int count = scandir(folder, &entries, NULL, alphasort);
    size_t length = 0;
    for (int i = 0; i < count; i++) {
        const char *file = entries[i]->d_name, *dot = strrchr(file, '.');
        if (dot != NULL && strcmp(dot, ".c") == 0 && strcmp(file, "try.c") != 0 && length < sizeof p->sources)
            length += (size_t)snprintf(p->sources + length, sizeof p->sources - length, "%s%s", length > 0 ? " " : "",
                                       file);
        free(entries[i]);
    }
    free(entries);
}

static int remove_one(const char *path, const struct stat *facts, int type, struct FTW *place)
{
    (void)facts, (void)type, (void)place;
    return remove(path);
}

/* Writes the folder of the templates: as far from this program as in the installed tree, which may have been moved. */
static bool templates_find(char *path, size_t bytes)
{
    const ssize_t length = readlink("/proc/self/exe", path, bytes);
    char *slash = length > 0 && (size_t)length < bytes ? memrchr(path, '/', (size_t)length) : NULL;
    return slash != NULL
           && (size_t)snprintf(slash + 1, bytes - (size_t)(slash + 1 - path), "%s", TEMPLATES_FROM_BIN)
                  < bytes - (size_t)(slash + 1 - path);
}

/* Makes the folder, or nothing. */
static int plugin_make(struct plugin *p, const char *folder, const char *templates)
{
    char common[PATH_MAX], own[PATH_MAX];
    if (snprintf(common, sizeof common, "%s/common", templates) >= (int)sizeof common
        || snprintf(own, sizeof own, "%s/%s", templates, p->kind->name) >= (int)sizeof own)
        return refuse(1, "%s: the name is too long", templates);
    if (access(common, R_OK) != 0)
        return refuse(1, "there are no templates in %s (%s): they are installed with ctrt's headers (Debian: "
                         "libctrt-dev); --templates names another folder", templates, strerror(errno));
    if (mkdir(folder, 0755) != 0)
        return errno == EEXIST
                   ? refuse(1, "%s exists already; remove it, or name another folder with --folder", folder)
                   : refuse(1, "the folder %s cannot be made: %s", folder, strerror(errno));
    sources_list(p, own);
    if (folder_copy(p, own, folder) && folder_copy(p, common, folder))
        return 0;
    nftw(folder, remove_one, 8, FTW_DEPTH | FTW_PHYS);
    return 1;
}

int tool_new_plugin(int argc, char **argv)
{
    static const struct option options[] = {
        { "kind", required_argument, NULL, 'k' },
        { "folder", required_argument, NULL, 'f' },
        { "templates", required_argument, NULL, 't' },
        { "help", no_argument, NULL, 'h' },
        { NULL, 0, NULL, 0 },
    };
    const char *wanted = NULL, *folder = NULL, *templates = NULL;
    for (int c; (c = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        switch (c) {
        case 'k': wanted = optarg; break;
        case 'f': folder = optarg; break;
        case 't': templates = optarg; break;
        case 'h': return usage(stdout, 0);
        default:  return usage(stderr, 2);
        }
    }
    if (argc - optind != 1)
        return usage(stderr, 2);
    const char *name = argv[optind];
    const struct kind *kind = kind_find(wanted);
    if (kind == NULL) {
        refuse(2, wanted == NULL ? "--kind is missing%s" : "there is no kind \"%s\"", wanted == NULL ? "" : wanted);
        return usage(stderr, 2);
    }
    if (!name_valid(kind, name))
        return refuse(2, "\"%s\" is not a plugin's name: it begins with a lower-case letter, has lower-case letters, "
                         "digits and '-', does not end with '-', and %s is at most 31 characters", name,
                      strchr(kind->prefix, '-')[1] != '\0' ? "with \"cpu-\" before it" : "it");
    char word[40], installed[PATH_MAX];
    snprintf(word, sizeof word, " %s ", name);
    if (kind->names != NULL && strstr(kind->names, word) == NULL)
        return refuse(2, "a plugin of kind %s has the name of its format, one of:%s", kind->name, kind->names);
    if (templates == NULL && !templates_find(installed, sizeof installed))
        return refuse(1, "the folder of this program is not known (/proc/self/exe); --templates FOLDER is needed");
    struct plugin plugin = { 0 };
    plugin_init(&plugin, kind, name);
    folder = folder != NULL ? folder : name;
    const int status = plugin_make(&plugin, folder, templates != NULL ? templates : installed);
    if (status == 0)
        printf("%s: %s. To build and test it: cd %s && make check\n", folder, plugin.stem, folder);
    return status;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* backends/cuda/libs/tuning.c: times algorithms, and stores the results in the file CTRT_CUDA_TUNING.
 *
 * The file is text with one choice per line: library and version, device, key and choice, separated by tabs. Lines for
 * other libraries or devices are kept and ignored. Adding a choice writes a temporary file in the same directory and
 * renames it. If two processes add a choice at the same time, one of the lines may be lost; that choice is timed again
 * later. */
#include "tuning.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "host/options.h"
#include "plugins/common/file.h"
#include "plugins/common/fork.h"

#define HEADER "ctrt-cuda-tuning 1\n"
#define MOST_BYTES (16u << 20)
#define RUNS_AT_MOST 16

FORK_MUTEX(lock)
static char *content;                       /* the file without its header; lines end in \n. NULL: none or not read */
static bool was_read, refused;              /* refused: the file is not a tuning file or not readable */

/* ---- the file; called with the lock held ---- */

static char *read_file(const char *path)
{
    char *text = NULL;
    struct stat facts;
    /* O_NONBLOCK: does not wait for a pipe. */
    const int file = CTRT_PLUGIN_DESCRIPTOR(cuda_host, open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    if (file < 0) {
        refused = errno != ENOENT;          /* a file that cannot be read is not replaced */
        if (refused)
            cuda_host->log(CTRT_LOG_WARNING, "cuda", "CTRT_CUDA_TUNING: %s cannot be read: %s", path, strerror(errno));
        return NULL;
    }
    if (fstat(file, &facts) != 0 || !S_ISREG(facts.st_mode) || facts.st_size > (off_t)MOST_BYTES) {
        refused = true;
    } else if (facts.st_size > 0 && (text = cuda_host->alloc((size_t)facts.st_size + 2)) != NULL) {
        const size_t used = file_read(file, text, (size_t)facts.st_size + 1);
        if (strlen(text) != used || strncmp(text, HEADER, sizeof HEADER - 1) != 0) {
            refused = true;
            cuda_host->free(text);
            text = NULL;
        } else {
            if (text[used - 1] != '\n')     /* the last line is incomplete */
                strrchr(text, '\n')[1] = '\0';
            memmove(text, text + sizeof HEADER - 1, strlen(text) - (sizeof HEADER - 1) + 1);
        }
    }
    close(file);
    if (refused)
        cuda_host->log(CTRT_LOG_WARNING, "cuda",
                       "CTRT_CUDA_TUNING: %s is not a tuning file of this version; it is not changed", path);
    return text;
}

static bool write_all(int file, const char *text, size_t bytes)
{
    while (bytes > 0) {
        const ssize_t put = write(file, text, bytes);
        if (put < 0 && errno == EINTR)
            continue;
        if (put <= 0)
            return false;
        text += put;
        bytes -= (size_t)put;
    }
    return true;
}

/* Creates the temporary file in the directory of `path`, under a name that did not exist. Returns -1 and sets errno on
 * failure. */
static int open_beside(char *beside, size_t bytes, const char *path, bool exists)
{
    static unsigned counter;
    int file;
    if (exists && faccessat(AT_FDCWD, path, W_OK, AT_EACCESS) != 0)
        return -1;
    do {
        const int n = snprintf(beside, bytes, "%s.tmp-%ld-%u", path, (long)getpid(), counter++);
        if (n < 0 || (size_t)n >= bytes) {
            errno = ENAMETOOLONG;
            return -1;
        }
        file = CTRT_PLUGIN_DESCRIPTOR(cuda_host, open(beside, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC,
                                          exists ? 0600 : 0666));
    } while (file < 0 && (errno == EEXIST || errno == EINTR));
    return file;
}

/* Like core/base/file_writer.h, which a plugin cannot call: keeps a symbolic link and replaces the file to which it
 * points, with the same permissions; fails if the process has no write permission for the file. */
static void write_file(const char *given, const char *text)
{
    char beside[4096], real[PATH_MAX];
    struct stat old;
    const bool exists = stat(given, &old) == 0;
    const char *path = exists && realpath(given, real) != NULL ? real : given;
    const int file = open_beside(beside, sizeof beside, path, exists);
    bool good = file >= 0 && write_all(file, HEADER, sizeof HEADER - 1) && write_all(file, text, strlen(text));
    good = good && (!exists || fchmod(file, old.st_mode & 0777) == 0) && fsync(file) == 0;
    const int error = errno;
    if (file >= 0)
        close(file);
    if (!good || rename(beside, path) != 0) {
        cuda_host->log(CTRT_LOG_WARNING, "cuda", "CTRT_CUDA_TUNING: %s cannot be written: %s", path,
                       strerror(good ? errno : error));
        if (file >= 0)
            unlink(beside);
    }
}

/* ---- lines ---- */

/* Writes the part of a line before the choice: "cublaslt 130100\tNVIDIA H200 9.0 132\tKEY\t". */
static void write_start(char *text, size_t bytes, struct cuda_device *device, const char *library, size_t version,
                        const char *key)
{
    char name[128] = "";
    if (cuda_driver.device_name(name, sizeof name, device->ordinal) != CU_OK)
        name[0] = '\0';
    for (char *c = name; *c != '\0'; c++)
        if (*c == '\t' || *c == '\n')
            *c = ' ';
    snprintf(text, bytes, "%s %zu\t%s %d.%d %d\t%s\t", library, version, name, device->capability / 10,
             device->capability % 10, device->processors, key);
}

/* Returns the last line that begins with `start`, or NULL. */
static const char *find_line(const char *text, const char *start)
{
    const char *found = NULL;
    const size_t bytes = strlen(start);
    for (const char *line = text; line != NULL && *line != '\0';
         line = strchr(line, '\n'), line = line != NULL ? line + 1 : NULL)
        if (strncmp(line, start, bytes) == 0)
            found = line;
    return found;
}

bool cuda_tuning_find(struct cuda_device *device, const char *library, size_t version, const char *key,
                      char choice[TUNING_CHOICE])
{
    char start[TUNING_KEY + 256];
    bool found = false;
    if (cuda_options.tuning == NULL)
        return false;
    write_start(start, sizeof start, device, library, version, key);
    pthread_mutex_lock(&lock);
    if (!was_read)
        content = read_file(cuda_options.tuning);
    was_read = true;
    const char *line = find_line(content, start);
    if (line != NULL) {
        line += strlen(start);
        const size_t bytes = strcspn(line, "\n");
        found = bytes > 0 && bytes < TUNING_CHOICE;
        if (found) {
            memcpy(choice, line, bytes);
            choice[bytes] = '\0';
        }
    }
    pthread_mutex_unlock(&lock);
    return found;
}

void cuda_tuning_keep(struct cuda_device *device, const char *library, size_t version, const char *key,
                      const char *choice)
{
    char start[TUNING_KEY + 256];
    if (cuda_options.tuning == NULL)
        return;
    write_start(start, sizeof start, device, library, version, key);
    pthread_mutex_lock(&lock);
    /* Includes lines that other processes have added since the file was read. */
    char *now = refused ? NULL : read_file(cuda_options.tuning);
    const size_t before = now != NULL ? strlen(now) : 0, bytes = before + strlen(start) + strlen(choice) + 2;
    char *text = refused || bytes > MOST_BYTES ? NULL : cuda_host->alloc(bytes);
    if (text != NULL) {
        snprintf(text, bytes, "%s%s%s\n", now != NULL ? now : "", start, choice);
        write_file(cuda_options.tuning, text);
        if (content != NULL)
            cuda_host->free(content);
        content = text;
        was_read = true;
    }
    if (now != NULL)
        cuda_host->free(now);
    pthread_mutex_unlock(&lock);
}

/* ---- timing ---- */

bool cuda_tuning_allowed(cu_stream stream)
{
    int state = 0;
    return cuda_driver.capture_state(stream, &state) == CU_OK && state == 0;
}

double cuda_tuning_time(cu_stream stream, int runs, bool (*run)(void *argument), void *argument)
{
    cu_event from = NULL, to = NULL;
    float best = -1;
    if (cuda_driver.event_create(&from, 0) != CU_OK)
        return -1;
    if (cuda_driver.event_create(&to, 0) != CU_OK) {
        (void)cuda_driver.event_destroy(from);
        return -1;
    }
    bool good = run(argument);
    for (int i = 0; i < runs && i < RUNS_AT_MOST && good; i++) {
        float ms = 0;
        good = cuda_driver.event_record(from, stream) == CU_OK && run(argument)
               && cuda_driver.event_record(to, stream) == CU_OK && cuda_driver.event_synchronize(to) == CU_OK
               && cuda_driver.event_elapsed(&ms, from, to) == CU_OK;
        if (good && (best < 0 || ms < best))
            best = ms;
    }
    (void)cuda_driver.event_destroy(from);
    (void)cuda_driver.event_destroy(to);
    return good ? (double)best : -1;
}

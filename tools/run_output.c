/* SPDX-License-Identifier: Apache-2.0 */
/* tools/run_output.c: copies the output of ranks to stdout and stderr in whole lines.
 *
 * A source is the read end of a pipe with the bytes that were read and not yet written. A sink is stdout or stderr with
 * a chunk that is being written. The sink takes one line after the other from its sources, in turn. A source is not
 * read while it has lines to write, so that a rank waits in write() if stdout is slow, as without a launcher. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "run.h"

#define LINE_BYTES   ((size_t)1 << 20)  /* longer lines are passed on in parts */
#define FIRST_BYTES  ((size_t)64 << 10) /* the capacity of a pipe */
#define CHUNK_BYTES  4096               /* a pipe that is ready for poll() takes that many bytes without blocking */
#define PREFIX_BYTES 16

struct sink;

struct source {
    int fd;                             /* -1: the end was reached */
    int rank;
    struct sink *sink;
    char prefix[PREFIX_BYTES];
    char *data;
    size_t begin, ready, used, capacity;    /* [begin, ready): can be written; [ready, used): an incomplete line */
    bool in_line;                       /* a part of the line at `begin` has been written */
};

static struct sink {
    int fd;
    struct source *current;             /* its line is being written; NULL: the last line is complete */
    struct source *interrupted;         /* the last bytes were of this source and did not end a line */
    size_t turn;                        /* index of the source that is asked first */
    char chunk[CHUNK_BYTES];
    size_t used, sent;
    bool failed;                        /* discards what its sources write */
} sinks[2] = { { .fd = 1 }, { .fd = 2 } };

static struct source *sources, own = { .fd = -1, .rank = -1 };
static size_t source_count;
static int first_error;

/* ---- sources ---- */

bool output_begin(size_t pipes)
{
    struct stat out, err;
    const bool same = fstat(1, &out) == 0 && fstat(2, &err) == 0 && out.st_dev == err.st_dev
                      && out.st_ino == err.st_ino;
    sources = calloc(pipes + 1, sizeof *sources);
    own.sink = &sinks[same ? 0 : 1];
    own.data = malloc(FIRST_BYTES);
    own.capacity = FIRST_BYTES;
    return sources != NULL && own.data != NULL;
}

bool output_add(int fd, int to, int rank, const char *prefix)
{
    struct source *source = &sources[source_count];
    /* If stdout and stderr are the same file, one sink keeps lines of both apart. */
    *source = (struct source) { .fd = fd, .rank = rank, .sink = to == 1 ? &sinks[0] : own.sink,
                                .data = malloc(FIRST_BYTES), .capacity = FIRST_BYTES };
    if (source->data == NULL || fcntl(fd, F_SETFL, O_NONBLOCK) != 0)
        return false;
    snprintf(source->prefix, sizeof source->prefix, "%s", prefix);
    source_count++;
    return true;
}

/* Makes room for at least one byte after `used`. Returns false if the source has reached its limit. */
static bool make_room(struct source *source)
{
    if (source->begin > 0) {
        memmove(source->data, source->data + source->begin, source->used - source->begin);
        source->used -= source->begin;
        source->ready -= source->begin;
        source->begin = 0;
    }
    if (source->used < source->capacity)
        return true;
    char *data = source->capacity < LINE_BYTES ? realloc(source->data, 2 * source->capacity) : NULL;
    if (data == NULL)
        return false;
    source->data = data;
    source->capacity *= 2;
    return true;
}

static void end_source(struct source *source)
{
    if (source->fd >= 0)
        close(source->fd);
    source->fd = -1;
    source->ready = source->used;
}

/* Reads the bytes that are available, at most as many as the buffer can take. */
static void read_source(struct source *source)
{
    if (source->fd < 0 || source->ready > source->begin)
        return;
    if (!make_room(source)) {
        source->ready = source->used;
        return;
    }
    const ssize_t n = read(source->fd, source->data + source->used, source->capacity - source->used);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (n <= 0) {
        end_source(source);
        return;
    }
    const char *end = memrchr(source->data + source->used, '\n', (size_t)n);
    source->used += (size_t)n;
    if (end != NULL)
        source->ready = (size_t)(end + 1 - source->data);
    if (source->sink->failed)
        source->begin = source->ready = source->used = 0;
}

void output_read(int rank)
{
    for (size_t i = 0; i < source_count; i++)
        if (sources[i].rank == rank)
            read_source(&sources[i]);
}

bool output_open(int rank)
{
    for (size_t i = 0; i < source_count; i++)
        if (sources[i].fd >= 0 && (rank < 0 || sources[i].rank == rank))
            return true;
    return false;
}

void output_close(void)
{
    for (size_t i = 0; i < source_count; i++)
        end_source(&sources[i]);
}

void output_say(const char *format, ...)
{
    char text[1024] = "ctrt run: ";
    const size_t start = strlen(text);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text + start, sizeof text - start - 1, format, arguments);
    va_end(arguments);
    const size_t bytes = strlen(text);
    text[bytes] = '\n';
    (void)make_room(&own);
    if (own.sink->failed || own.capacity - own.used < bytes + 1)
        return;
    memcpy(own.data + own.used, text, bytes + 1);
    own.used += bytes + 1;
    own.ready = own.used;
}

/* ---- sinks ---- */

/* Returns the source whose line is written next, NULL if none has one. */
static struct source *next_source(struct sink *sink)
{
    if (sink->current != NULL)
        return sink->current;
    if (sink->interrupted != NULL && sink->interrupted->ready > sink->interrupted->begin)
        return sink->interrupted;
    for (size_t i = 0; i <= source_count; i++) {
        const size_t index = (sink->turn + i) % (source_count + 1);
        struct source *source = index < source_count ? &sources[index] : &own;
        if (source->sink == sink && source->ready > source->begin) {
            sink->turn = index + 1;
            return source;
        }
    }
    return NULL;
}

static void put(struct sink *sink, const char *data, size_t bytes)
{
    memcpy(sink->chunk + sink->used, data, bytes);
    sink->used += bytes;
}

/* Fills the chunk. A line that is interrupted by another one continues on a new line, with its prefix. */
static void run_output_fill(struct sink *sink)
{
    struct source *source;
    while (sink->used + PREFIX_BYTES + 2 < CHUNK_BYTES && (source = next_source(sink)) != NULL) {
        if (sink->interrupted != NULL && sink->interrupted != source) {
            put(sink, "\n", 1);
            sink->interrupted->in_line = false;
        }
        sink->interrupted = NULL;
        if (!source->in_line)
            put(sink, source->prefix, strlen(source->prefix));
        const char *from = source->data + source->begin;
        const size_t room = CHUNK_BYTES - sink->used - 1, left = source->ready - source->begin;
        size_t bytes = left < room ? left : room;
        const char *end = memchr(from, '\n', bytes);
        if (end != NULL)
            bytes = (size_t)(end + 1 - from);
        put(sink, from, bytes);
        source->begin += bytes;
        source->in_line = end == NULL;
        if (source->in_line && source->fd < 0 && source->begin == source->used && source->prefix[0] != '\0') {
            put(sink, "\n", 1);
            source->in_line = false;
        }
        sink->current = source->in_line && source->begin < source->ready ? source : NULL;
        sink->interrupted = source->in_line && sink->current == NULL ? source : NULL;
    }
}

static bool idle(const struct sink *sink)
{
    if (sink->sent < sink->used)
        return false;
    for (size_t i = 0; i < source_count; i++)
        if (sources[i].sink == sink && sources[i].ready > sources[i].begin)
            return false;
    return own.sink != sink || own.ready == own.begin;
}

/* Marks the sink as failed and discards its output, also all that its sources write later. */
static void fail_sink(struct sink *sink, int error)
{
    sink->failed = true;
    sink->used = sink->sent = 0;
    sink->current = sink->interrupted = NULL;
    for (size_t i = 0; i < source_count; i++)
        if (sources[i].sink == sink) {
            if (error == EPIPE)
                end_source(&sources[i]);
            sources[i].begin = sources[i].ready = sources[i].used = 0;
        }
    if (own.sink == sink)
        own.begin = own.ready = own.used = 0;
    if (error == EPIPE)
        return;
    first_error = first_error != 0 ? first_error : error;
    output_say("writing to %s: %s; the ranks' output is discarded", sink->fd == 1 ? "stdout" : "stderr",
               strerror(error));
}

static void write_sink(struct sink *sink)
{
    for (int rounds = 0; rounds < 16; rounds++) {
        struct pollfd entry = { .fd = sink->fd, .events = POLLOUT };
        if (sink->sent == sink->used) {
            sink->sent = sink->used = 0;
            run_output_fill(sink);
        }
        if (sink->used == 0 || poll(&entry, 1, 0) <= 0)
            return;
        const ssize_t n = write(sink->fd, sink->chunk + sink->sent, sink->used - sink->sent);
        if (n < 0 && errno != EAGAIN && errno != EINTR) {
            fail_sink(sink, errno);
            return;
        }
        sink->sent += n > 0 ? (size_t)n : 0;
    }
}

/* ---- */

size_t output_polls(struct pollfd *polls)
{
    for (size_t i = 0; i < source_count; i++)
        polls[i] = (struct pollfd) { .fd = sources[i].ready > sources[i].begin ? -1 : sources[i].fd, .events = POLLIN };
    for (size_t i = 0; i < 2; i++)
        polls[source_count + i] = (struct pollfd) { .fd = idle(&sinks[i]) ? -1 : sinks[i].fd, .events = POLLOUT };
    return source_count + 2;
}

void output_handle(const struct pollfd *polls)
{
    for (size_t i = 0; i < source_count; i++)
        if (polls[i].revents != 0)
            read_source(&sources[i]);
    for (size_t i = 0; i < 2; i++)
        if (!sinks[i].failed && !idle(&sinks[i]))
            write_sink(&sinks[i]);
}

bool output_written(void)
{
    return idle(&sinks[0]) && idle(&sinks[1]);
}

int output_error(void)
{
    return first_error;
}

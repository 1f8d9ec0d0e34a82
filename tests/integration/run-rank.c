/* SPDX-License-Identifier: Apache-2.0 */
/* run-rank.c MODE [ARGUMENT...]: the program that run.sh starts with `ctrt run`.
 *
 *   store         joins the store, counts the ranks and prints their number when all have joined
 *   lines N       writes N lines of various lengths to stdout and to stderr, in pieces
 *   line BYTES    writes one line of that many bytes in pieces
 *   port          prints a free port
 *   default-int PROGRAM [ARGUMENT...]
 *                 executes the program with the default action of SIGINT, which shells ignore in background jobs */
#include <arpa/inet.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ctrt/ctrt.h"

static const char *variable(const char *name)
{
    const char *text = getenv(name);
    return text != NULL ? text : "";
}

static ctrt_status join(void)
{
    const long size = atol(variable("WORLD_SIZE"));
    ctrt_store *store = NULL;
    int64_t sum = 0;
    void *value = NULL;
    size_t bytes;
    CTRT_TRY(ctrt_store_open(&store, variable("CTRT_STORE"), false, 10));
    CTRT_TRY(ctrt_store_add(store, "test/ranks", 1, &sum));
    if (sum == size)
        CTRT_TRY(ctrt_store_set(store, "test/all", "all", 3));
    CTRT_TRY(ctrt_store_get(store, "test/all", &value, &bytes, 10));
    CTRT_TRY(ctrt_store_add(store, "test/ranks", 0, &sum));
    printf("%lld of %ld ranks have joined\n", (long long)sum, size);
    free(value);
    ctrt_store_release(&store);
    return CTRT_OK;
}

/* Writes in pieces, so that other ranks write between them. */
static void write_pieces(int fd, const char *text, size_t bytes, size_t piece)
{
    while (bytes > 0) {
        const ssize_t n = write(fd, text, bytes < piece ? bytes : piece);
        if (n < 0)
            exit(1);
        text += n;
        bytes -= (size_t)n;
    }
}

static void write_lines(int count)
{
    static char fill[3000];
    memset(fill, 'x', sizeof fill);
    for (int i = 0; i < count; i++) {
        char line[4096];
        const int fd = 1 + i % 2, length = i % 50 == 0 ? 2900 : i * 7 % 60;
        const int bytes = snprintf(line, sizeof line, "rank %s line %d %.*s|\n", variable("RANK"), i, length, fill);
        write_pieces(fd, line, (size_t)bytes, (size_t)(1 + bytes / (1 + i % 4)));
    }
}

static int write_line(size_t bytes)
{
    char *line = malloc(bytes);
    if (line == NULL)
        return 1;
    memset(line, 'a' + atoi(variable("RANK")), bytes);
    line[bytes - 1] = '\n';
    write_pieces(1, line, bytes, 10000);
    free(line);
    return 0;
}

static int print_port(void)
{
    struct sockaddr_in address = { .sin_family = AF_INET };
    socklen_t bytes = sizeof address;
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (bind(fd, (struct sockaddr *)&address, bytes) != 0 || getsockname(fd, (struct sockaddr *)&address, &bytes) != 0)
        return 1;
    printf("%d\n", ntohs(address.sin_port));
    return 0;
}

int main(int argc, char **argv)
{
    const char *mode = argc > 1 ? argv[1] : "";
    if (strcmp(mode, "store") == 0) {
        if (join() == CTRT_OK)
            return 0;
        fprintf(stderr, "%s\n", ctrt_error_message());
        return 1;
    }
    if (strcmp(mode, "lines") == 0 && argc == 3) {
        write_lines(atoi(argv[2]));
        return 0;
    }
    if (strcmp(mode, "line") == 0 && argc == 3)
        return write_line((size_t)atol(argv[2]));
    if (strcmp(mode, "port") == 0)
        return print_port();
    if (strcmp(mode, "default-int") == 0 && argc > 2) {
        signal(SIGINT, SIG_DFL);
        execvp(argv[2], argv + 2);
    }
    return 2;
}

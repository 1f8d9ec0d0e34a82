/* SPDX-License-Identifier: Apache-2.0 */
/* tools/run.c: `ctrt run`, which starts a program as several ranks: options, the store, and the ranks' environment.
 *
 * The launcher serves the key-value store, so that the store outlives every rank. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "ctrt/device.h"
#include "run.h"
#include "tool.h"

#define MAX_RANKS 4096                  /* on this machine */

static const char usage[] =
    "usage: ctrt run [OPTION...] PROGRAM [ARGUMENT...]\n"
    "Starts PROGRAM as several ranks on this machine, each with RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE,\n"
    "MASTER_ADDR, MASTER_PORT, CTRT_STORE, CTRT_STORE_SECRET and CTRT_JOB, and serves their store. If a rank fails,\n"
    "the others are ended. Exit status: 0, or that of the first rank that failed (128 + signal if it was killed).\n"
    "  -n, --ranks N      ranks on this machine; default: the number of devices of CTRT_DEVICE's type, for the cpu 1\n"
    "  --prefix           begins each line of output with \"[RANK] \"; default if there are several ranks\n"
    "  --no-prefix        does not\n"
    "  --grace SECONDS    after a failure, time for the other ranks before SIGTERM (10); SIGKILL follows 3 s later\n"
    "  --on-failure stop|shrink\n"
    "                     shrink: if a rank is lost, the others go on without it (sets CTRT_ON_FAILURE); exit status\n"
    "                     0 if a rank ends with 0; default: that of CTRT_ON_FAILURE, else stop\n"
    "  --restart N        starts a rank that is lost again, N times in all; it joins the others at the end of a step;\n"
    "                     implies --on-failure shrink\n"
    "  --nodes M          number of machines; `ctrt run` is started on each of them, with the same -n\n"
    "  --node I           this machine's index, from 0\n"
    "  --store tcp://HOST:PORT\n"
    "                     address of the store, which node 0 serves; its secret is CTRT_STORE_SECRET, the same on all\n"
    "                     machines; default on one machine: a free port of 127.0.0.1 and a random secret\n";

/* ---- options ---- */

__attribute__((format(printf, 1, 2))) static int wrong(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fprintf(stderr, "ctrt run: ");
    vfprintf(stderr, format, args);
    fprintf(stderr, "\n\n%s", usage);
    va_end(args);
    return 2;
}

/* Reads the argument of `option`. Returns 0, or the exit status after a message. */
static int read_number(int *out, const char *option, int least, int most)
{
    char *end;
    errno = 0;
    const long value = strtol(optarg, &end, 10);
    *out = (int)value;
    if (errno == 0 && end != optarg && *end == '\0' && value >= least && value <= most)
        return 0;
    return wrong("%s: \"%s\" is not a number from %d to %d", option, optarg, least, most);
}

/* Returns -1 if the ranks can be started, else the exit status. */
static int run_read_options(struct run_options *out, int argc, char **argv)
{
    enum { NODES = 256, NODE, STORE, GRACE_TIME, PREFIX, NO_PREFIX, ON_FAILURE, RESTART };
    static const struct option options[] = {
        { "ranks", required_argument, NULL, 'n' },      { "nodes", required_argument, NULL, NODES },
        { "node", required_argument, NULL, NODE },      { "store", required_argument, NULL, STORE },
        { "grace", required_argument, NULL, GRACE_TIME }, { "prefix", no_argument, NULL, PREFIX },
        { "no-prefix", no_argument, NULL, NO_PREFIX },  { "help", no_argument, NULL, 'h' },
        { "on-failure", required_argument, NULL, ON_FAILURE }, { "restart", required_argument, NULL, RESTART },
        { NULL, 0, NULL, 0 },
    };
    *out = (struct run_options) { .nodes = 1, .node = -1, .prefix = -1, .grace = 10 };
    const char *mode = getenv("CTRT_ON_FAILURE");
    out->shrink = mode != NULL && strcmp(mode, "shrink") == 0;
    char *end;
    int status = 0;
    for (int c; status == 0 && (c = getopt_long(argc, argv, "+n:h", options, NULL)) != -1;) {
        switch (c) {
        case 'n':   status = read_number(&out->ranks, "-n", 1, MAX_RANKS); break;
        case NODES: status = read_number(&out->nodes, "--nodes", 1, 65536); break;
        case NODE:  status = read_number(&out->node, "--node", 0, 65535); break;
        case GRACE_TIME:
            out->grace = strtod(optarg, &end);
            if (end == optarg || *end != '\0' || !(out->grace >= 0 && out->grace <= 1e6))
                return wrong("--grace: \"%s\" is not a number of seconds", optarg);
            break;
        case ON_FAILURE:
            out->shrink = strcmp(optarg, "shrink") == 0;
            if (!out->shrink && strcmp(optarg, "stop") != 0)
                return wrong("--on-failure: \"%s\" is neither stop nor shrink", optarg);
            break;
        case RESTART:
            status = read_number(&out->restarts, "--restart", 0, 1000000);
            out->shrink = out->shrink || out->restarts > 0;
            break;
        case STORE:     out->store = optarg; break;
        case PREFIX:    out->prefix = 1; break;
        case NO_PREFIX: out->prefix = 0; break;
        case 'h':       fputs(usage, stdout); return 0;
        default:        fputs(usage, stderr); return 2;
        }
    }
    if (status != 0)
        return status;
    if (optind == argc)
        return wrong("no program");
    if (out->store != NULL && strncmp(out->store, "tcp://", 6) != 0)
        return wrong("--store: \"%s\" is not an address tcp://HOST:PORT", out->store);
    if (out->nodes > 1 && (out->node < 0 || out->store == NULL))
        return wrong("--nodes needs --node and --store");
    if (out->node >= out->nodes)
        return wrong("--node must be less than --nodes");
    out->node = out->node < 0 ? 0 : out->node;
    out->program = argv + optind;
    return -1;
}

/* Returns the number of ranks if -n is not given; 0 after a message. */
static int default_ranks(void)
{
    char name[64];
    ctrt_device_spec spec;
    if (tool_default_device(name, sizeof name) == NULL)
        return 1;
    if (ctrt_device_parse(&spec, name) != CTRT_OK) {
        fprintf(stderr, "ctrt run: CTRT_DEVICE: %s\n", ctrt_error_message());
        return 0;
    }
    const char *why = NULL;
    if (strcmp(spec.type, "cpu") == 0)
        return 1;
    if (!ctrt_is_available(spec.type, &why)) {
        fprintf(stderr, "ctrt run: no device of type %s: %s; -n sets the number of ranks\n", spec.type, why);
        return 0;
    }
    return ctrt_device_count(spec.type);
}

/* ---- the environment of the ranks ---- */

void run_set_number(const char *name, int value)
{
    char text[16];
    snprintf(text, sizeof text, "%d", value);
    setenv(name, text, 1);
}

/* Sets the variable to a random text, which begins with `prefix`. */
static bool set_random(const char *variable, const char *prefix)
{
    unsigned char bytes[32];
    char text[32 + 2 * sizeof bytes];
    if (getrandom(bytes, sizeof bytes, 0) != sizeof bytes) {
        perror("ctrt run: getrandom");
        return false;
    }
    int length = snprintf(text, 32, "%s", prefix);
    for (size_t i = 0; i < sizeof bytes; i++)
        length += snprintf(text + length, 3, "%02x", bytes[i]);
    return setenv(variable, text, 1) == 0;
}

/* Gives the job an identity, which its store and its ranks compare. Node 0 chooses it; the other nodes read it from the
 * store and compare it with their CTRT_JOB. */
static bool choose_job(bool serves)
{
    const char *given = getenv("CTRT_JOB");
    return !serves || (given != NULL && given[0] != '\0') || set_random("CTRT_JOB", "ctrt-run-");
}

static bool follow_job(ctrt_store *store, const char *address)
{
    const char *given = getenv("CTRT_JOB");
    void *value = NULL;
    if (ctrt_store_get(store, "ctrt-job/id", &value, NULL, CTRT_DEFAULT_SECONDS) != CTRT_OK) {
        fprintf(stderr, "ctrt run: %s\n", ctrt_error_message());
        return false;
    }
    const bool same = given == NULL || given[0] == '\0' || strcmp(given, value) == 0;
    if (!same)
        fprintf(stderr, "ctrt run: the store %s belongs to another job (%.127s; CTRT_JOB here: %.127s)\n", address,
                (const char *)value, given);
    const bool done = same && setenv("CTRT_JOB", value, 1) == 0;
    free(value);
    return done;
}

/* Returns a port that is free now, for programs that serve a store of their own on MASTER_PORT, such as PyTorch's. */
static int free_port(void)
{
    struct sockaddr_in address = { .sin_family = AF_INET };
    socklen_t bytes = sizeof address;
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const bool bound = fd >= 0 && bind(fd, (struct sockaddr *)&address, bytes) == 0
                       && getsockname(fd, (struct sockaddr *)&address, &bytes) == 0;
    if (fd >= 0)
        close(fd);
    return bound ? ntohs(address.sin_port) : 29500;
}

/* Sets OMP_NUM_THREADS, which BLAS and other libraries read. The cpu backend divides the processors itself. */
static void share_processors(int local)
{
    ctrt_device_properties properties = CTRT_DEVICE_PROPERTIES;
    cpu_set_t set;
    const char *level = getenv("CTRT_LOG");
    if (local == 1 || getenv("OMP_NUM_THREADS") != NULL)
        return;
    int processors = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
    if (ctrt_device_get_properties(&properties, "cpu") == CTRT_OK && properties.processors > 0)
        processors = properties.processors;
    run_set_number("OMP_NUM_THREADS", processors / local > 1 ? processors / local : 1);
    if (level != NULL && (strcmp(level, "info") == 0 || strcmp(level, "debug") == 0))
        fprintf(stderr, "ctrt run: OMP_NUM_THREADS=%s: %d processors for %d ranks\n", getenv("OMP_NUM_THREADS"),
                processors, local);
}

/* Opens the store and sets the variables that are the same for all ranks. Returns NULL after a message. */
static ctrt_store *run_prepare(const struct run_options *options)
{
    ctrt_store *store = NULL;
    const char *secret = getenv("CTRT_STORE_SECRET");
    /* A launcher with a store of its own starts a job of its own, also within another job. */
    if (options->store == NULL)
        unsetenv("CTRT_JOB");
    if ((options->store == NULL && !set_random("CTRT_STORE_SECRET", "")) || !choose_job(options->node == 0))
        return NULL;
    if (options->nodes > 1 && (secret == NULL || secret[0] == '\0'))
        fprintf(stderr, "ctrt run: CTRT_STORE_SECRET is not set, so any host that reaches %s can use the store\n",
                options->store);
    const char *address = options->store != NULL ? options->store : "tcp://127.0.0.1:0";
    if (ctrt_store_open(&store, address, options->node == 0, CTRT_DEFAULT_SECONDS) != CTRT_OK) {
        fprintf(stderr, "ctrt run: %s\n", ctrt_error_message());
        return NULL;
    }
    address = ctrt_store_address(store);
    const char *host = address + strlen("tcp://"), *colon = strrchr(host, ':');
    const bool brackets = host[0] == '[';
    char name[256];
    snprintf(name, sizeof name, "%.*s", (int)(colon - host) - 2 * brackets, host + brackets);
    int port = free_port();
    if (!follow_job(store, address)
        || (options->nodes > 1 && !nodes_join(store, options->node, options->nodes, options->ranks, &port))) {
        ctrt_store_release(&store);
        return NULL;
    }
    setenv("MASTER_ADDR", name, 1);
    setenv("CTRT_STORE", address, 1);
    unsetenv("TORCHELASTIC_USE_AGENT_STORE");
    setenv("CTRT_ON_FAILURE", options->shrink ? "shrink" : "stop", 1);
    unsetenv("CTRT_JOIN");
    run_set_number("MASTER_PORT", port);
    run_set_number("WORLD_SIZE", options->nodes * options->ranks);
    run_set_number("LOCAL_WORLD_SIZE", options->ranks);
    share_processors(options->ranks);
    return store;
}

/* ---- */

int tool_run(int argc, char **argv)
{
    struct run_options options;
    const int status = run_read_options(&options, argc, argv);
    if (status >= 0)
        return status;
    /* From here on descriptors 0 to 2 are open, so that a pipe never becomes one of them. */
    for (int fd = 0; fd <= 2;)
        if ((fd = open("/dev/null", O_RDWR)) < 0) {
            perror("ctrt run: /dev/null");
            return 1;
        } else if (fd > 2) {
            close(fd);
        }
    if (options.ranks == 0 && (options.ranks = default_ranks()) == 0)
        return 1;
    if (options.prefix < 0)
        options.prefix = options.ranks * options.nodes > 1;
    ctrt_store *store = run_prepare(&options);
    if (store == NULL)
        return 1;
    options.served = store;
    const int result = ranks_run(&options);
    /* The thread of run_nodes.c may still use the store. The end of the process closes it. */
    if (options.nodes == 1)
        ctrt_store_release(&store);
    return result;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of a program that was started with 0, 1 and 2 closed: no descriptor of the library is one of them, so nothing
 * that is written to stderr reaches a file, a socket or a tensor of the library. */
#include <fcntl.h>
#include <sys/stat.h>

#include "data_check.h"
#include "folder.h"

static int tap_output;                      /* where stdout was */
static int bad;

/* Reports which of the first `count` descriptors are open. */
static void check_closed(const char *step, int count)
{
    for (int fd = 0; fd < count; fd++) {
        char path[64], target[200] = "";
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
        if (readlink(path, target, sizeof target - 1) < 0)
            continue;
        bad++;
        dprintf(tap_output, "# %s: descriptor %d is %s\n", step, fd, target);
    }
}

static void check_step(const char *step, ctrt_status status)
{
    if (status != CTRT_OK && ++bad)
        dprintf(tap_output, "# %s: %s\n", step, ctrt_error_message());
    check_closed(step, 3);
    dprintf(STDERR_FILENO, "a line on stderr\n");
}
#define STEP(call) check_step(#call, call)

/* Samples of a worker, whose stderr is a pipe of the loader. */
static ctrt_status watching_item(ctrt_sample *sample, void *state)
{
    const int before = bad;
    check_closed("worker", 2);
    return bad == before ? plain_item(sample, state) : ctrt_fail(CTRT_ERR_STATE, "a descriptor is open");
}

static ctrt_status watching_open(ctrt_dataset **out, const void *arguments, size_t bytes)
{
    ctrt_dataset_functions functions = plain_functions;
    struct plain *state = malloc(sizeof *state);
    if (state == NULL || bytes != sizeof *state)
        return ctrt_fail(CTRT_ERR_OUT_OF_MEMORY, "no state");
    memcpy(state, arguments, bytes);
    functions.item = watching_item;
    return ctrt_dataset_new(out, &functions, state);
}

static void load_data(ctrt_worker_kind kind)
{
    const struct plain plain = { .length = 8, .bad = -1, .once = -1 };
    CTRT_AUTO(dataset) dataset = NULL;
    CTRT_AUTO(loader) loader = NULL;
    ctrt_tensor *fields[2] = { NULL };
    bool more = true;
    STEP(ctrt_dataset_open(&dataset, watching_open, &plain, sizeof plain));
    STEP(ctrt_loader_new(&loader, dataset,
                         &CTRT_WITH(ctrt_loader_options, .batch_size = 2, .workers = 2, .worker_kind = kind)));
    for (int i = 0; i < 4; i++)
        STEP(ctrt_loader_next(fields, &more, loader));
    ctrt_tensor_release(&fields[0]);
    ctrt_tensor_release(&fields[1]);
}

static void share_tensors(ctrt_tensor *x)
{
    CTRT_AUTO(queue) queue = NULL;
    CTRT_AUTO(tensor) y = NULL;
    int count = 1;
    STEP(ctrt_tensor_share_(x));
    STEP(ctrt_queue_new(&queue, 2));
    STEP(ctrt_queue_put(queue, &x, 1, "x", 1, 5));
    STEP(ctrt_queue_get(&y, &count, (char[8]){ 0 }, &(size_t){ 8 }, queue, 5));
}

static void files(const char *folder, ctrt_tensor *x)
{
    char path[300], text[300], snapshot[300];
    CTRT_AUTO(tensor_file) file = NULL;
    CTRT_AUTO(dataset) tensors = NULL, tokens = NULL, images = NULL;
    ctrt_device *cpu = NULL;
    snprintf(path, sizeof path, "%s/x.safetensors", folder);
    snprintf(text, sizeof text, "%s/tokens", folder);
    snprintf(snapshot, sizeof snapshot, "%s/snapshot", folder);
    STEP(ctrt_device_get(&cpu, "cpu"));
    STEP(ctrt_save_tensors(path, (const char *[]){ "x" }, &x, 1));
    STEP(ctrt_tensor_file_open(&file, path));
    STEP(ctrt_safetensors_dataset(&tensors, path, NULL, 0));
    STEP(ctrt_tokens_dataset(&tokens, text, &CTRT_WITH(ctrt_tokens_options, .length = 2)));
    STEP(ctrt_image_folder_dataset(&images, folder, &CTRT_WITH(ctrt_image_options, .height = 1, .width = 1)));
    STEP(ctrt_memory_snapshot_write(snapshot, cpu));
}

static void stores_and_ranks(const char *folder)
{
    CTRT_AUTO(store) server = NULL;
    CTRT_AUTO(store) client = NULL;
    CTRT_AUTO(store) file = NULL;
    CTRT_AUTO(comm) comm = NULL;
    CTRT_AUTO(tensor) x = NULL;
    ctrt_device *cpu = NULL;
    ctrt_work *work = NULL;
    char address[300];
    snprintf(address, sizeof address, "file://%s/store", folder);
    STEP(ctrt_store_open(&server, "tcp://127.0.0.1:0", true, 10));
    STEP(ctrt_store_open(&client, ctrt_store_address(server), false, 10));
    STEP(ctrt_store_set(client, "key", "value", 5));
    const pid_t child = fork();             /* the second rank, which shares memory with this one */
    STEP(ctrt_store_open(&file, address, child != 0, 10));
    STEP(ctrt_device_get(&cpu, "cpu"));
    STEP(ctrt_comm_new(&comm, &CTRT_WITH(ctrt_comm_options, .engine = "host", .device = cpu, .store = file,
                                         .rank = child == 0,
                                                    .world_size = 2, .timeout = 30)));
    STEP(ctrt_full(&x, CTRT_SHAPE(100), ctrt_int(1), CTRT_F32, cpu));
    STEP(ctrt_comm_all_reduce(&work, comm, x, CTRT_COMM_SUM));
    STEP(ctrt_work_wait(work));
    ctrt_work_release(&work);
    if (child == 0) {
        ctrt_comm_release(&comm);
        _exit(bad > 0);
    }
    int ended = -1;
    bad += waitpid(child, &ended, 0) != child || ended != 0;
}

/* In a process of its own, whose 0, 1 and 2 are closed. */
static void use_everything(const char *folder)
{
    CTRT_AUTO(tensor) x = NULL, y = NULL;
    ctrt_device *cpu = NULL, *sim = NULL;
    float values[64];
    STEP(ctrt_fork_server_start());
    STEP(ctrt_device_get(&cpu, "cpu"));
    STEP(ctrt_full(&x, CTRT_SHAPE(64), ctrt_int(3), CTRT_F32, cpu));
    share_tensors(x);
    load_data(CTRT_WORKERS_SERVER);
    load_data(CTRT_WORKERS_FORK);
    files(folder, x);
    if (ctrt_device_get(&sim, "sim") == CTRT_OK)
        STEP(ctrt_full(&y, CTRT_SHAPE(64), ctrt_int(3), CTRT_F32, sim));
    stores_and_ranks(folder);
    STEP(ctrt_to_host(values, sizeof values, x, CTRT_F32));
    for (int i = 0; i < 64; i++)
        if (values[i] != 3 && ++bad)
            dprintf(tap_output, "# a shared tensor has %g at %d, expected 3\n", (double)values[i], i);
}

TEST(closed, "a program without stdin, stdout and stderr: no descriptor of the library is 0, 1 or 2")
{
    const char *folder = folder_new();
    const uint16_t tokens[] = { 1, 2, 3, 4 };
    char fifo[300], setting[340];
    snprintf(fifo, sizeof fifo, "%s/fifo", folder);
    snprintf(setting, sizeof setting, "CTRT_MEMORY_PRESSURE_FILE=%s", fifo);
    REQUIRE_EQ(mkfifo(fifo, 0600), 0);
    REQUIRE_EQ(mkdir(folder_join(folder, "class"), 0700), 0);
    folder_text(folder, "class/a.ppm", "P6 1 1 255\nabc");
    const int file = open(folder_join(folder, "tokens"), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    CHECK_EQ(write(file, tokens, sizeof tokens), sizeof tokens);
    close(file);
    IN_CHILD("CTRT_LOG=debug", "CTRT_MEMORY_PRESSURE=on", setting) {
        tap_output = fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 100);
        for (int fd = 0; fd < 3; fd++)
            close(fd);
        use_everything(folder);
        _exit(bad > 0);
    }
}

TESTS_MAIN

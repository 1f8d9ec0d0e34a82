/* SPDX-License-Identifier: Apache-2.0 */
/* Tests checkpoint files and their paths: permissions, symbolic links, device nodes, full disks, interrupted saves, and
 * files that change while they are open. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "calls.h"
#include "child.h"
#include "folder.h"
#include "forbid.h"
#include "tensors.h"

#define NAME "t"

static const char *folder;

#define in_folder(name) folder_join(folder, name)

/* Saves one tensor of `count` elements. */
static ctrt_status save(const char *path, int64_t count)
{
    CTRT_AUTO(tensor) t = OP(ones, CTRT_SHAPE(count), CTRT_F32, cpu);
    const char *name = NAME;
    return ctrt_save_tensors(path, &name, &t, 1);
}

/* Returns the number of elements of the tensor saved at `path`, or -1 if there is no such file. */
static int64_t saved(const char *path)
{
    CTRT_AUTO(tensor_file) file = NULL;
    CTRT_AUTO(tensor) t = NULL;
    if (ctrt_tensor_file_open(&file, path) != CTRT_OK || ctrt_tensor_file_read(&t, file, NAME, cpu) != CTRT_OK)
        return -1;
    return ctrt_tensor_numel(t);
}

static int mode_of(const char *path)
{
    struct stat about;
    return lstat(path, &about) == 0 ? (int)about.st_mode : -1;
}

TEST(permissions, "a new file gets its permissions from the umask, a replaced file keeps its permissions")
{
    static const struct { mode_t before, mask; int after; } cases[] = {
        { 0, 022, 0644 }, { 0, 077, 0600 }, { 0600, 022, 0600 }, { 0640, 077, 0640 }, { 0664, 022, 0664 },
    };
    const char *path = in_folder("mode");
    const mode_t mask = umask(0);
    EACH(c, cases) {
        unlink(path);
        umask(c->mask);
        if (c->before != 0)
            CHECK_TRUE(close(open(path, O_CREAT | O_WRONLY, 0600)) == 0 && chmod(path, c->before) == 0);
        CHECK_OK(save(path, 3));
        CHECK(mode_of(path) == (S_IFREG | c->after), "mode %o, expected %o", mode_of(path) & 07777, c->after);
    }
    umask(mask);

    /* The list user::rw- user:1234:rw- group::--- mask::rw- other::--- in the kernel's format. */
    static const uint16_t list[] = { 2, 0, 1, 6, 0xffff, 0xffff, 2, 6, 1234, 0, 4, 0, 0xffff, 0xffff,
                                     16, 6, 0xffff, 0xffff, 32, 0, 0xffff, 0xffff };
    uint16_t after[COUNT(list) + 8];
    group("a replaced file keeps its access control list and does not inherit the folder's");
    if (setxattr(path, "system.posix_acl_access", list, sizeof list, 0) != 0) {
        skip_group("this file system has no access control lists");
    } else {
        CHECK_OK(save(path, 3));
        CHECK(getxattr(path, "system.posix_acl_access", after, sizeof after) == sizeof list
              && memcmp(after, list, sizeof list) == 0, "the access control list changed");
        CHECK(removexattr(path, "system.posix_acl_access") == 0 && chmod(path, 0600) == 0
              && setxattr(folder, "system.posix_acl_default", list, sizeof list, 0) == 0, "%s", strerror(errno));
        CHECK_OK(save(path, 3));
        CHECK(getxattr(path, "system.posix_acl_access", after, sizeof after) < 0 && mode_of(path) == (S_IFREG | 0600),
              "the file inherited an access control list, or its mode is %o, expected 100600", mode_of(path));
        CHECK(removexattr(folder, "system.posix_acl_default") == 0, "%s", strerror(errno));
    }

    group("a replaced file keeps its owner");
    if (geteuid() != 0) {
        skip_group("needs root");
        return;
    }
    struct stat about;
    CHECK(chown(path, 12345, 23456) == 0, "chown: %s", strerror(errno));
    CHECK_OK(save(path, 4));
    CHECK_TRUE(stat(path, &about) == 0 && about.st_uid == 12345 && about.st_gid == 23456);

    group("a file without write permission is not replaced");
    CHECK(chmod(path, 0444) == 0 && chmod(folder, 0777) == 0, "chmod: %s", strerror(errno));
    CHECK(seteuid(12345) == 0, "seteuid: %s", strerror(errno));
    const ctrt_status status = save(path, 5);
    CHECK(seteuid(0) == 0 && chmod(folder, 0700) == 0, "seteuid: %s", strerror(errno));
    CHECK_FAILS(status, CTRT_ERR_IO, "Permission denied");
    CHECK_EQ(saved(path), 4);
}

TEST(links, "saving to a symbolic link replaces its target and keeps the link")
{
    static const struct { const char *link, *content, *file; } cases[] = {
        { "link", "target", "target" }, { "link2", "link", "target" }, { "dangling", "new", "new" },
        { "below/link", "../target", "target" },
    };
    CHECK(mkdir(in_folder("below"), 0700) == 0, "mkdir: %s", strerror(errno));
    CHECK_OK(save(in_folder("target"), 1));
    for (int i = 0; i < (int)COUNT(cases); i++) {
        CHECK(symlink(cases[i].content, in_folder(cases[i].link)) == 0, "symlink: %s", strerror(errno));
        CHECK_OK(save(in_folder(cases[i].link), 10 + i));
        CHECK(S_ISLNK(mode_of(in_folder(cases[i].link))), "%s was replaced", cases[i].link);
        CHECK_TRUE(S_ISREG(mode_of(in_folder(cases[i].file))));
        CHECK_EQ(saved(in_folder(cases[i].file)), 10 + i);
    }
    CHECK(symlink("circle", in_folder("circle")) == 0, "symlink: %s", strerror(errno));
    CHECK_FAILS(save(in_folder("circle"), 1), CTRT_ERR_IO, "Too many levels");

    group("another user's symbolic link in a world-writable sticky folder is not followed");
    if (geteuid() != 0) {
        skip_group("needs root");
        return;
    }
    CHECK(chmod(in_folder("below"), 01777) == 0 && lchown(in_folder("below/link"), 12345, 12345) == 0, "%s",
          strerror(errno));
    CHECK_FAILS(save(in_folder("below/link"), 99), CTRT_ERR_IO, "Permission denied");
    CHECK(S_ISLNK(mode_of(in_folder("below/link"))) && saved(in_folder("target")) == 13, "the link was followed");
}

static void *read_all(void *path)
{
    static char bytes[1 << 16];
    return (void *)(uintptr_t)folder_read(bytes, sizeof bytes, path);
}

static void *read_nothing(void *path)
{
    close(open(path, O_RDONLY));
    return NULL;
}

TEST(devices, "saving to a pipe writes into the pipe and does not replace it")
{
    pthread_t thread;
    void *got = NULL;
    char *pipe = strdup(in_folder("pipe"));
    CHECK(mkfifo(pipe, 0600) == 0, "mkfifo: %s", strerror(errno));
    CHECK(pthread_create(&thread, NULL, read_all, pipe) == 0, "no thread");
    CHECK_OK(save(pipe, 1000));
    /* If save replaced the pipe, the reader would wait for a writer without end, so it is cancelled. */
    if (!S_ISFIFO(mode_of(pipe)))
        pthread_cancel(thread);
    pthread_join(thread, &got);
    CHECK(S_ISFIFO(mode_of(pipe)) && (uintptr_t)got > 4000 && got != PTHREAD_CANCELED, "mode %o, %lld bytes read",
          mode_of(pipe), (long long)(intptr_t)got);
    CHECK_FAILS(save(folder, 1), CTRT_ERR_IO, "Is a directory");
    CHECK_FAILS(save(in_folder("no/such/folder"), 1), CTRT_ERR_IO, "cannot open the folder of");
    void (*before)(int) = signal(SIGPIPE, SIG_IGN);
    CHECK(pthread_create(&thread, NULL, read_nothing, pipe) == 0, "no thread");
    CHECK_FAILS(save(pipe, 1 << 20), CTRT_ERR_IO, "Broken pipe");
    pthread_join(thread, NULL);
    signal(SIGPIPE, before);
    free(pipe);

    group("saving to a device node writes to the device and does not replace the node");
    const char *null = in_folder("null"), *full = in_folder("full");
    if (mknod(null, S_IFCHR | 0666, (1 << 8) | 3) != 0 || mknod(full, S_IFCHR | 0666, (1 << 8) | 7) != 0) {
        skip_group("mknod needs root");
        return;
    }
    const int probe = open(null, O_WRONLY);
    if (probe < 0) {
        skip_group("devices cannot be opened here");
        return;
    }
    close(probe);
    CHECK_OK(save(null, 5));
    CHECK(S_ISCHR(mode_of(null)), "the device node was replaced");
    CHECK_FAILS(save(full, 5), CTRT_ERR_IO, "No space left on device");
    CHECK(S_ISCHR(mode_of(full)), "the device node was replaced");
}

/* Kills a child process that saves in a loop, as soon as its temporary file exists. */
TEST(interrupted, "a killed save leaves a complete file")
{
    const char *path = in_folder("killed");
    CHECK_OK(save(path, 7));
    const size_t before = folder_files(folder);
    fflush(stdout);
    const pid_t child = fork();
    if (child == 0) {
        for (;;)
            save(path, 1 << 24);
    }
    for (int i = 0; i < 5000 && folder_files(folder) == before; i++)
        usleep(1000);
    int status = 0;
    kill(child, SIGKILL);
    CHECK(waitpid(child, &status, 0) == child && WIFSIGNALED(status), "the child ended with %d", status);
    CHECK(saved(path) == 7 || saved(path) == 1 << 24, "the file has %lld elements", (long long)saved(path));

    group("a file name of 255 bytes, the longest possible, can be saved");
    char name[256];
    memset(name, 'n', 255);
    name[255] = '\0';
    CHECK_OK(save(in_folder(name), 2));
    CHECK_EQ(saved(in_folder(name)), 2);
}

static size_t files_before;

/* Changes the working directory as soon as the temporary file exists. */
static void *leave_folder(void *unused)
{
    (void)unused;
    for (int i = 0; i < 50000 && folder_files(folder) == files_before; i++)
        usleep(100);
    return (void *)(intptr_t)chdir("/");
}

TEST(moving, "a save to a relative path completes when the working directory changes during the save")
{
    pthread_t thread;
    void *failed = NULL;
    int before = open(".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    CHECK(chdir(folder) == 0, "chdir: %s", strerror(errno));
    files_before = folder_files(folder);
    CHECK(pthread_create(&thread, NULL, leave_folder, NULL) == 0, "no thread");
    CHECK_OK(save("relative", 1 << 24));
    CHECK(pthread_join(thread, &failed) == 0 && failed == NULL, "chdir: %s", strerror(errno));
    CHECK_EQ(folder_files(folder), files_before + 1);
    CHECK_EQ(saved(in_folder("relative")), 1 << 24);
    CHECK(fchdir(before) == 0 && close(before) == 0, "fchdir: %s", strerror(errno));

    group("a path can be saved although the path of its temporary file would be too long");
    char path[4096];
    size_t length = (size_t)snprintf(path, sizeof path, "%s", folder);
    for (int part = 0; length < 4075; part++) {
        const size_t bytes = length + 201 < 4075 ? 200 : 4075 - length;
        path[length] = '/';
        memset(path + length + 1, 'p', bytes - 1);
        path[length += bytes] = '\0';
        CHECK(mkdir(path, 0700) == 0, "mkdir: %s", strerror(errno));
    }
    snprintf(path + length, sizeof path - length, "/file-with-a-name");
    CHECK_OK(save(path, 6));
    CHECK_EQ(saved(path), 6);
    CHECK_FAILS(save("", 1), CTRT_ERR_IO, "No such file");
}

TEST(shrinking, "reading a file that was truncated after it was opened gives CTRT_ERR_IO")
{
    CTRT_AUTO(tensor_file) file = NULL;
    CTRT_AUTO(tensor) t = NULL;
    const char *path = in_folder("shrinks");
    CHECK_OK(save(path, 1 << 20));
    CHECK_OK(ctrt_tensor_file_open(&file, path));
    CHECK_OK(ctrt_tensor_file_read(&t, file, NAME, cpu));
    CHECK(truncate(path, 4000) == 0, "truncate: %s", strerror(errno));
    CHECK_FAILS(ctrt_tensor_file_read(&t, file, NAME, cpu), CTRT_ERR_IO, "truncated");
    CHECK(truncate(path, 0) == 0, "truncate: %s", strerror(errno));
    CHECK_FAILS(ctrt_tensor_file_read(&t, file, NAME, cpu), CTRT_ERR_IO, "truncated");
    CHECK_EQ(ctrt_tensor_file_count(file), 1);
    CHECK_STR(ctrt_tensor_file_name(file, 0), NAME);
    CHECK_EQ(ctrt_tensor_numel(t), 1 << 20);            /* a failed read leaves its output as it was */

    group("an open file that is replaced is still read as it was when opened");
    CHECK_OK(save(path, 3));
    CHECK_OK(ctrt_tensor_file_open(&file, path));
    CHECK_OK(save(path, 5));
    CHECK_OK(ctrt_tensor_file_read(&t, file, NAME, cpu));
    CHECK_EQ(ctrt_tensor_numel(t), 3);
}

static atomic_bool stop;

/* Overwrites the file `to` in place with the content of the file `from`, as cp does, until `stop` is set. */
static void *copy_over(void *unused)
{
    static unsigned char bytes[1 << 20];
    (void)unused;
    const size_t size = folder_read(bytes, sizeof bytes, in_folder("from"));
    while (!stop) {
        const int fd = open(in_folder("to"), O_WRONLY | O_TRUNC | O_CREAT, 0600);
        for (size_t put = 0; put < size; put += 64 << 10)
            (void)!write(fd, bytes + put, size - put < 64 << 10 ? size - put : 64 << 10);
        close(fd);
    }
    return NULL;
}

/* Fills both weights with `value`. */
static void set_weights(ctrt_module *net, double value)
{
    ctrt_tensor *w;
    for (size_t i = 0; ctrt_module_parameter(NULL, &w, net, i) == CTRT_OK; i++)
        CHECK_OK(ctrt_init_constant_(w, value));
}

/* Returns whether every element of every weight is `value`. */
static bool weights_are(ctrt_module *net, double value)
{
    static double got[150 * 400];
    ctrt_tensor *w;
    bool are = true;
    for (size_t i = 0; ctrt_module_parameter(NULL, &w, net, i) == CTRT_OK; i++) {
        CHECK_OK(ctrt_to_host(got, sizeof got, w, CTRT_F64));
        for (int64_t k = 0; k < ctrt_tensor_numel(w); k++)
            are &= got[k] == value;
    }
    return are;
}

TEST(loading_meanwhile, "a module is loaded completely or not at all from a file that is being overwritten")
{
    CTRT_AUTO(module) net = NULL;
    pthread_t thread;
    int failed = 0, loaded = 0;
    CHECK_OK(ctrt_sequential_new(
        &net, CTRT_MODULES(CTRT_NEW(linear, 400, 150, false, cpu), CTRT_NEW(linear, 150, 400, false, cpu))));
    set_weights(net, 1);
    CHECK_OK(ctrt_save(net, in_folder("from")));
    stop = false;
    CHECK(pthread_create(&thread, NULL, copy_over, NULL) == 0, "no thread");
    for (int i = 0; i < 2000 && (i < 300 || failed == 0 || loaded == 0); i++) {
        set_weights(net, 2);
        const ctrt_status status = ctrt_load(net, in_folder("to"));
        *(status == CTRT_OK ? &loaded : &failed) += 1;
        CHECK(status == CTRT_OK || status == CTRT_ERR_IO || status == CTRT_ERR_FORMAT, "%s", ctrt_error_message());
        CHECK(status == CTRT_OK || weights_are(net, 2), "a failed load changed the module: %s", ctrt_error_message());
    }
    stop = true;
    pthread_join(thread, NULL);
    printf("# %d loads, %d failures\n", loaded, failed);
    CHECK(failed > 0, "no load failed");
    CHECK_OK(ctrt_load(net, in_folder("to")));
    CHECK(weights_are(net, 1), "the weights are not 1 after loading the file");
}

static void unreadable(void)
{
    CTRT_AUTO(tensor_file) file = NULL;
    CTRT_AUTO(tensor) t = NULL;
    const char *path = in_folder("unreadable");
    CHECK_OK(ctrt_device_get(&cpu, "cpu"));
    CHECK_OK(save(path, 3));
    CHECK_OK(ctrt_tensor_file_open(&file, path));
    if (!forbid(SYS_pread64)) {
        skip_group("the system has no seccomp");
        return;
    }
    CHECK_FAILS(ctrt_tensor_file_read(&t, file, NAME, cpu), CTRT_ERR_IO, "cannot read byte ");
    CHECK_HAS(ctrt_error_message(), strerror(EPERM));
    CHECK(t == NULL, "a failed read set its output");
}

TEST_MAIN
{
    folder = folder_new();
    group("reads that fail");
    IN_CHILD(NULL)
        unreadable();
    return cpu_opened() ? run_tests() : done();
}

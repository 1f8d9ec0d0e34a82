/* SPDX-License-Identifier: Apache-2.0 */
/* backends/sim/guard.c: a SIGSEGV handler that reports host accesses to device memory.
 *
 * The handler runs in the thread that faulted, at any point of the program, so it takes no lock and allocates no
 * memory. It writes one line and calls the previous SIGSEGV handler, so that the program terminates as it would without
 * the handler. */
#include "sim.h"

#include <signal.h>
#include <string.h>
#include <unistd.h>

#if defined(__x86_64__) || defined(__i386__)
#include <ucontext.h>
#endif

/* Open devices by index; NULL if closed. */
static struct sim_device *_Atomic guarded[SIM_DEVICES];
static struct sigaction before;
static pthread_mutex_t install_lock = PTHREAD_MUTEX_INITIALIZER;
static bool installed;

struct line {
    char text[512];
    size_t used;
};

static void add(struct line *line, const char *text)
{
    while (*text != '\0' && line->used < sizeof line->text)
        line->text[line->used++] = *text++;
}

static void add_number(struct line *line, uint64_t value, unsigned base)
{
    char digits[24];
    size_t at = sizeof digits - 1;
    digits[at] = '\0';
    do
        digits[--at] = "0123456789abcdef"[value % base];
    while ((value /= base) > 0);
    add(line, &digits[at]);
}

/* Returns "read" or "wrote" if the processor reports it, else "touched". */
static const char *verb(const void *context)
{
#if defined(__x86_64__)
    return ((const ucontext_t *)context)->uc_mcontext.gregs[REG_ERR] & 2 ? "wrote" : "read";
#else
    (void)context;
    return "touched";
#endif
}

static void say(struct sim_device *device, const char *address, const void *context)
{
    struct line line = { .used = 0 };
    struct sim_block block;
    char name[160];
    uint64_t place = (uint64_t)(address - device->guard);
    add(&line, "ctrt: the host ");
    add(&line, verb(context));
    add(&line, " memory of ");
    add(&line, device->name);
    add(&line, " at 0x");
    add_number(&line, (uintptr_t)address, 16);
    if (CTRT_SLOT(sim_host, describe) && sim_host->describe(name, sizeof name, address)) {
        name[sizeof name - 1] = '\0';
        add(&line, ", ");
        add(&line, name);
    }
    bool reserved = place >= device->reserved.begin;
    if (sim_blocks_peek(reserved ? &device->reserved : &device->physical, place, &block)) {
        add(&line, ", byte ");
        add_number(&line, place - block.start, 10);
        add(&line, reserved ? " of a reservation of " : " of a block of ");
        add_number(&line, block.bytes, 10);
        add(&line, " bytes");
    } else {
        add(&line, ", which is not allocated");
    }
    add(&line, ". Copy it to the host first: ctrt_cpu, ctrt_to_host\n");
    (void)!write(STDERR_FILENO, line.text, line.used);
}

static void on_fault(int number, siginfo_t *info, void *context)
{
    const char *address = info->si_addr;
    for (int i = 0; i < SIM_DEVICES; i++) {
        struct sim_device *device = atomic_load(&guarded[i]);
        if (device != NULL && info->si_code > 0 && address >= device->guard && address < device->guard + device->span) {
            say(device, address, context);
            break;
        }
    }
    if (before.sa_flags & SA_SIGINFO) {
        before.sa_sigaction(number, info, context);
    } else if (before.sa_handler == SIG_DFL || before.sa_handler == SIG_IGN) {
        /* With the default action restored, the process is killed when the handler returns and the instruction faults
         * again. A signal that a process sent (si_code <= 0) is raised again. */
        struct sigaction standard = { .sa_handler = SIG_DFL };
        sigaction(SIGSEGV, &standard, NULL);
        if (info->si_code <= 0)
            raise(number);
    } else {
        before.sa_handler(number);
    }
}

/* Installs the handler once, and again if the program has restored the default action after that. Does not replace a
 * handler that the program has installed later, because that handler may call this one. */
static void install(void)
{
    struct sigaction action = { .sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_ONSTACK }, present;
    sigemptyset(&action.sa_mask);
    pthread_mutex_lock(&install_lock);
    sigaction(SIGSEGV, NULL, &present);
    bool standard = !(present.sa_flags & SA_SIGINFO) && present.sa_handler == SIG_DFL;
    if (!installed || standard) {
        before = present;
        sigaction(SIGSEGV, &action, NULL);
        installed = true;
    }
    pthread_mutex_unlock(&install_lock);
}

void sim_guard_add(struct sim_device *device)
{
    install();
    atomic_store(&guarded[device->index], device);
}

void sim_guard_remove(struct sim_device *device)
{
    struct sim_device *own = device;
    atomic_compare_exchange_strong(&guarded[device->index], &own, NULL);
}

const struct sim_device *sim_owner(const void *address)
{
    for (int i = 0; i < SIM_DEVICES; i++) {
        const struct sim_device *device = atomic_load(&guarded[i]);
        if (device != NULL && (const char *)address >= device->guard
            && (const char *)address < device->guard + device->span)
            return device;
    }
    return NULL;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* tests/softcuda/fiber.c: switches between stacks.
 *
 * A switch on x86-64 saves the callee-saved registers of the calling convention (System V ABI) on the stack that is
 * suspended, and jumps, because the processor would predict the target of a `ret` wrongly; elsewhere it is the slower
 * one of ucontext.h. Sanitizers are informed of the switch if they are linked. */
#include "runner.h"

#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>

#define STACK_BYTES ((size_t)256 << 10)     /* untouched pages use no memory */
#define GUARD_BYTES ((size_t)64 << 10)

extern void __sanitizer_start_switch_fiber(void **fake, const void *bottom, size_t bytes) __attribute__((weak));
extern void __sanitizer_finish_switch_fiber(void *fake, const void **bottom, size_t *bytes) __attribute__((weak));
extern void __asan_unpoison_memory_region(const volatile void *begin, size_t bytes) __attribute__((weak));

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct fiber *store;

#if defined(__x86_64__)
void softcuda_switch(void **from, void *to) __attribute__((visibility("hidden")));
__asm__(".text\n"
        ".p2align 4\n"
        ".hidden softcuda_switch\n"
        ".globl softcuda_switch\n"
        ".type softcuda_switch,@function\n"
        "softcuda_switch:\n"
        "    pushq %rbp\n    pushq %rbx\n    pushq %r12\n    pushq %r13\n    pushq %r14\n    pushq %r15\n"
        "    movq %rsp, (%rdi)\n"
        "    movq %rsi, %rsp\n"
        "    popq %r15\n    popq %r14\n    popq %r13\n    popq %r12\n    popq %rbx\n    popq %rbp\n"
        "    popq %rcx\n    jmp *%rcx\n"
        ".size softcuda_switch,.-softcuda_switch\n");
enum { SAVED = 6 };

static void *first_frame(char *top, void (*entry)(void))
{
    void **frame = (void **)top;
    *--frame = NULL;                        /* return address of the entry, which never returns */
    *--frame = (void *)(uintptr_t)entry;
    for (int i = 0; i < SAVED; i++)
        *--frame = NULL;
    return frame;
}
#endif

static void prepare(struct fiber *fiber, void (*entry)(void))
{
#if defined(__x86_64__)
    fiber->sp = first_frame(fiber->stack + fiber->bytes, entry);
#else
    getcontext(&fiber->context);
    fiber->context.uc_stack.ss_sp = fiber->stack;
    fiber->context.uc_stack.ss_size = fiber->bytes;
    fiber->context.uc_link = NULL;
    makecontext(&fiber->context, entry, 0);
#endif
    fiber->fake = NULL;
}

struct fiber *fiber_new(void (*entry)(void))
{
    pthread_mutex_lock(&lock);
    struct fiber *fiber = store;
    if (fiber != NULL)
        store = fiber->next;
    pthread_mutex_unlock(&lock);
    if (fiber == NULL) {
        char *range = mmap(NULL, GUARD_BYTES + STACK_BYTES, PROT_NONE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
        if (range == MAP_FAILED || mprotect(range + GUARD_BYTES, STACK_BYTES, PROT_READ | PROT_WRITE) != 0)
            abort();
        fiber = allocated(calloc(1, sizeof *fiber));
        fiber->stack = range + GUARD_BYTES;
        fiber->bytes = STACK_BYTES;
    }
    fiber->next = NULL;
    prepare(fiber, entry);
    return fiber;
}

void fiber_free(struct fiber *fiber)
{
    /* A suspended fiber that is reused still has stack frames that AddressSanitizer has poisoned. */
    if (__asan_unpoison_memory_region != NULL)
        __asan_unpoison_memory_region(fiber->stack, fiber->bytes);
    pthread_mutex_lock(&lock);
    fiber->next = store;
    store = fiber;
    pthread_mutex_unlock(&lock);
}

__attribute__((destructor)) static void release_store(void)
{
    pthread_mutex_lock(&lock);
    while (store != NULL) {
        struct fiber *fiber = store;
        store = fiber->next;
        munmap(fiber->stack - GUARD_BYTES, GUARD_BYTES + STACK_BYTES);
        free(fiber);
    }
    pthread_mutex_unlock(&lock);
}

void fiber_switch(struct fiber *from, struct fiber *to)
{
    if (__sanitizer_start_switch_fiber != NULL)
        __sanitizer_start_switch_fiber(&from->fake, to->stack, to->bytes);
#if defined(__x86_64__)
    softcuda_switch(&from->sp, to->sp);
#else
    swapcontext(&from->context, &to->context);
#endif
    if (__sanitizer_finish_switch_fiber != NULL)
        __sanitizer_finish_switch_fiber(from->fake, NULL, NULL);
}

void fiber_begin(struct fiber *came_from)
{
    const void *bottom = NULL;
    size_t bytes = 0;
    if (__sanitizer_finish_switch_fiber != NULL)
        __sanitizer_finish_switch_fiber(NULL, &bottom, &bytes);
    if (came_from->stack == NULL) {             /* a thread's own stack; AddressSanitizer reports its range */
        came_from->stack = (char *)bottom;
        came_from->bytes = bytes;
    }
}

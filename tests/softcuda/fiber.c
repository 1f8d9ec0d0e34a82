/* SPDX-License-Identifier: Apache-2.0 */
/* tests/softcuda/fiber.c: switches between stacks.
 *
 * A switch saves the callee-saved registers of the calling convention (System V ABI for x86-64, AAPCS64) on the stack
 * that is suspended. Sanitizers are informed of the switch if they are linked. */
#include "fiber.h"

#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define STACK_BYTES ((size_t)256 << 10)     /* untouched pages use no memory */
#define GUARD_BYTES ((size_t)64 << 10)

extern void __sanitizer_start_switch_fiber(void **fake, const void *bottom, size_t bytes) __attribute__((weak));
extern void __sanitizer_finish_switch_fiber(void *fake, const void **bottom, size_t *bytes) __attribute__((weak));
extern void __asan_unpoison_memory_region(const volatile void *begin, size_t bytes) __attribute__((weak));

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct fiber *store;

#if defined(__x86_64__) || defined(__aarch64__)
void softcuda_switch(void **from, void *to) __attribute__((visibility("hidden")));
#endif

#if defined(__x86_64__)
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
        "    ret\n"
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
#elif defined(__aarch64__)
__asm__(".text\n"
        ".p2align 4\n"
        ".hidden softcuda_switch\n"
        ".globl softcuda_switch\n"
        ".type softcuda_switch,%function\n"
        "softcuda_switch:\n"
        "    sub sp, sp, #160\n"
        "    stp x19, x20, [sp]\n    stp x21, x22, [sp, #16]\n    stp x23, x24, [sp, #32]\n    stp x25, x26, [sp, #48]\n"
        "    stp x27, x28, [sp, #64]\n    stp x29, x30, [sp, #80]\n"
        "    stp d8, d9, [sp, #96]\n    stp d10, d11, [sp, #112]\n    stp d12, d13, [sp, #128]\n    stp d14, d15, [sp, #144]\n"
        "    mov x2, sp\n    str x2, [x0]\n    mov sp, x1\n"
        "    ldp x19, x20, [sp]\n    ldp x21, x22, [sp, #16]\n    ldp x23, x24, [sp, #32]\n    ldp x25, x26, [sp, #48]\n"
        "    ldp x27, x28, [sp, #64]\n    ldp x29, x30, [sp, #80]\n"
        "    ldp d8, d9, [sp, #96]\n    ldp d10, d11, [sp, #112]\n    ldp d12, d13, [sp, #128]\n    ldp d14, d15, [sp, #144]\n"
        "    add sp, sp, #160\n"
        "    ret\n"
        ".size softcuda_switch,.-softcuda_switch\n");

static void *first_frame(char *top, void (*entry)(void))
{
    void **frame = (void **)(top - 160);
    memset(frame, 0, 160);
    frame[11] = (void *)(uintptr_t)entry;   /* x30 */
    return frame;
}
#endif

static void prepare(struct fiber *fiber, void (*entry)(void))
{
#if defined(__x86_64__) || defined(__aarch64__)
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
        if (range == MAP_FAILED)
            return NULL;
        fiber = calloc(1, sizeof *fiber);
        if (fiber == NULL || mprotect(range + GUARD_BYTES, STACK_BYTES, PROT_READ | PROT_WRITE) != 0) {
            munmap(range, GUARD_BYTES + STACK_BYTES);
            free(fiber);
            return NULL;
        }
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
#if defined(__x86_64__) || defined(__aarch64__)
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

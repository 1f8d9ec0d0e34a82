/* SPDX-License-Identifier: Apache-2.0 */
/* registry/whole.c: a symbol of an object that no other refers to.
 *
 * A linker takes from libctrt.a only the objects that a program refers to. If the program exports their functions, a
 * plugin would call these, and libctrt.so for the others: two copies of the library that free each other's memory. So a
 * program that exports this symbol has all objects (--whole-archive). */
#include "registry/internal.h"

const char ctrt_library_whole = 1;

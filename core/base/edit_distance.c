/* SPDX-License-Identifier: Apache-2.0 */
/* base/edit_distance.c: finds the known word that is most similar to a misspelled one. */
#include "base/base.h"

#include <ctype.h>

#define LONGEST 64

/* Returns the optimal string alignment distance (insertions, deletions, substitutions and swaps of adjacent
 * characters), ignoring case. Both words must have at most LONGEST characters. */
static int alignment_distance(const char *a, size_t a_length, const char *b, size_t b_length)
{
    int row[3][LONGEST + 1];
    int *before = row[0], *above = row[1], *here = row[2];
    for (size_t j = 0; j <= b_length; j++)
        above[j] = (int)j;
    for (size_t i = 1; i <= a_length; i++) {
        here[0] = (int)i;
        for (size_t j = 1; j <= b_length; j++) {
            int x = tolower((unsigned char)a[i - 1]), y = tolower((unsigned char)b[j - 1]);
            int best = above[j - 1] + (x != y);
            best = MIN(best, above[j] + 1);
            best = MIN(best, here[j - 1] + 1);
            if (i > 1 && j > 1 && x == tolower((unsigned char)b[j - 2])
                && y == tolower((unsigned char)a[i - 2]))
                best = MIN(best, before[j - 2] + 1);
            here[j] = best;
        }
        int *spare = before;
        before = above, above = here, here = spare;
    }
    return above[b_length];
}

const char *nearest_word(const char *word, const char *const *candidates, size_t count)
{
    size_t length = word != NULL ? strlen(word) : 0;
    if (length == 0 || length > LONGEST)
        return NULL;
    int allowed = MAX((int)length / 3, 1), best = allowed + 1;
    const char *found = NULL;
    for (size_t i = 0; i < count; i++) {
        size_t other = candidates[i] != NULL ? strlen(candidates[i]) : 0;
        if (other == 0 || other > LONGEST)
            continue;
        int d = alignment_distance(word, length, candidates[i], other);
        /* A distance as large as the longer word means that the words have nothing in common. */
        if (d < best && (size_t)d < MAX(length, other))
            best = d, found = candidates[i];
    }
    return found;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* tools/ops.c: `ctrt ops`, which prints what ctrt/ops.def and ctrt/contracts.def say about ops. */
#include <fnmatch.h>
#include <stdio.h>
#include <string.h>

#include "tool.h"

static const char usage[] =
    "usage: ctrt ops [PATTERN]\n"
    "       ctrt ops --coverage [--format text|json|html] [-o FILE] [DEVICE | PLUGIN.so]\n"
    "Lists the ops with the operands of their kernels, as ctrt-kernels(7) explains them. With a shell pattern, prints\n"
    "what the kernels of the ops whose names match get and compute.\n"
    "  --coverage         the kernels of a device (default: cpu), or of the backend of a plugin file: for each op and\n"
    "                     dtype, whether there is one and, if not, what the library does instead\n"
    "  --format FORMAT    text, json or html: a page for a browser, one file\n"
    "  -o FILE            writes to FILE\n";

static const struct op {
    const char *name, *form, *promotion, *dtypes, *text;
} ops[] = {
#define CTRT_OP(name, form, promotion, dtypes, numbers, autocast, in_place, gradient, text) \
    { #name, #form, #promotion, #dtypes, text },
#include "ctrt/ops.def"
};

static const struct contract {
    const char *op, *layout, *attributes, *operands, *text;
} contracts[] = {
#define CTRT_CONTRACT(op, layout, attributes, operands, text) { #op, #layout, #attributes, operands, text },
#include "ctrt/contracts.def"
};

static const struct layout {
    const char *name, *text;
} layouts[] = {
#define CTRT_LAYOUT(name, text) { #name, text },
#include "ctrt/contracts.def"
};

static const struct attribute {
    const char *structure, *member, *kind;
    int count;
    const char *least, *most, *meaning;
} attributes[] = {
#define CTRT_ATTRIBUTE(structure, member, kind, count, least, most, meaning) \
    { #structure, #member, #kind, count, #least, #most, meaning },
#include "ctrt/contracts.def"
};

#define COUNT_OF(table) (sizeof(table) / sizeof(table)[0])

/* Returns NULL for an op without kernels. */
static const struct contract *contract_of(const struct op *op)
{
    for (size_t i = 0; i < COUNT_OF(contracts); i++)
        if (strcmp(contracts[i].op, op->name) == 0 || strcmp(contracts[i].op, op->form) == 0)
            return &contracts[i];
    return NULL;
}

/* Prints "  LABEL  text", the text in lines of at most 100 columns. */
static void print_text(const char *label, const char *text)
{
    int column = printf("  %-10s", label);
    while (*text != '\0') {
        const int length = (int)strcspn(text, " ");
        if (column + 1 + length > 100)
            column = printf("\n%-12s", "") - 1;
        column += printf(" %.*s", length, text);
        text += length + (text[length] == ' ');
    }
    printf("\n");
}

static void print_attribute(const struct attribute *a)
{
    char text[600], count[16] = "", limits[64] = "";
    if (a->count > 1)
        snprintf(count, sizeof count, "[%d]", a->count);
    if (strcmp(a->least, "ANY") != 0)
        snprintf(limits, sizeof limits, strcmp(a->most, "ANY") != 0 ? ", %s to %s" : ", at least %s", a->least,
                 a->most);
    snprintf(text, sizeof text, "%s%s: %s%s%s%s", a->member, count, a->kind, limits, *a->meaning ? "; " : "",
             a->meaning);
    print_text("", text);
}

static void print_contract(const struct op *op, const struct contract *contract)
{
    char text[128];
    const char *rule = op->promotion;
    const char *keys = strcmp(op->dtypes, "FLOATS") == 0 || strcmp(rule, "TO_FLOAT") == 0 ? "floating"
                       : strcmp(op->dtypes, "NUMBERS") == 0 ? "all but bool" : "all";
    const char *result = strcmp(rule, "COMPARE") == 0 || strcmp(rule, "TO_BOOL") == 0 ? "bool"
                         : strcmp(rule, "TO_I64") == 0 ? "i64"
                         : strcmp(rule, "SUM") == 0 ? "the key, or i64 if the key is not floating" : "the key";
    printf("%s: %s\n", op->name, op->text);
    print_text("operands", contract->operands);
    print_text("key", keys);
    if (strstr(contract->operands, " result[") != NULL)
        print_text("result", result);
    for (size_t i = 0; i < COUNT_OF(layouts); i++)
        if (strcmp(layouts[i].name, contract->layout) == 0)
            print_text("layout", layouts[i].text);
    if (*contract->text != '\0')
        print_text("computes", contract->text);
    if (strcmp(contract->attributes, "none") == 0)
        return;
    snprintf(text, sizeof text, "ctrt_%s_attributes", contract->attributes);
    print_text("attributes", text);
    for (size_t i = 0; i < COUNT_OF(attributes); i++)
        if (strcmp(attributes[i].structure, contract->attributes) == 0)
            print_attribute(&attributes[i]);
}

int tool_ops(int argc, char **argv)
{
    const char *pattern = argc > 1 ? argv[1] : NULL;
    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], "--coverage") == 0)
            return tool_coverage(argc, argv, usage);
    if (argc > 2 || (pattern != NULL && pattern[0] == '-')) {
        const int help = argc == 2 && strcmp(pattern, "--help") == 0;
        fputs(usage, help ? stdout : stderr);
        return help ? 0 : 2;
    }
    int found = 0;
    for (size_t i = 0; i < COUNT_OF(ops); i++) {
        const struct contract *contract = contract_of(&ops[i]);
        if (contract == NULL || (pattern != NULL && fnmatch(pattern, ops[i].name, 0) != 0))
            continue;
        if (pattern == NULL)
            printf("%-24s%s\n", ops[i].name, contract->operands);
        else
            print_contract(&ops[i], contract);
        found++;
    }
    if (found == 0)
        fprintf(stderr, "ctrt ops: no op with kernels matches \"%s\"; `ctrt ops` lists them\n", pattern);
    return found == 0;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* data/csv.c: text files with one sample per line. */
#define _GNU_SOURCE                     /* strtod_l */
#include <locale.h>
#include <math.h>

#include "base/base.h"
#include "base/host_alloc.h"
#include "data/mapped_file.h"
#include "data/parsers.h"

#define LONGEST_CELL 100

struct csv_reader {
    const char *at, *end;
    int64_t line;                       /* of `at`, from 1 */
    char separator;
    locale_t locale;                    /* "C": a decimal point, whatever the program's locale is */
};

static bool is_space(char c, char separator)
{
    return (c == ' ' || c == '\t') && c != separator;
}

/* Writes the next line that is not empty, without its end, and advances. Returns false at the end of the file. */
static bool next_line(const char **begin, const char **end, struct csv_reader *r)
{
    while (r->at < r->end) {
        const char *newline = memchr(r->at, '\n', (size_t)(r->end - r->at));
        *begin = r->at;
        *end = newline != NULL ? newline : r->end;
        r->at = newline != NULL ? newline + 1 : r->end;
        r->line++;
        if (*end > *begin && (*end)[-1] == '\r')
            (*end)--;
        for (const char *c = *begin; c < *end; c++)
            if (!is_space(*c, r->separator))
                return true;
    }
    return false;
}

static int64_t count_columns(const char *begin, const char *end, char separator)
{
    int64_t columns = 1;
    for (; begin < end; begin++)
        columns += *begin == separator;
    return columns;
}

/* Parses the number in a cell. `line`, `column`: for messages. */
static ctrt_status parse_cell(double *out, const struct csv_reader *r, const char *begin, const char *end,
                              int64_t column)
{
    char text[LONGEST_CELL + 1];
    while (begin < end && is_space(*begin, r->separator))
        begin++;
    while (begin < end && is_space(end[-1], r->separator))
        end--;
    if (end - begin >= 2 && *begin == '"' && end[-1] == '"')
        begin++, end--;
    const size_t length = (size_t)(end - begin);
    if (length == 0)
        return ctrt_fail(CTRT_ERR_FORMAT, "line %lld, column %lld is empty, expected a number", (long long)r->line,
                         (long long)column);
    char *rest = text;
    if (length <= LONGEST_CELL) {
        memcpy(text, begin, length);
        text[length] = '\0';
        *out = strtod_l(text, &rest, r->locale);
    }
    if (length > LONGEST_CELL || rest != text + length)
        return ctrt_fail(CTRT_ERR_FORMAT, "line %lld, column %lld: expected a number, found \"%.*s\"",
                         (long long)r->line, (long long)column, (int)MIN(length, 40), begin);
    return CTRT_OK;
}

static ctrt_status store_label(struct csv_table *table, double value, bool floating, int64_t line, int64_t column)
{
    if (floating) {
        ((float *)table->y)[table->rows] = (float)value;
        return CTRT_OK;
    }
    if (!(fabs(value) <= 9007199254740992.0) || value != floor(value))
        return ctrt_fail(CTRT_ERR_FORMAT, "line %lld, column %lld: the label %g is not an integer", (long long)line,
                         (long long)column, value);
    ((int64_t *)table->y)[table->rows] = (int64_t)value;
    return CTRT_OK;
}

/* Parses a line into row table->rows. `label`: its column, from 0; -1: none. */
static ctrt_status parse_line(struct csv_table *table, const struct csv_reader *r, const char *begin, const char *end,
                              int64_t label, bool floating)
{
    const int64_t columns = table->columns + (label >= 0), found = count_columns(begin, end, r->separator);
    float *x = table->x + table->rows * table->columns;
    if (found != columns)
        return ctrt_fail(CTRT_ERR_FORMAT, "line %lld has %lld columns, expected %lld as in the first line",
                         (long long)r->line, (long long)found, (long long)columns);
    for (int64_t c = 0; c < columns; c++) {
        const char *stop = memchr(begin, r->separator, (size_t)(end - begin));
        double value = 0;
        stop = stop != NULL ? stop : end;
        CTRT_TRY(parse_cell(&value, r, begin, stop, c + 1));
        if (c == label)
            CTRT_TRY(store_label(table, value, floating, r->line, c + 1));
        else
            *x++ = (float)value;
        begin = stop + 1;
    }
    table->rows++;
    return CTRT_OK;
}

static ctrt_status parse_table(struct csv_table *table, struct csv_reader *r, const ctrt_csv_options *options)
{
    const char *begin, *end;
    if (options->header && !next_line(&begin, &end, r))
        return ctrt_fail(CTRT_ERR_FORMAT, "the file is empty, expected a header");
    if (!next_line(&begin, &end, r))
        return ctrt_fail(CTRT_ERR_FORMAT, "the file has no numbers");
    const int64_t columns = count_columns(begin, end, r->separator);
    const int64_t label = options->label > 0 ? options->label - 1 : options->label < 0 ? columns + options->label : -1;
    if (options->label != 0 && (label < 0 || label >= columns))
        return ctrt_fail(CTRT_ERR_INVALID_ARGUMENT, "label is column %d; line %lld has %lld columns", options->label,
                         (long long)r->line, (long long)columns);
    table->columns = columns - (label >= 0);
    if (table->columns == 0)
        return ctrt_fail(CTRT_ERR_FORMAT, "line %lld has no column except the label", (long long)r->line);
    size_t rows = 1, bytes;
    for (const char *c = r->at; c < r->end && (c = memchr(c, '\n', (size_t)(r->end - c))) != NULL; c++)
        rows++;
    rows += r->at < r->end;                         /* the last line may have no end */
    if (__builtin_mul_overflow(rows * sizeof(float), (size_t)table->columns, &bytes))
        return out_of_memory(SIZE_MAX, "a table");
    table->x = host_alloc(bytes);
    table->y = label >= 0 ? host_alloc(rows * sizeof(int64_t)) : NULL;
    if (table->x == NULL || (label >= 0 && table->y == NULL))
        return out_of_memory(bytes, "a table");
    do
        CTRT_TRY(parse_line(table, r, begin, end, label, options->label_float));
    while (next_line(&begin, &end, r));
    return CTRT_OK;
}

ctrt_status csv_parse(struct csv_table *out, const void *bytes, size_t size, const ctrt_csv_options *options)
{
    struct csv_table table = { 0 };
    struct csv_reader r = { .at = bytes, .end = (const char *)bytes + size, .separator = options->separator };
    if (size >= 3 && memcmp(bytes, "\xef\xbb\xbf", 3) == 0)             /* the byte order mark of UTF-8 */
        r.at += 3;
    r.locale = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    if (r.locale == (locale_t)0)
        return out_of_memory(64, "a locale");
    const ctrt_status status = parse_table(&table, &r, options);
    freelocale(r.locale);
    if (status != CTRT_OK) {
        host_free(table.x);
        host_free(table.y);
        return status;
    }
    *out = table;
    return CTRT_OK;
}

/* ---- the dataset ---- */

struct csv_state {
    struct csv_table table;
    size_t label_bytes;                 /* 0: no label */
};

static int64_t csv_length(void *state)
{
    return ((struct csv_state *)state)->table.rows;
}

static ctrt_status csv_item(ctrt_sample *sample, void *state)
{
    const struct csv_state *s = state;
    const size_t bytes = (size_t)s->table.columns * sizeof(float);
    memcpy(sample->out[0], (const char *)s->table.x + (size_t)sample->index * bytes, bytes);
    if (s->label_bytes > 0)
        memcpy(sample->out[1], (const char *)s->table.y + (size_t)sample->index * s->label_bytes, s->label_bytes);
    return CTRT_OK;
}

static void csv_free(void *state)
{
    struct csv_state *s = state;
    host_free(s->table.x);
    host_free(s->table.y);
    host_free(s);
}

static ctrt_status csv_open(struct csv_state *s, const char *path, const ctrt_csv_options *options)
{
    struct mapped_file file = { 0 };
    CTRT_TRY(mapped_file_open(&file, path));
    const ctrt_status status = ctrt_context(csv_parse(&s->table, file.bytes, file.size, options), "%.500s", path);
    mapped_file_close(&file);
    return status;
}

ctrt_status ctrt_csv_dataset(ctrt_dataset **out, const char *path, const ctrt_csv_options *options)
{
    if (out == NULL || path == NULL)
        return fail_null("csv_dataset", out == NULL ? "out" : "path");
    ctrt_csv_options used = options != NULL ? *options : (ctrt_csv_options){ 0 };
    used.separator = used.separator != '\0' ? used.separator : ',';
    if (strchr("\"+-.0123456789\r\n", used.separator) != NULL)
        return ctrt_fail(CTRT_ERR_INVALID_ARGUMENT, "csv_dataset: '%c' (code %d) cannot separate numbers",
                         used.separator, used.separator);
    struct csv_state *s = host_calloc(sizeof *s);
    if (s == NULL)
        return out_of_memory(sizeof *s, "a dataset");
    s->label_bytes = used.label == 0 ? 0 : used.label_float ? sizeof(float) : sizeof(int64_t);
    ctrt_status status = csv_open(s, path, &used);
    if (status == CTRT_OK) {
        const ctrt_field fields[2] = {
            { .name = "x", .dtype = CTRT_F32, .ndim = 1, .shape = { s->table.columns } },
            { .name = "y", .dtype = used.label_float ? CTRT_F32 : CTRT_I64 },
        };
        status = ctrt_dataset_new(out, &(ctrt_dataset_functions){
            .size = sizeof(ctrt_dataset_functions), .name = path, .fields = fields,
            .field_count = used.label != 0 ? 2 : 1, .length = csv_length, .item = csv_item, .free = csv_free }, s);
    }
    if (status != CTRT_OK)
        csv_free(s);
    return status;
}

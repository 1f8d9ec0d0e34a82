/* SPDX-License-Identifier: Apache-2.0 */
/* data/csv.c: text files with one sample per line. */
#define _GNU_SOURCE                     /* strtod_l */
#include <locale.h>
#include <math.h>

#include "base/array.h"
#include "base/base.h"
#include "base/host_alloc.h"
#include "data/dataset.h"
#include "data/mapped_file.h"
#include "data/parsers.h"

#define LONGEST_CELL 100

struct csv_reader {
    const char *at, *end;
    int64_t line;                       /* of `at`, from 1 */
    char separator;
    locale_t locale;                    /* "C": a decimal point, whatever the program's locale is */
    const ctrt_csv_options *options;
    int64_t lines;                      /* with numbers, until now */
    struct class *classes;              /* sorted by name */
    size_t class_count, class_capacity;
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

static const char *skip_spaces(const char *begin, const char *end, char separator)
{
    while (begin < end && is_space(*begin, separator))
        begin++;
    return begin;
}

/* Returns the end of the cell at `begin`: the next separator outside of quotes, or `end`. */
static const char *cell_end(const char *begin, const char *end, char separator)
{
    const char *at = skip_spaces(begin, end, separator);
    if (at < end && *at == '"')
        for (at++; at < end && (*at != '"' || (at + 1 < end && at[1] == '"')); at++)
            at += *at == '"';                       /* a quote that is written twice */
    at = at < end ? memchr(at, separator, (size_t)(end - at)) : NULL;
    return at != NULL ? at : end;
}

static int64_t count_columns(const char *begin, const char *end, char separator)
{
    int64_t columns = 1;
    while ((begin = cell_end(begin, end, separator)) < end) {
        columns++;
        begin++;
    }
    return columns;
}

/* Removes spaces around the text of a cell, its quotes, and spaces inside the quotes. */
static void csv_trim(const char **begin, const char **end, char separator)
{
    for (int i = 0; i < 2; i++) {
        *begin = skip_spaces(*begin, *end, separator);
        while (*begin < *end && is_space((*end)[-1], separator))
            --*end;
        if (i > 0 || *end - *begin < 2 || **begin != '"' || (*end)[-1] != '"')
            return;
        ++*begin;
        --*end;
    }
}

static bool is_missing(const char *begin, size_t length)
{
    static const char *const words[] = { "", "NA", "N/A", "NULL", "null", "None", "?" };
    for (size_t i = 0; i < COUNT_OF(words); i++)
        if (strlen(words[i]) == length && memcmp(words[i], begin, length) == 0)
            return true;
    return false;
}

/* Returns the option with which a cell that is no number could be read, for messages. */
static const char *remedy(const struct csv_reader *r, bool missing, bool label)
{
    if (label)
        return "; if labels are texts, set options.label_classes";
    if (missing)
        return "; with options.missing_nan it is NaN";
    return r->lines == 1 && !r->options->header ? "; if this line has names, set options.header" : "";
}

/* Parses the number in a cell. `column`: for messages. `label`: it is the label. */
static ctrt_status parse_cell(double *out, const struct csv_reader *r, const char *begin, const char *end,
                              int64_t column, bool label)
{
    char text[LONGEST_CELL + 1];
    csv_trim(&begin, &end, r->separator);
    const size_t length = (size_t)(end - begin);
    const bool missing = is_missing(begin, length);
    if (missing && !label && r->options->missing_nan) {
        *out = NAN;
        return CTRT_OK;
    }
    if (length == 0)
        return ctrt_fail(CTRT_ERR_FORMAT, "line %lld, column %lld is empty, expected a number%s", (long long)r->line,
                         (long long)column, label ? "" : remedy(r, true, false));
    char *rest = text;
    if (length <= LONGEST_CELL) {
        memcpy(text, begin, length);
        text[length] = '\0';
        *out = strtod_l(text, &rest, r->locale);
    }
    if (length > LONGEST_CELL || rest != text + length)
        return ctrt_fail(CTRT_ERR_FORMAT, "line %lld, column %lld: expected a number, found \"%.*s\"%s",
                         (long long)r->line, (long long)column, (int)MIN(length, 40), begin,
                         remedy(r, missing, label));
    return CTRT_OK;
}

/* ---- labels ---- */

struct class {
    char *name;
    int64_t id;                         /* in the order in which they were found */
};

/* Returns the place of the name among the classes, or where it has to be inserted. */
static size_t class_place(bool *found, const struct csv_reader *r, const char *name)
{
    size_t low = 0, high = r->class_count;
    *found = false;
    while (low < high) {
        const size_t middle = (low + high) / 2;
        const int order = strcmp(r->classes[middle].name, name);
        *found |= order == 0;
        if (order < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* Inserts a class, which then owns the name. */
static ctrt_status class_insert(struct csv_reader *r, size_t place, char *name)
{
    CTRT_TRY(ARRAY_RESERVE(r->classes, r->class_capacity, r->class_count, "labels"));
    memmove(r->classes + place + 1, r->classes + place, (r->class_count - place) * sizeof *r->classes);
    r->classes[place] = (struct class){ name, (int64_t)r->class_count };
    r->class_count++;
    return CTRT_OK;
}

static ctrt_status class_label(int64_t *id, struct csv_reader *r, const char *begin, const char *end, int64_t column)
{
    bool found;
    csv_trim(&begin, &end, r->separator);
    const size_t length = (size_t)(end - begin);
    if (length == 0 || memchr(begin, '\0', length) != NULL)
        return ctrt_fail(CTRT_ERR_FORMAT, "line %lld, column %lld: the label is empty or has a zero byte",
                         (long long)r->line, (long long)column);
    char *name = host_alloc(length + 1);
    ALLOC_CHECK(name, length + 1, "a label");
    char *to = name;
    for (const char *c = begin; c < end; c++, to++) {
        *to = *c;
        c += c + 1 < end && *c == '"' && c[1] == '"';       /* a quote that is written twice */
    }
    *to = '\0';
    const size_t place = class_place(&found, r, name);
    const ctrt_status status = found ? CTRT_OK : class_insert(r, place, name);
    if (found || status != CTRT_OK)
        host_free(name);
    if (status == CTRT_OK)
        *id = r->classes[place].id;
    return status;
}

/* Replaces the numbers of classes by their places in sorted order, and moves the names to the table. */
static ctrt_status number_classes(struct csv_table *table, struct csv_reader *r)
{
    HOST_AUTO int64_t *place = host_alloc((r->class_count + 1) * sizeof *place);
    table->classes = host_alloc((r->class_count + 1) * sizeof *table->classes);
    if (place == NULL || table->classes == NULL)
        return out_of_memory(r->class_count * sizeof *place, "labels");
    for (size_t i = 0; i < r->class_count; i++) {
        place[r->classes[i].id] = (int64_t)i;
        table->classes[i] = r->classes[i].name;
    }
    table->class_count = (int64_t)r->class_count;
    r->class_count = 0;
    for (int64_t i = 0; i < table->rows; i++)
        ((int64_t *)table->y)[i] = place[((int64_t *)table->y)[i]];
    return CTRT_OK;
}

static ctrt_status store_label(struct csv_table *table, struct csv_reader *r, const char *begin, const char *end,
                               int64_t column)
{
    double value = 0;
    if (r->options->label_classes)
        return class_label(&((int64_t *)table->y)[table->rows], r, begin, end, column);
    CTRT_TRY(parse_cell(&value, r, begin, end, column, true));
    if (r->options->label_float) {
        ((float *)table->y)[table->rows] = (float)value;
        return CTRT_OK;
    }
    if (!(fabs(value) <= 9007199254740992.0) || value != floor(value))
        return ctrt_fail(CTRT_ERR_FORMAT, "line %lld, column %lld: the label %g is not an integer; with "
                         "options.label_float labels are f32", (long long)r->line, (long long)column, value);
    ((int64_t *)table->y)[table->rows] = (int64_t)value;
    return CTRT_OK;
}

/* Parses a line into row table->rows. `label`: its column, from 0; -1: none. */
static ctrt_status parse_line(struct csv_table *table, struct csv_reader *r, const char *begin, const char *end,
                              int64_t label)
{
    const int64_t columns = table->columns + (label >= 0), found = count_columns(begin, end, r->separator);
    float *x = table->x + table->rows * table->columns;
    r->lines++;
    if (found != columns)
        return ctrt_fail(CTRT_ERR_FORMAT, "line %lld has %lld columns, expected %lld as in the first line",
                         (long long)r->line, (long long)found, (long long)columns);
    for (int64_t c = 0; c < columns; c++) {
        const char *stop = cell_end(begin, end, r->separator);
        double value = 0;
        if (c == label) {
            CTRT_TRY(store_label(table, r, begin, stop, c + 1));
        } else {
            CTRT_TRY(parse_cell(&value, r, begin, stop, c + 1, false));
            *x++ = (float)value;
        }
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
        CTRT_TRY(parse_line(table, r, begin, end, label));
    while (next_line(&begin, &end, r));
    return options->label_classes ? number_classes(table, r) : CTRT_OK;
}

void csv_free(struct csv_table *table)
{
    for (int64_t i = 0; i < table->class_count; i++)
        host_free(table->classes[i]);
    host_free(table->classes);
    host_free(table->x);
    host_free(table->y);
    *table = (struct csv_table){ 0 };
}

ctrt_status csv_parse(struct csv_table *out, const void *bytes, size_t size, const ctrt_csv_options *options)
{
    struct csv_table table = { 0 };
    struct csv_reader r = { .at = bytes, .end = (const char *)bytes + size, .separator = options->separator,
                            .options = options };
    if (size >= 3 && memcmp(bytes, "\xef\xbb\xbf", 3) == 0)             /* the byte order mark of UTF-8 */
        r.at += 3;
    r.locale = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    if (r.locale == (locale_t)0)
        return out_of_memory(64, "a locale");
    const ctrt_status status = parse_table(&table, &r, options);
    freelocale(r.locale);
    for (size_t i = 0; i < r.class_count; i++)
        host_free(r.classes[i].name);
    host_free(r.classes);
    if (status != CTRT_OK) {
        csv_free(&table);
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

static void state_free(void *state)
{
    struct csv_state *s = state;
    csv_free(&s->table);
    host_free(s);
}

static ctrt_status csv_open(struct csv_state *s, const char *path, const ctrt_csv_options *options)
{
    struct mapped_file file = { 0 };
    CTRT_TRY(mapped_file_open(&file, path));
    HOST_AUTO void *text = NULL;
    size_t size = file.size;
    ctrt_status status = CTRT_OK;
    if (size >= 2 && file.bytes[0] == 0x1f && file.bytes[1] == 0x8b)
        status = gzip_read(&text, &size, file.fd);
    if (status == CTRT_OK)
        status = csv_parse(&s->table, text != NULL ? text : file.bytes, size, options);
    mapped_file_close(&file);
    return ctrt_context(status, "%.500s", path);
}

ctrt_status ctrt_csv_dataset(ctrt_dataset **out, const char *path, const ctrt_csv_options *options)
{
    if (out == NULL || path == NULL)
        return fail_null("csv_dataset", out == NULL ? "out" : "path");
    ctrt_csv_options used = CTRT_CSV_OPTIONS;
    CTRT_TRY(struct_read(&used, sizeof used, options, "csv_dataset", "options"));
    used.separator = used.separator != '\0' ? used.separator : ',';
    if (strchr("\"+-.0123456789\r\n", used.separator) != NULL)
        return ctrt_fail(CTRT_ERR_INVALID_ARGUMENT, "csv_dataset: '%c' (code %d) cannot separate numbers",
                         used.separator, used.separator);
    if (used.label_classes && (used.label == 0 || used.label_float))
        return ctrt_fail(CTRT_ERR_INVALID_ARGUMENT, "csv_dataset: label_classes with %s", used.label == 0
                         ? "label 0; choose the column of the label" : "label_float");
    struct csv_state *s = host_calloc(sizeof *s);
    ALLOC_CHECK(s, sizeof *s, "a dataset");
    s->label_bytes = used.label == 0 ? 0 : used.label_float ? sizeof(float) : sizeof(int64_t);
    ctrt_status status = csv_open(s, path, &used);
    if (status == CTRT_OK) {
        const ctrt_field fields[2] = {
            { .name = "x", .dtype = CTRT_F32, .ndim = 1, .shape = { s->table.columns } },
            { .name = "y", .dtype = used.label_float ? CTRT_F32 : CTRT_I64 },
        };
        status = ctrt_dataset_new(out, &(ctrt_dataset_functions){
            .size = sizeof(ctrt_dataset_functions), .name = path, .fields = fields,
            .field_count = used.label != 0 ? 2 : 1, .length = csv_length, .item = csv_item, .free = state_free }, s);
    }
    if (status != CTRT_OK)
        state_free(s);
    return status;
}

const char *ctrt_csv_class(const ctrt_dataset *dataset, int64_t label)
{
    const struct csv_state *s = dataset != NULL && dataset->functions.item == csv_item ? dataset->state : NULL;
    return s != NULL && label >= 0 && label < s->table.class_count ? s->table.classes[label] : NULL;
}

// Chat templates: the part of the template language Jinja that published models use to write a conversation as text.
//
// The result is that of transformers, which renders with jinja2's sandbox, `trim_blocks`, `lstrip_blocks` and the
// extension for break and continue. Here are statements if, for (with loop, else, if, break, continue), set (also as
// a block, of several names, of a member of a namespace), macro, filter, raw and generation; all expressions of Jinja;
// the filters, tests and methods of jinja_filters.c, jinja_tests.c and jinja_methods.c; the functions range, dict,
// namespace, raise_exception and strftime_now. What else Jinja has is refused by its name.
//
// Templates are hostile: nesting, steps, memory and output of one rendering are limited. Upper and lower case are
// known for ASCII alone; a template that asks for those of another letter fails.
#pragma once
#include "formats/formats.h"
#include <time.h>

typedef struct JinjaTemplate JinjaTemplate;

enum {
    JINJA_MAX_SOURCE_BYTES = 1 << 20,
    JINJA_MAX_DEPTH = 100,     // of expressions and statements within each other, and of macros that run
    JINJA_MAX_STEPS = 1 << 18, // values and statements that one rendering computes, and 64 bytes searched
    JINJA_MAX_MEMORY_BYTES = 32 << 20, // of the values of one rendering
    JINJA_MAX_OUTPUT_BYTES = 8 << 20,
};

// Parses a template. Every message, also those of rendering, begins with `what`, a path, and the line. Fails with
// ERR_DATA.
Status jinja_parse(JinjaTemplate **template, const char *text, size_t size, const char *what);
void jinja_free(JinjaTemplate *template); // takes NULL
// Returns whether the template has a {% generation %} block, which marks what the model is to write.
bool jinja_marks_generation(const JinjaTemplate *template);
// Returns whether the template reads a variable of this name anywhere.
bool jinja_reads(const JinjaTemplate *template, const char *name);

// A name that the template may use.
typedef struct {
    const char *name;
    const Json *value; // borrowed while it renders; NULL: none
} JinjaVariable;

// Bytes [start, end) of a text, which a {% generation %} block wrote.
typedef struct {
    size_t start, end;
} JinjaSpan;

// Zero-initialise it; it may be used again and again; free it with jinja_output_free.
typedef struct {
    Text text;
    JinjaSpan *spans; // in the order of the text, disjoint
    size_t num_spans, capacity;
    int64_t steps; // that the rendering took, also where it failed
} JinjaOutput;

// Renders the template; `output` is overwritten. `now` is the time of strftime_now, in the zone of the process. Any
// number of threads may render one template. Fails with ERR_DATA, also where the template calls raise_exception.
Status jinja_render(const JinjaTemplate *template, const JinjaVariable *variables, int num_variables,
                    time_t now, JinjaOutput *output);
void jinja_output_free(JinjaOutput *output);

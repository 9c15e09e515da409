// Members of a struct as rows of a table: written to JSON, described and read. The rows of the run's state, and those
// of the model's sizes (nn/sizes.def) with their options and their names in other programs' files.
#pragma once
#include "checkpoint/foreign/mapping.h"

typedef enum {
    INT_FIELD,
    INT64_FIELD,
    BOOL_FIELD,
    FLOAT_FIELD,
    DOUBLE_FIELD,
    WORD_FIELD,
    FACTORS_FIELD
} ManifestType;

typedef struct {
    const char *name;
    ManifestType type;
    size_t offset;            // in the struct
    double least, most;       // range of a value that is read
    const char *const *words; // of an enumeration, ended by NULL
} ManifestField;

void field_print(const ManifestField *field, const void *object, Text *out); // the value as JSON
bool field_is_zero(const ManifestField *field, const void *object);

// The float before 1: what is left is divided by 1 - p. Options allow a little less.
#define MAX_DROPOUT 0x1.fffffep-1

// See sizes.def.
typedef enum { MEANS_FUNCTION, MEANS_LENGTH, MEANS_TRAINING, MEANS_BY_RULE, MEANS_NO_OPTION } SizeMeaning;

typedef struct {
    ManifestField field; // of ModelShape
    const char *option;  // the field of Options, or NULL
    SizeMeaning meaning;
    const char *names[NUM_FORMATS][NUM_DIALECTS]; // NULL: the format cannot hold it
} ModelSize;

extern const ModelSize model_sizes[];
extern const int num_model_sizes;

bool size_is_kept(const ModelSize *size, const ModelShape *shape); // in a manifest
const ModelSize *size_named(const char *member);                   // the row of a member of ModelShape
// The name of a size in a format; NULL: the format cannot hold it. "": code of its own reads and writes it.
const char *size_name(const ModelSize *size, Format format, const Family *family);
// The row with this name in a format, or NULL.
const ModelSize *size_of_name(Format format, const Family *family, const char *name);
// The shape as other programs' files say it: every head has a group, and there are positions for a sequence.
ModelShape shape_spelled_out(const ModelShape *shape);
// ERR_UNAVAILABLE names the first size that the format cannot hold and that is not zero.
Status shape_check_names(const ModelShape *shape, Format format, const Family *family);

// The members of a config.json as its readers take them: each is remembered, so that others can be refused.
#pragma once
#include "checkpoint/foreign/hugging_face.h"

enum { MAX_READ = 64 };

// An object, and the names that were read from it.
typedef struct {
    const Json *object;
    const char *what; // begins messages
    const char *read[MAX_READ];
    int num_read;
} Config;

bool config_is_given(const Json *value); // it is there, and not null
const Json *config_member(Config *config, const char *name);
Status config_bad(const Config *config, const char *name, const char *wanted);
// Read an integer from 1, or a count from 0 on. A member that is missing or null leaves `out` as it is, and fails where
// that is -1.
Status config_size(Config *config, const char *name, int most, int *out);
Status config_count(Config *config, const char *name, int most, int *out);
// Reads a number. A member that is missing or null leaves `out` as it is, and fails where that is NaN.
Status config_real(Config *config, const char *name, double least, double most, double *out);
Status config_flag(Config *config, const char *name, bool *out);
// Reads one of `words`, which NULL ends. A member that is missing or null means the first.
Status config_word(Config *config, const char *name, const char *const *words, int *out);
// Fail with ERR_UNAVAILABLE where a member is there and is something else.
Status config_must_be(Config *config, const char *name, bool wanted);
Status config_must_be_zero(Config *config, const char *name);
Status config_must_be_absent(Config *config, const char *name);
// Returns the first member that was not read, is not off (null, false or empty) and may change what the model computes;
// NULL: there is none.
const Json *config_unread(const Config *config);
// Refuses members that were not read, such as a window, a multiplier or another norm: the model would differ.
Status config_check_all_read(const Config *config);

// Finds how the marks of layers, each 0 or 1, repeat: after `period` layers, of which those have it whose bit is set;
// 0: all layers are as the first. Returns whether they do within MAX_WINDOW_PERIOD layers.
bool config_pattern(const char *set, int layers, int *period, uint64_t *bits);
// Read the members about rotary positions, about windows of attention and about experts (hugging_face_rotation.c,
// hugging_face_windows.c, hugging_face_experts.c), once the sizes are read; about experts once all others are.
Status config_rotation(Config *config, const Family *family, ModelShape *shape);
Status config_windows(Config *config, const Family *family, ModelShape *shape);
Status config_no_rope(Config *config, const Family *family, ModelShape *shape);
// Whether no layer of a family that says first_k_dense_replace has experts: then nothing else that is said of them
// matters.
Status config_dense(Config *config, const Family *family, ModelShape *shape, bool *dense);
Status config_experts(Config *config, const Family *family, ModelShape *shape);
